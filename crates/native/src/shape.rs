//! The network's sizes as libtorch wants them, checked, and the list of its parameters.

use tprimat_job::{ModelShape, RopeScaling, architecture};

#[derive(Clone, Debug)]
pub struct Shape {
    pub layers: i64,
    pub hidden: i64,
    pub ffn: i64,
    pub heads: i64,
    pub kv_heads: i64,
    pub head_dim: i64,
    pub vocab: i64,
    pub rope_theta: f64,
    pub rope_scaling: Option<RopeScaling>,
    pub norm_eps: f64,
    pub tied: bool,
    pub qkv_bias: bool,
    /// Norms of each head of Q and K, as in Qwen3.
    pub qk_norm: bool,
    /// Learned positions, of GPT-2 only; 0 = rotary ones.
    pub positions: i64,
}

/// A parameter under its Hugging Face name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    pub name: String,
    pub size: Vec<i64>,
}

/// No real model comes near these; within them the parameter count fits an `i64`.
const LARGEST: u64 = 1 << 22;
const MOST_LAYERS: i64 = 1 << 12;

impl Shape {
    pub fn of(model: &ModelShape) -> Result<Self, String> {
        let size = |name: &str, value: u64| match value {
            1..=LARGEST => Ok(value as i64),
            _ => Err(format!("model size {name} = {value} is out of range")),
        };
        let heads = size("num_attention_heads", model.num_attention_heads)?;
        let kv_heads = size("num_kv_heads", model.num_kv_heads)?;
        let hidden = size("hidden_size", model.hidden_size)?;
        let head_dim = if model.head_dim == 0 {
            hidden / heads
        } else {
            size("head_dim", model.head_dim)?
        };
        if heads % kv_heads != 0 {
            return Err(format!(
                "num_attention_heads {heads} is not a multiple of num_kv_heads {kv_heads}"
            ));
        }
        if heads * head_dim > LARGEST as i64 {
            return Err(format!(
                "num_attention_heads {heads} x head_dim {head_dim} is out of range"
            ));
        }
        let layers = size("num_layers", model.num_layers)?;
        if layers > MOST_LAYERS {
            return Err(format!("model size num_layers = {layers} is out of range"));
        }
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(format!(
                "head_dim {head_dim} is not an even number of at least 2"
            ));
        }
        let is_gpt2 = model.architecture == "gpt2";
        if is_gpt2 && (kv_heads != heads || heads * head_dim != hidden || !model.tie_embeddings) {
            return Err(
                "GPT-2 has as many key-value heads as heads, heads as wide as hidden_size together, and a tied \
                        head"
                    .to_owned(),
            );
        }
        let has_angles = model.rope_theta.is_finite() && model.rope_theta > 0.0;
        if !is_gpt2 && !has_angles {
            return Err(format!(
                "rope_theta {} is not a positive number",
                model.rope_theta
            ));
        }
        if !(model.norm_eps.is_finite() && model.norm_eps > 0.0) {
            return Err(format!(
                "norm_eps {} is not a positive number",
                model.norm_eps
            ));
        }
        Ok(Self {
            layers,
            hidden,
            ffn: size("ffn_hidden_size", model.ffn_hidden_size)?,
            heads,
            kv_heads,
            head_dim,
            vocab: size("vocab_size", model.vocab_size)?,
            rope_theta: model.rope_theta,
            rope_scaling: model.rope_scaling.clone(),
            norm_eps: model.norm_eps,
            tied: model.tie_embeddings,
            qkv_bias: model.qkv_bias,
            qk_norm: architecture(&model.architecture).is_some_and(|known| known.has_qk_norm),
            positions: if is_gpt2 {
                size("max_position_embeddings", model.max_position_embeddings)?
            } else {
                0
            },
        })
    }

    /// All parameters in the order of the forward pass: embedding, layers, final norm, and the head
    /// unless tied.
    pub fn parameters(&self) -> Vec<ParameterSpec> {
        if self.positions > 0 {
            return self.gpt2_parameters();
        }
        let mut list = vec![spec(
            "model.embed_tokens.weight",
            &[self.vocab, self.hidden],
        )];
        for layer in 0..self.layers {
            list.extend(self.layer_parameters().into_iter().map(|p| ParameterSpec {
                name: format!("model.layers.{layer}.{}", p.name),
                size: p.size,
            }));
        }
        list.push(spec("model.norm.weight", &[self.hidden]));
        if !self.tied {
            list.push(spec("lm_head.weight", &[self.vocab, self.hidden]));
        }
        list
    }

    /// GPT-2's, whose matrices are stored input by output.
    fn gpt2_parameters(&self) -> Vec<ParameterSpec> {
        let (hidden, ffn) = (self.hidden, self.ffn);
        let mut list = vec![
            spec("transformer.wte.weight", &[self.vocab, hidden]),
            spec("transformer.wpe.weight", &[self.positions, hidden]),
        ];
        for layer in 0..self.layers {
            for (name, size) in [
                ("ln_1", vec![hidden]),
                ("attn.c_attn", vec![hidden, 3 * hidden]),
                ("attn.c_proj", vec![hidden, hidden]),
                ("ln_2", vec![hidden]),
                ("mlp.c_fc", vec![hidden, ffn]),
                ("mlp.c_proj", vec![ffn, hidden]),
            ] {
                let outputs = size[size.len() - 1];
                list.push(spec(&format!("transformer.h.{layer}.{name}.weight"), &size));
                list.push(spec(
                    &format!("transformer.h.{layer}.{name}.bias"),
                    &[outputs],
                ));
            }
        }
        list.push(spec("transformer.ln_f.weight", &[hidden]));
        list.push(spec("transformer.ln_f.bias", &[hidden]));
        list
    }

    /// The parameters of one layer, in the order of the forward pass.
    fn layer_parameters(&self) -> Vec<ParameterSpec> {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut list = vec![spec("input_layernorm.weight", &[self.hidden])];
        for (name, rows) in [("q", q), ("k", kv), ("v", kv)] {
            list.push(spec(
                &format!("self_attn.{name}_proj.weight"),
                &[rows, self.hidden],
            ));
            if self.qkv_bias {
                list.push(spec(&format!("self_attn.{name}_proj.bias"), &[rows]));
            }
        }
        for name in ["q", "k"].into_iter().filter(|_| self.qk_norm) {
            list.push(spec(
                &format!("self_attn.{name}_norm.weight"),
                &[self.head_dim],
            ));
        }
        list.push(spec("self_attn.o_proj.weight", &[self.hidden, q]));
        list.push(spec("post_attention_layernorm.weight", &[self.hidden]));
        list.push(spec("mlp.gate_proj.weight", &[self.ffn, self.hidden]));
        list.push(spec("mlp.up_proj.weight", &[self.ffn, self.hidden]));
        list.push(spec("mlp.down_proj.weight", &[self.hidden, self.ffn]));
        list
    }
}

