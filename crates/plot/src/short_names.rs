//! Short names of cells, as sentences and pictures use them: what all of a group's names share is
//! left out.

use tprimat_figures::Row;

use crate::format::mark;

/// The parts of a name: `platform/framework/model/strategy@axis=value,…`.
struct Parts<'a> {
    path: Vec<&'a str>,
    axes: Vec<&'a str>,
}

/// The part that is shown even where all cells share it.
const FRAMEWORK: usize = 1;

fn parts(cell: &str) -> Parts<'_> {
    let (path, axes) = cell.split_once('@').unwrap_or((cell, ""));
    let axes = axes.split([',', '@']).filter(|axis| !axis.is_empty());
    Parts {
        path: path.split('/').collect(),
        axes: axes.collect(),
    }
}

/// One a row: `native`, `titan (compiled)`, `nvd/mega`; the names in full where the short ones
/// would be alike.
#[must_use]
pub fn short_names(rows: &[&Row]) -> Vec<String> {
    without_axes(rows, &[])
}

/// The same without the axes that a reader sees otherwise: those of a sweep.
#[must_use]
pub fn without_axes(rows: &[&Row], shown: &[&str]) -> Vec<String> {
    let full = || rows.iter().map(|row| marked(row, &row.cell)).collect();
    let Some(named) = named(rows, shown) else {
        return full();
    };
    let mut sorted = named.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < named.len() {
        return full();
    }
    rows.iter()
        .zip(&named)
        .map(|(row, (framework, rest))| marked(row, &joined(framework, rest)))
        .collect()
}

fn marked(row: &Row, name: &str) -> String {
    format!("{name}{}", mark(&row.imported))
}

/// `nvd/` and ` (compiled)` around `mega`.
fn joined(framework: &str, (path, axes): &(Vec<String>, Vec<String>)) -> String {
    let name = path.join("/").replace(PLACE, framework);
    if axes.is_empty() {
        name
    } else {
        format!("{name} ({})", axes.join(", "))
    }
}

/// Where the framework stands in a name without it.
const PLACE: &str = "\u{0}";

/// A framework, and the rest of a short name: path and axes.
type Named = (String, (Vec<String>, Vec<String>));

/// None where a name has other parts than a cell of a matrix.
fn named(rows: &[&Row], without: &[&str]) -> Option<Vec<Named>> {
    let all: Vec<Parts<'_>> = rows.iter().map(|row| parts(&row.cell)).collect();
    if all.iter().any(|parts| parts.path.len() != 4) {
        return None;
    }
    let varies = |at: usize| all.iter().any(|parts| parts.path[at] != all[0].path[at]);
    let shown: Vec<usize> = (0..4)
        .filter(|at| *at == FRAMEWORK || varies(*at))
        .collect();
    let first = all.first().map_or(&[][..], |parts| &parts.axes);
    let shared: Vec<&str> = first
        .iter()
        .copied()
        .filter(|axis| all.iter().all(|parts| parts.axes.contains(axis)))
        .collect();
    let is_told = |axis: &str| {
        let name = axis.split('=').next().unwrap_or_default();
        shared.contains(&axis) || without.contains(&name)
    };
    let name = |parts: &Parts<'_>| {
        let path = shown.iter().map(|at| match *at {
            FRAMEWORK => PLACE.to_owned(),
            at => parts.path[at].to_owned(),
        });
        let axes = parts.axes.iter().filter(|axis| !is_told(axis));
        let axes = axes.filter_map(|axis| said(axis)).map(str::to_owned);
        (
            parts.path[FRAMEWORK].to_owned(),
            (path.collect(), axes.collect()),
        )
    };
    Some(all.iter().map(name).collect())
}

/// Which rows have the same name but for the framework: a number for each, 0 for those that are
/// named as the baseline is, the others in the order of their names. Pictures give each number a
/// pattern.
pub(super) fn variants(rows: &[&Row], baseline: &str) -> Vec<usize> {
    let Some(named) = named(rows, &[]) else {
        return vec![0; rows.len()];
    };
    let of_baseline = rows.iter().position(|row| row.cell == baseline);
    let of_baseline = of_baseline.map(|at| &named[at].1);
    let mut known: Vec<&(Vec<String>, Vec<String>)> = named.iter().map(|(_, rest)| rest).collect();
    known.sort_by_key(|rest| (Some(*rest) != of_baseline, *rest));
    known.dedup();
    let number = |(_, rest): &Named| known.iter().position(|one| *one == rest).unwrap_or(0);
    named.iter().map(number).collect()
}

/// An axis in a name; none where its value is what a reader takes for granted.
fn said(axis: &str) -> Option<&str> {
    match axis {
        "compile=true" => Some("compiled"),
        "compile=false" => None,
        other => Some(other),
    }
}
