//! `check`: everything that can be known to be wrong without running anything.

use std::path::Path;

use serde_json::json;

use super::{
    args::CheckArgs,
    blocked, fit,
    flags::Insist,
    output::{print, print_json},
    project,
};
use crate::{
    cache::Cache,
    error::{Error, Problem, Result, exit},
    execute::Look,
    graph::{Dag, label},
    plain::counted,
    plan::{self, Plan, Support},
    recipe::context,
};

pub fn run(at: Option<&Path>, args: &CheckArgs) -> Result<i32> {
    let request = project::request(at, &args.common, None, &args.measured)?;
    let plan = Plan::load(&request)?;
    let mut problems = Vec::new();
    let (mut launches, mut unsupported) = (0usize, 0usize);
    let mut reasons: Vec<(&str, &str, usize)> = Vec::new();
    for (cell, planned) in plan.cells.iter().enumerate() {
        let prepared = match &planned.support {
            Support::Ready(prepared) => prepared,
            Support::Unsupported(why) => {
                unsupported += 1;
                match reasons.iter_mut().find(|(known, ..)| known == why) {
                    Some((.., more)) => *more += 1,
                    None => reasons.push((why, &planned.id, 0)),
                }
                continue;
            }
        };
        let context = context(prepared.job());
        for (name, _) in &plan.recipe(cell).templates {
            match plan.recipes.templates.render(name, &context) {
                Ok(file) => {
                    launches += 1;
                    problems.extend(absolute_path(&planned.id, &file.name, &file.bytes));
                }
                Err(Error::Invalid(more)) => problems.extend(more),
                Err(other) => return Err(other),
            }
        }
    }
    problems.dedup();
    if !problems.is_empty() {
        return Err(Error::Invalid(problems));
    }
    for note in plan.told_implied().iter().chain(&plan.notes) {
        eprintln!("note: {note}");
    }
    let descriptive = plan.config.descriptive();
    if !descriptive.is_empty() {
        eprintln!("note: these keys of config.yaml describe and change nothing: {}", descriptive.join(", "));
    }
    for note in project::not_handed_over(&plan).into_iter().chain(project::not_identical(&plan)) {
        eprintln!("note: {note}");
    }
    for (why, cell, more) in reasons {
        let others = if more == 0 { String::new() } else { format!(" and {more} more") };
        eprintln!("note: unsupported, `{cell}`{others}: {why}");
    }
    let dag = Dag::new(&plan)?;
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let twins = engine.same_launch(&engine.evaluate_all()?);
    let mut same_launch = Vec::new();
    for (cell, first) in twins.iter().enumerate().filter_map(|(cell, first)| Some((cell, (*first)?))) {
        let (cell, first) = (&plan.cells[cell].id, &plan.cells[first].id);
        eprintln!("note: `{cell}` launches exactly what `{first}` does: one measurement serves both");
        same_launch.push(json!({ "cell": cell, "same_launch_as": first }));
    }
    let cells = 0..plan.cells.len();
    let fits: Vec<_> = cells.filter_map(|cell| plan::fit::fit(&plan, cell)).collect();
    let [will_not_fit, may_not_fit] = fit::warn(&fits);
    let host = super::build::train_host(&plan, &request, cache.root())?;
    let here: Vec<usize> =
        (0..plan.cells.len()).filter(|cell| plan.prepared(*cell).is_some_and(|p| p.here().is_ok())).collect();
    let blocked = blocked::find(&plan, &here, &host, Look::AtFiles)?;
    for line in blocked::told(&plan, &blocked) {
        eprintln!("note: {line}");
    }
    let tasks = dag.graph.node_count();
    debug_assert!(dag.order.iter().all(|n| !label(&plan, &dag.task(*n)).is_empty()));
    if args.json {
        print_json(
            &json!({ "cells": plan.cells.len(), "unsupported": unsupported, "launch_files": launches, "tasks": tasks, "same_launch": same_launch, "will_not_fit": will_not_fit, "may_not_fit": may_not_fit, "blocked": blocked.len() }),
        )?;
    } else {
        let not_now = match blocked.len() {
            0 => String::new(),
            1 => "; 1 cell cannot be measured here now".to_owned(),
            n => format!("; {n} cells cannot be measured here now"),
        };
        print(&format!(
            "{}: {} ({unsupported} unsupported), {} rendered, {}; no problem found{not_now}\n",
            plan.matrix.name,
            counted(plan.cells.len(), "cell"),
            counted(launches, "launch file"),
            counted(tasks, "task")
        ))?;
    }
    Ok(exit::OK)
}

/// Rendered bytes must be the same on every host, so they may name no absolute path but an interpreter's.
fn absolute_path(cell: &str, name: &str, bytes: &[u8]) -> Option<Problem> {
    const ALLOWED: [&str; 6] = ["/usr/bin/env", "/bin/sh", "/bin/bash", "/dev/null", "/dev/shm", "/proc/"];
    let text = String::from_utf8_lossy(bytes);
    for (number, line) in text.lines().enumerate() {
        let words = line.split(|c: char| c.is_whitespace() || "'\"=:,;()[]<>|&`".contains(c));
        let path = words
            .map(|w| w.trim_matches(['{', '}'])) // what follows ${NAME} is below that folder
            .filter(|w| w.starts_with('/') && w.len() > 1 && w[1..].starts_with(|c: char| c.is_alphanumeric()))
            .find(|w| !ALLOWED.iter().any(|a| w.starts_with(a)));
        if let Some(path) = path.filter(|_| !line.trim_start().starts_with("//")) {
            return Some(
                Problem::new(format!("{cell}: {name}, line {}, names the absolute path `{path}`", number + 1))
                    .help("what differs between hosts reaches a script through variables set at launch ($TPRIMAT_RUN_DIR, $TPRIMAT_PYTHON, …)"),
            );
        }
    }
    None
}
