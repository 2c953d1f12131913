//! What one log says: the per-step series and the effective settings, with nothing made up.
//!
//! Every field is an `Option` or a list: what the log does not state is absent, never 0.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use tprimat_job::FailureClass;

#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// Name of the log format, as in a recipe's `[log] format`.
    pub format: String,
    /// Sorted by step; each step once.
    pub steps: Vec<Step>,
    /// Lines that state a step, also those that other ranks or a resumed run repeat.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub step_lines: u64,
    /// The processes of the trainer, where the log has several, or where its only one goes on from an
    /// earlier one; `process` of a step is a place in it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub processes: Vec<Process>,
    pub effective: Effective,
    /// Settings that a later start states otherwise, or that only it states; the first one counts.
    #[serde(skip_serializing_if = "Effective::is_empty", default)]
    pub restated: Effective,
    /// Parameters of the whole model.
    pub num_parameters: Option<u64>,
    /// The most that one tensor- and pipeline-parallel rank says that it holds.
    pub num_parameters_per_rank: Option<u64>,
    /// Memory that ranks report apart from steps.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub memory: Vec<MemoryReport>,
    /// Lines of such reports, of which at most [`MAX_REPORTS`] are kept.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub memory_lines: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub evaluations: Vec<Evaluation>,
    /// What the log states of the whole run, by the log's own words with the unit at the end:
    /// `train_runtime_seconds`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub totals: BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub telemetry: Vec<TelemetrySample>,
    pub device: Option<DeviceLine>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub versions: BTreeMap<String, String>,
    pub failure: Option<Failure>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub anomalies: Vec<Anomaly>,
    pub unreadable: Option<UnreadableLines>,
    /// Lines of steps have no numbers and were counted: what is step k there may be a later step of
    /// the run.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub steps_assumed: bool,
    /// The trainer does not say when each of its steps ended: `ended_at` is when a line was seen,
    /// which may be late.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub dated_by_lines: bool,
    /// When steps had ended, where the trainer times none of them and its progress bar counts seconds.
    pub clock: Option<CoarseClock>,
    /// The trainer said that it reached its end.
    pub finished: bool,
}

impl Trace {
    /// What the time of the whole run has in it beside its steps at their usual speed.
    #[must_use]
    pub fn beside_steps(&self) -> &'static str {
        match self.evaluations.is_empty() {
            true => "the start-up and the slower first steps",
            false => "the start-up, the slower first steps and the evaluations",
        }
    }
}

/// The clock of a progress bar, which shows whole seconds. A step time is made of two readings that lie so far
/// apart that an error of a second changes it by 5 % at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoarseClock {
    /// Steps, and the seconds since the beginning at which they had ended, both rising.
    pub ends: Vec<(u64, f64)>,
    /// The last step of the run and its time with the start-up, as the summary at its end says.
    pub whole_run: Option<(u64, f64)>,
}

impl CoarseClock {
    /// By how many seconds a difference of two readings may be wrong.
    const ERROR_SECONDS: f64 = 1.0;
    /// The part of a time that its error may be.
    const MOST_ERROR: f64 = 0.05;
    /// Times that a long run is cut into at most.
    const MOST_TIMES: f64 = 40.0;
    /// Readings that are kept.
    const MOST_ENDS: usize = 2048;

    #[must_use]
    pub fn new(ends: &[(u64, f64)]) -> Self {
        let every = ends.len().div_ceil(Self::MOST_ENDS).max(1);
        let mut kept: Vec<_> = ends.iter().copied().step_by(every).collect();
        kept.extend(ends.last().filter(|last| kept.last() != Some(last)));
        Self {
            ends: kept,
            whole_run: None,
        }
    }

    /// Takes in what the summary at the end says of the whole run. Its time has fractions of a second: where it is that of
    /// the last bar, and not of something that was done before or behind the steps, it replaces the bar's.
    pub fn ends_with(&mut self, steps: u64, seconds: f64) {
        let Some(last) = self.ends.last_mut() else {
            return;
        };
        self.whole_run = Some((steps, seconds));
        if last.0 == steps && (0.0..Self::ERROR_SECONDS).contains(&(seconds - last.1)) {
            last.1 = seconds;
        }
    }

