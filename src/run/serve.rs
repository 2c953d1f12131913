//! The process of a supervisor: where its run comes from, and its exit code.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

use nix::libc;

use super::{
    batch,
    folder::read_spec_with,
    inbox::{receive_environment, settle_down},
    kubernetes, nodes,
    spec::{ExitKind, TELEMETRY, never_ran},
    supervisor::Supervisor,
    system,
};
use crate::error::{Error, Result, exit};

/// Body of `tprimat __run DIR [job | pod | pod-K | node]`, the supervisor of the run in a folder. Returns the
/// process's exit code: the error's number where it has one, for on a full disk the supervisor has
/// no other way to say it.
#[must_use]
pub fn supervise(dir: &Path, role: Option<&str>) -> i32 {
    let done = match role {
        None => of_this_host(dir),
        Some(system::JOB) => {
            let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
            of_a_job(dir, &job, &dir.join(batch::ENVIRONMENT), &BTreeMap::new())
        }
        Some(nodes::NODE) => nodes::number().and_then(|number| nodes::supervise(dir, number, None)),
        Some(role) => match kubernetes::node_of(role) {
            Some(number) => of_a_pod(dir, number),
            None => return exit::USAGE,
        },
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
    batch::take(dir, &job)?;
    let exit = nodes::conduct(&supervisor.spec, &mut supervisor.inbox);
    supervisor.record(&exit)
}

/// A pod's own variables are those of its image, and what a device plugin says.
fn of_a_pod(dir: &Path, number: usize) -> Result<()> {
    let mut of_image: BTreeMap<String, String> = std::env::vars().collect();
    let environment = of_image.remove(kubernetes::ENVIRONMENT_VARIABLE);
    let id = dir.file_name().unwrap_or_default().to_string_lossy();
    let environment = environment.unwrap_or_default();
    let environment = Path::new(&environment);
    if number > 0 {
        let mut env = of_image;
        env.extend(batch::environment_in(environment)?);
        return nodes::supervise_pod(dir, number, &env);
    }
    let job = kubernetes::name_of(&id, 0);
    of_a_job(dir, &job, environment, &of_image)
}

/// The one run of a batch job: nobody holds its lifeline, and what only the node knows is settled
/// here. `beside`: variables that the trainer gets beside its own.
fn of_a_job(
    dir: &Path,
    job: &str,
    environment: &Path,
    beside: &BTreeMap<String, String>,
) -> Result<()> {
    let inbox = settle_down(false)?;
    let Some(mut spec) = batch::claim(dir, job, environment)? else {
        // Another job has it.
        return Ok(());
    };
    // Its own are stronger.
    let own = std::mem::replace(&mut spec.env, beside.clone());
    spec.env.extend(own);
    let mut supervisor = Supervisor::new(spec, inbox, dir.join(TELEMETRY));
    if supervisor.spec.nodes() > 1 {
        let exit = nodes::conduct(&supervisor.spec, &mut supervisor.inbox);
        return supervisor.record(&exit);
    }
    match batch::settle_in(&mut supervisor.spec) {
        Ok(()) => supervisor.run(),
        Err(why) => supervisor.record(&never_ran(ExitKind::LaunchFailed(why), 0.0)),
    }
}
