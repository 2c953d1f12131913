//! Devices that runs own or share.

use std::process::Stdio;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tprimat::run::{ExitKind, Run, RunSpec, RunState, Running};

use super::{log, spec_of, start};
use crate::support::{ONE_RUN, Project, Ran, until};

#[test]
fn exclusive_runs_never_overlap() {
    let project = Project::empty();
    let script = "date +%s%N; sleep 0.1; date +%s%N";
    let specs: Vec<RunSpec> = (0..4)
        .map(|i| {
            let devices = if i % 2 == 0 {
                ["cpu", "gpu-1"]
            } else {
                ["gpu-1", "cpu"]
            };
            let devices = devices.map(str::to_owned).into();
            RunSpec {
                devices,
                exclusive: true,
                ..spec_of(&project, &format!("run{i}"), script)
            }
        })
        .collect();
    let running: Vec<Running> = specs.iter().map(start).collect();
    for run in &running {
        assert_eq!(run.wait().unwrap().status, ExitKind::Code(0));
    }
    let mut spans: Vec<Vec<u128>> = specs
        .iter()
        .map(|spec| {
            log(spec)
                .lines()
                .map(|line| line.parse().unwrap())
                .collect()
        })
        .collect();
    spans.sort();
    for pair in spans.windows(2) {
        assert!(pair[0][1] <= pair[1][0], "{spans:?}");
    }
}

#[test]
fn sharers_run_together_and_who_waits_is_told_for_whom() {
    let project = Project::empty();
    let on_cpu = |name, exclusive| RunSpec {
        devices: vec!["cpu".into()],
        exclusive,
        ..spec_of(&project, name, "echo on; sleep 60")
    };
    let (a, b, c) = (on_cpu("a", false), on_cpu("b", false), on_cpu("c", true));
    let (run_a, run_b) = (start(&a), start(&b));
    until("both share the device", || {
        [&a, &b].iter().all(|spec| spec.dir.join("log").exists())
    });
    let run_c = start(&c);
    until("the third waits", || {
        matches!(run_c.state(), Some(RunState::WaitingForDevice { ref device, holder: Some(ref holder) })
            if device == "cpu" && [&a.run_id, &b.run_id].contains(&&holder.run_id))
    });
    run_a.kill();
    run_b.kill();
    run_a.wait().unwrap();
    run_b.wait().unwrap();
    until("the third runs", || {
        matches!(run_c.state(), Some(RunState::Running { .. }))
    });

    // And one that still waits can be told to stop.
    let d = on_cpu("d", true);
    let run_d = start(&d);
    until(
        "the fourth waits for the third",
        || matches!(run_d.state(), Some(RunState::WaitingForDevice { holder: Some(ref holder), .. }) if holder.run_id == c.run_id),
    );
    run_d.terminate();
    let exit = run_d.wait().unwrap();
    assert_eq!(exit.status, ExitKind::Interrupted);
    assert!(exit.waited_seconds > 0.0);
    assert!(!d.dir.join("log").exists(), "it never trained");
    run_c.kill();
    run_c.wait().unwrap();
}

/// The supervisor and its tprimat were killed, and what the trainer started goes on: another project
/// may not measure beside it.
#[test]
fn a_device_that_a_killed_run_may_still_use_is_refused_by_name() {
    let (killed, other) = (Project::new(ONE_RUN), Project::new(ONE_RUN));
    killed.write(
        "trainer.sh",
        "setsid sh -c 'echo up; exec sleep 300' & wait",
    );
    let locks = killed.folder().join("device-locks");
    let mut build = killed.tprimat(&["build"]);
    let build = build.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut build = build.unwrap();
    // As long as a program is being replaced by the next one, its variables cannot be read.
    let is_up = |line: &str| line.starts_with("sleep 300");
    until("its worker is up", || {
        killed.processes().iter().any(|(_, line)| is_up(line))
    });
    let pid = build.id().cast_signed();
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    for (pid, line) in killed.processes() {
        if !is_up(&line) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    build.wait().unwrap();
    let refused = Ran::from(
        other
            .tprimat(&["build"])
            .env("TPRIMAT_LOCK_DIR", &locks)
            .output()
            .unwrap(),
    );
    let refused = refused.ends_with(1);
    let worker = killed.processes();
    let [(worker, _)] = worker[..] else {
        panic!("{worker:?}")
    };
    let said = format!("process {worker} may still use cpu, and nobody watches it any more");
    assert!(refused.stderr.contains(&said), "{}", refused.stderr);
    assert_eq!(other.launches(), 0);
    kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
    let built = other
        .tprimat(&["build"])
        .env("TPRIMAT_LOCK_DIR", &locks)
        .output();
    Ran::from(built.unwrap()).ends_with(0);
}
