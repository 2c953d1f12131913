//! `build`: runs what is stale, compares, publishes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use petgraph::graph::NodeIndex;
use serde_json::{Value, json};

use super::{
    args::BuildArgs,
    blocked::{self, Coverage},
    detached, memo,
    output::{page, print, print_json},
    plan::{STATES, rows, state_name},
    profile, project,
};
use crate::{
    analyze::{AbsentCell, Comparison, RepeatStatus},
    cache::{Cache, TaskKind, Undeclared},
    error::{Error, Problem, Result, exit},
    execute::{
        self, Bars, BuildOptions, BuildSummary, Event, Gpu, JsonLines, Look, PlainLines, Reporter, Reporters, Runs,
        Talk, TrainHost,
    },
    files::Standing,
    graph::{Dag, Engine, State, Statuses},
    plan::{Plan, PlanRequest, Prepared, Vendor, load_config},
};

/// Between SIGTERM and SIGKILL.
const GRACE_SECONDS: f64 = 10.0;
/// Plain progress: at most one line a run in this time.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

pub fn run(at: Option<&Path>, args: &BuildArgs) -> Result<i32> {
    if args.detach {
        return detached::start(at, args);
    }
    if !args.together.is_empty() {
        return run(at, &measured_together(args.clone()));
    }
    let finished = Arc::new(Mutex::new(None));
    let result = build(at, args, &finished);
    let code = result.as_ref().map_or_else(Error::exit_code, |code| *code);
    if let Some(command) = &args.notify {
        let finished = finished.lock().unwrap_or_else(PoisonError::into_inner).clone();
        detached::notify(command, finished.as_ref(), code);
    }
    detached::note_end(code);
    result
}

/// Keeps the event that counts tasks, for whoever is told of the end.
struct Last(Arc<Mutex<Option<Event>>>);

impl Reporter for Last {
    fn report(&mut self, event: &Event) {
        if matches!(event, Event::BuildFinished { .. }) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(event.clone());
        }
    }
}

fn build(at: Option<&Path>, args: &BuildArgs, finished: &Arc<Mutex<Option<Event>>>) -> Result<i32> {
    let started = Instant::now();
    if args.wanted.json && args.events.as_deref() == Some(Path::new("-")) {
        let problem = Problem::new("--json and --events - would both write to stdout");
        return Err(Error::invalid(problem.help("give --events a file")));
    }
    let request = project::wanted(at, &args.wanted)?;
    let memo_name = memo::name(&request, args);
    if args.events.is_none()
        && !args.remeasure
        // The lock is checked against the host, which no memo knows.
        && !args.locked
        && args.profile.is_none()
        && let Some(text) = memo::nothing_to_do(&request, &memo_name)
    {
        return say_nothing_to_do(args, &text);
    }
    let mut plan = Plan::load(&request)?;
    project::say_notes(&plan);
    if args.locked {
        plan.facts.require_complete()?;
        // What trains nothing here does not depend on this host.
        if !args.cached_only {
            project::refuse_drift(&plan)?;
        }
    }
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let _in_use = cache.use_it();
    let host = train_host(&plan, &request, cache.root())?;
    let mut reporters = reporters(args)?;
    reporters.0.push(Box::new(Last(finished.clone())));
    let talk = Talk::new(reporters);
    if cache.ensure_writable().is_ok() {
        execute::sweep_up(&cache, &host, &talk)?;
    }
    if profile::asked(&plan, args) {
        return profile::run(&plan, args, &host, &talk);
    }
    let dag = Dag::new(&plan)?;
    if args.cached_only {
        leave_out_what_must_train(&mut plan, &dag, &cache, args)?;
    }
    if args.remeasure {
        let engine = project::engine(&plan, &dag, &cache, &args.insist);
        refuse_beyond(&engine, &engine.evaluate_all()?, args, Runs::Anew)?;
        open_generations(&engine, &host)?;
    }
    let engine_of = if args.cached_only { project::engine } else { project::planner };
    let mut engine = engine_of(&plan, &dag, &cache, &args.insist);
    let mut statuses = engine.evaluate_all()?;
    let is_stale = |n: &&NodeIndex| statuses.get(**n).state == State::Stale && engine.is_wanted(**n);
    let stale: Vec<NodeIndex> = dag.order.iter().filter(is_stale).copied().collect();
    if !stale.is_empty() {
        cache.ensure_writable()?;
    }
    refuse_beyond(&engine, &statuses, args, Runs::Stale)?;
    let mut trains = blocked::stale_trains(&engine, &statuses);
    let blocked = blocked::find(&plan, &trains, &host, Look::ByAsking)?;
    trains.retain(|cell| !blocked.contains_key(cell));
    if !blocked.is_empty() {
        say_left_out(&plan, &blocked, &talk);
        blocked::mark(&mut plan, &blocked, &trains);
        engine = engine_of(&plan, &dag, &cache, &args.insist);
        statuses = engine.evaluate_all()?;
    }
    if !trains.is_empty() {
        say_how(&plan, &trains, &request, &talk);
    }
    // Where all that was to train lacks something, nothing of this host is pinned.
    let pins = !trains.is_empty() || blocked.is_empty();
    for platform in if pins { plan.facts.write_missing(&plan.reads)? } else { Vec::new() } {
        let message = format!("tprimat.lock: pinned this host's facts for {platform}; commit the file");
        talk.report(&Event::Note { message });
    }
    let interrupts = execute::install_interrupt_handler()?;
    let options = BuildOptions {
        jobs: args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1),
        fail_fast: args.fail_fast,
    };
    let summary = execute::build(&engine, &mut statuses, &options, &host, interrupts, &talk);
    // What a run of an earlier, killed build left while we waited for its supervisor.
    if cache.ensure_writable().is_ok() {
        execute::sweep_up(&cache, &host, &talk)?;
    }
    let summary = match (summary, interrupts.asked()) {
        (Ok(_) | Err(Error::Interrupted(_)), Some(signal)) => return Err(Error::Interrupted(signal)),
        (summary, _) => summary?,
    };
    finish(
        &Ended { engine: &engine, statuses: &statuses, summary, seconds: started.elapsed().as_secs_f64() },
        args,
        &request,
        &memo_name,
        &talk,
    )
}

