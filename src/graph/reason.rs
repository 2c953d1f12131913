//! Why a task is in the state it is in, in words that name the field that changed.

use crate::{
    cache::{AttemptOutcome, Cache, TaskKind},
    graph::key::{Change, changes},
};

#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// No record under this key; what changed is looked up only when somebody asks.
    NoRecord,
    /// A record is there, but this output of it is gone and needed.
    OutputLost(String),
    /// Another task will run first.
    Upstream(String),
    /// The last attempt failed in a way that may not happen again.
    RetryTransient(String),
    /// `--retry-failed`.
    RetryFailed(String),
    /// `--remeasure` opened a new generation.
    Remeasure(u32),
    /// The published file is missing or not what was published.
    Unpublished(String),
    /// A plain sentence.
    Because(String),
}

impl Reason {
    /// The reason in words. `task` is the task's label; `preimage` gives its present pre-image, where that is needed.
    #[must_use]
    pub fn describe(
        &self,
        cache: &Cache,
        kind: TaskKind,
        task: &str,
        preimage: impl FnOnce() -> Option<String>,
    ) -> String {
        match self {
            Self::NoRecord => {
                let changes = self::changed_fields(cache, kind, task, preimage);
                match changes.as_deref() {
                    None => "never run".into(),
                    Some([]) => "its record is gone from the cache".into(),
                    Some([one]) => one.to_string(),
                    Some([one, rest @ ..]) => format!("{one} (and {} more)", rest.len()),
                }
            }
            Self::OutputLost(name) => format!("`{name}` is gone from the cache and needed"),
            Self::Upstream(label) => format!("{label} will run"),
            Self::RetryTransient(status) => format!("the last attempt failed ({status}), perhaps not for good"),
            Self::RetryFailed(status) => format!("--retry-failed; the last attempt failed ({status})"),
            Self::Remeasure(generation) => format!("--remeasure opened generation {generation}"),
            Self::Unpublished(name) => format!("output `{name}` is missing or was changed"),
            Self::Because(text) => text.clone(),
        }
    }
}

/// What changed since this task last ran; `None` if it never did.
#[must_use]
pub fn changed_fields(
    cache: &Cache,
    kind: TaskKind,
    task: &str,
    preimage: impl FnOnce() -> Option<String>,
) -> Option<Vec<Change>> {
    let last = cache.last_of(kind, task)?;
    Some(changes(&last.preimage, &preimage()?, &|digest| cache.preimage(digest)))
}

/// `oom: exit 1`, for people.
#[must_use]
pub fn outcome_text(outcome: &AttemptOutcome) -> String {
    match outcome {
        AttemptOutcome::Ok => "ok".into(),
        AttemptOutcome::Failed { class, status, .. } => format!("{}: {status}", class.name()),
    }
}
