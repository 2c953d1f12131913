use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Event, LogSection, Trace, events_schema, testing::all_kinds};

fn parse(log: &[u8]) -> Trace {
    crate::parse(&LogSection::named("tprimat"), log)
}

const LOG: &str = concat!(
    "[W socket.cpp:697] a warning\n",
    "[rank0]: {\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"trainer\":\"native\",\"effective\":",
    "{\"global_batch_size\":8,\"seq_length\":128,\"dropout\":null},\"num_parameters\":1000,",
    "\"device\":{\"type\":\"cpu\",\"name\":\"EPYC\",\"count\":1},\"versions\":{\"torch\":\"2.11.0\"}}\n",
    " 33%|###   | 1/3 [00:01<00:02]\r{\"event\":\"step\",\"step\":1,\"step_time_seconds\":1.5,\"loss\":2.25,",
    "\"learning_rate\":1e-4,\"grad_norm\":0.5,\"tokens\":1024,\"memory_bytes\":4096,\"memory_kind\":\"peak_rss\",",
    "\"memory_source\":\"proc\"}\n",
    "\x1b[32m{\"step\": 2, \"loss\": NaN, \"grad_norm\": -Infinity, \"event\": \"step\"}\x1b[0m trailing {text}\n",
    "{\"event\":\"step\",\"step\":4,\"loss\":null,\"anomaly\":\"nan_loss\"}{\"event\":\"end\",\"status\":\"ok\",\"steps\":4}\n",
);

#[test]
fn reads_events_between_everything_else() {
    let trace = parse(LOG.as_bytes());
    assert_eq!(
        trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
        [1, 2, 4]
    );
    let first = &trace.steps[0];
    assert_eq!(
        (first.step_time_seconds, first.loss, first.tokens),
        (Some(1.5), Some(2.25), Some(1024))
    );
    assert_eq!(
        (first.memory_bytes, first.memory_kind.as_deref()),
        (Some(4096), Some("peak_rss"))
    );
    assert_eq!(
        (trace.steps[1].loss, trace.steps[1].grad_norm),
        (None, None)
    );
    assert_eq!(
        trace.effective.0.keys().collect::<Vec<_>>(),
        ["global_batch_size", "seq_length"]
    );
    assert_eq!((trace.num_parameters, trace.finished), (Some(1000), true));
    assert_eq!(
        all_kinds(&trace),
        [
            "nan_loss",
            "nan_loss",
            "nan_grad_norm",
            "step_count",
            "missing_steps"
        ]
    );
}

#[test]
fn a_start_event_leaves_the_format_to_the_step_lines() {
    let start =
        "{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"effective\":{\"num_gpus\":8}}\n";
    let detected = |log: &str| {
        let mut parser = crate::Parser::detecting();
        parser.feed(log.as_bytes());
        parser.finish()
    };
    let titan = include_str!("../../../../tests/fixtures/logs/torchtitan.log");
    let both = detected(&format!("{start}{titan}"));
    assert_eq!(
        (both.format.as_str(), both.steps.is_empty()),
        ("torchtitan", false)
    );
    assert_eq!(both.effective.0["num_gpus"], 8);
    assert_eq!(detected(start).format, "tprimat");
}

#[test]
fn one_number_in_two_spellings_is_no_contradiction() {
    let mut out = crate::builder::Builder::default();
    out.set("clip_grad", 1);
    out.set("clip_grad", 1.0);
    assert!(all_kinds(&out.finish()).is_empty());
}

#[test]
fn data_seen_more_than_once_is_said() {
    let log = |epochs: f64| {
        format!("{{\"event\":\"start\",\"effective\":{{\"data_epochs\":{epochs}}}}}\n")
    };
    assert_eq!(all_kinds(&parse(log(1.5).as_bytes())), ["repeated_data"]);
    assert_eq!(all_kinds(&parse(log(1.0).as_bytes())), Vec::<&str>::new());
}

