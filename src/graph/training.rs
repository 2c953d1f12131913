//! The state of a training: which of its attempts serves, and whether it is to be made again.

use std::{collections::HashMap, sync::Arc};

use super::{
    Artifacts, Engine, Reason, State, Status, Statuses,
    attempt_logs::lost_log,
    reason::{INTERRUPTED_BEFORE, outcome_text},
    state::{Need, REPLACEMENTS},
};
use crate::{
    cache::{Attempt, Cache, TaskKind},
    digest::Digest,
    figures::{self, Dropped, NotCounted},
    job::{FailureClass, RunOutcome},
    logs::{Failure, same_failure},
    matrix::CellId,
    plan::{CellPlan, Prepared, fit, preimage::without_inputs},
    results::RunResult,
    sentences,
};

struct Attempts {
    /// The present one.
    generation: u32,
    /// Those of that generation that nobody set aside, in the order in which they were recorded.
    attempts: Vec<Attempt>,
    dropped: Dropped,
    /// Why one of the present generation was set aside.
    set_aside: Option<String>,
}

impl Engine<'_> {
    /// The state of a training, and that of its parse where it was found on the way.
    pub(super) fn train(
        &self,
        cell: CellId,
        repeat: u32,
        render: &Status,
        need: Need,
    ) -> (Status, Option<Status>) {
        let Some(prepared) = self.plan.prepared(cell) else {
            return Status::new(State::Unsupported).without_parse();
        };
        let (key, preimage) = match prepared.known() {
            Err(why) => {
                return Status::because(State::Waiting, Reason::Because(why.to_owned()))
                    .without_parse();
            }
            Ok(()) => self
                .train_key(cell, repeat, render.outputs())
                .expect("facts are known"),
        };
        let full = key;
        let mut of = self.attempts(repeat, &full);
        let mut key = full;
        // If results of an earlier version of the inputs serve below, they bring their own dropped
        // measurements. Those of the present inputs are kept apart.
        let own = disclosed(
            &of.dropped,
            of.attempts.iter().filter(|a| a.is_disturbed()).count(),
        );
        let may_serve = |a: &Attempt| a.outcome == RunOutcome::Ok || a.will_fail_again();
        if !of.attempts.iter().any(may_serve)
            && of.set_aside.is_none()
            && let Some((other, held)) = self.held(cell, repeat, &preimage)
        {
            (key, of) = (other, held);
        }
        let Attempts {
            generation,
            mut attempts,
            dropped,
            set_aside,
        } = of;
        let disclosed = |disturbed| disclosed(&dropped, disturbed);
        let disturbed = attempts.iter().filter(|a| a.is_disturbed()).count();
        if let Some((number, parse)) = self.usable(cell, &attempts, need) {
            let attempt = attempts.swap_remove(number);
            let reason = attempt
                .undeclared
                .told()
                .filter(|_| key != full)
                .map(Reason::Because);
            let artifacts = Artifacts::Attempt(Arc::new(attempt));
            let status = Status {
                artifacts,
                reason,
                dropped: disclosed(disturbed),
                ..Status::new(State::Fresh)
            };
            return (status.key(key), Some(parse));
        }
        // All valid attempts have lost their logs and results, so the training runs again. Only
        // attempts made after the last lost one decide how often, so that it does not run without end.
        let lost = attempts
            .iter()
            .rposition(Attempt::is_valid)
            .and_then(|last| attempts.drain(..=last).next_back());
        if let Some((last, parse)) = self.disturbed(cell, &attempts, need) {
            let why = last.suspect.clone().unwrap_or_default();
            let replaced = times_replaced(&attempts);
            // A file that is known only from the command may be an output of the run; then every
            // replacement would count as disturbed too.
            let is_in_doubt = !last.undeclared.changed.is_empty() && key != full;
            let most = if is_in_doubt {
                replaced + usize::from(!last.is_held)
            } else {
                REPLACEMENTS
            };
            if replaced < most && self.replaces(cell, prepared) {
                let stale = Status::because(
                    State::Stale,
                    Reason::Disturbed {
                        why,
                        replaced,
                        most,
                    },
                )
                .key(full);
                let dropped = if is_in_doubt {
                    own
                } else {
                    disclosed(disturbed)
                };
                return Status { dropped, ..stale }.without_parse();
            }
            let times = if replaced > 0 {
                format!("; replaced {replaced} of {most} times")
            } else {
                String::new()
            };
            let reason = Reason::Because(format!("disturbed, so not counted: {why}{times}"));
            let artifacts = Artifacts::Attempt(Arc::new(last.clone()));
            // This attempt is shown itself, so it is not counted among the dropped ones.
            let dropped = if is_in_doubt {
                own
            } else {
                disclosed(disturbed - 1)
            };
            return (
                Status {
                    artifacts,
                    dropped,
                    ..Status::because(State::Fresh, reason)
                }
                .key(key),
                Some(parse),
            );
        }
        let lost = if attempts.is_empty() {
            lost.as_ref()
        } else {
            attempts.last().filter(|a| a.is_disturbed())
        };
        let lost = lost.map(|a| {
            let log = lost_log(self.cache, a).or(a.outputs.first());
            Reason::OutputLost(log.map_or("log".into(), |o| o.name.clone()))
        });
        let why = lost.or(set_aside.map(Reason::SetAside));
        let dropped = if key == full {
            disclosed(disturbed)
        } else {
            own
        };
        Status {
            dropped,
            ..self.untrained(cell, render, (full, generation), &attempts, why, need)
        }
        .without_parse()
    }

    /// Attempts whose only difference from this training is in files that nobody declares and that
    /// were written while they ran, and the key that the last of them is filed under.
    fn held(&self, cell: CellId, repeat: u32, preimage: &str) -> Option<(Digest, Attempts)> {
        let inputs = &self.plan.prepared(cell)?.inputs;
        let guessed: Vec<&str> = inputs.possible_outputs().collect();
        let mut all = doubtful(self.cache, preimage, &guessed);
        let key = all.last()?.key;
        all.retain(|attempt| attempt.key == key);
        Some((
            key,
            Attempts {
                attempts: all,
                ..self.attempts(repeat, &key)
            },
        ))
    }

    /// The attempts at a training's key: those that may serve, and what is to be said of the
    /// others.
    fn attempts(&self, repeat: u32, key: &Digest) -> Attempts {
        let generation = self.cache.generation(key);
        let mut attempts = self.cache.attempts(key);
        let mut dropped = Dropped {
            repeat,
            ..Dropped::default()
        };
        let mut set_aside = None;
        attempts.retain(|attempt| {
            let is_present = attempt.generation == generation;
            if let Some(verdict) = &attempt.set_aside {
                dropped
                    .set_aside
                    .extend((attempt.outcome == RunOutcome::Ok).then(|| verdict.reason.clone()));
                set_aside = Some(verdict.reason.clone())
                    .filter(|_| is_present)
                    .or_else(|| set_aside.take());
            } else if !is_present && attempt.is_valid() {
                dropped.remeasured += 1;
            }
            is_present && attempt.set_aside.is_none()
        });
        // Not by their ids, which come from the clocks of their hosts: the last one recorded says
        // how things stand.
        attempts.sort_by_key(|attempt| attempt.recorded);
        Attempts {
            generation,
            attempts,
            dropped,
            set_aside,
        }
    }

    /// The position of the valid attempt with the lowest id that serves, and the state of its parse.
    fn usable(&self, cell: CellId, attempts: &[Attempt], need: Need) -> Option<(usize, Status)> {
        let mut valid: Vec<usize> = (0..attempts.len())
            .filter(|number| attempts[*number].is_valid())
            .collect();
        valid.sort_by(|a, b| attempts[*a].id.cmp(&attempts[*b].id));
        valid.into_iter().find_map(|number| {
            let parse = self.parse_of(cell, &attempts[number], need);
            self.serves(&attempts[number], &parse)
                .then_some((number, parse))
        })
    }

    /// An attempt whose log is lost serves only while its result is there. Whatever else the run
    /// left is read by people only.
    fn serves(&self, attempt: &Attempt, parse: &Status) -> bool {
        parse.state == State::Fresh || lost_log(self.cache, attempt).is_none()
    }

    /// The last attempt if something disturbed it and it serves, and the state of its parse.
    fn disturbed<'a>(
        &self,
        cell: CellId,
        attempts: &'a [Attempt],
        need: Need,
    ) -> Option<(&'a Attempt, Status)> {
        let last = attempts.last().filter(|a| a.is_disturbed())?;
        let parse = self.parse_of(cell, last, need);
        self.serves(last, &parse).then_some((last, parse))
    }

    /// Would a build make a disturbed measurement of this cell again, now and here?
    fn replaces(&self, cell: CellId, prepared: &Prepared) -> bool {
        self.options.replace && self.plan.cells[cell].selected && prepared.here().is_ok()
    }

    /// The state of a training without an attempt that can serve; `attempts` are those of its
    /// generation after the last one that counted, and `lost` says what is gone of the one that
    /// should serve.
    fn untrained(
        &self,
        cell: CellId,
        render: &Status,
        (key, generation): (Digest, u32),
        attempts: &[Attempt],
        lost: Option<Reason>,
        need: Need,
    ) -> Status {
        let Some(prepared) = self.plan.prepared(cell) else {
            return Status::new(State::Unsupported);
        };
        // An interruption says nothing, so that what failed before it has still failed.
        let bad = || attempts.iter().filter(|a| a.outcome != RunOutcome::Ok);
        let failed = bad()
            .rfind(|a| !a.is_interrupted())
            .or_else(|| bad().next_back());
        let reason = match (lost, failed) {
            (Some(lost), _) => lost,
            (None, Some(attempt)) if attempt.is_interrupted() => Reason::Interrupted,
            (None, Some(attempt)) => {
                let mut text = outcome_text(attempt);
                let mut lasting = attempt.will_fail_again();
                if !lasting && self.failed_alike(cell, render, attempt) {
                    lasting = true;
                    text = format!("twice in the same way: {text}{}", exception_of(attempt));
                }
                // Where a stale task asks why it failed, nothing but the log says so.
                let is_there = || self.serves(attempt, &self.parse_of(cell, attempt, need));
                if lasting && !self.options.retry_failed && is_there() {
                    let doubt = attempt.undeclared.doubt(true).filter(|_| attempt.is_held);
                    let then = doubt.unwrap_or_else(|| {
                        "runs again with --retry-failed or when its key changes".into()
                    });
                    let reason = Reason::Because(format!("failed ({text}); {then}"));
                    let artifacts = Artifacts::Attempt(Arc::new(attempt.clone()));
                    return Status {
                        artifacts,
                        ..Status::because(State::Failed, reason)
                    }
                    .key(key);
                }
                match lasting {
                    true if self.options.retry_failed => Reason::RetryFailed(text),
                    true => Reason::FailureLost(text),
                    false => Reason::RetryTransient(text),
                }
            }
            (None, None) if generation > 0 => Reason::Remeasure,
            (None, None) => Reason::NoRecord,
        };
        match (prepared.here(), self.withheld(cell, Some(&key))) {
            (Err(why), withheld) => {
                let last = failed.map(|a| match a.is_interrupted() {
                    true => INTERRUPTED_BEFORE.to_owned(),
                    false => format!("the last attempt failed ({})", outcome_text(a)),
                });
                let all: Vec<String> = [Some(why), last, withheld].into_iter().flatten().collect();
                Status::because(State::Waiting, Reason::Because(all.join("; "))).key(key)
            }
            (Ok(()), Some(why)) => Status::failed(why).key(key),
            (Ok(()), None) => match &self.plan.cells[cell].blocked {
                Some(why) => Status::because(State::Blocked, Reason::Because(why.clone())).key(key),
                None => Status::because(State::Stale, reason).key(key),
            },
        }
    }

    /// Did another run of this cell, of any of its repeats, fail in the same way, and none end well?
    /// They launch the same bytes, so the next one would end so too.
    fn failed_alike(&self, cell: CellId, render: &Status, attempt: &Attempt) -> bool {
        let Some(failure) = unexplained(attempt) else {
            return false;
        };
        let (mut is_twin, mut is_well) = (false, false);
        for repeat in 1..=self.plan.cells[cell].repeats {
            let Some((key, _)) = self.train_key(cell, repeat, render.outputs()) else {
                return false;
            };
            for other in self.attempts(repeat, &key).attempts {
                is_well |= other.outcome == RunOutcome::Ok;
                is_twin |= other.id != attempt.id
                    && unexplained(&other).is_some_and(|other| same_failure(failure, other));
            }
        }
        is_twin && !is_well
    }

    /// Repeats launch the same bytes on the same hardware. Where the first one failed in a way that
    /// comes again, those that never ran are not started to find that out once more.
    pub(super) fn unless_it_would_fail_too(
        &self,
        cell: CellId,
        render: &Status,
        train: Status,
        first: Option<&Status>,
    ) -> Status {
        let failed = first
            .filter(|first| {
                first.state == State::Failed && train.state == State::Stale && has_not_run(&train)
            })
            .and_then(Status::attempt);
        let Some(attempt) = failed else {
            return train;
        };
        let is_alike = !attempt.will_fail_again() && self.failed_alike(cell, render, attempt);
        if !is_alike && !attempt.will_fail_again() {
            return train;
        }
        let (text, exception) = (outcome_text(attempt), exception_of(attempt));
        let why = if is_alike {
            format!(
                "not started: two runs failed in the same way ({text}{exception}), as this one would; --retry-failed runs it anyway"
            )
        } else {
            format!(
                "not started: repeat 1 failed ({text}), as this one would; --retry-failed runs both"
            )
        };
        Status {
            key: train.key,
            ..Status::not_started(why)
        }
    }

    /// Where an earlier repeat ended well and its log shows that it does not count, and that none
    /// launched the same would (a setting that contradicts the job, say), those that never ran are
    /// not started: a build would pay for figures that nobody will see. This is read from the log as
    /// it is parsed now and stored nowhere, so a recipe that reads the log otherwise releases them.
    /// `earlier`: the training and the parse of each repeat before this one.
    pub(super) fn unless_it_would_not_count<'s>(
        &self,
        cell: CellId,
        train: Status,
        earlier: impl Iterator<Item = (u32, &'s Status, &'s Status)>,
    ) -> Status {
        if self.options.retry_failed || train.state != State::Stale || !has_not_run(&train) {
            return train;
        }
        let mut found = None;
        for (repeat, of, parse) in earlier {
            match self.verdict(cell, of, parse) {
                // One that counts shows that others may.
                Some(None) => return train,
                Some(Some(why)) if why.comes_again() => drop(found.get_or_insert((repeat, why))),
                _ => {}
            }
        }
        let Some((repeat, why)) = found else {
            return train;
        };
        let why = sentences::uncounted(&why);
        Status {
            key: train.key,
            dropped: train.dropped,
            ..Status::not_started(format!(
                "not started: repeat {repeat} does not count, and this one would not either ({why}); --retry-failed runs it anyway"
            ))
        }
    }

    /// Why a run that ended well does not count, by its log as it is parsed now; `None` where that
    /// is not known.
    pub(crate) fn verdict(
        &self,
        cell: CellId,
        train: &Status,
        parse: &Status,
    ) -> Option<Option<NotCounted>> {
        let is_parsed = train.state == State::Fresh && parse.state == State::Fresh;
        let attempt = train.attempt().filter(|_| is_parsed)?;
        if attempt.outcome != RunOutcome::Ok {
            return None;
        }
        let digest = parse.outputs().first()?.digest;
        self.verdicts.of(cell, digest, || {
            let bytes = self.cache.get(&digest).ok()??;
            let result: RunResult = serde_json::from_slice(&bytes).ok()?;
            let statistics = &self.plan.prepared(cell)?.resolved.statistics;
            Some(figures::why_uncounted(&result, statistics))
        })
    }

    /// Why a run is not worth a GPU-second: it is predicted to be far from fitting, and no attempt
    /// has shown otherwise. Without a key there is none.
    pub(crate) fn withheld(&self, cell: CellId, key: Option<&Digest>) -> Option<String> {
        let has_run = || {
            key.is_some_and(|k| {
                self.cache
                    .attempts(k)
                    .iter()
                    .any(|a| a.outcome == RunOutcome::Ok)
            })
        };
        fit::fit(self.plan, cell)
            .filter(|_| !self.options.force)?
            .withheld()
            .filter(|_| !has_run())
    }

    /// How the first of a cell's repeats failed that did, and how many did, where none went well: it
    /// did not measure, though a build would try it again.
    pub(super) fn only_failure(
        &self,
        id: CellId,
        cell: &CellPlan,
        statuses: &Statuses,
    ) -> Option<(Failure, usize)> {
        let (mut failure, mut failed) = (None, 0);
        for repeat in 1..=cell.repeats {
            let key = statuses
                .get(self.dag.node(TaskKind::Train, id, repeat))
                .key?;
            let mut has_failed = false;
            for attempt in self.attempts(repeat, &key).attempts.into_iter().rev() {
                match attempt.outcome {
                    RunOutcome::Ok => return None,
                    _ if attempt.is_interrupted() => {}
                    RunOutcome::Failed {
                        class, evidence, ..
                    } => {
                        has_failed = true;
                        failure.get_or_insert(Failure { class, evidence });
                    }
                }
            }
            failed += usize::from(has_failed);
        }
        Some((failure?, failed))
    }
}

