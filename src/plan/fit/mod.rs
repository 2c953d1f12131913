//! Memory that a job needs on the GPU that needs most, by what each framework keeps, and when.
//!
//! Pure arithmetic on the job. A training step is a row of phases; each has a list of what is
//! allocated then, and the largest sum is the predicted peak of PyTorch's allocator
//! (`peak_allocated`). Formulas, their derivation and the measured peaks that they are compared
//! with: docs/METRICS.md, "Memory (fit)".
mod advice;
mod capacity;
mod megatron;
mod sizes;
mod torch;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    job::{Architecture, Job, Task, Vendor, architecture},
    recipe::{MemoryModel, RecipeFile},
};
use sizes::Sizes;

pub use advice::{Change, changes};
pub use capacity::{Capacity, FitVerdict, MemoryFit, fit, gib};

/// Something that is allocated while a phase lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Component {
    pub name: String,
    pub bytes: u64,
}

/// What PyTorch's allocator hands out at most, and of what that is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    pub peak_allocated_bytes: u64,
    /// The phase of a step in which the peak is met: `head`, `layers`, `gradients` or `update`,
    /// with its direction.
    pub phase: String,
    /// What is allocated then; adds up to the peak.
    pub components: Vec<Component>,
    /// What the figure rests on, in sentences.
    pub assumptions: Vec<String>,
    /// Has this framework's model been compared with measured peaks?
    pub is_checked: bool,
}

impl Memory {
    /// Does the trainer need less than this?
    #[must_use]
    pub fn is_upper_bound(&self) -> bool {
        let mut all = self.assumptions.iter();
        all.any(|assumption| assumption.ends_with(UPPER_BOUND))
    }
}

/// Ends an assumption by which a figure is more than what is needed.
pub(super) const UPPER_BOUND: &str = "which is an upper bound";

/// A moment of a step: its name, and what is allocated in bytes.
struct Phase {
    name: &'static str,
    parts: Vec<(&'static str, f64)>,
}

impl Phase {
    fn new(name: &'static str, parts: &[&[(&'static str, f64)]]) -> Self {
        Self {
            name,
            parts: parts.concat(),
        }
    }

    fn total(&self) -> f64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Workspaces of cuBLAS: 32 MiB each on Hopper, for the thread that goes forward and the one that
/// goes backward.
const WORKSPACES: (&str, f64) = ("cuBLAS workspaces", 67_108_864.0);

/// The predicted peak of a job under a recipe, or why none is known.
pub fn memory(recipe: &RecipeFile, job: &Job) -> Result<Memory, String> {
    if job.vendor == Vendor::Cpu {
        return Err("not modelled: a CPU's memory is the host's".into());
    }
    let Some(section) = &recipe.memory else {
        return Err(format!(
            "not known: the recipe `{}` does not describe what it keeps in memory ([memory] in its recipe.toml)",
            recipe.id
        ));
    };
    if !section.precisions.contains(&job.precision) {
        return Err(format!("not modelled: precision {}", job.precision));
    }
    let is_counted = |known: &&Architecture| !(known.is_gpt2 || known.is_gpt_oss);
    let known = architecture(&job.model.architecture).filter(is_counted);
    let Some(known) = known else {
        return Err(format!(
            "not modelled: architecture {}",
            job.model.architecture
        ));
    };
    if job.task == Task::Lora {
        return Err("not modelled: adapters beside frozen weights".into());
    }
    let sizes = Sizes::of(job).ok_or("not modelled: the shape or the batch is incomplete")?;
    let mut assumptions = vec!["attention by a flash kernel: no scores are kept".to_owned()];
    let phases = match section.model {
        MemoryModel::TprimatNative => torch::native(job, &sizes)?,
        MemoryModel::TransformersTrainer => torch::trainer(job, &sizes, &mut assumptions)?,
        MemoryModel::Fsdp2 => torch::fsdp2(job, &sizes, &mut assumptions)?,
        MemoryModel::DeepspeedZero => torch::zero(job, &sizes, &mut assumptions)?,
        MemoryModel::Torchtitan => torch::torchtitan(job, &sizes, &mut assumptions)?,
        MemoryModel::Megatron => {
            megatron::megatron(section.vocab_multiple, job, &sizes, &mut assumptions)?
        }
    };
    let peak = phases
        .into_iter()
        .max_by(|a, b| a.total().total_cmp(&b.total()))
        .ok_or("not modelled")?;
    let components: Vec<Component> = peak
        .parts
        .iter()
        .filter(|(_, bytes)| *bytes >= 1.0)
        .map(|(name, bytes)| Component {
            name: (*name).to_owned(),
            bytes: bytes.round() as u64,
        })
        .collect();
    if known.has_experts() {
        assumptions.push("each expert sees its share of the tokens, none more".to_owned());
    }
    // Of the others four peaks are known, 0.3 to 2.4 % below the prediction: docs/METRICS.md, "Memory".
    let is_measured = !known.has_experts() && !known.has_qk_norm;
    let is_checked = is_measured && section.checked.contains(&job.precision);
    if !is_checked {
        assumptions.push(if is_measured {
            "derived from how the framework works; never compared with a measured peak".into()
        } else {
            "derived from how the framework works; few peaks of models like it were measured".into()
        });
    }
    Ok(Memory {
        peak_allocated_bytes: components
            .iter()
            .fold(0, |sum, c| sum.saturating_add(c.bytes)),
        phase: peak.name.to_owned(),
        components,
        assumptions,
        is_checked,
    })
}
