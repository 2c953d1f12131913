//! The network: a Llama, Mistral, Qwen2.5, Qwen3 or GPT-2 decoder, as a row of parts that run one after
//! the other.
//!
//! Part 0 is the embedding, parts 1 to L are the layers, part L + 1 is the final norm. Knows
//! nothing of losses, gradients or optimisers.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use crate::{
    gpt2,
    parameters::Parameters,
    rope::{self, Rope},
    shape::Shape,
};

pub struct Model {
    embedding: Tensor,
    layers: Layers,
    /// The embedding itself where the two are tied.
    head: Tensor,
    head_dim: i64,
    norm_eps: f64,
    /// Index of the first parameter of each part, and one past the last part's.
    first_parameter: Vec<usize>,
}

/// What the families differ in: positions, layers, norms.
enum Layers {
    Llama {
        layers: Vec<Layer>,
        norm: Tensor,
        rope: Rope,
        rope_theta: f64,
        rope_scaling_factor: f64,
    },
    Gpt2(gpt2::Layers),
}

struct Layer {
    input_norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// Weights of the norms that Qwen3 applies to each head's queries and keys.
    qk_norms: Option<[Tensor; 2]>,
    post_attention_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
}

struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_linear(&self.weight, self.bias.as_ref())
    }
}

/// Parameters by name.
pub struct Named<'a>(pub &'a Parameters);

impl Named<'_> {
    fn find(&self, name: &str) -> Option<Tensor> {
        self.0
            .list
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.value.shallow_clone())
    }

    pub fn tensor(&self, name: &str) -> Result<Tensor, TchError> {
        self.find(name)
            .ok_or_else(|| TchError::TensorNameNotFound(name.to_owned(), "the model".to_owned()))
    }

    fn linear(&self, name: &str) -> Result<Linear, TchError> {
        Ok(Linear {
            weight: self.tensor(&format!("{name}.weight"))?,
            bias: self.find(&format!("{name}.bias")),
        })
    }
}

impl Model {
    pub fn new(
        shape: &Shape,
        parameters: &Parameters,
        seq_length: u64,
        device: Device,
    ) -> Result<Self, TchError> {
        let named = Named(parameters);
        let (embedding, layers) = if shape.positions > 0 {
            let layers = gpt2::Layers::new(shape, &named, seq_length as i64, device)?;
            (
                named.tensor("transformer.wte.weight")?,
                Layers::Gpt2(layers),
            )
        } else {
            let embedding = named.tensor("model.embed_tokens.weight")?;
            let layers = Layers::llama(shape, &named, seq_length as i64, embedding.kind(), device)?;
            (embedding, layers)
        };
        let head = named
            .find("lm_head.weight")
            .unwrap_or_else(|| embedding.shallow_clone());
        Ok(Self {
            first_parameter: first_parameters(parameters, shape.layers as usize),
            embedding,
            layers,
            head,
            head_dim: shape.head_dim,
            norm_eps: shape.norm_eps,
        })
    }

    pub fn num_parts(&self) -> usize {
        self.first_parameter.len() - 1
    }

    /// Which parameters the parts use, as indices into [`Parameters::list`].
    pub fn parameters_of(&self, parts: &Range<usize>) -> Range<usize> {
        self.first_parameter[parts.start]..self.first_parameter[parts.end]
    }

    /// The parameter that [`Model::logits`] uses.
    pub fn head_parameter(&self) -> usize {
        if self.is_tied() {
            0
        } else {
            self.first_parameter[self.num_parts()]
        }
    }

    pub fn head(&self) -> &Tensor {
        &self.head
    }

    pub fn is_tied(&self) -> bool {
        self.head.data_ptr() == self.embedding.data_ptr()
    }

    /// Runs some parts in order; `x` is `[batch, seq_length]` of tokens before part 0, hidden
    /// states after.
    pub fn forward(&self, parts: &Range<usize>, x: &Tensor) -> Result<Tensor, TchError> {
        let last = self.num_parts() - 1;
        let mut x = x.shallow_clone();
        for part in parts.clone() {
            if part == 0 {
                x = Tensor::f_embedding(&self.embedding, &x, -1, false, false)?;
            }
            x = match &self.layers {
                Layers::Gpt2(layers) if part == 0 => layers.with_positions(&x)?,
                Layers::Gpt2(layers) if part == last => layers.final_norm(&x)?,
                Layers::Gpt2(layers) => layers.forward(part - 1, &x)?,
                Layers::Llama { .. } if part == 0 => x,
                Layers::Llama { norm, .. } if part == last => self.rms_norm(&x, norm)?,
                Layers::Llama { layers, rope, .. } => self.layer(&layers[part - 1], rope, &x)?,
            };
        }
        Ok(x)
    }

