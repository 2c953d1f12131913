//! When a run's log grew.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::run::{RunState, log_path, spec_path, state_path, times_path};
use crate::files::{start_writing, unix_now};

/// When a run whose end nobody recorded began, and when it was last seen. The time of what its folder
/// does not say is taken to be now.
pub(super) fn last_seen(dir: &Path) -> (f64, f64) {
    let times = fs::read_to_string(times_path(dir)).unwrap_or_default();
    let time = |line: &str| {
        let time: f64 = line.split_once(' ')?.0.parse().ok()?;
        time.is_finite().then_some(time)
    };
    let mut grew = times.lines().filter_map(time);
    let first = grew.next();
    let ended = grew.next_back().or(first).unwrap_or_else(unix_now);
    let state = fs::read(state_path(dir)).unwrap_or_default();
    let began = match serde_json::from_slice(&state) {
        Ok(RunState::Running { since, .. }) => Some(since),
        // It is ending, or was never told of.
        _ => first,
    };
    (began.map_or(ended, |began| began.min(ended)), ended)
}

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
            .open(times_path(dir))?;
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

/// Brings to disk what the run in `dir` left, those of the files that are there: what it runs, its log,
/// when that grew, and the samples of its devices.
pub(super) fn sync_run(dir: &Path, samples: &Path) -> io::Result<()> {
    let samples = samples.to_owned();
    let files = [spec_path(dir), log_path(dir), times_path(dir), samples];
    let open = |path: &PathBuf| match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        opened => Some(opened),
    };
    let files: Vec<File> = files.iter().filter_map(open).collect::<io::Result<_>>()?;
    files.iter().for_each(start_writing);
    files
        .iter()
        .map(File::sync_all)
        .fold(Ok(()), io::Result::and)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    #[test]
    fn a_run_without_a_record_of_its_end_lasted_as_long_as_it_was_seen() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let write = |name: &str, text: &str| {
            write_atomically(&dir.join(name), text.as_bytes(), Durability::Plain).unwrap();
        };
        let before = unix_now();
        let (began, ended) = last_seen(dir);
        assert!(began == ended && ended >= before, "it says nothing");
        write("state.json", r#"{"state":"running","since":10.5}"#);
        write("times", "10.600000 0\n70.250000 1155\n");
        assert_eq!(last_seen(dir), (10.5, 70.25));
        // Told to end, it no longer says since when it ran; its last line was cut off.
        write("state.json", r#"{"state":"ending"}"#);
        write("times", "10.600000 0\n70.250000 1155\n71.2");
        assert_eq!(last_seen(dir), (10.6, 70.25));
    }
}
