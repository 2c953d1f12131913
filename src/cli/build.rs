//! `build`: runs what is stale, compares, publishes.

mod before;
mod counts;
mod decide;
mod end;
mod page;
pub(super) mod profile;

use std::{
    io::IsTerminal,
    num::NonZeroUsize,
    os::unix::process::CommandExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::Value;

use super::{
    args::{BuildArgs, GateArgs, Globals, Require},
    blocked, detached,
    flags::Force,
    output::{note, say},
    project, remote,
    session::Session,
    targets,
    train_host::train_host,
    verbosity::{Verbosity, verbosity},
};
use crate::{
    error::{Error, Result, exit},
    execute::{
        self, Amount, BuildOptions, BuildSummary, Event, EventSink, Interrupts, JsonLines,
        LiveLine, PROJECT_DIR, PlainLines, ProbeDepth, Runs, Share, TrainHost,
    },
    figures::Baseline,
    graph::{Engine, State, Statuses, TaskId},
    plan::{LOCK, Plan, same_file},
    publish,
    run::RUN_ID_VARIABLE,
    words::plain::counted,
};
use before::{
    leave_out_what_must_train, open_generations, refuse_beyond, say_how, say_left_out,
    say_without_gpu_hours,
};
use decide::{Gated, Goal, Ratios};
pub use decide::{Round, plan_first, refuse_others};
use end::{Ended, finish};
use page::Page;

/// Plain progress: the first line of a run's steps comes after this time, each further one after twice as long.
const PLAIN_EVERY: Duration = Duration::from_secs(30);

pub fn run(globals: &Globals, args: &BuildArgs) -> Result<i32> {
    refuse_within_own_run(globals)?;
    if args.detach {
        return detached::start(globals, args);
    }
    run_here(globals, args)
}

/// `gate --decide`: adds runs until the gate can tell of each cell, or the budget is spent.
pub fn until_gated(
    globals: &Globals,
    args: &GateArgs,
    baseline: &Baseline,
    max_regression: f64,
) -> Result<()> {
    refuse_within_own_run(globals)?;
    let build = BuildArgs {
        selection: args.selection.clone(),
        max_runs: args.max_runs,
        max_gpu_hours: args.max_gpu_hours,
        ..BuildArgs::default()
    };
    let mut goal = Gated {
        baseline,
        max_regression,
    };
    // What failed fails the gate.
    decide::build(globals, &build, &mut goal).map(drop)
}

/// A trainer that builds its own project would wait for the lock that its own run holds.
fn refuse_within_own_run(globals: &Globals) -> Result<()> {
    let variable = |name| std::env::var_os(name);
    let (Some(run), Some(project)) = (variable(RUN_ID_VARIABLE), variable(PROJECT_DIR)) else {
        return Ok(());
    };
    if !same_file(Path::new(&project), &project::root(globals)?) {
        return Ok(());
    }
    Err(Error::failed_with(
        format!(
            "this command was started by the run {} of this project, whose end it would wait for",
            run.to_string_lossy()
        ),
        format!(
            "a trainer must not build the project that runs it; `unset {RUN_ID_VARIABLE}` outside of trainers"
        ),
    ))
}

fn run_here(globals: &Globals, args: &BuildArgs) -> Result<i32> {
    detached::note_start();
    let result = match args.decide {
        Some(margin) => decide::build(globals, args, &mut Ratios::within(margin)),
        None => pass(globals, args, &mut Passes::new(), &Pass::Whole),
    };
    let code = result.as_ref().map_or_else(Error::exit_code, |code| *code);
    // The command may take long, and the build is over before it.
    detached::note_end(code);
    if let Some(command) = &args.notify {
        notify(command, code);
    }
    result
}

/// Runs a command of the user's, whatever came of the build. It may start another build, which is not this
/// detached one.
fn notify(command: &str, code: i32) {
    const PATIENCE: Duration = Duration::from_secs(60);
    let shell = duct::cmd("/bin/sh", ["-c", command])
        .stdin_null()
        .unchecked();
    let shell = shell.env("TPRIMAT_EXIT_CODE", code.to_string());
    let shell = shell.env_remove(detached::FOLDER).before_spawn(|command| {
        command.process_group(0);
        Ok(())
    });
    let told = match shell
        .start()
        .and_then(|handle| match handle.wait_timeout(PATIENCE)? {
            Some(output) => Ok(Some(output.status)),
            None => {
                // With what it has started.
                let group = handle
                    .pids()
                    .first()
                    .and_then(|pid| i32::try_from(*pid).ok());
                let _ = group.map(|pid| killpg(Pid::from_raw(pid), Signal::SIGKILL));
                handle.kill().map(|()| None)
            }
        }) {
        Ok(Some(status)) if status.success() => return,
        Ok(Some(status)) => format!("ended with {status}"),
        Ok(None) => format!("was stopped after {} s", PATIENCE.as_secs()),
        Err(error) => format!("cannot be run: {error}"),
    };
    note(&format!("note: the command of --notify {told}"));
}

/// How much of the matrix is run at a time.
enum Pass<'a> {
    /// All that is stale.
    Whole,
    /// One round of `--decide`; nothing is shown of it.
    Round(&'a Round),
    /// What its rounds have left, to be shown; nothing is run.
    Decided(&'a Round, &'a dyn Goal),
}

/// What the passes of one command have in common.
struct Passes {
    started: Instant,
    /// Made by the first pass, once nothing is refused any more.
    events: Option<EventSink>,
    /// What all of them did.
    summary: BuildSummary,
}

impl Passes {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            events: None,
            summary: BuildSummary::default(),
        }
    }
}

