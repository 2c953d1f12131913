//! The GPU: kernels compiled at run time, cuBLASLt for products, cuDNN or flash attention for
//! attention.

use std::ffi::c_void;

use libloading::os::unix::Library;
use tch::{Device, TchError, Tensor};

use super::{
    backend::{Attention, Backend, Product},
    driver::{Driver, failure},
    products::Products,
};
use crate::shim::{self, AttentionBy};

/// Compute capability, times ten, of the first generation that multiplies fp8.
const FP8_CAPABILITY: u32 = 89;

pub struct Gpu {
    device: Device,
    attention: AttentionBy,
    pub driver: Driver,
    pub products: Products,
}

impl Gpu {
    /// `attention` = flash makes everything that runs on this device deterministic, as long as
    /// products are not tuned.
    pub fn open(device: Device, attention: AttentionBy) -> Result<Self, TchError> {
        if attention == AttentionBy::Flash {
            shim::only_deterministic()?;
        }
        // It is loaded, and names its own dependencies.
        // SAFETY: nothing is initialised a second time.
        let torch =
            unsafe { Library::new("libtorch_cuda.so") }.map_err(|e| failure(e.to_string()))?;
        let Device::Cuda(number) = device else {
            return Err(failure(format!("{device:?} is not a GPU")));
        };
        let products = Products::open(&torch, device)?;
        Ok(Self {
            device,
            attention,
            products,
            driver: Driver::open(number)?,
        })
    }
}

impl Backend for Gpu {
    fn device(&self) -> Device {
        self.device
    }

    fn multiprocessors(&self) -> u32 {
        self.driver.multiprocessors
    }

    fn shared_memory(&self) -> u32 {
        self.driver.shared_memory
    }

    fn multiplies_fp8(&self) -> bool {
        self.driver.capability >= FP8_CAPABILITY
    }

    unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), TchError> {
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.driver.launch(kernel, grid, threads, shared, arguments) }
    }

    fn multiply(&self, product: &Product) -> Result<(), TchError> {
        self.products.run(product)
    }

    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Attention, TchError> {
        let [output, rest @ ..] = shim::attention(self.attention, q, k, v)?;
        Ok(Attention {
            output,
            rest: rest.into(),
        })
    }

    fn attention_backward(
        &self,
        gradient: &Tensor,
        inputs: [&Tensor; 3],
        saved: &Attention,
    ) -> Result<[Tensor; 3], TchError> {
        let [log_sum, seed, offset] = saved.rest.as_slice() else {
            return Err(failure(
                "attention kept nothing for its backward pass".to_owned(),
            ));
        };
        let saved = [&saved.output, log_sum, seed, offset];
        let [dq, dk, dv] = shim::attention_backward(self.attention, gradient, inputs, saved)?;
        let by_token = |t: Tensor| t.f_transpose(1, 2)?.f_contiguous();
        Ok([by_token(dq)?, by_token(dk)?, by_token(dv)?])
    }
}
