//! Every pair of cells that a comparison judges, tested once and corrected together (Holm). The
//! ratios of the table and the sentences on sweeps both read their verdicts here, so what one says of
//! two cells the other says as well.

use std::collections::{BTreeSet, HashMap};

use tprimat_results::{CONFIDENCE, Welch, holm, welch};

use super::{
    Comparison, RatioInterval, Row, Speedup, family::Family, summary::attempts, sweep::Unjudged,
    sweep::unjudged,
};

/// The verdicts of a comparison by pairs of rows.
pub struct Judged {
    /// The rows by their cells.
    rows: HashMap<String, usize>,
    /// For each row the first one that counts the same runs.
    runs: Vec<usize>,
    /// By pairs of those, the smaller first; each with the one whose rate is the numerator.
    tests: HashMap<(usize, usize), (usize, Test)>,
    /// Ratios whose runs an earlier one has under another name: their places in the comparison, and
    /// those of the earlier ones.
    same: Vec<(usize, usize)>,
}

#[derive(Clone, Copy)]
pub(super) struct Test {
    /// Holm's.
    pub p: f64,
    pub significant: bool,
    of: Welch,
    /// That at which Holm's procedure looks at this test.
    confidence: f64,
}

impl Judged {
    #[must_use]
    pub fn of_comparison(comparison: &Comparison) -> Self {
        Self::of(comparison, &unjudged(comparison))
    }

    /// Do the runs tell the speeds of two cells apart? None where these two are not judged.
    #[must_use]
    pub fn are_apart(&self, a: &str, b: &str) -> Option<bool> {
        let rows = [*self.rows.get(a)?, *self.rows.get(b)?];
        Some(self.test(rows)?.significant)
    }

    /// The ratios of the table that may be judged, and what the sweeps say something of.
    pub(super) fn of(comparison: &Comparison, sweeps: &[Unjudged]) -> Self {
        let rows = &comparison.rows;
        let mut known = HashMap::new();
        let runs: Vec<usize> = (0..rows.len())
            .map(|at| runs(&rows[at]).map_or(at, |runs| *known.entry(runs).or_insert(at)))
            .collect();
        let by_cell: HashMap<String, usize> = rows
            .iter()
            .enumerate()
            .map(|(at, row)| (row.cell.clone(), at))
            .collect();
        let of_ratio = |(place, ratio): (usize, &Speedup)| {
            let [a, b] = [&ratio.a, &ratio.b].map(|cell| by_cell.get(cell).copied());
            Some((place, a?, b?))
        };
        let ratios = comparison.speedups.iter().enumerate();
        let ratios = ratios.filter(|(_, ratio)| ratio.reason.is_none());
        let of_sweeps = sweeps.iter().flat_map(Unjudged::pairs);
        let after = comparison.speedups.len();
        let pairs = ratios
            .filter_map(of_ratio)
            .chain(of_sweeps.map(|(a, b)| (after, a, b)));
        let counted: Vec<BTreeSet<&str>> = rows.iter().map(|row| attempts(&row.repeats)).collect();
        let mut family: Family<([usize; 2], Welch), (usize, usize)> = Family::default();
        for (place, a, b) in pairs {
            let pair = [a, b].map(|at| runs[at]);
            // Measurements are not compared with themselves.
            if pair[0] == pair[1] || !counted[a].is_disjoint(&counted[b]) {
                continue;
            }
            let [a, b] = pair.map(|at| &rows[at].tokens_per_second_per_gpu.units);
            if let Some(test) = welch(a, b) {
                family.add(place, (pair, test), Some(unordered(pair)));
            }
        }
        let tests: Vec<Welch> = family.tests.iter().map(|(_, (_, test))| *test).collect();
        let pairs = family.tests.iter().map(|(_, (pair, _))| *pair);
        let tests = pairs.zip(corrected(&tests));
        let tests = tests.map(|(pair, test)| (unordered(pair), (pair[0], test)));
        let tests = tests.collect();
        let is_ratio = |(place, _): &(usize, usize)| *place < after;
        let same = family.repeated.into_iter().filter(is_ratio).collect();
        Self {
            rows: by_cell,
            runs,
            tests,
            same,
        }
    }

