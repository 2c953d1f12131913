//! What reaches a supervisor: the end of its lifeline, signals, the deaths of its children.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::fd::AsFd,
    time::Duration,
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::setsid,
};

use crate::error::{Error, Result};

/// What a supervisor hears of, instead of ending by it.
pub(crate) fn heard_signals() -> SigSet {
    use Signal::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    SigSet::from_iter([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGCHLD])
}

/// Makes this process a supervisor: no signal ends it, and orphans of its run come to it.
pub(crate) fn settle_down(has_lifeline: bool) -> Result<Inbox> {
    let broken = |what: &'static str| move |e: Errno| Error::failed(format!("{what}: {e}"));
    keep_files_to_ourselves();
    let inbox = Inbox::open(has_lifeline).map_err(broken("cannot receive signals"))?;
    // Fails only where this process leads a group already: a session of its own, or a job's.
    let _ = setsid();
    prctl::set_child_subreaper(true).map_err(broken("cannot adopt orphans"))?;
    Ok(inbox)
}

/// The trainer gets no file that tprimat's own parent left open (make's job server, a shell's).
fn keep_files_to_ourselves() {
    // SAFETY: it sets a flag on descriptors and touches no memory.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}

/// What reaches the supervisor: the end of its lifeline, signals, the deaths of children.
pub(crate) struct Inbox {
    signals: SignalFd,
    /// Does standard input end when tprimat does?
    has_lifeline: bool,
    /// tprimat is gone, or wants the run to end.
    lifeline_closed: bool,
    /// A signal asked for the end.
    asked: bool,
    /// SIGQUIT, or a second signal: no more grace.
    hurry: bool,
}

impl Inbox {
    pub fn open(has_lifeline: bool) -> nix::Result<Self> {
        let set = heard_signals();
        // Blocked here, not in the trainer: `launch` unblocks them there.
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&set), None)?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self {
            signals,
            has_lifeline,
            lifeline_closed: false,
            asked: false,
            hurry: false,
        })
    }

    pub fn is_in_a_hurry(&self) -> bool {
        self.hurry
    }

    pub fn stop(&self) -> bool {
        self.lifeline_closed || self.asked || self.hurry
    }

    /// Waits for something to arrive, a child's death included, or at most `patience`.
    pub fn wait(&mut self, patience: Duration) {
        let stdin = io::stdin();
        let signals = PollFd::new(self.signals.as_fd(), PollFlags::POLLIN);
        let lifeline = PollFd::new(stdin.as_fd(), PollFlags::POLLIN);
        let mut both = [signals, lifeline];
        // Once closed it stays readable for ever.
        let watched = if self.lifeline_closed || !self.has_lifeline {
            &mut both[..1]
        } else {
            &mut both[..]
        };
        let _ = poll(watched, rounded_up(patience));
        if watched.get(1).is_some_and(|fd| fd.any() == Some(true)) {
            self.lifeline_closed = nix::unistd::read(stdin.as_fd(), &mut [0]) == Ok(0);
        }
        self.read_signals();
    }

    fn read_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            match i32::try_from(info.ssi_signo).map(Signal::try_from) {
                Ok(Ok(Signal::SIGCHLD)) => {}
                Ok(Ok(Signal::SIGQUIT)) => self.hurry = true,
                _ if self.asked => self.hurry = true,
                _ => self.asked = true,
            }
        }
    }
}

/// In the whole milliseconds that `poll` takes: a wait of less than one would spin.
pub(crate) fn rounded_up(patience: Duration) -> PollTimeout {
    let patience = patience.saturating_add(Duration::from_micros(999));
    PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX)
}

/// An environment as it is sent: first the length in 8 bytes, then JSON.
pub(crate) fn frame(env: &BTreeMap<String, String>) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(env)?;
    let length = (text.len() as u64).to_le_bytes();
    Ok([&length[..], &text].concat())
}

/// What the other end of standard input sends as one [`frame`]. Reads no byte more.
pub(crate) fn receive_environment() -> io::Result<BTreeMap<String, String>> {
    let mut lifeline = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut length = [0; 8];
    lifeline.read_exact(&mut length)?;
    let mut text = Vec::new();
    let mut environment = lifeline.take(u64::from_le_bytes(length));
    environment.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
