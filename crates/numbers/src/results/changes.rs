//! Where a series of step times changes its level: slow first steps, a slow start, a shift for
//! good.
//!
//! Change points by CUSUM and binary segmentation, with a long-run variance that autocorrelation
//! and lone outliers do not deceive. Sources, a worked example and error rates: docs/METRICS.md,
//! "Steady state".

use super::{deviation, quantile};

/// Name of the method, as summaries say it.
pub const CUSUM: &str = "CUSUM";

/// Largest value of |bridge| ÷ (σ √n) that chance alone explains. With σ known, 2·exp(−2·2.2²) =
/// 0.01 % of stationary series would exceed it. σ is estimated after the split was chosen, which
/// makes it too small: the error rates are simulated in `tests/suite/statistics`.
const CRITICAL: f64 = 2.2;
/// Entries on each side of a change.
const LEAST_SEGMENT: usize = 5;
/// Two levels that differ by less count as one: a change that small cannot move a mean by half of
/// it.
const LEAST_CHANGE: f64 = 0.005;
/// A bound, so that no series takes more than a few passes over it.
const MOST_PASSES: usize = 16;
const MOST_CHANGES: usize = 64;
/// Outliers count as this many deviations from the median.
const CLIP: f64 = 4.0;
/// A leading step is slow if it is more than LEAD × (p95 − median) above the median; both are of
/// the later half.
const LEAD: f64 = 3.0;
/// Relative to that median, so that rounding of the log makes no step slow.
const LEAST_LEAD: f64 = 0.02;

/// Indices into the series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Entries before this one are warm-up.
    pub cut: usize,
    /// First entries of the levels that follow, ascending.
    pub shifts: Vec<usize>,
}

/// Finds the warm-up, of at most `at_most` entries, and the shifts of level after it. O(n log n).
///
/// The times are finite and positive. The warm-up ends at the last change point where the median
/// level differs before and after.
#[must_use]
pub fn changes(times: &[f64], at_most: usize) -> Changes {
    let mut found = Changes::default();
    // Each pass judges the rest by its own spread, which a slow start does not widen any more.
    for _ in 0..MOST_PASSES {
        let rest = &times[found.cut..];
        let room = at_most - found.cut;
        let slow = slow_first(rest, room);
        let rest = &rest[slow..];
        let shifts = segments(rest);
        let mut warm = 0;
        for &end in shifts.iter().take_while(|end| slow + **end <= room) {
            if !differ(&rest[warm..end], &rest[end..]) {
                break;
            }
            warm = end;
        }
        found.cut += slow + warm;
        found.shifts = shifts
            .into_iter()
            .filter(|at| *at > warm)
            .map(|at| found.cut + at - warm)
            .collect();
        if slow + warm == 0 {
            break;
        }
    }
    found
}

/// How many of the first entries are slow beside what the later half of the series has.
fn slow_first(times: &[f64], at_most: usize) -> usize {
    let later = &times[times.len() / 2..];
    let (Some(median), Some(p95)) = (quantile(later, 0.5), quantile(later, 0.95)) else {
        return 0;
    };
    let limit = median + (LEAD * (p95 - median)).max(LEAST_LEAD * median);
    times
        .iter()
        .take(at_most.min(times.len() / 2))
        .take_while(|time| **time > limit)
        .count()
}

fn differ(a: &[f64], b: &[f64]) -> bool {
    quantile(a, 0.5)
        .zip(quantile(b, 0.5))
        .is_some_and(|(a, b)| (a / b - 1.0).abs() >= LEAST_CHANGE)
}

/// First entries of all levels but the first, by binary segmentation.
fn segments(times: &[f64]) -> Vec<usize> {
    let mut ends = Vec::new();
    // Depth first, left before right, without recursion: a segment's halves are pushed in reverse.
    let mut open = vec![(0, times.len())];
    while let Some((from, to)) = open.pop().filter(|_| ends.len() < MOST_CHANGES) {
        if let Some(at) = change(&times[from..to]).map(|at| from + at) {
            ends.push(at);
            open.extend([(at, to), (from, at)]);
        }
    }
    ends.sort_unstable();
    ends
}

/// Scaled median absolute deviation. If more than half of the values are equal, the mean of the
/// deviations replaces it.
fn spread(values: &[f64], median: f64) -> Option<f64> {
    let mean = || {
        super::mean(
            &values
                .iter()
                .map(|v| (v - median).abs())
                .collect::<Vec<_>>(),
        )
    };
    deviation(values, median)
        .filter(|d| *d > 0.0)
        .or_else(mean)
        .filter(|d| *d > 0.0)
}

