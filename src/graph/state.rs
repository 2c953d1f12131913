//! Which tasks are stale: one function a task kind, each from its inputs' states to its own.
//!
//! A dry run calls them in topological order; a build calls them again as tasks finish, so that a
//! producer that re-ran with the same output leaves its consumers fresh (early cutoff).

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;

use super::{CodeDigests, Dag, Present, Reason, Task, TaskId, Trainings, label};
use crate::{
    cache::{Attempt, Cache, Output, TaskKind},
    digest::Digest,
    error::Result,
    figures::{Dropped, Statistics},
    import::{self, Imports},
    job::Job,
    logs::Failure,
    matrix::{CellId, PerCell},
    plan::{CellPlan, Plan, Prepared, Support},
    publish,
    recipe::{Rendered, context},
    words::plain::counted,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Fresh,
    Stale,
    Failed,
    /// For another host.
    Waiting,
    /// For something that is missing on this host.
    Blocked,
    Unsupported,
}

impl State {
    pub const ALL: [Self; 6] = [
        Self::Fresh,
        Self::Stale,
        Self::Failed,
        Self::Waiting,
        Self::Blocked,
        Self::Unsupported,
    ];

    /// As JSON has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::Failed => "failed",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Unsupported => "unsupported",
        }
    }
}

/// What a task left, or would leave.
#[derive(Clone, Debug, Default)]
pub enum Artifacts {
    #[default]
    Nothing,
    Outputs(Vec<Output>),
    /// Launch files rendered in memory, not in the cache yet.
    Rendered(Vec<Output>, Vec<Rendered>),
    /// The attempt that counts, good or failed.
    Attempt(Arc<Attempt>),
}

#[derive(Clone, Debug)]
pub struct Status {
    pub state: State,
    pub reason: Option<Reason>,
    pub key: Option<Digest>,
    pub artifacts: Artifacts,
    /// Measurements of a training that do not count but are to be disclosed.
    pub dropped: Option<Arc<Dropped>>,
}

impl Status {
    pub(super) fn new(state: State) -> Self {
        Self {
            state,
            reason: None,
            key: None,
            artifacts: Artifacts::Nothing,
            dropped: None,
        }
    }
    pub(super) fn because(state: State, reason: Reason) -> Self {
        Self {
            reason: Some(reason),
            ..Self::new(state)
        }
    }
    #[must_use]
    pub fn fresh(key: Digest, outputs: Vec<Output>) -> Self {
        Self {
            key: Some(key),
            artifacts: Artifacts::Outputs(outputs),
            ..Self::new(State::Fresh)
        }
    }
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self::because(State::Failed, Reason::Because(text.into()))
    }
    /// For a training whose state was decided without looking at its parse.
    pub(super) fn without_parse(self) -> (Self, Option<Self>) {
        (self, None)
    }
    pub(super) fn key(mut self, key: Digest) -> Self {
        self.key = Some(key);
        self
    }
    #[must_use]
    pub fn outputs(&self) -> &[Output] {
        match &self.artifacts {
            Artifacts::Nothing => &[],
            Artifacts::Outputs(outputs) | Artifacts::Rendered(outputs, _) => outputs,
            Artifacts::Attempt(attempt) => &attempt.outputs,
        }
    }
    #[must_use]
    pub fn attempt(&self) -> Option<&Arc<Attempt>> {
        match &self.artifacts {
            Artifacts::Attempt(attempt) => Some(attempt),
            _ => None,
        }
    }
}

/// States of all tasks, by node.
pub struct Statuses(Vec<Option<Status>>);

impl Statuses {
    #[must_use]
    pub fn get(&self, node: TaskId) -> &Status {
        static UNKNOWN: Status = Status {
            state: State::Stale,
            reason: None,
            key: None,
            artifacts: Artifacts::Nothing,
            dropped: None,
        };
        self.0[node.index()].as_ref().unwrap_or(&UNKNOWN)
    }
    /// Of a task that makes one file: its digest.
    #[must_use]
    pub fn first_output(&self, node: TaskId) -> Option<Digest> {
        Some(self.get(node).outputs().first()?.digest)
    }
    pub fn set(&mut self, node: TaskId, status: Status) {
        self.0[node.index()] = Some(status);
    }
}

/// What the comparison shows of a cell; its JSON is in the keys of compare and report.
#[derive(Serialize)]
pub struct ComparedCell {
    #[serde(flatten)]
    pub from: FiguresFrom,
    /// An earlier cell that launches the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_launch_as: Option<String>,
}

