//! What the cache keeps of an import: an attempt with another origin, under a key that no task can
//! have, so that no build can take an import for its result. Its outputs are the raw files; marks
//! set it aside and restore it as they do runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    cache::{Attempt, Cache, Output, SetAside, Undeclared, is_of_one_file},
    config::{framework_named, vendor_named, vendor_names},
    digest::Digest,
    error::{Error, Result},
    files,
    job::RunOutcome,
    logs::LogSection,
    results::IMPORT,
};

const SCHEMA: &str = "tprimat.import/1";
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
    pub schema_version: String,
    pub kind: Kind,
    /// The format of its cell's recipe that the logs are read by, where that is one of the recipe's own
    /// patterns; else they are read by what they look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogSection>,
    /// In the order in which they are read.
    pub sources: Vec<Source>,
    /// Which repeat it is of a file that has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<u32>,
    /// Nobody named the cell: it was guessed from the file's name and content, and so was the
    /// model.
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
            log: None,
            sources,
            repeat: None,
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

/// All imports of a cache, by cell.
#[derive(Clone, Debug, Default)]
pub struct Imports(BTreeMap<String, Vec<KeptRun>>);

/// What the cache keeps of an import beside its files.
#[derive(Serialize, Deserialize)]
struct Origin {
    number: u32,
    run: Recorded,
}

/// One imported run of a cell, whether it counts or not.
#[derive(Clone, Debug)]
pub struct KeptRun {
    /// As in `CELL#2`.
    pub number: u32,
    pub recorded: Recorded,
    pub set_aside: Option<SetAside>,
    attempt: Attempt,
}

/// An import that cannot be shown, since a file of it is gone from the cache or damaged there.
#[derive(Debug)]
pub struct DamagedImport {
    /// `CELL#2`.
    pub name: String,
    pub error: Error,
}

/// What is done about an import that cannot be read: it is left out and named, or it ends the command.
pub type OnDamage = fn(DamagedImport) -> Result<()>;

impl DamagedImport {
    /// For results that are kept: they must not be made of fewer imports than their keys name.
    pub fn fail(self) -> Result<()> {
        Err(self.error)
    }
}

/// What was read of the import `CELL#2`; none where a file of it is damaged and `on_damage` leaves
/// it out.
pub(super) fn unless_damaged<T>(
    cell: &str,
    number: u32,
    read: Result<T>,
    on_damage: OnDamage,
) -> Result<Option<T>> {
    match read {
        Err(error) if is_of_one_file(&error) => {
            let name = format!("{cell}#{number}");
            on_damage(DamagedImport { name, error }).map(|()| None)
        }
        read => read.map(Some),
    }
}

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
            runs.push(KeptRun {
                number: origin.number,
                recorded: origin.run,
                set_aside: attempt.set_aside.clone(),
                attempt,
            });
        }
        cells.values_mut().for_each(|runs| number_apart(runs));
        Self(cells)
    }

    fn runs(&self, cell: &str) -> &[KeptRun] {
        self.0.get(cell).map_or(&[], Vec::as_slice)
    }

    fn counted_of(&self, cell: &str) -> impl Iterator<Item = &KeptRun> {
        self.runs(cell).iter().filter(|run| run.set_aside.is_none())
    }

    /// Cells that have imports, sorted.
    pub fn cells(&self) -> impl Iterator<Item = &str> + Clone {
        self.kept_cells()
            .filter(|cell| self.counted_of(cell).next().is_some())
    }

    /// The same with those whose imports were all set aside.
    pub fn kept_cells(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.keys().map(String::as_str)
    }

    /// How many imports there are of all cells, whether they count or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// How many imports of a cell were set aside.
    #[must_use]
    pub fn count_set_aside(&self, cell: &str) -> usize {
        self.set_aside_of(cell).len()
    }

    /// The imports of a cell that were set aside: number and reason.
    #[must_use]
    pub fn set_aside_of(&self, cell: &str) -> Vec<(u32, SetAside)> {
        let runs = self.runs(cell).iter();
        runs.filter_map(|run| Some((run.number, run.set_aside.clone()?)))
            .collect()
    }

    /// The cell with imports that a name on the command line means: leading parts are enough where
    /// one cell has them.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        meant(self.cells(), name)
    }

    /// The same among cells whose imports were all set aside as well.
    #[must_use]
    pub fn named_kept(&self, name: &str) -> Option<&str> {
        meant(self.kept_cells(), name)
    }

    /// Every import of a cell, with why it does not count where it was set aside.
    #[must_use]
    pub fn kept(&self, cell: &str) -> Vec<KeptRun> {
        self.runs(cell).to_vec()
    }

    /// Lets an import count no longer, or again. Nothing of it is deleted.
    pub fn set_aside(cache: &Cache, run: &KeptRun, why: Option<&SetAside>) -> Result<()> {
        cache.set_aside(&run.attempt, why)
    }

    /// Digests of a cell's records, in order of import.
    #[must_use]
    pub fn digests(&self, cell: &str) -> Vec<Digest> {
        self.counted_of(cell)
            .map(|run| digest_of(&run.recorded))
            .collect()
    }

    /// Digests of why imports of a cell were set aside, in order of import.
    #[must_use]
    pub fn set_aside_digests(&self, cell: &str) -> Vec<Digest> {
        let runs = self.runs(cell).iter();
        runs.filter_map(|run| Some(digest_of(run.set_aside.as_ref()?)))
            .collect()
    }

    /// The imports of a cell that count, each with its number.
    #[must_use]
    pub fn counted(&self, cell: &str) -> Vec<(u32, Recorded)> {
        self.counted_of(cell)
            .map(|run| (run.number, run.recorded.clone()))
            .collect()
    }

    /// An import of another cell that is of the same first file and counts, as `CELL#2`.
    #[must_use]
    pub fn elsewhere(&self, cell: &str, recorded: &Recorded) -> Option<String> {
        let first = |run: &Recorded| run.sources.first().map(|source| source.digest);
        let raw = first(recorded)?;
        let others = self.cells().filter(|other| *other != cell);
        let mut named = others.flat_map(|other| {
            let same = self
                .counted_of(other)
                .filter(|run| first(&run.recorded) == Some(raw));
            same.map(move |run| format!("{other}#{}", run.number))
        });
        named.next()
    }

    /// Files one run under a cell; its number, and whether it was there before. Importing a file again
    /// replaces its record where the recipe reads logs in another way by now; its number stays.
    pub fn add(cache: &Cache, cell: &str, recorded: &Recorded) -> Result<(u32, bool)> {
        let _alone = cache.lock_key(&Digest::of(PREIMAGE))?;
        let all = Self::of(cache);
        let known = all.runs(cell).iter().find(|run| run.recorded.is(recorded));
        if let Some(known) = known.filter(|known| known.recorded.log == recorded.log) {
            return Ok((known.number, true));
        }
        let taken: BTreeSet<u32> = all.runs(cell).iter().map(|run| run.number).collect();
        let free = (1..).find(|number| !taken.contains(number));
        let free = free.unwrap_or(u32::MAX);
        let number = known.map_or(free, |known| known.number);
        cache.record_import(&attempt(cell, number, recorded)?)?;
        Ok((number, known.is_some()))
    }
}

