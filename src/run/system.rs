//! What a batch system is to a run that is one of its jobs (`batch`): Slurm and Kubernetes are two.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::{
    folder::lock,
    spec::{ExitKind, RunExit, RunSpec},
};
use crate::host::{AskError, ask, which};

/// The last word of `tprimat __run DIR job`, the supervisor of the run in DIR inside its job.
pub(crate) const JOB: &str = "job";

/// How the names of all of tprimat's jobs begin.
pub(crate) const JOB_PREFIX: &str = "tprimat-";

/// By which the system and later builds know the job of a run.
pub(crate) fn job_name(run_id: &str) -> String {
    format!("{JOB_PREFIX}{run_id}")
}

/// What starts jobs, and says how they stand. A job is found by its run, never by its id alone.
pub(crate) trait System: Send + Sync {
    fn name(&self) -> &'static str;
    /// Makes the job of a run, unless the system has one already: a submission whose answer nobody
    /// heard has happened, or has not. `tprimat`: what the job executes; where there is none, the job
    /// is only looked for. An error: what it waits for.
    fn submit(&self, spec: &RunSpec, tprimat: Option<&Path>) -> Result<Submission, String>;
    /// How a job stands; `age`: of an answer that somebody else got.
    fn state(&self, id: &str, spec: &RunSpec, age: Duration) -> Answer<Shown>;
    /// `is_gentle`: its supervisor runs and is to end the run with grace.
    fn cancel(&self, id: &str, spec: &RunSpec, is_gentle: bool) -> Answer<()>;
    /// The command that cancels it. `id`: empty where only the name is known.
    fn cancels(&self, id: &str, spec: &RunSpec) -> String;
    /// How the system ended a run; `None`: it did not. `is_told`: the supervisor was told to end by
    /// somebody.
    fn fate(&self, spec: &RunSpec, shown: Shown, is_told: bool) -> Option<ExitKind>;
    /// That a host is lost, as the system says it; `None`: it is there, or the system does not tell.
    fn loss_of(&self, _: &RunSpec, _host: &str) -> Option<String> {
        None
    }
    /// The run is over and is taken in from its folder, which needs the job no more. `exit`: how it
    /// ended, if it ever ran.
    fn let_go(&self, spec: &RunSpec, exit: Option<&RunExit>);
}

/// What became of a submission.
pub(crate) enum Submission {
    /// The job of this id, perhaps for long.
    Job(String),
    /// There is none, and none was asked for.
    NoJob,
    Refused(String),
}

pub(crate) type Answer<T> = Result<T, SystemError>;

/// Why a batch system did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{said}")]
pub(crate) struct SystemError {
    pub said: String,
    /// Will the same get through later?
    pub is_passing: bool,
}

/// A command of a batch system that takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The commands of a batch system, as the caller would run them. Clones share one look at the jobs.
#[derive(Clone, Default)]
pub(crate) struct Commands<T> {
    /// The caller's: PATH to the commands, and where their configuration is.
    env: BTreeMap<String, String>,
    /// When jobs were listed last, by what was asked for, and what came of it.
    listed: Arc<Mutex<HashMap<Vec<String>, Listed<T>>>>,
}

type Listed<T> = (Instant, Answer<Arc<T>>);

impl<T: Clone + Default> Commands<T> {
    pub fn new(env: BTreeMap<String, String>) -> Self {
        Self {
            env,
            ..Self::default()
        }
    }

    /// What a command printed; else why not, in all that it said. `is_passing`: does the same get
    /// through later? Only its words tell, for these commands exit alike whatever went wrong.
    pub fn run(
        &self,
        program: &str,
        words: &[&str],
        input: &str,
        is_passing: fn(&str) -> bool,
    ) -> Answer<String> {
        let failed = |said: String, is_passing| SystemError { said, is_passing };
        let path = which(program, &self.env)
            .ok_or_else(|| failed(format!("there is no {program} in PATH"), false))?;
        let command = duct::cmd(path, words).full_env(&self.env);
        let said = ask(&command.stdin_bytes(input), PATIENCE)
            .map_err(|why| failed(why.to_string(), matches!(why, AskError::NoAnswer(_))))?;
        if said.status.success() {
            return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&said.stderr);
        Err(failed(lines_of(&text), is_passing(&text)))
    }

    /// All jobs that `list` asks for. One listing, at most `age` old, answers for everybody who waits
    /// for one: a cluster has many users.
    pub fn listed(
        &self,
        key: Vec<String>,
        age: Duration,
        list: impl FnOnce() -> Answer<T>,
    ) -> Answer<Arc<T>> {
        let wanted = Instant::now();
        // Held while the system is asked: whoever comes meanwhile gets the same answer.
        let mut listed = lock(&self.listed);
        if let Some((at, found)) = listed.get(&key)
            && *at + age >= wanted
        {
            return found.clone();
        }
        let begun = Instant::now();
        let found = list().map(Arc::new);
        // Where it did not answer, those who waited for the answer do not each ask again.
        let at = if found.is_ok() { begun } else { Instant::now() };
        listed.insert(key, (at, found.clone()));
        found
    }
}

/// What was said, in one line.
pub(super) fn lines_of(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let all: Vec<&str> = lines.collect();
    if all.is_empty() {
        return "it said nothing".to_owned();
    }
    all.join("; ")
}

/// What a batch system shows of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// In the system's word; empty where it answers and knows no such job any more.
    pub state: String,
    /// Why it waits, or how it ended; empty where there is no reason.
    pub reason: String,
    /// Where it runs or ran, where that is known.
    pub nodes: Option<String>,
    pub is_over: bool,
    /// The supervisor ended with 0, so it had recorded the exit.
    pub ended_well: bool,
    /// How the system ended it, if it did.
    pub fate: Option<ExitKind>,
    /// It runs where nobody answers any more.
    pub is_silent: bool,
    /// It waits for what never comes.
    pub is_hopeless: bool,
}

impl Shown {
    /// In words that follow the job's id.
    pub fn told(&self) -> String {
        let because = if self.reason.is_empty() { "" } else { ": " };
        format!("{}{because}{}", self.state.to_lowercase(), self.reason)
    }
}

/// A job, in words.
pub(crate) fn job_of(system: &dyn System, id: &str) -> String {
    format!("{} job {id}", system.name())
}
