//! Parameters and FLOPs of a model, from its shape alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_job::{ModelShape, Task, count_active_parameters};

/// Name of the one convention used here. Others differ by up to 27 % for the same run, so it is
/// always shown.
pub const CONVENTION: &str = "causal-halved";

/// Forward and backward floating-point operations per trained token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlopsPerToken {
    pub value: f64,
    /// `causal-halved`: 6·(N − N_embedding unless tied) + 12·L·H·Q·C, where N is what a token passes
    /// through: of experts those that are chosen for it, and C is how many tokens it attends to: half
    /// of the sequence, less in layers with a window. Where only adapters are trained, 4 and not 6 of
    /// the first term. Recomputation does not count.
    pub convention: String,
}

/// FLOPs of what is computed once a token in matrix products, forward alone: 2 for each weight that
/// it passes through, of the embedding only where it is the output matrix too. A layer that predicts
/// a further token uses the output matrix again.
pub(super) fn products(shape: &ModelShape) -> Option<f64> {
    let embedding = shape.vocab_size as f64 * shape.hidden_size as f64;
    let looked_up = if shape.tie_embeddings { 0.0 } else { 1.0 };
    let times = shape.num_nextn_predict_layers as f64 - looked_up;
    Some(2.0 * (count_active_parameters(shape)? as f64 + times * embedding))
}

/// FLOPs of scores and their product with the values, forward alone, of a token that attends to one
/// other in every layer.
pub(super) fn pairs(shape: &ModelShape) -> f64 {
    let layers = (shape.num_layers + shape.num_nextn_predict_layers) as f64;
    4.0 * layers * shape.attention_width()
}

