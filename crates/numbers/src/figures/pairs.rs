//! Runs of two cells that were made as pairs, one right after the other, and what is decided by them.
//!
//! Where runs were added until the speeds were told apart (`build --decide`), their number depends on
//! what they showed, so only a test that may be looked at after every pair is right
//! (`results::Sequential`). Whatever else is compared with these cells is tested so as well.

use crate::results::{CONFIDENCE, Decision, Reason, Sequential};

use super::{
    Comparison, RatioInterval, RepeatStatus, RepeatSummary, Row, SESSION_GAP_SECONDS, Speedup,
    Steady,
    codes::{FEW_PAIRS, FEW_UNITS},
    host_named,
    judged::Judged,
};

/// Were any of the runs that count added until the speeds were told apart?
pub(super) fn are_until_decided<'a>(repeats: impl IntoIterator<Item = &'a RepeatSummary>) -> bool {
    let mut counted = repeats.into_iter().filter(|r| r.status == RepeatStatus::Ok);
    counted.any(|r| {
        r.repeats_planned
            .and_then(|planned| planned.round())
            .is_some()
    })
}

/// Is the difference of two cells tested by their pairs?
pub(super) fn is_by_pairs(rows: [&Row; 2]) -> bool {
    rows.iter().any(|row| are_until_decided(&row.repeats))
}

/// How many pairs of runs they have, where these are tested.
pub(super) fn of_rows(rows: [&Row; 2]) -> Option<usize> {
    let [a, b] = rows.map(|row| &*row.repeats);
    is_by_pairs(rows).then(|| pairs(a, b).len())
}

/// The logarithms of the ratios of their pairs, first ÷ second. `rate`: that of a run.
pub(super) fn log_ratios(
    [a, b]: [&[RepeatSummary]; 2],
    rate: impl Fn(&RepeatSummary, &Steady) -> f64,
) -> Vec<f64> {
    let ratio = |[a, b]: [&RepeatSummary; 2]| {
        let [a, b] = [rate(a, a.steady.as_ref()?), rate(b, b.steady.as_ref()?)];
        Some((a / b).ln())
    };
    pairs(a, b).into_iter().filter_map(ratio).collect()
}

