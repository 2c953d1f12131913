//! Messages that name the next step: the step, done, works.

use serde_json::json;

use crate::support::{ONE_RUN, Project};

#[test]
fn a_lock_that_cannot_be_read_is_written_anew_as_the_help_says() {
    for broken in ["version = 1\n[[platform]]\n", "version = 1\nsurprise = 2\n"] {
        let project = Project::new(ONE_RUN);
        project.write("tprimat.lock", broken);
        let ran = project.run(&["plan"]).ends_with(2);
        let help = ran.stderr.replace('\n', " ");
        assert!(
            help.contains("restore it from git, or remove it: the next build"),
            "{ran:?}"
        );
        project.run(&["build"]).ends_with(2);
        std::fs::remove_file(project.path("tprimat.lock")).unwrap();
        project.run(&["build"]).ends_with(0);
        project.run(&["plan"]).ends_with(0);
    }
}

#[test]
fn a_repeat_that_the_matrix_does_not_ask_for_is_named_alike_by_show_and_logs() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let asked = "cpu/cmd/tiny/single#9";
    let [show, logs] = ["show", "logs"].map(|word| project.run(&[word, asked]).ends_with(4).stderr);
    assert_eq!(show, logs);
    assert!(
        show.contains("the matrix asks for 1; --repeats asks for more"),
        "{show}"
    );
}

#[test]
fn a_folder_without_logs_is_told_all_endings_that_are_read() {
    let project = Project::new(ONE_RUN);
    project.write("empty/notes.md", "x");
    let said = project
        .run(&["import", "empty"])
        .ends_with(2)
        .stderr
        .replace('\n', " ");
    for ending in [
        ".log",
        ".txt",
        ".out",
        ".err",
        ".jsonl",
        ".json",
        ".tfevents.",
    ] {
        assert!(said.contains(ending), "{ending}: {said}");
    }
}

/// Imports have names of their own, so a cell that the matrix lacks may be one of them. A name of
/// several cells of the matrix is not one that it lacks.
#[test]
fn attempts_of_an_ambiguous_name_are_not_those_of_an_import_alone() {
    let project = Project::of_two();
    let result = json!({
        "training_config": { "max_steps": 4, "global_batch_size": 2, "sequence_length": 16, "num_gpus": 1 },
        "step_times": [0.9, 0.251, 0.252, 0.253],
    });
    project.write("old.json", &result.to_string());
    let import = ["import", "cpu/cmd/tiny/other", "--result", "old.json"];
    project.run(&import).ends_with(0);
    let listed = project
        .run(&["show", "--attempts", "cpu/cmd/tiny"])
        .ends_with(0)
        .stdout;
    assert!(listed.contains("cpu/cmd/tiny/other#1"), "{listed}");
    let ran = project.run(&["show", "--attempts", "cpu/cmd"]).ends_with(2);
    assert!(ran.stderr.contains("may be any of 2 cells"), "{ran:?}");
}

/// A project whose other matrix has to be named, and has two cells: `wide` runs out of memory.
fn with_another_matrix() -> Project {
    let project = Project::new(ONE_RUN);
    let other = ONE_RUN
        .replace("\"one\"", "\"other\"")
        .replace("\"tiny\"", "[\"tiny\", \"wide\"]");
    project.write("pipelines/other.toml", &other).edit(
        "trainer.sh",
        "seed=$(job seed)",
        "seed=$(job seed)\n[[ $(job ffn_hidden_size) == 32 ]] && { echo Out of memory; kill -SEGV $$; }",
    );
    project
}

/// Every command that a text names between backquotes, without `tprimat`.
fn suggested(text: &str) -> Vec<Vec<String>> {
    text.split('`')
        .filter_map(|named| named.strip_prefix("tprimat "))
        .map(|named| shlex::split(named).unwrap())
        .collect()
}

