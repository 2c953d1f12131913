//! Datasets and tokenizers of a matrix: what each is called, where it is on this host, and the
//! digest that keys are made of.
//!
//! A path differs from host to host and is in no key. Keys hold the name, which is in the job, and
//! the digest of the content, which is a fact of tprimat.lock like any other.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    data::{self, Dataset, prefix_of},
    digest::Digest,
    error::Result,
    files::{Durability, Stamp, write_atomically},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataKind {
    Dataset,
    Tokenizer,
}

impl DataKind {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dataset => "dataset",
            Self::Tokenizer => "tokenizer",
        }
    }

    /// Its table in a section of the lock.
    #[must_use]
    pub fn table(self) -> &'static str {
        match self {
            Self::Dataset => "datasets",
            Self::Tokenizer => "tokenizers",
        }
    }

    /// What a file is called that was given no name.
    pub(super) fn name_in(self, path: &str) -> Option<String> {
        let path = Path::new(path);
        let own = match self {
            Self::Dataset => prefix_of(path),
            // Every model's is called so; the folder tells whose it is.
            Self::Tokenizer if path.file_stem().is_some_and(|stem| stem == "tokenizer") => path
                .parent()
                .filter(|folder| folder.file_name().is_some())
                .unwrap_or(path)
                .to_owned(),
            Self::Tokenizer => path.to_owned(),
        };
        Some(own.file_name()?.to_str()?.to_owned())
    }

    /// All files that the content is in; a folder for itself.
    pub(crate) fn files(self, path: &Path) -> Vec<PathBuf> {
        match self {
            Self::Dataset => Dataset::paths(&prefix_of(path)).into(),
            Self::Tokenizer => vec![path.to_owned()],
        }
    }

    /// The digest that keys are made of.
    pub(crate) fn fingerprint(self, path: &Path) -> Result<Digest> {
        match self {
            Self::Dataset => Ok(data::fingerprint(path)?.0),
            Self::Tokenizer => data::tokenizer_fingerprint(path),
        }
    }

    /// Is it on this host?
    pub(super) fn is_at(self, path: &Path) -> bool {
        self.files(path).iter().all(|file| file.exists())
    }
}

/// A dataset or tokenizer that a cell's runs read.
#[derive(Clone, Debug)]
pub struct DataFile {
    pub kind: DataKind,
    pub name: String,
    /// Absolute; a dataset's is its prefix.
    pub path: PathBuf,
    /// Digest of the content, as keys cover it; or why it is not known.
    pub digest: Result<Digest, String>,
    pub is_here: bool,
}

/// Digests of files that were read before, by path: a plan reads no dataset and no image twice.
#[derive(Default)]
pub struct DataMemo {
    path: PathBuf,
    known: BTreeMap<PathBuf, Known>,
    is_changed: bool,
}

#[derive(Serialize, Deserialize)]
struct Known {
    stamps: Vec<Stamp>,
    digest: Digest,
}

impl DataMemo {
    /// Kept in the project's cache; disposable.
    pub fn load(cache: &Path) -> Self {
        let path = cache.join("memos/data.json");
        let known = crate::files::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        Self {
            path,
            known: known.unwrap_or_default(),
            is_changed: false,
        }
    }

    pub fn digest(&mut self, kind: DataKind, path: &Path) -> Result<Digest> {
        if kind == DataKind::Tokenizer {
            return kind.fingerprint(path);
        }
        self.known_as(path, &kind.files(path), || kind.fingerprint(path))
    }

    /// The digest of a single file, such as an image.
    pub fn of_file(&mut self, path: &Path) -> io::Result<Digest> {
        self.known_as(path, &[path.to_owned()], || Digest::of_file(path))
    }

    fn known_as<E>(
        &mut self,
        path: &Path,
        files: &[PathBuf],
        read: impl FnOnce() -> Result<Digest, E>,
    ) -> Result<Digest, E> {
        let now: Vec<Stamp> = files
            .iter()
            .filter_map(|file| Stamp::of(file).ok())
            .collect();
        let is_same = |known: &&Known| {
            known.stamps.len() == now.len()
                && known
                    .stamps
                    .iter()
                    .zip(&now)
                    .all(|(old, new)| old.is_still(new))
        };
        if let Some(known) = self.known.get(path).filter(is_same) {
            return Ok(known.digest);
        }
        let digest = read()?;
        self.known.insert(
            path.to_owned(),
            Known {
                stamps: now,
                digest,
            },
        );
        self.is_changed = true;
        Ok(digest)
    }

    /// Stamps of the files of a dataset, as they were when they held this content; empty where that
    /// is not known.
    pub fn stamps(&self, path: &Path, digest: Digest) -> Vec<Stamp> {
        let known = self.known.get(path).filter(|known| known.digest == digest);
        known.map(|known| known.stamps.clone()).unwrap_or_default()
    }

    /// A memo that cannot be written costs time, nothing else.
    pub fn save(&mut self) {
        if std::mem::take(&mut self.is_changed)
            && let Ok(bytes) = serde_json::to_vec(&self.known)
        {
            let _ = write_atomically(&self.path, &bytes, Durability::Plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{data::Dtype, dataset_for_tests::write_dataset};

    #[test]
    fn a_file_is_called_by_its_last_part_that_says_something() {
        let name = |kind: DataKind, path: &str| kind.name_in(path);
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(
            name(DataKind::Dataset, "/data/c4_text_document"),
            some("c4_text_document")
        );
        assert_eq!(name(DataKind::Dataset, "data/c4.v2.idx"), some("c4.v2"));
        assert_eq!(name(DataKind::Dataset, "/"), None);
        assert_eq!(
            name(DataKind::Tokenizer, "/data/llama-3/tokenizer.json"),
            some("llama-3")
        );
        assert_eq!(name(DataKind::Tokenizer, "/data/llama-3/"), some("llama-3"));
        assert_eq!(
            name(DataKind::Tokenizer, "tokenizer.json"),
            some("tokenizer.json")
        );
    }

    #[test]
    fn what_was_read_is_known_once_its_times_are_settled() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("d");
        write_dataset(&prefix, Dtype::U16, &[vec![vec![1, 2, 3]]]);
        let mut memo = DataMemo::load(folder.path());
        let digest = memo.digest(DataKind::Dataset, &prefix).unwrap();
        assert_eq!(digest, data::fingerprint(&prefix).unwrap().0);
        memo.save();
        // A wrong digest shows whether the memo is believed.
        let path = folder.path().join("memos/data.json");
        let mut noted: serde_json::Value =
            serde_json::from_slice(&crate::files::read(&path).unwrap()).unwrap();
        let entry = &mut noted[prefix.to_str().unwrap()];
        entry["digest"] = Digest::of("something else").to_string().into();
        let mut digest_by = |later: f64| {
            for stamp in entry["stamps"].as_array_mut().unwrap() {
                stamp["taken"] = (stamp["taken"].as_f64().unwrap() + later).into();
            }
            let known = serde_json::from_value(entry.clone()).unwrap();
            let mut memo = DataMemo {
                known: [(prefix.clone(), known)].into(),
                ..DataMemo::default()
            };
            memo.digest(DataKind::Dataset, &prefix).unwrap()
        };
        assert_eq!(digest_by(0.0), digest, "the files are young: read again");
        assert_eq!(digest_by(10.0), Digest::of("something else"));
    }
}
