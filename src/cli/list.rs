//! `list`: the cells of the matrix, what is known of each, and the imported ones.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Value, json};

use super::{
    args::{Globals, ListArgs},
    flags::{Cells, MatrixSelection},
    output::{leave_out, print, print_json},
    project,
    session::Session,
};
use crate::{
    cache::{Cache, SetAside, TaskKind},
    error::{Error, Result, exit},
    execute::{derived, reading},
    figures::{RepeatStatus, Summary, UncountedRepeats},
    graph::{Dag, State, Statuses},
    import::{self, Imports},
    matrix::{Cell, CellId, Selection},
    plan::{Plan, PlanRequest, Support},
};

pub fn run(globals: &Globals, args: &ListArgs) -> Result<i32> {
    let selection = &args.selection;
    let (mut session, mut imported) = open(globals, selection)?;
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
    let Session {
        plan, cache, dag, ..
    } = &session;
    let imports = Imports::of(cache);
    let mut rows = Vec::new();
    for (at, cell) in plan.cells.with_ids().filter(|(_, c)| c.selected) {
        let supported = matches!(cell.support, Support::Ready(_));
        let mut row = json!({ "cell": cell.id, "repeats": cell.repeats, "supported": supported });
        if let Support::Unsupported(why) = &cell.support {
            row["reason"] = json!(why);
        }
        let summary = if supported {
            measured(dag, &statuses, cache, at)?
        } else {
            None
        };
        match summary {
            Some(summary) => row["contradicted"] = json!(contradicted(&summary)),
            None => tell_imports(&mut row, plan, cache, &imports)?,
        }
        if let Some(why) = uncounted.get(&at) {
            row["not_counted"] = json!(why);
        }
        rows.push(row);
    }
    let is_listed = |id: &String| rows.iter().any(|row| row["cell"] == **id);
    let others: Vec<&String> = imported.iter().filter(|id| !is_listed(id)).collect();
    let is_of_matrix = |id: &str| plan.cells.iter().any(|cell| cell.id == id);
    for cell in others
        .into_iter()
        .filter(|id| args.last.failed || !is_of_matrix(id))
    {
        let mut row = json!({ "cell": cell });
        if !is_of_matrix(cell) {
            row["matrix"] = json!(false);
        }
        tell_imports(&mut row, plan, cache, &imports)?;
        rows.push(row);
    }
    if globals.json {
        print_json("list", &json!({ "cells": rows }))?;
    } else {
        print(&rows.iter().map(line).collect::<String>())?;
    }
    Ok(exit::OK)
}

