//! The cache as a folder: opening it, and whether it can be written to.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use tempfile::NamedTempFile;
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

use super::{
    encode::Stamp,
    error::CacheError,
    frame,
    index::Place,
    segment::{DamagedRecords, Segments, Writer},
    snapshot::Snapshot,
    upkeep::GoneRecords,
};

/// A build that is to write here needs this many free bytes.
const MIN_FREE: u64 = 16 << 20;

/// Longer than any file is being written without a byte being added to it.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Begins the name of every file that is being written.
const NEW: &str = "new-";

/// What may lie in a folder that is, or becomes, a cache. Hidden files may be there as well, and
/// what a disk of its own has.
const LAYOUT: [&str; 15] = [
    "damaged",
    "objects",
    "segments",
    "snapshot",
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

/// The folder of a cache in which builds without a terminal leave what they said.
pub const DETACHED: &str = "detached";
/// The folder of a cache that is the home of processes in containers.
pub const CONTAINER_HOME: &str = "container-home";

/// Tells backup programs to leave the folder out: <https://bford.info/cachedir/>.
const CACHEDIR_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This folder is a cache of tprimat: it holds the results of finished runs.\n";

/// One cache folder, open; shared by the threads of a process.
///
/// A process sees its own records at once, and those of others as of `open` or [`Cache::refresh`].
pub struct Cache {
    pub(super) root: PathBuf,
    snapshot: Option<Snapshot>,
    /// Bytes of records that the snapshot knew and that the segments lack.
    pub(super) lost_bytes: u64,
    /// Where those bytes were.
    pub(super) gone: Vec<GoneRecords>,
    /// Whether a record says so, or nothing needs to: the place may be filled by the next record.
    pub(super) is_witnessed: AtomicBool,
    pub(super) is_damage_told: AtomicBool,
    /// Records whose places were known and that could not be read when somebody asked for them.
    unreadable: Mutex<BTreeSet<Place>>,
    /// What this process has overwritten: the snapshot that it opened still has places in there.
    pub(super) cut_out: Mutex<Vec<DamagedRecords>>,
    /// Whether all of the snapshot was found sound; asked by the first lookup.
    sound: OnceLock<bool>,
    segments: RwLock<Segments>,
    /// Taken before `segments` where both are held.
    writer: Mutex<Option<Writer>>,
    /// The folders of objects, by the first byte of their digests, whose own entries this process
    /// has brought to disk.
    pub(super) folders_on_disk: [AtomicBool; 256],
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
        let found = Snapshot::open(&root.join("snapshot"));
        let (snapshot, outdated) = match found {
            Some(snapshot) if !describes(&snapshot, root) => (None, Some(snapshot)),
            found => (found, None),
        };
        let covered = snapshot.as_ref().map_or(&[][..], Snapshot::segments);
        let segments = RwLock::new(Segments::new(root.join("segments"), covered));
        let mut cache = Self {
            root: root.to_owned(),
            snapshot,
            lost_bytes: 0,
            gone: Vec::new(),
            is_witnessed: AtomicBool::new(false),
            is_damage_told: AtomicBool::new(false),
            unreadable: Mutex::new(BTreeSet::new()),
            cut_out: Mutex::new(Vec::new()),
            sound: OnceLock::new(),
            segments,
            writer: Mutex::new(None),
            folders_on_disk: [const { AtomicBool::new(false) }; 256],
            damaged: RwLock::default(),
        };
        if !cache.root.join("tmp").is_dir() || !is_tagged(root) {
            let _ = cache.lay_out();
        }
        cache.refresh()?;
        cache.segments_mut().of_others = 0;
        if let Some(outdated) = outdated {
            let lost_bytes = cache.segments().lacking(outdated.segments());
            cache.lost_bytes = lost_bytes;
            if lost_bytes > 0 {
                cache.gone = cache.gone_since(&outdated);
            }
        }
        Ok(cache)
    }

    /// How many bytes of records this process could not read, for the caller to warn of: runs that
    /// were recorded there are not known. What was damaged when the cache was opened is told once: when
    /// a caller has asked, the next snapshot covers it. Bytes that are gone are told until something new is
    /// recorded, and records that are damaged below a snapshot by each process that asks for them, until
    /// they are repaired.
    #[must_use]
    pub fn unreadable_bytes(&self) -> u64 {
        self.is_damage_told.store(true, Ordering::Relaxed);
        let unreadable = self
            .unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let length = |place: &Place| u64::from(place.body_length);
        self.segments().damaged + self.lost_bytes + unreadable.iter().map(length).sum::<u64>()
    }

    /// A record whose place is known is read only when somebody asks for it.
    pub(super) fn note_damage(&self, place: Place) {
        let mut unreadable = self
            .unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unreadable.insert(place);
    }

    /// Is this folder a cache of tprimat, by the tag that every one has?
    #[must_use]
    pub fn is_one(root: &Path) -> bool {
        let tag = root.join("CACHEDIR.TAG");
        let is_file = fs::symlink_metadata(&tag).is_ok_and(|meta| meta.is_file());
        is_file && files::read_to_string(&tag).is_ok_and(|text| text.contains("cache of tprimat"))
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads what other processes have appended meanwhile.
    pub fn refresh(&self) -> Result<()> {
        self.segments_mut()
            .refresh()
            .map_err(Error::io("cannot read the cache", &self.root))
    }

    /// Did others record something since this process opened the cache, of which it has heard? What
    /// it concluded before that may not hold any more.
    #[must_use]
    pub fn has_heard_of_others(&self) -> bool {
        self.segments().of_others > 0
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

    /// Removes temporary files and locks that killed processes left.
    fn sweep(&self) {
        self.remove_dead_locks();
        let folder = self.root.join("tmp");
        if !files::is_own(&folder) {
            return;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let is_ours = entry.file_type().is_ok_and(|kind| kind.is_file())
                && entry.file_name().to_string_lossy().starts_with(NEW);
            if !is_ours {
                continue;
            }
            let modified = entry.metadata().and_then(|meta| meta.modified());
            let age = modified
                .ok()
                .and_then(|time| SystemTime::now().duration_since(time).ok());
            if age.is_some_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn lay_out(&self) -> Result<()> {
        // `tmp` comes last: where it is, the rest is.
        for folder in ["objects", "segments", "memos", "locks"] {
            files::create_dir_all(&self.root.join(folder))?;
        }
        let tag = self.root.join(TAG);
        if !is_tagged(&self.root) {
            files::write_atomically(&tag, CACHEDIR_TAG.as_bytes(), Durability::Plain)?;
        }
        files::create_dir_all(&self.root.join("tmp"))
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

    /// Replaces a file of the layout by `parts`, in one step but unsynced.
    pub(super) fn write_file(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        let temporary = self.temporary()?;
        for part in parts {
            temporary
                .as_file()
                .write_all(part)
                .map_err(self.refused())?;
        }
        self.persist(temporary, &self.root.join(name))
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

    pub(super) fn snapshot_stamp(&self) -> Stamp {
        self.snapshot.as_ref().map_or(0, Snapshot::last_stamp)
    }

    /// Bytes of records that the snapshot covers.
    pub(super) fn snapshot_covers(&self) -> u64 {
        let segments = self.snapshot.iter().flat_map(Snapshot::segments);
        segments.map(|(_, mark)| mark.end).sum()
    }

    /// What there is to look things up in: the snapshot, then the records past it.
    pub(super) fn known(&self) -> (Option<&Snapshot>, RwLockReadGuard<'_, Segments>) {
        // In this order: an unsound snapshot makes the records be read anew.
        let snapshot = self.snapshot();
        (snapshot, self.segments())
    }

    /// The snapshot, if all of it is sound. If not, the segments are read from their start instead.
    fn snapshot(&self) -> Option<&Snapshot> {
        let snapshot = self.snapshot.as_ref()?;
        let sound = *self.sound.get_or_init(|| {
            let sound = snapshot.is_sound();
            if !sound {
                let mut segments = self.segments_mut();
                segments.forget_records();
                // What cannot be read now was not known before either; the next refresh will say
                // so.
                let _ = segments.refresh();
            }
            sound
        });
        sound.then_some(snapshot)
    }

    // A thread that panicked left no half-made change: each is made after its write succeeded.
    pub(super) fn segments(&self) -> RwLockReadGuard<'_, Segments> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }
    pub(super) fn segments_mut(&self) -> RwLockWriteGuard<'_, Segments> {
        self.segments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
    pub(super) fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Are the segments still those that the snapshot was made of?
fn describes(snapshot: &Snapshot, root: &Path) -> bool {
    snapshot.segments().iter().all(|(name, mark)| {
        mark.end == 0
            || fs::File::open(root.join("segments").join(name))
                .is_ok_and(|file| frame::is_at(mark, &file))
    })
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
        for name in ["tmp", "objects", "snapshot", TAG] {
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
        files::create_dir_all(&old.join("segments")).unwrap();
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
