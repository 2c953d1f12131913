//! What the cache keeps of imports: the raw files as objects, and one list of which cell each is
//! of.
//!
//! The list is an entry under a key of its own that no task has, so that no build can take an
//! import for its result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    cache::{Cache, CacheError, Entry, Output, SetAside, TaskKind, is_of_one_file},
    config::{framework_named, vendor_named, vendor_names},
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
    logs::LogSection,
    results::IMPORT,
};

const SCHEMA: &str = "tprimat.import/1";
/// Pre-image of the list's key; no task's pre-image begins so.
const LIST: &str = "tprimat-imports 1\n";
const RECORD: &str = "import.json";
/// Beside the record of a run that was set aside.
const SET_ASIDE: &str = "set-aside.json";

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
pub struct Imports {
    /// Digests of the records that count.
    runs: BTreeMap<String, Vec<Digest>>,
    /// Those that were set aside as well.
    kept: BTreeMap<String, Vec<Kept>>,
    outputs: Vec<Output>,
}

/// An import as the list has it.
#[derive(Clone, Debug)]
struct Kept {
    number: u32,
    record: Digest,
    set_aside: Option<Digest>,
}

/// One imported run of a cell, whether it counts or not.
#[derive(Clone, Debug)]
pub struct KeptRun {
    /// As in `CELL#2`.
    pub number: u32,
    pub recorded: Recorded,
    pub set_aside: Option<SetAside>,
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

fn key() -> Digest {
    Digest::of(LIST)
}

impl Imports {
    #[must_use]
    pub fn of(cache: &Cache) -> Self {
        Self::listed(cache.outputs(&key()).unwrap_or_default())
    }

    /// The imports of a list, as its record names them.
    fn listed(outputs: Vec<Output>) -> Self {
        let mut kept: BTreeMap<String, Vec<Kept>> = BTreeMap::new();
        for output in &outputs {
            // `CELL#2:import.json`; the raw files stand there too, so that nothing takes them for
            // garbage.
            let Some((cell, number, file)) = output.name.rsplit_once(':').and_then(|(at, file)| {
                let (cell, number) = at.split_once('#')?;
                Some((cell, number.parse::<u32>().ok()?, file))
            }) else {
                continue;
            };
            let runs = kept.entry(cell.to_owned()).or_default();
            match file {
                RECORD => runs.push(Kept {
                    number,
                    record: output.digest,
                    set_aside: None,
                }),
                SET_ASIDE => runs
                    .iter_mut()
                    .filter(|run| run.number == number)
                    .for_each(|run| run.set_aside = Some(output.digest)),
                _ => {}
            }
        }
        let counts = |runs: &[Kept]| -> Vec<Digest> {
            let counted = runs.iter().filter(|run| run.set_aside.is_none());
            counted.map(|run| run.record).collect()
        };
        let runs = kept
            .iter()
            .map(|(cell, runs)| (cell.clone(), counts(runs)))
            .filter(|(_, runs)| !runs.is_empty())
            .collect();
        Self {
            runs,
            kept,
            outputs,
        }
    }

    /// Cells that have imports, sorted.
    pub fn cells(&self) -> impl Iterator<Item = &str> {
        self.runs.keys().map(String::as_str)
    }

    /// The same with those whose imports were all set aside.
    pub fn kept_cells(&self) -> impl Iterator<Item = &str> {
        self.kept.keys().map(String::as_str)
    }

    /// How many imports there are of all cells, whether they count or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.kept.values().map(Vec::len).sum()
    }

    /// How many imports of a cell were set aside.
    #[must_use]
    pub fn count_set_aside(&self, cell: &str) -> usize {
        let kept = self.kept.get(cell).into_iter().flatten();
        kept.filter(|run| run.set_aside.is_some()).count()
    }

    /// The imports of a cell that were set aside: number and reason.
    pub fn set_aside_of(&self, cell: &str, cache: &Cache) -> Result<Vec<(u32, SetAside)>> {
        let kept = self.kept.get(cell).into_iter().flatten();
        kept.filter_map(|run| Some((run.number, run.set_aside?)))
            .map(|(number, why)| match read(cache, &why) {
                // It does not count, whatever was said of it.
                Err(error) if is_of_one_file(&error) => {
                    let reason = "the reason is gone from the cache or damaged".to_owned();
                    Ok((number, SetAside { reason, at: 0.0 }))
                }
                read => Ok((number, read?)),
            })
            .collect()
    }

