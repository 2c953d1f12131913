//! The cells' summaries → who is faster, by how much, as far as that can honestly be said.

mod data;
mod notes;

use std::collections::HashMap;

use crate::results::{CONFIDENCE, Contract, FieldDifference, RatioTest, Reason, words::evidence};
use rayon::prelude::*;
use serde_json::json;

use super::{
    Catalogue, ComparedEnvironment, Device, Figure, Metric, Metrics, Note, NoteKind, Summary,
    UncountedRepeats,
    codes::{FAILED, FLOPS_NOT_KNOWN, NOT_COUNTED, SUPPLIED},
    comparability::{
        Candidate, Grouped, contract_of, difference, group, group_losses, labels, refused,
        refused_without_figures, varied_for_losses,
    },
    cost_ratio, environment_differences,
    interval::apart,
    judged::{Judged, no_verdict, shared, tested_as_it_is},
    memory_capacity_bytes,
    metrics::scaling,
    metrics_of,
    model_flops::{flops_of, other_format},
    otherwise::doubts,
    pairs,
    peaks::{ceiling, mfu},
    same_losses::unreached,
    same_run::shared_runs,
    warnings_of,
};

use data::COMPARISON_SCHEMA;
pub use data::{
    AbsentCell, AbsentState, CellEnvironment, CellInput, CellState, CompareSettings, Comparison,
    Difference, EnvironmentDifference, EnvironmentKind, Group, RatioInterval, Row, Speedup,
    Standing, framework_of, is_host, platform_of, rate_unit, rate_unit_of, unit_in_prose,
};

#[must_use]
pub fn compare(
    cells: &[CellInput],
    settings: &CompareSettings,
    catalogue: &Catalogue,
) -> Comparison {
    let mut absent = Vec::new();
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for cell in cells {
        match candidate(cell) {
            Ok(candidate) => candidates.push(candidate),
            Err(row) => absent.push(*row),
        }
    }
    let mut found = unreached(&candidates).into_iter();
    candidates.retain(|candidate| match found.next().flatten() {
        Some(why) => {
            absent.push(without_figures(candidate, why));
            false
        }
        None => true,
    });
    let grouped = group(&mut candidates, settings);
    // What the loss depends on and the matrix itself varies is what its losses are compared for.
    let with_axes = candidates.iter().filter(|one| !one.cell.axes.is_empty());
    let contracts = with_axes.map(|one| (&*one.cell.cell, &one.contract));
    let of_losses = CompareSettings {
        across: [settings.across.clone(), varied_for_losses(contracts)].concat(),
        ..settings.clone()
    };
    group_losses(&mut candidates, &of_losses);
    let (mut differences, mut environment) = (Vec::new(), Vec::new());
    for candidate in &candidates {
        let base = &candidates[grouped[candidate.group].baseline];
        environment.extend(environment_differences(
            &environment_of(candidate),
            &environment_of(base),
        ));
        let all = crate::results::differences(&candidate.contract, &base.contract);
        differences.extend(
            all.into_iter()
                .filter(FieldDifference::is_known)
                .map(|field| difference(candidate, base, field, false)),
        );
    }
    let mut refused = refused(&candidates, &grouped, settings);
    refused.extend(refused_without_figures(cells, &candidates, settings));
    let comparable = refused.is_empty();
    differences.extend(refused);
    let same_runs = same_runs(&candidates, &grouped);
    let groups: Vec<Group> = grouped
        .iter()
        .map(|g| g.describe(&candidates, settings))
        .collect();
    let base = |candidate: &Candidate<'_>| grouped[candidate.group].baseline;
    let rows: Vec<Row> = candidates
        .par_iter()
        .enumerate()
        .map(|(at, candidate)| Row {
            same_runs_as: same_runs[at].map(|other| candidates[other].cell.cell.clone()),
            ..row(
                candidate,
                &candidates[base(candidate)],
                scaling(candidate, &candidates),
                settings,
                catalogue,
            )
        })
        .collect();
    let (mut speedups, impossible) = speedups(
        &candidates,
        &grouped,
        &rows,
        &same_runs,
        settings,
        catalogue,
    );
    price(&mut speedups, &rows);
    let mut comparison = Comparison {
        schema_version: COMPARISON_SCHEMA.to_owned(),
        comparable,
        rows,
        groups,
        speedups,
        differences,
        environment,
        absent,
        uncounted: uncounted_repeats(cells),
        notes: Vec::new(),
    };
    let judged = Judged::of_comparison(&comparison);
    let tests = [judged.tests(), judged.by_pairs()];
    judged.give_verdicts(&mut comparison);
    doubt(&mut comparison, &judged);
    let mut notes = notes::notes(cells, &comparison, tests, settings);
    notes.extend(impossible);
    notes.extend(notes::of_losses(&candidates, &grouped, &of_losses));
    notes.extend(notes::of_environments(
        &comparison.rows,
        &comparison.environment,
    ));
    Comparison {
        notes,
        ..comparison
    }
}

