//! What a reader must know beside a comparison's figures.

use std::collections::{BTreeSet, HashMap};

use crate::results::{FieldDifference, settings::WARMUP, words::few};

use crate::figures::{
    CellInput, CellState, CompareSettings, Comparison, Difference, EnvironmentDifference, Gaps,
    Group, Note, NoteKind, RepeatStatus, Row,
    codes::{OTHER_WARM_UP, SUPPLIED, TESTED},
    comparability::{Candidate, Grouped, of_convergence},
    compare::data::LOW_MFU,
    environment_words, texts, unknown_differences,
};

/// All but what is to be known of losses and environments. `tests`: how many the comparison made, and how
/// many of them by pairs of runs that were added until a decision.
pub(super) fn notes(
    cells: &[CellInput],
    comparison: &Comparison,
    tests: [usize; 2],
    settings: &CompareSettings,
) -> Vec<Note> {
    let Comparison {
        rows,
        groups,
        speedups,
        differences,
        ..
    } = comparison;
    let mut notes = of_contracts(rows, groups, differences);
    for speedup in speedups {
        let doubts = speedup.doubts.iter();
        notes.extend(doubts.map(|doubt| Note {
            kind: NoteKind::Doubtful,
            cell: Some(speedup.a.clone()),
            reason: doubt.clone(),
        }));
    }
    let by_cell: HashMap<&str, &Row> = rows.iter().map(|row| (&*row.cell, row)).collect();
    notes.extend(cells.iter().flat_map(|cell| of_cell(cell, &by_cell)));
    if speedups
        .iter()
        .any(|s| s.reason.as_ref().is_some_and(|why| why.is(OTHER_WARM_UP)))
    {
        let text = format!(
            "cells that drop different warm-up steps get no verdict; `--across {WARMUP}` gives one anyway"
        );
        notes.push(Note::new(NoteKind::Differs, OTHER_WARM_UP, text));
    }
    for row in rows {
        if let Some(reason) = row.asks_for_its_unit() {
            notes.push(Note {
                kind: NoteKind::Doubtful,
                cell: Some(row.cell.clone()),
                reason,
            });
        } else if row.mfu.value().is_some_and(|mfu| mfu < LOW_MFU) {
            let text = "MFU is below 1 %: are the model and the batch this small, or is a setting not what it seems?";
            notes.push(Note::new(NoteKind::Remark, "mfu_low", text).of(&row.cell));
        }
        if let Some(reason) = row.impossible() {
            let text = format!("MFU is impossible: {reason}");
            notes.push(Note::new(NoteKind::Doubtful, "mfu_impossible", text).of(&row.cell));
        }
    }
    let kinds: BTreeSet<_> = rows
        .iter()
        .flat_map(|r| r.memory.iter().take(1).map(|m| (&m.kind, &m.source)))
        .collect();
    if kinds.len() > 1 {
        let kinds: Vec<String> = kinds
            .into_iter()
            .map(|(kind, source)| format!("{} by {source}", kind.replace('_', " ")))
            .collect();
        let text = format!(
            "memory figures of different kinds cannot be compared with each other: {}",
            kinds.join(", ")
        );
        notes.push(Note::new(
            NoteKind::NotComparable,
            "memory_of_several_kinds",
            text,
        ));
    }
    if let Some(wanted) = &settings.baseline
        && !groups.iter().any(|g| &g.baseline == wanted)
    {
        let text = format!(
            "the baseline {wanted} has no figures, so the first cell of each group is the baseline"
        );
        notes.push(Note::new(NoteKind::Differs, "no_such_baseline", text));
    }
    let estimates = rows.iter().map(|row| &row.tokens_per_second_per_gpu);
    if estimates.filter_map(|estimate| estimate.ci95).count() > 0 {
        let text = "intervals of speeds are 95 %, on logarithms over repeats (sessions or hosts, where there are several)";
        notes.push(Note::new(NoteKind::Method, "intervals", text));
    }
    notes.extend(of_methods(tests));
    notes
}

