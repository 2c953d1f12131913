//! Which settings of the workload a recipe never hands to its trainer.
//!
//! Two jobs that ask for different work must launch differently: else one measurement would be shown under both. A recipe
//! that hands the whole job over (`reads_job`), or says that a field means nothing to it (`[[ignored]]`), is believed.

use serde_json::{Value, json};

use super::{Recipe, Templates, context};
use crate::plan::Job;

/// Settings that decide how much work a step is: the name in tables, and the field of the job. The number of GPUs is not
/// among them: tprimat itself hands the devices out.
const WORKLOAD: [(&str, &str); 15] = [
    ("architecture", "model.architecture"),
    ("num_layers", "model.num_layers"),
    ("hidden_size", "model.hidden_size"),
    ("ffn_hidden_size", "model.ffn_hidden_size"),
    ("num_attention_heads", "model.num_attention_heads"),
    ("num_kv_heads", "model.num_kv_heads"),
    ("head_dim", "model.head_dim"),
    ("vocab_size", "model.vocab_size"),
    ("tie_embeddings", "model.tie_embeddings"),
    ("qkv_bias", "model.qkv_bias"),
    ("seq_length", "data.seq_length"),
    ("global_batch_size", "data.global_batch_size"),
    ("precision", "precision"),
    ("optimizer_state_precision", "optimizer.state_precision"),
    ("data", "model.dataset"),
];

/// A setting that does not reach the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// As tables and attestation call it.
    pub setting: &'static str,
    /// The field of the job, as templates and `[[ignored]]` name it.
    pub field: &'static str,
}

/// The settings that change neither a byte of what the recipe launches for `job`, nor are refused or ignored by it.
#[must_use]
pub fn unreached(recipe: &Recipe, templates: &Templates, job: &Job) -> Vec<Unreached> {
    let mut found = Vec::new();
    let Ok(asked) = serde_json::to_value(job) else { return found };
    let Some(launched) = launch(recipe, templates, &asked) else { return found };
    if recipe.file.launch.reads_job {
        return found;
    }
    for (setting, field) in WORKLOAD {
        if recipe.file.ignored.iter().any(|ignored| ignored.field == field) {
            continue;
        }
        let is_lost = |other: Value| {
            let other = changed(&asked, field, other);
            let is_refused = recipe.file.unsupported.iter().any(|constraint| constraint.applies(&other));
            // A template that refuses the value has read it.
            !is_refused && launch(recipe, templates, &other).is_some_and(|other| other == launched)
        };
        if others(field, &at(&asked, field)).into_iter().any(is_lost) {
            found.push(Unreached { setting, field });
        }
    }
    found
}

fn launch(recipe: &Recipe, templates: &Templates, job: &Value) -> Option<Vec<Vec<u8>>> {
    let job: Job = serde_json::from_value(job.clone()).ok()?;
    let context = context(&job);
    let mut files = Vec::new();
    for (name, _) in &recipe.templates {
        files.push(templates.render(name, &context).ok()?.bytes);
    }
    Some(files)
}

fn pointer(field: &str) -> String {
    format!("/{}", field.replace('.', "/"))
}

fn at(job: &Value, field: &str) -> Value {
    job.pointer(&pointer(field)).cloned().unwrap_or_default()
}

/// The job with another value of one field, and what follows from it.
fn changed(job: &Value, field: &str, value: Value) -> Value {
    let mut changed = job.clone();
    if let Some(slot) = changed.pointer_mut(&pointer(field)) {
        *slot = value;
    }
    if field == "data.global_batch_size" {
        // Micro-batch and ranks stay, so a larger batch is more accumulation.
        let steps = at(job, "data.gradient_accumulation_steps").as_u64().unwrap_or(1);
        changed["data"]["gradient_accumulation_steps"] = json!(steps * 2);
    }
    changed
}

/// Other values that a field may have.
fn others(field: &str, now: &Value) -> Vec<Value> {
    let of = |choices: &[&str]| choices.iter().map(|c| json!(c)).filter(|choice| choice != now).collect();
    match (field, now) {
        ("model.architecture", _) => of(&["llama", "qwen2", "mistral", "gpt2"]),
        ("precision", _) => of(&["fp32", "bf16", "fp8"]),
        ("optimizer.state_precision", _) => of(&["fp32", "bf16"]),
        // Which data are read reaches a run through `$TPRIMAT_DATASET` and its key; whether they are real is the launch's.
        ("model.dataset", Value::String(_)) => vec![Value::Null],
        (_, Value::Bool(now)) => vec![json!(!now)],
        (_, Value::Number(now)) => vec![json!(now.as_u64().unwrap_or(1) * 2)],
        (_, Value::String(now)) => vec![json!(format!("{now}-other"))],
        _ => vec![json!("other")],
    }
}