/// What else would change what is said of the ratios.
fn doubt(comparison: &mut Comparison, judged: &Judged) {
    let by_cell: HashMap<&str, &Row> = comparison
        .rows
        .iter()
        .map(|row| (row.cell.as_str(), row))
        .collect();
    for ratio in &mut comparison.speedups {
        let cells = [ratio.a.as_str(), ratio.b.as_str()];
        if let [Some(a), Some(b)] = cells.map(|cell| by_cell.get(cell)) {
            ratio.doubts = doubts(ratio, [a, b], judged.least_of(cells));
        }
    }
}

fn uncounted_repeats(cells: &[CellInput]) -> UncountedRepeats {
    let mut counts = UncountedRepeats::default();
    for cell in cells {
        match &cell.state {
            CellState::Ok { summary } => counts += UncountedRepeats::of(&summary.repeats),
            CellState::Failed { repeats, .. } => counts.failed += repeats,
            CellState::Missing { .. } | CellState::Unsupported { .. } => {}
        }
    }
    counts
}

fn environment_of<'a>(candidate: &Candidate<'a>) -> ComparedEnvironment<'a> {
    ComparedEnvironment::of(candidate.cell, &candidate.summary.versions)
}

pub(super) fn candidate(cell: &CellInput) -> Result<Candidate<'_>, Box<AbsentCell>> {
    let absent = |state: AbsentState, reason: Reason| AbsentCell {
        cell: cell.cell.clone(),
        state,
        reason,
        contradicted: 0,
        imported: cell.imported.clone(),
        contract: Contract::default(),
        attested: None,
        repeats: Vec::new(),
        failed: 0,
    };
    let stated = |state: AbsentState, reason: &str| {
        let reason = Reason::excludes(state.name(), reason);
        Box::new(absent(state, reason))
    };
    match &cell.state {
        CellState::Ok { summary } => match (&summary.tokens_per_second_per_gpu, &summary.step_time)
        {
            (Some(estimate), Some(step_time)) => {
                let contract = contract_of(cell, summary);
                Ok(Candidate {
                    cell,
                    summary,
                    contract,
                    estimate,
                    step_time,
                    group: 0,
                    loss_group: 0,
                })
            }
            _ => {
                let uncounted = UncountedRepeats::of(&summary.repeats);
                let state = if uncounted.contradicted > 0 {
                    AbsentState::Contradicted
                } else if uncounted.failed > 0 {
                    AbsentState::Failed
                } else if uncounted.suspect > 0 {
                    AbsentState::Suspect
                } else {
                    AbsentState::Unmeasured
                };
                let reason = why_without_figures(summary);
                let (contract, attested) = (summary.contract.clone(), summary.attested.clone());
                let repeats = summary.repeats.clone();
                Err(Box::new(AbsentCell {
                    contradicted: uncounted.contradicted,
                    contract,
                    attested,
                    repeats,
                    ..absent(state, reason)
                }))
            }
        },
        CellState::Failed {
            class,
            evidence,
            repeats,
        } => {
            let text = format!("{}{}", class.name(), self::evidence(evidence.first()));
            let reason = Reason::excludes(FAILED, text).with("class", json!(class));
            Err(Box::new(AbsentCell {
                failed: *repeats,
                ..absent(AbsentState::Failed, reason)
            }))
        }
        CellState::Missing { reason } => Err(stated(AbsentState::Missing, reason)),
        CellState::Unsupported { reason } => Err(stated(AbsentState::Unsupported, reason)),
    }
}

