//! Runs as jobs of a Slurm cluster of two nodes.

use std::{
    fs,
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    eventually,
    fixtures::slurm::{Cluster, PACKAGES},
    support::{Ran, TRAINER, mock},
    tool,
};

/// The stub trainer, which waits for `go` first.
pub fn waits() -> String {
    let wait = "echo up > \"$TPRIMAT_PROJECT_DIR/up\"\nuntil [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.05; done\n";
    format!("{wait}{TRAINER}")
}

#[test]
fn a_build_runs_as_jobs_on_both_nodes_and_each_run_is_one_job() {
    let trainer =
        format!("echo $$ >> \"$TPRIMAT_PROJECT_DIR/pids\"\necho \"token: $HF_TOKEN\"\n{TRAINER}");
    let cluster = Cluster::new(&trainer);
    cluster
        .project
        .edit("matrix.toml", "repeats = 1", "repeats = 4");
    cluster.config("max_jobs: 2");
    let ran = cluster.run(&["build"]).ends_with(0);
    assert!(
        ran.stderr.contains("Slurm job"),
        "the queue is told: {}",
        ran.stderr
    );
    assert_eq!(
        (cluster.jobs().len(), cluster.project.launches()),
        (4, 4),
        "{:?}",
        cluster.jobs()
    );
    let nodes = cluster.says("squeue", &["--noheader", "--states=all", "--format=%N"]);
    assert!(
        nodes.contains("n1") && nodes.contains("n2"),
        "two at once: {nodes}"
    );
    let log = cluster
        .run(&["logs", "cpu/cmd/tiny/single#1"])
        .ends_with(0)
        .stdout;
    assert!(
        log.contains("token: ****") && !log.contains("hf_not"),
        "{log}"
    );
    assert!(
        cluster
            .run(&["build"])
            .ends_with(0)
            .stderr
            .contains("nothing to do")
    );
    let here = cluster.run(&["build", "--executor", "local"]).ends_with(0);
    assert!(
        !here.stderr.contains("started"),
        "what a node measured serves everybody: {}",
        here.stderr
    );
    assert_eq!(
        cluster
            .project
            .names_in("cache/runs")
            .iter()
            .filter(|name| !name.starts_with('.'))
            .count(),
        0
    );
    // Slurm has kept the script, and nothing secret.
    for file in crate::support::files_below(&cluster.folder) {
        let bytes = fs::read(&file).unwrap_or_default();
        assert!(
            !bytes.windows(6).any(|part| part == b"hf_not"),
            "{}",
            file.display()
        );
    }
}