fn pass(globals: &Globals, args: &BuildArgs, passes: &mut Passes, pass: &Pass) -> Result<i32> {
    if globals.json && args.events.as_deref() == Some(Path::new("-")) {
        return Err(Error::refused(
            "--json and --events - would both write to stdout",
            "give --events a file",
        ));
    }
    let request = project::matrix_request(globals, &args.selection)?;
    let mut session = Arc::new(Session::open(request)?);
    if let Pass::Round(round) | Pass::Decided(round, _) = pass {
        own(&mut session).of_round(round)?;
    }
    publish::refuse_shared_folder(&session.plan)?;
    // A detached build has a file of its own in the cache.
    let target = args.events.as_deref().filter(|to| *to != Path::new("-"));
    if std::env::var_os(detached::FOLDER).is_none() {
        targets::refuse_files(&session.plan, &[("--events", target)], &[])?;
    }
    if let Some(moved) = publish::told_moved(&session.plan) {
        say(&format!("note: {moved}"));
    }
    project::say_notes(&session.plan);
    if args.requires(Require::Locked) {
        // What trains nothing here does not depend on this host.
        project::require_locked(&session.plan, !args.cached_only)?;
    }
    session.plan.recipes_without_rate()?;
    let _in_use = session.cache.use_it();
    let mut host = train_host(&session)?;
    let is_first = passes.events.is_none();
    if is_first {
        passes.events = Some(self::events(args)?);
        say_without_gpu_hours(&session.plan, args);
    }
    let events = &*passes.events.get_or_insert_default();
    if session.cache.ensure_writable().is_ok() {
        execute::sweep_up(&session.cache, &host, events);
    }
    let sharing = remote::pull(&session, args.requires(Require::Remote), events)?;
    if args.last.failed {
        project::keep_failed(own(&mut session))?;
    }
    if let Some(profiling) = profile::asked(&session.plan) {
        profile::refuse_measuring(args)?;
        return profile::run(&session.plan, globals, profiling, &host, events);
    }
    let engine_of = if args.cached_only {
        Session::engine
    } else {
        Session::planner
    };
    if let Pass::Decided(..) = pass {
        leave_out_what_must_train(own(&mut session), args)?;
    }
    if args.cached_only {
        // A log that is found damaged later would be trained again.
        evaluated(
            || engine_of(&session, &args.overrides),
            sharing.as_deref(),
            events,
        )?;
        leave_out_what_must_train(own(&mut session), args)?;
    }
    if args.overrides.has(Force::Measured) {
        let engine = session.engine(&args.overrides);
        refuse_beyond(&engine, &engine.evaluate_all()?, args, Runs::Anew)?;
        open_generations(&engine, &host)?;
    }
    let (mut engine, mut statuses) = evaluated(
        || engine_of(&session, &args.overrides),
        sharing.as_deref(),
        events,
    )?;
    session.tell_damage();
    let is_stale = |n: &&TaskId| statuses.get(**n).state == State::Stale && engine.is_wanted(**n);
    if engine.dag.order.iter().any(|node| is_stale(&node)) {
        engine.cache.ensure_writable()?;
    }
    refuse_beyond(&engine, &statuses, args, Runs::Stale)?;
    if args.overrides.has(Force::Failed) {
        for message in project::not_retried(&engine, &statuses)? {
            events.report(&Event::Note { message });
        }
    }
    let mut trains = blocked::stale_trains(&engine, &statuses);
    let blocked = blocked::find(&session.plan, &trains, &host, ProbeDepth::ByAsking)?;
    trains.retain(|cell| !blocked.contains_key(cell));
    if !blocked.is_empty() {
        say_left_out(&session.plan, &blocked, events);
        blocked::mark(&mut own(&mut session).plan, &blocked, &trains);
        (engine, statuses) = evaluated_as_is(engine_of(&session, &args.overrides))?;
    }
    let Session { request, plan, .. } = &*session;
    if is_first {
        if !trains.is_empty() {
            say_how(plan, &trains, request, events);
        }
        let keys = engine
            .dag
            .order
            .iter()
            .filter_map(|n| statuses.get(*n).key)
            .collect();
        for (task, cancels) in execute::unasked(&host.runs, &host.systems, &keys) {
            let message = format!(
                "{task}, which another build left, goes on, and no cell of this build asks for it; `{cancels}` ends it"
            );
            events.report(&Event::Note { message });
        }
    }
    // Where all that was to train lacks something, nothing of this host is pinned.
    let lock = plan.root.join(LOCK);
    let is_first_lock = !lock.exists();
    if !trains.is_empty() || blocked.is_empty() {
        pin(plan, events)?;
    }
    let pinned = is_first_lock.then(|| std::fs::read(&lock).ok()).flatten();
    host.sharing = sharing.clone().map(|sharing| sharing as Arc<dyn Share>);
    let interrupts = execute::install_interrupt_handler()?;
    let page = Page::of(&session);
    let run = || run_stale(&engine, &mut statuses, args, &host, interrupts, events);
    let summary = events.with(page, run);
    if let Err(Error::Io { .. }) = &summary
        && !globals.json
        && !matches!(pass, Pass::Round(_))
    {
        // What is measured is told even where it cannot be published.
        end::show_measured(args, &engine, &statuses)?;
    }
    if let (Err(_), Some(sharing)) = (&summary, &sharing) {
        sharing.say_unshared(events);
    }
    let summary = summary?;
    if summary.runs > 0 && summary.counted + summary.disturbed == 0 {
        unpin(&lock, pinned, events);
    }
    passes.summary = passes.summary.and(summary);
    let is_shared = match &sharing {
        Some(sharing) => sharing.push(&session, interrupts, events)?,
        None => true,
    };
    let goal = match pass {
        Pass::Whole => None,
        Pass::Round(_) => {
            return Ok(if summary.failed > 0 {
                exit::FAILED
            } else {
                exit::OK
            });
        }
        Pass::Decided(_, goal) => goal.told(),
    };
    finish(
        globals,
        &Ended {
            engine: &engine,
            statuses: &statuses,
            summary: passes.summary,
            seconds: passes.started.elapsed().as_secs_f64(),
            is_shared,
            goal,
            remote: sharing.map_or(Value::Null, |sharing| sharing.json()),
        },
        args,
        request,
        events,
    )
}

