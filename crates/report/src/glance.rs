//! A comparison at one glance: a sentence a workload, one table with short names and the fastest first, and the few
//! reservations that would change what a reader does. Everything else is in [`super::table`].

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    format::{bytes, percent},
    headline::{Headline, Verdict, duration, headlines, interval, times},
    mark,
    names::short_names,
    notes::{listed, notes},
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    table::{ink_of, ink_of_state, rate, repeats},
};
use tprimat_figures::{AbsentCell, AttestationStatus, Comparison, Group, Mfu, NoteKind, Row, Speedup};

/// Reservations that are told; the others are counted.
const RESERVATIONS: usize = 3;
/// Workloads with a sentence of their own; of a larger sweep the table says the rest.
const SENTENCES: usize = 4;
/// Reasons why cells have no figures.
const ABSENT: usize = 4;

/// The comparison in at most a screen for the usual matrix. `named`: somebody asked for these cells one by one, so that what
/// may not be compared is told first. `more`: the command that prints all of it.
#[must_use]
pub fn glance(comparison: &Comparison, named: bool, more: &str, page: &Page) -> String {
    let mut out = String::new();
    let told = headlines(comparison);
    for headline in told.iter().filter(|h| h.verdict == Verdict::Refused && named) {
        paragraph(&mut out, "", &headline.text, page, Ink::Bad);
        out.push('\n');
    }
    let groups: Vec<(usize, &Group)> = comparison.groups.iter().enumerate().collect();
    if groups.len() > SENTENCES {
        sweep(&mut out, comparison, &told, page);
    } else {
        for (index, group) in &groups {
            one(&mut out, comparison, &told, (*index, group), page);
        }
    }
    if groups.is_empty() {
        out.push_str("No cell has figures.\n\n");
    }
    absent(&mut out, &comparison.absent, page);
    let all = reservations(comparison, named);
    for text in all.iter().take(RESERVATIONS) {
        paragraph(&mut out, "! ", text, page, Ink::Bad);
    }
    if !all.is_empty() {
        out.push('\n');
    }
    let left = all.len().saturating_sub(RESERVATIONS);
    let said = if left > 0 {
        format!("{left} more reservations, and every figure and note")
    } else {
        "Every figure and note".into()
    };
    paragraph(&mut out, "", &format!("{said}: `{more}`"), page, Ink::Dim);
    out
}

/// A workload: its title, the sentence on its fastest cell, its table.
fn one(out: &mut String, comparison: &Comparison, told: &[Headline], (index, group): (usize, &Group), page: &Page) {
    let mut rows: Vec<&Row> = comparison.rows.iter().filter(|row| row.group == index).collect();
    rows.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    let strict = if group.identical_config { ", identical configuration" } else { "" };
    paragraph(out, "", &format!("{}: {}{strict}", group.model, group.workload), page, Ink::Strong);
    let told: Vec<&Headline> = told.iter().filter(|headline| headline.group == Some(index)).collect();
    if let Some(headline) = main(&told, &rows, &group.baseline) {
        paragraph(out, "", &headline.short, page, ink_of(headline.verdict));
    }
    if rows.len() > 1 {
        let names = short_names(&rows);
        let base = rows.iter().position(|row| row.cell == group.baseline).map_or("", |at| names[at].as_str());
        let against = format!("against {base} (95 % CI)");
        out.push_str(&lines(comparison, &[rows.clone()], &[names], &against, page));
        paragraph(out, "  ", &format!("cells: {}", pattern(&rows)), page, Ink::Dim);
    }
    out.push('\n');
}

/// Many workloads: the weightiest sentences, then one table, in which cells of one workload stand together.
fn sweep(out: &mut String, comparison: &Comparison, told: &[Headline], page: &Page) {
    let all: Vec<&Row> = comparison.rows.iter().collect();
    let names = short_names(&all);
    let mut blocks: Vec<Vec<(&Row, String)>> = vec![Vec::new(); comparison.groups.len()];
    for (row, name) in all.iter().copied().zip(names) {
        blocks[row.group].push((row, name));
    }
    blocks.iter_mut().for_each(|block| block.sort_by(|(a, _), (b, _)| speed(b).total_cmp(&speed(a))));
    let (mut rows, mut of_rows) = (Vec::new(), Vec::new());
    for block in blocks {
        let (of, names): (Vec<&Row>, Vec<String>) = block.into_iter().unzip();
        rows.push(of);
        of_rows.push(names);
    }
    let count = comparison.groups.len();
    let title = format!("{} cells of {count} workloads; a ratio is against the baseline of its workload", all.len());
    paragraph(out, "", &title, page, Ink::Strong);
    out.push_str(&lines(comparison, &rows, &of_rows, "against the baseline (95 % CI)", page));
    paragraph(out, "  ", &format!("cells: {}", pattern(&all)), page, Ink::Dim);
    out.push('\n');
    let mut by_group: Vec<Vec<&Headline>> = vec![Vec::new(); count];
    for headline in told {
        if let Some(of) = headline.group.and_then(|group| by_group.get_mut(group)) {
            of.push(headline);
        }
    }
    let of_groups = comparison.groups.iter().zip(&rows).zip(&by_group);
    let mains = of_groups.filter_map(|((group, rows), told)| main(told, rows, &group.baseline));
    let mains: Vec<&Headline> = mains.filter(|h| h.verdict != Verdict::Alone).take(SENTENCES - 1).collect();
    for headline in &mains {
        let group = headline.group.map_or("", |index| comparison.groups[index].workload.as_str());
        paragraph(out, "", &format!("{group}: {}", headline.short), page, ink_of(headline.verdict));
    }
    if !mains.is_empty() {
        out.push('\n');
    }
}

