//! A cell's job, results and summary → the JSON that is published, a superset of the field's
//! unified format.
//!
//! Names ending in `_gb` are decimal gigabytes, as in the files that this format comes from.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_job::{Job, ModelShape, Vendor, count_parameters};
use tprimat_logs::Step;
use tprimat_results::{Attestation, Contract, FlopsPerToken, RunResult, Tier, mean};

use super::{
    CellInput, CellState, Estimate, Memory, Metrics, Mfu, Note, RepeatStatus, Row, StepTime,
    Summary, Telemetry, all_hosts,
};

pub const UNIFIED_SCHEMA: &str = "tprimat.unified/1";

/// `output/train_<platform>_<framework>_<model>.json`; what is not known is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unified {
    pub schema_version: String,
    pub cell: String,
    /// Digest of the cell's aggregate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub platform: String,
    pub framework: String,
    pub model: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub axes: BTreeMap<String, String>,
    /// Start of the run that the series below are of, RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    pub gpu_info: GpuInfo,
    pub model_info: ModelInfo,
    pub parallelism_config: ParallelismConfig,
    pub training_config: TrainingConfig,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub performance_metrics: Option<PerformanceMetrics>,
    pub memory_metrics: MemoryMetrics,
    /// What was sampled beside the run that the series are of, over its measured steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
    /// The log's numbers of the optimiser steps that the series are of, in the first repeat that
    /// counts.
    pub steps: Vec<u64>,
    /// Seconds, by step, of the first repeat that counts; null where the log has none.
    pub step_times: Vec<Option<f64>>,
    pub loss_values: Vec<Option<f64>>,
    pub learning_rates: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<Attestation>,
    pub contract: Contract,
    pub environment: Environment,
    pub provenance: Provenance,
    pub repeats: Vec<UnifiedRepeat>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuInfo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// The memory of one device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_memory_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pytorch_version: Option<String>,
    /// `cuda`, `rocm` or `cpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software_stack: Option<String>,
    /// The version of that stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software_version: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelInfo {
    #[serde(flatten)]
    pub shape: ModelShape,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_parameters: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_per_token: Option<FlopsPerToken>,
}

/// Effective where stated, else declared; see `contract` for which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParallelismConfig {
    pub strategy_name: String,
    #[serde(flatten)]
    pub sizes: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingConfig {
    pub max_steps: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_gpus: Option<u64>,
    pub parallel_strategy: String,
    pub precision: String,
}