/// The pairs of the runs that count: those of one round of `build --decide`; of other runs the same
/// repeat of both cells, if no other run of the two lies between them. Nothing of what a run measured
/// has a part in it.
fn pairs<'a>(a: &'a [RepeatSummary], b: &'a [RepeatSummary]) -> Vec<[&'a RepeatSummary; 2]> {
    let counted = |repeats: &'a [RepeatSummary]| {
        repeats
            .iter()
            .filter(|r| r.status == RepeatStatus::Ok && r.started_at.is_some_and(f64::is_finite))
    };
    let round = |run: &RepeatSummary| run.repeats_planned.and_then(|planned| planned.round());
    let is_one_host =
        |a: &RepeatSummary, b: &RepeatSummary| a.host == b.host && host_named(&a.host).is_some();
    let mut pairs = Vec::new();
    for own in counted(a).filter(|run| round(run).is_some()) {
        let is_its = |other: &&RepeatSummary| round(other) == round(own) && is_one_host(own, other);
        pairs.extend(counted(b).find(is_its).map(|its| [own, its]));
    }
    let mut in_time: Vec<(&RepeatSummary, bool)> = counted(a)
        .map(|run| (run, true))
        .chain(counted(b).map(|run| (run, false)))
        .collect();
    in_time.sort_by(|(x, _), (y, _)| {
        x.started_at
            .partial_cmp(&y.started_at)
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    for two in in_time.windows(2) {
        let [(first, of_a), (second, also_of_a)] = [two[0], two[1]];
        let pause =
            second.started_at.unwrap_or(0.0) - first.ended_at.or(first.started_at).unwrap_or(0.0);
        let is_pair = of_a != also_of_a
            && first.repeat == second.repeat
            && [first, second].iter().all(|run| round(run).is_none())
            && is_one_host(first, second)
            && pause <= SESSION_GAP_SECONDS;
        if is_pair {
            pairs.push(if of_a {
                [first, second]
            } else {
                [second, first]
            });
        }
    }
    pairs
}

/// The test of two cells by their pairs.
pub(super) fn tested(
    rows: [&Row; 2],
    rate: impl Fn(&RepeatSummary, &Steady) -> f64,
) -> Option<Sequential> {
    Sequential::of(&log_ratios(rows.map(|row| &*row.repeats), rate))
}

/// Why the pairs of two cells allow no verdict, however alike they are.
pub(super) fn too_few(rows: [&Row; 2]) -> Option<Reason> {
    let logs = log_ratios(rows.map(|row| &*row.repeats), |_, steady| {
        steady.tokens_per_second_per_gpu
    });
    if Sequential::of(&logs).is_some_and(|test| test.interval(CONFIDENCE).is_some()) {
        return None;
    }
    let n = logs.len();
    if n > 1 && Sequential::of(&logs).is_none() {
        return Some(super::judged::no_variation());
    }
    let text = format!(
        "runs of one of them were added until a decision or the budget's end, so only runs that were made in turns as pairs count for \
         it, and there are {n}"
    );
    Some(Reason::no_verdict(FEW_PAIRS, text).with("pairs", n))
}

/// What runs that are added until a decision have come to for one ratio of the table.
#[derive(Clone, Debug)]
pub struct Decided {
    pub a: String,
    pub b: String,
    pub pairs: usize,
    /// Speed of `a` ÷ that of `b`, over the pairs.
    pub ratio: Option<f64>,
    /// At the confidence of [`Self::decision`].
    pub interval: Option<RatioInterval>,
    /// Or why more runs decide nothing.
    pub decision: Result<Decision, Reason>,
}

/// What the pairs of runs decide for each ratio of the table. `margin`: the share within which speeds are
/// the same.
///
/// The level of 5 % is divided by the number of pairs of cells that the comparison judges, whatever
/// they show (Bonferroni), so all false statements together have a probability of 5 % at most. Holm's
/// correction of the table is never stricter, so it confirms each difference that is decided here.
#[must_use]
pub fn decided(comparison: &Comparison, margin: f64) -> (Vec<Decided>, usize) {
    let tests = Judged::of_comparison(comparison).tests();
    let family = tests.max(comparison.speedups.len()).max(1);
    let level = (1.0 - CONFIDENCE) / family as f64;
    let of = |speedup: &Speedup| {
        let row = |cell: &str| comparison.rows.iter().find(|row| row.cell == cell);
        let rows = [row(&speedup.a)?, row(&speedup.b)?];
        let logs = log_ratios(rows.map(|row| &*row.repeats), |_, steady| {
            steady.tokens_per_second_per_gpu
        });
        let test = Sequential::of(&logs);
        let interval = test.and_then(|test| test.interval(1.0 - level));
        // More runs help where too few is all that is wrong.
        let reason = speedup.reason.clone().filter(|reason| {
            !["one_repeat", FEW_UNITS, FEW_PAIRS]
                .iter()
                .any(|few| reason.is(few))
        });
        Some(Decided {
            a: speedup.a.clone(),
            b: speedup.b.clone(),
            pairs: logs.len(),
            ratio: test.map(|test| test.ratio()),
            interval: interval.and_then(|ends| RatioInterval::of(ends, 1.0 - level)),
            decision: reason.map_or_else(|| Ok(Sequential::decide(&logs, margin, level)), Err),
        })
    };
    (comparison.speedups.iter().filter_map(of).collect(), family)
}

/// About how many rounds two cells take whose runs vary by 1 %: where their speeds are the same, and where they
/// differ by twice the margin; `None`: a thousand would not do. `family`: how many pairs of cells are judged together.
#[must_use]
pub fn usual_rounds(margin: f64, family: usize) -> [Option<usize>; 2] {
    /// The spread of a pair's logarithm.
    const SD: f64 = 0.01 * std::f64::consts::SQRT_2;
    let level = (1.0 - CONFIDENCE) / family.max(1) as f64;
    [0.0, (2.0 * margin).ln_1p()].map(|difference| {
        let up_and_down = [difference + SD, difference - SD];
        let logs: Vec<f64> = up_and_down.into_iter().cycle().take(1000).collect();
        let is_open = |pairs: &usize| {
            matches!(
                Sequential::decide(&logs[..*pairs], margin, level),
                Decision::Undecided { .. }
            )
        };
        (2..logs.len()).find(|pairs| !is_open(pairs))
    })
}

#[cfg(test)]
mod tests;