fn speed(row: &Row) -> f64 {
    // A rate that cannot be is not the fastest one.
    if row.impossible().is_some() { f64::NEG_INFINITY } else { row.tokens_per_second_per_gpu.value }
}

/// What is said of a workload: how its fastest cell does against the baseline, or the next one against the fastest baseline.
fn main<'a>(told: &[&'a Headline], rows: &[&Row], baseline: &str) -> Option<&'a Headline> {
    let fastest = rows.iter().find(|row| row.cell != baseline).or_else(|| rows.first())?;
    told.iter().find(|headline| headline.a == fastest.cell).or_else(|| told.first()).copied()
}

/// A table without a frame, a block a workload; columns of little weight are left out where there is no room.
fn lines(comparison: &Comparison, blocks: &[Vec<&Row>], names: &[Vec<String>], against: &str, page: &Page) -> String {
    let speedups = comparison.speedups_by_cell();
    let rows = || blocks.iter().flatten();
    let has_mfu = rows().any(|row| !matches!(row.mfu, Mfu::Absent { .. }));
    let has_memory = rows().any(|row| !row.memory.is_empty());
    let mut sheet = Sheet::default();
    let columns = [
        ("", false, true),
        ("tokens/s/GPU (95 % CI)", true, true),
        (against, false, true),
        ("repeats", false, true),
        ("MFU", true, has_mfu),
        ("peak memory", true, has_memory),
    ];
    columns.iter().filter(|(.., shown)| *shown).for_each(|(name, figures, _)| sheet.column(*name, *figures));
    for (block, names) in blocks.iter().zip(names) {
        let baseline = block.first().map_or("", |row| comparison.groups[row.group].baseline.as_str());
        for (row, name) in block.iter().zip(names) {
            let rate = match row.impossible() {
                Some(_) => Word::inked("impossible", Ink::Alarm),
                None => Word::plain(rate(&row.tokens_per_second_per_gpu)),
            };
            let counted = repeats(row);
            let counted = Word::inked(counted.text.replace(", not attested", ""), counted.ink);
            let mut words =
                vec![Word::plain(name), rate, beside(row, baseline, speedups.get(row.cell.as_str()).copied()), counted];
            if has_mfu {
                words.push(match &row.mfu {
                    Mfu::Ok { value, .. } if value.is_finite() => Word::plain(percent(*value)),
                    Mfu::Error { .. } => Word::inked("impossible", Ink::Alarm),
                    _ => Word::missing(),
                });
            }
            if has_memory {
                words.push(row.memory.first().map_or_else(Word::missing, |memory| Word::plain(bytes(memory.bytes))));
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
    let is_flagged = sheet.rows.iter().any(|row| row[3].text.split_once('/').is_none_or(|(n, of)| n != of));
    sheet.bare(page, if is_flagged { 4 } else { 3 }, &breaks)
}

/// `1.17× (1.15–1.19), faster`, and what forbids to conclude from it.
fn beside(row: &Row, baseline: &str, speedup: Option<&Speedup>) -> Word {
    if row.cell == baseline {
        return Word::inked("baseline", Ink::Dim);
    }
    let Some(speedup) = speedup else { return Word::missing() };
    let ends = interval(speedup).map(|ends| format!(" ({})", ends.trim_start_matches("95 % CI "))).unwrap_or_default();
    let verdict = Verdict::of(speedup);
    let mut text = format!("{}{ends}", times(speedup));
    text.push_str(match verdict {
        Verdict::Faster => ", faster",
        Verdict::Slower => ", slower",
        Verdict::NoDifference => ", no significant difference",
        _ => ", no verdict",
    });
    for label in speedup.labels.iter().filter(|label| label.starts_with("across ")) {
        _ = write!(text, "; {label}");
    }
    Word::inked(text, ink_of(verdict))
}

/// The cells of a table as `--only` takes them: `cpu/{native,tran}/llama/single@seq=128`.
fn pattern(rows: &[&Row]) -> String {
    const MOST: usize = 6;
    if let [row] = rows {
        return format!("{}{}", row.cell, mark(&row.imported));
    }
    let part = |of: fn(&Row) -> &str| {
        let mut values: Vec<&str> = Vec::new();
        for row in rows {
            if !values.contains(&of(row)) {
                values.push(of(row));
            }
        }
        match values[..] {
            [one] => one.to_owned(),
            _ if values.len() <= MOST => format!("{{{}}}", values.join(",")),
            _ => "*".to_owned(),
        }
    };
    let path =
        [part(|row| &row.platform), part(|row| &row.framework), part(|row| &row.model), part(|row| &row.parallelism)];
    let shared = rows[0].axes.iter().filter(|(name, value)| rows.iter().all(|row| row.axes.get(*name) == Some(*value)));
    let axes: Vec<String> = shared.map(|(name, value)| format!("{name}={value}")).collect();
    let axes = if axes.is_empty() { String::new() } else { format!("@{}", axes.join(",")) };
    format!("{}{axes}", path.join("/"))
}

/// Cells without figures, a line a reason.
fn absent(out: &mut String, cells: &[AbsentCell], page: &Page) {
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for cell in cells {
        match reasons
            .iter_mut()
            .find(|(state, reason, _)| (*state, *reason) == (cell.state.as_str(), cell.reason.as_str()))
        {
            Some((.., names)) => names.push(&cell.cell),
            None => reasons.push((&cell.state, &cell.reason, vec![&cell.cell])),
        }
    }
    // What went wrong first; that a recipe cannot run a cell is no news.
    reasons.sort_by_key(|(state, ..)| {
        ["contradicted", "failed", "suspect", "unmeasured", "missing"].iter().position(|s| s == state).unwrap_or(9)
    });
    for (state, reason, names) in reasons.iter().take(ABSENT) {
        let text = format!("no figures: {} ({state}: {reason})", listed(names, &[]));
        paragraph(out, "  ", &text, page, ink_of_state(state));
    }
    let left: usize = reasons.iter().skip(ABSENT).map(|(.., names)| names.len()).sum();
    if left > 0 {
        paragraph(out, "  ", &format!("no figures: {left} more cells, for other reasons"), page, Ink::Dim);
    }
    if !cells.is_empty() {
        out.push('\n');
    }
}

/// What would change what a reader concludes, the weightiest first.
fn reservations(comparison: &Comparison, named: bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let weighty = |kind: NoteKind| kind < NoteKind::Differs && kind != NoteKind::Refused;
    // What keeps a cell from having figures is told with the cell.
    const REASONS: usize = 100;
    let told: BTreeSet<&str> = comparison.absent.iter().map(|c| c.reason.as_str()).filter(|r| !r.is_empty()).collect();
    let is_told = |text: &str| told.iter().take(REASONS).any(|reason| text.contains(reason));
    let own = notes(comparison).into_iter().filter(|note| weighty(note.kind) && !is_told(&note.text));
    all.extend(own.map(|note| note.text));
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for reason in comparison.speedups.iter().filter_map(|speedup| speedup.reason.as_deref()) {
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
        all.push(format!("No verdict{whose}: {reason}."));
    }
    if let Some(speedup) = comparison.speedups.iter().find(|speedup| speedup.apart_seconds.is_some()) {
        let apart = duration(speedup.apart_seconds.unwrap_or_default());
        all.push(format!(
            "{} and {} were measured {apart} apart, and no interval covers what changed in between. `tprimat build --together {} {}` measures both anew, in turns.",
            speedup.a, speedup.b, speedup.a, speedup.b
        ));
    }
    let refused: BTreeSet<&str> =
        comparison.differences.iter().filter(|d| d.refused).map(|d| d.field.field.as_str()).collect();
    if !refused.is_empty() && !named {
        let fields: Vec<&str> = refused.into_iter().collect();
        all.push(format!(
            "Cells of different workloads are not compared (they differ in {}); `--across {}` compares them all the same.",
            fields.join(", "),
            fields.join(",")
        ));
    }
    let unattested = || comparison.rows.iter().filter(|row| row.attestation == AttestationStatus::NotStated);
    let whose = match (unattested().count(), comparison.rows.len()) {
        (0, _) => return all,
        (1, _) => unattested().map(|row| row.cell.clone()).collect(),
        (n, rows) if n == rows => "all cells".to_owned(),
        (n, rows) => format!("{n} of {rows} cells"),
    };
    all.push(format!("Some settings are only declared: the logs of {whose} do not confirm them."));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stand_ins::*;
    use tprimat_figures::{Catalogue, CompareSettings, compare};

    fn page() -> Page {
        Page { width: 100, ..Page::file() }
    }

    fn shown(cells: &[tprimat_figures::CellInput]) -> String {
        let comparison = compare(cells, &CompareSettings::default(), &Catalogue::default());
        glance(&comparison, false, "tprimat compare --details", &page())
    }

    #[test]
    fn one_sentence_one_table_and_what_would_change_the_readers_mind() {
        let mut compiled = test_job();
        compiled.compile = true;
        let cells = [
            measured("nvd/native/llama/single@compile=false", &test_job(), &[1.0, 1.01, 0.99], None),
            measured("nvd/tran/llama/single@compile=false", &test_job(), &[1.2, 1.21, 1.19], None),
            measured("nvd/titan/llama/single@compile=true", &compiled, &[0.88, 0.881, 0.879], None),
        ];
        insta::assert_snapshot!(shown(&cells));
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
                    measured(&format!("nvd/{name}/llama/single@seq={seq}"), &job, &times, None)
                };
                [of("native", 1.0), of("titan", 0.9)]
            })
            .collect();
        insta::assert_snapshot!(shown(&cells));
    }
}
