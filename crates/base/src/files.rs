//! The one module that writes files: whole or not at all. What people name is read through
//! `regular`.

mod owner;
mod read_set;
mod regular;

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{
    libc,
    sys::stat::{Mode, fchmod},
    unistd::geteuid,
};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

pub use self::owner::{
    TRUSTED_VARIABLE, controlled_by, is_own, is_own_entry, require_inside, require_own,
};
pub use self::read_set::{Entry, EntryKind, Found, Known, ReadSet, is_code, is_leftover};
pub use self::regular::{
    MOST_BYTES, MOST_TEXT, open_regular, open_regular_no_link, read_bounded, read_open, what_else,
};
use crate::error::{Error, Result};

/// Should a write survive a power cut? Measurements must; what can be recomputed need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Synced,
    Plain,
}

/// Begins the name of a file that is being written.
pub const TEMPORARY: &str = ".tmp-";

/// Replaces `path` by `bytes`: temporary in the same folder, (sync,) rename. Creates the folder.
pub fn write_atomically(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    write_with(path, durability, |temporary| temporary.write_all(bytes))
}

/// Writes what a reader gives, in constant memory; the file is there as a whole or not at all.
pub fn write_all_of(path: &Path, source: &mut impl io::Read) -> Result<()> {
    let copy = |to: &mut NamedTempFile| io::copy(source, to.as_file_mut()).map(drop);
    write_with(path, Durability::Plain, copy)
}

fn write_with(
    path: &Path,
    durability: Durability,
    fill: impl FnOnce(&mut NamedTempFile) -> io::Result<()>,
) -> Result<()> {
    create_dir_all(folder_of(path))?;
    let write = || -> io::Result<()> {
        let mut temporary = temporary_in(folder_of(path))?;
        fill(&mut temporary)?;
        put_in_place(temporary, path, durability)
    };
    write().map_err(Error::io("cannot write", path))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Has the kernel begin to write what it holds of a file, and waits for nothing. Of several files that
/// are begun before the first one is synced, a file system writes its journal once. Errors are told
/// to whoever syncs the file.
pub fn start_writing(file: &File) {
    // SAFETY: it touches no memory. File systems that do not know it answer with an error.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Moves a file or a folder, over what is there; a copy where `to` is on another file system.
pub fn move_to(from: &Path, to: &Path) -> Result<()> {
    let folder = folder_of(to);
    create_dir_all(folder)?;
    let _ = if to.is_dir() {
        fs::remove_dir_all(to)
    } else {
        fs::remove_file(to)
    };
    #[expect(clippy::disallowed_methods, reason = "this is the module that writes")]
    if fs::rename(from, to).is_ok() {
        return Ok(());
    }
    if from.is_dir() {
        create_dir_all(to)?;
        for entry in fs::read_dir(from)
            .map_err(Error::io("cannot read the folder", from))?
            .flatten()
        {
            move_to(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let copy = || -> io::Result<()> {
        let mut temporary = temporary_in(folder)?;
        io::copy(&mut fs::File::open(from)?, temporary.as_file_mut())?;
        temporary.persist(to).map_err(|e| e.error)?;
        Ok(())
    };
    copy().map_err(Error::io("cannot write", to))
}

/// A file too large for memory, written bit by bit: in place only once it is committed, gone if it
/// never is.
pub struct Staged {
    file: io::BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl Staged {
    /// Creates the folder.
    pub fn create(path: &Path) -> Result<Self> {
        create_dir_all(folder_of(path))?;
        let file = temporary_in(folder_of(path)).map_err(Error::io("cannot write", path))?;
        Ok(Self {
            file: io::BufWriter::with_capacity(1 << 20, file),
            path: path.to_owned(),
        })
    }

    pub fn commit(self, durability: Durability) -> Result<()> {
        let Self { file, path } = self;
        let write = || -> io::Result<()> {
            let temporary = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            put_in_place(temporary, &path, durability)
        };
        write().map_err(Error::io("cannot write", &path))
    }
}

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// With the permissions of any new file, as the caller's umask has them: `tempfile`'s own are for
/// the caller alone.
fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    let permissions = fs::Permissions::from_mode(0o666);
    tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(permissions)
        .tempfile_in(folder)
}

fn put_in_place(temporary: NamedTempFile, path: &Path, durability: Durability) -> io::Result<()> {
    if durability == Durability::Synced {
        temporary.as_file().sync_all()?;
    }
    temporary.persist(path).map_err(|e| e.error)?;
    if durability == Durability::Synced {
        fs::File::open(folder_of(path))?.sync_all()?;
    }
    Ok(())
}

pub fn create_dir_all(path: &Path) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this is the module that writes")]
    fs::create_dir_all(path).map_err(Error::io("cannot create the folder", path))
}

/// A folder in which every user of the host may make files and remove only their own, like /tmp.
///
/// Only a folder that is made here gets these permissions. One that is there already keeps its own,
/// and must be somebody's whom the caller trusts, or sticky: a link in its place may lead to any
/// folder of the caller.
pub fn create_shared_dir(path: &Path) -> Result<()> {
    const SHARED: u32 = 0o1777;
    let made = match fs::DirBuilder::new().mode(SHARED).create(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(Error::io("cannot create the folder", path)(error)),
    };
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path);
    let refused = |why: &str| {
        let advice = "have its owner remove it, or name another one in $TPRIMAT_LOCK_DIR for all users of this host";
        Error::failed(format!(
            "the folder of locks {} {why}; {advice}",
            path.display()
        ))
    };
    let folder = folder.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => refused("is not a folder but a link or a file"),
        _ => Error::io("cannot open the folder", path)(error),
    })?;
    if made {
        // The umask took some of it away.
        let set = fchmod(&folder, Mode::from_bits_truncate(SHARED)).map_err(io::Error::from);
        return set.map_err(Error::io("cannot set the permissions of", path));
    }
    let found = folder
        .metadata()
        .map_err(Error::io("cannot look at", path))?;
    let (owner, is_sticky) = (found.uid(), found.mode() & libc::S_ISVTX != 0);
    match owner == 0 || owner == geteuid().as_raw() || is_sticky {
        true => Ok(()),
        false => Err(refused(
            "belongs to another user, who could replace what is in it",
        )),
    }
}

pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_bounded(path, MOST_BYTES).map_err(Error::io("cannot read", path))
}

