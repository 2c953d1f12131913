//! The measured part of a run: where it begins, and what its steps say.

use crate::results::{
    CUSUM, Changes, Reason, RunResult, changes, is_positive, mean, outlier_limit, quantile,
    sample_rate, sd,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use tprimat_base::words::plain::counted;
use tprimat_logs::{Step, Trace, WHOLE_RUN};

use super::{Statistics, StepTime, codes, otherwise::LARGE_SHIFT};

/// The declared warm-up is all that is dropped.
pub const DECLARED: &str = "declared";
/// Nothing is dropped: the log has no time but that of the whole run.
pub const WHOLE: &str = "whole run";
/// Some repeats are long enough to be assessed, others are not.
pub const MIXED: &str = "in part declared";

/// What a run must have after its declared warm-up for its steady state to be assessed.
pub const LEAST_STEPS: u64 = 20;
pub const LEAST_SECONDS: f64 = 30.0;
/// Logs that print one mean per several steps have fewer entries; from this many on they are
/// treated as a series.
const LEAST_ENTRIES: usize = 10;

/// Entries from a restart on within which a change is one at the restart.
const AT_RESTART: usize = 4;

/// Step times this many times apart, with nothing between, are of two units. It is less than the 60
/// of minutes and seconds, since times of either unit spread, and far more than what training does
/// from step to step.
const OTHER_UNIT: f64 = 50.0;
/// Fewer times than this, or a smaller share of all, are pauses and not another unit.
const LEAST_OF_UNIT: (usize, f64) = (3, 0.1);

/// How far the trainer's own rate may be from ours before it is said.
const CROSS_CHECK_TOLERANCE: f64 = 0.05;

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Steady {
    /// Optimiser steps measured.
    pub steps: u64,
    pub step_time: StepTime,
    pub tokens_per_second: f64,
    pub tokens_per_second_per_gpu: f64,
    /// The same without the steps that are outliers at their level.
    pub without_outliers: Option<f64>,
    /// Where the measured part begins.
    pub cut: Option<Cut>,
    /// The same steps by the trainer's own figure, where it prints one.
    pub cross_check: Option<CrossCheck>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CrossCheck {
    pub trainer_tokens_per_second_per_gpu: f64,
    /// Trainer's ÷ ours.
    pub ratio: f64,
    pub agrees: bool,
}

/// How the start of the measured part was found, and what the declared warm-up alone would give.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cut {
    /// First measured step, as the log counts.
    pub first_step: u64,
    /// Optimiser steps dropped after the declared warm-up.
    pub dropped_steps: u64,
    /// Name of the method: [`CUSUM`], or [`DECLARED`] where none was applied, or [`WHOLE`].
    pub method: String,
    /// Why steady state was not assessed.
    pub not_assessed: Option<Reason>,
    /// Rate over all steps after the declared warm-up.
    pub declared_tokens_per_second_per_gpu: f64,
    /// The largest change of the step time for good within the measured part.
    pub level_shift: Option<LevelShift>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelShift {
    /// First step of the new level, as the log counts.
    pub step: u64,
    /// Median step time from there on ÷ before.
    pub ratio: f64,
    /// tokens/s/GPU before and from there on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<[f64; 2]>,
}

impl Cut {
    #[must_use]
    pub fn is_assessed(&self) -> bool {
        self.not_assessed.is_none()
    }
}

/// A logged step time: a step's own, or the mean of `weight` steps that end with `step`.
#[derive(Clone, Copy)]
struct Timed<'a> {
    step: &'a Step,
    seconds: f64,
    weight: u64,
    tokens: u64,
}

impl Timed<'_> {
    fn first_step(&self) -> u64 {
        (self.step.step.saturating_add(1)).saturating_sub(self.weight)
    }
}

