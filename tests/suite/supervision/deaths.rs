//! Supervisors and tprimats that die or hang: nobody of the run is left, and what happened is
//! known.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tprimat::{
    files::{Durability, write_atomically},
    run::{self, ExitKind, Leftover, RUN_ARGUMENT, Run, RunExit, RunSpec},
};

use super::{TORCHRUN_LIKE, spec_of, start, trains};
use crate::support::{ONE_RUN, Project, TPRIMAT, until};

/// A supervisor with a thread that hangs in a driver cannot go, also when it has said how its run
/// ended.
#[test]
fn a_supervisor_that_lingers_after_the_end_keeps_nobody_waiting() {
    let project = Project::empty();
    let spec = spec_of(&project, "lingers", "echo up; exec sleep 60");
    let running = start(&spec);
    until("it trains", || {
        fs::read_to_string(spec.dir.join("log")).is_ok_and(|log| log.contains("up"))
    });
    let lingering = Stopped::new(supervisor(&project));
    let told = RunExit {
        status: ExitKind::Code(7),
        started_at: 1.0,
        ended_at: 2.0,
        waited_seconds: 0.0,
        survivors: 0,
        changed: Vec::new(),
        undeclared: Default::default(),
        log_bytes: None,
        lost_nodes: None,
        host: None,
        note: None,
    };
    let told = serde_json::to_vec(&told).unwrap();
    write_atomically(&spec.dir.join("exit.json"), &told, Durability::Plain).unwrap();
    let exit = running.wait().unwrap();
    assert_eq!(exit.status, ExitKind::Code(7));
    assert!(
        kill(lingering.0, Signal::SIGKILL).is_ok(),
        "the supervisor was waited for"
    );
    until("the trainer ended with it", || {
        project.processes().is_empty()
    });
}