#[test]
fn the_next_build_takes_up_the_job_of_one_that_was_killed_or_interrupted() {
    let cluster = Cluster::new(&waits());
    let mut build = cluster.started();
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    // Ctrl-C leaves the job alone, too, and says so.
    let mut build = cluster
        .tprimat(&["build"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let said = std::thread::spawn({
        let mut stderr = build.stderr.take().unwrap();
        move || std::io::read_to_string(&mut stderr).unwrap()
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(build.wait().unwrap().code(), Some(130));
    let said = said.join().unwrap();
    assert!(
        said.contains("took up the run") && said.contains("goes on"),
        "{said}"
    );
    assert!(
        cluster.jobs()[0].contains("RUNNING"),
        "{:?}",
        cluster.jobs()
    );
    cluster.project.write("go", "");
    cluster.run(&["build"]).ends_with(0);
    assert_eq!(
        (cluster.jobs().len(), cluster.project.launches()),
        (1, 1),
        "nothing was submitted twice"
    );
}

#[test]
fn all_jobs_of_a_killed_build_are_taken_up_those_that_wait_as_well() {
    let cluster = Cluster::new(&waits());
    cluster
        .project
        .edit("matrix.toml", "repeats = 1", "repeats = 4");
    cluster.config("max_jobs: 4");
    let mut build = cluster.started();
    eventually("all are submitted", 20, || cluster.jobs().len() == 4);
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    let mut build = cluster
        .tprimat(&["build"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    cluster.project.write("go", "");
    assert_eq!(build.wait().unwrap().code(), Some(0));
    assert_eq!(
        (cluster.jobs().len(), cluster.project.launches()),
        (4, 4),
        "{:?}",
        cluster.jobs()
    );
}

#[test]
fn a_job_that_ends_while_nobody_waits_is_taken_in() {
    let cluster = Cluster::new(&waits());
    let mut build = cluster.started();
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    cluster.project.write("go", "");
    eventually("the job ends", 30, || {
        cluster.jobs()[0].contains("COMPLETED")
    });
    let ran = cluster.run(&["build"]).ends_with(0);
    assert!(
        ran.stderr
            .contains("took in a run that an earlier build left"),
        "{}",
        ran.stderr
    );
    assert_eq!((cluster.jobs().len(), cluster.project.launches()), (1, 1));
}

#[test]
fn a_submission_whose_answer_was_lost_is_not_repeated() {
    let cluster = Cluster::new(&waits());
    let mut build = cluster.started();
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    // As if tprimat had died between sbatch's answer and its own note of it.
    let runs = cluster
        .project
        .names_in("cache/runs")
        .into_iter()
        .find(|name| !name.starts_with('.'))
        .unwrap();
    cluster.project.remove(&format!("cache/runs/{runs}/job"));
    cluster.project.write("go", "");
    cluster.run(&["build"]).ends_with(0);
    assert_eq!((cluster.jobs().len(), cluster.project.launches()), (1, 1));
}

#[test]
fn a_controller_that_is_away_is_waited_out() {
    let cluster = Cluster::new(&waits());
    let mut build = cluster.started();
    cluster.kill_daemon("slurmctld");
    cluster.project.write("go", "");
    std::thread::sleep(std::time::Duration::from_secs(1));
    cluster.start_controller();
    assert_eq!(build.wait().unwrap().code(), Some(0));
    assert_eq!(cluster.project.launches(), 1);
}

#[test]
fn a_cancelled_job_a_refused_one_and_one_out_of_time_are_told_apart() {
    let cluster = Cluster::new(&waits());
    let build = cluster.started();
    let id = cluster.id();
    cluster.says("scancel", &[&id]);
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(1));
    let attempts = cluster
        .run(&["show", "--attempts", "cpu/cmd/tiny/single"])
        .stdout;
    assert!(attempts.contains("cancelled"), "{attempts}");
    assert!(
        cluster
            .project
            .processes()
            .iter()
            .all(|(_, line)| !line.contains("trainer.sh")),
        "nothing is left of it"
    );

    cluster.config("partition: no-such-partition");
    let refused = cluster.run(&["build"]);
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("sbatch refused the job")
            && refused
                .stderr
                .contains("invalid partition specified: no-such-partition"),
        "{}",
        refused.stderr
    );

    cluster.config("time: '00:00:01', options: [--signal=B:TERM@1]");
    cluster.project.write("trainer.sh", "sleep 300\n");
    cluster.project.edit(
        "config.yaml",
        "inputs: [trainer.sh] }",
        "inputs: [trainer.sh], timeout: 1s }",
    );
    let late = cluster.run(&["build"]).ends_with(1);
    assert!(late.stderr.contains("timeout"), "{}", late.stderr);
}

#[test]
fn a_lost_node_is_no_failure_of_the_trainer() {
    let cluster = Cluster::new(&waits());
    let build = cluster.started();
    let id = cluster.id();
    let node = cluster
        .says("squeue", &["--noheader", "--format=%N", "--jobs", &id])
        .trim()
        .to_owned();
    // The whole node goes at once: its daemon, the job's own, the supervisor and the trainer.
    if let Some(pid) = cluster.pid(&format!("slurmd-{node}")) {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    for (pid, line) in cluster.project.processes() {
        if line.contains("slurmstepd") || line.contains("__run") || line.contains("trainer.sh") {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    for step in tool(
        "pgrep",
        &["-f", &format!("slurmstepd: \\[{id}\\.")],
        "procps",
    )
    .stdout
    .split(|b| *b == b'\n')
    {
        if let Ok(pid) = String::from_utf8_lossy(step).trim().parse() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    cluster.says(
        "scontrol",
        &[
            "update",
            &format!("NodeName={node}"),
            "State=DOWN",
            "Reason=test",
        ],
    );
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(1));
    let attempts = cluster
        .run(&["show", "--attempts", "cpu/cmd/tiny/single"])
        .stdout;
    assert!(
        attempts.contains("failed") && attempts.contains("node"),
        "{attempts}"
    );
    let plan = cluster.run(&["plan"]).stdout;
    assert!(plan.contains("stale"), "it is tried again: {plan}");
}

#[test]
fn a_node_that_differs_from_the_lock_runs_nothing() {
    let cluster = Cluster::new(TRAINER);
    cluster.run(&["build"]).ends_with(0);
    let lock = cluster.project.read("tprimat.lock");
    let cores = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .expect("cores are pinned");
    cluster.project.edit("tprimat.lock", cores, "cores = 4096");
    let ran = cluster.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr.contains("differs from tprimat.lock") && ran.stderr.contains("4096"),
        "{}",
        ran.stderr
    );
    assert_eq!(cluster.project.launches(), 1);
}

#[test]
fn cancelling_on_ctrl_c_is_asked_for() {
    let cluster = Cluster::new(&waits());
    cluster.config("cancel_on_interrupt: true");
    let mut build = cluster.started();
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(build.wait().unwrap().code(), Some(130));
    eventually("no job is left", 20, || {
        cluster.says("squeue", &["--noheader"]).trim().is_empty()
    });
    assert!(
        cluster
            .project
            .processes()
            .iter()
            .all(|(_, line)| !line.contains("trainer.sh"))
    );
}

/// A command of Slurm that does not answer while there is a file `NAME.hangs` in the project, and
/// is refused while there is a file `NAME.fails`.
fn unreliable(cluster: &Cluster, name: &str) {
    let real = tool("which", &[name], PACKAGES);
    let real = String::from_utf8_lossy(&real.stdout).trim().to_owned();
    let root = cluster.project.root().display().to_string();
    let path = format!("bin/{name}");
    mock::program(
        &cluster.project.path(&path),
        format!(
            "#!/bin/sh\n[ -e {root}/{name}.hangs ] && exec sleep 300\n\
             [ -e {root}/{name}.fails ] && {{ echo 'Unable to contact slurm controller' >&2; exit 1; }}\n\
             exec {real} \"$@\"\n"
        ),
    );
}

fn build_with_those(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = cluster.tprimat(arguments);
    let path = std::env::var("PATH").unwrap();
    let bin = cluster.project.path("bin");
    command.env("PATH", format!("{}:{path}", bin.display()));
    command
}

/// Each command that hangs is waited for half a minute.
#[test]
fn a_slurm_that_hangs_does_not_hold_a_build_that_is_told_to_end() {
    let cluster = Cluster::new(&waits());
    unreliable(&cluster, "squeue");
    cluster
        .project
        .edit("matrix.toml", "repeats = 1", "repeats = 4");
    cluster.config("max_jobs: 4");
    let mut build = build_with_those(&cluster, &["build"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("all are submitted", 40, || cluster.jobs().len() == 4);
    cluster.project.write("squeue.hangs", "");
    std::thread::sleep(std::time::Duration::from_secs(4));
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGINT).unwrap();
    eventually("the build ends", 90, || build.try_wait().unwrap().is_some());
    assert_eq!(build.wait().unwrap().code(), Some(130));
}

#[test]
fn an_end_that_nobody_waited_for_is_explained_as_any_other() {
    // It takes its time to end, so that the job is still there to be cancelled.
    let trainer = format!("trap 'sleep 2; exit 143' TERM\n{}", waits());
    let cluster = Cluster::new(&trainer);
    let mut build = cluster.started();
    let id = cluster.id();
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    cluster.says("scancel", &["--full", "--signal=TERM", &id]);
    cluster.says("scancel", &[&id]);
    eventually("the run has ended", 30, || {
        cluster.jobs()[0].contains("CANCELLED")
    });
    cluster.project.write("go", "");
    let ran = cluster.run(&["build"]).ends_with(0);
    assert!(
        ran.stderr
            .contains("took in a run that an earlier build left")
            && ran.stderr.contains("cancelled"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_run_whose_job_was_never_submitted_is_run_now() {
    let cluster = Cluster::new(TRAINER);
    unreliable(&cluster, "sbatch");
    unreliable(&cluster, "squeue");
    cluster.project.write("sbatch.hangs", "");
    let mut build = build_with_those(&cluster, &["build"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_described = || {
        let runs = cluster.project.names_in("cache/runs");
        runs.iter().any(|run| {
            cluster
                .project
                .path(&format!("cache/runs/{run}/spec.json"))
                .exists()
        })
    };
    eventually("the submission begins", 40, is_described);
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    cluster.project.remove("sbatch.hangs");
    // Whether there is a job cannot be known at first.
    cluster.project.write("squeue.fails", "");
    let mut build = build_with_those(&cluster, &["build", "--events", "events"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it is taken up", 40, || {
        fs::read_to_string(cluster.project.path("events"))
            .is_ok_and(|events| events.contains("does not answer"))
    });
    cluster.project.remove("squeue.fails");
    assert_eq!(build.wait().unwrap().code(), Some(0));
    assert_eq!((cluster.jobs().len(), cluster.project.launches()), (1, 1));
}
