//! What config.yaml says is what is resolved: a null says nothing, and no key is accepted without
//! an effect.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde_json::{Value, json};

use super::*;
use crate::{
    config::{Config, schema::ConfigFile},
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

/// Everything that follows from a config for the cells of a small project, as text; problems are
/// part of it.
fn seen(file: &Value, recipes: &RecipeSet) -> Result<String, Vec<Problem>> {
    let config = load(file)?;
    let mut seen = format!("{:?}\n", crate::plan::catalogue(&config));
    for (platform, framework) in [
        ("nvd", "cmd"),
        ("amd", "cmd"),
        ("amd", "prim"),
        ("nvd", "tran"),
    ] {
        for model in ["m", "n"] {
            let text = match resolve(
                &config,
                &cell(platform, framework, model),
                &recipes.recipes[framework],
            ) {
                Ok(r) => format!(
                    "{:?} {:?} {} {:?} {:?} {:?} {} {:?} {:?} {:?}",
                    r.job,
                    r.env,
                    r.share,
                    r.inputs,
                    r.timeout_seconds,
                    r.hang,
                    r.cooldown_seconds,
                    r.statistics,
                    r.data_paths,
                    r.execution
                ),
                Err(Unresolved::Refused(why)) => why,
                Err(Unresolved::Problems(problems)) => {
                    format!(
                        "{:?}",
                        problems
                            .iter()
                            .map(|p| &p.problem.message)
                            .collect::<Vec<_>>()
                    )
                }
            };
            seen += &format!("{platform}/{framework}/{model}: {text}\n");
        }
    }
    Ok(seen)
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
        },
        "training": {
            "data": { "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 128 },
            "duration": { "train_iters": 20 },
            "optimizer": {
                "type": "adamw", "learning_rate": 1e-3, "min_learning_rate": 1e-4, "warmup_steps": 3, "weight_decay": 0.2,
                "beta1": 0.8, "beta2": 0.9, "eps": 1e-7, "clip_grad": 0.5, "state_precision": "bf16",
            },
            "precision": { "default": "fp8", "fp8_hybrid": false, "fp8_param": true },
            "compile": true, "compile_mode": "max-autotune", "activation_checkpointing": true, "sac_frequency": 2,
            "offload": true, "seed": 7, "init_std": 0.01,
        },
        "parallelism": { "s": {
            "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
            "data_parallel_size": 8, "gradient_accumulation_steps": 8, "sharding": "zero1", "num_gpus": 8, "nodes": 2,
        } },
        "platform_optimizations": { "nvd": {
            "env": { "B": "1" }, "precision": "bf16", "fp8_hybrid": true, "fp8_param": false,
            "activation_checkpointing": false, "gradient_checkpointing": false, "cuda_alloc_conf": "x:1",
        } },
        "frameworks": { "cmd": {
            "full_name": "x", "description": "x", "platforms": ["nvd"], "precision": "fp32", "settings": { "command": ["true"] },
            "timeout": "1h", "hang_factor": 20, "hang_least": "1m", "share": true, "env": { "C": "1" }, "inputs": ["a"], "image": "x", "python": "x",
        } },
        "execution": { "nvd": {
            "executor": "slurm+container",
            "container": { "engine": "docker", "image": "x", "python": "p", "mounts": ["/a"], "options": ["--x"] },
            "slurm": {
                "account": "a", "partition": "p", "qos": "q", "constraint": "c", "gres": "gpu:1", "time": "1:00:00", "cpus": 8, "exclusive": true,
                "options": ["--x"], "max_jobs": 3, "cancel_on_interrupt": true,
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

/// Paths of the single values of `value`, in parts.
fn leaves(value: &Value, above: &[String], found: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                leaves(value, &[above, std::slice::from_ref(key)].concat(), found);
            }
        }
        _ => found.push(above.to_vec()),
    }
}

fn at<'a>(file: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(file, |value, key| &mut value[key])
}

#[test]
fn a_null_is_the_same_as_no_line() {
    let (file, recipes) = (full(), recipes());
    let mut paths = Vec::new();
    leaves(&file, &[], &mut paths);
    assert!(paths.len() > 90, "{}", paths.len());
    for path in paths {
        let (mut null, mut absent) = (file.clone(), file.clone());
        *at(&mut null, &path) = Value::Null;
        let (last, above) = path.split_last().unwrap();
        at(&mut absent, above).as_object_mut().unwrap().remove(last);
        let of = |file: &Value| {
            seen(file, &recipes)
                .map_err(|p| p.iter().map(|p| p.message.clone()).collect::<Vec<_>>())
        };
        assert_eq!(of(&null), of(&absent), "{}", path.join("."));
        // In an `env` table the null itself is listed: it takes away what a weaker table sets.
        if above.last().is_none_or(|table| table != "env") {
            let json = |file: &Value| load(file).map(|config| config.to_json()).ok();
            assert_eq!(json(&null), json(&absent), "{}", path.join("."));
        }
    }
}

/// Values that are neither in a job nor in the catalogue, and the source that reads them.
const READ_ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "experiment.name",
        "experiment.name",
        include_str!("../../matrix/implied.rs"),
    ),
    (
        "experiment.methodology",
        "experiment.methodology",
        include_str!("../../matrix/implied.rs"),
    ),
    (
        "experiment.profiling",
        "experiment.profiling",
        include_str!("../../cli/profile.rs"),
    ),
    (
        "hardware.platforms.*.framework",
        ".framework",
        include_str!("../../matrix/implied.rs"),
    ),
    (
        "hardware.platforms.*.gpu_model",
        ".gpu_model",
        include_str!("../facts.rs"),
    ),
    (
        "hardware.platforms.*.memory_per_gpu_gb",
        ".memory_per_gpu_gb",
        include_str!("../fit/capacity.rs"),
    ),
    (
        "models.*.hf_config",
        "hf_config",
        include_str!("../../config/known_models.rs"),
    ),
    (
        "models.*.full_name",
        "full_name",
        include_str!("../../import/names.rs"),
    ),
    (
        "frameworks.*.platforms",
        ".platforms",
        include_str!("../../matrix/implied.rs"),
    ),
    (
        "frameworks.*.python",
        ".python",
        include_str!("../facts.rs"),
    ),
    (
        "frameworks.*.image",
        ".image",
        include_str!("../../cli/image.rs"),
    ),
    (
        "benchmarking.runs.default_num_runs",
        "default_num_runs",
        include_str!("../../matrix/file.rs"),
    ),
    (
        "paths.output",
        "paths.output",
        include_str!("../../config/layers.rs"),
    ),
    (
        "paths.cache",
        "paths.cache",
        include_str!("../../config/layers.rs"),
    ),
    (
        "paths.remote",
        "paths.remote",
        include_str!("../../cli/remote.rs"),
    ),
    ("paths.python", "paths.python", include_str!("../facts.rs")),
    (
        "paths.primus",
        "paths.primus",
        include_str!("../../../recipes/prim/recipe.toml"),
    ),
    (
        "paths.megatron",
        "paths.megatron",
        include_str!("../../../recipes/mlm/recipe.toml"),
    ),
    (
        "paths.megatron_deepspeed",
        "paths.megatron_deepspeed",
        include_str!("../../../recipes/mgds/recipe.toml"),
    ),
];

