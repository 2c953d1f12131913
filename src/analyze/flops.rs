//! Parameters and FLOPs of a model, from its shape alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::{ModelShape, shape::count_parameters};

/// Name of the one convention used here. Others differ by up to 27 % for the same run, so it is always shown.
pub const CONVENTION: &str = "causal-halved";

/// Forward and backward floating-point operations per trained token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlopsPerToken {
    pub value: f64,
    /// `causal-halved`: 6·(N − N_embedding unless tied) + 6·L·H·Q·T; recomputation does not count.
    pub convention: String,
}

/// FLOPs per token of training `shape` at `seq_length`; a window of attention is not taken off.
#[must_use]
pub fn flops_per_token(shape: &ModelShape, seq_length: u64) -> Option<FlopsPerToken> {
    let parameters = count_parameters(shape)? as f64;
    let embedding = if shape.tie_embeddings { 0.0 } else { shape.vocab_size as f64 * shape.hidden_size as f64 };
    let width = shape.num_attention_heads as f64 * shape.head_dim as f64;
    let attention = 6.0 * shape.num_layers as f64 * width * seq_length as f64;
    let value = 6.0 * (parameters - embedding) + attention;
    (seq_length > 0).then(|| FlopsPerToken { value, convention: CONVENTION.to_owned() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// layers, hidden, ffn, heads, kv heads, head dim, vocabulary, tied
    pub fn shape(architecture: &str, sizes: [u64; 7], tied: bool) -> ModelShape {
        let [num_layers, hidden_size, ffn_hidden_size, num_attention_heads, num_kv_heads, head_dim, vocab_size] = sizes;
        ModelShape {
            architecture: architecture.into(),
            num_layers,
            hidden_size,
            ffn_hidden_size,
            num_attention_heads,
            num_kv_heads,
            head_dim,
            vocab_size,
            tie_embeddings: tied,
            qkv_bias: architecture == "qwen2",
            max_position_embeddings: if architecture == "gpt2" { 1024 } else { 0 },
            ..ModelShape::default()
        }
    }
    pub fn llama_8b() -> ModelShape {
        shape("llama", [32, 4096, 14336, 32, 8, 128, 128_256], false)
    }

    #[test]
    fn counts_are_those_of_the_published_weights() {
        for (shape, count) in [
            (llama_8b(), 8_030_261_248),
            (shape("llama", [80, 8192, 28672, 64, 8, 128, 128_256], false), 70_553_706_496),
            (shape("llama", [16, 2048, 8192, 32, 8, 64, 128_256], true), 1_235_814_400),
            (shape("qwen2", [28, 3584, 18944, 28, 4, 128, 152_064], false), 7_615_616_512),
            (shape("qwen2", [24, 896, 4864, 14, 2, 64, 151_936], true), 494_032_768),
            (shape("mistral", [32, 4096, 14336, 32, 8, 128, 32_000], false), 7_241_732_096),
            (shape("gpt2", [12, 768, 3072, 12, 12, 64, 50_257], true), 124_439_808),
            (shape("gpt2", [48, 1600, 6400, 25, 25, 64, 50_257], true), 1_557_611_200),
        ] {
            assert_eq!(count_parameters(&shape), Some(count));
        }
    }

    #[test]
    fn flops_agree_with_worked_examples() {
        let qwen = shape("qwen2", [28, 3584, 18944, 28, 4, 128, 152_064], false);
        let mistral = shape("mistral", [32, 4096, 14336, 32, 8, 128, 32_000], false);
        for (shape, seq_length, giga) in [
            (&llama_8b(), 8192, 51.47),
            (&qwen, 4096, 44.9),
            (&qwen, 8192, 47.4),
            (&mistral, 4096, 45.9),
            (&mistral, 8192, 49.1),
        ] {
            let flops = flops_per_token(shape, seq_length).unwrap().value / 1e9;
            assert!((flops - giga).abs() < 0.06, "{flops} {giga}");
        }
    }

    #[test]
    fn what_cannot_be_counted_is_none() {
        assert_eq!(count_parameters(&ModelShape::default()), None);
        assert_eq!(count_parameters(&shape("mamba", [1, 1, 1, 1, 1, 1, 1], false)), None);
        assert_eq!(count_parameters(&shape("llama", [u64::MAX; 7], false)), None);
        assert_eq!(flops_per_token(&llama_8b(), 0), None);
    }
}
