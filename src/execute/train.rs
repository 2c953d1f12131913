//! One train task: from its key to an attempt in the cache.
//!
//! The run folder is made whole before the supervisor starts; what it left is in the cache before
//! the folder goes. In between, whoever dies, the next build finds the folder (see
//! `takeover`) and takes it in.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    error::is_of_one_run,
    event_sink::EventSink,
    events::Event,
    host::TrainHost,
    launch::TrainWork,
    prepare_run::prepare,
    see_through::{KEY_LOOK, RunningSet, Trained, see_through},
    takeover::take_over,
};
use crate::{
    cache::{Attempt, Cache, KeyLock},
    error::{Error, Result},
    graph::lost_log,
    job::RunOutcome,
    plan::Place,
    run::{
        Run, RunSpec, attempt_id,
        devices::left_on,
        folder::{making, remove},
        start,
        watched_inputs::{Watched, not_started, outdated},
    },
};

/// Runs one train task, or takes the attempt that another tprimat made meanwhile.
pub fn train(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
) -> Result<Trained> {
    let _in_flight = in_flight(work, cache, running, events)?;
    if let Some(trained) = take_over(work, host, cache, running, events)? {
        return Ok(match trained {
            Trained::Attempt(attempt) => Trained::Found(attempt),
            trained => trained,
        });
    }
    if let Some(done) = made_meanwhile(cache, work)? {
        return Ok(Trained::Found(Box::new(done)));
    }
    if let Some(sharing) = &host.sharing {
        sharing.take(work.key(), cache, events)?;
        if let Some(done) = made_meanwhile(cache, work)? {
            return Ok(Trained::Found(Box::new(done)));
        }
    }
    let mut watched = work.watched();
    let native = host.native_seen.get().filter(|_| work.needs_native());
    watched.extend(native.cloned());
    let outdated = outdated(&mut watched);
    if !outdated.is_empty() {
        return Ok(Trained::Nothing(not_started(&outdated, &watched)));
    }
    if work.execution().place == Place::Allocation
        && let Some(why) = too_long(work, host)
    {
        return Ok(Trained::Nothing(why));
    }
    for input in watched.iter().filter_map(Watched::small_content) {
        cache.record_preimage(input)?;
    }
    let id = attempt_id();
    let dir = host.runs.join(&id);
    host.folders.note(&dir, work.key());
    let making = making(&host.runs)?;
    let spec = match prepare(work, host, &id, &dir) {
        Ok(spec) => RunSpec { watched, ..spec },
        // It is this training that cannot be started as it is configured; others may.
        Err(error) if is_of_one_run(&error) => {
            remove(&dir);
            return Ok(Trained::Nothing(error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let asked = Instant::now();
    while let Some(why) = left_on_devices(&spec) {
        // Somebody may be ending it just now.
        if asked.elapsed() >= LEFT_PATIENCE || running.is_stopped() {
            remove(&dir);
            return Ok(Trained::Nothing(why));
        }
        std::thread::sleep(KEY_LOOK);
    }
    let run: Arc<dyn Run> = match work.execution().place {
        // A step of the allocation has its supervisor's conductor here, so it ends with tprimat.
        Place::Local | Place::Allocation => Arc::new(start(&spec, &host.tprimat)?),
        Place::Slurm | Place::Kubernetes => Arc::new(host.systems.start(&spec, &host.tprimat)?),
    };
    drop(making);
    let trained = see_through(work, host, cache, running, events, (&spec, run))?;
    Ok(trained.unwrap_or_else(|| {
        Trained::Nothing("its job was never submitted, or deleted before it ran".into())
    }))
}

/// How long a run waits for the end of what another one left on its devices.
const LEFT_PATIENCE: Duration = Duration::from_secs(30);

/// Why a run is not begun on its devices: a run that nobody watches any more left processes on one of
/// them. A batch system gives devices, and ends what its jobs leave.
fn left_on_devices(spec: &RunSpec) -> Option<String> {
    let mut devices = spec.devices.iter().filter(|_| spec.job.is_none());
    let (device, (holder, pids)) =
        devices.find_map(|device| Some((device, left_on(&spec.lock_dir, device)?)))?;
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    Some(format!(
        "not started: process {} may still use {device}, and nobody watches it any more: it is left of the run in {}. The next \
         `tprimat build` of that project ends it, and so does `kill {}`",
        pids.join(", "),
        holder.project.display(),
        pids.join(" "),
    ))
}

/// Why a run is not begun in the allocation that tprimat is in; `None` also where it is not known
/// how long the run takes, or how long the allocation lasts.
fn too_long(work: &TrainWork, host: &TrainHost) -> Option<String> {
    let job = host.caller_env.get("SLURM_JOB_ID")?;
    let (needed, left) = (
        work.estimated_seconds?,
        host.systems.slurm.seconds_left(job)?,
    );
    (needed > left).then(|| {
        format!(
            "the allocation ends in {:.0} s, and this run took {:.0} s before",
            left.max(0.0),
            needed
        )
    })
}

/// The lock of the key. Another tprimat may train it now, for hours: an interrupt ends the wait.
fn in_flight(
    work: &TrainWork,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
) -> Result<KeyLock> {
    let mut is_told = false;
    loop {
        if let Some(lock) = cache.try_lock_key(work.key())? {
            return Ok(lock);
        }
        if running.is_stopped() {
            return Err(Error::Interrupted(0));
        }
        if !is_told {
            let what_for = "another tprimat, which runs the same training".to_owned();
            events.report(&Event::TaskWaiting {
                task: work.name().to_owned(),
                what_for,
            });
            is_told = true;
        }
        std::thread::sleep(KEY_LOOK);
    }
}

/// What another tprimat did while this one waited for the key: a measurement, one that was
/// disturbed just now, or a failure that would come again. An error where a record or a log cannot be
/// read now: it may be the measurement.
fn made_meanwhile(cache: &Cache, work: &TrainWork) -> Result<Option<Attempt>> {
    let serves = |a: &Attempt| match &a.outcome {
        // Another host may have measured it anew, under a later generation.
        _ if a.generation < work.measurement.generation || a.set_aside.is_some() => false,
        RunOutcome::Ok => {
            (a.suspect.is_none() || !work.seen.contains(&a.id)) && lost_log(cache, a).is_none()
        }
        RunOutcome::Failed { .. } => a.will_fail_again() && !work.seen.contains(&a.id),
    };
    let attempts = cache.attempts_checked(work.key())?;
    for log in attempts.iter().filter_map(Attempt::log) {
        cache.reader(&log.digest)?;
    }
    let best = attempts
        .iter()
        .filter(|a| serves(a))
        .min_by_key(|a| (a.outcome != RunOutcome::Ok, a.suspect.is_some()));
    Ok(best.cloned())
}
