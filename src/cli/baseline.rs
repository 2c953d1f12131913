//! `gate --write`: what the cells measured, as a file for gates to come.

use std::path::Path;

use serde_json::json;

use super::{
    args::Globals,
    flags::MatrixSelection,
    output::{json_text, print_document, print_json},
    project,
    session::Session,
    targets,
};
use crate::{
    error::{Error, Result, exit},
    figures::Baseline,
    files::{Durability, write_atomically},
    words::plain::counted,
};

/// Writes the file, or to stdout where it is `-`.
pub fn write(globals: &Globals, selection: &MatrixSelection, path: &Path) -> Result<i32> {
    let session = Session::open(project::matrix_request(globals, selection)?)?;
    let file = Some(path).filter(|path| *path != Path::new("-"));
    targets::refuse_files(&session.plan, &[("--write", file)], &[])?;
    let cells = session.gate_inputs()?;
    let baseline = Baseline::of(&session.plan.matrix.name, &cells);
    for cell in cells.iter().filter(|c| c.selected) {
        if let Some(why) = cell.left_out() {
            eprintln!("note: `{}` is left out: {why}", cell.input.cell);
        }
    }
    for cell in &baseline.cells {
        if let Some(factor) = cell.timer_factor {
            eprintln!(
                "warning: `{}` may be {factor:.1}× too high: by the clock, its step times leave out time that passes after most \
                 steps. A gate of later measurements against it is inconclusive: let the trainer wait for the device before it reads its timer, \
                 build again, and write the baseline then",
                cell.cell
            );
        }
    }
    if baseline.cells.is_empty() {
        let plan = &session.plan;
        let selected = cells.iter().filter(|c| c.selected);
        let names: Vec<&str> = selected.map(|c| c.input.cell.as_str()).collect();
        let help = Some(format!(
            "{}; `{}` says more of each cell",
            plan.told_measuring(&names),
            plan.command("plan", &[])
        ));
        return Err(Error::Failed {
            message: "no cell has figures, so there is no baseline to write".to_owned(),
            help,
        });
    }
    match file {
        None => print_document(&baseline)?,
        Some(path) => {
            write_atomically(path, json_text(&baseline)?.as_bytes(), Durability::Plain)?;
            if globals.json {
                print_json(
                    "baseline_written",
                    &json!({ "baseline": path, "cells": baseline.cells.len() }),
                )?;
            } else {
                let count = baseline.cells.len();
                let cells = counted(count, "cell");
                let runs = baseline.cells.iter();
                let runs = runs.map(|cell| cell.tokens_per_second_per_gpu.values.len());
                eprintln!(
                    "{}: {} of {cells}",
                    path.display(),
                    counted(runs.sum(), "run")
                );
            }
        }
    }
    Ok(exit::OK)
}
