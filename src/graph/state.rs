//! Which tasks are stale: one function a task kind, each from its inputs' states to its own.
//!
//! A dry run calls them in topological order; a build calls them again as tasks finish, so that a
//! producer that re-ran with the same output leaves its consumers fresh (early cutoff).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, OnceLock, PoisonError},
};

use rayon::prelude::*;
use serde_json::Value;

use super::{
    Artifacts, CodeDigests, Dag, Earlier, Present, Reason, State, Status, Statuses, Task, TaskId,
    Trainings, Written, attempt_logs::lost_log, earlier::is_readable, fault::Faults, label,
};
use crate::{
    cache::{Attempt, Cache, Entry, Output, TaskKind},
    digest::Digest,
    error::Result,
    figures::Dropped,
    job::Job,
    matrix::CellId,
    plan::{Plan, Prepared, Support},
    publish,
    recipe::{Rendered, context},
    results,
};

/// What the caller asked for that changes states.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub retry_failed: bool,
    /// Cells that are predicted not to fit in memory are stale nonetheless.
    pub force: bool,
    /// `--keep-going`: a fault of two cells holds no other cell of their recipe and command back.
    pub keep_going: bool,
    /// Disturbed measurements that a build would replace are stale. Commands that only read
    /// existing results leave this unset and see those measurements as they are.
    pub replace: bool,
    /// `--decide`: the runs that this build makes are one round of pairs, under this name.
    pub round: Option<u64>,
}

/// How often a disturbed attempt is replaced within one generation. After that the last one is shown,
/// but not counted.
pub const REPLACEMENTS: usize = 2;

/// Why a task is fresh that this tprimat would do again.
const STANDS: &str = "as another version of tprimat made it, because a log or a result is gone";

/// What must be there for a repeat to count as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The result itself, or the log to make it from.
    Outputs,
    /// The record that there was one.
    Records,
}

/// Everything that states depend on. Reads only.
pub struct Engine<'a> {
    pub plan: &'a Plan,
    pub dag: &'a Dag,
    pub cache: &'a Cache,
    pub code: CodeDigests,
    pub options: Options,
    pub compare_settings: Value,
    /// What was trained before, looked up where a reason is asked for.
    pub trainings: OnceLock<Trainings>,
    /// Attempts that wrote files of their commands, looked up where no other one serves.
    pub written: OnceLock<Written>,
    /// What another tprimat made, looked up where a log or a result is lost.
    pub earlier: OnceLock<Earlier>,
    /// Cells that a build sums up although they are not selected, with their measured repeats.
    pub measured: BTreeMap<CellId, Vec<u32>>,
    pub verdicts: Verdicts,
}

/// Why the runs of a cell do not count, by the cell and the digest of a run's result: each result is
/// asked for once by whoever says what became of its run, and again before each later repeat.
#[derive(Default)]
pub struct Verdicts(Mutex<HashMap<(CellId, Digest), Option<results::Reason>>>);

impl Verdicts {
    /// What is known, or else what `judge` says. What nobody can say now is asked again.
    pub(super) fn of(
        &self,
        cell: CellId,
        result: Digest,
        judge: impl FnOnce() -> Option<Option<results::Reason>>,
    ) -> Option<Option<results::Reason>> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verdict) = known().get(&(cell, result)) {
            return Some(verdict.clone());
        }
        let verdict = judge()?;
        self.note(cell, result, verdict.clone());
        Some(verdict)
    }

    /// Keeps what was said of a result by whoever made it, so that it need not be read again.
    pub(crate) fn note(&self, cell: CellId, result: Digest, verdict: Option<results::Reason>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert((cell, result), verdict);
    }
}

