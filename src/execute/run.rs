//! One supervised run, seen from tprimat: start it, ask how it goes, end it, learn how it ended.
//!
//! The run folder holds `spec.json`, `state.json`, `log` (the trainer's own bytes), `times`,
//! `telemetry.jsonl`, `end-note.json`, `exit.json` and two locks. Their holders tell a sweep whose turn it is:
//! `owner.lock` the tprimat that asked for the run and will take in what it left, `supervisor.lock`
//! its supervisor.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    net::Shutdown,
    os::{
        fd::{AsFd, FromRawFd, OwnedFd, RawFd},
        unix::process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, poll},
    sys::signal::Signal,
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    container_run::{Contained, ContainerSpec},
    devices::Holder,
    end_note::{exit_or_end, noted_end},
    follow::FOLLOW_LOOK,
    fork_server::ForkServer,
    hang::Hang,
    inbox::rounded_up,
    input_watch::Queue,
    lifeline::{SentRun, Word, frame},
    log_times::last_seen,
    process::Tree,
    slurm::JobSpec,
    supervisor_process::{SupervisorProcess, Waiting},
    train_work::Measurement,
    watched_inputs::Watched,
};
use crate::{
    cache::Undeclared,
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
    job::Vendor,
};

/// What was sampled beside the run, in the run folder and among an attempt's outputs.
pub const TELEMETRY: &str = "telemetry.jsonl";

/// What lists of processes show of a supervisor: `tprimat __supervise DIR`, with its run's folder.
pub const SUPERVISE_ARGUMENT: &str = "__supervise";

/// A run folder that says more is not believed: a build would wait for it.
const MOST_GRACE: Duration = Duration::from_secs(600);

/// How much longer a supervisor is waited for that has recorded how its run ended.
const LINGERING: Duration = Duration::from_secs(3);

/// All that one run needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    pub run_id: String,
    /// The run folder.
    pub dir: PathBuf,
    pub argv: Vec<String>,
    /// Complete: the trainer gets exactly this, and `TPRIMAT_RUN_ID`. It may hold secrets, so it
    /// goes to the supervisor over its lifeline and never into a file.
    #[serde(skip)]
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// What the command is put into, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerSpec>,
    /// What its batch job must know, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobSpec>,
    /// Counted from the trainer's start, not from the wait for devices.
    pub timeout_seconds: Option<f64>,
    /// When the run counts as hung; none where nobody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hang: Option<Hang>,
    /// Between SIGTERM and SIGKILL.
    pub grace_seconds: f64,
    /// Names of device locks: `cpu`, `gpu-<uuid>`.
    pub devices: Vec<String>,
    /// Whose devices they are, where they are sampled beside the run.
    #[serde(default)]
    pub sampled: Option<Vendor>,
    /// Alone on its devices, or beside other runs that share them.
    pub exclusive: bool,
    /// One folder for the whole host.
    pub lock_dir: PathBuf,
    /// What the run reads outside its folder, to be looked at when it has ended.
    #[serde(default)]
    pub watched: Vec<Watched>,
    /// The run's `Measurement`, for whoever takes up its folder.
    pub meta: Verbatim,
}

/// JSON that nobody reads on its way: a supervisor of another version must be able to end a run whose
/// measurement it cannot read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Verbatim(Box<RawValue>);

impl Verbatim {
    pub fn of(value: &impl Serialize) -> Result<Self> {
        let text = serde_json::value::to_raw_value(value);
        text.map(Self)
            .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))
    }

    pub(super) fn read<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_str(self.0.get())
    }
}

