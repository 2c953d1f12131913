//! One train task: from its key to an attempt in the cache.
//!
//! The run folder is made whole before the supervisor starts; what it left is in the cache before
//! the folder goes. In between, whoever dies, the next build finds the folder (see `sweep`) and
//! takes it in.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use super::{
    EventSink,
    container_run::{self, contain},
    events::Event,
    executor::{End, Run},
    hang::Hang,
    ingest::{Meta, ingest},
    progress::Tail,
    recover_runs::{making, remove},
    run::{RunSpec, RunState, TELEMETRY, log_path},
    secrets::Secrets,
    slurm::{Commands, JobSpec},
    takeover::{Folders, say_note, take_over},
    watched_inputs::{Watched, not_started, outdated},
};
use crate::{
    cache::{Attempt, Cache, KeyLock},
    digest::Digest,
    error::{Error, Result},
    figures::Statistics,
    files::{self, Durability, write_atomically},
    graph::doubtful,
    host::Fact,
    job::{Job, RunOutcome, Vendor},
    logs::{self, LogSection},
    plan::{Execution, Place},
    results::TelemetryLine,
};

/// All that one train task needs, owned: it runs on a thread of its own.
pub struct TrainWork {
    pub label: String,
    pub key: Digest,
    pub preimage: String,
    pub generation: u32,
    /// Repeats that the plan wants of the cell.
    pub repeats_planned: Option<u32>,
    /// Attempts that were known when this one was planned.
    pub seen: BTreeSet<String>,
    pub launch_files: Vec<(String, Vec<u8>)>,
    pub recipe_files: Vec<(String, Vec<u8>)>,
    pub job: Job,
    /// The warm-up: whether something disturbed the run is judged on the steps after it.
    pub statistics: Statistics,
    /// What the run reads outside its folder.
    pub watched: Vec<Watched>,
    /// Does it start the trainer that ships with tprimat?
    pub needs_native: bool,
    /// The job in full, where the recipe reads it.
    pub job_json: Option<Vec<u8>>,
    pub command: Vec<String>,
    pub declared_env: BTreeMap<String, String>,
    /// Where data files are on this host.
    pub data_env: BTreeMap<String, String>,
    /// More names that the recipe lets through.
    pub pass_env: Vec<String>,
    /// The interpreter of the recipe on this host.
    pub python: PathBuf,
    /// Where checkouts are on this host, by the variable that the script reads.
    pub checkouts: Vec<(String, PathBuf)>,
    pub log_section: LogSection,
    pub timeout_seconds: Option<f64>,
    /// When it counts as hung.
    pub hang: Option<Hang>,
    /// How long it may take; none where nothing is known of it.
    pub estimated_seconds: Option<f64>,
    pub exclusive: bool,
    /// Where and in what it runs.
    pub execution: Execution,
    /// The digest of its container's image.
    pub image: Option<String>,
    /// What its key says of the platform, and the rest of the section that those facts are from.
    pub facts: BTreeMap<String, Fact>,
    /// The packages in its key.
    pub packages: BTreeMap<String, String>,
    /// The devices given to this run, as positions in [`TrainHost::gpus`]; empty on the cpu
    /// platform.
    pub devices: Vec<usize>,
}

impl TrainWork {
    /// Files of the project that only the command names.
    pub(super) fn guessed(&self) -> Vec<&str> {
        self.watched
            .iter()
            .filter(|one| one.is_guessed && !one.is_absent())
            .map(|one| one.name.as_str())
            .collect()
    }
}

/// What holds for every run of a build.
pub struct TrainHost {
    pub project: PathBuf,
    pub runs: PathBuf,
    pub lock_dir: PathBuf,
    /// The tprimat binary, which is also the supervisor.
    pub tprimat: PathBuf,
    pub native: Option<PathBuf>,
    /// The file of `native` as the pre-flight check saw it: shows whether it changed since.
    pub native_seen: OnceLock<Watched>,
    pub hostname: String,
    pub caller_env: BTreeMap<String, String>,
    pub grace_seconds: f64,
    /// The accelerators that runs may be given.
    pub gpus: Vec<Gpu>,
    /// All runs of a build ask the same queue.
    pub slurm: Commands,
    pub folders: Folders,
    /// The remote cache of the build.
    pub sharing: Option<Arc<dyn Share>>,
}

