//! Step times against the clock: the steps of a run cannot take longer than the run, and a step
//! whose end comes long after that of the step before it did not take a moment. docs/METRICS.md,
//! "Step times and the clock".

mod pairs;

use std::collections::BTreeMap;

use crate::results::{
    Reason, RunResult, Severity, is_positive, quantile,
    words::{repeats, seconds, step_time, verb},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_logs::Step;

use super::{
    Note, NoteKind, RepeatSummary, codes,
    summary::notes::{by_repeat, ordinal, whose},
};
use pairs::{Pair, pairs, quicker_half, without_pauses};

/// Steps may claim this much more than the time that passed: some clocks in logs count whole
/// seconds.
const TOLERANCE: f64 = 0.02;
const TOLERANCE_SECONDS: f64 = 1.0;
/// No step is shorter: launching one kernel takes longer.
const SHORTEST_SECONDS: f64 = 1e-6;
/// Ratio of wall time between step ends to the reported step time. Above OUTSIDE a note warns;
/// above IMPLAUSIBLE there is no rate.
const OUTSIDE: f64 = 1.25;
const IMPLAUSIBLE: f64 = 2.0;
/// Seconds that writing a line may cost.
const LINE_SECONDS: f64 = 0.01;
/// This many pairs of neighbouring steps show what is typical.
const LEAST_PAIRS: usize = 5;
/// So few pairs are enough where time passes beside the steps of every one of them.
const LEAST_FEW: usize = 3;
/// tprimat looks at a log ten times a second. Dates of lines therefore show what is typical only of
/// steps this long.
const RESOLVED_SECONDS: f64 = 1.0;
/// Longest time between two looks that follow each other on a busy host. Lines that waited longer
/// for theirs were held back, or came after a pause.
const NEXT_LOOK_SECONDS: f64 = 0.25;

/// A run that lasts longer did more than a few short steps and their start-up.
const BRIEF_RUN_SECONDS: f64 = 30.0;

/// By which clock time passed.
#[derive(Clone, Copy, PartialEq)]
enum WhoseClock {
    /// The dates that the trainer gives its steps.
    Trainer,
    /// When tprimat saw the lines of the log.
    Lines,
    /// From the start of the run to its end.
    Run,
}

/// Why time passes between steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OutsideSteps {
    Timer,
    NotKnown,
    Pauses,
}

fn few_steps() -> Reason {
    let text = format!(
        "the log has fewer than {} lines of measured steps",
        LEAST_PAIRS + 1
    );
    Reason::detail("few_steps", text)
}

/// From the end of the first measured step to that of the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clock {
    /// By the clock.
    pub passed_seconds: f64,
    /// By the steps' own times; steps that have no line are taken to be as long as the one of the
    /// next line.
    pub steps_seconds: f64,
    /// Median over neighbouring lines of the first ÷ the second, where enough of them have no
    /// evaluation in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub typical_ratio: Option<f64>,
}

impl Clock {
    /// Time passed ÷ time of the steps.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.passed_seconds / self.steps_seconds
    }

    /// How many times too high the rate may be, where time passes outside of most steps. Pauses
    /// after a few of them are not in it.
    #[must_use]
    pub fn timer_factor(&self) -> Option<f64> {
        let typical = self.typical_ratio.filter(|typical| *typical > OUTSIDE);
        // A level that only a part of the run has is no more than the whole shows.
        typical
            .map(|typical| typical.min(self.ratio()))
            .filter(|factor| *factor > OUTSIDE)
    }
}

/// What the clock says of a run whose step times it does not refute.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Checked {
    pub clock: Option<Clock>,
    /// Why a timer that stops too early would not have been found.
    pub unchecked: Option<Reason>,
}

/// By which dates the steps are held against the clock.
#[derive(Clone, Copy)]
struct Dates {
    of: fn(&Step) -> Option<f64>,
    /// They are those of tprimat's looks at the log, which may be late.
    by_lines: bool,
}

/// A line with a step time.
pub(super) struct Timed<'a> {
    pub line: &'a Step,
    /// Total time of the steps this line covers, without those an earlier line already covered.
    pub seconds: f64,
    /// Total time of all steps since the line before it, were they as long as this one.
    since: f64,
    /// No line of its process is before it: what passed since the one before is no step's time.
    is_first: bool,
}

