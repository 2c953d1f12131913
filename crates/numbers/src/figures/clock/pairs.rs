//! From one line of a log to the next: the time that passed beside the time that is claimed.

use tprimat_logs::MAX_REPORTS;

use super::{Dates, LEAST_PAIRS, NEXT_LOOK_SECONDS, Timed};
use crate::results::RunResult;

/// Time that passed ÷ time claimed, over the half of the pairs where that is least. Looks round the
/// dates of short steps up and down, and over many pairs this evens out; it never exceeds the true
/// ratio of most pairs by more than a look.
pub(super) fn quicker_half(plain: &[&Pair]) -> Option<f64> {
    if plain.len() < LEAST_PAIRS {
        return None;
    }
    let mut pairs = plain.to_vec();
    pairs.sort_by(|a, b| (a.passed / a.claimed).total_cmp(&(b.passed / b.claimed)));
    pairs.truncate(pairs.len().div_ceil(2));
    Some(passed_per_claimed(&pairs))
}

/// The same over all pairs, but for pauses after a few of them.
pub(super) fn without_pauses(plain: &[&Pair]) -> f64 {
    let mut pairs = plain.to_vec();
    pairs.sort_by(|a, b| (a.passed / a.claimed).total_cmp(&(b.passed / b.claimed)));
    let all = passed_per_claimed(&pairs);
    pairs.truncate(pairs.len() - pairs.len() / 10);
    let most = passed_per_claimed(&pairs);
    if all > 1.1 * most { most } else { all }
}

pub(super) fn passed_per_claimed(pairs: &[&Pair]) -> f64 {
    let sum = |of: fn(&Pair) -> f64| pairs.iter().map(|p| of(p)).sum::<f64>();
    sum(|p| p.passed) / sum(|p| p.claimed)
}

/// From one line to the next.
pub(super) struct Pair {
    pub passed: f64,
    pub claimed: f64,
    pub steps: f64,
    /// Was there an evaluation in between, or may there have been one?
    pub is_evaluated: bool,
    /// Its line came with others, long after the look before: when it was written is not known.
    pub is_held: bool,
}

pub(super) fn pairs(result: &RunResult, measured: &[Timed<'_>], dates: Dates) -> Vec<Pair> {
    let told = &result.trace.evaluations;
    let mut evaluations: Vec<u64> = told.iter().filter_map(|e| e.step).collect();
    evaluations.sort_unstable();
    let pair = |pair: &[Timed<'_>]| {
        let [a, b] = pair else { return None };
        if b.is_first {
            return None;
        }
        let next = evaluations.partition_point(|step| *step < a.line.step);
        let is_evaluated = evaluations
            .get(next)
            .is_some_and(|step| *step <= b.line.step);
        let passed = (dates.of)(b.line)? - (dates.of)(a.line)?;
        let steps = b.line.step.saturating_sub(a.line.step).max(1) as f64;
        Some(Pair {
            passed,
            claimed: b.since,
            steps,
            is_evaluated,
            is_held: false,
        })
    };
    let pairs = measured.windows(2).filter_map(pair).collect();
    let mut looks = if dates.by_lines {
        spread(pairs)
    } else {
        pairs.into_iter().map(|pair| vec![pair]).collect()
    };
    // An evaluation of an unknown step may be in any pair, so each takes the slowest one left.
    let unclear = if told.len() < MAX_REPORTS {
        told.iter().filter(|e| e.step.is_none()).count()
    } else {
        looks.len()
    };
    let mut plain: Vec<&mut Vec<Pair>> = looks
        .iter_mut()
        .filter(|look| look.iter().any(|pair| !pair.is_evaluated))
        .collect();
    let slowness = |look: &[Pair]| {
        let sum = |of: fn(&Pair) -> f64| look.iter().map(of).sum::<f64>();
        sum(|p| p.passed) / sum(|p| p.claimed)
    };
    plain.sort_by(|a, b| slowness(b).total_cmp(&slowness(a)));
    for look in plain.into_iter().take(unclear) {
        look.iter_mut().for_each(|pair| pair.is_evaluated = true);
    }
    looks.into_iter().flatten().collect()
}

/// The lines that one look finds came one after the other since the look before, so the time
/// between the two looks is shared out among them. When the lines of the very first look came is
/// not known: they are left out.
fn spread(pairs: Vec<Pair>) -> Vec<Vec<Pair>> {
    let mut looks: Vec<Vec<Pair>> = Vec::new();
    for pair in pairs {
        match looks.last_mut() {
            Some(look) if pair.passed <= 0.0 => look.push(pair),
            _ => looks.push(vec![pair]),
        }
    }
    let is_next = |look: &[Pair]| (0.0..=NEXT_LOOK_SECONDS).contains(&look[0].passed);
    if let [first, second, ..] = &looks[..]
        && first[0].passed <= 0.0
        && is_next(second)
    {
        looks.remove(0);
    }
    for look in &mut looks {
        if look[0].passed <= 0.0 || !is_next(look) {
            let is_held = look.len() > 1;
            look.iter_mut().for_each(|pair| pair.is_held = is_held);
            continue;
        }
        let passed = look[0].passed;
        let claimed: f64 = look.iter().map(|pair| pair.claimed).sum();
        let is_evaluated = look.iter().any(|pair| pair.is_evaluated);
        for pair in look {
            pair.passed = passed * pair.claimed / claimed;
            pair.is_evaluated = is_evaluated;
        }
    }
    looks
}
