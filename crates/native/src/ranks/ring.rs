//! Ranks connected in a ring by sockets: each one sends to the next and receives from the one
//! before.
//!
//! The sockets are pairs that `launch` made before it started the ranks, so there is no port and no
//! file that another process could take or find. A rank that ends closes its sockets, which its
//! neighbours see at once.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    slice, thread,
};

use tch::{Device, Kind, TchError, Tensor};

use super::{Group, Pending};

pub struct Ring {
    rank: usize,
    size: usize,
    next: UnixStream,
    previous: UnixStream,
}

impl Ring {
    pub fn new(rank: usize, size: usize, next: UnixStream, previous: UnixStream) -> Self {
        Self {
            rank,
            size,
            next,
            previous,
        }
    }

    /// Rings for ranks that are threads of one process.
    #[cfg(test)]
    pub fn connected(size: usize) -> Vec<Self> {
        let (mut nexts, mut previous): (Vec<_>, Vec<_>) =
            (0..size).map(|_| UnixStream::pair().unwrap()).unzip();
        previous.rotate_right(1);
        let ends = nexts.drain(..).zip(previous);
        ends.enumerate()
            .map(|(rank, (next, previous))| Self::new(rank, size, next, previous))
            .collect()
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Every rank gets the bytes of rank 0.
    pub fn broadcast(&self, bytes: &mut [u8]) -> io::Result<()> {
        if self.rank > 0 {
            (&self.previous).read_exact(bytes)?;
        }
        if self.rank + 1 < self.size {
            (&self.next).write_all(bytes)
        } else {
            Ok(())
        }
    }

    /// Sends and receives at the same time: what both sides send may be more than a socket holds.
    fn exchange(&self, send: &[u8], receive: &mut [u8]) -> io::Result<()> {
        thread::scope(|scope| {
            let sending = scope.spawn(|| (&self.next).write_all(send));
            let received = (&self.previous).read_exact(receive);
            let sent = sending
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the sending thread panicked")));
            received.and(sent)
        })
    }

    /// The number of the part that is `steps` before this rank's in the ring.
    fn before(&self, steps: usize) -> usize {
        (self.rank + self.size * 2 - steps) % self.size
    }
}

/// Contiguous parts of a flat tensor, one for each rank.
fn parts(whole: &Tensor, part: &Tensor, ranks: usize) -> Result<Vec<Tensor>, TchError> {
    let length = part.numel() as i64;
    if whole.numel() != part.numel() * ranks || whole.kind() != part.kind() {
        let sizes = (whole.size(), whole.kind(), part.size(), part.kind());
        return Err(TchError::Shape(format!(
            "{ranks} ranks cannot share {sizes:?}"
        )));
    }
    (0..ranks as i64)
        .map(|n| whole.f_narrow(0, n * length, length))
        .collect()
}

/// The memory of a contiguous tensor of this host.
#[expect(
    clippy::mut_from_ref,
    reason = "a tensor is a handle: its memory is shared by all handles, and mutable by each"
)]
fn bytes(tensor: &Tensor) -> Result<&mut [u8], TchError> {
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return Err(TchError::Shape(
            "the ring carries contiguous tensors of this host only".to_owned(),
        ));
    }
    let length = tensor.numel() * tensor.kind().elt_size_in_bytes();
    // SAFETY: a contiguous tensor of the CPU owns this many bytes while `tensor` lives, nothing
    // else runs on it (collectives are called between operations, which are synchronous on the
    // CPU), and any bytes are valid numbers.
    Ok(unsafe { slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), length) })
}

impl Group for Ring {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn allocate(&self, length: i64, kind: Kind, device: Device) -> Result<Tensor, TchError> {
        Tensor::f_zeros([length], (kind, device))
    }

    fn allocated_bytes(&self) -> u64 {
        0
    }

    fn all_gather(&self, part: &Tensor, whole: &Tensor) -> Result<Pending, TchError> {
        let parts = parts(whole, part, self.size)?;
        tch::no_grad(|| parts[self.rank].shallow_clone().f_copy_(part))?;
        for step in 0..self.size - 1 {
            self.exchange(
                bytes(&parts[self.before(step)])?,
                bytes(&parts[self.before(step + 1)])?,
            )?;
        }
        Ok(Pending(0))
    }

    /// Everything goes all the way round: plain, and only ever small.
    fn all_to_all(&self, sent: &Tensor, received: &Tensor) -> Result<Pending, TchError> {
        let part = |whole: &Tensor, n: usize| {
            let length = whole.numel() as i64 / self.size as i64;
            whole.f_narrow(0, n as i64 * length, length)
        };
        let mut passing = sent.shallow_clone();
        for step in 0..self.size {
            let own = part(&passing, self.rank)?;
            tch::no_grad(|| part(received, self.before(step))?.f_copy_(&own))?;
            if step + 1 < self.size {
                let next = passing.f_empty_like()?;
                self.exchange(bytes(&passing)?, bytes(&next)?)?;
                passing = next;
            }
        }
        Ok(Pending(0))
    }

