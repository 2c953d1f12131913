//! How the trainer of a run ended, noted as soon as its inputs were looked at. To end what the
//! trainer left behind takes seconds, in which the supervisor may be killed, and a full disk may have
//! no room for `exit.json`. The note's bytes are reserved before the trainer starts.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
};

use super::{
    folder::{is_log_seen, read_exit},
    spec::RunExit,
};
use crate::{
    error::Result,
    files::{self, MOST_BYTES},
};

pub(crate) const END_NOTE: &str = "end-note.json";

/// Enough for every end of a run that counts. A longer note takes more of the disk, where there is more.
const RESERVED: usize = 4096;

pub(crate) struct EndNote(File);

impl EndNote {
    /// Makes the file in a run folder, of spaces, which JSON may end with.
    pub fn reserve(dir: &Path) -> io::Result<Self> {
        let path = dir.join(END_NOTE);
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&[b' '; RESERVED])?;
        Ok(Self(file))
    }

    /// To be called once the log is on disk: whoever reads the note may be on another host, or come after a
    /// power cut.
    pub fn note(&self, exit: &RunExit) -> io::Result<()> {
        let text = serde_json::to_string(exit)?;
        self.0
            .write_all_at(format!("{text:RESERVED$}").as_bytes(), 0)?;
        self.0.sync_data()
    }
}

/// How the trainer ended, where it is noted: of a run whose supervisor is gone.
pub(crate) fn noted_end(dir: &Path) -> Option<RunExit> {
    let text = files::read_bounded(&dir.join(END_NOTE), MOST_BYTES).ok()?;
    let exit = serde_json::from_slice(&text).ok()?;
    Some(exit).filter(|exit| is_log_seen(dir, exit))
}

/// How the run of a folder ended whose supervisor is gone: as it recorded it, or else as its trainer
/// did.
pub(crate) fn exit_or_end(dir: &Path) -> Result<Option<RunExit>> {
    Ok(read_exit(dir)?.or_else(|| noted_end(dir)))
}
