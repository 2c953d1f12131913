//! Intervals and tests on positive rates, all on their logarithms: a ratio is what people ask for.

use super::Sequential;
use statrs::distribution::{Continuous, ContinuousCDF, StudentsT};

/// Two-sided; every interval of the tool has at least this.
pub const CONFIDENCE: f64 = 0.95;
/// Units in each arm below which nothing is called significant.
pub const MIN_REPEATS: usize = 3;

/// What a time or a rate has to be for anything to follow from it.
#[must_use]
pub fn is_positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// The fewest decimals, `least` or more, with which `value` still stands on its own side of
/// `border`.
#[must_use]
pub fn decimals_beside(value: f64, border: f64, least: usize) -> usize {
    const ALL: usize = 17;
    let side = value.partial_cmp(&border);
    let holds = |d: &usize| {
        format!("{value:.*}", *d)
            .parse::<f64>()
            .is_ok_and(|v| v.partial_cmp(&border) == side)
    };
    (least..ALL).find(holds).unwrap_or(ALL)
}

#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Sample standard deviation (n − 1). Of values that are all the same it is 0, and not what rounding
/// leaves of it: the distances are from the first value before they are from the mean.
#[must_use]
pub fn sd(values: &[f64]) -> Option<f64> {
    let first = *values.first().filter(|_| values.len() > 1)?;
    let away: Vec<f64> = values.iter().map(|v| v - first).collect();
    let mean = mean(&away)?;
    let squares = away.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Quantile by linear interpolation between order statistics, as NumPy's default.
#[must_use]
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut values = values.to_vec();
    let at = q.clamp(0.0, 1.0) * (values.len().checked_sub(1)?) as f64;
    let (_, below, above) = values.select_nth_unstable_by(at.floor() as usize, f64::total_cmp);
    let next = above
        .iter()
        .copied()
        .min_by(f64::total_cmp)
        .filter(|_| at.fract() > 0.0)
        .unwrap_or(*below);
    Some(*below + (next - *below) * at.fract())
}

/// Median absolute deviation, scaled to a normal's standard deviation.
#[must_use]
pub fn deviation(values: &[f64], median: f64) -> Option<f64> {
    let away: Vec<f64> = values.iter().map(|v| (v - median).abs()).collect();
    Some(1.4826 * quantile(&away, 0.5)?)
}

/// An outlier is more than this many scaled median absolute deviations from the median, and more
/// than [`OUTLIER_LEAST`] of it: Hampel's identifier, with a floor; docs/METRICS.md, "Outliers".
pub const OUTLIER_DEVIATIONS: f64 = 5.0;
/// Relative to the median, so that rounding of the log makes no step an outlier.
pub const OUTLIER_LEAST: f64 = 0.02;

/// The largest distance from `median`, in either direction, that is no outlier's; none without
/// values.
#[must_use]
pub fn outlier_limit(values: &[f64], median: f64) -> Option<f64> {
    Some((OUTLIER_DEVIATIONS * deviation(values, median)?).max(OUTLIER_LEAST * median))
}

/// Student's t: what a two-sided interval of this confidence reaches to on each side, in standard
/// errors.
fn t_quantile(freedom: f64, confidence: f64) -> Option<f64> {
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    let tail = f64::midpoint(1.0, -confidence);
    let mut t = student.inverse_cdf(tail);
    // The library's quantile is good to some digits; Newton's steps make it as good as its
    // distribution function.
    for _ in 0..4 {
        let step = (student.cdf(t) - tail) / student.pdf(t);
        t -= step.clamp(-0.5 * t.abs(), 0.5 * t.abs());
    }
    t.is_finite().then_some(-t)
}

/// Nobody measures more units of replication than this on each side to settle a difference.
pub const MOST_REPEATS: usize = 100;

/// The fewest units an arm, both of this spread, whose interval reaches no further than `distance`
/// (all of logarithms); none up to [`MOST_REPEATS`]. docs/METRICS.md, "Gate".
#[must_use]
pub fn repeats_to_tell(distance: f64, spread: f64, confidence: f64) -> Option<usize> {
    (MIN_REPEATS..=MOST_REPEATS).find(|n| {
        let half = t_quantile((2 * n - 2) as f64, confidence)
            .map(|t| t * spread * (2.0 / *n as f64).sqrt());
        half.is_some_and(|half| half <= distance)
    })
}

