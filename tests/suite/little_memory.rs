//! Hosts that limit the memory of a process: a log may be larger than it, and is there afterwards
//! whatever failed.

use tprimat::cache::TaskKind;

use crate::{
    damaged::log,
    kept::CELL,
    support::{ONE_RUN, Project, Ran},
};

const LINE: &str = "noise line of some words and numbers 12345";

/// A project whose one run left a log with so many lines of noise.
fn built(lines: usize) -> Project {
    let project = Project::new(ONE_RUN);
    let noise = format!("yes '{LINE}' | head -n {lines}\nfor step in");
    project.edit("trainer.sh", "for step in", &noise);
    project.run(&["build"]).ends_with(0);
    project
}

/// tprimat with at most so many MiB of addresses, whatever its threads take of them.
fn limited(project: &Project, mib: usize, arguments: &[&str]) -> Ran {
    let mut command = project.command("bash");
    let script = format!("ulimit -v {}; exec \"$@\"", mib << 10);
    command.args(["-c", &script, "bash", crate::support::TPRIMAT]);
    command.args(arguments).env("RAYON_NUM_THREADS", "2");
    command.env("MALLOC_ARENA_MAX", "1");
    command.output().unwrap().into()
}

#[test]
fn a_log_is_parsed_in_less_memory_than_it_has_and_is_left_where_there_is_none() {
    // 84 MiB.
    let project = built(1 << 21);
    let first = format!("{CELL}#1");
    let log = project.output(TaskKind::Train, &format!("train {first}"), "log");
    let mut mib = 20;
    loop {
        // The log has to be parsed again; a build may have ended between the result and the summary.
        let name = format!("aggregate {CELL}");
        let summary = project.output(TaskKind::Aggregate, &name, "summary.json");
        for made in [result_of(&project), summary] {
            if project.cache().has(&made) {
                project.lose(made);
            }
        }
        let built = limited(&project, mib, &["build"]);
        assert!(!built.stderr.contains("damaged"), "{mib} MiB: {built:?}");
        limited(&project, mib, &["show", CELL]);
        limited(&project, mib, &["cache", "verify"]);
        limited(
            &project,
            mib,
            &["cache", "export", &format!("{mib}.tar.zst")],
        );
        assert!(project.cache().is_sound(&log).unwrap(), "{mib} MiB");
        if built.code == Some(0) {
            break;
        }
        mib += mib / 5;
    }
    assert_eq!(project.launches(), 1);
    assert!(mib < 84, "{mib} MiB were needed");
    project.run(&["cache", "verify"]).ends_with(0);
    project.expect_nothing();
}

fn result_of(project: &Project) -> tprimat::digest::Digest {
    project.output(TaskKind::Parse, &format!("parse {CELL}#1"), "result.json")
}

/// A log is printed as it is read, so it may be larger than memory.
#[test]
fn whoever_looks_at_a_log_needs_no_memory_for_it() {
    // 11 MiB, more than there is beside what tprimat needs for itself.
    const LINES: usize = 1 << 18;
    let project = built(LINES);
    let imported = format!("{LINE}\n").repeat(LINES) + &log(0.1);
    project.write("run.log", &imported);
    project
        .run(&["import", "cpu/tran/tiny/one", "--log", "run.log"])
        .ends_with(0);
    // As much as tprimat needs for a small file.
    let needed =
        (20..).find(|mib| limited(&project, *mib, &["show", "--attempts", CELL]).code == Some(0));
    let mib = needed.unwrap() + 6;
    let shown = limited(&project, mib, &["logs", CELL]).ends_with(0);
    assert_eq!(shown.stdout.matches(LINE).count(), LINES);
    let shown = limited(&project, mib, &["logs", "cpu/tran/tiny/one"]).ends_with(0);
    assert!(shown.stdout == imported, "{}", shown.stderr);
}
