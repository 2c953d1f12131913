//! Which tasks are stale: one function a task kind, each from its inputs' states to its own.
//!
//! A dry run calls them in topological order; a build calls them again as tasks finish, so that a
//! producer that re-ran with the same output leaves its consumers fresh (early cutoff).

use std::{collections::BTreeMap, sync::Arc};

use petgraph::graph::NodeIndex;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::{CodeDigests, Dag, Present, Reason, Task, label, reason::outcome_text};
use crate::{
    cache::{Attempt, AttemptOutcome, Cache, Output, TaskKind},
    digest::Digest,
    error::Result,
    import::{self, Imports},
    parse::Failure,
    plan::{CellPlan, Plan, Prepared, Support, fit},
    recipe::{Rendered, context},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Fresh,
    Stale,
    Failed,
    Waiting,
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
}

impl Status {
    fn new(state: State) -> Self {
        Self { state, reason: None, key: None, made: Made::Nothing }
    }
    fn because(state: State, reason: Reason) -> Self {
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
    fn key(mut self, key: Digest) -> Self {
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
        static UNKNOWN: Status = Status { state: State::Stale, reason: None, key: None, made: Made::Nothing };
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
enum Need {
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
        let aggregate = self.aggregate(cell, &(1..).zip(repeats.iter().map(|(_, parse)| parse)).collect::<Vec<_>>());
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
                self.aggregate(c, &parses)
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
        let context = context(prepared.job());
        let mut files = Vec::new();
        for (name, _) in &self.plan.recipe(cell).templates {
            files.push(self.plan.recipes.templates.render(name, &context)?);
        }
        let outputs = files
            .iter()
            .map(|f| Output { name: f.name.clone(), digest: f.digest, size: f.bytes.len() as u64 })
            .collect();
        Ok(Status { made: Made::Rendered(outputs, files), ..recorded })
    }

    /// The state of a training, and that of its parse where it was found on the way.
    fn train(&self, cell: usize, repeat: u32, render: &Status, need: Need) -> (Status, Option<Status>) {
        let alone = |status| (status, None);
        let Some(prepared) = self.plan.prepared(cell) else { return alone(Status::new(State::Unsupported)) };
        let key = match prepared.known() {
            Err(why) => return alone(Status::because(State::Waiting, Reason::Because(why.to_owned()))),
            Ok(()) => self.train_key(cell, repeat, render.outputs()).expect("facts are known").0,
        };
        let (generation, mut attempts) = self.attempts(&key);
        // The valid attempt with the lowest id; but one whose log is lost serves only while its result is there.
        let usable = attempts.iter().enumerate().filter(|(_, a)| a.is_valid()).find_map(|(number, attempt)| {
            let parse = self.parse_of(cell, attempt, need);
            // Whatever else the run left is read by people only.
            let serves = parse.state == State::Fresh || attempt.log().is_none_or(|log| self.cache.has(&log.digest));
            serves.then_some((number, parse))
        });
        if let Some((number, parse)) = usable {
            let made = Made::Attempt(Arc::new(attempts.swap_remove(number)));
            return (Status { made, ..Status::new(State::Fresh) }.key(key), Some(parse));
        }
        // Those that nothing disturbed are lost. What was tried after them decides, so that it is not tried without end.
        let lost = attempts.iter().rposition(Attempt::is_valid).and_then(|last| attempts.drain(..=last).next_back());
        if let Some((last, parse)) = self.disturbed(cell, &attempts, need) {
            let why = last.suspect.clone().unwrap_or_default();
            // One that was made again because it was lost replaced none.
            let replaced = attempts.iter().filter(|a| a.is_disturbed()).count().min(REPLACEMENTS + 1) - 1;
            if replaced < REPLACEMENTS && self.replaces(cell, prepared) {
                return alone(Status::because(State::Stale, Reason::Disturbed { why, replaced }).key(key));
            }
            let times =
                if replaced > 0 { format!("; replaced {replaced} of {REPLACEMENTS} times") } else { String::new() };
            let reason = Reason::Because(format!("disturbed, so not counted: {why}{times}"));
            let made = Made::Attempt(Arc::new(last.clone()));
            return (Status { made, ..Status::because(State::Fresh, reason) }.key(key), Some(parse));
        }
        let lost = if attempts.is_empty() { lost.as_ref() } else { attempts.last().filter(|a| a.is_disturbed()) };
        let lost = lost.map(|a| Reason::OutputLost(a.outputs.first().map_or("log".into(), |o| o.name.clone())));
        alone(self.untrained(cell, key, generation, &attempts, lost))
    }

    /// The present generation of a training's key, and its attempts, the first one first.
    fn attempts(&self, key: &Digest) -> (u32, Vec<Attempt>) {
        let generation = self.cache.generation(key);
        let mut attempts = self.cache.attempts(key);
        attempts.retain(|a| a.generation == generation);
        (generation, attempts)
    }

    /// The last attempt where something disturbed it, and the state of its parse. One whose log is lost serves only while
    /// its result is there.
    fn disturbed<'a>(&self, cell: usize, attempts: &'a [Attempt], need: Need) -> Option<(&'a Attempt, Status)> {
        let last = attempts.last().filter(|a| a.is_disturbed())?;
        let parse = self.parse_of(cell, last, need);
        (parse.state == State::Fresh || last.log().is_none_or(|log| self.cache.has(&log.digest)))
            .then_some((last, parse))
    }

    /// Would a build make a disturbed measurement of this cell again, now and here?
    fn replaces(&self, cell: usize, prepared: &Prepared) -> bool {
        self.options.replace && self.plan.cells[cell].selected && prepared.here().is_ok()
    }

    /// The state of a training without an attempt that can serve; `attempts` are those of its generation after the last one
    /// that counted, and `lost` says what is gone of the one that should serve.
    fn untrained(
        &self,
        cell: usize,
        key: Digest,
        generation: u32,
        attempts: &[Attempt],
        lost: Option<Reason>,
    ) -> Status {
        let Some(prepared) = self.plan.prepared(cell) else { return Status::new(State::Unsupported) };
        let failed = attempts.iter().rfind(|a| a.outcome != AttemptOutcome::Ok);
        let reason = match (lost, failed) {
            (Some(lost), _) => lost,
            (None, Some(attempt)) => {
                let text = outcome_text(attempt);
                let lasting = attempt.will_fail_again();
                if lasting && !self.options.retry_failed {
                    let reason = Reason::Because(format!(
                        "failed ({text}); runs again with --retry-failed or when its key changes"
                    ));
                    let made = Made::Attempt(Arc::new(attempt.clone()));
                    return Status { made, ..Status::because(State::Failed, reason) }.key(key);
                }
                if lasting { Reason::RetryFailed(text) } else { Reason::RetryTransient(text) }
            }
            (None, None) if generation > 0 => Reason::Remeasure(generation),
            (None, None) => Reason::NoRecord,
        };
        match (prepared.here(), self.withheld(cell, Some(&key))) {
            (Err(why), withheld) => {
                let last = failed.map(|a| format!("the last attempt failed ({})", outcome_text(a)));
                let all: Vec<String> = [Some(why), last, withheld].into_iter().flatten().collect();
                Status::because(State::Waiting, Reason::Because(all.join("; "))).key(key)
            }
            (Ok(()), Some(why)) => Status::failed(why).key(key),
            (Ok(()), None) => Status::because(State::Stale, reason).key(key),
        }
    }

    /// Why a run is not worth a GPU-second: it is predicted to be far from fitting, and no attempt has shown otherwise.
    /// Without a key there is none.
    pub(crate) fn withheld(&self, cell: usize, key: Option<&Digest>) -> Option<String> {
        let has_run = || key.is_some_and(|k| self.cache.attempts(k).iter().any(|a| a.outcome == AttemptOutcome::Ok));
        fit::fit(self.plan, cell).filter(|_| !self.options.force)?.withheld().filter(|_| !has_run())
    }

    /// The state of parsing what an attempt left.
    fn parse_of(&self, cell: usize, attempt: &Attempt, need: Need) -> Status {
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

    fn aggregate(&self, cell: usize, parses: &[(u32, &Status)]) -> Status {
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
        self.recorded(self.aggregate_key(cell, &results).0)
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
        if matches!(status.state, State::Stale | State::Waiting)
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
            (State::Waiting | State::Failed, _) => {
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

    /// How the first of a cell's repeats failed that did, where none went well: it did not measure, though a build would try
    /// it again.
    fn only_failure(&self, id: u32, cell: &CellPlan, statuses: &Statuses) -> Option<Failure> {
        let mut failure = None;
        for repeat in 1..=cell.repeats {
            let key = statuses.get(self.dag.node(TaskKind::Train, id, repeat)).key?;
            for attempt in self.attempts(&key).1.into_iter().rev() {
                match attempt.outcome {
                    AttemptOutcome::Ok => return None,
                    AttemptOutcome::Failed { class, evidence, .. } => {
                        failure.get_or_insert(Failure { class, evidence });
                    }
                }
            }
        }
        failure
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
        if status.state == State::Fresh
            && let Some(name) = crate::execute::publish::first_unpublished(
                self.cache,
                &crate::execute::publish::output_dir(self.plan),
                status.outputs(),
            )
        {
            return Status::because(State::Stale, Reason::Unpublished(name)).key(key);
        }
        status
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
            ),
            TaskKind::Compare => self.compare_key(&self.cell_states(statuses)),
            TaskKind::Plot => self.plot_key(of(TaskKind::Compare, 0).outputs()),
            TaskKind::Report => self.report_key(of(TaskKind::Compare, 0), of(TaskKind::Plot, 0), statuses),
        };
        Some(keyed.1)
    }
}

/// Repeats launch the same bytes on the same hardware. Where the first one failed in a way that comes again, those that
/// never ran are not started to find that out once more.
fn unless_it_would_fail_too(train: Status, first: Option<&Status>) -> Status {
    let has_not_run = matches!(train.reason, Some(Reason::NoRecord | Reason::Remeasure(_)));
    let failed = first.filter(|first| first.state == State::Failed).and_then(Status::attempt);
    match failed.filter(|attempt| train.state == State::Stale && has_not_run && attempt.will_fail_again()) {
        Some(attempt) => {
            let text = outcome_text(attempt);
            let why =
                format!("not started: repeat 1 failed ({text}), as this one would; --retry-failed runs both again");
            Status { key: train.key, ..Status::failed(why) }
        }
        None => train,
    }
}
