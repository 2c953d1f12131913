//! DAG → outcomes: runs what is stale, in an order that is fair to measurements.
//!
//! Derived tasks (render, parse, aggregate, compare, plot, report) run on up to `jobs` threads.
//! Training tasks own the host by default: while one is measured, nothing else runs. Shared ones run beside
//! each other, up to `jobs`. Repeats are interleaved (every cell's #1, then every #2), so that drift of
//! the machine does not pose as a difference between cells.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::mpsc,
    time::{Duration, Instant},
};

use petgraph::{Direction, graph::NodeIndex};

use super::{
    Talk,
    derived::{self, DerivedWork},
    events::{Event, Outcome},
    interrupt::Interrupts,
    launch,
    sweep::remove,
    train::{RunningSet, TrainHost, TrainWork, Trained, ingest, train},
};
use crate::{
    cache::{AttemptOutcome, Cache, Output, TaskKind},
    digest::Digest,
    error::{Error, Result},
    graph::{Engine, Made, State, Status, Statuses, label},
    plan::Support,
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
    pub failed: usize,
}

enum Finished {
    Derived(Result<Vec<Output>>),
    Trained(Box<Result<Trained>>),
}

struct Scheduler<'a> {
    engine: &'a Engine<'a>,
    options: &'a BuildOptions,
    talk: &'a Talk,
    /// Stale tasks that each stale task still waits for.
    pending: HashMap<NodeIndex, usize>,
    derived: VecDeque<NodeIndex>,
    /// Ordered by repeat, then cell.
    trains: BTreeSet<(u32, u32, NodeIndex)>,
    /// Train keys in flight; the same key under a second cell waits for the first.
    keys: HashMap<Digest, Vec<NodeIndex>>,
    /// Those that this build trained.
    trained: HashSet<Digest>,
    running: HashMap<NodeIndex, Running>,
    free_gpus: Vec<usize>,
    cool_until: Option<Instant>,
    stopping: bool,
    error: Option<Error>,
    summary: BuildSummary,
}

