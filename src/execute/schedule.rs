//! DAG → outcomes: runs what is stale, in an order that is fair to measurements.
//!
//! Derived tasks (render, parse, aggregate, compare, plot, report) run on up to `jobs` threads.
//! Training tasks own the host by default: while one is measured, nothing else runs. Shared ones
//! run beside each other, up to `jobs`. Repeats are interleaved (every cell's #1, then every #2),
//! so that drift of the machine does not pose as a difference between cells.
//!
//! | module | |
//! |---|---|
//! | `queue` | the stale tasks whose inputs are done, in the order in which they start |
//! | `room` | what runs now, and what of this host is left for others |
//! | `ends` | what a task left becomes its status |
//! | `telling` | what people are told of a task's start and end |

mod ends;
mod queue;
mod room;
mod telling;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    time::Duration,
};

use petgraph::Direction;

use super::{
    derived::{self, Derived, DerivedWork},
    event_sink::EventSink,
    events::Event,
    host::TrainHost,
    interrupt::Interrupts,
    launch,
    launch::TrainWork,
    schedule::{
        queue::{Queue, QueuedTraining},
        room::{Needs, Room, Running, Turns},
        telling::Unread,
    },
    see_through::{RunningSet, Trained},
    train::train,
};
use crate::{
    cache::{Attempt, TaskKind},
    digest::Digest,
    error::{Error, Result},
    graph::{Engine, State, Statuses, TaskId, label},
    matrix::CellId,
    plan::Support,
};

pub struct BuildOptions {
    /// How many runs that share the host at once, and how many other tasks.
    pub jobs: usize,
    pub fail_fast: bool,
}

/// How a build ended, in tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildSummary {
    pub ran: usize,
    /// Runs that it made, however they ended.
    pub runs: usize,
    pub failed: usize,
    /// Runs that ended well and count.
    pub counted: usize,
    /// Runs that ended well and do not count, because something disturbed them.
    pub disturbed: usize,
}

impl BuildSummary {
    /// What two builds of one command did together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            ran: self.ran + other.ran,
            runs: self.runs + other.runs,
            failed: self.failed + other.failed,
            counted: self.counted + other.counted,
            disturbed: self.disturbed + other.disturbed,
        }
    }

    fn count(&mut self, attempt: &Attempt) {
        self.counted += usize::from(attempt.is_valid());
        self.disturbed += usize::from(attempt.is_disturbed());
    }
}

/// Runs every stale task that is selected; `statuses` ends as what became of them.
pub fn build(
    engine: &Engine,
    statuses: &mut Statuses,
    options: &BuildOptions,
    host: &TrainHost,
    interrupts: Interrupts,
    events: &EventSink,
) -> Result<BuildSummary> {
    let stale: Vec<TaskId> = engine
        .dag
        .order
        .iter()
        .copied()
        .filter(|node| statuses.get(*node).state == State::Stale && engine.is_wanted(*node))
        .collect();
    events.report(&Event::BuildStarted {
        tasks: engine.dag.graph.node_count(),
        stale: stale.len(),
        queue: stale
            .iter()
            .map(|node| label(engine.plan, &engine.dag.task(*node)))
            .collect(),
    });
    let mut scheduler = Scheduler {
        engine,
        options,
        events,
        pending: inputs_to_come(engine, &stale),
        queue: Queue::default(),
        room: Room::of(options.jobs, host.gpus.len()),
        has_jobs: engine.plan.cells.iter().any(|cell| match &cell.support {
            Support::Ready(prepared) => Needs::of(prepared).is_job,
            Support::Unsupported(_) => false,
        }),
        trained: HashSet::new(),
        recorded: HashSet::new(),
        stopping: false,
        error: None,
        summary: BuildSummary::default(),
        told: HashSet::new(),
        unread: HashMap::new(),
    };
    for node in stale {
        if scheduler.pending[&node] == 0 {
            scheduler.ready(node, statuses)?;
        }
    }
    scheduler.run_all(statuses, host, interrupts);
    scheduler.say_what_is_unread();
    match scheduler.error {
        Some(error) => Err(error),
        None => Ok(scheduler.summary),
    }
}

