//! What a reader must know beside a comparison's figures.

use std::collections::{BTreeSet, HashMap, HashSet};

use tprimat_results::{AttestationStatus, settings::agree};

use crate::{
    CellInput, CellState, CompareSettings, Comparison, ComparisonFact, Difference,
    EnvironmentDifference, Gaps, Group, IntervalKind, Mfu, NoVerdict, Note, NoteKind, RepeatStatus,
    Row, SameLaunch, Unit, UnlistedDifference, all_hosts,
    comparability::{Candidate, Grouped, of_convergence},
    environment_summary,
};

/// All but what is to be known of losses and environments. `tests`: how many the comparison made.
pub(super) fn notes(
    cells: &[CellInput],
    comparison: &Comparison,
    tests: usize,
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
    let by_cell: HashMap<&str, &Row> = rows.iter().map(|row| (&*row.cell, row)).collect();
    notes.extend(cells.iter().flat_map(|cell| of_cell(cell, &by_cell)));
    if speedups
        .iter()
        .any(|s| s.reason == Some(NoVerdict::OtherWarmUp))
    {
        notes.push(Note::new(NoteKind::Differs, ComparisonFact::OtherWarmUp));
    }
    for row in rows {
        if let Mfu::Error { reason } = &row.mfu {
            notes.push(Note::of(
                &row.cell,
                NoteKind::Doubtful,
                ComparisonFact::MfuImpossible(reason.clone()),
            ));
        }
    }
    let kinds: BTreeSet<_> = rows
        .iter()
        .flat_map(|r| r.memory.iter().take(1).map(|m| (&m.kind, &m.source)))
        .collect();
    if kinds.len() > 1 {
        let kinds = kinds
            .into_iter()
            .map(|(kind, source)| (kind.clone(), source.clone()))
            .collect();
        notes.push(Note::new(
            NoteKind::NotComparable,
            ComparisonFact::MemoryOfSeveralKinds(kinds),
        ));
    }
    if let Some(wanted) = &settings.baseline
        && !groups.iter().any(|g| &g.baseline == wanted)
    {
        notes.push(Note::new(
            NoteKind::Differs,
            ComparisonFact::NoSuchBaseline {
                wanted: wanted.clone(),
            },
        ));
    }
    notes.extend(of_methods(cells, rows, tests));
    notes
}

/// What is refused, what differs, and what nobody knows of the workloads.
fn of_contracts(rows: &[Row], groups: &[Group], all: &[Difference]) -> Vec<Note> {
    let mut notes = Vec::new();
    let refused: Vec<&Difference> = all.iter().filter(|d| d.refused).collect();
    for of_pair in refused.chunk_by(|x, y| (&x.cell_a, &x.cell_b) == (&y.cell_a, &y.cell_b)) {
        let fields = of_pair.iter().map(|d| d.field.clone()).collect();
        let fact = ComparisonFact::NotCompared {
            with: of_pair[0].cell_b.clone(),
            fields,
        };
        notes.push(Note::of(&of_pair[0].cell_a, NoteKind::Refused, fact));
    }
    let by_cell: HashMap<&str, &Row> = rows.iter().map(|row| (&*row.cell, row)).collect();
    for row in rows {
        let baseline = &groups[row.group].baseline;
        if !row.labels.is_empty() {
            let fact = ComparisonFact::Unlike {
                baseline: baseline.clone(),
                labels: row.labels.clone(),
            };
            notes.push(Note::of(&row.cell, NoteKind::Differs, fact));
        }
        let base = by_cell.get(&**baseline).copied();
        if let Some(base) = base.filter(|base| base.cell != row.cell) {
            notes.extend(of_gaps(row, base));
            notes.extend(on_other_devices(row, base));
        }
        if !row.declared_only.is_empty() {
            let (fields, is_imported) = (row.declared_only.clone(), !row.imported.is_empty());
            notes.push(Note::of(
                &row.cell,
                NoteKind::Remark,
                ComparisonFact::DeclaredOnly {
                    fields,
                    is_imported,
                },
            ));
        }
    }
    notes
}

/// What only one of two cells states.
fn of_gaps(row: &Row, base: &Row) -> Vec<Note> {
    let mut facts = Vec::new();
    let baseline = || base.cell.clone();
    let gaps = Gaps {
        neither: Vec::new(),
        ..Gaps::of(&row.contract, &base.contract)
    };
    if !gaps.is_empty() {
        facts.push(ComparisonFact::WorkloadGaps {
            baseline: baseline(),
            gaps,
        });
    }
    let gaps = Gaps::of_execution(&row.contract, &base.contract);
    if !gaps.is_empty() {
        facts.push(ComparisonFact::ExecutionGaps {
            baseline: baseline(),
            gaps,
        });
    }
    let settings = unlisted(row, base);
    if !settings.is_empty() {
        facts.push(ComparisonFact::UnlistedDiffer {
            baseline: baseline(),
            settings,
        });
    }
    facts
        .into_iter()
        .map(|fact| Note::of(&row.cell, NoteKind::Differs, fact))
        .collect()
}

/// Settings of two logs that are not in tprimat's table, where they differ.
fn unlisted(row: &Row, base: &Row) -> Vec<UnlistedDifference> {
    let names: BTreeSet<&String> = row.unlisted.keys().chain(base.unlisted.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let [own, other] = [row, base].map(|row| row.unlisted.get(name));
        let same = own.zip(other).is_some_and(|(own, other)| agree(own, other));
        if !same {
            let (own, other) = (own.cloned(), other.cloned());
            found.push(UnlistedDifference {
                name: name.clone(),
                own,
                other,
            });
        }
    }
    found
}