/// A cell whose runs count for what they are, which is not what the cell says.
fn without_figures(candidate: &Candidate<'_>, reason: Reason) -> AbsentCell {
    let failed = UncountedRepeats::of(&candidate.summary.repeats).failed;
    AbsentCell {
        cell: candidate.cell.cell.clone(),
        state: AbsentState::Contradicted,
        reason,
        contradicted: candidate.summary.repeats.len() - failed,
        imported: candidate.cell.imported.clone(),
        contract: candidate.contract.clone(),
        attested: candidate.summary.attested.clone(),
        repeats: candidate.summary.repeats.clone(),
        failed,
    }
}

/// Why none of a cell's repeats counts: what is so of the first ones, and how many others do not
/// count for reasons of their own.
fn why_without_figures(summary: &Summary) -> Reason {
    let Some(note) = summary.notes.first() else {
        return Reason::excludes("no_repeat", "no repeat");
    };
    let told = note.reason.values.get("repeats").and_then(|r| r.as_array());
    let others = match told.filter(|_| note.reason.is(NOT_COUNTED)) {
        Some(told) => summary.repeats.len().saturating_sub(told.len()),
        None => 0,
    };
    let others = match others {
        0 => String::new(),
        1 => "; the other repeat is not counted either".to_owned(),
        n => format!("; the other {n} repeats are not counted either"),
    };
    Reason {
        text: format!("{}{others}", note.reason),
        ..note.reason.clone()
    }
}

/// Why a rate cannot be what it seems, where more was done than its device can do.
#[must_use]
pub fn impossible(cell: &CellInput, catalogue: &Catalogue) -> Option<Reason> {
    let CellState::Ok { summary } = &cell.state else {
        return None;
    };
    let rate = summary.tokens_per_second_per_gpu.as_ref()?.value;
    match mfu_of(cell, summary, rate, catalogue) {
        Figure::Error { reason } => {
            let text = format!("the rate of {} is impossible: {reason}", cell.cell);
            Some(Reason::excludes("rate_impossible", text))
        }
        _ => None,
    }
}

/// Why there is no ratio of a cell and its baseline. `same`: the candidate that has the same runs.
fn not_compared(
    a: &Candidate<'_>,
    b: &Candidate<'_>,
    same: Option<&Candidate<'_>>,
    catalogue: &Catalogue,
) -> Option<Note> {
    if let Some(same) = same {
        let text = format!(
            "has the same runs as {}, imported twice: every step has the same time and loss, so there is nothing to compare; import one \
             of the two",
            same.cell.cell
        );
        return Some(Note::new(NoteKind::Same, "same_runs", text).of(&a.cell.cell));
    }
    let why = impossible(a.cell, catalogue).or_else(|| impossible(b.cell, catalogue))?;
    let text = format!("not compared with {}: {why}", b.cell.cell);
    Some(Note::new(NoteKind::Doubtful, "rate_impossible", text).of(&a.cell.cell))
}

