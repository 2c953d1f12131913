//! One train task: from its key to an attempt in the cache.
//!
//! The run folder is made whole before the supervisor starts; what it left is in the cache before the
//! folder goes. In between, whoever dies, the next build finds the folder (see `sweep`) and takes it in.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Talk,
    events::Event,
    progress::Tail,
    run::{ExitKind, RunExit, RunSpec, RunState, Running, TELEMETRY, exit_path, read_exit, spec_path, start},
    schedule::sweep_up,
    secrets::Secrets,
    sweep::{self, making, remove},
    watch::{Watched, outdated},
};
use crate::{
    analyze::{RunResult, Signs, Statistics, memory_of_others},
    cache::{Attempt, AttemptOutcome, Cache, KeyLock, Output},
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability, write_atomically},
    parse::{self, ExitSummary, FailureClass, LogSection},
    plan::{Job, Vendor},
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
    /// By which it is judged what disturbed the run.
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
    pub exclusive: bool,
    /// The devices given to this run, as positions in [`TrainHost::gpus`]; empty on the cpu platform.
    pub devices: Vec<usize>,
}

/// What holds for every run of a build.
pub struct TrainHost {
    pub project: PathBuf,
    pub runs: PathBuf,
    pub lock_dir: PathBuf,
    /// The tprimat binary, which is also the supervisor.
    pub tprimat: PathBuf,
    pub native: Option<PathBuf>,
    /// The same as the pre-flight saw it.
    pub native_seen: OnceLock<Watched>,
    pub hostname: String,
    pub caller_env: BTreeMap<String, String>,
    pub grace_seconds: f64,
    /// The accelerators that runs may be given: index as its driver counts, lock name.
    pub gpus: Vec<(usize, String)>,
}

/// What a run folder says about its run, for a tprimat that finds it later.
#[derive(Serialize, Deserialize)]
struct Meta {
    key: Digest,
    task: String,
    preimage: String,
    generation: u32,
    #[serde(default)]
    log_section: LogSection,
    #[serde(default)]
    repeats_planned: Option<u32>,
    /// Absent in folders of an older tprimat, whose runs are not judged.
    #[serde(default)]
    job: Option<Job>,
    #[serde(default)]
    statistics: Statistics,
}

/// As much of a log's end as may tell why its run failed.
const TAIL: u64 = 8 << 20;

/// How often a key that another tprimat holds is looked at.
const KEY_LOOK: Duration = Duration::from_millis(50);

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

/// Families of variables that change what trainers do. They are never passed on by accident, and what was set is reported.
const DROPPED: &[&str] =
    &["NCCL_", "RCCL_", "CUDA_", "HIP_", "HSA_", "ROCR_", "PYTORCH_", "TORCH_", "OMP_", "MKL_", "LD_", "PYTHON"];

/// Which variables of the caller change trainers and are not passed on.
#[must_use]
pub fn dropped_env(caller: &BTreeMap<String, String>) -> Vec<&str> {
    caller.keys().map(String::as_str).filter(|name| DROPPED.iter().any(|family| name.starts_with(family))).collect()
}

/// Lets the scheduler end what runs.
#[derive(Default)]
pub struct RunningSet {
    runs: Mutex<Vec<Arc<Running>>>,
    stopped: AtomicBool,
}

