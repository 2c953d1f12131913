use proptest::prelude::*;

use crate::{Live, LogSection, Trace, parse, testing};

fn section(patterns: &[&str]) -> LogSection {
    LogSection {
        format: "regex".into(),
        patterns: patterns.iter().map(|p| (*p).to_owned()).collect(),
        ..LogSection::default()
    }
}

fn read(patterns: &[&str], log: &str) -> Trace {
    parse(&section(patterns), log.as_bytes())
}

#[test]
fn a_line_counts_as_lost_only_where_its_values_are() {
    let patterns = [r"^it (?P<step>\S+) loss=(?P<loss>\S+) lr=(?P<learning_rate>\S+)"];
    let trace = read(&patterns, "it 1 loss=2.5 lr=n/a\nit 2 loss=2.25 lr=1e-3\n");
    assert_eq!(testing::kinds(&trace), ["unreadable_field"]);
    assert_eq!(trace.unreadable, None);
    assert_eq!((trace.steps.len(), trace.steps[0].loss), (2, Some(2.5)));
    // The values of a line whose step cannot be read are not those of the step before.
    let trace = read(&patterns, "it 1 loss=2.5 lr=1e-3\nit ? loss=9.5 lr=2e-3\n");
    assert_eq!(testing::kinds(&trace), ["unreadable_line"]);
    assert_eq!(
        trace.unreadable.map(|lines| (lines.count, lines.first)),
        Some((1, 2))
    );
    assert_eq!((trace.steps.len(), trace.steps[0].loss), (1, Some(2.5)));
}

/// The example of docs/recipes.md.
fn ours() -> LogSection {
    #[derive(serde::Deserialize)]
    struct Recipe {
        log: LogSection,
    }
    let page = include_str!("../../../../docs/recipes.md");
    let at = page.find("[log]\nformat = \"ours\"").unwrap();
    let example = page[at..].split("```").next().unwrap();
    toml::from_str::<Recipe>(example).unwrap().log
}

#[test]
fn a_table_of_ones_own_reads_as_a_shipped_one_does() {
    let log = "option batch_size = 32\noption dtype = bfloat16\nit 1/500 | loss 8.31 | 0.482 s | lr 3e-4\n\
               eval 1: loss 8.4\nit 2/500 | loss nan | 0.5 s | lr 3e-4\nit 2/500 | loss 7.5 | 0.25 s | lr 3e-4\nit 3/500 | loss 7.";
    let trace = parse(&ours(), log.as_bytes());
    let steps = trace.steps.iter();
    let steps: Vec<_> = steps
        .map(|s| (s.step, s.step_time_seconds, s.loss, s.learning_rate))
        .collect();
    assert_eq!(
        steps,
        [
            (1, Some(0.482), Some(8.31), Some(3e-4)),
            (2, Some(0.25), Some(7.5), Some(3e-4))
        ]
    );
    assert_eq!(trace.format, "ours");
    assert_eq!(trace.effective.0["global_batch_size"], 32);
    assert_eq!(trace.effective.0["precision"], "bf16");
    assert_eq!(trace.effective.0["train_iters"], 500);
    let evaluation = &trace.evaluations[0];
    assert_eq!((evaluation.step, evaluation.value), (Some(1), 8.4));
    assert!(testing::kinds(&trace).contains(&"truncated"));
}

#[test]
fn each_line_can_be_asked_for_what_has_read_it() {
    let read_by = |section: &LogSection, log: &str| {
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let list = told.clone();
        let parser = crate::Parser::new(section).unwrap();
        let mut parser = parser.telling(move |line, kind| {
            list.lock().unwrap().push(format!("{line} {kind}"));
        });
        parser.feed(log.as_bytes());
        let _ = parser.finish();
        std::mem::take(&mut *told.lock().unwrap())
    };
    assert_eq!(
        read_by(&ours(), "option a = 1\nnoise\nit 1/2 | loss 8 | 1 s |\n"),
        ["1 option", "3 step"]
    );
    let patterns = section(&["s (?P<step>\\d+)", "l (?P<loss>\\S+)"]);
    assert_eq!(
        read_by(&patterns, "x\ns 1\nl 2\n"),
        ["2 pattern 1", "3 pattern 2"]
    );
    let events = "{\"event\":\"step\",\"step\":1}\n";
    assert_eq!(
        read_by(&LogSection::named("tprimat"), events),
        ["1 tprimat"]
    );
}

#[test]
fn a_mistake_in_a_table_names_its_place() {
    let wrong = |change: fn(&mut LogSection)| {
        let mut section = ours();
        change(&mut section);
        let error = section.check().unwrap_err();
        (error.at.join("."), error.message)
    };
    let (at, message) = wrong(|log| log.lines[1].when = "eval (?P<step>".into());
    assert_eq!(at, "lines.1.when");
    assert!(message.starts_with("not a pattern"), "{message}");
    let (at, message) = wrong(|log| {
        let field = crate::table::Named::Plain("los".into());
        log.lines[0].after.insert("loss ".into(), field);
    });
    assert_eq!(
        (at.as_str(), message.as_str()),
        ("lines.0.after.loss ", "`los` is not a field of a step")
    );
    let (at, message) = wrong(|log| log.format = "nanogpt".into());
    assert!(
        at.is_empty() && message.contains("takes no patterns"),
        "{message}"
    );
}

