//! How the run of a job ended, as far as it can be seen from here.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{
    LOOK, WITHDRAWN, claim_path, job_name, job_path, noted,
    queue::{Commands, fate_of, is_final},
};
use crate::{
    cache::Undeclared,
    execute::run::{ExitKind, RunExit, RunSpec, RunState, read_exit, state_path},
    files::unix_now,
    host::last_line,
};

/// How long after a job's end its files may take to be seen here.
pub(super) const SETTLE: Duration = Duration::from_secs(5);
/// The same of a job that ended well, whose exit.json is there for sure. An NFS client may believe
/// for up to a minute that a file which it did not find is still not there.
const VISIBLE: Duration = Duration::from_secs(90);
/// How the run of a job that is over ended. The folder is listed first: a client of a network file
/// system then looks again for files that it did not find before.
pub(super) fn exit_of_ended(dir: &Path) -> Option<RunExit> {
    let _ = fs::read_dir(dir).map(Iterator::count);
    read_exit(dir)
}

/// What follows where a job is over and no exit.json is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The file may come to be seen.
    Wait,
    /// The run ended well, so its measurement is there, whatever is seen of it: nothing is run
    /// instead.
    Keep,
    /// There will be none.
    Ended,
}

/// `state`: the job's last one; `since`: for how long it has been over here.
pub(super) fn after(state: Option<&str>, since: Duration) -> After {
    // Slurm says so of a job whose command ended with 0: the supervisor had recorded the exit.
    let ended_well = state == Some("COMPLETED");
    match ended_well {
        true if since >= VISIBLE => After::Keep,
        false if since >= SETTLE => After::Ended,
        _ => After::Wait,
    }
}

pub(super) fn unseen(dir: &Path, id: &str) -> String {
    format!(
        "Slurm job {id} ended well, but this host does not see exit.json in {}: the next build looks again; to measure anew, \
         remove the folder",
        dir.display()
    )
}

/// A supervisor that was told to end does not know why, nor does a trainer that got the signal
/// first; Slurm does.
pub(in crate::execute) fn explained(dir: &Path, slurm: &Commands, exit: RunExit) -> RunExit {
    let is_told = match exit.status {
        ExitKind::Interrupted | ExitKind::Signal(9 | 15) => true,
        ExitKind::Code(code) => [137, 143].contains(&code),
        _ => false,
    };
    let Some(id) = id_of(dir).filter(|_| is_told) else {
        return exit;
    };
    // The job's end may take a moment to be known.
    let begun = Instant::now();
    loop {
        match slurm.fate(&id) {
            Some(status) => return RunExit { status, ..exit },
            None if begun.elapsed() >= SETTLE => return exit,
            None => thread::sleep(LOOK),
        }
    }
}

/// The job that has the run of a folder, or that was submitted for it last.
fn id_of(dir: &Path) -> Option<String> {
    noted(&claim_path(dir))
        .or_else(|| noted(&job_path(dir)))
        .filter(|id| id != WITHDRAWN)
}

/// What became of a run whose tprimat is dead.
pub(in crate::execute) enum Left {
    /// It goes on, or Slurm does not answer, or its end is not seen here yet. Whoever wants the run
    /// waits for it.
    GoesOn,
    /// Its tprimat died before the submission: nothing has run.
    NeverWas,
    Ended(Box<RunExit>),
}

/// `age`: of an answer of Slurm's that somebody else got.
pub(in crate::execute) fn left(spec: &RunSpec, slurm: &Commands, age: Duration) -> Left {
    let id = match noted(&claim_path(&spec.dir)).or_else(|| noted(&job_path(&spec.dir))) {
        Some(claimed) if claimed == WITHDRAWN => return Left::NeverWas,
        Some(id) => id,
        None => match slurm.find(&job_name(&spec.run_id)) {
            Ok(Some(id)) => id,
            Ok(None) => return Left::NeverWas,
            Err(_) => return Left::GoesOn,
        },
    };
    let state = match slurm.state(&id, age) {
        Ok(Some(shown)) if !is_final(&shown.state) => return Left::GoesOn,
        Ok(Some(shown)) => Some(shown.state),
        Ok(None) => slurm.last_state(&id),
        Err(_) => return Left::GoesOn,
    };
    // Written just before the end, it may have come in between.
    match exit_of_ended(&spec.dir) {
        Some(exit) => Left::Ended(Box::new(explained(&spec.dir, slurm, exit))),
        None if after(state.as_deref(), SETTLE) == After::Ended => {
            Left::Ended(Box::new(ended_unseen(spec, slurm, &id)))
        }
        None => Left::GoesOn,
    }
}

pub(super) fn ended_unseen(spec: &RunSpec, slurm: &Commands, id: &str) -> RunExit {
    let now = unix_now();
    let state = fs::read(state_path(&spec.dir))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let started_at = if let Some(RunState::Running { since, .. }) = state {
        since
    } else {
        now
    };
    let unknown = || {
        ExitKind::Lost(format!(
            "Slurm job {id} is over and left no word of how its run ended"
        ))
    };
    let said = fs::read(spec.dir.join("supervisor.log")).unwrap_or_default();
    let note = (!said.is_empty()).then(|| last_line(&said));
    let status = slurm
        .last_state(id)
        .and_then(|state| fate_of(id, &state))
        .unwrap_or_else(unknown);
    RunExit {
        status,
        started_at,
        ended_at: now,
        waited_seconds: 0.0,
        leftover: 0,
        survivors: 0,
        changed: Vec::new(),
        undeclared: Undeclared::default(),
        lost_nodes: None,
        host: slurm.node(id),
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_well_is_waited_for_and_never_given_up() {
        let minute = Duration::from_secs(60);
        assert_eq!(after(Some("COMPLETED"), minute), After::Wait);
        assert_eq!(after(Some("COMPLETED"), 60 * minute), After::Keep);
        assert_eq!(after(Some("NODE_FAIL"), minute), After::Ended);
        assert_eq!(
            (after(None, Duration::ZERO), after(None, minute)),
            (After::Wait, After::Ended)
        );
    }
}