impl PartialEq for Verbatim {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunExit {
    pub status: ExitKind,
    /// Seconds since 1970 at which the trainer started; where it never did, at which that was given
    /// up.
    pub started_at: f64,
    pub ended_at: f64,
    /// Seconds spent waiting for devices.
    pub waited_seconds: f64,
    /// Processes that not even SIGKILL ended in time.
    pub survivors: usize,
    /// Names of watched inputs that were written while it ran, or just before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Where it ran, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Like `changed`, for files that nobody declares and only the command names.
    #[serde(default, skip_serializing_if = "Undeclared::is_nothing")]
    pub undeclared: Undeclared,
    /// Nodes of several that left no word, where others did; in words which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_nodes: Option<String>,
    /// What else a person should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Digest of the log and its times. It is there where the supervisor did not bring them and this
    /// record to disk, because the waiting tprimat does that. If a later build finds other bytes, a
    /// power cut damaged the log, and this record does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsynced: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitKind {
    Code(i32),
    Signal(i32),
    Timeout,
    /// It made no more steps, and in words since when and where its processes were.
    Hung(Vec<String>),
    Interrupted,
    /// The trainer never ran: why.
    LaunchFailed(String),
    /// Ended from outside, and in words by whom: the kernel for lack of host memory, a batch system
    /// for another job.
    Killed(String),
    /// What it ran in is lost, and in words how: a node, a container engine.
    Lost(String),
}

/// What a run is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunState {
    Starting,
    /// A batch system has it, or is to get it.
    Queued {
        /// What it waits for, in words that follow "waiting for".
        reason: String,
    },
    WaitingForDevice {
        device: String,
        holder: Option<Holder>,
    },
    Running {
        since: f64,
        /// Names of inputs that were seen to change: the run will not count.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<String>,
    },
    Ending,
}

impl RunExit {
    /// What a person should know of it, if anything.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        let survivors = (self.survivors > 0)
            .then(|| format!("{} processes of it could not be ended", self.survivors));
        let all: Vec<String> = self.note.iter().cloned().chain(survivors).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl RunSpec {
    /// Is it a batch job, which may outlive its tprimat?
    pub(super) fn is_batch(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.is_step)
    }

    /// The environment of a program that looks at the run from outside, on its host: a sampler, a
    /// profiler of stacks. The trainer's own variables describe the inside of its container, where
    /// PATH names other folders.
    pub(super) fn host_env(&self) -> &BTreeMap<String, String> {
        match &self.container {
            Some(container) => &container.environment,
            None => &self.env,
        }
    }

    /// The nodes of its job; one where it is no job.
    pub(super) fn nodes(&self) -> usize {
        self.job.as_ref().map_or(1, |job| job.nodes.max(1))
    }

    /// The rank of one of its nodes. The ranks are those numbers, or those backwards, so it is the
    /// node of a rank as well.
    pub(super) fn rank_of(&self, node: usize) -> usize {
        let ranks = self.job.as_ref().map(|job| job.ranks).unwrap_or_default();
        ranks.rank_of(node, self.nodes())
    }

    /// What it measures. A profiled run measures nothing, and another version's may not be readable.
    pub(super) fn measurement(&self) -> serde_json::Result<Measurement> {
        self.meta.read()
    }

    pub(super) fn grace(&self) -> Duration {
        Duration::try_from_secs_f64(self.grace_seconds)
            .unwrap_or(Duration::ZERO)
            .min(MOST_GRACE)
    }
}

/// Digest of a run's log and of the times at which it grew. `None` if they cannot be read, or are too
/// large to read twice.
pub(super) fn digest_of_log(dir: &Path) -> Option<Digest> {
    const MOST: u64 = 1 << 20;
    let mut bytes = files::read_bounded(&log_path(dir), MOST).ok()?;
    let length = bytes.len() as u64;
    bytes.extend(files::read_bounded(&times_path(dir), MOST).ok()?);
    bytes.extend(length.to_le_bytes());
    Some(Digest::of(&bytes))
}

pub(super) fn times_path(dir: &Path) -> PathBuf {
    dir.join("times")
}
pub(super) fn log_path(dir: &Path) -> PathBuf {
    dir.join("log")
}
pub(super) fn spec_path(dir: &Path) -> PathBuf {
    dir.join("spec.json")
}
pub(super) fn exit_path(dir: &Path) -> PathBuf {
    dir.join("exit.json")
}
pub(super) fn state_path(dir: &Path) -> PathBuf {
    dir.join("state.json")
}
pub(super) fn owner_lock_path(dir: &Path) -> PathBuf {
    dir.join("owner.lock")
}
pub(super) fn supervisor_lock_path(dir: &Path) -> PathBuf {
    dir.join("supervisor.lock")
}
/// What the supervisor itself has to say; empty unless something is broken.
fn supervisor_log_path(dir: &Path) -> PathBuf {
    dir.join("supervisor.log")
}

