//! The state of a training: which of its attempts serves, and whether it is to be made again.
//!
//! | attempt | does it count? | what a build does |
//! |---|---|---|
//! | ended well | yes; of several the one with the lowest id | nothing |
//! | ended well, and made a file that its command names | yes, and the build says so | nothing |
//! | something disturbed it | no | replaces it, at most [`REPLACEMENTS`] times |
//! | a file changed under it that only its command names | when `inputs` says that runs write the file | replaces it once |
//! | failed, and would fail again | no | nothing without `--force=failed` |
//! | failed otherwise, or interrupted | no | runs it again |
//! | set aside, or of an earlier generation | no | runs it again |

use std::sync::Arc;

use super::{
    Engine, Reason, State, Status, Statuses, Written,
    attempt_logs::lost_log,
    reason::{INTERRUPTED_BEFORE, outcome_text},
    state::{Need, REPLACEMENTS},
};
use crate::{
    cache::{Attempt, TaskKind},
    digest::Digest,
    error::Result,
    figures::{self, Dropped},
    job::{FailureClass, RunOutcome},
    logs::{Failure, same_failure},
    matrix::CellId,
    plan::{CellPlan, Prepared, fit},
    results::{self, MIN_REPEATS, RunResult},
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
        let mut of = self.attempts(repeat, &key);
        let is_disturbed = |a: &&Attempt| a.is_disturbed();
        // What is told beside a training is of its own key, as it is once the training was made.
        let disturbed = of.attempts.iter().filter(is_disturbed).count();
        if !of.attempts.iter().any(Attempt::is_valid) && of.set_aside.is_none() {
            let written = self.written.get_or_init(|| Written::of(self.cache));
            let this = (key, preimage.as_str());
            of.attempts
                .extend(written.elsewhere(self.cache, this, &prepared.inputs));
            of.attempts.sort_by_key(|attempt| attempt.recorded);
        }
        let Attempts {
            generation,
            mut attempts,
            dropped,
            set_aside,
        } = of;
        let disclosed = |disturbed| disclosed(&dropped, disturbed);
        if let Some((number, parse)) = self.usable(cell, &attempts, need) {
            let attempt = attempts.swap_remove(number);
            let reason = attempt
                .undeclared
                .told()
                .filter(|_| attempt.key != key)
                .map(Reason::Because);
            let status = Status {
                reason,
                dropped: disclosed(disturbed),
                ..Status::new(State::Fresh)
            };
            return (status.of_attempt(attempt), Some(parse));
        }
        // All valid attempts have lost their logs and results, so the training runs again. Only
        // attempts made after the last lost one decide how often, so that it does not run without end.
        let lost = attempts
            .iter()
            .rposition(Attempt::is_valid)
            .and_then(|last| attempts.drain(..=last).next_back());
        if let Some((last, parse)) = self.disturbed(cell, &attempts, need) {
            let why = last.suspect.clone().unwrap_or_default();
            // If the run itself writes the file that changed, each replacement is disturbed as well.
            let is_one = |name| {
                last.undeclared
                    .changed
                    .iter()
                    .any(|changed| changed == name)
            };
            let most = match prepared.inputs.possible_outputs().any(is_one) {
                true => 1,
                false => REPLACEMENTS,
            };
            // The first disturbed attempt replaces nothing; each later one replaces the one before.
            let replaced = (attempts.iter().filter(is_disturbed).count() - 1).min(most);
            if replaced < most && self.replaces(cell, prepared) {
                let number = replaced + 1;
                let why = format!("{why}; this is replacement {number} of {most}");
                let status = Status {
                    dropped: disclosed(disturbed),
                    ..Status::because(State::Stale, Reason::Disturbed(why))
                };
                return status.key(key).without_parse();
            }
            let mut why = format!("disturbed, so not counted: {why}");
            if replaced > 0 {
                why += &format!("; replaced {replaced} of {most} times");
            }
            let status = Status {
                // This attempt is shown itself, so it is not counted among the dropped ones.
                dropped: disclosed(disturbed - usize::from(last.key == key)),
                ..Status::because(State::Fresh, Reason::Because(why))
            };
            return (status.of_attempt(last.clone()), Some(parse));
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
        Status {
            dropped: disclosed(disturbed),
            ..self.untrained(cell, render, (key, generation), &attempts, why, need)
        }
        .without_parse()
    }

    /// How many repeats a cell has: those that the matrix asks for, or as many as were made until a
    /// decision, more or fewer.
    pub fn repeats_with_decided(&self, cell: CellId) -> Result<u32> {
        let asked = self.plan.cells[cell].repeats;
        let is_known = |prepared: &Prepared| prepared.known().is_ok();
        if asked == 0 || !self.plan.prepared(cell).is_some_and(is_known) {
            return Ok(asked);
        }
        let render = self.render(cell)?;
        // Was a run that counts one of a round? None where there is no such run.
        let is_of_round = |repeat: u32| -> Option<bool> {
            let (key, _) = self.train_key(cell, repeat, render.outputs())?;
            let attempts = self.cache.attempts(&key);
            let valid = attempts.iter().find(|attempt| attempt.is_valid())?;
            Some(
                valid
                    .repeats_planned
                    .is_some_and(|planned| planned.round().is_some()),
            )
        };
        if is_of_round(asked).is_some() {
            let added = (asked + 1..).take_while(|repeat| is_of_round(*repeat) == Some(true));
            return Ok(asked.saturating_add(added.count() as u32));
        }
        // Fewer than a comparison may judge were interrupted, and not ended by a decision.
        let made: Vec<bool> = (1..asked).map_while(is_of_round).collect();
        Ok(match made.contains(&true) && made.len() >= MIN_REPEATS {
            true => made.len() as u32,
            false => asked,
        })
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
                let mut attempt = attempt.clone();
                let changed = |a: &&Attempt| a.has_failed() && !a.undeclared.changed.is_empty();
                if attempts.iter().filter(changed).count() > 1 {
                    // It failed with the new content of the files as well.
                    attempt.suspect = None;
                }
                let attempt = &attempt;
                let mut text = outcome_text(attempt);
                let mut lasting = attempt.will_fail_again();
                if !lasting && self.failed_alike(cell, render, attempt) {
                    lasting = true;
                    text = format!("twice in the same way: {text}{}", exception_of(attempt));
                }
                // Where a stale task asks why it failed, nothing but the log says so.
                let is_there = || self.serves(attempt, &self.parse_of(cell, attempt, need));
                if lasting && !self.options.retry_failed && is_there() {
                    let reason = Reason::Because(format!(
                        "failed ({text}); runs again with --force=failed or when its key changes"
                    ));
                    return Status::because(State::Failed, reason).of_attempt(attempt.clone());
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
                "not started: two runs failed in the same way ({text}{exception}), as this one would; --force=failed runs it anyway"
            )
        } else {
            format!(
                "not started: repeat 1 failed ({text}), as this one would; --force=failed runs both"
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
                Some(Some(why)) if figures::comes_again(&why) => {
                    found.get_or_insert((repeat, why));
                }
                _ => {}
            }
        }
        let Some((repeat, why)) = found else {
            return train;
        };
        Status {
            key: train.key,
            dropped: train.dropped,
            ..Status::not_started(format!(
                "not started: repeat {repeat} does not count, and this one would not either ({why}); --force=failed runs it anyway"
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
    ) -> Option<Option<results::Reason>> {
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
pub(super) fn has_not_run(train: &Status) -> bool {
    matches!(
        train.reason,
        Some(Reason::NoRecord | Reason::Remeasure | Reason::Interrupted)
    )
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