pub fn logs(values: &[f64]) -> Option<Vec<f64>> {
    (!values.is_empty() && values.iter().all(|v| is_positive(*v)))
        .then(|| values.iter().map(|v| v.ln()).collect())
}

/// Equal values differ by the rounding of their logarithms; that is no spread.
pub const NO_VARIANCE: f64 = 1e-28;

/// Relative to the first value, so that equal ones have exactly that mean.
#[must_use]
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let first = *values.first()?;
    let ratios: Vec<f64> = values.iter().map(|value| value / first).collect();
    Some(first * mean(&logs(&ratios)?)?.exp()).filter(|_| is_positive(first))
}

/// 95 % interval of the geometric mean, by Student's t on logarithms; none below two values or
/// where nothing varies.
#[must_use]
pub fn t_interval(values: &[f64]) -> Option<[f64; 2]> {
    let logs = logs(values)?;
    let (mean, sd) = (
        mean(&logs)?,
        sd(&logs).filter(|sd| sd.powi(2) >= NO_VARIANCE)?,
    );
    let half = t_quantile((logs.len() - 1) as f64, CONFIDENCE)? * sd / (logs.len() as f64).sqrt();
    Some([(mean - half).exp(), (mean + half).exp()])
}

/// The variance of the mean of `n` logarithms that would have this 95 % interval by Student's t: how a
/// wider interval enters where variances are added.
#[must_use]
pub fn variance_of_mean([low, high]: [f64; 2], n: usize) -> Option<f64> {
    let half = (high / low).ln() / 2.0;
    Some((half / t_quantile(n as f64 - 1.0, CONFIDENCE)?).powi(2))
}

/// Welch's t-test of the ratio of two geometric means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Welch {
    pub ratio: f64,
    /// Two-sided.
    pub p: f64,
    pub freedom: f64,
    /// The standard error of the logarithm of the ratio.
    pub standard_error: f64,
}

/// `a` ÷ `b`; none where an arm has fewer than two values or where nothing varies at all.
#[must_use]
pub fn welch(a: &[f64], b: &[f64]) -> Option<Welch> {
    welch_of_spread(a, b, [0.0; 2])
}

/// The same where the variance of an arm's logarithms is known to be at least `least`, whatever its few
/// values show.
#[must_use]
pub fn welch_of_spread(a: &[f64], b: &[f64], least: [f64; 2]) -> Option<Welch> {
    let (a, b) = (logs(a)?, logs(b)?);
    let (n_a, n_b) = (a.len() as f64, b.len() as f64);
    let v_a = sd(&a)?.powi(2).max(least[0]) / n_a;
    let v_b = sd(&b)?.powi(2).max(least[1]) / n_b;
    let variance = v_a + v_b;
    if variance < NO_VARIANCE {
        return None;
    }
    let freedom = variance.powi(2) / (v_a.powi(2) / (n_a - 1.0) + v_b.powi(2) / (n_b - 1.0));
    let difference = mean(&a)? - mean(&b)?;
    Welch::of(difference, variance, freedom)
}

impl Welch {
    /// The test of a difference of logarithms whose variance is estimated with `freedom` degrees of
    /// freedom.
    #[must_use]
    pub fn of(difference: f64, variance: f64, freedom: f64) -> Option<Self> {
        let test = Self {
            ratio: difference.exp(),
            p: 1.0,
            freedom,
            standard_error: variance.sqrt(),
        };
        let p = test.p_against(1.0)?;
        Some(Self { p, ..test })
    }

    /// Two-sided: that the ratio is `other`.
    #[must_use]
    pub fn p_against(&self, other: f64) -> Option<f64> {
        let away = (self.ratio / other).ln() / self.standard_error;
        let student = StudentsT::new(0.0, 1.0, self.freedom).ok()?;
        Some(2.0 * student.cdf(-away.abs()))
    }

