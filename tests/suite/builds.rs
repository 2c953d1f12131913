//! What a build concludes from what it ran, and from what it did not need to run.

use std::fs;

use crate::support::{ONE_RUN, Project};
use serde_json::Value;

#[test]
fn a_second_build_has_nothing_to_do_and_notices_when_it_has() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let idle = project.run(&["build"]).ends_with(0);
    assert_eq!(idle.stderr.matches("nothing to do").count(), 1, "{idle:?}");
    // What a build pins is not forgotten because nothing has to run.
    fs::remove_file(project.path("tprimat.lock")).unwrap();
    project.run(&["build"]).ends_with(0);
    assert!(project.path("tprimat.lock").exists());
    assert_eq!(project.launches(), 1);
    // A published file that somebody changed is published again.
    fs::write(project.path("output/compare.txt"), "forged").unwrap();
    project.run(&["build"]).ends_with(0);
    assert!(!project.read("output/compare.txt").contains("forged"));
}

#[test]
fn remeasuring_that_cannot_run_voids_nothing() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let pinned = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .unwrap();
    project.edit("tprimat.lock", pinned, "cores = 4096");
    project.run(&["build", "--force=measured"]).ends_with(1);
    project.edit("tprimat.lock", "cores = 4096", pinned);
    assert_eq!(
        project.run(&["plan", "--json"]).ends_with(0).json()["summary"]["stale"],
        0
    );
    project
        .run(&["build", "--cached-only", "--force=measured"])
        .ends_with(2);
    // It would hide the failure as stale and run nothing.
    project
        .run(&["build", "--cached-only", "--force=failed"])
        .ends_with(2);
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_run_that_ends_well_and_proves_nothing_is_no_success() {
    let project = Project::new(ONE_RUN);
    // The trainer reports an error and exits 0 all the same.
    project.edit(
        "trainer.sh",
        "job()",
        "echo '{\"event\":\"error\",\"class\":\"nccl\",\"message\":\"watchdog\"}'; exit 0\njob()",
    );
    let ran = project.run(&["build"]).ends_with(1);
    assert!(ran.stderr.contains("nccl"), "{}", ran.stderr);
    // It is tried again, for it may not happen again.
    assert_eq!(
        project.run(&["plan", "--json"]).ends_with(0).json()["summary"]["stale"],
        6
    );
}

/// What is wrong is said, and not what it looks like.
#[test]
fn a_reason_is_the_true_one() {
    let nan = Project::new(ONE_RUN);
    nan.edit("trainer.sh", "\"loss\":'$((9 - step))'.5", "\"loss\":NaN");
    let ran = nan.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr.contains("exit 0, but the loss is not finite")
            && !ran.stderr.contains("reports an error"),
        "{}",
        ran.stderr
    );
    let torn = Project::new(ONE_RUN);
    torn.edit("trainer.sh", ",\"tokens\":32}", ",\"tokens\":32");
    let ran = torn.run(&["build"]).ends_with(1);
    let told = "6 lines of the log cannot be read (the first is line 2), and no training step was found in the others; 6 were";
    let shown = format!("{}{}", ran.stdout, ran.stderr);
    assert!(shown.replace("\n    ", " ").contains(told), "{shown}");
}

/// The time that is said of a run is the run's, without what it waited for.
#[test]
fn how_long_a_run_took_is_from_its_start_to_its_end() {
    let project = Project::new(ONE_RUN);
    project
        .run(&["build", "--events", "events.jsonl"])
        .ends_with(0);
    let said = project.read("events.jsonl");
    let events = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let seconds: Vec<f64> = events
        .filter(|event| {
            event["event"] == "task_finished"
                && event["task"].as_str().unwrap().starts_with("train ")
        })
        .map(|event| event["seconds"].as_f64().unwrap())
        .collect();
    let result = project
        .run(&["show", "cpu/cmd/tiny/single#1", "--json"])
        .ends_with(0)
        .json();
    let at = |name: &str| result[name].as_f64().unwrap();
    let took = at("ended_at") - at("started_at");
    assert!(
        seconds.len() == 1 && (seconds[0] - took).abs() < 1e-6,
        "{seconds:?} {took}"
    );
}

#[test]
fn steps_without_a_time_say_which_field_is_missing() {
    let project = Project::new(ONE_RUN);
    let trainer = project.read("trainer.sh");
    let without = trainer.replace(r#""step_time_seconds":0.0'$seed$step',"#, "");
    assert_ne!(trainer, without);
    project.write("trainer.sh", &without);
    let told = project.run(&["build"]).ends_with(1);
    let words = "none of the 6 steps has a time (`step_time_seconds` in an event)";
    let said: Vec<&str> = told.stdout.split_whitespace().collect();
    assert!(said.join(" ").contains(words), "{told:?}");
}

/// What CI keeps of a build: a line a cell or a longer run, the figures, and of a fault that all cells have what one of
/// them says.
#[test]
fn the_log_of_a_build_is_short() {
    let axes = "repeats = 3\n[matrix.axes.seed]\npath = \"training.seed\"\nvalues = [1, 2, 3, 4, 5, 6, 7, 8]\n";
    let project = Project::new(&ONE_RUN.replace("repeats = 1\n", axes));
    let lines = |ran: &crate::support::Ran| ran.stdout.lines().count() + ran.stderr.lines().count();
    // It is committed where CI builds.
    project.run(&["lock", "--update"]).ends_with(0);
    let good = project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 24);
    // Further repeats of a cell have a line each where they take longer.
    let started = good.stderr.matches(": started (").count();
    assert!((8..=24).contains(&started), "{good:?}");
    assert!(lines(&good) <= 40, "{}{}", good.stderr, good.stdout);
    project.edit(
        "trainer.sh",
        "for step in",
        "echo 'RuntimeError: boom'; exit 3\nfor step in",
    );
    let bad = project.run(&["build"]).ends_with(1);
    assert_eq!(project.launches(), 26);
    assert!(lines(&bad) <= 15, "{}{}", bad.stderr, bad.stdout);
    assert!(
        bad.stdout.contains("5 more") && bad.stderr.contains("what to do"),
        "{bad:?}"
    );
}