/// Whoever pastes what a message suggests gets the matrix that it was about.
#[test]
fn every_suggested_command_names_the_matrix_that_was_named() {
    let project = with_another_matrix();
    let (good, bad) = ("cpu/cmd/tiny/single", "cpu/cmd/wide/single");
    let steps: &[&[&str]] = &[
        &["gate", "other", "--write", "b.json"],
        &["compare", "other"],
        &["report", "other", "-o", "pages"],
        &["show", good, "other"],
        &["show", "--attempts", good, "other"],
        &["logs", good, "other"],
        &["history", "other"],
        &["gate", "other", "--baseline", "b.json"],
        &["build", "other", "--max-gpu-hours", "0.000001"],
        &["build", "other"],
        &["show", bad, "other"],
        &["plan", "other"],
        &["build", "other"],
        &["show", "cpu/nothing/like/it", "other"],
        &["history", "cpu/cmd/wide", "--matrix", "other"],
        &["cache", "set-aside", good, "other", "--reason", "noise"],
        &["cache", "set-aside", good, "other", "--reason", "noise"],
        &["compare", good, "--matrix", "other"],
        &["gate", "other", "--write", "b.json"],
        &["build", "other", "--only", "cpu/cmd/tiny"],
        &["gate", "other", "--write", "b.json"],
        &["gate", "other", "--baseline", "a.json"],
    ];
    let mut seen: Vec<Vec<String>> = Vec::new();
    for step in steps {
        let ran = project.run(step);
        for command in suggested(&(ran.stdout + &ran.stderr)) {
            if !seen.contains(&command) {
                seen.push(command);
            }
        }
    }
    let attempts = project.run(&["show", "--attempts", good, "other", "--json"]);
    let attempts = attempts.ends_with(0).json()["attempts"].clone();
    let id = attempts.as_array().unwrap().last().unwrap()["id"].clone();
    let id = id.as_str().unwrap();
    let by_id: &[(&[&str], &str)] = &[
        (
            &["cache", "restore", id],
            "show CELL --matrix other --attempts",
        ),
        (
            &["cache", "restore", "x"],
            "show CELL --matrix other --attempts",
        ),
        (
            &["logs", "--attempt", "x"],
            "show CELL --matrix other --attempts",
        ),
        (
            &["logs", "--stacks", "--attempt", id],
            &format!("logs --matrix other --attempt {id}"),
        ),
    ];
    for (step, next) in by_id {
        let ran = project.run(&[step, &["--matrix", "other"][..]].concat());
        let commands = suggested(&ran.stderr.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(
            commands
                .iter()
                .map(|words| words.join(" "))
                .collect::<Vec<_>>(),
            [*next],
            "{ran:?}"
        );
        seen.extend(commands);
    }
    // What changes the workload makes the gate's cells missing, and its steps are told as well.
    project.edit("config.yaml", "train_iters: 6", "train_iters: 5");
    let gate = project.run(&["gate", "other", "--baseline", "b.json"]);
    seen.extend(suggested(&gate.ends_with(3).stdout));
    assert!(seen.len() > 12, "{seen:#?}");
    for command in seen {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = project.run(&[&words[..1], &["--help"]].concat());
        if help.stdout.contains("--matrix") {
            assert!(words.contains(&"other"), "{words:?}");
        }
        let is_placeholder = |word: &&str| matches!(*word, "CELL" | "FILE" | "ID" | "TEXT");
        if !words.iter().any(is_placeholder) {
            let ran = project.run(&words);
            assert_ne!(ran.code, Some(2), "{words:?}: {ran:?}");
        }
    }
}

#[test]
fn a_gate_without_its_baseline_or_its_measurements_says_how_to_get_them() {
    let project = with_another_matrix();
    project.run(&["build", "other", "--only", "cpu/cmd/tiny"]);
    project
        .run(&["gate", "other", "--write", "base.json"])
        .ends_with(0);
    let gate = ["gate", "other", "--baseline", "bse.json"];
    let said = project.run(&gate).ends_with(2).stderr;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "there is no baseline `bse.json`",
        "did you mean `base.json`?",
        "`tprimat gate other --write bse.json` writes one",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    project.edit("config.yaml", "train_iters: 6", "train_iters: 5");
    let gate = ["gate", "other", "--baseline", "base.json"];
    let said = project.run(&gate).ends_with(3).stdout;
    let advice = "`tprimat build other --only cpu/cmd/tiny/single --only cpu/cmd/wide/single` measures what is missing";
    assert!(said.contains(advice), "{said}");
}

#[test]
fn a_shard_without_cells_is_a_success() {
    let project = Project::new(ONE_RUN);
    let said = project
        .run(&["build", "--shard", "8/8"])
        .ends_with(0)
        .stderr;
    assert!(
        said.contains(
            "shard 8/8 has no cell; the other shards have the 1 selected cell of the matrix `one`"
        ),
        "{said}"
    );
    assert_eq!(project.launches(), 0);
    project.run(&["plan", "--shard", "8/8"]).ends_with(0);
    project.run(&["list", "--shard", "8/8"]).ends_with(0);
    // Filters that leave nothing of the whole matrix are still a mistake.
    project
        .run(&["build", "--only", "gpu", "--shard", "1/2"])
        .ends_with(4);
    project.run(&["build", "--shard", "1/8"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    // A shard is a part of the cells that the filters leave.
    let of_two = ["plan", "--only", "cpu/cmd/tiny", "--shard", "2/2"];
    let said = with_another_matrix()
        .run(&[&of_two[..], &["--matrix", "other"]].concat())
        .ends_with(0)
        .stderr;
    assert!(
        said.contains("the other shards have the 1 selected cell of the matrix `other`"),
        "{said}"
    );
}

#[test]
fn a_run_that_does_not_count_is_told_as_such_and_why_it_is_not_tried_again() {
    let project = Project::new(ONE_RUN);
    project.edit("trainer.sh", "'\"$seed\"',", "7,");
    project.edit("config.yaml", "training:\n", "training:\n  seed: 1234\n");
    let set = r#"set = { "training.seed" = 7 }"#;
    let said = project.run(&["build"]).ends_with(1).stderr;
    assert!(said.contains(set), "what the trainer does: {said}");
    let plan = project.run(&["plan"]).ends_with(0).stdout;
    let why = "the log contradicts the job: the trainer says seed 7; the job asked for 1234";
    let row =
        format!("not counted  cpu/cmd/tiny/single  ended well, but {why}; no build runs it again");
    assert!(
        plan.contains(&row) && plan.contains("one: 1 cell, not counted"),
        "{plan}"
    );
    for option in ["--force=failed", "--failed"] {
        let said = project.run(&["build", option]).ends_with(1).stderr;
        let told = format!(
            "cpu/cmd/tiny/single#1 will not run again: it ended well and does not count, since {why}."
        );
        let again = "`tprimat build --force=measured --only cpu/cmd/tiny/single` runs it again";
        assert!(said.contains(&told) && said.contains(again), "{said}");
        assert_eq!(project.launches(), 1);
    }
    // The lines that take it over are a matrix's.
    let matrix = project.read("matrix.toml");
    project.write(
        "matrix.toml",
        &format!("{matrix}\n[[override]]\nwhere = {{}}\n{set}\n"),
    );
    project.run(&["build"]).ends_with(0);
}

#[test]
fn explain_names_no_result_that_is_yet_to_be_made() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    project.edit("config.yaml", "train_iters: 6", "train_iters: 5");
    let said = project
        .run(&["show", "--stale", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    assert!(
        said.trim_end()
            .ends_with("aggregate cpu/cmd/tiny/single  parse cpu/cmd/tiny/single#1 will run"),
        "{said}"
    );
    project.edit("config.yaml", "seq_length: 16", "seq_length: 32");
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.004");
    let said = project
        .run(&["show", "--stale", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    for line in [
        "seq_length 16 → 32",
        "train_iters 6 → 5",
        "trainer.sh edited",
    ] {
        assert!(said.contains(&format!("             {line}\n")), "{said}");
    }
}

/// As a build of it would fail.
#[test]
fn a_check_fails_where_no_cell_finds_its_trainer() {
    let project = Project::new(ONE_RUN);
    project.edit("config.yaml", ", inputs: [trainer.sh]", "");
    project.run(&["check"]).ends_with(0);
    project.remove("trainer.sh");
    let check = project.run(&["check"]).ends_with(1);
    assert!(
        check
            .stderr
            .contains("the command needs the file `trainer.sh`, which is not there")
            && !check.stdout.contains("no problem found"),
        "{check:?}"
    );
    project.run(&["build"]).ends_with(1);
}

/// There may be no default matrix, and then the command needs one.
#[test]
fn the_command_that_pins_the_facts_of_a_node_names_the_matrix() {
    let project = Project::empty();
    let config = crate::support::CONFIG.replace(
        "  platforms:\n",
        "  platforms:\n    nvd: { vendor: nvd, num_gpus: 1 }\n",
    );
    project
        .write("config.yaml", &config)
        .write("trainer.sh", crate::support::TRAINER)
        .write("other.toml", &ONE_RUN.replace("\"cpu\"", "\"nvd\""));
    let plan = project.run(&["plan", "other.toml", "--executor", "slurm"]);
    let plan = plan.ends_with(0).stdout;
    // A host with such a GPU knows the facts itself.
    assert!(
        plan.contains("`srun … tprimat lock other.toml --update`")
            || !plan.contains("does not pin"),
        "{plan}"
    );
}

#[test]
fn no_build_is_suggested_that_could_measure_nothing_here() {
    let project = Project::new(ONE_RUN);
    project.edit("config.yaml", "vendor: cpu", "vendor: nvidia");
    let words = |ran: crate::support::Ran| {
        let all = ran.stdout + &ran.stderr;
        all.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let compared = words(project.run(&["compare"]).ends_with(1));
    let none = "No cell has figures yet, and this host can run none of these cells.";
    assert!(compared.contains(none), "{compared}");
    let none = "no build on this host measures it: `cpu/cmd/tiny/single` cannot run on this host: needs an NVIDIA GPU";
    let baseline = words(project.run(&["gate", "--write", "-"]).ends_with(1));
    assert!(
        baseline.contains(none) && !baseline.contains("tprimat build"),
        "{baseline}"
    );
}
