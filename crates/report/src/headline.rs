//! What a person takes away, in a few words a pair: who is how much faster, or why that may not be
//! said. The number comes first, then what it means, then only the reservations that change what a
//! reader would do.

mod pair;
mod phrases;
mod ranking;
mod uncompared;

use std::collections::{BTreeMap, BTreeSet};

use tprimat_figures::{Comparison, Row, Speedup, SweepPoint, sweeps_unjudged};

pub use ranking::ranking;

pub(super) use phrases::{duration, interval, ratio_intervals, same_as, times};
pub(super) use uncompared::{across, contradicted};

use super::names::short_names;
use pair::pair_sentence;
use phrases::named;
use uncompared::{alone_sentence, refusals};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    /// Index into the comparison's groups; none where two cells may not be compared.
    pub group: Option<usize>,
    /// The cell that it is about, and the one that it is compared with.
    pub a: String,
    pub b: Option<String>,
    pub verdict: SpeedVerdict,
    /// Who is how much faster, and whether the work was the same.
    pub short: String,
    /// The same with every reservation.
    pub text: String,
}

/// How the first cell does against the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedVerdict {
    Faster,
    Slower,
    NoDifference,
    /// The ratio is shown without a verdict: too few repeats, other steps measured, or unknown
    /// whether the work is the same.
    NotAssessed,
    /// The workloads differ, so there is no comparison.
    Refused,
    /// No other cell can be compared with this one.
    Alone,
}

impl SpeedVerdict {
    #[must_use]
    pub fn of(speedup: &Speedup) -> Self {
        match speedup.significant {
            _ if !(speedup.ratio.is_finite() && speedup.ratio > 0.0) => Self::NotAssessed,
            Some(true) if speedup.ratio > 1.0 => Self::Faster,
            Some(true) => Self::Slower,
            Some(false) => Self::NoDifference,
            None => Self::NotAssessed,
        }
    }
}

/// The weightiest first: what is refused; then group by group the cells that are faster than the
/// baseline, those that are slower, each the largest difference first; then the others in matrix
/// order.
#[must_use]
pub fn headlines(comparison: &Comparison) -> Vec<Headline> {
    let mut all = refusals(comparison);
    let mixed = mixed(comparison);
    let speedups = comparison.speedups_by_cell();
    let environment = comparison.environment_by_cell();
    let refused: BTreeSet<&str> = comparison
        .differences
        .iter()
        .filter(|d| d.refused)
        .flat_map(|d| [&*d.cell_a, &*d.cell_b])
        .collect();
    for ((index, group), rows) in comparison
        .groups
        .iter()
        .enumerate()
        .zip(comparison.rows_by_group())
    {
        let rows: Vec<&Row> = rows.into_iter().map(|(_, row)| row).collect();
        let names: BTreeMap<&str, String> = rows
            .iter()
            .map(|row| row.cell.as_str())
            .zip(short_names(&rows))
            .collect();
        let name = |row: &Row| names.get(row.cell.as_str()).map_or("", String::as_str);
        let Some(b) = rows.iter().find(|r| r.cell == group.baseline) else {
            continue;
        };
        if let [alone] = rows[..] {
            let others = refused.contains(alone.cell.as_str());
            let (a, text) = (alone.cell.clone(), alone_sentence(alone, others));
            all.push(Headline {
                group: Some(index),
                a,
                b: None,
                verdict: SpeedVerdict::Alone,
                short: text.clone(),
                text,
            });
        }
        let others = rows.iter().filter(|r| r.cell != group.baseline);
        let mut pairs: Vec<(&Row, &Speedup)> = others
            .filter_map(|a| {
                Some((
                    *a,
                    *speedups.get(a.cell.as_str()).filter(|s| s.b == b.cell)?,
                ))
            })
            .collect();
        // Large losses would otherwise hide which cells beat the baseline, and a tuned cell against
        // an untuned baseline says more of the tuning than of the framework.
        let rank = |row: &Row, speedup: &Speedup| {
            let is_faster = SpeedVerdict::of(speedup) == SpeedVerdict::Faster;
            (mixed.contains(row.cell.as_str()), !is_faster)
        };
        pairs.sort_by(|(a, x), (b, y)| {
            rank(a, x)
                .cmp(&rank(b, y))
                .then(weight(y).total_cmp(&weight(x)))
        });
        all.extend(rows.iter().filter_map(|row| {
            let other = row.same_runs_as.as_ref()?;
            let text = format!(
                "{} is not compared: it has the same runs as {other}, imported twice. \
                 `tprimat cache set-aside {} --reason TEXT` takes one of the two back.",
                named(row),
                row.cell
            );
            let (a, b) = (row.cell.clone(), Some(other.clone()));
            Some(Headline {
                group: None,
                a,
                b,
                verdict: SpeedVerdict::Refused,
                short: text.clone(),
                text,
            })
        }));
        all.extend(pairs.into_iter().map(|(a, speedup)| {
            let environment = environment
                .get(a.cell.as_str())
                .copied()
                .unwrap_or_default();
            let (short, text) =
                pair_sentence(environment, group, speedup, (a, name(a)), (*b, name(b)));
            let (verdict, b) = (SpeedVerdict::of(speedup), Some(b.cell.clone()));
            Headline {
                group: Some(index),
                a: a.cell.clone(),
                b,
                verdict,
                short,
                text,
            }
        }));
    }
    all
}

