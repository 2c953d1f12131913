//! A comparison at one glance: a sentence a workload, one table with short names and the fastest
//! first, and the few reservations that would change what a reader does. Everything else is in
//! [`super::document`].

mod reservations;

use indexmap::IndexMap;
use tprimat_base::words::plain::counted;
use tprimat_numbers::figures::{AbsentCell, AbsentState, Comparison, Judged, sweeps, swept_groups};

use super::{
    columns::{Of, Place, figures, ink_of, rows_of},
    document::{Medium, Section, sections},
    headline::{Headline, SpeedVerdict, headlines},
    notes::listed,
    paint::{Ink, Page},
    plot::short_names,
    sheet::{Sheet, Text},
    sweep::{sweep_tables, tell_sweep},
};
use reservations::reservations;

/// Reservations that are told; the others are counted.
const RESERVATIONS: usize = 3;
/// Reasons why cells have no figures.
const ABSENT: usize = 4;

/// Commands about the very cells that are compared, with the matrix and the options that they were
/// asked for with.
pub struct Commands {
    /// Prints all that there is to say.
    pub details: String,
    /// Builds them; options may follow.
    pub build: String,
    /// Can this host run one of them? Absent behind a build, which has just tried.
    pub can_run: Option<bool>,
    /// Says why each would run, or cannot.
    pub plan: String,
}

/// The comparison in at most a screen for the usual matrix. `named`: somebody asked for these cells
/// one by one, so that what may not be compared is told first.
#[must_use]
pub fn glance(comparison: &Comparison, named: bool, commands: &Commands, page: &Page) -> String {
    let mut out = Text::new(page);
    let told = headlines(comparison);
    for headline in told
        .iter()
        .filter(|h| named && h.verdict == SpeedVerdict::Refused)
    {
        out.inked(Ink::Bad, &headline.text);
        out.gap();
    }
    let swept = swept_groups(comparison, |_| true);
    let sweeps = sweeps(comparison, &Judged::of_comparison(comparison));
    for table in sweep_tables(comparison, &sweeps) {
        tell_sweep(&table, &mut out);
    }
    let sections = sections(comparison, &told, (Place::Glance, usize::MAX));
    let is_swept =
        |section: &Section<'_>| section.rows.iter().any(|of| swept.contains(&of.row.group));
    let others = sections.iter().filter(|section| !is_swept(section));
    others.for_each(|section| one(&mut out, section));
    if is_unmeasured(comparison) {
        let what_next = match commands.can_run {
            Some(true) => format!("; `{}` measures what this host can run", commands.build),
            Some(false) => ", and this host can run none of these cells".to_owned(),
            None => String::new(),
        };
        let plan = &commands.plan;
        out.raw(&format!(
            "No cell has figures yet{what_next}. `{plan}` says why."
        ));
        absent(&mut out, &comparison.absent);
        return format!("{}\n", out.out.trim_end());
    }
    // The line of a cell says that it has no figures.
    if comparison.groups.is_empty() && comparison.absent.is_empty() {
        out.say("No cell has figures.");
        out.gap();
    }
    absent(&mut out, &comparison.absent);
    let all = reservations(comparison, named, &commands.build);
    for text in all.iter().take(RESERVATIONS) {
        out.item("! ", Ink::Bad, text);
    }
    if !all.is_empty() {
        out.gap();
    }
    let said = match all.len().saturating_sub(RESERVATIONS) {
        0 if comparison.groups.is_empty() => return format!("{}\n", out.out.trim_end()),
        0 => "Every figure and note".to_owned(),
        left => format!(
            "{}, and every figure and note",
            counted(left, "more warning")
        ),
    };
    out.inked(Ink::Dim, &format!("{said}: `{}`", commands.details));
    out.out
}

/// A workload: its title, the sentence on its fastest cell, its table.
fn one(out: &mut Text<'_>, section: &Section<'_>) {
    out.title(&format!("{}: {}", section.model, section.workload));
    if let Some(headline) = main(section) {
        out.inked(ink_of(headline.verdict), &headline.text);
    }
    if section.rows.len() > 1 {
        let names = short_names(&rows_of(&section.rows));
        let base = section
            .rows
            .iter()
            .position(Of::is_baseline)
            .map_or("", |at| &names[at]);
        let table = figures(&section.rows, Place::Glance, &format!("against {base}"));
        out.sheet(&Sheet::of("", names.iter().cloned(), &table));
        let cells: Vec<&str> = section.rows.iter().map(|of| &*of.row.cell).collect();
        out.item("  ", Ink::Dim, &format!("cells: {}", listed(&cells, &[])));
    }
    out.gap();
}

/// What is said of a workload: how its fastest cell does against the baseline, or the next one
/// against the fastest baseline.
fn main<'a>(section: &Section<'a>) -> Option<&'a Headline> {
    let others = section.rows.iter().find(|of| !of.is_baseline());
    let fastest = others.or_else(|| section.rows.first())?;
    let of_fastest = section
        .told
        .iter()
        .find(|headline| headline.a == fastest.row.cell);
    of_fastest.or_else(|| section.told.first()).copied()
}

/// Has nothing been tried yet? Then there is nothing to tell of but what to do.
fn is_unmeasured(comparison: &Comparison) -> bool {
    let is_untried =
        |cell: &AbsentCell| matches!(cell.state, AbsentState::Missing | AbsentState::Unsupported);
    comparison.rows.is_empty()
        && !comparison.absent.is_empty()
        && comparison.absent.iter().all(is_untried)
}

/// Cells without figures, a line a reason.
fn absent(out: &mut Text<'_>, cells: &[AbsentCell]) {
    // Each cell may have a reason of its own.
    let mut reasons: IndexMap<(AbsentState, String), Vec<&str>> = IndexMap::new();
    for cell in cells {
        let why = cell.told();
        reasons
            .entry((cell.state, why))
            .or_default()
            .push(&cell.cell);
    }
    // What went wrong first; that a recipe cannot run a cell is no news.
    reasons.sort_by_key(|(state, _), _| *state);
    for ((state, reason), names) in reasons.iter().take(ABSENT) {
        let cells = match &names[..] {
            [first, _, _, ..] => format!("{first} and {} more", names.len() - 1),
            few => listed(few, &[]),
        };
        let text = format!("no figures: {cells} ({reason})");
        out.item("  ", Ink::of_state(*state), &text);
    }
    let left: usize = reasons.values().skip(ABSENT).map(Vec::len).sum();
    if left > 0 {
        out.item(
            "  ",
            Ink::Dim,
            &format!("no figures: {left} more cells, for other reasons; `tprimat list` names them"),
        );
    }
    if !cells.is_empty() {
        out.gap();
    }
}

#[cfg(test)]
mod tests;
