//! Takes up the runs of builds that were killed: those that ended are taken into the cache, those
//! that go on are followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Deserialize;

use super::{
    error::IngestError,
    event_sink::EventSink,
    events::Event,
    ingest::{ended_before_it_began, ingest},
    train::{KEY_LOOK, RunningSet, TrainHost, Trained, see_through},
    train_work::TrainWork,
};
use crate::{
    cache::Cache,
    digest::Digest,
    error::{Error, Result},
    run::{
        ExitKind, RunExit,
        contained::sweep,
        end_note::exit_or_end,
        folder::{exit_path, remove, spec_path},
        process::Tree,
        recover::{self, Leftover, Swept, Taken},
    },
};

/// Which key the run in each folder has. A folder says it once and for all, so it is read once a
/// build, not once a training.
#[derive(Default)]
pub struct Folders {
    keys: Mutex<BTreeMap<PathBuf, Digest>>,
    /// Was it said that a folder cannot be read? That keeps every training from running, for one and
    /// the same reason.
    is_told: AtomicBool,
}

impl Folders {
    /// A folder that this build makes: it need not be read to know its key.
    pub(super) fn note(&self, dir: &Path, key: &Digest) {
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(dir.to_owned(), *key);
    }

    /// The folders of runs of this key, the oldest first. An error where one cannot be read now: it
    /// may be of this key, and its run must not be made twice.
    fn of_key(&self, runs: &Path, key: &Digest) -> Result<Vec<PathBuf>> {
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
    // A run that may be there is not made again. Nothing else of this build depends on it.
    let not_taken = |error: Error, dir: &Path| {
        Ok(Some(Trained::Nothing(format!(
            "an earlier build left a run of it, which may have ended well, but {error}; if you do not need that run, remove {}",
            dir.display()
        ))))
    };
    loop {
        let folders = match host.folders.of_key(&host.runs, work.key()) {
            Ok(folders) => folders,
            Err(error) => {
                if !host.folders.is_told.swap(true, Ordering::Relaxed) {
                    events.report(&Event::Note {
                        message: format!(
                            "no run is started while {error}: an earlier build may have left a run of any cell there; if you do not need \
                             that run, remove its folder from {}",
                            host.runs.display()
                        ),
                    });
                }
                let why = "a run that an earlier build left may be of it, and cannot be read now";
                return Ok(Some(Trained::Nothing(why.to_owned())));
            }
        };
        let Some(dir) = folders.into_iter().find(|dir| !passed.contains(dir)) else {
            return Ok(None);
        };
        if !is_told && recover::is_supervised(&dir) {
            let what_for = format!("the end of {}, which an earlier build left", dir.display());
            events.report(&Event::TaskWaiting {
                task: work.name().to_owned(),
                what_for,
            });
            is_told = true;
        }
        let taken = match recover::take_up(&dir, &host.caller_env, &host.slurm) {
            Ok(taken) => taken,
            Err(error) => return not_taken(error, &dir),
        };
        match taken {
            Taken::Leftover(left) => match take_in(&left, host, cache, events) {
                Ok(true) => {}
                Ok(false) => drop(passed.insert(dir)),
                Err(error) => return not_taken(error, &dir),
            },
            Taken::GoesOn(spec, owner) => {
                let run = Arc::new(host.slurm().attach((*spec).clone(), owner));
                let message = format!(
                    "{}: took up the run that an earlier build started ({})",
                    work.name(),
                    spec.run_id
                );
                events.report(&Event::Note { message });
                let Some(trained) = see_through(work, host, cache, running, events, (&spec, run))?
                else {
                    continue;
                };
                // A run of an earlier generation is not the new measurement that this one asks for.
                if !matches!(&trained, Trained::Attempt(attempt) if attempt.generation < work.measurement.generation)
                {
                    return Ok(Some(trained));
                }
            }
            Taken::Nothing | Taken::Undescribed => drop(passed.insert(dir)),
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
            if !ended_before_it_began(left.exit.as_ref(), &left.log) {
                let outcome = crate::graph::outcome_text(&attempt);
                let message = format!(
                    "took in a run that an earlier build left: {} ({outcome})",
                    attempt.task
                );
                events.report(&Event::Note { message });
            }
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

/// Takes in what earlier builds left behind when they were killed. A run that cannot be taken in now
/// stays in its folder, and no build ends for it.
pub fn sweep_up(cache: &Cache, host: &TrainHost, events: &EventSink) {
    let mut swept = recover::sweep(&host.runs, &host.caller_env, &host.slurm);
    for left in std::mem::take(&mut swept.left) {
        if let Err(error) = take_in(&left, host, cache, events) {
            swept.errors.push(error);
        }
    }
    say_left_alone(&swept, events);
    let is_live = |dir: &Path| dir.try_exists().unwrap_or(true) && !recover::is_abandoned(dir);
    for folder in [&host.runs, &host.profiles()] {
        for swept in sweep(folder, &host.caller_env, is_live) {
            let message = match swept {
                Ok(name) => format!("removed the container {name}, which an earlier build left"),
                Err(why) => {
                    format!("containers that earlier builds left may still be there: {why}")
                }
            };
            events.report(&Event::Note { message });
        }
    }
}

/// Removes what profiled runs left whose tprimat died: a profile is made again, never taken in.
pub fn sweep_profiles(host: &TrainHost, events: &EventSink) {
    let swept = recover::sweep(&host.profiles(), &host.caller_env, &host.slurm);
    swept.left.iter().for_each(|left| remove(&left.dir));
    say_left_alone(&swept, events);
}

/// Says of which folders of runs nothing was taken, and why.
fn say_left_alone(swept: &Swept, events: &EventSink) {
    for dir in &swept.undescribed {
        let message = format!(
            "left alone: nobody knows which run {} is of, because its spec.json is gone or cannot be read; remove the folder \
             if you do not need its log",
            dir.display()
        );
        events.report(&Event::Note { message });
    }
    for error in &swept.errors {
        events.report(&Event::Note {
            message: format!("a run that an earlier build left is left alone: {error}"),
        });
    }
}

/// Tells what a person should know of how a run ended.
pub(super) fn say_note(task: &str, exit: Option<&RunExit>, events: &EventSink) {
    if let Some(note) = exit.and_then(RunExit::told) {
        events.report(&Event::Note {
            message: format!("{task}: {note}"),
        });
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
    !spec_path(dir).exists() || exit_path(dir).exists() || recover::is_abandoned(dir)
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
    let spec = recover::read_spec(dir)?;
    Ok(spec.and_then(|spec| spec.meta.read().ok()))
}

/// What a run folder of any version says of the run: the part of its [`Measurement`] that a job of
/// another version must be found by, or it would be submitted again.
///
/// [`Measurement`]: super::train_work::Measurement
#[derive(Deserialize)]
struct RunName {
    key: Digest,
    task: String,
}
