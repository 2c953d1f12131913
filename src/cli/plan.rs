//! `plan` and `list`: what would run, and why.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    args::{Globals, PlanArgs},
    blocked, fit, memo,
    output::{print, print_json, say},
    project,
    session::Session,
    verbosity::{Verbosity, verbosity},
};
use crate::{
    cache::TaskKind,
    error::{Result, exit},
    execute::{
        ASSUMED_MFU, Basis, CellPrice, Prices, ProbeDepth, Runs, derived::read_contradicted,
        left_behind,
    },
    graph::{Engine, NEVER_RUN, State, Statuses, label},
    matrix::{Cell, CellId},
    plan::{self, Plan},
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &PlanArgs) -> Result<i32> {
    let request = project::matrix_request(globals, &args.selection)?;
    let memo_name = memo::of_plan(&request, &args.overrides);
    // A list of all tasks is too long to keep. `--locked` compares the lock with the host, and
    // `--failed` asks the cache for cells: no memo knows the answers. `-v` names what is read.
    let is_memorable = !args.tasks
        && !globals.json
        && !args.locked
        && !args.last.failed
        && verbosity() != Verbosity::Verbose;
    if is_memorable
        && let Some(idle) = memo::nothing_to_do(&request, &memo_name)
        && let Ok(settled) = serde_json::from_value::<Settled>(idle.verdict)
    {
        settled
            .notes
            .iter()
            .for_each(|note| eprintln!("note: {note}"));
        print(&settled.text)?;
        return Ok(exit::OK);
    }
    let mut session = Session::open(request)?;
    if args.locked {
        session.plan.facts.require_complete()?;
        project::refuse_drift(&session.plan)?;
    }
    let notes = project::notes(&session.plan);
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    if args.last.failed {
        project::keep_failed(&mut session.plan, &session.cache)?;
    }
    let left_out: Vec<Cell> = session
        .plan
        .matrix
        .excluded
        .iter()
        .map(|(cell, _)| cell.clone())
        .collect();
    // A filter that matches none of them is about other cells.
    let is_asked_for = session
        .request
        .selection
        .select(&left_out)
        .unwrap_or_else(|_| vec![false; left_out.len()]);
    let mut is_asked_for = is_asked_for.into_iter().map(|is| is && !args.last.failed);
    session
        .plan
        .matrix
        .excluded
        .retain(|_| is_asked_for.next() == Some(true));
    let mut engine = session.planner(&args.overrides);
    let mut statuses = engine.evaluate_all()?;
    let mut trains = blocked::stale_trains(&engine, &statuses);
    let host = super::build::train_host(&session)?;
    let blocked = blocked::find(&session.plan, &trains, &host, ProbeDepth::AtFiles)?;
    if !blocked.is_empty() {
        trains.retain(|cell| !blocked.contains_key(cell));
        blocked::mark(&mut session.plan, &blocked, &trains);
        engine = session.planner(&args.overrides);
        statuses = engine.evaluate_all()?;
    }
    let plan = &session.plan;
    let mut rows = rows(&engine, &statuses);
    // A plan changes nothing, so it takes nothing in; but it says what a build would.
    let left = left_behind(&session.cache.root().join("runs"));
    for row in rows
        .iter_mut()
        .filter(|row| row.kind == TaskKind::Train && row.state == State::Stale)
    {
        if row.key.is_some_and(|key| left.contains(&key)) {
            row.reason =
                "an earlier build left a run of it that ended well; `tprimat build` takes it in"
                    .to_owned();
        }
    }
    let counts = count(&rows);
    let prices = Prices::of(&engine, &statuses, Runs::Stale);
    let elsewhere = Prices::of(&engine, &statuses, Runs::Waiting);
    let warned = warn(&engine, &statuses);
    let held = super::build::held(&engine, &statuses);
    // A plan is made where people are, not where the GPUs are: what waits for another host counts.
    let beyond = args
        .max_gpu_hours
        .and_then(|limit| Prices::beyond(&[&prices, &elsewhere], limit, args.overrides.force));
    if globals.json {
        let tasks: Vec<Value> = rows.iter().map(|row| row.json(plan)).collect();
        let mut summary = serde_json::Map::new();
        for state in State::ALL {
            summary.insert(
                state.name().into(),
                counts.get(state.name()).copied().unwrap_or(0).into(),
            );
        }
        let held: usize = held.values().map(BTreeSet::len).sum();
        summary.insert("held".into(), held.into());
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
            "plan",
            &json!({ "matrix": plan.matrix.name, "tasks": tasks, "summary": summary, "estimates": prices.cells, "waiting_estimates": elsewhere.cells }),
        )?;
    } else {
        let mut text = text(plan, &rows, &counts, [&prices, &elsewhere], args.tasks);
        for (doubt, cells) in &held {
            let cells: Vec<&str> = cells.iter().copied().collect();
            let _ = writeln!(text, "{} not counted: {doubt}", blocked::few(&cells));
        }
        if let Some(contradicted) = contradicted(&engine, &statuses)? {
            text += &contradicted;
        }
        print(&text)?;
        if counts.contains_key("stale")
            && let Some(remote) = super::remote::of(&plan.config)?
        {
            say(&format!(
                "note: the remote cache {} was not asked; a build takes from it what is there",
                remote.address()
            ));
        }
        let is_settled = |row: &Row| matches!(row.state, State::Fresh | State::Unsupported);
        if is_memorable && rows.iter().all(is_settled) {
            let shown = json!(Settled { notes, text });
            memo::store(&engine, &statuses, &session.request, &memo_name, &shown);
        }
    }
    // The process ends here: to free 100,000 tasks one by one first would only take time.
    std::mem::forget((rows, statuses, session.dag, session.plan));
    if let Some(why) = beyond {
        if !globals.json {
            say(&format!("refused: {why}"));
        }
        return Ok(exit::USAGE);
    }
    Ok(if args.exit_code && counts.contains_key("stale") {
        exit::STALE
    } else {
        exit::OK
    })
}

