//! What a batch system is to a run that is one of its jobs (`batch`): Slurm and Kubernetes are two.

use std::{path::Path, time::Duration};

use super::spec::{ExitKind, RunExit, RunSpec};

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
    /// The same, asked now and for this job alone.
    fn shown(&self, id: &str, spec: &RunSpec) -> Answer<Shown>;
    /// `is_gentle`: its supervisor runs and is to end the run with grace.
    fn cancel(&self, id: &str, spec: &RunSpec, is_gentle: bool) -> Answer<()>;
    /// The command that cancels it.
    fn cancels(&self, id: &str, spec: &RunSpec) -> String;
    /// How the system ended a run; `None`: it did not. `is_told`: the supervisor was told to end by
    /// somebody.
    fn fate(&self, spec: &RunSpec, shown: Shown, is_told: bool) -> Option<ExitKind>;
    /// The run is over and is taken in from its folder, which needs the job no more. `exit`: how it
    /// ended, if it ever ran.
    fn let_go(&self, spec: &RunSpec, exit: Option<&RunExit>);
    /// From now on answers that do not come at once are not waited for.
    fn hurry(&self);
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
