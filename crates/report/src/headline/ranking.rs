//! Which cell of a workload is the fastest.

use tprimat_figures::{Comparison, Group, Judged, Row, Speedup, is_crossed};
use tprimat_results::Tier;

use super::{
    SpeedVerdict,
    pair::{Pair, different_settings},
    phrases::unit,
};
use crate::{
    format::{change_range, faster, number},
    names::short_names,
};

/// The sentence on the fastest of three or more cells of a workload, with its lead over the baseline:
/// `Fastest: titan, 61,894 tokens/s per GPU, 13 % faster than the baseline native (95 % CI 11–15 %;
/// compile differs).` Two cells have one sentence that says it already.
#[must_use]
pub fn ranking(
    comparison: &Comparison,
    judged: &Judged,
    group: &Group,
    rows: &[&Row],
) -> Option<String> {
    let speedups = comparison.speedups_by_cell();
    let names = short_names(rows);
    let at_base = rows.iter().position(|row| row.cell == group.baseline)?;
    let base = (rows[at_base], names[at_base].as_str());
    let mut pairs: Vec<(&Row, &str, &Speedup)> = rows
        .iter()
        .zip(&names)
        .filter_map(|(row, name)| {
            let speedup = *speedups.get(row.cell.as_str())?;
            (speedup.b == group.baseline && speedup.same_as.is_none()).then_some((
                *row,
                name.as_str(),
                speedup,
            ))
        })
        .collect();
    let crosses = |speedup: &Speedup| speedup.labels.iter().any(is_crossed);
    if pairs.len() < 2 || pairs.iter().any(|(.., speedup)| crosses(speedup)) {
        return None;
    }
    let rate = |row: &Row| row.tokens_per_second_per_gpu.value;
    let unit = unit(rows);
    pairs.retain(|(row, ..)| row.impossible().is_none());
    pairs.sort_by(|(a, ..), (b, ..)| rate(b).total_cmp(&rate(a)));
    let fastest = pairs
        .iter()
        .position(|(.., speedup)| SpeedVerdict::of(speedup) == SpeedVerdict::Faster);
    let Some(at) = fastest else {
        let unassessed = pairs.first().filter(|(row, ..)| rate(row) > rate(base.0));
        let higher = unassessed.map_or_else(String::new, |(row, name, _)| {
            format!(
                "; {name} has the highest rate ({}), but it is not clearly faster",
                number(rate(row))
            )
        });
        return Some(format!(
            "No cell is distinguishably faster than the baseline {} ({} {unit}){higher}.",
            base.1,
            number(rate(base.0))
        ));
    };
    let (row, name, speedup) = pairs[at];
    let pair = Pair::of(speedup, (row, name), base);
    let width = pair.ends.map(|[low, high]| high - low);
    let (size, than) = faster(pair.ratio, width);
    let mut details: Vec<String> = Vec::new();
    details.extend(
        pair.ends
            .map(|ends| format!("95 % CI {}", change_range(pair.ratio, ends))),
    );
    let differ = different_settings(&pair, Tier::Execution);
    if !differ.is_empty() {
        details.push(format!("different: {}", differ.join(", ")));
    }
    let details = if details.is_empty() {
        String::new()
    } else {
        format!(" ({})", details.join("; "))
    };
    // Points of a sweep are tested against each other; of others the intervals of the rates decide.
    let is_apart = |other: &Row| {
        let ends = |row: &Row| row.tokens_per_second_per_gpu.ci95;
        let judged = judged.are_apart(&row.cell, &other.cell);
        judged.unwrap_or_else(
            || matches!((ends(row), ends(other)), (Some([low, _]), Some([_, high])) if low > high),
        )
    };
    let word = if at == 0 {
        "Fastest"
    } else {
        "Fastest with a verdict"
    };
    let next = pairs.get(at + 1).filter(|(other, ..)| !is_apart(other));
    let next = next.map_or_else(String::new, |(_, next, _)| {
        format!(" It is not clearly apart from {next}, the next.")
    });
    Some(format!(
        "{word}: {name}, {} {unit}, {size} {than} the baseline {}{details}.{next}",
        number(rate(row)),
        base.1
    ))
}
