//! Whether two failures that no class explains are one.

use super::{CRASHES, is_exception, last_name, message};

/// Words of exceptions that may pass while no key changes: a network, or a disk that is full.
const PASSING: [&str; 8] = [
    "onnection",
    "imeout",
    "timed out",
    "Max retries exceeded",
    "Temporary failure",
    "No space left on device",
    "Disk quota exceeded",
    "Too many open files",
];

/// Exceptions that only say that another process failed.
const OF_OTHERS: [&str; 3] = ["ChildFailedError", "CalledProcessError", "RayTaskError"];

/// Did two runs whose failures no class explains, each its evidence and its exit status, fail in the
/// same way? Then the same launch would fail so a third time. What they raised decides: a common
/// exception, addresses aside, which differ from run to run. Where neither raised one, the exit
/// status does, unless somebody else sent the signal.
#[must_use]
pub fn same_failure((a, status_a): (&[String], &str), (b, status_b): (&[String], &str)) -> bool {
    let passes = |line: &String| PASSING.iter().any(|word| line.contains(word));
    let raised = |lines: &[String]| -> Vec<String> {
        let own = |line: &&String| {
            is_exception(line) && !OF_OTHERS.contains(&last_name(line)) && !passes(line)
        };
        let without_addresses = |line: &String| {
            let mut parts = message(line).split("0x");
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |text, rest| {
                text + "0x" + rest.trim_start_matches(|c: char| c.is_ascii_hexdigit())
            })
        };
        lines.iter().filter(own).map(without_addresses).collect()
    };
    let (of_a, of_b) = (raised(a), raised(b));
    if of_a.is_empty() && of_b.is_empty() {
        return status_a == status_b
            && !a.iter().chain(b).any(passes)
            && match ended_itself(status_a) {
                Some(is_by_itself) => is_by_itself,
                // It exited with 0 and reported an error, so only its words tell.
                None => a == b,
            };
    }
    of_a.iter().any(|line| of_b.contains(line))
}

/// Is this status one that a process ends itself with, and not one by which people or the system
/// end it? A shell says 128 + n of a signal n. `None` where it is neither a signal nor an exit code
/// that means a failure.
fn ended_itself(status: &str) -> Option<bool> {
    let is_crash = |signal: i32| CRASHES.iter().any(|(crash, _)| *crash == signal);
    if let Some(signal) = status.strip_prefix("signal ") {
        return Some(is_crash(signal.parse().ok()?));
    }
    match status.strip_prefix("exit ")?.parse().ok()? {
        0 => None,
        code @ 129..160 => Some(is_crash(code - 128)),
        _ => Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_is_the_same_by_its_message_whatever_its_rank_and_addresses() {
        let same = |a: &str, b: &str| {
            same_failure((&[a.to_owned()], "exit 1"), (&[b.to_owned()], "exit 2"))
        };
        assert!(same(
            "[rank0]: ValueError: heads must divide <object at 0x7f12ab>",
            "[rank3]: ValueError: heads must divide <object at 0x55c0>"
        ));
        for (a, b) in [
            ("ValueError: heads", "ValueError: layers"),
            ("KeyError: heads", "ValueError: heads"),
            ("something odd", "something odd"),
            ("ChildFailedError:", "ChildFailedError:"),
            (
                "requests.exceptions.ConnectionError: no route",
                "requests.exceptions.ConnectionError: no route",
            ),
            (
                "OSError: [Errno 28] No space left on device",
                "OSError: [Errno 28] No space left on device",
            ),
        ] {
            assert!(!same(a, b), "{a} / {b}");
        }
    }

    #[test]
    fn without_an_exception_a_status_is_the_same_unless_somebody_else_ended_the_run() {
        let same = |(a, of_a): (&str, &str), (b, of_b): (&str, &str)| {
            same_failure((&[a.to_owned()], of_a), (&[b.to_owned()], of_b))
        };
        let (a, b) = ("step 3 of 10", "step 4 of 10");
        for status in [
            "exit 1",
            "exit 3",
            "exit 139",
            "signal 11",
            "signal 6",
            "exit 255",
        ] {
            assert!(same((a, status), (b, status)), "{status}");
        }
        assert!(same(("ChildFailedError:", "exit 1"), (a, "exit 1")));
        for status in [
            "signal 1",
            "signal 2",
            "signal 9",
            "signal 15",
            "signal 10",
            "exit 130",
            "exit 143",
        ] {
            assert!(!same((a, status), (b, status)), "{status}");
        }
        assert!(!same((a, "exit 1"), (b, "exit 3")));
        assert!(!same(("ValueError: heads", "exit 1"), (b, "exit 1")));
        let lost = "curl: (7) Failed: Connection refused";
        assert!(!same((lost, "exit 1"), (lost, "exit 1")));
        let said = "exit 0, but the trainer reports an error";
        assert!(same((a, said), (a, said)) && !same((a, said), (b, said)));
    }
}
