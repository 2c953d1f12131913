//! `report`: what a build publishes, or its page alone, of a matrix or of two named cells, from what the cache has.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    args::ReportArgs,
    compare::{Made, compared},
    output::{print, print_json},
    targets::{refuse_files, refuse_folder},
};
use crate::{
    error::{Error, Problem, Result},
    execute::{
        derived::{self, Report},
        publish,
    },
    files::{Durability, write_atomically},
    matrix,
    report::PAGE,
};

pub fn run(at: Option<&Path>, args: &ReportArgs) -> Result<i32> {
    compared(at, &args.compared, |of| {
        let place = Place::of(args.output.as_deref(), of)?;
        let report = derived::report_of(of.engine, of.statuses, of.comparison, of.named)?;
        let page = place.write(of, &report)?;
        if !args.json {
            return print(&format!("{}\n", page.display()));
        }
        print_json(&json!({
            "report": page,
            "comparable": of.comparison.comparable,
            "cells": of.comparison.rows.len(),
            "without_figures": of.comparison.absent.len(),
        }))
    })
}

/// Where a report goes.
enum Place {
    /// All files of it.
    Folder(PathBuf),
    /// The page alone.
    Page(PathBuf),
}

impl Place {
    fn of(asked: Option<&Path>, of: &Made) -> Result<Self> {
        const HELP: &str = "-o DIR for all files, -o FILE.html for the page alone";
        let builds = publish::output_dir(of.engine.plan);
        let is_same = |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
        let Some(path) = asked else {
            // Without a matrix there are no builds that publish there.
            return if of.named.is_empty() || of.engine.plan.is_bare() {
                Ok(Self::Folder(builds))
            } else {
                let problem = Problem::new("a report that is not of a whole matrix needs -o");
                Err(Error::invalid(problem.help(HELP)))
            };
        };
        if !path.is_dir() && path.extension().is_some_and(|ending| ending == "html") {
            refuse_files(of.engine.plan, &[("-o", Some(path))], &[])?;
            return Ok(Self::Page(path.to_owned()));
        }
        refuse_folder(of.engine.plan, "-o", path)?;
        let own = Some(&of.engine.plan.matrix.name).filter(|_| of.named.is_empty());
        let matrices = matrix::names(&of.engine.plan.root).unwrap_or_default();
        let of_another = publish::published_in(path).into_iter().find(|m| Some(m) != own && matrices.contains(m));
        if let Some(other) = of_another.filter(|_| !is_same(path, &builds)) {
            let problem = Problem::new(format!("{} holds what was published of the matrix `{other}`", path.display()));
            return Err(Error::invalid(problem.help("nothing was written; name another folder with -o")));
        }
        if !of.named.is_empty() && is_same(path, &builds) {
            let problem = Problem::new(format!("{} holds what builds publish of a whole matrix", path.display()));
            return Err(Error::invalid(problem.help(HELP)));
        }
        Ok(Self::Folder(path.to_owned()))
    }

    /// Writes the report and says where its page is.
    fn write(self, of: &Made, report: &Report) -> Result<PathBuf> {
        let cache = of.engine.cache;
        match self {
            Self::Folder(folder) => {
                let published = report.publish(&folder, cache)?;
                published.notes.iter().for_each(|note| eprintln!("note: {note}"));
                if published.is_written {
                    return Ok(folder.join(PAGE));
                }
                let message = format!(
                    "no cell of `{}` has figures, so nothing was published; {} stays as it was",
                    of.engine.plan.matrix.name,
                    folder.display()
                );
                Err(Error::Failed { message, help: Some("`tprimat plan` says why; `tprimat build` measures".into()) })
            }
            Self::Page(path) => {
                let stored = report.outputs.iter().find(|o| o.name == PAGE);
                let bytes = stored.map(|o| cache.get(&o.digest)).transpose()?.flatten();
                let bytes = bytes.ok_or_else(|| Error::Cache("the page is gone from the cache".into()))?;
                write_atomically(&path, &bytes, Durability::Plain)?;
                Ok(path)
            }
        }
    }
}
