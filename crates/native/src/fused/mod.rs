//! The training step written out, forward and backward, over kernels of our own, cuBLASLt and
//! cuDNN.
//!
//! It computes what [`crate::backward`] computes by autograd, with one pass over memory where that
//! takes several. Where a device, a shape or a precision is not covered, [`Fused::open`] says why
//! and the trainer takes the other path.

mod arguments;
mod backend;
mod check;
mod choices;
mod covered;
pub mod driver;
mod exchange;
mod gpu;
mod kernels;
mod layer;
mod operand;
mod products;
pub mod self_test;
mod update;

#[cfg(test)]
mod rank_tests;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, ops::Range, rc::Rc, time::Instant};

use tch::{Device, Kind, TchError, Tensor};
use tprimat_job::Job;

use self::{
    backend::Backend,
    choices::Choices,
    covered::{fp8, unsupported},
    exchange::{Exchange, Sizes},
    kernels::{Angles, Norm, Segments},
    layer::{Accumulate, Common, Layer, Saved},
    operand::{Format, Fp8, Matrix, Operand, Scratch, Weight},
};
pub use self::{covered::shares_out, exchange::Turn};
use crate::{
    device,
    parameters::Parameters,
    ranks::Group,
    rope::{self, Rope},
    shape::Shape,
    shim::AttentionBy,
    support,
};

/// Logits that exist at one time; 2^30 of them are 2 GiB in bf16.
const LOGITS_AT_ONCE: i64 = 1 << 30;
/// Rows of a part of the logits are a multiple of this, the tile of a product.
const TILE: i64 = 128;

pub struct Fused {
    common: Common,
    embedding: Weight,
    layers: Vec<Layer>,
    norm: Weight,
    head: Weight,
    tied: bool,
    exchange: Exchange,
    /// Tokens whose rows of the embedding's gradient this step has written, by micro-batch.
    embedded: RefCell<Vec<Tensor>>,
    /// Layers 0, n, 2n, … keep their input only and run again on the way back; 0 = none do.
    recompute_every: usize,
    logits_at_once: i64,
    /// After the last step nothing is gathered for another one.
    last_step: u64,
    /// The seed of stochastic rounding, where the job asks for it.
    rounding_seed: Option<u64>,
    /// For the `start` event.
    description: serde_json::Value,
}

/// One micro-batch: rows of tokens and targets one after the other.
pub struct MicroBatch {
    pub tokens: Tensor,
    pub targets: Tensor,
    pub segments: Segments,
    /// Targets that count.
    pub predictions: f64,
}

/// How the algorithms of products were chosen.
#[derive(Default)]
struct Chosen {
    /// Products whose algorithm is not the first one offered.
    not_first: usize,
    /// Products whose algorithm an earlier run has timed.
    kept: usize,
}

enum Kept {
    Saved(Saved),
    Input(Tensor),
}

