//! A run on this host, seen from tprimat: start it, ask how it goes, end it, learn how it ended.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::Mutex,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::signal::{SigmaskHow, Signal, sigprocmask},
    unistd::{Pid, setsid},
};

use super::{
    contained::Contained,
    end_note::noted_end,
    executor::{End, Interrupted, LOOK, Run},
    folder::{
        OWNER_LOCK, SUPERVISOR_LOCK, SUPERVISOR_LOG, last_seen, lock, read_exit, read_state,
        supervisor_said, take_lock, write_spec,
    },
    inbox::{frame, heard_signals, rounded_up},
    process::Tree,
    spec::{ExitKind, RUN_ARGUMENT, RunExit, RunSpec, RunState, never_ran},
};
use crate::{
    error::{Error, Result},
    files,
};

impl Run for Running {
    fn state(&self) -> Option<RunState> {
        read_state(&self.spec.dir)
    }

    fn terminate(&self) -> Interrupted {
        let _ = self.lifeline.shutdown(Shutdown::Write);
        Interrupted::Ends
    }

    fn kill(&self) {
        self.terminate();
        let mut supervisor = lock(&self.supervisor);
        // Its pid is its own until it is waited for.
        if let Ok(None) = supervisor.try_wait() {
            let pid = Pid::from_raw(supervisor.id().cast_signed());
            let _ = nix::sys::signal::kill(pid, Signal::SIGQUIT);
        }
    }

    fn wait(&self, look: &mut (dyn FnMut() + Send)) -> Result<End> {
        let exit = self.wait_looking(look)?;
        Ok(End::Over(Box::new(exit)))
    }
}

/// How much longer a supervisor is waited for that has recorded how its run ended.
const LINGERING: Duration = Duration::from_secs(3);

/// A run that was started. Keep it until what the run left is taken in: while it lives, no other
/// tprimat sweeps the run folder. Dropping it ends the run.
#[derive(Debug)]
pub struct Running {
    spec: RunSpec,
    supervisor: Mutex<Child>,
    /// The supervisor ends the run when nothing more can come from this end, by our will or by our
    /// death; nothing more comes from its end once its process is gone.
    lifeline: UnixStream,
    _owner: File,
}

/// Starts `spec` under a supervisor: `tprimat`, executed anew. One run, one folder: launch files may
/// be there before, an earlier run may not.
pub fn start(spec: &RunSpec, tprimat: &Path) -> Result<Running> {
    let dir = &spec.dir;
    files::create_dir_all(dir)?;
    let owner = take_lock(&dir.join(OWNER_LOCK))?;
    let supervisor_lock = take_lock(&dir.join(SUPERVISOR_LOCK))?;
    write_spec(spec)?;
    let path = dir.join(SUPERVISOR_LOG);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(Error::io("cannot open", &path))?;
    let begun = begin(spec, tprimat, supervisor_lock, log);
    let (supervisor, lifeline) = begun.map_err(|error| {
        let said = supervisor_said(dir).unwrap_or_else(|| error.to_string());
        Error::failed(format!(
            "the supervisor of run {} failed: {said}",
            spec.run_id
        ))
    })?;
    Ok(Running {
        spec: spec.clone(),
        supervisor: Mutex::new(supervisor),
        lifeline,
        _owner: owner,
    })
}

/// Executes the supervisor, which inherits the lock of the run folder while it is held, and sends it
/// the environment of the trainer.
fn begin(spec: &RunSpec, tprimat: &Path, lock: File, log: File) -> io::Result<(Child, UnixStream)> {
    let environment = frame(&spec.env)?;
    let (theirs, mut lifeline) = UnixStream::pair()?;
    let mut command = Command::new(program(tprimat));
    command
        .arg0(tprimat)
        .arg(RUN_ARGUMENT)
        .arg(&spec.dir)
        .env_clear()
        // Where the host keeps its driver's library is needed to sample, and by the rest srun knows
        // the allocation that a run is a step of. The trainer has an environment of its own.
        .envs(std::env::vars_os().filter(|(name, _)| is_needed(name)))
        .stdin(OwnedFd::from(theirs))
        .stdout(lock)
        .stderr(log);
    // Ctrl-C at the terminal is tprimat's to heed, and no trainer may ask at it for a password. A signal
    // that comes before the supervisor can hear it waits until then.
    let in_child = || {
        setsid()?;
        let heard = heard_signals();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&heard), None)?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(in_child) };
    let mut supervisor = command.spawn()?;
    // It has descriptors that are the supervisor's alone from now on.
    drop(command);
    if let Err(error) = lifeline.write_all(&environment) {
        // It has ended, and says why in its log.
        let _ = supervisor.wait();
        return Err(error);
    }
    Ok((supervisor, lifeline))
}

