//! What a fused step is made of: kernel launches, matrix products and attention, on the GPU or, in
//! tests, on the CPU.

use std::ffi::c_void;

use tch::{Device, Kind, TchError, Tensor};

use super::{driver::failure, operand::Format};

pub trait Backend {
    fn device(&self) -> Device;
    /// Blocks that fill the device once; kernels that loop over their work start a small multiple
    /// of it.
    fn multiprocessors(&self) -> u32;
    /// Shared memory that one block may ask for, in bytes.
    fn shared_memory(&self) -> u32;

    /// Whether factors of products may be fp8.
    fn multiplies_fp8(&self) -> bool;

    /// Queues a kernel.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel declares, in its order, and
    /// pointers among those are valid for what the kernel reads and writes.
    unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), TchError>;

    /// Queues a product that [`Product::check`] has accepted.
    fn multiply(&self, product: &Product) -> Result<(), TchError>;

    /// Causal attention over `[batch, heads, length, head_dim]`. The output is contiguous as
    /// `[batch, length, heads, …]`.
    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Attention, TchError>;

    /// Gradients of q, k and v, each contiguous as `[batch, length, heads, head_dim]`.
    fn attention_backward(
        &self,
        gradient: &Tensor,
        inputs: [&Tensor; 3],
        saved: &Attention,
    ) -> Result<[Tensor; 3], TchError>;

    /// Queues a product, once its sizes are known to fit.
    fn product(&self, product: &Product) -> Result<(), TchError> {
        product.check()?;
        self.multiply(product)
    }
}

/// What attention leaves for its backward pass.
pub struct Attention {
    pub output: Tensor,
    /// The logarithm of the sum of exponentials, and the state of a dropout that is not used.
    pub rest: Vec<Tensor>,
}

/// Which of the three products of a linear layer y = x·wᵀ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// y = left·rightᵀ: left is x, right is w.
    Forward,
    /// dx = left·right: left is dy, right is w.
    Input,
    /// dw = leftᵀ·right: left is dy, right is x.
    Weight,
}

/// Sizes of products in fp8 are multiples of this.
pub const FP8_STEP: i64 = 16;

pub const LAYOUTS: [Layout; 3] = [Layout::Forward, Layout::Input, Layout::Weight];

/// out = left ∘ right + add + bias. All matrices are contiguous; the factors are bf16, or fp8 with
/// a scale each.
pub struct Product<'a> {
    pub layout: Layout,
    pub left: &'a Tensor,
    pub right: &'a Tensor,
    pub out: &'a Tensor,
    /// Added to the product. Has the size and kind of `out`, and may be `out` itself.
    pub add: Option<&'a Tensor>,
    pub bias: Option<&'a Tensor>,
    /// fp32 scalars that the factors are multiplied with; there for fp8, and only in the layout
    /// that both factors are read along the sum.
    pub scales: Option<[&'a Tensor; 2]>,
}

impl Product<'_> {
    /// Rows of the output, terms of each sum, columns of the output.
    pub fn sizes(&self) -> [i64; 3] {
        let (left, right) = (self.left.size(), self.right.size());
        match self.layout {
            Layout::Forward => [left[0], left[1], right[0]],
            Layout::Input => [left[0], left[1], right[1]],
            Layout::Weight => [left[1], left[0], right[1]],
        }
    }

    fn check(&self) -> Result<(), TchError> {
        let (left, right, out) = (self.left.size(), self.right.size(), self.out.size());
        let fits = left.len() == 2 && right.len() == 2 && {
            let [rows, inner, cols] = self.sizes();
            let right_inner = if self.layout == Layout::Forward {
                right[1]
            } else {
                right[0]
            };
            let bias_fits = self
                .bias
                .is_none_or(|b| b.size() == [cols] && b.kind() == Kind::BFloat16);
            let add_fits = self.add.is_none_or(|a| {
                a.size() == out && a.kind() == self.out.kind() && a.is_contiguous()
            });
            inner == right_inner && out == [rows, cols] && bias_fits && add_fits
        };
        let factors = match self.scales {
            None => [self.left, self.right]
                .iter()
                .all(|t| t.kind() == Kind::BFloat16),
            Some(scales) => {
                let is_fp8 = [self.left, self.right]
                    .iter()
                    .all(|t| Format::is_of(t.kind()));
                let multiples = self.sizes().iter().all(|size| size % FP8_STEP == 0);
                let are_scalars = scales
                    .iter()
                    .all(|s| s.kind() == Kind::Float && s.numel() == 1);
                self.layout == Layout::Forward && is_fp8 && multiples && are_scalars
            }
        };
        let kinds = factors
            && self.left.is_contiguous()
            && self.right.is_contiguous()
            && matches!(self.out.kind(), Kind::BFloat16 | Kind::Float)
            && self.out.is_contiguous();
        match fits && kinds {
            true => Ok(()),
            false => Err(failure(format!(
                "product {:?} of {left:?} and {right:?} into {out:?}",
                self.layout
            ))),
        }
    }
}