/// The imported cells with a run that failed or contradicts its cell, where nothing was measured here.
fn failed_imports(session: &Session, imported: &[String]) -> Result<Vec<String>> {
    let Session {
        plan, cache, dag, ..
    } = session;
    let (_, statuses) = session.look()?;
    let imports = Imports::of(cache);
    let mut failed = Vec::new();
    for id in imported {
        let own = plan.cells.with_ids().find(|(_, cell)| cell.id == *id);
        if let Some((at, cell)) = own
            && matches!(cell.support, Support::Ready(_))
            && measured(dag, &statuses, cache, at)?.is_some()
        {
            continue;
        }
        let mut row = json!({ "cell": id });
        tell_imports(&mut row, plan, cache, &imports)?;
        let has_failed = row["failed"].as_u64().unwrap_or(0) > 0;
        let is_contradicted = row["contradicted"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        if has_failed || is_contradicted {
            failed.push(id.clone());
        }
    }
    Ok(failed)
}

/// The project, and the imported cells that pass the filters, also those whose imports were all set
/// aside.
fn open(globals: &Globals, selection: &MatrixSelection) -> Result<(Session, Vec<String>)> {
    let MatrixSelection {
        common, measured, ..
    } = selection;
    if project::without_project(globals, common)?.is_some() {
        let session = Session::open_or_imports(globals, common, measured)?;
        let (_, imports) = selected(&session, &selection.cells)?;
        return Ok((session, imports));
    }
    let request = project::matrix_request(globals, selection)?;
    let whole = PlanRequest {
        selection: Selection::default(),
        ..request.clone()
    };
    match Session::open(request) {
        // A filter may be meant for imports alone.
        Err(error @ Error::NothingSelected { .. }) => {
            let mut session = Session::open(whole)?;
            let (of_matrix, imports) = selected(&session, &selection.cells).map_err(|_| error)?;
            let cells = session.plan.cells.iter_mut().zip(of_matrix);
            cells.for_each(|(cell, is_selected)| cell.selected = is_selected);
            Ok((session, imports))
        }
        opened => {
            let session = opened?;
            let imports = selected(&session, &selection.cells).map_or_else(|_| Vec::new(), |s| s.1);
            Ok((session, imports))
        }
    }
}

/// Which cells of the matrix pass the filters, and the names of the imported ones that do.
fn selected(session: &Session, filters: &Cells) -> Result<(Vec<bool>, Vec<String>)> {
    let imports = Imports::of(&session.cache);
    let of_matrix = &session.plan.matrix.cells;
    let mut cells: Vec<Cell> = of_matrix.iter().cloned().collect();
    cells.extend(imports.kept_cells().map(Cell::of_id));
    let part = Selection {
        only: filters.only.clone(),
        skip: filters.skip.clone(),
        where_: filters.where_.clone(),
        ..Selection::default()
    };
    if cells.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut passes = part.select(&cells)?;
    let of_imports = passes.split_off(session.plan.cells.len());
    let imported = imports.kept_cells().zip(of_imports);
    let imported = imported
        .filter(|(_, passes)| *passes)
        .map(|(cell, _)| cell.to_owned());
    Ok((passes, imported.collect()))
}

fn measured(
    dag: &Dag,
    statuses: &Statuses,
    cache: &Cache,
    cell: CellId,
) -> Result<Option<Summary>> {
    let status = statuses.get(dag.node(TaskKind::Aggregate, cell, 0));
    let is_fresh = status.state == State::Fresh;
    let output = status.outputs().first().filter(|_| is_fresh);
    output
        .map(|output| derived::read_summary(cache, output))
        .transpose()
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
    let told = |(number, why): (u32, &SetAside)| json!({ "repeat": number, "reason": why.reason });
    let set_aside: Vec<Value> = imports.set_aside_of(&cell).map(told).collect();
    if !set_aside.is_empty() {
        row["set_aside"] = set_aside.into();
    }
    if !imports.has(&cell) {
        return Ok(());
    }
    let claims = import::claim_for(plan, &cell);
    let runs = import::runs(cache, imports, &cell, &claims, leave_out)?;
    let summary = import::summary(&runs, &claims.statistics);
    row["imported"] = json!(runs.iter().map(|r| r.recorded.from()).collect::<Vec<_>>());
    row["contradicted"] = json!(contradicted(&summary));
    row["failed"] = json!(UncountedRepeats::of(&summary.repeats).failed);
    Ok(())
}

/// `CELL  (unsupported: why)  (imported from a.log)  (not counted: #1 the log contradicts …)`
fn line(row: &Value) -> String {
    let words = |name: &str| -> Option<String> {
        let all: Vec<&str> = row[name]
            .as_array()?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let mut line = row["cell"].as_str().unwrap_or_default().to_owned();
    if let Some(why) = row["reason"].as_str() {
        _ = write!(line, "  (unsupported: {why})");
    }
    if let Some(files) = words("imported") {
        let where_ = if row["matrix"] == false {
            ", not in the matrix"
        } else {
            ""
        };
        _ = write!(line, "  (imported from {files}{where_})");
    }
    if let Some(all) = row["set_aside"].as_array() {
        let reasons: Vec<&str> = all
            .iter()
            .filter_map(|why| why["reason"].as_str())
            .collect();
        let imports = crate::words::plain::counted(all.len(), "import");
        _ = write!(line, "  ({imports} set aside: {})", reasons.join("; "));
    }
    if row["failed"].as_u64().unwrap_or(0) > 0 {
        line += "  (failed)";
    }
    if let Some(why) = words("not_counted") {
        _ = write!(line, "  (not counted: {why})");
    } else if let Some(fields) = words("contradicted") {
        _ = write!(line, "  (contradicted: {fields})");
    }
    line + "\n"
}