/// A run that was started. Keep it until what the run left is taken in: while it lives, no other
/// tprimat sweeps the run folder. Dropping it ends the run.
#[derive(Debug)]
pub struct Running {
    spec: RunSpec,
    /// Until it waits for another run.
    supervisor: Mutex<Option<Arc<SupervisorProcess>>>,
    /// Where it waits then.
    waiting: Arc<Waiting>,
    /// The supervisor has it as well.
    queue: Mutex<Option<Queue>>,
    _owner: File,
}

/// Starts `spec` under a supervisor. One run, one folder: launch files may be there before, an
/// earlier run may not.
pub fn start(spec: &RunSpec, supervisors: &ForkServer) -> Result<Running> {
    let dir = &spec.dir;
    files::create_dir_all(dir)?;
    let owner = take_lock(&owner_lock_path(dir))?;
    let supervisor_lock = take_lock(&supervisor_lock_path(dir))?;
    let text = serde_json::to_vec_pretty(spec)
        .map_err(|e| Error::failed(format!("cannot describe run {}: {e}", spec.run_id)))?;
    // A power cut ends a run of this host, and what it had begun is made again. The description comes
    // to disk with the log: when this process takes the run in, or by its supervisor.
    let durability = match &spec.job {
        Some(_) => Durability::Synced,
        None => Durability::Plain,
    };
    files::write_atomically(&spec_path(dir), &text, durability)?;
    let log_path = supervisor_log_path(dir);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(Error::io("cannot open", &log_path))?;
    let is_watched = spec.watched.iter().any(Watched::is_watchable);
    let queue = is_watched.then(Queue::for_a_run).flatten();
    let begun = frame(&spec.env).and_then(|env| {
        supervisors.begin(&SentRun {
            dir,
            env: &env,
            lock: &supervisor_lock,
            log: &log,
            queue: queue.as_ref(),
        })
    });
    let supervisor = begun.map_err(|error| {
        let said = supervisor_said(dir).unwrap_or_else(|| error.to_string());
        Error::failed(format!(
            "the supervisor of run {} failed: {said}",
            spec.run_id
        ))
    })?;
    Ok(Running {
        spec: spec.clone(),
        supervisor: Mutex::new(Some(Arc::new(supervisor))),
        waiting: supervisors.waiting().clone(),
        queue: Mutex::new(queue),
        _owner: owner,
    })
}

/// Puts a new lock in place that is held from its first instant: a sweep never finds it free. A
/// folder that has one already is refused.
pub(super) fn take_lock(path: &Path) -> Result<File> {
    let take = || -> io::Result<File> {
        let lock = tempfile::Builder::new()
            .prefix(".tmp-")
            .tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
        lock.as_file().try_lock()?;
        Ok(lock.persist_noclobber(path)?)
    };
    take().map_err(Error::io("cannot take", path))
}

