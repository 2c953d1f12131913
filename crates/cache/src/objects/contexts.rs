//! zstd's contexts, kept for the next object. Each takes its memory from the kernel when it is made,
//! which takes longer than to pack or unpack a small object.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use zstd::{
    bulk::Compressor,
    stream::raw::{Decoder, InBuffer, Operation, OutBuffer},
    zstd_safe::WriteBuf,
};

use super::LEVEL;

/// How many are kept. A large object leaves some MiB in its context.
const MOST_KEPT: usize = 16;

static PACKERS: Kept<Compressor<'static>> = Kept(Mutex::new(Vec::new()));
static UNPACKERS: Kept<Decoder<'static>> = Kept(Mutex::new(Vec::new()));

/// Contexts that nobody uses now.
struct Kept<T>(Mutex<Vec<T>>);

impl<T> Kept<T> {
    fn take(&self) -> Option<T> {
        self.lock().pop()
    }

    fn keep(&self, context: T) {
        let mut kept = self.lock();
        if kept.len() < MOST_KEPT {
            kept.push(context);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes compressed in one piece.
pub(super) fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let kept = PACKERS.take().map(Ok);
    let mut packer = kept.unwrap_or_else(|| Compressor::new(LEVEL))?;
    let packed = packer.compress(bytes);
    PACKERS.keep(packer);
    packed
}

/// Decompresses, and is kept for the next object when it is dropped.
pub(super) struct Unpacker(Option<Decoder<'static>>);

impl Unpacker {
    pub(super) fn new() -> io::Result<Self> {
        let decoder = match UNPACKERS.take() {
            Some(mut decoder) => {
                // The last object may have been damaged, or not read to its end.
                decoder.reinit()?;
                decoder
            }
            // Without a dictionary it can only lack memory.
            None => Decoder::new().map_err(|_| io::ErrorKind::OutOfMemory)?,
        };
        Ok(Self(Some(decoder)))
    }

    fn decoder(&mut self) -> io::Result<&mut Decoder<'static>> {
        self.0.as_mut().ok_or_else(|| io::Error::other("dropped"))
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        if let Some(decoder) = self.0.take() {
            UNPACKERS.keep(decoder);
        }
    }
}

impl Operation for Unpacker {
    fn run<C: WriteBuf + ?Sized>(
        &mut self,
        input: &mut InBuffer<'_>,
        output: &mut OutBuffer<'_, C>,
    ) -> io::Result<usize> {
        self.decoder()?.run(input, output)
    }

    fn flush<C: WriteBuf + ?Sized>(&mut self, output: &mut OutBuffer<'_, C>) -> io::Result<usize> {
        self.decoder()?.flush(output)
    }

    fn reinit(&mut self) -> io::Result<()> {
        self.decoder()?.reinit()
    }

    fn finish<C: WriteBuf + ?Sized>(
        &mut self,
        output: &mut OutBuffer<'_, C>,
        finished_frame: bool,
    ) -> io::Result<usize> {
        self.decoder()?.finish(output, finished_frame)
    }
}
