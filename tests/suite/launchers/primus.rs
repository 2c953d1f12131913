//! Primus against a mock of its loader that checks every argument it is given.

use serde_json::{Value, json};
use tprimat::job::{Job, RopeScaling};

use super::render::{Stage, cell, ended_well, python, unsupported};

/// How Megatron core up to 0.15 names the argument that 0.16 derives from its configuration.
const OLD_MEGATRON: &str = "group.add_argument('--norm-epsilon', type=float, default=1e-5)\n";
const NEW_MEGATRON: &str = "# made of TransformerConfig: layernorm_epsilon\n";

/// Runs the rendered launcher against the mock; what the mock's pre-trainer was given.
fn given(job: &Job) -> Value {
    given_by(job, OLD_MEGATRON)
}

fn given_by(job: &Job, megatron: &str) -> Value {
    given_to(job, megatron, &[])
}

fn given_to(job: &Job, megatron: &str, more: &[(&str, &str)]) -> Value {
    let (recipe, _) = cell("amd/prim");
    let mut stage = Stage::new(recipe, job);
    for (name, value) in more {
        stage.set(name, *value);
    }
    let checkout = stage.path("primus");
    std::fs::create_dir_all(checkout.join("examples")).unwrap();
    let arguments = checkout.join("third_party/Megatron-LM/megatron/training/arguments.py");
    std::fs::create_dir_all(arguments.parent().unwrap()).unwrap();
    std::fs::write(arguments, megatron).unwrap();
    std::fs::write(checkout.join("mock.py"), include_str!("mock_primus.py")).unwrap();
    std::fs::write(
        checkout.join("examples/run_pretrain.sh"),
        "pip install nothing\nexec python3 mock.py \"$@\"\n",
    )
    .unwrap();
    stage
        .set("PRIMUS_PATH", checkout.to_str().unwrap())
        .set("TPRIMAT_PYTHON", python());
    stage
        .set("HIP_VISIBLE_DEVICES", "4,5,6,7")
        .set("TPRIMAT_DATASET", "/data/c4 (small)");
    let said = ended_well(&stage.run(recipe));
    serde_json::from_str(said.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// What the job asks for, in Primus' words.
fn wanted(job: &Job) -> Value {
    let (m, d, o, p) = (&job.model, &job.data, &job.optimizer, &job.parallelism);
    let is_fp8 = job.precision == "fp8";
    let is_real = m.dataset.is_some();
    let recompute = |value: Value| {
        if job.activation_checkpointing {
            value
        } else {
            Value::Null
        }
    };
    json!({
        "train_iters": job.train_iters, "seed": job.seed,
        "micro_batch_size": d.micro_batch_size, "global_batch_size": d.global_batch_size,
        "seq_length": d.seq_length, "max_position_embeddings": d.seq_length,
        "lr": o.learning_rate, "min_lr": o.min_learning_rate, "lr_warmup_iters": o.warmup_steps,
        "lr_decay_iters": job.train_iters, "lr_decay_style": "cosine", "weight_decay": o.weight_decay,
        "adam_beta1": o.beta1, "adam_beta2": o.beta2, "adam_eps": o.eps, "clip_grad": o.clip_grad,
        "optimizer": "adam", "use_distributed_optimizer": true,
        "bf16": true, "fp8": if is_fp8 { json!(if job.fp8_hybrid { "hybrid" } else { "e4m3" }) } else { Value::Null },
        "fp8_param_gather": is_fp8 && job.fp8_param,
        "tensor_model_parallel_size": p.tensor_model_parallel_size,
        "pipeline_model_parallel_size": p.pipeline_model_parallel_size,
        "context_parallel_size": p.context_parallel_size,
        "sequence_parallel": p.tensor_model_parallel_size > 1,
        "recompute_granularity": recompute(json!("full")), "recompute_method": recompute(json!("uniform")),
        "recompute_num_layers": recompute(json!(1)),
        "num_layers": m.num_layers, "hidden_size": m.hidden_size, "ffn_hidden_size": m.ffn_hidden_size,
        "num_attention_heads": m.num_attention_heads, "num_query_groups": m.num_kv_heads, "kv_channels": m.head_dim,
        "group_query_attention": m.num_kv_heads != m.num_attention_heads, "vocab_size": m.vocab_size - 1,
        "rotary_base": m.rope_theta as u64, "use_rope_scaling": m.rope_scaling.is_some(),
        "rope_scaling_factor": m.rope_scaling.as_ref().map_or(8.0, |s| s.factor),
        "norm_epsilon": m.norm_eps, "add_qkv_bias": m.qkv_bias,
        "untie_embeddings_and_output_weights": !m.tie_embeddings, "init_method_std": job.initialisation.std,
        "mock_data": !is_real, "train_data_path": if is_real { json!("/data/c4 (small)") } else { Value::Null },
        "tokenizer_type": "NullTokenizer", "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "log_interval": 1, "log_avg_skip_iterations": 2, "eval_iters": 0, "save": null, "load": null,
        "finetune": false, "auto_continue_train": false, "save_interval": job.train_iters + 1,
        "cross_entropy_loss_fusion": true, "cross_entropy_fusion_impl": "te", "dataloader_type": "single",
        "create_attention_mask_in_dataloader": false, "stderr_sink_level": "DEBUG", "use_rocm_mem_info_iters": [],
    })
}

#[track_caller]
fn agrees(job: &Job) -> Value {
    let given = given(job);
    for (name, wanted) in wanted(job).as_object().unwrap() {
        let found = &given["overrides"][name];
        let same = match (wanted.as_f64(), found.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => wanted == found,
        };
        assert!(same, "{name}: the job wants {wanted}, Primus gets {found}");
    }
    given
}

#[test]
fn primus_gets_every_setting_of_a_job() {
    let (_, llama) = cell("amd/prim/llama/maximum_performance");
    let given = agrees(&llama);
    assert_eq!(given["model"], "llama3.1_8B.yaml");
    let env = &given["env"];
    let expected =
        json!({ "NNODES": "1", "NODE_RANK": "0", "GPUS_PER_NODE": "8", "MASTER_PORT": "29511" });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&env[name], value, "{name}");
    }
    assert_eq!(
        env["ROCR_VISIBLE_DEVICES"], "4,5,6,7",
        "the devices that this run was given"
    );
    assert_eq!(
        env["HIP_VISIBLE_DEVICES"],
        Value::Null,
        "which Primus counts anew"
    );
    assert!(
        given["cwd"].as_str().unwrap().ends_with("/primus"),
        "{given}"
    );

    let (_, qwen) = cell("amd/prim/qwen/identical_config");
    let given = agrees(&qwen);
    assert_eq!(given["model"], "qwen2.5_7B.yaml");
    assert_eq!(
        given["overrides"]["add_qkv_bias"], true,
        "Primus' own preset has none"
    );
    assert_eq!(given["overrides"]["tensor_model_parallel_size"], 4);
}

