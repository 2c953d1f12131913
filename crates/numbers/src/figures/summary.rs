//! A cell's results → its statistics: within each repeat over steps, then over repeats.

mod beside;
mod drift;
pub(crate) mod notes;
mod uncounted;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::AddAssign,
};

use crate::results::{
    Attestation, AttestationStatus, Contract, FieldDifference, FlopsPerToken, Reason,
    RepeatsPlanned, RunResult, Tier, Workload, differences, geometric_mean, is_positive, mean,
    settings::{show, without_meaning},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use tprimat_job::{FailureClass, RunOutcome};
use tprimat_logs::{ABSURD_STEP_TIME, DeviceLine, Step};

use super::{
    Clock, Cut, Dropped, Energy, Estimate, Note, Steady, Telemetry,
    clock::{self, Checked},
    interval::estimate,
    pairs,
    steady::{is_measured, steady, steady_state},
    telemetry,
    windows::{all_by_clock, by_clock},
};

pub use uncounted::{comes_again, failure_class, why_uncounted};

pub const SUMMARY_SCHEMA: &str = "tprimat.summary/1";

/// Settings of the statistics; all of them are in the aggregate's key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    /// First optimiser steps of every run that are not measured.
    pub warmup_steps: u64,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    pub schema_version: String,
    /// Repeats that count: ended well, not contradicted, not suspect, with measured steps.
    pub n: usize,
    pub warmup_steps: u64,
    /// How the starts of the measured parts were found: `CUSUM`, `declared` = after `warmup_steps`,
    /// or mixed.
    pub steady_state: String,
    /// Over the repeats that count.
    pub tokens_per_second_per_gpu: Option<Estimate>,
    /// All devices together: `tokens_per_second_per_gpu` × devices.
    pub tokens_per_second: Option<f64>,
    /// Means of the repeats' own figures.
    pub step_time: Option<StepTime>,
    /// The most that any repeat that counts used, by kind and source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Memory>,
    /// Mean over the repeats of the loss at the last step.
    pub loss_at_end: Option<f64>,
    pub last_step: Option<u64>,
    /// The weakest over the repeats that count.
    pub attestation: AttestationStatus,
    /// Field by field, of the first repeat that counts; with none, of any.
    pub attested: Option<Attestation>,
    pub contract: Contract,
    /// What the trainer states and tprimat does not know the meaning of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unlisted: BTreeMap<String, serde_json::Value>,
    pub workload: Option<Workload>,
    pub device: Option<DeviceLine>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    pub hosts: BTreeSet<String>,
    /// Every repeat, also those that do not count, in order.
    pub repeats: Vec<RepeatSummary>,
    /// Other measurements of these repeats, which do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepTime {
    pub mean_seconds: f64,
    /// The median of single steps; absent, as `p95_seconds` is, where the log has one time for all steps.
    pub median_seconds: Option<f64>,
    pub p95_seconds: Option<f64>,
    /// Spread of single steps within a repeat; absent with one step.
    pub sd_seconds: Option<f64>,
    /// sd ÷ mean.
    pub cv: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// `peak_allocated`, `peak_reserved`, `device_used`, `process_device_used`, `peak_rss`;
    /// `not_stated`.
    pub kind: String,
    pub source: String,
    pub bytes: u64,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RepeatSummary {
    pub repeat: u32,
    pub attempt: String,
    pub host: String,
    pub status: RepeatStatus,
    /// Why it does not count.
    pub why: Option<Reason>,
    /// Means over the measured steps; absent where there are none.
    pub steady: Option<Steady>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Memory>,
    pub loss_at_end: Option<f64>,
    pub last_step: Option<u64>,
    /// Seconds since 1970.
    pub started_at: Option<f64>,
    /// Seconds since 1970.
    pub ended_at: Option<f64>,
    /// How step times and the clock compare; absent where it is not known when the measured steps
    /// ended.
    pub clock: Option<Clock>,
    /// Why a timer that stops too early would not have been found.
    pub unchecked: Option<Reason>,
    pub telemetry: Option<Telemetry>,
    /// Why there is none, where something was to be sampled.
    pub telemetry_absent: Option<Reason>,
    /// The devices that it had, by their locks' names (`gpu-<uuid>`), sorted; empty where no
    /// sampler said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// How many runs of its cell were to be made when this one was: a number, or the round of runs that
    /// were added until the speeds were told apart (`build --decide`).
    pub repeats_planned: Option<RepeatsPlanned>,
    /// Last lines of the log of a run that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log_tail: Vec<String>,
    /// Series for the pictures.
    pub curve: Curve,
}

impl RepeatSummary {
    /// How the start of its measured part was found.
    #[must_use]
    pub fn cut(&self) -> Option<&Cut> {
        self.steady.as_ref()?.cut.as_ref()
    }
    /// The energy of its measured part.
    #[must_use]
    pub fn energy(&self) -> Option<&Energy> {
        self.telemetry.as_ref()?.energy.as_ref()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum RepeatStatus {
    Ok,
    Failed {
        class: FailureClass,
        evidence: Vec<String>,
    },
    /// Kept, and not counted.
    Contradicted {
        fields: Vec<String>,
    },
    /// Kept, and not counted: something else disturbed the run.
    Suspect {
        reason: String,
    },
    /// Ended well, but there is nothing to count.
    Unmeasured {
        reason: Reason,
    },
}

impl RepeatStatus {
    /// Why a repeat does not count, in short; nothing where it does.
    #[must_use]
    pub fn why_not(&self) -> Option<String> {
        match self {
            Self::Ok => None,
            Self::Contradicted { fields } => Some(format!(
                "the log contradicts itself or the job in {}",
                fields.join(", ")
            )),
            Self::Suspect { reason } => Some(reason.clone()),
            Self::Unmeasured { reason } => Some(reason.text.clone()),
            Self::Failed { class, .. } => Some(format!("failed{}", class.in_brackets())),
        }
    }
}

/// How many repeats do not count, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UncountedRepeats {
    pub failed: usize,
    /// The log contradicts the job.
    pub contradicted: usize,
    /// Something else disturbed the run.
    pub suspect: usize,
    /// They ended well with nothing to measure.
    pub unmeasured: usize,
}

impl UncountedRepeats {
    #[must_use]
    pub fn of(repeats: &[RepeatSummary]) -> Self {
        let mut counts = Self::default();
        for repeat in repeats {
            match repeat.status {
                RepeatStatus::Ok => {}
                RepeatStatus::Failed { .. } => counts.failed += 1,
                RepeatStatus::Contradicted { .. } => counts.contradicted += 1,
                RepeatStatus::Suspect { .. } => counts.suspect += 1,
                RepeatStatus::Unmeasured { .. } => counts.unmeasured += 1,
            }
        }
        counts
    }

    /// Each count with its name in tables and files.
    #[must_use]
    pub fn by_why(&self) -> [(&'static str, usize); 4] {
        [
            ("failed", self.failed),
            ("contradicted", self.contradicted),
            ("suspect", self.suspect),
            ("unmeasured", self.unmeasured),
        ]
    }
}

impl AddAssign for UncountedRepeats {
    fn add_assign(&mut self, more: Self) {
        self.failed += more.failed;
        self.contradicted += more.contradicted;
        self.suspect += more.suspect;
        self.unmeasured += more.unmeasured;
    }
}

/// Series by step; `None` where the log has no value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Curve {
    pub step: Vec<u64>,
    pub step_time_seconds: Vec<Option<f64>>,
    pub loss: Vec<Option<f64>>,
    pub learning_rate: Vec<Option<f64>>,
}

/// `results`: one a repeat, by repeat number.
#[must_use]
pub fn summarize(results: &[(u32, RunResult)], statistics: &Statistics) -> Summary {
    let timed: Vec<(u32, RunResult)>;
    let mut all = results.iter();
    let results = match all.any(|(_, result)| result.trace.clock.is_some()) {
        true => {
            let all = all_by_clock(results, statistics.warmup_steps).into_iter();
            timed = all.map(|(n, result)| (n, result.into_owned())).collect();
            &timed
        }
        false => results,
    };
    let mut repeats: Vec<RepeatSummary> = results
        .iter()
        .map(|(n, result)| summarize_repeat(*n, result, statistics))
        .collect();
    // Rates of different work have no mean, however the runs came under one cell.
    if let Some(reason) = other_workloads(&repeats, results) {
        for repeat in repeats.iter_mut().filter(|r| r.status == RepeatStatus::Ok) {
            repeat.why = Some(reason.clone());
            repeat.status = RepeatStatus::Unmeasured {
                reason: reason.clone(),
            };
        }
    }
    let counted: Vec<(&RepeatSummary, &RunResult)> = repeats
        .iter()
        .zip(results)
        .filter(|(r, _)| r.status == RepeatStatus::Ok)
        .map(|(r, (_, result))| (r, result))
        .collect();
    let steady: Vec<&Steady> = counted
        .iter()
        .filter_map(|(r, _)| r.steady.as_ref())
        .collect();
    let estimate = estimate(&counted);
    // The step time is that of the runs that the rate is made of.
    let is_in_units = |run: &RepeatSummary| estimate.as_ref().is_none_or(|e| e.unit.has(run));
    let in_units = counted.iter().filter(|(r, _)| is_in_units(r));
    let of_units: Vec<&Steady> = in_units.filter_map(|(r, _)| r.steady.as_ref()).collect();
    // What the cell ran is told by the first repeat that counts; with none, by any.
    let speaker = counted
        .first()
        .map(|(_, result)| *result)
        .or_else(|| results.first().map(|(_, result)| result));
    let workload = speaker.map(|r| r.workload.clone());
    let num_gpus = workload.as_ref().and_then(|w| w.num_gpus);
    let of_counted = |f: fn(&RepeatSummary) -> Option<f64>| {
        let values: Option<Vec<f64>> = counted.iter().map(|(r, _)| f(r)).collect();
        values.and_then(|v| mean(&v))
    };
    let weakest = counted
        .iter()
        .map(|(_, r)| r.attestation.status)
        .min_by_key(|s| *s == AttestationStatus::Attested);
    Summary {
        schema_version: SUMMARY_SCHEMA.to_owned(),
        n: counted.len(),
        warmup_steps: statistics.warmup_steps,
        steady_state: steady_state(&steady).to_owned(),
        tokens_per_second: estimate
            .as_ref()
            .zip(num_gpus)
            .map(|(e, n)| e.value * n as f64),
        step_time: mean_step_time(&of_units),
        memory: most(
            counted
                .iter()
                .flat_map(|(r, _)| &r.memory)
                .map(|m| (&*m.kind, &*m.source, m.bytes)),
        ),
        loss_at_end: of_counted(|r| r.loss_at_end),
        last_step: counted.iter().filter_map(|(r, _)| r.last_step).max(),
        attestation: weakest.unwrap_or(AttestationStatus::NotStated),
        attested: speaker.map(|r| r.attestation.clone()),
        contract: speaker.map(|r| r.contract.clone()).unwrap_or_default(),
        unlisted: speaker
            .map(|r| without_meaning(&r.trace.effective.0))
            .unwrap_or_default(),
        device: speaker.and_then(|r| r.trace.device.clone()),
        versions: speaker
            .map(|r| r.trace.versions.clone())
            .unwrap_or_default(),
        hosts: counted.iter().map(|(_, r)| r.host.clone()).collect(),
        notes: notes::notes(&counted, &repeats, results, estimate.as_ref(), statistics),
        tokens_per_second_per_gpu: estimate,
        workload,
        repeats,
        dropped: Vec::new(),
    }
}

/// The first two repeats that would count and did different work, if any did.
fn other_workloads(repeats: &[RepeatSummary], results: &[(u32, RunResult)]) -> Option<Reason> {
    let counted: Vec<(u32, &Contract)> = repeats
        .iter()
        .zip(results)
        .filter(|(repeat, _)| repeat.status == RepeatStatus::Ok)
        .map(|(repeat, (_, result))| (repeat.repeat, &result.contract))
        .collect();
    let forbids = |d: &FieldDifference| d.is_known() && d.tier == Tier::Workload;
    let mut pairs = counted.iter().enumerate().flat_map(|(at, b)| {
        let earlier = counted[..at].iter();
        earlier.map(move |a| (*a, *b))
    });
    pairs.find_map(|((a, of_a), (b, of_b))| {
        let fields: Vec<FieldDifference> = differences(of_a, of_b)
            .into_iter()
            .filter(forbids)
            .collect();
        let value = |field: &FieldDifference| {
            format!(
                "{} ({} in repeat {a}, {} in repeat {b})",
                field.field,
                show(field.a.as_ref()),
                show(field.b.as_ref())
            )
        };
        let told: Vec<String> = fields.iter().map(value).collect();
        let text = format!(
            "the repeats do not agree on {}, so they measure different work",
            told.join(", ")
        );
        (!fields.is_empty()).then(|| Reason::excludes("other_workloads", text))
    })
}

/// A time in the measured part that cannot be one: what the others would give is not the run's
/// rate.
fn absurd_time(result: &RunResult, statistics: &Statistics) -> Option<Reason> {
    let is_measured = |step: u64| {
        let mut lines = result.trace.steps.iter();
        lines
            .find(|s| s.step == step)
            .is_none_or(|s| is_measured(s, result, statistics))
    };
    let mut anomalies = result.trace.anomalies.iter();
    let found = anomalies.find(|a| a.kind == ABSURD_STEP_TIME && a.step.is_none_or(is_measured))?;
    let text = format!("{}, which cannot be a step time", found.detail);
    Some(Reason::excludes("absurd_time", text))
}

/// The measured part of a run as far as it can be believed, with how it compares with the clock; or
/// why there is none.
fn measured(result: &RunResult, statistics: &Statistics) -> Result<(Steady, Checked), Reason> {
    if let Some(reason) = &result.no_rate {
        return Err(reason.clone());
    }
    if let Some(reason) = absurd_time(result, statistics) {
        return Err(reason);
    }
    let steady = steady(result, statistics)?;
    let checked = clock::of_run(result, counts(result, Some(&steady), statistics))?;
    Ok((steady, checked))
}

/// Is a step one of those that the rate is made of?
fn counts<'a>(
    result: &'a RunResult,
    steady: Option<&Steady>,
    statistics: &'a Statistics,
) -> impl Fn(&Step) -> bool + 'a {
    let first_step = steady
        .and_then(|s| s.cut.as_ref())
        .map_or(0, |cut| cut.first_step);
    move |s| s.step >= first_step && is_measured(s, result, statistics)
}

