//! Sweeps: cells of one model that differ in a numeric axis, so that the axis is an x axis.
//!
//! | points of a surface are | what is said |
//! |---|---|
//! | one workload (micro-batch, tensor parallel size) | which point is the fastest, if the runs allow that |
//! | workloads of their own (sequence length, GPUs) | the values alone: no point is better than another |

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::results::{
    CONFIDENCE, FieldDifference, MIN_REPEATS, Reason, Tier, differences, logs, quantile, sd,
};

use super::{
    Comparison, RatioInterval, Row,
    interval::apart,
    judged::{Judged, no_verdict, tested_as_it_is},
};

/// Values of the axis from which on cells are a sweep; two are a pair.
const LEAST: usize = 3;

/// Cells of one model over one numeric axis, or over two. In JSON, cells have their names in place of
/// the indices that are skipped there.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Sweep {
    pub model: String,
    /// The numeric axis with the most values.
    pub axis: String,
    /// Another one with at least three values.
    #[serde(rename = "second_axis")]
    pub second: Option<String>,
    /// One each framework, platform, strategy and value of the other axes; in matrix order.
    #[serde(rename = "curves")]
    pub surfaces: Vec<Surface>,
    /// Fields of the workload in which points of one surface differ. Empty: all are one workload.
    #[serde(rename = "different_workloads_by")]
    pub fields: Vec<String>,
    /// Each surface beside one that has the same workload at the same settings.
    pub pairs: Vec<SurfacePair>,
}

/// Two surfaces, usually two frameworks over the same settings.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SurfacePair {
    /// Indices into the sweep's surfaces.
    #[serde(skip)]
    pub a: usize,
    /// The one with the first point's baseline, else the first of its workload.
    #[serde(skip)]
    pub b: usize,
    /// Both at the same setting, in the order of the settings.
    #[serde(rename = "same_setting")]
    pub same: Vec<SameSetting>,
    /// Absent where their points are different workloads.
    pub highest: Option<Highest>,
    /// Seconds between runs of one setting that no session has of both; the largest.
    #[serde(skip)]
    pub apart_seconds: Option<f64>,
}

/// Two surfaces at one setting.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SameSetting {
    /// Indices into the points of `a` and of `b`.
    #[serde(skip)]
    pub at: [usize; 2],
    pub a: String,
    pub b: String,
    /// Rate of `a` ÷ rate of `b`.
    pub ratio: f64,
    /// Corrected for all pairs that the comparison tests; absent where there is no verdict.
    pub significant: Option<bool>,
    pub reason: Option<Reason>,
}

/// The highest rate of one surface beside that of another. Both settings were picked because they
/// are the highest, so the interval is one of the largest true rates: it holds whichever of the
/// points they belong to. It leaves 1 out only where the test of these two points finds a difference.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Highest {
    /// Indices into the points of `a` and of `b`.
    #[serde(skip)]
    pub at: [usize; 2],
    pub a: String,
    pub b: String,
    /// Points that each was picked from.
    #[serde(rename = "picked_of")]
    pub of: [usize; 2],
    pub ratio: f64,
    pub interval: Option<RatioInterval>,
    pub reason: Option<Reason>,
}

/// Points that differ in the axes of their sweep alone.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Surface {
    pub platform: String,
    pub framework: String,
    pub parallelism: String,
    /// By the first axis, then by the second.
    pub points: Vec<SweepPoint>,
    /// Absent where its points are not one workload.
    pub best: Option<Best>,
    /// Only in a sweep over two axes of which one changes the workload (sequence length) and the other
    /// does not (micro-batch): the fastest value of the other at each value of the one.
    #[serde(rename = "best_at_each_value")]
    pub lines: Vec<LineBest>,
}

/// The fastest point of those that share a value of one axis.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LineBest {
    /// Is it the first axis whose value they share?
    #[serde(skip)]
    pub shares_first: bool,
    #[serde(skip)]
    pub value: f64,
    #[serde(flatten)]
    pub best: Best,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SweepPoint {
    pub cell: String,
    /// Value of the axis.
    pub x: f64,
    /// Value of the second axis.
    pub second: Option<f64>,
    pub tokens_per_second_per_gpu: f64,
    /// 95 % interval of the rate.
    pub ci95: Option<[f64; 2]>,
    /// Index into the comparison's rows.
    #[serde(skip)]
    pub row: usize,
}

