//! A comparison at one glance: a sentence a workload, one table with short names and the fastest
//! first, and the few reservations that would change what a reader does. Everything else is in
//! [`super::table`].

mod reservations;

use std::{collections::BTreeSet, fmt::Write as _};

use indexmap::IndexMap;
use tprimat_figures::{
    AbsentCell, AbsentState, Comparison, Group, Judged, Mfu, Row, Speedup, Sweep, codes::TESTED,
    is_crossed, rate_unit, sweeps, swept_groups,
};
use tprimat_words::plain::counted;

use super::{
    format::{bytes, percent},
    headline::{Headline, SpeedVerdict, headlines, interval, ratio_intervals, times},
    mark,
    names::short_names,
    notes::listed,
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    sweep::sweep_text,
    table::{group_title, ink_of, ink_of_state, rate, repeats},
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
    let mut out = String::new();
    let told = headlines(comparison);
    for headline in told
        .iter()
        .filter(|h| h.verdict == SpeedVerdict::Refused && named)
    {
        paragraph(&mut out, "", &headline.text, page, Ink::Bad);
        out.push('\n');
    }
    let swept = swept_groups(comparison, |_| true);
    let sweeps = sweeps(comparison, &Judged::of_comparison(comparison));
    out.push_str(&sweep_text(comparison, &sweeps, page));
    let groups: Vec<(usize, &Group)> = comparison
        .groups
        .iter()
        .enumerate()
        .filter(|(at, _)| !swept.contains(at))
        .collect();
    if groups.len() > SENTENCES {
        sweep(&mut out, comparison, &told, page);
    } else {
        for (index, group) in &groups {
            one(&mut out, comparison, &told, (*index, group), page);
        }
    }
    if is_unmeasured(comparison) {
        unmeasured(&mut out, &comparison.absent, commands, page);
        return out;
    }
    if comparison.groups.is_empty() {
        out.push_str("No cell has figures.\n\n");
    }
    absent(&mut out, &comparison.absent, page);
    if let Some(text) = correction(comparison, &sweeps, &swept) {
        paragraph(&mut out, "", &text, page, Ink::Dim);
        out.push('\n');
    }
    let all = reservations(comparison, named, &commands.build);
    for text in all.iter().take(RESERVATIONS) {
        paragraph(&mut out, "! ", text, page, Ink::Bad);
    }
    if !all.is_empty() {
        out.push('\n');
    }
    let left = all.len().saturating_sub(RESERVATIONS);
    let said = if left > 0 {
        format!(
            "{}, and every figure and note",
            counted(left, "more reservation")
        )
    } else {
        "Every figure and note".into()
    };
    paragraph(
        &mut out,
        "",
        &format!("{said}: `{}`", commands.details),
        page,
        Ink::Dim,
    );
    out
}

/// The sentence on the correction for several comparisons, where an interval of a difference is
/// shown: in a table of a workload that is no sweep, or beside a sweep.
fn correction(
    comparison: &Comparison,
    sweeps: &[Sweep],
    swept: &BTreeSet<usize>,
) -> Option<String> {
    let tested = comparison.notes.iter().find(|note| note.reason.is(TESTED));
    let tested = tested.and_then(|note| note.reason.values["comparisons"].as_u64());
    let tested = tested.filter(|tested| *tested > 1)?;
    let in_tables: BTreeSet<&str> = comparison
        .rows
        .iter()
        .filter(|row| !swept.contains(&row.group))
        .map(|row| row.cell.as_str())
        .collect();
    let ratios = comparison.speedups.iter().filter(|s| {
        s.significant.is_some() && s.interval.is_some() && in_tables.contains(s.a.as_str())
    });
    let of_sweeps = sweeps.iter().any(has_intervals);
    let which = match (ratios.count(), of_sweeps) {
        (0, false) => return None,
        (0, true) => "the differences between points of a sweep".to_owned(),
        (1, false) => "the ratio".to_owned(),
        (ratios, false) => format!("the {ratios} ratios"),
        (ratios, true) => format!(
            "{} and of the differences between points of a sweep",
            counted(ratios, "ratio")
        ),
    };
    Some(format!(
        "The 95 % intervals of {which} are corrected for the {tested} pairs of cells that are compared (Holm's correction), which makes them wider."
    ))
}

