//! What a reader must know beside the figures: the weightiest first, and what holds of several
//! cells once.

use std::collections::{HashMap, HashSet};

use tprimat_figures::{Comparison, Figure, Mfu, NoteKind, Row};
use tprimat_results::Reason;

use super::format::number;

/// What is told of one or several cells.
pub(super) struct NoteLine {
    pub kind: NoteKind,
    pub text: String,
}

/// A note in words.
struct Worded {
    kind: NoteKind,
    cell: Option<String>,
    text: String,
}

impl Worded {
    fn of(cell: &str, kind: NoteKind, text: String) -> Self {
        Self {
            kind,
            cell: Some(cell.to_owned()),
            text,
        }
    }
}

/// Everything that is to be told beside the figures.
pub(super) fn notes(comparison: &Comparison) -> Vec<NoteLine> {
    let note = |note: &'_ tprimat_figures::Note| Worded {
        kind: note.kind,
        cell: note.cell.clone(),
        text: note.reason.text.clone(),
    };
    let mut notes: Vec<Worded> = comparison.notes.iter().map(note).collect();
    notes.extend(comparison.rows.iter().flat_map(of_mfu));
    notes.extend(of_metrics(&comparison.rows));
    // Stable: within a kind they keep the order in which they were made.
    notes.sort_by_key(|note| note.kind);
    condensed(&notes, comparison)
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

fn of_mfu(row: &Row) -> Option<Worded> {
    match &row.mfu {
        Mfu::Absent { reason } => Some(Worded::of(
            &row.cell,
            NoteKind::Remark,
            format!("no MFU: {reason}"),
        )),
        Mfu::Ok {
            convention, peak, ..
        } => {
            let text = format!(
                "MFU: {convention} FLOPs ÷ {} TFLOP/s ({})",
                number(peak.tflops),
                peak.source
            );
            Some(Worded::of(&row.cell, NoteKind::Method, text))
        }
        Mfu::Error { .. } => None,
    }
}

/// Why metrics that other cells have are missing, and which are impossible.
fn of_metrics(rows: &[Row]) -> Vec<Worded> {
    let shown = super::cost::shown(rows.iter());
    let mut notes = Vec::new();
    for row in rows {
        // By reason: which metrics, and whether they are impossible rather than absent.
        let mut reasons: Vec<(bool, &Reason, Vec<&str>)> = Vec::new();
        for metric in &row.metrics.0 {
            let (is_error, reason) = match &metric.figure {
                Figure::Absent { reason } if shown.contains(&metric.name.as_str()) => {
                    (false, reason)
                }
                Figure::Error { reason } if metric.name != "mfu" => (true, reason),
                _ => continue,
            };
            match reasons
                .iter_mut()
                .find(|(e, r, _)| (*e, *r) == (is_error, reason))
            {
                Some((.., titles)) => titles.push(&metric.title),
                None => reasons.push((is_error, reason, vec![&metric.title])),
            }
        }
        notes.extend(reasons.into_iter().map(|(is_error, reason, titles)| {
            let (titles, reason) = (titles.join(", "), reason.text.clone());
            if is_error {
                Worded::of(
                    &row.cell,
                    NoteKind::Doubtful,
                    format!("{titles}: impossible: {reason}"),
                )
            } else {
                Worded::of(
                    &row.cell,
                    NoteKind::Remark,
                    format!("no {titles}: {reason}"),
                )
            }
        }));
    }
    notes
}

