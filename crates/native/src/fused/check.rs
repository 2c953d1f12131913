//! Compares every kernel, product and attention with float64 arithmetic on random inputs of ragged
//! sizes: in the tests on the CPU, and by `--self-test` on the GPU that is there.

mod in_fp8;

use tch::{Device, Kind, TchError, Tensor};

use super::{
    backend::{Backend, LAYOUTS, Layout, Product},
    kernels::{self, AdamW, Angles, Norm, Update},
    operand::{self, Matrix},
    segments,
};

/// How far a result is from the reference, relative to the reference's 2-norm, and how far it may
/// be.
pub struct Finding {
    pub what: String,
    pub error: f64,
    pub limit: f64,
}

/// One rounding to bf16 is at most 2^-8 of a value, and about 2^-9.6 of a norm.
const BF16: f64 = 3e-3;
const FP32: f64 = 1e-5;
/// The same bits.
const SAME: f64 = 0.0;

pub struct Checks<'a> {
    backend: &'a dyn Backend,
    findings: Vec<Finding>,
    what: String,
}

/// All findings; a failure to launch is an error.
pub fn all(backend: &dyn Backend) -> Result<Vec<Finding>, TchError> {
    tch::manual_seed(42);
    let mut checks = Checks {
        backend,
        findings: Vec::new(),
        what: String::new(),
    };
    for (rows, cols) in [
        (1, 8),
        (5, 264),
        (37, 2048),
        (600, 64),
        (3, 3584),
        (9, 8192),
    ] {
        checks.what = format!("{rows} x {cols}");
        checks.norms(rows, cols)?;
        checks.bias(rows, cols)?;
        checks.swiglu(rows, cols)?;
    }
    for (batch, length, heads, kv_heads, head_dim) in
        [(2, 7, 4, 2, 16), (1, 33, 3, 1, 64), (2, 5, 8, 8, 128)]
    {
        checks.what = format!("{batch} x {length}, {heads}/{kv_heads} heads of {head_dim}");
        checks.rope(batch, length, [heads, kv_heads, head_dim])?;
    }
    for (rows, vocabulary) in [(1, 8), (3, 1000), (7, 50_304), (2, 128_256)] {
        checks.what = format!("{rows} x {vocabulary}");
        checks.cross_entropy(rows, vocabulary)?;
    }
    for (rows, cols, vocabulary, kind) in [
        (1, 8, 3, Kind::Float),
        (300, 264, 17, Kind::Float),
        (65, 4096, 1000, Kind::BFloat16),
    ] {
        checks.what = format!("{rows} x {cols}, {vocabulary} tokens, {kind:?}");
        checks.embedding(rows, cols, vocabulary, kind)?;
    }
    for (count, kind) in [
        (8, Kind::Float),
        (4104, Kind::Float),
        (1 << 16, Kind::Float),
        (4104, Kind::BFloat16),
    ] {
        checks.what = format!("{count}, {kind:?}");
        checks.update(count, kind)?;
    }
    for (parts, count, kind) in [
        (1, 4, Kind::Float),
        (3, 4100, Kind::Float),
        (8, 2052, Kind::BFloat16),
    ] {
        checks.what = format!("{parts} x {count}, {kind:?}");
        checks.add_parts(parts, count, kind)?;
    }
    for [rows, inner, cols] in [[8, 8, 8], [40, 264, 72], [136, 64, 520]] {
        checks.what = format!("{rows} x {inner} x {cols}");
        checks.products(rows, inner, cols)?;
    }
    for (rows, cols) in [(8, 8), (16, 264), (136, 128), (1000, 520)] {
        checks.what = format!("{rows} x {cols}");
        checks.quantize(rows, cols)?;
    }
    if backend.multiplies_fp8() {
        for [rows, inner, cols] in [[16, 16, 16], [48, 272, 80], [144, 64, 528]] {
            checks.what = format!("{rows} x {inner} x {cols}");
            checks.products_of_fp8(rows, inner, cols)?;
        }
    }
    checks.findings.extend(attention(backend)?);
    Ok(checks.findings)
}

