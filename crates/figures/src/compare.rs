//! The cells' summaries → who is faster, by how much, as far as that can honestly be said.

mod notes;

use std::collections::{BTreeSet, HashMap, hash_map::Entry};

use super::{
    AbsentCell, COMPARISON_SCHEMA, CONFIDENCE, Catalogue, CellInput, CellState, CompareSettings, Comparison, Contract,
    Device, FieldDifference, Figure, Gaps, Group, MIN_REPEATS, Metric, Metrics, Mfu, Note, NoteKind, Price,
    RatioInterval, RepeatStatus, Row, Speedup, Summary, Surroundings, Welch, cost_ratio, environment_differences,
    guard::{
        Arm, Grouped, contract_of, difference, group, group_losses, labels, measure_alike, refused,
        refused_without_figures,
    },
    memory_capacity_bytes,
    metrics::{Sizes, scaling, set_ups},
    metrics_of,
    same_run::shared_runs,
    summary::attempts,
    units::apart,
    verdicts, warnings_of, welch,
};

/// Reason of a speed-up without an interval: there is nothing to compare.
const SAME_MEASUREMENTS: &str = "both are the same measurements";
/// Reason of a speed-up without a verdict.
const OTHER_WARMUP: &str = "they drop different warm-up steps";

#[must_use]
pub fn compare(cells: &[CellInput], settings: &CompareSettings, catalogue: &Catalogue) -> Comparison {
    let mut absent = Vec::new();
    let mut arms: Vec<Arm<'_>> = Vec::new();
    for cell in cells {
        match arm(cell) {
            Ok(arm) => arms.push(arm),
            Err(row) => absent.push(*row),
        }
    }
    let grouped = group(&mut arms, settings);
    group_losses(&mut arms, settings);
    let (mut differences, mut environment) = (Vec::new(), Vec::new());
    for arm in &arms {
        let base = &arms[grouped[arm.group].baseline];
        environment.extend(environment_differences(&surroundings(arm), &surroundings(base)));
        let all = super::differences(&arm.contract, &base.contract);
        differences
            .extend(all.into_iter().filter(FieldDifference::is_known).map(|field| difference(arm, base, field, false)));
    }
    let mut refused = refused(&arms, &grouped, settings);
    refused.extend(refused_without_figures(cells, &arms, settings));
    let comparable = refused.is_empty();
    differences.extend(refused);
    let same_runs = same_runs(&arms, &grouped);
    let (mut speedups, impossible) = speedups(&arms, &grouped, &same_runs, settings, catalogue);
    let groups: Vec<Group> = grouped.iter().map(|g| g.describe(&arms, settings)).collect();
    let set_ups = set_ups(&arms);
    let sizes = Sizes::of(&arms, &set_ups);
    let base = |arm: &Arm<'_>| grouped[arm.group].baseline;
    let rows: Vec<Row> = arms
        .iter()
        .enumerate()
        .map(|(at, arm)| Row {
            same_runs_as: same_runs[at].map(|other| arms[other].cell.cell.clone()),
            ..row(arm, &arms[base(arm)], scaling(at, &sizes), settings, catalogue)
        })
        .collect();
    price(&mut speedups, &rows);
    let mut notes = notes::notes(cells, &rows, &groups, &speedups, &differences, settings);
    notes.extend(impossible);
    notes.extend(notes::of_losses(&arms, &grouped, settings));
    notes.extend(notes::of_environments(&rows, &environment));
    Comparison {
        schema_version: COMPARISON_SCHEMA.to_owned(),
        comparable,
        rows,
        groups,
        speedups,
        differences,
        environment,
        absent,
        failed: repeats(cells, is_failed)
            + cells.iter().filter(|c| matches!(c.state, CellState::Failed { .. })).count(),
        contradicted: repeats(cells, is_contradicted),
        suspect: repeats(cells, is_suspect),
        unmeasured: repeats(cells, is_unmeasured),
        notes,
    }
}

/// Repeats of all cells, with figures or without.
fn repeats(cells: &[CellInput], wanted: fn(&RepeatStatus) -> bool) -> usize {
    let of_cell = |c: &CellInput| if let CellState::Ok { summary } = &c.state { summary.count_of(wanted) } else { 0 };
    cells.iter().map(of_cell).sum()
}

fn is_failed(status: &RepeatStatus) -> bool {
    matches!(status, RepeatStatus::Failed { .. })
}
fn is_contradicted(status: &RepeatStatus) -> bool {
    matches!(status, RepeatStatus::Contradicted { .. })
}
fn is_suspect(status: &RepeatStatus) -> bool {
    matches!(status, RepeatStatus::Suspect { .. })
}
fn is_unmeasured(status: &RepeatStatus) -> bool {
    matches!(status, RepeatStatus::Unmeasured { .. })
}

