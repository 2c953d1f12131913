//! What a gate says of step times that the clock refutes, and of runs with nothing to measure.

use super::gate::{CELL, gate};
use crate::support::{ONE_RUN, Project};
use serde_json::json;

#[test]
fn a_trainer_whose_step_times_the_clock_refutes_has_no_figure() {
    let project = Project::new(ONE_RUN);
    let repeat =
        || project.run(&["show", CELL, "--json"]).ends_with(0).json()["repeats"][0].clone();
    project.run(&["build"]).ends_with(0);
    // Nothing was sampled beside it, and this trainer does not date its steps: their lines do.
    assert!(
        repeat()["clock"]["passed_seconds"].is_number(),
        "{:#}",
        repeat()
    );
    project
        .run(&["gate", "--write", "baseline.json"])
        .ends_with(0);
    // Six steps of 9.5 s in a moment. The first is warm-up, and alone longer than the run: it is
    // not even counted.
    project.edit("trainer.sh", "0.0'$seed$step'", "9.5");
    let told = project
        .run(&["build"])
        .ends_with(1)
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        told.contains("the log claims 47.5 s of steps in a run of "),
        "{told}"
    );
    assert_eq!(
        (&repeat()["status"]["status"], repeat().get("steady")),
        (&json!("unmeasured"), None)
    );
    assert!(
        gate(&project, &[])
            .ends_with(3)
            .stdout
            .contains("the log claims 47.5 s")
    );
    // Nothing is left to run, and it is no success for that.
    assert_eq!(
        project.run(&["build", "--json"]).ends_with(1).json()["unmeasured"],
        1
    );
    assert_eq!(project.launches(), 2);
    // Steps that are launched in 0.1 ms and take 30.
    project.edit(
        "trainer.sh",
        "9.5",
        "0.0001,\"time\":'${EPOCHREALTIME/,/.}'",
    );
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.03");
    project.edit("trainer.sh", "1 2 3 4 5 6", "1 2 3 4 5 6 7 8");
    project.edit("trainer.sh", "\"steps\":6", "\"steps\":8");
    project.edit("config.yaml", "train_iters: 6", "train_iters: 8");
    let told = project.run(&["build"]).ends_with(1).stdout;
    assert!(
        told.contains("the log claims 0.10 ms a step, but "),
        "{told}"
    );
}

/// The run was stopped from outside for a moment, and its trainer's clock went on.
#[test]
fn a_trainer_that_was_stopped_for_a_while_is_remarked() {
    let project = Project::new(ONE_RUN);
    project.edit("config.yaml", "train_iters: 6", "train_iters: 20");
    project.edit("trainer.sh", "1 2 3 4 5 6;", "{1..20};");
    project.edit("trainer.sh", "\"steps\":6", "\"steps\":20");
    // It stops in step 12 until the other one lets it go on.
    let stop = "if (( step == 12 )); then (sleep 1; kill -CONT $$) & kill -STOP $$; fi; sleep 0.04";
    project.edit(
        "trainer.sh",
        "sleep 0.005",
        &format!("begin=${{EPOCHREALTIME/[.,]/}}; {stop}"),
    );
    let timed =
        "\"step_time_seconds\":'$(printf '%d.%06d' $(( took / 1000000 )) $(( took % 1000000 )))',";
    project.edit(
        "trainer.sh",
        "\"step_time_seconds\":0.0'$seed$step',",
        timed,
    );
    project.edit(
        "trainer.sh",
        "    echo '{\"event\":\"step\"",
        "    took=$(( ${EPOCHREALTIME/[.,]/} - begin ))\n    echo '{\"event\":\"step\"",
    );
    project.run(&["build"]).ends_with(0);
    let notes = project.run(&["show", CELL, "--json"]).ends_with(0).json()["notes"].to_string();
    // A busy machine may make more steps slow, but none as slow as this one.
    assert!(
        notes.contains(" of 19 measured steps took ") && notes.contains(" at step 12; "),
        "{notes}"
    );
}

