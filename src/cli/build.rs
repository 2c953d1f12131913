//! `build`: runs what is stale, compares, publishes.

mod before;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    args::{BuildArgs, Globals},
    blocked::{self, Coverage},
    compare, detached, memo,
    output::{page, print, print_json},
    plan::rows,
    profile, project, remote,
    session::Session,
    train_host::train_host,
    verbosity::{Verbosity, verbosity},
};
use crate::{
    cache::{TaskKind, Undeclared},
    digest::Digest,
    error::{Error, Problem, Result, exit},
    execute::{
        self, Amount, Bars, BuildOptions, BuildSummary, CellCounts, Event, EventSink, Interrupts,
        JsonLines, PlainLines, ProbeDepth, Reporter, Reporters, Runs, Share, TrainHost,
    },
    figures::{AbsentCell, AbsentState, Comparison, RepeatStatus},
    files::Standing,
    graph::{Engine, State, Statuses, TaskId},
    plan::{Plan, PlanRequest, Support},
    publish,
};
use before::{leave_out_what_must_train, open_generations, refuse_beyond, say_how, say_left_out};

/// Plain progress: at most one line a run in this time.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

pub fn run(globals: &Globals, args: &BuildArgs) -> Result<i32> {
    if args.detach {
        return detached::start(globals, args);
    }
    if !args.together.is_empty() {
        return run_here(
            globals,
            &BuildArgs {
                remeasure: true,
                ..args.clone()
            },
        );
    }
    run_here(globals, args)
}

fn run_here(globals: &Globals, args: &BuildArgs) -> Result<i32> {
    detached::note_start();
    let counts = Arc::new(Mutex::new(detached::Counts::default()));
    let result = build(globals, args, &counts);
    let code = result.as_ref().map_or_else(Error::exit_code, |code| *code);
    if let Some(command) = &args.notify {
        let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        detached::notify(command, &counts, code);
    }
    detached::note_end(code);
    result
}

/// Counts tasks for whoever is told of the end.
struct Counting(Arc<Mutex<detached::Counts>>);

impl Reporter for Counting {
    fn report(&mut self, event: &Event) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(event);
    }
}

fn build(
    globals: &Globals,
    args: &BuildArgs,
    counts: &Arc<Mutex<detached::Counts>>,
) -> Result<i32> {
    let started = Instant::now();
    if globals.json && args.events.as_deref() == Some(Path::new("-")) {
        let problem = Problem::new("--json and --events - would both write to stdout");
        return Err(Error::invalid(problem.help("give --events a file")));
    }
    let mut request = project::matrix_request(globals, &args.selection)?;
    request
        .sets
        .extend(args.remote.as_deref().map(remote::setting));
    // A build of these cells alone, which measures them anew. Repeats take turns in every build.
    request.selection.together.clone_from(&args.together);
    let memo_name = memo::of_build(&request, args);
    if let Some(verdict) = remembered(&request, args, &memo_name)? {
        return say_nothing_to_do(globals.json, &verdict);
    }
    let mut session = Session::open(request)?;
    publish::refuse_shared_folder(&session.plan)?;
    project::say_notes(&session.plan);
    if args.locked {
        session.plan.facts.require_complete()?;
        // What trains nothing here does not depend on this host.
        if !args.cached_only {
            project::refuse_drift(&session.plan)?;
        }
    }
    let _in_use = session.cache.use_it();
    let mut host = train_host(&session)?;
    let mut reporters = reporters(args)?;
    reporters.0.push(Box::new(Counting(counts.clone())));
    let events = EventSink::new(reporters);
    if session.cache.ensure_writable().is_ok() {
        execute::sweep_up(&session.cache, &host, &events)?;
    }
    let sharing = remote::pull(&session, args.remote_required, &events)?;
    if args.last.failed {
        project::keep_failed(&mut session)?;
    }
    if profile::asked(&session.plan, args) {
        return profile::run(&session.plan, globals, args, &host, &events);
    }
    if args.cached_only {
        leave_out_what_must_train(&mut session, args)?;
    }
    if args.remeasure {
        let engine = session.engine(&args.overrides);
        refuse_beyond(&engine, &engine.evaluate_all()?, args, Runs::Anew)?;
        open_generations(&engine, &host)?;
    }
    let engine_of = if args.cached_only {
        Session::engine
    } else {
        Session::planner
    };
    let (mut engine, mut statuses) = evaluated(engine_of(&session, &args.overrides))?;
    let is_stale = |n: &&TaskId| statuses.get(**n).state == State::Stale && engine.is_wanted(**n);
    if engine.dag.order.iter().any(|node| is_stale(&node)) {
        engine.cache.ensure_writable()?;
    }
    refuse_beyond(&engine, &statuses, args, Runs::Stale)?;
    let mut trains = blocked::stale_trains(&engine, &statuses);
    let blocked = blocked::find(&session.plan, &trains, &host, ProbeDepth::ByAsking)?;
    trains.retain(|cell| !blocked.contains_key(cell));
    if !blocked.is_empty() {
        say_left_out(&session.plan, &blocked, &events);
        blocked::mark(&mut session.plan, &blocked, &trains);
        (engine, statuses) = evaluated(engine_of(&session, &args.overrides))?;
    }
    let Session { request, plan, .. } = &session;
    if !trains.is_empty() {
        say_how(plan, &trains, request, &events);
    }
    // Where all that was to train lacks something, nothing of this host is pinned.
    if !trains.is_empty() || blocked.is_empty() {
        pin(plan, &events)?;
    }
    host.sharing = sharing.clone().map(|sharing| sharing as Arc<dyn Share>);
    let interrupts = execute::install_interrupt_handler()?;
    let summary = run_stale(&engine, &mut statuses, args, &host, interrupts, &events);
    if let (Err(_), Some(sharing)) = (&summary, &sharing) {
        sharing.say_unshared(&events);
    }
    let summary = summary?;
    let is_shared = match &sharing {
        Some(sharing) => sharing.push(&session, interrupts, &events)?,
        None => true,
    };
    finish(
        globals,
        &Ended {
            engine: &engine,
            statuses: &statuses,
            summary,
            seconds: started.elapsed().as_secs_f64(),
            is_shared,
            remote: sharing.map_or(Value::Null, |sharing| sharing.json()),
        },
        args,
        request,
        &memo_name,
        &events,
    )
}