#[test]
fn every_shipped_table_is_right_and_is_of_a_format() {
    for (name, table) in crate::format::all_shipped() {
        // Launchers speak above logs of any format.
        assert!(
            name == "banner" || crate::names().any(|known| known == name),
            "{name}"
        );
        assert!(
            table.rules.iter().all(|rule| !rule.table.name.is_empty()),
            "{name}"
        );
    }
}

#[test]
fn groups_are_fields_with_their_units() {
    let trace = read(
        &[
            r"^it (?P<step>\d+) took (?P<step_time_ms>\S+)ms loss=(?P<loss>\S+)",
            r"mem (?P<peak_allocated_memory_gib>[\d.]+)G lr (?P<learning_rate>\S+) q=(?P<other_queue_depth>\d+)",
            r"(?P<tokens_per_second_per_gpu>[\d,]+) tok/s/gpu",
            r"batch: (?P<effective_global_batch_size>\d+) dtype: (?P<effective_precision>\w+)",
            r"val=(?P<evaluation_validation_loss>\S+)",
            r"total (?P<total_runtime_seconds>\d+)s",
        ],
        "batch: 32 dtype: bf16\nit 7 took 250.5ms loss=3.5 mem 1.5G lr 1e-4 q=3\n 1,024 tok/s/gpu\nval=3.25\n\
         it 8 took x loss=nan\ntotal 9s\n",
    );
    let step = &trace.steps[0];
    assert_eq!(
        (step.step, step.step_time_seconds, step.loss),
        (7, Some(0.2505), Some(3.5))
    );
    assert_eq!(
        (step.memory_bytes, step.memory_kind.as_deref()),
        (Some(3 << 29), Some("peak_allocated"))
    );
    assert_eq!(
        (step.learning_rate, step.tokens_per_second_per_gpu),
        (Some(1e-4), Some(1024.0))
    );
    assert_eq!(step.other["queue_depth"], 3.0);
    assert_eq!(trace.effective.0["global_batch_size"], 32);
    assert_eq!(trace.effective.0["precision"], "bf16");
    assert_eq!(
        (trace.evaluations[0].step, trace.evaluations[0].value),
        (Some(7), 3.25)
    );
    assert_eq!(trace.totals["runtime_seconds"], 9.0);
    assert_eq!(
        trace.steps.len(),
        1,
        "a line that no pattern matches is no step"
    );
    assert_eq!(trace.format, "regex");
}

#[test]
fn without_numbers_steps_are_counted_and_that_is_said() {
    let trace = read(
        &["loss (?P<loss>\\S+)", "in (?P<step_time_s>\\S+) s"],
        "loss 3\nin 2 s\nloss 2\nin 1 s\nloss 1\n",
    );
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.loss, s.step_time_seconds))
        .collect();
    assert_eq!(
        steps,
        [
            (1, Some(3.0), Some(2.0)),
            (2, Some(2.0), Some(1.0)),
            (3, Some(1.0), None)
        ]
    );
    assert_eq!(testing::kinds(&trace), ["step_numbers_assumed"]);
}

#[test]
fn bad_patterns_are_one_clear_error() {
    let error = |patterns: &[&str]| section(patterns).check().unwrap_err();
    assert!(error(&[]).at.is_empty());
    let unclosed = error(&["(?P<step>1)", "(?P<loss>x"]);
    assert_eq!(
        (unclosed.at.join("."), &*unclosed.message),
        ("patterns.1".to_owned(), "not a pattern: unclosed group")
    );
    let unknown = error(&["(?P<stpe>1)"]);
    assert!(unknown.help.unwrap().contains("did you mean `step`?"));
    assert!(error(&["loss: \\d+"]).message.contains("no named group"));
    let named = error(&["hf-trainer"]).help.unwrap_or_default();
    assert!(named.starts_with("`hf-trainer` is a format"), "{named}");
    assert!(
        error(&["(?P<step_time>1)"])
            .help
            .unwrap()
            .contains("step_time_<unit>"),
        "a time has a unit"
    );
    assert_eq!(
        error(&[&format!("(?P<loss>{})", "(a{500}){500}")]).at,
        ["patterns", "0"]
    );
}

#[test]
fn live_shows_steps_too() {
    let mut live = Live::new(&section(&["s (?P<step>\\d+) l (?P<loss>\\S+)"]));
    assert_eq!(live.feed(b"warm up\n"), None);
    assert_eq!(
        live.feed(b"s 4 l 2.5\n").map(|s| (s.step, s.loss)),
        Some((4, Some(2.5)))
    );
    assert_eq!(live.feed(b"s 4 l 2.5\n"), None);
    let mut counted = Live::new(&section(&["l (?P<loss>\\S+)"]));
    assert_eq!(counted.feed(b"l 2.5\n").map(|s| s.step), Some(1));
    assert_eq!(counted.feed(b"l 2.25\n").map(|s| s.step), Some(2));
}

#[test]
fn a_pattern_made_to_explode_takes_linear_time() {
    let line = format!("{}!", "a".repeat(200_000));
    assert!(read(&["(?P<loss>(a+)+)$"], &line).steps.is_empty());
}

proptest! {
    #[test]
    fn never_panics_on_any_bytes(log in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&section(&["(?s)(?P<step>.)(?P<loss>.*)", "(?P<step_time_ms>\\d+)"]), &log);
    }

    #[test]
    fn never_panics_on_any_pattern(pattern in "(\\(\\?P<(step|loss|other_x)>)?[a-z0-9.*+?()\\[\\]{},|^$\\\\]{0,30}", log in "[ -~\n]{0,200}") {
        let _ = parse(&section(&[&pattern]), log.as_bytes());
    }
}
