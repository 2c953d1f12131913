//! The comparison as data: what every table, picture, page and gate is made from, and nothing else.

use std::{collections::BTreeMap, fmt, num::NonZeroUsize};

use crate::results::{
    Attestation, AttestationStatus, Contract, CorrectedTest, FieldDifference, Reason,
    settings::WARMUP, words::short,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use tprimat_job::FailureClass;

use crate::figures::{
    Dropped, Estimate, Figure, Memory, Metrics, Note, RepeatStatus, RepeatSummary, StepTime,
    Summary, UncountedRepeats,
    codes::{CONTRADICTED, NOT_COUNTED, UNIT_ASKED},
    summary::attempts,
};

/// A share of the peak that no training of a size to compare stays below.
pub(crate) const LOW_MFU: f64 = 0.01;

pub const COMPARISON_SCHEMA: &str = "tprimat.comparison/1";

/// One cell of the matrix, with what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellInput {
    pub cell: String,
    pub platform: String,
    pub framework: String,
    pub model: String,
    pub parallelism: String,
    pub axes: BTreeMap<String, String>,
    pub repeats_wanted: u32,
    pub state: CellState,
    /// An earlier cell whose launch files are the same bytes: their difference is noise.
    pub same_launch_as: Option<String>,
    /// Files that the runs were imported from; empty for what tprimat measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<String>,
    pub environment: CellEnvironment,
    #[serde(default, skip_serializing_if = "Standing::is_present")]
    pub standing: Standing,
}

/// How a cell's figures stand to the present configuration; by default they are all of it, and all
/// there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Standing {
    /// Why they are figures of an earlier configuration: `measured before training.seq_length
    /// changed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<String>,
    /// Repeats that are still to be measured.
    pub to_come: u32,
}

impl Standing {
    #[must_use]
    pub fn is_present(&self) -> bool {
        *self == Self::default()
    }

    /// `measured before training.seq_length changed`, `1 still to be measured`; empty where nothing
    /// is to be said.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let to_come = (self.to_come > 0).then(|| format!("{} still to be measured", self.to_come));
        self.earlier.clone().into_iter().chain(to_come).collect()
    }
}

