//! One decoder layer, forward and backward, written out.
//!
//! ```text
//! x ── RMSNorm ── q,k,v in one product ── RoPE ── attention ── o ─┬─ middle ── RMSNorm ── gate,up ── SwiGLU ── down ─┬─
//! └──────────────────────────────── added by the product ─────────┘  └──────────── added by the product ────────────┘
//! ```

use std::rc::Rc;

use tch::{Kind, TchError, Tensor};

use super::{
    backend::{Attention, Backend, Product},
    driver::failure,
    kernels::{self, Angles, Norm},
    operand::{self, Format, Fp8, Matrix, Operand, Scaled, Weight},
};

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
    /// Products of the layers are computed in fp8; `None` = in bf16.
    pub fp8: Option<Fp8>,
    /// The backward pass makes the norms' and SwiGLU's results again, where its kernels read what
    /// they are made of anyway. That takes less memory and a little more time.
    pub restores: bool,
}

/// The values that the backward pass of a layer reads. Those that may be `None` are made again if
/// they are.
pub struct Saved {
    x: Tensor,
    input_scales: Tensor,
    input_normed: Option<Operand>,
    qkv: Tensor,
    attention: Attention,
    joined: Operand,
    middle: Tensor,
    post_scales: Tensor,
    post_normed: Option<Operand>,
    gate_up: Tensor,
    gated: Option<Operand>,
}

impl Common {
    pub fn empty(&self, rows: i64, cols: i64) -> Result<Tensor, TchError> {
        Tensor::f_empty([rows, cols], (Kind::BFloat16, self.backend.device()))
    }

    /// A new matrix, which notes its largest magnitude if the products of the layers want it.
    pub fn matrix(&self, rows: i64, cols: i64) -> Result<Matrix, TchError> {
        self.noting(self.empty(rows, cols)?)
    }

    /// The same over memory that is there.
    pub fn noting(&self, values: Tensor) -> Result<Matrix, TchError> {
        let largest = self
            .fp8
            .map(|_| operand::slot(&*self.backend))
            .transpose()?;
        Ok(Matrix { values, largest })
    }

    /// What products read of a matrix.
    fn operand(
        &self,
        matrix: &Matrix,
        format: impl Fn(Fp8) -> Format,
    ) -> Result<Operand, TchError> {
        Ok(match self.fp8 {
            Some(fp8) => Operand::Scaled(Scaled::of(&*self.backend, matrix, format(fp8))?),
            None => Operand::Plain(matrix.values.shallow_clone()),
        })
    }

    fn activation(&self, matrix: &Matrix) -> Result<Operand, TchError> {
        self.operand(matrix, |fp8| fp8.forward)
    }

    fn gradient(&self, matrix: &Matrix) -> Result<Operand, TchError> {
        self.operand(matrix, |fp8| fp8.gradients)
    }

    /// The normalised rows and the scale of each, for products of the layers.
    fn normed(&self, x: &Tensor, weight: &Weight) -> Result<(Operand, Tensor), TchError> {
        let (rows, cols) = x.size2()?;
        let (y, scales) = self.norm(x, weight, self.matrix(rows, cols)?)?;
        Ok((self.activation(&y)?, scales))
    }

    /// The normalised rows, in `out`, and the scale of each.
    pub fn norm(
        &self,
        x: &Tensor,
        weight: &Weight,
        out: Matrix,
    ) -> Result<(Matrix, Tensor), TchError> {
        let scales = Tensor::f_empty([x.size()[0]], (Kind::Float, self.backend.device()))?;
        kernels::rms_norm(&*self.backend, x, &weight.value, &out, &scales, self.eps)?;
        Ok((out, scales))
    }