/// What this process is executed from, also where another version was put in its place since: both
/// must know the run's folder by the same words.
fn program(tprimat: &Path) -> &Path {
    let own = Path::new("/proc/self/exe");
    let is_own = std::fs::read_link(own).is_ok_and(|path| {
        let path = path.as_os_str().as_bytes();
        path.strip_suffix(b" (deleted)").unwrap_or(path) == tprimat.as_os_str().as_bytes()
    });
    if is_own { own } else { tprimat }
}

fn is_needed(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["LD_LIBRARY_PATH", "PATH", "HOME"].contains(&&*name) || name.starts_with("SLURM_")
}

impl Running {
    /// Blocks until the run is over and no process of it is left.
    pub fn wait(&self) -> Result<RunExit> {
        self.wait_looking(&mut || ())
    }

    /// The same; `look` is called every now and then meanwhile. A supervisor that recorded how its
    /// run ended is waited for [`LINGERING`] longer: a thread of it that hangs in a driver keeps its
    /// process.
    pub(crate) fn wait_looking(&self, look: &mut dyn FnMut()) -> Result<RunExit> {
        let mut recorded: Option<Instant> = None;
        while !self.has_ended_within(LOOK) {
            look();
            if let Ok(Some(exit)) = read_exit(&self.spec.dir)
                && recorded.get_or_insert_with(Instant::now).elapsed() >= LINGERING
            {
                return Ok(exit);
            }
        }
        let status = lock(&self.supervisor).wait().map_err(Error::io(
            "cannot wait for the supervisor of",
            &self.spec.dir,
        ))?;
        match read_exit(&self.spec.dir)? {
            Some(exit) => Ok(exit),
            None => self.without_record(status),
        }
    }

    /// Has the supervisor's process ended, or does it within this time?
    fn has_ended_within(&self, patience: Duration) -> bool {
        let mut polled = [PollFd::new(self.lifeline.as_fd(), PollFlags::POLLIN)];
        // It says nothing, so what can be read is the end.
        poll(&mut polled, rounded_up(patience)).is_ok_and(|ready| ready > 0)
    }

    /// The supervisor ended and did not record how the run did.
    fn without_record(&self, status: ExitStatus) -> Result<RunExit> {
        let ended = Tree::marked(&self.spec.run_id).end(self.spec.grace(), &mut || false);
        if let Some(container) = &self.spec.container
            && let Some(contained) = Contained::of(container, &self.spec.run_id)
        {
            contained.remove();
        }
        if let Some(exit) = noted_end(&self.spec.dir) {
            if status.success() {
                // The disk had no room for a record, and the note is all of it.
                return Ok(exit);
            }
            let note = format!(
                "its supervisor ended ({status}) before it had ended what the trainer left"
            );
            return Ok(RunExit {
                survivors: ended.survivors,
                note: Some(note),
                ..exit
            });
        }
        let Some(signal) = status.signal() else {
            let in_code = || match status.code() {
                Some(errno) if errno > 1 => io::Error::from_raw_os_error(errno).to_string(),
                _ => status.to_string(),
            };
            let said = supervisor_said(&self.spec.dir).unwrap_or_else(in_code);
            let message = format!("the supervisor of run {} failed: {said}", self.spec.run_id);
            return Err(Error::failed(message));
        };
        Ok(RunExit {
            started_at: last_seen(&self.spec.dir).0,
            survivors: ended.survivors,
            note: Some(format!("the supervisor was ended by signal {signal}")),
            // The kernel ends the trainer together with its supervisor.
            ..never_ran(ExitKind::Signal(signal), 0.0)
        })
    }
}
