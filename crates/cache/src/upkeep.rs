//! What a cache holds, whether it is sound, and what can be removed from it.
//!
//! Nothing that was measured is ever removed: outputs of runs, imports, and the results and
//! summaries made of them stay, whatever their age. What can go is what the next build draws again
//! (comparisons, pictures, reports), and objects that no record names.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs::{self, File},
    io,
    path::PathBuf,
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability},
};

use super::{
    encode,
    entry::{Entry, Output, TaskKind},
    error::CacheError,
    frame::{self, Mark},
    segment::{DamagedRecords, is_segment},
    snapshot::Snapshot,
    store::Cache,
};

/// An object that no record names may be one that is being recorded.
const YOUNG: Duration = Duration::from_secs(24 * 60 * 60);

/// Pre-image of the key of the list of lost files; no task's pre-image begins so.
const LOST: &str = "tprimat-lost 1\n";

/// The same of the list of stretches of segments that are gone.
const GONE: &str = "tprimat-gone 1\n";

/// The key of the list of stretches that are gone.
fn gone_key() -> Digest {
    Digest::of(GONE)
}

/// Is it an entry that lists what is lost? It is of this cache alone.
pub(super) fn is_of_losses(key: &Digest) -> bool {
    [lost_key(), gone_key()].contains(key)
}

/// The key of the list of lost files.
fn lost_key() -> Digest {
    Digest::of(LOST)
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    pub runs: usize,
    pub objects: usize,
    /// Bytes of the objects on the disk.
    pub bytes: u64,
    /// Bytes of the records.
    pub record_bytes: u64,
    /// Objects that the next build could draw again.
    pub drawn: usize,
    pub drawn_bytes: u64,
    /// Objects that no record names.
    pub unnamed: usize,
    pub unnamed_bytes: u64,
    /// When the first and the last run began, in seconds since 1970.
    pub first_run: Option<f64>,
    pub last_run: Option<f64>,
}

/// What a look at every object found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    pub objects: usize,
    /// Objects whose bytes are not what their names say.
    pub damaged: Vec<Digest>,
    /// Whose they are, as far as a record names them.
    pub damaged_files: Vec<NamedObject>,
    /// Files of runs that are not there: the task and the file's name.
    pub lost: Vec<(String, String)>,
    /// The same of files that [`Cache::repair`] has noted as lost.
    pub known_lost: Vec<(String, String)>,
    /// Where records cannot be read: what they told counts as never done.
    pub damaged_records: Vec<DamagedRecords>,
}

/// What [`Cache::repair`] did about records that cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// Damaged objects that were removed.
    pub removed: Vec<Digest>,
    /// Later checks pass over these.
    pub cut: Vec<DamagedRecords>,
    /// All that is damaged, where one of the files could not be locked: another process may be
    /// writing to it.
    pub left: Vec<DamagedRecords>,
}

/// An object by the names that people know: a file that a task left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NamedObject {
    pub digest: Digest,
    pub task: String,
    pub name: String,
}

/// What `gc` may remove.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// What is drawn goes if nobody recorded it within this time.
    pub older_than: Option<Duration>,
    /// What is drawn goes, the oldest first, until the objects take no more than this.
    pub at_most_bytes: Option<u64>,
}

/// An object that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub digest: Digest,
    pub bytes: u64,
    /// Does a record name it?
    pub is_named: bool,
    path: PathBuf,
}

/// Records that a segment held and does not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GoneRecords {
    records: DamagedRecords,
    /// The last one of the segment, by which it is known again where it is put back from a backup.
    last: Mark,
}

impl GoneRecords {
    fn mark(&self) -> (String, Mark) {
        (self.records.segment().to_owned(), self.last)
    }

    /// As the list of what is gone has it.
    fn noted(&self) -> Output {
        let DamagedRecords {
            file,
            offset,
            bytes,
        } = &self.records;
        let Mark {
            offset: last,
            checksum,
            ..
        } = self.last;
        let name = format!("{file}@{offset}@{last}@{}", u64::from_le_bytes(checksum));
        Output {
            digest: Digest::of(&name),
            name,
            size: *bytes,
        }
    }

