//! The parts of the direct step: products with weights, norms, and layers.

use std::ops::Range;

use tch::{TchError, Tensor};
use tprimat_loops::{self as loops, Heads};

use super::{Common, buffer::Buffer, threads::Threads};
use crate::parameters::{MATRICES, Parameters, Place, VECTORS};

/// A weight, and its gradient.
pub struct Matrix {
    pub value: Buffer,
    pub transposed: Tensor,
    pub gradient: Buffer,
}

/// Views of a parameter's values and gradient.
fn views(parameters: &Parameters, place: &Place) -> Result<[Buffer; 2], TchError> {
    let group = &parameters.groups[if place.is_matrix() { MATRICES } else { VECTORS }];
    Ok([
        Buffer::of(place.view(&group.values)?)?,
        Buffer::of(place.view(&group.grads)?)?,
    ])
}

impl Matrix {
    pub fn new(parameters: &Parameters, place: &Place) -> Result<Self, TchError> {
        let [value, gradient] = views(parameters, place)?;
        Ok(Self {
            transposed: value.tensor.f_tr()?,
            value,
            gradient,
        })
    }

    /// `y` = `x` · wᵀ.
    pub fn forward(&self, x: &Tensor, y: &Tensor) -> Result<(), TchError> {
        x.f_mm_out(y, &self.transposed).map(drop)
    }

    /// `dx` = `dy` · w.
    pub fn input_gradient(&self, dy: &Tensor, dx: &Tensor) -> Result<(), TchError> {
        dy.f_mm_out(dx, &self.value.tensor).map(drop)
    }

    /// Puts or adds `dy`ᵀ · `x`.
    pub fn weight_gradient(&self, x: &Tensor, dy: &Tensor, is_first: bool) -> Result<(), TchError> {
        let (dy, gradient) = (dy.f_tr()?, &self.gradient.tensor);
        match is_first {
            true => dy.f_mm_out(gradient, x),
            false => gradient.shallow_clone().f_addmm_(&dy, x),
        }
        .map(drop)
    }

    fn backward(
        &self,
        x: &Tensor,
        dy: &Tensor,
        dx: &Tensor,
        is_first: bool,
    ) -> Result<(), TchError> {
        self.weight_gradient(x, dy, is_first)?;
        self.input_gradient(dy, dx)
    }
}

/// What the backward pass hands from one loop or product to the next, and what only one of them
/// needs.
pub struct Scratch {
    /// The gradient of the residual stream.
    pub stream: Buffer,
    /// The gradient of a norm's output; on the way forward, a product to be added to the stream.
    pub of_norm: Buffer,
    of_attention: Buffer,
    of_qkv: Buffer,
    of_product: Buffer,
    /// Sums over the rows of each piece.
    sums: Buffer,
}

impl Scratch {
    pub fn new(
        threads: &Threads,
        rows: usize,
        hidden: usize,
        ffn: usize,
        heads: Heads,
    ) -> Result<Self, TchError> {
        Ok(Self {
            stream: Buffer::zeros(rows, hidden)?,
            of_norm: Buffer::zeros(rows, hidden)?,
            of_attention: Buffer::zeros(rows, heads.queries * heads.width)?,
            of_qkv: Buffer::zeros(rows, heads.row())?,
            of_product: Buffer::zeros(rows, ffn)?,
            sums: Buffer::zeros(threads.count, hidden.max(heads.row()))?,
        })
    }
}

impl Scratch {
    /// Puts or adds the sums over all rows of what `body` adds to its slice.
    fn sum_rows(
        &self,
        common: &Common,
        gradient: &Buffer,
        is_first: bool,
        body: impl Fn(&mut [f32], Range<usize>) + Sync,
    ) {
        let width = gradient.width();
        let pieces = common.threads.split(common.rows, width, |piece, rows| {
            // SAFETY: every piece has a row of its own.
            let sums = unsafe { self.sums.rows_mut(piece..piece + 1) };
            sums[..width].fill(0.0);
            body(&mut sums[..width], rows);
        });
        // SAFETY: the loop is over, and no product runs now.
        let gradient = unsafe { gradient.all_mut() };
        if is_first {
            gradient.fill(0.0);
        }
        for piece in 0..pieces {
            let sums = self.sums.rows(piece..piece + 1);
            gradient
                .iter_mut()
                .zip(sums)
                .for_each(|(to, sum)| *to += sum);
        }
    }
}

/// An RMSNorm with what it read and wrote in this micro-batch.
pub struct Norm {
    weight: Buffer,
    gradient: Buffer,
    pub input: Buffer,
    pub output: Buffer,
    /// One over the root mean square of each row.
    scales: Buffer,
}