    /// The least time between two of these readings from which a step time may be made.
    #[must_use]
    pub fn least_seconds(ends: &[(u64, f64)]) -> f64 {
        let seconds = |end: Option<&(u64, f64)>| end.map_or(0.0, |(_, seconds)| *seconds);
        let all = seconds(ends.last()) - seconds(ends.first());
        (Self::ERROR_SECONDS / Self::MOST_ERROR).max(all / Self::MOST_TIMES)
    }
}

/// One process of the trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// The line with which it begins, from 1; 0 where it is that of the log.
    pub line: u64,
    /// The first step that it does, or that the log shows of it; absent where it is the run's first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_step: Option<u64>,
}

/// Kind of the anomaly of a log that goes on with another run, of which nothing is kept.
pub const SECOND_RUN: &str = "second_run";
/// Kind of the anomaly of a process that begins within the log.
pub const RESTART: &str = "restart";

/// How many steps the loss of a step's line is the mean of, where its time is that of one.
pub const LOSS_STEPS_AVERAGED: &str = "loss_steps_averaged";

/// Kind of the anomaly of a log whose only time is that of the whole run, its start included.
pub const WHOLE_RUN: &str = "whole_run";

/// Kind of the anomaly of a log whose epochs end with smaller steps.
pub const PARTIAL_BATCHES: &str = "partial_batches";

/// Sequences of an optimiser step on average, a total of a log whose epochs end with smaller steps.
pub const MEAN_BATCH: &str = "mean_global_batch_size";

/// Kind of the anomaly of a step whose time cannot be one; its detail begins with `step N: `.
pub const ABSURD_STEP_TIME: &str = "absurd_step_time";

/// Reports, evaluations and samples that a trace keeps of each kind.
pub const MAX_REPORTS: usize = 4096;

/// Anomalies of a line that begins as its format's lines do and cannot be read.
pub const UNREADABLE: [&str; 2] = ["unreadable_line", "truncated"];

/// Anomaly of a line that was read but for a value in it.
pub(super) const UNREADABLE_FIELD: &str = "unreadable_field";

/// Anomalies that say of a step that its loss is not a number.
pub(super) const NAN_LOSSES: [&str; 2] = ["nan_loss", "divergence"];

impl Trace {
    /// The number of a step within its process, from 1; `counts_from`: the log's number of the run's
    /// first step.
    #[must_use]
    pub fn ordinal(&self, step: &Step, counts_from: u64) -> u64 {
        let process = self.processes.get(step.process as usize);
        let first = process.and_then(|process| process.first_step);
        (step.step.saturating_add(1)).saturating_sub(first.unwrap_or(counts_from.min(1)))
    }

    /// How often an anomaly of this kind is in the log: the first ones are kept, and behind them how many more there are.
    #[must_use]
    pub fn occurrences(&self, kind: &str) -> u64 {
        let of_kind = self.anomalies.iter().filter(|a| a.kind == kind);
        let count = |a: &Anomaly| {
            let more = a.detail.strip_prefix("and ")?.strip_suffix(" more")?;
            more.parse().ok().filter(|_| a.step.is_none())
        };
        of_kind.map(|a| count(a).unwrap_or(1)).sum()
    }

    /// What the log says of losses that are not numbers.
    pub fn nan_losses(&self) -> impl Iterator<Item = &Anomaly> {
        self.anomalies
            .iter()
            .filter(|a| NAN_LOSSES.contains(&a.kind.as_str()))
    }