/// The single values that the schema of config.yaml knows: the path with `*` for names of the
/// user's, and why it only describes, if it does.
fn schema_leaves() -> Vec<(String, Option<String>)> {
    fn walk(
        schema: &Value,
        root: &Value,
        path: &str,
        descriptive: Option<&str>,
        found: &mut Vec<(String, Option<String>)>,
    ) {
        let own = schema["x-descriptive"].as_str().or(descriptive);
        let inner = schema["anyOf"]
            .as_array()
            .and_then(|any| any.iter().find(|s| s["type"] != "null"))
            .unwrap_or(schema);
        if let Some(name) = inner["$ref"].as_str() {
            return walk(
                &root["$defs"][name.rsplit('/').next().unwrap()],
                root,
                path,
                own,
                found,
            );
        }
        let below = |key: &str| {
            if path.is_empty() {
                key.to_owned()
            } else {
                format!("{path}.{key}")
            }
        };
        let properties = inner["properties"].as_object();
        for (key, schema) in properties.into_iter().flatten() {
            walk(schema, root, &below(key), own, found);
        }
        // A block of parallelism holds blocks of its own kind, and an open table anything.
        let more = &inner["additionalProperties"];
        if more.is_object() && properties.is_none() {
            walk(more, root, &below("*"), own, found);
        } else if properties.is_none() {
            found.push((path.to_owned(), own.map(str::to_owned)));
        }
    }
    let schema = schemars::schema_for!(ConfigFile).to_value();
    let mut found = Vec::new();
    walk(&schema, &schema, "", None, &mut found);
    found
}

