//! `build --notify`: a command of the user's that is run when a build is over.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use serde_json::Value;

use super::detached::FOLDER;
use crate::{
    execute::{Event, Outcome, Reporter, install_interrupt_handler},
    graph::State,
};

/// How long the command may take. It tells somebody of the build, and nobody waits for more.
const LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to end once it is told to.
const GRACE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// Tasks of a build by how they ended: those that ended in it, until it says of all selected ones
/// how they stand.
#[derive(Default)]
struct Counts {
    ok: usize,
    failed: usize,
    /// Not known of a build that was stopped.
    waiting: Option<usize>,
}

/// Listens to a build, and knows at its end what to tell the command.
#[derive(Clone, Default)]
pub struct Counting(Arc<Mutex<Counts>>);

impl Reporter for Counting {
    fn report(&mut self, event: &Event) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.take(event);
    }
}

impl Counts {
    fn take(&mut self, event: &Event) {
        match event {
            Event::TaskFinished {
                outcome: Outcome::Ok,
                ..
            } => self.ok += 1,
            Event::TaskFinished {
                outcome: Outcome::Failed | Outcome::NotCounted,
                ..
            } => self.failed += 1,
            Event::BuildFinished {
                ok,
                failed,
                waiting,
                ..
            } => (self.ok, self.failed, self.waiting) = (*ok, *failed, Some(*waiting)),
            _ => {}
        }
    }
}

impl Counting {
    /// The build has nothing to do: its tasks stand as an earlier one left them, by state.
    pub fn idle(&self, summary: &Value) {
        let of = |state: State| {
            let count = summary[state.name()].as_u64().unwrap_or(0);
            usize::try_from(count).unwrap_or(usize::MAX)
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Counts {
            ok: of(State::Fresh),
            failed: of(State::Failed),
            waiting: Some(of(State::Waiting) + of(State::Blocked)),
        };
    }
}

/// How the command ended.
#[derive(Debug, PartialEq)]
enum Told {
    Ended(ExitStatus),
    TooLong,
    Interrupted,
}

/// Waits for a command that leads a process group of its own, and ends the whole group after
/// `limit`, or once somebody interrupts.
fn wait(child: &mut Child, limit: Duration, is_interrupted: &dyn Fn() -> bool) -> io::Result<Told> {
    let begun = Instant::now();
    let told = loop {
        match child.try_wait()? {
            Some(status) => return Ok(Told::Ended(status)),
            None if is_interrupted() => break Told::Interrupted,
            None if begun.elapsed() >= limit => break Told::TooLong,
            None => thread::sleep(LOOK),
        }
    };
    // Reaped last: until then no other group has its number.
    let group = Pid::from_raw(child.id().cast_signed());
    let _ = killpg(group, Signal::SIGTERM);
    thread::sleep(GRACE);
    let _ = killpg(group, Signal::SIGKILL);
    child.wait()?;
    Ok(told)
}

/// Runs the command, whatever came of the build.
pub fn run(command: &str, counted: &Counting, code: i32) {
    let counts = counted.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = counts.waiting.map(|n| n.to_string());
    let variables = [
        ("TPRIMAT_EXIT_CODE", Some(code.to_string())),
        ("TPRIMAT_OK", Some(counts.ok.to_string())),
        ("TPRIMAT_FAILED", Some(counts.failed.to_string())),
        ("TPRIMAT_WAITING", waiting),
    ];
    let mut shell = Command::new("/bin/sh");
    // A build that the command starts is not this detached one.
    shell
        .args(["-c", command])
        .env_remove("TPRIMAT_WAITING")
        .envs(
            variables
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env_remove(FOLDER)
        .stdin(Stdio::null())
        .process_group(0);
    drop(counts);
    // A terminal's Ctrl-C does not reach another process group, so it is passed on.
    let interrupts = install_interrupt_handler().ok();
    let count = || interrupts.map_or(0, |interrupts| interrupts.count());
    let before = count();
    let ran = shell
        .spawn()
        .and_then(|mut child| wait(&mut child, LIMIT, &|| count() > before));
    match ran {
        Ok(Told::Ended(status)) if status.success() => {}
        Ok(Told::Ended(status)) => eprintln!("note: the command of --notify ended with {status}"),
        Ok(Told::TooLong) => eprintln!(
            "note: the command of --notify had not ended after {} s and was stopped",
            LIMIT.as_secs()
        ),
        Ok(Told::Interrupted) => eprintln!("note: the command of --notify was interrupted"),
        Err(error) => eprintln!("note: the command of --notify cannot be started: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let run = |limit, is_interrupted: &dyn Fn() -> bool| {
            let mut shell = Command::new("/bin/sh");
            shell
                .args(["-c", "sleep 300 & echo $! > pid; wait"])
                .current_dir(folder.path())
                .process_group(0);
            let told = wait(&mut shell.spawn().unwrap(), limit, is_interrupted).unwrap();
            let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            let is_gone = stat.map_or(true, |stat| stat.contains(") Z "));
            (told, is_gone)
        };
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(run(second, &|| false), (Told::TooLong, true));
        let after = |begun: Instant| move || begun.elapsed() > Duration::from_millis(500);
        assert_eq!(
            run(LIMIT, &after(Instant::now())),
            (Told::Interrupted, true)
        );
        assert!(begun.elapsed() < LIMIT / 3);
    }
}