/// The point with the highest rate, beside the next one.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Best {
    /// Indices into the surface's points: the best, the next one, and those that the runs do not tell
    /// apart from the best. Where there is none of these and no reason, the best is the fastest.
    #[serde(skip)]
    pub at: usize,
    #[serde(skip)]
    pub next: usize,
    #[serde(skip)]
    pub not_apart: Vec<usize>,
    pub cell: String,
    #[serde(rename = "next")]
    pub next_cell: String,
    #[serde(rename = "not_apart")]
    pub cells_not_apart: Vec<String>,
    /// Do the runs tell it apart from all other points?
    pub is_fastest: bool,
    /// Rate of the best ÷ that of the next one.
    pub ratio: f64,
    /// Corrected for all pairs that the comparison tests: which two stand first is known only after
    /// a look.
    pub interval: Option<RatioInterval>,
    /// Why it is unknown whether it is the fastest.
    pub reason: Option<Reason>,
    /// Seconds between runs of the two, where no session has runs of both.
    #[serde(skip)]
    pub apart_seconds: Option<f64>,
}

/// A sweep whose points are not judged yet.
pub(super) struct Unjudged {
    sweep: Sweep,
    /// One list for each surface of the sweep.
    rivals: Vec<Vec<Rivals>>,
}

/// Points of one workload, of which one may be the fastest.
struct Rivals {
    /// Those of a line: is it the first axis whose value they share, and the value.
    line: Option<(bool, f64)>,
    /// Indices into the surface's points, the highest rate first; two at least.
    order: Vec<usize>,
    /// Why none of them can be called the fastest.
    reason: Option<Reason>,
}

/// All sweeps of a comparison, in matrix order of their models. A row is in one at most.
#[must_use]
pub fn sweeps(comparison: &Comparison, judged: &Judged) -> Vec<Sweep> {
    let found = unjudged(comparison).into_iter();
    found.map(|one| one.judged(comparison, judged)).collect()
}

/// All sweeps where only their points are asked for: no point is called the fastest, and no pair
/// of lines is compared. The verdicts need a test of every two points of a line.
#[must_use]
pub fn sweeps_unjudged(comparison: &Comparison) -> Vec<Sweep> {
    let found = unjudged(comparison).into_iter();
    found.map(|one| one.sweep).collect()
}

/// Groups all of whose cells are points of those sweeps that `is_meant` picks.
#[must_use]
pub fn swept_groups(comparison: &Comparison, is_meant: impl Fn(&Sweep) -> bool) -> BTreeSet<usize> {
    let sweeps = sweeps_unjudged(comparison);
    let surfaces = sweeps
        .iter()
        .filter(|sweep| is_meant(sweep))
        .flat_map(|sweep| &sweep.surfaces);
    let points: BTreeSet<usize> = surfaces
        .flat_map(|surface| &surface.points)
        .map(|point| point.row)
        .collect();
    let left = (0..comparison.rows.len()).filter(|row| !points.contains(row));
    let left: BTreeSet<usize> = left.map(|row| comparison.rows[row].group).collect();
    (0..comparison.groups.len())
        .filter(|group| !left.contains(group))
        .collect()
}

