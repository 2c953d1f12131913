//! Sweeps: cells of one model that differ in a numeric axis, so that the axis is an x axis.
//!
//! | points of a surface are | what is said |
//! |---|---|
//! | one workload (micro-batch, tensor parallel size) | which point is the fastest, if the runs allow that |
//! | workloads of their own (sequence length, GPUs) | the values alone: no point is better than another |

use std::collections::{BTreeMap, BTreeSet};

use tprimat_results::{
    CONFIDENCE, FieldDifference, MIN_REPEATS, Tier, differences, verdicts, welch,
};

use super::{
    Comparison, Gaps, Label, NoVerdict, RatioInterval, Row, interval::apart, summary::attempts,
};

/// Values of the axis from which on cells are a sweep; two are a pair.
const LEAST: usize = 3;

/// Cells of one model over one numeric axis, or over two.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    pub model: String,
    /// The numeric axis with the most values.
    pub axis: String,
    /// Another one with at least three values.
    pub second: Option<String>,
    /// One each framework, platform, strategy and value of the other axes; in matrix order.
    pub surfaces: Vec<Surface>,
    /// Fields of the workload in which points of one surface differ. Empty: all are one workload.
    pub fields: Vec<String>,
    /// Each surface beside one that has the same workload at the same settings.
    pub pairs: Vec<SurfacePair>,
}

/// Two surfaces, usually two frameworks over the same settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SurfacePair {
    /// Indices into the sweep's surfaces.
    pub a: usize,
    /// The one with the first point's baseline, else the first of its workload.
    pub b: usize,
    /// Both at the same setting, in the order of the settings.
    pub same: Vec<SameSetting>,
    /// Absent where their points are different workloads.
    pub highest: Option<Highest>,
    /// Seconds between runs of one setting that no session has of both; the largest.
    pub apart_seconds: Option<f64>,
}

/// Two surfaces at one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct SameSetting {
    /// Indices into the points of `a` and of `b`.
    pub at: [usize; 2],
    /// Rate of `a` ÷ rate of `b`.
    pub ratio: f64,
    /// Holm's, over all settings of all pairs of the sweep; absent where there is no verdict.
    pub significant: Option<bool>,
    pub reason: Option<NoVerdict>,
}

/// The highest rate of one surface beside that of another. Both settings were picked because they
/// are the highest, so the interval is one of the largest true rates: it holds whichever of the
/// points they belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct Highest {
    /// Indices into the points of `a` and of `b`.
    pub at: [usize; 2],
    /// Points that each was picked from.
    pub of: [usize; 2],
    pub ratio: f64,
    pub interval: Option<RatioInterval>,
    pub reason: Option<NoVerdict>,
}

/// Points that differ in the axes of their sweep alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Surface {
    /// By the first axis, then by the second.
    pub points: Vec<SweepPoint>,
    /// Absent where its points are not one workload.
    pub best: Option<Best>,
    /// Only in a sweep over two axes of which one changes the workload (sequence length) and the other
    /// does not (micro-batch): the fastest value of the other at each value of the one.
    pub lines: Vec<LineBest>,
}

/// The fastest point of those that share a value of one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct LineBest {
    /// Is it the first axis whose value they share?
    pub shares_first: bool,
    pub value: f64,
    pub best: Best,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepPoint {
    pub x: f64,
    pub second: Option<f64>,
    /// Index into the comparison's rows.
    pub row: usize,
}

/// The point with the highest rate, beside the next one.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// Indices into the surface's points.
    pub at: usize,
    pub next: usize,
    /// Rate of the best ÷ that of the next one.
    pub ratio: f64,
    /// Corrected for all pairs of points: which two stand first is known only after a look.
    pub interval: Option<RatioInterval>,
    /// Points that the runs do not tell apart from the best one. Where there is none and no reason,
    /// the best is the fastest.
    pub not_apart: Vec<usize>,
    /// Why that cannot be told.
    pub reason: Option<NoVerdict>,
    /// Seconds between runs of the two, where no session has runs of both.
    pub apart_seconds: Option<f64>,
}

impl Best {
    #[must_use]
    pub fn is_fastest(&self) -> bool {
        self.reason.is_none() && self.not_apart.is_empty()
    }
}

