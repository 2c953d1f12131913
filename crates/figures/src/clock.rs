//! Step times against the clock: the steps of a run cannot take longer than the run, and a step whose end comes long after
//! that of the step before it did not take a moment. docs/METRICS.md, "Step times and the clock".

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_logs::Step;

use super::{Note, NoteKind, RepeatSummary, RunResult, is_positive, quantile};

/// Steps may claim this much more than the time that passed: some clocks in logs count whole seconds.
const TOLERANCE: f64 = 0.02;
const TOLERANCE_SECONDS: f64 = 1.0;
/// No step is shorter: launching one kernel takes longer.
const SHORTEST_SECONDS: f64 = 1e-6;
/// Ratio of wall time between step ends to the reported step time. Above OUTSIDE a note warns; above IMPLAUSIBLE there is no
/// rate.
const OUTSIDE: f64 = 1.25;
const IMPLAUSIBLE: f64 = 3.0;
/// Seconds that writing a line may cost.
const LINE_SECONDS: f64 = 0.01;
/// This many pairs of neighbouring steps show what is typical.
const LEAST_PAIRS: usize = 5;
/// tprimat looks at a log ten times a second. Dates of lines therefore show what is typical only of steps this long.
const RESOLVED_SECONDS: f64 = 1.0;

/// From the end of the first measured step to that of the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clock {
    /// By the clock.
    pub passed_seconds: f64,
    /// By the steps' own times; steps that have no line are taken to be as long as the one of the next line.
    pub steps_seconds: f64,
    /// Median over neighbouring lines of the first ÷ the second, where enough of them have no evaluation in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub typical_ratio: Option<f64>,
}

/// A line with a step time.
pub(super) struct Timed<'a> {
    pub line: &'a Step,
    /// Total time of the steps this line covers, without those an earlier line already covered.
    pub seconds: f64,
    /// The same for all steps since the line before it, were they as long as this one.
    since: f64,
}

pub(super) fn timed<'a>(steps: impl Iterator<Item = &'a Step>) -> Vec<Timed<'a>> {
    let mut before = None;
    let timed = |line: &'a Step| {
        let time = line.step_time_seconds.filter(|t| is_positive(*t))?;
        let stated = line.steps_averaged.unwrap_or(1).max(1);
        let since = before.replace(line.step).map_or(stated, |before: u64| line.step.saturating_sub(before).max(1));
        Some(Timed { line, seconds: time * stated.min(since) as f64, since: time * since as f64 })
    };
    steps.filter_map(timed).collect()
}

/// Why the step times of a run cannot be believed; else how they compare with the clock, where steps are dated.
pub(super) fn of_run(result: &RunResult, is_measured: impl Fn(&Step) -> bool) -> Result<Option<Clock>, String> {
    let measured = timed(result.trace.steps.iter().filter(|s| is_measured(s)));
    let run = result.ended_at.zip(result.started_at).map(|(end, start)| end - start).filter(|s| is_positive(*s));
    if let Some(run) = run {
        // A time of the warm-up that cannot be one does no harm.
        let counts = |t: &&Timed<'_>| is_measured(t.line) || !is_more(t.seconds, run);
        let claimed: f64 = timed(result.trace.steps.iter()).iter().filter(counts).map(|t| t.seconds).sum();
        if is_more(claimed, run) {
            return Err(format!("the log claims {} of steps in a run of {}", shown(claimed), shown(run)));
        }
    }
    let shortest = measured.iter().filter_map(|t| t.line.step_time_seconds).fold(f64::INFINITY, f64::min);
    if shortest < SHORTEST_SECONDS {
        return Err(format!("the log claims a step of {shortest:e} s, and no step is shorter than a microsecond"));
    }
    let Some(ends) = measured.iter().map(|t| t.line.ended_at).collect::<Option<Vec<f64>>>() else { return Ok(None) };
    let [first, .., last] = ends[..] else { return Ok(None) };
    let passed = last - first;
    // Reject a clock that runs backwards, stands still, or advances more than the whole run took: it has another unit, or it was
    // set during the run. Only lines may come all at once.
    let least = if result.trace.dated_by_lines { 0.0 } else { f64::MIN_POSITIVE };
    let was_set = ends.windows(2).any(|pair| pair[0] - pair[1] > TOLERANCE_SECONDS);
    if !(least..f64::INFINITY).contains(&passed) || was_set || run.is_some_and(|run| is_more(passed, run)) {
        return Ok(None);
    }
    // The first line may be written as late as the second step ends, and the last one as early as its step begins: these two
    // are left out.
    let between = measured.get(2..measured.len() - 1).unwrap_or_default();
    let claimed: f64 = between.iter().map(|t| t.seconds).sum();
    if is_more(claimed, passed) && !result.trace.dated_by_lines {
        let (claimed, passed) = (shown(claimed), shown(passed));
        return Err(format!("the log claims {claimed} of steps while {passed} passed, by the trainer's own clock"));
    }
    // Steps without a line are as long as the next one that has one, unless slow steps are logged more often than others.
    let shown_as: f64 = between.iter().map(|t| t.since).sum();
    if !result.trace.dated_by_lines && shown_as > passed * OUTSIDE + TOLERANCE_SECONDS {
        let (claimed, passed) = (shown(shown_as), shown(passed));
        return Err(format!(
            "the log shows only some of the steps, and by these all would take {claimed}, but {passed} passed by the trainer's own clock: slow steps are logged more often than others"
        ));
    }
    let all = pairs(result, &measured);
    let plain: Vec<&Pair> = all.iter().filter(|p| !p.is_evaluated).collect();
    let at = |q, of: fn(&Pair) -> f64| {
        quantile(&plain.iter().map(|p| of(p)).collect::<Vec<_>>(), q).filter(|_| plain.len() >= LEAST_PAIRS)
    };
    // What three of four pairs exceed, evaluations or not, is no pause, and no line that was held back.
    let beyond = |p: &Pair| (p.passed - LINE_SECONDS) / p.claimed;
    let of_all = quantile(&all.iter().map(beyond).collect::<Vec<_>>(), 0.25);
    if at(0.25, beyond).is_some_and(|ratio| ratio > IMPLAUSIBLE)
        && of_all.is_some_and(|ratio| ratio > IMPLAUSIBLE)
        && let Some((claimed, passed)) = at(0.5, |p| p.claimed / p.steps).zip(at(0.5, |p| p.passed / p.steps))
    {
        let (claimed, passed) = (shown(claimed), shown(passed));
        return Err(format!(
            "the log claims {claimed} a step, but {passed} pass from one to the next: the trainer may stop its timer before the device has finished"
        ));
    }
    let is_resolved = !result.trace.dated_by_lines || at(0.5, |p| p.claimed).is_some_and(|s| s >= RESOLVED_SECONDS);
    let steps: f64 = measured.iter().skip(1).map(|t| t.since).sum();
    Ok(is_positive(steps).then(|| Clock {
        passed_seconds: passed,
        steps_seconds: steps,
        typical_ratio: at(0.5, |p| p.passed / p.claimed).filter(|ratio| is_resolved && ratio.is_finite()),
    }))
}

