//! Facts that a log lacks and its importer supplies: a rate rests on them, and says so; what the log
//! says otherwise is refused.

use std::fmt::Write as _;

use serde_json::json;

use crate::{import::project, support::Project};

/// A log that states nothing but its steps: 100 ms each.
fn log(project: &Project) {
    let mut log = String::new();
    for step in 0..12 {
        _ = writeln!(
            log,
            "iter {step}: loss {:.4}, time 100.{step:02}ms, mfu -100.00%",
            4.0 - 0.1 * f64::from(step)
        );
    }
    project.write("run.log", &log);
}

const CELL: &str = "cpu/cmd/tiny/lent";

fn import(project: &Project, facts: &[&str]) -> crate::support::Ran {
    let facts = facts.iter().flat_map(|fact| ["--set", fact]);
    let words: Vec<&str> = ["import", CELL, "--log", "run.log"]
        .into_iter()
        .chain(facts)
        .collect();
    project.run(&words)
}

#[test]
fn a_rate_that_rests_on_supplied_facts_says_so_wherever_it_stands() {
    let project = project();
    log(&project);
    let none = import(&project, &[]).ends_with(0).stdout;
    assert!(none.contains("no rate"), "{none}");
    let facts = ["world_size=2", "seq_length=128", "micro_batch_size=2"];
    let none = import(&project, &facts).ends_with(0).stdout;
    assert!(
        none.contains("no rate") && none.contains("global batch size"),
        "{none}"
    );
    // 2 samples on each of 2 devices, and twice: 8 × 128 tokens in 0.1 s.
    let more = ["data_parallel_size=2", "gradient_accumulation_steps=2"];
    let told = import(&project, &[&facts[..], &more].concat())
        .ends_with(0)
        .stdout;
    for words in [
        "#1 ",
        "supplied on import, and not stated by the file",
        "num_gpus=2",
        "not attested",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let row = project
        .run(&["compare", "--imported", "--json"])
        .ends_with(0)
        .json()["rows"][0]
        .clone();
    let rate = row["tokens_per_second"].as_f64().unwrap();
    assert!((rate / 10_240.0 - 1.0).abs() < 0.01, "{rate}");
    assert_eq!(row["warnings"][0]["code"], "supplied");
    for format in ["table", "markdown", "csv"] {
        let shown = project
            .run(&["compare", "--imported", "--format", format])
            .ends_with(0)
            .stdout;
        assert!(shown.contains("seq"), "{format}: {shown}");
        assert!(shown.contains("as its importer says"), "{format}: {shown}");
    }
    let shown = project.run(&["show", CELL]).ends_with(0).stdout;
    assert!(shown.contains("as its importer says"), "{shown}");
    assert!(shown.contains("supplied settings"), "{shown}");
    // The last import stands.
    import(&project, &[]).ends_with(0);
    let rows = project.run(&["compare", "--imported", "--json"]).json()["rows"].clone();
    assert_eq!(rows, json!([]));
}

#[test]
fn a_fact_that_the_log_says_otherwise_is_refused_with_both_values() {
    let project = project();
    let cell = "cpu/cmd/tiny/single";
    project.run(&["build"]).ends_with(0);
    let log = project.run(&["logs", cell]).ends_with(0).stdout;
    // It states sequences of 16 tokens and batches of 2.
    project.write("run.log", &log);
    let refused = import(&project, &["seq_length=32", "num_gpus=1"])
        .ends_with(2)
        .stderr;
    let words = refused
        .replace('│', " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        words.contains("seq_length is said to be 32, and the log says 16"),
        "{refused}"
    );
    project.run(&["show", CELL]).ends_with(4);
    // One that it states itself is no supplied one.
    let told = import(&project, &["seq_length=16", "num_gpus=1"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains("not stated by the file: num_gpus=1\n"),
        "{told}"
    );
    for (fact, why) in [
        ("num_gpu=1", "did you mean `num_gpus`?"),
        ("num_gpus", "has no `=`"),
        ("num_gpus=two", "is not a whole number above 0"),
        ("precision=foo", "expected fp32, bf16"),
        ("precision=fp9", "did you mean `fp"),
    ] {
        let refused = import(&project, &[fact]).ends_with(2).stderr;
        assert!(refused.contains(why), "{refused}");
    }
}
