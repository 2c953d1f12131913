//! Which cell of a workload is the fastest.

use tprimat_numbers::figures::{Comparison, Group, Judged, Row, Speedup, is_crossed};
use tprimat_numbers::results::Tier;

use super::{SpeedVerdict, pair::Pair, phrases::unit};
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
    let mut pairs: Vec<(&Row, &str, &Speedup)> = Vec::new();
    for (row, name) in rows.iter().zip(&names) {
        let speedup = speedups.get(row.cell.as_str());
        let is_own = |s: &&&Speedup| s.b == group.baseline && s.same_as.is_none();
        pairs.extend(speedup.filter(is_own).map(|s| (*row, name.as_str(), *s)));
    }
    let crosses = |speedup: &Speedup| speedup.labels.iter().any(is_crossed);
    if pairs.len() < 2 || pairs.iter().any(|(.., speedup)| crosses(speedup)) {
        return None;
    }
    let rate = |row: &Row| row.tokens_per_second_per_gpu.value;
    let unit = unit(rows);
    pairs.retain(|(row, ..)| row.impossible().is_none());
    pairs.sort_by(|(a, ..), (b, ..)| rate(b).total_cmp(&rate(a)));
    let is_faster = |speedup: &Speedup| SpeedVerdict::of(speedup) == SpeedVerdict::Faster;
    let (of_base, base_name) = (number(rate(base.0)), base.1);
    let Some(at) = pairs.iter().position(|(.., speedup)| is_faster(speedup)) else {
        let unassessed = pairs.first().filter(|(row, ..)| rate(row) > rate(base.0));
        let higher = unassessed.map_or_else(String::new, |(row, name, _)| {
            let rate = number(rate(row));
            format!("; {name} has the highest rate ({rate}), but it is not clearly faster")
        });
        return Some(format!(
            "No cell is distinguishably faster than the baseline {base_name} ({of_base} {unit}){higher}."
        ));
    };
    let (row, name, speedup) = &pairs[at];
    let pair = Pair::of(speedup, (row, name), base);
    let (size, than) = faster(pair.ratio, pair.width());
    let interval = pair.ends.map(|ends| change_range(pair.ratio, ends));
    let interval = interval.map(|range| format!("95 % CI {range}"));
    let differ = pair.different_settings(Tier::Execution).join(", ");
    let differ = (!differ.is_empty()).then(|| format!("different: {differ}"));
    let details: Vec<String> = interval.into_iter().chain(differ).collect();
    let details = match details.is_empty() {
        true => String::new(),
        false => format!(" ({})", details.join("; ")),
    };
    // Points of a sweep are tested against each other; of others the intervals of the rates decide.
    let is_apart = |other: &Row| {
        let ends = |row: &Row| row.tokens_per_second_per_gpu.ci95;
        let is_above =
            || matches!((ends(row), ends(other)), (Some([low, _]), Some([_, high])) if low > high);
        judged
            .are_apart(&row.cell, &other.cell)
            .unwrap_or_else(is_above)
    };
    let word = match at {
        0 => "Fastest",
        _ => "Fastest with a verdict",
    };
    let next = pairs.get(at + 1).filter(|(other, ..)| !is_apart(other));
    let next = next.map_or_else(String::new, |(_, next, _)| {
        format!(" It is not clearly apart from {next}, the next.")
    });
    let rate = number(rate(row));
    Some(format!(
        "{word}: {name}, {rate} {unit}, {size} {than} the baseline {base_name}{details}.{next}"
    ))
}
