//! When a run's log grew.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
};

use super::folder::TIMES;
use crate::files::unix_now;

/// The sidecar `times`: a line `<unix time> <bytes of log by then>` whenever the log has grown.
pub(crate) struct LogTimes {
    pub log: File,
    sidecar: File,
    /// How long the log was at the last look.
    pub known: u64,
}

impl LogTimes {
    pub fn open(dir: &Path, log: File) -> io::Result<Self> {
        // Lines are added while the run goes on; whoever is killed meanwhile, those before stay.
        let sidecar = OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join(TIMES))?;
        let mut times = Self {
            log,
            sidecar,
            known: 0,
        };
        times.write(0);
        Ok(times)
    }

    pub fn look(&mut self) {
        if let Ok(length) = self.log.metadata().map(|m| m.len())
            && length != self.known
        {
            self.known = length;
            self.write(length);
        }
    }

    /// A line that cannot be written (a full disk) is missed, no more: the log is what counts.
    fn write(&mut self, length: u64) {
        let line = format!("{:.6} {length}\n", unix_now());
        // In one piece, so that a kill leaves whole lines.
        let _ = self.sidecar.write_all(line.as_bytes());
    }
}
