//! A comparison as text: a table a group, then the cells without figures, then notes in plain sentences.

use std::{collections::BTreeSet, fmt::Write};

use tabled::{
    builder::Builder,
    settings::{Alignment, Style, formatting::AlignmentStrategy, object::Columns},
};

use super::format::{bytes, number, percent, seconds};
use crate::analyze::{Comparison, Mfu, Row, Speedup};

/// The whole comparison in at most `width` columns, as far as words allow.
#[must_use]
pub fn table(comparison: &Comparison, width: usize) -> String {
    let mut out = String::new();
    for (index, group) in comparison.groups.iter().enumerate() {
        let strict = if group.identical_config { ", identical configuration" } else { "" };
        _ = writeln!(out, "{}: {}{strict}", group.model, group.workload);
        let rows: Vec<&Row> = comparison.rows.iter().filter(|r| r.group == index).collect();
        out.push_str(&group_table(&rows, &group.baseline, &comparison.speedups, width));
        out.push_str("\n\n");
    }
    if comparison.groups.is_empty() {
        out.push_str("No cell has figures.\n\n");
    }
    if !comparison.absent.is_empty() {
        out.push_str("Cells without figures:\n");
        for cell in &comparison.absent {
            paragraph(
                &mut out,
                "  ",
                &format!("{}{}  {}: {}", cell.cell, mark(&cell.imported), cell.state, cell.reason),
                width,
            );
        }
        out.push('\n');
    }
    for note in notes(comparison) {
        paragraph(&mut out, "- ", &note, width);
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The notes below the table: the comparison's own, and why an MFU is missing.
fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = comparison.notes.clone();
    let (mut reasons, mut conventions) = (BTreeSet::new(), BTreeSet::new());
    for row in &comparison.rows {
        match &row.mfu {
            Mfu::Absent { reason } => _ = reasons.insert(reason),
            Mfu::Ok { convention, peak, .. } => {
                _ = conventions.insert(format!(
                    "{convention} FLOPs ÷ {} TFLOP/s ({})",
                    number(peak.tflops),
                    peak.source
                ));
            }
            Mfu::Error { .. } => {}
        }
    }
    notes.extend(reasons.into_iter().map(|reason| format!("No MFU: {reason}.")));
    notes.extend(conventions.into_iter().map(|convention| format!("MFU: {convention}.")));
    notes
}

/// The roomiest layout that fits: one line a row, figures above their spread, or a list.
fn group_table(rows: &[&Row], baseline: &str, speedups: &[Speedup], width: usize) -> String {
    let records: Vec<Vec<String>> = rows.iter().map(|row| record(row, baseline, speedups)).collect();
    let has_mfu = rows.iter().any(|r| !matches!(r.mfu, Mfu::Absent { .. }));
    for room in [usize::MAX, 28, 20, 14] {
        let text = grid(&records, has_mfu, room);
        if text.lines().all(|line| line.chars().count() <= width) {
            return text;
        }
    }
    let mut list = String::new();
    for record in &records {
        _ = writeln!(list, "{}", record[0]);
        for (name, value) in HEADER.iter().zip(record).skip(1).filter(|(name, _)| has_mfu || **name != "MFU") {
            paragraph(&mut list, "    ", &format!("{name}: {value}"), width);
        }
    }
    list.trim_end().to_owned()
}

const HEADER: [&str; 8] = [
    "cell",
    "tokens/s/GPU (95 % interval)",
    "step time (cv)",
    "peak memory",
    "MFU",
    "loss at end",
    "repeats",
    "against the baseline",
];

fn record(row: &Row, baseline: &str, speedups: &[Speedup]) -> Vec<String> {
    let estimate = &row.tokens_per_second_per_gpu;
    let interval = estimate.ci95.map(|[lo, hi]| format!(" ({} to {})", number(lo), number(hi)));
    let cv = row.step_time.cv.map(|cv| format!(" ({})", percent(cv)));
    vec![
        format!("{}{}", row.cell, mark(&row.imported)),
        format!("{}{}", number(estimate.value), interval.unwrap_or_default()),
        format!("{}{}", seconds(row.step_time.mean_seconds), cv.unwrap_or_default()),
        memory(row),
        match &row.mfu {
            Mfu::Ok { value, .. } => percent(*value),
            Mfu::Absent { .. } => missing(),
            Mfu::Error { .. } => "impossible".to_owned(),
        },
        row.loss_at_end.map_or_else(missing, |loss| format!("{loss:.4}")),
        repeats(row),
        against(row, baseline, speedups),
    ]
}

/// `room`: columns of text in a cell before it is broken, between words or after a slash.
fn grid(records: &[Vec<String>], has_mfu: bool, room: usize) -> String {
    let header = HEADER.map(str::to_owned).to_vec();
    let mut builder = Builder::default();
    for record in std::iter::once(&header).chain(records) {
        let columns = HEADER.iter().zip(record).filter(|(name, _)| has_mfu || **name != "MFU");
        builder.push_record(columns.map(|(_, text)| broken(text, room)));
    }
    let mut table = builder.build();
    if room == usize::MAX {
        table.with(Style::rounded())
    } else {
        table.with(Style::modern_rounded())
    };
    table.modify(Columns::new(1..3), (Alignment::right(), AlignmentStrategy::PerLine));
    table.to_string()
}

/// A figure and the parenthesis after it on two lines, and no line longer than `room` where it can be helped.
fn broken(text: &str, room: usize) -> String {
    if room == usize::MAX {
        return text.to_owned();
    }
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for piece in text.replacen(" (", "\n(", 1).split_inclusive([' ', '/', '\n', '@']) {
        if !line.is_empty() && line.chars().count() + piece.trim_end().chars().count() > room {
            lines.push(std::mem::take(&mut line));
        }
        line.push_str(piece);
        if piece.ends_with('\n') {
            lines.push(std::mem::take(&mut line));
        }
    }
    lines.push(line);
    lines.iter().map(|l| l.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Stands behind the name of a cell that tprimat did not measure.
pub(super) fn mark(imported: &[String]) -> &'static str {
    if imported.is_empty() { "" } else { " (imported)" }
}

fn missing() -> String {
    "–".to_owned()
}

fn memory(row: &Row) -> String {
    let Some(memory) = row.memory.first() else { return missing() };
    format!("{} ({})", bytes(memory.bytes), memory.kind.replace('_', " "))
}

fn repeats(row: &Row) -> String {
    let mut text = format!("{}/{}", row.n, row.repeats_wanted);
    for (count, what) in [(row.failed, "failed"), (row.contradicted, "contradicted"), (row.unmeasured, "unmeasured")] {
        if count > 0 {
            _ = write!(text, ", {count} {what}");
        }
    }
    text
}

fn against(row: &Row, baseline: &str, speedups: &[Speedup]) -> String {
    if row.cell == baseline {
        return "baseline".to_owned();
    }
    speedups.iter().find(|s| s.a == row.cell).map_or_else(missing, sentence)
}

/// Differences told beside a figure; all of them are in the notes.
const LABELS: usize = 3;

/// `1.23x (1.10 to 1.38)`, what the two arms do differently, and what may not be concluded from it.
#[must_use]
pub fn sentence(speedup: &Speedup) -> String {
    let mut text = format!("{:.2}x", speedup.ratio);
    if let Some([lo, hi]) = speedup.ci95 {
        _ = write!(text, " ({lo:.2} to {hi:.2})");
    }
    if speedup.significant == Some(false) {
        text.push_str(", no significant difference");
    }
    if let Some(reason) = &speedup.reason {
        _ = write!(text, ", {reason}");
    }
    let (told, more) = speedup.labels.split_at(speedup.labels.len().min(LABELS));
    for label in told {
        _ = write!(text, "; {label}");
    }
    if !more.is_empty() {
        _ = write!(text, "; and {} more", more.len());
    }
    text
}

/// Words in lines of at most `width` columns; all but the first are indented as far as `bullet`.
fn paragraph(out: &mut String, bullet: &str, text: &str, width: usize) {
    let indent = " ".repeat(bullet.chars().count());
    let (mut line, mut empty) = (bullet.to_owned(), true);
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            _ = writeln!(out, "{line}");
            (line, empty) = (indent.clone(), true);
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    _ = writeln!(out, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analyze::{Catalogue, CellState, CompareSettings, compare, tests::*},
        parse::FailureClass,
    };

    fn comparison() -> Comparison {
        let h100 = Some(("cuda", "NVIDIA H100 80GB HBM3"));
        let mut fp8 = test_job();
        fp8.precision = "fp8".into();
        let mut long = test_job();
        long.data.seq_length = 256;
        let failed = CellState::Failed {
            class: FailureClass::Oom,
            evidence: vec!["CUDA out of memory. Tried to allocate 2 GiB".into()],
        };
        let cells = [
            measured("nvd/native/llama/single", &test_job(), &[0.01, 0.0101, 0.0099], h100),
            measured("nvd/tran/llama/single", &test_job(), &[0.02, 0.0202, 0.0198], h100),
            measured("nvd/tran/llama/single@precision=fp8", &fp8, &[0.0101, 0.0099, 0.01], h100),
            measured("nvd/tran/llama/single@seq_length=256", &long, &[0.02], h100),
            cell("nvd/fsdp/llama/single", failed),
            cell("nvd/prim/llama/single", CellState::Unsupported { reason: "Primus needs an AMD platform".into() }),
        ];
        compare(&cells, &CompareSettings::default(), &Catalogue::default())
    }

    #[test]
    fn wide() {
        insta::assert_snapshot!(table(&comparison(), 170));
    }

    #[test]
    fn medium() {
        insta::assert_snapshot!(table(&comparison(), 120));
    }

    #[test]
    fn narrow() {
        insta::assert_snapshot!(table(&comparison(), 80));
    }

    #[test]
    fn no_line_is_wider_than_asked_for_unless_a_word_is() {
        for width in [60, 80, 100, 130, 200] {
            let text = table(&comparison(), width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
    }

    #[test]
    fn on_a_cpu_with_one_repeat() {
        let cells = [
            measured("cpu/native/llama-tiny/single", &test_job(), &[0.3], Some(("cpu", "EPYC"))),
            measured("cpu/tran/llama-tiny/single", &test_job(), &[0.4], Some(("cpu", "EPYC"))),
        ];
        insta::assert_snapshot!(table(&compare(&cells, &CompareSettings::default(), &Catalogue::default()), 140));
    }

    #[test]
    fn repeats_that_do_not_count_stand_beside_those_that_do() {
        let steps = [vec![3.0, 1.0], vec![3.0]];
        let cells = [measured_steps("cpu/native/llama/single", &test_job(), &steps, None)];
        let text = table(&compare(&cells, &CompareSettings::default(), &Catalogue::default()), 200);
        assert!(text.contains("1/3, 1 unmeasured"), "{text}");
        assert!(text.contains("repeat 2 is not counted: no timed step"), "{text}");
    }

    #[test]
    fn nothing_at_all() {
        let none = compare(&[], &CompareSettings::default(), &Catalogue::default());
        assert_eq!(table(&none, 1), "No cell has figures.\n");
    }
}
