//! Records and files of the cache that are damaged or gone: who is told, when, and of what.

use std::{fs, path::PathBuf};

use tprimat::cache::TaskKind;

use crate::{
    kept::{CELL, wide},
    support::{ONE_RUN, Project, files_below, overwrite},
};

/// The record of the only run.
fn record(project: &Project) -> PathBuf {
    let records = files_below(&project.path("cache/records"));
    records.into_iter().find(|path| path.is_file()).unwrap()
}

const WARNING: &str = "what was recorded there does not count";

#[test]
fn a_damaged_record_is_told_before_anything_runs_and_nothing_of_it_is_removed() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    project.run(&["cache", "verify"]).ends_with(0);
    let path = record(&project);
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 16].fill(0);
    overwrite(&path, &bytes);
    let objects = files_below(&project.path("cache/objects"));
    let long_ago = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    for object in &objects {
        let file = fs::File::open(object).unwrap();
        file.set_times(long_ago).unwrap();
    }
    for command in [&["plan"][..], &["show", "--stale", CELL], &["compare"]] {
        let ran = project.run(command);
        assert_eq!(ran.stderr.matches(WARNING).count(), 1, "{ran:?}");
    }
    let ran = project.run(&["cache", "verify"]).ends_with(1);
    let told = format!("damaged: {}", path.display());
    assert!(ran.stdout.contains(&told), "{ran:?}");
    assert!(ran.stderr.contains("`tprimat cache pull`"), "{ran:?}");
    for command in [&["cache", "gc"][..], &["cache", "gc", "--dry-run"]] {
        let ran = project.run(command).ends_with(1);
        assert!(ran.stderr.contains("nothing was removed"), "{ran:?}");
    }
    assert_eq!(files_below(&project.path("cache/objects")), objects);
    let ran = project.run(&["build"]).ends_with(0);
    let (told, started) = (ran.stderr.find(WARNING), ran.stderr.find(": started ("));
    assert!(told.is_some() && told < started, "{ran:?}");
    assert_eq!(project.launches(), 2);
    // The file put back is the run again; removed, it keeps nobody from tidying.
    overwrite(&path, &whole);
    project.run(&["cache", "verify"]).ends_with(0);
    project.run(&["cache", "gc"]).ends_with(0);
    fs::remove_file(&path).unwrap();
    project.run(&["cache", "verify"]).ends_with(0);
    project.run(&["cache", "gc"]).ends_with(0);
}

/// It may be sound, and a run takes hours.
#[test]
fn a_record_that_cannot_be_read_now_starts_no_training() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let key = record(&project).parent().unwrap().to_owned();
    let kept = project.path("kept");
    fs::rename(&key, &kept).unwrap();
    fs::write(&key, "in the way").unwrap();
    let ran = project.run(&["build"]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("which was left as it is"), "{ran:?}");
    assert_eq!(project.launches(), 1);
    fs::remove_file(&key).unwrap();
    fs::rename(&kept, &key).unwrap();
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
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
    let shown = project
        .run(&["show", "--attempts", CELL])
        .ends_with(0)
        .stdout;
    assert!(shown.contains(&format!("counts, but {why}")), "{shown}");
    let shown = wide(&project, &["history", CELL]);
    assert!(
        shown.contains(why) && shown.contains("reads its log again"),
        "{shown}"
    );
    // Nobody needs it, so it stays until somebody removes the file.
    project.lose(result());
    project.run(&["build"]).ends_with(0);
    assert!(
        project
            .run(&["show", "--attempts", CELL])
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
            .run(&["show", "--attempts", CELL])
            .stdout
            .ends_with("counts\n")
    );
    // Both: the summary has what they said. Without it the run is made again, and the first one is
    // not called the later of the two.
    project.damage(result());
    let why = "its log and its result cannot be read";
    let shown = project
        .run(&["show", "--attempts", CELL])
        .ends_with(0)
        .stdout;
    assert!(shown.contains(&format!("counts, but {why}")), "{shown}");
    project.lose_log(&format!("{CELL}#1"));
    project.lose(result());
    let ran = project.run(&["show", &format!("{CELL}#1")]).ends_with(1);
    let said = ran.stderr.replace("\n", " ");
    assert!(
        said.contains("Repeat 1: counts, but its log and its result cannot be read"),
        "{ran:?}"
    );
    assert!(said.contains("--force=measured"), "{ran:?}");
    // One of other settings is said to be theirs.
    project.edit("config.yaml", "seq_length: 16", "seq_length: 8");
    let ran = project.run(&["show", &format!("{CELL}#1")]).ends_with(1);
    let said = ran.stderr.replace("\n", " ");
    let other = "Repeat 1: measured before seq_length changed from 16 to 8, but its log and its result cannot be read";
    assert!(
        said.contains(other) && !said.contains("--force=measured"),
        "{ran:?}"
    );
    project.edit("config.yaml", "seq_length: 8", "seq_length: 16");
    let summary = format!("aggregate {CELL}");
    project.lose(project.output(TaskKind::Aggregate, &summary, "summary.json"));
    let missing = format!("does not count: {why}");
    let shown = project
        .run(&["show", "--attempts", CELL])
        .ends_with(0)
        .stdout;
    assert!(shown.contains(&missing), "{shown}");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
    let shown = project
        .run(&["show", "--attempts", CELL])
        .ends_with(0)
        .stdout;
    assert!(
        shown.contains(&missing) && shown.ends_with("counts\n"),
        "{shown}"
    );
}

