//! `history [MATRIX] [CELL…]`: every measurement of a cell that the cache has, and what was changed
//! before it.

use std::collections::BTreeSet;

use super::{
    args::{Globals, HistoryArgs},
    flags::matrix_and_cells,
    gate::read_baseline,
    output::{leave_out, page, print, print_document},
    session::Project,
    targets::refuse_in_project,
};
use crate::{
    error::{Error, Result, exit},
    execute::{
        history::histories,
        reading::{cells_with_attempts, trainings},
    },
    figures::History,
    files::{Durability, write_atomically},
    graph::{Engine, Statuses},
    import::Imports,
    matrix::{self, Cell, Selection, glob},
    plan::{Asked, Plan},
    report,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &HistoryArgs) -> Result<i32> {
    let host = args.host.as_deref().map(|text| glob("--host", text));
    let host = host.transpose()?;
    let asked = Asked::default();
    let baseline = args
        .baseline
        .as_deref()
        .map(|path| read_baseline(path, &asked));
    let baseline = baseline.transpose()?;
    let mut project = Project::open_or_imports(globals, &args.sets)?;
    let matrices = matrix::files(project.root());
    let is_matrix = |word: &str| word.ends_with(".toml") || matrices.iter().any(|of| of == word);
    let (matrix, names) = matrix_and_cells(&args.names, &args.matrix, is_matrix, is_matrix)?;
    project.request.matrix = matrix;
    // A history needs no matrix: where there is none, or a wrong one, what was recorded has to do.
    let session = match project.session() {
        Err(error) if project.request.matrix.is_some() => return Err(error),
        Err(_) => project.without_matrix()?,
        Ok(session) => session,
    };
    let (engine, statuses) = session.look()?;
    let plan = engine.plan;
    let mut known = measured(&engine, &statuses);
    if session.request.matrix.is_some() {
        known.retain(|id| plan.cells.iter().any(|cell| cell.id == *id));
    }
    let wanted = wanted(plan, known, names)?;
    let (mut cells, undated) = histories(
        &engine,
        &statuses,
        &wanted,
        host.as_ref(),
        baseline.as_ref(),
        leave_out,
    )?;
    let is_shown = |at: f64| args.since.is_none_or(|since| at >= since);
    for cell in &mut cells {
        cell.measurements.retain(|m| is_shown(m.started_at));
    }
    cells.retain(|cell| !cell.measurements.is_empty());
    if undated > 0 {
        eprintln!(
            "note: {} left out: the files do not say when the runs were made. `{}` compares them",
            counted(undated, "imported run"),
            plan.asked.of_project(&["compare", "--imported"])
        );
    }
    if cells.is_empty() {
        return Err(nothing(
            "no measurement has a date and a host that fit",
            plan,
            &[],
        ));
    }
    if let Some(path) = &args.output {
        refuse_in_project(&plan.root, session.cache.root(), "-o", path)?;
        let picture = report::history_picture(&cells)?;
        write_atomically(path, picture.bytes_for(path), Durability::Plain)?;
        eprintln!("the speed over time is drawn in {}", path.display());
    }
    if globals.json {
        print_document(&History::of(cells))?;
    } else {
        print(&report::history_text(&cells, &page()))?;
    }
    Ok(exit::OK)
}

/// Cells that were measured here or imported, and cells of the plan that other cells' runs serve.
fn measured(engine: &Engine, statuses: &Statuses) -> BTreeSet<String> {
    let mut found = cells_with_attempts(engine.cache);
    found.extend(Imports::of(engine.cache).cells().map(str::to_owned));
    for (at, cell) in engine.plan.cells.with_ids() {
        if trainings(engine, statuses, at).any(|(_, train)| train.attempt().is_some()) {
            found.insert(cell.id.clone());
        }
    }
    found
}

/// Those of the known cells that are named; all where none is.
fn wanted(plan: &Plan, known: BTreeSet<String>, names: &[String]) -> Result<BTreeSet<String>> {
    if known.is_empty() {
        return Err(nothing("nothing was measured yet", plan, &[]));
    }
    if names.is_empty() {
        return Ok(known);
    }
    // A cell of the cache need not be in any matrix.
    let cells = known.iter().map(|id| {
        let cell = Cell::of_id(id);
        let vendor = plan.config.vendor(&cell.platform).unwrap_or(cell.vendor);
        Cell { vendor, ..cell }
    });
    let cells: Vec<Cell> = cells.collect();
    let mut wanted = BTreeSet::new();
    for name in names {
        if known.contains(name) {
            wanted.insert(name.clone());
        } else if let Ok(selected) = Selection::of_cell(name).select(&cells) {
            let meant = known.iter().zip(selected).filter(|(_, is)| *is);
            wanted.extend(meant.map(|(id, _)| id.clone()));
        } else {
            let id = plan.cells[plan.find(name)?].id.as_str();
            return Err(nothing(
                &format!("nothing of `{id}` was measured yet"),
                plan,
                &[id],
            ));
        }
    }
    Ok(wanted)
}

fn nothing(message: &str, plan: &Plan, cells: &[&str]) -> Error {
    Error::nothing(message, plan.told_measuring(cells))
}
