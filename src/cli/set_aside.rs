//! `cache set-aside` and `cache restore`: a run counts or does not because somebody says so.

use super::{
    args::Globals,
    flags::{Common, Measured},
    output::leave_out,
    session::Session,
    show::attempts::{self, Line, time},
};
use crate::{
    cache::SetAside,
    error::{Error, Result, exit},
    files,
    import::{self, ImportedRun, Imports, KeptRun},
    plan::Asked,
    results::Contract,
};

pub fn set_aside(globals: &Globals, common: &Common, name: &str, reason: &str) -> Result<i32> {
    let reason = reason.trim();
    if reason.is_empty() {
        return Err(Error::refused(
            "--reason is empty, and a run is set aside for a reason only",
            "say what was wrong with the run: it is shown beside the figures",
        ));
    }
    let why = SetAside {
        reason: reason.to_owned(),
        at: files::unix_now(),
    };
    let session = Session::open_or_imports(globals, common, &Measured::default())?;
    let Line {
        attempt, import, ..
    } = meant(&session, name, false)?;
    session.cache.set_aside(&attempt, Some(&why))?;
    let plan = &session.plan;
    let name = match &import {
        Some(import) => {
            let name = import.name();
            eprintln!("set aside the import {name}; no comparison counts it");
            name
        }
        None => {
            let run = attempt.task.strip_prefix("train ").unwrap_or(&attempt.task);
            eprintln!(
                "set aside {} ({run}); the next build that asks for it measures it anew",
                attempt.id
            );
            attempt.id
        }
    };
    let restore = plan.command("cache restore", &[&name]);
    eprintln!("`{restore}` lets it count again");
    Ok(exit::OK)
}

pub fn restore(globals: &Globals, common: &Common, name: &str) -> Result<i32> {
    let session = Session::open_or_imports(globals, common, &Measured::default())?;
    let line = meant(&session, name, true)?;
    if let Some(import) = &line.import {
        refuse_beside_other_work(&session, import)?;
    }
    if line.attempt.set_aside.is_none() {
        let list = session.plan.command("show", &["CELL", "--attempts"]);
        return Err(Error::failed_with(
            format!("{} was not set aside", line.name()),
            format!("`{list}` says what counts and why"),
        ));
    }
    session.cache.set_aside(&line.attempt, None)?;
    eprintln!("{} counts again as it did before", line.name());
    Ok(exit::OK)
}

/// The run or import that a person names to be set aside, or to be restored: by its id, by the beginning
/// of it, or by its cell, where only one of the cell's runs may be meant.
fn meant(session: &Session, name: &str, is_aside: bool) -> Result<Line> {
    let Session { plan, cache, .. } = session;
    let mut lines = attempts::lines_of_any(session, name)?;
    if lines.is_empty() && !name.contains('/') {
        return Ok(Line::of_id(attempts::find(cache, &plan.asked, name)?));
    }
    let help = format!(
        "`{}` lists its runs",
        plan.command("show", &[name, "--attempts"])
    );
    let already = match &lines[..] {
        [one] => match &one.attempt.set_aside {
            Some(SetAside { reason, at }) => {
                let on = time(*at);
                format!("{} was set aside already, on {on}: {reason}", one.name())
            }
            None => format!("{} was not set aside", one.name()),
        },
        _ if is_aside => format!("no run of `{name}` was set aside"),
        _ => format!("no run of `{name}` counts"),
    };
    let is_measured = lines.iter().any(|line| line.import.is_none());
    // An import may be set aside whatever it says.
    lines.retain(|line| match (is_aside, &line.attempt.set_aside) {
        (true, aside) => aside.is_some(),
        (false, aside) => line.counts || (line.import.is_some() && aside.is_none()),
    });
    if lines.iter().any(|line| line.import.is_none()) {
        lines.retain(|line| line.import.is_none());
    }
    match &lines[..] {
        [_] => Ok(lines.remove(0)),
        [] if is_measured => Err(Error::nothing(already, help)),
        [] => Err(Error::failed_with(already, help)),
        several => {
            let runs: Vec<String> = several
                .iter()
                .map(|line| format!("#{} is {}", line.repeat, line.name()))
                .collect();
            Err(Error::refused(
                format!("{} runs of `{name}` may be meant", several.len()),
                format!("name one by CELL#REPEAT or its id: {}", runs.join(", ")),
            ))
        }
    }
}

/// An import does not come back where its cell holds an import of another workload by now.
fn refuse_beside_other_work(session: &Session, import: &KeptRun) -> Result<()> {
    let Session { plan, cache, .. } = session;
    let (cell, recorded) = (&import.cell, import.recorded.clone());
    let claims = import::claim_for(plan, cell);
    let own = ImportedRun::read(cache, import.number, recorded, &claims)?;
    let others = import::runs(cache, &Imports::of(cache), cell, &claims, leave_out)?;
    refuse_other_workload(
        &plan.asked,
        cell,
        &own.result.contract,
        others.iter().map(|run| &run.result.contract),
        "take back what the cell holds first",
    )
}

/// An error if an import of the cell that counts did other work: the two would be averaged as
/// repeats of one. `instead`: what else to do.
pub fn refuse_other_workload<'a>(
    asked: &Asked,
    cell: &str,
    own: &Contract,
    mut others: impl Iterator<Item = &'a Contract>,
    instead: &str,
) -> Result<()> {
    let Some(difference) = others.find_map(|other| import::other_workload(own, other)) else {
        return Ok(());
    };
    Err(Error::failed_with(
        format!("`{cell}` holds an import of another workload: {difference}"),
        format!(
            "they are not repeats of each other; {instead}: `{}`",
            asked.command("cache set-aside", &[cell, "--reason", "TEXT"])
        ),
    ))
}
