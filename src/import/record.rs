//! What the cache keeps of imports: the raw files as objects, and one list of which cell each is of.
//!
//! The list is an entry under a key of its own that no task has, so that no build can take an import for its result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    cache::{Cache, Entry, Output, TaskKind},
    config::{framework_named, vendor_named, vendor_names},
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

    /// The cell with imports that a name on the command line means: leading parts are enough where one cell has them.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        let parts = |text: &str| -> Vec<String> {
            let path = text.split_once('@').map_or(text, |(path, _)| path);
            let canonical = |(at, part): (usize, &str)| match at {
                0 => vendor_named(part).map_or(part, |vendor| vendor_names(vendor)[0]).to_owned(),
                1 => framework_named(part).unwrap_or(part).to_owned(),
                _ => part.to_owned(),
            };
            path.split('/').enumerate().map(canonical).collect()
        };
        let wanted = parts(name);
        let axes = name.split_once('@').map(|(_, axes)| axes);
        let is_meant = |cell: &&str| {
            let own = parts(cell);
            let same_axes = axes.is_none_or(|axes| cell.split_once('@').is_some_and(|(_, own)| own == axes));
            own.starts_with(&wanted) && same_axes
        };
        let mut meant = self.cells().filter(|cell| *cell == name).chain(self.cells().filter(is_meant));
        let first = meant.next()?;
        (first == name || meant.all(|cell| cell == first)).then_some(first)
    }

    /// Takes over the imports of another cache, whose objects are here already. How many are new.
    pub fn adopt(cache: &Cache, other: &Cache) -> Result<usize> {
        let mut added = 0;
        for (cell, recorded) in Self::of(other).all(other)? {
            added += usize::from(!Self::add(cache, &cell, &recorded)?.1);
        }
        Ok(added)
    }

    fn all(&self, cache: &Cache) -> Result<Vec<(String, Recorded)>> {
        let mut all = Vec::new();
        for cell in self.cells() {
            all.extend(self.runs(cell, cache)?.into_iter().map(|recorded| (cell.to_owned(), recorded)));
        }
        Ok(all)
    }

    /// The key of the list of imports.
    #[must_use]
    pub fn key() -> Digest {
        key()
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
        assert_eq!(Imports::of(&cache).named("amd"), None);
        assert_eq!(Imports::add(&cache, cell, &one).unwrap(), (1, false));
        assert_eq!(Imports::add(&cache, cell, &two).unwrap(), (2, false));
        assert_eq!(Imports::add(&cache, cell, &recorded(b"one", &cache)).unwrap(), (1, true));
        assert_eq!(Imports::add(&cache, "b/c/d/e", &one).unwrap(), (1, false));
        let again = Cache::open(&root).unwrap();
        let all = Imports::of(&again);
        assert_eq!(all.cells().collect::<Vec<_>>(), [cell, "b/c/d/e"]);
        for name in [cell, "amd", "rocm/primus", "amd/prim/llama/x", "AMD/Primus/llama/x@file=a"] {
            assert_eq!(all.named(name), Some(cell), "{name}");
        }
        for name in ["am", "nvd", "amd/prim/llama/x@file=b", "amd/prim/qwen"] {
            assert_eq!(all.named(name), None, "{name}");
        }
        assert_eq!(all.runs(cell, &again).unwrap(), [one.clone(), two]);
        assert_eq!((one.from().as_str(), one.id().len()), ("a.log", 19));
        assert!(all.runs("nothing", &again).unwrap().is_empty());
    }

    #[test]
    fn another_caches_records_and_imports_are_taken_over_once() {
        let folder = tempfile::tempdir().unwrap();
        let caches = ["a", "b"].map(|name| Cache::open(&folder.path().join(name)).unwrap());
        let [ours, theirs] = &caches;
        Imports::add(ours, "a/b/c/d", &recorded(b"ours", ours)).unwrap();
        Imports::add(theirs, "a/b/c/d", &recorded(b"theirs", theirs)).unwrap();
        let output = theirs.put(b"an output", Durability::Plain).unwrap();
        let entry = Entry {
            key: Digest::of("k"),
            kind: TaskKind::Render,
            task: "t".into(),
            preimage: "k".into(),
            outputs: vec![Output { name: "o".into(), digest: output, size: 9 }],
        };
        theirs.record_entry(&entry).unwrap();
        let adopted = ours.adopt(theirs, &Imports::key()).unwrap();
        assert_eq!(
            (adopted.records, adopted.attempts, adopted.objects),
            (1, 0, 3),
            "the entry; the log, its record, the output"
        );
        assert_eq!(Imports::adopt(ours, theirs).unwrap(), 1);
        assert_eq!(ours.get(&output).unwrap().unwrap(), b"an output");
        assert_eq!(ours.outputs(&entry.key).unwrap(), entry.outputs);
        assert_eq!(Imports::of(ours).digests("a/b/c/d").len(), 2, "neither list hides the other");
        let again = ours.adopt(theirs, &Imports::key()).unwrap();
        assert_eq!((again.records, again.objects, Imports::adopt(ours, theirs).unwrap()), (0, 0, 0));
    }
}
