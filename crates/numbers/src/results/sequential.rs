//! Whether paired runs tell two speeds apart, by a test that may be looked at after every pair.
//!
//! Whoever adds runs until a difference is significant finds one sooner or later where there is none,
//! because a p-value of Welch's is worth its level at one number of runs alone. Here the interval covers
//! the true ratio at all numbers of pairs at once, with a probability of at least its confidence, so
//! that one may stop whenever one likes. The price is a wider interval.
//!
//! A pair is one run of each arm, made one right after the other, so that what moves the machine moves
//! both; its value is the logarithm of the ratio of their rates, `(rate_a / rate_b).ln()`. The test
//! assumes that these logarithms vary normally and independently around one value, with a spread that
//! nobody knows. docs/METRICS.md, "Only as many runs as needed", has what is left of its level where they do not.
//!
//! ```
//! use tprimat_numbers::results::{Decision, Sequential};
//!
//! let mut logs: Vec<f64> = vec![0.081, 0.079, 0.084, 0.078];
//! // One of 3 pairs of arms that are judged together, so a third of the level is for each (Bonferroni).
//! let level = 0.05 / 3.0;
//! let decide = |logs: &[f64]| Sequential::decide(logs, 0.02, level);
//! assert!(matches!(decide(&logs), Decision::Undecided { more: Some(_) }));
//! logs.push(0.080);
//! assert_eq!(decide(&logs), Decision::Faster);
//! ```
//!
//! Pairs are never left out for their values, and the level is settled before the first run: how many
//! comparisons share it must not depend on what they show. Where later comparisons depend on earlier
//! ones (which half of the changes is looked at next), divide the level by the most that there can be.
//!
//! The evidence against a ratio is the likelihood of the t-statistic where the difference, in standard
//! deviations, is drawn from a normal distribution of variance [`SPREAD`], over its likelihood where the
//! ratio is true. It is 1 before the first pair, and its mean stays 1 where the ratio is true, so it ever
//! reaches 1 / level with a probability of the level at most (Ville 1939). The test: Lai 1976; as
//! confidence sequence: Wang and Ramdas 2023, "Anytime-valid t-tests and confidence sequences for Gaussian
//! means with unknown variance"; the closed form of the likelihood ratio: Gönen et al. 2005.

use super::{NO_VARIANCE, is_positive, mean, sd};

/// The variance of the true difference, in units of the variance of a pair, by which evidence is
/// weighed. The test is right whatever it is; this value needs the fewest pairs for differences from half to four
/// standard deviations. It also bounds what n pairs can show: (1 + 2 n)^((n − 1) / 2), so that at least 4
/// are needed at a level of 0.05, however alike they are.
const SPREAD: f64 = 2.0;

/// Nobody makes more pairs to settle a difference.
const MOST_PAIRS: usize = 1000;

/// What pairs show of the difference of two arms, or what any number of runs of each shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sequential {
    /// The mean logarithm of the first arm's rates less that of the second arm's.
    difference: f64,
    /// The variance of the logarithm of one pair's ratio; where runs are not paired, of one run's rate.
    variance: f64,
    /// The variance of the difference ÷ [`Self::variance`]: 1 ÷ pairs, or 1 ÷ runs + 1 ÷ runs.
    per_unit: f64,
    /// Degrees of freedom of the variance.
    freedom: f64,
}

/// What may be said of the first arm beside the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Faster,
    Slower,
    /// Neither is faster by the margin, nor is either shown to be faster at all.
    Same,
    /// About how many more pairs it takes, if they go on like this; none where that cannot be said.
    Undecided {
        more: Option<usize>,
    },
}

impl Sequential {
    /// The test of pairs. None below two, where one is no number, or where they do not vary at all.
    #[must_use]
    pub fn of(log_ratios: &[f64]) -> Option<Self> {
        let (difference, sd) = (mean(log_ratios)?, sd(log_ratios)?);
        let variance = sd.powi(2);
        let varies = variance.is_finite() && variance >= NO_VARIANCE;
        let test = Self {
            difference,
            variance,
            per_unit: 1.0,
            freedom: 1.0,
        };
        varies.then(|| test.of_pairs(log_ratios.len()))
    }

