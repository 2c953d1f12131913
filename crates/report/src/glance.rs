//! A comparison at one glance: a sentence a workload, one table with short names and the fastest
//! first, and the few reservations that would change what a reader does. Everything else is in
//! [`super::document`].

mod reservations;

use std::collections::BTreeSet;

use indexmap::IndexMap;
use tprimat_base::words::plain::counted;
use tprimat_numbers::figures::{
    AbsentCell, AbsentState, Comparison, Judged, Row, Sweep, codes::TESTED, sweeps, swept_groups,
};

use super::{
    columns::{Of, Place, figures, ink_of, rows_of},
    document::{Medium, Section, sections},
    headline::{Headline, SpeedVerdict, headlines},
    mark,
    names::short_names,
    notes::listed,
    paint::{Ink, Page},
    sheet::{Layout, Sheet, Text},
    sweep::{sweep_tables, tell_sweep},
};
use reservations::reservations;

/// Reservations that are told; the others are counted.
const RESERVATIONS: usize = 3;
/// Workloads with a sentence of their own; of a larger sweep the table says the rest.
const SENTENCES: usize = 4;
/// Reasons why cells have no figures.
const ABSENT: usize = 4;

/// Commands about the very cells that are compared, with the matrix and the options that they were
/// asked for with.
pub struct Commands {
    /// Prints all that there is to say.
    pub details: String,
    /// Builds them; options may follow.
    pub build: String,
    /// Can this host run one of them?
    pub can_run: bool,
    /// Says why each would run, or cannot.
    pub plan: String,
}