    /// Scores of every token of the vocabulary, after the last part.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        hidden.f_linear(&self.head, None::<Tensor>)
    }

    fn layer(&self, layer: &Layer, rope: &Rope, x: &Tensor) -> Result<Tensor, TchError> {
        let x = x.f_add(&self.attention(layer, rope, &self.rms_norm(x, &layer.input_norm)?)?)?;
        let normed = self.rms_norm(&x, &layer.post_attention_norm)?;
        let gated = layer
            .gate
            .forward(&normed)?
            .f_silu()?
            .f_mul(&layer.up.forward(&normed)?)?;
        x.f_add(&layer.down.forward(&gated)?)
    }

    fn attention(&self, layer: &Layer, rope: &Rope, x: &Tensor) -> Result<Tensor, TchError> {
        let (batch, length, _) = x.size3()?;
        let heads = |x: Tensor| {
            x.f_reshape([batch, length, -1, self.head_dim])?
                .f_transpose(1, 2)
        };
        let (mut q, mut k) = (heads(layer.q.forward(x)?)?, heads(layer.k.forward(x)?)?);
        if let Some([of_q, of_k]) = &layer.qk_norms {
            (q, k) = (self.rms_norm(&q, of_q)?, self.rms_norm(&k, of_k)?);
        }
        let (q, k) = (rope.apply(&q)?, rope.apply(&k)?);
        let v = heads(layer.v.forward(x)?)?;
        let grouped = q.size()[1] != k.size()[1];
        let mixed = Tensor::f_scaled_dot_product_attention(
            &q,
            &k,
            &v,
            None::<Tensor>,
            0.0,
            true,
            None::<f64>,
            grouped,
        )?;
        layer
            .o
            .forward(&mixed.f_transpose(1, 2)?.f_reshape([batch, length, -1])?)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, TchError> {
        x.f_rms_norm(weight.size(), Some(weight), self.norm_eps)
    }

    pub fn kind(&self) -> Kind {
        self.embedding.kind()
    }

    /// The sizes as the tensors have them, under the job's names.
    pub fn effective(&self) -> serde_json::Map<String, serde_json::Value> {
        let rows = |t: &Tensor| t.size()[0];
        let mut value = serde_json::json!({
            "num_layers": self.num_parts() - 2,
            "hidden_size": self.embedding.size()[1],
            "head_dim": self.head_dim,
            "vocab_size": rows(&self.embedding),
            "tie_embeddings": self.is_tied(),
            "norm_eps": self.norm_eps,
        });
        let of_layers = match &self.layers {
            Layers::Llama {
                layers,
                rope_theta,
                rope_scaling_factor,
                ..
            } => serde_json::json!({
                "ffn_hidden_size": rows(&layers[0].gate.weight),
                "num_attention_heads": rows(&layers[0].q.weight) / self.head_dim,
                "num_kv_heads": rows(&layers[0].k.weight) / self.head_dim,
                "qkv_bias": layers[0].q.bias.is_some(),
                "rope_theta": rope_theta,
                "rope_scaling_factor": rope_scaling_factor,
            }),
            Layers::Gpt2(layers) => layers.effective(self.head_dim),
        };
        match (&mut value, of_layers) {
            (serde_json::Value::Object(all), serde_json::Value::Object(mut of_layers)) => {
                all.append(&mut of_layers);
                std::mem::take(all)
            }
            _ => serde_json::Map::new(),
        }
    }
}

impl Layers {
    fn llama(
        shape: &Shape,
        named: &Named,
        seq_length: i64,
        kind: Kind,
        device: Device,
    ) -> Result<Self, TchError> {
        let layer = |n| {
            let at = |name: &str| format!("model.layers.{n}.{name}");
            Ok(Layer {
                input_norm: named.tensor(&at("input_layernorm.weight"))?,
                q: named.linear(&at("self_attn.q_proj"))?,
                k: named.linear(&at("self_attn.k_proj"))?,
                v: named.linear(&at("self_attn.v_proj"))?,
                o: named.linear(&at("self_attn.o_proj"))?,
                qk_norms: match shape.qk_norm {
                    true => Some([
                        named.tensor(&at("self_attn.q_norm.weight"))?,
                        named.tensor(&at("self_attn.k_norm.weight"))?,
                    ]),
                    false => None,
                },
                post_attention_norm: named.tensor(&at("post_attention_layernorm.weight"))?,
                gate: named.linear(&at("mlp.gate_proj"))?,
                up: named.linear(&at("mlp.up_proj"))?,
                down: named.linear(&at("mlp.down_proj"))?,
            })
        };
        let frequencies = rope::inverse_frequencies(
            shape.head_dim,
            shape.rope_theta,
            shape.rope_scaling.as_ref(),
        );
        Ok(Self::Llama {
            layers: (0..shape.layers)
                .map(layer)
                .collect::<Result<_, TchError>>()?,
            norm: named.tensor("model.norm.weight")?,
            rope: Rope::new(&frequencies, seq_length, kind, device)?,
            rope_theta: shape.rope_theta,
            // 1 where frequencies are as they are.
            rope_scaling_factor: shape.rope_scaling.as_ref().map_or(1.0, |s| s.factor),
        })
    }
}

/// Parameters are in the order of the forward pass; those of a layer have its number in their
/// names.
fn first_parameters(parameters: &Parameters, layers: usize) -> Vec<usize> {
    let names: Vec<&str> = parameters.list.iter().map(|p| p.name.as_str()).collect();
    let is_layer = |name: &&str| name.contains(".layers.") || name.contains(".h.");
    let before = names.iter().take_while(|name| !is_layer(name)).count();
    let of_layers = names.iter().filter(|name| is_layer(name)).count();
    let after_norm = names
        .iter()
        .filter(|name| !name.starts_with("lm_head"))
        .count();
    let mut first = vec![0];
    first.extend((0..=layers).map(|n| before + n * of_layers / layers));
    first.push(after_norm);
    first
}
