//! Counting a model's parameters from its shape.

use crate::ModelShape;

/// The architecture of a model of which only its trainer knows the shape.
pub const OTHER: &str = "other";

/// What a model has beside the sizes of its shape.
#[derive(Debug)]
pub struct Architecture {
    /// Hugging Face's `model_type`.
    pub name: &'static str,
    /// Q and K pass through a norm of one head's width.
    pub has_qk_norm: bool,
    /// Layers have experts, of which a router chooses some for each token.
    pub has_experts: bool,
    /// A layer may have a shared expert, whose output is weighed by a vector of the hidden size.
    pub has_shared_expert: bool,
    /// Learned positions, two matrices in an MLP, a bias everywhere and norms with two vectors;
    /// else RoPE, SwiGLU and RMSNorm.
    pub is_gpt2: bool,
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    has_qk_norm: false,
    has_experts: false,
    has_shared_expert: false,
    is_gpt2: false,
};

#[rustfmt::skip]
pub const ARCHITECTURES: [Architecture; 8] = [
    LLAMA,
    Architecture { name: "qwen2", ..LLAMA },
    Architecture { name: "mistral", ..LLAMA },
    Architecture { name: "gpt2", is_gpt2: true, ..LLAMA },
    Architecture { name: "qwen3", has_qk_norm: true, ..LLAMA },
    Architecture { name: "mixtral", has_experts: true, ..LLAMA },
    Architecture { name: "qwen2_moe", has_experts: true, has_shared_expert: true, ..LLAMA },
    Architecture { name: "qwen3_moe", has_qk_norm: true, has_experts: true, ..LLAMA },
];

/// The architecture of this name; `None` where it is not known here.
#[must_use]
pub fn architecture(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|known| known.name == name)
}

/// The names of all architectures, for people: `llama, qwen2, …`.
#[must_use]
pub fn architecture_names() -> String {
    ARCHITECTURES.map(|known| known.name).join(", ")
}

/// Parameters of the whole model, embeddings included once where they are tied. `None` for an
/// architecture that is not known here, an incomplete shape, or a count beyond 64 bits.
///
/// Llama and its relatives: embedding V·h; per layer Q and O h·H·d each, K and V h·K·d each, with
/// a QKV bias (H + 2K)·d, with norms of Q and K 2d; three SwiGLU matrices h·f, or E times three of
/// h·e with a router h·E and, where there is one, a shared expert of three h·s with its gate h; two
/// norms h; a final norm h; an output matrix V·h unless tied. GPT-2: learned positions, two MLP
/// matrices, biases and two-parameter norms.
#[must_use]
pub fn count_parameters(m: &ModelShape) -> Option<u64> {
    count(m, m.num_experts)
}

/// Parameters that one token passes through: as [`count_parameters`], but with those experts alone
/// that the router chooses for it. Without experts, all parameters.
#[must_use]
pub fn count_active_parameters(m: &ModelShape) -> Option<u64> {
    count(m, m.num_experts_per_tok)
}

/// `experts`: how many of a layer's experts count.
fn count(m: &ModelShape, experts: u64) -> Option<u64> {
    let architecture = architecture(&m.architecture)?;
    let mut needed = vec![
        m.num_layers,
        m.hidden_size,
        m.ffn_hidden_size,
        m.num_attention_heads,
        m.num_kv_heads,
        m.head_dim,
        m.vocab_size,
    ];
    if architecture.has_experts {
        needed.extend([
            m.num_experts,
            m.num_experts_per_tok,
            m.moe_intermediate_size,
        ]);
    }
    if architecture.is_gpt2 {
        needed.push(m.max_position_embeddings);
    }
    if needed.contains(&0) {
        return None;
    }
    let (h, f, v, layers) = (m.hidden_size, m.ffn_hidden_size, m.vocab_size, m.num_layers);
    let q = m.num_attention_heads.checked_mul(m.head_dim)?;
    let kv = m.num_kv_heads.checked_mul(m.head_dim)?;
    let embedding = v.checked_mul(h)?;
    let output = if m.tie_embeddings { 0 } else { embedding };
    let attention = h.checked_mul(q.checked_add(kv)?.checked_mul(2)?)?;
    let bias = q.checked_add(kv.checked_mul(2)?)?;
    let (layer, ends) = if architecture.is_gpt2 {
        let mlp = h.checked_mul(f)?.checked_mul(2)?;
        let vectors = sum([bias, f, h.checked_mul(6)?])?;
        let positions = m.max_position_embeddings.checked_mul(h)?;
        (sum([attention, mlp, vectors])?, sum([positions, 2 * h])?)
    } else {
        let swiglu = |width: u64| h.checked_mul(width)?.checked_mul(3);
        let mlp = if architecture.has_experts {
            let shared = m.shared_expert_intermediate_size;
            sum([
                experts.checked_mul(swiglu(m.moe_intermediate_size)?)?,
                h.checked_mul(m.num_experts)?,
                swiglu(shared)?,
                if shared > 0 { h } else { 0 },
            ])?
        } else {
            swiglu(f)?
        };
        let bias = if m.qkv_bias { bias } else { 0 };
        let norms = if architecture.has_qk_norm {
            m.head_dim.checked_mul(2)?
        } else {
            0
        };
        (sum([attention, mlp, bias, norms, 2 * h])?, h)
    };
    sum([embedding, layers.checked_mul(layer)?, ends, output])
}

fn sum<const N: usize>(parts: [u64; N]) -> Option<u64> {
    parts.into_iter().try_fold(0_u64, u64::checked_add)
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
            assert_eq!(count_active_parameters(&model), Some(count), "{model:?}");
        }
    }

    /// A token passes through the experts that are chosen for it and through all else; a shape that lacks what its
    /// architecture needs has no count: it must not pass as a dense one.
    #[test]
    fn experts_count_whole_and_by_the_token() {
        let mixtral = ModelShape {
            num_experts: 8,
            num_experts_per_tok: 2,
            moe_intermediate_size: 14336,
            ..shape("mixtral", [32, 4096, 14336, 32, 8, 128, 32_000], false)
        };
        assert_eq!(count_parameters(&mixtral), Some(46_702_792_704));
        let idle = 32 * 6 * 3 * 4096 * 14336;
        assert_eq!(
            count_active_parameters(&mixtral),
            Some(46_702_792_704 - idle)
        );
        for lack in [
            |m: &mut ModelShape| m.num_experts = 0,
            |m: &mut ModelShape| m.num_experts_per_tok = 0,
            |m: &mut ModelShape| m.moe_intermediate_size = 0,
        ] {
            let mut model = mixtral.clone();
            lack(&mut model);
            assert_eq!(count_parameters(&model), None);
        }
    }

    #[test]
    fn absurd_shapes_do_not_overflow() {
        assert_eq!(
            count_parameters(&shape("llama", [u64::MAX; 7], false)),
            None
        );
        let experts = ModelShape {
            num_experts: u64::MAX,
            num_experts_per_tok: u64::MAX,
            moe_intermediate_size: u64::MAX,
            shared_expert_intermediate_size: u64::MAX,
            ..shape("qwen2_moe", [2; 7], false)
        };
        assert_eq!(count_active_parameters(&experts), None);
        assert_eq!(count_parameters(&shape("mamba", [1; 7], false)), None);
        assert_eq!(count_parameters(&ModelShape::default()), None);
    }
}
