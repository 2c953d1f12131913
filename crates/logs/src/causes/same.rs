//! Whether two failures that no class explains are one.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use super::words::{TABLE, exception, message};
use crate::{classify::CRASHES, pattern::Pattern};

static ADDRESS: Pattern = Pattern::new("0x[0-9a-fA-F]+");

static NUMBER: Pattern = Pattern::new("0x[0-9a-fA-F]+|[0-9]+(?:\\.[0-9]+)?(?:e-?[0-9]+)?");

/// Where an exception was raised: ` (train.py, line 9)`.
static PLACE: Pattern = Pattern::new(r" \([^()]*, line [0-9]+\)$");

fn passes(line: &str) -> bool {
    TABLE.passing.iter().any(|word| line.contains(word))
}

/// The exceptions that a run itself raised, each with its place, without what `varied` finds in its text.
fn raised<'a>(lines: &'a [String], varied: &Pattern) -> Vec<(Cow<'a, str>, &'a str)> {
    let of_others = |name: &str| TABLE.of_others.iter().any(|other| other == name);
    let is_own = |line: &&String| {
        let name = exception(line);
        name.is_some_and(|name| !of_others(name)) && !passes(line)
    };
    let own = lines.iter().filter(is_own);
    own.map(|line| {
        let line = message(line);
        let place = PLACE.find(line).map_or(line.len(), |found| found.start());
        let (text, place) = line.split_at(place);
        // Without a place its numbers are all that tells it from another fault.
        let varied = if place.is_empty() { &ADDRESS } else { varied };
        (varied.replace_all(text, "0"), place)
    })
    .collect()
}

/// Did two runs whose failures no class explains, each its evidence and its exit status, fail in the
/// same way? Then the same launch would fail so a third time. What they raised decides: a common
/// exception. Where neither raised one, the exit status does, unless somebody else sent the signal.
#[must_use]
pub fn same_failure(a: (&[String], &str), b: (&[String], &str)) -> bool {
    is_same(a, b, &ADDRESS)
}

/// The same of runs of two cells, whose settings an exception may name: its numbers count for nothing where it
/// says in which line it was raised.
#[must_use]
pub fn same_fault(a: (&[String], &str), b: (&[String], &str)) -> bool {
    is_same(a, b, &NUMBER)
}

fn is_same(
    (a, status_a): (&[String], &str),
    (b, status_b): (&[String], &str),
    varied: &Pattern,
) -> bool {
    let (of_a, of_b) = (raised(a, varied), raised(b, varied));
    if !of_a.is_empty() || !of_b.is_empty() {
        return of_a.iter().any(|line| of_b.contains(line));
    }
    let is_same = status_a == status_b && !a.iter().chain(b).any(|line| passes(line));
    // It exited with 0 and reported an error, so only its words tell.
    is_same && ended_itself(status_a).unwrap_or_else(|| a == b)
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
