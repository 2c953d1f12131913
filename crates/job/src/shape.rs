//! Counting a model's parameters from its shape.

use crate::ModelShape;

/// The architecture of a model of which only its trainer knows the shape.
pub const OTHER: &str = "other";

/// What a model has beside the sizes that every model states.
#[derive(Debug)]
pub struct Architecture {
    /// Hugging Face's `model_type`.
    pub name: &'static str,
    /// Fields of [`ModelShape::further`] that a model of it must state.
    pub needs: &'static [&'static str],
    /// Those that it may state; all others are 0.
    pub may: &'static [&'static str],
    /// Q and K pass through a norm of one head's width.
    pub has_qk_norm: bool,
    /// The output of the shared expert is weighed by a vector of the hidden size.
    pub has_shared_gate: bool,
    /// Learned positions, two matrices in an MLP, a bias everywhere and norms with two vectors;
    /// else RoPE, SwiGLU and RMSNorm.
    pub is_gpt2: bool,
    /// A bias in the attention's output, the router and each expert, and one number a head that its
    /// softmax may attend to in place of tokens.
    pub is_gpt_oss: bool,
}

impl Architecture {
    /// Layers have experts, of which a router chooses some for each token.
    #[must_use]
    pub fn has_experts(&self) -> bool {
        self.needs.contains(&"num_experts")
    }

    /// Keys and values are made from one narrow vector a token (DeepSeek's latent attention).
    #[must_use]
    pub fn has_latent_attention(&self) -> bool {
        self.needs.contains(&"kv_lora_rank")
    }

    /// May a model of it state this field?
    #[must_use]
    pub fn has(&self, field: &str) -> bool {
        self.needs.contains(&field) || self.may.contains(&field)
    }
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    needs: &[],
    may: &[],
    has_qk_norm: false,
    has_shared_gate: false,
    is_gpt2: false,
    is_gpt_oss: false,
};
const EXPERTS: &[&str] = &[
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
];
const SHARED: &str = "shared_expert_intermediate_size";
const WINDOW: &[&str] = &["sliding_window"];
const DEEPSEEK: Architecture = Architecture {
    needs: &[
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ],
    may: &[
        SHARED,
        "q_lora_rank",
        "first_k_dense_replace",
        "num_nextn_predict_layers",
    ],
    ..LLAMA
};

#[rustfmt::skip]
pub const ARCHITECTURES: [Architecture; 11] = [
    LLAMA,
    Architecture { name: "qwen2", ..LLAMA },
    Architecture { name: "mistral", may: WINDOW, ..LLAMA },
    Architecture { name: "gpt2", is_gpt2: true, ..LLAMA },
    Architecture { name: "qwen3", has_qk_norm: true, ..LLAMA },
    Architecture { name: "mixtral", needs: EXPERTS, may: WINDOW, ..LLAMA },
    Architecture { name: "qwen2_moe", needs: EXPERTS, may: &[SHARED], has_shared_gate: true, ..LLAMA },
    Architecture { name: "qwen3_moe", needs: EXPERTS, has_qk_norm: true, ..LLAMA },
    Architecture { name: "deepseek_v2", ..DEEPSEEK },
    Architecture { name: "deepseek_v3", ..DEEPSEEK },
    Architecture { name: "gpt_oss", needs: EXPERTS, may: &["sliding_window", "sliding_window_pattern"], is_gpt_oss: true, ..LLAMA },
];

