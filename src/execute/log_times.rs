//! When a run's log grew.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    panic::resume_unwind,
    path::Path,
    thread,
};

use crate::files::unix_now;

/// The sidecar `times`: a line `<unix time> <bytes of log by then>` whenever the log has grown.
pub(super) struct LogTimes {
    pub log: File,
    sidecar: File,
    known: u64,
}

impl LogTimes {
    pub fn open(dir: &Path, log: File) -> io::Result<Self> {
        // Lines are added while the run goes on; whoever is killed meanwhile, those before stay.
        let sidecar = OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join("times"))?;
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

    /// Both at once: a file system writes its journal once for all who ask at the same time.
    pub fn sync(&self) -> io::Result<()> {
        thread::scope(|scope| {
            let sidecar = scope.spawn(|| self.sidecar.sync_all());
            self.log.sync_all()?;
            sidecar.join().unwrap_or_else(|e| resume_unwind(e))
        })
    }
}
