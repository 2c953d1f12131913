//! What the cache keeps of an import: an attempt with another origin, under a key that no task can
//! have, so that no build can take an import for its result. Its outputs are the raw files; marks
//! set it aside and restore it as they do runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use crate::cache::Output as Source;

use super::{Facts, listed};

use crate::{
    cache::{Attempt, Cache, SetAside},
    digest::Digest,
    error::{Error, Result},
    files,
    logs::LogSection,
    matrix::{Cell, Selection},
    results::IMPORT,
};

/// Pre-image of the key of all imports; no task's pre-image begins so.
const PREIMAGE: &str = "tprimat-imports 1\n";
/// Begins the task of an import, before its cell.
const TASK: &str = "import ";

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
    pub kind: Kind,
    /// The format of its cell's recipe that the logs are read by, where that is one of the recipe's own
    /// patterns; else they are read by what they look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogSection>,
    /// The raw files by their names without folders, in the order in which they are read.
    pub sources: Vec<Source>,
    /// Which repeat it is of a file that has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<u32>,
    /// What its importer says of it that the file does not.
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub facts: Facts,
    /// Nobody named the cell: it was guessed from the file's name and content, and so was the
    /// model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_guessed: bool,
    /// Seconds since 1970.
    pub imported_at: f64,
}

impl Recorded {
    #[must_use]
    pub fn new(kind: Kind, sources: Vec<Source>) -> Self {
        Self {
            kind,
            log: None,
            sources,
            repeat: None,
            facts: Facts::new(),
            is_guessed: false,
            imported_at: files::unix_now(),
        }
    }

    /// The same bytes, of the same repeat.
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

    /// The same with the facts that were supplied.
    #[must_use]
    pub fn told(&self) -> String {
        match self.facts.is_empty() {
            true => self.from(),
            false => format!(
                "{}, with {} as its importer says",
                self.from(),
                listed(&self.facts)
            ),
        }
    }

    /// Stands for the attempt of a measured run.
    #[must_use]
    pub fn id(&self) -> String {
        let all: String = self.sources.iter().map(|s| s.digest.to_string()).collect();
        let repeat = self
            .repeat
            .map(|repeat| format!("#{repeat}"))
            .unwrap_or_default();
        format!("{IMPORT}{}", Digest::of(all + &repeat).short())
    }
}

/// What the cache keeps of an import beside its files.
#[derive(Serialize, Deserialize)]
struct Origin {
    number: u32,
    run: Recorded,
}

/// One imported run of a cell, whether it counts or not.
#[derive(Clone, Debug)]
pub struct KeptRun {
    pub cell: String,
    /// As in `CELL#2`.
    pub number: u32,
    pub recorded: Recorded,
    pub attempt: Attempt,
}

impl KeptRun {
    /// `CELL#2`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}#{}", self.cell, self.number)
    }

    #[must_use]
    pub fn set_aside(&self) -> Option<&SetAside> {
        self.attempt.set_aside.as_ref()
    }

    /// Covers all that decides what the import shows, and whether it counts.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let all = (self.number, &self.recorded, self.set_aside());
        Digest::of(serde_json::to_vec(&all).unwrap_or_default())
    }
}

/// What is done about an import (`CELL#2`) with a file that is gone from the cache or damaged: it is left
/// out and named, or it ends the command.
pub type OnDamage = fn(&str, Error) -> Result<()>;

/// All imports of a cache, by cell.
#[derive(Clone, Debug, Default)]
pub struct Imports(BTreeMap<String, Vec<KeptRun>>);

impl Imports {
    #[must_use]
    pub fn of(cache: &Cache) -> Self {
        let mut attempts = cache.attempts(&Digest::of(PREIMAGE));
        attempts.sort_by_key(|attempt| attempt.recorded);
        let mut cells: BTreeMap<String, Vec<KeptRun>> = BTreeMap::new();
        for attempt in attempts {
            let origin = attempt.origin.clone().map(serde_json::from_value::<Origin>);
            let (Some(Ok(origin)), Some(cell)) = (origin, attempt.task.strip_prefix(TASK)) else {
                continue;
            };
            let runs = cells.entry(cell.to_owned()).or_default();
            // Two caches may have given a number without knowing of each other: then the later one gets another.
            let is_free = |number: &u32| runs.iter().all(|run| run.number != *number);
            runs.push(KeptRun {
                cell: cell.to_owned(),
                number: (origin.number..).find(is_free).unwrap_or(origin.number),
                recorded: origin.run,
                attempt,
            });
        }
        Self(cells)
    }