/// Only attention, of which a GPU has two.
pub fn attention(backend: &dyn Backend) -> Result<Vec<Finding>, TchError> {
    let mut checks = Checks {
        backend,
        findings: Vec::new(),
        what: String::new(),
    };
    for (batch, length, heads, kv_heads, head_dim) in [(2, 128, 4, 2, 64), (1, 200, 4, 4, 128)] {
        checks.what = format!("{batch} x {length}, {heads}/{kv_heads} heads of {head_dim}");
        checks.attention(batch, length, [heads, kv_heads, head_dim])?;
    }
    Ok(checks.findings)
}

/// A float64 leaf on the CPU with the value of `t`.
fn leaf(t: &Tensor) -> Result<Tensor, TchError> {
    t.f_to_device(Device::Cpu)?
        .f_to_kind(Kind::Double)?
        .f_detach()?
        .f_set_requires_grad(true)
}

fn gradients(output: &Tensor, gradient: &Tensor, of: &[&Tensor]) -> Result<Vec<Tensor>, TchError> {
    let handed_over = output
        .f_mul(&leaf(gradient)?.f_detach()?)?
        .f_sum(Kind::Double)?;
    Tensor::f_run_backward(&[&handed_over], of, false, false)
}

impl Checks<'_> {
    fn random(&self, size: &[i64]) -> Result<Tensor, TchError> {
        let values = Tensor::f_randn(size, (Kind::Float, Device::Cpu))?;
        values
            .f_to_kind(Kind::BFloat16)?
            .f_to_device(self.backend.device())
    }

    /// Not a number everywhere, so that what is not written shows.
    fn poisoned(&self, size: &[i64], kind: Kind) -> Result<Tensor, TchError> {
        Tensor::f_full(size, f64::NAN, (kind, self.backend.device()))
    }

    fn expect(
        &mut self,
        name: &str,
        got: &Tensor,
        want: &Tensor,
        limit: f64,
    ) -> Result<(), TchError> {
        let got = leaf(got)?.f_detach()?;
        let want = leaf(want)?.f_detach()?.f_reshape(got.size())?;
        let size = want.f_norm()?.f_double_value(&[])?.max(f64::MIN_POSITIVE);
        let error = got.f_sub(&want)?.f_norm()?.f_double_value(&[])? / size;
        self.findings.push(Finding {
            what: format!("{name} ({})", self.what),
            error,
            limit,
        });
        Ok(())
    }

    fn noting(&self, values: Tensor) -> Result<Matrix, TchError> {
        Ok(Matrix {
            values,
            largest: Some(operand::slot(self.backend)?),
        })
    }

    /// What a kernel noted is the largest magnitude of what it wrote, before the rounding.
    fn expect_largest(&mut self, name: &str, matrix: &Matrix) -> Result<(), TchError> {
        let Some(noted) = &matrix.largest else {
            return Ok(());
        };
        let wanted = leaf(&matrix.values)?
            .f_detach()?
            .f_abs()?
            .f_max()?
            .f_reshape([1])?;
        self.expect(
            &format!("{name}, largest"),
            &noted.f_view_dtype(Kind::Float)?,
            &wanted,
            2.0 * BF16,
        )
    }

    fn norms(&mut self, rows: i64, cols: i64) -> Result<(), TchError> {
        let (x, weight, dy) = (
            self.random(&[rows, cols])?,
            self.random(&[cols])?,
            self.random(&[rows, cols])?,
        );
        let residual = self.random(&[rows, cols])?;
        let y = self.noting(self.poisoned(&[rows, cols], Kind::BFloat16)?)?;
        let scales = self.poisoned(&[rows], Kind::Float)?;
        kernels::rms_norm(self.backend, &x, &weight, &y, &scales, 1e-5)?;
        let (x64, weight64) = (leaf(&x)?, leaf(&weight)?);
        let mean = x64
            .f_square()?
            .f_mean_dim([-1].as_slice(), true, Kind::Double)?;
        let expected = x64
            .f_mul(&mean.f_add_scalar(1e-5)?.f_rsqrt()?)?
            .f_mul(&weight64)?;
        self.expect("rms_norm", &y.values, &expected, BF16)?;
        self.expect_largest("rms_norm", &y)?;

        let wanted = gradients(&expected, &dy, &[&x64, &weight64])?;
        let dx = self.noting(self.poisoned(&[rows, cols], Kind::BFloat16)?)?;
        let dw = self.poisoned(&[cols], Kind::Float)?;
        let norm = Norm {
            x: &x,
            weight: &weight,
            scales: &scales,
            restores: false,
        };
        kernels::rms_norm_backward(self.backend, &norm, &dy, None, &dx, &dw, false)?;
        self.expect("rms_norm_backward, x", &dx.values, &wanted[0], BF16)?;
        self.expect_largest("rms_norm_backward", &dx)?;
        self.expect("rms_norm_backward, weight", &dw, &wanted[1], FP32)?;
        let with_residual = wanted[0].f_add(&leaf(&residual)?.f_detach()?)?;
        let residual = Matrix::plain(residual);
        let norm = Norm {
            restores: true,
            ..norm
        };
        kernels::rms_norm_backward(
            self.backend,
            &norm,
            &dy,
            Some(&residual.values),
            &residual,
            &dw,
            true,
        )?;
        self.expect(
            "rms_norm_backward onto the residual",
            &residual.values,
            &with_residual,
            BF16,
        )?;
        self.expect(
            "rms_norm_backward, weight added",
            &dw,
            &wanted[1].f_mul_scalar(2.0)?,
            FP32,
        )?;
        self.expect("rms_norm_backward, the rows restored", &dy, &y.values, SAME)
    }

    fn bias(&mut self, rows: i64, cols: i64) -> Result<(), TchError> {
        let dy = self.random(&[rows, cols])?;
        let sums = self.poisoned(&[cols], Kind::Float)?;
        kernels::bias_backward(self.backend, &dy, &sums, false)?;
        let wanted =
            leaf(&dy)?
                .f_detach()?
                .f_sum_dim_intlist([0].as_slice(), false, Kind::Double)?;
        self.expect("bias_backward", &sums, &wanted, FP32)
    }

    fn swiglu(&mut self, rows: i64, cols: i64) -> Result<(), TchError> {
        let (gate_up, d_out) = (self.random(&[rows, 2 * cols])?, self.random(&[rows, cols])?);
        let out = self.noting(self.poisoned(&[rows, cols], Kind::BFloat16)?)?;
        kernels::swiglu(self.backend, &gate_up, &out)?;
        let gate_up64 = leaf(&gate_up)?;
        let halves = gate_up64.f_chunk(2, -1)?;
        let expected = halves[0].f_silu()?.f_mul(&halves[1])?;
        self.expect("swiglu", &out.values, &expected, BF16)?;
        self.expect_largest("swiglu", &out)?;
        let wanted = gradients(&expected, &d_out, &[&gate_up64])?;
        let [gate_up, again] = [
            self.noting(gate_up.f_add_scalar(0.0)?)?,
            self.noting(gate_up)?,
        ];
        kernels::swiglu_backward(self.backend, &gate_up, &d_out, false)?;
        self.expect("swiglu_backward", &gate_up.values, &wanted[0], BF16)?;
        self.expect_largest("swiglu_backward", &gate_up)?;
        kernels::swiglu_backward(self.backend, &again, &d_out, true)?;
        self.expect(
            "swiglu_backward, restoring",
            &again.values,
            &gate_up.values,
            SAME,
        )?;
        self.expect(
            "swiglu_backward, the product restored",
            &d_out,
            &out.values,
            SAME,
        )
    }

    fn rope(
        &mut self,
        batch: i64,
        length: i64,
        [heads, kv_heads, head_dim]: [i64; 3],
    ) -> Result<(), TchError> {
        let (rows, half) = (batch * length, head_dim / 2);
        let angles = Tensor::f_randn([length, half], (Kind::Float, Device::Cpu))?;
        let to_device = |t: Tensor| t.f_to_device(self.backend.device());
        let tables = Angles {
            cosines: to_device(angles.f_cos()?)?,
            sines: to_device(angles.f_sin()?)?,
        };
        let (cos, sin) = (
            leaf(&tables.cosines)?.f_detach()?,
            leaf(&tables.sines)?.f_detach()?,
        );
        let qkv = self.random(&[rows, (heads + 2 * kv_heads) * head_dim])?;
        let before = leaf(&qkv)?;
        let heads_first = before
            .f_reshape([batch, length, heads + 2 * kv_heads, 2, half])?
            .f_transpose(1, 2)?;
        let rotated = heads_first.f_narrow(1, 0, heads + kv_heads)?;
        let (a, b) = (rotated.f_select(3, 0)?, rotated.f_select(3, 1)?);
        let left = a.f_mul(&cos)?.f_sub(&b.f_mul(&sin)?)?;
        let right = b.f_mul(&cos)?.f_add(&a.f_mul(&sin)?)?;
        let rotated = Tensor::f_stack(&[left, right], 3)?;
        let whole = Tensor::f_cat(
            &[
                rotated,
                heads_first.f_narrow(1, heads + kv_heads, kv_heads)?,
            ],
            1,
        )?;
        let expected = whole.f_transpose(1, 2)?.f_reshape([rows, -1])?;
        kernels::rope(self.backend, &qkv, &tables, heads, kv_heads)?;
        self.expect("rope", &qkv, &expected, BF16)?;

        let parts = [heads, kv_heads, kv_heads].map(|n| self.random(&[batch, length, n, head_dim]));
        let [dq, dk, dv] = parts;
        let parts = [dq?, dk?, dv?];
        let joined = Tensor::f_cat(&parts, 2)?.f_reshape([rows, -1])?;
        let wanted = gradients(&expected, &joined, &[&before])?;
        let dqkv = self.noting(self.poisoned(&qkv.size(), Kind::BFloat16)?)?;
        kernels::rope_backward(self.backend, &parts, &tables, &dqkv)?;
        self.expect("rope_backward", &dqkv.values, &wanted[0], BF16)?;
        self.expect_largest("rope_backward", &dqkv)
    }

    fn cross_entropy(&mut self, rows: i64, vocabulary: i64) -> Result<(), TchError> {
        let logits = self.random(&[rows, vocabulary])?.f_mul_scalar(4.0)?;
        let targets = Tensor::f_randint(vocabulary, [rows], (Kind::Int64, Device::Cpu))?;
        let ignored = rows > 1;
        if ignored {
            let _ = targets.f_narrow(0, 1, 1)?.f_fill_(-100.0)?;
        }
        let logits64 = leaf(&logits)?;
        let none = tch::Reduction::None;
        let expected = logits64
            .f_cross_entropy_loss(&targets, None::<Tensor>, none, -100, 0.0)?
            .f_mul_scalar(0.125)?;
        let wanted = gradients(
            &expected,
            &Tensor::f_ones([rows], (Kind::Double, Device::Cpu))?,
            &[&logits64],
        )?;
        let losses = self.poisoned(&[rows], Kind::Float)?;
        let targets = targets.f_to_device(self.backend.device())?;
        kernels::cross_entropy(self.backend, &logits, &targets, &losses, 0.125)?;
        self.expect("cross_entropy", &losses, &expected, FP32)?;
        self.expect("cross_entropy, gradient", &logits, &wanted[0], BF16)
    }

    fn embedding(
        &mut self,
        rows: i64,
        cols: i64,
        vocabulary: i64,
        kind: Kind,
    ) -> Result<(), TchError> {
        let device = self.backend.device();
        let dx = self.random(&[rows, cols])?;
        let tokens = Tensor::f_randint(vocabulary, [rows], (Kind::Int64, Device::Cpu))?;
        let gradient = self.random(&[vocabulary, cols])?.f_to_kind(kind)?;
        let wanted =
            leaf(&gradient)?
                .f_detach()?
                .f_index_add(0, &tokens, &leaf(&dx)?.f_detach()?)?;
        let limit = if kind == Kind::Float { FP32 } else { BF16 };
        let before = gradient.f_detach_copy()?;
        let on_host = Vec::<i64>::try_from(&tokens)?;
        let all = segments(&on_host, 0..vocabulary, device)?;
        kernels::embedding_backward(self.backend, &dx, &all, &gradient, 0)?;
        self.expect("embedding_backward", &gradient, &wanted, limit)?;

        // The part of a rank begins and ends within rows.
        let groups = vocabulary * cols / 8;
        let (first, end) = (groups / 4 * 8, groups * 3 / 4 * 8);
        let part = |whole: &Tensor| whole.f_reshape([-1])?.f_narrow(0, first, end - first);
        let own = part(&before)?.f_detach_copy()?;
        let kept = segments(&on_host, first / cols..(end + cols - 1) / cols, device)?;
        kernels::embedding_backward(self.backend, &dx, &kept, &own, first)?;
        self.expect("embedding_backward, a part", &own, &part(&wanted)?, limit)
    }

    fn add_parts(&mut self, parts: i64, count: i64, kind: Kind) -> Result<(), TchError> {
        let limit = if kind == Kind::Float { FP32 } else { BF16 };
        let received = self.random(&[parts, count])?.f_to_kind(kind)?;
        let sum =
            leaf(&received)?
                .f_detach()?
                .f_sum_dim_intlist([0].as_slice(), false, Kind::Double)?;
        let out = self.poisoned(&[count], kind)?;
        kernels::add_parts(self.backend, &received, &out, false)?;
        self.expect("add_parts", &out, &sum, limit)?;
        let before = leaf(&out)?.f_detach()?;
        kernels::add_parts(self.backend, &received, &out, true)?;
        self.expect("add_parts, added", &out, &before.f_add(&sum)?, limit)
    }

    /// Three updates, against AdamW's definition in float64.
    fn update(&mut self, count: i64, kind: Kind) -> Result<(), TchError> {
        let limit = if kind == Kind::Float {
            FP32
        } else {
            2.0 * BF16
        };
        let masters = self.random(&[count])?.f_to_kind(kind)?;
        let values = if kind == Kind::Float {
            self.poisoned(&[count], Kind::BFloat16)?
        } else {
            masters.shallow_clone()
        };
        let (first, second) = (masters.f_zeros_like()?, masters.f_zeros_like()?);
        let mut weight = leaf(&masters)?.f_detach()?;
        let (mut m, mut v) = (weight.f_zeros_like()?, weight.f_zeros_like()?);
        let (rate, decay, beta1, beta2, eps, clip) = (0.01, 0.1, 0.9, 0.95, 1e-8, 1.0);
        for t in 1..=3 {
            let gradients = self.random(&[count])?.f_to_kind(kind)?;
            let gradients64 = leaf(&gradients)?.f_detach()?;
            let norm = kernels::squares(self.backend, &gradients)?
                .f_sum(Kind::Float)?
                .f_sqrt()?;
            let norm64 = gradients64.f_norm()?;
            self.expect("squares", &norm, &norm64, FP32)?;
            let root_scale = 1.0 / (1.0 - f64::powi(beta2, t)).sqrt();
            let step_size = rate / (1.0 - f64::powi(beta1, t));
            let options = AdamW {
                decay: (1.0 - rate * decay) as f32,
                step_size: step_size as f32,
                root_scale: root_scale as f32,
                beta1: beta1 as f32,
                beta2: beta2 as f32,
                eps: eps as f32,
                clip: clip as f32,
                seed: 0,
            };
            let update = Update {
                masters: &masters,
                values: &values,
                gradients: &gradients,
                first: &first,
                second: &second,
                norm: &norm,
            };
            kernels::adamw(self.backend, &update, options)?;
            let scale = (clip / (norm64.f_double_value(&[])? + 1e-6)).min(1.0);
            let g = gradients64.f_mul_scalar(scale)?;
            m = m
                .f_mul_scalar(beta1)?
                .f_add(&g.f_mul_scalar(1.0 - beta1)?)?;
            v = v
                .f_mul_scalar(beta2)?
                .f_add(&g.f_square()?.f_mul_scalar(1.0 - beta2)?)?;
            let denominator = v.f_sqrt()?.f_mul_scalar(root_scale)?.f_add_scalar(eps)?;
            let step = m.f_div(&denominator)?.f_mul_scalar(step_size)?;
            weight = weight.f_mul_scalar(1.0 - rate * decay)?.f_sub(&step)?;
        }
        self.expect("adamw, weights", &masters, &weight, limit)?;
        self.expect("adamw, bf16 weights", &values, &weight, limit.max(BF16))?;
        self.expect("adamw, first moment", &first, &m, limit)?;
        self.expect("adamw, second moment", &second, &v, limit)
    }

    fn products(&mut self, rows: i64, inner: i64, cols: i64) -> Result<(), TchError> {
        for layout in LAYOUTS {
            let (left, right) = match layout {
                Layout::Forward => ([rows, inner], [cols, inner]),
                Layout::Input => ([rows, inner], [inner, cols]),
                Layout::Weight => ([inner, rows], [inner, cols]),
            };
            let (left, right) = (self.random(&left)?, self.random(&right)?);
            let (left64, right64) = (leaf(&left)?.f_detach()?, leaf(&right)?.f_detach()?);
            let expected = match layout {
                Layout::Forward => left64.f_matmul(&right64.f_tr()?)?,
                Layout::Input => left64.f_matmul(&right64)?,
                Layout::Weight => left64.f_tr()?.f_matmul(&right64)?,
            };
            for kind in [Kind::BFloat16, Kind::Float] {
                let limit = if kind == Kind::Float { FP32 } else { BF16 };
                let out = self.poisoned(&[rows, cols], kind)?;
                let product = Product {
                    layout,
                    left: &left,
                    right: &right,
                    out: &out,
                    add: None,
                    bias: None,
                    scales: None,
                };
                self.backend.product(&product)?;
                self.expect(
                    &format!("product {layout:?}, {kind:?}"),
                    &out,
                    &expected,
                    limit,
                )?;
                let before = leaf(&out)?.f_detach()?;
                self.backend.product(&Product {
                    add: Some(&out),
                    ..product
                })?;
                self.expect(
                    &format!("product {layout:?}, {kind:?}, added"),
                    &out,
                    &before.f_add(&expected)?,
                    limit,
                )?;
            }
            if layout == Layout::Forward {
                let (bias, add) = (self.random(&[cols])?, self.random(&[rows, cols])?);
                let out = self.poisoned(&[rows, cols], Kind::BFloat16)?;
                let product = Product {
                    layout,
                    left: &left,
                    right: &right,
                    out: &out,
                    add: None,
                    bias: Some(&bias),
                    scales: None,
                };
                self.backend.product(&product)?;
                self.expect(
                    "product with a bias",
                    &out,
                    &expected.f_add(&leaf(&bias)?.f_detach()?)?,
                    BF16,
                )?;
                self.backend.product(&Product {
                    add: Some(&add),
                    bias: None,
                    ..product
                })?;
                self.expect(
                    "product onto another matrix",
                    &out,
                    &expected.f_add(&leaf(&add)?.f_detach()?)?,
                    BF16,
                )?;
            }
        }
        Ok(())
    }

    fn attention(
        &mut self,
        batch: i64,
        length: i64,
        [heads, kv_heads, head_dim]: [i64; 3],
    ) -> Result<(), TchError> {
        let width = (heads + 2 * kv_heads) * head_dim;
        let joint = self.random(&[batch, length, width])?;
        let all = joint
            .f_reshape([batch, length, heads + 2 * kv_heads, head_dim])?
            .f_transpose(1, 2)?;
        let part = |first, count| all.f_narrow(1, first, count);
        let (q, k, v) = (
            part(0, heads)?,
            part(heads, kv_heads)?,
            part(heads + kv_heads, kv_heads)?,
        );
        let saved = self.backend.attention(&q, &k, &v)?;
        let (q64, k64, v64) = (leaf(&q)?, leaf(&k)?, leaf(&v)?);
        let repeated = |t: &Tensor| t.f_repeat_interleave_self_int(heads / kv_heads, 1, None);
        let scores = q64
            .f_matmul(&repeated(&k64)?.f_transpose(2, 3)?)?
            .f_div_scalar((head_dim as f64).sqrt())?;
        let hidden = Tensor::f_ones([length, length], (Kind::Bool, Device::Cpu))?.f_triu(1)?;
        let weights = scores
            .f_masked_fill(&hidden, f64::NEG_INFINITY)?
            .f_softmax(-1, Kind::Double)?;
        let expected = weights.f_matmul(&repeated(&v64)?)?;
        self.expect("attention", &saved.output, &expected, 2.0 * BF16)?;
        let gradient = self
            .random(&[batch, length, heads, head_dim])?
            .f_transpose(1, 2)?;
        let got = self
            .backend
            .attention_backward(&gradient, [&q, &k, &v], &saved)?;
        let wanted = gradients(&expected, &gradient, &[&q64, &k64, &v64])?;
        for ((name, got), wanted) in ["q", "k", "v"].iter().zip(&got).zip(&wanted) {
            self.expect(
                &format!("attention_backward, {name}"),
                got,
                &wanted.f_transpose(1, 2)?,
                3.0 * BF16,
            )?;
        }
        Ok(())
    }
}
