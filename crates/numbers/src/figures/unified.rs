//! A cell's job, results and summary → the JSON that is published, a superset of the field's
//! unified format: `output/train_<platform>_<framework>_<model>.json`. What is not known is absent.
//!
//! Names ending in `_gb` are decimal gigabytes, as in the files that this format comes from.

use crate::results::{RunResult, Tier, mean};
use serde_json::{Value, json};
use tprimat_job::{Job, Vendor, count_parameters};
use tprimat_logs::Step;

use super::{
    CellInput, CellState, RepeatStatus, RepeatSummary, Row, Summary, all_hosts,
    windows::all_by_clock,
};

pub const UNIFIED_SCHEMA: &str = "tprimat.unified/1";

/// `None` where the cell has no summary. `results` are those that the summary was made of; `row` is
/// the cell's in the comparison, so that what is published is what is compared.
#[must_use]
pub fn unified(
    cell: &CellInput,
    key: Option<&str>,
    job: &Job,
    results: &[(u32, RunResult)],
    row: Option<&Row>,
) -> Option<Value> {
    let CellState::Ok { summary } = &cell.state else {
        return None;
    };
    // With the step times that the figures are made of.
    let warmup_steps = summary.warmup_steps;
    let results = all_by_clock(results, warmup_steps);
    let result_of = |repeat: &RepeatSummary| {
        let found = results.iter().find(|(n, _)| *n == repeat.repeat);
        found.map(|(_, result)| &**result)
    };
    // Series are those of the first repeat that counts. With none, the first one says why.
    let first = counted(summary).next();
    let shown = first.and_then(result_of);
    let attested = shown.or(results.first().map(|(_, result)| &**result));
    let of_repeats = summary.repeats.iter();
    let repeats = of_repeats.filter_map(|repeat| Some(of_repeat(repeat, result_of(repeat)?)));
    let mut file = known(json!({
        "schema_version": UNIFIED_SCHEMA,
        "cell": cell.cell,
        // Digest of the cell's aggregate.
        "key": key,
        "platform": cell.platform,
        "framework": cell.framework,
        "model": cell.model,
        "axes": Some(&cell.axes).filter(|axes| !axes.is_empty()),
        "timestamp": shown.and_then(|result| rfc3339(result.started_at?)),
        "gpu_info": gpu_info(summary, job, row),
        "model_info": model_info(summary, job),
        "parallelism_config": parallelism_config(summary, cell),
        "training_config": training_config(summary, cell, job),
        "performance_metrics": row.and_then(|row| performance_metrics(summary, row)),
        "memory_metrics": memory_metrics(summary, shown, first),
        "telemetry": first.and_then(|repeat| repeat.telemetry.as_ref()),
    }));
    extend(&mut file, shown.map_or_else(no_series, series));
    extend(
        &mut file,
        known(json!({
            "attestation": attested.map(|result| &result.attestation),
            "contract": summary.contract,
            "environment": {
                // None where a run does not name its host: the others would not be all of them.
                "hosts": all_hosts(&summary.hosts).unwrap_or_default(),
                "versions": summary.versions,
            },
            "provenance": {
                "tprimat": env!("CARGO_PKG_VERSION"),
                "attempts": summary.repeats.iter().map(|r| &r.attempt).collect::<Vec<_>>(),
            },
            "repeats": repeats.collect::<Vec<_>>(),
            "notes": Some(&summary.notes).filter(|notes| !notes.is_empty()),
        })),
    );
    Some(file)
}

fn counted(summary: &Summary) -> impl Iterator<Item = &RepeatSummary> {
    let repeats = summary.repeats.iter();
    repeats.filter(|repeat| repeat.status == RepeatStatus::Ok)
}

/// The object without members that are null.
fn known(mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    object
}

/// Adds the members of an object to another one.
fn extend(object: &mut Value, more: Value) {
    if let (Some(members), Value::Object(more)) = (object.as_object_mut(), more) {
        members.extend(more);
    }
}

fn gpu_info(summary: &Summary, job: &Job, row: Option<&Row>) -> Value {
    let version = |names: [&str; 3]| names.iter().find_map(|name| summary.versions.get(*name));
    let capacity = row.and_then(|row| row.memory_capacity_bytes);
    known(json!({
        "device_count": summary.contract.count("num_gpus"),
        "device_name": summary.device.as_ref().and_then(|device| device.name.as_ref()),
        // The memory of one device.
        "total_memory_gb": capacity.map(|bytes| bytes as f64 / 1e9),
        "pytorch_version": version(["torch", "pytorch", "libtorch"]),
        "software_stack": match job.vendor {
            Vendor::Nvd => "cuda",
            Vendor::Amd => "rocm",
            Vendor::Cpu => "cpu",
        },
        "software_version": version(["cuda", "rocm", "hip"]),
    }))
}

fn model_info(summary: &Summary, job: &Job) -> Value {
    let mut info = json!(job.model);
    let counts = json!({
        "counted_parameters": count_parameters(&job.model),
        "flops_per_token": summary.flops_per_token(),
    });
    extend(&mut info, known(counts));
    info
}

/// Effective where stated, else declared; `contract` says which.
fn parallelism_config(summary: &Summary, cell: &CellInput) -> Value {
    let mut config = json!({ "strategy_name": cell.parallelism });
    for field in summary
        .contract
        .0
        .iter()
        .filter(|f| f.tier == Tier::Execution)
    {
        let name = field.field.as_str();
        if name.ends_with("_parallel_size") || name == "gradient_accumulation_steps" {
            config[name] = field.value.clone();
        }
    }
    config
}

