//! One decoder layer, forward and backward, written out.
//!
//! ```text
//! x ── RMSNorm ── q,k,v in one product ── RoPE ── attention ── o ─┬─ middle ── RMSNorm ── gate,up ── SwiGLU ── down ─┬─
//! └──────────────────────────────── added by the product ─────────┘  └──────────── added by the product ────────────┘
//! ```

use std::rc::Rc;

use tch::{Kind, TchError, Tensor};

use super::{
    backend::{Attention, Backend, Layout, Product},
    kernels::{self, Angles, Norm},
};

/// A parameter, or neighbouring ones joined, with the gradient that is accumulated for it.
pub struct Weight {
    pub value: Tensor,
    pub gradient: Tensor,
}

pub struct Layer {
    pub input_norm: Weight,
    pub qkv: Weight,
    pub qkv_bias: Option<Weight>,
    pub o: Weight,
    pub post_norm: Weight,
    pub gate_up: Weight,
    pub down: Weight,
}

/// Whether a backward pass adds to the gradients that are there, or writes over them.
#[derive(Clone, Copy)]
pub struct Accumulate {
    pub matrices: bool,
    pub vectors: bool,
}

/// What all layers have in common.
pub struct Common {
    pub backend: Rc<dyn Backend>,
    pub angles: Angles,
    pub heads: i64,
    pub kv_heads: i64,
    pub head_dim: i64,
    pub eps: f64,
}

/// The values that the backward pass of a layer reads.
pub struct Saved {
    x: Tensor,
    input_scales: Tensor,
    input_normed: Tensor,
    qkv: Tensor,
    attention: Attention,
    middle: Tensor,
    post_scales: Tensor,
    post_normed: Tensor,
    gate_up: Tensor,
    gated: Tensor,
}

impl Common {
    pub fn empty(&self, rows: i64, cols: i64) -> Result<Tensor, TchError> {
        Tensor::f_empty([rows, cols], (Kind::BFloat16, self.backend.device()))
    }

    /// The normalised rows and the scale of each.
    pub fn normed(&self, x: &Tensor, weight: &Weight) -> Result<(Tensor, Tensor), TchError> {
        let (rows, cols) = x.size2()?;
        let y = self.empty(rows, cols)?;
        let scales = Tensor::f_empty([rows], (Kind::Float, self.backend.device()))?;
        kernels::rms_norm(&*self.backend, x, &weight.value, &y, &scales, self.eps)?;
        Ok((y, scales))
    }

    /// x·wᵀ, with what is added to it.
    pub fn forward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        add: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let out = self.empty(x.size()[0], weight.size()[0])?;
        self.backend.product(&Product { layout: Layout::Forward, left: x, right: weight, out: &out, add, bias })?;
        Ok(out)
    }

    /// Adds dyᵀ·x to the weight's gradient, or puts it there, and writes dy·w to `dx`.
    pub fn backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        weight: &Weight,
        accumulate: bool,
        dx: &Tensor,
    ) -> Result<(), TchError> {
        let input = Product { layout: Layout::Input, left: dy, right: &weight.value, out: dx, add: None, bias: None };
        self.backend.product(&input)?;
        let out = &weight.gradient;
        let add = accumulate.then_some(out);
        self.backend.product(&Product { layout: Layout::Weight, left: dy, right: x, out, add, bias: None })
    }

    /// q, k and v as views of the joint product, `[batch, heads, length, head_dim]`.
    fn split(&self, qkv: &Tensor) -> Result<[Tensor; 3], TchError> {
        let (rows, width) = qkv.size2()?;
        let length = self.angles.cosines.size()[0];
        let view = |first: i64, heads: i64| {
            let size = [rows / length, heads, length, self.head_dim];
            let stride = [length * width, self.head_dim, width, 1];
            qkv.f_as_strided(size, stride, first * self.head_dim)
        };
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        Ok([view(0, heads)?, view(heads, kv_heads)?, view(heads + kv_heads, kv_heads)?])
    }
}