impl RunningSet {
    fn add(&self, run: &Arc<Running>) {
        self.lock().push(run.clone());
        if self.stopped.load(Ordering::SeqCst) {
            run.terminate();
        }
    }
    fn remove(&self, run: &Arc<Running>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, run));
    }
    /// SIGTERM, grace, SIGKILL, for every run now and to come.
    pub fn terminate(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.lock().iter().for_each(|run| run.terminate());
    }
    pub fn kill(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.lock().iter().for_each(|run| run.kill());
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Running>>> {
        self.runs.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What became of a train task.
pub enum Trained {
    Attempt(Box<Attempt>),
    /// Nothing ran: the names of what the run would read and the plan knows with other content.
    Outdated(Vec<String>),
}

/// Runs one train task, or takes the attempt that another tprimat made meanwhile.
pub fn train(work: &TrainWork, host: &TrainHost, cache: &Cache, running: &RunningSet, talk: &Talk) -> Result<Trained> {
    let _in_flight = in_flight(work, cache, running, talk)?;
    take_in_what_is_left(work, host, cache, running, talk)?;
    cache.refresh()?;
    if let Some(done) = made_meanwhile(cache, work) {
        return Ok(Trained::Attempt(Box::new(done)));
    }
    let mut watched = work.watched.clone();
    watched.extend(host.native_seen.get().filter(|_| work.needs_native).cloned());
    let outdated = outdated(&mut watched);
    if !outdated.is_empty() {
        return Ok(Trained::Outdated(outdated));
    }
    let id = attempt_id();
    let dir = host.runs.join(&id);
    let making = making(&host.runs)?;
    let spec = RunSpec { watched, ..prepare(work, host, &id, &dir)? };
    let run = Arc::new(start(&spec, &host.tprimat)?);
    drop(making);
    running.add(&run);
    let over = AtomicBool::new(false);
    let exit = std::thread::scope(|scope| {
        scope.spawn(|| follow(work, &run, &over, talk));
        let exit = run.wait();
        over.store(true, Ordering::SeqCst);
        exit
    });
    running.remove(&run);
    let attempt = ingest(cache, &spec, Some(&exit?), &run.log_path(), &host.hostname)?;
    remove(&dir);
    Ok(Trained::Attempt(Box::new(attempt)))
}

/// The lock of the key. Another tprimat may train it now, for hours: an interrupt ends the wait.
fn in_flight(work: &TrainWork, cache: &Cache, running: &RunningSet, talk: &Talk) -> Result<KeyLock> {
    let mut is_told = false;
    loop {
        if let Some(lock) = cache.try_lock_key(&work.key)? {
            return Ok(lock);
        }
        if running.stopped.load(Ordering::SeqCst) {
            return Err(Error::Interrupted(0));
        }
        if !is_told {
            let what_for = "another tprimat, which runs the same training".to_owned();
            talk.report(&Event::TaskWaiting { task: work.label.clone(), what_for });
            is_told = true;
        }
        std::thread::sleep(KEY_LOOK);
    }
}

/// A tprimat that held the key may have died with a run that was over: that run is the measurement, and is not made again. Its
/// supervisor may still be ending it.
fn take_in_what_is_left(
    work: &TrainWork,
    host: &TrainHost,
    cache: &Cache,
    running: &RunningSet,
    talk: &Talk,
) -> Result<()> {
    let mut is_told = false;
    // While this build holds the key, no other one runs it: whoever made such a folder is dead, or takes one up just now.
    while let Some(dir) = sweep::run_folders(&host.runs).into_iter().find(|dir| key_of_run(dir) == Some(work.key)) {
        sweep_up(cache, host, talk)?;
        if !dir.exists() {
            continue;
        }
        if sweep::is_abandoned(&dir) {
            // Nobody can take it in: it cannot be read.
            return Ok(());
        }
        if running.stopped.load(Ordering::SeqCst) {
            return Err(Error::Interrupted(0));
        }
        if !is_told {
            let what_for = format!("the end of {}, which an earlier build left", dir.display());
            talk.report(&Event::TaskWaiting { task: work.label.clone(), what_for });
            is_told = true;
        }
        std::thread::sleep(KEY_LOOK);
    }
    Ok(())
}

/// What another tprimat did while this one waited for the key: a measurement, one that was disturbed just now, or a
/// failure that would come again.
fn made_meanwhile(cache: &Cache, work: &TrainWork) -> Option<Attempt> {
    let serves = |a: &Attempt| match &a.outcome {
        _ if a.generation != work.generation || a.set_aside.is_some() => false,
        AttemptOutcome::Ok => {
            (a.suspect.is_none() || !work.seen.contains(&a.id)) && a.log().is_none_or(|log| cache.has(&log.digest))
        }
        AttemptOutcome::Failed { .. } => a.will_fail_again() && !work.seen.contains(&a.id),
    };
    let attempts = cache.attempts(&work.key);
    let best =
        attempts.iter().filter(|a| serves(a)).min_by_key(|a| (a.outcome != AttemptOutcome::Ok, a.suspect.is_some()));
    best.cloned()
}

/// Sorts by time, and two hosts never make the same one.
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
    for name in PASSED.iter().copied().chain(work.pass_env.iter().map(String::as_str)) {
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
    set("TPRIMAT_PORT", free_port()?.to_string());
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
    let given: Vec<&(usize, String)> = work.devices.iter().filter_map(|i| host.gpus.get(*i)).collect();
    let ids = given.iter().map(|(index, _)| index.to_string()).collect::<Vec<_>>().join(",");
    match work.job.vendor {
        Vendor::Cpu => {}
        Vendor::Nvd => {
            set("CUDA_VISIBLE_DEVICES", ids);
            // As NVML counts, where the ids are from; CUDA's own order begins with the fastest device.
            set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
        }
        Vendor::Amd => set("HIP_VISIBLE_DEVICES", ids),
    }
    let devices = match work.job.vendor {
        Vendor::Cpu => vec!["cpu".to_owned()],
        _ => given.iter().map(|(_, lock)| lock.clone()).collect(),
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
    Ok(RunSpec {
        run_id: id.to_owned(),
        dir: dir.to_owned(),
        argv: work.command.clone(),
        env,
        cwd: dir.to_owned(),
        timeout_seconds: work.timeout_seconds,
        grace_seconds: host.grace_seconds,
        devices,
        sampled: Some(work.job.vendor),
        exclusive: work.exclusive,
        lock_dir: host.lock_dir.clone(),
        watched: Vec::new(),
        meta: serde_json::to_value(meta).map_err(|e| Error::Cache(e.to_string()))?,
    })
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| Error::Failed {
        message: format!("the path {} is not UTF-8, so no script can be told of it", path.display()),
        help: None,
    })
}

/// A port that was free just now; launchers that need one take it from `$TPRIMAT_PORT`.
fn free_port() -> Result<u16> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr());
    Ok(bound.map_err(Error::io("cannot find a free port on", "127.0.0.1"))?.port())
}

