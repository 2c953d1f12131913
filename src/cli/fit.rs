//! `fit`: the memory that each cell needs on its busiest GPU, against what the GPU has.

use std::fmt::Write as _;

use serde_json::json;

use super::{
    args::{FitArgs, Globals},
    flags::{Cells, Common, Measured, is_matrix},
    output::answer,
    project,
};
use crate::{
    error::{Result, exit},
    plan::{
        Plan,
        fit::{self, Memory, MemoryFit, gib},
    },
};

/// Up to this many cells, each is shown with every part of its sum.
const IN_FULL: usize = 4;

pub fn run(globals: &Globals, args: &FitArgs) -> Result<i32> {
    let (common, cells) = wanted(args);
    let measured = Measured {
        drift: args.drift.clone(),
        ..Measured::default()
    };
    let plan = Plan::load(&project::request(
        globals,
        &common,
        Some(&cells),
        &measured,
    )?)?;
    let cells = plan.cells.ids().filter(|cell| plan.cells[*cell].selected);
    let fits: Vec<MemoryFit> = cells.filter_map(|cell| fit::fit(&plan, cell)).collect();
    let value = json!({ "matrix": plan.matrix.name, "cells": fits });
    answer(globals, "fit", &value, || text(&plan, &fits))?;
    Ok(exit::OK)
}

/// Names the cells that will not fit, or may not; how many of each.
pub fn warn(plan: &Plan, fits: &[MemoryFit]) -> [usize; 2] {
    let warned: Vec<_> = fits
        .iter()
        .filter_map(|fit| Some((fit, fit.warning()?)))
        .collect();
    for (fit, why) in &warned {
        eprintln!(
            "note: `{}` {why}; `{}` shows the sum",
            fit.cell,
            plan.command("fit", &[&fit.cell])
        );
    }
    let withheld = warned
        .iter()
        .filter(|(fit, _)| fit.withheld().is_some())
        .count();
    [withheld, warned.len() - withheld]
}

/// A cell is a selection in the default matrix.
fn wanted(args: &FitArgs) -> (Common, Cells) {
    let mut cells = args.cells.clone();
    let matrix = match &args.target {
        Some(target) if !is_matrix(target) => {
            cells.only.push(target.clone());
            &args.matrix
        }
        Some(_) => &args.target,
        None => &args.matrix,
    };
    (Common::of(matrix.clone(), args.sets.clone()), cells)
}

fn text(plan: &Plan, fits: &[MemoryFit]) -> String {
    let width = fits.iter().map(|f| f.cell.len()).max().unwrap_or(0).min(90);
    let mut text = String::new();
    for fit in fits {
        let _ = writeln!(text, "{:<width$}  {}", fit.cell, verdict(fit));
        if fits.len() <= IN_FULL {
            text += &parts(fit);
        }
    }
    if fits.len() > IN_FULL {
        let fit = plan.command("fit", &["CELL"]);
        let _ = writeln!(
            text,
            "GiB are predicted, of the GPU that needs most; `{fit}` shows the sum"
        );
    }
    text
}

fn verdict(fit: &MemoryFit) -> String {
    match (fit.verdict, fit.device_bytes, &fit.capacity, fit.ratio) {
        (Some(verdict), Some(needed), Some(capacity), Some(ratio)) => {
            format!(
                "{:<12}  {}{} of {} ({:.0} %)",
                verdict.words(),
                at_most(fit),
                gib(needed),
                gib(capacity.bytes),
                100.0 * ratio
            )
        }
        (_, Some(needed), ..) => {
            format!(
                "{:<12}  {}{}; {}",
                "not known",
                at_most(fit),
                gib(needed),
                fit.unknown.as_deref().unwrap_or("")
            )
        }
        _ => format!(
            "{:<12}  {}",
            "not known",
            fit.unknown.as_deref().unwrap_or("")
        ),
    }
}

/// Stands before a figure that is an upper bound.
fn at_most(fit: &MemoryFit) -> &'static str {
    match fit.memory.as_ref().is_some_and(Memory::is_upper_bound) {
        true => "at most ",
        false => "",
    }
}

fn parts(fit: &MemoryFit) -> String {
    let (Some(memory), Some(device)) = (&fit.memory, fit.device_bytes) else {
        return String::new();
    };
    let mut text = String::new();
    let mut line = |name: &str, bytes: u64| {
        let _ = writeln!(text, "  {:>10}  {name}", gib(bytes));
    };
    for part in &memory.components {
        line(&part.name, part.bytes);
    }
    line(
        &format!("= peak_allocated, met in: {}", memory.phase),
        memory.peak_allocated_bytes,
    );
    line(
        "context and fragmentation, assumed",
        device.saturating_sub(memory.peak_allocated_bytes),
    );
    if let Some(capacity) = &fit.capacity {
        line(&format!("capacity, by {}", capacity.source), capacity.bytes);
    }
    for assumption in &memory.assumptions {
        let _ = writeln!(text, "  - {assumption}");
    }
    if !fit.changes.is_empty() {
        let _ = writeln!(
            text,
            "  To need less, each change alone and the cheapest first:"
        );
    }
    for change in &fit.changes {
        let share = fit
            .capacity
            .as_ref()
            .map(|c| 100.0 * change.device_bytes as f64 / c.bytes as f64);
        let share = share.map_or_else(String::new, |share| format!(" ({share:.0} %)"));
        let _ = writeln!(
            text,
            "  {:>10}{share}  {}; {}",
            gib(change.device_bytes),
            change.setting,
            change.cost
        );
    }
    text
}
