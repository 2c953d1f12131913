//! Blobs by digest. A stored file begins with zstd's magic exactly if it is compressed.
//!
//! Whoever reads removes nothing. An object that was read to its end and is not what its digest says
//! is left as it is and counts as missing for the rest of the process, until another file is in its
//! place. One that cannot be read now may be sound, so that is an error.

mod streams;

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::PoisonError,
};

use nix::sys::stat::{Mode, fchmod};
use tempfile::NamedTempFile;
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability, Stamp},
};

pub use streams::ObjectReader;
use streams::{Noted, Packer};
pub(super) use streams::{check_expected, decoded};

use super::{error::CacheError, store::Cache};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LEVEL: i32 = 3;
/// Less than one disk block gains nothing by compression, and stays readable with `cat`.
const WORTH_COMPRESSING: usize = 4096;
/// Objects of an attempt that are open while they are brought to disk.
const OPEN_AT_ONCE: usize = 64;
/// The largest object that is read into memory at once.
const MOST_WHOLE: u64 = 1 << 30;
/// Files up to this size are read whole.
const SMALL: u64 = 1 << 20;
/// JSON up to this size is parsed in one piece: what it becomes in memory is larger.
const SMALL_JSON: u64 = 64 << 20;

/// Whether JSON is for people as well: spaces and lines make half of a large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonLayout {
    Dense,
    Readable,
}

impl Cache {
    pub fn put(&self, bytes: &[u8], durability: Durability) -> Result<Digest> {
        self.store(bytes, durability, 0o444)
    }

    /// `mode`: who may read the file that the bytes are from.
    fn store(&self, bytes: &[u8], durability: Durability, mode: u32) -> Result<Digest> {
        let digest = Digest::of(bytes);
        // What is there and cannot be read is replaced: these bytes are known to be right.
        if self.is_stored(&digest, durability).unwrap_or(false) {
            return Ok(digest);
        }
        // Raw bytes that look compressed must be compressed, or they would be unpacked when read.
        let forced = bytes.starts_with(&ZSTD_MAGIC);
        let packed = match forced || bytes.len() >= WORTH_COMPRESSING {
            true => Some(zstd::bulk::compress(bytes, LEVEL).map_err(self.refused())?),
            false => None,
        };
        let stored = packed
            .as_deref()
            .filter(|packed| forced || packed.len() < bytes.len())
            .unwrap_or(bytes);
        let temporary = self.temporary()?;
        temporary
            .as_file()
            .write_all(stored)
            .map_err(self.refused())?;
        hide(&temporary, mode).map_err(self.refused())?;
        self.keep(temporary, &digest, durability)?;
        Ok(digest)
    }

    /// Stores a file's bytes as they are while it is read, in constant memory.
    pub fn put_file(&self, path: &Path, durability: Durability) -> Result<(Digest, u64)> {
        let (mut source, metadata) =
            files::open_regular(path).map_err(Error::io("cannot read", path))?;
        self.put_stream((&mut source, path), durability, metadata.mode())
    }

