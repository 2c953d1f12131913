//! What `models.<id>` of config.yaml may state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Absent keys come from the `hf_config`, else from the built-in table, if `name`, `full_name`,
/// `tokenizer_path`, `nemo_recipe` or the id is in it and the stated keys agree.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Looked up in the built-in table; else for people.
    pub name: Option<String>,
    /// Also recognises results of older suites.
    pub full_name: Option<String>,
    /// Hugging Face's `model_type`: `llama`, `qwen2`, `mistral`, `gpt2`, `qwen3`; with experts
    /// `mixtral`, `qwen2_moe`, `qwen3_moe`, `deepseek_v2`, `deepseek_v3` or `gpt_oss`; `other`:
    /// only your own command knows the shape; no FLOPs.
    pub architecture: Option<String>,
    /// An assertion: the shape's count is used.
    #[schemars(range(min = 1))]
    pub num_parameters: Option<u64>,
    /// Decoder layers.
    #[schemars(range(min = 1))]
    pub num_layers: Option<u64>,
    /// Width of the model.
    #[schemars(range(min = 1))]
    pub hidden_size: Option<u64>,
    /// Width inside the feed-forward block.
    #[schemars(range(min = 1))]
    pub ffn_hidden_size: Option<u64>,
    /// Experts of each layer; absent = dense.
    #[schemars(range(min = 1))]
    pub num_experts: Option<u64>,
    /// Experts that a token passes through.
    #[schemars(range(min = 1))]
    pub num_experts_per_tok: Option<u64>,
    /// Width inside an expert; absent (`mixtral`, `gpt_oss`) = ffn_hidden_size.
    #[schemars(range(min = 1))]
    pub moe_intermediate_size: Option<u64>,
    /// Width of the shared expert.
    pub shared_expert_intermediate_size: u64,
    /// Leading layers with ffn_hidden_size in place of experts.
    pub first_k_dense_replace: u64,
    /// Layers that predict a further token each; never from `hf_config`.
    pub num_nextn_predict_layers: u64,
    /// Query heads of a layer.
    #[schemars(range(min = 1))]
    pub num_attention_heads: Option<u64>,
    /// Key-value heads; absent = one a head.
    #[schemars(range(min = 1))]
    pub num_kv_heads: Option<u64>,
    /// Absent = hidden_size / num_attention_heads, or both parts of latent attention.
    #[schemars(range(min = 1))]
    pub head_dim: Option<u64>,
    /// Latent attention: rank of queries.
    pub q_lora_rank: u64,
    /// Latent attention: rank of keys and values.
    pub kv_lora_rank: u64,
    /// Latent attention: part of a head without positions.
    pub qk_nope_head_dim: u64,
    /// Latent attention: part of a head with positions.
    pub qk_rope_head_dim: u64,
    /// Latent attention: width of a head's values.
    pub v_head_dim: u64,
    /// Tokens attended to at most; 0 = all.
    pub sliding_window: u64,
    /// Every how many layers one has no window; 0 = none.
    pub sliding_window_pattern: u64,
    /// Unpadded.
    #[schemars(range(min = 1))]
    pub vocab_size: Option<u64>,
    /// Learned positions (gpt2).
    #[schemars(range(min = 1))]
    pub max_position_embeddings: Option<u64>,
    /// Base of the rotary position embedding.
    #[schemars(range(min = 0))]
    pub rope_theta: Option<f64>,
    pub rope_scaling: Option<RopeScaling>,
    /// Epsilon of RMSNorm or LayerNorm.
    #[schemars(range(min = 0))]
    #[serde(default = "norm_eps")]
    pub norm_eps: f64,
    /// Output layer and embedding are one.
    pub tie_embeddings: bool,
    /// As in Qwen 2.
    pub qkv_bias: bool,
    /// Prefix of a Megatron `.bin`/`.idx` pair; absent = seeded tokens.
    pub dataset_path: Option<String>,
    /// Absent = the last part of its path.
    pub dataset_name: Option<String>,
    /// A tokenizer.json, or a folder that has one.
    pub tokenizer_path: Option<String>,
    /// Absent = the last part of its path before `tokenizer.json`.
    pub tokenizer_name: Option<String>,
    /// A Hugging Face `config.json` of the project.
    pub hf_config: Option<String>,
    /// A recipe of `nemo.collections.llm.recipes`, without `.pretrain_recipe`.
    pub nemo_recipe: Option<String>,
    /// A file of the Primus checkout's examples.
    pub primus_config: Option<String>,
}

fn norm_eps() -> f64 {
    1e-5
}

/// Llama 3's frequency-dependent scaling of RoPE.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RopeScaling {
    /// By how much long wavelengths are stretched.
    #[schemars(range(min = 1))]
    pub factor: Option<f64>,
    /// Wavelengths above original length / this are stretched.
    #[schemars(range(min = 0))]
    pub low_freq_factor: Option<f64>,
    /// Wavelengths below original length / this stay.
    #[schemars(range(min = 0))]
    pub high_freq_factor: Option<f64>,
    /// Sequence length trained before.
    #[schemars(range(min = 1))]
    pub original_max_position_embeddings: Option<u64>,
}