/// What an earlier build concluded, where nothing that it depends on has changed since.
fn remembered(
    request: &PlanRequest,
    args: &BuildArgs,
    memo_name: &Digest,
) -> Result<Option<Value>> {
    let asks_for_more = args.events.is_some()
        || args.remeasure
        // The lock is checked against the host, which no memo knows.
        || args.locked
        // Which cells these are is decided by the cache.
        || args.last.failed
        || args.profile.is_some()
        // The memo has no figures.
        || args.details;
    if asks_for_more {
        return Ok(None);
    }
    let Some(idle) = memo::nothing_to_do(request, memo_name) else {
        return Ok(None);
    };
    let remote::Looked::Nothing(remote) = remote::look(&idle, args.remote_required)? else {
        return Ok(None);
    };
    let mut verdict = idle.verdict;
    verdict["remote"] = remote;
    Ok(Some(verdict))
}

/// Adds this host's facts to tprimat.lock, where it lacks them.
fn pin(plan: &Plan, events: &EventSink) -> Result<()> {
    for platform in plan.facts.write_missing(&plan.reads)? {
        let message =
            format!("tprimat.lock: pinned this host's facts for {platform}; commit the file");
        events.report(&Event::Note { message });
    }
    Ok(())
}

/// Runs what is stale, and takes up what earlier builds left meanwhile.
fn run_stale(
    engine: &Engine,
    statuses: &mut Statuses,
    args: &BuildArgs,
    host: &TrainHost,
    interrupts: Interrupts,
    events: &EventSink,
) -> Result<BuildSummary> {
    let options = BuildOptions {
        jobs: args
            .jobs
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
            .max(1),
        fail_fast: args.fail_fast,
    };
    let summary = execute::build(engine, statuses, &options, host, interrupts, events);
    // What a run of an earlier, killed build left while we waited for its supervisor.
    if engine.cache.ensure_writable().is_ok() {
        execute::sweep_up(engine.cache, host, events)?;
    }
    match (summary, interrupts.asked()) {
        (Ok(_) | Err(Error::Interrupted(_)), Some(signal)) => Err(Error::Interrupted(signal)),
        (summary, _) => summary,
    }
}

/// All states, with those cells among the ones to be summed up whose runs the cache has.
fn evaluated(mut engine: Engine<'_>) -> Result<(Engine<'_>, Statuses)> {
    let statuses = engine.evaluate_all()?;
    engine.measured = engine.measured_elsewhere(&statuses);
    if engine.measured.is_empty() {
        return Ok((engine, statuses));
    }
    let statuses = engine.evaluate_all()?;
    Ok((engine, statuses))
}

