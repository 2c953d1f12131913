//! Folders that tprimat sweeps, locks in or writes to: nothing outside them is changed, whatever
//! lies in them.

use std::{fs, os::unix::fs::symlink, time::SystemTime};

use crate::arena::{Arena, mode_of, permit};

fn age(path: &std::path::Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH))
        .unwrap();
}

#[test]
fn a_committed_link_does_not_turn_a_sweep_on_the_home_folder() {
    let arena = Arena::new();
    let root = arena.project("project");
    let thesis = arena.write("home/new-thesis.tex", "x");
    age(&thesis);
    for name in [
        "tmp", "objects", "records", "texts", "made", "runs", "locks", "memos",
    ] {
        fs::create_dir_all(root.join("cache")).unwrap();
        symlink(arena.path("home"), root.join("cache").join(name)).unwrap();
        for command in [&["build"] as &[&str], &["import", "trainer.sh"], &["plan"]] {
            let ran = arena.run(&root, command);
            assert_eq!(ran.code, Some(2), "{name} {command:?}: {ran:?}");
        }
        assert_eq!(
            fs::read_dir(arena.path("home")).unwrap().count(),
            1,
            "{name}"
        );
        fs::remove_dir_all(root.join("cache")).unwrap();
    }
    assert!(thesis.exists());
}

#[test]
fn a_cache_is_not_made_of_a_folder_of_other_things() {
    let arena = Arena::new();
    let root = arena.project("project");
    let notes = arena.write("shared/tmp/notes.txt", "x");
    arena.write("shared/thesis.tex", "x");
    age(&notes);
    let config = fs::read_to_string(root.join("config.yaml")).unwrap();
    for (place, why) in [
        ("../shared", "is not a cache"),
        ("/", "must not be the project itself, or a folder above it"),
    ] {
        arena.write(
            "project/config.yaml",
            &format!("{config}paths:\n  cache: {place}\n"),
        );
        let ran = arena.run(&root, &["build"]);
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{ran:?}");
    }
    assert!(notes.exists());
    assert_eq!(
        fs::read_dir(arena.path("shared")).unwrap().count(),
        2,
        "nothing was made there"
    );
}

/// Whoever can put a template, a recipe or a matrix into a project chooses what its builds run.
#[test]
fn a_folder_that_every_user_can_write_to_chooses_nothing() {
    let arena = Arena::new();
    let root = arena.project("project");
    let recipe = "id = \"own\"\nname = \"x\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = [\"own.sh.j2\"]\n\
        command = [\"bash\", \"own.sh\"]\n[log]\nformat = \"tprimat\"\n";
    arena.write("project/recipes/own/recipe.toml", recipe);
    arena.write("project/templates/own.sh.j2", "true\n");
    arena.write("project/pipelines/other.toml", crate::support::ONE_RUN);
    assert_eq!(arena.run(&root, &["plan"]).code, Some(0));
    for name in [
        "recipes",
        "recipes/own",
        "recipes/own/recipe.toml",
        "templates",
        "templates/own.sh.j2",
        "pipelines",
    ] {
        let path = root.join(name);
        let mode = mode_of(&path);
        permit(&path, 0o777);
        for command in [&["plan"] as &[&str], &["build"]] {
            let ran = arena.run(&root, command);
            let is_refused = ran.code != Some(0) && ran.stderr.contains("every user of this host");
            assert!(is_refused, "{name} {command:?}: {ran:?}");
        }
        permit(&path, mode);
    }
    permit(&root.join("pipelines/other.toml"), 0o777);
    let ran = arena.run(&root, &["plan", "pipelines/other.toml"]);
    assert!(ran.stderr.contains("every user of this host"), "{ran:?}");
}

#[test]
fn a_link_in_place_of_the_folder_of_locks_opens_no_other_folder() {
    a_link_to_a_private_folder_is_refused(false);
}

/// `as_nobody`: the link is another user's.
pub fn a_link_to_a_private_folder_is_refused(as_nobody: bool) {
    let arena = Arena::new();
    let root = arena.project("project");
    let private = arena.path("home/private");
    fs::create_dir_all(&private).unwrap();
    permit(&private, 0o700);
    fs::create_dir(arena.path("shared")).unwrap();
    permit(&arena.path("shared"), 0o1777);
    let place = arena.path("shared/locks");
    arena.shell(
        &arena.path("shared"),
        &format!("ln -s {} locks", private.display()),
        as_nobody,
    );
    let env = [("TPRIMAT_LOCK_DIR", place.to_str().unwrap())];
    let ran = arena.run_with(&root, &["build"], &env);
    assert_eq!(mode_of(&private), 0o700);
    assert_eq!(fs::read_dir(&private).unwrap().count(), 0);
    assert!(
        ran.code != Some(0) && ran.stdout.contains("TPRIMAT_LOCK_DIR"),
        "{ran:?}"
    );
    // A folder of the caller's own serves, and stays as it is.
    let env = [("TPRIMAT_LOCK_DIR", private.to_str().unwrap())];
    let ran = arena.run_with(&root, &["build", "--force=failed"], &env);
    assert_eq!((ran.code, mode_of(&private)), (Some(0), 0o700), "{ran:?}");
}

#[test]
fn a_pipe_in_place_of_a_lock_is_waited_for_by_nobody() {
    a_pipe_as_a_lock_is_refused(false);
}

/// `as_nobody`: the pipe is another user's.
pub fn a_pipe_as_a_lock_is_refused(as_nobody: bool) {
    let arena = Arena::new();
    let root = arena.project("project");
    let locks = arena.path("device-locks");
    fs::create_dir(&locks).unwrap();
    permit(&locks, 0o1777);
    arena.shell(&locks, "umask 0; mkfifo -m 666 cpu.lock", as_nobody);
    let ran = arena.run(&root, &["build"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("not a lock file"),
        "{ran:?}"
    );
}
