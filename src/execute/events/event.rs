//! What a build tells while it runs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::job::FailureClass;

/// What an outcome of a task is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    /// It was not run: another task had made the same meanwhile.
    Cached,
    Failed,
    /// A run ended well, and its log shows that it does not count.
    NotCounted,
    /// It was not run: something before it failed, or is not here.
    Waiting,
    Unsupported,
    /// The build was interrupted before the task was done: it did not fail, and runs again.
    Interrupted,
}

impl Outcome {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cached => "cached",
            Self::Failed => "failed",
            Self::NotCounted => "not counted",
            Self::Waiting => "waiting",
            Self::Unsupported => "unsupported",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What became of the selected cells of a build, each counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellCounts {
    /// All their runs ended well, and some of them count: there are figures.
    pub done: usize,
    /// A run failed, or was not started because it would fail.
    pub failed: usize,
    /// Runs ended well, and none of them counts.
    pub not_counted: usize,
    /// For another host, or for something that is missing here.
    pub waiting: usize,
    pub unsupported: usize,
    /// Stopped before they were done, or not to be measured.
    pub not_measured: usize,
}

impl CellCounts {
    #[must_use]
    pub fn all(&self) -> usize {
        self.done
            + self.failed
            + self.not_counted
            + self.waiting
            + self.unsupported
            + self.not_measured
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    BuildStarted {
        tasks: usize,
        /// How many of them will run.
        stale: usize,
        /// Names of those, in an order in which they could run.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        queue: Vec<String>,
    },
    TaskStarted {
        task: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cell: Option<String>,
        /// Counted from 1; only a task that measures has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        repeat: Option<u32>,
        /// Why the task is stale.
        reason: String,
    },
    /// The task was started and cannot go on yet.
    TaskWaiting {
        task: String,
        #[serde(rename = "for")]
        what_for: String,
    },
    /// The build ends, and the run goes on without it: the next build takes it up.
    TaskGoesOn {
        task: String,
        /// The id of the job that has the run.
        job: String,
        cancels: String,
    },
    /// An optimiser step of a running trainer, as its log has it.
    Step {
        task: String,
        step: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps_total: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step_time_seconds: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss: Option<f64>,
        /// Over all ranks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens_per_second: Option<f64>,
        /// All devices together, at the last sample before the step was reported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        power_watts: Option<f64>,
    },
    TaskFinished {
        task: String,
        outcome: Outcome,
        seconds: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<FailureClass>,
        /// Lines of the log that say so.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        evidence: Vec<String>,
        /// What to do about a failure, in a sentence without a full stop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        what_to_do: Option<String>,
    },
    /// Something a person should know that belongs to no task.
    Note { message: String },
    BuildFinished {
        ok: usize,
        failed: usize,
        /// What became of the selected cells; the counts beside it are of tasks.
        cells: CellCounts,
        /// Runs that this build made, however they ended.
        runs: usize,
        waiting: usize,
        unsupported: usize,
        /// Runs that ended well and still count for nothing: a loss is NaN, their log reports
        /// another failure, they contradict their job, were disturbed, or measured nothing.
        nan: usize,
        log_failed: usize,
        contradicted: usize,
        suspect: usize,
        unmeasured: usize,
        seconds: f64,
        /// The folder that holds what was published.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<PathBuf>,
    },
}
