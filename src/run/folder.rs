//! The folder of a run: its files, who holds its locks, how they are read and brought to disk.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tempfile::NamedTempFile;

use super::spec::{RunExit, RunSpec, RunState};
use crate::{
    error::{Error, Result},
    files::{self, Durability, TEMPORARY, unix_now},
};

/// Held shared while a run folder is made, before it has an owner. A sweep that gets this lock
/// exclusively knows that a folder without an owner was left by a dead process.
pub(crate) const MAKING: &str = ".making.lock";
/// First part of the name of a folder that is being removed, and whose content no longer counts.
pub(crate) const GONE: &str = ".gone-";
/// The name of the host on which a job, or one of its nodes, has begun.
pub(crate) const HOST: &str = "host";

/// The files of a run folder.
pub(crate) const TIMES: &str = "times";
pub(crate) const LOG: &str = "log";
pub(crate) const SPEC: &str = "spec.json";
pub(crate) const EXIT: &str = "exit.json";
pub(crate) const STATE: &str = "state.json";
pub(crate) const OWNER_LOCK: &str = "owner.lock";
pub(crate) const SUPERVISOR_LOCK: &str = "supervisor.lock";
/// What the supervisor itself has to say; empty unless something is broken.
pub(crate) const SUPERVISOR_LOG: &str = "supervisor.log";

/// Notes on which host a job or one of its nodes has begun: a host that is lost says nothing afterwards.
pub(crate) fn note_host(dir: &Path, host: Option<&str>) {
    if let Some(host) = host {
        let _ = files::write_atomically(&dir.join(HOST), host.as_bytes(), Durability::Synced);
    }
}

/// Where a node answers the conductor.
pub(crate) fn answers_of(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("node-{node}"))
}

/// Where the log of a node is: that of node 0 is the run's own.
pub(crate) fn folder_of(dir: &Path, node: usize) -> PathBuf {
    match node {
        0 => dir.to_owned(),
        _ => answers_of(dir, node),
    }
}

/// The hosts on which the nodes of a job have begun, as far as they have said it.
pub(crate) fn hosts_of(dir: &Path, nodes: usize) -> Option<String> {
    let host = |node: usize| {
        let path = folder_of(dir, node).join(HOST);
        let is_there = is_own_file(&path).ok()?;
        String::from_utf8(is_there.then(|| files::read(&path).ok())??).ok()
    };
    let mut hosts: Vec<String> = (0..nodes).filter_map(host).collect();
    hosts.sort_unstable();
    (!hosts.is_empty()).then(|| hosts.join(","))
}

/// A folder may have come with somebody's project, so nothing is followed through links.
pub(crate) fn is_own_file(path: &Path) -> Result<bool> {
    let found = if_there(path, fs::symlink_metadata(path))?;
    let is_own = files::is_own(path) && path.parent().is_some_and(files::is_own);
    Ok(is_own && found.is_some_and(|found| found.is_file()))
}

/// Puts a new lock in place that is held from its first instant: a sweep never finds it free. A
/// folder that has one already is refused.
pub(crate) fn take_lock(path: &Path) -> Result<File> {
    let take = |lock: &mut NamedTempFile| Ok(lock.as_file().try_lock()?);
    place(path, take).map_err(Error::io("cannot take", path))
}

/// Makes a file for the caller alone that is whole from its first instant. An error where it is there.
pub(crate) fn make(path: &Path, text: &[u8]) -> io::Result<()> {
    let fill = |file: &mut NamedTempFile| {
        file.write_all(text)?;
        file.as_file().sync_all()
    };
    place(path, fill).map(drop)
}

fn place(
    path: &Path,
    prepare: impl FnOnce(&mut NamedTempFile) -> io::Result<()>,
) -> io::Result<File> {
    let dir = path.parent().unwrap_or(path);
    let mut file = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .tempfile_in(dir)?;
    prepare(&mut file)?;
    Ok(file.persist_noclobber(path)?)
}

/// To be held from before a run folder is made until its run has an owner.
pub(crate) fn making(runs_dir: &Path) -> Result<File> {
    files::create_dir_all(runs_dir)?;
    let path = runs_dir.join(MAKING);
    let lock = || -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        file.lock_shared()?;
        Ok(file)
    };
    lock().map_err(Error::io("cannot lock", &path))
}

/// Removes a run folder whose contents are in the cache. A kill in between leaves all of it or
/// something that the next sweep removes, never half a run.
pub fn remove(dir: &Path) {
    let Some(name) = dir.file_name() else { return };
    let gone = dir.with_file_name(format!("{GONE}{}", name.to_string_lossy()));
    // What cannot be removed is swept by a later build, which finds the attempt recorded already.
    #[expect(clippy::disallowed_methods, reason = "no file is written")]
    let renamed = fs::rename(dir, &gone);
    let _ = fs::remove_dir_all(if renamed.is_ok() { &gone } else { dir });
}

/// What the run of a folder was to do; `None`: it does not say it, or in words of another version.
/// A description that could not be read is an error: its run may go on, and must not be made twice.
pub(crate) fn read_spec(dir: &Path) -> Result<Option<RunSpec>> {
    let text = read_if_there(&dir.join(SPEC))?;
    Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
}

/// What the run of a folder is; `env`: what is in none of its files.
pub(crate) fn read_spec_with(dir: &Path, env: BTreeMap<String, String>) -> Result<RunSpec> {
    let lacks = || Error::failed(format!("cannot read what to run in {}", dir.display()));
    Ok(RunSpec {
        dir: dir.to_owned(),
        env,
        ..read_spec(dir)?.ok_or_else(lacks)?
    })
}

