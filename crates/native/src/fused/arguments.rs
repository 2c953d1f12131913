//! What a kernel is launched with.

use std::ffi::c_void;

use tch::{TchError, Tensor};

use super::{backend::Backend, kernels::AdamW};

/// Arguments of one launch, in order, with their bits kept where the launch can point to them.
#[derive(Default)]
pub struct Arguments(Vec<[u64; 4]>);

impl Arguments {
    pub fn tensor(mut self, tensor: &Tensor) -> Self {
        self.0.push([tensor.data_ptr() as u64, 0, 0, 0]);
        self
    }

    pub fn optional(mut self, tensor: Option<&Tensor>) -> Self {
        self.0
            .push([tensor.map_or(0, |t| t.data_ptr() as u64), 0, 0, 0]);
        self
    }

    /// An `int` of the kernel.
    pub fn int(mut self, value: i64) -> Self {
        self.0.push([u64::from(value as i32 as u32), 0, 0, 0]);
        self
    }

    pub fn long(mut self, value: i64) -> Self {
        self.0.push([value as u64, 0, 0, 0]);
        self
    }

    pub fn float(mut self, value: f64) -> Self {
        self.0.push([u64::from((value as f32).to_bits()), 0, 0, 0]);
        self
    }

    pub fn adamw(mut self, options: AdamW) -> Self {
        let AdamW {
            decay,
            step_size,
            root_scale,
            beta1,
            beta2,
            eps,
            clip,
            seed,
        } = options;
        let pair = |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
        let last = u64::from(clip.to_bits()) | u64::from(seed) << 32;
        self.0.push([
            pair(decay, step_size),
            pair(root_scale, beta1),
            pair(beta2, eps),
            last,
        ]);
        self
    }

    pub fn launch(
        mut self,
        backend: &dyn Backend,
        kernel: &'static str,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
    ) -> Result<(), TchError> {
        let mut pointers: Vec<*mut c_void> =
            self.0.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
        // SAFETY: the functions of `kernels` pass what kernels/*.cu declare and have checked the tensors'
        // sizes.
        unsafe { backend.launch(kernel, grid, threads, shared, &mut pointers) }
    }
}
