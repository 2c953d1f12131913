//! Streams of an object's bytes, which check what they carry.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::PathBuf,
};

use tprimat_base::digest::Digest;

use zstd::zstd_safe::{get_error_name, zstd_sys::ZSTD_ErrorCode};

use super::{super::entry::Output, ZSTD_MAGIC};

/// Reads raw bytes to their end, and fails unless they are those of the file. Nothing is stored.
pub(crate) fn check_expected(source: impl Read, output: &Output) -> io::Result<()> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut source.take(output.size.saturating_add(1)), &mut hasher)?;
    match hasher.count() == output.size && hasher.finalize().as_bytes() == &output.digest.0 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "is not what its digest says",
        )),
    }
}

/// The raw bytes of a stored file.
pub(crate) fn decoded<'a>(
    mut stored: impl BufRead + Send + 'a,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    Ok(match stored.fill_buf()?.starts_with(&ZSTD_MAGIC) {
        true => {
            // Without a dictionary it can only lack memory.
            let decoder = zstd::Decoder::with_buffer(stored);
            Box::new(decoder.map_err(|_| io::ErrorKind::OutOfMemory)?)
        }
        false => Box::new(stored),
    })
}

/// Reads an object's raw bytes, and fails at the end if they are not what its digest says. An error
/// of the kind `InvalidData` means that the file is damaged. After any other one nothing is known of
/// the file: it could not be read now.
pub struct ObjectReader {
    content: Box<dyn Read + Send>,
    hasher: blake3::Hasher,
    pub(super) digest: Digest,
    pub(super) file: File,
    pub(super) path: PathBuf,
}

impl ObjectReader {
    pub(crate) fn new(file: File, digest: Digest, path: PathBuf) -> io::Result<Self> {
        let stored = BufReader::with_capacity(1 << 16, file.try_clone()?);
        let content = decoded(stored)?;
        Ok(Self {
            content,
            hasher: blake3::Hasher::new(),
            digest,
            file,
            path,
        })
    }

    fn damaged(&self) -> io::Error {
        let message = format!("object {} is damaged", self.digest.short());
        io::Error::new(io::ErrorKind::InvalidData, message)
    }

    /// The error of a read, by its cause. The disk's own errors have a number. All others are zstd's,
    /// which come here as their names alone: one of them says that there was no memory to decode with,
    /// the rest that the bytes cannot be decoded.
    fn by_cause(&self, error: io::Error) -> io::Error {
        let no_memory = ZSTD_ErrorCode::ZSTD_error_memory_allocation as usize;
        if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::OutOfMemory {
            error
        } else if error.to_string() == get_error_name(no_memory.wrapping_neg()) {
            io::ErrorKind::OutOfMemory.into()
        } else {
            self.damaged()
        }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer).map_err(|e| self.by_cause(e))?;
        self.hasher.update(&buffer[..read]);
        if read == 0 && !buffer.is_empty() && self.hasher.finalize().as_bytes() != &self.digest.0 {
            return Err(self.damaged());
        }
        Ok(read)
    }
}
