use serde_json::json;

use super::*;

fn told(lines: &[&str]) -> serde_json::Map<String, Value> {
    let (mut arguments, mut out) = (Arguments::default(), Builder::default());
    for line in lines {
        arguments.line(line, line.find(" ..").unwrap(), &mut Builder::default());
    }
    arguments.tell(&mut out);
    out.trace.effective.0.into_iter().collect()
}

#[test]
fn megatron_behind_any_prefix() {
    let told = told(&[
        "[20260101 00:00:00][rank-0/8][DEBUG] [------arguments.py:1198] :   num_layers ........ 16",
        "  num_query_groups ................................ 4",
        "  group_query_attention ........................... True",
        "  vocab_size ...................................... None",
        "  untie_embeddings_and_output_weights ............. True",
        "  fp8 ............................................. hybrid",
        "  bf16 ............................................ True",
        "  optimizer ....................................... adam",
        "  recompute_granularity ........................... None",
        "  mock_data ....................................... True",
        "  data_path ....................................... None",
        "  lr_warmup_iters ................................. 2",
        "  lr_warmup_samples ............................... 0",
        "  num_layers ...................................... 99",
        "  seconds_of_nobody ............................... 7",
    ]);
    let expected = json!({"num_layers": 16, "num_kv_heads": 4, "tie_embeddings": false, "precision": "fp8",
            "fp8_hybrid": true, "optimizer": "adamw", "activation_checkpointing": false, "recompute_granularity": "none", "data": "mock", "warmup_steps": 2.0});
    assert_eq!(Value::Object(told), expected);
}

#[test]
fn what_is_none_is_stated_as_none() {
    let stated = |value: &str| {
        let line = |name: &str, value: &str| format!("  {name} .......... {value}");
        let lines = [
            line("window_size", value),
            line("mtp_num_layers", "None"),
            line("lora_rank", "16"),
        ];
        Value::Object(told(&lines.each_ref().map(String::as_str)))
    };
    let with = |window: Value| json!({"sliding_window": window, "mtp_num_layers": "none", "lora_rank": 16});
    assert_eq!(stated("(1023, 0)"), with(1024.into()));
    assert_eq!(stated("None"), with("none".into()));
    assert_eq!(
        stated("(-1, 0)"),
        json!({"mtp_num_layers": "none", "lora_rank": 16})
    );
}

#[test]
fn formats_with_scaled_blocks_are_told_by_their_recipe() {
    let precision = |format: &'static str, recipe: &'static str| {
        told(&["  bf16 ..... True", format, recipe])["precision"].clone()
    };
    let of_fp8 = |recipe| precision("  fp8 ...... e4m3", recipe);
    assert_eq!(of_fp8("  fp8_recipe ..... mxfp8"), "mxfp8");
    assert_eq!(of_fp8("  fp8_recipe ..... delayed"), "fp8");
    let of_fp4 = precision("  fp4 ...... e2m1", "  fp4_recipe ..... nvfp4");
    assert_eq!(of_fp4, "nvfp4");
    let none = precision("  fp4 ...... None", "  fp4_recipe ..... nvfp4");
    assert_eq!(none, "bf16");
}