/// Where a build shares its runs with other hosts while it goes on, so that builds at the same time
/// do not run the same.
pub trait Share: Send + Sync {
    /// Takes in what others have measured of this key by now.
    fn take(&self, key: &Digest, cache: &Cache, events: &EventSink) -> Result<()>;
    /// Leaves a run that has just been filed; `is_stopped`: the build is being ended, and nothing
    /// may delay it.
    fn leave(
        &self,
        attempt: &Attempt,
        cache: &Cache,
        is_stopped: bool,
        events: &EventSink,
    ) -> Result<()>;
}

impl TrainHost {
    /// Where profiled runs are, which no sweep may take for measured ones.
    pub(super) fn profiles(&self) -> PathBuf {
        self.runs.with_file_name("profiles")
    }
}

/// An accelerator of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// As its driver counts.
    pub index: usize,
    /// The name of its lock.
    pub lock: String,
    /// As its driver names it, whatever else is visible.
    pub uuid: Option<String>,
    /// AMD's way to hand it into a container.
    pub render_node: Option<PathBuf>,
}

/// How often a key that another tprimat holds is looked at.
pub(super) const KEY_LOOK: Duration = Duration::from_millis(50);
/// How often the progress of a run is looked at.
const FOLLOW_LOOK: Duration = Duration::from_millis(100);

/// Variables that every child gets from the caller; their values are in no key.
const PASSED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "HF_TOKEN",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Families of variables that change what trainers do. They are never passed on by accident, and
/// what was set is reported.
const DROPPED: &[&str] = &[
    "NCCL_", "RCCL_", "CUDA_", "HIP_", "HSA_", "ROCR_", "PYTORCH_", "TORCH_", "OMP_", "MKL_",
    "LD_", "PYTHON",
];

/// Which variables of the caller change trainers and are not passed on.
#[must_use]
pub fn dropped_env(caller: &BTreeMap<String, String>) -> Vec<&str> {
    caller
        .keys()
        .map(String::as_str)
        .filter(|name| DROPPED.iter().any(|family| name.starts_with(family)))
        .collect()
}

/// Lets the scheduler end what runs.
#[derive(Default)]
pub struct RunningSet {
    runs: Mutex<Vec<Arc<dyn Run>>>,
    stopped: AtomicBool,
}