fn surroundings<'a>(arm: &Arm<'a>) -> Surroundings<'a> {
    Surroundings::of(arm.cell, &arm.summary.versions)
}

pub(super) fn arm(cell: &CellInput) -> Result<Arm<'_>, Box<AbsentCell>> {
    let absent = |state: &str, reason: String| AbsentCell {
        cell: cell.cell.clone(),
        state: state.to_owned(),
        reason,
        contradicted: 0,
        imported: cell.imported.clone(),
        contract: Contract::default(),
        attested: None,
        repeats: Vec::new(),
    };
    let boxed = |state: &str, reason: String| Box::new(absent(state, reason));
    match &cell.state {
        CellState::Ok { summary } => match (&summary.tokens_per_second_per_gpu, &summary.step_time) {
            (Some(estimate), Some(step_time)) => {
                let contract = contract_of(cell, summary);
                Ok(Arm { cell, summary, contract, estimate, step_time, group: 0, loss_group: 0 })
            }
            _ => {
                let contradicted = summary.count_of(is_contradicted);
                let state = if contradicted > 0 {
                    "contradicted"
                } else if summary.count_of(is_failed) > 0 {
                    "failed"
                } else if summary.count_of(is_suspect) > 0 {
                    "suspect"
                } else {
                    "unmeasured"
                };
                let reason = summary.notes.first().map_or_else(|| "no repeat".to_owned(), |note| note.text.clone());
                let (contract, attested) = (summary.contract.clone(), summary.attested.clone());
                let repeats = summary.repeats.clone();
                Err(Box::new(AbsentCell { contradicted, contract, attested, repeats, ..absent(state, reason) }))
            }
        },
        CellState::Failed { class, evidence } => {
            let said = evidence.first().map(|e| format!(": {e}")).unwrap_or_default();
            Err(boxed("failed", format!("{}{said}", class.name())))
        }
        CellState::Missing { reason } => Err(boxed("missing", reason.clone())),
        CellState::Unsupported { reason } => Err(boxed("unsupported", reason.clone())),
    }
}

/// Why a rate cannot be what it seems, where more was done than its device can do.
#[must_use]
pub fn impossible(cell: &CellInput, catalogue: &Catalogue) -> Option<String> {
    let CellState::Ok { summary } = &cell.state else { return None };
    let rate = summary.tokens_per_second_per_gpu.as_ref()?.value;
    match mfu_of(cell, summary, rate, catalogue) {
        Mfu::Error { reason } => Some(format!("the rate of {} is impossible: {reason}", cell.cell)),
        _ => None,
    }
}

/// Why there is no ratio of a cell and its baseline. `same`: the arm that has the same runs.
fn not_compared(a: &Arm<'_>, b: &Arm<'_>, same: Option<&Arm<'_>>, catalogue: &Catalogue) -> Option<Note> {
    if let Some(same) = same {
        let text = format!(
            "has the same runs as {}, imported twice: every step has the same time and loss, so there is nothing to compare; \
             import one of the two",
            same.cell.cell
        );
        return Some(Note::of(&a.cell.cell, NoteKind::Same, text));
    }
    let why = impossible(a.cell, catalogue).or_else(|| impossible(b.cell, catalogue))?;
    let text = format!("not compared with {}: {why}", b.cell.cell);
    Some(Note::of(&a.cell.cell, NoteKind::Doubtful, text))
}

