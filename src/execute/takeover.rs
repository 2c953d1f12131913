//! What builds left that were killed: their runs are taken into the cache, or followed where they
//! go on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::Deserialize;

use super::{
    EventSink, container_run,
    error::IngestError,
    events::Event,
    ingest::ingest,
    process::Tree,
    recover_runs::{self, Leftover, Taken, remove},
    run::{ExitKind, RunSpec, exit_path, read_exit, spec_path},
    train::{KEY_LOOK, RunningSet, TrainHost, TrainWork, Trained, see_through},
};
use crate::{
    cache::Cache,
    digest::Digest,
    error::{Error, Result},
    files,
    plan::Place,
};

/// Which key the run in each folder has. A folder says it once and for all, so it is read once a
/// build, not once a training.
#[derive(Default)]
pub struct Folders(Mutex<BTreeMap<PathBuf, Digest>>);

impl Folders {
    /// The folders of runs of this key, the oldest first.
    fn of_key(&self, runs: &Path, key: &Digest) -> Vec<PathBuf> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let folders = recover_runs::run_folders(runs).into_iter();
        let is_of_key = |dir: &PathBuf| {
            // One that cannot be read now is asked again: it may be a run that must not be made
            // twice.
            if !known.contains_key(dir)
                && let Some(found) = key_of_run(dir)
            {
                known.insert(dir.clone(), found);
            }
            known.get(dir) == Some(key)
        };
        folders.filter(is_of_key).collect()
    }
}

/// What a training finds that other builds left of its key, while this build holds the key: whoever
/// made such a folder is dead. A run that is over is taken in, and one that goes on is followed to
/// its end: neither is made again. `None`: there is none, or its attempt is in the cache now.
pub(super) fn take_over(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
) -> Result<Option<Trained>> {
    let (mut is_told, mut passed) = (false, BTreeSet::new());
    loop {
        let mut folders = host.folders.of_key(&host.runs, &work.key).into_iter();
        let Some(dir) = folders.find(|dir| !passed.contains(dir)) else {
            return Ok(None);
        };
        if !is_told && recover_runs::is_supervised(&dir) {
            let what_for = format!("the end of {}, which an earlier build left", dir.display());
            events.report(&Event::TaskWaiting {
                task: work.label.clone(),
                what_for,
            });
            is_told = true;
        }
        match recover_runs::take_up(&dir, &host.caller_env, &host.slurm) {
            Taken::Leftover(left) => {
                if !take_in(&left, host, cache, events)? {
                    passed.insert(dir);
                }
            }
            Taken::GoesOn(spec, owner) => {
                let Some(run) = host.executor(Place::Slurm).attach(&spec, owner) else {
                    return Ok(None);
                };
                let message = format!(
                    "{}: took up the run that an earlier build started ({})",
                    work.label, spec.run_id
                );
                events.report(&Event::Note { message });
                let Some(trained) =
                    see_through(work, host, cache, running, events, (&spec, run.into()))?
                else {
                    continue;
                };
                // A run of an earlier generation is not the new measurement that this one asks for.
                if !matches!(&trained, Trained::Attempt(attempt) if attempt.generation < work.generation)
                {
                    return Ok(Some(trained));
                }
            }
            Taken::Nothing => drop(passed.insert(dir)),
            Taken::Held => {
                if running.is_stopped() {
                    return Err(Error::Interrupted(0));
                }
                std::thread::sleep(KEY_LOOK);
            }
        }
    }
}

/// False: the folder does not say what it is of, and is left alone.
fn take_in(left: &Leftover, host: &TrainHost, cache: &Cache, events: &EventSink) -> Result<bool> {
    match ingest(
        cache,
        &left.spec,
        left.exit.as_ref(),
        &left.log,
        &host.hostname,
    ) {
        Ok(attempt) => {
            let outcome = crate::graph::outcome_text(&attempt);
            let message = format!(
                "took in a run that an earlier build left: {} ({outcome})",
                attempt.task
            );
            events.report(&Event::Note { message });
            say_note(&attempt.task, left.exit.as_ref(), events);
            remove(&left.dir);
            Ok(true)
        }
        Err(unreadable @ IngestError::Unreadable { .. }) => {
            events.report(&Event::Note {
                message: format!("left alone: {unreadable}"),
            });
            Ok(false)
        }
        Err(IngestError::Other(error)) => Err(error),
    }
}

/// Takes in what earlier builds left behind when they were killed.
pub fn sweep_up(cache: &Cache, host: &TrainHost, events: &EventSink) -> Result<()> {
    for left in recover_runs::sweep_with(&host.runs, &host.caller_env, &host.slurm)? {
        take_in(&left, host, cache, events)?;
    }
    let is_live = |dir: &Path| dir.exists() && !recover_runs::is_abandoned(dir);
    for folder in [&host.runs, &host.profiles()] {
        for swept in container_run::sweep(folder, &host.caller_env, is_live) {
            let message = match swept {
                Ok(name) => format!("removed the container {name}, which an earlier build left"),
                Err(why) => {
                    format!("containers that earlier builds left may still be there: {why}")
                }
            };
            events.report(&Event::Note { message });
        }
    }
    Ok(())
}

/// Tells what a person should know of how a run ended.
pub(super) fn say_note(task: &str, exit: Option<&super::RunExit>, events: &EventSink) {
    if let Some(note) = exit.and_then(super::RunExit::told) {
        events.report(&Event::Note {
            message: format!("{task}: {note}"),
        });
    }
}

/// The folder of a run at this key that goes on now.
#[must_use]
pub fn live_run(runs: &Path, key: &Digest) -> Option<PathBuf> {
    live(runs, |meta| meta.key == *key)
}

/// The folder of a run of this task that goes on now.
#[must_use]
pub fn live_run_of(runs: &Path, task: &str) -> Option<PathBuf> {
    live(runs, |meta| meta.task == task)
}

fn live(runs: &Path, is_wanted: impl Fn(&Meta) -> bool) -> Option<PathBuf> {
    recover_runs::run_folders(runs)
        .into_iter()
        .filter(|dir| !is_over(dir))
        .find(|dir| named_by(dir).is_some_and(|meta| is_wanted(&meta)))
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
    !spec_path(dir).exists() || exit_path(dir).exists() || recover_runs::is_abandoned(dir)
}

/// Keys of runs that ended well, and that the next build takes in because the tprimat that asked
/// for them is dead.
#[must_use]
pub fn left_behind(runs: &Path) -> BTreeSet<Digest> {
    let folders = recover_runs::run_folders(runs)
        .into_iter()
        .filter(|dir| recover_runs::is_abandoned(dir));
    let ended_well =
        folders.filter(|dir| read_exit(dir).is_some_and(|exit| exit.status == ExitKind::Code(0)));
    ended_well.filter_map(|dir| key_of_run(&dir)).collect()
}

fn key_of_run(dir: &Path) -> Option<Digest> {
    named_by(dir).map(|meta| meta.key)
}

/// Which run a folder says that it is of.
#[derive(Deserialize)]
struct Meta {
    key: Digest,
    task: String,
}

fn named_by(dir: &Path) -> Option<Meta> {
    let spec: RunSpec = serde_json::from_slice(&files::read(&spec_path(dir)).ok()?).ok()?;
    serde_json::from_value(spec.meta).ok()
}
