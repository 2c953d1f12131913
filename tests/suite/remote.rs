//! Two hosts that share their runs through a remote cache, each with a cache and a checkout of its
//! own.

mod damage;

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Stdio};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use tprimat::cache::TaskKind;

use crate::kept::CELL;
use crate::support::{ONE_RUN, Project, files_below, until};

/// A folder that both hosts mount.
struct Shared(tempfile::TempDir);

impl Shared {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn address(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    fn files(&self) -> Vec<PathBuf> {
        files_below(self.0.path())
    }

    /// The records of runs.
    fn records(&self) -> Vec<PathBuf> {
        files_below(&self.0.path().join("records"))
    }
}

const TWO_CELLS: &str = r#"[matrix]
name = "two"
platform = "cpu"
framework = "cmd"
model = ["tiny", "wide"]
parallelism = "single"
repeats = 2
"#;

/// Another checkout of the same project, with its lock.
fn another(project: &Project, matrix: &str) -> Project {
    let other = Project::new(matrix);
    other.write("tprimat.lock", &project.read("tprimat.lock"));
    other
}

fn published(project: &Project) -> BTreeMap<PathBuf, Vec<u8>> {
    let output = project.path("output");
    let files = files_below(&output).into_iter();
    files
        .map(|path| {
            let bytes = fs::read(&path).unwrap();
            (path.strip_prefix(&output).unwrap().to_owned(), bytes)
        })
        .collect()
}

/// What `--set` is given for a build that shares its runs there.
fn sharing(address: &str) -> String {
    format!("paths.remote={address}")
}

#[test]
fn what_one_host_measured_the_other_publishes_byte_for_byte() {
    let shared = Shared::new();
    let build = ["build", "--set", &sharing(&shared.address())];
    let first = Project::new(TWO_CELLS);
    let ran = first.run(&build).ends_with(0);
    assert!(ran.stderr.contains("4 runs pushed to file://"), "{ran:?}");
    assert_eq!(first.launches(), 4);

    let second = another(&first, TWO_CELLS);
    let ran = second.run(&build).ends_with(0);
    assert!(ran.stderr.contains("4 runs pulled from file://"), "{ran:?}");
    assert_eq!(second.launches(), 0, "what was measured is measured again");
    assert_eq!(published(&first), published(&second));
}

#[test]
fn each_host_trains_its_part_and_both_end_with_the_whole() {
    let shared = Shared::new();
    let address = shared.address();
    let first = Project::new(TWO_CELLS);
    let tiny = [
        "build",
        "--set",
        &sharing(&address),
        "--only",
        "cpu/cmd/tiny",
    ];
    first.run(&tiny).ends_with(0);
    let second = another(&first, TWO_CELLS);
    second
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    first
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    assert_eq!((first.launches(), second.launches()), (2, 2));
    assert_eq!(published(&first), published(&second));
}

#[test]
fn a_build_of_some_cells_publishes_what_others_measured_of_the_rest() {
    let shared = Shared::new();
    let address = shared.address();
    let first = Project::new(TWO_CELLS);
    first
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    let second = another(&first, TWO_CELLS);
    let tiny = [
        "build",
        "--set",
        &sharing(&address),
        "--only",
        "cpu/cmd/tiny",
    ];
    second.run(&tiny).ends_with(0);
    assert_eq!(second.launches(), 0);
    assert_eq!(published(&first), published(&second));
    // Where runs are missing, it shows those that there are.
    let more = ["build", "--repeats", "3", "--only", "cpu/cmd/tiny"];
    second.run(&more).ends_with(0);
    let text = "2 of 3 repeats measured so far";
    let table = second.read("output/compare.txt");
    assert!(table.contains(text), "{table}");
}

/// What somebody decided of a run travels as well.
#[test]
fn a_run_that_was_set_aside_counts_on_no_host() {
    let shared = Shared::new();
    let address = shared.address();
    let first = Project::new(ONE_RUN);
    first
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    let cell = "cpu/cmd/tiny/single#1";
    first
        .run(&["cache", "set-aside", cell, "--reason", "a fan was broken"])
        .ends_with(0);
    first
        .run(&["cache", "push", "--remote", &address])
        .ends_with(0);
    let second = another(&first, ONE_RUN);
    second
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    assert_eq!(second.launches(), 1, "the run that was set aside counted");
}

#[test]
fn a_remote_that_is_absent_costs_one_note() {
    let shared = Shared::new();
    let project = Project::new(ONE_RUN);
    let absent = format!("{}/not-mounted", shared.address());
    let ran = project
        .run(&["build", "--set", &sharing(&absent)])
        .ends_with(0);
    assert_eq!(
        ran.stderr.matches("cannot be reached").count(),
        1,
        "{ran:?}"
    );
    assert!(ran.stderr.contains("`tprimat cache push`"), "{ran:?}");
    assert_eq!(project.launches(), 1);
    assert!(shared.files().is_empty(), "the folder was made");
    // A command of its own that cannot do what it is for fails.
    let ran = project.run(&["cache", "push", "--remote", &absent]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    // Once it is there, a build with nothing else to do shares what that one could not.
    fs::create_dir(shared.0.path().join("not-mounted")).unwrap();
    let ran = project
        .run(&["build", "--set", &sharing(&absent)])
        .ends_with(0);
    assert!(ran.stderr.contains("1 run pushed"), "{ran:?}");
    let ran = project
        .run(&["build", "--set", &sharing(&absent)])
        .ends_with(0);
    assert!(ran.stderr.contains("nothing to do"), "{ran:?}");
}

#[test]
fn an_address_in_config_yaml_is_checked_where_it_stands() {
    let project = Project::new(ONE_RUN);
    let config = project.read("config.yaml") + "paths: { remote: \"ftp://x/y\" }\n";
    project.write("config.yaml", &config);
    for command in [&["build"][..], &["cache", "pull"], &["check"]] {
        let ran = project.run(command).ends_with(2);
        assert!(ran.stderr.contains("config.yaml:"), "{ran:?}");
        assert!(ran.stderr.contains("is of an unknown kind"), "{ran:?}");
        assert!(ran.stderr.contains("s3://BUCKET/PREFIX"), "{ran:?}");
    }
    assert_eq!(project.launches(), 0);
    project
        .run(&["build", "--set", "paths.remote=none"])
        .ends_with(0);
}

#[test]
fn a_bundle_brings_runs_and_imports_to_another_cache() {
    let first = Project::new(TWO_CELLS);
    first.run(&["build"]).ends_with(0);
    first.write("a.log", include_str!("../fixtures/logs/primus.log"));
    let import = ["import", "amd/unknown/tiny/large", "--log", "a.log"];
    first.run(&import).ends_with(0);
    first.run(&["cache", "export", "runs.tar.zst"]).ends_with(0);
    let again = first.run(&["cache", "export", "runs.tar.zst"]).ends_with(2);
    assert!(again.stderr.contains("is there already"), "{again:?}");

    let second = another(&first, TWO_CELLS);
    fs::copy(first.path("runs.tar.zst"), second.path("runs.tar.zst")).unwrap();
    let ran = second
        .run(&["cache", "import", "runs.tar.zst"])
        .ends_with(0);
    assert!(ran.stdout.contains("new here: 4 runs, 1 import"), "{ran:?}");
    let plan = second.run(&["plan"]).ends_with(0).stdout;
    assert_eq!(
        plan.matches("measured; its figures are still to be made")
            .count(),
        2,
        "{plan}"
    );
    second.run(&["build"]).ends_with(0);
    assert_eq!(second.launches(), 0);
    first.run(&["build"]).ends_with(0);
    assert_eq!(published(&first), published(&second));
    let ran = second
        .run(&["cache", "import", "runs.tar.zst"])
        .ends_with(0);
    assert!(ran.stdout.contains("new here: 0 runs"), "{ran:?}");
}

#[test]
fn a_bundle_that_would_write_elsewhere_is_refused() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let before = files_below(project.folder());
    let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
    let name = "../../evil";
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    tar.append(&header, &b""[..]).unwrap();
    let bytes = tar.into_inner().unwrap().finish().unwrap();
    fs::write(project.path("evil.tar.zst"), bytes).unwrap();
    let ran = project
        .run(&["cache", "import", "evil.tar.zst"])
        .ends_with(2);
    assert!(ran.stderr.contains("../../evil"), "{ran:?}");
    project.remove("evil.tar.zst");
    assert_eq!(files_below(project.folder()), before);
    for file in ["config.yaml", "output"] {
        project.run(&["cache", "import", file]).ends_with(2);
    }
}

/// Whatever the limits, a build after `gc` trains nothing and publishes the same.
#[test]
fn gc_removes_nothing_that_was_measured() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let before = published(&project);
    let gc = ["cache", "gc", "--older-than", "0s"];
    let dry = project
        .run(&[&gc[..], &["--dry-run"]].concat())
        .ends_with(0);
    let ran = project.run(&gc).ends_with(0);
    assert!(dry.stdout.contains("would be removed"), "{dry:?}");
    assert!(!ran.stdout.starts_with("0 objects"), "{ran:?}");
    fs::remove_dir_all(project.path("output")).unwrap();
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    assert_eq!(published(&project), before);
    project.run(&["cache", "verify"]).ends_with(0);
    let stat = project
        .run(&["cache", "stat", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(stat["holds"]["runs"], 1);
}

#[test]
fn a_wrong_address_is_told_as_it_was_given() {
    let project = Project::new(ONE_RUN);
    for command in [
        &["cache", "push"][..],
        &["cache", "pull"],
        &["cache", "verify"],
    ] {
        let ran = project
            .run(&[command, &["--remote", "fil:///x"]].concat())
            .ends_with(2);
        let told = "--remote: the remote cache `fil:///x` is of an unknown kind";
        assert!(
            ran.stderr.contains(told) && !ran.stderr.contains("--set"),
            "{ran:?}"
        );
    }
}

#[test]
fn an_export_that_lacks_a_run_does_not_end_well_until_the_run_is_given_up() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    project.lose_log(&format!("{CELL}#1"));
    let ran = project.run(&["cache", "export", "a.tar.zst"]).ends_with(1);
    assert!(ran.stderr.contains("1 record left out"), "{ran:?}");
    let export = ["cache", "export", "b.tar.zst", "--json"];
    let json = project.run(&export).ends_with(1).json();
    assert_eq!(json["incomplete"], 1);
    fs::remove_dir_all(project.path("cache/records")).unwrap();
    project.run(&["cache", "export", "c.tar.zst"]).ends_with(0);
}

/// Holds a run, from the second one of a project on, while there is a file `hold`.
fn hold_the_second(project: &Project) {
    project.edit(
        "trainer.sh",
        "sleep 0.005",
        "while [ -e \"$TPRIMAT_PROJECT_DIR/hold\" ] && [ \"$(wc -l < \"$TPRIMAT_PROJECT_DIR/launches\")\" -ge 2 ]; do sleep 0.02; done; sleep 0.005",
    );
}

#[test]
fn a_build_with_nothing_to_do_sees_what_another_host_withdrew() {
    let shared = Shared::new();
    let address = shared.address();
    let build = ["build", "--set", &sharing(&address)];
    let first = Project::new(ONE_RUN);
    first.run(&build).ends_with(0);
    let ran = first.run(&build).ends_with(0);
    assert!(ran.stderr.contains("nothing to do"), "{ran:?}");
    let second = another(&first, ONE_RUN);
    second.run(&build).ends_with(0);
    let aside = ["cache", "set-aside", "cpu/cmd/tiny/single#1", "--reason"];
    second
        .run(&[&aside[..], &["a fan was broken"]].concat())
        .ends_with(0);
    second
        .run(&["cache", "push", "--remote", &address])
        .ends_with(0);
    first.run(&build).ends_with(0);
    assert_eq!(first.launches(), 2, "the run that was set aside counted");
    // So does a replacement.
    second.run(&build).ends_with(0);
    second
        .run(&[&build[..], &["--force=measured"]].concat())
        .ends_with(0);
    let ran = first.run(&build).ends_with(0);
    assert!(ran.stderr.contains("1 run, 1 decision pulled"), "{ran:?}");
    assert_eq!((first.launches(), second.launches()), (2, 1));
    assert_eq!(published(&first), published(&second));
}

#[test]
fn builds_at_the_same_time_share_each_run_when_it_ends() {
    let shared = Shared::new();
    let build = ["build", "--set", &sharing(&shared.address())];
    let first = Project::new(TWO_CELLS);
    hold_the_second(&first);
    first.write("hold", "");
    let mut child = first.tprimat(&build).spawn().unwrap();
    until("the second run is up", || first.launches() == 2);
    assert_eq!(shared.records().len(), 1, "the first run is not shared");
    let second = another(&first, TWO_CELLS);
    second.write("trainer.sh", &first.read("trainer.sh"));
    second.run(&build).ends_with(0);
    assert_eq!(second.launches(), 3, "the first run was measured again");
    first.remove("hold");
    assert!(child.wait().unwrap().success());
    assert_eq!(first.launches(), 2, "what was there by then ran again");
}

#[test]
fn an_interrupted_build_says_what_it_could_not_share() {
    let shared = Shared::new();
    let absent = format!("{}/not-mounted", shared.address());
    let project = Project::new(TWO_CELLS);
    hold_the_second(&project);
    project.write("hold", "");
    let child = project
        .tprimat(&["build", "--set", &sharing(&absent)])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the second run is up", || project.launches() == 2);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    let told = "1 finished run is not in the remote cache: `tprimat cache push` shares it";
    assert!(said.contains(told), "{said}");
}

#[test]
fn runs_that_were_pushed_before_it_broke_off_are_not_counted_as_unshared() {
    let shared = Shared::new();
    let mounted = shared.0.path().join("mounted");
    let project = Project::new(TWO_CELLS);
    hold_the_second(&project);
    project.write("hold", "");
    let planned = project.run(&["plan", "--json"]).ends_with(0).json();
    let tasks = planned["tasks"].as_array().unwrap();
    let train = tasks.iter().rfind(|task| task["kind"] == "train").unwrap();
    let child = project
        .tprimat(&[
            "build",
            "--set",
            &sharing(&format!("{}/mounted", shared.address())),
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the second run is up", || project.launches() == 2);
    // The disk comes back, somebody pushes the run that is over, and one of the other three cannot
    // be written.
    fs::create_dir_all(mounted.join("records")).unwrap();
    let address = format!("{}/mounted", shared.address());
    let push = project.run(&["cache", "push", "--remote", &address]);
    assert!(push.ends_with(0).stdout.contains("1 run pushed"));
    let key = train["key"].as_str().unwrap();
    std::os::unix::fs::symlink("nowhere", mounted.join("records").join(key)).unwrap();
    project.remove("hold");
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    let there = files_below(&mounted.join("records"))
        .iter()
        .filter(|path| path.is_file())
        .count();
    let told = match 4 - there {
        1 => "1 finished run is not in the remote cache".to_owned(),
        more => format!("{more} finished runs are not in the remote cache"),
    };
    assert!(said.contains(&told), "{told}: {said}");
}

#[test]
fn a_remote_that_is_absent_is_told_also_quietly_and_to_programs() {
    let shared = Shared::new();
    let absent = format!("{}/not-mounted", shared.address());
    let project = Project::new(ONE_RUN);
    let required = ["build", "--set", &sharing(&absent), "--require=remote"];
    let ran = project.run(&required).ends_with(2);
    assert!(ran.stderr.contains("cannot be reached"), "{ran:?}");
    assert_eq!(project.launches(), 0);
    let ran = project
        .run(&["build", "-q", "--set", &sharing(&absent)])
        .ends_with(0);
    assert!(ran.stderr.contains("warning: the remote cache"), "{ran:?}");
    let ran = project.run(&["build", "--json", "--set", &sharing(&absent)]);
    let remote = &ran.ends_with(0).json()["remote"];
    assert_eq!(remote["reached"], false, "{remote}");
    let ran = project.run(&["build", "--require=remote"]).ends_with(2);
    assert!(ran.stderr.contains("no remote cache"), "{ran:?}");
}

#[test]
fn a_run_that_started_earlier_replaces_the_one_that_was_measured_here() {
    let shared = Shared::new();
    let address = shared.address();
    let first = Project::new(ONE_RUN);
    first.run(&["build"]).ends_with(0);
    let second = another(&first, ONE_RUN);
    second.run(&["build"]).ends_with(0);
    first
        .run(&["cache", "push", "--remote", &address])
        .ends_with(0);
    second
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    assert_eq!(published(&first), published(&second));
}

#[test]
fn a_plan_says_that_it_did_not_ask_the_remote() {
    let shared = Shared::new();
    let project = Project::new(ONE_RUN);
    let set = format!("paths.remote={}", shared.address());
    let ran = project.run(&["plan", "--set", &set]).ends_with(0);
    assert!(ran.stderr.contains("was not asked"), "{ran:?}");
}

#[test]
fn a_remote_that_everybody_can_write_to_is_doubted() {
    let shared = Shared::new();
    let address = shared.address();
    let project = Project::new(ONE_RUN);
    fs::set_permissions(shared.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for command in [
        ["build", "-q", "--set", &sharing(&address)],
        ["cache", "pull", "--remote", &address],
    ] {
        let ran = project.run(&command).ends_with(0);
        let told = "can be written to by every user of this host";
        assert!(ran.stderr.contains(told), "{ran:?}");
    }
}

#[test]
fn what_is_no_bundle_is_refused_by_its_name() {
    let project = Project::new(ONE_RUN);
    let zeros = zstd::encode_all(&vec![0; 1 << 20][..], 1).unwrap();
    let empty = zstd::encode_all(&b""[..], 1).unwrap();
    for bytes in [zeros, empty, b"text".to_vec(), Vec::new()] {
        fs::write(project.path("runs.tar.zst"), bytes).unwrap();
        let import = ["cache", "import", "runs.tar.zst"];
        let ran = project.run(&import).ends_with(2);
        assert!(ran.stderr.contains("nothing was taken in"), "{ran:?}");
    }
}

#[test]
fn what_a_killed_push_left_goes_with_a_later_push() {
    let shared = Shared::new();
    let address = shared.address();
    let project = Project::new(ONE_RUN);
    project
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    let folder = shared.files()[0].parent().unwrap().to_owned();
    let day = std::time::Duration::from_secs(25 * 60 * 60);
    for (name, age) in [(".new-old", day), (".new-young", day / 25)] {
        let file = fs::File::create(folder.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - age)
            .unwrap();
    }
    let push = ["cache", "push", "--remote", &address];
    project.run(&push).ends_with(0);
    assert!(!folder.join(".new-old").exists());
    assert!(folder.join(".new-young").exists());
}

/// A history has no rate of a log that nobody here has read, so no warm-up is guessed for it.
#[test]
fn the_history_of_pulled_runs_says_that_nobody_has_read_their_logs() {
    let shared = Shared::new();
    let address = shared.address();
    let first = Project::new(TWO_CELLS);
    first
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    // Its matrix has one of the two cells.
    let second = another(&first, ONE_RUN);
    second
        .run(&["cache", "pull", "--remote", &address])
        .ends_with(0);
    let ran = second.run(&["history"]).ends_with(0);
    assert!(!ran.stderr.contains("warm-up"), "{ran:?}");
    assert!(!ran.stderr.contains("in no matrix"), "{ran:?}");
    assert!(
        ran.stdout.contains("no build here has read its log"),
        "{ran:?}"
    );
}
