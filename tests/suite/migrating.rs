//! MIGRATING.md row by row: every command that it names runs.

use std::collections::BTreeSet;

use crate::support::{CONFIG, ONE_RUN, Project, TRAINER};
use serde_json::json;

const PAGE: &str = include_str!("../../MIGRATING.md");

/// A cell of the starter's matrix, of the framework that wrote the log, and words that the page has in the place of names.
const CELL: &str = "amd/prim/llama/maximum_performance";
const PLACES: [(&str, &str); 9] = [
    ("PROJECT", "other-box"),
    ("CELL#1", "nvd/nemo/llama/mine#1"),
    ("CELL", CELL),
    ("FOLDER", "old-results"),
    ("FILE", "old-results/training.log"),
    ("--log F", "--log rank-7.log"),
    (" A B", " nvd/nemo/llama/mine amd/prim/llama/mine"),
    ("-o DIR", "-o pair-of-two"),
    ("--repeats N", "--repeats 2"),
];

/// The code between backticks, and the lines of code blocks.
fn code() -> Vec<String> {
    let mut found = Vec::new();
    for (at, part) in PAGE.split("```").enumerate() {
        if at % 2 == 1 {
            found.extend(
                part.lines()
                    .skip(1)
                    .map(|line| line.split(" #").next().unwrap().trim().to_owned()),
            );
        } else {
            found.extend(
                part.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(|code| code.replace('\n', " ")),
            );
        }
    }
    found
}

/// The commands of the page, ready to be run.
fn commands() -> Vec<Vec<String>> {
    let named = code()
        .into_iter()
        .filter(|code| code.starts_with("tprimat "));
    let filled = named.map(|code| {
        PLACES
            .iter()
            .fold(code, |code, (word, name)| code.replace(word, name))
    });
    let mut seen = BTreeSet::new();
    let words = filled
        .filter(|code| seen.insert(code.clone()))
        .map(|code| shlex::split(&code).expect("a command line"));
    words
        .map(|words| words.into_iter().skip(1).collect())
        .collect()
}

/// What an older suite published: sixty steps of 1.5 s.
fn published(device: &str) -> String {
    let times = vec![1.5; 60];
    json!({
        "gpu_info": { "device_count": 8, "device_name": device },
        "training_config": { "max_steps": 60, "global_batch_size": 64, "sequence_length": 2048, "num_gpus": 8 },
        "performance_metrics": { "tokens_per_second": 87381.33, "tokens_per_second_per_gpu": 10922.67, "avg_step_time_seconds": 1.5 },
        "step_times": times,
    })
    .to_string()
}

fn project() -> Project {
    let project = Project::empty();
    project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0);
    // The page's cells are of two vendors, and a log that counts the memory of AMD's GPUs is of one.
    let log = include_str!("../fixtures/logs/primus.log");
    let log = &log.replace("hip mem", "mem").replace("rocm mem", "mem");
    for name in ["rank-0.log", "rank-7.log", "old-results/training.log"] {
        project.write(name, log);
    }
    project
        .write("other-box/config.yaml", CONFIG)
        .write("other-box/matrix.toml", ONE_RUN);
    project.write("other-box/trainer.sh", TRAINER);
    project
        .run(&["-C", "other-box", "import", "rank-0.log"])
        .ends_with(0);
    project.write(
        "train_nvd_nemo_llama.json",
        &published("NVIDIA H100 80GB HBM3"),
    );
    project.write(
        "old-results/train_amd_prim_llama.json",
        &published("AMD Instinct MI300X"),
    );
    project
}