/// Numbers that two caches gave without knowing of each other are given once more, in order of
/// import.
fn number_apart(runs: &mut [KeptRun]) {
    let mut taken = BTreeSet::new();
    for run in runs {
        if !taken.insert(run.number) {
            run.number = taken.last().map_or(1, |last| last.saturating_add(1));
            taken.insert(run.number);
        }
    }
}

fn attempt(cell: &str, number: u32, recorded: &Recorded) -> Result<Attempt> {
    let origin = Origin {
        number,
        run: recorded.clone(),
    };
    let origin = serde_json::to_value(origin)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    let outputs = (1..).zip(&recorded.sources).map(|(at, source)| Output {
        name: format!("raw-{at}"),
        digest: source.digest,
        size: source.size,
    });
    let of_cell = Digest::of(format!("{cell} {}", recorded.id()));
    Ok(Attempt {
        id: format!("{IMPORT}{}", of_cell.short()),
        key: Digest::of(PREIMAGE),
        task: format!("{TASK}{cell}"),
        preimage: PREIMAGE.to_owned(),
        generation: 0,
        outcome: RunOutcome::Ok,
        outputs: outputs.collect(),
        started_at: recorded.imported_at,
        ended_at: recorded.imported_at,
        host: String::new(),
        suspect: None,
        repeats_planned: None,
        set_aside: None,
        undeclared: Undeclared::default(),
        commit: None,
        origin: Some(origin),
        recorded: 0,
    })
}

fn digest_of(value: &impl Serialize) -> Digest {
    Digest::of(serde_json::to_vec(value).unwrap_or_default())
}

/// The cell that a name on the command line means: leading parts are enough where they fit one.
fn meant<'a>(cells: impl Iterator<Item = &'a str> + Clone, name: &str) -> Option<&'a str> {
    let parts = |text: &str| -> Vec<String> {
        let path = text.split_once('@').map_or(text, |(path, _)| path);
        let canonical = |(at, part): (usize, &str)| match at {
            0 => vendor_named(part)
                .map_or(part, |vendor| vendor_names(vendor)[0])
                .to_owned(),
            1 => framework_named(part).unwrap_or(part).to_owned(),
            _ => part.to_owned(),
        };
        path.split('/').enumerate().map(canonical).collect()
    };
    let wanted = parts(name);
    let axes = name.split_once('@').map(|(_, axes)| axes);
    let is_meant = |cell: &&str| {
        let own = parts(cell);
        let same_axes =
            axes.is_none_or(|axes| cell.split_once('@').is_some_and(|(_, own)| own == axes));
        own.starts_with(&wanted) && same_axes
    };
    let mut meant = cells
        .clone()
        .filter(|cell| *cell == name)
        .chain(cells.filter(is_meant));
    let first = meant.next()?;
    (first == name || meant.all(|cell| cell == first)).then_some(first)
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
        assert_eq!(all.counted(cell), [(1, one.clone()), (2, two)]);
        assert_eq!((one.from().as_str(), one.id().len()), ("a.log", 19));
        assert!(all.counted("nothing").is_empty());
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
        let slip = Imports::of(&theirs).kept(cell).remove(0);
        Imports::set_aside(&theirs, &slip, Some(&why)).unwrap();
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
        assert_eq!(all.set_aside_of(cell), [(2, why)]);
        // Whoever takes the decision back here keeps it so.
        Imports::set_aside(&ours, &all.kept(cell)[1], None).unwrap();
        assert_eq!(merge().counts.decisions, 0);
        assert_eq!(Imports::of(&ours).count_set_aside(cell), 0);
    }
}
