//! What a build settles, refuses and says before anything runs.

use std::collections::BTreeSet;

use crate::{
    cache::TaskKind,
    cli::{
        args::BuildArgs,
        blocked::{self, Blocked},
        flags::Force,
        output::say,
        session::Session,
    },
    error::{Error, Result},
    execute::{self, Event, EventSink, ProbeDepth, Runs, TrainHost},
    graph::{Engine, State, Statuses, TaskId},
    job::Vendor,
    matrix::CellId,
    plan::{Plan, PlanRequest, Prepared},
};

/// Names the cells that are not trained here, each problem once.
pub(super) fn say_left_out(plan: &Plan, blocked: &Blocked, events: &EventSink) {
    for (problem, cells) in blocked::by_problem(blocked) {
        let (cells, why) = (blocked::names(plan, &cells), blocked::sentence(problem));
        let message = format!("left out: {cells}: {why}");
        events.report(&Event::Note { message });
    }
}

/// What trainers will not get, and checkouts that no commit names.
pub(super) fn say_how(plan: &Plan, trains: &[CellId], request: &PlanRequest, events: &EventSink) {
    for message in unversioned(plan, trains) {
        events.report(&Event::Note { message });
    }
    // What every trainer gets by its recipe or config.yaml is not missing.
    let has = |cell: &CellId, name: &str| {
        let recipe = &plan.recipe(*cell).file.launch;
        let declared = plan.prepared(*cell).map(|prepared| &prepared.resolved.env);
        declared.is_some_and(|env| env.contains_key(name))
            || recipe.pass_env.iter().any(|n| n == name)
    };
    let lacking = |name: &str| trains.iter().find(|cell| !has(cell, name));
    let mut dropped = execute::dropped_env(&request.env);
    dropped.retain(|name| lacking(name).is_some());
    if let Some(cell) = dropped.first().and_then(|name| lacking(name)) {
        let (first, framework) = (dropped[0], &plan.matrix.cells[*cell].framework);
        let message = format!(
            "not passed to trainers: {}; `frameworks.{framework}.env: {{ {first}: \"${{{first}}}\" }}` in config.yaml passes one",
            dropped.join(", ")
        );
        events.report(&Event::Note { message });
    }
}

/// Cells that would have to train are shown as missing instead.
pub(super) fn leave_out_what_must_train(session: &mut Session, args: &BuildArgs) -> Result<()> {
    let engine = session.engine(&args.overrides);
    let statuses = engine.evaluate_all()?;
    let tasks = engine
        .dag
        .order
        .iter()
        .filter(|node| statuses.get(**node).state == State::Stale);
    let trains = tasks
        .map(|node| engine.dag.task(*node))
        .filter(|task| task.kind == TaskKind::Train);
    let must_train: Vec<CellId> = trains.map(|task| task.cell).collect();
    for cell in must_train {
        let cell = &mut session.plan.cells[cell];
        cell.left_out |= cell.selected;
        cell.selected = false;
    }
    Ok(())
}

/// Runs on a CPU have no GPU-hours, so a limit of them limits nothing.
pub(super) fn say_without_gpu_hours(plan: &Plan, args: &BuildArgs) {
    let selected = plan.cells.with_ids().filter(|(_, cell)| cell.selected);
    let mut jobs = selected.filter_map(|(cell, _)| plan.prepared(cell).map(Prepared::job));
    if args.max_gpu_hours.is_some() && jobs.all(|job| job.vendor == Vendor::Cpu) {
        say(
            "note: --max-gpu-hours limits nothing here: the selected cells run on CPUs, which have no GPU-hours",
        );
    }
}

/// `--max-gpu-hours`: an estimate beyond it is an error, before anything is run or recorded.
pub(super) fn refuse_beyond(
    engine: &Engine,
    statuses: &Statuses,
    args: &BuildArgs,
    which: Runs,
) -> Result<()> {
    let Some(limit) = args.max_gpu_hours else {
        return Ok(());
    };
    match execute::Prices::beyond(
        &[&execute::Prices::of(engine, statuses, which)],
        limit,
        args.overrides.has(Force::Unpriced),
    ) {
        Some(why) => {
            let help = format!(
                "nothing was run; `{}` shows the estimate by cell",
                engine.plan.command("plan", &[])
            );
            Err(Error::refused(why, help))
        }
        None => Ok(()),
    }
}

/// Opens the next generation of every selected measurement; not before it is known that they can be
/// made again.
pub(super) fn open_generations(engine: &Engine, host: &TrainHost) -> Result<()> {
    let statuses = engine.evaluate_all()?;
    let is_measured = |n: &&TaskId| {
        engine.dag.task(**n).kind == TaskKind::Train
            && engine.is_wanted(**n)
            && matches!(statuses.get(**n).state, State::Fresh | State::Failed)
    };
    let measured: Vec<TaskId> = engine
        .dag
        .order
        .iter()
        .filter(is_measured)
        .copied()
        .collect();
    let cells: Vec<CellId> = measured.iter().map(|n| engine.dag.task(*n).cell).collect();
    engine.cache.ensure_writable()?;
    for &cell in &cells {
        let prepared = engine.plan.prepared(cell);
        if let Some(Err(why)) = prepared.map(Prepared::here) {
            let message = format!(
                "`{}` cannot be measured anew here: {why}",
                engine.plan.cells[cell].id
            );
            return Err(Error::failed_with(
                message,
                "nothing was run; --only leaves it out",
            ));
        }
    }
    blocked::refuse(&blocked::find(
        engine.plan,
        &cells,
        host,
        ProbeDepth::ByAsking,
    )?)?;
    let keys: BTreeSet<_> = measured
        .iter()
        .filter_map(|n| statuses.get(*n).key)
        .collect();
    for key in keys {
        engine.cache.open_generation(&key)?;
    }
    Ok(())
}

/// Checkouts whose content nobody can name by a commit.
fn unversioned(plan: &Plan, cells: &[CellId]) -> BTreeSet<String> {
    let facts = cells
        .iter()
        .filter_map(|cell| plan.prepared(*cell)?.facts.known.as_ref().ok());
    let names = facts.flat_map(|known| known.keys());
    let variables =
        names.filter_map(|name| name.strip_prefix("checkout.")?.strip_suffix(".content"));
    let note = |variable| {
        format!(
            "the checkout in ${variable} is not a git repository: results are filed under the digest of one file of it"
        )
    };
    variables.map(note).collect()
}
