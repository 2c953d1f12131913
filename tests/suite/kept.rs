//! What stays of a measurement: its repeats, and its past.

use std::fs;

use crate::support::{ONE_RUN, Project, mock, until};

pub(crate) const CELL: &str = "cpu/cmd/tiny/single";

/// A table wide enough for every word to stay on one line.
pub(crate) fn wide(project: &Project, arguments: &[&str]) -> String {
    let ran: crate::support::Ran = project
        .tprimat(arguments)
        .env("COLUMNS", "500")
        .output()
        .unwrap()
        .into();
    ran.ends_with(0).stdout
}

/// Six steps, two repeats; a run waits for `go` where the project has `wait`.
pub(crate) fn two_repeats() -> Project {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 2"));
    let wait = "while [[ -e $TPRIMAT_PROJECT_DIR/wait && ! -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in";
    project.edit("trainer.sh", "for step in", wait);
    project
}

#[test]
fn repeats_that_are_there_are_shown_before_the_others_are_measured() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    for command in ["compare", "report"] {
        let ran = project.run(&[command, "--repeats", "3"]).ends_with(0);
        assert!(!ran.stdout.contains("No cell has figures"), "{ran:?}");
    }
    let table = wide(&project, &["compare", "--details", "--repeats", "3"]);
    assert!(
        table.contains("2/3, 1 still to be measured")
            && table.contains("2 of 3 repeats measured so far"),
        "{table}"
    );
    assert!(
        project
            .read("output/compare.md")
            .contains("2 of 3 repeats measured so far")
    );
    let shown = project
        .run(&["show", CELL, "--repeats", "3", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        (&shown["n"], &shown["standing"]["to_come"]),
        (&2.into(), &1.into())
    );
    // Fewer than were measured are all there, although nobody has summed them up: also for a gate.
    project.run(&["build", "--repeats", "4"]).ends_with(0);
    let table = wide(&project, &["compare", "--details", "--repeats", "3"]);
    assert!(
        table.contains("3/3") && !table.contains("still to be"),
        "{table}"
    );
    project
        .run(&["gate", "--repeats", "3", "--write", "baseline.json"])
        .ends_with(0);
    project
        .run(&["gate", "--repeats", "3", "--baseline", "baseline.json"])
        .ends_with(0);
    assert_eq!(project.launches(), 4);
}

#[test]
fn what_was_measured_before_an_edit_is_shown_as_just_that() {
    let project = Project::new(
        &ONE_RUN
            .replace("\"tiny\"", "[\"tiny\", \"wide\"]")
            .replace("repeats = 1", "repeats = 2"),
    );
    project.run(&["build"]).ends_with(0);
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    const WHY: &str = "measured before learning_rate changed from 0.001 to 0.002";
    let shown = project.run(&["show", CELL]).ends_with(0).stdout;
    assert!(shown.contains(WHY), "{shown}");
    let json = project.run(&["show", CELL, "--json"]).ends_with(0).json();
    assert_eq!(
        (&json["n"], &json["standing"]["earlier"]),
        (&2.into(), &WHY.into())
    );
    assert!(
        project
            .run(&["show", "cpu/cmd/tiny/single#2"])
            .ends_with(0)
            .stdout
            .starts_with(&format!("# {WHY}\n"))
    );
    // One measured as it is configured now, beside one that is not: the comparison says so wherever
    // its ratio is.
    project.run(&["build", "--only", CELL]).ends_with(0);
    let comparison = project.run(&["compare", "--json"]).ends_with(0).json();
    let speedups = comparison["speedups"].as_array().unwrap();
    assert_eq!(comparison["rows"].as_array().unwrap().len(), 2);
    for speedup in speedups {
        assert!(
            speedup["labels"][0]["text"].as_str().unwrap().contains(WHY),
            "{speedup}"
        );
    }
    // A gate decides by present figures alone.
    let baseline = project.run(&["gate", "--write", "-", "--json"]);
    assert!(
        baseline.stdout.contains("cpu/cmd/tiny/single")
            && !baseline.stdout.contains("cpu/cmd/wide/single\""),
        "{baseline:?}"
    );
    // Back as it was: nothing is to be measured, and nothing is marked.
    project.edit(
        "config.yaml",
        "learning_rate: 2.0e-3",
        "learning_rate: 1.0e-3",
    );
    assert!(
        !project
            .run(&["compare", "--details"])
            .ends_with(0)
            .stdout
            .contains("measured before")
    );
    assert_eq!(project.launches(), 6);
}

#[test]
fn an_interrupted_build_hides_nothing() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    project.run(&["build", "--repeats", "1"]).ends_with(0);
    project.write("wait", "");
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    until("the second repeat starts", || project.launches() == 4);
    interrupt(&build);
    assert_eq!(build.wait().unwrap().code(), Some(130));
    let table = wide(&project, &["compare", "--details"]);
    assert!(table.contains("1/2, 1 still to be measured"), "{table}");
    // The configuration before that is in the list of attempts.
    let attempts = project
        .run(&["show", "--attempts", CELL, "--json"])
        .ends_with(0)
        .json();
    let verdicts: Vec<&str> = attempts["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["verdict"].as_str().unwrap())
        .collect();
    let earlier = "measured before learning_rate changed from 0.001 to 0.002";
    assert_eq!(verdicts[..3], [earlier, earlier, "counts"]);
    assert_eq!(
        verdicts[3],
        "does not count: it was interrupted before its end"
    );
    assert_eq!(attempts["attempts"][3]["outcome"], "interrupted");
}

