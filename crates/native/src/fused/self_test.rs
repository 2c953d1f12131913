//! `--self-test`: are the kernels right on the GPU that is there, and how far is each from its
//! floor at a job's sizes?

use tch::{Kind, TchError, Tensor};
use tprimat_job::{Job, Vendor};

use super::{
    backend::Backend,
    check,
    gpu::Gpu,
    kernels::{self, AdamW, Angles, Norm, Update},
    operand::{self, Fp8, Matrix, Scaled, Scratch, Weight},
    segments,
};
use crate::{device, shape::Shape, shim::AttentionBy, stop::Stop, support, tokens::Tokens};

/// Compares everything with float64; true if all of it is within its limit.
pub fn run(job: Option<&Job>) -> Result<bool, Stop> {
    let device = device::open(job.map_or(Vendor::Nvd, |job| job.vendor), 0)?;
    // The driver's calls need the context that the first allocation makes.
    let _context = Tensor::f_zeros([1], (Kind::Float, device))?;
    let gpu = Gpu::open(device, AttentionBy::Cudnn)?;
    println!(
        "kernels for {} compiled in {:.2} s",
        gpu.driver.architecture, gpu.driver.compile_seconds
    );
    let mut findings = check::all(&gpu)?;
    findings.extend(check::attention(&Gpu::open(device, AttentionBy::Flash)?)?);
    let is_wrong = |f: &&check::Finding| f.error.is_nan() || f.error > f.limit;
    for finding in findings.iter().filter(is_wrong) {
        println!(
            "WRONG  {}: {:.2e}, limit {:.0e}",
            finding.what, finding.error, finding.limit
        );
    }
    let wrong = findings.iter().filter(is_wrong).count();
    println!(
        "{} of {} comparisons with float64 are within their limits",
        findings.len() - wrong,
        findings.len()
    );
    if let Some(job) = job {
        gpu.products
            .fast_accumulation
            .set(support::accumulates_fast(job));
        let mut bench = Bench {
            gpu: &gpu,
            fp8: super::fp8(job),
            total: 0.0,
        };
        tch::no_grad(|| bench.run(job))?;
    }
    Ok(wrong == 0)
}

struct Bench<'a> {
    gpu: &'a Gpu,
    fp8: Option<Fp8>,
    total: f64,
}

const REPEATS: u32 = 10;

