//! `list`: the cells of the matrix, what is known of each, and the imported ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    args::{Globals, ListArgs},
    flags::MatrixSelection,
    output::{answer, leave_out},
    project,
    session::Session,
};
use crate::{
    cache::{SetAside, TaskKind},
    error::{Error, Result, exit},
    execute::{derived, reading},
    figures::{RepeatStatus, Summary, UncountedRepeats},
    graph::{State, Statuses},
    import::{self, Imports},
    matrix::{Cell, CellId, Selection},
    plan::Support,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &ListArgs) -> Result<i32> {
    let (mut session, mut imported) = open(globals, &args.selection)?;
    if args.last.failed {
        imported = failed_imports(&session, &imported)?;
        match project::keep_failed(&mut session) {
            Err(Error::NothingSelected { .. }) if !imported.is_empty() => {}
            kept => drop(kept?),
        }
    }
    let (engine, statuses) = session.look()?;
    let mut uncounted: BTreeMap<CellId, Vec<String>> = BTreeMap::new();
    for run in reading::uncounted_runs(&engine, &statuses)? {
        let told = format!("#{} {}", run.repeat, run.why);
        uncounted.entry(run.cell).or_default().push(told);
    }
    let plan = &session.plan;
    let imports = Imports::of(&session.cache);
    let mut rows = Vec::new();
    for (at, cell) in plan.cells.with_ids().filter(|(_, c)| c.selected) {
        let mut row = json!({ "cell": cell.id, "repeats": cell.repeats, "supported": true });
        if let Support::Unsupported(why) = &cell.support {
            row["supported"] = json!(false);
            row["reason"] = json!(why);
        }
        match measured(&session, &statuses, at)? {
            Some(summary) => row["contradicted"] = json!(contradicted(&summary)),
            None => tell_imports(&mut row, &session, &imports)?,
        }
        if let Some(why) = uncounted.get(&at) {
            row["not_counted"] = json!(why);
        }
        rows.push(row);
    }
    for id in &imported {
        let is_of_matrix = plan.cells.iter().any(|cell| cell.id == *id);
        let is_listed = rows.iter().any(|row| row["cell"] == **id);
        if is_listed || (is_of_matrix && !args.last.failed) {
            continue;
        }
        let mut row = json!({ "cell": id });
        if !is_of_matrix {
            row["matrix"] = json!(false);
        }
        tell_imports(&mut row, &session, &imports)?;
        rows.push(row);
    }
    let value = json!({ "cells": rows });
    answer(globals, "list", &value, || rows.iter().map(line).collect())?;
    Ok(exit::OK)
}

/// The imported cells with a run that failed or contradicts its cell, where nothing was measured here.
fn failed_imports(session: &Session, imported: &[String]) -> Result<Vec<String>> {
    let (_, statuses) = session.look()?;
    let imports = Imports::of(&session.cache);
    let mut failed = Vec::new();
    for id in imported {
        let mut cells = session.plan.cells.with_ids();
        let own = cells.find(|(_, cell)| cell.id == *id);
        if let Some((at, _)) = own
            && measured(session, &statuses, at)?.is_some()
        {
            continue;
        }
        let mut row = json!({ "cell": id });
        tell_imports(&mut row, session, &imports)?;
        let contradicted = row["contradicted"].as_array();
        if row["failed"].as_u64() > Some(0) || contradicted.is_some_and(|all| !all.is_empty()) {
            failed.push(id.clone());
        }
    }
    Ok(failed)
}

