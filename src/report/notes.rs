//! What a reader must know beside the figures: the weightiest first, and what holds of several cells once.

use std::collections::{BTreeMap, BTreeSet};

use super::{environment::as_notes, format::number};
use crate::analyze::{Comparison, Figure, Mfu, Row};

pub(super) struct Note {
    pub weight: Weight,
    pub text: String,
}

/// In the order of telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// A comparison that was asked for and is not made.
    Refused,
    Contradicted,
    /// A figure cannot be right, or a setting decides the comparison alone.
    Alarming,
    Failed,
    /// What else differs between cells that are compared.
    Differs,
    Remark,
    /// How figures were made.
    Method,
}

impl Weight {
    /// The comparison's notes are sentences; these words of theirs tell what they are about.
    fn of(text: &str) -> Self {
        let has = |words: &[&str]| words.iter().any(|w| text.contains(w));
        if has(&["not compared with"]) {
            Self::Refused
        } else if has(&["contradict"]) {
            Self::Contradicted
        } else if has(&[
            "impossible",
            " runs with ",
            "very same bytes",
            "not comparable",
            "different kinds",
            "tokens/s/GPU is ",
            "before the device does",
        ]) {
            Self::Alarming
        } else if has(&[" failed", " is not counted: "]) {
            Self::Failed
        } else if has(&[" differs from ", " on other devices than ", "is not known", "The baseline"]) {
            Self::Differs
        } else if ["Intervals", "Significance", "MFU:", "Hosts are", "Where repeats"]
            .iter()
            .any(|w| text.starts_with(w))
        {
            Self::Method
        } else {
            Self::Remark
        }
    }
}

/// The notes of a comparison, and how many were left out: of remarks at most `most` are told.
pub(super) fn notes(comparison: &Comparison, most: Option<usize>) -> (Vec<Note>, usize) {
    // They have a section of their own.
    let environments = as_notes(comparison);
    let mut texts: Vec<String> = comparison.notes.iter().filter(|n| !environments.contains(*n)).cloned().collect();
    texts.extend(of_mfu(&comparison.rows));
    texts.extend(of_metrics(&comparison.rows));
    let mut notes: Vec<Note> =
        condensed(&texts, comparison).into_iter().map(|(weight, text)| Note { weight, text }).collect();
    notes.sort_by_key(|n| n.weight);
    let mut left_out = 0;
    if let Some(most) = most {
        let mut remarks = 0;
        notes.retain(|n| {
            remarks += usize::from(n.weight == Weight::Remark);
            let kept = n.weight != Weight::Remark || remarks <= most;
            left_out += usize::from(!kept);
            kept
        });
    }
    (notes, left_out)
}

fn of_mfu(rows: &[Row]) -> Vec<String> {
    let (mut reasons, mut conventions) = (BTreeMap::<&str, Vec<&str>>::new(), BTreeSet::new());
    for row in rows {
        match &row.mfu {
            Mfu::Absent { reason } => reasons.entry(reason).or_default().push(&row.cell),
            Mfu::Ok { convention, peak, .. } => {
                let peak = format!("{} TFLOP/s ({})", number(peak.tflops), peak.source);
                conventions.insert(format!("MFU: {convention} FLOPs ÷ {peak}."));
            }
            Mfu::Error { .. } => {}
        }
    }
    let all: Vec<&str> = rows.iter().map(|r| r.cell.as_str()).collect();
    let absent = reasons.into_iter().map(|(reason, cells)| {
        let of = if cells.len() == rows.len() { String::new() } else { format!(" of {}", listed(&cells, &all)) };
        format!("No MFU{of}: {reason}.")
    });
    absent.chain(conventions).collect()
}

/// Why metrics that other cells have are missing, and which are impossible.
fn of_metrics(rows: &[Row]) -> Vec<String> {
    let shown = super::cost::shown(rows.iter());
    // By whether it is absent rather than impossible, and the reason: which metrics, of which cells.
    let mut reasons: BTreeMap<(bool, &str), [Vec<&str>; 2]> = BTreeMap::new();
    for (row, metric) in rows.iter().flat_map(|r| r.metrics.0.iter().map(move |m| (r, m))) {
        let (is_error, reason) = match &metric.figure {
            Figure::Absent { reason } if shown.contains(&metric.name.as_str()) => (false, reason),
            Figure::Error { reason } if metric.name != "mfu" => (true, reason),
            _ => continue,
        };
        let [titles, cells] = reasons.entry((!is_error, reason)).or_default();
        for (list, name) in [(titles, metric.title.as_str()), (cells, row.cell.as_str())] {
            if !list.contains(&name) {
                list.push(name);
            }
        }
    }
    let all: Vec<&str> = rows.iter().map(|r| r.cell.as_str()).collect();
    let sentence = |((is_absent, reason), [titles, cells]): ((bool, &str), [Vec<&str>; 2])| {
        let of = if cells.len() == rows.len() { String::new() } else { format!(" of {}", listed(&cells, &all)) };
        let titles = titles.join(", ");
        if is_absent { format!("No {titles}{of}: {reason}.") } else { format!("{titles}{of}: impossible: {reason}.") }
    };
    reasons.into_iter().map(sentence).collect()
}