    /// Every import of a cell, also those that were set aside.
    #[must_use]
    pub fn kept(&self, cell: &str) -> &[KeptRun] {
        self.0.get(cell).map_or(&[], Vec::as_slice)
    }

    /// The imports of a cell that count.
    pub fn counted(&self, cell: &str) -> impl Iterator<Item = &KeptRun> {
        let runs = self.kept(cell).iter();
        runs.filter(|run| run.set_aside().is_none())
    }

    /// Has the cell an import that counts?
    #[must_use]
    pub fn has(&self, cell: &str) -> bool {
        self.counted(cell).next().is_some()
    }

    /// The imports of a cell that were set aside: number and reason.
    pub fn set_aside_of(&self, cell: &str) -> impl Iterator<Item = (u32, &SetAside)> {
        let runs = self.kept(cell).iter();
        runs.filter_map(|run| Some((run.number, run.set_aside()?)))
    }

    /// Cells with an import that counts, sorted.
    pub fn cells(&self) -> impl Iterator<Item = &str> + Clone {
        self.kept_cells().filter(|cell| self.has(cell))
    }

    /// The same with those whose imports were all set aside.
    pub fn kept_cells(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.keys().map(String::as_str)
    }

    /// The cell with imports that a name on the command line means, as names of cells of a matrix do: one
    /// with imports that count first.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        meant(self.cells().collect(), name).or_else(|| meant(self.kept_cells().collect(), name))
    }

    /// An import of another cell that is of the same first file and counts.
    #[must_use]
    pub fn elsewhere(&self, cell: &str, recorded: &Recorded) -> Option<&KeptRun> {
        let first = |run: &Recorded| run.sources.first().map(|source| source.digest);
        let others = self.cells().filter(|other| *other != cell);
        others
            .flat_map(|other| self.counted(other))
            .find(|run| first(&run.recorded) == first(recorded))
    }

    /// Files one run under a cell; its number, and whether it was there before. Importing a file again
    /// replaces its record where the recipe reads logs in another way by now or other facts are supplied; its number stays.
    pub fn add(cache: &Cache, cell: &str, recorded: &Recorded) -> Result<(u32, bool)> {
        let _alone = cache.lock_key(&Digest::of(PREIMAGE))?;
        let all = Self::of(cache);
        let runs = all.kept(cell);
        let known = runs.iter().find(|run| run.recorded.is(recorded));
        let number = match known {
            Some(known)
                if known.recorded.log == recorded.log && known.recorded.facts == recorded.facts =>
            {
                return Ok((known.number, true));
            }
            Some(known) => known.number,
            None => {
                let taken: BTreeSet<u32> = runs.iter().map(|run| run.number).collect();
                let free = (1..).find(|number| !taken.contains(number));
                free.unwrap_or(u32::MAX)
            }
        };
        cache.record_import(&attempt(cell, number, recorded)?)?;
        Ok((number, known.is_some()))
    }
}

fn attempt(cell: &str, number: u32, recorded: &Recorded) -> Result<Attempt> {
    let origin = Origin {
        number,
        run: recorded.clone(),
    };
    let origin = serde_json::to_value(origin)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    // Ranks of several folders may have one name.
    let outputs = (1..).zip(&recorded.sources).map(|(at, source)| Source {
        name: format!("raw-{at}"),
        ..source.clone()
    });
    let of_cell = Digest::of(format!("{cell} {}", recorded.id()));
    Ok(Attempt {
        started_at: recorded.imported_at,
        ended_at: recorded.imported_at,
        origin: Some(origin),
        ..Attempt::ok(
            format!("{IMPORT}{}", of_cell.short()),
            format!("{TASK}{cell}"),
            PREIMAGE.to_owned(),
            outputs.collect(),
        )
    })
}