    /// How many there are, each pair of cells once.
    pub(super) fn tests(&self) -> usize {
        self.tests.len()
    }

    /// The test of the ratio of the first row to the second; none where it was not made.
    pub(super) fn test(&self, rows: [usize; 2]) -> Option<Test> {
        let pair = rows.map(|at| self.runs[at]);
        let (numerator, test) = *self.tests.get(&unordered(pair))?;
        Some(if numerator == pair[0] {
            test
        } else {
            test.inverse()
        })
    }

    /// Gives the ratios of the comparison their verdicts.
    pub(super) fn into_ratios(self, comparison: &mut Comparison) {
        let ratios = comparison.speedups.iter_mut();
        for ratio in ratios.filter(|ratio| ratio.reason.is_none()) {
            let found = self.rows.get(&ratio.a).zip(self.rows.get(&ratio.b));
            if let Some(test) = found.and_then(|(a, b)| self.test([*a, *b])) {
                ratio.p_value = Some(test.p);
                ratio.significant = Some(test.significant);
                ratio.interval = test.interval();
            }
        }
        for (place, of) in self.same {
            comparison.speedups[place].same_as = Some(comparison.speedups[of].a.clone());
        }
    }
}

/// What `tprimat_results::verdicts` says, without the intervals: a line of many points has far more
/// pairs than are shown, and an interval costs much more than its test.
fn corrected(tests: &[Welch]) -> Vec<Test> {
    let level = 1.0 - CONFIDENCE;
    let p_values: Vec<f64> = tests.iter().map(|test| test.p).collect();
    let adjusted = holm(&p_values);
    let significant = adjusted.iter().filter(|p| **p < level).count();
    let mut order: Vec<usize> = (0..tests.len()).collect();
    order.sort_by(|&i, &j| p_values[i].total_cmp(&p_values[j]));
    let mut ranks = vec![0; tests.len()];
    for (rank, &i) in order.iter().enumerate() {
        ranks[i] = rank.min(significant);
    }
    let all = tests.iter().zip(adjusted).zip(ranks);
    let test = |((of, p), rank): ((&Welch, f64), usize)| Test {
        p,
        significant: p < level,
        of: *of,
        confidence: 1.0 - level / (tests.len() - rank) as f64,
    };
    all.map(test).collect()
}

impl Test {
    /// None where an end is too far off to be a number.
    pub(super) fn interval(&self) -> Option<RatioInterval> {
        let [low, high] = self.of.interval(self.confidence)?;
        (low.is_finite() && high.is_finite()).then_some(RatioInterval {
            low,
            high,
            confidence: self.confidence,
        })
    }

    fn inverse(self) -> Self {
        let of = Welch {
            ratio: 1.0 / self.of.ratio,
            ..self.of
        };
        Self { of, ..self }
    }
}

fn unordered([a, b]: [usize; 2]) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// The counted attempts of a row and the bits of its units. Two rows with equal values ask one
/// question under two names, which must not count twice in the correction.
fn runs(row: &Row) -> Option<(BTreeSet<&str>, Vec<u64>)> {
    let attempts = attempts(&row.repeats);
    let units = row.tokens_per_second_per_gpu.units.iter();
    let units = units.map(|unit| unit.to_bits()).collect();
    (!attempts.is_empty()).then_some((attempts, units))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tprimat_results::verdicts;

    use super::*;

    proptest! {
        #[test]
        fn tests_are_corrected_as_everywhere(
            arms in proptest::collection::vec(proptest::collection::vec(0.95f64..1.05, 3..6), 2..9),
        ) {
            let tests: Vec<Welch> = arms[1..].iter().filter_map(|a| welch(a, &arms[0])).collect();
            for (own, other) in corrected(&tests).iter().zip(verdicts(&tests)) {
                prop_assert_eq!((own.p, own.significant), (other.p, other.significant));
                let found = own.interval().map(|i| ([i.low, i.high], i.confidence));
                prop_assert_eq!(found, other.interval.map(|ends| (ends, other.confidence)));
            }
        }
    }
}
