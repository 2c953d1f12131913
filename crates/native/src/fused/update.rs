//! The optimiser step over the flat buffers: the norm of all gradients, then clipping, AdamW and the bf16 weights.

use tch::{Kind, TchError, Tensor};
use tprimat_job::OptimizerJob;

use super::{
    Fused,
    kernels::{self, AdamW, Update},
};
use crate::parameters::Parameters;

impl Fused {
    /// Global 2-norm of the accumulated gradients, an fp32 scalar on the device.
    pub fn grad_norm(&self, parameters: &Parameters) -> Result<Tensor, TchError> {
        tch::no_grad(|| {
            let partial = |group| kernels::squares(&*self.common.backend, group);
            let sums = parameters.groups.iter().map(|g| partial(&g.grads)).collect::<Result<Vec<_>, _>>()?;
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
        for (index, group) in (0_u32..).zip(&parameters.groups) {
            let options = AdamW {
                decay: (1.0 - learning_rate * group.weight_decay) as f32,
                step_size: (learning_rate / (1.0 - job.beta1.powf(t))) as f32,
                root_scale: (1.0 / (1.0 - job.beta2.powf(t)).sqrt()) as f32,
                beta1: job.beta1 as f32,
                beta2: job.beta2 as f32,
                eps: job.eps as f32,
                clip: job.clip_grad as f32,
                seed: self.rounding_seed.map_or(0, |seed| stream(seed, number, index)),
            };
            let update = Update {
                masters: &group.master,
                values: &group.values,
                gradients: &group.grads,
                first: &group.exp_avg,
                second: &group.exp_avg_sq,
                norm,
            };
            kernels::adamw(&*self.common.backend, &update, options)?;
        }
        Ok(())
    }
}

/// A number of its own for each update of each buffer; never 0, which stands for rounding to nearest.
fn stream(seed: u64, number: u64, group: u32) -> u32 {
    let mixed = (seed ^ (seed >> 32)).wrapping_mul(0x9E37_79B9).wrapping_add(number.wrapping_mul(2));
    (mixed as u32).wrapping_add(group).max(1)
}
