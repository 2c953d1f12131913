//! What one run needs, what it is doing, and how it ended: the words between whoever asks for a run and
//! its supervisor.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{devices::Holder, watched_inputs::Watched};
use crate::{
    cache::Undeclared,
    digest::Digest,
    files::unix_now,
    host::{EngineKind, Fact},
    job::Vendor,
    logs::LogSection,
    plan::Slurm as Settings,
    recipe::Nodes,
};

/// `tprimat __run DIR` is the supervisor of the run in DIR; `tprimat __run DIR job` the one of a batch
/// job, `tprimat __run DIR pod` the one in a pod, `tprimat __run DIR pod-K` in the one of node K,
/// `tprimat __run DIR node` the one of a node of several.
pub const RUN_ARGUMENT: &str = "__run";

/// In a pod, the name of its node.
pub(crate) const NODE_VARIABLE: &str = "TPRIMAT_NODE";

/// What was sampled beside the run, in the run folder and among an attempt's outputs.
pub const TELEMETRY: &str = "telemetry.jsonl";

/// A new attempt's id: it begins with the time, so ids sort by it, and ends with random digits, so
/// that two hosts never make the same one.
pub fn attempt_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let now = jiff::Timestamp::now();
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}-{random:016x}", now.strftime("%Y%m%dT%H%M%S%.6fZ"))
}

/// A run folder that says more is not believed: a build would wait for it.
const MOST_GRACE: Duration = Duration::from_secs(600);

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
    pub container: Option<ContainerSpec>,
    /// What its batch job must know, if it is one.
    pub job: Option<JobSpec>,
    /// Counted from the trainer's start, not from the wait for devices.
    pub timeout_seconds: Option<f64>,
    /// When the run counts as hung; none where nobody asks.
    pub hang: Option<Hang>,
    /// Between SIGTERM and SIGKILL.
    pub grace_seconds: f64,
    /// Names of device locks: `cpu`, `gpu-<uuid>`.
    pub devices: Vec<String>,
    /// Whose devices they are, where they are sampled beside the run.
    pub sampled: Option<Vendor>,
    /// Alone on its devices, or beside other runs that share them.
    pub exclusive: bool,
    /// One folder for the whole host.
    pub lock_dir: PathBuf,
    /// What the run reads outside its folder, to be looked at when it has ended.
    #[serde(default)]
    pub watched: Vec<Watched>,
    /// The run's `Measurement`, for whoever takes up its folder. Nobody reads it on its way: a supervisor of
    /// another version must be able to end a run whose measurement it cannot read.
    pub meta: Value,
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
    #[serde(default)]
    pub changed: Vec<String>,
    /// Where it ran, where that is known.
    pub host: Option<String>,
    /// Like `changed`, for files that nobody declares and only the command names.
    #[serde(default)]
    pub undeclared: Undeclared,
    /// How long its log was. A network file system may show this record before all of the log.
    pub log_bytes: Option<u64>,
    /// Nodes of several that left no word, where others did; in words which.
    pub lost_nodes: Option<String>,
    /// What else a person should know.
    pub note: Option<String>,
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
        changed: Vec<String>,
    },
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
    pub(crate) fn is_batch(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.is_step)
    }

    /// The environment of a program that looks at the run from outside, on its host: a sampler, a
    /// profiler of stacks. The trainer's own variables describe the inside of its container, where
    /// PATH names other folders.
    pub(crate) fn host_env(&self) -> &BTreeMap<String, String> {
        match &self.container {
            Some(container) => &container.environment,
            None => &self.env,
        }
    }

    pub(crate) fn is_of_pods(&self) -> bool {
        self.job
            .as_ref()
            .is_some_and(|job| job.kubernetes.is_some())
    }

    /// The nodes of its job; one where it is no job.
    pub(crate) fn nodes(&self) -> usize {
        self.job.as_ref().map_or(1, |job| job.nodes.max(1))
    }

    /// The rank of one of its nodes. The ranks are those numbers, or those backwards, so it is the
    /// node of a rank as well.
    pub(crate) fn rank_of(&self, node: usize) -> usize {
        let ranks = self.job.as_ref().map(|job| job.ranks).unwrap_or_default();
        ranks.rank_of(node, self.nodes())
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::try_from_secs_f64(self.grace_seconds)
            .unwrap_or(Duration::ZERO)
            .min(MOST_GRACE)
    }
}

/// How a run is put into a container; a part of its spec, without anything secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub engine: EngineKind,
    pub program: PathBuf,
    /// From the engine's verb to the image.
    pub arguments: Vec<String>,
    /// Variables of the engine's own command, such as docker; not those of the trainer.
    pub environment: BTreeMap<String, String>,
}

/// What the job of a run must know beside its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    pub vendor: Vendor,
    /// On each node.
    pub num_gpus: usize,
    pub nodes: usize,
    /// Which rank each of them has.
    pub ranks: Nodes,
    /// A step of the job that tprimat is in, with tprimat's own life; no job of its own.
    pub is_step: bool,
    /// The facts that the run's key is made of, and the rest of its section: the node must have
    /// them, or nothing runs there.
    pub facts: BTreeMap<String, Fact>,
    /// The same of the packages of `python`; none where a container brings its own.
    pub packages: BTreeMap<String, String>,
    /// Found in the run's own PATH where it has no folder.
    pub python: PathBuf,
    pub settings: Settings,
    /// Where its Job is, if it is one of Kubernetes.
    pub kubernetes: Option<Target>,
}

impl JobSpec {
    pub(crate) fn is_cancelled_on_interrupt(&self) -> bool {
        match &self.kubernetes {
            Some(target) => target.cancel_on_interrupt,
            None => self.settings.cancel_on_interrupt == Some(true),
        }
    }
}

/// Where the Job of a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub context: Option<String>,
    pub namespace: Option<String>,
    pub owner: String,
    pub cancel_on_interrupt: bool,
    /// By which a later build knows whether it would ask for the same.
    pub asked: Option<Digest>,
    /// What kubectl is given. A folder may have come with a project, so it is never read from there.
    #[serde(skip)]
    pub manifest: String,
}

/// When a run counts as hung.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hang {
    /// It hangs when no step came for this many times the median step time, and for `least_seconds`.
    pub factor: f64,
    /// The shortest silence that counts as a hang, in seconds.
    pub least_seconds: f64,
    /// The run's last step: what comes after it is not a step.
    pub steps: u64,
    pub log: LogSection,
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

#[must_use]
pub fn hostname() -> Option<String> {
    // A pod has a name of its own; the host of a measurement is its node.
    let node = std::env::var(NODE_VARIABLE).ok();
    node.or_else(|| nix::unistd::gethostname().ok()?.into_string().ok())
}

pub(crate) fn never_ran(status: ExitKind, waited_seconds: f64) -> RunExit {
    let now = unix_now();
    RunExit {
        status,
        started_at: now,
        ended_at: now,
        waited_seconds,
        survivors: 0,
        changed: Vec::new(),
        undeclared: Undeclared::default(),
        log_bytes: None,
        lost_nodes: None,
        host: hostname(),
        note: None,
    }
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
            meta: 1.into(),
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