    /// Did training come to its end?
    pub(super) fn ended(&self) -> bool {
        let asked = self
            .effective
            .0
            .get("train_iters")
            .and_then(serde_json::Value::as_u64);
        self.finished
            || self
                .steps
                .last()
                .zip(asked)
                .is_some_and(|(last, asked)| last.step >= asked)
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn is_first(process: &u32) -> bool {
    *process == 0
}

/// One optimiser step, or the mean over `steps_averaged` of them ending with `step`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// The log's own number: most trainers' first step is 1; NeMo, nanoGPT and MaxText begin with 0.
    pub step: u64,
    /// Which of the log's `processes` did it.
    #[serde(skip_serializing_if = "is_first", default)]
    pub process: u32,
    /// How many steps step time and loss are a mean of; absent = 1.
    pub steps_averaged: Option<u64>,
    /// When it ended, in seconds since 1970, or since the process began where the log says no more: as
    /// the trainer or the date of its line says, else when its line was seen in the log.
    pub ended_at: Option<f64>,
    /// When tprimat saw the line, where `ended_at` is the trainer's own word.
    pub seen_at: Option<f64>,
    pub step_time_seconds: Option<f64>,
    /// The time is that of the step and of an evaluation together, so it is not a step time.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub includes_evaluation: bool,
    /// `nan` in a log is kept as the anomaly `nan_loss`, and the loss is absent.
    pub loss: Option<f64>,
    pub learning_rate: Option<f64>,
    pub grad_norm: Option<f64>,
    /// Tokens of this optimiser step over all ranks, as the trainer counted them.
    pub tokens: Option<u64>,
    /// The trainer's own figure.
    pub tokens_per_second_per_gpu: Option<f64>,
    /// The trainer's own figure.
    pub tflops_per_gpu: Option<f64>,
    pub memory_bytes: Option<u64>,
    /// What `memory_bytes` counts: `peak_allocated`, `peak_reserved`, `allocated`, `reserved`,
    /// `device_used`, `process_device_used`, `peak_rss`.
    pub memory_kind: Option<Cow<'static, str>>,
    /// Who counted it: `torch`, `hip`, `rocm-smi`, `nvml`, `proc`.
    pub memory_source: Option<Cow<'static, str>>,
    /// Sequences of this optimiser step over all ranks, as the trainer prints them.
    pub global_batch_size: Option<u64>,
    /// Sequences since the beginning of training.
    pub consumed_samples: Option<u64>,
    /// The trainer's means over earlier steps as well (Primus prints `this/mean`); never used as
    /// this step's values.
    pub running_average: Option<Box<RunningAverage>>,
    /// Further memory figures of the line.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub memory_figures: Vec<MemoryFigure>,
    /// What else the line says, by the log's own word with the unit at the end:
    /// `data_time_seconds`, `mfu_percent`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub other: BTreeMap<Cow<'static, str>, f64>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningAverage {
    pub step_time_seconds: Option<f64>,
    pub tokens_per_second_per_gpu: Option<f64>,
    pub tflops_per_gpu: Option<f64>,
}

impl Step {
    /// How many steps the entry stands for.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.steps_averaged.unwrap_or(1).max(1)
    }
}

/// One memory figure, in bytes whatever the log calls its unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryFigure {
    /// A [`Step::memory_kind`], or `device_free`, `device_total`, `device_used_max_rank` (of the
    /// fullest device).
    pub kind: Cow<'static, str>,
    /// A [`Step::memory_source`].
    pub source: Cow<'static, str>,
    pub bytes: u64,
}

/// What one rank says of its memory after some step.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReport {
    pub rank: Option<u64>,
    pub after_step: Option<u64>,
    pub figures: Vec<MemoryFigure>,
}

/// A value measured on held-out data.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evaluation {
    pub step: Option<u64>,
    /// Sequences so far, where the log counts these instead of steps (MLPerf).
    pub samples: Option<u64>,
    /// `validation_loss`, `eval_accuracy`, `perplexity`, …
    pub name: String,
    pub value: f64,
}

/// One reading of one device by nvidia-smi, rocm-smi or amd-smi; what the tool does not know is
/// absent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TelemetrySample {
    /// The tool's number of the device, behind the host's name where lines have one: `node7/3`.
    pub device: String,
    /// The tool's own text.
    pub timestamp: Option<String>,
    pub name: Option<String>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    /// Hardware counter, from whenever it began.
    pub energy_joules: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub utilization_percent: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub clock_mhz: Option<f64>,
    pub memory_clock_mhz: Option<f64>,
}

/// Settings as the trainer itself reports them, by the job's names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Effective(pub BTreeMap<String, serde_json::Value>);

impl Effective {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceLine {
    /// `cpu` or `cuda` (ROCm builds of PyTorch say `cuda` as well).
    pub r#type: String,
    pub name: Option<String>,
    pub count: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    pub class: FailureClass,
    /// The lines of the log that say so, at most a few, cut to a readable length.
    pub evidence: Vec<String>,
}

/// Lines of a log that begin as its format's lines do and cannot be read: cut off, or mixed with
/// another process's. What they would have said is in no figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadableLines {
    pub count: u64,
    /// The number of the first of them, from 1.
    pub first: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Anomaly {
    /// `nan_loss`, `missing_steps`, `duplicate_step`, `truncated`, `unreadable_line`, …
    pub kind: String,
    pub detail: String,
    /// The step that it is about, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}
