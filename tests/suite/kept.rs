//! What stays of a measurement: its repeats, its past, and what was set aside.

use std::fs;

use tprimat::cache::TaskKind;

use crate::support::{ONE_RUN, Project, until};

pub(crate) const CELL: &str = "cpu/cmd/tiny/single";

/// A table wide enough for every word to stay on one line.
fn wide(project: &Project, arguments: &[&str]) -> String {
    let ran: crate::support::Ran = project
        .tprimat(arguments)
        .env("COLUMNS", "500")
        .output()
        .unwrap()
        .into();
    ran.ends_with(0).stdout
}

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
            .run(&["attempts", cell, "--json"])
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

/// Six steps, two repeats; a run waits for `go` where the project has `wait`.
fn two_repeats() -> Project {
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
        .run(&["baseline", "--repeats", "3", "-o", "baseline.json"])
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
            speedup["labels"][0].as_str().unwrap().contains(WHY),
            "{speedup}"
        );
    }
    // A gate decides by present figures alone.
    let baseline = project.run(&["baseline", "--json"]);
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
        .run(&["attempts", CELL, "--json"])
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
    project.run(&["build", "--remeasure"]).ends_with(0);
    project.run(&["build", "--remeasure"]).ends_with(0);
    let table = wide(&project, &["compare", "--details"]);
    assert!(table.contains("2/2, measured anew"), "{table}");
    assert!(
        table.contains("repeats 1, 2 were measured again on request (--remeasure)")
            && table.contains("the 4 earlier results do not count"),
        "{table}"
    );
    assert!(project.read("output/compare.csv").contains("measured anew"));
    // It is the same state to whoever plans, builds or reads.
    assert_eq!(
        project.run(&["build", "--json"]).ends_with(0).json()["ran"],
        0
    );
    assert_eq!(project.launches(), 6);
    let attempts = project.run(&["attempts", CELL]).ends_with(0).stdout;
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
fn a_measurement_is_set_aside_for_a_reason_and_comes_back() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    let attempts =
        |of: &str| project.run(&["attempts", of, "--json"]).ends_with(0).json()["attempts"].clone();
    let id = attempts("cpu/cmd/tiny/single#2")[0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    project
        .run(&["attempts", "set-aside", &id, "--reason", "  "])
        .ends_with(2);
    project
        .run(&["attempts", "set-aside", "2999", "--reason", "x"])
        .ends_with(4);
    project
        .run(&[
            "attempts",
            "set-aside",
            &id,
            "--reason",
            "somebody compiled beside it",
        ])
        .ends_with(0);
    let plan = project.run(&["plan"]).stdout;
    assert!(
        plan.contains("the measurement was set aside (somebody compiled beside it)"),
        "{plan}"
    );
    let table = wide(&project, &["compare", "--details"]);
    assert!(
        table.contains("1/2, 1 still to be measured, 1 set aside"),
        "{table}"
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 3);
    let table = wide(&project, &["compare", "--details"]);
    assert!(
        table.contains("2/2, 1 set aside")
            && table.contains("set aside by hand: somebody compiled beside it"),
        "{table}"
    );
    // A gate rests on the same figures: it says so of them now, and its baseline says so ever
    // after.
    project
        .run(&["baseline", "-o", "baseline.json"])
        .ends_with(0);
    let gate = || {
        project
            .run(&[
                "gate",
                "--baseline",
                "baseline.json",
                "--max-regression",
                "3%",
            ])
            .stdout
    };
    let told = gate();
    for when in ["now", "in the baseline"] {
        assert!(
            told.contains(&format!("runs that do not count ({when}: 1 set aside)")),
            "{told}"
        );
    }
    assert_eq!(project.run(&["build", "--json"]).json()["ran"], 0);
    // Its log is there to be read.
    let log = project.run(&["logs", "--attempt", &id]).ends_with(0).stdout;
    assert!(log.contains("\"event\":\"end\""), "{log}");
    // As it was before: the first one counts, the later one is listed, and nothing is measured.
    project.run(&["attempts", "restore", &id]).ends_with(0);
    let of_second = attempts("cpu/cmd/tiny/single#2");
    assert_eq!(
        (&of_second[0]["counts"], &of_second[1]["counts"]),
        (&true.into(), &false.into())
    );
    assert!(!project.run(&["compare"]).stdout.contains("set aside"));
    let told = gate();
    assert!(
        !told.contains("(now: 1 set aside)") && told.contains("(in the baseline: 1 set aside)"),
        "{told}"
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 3);
    project.run(&["attempts", "restore", &id]).ends_with(1);
}

