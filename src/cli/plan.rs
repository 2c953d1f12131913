//! `plan` and `list`: what would run, and why.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use serde_json::{Value, json};

use super::{
    args::PlanArgs,
    output::{print, print_json},
    project,
};
use crate::{
    cache::{Cache, TaskKind},
    error::{Result, exit},
    graph::{Dag, Engine, State, Statuses, key::kind_name, label},
    plan::Plan,
};

pub fn run(at: Option<&Path>, args: &PlanArgs) -> Result<i32> {
    let plan = Plan::load(&project::request(at, &args.common)?)?;
    if args.locked {
        plan.facts.require_complete()?;
        project::refuse_drift(&plan)?;
    }
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &args.common);
    let statuses = engine.evaluate_all()?;
    let rows = rows(&engine, &statuses);
    let counts = count(&rows);
    let estimate = Estimate::of(&engine, &rows);
    if args.common.json {
        let tasks: Vec<Value> = rows.iter().map(|row| row.json(&plan)).collect();
        let mut summary = serde_json::Map::new();
        for state in STATES {
            summary.insert(state_name(state).into(), counts.get(state_name(state)).copied().unwrap_or(0).into());
        }
        summary.insert("estimated_seconds".into(), estimate.seconds.map_or(Value::Null, |s| json!(s)));
        summary.insert("runs_without_estimate".into(), estimate.unknown.into());
        print_json(&json!({ "matrix": plan.matrix.name, "tasks": tasks, "summary": summary }))?;
    } else {
        print(&text(&plan, &rows, &counts, &estimate))?;
    }
    // The process ends here: to free 100,000 tasks one by one first would only take time.
    drop(engine);
    std::mem::forget((rows, statuses, dag, plan));
    Ok(if args.exit_code && counts.contains_key("stale") { exit::STALE } else { exit::OK })
}

const STATES: [State; 5] = [State::Fresh, State::Stale, State::Failed, State::Waiting, State::Unsupported];

/// One line of the plan.
pub struct Row {
    pub kind: TaskKind,
    pub label: String,
    pub cell: Option<usize>,
    pub repeat: u32,
    pub state: State,
    pub reason: String,
    pub key: Option<crate::digest::Digest>,
}

impl Row {
    fn json(&self, plan: &Plan) -> Value {
        let mut row =
            json!({ "id": self.label, "kind": kind_name(self.kind), "state": self.state, "reason": self.reason });
        if let Some(cell) = self.cell {
            row["cell"] = json!(plan.cells[cell].id);
        }
        if self.repeat > 0 {
            row["repeat"] = json!(self.repeat);
        }
        if let Some(key) = self.key {
            row["key"] = json!(key);
        }
        row
    }
}

/// The tasks of the selected cells, and those over all cells.
pub fn rows(engine: &Engine, statuses: &Statuses) -> Vec<Row> {
    let mut nodes: Vec<_> = engine.dag.graph.node_indices().collect();
    nodes.sort_by_key(|n| {
        let task = engine.dag.task(*n);
        let is_over_all = task.kind.is_over_all();
        let position = if task.kind == TaskKind::Aggregate { u32::MAX } else { task.repeat };
        (is_over_all, task.cell, position, task.kind)
    });
    let mut rows = Vec::with_capacity(nodes.len());
    for node in nodes {
        let task = engine.dag.task(node);
        let is_over_all = task.kind.is_over_all();
        let cell = (!is_over_all).then_some(task.cell as usize);
        if cell.is_some_and(|c| !engine.plan.cells[c].selected) {
            continue;
        }
        let status = statuses.get(node);
        let label = label(engine.plan, &task);
        let reason = status.reason.as_ref().map_or_else(String::new, |reason| {
            reason.describe(engine.cache, task.kind, &label, || engine.present(node, statuses))
        });
        rows.push(Row {
            kind: task.kind,
            label,
            cell,
            repeat: task.repeat,
            state: status.state,
            reason,
            key: status.key,
        });
    }
    rows
}

pub fn state_name(state: State) -> &'static str {
    match state {
        State::Fresh => "fresh",
        State::Stale => "stale",
        State::Failed => "failed",
        State::Waiting => "waiting",
        State::Unsupported => "unsupported",
    }
}

fn count(rows: &[Row]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(state_name(row.state)).or_insert(0) += 1;
    }
    counts
}

/// How long the stale runs took last time.
pub struct Estimate {
    /// Sum over the runs that have run before under the same name; `None` if there are none.
    pub seconds: Option<f64>,
    pub unknown: usize,
}

impl Estimate {
    pub fn of(engine: &Engine, rows: &[Row]) -> Self {
        let mut estimate = Self { seconds: None, unknown: 0 };
        for row in rows.iter().filter(|r| r.kind == TaskKind::Train && r.state == State::Stale) {
            match engine.cache.last_seconds(&row.label) {
                Some(seconds) => *estimate.seconds.get_or_insert(0.0) += seconds,
                None => estimate.unknown += 1,
            }
        }
        estimate
    }

    fn sentence(&self, waiting: usize) -> String {
        let runs = |n: usize| if n == 1 { "1 run".to_owned() } else { format!("{n} runs") };
        match (self.seconds, self.unknown) {
            (None, 0) if waiting > 0 => format!("nothing to train here, {} of training wait", runs(waiting)),
            (None, 0) => "nothing to train".into(),
            (None, n) => format!("estimated time: not known, {} never ran before", runs(n)),
            (Some(s), 0) => format!("estimated time: {} of training, by the last runs of the same cells", duration(s)),
            (Some(s), n) => format!(
                "estimated time: {} of training by the last runs of the same cells, and {} that never ran before",
                duration(s),
                runs(n)
            ),
        }
    }
}

/// `1 h 02 min`, `3 min 20 s`, `4.2 s`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..=59 => format!("{seconds:.1} s"),
        60..=3599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

fn text(plan: &Plan, rows: &[Row], counts: &BTreeMap<&'static str, usize>, estimate: &Estimate) -> String {
    let width = rows.iter().map(|r| r.label.len()).max().unwrap_or(0).min(90);
    let mut text = String::with_capacity(rows.len() * (width + 40));
    for row in rows {
        let _ = writeln!(text, "{:<11}  {:<width$}  {}", state_name(row.state), row.label, row.reason);
    }
    for (cell, reason) in &plan.matrix.excluded {
        let _ = writeln!(text, "{:<11}  {cell}  {reason}", "excluded");
    }
    let parts: Vec<String> =
        STATES.iter().filter_map(|s| Some(format!("{} {}", counts.get(state_name(*s))?, state_name(*s)))).collect();
    let waiting = rows.iter().filter(|r| r.kind == TaskKind::Train && r.state == State::Waiting).count();
    let _ = writeln!(text, "{}: {}; {}", plan.matrix.name, parts.join(", "), estimate.sentence(waiting));
    text
}