/// All that a plan with nothing to do says.
#[derive(Serialize, Deserialize)]
struct Settled {
    notes: Vec<String>,
    text: String,
}

/// Names the cells to be run, here or elsewhere, that will not fit in memory or may not; how many
/// of each.
fn warn(engine: &Engine, statuses: &Statuses) -> [usize; 2] {
    let is_to_be_run = |cell: CellId| {
        let nodes = (1..=engine.plan.cells[cell].repeats)
            .map(|r| engine.dag.node(TaskKind::Train, cell, r));
        let mut trains = nodes.map(|node| statuses.get(node));
        trains.any(|train| match train.state {
            State::Stale | State::Waiting => true,
            State::Failed => {
                train.attempt().is_none() && engine.withheld(cell, train.key.as_ref()).is_some()
            }
            _ => false,
        })
    };
    let cells = engine.plan.cells.ids().filter(|cell| {
        engine.plan.cells[*cell].selected
            && engine.plan.prepared(*cell).is_some()
            && is_to_be_run(*cell)
    });
    fit::warn(
        &cells
            .filter_map(|cell| plan::fit::fit(engine.plan, cell))
            .collect::<Vec<_>>(),
    )
}

/// Runs that are done and prove nothing, which no task's state shows: as far as the last comparison
/// has them.
fn contradicted(engine: &Engine, statuses: &Statuses) -> Result<Option<String>> {
    let status = statuses.get(engine.dag.over_all(TaskKind::Compare));
    if status.state != State::Fresh {
        return Ok(None);
    }
    let contradicted = read_contradicted(engine.cache, status.outputs())?;
    let selected: BTreeSet<&str> = (engine.plan.cells.iter())
        .filter(|cell| cell.selected)
        .map(|cell| cell.id.as_str())
        .collect();
    let found: Vec<&(String, usize)> = (contradicted.iter())
        .filter(|(cell, _)| selected.contains(cell.as_str()))
        .collect();
    let runs: usize = found.iter().map(|(_, n)| *n).sum();
    let [(first, _), ..] = found[..] else {
        return Ok(None);
    };
    let (runs, do_not) = (
        counted(runs, "run"),
        if runs == 1 { "does not" } else { "do not" },
    );
    let matrix = engine
        .plan
        .argument
        .as_ref()
        .map(|matrix| format!(" {matrix}"))
        .unwrap_or_default();
    Ok(Some(format!(
        "{runs} {do_not} count, because the log contradicts the job: `tprimat show {first}{matrix}` says in what\n"
    )))
}

/// The estimate's part of `plan --json`'s summary; what is not known is absent.
fn priced(prices: &Prices) -> serde_json::Map<String, Value> {
    let mut summary = serde_json::Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        drop(value.map(|value| summary.insert(name.into(), value)))
    };
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
    put(
        "basis",
        (!prices.cells.is_empty()).then(|| json!(prices.by_basis())),
    );
    put("runs_without_estimate", Some(json!(prices.unknown_runs())));
    put("runs_without_price", Some(json!(prices.unpriced_runs())));
    summary
}