pub(super) fn unjudged(comparison: &Comparison) -> Vec<Unjudged> {
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

impl Unjudged {
    /// Pairs of rows that this sweep says something of: any two points of a line, since which of
    /// them stand first is known only after a look, and two lines at the same setting.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let row = |surface: usize, at: usize| self.sweep.surfaces[surface].points[at].row;
        let of_lines =
            self.rivals
                .iter()
                .enumerate()
                .flat_map(|(surface, all)| all.iter().map(move |rivals| (surface, rivals)))
                .filter(|(_, rivals)| rivals.reason.is_none())
                .flat_map(move |(surface, rivals)| {
                    let row = move |at: &usize| row(surface, *at);
                    let order = &rivals.order;
                    order.iter().enumerate().flat_map(move |(i, a)| {
                        order[i + 1..].iter().map(move |b| (row(a), row(b)))
                    })
                });
        let of_settings = self.sweep.pairs.iter().flat_map(move |pair| {
            let tested = pair.same.iter().filter(|same| same.reason.is_none());
            tested.map(move |same| (row(pair.a, same.at[0]), row(pair.b, same.at[1])))
        });
        of_lines.chain(of_settings)
    }

    /// The least variance of the logarithms of each row: half of the upper quartile of its line. Three
    /// repeats of a cell whose runs fall into two modes are often of one mode, and show no spread to
    /// speak of; points of one line vary about alike. docs/METRICS.md, "Sweeps".
    pub(super) fn least_variances(&self, comparison: &Comparison) -> Vec<(usize, f64)> {
        let variance = |point: &SweepPoint| {
            let units = &comparison.rows[point.row].tokens_per_second_per_gpu.units;
            let units = logs(units).filter(|units| units.len() >= MIN_REPEATS)?;
            Some(sd(&units)?.powi(2))
        };
        let of_line = |surface: &Surface| {
            let variances: Vec<f64> = surface.points.iter().filter_map(variance).collect();
            let upper = quantile(&variances, 0.75).filter(|_| variances.len() >= LEAST);
            let least = upper.unwrap_or(0.0) / 2.0;
            let rows = surface.points.iter().map(move |point| (point.row, least));
            rows.collect::<Vec<_>>()
        };
        self.sweep.surfaces.iter().flat_map(of_line).collect()
    }

    fn judged(self, comparison: &Comparison, judged: &Judged) -> Sweep {
        let Self { mut sweep, rivals } = self;
        for (surface, all) in sweep.surfaces.iter_mut().zip(&rivals) {
            for rivals in all {
                let best = best(comparison, judged, &surface.points, rivals);
                match rivals.line {
                    None => surface.best = Some(best),
                    Some((shares_first, value)) => surface.lines.push(LineBest {
                        shares_first,
                        value,
                        best,
                    }),
                }
            }
        }
        for pair in &mut sweep.pairs {
            for same in pair.same.iter_mut().filter(|same| same.reason.is_none()) {
                let rows = [(pair.a, same.at[0]), (pair.b, same.at[1])]
                    .map(|(surface, at)| sweep.surfaces[surface].points[at].row);
                same.significant = judged.test(rows).map(|test| test.significant);
            }
        }
        if sweep.fields.is_empty() {
            let points = |at: usize| sweep.surfaces[at].points.len();
            let between: usize = sweep.pairs.iter().map(|p| points(p.a) * points(p.b)).sum();
            let tests = between.max(judged.tests());
            for pair in &mut sweep.pairs {
                let points = [pair.a, pair.b].map(|at| &sweep.surfaces[at].points[..]);
                pair.highest = highest(comparison, judged, points, tests);
            }
        }
        sweep
    }
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

fn sweep(comparison: &Comparison, model: &str) -> Option<Unjudged> {
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
            cell: row.cell.clone(),
            x,
            second,
            tokens_per_second_per_gpu: row.tokens_per_second_per_gpu.value,
            ci95: row.tokens_per_second_per_gpu.ci95,
            row: *index,
        };
        let of = identity(row);
        match surfaces.iter_mut().find(|(known, _)| *known == of) {
            Some((_, points)) => points.push(point),
            None => surfaces.push((of, vec![point])),
        }
    }
    let mut fields: BTreeSet<String> = BTreeSet::new();
    let (surfaces, rivals): (Vec<Surface>, Vec<Vec<Rivals>>) = surfaces
        .into_iter()
        .map(|(_, mut points)| {
            points.sort_by(|a, b| {
                a.x.total_cmp(&b.x)
                    .then(a.second.unwrap_or(0.0).total_cmp(&b.second.unwrap_or(0.0)))
            });
            let differ = fields_apart(comparison, &points);
            let rivals = if differ.is_empty() {
                let all = (0..points.len()).collect();
                rivals(comparison, &points, None, all).into_iter().collect()
            } else if second.is_some() {
                lines(comparison, &points)
            } else {
                Vec::new()
            };
            fields.extend(differ);
            let row = &comparison.rows[points[0].row];
            let surface = Surface {
                platform: row.platform.clone(),
                framework: row.framework.clone(),
                parallelism: row.parallelism.clone(),
                points,
                best: None,
                lines: Vec::new(),
            };
            (surface, rivals)
        })
        .unzip();
    let is_swept = surfaces.iter().any(|surface| surface.points.len() >= LEAST);
    let pairs = surface_pairs(comparison, &surfaces);
    let sweep = Sweep {
        model: model.to_owned(),
        axis: axis.to_owned(),
        second: second.map(str::to_owned),
        surfaces,
        fields: fields.into_iter().collect(),
        pairs,
    };
    is_swept.then_some(Unjudged { sweep, rivals })
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

/// The points at each value of the axis that makes the workloads; nothing where it is not one axis
/// alone that makes them.
fn lines(comparison: &Comparison, points: &[SweepPoint]) -> Vec<Rivals> {
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
        let of = |line: &[usize]| {
            line.iter()
                .map(|at| points[*at].clone())
                .collect::<Vec<_>>()
        };
        let mut all = by_value.values();
        if !all.all(|line| fields_apart(comparison, &of(line)).is_empty()) {
            continue;
        }
        let mut found: Vec<(f64, Vec<usize>)> = by_value
            .into_iter()
            .map(|(value, line)| (f64::from_bits(value), line))
            .collect();
        found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        return found
            .into_iter()
            .filter_map(|(value, line)| {
                rivals(comparison, points, Some((shares_first, value)), line)
            })
            .collect();
    }
    Vec::new()
}

