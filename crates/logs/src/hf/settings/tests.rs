use serde_json::json;

use super::*;
use crate::{LogSection, parse};

fn effective(log: &str) -> Value {
    serde_json::to_value(parse(&LogSection::named("hf-trainer"), log.as_bytes()).effective).unwrap()
}

#[test]
fn the_banner_and_the_arguments() {
    let banner = concat!(
        "[INFO|trainer.py:2519] 2025-12-31 13:12:20,429 >> ***** Running training *****\n",
        "[INFO|trainer.py:2520] 2025-12-31 13:12:20,429 >>   Num examples = 2,400\n",
        "[INFO|trainer.py:2522] >>   Instantaneous batch size per device = 2\n",
        "[INFO|trainer.py:2525] >>   Total train batch size (w. parallel, distributed & accumulation) = 64\n",
        "[INFO|trainer.py:2526] >>   Gradient Accumulation steps = 4\n",
        "[INFO|trainer.py:2527] >>   Total optimization steps = 1,000\n",
    );
    let sizes = json!({"micro_batch_size": 2, "global_batch_size": 64, "gradient_accumulation_steps": 4, "train_iters": 1000});
    assert_eq!(effective(banner), sizes);
    let one_line = "INFO: parameters TrainingArguments(output_dir=x, per_device_train_batch_size=2, weight_decay=0.1, bf16=True, \
                    max_steps=-1, warmup_steps=0, gradient_checkpointing=True, optim=adamw_torch, logging_steps=5)\nseed=7,\n";
    let many = "TrainingArguments(\n_n_gpu=1,\nper_device_train_batch_size=2,\nweight_decay=0.1,\nbf16=True,\nfp16=False,\n\
                gradient_checkpointing=True,\nmax_steps=-1,\noptim=OptimizerNames.ADAMW_TORCH,\n)\nlearning_rate=1,\n";
    let expected = json!({
        "micro_batch_size": 2, "weight_decay": 0.1, "precision": "bf16", "activation_checkpointing": true, "optimizer": "adamw",
    });
    assert_eq!(effective(many), expected);
    assert_eq!(effective(one_line)["weight_decay"], 0.1);
}

#[test]
fn the_factor_of_scaled_positions_is_llama_3s() {
    let stated = |rope: &str| {
        let log = format!("Model config LlamaConfig {{\n  \"hidden_size\": 64,\n  {rope}\n}}\n");
        effective(&log).get("rope_scaling_factor").cloned()
    };
    let llama3 = "\"rope_scaling\": {\n    \"factor\": 8.0,\n    \"rope_type\": \"llama3\"\n  }";
    assert_eq!(stated(llama3), Some(json!(8)));
    assert_eq!(stated("\"rope_scaling\": null"), Some(json!(1)));
    assert_eq!(
        stated(r#""rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}"#),
        Some(json!(1))
    );
    assert_eq!(
        stated(r#""rope_scaling": {"factor": 4.0, "type": "yarn"}"#),
        None
    );
    assert_eq!(stated("\"rope_theta\": 1e4"), None);
}

#[test]
fn an_optimizer_with_a_state_of_fewer_bits_is_told_apart() {
    let stated = |optim: &str| effective(&format!("TrainingArguments(optim={optim}, seed=7)\n"));
    let plain = json!({"optimizer": "adamw", "seed": 7});
    for optim in [
        "adamw_torch_fused",
        "<OptimizerNames.ADAMW_TORCH: 'adamw_torch'>",
        "paged_adamw_32bit",
    ] {
        assert_eq!(stated(optim), plain, "{optim}");
    }
    for (optim, format) in [
        ("adamw_bnb_8bit", "int8"),
        ("paged_adamw_8bit", "int8"),
        ("adamw_torch_4bit", "int4"),
    ] {
        let stated = stated(optim);
        assert_eq!(stated["optimizer_state_precision"], format, "{optim}");
        assert_eq!(stated["optimizer"], "adamw", "{optim}");
    }
    assert_eq!(stated("galore_adamw")["optimizer"], "galore_adamw");
}

#[test]
fn a_window_that_is_switched_off_is_none() {
    let window = |more: &str| {
        let log = format!("Model config Qwen2Config {{\n  \"sliding_window\": 4096{more}\n}}\n");
        effective(&log).get("sliding_window").cloned()
    };
    assert_eq!(window(""), Some(4096.into()));
    assert_eq!(window(",\n  \"use_sliding_window\": false"), None);
}

#[test]
fn the_models_configuration_and_its_parameters() {
    let log = concat!(
        "INFO - transformers.configuration_utils - Model config MistralConfig {\n  \"architectures\": [\n    \"X\"\n  ],\n",
        "  \"hidden_size\": 4096,\n  \"model_type\": \"mistral\",\n  \"rope_theta\": 1000000.0,\n  \"sliding_window\": null,\n",
        "  \"tie_word_embeddings\": false,\n  \"transformers_version\": \"4.40.2\"\n}\n\n",
        "INFO - trainable params: 3,407,872 || all params: 7,245,139,968 || trainable%: 0.0470\n",
        "INFO -   Number of trainable parameters = 3,407,872\n",
    );
    let stated = json!({"hidden_size": 4096, "architecture": "mistral", "rope_theta": 1_000_000, "tie_embeddings": false});
    assert_eq!(effective(log), stated);
    let trace = parse(&LogSection::named("hf-trainer"), log.as_bytes());
    assert_eq!(
        (
            trace.num_parameters,
            trace.versions["transformers"].as_str()
        ),
        (Some(7_245_139_968), "4.40.2")
    );
    assert_eq!(trace.totals["trainable_parameters"], 3_407_872.0);
}
