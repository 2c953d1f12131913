//! `plan`: what would run, and why.

mod text;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    args::{Globals, PlanArgs},
    blocked, build, fit,
    flags::Force,
    output::{print, print_json, say},
    project,
    session::Session,
};
use crate::{
    cache::TaskKind,
    error::{Result, exit},
    execute::{Prices, ProbeDepth, Runs, left_behind, reading},
    figures,
    graph::{Engine, NEVER_RUN, Reason, State, Statuses, label},
    matrix::{Cell, CellId},
    plan::{self, Plan},
    results,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &PlanArgs) -> Result<i32> {
    args.overrides.refuse_measured()?;
    let mut request = project::matrix_request(globals, &args.selection)?;
    // With --decide the runs that a cell may have, not those that it is to have.
    let most = request.repeats.take_if(|_| args.decide.is_some());
    let mut session = Session::open(request)?;
    if args.require.is_some() {
        project::require_locked(&session.plan, true)?;
    }
    let mut rounds = None;
    if let Some(margin) = args.decide {
        build::refuse_others(&args.overrides, &args.last)?;
        rounds = build::plan_first(&mut session, margin, most, args.max_runs)?;
    }
    let notes = project::notes(&session.plan);
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    if args.last.failed {
        project::keep_failed(&mut session)?;
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
    session.tell_damage();
    let mut trains = blocked::stale_trains(&engine, &statuses);
    let host = super::train_host::train_host(&session)?;
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
            row.reason = format!(
                "an earlier build left a run of it that ended well; `{}` takes it in",
                plan.command("build", &[])
            );
        }
    }
    let uncounted = mark_uncounted(&engine, &statuses, &mut rows)?;
    let counts = count(&rows);
    let prices = Prices::of(&engine, &statuses, Runs::Stale);
    let elsewhere = Prices::of(&engine, &statuses, Runs::Waiting);
    let warned = warn(&engine, &statuses);
    // A plan is made where people are, not where the GPUs are: what waits for another host counts.
    let beyond = args.max_gpu_hours.and_then(|limit| {
        Prices::beyond(
            &[&prices, &elsewhere],
            limit,
            args.overrides.has(Force::Unpriced),
        )
    });
    if globals.json {
        let tasks: Vec<Value> = rows.iter().map(|row| row.json(plan)).collect();
        let mut summary = serde_json::Map::new();
        for state in State::ALL {
            summary.insert(
                state.name().into(),
                counts.get(state.name()).copied().unwrap_or(0).into(),
            );
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
        if let Some(rounds) = &rounds {
            summary.insert("rounds".into(), json!(rounds.trim_end()));
        }
        print_json(
            "plan",
            &json!({ "matrix": plan.matrix.name, "tasks": tasks, "summary": summary, "estimates": prices.cells, "waiting_estimates": elsewhere.cells }),
        )?;
    } else {
        let mut text = text::text(plan, &rows, [&prices, &elsewhere]);
        text += uncounted.as_deref().unwrap_or_default();
        text += rounds.as_deref().unwrap_or_default();
        print(&text)?;
        if counts.contains_key("stale")
            && let Some(remote) = super::remote::of(&plan.config)?
        {
            say(&format!(
                "note: the remote cache {} was not asked; a build takes from it what is there",
                remote.address()
            ));
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
        engine.plan,
        &cells
            .filter_map(|cell| plan::fit::fit(engine.plan, cell))
            .collect::<Vec<_>>(),
    )
}

/// Says of runs that ended well and do not count why, for no state shows it; a sentence on all of
/// them.
pub fn mark_uncounted(
    engine: &Engine,
    statuses: &Statuses,
    rows: &mut [Row],
) -> Result<Option<String>> {
    let uncounted = reading::uncounted_runs(engine, statuses)?;
    let Some(first) = uncounted.first() else {
        return Ok(None);
    };
    let by_run: BTreeMap<(CellId, u32), &results::Reason> = (uncounted.iter())
        .map(|run| ((run.cell, run.repeat), &run.why))
        .collect();
    let cells: BTreeSet<CellId> = by_run.keys().map(|(cell, _)| *cell).collect();
    // Such repeats have no attempt: one that failed by itself has.
    let mut held_back: BTreeMap<CellId, usize> = BTreeMap::new();
    for row in rows.iter_mut().filter(|row| row.state == State::Failed) {
        let Some(cell) = row.cell.filter(|cell| cells.contains(cell)) else {
            continue;
        };
        let train = engine.dag.find(TaskKind::Train, cell, row.repeat);
        let has_run = train.is_some_and(|train| statuses.get(train).attempt().is_some());
        if row.kind == TaskKind::Train && !has_run {
            row.is_held_back = true;
            *held_back.entry(cell).or_default() += 1;
        }
    }
    for row in rows.iter_mut().filter(|row| row.kind == TaskKind::Train) {
        let Some(cell) = row.cell else { continue };
        let why = by_run.get(&(cell, row.repeat));
        if let Some(why) = why.filter(|_| row.state == State::Fresh) {
            let others = match held_back.get(&cell) {
                None => String::new(),
                Some(1) => ", nor starts the other repeat without --force=failed".to_owned(),
                Some(n) => format!(", nor starts the other {n} repeats without --force=failed"),
            };
            let train = engine.dag.find(TaskKind::Train, cell, row.repeat);
            let attempt = train.and_then(|train| statuses.get(train).attempt());
            // Another run may differ only where something beside the trainer decided.
            let attempt = attempt.filter(|_| !figures::comes_again(why));
            let again = attempt.map_or_else(String::new, |attempt| {
                let words = ["cache", "set-aside", &attempt.id, "--reason", "TEXT"];
                let set_aside = engine.plan.asked.of_project(&words);
                format!("; `{set_aside}` makes room for another run")
            });
            row.reason =
                format!("ended well, but {why}; no build runs it again as it is{others}{again}");
            row.is_counted = false;
        }
    }
    let n = uncounted.len();
    let (runs, do_not) = (
        counted(n, "run"),
        if n == 1 { "does not" } else { "do not" },
    );
    let show = engine
        .plan
        .command("show", &[&engine.plan.cells[first.cell].id]);
    Ok(Some(format!(
        "{runs} that ended well {do_not} count: `{show}` says why\n"
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

const NOT_COUNTED: &str = "not counted";

/// One line of the plan.
pub struct Row {
    pub kind: TaskKind,
    pub label: String,
    pub cell: Option<CellId>,
    pub repeat: u32,
    pub state: State,
    pub reason: String,
    /// There is no record of it of any kind.
    pub is_never_run: bool,
    pub key: Option<crate::digest::Digest>,
    /// The task runs only because one before it does.
    pub follows: bool,
    /// It did not fail itself: what failed before it keeps it from being started.
    pub is_not_started: bool,
    /// False where a run ended well and its log shows that it does not count.
    pub is_counted: bool,
    /// It is not started, because another repeat ended well and does not count.
    pub is_held_back: bool,
}

impl Row {
    /// The state in a word; a run that does not count is as good as none to a reader.
    pub fn word(&self) -> &'static str {
        if self.is_counted {
            self.state.name()
        } else {
            NOT_COUNTED
        }
    }

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
        if !self.is_counted {
            row["counts"] = json!(false);
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
        let reason = status.reason.as_ref().map(|reason| {
            let present = || engine.present(node, statuses);
            reason.unless_never_run(engine, task.kind, &label, present)
        });
        let is_never_run = reason == Some(None);
        let reason = reason.map_or_else(String::new, |reason| {
            reason.unwrap_or_else(|| NEVER_RUN.to_owned())
        });
        rows.push(Row {
            kind: task.kind,
            label,
            cell,
            repeat: task.repeat,
            state: status.state,
            reason,
            is_never_run,
            key: status.key,
            follows: matches!(status.reason, Some(Reason::Upstream(_))),
            is_not_started: matches!(status.reason, Some(Reason::NotStarted(_))),
            is_counted: true,
            is_held_back: false,
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