/// One line of the plan.
pub struct Row {
    pub kind: TaskKind,
    pub label: String,
    pub cell: Option<CellId>,
    pub repeat: u32,
    pub state: State,
    pub reason: String,
    pub key: Option<crate::digest::Digest>,
}

impl Row {
    fn json(&self, plan: &Plan) -> Value {
        let mut row = json!({ "task": self.label, "kind": self.kind.name(), "state": self.state, "reason": self.reason });
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
        let position = if task.kind == TaskKind::Aggregate {
            u32::MAX
        } else {
            task.repeat
        };
        (is_over_all, task.cell, position, task.kind)
    });
    let mut rows = Vec::with_capacity(nodes.len());
    for node in nodes {
        let task = engine.dag.task(node);
        let is_over_all = task.kind.is_over_all();
        let cell = (!is_over_all).then_some(task.cell);
        if cell.is_some_and(|c| !engine.plan.cells[c].selected) {
            continue;
        }
        let status = statuses.get(node);
        let label = label(engine.plan, &task);
        let reason = status.reason.as_ref().map_or_else(String::new, |reason| {
            reason.describe(engine, task.kind, &label, || engine.present(node, statuses))
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

fn count(rows: &[Row]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row.state.name()).or_insert(0) += 1;
    }
    counts
}

/// The estimate in a sentence; `nothing` where there are no runs.
fn sentence(prices: &Prices, nothing: &str) -> String {
    let runs = |n: usize| counted(n, "run");
    let unknown = prices.unknown_runs();
    let Some(seconds) = prices.seconds() else {
        return if unknown == 0 {
            nothing.to_owned()
        } else {
            format!("{}, of unknown length", runs(unknown))
        };
    };
    let mut text = format!("{}, about {}", runs(prices.runs()), duration(seconds));
    if let Some(hours) = prices.gpu_hours() {
        let _ = write!(text, ", {} GPU-hours", few_digits(hours));
    }
    for (currency, cost) in prices.costs() {
        let _ = write!(text, ", {cost:.2} {currency}");
    }
    let by = prices.by_basis().into_iter().map(|(basis, n)| match basis {
        Basis::Measured => (n, "from runs of the same cells".to_owned()),
        Basis::Earlier => (
            n,
            "from runs of the same cells before they were changed".to_owned(),
        ),
        Basis::Model => (n, format!("assuming {:.0} % MFU", 100.0 * ASSUMED_MFU)),
    });
    let by: Vec<(usize, String)> = by.collect();
    let is_one_kind = by.len() == 1 && unknown == 0;
    let told = |(n, how): (usize, String)| {
        if is_one_kind {
            how
        } else {
            format!("{} {how}", runs(n))
        }
    };
    let mut by: Vec<String> = by.into_iter().map(told).collect();
    if unknown > 0 {
        by.push(format!("{} of unknown length", runs(unknown)));
    }
    match prices.unpriced_runs() {
        0 => {}
        n if n == prices.runs() => by.push("no price set".to_owned()),
        n => by.push(format!("{} without a price", runs(n))),
    }
    let _ = write!(text, " ({})", by.join("; "));
    text
}

/// `469`, `4.69`, `0.05`
fn few_digits(hours: f64) -> String {
    if hours >= 100.0 {
        format!("{hours:.0}")
    } else {
        format!("{hours:.2}")
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

/// `3 runs: 4 min 10 s, 0.56 GPU-hours, 1.67 USD (median of 3 runs of this cell)`
fn of_cell(cell: &CellPrice) -> String {
    let mut text = format!("{}: ", counted(cell.runs, "run"));
    let Some(seconds) = cell.seconds else {
        return text + &cell.how;
    };
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

/// A plan with at most this many cells has a line for each; a longer one has a line for each
/// reason.
const CELLS: usize = 24;

/// The state of each cell, which is that of its first training that is not fresh, else of its first
/// other task.
fn by_cell(plan: &Plan, rows: &[Row]) -> String {
    let mut cells: Vec<Vec<&Row>> = Vec::new();
    let mut others: Vec<Shown> = Vec::new();
    for row in rows {
        match (row.cell, cells.last_mut()) {
            (None, _) => others.push(Shown {
                state: row.state.name(),
                name: row.label.clone(),
                runs: 0,
                reason: &row.reason,
            }),
            (Some(_), Some(of_cell)) if of_cell[0].cell == row.cell => of_cell.push(row),
            (Some(_), _) => cells.push(vec![row]),
        }
    }
    let mut found = Vec::new();
    for rows in &cells {
        let Some(cell) = rows[0].cell else { continue };
        let is_due = |row: &&&Row| row.state != State::Fresh;
        let trains = || rows.iter().filter(|row| row.kind == TaskKind::Train);
        let Some(shown) = trains()
            .find(is_due)
            .or_else(|| rows.iter().find(is_due))
            .or_else(|| rows.first())
        else {
            continue;
        };
        let same = trains().filter(|row| row.state == shown.state).count();
        found.push(Shown {
            state: shown.state.name(),
            name: plan.cells[cell].id.clone(),
            runs: if shown.kind == TaskKind::Train {
                same
            } else {
                0
            },
            reason: &shown.reason,
        });
    }
    lines(found) + &lines(others)
}

/// What a line says of a cell, or of another task.
struct Shown<'a> {
    state: &'static str,
    name: String,
    /// Trainings of that state; 0 where it is not a training.
    runs: usize,
    reason: &'a str,
}

/// A line for each cell: state, cell, reason. Where that were too many, those that share a state
/// and a reason have one line.
fn lines(found: Vec<Shown>) -> String {
    if found.len() > CELLS {
        return grouped(found);
    }
    let named = |shown: &Shown| match shown.runs {
        0 | 1 => shown.name.clone(),
        runs => format!("{}  {runs} runs", shown.name),
    };
    let names: Vec<String> = found.iter().map(named).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0).min(90);
    let mut text = String::new();
    for (Shown { state, reason, .. }, name) in found.iter().zip(names) {
        let _ = writeln!(text, "{state:<11}  {name:<width$}  {reason}");
    }
    text
}

/// One line for those that share a state and a reason.
fn grouped(found: Vec<Shown>) -> String {
    let mut text = String::new();
    // Each cell may have a reason of its own.
    let mut groups: IndexMap<(&str, &str), (Vec<String>, usize)> = IndexMap::new();
    for Shown {
        state,
        name,
        runs,
        reason,
    } in found
    {
        let (names, all) = groups.entry((state, reason)).or_default();
        names.push(name);
        *all += runs;
    }
    for ((state, reason), (names, runs)) in groups {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let names = blocked::few(&names);
        let runs = match runs {
            0 => String::new(),
            runs => format!(" ({})", counted(runs, "run")),
        };
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        let _ = writeln!(text, "{state:<11}  {names}{runs}{reason}");
    }
    text
}

fn text(
    plan: &Plan,
    rows: &[Row],
    counts: &BTreeMap<&'static str, usize>,
    [prices, elsewhere]: [&Prices; 2],
    tasks: bool,
) -> String {
    let mut text = String::new();
    if !tasks {
        text += &by_cell(plan, rows);
        let excluded = plan.matrix.excluded.iter().map(|(cell, reason)| Shown {
            state: "excluded",
            name: cell.to_string(),
            runs: 0,
            reason,
        });
        text += &grouped(excluded.collect());
        text += "`--tasks` lists every task, and the estimate of each cell\n";
    } else {
        let width = rows
            .iter()
            .map(|r| r.label.len())
            .max()
            .unwrap_or(0)
            .min(90);
        for row in rows {
            let _ = writeln!(
                text,
                "{:<11}  {:<width$}  {}",
                row.state.name(),
                row.label,
                row.reason
            );
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
    // A task that never ran is not one whose result is out of date.
    let is_never_run = |row: &&Row| row.state == State::Stale && row.reason == NEVER_RUN;
    let never_run = rows.iter().filter(is_never_run).count();
    let part = |state: &State| {
        let count = counts.get(state.name())?;
        let of_them = match (state, never_run) {
            (State::Stale, n) if n > 0 => format!(" ({n} of them never run)"),
            _ => String::new(),
        };
        Some(format!("{count} {}{of_them}", state.name()))
    };
    let parts: Vec<String> = State::ALL.iter().filter_map(part).collect();
    let mut estimate = sentence(prices, "nothing to train here");
    if elsewhere.runs() > 0 {
        let _ = write!(
            estimate,
            "; for other hosts, if one host ran them one after another: {}",
            sentence(elsewhere, "nothing")
        );
    }
    let _ = writeln!(
        text,
        "{}: {}: {}; {estimate}",
        plan.matrix.name,
        counted(rows.len(), "task"),
        parts.join(", ")
    );
    text
}