/// FLOPs per token of training `shape` at `seq_length`.
#[must_use]
pub fn flops_per_token(shape: &ModelShape, task: Task, seq_length: u64) -> Option<FlopsPerToken> {
    // A backward pass has a product for the input of each matrix and one for its weights.
    let passes = if task == Task::Lora { 2.0 } else { 3.0 };
    let attention = pairs(shape) * shape.attended_tokens(seq_length as f64);
    let value = passes * products(shape)? + 3.0 * attention;
    (seq_length > 0).then(|| FlopsPerToken {
        value,
        convention: CONVENTION.to_owned(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    pub use crate::results::stand_ins::llama_8b;
    pub use crate::results::stand_ins::mixture;
    use crate::results::stand_ins::shape;

    fn of(shape: &ModelShape, seq_length: u64) -> Option<FlopsPerToken> {
        flops_per_token(shape, Task::Pretrain, seq_length)
    }

    /// Worked out in docs/METRICS.md, `FLOPs per token`: matrices, halved attention, both; and with
    /// attention in full.
    #[test]
    fn flops_agree_with_worked_examples() {
        let qwen = shape("qwen2", [28, 3584, 18944, 28, 4, 128, 152_064], false);
        let mistral = shape("mistral", [32, 4096, 14336, 32, 8, 128, 32_000], false);
        let gpt2 = shape("gpt2", [12, 768, 3072, 12, 12, 64, 50_257], true);
        let gpt2_xl = shape("gpt2", [48, 1600, 6400, 25, 25, 64, 50_257], true);
        for (shape, seq_length, matrices, attention, full) in [
            (&llama_8b(), 8192, 45_029_548_032.0, 6_442_450_944.0, 57.91),
            (&qwen, 4096, 42_423_714_816.0, 2_466_250_752.0, 47.36),
            (&qwen, 8192, 42_423_714_816.0, 4_932_501_504.0, 52.29),
            (&mistral, 4096, 42_663_960_576.0, 3_221_225_472.0, 49.11),
            (&mistral, 8192, 42_663_960_576.0, 6_442_450_944.0, 55.55),
            (&mixture(), 4096, 18_251_206_656.0, 4_831_838_208.0, 27.91),
            (&gpt2, 1024, 746_638_848.0, 56_623_104.0, 0.86),
            (&gpt2_xl, 1024, 9_345_667_200.0, 471_859_200.0, 10.29),
        ] {
            let flops = of(shape, seq_length).unwrap().value;
            assert_eq!(flops, matrices + attention, "{shape:?}");
            assert!(
                ((flops + attention) / 1e9 - full).abs() < 0.005,
                "{shape:?}"
            );
        }
    }

    /// Active experts and the router; the others' weights are read by other tokens.
    #[test]
    fn only_the_experts_of_a_token_compute() {
        let qwen = mixture();
        let a_layer =
            2 * 2048 * (4096 + 512) + 8 * 3 * 2048 * 768 + 2048 * 128 + 2 * 2048 + 2 * 128;
        let matrices = 6 * (48 * a_layer + 2048 + 151_936 * 2048);
        let attention = 6 * 48 * 32 * 128 * 4096_u64;
        let flops = of(&qwen, 4096).unwrap().value;
        assert_eq!(flops, (matrices + attention) as f64);
        let all = ModelShape {
            num_experts_per_tok: 128,
            ..qwen
        };
        assert!(of(&all, 4096).unwrap().value > 6.0 * flops);
    }

    /// DeepSeek V3, and with the layer that predicts a further token: 1 of 62 layers, and the output
    /// matrix twice.
    #[test]
    fn latent_attention_and_further_tokens() {
        let mut deepseek = ModelShape {
            num_experts: 256,
            num_experts_per_tok: 8,
            moe_intermediate_size: 2048,
            shared_expert_intermediate_size: 2048,
            first_k_dense_replace: 3,
            q_lora_rank: 1536,
            kv_lora_rank: 512,
            qk_nope_head_dim: 128,
            qk_rope_head_dim: 64,
            v_head_dim: 128,
            ..shape(
                "deepseek_v3",
                [61, 7168, 18432, 128, 128, 192, 129_280],
                false,
            )
        };
        let alone = of(&deepseek, 4096).unwrap().value;
        assert_eq!(alone, 219_753_621_504.0 + 30_702_305_280.0);
        deepseek.num_nextn_predict_layers = 1;
        let attention =
            7168_u64 * (1536 + 512 + 64) + 1536 + 1536 * 128 * 192 + 512 + 512 * 128 * 256;
        let experts = 9 * 3 * 7168 * 2048 + 7168 * 256;
        let layer = attention + 128 * 128 * 7168 + experts + 2 * 7168;
        let further = 6 * (layer + 2 * 7168 * 7168 + 3 * 7168 + 129_280 * 7168);
        let with = of(&deepseek, 4096).unwrap().value;
        assert_eq!(with - alone, further as f64 + 30_702_305_280.0 / 61.0);
    }

    /// A window takes attention off; frozen weights have no gradients, but hand those of their inputs on.
    #[test]
    fn what_is_not_done_does_not_count() {
        let mut mistral = shape("mistral", [32, 4096, 14336, 32, 8, 128, 32_000], false);
        let whole = of(&mistral, 32_768).unwrap().value;
        mistral.sliding_window = 1024;
        let part = of(&mistral, 32_768).unwrap().value;
        let each = 12.0 * 32.0 * 4096.0;
        assert_eq!(whole - part, each * (16_384.0 - 1024.0 + 16.0));
        let tuned = flops_per_token(&llama_8b(), Task::Lora, 8192)
            .unwrap()
            .value;
        assert_eq!(tuned, 45_029_548_032.0 * 4.0 / 6.0 + 6_442_450_944.0);
        let sft = flops_per_token(&llama_8b(), Task::Sft, 8192);
        assert_eq!(sft, of(&llama_8b(), 8192));
    }

    #[test]
    fn what_cannot_be_counted_is_none() {
        assert_eq!(of(&ModelShape::default(), 1), None);
        assert_eq!(of(&llama_8b(), 0), None);
    }
}
