//! Which tasks are stale: one function a task kind, each from its inputs' states to its own.
//!
//! A dry run calls them in topological order; a build calls them again as tasks finish, so that a
//! producer that re-ran with the same output leaves its consumers fresh (early cutoff).

use std::{collections::BTreeMap, sync::Arc};

use petgraph::graph::NodeIndex;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::{CodeDigests, Dag, Present, Reason, Task, label, training::unless_it_would_fail_too};
use crate::{
    analyze::Dropped,
    cache::{Attempt, Cache, Output, TaskKind},
    digest::Digest,
    error::Result,
    execute::publish,
    import::{self, Imports},
    plan::{CellPlan, Job, Plan, Prepared, Support},
    recipe::{Rendered, context},
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

/// What a task left, or would leave.
#[derive(Clone, Debug, Default)]
pub enum Made {
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
    pub made: Made,
    /// Of a training: what was measured of it and does not count, where that is to be disclosed.
    pub dropped: Option<Arc<Dropped>>,
}

impl Status {
    pub(super) fn new(state: State) -> Self {
        Self { state, reason: None, key: None, made: Made::Nothing, dropped: None }
    }
    pub(super) fn because(state: State, reason: Reason) -> Self {
        Self { reason: Some(reason), ..Self::new(state) }
    }
    #[must_use]
    pub fn fresh(key: Digest, outputs: Vec<Output>) -> Self {
        Self { key: Some(key), made: Made::Outputs(outputs), ..Self::new(State::Fresh) }
    }
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self::because(State::Failed, Reason::Because(text.into()))
    }
    /// Where no parse was looked at on the way.
    pub(super) fn alone(self) -> (Self, Option<Self>) {
        (self, None)
    }
    pub(super) fn key(mut self, key: Digest) -> Self {
        self.key = Some(key);
        self
    }
    #[must_use]
    pub fn outputs(&self) -> &[Output] {
        match &self.made {
            Made::Nothing => &[],
            Made::Outputs(outputs) | Made::Rendered(outputs, _) => outputs,
            Made::Attempt(attempt) => &attempt.outputs,
        }
    }
    #[must_use]
    pub fn attempt(&self) -> Option<&Arc<Attempt>> {
        match &self.made {
            Made::Attempt(attempt) => Some(attempt),
            _ => None,
        }
    }
}

/// States of all tasks, by node.
pub struct Statuses(Vec<Option<Status>>);

impl Statuses {
    #[must_use]
    pub fn get(&self, node: NodeIndex) -> &Status {
        static UNKNOWN: Status =
            Status { state: State::Stale, reason: None, key: None, made: Made::Nothing, dropped: None };
        self.0[node.index()].as_ref().unwrap_or(&UNKNOWN)
    }
    pub fn set(&mut self, node: NodeIndex, status: Status) {
        self.0[node.index()] = Some(status);
    }
}

/// What the caller asked for that changes states.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub retry_failed: bool,
    /// Cells that are predicted not to fit in memory are stale all the same.
    pub force: bool,
    /// Measurements that something disturbed are stale where a build would make them again. Who only reads what is there
    /// sees them as they are.
    pub replace: bool,
}

/// How often a disturbed attempt is replaced, by generation. Then the last one stands, and is not counted.
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
}