    /// The test of the runs of one arm beside those of another that were all there before, without pairs:
    /// both arms vary alike.
    #[must_use]
    pub fn of_arms(logs: &[f64], before: &[f64]) -> Option<Self> {
        let [own, other] =
            [logs, before].map(|logs| Some((mean(logs)?, sd(logs)?, logs.len() as f64)));
        let ((mean_a, sd_a, n_a), (mean_b, sd_b, n_b)) = (own?, other?);
        let freedom = n_a + n_b - 2.0;
        let squares = sd_a.powi(2) * (n_a - 1.0) + sd_b.powi(2) * (n_b - 1.0);
        let variance = squares / freedom;
        let varies = variance.is_finite() && variance >= NO_VARIANCE;
        varies.then_some(Self {
            difference: mean_a - mean_b,
            variance,
            per_unit: 1.0 / n_a + 1.0 / n_b,
            freedom,
        })
    }

    fn of_pairs(self, pairs: usize) -> Self {
        Self {
            per_unit: 1.0 / pairs as f64,
            freedom: pairs as f64 - 1.0,
            ..self
        }
    }

    /// What these pairs decide. `margin`: the share within which speeds are the same, 0.02 for 2 %;
    /// `level`: the probability of a false statement, over all numbers of pairs.
    #[must_use]
    pub fn decide(log_ratios: &[f64], margin: f64, level: f64) -> Decision {
        let undecided = Decision::Undecided { more: None };
        let Some(test) = Self::of(log_ratios) else {
            return undecided;
        };
        if let Some(decision) = test.decision(margin, level) {
            return decision;
        }
        let pairs = log_ratios.len();
        let is_enough = |pairs: &usize| test.of_pairs(*pairs).decision(margin, level).is_some();
        let enough = (pairs + 1..=MOST_PAIRS).find(is_enough);
        Decision::Undecided {
            more: enough.map(|enough| enough - pairs),
        }
    }

    /// What is decided, if anything is.
    #[must_use]
    pub fn decision(&self, margin: f64, level: f64) -> Option<Decision> {
        let [low, high] = self.interval(1.0 - level)?;
        if low > 1.0 {
            Some(Decision::Faster)
        } else if high < 1.0 {
            Some(Decision::Slower)
        } else if 1.0 / (1.0 + margin) < low && high < 1.0 + margin {
            Some(Decision::Same)
        } else {
            None
        }
    }

