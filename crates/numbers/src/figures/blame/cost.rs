//! What a search takes.

use super::{Arm, ERROR, Limits, Outcome, bisect, search};
use crate::results::Sequential;

/// Questions that a search asks of `n` differences at most where `guilty` of them act.
#[must_use]
pub fn questions_at_most(n: usize, guilty: usize) -> usize {
    ((guilty + 1) as f64 * (n.max(1) as f64).log2() + 2.0) as usize
}

/// The probability that one interval misses: a question looks at three pairs of arms at most, and
/// nobody looks for more than three causes.
#[must_use]
pub fn error_of_one(n: usize) -> f64 {
    ERROR / (3 * questions_at_most(n.max(2), 3)) as f64
}

/// Rounds without which no interval has an end, however clear the difference.
#[must_use]
pub fn least_rounds(n: usize) -> usize {
    let is_enough = |rounds: &usize| {
        let any: Vec<f64> = (0..*rounds).map(|at| (at % 2) as f64).collect();
        let test = Sequential::of(&any);
        test.is_some_and(|test| test.interval(1.0 - error_of_one(n)).is_some())
    };
    (2..).find(is_enough).unwrap_or_default()
}

/// Runs for one clear cause, of four times the margin, among `n` differences whose runs vary by 1 %: the mean
/// over the places where it may be.
#[must_use]
pub fn usual_runs(n: usize, is_series: bool, margin: f64) -> usize {
    /// Places that are tried at most.
    const PLACES: usize = 8;
    let limits = Limits {
        margin,
        rounds: 100,
    };
    let places: Vec<usize> = (0..n).step_by(n.div_ceil(PLACES)).collect();
    let mut runs = 0;
    for guilty in &places {
        let mut at = 0;
        let measure = |arms: &[&Arm]| {
            let time = |arm: &&Arm| {
                at += 1;
                // Up and down in no order, with a standard deviation of 1 %.
                let noise = 3f64.sqrt() * 0.01 * (f64::from((at * 7919_u32) % 101) / 50.0 - 1.0);
                let effect = if arm.contains(guilty) {
                    4.0 * margin
                } else {
                    0.0
                };
                Outcome::Time((1.0 + effect) * (1.0 + noise))
            };
            let times: Vec<Outcome> = arms.iter().map(time).collect();
            runs += times.len();
            Ok::<_, std::convert::Infallible>(Some(times))
        };
        let Ok(_) = match is_series {
            true => bisect((0..=n).collect(), limits, measure),
            false => search(n, limits, measure),
        };
    }
    runs.div_ceil(places.len().max(1))
}