impl Norm {
    pub fn new(
        parameters: &Parameters,
        place: &Place,
        rows: usize,
        hidden: usize,
    ) -> Result<Self, TchError> {
        let [weight, gradient] = views(parameters, place)?;
        Ok(Self {
            weight,
            gradient,
            input: Buffer::zeros(rows, hidden)?,
            output: Buffer::zeros(rows, hidden)?,
            scales: Buffer::zeros(rows, 1)?,
        })
    }

    pub fn forward(&self, common: &Common) {
        common
            .threads
            .split(common.rows, self.input.width(), |_, rows| {
                // SAFETY: every piece has rows of its own.
                let (output, scales) = unsafe {
                    (
                        self.output.rows_mut(rows.clone()),
                        self.scales.rows_mut(rows.clone()),
                    )
                };
                loops::norm(
                    self.input.rows(rows),
                    self.weight.all(),
                    common.eps,
                    output,
                    scales,
                );
            });
    }

    /// With the sum of two matrices as its input.
    fn forward_of_sum(&self, common: &Common, x: &Buffer, y: &Buffer) {
        common
            .threads
            .split(common.rows, self.input.width(), |_, rows| {
                // SAFETY: every piece has rows of its own.
                let (input, output, scales) = unsafe {
                    (
                        self.input.rows_mut(rows.clone()),
                        self.output.rows_mut(rows.clone()),
                        self.scales.rows_mut(rows.clone()),
                    )
                };
                let (x, y) = (x.rows(rows.clone()), y.rows(rows));
                loops::add_and_norm(x, y, self.weight.all(), common.eps, input, output, scales);
            });
    }

    /// Adds the gradient by the input to the stream's, from that by the output in the scratch.
    pub fn backward(&self, common: &Common, scratch: &Scratch, is_first: bool) {
        scratch.sum_rows(common, &self.gradient, is_first, |dw, rows| {
            // SAFETY: every piece has rows of its own.
            let dx = unsafe { scratch.stream.rows_mut(rows.clone()) };
            let (x, scales) = (
                self.input.rows(rows.clone()),
                self.scales.rows(rows.clone()),
            );
            loops::norm_backward(
                x,
                scales,
                self.weight.all(),
                scratch.of_norm.rows(rows),
                dx,
                dw,
            );
        });
    }
}

/// Attention's output `[batch, heads, length, width]`, and the logarithm of each row's sum.
pub type Attended = (Tensor, Tensor);

/// A layer's weights but for its norms, and what it computed in this micro-batch.
pub struct Layer {
    qkv: Matrix,
    /// Its values and their gradient.
    bias: Option<[Buffer; 2]>,
    o: Matrix,
    gate_up: Matrix,
    down: Matrix,
    /// q, k and v, rotated.
    joined: Buffer,
    /// Its parts, `[batch, heads, length, width]` each.
    apart: [Tensor; 3],
    /// Gate and up; on the way back, their gradients.
    gates: Buffer,
    product: Buffer,
}

impl Layer {
    /// `matrices`: q, k and v as one, o, gate and up as one, down.
    pub fn new(
        matrices: [Result<Matrix, TchError>; 4],
        bias: Option<&Place>,
        parameters: &Parameters,
        heads: Heads,
        [batch, length]: [usize; 2],
    ) -> Result<Self, TchError> {
        let [qkv, o, gate_up, down] = matrices;
        let (gate_up, rows) = (gate_up?, batch * length);
        let joined = Buffer::zeros(rows, heads.row())?;
        let by_head = [batch, length, heads.row() / heads.width, heads.width].map(|n| n as i64);
        let by_head = joined.tensor.f_view(by_head)?;
        let part = |first: usize, count: usize| {
            by_head
                .f_narrow(2, first as i64, count as i64)?
                .f_transpose(1, 2)
        };
        Ok(Self {
            qkv: qkv?,
            bias: bias.map(|place| views(parameters, place)).transpose()?,
            o: o?,
            apart: [
                part(0, heads.queries)?,
                part(heads.queries, heads.keys)?,
                part(heads.queries + heads.keys, heads.keys)?,
            ],
            joined,
            gates: Buffer::zeros(rows, gate_up.value.len())?,
            product: Buffer::zeros(rows, gate_up.value.len() / 2)?,
            gate_up,
            down: down?,
        })
    }