/// Reports the run's progress until it is over.
fn follow(work: &TrainWork, run: &Running, over: &AtomicBool, talk: &Talk) {
    let mut tail = Tail::new(&run.log_path());
    let mut live = parse::Live::new(&work.log_section);
    let tokens_per_step = work.job.data.global_batch_size.saturating_mul(work.job.data.seq_length);
    let mut waiting_for = None;
    while !over.load(Ordering::SeqCst) {
        let _ = tail.poll(&mut |line| {
            if let Some(step) = live.feed(line.as_bytes()) {
                talk.report(&Event::Step {
                    task: work.label.clone(),
                    step: step.step,
                    steps_total: Some(work.job.train_iters),
                    step_time_seconds: step.step_time_seconds,
                    loss: step.loss,
                    tokens_per_second: step
                        .step_time_seconds
                        .filter(|t| *t > 0.0)
                        .map(|t| step.tokens.unwrap_or(tokens_per_step) as f64 / t),
                });
            }
        });
        if let RunState::WaitingForDevice { device, holder } = run.state()
            && waiting_for.as_ref() != Some(&device)
        {
            let holder = holder.map(|h| format!(" held by process {} (run {})", h.pid, h.run_id)).unwrap_or_default();
            talk.report(&Event::TaskWaiting { task: work.label.clone(), what_for: format!("{device}{holder}") });
            waiting_for = Some(device);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Takes what a run left into the cache: the log first, then the attempt that names it.
pub fn ingest(cache: &Cache, spec: &RunSpec, exit: Option<&RunExit>, log: &Path, hostname: &str) -> Result<Attempt> {
    let meta: Meta = serde_json::from_value(spec.meta.clone())
        .map_err(|e| Error::Cache(format!("the run folder {} is not readable: {e}", spec.dir.display())))?;
    if let Ok(log) = std::fs::OpenOptions::new().read(true).write(true).open(log) {
        // The supervisor has masked the log, unless it was killed before it could. Then the run's own environment is known
        // where the same tprimat takes it in; later, what the caller has now is as good a guess as any.
        for secrets in [Secrets::of(&spec.env), Secrets::of_caller()] {
            secrets.mask_file(&log).map_err(Error::io("cannot mask secrets in the log of", &spec.dir))?;
        }
    }
    let mut outputs = Vec::new();
    for name in ["log", "times", TELEMETRY] {
        let path = log.with_file_name(name);
        if path.is_file() {
            let (digest, size) = cache.put_file(&path, Durability::Synced)?;
            outputs.push(Output { name: name.to_owned(), digest, size });
        }
    }
    if !outputs.iter().any(|o| o.name == "log") {
        let digest = cache.put(b"", Durability::Synced)?;
        outputs.insert(0, Output { name: "log".to_owned(), digest, size: 0 });
    }
    let now = files::unix_now();
    let mut attempt = Attempt {
        id: spec.run_id.clone(),
        key: meta.key,
        task: meta.task,
        preimage: meta.preimage,
        generation: meta.generation,
        outcome: outcome(exit, log, &meta.log_section),
        outputs,
        started_at: exit.map_or(now, |e| e.started_at),
        ended_at: exit.map_or(now, |e| e.ended_at),
        host: hostname.to_owned(),
        suspect: None,
        repeats_planned: meta.repeats_planned,
        set_aside: None,
        recorded: 0,
    };
    attempt.suspect = match exit.map(|exit| exit.changed.join(", ")) {
        Some(changed) if !changed.is_empty() => Some(format!("inputs changed while it ran: {changed}")),
        _ => disturbance(&attempt, log, meta.job.as_ref(), &meta.log_section, &meta.statistics),
    };
    cache.record_attempt(&attempt)?;
    Ok(attempt)
}

/// What disturbed a run that ended well, or took the memory of one that ran out of it. A good run's log is read only where
/// the samples have signs of it.
fn disturbance(
    attempt: &Attempt,
    log: &Path,
    job: Option<&Job>,
    section: &LogSection,
    statistics: &Statistics,
) -> Option<String> {
    let signs = || Signs::read(&std::fs::read(log.with_file_name(TELEMETRY)).ok()?);
    match &attempt.outcome {
        AttemptOutcome::Failed { class: FailureClass::Oom, .. } => {
            return signs().and_then(|signs| signs.others()).or_else(|| memory_of_others(&tail_of(log, TAIL)));
        }
        AttemptOutcome::Failed { .. } => return None,
        AttemptOutcome::Ok => {}
    }
    let signs = signs()?;
    let times = std::fs::read(log.with_file_name("times")).ok()?;
    let trace = parse::parse_dated(section, &std::fs::read(log).ok()?, &times);
    signs.judge(&RunResult::from(trace, job?, super::derived::facts_of(attempt)), statistics)
}

fn outcome(exit: Option<&RunExit>, log: &Path, section: &LogSection) -> AttemptOutcome {
    let Some(exit) = exit else {
        let evidence = vec!["the run ended without a record of how".to_owned()];
        return AttemptOutcome::Failed { class: FailureClass::Killed, evidence, status: "unknown".into() };
    };
    let mut summary = ExitSummary::default();
    let status = match &exit.status {
        ExitKind::Code(0) => return ended_well(&tail_of(log, TAIL), section),
        ExitKind::Code(code) => {
            summary.code = Some(*code);
            format!("exit {code}")
        }
        ExitKind::Signal(signal) => {
            summary.signal = Some(*signal);
            format!("signal {signal}")
        }
        ExitKind::Timeout => {
            summary.timed_out = true;
            "timeout".into()
        }
        ExitKind::Interrupted => {
            let evidence = vec!["tprimat was interrupted".to_owned()];
            return AttemptOutcome::Failed { class: FailureClass::Killed, evidence, status: "interrupted".into() };
        }
        ExitKind::LaunchFailed(why) => {
            summary.launch_error = Some(why.clone());
            "launch failed".into()
        }
    };
    let failure = parse::classify(&tail_of(log, TAIL), &summary);
    AttemptOutcome::Failed { class: failure.class, evidence: failure.evidence, status }
}

/// Exit 0 is the trainer's word only if its log does not say otherwise.
fn ended_well(log_tail: &[u8], section: &LogSection) -> AttemptOutcome {
    match parse::parse(section, log_tail).failure {
        None => AttemptOutcome::Ok,
        Some(failure) => AttemptOutcome::Failed {
            class: failure.class,
            evidence: failure.evidence,
            status: "exit 0, but the trainer reports an error".into(),
        },
    }
}

fn tail_of(path: &Path, most: u64) -> Vec<u8> {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().unwrap_or_default()
}

/// The folder of a run at this key that goes on now.
#[must_use]
pub fn live_run(runs: &Path, key: &Digest) -> Option<PathBuf> {
    let folders = std::fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
    folders.filter(|dir| !is_over(dir)).find(|dir| key_of_run(dir) == Some(*key))
}

/// Will nothing more be written into this run's folder? That is so too where tprimat and the supervisor were both killed.
#[must_use]
pub fn is_over(dir: &Path) -> bool {
    !spec_path(dir).exists() || exit_path(dir).exists() || sweep::is_abandoned(dir)
}

/// Keys of runs that ended well, and that the next build takes in because the tprimat that asked for them is dead.
#[must_use]
pub fn left_behind(runs: &Path) -> BTreeSet<Digest> {
    let folders = sweep::run_folders(runs).into_iter().filter(|dir| sweep::is_abandoned(dir));
    let ended_well = folders.filter(|dir| read_exit(dir).is_some_and(|exit| exit.status == ExitKind::Code(0)));
    ended_well.filter_map(|dir| key_of_run(&dir)).collect()
}

fn key_of_run(dir: &Path) -> Option<Digest> {
    let spec: RunSpec = serde_json::from_slice(&files::read(&spec_path(dir)).ok()?).ok()?;
    serde_json::from_value::<Meta>(spec.meta).ok().map(|meta| meta.key)
}
