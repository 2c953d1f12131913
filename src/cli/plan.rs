//! `plan` and `list`: what would run, and why.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use serde_json::{Value, json};

use super::{
    args::PlanArgs,
    blocked, fit,
    output::{print, print_json},
    project,
};
use crate::{
    cache::{Cache, TaskKind},
    error::{Result, exit},
    execute::{ASSUMED_MFU, Basis, CellPrice, Look, Prices, Runs, left_behind},
    graph::{Dag, Engine, State, Statuses, key::kind_name, label},
    plan::{self, Plan},
};

pub fn run(at: Option<&Path>, args: &PlanArgs) -> Result<i32> {
    let request = project::wanted(at, &args.wanted)?;
    let mut plan = Plan::load(&request)?;
    if args.locked {
        plan.facts.require_complete()?;
        project::refuse_drift(&plan)?;
    }
    project::say_notes(&plan);
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let dag = Dag::new(&plan)?;
    let mut engine = project::planner(&plan, &dag, &cache, &args.insist);
    let mut statuses = engine.evaluate_all()?;
    let mut trains = blocked::stale_trains(&engine, &statuses);
    let host = super::build::train_host(&plan, &request, cache.root())?;
    let blocked = blocked::find(&plan, &trains, &host, Look::AtFiles)?;
    if !blocked.is_empty() {
        trains.retain(|cell| !blocked.contains_key(cell));
        blocked::mark(&mut plan, &blocked, &trains);
        engine = project::planner(&plan, &dag, &cache, &args.insist);
        statuses = engine.evaluate_all()?;
    }
    let mut rows = rows(&engine, &statuses);
    // A plan changes nothing, so it takes nothing in; but it says what a build would.
    let left = left_behind(&cache.root().join("runs"));
    for row in rows.iter_mut().filter(|row| row.kind == TaskKind::Train && row.state == State::Stale) {
        if row.key.is_some_and(|key| left.contains(&key)) {
            row.reason = "an earlier build left a run of it that ended well; `tprimat build` takes it in".to_owned();
        }
    }
    let counts = count(&rows);
    let prices = Prices::of(&engine, &statuses, Runs::Stale);
    let elsewhere = Prices::of(&engine, &statuses, Runs::Waiting);
    let warned = warn(&engine, &statuses);
    // A plan is made where people are, not where the GPUs are: what waits for another host counts.
    let beyond = args.max_gpu_hours.and_then(|limit| Prices::beyond(&[&prices, &elsewhere], limit, args.insist.force));
    if args.wanted.json {
        let tasks: Vec<Value> = rows.iter().map(|row| row.json(&plan)).collect();
        let mut summary = serde_json::Map::new();
        for state in STATES {
            summary.insert(state_name(state).into(), counts.get(state_name(state)).copied().unwrap_or(0).into());
        }
        summary.insert("will_not_fit".into(), warned[0].into());
        summary.insert("may_not_fit".into(), warned[1].into());
        summary.extend(priced(&prices));
        if !elsewhere.cells.is_empty() {
            summary.insert("waiting_estimate".into(), priced(&elsewhere).into());
        }
        if let Some(why) = &beyond {
            summary.insert("beyond_max_gpu_hours".into(), json!(why));
        }
        print_json(
            &json!({ "matrix": plan.matrix.name, "tasks": tasks, "summary": summary, "estimates": prices.cells, "waiting_estimates": elsewhere.cells }),
        )?;
    } else {
        print(&text(&plan, &rows, &counts, [&prices, &elsewhere]))?;
    }
    // The process ends here: to free 100,000 tasks one by one first would only take time.
    drop(engine);
    std::mem::forget((rows, statuses, dag, plan));
    if let Some(why) = beyond {
        if !args.wanted.json {
            eprintln!("refused: {why}");
        }
        return Ok(exit::USAGE);
    }
    Ok(if args.exit_code && counts.contains_key("stale") { exit::STALE } else { exit::OK })
}