/// The only one of the cells that a name fits.
fn meant<'a>(cells: Vec<&'a str>, name: &str) -> Option<&'a str> {
    if let Some(exact) = cells.iter().find(|cell| **cell == name) {
        return Some(exact);
    }
    // A pattern is for several cells, whichever it fits.
    if name.contains(['*', '?', '[']) {
        return None;
    }
    let parts: Vec<Cell> = cells.iter().copied().map(Cell::of_id).collect();
    let selected = Selection::of_cell(name).select(&parts).ok()?;
    let mut meant = cells.into_iter().zip(selected).filter(|(_, is)| *is);
    let (only, _) = meant.next()?;
    meant.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Durability;

    fn recorded(bytes: &[u8], cache: &Cache) -> Recorded {
        let digest = cache.put(bytes, Durability::Plain).unwrap();
        Recorded::new(
            Kind::Log,
            vec![Source {
                name: "a.log".into(),
                digest,
                size: bytes.len() as u64,
            }],
        )
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
        assert_eq!(
            Imports::add(&cache, cell, &recorded(b"one", &cache)).unwrap(),
            (1, true)
        );
        assert_eq!(Imports::add(&cache, "b/c/d/e", &one).unwrap(), (1, false));
        let again = Cache::open(&root).unwrap();
        let all = Imports::of(&again);
        assert_eq!(all.cells().collect::<Vec<_>>(), [cell, "b/c/d/e"]);
        for name in [
            cell,
            "amd",
            "rocm/primus",
            "amd/prim/llama/x",
            "AMD/Primus/llama/x@file=a",
        ] {
            assert_eq!(all.named(name), Some(cell), "{name}");
        }
        for name in ["am", "nvd", "amd/prim/llama/x@file=b", "amd/prim/qwen"] {
            assert_eq!(all.named(name), None, "{name}");
        }
        let counted = all
            .counted(cell)
            .map(|run| (run.number, run.recorded.clone()));
        assert_eq!(counted.collect::<Vec<_>>(), [(1, one.clone()), (2, two)]);
        assert_eq!((one.from().as_str(), one.id().len()), ("a.log", 19));
        assert!(!all.has("nothing"));
    }

    #[test]
    fn caches_are_merged_by_copying_and_decisions_come_with_the_imports() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["a", "b"].map(|name| {
            let root = folder.path().join(name);
            Cache::open(&root).unwrap()
        });
        let cell = "a/b/c/d";
        let why = SetAside {
            reason: "a slip".into(),
            at: 7.0,
        };
        Imports::add(&ours, cell, &recorded(b"ours", &ours)).unwrap();
        Imports::add(&theirs, cell, &recorded(b"slip", &theirs)).unwrap();
        Imports::add(&theirs, cell, &recorded(b"theirs", &theirs)).unwrap();
        let theirs_now = Imports::of(&theirs);
        let slip = &theirs_now.kept(cell)[0].attempt;
        theirs.set_aside(slip, Some(&why)).unwrap();
        let merge = || {
            let remote = crate::cache::Remote::of_cache(theirs.root());
            let listing = remote.list(None).unwrap();
            remote.pull(&ours, &listing, &|_, _| Ok(())).unwrap()
        };
        let pulled = merge();
        let counts = pulled.counts;
        assert_eq!((counts.runs, counts.imports, counts.decisions), (0, 2, 1));
        let all = Imports::of(&ours);
        let numbers: Vec<u32> = all.kept(cell).iter().map(|run| run.number).collect();
        assert_eq!(numbers, [1, 2, 3], "each has a number of its own");
        assert_eq!(all.set_aside_of(cell).collect::<Vec<_>>(), [(2, &why)]);
        // Whoever takes the decision back here keeps it so.
        ours.set_aside(&all.kept(cell)[1].attempt, None).unwrap();
        assert_eq!(merge().counts.decisions, 0);
        assert_eq!(Imports::of(&ours).set_aside_of(cell).count(), 0);
    }
}
