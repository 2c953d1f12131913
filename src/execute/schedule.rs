//! DAG → outcomes: runs what is stale, in an order that is fair to measurements.
//!
//! Derived tasks (render, parse, aggregate, compare, plot, report) run on up to `jobs` threads.
//! Training tasks own the host by default: while one is measured, nothing else runs. Shared ones
//! run beside each other, up to `jobs`. Repeats are interleaved (every cell's #1, then every #2),
//! so that drift of the machine does not pose as a difference between cells.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::mpsc,
    time::{Duration, Instant},
};

use petgraph::Direction;

use super::{
    EventSink,
    derived::{self, Derived, DerivedWork},
    events::{Event, INTERRUPTED, Outcome},
    interrupt::Interrupts,
    launch,
    train::{RunningSet, TrainHost, TrainWork, Trained, train},
};
use crate::{
    cache::{Attempt, TaskKind},
    digest::Digest,
    error::{Error, Result},
    figures::NotCounted,
    graph::{Artifacts, Engine, State, Status, Statuses, Task, TaskId, label},
    job::{FailureClass, RunOutcome},
    matrix::CellId,
    plan::{Place, Plan, Support},
    report, sentences,
    words::plain::counted,
};

pub struct BuildOptions {
    /// How many tasks at once.
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
    fn count(&mut self, attempt: &Attempt) {
        self.counted += usize::from(attempt.is_valid());
        self.disturbed += usize::from(attempt.is_disturbed());
    }
}

enum Finished {
    Derived(Result<Derived>),
    Trained(Box<Result<Trained>>),
}

struct Scheduler<'a> {
    engine: &'a Engine<'a>,
    options: &'a BuildOptions,
    events: &'a EventSink,
    /// Stale tasks that each stale task still waits for.
    pending: HashMap<TaskId, usize>,
    derived: VecDeque<TaskId>,
    /// Ordered by repeat, then cell.
    trains: BTreeSet<(u32, CellId, TaskId)>,
    /// Train keys in flight; the same key under a second cell waits for the first.
    keys: HashMap<Digest, Vec<TaskId>>,
    /// Those that this build trained.
    trained: HashSet<Digest>,
    running: HashMap<TaskId, Running>,
    free_gpus: Vec<usize>,
    /// Does a batch system take some of the trainings?
    has_jobs: bool,
    cool_until: Option<Instant>,
    stopping: bool,
    error: Option<Error>,
    summary: BuildSummary,
    /// What was said of files that runs wrote; many runs write the same ones.
    told: HashSet<String>,
    /// Runs that ended well, by the task that parses their logs: whether they count is known, and
    /// said, once it is done.
    unread: HashMap<TaskId, Unread>,
}

struct Unread {
    name: String,
    seconds: f64,
}

/// What a training needs of this host.
struct DevicesNeeded {
    exclusive: bool,
    is_job: bool,
    gpus: usize,
}

/// What a task was given of this host.
struct DevicesGranted {
    exclusive: bool,
    is_job: bool,
    gpus: Vec<usize>,
}

