//! Several processes that train one model, one for each device: how they are started and what they
//! exchange.
//!
//! `launch` starts them; they are connected by a `ring` of sockets. On CPUs tensors travel over
//! that ring. On NVIDIA GPUs it carries only the identifier with which `nccl` connects the devices.

pub mod agree;
pub mod launch;
mod nccl;
mod ring;

use std::rc::Rc;

use tch::{Device, Kind, TchError, Tensor};

pub use self::ring::Ring;

/// A collective that was queued. What it writes may be read only after [`Group::wait`].
#[derive(Debug)]
#[must_use = "its result may be read only after `wait`"]
pub struct Pending(usize);

/// The processes of a run. Every rank must call the same collectives in the same order, with
/// tensors of the same sizes.
///
/// A collective begins once everything is done that was queued for computation before it, and runs
/// beside what is queued later. Sums are made in the precision of the tensors.
pub trait Group {
    /// This process's number, from 0.
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    /// Zeros in memory that other ranks can reach, so that no multiprocessor has to carry what is
    /// exchanged there. Every rank must ask for the same. It stays until the process ends.
    fn allocate(&self, length: i64, kind: Kind, device: Device) -> Result<Tensor, TchError>;

    /// Bytes that [`Self::allocate`] has taken beside PyTorch's allocator.
    fn allocated_bytes(&self) -> u64;

    /// Writes the ranks' parts one after another to `whole`, which has `size()` times as many
    /// elements as `part`.
    fn all_gather(&self, part: &Tensor, whole: &Tensor) -> Result<Pending, TchError>;

    /// Cuts `sent` into `size()` equal parts and sends the n-th to rank n; `received` gets one part
    /// from each rank, in rank order.
    fn all_to_all(&self, sent: &Tensor, received: &Tensor) -> Result<Pending, TchError>;

    /// Puts the sum over all ranks into `tensor`; every rank gets the same bits.
    fn all_reduce(&self, tensor: &Tensor) -> Result<Pending, TchError>;

    /// Computation that is queued from now on begins after the collective has ended.
    fn wait(&self, pending: Pending) -> Result<(), TchError>;
}

/// The group in which tensors of `device` are exchanged.
pub fn group(ring: Ring, device: Device) -> Result<Rc<dyn Group>, TchError> {
    match device {
        Device::Cuda(_) => Ok(Rc::new(nccl::Nccl::open(&ring)?)),
        _ => Ok(Rc::new(ring)),
    }
}
