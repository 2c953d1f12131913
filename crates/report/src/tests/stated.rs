//! "Same workload." is said of results that state one work, and of no others.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tprimat_numbers::{
    figures::{Catalogue, CompareSettings, compare},
    results::{fields, unlisted::is_harmless},
};

use super::super::headline::headlines;
use crate::stand_ins::imported;

/// Every setting of the table, with values that fit each other.
fn stated() -> Map<String, Value> {
    let mut all: Map<String, Value> = fields()
        .filter(|field| *field != "warmup")
        .map(|field| (field.to_owned(), json!(2)))
        .collect();
    let known = json!({"architecture": "mixtral", "tie_embeddings": false, "qkv_bias": false, "seq_length": 128, "packing": "none",
        "attention_mask": "causal", "global_batch_size": 128, "micro_batch_size": 1, "gradient_accumulation_steps": 16,
        "num_gpus": 8, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
        "data_parallel_size": 8, "num_nodes": 1, "precision": "bf16", "dropout": 0.0, "optimizer": "adamw",
        "optimizer_state_precision": "fp32", "data": "random", "compile": false, "compile_mode": "default",
        "activation_checkpointing": false, "offload": false, "sharding": "zero3", "deterministic": false,
        "fp8_hybrid": false, "fp8_param": false, "train_iters": 3, "learning_rate": 3e-4});
    all.extend(known.as_object().cloned().unwrap_or_default());
    all
}

fn another(value: &Value) -> Value {
    match value {
        Value::Bool(b) => json!(!b),
        Value::Number(n) => match n.as_u64() {
            Some(n) => json!(2 * n + 1),
            None => json!(n.as_f64().unwrap_or_default() * 1.5 + 0.1),
        },
        other => json!(format!("{}x", other.as_str().unwrap_or_default())),
    }
}

/// All that is said of two imported logs with these settings.
fn said(a: Map<String, Value>, b: Map<String, Value>) -> String {
    let cell = |name: &str, stated: Map<String, Value>, times: &[f64]| {
        imported(name, Value::Object(stated), times)
    };
    let cells = [
        cell("nvd/a/llama/s", a, &[1.0, 1.01, 0.99]),
        cell("nvd/b/llama/s", b, &[0.9, 0.905, 0.897]),
    ];
    let settings = CompareSettings {
        named: true,
        ..CompareSettings::default()
    };
    let comparison = compare(&cells, &settings, &Catalogue::default());
    let all = headlines(&comparison).into_iter();
    all.map(|headline| headline.text).collect()
}

const EARNED: &str = "Same workload.";
/// Settings that are not in the table: some change the work, some do not, some nobody knows.
const OTHERS: [&str; 20] = [
    "freeze_layers",
    "trainable_parameters",
    "fp8",
    "fp8_format",
    "quantization",
    "moe_aux_loss_coeff",
    "main_params_dtype",
    "exp_avg_dtype",
    "grad_reduce_in_fp32",
    "attention_dropout",
    "loss_mask",
    "sample_packing",
    "z_loss",
    "recompute_granularity",
    "data_path",
    "attention_backend",
    "eval_interval",
    "output_dir",
    "master_port",
    "log_interval",
];

#[test]
fn what_is_all_stated_alike_is_the_same_workload() {
    let said = said(stated(), stated());
    assert!(
        said.matches(EARNED).count() == 1 && said.contains("faster"),
        "{said}"
    );
}

#[test]
fn any_setting_of_the_table_takes_it_away() {
    for field in stated().keys() {
        let mut other = stated();
        other[field] = another(&other[field]);
        let said = said(stated(), other);
        assert!(!said.contains(EARNED), "{field}: {said}");
        // Degrees and batches that do not fit each other contradict their log.
        let is_contradicted = ["what it trained is not known", "There is no other cell"]
            .iter()
            .any(|words| said.contains(words));
        assert!(
            is_contradicted || said.contains(field.as_str()),
            "{field}: {said}"
        );
    }
}

#[test]
fn what_is_in_no_table_is_counted() {
    let with = |value: &str| {
        let mut all = stated();
        all.insert("attention_backend".into(), value.into());
        all
    };
    let said = said(with("flash"), with("eager"));
    let words = "Same workload as far as it is known. Settings of unknown meaning that differ: 1";
    assert!(said.contains(words), "{said}");
}

#[test]
fn what_changes_the_work_is_compared_only_where_that_is_asked_for() {
    let with = |layers: u64| {
        let mut all = stated();
        all.insert("freeze_layers".into(), layers.into());
        all
    };
    let refused = said(with(2), with(16));
    assert!(
        refused.contains(
            "may not be compared, because they differ in freeze_layers: 16, not 2. `--across freeze_layers`"
        ),
        "{refused}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn two_results_with_one_setting_changed_never_say_it(
        name in prop_oneof![(0..OTHERS.len()).prop_map(|at| OTHERS[at].to_owned()), "[a-z]{3,9}_[a-z]{3,9}"],
        value in prop_oneof![Just(json!(1)), Just(json!(0.5)), Just(json!("on")), Just(json!(true)), Just(json!(16))],
    ) {
        let mut a = stated();
        let mut b = stated();
        prop_assume!(!a.contains_key(&name));
        a.insert(name.clone(), value.clone());
        b.insert(name.clone(), value.clone());
        let alike = said(a.clone(), b.clone());
        prop_assert!(alike.contains(EARNED), "{alike}");
        b[&name] = another(&value);
        let said = said(a, b);
        prop_assert_eq!(said.contains(EARNED), is_harmless(&name), "{}: {}", name, said);
    }
}
