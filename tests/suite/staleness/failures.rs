//! Runs that fail or contradict their job: which are tried again, and when.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    Project,
    tasks::{IMPORT_ERROR, LARGE, SAMPLED, SHARED, SMALL, UNKNOWN_ERROR, WRONG_LENGTH},
};

/// Two models of two repeats each; one run at a time, so that each is known before the next one
/// starts.
fn one_at_a_time() -> Project {
    let project = Project::of_two();
    project.edit("config.yaml", "share: true", "share: false");
    project
}

/// Runs that share their host follow each other closely, but a repeat is started when it is known
/// what became of the one before.
#[test]
fn a_lasting_failure_of_a_run_that_shares_its_host_is_met_once() {
    let project = Project::of_two();
    project.write("mood", IMPORT_ERROR);
    let built = project.run(&["build", "-j", "1", "--only", SMALL]);
    assert_eq!(
        (built.code, project.launches()),
        (Some(1), 1),
        "{}",
        built.stderr
    );
}

#[test]
fn a_lasting_failure_is_met_once_and_waits_for_retry_failed() {
    let project = one_at_a_time();
    project.write("mood", IMPORT_ERROR);
    let built = project.build(&[]);
    // Its second repeat would launch the same bytes.
    assert_eq!((built.code, project.launches()), (1, 3), "{}", built.stderr);
    // Cells and runs are counted apart.
    assert!(
        built
            .stderr
            .contains("1 of 2 selected cells measured (1 failed); 3 runs made in "),
        "{}",
        built.stderr
    );
    let second = &project.plan(&[])[&format!("train {SMALL}#2")];
    assert_eq!(second.state, "failed");
    assert!(
        second
            .reason
            .starts_with("not started: repeat 1 failed (import: exit 1)"),
        "{}",
        second.reason
    );
    // It blocks nobody.
    let table = project.read("output/compare.txt");
    assert!(table.contains(SMALL) && table.contains(LARGE), "{table}");
    assert!(project.path("output/train_cpu_cmd_large.json").is_file());
    assert_eq!(
        project.plan(&[])[&format!("train {SMALL}#1")].state,
        "failed"
    );
    assert_eq!(project.stale(&[]), BTreeSet::new());
    // Still failed, and not tried again. One run failed; that of the second repeat was not started,
    // so there is nothing to parse either.
    let events = project.path("events");
    let built = project.run(&["build", "--json", "--events", events.to_str().unwrap()]);
    let json = built.ends_with(1).json();
    let counts = ["failed", "waiting"].map(|state| json["summary"][state].clone());
    assert_eq!(counts, [1, 2], "{json}");
    assert_eq!(json["failed_repeats"], 1, "{json}");
    let told: Value = serde_json::from_str(project.read("events").lines().last().unwrap()).unwrap();
    assert_eq!([&told["failed"], &told["waiting"]], [1, 2], "{told}");
    assert_eq!((&json["ran"], project.launches()), (&json!(0), 3));
    // Where it fails again, it does so once more.
    assert_eq!(
        (project.build(&["--force=failed"]).code, project.launches()),
        (1, 4)
    );
    // With the cause gone as well: no key covers it.
    project.remove("mood");
    assert_eq!(project.build(&[]).code, 1);
    assert_eq!(project.launches(), 4);
    let retried = project.build(&["--force=failed"]);
    assert_eq!(
        (retried.code, project.launches()),
        (0, 6),
        "{}",
        retried.stderr
    );
    project.expect_nothing();
}

#[test]
fn each_failed_repeat_of_a_cell_without_figures_is_counted() {
    let project = one_at_a_time();
    project.write("mood", UNKNOWN_ERROR);
    let json = project.run(&["build", "--json"]).ends_with(1).json();
    assert_eq!(json["failed_repeats"], 2, "{json}");
}