impl RunningSet {
    fn add(&self, run: &Arc<dyn Run>) {
        self.lock().push(run.clone());
        if self.stopped.load(Ordering::SeqCst) {
            run.terminate();
        }
    }
    fn remove(&self, run: &Arc<dyn Run>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, run));
    }
    /// SIGTERM, grace, SIGKILL, for every run now and to come.
    pub fn terminate(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.lock().iter().for_each(|run| run.terminate());
    }
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
    pub fn kill(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.lock().iter().for_each(|run| run.kill());
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Run>>> {
        self.runs
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What became of a train task.
pub enum Trained {
    Attempt(Box<Attempt>),
    /// No attempt was recorded, and why: an input changed after the plan read it, or the run goes on
    /// where this process cannot see its end.
    Nothing(String),
}

/// Runs one train task, or takes the attempt that another tprimat made meanwhile.
pub fn train(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
) -> Result<Trained> {
    let _in_flight = in_flight(work, cache, running, events)?;
    if let Some(trained) = take_over(work, host, cache, running, events)? {
        return Ok(trained);
    }
    cache.refresh()?;
    if let Some(done) = made_meanwhile(cache, work) {
        return Ok(Trained::Attempt(Box::new(done)));
    }
    if let Some(sharing) = &host.sharing {
        sharing.take(&work.key, cache, events)?;
        if let Some(done) = made_meanwhile(cache, work) {
            return Ok(Trained::Attempt(Box::new(done)));
        }
    }
    let mut watched = work.watched.clone();
    watched.extend(
        host.native_seen
            .get()
            .filter(|_| work.needs_native)
            .cloned(),
    );
    let outdated = outdated(&mut watched);
    if !outdated.is_empty() {
        return Ok(Trained::Nothing(not_started(&outdated, &watched)));
    }
    if work.execution.place == Place::Allocation
        && let Some(why) = too_long(work, host)
    {
        return Ok(Trained::Nothing(why));
    }
    let id = attempt_id();
    let dir = host.runs.join(&id);
    let making = making(&host.runs)?;
    let spec = RunSpec {
        watched,
        ..prepare(work, host, &id, &dir)?
    };
    let run: Arc<dyn Run> = host.executor(work.execution.place).start(&spec)?.into();
    drop(making);
    let trained = see_through(work, host, cache, running, events, (&spec, run))?;
    Ok(trained.unwrap_or_else(|| Trained::Nothing("its job was never submitted".into())))
}

/// Why a run is not begun in the allocation that tprimat is in; `None` also where it is not known
/// how long the run takes, or how long the allocation lasts.
fn too_long(work: &TrainWork, host: &TrainHost) -> Option<String> {
    let job = host.caller_env.get("SLURM_JOB_ID")?;
    let (needed, left) = (work.estimated_seconds?, host.slurm.seconds_left(job)?);
    (needed > left).then(|| {
        format!(
            "the allocation ends in {:.0} s, and this run took {:.0} s before",
            left.max(0.0),
            needed
        )
    })
}

/// Follows a run to its end and takes it into the cache. `None`: nothing has run, and its folder is
/// gone.
pub(super) fn see_through(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
    (spec, run): (&RunSpec, Arc<dyn Run>),
) -> Result<Option<Trained>> {
    running.add(&run);
    let (going_on, over) = mpsc::channel::<()>();
    let log = log_path(&spec.dir);
    let end = std::thread::scope(|scope| {
        scope.spawn(|| follow(work, (&*run, &log), over, events));
        let end = run.wait();
        // Wakes the follower at once: a run of a few milliseconds must not wait for its next look.
        drop(going_on);
        end
    });
    running.remove(&run);
    let exit = match end? {
        End::Over(exit) => exit,
        End::Unseen(why) => return Ok(Some(Trained::Nothing(why))),
        End::NeverWas => {
            drop(run);
            remove(&spec.dir);
            return Ok(None);
        }
        End::GoesOn(message) => {
            events.report(&Event::Note {
                message: format!("{}: {message}", work.label),
            });
            return Err(Error::Interrupted(0));
        }
    };
    say_note(&work.label, Some(&exit), events);
    let attempt = ingest(cache, spec, Some(&exit), &log, &host.hostname)?;
    drop(run);
    remove(&spec.dir);
    if let Some(sharing) = &host.sharing {
        sharing.leave(&attempt, cache, running.is_stopped(), events)?;
    }
    let in_doubt = doubtful(cache, &work.preimage, &work.guessed())
        .into_iter()
        .find(|other| other.id == attempt.id);
    let attempt = in_doubt.unwrap_or(attempt);
    Ok(Some(Trained::Attempt(Box::new(attempt))))
}

/// The lock of the key. Another tprimat may train it now, for hours: an interrupt ends the wait.
fn in_flight(
    work: &TrainWork,
    cache: &Cache,
    running: &RunningSet,
    events: &EventSink,
) -> Result<KeyLock> {
    let mut is_told = false;
    loop {
        if let Some(lock) = cache.try_lock_key(&work.key)? {
            return Ok(lock);
        }
        if running.is_stopped() {
            return Err(Error::Interrupted(0));
        }
        if !is_told {
            let what_for = "another tprimat, which runs the same training".to_owned();
            events.report(&Event::TaskWaiting {
                task: work.label.clone(),
                what_for,
            });
            is_told = true;
        }
        std::thread::sleep(KEY_LOOK);
    }
}

/// What another tprimat did while this one waited for the key: a measurement, one that was
/// disturbed just now, or a failure that would come again.
fn made_meanwhile(cache: &Cache, work: &TrainWork) -> Option<Attempt> {
    let serves = |a: &Attempt| match &a.outcome {
        // Another host may have measured it anew, under a later generation.
        _ if a.generation < work.generation || a.set_aside.is_some() => false,
        RunOutcome::Ok => {
            (a.suspect.is_none() || !work.seen.contains(&a.id))
                && a.log().is_none_or(|log| cache.has(&log.digest))
        }
        RunOutcome::Failed { .. } => a.will_fail_again() && !work.seen.contains(&a.id),
    };
    let attempts = cache.attempts(&work.key);
    let best = attempts
        .iter()
        .filter(|a| serves(a))
        .min_by_key(|a| (a.outcome != RunOutcome::Ok, a.suspect.is_some()));
    best.cloned().or_else(|| {
        // Or one under which files changed that only the command names: it is filed without them.
        let mut attempts = doubtful(cache, &work.preimage, &work.guessed()).into_iter();
        attempts.find(|a| a.outcome == RunOutcome::Ok && !work.seen.contains(&a.id))
    })
}

/// A new attempt's id: it begins with the time, so ids sort by it, and ends with random digits, so
/// that two hosts never make the same one.
pub(super) fn attempt_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let now = jiff::Timestamp::now();
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}-{random:016x}", now.strftime("%Y%m%dT%H%M%S%.6fZ"))
}