/// Does a sentence on this sweep have an interval that is corrected as those of ratios are? That of the
/// highest rates of two lines is another, as its own sentence says.
fn has_intervals(sweep: &Sweep) -> bool {
    let best = sweep.surfaces.iter().filter_map(|one| one.best.as_ref());
    best.map(|best| best.interval)
        .any(|interval| interval.is_some())
}

/// A workload: its title, the sentence on its fastest cell, its table.
fn one(
    out: &mut String,
    comparison: &Comparison,
    told: &[Headline],
    (index, group): (usize, &Group),
    page: &Page,
) {
    let mut rows: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| row.group == index)
        .collect();
    rows.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    paragraph(out, "", &group_title(group, &rows), page, Ink::Strong);
    let told: Vec<&Headline> = told
        .iter()
        .filter(|headline| headline.group == Some(index))
        .collect();
    if let Some(headline) = main(&told, &rows, &group.baseline) {
        paragraph(out, "", &headline.short, page, ink_of(headline.verdict));
    }
    if rows.len() > 1 {
        let names = short_names(&rows);
        let base = rows
            .iter()
            .position(|row| row.cell == group.baseline)
            .map_or("", |at| names[at].as_str());
        let against = format!("against {base}");
        out.push_str(&lines(
            comparison,
            &[rows.clone()],
            &[names],
            &against,
            page,
        ));
        cells(out, &rows, page);
    }
    out.push('\n');
}

/// Many workloads: the weightiest sentences, then one table, in which cells of one workload stand
/// together.
fn sweep(out: &mut String, comparison: &Comparison, told: &[Headline], page: &Page) {
    let all: Vec<&Row> = comparison.rows.iter().collect();
    let names = short_names(&all);
    let mut blocks: Vec<Vec<(&Row, String)>> = vec![Vec::new(); comparison.groups.len()];
    for (row, name) in all.iter().copied().zip(names) {
        blocks[row.group].push((row, name));
    }
    blocks
        .iter_mut()
        .for_each(|block| block.sort_by(|(a, _), (b, _)| speed(b).total_cmp(&speed(a))));
    let (mut rows, mut of_rows) = (Vec::new(), Vec::new());
    for block in blocks {
        let (of, names): (Vec<&Row>, Vec<String>) = block.into_iter().unzip();
        rows.push(of);
        of_rows.push(names);
    }
    let count = comparison.groups.len();
    let title = format!(
        "{} cells of {count} workloads; a ratio is against the baseline of its workload",
        all.len()
    );
    paragraph(out, "", &title, page, Ink::Strong);
    out.push_str(&lines(comparison, &rows, &of_rows, "ratio", page));
    cells(out, &all, page);
    out.push('\n');
    let mut by_group: Vec<Vec<&Headline>> = vec![Vec::new(); count];
    for headline in told {
        if let Some(of) = headline.group.and_then(|group| by_group.get_mut(group)) {
            of.push(headline);
        }
    }
    let of_groups = comparison.groups.iter().zip(&rows).zip(&by_group);
    let mains = of_groups.filter_map(|((group, rows), told)| main(told, rows, &group.baseline));
    let mains: Vec<&Headline> = mains
        .filter(|h| h.verdict != SpeedVerdict::Alone)
        .take(SENTENCES - 1)
        .collect();
    for headline in &mains {
        let group = headline.group.map_or_else(String::new, |index| {
            comparison.groups[index].workload.clone()
        });
        paragraph(
            out,
            "",
            &format!("{group}: {}", headline.short),
            page,
            ink_of(headline.verdict),
        );
    }
    if !mains.is_empty() {
        out.push('\n');
    }
}