/// What its launch and its runs say.
fn of_cell(cell: &CellInput, rows: &HashMap<&str, &Row>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut add =
        |kind: NoteKind, fact: ComparisonFact| notes.push(Note::of(&cell.cell, kind, fact));
    if let Some(other) = &cell.same_launch_as {
        let [own, twin] = [&cell.cell, other].map(|name| rows.get(&**name).copied());
        let measured = match own.zip(twin) {
            Some((own, twin)) if own.is_measured_as(twin) => SameLaunch::Once,
            Some(_) => SameLaunch::Apart,
            None => SameLaunch::NotYet,
        };
        add(
            NoteKind::Same,
            ComparisonFact::SameLaunch {
                as_cell: other.clone(),
                measured,
            },
        );
    }
    if let Some(earlier) = &cell.standing.earlier {
        add(NoteKind::Earlier, ComparisonFact::Earlier(earlier.clone()));
    }
    let (wanted, to_come) = (cell.repeats_wanted, cell.standing.to_come);
    if to_come > 0 {
        let measured = wanted.saturating_sub(to_come);
        add(
            NoteKind::Remark,
            ComparisonFact::Incomplete { measured, wanted },
        );
    }
    if !cell.imported.is_empty() {
        add(NoteKind::Remark, ComparisonFact::Imported);
    }
    let CellState::Ok { summary } = &cell.state else {
        return notes;
    };
    notes.extend(summary.notes.iter().map(|note| Note {
        cell: Some(cell.cell.clone()),
        ..note.clone()
    }));
    let mut remark =
        |fact: ComparisonFact| notes.push(Note::of(&cell.cell, NoteKind::Remark, fact));
    if summary.tokens_per_second_per_gpu.is_some() && summary.n < wanted as usize && to_come == 0 {
        remark(ComparisonFact::FewCount {
            n: summary.n,
            wanted,
        });
    }
    if summary.n > 0 && summary.attestation == AttestationStatus::NotStated {
        remark(ComparisonFact::WorkloadNotConfirmed);
    }
    notes
}

/// How intervals and verdicts came about.
fn of_methods(cells: &[CellInput], rows: &[Row], tests: usize) -> Vec<Note> {
    let mut notes = Vec::new();
    if rows
        .iter()
        .any(|r| r.tokens_per_second_per_gpu.ci95.is_some())
    {
        let with_interval: HashSet<&str> = rows
            .iter()
            .filter(|r| r.tokens_per_second_per_gpu.ci95.is_some())
            .map(|r| &*r.cell)
            .collect();
        let of_interval = cells.iter().filter(|c| with_interval.contains(&*c.cell));
        let summaries = of_interval.filter_map(|c| {
            if let CellState::Ok { summary } = &c.state {
                Some(summary)
            } else {
                None
            }
        });
        let hosts = summaries.flat_map(|summary| &summary.hosts);
        let hosts = all_hosts(hosts).unwrap_or_default();
        let estimates = || rows.iter().map(|r| &r.tokens_per_second_per_gpu);
        let made: BTreeSet<(IntervalKind, Unit)> = estimates()
            .filter_map(|e| Some((e.interval?, e.unit)))
            .collect();
        let fact = ComparisonFact::Intervals {
            made: made.into_iter().collect(),
            hosts: hosts.into_iter().map(str::to_owned).collect(),
            all_are_hosts: estimates().all(|e| e.unit == Unit::Host),
        };
        notes.push(Note::new(NoteKind::Method, fact));
    }
    if tests > 0 {
        let fact = ComparisonFact::Tested { comparisons: tests };
        notes.push(Note::new(NoteKind::Method, fact));
    }
    notes
}

/// Whose losses mean something else than the baseline's.
pub(super) fn of_losses(
    candidates: &[Candidate<'_>],
    groups: &[Grouped],
    settings: &CompareSettings,
) -> Vec<Note> {
    let note = |candidate: &Candidate<'_>| {
        let base = &candidates[groups[candidate.group].baseline];
        let (fields, baseline) = (
            of_convergence(candidate, base, settings),
            base.cell.cell.clone(),
        );
        let fact = ComparisonFact::OtherLosses { baseline, fields };
        (candidate.loss_group != base.loss_group)
            .then(|| Note::of(&candidate.cell.cell, NoteKind::NotComparable, fact))
    };
    candidates.iter().filter_map(note).collect()
}

/// What the cells ran in: first what is dangerous, whoever shares it.
pub(super) fn of_environments(rows: &[Row], environment: &[EnvironmentDifference]) -> Vec<Note> {
    let dangerous = rows.iter().filter(|row| !row.warnings.is_empty());
    let mut notes: Vec<Note> = dangerous
        .map(|row| {
            Note::of(
                &row.cell,
                NoteKind::Dangerous,
                ComparisonFact::RunWith(row.warnings.clone()),
            )
        })
        .collect();
    let of_pair = |a: &EnvironmentDifference, b: &EnvironmentDifference| {
        (&a.cell_a, &a.cell_b) == (&b.cell_a, &b.cell_b)
    };
    let note = |pair: &[EnvironmentDifference]| {
        let fact = ComparisonFact::Environment(environment_summary(pair)?);
        Some(Note::of(&pair[0].cell_a, NoteKind::Environment, fact))
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
        let fact = ComparisonFact::OtherDevices {
            baseline: base.cell.clone(),
        };
        Note::of(&row.cell, NoteKind::Differs, fact)
    })
}
