//! What a reader must know beside a comparison's figures.

use std::collections::{BTreeSet, HashMap};

use super::{OTHER_WARMUP, few};
use crate::{
    AttestationStatus, CellInput, CellState, CompareSettings, Difference, EnvironmentDifference, FieldDifference, Gaps,
    Group, IntervalKind, Mfu, Note, NoteKind, RepeatStatus, Row, Speedup, Unit, environment_words,
    guard::{Arm, Grouped, of_convergence},
    settings::{WARMUP, agree, show},
};

/// All but what is told of losses and environments.
pub(super) fn notes(
    cells: &[CellInput],
    rows: &[Row],
    groups: &[Group],
    speedups: &[Speedup],
    differences: &[Difference],
    settings: &CompareSettings,
) -> Vec<Note> {
    let mut notes = of_contracts(rows, groups, differences);
    let by_cell: HashMap<&str, &Row> = rows.iter().map(|row| (&*row.cell, row)).collect();
    notes.extend(cells.iter().flat_map(|cell| of_cell(cell, &by_cell)));
    if speedups.iter().any(|s| s.reason.as_deref() == Some(OTHER_WARMUP)) {
        let text = format!(
            "cells that drop different warm-up steps get no verdict; `--across {WARMUP}` gives one all the same"
        );
        notes.push(Note::new(NoteKind::Differs, text));
    }
    for row in rows {
        if let Mfu::Error { reason } = &row.mfu {
            notes.push(Note::of(&row.cell, NoteKind::Doubtful, format!("MFU is impossible: {reason}")));
        }
    }
    let kinds: BTreeSet<_> = rows.iter().flat_map(|r| r.memory.iter().take(1).map(|m| (&m.kind, &m.source))).collect();
    if kinds.len() > 1 {
        let text = "memory figures are of different kinds and cannot be compared with each other";
        notes.push(Note::new(NoteKind::NotComparable, text));
    }
    if let Some(wanted) = &settings.baseline
        && !groups.iter().any(|g| &g.baseline == wanted)
    {
        let text = format!("the baseline {wanted} has no figures, so the first cell of each group is the baseline");
        notes.push(Note::new(NoteKind::Differs, text));
    }
    notes.extend(of_methods(cells, rows, speedups));
    notes
}

/// What is refused, what differs, and what nobody knows of the workloads.
fn of_contracts(rows: &[Row], groups: &[Group], all: &[Difference]) -> Vec<Note> {
    let mut notes = Vec::new();
    let refused: Vec<&Difference> = all.iter().filter(|d| d.refused).collect();
    for of_pair in refused.chunk_by(|x, y| (&x.cell_a, &x.cell_b) == (&y.cell_a, &y.cell_b)) {
        let fields: Vec<String> = of_pair.iter().map(|d| d.field.sentence()).collect();
        let text = format!("not compared with {}: {}", of_pair[0].cell_b, fields.join("; "));
        notes.push(Note::of(&of_pair[0].cell_a, NoteKind::Refused, text));
    }
    let by_cell: HashMap<&str, &Row> = rows.iter().map(|row| (&*row.cell, row)).collect();
    for row in rows {
        let baseline = &groups[row.group].baseline;
        if !row.labels.is_empty() {
            let text = format!("unlike {baseline}: {}", row.labels.join("; "));
            notes.push(Note::of(&row.cell, NoteKind::Differs, text));
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
                    "the log does not state {fields}; taken from the file's labels and from the model in config.yaml"
                )
            };
            notes.push(Note::of(&row.cell, NoteKind::Remark, text));
        }
    }
    notes
}

