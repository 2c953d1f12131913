//! A supervisor, seen from tprimat: its process, and what waits for another run.

use std::{
    io,
    net::Shutdown,
    os::{
        fd::AsFd,
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    process::ExitStatus,
    sync::Mutex,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, poll},
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use super::{
    inbox::rounded_up,
    lifeline::{SentRun, Word, send_run},
    run::lock,
};

/// A supervisor that waits answers within a millisecond, but the host may be at its limit.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A child of this process, forked by its fork server. It is reaped when this is dropped, so until
/// then its pid is nobody else's. Soon after its end it may have threads that the kernel is still
/// letting go of, and whoever reaped it then would spin until they are gone, so what it left is
/// taken in first.
#[derive(Debug)]
pub(super) struct SupervisorProcess {
    pub pid: Pid,
    /// The supervisor ends the run when nothing more can come from this end: by our will, or by our
    /// death.
    pub lifeline: UnixStream,
}

impl SupervisorProcess {
    /// How it ended, once it has.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        let pid = libc::id_t::try_from(self.pid.as_raw()).map_err(io::Error::other)?;
        let look = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: zeroes are a value of it.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: it writes what it tells, and nothing else.
            let waited = unsafe { libc::waitid(libc::P_PID, pid, &raw mut ended, look) };
            match Errno::result(waited) {
                Err(Errno::EINTR) => {}
                waited => {
                    waited?;
                    break;
                }
            }
        }
        // SAFETY: it told of a child.
        let status = unsafe { ended.si_status() };
        // Any signal, also one that has a number and no name.
        Ok(ExitStatus::from_raw(match ended.si_code {
            libc::CLD_EXITED => status << 8,
            _ => status,
        }))
    }

    /// What has ended and was not reaped takes the signal and does nothing.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(self.pid, signal);
    }

    /// Sends another run to one that waits. After an error it has not begun the run, and never will:
    /// somebody may have killed or stopped it.
    fn begin(&self, run: &SentRun, patience: Duration) -> io::Result<()> {
        send_run(&self.lifeline, run)?;
        if !answers_within(patience, &self.lifeline)? {
            // From now on it cannot say that it has the run, and then it does not begin it. If it
            // has said so meanwhile, that is still to be read.
            self.lifeline.shutdown(Shutdown::Read)?;
        }
        match Word::receive(&self.lifeline) {
            Some(Word::Has) => Ok(()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Ends one that has no run.
    pub fn end(self) {
        self.signal(Signal::SIGKILL);
        let _ = self.wait();
    }
}

impl Drop for SupervisorProcess {
    fn drop(&mut self) {
        // One that lingers in a driver is left to itself.
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }
}

/// Does the other end say something, or end, in time?
pub(super) fn answers_within(patience: Duration, connection: impl AsFd) -> nix::Result<bool> {
    let asked = Instant::now();
    loop {
        let left = patience.saturating_sub(asked.elapsed());
        let mut answer = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
        match poll(&mut answer, rounded_up(left)) {
            Err(Errno::EINTR) => {}
            answered => return answered.map(|number| number > 0),
        }
    }
}

/// Supervisors whose runs are over and that wait for another one. They end with this.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Vec<SupervisorProcess>>);

impl Waiting {
    pub fn add(&self, supervisor: SupervisorProcess) {
        lock(&self.0).push(supervisor);
    }

    /// Has one of them see through `run`; `None` where it does not, or there is none. No other one is
    /// tried, since each that was stopped costs [`PATIENCE`].
    pub fn begin(&self, run: &SentRun) -> Option<SupervisorProcess> {
        // The last one has most of what it needs in the processor's caches.
        let supervisor = lock(&self.0).pop()?;
        match supervisor.begin(run, PATIENCE) {
            Ok(()) => Some(supervisor),
            Err(_) => {
                supervisor.end();
                None
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for supervisor in lock(&self.0).drain(..) {
            supervisor.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::BorrowedFd, path::Path, process::Command, thread};

    use super::*;
    use crate::execute::lifeline::receive_run;

    /// Sends a run to a supervisor whose part `other` plays.
    #[expect(clippy::zombie_processes, reason = "the supervisor is reaped as one")]
    fn begun(other: impl FnOnce(&UnixStream, BorrowedFd) + Send) -> bool {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(process.id()).unwrap());
        let supervisor = SupervisorProcess {
            pid,
            lifeline: ours,
        };
        let file: File = tempfile::tempfile().unwrap();
        let run = SentRun {
            dir: Path::new("/runs/one"),
            env: &[],
            lock: &file,
            log: &file,
            queue: None,
        };
        let has_begun = thread::scope(|scope| {
            let played = scope.spawn(|| other(&theirs, theirs.as_fd()));
            let begun = supervisor.begin(&run, Duration::from_millis(100));
            played.join().unwrap();
            begun.is_ok()
        });
        supervisor.end();
        has_begun
    }

    #[test]
    fn a_supervisor_that_answers_too_late_begins_nothing() {
        let say = |mut lifeline: &UnixStream, word: Word| {
            io::Write::write(&mut lifeline, &[word as u8]).is_ok()
        };
        assert!(begun(|lifeline, end| {
            receive_run(end).unwrap();
            assert!(say(lifeline, Word::Has));
        }));
        assert!(!begun(|lifeline, end| {
            receive_run(end).unwrap();
            thread::sleep(Duration::from_millis(400));
            assert!(!say(lifeline, Word::Has), "nobody hears it");
        }));
        // Killed before it read anything.
        assert!(!begun(|lifeline, _| {
            lifeline.shutdown(Shutdown::Both).unwrap();
        }));
    }
}
