//! What a reader must know beside the figures: the weightiest first, and what holds of several
//! cells once.

use std::collections::HashSet;

use indexmap::IndexMap;
use tprimat_numbers::figures::{Comparison, Figure, Mfu, NoteKind, RepeatStatus, Row};

use super::{
    columns::{Place, shown_metrics},
    format::number,
};

/// What is told of one or several cells.
pub(super) struct NoteLine {
    pub kind: NoteKind,
    pub text: String,
}

/// Everything that is to be told beside the figures. What is the same of several cells is one sentence.
pub(super) fn notes(comparison: &Comparison) -> Vec<NoteLine> {
    let notes = comparison.notes.iter();
    let mut all: Vec<(NoteKind, Option<&str>, String)> = notes
        .map(|note| (note.kind, note.cell.as_deref(), note.reason.text.clone()))
        .collect();
    all.extend(comparison.rows.iter().filter_map(of_mfu));
    all.extend(of_metrics(&comparison.rows));
    // Stable: within a kind they keep the order in which they were made.
    all.sort_by_key(|(kind, ..)| *kind);
    // A note of no cell is one of its own.
    let mut merged: IndexMap<(NoteKind, String, Option<usize>), Vec<&str>> = IndexMap::new();
    for (at, (kind, cell, text)) in all.into_iter().enumerate() {
        let cells = merged.entry((kind, text, cell.is_none().then_some(at)));
        cells.or_default().extend(cell);
    }
    let rows: Vec<&str> = comparison.rows.iter().map(|r| r.cell.as_str()).collect();
    let told = |((kind, text, _), cells): ((NoteKind, String, _), Vec<&str>)| {
        let text = if cells.is_empty() {
            capital(&text)
        } else {
            format!("{}: {text}", listed(&cells, &rows))
        };
        let stop = if text.ends_with('?') { "" } else { "." };
        NoteLine {
            kind,
            text: format!("{text}{stop}"),
        }
    };
    merged.into_iter().map(told).collect()
}

/// Without remarks beyond the first `most`, and how many those are.
pub(super) fn shortened(mut notes: Vec<NoteLine>, most: Option<usize>) -> (Vec<NoteLine>, usize) {
    let (all, mut remarks) = (notes.len(), 0);
    notes.retain(|note| {
        let is_remark = [NoteKind::WarmUp, NoteKind::Remark].contains(&note.kind);
        remarks += usize::from(is_remark);
        !is_remark || most.is_none_or(|most| remarks <= most)
    });
    let left_out = all - notes.len();
    (notes, left_out)
}

fn of_mfu(row: &Row) -> Option<(NoteKind, Option<&str>, String)> {
    let (kind, text) = match &row.mfu {
        Mfu::Absent { reason } => (NoteKind::Remark, format!("no MFU: {}", reason.text.clone())),
        Mfu::Ok {
            convention, peak, ..
        } => {
            let (tflops, source) = (number(peak.tflops), &peak.source);
            let text = format!("MFU: {convention} FLOPs ÷ {tflops} TFLOP/s ({source})");
            (NoteKind::Method, text)
        }
        Mfu::Error { .. } => return None,
    };
    Some((kind, Some(&row.cell), text))
}

/// Why metrics that other cells have are missing, and which are impossible.
fn of_metrics(rows: &[Row]) -> Vec<(NoteKind, Option<&str>, String)> {
    let shown = shown_metrics(&rows.iter().collect::<Vec<_>>(), Place::Table);
    let mut notes = Vec::new();
    for row in rows {
        // By reason: which metrics, and whether they are impossible rather than absent.
        let mut reasons: IndexMap<(bool, String), Vec<&str>> = IndexMap::new();
        for metric in &row.metrics.0 {
            let (is_error, reason) = match &metric.figure {
                Figure::Absent { reason } if shown.contains(&&*metric.name) => (false, reason),
                Figure::Error { reason } if metric.name != "mfu" => (true, reason),
                _ => continue,
            };
            let titles = reasons.entry((is_error, reason.text.clone()));
            titles.or_default().push(&metric.title);
        }
        notes.extend(reasons.into_iter().map(|((is_error, reason), titles)| {
            let titles = titles.join(", ");
            let (kind, text) = if is_error {
                (
                    NoteKind::Doubtful,
                    format!("{titles}: impossible: {reason}"),
                )
            } else {
                (NoteKind::Remark, format!("no {titles}: {reason}"))
            };
            (kind, Some(&*row.cell), text)
        }));
    }
    notes
}

pub(super) fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(rest).collect()
    })
}

/// `a, b, c`, or `both cells`, `all 12 cells`; of many, the first and how many more.
pub(super) fn listed(cells: &[&str], all: &[&str]) -> String {
    const MOST: usize = 6;
    // Cells without figures are none of `all`.
    // Only what is said of nearly all cells is worth a look at each of them.
    if cells.len() > 1 && cells.len() + 2 >= all.len() {
        let known: HashSet<&str> = all.iter().copied().collect();
        let named: HashSet<&str> = cells.iter().copied().collect();
        let are_known = named.is_subset(&known);
        if are_known && cells.len() == all.len() {
            return if all.len() == 2 {
                "both cells".to_owned()
            } else {
                format!("all {} cells", all.len())
            };
        }
        let but: Vec<&str> = all.iter().copied().filter(|c| !named.contains(c)).collect();
        if are_known && cells.len() > 3 && but.len() < 3 {
            return format!("all cells but {}", but.join(", "));
        }
    }
    let (told, more) = cells.split_at(if cells.len() > MOST {
        MOST - 1
    } else {
        cells.len()
    });
    let told = told.join(", ");
    if more.is_empty() {
        told
    } else {
        format!("{told} and {} more", more.len())
    }
}

