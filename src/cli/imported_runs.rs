//! Imported runs, as `attempts` lists them and sets them aside.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{attempts::time, output::leave_out, project::split_repeat};
use crate::{
    cache::{Cache, SetAside},
    error::{Error, Problem, Result, exit},
    import::{self, ImportedRun, Imports, KeptRun, Kind, Source},
    plan::{Asked, Plan},
    results::Contract,
};

/// An imported run and its cell.
pub struct ImportedLine {
    cell: String,
    run: KeptRun,
}

/// The imports that `CELL`, `CELL#2` or an import's id names; none where nothing was imported so.
pub fn of(cache: &Cache, asked: &str) -> Result<Vec<ImportedLine>> {
    let imports = Imports::of(cache);
    let (name, only) = split_repeat(asked)?;
    let mut lines = Vec::new();
    let Some(cell) = imports.named_kept(name) else {
        return Ok(lines);
    };
    for run in imports.kept(cell) {
        if only.is_none_or(|only| only == run.number) {
            lines.push(ImportedLine {
                cell: cell.to_owned(),
                run,
            });
        }
    }
    Ok(lines)
}

/// The one import that is meant: one that counts, or one that does not.
pub fn one(cache: &Cache, asked: &str, counts: bool) -> Result<Option<ImportedLine>> {
    let mut lines = of(cache, asked)?;
    lines.retain(|line| line.run.set_aside.is_none() == counts);
    if lines.len() > 1 {
        let named: Vec<String> = lines
            .iter()
            .map(|line| format!("{} is {}", line.name(), line.run.recorded.from()))
            .collect();
        let problem = Problem::new(format!("{} imports of `{asked}` may be meant", lines.len()));
        return Err(Error::invalid(
            problem.help(format!("name one by CELL#NUMBER: {}", named.join(", "))),
        ));
    }
    Ok(lines.pop())
}

/// Why none of the imports that a name means is set aside, or counts again; none where nothing was
/// imported so.
pub fn is_so_already(
    cache: &Cache,
    name: &str,
    set_aside: bool,
    asked: &Asked,
) -> Result<Option<Error>> {
    let lines = of(cache, name)?;
    let message = match &lines[..] {
        [] => return Ok(None),
        [one] => match &one.run.set_aside {
            Some(SetAside { reason, at }) => format!(
                "the import {} was set aside already, on {}: {reason}",
                one.name(),
                time(*at)
            ),
            None => format!("the import {} was not set aside", one.name()),
        },
        all if set_aside => format!(
            "all {} imports of `{name}` were set aside already",
            all.len()
        ),
        _ => format!("none of the imports of `{name}` was set aside"),
    };
    Ok(Some(Error::Failed {
        message,
        help: Some(format!(
            "`{}` lists them",
            asked.command("attempts", &[&lines[0].cell])
        )),
    }))
}

impl ImportedLine {
    fn name(&self) -> String {
        format!("{}#{}", self.cell, self.run.number)
    }

    fn verdict(&self, asked: &Asked) -> String {
        match &self.run.set_aside {
            Some(SetAside { reason, at }) => format!("set aside on {}: {reason}", time(*at)),
            // Its log may contradict it.
            None => format!(
                "an import; `{}` says whether it counts",
                asked.command("show", &[&self.cell])
            ),
        }
    }

    /// The log files, each with its run's name and its own; a result has none.
    pub fn logs(&self) -> Vec<(String, &Source)> {
        let recorded = &self.run.recorded;
        let named = |source: &'_ Source| format!("{} (imported from {})", self.name(), source.name);
        match recorded.kind {
            Kind::Log => recorded
                .sources
                .iter()
                .map(|one| (named(one), one))
                .collect(),
            Kind::Result | Kind::Events => Vec::new(),
        }
    }

    pub fn json(&self) -> Value {
        let KeptRun {
            number,
            recorded,
            set_aside,
            ..
        } = &self.run;
        json!({
            "id": recorded.id(), "cell": self.cell, "repeat": number, "file": recorded.from(),
            "imported_at": recorded.imported_at, "set_aside": set_aside,
        })
    }

    /// It stays in the cache, and counts in no comparison.
    pub fn set_aside(&self, cache: &Cache, why: &SetAside, asked: &Asked) -> Result<i32> {
        Imports::set_aside(cache, &self.run, Some(why))?;
        let name = self.name();
        eprintln!(
            "set aside the import {name} ({}); no comparison counts it",
            self.run.recorded.from()
        );
        eprintln!(
            "`{}` lets it count again",
            asked.command("attempts restore", &[&name])
        );
        Ok(exit::OK)
    }

    /// Lets it count again, unless the cell holds a run of other work by now.
    pub fn restore(&self, plan: &Plan, cache: &Cache) -> Result<i32> {
        let claims = import::claim_for(plan, &self.cell);
        let KeptRun {
            number, recorded, ..
        } = &self.run;
        let own = ImportedRun::read(cache, *number, recorded.clone(), &claims)?;
        let others = import::runs(cache, &Imports::of(cache), &self.cell, &claims, leave_out)?;
        refuse_other_workload(
            &plan.asked,
            &self.cell,
            &own.result.contract,
            others.iter().map(|run| &run.result.contract),
            "take back what the cell holds first",
        )?;
        Imports::set_aside(cache, &self.run, None)?;
        eprintln!("the import {} counts again", self.name());
        Ok(exit::OK)
    }
}

/// An error if an import of the cell that counts did other work: the two would be averaged as
/// repeats of one. `instead`: what else to do.
pub fn refuse_other_workload<'a>(
    asked: &Asked,
    cell: &str,
    own: &Contract,
    others: impl Iterator<Item = &'a Contract>,
    instead: &str,
) -> Result<()> {
    let mut differences = others.filter_map(|other| import::other_workload(own, other));
    let Some(difference) = differences.next() else {
        return Ok(());
    };
    Err(Error::Failed {
        message: format!("`{cell}` holds an import of another workload: {difference}"),
        help: Some(format!(
            "they are not repeats of each other; {instead}: `{}`",
            asked.command("attempts set-aside", &[cell, "--reason", "TEXT"])
        )),
    })
}

/// Results and TensorBoard events are all that there is of a cell.
pub fn no_log(lines: &[ImportedLine], asked: &Asked) -> Error {
    let files: Vec<String> = lines.iter().map(|line| line.run.recorded.from()).collect();
    let cell = lines.first().map_or("CELL", |line| line.cell.as_str());
    let (message, shown) = match (lines, &files[..]) {
        ([line], [file]) => (
            format!(
                "`{}` was imported from {file}, which is not a log",
                line.name()
            ),
            line.name(),
        ),
        _ => (
            format!(
                "`{cell}` was imported from {}, and none of them is a log",
                files.join(", ")
            ),
            cell.to_owned(),
        ),
    };
    Error::Failed {
        message,
        help: Some(format!(
            "`{}` shows what they say",
            asked.command("show", &[&shown])
        )),
    }
}

/// A line an import: its name, its file, when it was imported, and whether it was set aside.
pub fn text(lines: &[ImportedLine], asked: &Asked) -> String {
    let mut text = String::new();
    for line in lines {
        let KeptRun { recorded, .. } = &line.run;
        let _ = writeln!(
            text,
            "{}  {}  imported on {}  {}",
            line.name(),
            recorded.from(),
            time(recorded.imported_at),
            line.verdict(asked)
        );
    }
    text
}
