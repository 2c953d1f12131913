//! Runs as batch jobs: one job a run, which holds the run's supervisor on its node. Project and cache are on a file system that
//! the nodes share.
//!
//! | what happens | what follows |
//! |---|---|
//! | tprimat dies, Ctrl-C | the job goes on; the next build finds it by its name and takes it up |
//! | tprimat dies within the submission | Slurm is asked for a job of that name before another one is submitted |
//! | the job starts twice all the same | the second one finds `claim` in the run folder, and ends |
//! | slurmctld does not answer | it is asked again until it does |
//! | the job ends without `exit.json` | Slurm says why: lost node, preempted, out of time, out of memory, cancelled |
//! | the node differs from tprimat.lock | nothing runs there; the failure names the lines |

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    executor::{Executor, Run},
    run::{ExitKind, RunExit, RunSpec, RunState, owner_lock_path, read_exit, spec_path, state_path, take_lock},
    sweep,
};
use crate::{
    cache::Undeclared,
    error::{Error, Result},
    files::{self, Durability, unix_now},
    host::{self, Fact, ask, last_line},
    plan::{Slurm as Settings, Vendor},
};

/// `tprimat __job DIR` is the supervisor of the run in DIR, inside its job.
pub const JOB_ARGUMENT: &str = "__job";

/// A command of Slurm that takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the run folder is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Between two questions to Slurm, first and last: a cluster has many users.
const QUESTIONS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// How long after a job's end its files may take to be seen here.
const SETTLE: Duration = Duration::from_secs(5);

/// What the job of a run must know beside its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    pub vendor: Vendor,
    pub num_gpus: usize,
    /// What tprimat.lock pins of the platform: the node must agree, or nothing runs there.
    pub facts: BTreeMap<String, Fact>,
    pub settings: Settings,
}

/// Submits to the cluster of this host.
pub struct Slurm {
    pub tprimat: PathBuf,
    /// The caller's: PATH to Slurm's commands, and where its configuration is.
    pub env: BTreeMap<String, String>,
}

/// A run that is a job, or is about to be.
pub struct Job {
    spec: RunSpec,
    slurm: Commands,
    tprimat: PathBuf,
    id: Mutex<Option<String>>,
    /// What the queue says of it.
    reason: Mutex<String>,
    /// Nobody waits for it any more; it goes on.
    is_left: AtomicBool,
    is_cancelled: AtomicBool,
    /// An earlier tprimat started it. Its folder may have come with a project, so it is never what a new job runs.
    is_attached: bool,
    _owner: File,
}

impl Executor for Slurm {
    fn start(&self, spec: &RunSpec) -> Result<Box<dyn Run>> {
        let dir = &spec.dir;
        files::create_dir_all(dir)?;
        let owner = take_lock(&owner_lock_path(dir))?;
        // For the job alone, which removes it as soon as it has read it.
        let environment = serde_json::to_vec(&spec.env).unwrap_or_default();
        write_private(&environment_path(dir), &environment)
            .map_err(Error::io("cannot write", environment_path(dir)))?;
        let text = serde_json::to_vec_pretty(spec)
            .map_err(|e| Error::Failed { message: format!("cannot describe run {}: {e}", spec.run_id), help: None })?;
        // From here on the run folder says that there is or will be a job.
        files::write_atomically(&spec_path(dir), &text, Durability::Synced)?;
        Ok(Box::new(self.job(spec.clone(), owner, false)))
    }

    fn attach(&self, dir: &Path) -> Result<Option<(RunSpec, Box<dyn Run>)>> {
        let Ok(owner) = OpenOptions::new().read(true).write(true).open(owner_lock_path(dir)) else { return Ok(None) };
        if owner.try_lock().is_err() {
            return Ok(None);
        }
        let spec = files::read(&spec_path(dir)).ok().and_then(|text| serde_json::from_slice::<RunSpec>(&text).ok());
        let Some(spec) = spec.filter(|spec| spec.job.is_some() && spec.dir == dir) else { return Ok(None) };
        Ok(Some((spec.clone(), Box::new(self.job(spec, owner, true)))))
    }
}