/// Signals beyond those that have a name end a process as well.
#[test]
fn a_supervisor_that_a_real_time_signal_ends_is_a_run_that_ended_by_it() {
    let project = Project::empty();
    let spec = spec_of(&project, "real-time", "echo up; exec sleep 60");
    let running = start(&spec);
    until("it trains", || {
        fs::read_to_string(spec.dir.join("log")).is_ok_and(|log| log.contains("up"))
    });
    let pid = supervisor(&project).to_string();
    assert!(
        Command::new("kill")
            .args(["-40", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(running.wait().unwrap().status, ExitKind::Signal(40));
}

/// Both reach the supervisor at once: the end of the trainer, and the death of who asked for the
/// run.
#[test]
fn a_trainer_that_had_ended_when_its_tprimat_died_has_ended_well() {
    let project = Project::empty();
    let spec = spec_of(
        &project,
        "whole",
        "echo up; until [ -e go ]; do sleep 0.01; done; echo whole",
    );
    let running = start(&spec);
    until("it trains", || {
        fs::read_to_string(spec.dir.join("log")).is_ok_and(|log| log.contains("up"))
    });
    let supervisor = supervisor(&project);
    kill(supervisor, Signal::SIGSTOP).unwrap();
    project.write("go", "");
    // What has ended and was not waited for yet has no arguments any more.
    until("the trainer has ended", || {
        let processes = project.processes();
        processes
            .iter()
            .all(|(_, line)| line.contains(RUN_ARGUMENT))
    });
    running.terminate();
    kill(supervisor, Signal::SIGCONT).unwrap();
    let exit = running.wait().unwrap();
    assert_eq!(exit.status, ExitKind::Code(0), "{exit:?}");
}

#[test]
fn a_killed_supervisor_ends_its_run_and_is_told_of() {
    let project = Project::empty();
    let spec = RunSpec {
        grace_seconds: 0.2,
        ..spec_of(&project, "orphaned", TORCHRUN_LIKE)
    };
    let running = start(&spec);
    until("it trains", || trains(&spec));
    kill(supervisor(&project), Signal::SIGKILL).unwrap();
    let exit = running.wait().unwrap();
    assert_eq!(exit.status, ExitKind::Signal(9));
    assert!(exit.note.unwrap().contains("supervisor"));
    assert_eq!(project.processes(), []);
}

/// Workers in sessions of their own, as torchrun has them.
const WORKERS: &str = "
for rank in 1 2 3; do
    setsid sh -c 'echo up; while :; do sleep 1; done' &
done
wait
";

/// `tprimat build`, to be killed: one run, whose trainer does not end by itself.
fn build() -> (Project, Child) {
    let project = Project::new(ONE_RUN);
    project.write("trainer.sh", WORKERS);
    let child = project
        .tprimat(&["build"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (project, child)
}

fn die(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn runs(project: &Project) -> PathBuf {
    project.path("cache/runs")
}

/// What a build would take in of the runs that nobody waits for any more.
fn swept(project: &Project) -> Vec<Leftover> {
    let env = BTreeMap::new();
    let swept = run::sweep(&runs(project), &env, &run::Systems::default());
    assert!(swept.errors.is_empty(), "{:?}", swept.errors);
    swept.left
}

fn run_folder(project: &Project) -> Option<PathBuf> {
    let name = project
        .names_in("cache/runs")
        .into_iter()
        .find(|name| !name.starts_with('.'))?;
    Some(runs(project).join(name))
}

fn all_are_up(project: &Project) -> bool {
    let log = run_folder(project).and_then(|dir| fs::read_to_string(dir.join("log")).ok());
    log.is_some_and(|log| log.matches("up\n").count() == 3)
}

/// The project's one supervisor. A trainer that has just been forked looks like one, until it is
/// executed.
fn supervisor(project: &Project) -> Pid {
    let mut supervisors = Vec::new();
    until("there is one supervisor", || {
        supervisors = project.processes();
        supervisors.retain(|(_, command)| command.contains(RUN_ARGUMENT));
        supervisors.len() == 1
    });
    Pid::from_raw(supervisors[0].0)
}

#[test]
fn killed_at_any_moment_tprimat_leaves_nothing_behind() {
    // From the first file of its run folder until it trains, in an order that looks random.
    thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                for i in 0..10_u64 {
                    let moment = Duration::from_millis((half + 2 * i) * 7 % 41);
                    let (project, child) = build();
                    until("its run is made", || run_folder(&project).is_some());
                    thread::sleep(moment);
                    die(child);
                    // The next build's sweep: waits for the supervisor, whatever it is doing.
                    let leftovers = swept(&project);
                    // A supervisor that is just being started looks like tprimat still, and ends by
                    // itself.
                    let mut workers = project.processes();
                    workers.retain(|(_, command)| !command.starts_with(TPRIMAT));
                    assert_eq!(workers, [], "killed after {moment:?}");
                    for leftover in &leftovers {
                        let status = leftover.exit.as_ref().map(|exit| &exit.status);
                        assert!(
                            matches!(status, None | Some(ExitKind::Interrupted)),
                            "{leftover:?}"
                        );
                    }
                    until("the supervisor ended", || project.processes().is_empty());
                }
            });
        }
    });
}

#[test]
fn when_tprimat_dies_the_supervisor_ends_the_run_and_records_it() {
    let (project, child) = build();
    let sweep = || swept(&project);
    until("it trains", || all_are_up(&project));
    assert!(
        sweep().is_empty(),
        "the run of a living tprimat is not touched"
    );
    die(child);
    // No sweep needed.
    until("all ended", || project.processes().is_empty());
    let leftovers = sweep();
    let [leftover] = &leftovers[..] else {
        panic!("{leftovers:?}")
    };
    assert_eq!(
        leftover.exit.as_ref().unwrap().status,
        ExitKind::Interrupted
    );
    assert!(
        fs::read_to_string(leftover.spec.dir.join("log"))
            .unwrap()
            .starts_with("up\n")
    );
    assert!(sweep().is_empty(), "one sweep takes it up, not two");
    fs::remove_dir_all(&leftover.spec.dir).unwrap();
    drop(leftovers);
    assert!(sweep().is_empty());
}

#[test]
fn when_all_are_killed_the_sweep_ends_the_workers() {
    let (project, child) = build();
    until("it trains", || all_are_up(&project));
    // Stopped, tprimat cannot end what its supervisor leaves.
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGSTOP).unwrap();
    kill(supervisor(&project), Signal::SIGKILL).unwrap();
    die(child);
    let leftovers = swept(&project);
    let [leftover] = &leftovers[..] else {
        panic!("{leftovers:?}")
    };
    assert_eq!(project.processes(), []);
    assert_eq!(leftover.exit, None);
}

