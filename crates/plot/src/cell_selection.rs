//! Which cells the pictures show: all of them, or of many as many as a reader can still take in.
//!
//! Every picture of a comparison shows the same cells in the same order.

use std::sync::OnceLock;

use tprimat_figures::{AbsentCell, Comparison, Judged, Row};
use tprimat_results::Contract;

use super::canvas::Canvas;

/// Cells of a picture. The tallest one, step times, then has 30 lines of panels.
const MOST_CELLS: usize = 60;
/// Workloads of a picture; each has panels of its own.
const MOST_GROUPS: usize = 16;

/// A comparison as the pictures show it.
pub struct Shown<'a> {
    /// Every cell, as the comparison has it.
    pub all: &'a Comparison,
    /// The fastest cell of each group first.
    pub comparison: Comparison,
    /// What is not shown and where it is, for the head of each picture.
    said: String,
    judged: OnceLock<Judged>,
}

impl<'a> Shown<'a> {
    /// All cells, where there are few. Of many: the workloads with the most cells, and of each the
    /// baseline, then the fastest and the slowest in turn.
    pub fn of(comparison: &'a Comparison) -> Self {
        let (cells, groups) = (comparison.rows.len(), comparison.groups.len());
        if cells <= MOST_CELLS && groups <= MOST_GROUPS {
            let rows: Vec<usize> = (0..cells).collect();
            let groups: Vec<usize> = (0..groups).collect();
            return Self {
                all: comparison,
                comparison: reduced(comparison, &groups, rows),
                said: String::new(),
                judged: OnceLock::new(),
            };
        }
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); groups];
        for (index, row) in comparison.rows.iter().enumerate() {
            members[row.group].push(index);
        }
        let mut kept_groups: Vec<usize> = (0..groups).collect();
        // Stable: of workloads with as many cells, the first ones of the matrix.
        kept_groups.sort_by_key(|group| std::cmp::Reverse(members[*group].len()));
        kept_groups.truncate(MOST_GROUPS);
        kept_groups.sort_unstable();
        let ranked: Vec<Vec<usize>> = kept_groups
            .iter()
            .map(|g| ranked(comparison, *g, &members[*g]))
            .collect();
        let longest = ranked.iter().map(Vec::len).max().unwrap_or(0);
        let mut kept: Vec<usize> = Vec::new();
        for rank in 0..longest {
            kept.extend(ranked.iter().filter_map(|members| members.get(rank)));
        }
        kept.truncate(MOST_CELLS);
        let of_workloads = match groups {
            _ if groups > MOST_GROUPS => {
                format!("{MOST_GROUPS} of {groups} workloads, those with the most cells")
            }
            1 => "the workload".to_owned(),
            n => format!("all {n} workloads"),
        };
        let said = format!(
            " This picture shows {} of {cells} cells from {of_workloads}: of each workload the baseline, the fastest and \
             the slowest. The tables of report.html and compare.csv have every cell.",
            kept.len(),
        );
        Self {
            all: comparison,
            comparison: reduced(comparison, &kept_groups, kept),
            said,
            judged: OnceLock::new(),
        }
    }

    /// The verdicts on all cells; the pictures share them, since a long sweep has many.
    pub fn judged(&self) -> &Judged {
        self.judged.get_or_init(|| Judged::of_comparison(self.all))
    }

    /// Begins a picture: its title, what a reader must know of all panels, and what is not shown.
    pub fn titled(&self, title: &str, subtitle: &str) -> Canvas {
        Canvas::titled(title, &format!("{subtitle}{}", self.said))
    }

    /// Why there is no picture; the cells that are not shown might have had one.
    pub fn reason(&self, why: String) -> String {
        if self.said.is_empty() {
            why
        } else {
            format!(
                "{why}, in the {} cells that pictures show",
                self.comparison.rows.len()
            )
        }
    }
}

/// Members of a group in the order in which they are worth a place.
fn ranked(comparison: &Comparison, group: usize, members: &[usize]) -> Vec<usize> {
    let baseline = &comparison.groups[group].baseline;
    let (mut ranked, mut others): (Vec<usize>, Vec<usize>) = members
        .iter()
        .partition(|index| comparison.rows[**index].cell == *baseline);
    let rate = |index: &usize| comparison.rows[*index].tokens_per_second_per_gpu.value;
    others.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let (mut fastest, mut slowest) = (0, others.len());
    while fastest < slowest && ranked.len() < MOST_CELLS {
        ranked.push(others[fastest]);
        fastest += 1;
        if fastest < slowest {
            slowest -= 1;
            ranked.push(others[slowest]);
        }
    }
    ranked
}

/// What cannot be is not the fastest.
fn speed(row: &Row) -> f64 {
    let rate = row.tokens_per_second_per_gpu.value;
    if row.impossible().is_some() || !rate.is_finite() {
        f64::NEG_INFINITY
    } else {
        rate
    }
}

/// The comparison with these groups and rows alone, and of it only what pictures are made of.
fn reduced(comparison: &Comparison, groups: &[usize], mut rows: Vec<usize>) -> Comparison {
    // Stable: matrix order among equals.
    rows.sort_unstable();
    rows.sort_by(|a, b| {
        let key = |index: &usize| {
            (
                comparison.rows[*index].group,
                speed(&comparison.rows[*index]),
            )
        };
        let ((of_a, a), (of_b, b)) = (key(a), key(b));
        of_a.cmp(&of_b).then(b.total_cmp(&a))
    });
    let place = |group: usize| {
        groups
            .binary_search(&group)
            .expect("rows are chosen from these groups")
    };
    let rows: Vec<Row> = rows
        .iter()
        .map(|index| &comparison.rows[*index])
        .map(|row| Row {
            group: place(row.group),
            ..row.clone()
        })
        .collect();
    let mut shown_groups: Vec<_> = groups
        .iter()
        .map(|group| comparison.groups[*group].clone())
        .collect();
    for (place, group) in shown_groups.iter_mut().enumerate() {
        group.cells = rows
            .iter()
            .filter(|row| row.group == place)
            .map(|row| row.cell.clone())
            .collect();
    }
    let absent = |cell: &AbsentCell| AbsentCell {
        cell: cell.cell.clone(),
        state: cell.state,
        reason: cell.reason.clone(),
        contradicted: cell.contradicted,
        imported: cell.imported.clone(),
        contract: Contract::default(),
        attested: None,
        repeats: Vec::new(),
        failed: cell.failed,
    };
    Comparison {
        schema_version: comparison.schema_version.clone(),
        comparable: comparison.comparable,
        rows,
        groups: shown_groups,
        speedups: Vec::new(),
        differences: Vec::new(),
        environment: Vec::new(),
        absent: comparison.absent.iter().map(absent).collect(),
        uncounted: comparison.uncounted,
        notes: Vec::new(),
    }
}
