//! Records and files of the cache that are damaged or gone: who is told, when, and of what.

use std::fs;

use tprimat::cache::TaskKind;

use crate::{
    kept::{CELL, wide},
    support::{ONE_RUN, Project},
};

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
    // A build may have left an index that still has the record's place.
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

#[test]
fn nothing_is_removed_as_nobodys_while_records_cannot_be_read() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let name = project.names_in("cache/segments").remove(0);
    let path = project.path("cache/segments").join(name);
    let whole = fs::read(&path).unwrap();
    let objects = crate::support::files_below(&project.path("cache/objects"));
    let long_ago = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    for object in &objects {
        let file = fs::File::open(object).unwrap();
        file.set_times(long_ago).unwrap();
    }
    let is_cut = |length: usize| fs::write(&path, &whole[..length]).unwrap();
    for length in [Some(whole.len() - 40), Some(whole.len() / 2), Some(0), None] {
        match length {
            Some(length) => is_cut(length),
            None => fs::remove_file(&path).unwrap(),
        }
        project.run(&["plan"]);
        for command in [&["cache", "gc"][..], &["cache", "gc", "--dry-run"]] {
            let ran = project.run(command).ends_with(1);
            assert!(ran.stderr.contains("cache verify --repair"), "{ran:?}");
        }
    }
    assert_eq!(
        crate::support::files_below(&project.path("cache/objects")),
        objects
    );
    is_cut(whole.len());
    project.run(&["cache", "gc"]).ends_with(0);
    project.run(&["cache", "verify"]).ends_with(0);
    // Given up, they keep nobody from tidying.
    is_cut(whole.len() / 2);
    project.run(&["cache", "verify", "--repair"]);
    project.run(&["cache", "gc"]).ends_with(0);
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
    // But the logs that they named are kept until somebody gives them up.
    project.run(&["cache", "verify"]).ends_with(1);
    project.run(&["cache", "gc", "--dry-run"]).ends_with(1);
    project.run(&["cache", "verify", "--repair"]);
    project.run(&["cache", "verify"]).ends_with(0);
    project.run(&["cache", "gc"]).ends_with(0);
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
    // Nobody needs it, so it stays until somebody repairs the cache.
    project.run(&["cache", "verify", "--repair"]).ends_with(0);
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
    project.run(&["cache", "verify", "--repair"]).ends_with(0);
    let ran = project.run(&["show", &format!("{CELL}#1")]).ends_with(1);
    let said = ran.stderr.replace("\n", " ");
    assert!(
        said.contains("#1` was measured, but its log and its result cannot be read"),
        "{ran:?}"
    );
    assert!(said.contains("--remeasure"), "{ran:?}");
    // One of other settings is said to be theirs.
    project.edit("config.yaml", "seq_length: 16", "seq_length: 8");
    let ran = project.run(&["show", &format!("{CELL}#1")]).ends_with(1);
    let said = ran.stderr.replace("\n", " ");
    let other = "was measured before seq_length changed from 16 to 8, but its log and its result cannot be read";
    assert!(
        said.contains(other) && !said.contains("--remeasure"),
        "{ran:?}"
    );
    project.edit("config.yaml", "seq_length: 8", "seq_length: 16");
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

#[test]
fn a_measurement_whose_log_was_lost_is_not_called_unmeasured() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    fs::remove_dir_all(project.path("cache/objects")).unwrap();
    let shown = project.run(&["compare"]).ends_with(1).stdout;
    let why = "no repeat has a result; repeat 1 was measured, but its `log` is gone from the cache";
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
    let ran = project.run(&["build", "--details"]).ends_with(0);
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
}

/// The next record fills the place of those that are gone, whoever writes it and however it ends.
#[test]
fn records_that_are_gone_are_noted_before_the_next_record_is_written() {
    use tprimat::cache::Cache;
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    project.run(&["build"]).ends_with(0);
    let name = project.names_in("cache/segments").remove(0);
    let path = project.path("cache/segments").join(name);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 3]).unwrap();
    let cache = Cache::open(&project.path("cache")).unwrap();
    for number in 0.. {
        cache.record_preimage(&format!("text {number}")).unwrap();
        if fs::metadata(&path).unwrap().len() > bytes.len() as u64 {
            break;
        }
    }
    // As a process that is killed leaves it: no snapshot says what is gone.
    std::mem::forget(cache);
    let ran = project.run(&["cache", "verify"]).ends_with(1);
    assert!(ran.stdout.contains("damaged records"), "{ran:?}");
    project.run(&["cache", "gc"]).ends_with(1);
}

#[test]
fn records_that_are_gone_and_others_that_are_damaged_are_given_up_at_once() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    project.run(&["build"]).ends_with(0);
    let name = project.names_in("cache/segments").remove(0);
    let path = project.path("cache/segments").join(name);
    let bytes = fs::read(&path).unwrap();
    let mut cut = bytes[..bytes.len() - 40].to_vec();
    cut[bytes.len() / 3..][..16].fill(0);
    fs::write(&path, cut).unwrap();
    // It notes what is gone, and records something new.
    project.run(&["build"]);
    project.run(&["cache", "verify"]).ends_with(1);
    let repaired = project.run(&["cache", "verify", "--repair"]);
    assert!(!repaired.stderr.contains("another tprimat"), "{repaired:?}");
    project.run(&["cache", "verify"]).ends_with(0);
}