impl Engine<'_> {
    /// States of all tasks as things stand; runs and writes nothing.
    pub fn evaluate_all(&self) -> Result<Statuses> {
        let cells: Vec<Result<Vec<(NodeIndex, Status)>>> =
            (0..self.plan.cells.len()).into_par_iter().map(|cell| self.evaluate_cell(cell)).collect();
        let mut statuses = Statuses(vec![None; self.dag.graph.node_count()]);
        for cell in cells {
            for (node, status) in cell? {
                statuses.set(node, status);
            }
        }
        for kind in [TaskKind::Compare, TaskKind::Plot, TaskKind::Report] {
            let node = self.dag.node(kind, 0, 0);
            let status = self.evaluate(node, &statuses)?;
            statuses.set(node, status);
        }
        Ok(statuses)
    }

    /// All tasks of one cell; cells do not depend on each other.
    pub(crate) fn evaluate_cell(&self, cell: usize) -> Result<Vec<(NodeIndex, Status)>> {
        let id = u32::try_from(cell).expect("fewer than 2^32 cells");
        let render = self.render(cell)?;
        let mut all = Vec::with_capacity(2 + 2 * self.plan.cells[cell].repeats as usize);
        if render.state != State::Unsupported {
            let (mut repeats, mut aggregate) = self.repeats(cell, &render, Need::Outputs);
            let is_lost = |reason: &Reason| matches!(reason, Reason::OutputLost(_) | Reason::Disturbed { .. });
            if repeats.iter().any(|(train, _)| train.reason.as_ref().is_some_and(is_lost)) {
                // A log and its result are lost, perhaps one whose repetition was disturbed. While the summary made of
                // them is there, nothing stale needs them, and no GPU-hour is spent to have them again.
                let (lenient, summary) = self.repeats(cell, &render, Need::Records);
                if summary.state == State::Fresh {
                    (repeats, aggregate) = (lenient, summary);
                }
            }
            for (repeat, (train, parse)) in (1..).zip(repeats) {
                all.push((self.dag.node(TaskKind::Train, id, repeat), train));
                all.push((self.dag.node(TaskKind::Parse, id, repeat), parse));
            }
            all.push((self.dag.node(TaskKind::Aggregate, id, 0), aggregate));
        }
        all.push((self.dag.node(TaskKind::Render, id, 0), render));
        Ok(all)
    }

    fn repeats(&self, cell: usize, render: &Status, need: Need) -> (Vec<(Status, Status)>, Status) {
        let mut repeats: Vec<(Status, Status)> = Vec::new();
        for repeat in 1..=self.plan.cells[cell].repeats {
            let (train, parse) = self.train(cell, repeat, render, need);
            let train = unless_it_would_fail_too(train, repeats.first().map(|(first, _)| first));
            let parse = parse.unwrap_or_else(|| self.parse(cell, repeat, &train, need));
            repeats.push((train, parse));
        }
        let trains = repeats.iter().map(|(train, _)| train);
        let dropped = trains.filter_map(|train| train.dropped.as_deref()).collect::<Vec<_>>();
        let parses = (1..).zip(repeats.iter().map(|(_, parse)| parse)).collect::<Vec<_>>();
        let aggregate = self.aggregate(cell, &parses, &dropped);
        (repeats, aggregate)
    }

    /// Does a build run this task if it is stale? Selected cells' tasks, and those over all cells.
    #[must_use]
    pub fn is_wanted(&self, node: NodeIndex) -> bool {
        let task = self.dag.task(node);
        task.kind.is_over_all() || self.plan.cells[task.cell as usize].selected
    }

    /// State of one task, from the states of those it waits for.
    pub fn evaluate(&self, node: NodeIndex, statuses: &Statuses) -> Result<Status> {
        let Task { kind, cell, repeat } = self.dag.task(node);
        let of = |kind, repeat| statuses.get(self.dag.node(kind, cell, repeat));
        let c = cell as usize;
        Ok(match kind {
            TaskKind::Render => self.render(c)?,
            TaskKind::Train => {
                let (train, _) = self.train(c, repeat, of(TaskKind::Render, 0), Need::Outputs);
                unless_it_would_fail_too(train, (repeat > 1).then(|| of(TaskKind::Train, 1)))
            }
            TaskKind::Parse => self.parse(c, repeat, of(TaskKind::Train, repeat), Need::Outputs),
            TaskKind::Aggregate => {
                let parses: Vec<_> = (1..=self.plan.cells[c].repeats).map(|r| (r, of(TaskKind::Parse, r))).collect();
                self.aggregate(c, &parses, &self.dropped(cell, statuses))
            }
            TaskKind::Compare => self.compare(statuses),
            TaskKind::Plot => self.plot(of(TaskKind::Compare, 0)),
            TaskKind::Report => self.report(statuses),
        })
    }

    fn render(&self, cell: usize) -> Result<Status> {
        let prepared = match &self.plan.cells[cell].support {
            Support::Unsupported(reason) => {
                return Ok(Status::because(State::Unsupported, Reason::Because(reason.clone())));
            }
            Support::Ready(prepared) => prepared,
        };
        let (key, _) = self.render_key(cell).expect("the cell is supported");
        let recorded = self.recorded(key);
        if recorded.state == State::Fresh {
            return Ok(recorded);
        }
        // Rendering is cheap and pure, so even a dry run does it: a template edit that renders the same bytes stops here.
        let files = self.rendered(cell, prepared.job())?;
        let outputs = files
            .iter()
            .map(|f| Output { name: f.name.clone(), digest: f.digest, size: f.bytes.len() as u64 })
            .collect();
        Ok(Status { made: Made::Rendered(outputs, files), ..recorded })
    }

    /// The launch files of a cell, made now.
    pub(crate) fn rendered(&self, cell: usize, job: &Job) -> Result<Vec<Rendered>> {
        let context = context(job);
        let templates = &self.plan.recipe(cell).templates;
        templates.iter().map(|(name, _)| self.plan.recipes.templates.render(name, &context)).collect()
    }

    /// The state of parsing what an attempt left.
    pub(super) fn parse_of(&self, cell: usize, attempt: &Attempt, need: Need) -> Status {
        let (key, _) = self.parse_key(cell, attempt).expect("the cell is supported");
        match (need, self.cache.outputs(&key)) {
            (Need::Records, Some(outputs)) => Status::fresh(key, outputs),
            (_, outputs) => self.found(key, outputs),
        }
    }

    fn parse(&self, cell: usize, repeat: u32, train: &Status, need: Need) -> Status {
        match (train.state, train.attempt()) {
            (State::Fresh | State::Failed, Some(attempt)) => self.parse_of(cell, attempt, need),
            (State::Stale, _) => self.upstream(TaskKind::Train, cell, repeat),
            (State::Failed, None) => Status { state: State::Failed, ..train.clone() },
            (state, _) => Status { key: None, ..Status { state, ..train.clone() } },
        }
    }

    /// What was measured of a cell's repeats and does not count.
    #[must_use]
    pub fn dropped<'s>(&self, cell: u32, statuses: &'s Statuses) -> Vec<&'s Dropped> {
        let train = |repeat| statuses.get(self.dag.node(TaskKind::Train, cell, repeat));
        (1..=self.plan.cells[cell as usize].repeats).filter_map(|repeat| train(repeat).dropped.as_deref()).collect()
    }

    fn aggregate(&self, cell: usize, parses: &[(u32, &Status)], dropped: &[&Dropped]) -> Status {
        if let Some((repeat, _)) = parses.iter().find(|(_, s)| s.state == State::Stale) {
            return self.upstream(TaskKind::Parse, cell, *repeat);
        }
        let results: Vec<_> =
            parses.iter().filter_map(|(repeat, s)| Some((*repeat, s.outputs().first()?.digest))).collect();
        if results.is_empty() {
            return match parses.first() {
                Some((_, first)) => Status { key: None, made: Made::Nothing, ..(*first).clone() },
                None => Status::because(State::Waiting, Reason::Because("no repeats are asked for".into())),
            };
        }
        self.recorded(self.aggregate_key(cell, &results, dropped).0)
    }

    fn compare(&self, statuses: &Statuses) -> Status {
        let pending = (0u32..).zip(&self.plan.cells).find(|(id, cell)| {
            cell.selected
                && matches!(cell.support, Support::Ready(_))
                && statuses.get(self.dag.node(TaskKind::Aggregate, *id, 0)).state == State::Stale
        });
        if let Some((id, _)) = pending {
            return self.upstream(TaskKind::Aggregate, id as usize, 0);
        }
        self.recorded(self.compare_key(&self.cell_states(statuses)).0)
    }

    /// What compare and report see of each cell: its summary, or why there is none.
    pub(crate) fn cell_states(&self, statuses: &Statuses) -> Vec<(String, Value)> {
        let imports = Imports::of(self.cache);
        let twins = self.same_launch(statuses);
        (0u32..)
            .zip(&self.plan.cells)
            .zip(twins)
            .map(|((id, cell), twin)| {
                let mut state = self.cell_state(id, cell, statuses);
                if let Some(first) = twin {
                    state["same_launch_as"] = json!(self.plan.cells[first].id);
                }
                // What others measured stands in for what was not measured here, but never for a failure.
                let has_none = state.get("unsupported").or(state.get("missing")).is_some();
                let imported = has_none.then(|| self.imported(&imports, &cell.id)).flatten();
                (cell.id.clone(), imported.unwrap_or(state))
            })
            .collect()
    }

    /// What is published of a cell besides its row: its job, and the results behind its summary.
    pub(super) fn published(&self, statuses: &Statuses) -> Vec<(Digest, Vec<Digest>)> {
        let mut all = Vec::new();
        for (id, cell) in (0u32..).zip(&self.plan.cells) {
            let Support::Ready(prepared) = &cell.support else { continue };
            if statuses.get(self.dag.node(TaskKind::Aggregate, id, 0)).state == State::Fresh {
                let result =
                    |r| statuses.get(self.dag.node(TaskKind::Parse, id, r)).outputs().first().map(|o| o.digest);
                all.push((prepared.job_digest, (1..=cell.repeats).filter_map(result).collect()));
            }
        }
        all
    }

    /// For each cell, an earlier cell that launches the same bytes in the same way, if there is one: they share one
    /// measurement, so what differs between them never reached the trainer.
    #[must_use]
    pub fn same_launch(&self, statuses: &Statuses) -> Vec<Option<usize>> {
        let mut seen: BTreeMap<Digest, usize> = BTreeMap::new();
        let mut twins = vec![None; self.plan.cells.len()];
        for (id, (cell, planned)) in (0u32..).zip(self.plan.cells.iter().enumerate()) {
            if matches!(planned.support, Support::Unsupported(_)) || planned.repeats == 0 {
                continue;
            }
            // Cells of one platform and framework have the same facts, even where those are not known.
            let rendered = statuses.get(self.dag.node(TaskKind::Render, id, 0));
            let key = statuses.get(self.dag.node(TaskKind::Train, id, 1)).key;
            let Some(launch) = key.or_else(|| self.launch_digest(cell, rendered.outputs())) else { continue };
            match seen.get(&launch) {
                Some(first) => twins[cell] = Some(*first),
                None => drop(seen.insert(launch, cell)),
            }
        }
        twins
    }

    /// What the imports of a cell depend on, if it has any.
    fn imported(&self, imports: &Imports, cell: &str) -> Option<Value> {
        let runs = Some(imports.digests(cell)).filter(|runs| !runs.is_empty())?;
        let claims = serde_json::to_vec(&import::claim_for(self.plan, cell)).unwrap_or_default();
        let statistics = import::statistics(self.plan);
        let claims = Digest::of(claims);
        Some(json!({ "imported": runs, "claims": claims, "statistics": statistics, "code": self.code.import }))
    }

    fn cell_state(&self, id: u32, cell: &CellPlan, statuses: &Statuses) -> Value {
        if let Support::Unsupported(reason) = &cell.support {
            return json!({ "unsupported": reason });
        }
        let status = statuses.get(self.dag.node(TaskKind::Aggregate, id, 0));
        if matches!(status.state, State::Stale | State::Waiting | State::Blocked)
            && let Some(failure) = self.only_failure(id, cell, statuses)
        {
            return json!({ "failure": failure });
        }
        match (status.state, status.outputs().first()) {
            (State::Fresh, Some(summary)) => {
                let environment = self.plan.prepared(id as usize).map(Prepared::environment).unwrap_or_default();
                let environment = Digest::of(serde_json::to_vec(&environment).unwrap_or_default());
                json!({ "summary": summary.digest, "repeats": cell.repeats, "environment": environment })
            }
            (State::Waiting | State::Blocked | State::Failed, _) => {
                let why = match &status.reason {
                    Some(Reason::Because(text)) => text.clone(),
                    _ => String::new(),
                };
                let name = if status.state == State::Failed { "failed" } else { "missing" };
                json!({ name: why })
            }
            _ => {
                let why = if cell.selected { "stale: build first" } else { "stale, and not selected: build it first" };
                let failed = (1..=cell.repeats).find_map(|repeat| {
                    match &statuses.get(self.dag.node(TaskKind::Train, id, repeat)).reason {
                        Some(Reason::RetryTransient(how) | Reason::RetryFailed(how)) => {
                            Some(format!("{why}; repeat {repeat} failed ({how})"))
                        }
                        _ => None,
                    }
                });
                json!({ "missing": failed.unwrap_or_else(|| why.to_owned()) })
            }
        }
    }

    fn plot(&self, compare: &Status) -> Status {
        if compare.state == State::Stale {
            return self.upstream(TaskKind::Compare, 0, 0);
        }
        self.recorded(self.plot_key(compare.outputs()).0)
    }

    fn report(&self, statuses: &Statuses) -> Status {
        for kind in [TaskKind::Compare, TaskKind::Plot] {
            if statuses.get(self.dag.node(kind, 0, 0)).state == State::Stale {
                return self.upstream(kind, 0, 0);
            }
        }
        let of = |kind| statuses.get(self.dag.node(kind, 0, 0));
        let (key, _) = self.report_key(of(TaskKind::Compare), of(TaskKind::Plot), statuses);
        let status = self.recorded(key);
        if status.state != State::Fresh {
            return status;
        }
        let folder = publish::output_dir(self.plan);
        let unpublished = match status.outputs() {
            // A report without figures was not published over one that has some.
            [] => (!publish::has_figures(&folder, &self.plan.matrix.name)).then(|| crate::report::PAGE.to_owned()),
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
            Some(lost) => Status::because(State::Stale, Reason::OutputLost(lost.name.clone())).key(key),
            None => Status::fresh(key, outputs),
        }
    }

    fn upstream(&self, kind: TaskKind, cell: usize, repeat: u32) -> Status {
        let task = Task { kind, cell: u32::try_from(cell).unwrap_or(0), repeat };
        Status::because(State::Stale, Reason::Upstream(label(self.plan, &task)))
    }

    /// The task's present pre-image with what it names, where it can be known.
    #[must_use]
    pub fn present(&self, node: NodeIndex, statuses: &Statuses) -> Option<Present> {
        let task = self.dag.task(node);
        let prepared = self.plan.prepared(task.cell as usize).filter(|_| !task.kind.is_over_all());
        let job = prepared.map(|p| (p.job_digest, p.job_text()));
        Some(Present { preimage: self.preimage(node, statuses)?, job })
    }

    /// The task's present pre-image, where it can be known.
    #[must_use]
    pub fn preimage(&self, node: NodeIndex, statuses: &Statuses) -> Option<String> {
        let Task { kind, cell, repeat } = self.dag.task(node);
        let of = |kind, repeat| statuses.get(self.dag.node(kind, cell, repeat));
        let c = cell as usize;
        let keyed = match kind {
            TaskKind::Render => self.render_key(c)?,
            TaskKind::Train => self.train_key(c, repeat, of(TaskKind::Render, 0).outputs())?,
            TaskKind::Parse => self.parse_key(c, of(TaskKind::Train, repeat).attempt()?)?,
            TaskKind::Aggregate => self.aggregate_key(
                c,
                &(1..=self.plan.cells[c].repeats)
                    .filter_map(|r| Some((r, of(TaskKind::Parse, r).outputs().first()?.digest)))
                    .collect::<Vec<_>>(),
                &self.dropped(cell, statuses),
            ),
            TaskKind::Compare => self.compare_key(&self.cell_states(statuses)),
            TaskKind::Plot => self.plot_key(of(TaskKind::Compare, 0).outputs()),
            TaskKind::Report => self.report_key(of(TaskKind::Compare, 0), of(TaskKind::Plot, 0), statuses),
        };
        Some(keyed.1)
    }
}