pub(super) fn prepare(work: &TrainWork, host: &TrainHost, id: &str, dir: &Path) -> Result<RunSpec> {
    for (name, bytes) in &work.launch_files {
        write_atomically(&dir.join(name), bytes, Durability::Plain)?;
    }
    let recipe_dir = dir.join("recipe");
    files::create_dir_all(&recipe_dir)?;
    for (name, bytes) in &work.recipe_files {
        write_atomically(&recipe_dir.join(name), bytes, Durability::Plain)?;
    }
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    // A container has a PATH and a language of its own.
    let passed = if work.execution.container.is_some() {
        container_run::PASSED
    } else {
        PASSED
    };
    for name in passed
        .iter()
        .copied()
        .chain(work.pass_env.iter().map(String::as_str))
    {
        if let Some(value) = host.caller_env.get(name) {
            env.insert(name.to_owned(), value.clone());
        }
    }
    env.extend(work.declared_env.clone());
    env.extend(work.data_env.clone());
    let mut set = |name: &str, value: String| drop(env.insert(name.to_owned(), value));
    set("TPRIMAT_RUN_DIR", path_text(dir)?);
    set("TPRIMAT_RECIPE_DIR", path_text(&recipe_dir)?);
    set("TPRIMAT_PROJECT_DIR", path_text(&host.project)?);
    set("TPRIMAT_PYTHON", path_text(&work.python)?);
    if let Some(native) = &host.native {
        set("TPRIMAT_NATIVE", path_text(native)?);
    }
    for (variable, path) in &work.checkouts {
        set(variable, path_text(path)?);
    }
    if let Some(job) = &work.job_json {
        let path = dir.join("job.json");
        write_atomically(&path, job, Durability::Plain)?;
        set("TPRIMAT_JOB", path_text(&path)?);
    }
    let given: Vec<&Gpu> = work
        .devices
        .iter()
        .filter_map(|i| host.gpus.get(*i))
        .collect();
    // Inside a container that was given these devices and no others, they are counted anew.
    let is_renumbered = container_run::counts_anew(work, host, &given);
    let number = |(position, gpu): (usize, &&Gpu)| {
        if is_renumbered { position } else { gpu.index }.to_string()
    };
    let ids = given
        .iter()
        .enumerate()
        .map(number)
        .collect::<Vec<_>>()
        .join(",");
    match work.job.vendor {
        Vendor::Cpu => {}
        Vendor::Nvd => {
            set("CUDA_VISIBLE_DEVICES", ids);
            // As NVML counts, where the ids are from; CUDA's own order begins with the fastest
            // device.
            set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
        }
        Vendor::Amd => set("HIP_VISIBLE_DEVICES", ids),
    }
    let devices = match work.job.vendor {
        Vendor::Cpu => vec!["cpu".to_owned()],
        _ => given.iter().map(|gpu| gpu.lock.clone()).collect(),
    };
    let meta = Meta {
        key: work.key,
        task: work.label.clone(),
        preimage: work.preimage.clone(),
        generation: work.generation,
        log_section: work.log_section.clone(),
        repeats_planned: work.repeats_planned,
        job: Some(work.job.clone()),
        statistics: work.statistics.clone(),
    };
    let container = contain(work, host, &given, (id, dir), &mut env)?;
    Secrets::note(&env, dir)?;
    let of_job = || JobSpec {
        vendor: work.job.vendor,
        num_gpus: (work.job.parallelism.num_gpus / work.job.parallelism.num_nodes.max(1)) as usize,
        nodes: work.job.parallelism.num_nodes as usize,
        is_step: work.execution.place == Place::Allocation,
        facts: work.facts.clone(),
        packages: work.packages.clone(),
        python: work.python.clone(),
        settings: work.execution.slurm.clone(),
    };
    Ok(RunSpec {
        container,
        job: (work.execution.place != Place::Local).then(of_job),
        run_id: id.to_owned(),
        dir: dir.to_owned(),
        argv: work.command.clone(),
        env,
        cwd: dir.to_owned(),
        timeout_seconds: work.timeout_seconds,
        hang: work.hang.clone(),
        grace_seconds: host.grace_seconds,
        devices,
        sampled: Some(work.job.vendor),
        exclusive: work.exclusive,
        lock_dir: host.lock_dir.clone(),
        watched: Vec::new(),
        meta: serde_json::to_value(meta)
            .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?,
    })
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::Failed {
            message: format!(
                "the path {} is not UTF-8, so no script can be told of it",
                path.display()
            ),
            help: None,
        })
}

