//! Is it one run under two names? A log may be imported as the launcher's output and as a rank's,
//! or under two cells.

use std::{cmp::Reverse, collections::HashMap};

use crate::results::RunResult;

use super::{RepeatStatus, RepeatSummary, Statistics, why_uncounted};

/// Logged steps that both must have before anything is said: few values may agree by chance.
const LEAST_STEPS: usize = 5;
/// Different step times among them. A clock that counts in whole seconds says the same of many
/// runs.
const LEAST_TIMES: usize = 4;

/// What a log says of a step: its number, its time and its loss.
type Point = (u64, Option<f64>, Option<f64>);

/// Do two logs say the same of every step that both have?
fn is_one_run(one: impl Iterator<Item = Point>, two: impl Iterator<Item = Point>) -> bool {
    let bits = |value: Option<f64>| value.map(f64::to_bits);
    let known: HashMap<u64, Point> = two.map(|point| (point.0, point)).collect();
    let mut times: Vec<u64> = Vec::new();
    let mut steps = 0;
    for (step, time, loss) in one {
        let Some((_, other_time, other_loss)) = known.get(&step) else {
            continue;
        };
        if bits(time) != bits(*other_time) || bits(loss) != bits(*other_loss) {
            return false;
        }
        if let Some(time) = bits(time) {
            steps += 1;
            times.push(time);
        }
    }
    times.sort_unstable();
    times.dedup();
    steps >= LEAST_STEPS && times.len() >= LEAST_TIMES
}

fn of_repeat(repeat: &RepeatSummary) -> impl Iterator<Item = Point> {
    let curve = &repeat.curve;
    let values = curve.step_time_seconds.iter().zip(&curve.loss);
    curve
        .step
        .iter()
        .zip(values)
        .map(|(step, (time, loss))| (*step, *time, *loss))
}

fn of_result(result: &RunResult) -> impl Iterator<Item = Point> {
    result
        .trace
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds, s.loss))
}

/// How many of the repeats of `a` that count are runs that count in `b` as well.
pub(super) fn shared_runs(a: &[RepeatSummary], b: &[RepeatSummary]) -> usize {
    let counted = |all: &'_ [RepeatSummary]| -> Vec<usize> {
        (0..all.len())
            .filter(|at| all[*at].status == RepeatStatus::Ok)
            .collect()
    };
    let of_b = counted(b);
    let is_there = |at: &usize| {
        of_b.iter()
            .any(|other| is_one_run(of_repeat(&a[*at]), of_repeat(&b[*other])))
    };
    counted(a).iter().filter(|at| is_there(at)).count()
}

/// Finds for each run the number of another one that is the same and stands for it, if any: the one
/// with more steps, for an excerpt may lack how the run ended; of two with as many one that does not
/// count, since its log says more; else the earlier one. `may_be` says of two numbers whether they may
/// be one run at all.
#[must_use]
pub fn repeated_runs(
    results: &[(u32, RunResult)],
    statistics: &Statistics,
    may_be: impl Fn(u32, u32) -> bool,
) -> Vec<Option<u32>> {
    let all = 0..results.len();
    let ranks: Vec<_> = all
        .clone()
        .map(|at| {
            let run = &results[at].1;
            let is_out = why_uncounted(run, statistics).is_some();
            (run.trace.steps.len(), is_out, Reverse(at))
        })
        .collect();
    let stands_for = |at: usize| {
        let is_same =
            |other: &usize| is_one_run(of_result(&results[at].1), of_result(&results[*other].1));
        all.clone()
            .filter(|other| ranks[*other] > ranks[at])
            .filter(|other| may_be(results[at].0, results[*other].0))
            .filter(is_same)
            .max_by_key(|other| ranks[*other])
            .map(|other| results[other].0)
    };
    all.clone().map(stands_for).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_same_series_is_the_same_run_and_equal_clocks_are_not() {
        let series = |times: &[f64]| -> Vec<Point> {
            (1..)
                .zip(times)
                .map(|(step, time)| (step, Some(*time), Some(3.0 / step as f64)))
                .collect()
        };
        let one = |a: &[Point], b: &[Point]| is_one_run(a.iter().copied(), b.iter().copied());
        let run = series(&[0.9, 0.21, 0.22, 0.23, 0.24, 0.25, 0.26]);
        assert!(one(&run, &run) && one(&run, &run[2..]) && one(&run[..6], &run));
        assert!(!one(&run, &run[3..]), "four steps are too few");
        let mut other = run.clone();
        other[6].1 = Some(0.261);
        assert!(!one(&run, &other));
        other[6] = (7, Some(0.26), Some(0.1));
        assert!(!one(&run, &other), "another loss");
        let coarse = series(&[2.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert!(!one(&coarse, &coarse), "a clock of whole seconds");
    }
}