impl Layer {
    /// All that comes before the last product.
    pub fn run(&self, common: &Common, x: Tensor) -> Result<Saved, TchError> {
        let backend = &*common.backend;
        let rows = x.size()[0];
        let (input_normed, input_scales) = common.normed(&x, &self.input_norm)?;
        let bias = self.qkv_bias.as_ref().map(|b| &b.value);
        let qkv = common.forward(&input_normed, &self.qkv.value, None, bias)?;
        kernels::rope(backend, &qkv, &common.angles, common.heads, common.kv_heads)?;
        let [q, k, v] = common.split(&qkv)?;
        let mut attention = backend.attention(&q, &k, &v)?;
        // Back to one row a token; the memory is laid out so already.
        attention.output = attention.output.f_transpose(1, 2)?;
        let joined = attention.output.f_reshape([rows, common.heads * common.head_dim])?;
        let middle = common.forward(&joined, &self.o.value, Some(&x), None)?;
        attention.output = attention.output.f_transpose(1, 2)?;
        let (post_normed, post_scales) = common.normed(&middle, &self.post_norm)?;
        let gate_up = common.forward(&post_normed, &self.gate_up.value, None, None)?;
        let gated = common.empty(rows, self.down.value.size()[1])?;
        kernels::swiglu(backend, &gate_up, &gated)?;
        Ok(Saved { x, input_scales, input_normed, qkv, attention, middle, post_scales, post_normed, gate_up, gated })
    }

    /// The layer's output.
    pub fn finish(&self, common: &Common, saved: &Saved) -> Result<Tensor, TchError> {
        common.forward(&saved.gated, &self.down.value, Some(&saved.middle), None)
    }

    /// Turns `dx`, the gradient of the output, into that of the input. Reuses the memory of `saved`.
    pub fn backward(&self, common: &Common, saved: Saved, dx: &Tensor, accumulate: Accumulate) -> Result<(), TchError> {
        let Accumulate { matrices, vectors } = accumulate;
        let backend = &*common.backend;
        let (rows, hidden) = dx.size2()?;
        let Saved { x, input_scales, input_normed, qkv, attention, middle, post_scales, post_normed, gate_up, gated } =
            saved;

        let d_gated = common.empty(rows, gated.size()[1])?;
        common.backward(dx, &gated, &self.down, matrices, &d_gated)?;
        drop(gated);
        kernels::swiglu_backward(backend, &gate_up, &d_gated)?;
        drop(d_gated);
        let d_normed = common.empty(rows, hidden)?;
        common.backward(&gate_up, &post_normed, &self.gate_up, matrices, &d_normed)?;
        drop((gate_up, post_normed));
        let norm = Norm { x: &middle, weight: &self.post_norm.value, scales: &post_scales };
        kernels::rms_norm_backward(backend, &norm, &d_normed, Some(dx), dx, &self.post_norm.gradient, vectors)?;

        let (batch, heads, length, head_dim) = attention.output.size4()?;
        let width = heads * head_dim;
        let d_output = common.empty(rows, width)?;
        let output = attention.output.f_transpose(1, 2)?.f_reshape([rows, width])?;
        common.backward(dx, &output, &self.o, matrices, &d_output)?;
        let d_output = d_output.f_reshape([batch, length, heads, head_dim])?.f_transpose(1, 2)?;
        let [q, k, v] = common.split(&qkv)?;
        let gradients = backend.attention_backward(&d_output, [&q, &k, &v], &attention)?;
        drop((q, k, v, attention, d_output, output));
        // q, k and v are not needed again: their gradients take their place.
        kernels::rope_backward(backend, &gradients, &common.angles, &qkv)?;
        drop(gradients);
        if let Some(bias) = &self.qkv_bias {
            kernels::bias_backward(backend, &qkv, &bias.gradient, vectors)?;
        }
        common.backward(&qkv, &input_normed, &self.qkv, matrices, &d_normed)?;
        let norm = Norm { x: &x, weight: &self.input_norm.value, scales: &input_scales };
        kernels::rms_norm_backward(backend, &norm, &d_normed, Some(dx), dx, &self.input_norm.gradient, vectors)
    }
}