#[test]
fn on_several_nodes_primus_is_told_which_one_it_is_on() {
    let (_, mut job) = cell("amd/prim/llama/maximum_performance");
    job.parallelism.num_nodes = 2;
    let node = [("TPRIMAT_NODE_RANK", "1"), ("TPRIMAT_MASTER_ADDR", "first")];
    let given = given_to(&job, OLD_MEGATRON, &node);
    let expected = json!({
        "NNODES": "2", "NODE_RANK": "1", "GPUS_PER_NODE": "4", "MASTER_ADDR": "first", "MASTER_PORT": "29511",
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&given["env"][name], value, "{name}");
    }
    let log = given["env"]["TRAIN_LOG"].as_str().unwrap();
    assert!(
        log.ends_with("/primus-1.log"),
        "the nodes share the folder: {log}"
    );
}

/// What a Primus drops or installs without a word depends on its version.
#[test]
fn neither_a_renamed_argument_nor_pip_surprises() {
    let (recipe, mut job) = cell("amd/prim/qwen");
    job.model.norm_eps = 1e-6;
    assert_eq!(
        given_by(&job, NEW_MEGATRON)["megatron"]["layernorm_epsilon"],
        1e-6
    );
    assert_eq!(
        given_by(&job, OLD_MEGATRON)["megatron"]["norm_epsilon"],
        1e-6
    );

    let mut stage = Stage::new(recipe, &job);
    stage
        .set("PRIMUS_PATH", stage.path("").to_str().unwrap().to_owned())
        .set("TPRIMAT_PYTHON", python());
    let output = stage.run(recipe);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("submodule update --init --recursive"),
        "an empty submodule is no Megatron-LM: {said}"
    );
}

#[test]
fn unusual_settings_arrive_as_well() {
    let (_, mut job) = cell("amd/prim/llama/maximum_performance");
    job.precision = "fp8".into();
    job.fp8_hybrid = false;
    job.fp8_param = true;
    job.activation_checkpointing = true;
    job.optimizer.eps = 1e-12;
    job.optimizer.learning_rate = 1e-7;
    job.optimizer.min_learning_rate = 0.0;
    job.model.rope_scaling = Some(RopeScaling {
        factor: 32.0,
        ..job.model.rope_scaling.unwrap()
    });
    job.model.norm_eps = 1e-6;
    job.model.dataset = Some("c4".into());
    job.model.tie_embeddings = true;
    job.model.primus_config = None;
    job.framework.insert(
        "overrides".into(),
        json!({ "enable_primus_turbo": true, "wandb_project": "a: \u{85}b" }),
    );
    let given = agrees(&job);
    assert_eq!(given["model"], "llama_base.yaml");
    assert_eq!(given["overrides"]["enable_primus_turbo"], true);
    assert_eq!(given["overrides"]["wandb_project"], "a: \u{85}b");
    assert_eq!(given["overrides"]["cross_entropy_fusion_impl"], "te");
    // Without Transformer Engine there is no loss of its own.
    job.framework
        .insert("overrides".into(), json!({ "transformer_impl": "local" }));
    assert_eq!(
        self::given(&job)["overrides"]["cross_entropy_fusion_impl"],
        "native"
    );
}

#[test]
fn what_primus_would_not_take_as_written_is_refused() {
    let (recipe, job) = cell("amd/prim/llama/maximum_performance");
    let refuse = |key: &str, value: Value, why: &str| {
        let mut job = job.clone();
        job.framework.insert(key.into(), value);
        let error = super::render::render(recipe, &job)
            .expect_err("must be refused")
            .to_string();
        assert!(error.contains(why), "{error}");
    };
    refuse(
        "overrides",
        json!({ "lr": 1.0 }),
        "frameworks.prim.overrides.lr is decided by the job",
    );
    refuse(
        "overrides",
        json!({ "wandb_project": "${HOME}" }),
        "would expand",
    );
    refuse("model", json!("${HOME}.yaml"), "would expand");
    // Its mock data has tokens beyond a tiny vocabulary.
    let mut tiny = serde_json::to_value(&job).unwrap();
    tiny["model"]["dataset"] = Value::Null;
    assert_eq!(unsupported(recipe, &tiny), None);
    tiny["model"]["vocab_size"] = json!(512);
    assert!(unsupported(recipe, &tiny).is_some_and(|why| why.contains("tokens up to 4094")));
    tiny["model"]["dataset"] = json!("c4");
    assert_eq!(unsupported(recipe, &tiny), None);
}