/// The measured part of one run, or why there is none.
pub(super) fn steady(result: &RunResult, statistics: &Statistics) -> Result<Steady, Reason> {
    let workload = &result.workload;
    if workload.tokens_per_step.is_none_or(|n| n == 0) && !workload.tokens_vary {
        let (steps, known) = (&result.trace.steps, own_rate(result));
        let is_timed = !known.is_empty() || steps.iter().any(|s| s.step_time_seconds.is_some());
        return Err(match is_timed || steps.is_empty() {
            true => what_lacks(result, &known),
            // What else is lacking would help nobody.
            false => none_is_timed(result),
        });
    }
    let timed = timed(result, statistics)?;
    let num_gpus = workload
        .num_gpus
        .filter(|n| *n > 0)
        .ok_or_else(|| what_lacks(result, &total_rate(&timed)))?;
    if let Some(why) = mixed_units(&timed) {
        return Err(why);
    }
    let rate = |timed: &[Timed<'_>]| rate(timed) / num_gpus as f64;
    let (from, mut cut) = cut(&timed, rate(&timed));
    if is_of_whole_run(&result.trace) {
        WHOLE.clone_into(&mut cut.method);
    }
    let measured = &timed[from..];
    let shift = cut.level_shift.as_mut().and_then(|shift| {
        let at = measured.iter().position(|t| t.first_step() >= shift.step)?;
        let parts = measured.split_at(at);
        shift.rates = Some([rate(parts.0), rate(parts.1)]);
        Some(at)
    });
    let usual = without_outliers(measured, shift.unwrap_or(0));
    let times: Vec<f64> = measured.iter().map(|t| t.seconds).collect();
    let mean_seconds = mean_seconds(measured);
    let sd_seconds = sd(&times);
    let ours = rate(measured);
    let all = [ours, cut.declared_tokens_per_second_per_gpu, mean_seconds];
    if !(all.iter().all(|v| is_positive(*v)) && sd_seconds.is_none_or(f64::is_finite)) {
        let text = "the step times are beyond what can be computed with";
        return Err(Reason::excludes("beyond_computing", text));
    }
    Ok(Steady {
        steps: measured
            .iter()
            .fold(0, |sum, t| sum.saturating_add(t.weight)),
        step_time: StepTime {
            mean_seconds,
            median_seconds: quantile(&times, 0.5).filter(|_| times.len() > 1),
            p95_seconds: quantile(&times, 0.95).filter(|_| times.len() > 1),
            sd_seconds,
            cv: sd_seconds.map(|sd| sd / mean_seconds),
        },
        tokens_per_second: ours * num_gpus as f64,
        tokens_per_second_per_gpu: ours,
        without_outliers: (usual.len() < measured.len()).then(|| rate(&usual)),
        cut: Some(cut),
        // Times that were made from the trainer's rate cannot check it.
        cross_check: cross_check(measured, ours).filter(|_| workload.step_time_source.is_none()),
    })
}

/// Does the step come after the declared warm-up of its process? A mean over several steps is
/// dropped with the first of them, unless it is all that there is.
pub(super) fn is_measured(step: &Step, result: &RunResult, statistics: &Statistics) -> bool {
    if is_of_whole_run(&result.trace) {
        return step.step_time_seconds.is_some();
    }
    let ordinal = result.trace.ordinal(step, result.workload.counts_from);
    ordinal.saturating_sub(step.count()) >= statistics.warmup_steps
}

/// Is the only time of the log that of the whole run?
fn is_of_whole_run(trace: &Trace) -> bool {
    let mut anomalies = trace.anomalies.iter();
    anomalies.any(|anomaly| anomaly.kind == WHOLE_RUN)
}

/// Why it is not known how many tokens a step has, or how many devices share them.
fn what_lacks(result: &RunResult, known: &str) -> Reason {
    let contract = &result.contract;
    let all = [
        ("seq_length", codes::LENGTH_NOT_KNOWN, "the sequence length"),
        (
            "global_batch_size",
            codes::BATCH_NOT_KNOWN,
            "the global batch size",
        ),
        (
            "num_gpus",
            codes::DEVICES_NOT_KNOWN,
            "the number of devices",
        ),
    ];
    let workload = &result.workload;
    let has_tokens = workload.tokens_vary || workload.tokens_per_step.is_some();
    // What varies is stated as a range, which is no number and no lack.
    let is_lacking = |(field, ..): &(&str, _, _)| match contract.get(field) {
        _ if has_tokens && *field != "num_gpus" => false,
        Some(value) => !value.is_string() && value.as_u64().is_none_or(|n| n == 0),
        None => true,
    };
    let lacking: Vec<_> = all.into_iter().filter(is_lacking).collect();
    let Some(&(_, code, _)) = lacking.first() else {
        let text = "batch size × sequence length is beyond what can be counted";
        return Reason::excludes(codes::TOKENS_NOT_KNOWN, text);
    };
    let words: Vec<&str> = lacking.iter().map(|(.., words)| *words).collect();
    let text = format!("the log does not state {}", words.join(", "));
    Reason::excludes(code, text + known)
}

/// The trainer's own rate, for a run whose tokens are not known.
fn own_rate(result: &RunResult) -> String {
    let steps = result.trace.steps.iter();
    let rates: Vec<f64> = steps.filter_map(|s| s.tokens_per_second_per_gpu).collect();
    let of_samples: Vec<f64> = result.trace.steps.iter().filter_map(sample_rate).collect();
    let whose = "; the median of the trainer's own rates is";
    match (quantile(&rates, 0.5), quantile(&of_samples, 0.5)) {
        (Some(rate), _) => format!("{whose} {rate:.0} tokens/s per device"),
        (_, Some(rate)) => format!("{whose} {rate:.1} sequences/s"),
        _ => String::new(),
    }
}

/// The rate of all devices together, for a run whose number of devices is not known.
fn total_rate(timed: &[Timed<'_>]) -> String {
    let all = rate(timed);
    match all > 0.0 && all.is_finite() {
        true => format!("; all together do {all:.0} tokens/s"),
        false => String::new(),
    }
}

/// The timed steps after the declared warm-up; one time that cannot be one spoils all of them.
fn timed<'a>(result: &'a RunResult, statistics: &Statistics) -> Result<Vec<Timed<'a>>, Reason> {
    let (steps, workload) = (&result.trace.steps, &result.workload);
    let timed = |step: &'a Step| {
        let counts = is_measured(step, result, statistics) && !step.includes_evaluation;
        let seconds = step.step_time_seconds.filter(|_| counts)?;
        let tokens = match workload.tokens_vary {
            true => step.tokens,
            false => workload.tokens_per_step,
        };
        Some(Timed {
            step,
            seconds,
            weight: step.count(),
            tokens: tokens.unwrap_or_default(),
        })
    };
    let timed: Vec<Timed<'a>> = steps.iter().filter_map(timed).collect();
    if let Some(bad) = timed.iter().find(|t| !is_positive(t.seconds)) {
        let (step, seconds) = (bad.step.step, bad.seconds);
        let text = format!("step {step} has a time of {seconds} s, which cannot be");
        return Err(Reason::excludes("bad_time", text).with("step", step));
    }
    if let Some(bad) = timed.iter().find(|t| workload.tokens_vary && t.tokens == 0) {
        let text = format!(
            "the tokens of a step vary, and the log does not state those of step {}",
            bad.step.step
        );
        return Err(Reason::excludes(codes::TOKENS_NOT_KNOWN, text));
    }
    if timed.is_empty() {
        let times = steps
            .iter()
            .filter(|s| s.step_time_seconds.is_some())
            .count();
        return Err(match (steps.len(), times) {
            (0, _) => Reason::excludes(codes::NO_STEP, "no training step was found in the log"),
            // With the devices, times would follow from the rate of one.
            (_, 0) if result.contract.get("num_gpus").is_none() && !own_rate(result).is_empty() => {
                what_lacks(result, &own_rate(result))
            }
            (_, 0) => none_is_timed(result),
            (_, timed) => all_within_warm_up(timed, statistics.warmup_steps, &result.trace),
        });
    }
    Ok(timed)
}