#[test]
fn cells_whose_last_run_failed_are_selected_by_that_alone() {
    let project = one_at_a_time();
    project.write("mood", IMPORT_ERROR);
    let built = project.build(&[]);
    assert_eq!(built.code, 1, "{}", built.stderr);
    let listed = project.run(&["list", "--failed"]).ends_with(0).stdout;
    assert!(
        listed.contains(SMALL) && !listed.contains(LARGE),
        "{listed}"
    );
    assert!(
        project
            .plan(&["--failed"])
            .keys()
            .all(|task| !task.contains(LARGE))
    );
    let log = project.run(&["logs", "--failed"]).ends_with(0).stdout;
    assert!(
        log.starts_with(&format!("==> {SMALL}#1 (attempt ")) && log.contains("ModuleNotFoundError"),
        "{log}"
    );
    // Whoever names it so wants it tried again, although nothing was changed and it fails for good.
    let launched = project.launches();
    assert_eq!(
        (project.build(&["--failed"]).code, project.launches()),
        (1, launched + 1)
    );
    // What was changed since makes it another configuration, and it is still what failed. The other
    // cell is as stale, and left.
    project
        .remove("mood")
        .edit("config.yaml", "learning_rate: 1e-3", "learning_rate: 2e-3");
    let launched = project.launches();
    assert_eq!(
        (project.build(&["--failed"]).code, project.launches()),
        (0, launched + 2)
    );
    // Nothing is left of it, and it is not taken for a build that has nothing to do.
    for command in ["build", "plan", "list", "logs"] {
        let ran = project.run(&[command, "--failed"]).ends_with(4);
        assert!(
            ran.stderr.contains("no cell's last run failed"),
            "{command}: {}",
            ran.stderr
        );
    }
    assert_eq!(project.build(&[]).code, 0);
    project.run(&["build", "--failed"]).ends_with(4);
}

#[test]
fn memory_that_others_held_is_no_lasting_failure() {
    let torch = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
    let other = "Process 4711 has 92.85 GiB memory in use. Including non-PyTorch memory, this process has 1.00 GiB memory in use.";
    let runs_out =
        |says: &str| format!("if [[ $vocab == 32 ]]; then echo '{says}' >&2; exit 1; fi");
    let sampled = SAMPLED.split_once("printf '{\"event\"").unwrap().0;
    let told = "oom: exit 1; process 4711 had 92.85 GiB of its GPU's memory";
    let seen = "oom: exit 1; its GPU gpu-0 was also used by process 4711 (python3)";
    for (mood, why) in [
        (runs_out(&format!("{torch} {other}")), told),
        (format!("{SHARED}\n{sampled}\n{}", runs_out(torch)), seen),
    ] {
        let project = one_at_a_time();
        project.write("mood", &mood);
        // Each repeat is tried, and each again by the next build.
        let built = project.build(&[]);
        assert_eq!((built.code, project.launches()), (1, 4), "{}", built.stderr);
        let first = &project.plan(&[])[&format!("train {SMALL}#1")];
        assert_eq!(first.state, "stale");
        assert_eq!(
            first.reason,
            format!("the last attempt failed ({why}); this may be transient, so it runs again")
        );
        let table = project.run(&["compare", "--format", "csv"]);
        let table = table.ends_with(0).stdout;
        // Counted from the end, since the reason may hold commas.
        let at = table.lines().next().unwrap().rsplit(',');
        let at = at.take_while(|name| *name != "failed").count();
        let row = table.lines().find(|line| line.starts_with(SMALL)).unwrap();
        assert_eq!(row.rsplit(',').nth(at), Some("2"), "{table}");
        assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
        // Alone on its device it fails for good.
        project.write("mood", &runs_out(torch));
        assert_eq!((project.build(&[]).code, project.launches()), (1, 8));
        assert_eq!(project.stale(&[]), BTreeSet::new());
    }
}

#[test]
fn a_repeat_that_went_well_speaks_for_the_others() {
    let project = one_at_a_time();
    project
        .edit("matrix.toml", "repeats = 2", "repeats = 1")
        .build(&[]);
    project
        .write("mood", IMPORT_ERROR)
        .edit("matrix.toml", "repeats = 1", "repeats = 3");
    // The first one did not fail, so each of the others is tried.
    assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    // Measured anew, the first one fails, and that is all.
    assert_eq!(
        (
            project.build(&["--force=measured", "--only", SMALL]).code,
            project.launches()
        ),
        (1, 7)
    );
}

