//! No field of a job is lost: a change of any reaches the trainer, or makes the cell unsupported,
//! or is said to mean nothing.

use serde_json::{Value, json};
use tprimat::{
    job::{ARCHITECTURES, Job, PRECISIONS, architecture},
    recipe::Recipe,
};

use super::render::{PLAN, render, supported, unsupported};

/// What follows from other fields, and cannot change alone.
const DERIVED: &[&str] = &[
    "model.num_parameters",             // counted from the shape
    "data.gradient_accumulation_steps", // GBS / (MBS × DP)
    "parallelism.data_parallel_size",   // GPUs / (TP × PP × CP)
    "model.max_position_embeddings",    // learned positions: gpt2 only
];

/// Does the field mean nothing to the job's model? Planning refuses what its architecture does not have.
fn is_asleep(field: &str, job: &Job) -> bool {
    let name = field.strip_prefix("model.").unwrap_or_default();
    let known = architecture(&job.model.architecture).expect("of a job that was planned");
    let mut further = job.model.further().into_iter();
    match field {
        "model.num_experts" => false,
        "parallelism.expert_model_parallel_size" => job.model.num_experts == 0,
        _ => further.any(|(further, _)| further == name) && !known.has(name),
    }
}

/// Fields that one framework's trainers read, and no other's.
const NAMES: &[(&str, &str)] = &[
    ("model.nemo_recipe", "nemo"),
    ("model.primus_config", "prim"),
];

/// All that `sharding` may say; words in a row mean the same.
const SHARDING: &[&[&str]] = &[
    &["ddp", "none", "no_shard"],
    &["zero1", "distributed_optimizer", "optim"],
    &["zero2", "shard_grad_op"],
    &["zero3", "fsdp", "fsdp2", "full_shard"],
    &["hsdp"],
];

/// Fields that mean something only where another one is set.
fn awake(field: &str) -> Value {
    match field {
        "fp8_hybrid" | "fp8_param" => json!({ "precision": "fp8" }),
        "compile_mode" => json!({ "compile": true }),
        "sac_frequency" => json!({ "activation_checkpointing": true }),
        "lora_rank" => json!({ "task": "lora" }),
        "optimizer.wsd_decay_steps" => json!({ "optimizer.lr_decay_style": "wsd" }),
        _ => json!({}),
    }
}

fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(
                    value,
                    &if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}.{name}")
                    },
                    found,
                );
            }
        }
        _ => found.push(path.to_owned()),
    }
}

fn at<'a>(job: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(job, |value, part| &mut value[part])
}