/// Names the cells to be run, here or elsewhere, that will not fit in memory or may not; how many of each.
fn warn(engine: &Engine, statuses: &Statuses) -> [usize; 2] {
    let is_to_be_run = |cell: usize| {
        let nodes = (1..=engine.plan.cells[cell].repeats).map(|r| engine.dag.node(TaskKind::Train, cell as u32, r));
        let mut trains = nodes.map(|node| statuses.get(node));
        trains.any(|train| match train.state {
            State::Stale | State::Waiting => true,
            State::Failed => train.attempt().is_none() && engine.withheld(cell, train.key.as_ref()).is_some(),
            _ => false,
        })
    };
    let cells = (0..engine.plan.cells.len()).filter(|cell| {
        engine.plan.cells[*cell].selected && engine.plan.prepared(*cell).is_some() && is_to_be_run(*cell)
    });
    fit::warn(&cells.filter_map(|cell| plan::fit::fit(engine.plan, cell)).collect::<Vec<_>>())
}

/// The estimate's part of `plan --json`'s summary; what is not known is absent.
fn priced(prices: &Prices) -> serde_json::Map<String, Value> {
    let mut summary = serde_json::Map::new();
    let mut put = |name: &str, value: Option<Value>| drop(value.map(|value| summary.insert(name.into(), value)));
    put("estimated_seconds", prices.seconds().map(Value::from));
    put("gpu_hours", prices.gpu_hours().map(Value::from));
    let costs = prices.costs();
    match costs.iter().next() {
        Some((currency, cost)) if costs.len() == 1 => {
            put("cost", Some(json!(cost)));
            put("currency", Some(json!(currency)));
        }
        Some(_) => put("costs", Some(json!(costs))),
        None => {}
    }
    put("basis", (!prices.cells.is_empty()).then(|| json!(prices.by_basis())));
    put("runs_without_estimate", Some(json!(prices.unknown_runs())));
    put("runs_without_price", Some(json!(prices.unpriced_runs())));
    summary
}

pub const STATES: [State; 6] =
    [State::Fresh, State::Stale, State::Failed, State::Waiting, State::Blocked, State::Unsupported];

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
        State::Blocked => "blocked",
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