    /// The geometric mean of the ratios.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.difference.exp()
    }

    /// The same seen from the other arm.
    #[must_use]
    pub fn inverse(self) -> Self {
        Self {
            difference: -self.difference,
            ..self
        }
    }

    /// Two-sided, that the ratio is 1: valid whenever one stops.
    #[must_use]
    pub fn p(&self) -> f64 {
        self.p_against(1.0)
    }

    /// Two-sided: that the ratio is `other`.
    #[must_use]
    pub fn p_against(&self, other: f64) -> f64 {
        let away = self.difference - other.ln();
        // The square of the t-statistic, over its degrees of freedom.
        let away = away.powi(2) / (self.variance * self.per_unit * self.freedom);
        let of_mean = 1.0 + SPREAD / self.per_unit;
        let gain = away.ln_1p() - (away / of_mean).ln_1p();
        let evidence = 0.5 * ((self.freedom + 1.0) * gain - of_mean.ln());
        (-evidence).exp().min(1.0)
    }

    /// The ratios against which there is not evidence enough: [`Self::p_against`] solved for the ratio.
    /// None where these are all ratios.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> Option<[f64; 2]> {
        let of_mean = 1.0 + SPREAD / self.per_unit;
        let least = (of_mean.sqrt() / (1.0 - confidence)).powf(2.0 / (self.freedom + 1.0));
        let away = (least - 1.0) / (1.0 - least / of_mean);
        let half = (self.variance * self.per_unit * self.freedom * away).sqrt();
        let ends = [self.difference - half, self.difference + half].map(f64::exp);
        (least < of_mean && ends.iter().all(|end| is_positive(*end))).then_some(ends)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The evidence by its definition: the likelihood of the values where their mean is δ of their
    /// standard deviations, over that where it is 0, both over all standard deviations alike.
    fn evidence_by_integration(values: &[f64]) -> f64 {
        let n = values.len() as i32;
        let likelihood = |delta: f64| -> f64 {
            let of_sd = |log: f64| {
                let sd = log.exp();
                let squares = values.iter().map(|v| (v / sd - delta).powi(2)).sum::<f64>();
                sd.powi(-n) * (-squares / 2.0).exp()
            };
            (-600..600).map(|at| of_sd(f64::from(at) * 0.01)).sum()
        };
        let weight = |delta: f64| (-delta.powi(2) / (2.0 * SPREAD)).exp();
        let grid = || (-900..=900).map(|at| f64::from(at) * 0.01);
        let weighed: f64 = grid().map(|delta| weight(delta) * likelihood(delta)).sum();
        weighed / grid().map(weight).sum::<f64>() / likelihood(0.0)
    }

    #[test]
    fn the_evidence_is_the_ratio_of_two_likelihoods() {
        for values in [
            vec![1.0, 1.3],
            vec![0.4, -0.2, 0.9],
            vec![1.0, 1.1, 0.8, 1.2, 0.9],
            vec![0.1, -0.4, 0.3, 0.2, -0.1, 0.5, -0.2],
        ] {
            let p = Sequential::of(&values).unwrap().p();
            let defined = (1.0 / evidence_by_integration(&values)).min(1.0);
            assert!(
                (p / defined - 1.0).abs() < 1e-3,
                "{values:?}: {p} {defined}"
            );
        }
    }

    #[test]
    fn what_does_not_vary_or_is_no_number_decides_nothing() {
        for logs in [
            &[][..],
            &[0.1],
            &[0.1; 9],
            &[0.1, f64::NAN, 0.2],
            &[0.1, f64::INFINITY],
        ] {
            assert_eq!(
                Sequential::decide(logs, 0.02, 0.05),
                Decision::Undecided { more: None },
                "{logs:?}"
            );
        }
    }

    #[test]
    fn three_pairs_decide_nothing_however_alike_they_are() {
        let logs = [0.5, 0.500_001, 0.500_002];
        let more = Sequential::decide(&logs, 0.02, 0.05);
        assert_eq!(more, Decision::Undecided { more: Some(1) });
        // More comparisons want more pairs.
        let more = Sequential::decide(&logs, 0.02, 0.05 / 10.0);
        assert_eq!(more, Decision::Undecided { more: Some(3) });
    }

    proptest! {
        /// An interval, its p-value and its decision are one statement, from either side.
        #[test]
        fn interval_p_value_and_decision_agree(
            logs in prop::collection::vec(-0.1..0.1, 2..40),
            shift in -0.1..0.1,
            margin in 0.001..0.1,
            level in 0.001..0.2,
        ) {
            let logs: Vec<f64> = logs.into_iter().map(|log: f64| log + shift).collect();
            let test = Sequential::of(&logs).unwrap();
            let ends = test.interval(1.0 - level);
            let excludes_1 = ends.is_some_and(|[low, high]| low > 1.0 || high < 1.0);
            prop_assert_eq!(excludes_1, test.p() < level);
            let turned: Vec<f64> = logs.iter().map(|log| -log).collect();
            let [one, other] = [&logs, &turned].map(|logs| Sequential::decide(logs, margin, level));
            let expected = match one {
                Decision::Faster => Decision::Slower,
                Decision::Slower => Decision::Faster,
                as_it_is => as_it_is,
            };
            prop_assert_eq!(other, expected);
            prop_assert!((test.inverse().ratio() * test.ratio() - 1.0).abs() < 1e-9);
            match one {
                Decision::Faster => prop_assert!(ends.unwrap()[0] > 1.0),
                Decision::Slower => prop_assert!(ends.unwrap()[1] < 1.0),
                Decision::Same => {
                    let [low, high] = ends.unwrap();
                    prop_assert!(low * (1.0 + margin) > 1.0 && high < 1.0 + margin && test.p() >= level);
                }
                Decision::Undecided { .. } => prop_assert!(!excludes_1),
            }
        }
    }
}
