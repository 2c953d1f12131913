//! The trainer's process: how it is started, and how it ended.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitStatus},
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask},
    },
    unistd::{Pid, getpid, getppid},
};

use super::Supervisor;
use crate::run::{
    folder::LOG,
    log_times::LogTimes,
    process::RUN_ID_VARIABLE,
    spec::{ContainerSpec, ExitKind},
};

impl Supervisor {
    /// Starts the trainer; in words why not, if not.
    pub(super) fn launch(&self) -> Result<(duct::Handle, LogTimes), String> {
        let spec = &self.spec;
        let mut env = spec.env.clone();
        env.insert(RUN_ID_VARIABLE.to_owned(), spec.run_id.clone());
        let (argv, env, input) = match &spec.container {
            None => (spec.argv.clone(), env, None),
            Some(container) => (
                container.command(&spec.argv),
                self.engine_environment(container),
                Some(ContainerSpec::input(&env)),
            ),
        };
        let Some((program, arguments)) = argv.split_first().filter(|_| !spec.argv.is_empty())
        else {
            return Err("the command is empty".into());
        };
        if !spec.cwd.is_dir() {
            return Err(format!(
                "cannot start `{program}`: its folder {} does not exist",
                spec.cwd.display()
            ));
        }
        let path = spec.dir.join(LOG);
        let cannot_open = |e: io::Error| format!("cannot open {}: {e}", path.display());
        let (log, times) = open_log(&spec.dir, &path).map_err(cannot_open)?;
        let errors = log.try_clone().map_err(cannot_open)?;
        let supervisor = getpid();
        let command = duct::cmd(program, arguments);
        let command = match input {
            None => command.stdin_null(),
            Some(bytes) => command.stdin_bytes(bytes),
        };
        let handle = command
            .full_env(env)
            .dir(&spec.cwd)
            .stdout_file(log)
            .stderr_file(errors)
            .unchecked()
            .before_spawn(move |command| {
                tie(command, supervisor);
                Ok(())
            })
            .start()
            .map_err(|e| format!("cannot start `{program}`: {e}"))?;
        Ok((handle, times))
    }

    /// What the engine's own program gets. A job's step (pyxis) must know which job it belongs to,
    /// and that is this process's, not one that held the host of the submission.
    fn engine_environment(&self, container: &ContainerSpec) -> BTreeMap<String, String> {
        let mut environment = container.environment.clone();
        if self.spec.job.is_some() {
            environment.retain(|name, _| !name.starts_with("SLURM_") || name == "SLURM_CONF");
            environment.extend(std::env::vars().filter(|(name, _)| name.starts_with("SLURM_")));
        }
        environment
    }
}

pub(super) fn pid_of(handle: &duct::Handle) -> Option<i32> {
    handle
        .pids()
        .first()
        .and_then(|&pid| i32::try_from(pid).ok())
}

pub(super) fn exit_status(handle: &duct::Handle) -> Option<ExitStatus> {
    handle.try_wait().ok().flatten().map(|output| output.status)
}

pub(super) fn exit_kind(status: ExitStatus) -> ExitKind {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitKind::Code(code),
        (None, signal) => ExitKind::Signal(signal.unwrap_or_default()),
    }
}

/// The log, which the trainer itself appends to: nothing stands between its bytes and the file.
fn open_log(dir: &Path, path: &Path) -> io::Result<(File, LogTimes)> {
    let log = OpenOptions::new().create(true).append(true).open(path)?;
    // A file of its own: what is appended to cannot be written to elsewhere.
    let times = LogTimes::open(dir, OpenOptions::new().read(true).write(true).open(path)?)?;
    Ok((log, times))
}

/// Makes the trainer a group of its own that the kernel kills when the supervisor dies, with the
/// signals as they are by default.
fn tie(command: &mut Command, supervisor: Pid) {
    command.process_group(0);
    let in_child = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // What is blocked here would stay blocked there: not even SIGTERM would get through.
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        // A shell in the background ignores these, and so would the trainer.
        for ignored in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
            // SAFETY: the default action runs no code of ours.
            unsafe { signal(ignored, SigHandler::SigDfl) }?;
        }
        // The supervisor may have died before the line that ties the trainer to it took hold.
        if getppid() == supervisor {
            Ok(())
        } else {
            Err(io::Error::from(Errno::ESRCH))
        }
    };
    // SAFETY: between fork and exec it makes system calls and allocates nothing.
    unsafe { command.pre_exec(in_child) };
}