/// The estimate in a sentence; `nothing` where there are no runs.
fn sentence(prices: &Prices, nothing: &str) -> String {
    let runs = |n: usize| if n == 1 { "1 run".to_owned() } else { format!("{n} runs") };
    let unknown = prices.unknown_runs();
    let Some(seconds) = prices.seconds() else {
        return if unknown == 0 { nothing.to_owned() } else { format!("{} not estimated", runs(unknown)) };
    };
    let mut text = format!("estimate: {}", duration(seconds));
    if let Some(hours) = prices.gpu_hours() {
        let _ = write!(text, ", {hours:.2} GPU-hours");
    }
    for (currency, cost) in prices.costs() {
        let _ = write!(text, ", {cost:.2} {currency}");
    }
    let by = prices.by_basis().into_iter().map(|(basis, n)| match basis {
        Basis::Measured => format!("{} by runs of the same cell", runs(n)),
        Basis::Earlier => format!("{} by earlier runs under another key", runs(n)),
        Basis::Model => format!("{} by a model ({:.0} % MFU assumed)", runs(n), 100.0 * ASSUMED_MFU),
    });
    let mut by: Vec<String> = by.collect();
    if unknown > 0 {
        by.push(format!("{} not estimated", runs(unknown)));
    }
    if prices.unpriced_runs() > 0 {
        by.push(format!("{} without a price", runs(prices.unpriced_runs())));
    }
    let _ = write!(text, " ({})", by.join("; "));
    text
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

/// `3 runs: 4 min 10 s, 0.56 GPU-hours, 1.67 USD (median of 3 runs of this cell)`
fn of_cell(cell: &CellPrice) -> String {
    let mut text = format!("{} run{}: ", cell.runs, if cell.runs == 1 { "" } else { "s" });
    let Some(seconds) = cell.seconds else { return text + &cell.how };
    text += &duration(seconds);
    if let Some(hours) = cell.gpu_hours {
        let _ = write!(text, ", {hours:.2} GPU-hours");
    }
    if let (Some(cost), Some(currency)) = (cell.cost, &cell.currency) {
        let _ = write!(text, ", {cost:.2} {currency}");
    }
    let _ = write!(text, " ({})", cell.how);
    text
}

/// A plan with at most this many tasks lists each of them; a longer one has a line for each cell, or for each reason.
const IN_FULL: usize = 24;
/// A plan with at most this many cells has a line for each; a longer one has a line for each reason.
const CELLS: usize = 24;

/// The state of each cell, which is that of its first training that is not fresh, else of its first other task.
fn by_cell(plan: &Plan, rows: &[Row]) -> String {
    let mut cells: Vec<Vec<&Row>> = Vec::new();
    let mut others: Vec<(&str, String, &str)> = Vec::new();
    for row in rows {
        match (row.cell, cells.last_mut()) {
            (None, _) => others.push((state_name(row.state), row.label.clone(), &row.reason)),
            (Some(_), Some(of_cell)) if of_cell[0].cell == row.cell => of_cell.push(row),
            (Some(_), _) => cells.push(vec![row]),
        }
    }
    let mut found = Vec::new();
    for rows in &cells {
        let Some(cell) = rows[0].cell else { continue };
        let is_due = |row: &&&Row| row.state != State::Fresh;
        let trains = || rows.iter().filter(|row| row.kind == TaskKind::Train);
        let Some(shown) = trains().find(is_due).or_else(|| rows.iter().find(is_due)).or_else(|| rows.first()) else {
            continue;
        };
        let same = trains().filter(|row| row.state == shown.state).count();
        let runs = if shown.kind == TaskKind::Train && same > 1 { format!("  {same} runs") } else { String::new() };
        found.push((state_name(shown.state), format!("{}{runs}", plan.cells[cell].id), shown.reason.as_str()));
    }
    lines(found) + &lines(others)
}

/// A line for each cell: state, cell, reason. Where that were too many, those that share a state and a reason have one line.
fn lines(found: Vec<(&str, String, &str)>) -> String {
    let mut text = String::new();
    if found.len() <= CELLS {
        let width = found.iter().map(|(_, cell, _)| cell.len()).max().unwrap_or(0).min(90);
        for (state, cell, reason) in found {
            let _ = writeln!(text, "{state:<11}  {cell:<width$}  {reason}");
        }
        return text;
    }
    let mut groups: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for (state, cell, reason) in found {
        match groups.iter_mut().find(|(known, why, _)| (*known, *why) == (state, reason)) {
            Some((.., cells)) => cells.push(cell),
            None => groups.push((state, reason, vec![cell])),
        }
    }
    for (state, reason, cells) in groups {
        let names: Vec<&str> = cells.iter().map(String::as_str).collect();
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let _ = writeln!(text, "{state:<11}  {}{reason}", blocked::few(&names));
    }
    text
}

fn text(
    plan: &Plan,
    rows: &[Row],
    counts: &BTreeMap<&'static str, usize>,
    [prices, elsewhere]: [&Prices; 2],
) -> String {
    let mut text = String::new();
    if rows.len() > IN_FULL {
        text += &by_cell(plan, rows);
        let excluded =
            plan.matrix.excluded.iter().map(|(cell, reason)| ("excluded", cell.to_string(), reason.as_str()));
        text += &lines(excluded.collect());
        text += "`tprimat plan --only CELL` lists the tasks of a cell with its estimate, --json lists all\n";
    } else {
        let width = rows.iter().map(|r| r.label.len()).max().unwrap_or(0).min(90);
        for row in rows {
            let _ = writeln!(text, "{:<11}  {:<width$}  {}", state_name(row.state), row.label, row.reason);
        }
        for (prices, word) in [(prices, "estimate"), (elsewhere, "elsewhere")] {
            for cell in &prices.cells {
                let _ = writeln!(text, "{word:<11}  {}  {}", cell.cell, of_cell(cell));
            }
        }
        for (cell, reason) in &plan.matrix.excluded {
            let _ = writeln!(text, "{:<11}  {cell}  {reason}", "excluded");
        }
    }
    let parts: Vec<String> =
        STATES.iter().filter_map(|s| Some(format!("{} {}", counts.get(state_name(*s))?, state_name(*s)))).collect();
    let mut estimate = sentence(prices, "nothing to train");
    if elsewhere.runs() > 0 {
        let _ = write!(estimate, "; waiting for another host: {}", sentence(elsewhere, "nothing"));
    }
    let _ = writeln!(text, "{}: {}; {estimate}", plan.matrix.name, parts.join(", "));
    text
}
