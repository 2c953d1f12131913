//! What `models.<id>` of config.yaml may state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shape of a model. Keys that are left out come from the built-in table of models if `name`,
/// `full_name`, `tokenizer_path`, `nemo_recipe` or the id names one of it, and the stated keys
/// agree with it. Where `hf_config` names a file, they come from there instead.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// What the model is looked up by in the built-in table; else for people.
    pub name: Option<String>,
    /// Also what results of older suites are recognised by.
    pub full_name: Option<String>,
    /// Hugging Face's `model_type`: `llama`, `qwen2`, `mistral`, `gpt2`, `qwen3`; with experts
    /// `mixtral`, `qwen2_moe`, `qwen3_moe`, `deepseek_v2`, `deepseek_v3` or `gpt_oss`; `other`: only the trainer knows the shape, so there are
    /// no FLOPs, and a command of your own must train it.
    pub architecture: Option<String>,
    /// An assertion: what is used is the count made from the shape.
    #[schemars(range(min = 1))]
    pub num_parameters: Option<u64>,
    /// Decoder layers.
    #[schemars(range(min = 1))]
    pub num_layers: Option<u64>,
    /// Width of the residual stream.
    #[schemars(range(min = 1))]
    pub hidden_size: Option<u64>,
    /// Width inside the feed-forward block.
    #[schemars(range(min = 1))]
    pub ffn_hidden_size: Option<u64>,
    /// Experts of each layer; absent = a dense model.
    #[schemars(range(min = 1))]
    pub num_experts: Option<u64>,
    /// Experts that each token passes through.
    #[schemars(range(min = 1))]
    pub num_experts_per_tok: Option<u64>,
    /// Width inside an expert; of a `mixtral` or `gpt_oss` absent = ffn_hidden_size.
    #[schemars(range(min = 1))]
    pub moe_intermediate_size: Option<u64>,
    /// Width of the shared expert, which every token passes through; 0 = there is none.
    pub shared_expert_intermediate_size: u64,
    /// Leading layers that have a feed-forward block of ffn_hidden_size in place of experts.
    pub first_k_dense_replace: u64,
    /// Layers that predict a further token each (multi-token prediction). A Hub's config.json that
    /// states some is not asked for them, since transformers trains none.
    pub num_nextn_predict_layers: u64,
    /// Query heads of a layer.
    #[schemars(range(min = 1))]
    pub num_attention_heads: Option<u64>,
    /// Groups of grouped-query attention; absent = one a head.
    #[schemars(range(min = 1))]
    pub num_kv_heads: Option<u64>,
    /// Width of a head's queries and keys; absent = hidden_size / num_attention_heads, or the sum of the
    /// two parts that latent attention has.
    #[schemars(range(min = 1))]
    pub head_dim: Option<u64>,
    /// Latent attention: rank through which queries are made; 0 = none.
    pub q_lora_rank: u64,
    /// Latent attention: width of what keys and values are made from.
    pub kv_lora_rank: u64,
    /// Latent attention: the part of a head's queries and keys without positions.
    pub qk_nope_head_dim: u64,
    /// Latent attention: the part of a head's queries and keys with positions.
    pub qk_rope_head_dim: u64,
    /// Latent attention: width of a head's values.
    pub v_head_dim: u64,
    /// Tokens that one attends to at most, itself included; 0 = all before it. One that is as long as
    /// the sequence changes nothing.
    pub sliding_window: u64,
    /// Every how many layers one attends to all tokens, as 2 in GPT-OSS; 0 = every layer has the window.
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
    /// Added to the mean square in RMSNorm, or to the variance in LayerNorm.
    #[schemars(range(min = 0))]
    pub norm_eps: f64,
    /// The output layer shares the weights of the token embedding.
    pub tie_embeddings: bool,
    /// Q, K and V have a bias, as in Qwen 2.
    pub qkv_bias: bool,
    /// Prefix of a Megatron `.bin`/`.idx` pair; absent = seeded synthetic tokens.
    pub dataset_path: Option<String>,
    /// What jobs and tprimat.lock call the dataset; absent = the last part of its path, which hosts
    /// may well agree on.
    pub dataset_name: Option<String>,
    /// A tokenizer.json, or a folder that has one.
    pub tokenizer_path: Option<String>,
    /// As `dataset_name`; absent = the last part of the path that is not `tokenizer.json` or the
    /// like.
    pub tokenizer_name: Option<String>,
    /// A Hugging Face `config.json` of the project, for the keys that are left out.
    pub hf_config: Option<String>,
    /// A recipe of `nemo.collections.llm.recipes`; a trailing `.pretrain_recipe` is left off.
    pub nemo_recipe: Option<String>,
    /// A file of the Primus checkout's examples; its name tells the preset.
    pub primus_config: Option<String>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            name: None,
            full_name: None,
            architecture: None,
            num_parameters: None,
            num_layers: None,
            hidden_size: None,
            ffn_hidden_size: None,
            num_experts: None,
            num_experts_per_tok: None,
            moe_intermediate_size: None,
            shared_expert_intermediate_size: 0,
            first_k_dense_replace: 0,
            num_nextn_predict_layers: 0,
            num_attention_heads: None,
            num_kv_heads: None,
            head_dim: None,
            q_lora_rank: 0,
            kv_lora_rank: 0,
            qk_nope_head_dim: 0,
            qk_rope_head_dim: 0,
            v_head_dim: 0,
            sliding_window: 0,
            sliding_window_pattern: 0,
            vocab_size: None,
            max_position_embeddings: None,
            rope_theta: None,
            rope_scaling: None,
            norm_eps: 1e-5,
            tie_embeddings: false,
            qkv_bias: false,
            dataset_path: None,
            dataset_name: None,
            tokenizer_path: None,
            tokenizer_name: None,
            hf_config: None,
            nemo_recipe: None,
            primus_config: None,
        }
    }
}

/// Llama 3's frequency-dependent scaling of RoPE.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RopeScaling {
    /// By how much long wavelengths are stretched.
    #[schemars(range(min = 1))]
    pub factor: Option<f64>,
    /// Wavelengths above original length / this are stretched whole.
    #[schemars(range(min = 0))]
    pub low_freq_factor: Option<f64>,
    /// Wavelengths below original length / this are left as they are.
    #[schemars(range(min = 0))]
    pub high_freq_factor: Option<f64>,
    /// The sequence length, in tokens, that the frequencies were made for.
    #[schemars(range(min = 1))]
    pub original_max_position_embeddings: Option<u64>,
}
