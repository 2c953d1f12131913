//! `build --notify`: a command of the user's that is run when a build is over.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{
    cli::detached::FOLDER,
    execute::{Event, Outcome, Reporter, install_interrupt_handler},
};

/// How long the command may take. It tells somebody of the build, and nobody waits for more.
const LIMIT: Duration = Duration::from_secs(60);
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
        match event {
            Event::TaskFinished { outcome, .. } => match outcome {
                Outcome::Ok => counts.ok += 1,
                Outcome::Failed | Outcome::NotCounted => counts.failed += 1,
                _ => {}
            },
            Event::BuildFinished {
                ok,
                failed,
                waiting,
                ..
            } => {
                *counts = Counts {
                    ok: *ok,
                    failed: *failed,
                    waiting: Some(*waiting),
                }
            }
            _ => {}
        }
    }
}

/// Runs the command, whatever came of the build.
pub fn run(command: &str, counted: &Counting, code: i32) {
    // A terminal's Ctrl-C does not reach another process group, so it is passed on.
    let interrupts = install_interrupt_handler().ok();
    let count = || interrupts.map_or(0, |interrupts| interrupts.count());
    let before = count();
    let ended = ended(&mut shell(command, counted, code), LIMIT, &|| {
        count() > before
    });
    match ended {
        Ok(Some(status)) if status.success() => {}
        Ok(Some(status)) => eprintln!("note: the command of --notify ended with {status}"),
        Ok(None) => eprintln!(
            "note: the command of --notify was stopped, by Ctrl-C or after {} s",
            LIMIT.as_secs()
        ),
        Err(error) => eprintln!("note: the command of --notify cannot be started: {error}"),
    }
}

fn shell(command: &str, counted: &Counting, code: i32) -> Command {
    let counts = counted.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut shell = Command::new("/bin/sh");
    // A build that the command starts is not this detached one.
    shell
        .args(["-c", command])
        .env("TPRIMAT_EXIT_CODE", code.to_string())
        .env("TPRIMAT_OK", counts.ok.to_string())
        .env("TPRIMAT_FAILED", counts.failed.to_string())
        .env_remove("TPRIMAT_WAITING")
        .envs(counts.waiting.map(|n| ("TPRIMAT_WAITING", n.to_string())))
        .env_remove(FOLDER)
        .stdin(Stdio::null());
    shell
}

/// Waits for a command, in a process group of its own; `None`: the whole group was ended after
/// `limit`, or once somebody interrupted.
fn ended(
    command: &mut Command,
    limit: Duration,
    is_interrupted: &dyn Fn() -> bool,
) -> io::Result<Option<ExitStatus>> {
    let mut child = command.process_group(0).spawn()?;
    let begun = Instant::now();
    while begun.elapsed() < limit && !is_interrupted() {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(LOOK);
    }
    // Reaped last: until then no other group has its number.
    let group = Pid::from_raw(child.id().cast_signed());
    let _ = killpg(group, Signal::SIGKILL);
    child.wait()?;
    Ok(None)
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
                .current_dir(folder.path());
            let status = ended(&mut shell, limit, is_interrupted).unwrap();
            let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
            let is_gone = || {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
                stat.map_or(true, |stat| stat.contains(") Z "))
            };
            let is_gone = (0..100).any(|_| {
                thread::sleep(LOOK);
                is_gone()
            });
            (status, is_gone)
        };
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(run(second, &|| false), (None, true));
        let after = |begun: Instant| move || begun.elapsed() > Duration::from_millis(500);
        assert_eq!(run(LIMIT, &after(Instant::now())), (None, true));
        assert!(begun.elapsed() < LIMIT / 3);
    }
}