/// The project with the cells that pass the filters selected, and the imported cells that do, also those
/// whose imports were all set aside.
fn open(globals: &Globals, selection: &MatrixSelection) -> Result<(Session, Vec<String>)> {
    let MatrixSelection {
        common, measured, ..
    } = selection;
    let wanted = project::selection(&selection.cells, &project::environment())?;
    let mut session = Session::open_or_imports(globals, common, measured)?;
    let is_bare = session.plan.is_bare();
    let imports = Imports::of(&session.cache);
    let mut cells: Vec<Cell> = session.plan.matrix.cells.iter().cloned().collect();
    cells.extend(imports.kept_cells().map(Cell::of_id));
    // A shard, and the variables of the older suites, part the matrix alone.
    let named = Selection {
        shard: None,
        frameworks: Vec::new(),
        strategies: Vec::new(),
        ..wanted.clone()
    };
    let mut passes = match named.select(&cells) {
        _ if cells.is_empty() => Vec::new(),
        Ok(passes) => passes,
        // A plan of these cells would say which line adds them.
        Err(error) if is_bare => return Err(error),
        Err(error) => {
            let planned = Session::open(project::matrix_request(globals, selection)?);
            return Err(planned.err().unwrap_or(error));
        }
    };
    let of_imports = passes.split_off(session.plan.cells.len());
    if named != wanted {
        passes = match wanted.select(&session.plan.matrix.cells) {
            Ok(passes) => passes,
            Err(_) if of_imports.contains(&true) => vec![false; passes.len()],
            Err(error) => return Err(error),
        };
    }
    let imported = imports.kept_cells().zip(of_imports);
    let imported = imported.filter(|(_, passes)| *passes);
    let imported = imported.map(|(cell, _)| cell.to_owned()).collect();
    let cells = session.plan.cells.iter_mut();
    cells
        .zip(passes)
        .for_each(|(cell, passes)| cell.selected = passes);
    Ok((session, imported))
}

/// The summary of a cell that was measured here.
fn measured(session: &Session, statuses: &Statuses, cell: CellId) -> Result<Option<Summary>> {
    if session.plan.prepared(cell).is_none() {
        return Ok(None);
    }
    let status = statuses.get(session.dag.node(TaskKind::Aggregate, cell, 0));
    let output = status
        .outputs()
        .first()
        .filter(|_| status.state == State::Fresh);
    output
        .map(|output| derived::read_summary(&session.cache, output))
        .transpose()
}

/// Fields in which any repeat contradicts its job.
fn contradicted(summary: &Summary) -> BTreeSet<&str> {
    let fields = summary
        .repeats
        .iter()
        .filter_map(|repeat| match &repeat.status {
            RepeatStatus::Contradicted { fields } => Some(fields),
            _ => None,
        });
    fields.flatten().map(String::as_str).collect()
}

fn tell_imports(row: &mut Value, session: &Session, imports: &Imports) -> Result<()> {
    let cell = row["cell"].as_str().unwrap_or_default().to_owned();
    let told = |(number, why): (u32, &SetAside)| json!({ "repeat": number, "reason": why.reason });
    let set_aside: Vec<Value> = imports.set_aside_of(&cell).map(told).collect();
    if !set_aside.is_empty() {
        row["set_aside"] = set_aside.into();
    }
    if !imports.has(&cell) {
        return Ok(());
    }
    let claims = import::claim_for(&session.plan, &cell);
    let runs = import::runs(&session.cache, imports, &cell, &claims, leave_out)?;
    let summary = import::summary(&runs, &claims.statistics);
    row["imported"] = json!(runs.iter().map(|r| r.recorded.told()).collect::<Vec<_>>());
    row["contradicted"] = json!(contradicted(&summary));
    row["failed"] = json!(UncountedRepeats::of(&summary.repeats).failed);
    Ok(())
}

/// `CELL  (unsupported: why)  (imported from a.log)  (not counted: #1 the log contradicts …)`
fn line(row: &Value) -> String {
    let words = |name: &str, of: fn(&Value) -> Option<&str>, between: &str| -> Option<String> {
        let all: Vec<&str> = row[name].as_array()?.iter().filter_map(of).collect();
        (!all.is_empty()).then(|| all.join(between))
    };
    let list = |name| words(name, Value::as_str, ", ");
    let mut told: Vec<String> = Vec::new();
    let reason = row["reason"].as_str();
    told.extend(reason.map(|why| format!("unsupported: {why}")));
    let elsewhere = match row["matrix"] == false {
        true => ", not in the matrix",
        false => "",
    };
    told.extend(list("imported").map(|files| format!("imported from {files}{elsewhere}")));
    if let Some(why) = words("set_aside", |why| why["reason"].as_str(), "; ") {
        let imports = row["set_aside"].as_array().map_or(0, Vec::len);
        told.push(format!("{} set aside: {why}", counted(imports, "import")));
    }
    if row["failed"].as_u64() > Some(0) {
        told.push("failed".to_owned());
    }
    let not_counted = list("not_counted").map(|why| format!("not counted: {why}"));
    let contradicted = || Some(format!("contradicted: {}", list("contradicted")?));
    told.extend(not_counted.or_else(contradicted));
    let told: String = told.iter().map(|told| format!("  ({told})")).collect();
    format!("{}{told}\n", row["cell"].as_str().unwrap_or_default())
}
