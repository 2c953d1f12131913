//! Counting a model's parameters from its shape.

use crate::ModelShape;

/// The architecture of a model of which only its trainer knows the shape.
pub const OTHER: &str = "other";

/// Parameters of the whole model, embeddings included once where they are tied. `None` for an
/// architecture that is not known here, an incomplete shape, or a count beyond 64 bits.
///
/// Llama, Qwen2 and Mistral: embedding V·h; per layer Q and O h·H·d each, K and V h·K·d each, three
/// SwiGLU matrices h·f, two norms h, with Qwen2's QKV bias (H + 2K)·d; a final norm h; an output
/// matrix V·h unless tied. GPT-2: learned positions, two MLP matrices, biases and two-parameter
/// norms.
#[must_use]
pub fn count_parameters(m: &ModelShape) -> Option<u64> {
    let needed = [
        m.num_layers,
        m.hidden_size,
        m.ffn_hidden_size,
        m.num_attention_heads,
        m.num_kv_heads,
        m.head_dim,
        m.vocab_size,
    ];
    if needed.contains(&0) || (m.architecture == "gpt2" && m.max_position_embeddings == 0) {
        return None;
    }
    let (h, f, v, layers) = (m.hidden_size, m.ffn_hidden_size, m.vocab_size, m.num_layers);
    let q = m.num_attention_heads.checked_mul(m.head_dim)?;
    let kv = m.num_kv_heads.checked_mul(m.head_dim)?;
    let embedding = v.checked_mul(h)?;
    let output = if m.tie_embeddings { 0 } else { embedding };
    let matrices = h.checked_mul(q.checked_add(kv)?.checked_mul(2)?)?;
    let total = match m.architecture.as_str() {
        "llama" | "qwen2" | "mistral" => {
            let bias = if m.qkv_bias {
                q.checked_add(kv.checked_mul(2)?)?
            } else {
                0
            };
            let mlp = h.checked_mul(f)?.checked_mul(3)?;
            let layer = matrices
                .checked_add(mlp)?
                .checked_add(bias)?
                .checked_add(2 * h)?;
            embedding
                .checked_add(layers.checked_mul(layer)?)?
                .checked_add(h)?
        }
        "gpt2" => {
            let mlp = h.checked_mul(f)?.checked_mul(2)?;
            let biases = q
                .checked_add(kv.checked_mul(2)?)?
                .checked_add(f)?
                .checked_add(2 * h)?;
            let layer = matrices
                .checked_add(mlp)?
                .checked_add(biases)?
                .checked_add(4 * h)?;
            let positions = m.max_position_embeddings.checked_mul(h)?;
            embedding
                .checked_add(positions)?
                .checked_add(layers.checked_mul(layer)?)?
                .checked_add(2 * h)?
        }
        _ => return None,
    };
    total.checked_add(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers, hidden, ffn, heads, key-value heads, head dimension, vocabulary.
    pub fn shape(architecture: &str, sizes: [u64; 7], tied: bool) -> ModelShape {
        let [
            num_layers,
            hidden_size,
            ffn_hidden_size,
            num_attention_heads,
            num_kv_heads,
            head_dim,
            vocab_size,
        ] = sizes;
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

    /// Counts that the publishers of the models state.
    #[test]
    fn known_models_have_their_published_counts() {
        let cases = [
            (
                shape("llama", [32, 4096, 14336, 32, 8, 128, 128_256], false),
                8_030_261_248,
            ),
            (
                shape("llama", [80, 8192, 28672, 64, 8, 128, 128_256], false),
                70_553_706_496,
            ),
            (
                shape("llama", [16, 2048, 8192, 32, 8, 64, 128_256], true),
                1_235_814_400,
            ),
            (
                shape("qwen2", [28, 3584, 18944, 28, 4, 128, 152_064], false),
                7_615_616_512,
            ),
            (
                shape("qwen2", [24, 896, 4864, 14, 2, 64, 151_936], true),
                494_032_768,
            ),
            (
                shape("mistral", [32, 4096, 14336, 32, 8, 128, 32_000], false),
                7_241_732_096,
            ),
            (
                shape("gpt2", [12, 768, 3072, 12, 12, 64, 50_257], true),
                124_439_808,
            ),
            (
                shape("gpt2", [48, 1600, 6400, 25, 25, 64, 50_257], true),
                1_557_611_200,
            ),
        ];
        for (model, count) in cases {
            assert_eq!(count_parameters(&model), Some(count), "{model:?}");
        }
    }

    #[test]
    fn absurd_shapes_do_not_overflow() {
        assert_eq!(
            count_parameters(&shape("llama", [u64::MAX; 7], false)),
            None
        );
        assert_eq!(count_parameters(&shape("mamba", [1; 7], false)), None);
        assert_eq!(count_parameters(&ModelShape::default()), None);
    }
}
