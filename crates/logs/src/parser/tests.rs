use super::*;

#[test]
fn live_reports_each_step_once_and_skips_what_other_ranks_repeat() {
    let mut live = Live::new(&LogSection::named("tprimat"));
    assert_eq!(live.feed(b"loading weights\n"), None);
    let step = live
        .feed(b"[rank0]: {\"event\":\"step\",\"step\":1,\"loss\":2.5}\r\n")
        .unwrap();
    assert_eq!((step.step, step.loss), (1, Some(2.5)));
    assert_eq!(
        live.feed(b"[rank1]: {\"event\":\"step\",\"step\":1,\"loss\":2.5}"),
        None
    );
    assert_eq!(
        live.feed(br#"{"event":"step","step":2}"#).map(|s| s.step),
        Some(2)
    );
    assert_eq!(
        Live::new(&LogSection::named("nothing")).feed(br#"{"event":"step","step":2}"#),
        None
    );
}

#[test]
fn steps_are_dated_by_the_growth_of_the_log_unless_the_trainer_says_when() {
    let lines: Vec<String> = (1..=4)
        .map(|n| format!("{{\"event\":\"step\",\"step\":{n}}}\n"))
        .collect();
    let mut log = lines.concat();
    let ends: Vec<usize> = lines
        .iter()
        .scan(0, |at, line| (*at += line.len(), Some(*at)).1)
        .collect();
    let section = LogSection::named("tprimat");
    let ended = |log: &str, times: &str| -> Vec<Option<f64>> {
        parse_dated(&section, log.as_bytes(), times.as_bytes())
            .steps
            .iter()
            .map(|s| s.ended_at)
            .collect()
    };
    // Half a line is no line yet; what grew after the last look has the last time.
    let times = format!("100.0 0\n101.5 {}\n103.25 {}\ntorn", ends[0] + 3, ends[2]);
    assert_eq!(
        ended(&log, &times),
        [Some(101.5), Some(103.25), Some(103.25), Some(103.25)]
    );
    assert_eq!(ended(&log, ""), [None; 4]);
    for nonsense in [
        "1 99999999999999999999",
        "x 5",
        "nan 5",
        "5",
        "9 18446744073709551615",
        "3 40\n4 2\n5 1",
    ] {
        assert_eq!(ended(&log, nonsense).len(), 4, "{nonsense}");
    }
    log = log.replace("\"step\":2", "\"step\":2,\"time\":102.125");
    assert_eq!(
        ended(&log, "101 10000"),
        [Some(101.0), Some(102.125), Some(101.0), Some(101.0)]
    );
    // The trainer's own date does not hide when its line came.
    let seen: Vec<Option<f64>> = parse_dated(&section, log.as_bytes(), b"101 10000")
        .steps
        .iter()
        .map(|s| s.seen_at)
        .collect();
    assert_eq!(seen, [None, Some(101.0), None, None]);
    let by_lines = |log: &str, times: &str| {
        parse_dated(&section, log.as_bytes(), times.as_bytes()).dated_by_lines
    };
    assert!(by_lines(&log, "101 10000") && !by_lines(&log, ""));
    assert!(!by_lines(
        "{\"event\":\"step\",\"step\":1,\"time\":102.125}\n",
        "101 10000"
    ));
}

#[test]
fn an_unknown_format_is_said_and_not_guessed() {
    let trace = parse(&LogSection::named("nothing"), b"iteration 1/ 10");
    assert_eq!(trace.anomalies[0].kind, "unknown_format");
    assert!(trace.steps.is_empty());
}

#[test]
fn detects_the_own_format_behind_noise_only() {
    let start = b"warning: x\n[rank0]: {\"event\": \"start\", \"schema\": \"tprimat.events/1\"}\n";
    assert_eq!(parse_any(start).format, "tprimat");
    assert_eq!(
        parse_any(b"{\"event\": \"click\"}\n{\"other\": 1}\n").format,
        "unknown"
    );
    assert_eq!(parse_any(b"").format, "unknown");
}