/// What only one of two cells states.
fn of_gaps(row: &Row, base: &Row) -> Vec<Note> {
    let mut notes = Vec::new();
    let note = |text: String| Note::of(&row.cell, NoteKind::Differs, text);
    let workload = Gaps { neither: Vec::new(), ..Gaps::of(&row.contract, &base.contract) };
    if !workload.is_empty() {
        let words = workload.words("this cell", &base.cell);
        notes.push(note(format!("{words}: it is unknown whether the workloads match")));
    }
    let execution = Gaps::of_execution(&row.contract, &base.contract);
    if !execution.is_empty() {
        let words = execution.words("this cell", &base.cell);
        notes.push(note(format!("{words}: part of a difference in speed may come from there")));
    }
    let unlisted = unlisted(row, base);
    if !unlisted.is_empty() {
        notes.push(note(format!("settings that tprimat does not know differ from {}: {}", base.cell, few(&unlisted))));
    }
    notes
}

/// Settings of two logs that are not in tprimat's table, where they differ: `lora_rank 16, there not stated`.
fn unlisted(row: &Row, base: &Row) -> Vec<String> {
    let names: BTreeSet<&String> = row.unlisted.keys().chain(base.unlisted.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let [own, other] = [row, base].map(|row| row.unlisted.get(name));
        let same = own.zip(other).is_some_and(|(own, other)| agree(own, other));
        if !same {
            found.push(format!("{name} {}, there {}", show(own), show(other)));
        }
    }
    found
}

/// What its launch and its runs say.
fn of_cell(cell: &CellInput, rows: &HashMap<&str, &Row>) -> Vec<Note> {
    let mut notes = Vec::new();
    if let Some(other) = &cell.same_launch_as {
        let [own, twin] = [&cell.cell, other].map(|name| rows.get(&**name).copied());
        let text = if own.zip(twin).is_some_and(|(own, twin)| own.is_measured_as(twin)) {
            format!("identical to {other}, so both were measured once")
        } else {
            format!("launches the very same bytes as {other}, so any difference between them is noise")
        };
        notes.push(Note::of(&cell.cell, NoteKind::Same, text));
    }
    if let Some(earlier) = &cell.standing.earlier {
        let text = format!("{earlier}; `tprimat build` measures it as it is configured now");
        notes.push(Note::of(&cell.cell, NoteKind::Earlier, text));
    }
    if cell.standing.to_come > 0 {
        let measured = cell.repeats_wanted.saturating_sub(cell.standing.to_come);
        let text =
            format!("{measured} of {} repeats measured so far; `tprimat build` runs the others", cell.repeats_wanted);
        notes.push(Note::of(&cell.cell, NoteKind::Remark, text));
    }
    if !cell.imported.is_empty() {
        let text = "imported, not measured by tprimat; `tprimat show CELL` names the files";
        notes.push(Note::of(&cell.cell, NoteKind::Remark, text));
    }
    let CellState::Ok { summary } = &cell.state else { return notes };
    notes.extend(summary.notes.iter().map(|note| Note { cell: Some(cell.cell.clone()), ..note.clone() }));
    let is_told = cell.standing.to_come > 0;
    if summary.tokens_per_second_per_gpu.is_some() && summary.n < cell.repeats_wanted as usize && !is_told {
        let text = format!("only {} of {} repeats count", summary.n, cell.repeats_wanted);
        notes.push(Note::of(&cell.cell, NoteKind::Remark, text));
    }
    if summary.n > 0 && summary.attestation == AttestationStatus::NotStated {
        let text = "the log does not confirm the workload, so declared values are used";
        notes.push(Note::of(&cell.cell, NoteKind::Remark, text));
    }
    notes
}