/// Over the repeats that count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PerformanceMetrics {
    /// Measured optimiser steps of all repeats that count.
    pub total_steps: u64,
    pub avg_step_time_seconds: f64,
    /// Over measured steps of all repeats that count.
    pub min_step_time_seconds: f64,
    pub max_step_time_seconds: f64,
    pub step_time: StepTime,
    pub steps_per_second: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    pub tokens_per_second_per_gpu: f64,
    /// The same with its interval and its repeats.
    pub estimate: Estimate,
    pub mfu: Mfu,
    /// Cost, efficiency, time: docs/METRICS.md.
    pub metrics: Metrics,
    pub warmup_steps: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_at_end: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryMetrics {
    /// Mean over the steps of the run that the series are of, where its log states what is
    /// allocated then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avg_memory_allocated_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avg_memory_reserved_gb: Option<f64>,
    /// Mean over the measured part and the devices of the memory in use by any process, as the
    /// driver reports it: more than what the trainer allocates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avg_device_memory_used_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_allocated_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_reserved_gb: Option<f64>,
    /// Every figure with its kind and source, in bytes.
    pub all: Vec<Memory>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Empty where a run does not name its host: the others would not be all of them.
    pub hosts: BTreeSet<String>,
    pub versions: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Provenance {
    /// Version of tprimat that published.
    pub tprimat: String,
    /// Attempts, one a repeat.
    pub attempts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnifiedRepeat {
    pub repeat: u32,
    pub attempt: String,
    pub host: String,
    /// Seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<f64>,
    #[serde(flatten)]
    pub status: RepeatStatus,
    pub attestation: Attestation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
    /// How many repeats the plan wanted when this one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_planned: Option<u32>,
    /// How step times were made, where they are not the trainer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_source: Option<String>,
    /// The log's numbers of the optimiser steps that the series are of.
    pub steps: Vec<u64>,
    /// How many steps each value of the lists below stands for, where the log has one line for several
    /// steps and prints their mean; empty where each value is of one step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps_averaged: Vec<u64>,
    pub step_times: Vec<Option<f64>>,
    pub loss_values: Vec<Option<f64>>,
    pub learning_rates: Vec<Option<f64>>,
}

/// `None` where the cell has no summary. `results` are those that the summary was made of; `row` is
/// the cell's in the comparison, so that what is published is what is compared.
#[must_use]
pub fn unified(
    cell: &CellInput,
    key: Option<&str>,
    job: &Job,
    results: &[(u32, RunResult)],
    row: Option<&Row>,
) -> Option<Unified> {
    let CellState::Ok { summary } = &cell.state else {
        return None;
    };
    let result_of = |repeat: u32| {
        results
            .iter()
            .find(|(n, _)| *n == repeat)
            .map(|(_, result)| result)
    };
    let shown_repeat = summary
        .repeats
        .iter()
        .find(|r| r.status == RepeatStatus::Ok);
    let shown = shown_repeat.and_then(|r| result_of(r.repeat));
    let contract = &summary.contract;
    let sizes = contract.0.iter().filter(|f| {
        f.tier == Tier::Execution
            && (f.field.ends_with("_parallel_size") || f.field == "gradient_accumulation_steps")
    });
    let device = summary.device.as_ref();
    let (step_times, loss_values, learning_rates) = shown.map(series).unwrap_or_default();
    Some(Unified {
        schema_version: UNIFIED_SCHEMA.to_owned(),
        cell: cell.cell.clone(),
        key: key.map(str::to_owned),
        platform: cell.platform.clone(),
        framework: cell.framework.clone(),
        model: cell.model.clone(),
        axes: cell.axes.clone(),
        timestamp: shown.and_then(|r| rfc3339(r.started_at?)),
        gpu_info: GpuInfo {
            device_count: contract.count("num_gpus"),
            device_name: device.and_then(|d| d.name.clone()),
            total_memory_gb: row
                .and_then(|row| row.memory_capacity_bytes)
                .map(|bytes| bytes as f64 / 1e9),
            pytorch_version: ["torch", "pytorch", "libtorch"]
                .iter()
                .find_map(|n| summary.versions.get(*n).cloned()),
            software_stack: Some(stack(job.vendor).to_owned()),
            software_version: ["cuda", "rocm", "hip"]
                .iter()
                .find_map(|n| summary.versions.get(*n).cloned()),
        },
        model_info: ModelInfo {
            shape: job.model.clone(),
            counted_parameters: count_parameters(&job.model),
            flops_per_token: summary.flops_per_token().cloned(),
        },
        parallelism_config: ParallelismConfig {
            strategy_name: cell.parallelism.clone(),
            sizes: sizes.map(|f| (f.field.clone(), f.value.clone())).collect(),
        },
        training_config: TrainingConfig {
            max_steps: job.train_iters,
            global_batch_size: contract.count("global_batch_size"),
            micro_batch_size: contract.count("micro_batch_size"),
            sequence_length: contract.count("seq_length"),
            num_gpus: contract.count("num_gpus"),
            parallel_strategy: cell.parallelism.clone(),
            precision: summary
                .workload
                .as_ref()
                .map_or_else(|| job.precision.clone(), |w| w.precision.clone()),
        },
        performance_metrics: row.and_then(|row| performance(summary, row)),
        memory_metrics: memory(
            summary,
            shown,
            shown_repeat.and_then(|r| r.telemetry.as_ref()),
        ),
        telemetry: shown_repeat.and_then(|r| r.telemetry.clone()),
        steps: shown.map(numbers).unwrap_or_default(),
        step_times,
        loss_values,
        learning_rates,
        // With no repeat that counts, the first one says why.
        attestation: shown
            .or(results.first().map(|(_, result)| result))
            .map(|r| r.attestation.clone()),
        contract: contract.clone(),
        environment: Environment {
            hosts: {
                let hosts = all_hosts(&summary.hosts).unwrap_or_default();
                hosts.into_iter().map(str::to_owned).collect()
            },
            versions: summary.versions.clone(),
        },
        provenance: Provenance {
            tprimat: env!("CARGO_PKG_VERSION").to_owned(),
            attempts: summary.repeats.iter().map(|r| r.attempt.clone()).collect(),
        },
        repeats: summary
            .repeats
            .iter()
            .filter_map(|repeat| {
                let result = result_of(repeat.repeat)?;
                let (step_times, loss_values, learning_rates) = series(result);
                Some(UnifiedRepeat {
                    repeat: repeat.repeat,
                    attempt: result.attempt.clone(),
                    host: result.host.clone(),
                    started_at: result.started_at,
                    ended_at: result.ended_at,
                    status: repeat.status.clone(),
                    attestation: result.attestation.clone(),
                    telemetry: repeat.telemetry.clone(),
                    repeats_planned: result.repeats_planned,
                    step_time_source: result.workload.step_time_source.clone(),
                    steps: numbers(result),
                    steps_averaged: averaged(result),
                    step_times,
                    loss_values,
                    learning_rates,
                })
            })
            .collect(),
        notes: summary.notes.clone(),
    })
}

fn numbers(result: &RunResult) -> Vec<u64> {
    result.trace.steps.iter().map(|s| s.step).collect()
}

fn averaged(result: &RunResult) -> Vec<u64> {
    let steps = || result.trace.steps.iter().map(Step::count);
    if steps().all(|n| n == 1) {
        Vec::new()
    } else {
        steps().collect()
    }
}

type Series = Vec<Option<f64>>;

fn series(result: &RunResult) -> (Series, Series, Series) {
    let steps = &result.trace.steps;
    (
        steps.iter().map(|s| s.step_time_seconds).collect(),
        steps.iter().map(|s| s.loss).collect(),
        steps.iter().map(|s| s.learning_rate).collect(),
    )
}

fn performance(summary: &Summary, row: &Row) -> Option<PerformanceMetrics> {
    let estimate = summary.tokens_per_second_per_gpu.clone()?;
    let step_time = summary.step_time.clone()?;
    let counted = || {
        summary
            .repeats
            .iter()
            .filter(|r| r.status == RepeatStatus::Ok)
    };
    let measured = counted().flat_map(|r| {
        let from = summary.workload.as_ref().map_or(1, |w| w.counts_from);
        let cut = r
            .steady
            .as_ref()
            .and_then(|s| s.cut.as_ref())
            .map(|cut| cut.first_step);
        let first = cut.unwrap_or(summary.warmup_steps.saturating_add(from));
        let times = r.curve.step.iter().zip(&r.curve.step_time_seconds);
        times
            .filter(move |(step, _)| **step >= first)
            .filter_map(|(_, time)| *time)
    });
    let (min, max) = measured.fold((f64::INFINITY, 0.0f64), |(low, high), t| {
        (low.min(t), high.max(t))
    });
    if min > max {
        return None;
    }
    Some(PerformanceMetrics {
        total_steps: counted()
            .filter_map(|r| r.steady.as_ref())
            .map(|s| s.steps)
            .sum(),
        avg_step_time_seconds: step_time.mean_seconds,
        min_step_time_seconds: min,
        max_step_time_seconds: max,
        steps_per_second: 1.0 / step_time.mean_seconds,
        tokens_per_second: summary.tokens_per_second,
        tokens_per_second_per_gpu: estimate.value,
        mfu: row.mfu.clone(),
        metrics: row.metrics.clone(),
        warmup_steps: summary.warmup_steps,
        loss_at_end: summary.loss_at_end,
        step_time,
        estimate,
    })
}

fn stack(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Nvd => "cuda",
        Vendor::Amd => "rocm",
        Vendor::Cpu => "cpu",
    }
}

/// Mean over steps of what a run's log states under this kind, in decimal gigabytes.
fn average_gb(result: &RunResult, kind: &str) -> Option<f64> {
    let of_step = |step: &Step| {
        let own = step
            .memory_bytes
            .filter(|_| step.memory_kind.as_deref() == Some(kind));
        own.or_else(|| {
            step.memory_figures
                .iter()
                .find(|f| f.kind == kind)
                .map(|f| f.bytes)
        })
    };
    let stated: Vec<f64> = result
        .trace
        .steps
        .iter()
        .filter_map(of_step)
        .map(|bytes| bytes as f64 / 1e9)
        .collect();
    mean(&stated)
}

fn memory(
    summary: &Summary,
    shown: Option<&RunResult>,
    telemetry: Option<&Telemetry>,
) -> MemoryMetrics {
    let gb = |kind: &str| {
        let bytes = summary
            .memory
            .iter()
            .filter(|m| m.kind == kind)
            .map(|m| m.bytes)
            .max()?;
        Some(bytes as f64 / 1e9)
    };
    MemoryMetrics {
        avg_memory_allocated_gb: shown.and_then(|result| average_gb(result, "allocated")),
        avg_memory_reserved_gb: shown.and_then(|result| average_gb(result, "reserved")),
        avg_device_memory_used_gb: telemetry
            .and_then(|t| t.mean_memory_used_bytes)
            .map(|bytes| bytes / 1e9),
        peak_memory_allocated_gb: gb("peak_allocated"),
        peak_memory_reserved_gb: gb("peak_reserved"),
        all: summary.memory.clone(),
    }
}

fn rfc3339(seconds: f64) -> Option<String> {
    let micros = (seconds * 1e6).round();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "out of range is refused by the constructor"
    )]
    let timestamp = jiff::Timestamp::from_microsecond(micros as i64).ok()?;
    micros.is_finite().then(|| timestamp.to_string())
}

#[cfg(test)]
mod tests;