/// The session before anything runs; from then on the page has a part in it.
fn own(session: &mut Arc<Session>) -> &mut Session {
    Arc::get_mut(session).expect("nobody else has the session yet")
}

/// Adds this host's facts to tprimat.lock, where it lacks them.
pub(super) fn pin(plan: &Plan, events: &EventSink) -> Result<()> {
    for platform in plan.facts.write_missing(&plan.reads)? {
        let message =
            format!("tprimat.lock: pinned this host's facts for {platform}; commit the file");
        events.report(&Event::Note { message });
    }
    Ok(())
}

/// Takes the first tprimat.lock away again, as this build wrote it: where no run of a first build counts, the
/// wrong Python may be what failed, and naming another one must not be refused as a change.
fn unpin(lock: &Path, pinned: Option<Vec<u8>>, events: &EventSink) {
    let is_ours = pinned.is_some_and(|ours| std::fs::read(lock).is_ok_and(|now| now == ours));
    if is_ours && std::fs::remove_file(lock).is_ok() {
        let message = "tprimat.lock: no run counts, so nothing stays pinned".to_owned();
        events.report(&Event::Note { message });
    }
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
            .or_else(|| std::thread::available_parallelism().ok())
            .map_or(1, NonZeroUsize::get),
        fail_fast: args.fail_fast,
    };
    let summary = execute::build(engine, statuses, &options, host, interrupts, events);
    // What a run of an earlier, killed build left while we waited for its supervisor.
    if engine.cache.ensure_writable().is_ok() {
        execute::sweep_up(engine.cache, host, events);
    }
    match (summary, interrupts.asked()) {
        (Ok(_) | Err(Error::Interrupted(_)), Some(signal)) => Err(Error::Interrupted(signal)),
        (summary, _) => summary,
    }
}

