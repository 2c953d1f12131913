//! The cache as a folder: opening it, and whether it can be written to.

use std::{
    collections::HashMap,
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, RwLock, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use tempfile::NamedTempFile;
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

use super::{
    error::CacheError,
    made::Index,
    names::{MADE, RECORDS, TEXTS},
    records::Faults,
};

/// A build that is to write here needs this many free bytes.
const MIN_FREE: u64 = 16 << 20;

/// Longer than any file is being written without a byte being added to it.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Begins the name of every file that is being written.
const NEW: &str = "new-";

/// What may lie in a folder that is, or becomes, a cache. Hidden files may be there as well, and
/// what a disk of its own has.
const LAYOUT: [&str; 16] = [
    DAMAGED,
    RECORDS,
    "objects",
    TEXTS,
    MADE,
    "memos",
    "locks",
    "in-use",
    "tmp",
    "runs",
    "profiles",
    DETACHED,
    CONTAINER_HOME,
    "README.md",
    "lost+found",
    TAG,
];
const TAG: &str = "CACHEDIR.TAG";

/// Objects that had other bytes than their digests name, put aside by a build.
pub(super) const DAMAGED: &str = "damaged";
/// The folder of a cache in which builds without a terminal leave what they said.
pub const DETACHED: &str = "detached";
/// The folder of a cache that is the home of processes in containers.
pub const CONTAINER_HOME: &str = "container-home";

/// Tells backup programs to leave the folder out: <https://bford.info/cachedir/>.
const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This folder is a cache of tprimat: it holds the results of finished runs.\n";

/// One cache folder, open; shared by the threads of a process. Each look reads what is there now.
pub struct Cache {
    pub(super) root: PathBuf,
    /// What could not be read, by its place below the root.
    pub(super) faults: Mutex<Faults>,
    pub(super) index: Mutex<Option<Index>>,
    /// Orders what one process records within one tick of the clock.
    pub(super) last_recorded: AtomicU64,
    /// Objects that this process has found damaged, and what their files were then.
    pub(super) damaged: RwLock<HashMap<Digest, files::Stamp>>,
}

impl Cache {
    /// Makes the folder's layout where that is allowed. A folder that cannot be written, or be
    /// made, still opens for reading; then the first write is what fails.
    ///
    /// A folder that another user controls, that leads elsewhere by links or that holds other files
    /// is refused: what it says is believed, and what is old in it is removed.
    pub fn open(root: &Path) -> Result<Self> {
        check_folder(root)?;
        let cache = Self {
            root: root.to_owned(),
            faults: Mutex::default(),
            index: Mutex::default(),
            last_recorded: AtomicU64::new(0),
            damaged: RwLock::default(),
        };
        if !cache.root.join("tmp").is_dir() || !is_tagged(root) {
            let _ = cache.lay_out();
        }
        Ok(cache)
    }

    /// Is this folder a cache of tprimat, by the tag that every one has?
    #[must_use]
    pub fn is_one(root: &Path) -> bool {
        is_tagged(root)
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Says before a build whether the cache can take its results.
    pub fn ensure_writable(&self) -> Result<()> {
        self.temporary()?;
        let free = self.free_bytes()?;
        if free < MIN_FREE {
            let cache = self.root.clone();
            return Err(CacheError::DiskFull {
                cache,
                free_mib: free >> 20,
                needed_mib: MIN_FREE >> 20,
            }
            .into());
        }
        self.sweep();
        Ok(())
    }

    /// Bytes that this user may still write on the cache's disk.
    fn free_bytes(&self) -> Result<u64> {
        let stat = nix::sys::statvfs::statvfs(&self.root).map_err(io::Error::from);
        let stat = stat.map_err(Error::io("cannot read the cache", &self.root))?;
        Ok(stat.blocks_available() * stat.fragment_size())
    }

    /// Removes temporary files that killed processes left.
    fn sweep(&self) {
        let folder = self.root.join("tmp");
        if !files::is_own(&folder) {
            return;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with(NEW) {
                continue;
            }
            let Ok(found) = entry.metadata() else {
                continue;
            };
            let age = found.modified().ok();
            let age = age.and_then(|time| SystemTime::now().duration_since(time).ok());
            if age.is_some_and(|age| age > ABANDONED) {
                let _ = match found.is_dir() {
                    true => fs::remove_dir_all(entry.path()),
                    false => fs::remove_file(entry.path()),
                };
            }
        }
    }

    fn lay_out(&self) -> Result<()> {
        // `tmp` comes last: where it is, the rest is.
        for folder in [RECORDS, "objects", TEXTS, MADE, "memos", "locks"] {
            files::create_dir_all(&self.root.join(folder))?;
        }
        let tag = self.root.join(TAG);
        if !is_tagged(&self.root) {
            files::write_atomically(&tag, CACHEDIR_TAG.as_bytes(), Durability::Plain)?;
        }
        files::create_dir_all(&self.root.join("tmp"))?;
        // What is recorded next would be lost with the folder that it is in.
        self.sync_folder(&self.root)
    }

    /// Runs a step that makes a file, once more if folders were missing.
    pub(super) fn in_layout<T>(&self, mut make: impl FnMut() -> io::Result<T>) -> Result<T> {
        let made = match make() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.lay_out()?;
                make()
            }
            other => other,
        };
        made.map_err(self.refused())
    }

    /// A file of our own that is renamed when it is whole, and goes away otherwise.
    pub(super) fn temporary(&self) -> Result<NamedTempFile> {
        let folder = self.root.join("tmp");
        // Whole files of the cache are never changed in place, so they are born read-only.
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o444);
        self.in_layout(|| {
            tempfile::Builder::new()
                .prefix(NEW)
                .make_in(&folder, |path| options.open(path))
        })
    }

    /// Such a file with these bytes in it, on disk.
    pub(super) fn synced(&self, bytes: &[u8]) -> Result<NamedTempFile> {
        let temporary = self.temporary_of(bytes)?;
        temporary.as_file().sync_all().map_err(self.refused())?;
        Ok(temporary)
    }

    /// Brings the names in a folder to disk.
    pub(super) fn sync_folder(&self, folder: &Path) -> Result<()> {
        let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(self.refused())
    }

    /// Such a file with these bytes in it.
    pub(super) fn temporary_of(&self, bytes: &[u8]) -> Result<NamedTempFile> {
        let temporary = self.temporary()?;
        temporary
            .as_file()
            .write_all(bytes)
            .map_err(self.refused())?;
        Ok(temporary)
    }

    pub(super) fn persist(&self, temporary: NamedTempFile, path: &Path) -> Result<()> {
        let failed = match temporary.persist(path) {
            Ok(_) => return Ok(()),
            Err(failed) => failed,
        };
        // Somebody removed the folder, as people do with `memos` to see a build anew.
        let folder = path.parent().filter(|folder| !folder.exists());
        let Some(folder) = folder else {
            return Err(self.refused()(failed.error));
        };
        files::create_dir_all(folder)?;
        let persisted = failed.file.persist(path);
        persisted.map(drop).map_err(|e| self.refused()(e.error))
    }

    /// The one error of every failed write.
    pub(super) fn refused(&self) -> impl FnOnce(io::Error) -> Error {
        Error::io("cannot write to the cache", &self.root)
    }
}