/// A trainer whose timer stops before the step has ended: its steps take 30 ms and are said to
/// take less.
#[test]
fn a_timer_that_is_too_short_passes_no_gate() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    project.write("claimed", "0.0300");
    project.edit(
        "config.yaml",
        "inputs: [trainer.sh]",
        "inputs: [trainer.sh, claimed]",
    );
    project.edit(
        "trainer.sh",
        "for step in 1 2 3 4 5 6; do\n    sleep 0.005",
        "for step in {1..30}; do\n    sleep 0.03",
    );
    project.edit(
        "trainer.sh",
        "\"step_time_seconds\":0.0'$seed$step',",
        "\"step_time_seconds\":'$(<\"$TPRIMAT_PROJECT_DIR/claimed\")$(( RANDOM % 10 ))',",
    );
    project.edit("trainer.sh", "'$((9 - step))'.5", "'$((99 - step))'.5");
    project.edit("trainer.sh", "\"steps\":6", "\"steps\":30");
    let built = project
        .run(&["build", "--set", "training.duration.train_iters=30"])
        .ends_with(0);
    assert!(!built.stdout.contains("too high"), "{}", built.stdout);
    let iterations = ["--set", "training.duration.train_iters=30"];
    let run = |args: &[&str]| project.run(&[args, &iterations].concat());
    run(&["gate", "--write", "baseline.json"]).ends_with(0);
    // Half of each step: the rate would be twice as high.
    project.write("claimed", "0.0150");
    let built = run(&["build"]);
    let gated = gate(&project, &iterations);
    assert_ne!(gated.code, Some(0), "{}", gated.stdout);
    let words = if built.code == Some(0) {
        assert!(
            built.stdout.contains("× too high: by the clock"),
            "{}",
            built.stdout
        );
        "its step times leave out time that passes between steps"
    } else {
        // On a busy host more than half of the time is in no step.
        "pass from one to the next"
    };
    assert!(gated.stdout.contains(words), "{}", gated.stdout);
    if built.code == Some(0) {
        let written = run(&["gate", "--write", "doubted.json"])
            .ends_with(0)
            .stderr;
        assert!(
            written.contains("× too high") && written.contains("A gate of later measurements"),
            "{written}"
        );
        let told = project.run(&["history", CELL]).ends_with(0).stdout;
        assert!(
            told.contains("× too high") && told.contains("no verdict"),
            "{told}"
        );
    }
    // A tenth of it is no rate at all, in every repeat.
    project.write("claimed", "0.0030");
    run(&["build"]).ends_with(1);
    let shown = run(&["show", CELL, "--json"]).json();
    for repeat in shown["repeats"].as_array().unwrap() {
        let reason = repeat["status"]["reason"]["text"]
            .as_str()
            .unwrap_or_default();
        assert!(reason.contains("pass from one to the next"), "{shown:#}");
    }
    gate(&project, &iterations).ends_with(3);
}

/// Runs are counted, also where none of a cell's counts.
#[test]
fn runs_with_nothing_to_measure_are_counted_as_runs() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 2"));
    project.edit("trainer.sh", "0.0'$seed$step'", "1e-9");
    let told = project.run(&["build", "--json"]).ends_with(1).json();
    assert_eq!(told["unmeasured"], 2, "{told}");
}

/// Every fifth step has a line, with the time of five.
#[test]
fn the_time_of_several_steps_gives_no_rate() {
    let project = Project::new(ONE_RUN);
    project.edit("trainer.sh", "1 2 3 4 5 6", "5 10 15 20 25 30 35 40");
    project.edit("trainer.sh", "0.0'$seed$step'", "0.1");
    project.edit("trainer.sh", "\"steps\":6", "\"steps\":40");
    project.edit("config.yaml", "train_iters: 6", "train_iters: 40");
    project.run(&["build"]).ends_with(1);
    let shown = project.run(&["show", CELL, "--json"]).ends_with(0).json();
    let repeat = shown["repeats"][0].to_string();
    assert!(
        repeat.contains("the log shows only every 5th step") && repeat.contains("the run took "),
        "{shown:#}"
    );
}