/// The points at the places `among` that have a rate, the fastest first; `None` if fewer than two have
/// one.
fn rivals(
    comparison: &Comparison,
    points: &[SweepPoint],
    line: Option<(bool, f64)>,
    among: Vec<usize>,
) -> Option<Rivals> {
    let row = |at: usize| &comparison.rows[points[at].row];
    let rate = |at: usize| row(at).tokens_per_second_per_gpu.value;
    let mut order = among;
    order.retain(|at| rate(*at).is_finite());
    order.sort_by(|a, b| rate(*b).total_cmp(&rate(*a)));
    let [best, _, ..] = order[..] else {
        return None;
    };
    let others = order[1..].iter();
    let reason = others
        .copied()
        .find_map(|at| undecided(comparison, [row(best), row(at)]));
    Some(Rivals {
        line,
        order,
        reason,
    })
}

fn best(comparison: &Comparison, judged: &Judged, points: &[SweepPoint], rivals: &Rivals) -> Best {
    let (at, next) = (rivals.order[0], rivals.order[1]);
    let row = |at: usize| &comparison.rows[points[at].row];
    let rate = |at: usize| row(at).tokens_per_second_per_gpu.value;
    let against = |other: usize| judged.test([points[at].row, points[other].row]);
    let is_open = |other: &usize| against(*other).is_none_or(|test| !test.significant);
    let reason = rivals.reason.clone();
    let others = rivals.order[1..].iter().copied();
    let (not_apart, interval): (Vec<usize>, _) = match reason {
        Some(_) => (Vec::new(), None),
        None => (
            others.filter(is_open).collect(),
            against(next).and_then(|test| RatioInterval::of_test(&test)),
        ),
    };
    let cell = |at: usize| points[at].cell.clone();
    Best {
        at,
        next,
        cell: cell(at),
        next_cell: cell(next),
        cells_not_apart: not_apart.iter().copied().map(cell).collect(),
        is_fastest: reason.is_none() && not_apart.is_empty(),
        ratio: rate(at) / rate(next),
        interval,
        not_apart,
        reason,
        apart_seconds: apart(&row(at).repeats, &row(next).repeats),
    }
}

/// Each surface beside the one that has the baseline of its workload.
fn surface_pairs(comparison: &Comparison, surfaces: &[Surface]) -> Vec<SurfacePair> {
    let row = |point: &SweepPoint| &comparison.rows[point.row];
    let group = |surface: &Surface| surface.points.first().map(|point| row(point).group);
    let is_baseline =
        |point: &SweepPoint| row(point).cell == comparison.groups[row(point).group].baseline;
    let mut pairs = Vec::new();
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
            let reason = undecided(comparison, [own, its]);
            let seconds = apart(&own.repeats, &its.repeats);
            pair.apart_seconds = pair
                .apart_seconds
                .into_iter()
                .chain(seconds)
                .reduce(f64::max);
            pair.same.push(SameSetting {
                at: [at, of_b],
                a: own.cell.clone(),
                b: its.cell.clone(),
                ratio: rates[0].value / rates[1].value,
                significant: None,
                reason,
            });
        }
        pairs.push(pair);
    }
    pairs
}

/// The largest true rate of `a` is not below that of its point with the highest measured one, so its
/// lead over the largest of `b` is not below that point's smallest lead over a point of `b`; likewise
/// from above. Where the intervals of all pairs hold at once (Bonferroni, over `tests`: all that the
/// comparison makes, or all pairs of points if they are more), these ends are an interval of it.
fn highest(
    comparison: &Comparison,
    judged: &Judged,
    points: [&[SweepPoint]; 2],
    tests: usize,
) -> Option<Highest> {
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
        a: a[at[0]].cell.clone(),
        b: b[at[1]].cell.clone(),
        of: [a.len(), b.len()],
        ratio,
        interval: None,
        reason: None,
    };
    let confidence = 1.0 - (1.0 - CONFIDENCE) / tests as f64;
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for (i, own) in a.iter().enumerate() {
        for (j, its) in b.iter().enumerate() {
            found.reason = undecided(comparison, [own, its]);
            if found.reason.is_some() {
                return Some(found);
            }
            if i != at[0] && j != at[1] {
                continue;
            }
            let least = judged.least([points[0][i].row, points[1][j].row]);
            let ends = tested_as_it_is([*own, *its], least)?.interval(confidence)?;
            if i == at[0] {
                low = low.min(ends[0]);
            }
            if j == at[1] {
                high = high.max(ends[1]);
            }
        }
    }
    found.interval = RatioInterval::of([low, high], CONFIDENCE);
    Some(found)
}

/// Why nothing can be said of one point beside another of its workload.
fn undecided(comparison: &Comparison, rows: [&Row; 2]) -> Option<Reason> {
    no_verdict(rows, comparison.groups[rows[0].group].crosses_warmup())
}

#[cfg(test)]
mod tests;