/// Also a cell of a matrix that is not the default one.
#[test]
fn a_run_of_another_matrix_is_set_aside_by_its_cell() {
    let project = two_repeats();
    project.write(
        "pipelines/other.toml",
        &project.read("matrix.toml").replace("\"one\"", "\"other\""),
    );
    project.write(
        "matrix.toml",
        &project.read("matrix.toml").replace("\"tiny\"", "\"large\""),
    );
    project.run(&["build", "other"]).ends_with(0);
    let named = [
        "attempts",
        "set-aside",
        "cpu/cmd/tiny/single#2",
        "other",
        "--reason",
        "the fan stood still",
    ];
    project.run(&named).ends_with(0);
    assert!(
        project
            .run(&["plan", "other"])
            .ends_with(0)
            .stdout
            .contains("the fan stood still")
    );
    project
        .run(&["attempts", "restore", "cpu/cmd/tiny/single#2", "other"])
        .ends_with(0);
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
    use std::os::unix::fs::PermissionsExt;
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "PATH=\"$TPRIMAT_PROJECT_DIR/bin:$PATH\" benchmark-launcher || exit 127\nfor step in",
    );
    let failed = project.run(&["build"]).ends_with(1);
    assert!(failed.stderr.contains("launch"), "{failed:?}");
    project.write("bin/benchmark-launcher", "#!/bin/sh\n");
    fs::set_permissions(
        project.path("bin/benchmark-launcher"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
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
    fs::remove_dir_all(project.path("cache/segments")).unwrap();
    let _ = fs::remove_file(project.path("cache/snapshot"));
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

#[test]
fn records_that_are_damaged_in_the_cache_are_told() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let ran = project.run(&["cache", "verify"]).ends_with(0);
    assert!(!ran.stdout.contains("damaged"), "{ran:?}");
    let name = project.names_in("cache/segments").remove(0);
    let path = project.path("cache/segments").join(&name);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 16].fill(0);
    fs::write(&path, bytes).unwrap();
    // The index that the build has left still has the record's place.
    let ran = project.run(&["plan"]).ends_with(0);
    assert_eq!(
        ran.stderr
            .matches("of the cache's records cannot be read")
            .count(),
        1,
        "{ran:?}"
    );
    let _ = fs::remove_file(project.path("cache/snapshot"));
    let warned = |ran: &crate::support::Ran| {
        ran.stderr.contains("of the cache's records cannot be read")
            && ran.stderr.contains("`tprimat cache verify` says where")
    };
    let first = project.run(&["plan"]).ends_with(0);
    assert!(warned(&first), "{first:?}");
    let second = project.run(&["plan"]).ends_with(0);
    assert!(!warned(&second), "{second:?}");
    let ran = project.run(&["cache", "verify"]).ends_with(1);
    assert!(ran.stdout.contains("damaged records: "), "{ran:?}");
    assert!(ran.stdout.contains(&format!("of segments/{name}")));
    assert!(ran.stderr.contains("`tprimat cache pull`"), "{ran:?}");
    let ran = project.run(&["cache", "verify", "--json"]).ends_with(1);
    let damaged = &ran.json()["damaged_records"][0];
    assert_eq!(damaged["file"], format!("segments/{name}"));
    let from = damaged["offset"].as_u64().unwrap();
    let to = from + damaged["bytes"].as_u64().unwrap();
    assert!((from..to).contains(&(middle as u64)), "{damaged}");
}