impl Slurm {
    fn job(&self, spec: RunSpec, owner: File, is_attached: bool) -> Job {
        let id = fs::read_to_string(job_path(&spec.dir)).ok();
        Job {
            slurm: Commands { env: self.env.clone() },
            tprimat: self.tprimat.clone(),
            id: Mutex::new(id.map(|id| id.trim().to_owned())),
            reason: Mutex::new("not submitted yet".into()),
            is_left: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            is_attached,
            _owner: owner,
            spec,
        }
    }
}

/// The job's id, as soon as it is known.
fn job_path(dir: &Path) -> PathBuf {
    dir.join("job")
}
/// Which job runs it; made once.
fn claim_path(dir: &Path) -> PathBuf {
    dir.join("claim")
}
fn environment_path(dir: &Path) -> PathBuf {
    dir.join("environment")
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn job_name(run_id: &str) -> String {
    format!("tprimat-{run_id}")
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run for Job {
    fn state(&self) -> RunState {
        let text = fs::read(state_path(&self.spec.dir)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_else(|_| RunState::Queued { reason: self.told() })
    }

    fn terminate(&self) {
        match &self.spec.job {
            Some(job) if job.settings.cancel_on_interrupt => self.cancel(),
            _ => self.is_left.store(true, Ordering::SeqCst),
        }
    }

    fn kill(&self) {
        self.terminate();
    }

    fn wait(&self) -> Result<RunExit> {
        let (mut pause, most) = QUESTIONS;
        let mut asked: Option<Instant> = None;
        let mut over_since: Option<Instant> = None;
        loop {
            if let Some(exit) = read_exit(&self.spec.dir) {
                return Ok(self.explained(exit));
            }
            if self.is_left.load(Ordering::SeqCst) {
                return Err(Error::Interrupted(0));
            }
            if asked.is_none_or(|asked| asked.elapsed() >= pause) {
                asked = Some(Instant::now());
                pause = pause.mul_f64(1.3).min(most);
                match self.look()? {
                    Standing::There => over_since = None,
                    Standing::Silent => {}
                    Standing::Over => drop(over_since.get_or_insert_with(Instant::now)),
                }
            }
            if over_since.is_some_and(|since| since.elapsed() >= SETTLE) {
                let id = locked(&self.id).clone().unwrap_or_default();
                return Ok(read_exit(&self.spec.dir).unwrap_or_else(|| ended_unseen(&self.spec, &self.slurm, &id)));
            }
            thread::sleep(LOOK);
        }
    }

    fn goes_on(&self) -> Option<String> {
        if !self.is_left.load(Ordering::SeqCst) {
            return None;
        }
        let id = locked(&self.id).clone()?;
        Some(format!("Slurm job {id} goes on: the next build takes it up, `scancel {id}` ends it"))
    }
}

/// What Slurm says of a job, as far as a wait needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    There,
    Over,
    /// It does not answer. What cannot be reached is not gone.
    Silent,
}

impl Job {
    fn told(&self) -> String {
        let id = locked(&self.id).clone().map_or_else(String::new, |id| format!("Slurm job {id}: "));
        format!("{id}{}", locked(&self.reason))
    }

    fn tell(&self, reason: String) {
        *locked(&self.reason) = reason;
    }

    /// Submits what was not submitted, else asks how the job stands.
    fn look(&self) -> Result<Standing> {
        let known = locked(&self.id).clone();
        let Some(id) = known else { return self.submit() };
        match self.slurm.state(&id) {
            Ok(Some((state, reason))) => {
                let because = if reason == "None" { String::new() } else { format!(" ({reason})") };
                self.tell(format!("{}{because}", state.to_lowercase()));
                Ok(if is_final(&state) { Standing::Over } else { Standing::There })
            }
            Ok(None) => Ok(Standing::Over),
            Err(why) => {
                self.tell(format!("Slurm does not answer: {why}"));
                Ok(Standing::Silent)
            }
        }
    }

    /// One attempt at it. A submission that nobody heard the answer of has happened, or has not: Slurm is asked first.
    fn submit(&self) -> Result<Standing> {
        let name = job_name(&self.spec.run_id);
        match self.slurm.find(&name) {
            Ok(Some(id)) => return self.submitted(id),
            Ok(None) => {}
            Err(why) => {
                self.tell(format!("Slurm does not answer: {why}"));
                return Ok(Standing::Silent);
            }
        }
        if claim_path(&self.spec.dir).exists() {
            // It was submitted and has run; its id was lost with whoever submitted it.
            let id = fs::read_to_string(claim_path(&self.spec.dir)).unwrap_or_default();
            *locked(&self.id) = Some(id.trim().to_owned());
            return Ok(Standing::Over);
        }
        if self.is_attached {
            return Ok(Standing::Over);
        }
        let script = self.spec.dir.join("job.sh");
        let line = [self.tprimat.to_string_lossy(), JOB_ARGUMENT.into(), self.spec.dir.to_string_lossy()];
        let line = shlex::try_join(line.iter().map(AsRef::as_ref))
            .map_err(|e| Error::Failed { message: e.to_string(), help: None })?;
        files::write_atomically(&script, format!("#!/bin/sh\nexec {line}\n").as_bytes(), Durability::Plain)?;
        let mut arguments = self.arguments(&name);
        arguments.push(script.to_string_lossy().into_owned());
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match self.slurm.run("sbatch", &words) {
            // With --parsable: the id, and the cluster's name behind a semicolon where there are several.
            Ok(said) => self.submitted(said.trim().split(';').next().unwrap_or_default().to_owned()),
            Err(why) if is_passing(&why) => {
                self.tell(format!("sbatch does not get through: {why}"));
                Ok(Standing::Silent)
            }
            Err(why) => {
                sweep::remove(&self.spec.dir);
                Err(Error::Failed {
                    message: format!("sbatch refused the job: {why}"),
                    help: Some("execution.<platform>.slurm in config.yaml says what it was asked for".into()),
                })
            }
        }
    }

    fn submitted(&self, id: String) -> Result<Standing> {
        files::write_atomically(&job_path(&self.spec.dir), id.as_bytes(), Durability::Synced)?;
        *locked(&self.id) = Some(id);
        self.tell("submitted".into());
        Ok(Standing::There)
    }

    fn arguments(&self, name: &str) -> Vec<String> {
        let dir = self.spec.dir.display();
        let mut arguments = vec![
            "--parsable".to_owned(),
            // A run that begins again in the same folder would mix two logs.
            "--no-requeue".into(),
            format!("--job-name={name}"),
            format!("--output={dir}/supervisor.log"),
            format!("--chdir={dir}"),
            // Nothing of the caller's shell that the run did not declare.
            "--export=PATH,HOME,LD_LIBRARY_PATH,TPRIMAT_LOCK_DIR".into(),
            "--nodes=1".into(),
            "--ntasks=1".into(),
        ];
        let Some(JobSpec { vendor, num_gpus, settings, .. }) = &self.spec.job else { return arguments };
        let stated = [
            ("account", &settings.account),
            ("partition", &settings.partition),
            ("qos", &settings.qos),
            ("constraint", &settings.constraint),
            ("time", &settings.time),
        ];
        for (name, value) in stated {
            arguments.extend(value.as_ref().map(|value| format!("--{name}={value}")));
        }
        let gres = match &settings.gres {
            Some(gres) => Some(gres.clone()).filter(|gres| !gres.is_empty()),
            None => (*vendor != Vendor::Cpu).then(|| format!("gpu:{num_gpus}")),
        };
        arguments.extend(gres.map(|gres| format!("--gres={gres}")));
        arguments.extend(settings.exclusive.then(|| "--exclusive".to_owned()));
        arguments.extend(settings.options.iter().cloned());
        arguments
    }

    /// SIGTERM to the supervisor in the job, which ends the run with grace; then the job itself.
    fn cancel(&self) {
        if self.is_cancelled.swap(true, Ordering::SeqCst) {
            return;
        }
        let Some(id) = locked(&self.id).clone() else {
            self.is_left.store(true, Ordering::SeqCst);
            return;
        };
        // A job that has not started has nothing to end with grace.
        let has_started = claim_path(&self.spec.dir).exists();
        let arguments: &[&str] = if has_started { &["--full", "--signal=TERM", &id] } else { &[&id] };
        if let Err(why) = self.slurm.run("scancel", arguments) {
            self.tell(format!("scancel: {why}"));
        }
    }

    /// A supervisor that was told to end does not know why, nor does a trainer that got the signal first; Slurm does.
    fn explained(&self, exit: RunExit) -> RunExit {
        let is_told = match exit.status {
            ExitKind::Interrupted | ExitKind::Signal(9 | 15) => true,
            ExitKind::Code(code) => [137, 143].contains(&code),
            _ => false,
        };
        if !is_told || self.is_cancelled.load(Ordering::SeqCst) {
            return exit;
        }
        let id = locked(&self.id).clone().unwrap_or_default();
        // The job's end may take a moment to be known.
        let begun = Instant::now();
        loop {
            match self.slurm.fate(&id) {
                Some(status) => return RunExit { status, ..exit },
                None if begun.elapsed() >= SETTLE => return exit,
                None => thread::sleep(LOOK),
            }
        }
    }
}

/// What became of a run whose tprimat is dead.
pub(super) enum Left {
    /// It goes on, or Slurm does not answer.
    GoesOn,
    /// Its tprimat died before the submission: nothing has run.
    NeverWas,
    Ended(Box<RunExit>),
}

pub(super) fn left(spec: &RunSpec, env: &BTreeMap<String, String>) -> Left {
    let slurm = Commands { env: env.clone() };
    let noted = fs::read_to_string(job_path(&spec.dir)).or_else(|_| fs::read_to_string(claim_path(&spec.dir)));
    let id = match noted {
        Ok(id) => id.trim().to_owned(),
        Err(_) => match slurm.find(&job_name(&spec.run_id)) {
            Ok(Some(id)) => id,
            Ok(None) => return Left::NeverWas,
            Err(_) => return Left::GoesOn,
        },
    };
    let is_over = match slurm.state(&id) {
        Ok(Some((state, _))) => is_final(&state),
        Ok(None) => true,
        Err(_) => false,
    };
    if !is_over {
        return Left::GoesOn;
    }
    // Written just before the end, it may have come in between.
    let unseen = || ended_unseen(spec, &slurm, &id);
    Left::Ended(Box::new(read_exit(&spec.dir).unwrap_or_else(unseen)))
}

fn ended_unseen(spec: &RunSpec, slurm: &Commands, id: &str) -> RunExit {
    let now = unix_now();
    let state = fs::read(state_path(&spec.dir)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let started_at = if let Some(RunState::Running { since, .. }) = state { since } else { now };
    let unknown = || ExitKind::Lost(format!("Slurm job {id} is over and left no word of how its run ended"));
    let said = fs::read(spec.dir.join("supervisor.log")).unwrap_or_default();
    let note = (!said.is_empty()).then(|| last_line(&said));
    RunExit {
        status: slurm.fate(id).unwrap_or_else(unknown),
        started_at,
        ended_at: now,
        waited_seconds: 0.0,
        leftover: 0,
        survivors: 0,
        changed: Vec::new(),
        undeclared: Undeclared::default(),
        host: None,
        note,
    }
}

/// Slurm's commands, as the caller would run them.
struct Commands {
    env: BTreeMap<String, String>,
}

impl Commands {
    /// What it printed; in words why it failed.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command =
            Command::new(host::which(program, &self.env).ok_or(format!("there is no {program} in PATH"))?);
        let said = ask(command.args(arguments).env_clear().envs(&self.env), PATIENCE)?;
        if said.status.success() {
            Ok(String::from_utf8_lossy(&said.stdout).into_owned())
        } else {
            Err(last_line(&said.stderr))
        }
    }

    /// State and reason of a job; `None`: Slurm answers, and knows no such job any more.
    fn state(&self, id: &str) -> Result<Option<(String, String)>, String> {
        match self.run("squeue", &["--noheader", "--states=all", "--format=%T|%r", "--jobs", id]) {
            Ok(said) => Ok(said.lines().next().and_then(|line| line.trim().split_once('|')).map(owned)),
            Err(why) if why.contains("Invalid job id") => Ok(None),
            Err(why) => Err(why),
        }
    }

    fn find(&self, name: &str) -> Result<Option<String>, String> {
        let named = format!("--name={name}");
        let said = self.run("squeue", &["--noheader", "--states=all", "--format=%i", &named])?;
        Ok(said.split_whitespace().next().map(str::to_owned))
    }

    /// Why a job ended that did not say so itself; `None`: it ended by itself, or nobody knows.
    fn fate(&self, id: &str) -> Option<ExitKind> {
        let shown = self.run("scontrol", &["--oneliner", "show", "job", id]).ok();
        let shown =
            shown.and_then(|text| text.split_whitespace().find_map(|w| w.strip_prefix("JobState=").map(str::to_owned)));
        let state = shown.or_else(|| {
            let arguments = ["--noheader", "--allocations", "--parsable2", "--format=State", "--jobs", id];
            let said = self.run("sacct", &arguments).ok()?;
            said.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
        })?;
        fate_of(id, &state)
    }
}

fn owned((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

fn fate_of(id: &str, state: &str) -> Option<ExitKind> {
    // `CANCELLED by 1000`
    match state.split_whitespace().next().unwrap_or_default() {
        "NODE_FAIL" => Some(ExitKind::Lost(format!("the node of Slurm job {id} failed"))),
        "BOOT_FAIL" => Some(ExitKind::Lost(format!("the node of Slurm job {id} did not start"))),
        "PREEMPTED" => Some(ExitKind::Killed(format!("Slurm preempted job {id} for another one"))),
        "OUT_OF_MEMORY" => {
            Some(ExitKind::Killed(format!("Slurm ended job {id}: it took more host memory than it had asked for")))
        }
        "CANCELLED" => Some(ExitKind::Killed(format!("Slurm job {id} was cancelled"))),
        "TIMEOUT" | "DEADLINE" => Some(ExitKind::Timeout),
        _ => None,
    }
}

fn is_final(state: &str) -> bool {
    const FINAL: [&str; 10] = [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ];
    FINAL.contains(&state)
}

/// Will the same submission get through later?
fn is_passing(why: &str) -> bool {
    const PASSING: [&str; 6] = [
        "Unable to contact",
        "no answer in",
        "Socket timed out",
        "Connection refused",
        "temporarily",
        "Zero Bytes were transmitted",
    ];
    PASSING.iter().any(|part| why.contains(part))
}

/// What a job does before its run may start: it takes the run for itself, and completes the spec with what only the node knows.
/// `None`: another job has it.
pub(super) fn claim(dir: &Path) -> Result<Option<RunSpec>> {
    let id = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let path = claim_path(dir);
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(mut file) => file.write_all(id.as_bytes()).map_err(Error::io("cannot write", &path))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        Err(error) => return Err(Error::io("cannot make", path)(error)),
    }
    let unreadable =
        |path: PathBuf| move |e: serde_json::Error| Error::Io { what: "cannot read", path, source: e.into() };
    let path = environment_path(dir);
    let env = serde_json::from_slice(&files::read(&path)?).map_err(unreadable(path.clone()))?;
    let _ = fs::remove_file(&path);
    let path = spec_path(dir);
    let spec: RunSpec = serde_json::from_slice(&files::read(&path)?).map_err(unreadable(path))?;
    Ok(Some(RunSpec { dir: dir.to_owned(), env, ..spec }))
}

/// Gives a run the devices that Slurm gave its job; in words why it cannot run on this node.
pub(super) fn settle_in(spec: &mut RunSpec) -> Result<(), String> {
    let Some(job) = spec.job.clone() else { return Ok(()) };
    let node = host::probe();
    let name = node.hostname.clone().unwrap_or_else(|| "this node".into());
    let Some(found) = node.section(job.vendor) else {
        return Err(format!("{name} has no device of the platform; execution.<platform>.slurm chooses the nodes"));
    };
    // A job sees those GPUs only that it was given.
    let differs = |(name, locked): &(&String, &Fact)| *name != "count" && found.facts.get(*name) != Some(locked);
    let differences: Vec<String> = job
        .facts
        .iter()
        .filter(differs)
        .map(|(fact, locked)| {
            let here = found.facts.get(fact).map_or_else(|| "nothing".to_owned(), ToString::to_string);
            format!("{fact} is {here}, locked is {locked}")
        })
        .collect();
    if !differences.is_empty() {
        return Err(format!("{name} differs from tprimat.lock, so nothing was run on it: {}", differences.join("; ")));
    }
    let variable = match job.vendor {
        Vendor::Cpu => return Ok(()),
        Vendor::Nvd => "CUDA_VISIBLE_DEVICES",
        Vendor::Amd => "HIP_VISIBLE_DEVICES",
    };
    let visible = std::env::var(variable).ok();
    let mut given = node.usable(job.vendor, visible.as_deref());
    if given.len() < job.num_gpus {
        return Err(format!("Slurm gave the job {} GPUs on {name}, the run needs {}", given.len(), job.num_gpus));
    }
    given.truncate(job.num_gpus);
    let locks = node.device_locks(job.vendor);
    spec.devices = given.iter().filter_map(|index| locks.get(*index).cloned()).collect();
    let ids: Vec<String> = given.iter().map(ToString::to_string).collect();
    spec.env.insert(variable.to_owned(), ids.join(","));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(settings: Settings, vendor: Vendor) -> Job {
        let facts = BTreeMap::new();
        let spec = RunSpec {
            run_id: "r1".into(),
            dir: "/shared/runs/r1".into(),
            argv: vec!["true".into()],
            env: BTreeMap::new(),
            cwd: "/".into(),
            container: None,
            job: Some(JobSpec { vendor, num_gpus: 4, facts, settings }),
            timeout_seconds: None,
            grace_seconds: 1.0,
            devices: Vec::new(),
            sampled: None,
            exclusive: true,
            lock_dir: "/tmp".into(),
            watched: Vec::new(),
            meta: serde_json::Value::Null,
        };
        let slurm = Slurm { tprimat: "/bin/tprimat".into(), env: BTreeMap::new() };
        slurm.job(spec, tempfile::tempfile().unwrap(), false)
    }

    #[test]
    fn what_config_says_reaches_sbatch_and_nothing_else_does() {
        let plain = job(Settings::default(), Vendor::Nvd).arguments("tprimat-r1").join(" ");
        assert!(
            plain.contains("--no-requeue") && plain.contains("--gres=gpu:4") && !plain.contains("--account"),
            "{plain}"
        );
        assert!(!job(Settings::default(), Vendor::Cpu).arguments("x").join(" ").contains("--gres"));
        let stated = Settings {
            account: Some("lab".into()),
            partition: Some("h100".into()),
            gres: Some(String::new()),
            time: Some("04:00:00".into()),
            exclusive: true,
            options: vec!["--mail-type=END".into()],
            ..Settings::default()
        };
        let stated = job(stated, Vendor::Nvd).arguments("x").join(" ");
        for part in ["--account=lab", "--partition=h100", "--time=04:00:00", "--exclusive", "--mail-type=END"] {
            assert!(stated.contains(part), "{part}: {stated}");
        }
        assert!(!stated.contains("gres"), "{stated}");
    }

    #[test]
    fn each_end_that_slurm_knows_is_told_apart() {
        let is = |state: &str| fate_of("7", state);
        assert!(matches!(is("NODE_FAIL"), Some(ExitKind::Lost(_))));
        assert!(matches!(is("PREEMPTED"), Some(ExitKind::Killed(why)) if why.contains("preempted")));
        assert!(matches!(is("OUT_OF_MEMORY"), Some(ExitKind::Killed(why)) if why.contains("host memory")));
        assert!(matches!(is("CANCELLED by 1000"), Some(ExitKind::Killed(why)) if why.contains("cancelled")));
        assert_eq!(is("TIMEOUT"), Some(ExitKind::Timeout));
        assert_eq!((is("COMPLETED"), is("RUNNING"), is("")), (None, None, None));
    }

    #[test]
    fn a_run_is_claimed_once_and_its_environment_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let spec = RunSpec { dir: folder.path().to_owned(), ..job(Settings::default(), Vendor::Cpu).spec };
        write_private(&environment_path(folder.path()), br#"{"HF_TOKEN":"secret"}"#).unwrap();
        let text = serde_json::to_vec(&spec).unwrap();
        files::write_atomically(&spec_path(folder.path()), &text, Durability::Plain).unwrap();
        assert_eq!(claim(folder.path()).unwrap().unwrap().env["HF_TOKEN"], "secret");
        assert!(!environment_path(folder.path()).exists());
        assert_eq!(claim(folder.path()).unwrap(), None);
    }
}