    /// The same difference where more than the repeats show varies: by `variance`, which is known.
    #[must_use]
    pub fn wider(self, variance: f64) -> Option<Self> {
        let own = self.standard_error.powi(2);
        let freedom = self.freedom * ((own + variance) / own).powi(2);
        Self::of(self.ratio.ln(), own + variance, freedom.min(1e6))
    }

    /// The two-sided interval of the ratio.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> Option<[f64; 2]> {
        let half = t_quantile(self.freedom, confidence)? * self.standard_error;
        Some([self.ratio * (-half).exp(), self.ratio * half.exp()])
    }
}

/// How a ratio is tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RatioTest {
    /// The number of runs was settled before the first one.
    Welch(Welch),
    /// Runs were added, in pairs, until they told the speeds apart.
    Sequential(Sequential),
}

impl From<Welch> for RatioTest {
    fn from(test: Welch) -> Self {
        Self::Welch(test)
    }
}

impl RatioTest {
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self {
            Self::Welch(test) => test.ratio,
            Self::Sequential(test) => test.ratio(),
        }
    }

    /// Two-sided, that the ratio is `other`.
    #[must_use]
    pub fn p_against(&self, other: f64) -> Option<f64> {
        match self {
            Self::Welch(test) => test.p_against(other),
            Self::Sequential(test) => Some(test.p_against(other)),
        }
    }

    /// Two-sided, that the ratio is 1.
    #[must_use]
    pub fn p(&self) -> f64 {
        match self {
            Self::Welch(test) => test.p,
            Self::Sequential(test) => test.p(),
        }
    }

    /// The two-sided interval of the ratio.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> Option<[f64; 2]> {
        match self {
            Self::Welch(test) => test.interval(confidence),
            Self::Sequential(test) => test.interval(confidence),
        }
    }

    /// The test of the inverse ratio.
    #[must_use]
    pub fn inverse(self) -> Self {
        match self {
            Self::Welch(test) => Self::Welch(Welch {
                ratio: 1.0 / test.ratio,
                ..test
            }),
            Self::Sequential(test) => Self::Sequential(test.inverse()),
        }
    }
}

/// One comparison of a family, corrected for having looked at all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorrectedTest {
    /// Holm's.
    pub p: f64,
    pub significant: bool,
    /// The confidence at which Holm's procedure looks at this comparison, 0.95 or more.
    pub confidence: f64,
    of: RatioTest,
}

impl CorrectedTest {
    /// It excludes 1 exactly where the comparison is significant. It is computed when it is asked
    /// for: a line of many points has far more pairs than are shown, and an interval costs much more
    /// than its test.
    #[must_use]
    pub fn interval(&self) -> Option<[f64; 2]> {
        self.of.interval(self.confidence)
    }

    #[must_use]
    pub fn is_by_pairs(&self) -> bool {
        matches!(self.of, RatioTest::Sequential(_))
    }

    /// The test of the inverse ratio.
    #[must_use]
    pub fn inverse(self) -> Self {
        Self {
            of: self.of.inverse(),
            ..self
        }
    }
}

