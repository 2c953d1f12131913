//! Damage on either side of a remote cache: it is told, and what is whole takes its place.

use super::*;

#[test]
fn a_poisoned_run_is_told_and_measured_here() {
    let shared = Shared::new();
    let address = shared.address();
    let first = Project::new(ONE_RUN);
    first
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    let file = &shared.records()[0];
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(file, bytes).unwrap();
    let second = another(&first, ONE_RUN);
    let ran = second
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    assert!(ran.stderr.contains("is not what its name says"), "{ran:?}");
    assert_eq!(second.launches(), 1);
    let ran = second.run(&["cache", "pull", "--remote", &address]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn a_damaged_log_is_found_and_comes_back_from_the_remote() {
    let shared = Shared::new();
    let address = shared.address();
    let project = Project::new(ONE_RUN);
    project
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    let push = project.run(&["cache", "push", "--remote", &address]);
    assert!(push.ends_with(0).stdout.contains("0 runs pushed"));
    for object in files_below(&project.path("cache/objects")) {
        fs::remove_file(object).unwrap();
    }
    let ran = project.run(&["cache", "verify"]).ends_with(1);
    assert!(ran.stdout.contains("lost: `log` of"), "{ran:?}");
    let ran = project
        .run(&["cache", "pull", "--remote", &address])
        .ends_with(0);
    assert!(ran.stdout.contains("that this cache had lost"), "{ran:?}");
    project.run(&["cache", "verify"]).ends_with(0);
    project
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    assert_eq!(
        project.launches(),
        1,
        "a log that the remote had was measured again"
    );
}

/// The remote was asked while the log still seemed to be there.
#[test]
fn what_is_damaged_comes_back_before_its_cell_is_left_out_or_refused() {
    let shared = Shared::new();
    let address = shared.address();
    let project = Project::new(ONE_RUN);
    project
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    let first = format!("{CELL}#1");
    for limit in [&["--cached-only"][..], &["--max-gpu-hours", "0"]] {
        let log = project.output(TaskKind::Train, &format!("train {first}"), "log");
        project.damage(log);
        project.lose_result(&first).lose_summary(CELL);
        let shared = sharing(&address);
        let build = [&["build", "--require=complete", "--set", &shared], limit].concat();
        let ran = project.run(&build).ends_with(0);
        assert!(
            ran.stderr
                .contains("1 file that this cache had lost brought back"),
            "{ran:?}"
        );
        assert_eq!(project.launches(), 1);
    }
}

#[test]
fn a_damaged_run_of_the_remote_is_replaced_by_a_whole_one() {
    let shared = Shared::new();
    let address = shared.address();
    let project = Project::new(ONE_RUN);
    project
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    for file in shared.files() {
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    }
    let repair = ["cache", "push", "--repair", "--remote", &address];
    let ran = project.run(&repair).ends_with(0);
    assert!(
        ran.stdout.contains("was damaged, and replaced: records/"),
        "{ran:?}"
    );
    let ran = project.run(&repair).ends_with(0);
    assert_eq!(ran.stdout.matches("damaged, and").count(), 0, "{ran:?}");
    let second = another(&project, ONE_RUN);
    second
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    assert_eq!(second.launches(), 0);
}

#[test]
fn damage_in_the_remote_is_found_by_whoever_reads_it() {
    let shared = Shared::new();
    let address = shared.address();
    let project = Project::new(TWO_CELLS);
    project
        .run(&["build", "--set", &sharing(&address)])
        .ends_with(0);
    let verify = ["cache", "verify", "--remote", &address];
    let ran = project.run(&verify).ends_with(0);
    assert!(ran.stdout.contains("4 records of file://"), "{ran:?}");
    fs::write(&shared.records()[0], b"").unwrap();
    let ran = project.run(&verify).ends_with(1);
    assert!(
        ran.stdout.contains("damaged: records/") && ran.stdout.contains("is damaged"),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains("`tprimat cache push --repair` replaces what is damaged"),
        "{ran:?}"
    );
    // A host that lacks the run takes nothing in.
    let second = another(&project, TWO_CELLS);
    second.edit(
        "config.yaml",
        "benchmarking:",
        &format!("paths: {{ remote: '{address}' }}\nbenchmarking:"),
    );
    let ran = second
        .run(&["cache", "verify", "--remote", "--json"])
        .ends_with(1);
    let found = ran.json();
    assert_eq!(found["records"], 4, "{found}");
    assert_eq!(files_below(&second.path("cache/objects")).len(), 0);
    project
        .run(&["cache", "push", "--repair", "--remote", &address])
        .ends_with(0);
    project.run(&verify).ends_with(0);
}
