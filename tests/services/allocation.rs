//! Builds within an allocation that somebody holds.

use std::process::Stdio;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    eventually,
    fixtures::slurm::Cluster,
    slurm::waits,
    support::{Ran, TPRIMAT, TRAINER, mock},
};

/// `salloc` of so many nodes, with a build in it.
fn salloc(cluster: &Cluster, nodes: &str, time: &str, build: &[&str]) -> std::process::Command {
    let mut command = cluster.project.command("salloc");
    command
        .env("SLURM_CONF", cluster.folder.join("slurm.conf"))
        .args([
            "--quiet",
            nodes,
            time,
            TPRIMAT,
            "build",
            "--executor",
            "allocation",
        ])
        .args(build);
    command
}

#[test]
fn each_run_is_a_step_of_the_allocation_and_no_job_of_its_own() {
    let cluster = Cluster::new(&format!(
        "echo \"$SLURM_JOB_ID\" >> \"$TPRIMAT_PROJECT_DIR/jobs\"\n{TRAINER}"
    ));
    cluster
        .project
        .edit("matrix.toml", "repeats = 1", "repeats = 3");
    let outside = cluster
        .run(&["build", "--executor", "allocation"])
        .ends_with(1);
    assert!(
        outside.stderr.contains("SLURM_JOB_ID is not set"),
        "{}",
        outside.stderr
    );
    let ran: Ran = salloc(&cluster, "--nodes=1", "--time=10", &[])
        .output()
        .unwrap()
        .into();
    ran.ends_with(0);
    assert_eq!((cluster.jobs().len(), cluster.project.launches()), (1, 3));
    cluster.run(&["build"]).ends_with(0);
    assert_eq!(
        (cluster.jobs().len(), cluster.project.launches()),
        (1, 3),
        "an allocation measures for everybody"
    );
}

#[test]
fn a_build_that_is_killed_in_its_allocation_leaves_nothing_there() {
    let cluster = Cluster::new(&waits());
    let mut allocation = salloc(&cluster, "--nodes=1", "--time=10", &[])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the trainer runs", 40, || {
        cluster.project.path("up").exists()
    });
    let processes = cluster.project.processes();
    let build = processes
        .iter()
        .find(|(_, line)| line.starts_with(&format!("{TPRIMAT} build")))
        .unwrap_or_else(|| panic!("{processes:?}"));
    kill(Pid::from_raw(build.0), Signal::SIGKILL).unwrap();
    allocation.wait().unwrap();
    eventually("nothing of the run is left", 20, || {
        let left = cluster.project.processes();
        left.iter()
            .all(|(_, line)| !line.contains("trainer.sh") && !line.contains("__run"))
    });
    cluster.project.write("go", "");
    let ran: Ran = salloc(&cluster, "--nodes=1", "--time=10", &[])
        .output()
        .unwrap()
        .into();
    ran.ends_with(0);
}

#[test]
fn a_run_that_does_not_fit_into_what_is_left_is_not_begun() {
    let cluster = Cluster::new(&format!("sleep 2\n{TRAINER}"));
    cluster.run(&["build"]).ends_with(0);
    // Slurm counts limits in minutes; this one says that the allocation ends at once.
    let real = crate::tool("which", &["squeue"], "slurm-wlm");
    let real = String::from_utf8_lossy(&real.stdout).trim().to_owned();
    mock::program(
        &cluster.project.path("bin/squeue"),
        format!("#!/bin/sh\ncase \"$*\" in *%L*) echo 0:01 ;; *) exec {real} \"$@\" ;; esac\n"),
    );
    let path = std::env::var("PATH").unwrap();
    let bin = cluster.project.path("bin");
    // Another repeat takes as long as the first one did.
    let ran: Ran = salloc(&cluster, "--nodes=1", "--time=10", &["--repeats", "2"])
        .env("PATH", format!("{}:{path}", bin.display()))
        .output()
        .unwrap()
        .into();
    assert!(
        ran.stderr.contains("the allocation ends in 1 s"),
        "{}",
        ran.stderr
    );
    assert_eq!((ran.code, cluster.project.launches()), (Some(1), 1));
}