fn is_interrupt(error: &Error) -> bool {
    matches!(error, Error::Interrupted(_))
}

/// Is `error` the one that the build ends with, after `kept`? The first one is; but that somebody
/// interrupted the build, which ends whoever waits at once, hides no error of a run that ends later.
fn is_told_instead(kept: Option<&Error>, error: &Error) -> bool {
    kept.is_none_or(|kept| is_interrupt(kept) && !is_interrupt(error))
}

/// How many stale tasks each stale task still waits for.
fn inputs_to_come(engine: &Engine, stale: &[TaskId]) -> HashMap<TaskId, usize> {
    let wanted: BTreeSet<TaskId> = stale.iter().copied().collect();
    let graph = &engine.dag.graph;
    let inputs = |node: TaskId| graph.neighbors_directed(node, Direction::Incoming);
    let to_come = |node: TaskId| inputs(node).filter(|input| wanted.contains(input)).count();
    stale.iter().map(|node| (*node, to_come(*node))).collect()
}

struct Scheduler<'a> {
    engine: &'a Engine<'a>,
    options: &'a BuildOptions,
    events: &'a EventSink,
    /// Stale tasks that each stale task still waits for.
    pending: HashMap<TaskId, usize>,
    queue: Queue,
    room: Room,
    /// Does a batch system take some of the trainings?
    has_jobs: bool,
    /// Keys that this build trained.
    trained: HashSet<Digest>,
    /// Cells whose job is in the cache, so that `show --stale` can look inside it.
    recorded: HashSet<CellId>,
    stopping: bool,
    error: Option<Error>,
    summary: BuildSummary,
    /// What was said of files that runs wrote; many runs write the same ones.
    told: HashSet<String>,
    /// Runs that ended well, by the task that parses their logs: whether they count is known, and
    /// said, once it is done.
    unread: HashMap<TaskId, Unread>,
}

enum Work<'a> {
    Derived(Box<DerivedWork>),
    Train(Box<TrainWork<'a>>),
}

enum Finished {
    Derived(Result<Derived>),
    Trained(Box<Result<Trained>>),
}

impl Work<'_> {
    fn run(
        self,
        engine: &Engine,
        host: &TrainHost,
        set: &RunningSet,
        events: &EventSink,
    ) -> Finished {
        match self {
            Self::Derived(work) => Finished::Derived(derived::run(*work, engine)),
            Self::Train(work) => {
                Finished::Trained(Box::new(train(&work, host, engine.cache, set, events)))
            }
        }
    }
}

/// Turns the panic of a task into an error; otherwise the build would wait for that task for ever.
fn caught(is_training: bool, run: impl FnOnce() -> Finished) -> Finished {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let error = Error::Internal("a task panicked, as is told above".to_owned());
        match is_training {
            true => Finished::Trained(Box::new(Err(error))),
            false => Finished::Derived(Err(error)),
        }
    })
}

/// How often somebody asked for the end of the build.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Never,
    Once,
    Again,
}

