//! What makes a job need less memory, in order of what it costs, with the prediction for each
//! change.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MemoryFit, memory};
use crate::{
    job::{Job, Sharding},
    recipe::RecipeFile,
};

/// One change of config.yaml, alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// `training.data.micro_batch_size: 1`
    pub setting: String,
    /// What it costs.
    pub cost: String,
    /// What a device must then have.
    pub device_bytes: u64,
}

/// A setting as it would be written, what it costs, and the job with it.
type Step = (String, &'static str, Job);

/// Changes that the recipe supports, that its memory model knows and that save anything, the
/// cheapest first.
#[must_use]
pub fn changes(recipe: &RecipeFile, job: &Job) -> Vec<Change> {
    let needs = |job: &Job| MemoryFit::of("", memory(recipe, job), None).device_bytes;
    let Some(now) = needs(job) else {
        return Vec::new();
    };
    let mut changes = Vec::new();
    let supported = steps(job)
        .into_iter()
        .filter(|(.., job)| !is_refused(recipe, job));
    for (setting, cost, job) in supported {
        if let Some(device_bytes) = needs(&job).filter(|bytes| *bytes < now) {
            changes.push(Change {
                setting,
                cost: cost.to_owned(),
                device_bytes,
            });
        }
    }
    changes
}

fn steps(job: &Job) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut add = |setting: String, cost: &'static str, change: &dyn Fn(&mut Job)| {
        let mut job = job.clone();
        change(&mut job);
        steps.push((setting, cost, job));
    };
    let (data, parallelism) = (&job.data, &job.parallelism);
    if data.micro_batch_size > 1 {
        add(
            "training.data.micro_batch_size: 1".into(),
            "smaller kernels, the same global batch",
            &|job| {
                job.data.gradient_accumulation_steps *= job.data.micro_batch_size;
                job.data.micro_batch_size = 1;
            },
        );
    }
    if !job.activation_checkpointing {
        add(
            "training.activation_checkpointing: true".into(),
            "about a third more compute",
            &|job| {
                job.activation_checkpointing = true;
                job.sac_frequency = 1;
            },
        );
    }
    for sharding in ["zero1", "zero2", "zero3"] {
        if parallelism.data_parallel_size > 1
            && Sharding::named(&parallelism.sharding) != Sharding::named(sharding)
        {
            add(
                format!("sharding: {sharding} (of the strategy)"),
                "more communication",
                &|job| {
                    job.parallelism.sharding = sharding.into();
                },
            );
        }
    }
    let tp = parallelism.tensor_model_parallel_size * 2;
    let is_divisible = job.model.num_attention_heads.is_multiple_of(tp)
        && job.model.num_kv_heads.max(1).is_multiple_of(tp);
    // Experts are shared out over what is left of DP.
    let rest = parallelism.data_parallel_size / 2 * parallelism.context_parallel_size;
    let has_room = rest.is_multiple_of(parallelism.expert_model_parallel_size.max(1));
    if parallelism.data_parallel_size % 2 == 0 && is_divisible && has_room {
        let setting = format!(
            "TP: {tp}, DP: {} (of the strategy)",
            parallelism.data_parallel_size / 2
        );
        add(setting, "communication in every layer", &|job| {
            job.parallelism.tensor_model_parallel_size = tp;
            job.parallelism.data_parallel_size /= 2;
            job.data.gradient_accumulation_steps *= 2;
        });
    }
    if !job.offload {
        add(
            "training.offload: true".into(),
            "optimizer steps at the speed of the host's memory",
            &|job| job.offload = true,
        );
    }
    if data.seq_length >= 1024 {
        let half = data.seq_length / 2;
        add(
            format!("training.data.seq_length: {half}"),
            "another workload: not comparable with the others",
            &|job| {
                job.data.seq_length = half;
            },
        );
    }
    steps
}

fn is_refused(recipe: &RecipeFile, job: &Job) -> bool {
    let job = serde_json::to_value(job).unwrap_or_default();
    let mut constraints = recipe.unsupported.iter();
    constraints.any(|constraint| constraint.applies(&job))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::fit::tests::{one_gpu, shipped},
        recipe::Constraint,
    };

    #[test]
    fn cheap_changes_come_first_and_each_saves_what_is_predicted_of_it() {
        let job = one_gpu(|_| {});
        let recipe = RecipeFile {
            unsupported: Vec::new(),
            ..shipped("tran")
        };
        let found = changes(&recipe, &job);
        let settings: Vec<&str> = found.iter().map(|c| c.setting.as_str()).collect();
        assert_eq!(
            settings[..2],
            [
                "training.data.micro_batch_size: 1",
                "training.activation_checkpointing: true"
            ],
            "{settings:?}"
        );
        assert_eq!(
            *settings.last().unwrap(),
            "training.data.seq_length: 1024",
            "{settings:?}"
        );
        let now = MemoryFit::of("", memory(&recipe, &job), None)
            .device_bytes
            .unwrap();
        assert!(found.iter().all(|c| c.device_bytes < now));
        let alone = one_gpu(|job| {
            job.data.gradient_accumulation_steps *= job.data.micro_batch_size;
            job.data.micro_batch_size = 1;
        });
        assert_eq!(
            Some(found[0].device_bytes),
            MemoryFit::of("", memory(&recipe, &alone), None).device_bytes
        );
        assert!(
            changes(&shipped("cmd"), &job).is_empty(),
            "nothing is known of it"
        );
        // What the recipe refuses is no advice.
        let when = [("activation_checkpointing".to_owned(), true.into())].into();
        let reason = String::new();
        let refusing = RecipeFile {
            unsupported: vec![Constraint { when, reason }],
            ..recipe
        };
        let found = changes(&refusing, &job);
        assert!(
            !found.is_empty() && found.iter().all(|c| !c.setting.contains("activation")),
            "{found:?}"
        );
    }
}