/// What is refused, what differs, and what nobody knows of the workloads.
fn of_contracts(rows: &[Row], groups: &[Group], all: &[Difference]) -> Vec<Note> {
    let mut notes = Vec::new();
    let refused: Vec<&Difference> = all.iter().filter(|d| d.refused).collect();
    for of_pair in refused.chunk_by(|x, y| (&x.cell_a, &x.cell_b) == (&y.cell_a, &y.cell_b)) {
        let Difference { cell_a, cell_b, .. } = of_pair[0];
        let names: Vec<&str> = of_pair.iter().map(|d| &*d.field.field).collect();
        let text = format!(
            "not compared with {cell_b}: {}",
            words(of_pair.iter().map(|d| &d.field))
        );
        let note = Note::new(NoteKind::Refused, "not_compared", text).of(cell_a);
        notes.push(note.with("with", &**cell_b).with("fields", names));
    }
    let by_cell: HashMap<&str, &Row> = rows.iter().map(|row| (&*row.cell, row)).collect();
    for row in rows {
        let baseline = &groups[row.group].baseline;
        if !row.labels.is_empty() {
            let text = format!("unlike {baseline}: {}", texts(&row.labels).join("; "));
            notes.push(Note::new(NoteKind::Differs, "unlike", text).of(&row.cell));
        }
        let base = by_cell.get(&**baseline).copied();
        if let Some(base) = base.filter(|base| base.cell != row.cell) {
            notes.extend(of_gaps(row, base));
            notes.extend(on_other_devices(row, base));
        }
        if !row.declared_only.is_empty() {
            let fields = few(&row.declared_only);
            let text = if row.imported.is_empty() {
                format!("the log does not confirm {fields}; the job asked for it")
            } else {
                format!(
                    "the log does not state {fields}; taken from the file's labels, from `--set` or from the model in config.yaml"
                )
            };
            let note = Note::new(NoteKind::Remark, "declared_only", text).of(&row.cell);
            notes.push(note.with("fields", row.declared_only.clone()));
        }
    }
    notes
}

fn words<'a>(fields: impl Iterator<Item = &'a FieldDifference>) -> String {
    fields
        .map(FieldDifference::words)
        .collect::<Vec<_>>()
        .join("; ")
}

/// What only one of two cells states.
fn of_gaps(row: &Row, base: &Row) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut add = |code: &'static str, text: String| {
        notes.push(Note::new(NoteKind::Differs, code, text).of(&row.cell));
    };
    let gaps = Gaps {
        neither: Vec::new(),
        ..Gaps::of(&row.contract, &base.contract)
    };
    if !gaps.is_empty() {
        let text = format!(
            "{}: it is unknown whether the workloads match",
            gaps.words("this cell", &base.cell)
        );
        add("workload_gaps", text);
    }
    let gaps = Gaps::of_speed(&row.contract, &base.contract);
    if !gaps.is_empty() {
        let text = format!(
            "{}: part of a difference in speed may come from there",
            gaps.words("this cell", &base.cell)
        );
        add("execution_gaps", text);
    }
    let unknown = unknown_differences(&row.unlisted, &base.unlisted);
    if !unknown.is_empty() {
        let text = format!("unlike the log of {}: {}", base.cell, words(unknown.iter()));
        add("unlisted_differ", text);
    }
    notes
}

/// What its launch and its runs say.
fn of_cell(cell: &CellInput, rows: &HashMap<&str, &Row>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut add = |kind: NoteKind, code: &'static str, text: String| {
        notes.push(Note::new(kind, code, text).of(&cell.cell));
    };
    if let Some(other) = &cell.same_launch_as {
        let [own, twin] = [&cell.cell, other].map(|name| rows.get(&**name).copied());
        let text = match own.zip(twin) {
            Some((own, twin)) if own.is_measured_as(twin) => {
                format!("identical to {other}, so both were measured once")
            }
            Some(_) => format!(
                "launches the very same bytes as {other}, so any difference between them is noise"
            ),
            None => {
                format!("launches the very same bytes as {other}: one measurement serves both")
            }
        };
        add(NoteKind::Same, "same_launch", text);
    }
    if let Some(earlier) = &cell.standing.earlier {
        let text = format!("{earlier}; the next build measures it as it is configured now");
        add(NoteKind::Earlier, "earlier", text);
    }
    let (wanted, to_come) = (cell.repeats_wanted, cell.standing.to_come);
    if to_come > 0 {
        let measured = wanted.saturating_sub(to_come);
        let text = format!(
            "{measured} of {wanted} repeats measured so far; the next build runs the others"
        );
        add(NoteKind::Remark, "incomplete", text);
    }
    if !cell.imported.is_empty() {
        let text = "imported, not measured by tprimat; `tprimat show CELL` names the files";
        add(NoteKind::Remark, "imported", text.to_owned());
    }
    let CellState::Ok { summary } = &cell.state else {
        return notes;
    };
    // What was supplied is among the row's warnings.
    let own = summary
        .notes
        .iter()
        .filter(|note| !note.reason.is(SUPPLIED));
    notes.extend(own.map(|note| Note {
        cell: Some(cell.cell.clone()),
        ..note.clone()
    }));
    notes
}

