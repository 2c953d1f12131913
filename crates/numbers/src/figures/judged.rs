//! Every pair of cells that a comparison judges, tested once and corrected together (Holm). The
//! ratios of the table and the sentences on sweeps both read their verdicts here, so what one says of
//! two cells the other says as well.

use std::collections::{BTreeSet, HashMap};

use crate::results::{
    CONFIDENCE, CorrectedTest, MIN_REPEATS, RatioTest, Reason, verdicts, welch, welch_of_spread,
};

use super::{
    Comparison, RatioInterval, RepeatSummary, Row, Speedup, Steady, Unit,
    codes::{FEW_UNITS, OTHER_WARM_UP, UNIT_ASKED},
    comparability::measure_alike,
    family::Family,
    interval::{LEVEL_SD, apart},
    otherwise::level_decides,
    pairs,
    same_run::shared_runs,
    summary::attempts,
    sweep::Unjudged,
    sweep::unjudged,
    unstated::work_not_known,
};

/// The verdicts of a comparison by pairs of rows.
pub struct Judged {
    /// Maps each cell to its row.
    rows: HashMap<String, usize>,
    /// Names for each row the first row that counts the same runs.
    runs: Vec<usize>,
    /// Holds the tests by pairs of such first rows, the smaller one first. Each comes with the row
    /// whose rate is the numerator.
    tests: HashMap<(usize, usize), (usize, CorrectedTest)>,
    /// Lists the ratios whose runs an earlier ratio has under another name: the place of each in the
    /// comparison, and that of the earlier one.
    same: Vec<(usize, usize)>,
    /// Holds for each row the least variance that its sweep shows its logarithms to have.
    least: Vec<f64>,
}

/// The test of the ratio of the first row to the second, over these units. `least`: the least variance
/// of their logarithms. The levels of arms that were not measured in turns vary besides; where their
/// units are sessions or hosts, the units show it. Where runs were added until a decision, the test is that
/// of pairs, over the rates that `rate` gives for their runs.
pub(super) fn tested(
    rows: [&Row; 2],
    units: [&[f64]; 2],
    rate: impl Fn(&RepeatSummary, &Steady) -> f64,
    least: [f64; 2],
) -> Option<RatioTest> {
    if pairs::is_by_pairs(rows) {
        return pairs::tested(rows, rate).map(RatioTest::Sequential);
    }
    let test = welch_of_spread(units[0], units[1], least)?;
    let in_one_piece = rows
        .iter()
        .filter(|row| row.tokens_per_second_per_gpu.unit == Unit::Repeat);
    let moving = in_one_piece.count() as f64 * LEVEL_SD.powi(2);
    match apart(&rows[0].repeats, &rows[1].repeats) {
        Some(_) if moving > 0.0 => test.wider(moving).map(RatioTest::Welch),
        _ => Some(RatioTest::Welch(test)),
    }
}

/// The same over the units that the rates are made of.
pub(super) fn tested_as_it_is(rows: [&Row; 2], least: [f64; 2]) -> Option<RatioTest> {
    tested(
        rows,
        rows.map(|row| &*row.tokens_per_second_per_gpu.units),
        |_, steady| steady.tokens_per_second_per_gpu,
        least,
    )
}

impl Judged {
    #[must_use]
    pub fn of_comparison(comparison: &Comparison) -> Self {
        Self::of(comparison, &unjudged(comparison))
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
        let mut least = vec![0.0; rows.len()];
        for (row, variance) in sweeps
            .iter()
            .flat_map(|one| one.least_variances(comparison))
        {
            least[row] = variance;
        }
        let counted: Vec<BTreeSet<&str>> = rows.iter().map(|row| attempts(&row.repeats)).collect();
        let mut family: Family<([usize; 2], RatioTest), (usize, usize)> = Family::default();
        for (place, a, b) in pairs {
            let pair = [a, b].map(|at| runs[at]);
            // Measurements are not compared with themselves.
            if pair[0] == pair[1] || !counted[a].is_disjoint(&counted[b]) {
                continue;
            }
            if let Some(test) = tested_as_it_is(pair.map(|at| &rows[at]), pair.map(|at| least[at]))
            {
                family.add(place, (pair, test), Some(unordered(pair)));
            }
        }
        let tests: Vec<RatioTest> = family.tests.iter().map(|(_, (_, test))| *test).collect();
        let pairs = family.tests.iter().map(|(_, (pair, _))| *pair);
        let tests = pairs.zip(verdicts(&tests));
        let tests = tests.map(|(pair, test)| (unordered(pair), (pair[0], test)));
        let tests = tests.collect();
        let is_ratio = |(place, _): &(usize, usize)| *place < after;
        let same = family.repeated.into_iter().filter(is_ratio).collect();
        Self {
            rows: by_cell,
            runs,
            tests,
            same,
            least,
        }
    }

    /// How many there are, each pair of cells once.
    pub(super) fn tests(&self) -> usize {
        self.tests.len()
    }

    /// How many of them are tested by pairs of runs that were added until a decision.
    pub(super) fn by_pairs(&self) -> usize {
        let tests = self.tests.values();
        tests.filter(|(_, test)| test.is_by_pairs()).count()
    }

    /// The test of the ratio of the first row to the second; none where it was not made.
    pub(super) fn test(&self, rows: [usize; 2]) -> Option<CorrectedTest> {
        let pair = rows.map(|at| self.runs[at]);
        let (numerator, test) = *self.tests.get(&unordered(pair))?;
        Some(if numerator == pair[0] {
            test
        } else {
            test.inverse()
        })
    }

