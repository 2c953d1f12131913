//! Which logs are one run: ranks, repeats, and runs that were imported twice.

use std::fmt::Write as _;

use crate::import::{consistent, primus, project, published, run, times};
use serde_json::json;

/// Three runs named together were one run with every step three times.
#[test]
fn logs_of_several_runs_are_not_taken_for_the_ranks_of_one() {
    let project = project();
    let events = |seed: usize| {
        let mut log = r#"{"event":"start","schema":"tprimat.events/1","trainer":"stub","effective":{"seq_length":16}}"#.to_owned();
        for step in 1..=6 {
            _ = write!(
                log,
                "\n{}",
                json!({"event": "step", "step": step, "step_time_seconds": 0.01 + 0.001 * (seed + step) as f64, "loss": 5.0, "tokens": 32})
            );
        }
        log + "\n"
    };
    let cell = "cpu/cmd/tiny/single";
    let import = |names: [&str; 2]| {
        for (seed, name) in names.iter().enumerate() {
            project.write(name, &events(seed));
        }
        project.run(&["import", cell, "--log", names[0], "--log", names[1]])
    };
    let refused = import(["a.log", "b.log"]).ends_with(2).stderr;
    for words in [
        "a.log and b.log are not logs of one run: both have training steps",
        "tprimat import CELL --log FILE",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    project.run(&["show", "cpu/cmd/tiny/single#1"]).ends_with(1);
    // The same rank of two runs, as two nodes' folders may have it.
    import(["one/rank-0.log", "two/rank-0.log"]).ends_with(2);
    import(["rank-0.log", "rank-1.log"]).ends_with(0);
}

/// Trainers that date their steps show that two ranks never ran at once.
#[test]
fn ranks_of_runs_at_different_times_are_not_one_run() {
    let project = project();
    let events = |begin: f64| {
        let mut log = r#"{"event":"start","schema":"tprimat.events/1","trainer":"stub","effective":{"seq_length":16}}"#.to_owned();
        for step in 1..=6 {
            let step = f64::from(step);
            let event = json!({"event": "step", "step": step as u64, "time": begin + step, "step_time_seconds": 1.0 + 1e-12 * begin, "loss": 5.0, "tokens": 32});
            _ = write!(log, "\n{event}");
        }
        log + "\n"
    };
    project.write("ranks/rank-0.log", &events(1.8e9));
    let args = [
        "import",
        "cpu/cmd/tiny/single",
        "--log",
        "ranks/rank-0.log",
        "--log",
        "ranks/rank-1.log",
    ];
    project.write("ranks/rank-1.log", &events(1.9e9));
    let refused = project.run(&args).ends_with(2).stderr;
    let said: Vec<&str> = refused
        .split_whitespace()
        .filter(|word| *word != "│")
        .collect();
    assert!(
        said.join(" ")
            .contains("one began after the other had ended"),
        "{refused}"
    );
    project.write("ranks/rank-1.log", &events(1.8e9 + 0.5));
    project.run(&args).ends_with(0);
}

#[test]
fn ranks_of_one_run_are_one_run_and_the_same_bytes_are_one_import() {
    let project = project();
    project.write(
        "primus-tiny-ranks/rank-0.debug.log",
        "[20260101 10:00:00][rank-0/2][DEBUG] [utils.py:1] : hello\n",
    );
    project.write("primus-tiny-ranks/rank-1.info.log", &primus(1, 12));
    let told = project
        .run(&["import", "primus-tiny-ranks"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains("rank-0.debug.log says nothing of the run"),
        "{told}"
    );
    assert!(
        told.contains("#1  imported") && told.contains("tokens/s per GPU over"),
        "{told}"
    );
    let one = "amd/prim/tiny/imported#1";
    let read = project.run(&["show", one, "--json"]).ends_with(0).json();
    assert_eq!(read["trace"]["steps"].as_array().unwrap().len(), 12);
    let told = project.run(&["show", one]).ends_with(0).stdout;
    // Nobody states the length: 2,000 × 2 × 0.256 s ÷ 8 sequences.
    assert!(
        told.contains("tokens_per_step_from_rate") && told.contains("attested"),
        "{told}"
    );
    let again = project
        .run(&["import", "primus-tiny-ranks", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        (
            &again["imported"][0]["known"],
            &again["imported"][0]["repeat"]
        ),
        (&json!(true), &json!(1))
    );
    let cell = again["imported"][0]["cell"].as_str().unwrap();
    let summary = project.run(&["show", cell, "--json"]).ends_with(0).json();
    assert_eq!(summary["repeats"].as_array().unwrap().len(), 1);
    let seq = summary["contract"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["field"] == "seq_length")
        .unwrap();
    assert_eq!(
        (&seq["value"], &seq["source"]),
        (&json!(128), &json!("derived"))
    );
    assert_eq!(project.names_in("cache/tmp"), Vec::<String>::new());
}

#[test]
fn runs_of_other_workloads_are_no_repeats_of_a_cell() {
    let project = project();
    project.write("a.json", &published(8, 128, &times(), 4000.0).to_string());
    project.write("b.json", &published(16, 128, &times(), 8000.0).to_string());
    let cell = "amd/prim/tiny/theirs";
    project
        .run(&["import", cell, "--result", "a.json"])
        .ends_with(0);
    let ran = project
        .run(&["import", cell, "--result", "b.json"])
        .ends_with(1);
    assert!(
        ran.stderr.contains("global_batch_size: 8, not 16") || ran.stderr.contains("16, not 8"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        project.run(&["show", cell, "--json"]).json()["repeats"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

/// The launcher's output and a rank's log of one run are two files of one measurement.
#[test]
fn a_run_that_was_imported_twice_is_not_compared_with_itself() {
    let project = project();
    // Both as one file each, under two names.
    project
        .write("full.log", &primus(1, 12))
        .write("rank.log", &format!("launched\n{}", primus(1, 12)));
    let cells = ["amd/prim/tiny/full", "amd/prim/tiny/rank"];
    for (cell, log) in cells.into_iter().zip(["full.log", "rank.log"]) {
        project.run(&["import", cell, "--log", log]).ends_with(0);
    }
    let comparison = project
        .run(&["compare", "--imported", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        (
            &comparison["speedups"],
            comparison["rows"].as_array().unwrap().len()
        ),
        (&json!([]), 2)
    );
    assert_eq!(comparison["rows"][1]["same_runs_as"], cells[0]);
    let glance = project.run(&["compare", "--imported"]).ends_with(0).stdout;
    assert!(
        glance.contains("has the same runs as amd/prim/tiny/full, imported twice")
            && glance.contains("  the same runs as amd/prim/tiny/full, imported twice")
            && !glance.contains("1.00×"),
        "{glance}"
    );
    let told = project
        .run(&["compare", "--imported", "--details"])
        .ends_with(0)
        .stdout;
    // Asked for by name, that is not the answer to what was asked.
    let named = ["compare", "amd/prim/tiny/full", "amd/prim/tiny/rank"];
    project.run(&named).ends_with(1);
    let said = "amd/prim/tiny/rank (imported) is not compared: it has the same runs as amd/prim/tiny/full, imported twice.";
    assert!(
        told.replace('\n', " ").contains(said) && !told.contains("1.00×"),
        "{told}"
    );
    // The one that was a slip is taken back, by the command that the sentence names, and kept.
    assert!(
        told.replace('\n', " ")
            .contains("`tprimat cache set-aside amd/prim/tiny/rank --reason TEXT`"),
        "{told}"
    );
    project
        .run(&["cache", "set-aside", cells[1], "--reason", "imported twice"])
        .ends_with(0);
    let alone = project
        .run(&["compare", "--imported", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(alone["rows"].as_array().unwrap().len(), 1, "{alone:#}");
    let listed = project
        .run(&["show", "--attempts", cells[1]])
        .ends_with(0)
        .stdout;
    assert!(
        listed.contains("amd/prim/tiny/rank#1") && listed.contains("imported twice"),
        "{listed}"
    );
    // Importing the same bytes again does not undo a decision.
    let again = project
        .run(&["import", cells[1], "--log", "rank.log"])
        .ends_with(0)
        .stdout;
    assert!(again.contains("set aside (imported twice)"), "{again}");
    project
        .run(&["cache", "restore", "amd/prim/tiny/rank#1"])
        .ends_with(0);
    let both = project
        .run(&["compare", "--imported", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(both["rows"].as_array().unwrap().len(), 2, "{both:#}");
    // As two repeats of one cell they are one.
    project
        .run(&["import", cells[0], "--log", "rank.log"])
        .ends_with(0);
    let both = project
        .run(&["show", cells[0], "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        (&both["n"], both["repeats"].as_array().unwrap().len()),
        (&json!(1), 2),
        "{both:#}"
    );
    assert!(
        both["repeats"][1]["status"]["reason"]["text"]
            .as_str()
            .unwrap()
            .contains("the same run as repeat 1"),
        "{both:#}"
    );
}

#[test]
fn files_of_one_name_are_of_several_folders_and_no_repeats() {
    let project = project();
    for (folder, number) in [("one", 1), ("two", 2), ("three", 3)] {
        project.write(
            &format!("{folder}/benchmark_rocm_tiny.json"),
            &consistent("amd", 8, &run(number)),
        );
    }
    let imported = project
        .run(&["import", "one", "two", "three", "--json"])
        .ends_with(0)
        .json();
    let cells: std::collections::BTreeSet<_> = imported["imported"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["cell"].as_str().unwrap())
        .collect();
    assert_eq!(cells.len(), 3, "{cells:?}");
}
