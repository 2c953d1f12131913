//! `baseline`: what the cells measured, as a file for gates to come.

use std::path::Path;

use serde_json::json;

use super::{
    args::BaselineArgs,
    output::{json_text, print_json},
    project, targets,
};
use crate::{
    analyze::Baseline,
    error::{Error, Result, exit},
    files::{Durability, write_atomically},
    plan::Plan,
};

pub fn run(at: Option<&Path>, args: &BaselineArgs) -> Result<i32> {
    let plan = Plan::load(&project::wanted(at, &args.wanted)?)?;
    targets::refuse_files(&plan, &[("-o", args.output.as_deref())], &[])?;
    let cells = project::gate_inputs(&plan)?;
    let baseline = Baseline::of(&plan.matrix.name, &cells);
    for cell in cells.iter().filter(|c| c.selected) {
        if let Some(why) = cell.left_out() {
            eprintln!("note: `{}` is left out: {why}", cell.input.cell);
        }
    }
    if baseline.cells.is_empty() {
        let help = Some("`tprimat build` measures them; `tprimat plan` says what is stale".to_owned());
        return Err(Error::Failed {
            message: "no cell has figures, so there is no baseline to write".to_owned(),
            help,
        });
    }
    match &args.output {
        None => print_json(&baseline)?,
        Some(path) => {
            write_atomically(path, json_text(&baseline)?.as_bytes(), Durability::Plain)?;
            if args.wanted.json {
                print_json(&json!({ "baseline": path, "cells": baseline.cells.len() }))?;
            } else {
                let count = baseline.cells.len();
                let cells = crate::plain::counted(count, "cell");
                eprintln!("{}: {cells}", path.display());
            }
        }
    }
    Ok(exit::OK)
}
