//! Recovers the runs of a tprimat process that died: ends what is left of their processes, and keeps
//! what was measured.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    batch::{self, Systems},
    contained::Contained,
    end_note::exit_or_end,
    executor::End,
    folder::{
        GONE, MAKING, OWNER_LOCK, SPEC, SUPERVISOR_LOCK, if_there, read_exit, read_if_there,
        read_spec, remove, was_never_written,
    },
    process::Tree,
    spec::{RunExit, RunSpec},
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

/// A run that nobody waits for any more. While this value exists, no other tprimat recovers the run. The caller
/// removes its folder once what is in it is in the cache.
#[derive(Debug)]
pub struct Leftover {
    /// Without its environment, which is never stored.
    pub spec: RunSpec,
    /// `None`: the run ended unrecorded (power cut, killed supervisor).
    pub exit: Option<RunExit>,
    /// How many processes of it had to be ended.
    pub ended: usize,
    _owner: File,
}

/// What a sweep found.
#[derive(Debug, Default)]
pub struct Swept {
    pub left: Vec<Leftover>,
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
}

fn folders(runs_dir: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in if_there(runs_dir, fs::read_dir(runs_dir))?
        .into_iter()
        .flatten()
    {
        let entry = entry.map_err(Error::io("cannot read the folder", runs_dir))?;
        // Not through links: what they point to is not ours to end or remove.
        let found = if_there(&entry.path(), entry.file_type())?;
        folders.extend(found.filter(fs::FileType::is_dir).map(|_| entry.path()));
    }
    folders.sort();
    Ok(folders)
}

/// Was its content being removed when somebody was killed over it?
fn is_gone(dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(GONE)
}

/// Folders of runs that were described and not removed yet.
pub(crate) fn run_folders(runs_dir: &Path) -> Result<Vec<PathBuf>> {
    // A description that cannot be looked at may be there: whoever reads it is told why not.
    let is_described = |dir: &Path| dir.join(SPEC).try_exists().unwrap_or(true);
    let mut folders = folders(runs_dir)?;
    folders.retain(|dir| !is_gone(dir) && is_described(dir));
    Ok(folders)
}

/// Does a supervisor still work on this run?
pub(crate) fn is_supervised(dir: &Path) -> bool {
    dir.join(SUPERVISOR_LOCK).exists() && !is_free(&dir.join(SUPERVISOR_LOCK))
}

/// Is the tprimat alive that asked for this run?
pub(crate) fn has_owner(dir: &Path) -> bool {
    !is_free(&dir.join(OWNER_LOCK))
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

/// Whether nobody holds a lock; shared, so that several may ask at once.
fn is_free(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_ok())
}

/// An error where it is not there: a sweep makes no lock.
fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Removes folders that never became a run, and those whose removal was cut short.
fn remove_strays(runs_dir: &Path) -> Result<()> {
    let lock = open_lock(&runs_dir.join(MAKING));
    if !lock.as_ref().is_ok_and(|lock| lock.try_lock().is_ok()) {
        return Ok(());
    }
    for dir in folders(runs_dir)? {
        if files::is_own(&dir) && (is_gone(&dir) || !dir.join(OWNER_LOCK).exists()) {
            let _ = fs::remove_dir_all(&dir);
        }
    }
    Ok(())
}

/// Everything that a run folder may hold of its run, which only whoever ran it can have put there.
const OF_A_RUN: &str = "spec.json exit.json end-note.json state.json log times telemetry.jsonl stacks.txt host owner.lock supervisor.lock";

/// A folder of the caller's own with regular files of the caller's own. In a cache that others can
/// write to, or that came with somebody's project, a `log` may be a link to any file of the
/// caller's.
pub(crate) fn is_own_run(dir: &Path) -> Result<bool> {
    let found = |path: &Path| if_there(path, fs::symlink_metadata(path));
    if !found(dir)?.is_some_and(|dir| dir.is_dir() && files::is_own_entry(&dir)) {
        return Ok(false);
    }
    for name in OF_A_RUN.split(' ') {
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
    let path = dir.join(OWNER_LOCK);
    let Some(owner) = if_there(&path, open_lock(&path))? else {
        return Ok(Taken::Nothing);
    };
    // Another sweep may have removed the folder meanwhile, and no other one gets its name.
    if owner.try_lock().is_err() || !path.exists() {
        return Ok(Taken::Held);
    }
    let Some(spec) = read_spec(dir)? else {
        return undescribed(dir);
    };
    // The id says whose processes are ended, and is the folder's name.
    if dir.file_name() != Some(OsStr::new(&spec.run_id)) {
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
    // The owner is gone, so the supervisor is ending the run; one that takes too long is left for the next
    // sweep.
    let (begun, patience) = (Instant::now(), spec.grace() + SUPERVISOR_PATIENCE);
    while is_supervised(dir) {
        if begun.elapsed() >= patience {
            return Ok(Taken::Held);
        }
        thread::sleep(Duration::from_millis(10));
    }
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
        exit,
        ended: ended.count,
        _owner: owner,
        spec,
    })))
}

/// A folder whose owner is dead and whose description cannot be read. A power cut takes a
/// description that was not on disk yet, and with it the run. Such a run is made again. Anything else
/// is for a person to look at.
fn undescribed(dir: &Path) -> Result<Taken> {
    if is_supervised(dir) {
        return Ok(Taken::Held);
    }
    let spec = read_if_there(&dir.join(SPEC))?.unwrap_or_default();
    // A record of the end means that the description was on disk, too.
    if was_never_written(&spec) && matches!(read_exit(dir), Ok(None)) {
        remove(dir);
        return Ok(Taken::Nothing);
    }
    Err(Error::failed(format!(
        "nobody knows which run {} is of, because its spec.json is gone or cannot be read; remove the folder if you do not need its log",
        dir.display()
    )))
}
