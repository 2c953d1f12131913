//! The optimiser step over the flat buffers: the norm of all gradients, then clipping, AdamW and the bf16 weights.

use tch::{Kind, TchError, Tensor};
use tprimat::plan::OptimizerJob;

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
        for group in &parameters.groups {
            let options = AdamW {
                decay: (1.0 - learning_rate * group.weight_decay) as f32,
                step_size: (learning_rate / (1.0 - job.beta1.powf(t))) as f32,
                root_scale: (1.0 / (1.0 - job.beta2.powf(t)).sqrt()) as f32,
                beta1: job.beta1 as f32,
                beta2: job.beta2 as f32,
                eps: job.eps as f32,
                clip: job.clip_grad as f32,
                seed: 0,
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