impl<'a> Scheduler<'a> {
    /// Starts tasks and takes in their ends until nothing is left, or the build was told to stop and
    /// nothing runs any more.
    fn run_all(&mut self, statuses: &mut Statuses, host: &TrainHost, interrupts: Interrupts) {
        let (engine, events, set) = (self.engine, self.events, RunningSet::default());
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::channel::<(TaskId, Finished)>();
            let mut asked = Asked::Never;
            loop {
                asked = self.heed(asked, interrupts, &set);
                while let Some((node, work)) = self.next(statuses) {
                    let (send, set) = (send.clone(), &set);
                    scope.spawn(move || {
                        let is_training = matches!(work, Work::Train(_));
                        let finished = caught(is_training, || work.run(engine, host, set, events));
                        let _ = send.send((node, finished));
                    });
                }
                if self.room.is_empty() && (self.stopping || self.queue.is_empty()) {
                    break;
                }
                // A signal must be seen soon even while nothing finishes.
                let first = receive.recv_timeout(Duration::from_millis(50));
                for (node, finished) in first.into_iter().chain(receive.try_iter()) {
                    self.finished(node, finished, statuses);
                }
            }
        });
    }

    /// Ends the runs once somebody asked for it, and at once when they insist.
    fn heed(&mut self, asked: Asked, interrupts: Interrupts, set: &RunningSet) -> Asked {
        match asked {
            Asked::Never if interrupts.asked().is_some() => {
                self.stopping = true;
                self.say_what_is_waited_for(&set.terminate());
                Asked::Once
            }
            Asked::Once if interrupts.insisted() => {
                set.kill();
                Asked::Again
            }
            asked => asked,
        }
    }

    /// The next task that may start now. Derived tasks come first: they are short, and whether
    /// another run is made may depend on them.
    fn next(&mut self, statuses: &mut Statuses) -> Option<(TaskId, Work<'a>)> {
        while !self.stopping {
            if self.room.takes_derived()
                && let Some(node) = self.queue.next_derived()
            {
                return Some((node, self.start_derived(node, statuses)));
            }
            let (train, needs) = self.choose(statuses)?;
            match self.start_training(train, needs, statuses) {
                Ok(Some(work)) => return Some((train.node, work)),
                // It was settled without a run, which may have made other tasks ready.
                Ok(None) => {}
                Err(error) => self.give_up(error),
            }
        }
        None
    }

    /// The training that may start now, in the order of repeats.
    fn choose(&self, statuses: &Statuses) -> Option<(QueuedTraining, Needs)> {
        let mut turns = Turns::of(&self.room);
        for train in self.queue.trainings() {
            if turns.are_over(train.repeat) && !self.has_jobs {
                return None;
            }
            let needs = Needs::of(self.engine.plan.prepared(train.cell)?);
            let waits_for_a_log = || self.waits_for_a_log(train, statuses);
            if turns.takes(train.repeat, &needs, waits_for_a_log) {
                return Some((train, needs));
            }
        }
        None
    }

    /// Is the log of an earlier repeat still to be parsed? Then it is not known yet whether this one is
    /// started.
    fn waits_for_a_log(&self, train: QueuedTraining, statuses: &Statuses) -> bool {
        let dag = self.engine.dag;
        let state = |kind, repeat| statuses.get(dag.node(kind, train.cell, repeat)).state;
        (1..train.repeat).any(|repeat| {
            state(TaskKind::Train, repeat) == State::Fresh
                && state(TaskKind::Parse, repeat) == State::Stale
        })
    }

    fn start_derived(&mut self, node: TaskId, statuses: &Statuses) -> Work<'a> {
        let work = derived::prepare(self.engine, node, statuses);
        let preimage = self.engine.preimage(node, statuses).unwrap_or_default();
        self.start(node, Needs::default(), Vec::new(), preimage, statuses);
        Work::Derived(Box::new(work))
    }

    /// `None`: there is nothing to run, because another cell with the same launch has been measured
    /// since.
    fn start_training(
        &mut self,
        train: QueuedTraining,
        needs: Needs,
        statuses: &mut Statuses,
    ) -> Result<Option<Work<'a>>> {
        let node = train.node;
        let status = self.engine.evaluate(node, statuses)?;
        if status.state != State::Stale {
            self.queue.remove(train);
            statuses.set(node, status);
            self.settled(node, statuses)?;
            return Ok(None);
        }
        self.queue.start(train);
        let gpus = self.room.take_gpus(needs.gpus);
        let preimage = self.engine.preimage(node, statuses).unwrap_or_default();
        let work = launch::train_work(self.engine, node, statuses, gpus.clone(), &preimage)?;
        self.start(node, needs, gpus, preimage, statuses);
        Ok(Some(Work::Train(Box::new(work))))
    }

    fn start(
        &mut self,
        node: TaskId,
        needs: Needs,
        gpus: Vec<usize>,
        preimage: String,
        statuses: &Statuses,
    ) {
        self.say_started(node, statuses);
        let key = statuses.get(node).key;
        self.room
            .enter(node, Running::new(needs, gpus, key, preimage));
    }

    /// The error is told at the end of the build. What runs may take hours until then, so it is also
    /// said at once where something runs.
    fn give_up(&mut self, error: Error) {
        self.stopping = true;
        if !is_told_instead(self.error.as_ref(), &error) {
            return;
        }
        if !is_interrupt(&error) && !self.room.is_empty() {
            self.say(format!(
                "nothing more is started, because of an error: {error}. What runs now goes on to its end"
            ));
        }
        self.error = Some(error);
    }

    /// All that `node` waits for is done: look again, for it may be fresh now.
    fn ready(&mut self, node: TaskId, statuses: &mut Statuses) -> Result<()> {
        let task = self.engine.dag.task(node);
        if task.kind == TaskKind::Compare {
            self.look_at_twins(statuses)?;
        }
        let status = self.engine.evaluate(node, statuses)?;
        let (is_stale, key) = (status.state == State::Stale, status.key);
        statuses.set(node, status);
        if !is_stale {
            return self.settled(node, statuses);
        }
        match key.filter(|_| task.kind == TaskKind::Train) {
            Some(key) => {
                let round = self.engine.options.round;
                let train = QueuedTraining::new(node, task.cell, task.repeat, round);
                self.queue.push_training(train, key);
            }
            None => self.queue.push_derived(node),
        }
        Ok(())
    }

    /// Says of a task of the queue that it will not run, and goes on to what waits for it.
    fn settled(&mut self, node: TaskId, statuses: &mut Statuses) -> Result<()> {
        self.say_settled(node, statuses);
        self.done(node, statuses)
    }

    /// Goes on to the tasks that waited for `node`.
    fn done(&mut self, node: TaskId, statuses: &mut Statuses) -> Result<()> {
        if let Some(ended) = self.unread.remove(&node) {
            self.judge(node, ended, statuses);
        }
        let engine = self.engine;
        let graph = &engine.dag.graph;
        for next in graph.neighbors_directed(node, Direction::Outgoing) {
            let Some(count) = self.pending.get_mut(&next) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.ready(next, statuses)?;
            }
        }
        Ok(())
    }

    /// What was trained may be the measurement of cells that are not selected as well.
    fn look_at_twins(&self, statuses: &mut Statuses) -> Result<()> {
        let Engine { plan, dag, .. } = self.engine;
        for (cell, planned) in plan.cells.with_ids() {
            let train = |repeat| statuses.get(dag.node(TaskKind::Train, cell, repeat)).key;
            let is_twin = || {
                (1..=planned.repeats)
                    .filter_map(train)
                    .any(|key| self.trained.contains(&key))
            };
            if !planned.selected && matches!(planned.support, Support::Ready(_)) && is_twin() {
                for (node, status) in self.engine.evaluate_cell(cell)? {
                    statuses.set(node, status);
                }
            }
        }
        Ok(())
    }

    /// The trainings of a cell that have not started.
    fn queued_of(&self, cell: CellId) -> Vec<QueuedTraining> {
        let Engine { plan, dag, .. } = self.engine;
        (1..=plan.cells[cell].repeats)
            .map(|repeat| {
                let node = dag.node(TaskKind::Train, cell, repeat);
                QueuedTraining::new(node, cell, repeat, self.engine.options.round)
            })
            .filter(|train| self.queue.has(*train))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_panics_ends_as_an_error_does() {
        for is_training in [true, false] {
            let finished = caught(is_training, || panic!("as it is meant to"));
            assert!(match finished {
                Finished::Trained(trained) => is_training && trained.is_err(),
                Finished::Derived(derived) => !is_training && derived.is_err(),
            });
        }
    }

    #[test]
    fn an_interrupt_hides_no_error() {
        let (interrupt, full) = (Error::Interrupted(0), Error::failed("the disk is full"));
        let told = |kept, error| is_told_instead(kept, error);
        assert!(told(None, &interrupt) && told(None, &full) && told(Some(&interrupt), &full));
        assert!(!told(Some(&full), &interrupt) && !told(Some(&full), &full));
        assert!(!told(Some(&interrupt), &interrupt));
    }
}