impl Engine<'_> {
    /// States of all tasks as things stand; runs and writes nothing.
    pub fn evaluate_all(&self) -> Result<Statuses> {
        let cells: Vec<Result<Vec<(TaskId, Status)>>> = self
            .plan
            .cells
            .par_ids()
            .map(|cell| self.evaluate_cell(cell))
            .collect();
        let mut statuses = Statuses::unknown(self.dag.graph.node_count());
        for cell in cells {
            for (node, status) in cell? {
                statuses.set(node, status);
            }
        }
        self.hold_back(&mut statuses)?;
        for kind in [TaskKind::Compare, TaskKind::Plot, TaskKind::Report] {
            let node = self.dag.over_all(kind);
            let status = self.evaluate(node, &statuses)?;
            statuses.set(node, status);
        }
        Ok(statuses)
    }

    /// Trainings that would end as those of two other cells did are not started.
    fn hold_back(&self, statuses: &mut Statuses) -> Result<()> {
        let mut faults = Faults::default();
        for cell in self
            .plan
            .cells
            .ids()
            .filter(|cell| self.plan.prepared(*cell).is_some())
        {
            let node = |kind, repeat| self.dag.node(kind, cell, repeat);
            let mut after = Vec::new();
            for repeat in 1..=self.plan.cells[cell].repeats {
                let train = statuses.get(node(TaskKind::Train, repeat));
                if train.state != State::Stale {
                    continue;
                }
                let held =
                    self.unless_all_would_end_alike(cell, train.clone(), statuses, &mut faults);
                if held.state != train.state {
                    statuses.set(node(TaskKind::Train, repeat), held);
                    after.push(node(TaskKind::Parse, repeat));
                }
            }
            after.extend((!after.is_empty()).then(|| node(TaskKind::Aggregate, 0)));
            for node in after {
                let status = self.evaluate(node, statuses)?;
                statuses.set(node, status);
            }
        }
        Ok(())
    }

    /// All tasks of one cell; what one cell's fault means to others is decided for all together.
    pub(crate) fn evaluate_cell(&self, cell: CellId) -> Result<Vec<(TaskId, Status)>> {
        let render = self.render(cell)?;
        let mut all = Vec::with_capacity(2 + 2 * self.plan.cells[cell].repeats as usize);
        if render.state != State::Unsupported {
            let (mut repeats, mut aggregate) = self.repeats(cell, &render, Need::Outputs);
            let is_lost = |reason: &Reason| {
                matches!(
                    reason,
                    Reason::OutputLost(_) | Reason::FailureLost(_) | Reason::Disturbed(_)
                )
            };
            if repeats
                .iter()
                .any(|(train, _)| train.reason.as_ref().is_some_and(is_lost))
            {
                // A log and its result are lost, perhaps one whose repetition was disturbed. While
                // the summary made of them is there, nothing stale needs them, and no GPU-hour is
                // spent to have them again.
                let (lenient, summary) = self.repeats(cell, &render, Need::Records);
                if summary.state == State::Fresh {
                    (repeats, aggregate) = (lenient, summary);
                }
            }
            for (repeat, (train, parse)) in (1..).zip(repeats) {
                all.push((self.dag.node(TaskKind::Train, cell, repeat), train));
                all.push((self.dag.node(TaskKind::Parse, cell, repeat), parse));
            }
            all.push((self.dag.node(TaskKind::Aggregate, cell, 0), aggregate));
        }
        all.push((self.dag.node(TaskKind::Render, cell, 0), render));
        Ok(all)
    }

    fn repeats(
        &self,
        cell: CellId,
        render: &Status,
        need: Need,
    ) -> (Vec<(Status, Status)>, Status) {
        let mut repeats: Vec<(Status, Status)> = Vec::new();
        for repeat in 1..=self.plan.cells[cell].repeats {
            let (train, parse) = self.train(cell, repeat, render, need);
            let first = repeats.first().map(|(first, _)| first);
            let train = self.unless_it_would_fail_too(cell, render, train, first);
            let earlier = (1..)
                .zip(&repeats)
                .map(|(n, (train, parse))| (n, train, parse));
            let train = self.unless_it_would_not_count(cell, train, earlier);
            let parse = parse.unwrap_or_else(|| self.parse(cell, repeat, &train, need));
            repeats.push((train, parse));
        }
        let trains = repeats.iter().map(|(train, _)| train);
        let dropped = trains
            .filter_map(|train| train.dropped.as_deref())
            .collect::<Vec<_>>();
        let parses = (1..)
            .zip(repeats.iter().map(|(_, parse)| parse))
            .collect::<Vec<_>>();
        let aggregate = self.aggregate(cell, &parses, &dropped);
        (repeats, aggregate)
    }

    /// Does a build run this task if it is stale? Selected cells' tasks, and those over all cells;
    /// of other cells only what costs nothing.
    #[must_use]
    pub fn is_wanted(&self, node: TaskId) -> bool {
        let Task { kind, cell, repeat } = self.dag.task(node);
        let is_measured = || match (kind, self.measured.get(&cell)) {
            (TaskKind::Parse, Some(repeats)) => repeats.contains(&repeat),
            (TaskKind::Aggregate, Some(_)) => true,
            _ => false,
        };
        kind.is_over_all() || self.plan.cells[cell].selected || is_measured()
    }

    /// The cells that are not selected although runs of them are in the cache, where nobody has
    /// summed these up (another host or an earlier build made them, say); and which runs.
    #[must_use]
    pub fn measured_elsewhere(&self, statuses: &Statuses) -> BTreeMap<CellId, Vec<u32>> {
        let state = |kind, cell, repeat| statuses.get(self.dag.node(kind, cell, repeat)).state;
        let mut measured = BTreeMap::new();
        for (id, cell) in self.plan.cells.with_ids() {
            // A cell that nothing supports has no such tasks.
            if cell.selected
                || !matches!(cell.support, Support::Ready(_))
                || state(TaskKind::Aggregate, id, 0) != State::Stale
            {
                continue;
            }
            let repeats: Vec<u32> = (1..=cell.repeats)
                .filter(|repeat| state(TaskKind::Train, id, *repeat) == State::Fresh)
                .collect();
            if !repeats.is_empty() {
                measured.insert(id, repeats);
            }
        }
        measured
    }

    /// State of one task, from the states of those it waits for.
    pub fn evaluate(&self, node: TaskId, statuses: &Statuses) -> Result<Status> {
        let Task { kind, cell, repeat } = self.dag.task(node);
        let of = |kind, repeat| statuses.get(self.dag.node(kind, cell, repeat));
        Ok(match kind {
            TaskKind::Render => self.render(cell)?,
            TaskKind::Train => {
                let render = of(TaskKind::Render, 0);
                let (train, _) = self.train(cell, repeat, render, Need::Outputs);
                let first = (repeat > 1).then(|| of(TaskKind::Train, 1));
                let train = self.unless_it_would_fail_too(cell, render, train, first);
                let earlier =
                    (1..repeat).map(|n| (n, of(TaskKind::Train, n), of(TaskKind::Parse, n)));
                let train = self.unless_it_would_not_count(cell, train, earlier);
                self.unless_all_would_end_alike(cell, train, statuses, &mut Faults::default())
            }
            TaskKind::Parse => self.parse(cell, repeat, of(TaskKind::Train, repeat), Need::Outputs),
            TaskKind::Aggregate => {
                let parses: Vec<_> = (1..=self.plan.cells[cell].repeats)
                    .map(|r| (r, of(TaskKind::Parse, r)))
                    .collect();
                self.aggregate(cell, &parses, &self.dropped(cell, statuses))
            }
            TaskKind::Compare => self.compare(statuses),
            TaskKind::Plot => self.plot(statuses.get(self.dag.over_all(TaskKind::Compare))),
            TaskKind::Report => self.report(statuses),
        })
    }

    pub(super) fn render(&self, cell: CellId) -> Result<Status> {
        let prepared = match &self.plan.cells[cell].support {
            Support::Unsupported(reason) => {
                return Ok(Status::because(
                    State::Unsupported,
                    Reason::Because(reason.clone()),
                ));
            }
            Support::Ready(prepared) => prepared,
        };
        let (key, _) = self.render_key(cell).expect("the cell is supported");
        let recorded = self.recorded(key);
        if recorded.state == State::Fresh {
            return Ok(recorded);
        }
        // Rendering is cheap and pure, so even a dry run does it: a template edit that renders the
        // same bytes stops here.
        let files = self.rendered(cell, prepared.job())?;
        let outputs = files
            .iter()
            .map(|f| Output {
                name: f.name.clone(),
                digest: f.digest,
                size: f.bytes.len() as u64,
            })
            .collect();
        Ok(Status {
            artifacts: Artifacts::Rendered(outputs, files),
            ..recorded
        })
    }

    /// The launch files of a cell, made now.
    pub(crate) fn rendered(&self, cell: CellId, job: &Job) -> Result<Vec<Rendered>> {
        let context = context(job);
        let templates = &self.plan.recipe(cell).templates;
        templates
            .iter()
            .map(|(name, _)| self.plan.recipes.templates.render(name, &context))
            .collect()
    }

    /// The state of parsing what an attempt left.
    pub(super) fn parse_of(&self, cell: CellId, attempt: &Attempt, need: Need) -> Status {
        let (key, preimage) = self
            .parse_key(cell, attempt)
            .expect("the cell is supported");
        let status = match (need, self.cache.outputs(&key)) {
            (Need::Records, Some(outputs)) => Status::fresh(key, outputs),
            (_, outputs) => self.found(key, outputs),
        };
        let is_lost = || need == Need::Records || lost_log(self.cache, attempt).is_some();
        self.or_earlier(status, &preimage, need, is_lost)
    }

    /// What another tprimat made, if this one cannot: what it was made from is lost.
    fn or_earlier(
        &self,
        status: Status,
        preimage: &str,
        need: Need,
        is_lost: impl FnOnce() -> bool,
    ) -> Status {
        if status.state == State::Fresh || !is_lost() {
            return status;
        }
        let earlier = self.earlier.get_or_init(|| Earlier::of(self.cache));
        let entry = earlier.entry(preimage);
        let serves = |entry: &&Entry| need == Need::Records || is_readable(self.cache, entry);
        match entry.filter(serves) {
            Some(entry) => Status {
                reason: Some(Reason::Because(STANDS.to_owned())),
                ..Status::fresh(entry.key, entry.outputs.clone())
            },
            None => status,
        }
    }

    fn parse(&self, cell: CellId, repeat: u32, train: &Status, need: Need) -> Status {
        match (train.state, train.attempt()) {
            (State::Fresh | State::Failed, Some(attempt)) => self.parse_of(cell, attempt, need),
            (State::Stale, _) => self.upstream(TaskKind::Train, cell, repeat),
            (_, _) => train.of_next(),
        }
    }

    /// What was measured of a cell's repeats and does not count.
    #[must_use]
    pub fn dropped<'s>(&self, cell: CellId, statuses: &'s Statuses) -> Vec<&'s Dropped> {
        let train = |repeat| statuses.get(self.dag.node(TaskKind::Train, cell, repeat));
        (1..=self.plan.cells[cell].repeats)
            .filter_map(|repeat| train(repeat).dropped.as_deref())
            .collect()
    }

    fn aggregate(&self, cell: CellId, parses: &[(u32, &Status)], dropped: &[&Dropped]) -> Status {
        // Runs of a cell that is not selected are summed up as far as they are there: this build
        // makes no others.
        let is_selected = self.plan.cells[cell].selected;
        let is_to_come = |s: &Status| {
            s.state == State::Stale
                && (is_selected || !matches!(&s.reason, Some(Reason::Upstream(_))))
        };
        if let Some((repeat, _)) = parses.iter().find(|(_, s)| is_to_come(s)) {
            return self.upstream(TaskKind::Parse, cell, *repeat);
        }
        let results: Vec<_> = parses
            .iter()
            .filter_map(|(repeat, s)| Some((*repeat, s.outputs().first()?.digest)))
            .collect();
        if results.is_empty() {
            return match parses.first() {
                Some((_, first)) => first.of_next(),
                None => Status::because(
                    State::Waiting,
                    Reason::Because("no repeats are asked for".into()),
                ),
            };
        }
        let (key, preimage) = self.aggregate_key(cell, &results, dropped);
        let is_lost = || results.iter().any(|(_, result)| !self.cache.has(result));
        self.or_earlier(self.recorded(key), &preimage, Need::Outputs, is_lost)
    }

    fn compare(&self, statuses: &Statuses) -> Status {
        let pending = self.plan.cells.with_ids().find(|(id, cell)| {
            (cell.selected || self.measured.contains_key(id))
                && matches!(cell.support, Support::Ready(_))
                && statuses
                    .get(self.dag.node(TaskKind::Aggregate, *id, 0))
                    .state
                    == State::Stale
        });
        if let Some((id, _)) = pending {
            return self.upstream(TaskKind::Aggregate, id, 0);
        }
        self.recorded(self.compare_key(statuses).0)
    }

    /// The digests of a cell's results, by repeat, as far as they exist.
    pub(crate) fn results(&self, cell: CellId, statuses: &Statuses) -> Vec<(u32, Digest)> {
        let result = |r| statuses.first_output(self.dag.node(TaskKind::Parse, cell, r));
        (1..=self.plan.cells[cell].repeats)
            .filter_map(|r| Some((r, result(r)?)))
            .collect()
    }

    /// The cells of which a report publishes a file of their own: those with a summary.
    pub(crate) fn published(&self, statuses: &Statuses) -> Vec<(CellId, &Prepared)> {
        let mut all = Vec::new();
        for (id, cell) in self.plan.cells.with_ids() {
            // A cell that nothing supports has no such task.
            let Support::Ready(prepared) = &cell.support else {
                continue;
            };
            let aggregate = statuses.get(self.dag.node(TaskKind::Aggregate, id, 0));
            if aggregate.state == State::Fresh {
                all.push((id, &**prepared));
            }
        }
        all
    }

    fn plot(&self, compare: &Status) -> Status {
        if let Some(status) = self.without(TaskKind::Compare, compare) {
            return status;
        }
        self.recorded(self.plot_key(compare.outputs()).0)
    }

    fn report(&self, statuses: &Statuses) -> Status {
        for kind in [TaskKind::Compare, TaskKind::Plot] {
            if let Some(status) = self.without(kind, statuses.get(self.dag.over_all(kind))) {
                return status;
            }
        }
        let of = |kind| statuses.get(self.dag.over_all(kind));
        let (key, _) = self.report_key(of(TaskKind::Compare), of(TaskKind::Plot), statuses);
        let status = self.recorded(key);
        if status.state != State::Fresh {
            return status;
        }
        let folder = publish::output_dir(self.plan);
        let unpublished = match status.outputs() {
            // A report without figures was not published over one that has some.
            [] => (!publish::has_figures(&folder, &self.plan.matrix.name))
                .then(|| publish::Unpublished::missing(crate::report::PAGE)),
            outputs => publish::first_unpublished(self.cache, &folder, outputs),
        };
        match unpublished {
            Some(name) => Status::because(State::Stale, Reason::Unpublished(name)).key(key),
            None => status,
        }
    }

    /// Fresh if a record is under this key and all that it left is still there.
    fn recorded(&self, key: Digest) -> Status {
        self.found(key, self.cache.outputs(&key))
    }

    fn found(&self, key: Digest, outputs: Option<Vec<Output>>) -> Status {
        let Some(outputs) = outputs else {
            return Status::because(State::Stale, Reason::NoRecord).key(key);
        };
        match outputs.iter().find(|o| !self.cache.has(&o.digest)) {
            Some(lost) => {
                Status::because(State::Stale, Reason::OutputLost(lost.name.clone())).key(key)
            }
            None => Status::fresh(key, outputs),
        }
    }

    /// What becomes of a task that needs what another one of the whole matrix did not make; `None`:
    /// that one is made.
    fn without(&self, kind: TaskKind, needed: &Status) -> Option<Status> {
        match needed.state {
            State::Stale => Some(self.upstream(kind, CellId::default(), 0)),
            State::Failed => Some(needed.of_next()),
            _ => None,
        }
    }

    fn upstream(&self, kind: TaskKind, cell: CellId, repeat: u32) -> Status {
        let task = Task { kind, cell, repeat };
        Status::because(State::Stale, Reason::Upstream(label(self.plan, &task)))
    }

    /// The task's present pre-image with what it names, where it can be known.
    #[must_use]
    pub fn present(&self, node: TaskId, statuses: &Statuses) -> Option<Present> {
        let task = self.dag.task(node);
        let prepared = self
            .plan
            .prepared(task.cell)
            .filter(|_| !task.kind.is_over_all());
        let job = prepared.map(|p| (p.job_digest, p.job_text()));
        Some(Present {
            preimage: self.preimage(node, statuses)?,
            job,
        })
    }

    /// The task's present pre-image, where it can be known.
    #[must_use]
    pub fn preimage(&self, node: TaskId, statuses: &Statuses) -> Option<String> {
        let Task { kind, cell, repeat } = self.dag.task(node);
        let of = |kind, repeat| statuses.get(self.dag.node(kind, cell, repeat));
        let keyed = match kind {
            TaskKind::Render => self.render_key(cell)?,
            TaskKind::Train => self.train_key(cell, repeat, of(TaskKind::Render, 0).outputs())?,
            TaskKind::Parse => self.parse_key(cell, of(TaskKind::Train, repeat).attempt()?)?,
            TaskKind::Aggregate => self.aggregate_key(
                cell,
                &self.results(cell, statuses),
                &self.dropped(cell, statuses),
            ),
            TaskKind::Compare => self.compare_key(statuses),
            TaskKind::Plot => {
                self.plot_key(statuses.get(self.dag.over_all(TaskKind::Compare)).outputs())
            }
            TaskKind::Report => self.report_key(
                statuses.get(self.dag.over_all(TaskKind::Compare)),
                statuses.get(self.dag.over_all(TaskKind::Plot)),
                statuses,
            ),
        };
        Some(keyed.1)
    }
}