pub(super) fn timed<'a>(steps: impl Iterator<Item = &'a Step>) -> Vec<Timed<'a>> {
    let mut before: Option<&Step> = None;
    let timed = |line: &'a Step| {
        let time = line.step_time_seconds.filter(|t| is_positive(*t))?;
        let stated = line.count();
        let of_process = before
            .replace(line)
            .filter(|before| before.process == line.process);
        let since = of_process.map_or(stated, |before| {
            line.step.saturating_sub(before.step).max(1)
        });
        Some(Timed {
            line,
            seconds: time * stated.min(since) as f64,
            since: time * since as f64,
            is_first: of_process.is_none(),
        })
    };
    steps.filter_map(timed).collect()
}

/// Why the step times of a run cannot be believed; else how they compare with the clock. Where the
/// trainer dates its steps itself, its dates and those of tprimat's looks must both bear them out.
pub(super) fn of_run(
    result: &RunResult,
    is_measured: impl Fn(&Step) -> bool,
) -> Result<Checked, Reason> {
    let measured = timed(result.trace.steps.iter().filter(|s| is_measured(s)));
    let run = result
        .ended_at
        .zip(result.started_at)
        .map(|(end, start)| end - start)
        .or_else(|| stated_run(result))
        .filter(|s| is_positive(*s));
    if let Some(run) = run {
        // A time of the warm-up that cannot be one does no harm.
        let counts = |t: &&Timed<'_>| is_measured(t.line) || !is_more(t.seconds, run);
        let claimed: f64 = timed(result.trace.steps.iter())
            .iter()
            .filter(counts)
            .map(|t| t.seconds)
            .sum();
        if is_more(claimed, run) {
            let (claimed_as, run_as) = (seconds(claimed), seconds(run));
            let text = match tokens_of_rate(result) {
                Some(tokens) => format!(
                    "at the log's rate, steps of {tokens} tokens would take {claimed_as} in a run of {run_as}: the \
                     trainer's steps have fewer; does the batch size reach it?"
                ),
                None => format!("the log claims {claimed_as} of steps in a run of {run_as}"),
            };
            let reason = Reason::excludes(codes::LONGER_THAN_RUN, text);
            return Err(reason.with("claimed", claimed).with("run", run));
        }
        let shown_as = measured.iter().map(|t| t.since).sum();
        if is_far_more(shown_as, run) {
            return Err(refuted(&measured, shown_as, run, WhoseClock::Run));
        }
    }
    let shortest = measured
        .iter()
        .filter_map(|t| t.line.step_time_seconds)
        .fold(f64::INFINITY, f64::min);
    if shortest < SHORTEST_SECONDS {
        let text = format!(
            "the log claims a step of {shortest:e} s, and no step is shorter than a microsecond"
        );
        return Err(Reason::excludes("shorter_than_a_microsecond", text));
    }
    let own = Dates {
        of: |step| step.ended_at,
        by_lines: result.trace.dated_by_lines,
    };
    let explained = |mut reason: Reason| {
        if let Some(tokens) =
            tokens_of_rate(result).filter(|_| reason.is(codes::LONGER_THAN_PASSED))
        {
            reason.text += &format!(
                ": at the log's rate, steps of {tokens} tokens would take so long; the trainer's have fewer, so does the batch size reach it?"
            );
        }
        reason
    };
    let of_trainer = against(result, &measured, run, own).map_err(explained)?;
    if own.by_lines || !measured.iter().any(|t| t.line.seen_at.is_some()) {
        return Ok(of_trainer);
    }
    let looks = Dates {
        of: |step| step.seen_at,
        by_lines: true,
    };
    let of_looks = against(result, &measured, run, looks).map_err(explained)?;
    let factor = |checked: &Checked| checked.clock.as_ref().and_then(Clock::timer_factor);
    let clock = if factor(&of_looks) > factor(&of_trainer) {
        of_looks.clock
    } else {
        of_trainer.clock
    };
    Ok(Checked {
        clock,
        unchecked: of_looks.unchecked,
    })
}

/// The tokens of a step, where its time follows from these and the rate that the log has.
fn tokens_of_rate(result: &RunResult) -> Option<u64> {
    let work = &result.workload;
    work.tokens_per_step
        .filter(|_| work.step_time_source.is_some())
}

