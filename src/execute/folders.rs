//! Which run is in each folder of runs, and which of them go on now.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, atomic::AtomicBool},
};

use serde::Deserialize;

use crate::{
    digest::Digest,
    error::Result,
    run::{
        ExitKind,
        batch::Systems,
        end_note::exit_or_end,
        folder::{EXIT, SPEC, read_spec},
        process::Tree,
        recover,
    },
};

/// Which key the run in each folder has. A folder says it once and for all, so it is read once a
/// build, not once a training.
#[derive(Default)]
pub struct Folders {
    keys: Mutex<BTreeMap<PathBuf, Digest>>,
    /// Was it said that a folder cannot be read? That keeps every training from running, for one and
    /// the same reason.
    pub(super) is_told: AtomicBool,
}

impl Folders {
    /// A folder that this build makes: it need not be read to know its key.
    pub(super) fn note(&self, dir: &Path, key: &Digest) {
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(dir.to_owned(), *key);
    }

    /// The folders of runs of this key, the oldest first. An error where one cannot be read now: it
    /// may be of this key, and its run must not be made twice.
    pub(super) fn of_key(&self, runs: &Path, key: &Digest) -> Result<Vec<PathBuf>> {
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_key = Vec::new();
        for dir in recover::run_folders(runs)? {
            if !known.contains_key(&dir)
                && let Some(found) = key_of_run(&dir)?
            {
                known.insert(dir.clone(), found);
            }
            if known.get(&dir) == Some(key) {
                of_key.push(dir);
            }
        }
        Ok(of_key)
    }
}

/// The folder of a run at this key that goes on now.
#[must_use]
pub fn live_run(runs: &Path, key: &Digest) -> Option<PathBuf> {
    live(runs, |of| of.key == *key)
}

/// The folder of a run of this task that goes on now.
#[must_use]
pub fn live_run_of(runs: &Path, task: &str) -> Option<PathBuf> {
    live(runs, |of| of.task == task)
}

/// The folders of all runs that go on now, each with its task, in the order of the tasks.
#[must_use]
pub fn live_runs(runs: &Path) -> Vec<(String, PathBuf)> {
    let mut named: Vec<(String, PathBuf)> =
        going_on(runs).map(|(of, dir)| (of.task, dir)).collect();
    named.sort();
    named
}

/// Jobs of batch systems that go on though nobody waits for them, and that are of none of these keys: a build of other settings
/// left them. Each with its task and the command that ends it.
#[must_use]
pub fn unasked(runs: &Path, systems: &Systems, keys: &BTreeSet<Digest>) -> Vec<(String, String)> {
    let left =
        going_on(runs).filter(|(of, dir)| !keys.contains(&of.key) && !recover::has_owner(dir));
    let job = |(of, dir): (RunName, PathBuf)| {
        let spec = read_spec(&dir).ok()??;
        let cancels = systems.of(&spec).cancels("", &spec);
        spec.is_batch().then_some((of.task, cancels))
    };
    left.filter_map(job).collect()
}

fn live(runs: &Path, is_wanted: impl Fn(&RunName) -> bool) -> Option<PathBuf> {
    let (_, dir) = going_on(runs).find(|(of, _)| is_wanted(of))?;
    Some(dir)
}

/// For people to look at: what cannot be read is not shown.
fn going_on(runs: &Path) -> impl Iterator<Item = (RunName, PathBuf)> {
    let folders = recover::run_folders(runs).unwrap_or_default();
    folders
        .into_iter()
        .filter(|dir| !is_over(dir))
        .filter_map(|dir| Some((measured_in(&dir).ok()??, dir)))
}

/// What the processes of the run in this folder were started with, secrets included. It is in no
/// file: only they have it.
#[must_use]
pub fn environment_of(dir: &Path) -> Option<BTreeMap<String, String>> {
    Tree::marked(dir.file_name()?.to_str()?).environment()
}

/// Will nothing more be written into this run's folder? That is so too where tprimat and the
/// supervisor were both killed.
#[must_use]
pub fn is_over(dir: &Path) -> bool {
    !dir.join(SPEC).exists() || dir.join(EXIT).exists() || recover::is_abandoned(dir)
}

/// Keys of runs that ended well, and that the next build takes in because the tprimat that asked
/// for them is dead.
#[must_use]
pub fn left_behind(runs: &Path) -> BTreeSet<Digest> {
    let folders = recover::run_folders(runs)
        .unwrap_or_default()
        .into_iter()
        .filter(|dir| recover::is_abandoned(dir));
    let has_ended_well = |dir: &PathBuf| matches!(exit_or_end(dir), Ok(Some(exit)) if exit.status == ExitKind::Code(0));
    folders
        .filter(has_ended_well)
        .filter_map(|dir| key_of_run(&dir).ok().flatten())
        .collect()
}

/// The key of a run that somebody may take up: none of a folder that is a stranger's.
fn key_of_run(dir: &Path) -> Result<Option<Digest>> {
    if !recover::is_own_run(dir)? {
        return Ok(None);
    }
    Ok(measured_in(dir)?.map(|of| of.key))
}

/// What the run in a folder measures, where the folder says it.
fn measured_in(dir: &Path) -> Result<Option<RunName>> {
    let spec = read_spec(dir)?;
    Ok(spec.and_then(|spec| RunName::deserialize(&spec.meta).ok()))
}

/// What a run folder of any version says of the run: the part of its [`Measurement`] that a job of
/// another version must be found by, or it would be submitted again.
///
/// [`Measurement`]: super::launch::Measurement
#[derive(Deserialize)]
struct RunName {
    key: Digest,
    task: String,
}
