//! What config.yaml and a matrix say is what is resolved for a cell, and what they leave out is one
//! problem with its line.

mod every_key;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde_json::{Value, json};

use super::*;
use crate::{
    config::{Config, Origin, Setting, not_of_cell, schema::ConfigFile},
    error::{Error, Problem, Source},
    job::Sharding,
    recipe::RecipeSet,
};

fn load(file: &Value) -> Result<Config, Vec<Problem>> {
    Config::load(
        Source::new("config.yaml", file.to_string()),
        &BTreeMap::new(),
        &[],
    )
    .map_err(|error| match error {
        Error::Invalid(problems) => problems,
        other => panic!("{other}"),
    })
}

fn cell(platform: &str, framework: &str, model: &str) -> Cell {
    Cell {
        platform: platform.into(),
        vendor: crate::config::vendor_named(platform).unwrap(),
        framework: framework.into(),
        model: model.into(),
        parallelism: "s".into(),
        axes: Vec::new(),
        overlay: Vec::new(),
        repeats: 1,
    }
}

/// States everything that one key can state; `n` is a model that has only a name.
fn full() -> Value {
    json!({
        "experiment": { "name": "x", "description": "x", "version": "1", "methodology": "s", "profiling": false },
        "hardware": { "platforms": {
            "nvd": { "vendor": "nvd", "gpu_model": "a card", "memory_per_gpu_gb": 80, "num_gpus": 8, "software_stack": "x", "framework": "cmd", "env": { "A": "1" } },
            "amd": { "vendor": "amd", "gpu_model": "MI300X", "memory_per_gpu_gb": 192, "num_gpus": 8, "software_stack": "x", "framework": "cmd", "env": { "A": "1" } },
        } },
        "models": {
            "m": {
                "name": "mine", "full_name": "Mine", "architecture": "llama", "num_parameters": 34_000_000, "num_layers": 4,
                "hidden_size": 512, "ffn_hidden_size": 2048, "num_attention_heads": 8, "num_kv_heads": 4, "head_dim": 64,
                "vocab_size": 16384, "max_position_embeddings": 4096, "rope_theta": 10000,
                "rope_scaling": { "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192 },
                "norm_eps": 1e-6, "tie_embeddings": false, "qkv_bias": true, "dataset_path": "a/b", "dataset_name": "b",
                "tokenizer_path": "a/c", "tokenizer_name": "c", "nemo_recipe": "mine", "primus_config": "mine.yaml", "hf_config": "x",
            },
            "n": { "name": "Llama 3.1 8B", "full_name": "x" },
            "d": {
                "architecture": "deepseek_v3", "num_layers": 4, "hidden_size": 512, "ffn_hidden_size": 2048, "num_attention_heads": 8,
                "vocab_size": 16384, "num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1,
                "num_nextn_predict_layers": 1, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
                "v_head_dim": 32,
            },
            "g": {
                "architecture": "gpt_oss", "num_layers": 4, "hidden_size": 512, "ffn_hidden_size": 256, "num_attention_heads": 8,
                "vocab_size": 16384, "num_experts": 12, "num_experts_per_tok": 2, "sliding_window": 64, "sliding_window_pattern": 2,
            },
            "e": {
                "architecture": "qwen2_moe", "num_layers": 4, "hidden_size": 512, "ffn_hidden_size": 2048, "num_attention_heads": 8,
                "vocab_size": 16384, "qkv_bias": true, "num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
                "shared_expert_intermediate_size": 256,
            },
        },
        "training": {
            "data": { "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 128 },
            "duration": { "train_iters": 20 },
            "optimizer": {
                "type": "adamw", "learning_rate": 1e-3, "min_learning_rate": 1e-4, "warmup_steps": 3, "weight_decay": 0.2,
                "lr_decay_style": "wsd", "wsd_decay_steps": 1,
                "beta1": 0.8, "beta2": 0.9, "eps": 1e-7, "clip_grad": 0.5, "state_precision": "bf16",
            },
            "precision": { "default": "fp8", "fp8_hybrid": false, "fp8_param": true },
            "task": "lora", "lora_rank": 8, "compile": true, "compile_mode": "max-autotune", "activation_checkpointing": true, "sac_frequency": 2,
            "offload": true, "seed": 7, "init_std": 0.01,
        },
        "parallelism": { "s": {
            "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
            "data_parallel_size": 8, "expert_model_parallel_size": 1, "gradient_accumulation_steps": 8, "sharding": "zero1", "num_gpus": 8, "nodes": 2,
        } },
        "platform_optimizations": { "nvd": {
            "env": { "B": "1" }, "precision": "bf16", "fp8_hybrid": true, "fp8_param": false,
            "activation_checkpointing": false, "gradient_checkpointing": false, "cuda_alloc_conf": "x:1",
        } },
        "frameworks": { "cmd": {
            "full_name": "x", "description": "x", "platforms": ["nvd"], "precision": "fp32", "settings": { "command": ["true"] },
            "timeout": "1h", "hang_factor": 20, "hang_least": "1m", "share": true, "env": { "C": "1" }, "inputs": ["a"], "log": ["<step>"], "image": "x", "python": "x",
        } },
        "execution": { "nvd": {
            "executor": "slurm+container",
            "container": { "engine": "docker", "image": "x", "python": "p", "mounts": ["/a"], "options": ["--x"] },
            "slurm": {
                "account": "a", "partition": "p", "qos": "q", "constraint": "c", "gres": "gpu:1", "time": "1:00:00", "cpus": 8, "exclusive": true,
                "options": ["--x"], "max_jobs": 3, "cancel_on_interrupt": true,
            },
            "kubernetes": {
                "context": "c", "namespace": "n", "volumes": ["data:/data:ro"], "resource": "x.com/gpu", "cpus": 8, "memory": "1Gi", "shm": "1Gi",
                "node_selector": { "a": "b" }, "tolerations": [{ "key": "k", "operator": "Exists" }], "service_account": "s",
                "pull_secrets": ["p"], "queue": "q", "priority_class": "h", "max_jobs": 3, "cancel_on_interrupt": true,
            },
        } },
        "benchmarking": {
            "output": { "filename_format": "x", "log_format": "x" },
            "metrics": ["x"],
            "warmup": { "skip_steps": 3 },
            "runs": { "default_num_runs": 3, "cooldown_seconds": 4 },
            "enhanced_metrics": {
                "cloud_costs": { "nvd": { "per_gpu_hour": 2, "currency": "EUR", "source": "x" } },
                "hardware_specs": { "nvd": { "peak_flops": { "bf16": 1e15 }, "tdp_watts": 650, "source": "x" } },
            },
        },
        "comparison": { "target_loss": 3 },
        "paths": { "output": "o", "cache": "c", "remote": "none", "python": "p", "primus": "p", "megatron": "p", "megatron_deepspeed": "p" },
        "profiling": { "x": 1 },
        "validation": { "num_parameters_tolerance": 0.1 },
    })
}

fn recipes() -> RecipeSet {
    RecipeSet::load(Path::new("/nonexistent")).unwrap()
}

#[test]
fn the_platform_s_settings_replace_those_of_all_and_a_matrix_replaces_both() {
    let recipes = recipes();
    let resolved =
        |config: &Config, cell: &Cell| match resolve(config, cell, &recipes.recipes["cmd"]) {
            Ok(resolved) => resolved,
            Err(_) => panic!("{cell} must resolve"),
        };
    let mut file = full();
    let config = load(&file).unwrap();
    let (nvd, amd) = (
        resolved(&config, &cell("nvd", "cmd", "m")),
        resolved(&config, &cell("amd", "cmd", "m")),
    );
    // The platform's, then the framework's, then everybody's.
    assert_eq!((&*nvd.job.precision, &*amd.job.precision), ("bf16", "fp32"));
    assert_eq!((nvd.job.fp8_hybrid, amd.job.fp8_hybrid), (true, false));
    assert_eq!(
        (
            nvd.job.activation_checkpointing,
            amd.job.activation_checkpointing
        ),
        (false, true)
    );
    assert_eq!(nvd.env["PYTORCH_CUDA_ALLOC_CONF"], "x:1");
    assert!(
        nvd.notes
            .iter()
            .any(|note| note.contains("`frameworks.cmd.precision: fp32` is not used")),
        "{:?}",
        nvd.notes
    );
    file["platform_optimizations"]["nvd"]["gradient_checkpointing"] = json!(true);
    let config = load(&file).unwrap();
    let nvd = cell("nvd", "cmd", "m");
    assert!(
        resolved(&config, &nvd).job.activation_checkpointing,
        "either of the two names asks for it"
    );
    let view =
        config
            .view(&recipes.recipes["cmd"].defaults, &[])
            .of_cell("nvd", Vendor::Nvd, "cmd");
    let (path, origin) = view.origin("training.precision.default").unwrap();
    assert_eq!(path, "platform_optimizations.nvd.precision");
    assert!(matches!(origin, Origin::File { .. }));
    let source: Arc<Source> = Source::new("m.toml", "fp8");
    let setting = crate::config::Setting {
        path: "training.precision.default".into(),
        value: json!("fp8"),
        origin: Origin::Matrix { source, span: 0..3 },
    };
    assert_eq!(
        resolved(
            &config,
            &Cell {
                overlay: vec![setting],
                ..nvd
            }
        )
        .job
        .precision,
        "fp8"
    );
}

#[test]
fn a_cell_that_the_strategy_leaves_out_is_refused_with_the_line_to_add() {
    let recipes = recipes();
    let refused = |file: &Value| match resolve(
        &load(file).unwrap(),
        &cell("nvd", "cmd", "m"),
        &recipes.recipes["cmd"],
    ) {
        Err(Unresolved::Refused(why)) => why,
        _ => panic!("it must be refused"),
    };
    let mut file = full();
    file["parallelism"]["s"] = json!({ "n": { "DP": 8 } });
    let why = refused(&file);
    assert!(
        why.contains("says nothing for m on nvd")
            && why.contains("`m: { nvd: { TP: 1, PP: 1, DP: 8 } }`"),
        "{why}"
    );
    file["parallelism"]["s"] = json!({ "num_gpus": 12, "TP": 4, "PP": 3 });
    let why = refused(&file);
    assert!(
        why.contains("asks for 12 GPUs")
            && why.contains("a host of nvd has 8")
            && why.contains("whole hosts"),
        "{why}"
    );
    file["parallelism"]["s"] = json!({ "num_gpus": 8, "TP": 8, "nodes": 3 });
    assert!(refused(&file).contains("8 GPUs on 3 nodes"));
}

#[test]
fn a_try_out_of_five_steps_shortens_its_warm_up_and_says_so() {
    let recipes = recipes();
    let env = BTreeMap::from([("TRAIN_ITERS".to_owned(), "2".to_owned())]);
    let of = |file: &Value, env: &BTreeMap<String, String>| {
        let config = Config::load(Source::new("config.yaml", file.to_string()), env, &[]).unwrap();
        resolve(&config, &cell("nvd", "cmd", "m"), &recipes.recipes["cmd"])
    };
    let Ok(resolved) = of(&full(), &env) else {
        panic!("a try-out must resolve")
    };
    assert_eq!(
        (
            resolved.job.train_iters,
            resolved.job.optimizer.warmup_steps
        ),
        (2, 1)
    );
    assert_eq!(resolved.statistics.warmup_steps, 1);
    assert_eq!(
        resolved
            .notes
            .iter()
            .filter(|note| note.contains("the run has only 2 steps"))
            .count(),
        2
    );
    let mut file = full();
    file["training"]["duration"]["train_iters"] = json!(2);
    assert!(
        matches!(of(&file, &BTreeMap::new()), Err(Unresolved::Problems(_))),
        "what a file states is not adapted"
    );
}

#[test]
fn a_model_without_a_shape_is_one_problem_that_lists_what_is_missing() {
    let recipes = recipes();
    let mut file = full();
    file["models"]["n"] = json!({ "num_layers": 80 });
    let Err(Unresolved::Problems(problems)) = resolve(
        &load(&file).unwrap(),
        &cell("nvd", "cmd", "n"),
        &recipes.recipes["cmd"],
    ) else {
        panic!("it has no shape")
    };
    let messages: Vec<&str> = problems
        .iter()
        .map(|p| p.problem.message.as_str())
        .collect();
    assert_eq!(
        messages,
        [
            "`models.n` lacks architecture, hidden_size, ffn_hidden_size, num_attention_heads, vocab_size"
        ]
    );
}

/// What is wrong with experts is one problem, which says what would be right.
#[test]
fn experts_that_do_not_fit_are_one_problem_with_what_would() {
    let recipes = recipes();
    let told = |model: &str, edit: &dyn Fn(&mut Value)| {
        let mut file = full();
        edit(&mut file);
        let found = resolve(
            &load(&file).unwrap(),
            &cell("nvd", "cmd", model),
            &recipes.recipes["cmd"],
        );
        let problems = match found {
            Err(Unresolved::Problems(problems)) => problems,
            _ => panic!("it must be refused"),
        };
        assert_eq!(problems.len(), 1, "{problems:?}");
        let problem = &problems[0].problem;
        assert!(problem.position().is_some(), "{problem}");
        let help = problem.help.clone().unwrap_or_default();
        format!("{}; {help}", problem.message)
    };
    let set = |key: &'static str, value: Value| {
        move |file: &mut Value| file["models"]["e"][key] = value.clone()
    };
    let ep = |ep: u64| {
        move |file: &mut Value| {
            file["parallelism"]["s"]["expert_model_parallel_size"] = json!(ep);
        }
    };
    assert_eq!(
        told("e", &set("architecture", json!("qwen3moe"))),
        "`qwen3moe` is not an architecture tprimat can count; did you mean `qwen3_moe`? expected llama, qwen2, mistral, gpt2, qwen3, mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, gpt_oss, or other, for a model of which only the trainer knows the shape"
    );
    assert_eq!(
        told("e", &set("architecture", json!("qwen2"))),
        "`e` is a qwen2, which has no num_experts, and states num_experts 12; leave it out; mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, gpt_oss may have it"
    );
    assert_eq!(
        told("e", &set("num_experts_per_tok", Value::Null)),
        "`e` is a qwen2_moe and lacks num_experts_per_tok; state num_experts_per_tok, as config.json of the model does"
    );
    assert!(
        told("e", &set("moe_intermediate_size", Value::Null))
            .contains("lacks moe_intermediate_size")
    );
    assert_eq!(
        told("e", &set("num_experts_per_tok", json!(13))),
        "`e`: a token cannot pass through 13 of 12 experts; num_experts_per_tok must be at most num_experts"
    );
    assert_eq!(
        told("e", &set("architecture", json!("qwen3_moe"))),
        "`e` is a qwen3_moe, which has no shared_expert_intermediate_size, and states shared_expert_intermediate_size 256; leave it out; qwen2_moe, deepseek_v2, deepseek_v3 may have it"
    );
    assert_eq!(
        told("e", &ep(8)),
        "`e`: 12 experts do not divide by EP 8; the next smaller EP that can be is 4"
    );
    assert_eq!(
        told("e", &ep(3)),
        "DP 8 × CP 1 = 8 devices do not divide by EP 3; the next smaller EP that can be is 2"
    );
    assert_eq!(
        told("m", &ep(2)),
        "EP 2, and `m` has no experts; leave EP out"
    );
}

#[test]
fn a_format_that_the_card_does_not_have_is_refused_with_those_that_it_has() {
    let recipes = recipes();
    let told = |gpu: &str, precision: &str| {
        let mut file = full();
        file["hardware"]["platforms"]["nvd"]["gpu_model"] = json!(gpu);
        file["platform_optimizations"]["nvd"]["precision"] = json!(precision);
        let config = load(&file).unwrap();
        match resolve(&config, &cell("nvd", "cmd", "m"), &recipes.recipes["cmd"]) {
            Ok(_) => None,
            Err(Unresolved::Problems(problems)) => {
                assert_eq!(problems.len(), 1, "{problems:?}");
                let Problem { message, help, .. } = problems[0].problem.clone();
                Some(format!("{message}; {}", help.unwrap()))
            }
            Err(Unresolved::Refused(why)) => panic!("{why}"),
        }
    };
    for precision in ["nvfp4", "mxfp4", "mxfp8"] {
        let of_h100 =
            format!("a H100 does not compute in {precision}; it computes in fp32, bf16, fp16, fp8");
        assert_eq!(told("H100", precision), Some(of_h100));
        assert_eq!(told("B200", precision), None);
        assert_eq!(told("a card", precision), None, "nobody knows");
    }
    assert!(told("A100", "fp8").is_some() && told("H100", "fp8").is_none());
}

/// The pre-image of a job without experts has no line on them, so no key made before they could be
/// said has changed.
#[test]
fn a_dense_job_says_nothing_of_experts_in_its_key() {
    let (recipes, config) = (recipes(), load(&full()).unwrap());
    let text =
        |model: &str| match resolve(&config, &cell("nvd", "cmd", model), &recipes.recipes["cmd"]) {
            Ok(resolved) => crate::plan::preimage::canonical(
                "job",
                &json!(resolved.job),
                &json!(Job::default()),
            ),
            Err(_) => panic!("{model} must resolve"),
        };
    assert!(!text("m").contains("expert") && !text("m").contains("moe_"));
    assert!(text("e").contains("model.num_experts = 12\n"));
}

#[test]
fn a_batch_that_nobody_states_is_one_problem_and_no_number_is_judged_in_its_place() {
    let recipes = recipes();
    let mut file = full();
    let data = file["training"]["data"].as_object_mut().unwrap();
    data.remove("global_batch_size");
    // With a micro-batch, a command's step is one of each rank.
    data.remove("micro_batch_size");
    let Err(Unresolved::Problems(problems)) = resolve(
        &load(&file).unwrap(),
        &cell("nvd", "cmd", "m"),
        &recipes.recipes["cmd"],
    ) else {
        panic!("it has no batch")
    };
    let messages: Vec<&str> = problems
        .iter()
        .map(|p| p.problem.message.as_str())
        .collect();
    assert_eq!(messages, ["`training.data.global_batch_size` is not set"]);
}

#[test]
fn degrees_are_not_judged_beside_one_that_is_wrong() {
    let recipes = recipes();
    let mut file = full();
    file["parallelism"]["s"] = json!({ "num_gpus": 8, "nodes": 1, "TP": "two", "DP": 4 });
    let source = Source::new("config.yaml", file.to_string());
    let (config, problems) = Config::read(source, &BTreeMap::new(), &[]);
    assert_eq!(
        problems.len(),
        1,
        "{}",
        crate::config::tests::show(&problems)
    );
    let found = resolve(
        &config.unwrap(),
        &cell("nvd", "cmd", "m"),
        &recipes.recipes["cmd"],
    );
    assert!(found.is_ok(), "TP 1 × DP 4 is nobody's");
}

#[test]
fn an_executor_is_the_platform_s_or_its_vendor_s_key_by_key() {
    let recipes = recipes();
    let execution = |file: &Value, platform: &str| match resolve(
        &load(file).unwrap(),
        &cell(platform, "cmd", "m"),
        &recipes.recipes["cmd"],
    ) {
        Ok(resolved) => Ok(resolved.execution),
        Err(Unresolved::Problems(problems)) => Err(problems[0].problem.message.clone()),
        Err(Unresolved::Refused(why)) => Err(why),
    };
    let mut file = full();
    file["execution"] = json!({});
    assert_eq!(
        execution(&file, "nvd").unwrap(),
        Execution::default(),
        "without a word runs are local"
    );
    file["execution"] = json!({
        "nvidia": { "executor": "slurm", "slurm": { "account": "lab", "time": "1:00:00" } },
        "nvd": { "executor": "slurm+podman", "container": { "image": { "cmd": "mine:1" } }, "slurm": { "time": "2:00:00" } },
    });
    let both = execution(&file, "nvd").unwrap();
    assert_eq!(
        (both.slurm.account.as_deref(), both.slurm.time.as_deref()),
        (Some("lab"), Some("2:00:00"))
    );
    let container = both.container.unwrap();
    assert_eq!(
        (container.engine, container.image.as_str()),
        (Some(crate::host::EngineKind::Podman), "mine:1")
    );
    assert_eq!(both.place, crate::plan::Place::Slurm);
    assert_eq!(
        execution(&file, "amd").unwrap(),
        Execution::default(),
        "another vendor's"
    );
    for (key, value, said) in [
        ("executor", json!("slrm"), "`slrm` is not an executor"),
        (
            "executor",
            json!("pyxis"),
            "pyxis starts containers in Slurm jobs only",
        ),
        (
            "container",
            json!({ "image": "a b" }),
            "`a b` cannot be the name of an image",
        ),
        (
            "container",
            json!({ "mounts": ["data"] }),
            "`data` is not a mount",
        ),
        (
            "container",
            json!({ "mounts": ["/a:/b:/c"] }),
            "`/a:/b:/c` is not a mount",
        ),
    ] {
        file["execution"] = json!({ "nvd": { "executor": "container" } });
        file["execution"]["nvd"][key] = value;
        let problem = execution(&file, "nvd").unwrap_err();
        assert!(problem.contains(said), "{problem}");
    }
    file["execution"] = json!({ "nvd": { "executor": "container" } });
    assert_eq!(
        execution(&file, "nvd").unwrap().container.unwrap().image,
        "tprimat/cmd:nvd",
        "what `container build` makes"
    );
}

#[test]
fn the_page_of_keys_has_every_way_of_sharding() {
    let page = include_str!("../../../docs/config.md");
    let row = page
        .lines()
        .find(|line| line.starts_with("- `parallelism.<id>.sharding` "))
        .expect("a row");
    for word in Sharding::names() {
        assert!(row.contains(&format!("`{word}`")), "{word}: {row}");
    }
}

#[test]
fn durations_are_read_as_people_write_them() {
    assert_eq!(seconds("90s"), Some(90.0));
    assert_eq!(seconds("1h 30m"), Some(5400.0));
    assert_eq!(seconds("soon"), None);
}