struct Ended<'a> {
    engine: &'a Engine<'a>,
    statuses: &'a Statuses,
    summary: BuildSummary,
    seconds: f64,
    /// Nothing is left to be pushed to the remote cache.
    is_shared: bool,
    /// What was shared with it, for `--json`.
    remote: Value,
}

fn say_nothing_to_do(as_json: bool, value: &Value) -> Result<i32> {
    if as_json {
        print_json("build", value)?;
    } else {
        eprintln!(
            "{}: nothing to do, {} tasks are fresh",
            value["matrix"].as_str().unwrap_or(""),
            value["summary"]["fresh"]
        );
    }
    Ok(exit::OK)
}

fn reporters(args: &BuildArgs) -> Result<Reporters> {
    let mut all: Vec<Box<dyn Reporter>> = Vec::new();
    let amount = match verbosity() {
        Verbosity::Quiet => Amount::Failures,
        Verbosity::Normal => Amount::Measurements,
        Verbosity::Verbose => Amount::EveryTask,
    };
    if std::io::stderr().is_terminal() && amount != Amount::Failures {
        all.push(Box::new(Bars::new(amount)));
    } else {
        let lines = PlainLines::new(std::io::stderr(), PLAIN_EVERY, amount);
        all.push(Box::new(lines));
    }
    if let Some(target) = &args.events {
        all.push(Box::new(JsonLines::open(target)?));
    }
    Ok(Reporters(all))
}

fn finish(
    globals: &Globals,
    ended: &Ended,
    args: &BuildArgs,
    request: &PlanRequest,
    memo_name: &Digest,
    events: &EventSink,
) -> Result<i32> {
    let Ended {
        engine,
        statuses,
        summary,
        seconds,
        is_shared,
        remote,
    } = ended;
    let after = rows(engine, statuses);
    let count = |state| after.iter().filter(|r| r.state == state).count();
    let comparison = comparison(engine, statuses)?;
    let verdict = RepeatCounts::of(engine, comparison.as_ref());
    let (contradicted, incomplete) = (verdict.contradicted, verdict.incomplete);
    let failed = count(State::Failed);
    events.report(&Event::BuildFinished {
        ok: count(State::Fresh),
        failed,
        cells: cells(engine, statuses, comparison.as_ref()),
        runs: summary.runs,
        waiting: count(State::Waiting) + count(State::Blocked),
        unsupported: count(State::Unsupported),
        contradicted,
        suspect: verdict.suspect,
        unmeasured: verdict.unmeasured,
        seconds: *seconds,
        output: Some(publish::output_dir(engine.plan)),
    });
    let coverage = Coverage::of(engine, statuses, comparison.as_ref());
    let in_vain = verdict.suspect > 0 && coverage.has_no_results()
        || summary.disturbed > 0 && summary.counted == 0 && summary.failed == 0;
    let held = held(engine, statuses);
    let code = if failed > 0
        || verdict.is_bad()
        || in_vain
        || !held.is_empty()
        || (coverage.is_nothing() && !args.cached_only)
        || (args.remote_required && !is_shared)
    {
        exit::FAILED
    } else if args.require_complete && incomplete > 0 {
        exit::STALE
    } else {
        exit::OK
    };
    if in_vain {
        let then = if held.is_empty() {
            ", and build again"
        } else {
            ""
        };
        let message = format!(
            "nothing of this build counts: every run was disturbed; see the reasons above{then}"
        );
        events.report(&Event::Note { message });
    }
    for (doubt, cells) in &held {
        let cells: Vec<&str> = cells.iter().copied().collect();
        events.report(&Event::Note {
            message: format!("{} not counted: {doubt}", blocked::few(&cells)),
        });
    }
    if let Some(path) = changed_meanwhile(engine, statuses) {
        let message = format!(
            "{path} was changed while this build ran, which built what was planned before; build again"
        );
        events.report(&Event::Note { message });
    }
    let mut counts = serde_json::Map::new();
    for state in State::ALL {
        counts.insert(state.name().into(), count(state).into());
    }
    let value = json!({
        "matrix": engine.plan.matrix.name, "ran": summary.ran, "summary": counts,
        "failed_repeats": verdict.failed, "contradicted": contradicted, "suspect": verdict.suspect,
        "unmeasured": verdict.unmeasured, "incomplete": incomplete, "held": held.values().map(BTreeSet::len).sum::<usize>(), "blocked": coverage.blocked, "output": publish::output_dir(engine.plan),
        "remote": remote,
    });
    if globals.json {
        print_json("build", &value)?;
    } else if args.events.as_deref() != Some(Path::new("-")) {
        show(globals, args, comparison.as_ref(), &coverage)?;
        eprintln!(
            "{}",
            published(engine, statuses, request, comparison.as_ref())
        );
    }
    if code == exit::OK
        && !args.last.failed
        && count(State::Fresh) + count(State::Unsupported) == after.len()
        && incomplete == 0
        && *is_shared
    {
        // A later build that finds nothing to do says the same, but for what it ran and shared.
        let mut idle = value;
        idle["ran"] = 0.into();
        idle.as_object_mut().map(|idle| idle.remove("remote"));
        memo::store(engine, statuses, request, memo_name, &idle);
    }
    Ok(code)
}