/// All sweeps of a comparison, in matrix order of their models. A row is in one at most.
#[must_use]
pub fn sweeps(comparison: &Comparison) -> Vec<Sweep> {
    let mut models: Vec<&str> = Vec::new();
    for row in &comparison.rows {
        if !models.contains(&row.model.as_str()) {
            models.push(&row.model);
        }
    }
    models
        .into_iter()
        .filter_map(|model| sweep(comparison, model))
        .collect()
}

/// The value of a numeric axis of a cell.
fn number(row: &Row, axis: &str) -> Option<f64> {
    row.axes
        .get(axis)?
        .parse()
        .ok()
        .filter(|value: &f64| value.is_finite())
}

/// A seed is a number, and no quantity.
fn is_quantity(axis: &str) -> bool {
    !axis.ends_with("seed")
}

fn sweep(comparison: &Comparison, model: &str) -> Option<Sweep> {
    let rows: Vec<(usize, &Row)> = comparison
        .rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.model == model && row.impossible().is_none())
        .collect();
    let mut values: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let mut words: BTreeSet<&str> = BTreeSet::new();
    for (_, row) in &rows {
        for axis in row.axes.keys().filter(|axis| is_quantity(axis)) {
            match number(row, axis) {
                Some(value) => _ = values.entry(axis).or_default().insert(value.to_bits()),
                None => _ = words.insert(axis),
            }
        }
    }
    let mut axes: Vec<(&str, usize)> = values
        .into_iter()
        .filter(|(axis, values)| values.len() >= LEAST && !words.contains(axis))
        .map(|(axis, values)| (axis, values.len()))
        .collect();
    // Stable: of axes with as many values, the first by name.
    axes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let axis = axes.first()?.0;
    let second = axes.get(1).map(|(axis, _)| *axis);
    // Everything of a cell's name but the axes of the sweep.
    let identity = |row: &'_ Row| -> Vec<String> {
        let others = row
            .axes
            .iter()
            .filter(|(name, _)| *name != axis && Some(name.as_str()) != second)
            .map(|(name, value)| format!("{name}={value}"));
        [&row.platform, &row.framework, &row.parallelism]
            .into_iter()
            .cloned()
            .chain(others)
            .collect()
    };
    let mut surfaces: Vec<(Vec<String>, Vec<SweepPoint>)> = Vec::new();
    for (index, row) in &rows {
        let Some(x) = number(row, axis) else { continue };
        let second = match second {
            Some(second) => match number(row, second) {
                Some(value) => Some(value),
                None => continue,
            },
            None => None,
        };
        let point = SweepPoint {
            x,
            second,
            row: *index,
        };
        let of = identity(row);
        match surfaces.iter_mut().find(|(known, _)| *known == of) {
            Some((_, points)) => points.push(point),
            None => surfaces.push((of, vec![point])),
        }
    }
    let mut fields: BTreeSet<String> = BTreeSet::new();
    let surfaces: Vec<Surface> = surfaces
        .into_iter()
        .map(|(_, mut points)| {
            points.sort_by(|a, b| {
                a.x.total_cmp(&b.x)
                    .then(a.second.unwrap_or(0.0).total_cmp(&b.second.unwrap_or(0.0)))
            });
            let differ = fields_apart(comparison, &points);
            let is_one = differ.is_empty();
            let lines = if is_one || second.is_none() {
                Vec::new()
            } else {
                lines(comparison, &points)
            };
            fields.extend(differ);
            Surface {
                best: is_one.then(|| best(comparison, &points)).flatten(),
                points,
                lines,
            }
        })
        .collect();
    let is_swept = surfaces.iter().any(|surface| surface.points.len() >= LEAST);
    let pairs = surface_pairs(comparison, &surfaces, fields.is_empty());
    is_swept.then(|| Sweep {
        model: model.to_owned(),
        axis: axis.to_owned(),
        second: second.map(str::to_owned),
        surfaces,
        fields: fields.into_iter().collect(),
        pairs,
    })
}

/// In what of the workload points differ from the first; of unlike groups, whatever it is.
fn fields_apart(comparison: &Comparison, points: &[SweepPoint]) -> BTreeSet<String> {
    let rows = || points.iter().map(|point| &comparison.rows[point.row]);
    let Some(first) = rows().next() else {
        return BTreeSet::new();
    };
    let mut fields = BTreeSet::new();
    for row in rows() {
        let of_work = differences(&row.contract, &first.contract)
            .into_iter()
            .filter(|found: &FieldDifference| found.is_known() && found.tier == Tier::Workload);
        let before = fields.len();
        fields.extend(of_work.map(|found| found.field));
        if row.group != first.group && fields.len() == before && before == 0 {
            fields.insert("workload".to_owned());
        }
    }
    fields
}

