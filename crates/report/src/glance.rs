//! A comparison at one glance: a sentence a workload, one table with short names and the fastest
//! first, and the few reservations that would change what a reader does. Everything else is in
//! [`super::table`].

use std::{collections::BTreeSet, fmt::Write as _};

use indexmap::IndexMap;
use tprimat_figures::{
    AbsentCell, AbsentState, Comparison, Difference, Group, Mfu, NoVerdict, NoteKind, Row, Speedup,
    rate_unit,
};
use tprimat_results::{AttestationStatus, is_of_model};
use tprimat_sentences::said;
use tprimat_words::plain::counted;

use super::{
    format::{bytes, percent},
    headline::{
        Headline, SpeedVerdict, across, contradicted, duration, headlines, interval, times,
    },
    mark,
    names::short_names,
    notes::{listed, notes},
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    sweep::{sweep_text, swept_groups},
    table::{group_title, ink_of, ink_of_state, rate, repeats},
};

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
    let swept = swept_groups(comparison);
    out.push_str(&sweep_text(comparison, page));
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
        unmeasured(&mut out, &comparison.absent, page);
        return out;
    }
    if comparison.groups.is_empty() {
        out.push_str("No cell has figures.\n\n");
    }
    absent(&mut out, &comparison.absent, page);
    let tested = comparison
        .speedups
        .iter()
        .filter(|s| s.significant.is_some() && s.same_as.is_none());
    let tested = tested.count();
    if tested > 1 {
        let text = format!(
            "The intervals of the {tested} ratios hold together at 95 % (Holm's correction): each is wider than it would be alone."
        );
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
        let against = format!("against {base} (95 % CI)");
        out.push_str(&lines(
            comparison,
            &[rows.clone()],
            &[names],
            &against,
            page,
        ));
        paragraph(
            out,
            "  ",
            &format!("cells: {}", pattern(&rows)),
            page,
            Ink::Dim,
        );
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
    out.push_str(&lines(
        comparison,
        &rows,
        &of_rows,
        "against the baseline (95 % CI)",
        page,
    ));
    paragraph(
        out,
        "  ",
        &format!("cells: {}", pattern(&all)),
        page,
        Ink::Dim,
    );
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
            said(&comparison.groups[index].workload)
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
    let columns = [
        ("", false, true),
        (speeds.as_str(), true, true),
        (against, false, true),
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
                    None => beside(row, baseline, speedups.get(row.cell.as_str()).copied()),
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
fn beside(row: &Row, baseline: &str, speedup: Option<&Speedup>) -> Word {
    if row.cell == baseline {
        return Word::inked("baseline", Ink::Dim);
    }
    let Some(speedup) = speedup else {
        return Word::missing();
    };
    let ends = interval(speedup)
        .map(|ends| format!(" ({})", ends.trim_start_matches("95 % CI ")))
        .unwrap_or_default();
    let verdict = SpeedVerdict::of(speedup);
    let mut text = format!("{}{ends}", times(speedup));
    text.push_str(match verdict {
        SpeedVerdict::Faster => ", faster",
        SpeedVerdict::Slower => ", slower",
        SpeedVerdict::NoDifference => ", no significant difference",
        _ => ", no verdict",
    });
    for label in speedup.labels.iter().filter(|label| label.is_crossed()) {
        _ = write!(text, "; {}", said(label));
    }
    Word::inked(text, ink_of(verdict))
}

/// The cells of a table as `--only` takes them: `cpu/{native,tran}/llama/single@seq=128`.
fn pattern(rows: &[&Row]) -> String {
    const MOST: usize = 6;
    if let [row] = rows {
        return format!("{}{}", row.cell, mark(&row.imported));
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
    if rows.len() <= MOST && !names.iter().all(|name| is_everywhere(name)) {
        let cells: Vec<String> = rows.iter().map(|row| row.cell.clone()).collect();
        return cells.join(", ");
    }
    let value = |row: &Row, name: &str| row.axes.get(name).cloned().unwrap_or_default();
    let names = names.into_iter().filter(|name| is_everywhere(name));
    let axes: Vec<String> = names
        .map(|name| format!("{name}={}", part(&|row| value(row, name))))
        .collect();
    let axes = if axes.is_empty() {
        String::new()
    } else {
        format!("@{}", axes.join(","))
    };
    format!("{}{axes}", path.join("/"))
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
fn unmeasured(out: &mut String, cells: &[AbsentCell], page: &Page) {
    out.push_str("Nothing is measured yet; `tprimat build` measures what this host can run.\n\n");
    let mut reasons: Vec<(String, usize)> = Vec::new();
    for cell in cells {
        let why = if cell.state == AbsentState::Unsupported {
            "not supported (`tprimat plan` says why)".to_owned()
        } else {
            said(&cell.reason)
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (why, count) in reasons.iter().take(ABSENT) {
        let s = if *count == 1 { "" } else { "s" };
        paragraph(
            out,
            "  ",
            &format!("{count} cell{s}: {why}"),
            page,
            Ink::Plain,
        );
    }
    let left: usize = reasons.iter().skip(ABSENT).map(|(_, count)| count).sum();
    if left > 0 {
        paragraph(
            out,
            "  ",
            &format!("{left} more, for other reasons (`tprimat plan`)"),
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
            .entry((cell.state, said(&cell.reason)))
            .or_default()
            .push(&cell.cell);
    }
    // What went wrong first; that a recipe cannot run a cell is no news.
    reasons.sort_by_key(|(state, _), _| *state);
    for ((state, reason), names) in reasons.iter().take(ABSENT) {
        let text = format!("no figures: {} ({state}: {reason})", listed(names, &[]));
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

fn not_one_workload(fields: &[&str]) -> String {
    if fields.iter().any(|field| is_of_model(field)) {
        return "Cells of different models are not compared".to_owned();
    }
    format!(
        "Cells of different workloads are not compared (they differ in {})",
        fields.join(", ")
    )
}

/// What would change what a reader concludes, the weightiest first.
fn reservations(comparison: &Comparison, named: bool, build: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let weighty = |kind: NoteKind| kind < NoteKind::Differs && kind != NoteKind::Refused;
    // What keeps a cell from having figures is told with the cell.
    const REASONS: usize = 100;
    let told: BTreeSet<String> = comparison
        .absent
        .iter()
        .map(|c| said(&c.reason))
        .filter(|r| !r.is_empty())
        .collect();
    let is_told = |text: &str| {
        told.iter()
            .take(REASONS)
            .any(|reason| text.contains(reason))
    };
    let own = notes(comparison)
        .into_iter()
        .filter(|note| weighty(note.kind) && !is_told(&note.text));
    all.extend(own.map(|note| note.text));
    let mut reasons: Vec<(&NoVerdict, usize)> = Vec::new();
    for reason in comparison
        .speedups
        .iter()
        .filter_map(|speedup| speedup.reason.as_ref())
    {
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    for (reason, count) in reasons {
        let whose = if count == comparison.speedups.len() {
            String::new()
        } else {
            format!(" on {count} of {} ratios", comparison.speedups.len())
        };
        all.push(format!("No verdict{whose}: {}.", said(reason)));
    }
    if let Some(speedup) = comparison
        .speedups
        .iter()
        .find(|speedup| speedup.apart_seconds.is_some())
    {
        let apart = duration(speedup.apart_seconds.unwrap_or_default());
        all.push(format!(
            "{} and {} were measured {apart} apart, and no interval covers what changed in between. `{build} --together {} {}` measures both anew, in turns.",
            speedup.a, speedup.b, speedup.a, speedup.b
        ));
    }
    let contradicted = contradicted(comparison);
    let is_known = |d: &&Difference| {
        let mut cells = [&d.cell_a, &d.cell_b].into_iter();
        !cells.any(|cell| contradicted.contains_key(cell.as_str()))
    };
    let refused: BTreeSet<&str> = comparison
        .differences
        .iter()
        .filter(|d| d.refused)
        .filter(is_known)
        .map(|d| d.field.field.as_str())
        .collect();
    if !refused.is_empty() && !named {
        let fields: Vec<&str> = refused.into_iter().collect();
        all.push(format!("{}.{}", not_one_workload(&fields), across(&fields)));
    }
    let unattested = || {
        comparison
            .rows
            .iter()
            .filter(|row| row.attestation == AttestationStatus::NotStated)
    };
    let whose = match (unattested().count(), comparison.rows.len()) {
        (0, _) => return all,
        (1, _) => unattested().map(|row| row.cell.clone()).collect(),
        (n, rows) if n == rows => "all cells".to_owned(),
        (n, rows) => format!("{n} of {rows} cells"),
    };
    all.push(format!(
        "Some settings are only declared: the logs of {whose} do not confirm them."
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hardware::in_title, stand_ins::*};
    use tprimat_figures::{Catalogue, CompareSettings, compare};

    fn page() -> Page {
        Page {
            width: 100,
            ..Page::file()
        }
    }

    fn shown(cells: &[tprimat_figures::CellInput]) -> String {
        let comparison = compare(cells, &CompareSettings::default(), &Catalogue::default());
        let commands = Commands {
            details: "tprimat compare --details".into(),
            build: "tprimat build".into(),
        };
        glance(&comparison, false, &commands, &page())
    }

    #[test]
    fn one_sentence_one_table_and_what_would_change_the_readers_mind() {
        let mut compiled = test_job();
        compiled.compile = true;
        let cells = [
            measured(
                "nvd/native/llama/single@compile=false",
                &test_job(),
                &[1.0, 1.01, 0.99],
                None,
            ),
            measured(
                "nvd/tran/llama/single@compile=false",
                &test_job(),
                &[1.2, 1.21, 1.19],
                None,
            ),
            measured(
                "nvd/titan/llama/single@compile=true",
                &compiled,
                &[0.88, 0.881, 0.879],
                None,
            ),
        ];
        insta::assert_snapshot!(shown(&cells));
    }

    #[test]
    fn a_command_that_is_named_is_of_the_cells_that_are_shown() {
        let cells = [
            measured(
                "nvd/native/llama/single",
                &test_job(),
                &[1.0, 1.01, 0.99],
                None,
            ),
            measured(
                "nvd/tran/llama/single",
                &test_job(),
                &[1.2, 1.21, 1.19],
                None,
            ),
        ];
        let mut comparison = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        comparison.speedups[0].apart_seconds = Some(90_000.0);
        let commands = Commands {
            details: "tprimat compare m --details".into(),
            build: "tprimat build m".into(),
        };
        let said = glance(
            &comparison,
            false,
            &commands,
            &Page {
                width: 1000,
                ..Page::file()
            },
        );
        assert!(
            said.contains(
                "`tprimat build m --together nvd/tran/llama/single nvd/native/llama/single`"
            ),
            "{said}"
        );
        assert!(
            said.ends_with("figure and note: `tprimat compare m --details`\n"),
            "{said}"
        );
    }

    #[test]
    fn a_title_names_the_devices_that_are_stated() {
        let said = |devices: &[Option<&str>]| {
            let name = |at: usize| format!("nvd/f{at}/llama/single");
            let cells: Vec<_> = (0..devices.len())
                .map(|at| measured(&name(at), &test_job(), &[1.0], None))
                .collect();
            let mut all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
            for (row, device) in all.rows.iter_mut().zip(devices) {
                row.device = device.map(str::to_owned);
            }
            in_title(&all.rows.iter().collect::<Vec<_>>())
        };
        let h200 = Some("NVIDIA H200");
        assert_eq!(said(&[h200, h200]), "; NVIDIA H200");
        assert_eq!(
            said(&[h200, None]),
            "; NVIDIA H200 (1 of 2 cells), not stated (1 of 2 cells)"
        );
        assert_eq!(said(&[None, None]), "");
    }

    /// Columns that a narrow terminal has no room for are named, with the width that shows them.
    #[test]
    fn a_table_names_the_columns_that_it_leaves_out() {
        let times = [1.0, 1.01, 0.99];
        let cells = ["native", "tran"].map(|name| {
            measured(
                &format!("nvd/{name}/llama/single"),
                &test_job(),
                &times,
                None,
            )
        });
        let comparison = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        let commands = Commands {
            details: String::new(),
            build: String::new(),
        };
        let of = |width| {
            let narrow = Page {
                width,
                ..Page::file()
            };
            glance(&comparison, false, &commands, &narrow)
        };
        let said = of(88);
        assert!(!said.contains("1002 B"), "{said}");
        let words = "Left out for want of room: peak memory; a terminal of ";
        let (_, rest) = said.split_once(words).expect(&said);
        let width: usize = rest.split(' ').next().unwrap().parse().unwrap();
        assert!(of(width).contains("1002 B"), "{width}: {said}");
    }

    #[test]
    fn many_workloads_are_one_table() {
        let cells: Vec<_> = (1..=5)
            .flat_map(|n: u32| {
                let mut job = test_job();
                job.data.seq_length *= u64::from(n);
                let seq = job.data.seq_length;
                let time = f64::from(n);
                let of = |name: &str, factor: f64| {
                    let times = [1.0, 1.01, 0.99].map(|t| t * time * factor);
                    measured(
                        &format!("nvd/{name}/llama/single@seq={seq}"),
                        &job,
                        &times,
                        None,
                    )
                };
                [of("native", 1.0), of("titan", 0.9)]
            })
            .collect();
        insta::assert_snapshot!(shown(&cells));
    }
}