/// What a cell's runs were started in, as far as tprimat knows; never a secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellEnvironment {
    /// Variables that config and recipe set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// Host and software facts of tprimat.lock: `driver`, `torch`, …
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum CellState {
    Ok {
        summary: Box<Summary>,
    },
    Failed {
        class: FailureClass,
        evidence: Vec<String>,
        /// How many repeats failed.
        repeats: usize,
    },
    Missing {
        reason: String,
    },
    Unsupported {
        reason: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareSettings {
    /// Fields of the workload, or `warmup`, that may differ; every figure that crosses one says so.
    pub across: Vec<String>,
    /// Cell that others are divided by, in place of the first of each group.
    pub baseline: Option<String>,
    /// The user named the cells, so every pair of them was asked for; otherwise only cells of one
    /// model and strategy kind are expected to be comparable.
    pub named: bool,
}

impl CompareSettings {
    #[must_use]
    pub fn crosses_warmup(&self) -> bool {
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvironmentDifference>,
    /// Cells without figures, in matrix order.
    pub absent: Vec<AbsentCell>,
    /// Repeats of all cells, with figures or without; a cell that failed as a whole is one of them.
    #[serde(flatten)]
    pub uncounted: UncountedRepeats,
    pub notes: Vec<Note>,
}

#[skip_serializing_none]
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
    /// Index into `groups`; in files its number, counted from 1 as in CSV.
    #[serde(with = "counted_from_1")]
    #[schemars(with = "NonZeroUsize")]
    pub group: usize,
    /// Losses may share an axis only among rows of one group that have the same number here: the
    /// others trained on other data, from other weights or by another schedule.
    #[serde(with = "counted_from_1")]
    #[schemars(with = "NonZeroUsize")]
    pub loss_group: usize,
    /// Repeats that count, of those wanted.
    pub n: usize,
    pub repeats_wanted: u32,
    #[serde(flatten)]
    pub uncounted: UncountedRepeats,
    #[serde(default, skip_serializing_if = "Standing::is_present")]
    pub standing: Standing,
    /// Repeats were added when the results of fewer were there to be looked at.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeats_added_later: bool,
    /// How many times too high the rate may be, by the clock; absent where the clock has nothing
    /// against it.
    pub timer_factor: Option<f64>,
    /// Steps declared to be warm-up.
    pub warmup_steps: u64,
    /// The name of the rule that found the measured part.
    pub steady_state: String,
    /// Other measurements of its repeats, which do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
    pub tokens_per_second_per_gpu: Estimate,
    pub tokens_per_second: Option<f64>,
    pub step_time: StepTime,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Memory>,
    /// What one device has: the driver's count as tprimat.lock has it, else what its maker states.
    pub memory_capacity_bytes: Option<u64>,
    /// Model FLOPs utilisation: the achieved share of the dense peak.
    pub mfu: Figure,
    pub loss_at_end: Option<f64>,
    pub last_step: Option<u64>,
    pub precision: String,
    pub device: Option<String>,
    pub attestation: AttestationStatus,
    /// Fields of the workload that only the job states, not the trainer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub declared_only: Vec<String>,
    /// How this cell differs from its group's baseline; shown wherever it is. `crossed`: it was
    /// asked for to compare across the setting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Reason>,
    /// Settings that alone can decide a comparison, each with the reason; also those that the
    /// baseline shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Reason>,
    /// An earlier cell whose launch files are the same bytes: their difference is noise.
    pub same_launch_as: Option<String>,
    /// An earlier cell of the group that has the same runs, imported twice: so there is nothing to
    /// compare.
    pub same_runs_as: Option<String>,
    /// Cost, efficiency, time: docs/METRICS.md. In place of these figures, of the settings and of the runs, the
    /// published compare.json leaves them to the cell's own file.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
    #[serde(default, skip_serializing_if = "Contract::is_empty")]
    pub contract: Contract,
    /// What the trainer states and tprimat has no setting for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unlisted: BTreeMap<String, serde_json::Value>,
    /// Field by field, of the repeat that speaks for the cell.
    pub attested: Option<Attestation>,
    pub environment: CellEnvironment,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Tokens of an optimiser step over all devices.
    pub tokens_per_step: Option<u64>,
    /// Every repeat, also those that do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<RepeatSummary>,
}

/// An index whose files have its number.
mod counted_from_1 {
    use std::num::NonZeroUsize;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(index: &usize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*index as u64 + 1)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        Ok(NonZeroUsize::deserialize(from)?.get() - 1)
    }
}

impl Comparison {
    /// Every row by its cell: a look through all rows for each of them would grow with the square
    /// of a sweep.
    #[must_use]
    pub fn rows_by_cell(&self) -> BTreeMap<&str, &Row> {
        self.rows
            .iter()
            .map(|row| (row.cell.as_str(), row))
            .collect()
    }

    /// The cells with runs that do not count: first those that have figures all the same, each part
    /// in matrix order.
    #[must_use]
    pub fn cells_with_uncounted(&self) -> Vec<&str> {
        let rows = self.rows.iter().map(|row| (&row.cell, &row.repeats));
        let absent = self.absent.iter().map(|a| (&a.cell, &a.repeats));
        rows.chain(absent)
            .filter(|(_, repeats)| repeats.iter().any(|r| r.status != RepeatStatus::Ok))
            .map(|(cell, _)| cell.as_str())
            .collect()
    }

    /// In what else each cell differs from the baseline of its group, by the cell.
    #[must_use]
    pub fn environment_by_cell(&self) -> BTreeMap<&str, &[EnvironmentDifference]> {
        let of_cell = self.environment.chunk_by(|a, b| a.cell_a == b.cell_a);
        of_cell.map(|all| (all[0].cell_a.as_str(), all)).collect()
    }

    /// How each cell compares with the baseline of its group, by the cell.
    #[must_use]
    pub fn speedups_by_cell(&self) -> BTreeMap<&str, &Speedup> {
        self.speedups
            .iter()
            .map(|speedup| (speedup.a.as_str(), speedup))
            .collect()
    }
}

impl Row {
    /// Why its rate, and all that is made of it, cannot be.
    #[must_use]
    pub fn impossible(&self) -> Option<&Reason> {
        if let Figure::Error { reason } = &self.mfu {
            Some(reason)
        } else {
            None
        }
    }

    /// The question whether its step times are in seconds, where they are of a size that asks for it.
    #[must_use]
    pub fn asks_for_its_unit(&self) -> Option<Reason> {
        const LONG: f64 = 10.0;
        const VERY_LONG: f64 = 1000.0;
        let seconds = self.step_time.mean_seconds;
        let mfu = self.mfu.value();
        let asks = match mfu {
            Some(mfu) => mfu < LOW_MFU && seconds >= LONG,
            None => seconds >= VERY_LONG && !is_host(&self.platform),
        };
        let low = mfu.map_or_else(String::new, |mfu| {
            format!(" and an MFU of {} %", short(mfu * 100.0))
        });
        asks.then(|| {
            let seconds = short(seconds);
            let text = format!("{seconds} s a step{low}: are its step times in milliseconds?");
            Reason::beside(UNIT_ASKED, text).with("step_time", self.step_time.mean_seconds)
        })
    }

    /// Steps declared to be warm-up, and the name of the rule that found the measured part.
    #[must_use]
    pub fn warm_up(&self) -> (u64, &str) {
        (self.warmup_steps, &self.steady_state)
    }

    /// Are their counted repeats the same attempts? Then they are one cell under two names.
    #[must_use]
    pub fn is_measured_as(&self, other: &Self) -> bool {
        let own = attempts(&self.repeats);
        !own.is_empty() && own == attempts(&other.repeats)
    }
}

/// Cells of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    pub model: String,
    /// `bf16, sequence 2048, global batch 128, 8 devices`: what all of them ran. Where fields are
    /// crossed, every value and the names of the fields: `global batch 64/128, 8 devices, across
    /// global_batch_size`.
    pub workload: String,
    /// Fields in which members differ, and that were asked to be compared across.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub across: Vec<String>,
    /// Nothing may differ here.
    pub identical_config: bool,
    pub baseline: String,
    pub cells: Vec<String>,
}

