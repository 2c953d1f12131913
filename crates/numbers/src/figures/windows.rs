//! The step times of a run whose trainer prints none, by the seconds that its progress bar counts.
//!
//! How long the warm-up is, a log does not say, and a second is much of a short run: so the time is measured from the
//! first reading behind the warm-up to the last one, in as few pieces as the run allows. Where too little time is left, the
//! rate is that of the whole run.

use std::borrow::Cow;

use crate::results::RunResult;
use tprimat_job::RunOutcome;
use tprimat_logs::{Anomaly, CoarseClock, MAX_REPORTS, Step, Trace, WHOLE_RUN};

/// A step, and the seconds since the beginning at which it had ended.
type End = (u64, f64);

/// The repeats of a cell with step times by their clocks. The rate of a whole run is lower than that behind its warm-up, so
/// where one repeat has no other, all have that.
pub(super) fn all_by_clock(
    results: &[(u32, RunResult)],
    warmup_steps: u64,
) -> Vec<(u32, Cow<'_, RunResult>)> {
    let timed = |by: fn(&RunResult, u64) -> Cow<'_, RunResult>| -> Vec<(u32, Cow<'_, RunResult>)> {
        let all = results.iter();
        all.map(|(repeat, result)| (*repeat, by(result, warmup_steps)))
            .collect()
    };
    let each = timed(by_clock);
    // A run that does not count has no say in it.
    let counted = (each.iter())
        .filter(|(_, result)| result.outcome == RunOutcome::Ok && !result.is_contradicted());
    let mut anomalies = counted.flat_map(|(_, result)| &result.trace.anomalies);
    match anomalies.any(|anomaly| anomaly.kind == WHOLE_RUN) {
        true => timed(of_whole_run),
        false => each,
    }
}

/// The result with step times by its clock, if it has one; as it is otherwise.
pub(super) fn by_clock(result: &RunResult, warmup_steps: u64) -> Cow<'_, RunResult> {
    timed_by_clock(result, warmup_steps, false)
}

fn of_whole_run(result: &RunResult, warmup_steps: u64) -> Cow<'_, RunResult> {
    timed_by_clock(result, warmup_steps, true)
}

/// `is_forced`: with the time of the whole run, where the log says it.
fn timed_by_clock(result: &RunResult, warmup_steps: u64, is_forced: bool) -> Cow<'_, RunResult> {
    let trace = &result.trace;
    let has_rate = || {
        let mut steps = trace.steps.iter();
        result.workload.step_time_source.is_some()
            || steps.any(|step| step.tokens_per_second_per_gpu.is_some())
    };
    let Some(clock) = trace.clock.as_ref().filter(|_| !has_rate()) else {
        return Cow::Borrowed(result);
    };
    let began = trace.processes.first().and_then(|own| own.first_step);
    let before = began.map_or(0, |first| first.saturating_sub(1));
    let from = before + warmup_steps;
    let windows = match is_forced && clock.whole_run.is_some() {
        true => Vec::new(),
        false => windows(&clock.ends, from, &evaluated(trace)),
    };
    let is_whole = |anomaly: &Anomaly| anomaly.kind == WHOLE_RUN;
    let mut timed = result.clone();
    if windows.is_empty() {
        let Some(whole) = clock.whole_run else {
            return Cow::Borrowed(result);
        };
        if !trace.anomalies.iter().any(is_whole) {
            let what = trace.beside_steps();
            let why = match is_forced {
                true => "another repeat has no rate behind its warm-up",
                false => "its bar counts whole seconds, and too few of them follow the warm-up",
            };
            let anomaly = Anomaly {
                kind: WHOLE_RUN.to_owned(),
                detail: format!("{why}: the rate is that of the whole run, with {what}"),
                step: None,
            };
            timed.anomalies.push(anomaly.clone());
            timed.trace.anomalies.push(anomaly);
        }
        set_times(&mut timed.trace, &[((before, 0.0), whole)]);
    } else {
        timed.anomalies.retain(|anomaly| !is_whole(anomaly));
        timed.trace.anomalies.retain(|anomaly| !is_whole(anomaly));
        set_times(&mut timed.trace, &windows);
    }
    Cow::Owned(timed)
}

