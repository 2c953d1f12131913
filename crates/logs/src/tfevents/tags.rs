//! Tags of several trainers → what their values are.

use crate::numbers::GIB;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place<'a> {
    Time,
    /// A mean since the value before it.
    MeanTime,
    Loss,
    LearningRate,
    GradNorm,
    Tflops,
    TokensPerGpu,
    TokensOfAll,
    GlobalBatchSize,
    ConsumedSamples,
    /// What it counts, and bytes of its unit.
    Memory(&'static str, f64),
    Evaluation(&'a str),
    Total(&'a str),
    Setting(&'static str),
    Other,
}

/// Tags whose event's `step` is no step: Megatron writes its curves once more over samples.
const OVER_SOMETHING_ELSE: &[&str] = &[" vs samples", " vs steps", "-vs-samples", " vs tokens"];

const KNOWN: &[(&str, Place<'static>)] = &[
    // NeMo
    ("train_step_timing", Place::Time),
    ("train_step_timing in s", Place::Time),
    ("reduced_train_loss", Place::Loss),
    ("lr", Place::LearningRate),
    ("grad_norm", Place::GradNorm),
    ("global_batch_size", Place::GlobalBatchSize),
    ("consumed_samples", Place::ConsumedSamples),
    ("TFLOPS_per_GPU", Place::Tflops),
    ("peak_memory_usage", Place::Memory("peak_allocated", 1.0)),
    ("max_memory_allocated", Place::Memory("peak_allocated", 1.0)),
    ("max_memory_reserved", Place::Memory("peak_reserved", 1.0)),
    ("memory_allocated", Place::Memory("allocated", 1.0)),
    ("val_loss", Place::Evaluation("validation_loss")),
    // Megatron
    ("lm loss", Place::Loss),
    ("iteration-time", Place::MeanTime),
    ("learning-rate", Place::LearningRate),
    ("grad-norm", Place::GradNorm),
    ("batch-size", Place::GlobalBatchSize),
    ("throughput", Place::Tflops),
    ("world-size", Place::Setting("num_gpus")),
    (
        "mem-max-allocated-bytes",
        Place::Memory("peak_allocated", 1.0),
    ),
    ("mem-allocated-bytes", Place::Memory("allocated", 1.0)),
    ("mem-reserved-bytes", Place::Memory("reserved", 1.0)),
    ("lm loss validation", Place::Evaluation("validation_loss")),
    // Hugging Face
    ("train/loss", Place::Loss),
    ("train/grad_norm", Place::GradNorm),
    ("train/learning_rate", Place::LearningRate),
    ("train/train_runtime", Place::Total("train_runtime_seconds")),
    ("train/train_loss", Place::Total("train_loss")),
    ("train/total_flos", Place::Total("total_flos")),
    (
        "train/train_samples_per_second",
        Place::Total("train_samples_per_second"),
    ),
    (
        "train/train_steps_per_second",
        Place::Total("train_steps_per_second"),
    ),
    ("eval/loss", Place::Evaluation("validation_loss")),
    // Lightning
    ("train_loss_step", Place::Loss),
    // Composer
    ("throughput/device/tokens_per_sec", Place::TokensPerGpu),
    ("throughput/tokens_per_sec", Place::TokensOfAll),
    // Scripts of one's own
    ("loss", Place::Loss),
    ("train/lr", Place::LearningRate),
    ("learning_rate", Place::LearningRate),
    ("step_time_seconds", Place::Time),
    ("train/step_time_seconds", Place::Time),
    ("loss/train/total", Place::Loss),
    ("val/loss", Place::Evaluation("validation_loss")),
    ("tokens_per_second_per_gpu", Place::TokensPerGpu),
    ("tokens_per_second", Place::TokensOfAll),
    ("tokens_per_sec", Place::TokensOfAll),
    ("tokens/s", Place::TokensOfAll),
    ("tok/s", Place::TokensOfAll),
    ("train/tokens_per_second", Place::TokensOfAll),
    ("train/tokens_per_sec", Place::TokensOfAll),
    // torchtitan
    ("loss_metrics/global_avg_loss", Place::Loss),
    ("throughput(tps)", Place::TokensPerGpu),
    ("tflops", Place::Tflops),
    ("time_metrics/end_to_end(s)", Place::MeanTime),
    (
        "memory/max_reserved(GiB)",
        Place::Memory("peak_reserved", GIB),
    ),
    ("memory/max_active(GiB)", Place::Memory("peak_active", GIB)),
    // MaxText
    ("learning/loss", Place::Loss),
    ("learning/current_learning_rate", Place::LearningRate),
    ("learning/grad_norm", Place::GradNorm),
    ("perf/step_time_seconds", Place::Time),
    ("perf/per_device_tflops_per_sec", Place::Tflops),
    ("perf/per_device_tokens_per_sec", Place::TokensPerGpu),
];

impl Place<'_> {
    /// Is it something that a training step says of itself?
    pub fn is_of_step(&self) -> bool {
        !matches!(
            self,
            Place::Evaluation(_) | Place::Total(_) | Place::Setting(_) | Place::Other
        )
    }
}

pub fn place(tag: &str) -> Option<Place<'_>> {
    if OVER_SOMETHING_ELSE.iter().any(|end| tag.ends_with(end)) {
        return None;
    }
    if let Some((_, place)) = KNOWN.iter().find(|(name, _)| *name == tag) {
        return Some(*place);
    }
    let evaluation =
        tag.starts_with("eval/") || tag.ends_with(" validation") || tag.starts_with("val_");
    Some(if evaluation {
        Place::Evaluation(tag)
    } else {
        Place::Other
    })
}
