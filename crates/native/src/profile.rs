//! Torch's profiler over a few steps, as tprimat's callback has it in Python trainers.

use std::path::PathBuf;

use tch::TchError;

use crate::shim;

/// Steps of this process, counted from 1, whose events are kept.
const ACTIVE: std::ops::RangeInclusive<u64> = 3..=5;

pub struct Profile {
    trace: PathBuf,
    is_started: bool,
}

impl Profile {
    /// Where `experiment.profiling=torch` asks the process with this rank for a trace.
    pub fn asked(rank: u64) -> Option<Self> {
        let folder = std::env::var_os("TPRIMAT_PROFILE_DIR").filter(|_| rank == 0)?;
        Some(Self {
            trace: PathBuf::from(folder).join("trace.json"),
            is_started: false,
        })
    }

    /// Step `number` of this process, counted from 1, is about to begin.
    pub fn before(&mut self, number: u64) -> Result<(), TchError> {
        if number + 1 == *ACTIVE.start() {
            shim::profile_prepare()?;
        }
        if number == *ACTIVE.start() {
            shim::profile_start()?;
            self.is_started = true;
        }
        if self.is_started && number > *ACTIVE.end() {
            return self.end();
        }
        match self.is_started {
            true => shim::profile_step(number as i64),
            false => Ok(()),
        }
    }

    /// After the last step.
    pub fn end(&mut self) -> Result<(), TchError> {
        match std::mem::take(&mut self.is_started) {
            true => shim::profile_stop(&self.trace),
            false => Ok(()),
        }
    }
}
