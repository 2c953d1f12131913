//! All that is known of one cell: its figures, each with what it is made of, its repeats, and what
//! went wrong.

use serde::Serialize;
use tprimat_base::words::plain::counted;
use tprimat_numbers::figures::{
    AbsentState, Comparison, Cut, Figure, NoteKind, RepeatStatus, RepeatSummary, Row, host_named,
};
use tprimat_numbers::results::{AttestationStatus, Tier};

use super::{
    advice::advice,
    columns::{self, Of, Place, ink_of},
    environment::following_words,
    format::{MISSING, bytes, number, percent, seconds},
    headline::{headlines, same_as},
    mark,
    notes::steady_state,
    paint::{Ink, Page},
    sheet::{Layout, Sheet, Text, Word},
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
    // Told above, with the cell's figures.
    let above = [NoteKind::Environment, NoteKind::Same];
    let notes = comparison
        .notes
        .iter()
        .filter(|note| note.cell.as_deref() == Some(name));
    let mut notes: Vec<_> = notes.filter(|note| !above.contains(&note.kind)).collect();
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
    // The sentence above says it where it is why the comparison is another cell's.
    let told = of.speedup.and_then(|speedup| speedup.same_as.as_ref());
    let twin = row
        .same_launch_as
        .as_ref()
        .filter(|twin| told != Some(*twin));
    if let Some(twin) = twin {
        let found = comparison.rows.iter().find(|other| other.cell == *twin);
        out.inked(
            Ink::Bad,
            &format!("{} {}.", row.cell, same_as(row, twin, found)),
        );
    }
    environment(out, of);
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
    let [mean, median, p95] =
        [time.mean_seconds, time.median_seconds, time.p95_seconds].map(seconds);
    format!("mean {mean}, median {median}, p95 {p95}{spread}")
}

/// Who says what the cell trained.
fn attested(row: &Row) -> String {
    let settings = row.contract.0.iter();
    let settings = settings
        .filter(|field| field.tier == Tier::Workload)
        .count();
    let confirmed = settings.saturating_sub(row.declared_only.len());
    let others = if row.imported.is_empty() {
        "the job asked"
    } else {
        "the labels say"
    };
    match row.attestation {
        AttestationStatus::Attested if !row.declared_only.is_empty() => {
            format!(
                "{confirmed} of {settings} settings confirmed by the log; the others are as {others}"
            )
        }
        AttestationStatus::Attested => "attested by the log".to_owned(),
        AttestationStatus::Contradicted => "CONTRADICTED by the log".to_owned(),
        AttestationStatus::NotStated => "not attested: the workload is as declared".to_owned(),
    }
}

/// In what the cell ran, where that is not as in the baseline; dangerous differences first, and
/// what merely follows from another vendor, platform or framework as a count.
fn environment(out: &mut Text<'_>, of: &Of<'_>) {
    let mut all: Vec<_> = of.environment.iter().collect();
    all.sort_by_key(|e| e.dangerous.is_none());
    if let Some(first) = all.first() {
        out.say(&format!("Different from {}:", first.cell_b));
    }
    let (own, following): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|e| e.dangerous.is_some() || e.follows.is_none());
    for found in own {
        let ink = if found.dangerous.is_none() {
            Ink::Plain
        } else {
            Ink::Bad
        };
        out.item("  ", ink, &format!("{} {}", found.kind, found.words()));
    }
    if let Some(text) = following_words(&following) {
        out.item(
            "  ",
            Ink::Dim,
            &format!("{text} (--json of `compare` has them)"),
        );
    }
}