fn speed(row: &Row) -> f64 {
    // A rate that cannot be is not the fastest one.
    if row.impossible().is_some() {
        f64::NEG_INFINITY
    } else {
        row.tokens_per_second_per_gpu.value
    }
}

/// What is said of a workload: how its fastest cell does against the baseline, or the next one
/// against the fastest baseline.
fn main<'a>(told: &[&'a Headline], rows: &[&Row], baseline: &str) -> Option<&'a Headline> {
    let fastest = rows
        .iter()
        .find(|row| row.cell != baseline)
        .or_else(|| rows.first())?;
    told.iter()
        .find(|headline| headline.a == fastest.cell)
        .or_else(|| told.first())
        .copied()
}

/// A table without a frame, a block a workload; columns of little weight are left out where there
/// is no room.
fn lines(
    comparison: &Comparison,
    blocks: &[Vec<&Row>],
    names: &[Vec<String>],
    against: &str,
    page: &Page,
) -> String {
    let speedups = comparison.speedups_by_cell();
    let rows = || blocks.iter().flatten();
    let has_mfu = rows().any(|row| !matches!(row.mfu, Mfu::Absent { .. }));
    let has_memory = rows().any(|row| !row.memory.is_empty());
    // Shares of different peaks may not be read as one scale.
    let precisions: BTreeSet<&str> = rows()
        .filter(|row| matches!(row.mfu, Mfu::Ok { .. }))
        .map(|row| row.precision.as_str())
        .collect();
    let peak = |row: &Row| {
        if precisions.len() > 1 {
            format!(" of the {} peak", row.precision)
        } else {
            String::new()
        }
    };
    let mut sheet = Sheet::default();
    let speeds = format!("{} (95 % CI)", rate_unit(rows().copied()));
    let shown = rows().filter_map(|row| speedups.get(row.cell.as_str()).copied());
    let intervals = ratio_intervals(shown);
    let against = format!("{against} ({intervals})");
    let columns = [
        ("", false, true),
        (speeds.as_str(), true, true),
        (against.as_str(), false, true),
        ("repeats", false, true),
        ("MFU", true, has_mfu),
        ("peak memory", true, has_memory),
    ];
    columns
        .iter()
        .filter(|(.., shown)| *shown)
        .for_each(|(name, figures, _)| sheet.column(*name, *figures));
    for (block, names) in blocks.iter().zip(names) {
        let baseline = block
            .first()
            .map_or("", |row| comparison.groups[row.group].baseline.as_str());
        for (row, name) in block.iter().zip(names) {
            let rate = match row.impossible() {
                Some(_) => Word::inked("impossible", Ink::Alarm),
                None => Word::plain(rate(&row.tokens_per_second_per_gpu)),
            };
            let counted = repeats(row);
            let counted = Word::inked(counted.text.replace(", not attested", ""), counted.ink);
            let mut words = vec![
                Word::plain(name),
                rate,
                match same_run(row, block, names) {
                    Some(text) => Word::inked(text, Ink::Bad),
                    None => {
                        let speedup = speedups.get(row.cell.as_str()).copied();
                        beside(row, baseline, speedup, intervals)
                    }
                },
                counted,
            ];
            if has_mfu {
                words.push(match &row.mfu {
                    Mfu::Ok { value, .. } if value.is_finite() => {
                        Word::plain(format!("{}{}", percent(*value), peak(row)))
                    }
                    Mfu::Error { .. } => Word::inked("impossible", Ink::Alarm),
                    _ => Word::missing(),
                });
            }
            if has_memory {
                words.push(
                    row.memory
                        .first()
                        .map_or_else(Word::missing, |memory| Word::plain(bytes(memory.bytes))),
                );
            }
            sheet.rows.push(words);
        }
    }
    let mut breaks = BTreeSet::new();
    let mut at = 0;
    for block in blocks {
        at += block.len();
        breaks.insert(at);
    }
    // Repeats that all count need no room; what is said of others is never left out.
    let is_flagged = sheet
        .rows
        .iter()
        .any(|row| row[3].text.split_once('/').is_none_or(|(n, of)| n != of));
    sheet.bare(page, if is_flagged { 4 } else { 3 }, &breaks)
}

