//! The state of a training: which of its attempts serves, and whether it is to be made again.

use std::sync::Arc;

use super::{
    Engine, Made, Reason, State, Status, Statuses,
    key::without_inputs,
    reason::outcome_text,
    state::{Need, REPLACEMENTS},
};
use crate::{
    analyze::Dropped,
    cache::{Attempt, AttemptOutcome, Cache, TaskKind},
    digest::Digest,
    parse::Failure,
    plan::{CellPlan, Prepared, fit},
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
    pub(super) fn train(&self, cell: usize, repeat: u32, render: &Status, need: Need) -> (Status, Option<Status>) {
        let Some(prepared) = self.plan.prepared(cell) else { return Status::new(State::Unsupported).alone() };
        let (key, preimage) = match prepared.known() {
            Err(why) => return Status::because(State::Waiting, Reason::Because(why.to_owned())).alone(),
            Ok(()) => self.train_key(cell, repeat, render.outputs()).expect("facts are known"),
        };
        let full = key;
        let mut of = self.attempts(repeat, &full);
        let mut key = full;
        if of.attempts.is_empty()
            && of.set_aside.is_none()
            && let Some((other, held)) = self.held(cell, repeat, &preimage)
        {
            (key, of) = (other, held);
        }
        let Attempts { generation, mut attempts, dropped, set_aside } = of;
        let disclosed = |disturbed: usize| {
            let disturbed = u32::try_from(disturbed).unwrap_or(u32::MAX);
            let dropped = Dropped { disturbed, ..dropped.clone() };
            (!dropped.is_nothing()).then(|| Arc::new(dropped))
        };
        let disturbed = attempts.iter().filter(|a| a.is_disturbed()).count();
        // The valid attempt with the lowest id; but one whose log is lost serves only while its result is there.
        let mut valid: Vec<usize> = (0..attempts.len()).filter(|number| attempts[*number].is_valid()).collect();
        valid.sort_by(|a, b| attempts[*a].id.cmp(&attempts[*b].id));
        let usable = valid.into_iter().find_map(|number| {
            let parse = self.parse_of(cell, &attempts[number], need);
            // Whatever else the run left is read by people only.
            let log = attempts[number].log();
            let serves = parse.state == State::Fresh || log.is_none_or(|log| self.cache.has(&log.digest));
            serves.then_some((number, parse))
        });
        if let Some((number, parse)) = usable {
            let attempt = attempts.swap_remove(number);
            let reason = attempt.undeclared.told().filter(|_| key != full).map(Reason::Because);
            let made = Made::Attempt(Arc::new(attempt));
            let status = Status { made, reason, dropped: disclosed(disturbed), ..Status::new(State::Fresh) };
            return (status.key(key), Some(parse));
        }
        // Those that nothing disturbed are lost. What was tried after them decides, so that it is not tried without end.
        let lost = attempts.iter().rposition(Attempt::is_valid).and_then(|last| attempts.drain(..=last).next_back());
        if let Some((last, parse)) = self.disturbed(cell, &attempts, need) {
            let why = last.suspect.clone().unwrap_or_default();
            // One that was made again because it was lost replaced none.
            let replaced = attempts.iter().filter(|a| a.is_disturbed()).count().min(REPLACEMENTS + 1) - 1;
            // What only the command names may be what the run writes, and then every replacement would be disturbed as well.
            let is_in_doubt = !last.undeclared.changed.is_empty() && key != full;
            if replaced < REPLACEMENTS && !is_in_doubt && self.replaces(cell, prepared) {
                let stale = Status::because(State::Stale, Reason::Disturbed { why, replaced }).key(full);
                return Status { dropped: disclosed(disturbed), ..stale }.alone();
            }
            let times =
                if replaced > 0 { format!("; replaced {replaced} of {REPLACEMENTS} times") } else { String::new() };
            let reason = Reason::Because(format!("disturbed, so not counted: {why}{times}"));
            let made = Made::Attempt(Arc::new(last.clone()));
            // This one is shown, so it is not among those that were replaced.
            let dropped = disclosed(disturbed - 1);
            return (Status { made, dropped, ..Status::because(State::Fresh, reason) }.key(key), Some(parse));
        }
        let lost = if attempts.is_empty() { lost.as_ref() } else { attempts.last().filter(|a| a.is_disturbed()) };
        let lost = lost.map(|a| Reason::OutputLost(a.outputs.first().map_or("log".into(), |o| o.name.clone())));
        let why = lost.or(set_aside.map(Reason::SetAside));
        Status { dropped: disclosed(disturbed), ..self.untrained(cell, full, generation, &attempts, why) }.alone()
    }

    /// Attempts whose only difference from this training is in files that changed while they ran and that nobody declares, and
    /// the key that they are filed under. Until somebody says what those files are, no GPU-hour goes into them again.
    fn held(&self, cell: usize, repeat: u32, preimage: &str) -> Option<(Digest, Attempts)> {
        let guessed: Vec<&str> = self.plan.prepared(cell)?.inputs.guessed().collect();
        let key = filed_without(self.cache, preimage, &guessed)?;
        let mut held = self.attempts(repeat, &key);
        held.attempts = held.attempts.into_iter().map(Attempt::in_doubt).collect();
        (!held.attempts.is_empty()).then_some((key, held))
    }

    /// The attempts at a training's key: those that may serve, and what is to be said of the others.
    fn attempts(&self, repeat: u32, key: &Digest) -> Attempts {
        let generation = self.cache.generation(key);
        let mut attempts = self.cache.attempts(key);
        let mut dropped = Dropped { repeat, ..Dropped::default() };
        let mut set_aside = None;
        attempts.retain(|attempt| {
            let is_present = attempt.generation == generation;
            if let Some(verdict) = &attempt.set_aside {
                dropped.set_aside.extend((attempt.outcome == AttemptOutcome::Ok).then(|| verdict.reason.clone()));
                set_aside = Some(verdict.reason.clone()).filter(|_| is_present).or_else(|| set_aside.take());
            } else if !is_present && attempt.is_valid() {
                dropped.remeasured += 1;
            }
            is_present && attempt.set_aside.is_none()
        });
        // Not by their ids, which come from the clocks of their hosts: the last one recorded says how things stand.
        attempts.sort_by_key(|attempt| attempt.recorded);
        Attempts { generation, attempts, dropped, set_aside }
    }

    /// The last attempt where something disturbed it, and the state of its parse. One whose log is lost serves only while
    /// its result is there.
    fn disturbed<'a>(&self, cell: usize, attempts: &'a [Attempt], need: Need) -> Option<(&'a Attempt, Status)> {
        let last = attempts.last().filter(|a| a.is_disturbed())?;
        let parse = self.parse_of(cell, last, need);
        (parse.state == State::Fresh || last.log().is_none_or(|log| self.cache.has(&log.digest)))
            .then_some((last, parse))
    }

    /// Would a build make a disturbed measurement of this cell again, now and here?
    fn replaces(&self, cell: usize, prepared: &Prepared) -> bool {
        self.options.replace && self.plan.cells[cell].selected && prepared.here().is_ok()
    }

    /// The state of a training without an attempt that can serve; `attempts` are those of its generation after the last one
    /// that counted, and `lost` says what is gone of the one that should serve.
    fn untrained(
        &self,
        cell: usize,
        key: Digest,
        generation: u32,
        attempts: &[Attempt],
        lost: Option<Reason>,
    ) -> Status {
        let Some(prepared) = self.plan.prepared(cell) else { return Status::new(State::Unsupported) };
        let failed = attempts.iter().rfind(|a| a.outcome != AttemptOutcome::Ok);
        let reason = match (lost, failed) {
            (Some(lost), _) => lost,
            (None, Some(attempt)) => {
                let text = outcome_text(attempt);
                let lasting = attempt.will_fail_again();
                if lasting && !self.options.retry_failed {
                    let reason = Reason::Because(format!(
                        "failed ({text}); runs again with --retry-failed or when its key changes"
                    ));
                    let made = Made::Attempt(Arc::new(attempt.clone()));
                    return Status { made, ..Status::because(State::Failed, reason) }.key(key);
                }
                if lasting { Reason::RetryFailed(text) } else { Reason::RetryTransient(text) }
            }
            (None, None) if generation > 0 => Reason::Remeasure(generation),
            (None, None) => Reason::NoRecord,
        };
        match (prepared.here(), self.withheld(cell, Some(&key))) {
            (Err(why), withheld) => {
                let last = failed.map(|a| format!("the last attempt failed ({})", outcome_text(a)));
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

    /// Why a run is not worth a GPU-second: it is predicted to be far from fitting, and no attempt has shown otherwise.
    /// Without a key there is none.
    pub(crate) fn withheld(&self, cell: usize, key: Option<&Digest>) -> Option<String> {
        let has_run = || key.is_some_and(|k| self.cache.attempts(k).iter().any(|a| a.outcome == AttemptOutcome::Ok));
        fit::fit(self.plan, cell).filter(|_| !self.options.force)?.withheld().filter(|_| !has_run())
    }

    /// How the first of a cell's repeats failed that did, where none went well: it did not measure, though a build would try
    /// it again.
    pub(super) fn only_failure(&self, id: u32, cell: &CellPlan, statuses: &Statuses) -> Option<Failure> {
        let mut failure = None;
        for repeat in 1..=cell.repeats {
            let key = statuses.get(self.dag.node(TaskKind::Train, id, repeat)).key?;
            for attempt in self.attempts(repeat, &key).attempts.into_iter().rev() {
                match attempt.outcome {
                    AttemptOutcome::Ok => return None,
                    AttemptOutcome::Failed { class, evidence, .. } => {
                        failure.get_or_insert(Failure { class, evidence });
                    }
                }
            }
        }
        failure
    }
}

/// The key at which there is an attempt that some of these files were written under, and that is the same training without
/// them.
#[must_use]
pub fn filed_without(cache: &Cache, preimage: &str, guessed: &[&str]) -> Option<Digest> {
    /// Up to this many files every combination is tried; beyond it only each file alone, and all together.
    const MOST: usize = 5;
    let subsets: Vec<u32> = match guessed.len() {
        0 => return None,
        few @ 1..=MOST => (1..1 << few).collect(),
        many => (0..many.min(31)).map(|bit| 1 << bit).chain([u32::MAX]).collect(),
    };
    subsets.into_iter().find_map(|subset| {
        let is_in = |number: usize| subset.checked_shr(number as u32).is_none_or(|rest| rest & 1 == 1);
        let names: Vec<&str> = guessed.iter().enumerate().filter(|(n, _)| is_in(*n)).map(|(_, name)| *name).collect();
        let key = Digest::of(without_inputs(preimage, &names));
        let is_theirs = |attempt: &Attempt| names.iter().all(|name| attempt.undeclared.has(name));
        cache.attempts(&key).iter().any(is_theirs).then_some(key)
    })
}

/// Repeats launch the same bytes on the same hardware. Where the first one failed in a way that comes again, those that
/// never ran are not started to find that out once more.
pub(super) fn unless_it_would_fail_too(train: Status, first: Option<&Status>) -> Status {
    let has_not_run = matches!(train.reason, Some(Reason::NoRecord | Reason::Remeasure(_)));
    let failed = first.filter(|first| first.state == State::Failed).and_then(Status::attempt);
    match failed.filter(|attempt| train.state == State::Stale && has_not_run && attempt.will_fail_again()) {
        Some(attempt) => {
            let text = outcome_text(attempt);
            let why =
                format!("not started: repeat 1 failed ({text}), as this one would; --retry-failed runs both again");
            Status { key: train.key, ..Status::failed(why) }
        }
        None => train,
    }
}