/// When the measured part of a run that counts began and ended, seconds since 1970; none where it
/// does not count, or where that is not known.
pub(super) fn measured_part(result: &RunResult, statistics: &Statistics) -> Option<[f64; 2]> {
    if result.outcome != RunOutcome::Ok || result.is_contradicted() {
        return None;
    }
    let result = &*by_clock(result, statistics.warmup_steps);
    let (steady, _) = measured(result, statistics).ok()?;
    let counts = counts(result, Some(&steady), statistics);
    telemetry::window(result.trace.steps.iter().filter(|s| counts(s))).ok()
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

fn summarize_repeat(repeat: u32, result: &RunResult, statistics: &Statistics) -> RepeatSummary {
    let steps = &result.trace.steps;
    let (steady, Checked { clock, unchecked }) = match measured(result, statistics) {
        Ok((steady, checked)) => (Ok(steady), checked),
        Err(why) => (Err(why), Checked::default()),
    };
    let status = match &result.outcome {
        RunOutcome::Failed {
            class, evidence, ..
        } => RepeatStatus::Failed {
            class: *class,
            evidence: evidence.clone(),
        },
        RunOutcome::Ok if result.is_contradicted() => RepeatStatus::Contradicted {
            fields: result
                .attestation
                .contradicted()
                .map(|f| f.field.clone())
                .collect(),
        },
        RunOutcome::Ok => match (&steady, &result.suspect) {
            (_, Some(reason)) => RepeatStatus::Suspect {
                reason: reason.clone(),
            },
            (Ok(_), None) => RepeatStatus::Ok,
            (Err(reason), None) => RepeatStatus::Unmeasured {
                reason: reason.clone(),
            },
        },
    };
    let counts = counts(result, steady.as_ref().ok(), statistics);
    let (telemetry, telemetry_absent) = match telemetry::of_run(result, counts) {
        Some(Ok(telemetry)) => (Some(telemetry), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let last = steps.last();
    // A step that only a bar shows has no line, and no loss.
    let has_line = |s: &&Step| s.loss.is_some() || s.learning_rate.is_some();
    let last_line = match result.trace.clock {
        Some(_) => steps.iter().rev().find(has_line),
        None => last,
    };
    let (started_at, ended_at) = result.span();
    RepeatSummary {
        repeat,
        attempt: result.attempt.clone(),
        host: result.host.clone(),
        why: uncounted::uncounted(&status, result),
        status,
        steady: steady.ok(),
        memory: most(
            steps
                .iter()
                .filter_map(memory)
                .chain(reported(&result.trace)),
        ),
        loss_at_end: last_line.and_then(|s| finite(s.loss)),
        last_step: last.map(|s| s.step),
        started_at,
        ended_at,
        devices: sorted(
            result
                .telemetry
                .as_ref()
                .map(|t| t.device_names.clone())
                .unwrap_or_default(),
        ),
        clock,
        unchecked,
        telemetry,
        telemetry_absent,
        repeats_planned: result.repeats_planned,
        log_tail: result.log_tail.clone(),
        curve: Curve {
            step: steps.iter().map(|s| s.step).collect(),
            step_time_seconds: steps
                .iter()
                .map(|s| s.step_time_seconds.filter(|t| is_positive(*t)))
                .collect(),
            loss: steps.iter().map(|s| finite(s.loss)).collect(),
            learning_rate: steps.iter().map(|s| finite(s.learning_rate)).collect(),
        },
    }
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.is_finite())
}

/// Kind, source and bytes.
type Used<'a> = (&'a str, &'a str, u64);

fn memory(step: &Step) -> Option<Used<'_>> {
    fn name<'a>(stated: &'a Option<std::borrow::Cow<'static, str>>) -> &'a str {
        stated.as_deref().unwrap_or("not_stated")
    }
    Some((
        name(&step.memory_kind),
        name(&step.memory_source),
        step.memory_bytes?,
    ))
}

/// What ranks report of memory apart from their steps: peaks, not what happened to be in use just
/// then.
fn reported(trace: &tprimat_logs::Trace) -> impl Iterator<Item = Used<'_>> {
    let figures = trace.memory.iter().flat_map(|report| &report.figures);
    let peaks = figures.filter(|f| f.kind.starts_with("peak_") || f.kind == "device_used");
    peaks.map(|f| (&*f.kind, &*f.source, f.bytes))
}

