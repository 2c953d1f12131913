//! Objects and published files that are gone: made again where something needs them, and only then.

use std::process::Stdio;

use tprimat::cache::TaskKind;

use super::LATER;
use crate::{
    kept::CELL,
    support::{ONE_RUN, Project, Ran, files_below, tasks::SMALL, until},
};

#[test]
fn what_is_lost_and_needed_is_made_again() {
    let project = Project::built();
    let (first, aggregate) = (format!("{SMALL}#1"), format!("aggregate {SMALL}"));
    let parse = format!("parse {first}");
    // The log alone: its result is there.
    project.lose_log(&first);
    project.expect_nothing();
    // The summary alone.
    project.lose_summary(SMALL);
    project.expect(&[&aggregate, LATER], &[&aggregate]);
    // A result whose log is there.
    project.lose_result(&format!("{SMALL}#2"));
    let second = format!("parse {SMALL}#2");
    project.expect(&[&second, &aggregate, LATER], &[&second]);
    // The result whose log is lost, and the summary made of it: now it must be measured again.
    project.lose_result(&first).lose_summary(SMALL);
    let train = format!("train {first}");
    let all = [&train, &parse, &aggregate, LATER];
    project.expect(&all, &all);
    // What later tasks left.
    for (kind, task, name, stale) in [
        (TaskKind::Compare, "compare m", "compare.json", LATER),
        (TaskKind::Plot, "plot m", "compare.svg", "{plot,report} m"),
        (TaskKind::Report, "report m", "compare.txt", "report m"),
        (
            TaskKind::Render,
            &format!("render {SMALL}"),
            "cmd.sh",
            "render *",
        ),
    ] {
        project.lose(project.output(kind, task, name));
        project.expect(
            &[stale],
            &[if kind == TaskKind::Plot {
                "plot m"
            } else {
                stale.split_once(',').map_or(stale, |_| task)
            }],
        );
    }
}

#[test]
fn one_build_makes_what_is_damaged_again() {
    let project = Project::built();
    let (first, launches) = (format!("{SMALL}#1"), project.launches());
    let log = project.output(TaskKind::Train, &format!("train {first}"), "log");
    project.lose_result(&first).lose_summary(SMALL);
    project.damage(log);
    project.edit("config.yaml", "norm_eps: 1e-5", "norm_eps: 1e-6");
    // Nothing is trained where nothing may be.
    project.run(&["build", "--cached-only"]);
    assert_eq!(project.launches(), launches);
    // Both runs of the other model, and the lost one.
    project.run(&["build", "-j", "1"]).ends_with(0);
    assert_eq!(project.launches(), launches + 3);
    project.expect_nothing();
    // All that is under the comparison, which only its reader meets: one build, whatever is lost.
    let launches = project.launches();
    for object in files_below(&project.path("cache/objects")) {
        std::fs::remove_file(&object).unwrap();
        std::fs::write(&object, b"another text").unwrap();
    }
    project.remove("output/compare.png");
    let ran = project.run(&["build"]).ends_with(0);
    assert!(
        words_of(&ran).contains("of the cache had other bytes than were stored"),
        "{ran:?}"
    );
    assert_eq!(project.launches(), launches + 4);
    project.expect_nothing();
    // A summary alone.
    let summary = project.output(
        TaskKind::Aggregate,
        &format!("aggregate {SMALL}"),
        "summary.json",
    );
    project.damage(summary);
    project.edit("config.yaml", "per_gpu_hour: 1.00", "per_gpu_hour: 2.00");
    project.run(&["build"]).ends_with(0);
    project.expect_nothing();
    // Nor does the end of a build need these two, and what measures nothing is made anew at once.
    for name in ["compare.json", "uncounted.json"] {
        project.damage(project.output(TaskKind::Compare, "compare m", name));
        project.remove("output/compare.png");
        let ran = project.run(&["build"]).ends_with(0);
        assert!(!ran.stderr.contains("rror:"), "{name}: {ran:?}");
        project.expect_nothing();
    }
}

