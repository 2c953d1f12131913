use tprimat_job::{FailureClass, RunOutcome};

use super::*;
use crate::figures::{
    Catalogue, CompareSettings, Statistics, compare,
    stand_ins::{cell, measured, test_job as job},
    summarize,
    summary::tests::run,
};

/// Published beside the comparison of this cell alone.
fn published(input: &CellInput, key: Option<&str>, results: &[(u32, RunResult)]) -> Option<Value> {
    let comparison = compare(
        std::slice::from_ref(input),
        &CompareSettings::default(),
        &Catalogue::default(),
    );
    unified(input, key, &job(), results, comparison.rows.first())
}

#[test]
fn one_file_holds_every_repeat_and_the_fields_own_names() {
    let mut failed = run(&[1.0, 1.0, 1.0]);
    failed.outcome = RunOutcome::Failed {
        class: FailureClass::Oom,
        evidence: vec![],
        status: "exit 1".into(),
    };
    let results = [(1, failed), (2, run(&[3.0, 1.0, 2.0]))];
    let summary = summarize(&results, &Statistics { warmup_steps: 1 });
    let input = cell(
        "cpu/native/llama/single",
        CellState::Ok {
            summary: Box::new(summary),
        },
    );
    let unified = published(&input, Some("abc"), &results).unwrap();
    assert_eq!(unified["step_times"], json!([3.0, 1.0, 2.0]));
    assert_eq!(unified["timestamp"], "1970-01-01T00:00:01Z");
    let metrics = &unified["performance_metrics"];
    let extremes = [
        "total_steps",
        "min_step_time_seconds",
        "max_step_time_seconds",
    ];
    assert_eq!(
        extremes.map(|name| &metrics[name]),
        [&json!(2), &json!(1.0), &json!(2.0)]
    );
    assert!(
        unified["memory_metrics"]["peak_memory_allocated_gb"].is_null(),
        "resident memory is not allocated memory"
    );
    for path in [
        "/platform",
        "/gpu_info/device_count",
        "/gpu_info/software_stack",
        "/model_info/num_layers",
        "/parallelism_config/strategy_name",
        "/parallelism_config/tensor_model_parallel_size",
        "/training_config/sequence_length",
        "/performance_metrics/tokens_per_second_per_gpu",
        "/performance_metrics/metrics/0/figure/value",
        "/memory_metrics/all/0/bytes",
        "/repeats/0/class",
        "/contract/0/field",
    ] {
        assert!(unified.pointer(path).is_some(), "{path} in {unified:#}");
    }
}

#[test]
fn the_extremes_are_of_the_measured_steps() {
    let results = [(1, run(&[vec![9.0; 8], vec![3.0; 60]].concat()))];
    let summary = summarize(&results, &Statistics { warmup_steps: 2 });
    let input = cell(
        "cpu/native/llama/single",
        CellState::Ok {
            summary: Box::new(summary),
        },
    );
    let unified = published(&input, None, &results).unwrap();
    let metrics = &unified["performance_metrics"];
    let extremes = [
        "total_steps",
        "min_step_time_seconds",
        "max_step_time_seconds",
    ];
    assert_eq!(
        extremes.map(|name| &metrics[name]),
        [&json!(60), &json!(3.0), &json!(3.0)]
    );
}

#[test]
fn a_cell_that_only_contradicts_says_so_at_the_top() {
    let stated = serde_json::json!({ "global_batch_size": 64 });
    let results = [(
        1,
        crate::figures::summary::tests::run_of(&job(), &[1.0, 1.0], stated),
    )];
    let summary = summarize(&results, &Statistics { warmup_steps: 1 });
    let input = cell(
        "cpu/native/llama/single",
        CellState::Ok {
            summary: Box::new(summary),
        },
    );
    let json = published(&input, None, &results).unwrap();
    assert_eq!(json["attestation"]["status"], "contradicted");
    assert_eq!(json["repeats"][0]["status"], "contradicted");
    assert!(
        json["performance_metrics"].is_null(),
        "no figure stands for it"
    );
}

#[test]
fn a_cell_without_a_summary_publishes_nothing() {
    let missing = cell(
        "a/b/c/d",
        CellState::Missing {
            reason: "not run".into(),
        },
    );
    assert_eq!(published(&missing, None, &[]), None);
    assert!(published(&measured("a/b/c/d", &job(), &[], None), None, &[]).is_some());
}
