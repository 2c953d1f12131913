//! Which settings of the workload a recipe never hands to its trainer.
//!
//! Two jobs that ask for different work must launch differently: else one measurement would be
//! shown under both. A recipe that hands the whole job over (`reads_job`), or says that a field
//! means nothing to it (`[[ignored]]`), is believed. A command of the user's own is believed as
//! well, but for what differs between cells that it launches alike ([`varied`]).

use std::sync::LazyLock;

use serde_json::{Value, json};
use tprimat_job::{Decay, InitJob, Task};

use super::{Recipe, Templates, context};
use crate::{
    job::{ARCHITECTURES, Job, OTHER, PRECISIONS},
    results::settings::{is_further, work_fields},
};

/// Settings that decide how much work a step is: the name in tables, and the field of the job; those
/// last that most models have none of. The number of GPUs is not among them: tprimat itself hands the
/// devices out.
static WORKLOAD: LazyLock<Vec<(&str, String)>> = LazyLock::new(|| {
    let is_elsewhere =
        |field: &str| ["task", "parallelism.num_gpus", "optimizer.type"].contains(&field);
    let work = work_fields().filter(|(_, field)| !is_elsewhere(field));
    let (further, mut all): (Vec<_>, Vec<_>) = work.partition(|(name, _)| is_further(name));
    all.push(("data", "model.dataset".to_owned()));
    all.extend(further);
    all
});

fn workload() -> impl Iterator<Item = (&'static str, &'static str)> {
    WORKLOAD.iter().map(|(name, field)| (*name, field.as_str()))
}

/// Settings that decide how the work is done, and which work, where they are not at their defaults.
const EXECUTION: [(&str, &str); 6] = [
    ("task", "task"),
    (
        "expert_model_parallel_size",
        "parallelism.expert_model_parallel_size",
    ),
    ("compile", "compile"),
    ("activation_checkpointing", "activation_checkpointing"),
    ("sac_frequency", "sac_frequency"),
    ("offload", "offload"),
];
/// Settings that decide the losses and not the speed.
const CONVERGENCE: [(&str, &str); 2] = [
    ("init_std", "initialisation.std"),
    ("lr_decay_style", "optimizer.lr_decay_style"),
];

/// At its default such a setting asks for nothing, so a recipe that never heard of it is right.
fn is_chosen(job: &Job, setting: &str) -> bool {
    match setting {
        "expert_model_parallel_size" => job.parallelism.expert_model_parallel_size > 1,
        "compile" => job.compile,
        "activation_checkpointing" => job.activation_checkpointing,
        "sac_frequency" => job.activation_checkpointing && job.sac_frequency > 1,
        "offload" => job.offload,
        "task" => job.task != Task::default(),
        "lr_decay_style" => job.optimizer.lr_decay_style != Decay::default(),
        _ => job.initialisation != InitJob::default(),
    }
}

/// All that config.yaml states below `frameworks.<id>` and tprimat does not read itself.
pub const OPTIONS: (&str, &str) = ("framework", "framework");

/// A setting that does not reach the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// As tables and attestation call it.
    pub setting: &'static str,
    /// The field of the job, as templates and `[[ignored]]` name it.
    pub field: &'static str,
    /// Without it nobody knows what a rate is of.
    pub is_of_speed: bool,
}