#[test]
fn a_key_that_changed_tries_a_lasting_failure_again() {
    let project = one_at_a_time();
    project.write("mood", IMPORT_ERROR);
    assert_eq!(project.build(&[]).code, 1);
    project
        .remove("mood")
        .edit("config.yaml", "OF_PLATFORM: \"0\"", "OF_PLATFORM: \"1\"");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 7));
}

#[test]
fn a_passing_failure_is_tried_again_by_the_next_build() {
    let project = Project::of_two();
    project.write("mood", UNKNOWN_ERROR);
    assert_eq!((project.build(&[]).code, project.launches()), (1, 4));
    let failed: BTreeSet<_> = project
        .stale(&[])
        .into_iter()
        .filter(|id| id.starts_with("train "))
        .collect();
    assert_eq!(
        failed,
        BTreeSet::from([format!("train {SMALL}#1"), format!("train {SMALL}#2")])
    );
    assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    project.remove("mood");
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 8), "{}", built.stderr);
    project.expect_nothing();
}

/// An exception says that the same launch would meet it again, once it has come twice.
#[test]
fn the_same_exception_twice_is_not_tried_a_third_time() {
    let raises = |text: &str| format!("if [[ $vocab == 32 ]]; then echo '{text}' >&2; exit 1; fi");
    let project = one_at_a_time();
    project.write("mood", &raises("ValueError: heads must divide"));
    project.edit("matrix.toml", "repeats = 2", "repeats = 3");
    // Two repeats of the one cell, three of the other.
    assert_eq!((project.build(&[]).code, project.launches()), (1, 5));
    let plan = project.plan(&[]);
    let reason = |repeat: u32| plan[&format!("train {SMALL}#{repeat}")].reason.as_str();
    assert!(
        reason(1).contains("failed (twice in the same way: exit 1: ValueError: heads must divide)")
            && reason(1).contains("--force=failed"),
        "{}",
        reason(1)
    );
    assert!(
        reason(3).starts_with("not started: two runs failed in the same way"),
        "{}",
        reason(3)
    );
    let built = project.build(&[]);
    assert_eq!(
        (built.code, built.ran, project.launches()),
        (1, BTreeSet::new(), 5)
    );
    // Another message shows nothing of the kind, and a connection may be there the next time.
    project.build(&["--force=failed"]);
    for text in ["ValueError: $RANDOM$RANDOM", "ConnectionError: no route"] {
        let other = one_at_a_time();
        other.write("mood", &raises(text).replace('\'', "\""));
        assert_eq!((other.build(&[]).code, other.launches()), (1, 4));
        assert_eq!((other.build(&[]).code, other.launches()), (1, 6));
        assert_eq!((other.build(&[]).code, other.launches()), (1, 8));
    }
    project.remove("mood");
    let retried = project.build(&["--force=failed"]);
    assert_eq!(retried.code, 0, "{}", retried.stderr);
    project.expect_nothing();
}

/// A crash without a word and an exit code come again as an exception does.
#[test]
fn the_same_signal_or_exit_code_twice_is_not_tried_a_third_time() {
    for (ends, status) in [("kill -SEGV $$", "crash: signal 11"), ("exit 3", "exit 3")] {
        let project = one_at_a_time();
        let mood = format!("if [[ $vocab == 32 ]]; then echo step $RANDOM; {ends}; fi");
        project
            .write("mood", &mood)
            .edit("matrix.toml", "repeats = 2", "repeats = 3");
        assert_eq!((project.build(&[]).code, project.launches()), (1, 5));
        let plan = project.plan(&[]);
        let reason = |repeat: u32| plan[&format!("train {SMALL}#{repeat}")].reason.as_str();
        assert!(
            reason(1).contains(&format!("failed (twice in the same way: {status}"))
                && reason(1).contains("--force=failed"),
            "{}",
            reason(1)
        );
        assert!(
            reason(3).starts_with("not started: two runs failed in the same way"),
            "{}",
            reason(3)
        );
        let built = project.build(&[]);
        assert_eq!(
            (built.code, built.ran, project.launches()),
            (1, BTreeSet::new(), 5)
        );
        project.remove("mood");
        let retried = project.build(&["--force=failed"]);
        assert_eq!(
            (retried.code, project.launches()),
            (0, 8),
            "{}",
            retried.stderr
        );
    }
    // People and the system send these.
    for signal in ["HUP", "KILL"] {
        let project = one_at_a_time();
        let mood = format!("if [[ $vocab == 32 ]]; then kill -{signal} $$; fi");
        project.write("mood", &mood);
        assert_eq!((project.build(&[]).code, project.launches()), (1, 4));
        assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    }
}

