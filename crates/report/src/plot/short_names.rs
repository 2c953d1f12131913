//! Short names of cells, as sentences and pictures use them: what all of a group's names share is
//! left out.

use tprimat_numbers::figures::Row;

use crate::plot::format::mark;

/// The part of `platform/framework/model/strategy` that is shown even where all cells share it.
const FRAMEWORK: usize = 1;

/// A name in the parts that its group's names do not share: the framework, what stands before and
/// after it, and the axes.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    framework: String,
    before: Option<String>,
    after: Vec<String>,
    axes: Vec<String>,
}

impl Name {
    /// `nvd/mega (compiled)`
    fn joined(&self) -> String {
        let path = self
            .before
            .iter()
            .chain([&self.framework])
            .chain(&self.after);
        let path = path.map(String::as_str).collect::<Vec<_>>().join("/");
        if self.axes.is_empty() {
            path
        } else {
            format!("{path} ({})", self.axes.join(", "))
        }
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
    let named = names(rows, shown).unwrap_or_default();
    let mut names: Vec<String> = named.iter().map(Name::joined).collect();
    let mut sorted = named;
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < rows.len() {
        names = rows.iter().map(|row| row.cell.clone()).collect();
    }
    let marked = rows.iter().zip(names);
    marked
        .map(|(row, name)| name + mark(&row.imported))
        .collect()
}

/// None where a name has other parts than a cell of a matrix.
fn names(rows: &[&Row], without: &[&str]) -> Option<Vec<Name>> {
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
    let varies = |at: &usize| all.iter().any(|(path, _)| path[*at] != all[0].0[*at]);
    let is_told = |axis: &String| {
        let name = axis.split('=').next().unwrap_or_default();
        without.contains(&name) || all.iter().all(|(_, axes)| axes.contains(axis))
    };
    let name = |(path, axes): &(Vec<String>, Vec<String>)| {
        let shown = |at: std::ops::Range<usize>| at.filter(varies).map(|at| path[at].clone());
        let axes = axes.iter().filter(|axis| !is_told(axis));
        Name {
            framework: path[FRAMEWORK].clone(),
            before: shown(0..FRAMEWORK).next(),
            after: shown(FRAMEWORK + 1..4).collect(),
            axes: axes.filter_map(|axis| said(axis)).collect(),
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

/// Which rows have the same name but for the framework: a number for each, 0 for those that are
/// named as the baseline is, the others in the order of their names. Pictures give each number a
/// pattern.
pub(super) fn variants(rows: &[&Row], baseline: &str) -> Vec<usize> {
    let Some(mut named) = names(rows, &[]) else {
        return vec![0; rows.len()];
    };
    named.iter_mut().for_each(|name| name.framework.clear());
    let of_baseline = rows.iter().position(|row| row.cell == baseline);
    let of_baseline = of_baseline.map(|at| &named[at]);
    let mut known: Vec<&Name> = named.iter().collect();
    known.sort_by_key(|name| (Some(*name) != of_baseline, *name));
    known.dedup();
    let number = |name: &Name| known.iter().position(|one| *one == name).unwrap_or(0);
    named.iter().map(number).collect()
}
