//! GPT-2's layers: learned positions, LayerNorm with biases, GELU, matrices stored input by output.

use tch::{Device, Kind, TchError, Tensor};

use crate::{model::Named, shape::Shape};

pub struct Layers {
    layers: Vec<Layer>,
    positions: Tensor,
    /// 0 to seq_length − 1.
    places: Tensor,
    norm: Affine,
    heads: i64,
    eps: f64,
}

struct Layer {
    attention_norm: Affine,
    qkv: Affine,
    joined: Affine,
    mlp_norm: Affine,
    up: Affine,
    down: Affine,
}

/// A weight and a bias: of a norm, or of a linear layer.
struct Affine {
    weight: Tensor,
    bias: Tensor,
}

impl Affine {
    fn named(named: &Named, name: &str) -> Result<Self, TchError> {
        Ok(Self {
            weight: named.tensor(&format!("{name}.weight"))?,
            bias: named.tensor(&format!("{name}.bias"))?,
        })
    }

    fn linear(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_matmul(&self.weight)?.f_add(&self.bias)
    }

    fn norm(&self, x: &Tensor, eps: f64) -> Result<Tensor, TchError> {
        x.f_layer_norm(
            self.weight.size(),
            Some(&self.weight),
            Some(&self.bias),
            eps,
            false,
        )
    }
}

impl Layers {
    pub fn new(
        shape: &Shape,
        named: &Named,
        seq_length: i64,
        device: Device,
    ) -> Result<Self, TchError> {
        let layer = |n| {
            let affine = |name: &str| Affine::named(named, &format!("transformer.h.{n}.{name}"));
            Ok(Layer {
                attention_norm: affine("ln_1")?,
                qkv: affine("attn.c_attn")?,
                joined: affine("attn.c_proj")?,
                mlp_norm: affine("ln_2")?,
                up: affine("mlp.c_fc")?,
                down: affine("mlp.c_proj")?,
            })
        };
        Ok(Self {
            layers: (0..shape.layers)
                .map(layer)
                .collect::<Result<_, TchError>>()?,
            positions: named.tensor("transformer.wpe.weight")?,
            places: Tensor::f_arange(seq_length, (Kind::Int64, device))?,
            norm: Affine::named(named, "transformer.ln_f")?,
            heads: shape.heads,
            eps: shape.norm_eps,
        })
    }

    /// Embedded tokens with their positions added.
    pub fn with_positions(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_add(&Tensor::f_embedding(
            &self.positions,
            &self.places,
            -1,
            false,
            false,
        )?)
    }

    pub fn forward(&self, number: usize, x: &Tensor) -> Result<Tensor, TchError> {
        let layer = &self.layers[number];
        let (batch, length, width) = x.size3()?;
        let qkv = layer.qkv.linear(&layer.attention_norm.norm(x, self.eps)?)?;
        let part = |n| {
            let heads = qkv
                .f_narrow(2, n * width, width)?
                .f_reshape([batch, length, self.heads, -1])?;
            heads.f_transpose(1, 2)
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let mixed = Tensor::f_scaled_dot_product_attention(
            &q,
            &k,
            &v,
            None::<Tensor>,
            0.0,
            true,
            None::<f64>,
            false,
        )?;
        let x = x.f_add(
            &layer
                .joined
                .linear(&mixed.f_transpose(1, 2)?.f_reshape([batch, length, width])?)?,
        )?;
        let up = layer
            .up
            .linear(&layer.mlp_norm.norm(&x, self.eps)?)?
            .f_gelu("tanh")?;
        x.f_add(&layer.down.linear(&up)?)
    }

    pub fn final_norm(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.norm.norm(x, self.eps)
    }

    /// The sizes as the tensors have them, under the job's names.
    pub fn effective(&self, head_dim: i64) -> serde_json::Value {
        let qkv = &self.layers[0].qkv;
        let heads = qkv.weight.size()[1] / 3 / head_dim;
        serde_json::json!({
            "ffn_hidden_size": self.layers[0].up.weight.size()[1],
            "num_attention_heads": heads,
            "num_kv_heads": heads,
            "qkv_bias": qkv.bias.numel() > 0,
            "max_position_embeddings": self.positions.size()[0],
        })
    }
}
