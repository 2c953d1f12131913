//! A sweep as sentences and one table: a line a value of the axis, a column a framework.

use std::collections::{BTreeMap, BTreeSet};

use crate::plot::{plain, surface_names, sweep_sentences, unmeasured};
use serde::Serialize;
use tprimat_numbers::figures::{
    Comparison, Row, Surface, Sweep, SweepPoint, rate_unit, sweeps_unjudged,
};

use super::{
    columns::{asks_for_losses, estimated},
    document::Medium,
    format::{MISSING, number},
    paint::Ink,
    sheet::{Sheet, Word},
};

/// A table of words: its heads, then its lines.
#[derive(Serialize)]
pub(super) struct SweepTable {
    pub title: String,
    /// The title without what is shown: `llama over seq_length`.
    pub name: String,
    pub sentences: Vec<String>,
    /// How many of the first columns are values of axes.
    pub axes: usize,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// What the marks at the rates mean.
    pub legend: Vec<&'static str>,
}

/// The marks behind a point's rate, each with its meaning: what the ordinary table says of a row in
/// its column of repeats.
fn marks(row: &Row, is_best: bool) -> Vec<(String, &'static str)> {
    let mut marks = Vec::new();
    if row.standing.earlier.is_some() {
        let meaning = "[earlier]: measured before its configuration changed";
        marks.push(("[earlier]".to_owned(), meaning));
    }
    if row.n < row.repeats_wanted as usize {
        let meaning = "[m/n]: m of the n repeats that the matrix asks for count";
        marks.push((format!("[{}/{}]", row.n, row.repeats_wanted), meaning));
    }
    if is_best {
        marks.push(("*".to_owned(), "* the fastest of its column"));
    }
    marks
}

/// All sweeps of a comparison, each as one table.
pub(super) fn sweep_tables(comparison: &Comparison, sweeps: &[Sweep]) -> Vec<SweepTable> {
    let of = |sweep: &Sweep| table(comparison, sweep);
    sweeps.iter().map(of).collect()
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
    let marked = |surface: &Surface, point: &SweepPoint| {
        let best = surface.best.as_ref().filter(|best| best.is_fastest);
        let is_best = best.is_some_and(|best| surface.points[best.at] == *point);
        marks(&comparison.rows[point.row], is_best)
    };
    let rows: Vec<&Row> = all().map(|point| &comparison.rows[point.row]).collect();
    let has_losses = asks_for_losses(&rows);
    let mut legend = BTreeSet::new();
    for surface in &sweep.surfaces {
        let all = surface.points.iter().flat_map(|p| marked(surface, p));
        legend.extend(all.map(|(_, meaning)| meaning));
    }
    let absent: Vec<Vec<crate::plot::Unmeasured>> = sweep
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
        let of = |(surface, absent): (&Surface, &Vec<crate::plot::Unmeasured>)| {
            let point = surface.points.iter().find(|point| place(point) == *at);
            let Some(point) = point else {
                let why = absent.iter().find(|p| (p.x, p.second) == *at);
                return why.map_or_else(|| "–".to_owned(), |point| point.why.clone());
            };
            let mut word = estimated(&comparison.rows[point.row].tokens_per_second_per_gpu);
            for (mark, _) in marked(surface, point) {
                word += &format!(" {mark}");
            }
            word
        };
        let loss = |surface: &Surface| {
            let point = surface.points.iter().find(|point| place(point) == *at);
            let loss = point.and_then(|point| comparison.rows[point.row].loss_at_end);
            loss.map_or_else(|| MISSING.to_owned(), number)
        };
        let losses = sweep.surfaces.iter().filter(|_| has_losses).map(loss);
        values
            .chain(sweep.surfaces.iter().zip(&absent).map(of))
            .chain(losses)
            .collect()
    };
    let mut names = surface_names(comparison, sweep);
    if has_losses {
        let losses = names.iter().map(|name| format!("{name}: loss at end"));
        names.extend(losses.collect::<Vec<_>>());
    }
    let name = format!("{} over {}", sweep.model, over.join(" and "));
    SweepTable {
        title: format!("{name}: {unit} (95 % CI)"),
        name,
        sentences: sweep_sentences(comparison, sweep),
        axes: axes.len(),
        columns: axes.into_iter().cloned().chain(names).collect(),
        rows: places.iter().map(row).collect(),
        legend: legend.into_iter().collect(),
    }
}

