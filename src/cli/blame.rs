//! `blame`: which of the differences between two cells changed the speed. Builds the cells in between.

mod differences;
mod rounds;

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    args::{BlameArgs, Globals},
    build::{self, profile},
    flags::{Common, Measured, Overrides, Repeats},
    output::{answer, page},
    project,
    session::Session,
    train_host::train_host,
};
use crate::{
    cache::TaskKind,
    error::{Error, Result, exit},
    execute::{self, Prices, Runs},
    figures::blame::{Answer, Arm, Blame, Limits, least_rounds, questions_at_most, search},
    graph::{Statuses, work_differences},
    matrix::{Cell, CellId},
    plan::{Plan, Prepared, Support},
    report,
};
use differences::{Difference, differences};
use rounds::Rounds;

/// A question that this many rounds do not answer is given up.
const ROUNDS: usize = 100;

pub fn run(globals: &Globals, args: &BlameArgs) -> Result<i32> {
    let common = Common::of(args.matrix.clone(), args.sets.clone());
    let measured = Measured {
        repeats: Repeats::default(),
        drift: args.drift.clone(),
        executor: args.executor.clone(),
    };
    let request = project::request(globals, &common, None, &measured)?;
    let session = Session::open(request.clone())?;
    let plan = &session.plan;
    if profile::asked(plan).is_some() {
        return Err(Error::refused(
            "experiment.profiling measures nothing, and blame measures",
            "give --set experiment.profiling=false",
        ));
    }
    let ids = [plan.find(&args.cells[0])?, plan.find(&args.cells[1])?];
    let prepared = [measurable(plan, ids[0])?, measurable(plan, ids[1])?];
    let cells = ids.map(|id| &plan.matrix.cells[id]);
    let names = ids.map(|id| plan.cells[id].id.as_str());
    let found = differences(plan, cells);
    if found.is_empty() {
        return Err(Error::refused(
            format!("`{}` and `{}` differ in nothing", names[0], names[1]),
            "name two cells that differ in a setting",
        ));
    }
    let told = found.iter().map(|one| one.told.clone()).collect();
    let mut blame = Blame::of(names[0], names[1], args.decide, told);
    let jobs = prepared.map(Prepared::job_text);
    let other = work_differences(&jobs[0], &jobs[1]);
    if !other.is_empty() {
        blame.answer = Answer::OtherWork;
        blame.other_work = other.into_iter().map(str::to_owned).collect();
        return told_of(globals, &blame);
    }
    let (engine, statuses) = session.look()?;
    let prices = prices(&session, &ids);
    if args.dry_run {
        let value = json!({ "differences": blame.differences, "prices": prices.cells, "runs": least_runs(found.len()) });
        answer(globals, "blame_plan", &value, || {
            plan_text(&blame, &found, &prices)
        })?;
        return Ok(exit::OK);
    }
    project::say_notes(plan);
    let _in_use = session.cache.use_it();
    let events = build::progress();
    if session.cache.ensure_writable().is_ok() {
        execute::sweep_up(&session.cache, &train_host(&session)?, &events);
    }
    let mut rounds = Rounds {
        request,
        cells,
        differences: &found,
        events,
        interrupts: execute::install_interrupt_handler()?,
        max_runs: args.max_runs,
        max_gpu_hours: args.max_gpu_hours.unwrap_or(f64::INFINITY),
        job: jobs[0].clone(),
        cooldown_seconds: prepared[0].resolved.cooldown_seconds,
        starts: starts(&session, &statuses, ids, found.len()),
        rounds: BTreeMap::new(),
        contract: None,
        runs: 0,
        gpu_hours: 0.0,
    };
    drop(engine);
    let limits = Limits {
        margin: args.decide,
        rounds: ROUNDS,
    };
    let result = search(found.len(), limits, |arms| rounds.measure(arms))?;
    blame.take(result);
    (blame.runs, blame.gpu_hours) = (rounds.runs, rounds.gpu_hours);
    told_of(globals, &blame)
}

fn told_of(globals: &Globals, blame: &Blame) -> Result<i32> {
    answer(globals, "blame", blame, || {
        report::blame_text(blame, &page())
    })?;
    Ok(match blame.answer {
        Answer::Undecided => exit::INCONCLUSIVE,
        _ => exit::OK,
    })
}

/// A cell that this host can measure.
fn measurable(plan: &Plan, cell: CellId) -> Result<&Prepared> {
    let id = &plan.cells[cell].id;
    let prepared = match &plan.cells[cell].support {
        Support::Ready(prepared) => prepared,
        Support::Unsupported(why) => {
            return Err(Error::failed(format!("`{id}` is unsupported: {why}")));
        }
    };
    prepared.here().map_err(|why| {
        Error::failed_with(
            format!("`{id}` cannot be measured on this host: {why}"),
            "blame measures both cells in turns, so one host must run both",
        )
    })?;
    Ok(prepared)
}

/// When the runs that the cache has of the two cells were started.
fn starts(
    session: &Session,
    statuses: &Statuses,
    ids: [CellId; 2],
    n: usize,
) -> BTreeMap<Arm, Vec<f64>> {
    let of = |cell: CellId| {
        let repeats = 1..=session.plan.cells[cell].repeats;
        let nodes = repeats.filter_map(|at| session.dag.find(TaskKind::Train, cell, at));
        let attempts = nodes.filter_map(|node| statuses.get(node).attempt());
        attempts.map(|attempt| attempt.started_at).collect()
    };
    BTreeMap::from([(Arm::new(), of(ids[0])), ((0..n).collect(), of(ids[1]))])
}

/// What a run of either cell takes.
fn prices(session: &Session, ids: &[CellId; 2]) -> Prices {
    let mut plan = session.request.clone();
    let once = |id: &CellId| Cell {
        repeats: 1,
        ..session.plan.matrix.cells[*id].clone()
    };
    plan.arms = ids.iter().map(once).collect();
    let priced = || -> Result<Prices> {
        let session = Session::open(plan)?;
        let engine = session.planner(&Overrides::default());
        let statuses = engine.evaluate_all()?;
        Ok(Prices::of(&engine, &statuses, Runs::Anew))
    };
    priced().unwrap_or_default()
}

/// Runs for one cause among `n` differences, where the differences are clear: each question has two
/// or three arms.
fn least_runs(n: usize) -> usize {
    questions_at_most(n, 1) * least_rounds(n) * 5 / 2
}

fn plan_text(blame: &Blame, found: &[Difference], prices: &Prices) -> String {
    let mut text = report::blame_differences(blame);
    let runs = least_runs(found.len());
    text += &format!(
        "\nOne clear cause takes about {runs} runs: at most {} questions of at least {} rounds. Noise and more causes take more.\n",
        questions_at_most(found.len(), 1),
        least_rounds(found.len()),
    );
    let of_run = |price: &execute::CellPrice| Some(price.seconds? / price.runs as f64);
    let longest = prices.cells.iter().filter_map(of_run).reduce(f64::max);
    if let Some(seconds) = longest {
        let hours = prices.gpu_hours().unwrap_or_default() / prices.runs() as f64 * runs as f64;
        let gpu_hours = if hours > 0.0 {
            format!(", {} GPU-hours", execute::few_digits(hours))
        } else {
            String::new()
        };
        text += &format!(
            "A run takes {seconds:.0} s, so that is about {:.0} min{gpu_hours}.\n",
            seconds * runs as f64 / 60.0
        );
    } else {
        text += "How long a run takes is not known yet.\n";
    }
    text
}