/// The comparison in at most a screen for the usual matrix. `named`: somebody asked for these cells
/// one by one, so that what may not be compared is told first.
#[must_use]
pub fn glance(comparison: &Comparison, named: bool, commands: &Commands, page: &Page) -> String {
    let mut out = Text::new(page);
    let told = headlines(comparison);
    let judged = Judged::of_comparison(comparison);
    for headline in told
        .iter()
        .filter(|h| named && h.verdict == SpeedVerdict::Refused)
    {
        out.inked(Ink::Bad, &headline.text);
        out.gap();
    }
    let swept = swept_groups(comparison, |_| true);
    let sweeps = sweeps(comparison, &judged);
    for table in sweep_tables(comparison, &sweeps) {
        tell_sweep(&table, &mut out);
    }
    let sections = sections(comparison, &judged, &told, (Place::Glance, usize::MAX));
    let is_swept =
        |section: &Section<'_>| section.rows.iter().any(|of| swept.contains(&of.row.group));
    let others = sections.iter().filter(|section| !is_swept(section)).count();
    if others > SENTENCES {
        many(&mut out, &sections);
    } else {
        let others = sections.iter().filter(|section| !is_swept(section));
        others.for_each(|section| one(&mut out, section));
    }
    if is_unmeasured(comparison) {
        unmeasured(&mut out, &comparison.absent, commands);
        return out.out;
    }
    // The line of a cell says that it has no figures.
    if comparison.groups.is_empty() && comparison.absent.is_empty() {
        out.say("No cell has figures.");
        out.gap();
    }
    absent(&mut out, &comparison.absent);
    if let Some(text) = correction(comparison, &sweeps, &swept) {
        out.inked(Ink::Dim, &text);
        out.gap();
    }
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

/// The sentence on the correction for several comparisons, where an interval of a difference is shown
/// beside a sweep.
fn correction(
    comparison: &Comparison,
    sweeps: &[Sweep],
    swept: &BTreeSet<usize>,
) -> Option<String> {
    let tested = comparison.notes.iter().find(|note| note.reason.is(TESTED));
    let tested = tested.and_then(|note| note.reason.values["comparisons"].as_u64());
    let tested = tested.filter(|tested| *tested > 1)?;
    let in_tables = comparison
        .rows
        .iter()
        .filter(|row| !swept.contains(&row.group));
    let in_tables: BTreeSet<&str> = in_tables.map(|row| row.cell.as_str()).collect();
    let ratios = comparison.speedups.iter().filter(|s| {
        s.significant.is_some() && s.interval.is_some() && in_tables.contains(s.a.as_str())
    });
    // That of the highest rates of two lines is corrected in another way, as its own sentence says.
    let bests = sweeps
        .iter()
        .flat_map(|sweep| &sweep.surfaces)
        .filter_map(|one| one.best.as_ref());
    let of_sweeps = bests
        .map(|best| best.interval)
        .any(|interval| interval.is_some());
    let which = match (ratios.count(), of_sweeps) {
        // The head of a table says so.
        (_, false) => return None,
        (0, true) => "the differences between points of a sweep".to_owned(),
        (ratios, true) => format!(
            "{} and of the differences between points of a sweep",
            counted(ratios, "ratio")
        ),
    };
    Some(format!(
        "The 95 % intervals of {which} are corrected for the {tested} pairs of cells that are compared (Holm's correction), which makes them wider."
    ))
}

/// A workload: its title, the sentence on its fastest cell, its table.
fn one(out: &mut Text<'_>, section: &Section<'_>) {
    out.title(&format!("{}: {}", section.model, section.workload));
    if let Some(headline) = main(section) {
        out.inked(ink_of(headline.verdict), &headline.short);
    }
    if section.rows.len() > 1 {
        let names = short_names(&rows_of(&section.rows));
        let base = section
            .rows
            .iter()
            .position(Of::is_baseline)
            .map_or("", |at| &names[at]);
        out.sheet(&sheet(&section.rows, &names, &format!("against {base}")));
        cells(out, &section.rows);
    }
    out.gap();
}

/// Many workloads: one table, in which cells of one workload stand together, then the weightiest
/// sentences.
fn many(out: &mut Text<'_>, sections: &[Section<'_>]) {
    let mut all: Vec<Of<'_>> = sections
        .iter()
        .flat_map(|section| section.rows.iter().copied())
        .collect();
    let count = sections.len();
    out.title(&format!(
        "{} cells of {count} workloads; a ratio is against the baseline of its workload",
        all.len()
    ));
    out.sheet(&sheet(&all, &short_names(&rows_of(&all)), "ratio"));
    all.sort_by_key(|of| of.at);
    cells(out, &all);
    out.gap();
    let mains = sections
        .iter()
        .filter_map(|section| Some((section, main(section)?)));
    let mains: Vec<_> = mains
        .filter(|(_, h)| h.verdict != SpeedVerdict::Alone)
        .take(SENTENCES - 1)
        .collect();
    for (section, headline) in &mains {
        let workload = section.rows[0].group.workload.clone();
        out.inked(
            ink_of(headline.verdict),
            &format!("{workload}: {}", headline.short),
        );
    }
    if !mains.is_empty() {
        out.gap();
    }
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

/// A table without a frame; columns of little weight are left out where there is no room, but what is
/// said of repeats that do not all count never is.
fn sheet(all: &[Of<'_>], names: &[String], against: &str) -> Sheet {
    let table = figures(all, Place::Glance, against);
    let counts = table
        .heads
        .iter()
        .position(|(head, _)| head == "repeats")
        .unwrap_or(0);
    let mut words = table.rows.iter().map(|row| row[counts].line());
    let is_flagged = words.any(|words| words.split_once('/').is_none_or(|(n, of)| n != of));
    let is_last = |at: &usize| {
        all.get(*at)
            .is_some_and(|next| next.row.group != all[at - 1].row.group)
    };
    let layout = Layout::Bare {
        least: if is_flagged { 4 } else { 3 },
        breaks: (1..all.len()).filter(is_last).collect(),
    };
    Sheet::of("", names.iter().cloned(), &table, layout)
}

/// Names the cells of a table, where one line can.
fn cells(out: &mut Text<'_>, all: &[Of<'_>]) {
    if let Some(pattern) = pattern(&rows_of(all)) {
        out.item("  ", Ink::Dim, &format!("cells: {pattern}"));
    }
}

/// The cells of a table as `--only` takes them: `cpu/{native,tran}/llama/single@seq=128`. None where
/// they are many and have not the same axes: their names have no pattern.
fn pattern(rows: &[&Row]) -> Option<String> {
    const MOST: usize = 6;
    if let [row] = rows {
        return Some(format!("{}{}", row.cell, mark(&row.imported)));
    }
    let part = |of: &dyn Fn(&Row) -> String| {
        let mut values: Vec<String> = Vec::new();
        for row in rows {
            let value = of(row);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        match &values[..] {
            [one] => one.clone(),
            _ if values.len() <= MOST => format!("{{{}}}", values.join(",")),
            _ => "*".to_owned(),
        }
    };
    let path = [
        part(&|row| row.platform.clone()),
        part(&|row| row.framework.clone()),
        part(&|row| row.model.clone()),
        part(&|row| row.parallelism.clone()),
    ];
    // Without its axes a name may be that of another cell.
    let is_everywhere = |name: &String| rows.iter().all(|row| row.axes.contains_key(name));
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.axes.keys()).collect();
    if !names.iter().all(|name| is_everywhere(name)) {
        let cells = || rows.iter().map(|row| row.cell.clone());
        return (rows.len() <= MOST).then(|| cells().collect::<Vec<_>>().join(", "));
    }
    let value = |row: &Row, name: &str| row.axes.get(name).cloned().unwrap_or_default();
    let axes: Vec<String> = names
        .into_iter()
        .map(|name| format!("{name}={}", part(&|row| value(row, name))))
        .collect();
    let axes = if axes.is_empty() {
        String::new()
    } else {
        format!("@{}", axes.join(","))
    };
    Some(format!("{}{axes}", path.join("/")))
}

/// Has nothing been tried yet? Then there is nothing to tell of but what to do.
fn is_unmeasured(comparison: &Comparison) -> bool {
    let is_untried =
        |cell: &AbsentCell| matches!(cell.state, AbsentState::Missing | AbsentState::Unsupported);
    comparison.rows.is_empty()
        && !comparison.absent.is_empty()
        && comparison.absent.iter().all(is_untried)
}

/// What to do, and how many cells wait for what.
fn unmeasured(out: &mut Text<'_>, cells: &[AbsentCell], commands: &Commands) {
    let Commands { build, plan, .. } = commands;
    let what_next = if commands.can_run {
        format!("; `{build}` measures what this host can run")
    } else {
        ", and this host can run none of these cells".to_owned()
    };
    out.raw(&format!("No cell has figures yet{what_next}."));
    out.gap();
    let mut reasons: IndexMap<String, usize> = IndexMap::new();
    for cell in cells {
        let why = if cell.state == AbsentState::Unsupported {
            format!("not supported (`{plan}` says why)")
        } else {
            cell.reason.text.clone()
        };
        *reasons.entry(why).or_default() += 1;
    }
    reasons.sort_by(|_, a, _, b| b.cmp(a));
    for (why, count) in reasons.iter().take(ABSENT) {
        out.item(
            "  ",
            Ink::Plain,
            &format!("{}: {why}", counted(*count, "cell")),
        );
    }
    let left: usize = reasons.values().skip(ABSENT).sum();
    if left > 0 {
        out.item(
            "  ",
            Ink::Dim,
            &format!("{left} more, for other reasons (`{plan}`)"),
        );
    }
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
            &format!("no figures: {left} more cells, for other reasons"),
        );
    }
    if !cells.is_empty() {
        out.gap();
    }
}

#[cfg(test)]
mod tests;