#[test]
fn no_key_is_accepted_without_an_effect() {
    let (file, recipes) = (full(), recipes());
    let before = seen(&file, &recipes)
        .map_err(|p| crate::config::tests::show(&p))
        .unwrap();
    let mut all = Vec::new();
    leaves(&file, &[], &mut all);
    let others = [
        json!(false),
        json!(true),
        json!(1),
        json!(2),
        json!(4),
        json!(16),
        json!(256),
        json!(0.25),
        json!(0.01),
        json!(2e15),
        json!("fp32"),
        json!("bf16"),
        json!("fp8"),
        json!("default"),
        json!("zero2"),
        json!("amd"),
        json!("2h"),
        json!("podman"),
        json!(["/other"]),
        json!("USD"),
        json!("Qwen2.5 7B"),
        json!("other"),
        json!(["other"]),
        json!({ "command": ["false"] }),
    ];
    for (pattern, descriptive) in schema_leaves() {
        let wanted: Vec<&str> = pattern.split('.').collect();
        let fits = |path: &&Vec<String>| {
            path.len() >= wanted.len()
                && wanted
                    .iter()
                    .zip(path.iter())
                    .all(|(want, key)| *want == "*" || want == key)
        };
        let paths: Vec<_> = all
            .iter()
            .filter(fits)
            .map(|path| path[..wanted.len()].to_vec())
            .collect();
        assert!(
            !paths.is_empty(),
            "{pattern} is not in the file of this test"
        );
        let has_effect = paths.iter().any(|path| {
            others.iter().any(|other| {
                let mut changed = file.clone();
                *at(&mut changed, path) = other.clone();
                seen(&changed, &recipes).is_ok_and(|now| now != before)
            })
        });
        let elsewhere = READ_ELSEWHERE.iter().find(|(path, ..)| *path == pattern);
        if let Some((_, key, source)) = elsewhere {
            assert!(
                source.contains(key),
                "{pattern} is no longer read where READ_ELSEWHERE says"
            );
        }
        assert!(
            has_effect || elsewhere.is_some() || descriptive.is_some(),
            "{pattern} changes nothing: use it, refuse it, or mark it x-descriptive with the reason"
        );
        assert!(
            !(has_effect && descriptive.is_some()),
            "{pattern} is said to describe only, but it has an effect"
        );
    }
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

#[test]
fn a_batch_that_nobody_states_is_one_problem_and_no_number_is_judged_in_its_place() {
    let recipes = recipes();
    let mut file = full();
    file["training"]["data"]
        .as_object_mut()
        .unwrap()
        .remove("global_batch_size");
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
        "what `image build` makes"
    );
}

#[test]
fn the_page_of_keys_has_every_way_of_sharding() {
    let page = crate::config::reference();
    let row = page
        .lines()
        .find(|line| line.starts_with("| `parallelism.<id>.sharding` |"))
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