pub fn read_to_string(path: &Path) -> Result<String> {
    let text = read_bounded(path, MOST_BYTES).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "stream did not contain valid UTF-8",
            )
        })
    });
    text.map_err(Error::io("cannot read", path))
}

/// Seconds since 1970.
#[must_use]
pub fn unix_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs_f64()
}

/// A file changed less than this before its stamp was taken may change again under the same stamp.
const RACY_SECONDS: f64 = 2.0;

/// By what a file is known to be the one it was, without reading it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    pub size: u64,
    /// Nanoseconds since 1970.
    mtime: i128,
    ctime: i128,
    inode: u64,
    /// Taken at, seconds since 1970.
    taken: f64,
}

impl Stamp {
    /// Taken before the file is read.
    pub fn of(path: &Path) -> io::Result<Self> {
        let taken = unix_now();
        Ok(Self::of_metadata(&fs::metadata(path)?, taken))
    }

    /// `taken`: the time before the metadata were asked for.
    #[must_use]
    pub fn of_metadata(meta: &fs::Metadata, taken: f64) -> Self {
        use std::os::unix::fs::MetadataExt;
        let nanos =
            |seconds: i64, part: i64| i128::from(seconds) * 1_000_000_000 + i128::from(part);
        Self {
            size: meta.len(),
            mtime: nanos(meta.mtime(), meta.mtime_nsec()),
            ctime: nanos(meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
            taken,
        }
    }

    /// Were the file's times old enough when they were read that no later write can have the same
    /// ones?
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let settled = |t: i128| (t as f64) / 1e9 + RACY_SECONDS < self.taken;
        settled(self.mtime) && settled(self.ctime)
    }

    /// Is the file as it was, unless it was written in the same instant as then?
    #[must_use]
    pub fn is_same(&self, now: &Self) -> bool {
        let of = |s: &Self| (s.size, s.mtime, s.ctime, s.inode);
        of(self) == of(now)
    }

    /// Does `now`, taken later, prove that nobody wrote in between?
    #[must_use]
    pub fn is_still(&self, now: &Self) -> bool {
        self.is_same(now) && self.is_settled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_stamp_is_not_trusted_and_a_settled_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"one", Durability::Plain).unwrap();
        let mut old = Stamp::of(&path).unwrap();
        old.taken = old.ctime as f64 / 1e9 + 1.0;
        assert!(!old.is_still(&Stamp::of(&path).unwrap()));
        old.taken += 2.0;
        assert!(old.is_still(&Stamp::of(&path).unwrap()));
        write_atomically(&path, b"two", Durability::Plain).unwrap();
        assert!(!old.is_still(&Stamp::of(&path).unwrap()));
    }

    #[test]
    fn a_shared_folder_is_made_open_and_one_that_is_there_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        let (shared, own, link) = (
            folder.path().join("shared"),
            folder.path().join("own"),
            folder.path().join("link"),
        );
        create_shared_dir(&shared).unwrap();
        assert_eq!(mode(&shared), 0o1777);
        create_shared_dir(&shared).unwrap();
        fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
        create_shared_dir(&own).unwrap();
        assert_eq!(mode(&own), 0o700);
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let error = create_shared_dir(&link).unwrap_err().to_string();
        assert!(error.contains("a link"), "{error}");
        assert_eq!(mode(&own), 0o700);
        assert!(
            create_shared_dir(&folder.path().join("no/such")).is_err(),
            "no folder above it is made"
        );
    }

    #[test]
    fn a_staged_file_is_there_only_when_committed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        let mut staged = Staged::create(&path).unwrap();
        staged.write_all(b"half").unwrap();
        drop(staged);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
        let mut staged = Staged::create(&path).unwrap();
        staged.write_all(b"whole").unwrap();
        staged.commit(Durability::Synced).unwrap();
        assert_eq!(read(&path).unwrap(), b"whole");
    }
}