/// A sweep: its title, what is said of it, its table, and what the marks in it mean.
pub(super) fn tell_sweep(table: &SweepTable, out: &mut impl Medium) {
    out.title(&table.title);
    for sentence in &table.sentences {
        out.sentence(Ink::Plain, sentence);
    }
    let heads: Vec<(&str, bool)> = table
        .columns
        .iter()
        .map(|name| (name.as_str(), true))
        .collect();
    let mut sheet = Sheet::new(&heads, table.axes);
    let words = |row: &Vec<String>| row.iter().map(Word::plain).collect();
    sheet.rows = table.rows.iter().map(words).collect();
    out.sheet(&sheet);
    for meaning in &table.legend {
        out.remark(meaning);
    }
    out.end();
}

/// The sweep and the line in it that each cell is a point of.
pub(super) fn line_of_cell(comparison: &Comparison) -> BTreeMap<&str, (usize, usize)> {
    let mut lines = BTreeMap::new();
    for (at, sweep) in sweeps_unjudged(comparison).iter().enumerate() {
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
    use tprimat_numbers::figures::{
        Catalogue, CellInput, CompareSettings, Judged, compare, sweeps,
    };

    use super::*;
    use crate::{Page, sheet::Text, stand_ins::*};

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
        let mut out = Text::new(&page);
        for table in sweep_tables(&all, &sweeps(&all, &Judged::of_comparison(&all))) {
            tell_sweep(&table, &mut out);
        }
        out.out
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
        failed.state = tprimat_numbers::figures::CellState::Failed {
            class: tprimat_job::FailureClass::Oom,
            evidence: Vec::new(),
            repeats: 1,
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

    /// The ordinary table says so in its column of repeats.
    #[test]
    fn a_point_that_is_not_measured_whole_is_marked() {
        let mut cells =
            [1, 2, 4].map(|value| cell("titan", "micro_batch_size", value, 1.0 / value as f64));
        let whole = text(&cells);
        assert!(!whole.contains('['), "{whole}");
        cells[0].repeats_wanted = 5;
        cells[0].standing.to_come = 2;
        cells[2].standing.earlier = Some("measured before seq_length changed".to_owned());
        let marked = text(&cells);
        let line = |value: &str| {
            let mut lines = marked.lines();
            let line = lines.find(|line| line.trim_start().starts_with(value));
            line.unwrap_or_default().trim_end().to_owned()
        };
        assert!(line("1 ").ends_with(" [3/5]"), "{marked}");
        assert!(!line("2 ").contains('['), "{marked}");
        assert!(line("4 ").contains(" [earlier]"), "{marked}");
        assert!(
            marked.contains("[m/n]: m of the n repeats")
                && marked.contains("[earlier]: measured before"),
            "{marked}"
        );
    }

    /// The interval of two lines at their highest rates is explained by its own sentence.
    #[test]
    fn no_correction_is_named_for_the_highest_rates_of_two_lines() {
        let of = |framework: &str, by: f64| {
            [(1, 1.3), (2, 1.0), (4, 0.97)].map(|(n, time)| {
                let mut one = cell(framework, "micro_batch_size", n, time * by);
                let tprimat_numbers::figures::CellState::Ok { summary } = &mut one.state else {
                    unreachable!("{one:?}")
                };
                // The points of a line count one run of it, so none of them is called the fastest.
                summary.repeats[0].attempt = format!("{framework}-0");
                one
            })
        };
        let cells = [of("native", 1.0), of("titan", 0.9)].concat();
        let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        let commands = crate::Commands {
            details: "tprimat compare --details".to_owned(),
            build: "tprimat build".to_owned(),
            can_run: Some(true),
            plan: "tprimat plan".to_owned(),
        };
        let page = Page {
            width: 1000,
            ..Page::file()
        };
        let said = crate::glance(&all, false, &commands, &page);
        assert!(said.contains("allows for picking the highest"), "{said}");
        assert!(!said.contains("corrected for"), "{said}");
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