/// Sentences that begin with a cell's name and are the same but for it become one.
fn condensed(texts: &[String], comparison: &Comparison) -> Vec<(Weight, String)> {
    let all: Vec<&str> = comparison.rows.iter().map(|r| r.cell.as_str()).collect();
    let absent = comparison.absent.iter().map(|a| a.cell.as_str());
    let names: Vec<&str> = all.iter().copied().chain(absent).collect();
    // The longest name that the sentence begins with, where a word ends.
    let subject = |text: &str| -> Option<&str> {
        let begins = |n: &&&str| text.strip_prefix(**n).is_some_and(|rest| rest.starts_with([':', ' ']));
        names.iter().filter(begins).max_by_key(|n| n.len()).copied()
    };
    let mut merged: Vec<(&str, Vec<&str>)> = Vec::new();
    for text in texts {
        let cell = subject(text);
        let rest = &text[cell.map_or(0, str::len)..];
        let same = |m: &&mut (&str, Vec<&str>)| m.0 == rest && cell.is_some() && !m.1.is_empty();
        match (merged.iter_mut().find(same), cell) {
            (Some(found), Some(cell)) => found.1.push(cell),
            _ => merged.push((rest, cell.into_iter().collect())),
        }
    }
    let sentence = |(rest, cells): (&str, Vec<&str>)| {
        let text = match &cells[..] {
            [] => rest.to_owned(),
            [one] => format!("{one}{rest}"),
            many if rest.starts_with(':') => format!("{}{rest}", listed(many, &all)),
            many => format!("Each of {}{rest}", listed(many, &all)),
        };
        (Weight::of(&text), text)
    };
    merged.into_iter().map(sentence).collect()
}

/// `a, b, c`, or `all 12 cells`; of many, the first and how many more.
pub(super) fn listed(cells: &[&str], all: &[&str]) -> String {
    const MOST: usize = 6;
    if cells.len() > 2 && cells.len() == all.len() {
        return format!("all {} cells", all.len());
    }
    let but: Vec<&str> = all.iter().copied().filter(|c| !cells.contains(c)).collect();
    if cells.len() > 3 && but.len() < 3 && cells.iter().all(|c| all.contains(c)) {
        return format!("all cells but {}", but.join(", "));
    }
    let (told, more) = cells.split_at(if cells.len() > MOST { MOST - 1 } else { cells.len() });
    let told = told.join(", ");
    if more.is_empty() { told } else { format!("{told} and {} more", more.len()) }
}

/// How the measured part of the runs was found, in a line a way; the most usual one first.
pub(super) fn steady_state(rows: &[&Row]) -> Vec<String> {
    struct Way<'a> {
        method: String,
        cells: Vec<&'a str>,
        steps: [u64; 2],
        dropped: Option<[u64; 2]>,
    }
    let mut ways: Vec<Way<'_>> = Vec::new();
    let runs = rows.iter().flat_map(|row| row.repeats.iter().map(move |r| (row, r)));
    for (row, repeat) in runs.filter(|(_, r)| r.status == crate::analyze::RepeatStatus::Ok) {
        let Some(steady) = &repeat.steady else { continue };
        let method = match &steady.cut {
            None => "all after the declared warm-up".to_owned(),
            Some(cut) => match &cut.not_assessed {
                Some(why) => format!("all after the declared warm-up, steady state not assessed ({why})"),
                None => format!("after the declared warm-up and what {} drops", cut.method),
            },
        };
        let at = ways.iter().position(|w| w.method == method).unwrap_or_else(|| {
            ways.push(Way { method, cells: Vec::new(), steps: [u64::MAX, 0], dropped: None });
            ways.len() - 1
        });
        let way = &mut ways[at];
        if !way.cells.contains(&row.cell.as_str()) {
            way.cells.push(&row.cell);
        }
        way.steps = [way.steps[0].min(steady.steps), way.steps[1].max(steady.steps)];
        if let Some(cut) = steady.cut.as_ref().filter(|c| c.not_assessed.is_none()) {
            let [lo, hi] = way.dropped.unwrap_or([u64::MAX, 0]);
            way.dropped = Some([lo.min(cut.dropped_steps), hi.max(cut.dropped_steps)]);
        }
    }
    ways.sort_by_key(|w| std::cmp::Reverse(w.cells.len()));
    let several = ways.len() > 1;
    let range = |[lo, hi]: [u64; 2]| if lo == hi { lo.to_string() } else { format!("{lo} to {hi}") };
    let line = |(i, way): (usize, &Way<'_>)| {
        let whose = if several && i > 0 { format!("{}: ", listed(&way.cells, &[])) } else { String::new() };
        let dropped = way.dropped.map(|d| format!(" (steps: {})", range(d))).unwrap_or_default();
        format!("Steps measured: {whose}{}{dropped}; {} a repeat.", way.method, range(way.steps))
    };
    ways.iter().enumerate().map(line).collect()
}