/// Somebody who asks for a cell after a crash wants to know why, not what would be launched.
#[test]
fn show_says_why_a_cell_failed_and_where_its_log_is() {
    let project = one_at_a_time();
    project.write("mood", UNKNOWN_ERROR);
    assert_eq!(project.build(&[]).code, 1);
    for name in [SMALL.to_owned(), format!("{SMALL}#2")] {
        let shown = project.run(&["show", &name]).ends_with(0).stdout;
        for words in [
            "has no figures. Repeat",
            "failed (exit 1)",
            "something odd",
            "tprimat logs --attempt",
            "what to do: ",
        ] {
            assert!(shown.contains(words), "{words}:\n{shown}");
        }
        let json = project.run(&["show", &name, "--json"]).ends_with(1);
        assert!(json.stdout.contains("something odd"), "{json:?}");
    }
    project.edit("config.yaml", "learning_rate: 1e-3", "learning_rate: 2e-3");
    let shown = project.run(&["show", SMALL]).ends_with(0).stdout;
    assert!(
        shown.contains("before its settings or files were edited"),
        "{shown}"
    );
}

#[test]
fn a_signal_that_a_run_sends_itself_is_a_crash() {
    let project = one_at_a_time();
    project.write("mood", "if [[ $vocab == 32 ]]; then kill -SEGV $$; fi");
    let built = project.build(&[]);
    assert!(
        built.stderr.contains("failed (crash)") && built.stderr.contains("SIGSEGV"),
        "{}",
        built.stderr
    );
}