/// What is the same of several cells becomes one sentence.
fn condensed(notes: &[Worded], comparison: &Comparison) -> Vec<NoteLine> {
    let mut merged: Vec<(NoteKind, &str, Vec<&str>)> = Vec::new();
    let mut places: HashMap<(NoteKind, &str), usize> = HashMap::new();
    for Worded { kind, cell, text } in notes {
        let Some(cell) = cell.as_deref() else {
            merged.push((*kind, text, Vec::new()));
            continue;
        };
        let at = *places.entry((*kind, text)).or_insert_with(|| {
            merged.push((*kind, text, Vec::new()));
            merged.len() - 1
        });
        merged[at].2.push(cell);
    }
    let all: Vec<&str> = comparison.rows.iter().map(|r| r.cell.as_str()).collect();
    let told = |(kind, text, cells): (NoteKind, &str, Vec<&str>)| {
        let text = if cells.is_empty() {
            capital(text)
        } else {
            format!("{}: {text}", listed(&cells, &all))
        };
        NoteLine {
            kind,
            text: format!("{text}."),
        }
    };
    merged.into_iter().map(told).collect()
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

/// How the measured part of the runs was found, in a line a way; the most usual one first.
pub(super) fn steady_state(rows: &[&Row]) -> Vec<String> {
    struct Way<'a> {
        method: String,
        cells: Vec<&'a str>,
        repeats: usize,
        steps: [u64; 2],
        dropped: Option<[u64; 2]>,
    }
    let mut ways: Vec<Way<'_>> = Vec::new();
    let runs = rows
        .iter()
        .flat_map(|row| row.repeats.iter().map(move |r| (row, r)));
    for (row, repeat) in runs.filter(|(_, r)| r.status == tprimat_figures::RepeatStatus::Ok) {
        let Some(steady) = &repeat.steady else {
            continue;
        };
        let method = match &steady.cut {
            Some(cut) => match &cut.not_assessed {
                Some(why) => format!(
                    "too short to look for more warm-up than the declared one ({})",
                    why
                ),
                None => String::new(),
            },
            None => "only the declared warm-up is dropped".to_owned(),
        };
        let at = ways
            .iter()
            .position(|w| w.method == method)
            .unwrap_or_else(|| {
                ways.push(Way {
                    method,
                    cells: Vec::new(),
                    repeats: 0,
                    steps: [u64::MAX, 0],
                    dropped: None,
                });
                ways.len() - 1
            });
        let way = &mut ways[at];
        // Runs of one cell follow each other.
        if way.cells.last() != Some(&row.cell.as_str()) {
            way.cells.push(&row.cell);
        }
        way.repeats += 1;
        way.steps = [
            way.steps[0].min(steady.steps),
            way.steps[1].max(steady.steps),
        ];
        if let Some(cut) = steady.cut.as_ref().filter(|c| c.not_assessed.is_none()) {
            let [lo, hi] = way.dropped.unwrap_or([u64::MAX, 0]);
            way.dropped = Some([lo.min(cut.dropped_steps), hi.max(cut.dropped_steps)]);
        }
    }
    ways.sort_by_key(|w| std::cmp::Reverse(w.cells.len()));
    let repeats: usize = ways.iter().map(|way| way.repeats).sum();
    let range = |[lo, hi]: [u64; 2]| {
        if lo == hi {
            lo.to_string()
        } else {
            format!("{lo} to {hi}")
        }
    };
    let line = |(i, way): (usize, &Way<'_>)| {
        // Where repeats were cut in several ways, each line says how many repeats it covers; all
        // but the first also name their cells.
        let of_cells = if i > 0 && rows.len() > 1 {
            format!(" ({})", listed(&way.cells, &[]))
        } else {
            String::new()
        };
        let whose = if ways.len() > 1 {
            format!(" in {} of {repeats} repeats{of_cells}", way.repeats)
        } else {
            String::new()
        };
        let found = match way.dropped {
            Some([_, 0]) => "after the declared warm-up; no further warm-up was found".to_owned(),
            Some(dropped) => {
                let steps = if dropped == [1, 1] { "step" } else { "steps" };
                format!(
                    "after the declared warm-up and {} more {steps} of warm-up, found by CUSUM",
                    range(dropped)
                )
            }
            None => way.method.clone(),
        };
        format!(
            "Measured{whose}: {} steps a repeat, {found}.",
            range(way.steps)
        )
    };
    ways.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{listed, steady_state};
    use tprimat_figures::{Catalogue, CompareSettings, compare};
    use tprimat_results::Reason;

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