impl Bench<'_> {
    /// Times one operation and prints it with what it moves and computes; `calls` a step.
    fn time(
        &mut self,
        name: &str,
        calls: u64,
        bytes: f64,
        flops: f64,
        work: impl Fn() -> Result<(), TchError>,
    ) -> Result<f64, TchError> {
        for _ in 0..3 {
            work()?;
        }
        let seconds = self
            .gpu
            .driver
            .time(|| (0..REPEATS).try_for_each(|_| work()))?
            / f64::from(REPEATS);
        let step = seconds * calls as f64 * 1e3;
        self.total += step;
        // What was not counted for this operation is not 0.
        let rate = |amount: f64| {
            if amount > 0.0 {
                format!("{:.0}", amount / seconds)
            } else {
                "–".to_owned()
            }
        };
        println!(
            "{name:<28} {calls:>4} x {:>9.1} us = {step:>7.2} ms   {:>6} GB/s {:>6} TFLOP/s",
            seconds * 1e6,
            rate(bytes / 1e9),
            rate(flops / 1e12)
        );
        Ok(seconds)
    }

    fn random(&self, rows: i64, cols: i64) -> Result<Tensor, TchError> {
        Tensor::f_randn([rows, cols], (Kind::BFloat16, self.gpu.device()))
    }

    /// Random values, or memory that a kernel writes.
    fn matrix(&self, rows: i64, cols: i64) -> Result<Matrix, TchError> {
        let largest = self.fp8.map(|_| operand::slot(self.gpu)).transpose()?;
        Ok(Matrix {
            values: self.random(rows, cols)?,
            largest,
        })
    }

    fn run(&mut self, job: &Job) -> Result<(), Stop> {
        let gpu = self.gpu;
        let shape = Shape::of(&job.model).map_err(Stop::Refused)?;
        let (batch, length) = (job.data.micro_batch_size as i64, job.data.seq_length as i64);
        let rows = batch * length;
        let micro = job.data.gradient_accumulation_steps;
        let layers = micro * shape.layers as u64;
        let (hidden, ffn, head_dim) = (shape.hidden, shape.ffn, shape.head_dim);
        let (q, kv) = (shape.heads * head_dim, shape.kv_heads * head_dim);
        let size = |elements: i64| 2.0 * elements as f64;
        let float = |sizes: &[i64]| Tensor::f_randn(sizes, (Kind::Float, gpu.device()));

        let (x, dy, out) = (
            self.random(rows, hidden)?,
            self.random(rows, hidden)?,
            self.matrix(rows, hidden)?,
        );
        let (weight, scales) = (self.random(1, hidden)?.f_reshape([-1])?, float(&[rows])?);
        self.time(
            "RMSNorm",
            2 * layers + micro,
            size(2 * rows * hidden),
            0.0,
            || kernels::rms_norm(gpu, &x, &weight, &out, &scales, 1e-5),
        )?;
        let dw = float(&[hidden])?;
        let norm = Norm {
            x: &x,
            weight: &weight,
            scales: &scales,
            restores: false,
        };
        self.time(
            "RMSNorm backward",
            2 * layers + micro,
            size(4 * rows * hidden),
            0.0,
            || kernels::rms_norm_backward(gpu, &norm, &dy, Some(&out.values), &out, &dw, true),
        )?;
        let (gate_up, gated) = (self.matrix(rows, 2 * ffn)?, self.matrix(rows, ffn)?);
        self.time("SwiGLU", layers, size(3 * rows * ffn), 0.0, || {
            kernels::swiglu(gpu, &gate_up.values, &gated)
        })?;
        self.time("SwiGLU backward", layers, size(5 * rows * ffn), 0.0, || {
            kernels::swiglu_backward(gpu, &gate_up, &gated.values, false)
        })?;
        drop((gate_up, gated));

        let qkv = self.random(rows, q + 2 * kv)?;
        let angles = Angles {
            cosines: float(&[length, head_dim / 2])?,
            sines: float(&[length, head_dim / 2])?,
        };
        self.time("RoPE", layers, size(2 * rows * (q + kv)), 0.0, || {
            kernels::rope(gpu, &qkv, &angles, shape.heads, shape.kv_heads)
        })?;
        let joint = self.matrix(rows, q + 2 * kv)?;
        let heads = joint
            .values
            .f_reshape([batch, length, shape.heads + 2 * shape.kv_heads, head_dim])?
            .f_transpose(1, 2)?;
        let query = heads.f_narrow(1, 0, shape.heads)?;
        let key = heads.f_narrow(1, shape.heads, shape.kv_heads)?;
        let value = heads.f_narrow(1, shape.heads + shape.kv_heads, shape.kv_heads)?;
        let attention_flops = 2.0 * (batch * shape.heads * length * length * head_dim) as f64;
        self.time(
            "attention",
            layers,
            size(rows * (2 * q + 2 * kv)),
            attention_flops,
            || gpu.attention(&query, &key, &value).map(drop),
        )?;
        let saved = gpu.attention(&query, &key, &value)?;
        let inputs = [&query, &key, &value];
        self.time(
            "attention backward",
            layers,
            size(rows * (4 * q + 4 * kv)),
            2.5 * attention_flops,
            || {
                gpu.attention_backward(&saved.output, inputs, &saved)
                    .map(drop)
            },
        )?;
        let gradients = gpu.attention_backward(&saved.output, inputs, &saved)?;
        self.time(
            "RoPE backward",
            layers,
            size(2 * rows * (q + 2 * kv)),
            0.0,
            || kernels::rope_backward(gpu, &gradients, &angles, &joint),
        )?;
        drop((saved, gradients));

        let tokens = Tokens::Synthetic {
            seed: job.seed,
            length: length as u64,
        };
        let (inputs, targets) = tokens.batch(0, batch as u64, shape.vocab as u64)?;
        let segments = segments(&inputs, 0..shape.vocab, gpu.device())?;
        let embedding = float(&[shape.vocab, hidden])?;
        self.time(
            "embedding backward",
            micro,
            size(rows * hidden),
            0.0,
            || kernels::embedding_backward(gpu, &x, &segments, &embedding, 0),
        )?;
        drop(embedding);
        let targets = Tensor::f_from_slice(&targets)?.f_to_device(gpu.device())?;
        let losses = float(&[rows])?;
        let logits = self.random(rows, shape.vocab)?;
        self.time(
            "cross entropy",
            micro,
            size(2 * rows * shape.vocab),
            0.0,
            || kernels::cross_entropy(gpu, &logits, &targets, &losses, 1.0),
        )?;
        drop(logits);

        for (name, calls, outputs, inner) in [
            ("qkv", layers, q + 2 * kv, hidden),
            ("o", layers, hidden, q),
            ("gate, up", layers, 2 * ffn, hidden),
            ("down", layers, hidden, ffn),
            ("head", micro, shape.vocab, hidden),
        ] {
            self.products(name, calls, [rows, inner, outputs])?;
        }

        if let Some(fp8) = self.fp8 {
            self.quantisation(fp8, layers, rows, &shape)?;
        }

        let count: i64 = shape
            .parameters()
            .iter()
            .map(|p| p.size.iter().product::<i64>())
            .sum();
        let count = count / 16 * 16;
        let [masters, gradients, first, second] = [
            float(&[count])?,
            float(&[count])?,
            float(&[count])?,
            float(&[count])?,
        ];
        let values = Tensor::f_empty([count], (Kind::BFloat16, gpu.device()))?;
        let norm = Tensor::f_ones([1], (Kind::Float, gpu.device()))?;
        self.time("gradient norm", 1, 4.0 * count as f64, 0.0, || {
            kernels::squares(gpu, &gradients).map(drop)
        })?;
        let update = Update {
            masters: &masters,
            values: &values,
            gradients: &gradients,
            first: &first,
            second: &second,
            norm: &norm,
        };
        self.time("AdamW", 1, 30.0 * count as f64, 0.0, || {
            kernels::adamw(gpu, &update, AdamW::default())
        })?;
        println!("sum of the parts: {:.1} ms a step", self.total);
        Ok(())
    }

    /// What the inputs of products in fp8 cost: by micro-batch those of four products, by step the
    /// weights.
    fn quantisation(
        &mut self,
        fp8: Fp8,
        layers: u64,
        rows: i64,
        shape: &Shape,
    ) -> Result<(), TchError> {
        let gpu = self.gpu;
        let (q, kv) = (
            shape.heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
        );
        let weights = (q + 2 * kv + q + 3 * shape.ffn) * shape.hidden;
        let cases = [
            (
                "to fp8: inputs",
                layers,
                fp8.forward,
                2 * shape.hidden + q + shape.ffn,
                rows,
            ),
            (
                "to fp8: gradients",
                layers,
                fp8.gradients,
                2 * shape.hidden + q + 2 * kv + 2 * shape.ffn,
                rows,
            ),
            (
                "to fp8: weights",
                shape.layers as u64,
                fp8.forward,
                weights / shape.hidden,
                shape.hidden,
            ),
        ];
        for (name, calls, format, cols, rows) in cases {
            let matrix = operand::measured(gpu, self.random(rows, cols)?)?;
            let scaled = Scaled::empty(gpu, rows, cols, format)?;
            self.time(name, calls, 4.0 * (rows * cols) as f64, 0.0, || {
                kernels::quantize(gpu, &matrix, &scaled)
            })?;
        }
        let (attended, noted) = (self.random(rows, q)?, operand::slot(gpu)?);
        self.time(
            "largest of attention",
            layers,
            2.0 * (rows * q) as f64,
            0.0,
            || kernels::largest(gpu, &attended, &noted),
        )?;
        let weight = self.random(weights / shape.hidden, shape.hidden)?;
        self.time(
            "largest of the weights",
            shape.layers as u64,
            2.0 * weights as f64,
            0.0,
            || kernels::largest(gpu, &weight, &noted),
        )?;
        Ok(())
    }

    /// The three products of one linear layer, with the algorithm that a run would choose.
    fn products(&mut self, name: &str, calls: u64, sizes: [i64; 3]) -> Result<(), TchError> {
        let gpu = self.gpu;
        let [rows, inner, outputs] = sizes;
        let gradient = Tensor::f_zeros([outputs, inner], (Kind::Float, gpu.device()))?;
        let weight = Weight::plain(self.random(outputs, inner)?, gradient);
        // The head is never in fp8.
        let fp8 = self.fp8.filter(|_| name != "head");
        let weight = match fp8 {
            Some(fp8) => Weight::scaled(gpu, weight, fp8.forward)?,
            None => weight,
        };
        let scratch = Scratch::new(gpu, rows, &weight, fp8)?;
        let flops = 2.0 * sizes.iter().map(|n| *n as f64).product::<f64>();
        for (label, product) in ["y = x w'", "dx = dy w", "dw = dy' x"]
            .into_iter()
            .zip(scratch.products()?)
        {
            let tuned = gpu.products.tune(&gpu.driver, &product)?;
            self.time(&format!("{name}: {label}"), calls, 0.0, flops, || {
                gpu.product(&product)
            })?;
            if tuned.chosen > 0 {
                println!(
                    "{:<28} algorithm {}: {:.3} of the first one's time",
                    "",
                    tuned.chosen,
                    tuned.best / tuned.first
                );
            }
        }
        Ok(())
    }
}
