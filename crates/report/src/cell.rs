//! All that is known of one cell: its figures, each with what it is made of, its repeats, and what
//! went wrong.

use serde::Serialize;
use serde_json::Value;
use tprimat_numbers::figures::{AbsentState, Comparison, Figure, RepeatStatus, RepeatSummary, Row};
use tprimat_numbers::results::{AttestationStatus, words::few};

use super::{
    advice::advice,
    columns::{self, Of, Place, ink_of},
    csv::{OF_REPEAT, Read},
    format::{bytes, number, percent, seconds},
    headline::headlines,
    mark,
    notes::steady_state,
    paint::{Ink, Page},
    sheet::{Sheet, Text, Word},
    shown::Shown,
};

/// None where the comparison has no such cell.
#[must_use]
pub fn cell_text(
    comparison: &Comparison,
    name: &str,
    command: impl Fn(&str, &[&str]) -> String,
    page: &Page,
) -> Option<String> {
    let mut out = Text::new(page);
    let all = Of::all(comparison);
    let repeats = if let Some(of) = all.iter().find(|of| of.row.cell == name) {
        with_figures(&mut out, comparison, of);
        &of.row.repeats
    } else {
        let absent = comparison.absent.iter().find(|a| a.cell == name)?;
        out.inked(Ink::Strong, &format!("{name}{}", mark(&absent.imported)));
        let ink = if absent.state == AbsentState::Contradicted {
            Ink::Alarm
        } else {
            Ink::Bad
        };
        out.inked(ink, &absent.told());
        &absent.repeats
    };
    if !repeats.is_empty() {
        out.gap();
        out.say("Repeats:");
        out.sheet(&sheet(repeats));
        for repeat in repeats {
            what_went_wrong(&mut out, name, repeat, &command);
        }
    }
    let notes = comparison.notes.iter();
    let mut notes: Vec<_> = notes
        .filter(|note| note.cell.as_deref() == Some(name))
        .collect();
    notes.sort_by_key(|note| note.kind);
    if !notes.is_empty() {
        out.gap();
    }
    for note in notes {
        out.item("- ", Ink::Plain, &format!("{}.", note.reason.text.clone()));
    }
    Some(out.out)
}

fn with_figures(out: &mut Text<'_>, comparison: &Comparison, of: &Of<'_>) {
    let Of { row, group, .. } = of;
    out.inked(Ink::Strong, &format!("{}{}", row.cell, mark(&row.imported)));
    out.say(&format!("{}: {}", group.model, group.workload.clone()));
    let told = headlines(comparison);
    if let Some(headline) = told
        .iter()
        .find(|h| h.group == Some(row.group) && h.a == row.cell)
    {
        out.inked(ink_of(headline.verdict), &headline.text);
    } else if of.is_baseline() && group.cells.len() > 1 {
        out.say("Other cells of this workload are compared with this one.");
    }
    out.gap();
    let lines = figures(of);
    let names = lines.iter().map(|line| line.title.chars().count());
    let width = names.max().unwrap_or(0).min(out.page.width / 3);
    for line in lines {
        out.item(
            &format!("{:<width$}  ", line.title),
            line.shown.ink,
            &line.in_one_line(),
        );
    }
    steady_state(&[row]).iter().for_each(|line| out.say(line));
}

/// What is known of a cell, by a title.
#[derive(Serialize)]
pub(super) struct Named {
    pub title: String,
    #[serde(flatten)]
    pub shown: Shown,
    /// The figure in one line, without its reason.
    pub line: String,
    /// What it is made of.
    pub basis: String,
}

impl Named {
    fn of(title: impl Into<String>, shown: Shown, basis: String) -> Self {
        Self {
            title: title.into(),
            line: shown.line(),
            shown,
            basis,
        }
    }

    fn stated(title: &str, text: impl Into<String>) -> Self {
        Self::of(title, Shown::inked(text, Ink::Plain), String::new())
    }

    fn in_one_line(&self) -> String {
        match &self.shown.reason {
            Some(reason) if self.shown.impossible => format!("{}: {reason}", self.line),
            Some(reason) => format!("{}  {reason}", self.line),
            None if self.basis.is_empty() => self.line.clone(),
            None => format!("{}  = {}", self.line, self.basis),
        }
    }
}

/// What the column of ratios is called.
const BESIDE: &str = "against the baseline";

