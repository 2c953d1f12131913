//! One train task: from its key to an attempt in the cache.
//!
//! The run folder is made whole before the supervisor starts; what it left is in the cache before
//! the folder goes. In between, whoever dies, the next build finds the folder (see
//! `takeover`) and takes it in.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    EventSink,
    error::is_of_one_run,
    events::Event,
    executor::{End, Interrupted, Run},
    follow::Follower,
    fork_server::ForkServer,
    imports,
    ingest::ingest,
    prepare_run::{attempt_id, prepare},
    recover_runs::{making, remove},
    run::{ExitKind, RunSpec, log_path},
    slurm::Commands,
    takeover::{Folders, say_note, take_over},
    train_work::TrainWork,
    watched_inputs::{Watched, not_started, outdated},
};
use crate::{
    cache::{Attempt, Cache, KeyLock},
    digest::Digest,
    error::{Error, Result},
    graph::lost_log,
    job::RunOutcome,
    plan::Place,
};

/// What holds for every run of a build.
pub struct TrainHost {
    pub project: PathBuf,
    pub runs: PathBuf,
    pub lock_dir: PathBuf,
    /// The tprimat binary, which is also the supervisor.
    pub tprimat: PathBuf,
    /// Starts the supervisors of runs on this host.
    pub supervisors: Arc<ForkServer>,
    pub native: Option<PathBuf>,
    /// The file of `native` as the pre-flight check saw it: shows whether it changed since.
    pub native_seen: OnceLock<Watched>,
    pub hostname: String,
    pub caller_env: BTreeMap<String, String>,
    pub grace_seconds: f64,
    /// The accelerators that runs may be given.
    pub gpus: Vec<Gpu>,
    /// All runs of a build ask the same queue.
    pub slurm: Commands,
    pub folders: Folders,
    /// The remote cache of the build.
    pub sharing: Option<Arc<dyn Share>>,
}

/// Where a build shares its runs with other hosts while it goes on, so that builds at the same time
/// do not run the same.
pub trait Share: Send + Sync {
    /// Takes in what others have measured of this key by now.
    fn take(&self, key: &Digest, cache: &Cache, events: &EventSink) -> Result<()>;
    /// Leaves a run that has just been filed; `is_stopped`: the build is being ended, and nothing
    /// may delay it.
    fn leave(
        &self,
        attempt: &Attempt,
        cache: &Cache,
        is_stopped: bool,
        events: &EventSink,
    ) -> Result<()>;
}

impl TrainHost {
    /// Where profiled runs are, which no sweep may take for measured ones.
    pub(super) fn profiles(&self) -> PathBuf {
        self.runs.with_file_name("profiles")
    }
}

/// An accelerator of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// As its driver counts.
    pub index: usize,
    /// The name of its lock.
    pub lock: String,
    /// As its driver names it, whatever else is visible.
    pub uuid: Option<String>,
    /// AMD's way to hand it into a container.
    pub render_node: Option<PathBuf>,
}

/// How often a key that another tprimat holds is looked at.
pub(super) const KEY_LOOK: Duration = Duration::from_millis(50);

/// Lets the scheduler end what runs.
#[derive(Default)]
pub struct RunningSet {
    runs: Mutex<Vec<Arc<dyn Run>>>,
    stopped: AtomicBool,
}