impl ModelShape {
    /// The fields that are 0 where a model has no such thing, by name.
    #[must_use]
    pub fn further(&self) -> [(&'static str, u64); 13] {
        [
            ("num_experts", self.num_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
            ("moe_intermediate_size", self.moe_intermediate_size),
            (SHARED, self.shared_expert_intermediate_size),
            ("first_k_dense_replace", self.first_k_dense_replace),
            ("num_nextn_predict_layers", self.num_nextn_predict_layers),
            ("q_lora_rank", self.q_lora_rank),
            ("kv_lora_rank", self.kv_lora_rank),
            ("qk_nope_head_dim", self.qk_nope_head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("v_head_dim", self.v_head_dim),
            ("sliding_window", self.sliding_window),
            ("sliding_window_pattern", self.sliding_window_pattern),
        ]
    }

    /// What all heads multiply of each pair of tokens: half of it for the score, half for the value.
    #[must_use]
    pub fn attention_width(&self) -> f64 {
        let each = match self.kv_lora_rank {
            0 => self.head_dim as f64,
            _ => {
                let parts = [
                    self.qk_nope_head_dim,
                    self.qk_rope_head_dim,
                    self.v_head_dim,
                ];
                parts.map(|n| n as f64).iter().sum::<f64>() / 2.0
            }
        };
        self.num_attention_heads as f64 * each
    }

    /// How many tokens one attends to in the mean, over all layers, of a causal sequence of
    /// `length`: half of it, less where a window parts older ones off.
    #[must_use]
    pub fn attended_tokens(&self, length: f64) -> f64 {
        let window = self.sliding_window as f64;
        if window == 0.0 || window >= length {
            return length / 2.0;
        }
        let whole = match self.sliding_window_pattern {
            0 => 0.0,
            every => (self.num_layers / every) as f64 / self.num_layers as f64,
        };
        whole * length / 2.0 + (1.0 - whole) * window * (1.0 - window / (2.0 * length))
    }
}

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
/// architecture that is not known here, an incomplete shape, or a size beyond 31 bits.
///
/// Llama and its relatives: embedding V·h; per layer Q and O h·H·d each, K and V h·K·d each, with
/// a QKV bias (H + 2K)·d, with norms of Q and K 2d; three SwiGLU matrices h·f, or E times three of
/// h·e with a router h·E and, where there is one, a shared expert of three h·s with its gate h; two
/// norms h; a final norm h; an output matrix V·h unless tied. GPT-2: learned positions, two MLP
/// matrices, biases and two-parameter norms. GPT-OSS: besides, biases of the attention's output h,
/// the router E and each expert 2e + h, and one sink a head.
///
/// DeepSeek: Q through a rank r with a norm, h·r + r + r·H·(n + p), or h·H·(n + p) without one; keys
/// and values h·(c + p) + c + c·H·(n + v); the output H·v·h; the first layers with a SwiGLU of f in
/// place of experts. A layer that predicts a further token is one with experts, a projection 2h·h
/// and three norms.
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
    /// Beyond it, a product of four sizes might not fit 128 bits.
    const LARGEST: u64 = 1 << 30;
    let known = architecture(&m.architecture)?;
    let further = m.further();
    let is_needed = |(name, _): &&(&str, u64)| known.needs.contains(name);
    let mut needed: Vec<u64> = further.iter().filter(is_needed).map(|(_, n)| *n).collect();
    needed.extend([
        m.num_layers,
        m.hidden_size,
        m.ffn_hidden_size,
        m.num_attention_heads,
        m.num_kv_heads,
        m.head_dim,
        m.vocab_size,
    ]);
    if known.is_gpt2 {
        needed.push(m.max_position_embeddings);
    }
    let mut all = needed.iter().chain(further.iter().map(|(_, n)| n));
    let dense = m.first_k_dense_replace;
    if needed.contains(&0) || dense > m.num_layers || all.any(|n| *n > LARGEST) {
        return None;
    }
    let wide = u128::from;
    let (h, f, v, heads) = (
        wide(m.hidden_size),
        wide(m.ffn_hidden_size),
        wide(m.vocab_size),
        wide(m.num_attention_heads),
    );
    let (q, kv) = (heads * wide(m.head_dim), wide(m.num_kv_heads * m.head_dim));
    let bias = q + 2 * kv;
    let embedding = v * h;
    let output = if m.tie_embeddings { 0 } else { embedding };
    let layers = wide(m.num_layers);
    let total = if known.is_gpt2 {
        let layer = h * 2 * (q + kv) + 2 * h * f + bias + f + 6 * h;
        layers * layer + wide(m.max_position_embeddings) * h + 2 * h
    } else {
        let attention = match known.has_latent_attention() {
            true => latent_attention(m),
            false => h * 2 * (q + kv),
        };
        let biases = if m.qkv_bias { bias } else { 0 };
        let qk_norms = 2 * wide(m.head_dim) * u128::from(known.has_qk_norm);
        let sinks = (h + heads) * u128::from(known.is_gpt_oss);
        let every = attention + biases + qk_norms + sinks + 2 * h;
        let (e, all) = (wide(m.moe_intermediate_size), wide(m.num_experts));
        let shared = wide(m.shared_expert_intermediate_size);
        let gate = h * u128::from(known.has_shared_gate && shared > 0);
        let expert = 3 * h * e + (2 * e + h) * u128::from(known.is_gpt_oss);
        let router = (h + u128::from(known.is_gpt_oss)) * all;
        let mixed = wide(experts) * expert + router + 3 * h * shared + gate;
        let further = wide(m.num_nextn_predict_layers) * (every + mixed + 2 * h * h + 3 * h);
        let (first, rest) = match known.has_experts() {
            true => (wide(dense), layers - wide(dense)),
            false => (layers, 0),
        };
        first * (every + 3 * h * f) + rest * (every + mixed) + further + h
    };
    u64::try_from(embedding + output + total).ok()
}

fn latent_attention(m: &ModelShape) -> u128 {
    let [h, heads, r, c, n, p, v] = [
        m.hidden_size,
        m.num_attention_heads,
        m.q_lora_rank,
        m.kv_lora_rank,
        m.qk_nope_head_dim,
        m.qk_rope_head_dim,
        m.v_head_dim,
    ]
    .map(u128::from);
    let queries = match r {
        0 => h * heads * (n + p),
        _ => h * r + r + r * heads * (n + p),
    };
    queries + h * (c + p) + c + c * heads * (n + v) + heads * v * h
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

    /// A window of 128 of 4096 tokens lets 128 − 128 ÷ 64 through; in GPT-OSS every second layer has one.
    #[test]
    fn a_window_parts_older_tokens_off() {
        let mut model = shape("gpt_oss", [36, 2880, 2880, 64, 8, 64, 201_088], false);
        let seen = |model: &ModelShape| model.attended_tokens(4096.0);
        assert_eq!(seen(&model), 2048.0);
        model.sliding_window = 128;
        assert_eq!(seen(&model), 126.0);
        model.sliding_window_pattern = 2;
        assert_eq!(seen(&model), (2048.0 + 126.0) / 2.0);
        model.sliding_window = 4096;
        assert_eq!(seen(&model), 2048.0);
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
        let latent = ModelShape {
            q_lora_rank: 1 << 30,
            kv_lora_rank: 1 << 30,
            qk_nope_head_dim: 1 << 30,
            qk_rope_head_dim: 1 << 30,
            v_head_dim: 1 << 30,
            num_experts: 1 << 30,
            num_experts_per_tok: 1 << 30,
            moe_intermediate_size: 1 << 30,
            shared_expert_intermediate_size: 1 << 30,
            num_nextn_predict_layers: 1 << 30,
            ..shape("deepseek_v3", [1 << 30; 7], false)
        };
        assert_eq!(count_parameters(&latent), None);
        assert_eq!(count_parameters(&shape("mamba", [1; 7], false)), None);
        assert_eq!(count_parameters(&ModelShape::default()), None);
    }
}