/// The index that a build leaves has the places of its records, and nobody reads them before they
/// are asked for.
#[test]
fn damage_that_is_met_late_is_told_before_anything_runs() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let name = project.names_in("cache/segments").remove(0);
    let path = project.path("cache/segments").join(name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[64..].iter_mut().for_each(|byte| *byte ^= 0xff);
    fs::write(&path, bytes).unwrap();
    let warning = "of the cache's records cannot be read";
    for command in [&["plan", "--tasks"][..], &["explain", CELL], &["compare"]] {
        let ran = project.run(command);
        assert_eq!(ran.stderr.matches(warning).count(), 1, "{ran:?}");
    }
    project.edit("config.yaml", "hardware:", "# asked anew\nhardware:");
    let ran = project.run(&["build"]).ends_with(0);
    let (told, started) = (ran.stderr.find(warning), ran.stderr.find(": started ("));
    assert!(told.is_some() && told < started, "{ran:?}");
}

#[test]
fn records_that_were_cut_off_are_told_until_they_are_made_anew() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    project.run(&["build"]).ends_with(0);
    let name = project.names_in("cache/segments").remove(0);
    let segment = fs::File::options()
        .write(true)
        .open(project.path("cache/segments").join(&name))
        .unwrap();
    segment
        .set_len(segment.metadata().unwrap().len() / 3)
        .unwrap();
    for _ in 0..2 {
        let ran = project.run(&["plan"]).ends_with(0);
        assert!(ran.stderr.contains("records cannot be read"), "{ran:?}");
        let ran = project.run(&["cache", "verify"]).ends_with(1);
        assert!(ran.stdout.contains("damaged records: "), "{ran:?}");
    }
    project.run(&["build"]).ends_with(0);
    let ran = project.run(&["plan"]).ends_with(0);
    assert!(!ran.stderr.contains("records cannot be read"), "{ran:?}");
}

#[test]
fn files_of_a_run_that_are_damaged_in_the_cache_are_named_with_the_run() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "seed=$(",
        "echo \"run $RANDOM$RANDOM\"\nseed=$(",
    );
    project.run(&["build"]).ends_with(0);
    let result = || project.output(TaskKind::Parse, &format!("parse {CELL}#1"), "result.json");
    // What was read from a log is read again.
    project.damage(result());
    let ran = project.run(&["cache", "verify"]).ends_with(1);
    let named = format!("`result.json` of parse {CELL}#1");
    assert!(ran.stdout.contains(&named), "{ran:?}");
    let why = "its result cannot be read";
    let shown = project.run(&["attempts", CELL]).ends_with(0).stdout;
    assert!(shown.contains(&format!("counts, but {why}")), "{shown}");
    let shown = wide(&project, &["history", CELL]);
    assert!(
        shown.contains(why) && shown.contains("reads its log again"),
        "{shown}"
    );
    project.run(&["build"]).ends_with(0);
    assert!(
        project
            .run(&["attempts", CELL])
            .stdout
            .ends_with("counts\n")
    );
    assert_eq!(project.launches(), 1);
    // A log alone is missed by nobody but those who ask for it.
    let log = project.run(&["logs", CELL]).ends_with(0).stdout;
    project.damage(tprimat::digest::Digest::of(&log));
    let ran = project.run(&["logs", CELL]).ends_with(1);
    assert!(
        ran.stderr.contains(&format!("`log` of {CELL}#1 (attempt"))
            && ran.stderr.replace('\n', " ").contains("cannot be read"),
        "{ran:?}"
    );
    assert!(
        project
            .run(&["attempts", CELL])
            .stdout
            .ends_with("counts\n")
    );
    // Both: the summary has what they said. Without it the run is made again, and the first one is
    // not called the later of the two.
    project.damage(result());
    let why = "its log and its result cannot be read";
    let shown = project.run(&["attempts", CELL]).ends_with(0).stdout;
    assert!(shown.contains(&format!("counts, but {why}")), "{shown}");
    let summary = format!("aggregate {CELL}");
    project.lose(project.output(TaskKind::Aggregate, &summary, "summary.json"));
    let missing = format!("does not count: {why}");
    let shown = project.run(&["attempts", CELL]).ends_with(0).stdout;
    assert!(shown.contains(&missing), "{shown}");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
    let shown = project.run(&["attempts", CELL]).ends_with(0).stdout;
    assert!(
        shown.contains(&missing) && shown.ends_with("counts\n"),
        "{shown}"
    );
}
