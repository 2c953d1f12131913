//! Cells that ask for the same measurement share it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    Project,
    tasks::{IMPORT_ERROR, SAMPLED, SHARED, SMALL},
};

/// A second model of the same shape, in place of `large`.
fn with_twin(project: &Project) {
    let config = project.read("config.yaml");
    let small = config
        .lines()
        .find(|line| line.starts_with("  small:"))
        .unwrap();
    project.edit(
        "config.yaml",
        "models:\n",
        &format!("models:\n{}\n", small.replace("small:", "twin:")),
    );
    project.edit(
        "matrix.toml",
        "[\"small\", \"large\"]",
        "[\"small\", \"twin\"]",
    );
}

/// Does the comparison say that a cell launches what `SMALL` does?
fn are_said_to_be_one(project: &Project, cell: &str) -> bool {
    let comparison: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let mut rows = comparison["rows"].as_array().unwrap().iter();
    rows.any(|row| row["cell"] == cell && row["same_launch_as"] == SMALL)
}

#[test]
fn cells_that_ask_for_the_same_share_a_measurement_and_say_so() {
    let project = Project::of_two();
    with_twin(&project);
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 2), "{}", built.stderr);
    let attempt = |cell: &str| project.json(&["show", cell])["repeats"][0]["attempt"].clone();
    let is_said = || are_said_to_be_one(&project, "cpu/cmd/twin/single");
    assert_eq!(attempt(SMALL), attempt("cpu/cmd/twin/single"));
    assert!(is_said());
    project.expect_nothing();
    // Another file that one of them declares makes them two.
    let own = "\n[[override]]\nwhere = { model = \"twin\" }\nset = { \"frameworks.cmd.inputs\" = [\"matrix.toml\"] }\n";
    project.write("matrix.toml", &(project.read("matrix.toml") + own));
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    assert!(!is_said());
}

#[test]
fn what_a_selected_cell_measures_is_its_twins_too() {
    let project = Project::of_two();
    with_twin(&project);
    let rows = |project: &Project| {
        let comparison: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
        comparison["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["cell"].clone())
            .collect::<Vec<_>>()
    };
    project.edit("config.yaml", "share: true", "share: false");
    project.write("mood", &format!("{SHARED}\n{SAMPLED}"));
    assert_eq!(
        (project.build(&[]).code, project.launches(), rows(&project)),
        (1, 2, vec![])
    );
    project.remove("mood");
    let built = project.build(&["--only", SMALL]);
    assert_eq!(
        (built.code, project.launches(), &built.says["suspect"]),
        (0, 4, &json!(0)),
        "{}",
        built.stderr
    );
    assert_eq!(rows(&project), [json!(SMALL), json!("cpu/cmd/twin/single")]);
    project.expect_nothing();
    // Measured anew, by the one for both.
    assert_eq!(
        (
            project.build(&["--force=measured", "--only", SMALL]).code,
            project.launches()
        ),
        (0, 6)
    );
    assert_eq!(rows(&project).len(), 2);
    assert_eq!(project.stale(&["--only", SMALL]), BTreeSet::new());
    // Where neither was ever built.
    let project = Project::of_two();
    with_twin(&project);
    assert_eq!(
        (project.build(&["--only", SMALL]).code, project.launches()),
        (0, 2)
    );
    assert_eq!(rows(&project).len(), 2);
    project.expect_nothing();
}

#[test]
fn platforms_whose_facts_agree_share_a_measurement_and_say_so() {
    let project = Project::of_two();
    project.edit(
        "config.yaml",
        "  platforms:\n",
        "  platforms:\n    box: { vendor: cpu, env: { OF_PLATFORM: \"0\" } }\n",
    );
    project.edit(
        "matrix.toml",
        "platform = \"cpu\"",
        "platform = [\"cpu\", \"box\"]",
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    assert!(are_said_to_be_one(&project, "box/cmd/small/single"));
}

#[test]
fn a_failure_is_shared_as_well() {
    let project = Project::of_two();
    with_twin(&project);
    project.write("mood", IMPORT_ERROR);
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
    assert_eq!(
        project.plan(&[])["train cpu/cmd/twin/single#2"].state,
        "failed"
    );
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
}

#[test]
fn a_disturbed_measurement_is_shared_as_well() {
    let project = Project::of_two();
    with_twin(&project);
    // One after the other: the second cell comes to its turn when the first one's run is judged.
    project.edit("config.yaml", "share: true", "share: false");
    project.write("mood", &format!("{SHARED}\n{SAMPLED}"));
    let built = project.build(&[]);
    assert_eq!(
        (built.code, project.launches(), &built.says["suspect"]),
        (1, 2, &json!(4)),
        "{}",
        built.stderr
    );
    project.remove("mood");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    project.expect_nothing();
}
