//! Two names of one measurement: its past, its counts and its noise.

use crate::{
    kept::CELL,
    support::{ONE_RUN, Project},
};

/// Two names of one measurement: the strategies `single` and `other` are the same.
fn of_twins() -> Project {
    let project = Project::new(&ONE_RUN.replace("\"single\"", "[\"single\", \"other\"]"));
    let single = "  single: { num_gpus: 1, DP: 1 }\n";
    project.edit(
        "config.yaml",
        single,
        &format!("{single}  other: {{ num_gpus: 1, DP: 1 }}\n"),
    );
    project
}

#[test]
fn a_cell_that_shares_the_measurement_of_another_has_its_past_as_well() {
    let project = of_twins();
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    for cell in [CELL, "cpu/cmd/tiny/other"] {
        let shown = project.run(&["show", cell, "--json"]).ends_with(0).json();
        assert!(
            shown["tokens_per_second_per_gpu"]["value"]
                .as_f64()
                .is_some(),
            "{cell}: {shown}"
        );
        let attempts = project
            .run(&["show", "--attempts", cell, "--json"])
            .ends_with(0)
            .json();
        assert_eq!(
            attempts["attempts"].as_array().unwrap().len(),
            1,
            "{cell}: {attempts}"
        );
    }
}

/// Every task of the queue ends in the events, once, whether it ran or not: counts and bars are made of
/// them.
#[test]
fn each_task_of_a_build_is_counted_once_whoever_made_it() {
    let ended = |project: &Project, code: i32| {
        let events = project.run(&["build", "--events", "-"]).ends_with(code);
        let events = events.stdout.lines().filter(|line| line.starts_with('{'));
        let events: Vec<serde_json::Value> = events
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of = |kind: &str| {
            let all = events.iter().filter(|event| event["event"] == *kind);
            all.cloned().collect::<Vec<_>>()
        };
        let queue = of("build_started")[0]["queue"].clone();
        let mut queue: Vec<String> = serde_json::from_value(queue).unwrap();
        let finished = of("task_finished");
        let name = |event: &serde_json::Value| event["task"].as_str().unwrap().to_owned();
        let mut names: Vec<String> = finished.iter().map(name).collect();
        queue.sort();
        names.sort();
        assert_eq!(names, queue);
        let outcome = |task: &str| {
            let found = finished.iter().find(|event| name(event) == task).unwrap();
            found["outcome"].as_str().unwrap().to_owned()
        };
        [
            outcome("train cpu/cmd/tiny/single#1"),
            outcome("train cpu/cmd/tiny/other#1"),
        ]
    };
    let twins = of_twins();
    assert_eq!(ended(&twins, 0), ["ok", "cached"]);
    assert_eq!(twins.launches(), 1);
    let failing = of_twins();
    failing.write("trainer.sh", "echo 'CUDA out of memory'; exit 1\n");
    assert_eq!(ended(&failing, 1), ["failed", "waiting"]);
}

#[test]
fn twins_without_figures_are_not_said_to_differ_by_noise() {
    let project = of_twins();
    project
        .write("trainer.sh", "exit 1\n")
        .run(&["build"])
        .ends_with(1);
    let compared = project.read("output/compare.json");
    assert!(
        compared.contains(
            "launches the very same bytes as cpu/cmd/tiny/single: one measurement serves both"
        ),
        "{compared}"
    );
    assert!(!compared.contains("is noise"), "{compared}");
}