/// Reports the run's progress until `over` has no other end any more.
fn follow(
    work: &TrainWork,
    (run, log): (&dyn Run, &Path),
    over: mpsc::Receiver<()>,
    events: &EventSink,
) {
    let mut tail = Tail::new(log);
    let (mut samples, mut power_watts) = (Tail::new(&log.with_file_name(TELEMETRY)), None);
    let mut live = logs::Live::new(&work.log_section);
    let tokens_per_step = work
        .job
        .data
        .global_batch_size
        .saturating_mul(work.job.data.seq_length);
    let (mut waiting_for, mut changed) = (None, Vec::new());
    loop {
        // The header, and a line of a newer sampler, say nothing of the power.
        let _ = samples.poll(&mut |line| {
            power_watts = serde_json::from_str(line)
                .ok()
                .as_ref()
                .and_then(TelemetryLine::power_watts);
        });
        let _ = tail.poll(&mut |line| {
            if let Some(step) = live.feed(line.as_bytes()) {
                events.report(&Event::Step {
                    task: work.label.clone(),
                    step: step.step,
                    steps_total: Some(work.job.train_iters),
                    step_time_seconds: step.step_time_seconds,
                    loss: step.loss,
                    tokens_per_second: step
                        .step_time_seconds
                        .filter(|t| *t > 0.0)
                        .map(|t| step.tokens.unwrap_or(tokens_per_step) as f64 / t),
                    power_watts,
                });
            }
        });
        let state = run.state();
        let what_for = match &state {
            RunState::WaitingForDevice { device, holder } => {
                let held =
                    |h: &super::Holder| format!(" held by process {} (run {})", h.pid, h.run_id);
                Some(format!(
                    "{device}{}",
                    holder.as_ref().map(held).unwrap_or_default()
                ))
            }
            RunState::Queued { reason } => Some(reason.clone()),
            _ => None,
        };
        if let Some(what_for) = what_for.filter(|what_for| waiting_for.as_ref() != Some(what_for)) {
            events.report(&Event::TaskWaiting {
                task: work.label.clone(),
                what_for: what_for.clone(),
            });
            waiting_for = Some(what_for);
        }
        if let RunState::Running { changed: seen, .. } = state
            && seen.len() > changed.len()
        {
            changed = seen;
            let message = format!(
                "{} will not count: {} changed while it runs",
                work.label,
                changed.join(", ")
            );
            events.report(&Event::Note { message });
        }
        if over.recv_timeout(FOLLOW_LOOK) != Err(mpsc::RecvTimeoutError::Timeout) {
            return;
        }
    }
}
