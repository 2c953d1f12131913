//! `report`: what a build publishes, or its page alone, from what the cache has.

use std::path::Path;

use serde_json::json;

use super::{
    args::ReportArgs,
    compare::check_across,
    flags::Insist,
    output::{print, print_json},
    project,
};
use crate::{
    cache::Cache,
    error::{Error, Result, exit},
    execute::{
        derived::{self, PAGE},
        publish,
    },
    files::{Durability, write_atomically},
    graph::Dag,
    import::Imports,
    plan::Plan,
};

pub fn run(at: Option<&Path>, args: &ReportArgs) -> Result<i32> {
    check_across(&args.across)?;
    let plan = Plan::load(&project::request(at, &args.common, None, &args.measured)?)?;
    let cache = Cache::open(&project::cache_dir(&plan))?;
    if let Some(baseline) = &args.baseline
        && Imports::of(&cache).digests(baseline).is_empty()
    {
        plan.find(baseline)?;
    }
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let mut settings = derived::Settings::of(&plan).compare;
    settings.settings.across.clone_from(&args.across);
    settings.settings.baseline.clone_from(&args.baseline);
    let comparison = derived::compare_cells(derived::cell_seeds(&engine, &statuses), &settings, &cache)?;
    let report = derived::report_of(&engine, &statuses, &comparison)?;
    let page = match &args.output {
        None => {
            publish::publish(&report.output_dir, &report.matrix, &cache, &report.outputs)?;
            report.output_dir.join(PAGE)
        }
        Some(output) => {
            let path = if output.is_dir() { output.join(PAGE) } else { output.clone() };
            let stored = report.outputs.iter().find(|o| o.name == PAGE);
            let bytes = stored.map(|o| cache.get(&o.digest)).transpose()?.flatten();
            let bytes = bytes.ok_or_else(|| Error::Cache("the page is gone from the cache".into()))?;
            write_atomically(&path, &bytes, Durability::Plain)?;
            path
        }
    };
    if args.json {
        print_json(&json!({
            "report": page,
            "comparable": comparison.comparable,
            "cells": comparison.rows.len(),
            "without_figures": comparison.absent.len(),
        }))?;
    } else {
        print(&format!("{}\n", page.display()))?;
    }
    Ok(exit::OK)
}