    /// Stores what a reader gives, in constant memory. The path names it in errors. `mode`: who may read
    /// the file that the bytes are from.
    pub(super) fn put_stream(
        &self,
        (source, path): (&mut impl Read, &Path),
        durability: Durability,
        mode: u32,
    ) -> Result<(Digest, u64)> {
        let unreadable = || Error::io("cannot read", path);
        let mut start = Vec::new();
        (&mut *source)
            .take(SMALL)
            .read_to_end(&mut start)
            .map_err(unreadable())?;
        if (start.len() as u64) < SMALL {
            return Ok((self.store(&start, durability, mode)?, start.len() as u64));
        }
        let forced = start.starts_with(&ZSTD_MAGIC);
        let mut source = io::Cursor::new(start).chain(source);
        let mut chunk = vec![0; 1 << 16];
        self.pack(durability, mode, forced, |packer| {
            loop {
                let read = match source.read(&mut chunk) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    other => other.map_err(unreadable())?,
                };
                if read == 0 {
                    return Ok(());
                }
                packer.write_all(&chunk[..read]).map_err(self.refused())?;
            }
        })
    }

    /// Stores JSON while it is written, in constant memory. It never begins as zstd's files do.
    pub fn put_json(
        &self,
        value: &impl serde::Serialize,
        layout: JsonLayout,
        durability: Durability,
    ) -> Result<(Digest, u64)> {
        self.pack(durability, 0o444, false, |packer| {
            let mut writer = BufWriter::with_capacity(1 << 16, packer);
            match layout {
                JsonLayout::Dense => serde_json::to_writer(&mut writer, value),
                JsonLayout::Readable => serde_json::to_writer_pretty(&mut writer, value),
            }
            .map_err(io::Error::from)
            .map_err(self.refused())?;
            writer
                .write_all(b"\n")
                .and_then(|()| writer.flush())
                .map_err(self.refused())
        })
    }

    /// `mode`: who may read the file that the bytes are from. `forced`: they look compressed, so
    /// they must be.
    fn pack(
        &self,
        durability: Durability,
        mode: u32,
        forced: bool,
        write: impl FnOnce(&mut Packer) -> Result<()>,
    ) -> Result<(Digest, u64)> {
        let mut temporary = self.temporary()?;
        let encoder = zstd::Encoder::new(temporary.as_file(), LEVEL).map_err(self.refused())?;
        let mut packer = Packer {
            hasher: blake3::Hasher::new(),
            encoder,
        };
        write(&mut packer)?;
        let Packer { hasher, encoder } = packer;
        encoder.finish().map_err(self.refused())?;
        let (digest, size) = (Digest(*hasher.finalize().as_bytes()), hasher.count());
        if self.is_stored(&digest, durability).unwrap_or(false) {
            return Ok((digest, size));
        }
        let packed = temporary
            .as_file()
            .stream_position()
            .map_err(self.refused())?;
        if packed >= size && !forced {
            temporary = self.unpacked(&temporary)?;
        }
        hide(&temporary, mode).map_err(self.refused())?;
        self.keep(temporary, &digest, durability)?;
        Ok((digest, size))
    }

    /// What was compressed in vain, raw: from our copy, for the source may have changed since.
    fn unpacked(&self, packed: &NamedTempFile) -> Result<NamedTempFile> {
        packed.as_file().rewind().map_err(self.refused())?;
        let raw = self.temporary()?;
        zstd::Decoder::new(packed.as_file())
            .and_then(|mut decoder| io::copy(&mut decoder, &mut raw.as_file()))
            .map_err(self.refused())?;
        Ok(raw)
    }

    fn keep(
        &self,
        temporary: NamedTempFile,
        digest: &Digest,
        durability: Durability,
    ) -> Result<()> {
        let path = self.object_path(digest);
        if durability == Durability::Synced {
            temporary.as_file().sync_all().map_err(self.refused())?;
        }
        let folder = path.parent().unwrap_or(&self.root);
        files::create_dir_all(folder)?;
        if path.is_dir() && fs::remove_dir(&path).is_err() {
            return Err(CacheError::FolderInTheWay(path).into());
        }
        self.persist(temporary, &path)?;
        match durability {
            Durability::Synced => self.sync_folders_of(&path),
            Durability::Plain => Ok(()),
        }
    }

    /// Brings an object's entry to disk: its folder, and the one above it.
    fn sync_folders_of(&self, path: &Path) -> Result<()> {
        let mut folders = path.ancestors().skip(1).take(2);
        folders.try_for_each(|folder| self.sync_folder(folder))
    }

    /// Brings objects to disk that were stored without. One that is gone meanwhile is an error: the
    /// caller still has what it was made of, and must not remove that.
    pub(super) fn sync_objects(&self, digests: &[&Digest]) -> Result<()> {
        for some in digests.chunks(OPEN_AT_ONCE) {
            let open = |digest: &&Digest| self.open_object(digest);
            let objects: Vec<File> = some.iter().map(open).collect::<Result<_>>()?;
            objects.iter().for_each(files::start_writing);
            for (digest, object) in some.iter().zip(objects) {
                let path = self.object_path(digest);
                if let Err(e) = object.sync_all() {
                    // A kernel says once that bytes did not reach the disk, and then serves them
                    // from memory as if they had. The next try must write them anew.
                    let _ = fs::remove_file(&path);
                    return Err(self.refused()(e));
                }
                self.sync_folders_of(&path)?;
            }
        }
        Ok(())
    }

    fn open_object(&self, digest: &Digest) -> Result<File> {
        match files::open_regular_no_link(&self.object_path(digest)) {
            Ok((object, _)) => Ok(object),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(CacheError::Gone {
                what: format!("the object {}", digest.short()),
                again: "the next build stores it again",
            }
            .into()),
            // An object that cannot be opened now (too many open files, say) may be sound.
            Err(e) => Err(self.refused()(e)),
        }
    }

    /// Is a sound copy there (and on disk, if asked for)?
    pub(super) fn is_stored(&self, digest: &Digest, durability: Durability) -> Result<bool> {
        let Some(mut reader) = self.reader(digest)? else {
            return Ok(false);
        };
        if !self.finished(&mut reader, |reader| io::copy(reader, &mut io::sink()))? {
            return Ok(false);
        }
        if durability == Durability::Synced {
            // Whoever stored it may not have needed to sync it.
            reader.file.sync_all().map_err(self.refused())?;
            self.sync_folders_of(&reader.path)?;
        }
        Ok(true)
    }

    /// Is an object there, with the bytes that its digest names? Reads all of it in constant memory.
    pub fn is_sound(&self, digest: &Digest) -> Result<bool> {
        self.is_stored(digest, Durability::Plain)
    }

    /// The bytes, checked; `None` if the object is missing or damaged.
    /// A few bytes of zstd may stand for more than the memory holds: more than `MOST_WHOLE` is an
    /// error.
    pub fn get(&self, digest: &Digest) -> Result<Option<Vec<u8>>> {
        self.get_at_most(digest, MOST_WHOLE)
    }

    /// The same for an object whose size is known.
    pub fn get_at_most(&self, digest: &Digest, most: u64) -> Result<Option<Vec<u8>>> {
        let Some(mut reader) = self.reader(digest)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let is_sound = self.finished(&mut reader, |reader| {
            (&mut *reader).take(most).read_to_end(&mut bytes)?;
            // At the end this says whether the bytes are those of the digest.
            reader.read(&mut [0])
        })?;
        if is_sound && bytes.len() as u64 == most && Digest::of(&bytes) != *digest {
            return Err(CacheError::ObjectTooLarge {
                digest: *digest,
                most_mib: most >> 20,
            }
            .into());
        }
        Ok(is_sound.then_some(bytes))
    }

    /// What an object's JSON says. The text of a large one is read as it streams, and is never in
    /// memory as a whole; most are small, and are read faster in one piece. `None` if the object is missing or damaged.
    pub fn get_json<T: serde::de::DeserializeOwned>(
        &self,
        digest: &Digest,
    ) -> Result<Option<serde_json::Result<T>>> {
        let Some(mut reader) = self.reader(digest)? else {
            return Ok(None);
        };
        let mut value = None;
        let is_sound = self.finished(&mut reader, |reader| {
            let mut begun = Vec::new();
            reader.by_ref().take(SMALL_JSON).read_to_end(&mut begun)?;
            if (begun.len() as u64) < SMALL_JSON {
                value = Some(serde_json::from_slice(&begun));
                // Its end was met, so the bytes were held against the digest.
                return Ok(0);
            }
            let mut whole = BufReader::with_capacity(1 << 16, begun.chain(&mut *reader));
            value = match serde_json::from_reader(&mut whole) {
                Err(e) if e.is_io() => return Err(e.into()),
                read => Some(read),
            };
            // At the end this says whether the bytes are those of the digest, whatever became of
            // the JSON.
            io::copy(&mut whole, &mut io::sink())
        })?;
        Ok(value.filter(|_| is_sound))
    }

    /// Hands the bytes over piece by piece, in constant memory. False if the object is missing, or
    /// turns out at its end to be damaged: then some of what was handed over is wrong.
    pub fn stream(
        &self,
        digest: &Digest,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let Some(mut reader) = self.reader(digest)? else {
            return Ok(false);
        };
        let mut chunk = vec![0; 1 << 16];
        let mut taken = Ok(());
        let is_sound = self.finished(&mut reader, |reader| {
            while taken.is_ok() {
                match reader.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(read) => taken = take(&chunk[..read]),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        })?;
        taken.map(|()| is_sound)
    }

    /// Writes an object's bytes to a file, in constant memory. False if the object is missing or
    /// damaged; then the file is as it was.
    pub fn copy_to(&self, digest: &Digest, path: &Path) -> Result<bool> {
        let Some(mut reader) = self.reader(digest)? else {
            return Ok(false);
        };
        let mut failed = None;
        let is_sound = self.finished(&mut reader, |reader| {
            let mut source = Noted {
                reader,
                error: None,
            };
            let written = files::write_all_of(path, &mut source);
            match (source.error, written) {
                (Some(error), _) => Err(error),
                (None, written) => {
                    failed = written.err();
                    Ok(())
                }
            }
        })?;
        failed.map_or(Ok(is_sound), Err)
    }

    /// Reads to the end; false if the object is damaged.
    fn finished<T>(
        &self,
        reader: &mut ObjectReader,
        read: impl FnOnce(&mut ObjectReader) -> io::Result<T>,
    ) -> Result<bool> {
        match read(reader) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                if let Ok(meta) = reader.file.metadata() {
                    let stamp = Stamp::of_metadata(&meta, files::unix_now());
                    let damaged = self.damaged.write();
                    let mut damaged = damaged.unwrap_or_else(PoisonError::into_inner);
                    damaged.insert(reader.digest, stamp);
                }
                Ok(false)
            }
            Err(e) => Err(CacheError::unreadable(&reader.path)(e).into()),
        }
    }

    /// A stream of the bytes. Damage is an error where it shows, at the latest at the end.
    pub fn reader(&self, digest: &Digest) -> Result<Option<ObjectReader>> {
        let path = self.object_path(digest);
        match files::open_regular_no_link(&path) {
            // A folder, a pipe or a link in its place is no object.
            Err(e)
                if e.kind() == io::ErrorKind::InvalidData
                    || e.raw_os_error() == Some(nix::libc::ELOOP) =>
            {
                Ok(None)
            }
            Ok((file, _)) => ObjectReader::new(file, *digest, path.clone())
                .map(Some)
                .map_err(|e| CacheError::unreadable(&path)(e).into()),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(CacheError::unreadable(&path)(e).into()),
        }
    }

    /// Is an object there, as far as this process knows? Reads nothing.
    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.is_file(digest) && !self.is_known_damaged(digest)
    }

    /// Is a file in an object's place? A link, a folder or a pipe is none.
    pub(super) fn is_file(&self, digest: &Digest) -> bool {
        let found = self.object_path(digest).symlink_metadata();
        found.is_ok_and(|found| found.is_file())
    }

    /// Is the file still the one that this process has found damaged?
    pub(super) fn is_known_damaged(&self, digest: &Digest) -> bool {
        let damaged = self.damaged.read().unwrap_or_else(PoisonError::into_inner);
        damaged.get(digest).is_some_and(|then| {
            Stamp::of(&self.object_path(digest)).is_ok_and(|now| then.is_same(&now))
        })
    }

    pub(super) fn object_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.to_string();
        let (folder, name) = hex.split_at(2);
        self.root.join("objects").join(folder).join(name)
    }
}

/// A file that only its owner can read is in the cache for no more eyes than that.
fn hide(temporary: &NamedTempFile, mode: u32) -> io::Result<()> {
    let now = Mode::from_bits_truncate(temporary.as_file().metadata()?.mode());
    let wanted = now & Mode::from_bits_truncate(mode | 0o400);
    if wanted != now {
        fchmod(temporary, wanted).map_err(io::Error::from)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