struct Running {
    /// A batch system has it, so it takes nothing of this host.
    is_job: bool,
    since: Instant,
    kind: TaskKind,
    exclusive: bool,
    gpus: Vec<usize>,
    key: Option<Digest>,
    preimage: String,
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
        .filter(|n| statuses.get(*n).state == State::Stale && engine.is_wanted(*n))
        .collect();
    let wanted: BTreeSet<TaskId> = stale.iter().copied().collect();
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
        pending: stale
            .iter()
            .map(|node| {
                let before = engine
                    .dag
                    .graph
                    .neighbors_directed(*node, Direction::Incoming);
                (*node, before.filter(|b| wanted.contains(b)).count())
            })
            .collect(),
        derived: VecDeque::new(),
        trains: BTreeSet::new(),
        keys: HashMap::new(),
        trained: HashSet::new(),
        running: HashMap::new(),
        free_gpus: (0..host.gpus.len()).collect(),
        has_jobs: engine.plan.cells.iter().any(|cell| match &cell.support {
            Support::Ready(prepared) => prepared.resolved.execution.place != Place::Local,
            Support::Unsupported(_) => false,
        }),
        cool_until: None,
        stopping: false,
        error: None,
        summary: BuildSummary::default(),
        told: HashSet::new(),
        unread: HashMap::new(),
    };
    let set = RunningSet::default();
    let ready: Vec<_> = stale
        .iter()
        .copied()
        .filter(|n| scheduler.pending[n] == 0)
        .collect();
    for node in ready {
        scheduler.ready(node, statuses)?;
    }
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::channel::<(TaskId, Finished)>();
        let mut signals = 0;
        loop {
            if interrupts.asked().is_some() && signals == 0 {
                signals = 1;
                scheduler.stopping = true;
                set.terminate();
                // A trainer may take its whole grace to end, and silence would look like a hang.
                let running = scheduler.running.keys();
                let runs = running.filter(|node| engine.dag.task(**node).kind == TaskKind::Train);
                let runs = runs.count();
                if runs > 0 {
                    let message = format!(
                        "interrupted: waiting for {} to end; a second Ctrl-C ends {} at once",
                        counted(runs, "run"),
                        if runs == 1 { "it" } else { "them" }
                    );
                    events.report(&Event::Note { message });
                }
            } else if signals == 1 && interrupts.insisted() {
                signals = 2;
                set.kill();
            }
            if !scheduler.stopping {
                while let Some((node, work)) = scheduler.next(statuses) {
                    let (send, set) = (send.clone(), &set);
                    scope.spawn(move || {
                        let finished = match work {
                            Work::Derived(work) => {
                                Finished::Derived(derived::run(*work, engine.cache))
                            }
                            Work::Train(work) => Finished::Trained(Box::new(train(
                                &work,
                                host,
                                engine.cache,
                                set,
                                events,
                            ))),
                        };
                        let _ = send.send((node, finished));
                    });
                }
            }
            if scheduler.running.is_empty() && (scheduler.stopping || scheduler.is_idle()) {
                break;
            }
            // A signal must be seen soon even while nothing finishes.
            match receive.recv_timeout(Duration::from_millis(50)) {
                Ok((node, finished)) => scheduler.finished(node, finished, statuses),
                Err(_) => continue,
            }
            while let Ok((node, finished)) = receive.try_recv() {
                scheduler.finished(node, finished, statuses);
            }
        }
    });
    // The build was stopped before their logs were parsed.
    for (_, Unread { name, seconds }) in scheduler.unread.drain() {
        events.report(&ended_well(name, seconds));
    }
    let Scheduler { error, summary, .. } = scheduler;
    match error {
        Some(error) => Err(error),
        None => Ok(summary),
    }
}

enum Work {
    Derived(Box<DerivedWork>),
    Train(Box<TrainWork>),
}

