//! Runs that are ended, and what they leave.

use std::{
    thread,
    time::{Duration, Instant},
};

use tprimat::{
    host::EngineKind,
    logs::LogSection,
    run::{ContainerSpec, ExitKind, Hang, Run, RunSpec, RunState},
};

use super::{TORCHRUN_LIKE, log, run, spec_of, start, trains};
use crate::support::{Project, mock, until};

#[test]
fn a_timeout_ends_the_whole_tree() {
    let project = Project::empty();
    let spec = RunSpec {
        timeout_seconds: Some(0.3),
        grace_seconds: 0.3,
        ..spec_of(&project, "timeout", TORCHRUN_LIKE)
    };
    let begun = Instant::now();
    let exit = run(&spec);
    assert_eq!(exit.status, ExitKind::Timeout);
    assert_eq!(project.processes(), []);
    assert!(exit.ended_at - exit.started_at >= 0.3);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_torchrun_like_tree_is_asked_first_and_then_killed() {
    let project = Project::empty();
    let spec = RunSpec {
        grace_seconds: 0.4,
        ..spec_of(&project, "torchrun", TORCHRUN_LIKE)
    };
    let running = start(&spec);
    until("agent and workers run", || trains(&spec));
    until("it says so", || {
        matches!(running.state(), Some(RunState::Running { .. }))
    });
    let begun = Instant::now();
    running.terminate();
    running.terminate();
    assert_eq!(running.wait().unwrap().status, ExitKind::Interrupted);
    assert_eq!(project.processes(), []);
    assert!(
        begun.elapsed() >= Duration::from_millis(400),
        "its grace was cut short: {:?}",
        begun.elapsed()
    );
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_trainer_that_obeys_has_its_grace_and_no_more_is_waited_for() {
    let project = Project::empty();
    let script =
        "trap 'sleep 0.1; echo saved; exit 0' TERM; echo started; while :; do sleep 0.01; done";
    let spec = RunSpec {
        grace_seconds: 30.0,
        ..spec_of(&project, "obeys", script)
    };
    let running = start(&spec);
    until("it runs", || {
        spec.dir.join("log").exists() && log(&spec).contains("started")
    });
    let begun = Instant::now();
    running.terminate();
    running.wait().unwrap();
    assert!(log(&spec).ends_with("saved\n"), "{}", log(&spec));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn kill_wastes_no_time_on_grace() {
    let project = Project::empty();
    let spec = RunSpec {
        grace_seconds: 60.0,
        ..spec_of(&project, "kill", TORCHRUN_LIKE)
    };
    let running = start(&spec);
    until("it runs", || trains(&spec));
    let begun = Instant::now();
    running.terminate();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| running.wait().unwrap());
        thread::sleep(Duration::from_millis(100));
        running.kill();
        assert_eq!(waiting.join().unwrap().status, ExitKind::Interrupted);
    });
    running.kill();
    assert_eq!(project.processes(), []);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn what_a_trainer_leaves_behind_is_ended() {
    let project = Project::empty();
    // Twice forked, in a session of its own, and one even without the mark in its environment.
    let script =
        "(setsid sh -c 'sleep 60' &) ; (setsid env -i /bin/sleep 61 &) ; sleep 0.2; exit 7";
    let spec = RunSpec {
        grace_seconds: 0.5,
        ..spec_of(&project, "daemon", script)
    };
    let exit = run(&spec);
    assert_eq!(exit.status, ExitKind::Code(7));
    assert_eq!((exit.survivors, project.processes()), (0, vec![]));
}

#[test]
fn short_lived_helpers_may_finish_by_themselves() {
    let project = Project::empty();
    let spec = spec_of(
        &project,
        "helper",
        "(setsid sh -c 'sleep 0.01; echo tidied' &) ; exit 0",
    );
    let exit = run(&spec);
    assert_eq!((exit.status, exit.note), (ExitKind::Code(0), None));
    assert_eq!(log(&spec), "tidied\n");
}

#[test]
fn a_process_that_outlasts_its_launcher_is_ended_and_told_of() {
    let project = Project::empty();
    let spec = spec_of(&project, "outlasts", "setsid sleep 300 & exit 0");
    let exit = run(&spec);
    assert_eq!(exit.status, ExitKind::Code(0));
    let told = exit.told().unwrap();
    assert!(
        told.contains("1 process it had started went on after it"),
        "{told}"
    );
    assert_eq!(project.processes(), []);
}

/// Steps at once, and then none.
const HANGS: &str = r#"exec python3 -u -c '
import time
for step in range(1, 31):
    print("{\"event\":\"step\",\"step\":%d,\"step_time_seconds\":0.01,\"loss\":2.5}" % step, flush=True)
    time.sleep(0.15)
time.sleep(300)
'"#;

#[test]
fn a_trainer_that_makes_no_more_steps_is_looked_into_and_ended() {
    a_hang_is_looked_into(false);
}

/// py-spy is a program of the host, also where the trainer has the variables of a container.
#[test]
fn a_trainer_that_hangs_in_a_container_is_looked_into_from_the_host() {
    a_hang_is_looked_into(true);
}

fn a_hang_is_looked_into(is_contained: bool) {
    let project = Project::empty();
    mock::program(
        &project.path("bin/py-spy"),
        "#!/bin/sh\necho \"Process $3: python3\"\necho 'Thread 1 (idle): \"MainThread\"'\necho '    recv (gloo.py:12)'\necho '    step (train.py:7)'\n",
    );
    let mut spec = RunSpec {
        hang: Some(Hang {
            factor: 10.0,
            least_seconds: 0.4,
            steps: 100,
            log: LogSection::named("tprimat"),
        }),
        ..spec_of(&project, "hang", HANGS)
    };
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", project.path("bin").display());
    spec.env.insert("PATH".into(), path);
    if is_contained {
        let environment = std::mem::take(&mut spec.env);
        let python = "/usr/bin:/usr/local/bin:/bin";
        spec.env.insert("PATH".into(), python.into());
        // A mock of Apptainer, which starts the command as it is.
        spec.container = Some(ContainerSpec {
            engine: EngineKind::Apptainer,
            program: "/usr/bin/env".into(),
            arguments: Vec::new(),
            environment,
        });
    }
    let exit = run(&spec);
    let ExitKind::Hung(evidence) = &exit.status else {
        panic!("{exit:?}")
    };
    assert!(
        evidence[0].contains("after step 30") && evidence[1].contains("recv (gloo.py:12)"),
        "{evidence:?}"
    );
    assert!(project.processes().is_empty());
    let stacks = std::fs::read_to_string(spec.dir.join("stacks.txt")).unwrap();
    assert!(stacks.contains("step (train.py:7)"), "{stacks}");
}

#[test]
fn the_end_of_training_is_no_hang() {
    let project = Project::empty();
    let spec = RunSpec {
        hang: Some(Hang {
            factor: 10.0,
            least_seconds: 0.1,
            steps: 30,
            log: LogSection::named("tprimat"),
        }),
        ..spec_of(&project, "saves", &HANGS.replace("sleep(300)", "sleep(3)"))
    };
    assert_eq!(run(&spec).status, ExitKind::Code(0));
}