/// Where the level of a series changes, if chance does not explain the change.
///
/// The split is where the cumulative sum of the series leaves the straight line the most. The noise
/// that it is held against is that of the residuals about the medians of the two sides: the noise
/// of the undivided series would hold the change itself, and the larger the change, the less it
/// would be seen.
fn change(times: &[f64]) -> Option<usize> {
    let median = quantile(times, 0.5)?;
    // Nothing varies: no change.
    let scale = spread(times, median)?;
    let series: Vec<f64> = times
        .iter()
        .map(|t| ((t - median) / scale).clamp(-CLIP, CLIP))
        .collect();
    let (at, _) = largest_sum(&series)?;
    let (before, after) = times.split_at(at);
    if !differ(before, after) {
        return None;
    }
    let levels = [quantile(before, 0.5)?, quantile(after, 0.5)?];
    let level = |i: usize| levels[usize::from(i >= at)];
    let residuals: Vec<f64> = times
        .iter()
        .enumerate()
        .map(|(i, t)| t - level(i))
        .collect();
    // Both sides are constant, and differ.
    let Some(scale) = spread(&residuals, 0.0) else {
        return Some(at);
    };
    // Relative to the spread, so that no square over- or underflows.
    let residuals: Vec<f64> = residuals
        .iter()
        .map(|r| (r / scale).clamp(-CLIP, CLIP))
        .collect();
    let series: Vec<f64> = residuals
        .iter()
        .enumerate()
        .map(|(i, r)| (level(i) - median) / scale + r)
        .collect();
    let mean = super::mean(&series)?;
    let sum = series[..at].iter().map(|value| value - mean).sum::<f64>();
    is_change(sum, long_run_variance(&residuals).sqrt(), times.len()).then_some(at)
}

/// Where |Σ (xᵢ − x̄)| is largest, far enough from both ends, and how large it is there.
fn largest_sum(series: &[f64]) -> Option<(usize, f64)> {
    let mean = super::mean(series)?;
    let mut sum = 0.0;
    let mut largest: Option<(usize, f64)> = None;
    for (i, value) in series.iter().enumerate() {
        sum += value - mean;
        let is_inside =
            (LEAST_SEGMENT..=series.len().saturating_sub(LEAST_SEGMENT)).contains(&(i + 1));
        if is_inside && sum.abs() > largest.map_or(0.0, |(_, most)| most) {
            largest = Some((i + 1, sum.abs()));
        }
    }
    largest
}

fn is_change(sum: f64, sigma: f64, n: usize) -> bool {
    // The fewer values, the more the choice of the split takes out of the spread.
    let critical = CRITICAL * (1.0 + 4.0 / n as f64);
    sum.abs() > critical * sigma * (n as f64).sqrt()
}

/// Variance of √n × the mean of a series of AR(1) noise, from its differences: the larger of what
/// single entries and means of three say.
fn long_run_variance(series: &[f64]) -> f64 {
    const BLOCK: usize = 3;
    const FEWEST_BLOCKS: usize = 8;
    let n = series.len() as f64;
    // An estimate of φ is low by (1 + 3φ) ÷ n.
    let single = autoregressive(series, |phi| (phi + (1.0 + 3.0 * phi) / n).min(0.9));
    let blocks: Vec<f64> = series
        .chunks_exact(BLOCK)
        .map(|c| c.iter().sum::<f64>() / BLOCK as f64)
        .collect();
    let of_blocks = if blocks.len() < FEWEST_BLOCKS {
        0.0
    } else {
        autoregressive(&blocks, |phi| phi.min(0.6))
    };
    single.max(BLOCK as f64 * of_blocks)
}

