//! Keys in flight: one process at a time works on a key. The lock ends with the process that holds
//! it. So does the sign that a cache is in use, which many hold at once.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use tprimat_base::{digest::Digest, error::Result, files};

use super::store::Cache;

/// Locked by everybody who uses the cache, and by the one who removes it.
const IN_USE: &str = "in-use";

/// Held until dropped. Its file stays, for whoever waits for it has it open; `cache gc` removes it.
pub struct KeyLock {
    _file: File,
}

impl Cache {
    /// Waits until no other thread or process holds the key.
    pub fn lock_key(&self, key: &Digest) -> Result<KeyLock> {
        let file = self.lock_file(key)?;
        loop {
            match file.lock() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                locked => {
                    locked.map_err(self.refused())?;
                    return Ok(KeyLock { _file: file });
                }
            }
        }
    }

    /// `None` if another thread or process holds the key.
    pub fn try_lock_key(&self, key: &Digest) -> Result<Option<KeyLock>> {
        let file = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(KeyLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(self.refused()(e)),
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

    /// Removes the files of locks that nobody holds. The caller holds the cache alone, so that no build
    /// waits for one.
    pub(super) fn remove_locks(&self) {
        let folder = self.root.join("locks");
        let entries = files::is_own(&folder).then(|| fs::read_dir(&folder));
        for entry in entries.into_iter().flatten().flatten().flatten() {
            let file = lockable().open(entry.path());
            if file.is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn lock_file(&self, key: &Digest) -> Result<File> {
        let path = self.root.join("locks").join(key.to_string());
        self.in_layout(|| lockable().create(true).open(&path))
    }
}

/// Opens what is locked. No link is followed, and a pipe in its place keeps nobody waiting.
fn lockable() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    options.write(true).truncate(false).custom_flags(flags);
    options
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
    fn one_holder_at_a_time_and_no_file_left_by_gc() {
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
        here.remove(&[]).unwrap();
        let left = fs::read_dir(folder.path().join("locks")).unwrap();
        assert_eq!(left.count(), 0);
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
