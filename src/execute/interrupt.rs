//! Ctrl-C and its kin: the first signal asks, the second kills, the third ends tprimat on the spot
//! (whose supervisors then end their runs, for their lifelines close).
//!
//! Only what was asked is noted here. `schedule.rs` reads it and ends each run, for which `run/local.rs`
//! closes its lifeline; `supervisor.rs` then sends signals to every process of the run, which
//! `process.rs` finds.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use nix::{
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
};

use crate::error::{Error, Result};

static FIRST: AtomicI32 = AtomicI32::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// What was received since [`install_interrupt_handler`].
#[derive(Clone, Copy, Debug)]
pub struct Interrupts(());

impl Interrupts {
    /// The first signal: end the runs, with grace, and exit with 128 + it.
    #[must_use]
    pub fn asked(self) -> Option<i32> {
        Some(FIRST.load(Ordering::Acquire)).filter(|&signal| signal != 0)
    }

    /// How many came.
    #[must_use]
    pub fn count(self) -> u32 {
        COUNT.load(Ordering::Acquire)
    }

    /// A second one came: no more grace.
    #[must_use]
    pub fn insisted(self) -> bool {
        COUNT.load(Ordering::Acquire) >= 2
    }
}

/// Handles SIGINT, SIGTERM and SIGHUP from now on; one that was ignored (`nohup`) stays ignored.
pub fn install_interrupt_handler() -> Result<Interrupts> {
    let action = SigAction::new(
        SigHandler::Handler(on_signal),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let failed = |e| Error::failed(format!("cannot handle {signal}: {e}"));
        // SAFETY: the handler touches atomics only, and may call `_exit`, which is
        // async-signal-safe.
        let before = unsafe { sigaction(signal, &action) }.map_err(failed)?;
        if matches!(before.handler(), SigHandler::SigIgn) {
            // SAFETY: puts back what was there.
            unsafe { sigaction(signal, &before) }.map_err(failed)?;
        }
    }
    Ok(Interrupts(()))
}

/// Files that are mapped into memory (datasets, the cache's index) end a process with SIGBUS when
/// somebody cuts them meanwhile. From now on it says so and ends with an error, instead of a core
/// dump.
pub fn explain_cut_files() {
    let action = SigAction::new(
        SigHandler::Handler(on_cut_file),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler writes and exits, both of which are async-signal-safe. Where it cannot be
    // set, the signal acts as before.
    let _ = unsafe { sigaction(Signal::SIGBUS, &action) };
}

extern "C" fn on_cut_file(_: libc::c_int) {
    const TEXT: &[u8] =
        b"error: a file was cut short while it was read; run the command again when nobody writes to it\n";
    // SAFETY: the text is as long as it says, and both calls are async-signal-safe.
    unsafe {
        libc::write(libc::STDERR_FILENO, TEXT.as_ptr().cast(), TEXT.len());
        libc::_exit(crate::error::exit::FAILED);
    }
}

extern "C" fn on_signal(signal: libc::c_int) {
    let _ = FIRST.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Relaxed);
    if COUNT.fetch_add(1, Ordering::AcqRel) >= 2 {
        // SAFETY: `_exit` is async-signal-safe, and nothing here needs unwinding.
        unsafe { libc::_exit(128 + signal) };
    }
}