impl Scheduler<'_> {
    fn is_idle(&self) -> bool {
        self.derived.is_empty() && self.trains.is_empty()
    }

    /// All that `node` waits for is done: look again, for it may be fresh now.
    fn ready(&mut self, node: TaskId, statuses: &mut Statuses) -> Result<()> {
        if self.engine.dag.task(node).kind == TaskKind::Compare {
            self.look_at_twins(statuses)?;
        }
        let status = self.engine.evaluate(node, statuses)?;
        let is_stale = status.state == State::Stale;
        statuses.set(node, status);
        if is_stale {
            let task = self.engine.dag.task(node);
            if task.kind == TaskKind::Train {
                self.trains.insert((task.repeat, task.cell, node));
            } else {
                self.derived.push_back(node);
            }
            return Ok(());
        }
        self.settled(node, statuses)
    }

    /// Says of a task of the queue that it will not run, and goes on to what waits for it.
    fn settled(&mut self, node: TaskId, statuses: &mut Statuses) -> Result<()> {
        let outcome = match statuses.get(node).state {
            State::Fresh => Outcome::Cached,
            _ => Outcome::Waiting,
        };
        self.events.report(&Event::TaskFinished {
            task: label(self.engine.plan, &self.engine.dag.task(node)),
            outcome,
            seconds: 0.0,
            class: None,
            evidence: Vec::new(),
            what_to_do: None,
        });
        self.done(node, statuses)
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

    fn done(&mut self, node: TaskId, statuses: &mut Statuses) -> Result<()> {
        if let Some(ended) = self.unread.remove(&node) {
            self.say_how_it_ended(node, ended, statuses);
        }
        let after: Vec<_> = self
            .engine
            .dag
            .graph
            .neighbors_directed(node, Direction::Outgoing)
            .collect();
        for next in after {
            if let Some(count) = self.pending.get_mut(&next) {
                *count -= 1;
                if *count == 0 {
                    self.ready(next, statuses)?;
                }
            }
        }
        Ok(())
    }

    /// Says how a run ended whose log is parsed now.
    fn say_how_it_ended(&mut self, parse: TaskId, ended: Unread, statuses: &Statuses) {
        let Unread { name, seconds } = ended;
        let Engine { plan, dag, .. } = self.engine;
        let task = dag.task(parse);
        let train = statuses.get(dag.node(TaskKind::Train, task.cell, task.repeat));
        let verdict = self.engine.verdict(task.cell, train, statuses.get(parse));
        let Some(why) = verdict.flatten() else {
            return self.events.report(&ended_well(name, seconds));
        };
        let is_disturbed = matches!(why, NotCounted::Suspect(_));
        self.stopping |= self.options.fail_fast && !is_disturbed;
        let class = match &why {
            NotCounted::Failed { class, .. } => Some(*class),
            _ => None,
        };
        let what_to_do = match class {
            Some(class) => Some(advice_on(plan, task.cell, class)),
            None if is_disturbed => None,
            None => Some(format!(
                "`tprimat show {}` says more; correct the configuration or, where the log is misread, [log] in recipe.toml, which takes no new run",
                named(plan, task.cell, "")
            )),
        };
        let mut evidence = vec![sentences::uncounted(&why)];
        let later = self.trains.iter().find(|(_, cell, _)| *cell == task.cell);
        let is_held = |node| {
            let status = self.engine.evaluate(node, statuses);
            status.is_ok_and(|status| status.state == State::Failed)
        };
        if later.is_some_and(|(.., node)| is_held(*node)) {
            evidence.push(
                "its cell's other repeats would not count either and are not started; --retry-failed runs them all the same"
                    .to_owned(),
            );
        }
        self.events.report(&Event::TaskFinished {
            task: name,
            outcome: Outcome::NotCounted,
            seconds,
            class,
            evidence,
            what_to_do,
        });
    }

    /// Is the log of an earlier repeat being parsed? Then it is not known yet whether this one is
    /// started.
    fn waits_for_a_log(&self, cell: CellId, repeat: u32, statuses: &Statuses) -> bool {
        let state = |kind, n| statuses.get(self.engine.dag.node(kind, cell, n)).state;
        (1..repeat).any(|n| {
            state(TaskKind::Train, n) == State::Fresh && state(TaskKind::Parse, n) == State::Stale
        })
    }

    /// The next task that may start now.
    fn next(&mut self, statuses: &mut Statuses) -> Option<(TaskId, Work)> {
        let is_full =
            self.here().any(|r| r.exclusive) || self.here().count() >= self.options.jobs.max(1);
        if let Some(node) = self.derived.front().copied().filter(|_| !is_full) {
            self.derived.pop_front();
            let preimage = self.engine.preimage(node, statuses).unwrap_or_default();
            let work = derived::prepare(self.engine, node, statuses);
            let held = DevicesGranted {
                exclusive: false,
                is_job: false,
                gpus: Vec::new(),
            };
            self.start(node, held, preimage, statuses);
            return Some((node, Work::Derived(Box::new(work))));
        }
        let (repeat, cell, node, key, wants) = self.choose(is_full, statuses)?;
        let DevicesNeeded {
            exclusive,
            is_job,
            gpus: needed,
        } = wants;
        self.trains.remove(&(repeat, cell, node));
        // Another cell with the same launch may have been measured since: then there is nothing to
        // run.
        match self.engine.evaluate(node, statuses) {
            Ok(status) if status.state != State::Stale => {
                statuses.set(node, status);
                return match self.settled(node, statuses) {
                    Ok(()) => self.next(statuses),
                    Err(error) => self.give_up(error),
                };
            }
            Ok(_) => {}
            Err(error) => return self.give_up(error),
        }
        self.keys.insert(key, Vec::new());
        let gpus: Vec<usize> = self.free_gpus.drain(..needed).collect();
        let preimage = self.engine.preimage(node, statuses).unwrap_or_default();
        let work = match launch::train_work(self.engine, node, statuses, gpus.clone(), &preimage) {
            Ok(work) => work,
            Err(error) => return self.give_up(error),
        };
        self.start(
            node,
            DevicesGranted {
                exclusive,
                is_job,
                gpus,
            },
            preimage,
            statuses,
        );
        Some((node, Work::Train(Box::new(work))))
    }

    /// What runs on this host.
    fn here(&self) -> impl Iterator<Item = &Running> {
        self.running.values().filter(|running| !running.is_job)
    }

    /// The training that may start now, in the order of repeats. Those of this host keep their
    /// order among themselves, so that none that needs all of it waits for ever; jobs of a batch
    /// system pass them.
    fn choose(
        &mut self,
        is_full: bool,
        statuses: &Statuses,
    ) -> Option<(u32, CellId, TaskId, Digest, DevicesNeeded)> {
        let jobs = self.running.len() - self.here().count();
        let mut is_full = is_full || self.cool_until.is_some_and(|until| Instant::now() < until);
        let (mut later, mut found) = (Vec::new(), None);
        for &(repeat, cell, node) in &self.trains {
            let prepared = self.engine.plan.prepared(cell)?;
            let (place, slurm) = (
                prepared.resolved.execution.place,
                &prepared.resolved.execution.slurm,
            );
            if is_full && !self.has_jobs {
                break;
            }
            let most = slurm.max_jobs.map_or(self.options.jobs, |most| {
                usize::try_from(most).unwrap_or(usize::MAX)
            });
            // A step of an allocation has its nodes to itself, as a run has this host, which may be
            // one of them; where several are wanted, Slurm keeps them apart.
            let is_job = match place {
                Place::Local => false,
                Place::Slurm => true,
                Place::Allocation => slurm.max_jobs.is_some_and(|most| most > 1),
            };
            let has_no_room = if is_job { jobs >= most.max(1) } else { is_full };
            if has_no_room || self.waits_for_a_log(cell, repeat, statuses) {
                continue;
            }
            let key = statuses.get(node).key?;
            if self.keys.contains_key(&key) {
                later.push((repeat, cell, node, key));
                continue;
            }
            let (gpus, vendor) = (
                prepared.job().parallelism.num_gpus as usize,
                prepared.job().vendor,
            );
            let is_of_this_host = place == Place::Local && vendor != crate::job::Vendor::Cpu;
            let wants = DevicesNeeded {
                exclusive: !is_job && !prepared.resolved.share,
                is_job,
                gpus: if is_of_this_host { gpus } else { 0 },
            };
            if !wants.is_job
                && (wants.exclusive && self.here().next().is_some()
                    || wants.gpus > self.free_gpus.len())
            {
                is_full = true;
                continue;
            }
            found = Some((repeat, cell, node, key, wants));
            break;
        }
        for (repeat, cell, node, key) in later {
            self.trains.remove(&(repeat, cell, node));
            self.keys.entry(key).or_default().push(node);
        }
        found
    }

    fn give_up<T>(&mut self, error: Error) -> Option<T> {
        self.stopping = true;
        self.error.get_or_insert(error);
        None
    }

    fn start(&mut self, node: TaskId, held: DevicesGranted, preimage: String, statuses: &Statuses) {
        let task = self.engine.dag.task(node);
        let name = label(self.engine.plan, &task);
        let status = statuses.get(node);
        let present = || self.engine.present(node, statuses);
        let reason = status
            .reason
            .as_ref()
            .map(|r| r.describe(self.engine, task.kind, &name, present));
        let cell = matches!(
            task.kind,
            TaskKind::Render | TaskKind::Train | TaskKind::Parse | TaskKind::Aggregate
        )
        .then(|| self.engine.plan.cells[task.cell].id.clone());
        self.events.report(&Event::TaskStarted {
            task: name,
            cell,
            // Only what measures has one: people watch runs, not bookkeeping.
            repeat: (task.kind == TaskKind::Train).then_some(task.repeat),
            reason: reason.unwrap_or_default(),
        });
        let DevicesGranted {
            exclusive,
            is_job,
            gpus,
        } = held;
        let (since, key) = (Instant::now(), status.key);
        let running = Running {
            is_job,
            since,
            kind: task.kind,
            exclusive,
            gpus,
            key,
            preimage,
        };
        self.running.insert(node, running);
    }

    fn finished(&mut self, node: TaskId, finished: Finished, statuses: &mut Statuses) {
        if let Err(error) = self.take_in(node, finished, statuses) {
            self.stopping = true;
            self.error.get_or_insert(error);
        }
    }

    /// After a failure the other repeats of the cell may not run either: they are settled at once, so
    /// that what is left is told rightly.
    fn settle_repeats(&mut self, cell: CellId, statuses: &mut Statuses) -> Result<()> {
        let of_cell = |train: &&(u32, CellId, TaskId)| train.1 == cell;
        let others: Vec<_> = self.trains.iter().filter(of_cell).copied().collect();
        for train in others {
            let node = train.2;
            let status = self.engine.evaluate(node, statuses)?;
            if status.state != State::Stale {
                self.trains.remove(&train);
                statuses.set(node, status);
                self.settled(node, statuses)?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, node: TaskId, finished: Finished, statuses: &mut Statuses) -> Result<()> {
        let Some(run) = self.running.remove(&node) else {
            return Ok(());
        };
        self.free_gpus.extend(&run.gpus);
        self.free_gpus.sort_unstable();
        self.summary.ran += 1;
        let name = label(self.engine.plan, &self.engine.dag.task(node));
        let seconds = run.since.elapsed().as_secs_f64();
        let key = run
            .key
            .ok_or_else(|| Error::Internal(format!("task `{name}` ran without a key")))?;
        match finished {
            Finished::Derived(outputs) => {
                let Derived { outputs, notes } = outputs?;
                notes
                    .into_iter()
                    .for_each(|message| self.events.report(&Event::Note { message }));
                let entry = crate::cache::Entry {
                    key,
                    kind: run.kind,
                    task: name.clone(),
                    preimage: run.preimage,
                    outputs: outputs.clone(),
                };
                self.record_nested(node)?;
                self.engine.cache.record_entry(&entry)?;
                statuses.set(node, Status::fresh(key, outputs));
                self.events.report(&ended_well(name, seconds));
            }
            Finished::Trained(attempt) => {
                self.record_nested(node)?;
                let cell = self.engine.dag.task(node).cell;
                let idle = self
                    .engine
                    .plan
                    .prepared(cell)
                    .map_or(0.0, |p| p.resolved.cooldown_seconds);
                if run.exclusive {
                    self.cool_until = Some(
                        Instant::now() + Duration::try_from_secs_f64(idle).unwrap_or_default(),
                    );
                }
                let mut waiting = self.keys.remove(&key).unwrap_or_default();
                // Another tprimat may have made it meanwhile.
                let (attempt, was_made_here) = match (*attempt)? {
                    Trained::Attempt(attempt) => (*attempt, true),
                    Trained::Found(attempt) => (*attempt, false),
                    Trained::Nothing(why) => {
                        waiting.push(node);
                        return self.nothing_recorded(&waiting, &why, statuses);
                    }
                };
                self.trained.insert(key);
                // Trainings with the same key that have not started take this attempt too, even if
                // it does not count: a build measures a key once.
                self.trains.retain(|(.., other)| {
                    let shares = statuses.get(*other).key == Some(key);
                    waiting.extend(shares.then_some(*other));
                    !shares
                });
                if run.exclusive
                    && idle >= 1.0
                    && let Some((.., next)) = self.trains.first()
                {
                    self.events.report(&Event::TaskWaiting {
                        task: label(self.engine.plan, &self.engine.dag.task(*next)),
                        what_for: format!("the cooldown of {idle:.0} s after {name}"),
                    });
                }
                self.summary.runs += usize::from(was_made_here);
                self.summary.count(&attempt);
                if let Some(told) = attempt
                    .undeclared
                    .told()
                    .filter(|told| self.told.insert(told.clone()))
                {
                    self.events.report(&Event::Note {
                        message: format!("{name}: {told}"),
                    });
                }
                if let (Some(why), RunOutcome::Failed { .. }) = (&attempt.suspect, &attempt.outcome)
                {
                    self.events.report(&Event::Note {
                        message: format!(
                            "{name} may not fail again, so the next build tries it once more: {why}"
                        ),
                    });
                }
                // How long it ran: it may have waited for a device, or for another tprimat that ran
                // the same.
                let seconds = (attempt.ended_at - attempt.started_at).clamp(0.0, f64::MAX);
                let state = match &attempt.outcome {
                    RunOutcome::Ok => {
                        let Task { cell, repeat, .. } = self.engine.dag.task(node);
                        let parse = self.engine.dag.node(TaskKind::Parse, cell, repeat);
                        self.unread.insert(parse, Unread { name, seconds });
                        State::Fresh
                    }
                    RunOutcome::Failed {
                        class,
                        evidence,
                        status,
                    } => {
                        self.summary.failed += 1;
                        self.stopping |= self.options.fail_fast;
                        let mut evidence = evidence.clone();
                        let is_interrupted = evidence.iter().any(|line| line == INTERRUPTED);
                        if !evidence.contains(status) && !is_interrupted {
                            evidence.push(status.clone());
                        }
                        self.events.report(&Event::TaskFinished {
                            task: name,
                            outcome: Outcome::Failed,
                            seconds,
                            class: Some(*class),
                            evidence,
                            what_to_do: Some(match is_interrupted {
                                true => "nothing: the next build runs it again".to_owned(),
                                false => advice_on(self.engine.plan, cell, *class),
                            }),
                        });
                        State::Failed
                    }
                };
                // What was dropped before is so still; this attempt is the one that stands.
                let dropped = statuses.get(node).dropped.clone();
                let artifacts = Artifacts::Attempt(std::sync::Arc::new(attempt));
                let status = Status {
                    state,
                    reason: None,
                    key: Some(key),
                    artifacts,
                    dropped,
                };
                for other in waiting {
                    statuses.set(other, status.clone());
                    self.settled(other, statuses)?;
                }
                statuses.set(node, status);
                if state == State::Failed {
                    self.settle_repeats(cell, statuses)?;
                }
            }
        }
        self.done(node, statuses)
    }

    /// These trainings have no attempt, and in words why: what they would read is not what the plan
    /// knows, say.
    fn nothing_recorded(
        &mut self,
        nodes: &[TaskId],
        why: &str,
        statuses: &mut Statuses,
    ) -> Result<()> {
        self.stopping |= self.options.fail_fast;
        for &node in nodes {
            self.summary.failed += 1;
            self.events.report(&Event::TaskFinished {
                task: label(self.engine.plan, &self.engine.dag.task(node)),
                outcome: Outcome::Failed,
                seconds: 0.0,
                class: None,
                evidence: vec![why.to_owned()],
                what_to_do: None,
            });
            statuses.set(
                node,
                Status {
                    key: statuses.get(node).key,
                    ..Status::failed(why)
                },
            );
            self.done(node, statuses)?;
        }
        Ok(())
    }

    /// Stores the job's text, so that `explain` can look inside later.
    fn record_nested(&self, node: TaskId) -> Result<()> {
        let task = self.engine.dag.task(node);
        if matches!(
            task.kind,
            TaskKind::Render | TaskKind::Train | TaskKind::Parse
        ) && let Some(prepared) = self.engine.plan.prepared(task.cell)
        {
            self.engine.cache.record_preimage(&prepared.job_text())?;
        }
        Ok(())
    }
}

fn ended_well(task: String, seconds: f64) -> Event {
    Event::TaskFinished {
        task,
        outcome: Outcome::Ok,
        seconds,
        class: None,
        evidence: Vec::new(),
        what_to_do: None,
    }
}

/// What to do about a failure of this class, with the cell's own name in the commands.
fn advice_on(plan: &Plan, cell: CellId, class: FailureClass) -> String {
    // Some commands take cells or a matrix in that place, so the matrix is named by its option
    // where there is one.
    let option = if class == FailureClass::Oom {
        "--matrix "
    } else {
        ""
    };
    report::advice(class, &plan.cells[cell].id).replace("CELL", &named(plan, cell, option))
}

/// The cell, and the matrix if one was named, as a command takes them.
fn named(plan: &Plan, cell: CellId, option: &str) -> String {
    let quoted =
        |word: &str| shlex::try_quote(word).map_or_else(|_| word.to_owned(), Cow::into_owned);
    let mut name = quoted(&plan.cells[cell].id);
    if let Some(matrix) = &plan.argument {
        name += &format!(" {option}{}", quoted(matrix));
    }
    name
}