/// δ₁ (1 + φ) ÷ (1 − φ)² with δₕ half the mean square of differences over h entries and φ = δ₂ ÷ δ₁
/// − 1.
fn autoregressive(series: &[f64], adjusted: impl Fn(f64) -> f64) -> f64 {
    let half_square = |h: usize| {
        let pairs = series.len().saturating_sub(h).max(1) as f64;
        series
            .iter()
            .zip(series.iter().skip(h))
            .map(|(a, b)| (a - b).powi(2))
            .sum::<f64>()
            / (2.0 * pairs)
    };
    let (one, two) = (half_square(1), half_square(2));
    if one <= 0.0 {
        return 0.0;
    }
    let phi = adjusted((two / one - 1.0).max(0.0));
    one * (1.0 + phi) / (1.0 - phi).powi(2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Not quite regular, and the same every time.
    fn noisy(level: f64, count: usize) -> Vec<f64> {
        (0..count)
            .map(|i| level * (1.0 + 0.004 * ((i * 7) % 5) as f64))
            .collect()
    }

    fn found(times: &[f64]) -> (usize, Vec<usize>) {
        let Changes { cut, shifts } = changes(times, times.len() / 2);
        (cut, shifts)
    }

    #[test]
    fn the_worked_example_of_the_documents() {
        // Differences of 2, −2, 2, …: δ₁ = 2, δ₂ = 0, so φ = 0, adjusted by 1/20 to 0.05.
        let plain: Vec<f64> = (0..20)
            .map(|i| if i % 2 == 0 { 1.0 } else { -1.0 })
            .collect();
        let expected = 2.0 * 1.05 / (0.95 * 0.95);
        assert!(
            (autoregressive(&plain, |phi| phi + (1.0 + 3.0 * phi) / 20.0) - expected).abs() < 1e-12
        );
        // Five of 3, then fifteen of −1: the mean is 0, and the sum reaches 15 after the fifth.
        let series: Vec<f64> = (0..20).map(|i| if i < 5 { 3.0 } else { -1.0 }).collect();
        assert_eq!(largest_sum(&series), Some((5, 15.0)));
        let limit = 15.0 / (2.2 * 1.2 * 20.0f64.sqrt());
        assert_eq!(
            [0.999, 1.001].map(|of| is_change(15.0, limit * of, 20)),
            [true, false]
        );
        assert!((limit - 1.2705).abs() < 1e-4, "{limit}");
        // Nothing varies on either side.
        let two: Vec<f64> = (0..20).map(|i| if i < 5 { 6.0 } else { 3.0 }).collect();
        assert_eq!(change(&two), Some(5));
    }

    #[test]
    fn a_steady_series_is_left_alone() {
        for n in [0, 1, 2, 9, 20, 200] {
            assert_eq!(found(&noisy(2.0, n)), (0, vec![]), "{n}");
        }
        assert_eq!(found(&[3.0; 50]), (0, vec![]));
        let mut outlier = noisy(2.0, 100);
        outlier[70] = 60.0;
        assert_eq!(found(&outlier), (0, vec![]));
        let stalls: Vec<f64> = (0..100)
            .map(|i| {
                if i % 10 == 0 {
                    3.0
                } else {
                    2.0 + 0.01 * f64::from(i % 3)
                }
            })
            .collect();
        assert_eq!(
            found(&stalls),
            (0, vec![]),
            "the first of many stalls is one of them"
        );
    }

    #[test]
    fn a_slow_start_is_cut_where_it_ends() {
        assert_eq!(
            found(&[vec![30.0, 17.0, 16.0, 12.0], noisy(3.0, 40)].concat()),
            (4, vec![])
        );
        let (cut, shifts) = found(&[noisy(2.1, 30), noisy(2.0, 90)].concat());
        assert!(
            (28..=32).contains(&cut) && shifts.is_empty(),
            "{cut} {shifts:?}"
        );
        let (fast, _) = found(&[noisy(1.9, 30), noisy(2.0, 90)].concat());
        assert!(
            (28..=32).contains(&fast),
            "{fast}: clocks that fall after a while are warm-up too"
        );
        let decay: Vec<f64> = noisy(2.0, 300)
            .iter()
            .enumerate()
            .map(|(i, t)| t * (1.0 + 0.2 * (-(i as f64) / 20.0).exp()))
            .collect();
        let cut = found(&decay).0;
        assert!((50..150).contains(&cut), "{cut}");
    }

    #[test]
    fn what_comes_after_the_middle_is_a_shift_and_no_warm_up() {
        let run = [noisy(2.52, 90), noisy(2.36, 60)].concat();
        let (cut, shifts) = found(&run);
        assert!(
            cut == 0 && matches!(shifts[..], [at] if (88..=92).contains(&at)),
            "{cut} {shifts:?}"
        );
        // A slow patch is neither: what is before it is as what is after it.
        let patch = [noisy(2.0, 60), noisy(2.4, 12), noisy(2.0, 128)].concat();
        assert_eq!(found(&patch).0, 0);
    }

    /// The larger a change, the surer it is found, also in the shortest runs that people make.
    #[test]
    fn a_large_change_is_found_in_a_short_run() {
        for (count, at) in [(45, 26), (45, 34), (35, 21), (45, 22), (20, 13)] {
            for factor in [1.05, 1.2, 1.5, 2.0, 10.0] {
                let run = [noisy(2.0, at), noisy(2.0 * factor, count - at)].concat();
                let (cut, shifts) = found(&run);
                let is_there = shifts
                    .iter()
                    .chain([&cut])
                    .any(|place| place.abs_diff(at) <= 2);
                assert!(is_there, "{factor} after {at} of {count}: {cut} {shifts:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn at_most_what_is_allowed_is_cut_in_any_unit(
            times in proptest::collection::vec(prop_oneof![1e-3f64..10.0, Just(1.0), Just(1e9), Just(1e-9)], 0..200),
            part in 0.0f64..0.5,
            exponent in -300i32..200,
        ) {
            let at_most = (part * times.len() as f64) as usize;
            let found = changes(&times, at_most);
            prop_assert!(found.cut <= at_most);
            prop_assert!(found.shifts.iter().all(|at| (found.cut + 1..times.len()).contains(at)) && found.shifts.is_sorted());
            // A power of two changes no digit.
            let unit = 2.0f64.powi(exponent);
            prop_assert_eq!(changes(&times.iter().map(|t| t * unit).collect::<Vec<_>>(), at_most), found);
        }
    }
}