impl Fused {
    /// The fused step of this job on a GPU, or why there is none. An error is one of the exchange
    /// between ranks.
    pub fn open(
        job: &Job,
        shape: &Shape,
        parameters: &Parameters,
        device: Device,
        group: Option<Rc<dyn Group>>,
    ) -> Result<Result<Self, String>, TchError> {
        if let Some(reason) = unsupported(job, shape, device) {
            return Ok(Err(reason));
        }
        let open = || {
            let is_deterministic = support::is_deterministic(job);
            let attention = if is_deterministic {
                AttentionBy::Flash
            } else {
                AttentionBy::Cudnn
            };
            let gpu = Rc::new(gpu::Gpu::open(device, attention)?);
            if job.precision == "fp8" && !gpu.multiplies_fp8() {
                return Err(driver::failure(format!(
                    "{} has no products in fp8",
                    gpu.driver.architecture
                )));
            }
            gpu.products
                .fast_accumulation
                .set(support::accumulates_fast(job));
            let mut fused = Self::new(job, shape, parameters, gpu.clone(), group)?;
            fused.try_attention(job, shape)?;
            let start = Instant::now();
            let chosen = match is_deterministic {
                true => Chosen::default(),
                false => tch::no_grad(|| fused.tune(&gpu, job))?,
            };
            fused.description = serde_json::json!({
                "step": "fused",
                "attention": if is_deterministic { "flash" } else { "cudnn" },
                "deterministic": is_deterministic,
                "kernels": gpu.driver.architecture,
                "compile_seconds": gpu.driver.compile_seconds,
                "products": {
                    "library": "cublaslt",
                    "not_the_first_algorithm": chosen.not_first,
                    "chosen_by_an_earlier_run": chosen.kept,
                },
                "fp8": fused.describe_fp8(gpu.products.fast_accumulation.get()),
                "rounding": if fused.rounding_seed.is_some() { "stochastic" } else { "nearest" },
                "tune_seconds": start.elapsed().as_secs_f64(),
            });
            Ok(fused)
        };
        match open() {
            Err(error @ TchError::Io(_)) => Err(error),
            Err(error) => Ok(Err(error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned())),
            Ok(fused) => Ok(Ok(fused)),
        }
    }

