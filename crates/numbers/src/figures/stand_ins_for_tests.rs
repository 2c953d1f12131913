//! Cells that tests build comparisons from. `tprimat-report` includes this file in its tests as
//! well, so it names them by `crate::figures` and `crate::results`.
#![allow(dead_code, reason = "each crate's tests use some of them")]

use std::collections::BTreeMap;

use serde_json::json;
use tprimat_job::{Job, RunOutcome};
use tprimat_logs::{DeviceLine, Step};

use crate::figures::{CellEnvironment, CellInput, CellState, Standing, Statistics, summarize};
use crate::results::{Claim, RunResult};
pub use crate::run_stand_ins::*;

pub fn run_of(job: &tprimat_job::Job, times: &[f64], stated: serde_json::Value) -> RunResult {
    let job = tprimat_job::Job {
        train_iters: times.len() as u64,
        ..job.clone()
    };
    let mut trace = trace(stated, None);
    trace.steps = times
        .iter()
        .enumerate()
        .map(|(i, time)| Step {
            step: i as u64 + 1,
            step_time_seconds: Some(*time),
            loss: Some(6.0 / (i + 1) as f64),
            memory_bytes: Some(1000 + i as u64),
            memory_kind: Some("peak_rss".into()),
            memory_source: Some("proc".into()),
            ..Step::default()
        })
        .collect();
    RunResult::from(trace, &job, facts(RunOutcome::Ok))
}

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
        imported: Vec::new(),
        environment: CellEnvironment::default(),
        standing: Standing::default(),
    }
}

/// A cell whose repeats take these mean step times.
pub fn measured(name: &str, job: &Job, times: &[f64], device: Option<(&str, &str)>) -> CellInput {
    let steps: Vec<Vec<f64>> = times
        .iter()
        .map(|t| vec![t * 3.0, t * 0.98, t * 1.02])
        .collect();
    measured_steps(name, job, &steps, device)
}

/// A cell with these step times in each repeat; the first step is warm-up.
pub fn measured_steps(
    name: &str,
    job: &Job,
    repeats: &[Vec<f64>],
    device: Option<(&str, &str)>,
) -> CellInput {
    let run = |times: &Vec<f64>| -> RunResult {
        let stated = json!({"global_batch_size": job.data.global_batch_size, "seq_length": job.data.seq_length,
            "num_gpus": job.parallelism.num_gpus, "precision": job.precision});
        let mut run = run_of(job, times, stated);
        run.trace.device = device.map(|(kind, name)| DeviceLine {
            r#type: kind.into(),
            name: Some(name.into()),
            count: None,
        });
        run
    };
    let runs: Vec<(u32, RunResult)> = (1..)
        .zip(repeats)
        .map(|(n, times)| {
            (
                n,
                RunResult {
                    attempt: format!("{name}#{n}"),
                    ..run(times)
                },
            )
        })
        .collect();
    cell(
        name,
        CellState::Ok {
            summary: Box::new(summarize(&runs, &Statistics { warmup_steps: 1 })),
        },
    )
}

/// A cell of logs that nobody claims anything of; the first step is warm-up.
pub fn imported(name: &str, stated: serde_json::Value, times: &[f64]) -> CellInput {
    let run = |(n, time): (u32, &f64)| {
        let mut trace = run_of(
            &test_job(),
            &[time * 3.0, time * 0.98, time * 1.02],
            stated.clone(),
        )
        .trace;
        (trace.num_parameters, trace.restated) = (None, Default::default());
        let claim = Claim::of_model(None);
        let result = RunResult::of_claim(trace, &claim, facts(RunOutcome::Ok), false);
        (
            n,
            RunResult {
                attempt: format!("{name}#{n}"),
                ..result
            },
        )
    };
    let runs: Vec<(u32, RunResult)> = (1..).zip(times).map(run).collect();
    cell(
        name,
        CellState::Ok {
            summary: Box::new(summarize(&runs, &Statistics { warmup_steps: 1 })),
        },
    )
}
