//! The process of a supervisor: how it gets its runs, and its exit code.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, Write},
    os::fd::AsFd,
    path::Path,
};

use nix::libc;

use super::{Supervisor, never_ran};
use crate::{
    error::{Error, Result},
    execute::{
        fork_server::put,
        inbox::{Inbox, settle_down},
        input_watch::Queue,
        lifeline::{Word, receive_environment, receive_run},
        nodes,
        run::{ExitKind, RunSpec, TELEMETRY, spec_path},
        slurm,
    },
    files,
};

/// Sees through the runs that come over standard input, one after the other, until one of them may
/// have left something behind in this process. Returns the process's exit code: the error's number
/// where it has one, for on a full disk the supervisor has no other way to say it. `show` puts the
/// run's folder into lists of processes, and none between two runs.
pub(in crate::execute) fn supervise_runs(show: impl Fn(Option<&Path>)) -> i32 {
    let mut inbox: Option<Inbox> = None;
    loop {
        if inbox.as_mut().is_some_and(|inbox| !inbox.wait_for_run()) {
            return 0;
        }
        let Ok(Some(run)) = receive_run(io::stdin().as_fd()) else {
            return 0;
        };
        // Somebody may have stopped this process until tprimat had another one for the run.
        if !Word::Has.say() {
            return 0;
        }
        show(Some(&run.dir));
        let (lock, log) = (run.lock.as_fd(), run.log.as_fd());
        if let Err(errno) = put(lock, libc::STDOUT_FILENO).and(put(log, libc::STDERR_FILENO)) {
            return errno as i32;
        }
        let (dir, queue) = (run.dir, run.queue);
        drop((run.lock, run.log));
        match see_through(&dir, queue, inbox) {
            Ok(Some(next)) => inbox = Some(next),
            done => return exit_code(done.map(drop)),
        }
        // The lock tells whether the run's folder is still ours, and tprimat is about to take it in.
        let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") else {
            return 0;
        };
        let streams = [libc::STDOUT_FILENO, libc::STDERR_FILENO];
        if streams.map(|stream| put(null.as_fd(), stream)) != [Ok(()); 2] {
            return 0;
        }
        show(None);
        if !Word::Ready.say() {
            return 0;
        }
    }
}

/// One run, from its environment to its record; what is needed for another one, where this process
/// is as it was before.
fn see_through(dir: &Path, queue: Option<Queue>, inbox: Option<Inbox>) -> Result<Option<Inbox>> {
    let inbox = inbox.map_or_else(|| settle_down(true), Ok)?;
    let env = receive_environment().map_err(Error::io("cannot receive the environment of", dir))?;
    let spec = read_spec(dir, env)?;
    let mut supervisor = Supervisor {
        queue,
        ..Supervisor::new(spec, inbox, dir.join(TELEMETRY))
    };
    if supervisor.spec.job.is_none() {
        return supervisor.run();
    }
    // A step of the allocation that tprimat is in.
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    slurm::take(dir, &job)?;
    let exit = nodes::conduct(&supervisor.spec, &mut supervisor.inbox);
    supervisor.record(&exit)?;
    Ok(None)
}

/// Body of `tprimat __job DIR`, the supervisor of the one run of a batch job: nobody holds its
/// lifeline, and what only the node knows is settled here.
#[must_use]
pub fn supervise_job(dir: &Path) -> i32 {
    exit_code(prepare_job(dir).and_then(|supervisor| match supervisor {
        // Another job has it.
        None => Ok(()),
        Some(mut supervisor) if supervisor.spec.nodes() > 1 => {
            let exit = nodes::conduct(&supervisor.spec, &mut supervisor.inbox);
            supervisor.record(&exit)
        }
        Some(mut supervisor) => match slurm::settle_in(&mut supervisor.spec) {
            Ok(note) => {
                supervisor.notes.extend(note);
                supervisor.run().map(drop)
            }
            Err(why) => supervisor.record(&never_ran(ExitKind::LaunchFailed(why), 0.0)),
        },
    }))
}

/// The exit code of a supervisor's process.
pub(in crate::execute) fn exit_code(result: Result<()>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            // Into supervisor.log, where tprimat looks when there is no exit.json.
            let _ = writeln!(io::stderr(), "{error}");
            match error {
                // An error with a path around it has lost its code; its kind is left.
                Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                    libc::ENOSPC
                }
                Error::Io { source, .. } => source.raw_os_error().unwrap_or(1),
                _ => 1,
            }
        }
    }
}

fn prepare_job(dir: &Path) -> Result<Option<Supervisor>> {
    let inbox = settle_down(false)?;
    let Some(spec) = slurm::claim(dir)? else {
        return Ok(None);
    };
    Ok(Some(Supervisor::new(spec, inbox, dir.join(TELEMETRY))))
}

pub(in crate::execute) fn read_spec(dir: &Path, env: BTreeMap<String, String>) -> Result<RunSpec> {
    let path = spec_path(dir);
    let spec: RunSpec = serde_json::from_slice(&files::read(&path)?).map_err(|e| Error::Io {
        what: "cannot read",
        path,
        source: e.into(),
    })?;
    Ok(RunSpec {
        dir: dir.to_owned(),
        env,
        ..spec
    })
}