/// How verdicts came about.
fn of_methods([tests, by_pairs]: [usize; 2]) -> Option<Note> {
    if tests == 0 {
        return None;
    }
    let by = match by_pairs {
        0 => "Welch's t on logarithms",
        n if n == tests => {
            "a sequential t-test on pairs of runs, which holds whenever one stops to add runs"
        }
        _ => {
            "Welch's t on logarithms, or, where runs were added until a decision, by a sequential t-test on pairs of runs, \
             which holds whenever one stops"
        }
    };
    let text = match tests {
        1 => format!("the speed-up is tested by {by}"),
        n => format!(
            "speed-ups are tested by {by}. Holm's correction makes their 95 % intervals wider, so that the {n} \
             pairs of cells that are compared together raise a false alarm in at most 5 % of tables"
        ),
    };
    let note = Note::new(NoteKind::Method, TESTED, text);
    Some(note.with("comparisons", tests))
}

/// Whose losses mean something else than the baseline's.
pub(super) fn of_losses(
    candidates: &[Candidate<'_>],
    groups: &[Grouped],
    settings: &CompareSettings,
) -> Vec<Note> {
    let note = |candidate: &Candidate<'_>| {
        let base = &candidates[groups[candidate.group].baseline];
        if candidate.loss_group == base.loss_group {
            return None;
        }
        let mut text = format!("losses cannot be compared with those of {}", base.cell.cell);
        let fields = of_convergence(candidate, base, settings);
        if !fields.is_empty() {
            text += &format!(": {}", words(fields.iter()));
        }
        let note = Note::new(NoteKind::NotComparable, "other_losses", text);
        Some(note.of(&candidate.cell.cell))
    };
    candidates.iter().filter_map(note).collect()
}

/// What the cells ran in: first what is dangerous, whoever shares it.
pub(super) fn of_environments(rows: &[Row], environment: &[EnvironmentDifference]) -> Vec<Note> {
    let dangerous = rows.iter().filter(|row| !row.warnings.is_empty());
    let mut notes: Vec<Note> = dangerous
        .map(|row| {
            let text = format!("run with {}", texts(&row.warnings).join("; "));
            Note::new(NoteKind::Dangerous, "run_with", text).of(&row.cell)
        })
        .collect();
    let of_pair = |a: &EnvironmentDifference, b: &EnvironmentDifference| {
        (&a.cell_a, &a.cell_b) == (&b.cell_a, &b.cell_b)
    };
    let note = |pair: &[EnvironmentDifference]| {
        let text = environment_words(pair, &pair[0].cell_b)?;
        let note = Note::new(NoteKind::Environment, "environment", text);
        Some(note.of(&pair[0].cell_a))
    };
    notes.extend(environment.chunk_by(of_pair).filter_map(note));
    notes
}

/// The devices of the repeats that count; none where any of them does not say.
fn devices_of(row: &Row) -> BTreeSet<&str> {
    let counted = || row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    if counted().any(|r| r.devices.is_empty()) {
        return BTreeSet::new();
    }
    counted()
        .flat_map(|r| &r.devices)
        .map(String::as_str)
        .collect()
}

/// Two cells on devices of one kind, none of which both had: the devices are part of what is
/// compared.
fn on_other_devices(row: &Row, base: &Row) -> Option<Note> {
    let (own, others) = (devices_of(row), devices_of(base));
    let is_one_kind = row.device.is_some() && row.device == base.device;
    let apart = is_one_kind && !own.is_empty() && !others.is_empty() && own.is_disjoint(&others);
    apart.then(|| {
        let text = format!(
            "ran on other devices of the same kind than {}, so part of a difference may be the devices'",
            base.cell
        );
        Note::new(NoteKind::Differs, "other_devices", text).of(&row.cell)
    })
}