    /// The least variance of the logarithms of each of two rows.
    pub(super) fn least(&self, rows: [usize; 2]) -> [f64; 2] {
        rows.map(|row| self.least[self.runs[row]])
    }

    /// The least variances for two cells.
    pub(super) fn least_of(&self, cells: [&str; 2]) -> [f64; 2] {
        cells.map(|cell| {
            self.rows
                .get(cell)
                .map_or(0.0, |row| self.least[self.runs[*row]])
        })
    }

    /// Gives the ratios of the comparison their verdicts.
    pub(super) fn give_verdicts(&self, comparison: &mut Comparison) {
        let ratios = comparison.speedups.iter_mut();
        for ratio in ratios.filter(|ratio| ratio.reason.is_none()) {
            let found = self.rows.get(&ratio.a).zip(self.rows.get(&ratio.b));
            if let Some(test) = found.and_then(|(a, b)| self.test([*a, *b])) {
                ratio.p_value = Some(test.p);
                ratio.significant = Some(test.significant);
                ratio.interval = RatioInterval::of_test(&test);
            }
        }
        for (place, of) in &self.same {
            comparison.speedups[*place].same_as = Some(comparison.speedups[*of].a.clone());
        }
    }
}

/// Why the difference of two cells is not assessed; the same answer whichever of them comes first.
/// `crosses_warmup`: it was asked for to compare them although their warm-up differs.
pub(super) fn no_verdict(rows: [&Row; 2], crosses_warmup: bool) -> Option<Reason> {
    if let Some(shared) = shared(rows) {
        return Some(shared);
    }
    // What was edited between them may be the whole difference.
    let earlier = rows.map(|row| row.standing.earlier.as_ref());
    if earlier[0] != earlier[1] {
        let earlier = earlier.into_iter().flatten().next().cloned();
        return earlier.map(|earlier| {
            let text = format!("they have different configurations: one was {earlier}");
            Reason::no_verdict("other_configuration", text)
        });
    }
    let [a, b] = rows;
    if let Some(why) = work_not_known(&a.contract, &b.contract) {
        return Some(why);
    }
    let [of_a, of_b] = rows.map(|row| &row.tokens_per_second_per_gpu);
    let fewer = if of_a.units.len() <= of_b.units.len() {
        of_a
    } else {
        of_b
    };
    let n = fewer.units.len();
    let by_pairs = pairs::is_by_pairs(rows);
    if let Some(why) = pairs::too_few(rows).filter(|_| by_pairs) {
        return Some(why);
    }
    if n < 2 && !by_pairs {
        let text = "one repeat gives no interval";
        return Some(Reason::no_verdict("one_repeat", text));
    }
    if !by_pairs && welch(&of_a.units, &of_b.units).is_none() {
        return Some(no_variation());
    }
    if !crosses_warmup && !measure_alike(a.warm_up(), b.warm_up()) {
        let text = "they drop different warm-up steps";
        return Some(Reason::no_verdict(OTHER_WARM_UP, text));
    }
    let asks = rows
        .into_iter()
        .any(|row| row.asks_for_its_unit().is_some());
    if asks && !(1.0 / OTHER_UNIT..OTHER_UNIT).contains(&(of_a.value / of_b.value)) {
        let text = "step times of one of them may not be in seconds";
        return Some(Reason::no_verdict(UNIT_ASKED, text));
    }
    let factors = rows.map(|row| row.timer_factor);
    if let Some(factor) = factors.into_iter().flatten().reduce(f64::max) {
        return Some(short_step_times(factor));
    }
    if n < MIN_REPEATS && !by_pairs {
        let text = format!(
            "{}, and a verdict needs {MIN_REPEATS}",
            fewer.unit.counted(n)
        );
        return Some(Reason::no_verdict(FEW_UNITS, text).with("n", n));
    }
    level_decides(rows, CONFIDENCE)
}

/// Rates this many times apart, of which one asks for its unit, get no verdict.
const OTHER_UNIT: f64 = 50.0;

pub(super) fn no_variation() -> Reason {
    let text = "the repeats do not vary, so there is no interval";
    Reason::no_verdict("no_variation", text)
}

/// The clock shows step times of one of two to be too short, by up to this factor.
pub(super) fn short_step_times(factor: f64) -> Reason {
    let text =
        format!("by the clock, step times of one of them are too short, up to {factor:.1} times");
    Reason::no_verdict("short_step_times", text).with("factor", factor)
}

/// Why two cells are not independent samples: both count the same attempts as repeats.
pub(super) fn shared([a, b]: [&Row; 2]) -> Option<Reason> {
    let [of_a, of_b] = [a, b].map(|row| attempts(&row.repeats));
    let is_imported = !a.imported.is_empty() && !b.imported.is_empty();
    let imported_twice = if is_imported {
        shared_runs(&a.repeats, &b.repeats)
    } else {
        0
    };
    match of_a.intersection(&of_b).count().max(imported_twice) {
        0 => None,
        n if n == of_a.len() && n == of_b.len() => {
            let text = "both are the same measurements";
            Some(Reason::no_verdict("same_measurements", text))
        }
        n => {
            let are = if n == 1 { "is" } else { "are" };
            let text = format!("{n} of their measurements {are} the same");
            Some(Reason::no_verdict("some_same_measurements", text).with("n", n))
        }
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