    /// Adds the gradient of `norm.x` to `residual`, in place, and that of the norm's weight to its
    /// own.
    fn norm_backward(
        &self,
        norm: &Norm,
        dy: &Tensor,
        residual: Tensor,
        weight: &Weight,
        accumulate: bool,
    ) -> Result<Matrix, TchError> {
        let out = self.noting(residual)?;
        let residual = Some(&out.values);
        kernels::rms_norm_backward(
            &*self.backend,
            norm,
            dy,
            residual,
            &out,
            &weight.gradient,
            accumulate,
        )?;
        Ok(out)
    }

    /// x·wᵀ, with what is added to it. The rows of `x` are not read again.
    pub fn forward(
        &self,
        x: &mut Operand,
        weight: &Weight,
        add: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let rows = match &*x {
            Operand::Plain(values) => values.size()[0],
            Operand::Scaled(scaled) => scaled.by_column.size()[1],
        };
        let out = self.empty(rows, weight.value.size()[0])?;
        self.backend.product(&Product {
            add,
            bias,
            ..operand::forward(x, &weight.operand, &out)?
        })?;
        x.forget_rows();
        Ok(out)
    }

    /// Writes dy·w to `dx`.
    pub fn input_gradient(
        &self,
        dy: &Operand,
        weight: &Weight,
        dx: &Tensor,
    ) -> Result<(), TchError> {
        self.backend
            .product(&operand::input(dy, &weight.operand, dx)?)
    }

    /// Adds dyᵀ·x to the weight's gradient, or puts it there.
    pub fn weight_gradient(
        &self,
        dy: &Operand,
        x: &Operand,
        weight: &Weight,
        accumulate: bool,
    ) -> Result<(), TchError> {
        self.backend
            .product(&operand::weight(dy, x, &weight.gradient, accumulate)?)
    }

    /// What the backward pass gets of an operand that it could make again.
    fn kept(&self, operand: Operand) -> Option<Operand> {
        (!self.restores).then_some(operand)
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
        Ok([
            view(0, heads)?,
            view(heads, kv_heads)?,
            view(heads + kv_heads, kv_heads)?,
        ])
    }
}

impl Layer {
    /// The weights that products read.
    pub fn linear(&self) -> [&Weight; 4] {
        [&self.qkv, &self.o, &self.gate_up, &self.down]
    }

    /// All that comes before the last product.
    pub fn run(&self, common: &Common, x: Tensor) -> Result<Saved, TchError> {
        let backend = &*common.backend;
        let rows = x.size()[0];
        let (mut input_normed, input_scales) = common.normed(&x, &self.input_norm)?;
        let bias = self.qkv_bias.as_ref().map(|b| &b.value);
        let qkv = common.forward(&mut input_normed, &self.qkv, None, bias)?;
        kernels::rope(backend, &qkv, &common.angles, common.heads, common.kv_heads)?;
        let [q, k, v] = common.split(&qkv)?;
        let attention = backend.attention(&q, &k, &v)?;
        // Back to one row a token; the memory is laid out so already.
        let values = attention
            .output
            .f_transpose(1, 2)?
            .f_reshape([rows, common.heads * common.head_dim])?;
        let matrix = if common.fp8.is_some() {
            operand::measured(backend, values)?
        } else {
            Matrix::plain(values)
        };
        let mut joined = common.activation(&matrix)?;
        let middle = common.forward(&mut joined, &self.o, Some(&x), None)?;
        let (mut post_normed, post_scales) = common.normed(&middle, &self.post_norm)?;
        let gate_up = common.forward(&mut post_normed, &self.gate_up, None, None)?;
        let post_normed = common.kept(post_normed);
        let product = common.matrix(rows, self.down.value.size()[1])?;
        kernels::swiglu(backend, &gate_up, &product)?;
        let gated = Some(common.activation(&product)?);
        Ok(Saved {
            x,
            input_scales,
            input_normed: common.kept(input_normed),
            qkv,
            attention,
            joined,
            middle,
            post_scales,
            post_normed,
            gate_up,
            gated,
        })
    }