/// How long the run took by the log's own words.
fn stated_run(result: &RunResult) -> Option<f64> {
    let totals = &result.trace.totals;
    let names = ["train_runtime_seconds", "run_duration_seconds"];
    let stated = names.iter().find_map(|name| totals.get(*name).copied());
    stated.filter(|_| result.trace.processes.len() < 2)
}

/// The measured steps held against one set of dates; `run`: how long the run took.
fn against(
    result: &RunResult,
    measured: &[Timed<'_>],
    run: Option<f64>,
    dates: Dates,
) -> Result<Checked, Reason> {
    // Lines of other steps may have no date.
    let lines = measured.iter().map(|t| t.line);
    let measured = &timed(lines.filter(|line| (dates.of)(line).is_some()))[..];
    let unchecked = |why: Reason| {
        Ok(Checked {
            clock: None,
            unchecked: Some(why),
        })
    };
    let ends: Vec<f64> = measured.iter().filter_map(|t| (dates.of)(t.line)).collect();
    let [first, .., _] = ends[..] else {
        let text = "the log does not say when its steps ended";
        return unchecked(match ends.is_empty() {
            true => Reason::detail("no_dates", text),
            false => few_steps(),
        });
    };
    // From line to line of each process: what passes until the next one begins is in no step.
    let passed_since: Vec<f64> = (ends.windows(2).zip(&measured[1..]))
        .map(|(pair, of)| if of.is_first { 0.0 } else { pair[1] - pair[0] })
        .collect();
    let passed = passed_since.iter().sum::<f64>();
    // Reject a clock that runs backwards, stands still, or advances more than the whole run took:
    // it has another unit, or it was set during the run. Only lines may come all at once.
    let least = if dates.by_lines {
        0.0
    } else {
        f64::MIN_POSITIVE
    };
    let was_set = passed_since
        .iter()
        .any(|passed| *passed < -TOLERANCE_SECONDS);
    if !(least..f64::INFINITY).contains(&passed)
        || was_set
        || run.is_some_and(|run| is_more(passed, run))
    {
        // They go back, stand still, or are of another unit than seconds.
        let text = "the dates of its steps go back, stand still or are not in seconds";
        return unchecked(Reason::beside("bad_dates", text));
    }
    // The first line may be written as late as the second step ends, and the last one as early as
    // its step begins: these two are left out.
    let between = measured.get(2..measured.len() - 1).unwrap_or_default();
    let between = || between.iter().filter(|t| !t.is_first);
    let claimed: f64 = between().map(|t| t.seconds).sum();
    if is_more(claimed, passed) && !dates.by_lines {
        return Err(longer_than_passed(
            measured,
            claimed,
            passed,
            WhoseClock::Trainer,
        ));
    }
    // Steps without a line are as long as the next one that has one, unless slow steps are logged
    // more often than others.
    let shown_as: f64 = between().map(|t| t.since).sum();
    if !dates.by_lines && is_far_more(shown_as, passed) {
        return Err(refuted(measured, shown_as, passed, WhoseClock::Trainer));
    }
    let all = pairs(result, measured, dates);
    if !dates.by_lines
        && let Some((claimed, passed)) = longer_than_between(&all, resolution(&ends))
    {
        return Err(longer_than_passed(
            measured,
            claimed,
            passed,
            WhoseClock::Trainer,
        ));
    }
    let mostly_held = 2 * all.iter().filter(|p| p.is_held).count() > all.len();
    // Steps whose lines were seen after the first measured one ended after that: a buffer is
    // emptied as a whole. Only the first of them may have begun before.
    if dates.by_lines && !mostly_held && all.len() >= LEAST_PAIRS {
        let later = measured.iter().zip(&ends).filter(|(_, end)| **end > first);
        let later = later.skip(1).filter(|(t, _)| !t.is_first);
        let shown_as = later.map(|(t, _)| t.since).sum();
        if is_far_more(shown_as, passed) {
            return Err(refuted(measured, shown_as, passed, WhoseClock::Lines));
        }
    }
    let plain: Vec<&Pair> = all.iter().filter(|p| !p.is_evaluated).collect();
    let at = |q, of: fn(&Pair) -> f64| {
        quantile(&plain.iter().map(|p| of(p)).collect::<Vec<_>>(), q)
            .filter(|_| plain.len() >= LEAST_PAIRS)
    };
    // What three of four pairs exceed, evaluations or not, is no pause, and no line that was held
    // back.
    let beyond = |p: &Pair| (p.passed - LINE_SECONDS) / p.claimed;
    let of_all = quantile(&all.iter().map(beyond).collect::<Vec<_>>(), 0.25);
    if at(0.25, beyond).is_some_and(|ratio| ratio > IMPLAUSIBLE)
        && of_all.is_some_and(|ratio| ratio > IMPLAUSIBLE)
        && let Some((claimed, passed)) =
            at(0.5, |p| p.claimed / p.steps).zip(at(0.5, |p| p.passed / p.steps))
    {
        let whose = if dates.by_lines {
            "tprimat's clock"
        } else {
            "the trainer's own clock"
        };
        let text = match tokens_of_rate(result) {
            Some(tokens) => format!(
                "at the log's rate a step of {tokens} tokens takes {}, but {} pass from one to the next by {whose}: the trainer's \
                 steps have more tokens (does the batch size reach it?), or it stops its timer before the step has ended",
                step_time(claimed),
                step_time(passed)
            ),
            None => format!(
                "the log claims {} a step, but {} pass from one to the next by {whose}: the trainer may stop its timer before the step \
                 has ended",
                step_time(claimed),
                step_time(passed)
            ),
        };
        let reason = Reason::excludes(codes::TIMER_STOPS_EARLY, text);
        return Err(reason.with("claimed", claimed).with("passed", passed));
    }
    // Pairs of the first look have no dates of their own. Where too few others are left, short steps
    // or a buffer are to blame, and not that steps were few.
    let without_dates = measured.len() - 1 - all.len();
    let is_few = all.len() < LEAST_PAIRS;
    let is_unresolved = mostly_held || is_few && dates.by_lines && measured.len() > LEAST_PAIRS;
    let unchecked = if is_unresolved {
        let is_held = mostly_held || without_dates > all.len();
        Some(match is_held && !is_brief(measured, run) {
            true => Reason::beside(
                "held_back",
                "most lines of the log came several at a time: the trainer should write each line at once (for Python, \
                 PYTHONUNBUFFERED=1)",
            ),
            false => Reason::detail(
                "too_short",
                "lines of several steps came between two looks at the log (ten a second): the steps are short, or the \
                 trainer holds its lines back",
            ),
        })
    } else if is_few && measured.len() > LEAST_PAIRS {
        let text = format!(
            "fewer than {LEAST_PAIRS} lines of measured steps follow another one of their process"
        );
        Some(Reason::detail("few_steps", text))
    } else if is_few {
        Some(few_steps())
    } else if plain.len() < LEAST_PAIRS {
        let text = format!(
            "fewer than {LEAST_PAIRS} measured steps follow another one without an evaluation in between"
        );
        Some(Reason::beside("evaluations", text))
    } else {
        None
    };
    let is_resolved =
        !dates.by_lines || at(0.5, |p| p.claimed).is_some_and(|s| s >= RESOLVED_SECONDS);
    let typical = if is_unresolved {
        None
    } else if is_resolved {
        let typical = at(0.5, |p| p.passed / p.claimed);
        let beside = if dates.by_lines {
            None
        } else {
            many_beside(&plain, all.len())
        };
        typical
            .filter(|typical| *typical > OUTSIDE)
            .or(beside)
            .or(typical)
    } else {
        // A bound that is beyond it is sure; how far it is beyond, all of them tell.
        quicker_half(&plain)
            .filter(|ratio| *ratio > OUTSIDE)
            .map(|least| without_pauses(&plain).max(least))
    };
    let steps: f64 = measured
        .iter()
        .skip(1)
        .filter(|t| !t.is_first)
        .map(|t| t.since)
        .sum();
    let clock = is_positive(steps).then(|| Clock {
        passed_seconds: passed,
        steps_seconds: steps,
        typical_ratio: typical.filter(|ratio| ratio.is_finite()),
    });
    Ok(Checked { clock, unchecked })
}

/// Time passed ÷ time claimed, where too much of it is beside the steps to be pauses: between all of the few lines that there are,
/// or after many steps in a row. `of`: all pairs, those with evaluations too.
fn many_beside(plain: &[&Pair], of: usize) -> Option<f64> {
    let is_beside = |p: &&&Pair| p.passed > p.claimed * OUTSIDE;
    let in_a_row = plain.chunk_by(|a, b| is_beside(&a) == is_beside(&b));
    let longest = in_a_row
        .filter(|run| run.iter().all(|p| is_beside(&p)))
        .map(<[_]>::len)
        .max()?;
    let are_all = longest == of && longest >= LEAST_FEW;
    (are_all || longest >= LEAST_PAIRS).then(|| pairs::passed_per_claimed(plain))
}

/// Time claimed and time passed, where three of four steps claim more than lies between their end
/// and that of the step before. Over few or short steps that is less than what the sum may be off.
fn longer_than_between(pairs: &[Pair], resolution: f64) -> Option<(f64, f64)> {
    let beyond = |pair: &&Pair| pair.claimed > (pair.passed + resolution) * (1.0 + TOLERANCE);
    let longer = pairs.iter().filter(beyond).count();
    let sum = |of: fn(&Pair) -> f64| pairs.iter().map(of).sum::<f64>();
    (pairs.len() >= LEAST_PAIRS && 4 * longer >= 3 * pairs.len())
        .then(|| (sum(|p| p.claimed), sum(|p| p.passed)))
        .filter(|(claimed, passed)| claimed > passed)
}

/// By how much the difference of two dates may be off: by a whole second where all are whole ones,
/// else by a hundredth, for which the dates of lines are good enough.
fn resolution(ends: &[f64]) -> f64 {
    if ends.iter().all(|end| end.fract() == 0.0) {
        1.0
    } else {
        0.01
    }
}

/// Are the steps over within two looks at the log, by their own times and by those of the run?
fn is_brief(measured: &[Timed<'_>], run: Option<f64>) -> bool {
    let claimed: f64 = measured.iter().skip(1).map(|timed| timed.since).sum();
    claimed < 2.0 * NEXT_LOOK_SECONDS && run.is_none_or(|run| run < BRIEF_RUN_SECONDS)
}

fn is_more(claimed: f64, passed: f64) -> bool {
    claimed > passed * (1.0 + TOLERANCE) + TOLERANCE_SECONDS
}

/// More than slow steps that chance to be logged account for.
fn is_far_more(claimed: f64, passed: f64) -> bool {
    claimed > passed * OUTSIDE + TOLERANCE_SECONDS
}

/// Why the steps cannot all have taken what the log's lines say: `claimed`, where every step is as
/// long as the one of the next line.
fn refuted(measured: &[Timed<'_>], claimed: f64, passed: f64, clock: WhoseClock) -> Reason {
    let of = |value: fn(&Timed<'_>) -> f64| {
        quantile(&measured.iter().map(value).collect::<Vec<_>>(), 0.5).unwrap_or_default()
    };
    let steps: f64 = measured.iter().map(|t| t.since / t.seconds).sum();
    // A line of a mean over several steps stands for these.
    let (every, seconds) = (of(|t| (t.since / t.seconds).round()), of(|t| t.seconds));
    if every < 2.0 && clock != WhoseClock::Run {
        return longer_than_passed(measured, claimed, passed, clock);
    }
    let (would, did) = (self::seconds(claimed), passed_by(passed, clock));
    let (code, text) = if every < 2.0 || !is_far_more(seconds * steps, passed) {
        let text = format!(
            "the log shows only some of the steps, and by these all would take {would}, but {did}: slow steps are logged more often \
             than others"
        );
        ("slow_steps_shown_more_often", text)
    } else {
        let text = format!(
            "the log shows only every {} step, and at the times that it prints all steps would take {would}, but {did}: each time \
             seems to be that of {every} steps, and the trainer must print that of one step",
            ordinal(every as u64)
        );
        (codes::TIMES_OF_SEVERAL_STEPS, text)
    };
    let reason = Reason::excludes(code, text);
    reason.with("claimed", claimed).with("passed", passed)
}

fn longer_than_passed(
    measured: &[Timed<'_>],
    claimed: f64,
    passed: f64,
    clock: WhoseClock,
) -> Reason {
    let since = measured.iter().skip(1).filter(|t| !t.is_first);
    let times = since.filter_map(|t| Some((t.since / t.line.step_time_seconds?, t.since)));
    let (steps, shown_as) = times.fold((0.0, 0.0), |all, of| (all.0 + of.0, all.1 + of.1));
    let steps = f64::max(steps, 1.0);
    let each = step_time(shown_as / steps);
    let text = format!(
        "the log claims {} of steps ({each} a step) while {} ({} a step)",
        seconds(claimed),
        passed_by(passed, clock),
        step_time(passed / steps)
    );
    let reason = Reason::excludes(codes::LONGER_THAN_PASSED, text);
    reason.with("claimed", claimed).with("passed", passed)
}

fn passed_by(passed: f64, clock: WhoseClock) -> String {
    let passed = seconds(passed);
    match clock {
        WhoseClock::Trainer => format!("{passed} passed by the trainer's own clock"),
        WhoseClock::Lines => format!("{passed} passed by tprimat's clock"),
        WhoseClock::Run => format!("the run took {passed}"),
    }
}

/// What a reader must know of the time between the steps of the repeats that count: one note a
/// cause, with the worst case.
pub(super) fn notes(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut causes: BTreeMap<OutsideSteps, (Vec<u32>, &Clock)> = BTreeMap::new();
    for (repeat, _) in counted {
        let Some(clock) = &repeat.clock else { continue };
        let cause = match clock.typical_ratio {
            Some(typical) if typical <= OUTSIDE => OutsideSteps::Pauses,
            Some(_) => OutsideSteps::Timer,
            None => OutsideSteps::NotKnown,
        };
        let outside = clock.passed_seconds - clock.steps_seconds;
        // A timer that stops too early does so in the shortest run as well.
        let is_sure = cause == OutsideSteps::Timer;
        if clock.ratio() <= OUTSIDE || (outside <= TOLERANCE_SECONDS && !is_sure) {
            continue;
        }
        let (of, worst) = causes.entry(cause).or_insert_with(|| (Vec::new(), clock));
        of.push(repeat.repeat);
        if clock.ratio() > worst.ratio() {
            *worst = clock;
        }
    }
    let note = |(cause, (of, worst)): (OutsideSteps, (Vec<u32>, &Clock))| {
        let kind = if cause == OutsideSteps::Pauses {
            NoteKind::Remark
        } else {
            NoteKind::Doubtful
        };
        let (passed, outside) = (
            worst.passed_seconds,
            worst.passed_seconds - worst.steps_seconds,
        );
        let why = match cause {
            OutsideSteps::Pauses => "in pauses, as evaluations and checkpoints are".to_owned(),
            OutsideSteps::Timer => {
                let factor = worst.timer_factor().unwrap_or(passed / (passed - outside));
                format!(
                    "after most steps, or many in a row, so the trainer may stop its timer before the step has ended, and the rate \
                     may be {factor:.1}× too high"
                )
            }
            OutsideSteps::NotKnown => {
                "evaluations, checkpoints, or a timer that stops before the step has ended"
                    .to_owned()
            }
        };
        let text = format!(
            "{}: {}{} of {} lie outside the reported step times: {why}",
            repeats(&of),
            verb(&of, "", "up to "),
            seconds(outside),
            seconds(passed)
        );
        Note::new(kind, "outside_steps", text)
            .with("repeats", of)
            .with("outside", outside)
            .with("passed", passed)
    };
    let mut notes: Vec<Note> = causes.into_iter().map(note).collect();
    notes.extend(unchecked(counted));
    notes
}

/// The repeats whose speed could not be checked against the clock: one note for each reason.
fn unchecked(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let found = counted
        .iter()
        .filter_map(|(repeat, _)| Some((repeat.repeat, repeat.unchecked.as_ref()?)));
    by_repeat(found, |why, of| {
        let whose = whose(of, counted.len());
        let text = format!("{whose}the speed was not checked against the clock, because {why}");
        let kind = if why.severity == Severity::Detail {
            NoteKind::Remark
        } else {
            NoteKind::Doubtful
        };
        Note::new(kind, "unchecked", text).with("why", &*why.code)
    })
}

#[cfg(test)]
mod tests;