    fn new(
        job: &Job,
        shape: &Shape,
        parameters: &Parameters,
        backend: Rc<dyn Backend>,
        group: Option<Rc<dyn Group>>,
    ) -> Result<Self, TchError> {
        let device = backend.device();
        let sizes = Sizes {
            layers: shape.layers as usize,
            tokens: (job.data.micro_batch_size * job.data.seq_length) as i64,
            hidden: shape.hidden,
        };
        let exchange = Exchange::new(parameters, backend.clone(), group, sizes)?;
        let index = parameters.index();
        let joined = |names: &[String]| {
            let indices: Option<Vec<usize>> = names
                .iter()
                .map(|n| index.get(n.as_str()).copied())
                .collect();
            let lacks = || {
                TchError::TensorNameNotFound(
                    names.join(", "),
                    "the flat buffers, side by side".to_owned(),
                )
            };
            let place = parameters
                .joined(&indices.ok_or_else(lacks)?)
                .ok_or_else(lacks)?;
            let [values, gradients] = exchange.buffers(parameters, &place);
            Ok::<_, TchError>(Weight::plain(place.view(values)?, place.view(gradients)?))
        };
        let fp8 = fp8(job);
        let linear = |weight: Weight, twin: Option<&Weight>| match (fp8, twin) {
            (None, _) => Ok(weight),
            (Some(_), Some(twin)) => Ok(weight.beside(twin)),
            (Some(fp8), None) => Weight::scaled(&*backend, weight, fp8.forward),
        };
        let weight = |name: &str| joined(&[name.to_owned()]);
        let mut layers: Vec<Layer> = Vec::new();
        for n in 0..shape.layers {
            // The layer whose weights were where this one's are.
            let twin = exchange
                .takes_turns_with(n as usize)
                .map(|twin| &layers[twin]);
            let at = |names: &[&str], suffix: &str| {
                joined(
                    &names
                        .iter()
                        .map(|name| format!("model.layers.{n}.{name}.{suffix}"))
                        .collect::<Vec<_>>(),
                )
            };
            let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
            layers.push(Layer {
                input_norm: at(&["input_layernorm"], "weight")?,
                qkv: linear(at(&qkv, "weight")?, twin.map(|twin| &twin.qkv))?,
                qkv_bias: if shape.qkv_bias {
                    Some(at(&qkv, "bias")?)
                } else {
                    None
                },
                o: linear(
                    at(&["self_attn.o_proj"], "weight")?,
                    twin.map(|twin| &twin.o),
                )?,
                post_norm: at(&["post_attention_layernorm"], "weight")?,
                gate_up: linear(
                    at(&["mlp.gate_proj", "mlp.up_proj"], "weight")?,
                    twin.map(|twin| &twin.gate_up),
                )?,
                down: linear(
                    at(&["mlp.down_proj"], "weight")?,
                    twin.map(|twin| &twin.down),
                )?,
            });
        }
        let frequencies = rope::inverse_frequencies(
            shape.head_dim,
            shape.rope_theta,
            shape.rope_scaling.as_ref(),
        );
        let length = job.data.seq_length as i64;
        let (cosines, sines) = Rope::new(&frequencies, length, Kind::Float, device)?.into_tables();
        let (embedding, norm) = (
            weight("model.embed_tokens.weight")?,
            weight("model.norm.weight")?,
        );
        let head = weight(if shape.tied {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        })?;
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
            tied: shape.tied,
            exchange,
            embedded: RefCell::default(),
            recompute_every: if job.activation_checkpointing {
                job.sac_frequency.max(1) as usize
            } else {
                0
            },
            logits_at_once: LOGITS_AT_ONCE,
            last_step: job.train_iters,
            rounding_seed: support::rounds_stochastically(job).then_some(job.seed),
            common: Common {
                backend,
                angles: Angles { cosines, sines },
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                eps: shape.norm_eps,
                fp8,
                // Who shares a model out is short of memory; what fp8 keeps is half as much.
                restores: parameters.shards.is_some() && fp8.is_none(),
            },
            description: serde_json::Value::Null,
        })
    }

    /// cuDNN says only when it is asked whether it takes a shape.
    fn try_attention(&self, job: &Job, shape: &Shape) -> Result<(), TchError> {
        let (batch, length) = (job.data.micro_batch_size as i64, job.data.seq_length as i64);
        let zeros = |heads| {
            Tensor::f_zeros(
                [batch, length, heads, shape.head_dim],
                (Kind::BFloat16, self.common.backend.device()),
            )?
            .f_transpose(1, 2)
        };
        let (q, k, v) = (
            zeros(shape.heads)?,
            zeros(shape.kv_heads)?,
            zeros(shape.kv_heads)?,
        );
        let saved = self.common.backend.attention(&q, &k, &v)?;
        self.common
            .backend
            .attention_backward(&saved.output, [&q, &k, &v], &saved)
            .map(drop)
    }

    /// Chooses an algorithm for every product, as an earlier run did or by timing. Leaves the
    /// weights' gradients without meaning.
    fn tune(&self, gpu: &gpu::Gpu, job: &Job) -> Result<Chosen, TchError> {
        let rows = (job.data.micro_batch_size * job.data.seq_length) as i64;
        let Some(layer) = self.layers.first() else {
            return Ok(Chosen::default());
        };
        // With weights as they are: products of zeros take less power, and less time.
        self.exchange.before(1, None)?;
        self.exchange.before(self.head_unit(), None)?;
        let logits = rows_at_once(rows, self.head.value.size()[0], self.logits_at_once);
        let of_layer = layer.linear().map(|weight| (rows, weight));
        let mut choices = match device::nvidia() {
            Some((card, driver)) => Choices::open(format!(
                "{card}, driver {driver}, cublasLt {}",
                gpu.products.version
            )),
            None => Choices::default(),
        };
        let mut chosen = Chosen::default();
        for (rows, weight) in of_layer.into_iter().chain([(logits, &self.head)]) {
            let scratch = Scratch::new(gpu, rows, weight, self.common.fp8)?;
            for product in scratch.products()? {
                let name = gpu.products.name(&product)?;
                let kept = choices
                    .find(&name)
                    .map(|algorithm| gpu.products.take(&product, algorithm));
                let choice = match kept.transpose()?.flatten() {
                    Some(choice) => {
                        chosen.kept += 1;
                        choice
                    }
                    None => {
                        let tuned = gpu.products.tune(&gpu.driver, &product)?;
                        if let Some(algorithm) = gpu.products.chosen(&product)? {
                            choices.note(&name, algorithm);
                        }
                        tuned.chosen
                    }
                };
                chosen.not_first += usize::from(choice > 0);
            }
        }
        choices.save();
        Ok(chosen)
    }

    /// Which products are in fp8, and how they are scaled; null where none are.
    fn describe_fp8(&self, fast_accumulation: bool) -> serde_json::Value {
        let Some(Fp8 { forward, gradients }) = self.common.fp8 else {
            return serde_json::Value::Null;
        };
        serde_json::json!({
            "products": "of the layers",
            "forward": forward.name(),
            "gradients": gradients.name(),
            "scaling": "by matrix, current",
            "fast_accumulation": fast_accumulation,
        })
    }

    /// Whether gradients have a format of their own, of more range; `None` = products are in bf16.
    pub fn fp8_is_hybrid(&self) -> Option<bool> {
        self.common.fp8.map(|fp8| fp8.gradients == Format::E5m2)
    }

    /// The unit of the head: that of the embedding where they are one.
    fn head_unit(&self) -> usize {
        if self.tied { 0 } else { self.layers.len() + 1 }
    }

    pub fn describe(&self) -> serde_json::Value {
        self.description.clone()
    }

    fn recomputes(&self, layer: usize) -> bool {
        self.recompute_every > 0 && layer.is_multiple_of(self.recompute_every)
    }

    /// Layers that run again on the way back.
    pub fn recomputed_layers(&self) -> usize {
        (0..self.layers.len())
            .filter(|n| self.recomputes(*n))
            .count()
    }

    /// The weights as products read them, after the values were written. Where ranks share them,
    /// [`Self::before_layer`] does it.
    fn refresh(&self) -> Result<(), TchError> {
        if self.exchange.shared().is_some() {
            return Ok(());
        }
        self.layers
            .iter()
            .try_for_each(|layer| self.refresh_layer(layer))
    }

    fn refresh_layer(&self, layer: &Layer) -> Result<(), TchError> {
        layer
            .linear()
            .into_iter()
            .try_for_each(|weight| weight.refresh(&*self.common.backend))
    }

    /// Before layer `n` runs, in either direction; `next` is the unit after it.
    fn before_layer(&self, n: usize, next: Option<usize>) -> Result<(), TchError> {
        self.exchange.before(1 + n, next)?;
        if self.exchange.shared().is_some() {
            self.refresh_layer(&self.layers[n])
        } else {
            Ok(())
        }
    }

    /// The last layer's output, before the final norm, and what each layer kept where `keep` is
    /// set.
    fn forward(&self, tokens: &Tensor, keep: bool) -> Result<(Tensor, Vec<Kept>), TchError> {
        let mut kept = Vec::new();
        self.exchange.before(0, Some(1))?;
        let mut x = Tensor::f_embedding(&self.embedding.value, tokens, -1, false, false)?;
        for (n, layer) in self.layers.iter().enumerate() {
            let is_last = n + 1 == self.layers.len();
            self.before_layer(n, Some(if is_last { self.head_unit() } else { 2 + n }))?;
            let input = x.shallow_clone();
            let mut saved = layer.run(&self.common, x)?;
            x = layer.finish(&self.common, &mut saved)?;
            if keep {
                kept.push(if self.recomputes(n) {
                    Kept::Input(input)
                } else {
                    Kept::Saved(saved)
                });
            }
        }
        Ok((x, kept))
    }

    /// Scores of every token of the vocabulary for rows of tokens.
    pub fn logits(&self, inputs: &Tensor) -> Result<Tensor, TchError> {
        tch::no_grad(|| {
            self.refresh()?;
            let (x, _) = self.forward(&inputs.f_reshape([-1])?, false)?;
            let (hidden, _) = self.head_input(&x)?;
            self.exchange.before(self.head_unit(), None)?;
            let logits =
                self.common
                    .forward(&mut Operand::Plain(hidden), &self.head, None, None)?;
            let (rows, length) = inputs.size2()?;
            logits.f_reshape([rows, length, -1])
        })
    }

    /// The normalised output of the last layer, and the scale of each row.
    fn head_input(&self, x: &Tensor) -> Result<(Tensor, Tensor), TchError> {
        let (rows, cols) = x.size2()?;
        let (hidden, scales) =
            self.common
                .norm(x, &self.norm, Matrix::plain(self.common.empty(rows, cols)?))?;
        Ok((hidden.values, scales))
    }

    /// Whether [`Self::segments`] needs the tokens of all ranks, in their order.
    pub fn embeds_for_all(&self) -> bool {
        self.exchange.embedded_tokens().is_some()
    }

    /// Where this rank adds up gradients of the embedding for a micro-batch of these tokens.
    pub fn segments(&self, tokens: &[i64]) -> Result<Segments, TchError> {
        let kept = self.exchange.embedded_tokens();
        segments(
            tokens,
            kept.unwrap_or(0..i64::MAX),
            self.common.backend.device(),
        )
    }

    /// Puts (in a step's first micro-batch) or adds the gradients of `mean loss * weight`, and
    /// returns that product, an fp32 scalar on the device. After the last micro-batch,
    /// [`Self::grad_norm`] has the ranks' sums.
    pub fn run(&self, batch: &MicroBatch, weight: f64, turn: Turn) -> Result<Tensor, TchError> {
        tch::no_grad(|| {
            let exchange = &self.exchange;
            let accumulate = Accumulate {
                matrices: exchange.accumulates(1, turn),
                vectors: !turn.is_first,
            };
            if turn.is_first {
                self.refresh()?;
                exchange.begin()?;
            }
            let (x, mut kept) = self.forward(&batch.tokens, true)?;
            let (hidden, scales) = self.head_input(&x)?;
            let mut dx = self.common.matrix(x.size()[0], x.size()[1])?;
            exchange.before(self.head_unit(), None)?;
            exchange.before_gradients(self.head_unit())?;
            let accumulates = exchange.accumulates(self.head_unit(), turn);
            let loss = self.loss(&hidden, batch, weight, accumulates, &dx.values)?;
            // Replicas wait until a tied embedding has added its rows.
            if !self.tied || exchange.shared().is_some() {
                exchange.after_gradients(self.head_unit(), turn)?;
            }
            drop(hidden);
            let norm = Norm {
                x: &x,
                weight: &self.norm.value,
                scales: &scales,
                restores: false,
            };
            let backend = &*self.common.backend;
            let (dy, dw) = (&dx.values, &self.norm.gradient);
            kernels::rms_norm_backward(backend, &norm, dy, None, &dx, dw, accumulate.vectors)?;
            drop(x);
            for (n, layer) in self.layers.iter().enumerate().rev() {
                // After layer 0 comes the embedding, of the next micro-batch.
                self.before_layer(n, (n > 0 || !turn.is_last).then_some(n))?;
                let saved = match kept.pop() {
                    Some(Kept::Saved(saved)) => saved,
                    Some(Kept::Input(x)) => layer.run(&self.common, x)?,
                    None => return Err(driver::failure("a layer kept nothing".to_owned())),
                };
                exchange.before_gradients(1 + n)?;
                dx = layer.backward(&self.common, saved, dx, accumulate)?;
                if n == 0 {
                    exchange.gather_embedded(&dx.values)?;
                }
                exchange.after_gradients(1 + n, turn)?;
            }
            self.embedding_backward(&dx.values, &batch.segments, turn)?;
            if turn.is_last {
                exchange.add_up_vectors()?;
            }
            Ok(loss)
        })
    }

    fn embedding_backward(
        &self,
        dx: &Tensor,
        segments: &Segments,
        turn: Turn,
    ) -> Result<(), TchError> {
        if self.exchange.embedding_backward(segments)? {
            return Ok(());
        }
        // A tied head has put its gradient there already.
        if !self.tied {
            self.forget_embedded(&segments.tokens, turn)?;
        }
        let (backend, gradient) = (&*self.common.backend, &self.embedding.gradient);
        kernels::embedding_backward(backend, dx, segments, gradient, 0)?;
        self.exchange.after_gradients(0, turn)
    }

    /// Zeroes the rows of the embedding's gradient that the last step wrote; the others are 0 since
    /// the start.
    fn forget_embedded(&self, tokens: &Tensor, turn: Turn) -> Result<(), TchError> {
        if !self.exchange.is_alone() {
            // Other ranks have written other rows.
            if turn.is_first {
                let _ = self.embedding.gradient.shallow_clone().f_zero_()?;
            }
            return Ok(());
        }
        let mut embedded = self.embedded.borrow_mut();
        if turn.is_first {
            for tokens in embedded.drain(..) {
                let _ = self
                    .embedding
                    .gradient
                    .shallow_clone()
                    .f_index_fill_(0, &tokens, 0.0)?;
            }
        }
        embedded.push(tokens.f_to_kind(Kind::Int64)?);
        Ok(())
    }

    /// The weighted loss; writes its derivative by `hidden` to `d_hidden`.
    fn loss(
        &self,
        hidden: &Tensor,
        batch: &MicroBatch,
        weight: f64,
        accumulate: bool,
        d_hidden: &Tensor,
    ) -> Result<Tensor, TchError> {
        let rows = hidden.size()[0];
        let vocabulary = self.head.value.size()[0];
        let backend = &*self.common.backend;
        let losses = Tensor::f_empty([rows], (Kind::Float, backend.device()))?;
        let at_once = rows_at_once(rows, vocabulary, self.logits_at_once);
        for start in (0..rows).step_by(at_once as usize) {
            let part = |t: &Tensor| t.f_narrow(0, start, at_once.min(rows - start));
            let (hidden, d_hidden) = (part(hidden)?, part(d_hidden)?);
            let mut hidden = Operand::Plain(hidden);
            let logits = self.common.forward(&mut hidden, &self.head, None, None)?;
            let (targets, losses) = (part(&batch.targets)?, part(&losses)?);
            kernels::cross_entropy(
                backend,
                &logits,
                &targets,
                &losses,
                weight / batch.predictions,
            )?;
            let d_logits = Operand::Plain(logits);
            self.common
                .input_gradient(&d_logits, &self.head, &d_hidden)?;
            self.common
                .weight_gradient(&d_logits, &hidden, &self.head, accumulate || start > 0)?;
        }
        losses.f_sum(Kind::Float)
    }
}

/// Rows of the logits that are computed at one time.
fn rows_at_once(rows: i64, vocabulary: i64, logits: i64) -> i64 {
    let parts = (rows * vocabulary + logits - 1) / logits;
    let even = (rows + parts - 1) / parts;
    if even < TILE {
        even
    } else {
        (even + TILE - 1) / TILE * TILE
    }
}

/// Positions of the tokens in `kept`, sorted by their token: the order in which gradients of the
/// embedding are added up.
fn segments(tokens: &[i64], kept: Range<i64>, on: Device) -> Result<Segments, TchError> {
    let mut order: Vec<i32> = (0..tokens.len() as i32)
        .filter(|position| kept.contains(&tokens[*position as usize]))
        .collect();
    order.sort_by_key(|position| tokens[*position as usize]);
    let (mut starts, mut distinct) = (Vec::new(), Vec::new());
    for (i, position) in order.iter().enumerate() {
        let token = tokens[*position as usize] as i32;
        if distinct.last() != Some(&token) {
            starts.push(i as i32);
            distinct.push(token);
        }
    }
    starts.push(order.len() as i32);
    Ok(Segments {
        order: device::send(&order, on)?,
        starts: device::send(&starts, on)?,
        tokens: device::send(&distinct, on)?,
    })
}
