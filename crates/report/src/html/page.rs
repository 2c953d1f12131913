//! What stands above the details: sentences, a table a group, and what has no figures.

use serde::Serialize;
use tprimat_base::words::{part, plain::counted};
use tprimat_numbers::figures::{AbsentCell, Comparison, Judged, sweeps};

use super::{
    super::{
        columns::{Of, Place, marks, rows_of},
        document::{LEADING, Section, sections},
        format::mark,
        headline::{Headline, SpeedVerdict, headlines},
        notes::notes,
        plot::short_names,
        shown::Shown,
        sweep::{SweepTable, line_of_cell, sweep_tables},
    },
    MOST,
};

#[derive(Serialize)]
pub struct Page<'a> {
    /// Cells with figures, cells without, repeats that failed, that contradict their job, that
    /// measured nothing.
    counts: Vec<String>,
    sweeps: Vec<SweepTable>,
    groups: Vec<GroupTable>,
    /// Which cells may not be compared, and why.
    refused: Vec<String>,
    absent: Vec<Absent<'a>>,
    notes: Vec<String>,
    /// What a page of this many cells does not show, and where it is.
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct GroupTable {
    model: String,
    workload: String,
    /// The first to be told, and the others.
    leading: Vec<String>,
    more: Vec<String>,
    /// How the measured parts were found.
    steady_state: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    id: String,
    cell: String,
    /// What sets it apart from the others of its table.
    name: String,
    is_baseline: bool,
    marks: Vec<String>,
    labels: Vec<String>,
    warnings: Vec<String>,
    figures: Vec<Shown>,
}

#[derive(Serialize)]
struct Absent<'a> {
    id: String,
    cell: &'a str,
    state: &'a str,
    /// The state for people.
    word: String,
    reason: String,
    imported: bool,
}

impl<'a> Page<'a> {
    pub fn of(comparison: &'a Comparison) -> Self {
        let told = headlines(comparison);
        let sections = sections(comparison, &told, (Place::Page, MOST));
        let groups = sections.into_iter().map(table);
        // A sweep says itself that its points are different workloads.
        let lines = line_of_cell(comparison);
        let is_told = |h: &Headline| {
            let other = h.b.as_deref().and_then(|cell| lines.get(cell));
            other.is_some() && lines.get(h.a.as_str()) == other
        };
        let refused = told
            .iter()
            .filter(|h| h.verdict == SpeedVerdict::Refused && !is_told(h));
        let mut refused: Vec<String> = refused.map(|h| h.text.clone()).collect();
        let mut notes: Vec<String> = notes(comparison)
            .into_iter()
            .map(|note| note.text)
            .collect();
        let all = [
            (comparison.rows.len(), "cells with figures"),
            (comparison.absent.len(), "cells without figures"),
            (refused.len(), "pairs that may not be compared"),
            (notes.len(), "notes"),
        ];
        let left_out = all.into_iter().filter(|(n, _)| *n > MOST).map(|(n, what)| {
            format!("This page shows the first {MOST} of {n} {what}; compare.json has all of them.")
        });
        refused.truncate(MOST);
        notes.truncate(MOST);
        let absent = comparison
            .absent
            .iter()
            .take(MOST)
            .zip(comparison.rows.len()..);
        Self {
            counts: counts(comparison),
            sweeps: sweep_tables(
                comparison,
                &sweeps(comparison, &Judged::of_comparison(comparison)),
            ),
            groups: groups.collect(),
            refused,
            absent: absent.map(|(cell, at)| of_absent(cell, at)).collect(),
            notes,
            left_out: left_out.collect(),
        }
    }
}

fn of_absent(cell: &AbsentCell, at: usize) -> Absent<'_> {
    Absent {
        id: id(at),
        cell: &cell.cell,
        state: cell.state.name(),
        word: cell.state.to_string(),
        reason: cell.reason.text.clone(),
        imported: !cell.imported.is_empty(),
    }
}

/// Where a cell's details are: rows first, then cells without figures.
pub fn id(at: usize) -> String {
    format!("cell-{}", at + 1)
}

fn counts(comparison: &Comparison) -> Vec<String> {
    let uncounted = &comparison.uncounted;
    let more = [
        (comparison.groups.len(), "workload", ""),
        (comparison.absent.len(), "cell", " without figures"),
        (uncounted.failed, "failed run", ""),
        (uncounted.contradicted, "contradicted run", ""),
        (uncounted.suspect, "suspect run", ""),
        (uncounted.unmeasured, "run", " with nothing to measure"),
    ];
    let more = more.into_iter().filter(|(n, ..)| *n > 0);
    let cells = counted(comparison.rows.len(), "cell");
    let counts = std::iter::once(format!("{cells} with figures"));
    counts
        .chain(more.map(|(n, noun, which)| counted(n, noun) + which))
        .collect()
}

fn table(section: Section<'_>) -> GroupTable {
    let names = short_names(&rows_of(&section.rows));
    let figures = section.figures.rows.into_iter().zip(section.metrics.rows);
    let line = |of: &Of<'_>, name: String, (own, metrics): (Vec<Shown>, Vec<Shown>)| {
        let imported = (!of.row.imported.is_empty()).then(|| "imported".to_owned());
        Line {
            id: id(of.at),
            cell: of.row.cell.clone(),
            name: part(&name, ..name.len() - mark(&of.row.imported).len()).to_owned(),
            is_baseline: of.is_baseline(),
            marks: imported.into_iter().chain(marks(of.row)).collect(),
            labels: of.row.labels.iter().map(ToString::to_string).collect(),
            warnings: of.row.warnings.iter().map(ToString::to_string).collect(),
            figures: [own, metrics].concat(),
        }
    };
    let heads = section
        .figures
        .heads
        .into_iter()
        .chain(section.metrics.heads);
    let (first, more) = section.told.split_at(LEADING.min(section.told.len()));
    let leading = first.iter().map(|headline| headline.text.clone());
    GroupTable {
        model: section.model.to_owned(),
        workload: section.workload,
        leading: leading.collect(),
        more: more
            .iter()
            .take(MOST)
            .map(|headline| headline.text.clone())
            .collect(),
        steady_state: section.steady_state,
        columns: heads.map(|(title, _)| title).collect(),
        rows: section
            .rows
            .iter()
            .zip(names)
            .zip(figures)
            .map(|((of, name), shown)| line(of, name, shown))
            .collect(),
    }
}