/// Cells of a sweep over several frameworks that have another value of its axis than the baseline
/// of their workload.
fn mixed(comparison: &Comparison) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for sweep in sweeps_unjudged(comparison)
        .iter()
        .filter(|s| s.surfaces.len() > 1)
    {
        let points = || sweep.surfaces.iter().flat_map(|surface| &surface.points);
        let cell = |point: &SweepPoint| comparison.rows[point.row].cell.as_str();
        for point in points() {
            let baseline = &comparison.groups[comparison.rows[point.row].group].baseline;
            let base = points().find(|other| cell(other) == baseline);
            if base.is_some_and(|base| (base.x, base.second) != (point.x, point.second)) {
                found.insert(cell(point));
            }
        }
    }
    found
}

/// Above 0 by the size of what is significant; twice as fast weighs as much as half as fast,
/// whatever the last bits are.
fn weight(speedup: &Speedup) -> f64 {
    match SpeedVerdict::of(speedup) {
        // Told already, under another name.
        _ if speedup.same_as.is_some() => -2.0,
        SpeedVerdict::Faster | SpeedVerdict::Slower => (speedup.ratio.ln().abs() * 1e9).round(),
        SpeedVerdict::NoDifference => 0.0,
        SpeedVerdict::NotAssessed | SpeedVerdict::Refused | SpeedVerdict::Alone => -1.0,
    }
}

/// Sentences of a group that are told before its table.
const LEADING: usize = 3;

/// What of many is told before a table: they are in order of weight.
pub(super) fn leading<'a>(sentences: &[&'a Headline]) -> Vec<&'a Headline> {
    sentences.iter().take(LEADING).copied().collect()
}

/// How many sentences are left to the table, if any.
pub(super) fn more(sentences: &[&Headline]) -> Option<String> {
    let more = sentences.len().saturating_sub(LEADING);
    (more > 0).then(|| format!("And {more} more, in the table"))
}

/// The headlines of each group, in their order.
pub(super) fn by_group<'a>(comparison: &Comparison, all: &'a [Headline]) -> Vec<Vec<&'a Headline>> {
    let mut groups = vec![Vec::new(); comparison.groups.len()];
    for headline in all {
        if let Some(group) = headline.group {
            groups[group].push(headline);
        }
    }
    groups
}

/// What may not be compared, and how many more pairs are left to the notes.
pub(super) fn refused(sentences: &[Headline]) -> (Vec<&Headline>, usize) {
    const MOST: usize = 10;
    let all: Vec<&Headline> = sentences
        .iter()
        .filter(|h| h.verdict == SpeedVerdict::Refused)
        .collect();
    let more = all.len().saturating_sub(MOST);
    (all.into_iter().take(MOST).collect(), more)
}

#[cfg(test)]
mod tests;