/// Its signals that no thread has taken yet.
fn has_pending(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let pending = status.lines().filter_map(|line| {
        line.strip_prefix("ShdPnd:")
            .or(line.strip_prefix("SigPnd:"))
    });
    pending
        .into_iter()
        .any(|mask| mask.trim().chars().any(|digit| digit != '0'))
}

/// Goes on in the end, also where a test fails.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Self {
        kill(pid, Signal::SIGSTOP).unwrap();
        let stopped = Self(pid);
        until("it stands still", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let (_, state) = stat.rsplit_once(") ").unwrap();
            state.starts_with('T')
        });
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// What the first two do is in tests/suite/kill.rs.
#[test]
fn the_third_interrupt_ends_tprimat_whatever_its_run_does() {
    let (project, mut child) = build();
    until("it trains", || all_are_up(&project));
    // Stopped, it ends nothing, however it is told to.
    let supervisor = Stopped::new(supervisor(&project));
    let pid = Pid::from_raw(child.id().cast_signed());
    for _ in 0..2 {
        kill(pid, Signal::SIGTERM).unwrap();
        until("the signal is taken", || !has_pending(&child));
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "the first two wait for the run"
        );
    }
    kill(pid, Signal::SIGINT).unwrap();
    let mut ended = None;
    until("tprimat ended", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(130));
    drop(supervisor);
    until("the run ended", || project.processes().is_empty());
}

/// A trainer that ends well and leaves a process that has to be killed.
const LEAVES_A_DEAF_ONE: &str = "(trap '' TERM; echo deaf; exec sleep 300) & echo whole; exit 0";

/// Its trainer's end is noted, and it is not recorded yet.
fn is_being_ended(dir: &std::path::Path) -> bool {
    let is_noted = fs::read_to_string(dir.join("end-note.json"));
    is_noted.is_ok_and(|note| note.contains("status")) && !dir.join("exit.json").exists()
}

/// Kills the supervisor of such a run while it waits for that process.
fn kill_while_it_ends_the_rest(project: &Project, dir: &std::path::Path) {
    until("the rest is being ended", || is_being_ended(dir));
    kill(supervisor(project), Signal::SIGKILL).unwrap();
}

#[test]
fn a_run_whose_supervisor_dies_over_the_trainers_leftovers_has_ended_as_the_trainer_did() {
    let project = Project::empty();
    let spec = spec_of(&project, "deaf", LEAVES_A_DEAF_ONE);
    let running = start(&spec);
    kill_while_it_ends_the_rest(&project, &spec.dir);
    let exit = running.wait().unwrap();
    assert_eq!(exit.status, ExitKind::Code(0));
    let told = exit.told().unwrap();
    assert!(told.contains("supervisor ended (signal: 9"), "{told}");
    assert!(exit.ended_at - exit.started_at < 3.0, "{exit:?}");
    assert_eq!(project.processes(), []);
}

#[test]
fn so_has_one_whose_tprimat_dies_as_well() {
    let project = Project::new(ONE_RUN);
    project.write("trainer.sh", LEAVES_A_DEAF_ONE);
    let mut build = project.tprimat(&["build"]);
    let build = build.stdout(Stdio::null()).stderr(Stdio::null());
    let child = build.spawn().unwrap();
    until("it trains", || run_folder(&project).is_some());
    let dir = run_folder(&project).unwrap();
    until("the rest is being ended", || is_being_ended(&dir));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGSTOP).unwrap();
    kill_while_it_ends_the_rest(&project, &dir);
    die(child);
    let leftovers = swept(&project);
    let [leftover] = &leftovers[..] else {
        panic!("{leftovers:?}")
    };
    let status = leftover.exit.as_ref().map(|exit| &exit.status);
    assert_eq!(status, Some(&ExitKind::Code(0)));
    until("nothing is left", || project.processes().is_empty());
}