/// A column of the table of repeats: its title, whether it has figures, and what it has of a repeat.
type Column = (&'static str, bool, fn(&RepeatSummary) -> Option<String>);

const COLUMNS: [Column; 12] = [
    ("repeat", false, |r| Some(format!("#{}", r.repeat))),
    ("state", false, |r| Some(state(r).text)),
    ("tokens/s/GPU", true, |r| {
        Some(number(r.steady.as_ref()?.tokens_per_second_per_gpu))
    }),
    ("step time", true, |r| {
        Some(seconds(r.steady.as_ref()?.step_time.mean_seconds))
    }),
    ("steps", true, |r| {
        Some(r.steady.as_ref()?.steps.to_string())
    }),
    ("first step", true, |r| {
        Some(r.cut()?.first_step.to_string())
    }),
    ("extra warm-up steps", true, |r| {
        Some(extra(r)?.dropped_steps.to_string())
    }),
    ("tokens/s/GPU with them", true, |r| {
        Some(number(extra(r)?.declared_tokens_per_second_per_gpu))
    }),
    ("energy", true, |r| {
        r.energy()
            .map(|e| format!("{} J ({})", number(e.joules), e.method))
    }),
    ("mean power", true, |r| {
        Some(format!(
            "{} W",
            number(r.telemetry.as_ref()?.mean_power_watts?)
        ))
    }),
    ("others on its GPUs", false, |r| {
        Some(others(r.telemetry.as_ref()?.processes_known))
    }),
    ("host", false, |r| host_named(&r.host).map(str::to_owned)),
];

/// Where more was warm-up than is declared.
fn extra(repeat: &RepeatSummary) -> Option<&Cut> {
    repeat.cut().filter(|cut| cut.dropped_steps > 0)
}

fn others(looks: u64) -> String {
    match usize::try_from(looks) {
        Ok(0) => "not known".to_owned(),
        looks => format!(
            "none seen in {}",
            counted(looks.unwrap_or(usize::MAX), "check")
        ),
    }
}

fn sheet(repeats: &[RepeatSummary]) -> Sheet {
    let word = |of: &Column, repeat: &RepeatSummary| {
        let text = of.2(repeat).filter(|text| text != MISSING);
        match (text, of.0) {
            (Some(_), "state") => state(repeat),
            (Some(text), _) => Word::plain(text),
            (None, _) => Word::missing(),
        }
    };
    let has_any = |column: &&Column| repeats.iter().any(|r| word(column, r).text != MISSING);
    let columns: Vec<&Column> = COLUMNS.iter().filter(has_any).collect();
    let heads: Vec<(&str, bool)> = columns
        .iter()
        .map(|(name, is_figure, _)| (*name, *is_figure))
        .collect();
    let mut sheet = Sheet::new(&heads, Layout::Parts);
    let row = |repeat: &RepeatSummary| columns.iter().map(|column| word(column, repeat)).collect();
    sheet.rows = repeats.iter().map(row).collect();
    sheet
}

fn state(repeat: &RepeatSummary) -> Word {
    match &repeat.status {
        RepeatStatus::Ok => Word::plain("ok"),
        RepeatStatus::Failed { class, .. } => {
            Word::inked(format!("failed ({})", class.name()), Ink::Bad)
        }
        RepeatStatus::Contradicted { .. } => Word::inked("CONTRADICTED", Ink::Alarm),
        RepeatStatus::Suspect { .. } => Word::inked("suspect", Ink::Bad),
        RepeatStatus::Unmeasured { .. } => Word::inked("not counted", Ink::Dim),
    }
}

fn what_went_wrong(
    out: &mut Text<'_>,
    cell: &str,
    repeat: &RepeatSummary,
    command: impl Fn(&str, &[&str]) -> String,
) {
    let n = repeat.repeat;
    let why = repeat.status.why_not().unwrap_or_default();
    match &repeat.status {
        RepeatStatus::Ok => {}
        RepeatStatus::Failed { class, evidence } => {
            out.inked(Ink::Bad, &format!("#{n} failed ({}):", class.name()));
            evidence
                .iter()
                .for_each(|line| out.item("    ", Ink::Plain, line));
            let advice = advice(*class, cell, command);
            out.item("    ", Ink::Plain, &format!("What to do: {advice}."));
        }
        RepeatStatus::Contradicted { .. } => {
            out.inked(
                Ink::Alarm,
                &format!("#{n} CONTRADICTED, not counted: {why}"),
            );
        }
        _ => out.say(&format!("#{n} is not counted: {why}")),
    }
    let telemetry = repeat.telemetry.as_ref();
    let no_energy = telemetry
        .and_then(|t| t.energy_absent.as_ref())
        .map(|why| why.text.clone());
    if let Some(why) = repeat
        .telemetry_absent
        .as_ref()
        .map(|why| why.text.clone())
        .or(no_energy)
    {
        out.inked(Ink::Dim, &format!("#{n} has no energy: {why}"));
    }
    if let Some(told) = telemetry.filter(|t| !t.throttled.is_empty()) {
        let reasons = told.throttled.join(", ");
        out.inked(
            Ink::Bad,
            &format!("#{n} ran with lowered clocks: {reasons}"),
        );
    }
    if !repeat.log_tail.is_empty() {
        out.item("  ", Ink::Plain, "the end of its log:");
        let lines = repeat.log_tail.iter();
        lines.for_each(|line| out.item("    | ", Ink::Plain, line));
    }
}
