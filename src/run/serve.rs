//! The process of a supervisor: where its run comes from, and its exit code.

use std::{
    io::{self, Write},
    path::Path,
};

use nix::libc;

use super::{
    folder::read_spec_with,
    inbox::{receive_environment, settle_down},
    nodes, slurm,
    spec::{ExitKind, TELEMETRY, never_ran},
    supervisor::Supervisor,
};
use crate::error::{Error, Result, exit};

/// Body of `tprimat __run DIR [job | node]`, the supervisor of the run in a folder. Returns the
/// process's exit code: the error's number where it has one, for on a full disk the supervisor has
/// no other way to say it.
#[must_use]
pub fn supervise(dir: &Path, role: Option<&str>) -> i32 {
    let done = match role {
        None => of_this_host(dir),
        Some(slurm::JOB) => of_a_job(dir),
        Some(nodes::NODE) => nodes::supervise(dir),
        Some(_) => return exit::USAGE,
    };
    let Err(error) = done else { return 0 };
    // Into supervisor.log, where tprimat looks when there is no exit.json.
    let _ = writeln!(io::stderr(), "{error}");
    match error {
        // An error with a path around it has lost its code; its kind is left.
        Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => libc::ENOSPC,
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(1),
        _ => 1,
    }
}

/// A run whose tprimat is at the other end of standard input: it sends the environment, and its end
/// ends the run.
fn of_this_host(dir: &Path) -> Result<()> {
    let inbox = settle_down(true)?;
    let env = receive_environment().map_err(Error::io("cannot receive the environment of", dir))?;
    let mut supervisor = Supervisor::new(read_spec_with(dir, env)?, inbox, dir.join(TELEMETRY));
    if supervisor.spec.job.is_none() {
        return supervisor.run();
    }
    // A step of the allocation that tprimat is in.
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    slurm::take(dir, &job)?;
    let exit = nodes::conduct(&supervisor.spec, &mut supervisor.inbox);
    supervisor.record(&exit)
}

/// The one run of a batch job: nobody holds its lifeline, and what only the node knows is settled
/// here.
fn of_a_job(dir: &Path) -> Result<()> {
    let inbox = settle_down(false)?;
    let Some(spec) = slurm::claim(dir)? else {
        // Another job has it.
        return Ok(());
    };
    let mut supervisor = Supervisor::new(spec, inbox, dir.join(TELEMETRY));
    if supervisor.spec.nodes() > 1 {
        let exit = nodes::conduct(&supervisor.spec, &mut supervisor.inbox);
        return supervisor.record(&exit);
    }
    match slurm::settle_in(&mut supervisor.spec) {
        Ok(note) => {
            supervisor.notes.extend(note);
            supervisor.run()
        }
        Err(why) => supervisor.record(&never_ran(ExitKind::LaunchFailed(why), 0.0)),
    }
}
