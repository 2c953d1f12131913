//! Follows a run that was started to its end, and takes what it left into the cache.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    event_sink::EventSink,
    events::Event,
    follow::Follower,
    host::TrainHost,
    imports,
    ingest::ingest,
    launch::{Measurement, TrainWork},
};
use crate::{
    cache::{Attempt, Cache},
    error::{Error, Result},
    run::{
        End, ExitKind, Interrupted, Run, RunExit, RunSpec,
        folder::{LOG, remove},
    },
};

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
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Follows a run to its end and takes it into the cache. `None`: nothing has run, and its folder is
/// gone.
pub(super) fn see_through(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
    (spec, run): (&RunSpec, Arc<dyn Run>),
) -> Result<Option<Trained>> {
    running.add(&run);
    let log = spec.dir.join(LOG);
    let end = {
        let mut follower = Follower::of(work, (&*run, &log), events);
        run.wait(&mut || follower.look())
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
        End::GoesOn { job, cancels } => {
            events.report(&Event::TaskGoesOn {
                task: work.name().to_owned(),
                job,
                cancels,
            });
            return Err(Error::Interrupted(0));
        }
    };
    say_note(work.name(), Some(&exit), events);
    let starts_python =
        work.prepared.python.is_some() || !work.recipe.file.require.python_modules.is_empty();
    if starts_python && exit.status == ExitKind::Code(0) && !imports::are_reported(&spec.dir) {
        events.report(&Event::Note {
            message: format!(
                "{}: no Python of this run said what it imports (`python -I` and cleared environments hide it): of the project's files, \
                 only those listed by `tprimat check` are known to be inputs",
                work.name()
            ),
        });
    }
    let measured = Measurement::of(spec).map_err(Error::failed)?;
    let attempt = ingest(cache, (spec, measured), Some(&exit), &log, &host.hostname)?;
    drop(run);
    remove(&spec.dir);
    if let Some(sharing) = &host.sharing {
        sharing.leave(&attempt, cache, running.is_stopped(), events)?;
    }
    Ok(Some(Trained::Attempt(Box::new(attempt))))
}

/// Tells what a person should know of how a run ended.
pub(super) fn say_note(task: &str, exit: Option<&RunExit>, events: &EventSink) {
    if let Some(note) = exit.and_then(RunExit::told) {
        events.report(&Event::Note {
            message: format!("{task}: {note}"),
        });
    }
}