/// Other values that the field may have.
fn others(field: &str, now: &Value) -> Vec<Value> {
    match (field, now) {
        ("vendor", _) => vec![json!("cpu"), json!("nvd"), json!("amd")],
        ("model.architecture", _) => ARCHITECTURES.map(|known| json!(known.name)).into(),
        ("precision", _) => PRECISIONS.map(|p| json!(p)).into(),
        ("task", _) => vec![json!("sft"), json!("lora")],
        ("optimizer.lr_decay_style", _) => vec![json!("linear"), json!("constant"), json!("wsd")],
        ("parallelism.sharding", _) => vec![], // a test of its own: "" is each recipe's own way, which has a name too
        ("optimizer.type", _) => vec![],       // planning refuses every other
        ("optimizer.state_precision", _) => vec![json!("bf16")],
        ("model.rope_scaling", _) => {
            vec![
                json!({ "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 }),
            ]
        }
        (_, Value::Bool(now)) => vec![json!(!now)],
        (_, Value::Number(now)) if now.is_u64() => vec![json!(now.as_u64().unwrap() * 2 + 2)],
        (_, Value::Number(now)) => vec![json!(now.as_f64().unwrap() * 1.5 + 0.25)],
        (_, Value::String(now)) => vec![json!(format!("{now}-other"))],
        (_, Value::Null) => vec![json!("something")],
        (_, other) => panic!("{field} is {other}"),
    }
}

fn bytes(recipe: &Recipe, job: &Value) -> Option<Vec<Vec<u8>>> {
    let job: Job = serde_json::from_value(job.clone()).unwrap();
    // A template may refuse what it cannot express, and says so at planning time.
    render(recipe, &job)
        .ok()
        .map(|files| files.into_iter().map(|f| f.bytes).collect())
}

/// Why the change of a field is lost on the recipe; `None`: it is not.
fn lost(recipe: &Recipe, job: &Job, field: &str) -> Option<String> {
    let file = &recipe.file;
    let is_said = file
        .ignored
        .iter()
        .any(|i| i.field == field && !i.reason.is_empty());
    let is_foreign = NAMES
        .iter()
        .any(|(name, of)| *name == field && *of != file.id);
    let is_asleep = is_asleep(field, job);
    if file.launch.reads_job || is_said || is_foreign || is_asleep || DERIVED.contains(&field) {
        return None;
    }
    let mut base = serde_json::to_value(job).unwrap();
    for (name, value) in awake(field).as_object().unwrap() {
        *at(&mut base, name) = value.clone();
    }
    if unsupported(recipe, &base).is_some() {
        return None;
    }
    let before = bytes(recipe, &base);
    let now = at(&mut base, field).clone();
    let others: Vec<_> = others(field, &now)
        .into_iter()
        .filter(|other| *other != now)
        .collect();
    others.into_iter().find_map(|other| {
        let mut changed = base.clone();
        *at(&mut changed, field) = other.clone();
        let runs_there = field != "vendor" || file.vendors.iter().any(|v| json!(v) == other);
        // The vendor is in every train key, and decides environment and image.
        let is_lost = runs_there
            && field != "vendor"
            && unsupported(recipe, &changed).is_none()
            && bytes(recipe, &changed) == before;
        is_lost.then(|| format!("{}: {field} = {other} launches the same as {now}", file.id))
    })
}

#[test]
fn no_field_of_a_job_is_lost() {
    let mut found = Vec::new();
    let mut recipes = std::collections::BTreeSet::new();
    // Recipes that are not in the matrix get the job of one that is.
    let (_, _, llama) = supported()
        .find(|(id, ..)| id.starts_with("nvd/fsdp/llama"))
        .expect("fsdp runs llama");
    let mut mixture = llama.clone();
    mixture.model.architecture = "mixtral".into();
    (mixture.model.num_experts, mixture.model.num_experts_per_tok) = (8, 2);
    mixture.model.moe_intermediate_size = mixture.model.ffn_hidden_size;
    let every = || PLAN.recipes.recipes.values();
    let all = every().map(|recipe| (recipe, llama));
    let all = all.chain(every().map(|recipe| (recipe, &mixture)));
    for (recipe, job) in supported().map(|(_, recipe, job)| (recipe, job)).chain(all) {
        let as_json = serde_json::to_value(job).unwrap();
        if !recipe.file.vendors.contains(&job.vendor) || unsupported(recipe, &as_json).is_some() {
            continue;
        }
        if !recipes.insert((
            recipe.file.id.clone(),
            job.vendor,
            job.model.architecture.clone(),
        )) {
            continue;
        }
        let mut fields = Vec::new();
        leaves(&as_json, "", &mut fields);
        // Groups that may be absent altogether.
        fields.push("model.rope_scaling".into());
        found.extend(
            fields
                .iter()
                .filter(|f| *f != "framework")
                .filter_map(|field| lost(recipe, job, field)),
        );
    }
    assert!(recipes.len() >= 5, "{recipes:?}");
    found.dedup();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Words that mean the same launch the same, and words that do not launch something else, or are
/// refused.
#[test]
fn ways_of_sharding_are_told_apart() {
    let (_, _, llama) = supported()
        .find(|(id, ..)| id.starts_with("nvd/fsdp/llama"))
        .expect("fsdp runs llama");
    let all = PLAN.recipes.recipes.values().map(|recipe| (recipe, llama));
    let mut allowed = 0;
    for (recipe, job) in supported().map(|(_, recipe, job)| (recipe, job)).chain(all) {
        let as_json = serde_json::to_value(job).unwrap();
        // `cmd` needs a command, and hands its job to it.
        if !recipe.file.vendors.contains(&job.vendor) || unsupported(recipe, &as_json).is_some() {
            continue;
        }
        let launched = |word: &&str| {
            let mut changed = as_json.clone();
            changed["parallelism"]["sharding"] = json!(word);
            unsupported(recipe, &changed)
                .is_none()
                .then(|| bytes(recipe, &changed))
                .flatten()
        };
        let mut ways: Vec<Vec<Vec<u8>>> = Vec::new();
        for words in SHARDING {
            let mut launches: Vec<_> = words.iter().filter_map(launched).collect();
            allowed += launches.len();
            launches.dedup();
            assert!(
                launches.len() <= 1,
                "{}: {words:?} mean the same",
                recipe.file.id
            );
            for launch in launches {
                let is_new = recipe.file.launch.reads_job || !ways.contains(&launch);
                assert!(
                    is_new,
                    "{}: {words:?} launch the same as other words",
                    recipe.file.id
                );
                ways.push(launch);
            }
        }
    }
    assert!(allowed > 0, "some recipe is told how to shard");
}

/// What recipes say of fields must be about fields that there are.
#[test]
fn recipes_speak_of_fields_that_exist() {
    let (_, _, job) = supported()
        .find(|(.., job)| job.model.rope_scaling.is_some())
        .expect("llama has scaled RoPE");
    let mut fields = Vec::new();
    leaves(&serde_json::to_value(job).unwrap(), "", &mut fields);
    for recipe in PLAN.recipes.recipes.values() {
        let ignored = recipe.file.ignored.iter().map(|i| &i.field);
        let conditions = recipe.file.unsupported.iter().flat_map(|c| c.when.keys());
        for field in ignored
            .chain(conditions)
            .filter(|f| !f.starts_with("framework."))
        {
            assert!(
                fields.contains(field),
                "{}: there is no field `{field}`",
                recipe.file.id
            );
        }
    }
}
