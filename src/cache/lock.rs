//! Keys in flight: one process at a time works on a key. The lock ends with the process that holds
//! it. So does the sign that a cache is in use, which many hold at once.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use tprimat_base::{digest::Digest, error::Result, files};

use super::store::Cache;

/// Locked by everybody who uses the cache, and by the one who removes it.
const IN_USE: &str = "in-use";

/// Held until dropped.
pub struct KeyLock {
    _file: File,
    path: PathBuf,
}

impl Cache {
    /// Waits until no other thread or process holds the key.
    pub fn lock_key(&self, key: &Digest) -> Result<KeyLock> {
        loop {
            let (file, path) = self.lock_file(key)?;
            match file.lock() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                locked => locked.map_err(self.refused())?,
            }
            if let Some(lock) = KeyLock::of(file, path) {
                return Ok(lock);
            }
        }
    }

    /// `None` if another thread or process holds the key.
    pub fn try_lock_key(&self, key: &Digest) -> Result<Option<KeyLock>> {
        loop {
            let (file, path) = self.lock_file(key)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(self.refused()(e)),
            }
            if let Some(lock) = KeyLock::of(file, path) {
                return Ok(Some(lock));
            }
        }
    }

    /// Says that a build uses the cache, until dropped; `None` where that cannot be said: in a
    /// cache that is only read, or without locks.
    #[must_use]
    pub fn use_it(&self) -> Option<File> {
        let path = self.root.join(IN_USE);
        let opened = self.in_layout(|| lockable().create(true).open(&path));
        let file = opened.ok()?;
        loop {
            match file.lock_shared() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                locked => return locked.ok().map(|()| file),
            }
        }
    }

    /// Removes the lock files of processes that were killed.
    pub(super) fn remove_dead_locks(&self) {
        let folder = self.root.join("locks");
        if !files::is_own(&folder) {
            return;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let Some(file) = is_file
                .then(|| lockable().open(entry.path()).ok())
                .flatten()
            else {
                continue;
            };
            if file.try_lock().is_ok() {
                // Removes the file when it is dropped, if it is still the one that was locked.
                drop(KeyLock::of(file, entry.path()));
            }
        }
    }

    fn lock_file(&self, key: &Digest) -> Result<(File, PathBuf)> {
        let path = self.root.join("locks").join(key.to_string());
        let file = self.in_layout(|| lockable().create(true).open(&path))?;
        Ok((file, path))
    }
}

/// Opens what is locked. No link is followed, and a pipe in its place keeps nobody waiting.
fn lockable() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    options.write(true).truncate(false).custom_flags(flags);
    options
}

impl KeyLock {
    /// `None` if the last holder removed the file between our opening and locking it.
    fn of(file: File, path: PathBuf) -> Option<Self> {
        let inode = |meta: io::Result<fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
        // Opened anew: over NFS what is said of a name may be seconds old, and an open asks.
        let now = File::open(&path).and_then(|file| file.metadata());
        if inode(file.metadata()) != inode(now) {
            // Not made only to be dropped: that would remove the file of whoever holds the key now.
            return None;
        }
        Some(Self { _file: file, path })
    }
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // While it is still locked, so that nobody else can be using it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The sign of the one who removes a cache, until dropped. An error of kind `WouldBlock` where a
/// build uses it; `None` where there is none to use.
pub fn claim_unused(root: &Path) -> io::Result<Option<File>> {
    // A copied cache has no such file yet.
    let mut options = lockable();
    options.create(Cache::is_one(root));
    let file = match options.open(root.join(IN_USE)) {
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        other => other?,
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        // No locks here: then nobody holds one.
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_holder_at_a_time_and_no_file_left() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (
            Cache::open(folder.path()).unwrap(),
            Cache::open(folder.path()).unwrap(),
        );
        let key = Digest::of("key");
        let held = here.lock_key(&key).unwrap();
        assert!(there.try_lock_key(&key).unwrap().is_none());
        assert!(there.try_lock_key(&Digest::of("other")).unwrap().is_some());
        drop(held);
        assert!(there.try_lock_key(&key).unwrap().is_some());

        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for cache in [&here, &there, &here, &there] {
                let (inside, key) = (&inside, &key);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _lock = cache.lock_key(key).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(
            fs::read_dir(folder.path().join("locks")).unwrap().count(),
            0
        );
    }

    #[test]
    fn whoever_locks_a_file_that_was_replaced_leaves_the_new_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let key = Digest::of("key");
        // Opened while the last holder had it, locked when that one had removed it and another one
        // had made it again.
        let (late, path) = cache.lock_file(&key).unwrap();
        fs::remove_file(&path).unwrap();
        let _held = cache.lock_key(&key).unwrap();
        late.lock().unwrap();
        assert!(KeyLock::of(late, path.clone()).is_none());
        assert!(path.exists());
        assert!(cache.try_lock_key(&key).unwrap().is_none());
    }

    #[test]
    fn lock_files_of_the_dead_go_and_those_of_the_living_stay() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let _held = cache.lock_key(&Digest::of("held")).unwrap();
        // As a killed process leaves it: the file, without a lock.
        let dead = folder
            .path()
            .join("locks")
            .join(Digest::of("dead").to_string());
        files::write_atomically(&dead, b"", files::Durability::Plain).unwrap();
        cache.ensure_writable().unwrap();
        let left: Vec<_> = fs::read_dir(folder.path().join("locks"))
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left, [Digest::of("held").to_string().as_str()]);
        assert!(cache.try_lock_key(&Digest::of("held")).unwrap().is_none());
    }

    #[test]
    fn a_cache_in_use_cannot_be_claimed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(claim_unused(folder.path()).unwrap().is_none());
        let cache = Cache::open(folder.path()).unwrap();
        let (one, two) = (cache.use_it().unwrap(), cache.use_it().unwrap());
        drop(one);
        assert_eq!(
            claim_unused(folder.path()).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(two);
        assert!(claim_unused(folder.path()).unwrap().is_some());
    }
}
