//! Builds without a terminal: started, looked at, followed, ended; and what is run at the end.

mod support;

use std::{os::unix::process::CommandExt, process::Stdio};

use support::{ONE_RUN, Project, TRAINER, until};

/// Trains once there is a file `go`.
fn project() -> Project {
    let project = Project::new(ONE_RUN);
    let wait = "echo up > \"$TPRIMAT_PROJECT_DIR/up\"\nuntil [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.02; done\n";
    project.write("trainer.sh", &format!("{wait}{TRAINER}"));
    project
}

fn state(project: &Project) -> serde_json::Value {
    project.run(&["status", "--json"]).ends_with(0).json()[0].clone()
}

#[test]
fn a_detached_build_outlives_its_terminal_and_is_followed_to_its_end() {
    let project = project();
    let notify = "echo \"$TPRIMAT_EXIT_CODE $TPRIMAT_FAILED\" > notified";
    // In a session of its own, which is then hung up as a closed terminal is.
    let mut terminal = project.tprimat(&["build", "--detach", "--notify", notify]);
    let started: support::Ran = terminal.process_group(0).output().unwrap().into();
    assert!(started.ends_with(0).stderr.contains("tprimat attach"));
    until("the trainer is up", || project.path("up").exists());
    let now = state(&project);
    assert_eq!((now["state"].as_str(), now["exit_code"].as_i64()), (Some("running"), None), "{now}");
    let text = project.run(&["status"]).ends_with(0).stdout;
    assert!(text.contains("running since") && text.contains("cpu/cmd/tiny/single#1"), "{text}");
    let attached = project.tprimat(&["attach"]).stdout(Stdio::piped()).spawn().unwrap();
    project.write("go", "");
    let attached: support::Ran = attached.wait_with_output().unwrap().into();
    let said = attached.ends_with(0).stdout;
    assert!(said.contains("ok, 0 failed"), "{said}");
    let now = state(&project);
    assert_eq!((now["state"].as_str(), now["exit_code"].as_i64()), (Some("ended"), Some(0)), "{now}");
    assert_eq!(project.read("notified").trim(), "0 0");
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_detached_build_is_stopped_and_leaves_nothing() {
    let project = project();
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    project.run(&["stop"]).ends_with(0);
    assert_eq!(project.processes(), []);
    let now = state(&project);
    assert_eq!((now["state"].as_str(), now["exit_code"].as_i64()), (Some("ended"), Some(143)), "{now}");
    assert!(project.run(&["stop"]).ends_with(0).stderr.contains("over already"));
}

#[test]
fn what_is_wrong_is_told_before_the_terminal_is_let_go_and_a_death_is_told_later() {
    let project = project();
    assert!(project.run(&["attach"]).ends_with(4).stderr.contains("no build was detached here"));
    project.edit("matrix.toml", "model = \"tiny\"", "model = \"tyni\"");
    let refused = project.run(&["build", "--detach"]).ends_with(2);
    assert!(refused.stderr.contains("did you mean"), "{}", refused.stderr);
    project.edit("matrix.toml", "model = \"tyni\"", "model = \"tiny\"");
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer is up", || project.path("up").exists());
    let pid = i32::try_from(state(&project)["pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    until("its death is seen", || state(&project)["state"] == "died");
    assert!(project.run(&["attach"]).ends_with(1).stderr.contains("died without a word"));
    let failed = project.run(&["build", "--notify", "echo $TPRIMAT_EXIT_CODE > notified", "--set", "nonsense=1"]);
    assert_eq!(project.read("notified").trim(), failed.code.unwrap().to_string());
}

#[test]
fn the_doctor_names_what_is_missing_and_starts_nothing() {
    let project = project();
    let page = project.run(&["doctor"]).ends_with(0).stdout;
    assert!(page.contains("containers") && page.contains("1 of 1 cells can be measured on this host now"), "{page}");
    project.write("go", "");
    project.run(&["build"]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let cores = lock.lines().find(|line| line.starts_with("cores = ")).expect("cores are pinned");
    project.edit("tprimat.lock", cores, "cores = 4096");
    let found = project.run(&["doctor", "--json"]).ends_with(0).json();
    let problem = found.as_array().unwrap().iter().find(|f| f["topic"] == "cells" && f["state"] == "problem");
    let problem = problem.unwrap_or_else(|| panic!("{found}"));
    assert!(problem["help"].as_str().is_some_and(|help| help.contains("lock --update")), "{problem}");
    assert_eq!(project.launches(), 1);
    // Without a project the host alone is looked at.
    let nowhere = Project::empty();
    assert!(nowhere.run(&["doctor"]).ends_with(0).stdout.contains("tprimat init"));
}