    /// The sum goes along the ranks once and the result once more, so that all of them have the
    /// same bits.
    fn all_reduce(&self, tensor: &Tensor) -> Result<Pending, TchError> {
        let flat = tensor.f_view([-1])?;
        if self.rank > 0 {
            let received = flat.f_empty_like()?;
            (&self.previous).read_exact(bytes(&received)?)?;
            let _ = tch::no_grad(|| flat.shallow_clone().f_add_(&received))?;
        }
        (&self.next).write_all(bytes(&flat)?)?;
        // What comes in now is, at rank 0, the sum of all.
        (&self.previous).read_exact(bytes(&flat)?)?;
        if self.rank + 1 < self.size {
            (&self.next).write_all(bytes(&flat)?)?;
        }
        Ok(Pending(0))
    }

    /// Everything has ended already.
    fn wait(&self, _: Pending) -> Result<(), TchError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `rank` on every rank of a ring and returns what each gives, in order.
    fn on_all<T: Send>(size: usize, rank: impl Fn(&Ring) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let rank = &rank;
            let threads: Vec<_> = Ring::connected(size)
                .into_iter()
                .map(|ring| scope.spawn(move || rank(&ring)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    fn values(tensor: &Tensor) -> Vec<f64> {
        Vec::try_from(tensor.to_kind(Kind::Double)).unwrap()
    }

    #[test]
    fn collectives_do_what_they_say_for_any_number_of_ranks() {
        // More than a socket holds, and an odd length for the one that is not shared out.
        const PART: i64 = 70_001;
        for size in 2..=5 {
            for kind in [Kind::Float, Kind::BFloat16] {
                on_all(size, |ring| {
                    let ranks = size as i64;
                    let own = |rank: i64, length| {
                        (Tensor::arange(length, (Kind::Float, Device::Cpu)).remainder(7.0)
                            + rank as f64)
                            .to_kind(kind)
                    };
                    let rank = ring.rank as i64;
                    let part = own(rank, PART);
                    let whole = Tensor::zeros([PART * ranks], (kind, Device::Cpu));
                    ring.wait(ring.all_gather(&part, &whole).unwrap()).unwrap();
                    let expected =
                        Tensor::cat(&(0..ranks).map(|r| own(r, PART)).collect::<Vec<_>>(), 0);
                    assert!(whole.equal(&expected));

                    let mine = own(rank, PART * ranks);
                    let before = mine.copy();
                    let received = mine.zeros_like();
                    ring.wait(ring.all_to_all(&mine, &received).unwrap())
                        .unwrap();
                    assert!(mine.equal(&before), "what is sent stays as it was");
                    let from_all =
                        (0..ranks).map(|r| own(r, PART * ranks).narrow(0, rank * PART, PART));
                    assert!(received.equal(&Tensor::cat(&from_all.collect::<Vec<_>>(), 0)));

                    let sum =
                        (0..ranks).fold(mine.zeros_like(), |sum, r| sum + own(r, PART * ranks));
                    ring.wait(ring.all_reduce(&mine).unwrap()).unwrap();
                    assert!(mine.equal(&sum));
                });
            }
        }
    }

    #[test]
    fn every_rank_gets_the_same_sum() {
        let sums = on_all(3, |ring| {
            let tensor = Tensor::from_slice(&[0.1_f32, 1e8, -3.3]) / (ring.rank as f64 + 1.7);
            ring.wait(ring.all_reduce(&tensor).unwrap()).unwrap();
            values(&tensor)
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }

    #[test]
    fn bytes_of_the_first_rank_reach_all() {
        let got = on_all(4, |ring| {
            let mut bytes = [ring.rank as u8; 128];
            ring.broadcast(&mut bytes).unwrap();
            bytes
        });
        assert!(got.iter().all(|bytes| *bytes == [0; 128]));
    }

    #[test]
    fn a_rank_that_ends_is_an_error_of_its_neighbours() {
        let results = on_all(3, |ring| match ring.rank {
            1 => Ok(()),
            _ => ring.all_reduce(&Tensor::from(1.0_f32)).map(drop),
        });
        // The ring of rank 1 is dropped when its thread ends.
        assert!(
            matches!(results[0], Err(TchError::Io(_)))
                && matches!(results[2], Err(TchError::Io(_)))
        );
    }

    #[test]
    fn parts_of_other_sizes_are_refused() {
        let whole = Tensor::zeros([10], (Kind::Float, Device::Cpu));
        assert!(parts(&whole, &Tensor::zeros([4], (Kind::Float, Device::Cpu)), 2).is_err());
        assert!(
            parts(
                &whole,
                &Tensor::zeros([5], (Kind::BFloat16, Device::Cpu)),
                2
            )
            .is_err()
        );
    }
}
