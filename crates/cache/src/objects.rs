//! Blobs by digest. A stored file begins with zstd's magic exactly if it is compressed.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::sys::stat::{Mode, fchmod};
use tempfile::NamedTempFile;
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

use super::{error::CacheError, store::Cache};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LEVEL: i32 = 3;
/// Less than one disk block gains nothing by compression, and stays readable with `cat`.
const WORTH_COMPRESSING: usize = 4096;
/// The largest object that is read into memory at once.
const MOST_WHOLE: u64 = 1 << 30;
/// Files up to this size are read whole.
const SMALL: u64 = 1 << 20;

impl Cache {
    pub fn put(&self, bytes: &[u8], durability: Durability) -> Result<Digest> {
        self.store(bytes, durability, 0o444)
    }

    /// `mode`: who may read the file that the bytes are from.
    fn store(&self, bytes: &[u8], durability: Durability, mode: u32) -> Result<Digest> {
        let digest = Digest::of(bytes);
        if self.is_stored(&digest, durability)? {
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

    /// Takes over an object of another cache as it streams. False: the other one does not have it,
    /// or not whole.
    pub(super) fn copy_from(&self, other: &Self, digest: &Digest) -> Result<bool> {
        let Some(mut reader) = other.reader(digest)? else {
            return Ok(false);
        };
        let path = reader.path.clone();
        let mut stored = Ok(());
        let is_sound = other.finished(&mut reader, |reader| {
            let mut source = Noted {
                reader,
                error: None,
            };
            let packed = self
                .put_stream((&mut source, &path), Durability::Synced, 0o444)
                .map(drop);
            match source.error {
                Some(error) => Err(error),
                None => {
                    stored = packed;
                    Ok(())
                }
            }
        })?;
        stored.map(|()| is_sound)
    }

    /// Stores a stranger's bytes if they are those of the digest, and of this length.
    pub(super) fn put_expected(
        &self,
        source: &mut impl Read,
        digest: &Digest,
        size: u64,
    ) -> Result<()> {
        let mut checked = Checked::new(source, digest, size);
        let named = PathBuf::from(digest.to_string());
        self.put_stream((&mut checked, &named), Durability::Plain, 0o444)
            .map(drop)
    }

    /// `mode`: who may read the file that the bytes are from.
    fn put_stream(
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

    /// Stores what `write` writes while it writes, in constant memory: JSON, which never begins as
    /// zstd's files do.
    pub fn put_json(
        &self,
        value: &impl serde::Serialize,
        durability: Durability,
    ) -> Result<(Digest, u64)> {
        self.pack(durability, 0o444, false, |packer| {
            let mut writer = BufWriter::with_capacity(1 << 16, packer);
            serde_json::to_writer_pretty(&mut writer, value)
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
        if self.is_stored(&digest, durability)? {
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
        if !folder.is_dir() {
            files::create_dir_all(folder)?;
        }
        if path.is_dir() && fs::remove_dir(&path).is_err() {
            return Err(CacheError::FolderInTheWay(path).into());
        }
        self.persist(temporary, &path)?;
        match durability {
            Durability::Synced => self.sync_folders_of(&path),
            Durability::Plain => Ok(()),
        }
    }

    fn sync_folders_of(&self, path: &Path) -> Result<()> {
        // The object's folder, and the one above it, which may have just got it.
        for folder in path.ancestors().skip(1).take(2) {
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(self.refused())?;
        }
        Ok(())
    }

    /// Is a sound copy there (and on disk, if asked for)? An unsound one is dropped.
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

    /// The bytes, checked; `None` if the object is missing or was damaged, and then it is dropped.
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
            let path = self.object_path(digest);
            return Err(CacheError::ObjectTooLarge {
                digest: *digest,
                most_mib: most >> 20,
                path,
            }
            .into());
        }
        Ok(is_sound.then_some(bytes))
    }

    /// What an object's JSON says, read as it streams, so that the text is never in memory as a
    /// whole. `None` if the object is missing or was damaged, and then it is dropped.
    pub fn get_json<T: serde::de::DeserializeOwned>(
        &self,
        digest: &Digest,
    ) -> Result<Option<serde_json::Result<T>>> {
        let Some(mut reader) = self.reader(digest)? else {
            return Ok(None);
        };
        let mut value = None;
        let is_sound = self.finished(&mut reader, |reader| {
            let mut buffered = BufReader::with_capacity(1 << 16, &mut *reader);
            value = Some(serde_json::from_reader(&mut buffered));
            // At the end this says whether the bytes are those of the digest, whatever became of
            // the JSON.
            io::copy(&mut buffered, &mut io::sink())
        })?;
        Ok(value.filter(|_| is_sound))
    }

    /// Writes an object's bytes to a file, in constant memory. False if the object is missing or
    /// was damaged; then it is dropped, and the file is as it was.
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

    /// Reads to the end; false if the object was damaged.
    fn finished<T>(
        &self,
        reader: &mut ObjectReader,
        read: impl FnOnce(&mut ObjectReader) -> io::Result<T>,
    ) -> Result<bool> {
        match read(reader) {
            Ok(_) => Ok(true),
            // The disk's own errors have a number; those of decoding and of the digest have none.
            Err(e) if e.raw_os_error().is_some() => Err(Error::io("cannot read", &reader.path)(e)),
            Err(_) => {
                reader.drop_object();
                Ok(false)
            }
        }
    }

    /// A stream of the bytes. Damage is an error where it shows, at the latest at the end.
    pub fn reader(&self, digest: &Digest) -> Result<Option<ObjectReader>> {
        let path = self.object_path(digest);
        match files::open_regular_no_link(&path) {
            // A folder in its place is no object.
            Err(_) if path.is_dir() => Ok(None),
            Ok((file, _)) => ObjectReader::new(file, *digest, path.clone())
                .map(Some)
                .map_err(Error::io("cannot read", path)),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(Error::io("cannot read", path)(e)),
        }
    }

    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.object_path(digest).is_file()
    }

    pub(super) fn object_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.to_string();
        let (folder, name) = hex.split_at(2);
        self.root.join("objects").join(folder).join(name)
    }
}

/// A reader that keeps its own error, so that it is told apart from those of the file that is
/// written.
struct Noted<'a> {
    reader: &'a mut ObjectReader,
    error: Option<io::Error>,
}

impl Read for Noted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer).map_err(|error| {
            let told = io::Error::new(error.kind(), error.to_string());
            self.error = Some(error);
            told
        })
    }
}

