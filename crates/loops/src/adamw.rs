//! The gradients' norm, and AdamW over flat buffers.

use crate::{sum, vectorised};

/// Sums of so many elements in fp32 lose nothing that matters; longer ones are added up in fp64.
const PART: usize = 1 << 12;

vectorised! {
    /// The sum of the squares.
    pub fn sum_of_squares(x: &[f32]) -> f64 {
        x.chunks(PART).map(|part| f64::from(sum([part], |[x]| x * x))).sum()
    }
}

/// One update's factors.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Multiplies the gradients: clips them.
    pub gradient: f32,
    /// Multiplies the weights: decay.
    pub keep: f32,
    /// 1 - beta1 and 1 - beta2: what is new in the moments.
    pub news: [f32; 2],
    /// Learning rate over the first moment's bias correction.
    pub rate: f32,
    /// One over the square root of the second moment's bias correction.
    pub root: f32,
    pub eps: f32,
}

vectorised! {
    /// Updates weights and both moments in place.
    pub fn adamw(
        weights: &mut [f32],
        gradients: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        factors: AdamW,
    ) {
        let state = weights.iter_mut().zip(first).zip(second);
        for (((weight, first), second), gradient) in state.zip(gradients) {
            let g = gradient * factors.gradient;
            *first += (g - *first) * factors.news[0];
            *second += (g * g - *second) * factors.news[1];
            let size = second.sqrt() * factors.root + factors.eps;
            *weight = *weight * factors.keep - factors.rate * *first / size;
        }
    }
}