/// The fastest point at each value of the axis that makes the workloads; nothing where it is not one
/// axis alone that makes them.
fn lines(comparison: &Comparison, points: &[SweepPoint]) -> Vec<LineBest> {
    for shares_first in [true, false] {
        let shared = |point: &SweepPoint| {
            if shares_first {
                Some(point.x)
            } else {
                point.second
            }
        };
        // By its bits: values of an axis are equal or another value.
        let mut by_value: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (at, point) in points.iter().enumerate() {
            let value = shared(point).unwrap_or_default();
            by_value.entry(value.to_bits()).or_default().push(at);
        }
        let of = |line: &[usize]| line.iter().map(|at| points[*at]).collect::<Vec<_>>();
        let mut all = by_value.values();
        if !all.all(|line| fields_apart(comparison, &of(line)).is_empty()) {
            continue;
        }
        let mut found: Vec<LineBest> = Vec::new();
        for (value, line) in &by_value {
            let Some(mut best) = best(comparison, &of(line)) else {
                continue;
            };
            (best.at, best.next) = (line[best.at], line[best.next]);
            best.not_apart.iter_mut().for_each(|at| *at = line[*at]);
            found.push(LineBest {
                shares_first,
                value: f64::from_bits(*value),
                best,
            });
        }
        found.sort_by(|a, b| a.value.total_cmp(&b.value));
        return found;
    }
    Vec::new()
}

fn best(comparison: &Comparison, points: &[SweepPoint]) -> Option<Best> {
    let row = |at: usize| &comparison.rows[points[at].row];
    let rate = |at: &usize| row(*at).tokens_per_second_per_gpu.value;
    let mut order: Vec<usize> = (0..points.len())
        .filter(|at| rate(at).is_finite())
        .collect();
    order.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let [at, next, ..] = order[..] else {
        return None;
    };
    let mut found = Best {
        at,
        next,
        ratio: rate(&at) / rate(&next),
        interval: None,
        not_apart: Vec::new(),
        reason: order.iter().find_map(|one| undecided(row(*one), row(at))),
        apart_seconds: apart(&row(at).repeats, &row(next).repeats),
    };
    if found.reason.is_some() {
        return Some(found);
    }
    let mut pairs = Vec::new();
    let mut tests = Vec::new();
    for (i, a) in order.iter().enumerate() {
        for b in &order[i + 1..] {
            let units = |at: &usize| &row(*at).tokens_per_second_per_gpu.units;
            if let Some(test) = welch(units(a), units(b)) {
                pairs.push((*a, *b));
                tests.push(test);
            }
        }
    }
    let told = verdicts(&tests);
    let of_best = |other: usize| {
        let place = pairs.iter().position(|pair| *pair == (at, other))?;
        Some(told[place])
    };
    found.not_apart = order[1..]
        .iter()
        .copied()
        .filter(|other| of_best(*other).is_none_or(|verdict| !verdict.significant))
        .collect();
    found.interval = of_best(next).and_then(|verdict| {
        let [low, high] = verdict.interval?;
        (low.is_finite() && high.is_finite()).then_some(RatioInterval {
            low,
            high,
            confidence: verdict.confidence,
        })
    });
    Some(found)
}

