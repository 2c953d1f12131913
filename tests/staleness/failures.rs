//! Runs that fail or contradict their job: which are tried again, and when.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    Project,
    tasks::{IMPORT_ERROR, LARGE, SAMPLED, SHARED, SMALL, UNKNOWN_ERROR, WRONG_LENGTH},
};

/// Two models of two repeats each; one run at a time, so that each is known before the next one starts.
fn one_at_a_time() -> Project {
    let project = Project::of_two();
    project.edit("config.yaml", "share: true", "share: false");
    project
}

#[test]
fn a_lasting_failure_is_met_once_and_waits_for_retry_failed() {
    let project = one_at_a_time();
    project.write("mood.sh", IMPORT_ERROR);
    let built = project.build(&[]);
    // Its second repeat would launch the same bytes.
    assert_eq!((built.code, project.launches()), (1, 3), "{}", built.stderr);
    let second = &project.plan(&[])[&format!("train {SMALL}#2")];
    assert_eq!(second.state, "failed");
    assert!(second.reason.starts_with("not started: repeat 1 failed (import: exit 1)"), "{}", second.reason);
    // It blocks nobody.
    let table = project.read("output/compare.txt");
    assert!(table.contains(SMALL) && table.contains(LARGE), "{table}");
    assert!(project.path("output/train_cpu_cmd_large.json").is_file());
    assert_eq!(project.plan(&[])[&format!("train {SMALL}#1")].state, "failed");
    assert_eq!(project.stale(&[]), BTreeSet::new());
    // Still failed, and not tried again.
    let built = project.build(&[]);
    assert_eq!((built.code, built.ran, project.launches()), (1, BTreeSet::new(), 3));
    // Where it fails again, it does so once more.
    assert_eq!((project.build(&["--retry-failed"]).code, project.launches()), (1, 4));
    // With the cause gone as well: no key covers it.
    project.remove("mood.sh");
    assert_eq!(project.build(&[]).code, 1);
    assert_eq!(project.launches(), 4);
    let retried = project.build(&["--retry-failed"]);
    assert_eq!((retried.code, project.launches()), (0, 6), "{}", retried.stderr);
    project.expect_nothing();
}

#[test]
fn memory_that_others_held_is_no_lasting_failure() {
    let torch = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
    let other = "Process 4711 has 92.85 GiB memory in use. Including non-PyTorch memory, this process has 1.00 GiB memory in use.";
    let runs_out = |says: &str| format!("if [[ $vocab == 32 ]]; then echo '{says}' >&2; exit 1; fi");
    let sampled = SAMPLED.split_once("printf '{\"event\"").unwrap().0;
    let told = "oom: exit 1; process 4711 had 92.85 GiB of its GPU's memory";
    let seen = "oom: exit 1; its GPU gpu-0 was also used by process 4711 (python3)";
    for (mood, why) in
        [(runs_out(&format!("{torch} {other}")), told), (format!("{SHARED}\n{sampled}\n{}", runs_out(torch)), seen)]
    {
        let project = one_at_a_time();
        project.write("mood.sh", &mood);
        // Each repeat is tried, and each again by the next build.
        let built = project.build(&[]);
        assert_eq!((built.code, project.launches()), (1, 4), "{}", built.stderr);
        let first = &project.plan(&[])[&format!("train {SMALL}#1")];
        assert_eq!(first.state, "stale");
        assert_eq!(first.reason, format!("the last attempt failed ({why}), perhaps not for good"));
        assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
        // Alone on its device it fails for good.
        project.write("mood.sh", &runs_out(torch));
        assert_eq!((project.build(&[]).code, project.launches()), (1, 8));
        assert_eq!(project.stale(&[]), BTreeSet::new());
    }
}

#[test]
fn a_repeat_that_went_well_speaks_for_the_others() {
    let project = one_at_a_time();
    project.edit("matrix.toml", "repeats = 2", "repeats = 1").build(&[]);
    project.write("mood.sh", IMPORT_ERROR).edit("matrix.toml", "repeats = 1", "repeats = 3");
    // The first one did not fail, so each of the others is tried.
    assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    // Measured anew, the first one fails, and that is all.
    assert_eq!((project.build(&["--remeasure", "--only", SMALL]).code, project.launches()), (1, 7));
}

#[test]
fn a_key_that_changed_tries_a_lasting_failure_again() {
    let project = one_at_a_time();
    project.write("mood.sh", IMPORT_ERROR);
    assert_eq!(project.build(&[]).code, 1);
    project.remove("mood.sh").edit("config.yaml", "OF_PLATFORM: \"0\"", "OF_PLATFORM: \"1\"");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 7));
}

#[test]
fn a_passing_failure_is_tried_again_by_the_next_build() {
    let project = Project::of_two();
    project.write("mood.sh", UNKNOWN_ERROR);
    assert_eq!((project.build(&[]).code, project.launches()), (1, 4));
    let failed: BTreeSet<_> = project.stale(&[]).into_iter().filter(|id| id.starts_with("train ")).collect();
    assert_eq!(failed, BTreeSet::from([format!("train {SMALL}#1"), format!("train {SMALL}#2")]));
    assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    project.remove("mood.sh");
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 8), "{}", built.stderr);
    project.expect_nothing();
}

#[test]
fn a_run_that_contradicts_its_job_is_kept_and_does_not_count() {
    let project = Project::of_two();
    project.write("mood.sh", WRONG_LENGTH);
    let built = project.build(&[]);
    assert_eq!((built.code, &built.says["contradicted"]), (1, &json!(2)), "{}", built.says);
    let comparison: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let rows: Vec<_> = comparison["rows"].as_array().unwrap().iter().map(|r| r["cell"].clone()).collect();
    assert_eq!(rows, [json!(LARGE)]);
    assert_eq!(comparison["absent"][0]["state"], "contradicted");
    assert_eq!(project.json(&["show", &format!("{SMALL}#1")])["attestation"]["status"], "contradicted");
    // It is a measurement: nothing runs again, and the exit code goes on saying so.
    let built = project.build(&[]);
    assert_eq!((built.code, built.ran, project.launches()), (1, BTreeSet::new(), 4));
}