/// `the same run as titan`, where an import is in the table under two names.
fn same_run(row: &Row, block: &[&Row], names: &[String]) -> Option<String> {
    let other = row.same_runs_as.as_ref()?;
    let at = block.iter().position(|row| row.cell == *other);
    let name = at.and_then(|at| names.get(at)).unwrap_or(other);
    Some(format!("the same run as {name}"))
}

/// `1.17× (1.15–1.19), faster`, and what forbids to conclude from it.
fn beside(row: &Row, baseline: &str, speedup: Option<&Speedup>, head: &str) -> Word {
    if row.cell == baseline {
        return Word::inked("baseline", Ink::Dim);
    }
    let Some(speedup) = speedup else {
        return Word::missing();
    };
    let ends = interval(speedup, head).map_or_else(String::new, |ends| format!(" ({ends})"));
    let verdict = SpeedVerdict::of(speedup);
    let mut text = format!("{}{ends}", times(speedup));
    text.push_str(match verdict {
        SpeedVerdict::Faster => ", faster",
        SpeedVerdict::Slower => ", slower",
        SpeedVerdict::NoDifference => ", no significant difference",
        _ => ", no verdict",
    });
    for label in speedup.labels.iter().filter(|label| is_crossed(label)) {
        _ = write!(text, "; {label}");
    }
    Word::inked(text, ink_of(verdict))
}

/// Names the cells of a table, where one line can.
fn cells(out: &mut String, rows: &[&Row], page: &Page) {
    if let Some(pattern) = pattern(rows) {
        paragraph(out, "  ", &format!("cells: {pattern}"), page, Ink::Dim);
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
fn unmeasured(out: &mut String, cells: &[AbsentCell], commands: &Commands, page: &Page) {
    let Commands { build, plan, .. } = commands;
    let what_next = if commands.can_run {
        format!("; `{build}` measures what this host can run")
    } else {
        ", and this host can run none of these cells".to_owned()
    };
    let _ = writeln!(out, "No cell has figures yet{what_next}.\n");
    let mut reasons: Vec<(String, usize)> = Vec::new();
    for cell in cells {
        let why = if cell.state == AbsentState::Unsupported {
            format!("not supported (`{plan}` says why)")
        } else {
            cell.reason.text.clone()
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (why, count) in reasons.iter().take(ABSENT) {
        let cells = counted(*count, "cell");
        paragraph(out, "  ", &format!("{cells}: {why}"), page, Ink::Plain);
    }
    let left: usize = reasons.iter().skip(ABSENT).map(|(_, count)| count).sum();
    if left > 0 {
        paragraph(
            out,
            "  ",
            &format!("{left} more, for other reasons (`{plan}`)"),
            page,
            Ink::Dim,
        );
    }
}

/// Cells without figures, a line a reason.
fn absent(out: &mut String, cells: &[AbsentCell], page: &Page) {
    // Each cell may have a reason of its own.
    let mut reasons: IndexMap<(AbsentState, String), Vec<&str>> = IndexMap::new();
    for cell in cells {
        reasons
            .entry((cell.state, cell.told()))
            .or_default()
            .push(&cell.cell);
    }
    // What went wrong first; that a recipe cannot run a cell is no news.
    reasons.sort_by_key(|(state, _), _| *state);
    for ((state, reason), names) in reasons.iter().take(ABSENT) {
        let text = format!("no figures: {} ({reason})", listed(names, &[]));
        paragraph(out, "  ", &text, page, ink_of_state(*state));
    }
    let left: usize = reasons.values().skip(ABSENT).map(Vec::len).sum();
    if left > 0 {
        paragraph(
            out,
            "  ",
            &format!("no figures: {left} more cells, for other reasons"),
            page,
            Ink::Dim,
        );
    }
    if !cells.is_empty() {
        out.push('\n');
    }
}

#[cfg(test)]
mod tests;