#[test]
fn absurd_values_are_absent_and_said() {
    let log = br#"{"event":"step","step":1,"loss":1,"step_time_seconds":-3,"memory_bytes":99999999999999999999,"tokens":0}
{"event":"step","step":-1}
{"event":"step","step":9007199254740992,"step_time_seconds":1e300,"loss":"inf"}
{"event":"step","step":1,"loss":2}
{"event":"step","st"#;
    let trace = parse(log);
    assert_eq!(trace.steps.len(), 2);
    assert!(
        trace.steps.iter().all(|s| s.step_time_seconds.is_none()
            && s.memory_bytes.is_none()
            && s.tokens.is_none())
    );
    for kind in [
        crate::ABSURD_STEP_TIME,
        "unreadable_line",
        "nan_loss",
        "duplicate_step",
        "truncated",
        "missing_steps",
    ] {
        assert!(
            all_kinds(&trace).contains(&kind),
            "{kind} in {:?}",
            trace.anomalies
        );
    }
    assert!(!trace.finished);
}

#[test]
fn a_damaged_line_is_counted_with_its_number() {
    let step = |n: u32| format!("{{\"event\":\"step\",\"step\":{n},\"loss\":2}}\n");
    let told = |damaged: &str| {
        let log = format!(
            "loading {{\"a\" and 'b'}}\n\n{}{damaged}\n{}",
            step(1),
            step(3)
        );
        let trace = parse(log.as_bytes());
        assert_eq!(
            crate::testing::in_pieces("tprimat", log.as_bytes(), 7),
            trace
        );
        trace.unreadable.map(|lines| (lines.count, lines.first))
    };
    for damaged in [
        // Cut off, early and late; as a number that JSON has not; a step without a number.
        r#"{"ev"#,
        r#"{"event":"step","step":2,"lo"#,
        r#"{"event":"step","step":2,"loss":None}"#,
        r#"{"event":"step","loss":2}"#,
        r#"[rank0] {"event":"step","st"#,
        r#"{"step":2,"loss":2,"#,
        // Two processes wrote into one line, also where one of the two events is whole.
        r#"{"event":"step","step":2,"lo{"event":"step","step":4,"loss":2}"#,
        r#"{"ev{"event":"step","step":4,"loss":2}"#,
    ] {
        assert_eq!(told(damaged), Some((1, 4)), "{damaged}");
    }
    for fine in [
        r#"{"event":"step","step":2,"loss":NaN}"#,
        r#"{"event":"step","step":2}{"event":"step","step":4}"#,
        r#"{"metrics":{"mfu":0.4}} and text"#,
        r#"{'loss': 2.5, 'event': 'step'}"#,
        "{\n  \"hidden_size\": 8\n}",
        r#"the word "event" and {braces}"#,
    ] {
        assert_eq!(told(fine), None, "{fine}");
    }
    let two = parse(b"{\"event\":\"st\n{\"event\":\"st");
    assert_eq!(two.unreadable.map(|u| (u.count, u.first)), Some((2, 1)));
    assert_eq!(two.anomalies[1].detail, "line 2: {\"event\":\"st");
}

#[test]
fn the_first_step_may_have_the_number_0() {
    let line =
        |step: u64| format!("{{\"event\":\"step\",\"step\":{step},\"step_time_seconds\":0.5}}\n");
    let log: String = (0..4).map(line).collect();
    let trace = parse((log + "{\"event\":\"end\",\"status\":\"ok\",\"steps\":4}\n").as_bytes());
    assert_eq!(trace.steps.len(), 4);
    assert_eq!(all_kinds(&trace), Vec::<&str>::new());
}

#[test]
fn an_end_that_is_not_ok_is_a_failure() {
    let trace = |end: &str| parse(format!("{{\"event\":\"step\",\"step\":1}}\n{end}\n").as_bytes());
    for (status, class) in [
        ("oom", FailureClass::Oom),
        ("failed", FailureClass::Unknown),
        ("OK", FailureClass::Unknown),
    ] {
        let line = format!("{{\"event\":\"end\",\"status\":\"{status}\",\"steps\":1}}");
        let trace = trace(&line);
        let failure = trace.failure.expect(status);
        assert_eq!((failure.class, &failure.evidence[..]), (class, &[line][..]));
        assert!(!trace.finished);
    }
    let ended = trace("{\"event\":\"end\",\"status\":\"ok\",\"steps\":1}");
    assert!(ended.finished && ended.failure.is_none());
    let again = "{\"event\":\"end\",\"status\":\"failed\"}\n{\"event\":\"end\",\"status\":\"ok\"}";
    assert!(trace(again).finished && trace(again).failure.is_none());
    let late = "{\"event\":\"end\",\"status\":\"ok\"}\n{\"event\":\"end\",\"status\":\"nan\"}";
    assert!(!trace(late).finished && trace(late).failure.is_some());
    let silent = trace("{\"event\":\"end\",\"steps\":1}");
    assert!(!silent.finished && silent.failure.is_none());
    assert_eq!(all_kinds(&silent), ["end_status"]);
}

#[test]
fn counts_that_are_none_are_said() {
    for tokens in ["0", "-1024", "1e308", "1.5", "\"many\"", "NaN"] {
        let trace =
            parse(format!("{{\"event\":\"step\",\"step\":7,\"tokens\":{tokens}}}\n").as_bytes());
        assert_eq!(
            (trace.steps[0].tokens, all_kinds(&trace)[0]),
            (None, "absurd_value"),
            "{tokens}"
        );
        assert!(
            trace.anomalies[0].detail.starts_with("step 7: tokens is "),
            "{:?}",
            trace.anomalies
        );
    }
    let fine = parse(
            b"{\"event\":\"step\",\"step\":1,\"tokens\":null}\n{\"event\":\"step\",\"step\":2,\"tokens\":512.0}\n",
        );
    assert_eq!(
        (fine.steps[1].tokens, all_kinds(&fine).len()),
        (Some(512), 0)
    );
}

#[test]
fn a_second_start_is_named_by_what_it_changes() {
    let start = |settings: &str| {
        format!("{{\"event\":\"start\",\"effective\":{{{settings}}},\"num_parameters\":9}}\n")
    };
    let first = start("\"seq_length\":128,\"num_gpus\":1,\"dropout\":0.1");
    assert_eq!(
        parse((first.clone() + &first).as_bytes()).restated.0.len(),
        0
    );
    let trace = parse(
        (first.clone()
            + &first
            + &start("\"seq_length\":256,\"num_gpus\":1,\"dropout\":null,\"seed\":3"))
            .as_bytes(),
    );
    assert_eq!(trace.effective.0["seq_length"], 128);
    assert_eq!(
        trace
            .restated
            .0
            .iter()
            .map(|(k, v)| format!("{k} {v}"))
            .collect::<Vec<_>>(),
        ["seed 3", "seq_length 256"]
    );
    assert_eq!(all_kinds(&trace), ["second_start"]);
    assert!(
        trace.anomalies[0].detail.contains("seq_length 256"),
        "{:?}",
        trace.anomalies
    );
}

#[test]
fn an_error_event_is_the_failure() {
    let log = br#"{"event":"error","class":"nan","message":"loss is nan at step 3"}
{"event":"error","class":"oom","message":"later"}"#;
    let failure = parse(log).failure.unwrap();
    assert_eq!(
        (failure.class, failure.evidence),
        (FailureClass::Nan, vec!["loss is nan at step 3".to_owned()])
    );
    let foreign = parse(br#"{"event":"error","class":"gremlins","message":"?"}"#)
        .failure
        .unwrap();
    assert_eq!(foreign.class, FailureClass::Unknown);
}

#[test]
fn a_million_braces_are_read_in_linear_time() {
    let mut log = "{".repeat(300_000) + &"{\"a\":".repeat(100_000) + "\"event\"";
    log.push_str(&"\n{\"event\":1} ".repeat(50_000));
    assert!(parse(log.as_bytes()).steps.is_empty());
}

#[test]
fn a_loss_over_several_steps_leaves_the_time_of_its_step_alone() {
    let log =
        r#"{"event":"step","step":5,"step_time_seconds":0.5,"loss":2.5,"loss_steps_averaged":5}"#;
    let step = &parse(log.as_bytes()).steps[0];
    assert_eq!((step.loss, step.steps_averaged), (Some(2.5), None));
    assert_eq!(step.other[crate::LOSS_STEPS_AVERAGED], 5.0);
}

#[test]
fn what_the_schema_types_write_is_read() {
    let event = Event::Step {
        step: 3,
        time: Some(1.0),
        step_time_seconds: Some(0.25),
        loss: Some(1.0),
        loss_steps_averaged: None,
        learning_rate: Some(0.5),
        grad_norm: Some(2.0),
        tokens: Some(64),
        memory_bytes: Some(1),
        memory_kind: Some("peak_allocated".into()),
        memory_source: Some("torch".into()),
        tokens_per_second_per_gpu: Some(256.0),
        tflops_per_gpu: Some(1.5),
        anomaly: None,
    };
    let trace = parse(serde_json::to_string(&event).unwrap().as_bytes());
    let step = &trace.steps[0];
    assert_eq!(
        (step.step, step.tokens, step.tflops_per_gpu),
        (3, Some(64), Some(1.5))
    );
    assert!(events_schema().to_string().contains("step_time_seconds"));
}

proptest! {
    #[test]
    fn never_panics_on_any_bytes(log in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&log);
    }

    #[test]
    fn never_panics_on_a_damaged_log(edits in proptest::collection::vec((0..LOG.len(), any::<u8>()), 0..12), end in 0..LOG.len()) {
        let mut log = LOG.as_bytes().to_vec();
        for (at, byte) in edits {
            log[at] = byte;
        }
        let _ = parse(&log[..end]);
        let _ = parse(&log);
    }

    #[test]
    fn noise_between_the_lines_changes_nothing(noise in proptest::collection::vec("[ -~é]{0,60}", 8), prefix in "(\\[rank[0-9]\\]: |\\[36m|  5%\\|# \\| )?") {
        let clean = parse(LOG.as_bytes());
        let mut noisy = String::new();
        for (line, noise) in LOG.lines().zip(noise.iter().cycle()) {
            noisy.push_str(&format!("{noise}\n{prefix}{line}\r\n"));
        }
        let noisy = parse(noisy.as_bytes());
        prop_assert_eq!(noisy.steps, clean.steps);
        prop_assert_eq!(noisy.effective, clean.effective);
    }

    #[test]
    fn steps_come_back_as_they_were_printed(steps in proptest::collection::btree_map(1u64..5000, (1e-6f64..1e6, -1e3f64..1e3), 0..20)) {
        let log: String = steps.iter().map(|(n, (time, loss))| format!("{{\"event\": \"step\", \"step\": {n}, \"step_time_seconds\": {time:?}, \"loss\": {loss:?}}}\n")).collect();
        let read: BTreeMap<_, _> = parse(log.as_bytes()).steps.into_iter().map(|s| (s.step, (s.step_time_seconds.unwrap(), s.loss.unwrap()))).collect();
        prop_assert_eq!(read, steps);
    }
}
