//! What is damaged in the cache costs what was in it, and nothing beside it.

use tprimat::{cache::TaskKind, digest::Digest};

use crate::support::{ONE_RUN, Project, Ran};

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
    for by_name in ["a.log", "record"] {
        let project = imports();
        let record = project
            .cache()
            .outputs(&tprimat::import::Imports::key())
            .unwrap();
        let record = record
            .iter()
            .find(|o| o.name.ends_with("one#1:import.json"));
        project.damage(match by_name {
            "record" => record.unwrap().digest,
            file => Digest::of(project.read(file)),
        });
        let listed = project.run(&["list"]).ends_with(0);
        assert!(words(&listed).contains(lost), "{listed:?}");
        assert!(listed.stdout.contains("b.log") && listed.stdout.contains("c.log"));
        let shown = project.run(&["compare", "--json"]).ends_with(0);
        assert!(words(&shown).contains(lost), "{shown:?}");
        assert_eq!(shown.json()["rows"].as_array().unwrap().len(), 2);
        project.run(&["report"]).ends_with(0);
        project.run(&["attempts", "cpu/tran/tiny/one"]).ends_with(0);
        // A backup without it does not pass for a whole one.
        let export = project
            .run(&["cache", "export", "part.tar.zst"])
            .ends_with(1);
        assert!(
            words(&export).contains("1 file of imports left out"),
            "{export:?}"
        );
        // The same file again mends it, under its number.
        let again = ["import", "cpu/tran/tiny/one", "--log", "a.log"];
        project.run(&again).ends_with(0);
        let listed = project.run(&["list"]).ends_with(0);
        assert!(!listed.stderr.contains("left out"), "{listed:?}");
        let first = project.run(&["show", "cpu/tran/tiny/one#1"]).ends_with(0);
        assert!(first.stdout.contains("a.log"), "{first:?}");
        project
            .run(&["cache", "export", "all.tar.zst"])
            .ends_with(0);
    }
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
    for command in ["compare", "list", "show", "gate", "report", "baseline"] {
        let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
        project.run(&["build"]).ends_with(0);
        project.run(&["baseline", "-o", "base.json"]).ends_with(0);
        let arguments = match command {
            "show" => vec![command, CELL],
            "gate" => vec![command, "--baseline", "base.json"],
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
                    "the summary of {CELL} is damaged in the cache; `tprimat cache verify --repair` removes it, and then `tprimat \
                     build` makes it again"
                )),
                "{command}: {ran:?}"
            );
            assert_eq!(ran.stdout, before.stdout, "{command}");
        }
        project.run(&["cache", "verify", "--repair"]).ends_with(0);
        project.run(&["build"]).ends_with(0);
        let mended = project.run(&arguments).ends_with(0);
        assert_eq!(mended.stdout, before.stdout, "{command}");
        assert!(!mended.stderr.contains("damaged"), "{mended:?}");
        assert_eq!(project.launches(), 3);
    }
}

#[test]
fn a_repair_ends_what_every_check_would_say_again() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let cells = project.run(&["compare", "--json"]).ends_with(0).stdout;
    project.lose_log(&format!("{CELL}#1"));
    let segment = project.names_in("cache/segments").remove(0);
    let path = project.path("cache/segments").join(segment);
    let mut bytes = std::fs::read(&path).unwrap();
    // The last record is of a table that the next build draws again.
    let at = bytes.len() - 8;
    bytes.extend_from_within(at - 8..at);
    let end = bytes.len();
    bytes.extend_from_within(..end - 16);
    bytes[end - 24..end].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    for _ in 0..2 {
        let ran = project.run(&["cache", "verify"]).ends_with(1);
        assert!(
            words(&ran).contains("`tprimat cache verify --repair` removes what is damaged"),
            "{ran:?}"
        );
    }
    let repair = ["cache", "verify", "--repair", "--json"];
    // Where the repair fails, what was found is told nevertheless.
    let (snapshot, kept) = (project.path("cache/snapshot"), project.path("cache/.kept"));
    let had_one = std::fs::rename(&snapshot, &kept).is_ok();
    std::fs::create_dir(&snapshot).unwrap();
    let ran = project.run(&["cache", "verify", "--repair"]).ends_with(2);
    assert!(ran.stdout.contains("damaged records: "), "{ran:?}");
    assert!(ran.stderr.contains("cannot write to the cache"), "{ran:?}");
    std::fs::write(&path, &bytes).unwrap();
    let json = project.run(&repair).ends_with(2).json();
    assert_ne!(json["damaged_records"], serde_json::json!([]));
    assert!(json["repair"].is_null() && json["repair_error"].is_string());
    std::fs::remove_dir(&snapshot).unwrap();
    if had_one {
        std::fs::rename(&kept, &snapshot).unwrap();
    }
    std::fs::write(&path, &bytes).unwrap();
    let ran = project.run(&["cache", "verify", "--repair"]).ends_with(0);
    assert!(ran.stdout.contains("damaged records: ") && ran.stdout.contains("lost: `log` of"));
    assert!(words(&ran).contains("1 file noted as lost"), "{ran:?}");
    std::fs::write(&path, &bytes).unwrap();
    let json = project.run(&repair).ends_with(0).json();
    assert_eq!(json["repair"]["cut"], json["damaged_records"]);
    assert_eq!(json["repair"]["left"], serde_json::json!([]));
    let ran = project.run(&["cache", "verify"]).ends_with(0);
    assert!(
        ran.stdout
            .contains("noted as lost by an earlier --repair: `log` of"),
        "{ran:?}"
    );
    assert_eq!(
        project.run(&["compare", "--json"]).ends_with(0).stdout,
        cells
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
}