/// Fails at its end unless what was read is what the digest says.
struct Checked<R> {
    source: R,
    hasher: blake3::Hasher,
    digest: Digest,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        if read == 0 && !buffer.is_empty() && self.hasher.finalize().as_bytes() != &self.digest.0 {
            let message = "is not what its digest says";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(read)
    }
}

impl<R: Read> Checked<io::Take<R>> {
    fn new(source: R, digest: &Digest, size: u64) -> Self {
        Self {
            source: source.take(size.saturating_add(1)),
            hasher: blake3::Hasher::new(),
            digest: *digest,
        }
    }
}

/// Reads bytes to their end, and fails unless they are what the digest says. Nothing is stored.
pub(super) fn check_expected(source: impl Read, digest: &Digest, size: u64) -> Result<()> {
    io::copy(&mut Checked::new(source, digest, size), &mut io::sink())
        .map(drop)
        .map_err(Error::io("cannot read", digest.to_string()))
}

/// Takes raw bytes and writes them compressed.
struct Packer<'a> {
    hasher: blake3::Hasher,
    encoder: zstd::Encoder<'static, &'a File>,
}

impl Write for Packer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.encoder.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()
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

/// Reads an object's raw bytes, and fails at the end if they are not what its digest says.
pub struct ObjectReader {
    content: Box<dyn Read + Send>,
    hasher: blake3::Hasher,
    digest: Digest,
    file: File,
    path: PathBuf,
}

impl ObjectReader {
    fn new(file: File, digest: Digest, path: PathBuf) -> io::Result<Self> {
        let mut stored = BufReader::with_capacity(1 << 16, file.try_clone()?);
        let content: Box<dyn Read + Send> = match stored.fill_buf()?.starts_with(&ZSTD_MAGIC) {
            true => Box::new(zstd::Decoder::with_buffer(stored)?),
            false => Box::new(stored),
        };
        Ok(Self {
            content,
            hasher: blake3::Hasher::new(),
            digest,
            file,
            path,
        })
    }

