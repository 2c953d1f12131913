mod notes;
mod verdicts;
mod workloads;

use crate::results::{CUSUM, ContractField, RunResult, Source, Tier};
use serde_json::json;
use std::collections::BTreeSet;
use tprimat_job::{FailureClass, Job, RunOutcome};
use tprimat_logs::Anomaly;

use super::*;
use crate::figures::{
    Note, NoteKind, Statistics, Unit,
    stand_ins::{cell, facts, measured, measured_steps, run_of, test_job as job},
    summarize, texts,
};

fn compare_with(cells: &[CellInput], settings: CompareSettings) -> Comparison {
    compare(cells, &settings, &Catalogue::default())
}

fn compare_all(cells: &[CellInput]) -> Comparison {
    compare_with(cells, CompareSettings::default())
}

fn big_batch() -> Job {
    let mut job = job();
    job.data.global_batch_size = 128;
    job.data.gradient_accumulation_steps = 64;
    job
}

/// A cell whose trainer states this dropout.
fn with_dropout(name: &str, dropout: Option<f64>) -> CellInput {
    let mut cell = measured(name, &job(), &[1.0, 1.1, 1.2], None);
    let CellState::Ok { summary } = &mut cell.state else {
        unreachable!()
    };
    summary.contract.0.extend(dropout.map(|value| {
        let (field, tier) = ("dropout".into(), Tier::Workload);
        ContractField {
            field,
            tier,
            value: json!(value),
            source: Source::Effective,
        }
    }));
    cell
}

/// Two cells of a strategy, the second one changed.
fn changed(strategy: &str, change: fn(&mut Job)) -> [CellInput; 2] {
    let mut base = job();
    base.parallelism.sharding = "ddp".into();
    (
        base.model.rope_theta,
        base.model.norm_eps,
        base.initialisation.std,
    ) = (1e4, 1e-5, 0.02);
    let mut other = base.clone();
    change(&mut other);
    [
        measured(
            &format!("nvd/nemo/llama/{strategy}"),
            &base,
            &[1.0, 1.1, 1.2],
            None,
        ),
        measured(
            &format!("amd/prim/llama/{strategy}"),
            &other,
            &[1.0, 1.1, 1.2],
            None,
        ),
    ]
}
