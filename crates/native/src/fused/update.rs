//! The optimiser step over the flat buffers: the norm of all gradients, then clipping, AdamW and
//! the bf16 weights.

use tch::{Kind, TchError, Tensor};
use tprimat_job::OptimizerJob;

use super::{
    Fused,
    kernels::{self, AdamW, Update},
};
use crate::parameters::{MATRICES, Parameters, VECTORS};

impl Fused {
    /// Global 2-norm of the accumulated gradients, an fp32 scalar on the device. Gradients that are
    /// still on their way arrive while those that are complete are summed.
    pub fn grad_norm(&self, parameters: &Parameters) -> Result<Tensor, TchError> {
        tch::no_grad(|| {
            let gradients = &parameters.groups[MATRICES].grads;
            let length = gradients.numel() as i64;
            let complete = self.exchange.complete_from(length);
            let squares = |from: i64, to: i64| {
                kernels::squares(
                    &*self.common.backend,
                    &gradients.f_narrow(0, from, to - from)?,
                )
            };
            let mut sums = Vec::new();
            if complete < length {
                sums.push(squares(complete, length)?);
            }
            self.exchange.finish()?;
            if complete > 0 {
                sums.push(squares(0, complete)?);
            }
            if let Some(ranks) = self.exchange.shared() {
                sums = vec![
                    Tensor::f_cat(&sums, 0)?
                        .f_sum(Kind::Float)?
                        .f_reshape([1])?,
                ];
                ranks.wait(ranks.all_reduce(&sums[0])?)?;
            }
            let vectors = &parameters.groups[VECTORS].grads;
            sums.push(kernels::squares(&*self.common.backend, vectors)?);
            Tensor::f_cat(&sums, 0)?.f_sum(Kind::Float)?.f_sqrt()
        })
    }

    /// `number` counts the updates from 1.
    pub fn update(
        &self,
        parameters: &Parameters,
        norm: &Tensor,
        number: u64,
        learning_rate: f64,
        job: &OptimizerJob,
    ) -> Result<(), TchError> {
        let t = number as f64;
        self.exchange.forget();
        for (index, group) in parameters.groups.iter().enumerate() {
            let pieces = self.exchange.pieces(index, group.master.numel() as i64);
            for (piece, (start, length)) in pieces.into_iter().enumerate() {
                let options = AdamW {
                    decay: (1.0 - learning_rate * group.weight_decay) as f32,
                    step_size: (learning_rate / (1.0 - job.beta1.powf(t))) as f32,
                    root_scale: (1.0 / (1.0 - job.beta2.powf(t)).sqrt()) as f32,
                    beta1: job.beta1 as f32,
                    beta2: job.beta2 as f32,
                    eps: job.eps as f32,
                    clip: job.clip_grad as f32,
                    seed: self
                        .rounding_seed
                        .map_or(0, |seed| stream(seed, number, self.stream_of(index, piece))),
                };
                let part = |buffer: &Tensor| buffer.f_narrow(0, start, length);
                let update = Update {
                    masters: &part(&group.master)?,
                    values: &part(&group.values)?,
                    gradients: &part(&group.grads)?,
                    first: &part(&group.exp_avg)?,
                    second: &part(&group.exp_avg_sq)?,
                    norm,
                };
                kernels::adamw(&*self.common.backend, &update, options)?;
                if index == MATRICES && number < self.last_step {
                    self.exchange.updated(piece)?;
                }
            }
        }
        Ok(())
    }

    /// Ranks that hold the same values round them alike, and other values in their own way.
    fn stream_of(&self, group: usize, piece: usize) -> u64 {
        let rank = self
            .exchange
            .shared()
            .filter(|_| group == MATRICES)
            .map_or(0, |ranks| ranks.rank());
        group as u64 + 2 * (4 * rank + piece) as u64
    }
}

/// A number of its own for each update of each buffer; never 0, which stands for rounding to
/// nearest.
fn stream(seed: u64, number: u64, buffer: u64) -> u32 {
    let mixed = (seed ^ (seed >> 32))
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(number.wrapping_mul(2));
    let mixed = mixed.wrapping_add(buffer / 2 * 0x85EB_CA6B);
    (mixed as u32).wrapping_add(buffer as u32 % 2).max(1)
}
