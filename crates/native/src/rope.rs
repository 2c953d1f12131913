//! Rotary position embedding, with Llama 3.1's frequency scaling, in Hugging Face's half-split
//! pairing.

use std::f64::consts::PI;

use tch::{Device, Kind, TchError, Tensor};
use tprimat_job::RopeScaling;

/// cos and sin of every (position, frequency), each `[seq_length, head_dim / 2]`.
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    pub fn new(
        inverse_frequencies: &[f64],
        seq_length: i64,
        kind: Kind,
        device: Device,
    ) -> Result<Self, TchError> {
        // Angles in fp32, whatever the kind: bf16 cannot hold positions.
        let frequencies: Vec<f32> = inverse_frequencies.iter().map(|f| *f as f32).collect();
        let frequencies = Tensor::f_from_slice(&frequencies)?;
        let positions = Tensor::f_arange(seq_length, (Kind::Float, Device::Cpu))?;
        let angles = positions.f_outer(&frequencies)?;
        let table = |t: Tensor| t.f_to_kind(kind)?.f_to_device(device);
        Ok(Self {
            cos: table(angles.f_cos()?)?,
            sin: table(angles.f_sin()?)?,
        })
    }

    /// cos and sin, as the kernels of the fused step take them.
    pub fn into_tables(self) -> (Tensor, Tensor) {
        (self.cos, self.sin)
    }

    /// Rotates `x` of `[batch, heads, seq_length, head_dim]`: dimension i pairs with i + head_dim /
    /// 2.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let halves = x.f_chunk(2, -1)?;
        let [a, b] = halves.as_slice() else {
            return Err(TchError::Shape(format!(
                "head_dim of {:?} cannot be halved",
                x.size()
            )));
        };
        let left = a.f_mul(&self.cos)?.f_sub(&b.f_mul(&self.sin)?)?;
        let right = b.f_mul(&self.cos)?.f_add(&a.f_mul(&self.sin)?)?;
        Tensor::f_cat(&[left, right], -1)
    }
}

/// `theta^(-2i / head_dim)`; with scaling, long wavelengths are slowed by `factor`, short ones
/// kept, the rest blended.
pub fn inverse_frequencies(head_dim: i64, theta: f64, scaling: Option<&RopeScaling>) -> Vec<f64> {
    let plain = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64));
    let Some(s) = scaling else {
        return plain.collect();
    };
    let context = s.original_max_position_embeddings as f64;
    plain
        .map(|f| {
            let wavelength = 2.0 * PI / f;
            if wavelength < context / s.high_freq_factor {
                f
            } else if wavelength > context / s.low_freq_factor {
                f / s.factor
            } else {
                let smooth = (context / wavelength - s.low_freq_factor)
                    / (s.high_freq_factor - s.low_freq_factor);
                (1.0 - smooth) * f / s.factor + smooth * f
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_keeps_short_and_slows_long_wavelengths() {
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let plain = inverse_frequencies(128, 5e5, None);
        let scaled = inverse_frequencies(128, 5e5, Some(&scaling));
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] - plain[63] / 8.0).abs() < 1e-18);
        assert!(
            scaled.windows(2).all(|w| w[0] > w[1]),
            "no jump where the three ranges meet"
        );
        assert!(
            plain
                .iter()
                .zip(&scaled)
                .all(|(p, s)| s <= p && *s >= p / 8.0)
        );
    }
}
