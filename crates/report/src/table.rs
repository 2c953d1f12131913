//! A comparison as text: what may not be compared, sentences and a table or two a group, then the
//! cells without figures, then notes in plain sentences.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use tprimat_figures::{
    AbsentState, Comparison, Estimate, Group, Judged, Mfu, NoteKind, RepeatStatus, Row, Speedup,
    codes::DANGEROUS_VARIABLE, dropped_words, rate_unit, sweeps,
};
use tprimat_results::{AttestationStatus, Reason, mean, sd};

use super::{
    document::Document,
    format::{bytes, mark, number, percent, seconds},
    hardware::in_title,
    headline::{SpeedVerdict, duration, headlines, interval, ratio_intervals, same_as, times},
    notes::shortened,
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    sweep::sweep_text,
};

/// The whole comparison, in lines of at most the page's width as far as words allow.
#[must_use]
pub fn table(comparison: &Comparison, page: &Page) -> String {
    let mut out = String::new();
    let told = headlines(comparison);
    let judged = Judged::of_comparison(comparison);
    let document = Document::of(comparison, &judged, &told);
    for headline in &document.refused {
        paragraph(&mut out, "", &headline.text, page, ink_of(headline.verdict));
    }
    if document.refused_untold > 0 {
        let text = format!(
            "And {} more that may not be compared: see the notes.",
            document.refused_untold
        );
        paragraph(&mut out, "", &text, page, Ink::Bad);
    }
    if !document.refused.is_empty() {
        out.push('\n');
    }
    let sweeps = sweeps(comparison, &judged);
    out.push_str(&sweep_text(comparison, &sweeps, page));
    for group in &document.groups {
        paragraph(&mut out, "", &group.title, page, Ink::Strong);
        if let Some(text) = &group.ranking {
            paragraph(&mut out, "", text, page, Ink::Strong);
        }
        for headline in &group.leading {
            paragraph(&mut out, "", &headline.text, page, ink_of(headline.verdict));
        }
        if let Some(more) = &group.more {
            paragraph(&mut out, "", &format!("{more}."), page, Ink::Plain);
        }
        out.push_str(&group.figures.show(page));
        out.push('\n');
        for line in &group.steady_state {
            paragraph(&mut out, "", line, page, Ink::Plain);
        }
        if let Some(cost) = &group.cost {
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
            let text = format!("{}{}  {}", cell.cell, mark(&cell.imported), cell.told());
            paragraph(&mut out, "  ", &text, page, ink_of_state(cell.state));
        }
        out.push('\n');
    }
    let mut harmless = 0;
    let most = page.most_notes.unwrap_or(usize::MAX);
    let (told, more): (Vec<_>, Vec<_>) = document.environments.iter().partition(|found| {
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
    let (notes, left_out) = shortened(document.notes, page.most_notes);
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
    let shown = rows
        .iter()
        .filter_map(|row| speedups.get(row.cell.as_str()));
    let intervals = ratio_intervals(shown.copied());
    sheet.column(format!("against the baseline ({intervals})"), false);
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
        let mut against = against(row, baseline, speedups, intervals);
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
/// where runs do not. Runs that are in no unit are not in the step time beside it either.
pub(super) fn spread_of_repeats(row: &Row) -> Option<f64> {
    let estimate = &row.tokens_per_second_per_gpu;
    let counted = row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    let rates = estimate.values.iter().zip(counted);
    let rates = rates.filter(|(_, repeat)| estimate.unit.has(repeat));
    let rates: Vec<f64> = rates.map(|(rate, _)| *rate).collect();
    Some(sd(&rates)? / mean(&rates)?)
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
    let (workload, devices) = (group.workload.clone(), in_title(rows));
    format!("{}: {workload}{strict}{devices}", group.model)
}

/// How many repeats of a cell do not count, by the reason: `1 failed`.
pub(super) fn not_counted(row: &Row) -> impl Iterator<Item = String> {
    let counts = row.uncounted.by_why().into_iter();
    counts
        .filter(|(_, count)| *count > 0)
        .map(|(why, count)| format!("{count} {why}"))
}

/// `2/3, 1 failed`, and whether the log attests what ran.
pub(super) fn repeats(row: &Row) -> Word {
    let mut text = format!("{}/{}", row.n, row.repeats_wanted);
    for count in not_counted(row) {
        _ = write!(text, ", {count}");
    }
    row.standing
        .words()
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
    let ink = match (
        row.uncounted.contradicted,
        row.uncounted.failed,
        row.warnings.is_empty(),
    ) {
        (0, 0, true) if row.standing.earlier.is_some() => Ink::Bad,
        (0, 0, true) => Ink::Plain,
        (0, ..) => Ink::Bad,
        _ => Ink::Alarm,
    };
    Word::inked(text, ink)
}

/// What of a warning fits a table; its reason is in the notes.
fn setting(warning: &Reason) -> String {
    if !warning.is(DANGEROUS_VARIABLE) {
        return warning.text.clone();
    }
    let of = |name: &str| warning.values.get(name).and_then(|v| v.as_str());
    format!(
        "{}={}",
        of("name").unwrap_or_default(),
        of("value").unwrap_or_default()
    )
}

fn against(row: &Row, baseline: &str, speedups: &BTreeMap<&str, &Speedup>, head: &str) -> Word {
    if row.cell == baseline {
        return Word::plain("baseline");
    }
    match speedups.get(row.cell.as_str()) {
        Some(speedup) => Word::inked(sentence(speedup, head), ink_of(SpeedVerdict::of(speedup))),
        None => Word::missing(),
    }
}

/// Differences told beside a figure; all of them are in the notes.
const LABELS: usize = 3;

/// `1.23× (1.10–1.38), faster`, what the two cells do differently, and what may not be concluded
/// from it. `head`: what the column says of its intervals.
fn sentence(speedup: &Speedup, head: &str) -> String {
    let ends = interval(speedup, head).map_or_else(String::new, |ends| format!(" ({ends})"));
    let mut text = format!("{}{ends}", times(speedup));
    text.push_str(match SpeedVerdict::of(speedup) {
        SpeedVerdict::Faster => ", faster",
        SpeedVerdict::Slower => ", slower",
        SpeedVerdict::NoDifference => ", no significant difference",
        _ => "",
    });
    if let Some(reason) = &speedup.reason {
        _ = write!(text, ", no verdict: {reason}");
    }
    if let Some(seconds) = speedup.apart_seconds {
        _ = write!(text, "; measured {} apart", duration(seconds));
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
