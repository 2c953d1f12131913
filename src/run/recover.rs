//! Recovers the runs of a tprimat process that died: ends what is left of their processes, and keeps
//! what was measured.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    batch::{self, Systems},
    contained::Contained,
    end_note::{END_NOTE, exit_or_end},
    executor::End,
    folder::{
        GONE, HOST, MAKING, if_there, log_path, owner_lock_path, read_exit, read_if_there, remove,
        spec_path, supervisor_lock_path, was_never_written,
    },
    hang::STACKS,
    process::Tree,
    spec::{RunExit, RunSpec, TELEMETRY},
};
use crate::{
    error::{Error, Result},
    files,
};

/// What a supervisor may take beyond the run's grace to end a tree and record it.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(15);
/// How long an answer of a batch system is used again. Once a job has ended it stays so, and whoever needs a
/// job that still runs waits for it anyway.
const ANSWER: Duration = Duration::from_secs(60);

/// A run that nobody waits for any more. While this value exists, no other tprimat recovers the run.
#[derive(Debug)]
pub struct Leftover {
    /// Without its environment, which is never stored.
    pub spec: RunSpec,
    /// Where the run's files are now. The caller removes them once they are in the cache.
    pub dir: PathBuf,
    /// `None`: the run ended unrecorded (power cut, killed supervisor).
    pub exit: Option<RunExit>,
    pub log: PathBuf,
    /// How many processes of it had to be ended.
    pub ended: usize,
    _owner: File,
    _supervisor: File,
}

/// What a sweep found.
#[derive(Debug, Default)]
pub struct Swept {
    pub left: Vec<Leftover>,
    /// Folders that do not say which run they are of, and are left as they are.
    pub undescribed: Vec<PathBuf>,
    /// One error for each folder that cannot be read now, and is left as it is.
    pub errors: Vec<Error>,
}

/// Goes through the run folders in `runs_dir`, and passes over those of a living tprimat. `env`:
/// the caller's, in whose PATH container engines are looked up.
pub fn sweep(runs_dir: &Path, env: &BTreeMap<String, String>, systems: &Systems) -> Swept {
    let mut swept = Swept::default();
    let found = remove_strays(runs_dir).and_then(|()| folders(runs_dir));
    let folders = found.unwrap_or_else(|error| {
        swept.errors.push(error);
        Vec::new()
    });
    for dir in folders {
        match take_up(&dir, env, systems) {
            Ok(Taken::Leftover(left)) => swept.left.push(*left),
            Ok(Taken::Undescribed) => swept.undescribed.push(dir),
            Ok(Taken::GoesOn(..) | Taken::Held | Taken::Nothing) => {}
            Err(error) => swept.errors.push(error),
        }
    }
    swept
}

/// What became of the run in a folder that somebody wants to take up.
pub(crate) enum Taken {
    /// It is over, and what it left is the caller's.
    Leftover(Box<Leftover>),
    /// It goes on as a batch job, without anybody who waits for it. The lock is its owner's.
    GoesOn(Box<RunSpec>, File),
    /// Somebody holds it, perhaps for an instant only, or its supervisor is ending it.
    Held,
    /// Nothing can be taken from it, now or later.
    Nothing,
    /// The same, since nobody knows which run it is of; a person may.
    Undescribed,
}

fn folders(runs_dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(runs_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("cannot read the folder", runs_dir)(error)),
    };
    // Not through links: what they point to is not ours to end or remove.
    let folder = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        match entry.file_type() {
            Ok(kind) => Ok(kind.is_dir().then(|| entry.path())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    let folders = entries.filter_map(|entry| folder(entry).transpose());
    let mut folders: Vec<PathBuf> = folders
        .collect::<io::Result<_>>()
        .map_err(Error::io("cannot read the folder", runs_dir))?;
    folders.sort();
    Ok(folders)
}

/// Folders of runs that were described and not removed yet.
pub(crate) fn run_folders(runs_dir: &Path) -> Result<Vec<PathBuf>> {
    let is_gone = |dir: &Path| {
        dir.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(GONE))
    };
    // A description that cannot be looked at may be there: whoever reads it is told why not.
    let is_described = |dir: &Path| spec_path(dir).try_exists().unwrap_or(true);
    let mut folders = folders(runs_dir)?;
    folders.retain(|dir| !is_gone(dir) && is_described(dir));
    Ok(folders)
}

/// Does a supervisor still work on this run?
pub(crate) fn is_supervised(dir: &Path) -> bool {
    supervisor_lock_path(dir).exists() && !is_free(&supervisor_lock_path(dir))
}

/// Is the tprimat alive that asked for this run?
pub(crate) fn has_owner(dir: &Path) -> bool {
    !is_free(&owner_lock_path(dir))
}

/// Are both dead, who asked for the run and who watched over it?
pub(crate) fn is_abandoned(dir: &Path) -> bool {
    !has_owner(dir) && !is_supervised(dir) && !is_elsewhere(dir)
}

/// May this be the run of a batch job that has not said how it ended? Then locks tell nothing of it.
pub(crate) fn is_elsewhere(dir: &Path) -> bool {
    match (read_exit(dir), read_spec(dir)) {
        (Ok(Some(_)), _) | (Ok(None), Ok(None)) => false,
        (Ok(None), Ok(Some(spec))) => spec.is_batch(),
        (Err(_), _) | (_, Err(_)) => true,
    }
}

/// What the run of a folder was to do; `None`: it does not say it, or in words of another version.
/// A description that could not be read is an error: its run may go on, and must not be made twice.
pub(crate) fn read_spec(dir: &Path) -> Result<Option<RunSpec>> {
    let text = read_if_there(&spec_path(dir))?;
    Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
}

