//! The network: a Llama or Qwen2.5 decoder, as a row of parts that run one after the other.
//!
//! Part 0 is the embedding, parts 1 to L are the layers, part L + 1 is the final norm. Knows nothing of losses,
//! gradients or optimisers.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use crate::{
    parameters::Parameters,
    rope::{self, Rope},
    shape::Shape,
};

pub struct Model {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    /// The embedding itself where the two are tied.
    head: Tensor,
    rope: Rope,
    rope_theta: f64,
    /// 1 where frequencies are as they are.
    rope_scaling_factor: f64,
    head_dim: i64,
    norm_eps: f64,
    /// Index of the first parameter of each part, and one past the last part's.
    first_parameter: Vec<usize>,
}

struct Layer {
    input_norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
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

impl Model {
    pub fn new(shape: &Shape, parameters: &Parameters, seq_length: u64, device: Device) -> Result<Self, TchError> {
        let index = parameters.index();
        let find = |name: String| index.get(name.as_str()).map(|i| parameters.list[*i].value.shallow_clone());
        let tensor =
            |name: String| find(name.clone()).ok_or_else(|| TchError::TensorNameNotFound(name, "the model".to_owned()));
        let layers = (0..shape.layers)
            .map(|n| {
                let at = |name: &str| format!("model.layers.{n}.{name}");
                let linear = |name: &str| {
                    let weight = tensor(at(&format!("{name}.weight")))?;
                    Ok::<_, TchError>(Linear { weight, bias: find(at(&format!("{name}.bias"))) })
                };
                Ok(Layer {
                    input_norm: tensor(at("input_layernorm.weight"))?,
                    q: linear("self_attn.q_proj")?,
                    k: linear("self_attn.k_proj")?,
                    v: linear("self_attn.v_proj")?,
                    o: linear("self_attn.o_proj")?,
                    post_attention_norm: tensor(at("post_attention_layernorm.weight"))?,
                    gate: linear("mlp.gate_proj")?,
                    up: linear("mlp.up_proj")?,
                    down: linear("mlp.down_proj")?,
                })
            })
            .collect::<Result<Vec<_>, TchError>>()?;
        let embedding = tensor("model.embed_tokens.weight".to_owned())?;
        let head = find("lm_head.weight".to_owned()).unwrap_or_else(|| embedding.shallow_clone());
        let per_layer = shape.layer_parameters().len();
        let mut first_parameter = vec![0];
        first_parameter.extend((0..=layers.len()).map(|n| 1 + n * per_layer));
        first_parameter.push(2 + layers.len() * per_layer);
        let frequencies = rope::inverse_frequencies(shape.head_dim, shape.rope_theta, shape.rope_scaling.as_ref());
        Ok(Self {
            rope: Rope::new(&frequencies, seq_length as i64, embedding.kind(), device)?,
            rope_theta: shape.rope_theta,
            rope_scaling_factor: shape.rope_scaling.as_ref().map_or(1.0, |s| s.factor),
            embedding,
            layers,
            norm: tensor("model.norm.weight".to_owned())?,
            head,
            head_dim: shape.head_dim,
            norm_eps: shape.norm_eps,
            first_parameter,
        })
    }

    pub fn num_parts(&self) -> usize {
        self.layers.len() + 2
    }

    /// Which parameters the parts use, as indices into [`Parameters::list`].
    pub fn parameters_of(&self, parts: &Range<usize>) -> Range<usize> {
        self.first_parameter[parts.start]..self.first_parameter[parts.end]
    }

    /// The parameter that [`Model::logits`] uses.
    pub fn head_parameter(&self) -> usize {
        if self.is_tied() { 0 } else { self.first_parameter[self.num_parts()] }
    }

    pub fn head(&self) -> &Tensor {
        &self.head
    }

    pub fn is_tied(&self) -> bool {
        self.head.data_ptr() == self.embedding.data_ptr()
    }

    /// Runs some parts in order; `x` is `[batch, seq_length]` of tokens before part 0, hidden states after.
    pub fn forward(&self, parts: &Range<usize>, x: &Tensor) -> Result<Tensor, TchError> {
        let mut x = x.shallow_clone();
        for part in parts.clone() {
            x = match part {
                0 => Tensor::f_embedding(&self.embedding, &x, -1, false, false)?,
                n if n <= self.layers.len() => self.layer(&self.layers[n - 1], &x)?,
                _ => self.rms_norm(&x, &self.norm)?,
            };
        }
        Ok(x)
    }

    /// Scores of every token of the vocabulary, after the last part.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        hidden.f_linear(&self.head, None::<Tensor>)
    }

    fn layer(&self, layer: &Layer, x: &Tensor) -> Result<Tensor, TchError> {
        let x = x.f_add(&self.attention(layer, &self.rms_norm(x, &layer.input_norm)?)?)?;
        let normed = self.rms_norm(&x, &layer.post_attention_norm)?;
        let gated = layer.gate.forward(&normed)?.f_silu()?.f_mul(&layer.up.forward(&normed)?)?;
        x.f_add(&layer.down.forward(&gated)?)
    }

    fn attention(&self, layer: &Layer, x: &Tensor) -> Result<Tensor, TchError> {
        let (batch, length, _) = x.size3()?;
        let heads = |x: Tensor| x.f_reshape([batch, length, -1, self.head_dim])?.f_transpose(1, 2);
        let q = self.rope.apply(&heads(layer.q.forward(x)?)?)?;
        let k = self.rope.apply(&heads(layer.k.forward(x)?)?)?;
        let v = heads(layer.v.forward(x)?)?;
        let grouped = q.size()[1] != k.size()[1];
        let mixed =
            Tensor::f_scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, true, None::<f64>, grouped)?;
        layer.o.forward(&mixed.f_transpose(1, 2)?.f_reshape([batch, length, -1])?)
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
        let first = &self.layers[0];
        let value = serde_json::json!({
            "num_layers": self.layers.len(),
            "hidden_size": self.embedding.size()[1],
            "ffn_hidden_size": rows(&first.gate.weight),
            "num_attention_heads": rows(&first.q.weight) / self.head_dim,
            "num_kv_heads": rows(&first.k.weight) / self.head_dim,
            "head_dim": self.head_dim,
            "vocab_size": rows(&self.embedding),
            "tie_embeddings": self.is_tied(),
            "qkv_bias": first.q.bias.is_some(),
            "norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling_factor": self.rope_scaling_factor,
        });
        match value {
            serde_json::Value::Object(map) => map,
            _ => serde_json::Map::new(),
        }
    }
}