/// One build makes again what is needed of a run that failed for good, and no later one runs it.
#[test]
fn so_is_a_failed_run_whose_log_is_damaged() {
    let project = Project::new(ONE_RUN);
    let trainer = project.read("trainer.sh");
    let failing = "echo \"ModuleNotFoundError: No module named 'x'\" >&2; exit 1\n";
    project.write(
        "trainer.sh",
        &trainer.replace("seed=$(", &format!("{failing}seed=$(")),
    );
    project.run(&["build"]).ends_with(1);
    let (first, launches) = (format!("{CELL}#1"), project.launches());
    // While what was read from it is there, nobody needs the log.
    project.lose_log(&first);
    project.run(&["build"]).ends_with(1);
    assert_eq!(project.launches(), launches);
    let objects = files_below(&project.path("cache/objects"));
    for object in &objects {
        std::fs::remove_file(object).unwrap();
        std::fs::write(object, b"another text").unwrap();
    }
    project.remove("output/compare.txt");
    let plan = project.run(&["build", "--cached-only"]);
    assert_eq!(project.launches(), launches, "{plan:?}");
    for _ in 0..2 {
        let ran = project.run(&["build"]).ends_with(1);
        assert!(ran.stdout.contains("failed (import)"), "{ran:?}");
        assert_eq!(project.launches(), launches + 1, "{ran:?}");
    }
}

fn words_of(ran: &Ran) -> String {
    ran.stderr.replace('\n', " ")
}

#[test]
fn what_is_set_aside_during_a_build_is_missed_by_the_next_one() {
    let project = Project::built();
    let launches = project.launches();
    project.edit("config.yaml", "norm_eps: 1e-5", "norm_eps: 1e-6");
    project.write(
        "mood",
        "until [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.02; done",
    );
    let mut build = project.tprimat(&["build"]);
    let mut build = build
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("a run", || project.launches() > launches);
    let first = format!("{SMALL}#1");
    project
        .run(&["cache", "set-aside", &first, "--reason", "a test"])
        .ends_with(0);
    project.write("go", "");
    assert!(build.wait().unwrap().success());
    // That build had judged the run before, and has since read that it does not count.
    let again = project.run(&["build", "--json"]).ends_with(0);
    assert_ne!(again.json()["ran"], 0, "{again:?}");
    assert_eq!(project.launches(), launches + 3);
    project.expect_nothing();
}

#[test]
fn a_log_and_its_result_are_not_measured_again_while_their_summary_is_there() {
    let project = Project::built();
    let first = format!("{SMALL}#1");
    project.lose_log(&first).lose_result(&first);
    project.expect_nothing();
    // When the comparison is due again, the summary is all it needs.
    project.edit("config.yaml", "per_gpu_hour: 1.00", "per_gpu_hour: 2.00");
    project.expect(&[LATER], &[LATER]);
    // Other statistics need the results, and this one has to be measured again.
    project.edit("config.yaml", "skip_steps: 1", "skip_steps: 2");
    let (train, parse) = (format!("train {first}"), format!("parse {first}"));
    let all = [&train, &parse, "aggregate *", LATER];
    project.expect(&all, &all);
}

#[test]
fn a_run_whose_lines_lost_their_dates_is_not_measured_again() {
    let project = Project::built();
    let first = format!("{SMALL}#1");
    project.lose(project.output(TaskKind::Train, &format!("train {first}"), "times"));
    project.expect_nothing();
    project.lose_result(&first);
    // Its step times are held against less.
    let derived = [
        &format!("parse {first}"),
        &format!("aggregate {SMALL}"),
        LATER,
    ];
    project.expect(&derived, &derived);
}

#[test]
fn what_was_published_is_published_again() {
    let project = Project::built();
    project.remove("output/train_cpu_cmd_small.json");
    project.expect(&["report m"], &["report m"]);
    project.write("output/compare.txt", "nonsense");
    project.expect(&["report m"], &["report m"]);
    assert!(project.read("output/compare.txt").contains(SMALL));
    let config = project.read("config.yaml");
    project.write(
        "config.yaml",
        &(config + "\npaths: { output: elsewhere }\n"),
    );
    project.expect(&["report m"], &["report m"]);
    assert!(
        project.path("elsewhere/compare.png").is_file()
            && project.path("elsewhere/plot_throughput.svg").is_file()
    );
}
