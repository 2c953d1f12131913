//! Sweeps: cells of one model that differ in a numeric axis, so that the axis is an x axis.
//!
//! | points of a surface are | what is said |
//! |---|---|
//! | one workload (micro-batch, tensor parallel size) | which point is the fastest, if the runs allow that |
//! | workloads of their own (sequence length, GPUs) | the values alone: no point is better than another |

use std::collections::{BTreeMap, BTreeSet};

use tprimat_results::{FieldDifference, MIN_REPEATS, Tier, differences, verdicts, welch};

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
}

/// Points that differ in the axes of their sweep alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Surface {
    /// By the first axis, then by the second.
    pub points: Vec<SweepPoint>,
    /// Absent where its points are not one workload.
    pub best: Option<Best>,
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
            let best = differ.is_empty().then(|| best(comparison, &points));
            fields.extend(differ);
            Surface {
                points,
                best: best.flatten(),
            }
        })
        .collect();
    let is_swept = surfaces.iter().any(|surface| surface.points.len() >= LEAST);
    is_swept.then(|| Sweep {
        model: model.to_owned(),
        axis: axis.to_owned(),
        second: second.map(str::to_owned),
        surfaces,
        fields: fields.into_iter().collect(),
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
        let one = |(value, times): &(u64, [f64; 3])| {
            let mut job = test_job();
            set(&mut job, *value);
            let mut cell = measured(
                &format!("nvd/titan/llama/single@{axis}={value}"),
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

    #[test]
    fn points_of_different_workloads_are_not_ranked() {
        let found = only(&cells(
            "seq",
            &[(64, [1.0; 3]), (128, [2.0; 3]), (256, [4.1; 3])],
            |job, value| job.data.seq_length = value,
        ));
        assert_eq!(found.fields, ["seq_length"]);
        assert_eq!(found.surfaces[0].best, None);
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