#[test]
fn a_run_that_contradicts_its_job_is_kept_and_does_not_count() {
    let project = Project::of_two();
    project.write("mood", WRONG_LENGTH);
    let built = project.build(&[]);
    assert_eq!(
        (built.code, &built.says["contradicted"]),
        (1, &json!(2)),
        "{}",
        built.says
    );
    let comparison: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let rows: Vec<_> = comparison["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["cell"].clone())
        .collect();
    assert_eq!(rows, [json!(LARGE)]);
    assert_eq!(comparison["absent"][0]["state"], "contradicted");
    assert_eq!(
        project.json(&["show", &format!("{SMALL}#1")])["attestation"]["status"],
        "contradicted"
    );
    // It is a measurement: nothing runs again, and the exit code goes on saying so.
    let built = project.build(&[]);
    assert_eq!(
        (built.code, built.ran, project.launches()),
        (1, BTreeSet::new(), 4)
    );
}

/// Three repeats would be three runs for figures that nobody will see.
#[test]
fn repeats_of_a_run_that_cannot_count_are_not_started() {
    let nan = "steps=0; printf '{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"effective\":{\"seq_length\":64,\"global_batch_size\":1,\"num_gpus\":1}}\\n'
        for s in 1 2 3 4; do loss=5.5; ((s == 2)) && loss=NaN
        printf '{\"event\":\"step\",\"step\":%d,\"step_time_seconds\":0.05,\"loss\":%s}\\n' $s $loss; done
        printf '{\"event\":\"end\",\"status\":\"ok\",\"steps\":4}\\n'; exit 0";
    let of_small = |does: &str| format!("if [[ $vocab == 32 ]]; then {does}; fi");
    for (mood, why) in [
        (
            WRONG_LENGTH.to_owned(),
            "the trainer says seq_length 8192; the job asked for 64",
        ),
        (of_small(nan), "failed (nan)"),
        (
            of_small("echo 'iter 1 took 0.1 s'; exit 0"),
            "no training step was found",
        ),
    ] {
        let project = one_at_a_time();
        project
            .write("mood", &mood)
            .edit("matrix.toml", "repeats = 2", "repeats = 3");
        let built = project.build(&[]);
        assert_eq!((built.code, project.launches()), (1, 4), "{}", built.stderr);
        // It ended well, and nobody is told that all is well.
        let lines = |name: &str| -> Vec<String> {
            let ended = format!("train {SMALL}#1: {name}");
            (built.stderr.lines().filter(|line| line.starts_with(&ended)))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(lines("ok"), Vec::<String>::new(), "{}", built.stderr);
        assert_eq!(lines("not counted").len(), 1, "{}", built.stderr);
        assert!(
            built
                .stderr
                .contains("other repeats would not count either and are not started"),
            "{}",
            built.stderr
        );
        let plan = project.plan(&[]);
        let of = |repeat: u32| &plan[&format!("train {SMALL}#{repeat}")];
        assert_eq!(of(1).state, "fresh");
        assert!(
            of(1).reason.starts_with("ended well, but ") && of(1).reason.contains(why),
            "{}",
            of(1).reason
        );
        for repeat in [2, 3] {
            let of = of(repeat);
            assert_eq!(of.state, "failed");
            for part in [
                "not started: repeat 1 does not count",
                why,
                "--force=failed",
            ] {
                assert!(of.reason.contains(part), "{part}: {}", of.reason);
            }
        }
        // A build that is not asked to makes none of them, and goes on saying that all is not well.
        let built = project.build(&[]);
        assert_eq!(
            (built.code, built.ran, project.launches()),
            (1, BTreeSet::new(), 4)
        );
        let listed = project.run(&["list", "--failed"]).ends_with(0).stdout;
        assert!(
            listed.contains(&format!("{SMALL}  (not counted: #1 ")) && !listed.contains(LARGE),
            "{listed}"
        );
        let logs = project.run(&["logs", "--failed"]).ends_with(0).stdout;
        assert!(logs.starts_with(&format!("==> {SMALL}#1 ")), "{logs}");
        // One word and one count, wherever it is said.
        let ended = project.run(&["build"]).ends_with(1).stderr;
        assert!(
            ended.contains("(1 not counted)") && ended.contains("ended well and do not count: 1 "),
            "{ended}"
        );
        for (command, told) in [
            (&["plan"][..], "2 cells (1 fresh, 1 not counted)".to_owned()),
            (&["plan"], format!("not counted  {SMALL}")),
            (
                &["show", "--stale", SMALL],
                format!("not counted  train {SMALL}#1"),
            ),
            (&["compare"], format!("no figures: {SMALL} (repeat 1 ")),
            (
                &["show", "--attempts", SMALL],
                "  does not count: ".to_owned(),
            ),
        ] {
            let said = project.run(command).ends_with(0).stdout;
            assert!(said.contains(&told), "{command:?}: {told}: {said}");
            assert!(!said.contains("contradicted:"), "{command:?}: {said}");
        }
        // Whoever wants them all the same gets them, once.
        assert_eq!(
            (project.build(&["--force=failed"]).code, project.launches()),
            (1, 6)
        );
        assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    }
}

/// Nothing of it is stored: what the log says now decides.
#[test]
fn a_log_that_is_read_otherwise_releases_the_repeats_that_were_not_started() {
    let project = one_at_a_time();
    project.write(
        "mood",
        "for s in 1 2 3 4; do echo \"it $s took 0.0$((5 + s)) loss 5.5\"; done; exit 0",
    );
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
    let patterns = r"'it (?P<step>\d+) took (?P<step_time_seconds>\S+) loss (?P<loss>\S+)'";
    project.edit(
        "recipes/cmd/recipe.toml",
        "format = \"any\"",
        &format!("format = \"regex\"\npatterns = [{patterns}]"),
    );
    let plan = project.plan(&[]);
    assert_eq!(plan[&format!("train {SMALL}#2")].state, "stale");
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 4), "{}", built.stderr);
    project.expect_nothing();
}
