//! What the command line asks for: repeats, measuring again, a selection; and exit codes.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tprimat::cache::TaskKind;

use crate::support::{
    Project,
    tasks::{LARGE, SMALL},
};

#[test]
fn repeats_may_be_asked_for_on_the_command_line() {
    let project = Project::built();
    let built = project.build(&["--repeats", "3"]);
    assert_eq!((built.code, project.launches()), (0, 6));
    let trained: Vec<_> = built
        .ran
        .iter()
        .filter(|id| id.starts_with("train "))
        .cloned()
        .collect();
    assert_eq!(
        trained,
        [format!("train {LARGE}#3"), format!("train {SMALL}#3")]
    );
    assert_eq!(project.stale(&["--repeats", "3"]), BTreeSet::new());
    // Fewer than there are, which no build has summed up.
    assert_eq!(
        (project.build(&["--repeats", "5"]).code, project.launches()),
        (0, 10)
    );
    let compared = project.json(&["compare", "--repeats", "4"]);
    let repeats: Vec<_> = compared["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["n"].clone())
        .collect();
    assert_eq!(repeats, [4, 4]);
}

#[test]
fn remeasuring_keeps_what_was_measured() {
    let project = Project::built();
    let before = project.json(&["show", SMALL])["repeats"][0]["attempt"].clone();
    let built = project.build(&["--force=measured", "--only", "cpu/cmd/small"]);
    assert_eq!((built.code, project.launches()), (0, 6), "{}", built.stderr);
    let trained: Vec<_> = built
        .ran
        .iter()
        .filter(|id| id.starts_with("train "))
        .cloned()
        .collect();
    assert_eq!(
        trained,
        [format!("train {SMALL}#1"), format!("train {SMALL}#2")]
    );
    let after = project.json(&["show", SMALL])["repeats"][0]["attempt"].clone();
    assert_ne!(before, after);
    let cache = project.cache();
    let key = cache
        .last_of(TaskKind::Train, &format!("train {SMALL}#1"))
        .unwrap()
        .key;
    let attempts: Vec<_> = cache
        .attempts(&key)
        .into_iter()
        .map(|a| (json!(a.id), a.generation))
        .collect();
    assert_eq!(attempts, [(after, 1), (before, 0)]);
    project.expect_nothing();
}

#[test]
fn a_selection_limits_what_runs_and_not_what_is_compared() {
    let project = Project::of_two();
    let built = project.build(&["--only", "cpu/cmd/small"]);
    assert_eq!((built.code, project.launches()), (0, 2), "{}", built.stderr);
    assert!(
        built.ran.iter().all(|id| !id.contains("large")),
        "{:?}",
        built.ran
    );
    let comparison =
        || -> Value { serde_json::from_str(&project.read("output/compare.json")).unwrap() };
    assert_eq!(comparison()["absent"][0]["cell"], LARGE);
    assert_eq!(comparison()["absent"][0]["state"], "missing");
    assert_eq!(project.build(&["--only", "cpu/cmd/large"]).code, 0);
    // The other cell's summary is fresh, so it is in the table as well.
    assert_eq!(comparison()["rows"].as_array().map(Vec::len), Some(2));
    // A stale cell that is not selected neither runs nor keeps the others from being compared.
    project.edit("config.yaml", "vocab_size: 64", "vocab_size: 96");
    assert_eq!(project.build(&["--only", "cpu/cmd/small"]).code, 0);
    assert_eq!(
        (
            project.launches(),
            comparison()["absent"][0]["cell"].clone()
        ),
        (4, json!(LARGE))
    );
}

#[test]
fn exit_codes() {
    let project = Project::of_two();
    let code = |arguments: &[&str]| project.run(arguments).code.unwrap();
    assert_eq!(code(&["plan"]), 0);
    assert_eq!(code(&["plan", "--exit-code"]), 5);
    assert_eq!(code(&["build", "--cached-only", "--require=complete"]), 5);
    assert_eq!(project.launches(), 0);
    assert_eq!(code(&["build", "--only", "cpu/cmd/tiny"]), 4);
    assert_eq!(
        code(&["build", "--only", "cpu/cmd/small", "--require=complete"]),
        5
    );
    assert_eq!(code(&["build", "--require=complete"]), 0);
    assert_eq!(code(&["plan", "--exit-code"]), 0);
    assert_eq!(code(&["build", "--no-such-option"]), 2);
    assert_eq!(code(&["build", "no-such-matrix"]), 2);
    project.edit("config.yaml", "seq_length: 64", "seq_lenght: 64");
    assert_eq!(code(&["build"]), 2);
    assert_eq!(code(&["plan", "--json"]), 2);
    assert_eq!(project.json(&["plan"])["error"]["exit_code"], 2);
}