/// Prints the figures, and which cells have none.
fn show(
    globals: &Globals,
    args: &BuildArgs,
    comparison: Option<&Comparison>,
    coverage: &Coverage,
) -> Result<()> {
    if let Some(comparison) = comparison {
        let (common, measured) = (&args.selection.common, &args.selection.measured);
        let matrix: Vec<String> = common.matrix().cloned().into_iter().collect();
        let commands = crate::report::Commands {
            details: compare::details(globals, &matrix, &common.sets, measured, &[]),
            build: compare::command("build", globals, &matrix, &common.sets, measured),
        };
        let page = page();
        print(&if args.details {
            crate::report::table(comparison, &page)
        } else {
            crate::report::glance(comparison, false, &commands, &page)
        })?;
    }
    if let Some(text) = coverage.text() {
        eprintln!("{}", text.trim_end());
    }
    Ok(())
}

/// What stands in the output folder now.
fn published(
    engine: &Engine,
    statuses: &Statuses,
    request: &PlanRequest,
    comparison: Option<&Comparison>,
) -> String {
    let folder = publish::output_dir(engine.plan);
    let output = folder
        .strip_prefix(&request.root)
        .unwrap_or(&folder)
        .display();
    let report = statuses.get(engine.dag.over_all(TaskKind::Report));
    if report.state == State::Fresh && report.outputs().is_empty() {
        let stays = if folder.join(publish::NOTICE).is_file() {
            "keeps the figures of an earlier build, marked as outdated"
        } else {
            "stays as it was"
        };
        format!("nothing was published, since no cell has figures now; {output} {stays}")
    } else if comparison.is_none_or(|comparison| comparison.rows.is_empty()) {
        format!("a page that says what is not measured: {output}")
    } else {
        format!("results, table and picture: {output}")
    }
}

/// What became of the selected cells.
fn cells(engine: &Engine, statuses: &Statuses, comparison: Option<&Comparison>) -> CellCounts {
    let absent = comparison.iter().flat_map(|comparison| &comparison.absent);
    let absent: BTreeMap<&str, AbsentState> = absent
        .map(|absent| (absent.cell.as_str(), absent.state))
        .collect();
    let mut counts = CellCounts::default();
    for id in engine.plan.cells.ids() {
        let cell = &engine.plan.cells[id];
        let state = |kind, repeat| statuses.get(engine.dag.node(kind, id, repeat)).state;
        let count = if cell.left_out {
            &mut counts.not_measured
        } else if !cell.selected {
            continue;
        } else if matches!(cell.support, Support::Unsupported(_)) {
            &mut counts.unsupported
        } else if let Some(
            AbsentState::Contradicted | AbsentState::Suspect | AbsentState::Unmeasured,
        ) = absent.get(cell.id.as_str())
        {
            &mut counts.not_counted
        } else if (1..=cell.repeats).any(|r| state(TaskKind::Train, r) == State::Failed) {
            &mut counts.failed
        } else {
            match state(TaskKind::Aggregate, 0) {
                State::Fresh if absent.get(cell.id.as_str()) == Some(&AbsentState::Failed) => {
                    &mut counts.failed
                }
                State::Fresh => &mut counts.done,
                State::Failed => &mut counts.failed,
                State::Waiting | State::Blocked => &mut counts.waiting,
                State::Stale | State::Unsupported => &mut counts.not_measured,
            }
        };
        *count += 1;
    }
    counts
}