/// Each surface beside the one that has the baseline of its workload.
fn surface_pairs(
    comparison: &Comparison,
    surfaces: &[Surface],
    is_one_workload: bool,
) -> Vec<SurfacePair> {
    let row = |point: &SweepPoint| &comparison.rows[point.row];
    let group = |surface: &Surface| surface.points.first().map(|point| row(point).group);
    let is_baseline =
        |point: &SweepPoint| row(point).cell == comparison.groups[row(point).group].baseline;
    let mut pairs = Vec::new();
    // By their places in `pairs` and `same`.
    let mut tested: Vec<(usize, usize)> = Vec::new();
    let mut tests = Vec::new();
    for (a, surface) in surfaces.iter().enumerate() {
        let alike = || (0..surfaces.len()).filter(|b| group(&surfaces[*b]) == group(surface));
        let base = alike().find(|b| surfaces[*b].points.iter().any(is_baseline));
        let Some(b) = base.or_else(|| alike().next()).filter(|b| *b != a) else {
            continue;
        };
        let mut pair = SurfacePair {
            a,
            b,
            same: Vec::new(),
            highest: None,
            apart_seconds: None,
        };
        for (at, point) in surface.points.iter().enumerate() {
            let at_it = |other: &SweepPoint| (other.x, other.second) == (point.x, point.second);
            let Some(of_b) = surfaces[b].points.iter().position(at_it) else {
                continue;
            };
            let (own, its) = (row(point), row(&surfaces[b].points[of_b]));
            if own.group != its.group {
                continue;
            }
            let rates = [own, its].map(|row| &row.tokens_per_second_per_gpu);
            let test = welch(&rates[0].units, &rates[1].units);
            let reason = undecided(own, its)
                .or_else(|| undecided(its, own))
                .or_else(|| test.is_none().then_some(NoVerdict::NoVariation));
            if let Some(test) = test.filter(|_| reason.is_none()) {
                tested.push((pairs.len(), pair.same.len()));
                tests.push(test);
            }
            let seconds = apart(&own.repeats, &its.repeats);
            pair.apart_seconds = pair
                .apart_seconds
                .into_iter()
                .chain(seconds)
                .reduce(f64::max);
            pair.same.push(SameSetting {
                at: [at, of_b],
                ratio: rates[0].value / rates[1].value,
                significant: None,
                reason,
            });
        }
        pairs.push(pair);
    }
    for ((pair, at), verdict) in tested.into_iter().zip(verdicts(&tests)) {
        pairs[pair].same[at].significant = Some(verdict.significant);
    }
    let count = |pair: &SurfacePair| surfaces[pair.a].points.len() * surfaces[pair.b].points.len();
    let tests: usize = pairs.iter().map(count).sum();
    for pair in pairs.iter_mut().filter(|_| is_one_workload) {
        let points = [pair.a, pair.b].map(|at| &surfaces[at].points[..]);
        pair.highest = highest(comparison, points, tests);
    }
    pairs
}

/// The largest true rate of `a` is the largest, over its points, of the smallest lead over the points
/// of `b`: max aᵢ ÷ max bⱼ = maxᵢ minⱼ (aᵢ ÷ bⱼ). So where the intervals of all pairs hold at once
/// (Bonferroni, over all `tests` of the sweep), the same of their ends is an interval of it.
fn highest(comparison: &Comparison, points: [&[SweepPoint]; 2], tests: usize) -> Option<Highest> {
    let rows =
        points.map(|all| -> Vec<&Row> { all.iter().map(|p| &comparison.rows[p.row]).collect() });
    let [a, b] = &rows;
    let rate = |row: &Row| row.tokens_per_second_per_gpu.value;
    let top =
        |rows: &[&Row]| (0..rows.len()).max_by(|x, y| rate(rows[*x]).total_cmp(&rate(rows[*y])));
    let at = [top(a)?, top(b)?];
    let ratio = rate(a[at[0]]) / rate(b[at[1]]);
    if !(ratio.is_finite() && ratio > 0.0) {
        return None;
    }
    let mut found = Highest {
        at,
        of: [a.len(), b.len()],
        ratio,
        interval: None,
        reason: None,
    };
    let confidence = 1.0 - (1.0 - CONFIDENCE) / tests as f64;
    let mut ends = [f64::NEG_INFINITY; 2];
    for own in a {
        let mut least = [f64::INFINITY; 2];
        for its in b {
            let units = [own, its].map(|row| &row.tokens_per_second_per_gpu.units);
            let test = welch(units[0], units[1]);
            found.reason = undecided(own, its)
                .or_else(|| undecided(its, own))
                .or_else(|| test.is_none().then_some(NoVerdict::NoVariation));
            if found.reason.is_some() {
                return Some(found);
            }
            let interval = test?.interval(confidence)?;
            least = [0, 1].map(|end| least[end].min(interval[end]));
        }
        ends = [0, 1].map(|end| ends[end].max(least[end]));
    }
    let [low, high] = ends;
    found.interval = (low.is_finite() && high.is_finite()).then_some(RatioInterval {
        low,
        high,
        confidence: CONFIDENCE,
    });
    Some(found)
}

