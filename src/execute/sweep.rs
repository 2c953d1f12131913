//! Takes up the runs of a tprimat that died: no process of them stays, nothing measured is lost.

use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use super::{
    process::Tree,
    run::{RunExit, RunSpec, log_path, owner_lock_path, read_exit, spec_path, supervisor_lock_path},
};
use crate::error::{Error, Result};

/// What a supervisor may take beyond the run's grace to end a tree and record it.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(15);
/// A folder that has no lock by now belongs to a tprimat that died before it started the run.
const STRAY_AGE: Duration = Duration::from_secs(3600);

/// A run that nobody waits for any more. While this lives, no other tprimat takes it up.
#[derive(Debug)]
pub struct Leftover {
    /// Without its environment, which is never stored.
    pub spec: RunSpec,
    /// Where the run's files are now; for the caller to remove once they are taken in.
    pub dir: PathBuf,
    /// `None`: the run ended unrecorded (power cut, killed supervisor).
    pub exit: Option<RunExit>,
    pub log: PathBuf,
    /// Processes of the run that were still there and were ended.
    pub ended: usize,
    _owner: File,
    _supervisor: File,
}

/// Goes through the run folders in `runs_dir`; those of a living tprimat are passed over.
pub fn sweep(runs_dir: &Path) -> Result<Vec<Leftover>> {
    let entries = match fs::read_dir(runs_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("cannot read the folder", runs_dir)(error)),
    };
    // Not through links: what they point to is not ours to end or remove.
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
    folders.sort();
    Ok(folders.iter().filter_map(|dir| take_up(dir)).collect())
}

fn take_up(dir: &Path) -> Option<Leftover> {
    let Ok(owner) = OpenOptions::new().read(true).write(true).open(owner_lock_path(dir)) else {
        remove_stray(dir);
        return None;
    };
    owner.try_lock().ok()?;
    // Another sweep may have removed the folder between the two lines above.
    if !same_file(&owner, &owner_lock_path(dir)) {
        return None;
    }
    let spec = fs::read(spec_path(dir)).ok().and_then(|text| serde_json::from_slice::<RunSpec>(&text).ok());
    let Some(spec) = spec else {
        // Killed before the run was described: it never started.
        if !log_path(dir).exists() {
            let _ = fs::remove_dir_all(dir);
        }
        return None;
    };
    let supervisor = wait_for_supervisor(dir, spec.grace().saturating_add(SUPERVISOR_PATIENCE))?;
    let ended = Tree::marked(&spec.run_id).end(spec.grace(), &mut || false);
    Some(Leftover {
        dir: dir.to_owned(),
        exit: read_exit(dir),
        log: log_path(dir),
        ended: ended.count,
        _owner: owner,
        _supervisor: supervisor,
        spec,
    })
}

/// The owner is gone, so the supervisor is ending the run; one that takes too long is left for the next sweep.
fn wait_for_supervisor(dir: &Path, patience: Duration) -> Option<File> {
    let path = supervisor_lock_path(dir);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).ok()?;
    let begun = Instant::now();
    while file.try_lock().is_err() {
        if begun.elapsed() >= patience {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Some(file)
}

fn remove_stray(dir: &Path) {
    let age = fs::metadata(dir).and_then(|m| m.modified()).ok().and_then(|t| SystemTime::now().duration_since(t).ok());
    if age.is_some_and(|age| age > STRAY_AGE) {
        let _ = fs::remove_dir_all(dir);
    }
}

fn same_file(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = |m: fs::Metadata| (m.dev(), m.ino());
    matches!((open.metadata().map(inode), fs::metadata(path).map(inode)), (Ok(a), Ok(b)) if a == b)
}