    /// The cell with imports that a name on the command line means: leading parts are enough where
    /// one cell has them.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        meant(self.runs.keys(), name)
    }

    /// The same among cells whose imports were all set aside as well.
    #[must_use]
    pub fn named_kept(&self, name: &str) -> Option<&str> {
        meant(self.kept.keys(), name)
    }

    /// Every import of a cell, with why it does not count where it was set aside.
    pub fn kept(&self, cell: &str, cache: &Cache, on_damage: OnDamage) -> Result<Vec<KeptRun>> {
        let read = |run: &Kept| {
            Ok(KeptRun {
                number: run.number,
                recorded: read(cache, &run.record)?,
                set_aside: run.set_aside.map(|why| read(cache, &why)).transpose()?,
            })
        };
        let kept = self.kept.get(cell).into_iter().flatten();
        kept.filter_map(|run| unless_damaged(cell, run.number, read(run), on_damage).transpose())
            .collect()
    }

    /// Lets an import count no longer, or again. Nothing of it is deleted.
    pub fn set_aside(cache: &Cache, cell: &str, number: u32, why: Option<&SetAside>) -> Result<()> {
        let _alone = cache.lock_key(&key())?;
        cache.refresh()?;
        let mut outputs = Self::of(cache).outputs;
        let name = format!("{cell}#{number}:{SET_ASIDE}");
        outputs.retain(|output| output.name != name);
        if let Some(why) = why {
            outputs.push(stored(cache, name, why)?);
        }
        write(cache, outputs)
    }

    /// Takes over the imports of another cache, whose objects are here already. How many are new.
    pub fn adopt(cache: &Cache, other: &Cache, on_damage: OnDamage) -> Result<usize> {
        Self::take_over(cache, Self::of(other).all(other, on_damage)?)
    }

    /// Takes over the imports of a list that came with its objects. How many are new.
    pub fn take_in(cache: &Cache, list: Vec<Output>, on_damage: OnDamage) -> Result<usize> {
        Self::take_over(cache, Self::listed(list).all(cache, on_damage)?)
    }

    /// What was set aside there is set aside here. An import that is here already stays as it is.
    fn take_over(cache: &Cache, imports: Vec<(String, KeptRun)>) -> Result<usize> {
        let mut added = 0;
        for (cell, run) in imports {
            let filing = Filing::TakenOver(run.set_aside.as_ref());
            let (_, is_known) = Self::file(cache, &cell, &run.recorded, filing)?;
            added += usize::from(!is_known);
        }
        Ok(added)
    }

    fn all(&self, cache: &Cache, on_damage: OnDamage) -> Result<Vec<(String, KeptRun)>> {
        let mut all = Vec::new();
        for cell in self.kept_cells() {
            let kept = self.kept(cell, cache, on_damage)?.into_iter();
            all.extend(kept.map(|run| (cell.to_owned(), run)));
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

    /// Digests of why imports of a cell were set aside, in order of import.
    #[must_use]
    pub fn set_aside_digests(&self, cell: &str) -> Vec<Digest> {
        let kept = self.kept.get(cell).into_iter().flatten();
        kept.filter_map(|run| run.set_aside).collect()
    }

    /// The imports of a cell that count, each with its number.
    pub fn counted(&self, cell: &str, cache: &Cache) -> Vec<(u32, Result<Recorded>)> {
        let counted = self.kept.get(cell).into_iter().flatten();
        counted
            .filter(|run| run.set_aside.is_none())
            .map(|run| (run.number, read(cache, &run.record)))
            .collect()
    }

    /// An import of another cell that is of the same first file and counts, as `CELL#2`. No record
    /// is read for it: a folder may have thousands.
    #[must_use]
    pub fn elsewhere(&self, cell: &str, recorded: &Recorded) -> Option<&str> {
        let raw = recorded.sources.first()?.digest;
        let counts = |name: &str| {
            let (other, number) = name.split_once('#')?;
            let number: u32 = number.parse().ok()?;
            let runs = self.kept.get(other).filter(|_| other != cell)?;
            let run = runs.iter().find(|run| run.number == number)?;
            run.set_aside.is_none().then_some(())
        };
        let files = self.outputs.iter().filter(|output| output.digest == raw);
        let mut names = files.filter_map(|output| output.name.strip_suffix(":raw"));
        names.find(|name| counts(name).is_some())
    }

    /// Files one run under a cell; its number, and whether it was there before.
    pub fn add(cache: &Cache, cell: &str, recorded: &Recorded) -> Result<(u32, bool)> {
        Self::file(cache, cell, recorded, Filing::Asked)
    }

    /// The same with the decision to set it aside, in one write: a kill in between would leave a run
    /// that counts for ever, since the next time it is known.
    fn file(
        cache: &Cache,
        cell: &str,
        recorded: &Recorded,
        filing: Filing<'_>,
    ) -> Result<(u32, bool)> {
        let _alone = cache.lock_key(&key())?;
        cache.refresh()?;
        let mut all = Self::of(cache);
        let listed = all.kept.get(cell).map_or(&[][..], Vec::as_slice);
        let (mut damaged, mut read_otherwise) = (Vec::new(), None);
        for run in listed {
            match read::<Recorded>(cache, &run.record) {
                Ok(known)
                    if known.is(recorded)
                        && known.log != recorded.log
                        && matches!(filing, Filing::Asked) =>
                {
                    read_otherwise = Some(run.number);
                }
                Ok(known) if known.is(recorded) => return Ok((run.number, true)),
                Err(error) if !is_of_one_file(&error) => return Err(error),
                Ok(_) => {}
                Err(_) => damaged.push(run.number),
            }
        }
        // Importing a file again replaces its record where that is damaged, or where the recipe reads
        // logs in another way by now; its number stays.
        let of_same_files = |number: &u32| {
            let name = format!("{cell}#{number}:raw");
            let files = all.outputs.iter().filter(|output| output.name == name);
            let own = recorded.sources.iter().map(|source| source.digest);
            files.map(|output| output.digest).eq(own)
        };
        let replaced = damaged.into_iter().find(of_same_files);
        if let Some(number) = read_otherwise.or(replaced) {
            let name = format!("{cell}#{number}:{RECORD}");
            let record = stored(cache, name, recorded)?;
            let old = all.outputs.iter_mut().find(|old| old.name == record.name);
            old.into_iter().for_each(|old| *old = record.clone());
            write(cache, all.outputs)?;
            return Ok((number, true));
        }
        let number = listed.iter().map(|run| run.number).max().unwrap_or(0) + 1;
        let name = |file: &str| format!("{cell}#{number}:{file}");
        all.outputs.push(stored(cache, name(RECORD), recorded)?);
        let raw = recorded.sources.iter().map(|s| Output {
            name: name("raw"),
            digest: s.digest,
            size: s.size,
        });
        all.outputs.extend(raw);
        if let Filing::TakenOver(Some(why)) = filing {
            all.outputs.push(stored(cache, name(SET_ASIDE), why)?);
        }
        write(cache, all.outputs)?;
        Ok((number, false))
    }
}

/// How an import comes here.
#[derive(Clone, Copy)]
enum Filing<'a> {
    /// Somebody imports its files.
    Asked,
    /// From another cache, where it may have been set aside.
    TakenOver(Option<&'a SetAside>),
}

/// The cell that a name on the command line means: leading parts are enough where they fit one.
fn meant<'a>(cells: impl Iterator<Item = &'a String> + Clone, name: &str) -> Option<&'a str> {
    let cells = cells.map(String::as_str);
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

