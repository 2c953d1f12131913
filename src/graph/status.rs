//! The state of a task, and what it left: one status a task.

use std::sync::Arc;

use serde::Serialize;

use super::{Reason, TaskId};
use crate::{
    cache::{Attempt, Output},
    digest::Digest,
    figures::Dropped,
    recipe::Rendered,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Fresh,
    Stale,
    Failed,
    /// For another host.
    Waiting,
    /// For something that is missing on this host.
    Blocked,
    Unsupported,
}

impl State {
    pub const ALL: [Self; 6] = [
        Self::Fresh,
        Self::Stale,
        Self::Failed,
        Self::Waiting,
        Self::Blocked,
        Self::Unsupported,
    ];

    /// As JSON has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::Failed => "failed",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Unsupported => "unsupported",
        }
    }
}

/// What a task left, or would leave.
#[derive(Clone, Debug, Default)]
pub enum Artifacts {
    #[default]
    Nothing,
    Outputs(Vec<Output>),
    /// Launch files rendered in memory, not in the cache yet.
    Rendered(Vec<Output>, Vec<Rendered>),
    /// The attempt that counts, good or failed.
    Attempt(Arc<Attempt>),
}

#[derive(Clone, Debug)]
pub struct Status {
    pub state: State,
    pub reason: Option<Reason>,
    pub key: Option<Digest>,
    pub artifacts: Artifacts,
    /// Measurements of a training that do not count but are to be disclosed.
    pub dropped: Option<Arc<Dropped>>,
}

impl Status {
    pub(super) fn new(state: State) -> Self {
        Self {
            state,
            reason: None,
            key: None,
            artifacts: Artifacts::Nothing,
            dropped: None,
        }
    }
    pub(super) fn because(state: State, reason: Reason) -> Self {
        Self {
            reason: Some(reason),
            ..Self::new(state)
        }
    }
    #[must_use]
    pub fn fresh(key: Digest, outputs: Vec<Output>) -> Self {
        Self {
            key: Some(key),
            artifacts: Artifacts::Outputs(outputs),
            ..Self::new(State::Fresh)
        }
    }
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self::because(State::Failed, Reason::Because(text.into()))
    }
    /// A failure of another task keeps this one from being started.
    pub(super) fn not_started(text: impl Into<String>) -> Self {
        Self::because(State::Failed, Reason::NotStarted(text.into()))
    }
    /// The status of a task that needs what this one, which is not done, would have left.
    pub(super) fn of_next(&self) -> Self {
        match (self.state, &self.reason) {
            (State::Failed, Some(Reason::Because(why))) => Self::not_started(why),
            (state, reason) => Self {
                reason: reason.clone(),
                ..Self::new(state)
            },
        }
    }
    /// For a training whose state was decided without looking at its parse.
    pub(super) fn without_parse(self) -> (Self, Option<Self>) {
        (self, None)
    }
    pub(super) fn key(mut self, key: Digest) -> Self {
        self.key = Some(key);
        self
    }
    /// With the attempt that stands for a training, and the key that it has.
    pub(super) fn of_attempt(mut self, attempt: Attempt) -> Self {
        self.key = Some(attempt.key);
        self.artifacts = Artifacts::Attempt(Arc::new(attempt));
        self
    }
    #[must_use]
    pub fn outputs(&self) -> &[Output] {
        match &self.artifacts {
            Artifacts::Nothing => &[],
            Artifacts::Outputs(outputs) | Artifacts::Rendered(outputs, _) => outputs,
            Artifacts::Attempt(attempt) => &attempt.outputs,
        }
    }
    #[must_use]
    pub fn attempt(&self) -> Option<&Arc<Attempt>> {
        match &self.artifacts {
            Artifacts::Attempt(attempt) => Some(attempt),
            _ => None,
        }
    }
}

/// The statuses of all tasks, by node.
pub struct Statuses(Vec<Option<Status>>);

impl Statuses {
    pub(super) fn unknown(tasks: usize) -> Self {
        Self(vec![None; tasks])
    }

    #[must_use]
    pub fn get(&self, node: TaskId) -> &Status {
        static UNKNOWN: Status = Status {
            state: State::Stale,
            reason: None,
            key: None,
            artifacts: Artifacts::Nothing,
            dropped: None,
        };
        self.0[node.index()].as_ref().unwrap_or(&UNKNOWN)
    }
    /// The digest of the file that a task made, where it makes one.
    #[must_use]
    pub fn first_output(&self, node: TaskId) -> Option<Digest> {
        Some(self.get(node).outputs().first()?.digest)
    }
    pub fn set(&mut self, node: TaskId, status: Status) {
        self.0[node.index()] = Some(status);
    }
}