impl RunningSet {
    fn add(&self, run: &Arc<dyn Run>) {
        self.lock().push(run.clone());
        if self.stopped.load(Ordering::SeqCst) {
            run.terminate();
        }
    }
    fn remove(&self, run: &Arc<dyn Run>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, run));
    }
    /// SIGTERM, grace, SIGKILL, for every run now and to come. What becomes of those that there are
    /// now.
    pub fn terminate(&self) -> Vec<Interrupted> {
        self.stopped.store(true, Ordering::SeqCst);
        self.lock().iter().map(|run| run.terminate()).collect()
    }
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
    pub fn kill(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.lock().iter().for_each(|run| run.kill());
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Run>>> {
        self.runs
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What became of a train task.
pub enum Trained {
    Attempt(Box<Attempt>),
    /// Another tprimat started it: one that made it meanwhile, or that died over it.
    Found(Box<Attempt>),
    /// No attempt was recorded, and why: an input changed after the plan read it, the run cannot be
    /// started as it is configured, or it goes on where this process cannot see its end.
    Nothing(String),
}

/// Runs one train task, or takes the attempt that another tprimat made meanwhile. `gone` is called
/// when the run's processes are gone, where that is known before its attempt is recorded.
pub fn train(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
    gone: &(dyn Fn() + Sync),
) -> Result<Trained> {
    let _in_flight = in_flight(work, cache, running, events)?;
    if let Some(trained) = take_over(work, host, cache, running, events, gone)? {
        return Ok(match trained {
            Trained::Attempt(attempt) => Trained::Found(attempt),
            trained => trained,
        });
    }
    cache.refresh()?;
    if let Some(done) = made_meanwhile(cache, work) {
        return Ok(Trained::Found(Box::new(done)));
    }
    if let Some(sharing) = &host.sharing {
        sharing.take(work.key(), cache, events)?;
        if let Some(done) = made_meanwhile(cache, work) {
            return Ok(Trained::Found(Box::new(done)));
        }
    }
    let mut watched = work.launch.watched.clone();
    watched.extend(
        host.native_seen
            .get()
            .filter(|_| work.launch.needs_native)
            .cloned(),
    );
    let outdated = outdated(&mut watched);
    if !outdated.is_empty() {
        return Ok(Trained::Nothing(not_started(&outdated, &watched)));
    }
    if work.placement.execution.place == Place::Allocation
        && let Some(why) = too_long(work, host)
    {
        return Ok(Trained::Nothing(why));
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
    let run: Arc<dyn Run> = host
        .executor(work.placement.execution.place)
        .start(&spec)?
        .into();
    drop(making);
    let trained = see_through(work, host, cache, running, events, (&spec, run), gone)?;
    Ok(trained.unwrap_or_else(|| Trained::Nothing("its job was never submitted".into())))
}

/// Why a run is not begun in the allocation that tprimat is in; `None` also where it is not known
/// how long the run takes, or how long the allocation lasts.
fn too_long(work: &TrainWork, host: &TrainHost) -> Option<String> {
    let job = host.caller_env.get("SLURM_JOB_ID")?;
    let (needed, left) = (
        work.limits.estimated_seconds?,
        host.slurm.seconds_left(job)?,
    );
    (needed > left).then(|| {
        format!(
            "the allocation ends in {:.0} s, and this run took {:.0} s before",
            left.max(0.0),
            needed
        )
    })
}

/// Follows a run to its end and takes it into the cache. `None`: nothing has run, and its folder is
/// gone.
pub(super) fn see_through(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
    (spec, run): (&RunSpec, Arc<dyn Run>),
    gone: &(dyn Fn() + Sync),
) -> Result<Option<Trained>> {
    running.add(&run);
    let log = log_path(&spec.dir);
    let end = {
        let mut follower = Follower::of(work, (&*run, &log), events);
        run.wait(gone, &mut || follower.look())
    };
    running.remove(&run);
    let exit = match end? {
        End::Over(exit) => exit,
        End::Unseen(why) => return Ok(Some(Trained::Nothing(why))),
        End::Refused(why) => {
            drop(run);
            remove(&spec.dir);
            return Ok(Some(Trained::Nothing(why)));
        }
        End::NeverWas => {
            drop(run);
            remove(&spec.dir);
            return Ok(None);
        }
        End::GoesOn { slurm_job } => {
            events.report(&Event::TaskGoesOn {
                task: work.name().to_owned(),
                slurm_job,
            });
            return Err(Error::Interrupted(0));
        }
    };
    say_note(work.name(), Some(&exit), events);
    if work.launch.starts_python
        && exit.status == ExitKind::Code(0)
        && !imports::are_reported(&spec.dir)
    {
        events.report(&Event::Note {
            message: format!(
                "{}: no Python of this run said what it imports (`python -I` and cleared environments hide it): of the project's files, \
                 only those listed by `tprimat check` are known to be inputs",
                work.name()
            ),
        });
    }
    let attempt = ingest(cache, spec, Some(&exit), &log, &host.hostname)?;
    drop(run);
    remove(&spec.dir);
    if let Some(sharing) = &host.sharing {
        sharing.leave(&attempt, cache, running.is_stopped(), events)?;
    }
    Ok(Some(Trained::Attempt(Box::new(attempt))))
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
/// disturbed just now, or a failure that would come again.
fn made_meanwhile(cache: &Cache, work: &TrainWork) -> Option<Attempt> {
    let serves = |a: &Attempt| match &a.outcome {
        // Another host may have measured it anew, under a later generation.
        _ if a.generation < work.measurement.generation || a.set_aside.is_some() => false,
        RunOutcome::Ok => {
            (a.suspect.is_none() || !work.seen.contains(&a.id)) && lost_log(cache, a).is_none()
        }
        RunOutcome::Failed { .. } => a.will_fail_again() && !work.seen.contains(&a.id),
    };
    let attempts = cache.attempts(work.key());
    let best = attempts
        .iter()
        .filter(|a| serves(a))
        .min_by_key(|a| (a.outcome != RunOutcome::Ok, a.suspect.is_some()));
    best.cloned()
}