    /// From the output of the first of the norms to the input and output of the last one, which is
    /// the next layer's first.
    pub fn forward(
        &self,
        common: &Common,
        [input_norm, post_norm, next_norm]: [&Norm; 3],
        scratch: &Scratch,
    ) -> Result<Attended, TchError> {
        let Self {
            joined,
            bias,
            gates,
            product,
            ..
        } = self;
        self.qkv
            .forward(&input_norm.output.tensor, &joined.tensor)?;
        common
            .threads
            .split(common.rows, joined.width(), |_, rows| {
                // SAFETY: every piece has rows of its own.
                let joined = unsafe { joined.rows_mut(rows.clone()) };
                let bias = bias.as_ref().map(|[values, _]| values.all());
                loops::rotate(joined, rows.start, bias, common.angles(), common.heads);
            });
        let [q, k, v] = &self.apart;
        let none = None::<Tensor>;
        let attended = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, true, none, None,
        )?;
        self.o
            .forward(&heads_joined(&attended.0)?, &scratch.of_norm.tensor)?;
        post_norm.forward_of_sum(common, &input_norm.input, &scratch.of_norm);

        self.gate_up
            .forward(&post_norm.output.tensor, &gates.tensor)?;
        common.threads.split(common.rows, gates.width(), |_, rows| {
            // SAFETY: every piece has rows of its own.
            let out = unsafe { product.rows_mut(rows.clone()) };
            loops::swiglu(gates.rows(rows), product.width(), out);
        });
        self.down
            .forward(&product.tensor, &scratch.of_norm.tensor)?;
        next_norm.forward_of_sum(common, &post_norm.input, &scratch.of_norm);
        Ok(attended)
    }

    /// Turns the stream's gradient after the layer into that before it.
    pub fn backward(
        &self,
        common: &Common,
        [input_norm, post_norm]: [&Norm; 2],
        (output, log_sums): Attended,
        scratch: &Scratch,
        is_first: bool,
    ) -> Result<(), TchError> {
        let (gates, product) = (&self.gates, &self.product);
        let Scratch {
            stream,
            of_norm,
            of_attention,
            of_qkv,
            of_product,
            ..
        } = scratch;
        self.down.backward(
            &product.tensor,
            &stream.tensor,
            &of_product.tensor,
            is_first,
        )?;
        common.threads.split(common.rows, gates.width(), |_, rows| {
            // SAFETY: every piece has rows of its own.
            let out = unsafe { gates.rows_mut(rows.clone()) };
            loops::swiglu_backward(out, product.width(), of_product.rows(rows));
        });
        let (x, dy) = (&post_norm.output.tensor, &gates.tensor);
        self.gate_up.backward(x, dy, &of_norm.tensor, is_first)?;
        post_norm.backward(common, scratch, is_first);

        self.o.backward(
            &heads_joined(&output)?,
            &stream.tensor,
            &of_attention.tensor,
            is_first,
        )?;
        let (batch, heads, length, width) = output.size4()?;
        let d_output = of_attention.tensor.f_view([batch, length, heads, width])?;
        let [q, k, v] = &self.apart;
        let none = None::<Tensor>;
        let (d_q, d_k, d_v) =
            Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward(
                &d_output.f_transpose(1, 2)?,
                q,
                k,
                v,
                &output,
                &log_sums,
                0.0,
                true,
                none,
                None,
            )?;
        let d_q = Buffer::of(heads_joined(&d_q)?.f_contiguous()?)?;
        let d_k = Buffer::of(heads_joined(&d_k)?.f_contiguous()?)?;
        let d_v = Buffer::of(heads_joined(&d_v)?.f_contiguous()?)?;
        let rotate_backward = |d_bias: Option<&mut [f32]>, rows: Range<usize>| {
            let gradients = [&d_q, &d_k, &d_v].map(|part| part.rows(rows.clone()));
            // SAFETY: every piece has rows of its own.
            let joined = unsafe { of_qkv.rows_mut(rows.clone()) };
            let (angles, heads) = (common.angles(), common.heads);
            loops::rotate_backward(gradients, rows.start, d_bias, angles, heads, joined);
        };
        match &self.bias {
            Some([_, gradient]) => scratch.sum_rows(common, gradient, is_first, |sums, rows| {
                rotate_backward(Some(sums), rows);
            }),
            None => {
                let width = of_qkv.width();
                common
                    .threads
                    .split(common.rows, width, |_, rows| rotate_backward(None, rows));
            }
        }
        let (x, dy) = (&input_norm.output.tensor, &of_qkv.tensor);
        self.qkv.backward(x, dy, &of_norm.tensor, is_first)?;
        input_norm.backward(common, scratch, is_first);
        Ok(())
    }
}

/// `[batch, heads, length, width]` as rows of all heads of a position: attention's results lie in
/// memory like that.
fn heads_joined(x: &Tensor) -> Result<Tensor, TchError> {
    let (batch, heads, length, width) = x.size4()?;
    x.f_transpose(1, 2)?
        .f_reshape([batch * length, heads * width])
}
