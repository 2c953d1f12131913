//! What the spreads of several cells say of the spread of each: the moderated variance of Smyth 2004.
//!
//! Few repeats of a cell say little of its spread. Where the cells of a table vary about alike, each can
//! lend the others what it knows; where they do not, each is left alone. How alike they are is read
//! from their variances themselves.

use statrs::function::gamma::digamma;

use super::{mean, sd};

/// Cells below which nothing is said of how alike they are.
const LEAST: usize = 3;

/// The variances and their degrees of freedom after each has heard the others. `of`: the same before;
/// all above 0. They stay as they are where the cells are few or do not vary alike.
#[must_use]
pub fn moderated(of: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let Some((variance, freedom)) = prior(of) else {
        return of.to_vec();
    };
    let all: f64 = of.iter().map(|(_, own)| own).sum();
    let one = |(own, own_freedom): &(f64, f64)| match freedom.is_finite() {
        false => (variance, all),
        true => {
            let sum = freedom + own_freedom;
            let moderated = (freedom * variance + own_freedom * own) / sum;
            (moderated, sum.min(all))
        }
    };
    of.iter().map(one).collect()
}

/// The variance around which those of the cells lie, and how many degrees of freedom it is worth beside
/// a cell's own; infinity where they differ no more than chance has it.
fn prior(of: &[(f64, f64)]) -> Option<(f64, f64)> {
    if of.len() < LEAST {
        return None;
    }
    let centred = |(variance, freedom): &(f64, f64)| {
        variance.ln() - digamma(freedom / 2.0) + (freedom / 2.0).ln()
    };
    let logs: Vec<f64> = of.iter().map(centred).collect();
    let chance: Vec<f64> = of
        .iter()
        .map(|(_, freedom)| trigamma(freedom / 2.0))
        .collect();
    let middle = mean(&logs)?;
    let beyond = sd(&logs)?.powi(2) - mean(&chance)?;
    if beyond <= 0.0 {
        return Some((middle.exp(), f64::INFINITY));
    }
    let half = trigamma_inverse(beyond);
    Some(((middle + digamma(half) - half.ln()).exp(), 2.0 * half))
}

/// The derivative of [`digamma`]: by recurrence to where its asymptotic series is exact.
fn trigamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 20.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    sum + 1.0 / x + square / 2.0 + square / x * (1.0 / 6.0 - square * (1.0 / 30.0 - square / 42.0))
}

/// By bisection: trigamma falls from infinity to 0.
fn trigamma_inverse(value: f64) -> f64 {
    let (mut low, mut high) = (1e-6f64, 1e9f64);
    for _ in 0..200 {
        let middle = (low * high).sqrt();
        if trigamma(middle) > value {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low * high).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trigamma_is_that_of_the_tables() {
        let pi = std::f64::consts::PI;
        for (x, value) in [
            (0.5, pi * pi / 2.0),
            (1.0, pi * pi / 6.0),
            (2.0, pi * pi / 6.0 - 1.0),
        ] {
            assert!((trigamma(x) - value).abs() < 1e-10, "{x}");
            assert!((trigamma_inverse(value) / x - 1.0).abs() < 1e-9, "{x}");
        }
    }

    #[test]
    fn cells_that_vary_alike_lend_each_other_and_others_do_not() {
        let alike = [(1.0, 4.0), (1.2, 4.0), (0.9, 4.0), (1.1, 4.0)];
        assert!(
            moderated(&alike)
                .iter()
                .all(|(v, f)| (0.8..1.5).contains(v) && *f == 16.0)
        );
        // A spread of 1 in one and of 100 in the other: each knows nothing of the other.
        let apart = [(1.0, 4.0), (1e4, 4.0), (1e-4, 4.0), (1e2, 4.0)];
        for ((v, f), (own, own_freedom)) in moderated(&apart).iter().zip(apart) {
            assert!(
                (v / own).ln().abs() < 2.0 && *f < own_freedom + 1.0,
                "{v} {f} {own}"
            );
        }
        assert_eq!(moderated(&alike[..2]), alike[..2]);
    }
}
