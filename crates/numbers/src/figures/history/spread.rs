//! Whether a rate changed by more than sessions differ by anyway: docs/METRICS.md, "Speed over time".

use crate::results::{
    CONFIDENCE, MIN_REPEATS, NO_VARIANCE, Welch, deviation, logs, mean, quantile, sd,
    variance_of_mean,
};

use crate::figures::{Estimate, LEVEL_SD};

/// The usual spread of sessions ([`LEVEL_SD`]) counts as if it had been estimated with this many degrees
/// of freedom, beside what the history itself shows.
const USUAL: f64 = 10.0;
/// Differences below which a history says nothing of its sessions: one change of the speed would be
/// too many of them.
const LEAST: usize = 8;
/// A spread that is taken from n differences by their median absolute deviation counts as if it had been
/// estimated with this part of n degrees of freedom: neighbouring differences share a measurement.
const EFFICIENCY: f64 = 0.2;

/// The logarithm of a rate.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    log: f64,
    /// The variance of the mean of its repeats, estimated with `freedom` degrees of freedom.
    variance: f64,
    freedom: f64,
    /// In how many sessions it was measured.
    sessions: f64,
}

impl Rate {
    /// None where the repeats are too few for a verdict, or do not vary.
    pub fn of(estimate: &Estimate) -> Option<Self> {
        let logs = logs(&estimate.units).filter(|logs| logs.len() >= MIN_REPEATS)?;
        let n = logs.len() as f64;
        let variance = sd(&logs)?.powi(2);
        let of_mean = match estimate.is_until_decided() {
            true => variance_of_mean(estimate.ci95?, logs.len())?,
            false => variance / n,
        };
        (variance >= NO_VARIANCE).then(|| Self {
            log: mean(&logs).unwrap_or_default(),
            variance: of_mean,
            freedom: n - 1.0,
            sessions: 1.0,
        })
    }

    /// The level of several sessions.
    pub fn level(all: &[Self]) -> Option<Self> {
        let sum = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>();
        let n = all.len() as f64;
        (!all.is_empty()).then(|| Self {
            log: sum(|rate| rate.log) / n,
            variance: sum(|rate| rate.variance) / n.powi(2),
            freedom: sum(|rate| rate.freedom),
            sessions: sum(|rate| rate.sessions),
        })
    }
}

/// How far the level moves from session to session, and by how many tests that is asked.
pub(super) struct Spread {
    variance: f64,
    freedom: f64,
    tests: f64,
}

impl Spread {
    /// From neighbours in time between which nothing that tprimat records was changed. A change of the
    /// speed is among them at most now and then, so the median of their differences does not see it.
    pub fn of(neighbours: &[(Rate, Rate)], tests: usize) -> Self {
        let differences: Vec<f64> = neighbours.iter().map(|(a, b)| b.log - a.log).collect();
        let repeats: Vec<f64> = neighbours
            .iter()
            .map(|(a, b)| a.variance + b.variance)
            .collect();
        let middle = quantile(&differences, 0.5).unwrap_or(0.0);
        let seen = deviation(&differences, middle).unwrap_or(0.0).powi(2);
        let own = ((seen - mean(&repeats).unwrap_or(0.0)) / 2.0).max(0.0);
        let weight = if differences.len() < LEAST {
            0.0
        } else {
            differences.len() as f64
        };
        Self {
            variance: (USUAL * LEVEL_SD.powi(2) + weight * own) / (USUAL + weight),
            freedom: USUAL + EFFICIENCY * weight,
            tests: tests.max(1) as f64,
        }
    }

    pub fn sd(&self) -> f64 {
        self.variance.sqrt()
    }

    /// The interval of the ratio of two rates, corrected for all tests (Bonferroni).
    pub fn interval(&self, now: &Rate, then: &Rate) -> Option<[f64; 2]> {
        let between = self.variance * (1.0 / now.sessions + 1.0 / then.sessions);
        let variance = between + now.variance + then.variance;
        let parts = [
            (between, self.freedom),
            (now.variance, now.freedom),
            (then.variance, then.freedom),
        ];
        let squares: f64 = parts
            .iter()
            .map(|(part, freedom)| part.powi(2) / freedom)
            .sum();
        let test = Welch::of(now.log - then.log, variance, variance.powi(2) / squares)?;
        let interval = test.interval(1.0 - (1.0 - CONFIDENCE) / self.tests)?;
        interval
            .iter()
            .all(|end| end.is_finite())
            .then_some(interval)
    }
}