impl Running {
    /// The trainer's standard output and error, byte for byte. Not there until the trainer starts.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        log_path(&self.spec.dir)
    }

    #[must_use]
    pub fn state(&self) -> RunState {
        let text = std::fs::read(state_path(&self.spec.dir)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(RunState::Starting)
    }

    /// Asks the run to end: SIGTERM to its whole tree, grace, SIGKILL. Returns at once.
    pub fn terminate(&self) {
        // Held meanwhile, so that it is not another run's by then.
        if let Some(supervisor) = &*lock(&self.supervisor) {
            let _ = supervisor.lifeline.shutdown(Shutdown::Write);
            // Somebody may have stopped it.
            supervisor.signal(Signal::SIGCONT);
        }
    }

    /// Ends the run now, without grace.
    pub fn kill(&self) {
        self.terminate();
        if let Some(supervisor) = &*lock(&self.supervisor) {
            supervisor.signal(Signal::SIGQUIT);
        }
    }

    /// Blocks until the run is over and no process of it is left. The supervisor may linger: a
    /// thread of it that hangs in a driver keeps its process, but the run has ended when it says
    /// so.
    pub fn wait(&self) -> Result<RunExit> {
        self.wait_telling(&|| (), &mut || ())
    }

    /// The same; `gone` is called as soon as the run's processes are gone, and only the record of the
    /// run is still to be made, `look` every now and then until then.
    pub(super) fn wait_telling(&self, gone: &dyn Fn(), look: &mut dyn FnMut()) -> Result<RunExit> {
        let supervisor = lock(&self.supervisor).clone();
        let Some(supervisor) = supervisor else {
            return exit_or_end(&self.spec.dir)?.ok_or_else(|| self.without_record());
        };
        let recorded = match self.follow(&supervisor, gone, look) {
            SupervisorState::Lingers(exit) => return Ok(*exit),
            SupervisorState::Waits => {
                drop(supervisor);
                let supervisor = lock(&self.supervisor).take().and_then(Arc::into_inner);
                let exit = exit_or_end(&self.spec.dir)?.ok_or_else(|| self.without_record())?;
                if let Some(supervisor) = supervisor {
                    self.waiting.add(supervisor);
                }
                exit
            }
            SupervisorState::HasEnded => {
                let status = supervisor.wait().map_err(Error::io(
                    "cannot wait for the supervisor of",
                    &self.spec.dir,
                ))?;
                match self.recorded()? {
                    Some(exit) => exit,
                    None => return self.without_supervisor(status),
                }
            }
        };
        let queue = lock(&self.queue).take();
        if let Some(queue) = queue {
            queue.keep();
        }
        Ok(recorded)
    }

    fn recorded(&self) -> Result<Option<RunExit>> {
        read_exit(&self.spec.dir)
    }

    fn without_record(&self) -> Error {
        Error::failed(format!(
            "the supervisor of run {} did not record how it ended",
            self.spec.run_id
        ))
    }

    /// Waits until the supervisor ends, or waits for another run. One that recorded how its run ended
    /// is waited for [`LINGERING`] longer.
    fn follow(
        &self,
        supervisor: &SupervisorProcess,
        gone: &dyn Fn(),
        look: &mut dyn FnMut(),
    ) -> SupervisorState {
        // Before Linux 5.3 there is none; then the end of the lifeline tells that of the process.
        let process = pidfd(supervisor.pid);
        let mut told: Option<Instant> = None;
        let (mut speaks, mut looked) = (true, Instant::now());
        loop {
            let mut polled = Vec::with_capacity(2);
            // Where the supervisor has ended the lifeline stays readable for ever.
            polled.extend(speaks.then(|| supervisor.lifeline.as_fd()));
            polled.extend(process.as_ref().map(OwnedFd::as_fd));
            if polled.is_empty() {
                return SupervisorState::HasEnded;
            }
            let in_poll = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
            let mut polled: Vec<PollFd> = polled.into_iter().map(in_poll).collect();
            let left = FOLLOW_LOOK.saturating_sub(looked.elapsed());
            if !matches!(
                poll(&mut polled, rounded_up(left)),
                Ok(_) | Err(Errno::EINTR)
            ) {
                return SupervisorState::HasEnded;
            }
            let is_ready =
                |polled: Option<&PollFd>| polled.is_some_and(|fd| fd.any() == Some(true));
            if speaks && is_ready(polled.first()) {
                match Word::receive(&supervisor.lifeline) {
                    Some(Word::Has) => {}
                    Some(Word::Gone) => gone(),
                    Some(Word::Ready) => return SupervisorState::Waits,
                    None => speaks = false,
                }
            } else if process.is_some() && is_ready(polled.last()) {
                return SupervisorState::HasEnded;
            }
            if looked.elapsed() < FOLLOW_LOOK {
                continue;
            }
            looked = Instant::now();
            look();
            if let Ok(Some(exit)) = self.recorded()
                && told.get_or_insert_with(Instant::now).elapsed() >= LINGERING
            {
                return SupervisorState::Lingers(Box::new(exit));
            }
        }
    }

    /// The supervisor ended and did not say how the run did.
    fn without_supervisor(&self, status: ExitStatus) -> Result<RunExit> {
        let ended = Tree::marked(&self.spec.run_id).end(self.spec.grace(), &mut || false);
        if let Some(container) = &self.spec.container
            && let Some(contained) = Contained::of(container, &self.spec.run_id)
        {
            contained.remove();
        }
        if let Some(exit) = noted_end(&self.spec.dir) {
            let note = format!(
                "its supervisor ended ({status}) before it had ended what the trainer left"
            );
            return Ok(RunExit {
                survivors: ended.survivors,
                note: Some(note),
                ..exit
            });
        }
        let Some(signal) = status.signal() else {
            let in_code = || match status.code() {
                Some(errno) if errno > 1 => io::Error::from_raw_os_error(errno).to_string(),
                _ => status.to_string(),
            };
            let said = supervisor_said(&self.spec.dir).unwrap_or_else(in_code);
            let message = format!("the supervisor of run {} failed: {said}", self.spec.run_id);
            return Err(Error::failed(message));
        };
        Ok(RunExit {
            // The kernel ends the trainer together with its supervisor.
            status: ExitKind::Signal(signal),
            started_at: last_seen(&self.spec.dir).0,
            ended_at: files::unix_now(),
            waited_seconds: 0.0,
            survivors: ended.survivors,
            changed: Vec::new(),
            host: hostname(),
            undeclared: Undeclared::default(),
            lost_nodes: None,
            note: Some(format!("the supervisor was ended by signal {signal}")),
            unsynced: None,
        })
    }
}

