//! The gradients' norm, clipping and AdamW, over the flat buffers of all parameters.

use std::sync::Mutex;

use tch::TchError;
use tprimat_job::OptimizerJob;
use tprimat_loops as loops;

use super::{Direct, buffer::Buffer};
use crate::parameters::{Group, Parameters};

impl Direct {
    /// Global 2-norm of the accumulated gradients.
    pub fn grad_norm(&self, parameters: &Parameters) -> Result<f64, TchError> {
        let threads = &self.common.threads;
        let mut total = 0.0;
        for group in &parameters.groups {
            let gradients = Buffer::of(group.grads.f_view([-1, 1])?)?;
            let sums = Mutex::new(vec![0.0; threads.count]);
            threads.split(gradients.len(), 1, |piece, rows| {
                let sum = loops::sum_of_squares(gradients.rows(rows));
                sums.lock().unwrap_or_else(|e| e.into_inner())[piece] = sum;
            });
            // In the order of the pieces, whichever thread was first.
            total += sums
                .into_inner()
                .unwrap_or_else(|e| e.into_inner())
                .iter()
                .sum::<f64>();
        }
        Ok(total.sqrt())
    }

    /// Clips (where `clip_grad` > 0) and updates. `step`: the number of this update, from 1.
    pub fn update(
        &self,
        parameters: &Parameters,
        grad_norm: f64,
        step: u64,
        learning_rate: f64,
        options: &OptimizerJob,
    ) -> Result<(), TchError> {
        // As torch.nn.utils.clip_grad_norm_ does it.
        let clip = match options.clip_grad > 0.0 {
            true => (options.clip_grad / (grad_norm + 1e-6)).min(1.0),
            false => 1.0,
        };
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        for group in &parameters.groups {
            let factors = loops::AdamW {
                gradient: clip as f32,
                keep: (1.0 - learning_rate * group.weight_decay) as f32,
                news: [options.beta1, options.beta2].map(|beta| (1.0 - beta) as f32),
                rate: (learning_rate / correction(options.beta1)) as f32,
                root: (1.0 / correction(options.beta2).sqrt()) as f32,
                eps: options.eps as f32,
            };
            self.update_group(group, factors)?;
        }
        Ok(())
    }

    fn update_group(&self, group: &Group, factors: loops::AdamW) -> Result<(), TchError> {
        let Group {
            master,
            grads,
            exp_avg,
            exp_avg_sq,
            ..
        } = group;
        let flat = |tensor: &tch::Tensor| Buffer::of(tensor.f_view([-1, 1])?);
        let (weights, gradients) = (flat(master)?, flat(grads)?);
        let (first, second) = (flat(exp_avg)?, flat(exp_avg_sq)?);
        self.common.threads.split(weights.len(), 1, |_, rows| {
            // SAFETY: every piece has elements of its own, and no product runs now.
            let (weights, first, second) = unsafe {
                (
                    weights.rows_mut(rows.clone()),
                    first.rows_mut(rows.clone()),
                    second.rows_mut(rows.clone()),
                )
            };
            loops::adamw(weights, gradients.rows(rows), first, second, factors);
        });
        Ok(())
    }
}
