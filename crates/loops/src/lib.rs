//! The passes of a training step on a CPU that are not matrix products, each over a block of rows.
//!
//! The compiler vectorises every pass once for each instruction set in [`Instructions`], and the
//! CPU decides at run time which one runs. No pass fuses a multiplication with an addition and
//! every sum has the same `LANES` partial sums, so all instruction sets give the same bits.
//!
//! Knows nothing of tensors, threads or networks: slices in, slices out.

mod adamw;
mod entropy;
mod exp;
mod norm;
mod rope;
mod swiglu;

pub use self::{
    adamw::{AdamW, adamw, sum_of_squares},
    entropy::cross_entropy,
    norm::{add_and_norm, norm, norm_backward},
    rope::{Angles, Heads, rotate, rotate_backward},
    swiglu::{swiglu, swiglu_backward},
};

/// Partial sums that every sum is made of: one AVX-512 register.
pub(crate) const LANES: usize = 16;

/// What the passes are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// What every CPU of this architecture has.
    Baseline,
    Avx2,
    Avx512,
}

impl Instructions {
    /// The best that this CPU has.
    #[must_use]
    #[inline]
    pub fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Baseline
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Compiles a function once for each instruction set, and calls the one for this CPU.
macro_rules! vectorised {
    ($(#[$note:meta])* pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$note])*
        pub fn $name($($argument: $type),*) $(-> $out)? {
            #[inline(always)]
            fn plain($($argument: $type),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl")]
                fn avx512($($argument: $type),*) $(-> $out)? {
                    plain($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($argument: $type),*) $(-> $out)? {
                    plain($($argument),*)
                }
                match $crate::Instructions::here() {
                    // SAFETY: this CPU has just been asked whether it has them.
                    $crate::Instructions::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    $crate::Instructions::Avx2 => return unsafe { avx2($($argument),*) },
                    $crate::Instructions::Baseline => {}
                }
            }
            plain($($argument),*)
        }
    };
}
pub(crate) use vectorised;

/// Folds one value for each index into [`LANES`] partial results, and then those.
///
/// `slices` have one length; `value` gets the elements of all of them at one index.
#[inline(always)]
pub(crate) fn fold<const N: usize>(
    slices: [&[f32]; N],
    start: f32,
    value: impl Fn([f32; N]) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut lanes = [start; LANES];
    let chunks = slices.map(|slice| slice.as_chunks::<LANES>());
    for index in 0..chunks[0].0.len() {
        let rows = chunks.map(|(whole, _)| &whole[index]);
        for (lane, partial) in lanes.iter_mut().enumerate() {
            *partial = join(*partial, value(rows.map(|row| row[lane])));
        }
    }
    for index in 0..chunks[0].1.len() {
        lanes[index] = join(lanes[index], value(chunks.map(|(_, rest)| rest[index])));
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
pub(crate) fn sum<const N: usize>(slices: [&[f32]; N], value: impl Fn([f32; N]) -> f32) -> f32 {
    fold(slices, 0.0, value, |a, b| a + b)
}

#[cfg(test)]
pub(crate) mod tests {
    /// Numbers that look random, between -1 and 1.
    pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                ((state >> 40) as f64 / f64::from(1 << 23) - 1.0) as f32
            })
            .collect()
    }

    /// Whether all of `found` are within `tolerance` of the wanted ones, by the largest wanted one.
    #[track_caller]
    pub fn close(found: &[f32], wanted: &[f64], tolerance: f64) {
        assert_eq!(found.len(), wanted.len());
        let scale = wanted.iter().fold(1e-30_f64, |most, w| most.max(w.abs()));
        for (index, (f, w)) in found.iter().zip(wanted).enumerate() {
            let error = (f64::from(*f) - w).abs() / scale;
            assert!(error <= tolerance, "at {index}: {f} instead of {w}");
        }
    }

    #[test]
    fn sums_have_all_elements() {
        for length in [0, 1, 15, 16, 17, 47, 64] {
            let x: Vec<f32> = (1..=length).map(|n| n as f32).collect();
            let wanted = (length * (length + 1) / 2) as f32;
            assert_eq!(super::sum([&x[..]], |[x]| x), wanted, "{length}");
        }
    }
}