fn interrupt(child: &std::process::Child) {
    use nix::sys::signal::{Signal, kill};
    kill(
        nix::unistd::Pid::from_raw(child.id() as i32),
        Signal::SIGINT,
    )
    .unwrap();
}

#[test]
fn a_new_measurement_says_that_there_was_an_earlier_one() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    assert!(!project.run(&["compare"]).stdout.contains("measured anew"));
    project.run(&["build", "--force=measured"]).ends_with(0);
    project.run(&["build", "--force=measured"]).ends_with(0);
    let table = wide(&project, &["compare", "--details"]);
    assert!(table.contains("2/2, measured anew"), "{table}");
    assert!(
        table.contains("there are runs that do not count: measured anew"),
        "{table}"
    );
    assert!(project.read("output/compare.csv").contains("measured anew"));
    // It is the same state to whoever plans, builds or reads.
    assert_eq!(
        project.run(&["build", "--json"]).ends_with(0).json()["ran"],
        0
    );
    assert_eq!(project.launches(), 6);
    let attempts = project
        .run(&["show", "--attempts", CELL])
        .ends_with(0)
        .stdout;
    assert_eq!(
        attempts
            .matches("does not count: replaced on request by a later run")
            .count(),
        4,
        "{attempts}"
    );
    assert_eq!(
        attempts
            .lines()
            .filter(|line| line.ends_with("  counts"))
            .count(),
        2,
        "{attempts}"
    );
}

#[test]
fn a_waiting_build_takes_what_a_dead_one_had_finished() {
    use nix::sys::signal::{Signal, kill};
    let project = Project::new(ONE_RUN);
    project.write("wait", "").edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut first = project.tprimat(&["build"]).spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(first.id() as i32);
    until("the trainer starts", || project.launches() == 1);
    let second = project
        .tprimat(&["build", "--events", "events.jsonl"])
        .spawn()
        .unwrap();
    let events = || fs::read_to_string(project.path("events.jsonl")).unwrap_or_default();
    until("the second build waits", || {
        events().contains("task_waiting")
    });
    kill(pid, Signal::SIGSTOP).unwrap();
    project.write("go", "");
    let runs = || {
        project
            .names_in("cache/runs")
            .into_iter()
            .filter(|name| !name.starts_with('.'))
    };
    until("the run is over", || {
        runs().any(|run| {
            project
                .path(&format!("cache/runs/{run}/exit.json"))
                .exists()
        })
    });
    kill(pid, Signal::SIGKILL).unwrap();
    first.wait().unwrap();
    let ended: crate::support::Ran = second.wait_with_output().unwrap().into();
    assert!(
        ended
            .ends_with(0)
            .stderr
            .contains("took in a run that an earlier build left")
    );
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_plan_names_the_run_that_a_build_would_take_in() {
    use nix::sys::signal::{Signal, kill};
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(build.id() as i32);
    until("the trainer starts", || project.launches() == 1);
    kill(pid, Signal::SIGSTOP).unwrap();
    project.write("go", "");
    let runs = || {
        project
            .names_in("cache/runs")
            .into_iter()
            .filter(|name| !name.starts_with('.'))
    };
    until("the run is over", || {
        runs().any(|run| {
            project
                .path(&format!("cache/runs/{run}/exit.json"))
                .exists()
        })
    });
    kill(pid, Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    until("the supervisor is gone", || project.processes().is_empty());
    let plan = project.run(&["plan"]).stdout;
    assert!(plan.contains("`tprimat build` takes it in"), "{plan}");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_command_that_was_not_found_is_tried_again() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "PATH=\"$TPRIMAT_PROJECT_DIR/bin:$PATH\" benchmark-launcher || exit 127\nfor step in",
    );
    let failed = project.run(&["build"]).ends_with(1);
    assert!(failed.stderr.contains("launch"), "{failed:?}");
    mock::program(&project.path("bin/benchmark-launcher"), "#!/bin/sh\n");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
}

#[test]
fn the_last_failure_is_the_one_recorded_last_whatever_the_clocks_say() {
    use tprimat::job::RunOutcome;
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\nfor step in",
    );
    project.run(&["build"]).ends_with(1);
    let key = project.run(&["plan", "--json"]).json()["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|task| task["kind"] == "train")
        .unwrap()["key"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    // A passing failure of a host whose clock is days ahead, recorded before; its id sorts last.
    let lasting = project.cache().attempts(&key).remove(0);
    let passing = RunOutcome::Failed {
        class: tprimat::job::FailureClass::Killed,
        evidence: vec![],
        status: "signal 9".into(),
    };
    fs::remove_dir_all(project.path("cache/records")).unwrap();
    let cache = project.cache();
    cache
        .record_attempt(&tprimat::cache::Attempt {
            id: "29991231T000000.000000Z-0".into(),
            outcome: passing,
            ..lasting.clone()
        })
        .unwrap();
    cache.record_attempt(&lasting).unwrap();
    drop(cache);
    project.run(&["build"]).ends_with(1);
    assert_eq!(
        project.launches(),
        1,
        "a failure that would come again is not tried again"
    );
}
