use std::{
    io::{self, Write},
    time::Duration,
};

use indicatif::ProgressDrawTarget;

use super::{live_line::LiveLine, *};

fn a_build() -> Vec<Event> {
    let task = || "train cpu/native/llama/single#2".to_owned();
    let step = |step| Event::Step {
        task: task(),
        step,
        steps_total: Some(50),
        step_time_seconds: Some(0.1),
        loss: Some(5.123_456),
        tokens_per_second: Some(1234.6),
        power_watts: Some(2801.4),
    };
    vec![
        Event::BuildStarted {
            tasks: 12,
            stale: 2,
            queue: Vec::new(),
        },
        Event::TaskStarted {
            task: task(),
            cell: None,
            repeat: Some(2),
            reason: "never run".into(),
        },
        Event::TaskWaiting {
            task: task(),
            what_for: "device cpu, held by pid 7 (run x)".into(),
        },
        step(1),
        step(2),
        Event::TaskFinished {
            task: task(),
            outcome: Outcome::Failed,
            seconds: 3.21,
            class: Some(crate::job::FailureClass::Oom),
            evidence: vec!["out of memory".into()],
            what_to_do: Some("look".into()),
        },
        Event::BuildFinished {
            ok: 1,
            failed: 4,
            cells: CellCounts {
                done: 1,
                failed: 2,
                unsupported: 3,
                ..CellCounts::default()
            },
            runs: 12,
            waiting: 0,
            unsupported: 3,
            nan: 0,
            log_failed: 3,
            contradicted: 2,
            suspect: 0,
            unmeasured: 1,
            seconds: 4.0,
            output: None,
        },
    ]
}

#[test]
fn plain_lines_are_few_and_say_what_a_person_needs() {
    let mut bytes = Vec::new();
    let mut plain = PlainLines::new(&mut bytes, Duration::MAX, Amount::default());
    for event in a_build() {
        plain.report(&event);
    }
    let expected = "\
no run to do
train cpu/native/llama/single#2: started (never run)
train cpu/native/llama/single#2: waiting for device cpu, held by pid 7 (run x)
train cpu/native/llama/single#2: failed (oom) after 3.2 s
    out of memory
    what to do: look
1 of 6 selected cells measured (2 failed, 3 unsupported); 12 runs made in 4.0 s; runs that ended well and do not count: 3 whose log reports a failure, 2 contradicted by their logs, 1 with nothing to measure
";
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    let mut bytes = Vec::new();
    let mut plain = PlainLines::new(&mut bytes, Duration::ZERO, Amount::default());
    a_build().iter().for_each(|event| plain.report(event));
    let step = "train cpu/native/llama/single#2: step 1/50  loss 5.1235  1,235 tokens/s  2801 W\n";
    assert!(String::from_utf8(bytes).unwrap().contains(step));
}

/// As when an image cannot be pulled, which has two names for it that alternate, or nodes come and go.
#[test]
fn what_a_run_waits_for_is_a_line_once_however_often_it_is_told() {
    let told = |every: Duration, amount: Amount| {
        let mut bytes = Vec::new();
        let mut plain = PlainLines::new(&mut bytes, every, amount);
        for round in 0..20 {
            for why in ["ErrImagePull", "ImagePullBackOff", "of 3 nodes"] {
                plain.report(&Event::TaskWaiting {
                    task: "train a#1".into(),
                    what_for: format!("a Job ({why}, {round})"),
                });
            }
        }
        String::from_utf8(bytes).unwrap().lines().count()
    };
    assert_eq!(told(Duration::MAX, Amount::default()), 3);
    assert_eq!(told(Duration::MAX, Amount::EveryTask), 60);
    assert!(told(Duration::ZERO, Amount::default()) > 3, "after a while");
}

/// Repeats, a cell with the runs of another, and one whose launch file failed: each counts once.
#[test]
fn a_measurement_that_begins_says_how_far_the_build_is() {
    let told = |every: Duration| {
        let mut bytes = Vec::new();
        let mut plain = PlainLines::new(&mut bytes, every, Amount::default());
        let queue = [
            "train a#1",
            "train a#2",
            "train twin#1",
            "train broken#1",
            "parse a#1",
        ];
        plain.report(&Event::BuildStarted {
            tasks: 9,
            stale: 5,
            queue: queue.map(String::from).to_vec(),
        });
        let end = |task: &str, outcome, seconds| Event::TaskFinished {
            task: task.to_owned(),
            outcome,
            seconds,
            class: None,
            evidence: Vec::new(),
            what_to_do: None,
        };
        let start = |task: &str| Event::TaskStarted {
            task: task.to_owned(),
            cell: None,
            repeat: Some(1),
            reason: "never run".into(),
        };
        for event in [
            end("train broken#1", Outcome::Waiting, 0.0),
            start("train a#1"),
            end("train a#1", Outcome::Ok, 300.0),
            end("train twin#1", Outcome::Cached, 0.0),
            end("parse a#1", Outcome::Ok, 0.1),
            start("train a#2"),
            end("train a#2", Outcome::Ok, 310.0),
        ] {
            plain.report(&event);
        }
        String::from_utf8(bytes).unwrap()
    };
    let expected = "\
train a#1: started (never run); 1 of 4 runs over
train a#2: started (never run); 3 of 4 runs over; about 5 min of measuring left
";
    assert_eq!(told(Duration::ZERO), expected);
    let first = expected.lines().next();
    assert_eq!(
        told(Duration::from_secs(301)).lines().next_back(),
        first,
        "short runs"
    );
}

