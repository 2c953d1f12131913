//! `report`: what a build publishes, or its page alone, of a matrix or of two named cells, from
//! what the cache has.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    args::{Globals, ReportArgs},
    compare::{ComparisonView, compared, why_not_compared},
    output::{print, print_json, say},
    targets::{refuse_files, refuse_folder},
};
use crate::{
    error::{Error, Result, exit},
    execute::derived::{self, Report},
    files::{Durability, write_atomically},
    matrix,
    plan::same_file,
    publish,
    report::PAGE,
};

pub fn run(globals: &Globals, args: &ReportArgs) -> Result<i32> {
    let mut why = String::new();
    let code = compared(globals, &args.compared, |of| {
        if !of.comparison.comparable || !of.named.is_empty() || of.comparison.rows.is_empty() {
            why = why_not_compared(of.comparison);
        }
        let place = Place::of(args.output.as_deref(), of)?;
        let report = derived::report_of(of.engine, of.statuses, of.comparison, of.named)?;
        let page = place.write(of, &report)?;
        if !globals.json {
            return print(&format!("{}\n", page.display()));
        }
        print_json(
            "report",
            &json!({
                "report": page,
                "comparable": of.comparison.comparable,
                "cells": of.comparison.rows.len(),
                "without_figures": of.comparison.absent.len(),
            }),
        )
    })?;
    if code != exit::OK {
        say(&format!("error: not compared: {why}"));
    }
    Ok(code)
}

/// Where a report goes.
enum Place {
    /// All files of it.
    Folder(PathBuf),
    /// The page alone.
    Page(PathBuf),
}

impl Place {
    fn of(asked: Option<&Path>, of: &ComparisonView) -> Result<Self> {
        const HELP: &str = "-o DIR for all files, -o FILE.html for the page alone";
        let builds = publish::output_dir(of.engine.plan);
        let imports = publish::output_root(of.engine.plan).join("imports");
        let path = match asked {
            Some(path) => path,
            // Without a matrix there are no builds that publish there.
            None if of.named.is_empty() || of.engine.plan.is_bare() => {
                return Ok(Self::Folder(builds));
            }
            None if of.is_of_imports => &imports,
            None => {
                return Err(Error::refused("a report of some cells needs -o", HELP));
            }
        };
        if !path.is_dir() && path.extension().is_some_and(|ending| ending == "html") {
            refuse_files(of.engine.plan, &[("-o", Some(path))], &[])?;
            return Ok(Self::Page(path.to_owned()));
        }
        refuse_folder(of.engine.plan, "-o", path)?;
        let own = Some(&of.engine.plan.matrix.name).filter(|_| of.named.is_empty());
        let matrices = matrix::names(&of.engine.plan.root).unwrap_or_default();
        let of_another = publish::published_in(path)
            .into_iter()
            .find(|m| Some(m) != own && matrices.contains(m));
        if let Some(other) = of_another.filter(|_| !same_file(path, &builds)) {
            return Err(Error::refused(
                format!(
                    "{} holds what was published of the matrix `{other}`",
                    path.display()
                ),
                "nothing was written; name another folder with -o",
            ));
        }
        if !of.named.is_empty() && same_file(path, &builds) {
            return Err(Error::refused(
                format!(
                    "{} holds what builds publish of a whole matrix",
                    path.display()
                ),
                HELP,
            ));
        }
        Ok(Self::Folder(path.to_owned()))
    }

    /// Writes the report and says where its page is.
    fn write(self, of: &ComparisonView, report: &Report) -> Result<PathBuf> {
        let cache = of.engine.cache;
        match self {
            Self::Folder(folder) => {
                let published = report.publish(&folder, cache)?;
                published
                    .notes
                    .iter()
                    .for_each(|note| eprintln!("note: {note}"));
                if published.is_written {
                    return Ok(folder.join(PAGE));
                }
                let message = format!(
                    "no cell of `{}` has figures, so nothing was published; {} {}",
                    of.engine.plan.matrix.name,
                    folder.display(),
                    if published.is_marked {
                        "keeps the figures of an earlier build, marked as outdated"
                    } else {
                        "stays as it was"
                    }
                );
                Err(Error::failed_with(
                    message,
                    format!(
                        "`{}` says why; `{}` measures",
                        of.engine.plan.command("plan", &[]),
                        of.engine.plan.command("build", &[])
                    ),
                ))
            }
            Self::Page(path) => {
                let stored = report.outputs.iter().find(|o| o.name == PAGE);
                let page =
                    stored.ok_or_else(|| Error::Internal("the report has no page".to_owned()))?;
                let bytes = cache.get(&page.digest)?;
                let bytes = bytes.ok_or_else(|| cache.gone(&page.digest, &page.name))?;
                write_atomically(&path, &bytes, Durability::Plain)?;
                Ok(path)
            }
        }
    }
}