impl Group {
    /// Was it asked for to compare its members although their warm-up differs?
    #[must_use]
    pub fn crosses_warmup(&self) -> bool {
        self.across.iter().any(|field| field == WARMUP)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Speedup {
    pub a: String,
    /// The baseline.
    pub b: String,
    /// tokens/s/GPU of a ÷ of b.
    pub ratio: f64,
    /// Cost per token of a ÷ of b; below 1, a is cheaper.
    pub cost_ratio: Figure,
    /// Seconds between the nearest runs of a and b, where these were not measured in turns: no session
    /// has runs of both, or all runs of one were made before those of the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart_seconds: Option<f64>,
    /// Absent with one unit in a candidate, or where nothing varies.
    pub interval: Option<RatioInterval>,
    /// An earlier cell that has the same measurements as `a`: this is its comparison under another
    /// name, and is not counted again in the correction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
    /// After Holm's correction over all pairs of cells that the comparison judges, those of its sweeps
    /// among them; null = not assessed, see `reason`.
    pub significant: Option<bool>,
    /// Corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// Units of replication: repeats, sessions or hosts, as the rows' estimates say.
    pub n_a: usize,
    pub n_b: usize,
    /// How many pairs of runs the ratio and its test are made of, where runs of a or b were added until a
    /// decision (`build --decide`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    /// What would change the verdict, or move the ratio by more than its interval: steps that were left
    /// out as warm-up, and outliers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<Reason>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Reason>,
    /// Why there is no interval or no verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// What the rates of these cells are in.
pub fn rate_unit<'a>(rows: impl Iterator<Item = &'a Row>) -> &'static str {
    unit_of(rows.map(|row| row.platform.as_str()))
}

/// The same for cells by their names, which begin with their platforms.
pub fn rate_unit_of<'a>(cells: impl IntoIterator<Item = &'a str>) -> &'static str {
    unit_of(cells.into_iter().map(platform_of))
}

/// The platform of a cell, which its name begins with.
#[must_use]
pub fn platform_of(cell: &str) -> &str {
    cell.split_once('/').map_or(cell, |(platform, _)| platform)
}

/// The framework of a cell, the second part of its name.
#[must_use]
pub fn framework_of(cell: &str) -> &str {
    cell.split('/').nth(1).unwrap_or(cell)
}

/// The same within a sentence.
#[must_use]
pub fn unit_in_prose(unit: &str) -> String {
    unit.replace("/GPU", " per GPU")
}