    fn of_note(output: &Output) -> Option<Self> {
        let mut parts = output.name.split('@');
        // Others may have written the note, and the file is looked at.
        let file = parts.next().filter(|file| is_segment(file))?;
        let offset = parts.next()?.parse::<u64>().ok()?;
        // What is gone reaches to the end of the last record.
        let end = offset.checked_add(output.size)?;
        let last = match parts.next() {
            Some(last) => Mark {
                offset: last.parse().ok()?,
                checksum: parts.next()?.parse::<u64>().ok()?.to_le_bytes(),
                end,
            },
            // A note without the last record: nothing that is put back is known again, so it stands
            // until it is given up.
            None => Mark {
                offset: end,
                end,
                ..Mark::default()
            },
        };
        Some(Self {
            records: DamagedRecords {
                file: file.to_owned(),
                offset,
                bytes: output.size,
            },
            last,
        })
    }
}

struct Stored {
    digest: Digest,
    bytes: u64,
    written: SystemTime,
    path: PathBuf,
}

/// Why objects are there.
#[derive(Default)]
struct Named {
    kept: HashSet<Digest>,
    /// What only comparisons, pictures and reports name, with when that was recorded last.
    drawn: HashMap<Digest, u64>,
}

impl Cache {
    pub fn usage(&self) -> Result<Usage> {
        let (named, bodies) = (self.named()?, self.bodies()?);
        let mut usage = Usage {
            record_bytes: bodies.iter().map(|body| body.len() as u64).sum(),
            ..Usage::default()
        };
        for attempt in bodies
            .iter()
            .filter_map(|body| encode::decode_attempt(body))
        {
            usage.runs += 1;
            let at = attempt.started_at;
            usage.first_run = Some(usage.first_run.map_or(at, |first| first.min(at)));
            usage.last_run = Some(usage.last_run.map_or(at, |last| last.max(at)));
        }
        for object in self.stored()? {
            usage.objects += 1;
            usage.bytes += object.bytes;
            if named.kept.contains(&object.digest) {
                continue;
            }
            let (count, bytes) = if named.drawn.contains_key(&object.digest) {
                (&mut usage.drawn, &mut usage.drawn_bytes)
            } else {
                (&mut usage.unnamed, &mut usage.unnamed_bytes)
            };
            *count += 1;
            *bytes += object.bytes;
        }
        Ok(usage)
    }

    /// Reads every object and every record. `progress` is told how many of how many are done.
    pub fn verify(&self, progress: &dyn Fn(usize, usize)) -> Result<Verified> {
        let stored = self.stored()?;
        let mut verified = Verified {
            objects: stored.len(),
            ..Verified::default()
        };
        for (number, object) in (1..).zip(&stored) {
            if !self.is_stored(&object.digest, Durability::Plain)? {
                verified.damaged.push(object.digest);
            }
            progress(number, stored.len());
        }
        verified.damaged_files = self.owners(&verified.damaged)?;
        let noted = self.noted_as_lost();
        for (task, output) in self.lost_files() {
            if self.is_known_damaged(&output.digest) {
                continue;
            }
            let list = if noted.iter().any(|o| o.digest == output.digest) {
                &mut verified.known_lost
            } else {
                &mut verified.lost
            };
            list.push((task, output.name));
        }
        // The snapshot on the disk may know of records that are gone from the segments.
        let snapshot = Snapshot::open(&self.root().join("snapshot"));
        let known = snapshot.as_ref().map_or(&[][..], Snapshot::segments);
        verified.damaged_records = self.damaged_records(known)?;
        Ok(verified)
    }

    /// Files of runs that are not there, each with its task.
    fn lost_files(&self) -> Vec<(String, Output)> {
        let attempts = self.all_attempts().into_iter();
        let lost = attempts.flat_map(|attempt| {
            let outputs = attempt.outputs.into_iter();
            outputs.map(move |output| (attempt.task.clone(), output))
        });
        lost.filter(|(_, output)| !self.has(&output.digest))
            .collect()
    }

    pub(super) fn noted_as_lost(&self) -> Vec<Output> {
        self.outputs(&lost_key()).unwrap_or_default()
    }