/// The steps behind which something was evaluated; none where that is not known of each evaluation.
fn evaluated(trace: &Trace) -> Option<Vec<u64>> {
    let all: Option<Vec<u64>> = trace.evaluations.iter().map(|e| e.step).collect();
    all.filter(|all| all.len() < MAX_REPORTS)
}

/// The pieces of the run behind step `from` that have no evaluation in them and are long enough, each by its ends.
fn windows(ends: &[End], from: u64, evaluated: &Option<Vec<u64>>) -> Vec<(End, End)> {
    let first = ends.partition_point(|(step, _)| *step < from);
    let ends = &ends[first..];
    let least = CoarseClock::least_seconds(ends);
    let is_apart = |a: &End, b: &End| {
        let within = |steps: &Vec<u64>| steps.iter().any(|at| (a.0..b.0).contains(at));
        evaluated.as_ref().is_none_or(within)
    };
    let mut windows: Vec<(End, End)> = Vec::new();
    for part in ends.chunk_by(|a, b| !is_apart(a, b)) {
        let (mut then, before) = (part[0], windows.len());
        for end in &part[1..] {
            if end.1 - then.1 >= least {
                windows.push((then, *end));
                then = *end;
            }
        }
        // What is left of the part is in its last window.
        if let Some(last) = windows[before..].last_mut() {
            last.1 = part[part.len() - 1];
        }
    }
    windows
}

/// Gives the steps at the ends of the windows their mean times, and all others none.
fn set_times(trace: &mut Trace, windows: &[(End, End)]) {
    for step in &mut trace.steps {
        (step.step_time_seconds, step.includes_evaluation) = (None, false);
    }
    // When a step without a line ended follows from a line that has both times.
    let dated = trace.steps.iter().find_map(|step| {
        let ends = &trace.clock.as_ref()?.ends;
        let at = ends.binary_search_by_key(&step.step, |(step, _)| *step);
        Some(step.ended_at? - ends[at.ok()?].1)
    });
    let tokens: Vec<_> = windows
        .iter()
        .map(|&((before, _), (number, _))| mean_tokens(&trace.steps, before, number))
        .collect();
    for (&((before, began), (number, ended)), tokens) in windows.iter().zip(tokens) {
        let steps = &mut trace.steps;
        let at = match steps.binary_search_by_key(&number, |step| step.step) {
            Ok(at) => at,
            Err(at) => {
                let step = Step {
                    step: number,
                    ended_at: dated.map(|start| start + ended),
                    ..Step::default()
                };
                steps.insert(at, step);
                at
            }
        };
        let count = number - before;
        steps[at].steps_averaged = Some(count).filter(|count| *count > 1);
        // A bar cuts off half a second on average. The time of the summary at the end has its fraction.
        let late = if began > 0.0 && began.fract() == 0.0 && ended.fract() > 0.0 {
            0.5
        } else {
            0.0
        };
        steps[at].step_time_seconds = Some((ended - began - late) / count as f64);
        steps[at].tokens = tokens.or(steps[at].tokens);
    }
}

/// The tokens of a step on average from behind step `before` to step `number`, where lines say them of all of these. A line's
/// tokens are those of a step since the line before it.
fn mean_tokens(steps: &[Step], before: u64, number: u64) -> Option<u64> {
    let (mut line, mut all) = (before, 0.0);
    for step in steps {
        if step.step > before && step.step <= number {
            all += step.tokens? as f64 * (step.step - line) as f64;
            line = step.step;
        }
    }
    (line == number).then(|| (all / (number - before) as f64).round() as u64)
}

#[cfg(test)]
mod tests;
