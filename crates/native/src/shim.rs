//! Safe wrappers around shim.cpp: the few calls into libtorch that tch does not bind.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr,
};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

unsafe extern "C" {
    fn tprimat_fused_adamw(
        weight: *const c_void,
        grad: *const c_void,
        exp_avg: *const c_void,
        exp_avg_sq: *const c_void,
        step: *const c_void,
        grad_scale: *const c_void,
        learning_rate: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn tprimat_send(
        host: *const c_void,
        device: i8,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn tprimat_only_deterministic(message: *mut c_char, capacity: usize) -> c_int;
    fn tprimat_attention(
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        is_flash: c_int,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn tprimat_attention_backward(
        gradient: *const c_void,
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        output: *const c_void,
        log_sum: *const c_void,
        seed: *const c_void,
        offset: *const c_void,
        is_flash: c_int,
        out: *mut *mut C_tensor,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn tprimat_set_device(device: i8, message: *mut c_char, capacity: usize) -> c_int;
    fn tprimat_peak_allocated(
        device: i8,
        bytes: *mut i64,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn tprimat_build_settings(
        text: *mut c_char,
        text_capacity: usize,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
    fn tprimat_profile_prepare(message: *mut c_char, capacity: usize) -> c_int;
    fn tprimat_profile_start(message: *mut c_char, capacity: usize) -> c_int;
    fn tprimat_profile_step(number: i64, message: *mut c_char, capacity: usize) -> c_int;
    fn tprimat_profile_stop(path: *const c_char, message: *mut c_char, capacity: usize) -> c_int;
}

#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub weight_decay: f64,
    pub eps: f64,
}

/// The tensors that one fused update reads and writes; all of one kind and device but for the two
/// scalars.
pub struct AdamWState<'a> {
    pub weight: &'a Tensor,
    pub grad: &'a Tensor,
    pub exp_avg: &'a Tensor,
    pub exp_avg_sq: &'a Tensor,
    /// fp32 scalar: the number of this update, from 1.
    pub step: &'a Tensor,
    /// fp32 scalar that divides the gradient.
    pub grad_scale: Option<&'a Tensor>,
}

/// `torch.optim.AdamW(fused=True)`'s update in place.
pub fn fused_adamw(state: &AdamWState, options: AdamW) -> Result<(), TchError> {
    // SAFETY: tch's C_tensor is an at::Tensor; all six outlive the call, and C++ exceptions are
    // caught inside.
    checked(|message, capacity| unsafe {
        tprimat_fused_adamw(
            raw(state.weight),
            raw(state.grad),
            raw(state.exp_avg),
            raw(state.exp_avg_sq),
            raw(state.step),
            state.grad_scale.map_or(ptr::null(), raw),
            options.learning_rate,
            options.beta1,
            options.beta2,
            options.weight_decay,
            options.eps,
            message,
            capacity,
        )
    })
}

/// A copy of `host` on CUDA or HIP device `device`, sent from pinned memory, which PyTorch keeps
/// until it has arrived.
pub fn send(host: &Tensor, device: i8) -> Result<Tensor, TchError> {
    let mut out = ptr::null_mut();
    // SAFETY: `out` has room for the one tensor that is written.
    checked(|message, capacity| unsafe {
        tprimat_send(raw(host), device, &raw mut out, message, capacity)
    })?;
    // SAFETY: the call succeeded, so it is a new tensor that nothing else owns.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// From now on libtorch takes only algorithms that give the same bits every time.
pub fn only_deterministic() -> Result<(), TchError> {
    // SAFETY: C++ exceptions are caught inside.
    checked(|message, capacity| unsafe { tprimat_only_deterministic(message, capacity) })
}

/// Whose attention runs. The order in which cuDNN's backward pass adds up varies; flash attention's
/// can be fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBy {
    Cudnn,
    Flash,
}

/// Causal attention: the output, the log of the sum of exponentials, and the state of an unused
/// dropout.
pub fn attention(
    by: AttentionBy,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<[Tensor; 4], TchError> {
    let mut out = [ptr::null_mut(); 4];
    let is_flash = c_int::from(by == AttentionBy::Flash);
    // SAFETY: `out` has room for the four tensors that are written, and the inputs outlive the
    // call.
    checked(|message, capacity| unsafe {
        tprimat_attention(
            raw(q),
            raw(k),
            raw(v),
            is_flash,
            out.as_mut_ptr(),
            message,
            capacity,
        )
    })?;
    // SAFETY: the call succeeded, so each is a new tensor that nothing else owns.
    Ok(out.map(|tensor| unsafe { Tensor::from_ptr(tensor) }))
}

/// Gradients of q, k and v; `saved` is what [`attention`] returned.
pub fn attention_backward(
    by: AttentionBy,
    gradient: &Tensor,
    [q, k, v]: [&Tensor; 3],
    [output, log_sum, seed, offset]: [&Tensor; 4],
) -> Result<[Tensor; 3], TchError> {
    let mut out = [ptr::null_mut(); 3];
    let is_flash = c_int::from(by == AttentionBy::Flash);
    // SAFETY: `out` has room for the three tensors that are written, and the inputs outlive the
    // call.
    checked(|message, capacity| unsafe {
        tprimat_attention_backward(
            raw(gradient),
            raw(q),
            raw(k),
            raw(v),
            raw(output),
            raw(log_sum),
            raw(seed),
            raw(offset),
            is_flash,
            out.as_mut_ptr(),
            message,
            capacity,
        )
    })?;
    // SAFETY: the call succeeded, so each is a new tensor that nothing else owns.
    Ok(out.map(|tensor| unsafe { Tensor::from_ptr(tensor) }))
}

/// tch's C_tensor is an at::Tensor.
fn raw(tensor: &Tensor) -> *const c_void {
    tensor.as_ptr() as *const c_void
}

/// Makes CUDA or HIP device `device` the one that libraries use where no other is named.
pub fn set_device(device: i8) -> Result<(), TchError> {
    // SAFETY: it takes a number, and C++ exceptions are caught inside.
    checked(|message, capacity| unsafe { tprimat_set_device(device, message, capacity) })
}

/// Highest number of bytes that PyTorch's allocator has had in use on CUDA or HIP device `device`.
pub fn peak_allocated(device: i8) -> Result<u64, TchError> {
    let mut bytes = 0;
    // SAFETY: `bytes` is valid for the write.
    checked(|message, capacity| unsafe {
        tprimat_peak_allocated(device, &raw mut bytes, message, capacity)
    })?;
    u64::try_from(bytes)
        .map_err(|_| TchError::Torch(format!("the allocator reports {bytes} bytes")))
}

/// `torch.__config__.show()` of the libtorch that is loaded.
pub fn build_settings() -> Result<String, TchError> {
    let mut text = [0; 16384];
    // SAFETY: the C++ side writes at most the capacity, with a terminating zero.
    checked(|message, capacity| unsafe {
        tprimat_build_settings(text.as_mut_ptr(), text.len(), message, capacity)
    })?;
    Ok(text_of(&text))
}

/// Readies torch's profiler, one step before it is started.
pub fn profile_prepare() -> Result<(), TchError> {
    // SAFETY: C++ exceptions are caught inside.
    checked(|message, capacity| unsafe { tprimat_profile_prepare(message, capacity) })
}

pub fn profile_start() -> Result<(), TchError> {
    // SAFETY: C++ exceptions are caught inside.
    checked(|message, capacity| unsafe { tprimat_profile_start(message, capacity) })
}

/// Step `number` of a started profile begins.
pub fn profile_step(number: i64) -> Result<(), TchError> {
    // SAFETY: it takes a number, and C++ exceptions are caught inside.
    checked(|message, capacity| unsafe { tprimat_profile_step(number, message, capacity) })
}

/// Ends a started profile, and writes it as Chrome's JSON.
pub fn profile_stop(path: &Path) -> Result<(), TchError> {
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| TchError::Torch("the trace's path has a zero byte".to_owned()))?;
    // SAFETY: `path` ends with a zero and outlives the call, and C++ exceptions are caught inside.
    checked(|message, capacity| unsafe { tprimat_profile_stop(path.as_ptr(), message, capacity) })
}

fn checked(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), TchError> {
    let mut message = [0; 4096];
    match call(message.as_mut_ptr(), message.len()) {
        0 => Ok(()),
        _ => Err(TchError::Torch(text_of(&message))),
    }
}

fn text_of(buffer: &[c_char]) -> String {
    // SAFETY: zeroed at the start and written with a terminating zero, so one is always there.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}