/// Each cell against its baseline; what an impossible rate keeps from that is told instead.
fn speedups(
    arms: &[Arm<'_>],
    groups: &[Grouped],
    same_runs: &[Option<usize>],
    settings: &CompareSettings,
    catalogue: &Catalogue,
) -> (Vec<Speedup>, Vec<Note>) {
    let mut all: Vec<Speedup> = Vec::new();
    let mut notes = Vec::new();
    // By their places in `all`: what is tested, and what is one of those under another name.
    let mut tested: Vec<(usize, Welch)> = Vec::new();
    let mut of_runs: HashMap<Runs<'_>, usize> = HashMap::new();
    let mut again: Vec<(usize, usize)> = Vec::new();
    for group in groups {
        let b = &arms[group.baseline];
        for &at in group.members.iter().filter(|i| **i != group.baseline) {
            let a = &arms[at];
            if let Some(why) = not_compared(a, b, same_runs[at].map(|other| &arms[other]), catalogue) {
                notes.push(why);
                continue;
            }
            let (n_a, n_b) = (a.estimate.units.len(), b.estimate.units.len());
            let shared = shared(a, b);
            let test = welch(&a.estimate.units, &b.estimate.units).filter(|_| shared.is_none());
            let least = n_a.min(n_b);
            let few = if n_a <= n_b { a.estimate.unit } else { b.estimate.unit }.count(least);
            let same_steps = settings.crosses_warmup() || measure_alike(a.summary.warm_up(), b.summary.warm_up());
            let unknown = Gaps::of(&a.contract, &b.contract);
            let unknown = unknown.core();
            let reason = match &test {
                _ if shared.is_some() => shared,
                _ if !unknown.is_empty() => Some(format!("the workloads may differ in {}", unknown.join(", "))),
                _ if least < 2 => Some("one repeat gives no interval".to_owned()),
                None => Some("the repeats do not vary, so there is no interval".to_owned()),
                Some(_) if !same_steps => Some(OTHER_WARMUP.to_owned()),
                Some(_) if least < MIN_REPEATS => Some(format!("{few}, and a verdict needs {MIN_REPEATS}")),
                Some(_) => None,
            };
            let plain = test.and_then(|t| interval(t.interval(CONFIDENCE)?, CONFIDENCE));
            let test = test.filter(|_| reason.is_none());
            let mut same_as = None;
            if let Some(test) = test {
                match runs(a).map(|runs| of_runs.entry(runs)) {
                    Some(Entry::Occupied(twin)) => {
                        again.push((all.len(), *twin.get()));
                        same_as = Some(all[*twin.get()].a.clone());
                    }
                    Some(Entry::Vacant(first)) => {
                        first.insert(all.len());
                        tested.push((all.len(), test));
                    }
                    None => tested.push((all.len(), test)),
                }
            }
            all.push(Speedup {
                a: a.cell.cell.clone(),
                b: b.cell.cell.clone(),
                ratio: a.estimate.value / b.estimate.value,
                cost_ratio: Figure::default(),
                prices: prices(a, b, catalogue),
                apart_seconds: apart(&a.summary.repeats, &b.summary.repeats),
                interval: plain,
                same_as,
                significant: None,
                p_value: None,
                n_a,
                n_b,
                labels: labels(a, b, settings),
                reason,
            });
        }
    }
    let verdicts = verdicts(&tested.iter().map(|(_, test)| *test).collect::<Vec<_>>());
    for ((i, _), verdict) in tested.into_iter().zip(verdicts) {
        all[i].p_value = Some(verdict.p);
        all[i].significant = Some(verdict.significant);
        all[i].interval = verdict.interval.and_then(|ends| interval(ends, verdict.confidence));
    }
    for (i, of) in again {
        let Speedup { p_value, significant, interval, .. } = all[of];
        (all[i].p_value, all[i].significant, all[i].interval) = (p_value, significant, interval);
    }
    (all, notes)
}

/// For each arm an earlier one of its group, or the baseline, whose imported runs are all of its own.
fn same_runs(arms: &[Arm<'_>], groups: &[Grouped]) -> Vec<Option<usize>> {
    let mut found = vec![None; arms.len()];
    for group in groups {
        let is_imported = |i: &usize| !arms[*i].cell.imported.is_empty();
        // What tprimat measured itself it knows by its attempts: only imports may be something else under another name.
        let imported: Vec<usize> = group.members.iter().copied().filter(is_imported).collect();
        for &at in imported.iter().filter(|i| **i != group.baseline) {
            let is_same = |other: &usize| {
                let (a, b) = (&arms[at].summary, &arms[*other].summary);
                a.n > 0 && shared_runs(&a.repeats, &b.repeats) == a.n
            };
            let earlier = imported.iter().copied().take_while(|other| *other != at);
            found[at] = std::iter::once(group.baseline).chain(earlier).find(is_same);
        }
    }
    found
}

/// A group, the counted attempts of an arm, and the bits of its units.
type Runs<'a> = (usize, BTreeSet<&'a str>, Vec<u64>);

/// What an arm asks its baseline with: arms of which this is the same ask one question twice.
fn runs<'a>(arm: &Arm<'a>) -> Option<Runs<'a>> {
    let attempts = attempts(&arm.summary.repeats);
    let units = arm.estimate.units.iter().map(|unit| unit.to_bits()).collect();
    (!attempts.is_empty()).then_some((arm.group, attempts, units))
}