fn training_config(summary: &Summary, cell: &CellInput, job: &Job) -> Value {
    let count = |field: &str| summary.contract.count(field);
    let workload = summary.workload.as_ref();
    known(json!({
        "max_steps": job.train_iters,
        "global_batch_size": count("global_batch_size"),
        "micro_batch_size": count("micro_batch_size"),
        "sequence_length": count("seq_length"),
        "num_gpus": count("num_gpus"),
        "parallel_strategy": cell.parallelism,
        "precision": workload.map_or(&job.precision, |workload| &workload.precision),
    }))
}

/// Over the repeats that count, and their measured steps.
fn performance_metrics(summary: &Summary, row: &Row) -> Option<Value> {
    let estimate = summary.tokens_per_second_per_gpu.as_ref()?;
    let step_time = summary.step_time.as_ref()?;
    let from = summary
        .workload
        .as_ref()
        .map_or(1, |workload| workload.counts_from);
    let measured = counted(summary).flat_map(|repeat| {
        let first = repeat.cut().map(|cut| cut.first_step);
        let first = first.unwrap_or(summary.warmup_steps.saturating_add(from));
        let times = repeat
            .curve
            .step
            .iter()
            .zip(&repeat.curve.step_time_seconds);
        times.filter_map(move |(step, time)| time.filter(|_| *step >= first))
    });
    let measured: Vec<f64> = measured.collect();
    let steps = counted(summary).filter_map(|repeat| repeat.steady.as_ref());
    Some(known(json!({
        "total_steps": steps.map(|steady| steady.steps).sum::<u64>(),
        "avg_step_time_seconds": step_time.mean_seconds,
        "min_step_time_seconds": measured.iter().copied().reduce(f64::min)?,
        "max_step_time_seconds": measured.iter().copied().reduce(f64::max)?,
        "step_time": step_time,
        "steps_per_second": 1.0 / step_time.mean_seconds,
        "tokens_per_second": summary.tokens_per_second,
        "tokens_per_second_per_gpu": estimate.value,
        // The same with its interval and its repeats.
        "estimate": estimate,
        "mfu": row.mfu,
        // Cost, efficiency, time: docs/METRICS.md.
        "metrics": row.metrics,
        "warmup_steps": summary.warmup_steps,
        "loss_at_end": summary.loss_at_end,
    })))
}

fn memory_metrics(
    summary: &Summary,
    shown: Option<&RunResult>,
    first: Option<&RepeatSummary>,
) -> Value {
    let peak = |kind: &str| {
        let all = summary.memory.iter().filter(|memory| memory.kind == kind);
        all.map(|memory| memory.bytes as f64 / 1e9).reduce(f64::max)
    };
    let average = |kind: &str| average_gb(shown?, kind);
    let telemetry = first.and_then(|repeat| repeat.telemetry.as_ref());
    let used = telemetry.and_then(|telemetry| telemetry.mean_memory_used_bytes);
    known(json!({
        "avg_memory_allocated_gb": average("allocated"),
        "avg_memory_reserved_gb": average("reserved"),
        // Mean over the measured part and the devices of the memory in use by any process, as the
        // driver reports it: more than what the trainer allocates.
        "avg_device_memory_used_gb": used.map(|bytes| bytes / 1e9),
        "peak_memory_allocated_gb": peak("peak_allocated"),
        "peak_memory_reserved_gb": peak("peak_reserved"),
        // Every figure with its kind and source, in bytes.
        "all": summary.memory,
    }))
}

/// Mean over steps of what a run's log states under this kind, in decimal gigabytes.
fn average_gb(result: &RunResult, kind: &str) -> Option<f64> {
    let of_step = |step: &Step| {
        let is_kind = step.memory_kind.as_deref() == Some(kind);
        let own = step.memory_bytes.filter(|_| is_kind);
        let figure = step
            .memory_figures
            .iter()
            .find(|figure| figure.kind == kind);
        own.or(figure.map(|figure| figure.bytes))
    };
    let stated = result.trace.steps.iter().filter_map(of_step);
    mean(&stated.map(|bytes| bytes as f64 / 1e9).collect::<Vec<_>>())
}

/// The log's numbers of a run's optimiser steps, and its series by step; null where the log has none.
fn series(result: &RunResult) -> Value {
    let steps = &result.trace.steps;
    let of = |read: fn(&Step) -> Option<f64>| steps.iter().map(read).collect::<Vec<_>>();
    json!({
        "steps": steps.iter().map(|step| step.step).collect::<Vec<_>>(),
        "step_times": of(|step| step.step_time_seconds),
        "loss_values": of(|step| step.loss),
        "learning_rates": of(|step| step.learning_rate),
    })
}

fn no_series() -> Value {
    json!({ "steps": [], "step_times": [], "loss_values": [], "learning_rates": [] })
}

fn of_repeat(repeat: &RepeatSummary, result: &RunResult) -> Value {
    let mut object = json!({
        "repeat": repeat.repeat,
        "attempt": result.attempt,
        "host": result.host,
        // Seconds since 1970.
        "started_at": result.started_at,
        "ended_at": result.ended_at,
    });
    extend(&mut object, json!(repeat.status));
    // How many steps each value of the series stands for, where the log has one line for several steps
    // and prints their mean.
    let averaged: Vec<u64> = result.trace.steps.iter().map(Step::count).collect();
    let more = json!({
        "attestation": result.attestation,
        "telemetry": repeat.telemetry,
        // How many repeats the plan wanted when this one was made.
        "repeats_planned": result.repeats_planned,
        // How step times were made, where they are not the trainer's own.
        "step_time_source": result.workload.step_time_source,
        "steps_averaged": Some(averaged).filter(|averaged| averaged.iter().any(|n| *n != 1)),
    });
    extend(&mut object, more);
    extend(&mut object, series(result));
    known(object)
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