/// Where a cell's figures are from, or why it has none.
#[derive(Serialize)]
#[serde(untagged)]
pub enum FiguresFrom {
    Summary {
        summary: Digest,
        repeats: u32,
        /// Repeats that are not in the summary because no build has made them yet.
        #[serde(skip_serializing_if = "is_zero")]
        to_come: u32,
        environment: Digest,
    },
    Imports {
        imported: Vec<Digest>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        set_aside: Vec<Digest>,
        claims: Digest,
        statistics: Statistics,
        code: String,
    },
    /// It ran, and how it failed is known.
    Failure {
        failure: Failure,
    },
    /// It failed, in words.
    Failed {
        failed: String,
    },
    Missing {
        missing: String,
    },
    Unsupported {
        unsupported: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// What the caller asked for that changes states.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub retry_failed: bool,
    /// Cells that are predicted not to fit in memory are stale nonetheless.
    pub force: bool,
    /// Disturbed measurements that a build would replace are stale. Commands that only read
    /// existing results leave this unset and see those measurements as they are.
    pub replace: bool,
}

/// How often a disturbed attempt is replaced within one generation. After that the last one is shown,
/// but not counted.
pub const REPLACEMENTS: usize = 2;

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
    /// Cells that a build sums up although they are not selected, with their measured repeats.
    pub measured: BTreeMap<CellId, Vec<u32>>,
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
        let mut statuses = Statuses(vec![None; self.dag.graph.node_count()]);
        for cell in cells {
            for (node, status) in cell? {
                statuses.set(node, status);
            }
        }
        for kind in [TaskKind::Compare, TaskKind::Plot, TaskKind::Report] {
            let node = self.dag.over_all(kind);
            let status = self.evaluate(node, &statuses)?;
            statuses.set(node, status);
        }
        Ok(statuses)
    }

    /// All tasks of one cell; cells do not depend on each other.
    pub(crate) fn evaluate_cell(&self, cell: CellId) -> Result<Vec<(TaskId, Status)>> {
        let render = self.render(cell)?;
        let mut all = Vec::with_capacity(2 + 2 * self.plan.cells[cell].repeats as usize);
        if render.state != State::Unsupported {
            let (mut repeats, mut aggregate) = self.repeats(cell, &render, Need::Outputs);
            let is_lost = |reason: &Reason| {
                matches!(reason, Reason::OutputLost(_) | Reason::Disturbed { .. })
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
                self.unless_it_would_not_count(cell, train, earlier)
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

    fn render(&self, cell: CellId) -> Result<Status> {
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
        let (key, _) = self
            .parse_key(cell, attempt)
            .expect("the cell is supported");
        match (need, self.cache.outputs(&key)) {
            (Need::Records, Some(outputs)) => Status::fresh(key, outputs),
            (_, outputs) => self.found(key, outputs),
        }
    }

    fn parse(&self, cell: CellId, repeat: u32, train: &Status, need: Need) -> Status {
        match (train.state, train.attempt()) {
            (State::Fresh | State::Failed, Some(attempt)) => self.parse_of(cell, attempt, need),
            (State::Stale, _) => self.upstream(TaskKind::Train, cell, repeat),
            (State::Failed, None) => train.clone(),
            (_, _) => Status {
                key: None,
                ..train.clone()
            },
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
                Some((_, first)) => Status {
                    key: None,
                    artifacts: Artifacts::Nothing,
                    ..(*first).clone()
                },
                None => Status::because(
                    State::Waiting,
                    Reason::Because("no repeats are asked for".into()),
                ),
            };
        }
        self.recorded(self.aggregate_key(cell, &results, dropped).0)
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

    /// What compare and report see of each cell: its summary, or why there is none.
    pub(crate) fn compared_cells(&self, statuses: &Statuses) -> PerCell<ComparedCell> {
        let imports = Imports::of(self.cache);
        let twins = self.same_launch(statuses);
        let cells = self.plan.cells.with_ids();
        let compared = cells.map(|(id, cell)| {
            let from = self.figures_of(id, cell, statuses);
            // What others measured stands in for what was not measured here, but never for a
            // failure.
            let imported = match &from {
                FiguresFrom::Unsupported { .. } | FiguresFrom::Missing { .. } => {
                    self.imported(&imports, &cell.id)
                }
                _ => None,
            };
            let from = match from {
                FiguresFrom::Missing { missing } => FiguresFrom::Missing {
                    missing: match imports.count_set_aside(&cell.id) {
                        0 => missing,
                        n => format!("{missing}; {} set aside", counted(n, "import")),
                    },
                },
                from => from,
            };
            let same_launch_as = twins[id].map(|first| self.plan.cells[first].id.clone());
            ComparedCell {
                same_launch_as: same_launch_as.filter(|_| imported.is_none()),
                from: imported.unwrap_or(from),
            }
        });
        compared.collect()
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
            // Of a cell that nothing supports there is no such task.
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

    /// For each cell, an earlier cell that launches the same bytes in the same way, if there is
    /// one: they share one measurement, so what differs between them never reached the trainer.
    #[must_use]
    pub fn same_launch(&self, statuses: &Statuses) -> PerCell<Option<CellId>> {
        let mut seen: BTreeMap<Digest, CellId> = BTreeMap::new();
        let mut twins = self.plan.cells.map(|_| None);
        for (cell, planned) in self.plan.cells.with_ids() {
            if matches!(planned.support, Support::Unsupported(_)) || planned.repeats == 0 {
                continue;
            }
            // Cells of one platform and framework have the same facts, even where those are not
            // known.
            let rendered = statuses.get(self.dag.node(TaskKind::Render, cell, 0));
            let key = statuses.get(self.dag.node(TaskKind::Train, cell, 1)).key;
            let Some(launch) = key.or_else(|| self.launch_digest(cell, rendered.outputs())) else {
                continue;
            };
            match seen.get(&launch) {
                Some(first) => twins[cell] = Some(*first),
                None => drop(seen.insert(launch, cell)),
            }
        }
        twins
    }

    /// What the imports of a cell depend on, if it has any.
    fn imported(&self, imports: &Imports, cell: &str) -> Option<FiguresFrom> {
        let runs = Some(imports.digests(cell)).filter(|runs| !runs.is_empty())?;
        let claims = serde_json::to_vec(&import::claim_for(self.plan, cell)).unwrap_or_default();
        Some(FiguresFrom::Imports {
            imported: runs.to_vec(),
            set_aside: imports.set_aside_digests(cell),
            claims: Digest::of(claims),
            statistics: import::statistics(self.plan),
            code: self.code.import.clone(),
        })
    }

    fn figures_of(&self, id: CellId, cell: &CellPlan, statuses: &Statuses) -> FiguresFrom {
        if let Support::Unsupported(reason) = &cell.support {
            let unsupported = reason.clone();
            return FiguresFrom::Unsupported { unsupported };
        }
        let status = statuses.get(self.dag.node(TaskKind::Aggregate, id, 0));
        if matches!(status.state, State::Stale | State::Waiting | State::Blocked)
            && let Some(failure) = self.only_failure(id, cell, statuses)
        {
            return FiguresFrom::Failure { failure };
        }
        match (status.state, status.outputs().first()) {
            (State::Fresh, Some(summary)) => {
                let environment = self
                    .plan
                    .prepared(id)
                    .map(Prepared::environment)
                    .unwrap_or_default();
                let environment = Digest::of(serde_json::to_vec(&environment).unwrap_or_default());
                FiguresFrom::Summary {
                    summary: summary.digest,
                    repeats: cell.repeats,
                    to_come: self.to_come(id, cell, statuses),
                    environment,
                }
            }
            (State::Waiting | State::Blocked | State::Failed, _) => {
                let why = match &status.reason {
                    Some(Reason::Because(text)) => text.clone(),
                    _ => String::new(),
                };
                if status.state == State::Failed {
                    FiguresFrom::Failed { failed: why }
                } else {
                    FiguresFrom::Missing { missing: why }
                }
            }
            _ => {
                let trained = (1..=cell.repeats).filter(|repeat| {
                    let train = self.dag.node(TaskKind::Train, id, *repeat);
                    statuses.get(train).state == State::Fresh
                });
                let why = match (trained.count(), cell.selected) {
                    (0, _) if cell.left_out => {
                        "not measured yet, and --cached-only trains nothing".to_owned()
                    }
                    (some, _) if cell.left_out => format!(
                        "{some} of {} repeats are measured, and --cached-only trains nothing",
                        cell.repeats
                    ),
                    (0, true) => "not measured yet".to_owned(),
                    (0, false) => "not measured: this build selected other cells".to_owned(),
                    (some, true) => format!("{some} of {} repeats are measured", cell.repeats),
                    (some, false) => format!(
                        "{some} of {} repeats are measured, and this build selected other cells; `tprimat compare` shows what there is",
                        cell.repeats
                    ),
                };
                let failed = (1..=cell.repeats).find_map(|repeat| {
                    match &statuses
                        .get(self.dag.node(TaskKind::Train, id, repeat))
                        .reason
                    {
                        Some(Reason::RetryTransient(how) | Reason::RetryFailed(how)) => {
                            Some(format!("{why}; repeat {repeat} failed ({how})"))
                        }
                        _ => None,
                    }
                });
                FiguresFrom::Missing {
                    missing: failed.unwrap_or_else(|| why.to_owned()),
                }
            }
        }
    }

    /// Repeats that a later build makes of a cell that is summed up without them, since this one
    /// selected other cells.
    pub(crate) fn to_come(&self, id: CellId, cell: &CellPlan, statuses: &Statuses) -> u32 {
        let state = |repeat| {
            statuses
                .get(self.dag.node(TaskKind::Train, id, repeat))
                .state
        };
        let is_missing = |state| matches!(state, State::Stale | State::Waiting | State::Blocked);
        if !(1..=cell.repeats).any(|repeat| state(repeat) == State::Stale) {
            return 0;
        }
        let missing = (1..=cell.repeats).filter(|repeat| is_missing(state(*repeat)));
        u32::try_from(missing.count()).unwrap_or(u32::MAX)
    }

    fn plot(&self, compare: &Status) -> Status {
        if compare.state == State::Stale {
            return self.upstream(TaskKind::Compare, CellId::default(), 0);
        }
        self.recorded(self.plot_key(compare.outputs()).0)
    }

    fn report(&self, statuses: &Statuses) -> Status {
        for kind in [TaskKind::Compare, TaskKind::Plot] {
            if statuses.get(self.dag.over_all(kind)).state == State::Stale {
                return self.upstream(kind, CellId::default(), 0);
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