/// How intervals and verdicts came about.
fn of_methods(cells: &[CellInput], rows: &[Row], speedups: &[Speedup]) -> Vec<Note> {
    let mut notes = Vec::new();
    let hosts: BTreeSet<&String> = cells
        .iter()
        .filter_map(|c| if let CellState::Ok { summary } = &c.state { Some(&summary.hosts) } else { None })
        .flatten()
        .collect();
    if rows.iter().any(|r| r.tokens_per_second_per_gpu.ci95.is_some()) {
        let hosts = hosts.into_iter().cloned().collect::<Vec<_>>().join(", ");
        let all_hosts = rows.iter().all(|r| r.tokens_per_second_per_gpu.unit == Unit::Host);
        let these = if all_hosts { "hosts like these" } else { "these hosts" };
        let text = format!(
            "all intervals are 95 %. Those of rates are made by {} and hold for {these}: {hosts}",
            intervals(rows)
        );
        notes.push(Note::new(NoteKind::Method, text));
    }
    let tested = speedups.iter().filter(|s| s.significant.is_some() && s.same_as.is_none()).count();
    if tested > 0 {
        let text = if tested == 1 {
            "the speed-up is tested by Welch's t on logarithms".to_owned()
        } else {
            format!(
                "speed-ups are tested by Welch's t on logarithms. Their intervals are widened by Holm's correction so that the {tested} \
                 comparisons together raise a false alarm in at most 5 % of tables"
            )
        };
        notes.push(Note::new(NoteKind::Method, text));
    }
    notes
}

/// `Student's t on logarithms over repeats`
fn intervals(rows: &[Row]) -> String {
    let kinds: BTreeSet<(IntervalKind, Unit)> =
        rows.iter().map(|r| &r.tokens_per_second_per_gpu).filter_map(|e| Some((e.interval?, e.unit))).collect();
    let told = |(kind, unit): (IntervalKind, Unit)| {
        let how = match kind {
            IntervalKind::StudentT => "Student's t",
            IntervalKind::BootstrapT => "bootstrapped Student's t",
        };
        format!("{how} on logarithms over {}", unit.plural())
    };
    kinds.into_iter().map(told).collect::<Vec<_>>().join(", ")
}

/// Whose losses mean something else than the baseline's.
pub(super) fn of_losses(arms: &[Arm<'_>], groups: &[Grouped], settings: &CompareSettings) -> Vec<Note> {
    let note = |arm: &Arm<'_>| {
        let base = &arms[groups[arm.group].baseline];
        let fields: Vec<String> = of_convergence(arm, base, settings).iter().map(FieldDifference::sentence).collect();
        let fields = if fields.is_empty() { String::new() } else { format!(": {}", fields.join("; ")) };
        let text = format!("losses cannot be compared with those of {}{fields}", base.cell.cell);
        (arm.loss_group != base.loss_group).then(|| Note::of(&arm.cell.cell, NoteKind::NotComparable, text))
    };
    arms.iter().filter_map(note).collect()
}

/// What the cells ran in: first what is dangerous, whoever shares it.
pub(super) fn of_environments(rows: &[Row], environment: &[EnvironmentDifference]) -> Vec<Note> {
    let dangerous = rows.iter().filter(|row| !row.warnings.is_empty());
    let mut notes: Vec<Note> = dangerous
        .map(|row| Note::of(&row.cell, NoteKind::Dangerous, format!("run with {}", row.warnings.join("; "))))
        .collect();
    let of_pair =
        |a: &EnvironmentDifference, b: &EnvironmentDifference| (&a.cell_a, &a.cell_b) == (&b.cell_a, &b.cell_b);
    let note = |pair: &[EnvironmentDifference]| {
        Some(Note::of(&pair[0].cell_a, NoteKind::Environment, environment_words(pair)?))
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
    counted().flat_map(|r| &r.devices).map(String::as_str).collect()
}

/// Two cells on devices of one kind, none of which both had: the devices are part of what is compared.
fn on_other_devices(row: &Row, base: &Row) -> Option<Note> {
    let (own, others) = (devices_of(row), devices_of(base));
    let is_one_kind = row.device.is_some() && row.device == base.device;
    let apart = is_one_kind && !own.is_empty() && !others.is_empty() && own.is_disjoint(&others);
    apart.then(|| {
        let text = format!(
            "ran on other devices of the same kind than {}, so part of a difference may be the devices'",
            base.cell
        );
        Note::of(&row.cell, NoteKind::Differs, text)
    })
}
