//! Why a task is in the state it is in, in words that name the field that changed.

use super::state::REPLACEMENTS;
use crate::{
    analyze::public_value,
    cache::{Attempt, AttemptOutcome, Cache, TaskKind},
    digest::Digest,
    graph::key::{Change, changes},
};

/// What a task's key is made of now.
pub struct Present {
    pub preimage: String,
    /// The job, which the pre-image names by its digest; before a build the cache does not know it.
    pub job: Option<(Digest, String)>,
}

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
    /// Something disturbed the last attempt, which is kept and not counted: what, and how many were replaced before.
    Disturbed { why: String, replaced: usize },
    /// `--retry-failed`.
    RetryFailed(String),
    /// The measurement was set aside, and why.
    SetAside(String),
    /// `--remeasure` opened a new generation.
    Remeasure(u32),
    /// The published file is missing or not what was published.
    Unpublished(String),
    /// A plain sentence.
    Because(String),
}

impl Reason {
    /// The reason in words. `task` is the task's label; `now` gives its present pre-image, where that is needed.
    #[must_use]
    pub fn describe(&self, cache: &Cache, kind: TaskKind, task: &str, now: impl FnOnce() -> Option<Present>) -> String {
        match self {
            Self::NoRecord => {
                let changes = self::changed_fields(cache, kind, task, now);
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
            Self::Disturbed { why, replaced } => {
                let number = replaced + 1;
                format!("the last attempt was disturbed: {why}; this is replacement {number} of {REPLACEMENTS}")
            }
            Self::RetryFailed(status) => format!("--retry-failed; the last attempt failed ({status})"),
            Self::SetAside(why) => format!("the measurement was set aside ({why}), so it is made again"),
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
    now: impl FnOnce() -> Option<Present>,
) -> Option<Vec<Change>> {
    let last = cache.last_of(kind, task)?;
    let now = now()?;
    let nested = |digest: &Digest| {
        now.job
            .as_ref()
            .filter(|(job, _)| job == digest)
            .map(|(_, text)| text.clone())
            .or_else(|| cache.preimage(digest))
    };
    let mut changes = changes(&last.preimage, &now.preimage, &nested);
    // Records of an older tprimat have the values of secrets.
    for change in &mut changes {
        let Some(name) = change.field.strip_prefix("env.").map(str::to_owned) else { continue };
        for value in [&mut change.old, &mut change.new].into_iter().flatten() {
            *value = public_value(&name, value).into_owned();
        }
    }
    Some(changes)
}

/// `oom: exit 1`, for people; of a failure that something else may have caused, what that was.
#[must_use]
pub fn outcome_text(attempt: &Attempt) -> String {
    match (&attempt.outcome, &attempt.suspect) {
        (AttemptOutcome::Ok, _) => "ok".into(),
        (AttemptOutcome::Failed { class, status, .. }, None) => format!("{}: {status}", class.name()),
        (AttemptOutcome::Failed { class, status, .. }, Some(why)) => format!("{}: {status}; {why}", class.name()),
    }
}