struct Running {
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
    talk: &Talk,
) -> Result<BuildSummary> {
    let stale: Vec<NodeIndex> = engine
        .dag
        .order
        .iter()
        .copied()
        .filter(|n| statuses.get(*n).state == State::Stale && engine.is_wanted(*n))
        .collect();
    let wanted: BTreeSet<NodeIndex> = stale.iter().copied().collect();
    talk.report(&Event::BuildStarted { tasks: engine.dag.graph.node_count(), stale: stale.len() });
    let mut scheduler = Scheduler {
        engine,
        options,
        talk,
        pending: stale
            .iter()
            .map(|node| {
                let before = engine.dag.graph.neighbors_directed(*node, Direction::Incoming);
                (*node, before.filter(|b| wanted.contains(b)).count())
            })
            .collect(),
        derived: VecDeque::new(),
        trains: BTreeSet::new(),
        keys: HashMap::new(),
        trained: HashSet::new(),
        running: HashMap::new(),
        free_gpus: (0..host.gpus.len()).collect(),
        cool_until: None,
        stopping: false,
        error: None,
        summary: BuildSummary::default(),
    };
    let set = RunningSet::default();
    let ready: Vec<_> = stale.iter().copied().filter(|n| scheduler.pending[n] == 0).collect();
    for node in ready {
        scheduler.ready(node, statuses)?;
    }
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::channel::<(NodeIndex, Finished)>();
        let mut signals = 0;
        loop {
            if interrupts.asked().is_some() && signals == 0 {
                signals = 1;
                scheduler.stopping = true;
                set.terminate();
            } else if signals == 1 && interrupts.insisted() {
                signals = 2;
                set.kill();
            }
            if !scheduler.stopping {
                while let Some((node, work)) = scheduler.next(statuses) {
                    let (send, set) = (send.clone(), &set);
                    scope.spawn(move || {
                        let finished = match work {
                            Work::Derived(work) => Finished::Derived(derived::run(*work, engine.cache)),
                            Work::Train(work) => {
                                Finished::Trained(Box::new(train(&work, host, engine.cache, set, talk)))
                            }
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
    fn ready(&mut self, node: NodeIndex, statuses: &mut Statuses) -> Result<()> {
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
        self.done(node, statuses)
    }

    /// What was trained may be the measurement of cells that are not selected as well.
    fn look_at_twins(&self, statuses: &mut Statuses) -> Result<()> {
        let Engine { plan, dag, .. } = self.engine;
        for (id, (cell, planned)) in (0u32..).zip(plan.cells.iter().enumerate()) {
            let train = |repeat| statuses.get(dag.node(TaskKind::Train, id, repeat)).key;
            let is_twin = || (1..=planned.repeats).filter_map(train).any(|key| self.trained.contains(&key));
            if !planned.selected && matches!(planned.support, Support::Ready(_)) && is_twin() {
                for (node, status) in self.engine.evaluate_cell(cell)? {
                    statuses.set(node, status);
                }
            }
        }
        Ok(())
    }

    fn done(&mut self, node: NodeIndex, statuses: &mut Statuses) -> Result<()> {
        let after: Vec<_> = self.engine.dag.graph.neighbors_directed(node, Direction::Outgoing).collect();
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

    /// The next task that may start now.
    fn next(&mut self, statuses: &mut Statuses) -> Option<(NodeIndex, Work)> {
        if self.running.values().any(|r| r.exclusive) || self.running.len() >= self.options.jobs.max(1) {
            return None;
        }
        if let Some(node) = self.derived.pop_front() {
            let preimage = self.engine.preimage(node, statuses).unwrap_or_default();
            let work = derived::prepare(self.engine, node, statuses);
            self.start(node, false, Vec::new(), preimage, statuses);
            return Some((node, Work::Derived(Box::new(work))));
        }
        if self.cool_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let mut later = Vec::new();
        let mut found = None;
        for &(repeat, cell, node) in &self.trains {
            let prepared = self.engine.plan.prepared(cell as usize)?;
            let exclusive = !prepared.resolved.share;
            if exclusive && !self.running.is_empty() {
                break;
            }
            let key = statuses.get(node).key?;
            if self.keys.contains_key(&key) {
                later.push((repeat, cell, node, key));
                continue;
            }
            let needed = if prepared.job().vendor == crate::plan::Vendor::Cpu {
                0
            } else {
                prepared.job().parallelism.num_gpus as usize
            };
            if needed > self.free_gpus.len() {
                break;
            }
            found = Some((repeat, cell, node, key, exclusive, needed));
            break;
        }
        for (repeat, cell, node, key) in later {
            self.trains.remove(&(repeat, cell, node));
            self.keys.entry(key).or_default().push(node);
        }
        let (repeat, cell, node, key, exclusive, needed) = found?;
        self.trains.remove(&(repeat, cell, node));
        // Another cell with the same launch may have been measured since: then there is nothing to run.
        match self.engine.evaluate(node, statuses) {
            Ok(status) if status.state != State::Stale => {
                statuses.set(node, status);
                return match self.done(node, statuses) {
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
        self.start(node, exclusive, gpus, preimage, statuses);
        Some((node, Work::Train(Box::new(work))))
    }

    fn give_up<T>(&mut self, error: Error) -> Option<T> {
        self.stopping = true;
        self.error.get_or_insert(error);
        None
    }

    fn start(&mut self, node: NodeIndex, exclusive: bool, gpus: Vec<usize>, preimage: String, statuses: &Statuses) {
        let task = self.engine.dag.task(node);
        let name = label(self.engine.plan, &task);
        let status = statuses.get(node);
        let present = || self.engine.present(node, statuses);
        let reason = status.reason.as_ref().map(|r| r.describe(self.engine.cache, task.kind, &name, present));
        let cell = matches!(task.kind, TaskKind::Render | TaskKind::Train | TaskKind::Parse | TaskKind::Aggregate)
            .then(|| self.engine.plan.cells[task.cell as usize].id.clone());
        self.talk.report(&Event::TaskStarted {
            task: name,
            cell,
            // Only what measures has one: people watch runs, not bookkeeping.
            repeat: (task.kind == TaskKind::Train).then_some(task.repeat),
            reason: reason.unwrap_or_default(),
        });
        let running = Running { since: Instant::now(), kind: task.kind, exclusive, gpus, key: status.key, preimage };
        self.running.insert(node, running);
    }

    fn finished(&mut self, node: NodeIndex, finished: Finished, statuses: &mut Statuses) {
        if let Err(error) = self.take_in(node, finished, statuses) {
            self.stopping = true;
            self.error.get_or_insert(error);
        }
    }

    fn take_in(&mut self, node: NodeIndex, finished: Finished, statuses: &mut Statuses) -> Result<()> {
        let Some(run) = self.running.remove(&node) else { return Ok(()) };
        self.free_gpus.extend(&run.gpus);
        self.free_gpus.sort_unstable();
        self.summary.ran += 1;
        let name = label(self.engine.plan, &self.engine.dag.task(node));
        let seconds = run.since.elapsed().as_secs_f64();
        let key = run.key.ok_or_else(|| Error::Cache(format!("task `{name}` ran without a key")))?;
        match finished {
            Finished::Derived(outputs) => {
                let outputs = outputs?;
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
                self.talk.report(&ended_well(name, seconds));
            }
            Finished::Trained(attempt) => {
                self.record_nested(node)?;
                let cell = self.engine.dag.task(node).cell as usize;
                let idle = self.engine.plan.prepared(cell).map_or(0.0, |p| p.resolved.cooldown_seconds);
                if run.exclusive {
                    self.cool_until = Some(Instant::now() + Duration::try_from_secs_f64(idle).unwrap_or_default());
                }
                let mut waiting = self.keys.remove(&key).unwrap_or_default();
                let attempt = match (*attempt)? {
                    Trained::Attempt(attempt) => *attempt,
                    Trained::Outdated(changed) => {
                        waiting.push(node);
                        return self.not_started(&waiting, &changed, statuses);
                    }
                };
                self.trained.insert(key);
                // Those that did not come so far share it too, also one that does not count: a build measures a key once.
                self.trains.retain(|(.., other)| {
                    let shares = statuses.get(*other).key == Some(key);
                    waiting.extend(shares.then_some(*other));
                    !shares
                });
                if let Some(why) = &attempt.suspect {
                    let what = match &attempt.outcome {
                        AttemptOutcome::Ok => "was disturbed and is not counted",
                        AttemptOutcome::Failed { .. } => "may not fail again, so the next build tries it once more",
                    };
                    self.talk.report(&Event::Note { message: format!("{name} {what}: {why}") });
                }
                // How long it ran: it may have waited for a device, or for another tprimat that ran the same.
                let seconds = (attempt.ended_at - attempt.started_at).clamp(0.0, f64::MAX);
                let state = match &attempt.outcome {
                    AttemptOutcome::Ok => {
                        self.talk.report(&ended_well(name, seconds));
                        State::Fresh
                    }
                    AttemptOutcome::Failed { class, evidence, status } => {
                        self.summary.failed += 1;
                        self.stopping |= self.options.fail_fast;
                        let mut evidence = evidence.clone();
                        evidence.push(status.clone());
                        self.talk.report(&Event::TaskFinished {
                            task: name,
                            outcome: Outcome::Failed,
                            seconds,
                            class: Some(*class),
                            evidence,
                        });
                        State::Failed
                    }
                };
                // What was dropped before is so still; this attempt is the one that stands.
                let dropped = statuses.get(node).dropped.clone();
                let made = Made::Attempt(std::sync::Arc::new(attempt));
                let status = Status { state, reason: None, key: Some(key), made, dropped };
                for other in waiting {
                    statuses.set(other, status.clone());
                    self.done(other, statuses)?;
                }
                statuses.set(node, status);
            }
        }
        self.done(node, statuses)
    }

    /// What these trainings would read is not what the plan knows: a run of it would be filed under a wrong key.
    fn not_started(&mut self, nodes: &[NodeIndex], changed: &[String], statuses: &mut Statuses) -> Result<()> {
        let why = format!("not started: {} changed after this build was planned; build again", changed.join(", "));
        self.stopping |= self.options.fail_fast;
        for &node in nodes {
            self.summary.failed += 1;
            self.talk.report(&Event::TaskFinished {
                task: label(self.engine.plan, &self.engine.dag.task(node)),
                outcome: Outcome::Failed,
                seconds: 0.0,
                class: None,
                evidence: vec![why.clone()],
            });
            statuses.set(node, Status { key: statuses.get(node).key, ..Status::failed(why.clone()) });
            self.done(node, statuses)?;
        }
        Ok(())
    }

    /// Stores the job's text, so that `explain` can look inside later.
    fn record_nested(&self, node: NodeIndex) -> Result<()> {
        let task = self.engine.dag.task(node);
        if matches!(task.kind, TaskKind::Render | TaskKind::Train | TaskKind::Parse)
            && let Some(prepared) = self.engine.plan.prepared(task.cell as usize)
        {
            self.engine.cache.record_preimage(&prepared.job_text())?;
        }
        Ok(())
    }
}

fn ended_well(task: String, seconds: f64) -> Event {
    Event::TaskFinished { task, outcome: Outcome::Ok, seconds, class: None, evidence: Vec::new() }
}

/// Takes in what earlier builds left behind when they were killed.
pub fn sweep_up(cache: &Cache, host: &TrainHost, talk: &Talk) -> Result<()> {
    for leftover in super::sweep::sweep(&host.runs)? {
        match ingest(cache, &leftover.spec, leftover.exit.as_ref(), &leftover.log, &host.hostname) {
            Ok(attempt) => {
                let outcome = crate::graph::outcome_text(&attempt);
                talk.report(&Event::Note {
                    message: format!("took in a run that an earlier build left: {} ({outcome})", attempt.task),
                });
                remove(&leftover.dir);
            }
            // A folder that says nothing is not a measurement; everything else is worth an error.
            Err(Error::Cache(why)) => talk.report(&Event::Note { message: format!("left alone: {why}") }),
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