fn stored(cache: &Cache, name: String, value: &impl Serialize) -> Result<Output> {
    let bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    Ok(Output {
        name,
        digest: cache.put(&bytes, Durability::Synced)?,
        size: bytes.len() as u64,
    })
}

fn write(cache: &Cache, outputs: Vec<Output>) -> Result<()> {
    cache.record_entry(&Entry {
        key: key(),
        kind: TaskKind::Parse,
        task: "imports".to_owned(),
        preimage: LIST.to_owned(),
        outputs,
    })?;
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(cache: &Cache, digest: &Digest) -> Result<T> {
    let bytes = cache.get(digest)?.ok_or_else(|| {
        let what = format!("the record of an import ({})", digest.short());
        Error::from(CacheError::Gone {
            what,
            again: "import it again",
        })
    })?;
    let other_version = |source| {
        CacheError::OtherVersion {
            what: "the record of an import".to_owned(),
            source,
        }
        .into()
    };
    serde_json::from_slice(&bytes).map_err(other_version)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let counted = all.counted(cell, &again).into_iter();
        let counted: Vec<_> = counted.map(|(n, run)| (n, run.unwrap())).collect();
        assert_eq!(counted, [(1, one.clone()), (2, two)]);
        assert_eq!((one.from().as_str(), one.id().len()), ("a.log", 19));
        assert!(all.counted("nothing", &again).is_empty());
    }

    #[test]
    fn an_import_that_was_set_aside_is_taken_over_as_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, bundled, theirs] = ["a", "b", "c"].map(|name| {
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
        Imports::set_aside(&theirs, cell, 1, Some(&why)).unwrap();
        for cache in [&ours, &bundled] {
            cache.adopt(&theirs, &Imports::key()).unwrap();
        }
        assert_eq!(
            Imports::adopt(&ours, &theirs, DamagedImport::fail).unwrap(),
            2
        );
        let list = theirs.outputs(&Imports::key()).unwrap();
        assert_eq!(
            Imports::take_in(&bundled, list, DamagedImport::fail).unwrap(),
            2
        );
        for (cache, number) in [(&ours, 2), (&bundled, 1)] {
            let aside = Imports::of(cache).set_aside_of(cell, cache).unwrap();
            assert_eq!(aside, [(number, why.clone())]);
        }
        // In one write, or a kill in between would let it count.
        let once = Cache::open(&folder.path().join("d")).unwrap();
        let slip = KeptRun {
            number: 1,
            recorded: recorded(b"slip", &once),
            set_aside: Some(why.clone()),
        };
        Imports::take_over(&once, vec![(cell.to_owned(), slip)]).unwrap();
        assert_eq!(Imports::of(&once).count_set_aside(cell), 1);
        let segments = std::fs::read_dir(folder.path().join("d/segments")).unwrap();
        let written: Vec<u8> = segments
            .flat_map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .collect();
        let written = String::from_utf8_lossy(&written).into_owned();
        assert_eq!(written.matches(RECORD).count(), 1, "{written}");
        // Whoever takes the decision back here keeps it so.
        Imports::set_aside(&ours, cell, 2, None).unwrap();
        assert_eq!(
            Imports::adopt(&ours, &theirs, DamagedImport::fail).unwrap(),
            0
        );
        assert_eq!(Imports::of(&ours).count_set_aside(cell), 0);
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
            outputs: vec![Output {
                name: "o".into(),
                digest: output,
                size: 9,
            }],
        };
        theirs.record_entry(&entry).unwrap();
        let adopted = ours.adopt(theirs, &Imports::key()).unwrap();
        assert_eq!(
            (adopted.records, adopted.attempts, adopted.objects),
            (1, 0, 3),
            "the entry; the log, its record, the output"
        );
        assert_eq!(
            Imports::adopt(ours, theirs, DamagedImport::fail).unwrap(),
            1
        );
        assert_eq!(ours.get(&output).unwrap().unwrap(), b"an output");
        assert_eq!(ours.outputs(&entry.key).unwrap(), entry.outputs);
        assert_eq!(
            Imports::of(ours).digests("a/b/c/d").len(),
            2,
            "neither list hides the other"
        );
        let again = ours.adopt(theirs, &Imports::key()).unwrap();
        assert_eq!(
            (
                again.records,
                again.objects,
                Imports::adopt(ours, theirs, DamagedImport::fail).unwrap()
            ),
            (0, 0, 0)
        );
    }
}
