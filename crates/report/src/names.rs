//! Short names of cells, as sentences use them: what all of a group's names share is left out.

use tprimat_figures::Row;

use crate::table::mark;

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
    Parts { path: path.split('/').collect(), axes: axes.collect() }
}

/// One a row: `native`, `titan (compiled)`, `nvd/mega`; the names in full where the short ones would be alike.
pub(super) fn short_names(rows: &[&Row]) -> Vec<String> {
    let marked = |row: &Row, name: &str| format!("{name}{}", mark(&row.imported));
    let all: Vec<Parts<'_>> = rows.iter().map(|row| parts(&row.cell)).collect();
    let full = || rows.iter().map(|row| marked(row, &row.cell)).collect();
    if all.iter().any(|parts| parts.path.len() != 4) {
        return full();
    }
    let varies = |at: usize| all.iter().any(|parts| parts.path[at] != all[0].path[at]);
    let shown: Vec<usize> = (0..4).filter(|at| *at == FRAMEWORK || varies(*at)).collect();
    let first = all.first().map_or(&[][..], |parts| &parts.axes);
    let shared: Vec<&str> =
        first.iter().copied().filter(|axis| all.iter().all(|parts| parts.axes.contains(axis))).collect();
    let mut names: Vec<String> = Vec::new();
    for parts in &all {
        let path: Vec<&str> = shown.iter().map(|at| parts.path[*at]).collect();
        let axes = parts.axes.iter().filter(|axis| !shared.contains(axis));
        let axes: Vec<&str> = axes.filter_map(|axis| said(axis)).collect();
        let name = path.join("/");
        names.push(if axes.is_empty() { name } else { format!("{name} ({})", axes.join(", ")) });
    }
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < names.len() {
        return full();
    }
    rows.iter().zip(&names).map(|(row, name)| marked(row, name)).collect()
}

/// An axis in a name; none where its value is what a reader takes for granted.
fn said(axis: &str) -> Option<&str> {
    match axis {
        "compile=true" => Some("compiled"),
        "compile=false" => None,
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use tprimat_figures::{Catalogue, CompareSettings, compare};

    use super::*;
    use crate::stand_ins::*;

    fn names(cells: &[&str]) -> Vec<String> {
        let cells: Vec<_> = cells.iter().map(|name| measured(name, &test_job(), &[1.0], None)).collect();
        let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        short_names(&all.rows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn what_all_share_is_left_out() {
        let cells = ["nvd/native/llama/single@compile=false", "nvd/titan/llama/single@compile=true"];
        assert_eq!(names(&cells), ["native", "titan (compiled)"]);
        assert_eq!(names(&["nvd/mega/llama/a", "amd/prim/llama/b"]), ["nvd/mega/a", "amd/prim/b"]);
        assert_eq!(names(&["nvd/mega/llama/a@seq=1", "nvd/mega/llama/a@seq=2"]), ["mega (seq=1)", "mega (seq=2)"]);
        assert_eq!(names(&["nvd/mega/llama/a"]), ["mega"]);
    }

    #[test]
    fn names_that_would_be_alike_are_told_in_full() {
        let cells = ["nvd/mega/llama/a@compile=false", "nvd/mega/llama/a"];
        assert_eq!(names(&cells), cells);
    }
}