#[test]
fn a_measurement_whose_log_was_lost_is_not_called_unmeasured() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    fs::remove_dir_all(project.path("cache/objects")).unwrap();
    let shown = project.run(&["compare"]).ends_with(1).stdout;
    let why = "no repeat has a result; repeat 1 was measured, but its `log` is gone from";
    assert!(shown.contains(why), "{shown}");
    assert!(!shown.contains("not measured yet"), "{shown}");
}

/// Nothing is to do, so the build's own last look is the first to read the file.
#[test]
fn a_comparison_that_was_damaged_is_made_anew_by_the_build_that_finds_it() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let matrix = project.json(&["plan"])["matrix"].clone();
    let compare = format!("compare {}", matrix.as_str().unwrap());
    project.damage(project.output(TaskKind::Compare, &compare, "compare.json"));
    // What an earlier build remembered is not asked for.
    let ran = project.run(&["build"]).ends_with(0);
    assert!(ran.stderr.contains("measured"), "{ran:?}");
    // The same where a task that reads it is to be done.
    project.damage(project.output(TaskKind::Compare, &compare, "compare.json"));
    fs::remove_dir_all(project.path("output")).unwrap();
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    project.run(&["compare"]).ends_with(0);
}

/// No summary needs the result any more, but what is published has each repeat by itself.
#[test]
fn a_result_that_was_lost_is_published_from_its_log() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let name = project.names_in("output");
    let name = name.iter().find(|name| name.starts_with("train_")).unwrap();
    let before = project.read(&format!("output/{name}"));
    project.lose_result(&format!("{CELL}#1"));
    fs::remove_dir_all(project.path("output")).unwrap();
    project.run(&["build"]).ends_with(0);
    // Made of the same log, but not of what the cache has: the file says the same.
    assert_eq!(project.read(&format!("output/{name}")), before);
    assert_eq!(project.launches(), 1);
    // A report runs nothing, so it says what it leaves out.
    project.lose_result(&format!("{CELL}#1"));
    fs::remove_dir_all(project.path("output")).unwrap();
    let told = project.run(&["report"]).ends_with(0).stderr;
    let what = format!("no train_*.json is written of {CELL}");
    assert!(
        told.contains(&what) && told.contains("`tprimat build --cached-only`"),
        "{told}"
    );
    project.run(&["build", "--cached-only"]).ends_with(0);
    assert_eq!(project.read(&format!("output/{name}")), before);
    // Without its log a repeat is not made again for the file alone.
    project
        .lose_result(&format!("{CELL}#1"))
        .lose_log(&format!("{CELL}#1"));
    fs::remove_dir_all(project.path("output")).unwrap();
    let told = project.run(&["build"]).ends_with(0).stderr;
    let what = format!("{name} lacks repeat 1 of {CELL}");
    assert!(told.contains(&what), "{told}");
    assert_eq!(project.launches(), 1);
}
