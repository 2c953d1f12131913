//! What a person takes away, in a few words a pair: who is how much faster, or why that may not be
//! said. The number comes first, then what it means, then only the reservations that change what a
//! reader would do.

mod pair;
mod phrases;
mod uncompared;

use std::collections::{BTreeMap, BTreeSet};

use tprimat_numbers::figures::{Comparison, Row, Speedup};

pub(super) use phrases::{at_most, interval, ratio_intervals, times};
pub(super) use uncompared::{across, contradicted};

use super::{
    columns::{Of, rows_of},
    plot::short_names,
};
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
    pub text: String,
}

impl Headline {
    fn of(
        group: Option<usize>,
        (a, b): (&str, Option<&str>),
        verdict: SpeedVerdict,
        text: String,
    ) -> Self {
        Self {
            group,
            a: a.to_owned(),
            b: b.map(str::to_owned),
            verdict,
            text,
        }
    }
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
    let refused = comparison.differences.iter().filter(|d| d.refused);
    let refused: BTreeSet<&str> = refused.flat_map(|d| [&*d.cell_a, &*d.cell_b]).collect();
    for (index, of_group) in Of::by_group(comparison).into_iter().enumerate() {
        let rows = rows_of(&of_group);
        let names: BTreeMap<&str, String> = rows
            .iter()
            .map(|row| row.cell.as_str())
            .zip(short_names(&rows))
            .collect();
        let Some(b) = of_group.iter().find(|of| of.is_baseline()) else {
            continue;
        };
        if let [alone] = rows[..] {
            let others = refused.contains(alone.cell.as_str());
            let text = alone_sentence(alone, others);
            all.push(Headline::of(
                Some(index),
                (&alone.cell, None),
                SpeedVerdict::Alone,
                text,
            ));
        }
        all.extend(rows.iter().filter_map(|row| {
            let other = row.same_runs_as.as_ref()?;
            let text = format!(
                "{} is not compared: it has the same runs as {other}, imported twice. \
                 `tprimat cache set-aside {} --reason TEXT` takes one of the two back.",
                named(row),
                row.cell
            );
            let pair = (&*row.cell, Some(other.as_str()));
            Some(Headline::of(None, pair, SpeedVerdict::Refused, text))
        }));
        let others = of_group.iter().filter(|of| !of.is_baseline());
        let mut pairs: Vec<(&Of<'_>, &Speedup)> = others
            .filter_map(|of| Some((of, of.speedup.filter(|s| s.b == b.row.cell)?)))
            .collect();
        // Large losses would otherwise hide which cells beat the baseline.
        let is_faster = |speedup: &Speedup| SpeedVerdict::of(speedup) == SpeedVerdict::Faster;
        pairs.sort_by(|(_, x), (_, y)| {
            let by_rank = is_faster(y).cmp(&is_faster(x));
            by_rank.then(weight(y).total_cmp(&weight(x)))
        });
        let name = |row: &Row| names[row.cell.as_str()].as_str();
        all.extend(pairs.into_iter().map(|(a, speedup)| {
            let sides = [a.row, b.row].map(|row| (row, name(row)));
            let text = pair_sentence(a.group, speedup, sides);
            let pair = (a.row.cell.as_str(), Some(b.row.cell.as_str()));
            Headline::of(Some(index), pair, SpeedVerdict::of(speedup), text)
        }));
    }
    all
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
