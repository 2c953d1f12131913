use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(value: &Value) -> OldResult {
    read_result(&serde_json::to_vec(value).unwrap(), None).unwrap()
}

fn kinds(result: &OldResult) -> Vec<&str> {
    result.anomalies.iter().map(|a| a.kind.as_str()).collect()
}

/// The later schema.
fn unified() -> Value {
    json!({
        "platform": "nvd",
        "gpu_info": { "device_count": 4, "device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.02,
            "gpu_cores": 16896, "software_stack": "nemo", "pytorch_version": "2.8.0" },
        "parallelism_config": { "strategy_name": "unknown", "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 2, "data_parallel_size": 2, "gradient_accumulation_steps": 4 },
        "training_config": { "max_steps": 4, "global_batch_size": 16, "micro_batch_size": 2,
            "sequence_length": 512, "num_gpus": 4, "parallel_strategy": "pipelined" },
        "performance_metrics": { "total_steps": 4, "avg_step_time_seconds": 2.0, "tokens_per_second": 4096.0,
            "tokens_per_second_per_gpu": 1024.0 },
        "memory_metrics": { "peak_memory_allocated_gb": 36.0 },
        "step_times": [9.0, 2.0, 1.9, 2.1], "loss_values": [11.0, 9.0, 8.0, 7.0], "learning_rates": [1e-5, 2e-5, 3e-5],
    })
}

#[test]
fn the_later_schema() {
    let result = read(&unified());
    assert_eq!(
        (result.platform.as_deref(), result.framework.as_deref()),
        (Some("nvd"), Some("nemo"))
    );
    assert_eq!(
        (result.trace.steps.len(), result.trace.steps[3].loss),
        (4, Some(7.0))
    );
    assert!(result.trace.finished && result.trace.steps.iter().all(|s| s.learning_rate.is_none()));
    assert_eq!(result.label("pipeline_model_parallel_size"), Some(2));
    assert_eq!(
        kinds(&result),
        ["learning_rates_count", "memory_unit", "strategy_names"]
    );
    assert!(
        result.anomalies[2]
            .detail
            .contains("`pipelined` and `unknown`, with TP 1 × PP 2")
    );
    let figure = &result.trace.memory[0].figures[0];
    assert_eq!(
        (&*figure.kind, figure.bytes),
        ("peak_allocated", 36_000_000_000)
    );
}

#[test]
fn the_older_schema_of_an_amd_box() {
    let result = read(&json!({
        "platform": "rocm", "source": "primus_log_extraction",
        "gpu_info": { "device_count": 8, "device_name": "AMD Instinct MI300X", "total_memory_gb": 206.1,
            "gpu_cores": 16896, "software_stack": "rocm", "pytorch_version": "" },
        "training_config": { "max_steps": 3, "global_batch_size": 32, "sequence_length": 1024, "num_gpus": 8 },
        "raw_step_times": [30.0, 4.0, 4.0],
        "memory_metrics": { "peak_memory_allocated_gb": 100.0 },
    }));
    assert_eq!(
        (result.platform.as_deref(), result.framework.as_deref()),
        (Some("rocm"), Some("prim"))
    );
    assert_eq!(kinds(&result), ["gpu_cores", "memory_unit"]);
    assert!(
        result.anomalies[1].detail.contains("\"100 GB\" is GiB"),
        "{:?}",
        result.anomalies
    );
    assert_eq!(result.trace.memory[0].figures[0].bytes, 100 << 30);
    assert!(result.trace.versions.is_empty(), "an empty version is none");
}

#[test]
fn an_average_is_not_a_peak_and_memory_of_an_unknown_unit_is_no_figure() {
    let mut file = unified();
    for averages in [
        json!({ "avg_memory_allocated_gb": 20.0, "avg_memory_reserved_gb": 30.0 }),
        json!({ "peak_memory_allocated_gb": null, "avg_memory_allocated_gb": 20.0 }),
    ] {
        for framework in ["nemo", "primus"] {
            file["framework"] = json!(framework);
            file["memory_metrics"] = averages.clone();
            assert_eq!(read(&file).trace.memory, [], "{framework} {averages}");
        }
    }
    let mut file = unified();
    for (at, odd) in [
        ("total_memory_gb", json!(12.0)),
        ("device_name", json!("Some Device")),
    ] {
        file["gpu_info"][at] = odd;
        let result = read(&file);
        assert_eq!(result.trace.memory, [], "{at}");
        let unit = result.anomalies.iter().find(|a| a.kind == "memory_unit");
        let told = &unit.unwrap().detail;
        assert!(
            told.contains("\"36 GB\"") && told.contains("left out"),
            "{told}"
        );
    }
}

#[test]
fn a_label_of_another_form_is_told_and_not_claimed() {
    let mut file = unified();
    for (name, odd, expected) in [
        (
            "learning_rate",
            json!("3e-4"),
            "learning_rate is labelled \"3e-4\", which is not a number",
        ),
        (
            "precision",
            json!(16),
            "precision is labelled 16, which is not a name",
        ),
        (
            "precision",
            json!(" "),
            "precision is labelled \" \", which is not a name",
        ),
        (
            "max_steps",
            json!([4]),
            "train_iters is labelled [4], which is not a whole number above 0",
        ),
    ] {
        let mut file = file.clone();
        file["training_config"][name] = odd;
        let result = read(&file);
        let told = result
            .anomalies
            .iter()
            .find(|a| a.kind == "label_unreadable");
        assert_eq!(told.unwrap().detail, expected);
        let mut claim = Claim::of_model(None);
        result.claim(&mut claim);
        assert!(
            !claim.covers("learning_rate") && !claim.covers("precision"),
            "{name}"
        );
    }
    file["training_config"]["learning_rate"] = json!(3e-4);
    file["training_config"]["precision"] = json!("bf16");
    let mut claim = Claim::of_model(None);
    read(&file).claim(&mut claim);
    let claimed = (
        claim.job.optimizer.learning_rate,
        claim.job.precision.as_str(),
    );
    assert_eq!(claimed, (3e-4, "bf16"));
    // A published file's settings pass the same check.
    let mut published = OldResult::default();
    published.declare("learning_rate", &json!("3e-4"));
    published.declare("seq_length", &json!(512));
    assert_eq!(published.labels, [("seq_length", json!(512))]);
    assert_eq!(kinds(&published), ["label_unreadable"]);
}

#[test]
fn other_names_of_the_same_tables() {
    for table in ["parallelism", "parallel_config"] {
        let result = read(
            &json!({ "step_times": [1.0], table: { "TP": 2, "PP": 1, "CP": 1, "DP": 2 },
            "gpu_info": { "device_count": 8 } }),
        );
        assert_eq!(
            result.label("tensor_model_parallel_size"),
            Some(2),
            "{table}"
        );
        assert_eq!(
            kinds(&result),
            ["labels_disagree"],
            "2 × 1 × 1 × 2 is not 8"
        );
    }
}

#[test]
fn a_degree_that_is_not_stated_is_not_taken_for_one() {
    let of = |degrees: Value| {
        read(
            &json!({ "step_times": [1.0], "parallelism": degrees, "gpu_info": { "device_count": 16 } }),
        )
    };
    assert!(kinds(&of(json!({ "DP": 8 }))).is_empty(), "TP may be 2");
    let wrong = of(json!({ "TP": 3, "DP": 2 }));
    assert_eq!(
        wrong.anomalies[0].detail,
        "TP 3 × DP 2 = 6, and num_gpus is 16"
    );
    let unknown = of(json!({ "strategy_name": "unknown", "PP": 2 }));
    assert_eq!(
        unknown.anomalies[0].detail,
        "the strategy is named `unknown`, with PP 2"
    );
}

#[test]
fn labels_are_what_is_claimed() {
    let mut claim = Claim::of_model(None);
    read(&unified()).claim(&mut claim);
    assert_eq!(
        (
            claim.job.data.global_batch_size,
            claim.job.parallelism.num_gpus
        ),
        (16, 4)
    );
    assert!(claim.covers("seq_length") && !claim.covers("seed") && !claim.covers("vocab_size"));
}

#[test]
fn what_is_no_result_says_what_was_expected() {
    for (bytes, words) in [
        (&b"{"[..], "not JSON"),
        (b"[1, 2]", "not an object"),
        (b"{\"step_time\": [1]}", "no result"),
        (b"{\"step_times\": 3}", "no result"),
        (b"\xff\xfe", "not JSON"),
    ] {
        let said = read_result(bytes, None).unwrap_err();
        assert!(
            said.contains(words) && said.contains("raw_step_times"),
            "{said}"
        );
    }
}

#[test]
fn odd_values_are_told_and_never_zero() {
    let result = read(
        &json!({ "step_times": [1.0, null, "x", -3.0, 0], "training_config": {
        "global_batch_size": -8, "sequence_length": 1.5, "num_gpus": 0, "micro_batch_size": null } }),
    );
    assert_eq!(result.labels, []);
    assert_eq!(
        kinds(&result),
        [
            "label_unreadable",
            "label_unreadable",
            "label_unreadable",
            "step_times_unreadable"
        ]
    );
    assert_eq!(
        result
            .trace
            .steps
            .iter()
            .filter(|s| s.step_time_seconds.is_some())
            .count(),
        1
    );
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_result(&bytes, None);
    }

    #[test]
    fn any_value_at_any_place_is_an_answer(at in 0usize..60, odd in prop_oneof![
        Just(json!(null)), Just(json!("x")), Just(json!([])), Just(json!({})), Just(json!(-1)), Just(json!(1e308)),
        Just(json!(u64::MAX)), Just(json!(true))]) {
        fn places(value: &Value, path: String, all: &mut Vec<String>) {
            if let Value::Object(map) = value {
                map.iter().for_each(|(k, v)| places(v, format!("{path}/{k}"), all));
            }
            all.push(path);
        }
        let mut file = unified();
        let mut all = Vec::new();
        places(&file, String::new(), &mut all);
        *file.pointer_mut(&all[at % all.len()]).unwrap() = odd;
        if let Ok(result) = read_result(&serde_json::to_vec(&file).unwrap(), None) {
            let mut claim = Claim::of_model(None);
            result.claim(&mut claim);
            let facts = crate::results::RunFacts { attempt: String::new(), host: String::new(), started_at: None,
                ended_at: None, outcome: crate::job::RunOutcome::Ok };
            let _ = crate::results::RunResult::of_claim(result.trace, &claim, facts, true);
        }
    }
}