/// Why nothing can be said of a point beside the best one.
fn undecided(row: &Row, best: &Row) -> Option<NoVerdict> {
    let estimate = &row.tokens_per_second_per_gpu;
    let n = estimate.units.len();
    let unknown: Vec<String> = Gaps::of(&row.contract, &best.contract)
        .core()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let is_other_warm_up = row
        .labels
        .iter()
        .any(|label| matches!(label, Label::WarmUp { .. }));
    match n {
        _ if row.cell != best.cell
            && !attempts(&row.repeats).is_disjoint(&attempts(&best.repeats)) =>
        {
            Some(NoVerdict::SameMeasurements)
        }
        _ if !unknown.is_empty() => Some(NoVerdict::WorkloadsMayDiffer { fields: unknown }),
        _ if is_other_warm_up => Some(NoVerdict::OtherWarmUp),
        _ if row.timer_factor.is_some() => row
            .timer_factor
            .map(|factor| NoVerdict::ShortStepTimes { factor }),
        0 | 1 => Some(NoVerdict::OneRepeat),
        _ if n < MIN_REPEATS => Some(NoVerdict::FewUnits {
            n,
            unit: estimate.unit,
            least: MIN_REPEATS,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalogue, CellInput, CompareSettings, compare, stand_ins::*};

    fn cells(
        axis: &str,
        points: &[(u64, [f64; 3])],
        set: fn(&mut tprimat_job::Job, u64),
    ) -> Vec<CellInput> {
        cells_of("titan", axis, points, set)
    }

    fn cells_of(
        framework: &str,
        axis: &str,
        points: &[(u64, [f64; 3])],
        set: fn(&mut tprimat_job::Job, u64),
    ) -> Vec<CellInput> {
        let one = |(value, times): &(u64, [f64; 3])| {
            let mut job = test_job();
            set(&mut job, *value);
            let mut cell = measured(
                &format!("nvd/{framework}/llama/single@{axis}={value}"),
                &job,
                times,
                None,
            );
            cell.axes = [(axis.to_owned(), value.to_string())].into();
            cell
        };
        points.iter().map(one).collect()
    }

    fn only(cells: &[CellInput]) -> Sweep {
        let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
        let mut found = sweeps(&all);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    fn micro(job: &mut tprimat_job::Job, value: u64) {
        job.data.micro_batch_size = value;
    }

    #[test]
    fn of_one_workload_the_fastest_point_is_named_where_it_is_apart_from_all_others() {
        let slow = (1, [1.2, 1.201, 1.199]);
        let found = only(&cells(
            "mbs",
            &[slow, (2, [1.0, 1.001, 0.999]), (4, [0.97, 0.971, 0.969])],
            micro,
        ));
        assert!(found.fields.is_empty());
        let best = found.surfaces[0].best.clone().unwrap();
        assert_eq!((best.at, best.next), (2, 1));
        assert!(best.is_fastest());
        let ends = best.interval.unwrap();
        assert!(ends.low > 1.0 && ends.high > best.ratio && ends.confidence >= 0.95);
        // As noisy as they are far apart.
        let found = only(&cells(
            "mbs",
            &[slow, (2, [1.0, 1.02, 0.98]), (4, [0.99, 1.01, 0.97])],
            micro,
        ));
        let best = found.surfaces[0].best.clone().unwrap();
        assert_eq!((best.at, best.not_apart.clone()), (2, vec![1]));
        assert!(!best.is_fastest());
    }

    /// Two frameworks over one axis.
    fn two(points: &[(u64, [f64; 3])], by: f64) -> Sweep {
        let slower: Vec<(u64, [f64; 3])> = points
            .iter()
            .map(|(value, times)| (*value, times.map(|time| time * by)))
            .collect();
        let mut all = cells("mbs", points, micro);
        all.extend(cells_of("native", "mbs", &slower, micro));
        only(&all)
    }

    #[test]
    fn two_frameworks_are_compared_setting_by_setting_and_at_their_fastest() {
        let found = two(
            &[
                (1, [1.2, 1.201, 1.199]),
                (2, [1.0, 1.001, 0.999]),
                (4, [0.97, 0.971, 0.969]),
            ],
            1.1,
        );
        let [pair] = &found.pairs[..] else {
            panic!("{found:?}")
        };
        assert_eq!(pair.same.len(), 3);
        assert!(pair.same.iter().all(|at| at.significant == Some(true)));
        let highest = pair.highest.clone().unwrap();
        assert_eq!((highest.at, highest.of), ([2, 2], [3, 3]));
        let ends = highest.interval.unwrap();
        assert!(ends.low < highest.ratio && highest.ratio < ends.high);
        assert!(ends.low > 1.0 || ends.high < 1.0, "{ends:?}");
    }

    /// Two frameworks that differ by less than the noise.
    #[test]
    fn bests_that_were_picked_after_a_look_have_a_wider_interval_than_their_own_two_points() {
        let noisy = [
            (1, [1.00, 1.01, 0.99]),
            (2, [0.99, 1.00, 0.98]),
            (4, [0.995, 1.005, 0.985]),
            (8, [0.985, 0.995, 0.975]),
        ];
        let found = two(&noisy, 1.015);
        let pair = &found.pairs[0];
        assert!(pair.same.iter().all(|at| at.significant == Some(false)));
        let highest = pair.highest.clone().unwrap();
        let ends = highest.interval.unwrap();
        assert!(ends.low < 1.0 && ends.high > 1.0, "{highest:?}");
        // The two points alone, as if nobody had picked them.
        let [a, b] = [(pair.a, highest.at[0]), (pair.b, highest.at[1])].map(|(surface, at)| {
            let (_, times) = noisy[at];
            let by = if surface == 0 { 1.0 } else { 1.015 };
            times.map(|time| 1.0 / (time * by))
        });
        let [low, high] = welch(&a, &b).unwrap().interval(CONFIDENCE).unwrap();
        assert!(ends.low < low && ends.high > high, "{ends:?} {low} {high}");
    }

    /// Lengths are workloads of their own, and each has its fastest micro-batch.
    #[test]
    fn of_two_axes_each_value_of_the_one_that_makes_workloads_has_its_fastest_point() {
        let mut all = Vec::new();
        for seq in [64_u64, 128, 256] {
            for mbs in [1_u64, 2, 4] {
                // At 256 the two larger ones are as noisy as they are far apart.
                let (time, noise) = match (seq, mbs) {
                    (_, 1) => (1.3, 0.001),
                    (256, _) => (1.0 - 0.002 * mbs as f64, 0.02),
                    _ => (1.0 - 0.05 * mbs as f64, 0.001),
                };
                let mut job = test_job();
                (job.data.seq_length, job.data.micro_batch_size) = (seq, mbs);
                let name = format!("nvd/titan/llama/single@mbs={mbs},seq={seq}");
                let times = [time, time + noise, time - noise].map(|t| t * seq as f64);
                let mut cell = measured(&name, &job, &times, None);
                let axes = [("mbs", mbs), ("seq", seq)];
                cell.axes = axes
                    .map(|(axis, value)| (axis.to_owned(), value.to_string()))
                    .into();
                all.push(cell);
            }
        }
        let found = only(&all);
        let surface = &found.surfaces[0];
        assert_eq!((surface.best.clone(), found.fields.len()), (None, 1));
        let micro = |at: usize| surface.points[at].x;
        let told: Vec<_> = surface
            .lines
            .iter()
            .map(|line| (line.value, micro(line.best.at), line.best.is_fastest()))
            .collect();
        assert_eq!(
            told,
            [(64.0, 4.0, true), (128.0, 4.0, true), (256.0, 4.0, false)]
        );
        let open = &surface.lines[2].best;
        assert_eq!(micro(open.not_apart[0]), 2.0);
    }

    #[test]
    fn points_of_different_workloads_are_not_ranked() {
        let found = only(&cells(
            "seq",
            &[(64, [1.0; 3]), (128, [2.0; 3]), (256, [4.1; 3])],
            |job, value| job.data.seq_length = value,
        ));
        assert_eq!(found.fields, ["seq_length"]);
        assert_eq!(found.surfaces[0].best, None);
        assert!(found.surfaces.iter().all(|surface| surface.best.is_none()));
        assert_eq!(found.surfaces[0].points.len(), 3);
    }

    #[test]
    fn two_values_seeds_and_words_are_no_sweep() {
        let of = |cells: &[CellInput]| {
            sweeps(&compare(
                cells,
                &CompareSettings::default(),
                &Catalogue::default(),
            ))
        };
        let two = [(1, [1.0; 3]), (2, [1.1; 3])];
        let three = [(1, [1.0; 3]), (2, [1.1; 3]), (3, [1.2; 3])];
        assert_eq!(of(&cells("mbs", &two, micro)), []);
        assert_eq!(of(&cells("seed", &three, |_, _| {})), []);
        let mut worded = cells("mbs", &three, micro);
        worded[1].axes.insert("mbs".into(), "auto".into());
        assert_eq!(of(&worded), []);
    }
}
