//! `list`: the cells of the matrix, what is known of each, and the imported ones.

use std::{fmt::Write as _, path::Path};

use serde_json::{Value, json};

use super::{
    args::ListArgs,
    flags::Insist,
    output::{print, print_json},
    project,
};
use crate::{
    analyze::{RepeatStatus, Summary},
    cache::{Cache, TaskKind},
    error::{Result, exit},
    graph::{Dag, State, Statuses},
    import::{self, Imports},
    plan::{Plan, Support},
};

pub fn run(at: Option<&Path>, args: &ListArgs) -> Result<i32> {
    let wanted = &args.wanted;
    let plan = match project::without_project(at, &wanted.common)? {
        Some(_) => project::plan_or_imports(at, &wanted.common, &wanted.measured)?,
        None => Plan::load(&project::wanted(at, wanted)?)?,
    };
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let imports = Imports::of(&cache);
    let mut rows = Vec::new();
    for (at, cell) in plan.cells.iter().enumerate().filter(|(_, c)| c.selected) {
        let supported = matches!(cell.support, Support::Ready(_));
        let mut row = json!({ "cell": cell.id, "repeats": cell.repeats, "supported": supported });
        if let Support::Unsupported(why) = &cell.support {
            row["reason"] = json!(why);
        }
        let summary = if supported { measured(&dag, &statuses, &cache, at)? } else { None };
        match summary {
            Some(summary) => row["contradicted"] = json!(contradicted(&summary)),
            None if !imports.digests(&cell.id).is_empty() => tell_imports(&mut row, &plan, &cache, &imports)?,
            None => {}
        }
        rows.push(row);
    }
    for cell in imports.cells().filter(|id| plan.find(id).is_err()) {
        let mut row = json!({ "cell": cell, "matrix": false });
        tell_imports(&mut row, &plan, &cache, &imports)?;
        rows.push(row);
    }
    if args.wanted.json {
        print_json(&rows)?;
    } else {
        print(&rows.iter().map(line).collect::<String>())?;
    }
    Ok(exit::OK)
}

fn measured(dag: &Dag, statuses: &Statuses, cache: &Cache, cell: usize) -> Result<Option<Summary>> {
    let id = u32::try_from(cell).unwrap_or(u32::MAX);
    let status = statuses.get(dag.node(TaskKind::Aggregate, id, 0));
    let Some(output) = status.outputs().first().filter(|_| status.state == State::Fresh) else { return Ok(None) };
    let bytes = cache.get(&output.digest)?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Fields in which any repeat contradicts its job.
fn contradicted(summary: &Summary) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for repeat in &summary.repeats {
        if let RepeatStatus::Contradicted { fields } = &repeat.status {
            all.extend(fields.iter().cloned());
        }
    }
    all.sort();
    all.dedup();
    all
}

fn tell_imports(row: &mut Value, plan: &Plan, cache: &Cache, imports: &Imports) -> Result<()> {
    let cell = row["cell"].as_str().unwrap_or_default().to_owned();
    let runs = import::runs(cache, imports, &cell, &import::claim_for(plan, &cell))?;
    let summary = import::summary(&runs, &import::statistics(plan));
    row["imported"] = json!(runs.iter().map(|r| r.recorded.from()).collect::<Vec<_>>());
    row["contradicted"] = json!(contradicted(&summary));
    row["failed"] = json!(summary.count_of(|s| matches!(s, RepeatStatus::Failed { .. })));
    Ok(())
}

/// `CELL  (unsupported: why)  (imported from a.log)  (contradicted: seq_length)`
fn line(row: &Value) -> String {
    let words = |name: &str| -> Option<String> {
        let all: Vec<&str> = row[name].as_array()?.iter().filter_map(Value::as_str).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let mut line = row["cell"].as_str().unwrap_or_default().to_owned();
    if let Some(why) = row["reason"].as_str() {
        _ = write!(line, "  (unsupported: {why})");
    }
    if let Some(files) = words("imported") {
        let where_ = if row["matrix"] == false { ", not in the matrix" } else { "" };
        _ = write!(line, "  (imported from {files}{where_})");
    }
    if row["failed"].as_u64().unwrap_or(0) > 0 {
        line += "  (failed)";
    }
    if let Some(fields) = words("contradicted") {
        _ = write!(line, "  (contradicted: {fields})");
    }
    line + "\n"
}