/// Whether nobody holds a lock; shared, so that several may ask at once.
fn is_free(path: &Path) -> bool {
    OpenOptions::new()
        .read(true)
        .open(path)
        .is_ok_and(|file| file.try_lock_shared().is_ok())
}

/// Removes folders that never became a run, and those whose removal was cut short.
fn remove_strays(runs_dir: &Path) -> Result<()> {
    let Ok(lock) = OpenOptions::new()
        .read(true)
        .write(true)
        .open(runs_dir.join(MAKING))
    else {
        return Ok(());
    };
    if lock.try_lock().is_err() {
        return Ok(());
    }
    for dir in folders(runs_dir)? {
        if !files::is_own(&dir) {
            continue;
        }
        let is_gone = dir
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(GONE));
        if is_gone || !owner_lock_path(&dir).exists() {
            let _ = fs::remove_dir_all(&dir);
        }
    }
    Ok(())
}

/// Everything that a run folder may hold of its run, which only whoever ran it can have put there.
const OF_A_RUN: [&str; 11] = [
    "spec.json",
    "exit.json",
    END_NOTE,
    "state.json",
    "log",
    "times",
    TELEMETRY,
    STACKS,
    HOST,
    "owner.lock",
    "supervisor.lock",
];

/// A folder of the caller's own with regular files of the caller's own. In a cache that others can
/// write to, or that came with somebody's project, a `log` may be a link to any file of the
/// caller's.
pub(crate) fn is_own_run(dir: &Path) -> Result<bool> {
    let found = |path: &Path| if_there(path, fs::symlink_metadata(path));
    if !found(dir)?.is_some_and(|dir| dir.is_dir() && files::is_own_entry(&dir)) {
        return Ok(false);
    }
    for name in OF_A_RUN {
        let is_own = |file: fs::Metadata| file.is_file() && files::is_own_entry(&file);
        if !found(&dir.join(name))?.is_none_or(is_own) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An error: the folder cannot be read now. It is left as it is, since its run may have ended well.
pub(crate) fn take_up(
    dir: &Path,
    env: &BTreeMap<String, String>,
    systems: &Systems,
) -> Result<Taken> {
    if !is_own_run(dir)? {
        return Ok(Taken::Nothing);
    }
    let path = owner_lock_path(dir);
    let owner = match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(owner) => owner,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Taken::Nothing),
        Err(error) => return Err(Error::io("cannot open", path)(error)),
    };
    // Another sweep may have removed the folder meanwhile.
    if owner.try_lock().is_err() || !same_file(&owner, &path) {
        return Ok(Taken::Held);
    }
    let Some(spec) = read_spec(dir)? else {
        return Ok(undescribed(dir));
    };
    // The id says whose processes are ended, and is the folder's name.
    if dir
        .file_name()
        .is_none_or(|name| name != spec.run_id.as_str())
    {
        return Ok(Taken::Nothing);
    }
    let spec = RunSpec {
        dir: dir.to_owned(),
        ..spec
    };
    let exit = match read_exit(dir)? {
        None if spec.is_batch() => match batch::left(&spec, systems, ANSWER) {
            Some(End::Over(exit)) => Some(*exit),
            Some(End::NeverWas | End::Refused(_)) => {
                systems.of(&spec).let_go(&spec, None);
                remove(dir);
                return Ok(Taken::Nothing);
            }
            _ => return Ok(Taken::GoesOn(Box::new(spec), owner)),
        },
        // Its supervisor knows that it was told to end, and the system knows why.
        Some(exit) if spec.is_batch() => {
            Some(batch::explained(&spec, &*systems.of(&spec), exit, || true))
        }
        exit => exit,
    };
    if spec.is_batch() && exit.is_some() {
        systems.of(&spec).let_go(&spec, exit.as_ref());
    }
    let patience = spec.grace().saturating_add(SUPERVISOR_PATIENCE);
    let Some(supervisor) = wait_for_supervisor(dir, patience) else {
        return Ok(Taken::Held);
    };
    let ended = Tree::marked(&spec.run_id).end(spec.grace(), &mut || false);
    if let Some(container) = &spec.container
        && let Some(contained) = Contained::found(container.engine, &spec.run_id, env)
    {
        contained.remove();
    }
    let exit = match exit {
        None => exit_or_end(dir)?,
        exit => exit,
    };
    Ok(Taken::Leftover(Box::new(Leftover {
        dir: dir.to_owned(),
        exit,
        log: log_path(dir),
        ended: ended.count,
        _owner: owner,
        _supervisor: supervisor,
        spec,
    })))
}

/// A folder whose owner is dead and whose description cannot be read. A power cut takes a
/// description that was not on disk yet, and with it the run. Such a run is made again. Anything else
/// is for a person to look at.
fn undescribed(dir: &Path) -> Taken {
    if is_supervised(dir) {
        return Taken::Held;
    }
    let is_lost = match fs::read(spec_path(dir)) {
        Ok(bytes) => was_never_written(&bytes),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    // A record of the end means that the description was on disk, too.
    if is_lost && matches!(read_exit(dir), Ok(None)) {
        remove(dir);
        return Taken::Nothing;
    }
    Taken::Undescribed
}

/// The owner is gone, so the supervisor is ending the run; one that takes too long is left for the
/// next sweep.
fn wait_for_supervisor(dir: &Path, patience: Duration) -> Option<File> {
    let path = supervisor_lock_path(dir);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .ok()?;
    let begun = Instant::now();
    while file.try_lock().is_err() {
        if begun.elapsed() >= patience {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Some(file)
}

fn same_file(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = |m: fs::Metadata| (m.dev(), m.ino());
    matches!((open.metadata().map(inode), fs::metadata(path).map(inode)), (Ok(a), Ok(b)) if a == b)
}