    /// Removes the file that was read, but not a sound one that took its place meanwhile.
    fn drop_object(&self) {
        let inode = |meta: io::Result<fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
        if inode(self.file.metadata()) == inode(fs::metadata(&self.path)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        if read == 0 && !buffer.is_empty() && self.hasher.finalize().as_bytes() != &self.digest.0 {
            let message = format!("object {} is damaged", self.digest.short());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache")).unwrap();
        (folder, cache)
    }

    /// Bytes that zstd cannot shrink.
    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    fn stored_size(cache: &Cache, digest: &Digest) -> u64 {
        fs::metadata(cache.object_path(digest)).unwrap().len()
    }

    #[test]
    fn an_object_that_is_larger_than_memory_is_an_error_that_says_so() {
        let (_folder, cache) = cache();
        let bytes = vec![7; 3 << 20];
        let digest = cache.put(&bytes, Durability::Plain).unwrap();
        assert!(stored_size(&cache, &digest) < 1 << 12, "a bomb");
        let error = cache.get_at_most(&digest, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("larger than 1 MiB"), "{error}");
        assert!(cache.has(&digest), "it may be a log that somebody needs");
        assert_eq!(
            cache.get_at_most(&digest, 3 << 20).unwrap().as_deref(),
            Some(&bytes[..])
        );
        assert_eq!(
            cache.get_at_most(&digest, 4 << 20).unwrap().as_deref(),
            Some(&bytes[..])
        );
    }

    #[test]
    fn json_streams_in_and_out_as_the_same_bytes() {
        let (_folder, cache) = cache();
        let value: Vec<String> = (0..40_000).map(|i| format!("cell {i}")).collect();
        let (digest, size) = cache.put_json(&value, Durability::Plain).unwrap();
        let mut whole = serde_json::to_vec_pretty(&value).unwrap();
        whole.push(b'\n');
        assert_eq!((digest, size), (Digest::of(&whole), whole.len() as u64));
        assert_eq!(
            cache
                .get_json::<Vec<String>>(&digest)
                .unwrap()
                .unwrap()
                .unwrap(),
            value
        );
        assert!(
            cache
                .get_json::<Vec<u64>>(&digest)
                .unwrap()
                .unwrap()
                .is_err()
                && cache.has(&digest),
            "other JSON is kept"
        );
        // Damage that leaves valid JSON behind shows at the end, and the object goes.
        let path = cache.object_path(&digest);
        let changed = String::from_utf8(whole)
            .unwrap()
            .replace("cell 7", "cell 8");
        fs::remove_file(&path).unwrap();
        files::write_atomically(&path, changed.as_bytes(), Durability::Plain).unwrap();
        assert!(cache.get_json::<Vec<String>>(&digest).unwrap().is_none() && !cache.has(&digest));
    }

    #[test]
    fn a_private_file_is_stored_for_its_owner_alone() {
        let (folder, cache) = cache();
        for (mode, large) in [(0o600, false), (0o600, true), (0o644, false)] {
            let path = folder.path().join(format!("{mode}-{large}"));
            let bytes = noise(if large { 3 << 20 } else { 100 + mode as usize });
            files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
            fchmod(File::open(&path).unwrap(), Mode::from_bits_truncate(mode)).unwrap();
            let (digest, _) = cache.put_file(&path, Durability::Plain).unwrap();
            let stored = fs::metadata(cache.object_path(&digest)).unwrap().mode() & 0o777;
            assert_eq!(stored & !mode, 0, "{stored:o} of {mode:o}");
            assert_eq!(stored & 0o400, 0o400);
        }
    }

    #[test]
    fn bytes_and_files_come_back() {
        let (folder, cache) = cache();
        let magic = [&ZSTD_MAGIC[..], &noise(100)].concat();
        let large_magic = [&ZSTD_MAGIC[..], &noise(3 << 20)].concat();
        let log = "step 1 loss 2.0\n".repeat(200_000).into_bytes();
        for bytes in [
            vec![],
            b"small".to_vec(),
            noise(5000),
            noise(SMALL as usize),
            noise(3 << 20),
            magic,
            large_magic,
            log,
        ] {
            let path = folder.path().join("file");
            files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
            let (digest, size) = cache.put_file(&path, Durability::Synced).unwrap();
            assert_eq!((digest, size), (Digest::of(&bytes), bytes.len() as u64));
            let by_file = fs::read(cache.object_path(&digest)).unwrap();
            assert!(cache.has(&digest));
            assert_eq!(cache.get(&digest).unwrap().unwrap(), bytes);
            fs::remove_file(cache.object_path(&digest)).unwrap();
            assert_eq!(
                (cache.has(&digest), cache.get(&digest).unwrap()),
                (false, None)
            );

            assert_eq!(cache.put(&bytes, Durability::Plain).unwrap(), digest);
            assert_eq!(cache.get(&digest).unwrap().unwrap(), bytes);
            assert_eq!(
                by_file.starts_with(&ZSTD_MAGIC),
                fs::read(cache.object_path(&digest))
                    .unwrap()
                    .starts_with(&ZSTD_MAGIC)
            );
        }
        assert_eq!(
            fs::read_dir(cache.root.join("tmp")).unwrap().count(),
            0,
            "nothing temporary is left"
        );
    }

    #[test]
    fn compresses_what_shrinks_and_nothing_else() {
        let (_folder, cache) = cache();
        let log = b"loss 2.0\n".repeat(10_000);
        assert!(
            stored_size(&cache, &cache.put(&log, Durability::Plain).unwrap())
                < log.len() as u64 / 10
        );
        assert_eq!(
            stored_size(&cache, &cache.put(&noise(9000), Durability::Plain).unwrap()),
            9000
        );
    }

    #[test]
    fn a_folder_in_the_place_of_an_object_is_no_object() {
        let (folder, cache) = cache();
        let digest = Digest::of("object");
        let path = cache.object_path(&digest);
        files::create_dir_all(&path).unwrap();
        assert_eq!(
            (cache.has(&digest), cache.get(&digest).unwrap()),
            (false, None)
        );
        assert_eq!(cache.put(b"object", Durability::Plain).unwrap(), digest);
        assert!(cache.has(&digest));
        // One with something in it is somebody's.
        fs::remove_file(&path).unwrap();
        files::create_dir_all(&path.join("thesis")).unwrap();
        assert!(
            cache
                .put(b"object", Durability::Plain)
                .unwrap_err()
                .to_string()
                .contains("is a folder where the cache")
        );
        files::create_dir_all(&folder.path().join("cache/segments/0009-x.seg")).unwrap();
        Cache::open(&folder.path().join("cache"))
            .unwrap()
            .record_preimage("text")
            .unwrap();
    }

    #[test]
    fn a_stored_object_is_not_written_again() {
        let (_folder, cache) = cache();
        let digest = cache.put(b"once", Durability::Plain).unwrap();
        let inode = || fs::metadata(cache.object_path(&digest)).unwrap().ino();
        let before = inode();
        cache.put(b"once", Durability::Synced).unwrap();
        assert_eq!(inode(), before);
    }

    #[test]
    fn a_damaged_object_is_dropped_and_can_be_stored_again() {
        let (_folder, cache) = cache();
        for bytes in [b"plain".to_vec(), b"packed ".repeat(5000)] {
            let digest = cache.put(&bytes, Durability::Plain).unwrap();
            let damage = |change: fn(&mut Vec<u8>)| {
                let path = cache.object_path(&digest);
                let mut stored = fs::read(&path).unwrap();
                change(&mut stored);
                fs::remove_file(&path).unwrap();
                files::write_atomically(&path, &stored, Durability::Plain).unwrap();
            };
            let changes: [fn(&mut Vec<u8>); 4] = [
                |b| b.truncate(b.len() - 1),
                |b| b.push(0),
                |b| *b.last_mut().unwrap() ^= 1,
                Vec::clear,
            ];
            for change in changes {
                damage(change);
                let mut reader = cache.reader(&digest).unwrap().unwrap();
                let error = io::copy(&mut reader, &mut io::sink()).unwrap_err();
                assert_eq!(error.raw_os_error(), None, "{error}");
                assert!(cache.has(&digest), "a reader changes nothing");
                assert_eq!(cache.get(&digest).unwrap(), None);
                assert!(!cache.has(&digest));
                cache.put(&bytes, Durability::Plain).unwrap();
                damage(change);
                cache.put(&bytes, Durability::Plain).unwrap();
                assert_eq!(
                    cache.get(&digest).unwrap().as_deref(),
                    Some(&bytes[..]),
                    "a put repairs"
                );
            }
        }
    }
}