fn spec(name: &str, size: &[i64]) -> ParameterSpec {
    ParameterSpec {
        name: name.to_owned(),
        size: size.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(model: &ModelShape) -> i64 {
        let shape = Shape::of(model).expect("a shape");
        shape
            .parameters()
            .iter()
            .map(|p| p.size.iter().product::<i64>())
            .sum()
    }

    #[test]
    fn published_parameter_counts() {
        let llama_1b = ModelShape {
            num_layers: 16,
            hidden_size: 2048,
            ffn_hidden_size: 8192,
            num_attention_heads: 32,
            num_kv_heads: 8,
            vocab_size: 128_256,
            rope_theta: 5e5,
            norm_eps: 1e-5,
            tie_embeddings: true,
            ..ModelShape::default()
        };
        assert_eq!(count(&llama_1b), 1_235_814_400);
        let qwen_7b = ModelShape {
            num_layers: 28,
            hidden_size: 3584,
            ffn_hidden_size: 18_944,
            num_attention_heads: 28,
            num_kv_heads: 4,
            vocab_size: 152_064,
            rope_theta: 1e6,
            norm_eps: 1e-6,
            qkv_bias: true,
            ..ModelShape::default()
        };
        assert_eq!(count(&qwen_7b), 7_615_616_512);
        let qwen3_600m = ModelShape {
            architecture: "qwen3".to_owned(),
            num_layers: 28,
            hidden_size: 1024,
            ffn_hidden_size: 3072,
            num_attention_heads: 16,
            num_kv_heads: 8,
            head_dim: 128,
            vocab_size: 151_936,
            rope_theta: 1e6,
            norm_eps: 1e-6,
            tie_embeddings: true,
            ..ModelShape::default()
        };
        assert_eq!(count(&qwen3_600m), 596_049_920);
        let gpt2 = ModelShape {
            architecture: "gpt2".to_owned(),
            num_layers: 12,
            hidden_size: 768,
            ffn_hidden_size: 3072,
            num_attention_heads: 12,
            num_kv_heads: 12,
            vocab_size: 50_257,
            max_position_embeddings: 1024,
            norm_eps: 1e-5,
            tie_embeddings: true,
            qkv_bias: true,
            ..ModelShape::default()
        };
        assert_eq!(count(&gpt2), 124_439_808);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let mut model = ModelShape {
            num_attention_heads: 1,
            num_kv_heads: 1,
            rope_theta: 1e4,
            norm_eps: 1e-5,
            ..ModelShape::default()
        };
        model.hidden_size = u64::MAX;
        assert!(Shape::of(&model).is_err());
        model.hidden_size = 3;
        assert!(Shape::of(&model).is_err(), "an odd head_dim");
    }
}
