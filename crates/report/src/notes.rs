//! What a reader must know beside the figures: the weightiest first, and what holds of several
//! cells once.

use std::collections::HashSet;

use indexmap::IndexMap;
use tprimat_base::words::plain::counted;
use tprimat_numbers::figures::{
    Comparison, Figure, NoteKind, RepeatStatus, RepeatSummary, Row, Steady, WHOLE,
};
use tprimat_numbers::results::{CUSUM, words::few};

use super::columns::{Place, shown_metrics};

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

/// Why metrics that other cells have are missing, and which are impossible.
fn of_metrics(rows: &[Row]) -> Vec<(NoteKind, Option<&str>, String)> {
    let shown = shown_metrics(&rows.iter().collect::<Vec<_>>(), Place::Table);
    let mut notes = Vec::new();
    for row in rows {
        // By reason: which metrics, and whether they are impossible rather than absent.
        let mut reasons: IndexMap<(bool, String), Vec<&str>> = IndexMap::new();
        for metric in &row.metrics.0 {
            let (is_error, reason) = match &metric.figure {
                Figure::Absent { reason }
                    if metric.name == "mfu" || shown.contains(&&*metric.name) =>
                {
                    (false, reason)
                }
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

/// `a, b, c`, or `all 12 cells`; of many, the first and how many more.
pub(super) fn listed(cells: &[&str], all: &[&str]) -> String {
    if cells.len() > 1 && cells.len() == all.len() {
        let known: HashSet<&str> = all.iter().copied().collect();
        if cells.iter().all(|cell| known.contains(cell)) {
            return format!("all {} cells", all.len());
        }
    }
    few(cells)
}

/// How the measured part of the runs was found, in a line a way; the most usual one first.
pub(super) fn steady_state(rows: &[&Row]) -> Vec<String> {
    // For each way, how many steps each repeat was measured over.
    let mut ways: IndexMap<String, Vec<u64>> = IndexMap::new();
    let runs = rows
        .iter()
        .flat_map(|row| row.repeats.iter().map(|repeat| (*row, repeat)));
    for (row, repeat) in runs.filter(|(_, repeat)| repeat.status == RepeatStatus::Ok) {
        let Some(steady) = &repeat.steady else {
            continue;
        };
        let way = way(row, repeat, steady, rows.len() == 1);
        ways.entry(way).or_default().push(steady.steps);
    }
    ways.sort_by(|_, a, _, b| b.len().cmp(&a.len()));
    let repeats: usize = ways.values().map(Vec::len).sum();
    let line = |(way, steps): (&String, &Vec<u64>)| {
        let whose = match ways.len() {
            1 => String::new(),
            _ => format!(" in {} of {repeats} repeats", steps.len()),
        };
        let range = match (steps.iter().min(), steps.iter().max()) {
            (Some(low), Some(high)) if low != high => format!("{low} to {high}"),
            (low, _) => low.map(u64::to_string).unwrap_or_default(),
        };
        format!("Measured{whose}: {range} steps a repeat, {way}.")
    };
    ways.iter().map(line).collect()
}

/// What of a repeat is not in its rate; of a cell alone, with numbers.
fn way(row: &Row, repeat: &RepeatSummary, steady: &Steady, is_alone: bool) -> String {
    let Some(cut) = &steady.cut else {
        return "only the declared warm-up is dropped".to_owned();
    };
    if cut.method == WHOLE {
        return "the whole run with its warm-up".to_owned();
    }
    if cut.is_assessed() {
        return format!("further warm-up looked for by {CUSUM}");
    }
    // Steps that are timed together with an evaluation, or not at all.
    let last = repeat.last_step.unwrap_or_default();
    let later = (last + 1).saturating_sub(cut.first_step.saturating_add(steady.steps));
    let (starts, is_all) = match cut.first_step.saturating_sub(row.warmup_steps) {
        0 | 1 if row.warmup_steps == 0 => ("no warm-up is dropped".to_owned(), false),
        0 | 1 => ("the declared warm-up is dropped".to_owned(), later == 0),
        _ if is_alone => {
            // Steps that are timed together with the warm-up, or that an excerpt of a log does not have.
            (format!("measured from step {}", cut.first_step), false)
        }
        _ => (
            "more than the declared warm-up is left out".to_owned(),
            false,
        ),
    };
    match later {
        0 if is_all => format!("only {starts}"),
        0 => starts,
        later if is_alone => {
            let later = counted(later as usize, "later step");
            format!("{starts}; without a time of their own: {later}")
        }
        _ => format!("{starts}; without a time of their own: some later steps"),
    }
}
