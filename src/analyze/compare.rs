//! The cells' summaries → who is faster, by how much, as far as that can honestly be said.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AttestationStatus, Curve, Estimate, FieldDifference, MIN_REPEATS, Memory, Mfu, Peaks, RepeatStatus, StepTime,
    Summary, Tier, differences, holm, settings::WARMUP, welch,
};
use crate::parse::FailureClass;

pub const COMPARISON_SCHEMA: &str = "tprimat.comparison/1";

/// Family-wise level of significance, after Holm's correction.
const LEVEL: f64 = 0.05;

/// Under this strategy nothing at all may differ but platform and framework.
const STRICT_STRATEGY: &str = "identical_config";

/// Why such a speed-up has no verdict.
const OTHER_WARMUP: &str = "another warm-up: significance not assessed";

/// One cell of the matrix, with what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellInput {
    pub cell: String,
    pub platform: String,
    pub framework: String,
    pub model: String,
    pub parallelism: String,
    #[serde(default)]
    pub axes: BTreeMap<String, String>,
    pub repeats_wanted: u32,
    pub state: CellState,
    /// An earlier cell whose launch files are the same bytes: their difference is noise.
    #[serde(default)]
    pub same_launch_as: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum CellState {
    Ok { summary: Box<Summary> },
    Failed { class: FailureClass, evidence: Vec<String> },
    Missing { reason: String },
    Unsupported { reason: String },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareSettings {
    /// Fields of the workload, or `warmup`, that may differ; every figure that crosses one says so.
    pub across: Vec<String>,
    /// Cell that others are divided by, in place of the first of each group.
    pub baseline: Option<String>,
    /// The user named the cells, so every pair of them was asked for; otherwise only cells of one model and
    /// strategy kind are expected to be comparable.
    pub named: bool,
}

impl CompareSettings {
    fn crosses_warmup(&self) -> bool {
        self.across.iter().any(|field| field == WARMUP)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    pub schema_version: String,
    /// No comparison that was asked for is refused.
    pub comparable: bool,
    /// Cells with figures, in matrix order.
    pub rows: Vec<Row>,
    /// Cells that may be compared with each other; rows point here.
    pub groups: Vec<Group>,
    pub speedups: Vec<Speedup>,
    pub differences: Vec<Difference>,
    /// Cells without figures, in matrix order.
    pub absent: Vec<AbsentCell>,
    /// Repeats that failed, of all cells; a cell that failed as a whole is one.
    #[serde(default)]
    pub failed: usize,
    /// Repeats that contradict their job, of all cells.
    #[serde(default)]
    pub contradicted: usize,
    /// Repeats that ended well with nothing to measure, of all cells.
    #[serde(default)]
    pub unmeasured: usize,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    pub cell: String,
    pub platform: String,
    pub framework: String,
    pub model: String,
    pub parallelism: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub axes: BTreeMap<String, String>,
    /// Index into `groups`.
    pub group: usize,
    /// Repeats that count, of those wanted.
    pub n: usize,
    pub repeats_wanted: u32,
    pub failed: usize,
    pub contradicted: usize,
    /// Ended well with nothing to measure.
    #[serde(default)]
    pub unmeasured: usize,
    pub tokens_per_second_per_gpu: Estimate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    pub step_time: StepTime,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Memory>,
    pub mfu: Mfu,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_at_end: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u64>,
    pub precision: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub attestation: AttestationStatus,
    /// Fields of the workload that only the job states, not the trainer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub declared_only: Vec<String>,
    /// How this cell differs from its group's baseline, in words; shown wherever it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// One a repeat that counts.
    pub curves: Vec<Curve>,
}

/// Cells of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    pub model: String,
    /// What all of them ran, in a few words.
    pub workload: String,
    /// Nothing may differ here.
    pub identical_config: bool,
    pub baseline: String,
    pub cells: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Speedup {
    pub a: String,
    /// The baseline.
    pub b: String,
    /// tokens/s/GPU of a ÷ of b.
    pub ratio: f64,
    /// Welch's t on logarithms, not corrected; absent with one repeat in an arm, or where nothing varies.
    pub ci95: Option<[f64; 2]>,
    /// After Holm's correction over the table; null = not assessed, see `reason`.
    pub significant: Option<bool>,
    /// Corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    pub n_a: usize,
    pub n_b: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Why there is no interval or no verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    pub cell_a: String,
    pub cell_b: String,
    #[serde(flatten)]
    pub field: FieldDifference,
    /// This is why the two are not compared.
    pub refused: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AbsentCell {
    pub cell: String,
    /// `failed`, `contradicted`, `missing`, `unsupported` or `unmeasured`.
    pub state: String,
    pub reason: String,
    /// Repeats that contradict the cell's job.
    #[serde(default)]
    pub contradicted: usize,
}

#[must_use]
pub fn compare(cells: &[CellInput], settings: &CompareSettings, peaks: &Peaks) -> Comparison {
    let mut absent = Vec::new();
    let mut arms: Vec<Arm<'_>> = Vec::new();
    for cell in cells {
        match arm(cell) {
            Ok(arm) => arms.push(arm),
            Err(row) => absent.push(row),
        }
    }
    let grouped = group(&mut arms, settings);
    let mut differences = Vec::new();
    for arm in &arms {
        let base = &arms[grouped[arm.group].baseline];
        let all = super::differences(&arm.summary.contract, &base.summary.contract);
        differences
            .extend(all.into_iter().filter(FieldDifference::is_known).map(|field| difference(arm, base, field, false)));
    }
    let refused = refused(&arms, &grouped, settings);
    let comparable = refused.is_empty();
    differences.extend(refused);
    let speedups = speedups(&arms, &grouped, settings);
    let groups: Vec<Group> = grouped.iter().map(|g| g.describe(&arms)).collect();
    let rows: Vec<Row> = arms.iter().map(|arm| row(arm, &arms[grouped[arm.group].baseline], settings, peaks)).collect();
    let notes = notes(cells, &rows, &groups, &speedups, &differences, settings);
    Comparison {
        schema_version: COMPARISON_SCHEMA.to_owned(),
        comparable,
        rows,
        groups,
        speedups,
        differences,
        absent,
        failed: repeats(cells, is_failed)
            + cells.iter().filter(|c| matches!(c.state, CellState::Failed { .. })).count(),
        contradicted: repeats(cells, is_contradicted),
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
fn is_unmeasured(status: &RepeatStatus) -> bool {
    matches!(status, RepeatStatus::Unmeasured { .. })
}

/// A cell with figures.
struct Arm<'a> {
    cell: &'a CellInput,
    summary: &'a Summary,
    estimate: &'a Estimate,
    step_time: &'a StepTime,
    group: usize,
}

impl Arm<'_> {
    fn is_strict(&self) -> bool {
        self.cell.parallelism == STRICT_STRATEGY
    }
}

fn arm(cell: &CellInput) -> Result<Arm<'_>, AbsentCell> {
    let absent = |state: &str, reason: String| AbsentCell {
        cell: cell.cell.clone(),
        state: state.to_owned(),
        reason,
        contradicted: 0,
    };
    match &cell.state {
        CellState::Ok { summary } => match (&summary.tokens_per_second_per_gpu, &summary.step_time) {
            (Some(estimate), Some(step_time)) => Ok(Arm { cell, summary, estimate, step_time, group: 0 }),
            _ => {
                let contradicted = summary.count_of(is_contradicted);
                let state = if contradicted > 0 {
                    "contradicted"
                } else if summary.count_of(is_failed) > 0 {
                    "failed"
                } else {
                    "unmeasured"
                };
                let reason = summary.notes.first().cloned().unwrap_or_else(|| "no repeat".to_owned());
                Err(AbsentCell { contradicted, ..absent(state, reason) })
            }
        },
        CellState::Failed { class, evidence } => {
            let said = evidence.first().map(|e| format!(": {e}")).unwrap_or_default();
            Err(absent("failed", format!("{}{said}", class.name())))
        }
        CellState::Missing { reason } => Err(absent("missing", reason.clone())),
        CellState::Unsupported { reason } => Err(absent("unsupported", reason.clone())),
    }
}

/// Indices into the arms.
struct Grouped {
    baseline: usize,
    members: Vec<usize>,
}

impl Grouped {
    /// The baseline first.
    fn baseline_first(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.baseline).chain(self.members.iter().copied().filter(|i| *i != self.baseline))
    }

    fn describe(&self, arms: &[Arm<'_>]) -> Group {
        let base = &arms[self.baseline];
        Group {
            model: base.cell.model.clone(),
            workload: workload(base.summary),
            identical_config: base.is_strict(),
            baseline: base.cell.cell.clone(),
            cells: self.members.iter().map(|&i| arms[i].cell.cell.clone()).collect(),
        }
    }
}

/// `sequence 2048, batch 128, 8 devices`
fn workload(summary: &Summary) -> String {
    let contract = &summary.contract;
    let count = |field, words: fn(u64) -> String| contract.count(field).map(words);
    let parts = [
        count("seq_length", |n| format!("sequence {n}")),
        count("global_batch_size", |n| format!("global batch {n}")),
        count("num_gpus", |n| format!("{n} {}", if n == 1 { "device" } else { "devices" })),
        contract.get("data").and_then(|d| d.as_str()).map(|d| format!("{d} data")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What forbids putting two arms side by side.
fn blocking(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> Vec<FieldDifference> {
    let strict = a.is_strict() && b.is_strict();
    let forbids = |d: &FieldDifference| {
        d.is_known() && (d.tier == Tier::Workload || strict) && !settings.across.contains(&d.field)
    };
    differences(&a.summary.contract, &b.summary.contract).into_iter().filter(forbids).collect()
}

/// Sorts the arms into groups, each with its baseline. To fit is not transitive, for a value that is not stated fits
/// any; so a member fits every other member, and any of them can be the baseline.
fn group(arms: &mut [Arm<'_>], settings: &CompareSettings) -> Vec<Grouped> {
    let mut groups: Vec<Grouped> = Vec::new();
    for i in 0..arms.len() {
        let fits_arm = |b: &usize| {
            let (a, b) = (&arms[i], &arms[*b]);
            is_expected(a, b, settings) && blocking(a, b, settings).is_empty()
        };
        let fits = |group: &Grouped| group.members.iter().all(fits_arm);
        let at = groups.iter().position(fits).unwrap_or_else(|| {
            groups.push(Grouped { baseline: i, members: Vec::new() });
            groups.len() - 1
        });
        groups[at].members.push(i);
        if settings.baseline.as_deref() == Some(&arms[i].cell.cell) {
            groups[at].baseline = i;
        }
        arms[i].group = at;
    }
    groups
}

/// Does anybody expect these two to be compared?
fn is_expected(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> bool {
    settings.named || (a.cell.model == b.cell.model && a.is_strict() == b.is_strict())
}

fn difference(a: &Arm<'_>, b: &Arm<'_>, field: FieldDifference, refused: bool) -> Difference {
    Difference { cell_a: a.cell.cell.clone(), cell_b: b.cell.cell.clone(), field, refused }
}

/// Why the groups of what was expected to be one are several.
fn refused(arms: &[Arm<'_>], groups: &[Grouped], settings: &CompareSettings) -> Vec<Difference> {
    let mut all = Vec::new();
    for (i, group) in groups.iter().enumerate() {
        let expected = |g: &&Grouped| is_expected(&arms[group.baseline], &arms[g.baseline], settings);
        let Some(first) = groups[..i].iter().find(expected) else { continue };
        // The two baselines may lack the value that other members differ in.
        let pairs = group.baseline_first().flat_map(|a| first.baseline_first().map(move |b| (&arms[a], &arms[b])));
        let found = pairs.map(|(a, b)| (a, b, blocking(a, b, settings))).find(|(.., fields)| !fields.is_empty());
        if let Some((a, b, fields)) = found {
            all.extend(fields.into_iter().map(|field| difference(a, b, field, true)));
        }
    }
    all
}

/// What a reader must know beside any figure that puts `a` next to `b`.
fn labels(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> Vec<String> {
    let known = differences(&a.summary.contract, &b.summary.contract).into_iter().filter(FieldDifference::is_known);
    let label = |d: FieldDifference| {
        let across = d.tier == Tier::Workload && settings.across.contains(&d.field);
        if across { format!("across {}", d.sentence()) } else { d.sentence() }
    };
    let warmup = warmup_difference(a.summary, b.summary)
        .map(|words| if settings.crosses_warmup() { format!("across {words}") } else { words });
    warmup.into_iter().chain(known.map(label)).collect()
}

/// `warm-up 9, not 5 steps`: the two do not measure the same part of a run.
fn warmup_difference(a: &Summary, b: &Summary) -> Option<String> {
    let mut parts = Vec::new();
    if a.warmup_steps != b.warmup_steps {
        parts.push(format!("warm-up {}, not {} steps", a.warmup_steps, b.warmup_steps));
    }
    if a.steady_state != b.steady_state {
        parts.push(format!("warm-up {}, not {}", a.steady_state, b.steady_state));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn speedups(arms: &[Arm<'_>], groups: &[Grouped], settings: &CompareSettings) -> Vec<Speedup> {
    let mut all = Vec::new();
    for group in groups {
        let b = &arms[group.baseline];
        for a in group.members.iter().filter(|i| **i != group.baseline).map(|i| &arms[*i]) {
            let (n_a, n_b) = (a.estimate.values.len(), b.estimate.values.len());
            let test = welch(&a.estimate.values, &b.estimate.values);
            let least = n_a.min(n_b);
            let same_warmup = settings.crosses_warmup() || warmup_difference(a.summary, b.summary).is_none();
            let reason = match &test {
                _ if least < 2 => Some("one repeat: no interval".to_owned()),
                None => Some("the repeats do not vary: no interval".to_owned()),
                Some(_) if !same_warmup => Some(OTHER_WARMUP.to_owned()),
                Some(_) if least < MIN_REPEATS => Some(format!("{least} repeats: significance needs {MIN_REPEATS}")),
                Some(_) => None,
            };
            all.push(Speedup {
                a: a.cell.cell.clone(),
                b: b.cell.cell.clone(),
                ratio: a.estimate.value / b.estimate.value,
                ci95: test.map(|t| t.ci95),
                significant: None,
                p_value: test.filter(|_| reason.is_none()).map(|t| t.p),
                n_a,
                n_b,
                labels: labels(a, b, settings),
                reason,
            });
        }
    }
    let tested: Vec<usize> = (0..all.len()).filter(|i| all[*i].p_value.is_some()).collect();
    let adjusted = holm(&tested.iter().filter_map(|i| all[*i].p_value).collect::<Vec<_>>());
    for (i, p) in tested.into_iter().zip(adjusted) {
        all[i].p_value = Some(p);
        all[i].significant = Some(p < LEVEL);
    }
    all
}

fn row(arm: &Arm<'_>, base: &Arm<'_>, settings: &CompareSettings, peaks: &Peaks) -> Row {
    let (cell, summary) = (arm.cell, arm.summary);
    let device = summary.device.as_ref();
    let precision = summary.workload.as_ref().map_or_else(String::new, |w| w.precision.clone());
    Row {
        cell: cell.cell.clone(),
        platform: cell.platform.clone(),
        framework: cell.framework.clone(),
        model: cell.model.clone(),
        parallelism: cell.parallelism.clone(),
        axes: cell.axes.clone(),
        group: arm.group,
        n: summary.n,
        repeats_wanted: cell.repeats_wanted,
        failed: summary.count_of(is_failed),
        contradicted: summary.count_of(is_contradicted),
        unmeasured: summary.count_of(is_unmeasured),
        tokens_per_second_per_gpu: arm.estimate.clone(),
        tokens_per_second: summary.tokens_per_second,
        step_time: arm.step_time.clone(),
        memory: summary.memory.clone(),
        mfu: mfu_of(&cell.platform, summary, arm.estimate.value, peaks),
        loss_at_end: summary.loss_at_end,
        last_step: summary.last_step,
        precision,
        device: device.and_then(|d| d.name.clone()),
        attestation: summary.attestation,
        declared_only: summary.contract.declared_only().map(str::to_owned).collect(),
        labels: labels(arm, base, settings),
        curves: summary.repeats.iter().filter(|r| r.status == RepeatStatus::Ok).map(|r| r.curve.clone()).collect(),
    }
}

/// MFU of a summary's rate, or why there is none.
#[must_use]
pub fn mfu_of(platform: &str, summary: &Summary, tokens_per_second_per_gpu: f64, peaks: &Peaks) -> Mfu {
    let device = summary.device.as_ref();
    let precision = summary.workload.as_ref().map_or("", |w| &w.precision);
    let peak = if device.is_some_and(|d| d.r#type == "cpu") {
        Err("MFU is not defined for a CPU".to_owned())
    } else {
        peaks.of(platform, device.and_then(|d| d.name.as_deref()), precision)
    };
    Mfu::of(tokens_per_second_per_gpu, summary.flops_per_token(), peak)
}

/// `dropout, packing`; of many, the first and how many more.
fn few(names: &[String]) -> String {
    const MOST: usize = 4;
    let (told, more) = names.split_at(if names.len() > MOST { MOST - 1 } else { names.len() });
    let told = told.join(", ");
    if more.is_empty() { told } else { format!("{told} and {} more", more.len()) }
}

fn notes(
    cells: &[CellInput],
    rows: &[Row],
    groups: &[Group],
    speedups: &[Speedup],
    differences: &[Difference],
    settings: &CompareSettings,
) -> Vec<String> {
    let mut notes = Vec::new();
    let mut pairs: Vec<(&str, &str)> =
        differences.iter().filter(|d| d.refused).map(|d| (&*d.cell_a, &*d.cell_b)).collect();
    pairs.dedup();
    for (a, b) in pairs {
        let of_pair = differences.iter().filter(|d| d.refused && d.cell_a == a && d.cell_b == b);
        let fields: Vec<String> = of_pair.map(|d| d.field.sentence()).collect();
        notes.push(format!("{a} is not compared with {b}: {}.", fields.join("; ")));
    }
    for row in rows.iter().filter(|r| !r.labels.is_empty()) {
        let baseline = &groups[row.group].baseline;
        notes.push(format!("{} differs from {baseline} in {}.", row.cell, row.labels.join("; ")));
    }
    for row in rows.iter().filter(|r| !r.declared_only.is_empty()) {
        notes.push(format!("{}: {}: declared, not stated by the trainer.", row.cell, few(&row.declared_only)));
    }
    for cell in cells {
        if let Some(other) = &cell.same_launch_as {
            notes.push(format!(
                "{} and {other} launch the very same bytes: a difference between them is noise.",
                cell.cell
            ));
        }
        if let CellState::Ok { summary } = &cell.state {
            notes.extend(summary.notes.iter().map(|n| format!("{}: {n}.", cell.cell)));
            if summary.tokens_per_second_per_gpu.is_some() && summary.n < cell.repeats_wanted as usize {
                notes.push(format!("{}: {} of {} repeats count.", cell.cell, summary.n, cell.repeats_wanted));
            }
            if summary.n > 0 && summary.attestation == AttestationStatus::NotStated {
                notes.push(format!("{}: the log does not attest the workload; declared values are used.", cell.cell));
            }
        }
    }
    if speedups.iter().any(|s| s.reason.as_deref() == Some(OTHER_WARMUP)) {
        notes.push(format!(
            "Cells of different warm-up do not measure the same steps; significance is assessed only across `{WARMUP}`."
        ));
    }
    for row in rows {
        if let Mfu::Error { reason } = &row.mfu {
            notes.push(format!("{}: MFU is impossible: {reason}.", row.cell));
        }
    }
    let kinds: BTreeSet<_> = rows.iter().flat_map(|r| r.memory.iter().take(1).map(|m| (&m.kind, &m.source))).collect();
    if kinds.len() > 1 {
        notes.push("Memory figures are of different kinds: do not compare them with each other.".to_owned());
    }
    if let Some(wanted) = &settings.baseline
        && !groups.iter().any(|g| &g.baseline == wanted)
    {
        notes.push(format!("The baseline {wanted} has no figures; the first cell of each group stands in."));
    }
    let hosts: BTreeSet<&String> = cells
        .iter()
        .filter_map(|c| if let CellState::Ok { summary } = &c.state { Some(&summary.hosts) } else { None })
        .flatten()
        .collect();
    if rows.iter().any(|r| r.tokens_per_second_per_gpu.ci95.is_some()) {
        let hosts = hosts.into_iter().cloned().collect::<Vec<_>>().join(", ");
        notes.push(format!(
            "Intervals are 95 %, Student's t on logarithms over repeats, and speak of these hosts: {hosts}."
        ));
    }
    let tested = speedups.iter().filter(|s| s.significant.is_some()).count();
    if tested > 0 {
        notes.push(format!(
            "Significance: Welch's t on logarithms, Holm's correction over {tested} {}; the intervals of speed-ups are not corrected.",
            if tested == 1 { "comparison" } else { "comparisons" }
        ));
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        analyze::{
            ContractField, RunOutcome, RunResult, Source, Statistics, attest::tests::job, result::tests::facts,
            summarize, summary::tests::run_of,
        },
        parse::{Anomaly, DeviceLine},
        plan::Job,
    };

    pub fn cell(name: &str, state: CellState) -> CellInput {
        let parts: Vec<&str> = name.split(['/', '@']).collect();
        CellInput {
            cell: name.to_owned(),
            platform: parts[0].to_owned(),
            framework: parts[1].to_owned(),
            model: parts[2].to_owned(),
            parallelism: parts[3].to_owned(),
            axes: BTreeMap::new(),
            repeats_wanted: 3,
            state,
            same_launch_as: None,
        }
    }

    /// A cell whose repeats take these mean step times.
    pub fn measured(name: &str, job: &Job, times: &[f64], device: Option<(&str, &str)>) -> CellInput {
        let steps: Vec<Vec<f64>> = times.iter().map(|t| vec![t * 3.0, t * 0.98, t * 1.02]).collect();
        measured_steps(name, job, &steps, device)
    }

    /// A cell with these step times in each repeat; the first step is warm-up.
    pub fn measured_steps(name: &str, job: &Job, repeats: &[Vec<f64>], device: Option<(&str, &str)>) -> CellInput {
        let run = |times: &Vec<f64>| -> RunResult {
            let stated = json!({"global_batch_size": job.data.global_batch_size, "seq_length": job.data.seq_length,
                "num_gpus": job.parallelism.num_gpus, "precision": job.precision});
            let mut run = run_of(job, times, stated);
            run.trace.device =
                device.map(|(kind, name)| DeviceLine { r#type: kind.into(), name: Some(name.into()), count: None });
            run
        };
        let runs: Vec<(u32, RunResult)> = repeats.iter().enumerate().map(|(i, t)| (i as u32 + 1, run(t))).collect();
        cell(name, CellState::Ok { summary: Box::new(summarize(&runs, &Statistics { warmup_steps: 1 })) })
    }

    fn compare_with(cells: &[CellInput], settings: CompareSettings) -> Comparison {
        compare(cells, &settings, &Peaks::default())
    }
    fn compare_all(cells: &[CellInput]) -> Comparison {
        compare_with(cells, CompareSettings::default())
    }

    #[test]
    fn a_clear_speedup_is_significant_and_noise_is_not() {
        let comparison = compare_all(&[
            measured("cpu/native/llama/single", &job(), &[1.0, 1.01, 0.99], None),
            measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
            measured("cpu/cmd/llama/single", &job(), &[1.0, 1.02, 0.985], None),
        ]);
        assert!(comparison.comparable && comparison.groups.len() == 1);
        let [slow, same] = &comparison.speedups[..] else { panic!("{:?}", comparison.speedups) };
        assert_eq!(
            (slow.b.as_str(), slow.significant, same.significant),
            ("cpu/native/llama/single", Some(true), Some(false))
        );
        assert!((slow.ratio - 0.5).abs() < 0.01 && slow.ci95.unwrap()[1] < 0.55);
    }

    #[test]
    fn few_repeats_give_no_verdict_and_say_why() {
        let cells = |n: usize| {
            let times = [1.0, 1.01, 0.99];
            [
                measured("cpu/native/llama/single", &job(), &times, None),
                measured("cpu/tran/llama/single", &job(), &times[..n], None),
            ]
        };
        let one = &compare_all(&cells(1)).speedups[0];
        assert_eq!((one.ci95, one.significant, one.reason.as_deref()), (None, None, Some("one repeat: no interval")));
        let two = &compare_all(&cells(2)).speedups[0];
        assert!(two.ci95.is_some() && two.significant.is_none() && two.reason.as_deref().unwrap().contains("needs 3"));
    }

    fn big_batch() -> Job {
        let mut job = job();
        job.data.global_batch_size = 128;
        job.data.gradient_accumulation_steps = 64;
        job
    }

    #[test]
    fn different_workloads_are_refused_or_labelled() {
        let cells = [
            measured("nvd/nemo/llama/maximum_performance", &job(), &[1.0, 1.1, 1.2], None),
            measured("amd/prim/llama/maximum_performance", &big_batch(), &[1.0, 1.1, 1.2], None),
        ];
        let refused = compare_all(&cells);
        assert!(!refused.comparable && refused.speedups.is_empty() && refused.groups.len() == 2);
        let why: Vec<_> = refused.differences.iter().filter(|d| d.refused).map(|d| d.field.field.as_str()).collect();
        assert_eq!(why, ["global_batch_size"]);
        let forced =
            compare_with(&cells, CompareSettings { across: vec!["global_batch_size".into()], ..Default::default() });
        assert!(forced.comparable);
        assert_eq!(forced.speedups[0].labels[0], "across global_batch_size: 128, not 8");
        assert!(forced.notes.iter().any(|n| n.contains("across global_batch_size")), "{:?}", forced.notes);
    }

    /// A cell whose trainer states this dropout.
    fn with_dropout(name: &str, dropout: Option<f64>) -> CellInput {
        let mut cell = measured(name, &job(), &[1.0, 1.1, 1.2], None);
        let CellState::Ok { summary } = &mut cell.state else { unreachable!() };
        summary.contract.0.extend(dropout.map(|value| ContractField {
            field: "dropout".into(),
            tier: Tier::Workload,
            value: json!(value),
            source: Source::Effective,
        }));
        cell
    }

    #[test]
    fn a_value_that_is_not_stated_does_not_join_two_that_differ() {
        let names = ["cpu/native/llama/single", "cpu/tran/llama/single", "cpu/cmd/llama/single"];
        for order in [[None, Some(0.1), Some(0.0)], [Some(0.1), None, Some(0.0)], [Some(0.1), Some(0.0), None]] {
            let cells: Vec<_> = names.iter().zip(order).map(|(name, dropout)| with_dropout(name, dropout)).collect();
            for baseline in [None, Some(names[0]), Some(names[1]), Some(names[2])] {
                let settings = CompareSettings { baseline: baseline.map(str::to_owned), ..Default::default() };
                let all = compare_with(&cells, settings);
                assert!(!all.comparable && all.groups.len() == 2, "{order:?} {baseline:?}: {:?}", all.groups);
                let refused: Vec<_> = all.differences.iter().filter(|d| d.refused).collect();
                assert!(matches!(refused[..], [d] if d.field.field == "dropout" && d.field.is_known()), "{refused:?}");
                assert!(all.notes.iter().any(|n| n.contains("is not compared with") && n.contains("dropout")));
                assert_eq!(all.speedups.len(), 1);
                assert!(all.speedups[0].labels.is_empty());
            }
            let crossed =
                compare_with(&cells, CompareSettings { across: vec!["dropout".into()], ..Default::default() });
            assert!(crossed.comparable && crossed.groups.len() == 1);
        }
    }

    #[test]
    fn another_warm_up_is_told_and_gives_no_verdict_unless_asked_for() {
        let mut cells = [
            measured("cpu/native/llama/single", &job(), &[1.0, 1.01, 0.99], None),
            measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
        ];
        let set = |cell: &mut CellInput, steps: u64, steady_state: &str| {
            let CellState::Ok { summary } = &mut cell.state else { unreachable!() };
            (summary.warmup_steps, summary.steady_state) = (steps, steady_state.to_owned());
        };
        set(&mut cells[0], 5, "declared");
        set(&mut cells[1], 9, "declared");
        let all = compare_all(&cells);
        let [speedup] = &all.speedups[..] else { panic!("{:?}", all.speedups) };
        assert_eq!((speedup.significant, speedup.p_value), (None, None));
        assert_eq!(speedup.reason.as_deref(), Some(OTHER_WARMUP));
        assert_eq!(
            (&speedup.labels, &all.rows[1].labels),
            (&vec!["warm-up 9, not 5 steps".to_owned()], &speedup.labels)
        );
        assert!(all.notes.iter().any(|n| n.contains("do not measure the same steps")), "{:?}", all.notes);
        let asked = compare_with(&cells, CompareSettings { across: vec!["warmup".into()], ..Default::default() });
        assert_eq!(asked.speedups[0].significant, Some(true));
        assert_eq!(asked.speedups[0].labels, ["across warm-up 9, not 5 steps"]);
        set(&mut cells[1], 5, "detected");
        let found = &compare_all(&cells).speedups[0];
        assert_eq!((found.significant, &found.labels[0][..]), (None, "warm-up detected, not declared"));
        set(&mut cells[1], 5, "declared");
        assert_eq!(compare_all(&cells).speedups[0].significant, Some(true));
    }

    #[test]
    fn precision_may_differ_under_maximum_performance_only() {
        let mut fp8 = job();
        fp8.precision = "fp8".into();
        let cells = |strategy: &str| {
            [
                measured(&format!("nvd/nemo/llama/{strategy}"), &job(), &[1.0, 1.1, 1.2], None),
                measured(&format!("amd/prim/llama/{strategy}"), &fp8, &[1.0, 1.1, 1.2], None),
            ]
        };
        let open = compare_all(&cells("maximum_performance"));
        assert!(open.comparable);
        assert_eq!(open.speedups[0].labels, ["precision: fp8, not bf16"]);
        let strict = compare_all(&cells("identical_config"));
        assert!(!strict.comparable && strict.speedups.is_empty());
    }

    #[test]
    fn strategies_and_models_of_one_matrix_stand_apart_without_a_complaint() {
        let mut qwen = job();
        qwen.model.architecture = "qwen2".into();
        let cells = [
            measured("nvd/nemo/llama/maximum_performance", &job(), &[1.0], None),
            measured("nvd/nemo/llama/identical_config", &job(), &[1.0], None),
            measured("nvd/nemo/qwen/maximum_performance", &qwen, &[1.0], None),
        ];
        let all = compare_all(&cells);
        assert!(all.comparable && all.groups.len() == 3);
        let asked =
            compare_with(&[cells[0].clone(), cells[2].clone()], CompareSettings { named: true, ..Default::default() });
        assert!(!asked.comparable);
    }

    #[test]
    fn cells_without_figures_are_listed_with_their_reason() {
        let failed = CellState::Failed { class: FailureClass::Oom, evidence: vec!["CUDA out of memory".into()] };
        let comparison = compare_all(&[
            cell("a/b/c/d", failed),
            cell("a/b/c/e", CellState::Missing { reason: "not run".into() }),
            cell("a/b/c/f", CellState::Unsupported { reason: "Primus needs AMD".into() }),
            measured("a/b/c/g", &job(), &[], None),
        ]);
        let states: Vec<_> = comparison.absent.iter().map(|r| r.state.as_str()).collect();
        assert_eq!(states, ["failed", "missing", "unsupported", "unmeasured"]);
        assert_eq!(comparison.absent[0].reason, "oom: CUDA out of memory");
        assert!(comparison.rows.is_empty() && comparison.comparable);
    }

    #[test]
    fn repeats_that_do_not_count_are_totalled_over_rows_and_absent_cells_with_their_reason() {
        let run = |times: &[f64]| run_of(&job(), times, json!({"global_batch_size": 8}));
        let of = |name: &str, runs: Vec<RunResult>| {
            let runs: Vec<_> = (1..).zip(runs).collect();
            cell(name, CellState::Ok { summary: Box::new(summarize(&runs, &Statistics { warmup_steps: 1 })) })
        };
        let nan = || {
            let mut trace = run(&[3.0, 1.0]).trace;
            trace.anomalies.push(Anomaly { kind: "nan_loss".into(), detail: "loss is nan".into() });
            let asked = Job { train_iters: 2, ..job() };
            RunResult::from(trace, &asked, facts(RunOutcome::Ok))
        };
        let contradicted = run_of(&job(), &[3.0, 1.0], json!({"global_batch_size": 64}));
        let oom = CellState::Failed { class: FailureClass::Oom, evidence: vec![] };
        let all = compare_all(&[
            of("a/b/c/d", vec![run(&[3.0, 1.0]), nan(), run(&[3.0])]),
            of("a/b/c/e", vec![run(&[3.0])]),
            of("a/b/c/f", vec![nan(), contradicted]),
            cell("a/b/c/g", oom),
            cell("a/b/c/h", CellState::Missing { reason: "not run".into() }),
        ]);
        assert_eq!((all.failed, all.contradicted, all.unmeasured), (3, 1, 2));
        let row = &all.rows[0];
        assert_eq!((row.n, row.failed, row.contradicted, row.unmeasured), (1, 1, 0, 1));
        for said in ["repeat 2 failed (nan): loss is nan", "repeat 3 is not counted: no timed step", "1 of 3 repeats"] {
            assert!(
                all.notes.iter().any(|n| n.starts_with("a/b/c/d: ") && n.contains(said)),
                "{said}: {:?}",
                all.notes
            );
        }
        let absent: Vec<_> = all.absent.iter().map(|a| (a.state.as_str(), a.reason.as_str())).collect();
        assert!(absent[0].0 == "unmeasured" && absent[0].1.contains("no timed step"), "{absent:?}");
    }

    #[test]
    fn what_only_the_job_states_is_said() {
        let mut cell = measured("cpu/native/llama/single", &job(), &[1.0], None);
        let note = |cell: &CellInput| {
            let all = compare_all(std::slice::from_ref(cell));
            all.notes.into_iter().find(|n| n.ends_with(": declared, not stated by the trainer."))
        };
        assert!(note(&cell).unwrap().contains("llama/single: architecture, num_layers, hidden_size and 1"));
        assert!(compare_all(std::slice::from_ref(&cell)).rows[0].declared_only.iter().any(|f| f == "optimizer"));
        let mut keep = |declared: &[&str]| {
            let CellState::Ok { summary } = &mut cell.state else { unreachable!() };
            for field in &mut summary.contract.0 {
                field.source = if declared.contains(&&*field.field) { Source::Declared } else { Source::Effective };
            }
            note(&cell)
        };
        let two = "cpu/native/llama/single: optimizer, data: declared, not stated by the trainer.";
        assert_eq!(keep(&["data", "optimizer", "seed"]).as_deref(), Some(two));
        assert_eq!(keep(&["seed"]), None);
    }

    #[test]
    fn the_baseline_can_be_named_and_identical_launches_are_noted() {
        let mut cells = [
            measured("cpu/native/llama/single", &job(), &[1.0, 1.1], None),
            measured("cpu/tran/llama/single", &job(), &[2.0, 2.1], None),
        ];
        cells[1].same_launch_as = Some(cells[0].cell.clone());
        let named = CompareSettings { baseline: Some("cpu/tran/llama/single".into()), ..Default::default() };
        let comparison = compare_with(&cells, named);
        assert_eq!(comparison.speedups[0].b, "cpu/tran/llama/single");
        assert!(comparison.notes.iter().any(|n| n.contains("very same bytes")));
        let absent = CompareSettings { baseline: Some("x".into()), ..Default::default() };
        assert!(compare_with(&cells, absent).notes.iter().any(|n| n.contains("has no figures")));
    }

    #[test]
    fn mfu_needs_a_known_device() {
        let mfu =
            |device| compare_all(&[measured("nvd/native/llama/single", &job(), &[1.0], device)]).rows[0].mfu.clone();
        assert!(matches!(mfu(Some(("cuda", "NVIDIA H100 80GB HBM3"))), Mfu::Ok { .. }));
        assert!(matches!(mfu(Some(("cpu", "EPYC"))), Mfu::Absent { reason } if reason.contains("CPU")));
        assert!(matches!(mfu(None), Mfu::Absent { .. }));
    }
}