/// Is it stale because no run of it was made yet?
fn has_not_run(train: &Status) -> bool {
    matches!(
        train.reason,
        Some(Reason::NoRecord | Reason::Remeasure | Reason::Interrupted)
    )
}

/// How often a disturbed attempt was replaced, at most [`REPLACEMENTS`]. The first disturbed attempt
/// replaces nothing; each later one replaces the one before it.
fn times_replaced(attempts: &[Attempt]) -> usize {
    let disturbed = attempts.iter().filter(|a| a.is_disturbed()).count();
    disturbed.saturating_sub(1).min(REPLACEMENTS)
}

/// What is to be said of measurements that do not count, beside those that do.
fn disclosed(dropped: &Dropped, disturbed: usize) -> Option<Arc<Dropped>> {
    let disturbed = u32::try_from(disturbed).unwrap_or(u32::MAX);
    let dropped = Dropped {
        disturbed,
        ..dropped.clone()
    };
    (!dropped.is_nothing()).then(|| Arc::new(dropped))
}

/// Attempts that are this training but for files that nobody declares (`guessed`) and that were
/// written while they ran, in the order in which they were recorded.
///
/// A run under which such a file changed does not count. Somebody may have edited it, so one other
/// run is made with the new content; if the file changes again, the run is believed to write it,
/// and none is made until somebody declares it. A run under which the file stayed as it was shows
/// that it does not write it, so what happened before that is forgotten.
#[must_use]
pub fn doubtful(cache: &Cache, preimage: &str, guessed: &[&str]) -> Vec<Attempt> {
    let mut keys: HashMap<Vec<&str>, Digest> = HashMap::new();
    let mut is_this_training = |attempt: &Attempt| {
        let written: Vec<&str> = guessed
            .iter()
            .copied()
            .filter(|name| attempt.undeclared.has(name))
            .collect();
        // It was filed without what it wrote, so this training without the same files has its key.
        !written.is_empty()
            && *keys
                .entry(written)
                .or_insert_with_key(|names| Digest::of(without_inputs(preimage, names)))
                == attempt.key
    };
    let mut found: Vec<Attempt> = Vec::new();
    if !guessed.is_empty() {
        found = cache.undeclared_attempts(|a| a.set_aside.is_none() && is_this_training(a));
        found.retain(|a| a.generation == cache.generation(&a.key));
    }
    if found.iter().any(Attempt::is_doubtful) {
        let (bare, lines) = (without_inputs(preimage, guessed), preimage.lines().count());
        let has_left_them = |attempt: &Attempt| {
            (attempt.is_valid() || attempt.will_fail_again())
                && attempt.undeclared.changed.is_empty()
                && attempt.preimage.lines().count() == lines
                && without_inputs(&attempt.preimage, guessed) == bare
        };
        let proofs = cache.all_attempts().into_iter().filter(has_left_them);
        let last = proofs.map(|attempt| attempt.recorded).max().unwrap_or(0);
        found.retain(|attempt| attempt.undeclared.changed.is_empty() || attempt.recorded > last);
    }
    found.sort_by_key(|attempt| attempt.recorded);
    let is_held = found.iter().filter(|attempt| attempt.is_doubtful()).count() > 1;
    found
        .into_iter()
        .map(|attempt| attempt.in_doubt(is_held))
        .collect()
}

/// The evidence and the status of a failure that no class explains, unless something else may have
/// caused it.
fn unexplained(attempt: &Attempt) -> Option<(&[String], &str)> {
    match &attempt.outcome {
        RunOutcome::Failed {
            class: FailureClass::Unknown | FailureClass::Crash,
            evidence,
            status,
        } if attempt.suspect.is_none() => Some((evidence, status)),
        _ => None,
    }
}

/// `: ValueError: heads must divide`
fn exception_of(attempt: &Attempt) -> String {
    let first = unexplained(attempt).and_then(|(evidence, _)| evidence.first());
    first.map_or_else(String::new, |line| format!(": {line}"))
}
