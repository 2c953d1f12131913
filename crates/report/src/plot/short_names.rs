//! Short names of cells, as sentences and pictures use them: what all of a group's names share is
//! left out.

use std::collections::BTreeSet;

use tprimat_numbers::figures::Row;

use crate::plot::format::mark;

/// The part of `platform/framework/model/strategy` that is shown even where all cells share it.
const FRAMEWORK: usize = 1;

/// One a row: `native`, `titan (compiled)`, `nvd/mega`; the names in full where the short ones
/// would be alike.
#[must_use]
pub fn short_names(rows: &[&Row]) -> Vec<String> {
    without_axes(rows, &[])
}

/// The same without the axes that a reader sees otherwise: those of a sweep.
#[must_use]
pub fn without_axes(rows: &[&Row], shown: &[&str]) -> Vec<String> {
    let in_full = || rows.iter().map(|row| row.cell.clone()).collect();
    let differ = |names: &Vec<String>| names.iter().collect::<BTreeSet<_>>().len() == rows.len();
    let names = names(rows, shown).filter(differ).unwrap_or_else(in_full);
    let marked = rows.iter().zip(names);
    marked
        .map(|(row, name)| name + mark(&row.imported))
        .collect()
}

/// None where a name has other parts than a cell of a matrix.
fn names(rows: &[&Row], without: &[&str]) -> Option<Vec<String>> {
    let parts = |row: &&'_ Row| -> (Vec<String>, Vec<String>) {
        let (path, axes) = row.cell.split_once('@').unwrap_or((&row.cell, ""));
        let axes = axes.split([',', '@']).filter(|axis| !axis.is_empty());
        (
            path.split('/').map(str::to_owned).collect(),
            axes.map(str::to_owned).collect(),
        )
    };
    let all: Vec<(Vec<String>, Vec<String>)> = rows.iter().map(parts).collect();
    if all.iter().any(|(path, _)| path.len() != 4) {
        return None;
    }
    let differs = |at: usize| all.iter().any(|(path, _)| path[at] != all[0].0[at]);
    let varies = [0, 1, 2, 3].map(differs);
    let first = all.first().map_or(&[][..], |(_, axes)| axes);
    let is_shared = |axis: &&String| all.iter().all(|(_, axes)| axes.contains(axis));
    let shared: Vec<&String> = first.iter().filter(is_shared).collect();
    let is_told = |axis: &String| {
        let name = axis.split('=').next().unwrap_or_default();
        without.contains(&name) || shared.contains(&axis)
    };
    let name = |(path, axes): &(Vec<String>, Vec<String>)| {
        let shown =
            |at: std::ops::Range<usize>| at.filter(|at| varies[*at]).map(|at| path[at].clone());
        let axes = axes.iter().filter(|axis| !is_told(axis));
        let platform = shown(0..FRAMEWORK);
        let after = shown(FRAMEWORK + 1..path.len());
        let parts = platform.chain([path[FRAMEWORK].clone()]).chain(after);
        let path = parts.collect::<Vec<_>>().join("/");
        let axes: Vec<String> = axes.filter_map(|axis| said(axis)).collect();
        match axes.is_empty() {
            true => path,
            false => format!("{path} ({})", axes.join(", ")),
        }
    };
    Some(all.iter().map(name).collect())
}

/// An axis in a name; none where its value is what a reader takes for granted.
fn said(axis: &str) -> Option<String> {
    match axis {
        "compile=true" => Some("compiled".to_owned()),
        "compile=false" => None,
        other => Some(other.to_owned()),
    }
}
