//! What is damaged in the cache costs what was in it, and nothing beside it.

use tprimat::{cache::TaskKind, digest::Digest};

use crate::support::{ONE_RUN, Project, Ran, files_below, overwrite};

const CELL: &str = "cpu/cmd/tiny/single";

pub(crate) fn log(seconds: f64) -> String {
    let mut log = r#"{"event":"start","schema":"tprimat.events/1","trainer":"stub","effective":{"seq_length":16,"global_batch_size":2,"num_gpus":1}}"#.to_owned();
    for step in 1..=6 {
        log += &format!(
            "\n{{\"event\":\"step\",\"step\":{step},\"step_time_seconds\":{seconds}{step},\"loss\":2.5,\"tokens\":32}}"
        );
    }
    log + "\n{\"event\":\"end\",\"status\":\"ok\",\"steps\":6}\n"
}

/// A folder without a project, with two imports of one cell and one of another.
fn imports() -> Project {
    let project = Project::empty();
    for (file, cell, seconds) in [
        ("a.log", "cpu/tran/tiny/one", 0.1),
        ("b.log", "cpu/tran/tiny/one", 0.2),
        ("c.log", "cpu/tran/tiny/two", 0.3),
    ] {
        project.write(file, &log(seconds));
        let arguments = ["import", cell, "--log", file];
        project.run(&arguments).ends_with(0);
    }
    project
}

fn words(ran: &Ran) -> String {
    let words = ran.stderr.split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_damaged_import_is_named_and_the_others_are_shown() {
    let lost = "the import cpu/tran/tiny/one#1 is left out";
    let project = imports();
    project.damage(Digest::of(project.read("a.log")));
    let listed = project.run(&["list"]).ends_with(0);
    assert!(words(&listed).contains(lost), "{listed:?}");
    assert!(listed.stdout.contains("b.log") && listed.stdout.contains("c.log"));
    let shown = project.run(&["compare", "--json"]).ends_with(0);
    assert!(words(&shown).contains(lost), "{shown:?}");
    assert_eq!(shown.json()["rows"].as_array().unwrap().len(), 2);
    project.run(&["report"]).ends_with(0);
    project
        .run(&["show", "--attempts", "cpu/tran/tiny/one"])
        .ends_with(0);
    // A backup without it does not pass for a whole one.
    let part = ["cache", "export", "part.tar.zst"];
    let export = project.run(&part).ends_with(1);
    assert!(words(&export).contains("1 record left out"), "{export:?}");
    // The same file again mends it, under its number.
    let again = ["import", "cpu/tran/tiny/one", "--log", "a.log"];
    project.run(&again).ends_with(0);
    let listed = project.run(&["list"]).ends_with(0);
    assert!(!listed.stderr.contains("left out"), "{listed:?}");
    let first = project.run(&["show", "cpu/tran/tiny/one#1"]).ends_with(0);
    assert!(first.stdout.contains("a.log"), "{first:?}");
    let all = ["cache", "export", "all.tar.zst"];
    project.run(&all).ends_with(0);
}

/// Its record says of which cell it is, so only its place can be named.
#[test]
fn a_damaged_record_of_an_import_is_named_and_importing_the_file_again_mends_it() {
    let project = imports();
    let records = files_below(&project.path("cache/records"));
    let path = records
        .iter()
        .find(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("a.log")));
    let path = path.unwrap();
    overwrite(path, b"x");
    let listed = project.run(&["list"]).ends_with(0);
    assert!(words(&listed).contains("is damaged: what was recorded there does not count"));
    assert!(listed.stdout.contains("b.log") && listed.stdout.contains("c.log"));
    let again = ["import", "cpu/tran/tiny/one", "--log", "a.log"];
    project.run(&again).ends_with(0);
    let listed = project.run(&["list"]).ends_with(0);
    assert!(!listed.stderr.contains("damaged"), "{listed:?}");
    assert!(listed.stdout.contains("a.log"), "{listed:?}");
}

#[test]
fn a_folder_of_imports_needs_no_project_to_look_after_its_cache() {
    let project = imports();
    let log = project.run(&["logs", "cpu/tran/tiny/two"]).ends_with(0);
    assert_eq!(log.stdout, project.read("c.log"));
    for arguments in [
        &["cache", "stat"][..],
        &["cache", "verify"],
        &["cache", "gc"],
        &["cache", "export", "all.tar.zst"],
    ] {
        project.run(arguments).ends_with(0);
    }
    // These logs have no dates.
    let ran = project.run(&["history"]).ends_with(4);
    assert!(
        words(&ran).contains("do not say when the runs were made"),
        "{ran:?}"
    );
    let elsewhere = Project::empty();
    let ran = elsewhere.run(&["cache", "stat"]).ends_with(2);
    assert!(words(&ran).contains("there is no config.yaml"), "{ran:?}");
}

#[test]
fn whoever_only_looks_sums_up_the_results_of_a_damaged_summary_again() {
    for command in ["compare", "list", "show", "gate", "report", "write"] {
        let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
        project.run(&["build"]).ends_with(0);
        project.run(&["gate", "--write", "base.json"]).ends_with(0);
        let arguments = match command {
            "show" => vec![command, CELL],
            "gate" => vec![command, "--baseline", "base.json"],
            "write" => vec!["gate", "--write", "-"],
            command => vec![command],
        };
        let before = project.run(&arguments).ends_with(0);
        let task = format!("aggregate {CELL}");
        project.damage(project.output(TaskKind::Aggregate, &task, "summary.json"));
        // It is told as long as it is so.
        for _ in 0..2 {
            let ran = project.run(&arguments).ends_with(0);
            assert!(
                words(&ran).contains(&format!(
                    "the summary of {CELL} is damaged in the cache; `tprimat build` makes it again"
                )),
                "{command}: {ran:?}"
            );
            assert_eq!(ran.stdout, before.stdout, "{command}");
        }
        project.run(&["build"]).ends_with(0);
        let mended = project.run(&arguments).ends_with(0);
        assert_eq!(mended.stdout, before.stdout, "{command}");
        assert!(!mended.stderr.contains("damaged"), "{mended:?}");
        assert_eq!(project.launches(), 3);
    }
}