/// Is a device of this platform the whole host, and no GPU?
#[must_use]
pub fn is_host(platform: &str) -> bool {
    platform == "cpu"
}

fn unit_of<'a>(mut platforms: impl Iterator<Item = &'a str>) -> &'static str {
    if platforms.all(is_host) {
        "tokens/s"
    } else {
        "tokens/s/GPU"
    }
}

/// The interval of a ratio of two rates, by Welch's t on logarithms, or over pairs of runs
/// ([`Speedup::pairs`]). Where there is a verdict, the
/// interval excludes 1 exactly if the difference is `significant`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RatioInterval {
    pub low: f64,
    pub high: f64,
    /// 0.95, or more where the table has several comparisons.
    pub confidence: f64,
}

impl RatioInterval {
    /// None where an end is too far off to be a number.
    pub(crate) fn of([low, high]: [f64; 2], confidence: f64) -> Option<Self> {
        (low.is_finite() && high.is_finite()).then_some(Self {
            low,
            high,
            confidence,
        })
    }

    pub(crate) fn of_test(test: &CorrectedTest) -> Option<Self> {
        Self::of(test.interval()?, test.confidence)
    }
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

/// In what way a cell has no figures; what went wrong comes first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum AbsentState {
    /// The logs contradict the job.
    Contradicted,
    Failed,
    /// Something disturbed every run.
    Suspect,
    /// It ran, and no step was measured.
    Unmeasured,
    /// It has not run.
    Missing,
    Unsupported,
}

impl AbsentState {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Contradicted => "contradicted",
            Self::Failed => "failed",
            Self::Suspect => "suspect",
            Self::Unmeasured => "unmeasured",
            Self::Missing => "missing",
            Self::Unsupported => "unsupported",
        }
    }
}

/// For people. Runs that ended well, and of which nothing failed, are "not counted"; a failure that
/// the log alone reports is "failed", since figures do not know how a process ended.
impl fmt::Display for AbsentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Contradicted | Self::Suspect | Self::Unmeasured => "not counted",
            Self::Failed | Self::Missing | Self::Unsupported => self.name(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AbsentCell {
    pub cell: String,
    pub state: AbsentState,
    pub reason: Reason,
    /// Repeats that contradict the cell's job.
    pub contradicted: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<String>,
    pub contract: Contract,
    /// Field by field: which one contradicts the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attested: Option<Attestation>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<RepeatSummary>,
    /// Repeats that failed and are not among `repeats`, because no build has parsed their logs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl AbsentCell {
    /// Why it has no figures, behind its state where the reason does not say that itself: `failed:
    /// oom: …`, `repeat 1 is not counted: …`
    #[must_use]
    pub fn told(&self) -> String {
        if self.reason.is(NOT_COUNTED) {
            self.reason.text.clone()
        } else {
            format!("{}: {}", self.state, self.reason)
        }
    }

    /// How many of its repeats do not count, by why; `None` where the cell has no runs.
    #[must_use]
    pub fn uncounted(&self) -> Option<UncountedRepeats> {
        let has_runs = self.failed > 0 || !self.repeats.is_empty();
        let mut counts = UncountedRepeats::of(&self.repeats);
        counts.failed += self.failed;
        // Each of them is as its job asks, and beside another cell they are not.
        if self.reason.is(CONTRADICTED) && counts.contradicted == 0 {
            counts.contradicted = self.repeats.len();
        }
        has_runs.then_some(counts)
    }
}

/// Who states something that a cell ran in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EnvironmentKind {
    /// The environment of its runs.
    Variable,
    /// What its trainer prints, or tprimat.lock says of Python's packages.
    Version,
    /// What else tprimat.lock says of the host.
    Fact,
}

/// Something besides the workload that is not the same in two cells of a group.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentDifference {
    pub cell_a: String,
    /// The group's baseline.
    pub cell_b: String,
    pub kind: EnvironmentKind,
    pub name: String,
    pub a: Option<String>,
    pub b: Option<String>,
    /// Why this alone can decide a comparison, where it can: `CUDA_LAUNCH_BLOCKING`.
    pub dangerous: Option<String>,
    /// It must differ, because the two differ in this: `vendor`, `platform` or `framework`.
    pub follows: Option<String>,
}
