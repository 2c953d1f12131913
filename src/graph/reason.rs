//! Why a task is in the state it is in, in words that name the field that changed.

use crate::{
    cache::{Attempt, INTERRUPTED, TaskKind},
    digest::Digest,
    graph::{
        Engine, Trainings,
        wording::{first_of, worded_of_task},
    },
    job::{FailureClass, RunOutcome},
    plan::preimage::{Change, changes},
    publish::Unpublished,
};

/// What a task's key is made of now.
pub struct Present {
    pub preimage: String,
    /// The job, which the pre-image names by its digest; before a build the cache does not know it.
    pub job: Option<(Digest, String)>,
}

/// The reason of a task without a record of any kind.
pub const NEVER_RUN: &str = "never run";

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
    /// The last run was ended together with its build.
    Interrupted,
    /// Something disturbed the last attempt, which is kept and not counted: what, and which
    /// replacement this is.
    Disturbed(String),
    /// `--force=failed`.
    RetryFailed(String),
    /// The last attempt failed for good, and its log is gone and needed.
    FailureLost(String),
    /// The measurement was set aside, and why.
    SetAside(String),
    /// Somebody asked for a new measurement, with `--force=measured`.
    Remeasure,
    /// The published file is missing or not what was published.
    Unpublished(Unpublished),
    /// It is not started, because another task failed or does not count; in a sentence which.
    NotStarted(String),
    /// A plain sentence.
    Because(String),
}

impl Reason {
    /// The reason in words. `task` is the task's label; `now` gives its present pre-image, where
    /// that is needed.
    #[must_use]
    pub fn describe(
        &self,
        engine: &Engine,
        kind: TaskKind,
        task: &str,
        now: impl FnOnce() -> Option<Present>,
    ) -> String {
        self.unless_never_run(engine, kind, task, now)
            .unwrap_or_else(|| NEVER_RUN.to_owned())
    }

    /// The same; none of a task that never ran.
    #[must_use]
    pub fn unless_never_run(
        &self,
        engine: &Engine,
        kind: TaskKind,
        task: &str,
        now: impl FnOnce() -> Option<Present>,
    ) -> Option<String> {
        Some(match self {
            Self::NoRecord => match &self::changed_fields(engine, kind, task, now)?[..] {
                [] => "its record is gone from the cache".into(),
                changes => first_of(&worded_of_task(changes)),
            },
            Self::OutputLost(name) => format!("`{name}` is gone from the cache and needed"),
            Self::Upstream(label) => format!("{label} will run"),
            Self::Interrupted => INTERRUPTED_BEFORE.to_owned(),
            Self::RetryTransient(status) => {
                format!(
                    "the last attempt failed ({status}); this may be transient, so it runs again"
                )
            }
            Self::Disturbed(why) => format!("the last attempt was disturbed: {why}"),
            Self::RetryFailed(status) => {
                format!("--force=failed; the last attempt failed ({status})")
            }
            Self::FailureLost(status) => {
                format!(
                    "the last attempt failed ({status}), but its log is gone from the cache and needed"
                )
            }
            Self::SetAside(why) => {
                format!("the measurement was set aside ({why}), so it is made again")
            }
            Self::Remeasure => "measured anew on request".into(),
            Self::Unpublished(file) => file.to_string(),
            Self::NotStarted(text) | Self::Because(text) => text.clone(),
        })
    }
}

/// What changed since this task last ran; `None` if it never did. Of a training, since the nearest
/// one that did the same work.
#[must_use]
pub fn changed_fields(
    engine: &Engine,
    kind: TaskKind,
    task: &str,
    now: impl FnOnce() -> Option<Present>,
) -> Option<Vec<Change>> {
    let cache = engine.cache;
    let last = cache.last_of(kind, task)?;
    let now = now()?;
    let nested = |digest: &Digest| {
        now.job
            .as_ref()
            .filter(|(job, _)| job == digest)
            .map(|(_, text)| text.clone())
            .or_else(|| cache.preimage(digest))
    };
    let since = |old: &str| changes(old, &now.preimage, &nested);
    let mut changes = since(&last.preimage);
    // The last one under this name may be another matrix's.
    if kind == TaskKind::Train
        && let Some((_, job)) = &now.job
    {
        let trainings = engine.trainings.get_or_init(|| Trainings::of(cache));
        let nearest = trainings.nearest(cache, task, job, since);
        let old = nearest.or_else(|| cache.attempts(&last.key).into_iter().next());
        if let Some(old) = old {
            changes = trainings.with_settings(cache, &old, job, since(&old.preimage));
        }
    }
    Some(changes)
}

/// Why a training is made whose last run was ended together with its build.
pub const INTERRUPTED_BEFORE: &str = "its last run was interrupted";

/// `oom: exit 1`, for people; of a failure that something else may have caused, what that was.
#[must_use]
pub fn outcome_text(attempt: &Attempt) -> String {
    match (&attempt.outcome, &attempt.suspect) {
        (RunOutcome::Ok, _) => "ok".into(),
        _ if attempt.is_interrupted() => INTERRUPTED.into(),
        (RunOutcome::Failed { class, status, .. }, suspect) => {
            let class = match class {
                FailureClass::Unknown => String::new(),
                known => format!("{}: ", known.name()),
            };
            let suspect = suspect.as_ref().map(|why| format!("; {why}"));
            format!("{class}{status}{}", suspect.unwrap_or_default())
        }
    }
}