/// With which codes a command may end on a host without GPUs and without a container engine.
fn codes(words: &[&str]) -> &'static [i32] {
    match words {
        // Nothing has run, so nothing has failed but an import that contradicts its cell.
        ["list", "--failed"] => &[0],
        [_, "--failed"] => &[4],
        // Nothing of these selections can be measured here, and that is no success.
        ["build", ..] => &[0, 1],
        // No build was detached here: nothing is to be followed or stopped.
        ["stop"] | ["status", "--wait"] => &[4],
        // Nothing has run, so the only logs are those that were imported.
        ["logs", ..] => &[0, 1],
        // A log of another job contradicts the cell that it is filed under.
        ["import", ..] => &[0, 1],
        // Nothing of this selection is imported here.
        ["compare" | "report", "--only", ..] => &[0, 1, 4],
        // Two imports that may not be compared, or may.
        ["compare" | "report", _, ..] => &[0, 1],
        _ => &[0],
    }
}

/// The page names the verbs of `container` and `data` after their first one without the program's name.
fn with_further_verbs(found: &mut Vec<Vec<String>>) {
    for code in code() {
        if let [name @ ("container" | "data"), verb] = code.split(' ').collect::<Vec<_>>()[..] {
            found.push(vec![name.to_owned(), verb.to_owned()]);
        }
    }
}

#[test]
fn every_command_of_the_page_runs() {
    let project = project();
    let mut all = commands();
    with_further_verbs(&mut all);
    for row in [
        "container list",
        "container pull",
        "container shell nvd",
        "status",
        "status --wait",
        "stop",
    ] {
        let words: Vec<&str> = row.split(' ').collect();
        assert!(
            all.iter().any(|command| *command == words),
            "{row}: {all:?}"
        );
    }
    assert!(all.len() > 35, "{}: {all:?}", all.len());
    for command in &all {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let (words, allowed): (Vec<&str>, &[i32]) = match words[..] {
            // What would start an engine is printed instead; tests/services/container.rs builds an
            // image, enters it and runs in it.
            ["container", verb @ ("build" | "pull")] => {
                let cell = "nvd/nemo/llama/maximum_performance";
                (vec!["container", verb, cell, "--print"], codes(&words))
            }
            ["container", "shell", platform] => (
                vec!["container", "shell", platform, "--print"],
                codes(&words),
            ),
            // Its data is the reader's own; tests/suite/data.rs encodes, verifies and fingerprints.
            ["data", verb] => (vec!["data", verb, "--help"], &[0]),
            // tests/suite/detached.rs starts builds that outlive their terminal, and ends them.
            ["build", ..] if words.contains(&"--detach") => (vec!["build", "--help"], &[0]),
            // There is no event file here; tests/suite/import.rs has them.
            ["import", _, "--tfevents", _] => (vec!["import", "--help"], &[0]),
            // Another project is only named.
            ["cache", "pull", ..] => (vec!["cache", "pull", "--help"], &[0]),
            // A command is only named.
            [name @ ("import" | "parse" | "logs" | "show")] => (vec![name, "--help"], &[0]),
            ["logs", _, "-f"] => (vec!["logs", CELL], codes(&words)),
            _ => (words.clone(), codes(&words)),
        };
        let ran = project.run(&words);
        assert!(
            ran.code.is_some_and(|code| allowed.contains(&code)),
            "tprimat {}: {:?}\n{}\n{}",
            words.join(" "),
            ran.code,
            ran.stdout,
            ran.stderr
        );
        // What a row prints is what it promises.
        let told = match words[..] {
            ["stop"] | ["status", "--wait"] => (&ran.stderr, "no build was detached here"),
            ["status"] => (&ran.stderr, "`tprimat build --detach` starts one"),
            ["container", "build", ..] => (&ran.stdout, "build --tag tprimat/nemo:nvd"),
            ["container", "pull", ..] => (&ran.stdout, " pull nvcr.io/nvidia/nemo:"),
            ["container", "list"] => (&ran.stdout, "tprimat/nemo:nvd"),
            ["container", "shell", ..] => (&ran.stdout, "--gpus all"),
            _ => continue,
        };
        assert!(
            told.0.contains(told.1),
            "tprimat {}: {ran:?}",
            words.join(" ")
        );
    }
}