/// Nothing is there yet, or a cache of the caller's own is.
fn check_folder(root: &Path) -> Result<()> {
    if !root.is_dir() {
        return Ok(());
    }
    files::require_own("the cache", root)?;
    for name in LAYOUT {
        if root.join(name).is_symlink() {
            return Err(CacheError::Link {
                cache: root.to_owned(),
                name,
            }
            .into());
        }
    }
    if is_tagged(root) {
        return Ok(());
    }
    let entries = fs::read_dir(root).map_err(Error::io("cannot read the cache", root))?;
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let strange = names
        .filter(|name| !name.starts_with('.') && !LAYOUT.contains(&name.as_str()))
        .min();
    match strange {
        Some(holds) => Err(CacheError::NotACache {
            folder: root.to_owned(),
            holds,
        }
        .into()),
        None => Ok(()),
    }
}

/// Did tprimat make this folder?
fn is_tagged(root: &Path) -> bool {
    let tag = root.join(TAG);
    !tag.is_symlink() && files::read(&tag).is_ok_and(|text| text == CACHEDIR_TAG.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path) {
        files::write_atomically(path, b"x", Durability::Plain).unwrap();
        let times = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_times(times)
            .unwrap();
    }

    #[test]
    fn only_old_files_of_our_own_names_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache")).unwrap();
        let tmp = cache.root().join("tmp");
        ["new-old", "thesis.tex"]
            .iter()
            .for_each(|name| write(&tmp.join(name)));
        files::write_atomically(&tmp.join("new-young"), b"x", Durability::Plain).unwrap();
        files::create_dir_all(&tmp.join("new-folder")).unwrap();
        cache.ensure_writable().unwrap();
        let mut left: Vec<_> = fs::read_dir(&tmp)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["new-folder", "new-young", "thesis.tex"]);
    }

    #[test]
    fn nothing_is_removed_or_stored_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (home, root) = (folder.path().join("home"), folder.path().join("cache"));
        write(&home.join("new-thesis.tex"));
        let cache = Cache::open(&root).unwrap();
        for name in ["tmp", "objects", RECORDS, TAG] {
            let (place, kept) = (root.join(name), root.join(".kept"));
            files::move_to(
                &if place.exists() {
                    place.clone()
                } else {
                    home.join("absent")
                },
                &kept,
            )
            .ok();
            symlink(&home, &place).unwrap();
            cache.sweep();
            let error = Cache::open(&root)
                .err()
                .expect("a link is refused")
                .to_string();
            assert!(error.contains("is a link"), "{name}: {error}");
            fs::remove_file(&place).unwrap();
            files::move_to(&kept, &place).ok();
        }
        assert!(home.join("new-thesis.tex").exists());
    }

    #[test]
    fn a_folder_of_other_things_is_no_cache() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("thesis.tex"));
        let error = Cache::open(folder.path())
            .err()
            .expect("it is refused")
            .to_string();
        assert!(error.contains("`thesis.tex`"), "{error}");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing was made there"
        );
        // One whose tag was lost.
        let old = folder.path().join("old");
        files::create_dir_all(&old.join(RECORDS)).unwrap();
        write(&old.join(".gitignore"));
        Cache::open(&old).unwrap();
        // A build was there, and the disk spoilt the tag.
        write(&old.join("in-use"));
        write(&old.join(TAG));
        Cache::open(&old).unwrap();
        assert!(is_tagged(&old), "the tag is made again");
        // Once it is ours, whatever else people keep there is theirs.
        write(&old.join("notes.txt"));
        Cache::open(&old).unwrap();
    }
}
