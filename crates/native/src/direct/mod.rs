//! The training step written out for CPUs, forward and backward, in fp32.
//!
//! Matrix products and attention are libtorch's; everything between them is a loop of
//! `tprimat-loops`. All buffers are made once and stay, so that a step allocates next to nothing,
//! and a product adds its gradient to that of the micro-batches before by itself. It computes what
//! [`crate::backward`] computes by autograd. Where it does not cover a job, [`Direct::open`] says
//! why, and the trainer takes the other path.

mod buffer;
mod layer;
mod threads;
mod update;

#[cfg(test)]
mod tests;

use tch::{Device, Kind, TchError, Tensor};
use tprimat_job::Job;
use tprimat_loops::{self as loops, Angles, Heads, Instructions};

use self::{
    buffer::Buffer,
    layer::{Attended, Layer, Matrix, Norm, Scratch},
    threads::Threads,
};
use crate::{
    parameters::{Parameters, Place},
    rope::{self, Rope},
    shape::Shape,
};

/// Logits that exist at one time: 2 MiB of them stay in a core's cache until they were used.
const LOGITS_AT_ONCE: usize = 1 << 19;
/// Rows of a part of the logits at least: with few of them, products would wait for the weights.
const LEAST_ROWS: usize = 256;

pub struct Direct {
    common: Common,
    embedding: Matrix,
    layers: Vec<Layer>,
    /// Two of each layer, and the final one. Each has its input: the residual stream up to there.
    norms: Vec<Norm>,
    head: Matrix,
    tied: bool,
    scratch: Scratch,
    logits: Buffer,
    losses: Buffer,
}

/// What all layers share.
struct Common {
    threads: Threads,
    heads: Heads,
    cosines: Buffer,
    sines: Buffer,
    eps: f32,
    /// Tokens of a micro-batch (`rows`), and of one of its sequences (`length`).
    rows: usize,
    length: usize,
}

impl Common {
    fn angles(&self) -> Angles<'_> {
        Angles {
            cosines: self.cosines.all(),
            sines: self.sines.all(),
        }
    }
}

/// Why this step does not cover the job.
fn unsupported(job: &Job, shape: &Shape, device: Device) -> Option<String> {
    if device != Device::Cpu {
        return Some("it runs on CPUs only".to_owned());
    }
    if shape.positions > 0 {
        return Some("it has no loops for GPT-2's layers".to_owned());
    }
    if job.precision != "fp32" {
        return Some(format!("it computes in fp32, not in {}", job.precision));
    }
    if job.parallelism.num_gpus > 1 {
        return Some("it exchanges nothing between ranks".to_owned());
    }
    if job.activation_checkpointing {
        return Some("it keeps all activations, and the job asks for checkpointing".to_owned());
    }
    None
}

impl Direct {
    /// The direct step of this job, or why there is none.
    pub fn open(
        job: &Job,
        shape: &Shape,
        parameters: &Parameters,
        device: Device,
    ) -> Result<Result<Self, String>, TchError> {
        match unsupported(job, shape, device) {
            Some(reason) => Ok(Err(reason)),
            None => Self::new(
                shape,
                parameters,
                [job.data.micro_batch_size, job.data.seq_length].map(|n| n as usize),
                Threads::of_libtorch(),
            ),
        }
    }

