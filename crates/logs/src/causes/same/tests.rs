use super::*;

#[test]
fn an_exception_is_the_same_by_its_message_whatever_its_rank_and_addresses() {
    let same =
        |a: &str, b: &str| same_failure((&[a.to_owned()], "exit 1"), (&[b.to_owned()], "exit 2"));
    assert!(same(
        "[rank0]: ValueError: heads must divide <object at 0x7f12ab>",
        "[rank3]: ValueError: heads must divide <object at 0x55c0>"
    ));
    let cells = [
        "ValueError: expected shape 16x2, lr 0.001 (train.py, line 9)",
        "ValueError: expected shape 32x4, lr 3e-4 (train.py, line 9)",
    ];
    let [a, b] = cells.map(|line| [line.to_owned()]);
    assert!(same_fault((&a, "exit 1"), (&b, "exit 1")) && !same(cells[0], cells[1]));
    for (a, b) in [
        ("ValueError: heads", "ValueError: layers"),
        (
            "AssertionError (train.py, line 9)",
            "AssertionError (train.py, line 12)",
        ),
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