/// Says in its folder what a run is.
pub(crate) fn write_spec(spec: &RunSpec) -> Result<()> {
    let text = serde_json::to_vec_pretty(spec)
        .map_err(|e| Error::failed(format!("cannot describe run {}: {e}", spec.run_id)))?;
    files::write_atomically(&spec.dir.join(SPEC), &text, Durability::Synced)
}

/// What the run of a folder is doing, as far as it has said it.
pub(crate) fn read_state(dir: &Path) -> Option<RunState> {
    serde_json::from_slice(&fs::read(dir.join(STATE)).ok()?).ok()
}

/// How the run of a folder ended. `None`: nobody has recorded it, or its log is not seen whole yet, or a
/// power cut took the record before it was on disk. A record that is there and cannot be read is an
/// error, because a run that ended well would be made again if it were taken for none.
pub(crate) fn read_exit(dir: &Path) -> Result<Option<RunExit>> {
    let path = dir.join(EXIT);
    let Some(text) = read_if_there(&path)?.filter(|text| !was_never_written(text)) else {
        return Ok(None);
    };
    let exit: RunExit =
        serde_json::from_slice(&text).map_err(|e| Error::io("cannot read", path)(e.into()))?;
    Ok(Some(exit).filter(|exit| is_log_seen(dir, exit)))
}

/// Is all of the log there that a record speaks of? A part of it would be taken for a run that ended
/// early.
pub(crate) fn is_log_seen(dir: &Path, exit: &RunExit) -> bool {
    let length = fs::metadata(dir.join(LOG)).map_or(0, |found| found.len());
    exit.log_bytes.is_none_or(|bytes| length >= bytes)
}

/// Records how the run of a folder ended, after everything that was brought to disk.
pub(crate) fn write_exit(dir: &Path, exit: &RunExit) -> Result<()> {
    let text = serde_json::to_vec_pretty(exit)
        .map_err(|e| Error::failed(format!("cannot describe the exit: {e}")))?;
    files::write_atomically(&dir.join(EXIT), &text, Durability::Synced)
}

/// Is it what a power cut leaves of a file that was put in place and not on disk yet? Some file systems
/// leave zeros.
pub(crate) fn was_never_written(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    if_there(path, files::read_bounded(path, files::MOST_BYTES))
}

/// What was read of a file of a run folder; `None` only where the file is not there. A network file
/// system may fail to read one that is.
pub(crate) fn if_there<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("cannot read", path)(error)),
    }
}

/// The end of what the supervisor wrote to its own log.
pub(crate) fn supervisor_said(dir: &Path) -> Option<String> {
    let tail = tail_of(&dir.join(SUPERVISOR_LOG), 1000).ok()?;
    Some(String::from_utf8_lossy(&tail).trim().to_owned()).filter(|said| !said.is_empty())
}

/// Reads the end of a file, at most `most` bytes of it. A file that does not exist reads as empty.
pub(crate) fn tail_of(path: &Path, most: u64) -> Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
        // One byte more, so that the end is seen without another allocation.
        let mut bytes = Vec::with_capacity(usize::try_from(length.min(most)).unwrap_or(0) + 1);
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    Ok(if_there(path, read())?.unwrap_or_default())
}

/// When a run whose end nobody recorded began, and when it was last seen. The time of what its folder
/// does not say is taken to be now.
pub(crate) fn last_seen(dir: &Path) -> (f64, f64) {
    let times = fs::read_to_string(dir.join(TIMES)).unwrap_or_default();
    let time = |line: &str| {
        let time: f64 = line.split_once(' ')?.0.parse().ok()?;
        time.is_finite().then_some(time)
    };
    let mut grew = times.lines().filter_map(time);
    let first = grew.next();
    let ended = grew.next_back().or(first).unwrap_or_else(unix_now);
    let began = match read_state(dir) {
        Some(RunState::Running { since, .. }) => Some(since),
        _ => first,
    };
    (began.map_or(ended, |began| began.min(ended)), ended)
}

/// Brings to disk what the run in `dir` left, those of the files that are there: its log, when that grew, and
/// the samples of its devices.
pub(crate) fn sync_run(dir: &Path, samples: &Path) -> io::Result<()> {
    let samples = samples.to_owned();
    for path in [dir.join(LOG), dir.join(TIMES), samples] {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => opened?.sync_all()?,
        }
    }
    Ok(())
}

/// What these locks guard stays sound when a thread panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        files::write_atomically,
        run::spec::{ExitKind, never_ran},
    };

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
        write(
            "state.json",
            r#"{"state":"running","since":10.5,"changed":[]}"#,
        );
        write("times", "10.600000 0\n70.250000 1155\n");
        assert_eq!(last_seen(dir), (10.5, 70.25));
        // It does not say since when it ran; its last line was cut off.
        write("state.json", "");
        write("times", "10.600000 0\n70.250000 1155\n71.2");
        assert_eq!(last_seen(dir), (10.6, 70.25));
    }

    /// A network file system may show exit.json first.
    #[test]
    fn a_record_is_not_seen_before_all_of_its_log_is() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let exit = RunExit {
            log_bytes: Some(5),
            ..never_ran(ExitKind::Code(0), 0.0)
        };
        write_exit(dir, &exit).unwrap();
        assert_eq!(read_exit(dir).unwrap(), None, "no log is there");
        for (text, is_seen) in [("who", false), ("whole", true), ("whole, and more", true)] {
            write_atomically(&dir.join(LOG), text.as_bytes(), Durability::Plain).unwrap();
            assert_eq!(read_exit(dir).unwrap().is_some(), is_seen, "{text}");
        }
    }
}
