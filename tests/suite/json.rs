//! `--json`: every command prints one JSON object that names its form, or refuses.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{ONE_RUN, Project, dataset::write_dataset};

const CELL: &str = "cpu/cmd/tiny/single";

/// Command lines without `--json`, and the form that each prints.
const PRINTED: [(&[&str], &str); 34] = [
    (&["build"], "build"),
    // A second build takes the shorter way, since nothing is left to do.
    (&["build"], "build"),
    (&["build", "--dry-run"], "plan"),
    (&["plan"], "plan"),
    (&["show", "--stale", CELL], "explain"),
    (&["fit"], "fit"),
    (&["list"], "list"),
    (&["show", CELL], "summary"),
    (&["show", "cpu/cmd/tiny/single#1"], "result"),
    (&["show", "--attempts", CELL], "attempts"),
    (&["history"], "history"),
    (&["show", "--launch", CELL], "launch"),
    (&["doctor"], "doctor"),
    (&["status"], "status"),
    (&["compare"], "comparison"),
    (&["gate", "--write", "-"], "baseline"),
    (&["gate", "--write", "baseline.json"], "baseline_written"),
    (
        &[
            "gate",
            "--baseline",
            "baseline.json",
            "--max-regression",
            "3%",
        ],
        "gate",
    ),
    (&["report"], "report"),
    (&["parse", "a.log"], "trace"),
    (&["why", "trace.json"], "why"),
    (&["blame", CELL, CELL], "error"),
    (
        &["import", "amd/unknown/tiny/large", "--log", "a.log"],
        "imported",
    ),
    (&["check"], "check"),
    (&["recipe", "list"], "recipes"),
    (&["container", "list"], "images"),
    (&["config"], "config"),
    (&["cache", "stat"], "cache_stat"),
    (&["cache", "verify"], "cache_verify"),
    (&["cache", "gc"], "cache_gc"),
    (&["cache", "export", "runs.tar.zst"], "cache_export"),
    (&["cache", "import", "runs.tar.zst"], "cache_import"),
    (&["lock"], "lock"),
    (&["data", "fingerprint", "tokens"], "fingerprint"),
];

/// Command lines that print no JSON.
const REFUSED: [&[&str]; 12] = [
    &["logs", CELL],
    &["stop"],
    &["print", "graph"],
    &["container", "build", "nvd/cmd"],
    &["container", "shell", "nvd"],
    &["cache", "clean"],
    &["init"],
    &["print", "schema", "summary"],
    &["print", "completions", "bash"],
    &["recipe", "show", "tran"],
    &["recipe", "copy", "tran"],
    &["cache", "set-aside", "1", "--reason", "x"],
];

/// The names that `tprimat help` lists.
fn commands(project: &Project) -> BTreeSet<String> {
    let help = project.run(&["help"]).ends_with(0).stdout;
    let list = help
        .split_once("Commands:\n")
        .unwrap()
        .1
        .split_once("\n\n")
        .unwrap()
        .0;
    let first = list
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    first
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn every_command_prints_an_object_that_names_its_form_or_refuses() {
    let project = Project::new(ONE_RUN);
    write_dataset(
        &project.path("tokens"),
        tprimat::data::Dtype::U16,
        &[vec![vec![1, 2, 3]]],
    );
    project.write("a.log", include_str!("../fixtures/logs/primus.log"));
    project.write("trace.json", &crate::why::trace(3, 2));
    let mut tried = BTreeSet::new();
    for (arguments, form) in PRINTED {
        let ran = project.run(&[arguments, &["--json"]].concat());
        let value = ran.json();
        assert_eq!(
            value["schema_version"],
            format!("tprimat.{form}/1"),
            "{arguments:?}: {ran:?}"
        );
        tried.insert(arguments[0].to_owned());
    }
    for arguments in REFUSED {
        let refused = project
            .run(&[arguments, &["--json"]].concat())
            .ends_with(2)
            .json();
        assert_eq!(
            refused["schema_version"], "tprimat.error/1",
            "{arguments:?}"
        );
        assert_eq!(
            refused["error"]["message"], "this command prints no JSON",
            "{arguments:?}"
        );
        tried.insert(arguments[0].to_owned());
    }
    assert_eq!(tried, commands(&project), "every command is tried");
    let compared = project
        .run(&["compare", "--format", "json"])
        .ends_with(0)
        .json();
    assert_eq!(compared["schema_version"], "tprimat.comparison/1");
}

#[test]
fn a_task_and_a_cell_have_one_name_in_every_form() {
    let project = Project::new(ONE_RUN);
    let json =
        |arguments: &[&str]| -> Value { project.run(&[arguments, &["--json"]].concat()).json() };
    let names = |value: &Value, list: &str, name: &str| -> BTreeSet<String> {
        value[list]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|row| Some(row[name].as_str()?.to_owned()))
            .collect()
    };
    let (plan, explained, listed) = (
        json(&["plan"]),
        json(&["show", "--stale", CELL]),
        json(&["list"]),
    );
    let of_cell = names(&explained, "tasks", "task");
    assert!(
        of_cell.len() > 2 && of_cell.is_subset(&names(&plan, "tasks", "task")),
        "{explained}"
    );
    assert_eq!(
        names(&listed, "cells", "cell"),
        names(&plan, "tasks", "cell")
    );
}