/// What a supervisor does once its run is over.
enum SupervisorState {
    /// It waits for another run.
    Waits,
    HasEnded,
    /// It has recorded how its run ended, and its process goes on.
    Lingers(Box<RunExit>),
}

/// Readable once no thread of the process is left.
pub(super) fn pidfd(pid: Pid) -> Option<OwnedFd> {
    // SAFETY: it touches no memory. The kernel sets O_CLOEXEC.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel has just opened it for us.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[must_use]
pub fn hostname() -> Option<String> {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
}

/// How the run of a folder ended; `None` as long as nobody has recorded it, and where a power cut took
/// a record that was not on disk yet. Any other record that is there and cannot be read is an error:
/// taken for none, a run that ended well would be made again.
pub(super) fn read_exit(dir: &Path) -> Result<Option<RunExit>> {
    let path = exit_path(dir);
    let Some(text) = read_if_there(&path)?.filter(|text| !was_never_written(text)) else {
        return Ok(None);
    };
    let exit = serde_json::from_slice(&text);
    exit.map(Some)
        .map_err(|e| Error::io("cannot read", path)(e.into()))
}

/// Records how the run of a folder ended, after everything that was brought to disk.
pub(super) fn write_exit(dir: &Path, exit: &RunExit) -> Result<()> {
    let text = serde_json::to_vec_pretty(exit)
        .map_err(|e| Error::failed(format!("cannot describe the exit: {e}")))?;
    let durability = match exit.unsynced {
        Some(_) => Durability::Plain,
        None => Durability::Synced,
    };
    files::write_atomically(&exit_path(dir), &text, durability)
}

/// Is it what a power cut leaves of a file that was put in place and not on disk yet? Some file systems
/// leave zeros.
pub(super) fn was_never_written(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

pub(super) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    if_there(path, files::read_bounded(path, files::MOST_BYTES))
}

/// What was read of a file of a run folder; `None` only where the file is not there. A network file
/// system may fail to read one that is.
pub(super) fn if_there<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("cannot read", path)(error)),
    }
}

/// The end of what the supervisor wrote to its own log.
fn supervisor_said(dir: &Path) -> Option<String> {
    let text = std::fs::read(supervisor_log_path(dir)).ok()?;
    let tail = &text[text.len().saturating_sub(1000)..];
    Some(String::from_utf8_lossy(tail).trim().to_owned()).filter(|said| !said.is_empty())
}

/// The last `most` bytes of a file, or all of it if it is shorter. Empty if there is no such file.
pub(super) fn tail_of(path: &Path, most: u64) -> Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
        // One byte more, so that the end is seen without another allocation.
        let mut bytes = Vec::with_capacity(usize::try_from(length.min(most)).unwrap_or(0) + 1);
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    Ok(if_there(path, read())?.unwrap_or_default())
}

/// What these locks guard stays sound when a thread panics.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_never_written_to_a_file() {
        let spec = RunSpec {
            run_id: "r".into(),
            dir: "/run/r".into(),
            argv: vec!["true".into()],
            env: [("HF_TOKEN".to_owned(), "secret".to_owned())].into(),
            cwd: "/".into(),
            container: None,
            job: None,
            timeout_seconds: None,
            hang: None,
            grace_seconds: 1.0,
            devices: vec!["cpu".into()],
            sampled: None,
            exclusive: true,
            lock_dir: "/tmp".into(),
            watched: Vec::new(),
            meta: Verbatim::of(&1).unwrap(),
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert!(
            !text.contains("secret") && !text.contains("HF_TOKEN"),
            "{text}"
        );
        let back: RunSpec = serde_json::from_str(&text).unwrap();
        assert_eq!(
            back,
            RunSpec {
                env: BTreeMap::new(),
                ..spec
            }
        );
    }
}