/// Why two arms are no independent samples: attempts that are among the repeats of both.
fn shared(a: &Arm<'_>, b: &Arm<'_>) -> Option<String> {
    let [of_a, of_b] = [a, b].map(|arm| attempts(&arm.summary.repeats));
    let is_imported = !a.cell.imported.is_empty() && !b.cell.imported.is_empty();
    let imported_twice = if is_imported { shared_runs(&a.summary.repeats, &b.summary.repeats) } else { 0 };
    match of_a.intersection(&of_b).count().max(imported_twice) {
        0 => None,
        n if n == of_a.len() && n == of_b.len() => Some(SAME_MEASUREMENTS.to_owned()),
        n => Some(format!("{n} of their measurements {} the same", if n == 1 { "is" } else { "are" })),
    }
}

/// What a GPU-hour of each costs.
fn prices(a: &Arm<'_>, b: &Arm<'_>, catalogue: &Catalogue) -> Option<Box<[Price; 2]>> {
    let price = |arm: &Arm<'_>| {
        let device = Device::of(arm.cell, arm.summary, catalogue).ok()?;
        device.stated(&catalogue.prices).cloned()
    };
    Some(Box::new([price(a)?, price(b)?]))
}

/// None where an end is too far off to be a number.
fn interval([low, high]: [f64; 2], confidence: f64) -> Option<RatioInterval> {
    (low.is_finite() && high.is_finite()).then_some(RatioInterval { low, high, confidence })
}

fn row(arm: &Arm<'_>, base: &Arm<'_>, scaling: Metric, settings: &CompareSettings, catalogue: &Catalogue) -> Row {
    let (cell, summary) = (arm.cell, arm.summary);
    let device = summary.device.as_ref();
    let precision = summary.workload.as_ref().map_or_else(String::new, |w| w.precision.clone());
    let mut metrics = metrics_of(cell, summary, catalogue);
    metrics.0.push(scaling);
    if let Some(reason) = impossible(cell, catalogue) {
        metrics.void_rates(&reason);
    }
    Row {
        cell: cell.cell.clone(),
        platform: cell.platform.clone(),
        framework: cell.framework.clone(),
        model: cell.model.clone(),
        parallelism: cell.parallelism.clone(),
        axes: cell.axes.clone(),
        imported: cell.imported.clone(),
        group: arm.group,
        loss_group: arm.loss_group,
        n: summary.n,
        repeats_wanted: cell.repeats_wanted,
        failed: summary.count_of(is_failed),
        contradicted: summary.count_of(is_contradicted),
        suspect: summary.count_of(is_suspect),
        unmeasured: summary.count_of(is_unmeasured),
        standing: cell.standing.clone(),
        repeats_added_later: summary.repeats_added_later(),
        dropped: summary.dropped.clone(),
        tokens_per_second_per_gpu: arm.estimate.clone(),
        tokens_per_second: summary.tokens_per_second,
        step_time: arm.step_time.clone(),
        memory: summary.memory.clone(),
        memory_capacity_bytes: memory_capacity_bytes(cell, summary, catalogue),
        mfu: mfu_of(cell, summary, arm.estimate.value, catalogue),
        loss_at_end: summary.loss_at_end,
        last_step: summary.last_step,
        precision,
        device: device.and_then(|d| d.name.clone()),
        attestation: summary.attestation,
        declared_only: arm.contract.declared_only().map(str::to_owned).collect(),
        labels: labels(arm, base, settings),
        warnings: warnings_of(&cell.environment, &arm.contract),
        same_launch_as: cell.same_launch_as.clone(),
        same_runs_as: None,
        metrics,
        contract: arm.contract.clone(),
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
pub fn mfu_of(cell: &CellInput, summary: &Summary, tokens_per_second_per_gpu: f64, catalogue: &Catalogue) -> Mfu {
    let device = match Device::of(cell, summary, catalogue) {
        Ok(device) => device,
        Err(reason) => return Mfu::Error { reason },
    };
    let precision = summary.workload.as_ref().map_or("", |w| &w.precision);
    let peak = if ["", "not stated"].contains(&precision) {
        Err("the precision is not stated".to_owned())
    } else if device.is_cpu() {
        Err("MFU is not defined for a CPU".to_owned())
    } else {
        catalogue.peaks.of_device(&device, precision)
    };
    Mfu::of(tokens_per_second_per_gpu, summary.flops_per_token(), peak)
}

/// `dropout, packing`; of many, the first and how many more.
#[must_use]
pub fn few(names: &[String]) -> String {
    const MOST: usize = 4;
    let (named, more) = names.split_at(if names.len() > MOST { MOST - 1 } else { names.len() });
    let named = named.join(", ");
    if more.is_empty() { named } else { format!("{named} and {} more", more.len()) }
}

#[cfg(test)]
pub(crate) mod tests;