/// All states, after what the build would read of the cache was looked at: what is damaged counts as
/// missing, so that this build brings it back from the remote or makes it again.
fn evaluated<'a>(
    engine: impl Fn() -> Engine<'a>,
    sharing: Option<&remote::Sharing>,
    events: &EventSink,
) -> Result<(Engine<'a>, Statuses)> {
    let (mut damaged, mut asked_for) = (0, 0);
    loop {
        let (engine, statuses) = evaluated_as_is(engine())?;
        // What a lost summary is made of may be damaged, too, and so on down to the logs.
        match engine.find_damaged(&statuses)? {
            0 if damaged == 0 => return Ok((engine, statuses)),
            // The remote was asked while the damaged file still seemed to be there. What it brings back
            // is not trained, so it is asked before anything is refused or left out.
            0 if let Some(sharing) = sharing.filter(|_| asked_for < damaged) => {
                asked_for = damaged;
                sharing.bring_back(engine.cache, events)?;
            }
            0 => {
                let again = if asked_for > 0 {
                    "what is needed of that and did not come back is made again"
                } else {
                    "what is needed of that is made again"
                };
                let files = counted(damaged, "file");
                let message =
                    format!("{files} of the cache had other bytes than were stored; {again}");
                events.report(&Event::Note { message });
                return Ok((engine, statuses));
            }
            more => damaged += more,
        }
    }
}

/// All states, with those cells among the ones to be summed up whose runs the cache has.
fn evaluated_as_is(mut engine: Engine<'_>) -> Result<(Engine<'_>, Statuses)> {
    let statuses = engine.evaluate_all()?;
    engine.measured = engine.measured_elsewhere(&statuses);
    if engine.measured.is_empty() {
        return Ok((engine, statuses));
    }
    let statuses = engine.evaluate_all()?;
    Ok((engine, statuses))
}

fn events(args: &BuildArgs) -> Result<EventSink> {
    let events = progress();
    if let Some(target) = &args.events {
        events.add(JsonLines::open(target)?);
    }
    Ok(events)
}

/// What is told on stderr of runs.
pub(super) fn progress() -> EventSink {
    let events = EventSink::default();
    let amount = match verbosity() {
        Verbosity::Quiet => Amount::Failures,
        Verbosity::Normal => Amount::Measurements,
        Verbosity::Verbose => Amount::EveryTask,
    };
    // A terminal that calls itself dumb cannot draw over a line.
    let draws = std::io::stderr().is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    if draws && amount != Amount::Failures {
        events.add(LiveLine::new(amount));
    } else {
        let lines = PlainLines::new(std::io::stderr(), PLAIN_EVERY, amount);
        events.add(lines);
    }
    events
}
