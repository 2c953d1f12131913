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
    /// Files that the runs were imported from; empty for what tprimat measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<String>,
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
    /// Files that the runs were imported from; empty for what tprimat measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<String>,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<String>,
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
    let mut refused = refused(&arms, &grouped, settings);
    refused.extend(refused_without_figures(cells, &arms, settings));
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
        imported: cell.imported.clone(),
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

/// Two cells were named, and one has no figures that count: what forbids the comparison is told all the same.
fn refused_without_figures(cells: &[CellInput], arms: &[Arm<'_>], settings: &CompareSettings) -> Vec<Difference> {
    let ([a, b], true) = (cells, settings.named && arms.len() < 2) else { return Vec::new() };
    let (CellState::Ok { summary: of_a }, CellState::Ok { summary: of_b }) = (&a.state, &b.state) else {
        return Vec::new();
    };
    let forbids = |d: &FieldDifference| d.is_known() && d.tier == Tier::Workload && !settings.across.contains(&d.field);
    let found = differences(&of_b.contract, &of_a.contract).into_iter().filter(forbids);
    let told = |field| Difference { cell_a: b.cell.clone(), cell_b: a.cell.clone(), field, refused: true };
    found.map(told).collect()
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
    // What somebody else measured is not what we did, whatever its figures are.
    let imported = (a.cell.imported.is_empty() != b.cell.imported.is_empty())
        .then(|| format!("{} is imported", if a.cell.imported.is_empty() { &b.cell.cell } else { &a.cell.cell }));
    imported.into_iter().chain(warmup).chain(known.map(label)).collect()
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
        imported: cell.imported.clone(),
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
    let peak = if ["", "not stated"].contains(&precision) {
        Err("the precision is not stated".to_owned())
    } else if device.is_some_and(|d| d.r#type == "cpu") {
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
pub(crate) mod tests;