/// The selected cells that are not measured before somebody declares a file, by what there is to
/// say.
pub fn held<'a>(engine: &Engine<'a>, statuses: &Statuses) -> BTreeMap<String, BTreeSet<&'a str>> {
    let mut held: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for node in engine
        .dag
        .order
        .iter()
        .filter(|node| engine.is_wanted(**node))
    {
        let task = engine.dag.task(*node);
        if let Some(attempt) = statuses
            .get(*node)
            .attempt()
            .filter(|a| task.kind == TaskKind::Train && a.is_held)
            && let Some(doubt) = attempt.undeclared.doubt(true)
        {
            held.entry(doubt)
                .or_default()
                .insert(&engine.plan.cells[task.cell].id);
        }
    }
    held
}

/// A file that the plan rests on and that is not as it was. What comes and goes in folders is for
/// the next plan to judge.
fn changed_meanwhile(engine: &Engine, statuses: &Statuses) -> Option<String> {
    let plan = engine.plan;
    let mut evidence = plan.reads.evidence().ok()?;
    // Files that the runs may have written themselves have a message of their own.
    for attempt in engine
        .dag
        .order
        .iter()
        .filter_map(|node| statuses.get(*node).attempt())
    {
        let Undeclared { changed, made } = &attempt.undeclared;
        changed
            .iter()
            .chain(made)
            .for_each(|name| evidence.forget(&plan.root.join(name)));
    }
    match evidence.check() {
        Standing::Changed(path) if !path.is_dir() => Some(
            path.strip_prefix(&plan.root)
                .unwrap_or(&path)
                .display()
                .to_string(),
        ),
        _ => None,
    }
}

fn comparison(engine: &Engine, statuses: &Statuses) -> Result<Option<Comparison>> {
    let status = statuses.get(engine.dag.over_all(TaskKind::Compare));
    let stored = status.outputs().first();
    stored
        .map(|stored| execute::derived::read_comparison(engine.cache, Some(stored)))
        .transpose()
}

/// What the results of the selected cells say, which no task's own state shows: a run can end well
/// and prove nothing.
#[derive(Default)]
struct RepeatCounts {
    failed: usize,
    contradicted: usize,
    /// Disturbed: such a repeat is missing, and no failure.
    suspect: usize,
    unmeasured: usize,
    /// Cells of the matrix, selected or not, without all the repeats that were asked for.
    incomplete: usize,
}

impl RepeatCounts {
    fn of(engine: &Engine, comparison: Option<&Comparison>) -> Self {
        let Some(comparison) = comparison else {
            return Self::default();
        };
        let selected: BTreeSet<&str> = engine
            .plan
            .cells
            .iter()
            .filter(|c| c.selected)
            .map(|c| c.id.as_str())
            .collect();
        let rows = comparison
            .rows
            .iter()
            .filter(|r| selected.contains(r.cell.as_str()));
        let mut verdict = Self {
            incomplete: comparison
                .rows
                .iter()
                .filter(|r| (r.n as u64) < u64::from(r.repeats_wanted))
                .count()
                + comparison
                    .absent
                    .iter()
                    .filter(|a| a.state != AbsentState::Unsupported)
                    .count(),
            ..Self::default()
        };
        for row in rows {
            verdict.failed += row.failed;
            verdict.contradicted += row.contradicted;
            verdict.suspect += row.suspect;
            verdict.unmeasured += row.unmeasured;
        }
        // A cell of which no repeat counts has no row.
        for absent in comparison
            .absent
            .iter()
            .filter(|a| selected.contains(a.cell.as_str()))
        {
            verdict.contradicted += absent.contradicted;
            verdict.failed += usize::from(
                absent.state == AbsentState::Failed && !waits_to_be_tried(engine, absent),
            );
            verdict.suspect += absent
                .repeats
                .iter()
                .filter(|r| matches!(r.status, RepeatStatus::Suspect { .. }))
                .count();
            let is_unmeasured =
                |status: &RepeatStatus| matches!(status, RepeatStatus::Unmeasured { .. });
            let unmeasured = absent.repeats.iter().filter(|r| is_unmeasured(&r.status));
            verdict.unmeasured += unmeasured.count();
        }
        verdict
    }

    fn is_bad(&self) -> bool {
        self.failed + self.contradicted + self.unmeasured > 0
    }
}

/// Has a cell only failed attempts, and is to be tried again, but not on this host? It is no
/// failure of this build.
fn waits_to_be_tried(engine: &Engine, absent: &AbsentCell) -> bool {
    let cell = engine
        .plan
        .find(&absent.cell)
        .ok()
        .and_then(|cell| engine.plan.prepared(cell));
    absent.repeats.is_empty() && cell.is_some_and(|prepared| prepared.here().is_err())
}