    /// Removes the objects that this process has found damaged, cuts damaged records out, and notes
    /// which files of runs are lost, so that the next [`Cache::verify`] finds only what is new. Nothing
    /// that can be read is changed. The caller holds the cache alone (`claim_unused`), which an import
    /// or a verdict on an attempt does not heed.
    pub fn repair(&self) -> Result<Repair> {
        let mut repair = Repair {
            removed: self.remove_damaged()?,
            ..Repair::default()
        };
        let snapshot = Snapshot::open(&self.root().join("snapshot"));
        let known = snapshot.as_ref().map_or(&[][..], Snapshot::segments);
        let found = self.damaged_stretches(known)?;
        let gone = self.still_gone()?;
        // Given up, unless the cut fails.
        self.is_witnessed.store(true, Ordering::Relaxed);
        if !found.is_empty() {
            let cut = self.segments_mut().cut_out(&found, known, File::try_lock);
            match cut.map_err(self.refused())? {
                // The old one covers what is gone or was overwritten. The new one has what only the
                // old one still knew of it.
                Some(cut) => {
                    let mut cut_out = self.cut_out.lock().unwrap_or_else(PoisonError::into_inner);
                    cut_out.extend(cut.iter().cloned());
                    drop(cut_out);
                    repair.cut.extend(cut);
                    self.write_snapshot()?;
                }
                None => {
                    self.is_witnessed.store(false, Ordering::Relaxed);
                    repair.left = found;
                }
            }
        }
        // Only now, for a segment that this process writes to is not cut.
        if repair.left.is_empty() && !gone.is_empty() {
            self.note_as_gone(&[])?;
            let gone = gone.into_iter().map(|gone| gone.records);
            let only_noted: Vec<_> = gone.filter(|gone| !repair.cut.contains(gone)).collect();
            repair.cut.extend(only_noted);
        }
        let mut lost: Vec<Output> = self
            .lost_files()
            .into_iter()
            .map(|(_, lost)| lost)
            .collect();
        lost.sort_by_key(|lost| lost.digest);
        lost.dedup_by_key(|lost| lost.digest);
        if lost != self.noted_as_lost() {
            self.record_entry(&Entry {
                key: lost_key(),
                kind: TaskKind::Parse,
                task: "lost files".to_owned(),
                preimage: LOST.to_owned(),
                outputs: lost,
            })?;
        }
        Ok(repair)
    }