fn none_is_timed(result: &RunResult) -> Reason {
    let where_to = match &*result.trace.format {
        "tprimat" => " (`step_time_seconds` in an event)",
        _ => "",
    };
    let steps = result.trace.steps.len();
    let text = format!("none of the {steps} steps has a time{where_to}");
    Reason::excludes(codes::NO_STEP_IS_TIMED, text).with("steps", steps)
}

fn all_within_warm_up(timed: usize, warmup_steps: u64, trace: &Trace) -> Reason {
    let which = match timed {
        1 => "the only timed step is".to_owned(),
        n => format!("all {n} timed steps are"),
    };
    let warm_up = counted(warmup_steps as usize, "step");
    let whose = match trace.processes.len() {
        0 | 1 => String::new(),
        n => format!(" of each of the log's {n} processes"),
    };
    let text = format!(
        "{which} within the declared warm-up of {warm_up}{whose} (`benchmarking.warmup.skip_steps`)"
    );
    Reason::excludes(codes::ALL_WITHIN_WARM_UP, text)
        .with("timed", timed)
        .with("warmup_steps", warmup_steps)
}

/// Two groups of times that no training has in one run: one of them must be in another unit.
fn mixed_units(timed: &[Timed<'_>]) -> Option<Reason> {
    let mut times: Vec<f64> = timed.iter().map(|t| t.seconds).collect();
    times.sort_by(f64::total_cmp);
    let (few, part) = LEAST_OF_UNIT;
    let least = few.max((part * times.len() as f64).ceil() as usize);
    let most = times.len().checked_sub(least)?;
    let at = (least..=most).find(|at| times[*at] >= OTHER_UNIT * times[at - 1])?;
    let (low, high) = times.split_at(at);
    let three_digits = |seconds: f64| format!("{seconds:.2e}").parse().unwrap_or(seconds);
    let (low, high) = (
        three_digits(quantile(low, 0.5)?),
        three_digits(quantile(high, 0.5)?),
    );
    let text =
        format!("step times of about {low} s and of about {high} s in one log: mixed units?");
    let reason = Reason::excludes(codes::MIXED_UNITS, text);
    Some(reason.with("low", low).with("high", high))
}

/// The times that are no outliers of their level; the second one begins at `shift`.
fn without_outliers<'a>(measured: &[Timed<'a>], shift: usize) -> Vec<Timed<'a>> {
    let (before, after) = measured.split_at(shift);
    let usual = |level: &[Timed<'a>]| -> Vec<Timed<'a>> {
        let times: Vec<f64> = level.iter().map(|t| t.seconds).collect();
        let median = quantile(&times, 0.5).unwrap_or(0.0);
        let limit = outlier_limit(&times, median).unwrap_or(f64::INFINITY);
        let is_usual = |t: &&Timed<'_>| (t.seconds - median).abs() <= limit;
        level.iter().filter(is_usual).copied().collect()
    };
    [before, after].into_iter().flat_map(usual).collect()
}