/// Names the cells that are not trained here, each problem once.
fn say_left_out(plan: &Plan, blocked: &blocked::Blocked, talk: &Talk) {
    for (problem, cells) in blocked::by_problem(blocked) {
        let cells: Vec<&str> = cells.iter().map(|cell| plan.cells[*cell].id.as_str()).collect();
        let message = format!("left out: {}: {}", blocked::few(&cells), blocked::sentence(problem));
        talk.report(&Event::Note { message });
    }
}

/// What trainers will not get, and checkouts that no commit names.
fn say_how(plan: &Plan, trains: &[usize], request: &PlanRequest, talk: &Talk) {
    for message in unversioned(plan, trains) {
        talk.report(&Event::Note { message });
    }
    let dropped = execute::dropped_env(&request.env);
    if !dropped.is_empty() {
        let message =
            format!("not passed to trainers (declare them in config.yaml to use them): {}", dropped.join(", "));
        talk.report(&Event::Note { message });
    }
}

/// `--together A B`: a build of these cells alone, which measures them anew. Repeats take turns in every build.
fn measured_together(mut args: BuildArgs) -> BuildArgs {
    args.wanted.cells.only = std::mem::take(&mut args.together);
    args.remeasure = true;
    args
}

struct Ended<'a> {
    engine: &'a Engine<'a>,
    statuses: &'a Statuses,
    summary: BuildSummary,
    seconds: f64,
}