/// Runs whose measured parts were found in one way.
#[derive(Default)]
struct Way<'a> {
    cells: Vec<&'a str>,
    /// Steps of each repeat.
    steps: Vec<u64>,
    /// Steps that were dropped after the declared warm-up, where more warm-up was looked for.
    dropped: Vec<u64>,
}

/// How the measured part of the runs was found, in a line a way; the most usual one first.
pub(super) fn steady_state(rows: &[&Row]) -> Vec<String> {
    let mut ways: IndexMap<String, Way<'_>> = IndexMap::new();
    let runs = rows
        .iter()
        .flat_map(|row| row.repeats.iter().map(move |r| (row, r)));
    for (row, repeat) in runs.filter(|(_, r)| r.status == RepeatStatus::Ok) {
        let Some(steady) = &repeat.steady else {
            continue;
        };
        let not_assessed = steady.cut.as_ref().map(|cut| cut.not_assessed.as_ref());
        let method = match not_assessed {
            Some(Some(why)) => format!(
                "too short to look for more warm-up than the declared one ({})",
                why.text.clone()
            ),
            Some(None) => String::new(),
            None => "only the declared warm-up is dropped".to_owned(),
        };
        let way = ways.entry(method).or_default();
        // Runs of one cell follow each other.
        if way.cells.last() != Some(&row.cell.as_str()) {
            way.cells.push(&row.cell);
        }
        way.steps.push(steady.steps);
        let assessed = steady.cut.iter().filter(|cut| cut.not_assessed.is_none());
        way.dropped.extend(assessed.map(|cut| cut.dropped_steps));
    }
    ways.sort_by(|_, a, _, b| b.cells.len().cmp(&a.cells.len()));
    let repeats: usize = ways.values().map(|way| way.steps.len()).sum();
    let range = |all: &[u64]| match (all.iter().min(), all.iter().max()) {
        (Some(low), Some(high)) if low != high => format!("{low} to {high}"),
        (low, _) => low.map(u64::to_string).unwrap_or_default(),
    };
    let line = |(at, (method, way)): (usize, (&String, &Way<'_>))| {
        // Where repeats were cut in several ways, each line says how many repeats it covers; all
        // but the first also name their cells.
        let of_cells = match at > 0 && rows.len() > 1 {
            true => format!(" ({})", listed(&way.cells, &[])),
            false => String::new(),
        };
        let whose = match ways.len() {
            1 => String::new(),
            _ => format!(" in {} of {repeats} repeats{of_cells}", way.steps.len()),
        };
        let found = match way.dropped.iter().max() {
            Some(0) => "after the declared warm-up; no further warm-up was found".to_owned(),
            Some(_) => {
                let dropped = range(&way.dropped);
                let steps = if dropped == "1" { "step" } else { "steps" };
                format!(
                    "after the declared warm-up and {dropped} more {steps} of warm-up, found by CUSUM"
                )
            }
            None => method.clone(),
        };
        format!(
            "Measured{whose}: {} steps a repeat, {found}.",
            range(&way.steps)
        )
    };
    ways.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{listed, steady_state};
    use tprimat_numbers::figures::{Catalogue, CompareSettings, compare};
    use tprimat_numbers::results::Reason;

    use crate::stand_ins::*;

    #[test]
    fn lines_on_the_measured_parts_do_not_contradict_each_other() {
        let job = test_job();
        let cells = ["cpu/native/llama/a", "cpu/tran/llama/a"]
            .map(|name| measured(name, &job, &[1.0, 1.1, 1.2], None));
        let mut all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        let short = Reason::detail("few_seconds", "under 30 s after the declared warm-up");
        for repeat in &mut all.rows[1].repeats[..2] {
            let cut = repeat.steady.as_mut().and_then(|s| s.cut.as_mut()).unwrap();
            cut.not_assessed = Some(short.clone());
        }
        for cut in all
            .rows
            .iter_mut()
            .flat_map(|r| &mut r.repeats)
            .filter_map(|r| r.steady.as_mut()?.cut.as_mut())
        {
            if cut.not_assessed.as_ref() != Some(&short) {
                cut.not_assessed = None;
            }
        }
        let lines = steady_state(&all.rows.iter().collect::<Vec<_>>());
        assert!(
            lines[0].starts_with("Measured in 4 of 6 repeats: "),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with("Measured in 2 of 6 repeats (cpu/tran/llama/a): "),
            "{lines:?}"
        );
        let alone = steady_state(&[&all.rows[1]]);
        assert!(
            alone
                .iter()
                .any(|line| line.starts_with("Measured in 1 of 3 repeats: ")),
            "{alone:?}"
        );
        assert!(steady_state(&[&all.rows[0]])[0].starts_with("Measured: "));
    }

    #[test]
    fn all_cells_are_those_with_figures() {
        let all = ["a", "b", "c", "d", "e"];
        assert_eq!(listed(&all, &all), "all 5 cells");
        assert_eq!(listed(&["b", "a"], &["a", "b"]), "both cells");
        assert_eq!(listed(&["a", "x"], &["a", "b"]), "a, x");
        assert_eq!(listed(&["a", "b", "c", "x", "y"], &all), "a, b, c, x, y");
        assert_eq!(listed(&["a", "c", "d", "e"], &all), "all cells but b");
        assert_eq!(listed(&["a"], &["a"]), "a");
    }
}