/// Holm's step-down procedure at a family-wise level of 1 − [`CONFIDENCE`], in the order of the
/// tests.
#[must_use]
pub fn verdicts<T: Copy + Into<RatioTest>>(tests: &[T]) -> Vec<CorrectedTest> {
    let tests: Vec<RatioTest> = tests.iter().map(|test| (*test).into()).collect();
    let level = 1.0 - CONFIDENCE;
    let p: Vec<f64> = tests.iter().map(RatioTest::p).collect();
    let adjusted = holm(&p);
    let significant = adjusted.iter().filter(|p| **p < level).count();
    // The k-th smallest p-value is held against level ÷ (m − k); all that are not below it, where
    // it stops.
    let mut order: Vec<usize> = (0..tests.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut ranks = vec![0; tests.len()];
    for (rank, &i) in order.iter().enumerate() {
        ranks[i] = rank.min(significant);
    }
    let verdict = |((test, p), rank): ((&RatioTest, f64), usize)| {
        let confidence = 1.0 - level / (tests.len() - rank) as f64;
        CorrectedTest {
            p,
            significant: p < level,
            confidence,
            of: *test,
        }
    };
    tests.iter().zip(adjusted).zip(ranks).map(verdict).collect()
}

/// Holm's correction: the p-values, each adjusted for having looked at all of them.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let (mut adjusted, mut highest) = (vec![0.0; p.len()], 0.0f64);
    for (rank, &i) in order.iter().enumerate() {
        highest = highest.max(p[i] * (p.len() - rank) as f64).min(1.0);
        adjusted[i] = highest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1e-3)
    }

    #[test]
    fn a_variance_and_its_interval_are_one_statement() {
        let values = [1.0, 1.1, 1.3, 0.9, 1.05];
        let logs = logs(&values).unwrap();
        let variance = sd(&logs).unwrap().powi(2) / 5.0;
        let found = variance_of_mean(t_interval(&values).unwrap(), 5).unwrap();
        assert!(close(found, variance), "{found} {variance}");
    }

    #[test]
    fn repeats_that_would_tell_are_those_whose_interval_is_narrow_enough() {
        // 1 % from run to run: with 4 repeats an arm, 2.4469 × 1 % × √(2 ÷ 4) = 1.73 %; with 3,
        // 2.7764 × 1 % × √(2 ÷ 3) = 2.27 %.
        assert_eq!(repeats_to_tell(0.0228, 0.01, CONFIDENCE), Some(3));
        assert_eq!(repeats_to_tell(0.0174, 0.01, CONFIDENCE), Some(4));
        assert_eq!(repeats_to_tell(0.0172, 0.01, CONFIDENCE), Some(5));
        assert_eq!(repeats_to_tell(0.0001, 0.01, CONFIDENCE), None);
        assert!(repeats_to_tell(0.0174, 0.01, 0.99) > Some(4));
    }

    #[test]
    fn an_outlier_is_far_by_the_spread_and_by_the_median() {
        // Deviations from 10 are 0, 0, 0.1, 0.1 and 0.2, the median one of them 0.1.
        let limit = outlier_limit(&[9.9, 10.0, 10.1, 10.0, 9.8], 10.0).unwrap();
        assert!(close(limit, 0.7413), "{limit}");
        assert!(close(outlier_limit(&[10.0; 5], 10.0).unwrap(), 0.2));
        assert_eq!(outlier_limit(&[], 10.0), None);
    }

    #[test]
    fn values_that_are_the_same_have_no_deviation() {
        for value in [0.1, 1e-7 / 3.0, 123.456] {
            assert_eq!(sd(&vec![value; 49]), Some(0.0), "{value}");
        }
        assert!(close(
            sd(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap(),
            2.138_09
        ));
        assert_eq!(sd(&[1.0]), None);
    }

    #[test]
    fn t_quantiles_are_those_of_the_tables() {
        for (freedom, t) in [
            (1.0, 12.706_205),
            (2.0, 4.302_653),
            (4.0, 2.776_445),
            (9.0, 2.262_157),
            (1000.0, 1.962_339),
        ] {
            assert!(close(t_quantile(freedom, 0.95).unwrap(), t), "{freedom}");
        }
    }

    #[test]
    fn an_interval_worked_by_hand() {
        // Logarithms 1, 2, 3: mean 2, sd 1, half-width 4.302653 / √3.
        let values = [1.0f64.exp(), 2.0f64.exp(), 3.0f64.exp()];
        let [low, high] = t_interval(&values).unwrap();
        assert!(close(low.ln(), 2.0 - 2.484_138) && close(high.ln(), 2.0 + 2.484_138));
        assert!(close(geometric_mean(&values).unwrap(), 2.0f64.exp()));
        assert_eq!(
            (
                t_interval(&values[..1]),
                t_interval(&[1.0, 0.0]),
                geometric_mean(&[])
            ),
            (None, None, None)
        );
    }

    #[test]
    fn welch_worked_by_hand() {
        // Logarithms 1, 2, 3 and 2, 4, 6, 8: variances 1/3 and 20/3/4, t = −3/√2 = −2.1213,
        // freedom 4 / (1/18 + 25/27) = 4.07547.
        let e = |values: &[f64]| values.iter().map(|v| v.exp()).collect::<Vec<_>>();
        let welch = welch(&e(&[1.0, 2.0, 3.0]), &e(&[2.0, 4.0, 6.0, 8.0])).unwrap();
        assert!(
            close(welch.ratio.ln(), -3.0) && close(welch.freedom, 4.075_471_7),
            "{welch:?}"
        );
        assert!((welch.p - 0.099_913).abs() < 1e-6, "{welch:?}");
        assert!(
            (welch.interval(0.95).unwrap()[1].ln() + 3.0 - 3.897_975).abs() < 1e-5,
            "{welch:?}"
        );
    }

    #[test]
    fn no_spread_is_no_evidence() {
        assert_eq!(welch(&[100.0, 100.0, 100.0], &[99.0, 99.0]), None);
        assert_eq!(welch(&[100.0], &[99.0, 98.0]), None);
    }

    #[test]
    fn holm_worked_by_hand() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        assert!(
            adjusted
                .iter()
                .zip([0.03, 0.06, 0.06, 0.02])
                .all(|(a, b)| close(*a, b)),
            "{adjusted:?}"
        );
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn holms_steps_set_the_confidence_of_each_interval() {
        let test = |p| Welch {
            ratio: 1.1,
            p,
            freedom: 8.0,
            standard_error: 0.1,
        };
        // 0.01 < 0.05 / 3; 0.03 is not below 0.05 / 2, where it stops: 0.04 is held against the
        // same.
        let found = verdicts(&[test(0.04), test(0.01), test(0.03)]);
        let expected = [0.975, 1.0 - 0.05 / 3.0, 0.975];
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(v, c)| close(v.confidence, c)),
            "{found:?}"
        );
        assert_eq!(
            found.iter().map(|v| v.significant).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert!(
            close(verdicts(&[test(0.2)])[0].confidence, 0.95) && verdicts::<Welch>(&[]).is_empty()
        );
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
        assert!(close(quantile(&[1.0, 2.0, 3.0, 4.0], 0.95).unwrap(), 3.85));
        assert_eq!(quantile(&[], 0.5), None);
    }

    proptest! {
        #[test]
        fn welch_is_symmetric_and_free_of_units(a in proptest::collection::vec(1.0f64..2.0, 2..8), b in proptest::collection::vec(1.0f64..2.0, 2..8), unit in 1e-6f64..1e6) {
            let scale = |values: &[f64]| values.iter().map(|v| v * unit).collect::<Vec<_>>();
            if let (Some(ab), Some(ba), Some(scaled)) = (welch(&a, &b), welch(&b, &a), welch(&scale(&a), &scale(&b))) {
                let [low, high] = ab.interval(0.95).unwrap();
                prop_assert!(close(ab.ratio * ba.ratio, 1.0) && close(ab.p, ba.p) && close(low * ba.interval(0.95).unwrap()[1], 1.0));
                prop_assert!((ab.ratio - scaled.ratio).abs() < 1e-6 && low <= ab.ratio && ab.ratio <= high);
            }
        }

        #[test]
        fn an_interval_without_1_and_significance_are_the_same_statement(
            arms in proptest::collection::vec(proptest::collection::vec(0.95f64..1.05, 3..6), 2..9),
            effects in proptest::collection::vec(0.9f64..1.1, 9),
        ) {
            let arms: Vec<Vec<f64>> = arms.iter().zip(effects).map(|(a, e)| a.iter().map(|v| v * e).collect()).collect();
            let tests: Vec<Welch> = arms[1..].iter().filter_map(|a| welch(a, &arms[0])).collect();
            for verdict in verdicts(&tests) {
                let [low, high] = verdict.interval().unwrap();
                prop_assert_eq!(verdict.significant, low > 1.0 || high < 1.0);
                prop_assert!(verdict.confidence >= 0.95 - 1e-12);
            }
        }
    }
}