/// From one line to the next.
struct Pair {
    passed: f64,
    claimed: f64,
    steps: f64,
    /// Was there an evaluation in between, or may there have been one?
    is_evaluated: bool,
}

fn pairs(result: &RunResult, measured: &[Timed<'_>]) -> Vec<Pair> {
    let mut evaluations: Vec<Option<u64>> = result.trace.evaluations.iter().map(|e| e.step).collect();
    // One of an unknown step sorts first.
    evaluations.sort_unstable();
    let is_unclear = evaluations.first() == Some(&None);
    let pair = |pair: &[Timed<'_>]| {
        let [a, b] = pair else { return None };
        let next = evaluations.partition_point(|step| *step < Some(a.line.step));
        let is_evaluated = is_unclear || evaluations.get(next).is_some_and(|step| *step <= Some(b.line.step));
        let passed = b.line.ended_at? - a.line.ended_at?;
        let steps = b.line.step.saturating_sub(a.line.step).max(1) as f64;
        Some(Pair { passed, claimed: b.since, steps, is_evaluated })
    };
    measured.windows(2).filter_map(pair).collect()
}

fn is_more(claimed: f64, passed: f64) -> bool {
    claimed > passed * (1.0 + TOLERANCE) + TOLERANCE_SECONDS
}

fn shown(seconds: f64) -> String {
    if seconds.abs() < 0.05 { format!("{seconds:.1e} s") } else { format!("{seconds:.1} s") }
}

/// What a reader must know of the time between the steps of the repeats that count: one note a cause, with the worst case.
pub(super) fn notes(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Cause {
        Timer,
        Unknown,
        Pauses,
    }
    let mut causes: BTreeMap<Cause, (Vec<String>, &Clock)> = BTreeMap::new();
    let ratio = |clock: &Clock| clock.passed_seconds / clock.steps_seconds;
    for (repeat, result) in counted {
        let Some(clock) = &repeat.clock else { continue };
        let cause = match clock.typical_ratio {
            Some(typical) if typical <= OUTSIDE => Cause::Pauses,
            Some(_) => Cause::Timer,
            None => Cause::Unknown,
        };
        // A timer that stops too early does so in short steps as well, and the trainer's own dates show it.
        let is_sure = cause == Cause::Timer && !result.trace.dated_by_lines;
        let outside = clock.passed_seconds - clock.steps_seconds;
        if ratio(clock) <= OUTSIDE || (outside <= TOLERANCE_SECONDS && !is_sure) {
            continue;
        }
        let (repeats, worst) = causes.entry(cause).or_insert_with(|| (Vec::new(), clock));
        repeats.push(repeat.repeat.to_string());
        if ratio(clock) > ratio(worst) {
            *worst = clock;
        }
    }
    let note = |(cause, (repeats, worst)): (Cause, (Vec<String>, &Clock))| {
        let (s, most) = if repeats.len() == 1 { ("", "") } else { ("s", "up to ") };
        let (passed, outside) = (shown(worst.passed_seconds), shown(worst.passed_seconds - worst.steps_seconds));
        let (kind, why) = match cause {
            Cause::Pauses => (NoteKind::Remark, "in pauses, as evaluations and checkpoints are".to_owned()),
            Cause::Timer => (
                NoteKind::Doubtful,
                format!(
                    "after most steps, so the trainer may stop its timer before the device has finished, and the rate may be {:.1}× too high",
                    ratio(worst)
                ),
            ),
            Cause::Unknown => (
                NoteKind::Doubtful,
                "evaluations, checkpoints, or a timer that stops before the device has finished".to_owned(),
            ),
        };
        let repeats = repeats.join(", ");
        Note::new(
            kind,
            format!("repeat{s} {repeats}: {most}{outside} of {passed} lie outside the reported step times: {why}"),
        )
    };
    causes.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests;
