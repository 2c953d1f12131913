//! Matrices that stay for the whole run: products see tensors, loops see rows of numbers.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

/// A matrix in fp32 on the CPU, row after row without gaps.
pub struct Buffer {
    pub tensor: Tensor,
    at: *mut f32,
    rows: usize,
    width: usize,
}

// SAFETY: only loops of `Threads::split` share a buffer, and they only use its address: who writes
// through it promises in `rows_mut` that no other thread uses the same rows.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn zeros(rows: usize, width: usize) -> Result<Self, TchError> {
        Self::of(Tensor::f_zeros(
            [rows as i64, width as i64],
            (Kind::Float, Device::Cpu),
        )?)
    }

    /// The memory of a tensor; its last dimension is a row.
    pub fn of(tensor: Tensor) -> Result<Self, TchError> {
        let is_usable = tensor.kind() == Kind::Float
            && tensor.device() == Device::Cpu
            && tensor.is_contiguous();
        let Some(width) = tensor.size().last().copied().filter(|_| is_usable) else {
            return Err(TchError::Kind(format!(
                "{tensor:?} is not a matrix in fp32 on the CPU"
            )));
        };
        let rows = tensor.numel() / (width as usize).max(1);
        Ok(Self {
            at: tensor.data_ptr().cast(),
            rows,
            width: width as usize,
            tensor,
        })
    }

    pub fn rows(&self, rows: Range<usize>) -> &[f32] {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        // SAFETY: within the tensor, which lives as long as `self`; who writes keeps others away.
        unsafe {
            std::slice::from_raw_parts(
                self.at.add(rows.start * self.width),
                rows.len() * self.width,
            )
        }
    }

    pub fn all(&self) -> &[f32] {
        self.rows(0..self.rows)
    }

    /// # Safety
    ///
    /// While the result is in use, nothing else may use these rows: no other thread, no tensor that
    /// shares the memory, and no other slice.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn rows_mut(&self, rows: Range<usize>) -> &mut [f32] {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        // SAFETY: within the tensor, which lives as long as `self`; the caller is alone with them.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.at.add(rows.start * self.width),
                rows.len() * self.width,
            )
        }
    }

    /// # Safety
    ///
    /// As of [`Self::rows_mut`], for all rows.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn all_mut(&self) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.rows_mut(0..self.rows) }
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn width(&self) -> usize {
        self.width
    }
}