    /// The layer's output.
    pub fn finish(&self, common: &Common, saved: &mut Saved) -> Result<Tensor, TchError> {
        let mut gated = saved
            .gated
            .take()
            .ok_or_else(|| failure("a layer is finished twice".to_owned()))?;
        let output = common.forward(&mut gated, &self.down, Some(&saved.middle), None)?;
        saved.gated = common.kept(gated);
        Ok(output)
    }

    /// Turns `dx`, the gradient of the output, into that of the input. Reuses the memory of
    /// `saved`.
    pub fn backward(
        &self,
        common: &Common,
        saved: Saved,
        dx: Matrix,
        accumulate: Accumulate,
    ) -> Result<Matrix, TchError> {
        let Accumulate { matrices, vectors } = accumulate;
        let backend = &*common.backend;
        let (rows, hidden) = dx.values.size2()?;
        let Saved {
            x,
            input_scales,
            input_normed,
            qkv,
            attention,
            joined,
            ..
        } = saved;
        let Saved {
            middle,
            post_scales,
            post_normed,
            gate_up,
            gated,
            ..
        } = saved;

        let dy = common.gradient(&dx)?;
        let d_gated = common.empty(rows, self.down.value.size()[1])?;
        common.input_gradient(&dy, &self.down, &d_gated)?;
        let d_gate_up = common.noting(gate_up)?;
        kernels::swiglu_backward(backend, &d_gate_up, &d_gated, gated.is_none())?;
        let gated = gated.unwrap_or(Operand::Plain(d_gated));
        common.weight_gradient(&dy, &gated, &self.down, matrices)?;
        drop((dy, gated));
        let dy = common.gradient(&d_gate_up)?;
        drop(d_gate_up);
        let d_normed = common.empty(rows, hidden)?;
        common.input_gradient(&dy, &self.gate_up, &d_normed)?;
        let restores = post_normed.is_none();
        let norm = Norm {
            x: &middle,
            weight: &self.post_norm.value,
            scales: &post_scales,
            restores,
        };
        let dx = common.norm_backward(&norm, &d_normed, dx.values, &self.post_norm, vectors)?;
        let normed = post_normed.unwrap_or_else(|| Operand::Plain(d_normed.shallow_clone()));
        common.weight_gradient(&dy, &normed, &self.gate_up, matrices)?;
        drop((dy, normed));

        let (batch, heads, length, head_dim) = attention.output.size4()?;
        let d_output = common.empty(rows, heads * head_dim)?;
        let dy = common.gradient(&dx)?;
        common.input_gradient(&dy, &self.o, &d_output)?;
        common.weight_gradient(&dy, &joined, &self.o, matrices)?;
        drop((dy, joined));
        let d_output = d_output
            .f_reshape([batch, length, heads, head_dim])?
            .f_transpose(1, 2)?;
        let [q, k, v] = common.split(&qkv)?;
        let gradients = backend.attention_backward(&d_output, [&q, &k, &v], &attention)?;
        drop((q, k, v, attention, d_output));
        // q, k and v are not needed again: their gradients take their place.
        let dqkv = common.noting(qkv)?;
        kernels::rope_backward(backend, &gradients, &common.angles, &dqkv)?;
        drop(gradients);
        if let Some(bias) = &self.qkv_bias {
            kernels::bias_backward(backend, &dqkv.values, &bias.gradient, vectors)?;
        }
        let dy = common.gradient(&dqkv)?;
        drop(dqkv);
        common.input_gradient(&dy, &self.qkv, &d_normed)?;
        let restores = input_normed.is_none();
        let norm = Norm {
            x: &x,
            weight: &self.input_norm.value,
            scales: &input_scales,
            restores,
        };
        let dx = common.norm_backward(&norm, &d_normed, dx.values, &self.input_norm, vectors)?;
        let normed = input_normed.unwrap_or(Operand::Plain(d_normed));
        common.weight_gradient(&dy, &normed, &self.qkv, matrices)?;
        Ok(dx)
    }
}