    /// Takes an object that this process has found damaged out of the way of the one that is made in
    /// its place. Its bytes stay, in `damaged/`; in a cache that cannot be written to, everything does.
    pub fn put_aside(&self, digest: &Digest) -> Result<()> {
        if !self.is_known_damaged(digest) || self.ensure_writable().is_err() {
            return Ok(());
        }
        let folder = self.root().join("damaged");
        files::create_dir_all(&folder)?;
        let (from, to) = (self.object_path(digest), folder.join(digest.to_string()));
        #[expect(clippy::disallowed_methods, reason = "the file is moved, not written")]
        match fs::rename(&from, to) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("cannot move", from)(error))
            }
            _ => Ok(()),
        }
    }

    fn remove_damaged(&self) -> Result<Vec<Digest>> {
        let found = self.damaged.read().unwrap_or_else(PoisonError::into_inner);
        let mut digests: Vec<Digest> = found.keys().copied().collect();
        drop(found);
        digests.retain(|digest| self.is_known_damaged(digest));
        digests.sort_unstable();
        for digest in &digests {
            let path = self.object_path(digest);
            fs::remove_file(&path).map_err(Error::io("cannot remove", path))?;
        }
        Ok(digests)
    }

    /// Are there records that cannot be read, and that nobody gave up by [`Cache::repair`]?
    pub fn has_damaged_records(&self) -> Result<bool> {
        let snapshot = Snapshot::open(&self.root().join("snapshot"));
        let known = snapshot.as_ref().map_or(&[][..], Snapshot::segments);
        Ok(!self.damaged_records(known)?.is_empty())
    }

    fn damaged_records(&self, known: &[(String, Mark)]) -> Result<Vec<DamagedRecords>> {
        let mut found = self.damaged_stretches(known)?;
        let gone = self.still_gone()?.into_iter().map(|gone| gone.records);
        let new: Vec<_> = gone.filter(|gone| !found.contains(gone)).collect();
        found.extend(new);
        Ok(found)
    }

    /// What the last snapshot knew of and no segment has at its end. Found out when the cache is
    /// opened, for the next writer may adopt such a segment, cut off what is damaged behind its last
    /// whole record, and fill it again.
    pub(super) fn gone_since(&self, snapshot: &Snapshot) -> Vec<GoneRecords> {
        let known = snapshot.segments();
        let gone = |records: DamagedRecords| {
            let of_segment = known.iter().find(|(name, _)| name == records.segment());
            let (_, last) = of_segment?;
            let is_at_end = records.offset + records.bytes == last.end;
            is_at_end.then_some(GoneRecords {
                records,
                last: *last,
            })
        };
        let damaged = self.damaged_stretches(known).unwrap_or_default();
        damaged.into_iter().filter_map(gone).collect()
    }

    /// Keeps in mind what is gone, before another record takes its place or a snapshot replaces the only
    /// witness of it. It is told of by [`Cache::verify`] and keeps `gc` from removing what nobody names
    /// any more, until the segment is put back or [`Cache::repair`] gives it up.
    pub(super) fn keep_witness(&self) -> Result<()> {
        // Set before the note is written, which is a record itself.
        if self.gone.is_empty() || self.is_witnessed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let noted = self.noted_as_gone();
        let new = self.gone.iter().filter(|gone| !noted.contains(gone));
        let mut gone = [noted.clone(), new.cloned().collect()].concat();
        if gone.len() == noted.len() {
            return Ok(());
        }
        gone.sort_by_key(|gone| (gone.records.file.clone(), gone.records.offset));
        let noted = self.note_as_gone(&gone);
        self.is_witnessed.store(noted.is_ok(), Ordering::Relaxed);
        noted
    }

    fn note_as_gone(&self, gone: &[GoneRecords]) -> Result<()> {
        self.record_entry(&Entry {
            key: gone_key(),
            kind: TaskKind::Parse,
            task: "gone records".to_owned(),
            preimage: GONE.to_owned(),
            outputs: gone.iter().map(GoneRecords::noted).collect(),
        })
    }

    fn noted_as_gone(&self) -> Vec<GoneRecords> {
        let noted = self.outputs(&gone_key()).unwrap_or_default();
        noted.iter().filter_map(GoneRecords::of_note).collect()
    }

    /// What was noted as gone, but for segments that somebody has put back.
    fn still_gone(&self) -> Result<Vec<GoneRecords>> {
        let mut gone = self.noted_as_gone();
        let known: Vec<(String, Mark)> = gone.iter().map(GoneRecords::mark).collect();
        let damaged = self.damaged_stretches(&known)?;
        gone.retain(|gone| {
            let path = self.root().join(&gone.records.file);
            let is_back = files::open_regular_no_link(&path)
                .is_ok_and(|(file, _)| frame::is_at(&gone.last, &file));
            !is_back || damaged.iter().any(|damage| damage.meets(&gone.records))
        });
        Ok(gone)
    }

    fn damaged_stretches(&self, known: &[(String, Mark)]) -> Result<Vec<DamagedRecords>> {
        self.segments()
            .damaged_stretches(known)
            .map_err(Error::io("cannot read the cache", self.root()))
    }

    /// Whose files some objects are: those of runs first. Reads all records.
    pub fn owners(&self, digests: &[Digest]) -> Result<Vec<NamedObject>> {
        if digests.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: HashSet<&Digest> = digests.iter().collect();
        let (mut of_runs, mut others) = (BTreeSet::new(), BTreeSet::new());
        for body in self.bodies()? {
            let (found, task, outputs) = match encode::decode_attempt(&body) {
                Some(attempt) => (&mut of_runs, attempt.task, attempt.outputs),
                None => match encode::decode_entry(&body) {
                    Some(entry) => (&mut others, entry.task, entry.outputs),
                    None => continue,
                },
            };
            let outputs = outputs.into_iter().filter(|o| wanted.contains(&o.digest));
            found.extend(outputs.map(|output| NamedObject {
                digest: output.digest,
                task: task.clone(),
                name: output.name,
            }));
        }
        Ok(of_runs.into_iter().chain(others).collect())
    }

    /// The error of whoever needs an object that is missing or damaged: says whose it is, and
    /// what makes it anew. `name` is its file's name where no record has it.
    #[must_use]
    pub fn gone(&self, digest: &Digest, name: &str) -> Error {
        let owners = self.owners(&[*digest]).unwrap_or_default();
        let what = match owners.first() {
            Some(of) => format!("`{}` of {} ({})", of.name, of.task, digest.short()),
            None => format!("`{name}` ({})", digest.short()),
        };
        let is_of_run = |of: &NamedObject| of.task.starts_with(TaskKind::Train.name());
        let again = match owners.first() {
            Some(of) if is_of_run(of) && self.is_known_damaged(digest) => {
                "`tprimat cache verify --repair` removes what is damaged; then `tprimat cache pull` brings it back where another cache has it, else `tprimat build` trains again"
            }
            Some(of) if is_of_run(of) => {
                "`tprimat cache pull` brings it back where another cache has it, else `tprimat build` trains again"
            }
            _ => "build again",
        };
        CacheError::Gone { what, again }.into()
    }

    /// What may be removed within the limits. The caller holds the cache alone (`claim_unused`), and
    /// has asked [`Cache::has_damaged_records`]: what only such a record names would be nobody's.
    pub fn garbage(&self, limits: Limits) -> Result<Vec<Garbage>> {
        let (named, now) = (self.named()?, SystemTime::now());
        let stored = self.stored()?;
        let mut left: u64 = stored.iter().map(|object| object.bytes).sum();
        let mut found = Vec::new();
        let mut drawn = BTreeMap::new();
        let garbage = |object: Stored, is_named| Garbage {
            digest: object.digest,
            bytes: object.bytes,
            is_named,
            path: object.path,
        };
        for object in stored {
            if named.kept.contains(&object.digest) {
                continue;
            }
            if let Some(recorded) = named.drawn.get(&object.digest) {
                drawn.insert((*recorded, object.digest), object);
            } else if now
                .duration_since(object.written)
                .is_ok_and(|age| age > YOUNG)
            {
                left -= object.bytes;
                found.push(garbage(object, false));
            }
        }
        let seconds = |age: Duration| files::unix_now() - age.as_secs_f64();
        for ((recorded, _), object) in drawn {
            let is_old = limits
                .older_than
                .is_some_and(|age| recorded as f64 / 1e9 < seconds(age));
            if is_old || limits.at_most_bytes.is_some_and(|most| left > most) {
                left -= object.bytes;
                found.push(garbage(object, true));
            }
        }
        Ok(found)
    }

    /// Removes what [`Cache::garbage`] found.
    pub fn remove(&self, garbage: &[Garbage]) -> Result<()> {
        for object in garbage {
            match fs::remove_file(&object.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("cannot remove", &object.path)(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn named(&self) -> Result<Named> {
        let mut named = Named::default();
        for body in self.bodies()? {
            if let Some(attempt) = encode::decode_attempt(&body) {
                named.kept.extend(attempt.outputs.iter().map(|o| o.digest));
            } else if let Some(entry) = encode::decode_entry(&body) {
                let digests = entry.outputs.iter().map(|o| o.digest);
                if !is_drawn(entry.kind) {
                    named.kept.extend(digests);
                    continue;
                }
                let recorded = encode::glance(&body).map_or(u64::MAX, |glance| glance.stamp);
                for digest in digests {
                    let last = named.drawn.entry(digest).or_default();
                    *last = recorded.max(*last);
                }
            }
        }
        Ok(named)
    }

    /// Every file that is an object by its name. Others are nobody's to remove.
    fn stored(&self) -> Result<Vec<Stored>> {
        let root = self.root().join("objects");
        let unread = || Error::io("cannot read the cache", &root);
        let mut found = Vec::new();
        let folders = match fs::read_dir(&root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
            other => other.map_err(unread())?,
        };
        for folder in folders {
            let folder = folder.map_err(unread())?;
            if !folder.file_type().map_err(unread())?.is_dir() {
                continue;
            }
            for entry in fs::read_dir(folder.path()).map_err(unread())? {
                let entry = entry.map_err(unread())?;
                let (folder, name) = (folder.file_name(), entry.file_name());
                let hex = format!("{}{}", folder.to_string_lossy(), name.to_string_lossy());
                // Gone since it was listed, or no file.
                let (Ok(digest), Ok(meta)) = (hex.parse(), entry.metadata()) else {
                    continue;
                };
                if meta.is_file() && self.object_path(&digest) == entry.path() {
                    found.push(Stored {
                        digest,
                        bytes: meta.len(),
                        written: meta.modified().unwrap_or_else(|_| SystemTime::now()),
                        path: entry.path(),
                    });
                }
            }
        }
        Ok(found)
    }
}

/// Is a task's output made again from summaries, at the cost of seconds?
fn is_drawn(kind: TaskKind) -> bool {
    matches!(kind, TaskKind::Compare | TaskKind::Plot | TaskKind::Report)
}

#[cfg(test)]
mod tests;