#[test]
fn a_failure_that_many_runs_meet_is_told_once() {
    let failed = |task: &str, line: &str| Event::TaskFinished {
        task: task.to_owned(),
        outcome: Outcome::Failed,
        seconds: 2.0,
        class: Some(crate::job::FailureClass::Oom),
        evidence: vec![line.to_owned()],
        what_to_do: Some(format!("look at {task}")),
    };
    let mut bytes = Vec::new();
    let mut plain = PlainLines::new(&mut bytes, Duration::MAX, Amount::default());
    for (task, line) in [
        ("train a#1", "one"),
        ("train b#1", "two"),
        ("train c#1", "one"),
    ] {
        plain.report(&failed(task, line));
    }
    let expected = "\
train a#1: failed (oom) after 2.0 s
    one
    what to do: look at train a#1
train b#1: failed (oom) after 2.0 s
    two
    what to do: look at train b#1
train c#1: failed (oom) after 2.0 s: as train a#1
";
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

#[test]
fn a_quiet_build_tells_what_failed_and_a_verbose_one_every_task() {
    let told = |amount| {
        let mut bytes = Vec::new();
        let mut plain = PlainLines::new(&mut bytes, Duration::MAX, amount);
        let parse = || "parse cpu/native/llama/single#1".to_owned();
        plain.report(&Event::TaskStarted {
            task: parse(),
            cell: None,
            repeat: None,
            reason: "never run".into(),
        });
        plain.report(&Event::TaskFinished {
            task: parse(),
            outcome: Outcome::Ok,
            seconds: 0.1,
            class: None,
            evidence: Vec::new(),
            what_to_do: None,
        });
        for event in a_build() {
            plain.report(&event);
        }
        String::from_utf8(bytes).unwrap()
    };
    let quiet = told(Amount::Failures);
    let failure = "train cpu/native/llama/single#2: failed (oom) after 3.2 s\n    out of memory\n    what to do: look\n";
    assert_eq!(quiet, failure);
    let all = told(Amount::EveryTask);
    for part in [
        "parse cpu/native/llama/single#1: started (never run)\n",
        "parse cpu/native/llama/single#1: ok after 0.1 s\n",
        failure,
    ] {
        assert!(all.contains(part), "{all}");
    }
    assert!(!told(Amount::Measurements).contains("parse"));
}

#[test]
fn json_lines_come_back_as_the_events_they_were() {
    let mut bytes = Vec::new();
    let mut json = JsonLines::new(&mut bytes);
    for event in a_build() {
        json.report(&event);
    }
    let lines: Vec<Event> = bytes
        .split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(lines, a_build());
    assert!(
        String::from_utf8(bytes)
            .unwrap()
            .contains(r#""event":"task_waiting""#)
    );
}

#[test]
fn a_terminal_has_a_line_of_what_goes_on_until_the_build_is_over() {
    let mut live = LiveLine::on(ProgressDrawTarget::hidden(), Amount::default());
    let events = a_build();
    for event in &events[..5] {
        live.report(event);
    }
    let message = live.line.message();
    assert!(
        message.starts_with("step 2/50  loss 5.1235") && message.ends_with("single#2"),
        "{message}"
    );
    for event in &events[5..] {
        live.report(event);
    }
    assert!(live.line.is_finished());
}

#[test]
fn a_closed_pipe_is_no_error_and_is_not_written_to_again() {
    struct Closed(std::sync::mpsc::Sender<()>);
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.0.send(()).unwrap();
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut plain = PlainLines::new(Closed(sender), Duration::ZERO, Amount::default());
    for event in a_build() {
        plain.report(&event);
    }
    drop(plain);
    assert_eq!(receiver.iter().count(), 1);
}
/// A build that ran nothing has not measured its cells within its own few moments.
#[test]
fn a_build_without_runs_says_where_the_figures_are_from() {
    let ended = |done, waiting| {
        let cells = CellCounts {
            done,
            waiting,
            ..CellCounts::default()
        };
        sentence(&Event::BuildFinished {
            ok: 9,
            failed: 0,
            cells,
            runs: 0,
            waiting: 0,
            unsupported: 0,
            nan: 0,
            log_failed: 0,
            contradicted: 0,
            suspect: 0,
            unmeasured: 0,
            seconds: 0.3,
            output: None,
        })
    };
    let in_the_cache = "4 of 4 selected cells measured; every run was in the cache (0.3 s)";
    assert_eq!(ended(4, 0), in_the_cache);
    let none = "0 of 4 selected cells measured (4 waiting); no run was made (0.3 s)";
    assert_eq!(ended(0, 4), none);
}
