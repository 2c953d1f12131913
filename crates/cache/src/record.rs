//! The records that segments hold.

use serde::{Deserialize, Serialize};
use tprimat_base::digest::Digest;
use tprimat_job::FailureClass;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    Render,
    Train,
    Parse,
    Aggregate,
    Compare,
    Plot,
    Report,
}

impl TaskKind {
    /// One for the whole matrix, not one a cell.
    #[must_use]
    pub fn is_over_all(self) -> bool {
        matches!(self, Self::Compare | Self::Plot | Self::Report)
    }
}

/// One file that a task left: an object of the cache under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub name: String,
    pub digest: Digest,
    /// Bytes, uncompressed.
    pub size: u64,
}

/// A task that was done: its key, the whole pre-image of that key, and what it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Digest,
    pub kind: TaskKind,
    /// The task's name when it ran (`parse cpu/native/llama/single#2`); only for "what changed since last time".
    pub task: String,
    /// Canonical text whose digest is `key`.
    pub preimage: String,
    pub outputs: Vec<Output>,
}

/// One execution of a train key. Immutable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Sorts by start time: `20261121T023705.123456Z-1a2b3c4d`.
    pub id: String,
    pub key: Digest,
    pub task: String,
    pub preimage: String,
    /// Opened by `--remeasure`; the highest one counts.
    pub generation: u32,
    pub outcome: AttemptOutcome,
    pub outputs: Vec<Output>,
    /// Seconds since 1970.
    pub started_at: f64,
    pub ended_at: f64,
    pub host: String,
    /// What disturbed it, if something did: a run that ended well is not counted then, and one that ran out of memory may not
    /// do so again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// How many repeats the plan wanted when this one was made; older attempts do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_planned: Option<u32>,
    /// Somebody decided that it does not count; a record of its own, which a later one may take back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<SetAside>,
    /// Orders attempts as they were recorded, whatever the clocks of their hosts said; 0 before that.
    #[serde(skip)]
    pub recorded: u64,
}

/// Why an attempt does not count although it may have gone well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetAside {
    pub reason: String,
    /// Seconds since 1970.
    pub at: f64,
}

impl Attempt {
    /// Ended well, nothing disturbed it, and nobody set it aside: it counts.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.outcome == AttemptOutcome::Ok && self.suspect.is_none() && self.set_aside.is_none()
    }
    /// Ended well, but is kept and not counted.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.outcome == AttemptOutcome::Ok && self.suspect.is_some() && self.set_aside.is_none()
    }
    /// Did it fail in a way that the same launch would meet again?
    #[must_use]
    pub fn will_fail_again(&self) -> bool {
        let lasts =
            |class: FailureClass| class.is_deterministic() && self.suspect.is_none() && self.set_aside.is_none();
        matches!(&self.outcome, AttemptOutcome::Failed { class, .. } if lasts(*class))
    }
    /// What its result is made from.
    #[must_use]
    pub fn log(&self) -> Option<&Output> {
        self.outputs.iter().find(|o| o.name == "log")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum AttemptOutcome {
    Ok,
    Failed {
        class: FailureClass,
        evidence: Vec<String>,
        /// Exit status in words: `exit 1`, `signal 9`, `timeout after 60 s`.
        status: String,
    },
}
