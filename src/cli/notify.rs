//! `build --notify`: a command of the user's that is run when a build is over.

use std::{
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;

use super::detached::FOLDER;
use crate::{
    execute::{Event, Outcome, Reporter},
    graph::State,
};

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
        .stdin(Stdio::null());
    let ran = shell.status();
    match ran {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("note: the command of --notify ended with {status}"),
        Err(error) => eprintln!("note: the command of --notify cannot be started: {error}"),
    }
}
