//! A comparison as text: what may not be compared, sentences and a table or two a group, then the
//! cells without figures, then notes in plain sentences.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use tprimat_figures::{
    AbsentState, Comparison, Estimate, Group, Mfu, NoteKind, Row, Speedup, Warning, rate_unit,
};
use tprimat_results::{AttestationStatus, mean, sd};
use tprimat_sentences::{dropped_words, said, standing};

use super::{
    cost,
    environment::environments,
    format::{bytes, mark, number, percent, seconds},
    hardware::in_title,
    headline::{
        SpeedVerdict, by_group, duration, headlines, interval, leading, more, ranking, refused,
        same_as, times,
    },
    notes::{notes, shortened, steady_state},
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    sweep::sweep_text,
};

/// The whole comparison, in lines of at most the page's width as far as words allow.
#[must_use]
pub fn table(comparison: &Comparison, page: &Page) -> String {
    let mut out = String::new();
    let sentences = headlines(comparison);
    let (refused, untold) = refused(&sentences);
    for headline in &refused {
        paragraph(&mut out, "", &headline.text, page, ink_of(headline.verdict));
    }
    if untold > 0 {
        paragraph(
            &mut out,
            "",
            &format!("And {untold} more that may not be compared: see the notes."),
            page,
            Ink::Bad,
        );
    }
    if !refused.is_empty() {
        out.push('\n');
    }
    out.push_str(&sweep_text(comparison, page));
    let speedups = comparison.speedups_by_cell();
    let by_group = by_group(comparison, &sentences);
    for ((group, rows), of_group) in comparison
        .groups
        .iter()
        .zip(comparison.rows_by_group())
        .zip(&by_group)
    {
        let rows: Vec<&Row> = rows.into_iter().map(|(_, row)| row).collect();
        paragraph(&mut out, "", &group_title(group, &rows), page, Ink::Strong);
        if let Some(text) = ranking(comparison, group, &rows) {
            paragraph(&mut out, "", &text, page, Ink::Strong);
        }
        for headline in leading(of_group) {
            paragraph(&mut out, "", &headline.text, page, ink_of(headline.verdict));
        }
        if let Some(more) = more(of_group) {
            paragraph(&mut out, "", &format!("{more}."), page, Ink::Plain);
        }
        out.push_str(&sheet(&rows, &group.baseline, &speedups).show(page));
        out.push('\n');
        for line in steady_state(&rows) {
            paragraph(&mut out, "", &line, page, Ink::Plain);
        }
        if let Some(cost) = cost::sheet(&rows) {
            _ = write!(out, "Cost and efficiency:\n{}\n", cost.show_in_parts(page));
        }
        out.push('\n');
    }
    if comparison.groups.is_empty() {
        out.push_str("No cell has figures.\n\n");
    }
    if !comparison.absent.is_empty() {
        out.push_str("Cells without figures:\n");
        for cell in &comparison.absent {
            let text = format!(
                "{}{}  {}: {}",
                cell.cell,
                mark(&cell.imported),
                cell.state,
                said(&cell.reason)
            );
            paragraph(&mut out, "  ", &text, page, ink_of_state(cell.state));
        }
        out.push('\n');
    }
    let mut harmless = 0;
    let most = page.most_notes.unwrap_or(usize::MAX);
    let (told, more): (Vec<_>, Vec<_>) = environments(comparison).into_iter().partition(|found| {
        harmless += usize::from(!found.is_dangerous);
        found.is_dangerous || harmless <= most
    });
    if !told.is_empty() {
        out.push_str("Environments that are not the same:\n");
    }
    for found in &told {
        paragraph(
            &mut out,
            "  ",
            &found.text,
            page,
            if found.is_dangerous {
                Ink::Bad
            } else {
                Ink::Plain
            },
        );
    }
    if !more.is_empty() {
        paragraph(
            &mut out,
            "  ",
            &format!("and {} more: --json has all.", more.len()),
            page,
            Ink::Plain,
        );
    }
    if !told.is_empty() {
        out.push('\n');
    }
    // Environments have a section of their own, and what is refused stands first, if there was
    // room.
    let mut notes = notes(comparison);
    notes.retain(|note| {
        note.kind != NoteKind::Environment && (note.kind != NoteKind::Refused || untold > 0)
    });
    let (notes, left_out) = shortened(notes, page.most_notes);
    for note in notes {
        let ink = if note.kind < NoteKind::Failed {
            Ink::Bad
        } else {
            Ink::Plain
        };
        paragraph(&mut out, "- ", &note.text, page, ink);
    }
    if left_out > 0 {
        paragraph(
            &mut out,
            "- ",
            &format!("and {left_out} more remarks: --json has all."),
            page,
            Ink::Plain,
        );
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

pub(super) fn ink_of_state(state: AbsentState) -> Ink {
    match state {
        AbsentState::Contradicted => Ink::Alarm,
        AbsentState::Failed => Ink::Bad,
        _ => Ink::Dim,
    }
}

pub(super) fn ink_of(verdict: SpeedVerdict) -> Ink {
    match verdict {
        SpeedVerdict::Faster => Ink::Good,
        SpeedVerdict::Slower | SpeedVerdict::Refused => Ink::Bad,
        SpeedVerdict::NoDifference | SpeedVerdict::NotAssessed | SpeedVerdict::Alone => Ink::Plain,
    }
}

const LOSS: &str = "loss at end";

/// A column: its name, whether it has figures, and what it has of a row.
type Of<'a> = (&'a str, bool, fn(&Row) -> Word);

/// The first figures of a group's cells.
pub(super) fn sheet(rows: &[&Row], baseline: &str, speedups: &BTreeMap<&str, &Speedup>) -> Sheet {
    let has_mfu = rows.iter().any(|r| !matches!(r.mfu, Mfu::Absent { .. }));
    let mut sheet = Sheet::default();
    let speeds = format!("{} (95 % CI)", rate_unit(rows.iter().copied()));
    let columns: [Of; 7] = [
        ("cell", false, |row| {
            Word::plain(format!("{}{}", row.cell, mark(&row.imported)))
        }),
        (&speeds, true, |row| match row.impossible() {
            Some(_) => Word::inked("impossible", Ink::Alarm),
            None => Word::plain(rate(&row.tokens_per_second_per_gpu)),
        }),
        ("step time (cv)", true, step_time),
        ("peak memory", false, memory),
        ("MFU", true, mfu),
        (LOSS, true, |row| match row.loss_at_end {
            Some(loss) if loss.is_finite() => Word::plain(number(loss)),
            _ => Word::missing(),
        }),
        ("repeats", false, repeats),
    ];
    let columns: Vec<_> = columns
        .into_iter()
        .filter(|(name, ..)| has_mfu || *name != "MFU")
        .collect();
    columns
        .iter()
        .for_each(|(name, figures, _)| sheet.column(*name, *figures));
    sheet.column("against the baseline (95 % CI)", false);
    let by_cell: HashMap<&str, &Row> = rows.iter().map(|row| (row.cell.as_str(), *row)).collect();
    let base = by_cell.get(baseline).copied();
    for row in rows {
        let mut words: Vec<Word> = columns.iter().map(|(.., word)| word(row)).collect();
        let of_loss = columns.iter().position(|(name, ..)| *name == LOSS);
        if let Some(word) = of_loss
            .map(|at| &mut words[at])
            .filter(|word| word.ink == Ink::Plain)
            && base.is_some_and(|base| base.loss_group != row.loss_group)
        {
            word.text.push_str(" (not comparable)");
        }
        let mut against = against(row, baseline, speedups);
        if let Some(other) = &row.same_runs_as {
            against = Word::inked(
                format!("the same runs as {other}, imported twice"),
                Ink::Bad,
            );
        }
        let is_impossible = row
            .impossible()
            .or(base.and_then(Row::impossible))
            .is_some();
        if is_impossible && against.ink == Ink::Dim {
            against = Word::inked("not compared: impossible rate", Ink::Bad);
        }
        let twin = base
            .filter(|base| row.launches_as(base))
            .map(|base| &base.cell)
            .or(row.same_launch_as.as_ref());
        // The column already marks rows that are the baseline's own measurement.
        let is_told = |twin: &&String| {
            **twin == *baseline && base.is_some_and(|base| row.is_measured_as(base))
        };
        if let Some(twin) = twin.filter(|twin| !is_told(twin)) {
            let found = by_cell.get(twin.as_str()).copied();
            _ = write!(against.text, "; {}", same_as(row, twin, found));
        }
        words.push(against);
        sheet.rows.push(words);
    }
    sheet
}

/// `102,403 (99,891–104,979)`; without an interval it says why.
pub(super) fn rate(estimate: &Estimate) -> String {
    let value = number(estimate.value);
    match estimate.ci95 {
        Some([lo, hi]) if lo.is_finite() && hi.is_finite() => {
            format!("{value} ({}–{})", number(lo), number(hi))
        }
        _ if estimate.values.len() == 1 => format!("{value} (one repeat)"),
        _ => format!("{value} (no interval)"),
    }
}

pub(super) fn step_time(row: &Row) -> Word {
    let spread = |cv: Option<f64>| cv.filter(|cv| cv.is_finite()).map(percent);
    let steps = spread(row.step_time.cv);
    let repeats = spread(spread_of_repeats(row)).map(|cv| format!("repeats {cv}"));
    let spreads: Vec<String> = steps.into_iter().chain(repeats).collect();
    let time = seconds(row.step_time.mean_seconds);
    Word::plain(if spreads.is_empty() {
        time
    } else {
        format!("{time} ({})", spreads.join("; "))
    })
}

/// How much the rates of the repeats vary, as a share of their mean: steps of one run may agree
/// where runs do not.
pub(super) fn spread_of_repeats(row: &Row) -> Option<f64> {
    let rates = &row.tokens_per_second_per_gpu.values;
    Some(sd(rates)? / mean(rates)?)
}

pub(super) fn mfu(row: &Row) -> Word {
    match &row.mfu {
        Mfu::Ok { value, .. } if value.is_finite() => Word::plain(percent(*value)),
        Mfu::Ok { .. } | Mfu::Absent { .. } => Word::missing(),
        Mfu::Error { .. } => Word::inked("impossible", Ink::Alarm),
    }
}

pub(super) fn memory(row: &Row) -> Word {
    match row.memory.first() {
        Some(memory) => Word::plain(format!(
            "{} ({})",
            bytes(memory.bytes),
            memory.kind.replace('_', " ")
        )),
        None => Word::missing(),
    }
}

/// The title of a group's cells: model, workload, devices.
pub(super) fn group_title(group: &Group, rows: &[&Row]) -> String {
    let strict = if group.identical_config {
        ", identical configuration"
    } else {
        ""
    };
    let (workload, devices) = (said(&group.workload), in_title(rows));
    format!("{}: {workload}{strict}{devices}", group.model)
}

/// How many repeats of a cell do not count, by the reason: `1 failed`.
pub(super) fn not_counted(row: &Row) -> impl Iterator<Item = String> {
    let counts = [
        (row.failed, "failed"),
        (row.contradicted, "contradicted"),
        (row.suspect, "suspect"),
        (row.unmeasured, "unmeasured"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, why)| format!("{count} {why}"))
}

/// `2/3, 1 failed`, and whether the log attests what ran.
pub(super) fn repeats(row: &Row) -> Word {
    let mut text = format!("{}/{}", row.n, row.repeats_wanted);
    for count in not_counted(row) {
        _ = write!(text, ", {count}");
    }
    standing(&row.standing)
        .iter()
        .for_each(|words| _ = write!(text, ", {words}"));
    if row.repeats_added_later {
        text.push_str(", some added later");
    }
    dropped_words(&row.dropped)
        .iter()
        .for_each(|words| _ = write!(text, ", {words}"));
    if row.attestation == AttestationStatus::NotStated {
        text.push_str(", not attested");
    }
    if let [first, more @ ..] = &row.warnings[..] {
        let more = if more.is_empty() {
            String::new()
        } else {
            format!(" and {} more", more.len())
        };
        _ = write!(text, ", runs with {}{more}", setting(first));
    }
    let ink = match (row.contradicted, row.failed, row.warnings.is_empty()) {
        (0, 0, true) if row.standing.earlier.is_some() => Ink::Bad,
        (0, 0, true) => Ink::Plain,
        (0, ..) => Ink::Bad,
        _ => Ink::Alarm,
    };
    Word::inked(text, ink)
}

/// What of a warning fits a table; its reason is in the notes.
fn setting(warning: &Warning) -> String {
    match warning {
        Warning::Variable { name, value, .. } => format!("{name}={value}"),
        other => said(other),
    }
}

pub(super) fn against(row: &Row, baseline: &str, speedups: &BTreeMap<&str, &Speedup>) -> Word {
    if row.cell == baseline {
        return Word::plain("baseline");
    }
    match speedups.get(row.cell.as_str()) {
        Some(speedup) => Word::inked(sentence(speedup), ink_of(SpeedVerdict::of(speedup))),
        None => Word::missing(),
    }
}

/// Differences told beside a figure; all of them are in the notes.
const LABELS: usize = 3;

/// `1.23× (1.10–1.38), faster`, what the two cells do differently, and what may not be concluded
/// from it.
#[must_use]
pub fn sentence(speedup: &Speedup) -> String {
    let ends = interval(speedup)
        .map(|ends| format!(" ({})", ends.trim_start_matches("95 % CI ")))
        .unwrap_or_default();
    let mut text = format!("{}{ends}", times(speedup));
    text.push_str(match SpeedVerdict::of(speedup) {
        SpeedVerdict::Faster => ", faster",
        SpeedVerdict::Slower => ", slower",
        SpeedVerdict::NoDifference => ", no significant difference",
        _ => "",
    });
    if let Some(reason) = &speedup.reason {
        _ = write!(text, ", no verdict: {}", said(reason));
    }
    if let Some(seconds) = speedup.apart_seconds {
        _ = write!(text, "; measured {} apart", duration(seconds));
    }
    let (told, more) = speedup.labels.split_at(speedup.labels.len().min(LABELS));
    for label in told {
        _ = write!(text, "; {}", said(label));
    }
    if !more.is_empty() {
        _ = write!(text, "; and {} more", more.len());
    }
    text
}