/// The settings that change neither a byte of what the recipe launches for `job`, nor are refused
/// or ignored by it.
#[must_use]
pub fn unreached(recipe: &Recipe, templates: &Templates, job: &Job) -> Vec<Unreached> {
    let mut found = Vec::new();
    let Ok(asked) = serde_json::to_value(job) else {
        return found;
    };
    if recipe.file.launch.reads_job {
        return found;
    }
    let Some(launched) = launch(recipe, templates, &asked) else {
        return found;
    };
    // What most models have none of is 0 there.
    let is_there = |(setting, field): &(&str, &str)| !is_further(setting) || at(&asked, field) != 0;
    let always = workload().filter(is_there).map(|named| (named, true));
    let chosen = EXECUTION
        .map(|named| (named, true))
        .into_iter()
        .chain(CONVERGENCE.map(|named| (named, false)))
        .filter(|((setting, _), _)| is_chosen(job, setting));
    for ((setting, field), is_of_speed) in always.chain(chosen) {
        let is_trainers_own = job.model.architecture == OTHER && field.starts_with("model.");
        let mut ignored = recipe.file.ignored.iter();
        if is_trainers_own || ignored.any(|ignored| ignored.field == field) {
            continue;
        }
        let (mut is_lost, mut is_read) = (false, false);
        for other in others(field, &at(&asked, field)) {
            let other = changed(&asked, field, other);
            if recipe
                .file
                .unsupported
                .iter()
                .any(|constraint| constraint.applies(&other))
            {
                is_read = true;
            } else if is_lost {
                break;
            } else if let Some(other) = launch(recipe, templates, &other) {
                // A template that fails says nothing: what it refuses may be something else that no
                // longer fits.
                is_lost |= other == launched;
                is_read |= other != launched;
            }
        }
        if is_lost || !is_read {
            found.push(Unreached {
                setting,
                field,
                is_of_speed,
            });
        }
    }
    found
}

/// The settings in which jobs differ.
#[must_use]
pub fn varied<'j>(jobs: impl IntoIterator<Item = &'j Job>) -> Vec<Unreached> {
    let jobs: Vec<Value> = jobs.into_iter().map(|job| json!(job)).collect();
    let of_speed = workload().chain(EXECUTION).map(|named| (named, true));
    let all = of_speed.chain(CONVERGENCE.map(|named| (named, false)));
    // Options of the framework's own, as `frameworks.<id>.kernel`.
    let all = all.chain([(OPTIONS, true)]);
    let found = all.filter_map(|((setting, field), is_of_speed)| {
        let mut values = jobs.iter().map(|job| at(job, field));
        let first = values.next()?;
        values.any(|value| value != first).then_some(Unreached {
            setting,
            field,
            is_of_speed,
        })
    });
    found.collect()
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
        let number = |field: &Value| field.as_u64().unwrap_or(1).max(1);
        let steps = number(&at(job, "data.gradient_accumulation_steps"));
        let steps = steps.saturating_mul(number(&at(&changed, field))) / number(&at(job, field));
        changed["data"]["gradient_accumulation_steps"] = json!(steps.max(1));
    }
    changed
}

/// Other values that a field may have.
fn others(field: &str, now: &Value) -> Vec<Value> {
    let of = |choices: &[&str]| {
        choices
            .iter()
            .map(|c| json!(c))
            .filter(|choice| choice != now)
            .collect()
    };
    match (field, now) {
        ("model.architecture", _) => of(&ARCHITECTURES.map(|known| known.name)),
        ("precision", _) => of(&PRECISIONS),
        ("optimizer.state_precision", _) => of(&["fp32", "bf16"]),
        ("task", _) => of(&["pretrain", "sft", "lora"]),
        ("optimizer.lr_decay_style", _) => of(&["cosine", "linear", "constant", "wsd"]),
        // Which data are read reaches a run through `$TPRIMAT_DATASET` and its key; whether they
        // are real is the launch's.
        ("model.dataset", Value::String(_)) => vec![Value::Null],
        (_, Value::Bool(now)) => vec![json!(!now)],
        (_, Value::Number(now)) if now.is_f64() => {
            vec![json!(now.as_f64().unwrap_or(1.0) * 2.0)]
        }
        (_, Value::Number(now)) => {
            let now = now.as_u64().unwrap_or(1);
            // A larger and a smaller one: a template may read no more than whether a number is
            // large.
            let smaller = if now > 1 && now % 2 == 0 {
                now / 2
            } else {
                now.saturating_mul(3)
            };
            vec![json!(now.saturating_mul(2)), json!(smaller)]
        }
        (_, Value::String(now)) => vec![json!(format!("{now}-other"))],
        _ => vec![json!("other")],
    }
}