    /// For micro-batches of so many sequences of so many tokens.
    fn new(
        shape: &Shape,
        parameters: &Parameters,
        [batch, length]: [usize; 2],
        threads: Threads,
    ) -> Result<Result<Self, String>, TchError> {
        let rows = batch * length;
        let index = parameters.index();
        let places = |names: &[String]| {
            let indices: Option<Vec<usize>> = names
                .iter()
                .map(|name| index.get(name.as_str()).copied())
                .collect();
            parameters.joined(&indices?)
        };
        let at = |layer: i64, names: &[&str]| -> Vec<String> {
            names
                .iter()
                .map(|name| format!("model.layers.{layer}.{name}"))
                .collect()
        };
        let joined = |layer: i64, names: &[&str]| {
            places(&at(layer, names)).ok_or_else(|| {
                format!(
                    "{} do not lie side by side: their sizes are not multiples of 64",
                    names.join(", ")
                )
            })
        };
        let qkv =
            |suffix: &str| ["q", "k", "v"].map(|name| format!("self_attn.{name}_proj.{suffix}"));
        let (mut layers, mut norms) = (Vec::new(), Vec::new());
        let heads = Heads {
            queries: shape.heads as usize,
            keys: shape.kv_heads as usize,
            width: shape.head_dim as usize,
        };
        let norm = |place: Place| Norm::new(parameters, &place, rows, shape.hidden as usize);
        for n in 0..shape.layers {
            let found = || {
                let weights = qkv("weight");
                let biases = qkv("bias");
                Ok::<_, String>((
                    joined(n, &["input_layernorm.weight"])?,
                    joined(n, &weights.each_ref().map(String::as_str))?,
                    match shape.qkv_bias {
                        true => Some(joined(n, &biases.each_ref().map(String::as_str))?),
                        false => None,
                    },
                    joined(n, &["self_attn.o_proj.weight"])?,
                    joined(n, &["post_attention_layernorm.weight"])?,
                    joined(n, &["mlp.gate_proj.weight", "mlp.up_proj.weight"])?,
                    joined(n, &["mlp.down_proj.weight"])?,
                ))
            };
            let (input_norm, qkv, bias, o, post_norm, gate_up, down) = match found() {
                Ok(places) => places,
                Err(reason) => return Ok(Err(reason)),
            };
            let matrices = [&qkv, &o, &gate_up, &down].map(|place| Matrix::new(parameters, place));
            norms.push(norm(input_norm)?);
            norms.push(norm(post_norm)?);
            layers.push(Layer::new(
                matrices,
                bias.as_ref(),
                parameters,
                heads,
                [batch, length],
            )?);
        }
        let single = |name: &str| {
            places(&[name.to_owned()]).ok_or_else(|| {
                TchError::TensorNameNotFound(name.to_owned(), "the model".to_owned())
            })
        };
        norms.push(norm(single("model.norm.weight")?)?);
        let head = if shape.tied {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let frequencies = rope::inverse_frequencies(
            shape.head_dim,
            shape.rope_theta,
            shape.rope_scaling.as_ref(),
        );
        let (cosines, sines) =
            Rope::new(&frequencies, length as i64, Kind::Float, Device::Cpu)?.into_tables();
        let (hidden, ffn, vocab) = (
            shape.hidden as usize,
            shape.ffn as usize,
            shape.vocab as usize,
        );
        Ok(Ok(Self {
            embedding: Matrix::new(parameters, &single("model.embed_tokens.weight")?)?,
            head: Matrix::new(parameters, &single(head)?)?,
            tied: shape.tied,
            layers,
            norms,
            scratch: Scratch::new(&threads, rows, hidden, ffn, heads)?,
            logits: Buffer::zeros((LOGITS_AT_ONCE / vocab).max(LEAST_ROWS).min(rows), vocab)?,
            losses: Buffer::zeros(rows, 1)?,
            common: Common {
                threads,
                heads,
                cosines: Buffer::of(cosines)?,
                sines: Buffer::of(sines)?,
                eps: shape.norm_eps as f32,
                rows,
                length,
            },
        }))
    }

    /// For the `start` event.
    pub fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "step": "direct",
            "attention": "flash",
            "loops": Instructions::here().name(),
            "loop_threads": self.common.threads.count,
        })
    }

    /// Scores of every token of the vocabulary, `[batch, length, vocabulary]`.
    pub fn logits(&self, tokens: &[i64]) -> Result<Tensor, TchError> {
        tch::no_grad(|| {
            self.forward(tokens)?;
            let hidden = &self.norms[2 * self.layers.len()].output.tensor;
            let logits = hidden.f_mm(&self.head.transposed)?;
            logits.f_reshape([-1, self.common.length as i64, self.logits.width() as i64])
        })
    }

    /// Puts (in a step's first micro-batch) or adds the gradients of `mean loss * weight`, and
    /// returns that product.
    pub fn run(
        &self,
        tokens: &[i64],
        targets: &[i64],
        weight: f64,
        is_first: bool,
    ) -> Result<f64, TchError> {
        tch::no_grad(|| {
            let attended = self.forward(tokens)?;
            let loss = self.loss(targets, weight, is_first)?;
            let (common, scratch) = (&self.common, &self.scratch);
            let last = 2 * self.layers.len();
            // SAFETY: no product and no loop runs now.
            unsafe { scratch.stream.all_mut() }.fill(0.0);
            self.norms[last].backward(common, scratch, is_first);
            for ((n, layer), attended) in self.layers.iter().enumerate().zip(attended).rev() {
                let norms = [&self.norms[2 * n], &self.norms[2 * n + 1]];
                layer.backward(common, norms, attended, scratch, is_first)?;
            }
            self.embedding_backward(tokens, is_first)?;
            Ok(loss)
        })
    }

    /// Leaves what the backward pass needs in the buffers, and the rest of it in the result.
    fn forward(&self, tokens: &[i64]) -> Result<Vec<Attended>, TchError> {
        let (common, embedding) = (&self.common, &self.embedding.value);
        let (width, stream) = (embedding.width(), &self.norms[0].input);
        common.threads.split(common.rows, width, |_, rows| {
            // SAFETY: every piece has rows of its own.
            let to = unsafe { stream.rows_mut(rows.clone()) };
            for (to, token) in to.chunks_exact_mut(width).zip(&tokens[rows]) {
                let token = *token as usize;
                to.copy_from_slice(embedding.rows(token..token + 1));
            }
        });
        self.norms[0].forward(common);
        let mut attended = Vec::new();
        for (n, layer) in self.layers.iter().enumerate() {
            let norms = [2 * n, 2 * n + 1, 2 * n + 2].map(|n| &self.norms[n]);
            attended.push(layer.forward(common, norms, &self.scratch)?);
        }
        Ok(attended)
    }

    /// The weighted loss. Writes its derivative by the final norm's output to the scratch, and that
    /// by the head's weights to their gradient.
    fn loss(&self, targets: &[i64], weight: f64, is_first: bool) -> Result<f64, TchError> {
        let common = &self.common;
        let sequences = common.rows / common.length;
        let weight = weight / (sequences * (common.length - 1)) as f64;
        let hidden = &self.norms[2 * self.layers.len()].output;
        let (all_logits, losses) = (&self.logits, &self.losses);
        for start in (0..common.rows).step_by(self.logits.len()) {
            let count = self.logits.len().min(common.rows - start);
            let part =
                |of: &Buffer, start: usize| of.tensor.f_narrow(0, start as i64, count as i64);
            let (hidden, logits) = (part(hidden, start)?, part(&self.logits, 0)?);
            self.head.forward(&hidden, &logits)?;
            common.threads.split(count, self.logits.width(), |_, rows| {
                // SAFETY: every piece has rows of its own.
                let (logits, losses) = unsafe {
                    (
                        all_logits.rows_mut(rows.clone()),
                        losses.rows_mut(start + rows.start..start + rows.end),
                    )
                };
                let targets = &targets[start + rows.start..start + rows.end];
                loops::cross_entropy(logits, targets, weight as f32, losses);
            });
            self.head
                .weight_gradient(&hidden, &logits, is_first && start == 0)?;
            self.head
                .input_gradient(&logits, &part(&self.scratch.of_norm, start)?)?;
        }
        Ok(self.losses.all().iter().map(|loss| f64::from(*loss)).sum())
    }

    /// Adds the rows of the residual stream's gradient to those of the embedding, in order: threads
    /// of their own could meet at a token that occurs twice.
    fn embedding_backward(&self, tokens: &[i64], is_first: bool) -> Result<(), TchError> {
        // A tied head has put its gradient there already.
        if is_first && !self.tied {
            let _ = self.embedding.gradient.tensor.shallow_clone().f_zero_()?;
        }
        let width = self.embedding.value.width();
        let rows = self.scratch.stream.all().chunks_exact(width);
        for (row, token) in rows.zip(tokens) {
            let token = *token as usize;
            // SAFETY: this thread is the only one that runs now.
            let to = unsafe { self.embedding.gradient.rows_mut(token..token + 1) };
            to.iter_mut().zip(row).for_each(|(to, x)| *to += x);
        }
        Ok(())
    }
}