/// The largest figure of each kind and source.
fn most<'a>(all: impl Iterator<Item = Used<'a>>) -> Vec<Memory> {
    let mut by_kind: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (kind, source, used) in all {
        let bytes = by_kind.entry((kind, source)).or_default();
        *bytes = used.max(*bytes);
    }
    let memory = |((kind, source), bytes): ((&str, &str), u64)| Memory {
        kind: kind.to_owned(),
        source: source.to_owned(),
        bytes,
    };
    by_kind.into_iter().map(memory).collect()
}

/// Geometric means, as of rates: so a cell's step time is still its tokens divided by its rate.
fn mean_step_time(steady: &[&Steady]) -> Option<StepTime> {
    let over = |f: fn(&StepTime) -> Option<f64>| {
        let all: Option<Vec<f64>> = steady.iter().map(|s| f(&s.step_time)).collect();
        geometric_mean(&all?)
    };
    let spread: Option<Vec<f64>> = steady
        .iter()
        .map(|s| s.step_time.sd_seconds.map(|sd| sd * sd))
        .collect();
    let mean_seconds = over(|t| Some(t.mean_seconds))?;
    // Pooled: the mean of the variances.
    let sd_seconds = spread.and_then(|v| mean(&v)).map(f64::sqrt);
    Some(StepTime {
        mean_seconds,
        median_seconds: over(|t| t.median_seconds),
        p95_seconds: over(|t| t.p95_seconds),
        sd_seconds,
        cv: sd_seconds.map(|sd| sd / mean_seconds),
    })
}

