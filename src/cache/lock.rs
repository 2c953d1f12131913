//! Keys in flight: one process at a time works on a key. The lock ends with the process that holds it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use super::store::Cache;
use crate::{digest::Digest, error::Result};

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

    fn lock_file(&self, key: &Digest) -> Result<(File, PathBuf)> {
        let path = self.root.join("locks").join(key.to_string());
        let file = self.in_layout(|| OpenOptions::new().write(true).create(true).truncate(false).open(&path))?;
        Ok((file, path))
    }
}

impl KeyLock {
    /// `None` if the last holder removed the file between our opening and locking it.
    fn of(file: File, path: PathBuf) -> Option<Self> {
        let inode = |meta: io::Result<fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
        (inode(file.metadata()) == inode(fs::metadata(&path))).then_some(Self { _file: file, path })
    }
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // While it is still locked, so that nobody else can be using it.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_holder_at_a_time_and_no_file_left() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (Cache::open(folder.path()).unwrap(), Cache::open(folder.path()).unwrap());
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
        assert_eq!(fs::read_dir(folder.path().join("locks")).unwrap().count(), 0);
    }
}
