//! Blobs by digest. A stored file begins with zstd's magic exactly if it is compressed.
//!
//! Whoever reads removes nothing. An object that was read to its end and is not what its digest says
//! is left as it is and counts as missing for the rest of the process, until another file is in its
//! place. One that cannot be read now may be sound, so that is an error.

mod streams;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
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

impl Cache {
    pub fn put(&self, bytes: &[u8], durability: Durability) -> Result<Digest> {
        let digest = Digest::of(bytes);
        // What is there and cannot be read is replaced: these bytes are known to be right.
        if !self.is_stored(&digest, durability).unwrap_or(false) {
            let mut bytes = bytes;
            self.put_stream((&mut bytes, &self.root), durability, 0o444)?;
        }
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
            .take(WORTH_COMPRESSING as u64)
            .read_to_end(&mut start)
            .map_err(unreadable())?;
        let temporary = self.temporary()?;
        // Raw bytes that look compressed must be compressed, or they would be unpacked when read.
        let is_raw = start.len() < WORTH_COMPRESSING && !start.starts_with(&ZSTD_MAGIC);
        let mut hasher = blake3::Hasher::new();
        if is_raw {
            hasher.update(&start);
            let written = temporary.as_file().write_all(&start);
            written.map_err(self.refused())?;
        } else {
            let encoder = zstd::Encoder::new(temporary.as_file(), LEVEL);
            let mut encoder = encoder.map_err(self.refused())?;
            let mut source = io::Cursor::new(start).chain(source);
            let mut chunk = vec![0; 1 << 16];
            loop {
                let read = match source.read(&mut chunk) {
                    Ok(0) => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    other => other.map_err(unreadable())?,
                };
                hasher.update(&chunk[..read]);
                encoder.write_all(&chunk[..read]).map_err(self.refused())?;
            }
            encoder.finish().map_err(self.refused())?;
        }
        let (digest, size) = (Digest(*hasher.finalize().as_bytes()), hasher.count());
        if !self.is_stored(&digest, durability).unwrap_or(false) {
            hide(&temporary, mode).map_err(self.refused())?;
            self.keep(temporary, &digest, durability)?;
        }
        Ok((digest, size))
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
        if !self.is_sound(digest)? {
            return Ok(false);
        }
        let Some(mut reader) = self.reader(digest)? else {
            return Ok(false);
        };
        files::write_all_of(path, &mut reader).map(|_| true)
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
