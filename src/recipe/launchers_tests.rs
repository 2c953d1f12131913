//! What the launchers of the larger recipes hand to their frameworks.

use std::{collections::BTreeMap, path::Path, process::Command};

use super::{Nodes, RecipeSet, context};
use crate::job::{Job, RopeScaling};

/// Llama on 8 GPUs, TP 4 × DP 2.
fn job() -> Job {
    let mut job = Job {
        precision: "bf16".into(),
        train_iters: 50,
        seed: 7,
        sac_frequency: 1,
        ..Job::default()
    };
    job.model.architecture = "llama".into();
    (
        job.model.num_layers,
        job.model.hidden_size,
        job.model.ffn_hidden_size,
    ) = (16, 2048, 8192);
    (
        job.model.num_attention_heads,
        job.model.num_kv_heads,
        job.model.head_dim,
    ) = (32, 8, 64);
    (
        job.model.vocab_size,
        job.model.rope_theta,
        job.model.norm_eps,
    ) = (128_256, 500_000.0, 1e-5);
    job.model.rope_scaling = Some(RopeScaling {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    });
    (
        job.data.micro_batch_size,
        job.data.global_batch_size,
        job.data.seq_length,
    ) = (1, 128, 4096);
    job.data.gradient_accumulation_steps = 64;
    let o = &mut job.optimizer;
    (o.r#type, o.state_precision) = ("adamw".into(), "fp32".into());
    (
        o.learning_rate,
        o.min_learning_rate,
        o.warmup_steps,
        o.weight_decay,
    ) = (3e-4, 3e-5, 10, 0.1);
    (o.beta1, o.beta2, o.eps, o.clip_grad) = (0.9, 0.95, 1e-8, 1.0);
    let p = &mut job.parallelism;
    (
        p.num_gpus,
        p.tensor_model_parallel_size,
        p.data_parallel_size,
    ) = (8, 4, 2);
    job
}

fn render(recipe: &str, template: &str, job: &Job) -> String {
    let set = RecipeSet::load(Path::new("/nonexistent")).unwrap();
    let rendered = set
        .templates
        .render(&format!("{recipe}/{template}"), &context(job))
        .unwrap();
    String::from_utf8(rendered.bytes).unwrap()
}

/// The arguments that a script starts Python with, option → values, as a stub in Python's place
/// sees them.
fn arguments(script: &str) -> BTreeMap<String, Vec<String>> {
    let stub = r#"python() { [[ "$1 $2" == "-c import fused"* ]] && return 1; [[ "$1" == -c ]] && return; printf '%s\n' "$@"; exit; }; exec() { "$@"; }"#;
    let output = Command::new("bash")
        .args(["-c", &format!("{stub}\n{script}")])
        .env_clear()
        .envs([
            ("TPRIMAT_PYTHON", "python"),
            ("TPRIMAT_PORT", "4321"),
            ("TPRIMAT_RUN_DIR", "/run dir"),
        ])
        .envs([
            ("MEGATRON_PATH", "/a checkout"),
            ("TPRIMAT_RECIPE_DIR", "/recipe"),
            ("TPRIMAT_DATASET", "/data/x y"),
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut found = BTreeMap::<String, Vec<String>>::new();
    let mut last = String::new();
    for word in String::from_utf8(output.stdout).unwrap().lines() {
        if word.starts_with("--") {
            word.clone_into(&mut last);
        }
        let values = found.entry(last.clone()).or_default();
        if !word.starts_with("--") {
            values.push(word.to_owned());
        }
    }
    found
}

fn words(arguments: &BTreeMap<String, Vec<String>>, option: &str) -> Option<String> {
    arguments.get(option).map(|values| values.join(" "))
}

#[test]
fn pretrain_gpt_gets_the_job_as_arguments() {
    let mut job = job();
    let given = arguments(&render("mlm", "mlm.sh.j2", &job));
    for (option, value) in [
        ("--master-port", "4321 /recipe/train.py"),
        ("--nproc-per-node", "8"),
        ("--num-layers", "16"),
        ("--num-query-groups", "8"),
        ("--vocab-size", "128256"),
        ("--rotary-base", "500000"),
        ("--rope-scaling-factor", "32.0"),
        ("--seq-length", "4096"),
        ("--micro-batch-size", "1"),
        ("--global-batch-size", "128"),
        ("--train-iters", "50"),
        ("--lr", "0.0003"),
        ("--min-lr", "0.00003"),
        ("--lr-warmup-iters", "10"),
        ("--adam-eps", "0.00000001"),
        ("--seed", "7"),
        ("--tensor-model-parallel-size", "4"),
        ("--pipeline-model-parallel-size", "1"),
        ("--sequence-parallel", ""),
        ("--untie-embeddings-and-output-weights", ""),
        ("--bf16", ""),
        ("--mock-data", ""),
        ("--no-gradient-accumulation-fusion", ""),
    ] {
        let number = |text: &str| text.parse::<f64>().ok();
        let same = |a: &str| a == value || number(a).is_some_and(|n| number(value) == Some(n));
        assert!(
            words(&given, option).is_some_and(|a| same(&a)),
            "{option}: {:?}",
            given.get(option)
        );
    }
    for absent in [
        "--recompute-granularity",
        "--fp8-format",
        "--add-qkv-bias",
        "--data-path",
        "--optimizer-cpu-offload",
    ] {
        assert!(!given.contains_key(absent), "{absent}");
    }

    job.model.dataset = Some("text".into());
    (
        job.model.tie_embeddings,
        job.model.qkv_bias,
        job.model.rope_scaling,
    ) = (true, true, None);
    (
        job.activation_checkpointing,
        job.sac_frequency,
        job.precision,
    ) = (true, 1, "fp8".into());
    job.parallelism.pipeline_model_parallel_size = 2;
    let given = arguments(&render("mlm", "mlm.sh.j2", &job));
    assert_eq!(words(&given, "--data-path").as_deref(), Some("/data/x y"));
    assert_eq!(words(&given, "--fp8-format").as_deref(), Some("e4m3"));
    assert!(given.contains_key("--add-qkv-bias"));
    for absent in [
        "--mock-data",
        "--use-rope-scaling",
        "--untie-embeddings-and-output-weights",
        "--fp8-param-gather",
    ] {
        assert!(!given.contains_key(absent), "{absent}");
    }
}

#[test]
fn our_own_programs_start_one_process_a_gpu() {
    for recipe in ["mega", "titan"] {
        let given = arguments(&render(recipe, &format!("{recipe}.sh.j2"), &job()));
        assert_eq!(
            words(&given, "--nproc-per-node").as_deref(),
            Some("8"),
            "{recipe}"
        );
        assert!(
            words(&given, "--master-port").is_some_and(|w| w.starts_with("4321 /recipe/train.py")),
            "{recipe}"
        );
    }
}

fn titan(job: &Job) -> toml::Table {
    render("titan", "titan.toml.j2", job).parse().unwrap()
}

#[test]
fn torchtitan_s_configuration_is_the_job_s() {
    let mut job = job();
    job.parallelism.pipeline_model_parallel_size = 2;
    let config = titan(&job);
    let get = |path: &str| {
        path.split('.')
            .fold(&toml::Value::Table(config.clone()), |at, key| &at[key])
            .to_string()
    };
    for (path, value) in [
        ("training.steps", "50"),
        ("training.seq_len", "4096"),
        ("training.global_batch_size", "128"),
        ("training.local_batch_size", "64"),
        ("training.max_norm", "1.0"),
        ("training.dtype", "\"float32\""),
        ("training.mixed_precision_param", "\"bfloat16\""),
        ("parallelism.pipeline_parallel_microbatch_size", "1"),
        ("parallelism.pipeline_parallel_degree", "2"),
        ("parallelism.tensor_parallel_degree", "4"),
        ("parallelism.data_parallel_shard_degree", "2"),
        ("optimizer.eps", "0.00000001"),
        ("lr_scheduler.warmup_steps", "10"),
        ("activation_checkpoint.mode", "\"none\""),
        ("compile.enable", "false"),
        ("metrics.log_freq", "1"),
        ("debug.seed", "7"),
    ] {
        assert_eq!(get(path), value, "{path}");
    }

    (
        job.activation_checkpointing,
        job.sac_frequency,
        job.precision,
    ) = (true, 2, "fp8".into());
    (
        job.optimizer.clip_grad,
        job.compile,
        job.parallelism.pipeline_model_parallel_size,
    ) = (0.0, true, 1);
    let config = titan(&job);
    assert_eq!(
        config["activation_checkpoint"]["selective_ac_option"].as_str(),
        Some("2")
    );
    assert_eq!(
        config["model"]["converters"][0].as_str(),
        Some("quantize.linear.float8")
    );
    assert_eq!(
        config["quantize"]["linear"]["float8"]["recipe_name"].as_str(),
        Some("rowwise")
    );
    assert_eq!(
        config["training"]["max_norm"].as_float(),
        Some(f64::INFINITY)
    );
    assert_eq!(config["training"]["local_batch_size"].as_integer(), Some(1));
}

/// What a recipe does not hand over would cost its cells their rates.
#[test]
fn shipped_recipes_hand_the_whole_workload_over() {
    let set = RecipeSet::load(Path::new("/nonexistent")).unwrap();
    for recipe in set.recipes.values() {
        for dataset in [None, Some("text".to_owned())] {
            let mut job = job();
            job.model.dataset = dataset;
            assert_eq!(
                super::unreached(recipe, &set.templates, &job),
                [],
                "{}",
                recipe.file.id
            );
        }
    }
}

#[test]
fn each_shipped_recipe_starts_on_several_nodes_or_says_why_not() {
    let set = RecipeSet::load(Path::new("/nonexistent")).unwrap();
    for (id, recipe) in &set.recipes {
        let reason = |pipeline: u64| {
            let mut job = job();
            (job.parallelism.num_nodes, job.parallelism.num_gpus) = (2, 16);
            job.parallelism.pipeline_model_parallel_size = pipeline;
            let job = serde_json::to_value(job).unwrap();
            let is_of_nodes = |c: &&super::Constraint| c.when.contains_key("parallelism.num_nodes");
            let refusals = recipe.file.unsupported.iter();
            refusals
                .filter(is_of_nodes)
                .find(|c| c.applies(&job))
                .map(|c| c.reason.as_str())
        };
        let starts = recipe.file.launch.nodes != Nodes::One;
        assert_ne!(starts, reason(1).is_some(), "{id}: {:?}", reason(1));
        // Which rank of torchtitan's prints the steps depends on its pipeline.
        assert_eq!(reason(2).is_none(), starts && id != "titan", "{id}");
    }
    let ranks = |id: &str| set.recipes[id].file.launch.nodes;
    for id in ["mlm", "mgds", "prim"] {
        assert_eq!(ranks(id), Nodes::LastRankSpeaks, "{id}");
    }
    for id in ["fsdp", "tran", "deep", "mega", "titan", "nemo"] {
        assert_eq!(ranks(id), Nodes::FirstRankSpeaks, "{id}");
    }
}