fn say_nothing_to_do(args: &BuildArgs, text: &str) -> Result<i32> {
    if args.wanted.json {
        let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        print_json(&value)?;
    } else {
        let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
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
    if std::io::stderr().is_terminal() {
        all.push(Box::new(Bars::new()));
    } else {
        all.push(Box::new(PlainLines::new(std::io::stderr(), PLAIN_EVERY)));
    }
    if let Some(target) = &args.events {
        all.push(Box::new(JsonLines::open(target)?));
    }
    Ok(Reporters(all))
}

pub(super) fn train_host(plan: &Plan, request: &PlanRequest, cache: &Path) -> Result<TrainHost> {
    let tprimat = std::env::current_exe().map_err(Error::io("cannot find", "the tprimat binary"))?;
    let facts = plan.facts.host();
    let vendor = facts.platforms().into_iter().map(|(v, _)| v).find(|v| *v != Vendor::Cpu);
    Ok(TrainHost {
        project: plan.root.clone(),
        runs: cache.join("runs"),
        lock_dir: lock_dir(&request.env),
        native: find_native(&tprimat, &request.env),
        native_seen: OnceLock::new(),
        hostname: facts.hostname.clone().unwrap_or_default(),
        caller_env: request.env.clone(),
        grace_seconds: GRACE_SECONDS,
        gpus: vendor.map(|v| gpus(plan, v)).unwrap_or_default(),
        tprimat,
    })
}

/// The GPUs that runs may be given.
fn gpus(plan: &Plan, vendor: Vendor) -> Vec<Gpu> {
    let host = plan.facts.host();
    let (locks, found) = (host.device_locks(vendor), if vendor == Vendor::Amd { &host.amd } else { &host.nvd });
    let gpu = |index: usize| {
        let facts = found.get(index)?;
        let (uuid, render_node) = (facts.uuid.clone(), facts.render_node.clone());
        Some(Gpu { index, lock: locks.get(index)?.clone(), uuid, render_node })
    };
    plan.facts.usable_gpus(vendor).into_iter().filter_map(gpu).collect()
}

/// One folder for the whole host, whoever runs tprimat on it.
pub fn lock_dir(env: &BTreeMap<String, String>) -> PathBuf {
    env.get("TPRIMAT_LOCK_DIR").map_or_else(|| PathBuf::from("/tmp/tprimat-device-locks"), PathBuf::from)
}

/// tprimat-native: named by `$TPRIMAT_NATIVE`, beside tprimat, or in PATH.
fn find_native(tprimat: &Path, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let named = env.get("TPRIMAT_NATIVE").map(PathBuf::from);
    let beside = tprimat.parent().map(|dir| dir.join("tprimat-native"));
    named.into_iter().chain(beside).find(|p| p.is_file()).or_else(|| crate::host::which("tprimat-native", env))
}

/// Cells that would have to train are shown as missing instead.
fn leave_out_what_must_train(plan: &mut Plan, dag: &Dag, cache: &Cache, args: &BuildArgs) -> Result<()> {
    let must_train: Vec<usize> = {
        let engine = project::engine(plan, dag, cache, &args.insist);
        let statuses = engine.evaluate_all()?;
        let is_stale = |n: &petgraph::graph::NodeIndex| {
            dag.task(*n).kind == TaskKind::Train && statuses.get(*n).state == State::Stale
        };
        dag.order.iter().filter(|n| is_stale(n)).map(|n| dag.task(*n).cell as usize).collect()
    };
    must_train.into_iter().for_each(|cell| plan.cells[cell].selected = false);
    Ok(())
}

/// `--max-gpu-hours`: an estimate beyond it is an error, before anything is run or recorded.
fn refuse_beyond(engine: &Engine, statuses: &Statuses, args: &BuildArgs, which: Runs) -> Result<()> {
    let Some(limit) = args.max_gpu_hours else { return Ok(()) };
    match execute::Prices::beyond(&[&execute::Prices::of(engine, statuses, which)], limit, args.insist.force) {
        Some(why) => {
            let help = "nothing was run; `tprimat plan` shows the estimate by cell";
            Err(Error::invalid(Problem::new(why).help(help)))
        }
        None => Ok(()),
    }
}

/// Opens the next generation of every selected measurement; not before it is known that they can be made again.
fn open_generations(engine: &Engine, host: &TrainHost) -> Result<()> {
    let statuses = engine.evaluate_all()?;
    let is_measured = |n: &&NodeIndex| {
        engine.dag.task(**n).kind == TaskKind::Train
            && engine.is_wanted(**n)
            && matches!(statuses.get(**n).state, State::Fresh | State::Failed)
    };
    let measured: Vec<NodeIndex> = engine.dag.order.iter().filter(is_measured).copied().collect();
    let cells: Vec<usize> = measured.iter().map(|n| engine.dag.task(*n).cell as usize).collect();
    engine.cache.ensure_writable()?;
    for &cell in &cells {
        let prepared = engine.plan.prepared(cell);
        if let Some(Err(why)) = prepared.map(Prepared::here) {
            let message = format!("`{}` cannot be measured anew here: {why}", engine.plan.cells[cell].id);
            return Err(Error::Failed { message, help: Some("nothing was run; --only leaves it out".into()) });
        }
    }
    blocked::refuse(&blocked::find(engine.plan, &cells, host, Look::ByAsking)?)?;
    let keys: BTreeSet<_> = measured.iter().filter_map(|n| statuses.get(*n).key).collect();
    for key in keys {
        engine.cache.open_generation(&key)?;
    }
    Ok(())
}

/// Checkouts whose content nobody can name by a commit.
fn unversioned(plan: &Plan, cells: &[usize]) -> BTreeSet<String> {
    let facts = cells.iter().filter_map(|cell| plan.prepared(*cell)?.facts.known.as_ref().ok());
    let names = facts.flat_map(|known| known.keys());
    let variables = names.filter_map(|name| name.strip_prefix("checkout.")?.strip_suffix(".content"));
    let note = |variable| {
        format!(
            "the checkout in ${variable} is not a git repository: results are filed under the digest of one file of it"
        )
    };
    variables.map(note).collect()
}

fn finish(
    ended: &Ended,
    args: &BuildArgs,
    request: &PlanRequest,
    memo_name: &crate::digest::Digest,
    talk: &Talk,
) -> Result<i32> {
    let Ended { engine, statuses, summary, seconds } = ended;
    let after = rows(engine, statuses);
    let count = |state| after.iter().filter(|r| r.state == state).count();
    let comparison = comparison(engine, statuses)?;
    let verdict = Verdict::of(engine, comparison.as_ref());
    let (contradicted, incomplete) = (verdict.contradicted, verdict.incomplete);
    let failed = count(State::Failed);
    talk.report(&Event::BuildFinished {
        ok: count(State::Fresh),
        failed,
        waiting: count(State::Waiting) + count(State::Blocked),
        unsupported: count(State::Unsupported),
        contradicted,
        suspect: verdict.suspect,
        unmeasured: verdict.unmeasured,
        seconds: *seconds,
    });
    let coverage = Coverage::of(engine, statuses, comparison.as_ref());
    let in_vain = verdict.suspect > 0 && coverage.has_no_results()
        || summary.disturbed > 0 && summary.counted == 0 && summary.failed == 0;
    let code = if failed > 0 || verdict.is_bad() || in_vain || (coverage.is_nothing() && !args.cached_only) {
        exit::FAILED
    } else if args.require_complete && incomplete > 0 {
        exit::STALE
    } else {
        exit::OK
    };
    if in_vain {
        let message = "nothing of this build counts: every run was disturbed; see the reasons above, and build again";
        talk.report(&Event::Note { message: message.to_owned() });
    }
    if let Some(path) = changed_meanwhile(engine, statuses) {
        let message =
            format!("{path} was changed while this build ran, which built what was planned before; build again");
        talk.report(&Event::Note { message });
    }
    let mut counts = serde_json::Map::new();
    for state in STATES {
        counts.insert(state_name(state).into(), count(state).into());
    }
    let value = json!({
        "matrix": engine.plan.matrix.name, "ran": summary.ran, "summary": counts,
        "failed_repeats": verdict.failed, "contradicted": contradicted, "suspect": verdict.suspect,
        "unmeasured": verdict.unmeasured, "incomplete": incomplete, "blocked": coverage.blocked, "output": execute::publish::output_dir(engine.plan),
    });
    if args.wanted.json {
        print_json(&value)?;
    } else if args.events.as_deref() != Some(Path::new("-")) {
        if let Some(comparison) = &comparison {
            let matrix = args.wanted.common.matrix.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            let more = format!("tprimat compare{matrix} --details");
            let page = page();
            print(&if args.details {
                crate::report::table(comparison, &page)
            } else {
                crate::report::glance(comparison, false, &more, &page)
            })?;
        }
        if let Some(text) = coverage.text() {
            eprintln!("{}", text.trim_end());
        }
        let output = execute::publish::output_dir(engine.plan);
        let output = output.strip_prefix(&request.root).unwrap_or(&output).display();
        let report = statuses.get(engine.dag.node(TaskKind::Report, 0, 0));
        if report.state == State::Fresh && report.outputs().is_empty() {
            eprintln!("nothing was published, since no cell has figures now; {output} stays as it was");
        } else {
            eprintln!("results, table and picture: {output}");
        }
    }
    if code == exit::OK && count(State::Fresh) + count(State::Unsupported) == after.len() && incomplete == 0 {
        let idle = json!({ "matrix": value["matrix"], "ran": 0, "summary": value["summary"], "failed_repeats": 0, "contradicted": 0, "suspect": 0, "unmeasured": 0, "incomplete": 0, "blocked": 0, "output": value["output"] });
        memo::store(engine, statuses, request, memo_name, &idle);
    }
    Ok(code)
}

/// A file that the plan rests on and that is not as it was. What comes and goes in folders is for the next plan to judge.
fn changed_meanwhile(engine: &Engine, statuses: &Statuses) -> Option<String> {
    let plan = engine.plan;
    let mut evidence = plan.reads.evidence().ok()?;
    // Files that the runs may have written themselves have a message of their own.
    for attempt in engine.dag.order.iter().filter_map(|node| statuses.get(*node).attempt()) {
        let Undeclared { changed, made } = &attempt.undeclared;
        changed.iter().chain(made).for_each(|name| evidence.forget(&plan.root.join(name)));
    }
    match evidence.check() {
        Standing::Changed(path) if !path.is_dir() => {
            Some(path.strip_prefix(&plan.root).unwrap_or(&path).display().to_string())
        }
        _ => None,
    }
}

fn comparison(engine: &Engine, statuses: &Statuses) -> Result<Option<Comparison>> {
    let status = statuses.get(engine.dag.node(TaskKind::Compare, 0, 0));
    let stored = status.outputs().first();
    stored.map(|stored| execute::derived::read_comparison(engine.cache, Some(stored))).transpose()
}

/// What the results of the selected cells say, which no task's own state shows: a run can end well and prove nothing.
#[derive(Default)]
struct Verdict {
    failed: usize,
    contradicted: usize,
    /// Disturbed: such a repeat is missing, and no failure.
    suspect: usize,
    unmeasured: usize,
    /// Cells of the matrix, selected or not, without all the repeats that were asked for.
    incomplete: usize,
}

impl Verdict {
    fn of(engine: &Engine, comparison: Option<&Comparison>) -> Self {
        let Some(comparison) = comparison else { return Self::default() };
        let selected: BTreeSet<&str> = engine.plan.cells.iter().filter(|c| c.selected).map(|c| c.id.as_str()).collect();
        let rows = comparison.rows.iter().filter(|r| selected.contains(r.cell.as_str()));
        let mut verdict = Self {
            incomplete: comparison.rows.iter().filter(|r| (r.n as u64) < u64::from(r.repeats_wanted)).count()
                + comparison.absent.iter().filter(|a| a.state != "unsupported").count(),
            ..Self::default()
        };
        for row in rows {
            verdict.failed += row.failed;
            verdict.contradicted += row.contradicted;
            verdict.suspect += row.suspect;
            verdict.unmeasured += row.unmeasured;
        }
        // A cell of which no repeat counts has no row.
        for absent in comparison.absent.iter().filter(|a| selected.contains(a.cell.as_str())) {
            verdict.contradicted += absent.contradicted;
            verdict.failed += usize::from(absent.state == "failed" && !waits_to_be_tried(engine, absent));
            verdict.suspect +=
                absent.repeats.iter().filter(|r| matches!(r.status, RepeatStatus::Suspect { .. })).count();
            verdict.unmeasured += usize::from(absent.state == "unmeasured");
        }
        verdict
    }

    fn is_bad(&self) -> bool {
        self.failed + self.contradicted + self.unmeasured > 0
    }
}

/// Has a cell only failed attempts, and is to be tried again, but not on this host? It is no failure of this build.
fn waits_to_be_tried(engine: &Engine, absent: &AbsentCell) -> bool {
    let cell = engine.plan.find(&absent.cell).ok().and_then(|cell| engine.plan.prepared(cell));
    absent.repeats.is_empty() && cell.is_some_and(|prepared| prepared.here().is_err())
}

/// The config alone, for what must be known before the plan.
pub fn cache_dir_of(request: &PlanRequest) -> Option<PathBuf> {
    let config = load_config(&request.root.join("config.yaml"), request).ok()?;
    Some(request.root.join(config.get("paths.cache").and_then(Value::as_str).unwrap_or("cache")))
}
