//! Attacks of another user of the host: root is attacked by nobody.

use std::fs;

use crate::{
    arena::{Arena, give_away, mode_of, permit},
    files::{PRIVATE, is_nowhere, plant},
    folders::{a_link_to_a_private_folder_is_refused, a_pipe_as_a_lock_is_refused},
    programs::{LOG, READING, hostile_project},
};

#[test]
#[ignore = "acts as a second user, which needs root: `make test-services`"]
fn a_run_that_another_user_planted_is_not_taken_in() {
    let arena = Arena::new();
    let root = arena.project("project");
    assert_eq!(arena.run(&root, &["build"]).code, Some(0));
    let log = plant(&arena, &root, "00evil");
    fs::write(&log, PRIVATE).unwrap();
    give_away(&root.join("cache/runs/00evil"));
    arena.run(&root, &["build", "--cached-only"]);
    is_nowhere(PRIVATE, &root.join("cache/objects"));
    assert!(
        log.exists(),
        "it is another user's, to take in or to remove"
    );
}

#[test]
#[ignore = "acts as a second user, which needs root: `make test-services`"]
fn a_link_of_another_user_in_place_of_the_folder_of_locks_opens_no_other_folder() {
    a_link_to_a_private_folder_is_refused(true);
}

#[test]
#[ignore = "acts as a second user, which needs root: `make test-services`"]
fn a_pipe_of_another_user_in_place_of_a_lock_is_waited_for_by_nobody() {
    a_pipe_as_a_lock_is_refused(true);
}

#[test]
#[ignore = "acts as a second user, which needs root: `make test-services`"]
fn a_project_of_another_user_is_refused() {
    let arena = Arena::new();
    let root = hostile_project(&arena);
    arena.program(
        "project/.venv/bin/python",
        &format!("#!/bin/sh\nid >{}\n", arena.path("mark").display()),
    );
    fs::create_dir(root.join("mine")).unwrap();
    give_away(&root);
    // The caller's own folder lies below it.
    std::os::unix::fs::chown(root.join("mine"), Some(0), Some(0)).unwrap();
    arena.write("project/mine/any.log", LOG);
    for command in READING.iter().chain(
        [
            &["build"] as &[&str],
            &["cache", "clean"],
            &["container", "build", "cmd"],
        ]
        .iter(),
    ) {
        let ran = arena.run(&root.join("mine"), command);
        assert!(
            ran.stderr.contains("belongs to the user nobody") || ran.code == Some(2),
            "{command:?}: {ran:?}"
        );
        assert!(
            !root.join("cache").exists() && !arena.path("mark").exists(),
            "{command:?}"
        );
    }
    let ran = arena.run(&root.join("mine"), &["plan"]);
    assert!(
        ran.stderr.contains("TPRIMAT_SAFE_DIRECTORY="),
        "it says how to go on: {ran:?}"
    );
    let trusted = root.to_str().unwrap().to_owned();
    let ran = arena.run_with(
        &root.join("mine"),
        &["check"],
        &[("TPRIMAT_SAFE_DIRECTORY", &trusted)],
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // Its own owner may.
    let ran = arena.run_as_nobody(&root, &["check"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // One's own config.yaml in a folder where everybody may put a matrix beside it is no better.
    let open = arena.project("open");
    permit(&open, 0o1777);
    let ran = arena.run(&open, &["plan"]);
    assert!(ran.stderr.contains("every user of this host"), "{ran:?}");
}

#[test]
#[ignore = "acts as a second user, which needs root: `make test-services`"]
fn a_lock_made_by_one_user_serves_the_other() {
    let arena = Arena::new();
    let (mine, theirs) = (arena.project("mine"), arena.project("theirs"));
    give_away(&theirs);
    fs::create_dir_all(arena.path("home")).unwrap();
    arena.shell(
        &mine,
        &format!("umask 077; {} build", arena.path("bin/tprimat").display()),
        false,
    );
    assert_eq!(mode_of(&arena.path("device-locks/cpu.lock")), 0o666);
    let ran = arena.run_as_nobody(&theirs, &["build"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