/// Tokens per second of all devices together.
fn rate(timed: &[Timed<'_>]) -> f64 {
    let sum =
        |of: fn(&Timed<'_>) -> f64| timed.iter().map(|t| of(t) * t.weight as f64).sum::<f64>();
    sum(|t| t.tokens as f64) / sum(|t| t.seconds)
}

fn mean_seconds(timed: &[Timed<'_>]) -> f64 {
    let total: f64 = timed.iter().map(|t| t.seconds * t.weight as f64).sum();
    total / timed.iter().map(|t| t.weight as f64).sum::<f64>()
}

/// Index of the first measured time, and how it was found.
fn cut(timed: &[Timed<'_>], declared_rate: f64) -> (usize, Cut) {
    let steps: f64 = timed.iter().map(|t| t.weight as f64).sum();
    let seconds: f64 = timed.iter().map(|t| t.seconds * t.weight as f64).sum();
    let too_short = if steps < LEAST_STEPS as f64 {
        Some(("few_steps", format!("under {LEAST_STEPS} timed steps")))
    } else if timed.len() < LEAST_ENTRIES {
        Some(("few_times", format!("under {LEAST_ENTRIES} logged times")))
    } else if seconds < LEAST_SECONDS {
        Some(("few_seconds", format!("under {LEAST_SECONDS:.0} s")))
    } else {
        None
    };
    let too_short_by = too_short.as_ref().map(|(code, _)| *code);
    let not_assessed = too_short.map(|(code, lack)| {
        let text = format!("{lack} after the declared warm-up");
        Reason::detail(code, text)
    });
    let times = series(timed);
    let found = match too_short_by {
        None => found(&times, timed),
        Some("few_seconds") => Changes {
            cut: 0,
            shifts: rises(&times),
        },
        Some(_) => Changes::default(),
    };
    let measured = &times[found.cut..];
    let shift = |at: &usize| {
        let (before, after) = measured.split_at(at - found.cut);
        let ratio = quantile(after, 0.5)? / quantile(before, 0.5)?;
        Some(LevelShift {
            step: timed[*at].first_step(),
            ratio,
            rates: None,
        })
    };
    let size = |shift: &LevelShift| shift.ratio.ln().abs();
    let cut = Cut {
        first_step: timed[found.cut].first_step(),
        dropped_steps: timed[..found.cut]
            .iter()
            .fold(0, |sum, t| sum.saturating_add(t.weight)),
        method: if not_assessed.is_none() {
            CUSUM
        } else {
            DECLARED
        }
        .to_owned(),
        not_assessed,
        declared_tokens_per_second_per_gpu: declared_rate,
        level_shift: found
            .shifts
            .iter()
            .filter_map(shift)
            .max_by(|a, b| size(a).total_cmp(&size(b))),
    };
    (found.cut, cut)
}

/// Where the warm-up ends, and where the level changes later. A warm-up is a slower beginning: where the
/// step time rises, the level changes. Clocks that settle may slow the steps by a few per cent, and are
/// warm-up all the same.
fn found(times: &[f64], timed: &[Timed<'_>]) -> Changes {
    let mut found = changes(times, half(timed));
    // Steps that are quicker from a restart on are another level: a warm-up is no more than a part of its process. A process that
    // died young had not come out of its own.
    let process = |t: &Timed<'_>| t.step.process;
    let first = timed.iter().position(|t| process(t) != process(&timed[0]));
    let is_level = |first: &usize| {
        *first >= LEAST_ENTRIES && (*first..first + AT_RESTART).contains(&found.cut)
    };
    if let Some(first) = first.filter(is_level) {
        found.cut = changes(&times[..first], half(&timed[..first])).cut;
        found.shifts.insert(0, first);
    } else if is_ramp(times, timed, found.cut) {
        found.cut = 0;
    }
    let (before, after) = times.split_at(found.cut);
    let ratio = quantile(after, 0.5).zip(quantile(before, 0.5));
    if ratio.is_some_and(|(after, before)| after > before * (1.0 + LARGE_SHIFT)) {
        found.shifts.insert(0, found.cut);
        found.cut = 0;
    }
    found
}

/// Does the level change at `cut` only because the batch or the length grows? Among the steps of one size there is then no such
/// change.
fn is_ramp(times: &[f64], timed: &[Timed<'_>], cut: usize) -> bool {
    let Some(size) = timed.get(cut).map(|t| t.tokens) else {
        return false;
    };
    let is_other = |t: &Timed<'_>| t.tokens != size;
    let before = timed[..cut].iter().rposition(is_other);
    let from = before.map_or(0, |at| at + 1);
    let to = timed[cut..].iter().position(is_other);
    let to = to.map_or(timed.len(), |at| cut + at);
    from >= LEAST_ENTRIES && changes(&times[from..to], half(&timed[from..to])).cut == 0
}

/// Where the step time of a run that is too short for its warm-up to be told becomes longer for good. Where
/// it becomes shorter, that may be the end of the warm-up.
fn rises(times: &[f64]) -> Vec<usize> {
    let is_rise = |at: &usize| {
        let (before, after) = times.split_at(*at);
        let [usual, risen, least] = [(before, 0.5), (after, 0.5), (after, 0.25)]
            .map(|(part, at)| quantile(part, at).unwrap_or_default());
        // A few slow steps near the end are no level: most of the later ones are slow then.
        risen > usual * (1.0 + LARGE_SHIFT) && least > usual * (1.0 + LARGE_SHIFT / 2.0)
    };
    changes(times, 0)
        .shifts
        .into_iter()
        .filter(is_rise)
        .collect()
}

/// The times that levels are looked for in. Where steps differ in their tokens, their times differ
/// with them: then they are those of a step with the mean of all tokens.
fn series(timed: &[Timed<'_>]) -> Vec<f64> {
    let tokens: Vec<f64> = timed.iter().map(|t| t.tokens as f64).collect();
    let usual = mean(&tokens).unwrap_or_default();
    let time = |(t, tokens): (&Timed<'_>, &f64)| match *tokens == usual {
        true => t.seconds,
        false => t.seconds * usual / tokens,
    };
    timed.iter().zip(&tokens).map(time).collect()
}

/// How many of the first times stand for at most half of the steps.
fn half(timed: &[Timed<'_>]) -> usize {
    let steps: f64 = timed.iter().map(|t| t.weight as f64).sum();
    let within = timed.iter().scan(0.0, |sum, t| {
        *sum += t.weight as f64;
        (*sum <= steps / 2.0).then_some(())
    });
    within.count().min(timed.len() / 2)
}

/// The trainer's rates are averaged as rates over equal work are: harmonically.
fn cross_check(timed: &[Timed<'_>], ours: f64) -> Option<CrossCheck> {
    let rate = |t: &Timed<'_>| {
        t.step
            .tokens_per_second_per_gpu
            .filter(|r| is_positive(*r))
            .map(|r| 1.0 / r)
    };
    let inverse: Option<Vec<f64>> = timed.iter().map(rate).collect();
    let theirs = 1.0 / mean(&inverse?)?;
    let ratio = theirs / ours;
    (theirs.is_finite() && ratio.is_finite()).then(|| CrossCheck {
        trainer_tokens_per_second_per_gpu: theirs,
        ratio,
        agrees: (ratio - 1.0).abs() <= CROSS_CHECK_TOLERANCE,
    })
}

/// One word for how the repeats' measured parts were found.
pub(super) fn steady_state(repeats: &[&Steady]) -> &'static str {
    let mut cuts = repeats.iter().filter_map(|s| s.cut.as_ref());
    let assessed = cuts.clone().filter(|cut| cut.is_assessed()).count();
    match assessed {
        _ if cuts.any(|cut| cut.method == WHOLE) => WHOLE,
        0 => DECLARED,
        n if n == repeats.len() => CUSUM,
        _ => MIXED,
    }
}

#[cfg(test)]
mod tests;
