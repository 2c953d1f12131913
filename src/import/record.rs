//! What the cache keeps of imports: the raw files as objects, and one list of which cell each is of.
//!
//! The list is an entry under a key of its own that no task has, so that no build can take an import for its result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    cache::{Cache, Entry, Output, TaskKind},
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

const SCHEMA: &str = "tprimat.import/1";
/// Pre-image of the list's key; no task's pre-image begins so.
const LIST: &str = "tprimat-imports 1\n";
const RECORD: &str = "import.json";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Log,
    Result,
    /// TensorBoard scalars.
    Events,
}

/// One imported run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    pub schema_version: String,
    pub kind: Kind,
    /// In the order in which they are read.
    pub sources: Vec<Source>,
    /// Which repeat it is of a file that has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<u32>,
    /// Nobody named the cell: it was guessed from the file's name and content, and so was the model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_guessed: bool,
    /// Seconds since 1970.
    pub imported_at: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The file's name, without its folder.
    pub name: String,
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
}

impl Recorded {
    #[must_use]
    pub fn new(kind: Kind, sources: Vec<Source>) -> Self {
        Self {
            schema_version: SCHEMA.to_owned(),
            kind,
            sources,
            repeat: None,
            is_guessed: false,
            imported_at: files::unix_now(),
        }
    }

    /// The same bytes, read in the same way.
    fn is(&self, other: &Self) -> bool {
        let digests = |r: &Self| r.sources.iter().map(|s| s.digest).collect::<Vec<_>>();
        self.kind == other.kind && self.repeat == other.repeat && digests(self) == digests(other)
    }

    /// What the run is called: `rank-0.debug.log and 2 more`.
    #[must_use]
    pub fn from(&self) -> String {
        let first = self.sources.first().map_or("", |s| s.name.as_str());
        match (self.sources.len(), self.repeat) {
            (0 | 1, None) => first.to_owned(),
            (0 | 1, Some(repeat)) => format!("repeat {repeat} of {first}"),
            (n, _) => format!("{first} and {} more", n - 1),
        }
    }

    /// Stands for the attempt of a measured run.
    #[must_use]
    pub fn id(&self) -> String {
        let all: String = self.sources.iter().map(|s| s.digest.to_string()).collect();
        let repeat = self.repeat.map(|repeat| format!("#{repeat}")).unwrap_or_default();
        format!("import-{}", Digest::of(all + &repeat).short())
    }
}

/// All imports of a cache, by cell.
#[derive(Clone, Debug, Default)]
pub struct Imports {
    runs: BTreeMap<String, Vec<Digest>>,
    outputs: Vec<Output>,
}

fn key() -> Digest {
    Digest::of(LIST)
}

impl Imports {
    #[must_use]
    pub fn of(cache: &Cache) -> Self {
        let outputs = cache.outputs(&key()).unwrap_or_default();
        let mut runs: BTreeMap<String, Vec<Digest>> = BTreeMap::new();
        for output in &outputs {
            // `CELL#2:import.json`; the raw files stand there too, so that nothing takes them for garbage.
            if let Some((cell, RECORD)) =
                output.name.rsplit_once(':').and_then(|(at, n)| Some((at.split_once('#')?.0, n)))
            {
                runs.entry(cell.to_owned()).or_default().push(output.digest);
            }
        }
        Self { runs, outputs }
    }

    /// Cells that have imports, sorted.
    pub fn cells(&self) -> impl Iterator<Item = &str> {
        self.runs.keys().map(String::as_str)
    }

    /// Digests of a cell's records, in order of import.
    #[must_use]
    pub fn digests(&self, cell: &str) -> &[Digest] {
        self.runs.get(cell).map_or(&[], Vec::as_slice)
    }

    pub fn runs(&self, cell: &str, cache: &Cache) -> Result<Vec<Recorded>> {
        self.digests(cell).iter().map(|digest| read(cache, digest)).collect()
    }

    /// Files one run under a cell; its number, and whether it was there before.
    pub fn add(cache: &Cache, cell: &str, recorded: &Recorded) -> Result<(usize, bool)> {
        let _alone = cache.lock_key(&key())?;
        cache.refresh()?;
        let mut all = Self::of(cache);
        let known = all.runs(cell, cache)?;
        if let Some(at) = known.iter().position(|r| r.is(recorded)) {
            return Ok((at + 1, true));
        }
        let number = known.len() + 1;
        let bytes = serde_json::to_vec_pretty(recorded).map_err(|e| Error::Cache(e.to_string()))?;
        let digest = cache.put(&bytes, Durability::Synced)?;
        let name = |file: &str| format!("{cell}#{number}:{file}");
        all.outputs.push(Output { name: name(RECORD), digest, size: bytes.len() as u64 });
        let raw = recorded.sources.iter().map(|s| Output { name: name("raw"), digest: s.digest, size: s.size });
        all.outputs.extend(raw);
        cache.record_entry(&Entry {
            key: key(),
            kind: TaskKind::Parse,
            task: "imports".to_owned(),
            preimage: LIST.to_owned(),
            outputs: all.outputs,
        })?;
        Ok((number, false))
    }
}

fn read(cache: &Cache, digest: &Digest) -> Result<Recorded> {
    let bytes = cache.get(digest)?.ok_or_else(|| {
        Error::Cache(format!("the record of an import ({}) is gone from the cache; import it again", digest.short()))
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::Cache(format!("the record of an import is not what this version writes: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(bytes: &[u8], cache: &Cache) -> Recorded {
        let digest = cache.put(bytes, Durability::Plain).unwrap();
        Recorded::new(Kind::Log, vec![Source { name: "a.log".into(), digest, size: bytes.len() as u64 }])
    }

    #[test]
    fn the_same_bytes_are_one_import_and_others_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cache");
        let cache = Cache::open(&root).unwrap();
        let (one, two) = (recorded(b"one", &cache), recorded(b"two", &cache));
        let cell = "amd/prim/llama/x@file=a";
        assert_eq!(Imports::add(&cache, cell, &one).unwrap(), (1, false));
        assert_eq!(Imports::add(&cache, cell, &two).unwrap(), (2, false));
        assert_eq!(Imports::add(&cache, cell, &recorded(b"one", &cache)).unwrap(), (1, true));
        assert_eq!(Imports::add(&cache, "b/c/d/e", &one).unwrap(), (1, false));
        let again = Cache::open(&root).unwrap();
        let all = Imports::of(&again);
        assert_eq!(all.cells().collect::<Vec<_>>(), [cell, "b/c/d/e"]);
        assert_eq!(all.runs(cell, &again).unwrap(), [one.clone(), two]);
        assert_eq!((one.from().as_str(), one.id().len()), ("a.log", 19));
        assert!(all.runs("nothing", &again).unwrap().is_empty());
    }
}
