//! Small disposable files by name: what the last build would like to find again. Checked, never
//! synced.

use std::fs;

use tprimat_base::{digest::Digest, error::Result};

use super::store::Cache;

impl Cache {
    /// What was stored under a name; `None` if nothing was, or if it is damaged.
    #[must_use]
    pub fn load_memo(&self, name: &Digest) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.root.join(file_of(name))).ok()?;
        let (digest, memo) = bytes.split_first_chunk::<32>()?;
        if Digest::of(memo).0 != *digest {
            return None;
        }
        bytes.drain(..32);
        Some(bytes)
    }

    pub fn store_memo(&self, name: &Digest, bytes: &[u8]) -> Result<()> {
        self.write_file(&file_of(name), &[&Digest::of(bytes).0, bytes])?;
        self.prune_memos();
        Ok(())
    }

    /// Removes the oldest memos: there is one for each set of variables that a build ever had.
    fn prune_memos(&self) {
        let entries = fs::read_dir(self.root.join("memos"))
            .into_iter()
            .flatten()
            .flatten();
        let is_memo = |entry: &fs::DirEntry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|n| n.parse::<Digest>().is_ok())
        };
        let memos = entries
            .filter(is_memo)
            .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())));
        let mut memos: Vec<_> = memos.collect();
        memos.sort();
        for (_, path) in memos.iter().rev().skip(MOST) {
            let _ = fs::remove_file(path);
        }
    }
}

/// As many memos are kept.
const MOST: usize = 32;

fn file_of(name: &Digest) -> String {
    format!("memos/{name}")
}

#[cfg(test)]
mod tests {
    use tprimat_base::files::{self, Durability};

    use super::*;

    #[test]
    fn only_the_newest_memos_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let other = folder.path().join("memos/data.json");
        files::write_atomically(&other, b"{}", Durability::Plain).unwrap();
        for n in 0..MOST + 5 {
            cache
                .store_memo(&Digest::of(n.to_string()), b"memo")
                .unwrap();
        }
        assert!(
            cache
                .load_memo(&Digest::of((MOST + 4).to_string()))
                .is_some()
        );
        assert_eq!(
            fs::read_dir(folder.path().join("memos")).unwrap().count(),
            MOST + 1
        );
        assert!(other.exists());
    }

    #[test]
    fn memos_come_back_unless_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let name = Digest::of("the last build");
        assert_eq!(cache.load_memo(&name), None);
        for memo in [&b""[..], b"one", b"another"] {
            cache.store_memo(&name, memo).unwrap();
            assert_eq!(cache.load_memo(&name).as_deref(), Some(memo));
        }
        let path = folder.path().join(file_of(&name));
        let mut bytes = files::read(&path).unwrap();
        bytes[35] ^= 1;
        for damaged in [&bytes[..], &bytes[..20], b""] {
            files::write_atomically(&path, damaged, Durability::Plain).unwrap();
            assert_eq!(cache.load_memo(&name), None);
        }
        // Whoever removes the folder wants one build without them, and not all later ones.
        fs::remove_dir_all(folder.path().join("memos")).unwrap();
        cache.store_memo(&name, b"anew").unwrap();
        assert_eq!(cache.load_memo(&name).as_deref(), Some(&b"anew"[..]));
    }
}