/// How many repeats the first plan wanted, and those that count beyond it because a later plan
/// wanted more. Where it is not known what was planned, nothing is said.
pub(super) fn repeats_added_later(repeats: &[RepeatSummary]) -> Option<(u32, Vec<u32>)> {
    let counted = || repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    // Their test may be looked at after every run (`pairs`).
    if pairs::are_until_decided(repeats) {
        return None;
    }
    let planned = |r: &RepeatSummary| r.repeats_planned?.number();
    let first_plan = counted().filter_map(planned).min()?;
    let is_added = |r: &&RepeatSummary| r.repeat > first_plan && planned(r) > Some(first_plan);
    let added: Vec<u32> = counted().filter(is_added).map(|r| r.repeat).collect();
    (!added.is_empty()).then_some((first_plan, added))
}

/// The attempts behind the repeats that count. A repeat that names no attempt has none here, so that
/// it is never taken for the same measurement as another.
pub(super) fn attempts(repeats: &[RepeatSummary]) -> BTreeSet<&str> {
    let counted = repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    counted
        .map(|r| r.attempt.as_str())
        .filter(|attempt| !attempt.is_empty())
        .collect()
}

impl Summary {
    /// How many times too high the rate may be, by the clock: of the repeats that count, the worst.
    #[must_use]
    pub fn timer_factor(&self) -> Option<f64> {
        let counted = self.repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
        counted
            .filter_map(|r| r.clock.as_ref()?.timer_factor())
            .reduce(f64::max)
    }
    /// FLOPs per token of the model at this sequence length.
    #[must_use]
    pub fn flops_per_token(&self) -> Option<&FlopsPerToken> {
        self.workload.as_ref()?.flops_per_token.as_ref()
    }
    /// Were repeats added when the results of fewer were there to be looked at?
    #[must_use]
    pub fn repeats_added_later(&self) -> bool {
        repeats_added_later(&self.repeats).is_some()
    }
    /// Steps declared to be warm-up, and the name of the rule that found the measured part.
    #[must_use]
    pub fn warm_up(&self) -> (u64, &str) {
        (self.warmup_steps, &self.steady_state)
    }
}

#[cfg(test)]
pub(super) mod tests;
