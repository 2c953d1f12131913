//! The job: everything that one cell depends on, fully resolved, and nothing else.
//!
//! A trainer reads it as JSON from `$TPRIMAT_JOB`; templates see it as `job`. It holds no name of a
//! cell, a strategy or a platform, no path, no host and no price: two cells whose jobs agree ask
//! for the same measurement. In keys, a field at its default is left out (see
//! `plan::preimage::canonical`), so that a new field voids nothing.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Vendor;

/// What the products of the linear layers may read.
pub const PRECISIONS: [&str; 7] = ["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp4"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Job {
    pub vendor: Vendor,
    pub model: ModelShape,
    pub data: DataJob,
    pub task: Task,
    /// Rank of the matrices that a [`Task::Lora`] trains; 0 elsewhere.
    pub lora_rank: u64,
    /// Optimiser steps to run.
    pub train_iters: u64,
    pub optimizer: OptimizerJob,
    /// One of [`PRECISIONS`].
    pub precision: String,
    pub fp8_hybrid: bool,
    pub fp8_param: bool,
    pub compile: bool,
    /// `torch.compile`'s mode, where `compile` is set.
    pub compile_mode: String,
    pub activation_checkpointing: bool,
    /// Every how many layers one is checkpointed; 1 = every layer. Read where
    /// `activation_checkpointing` is set.
    pub sac_frequency: u64,
    pub offload: bool,
    pub seed: u64,
    pub initialisation: InitJob,
    pub parallelism: ParallelismJob,
    /// `frameworks.<id>.*` of config.yaml, as written.
    pub framework: BTreeMap<String, serde_json::Value>,
}

/// Shape of the network; sizes are counts, not bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelShape {
    /// Hugging Face's `model_type`, one of [`ARCHITECTURES`](crate::ARCHITECTURES).
    pub architecture: String,
    pub num_layers: u64,
    pub hidden_size: u64,
    pub ffn_hidden_size: u64,
    /// Experts of each layer, beside shared ones; 0 = a dense model.
    pub num_experts: u64,
    /// Experts that a token passes through, beside shared ones.
    pub num_experts_per_tok: u64,
    /// Width inside an expert.
    pub moe_intermediate_size: u64,
    /// Width of what every token passes through beside its experts; 0 = nothing.
    pub shared_expert_intermediate_size: u64,
    /// Leading layers with a feed-forward block of `ffn_hidden_size` in place of experts.
    pub first_k_dense_replace: u64,
    /// Layers that predict a further token each, behind the others.
    pub num_nextn_predict_layers: u64,
    pub num_attention_heads: u64,
    pub num_kv_heads: u64,
    /// Width of one head's queries and keys.
    pub head_dim: u64,
    /// Latent attention: rank through which queries are made; 0 = none.
    pub q_lora_rank: u64,
    /// Latent attention: width of what keys and values are made from; 0 = no latent attention.
    pub kv_lora_rank: u64,
    /// Latent attention: the part of a head's queries and keys without positions, and that with them.
    pub qk_nope_head_dim: u64,
    pub qk_rope_head_dim: u64,
    /// Latent attention: width of one head's values.
    pub v_head_dim: u64,
    /// Tokens that one attends to at most, itself included; 0 = all before it, also where a
    /// configured window is as long as the sequence.
    pub sliding_window: u64,
    /// Each of these many layers' last one has no window: 2 = every second layer; 0 = all have it.
    pub sliding_window_pattern: u64,
    pub vocab_size: u64,
    /// Learned positions (gpt2); 0 elsewhere.
    pub max_position_embeddings: u64,
    pub rope_theta: f64,
    pub rope_scaling: Option<RopeScaling>,
    pub norm_eps: f64,
    pub tie_embeddings: bool,
    pub qkv_bias: bool,
    /// Counted from the shape, never taken from a name.
    pub num_parameters: u64,
    /// `Some` = real data, by name; its files are at `$TPRIMAT_DATASET`, which a launch sets.
    pub dataset: Option<String>,
    /// By name; its file or folder is at `$TPRIMAT_TOKENIZER`.
    pub tokenizer: Option<String>,
    pub nemo_recipe: Option<String>,
    pub primus_config: Option<String>,
}

/// Llama 3's frequency-dependent scaling of RoPE.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_position_embeddings: u64,
}

/// What is trained, and on what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// All weights, on text as it comes.
    #[default]
    Pretrain,
    /// All weights, on prompts and answers.
    Sft,
    /// Two narrow matrices beside each of some frozen ones: no gradients of the frozen weights.
    Lora,
}

/// How the learning rate falls behind its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Half a cosine down to the minimum.
    #[default]
    Cosine,
    /// A straight line down to the minimum.
    Linear,
    /// It does not fall.
    Constant,
    /// Warm-up, stable, decay: it stays at its peak, and falls to the minimum in a straight line over
    /// the last steps.
    Wsd,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DataJob {
    /// Sequences per forward pass and data-parallel rank.
    pub micro_batch_size: u64,
    /// Sequences per optimiser step, all ranks together: MBS × DP × GA.
    pub global_batch_size: u64,
    /// Micro-steps per optimiser step on each rank; always derived.
    pub gradient_accumulation_steps: u64,
    /// Tokens per sequence.
    pub seq_length: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OptimizerJob {
    /// `adamw`.
    pub r#type: String,
    /// 0: not stated, which only a command of the user's own may leave so; then nothing is claimed
    /// of it.
    pub learning_rate: f64,
    pub min_learning_rate: f64,
    /// Linear from 0: step s of the first `warmup_steps` runs at learning_rate × s / warmup_steps;
    /// then it falls as `lr_decay_style` says.
    pub warmup_steps: u64,
    pub lr_decay_style: Decay,
    /// Over how many last steps a [`Decay::Wsd`] falls; 0 elsewhere.
    pub wsd_decay_steps: u64,
    pub weight_decay: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// Global gradient-norm limit; 0 = no clipping.
    pub clip_grad: f64,
    /// `fp32` (master weights and moments in fp32) or `bf16` (weights and moments in bf16).
    pub state_precision: String,
}

/// How weights begin: matrices normal(0, std), norms 1, biases 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct InitJob {
    pub std: f64,
}

impl Default for InitJob {
    fn default() -> Self {
        Self { std: 0.02 }
    }
}

/// Degrees of parallelism; TP × PP × CP × DP = num_gpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ParallelismJob {
    pub tensor_model_parallel_size: u64,
    pub pipeline_model_parallel_size: u64,
    pub context_parallel_size: u64,
    pub data_parallel_size: u64,
    /// Devices among those of DP and CP that share the experts of each layer out.
    pub expert_model_parallel_size: u64,
    /// Devices in all. On the cpu platform 1 is "the host's cores".
    pub num_gpus: u64,
    /// Hosts that these devices are on, each with the same number of them. The launch files say it
    /// to the launcher; a trainer is not told.
    pub num_nodes: u64,
    /// What data-parallel ranks share out, in config.yaml's word; `none` = nothing, also where it
    /// says `ddp` or `no_shard`; empty = the recipe's own way.
    pub sharding: String,
}

impl Default for ParallelismJob {
    fn default() -> Self {
        Self {
            tensor_model_parallel_size: 1,
            pipeline_model_parallel_size: 1,
            context_parallel_size: 1,
            data_parallel_size: 1,
            expert_model_parallel_size: 1,
            num_gpus: 1,
            num_nodes: 1,
            sharding: String::new(),
        }
    }
}