/// The speedup of each cell over its baseline, without a verdict. A pair with an impossible rate gets a note instead.
fn speedups(
    candidates: &[Candidate<'_>],
    groups: &[Grouped],
    rows: &[Row],
    same_runs: &[Option<usize>],
    settings: &CompareSettings,
    catalogue: &Catalogue,
) -> (Vec<Speedup>, Vec<Note>) {
    let mut all: Vec<Speedup> = Vec::new();
    let mut notes = Vec::new();
    for group in groups {
        let b = &candidates[group.baseline];
        for &at in group.members.iter().filter(|i| **i != group.baseline) {
            let a = &candidates[at];
            if let Some(why) = not_compared(
                a,
                b,
                same_runs[at].map(|other| &candidates[other]),
                catalogue,
            ) {
                notes.push(why);
                continue;
            }
            let of = [at, group.baseline].map(|at| &rows[at]);
            let test = tested_as_it_is(of, [0.0; 2]).filter(|_| shared(of).is_none());
            let plain =
                test.and_then(|test| RatioInterval::of(test.interval(CONFIDENCE)?, CONFIDENCE));
            // Pairs have a ratio of their own, since some runs may be in none.
            let ratio = match test {
                Some(RatioTest::Sequential(test)) => test.ratio(),
                _ => a.estimate.value / b.estimate.value,
            };
            all.push(Speedup {
                a: a.cell.cell.clone(),
                b: b.cell.cell.clone(),
                ratio,
                cost_ratio: Figure::default(),
                apart_seconds: apart(&a.summary.repeats, &b.summary.repeats),
                interval: plain,
                same_as: None,
                significant: None,
                p_value: None,
                n_a: a.estimate.units.len(),
                n_b: b.estimate.units.len(),
                pairs: pairs::of_rows(of),
                doubts: Vec::new(),
                labels: rows[at].labels.clone(),
                reason: no_verdict(of, settings.crosses_warmup()),
            });
        }
    }
    (all, notes)
}

/// Finds for each candidate an earlier one of its group, or the baseline, whose imported runs are all
/// of its own.
fn same_runs(candidates: &[Candidate<'_>], groups: &[Grouped]) -> Vec<Option<usize>> {
    let mut found = vec![None; candidates.len()];
    for group in groups {
        let is_imported = |i: &usize| !candidates[*i].cell.imported.is_empty();
        // What tprimat measured itself it knows by its attempts: only imports may be something else
        // under another name.
        let imported: Vec<usize> = group.members.iter().copied().filter(is_imported).collect();
        for &at in imported.iter().filter(|i| **i != group.baseline) {
            let is_same = |other: &usize| {
                let (a, b) = (&candidates[at].summary, &candidates[*other].summary);
                a.n > 0 && shared_runs(&a.repeats, &b.repeats) == a.n
            };
            let earlier = imported.iter().copied().take_while(|other| *other != at);
            found[at] = std::iter::once(group.baseline).chain(earlier).find(is_same);
        }
    }
    found
}

fn row(
    candidate: &Candidate<'_>,
    base: &Candidate<'_>,
    scaling: Metric,
    settings: &CompareSettings,
    catalogue: &Catalogue,
) -> Row {
    let (cell, summary) = (candidate.cell, candidate.summary);
    let device = summary.device.as_ref();
    let precision = summary
        .workload
        .as_ref()
        .map_or_else(String::new, |w| w.precision.clone());
    let mut metrics = metrics_of(cell, summary, catalogue);
    metrics.0.push(scaling);
    if let Some(why) = impossible(cell, catalogue) {
        metrics.void_rates(&why);
    }
    let supplied = summary.notes.iter().filter(|note| note.reason.is(SUPPLIED));
    Row {
        cell: cell.cell.clone(),
        platform: cell.platform.clone(),
        framework: cell.framework.clone(),
        model: cell.model.clone(),
        parallelism: cell.parallelism.clone(),
        axes: cell.axes.clone(),
        imported: cell.imported.clone(),
        group: candidate.group,
        loss_group: candidate.loss_group,
        n: summary.n,
        repeats_wanted: cell.repeats_wanted,
        uncounted: UncountedRepeats::of(&summary.repeats),
        standing: cell.standing.clone(),
        repeats_added_later: summary.repeats_added_later(),
        timer_factor: summary.timer_factor(),
        warmup_steps: summary.warmup_steps,
        steady_state: summary.steady_state.clone(),
        dropped: summary.dropped.clone(),
        tokens_per_second_per_gpu: candidate.estimate.clone(),
        tokens_per_second: summary.tokens_per_second,
        step_time: candidate.step_time.clone(),
        memory: summary.memory.clone(),
        memory_capacity_bytes: memory_capacity_bytes(cell, summary, catalogue),
        mfu: mfu_of(cell, summary, candidate.estimate.value, catalogue),
        loss_at_end: summary.loss_at_end,
        last_step: summary.last_step,
        precision,
        device: device.and_then(|d| d.name.clone()),
        attestation: summary.attestation,
        declared_only: candidate
            .contract
            .declared_only()
            .map(str::to_owned)
            .collect(),
        labels: labels(candidate, base, settings),
        warnings: warnings_of(&cell.environment, &candidate.contract)
            .into_iter()
            .chain(supplied.map(|note| note.reason.clone()))
            .collect(),
        same_launch_as: cell.same_launch_as.clone(),
        same_runs_as: None,
        metrics,
        contract: candidate.contract.clone(),
        unlisted: summary.unlisted.clone(),
        attested: summary.attested.clone(),
        environment: cell.environment.clone().public(),
        versions: summary.versions.clone(),
        tokens_per_step: summary.workload.as_ref().and_then(|w| w.tokens_per_step),
        repeats: summary.repeats.clone(),
    }
}

/// What a token of each costs beside the baseline's.
fn price(speedups: &mut [Speedup], rows: &[Row]) {
    let metrics: HashMap<&str, &Metrics> = rows.iter().map(|r| (&*r.cell, &r.metrics)).collect();
    for speedup in speedups {
        if let (Some(a), Some(b)) = (metrics.get(&*speedup.a), metrics.get(&*speedup.b)) {
            speedup.cost_ratio = cost_ratio((&speedup.a, a), (&speedup.b, b));
        }
    }
}

/// MFU of a summary's rate, or why there is none.
#[must_use]
pub fn mfu_of(
    cell: &CellInput,
    summary: &Summary,
    tokens_per_second_per_gpu: f64,
    catalogue: &Catalogue,
) -> Figure {
    let device = match Device::of(cell, summary, catalogue) {
        Ok(device) => device,
        Err(reason) => return Figure::Error { reason },
    };
    let precision = summary.workload.as_ref().map_or("", |w| &w.precision);
    let other_format = other_format(summary);
    let is_stated = !["", "not stated"].contains(&precision) && other_format.is_none();
    let flops = flops_of(summary);
    if let Err(reason) = &flops
        && !device.is_cpu()
        && !reason.is(FLOPS_NOT_KNOWN)
    {
        return Figure::Absent {
            reason: reason.clone(),
        };
    }
    let peak = if let Some(reason) = other_format {
        Err(reason)
    } else if !is_stated {
        let text = "the precision is not stated";
        Err(Reason::detail("precision_not_stated", text))
    } else if device.is_cpu() {
        let text = "MFU is not defined for a CPU";
        Err(Reason::detail("not_of_a_cpu", text))
    } else {
        catalogue.peaks.of_device(&device, precision)
    };
    let (rate, flops) = (tokens_per_second_per_gpu, flops.ok());
    let found = mfu(rate, flops, peak, "the device can do");
    if device.is_cpu() || !matches!(found, Figure::Absent { .. }) {
        return found;
    }
    let precision = is_stated.then(|| precision.to_lowercase());
    let whose = match device.name {
        Some(_) => "the device can do",
        None if device.vendor().is_none() => "the fastest accelerator does",
        None => "the fastest accelerator of this vendor does",
    };
    let beyond =
        ceiling(&device, precision.as_deref()).map(|ceiling| mfu(rate, flops, Ok(ceiling), whose));
    match beyond {
        Some(Figure::Error { reason }) => Figure::Error { reason },
        _ => found,
    }
}

#[cfg(test)]
pub(crate) mod tests;