/// All that is known of a cell with figures, and why the rest is not.
pub(super) fn figures(of: &Of<'_>) -> Vec<Named> {
    let row = of.row;
    let or_not_stated = |text: &str| if text.is_empty() { "not stated" } else { text }.to_owned();
    let mut lines = vec![
        Named::stated(
            "device",
            or_not_stated(row.device.as_deref().unwrap_or_default()),
        ),
        Named::stated("precision", or_not_stated(&row.precision)),
        Named::stated("workload", attested(row)),
    ];
    let own = columns::figures(&[*of], Place::Cell, BESIDE);
    for ((title, _), shown) in own.heads.into_iter().zip(own.rows.into_iter().flatten()) {
        match title.as_str() {
            // A metric, which says what it is made of.
            "MFU" => {}
            // A sentence says it.
            title if title.starts_with(BESIDE) => {}
            "peak memory" if !row.memory.is_empty() => {
                lines.extend(row.memory.iter().map(|memory| {
                    let title = format!("memory, {}", memory.kind.replace('_', " "));
                    Named::stated(
                        &title,
                        format!("{} (source: {})", bytes(memory.bytes), memory.source),
                    )
                }))
            }
            "step time (cv)" => lines.push(Named::stated("step time", step_time(row))),
            _ => lines.push(Named::of(title, shown, String::new())),
        }
    }
    let metrics = row
        .metrics
        .0
        .iter()
        .filter(|metric| metric.name != "loss_at_end");
    lines.extend(metrics.map(|metric| {
        let basis = match &metric.figure {
            Figure::Ok { basis, .. } => basis.clone(),
            _ => String::new(),
        };
        let shown = columns::figure(&metric.figure, &metric.unit, &metric.title);
        Named::of(&metric.title, shown, basis)
    }));
    lines
}

fn step_time(row: &Row) -> String {
    let time = &row.step_time;
    let spread = match (time.sd_seconds, time.cv) {
        (Some(sd), Some(cv)) => format!(", sd {} (cv {})", seconds(sd), percent(cv)),
        _ => String::new(),
    };
    let mean = seconds(time.mean_seconds);
    let of_steps = time.median_seconds.zip(time.p95_seconds);
    let of_steps =
        of_steps.map(|(median, p95)| format!(", median {}, p95 {}", seconds(median), seconds(p95)));
    format!("mean {mean}{}{spread}", of_steps.unwrap_or_default())
}

/// Who says what the cell trained.
fn attested(row: &Row) -> String {
    match (row.attestation, &row.declared_only[..]) {
        (AttestationStatus::Attested, []) => "attested by the log".to_owned(),
        (AttestationStatus::Attested, open) => {
            format!("attested by the log, but for {}", few(open))
        }
        (AttestationStatus::Contradicted, _) => "CONTRADICTED by the log".to_owned(),
        (AttestationStatus::NotStated, _) => "not attested: the workload is as declared".to_owned(),
    }
}

/// The runs, with those columns in which any of them has something.
fn sheet(repeats: &[RepeatSummary]) -> Sheet {
    let columns: Vec<_> = OF_REPEAT
        .iter()
        .filter(|(_, title, read)| {
            !title.is_empty() && repeats.iter().any(|repeat| !read(repeat).is_null())
        })
        .collect();
    let is_figure = |name: &str| !["repeat", "state", "host"].contains(&name);
    let heads: Vec<(&str, bool)> = columns
        .iter()
        .map(|(name, title, _)| (*title, is_figure(name)))
        .collect();
    let mut sheet = Sheet::new(&heads, 1);
    let row = |repeat: &RepeatSummary| {
        let word = |(name, _, read): &&(&str, _, Read)| word(name, &read(repeat));
        columns.iter().map(word).collect()
    };
    sheet.rows = repeats.iter().map(row).collect();
    sheet
}

/// A value of a run as people read it.
fn word(name: &str, value: &Value) -> Word {
    match (value.as_f64(), value.as_str()) {
        (Some(n), _) if name == "repeat" => Word::plain(format!("#{n}")),
        (Some(n), _) if name.ends_with("_seconds") => Word::plain(seconds(n)),
        (Some(n), _) if n.fract() == 0.0 => Word::plain(n.to_string()),
        (Some(n), _) => Word::plain(number(n)),
        (_, Some(state)) if name == "state" && state != "ok" => Word::inked(state, Ink::Bad),
        (_, Some(text)) => Word::plain(text),
        (None, None) => Word::missing(),
    }
}

fn what_went_wrong(
    out: &mut Text<'_>,
    cell: &str,
    repeat: &RepeatSummary,
    command: impl Fn(&str, &[&str]) -> String,
) {
    let n = repeat.repeat;
    if let RepeatStatus::Failed { class, evidence } = &repeat.status {
        out.inked(Ink::Bad, &format!("#{n} failed{}:", class.in_brackets()));
        evidence
            .iter()
            .for_each(|line| out.item("    ", Ink::Plain, line));
        let advice = advice(*class, cell, command);
        out.item("    ", Ink::Plain, &format!("What to do: {advice}."));
    } else if let Some(why) = repeat.status.why_not() {
        out.inked(Ink::Bad, &format!("#{n} is not counted: {why}"));
    }
    if !repeat.log_tail.is_empty() {
        out.item("  ", Ink::Plain, "the end of its log:");
        let lines = repeat.log_tail.iter();
        lines.for_each(|line| out.item("    | ", Ink::Plain, line));
    }
}
