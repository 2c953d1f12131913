//! Takes up the runs of builds that were killed: those that ended are taken into the cache, those
//! that go on are followed.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use super::{
    event_sink::EventSink,
    events::Event,
    host::TrainHost,
    ingest::{ended_before_it_began, ingest},
    launch::{Measurement, TrainWork},
    prepare_run::target,
    see_through::{KEY_LOOK, RunningSet, Trained, say_note, see_through},
};
use crate::{
    cache::Cache,
    error::{Error, Result},
    plan::Place,
    run::{
        RunSpec, Target,
        contained::sweep,
        folder::{LOG, remove},
        recover::{self, Leftover, Swept, Taken},
    },
};

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
        let taken = match recover::take_up(&dir, &host.caller_env, &host.systems) {
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
                if is_asked_otherwise(work, host, &spec) {
                    match host.systems.withdraw(&spec) {
                        Ok(false) => {}
                        Ok(true) => {
                            let message = format!(
                                "{}: replaced the Job that an earlier build made: it had not begun, and this build asks the cluster for \
                                 something else",
                                work.name(),
                            );
                            events.report(&Event::Note { message });
                            continue;
                        }
                        Err(error) => return not_taken(error, &dir),
                    }
                }
                let cancels = host.systems.of(&spec).cancels("", &spec);
                let run = Arc::new(host.systems.attach((*spec).clone(), owner));
                let message = format!(
                    "{}: took up the run that an earlier build started, as it asked for it; `{cancels}` ends it",
                    work.name(),
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

/// Would this build ask a cluster for something else than the Job of a run was made with? Much of it is in no
/// key, such as the memory of its pod, and may have been corrected while the Job waits.
fn is_asked_otherwise(work: &TrainWork, host: &TrainHost, spec: &RunSpec) -> bool {
    let made = spec.job.as_ref().and_then(|job| job.kubernetes.as_ref());
    let Some(made) = made.filter(|made| made.asked.is_some()) else {
        return false;
    };
    let place = |of: &Target| (of.context.clone(), of.namespace.clone(), of.asked);
    let now = target(work, host, &spec.run_id, &spec.dir);
    work.execution().place != Place::Kubernetes || now.is_ok_and(|now| place(&now) != place(made))
}

/// False: the folder does not say what it is of, and is left alone.
fn take_in(left: &Leftover, host: &TrainHost, cache: &Cache, events: &EventSink) -> Result<bool> {
    let say = |message: String| events.report(&Event::Note { message });
    let (spec, exit, log) = (&left.spec, left.exit.as_ref(), &left.spec.dir.join(LOG));
    let measured = match Measurement::of(spec) {
        Ok(measured) => measured,
        Err(why) => {
            say(format!("left alone: {why}"));
            return Ok(false);
        }
    };
    let attempt = ingest(cache, (spec, measured), exit, log, &host.hostname)?;
    if !ended_before_it_began(exit, log) {
        let outcome = crate::graph::outcome_text(&attempt);
        let ended = match left.ended {
            0 => String::new(),
            count => format!("; ended {count} of its processes that went on"),
        };
        say(format!(
            "took in a run that an earlier build left: {} ({outcome}){ended}",
            attempt.task
        ));
    }
    say_note(&attempt.task, exit, events);
    remove(&spec.dir);
    Ok(true)
}

/// Takes in what earlier builds left behind when they were killed. A run that cannot be taken in now
/// stays in its folder, and no build ends for it.
pub fn sweep_up(cache: &Cache, host: &TrainHost, events: &EventSink) {
    host.systems.kubernetes.sweep(&host.runs);
    let mut swept = recover::sweep(&host.runs, &host.caller_env, &host.systems);
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
    let swept = recover::sweep(&host.profiles(), &host.caller_env, &host.systems);
    swept.left.iter().for_each(|left| remove(&left.spec.dir));
    say_left_alone(&swept, events);
}

/// Says of which folders of runs nothing was taken, and why.
fn say_left_alone(swept: &Swept, events: &EventSink) {
    for error in &swept.errors {
        events.report(&Event::Note {
            message: format!("a run that an earlier build left is left alone: {error}"),
        });
    }
}
