//! A sweep as sentences and one table: a line a value of the axis, a column a framework.

use std::collections::{BTreeMap, BTreeSet};

use tprimat_figures::{Comparison, Sweep, SweepPoint, rate_unit, sweeps};
use tprimat_plot::{plain, surface_names, sweep_sentences, unmeasured};

use super::{
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    table::rate,
};

/// A table of words: its heads, then its lines.
pub(super) struct SweepTable {
    pub title: String,
    /// The title without what is shown: `llama over seq_length`.
    pub name: String,
    pub sentences: Vec<String>,
    /// How many of the first columns are values of axes.
    pub axes: usize,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl SweepTable {
    /// Has it a `*` at a rate?
    pub fn names_fastest(&self) -> bool {
        self.rows.iter().flatten().any(|word| word.ends_with('*'))
    }
}

/// All sweeps of a comparison, each as one table.
pub(super) fn sweep_tables(comparison: &Comparison) -> Vec<SweepTable> {
    let of = |sweep: &Sweep| table(comparison, sweep);
    sweeps(comparison).iter().map(of).collect()
}

fn table(comparison: &Comparison, sweep: &Sweep) -> SweepTable {
    let axes: Vec<&String> = [Some(&sweep.axis), sweep.second.as_ref()]
        .into_iter()
        .flatten()
        .collect();
    let over: Vec<&str> = axes.iter().map(|axis| axis.as_str()).collect();
    let all = || sweep.surfaces.iter().flat_map(|surface| &surface.points);
    let unit = rate_unit(all().map(|point| &comparison.rows[point.row]));
    let place = |point: &SweepPoint| (point.x, point.second);
    let absent: Vec<Vec<tprimat_plot::Unmeasured>> = sweep
        .surfaces
        .iter()
        .map(|surface| unmeasured(comparison, sweep, surface))
        .collect();
    let without = absent.iter().flatten().map(|point| (point.x, point.second));
    let mut places: Vec<(f64, Option<f64>)> = all().map(place).chain(without).collect();
    places.sort_by(|a, b| {
        let second = |place: &(f64, Option<f64>)| place.1.unwrap_or(0.0);
        a.0.total_cmp(&b.0).then(second(a).total_cmp(&second(b)))
    });
    places.dedup();
    let row = |at: &(f64, Option<f64>)| {
        let values = [Some(at.0), at.1].into_iter().flatten().map(plain);
        let of =
            |(surface, absent): (&tprimat_figures::Surface, &Vec<tprimat_plot::Unmeasured>)| {
                let point = surface.points.iter().find(|point| place(point) == *at);
                let Some(point) = point else {
                    let why = absent.iter().find(|p| (p.x, p.second) == *at);
                    return why.map_or_else(|| "–".to_owned(), |point| point.why.clone());
                };
                let best = surface.best.as_ref().filter(|best| best.is_fastest());
                let is_best = best.is_some_and(|best| surface.points[best.at] == *point);
                let rate = rate(&comparison.rows[point.row].tokens_per_second_per_gpu);
                if is_best { format!("{rate} *") } else { rate }
            };
        values
            .chain(sweep.surfaces.iter().zip(&absent).map(of))
            .collect()
    };
    let names = surface_names(comparison, sweep);
    let name = format!("{} over {}", sweep.model, over.join(" and "));
    SweepTable {
        title: format!("{name}: {unit} (95 % CI)"),
        name,
        sentences: sweep_sentences(comparison, sweep),
        axes: axes.len(),
        columns: axes.into_iter().cloned().chain(names).collect(),
        rows: places.iter().map(row).collect(),
    }
}

/// Every sweep: its title, what is said of it, its table; as wide as the page, so that of many
/// frameworks there are several tables, one below the other.
pub(super) fn sweep_text(comparison: &Comparison, page: &Page) -> String {
    let mut out = String::new();
    for table in sweep_tables(comparison) {
        paragraph(&mut out, "", &table.title, page, Ink::Strong);
        for sentence in &table.sentences {
            paragraph(&mut out, "", sentence, page, Ink::Plain);
        }
        for some in in_width(&table, page.width) {
            let mut sheet = Sheet::default();
            let shown: Vec<usize> = (0..table.axes).chain(some).collect();
            for at in &shown {
                sheet.column(table.columns[*at].clone(), true);
            }
            for row in &table.rows {
                let words = shown.iter().map(|at| Word::plain(row[*at].clone()));
                sheet.rows.push(words.collect());
            }
            out.push_str(&sheet.bare(page, shown.len(), &BTreeSet::new()));
        }
        if table.names_fastest() {
            paragraph(
                &mut out,
                "  ",
                "* the fastest of its column",
                page,
                Ink::Dim,
            );
        }
        out.push('\n');
    }
    out
}

/// The columns of a table's surfaces, as many to a table as the width has room for beside the axes.
fn in_width(table: &SweepTable, width: usize) -> Vec<std::ops::Range<usize>> {
    let wide = |at: usize| {
        let words = table.rows.iter().map(|row| &row[at]);
        let widths = words.chain([&table.columns[at]]).map(|w| w.chars().count());
        widths.max().unwrap_or(0) + 2
    };
    let axes: usize = (0..table.axes).map(wide).sum();
    let mut tables: Vec<std::ops::Range<usize>> = Vec::new();
    let mut used = 0;
    for at in table.axes..table.columns.len() {
        match tables.last_mut() {
            Some(last) if axes + used + wide(at) <= width => last.end = at + 1,
            _ => {
                tables.push(at..at + 1);
                used = 0;
            }
        }
        used += wide(at);
    }
    tables
}

/// Groups all of whose cells stand in the table of a sweep.
pub(super) fn swept_groups(comparison: &Comparison) -> BTreeSet<usize> {
    let found = sweeps(comparison);
    let points = found.iter().flat_map(|sweep| &sweep.surfaces);
    let rows: BTreeSet<usize> = points
        .flat_map(|surface| &surface.points)
        .map(|point| point.row)
        .collect();
    let is_left = |(at, _): &(usize, &tprimat_figures::Row)| !rows.contains(at);
    let left = comparison.rows.iter().enumerate().filter(is_left);
    let left: BTreeSet<usize> = left.map(|(_, row)| row.group).collect();
    (0..comparison.groups.len())
        .filter(|group| !left.contains(group))
        .collect()
}

/// The sweep and the line in it that each cell is a point of.
pub(super) fn lines(comparison: &Comparison) -> BTreeMap<&str, (usize, usize)> {
    let mut lines = BTreeMap::new();
    for (at, sweep) in sweeps(comparison).iter().enumerate() {
        for (line, surface) in sweep.surfaces.iter().enumerate() {
            for point in &surface.points {
                lines.insert(comparison.rows[point.row].cell.as_str(), (at, line));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use tprimat_figures::{Catalogue, CellInput, CompareSettings, compare};

    use super::*;
    use crate::stand_ins::*;

    fn cell(framework: &str, axis: &str, value: u64, time: f64) -> CellInput {
        let mut job = test_job();
        match axis {
            "seq_length" => job.data.seq_length = value,
            _ => job.data.micro_batch_size = value,
        }
        let name = format!("nvd/{framework}/llama/single@{axis}={value}");
        let times = [1.0, 1.001, 0.999].map(|near| near * time);
        let mut cell = measured(&name, &job, &times, None);
        cell.axes = [(axis.to_owned(), value.to_string())].into();
        cell
    }

    fn text(cells: &[CellInput]) -> String {
        let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
        let page = Page {
            width: 100,
            ..Page::file()
        };
        sweep_text(&all, &page)
    }

    #[test]
    fn a_sweep_of_one_workload_says_which_value_is_the_fastest() {
        let times = [(1, 1.3), (2, 1.0), (4, 0.97), (8, 1.05)];
        let of = |framework, by: f64| {
            times.map(|(value, time)| cell(framework, "micro_batch_size", value, time * by))
        };
        insta::assert_snapshot!(text(&[of("native", 1.0), of("titan", 0.9)].concat()));
    }

    /// 2 and 4 differ by less than the noise.
    #[test]
    fn a_best_point_that_is_not_apart_from_its_neighbour_is_one_of_the_two() {
        let times = [
            (1, [1.30, 1.31, 1.29]),
            (2, [1.00, 1.01, 0.99]),
            (4, [0.997, 1.007, 0.987]),
        ];
        let of = |(value, times): (u64, [f64; 3])| {
            let mut one = cell("titan", "micro_batch_size", value, 1.0);
            let mut job = test_job();
            job.data.micro_batch_size = value;
            let name = format!("nvd/titan/llama/single@micro_batch_size={value}");
            let axes = std::mem::take(&mut one.axes);
            one = measured(&name, &job, &times, None);
            one.axes = axes;
            one
        };
        let said = text(&times.map(of));
        let said: Vec<&str> = said.split_whitespace().collect();
        let said = said.join(" ");
        let words =
            "titan: micro_batch_size 4 or 2 is fastest; the runs do not tell which (the first is";
        assert!(said.contains(words), "{said}");
        assert!(!said.contains("* the fastest"), "{said}");
    }

    #[test]
    fn a_point_without_a_figure_says_why_and_is_not_beaten() {
        let mut cells: Vec<_> = [(1, 1.3), (2, 1.0), (4, 0.97)]
            .map(|(value, time)| cell("titan", "micro_batch_size", value, time))
            .into();
        let mut failed = cell("titan", "micro_batch_size", 8, 1.0);
        failed.state = tprimat_figures::CellState::Failed {
            class: tprimat_job::FailureClass::Oom,
            evidence: Vec::new(),
        };
        cells.push(failed);
        let said = text(&cells);
        let words =
            "micro_batch_size 4 is the fastest of 1, 2, 4 (8 has no figure: out of memory): 3";
        assert!(
            said.split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .contains(words),
            "{said}"
        );
        assert_eq!(said.matches("out of memory").count(), 2, "{said}");
    }

    /// A page lists under "Not compared" nothing that its sweep says already.
    #[test]
    fn points_of_a_line_are_not_listed_as_refused() {
        let times = [(64, 1.0), (128, 2.1), (256, 4.4)];
        let mut cells: Vec<_> = times
            .map(|(value, time)| cell("native", "seq_length", value, time))
            .into();
        let page = |cells: &[CellInput]| {
            let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
            crate::html(&all, &[], &crate::Meta::default()).unwrap()
        };
        assert!(!page(&cells).contains("may not be compared"));
        // One that is no point of it is.
        let mut other = cell("native", "seq_length", 512, 9.0);
        other.cell = "nvd/tran/llama/single".to_owned();
        other.axes.clear();
        cells.push(other);
        assert!(page(&cells).contains("may not be compared"));
    }

    #[test]
    fn a_sweep_over_workloads_ranks_frameworks_and_no_value() {
        let times = [(64, 1.0), (128, 2.1), (256, 4.4)];
        let of = |framework, by: f64| {
            times.map(|(value, time)| cell(framework, "seq_length", value, time * by))
        };
        insta::assert_snapshot!(text(&[of("native", 1.0), of("titan", 0.9)].concat()));
    }
}