#[test]
fn what_a_router_would_choose_is_stated_of_experts_only() {
    let lines = |experts: &'static str, layers: &'static str| {
        told(&[
            experts,
            "  moe_router_topk ...................... 8",
            "  moe_ffn_hidden_size .................. 768",
            "  moe_shared_expert_intermediate_size .. None",
            layers,
        ])
    };
    let every = "  moe_layer_freq ....... [1, 1]";
    let dense = lines("  num_experts ........... None", every);
    assert_eq!(Value::Object(dense), json!({ "num_experts": 0 }));
    let experts =
        json!({ "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768 });
    let stated = lines("  num_experts ........... 128", every);
    assert_eq!(Value::Object(stated), experts);
    let stated = lines(
        "  num_experts ........... 128",
        "  moe_layer_freq ....... [0, 1]",
    );
    assert_eq!(stated["moe_layer_freq"], "[0, 1]");
    let every_fifth = "  moe_layer_freq ....... 5";
    let stated = lines("  num_experts ........... 128", every_fifth);
    assert_eq!(stated["moe_layer_freq"], "5");
    let expression = "  moe_layer_freq ....... ([1]*24)";
    let stated = lines("  num_experts ........... 128", expression);
    assert_eq!(stated.get("moe_layer_freq"), None);
}

#[test]
fn a_rope_scaling_that_is_not_used_is_not_stated() {
    let factor = |positions: &str, used: Option<&str>, more: &str| {
        let mut lines = vec![
            format!("  position_embedding_type .... {positions}"),
            "  rope_scaling_factor .... 8.0".into(),
        ];
        lines.extend(used.map(|used| format!("  use_rope_scaling .... {used}")));
        lines.extend((!more.is_empty()).then(|| more.to_owned()));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        told(&lines).get("rope_scaling_factor").cloned()
    };
    assert_eq!(factor("rope", Some("True"), ""), Some(json!(8.0)));
    assert_eq!(factor("rope", Some("False"), ""), Some(json!(1.0)));
    assert_eq!(
        factor("rope", None, ""),
        None,
        "a Megatron that does not say whether"
    );
    assert_eq!(factor("learned_absolute", Some("False"), ""), None);
    assert_eq!(factor("yarn", Some("False"), ""), None);
    assert_eq!(
        factor("rope", Some("False"), "  multi_latent_attention .... True"),
        None
    );
    assert_eq!(
        factor(
            "rope",
            Some("False"),
            "  rotary_seq_len_interpolation_factor .... 4"
        ),
        None
    );
    assert_eq!(factor("rope", Some("False"), "  rope_type .... rope"), None);
    for none in ["None", "1", "1.0"] {
        let line = format!("  rotary_seq_len_interpolation_factor .... {none}");
        assert_eq!(
            factor("rope", Some("False"), &line),
            Some(json!(1.0)),
            "{none}"
        );
    }
}

#[test]
fn the_size_that_a_null_tokenizer_is_told_is_not_its_vocabulary() {
    let size = |tokenizer: &str| {
        let line = format!("  tokenizer_type .... {tokenizer}");
        told(&[&line, "  vocab_size .... 2047"])
            .get("vocab_size")
            .cloned()
    };
    assert_eq!(
        (size("NullTokenizer"), size("GPT2BPETokenizer")),
        (None, Some(json!(2047)))
    );
}

#[test]
fn heads_of_keys_and_values_have_three_names() {
    assert_eq!(
        told(&["  num_key_value_heads .... 2"])["num_kv_heads"],
        json!(2)
    );
    assert_eq!(
        told(&["  num_attention_heads_kv .... 2"])["num_kv_heads"],
        json!(2)
    );
    let grouped = [
        "  group_query_attention .... True",
        "  num_query_groups .... 2",
    ];
    assert_eq!(told(&grouped)["num_kv_heads"], json!(2));
}

#[test]
fn sequence_parallelism_is_stated_where_there_is_something_to_share() {
    let stated = |ranks: u64, word: &str| {
        let ranks = format!("  tensor_model_parallel_size .... {ranks}");
        told(&[&ranks, &format!("  sequence_parallel .... {word}")])
            .get("sequence_parallel")
            .cloned()
    };
    assert_eq!(stated(1, "False"), None);
    assert_eq!(
        (stated(2, "False"), stated(2, "True")),
        (Some(json!(false)), Some(json!(true)))
    );
}

#[test]
fn neox_pads_its_values() {
    let told = told(&[
        "  train_batch_size ................ 64..........................updated",
        "  hidden_dropout .................. 0...........................updated",
        "  attention_dropout ............... 0.1.........................default",
        "  optimizer ....................... {'type': 'Adam', 'params': {'lr': 0.1, 'betas': [0.9, 0.95], 'eps': 1e-08}}updated",
        "  optimizer_type .................. Adam........................updated",
        "  precision ....................... bfloat16....................updated",
        "  pipe_parallel_size .............. 0...........................default",
        "  no_weight_tying ................. True........................updated",
    ]);
    let expected = json!({"global_batch_size": 64, "dropout": 0.1, "hidden_dropout": 0.0, "attention_dropout": 0.1, "optimizer": "adamw", "beta1": 0.9, "beta2": 0.95,
            "eps": 1e-8, "precision": "bf16", "pipeline_model_parallel_size": 1, "tie_embeddings": false});
    assert_eq!(Value::Object(told), expected);
}
