//! What a cache holds, whether it is sound, and what can be removed from it.
//!
//! Nothing that was measured is ever removed: outputs of runs, imports, and the results and
//! summaries made of them stay, whatever their age. What can go is what the next build draws again
//! (comparisons, pictures, reports), and objects that no record names.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files,
};

use super::{
    entry::{Output, TaskKind},
    error::CacheError,
    names::{TEXTS, digest_of},
    objects::ObjectReader,
    records::{Fault, fault_of, read_record},
    store::{Cache, DAMAGED},
};

/// An object that no record names may be one that is being recorded.
const YOUNG: Duration = Duration::from_secs(24 * 60 * 60);

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub runs: usize,
    pub objects: usize,
    /// Bytes of the objects on the disk.
    pub bytes: u64,
    /// Objects that the next build could draw again.
    pub drawn: usize,
    pub drawn_bytes: u64,
    /// Objects that no record names.
    pub unnamed: usize,
    pub unnamed_bytes: u64,
}

/// What a look at every file found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    pub objects: usize,
    pub records: usize,
    /// Objects whose bytes are not what their names say.
    pub damaged: Vec<Digest>,
    /// Whose they are, as far as a record names them.
    pub damaged_files: Vec<NamedObject>,
    /// Files of runs and imports that are not there: the task and the file's name.
    pub lost: Vec<(String, String)>,
    /// Records and texts that are not what was written: what they told counts as never done.
    pub damaged_records: Vec<PathBuf>,
    /// What could not be read now, and why; nothing is known of it.
    pub unread: Vec<(PathBuf, String)>,
}

impl Verified {
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty()
            && self.lost.is_empty()
            && self.damaged_records.is_empty()
            && self.unread.is_empty()
    }
}

/// An object by the names that people know: a file that a task left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NamedObject {
    pub digest: Digest,
    pub task: String,
    pub name: String,
}

/// An object that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub digest: Digest,
    pub bytes: u64,
    /// Does a record name it?
    pub is_named: bool,
}

struct Stored {
    digest: Digest,
    bytes: u64,
    written: SystemTime,
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
        let named = self.named();
        let mut usage = Usage::default();
        self.each_attempt(|attempt| usage.runs += usize::from(attempt.origin.is_none()));
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

    /// Where an object is, or would be.
    #[must_use]
    pub fn place_of(&self, digest: &Digest) -> PathBuf {
        self.object_path(digest)
    }

    /// Reads every file. `progress` is told how many of how many objects are done.
    pub fn verify(&self, progress: &dyn Fn(usize, usize)) -> Result<Verified> {
        let stored = self.stored()?;
        let mut verified = Verified {
            objects: stored.len(),
            ..Verified::default()
        };
        for (number, object) in (1..).zip(&stored) {
            match self.is_sound(&object.digest) {
                Ok(true) => {}
                Ok(false) => verified.damaged.push(object.digest),
                Err(error) => {
                    let path = self.object_path(&object.digest);
                    verified.unread.push((path, error.to_string()));
                }
            }
            progress(number, stored.len());
        }
        verified.damaged_files = self.owners(&verified.damaged);
        self.each_attempt(|attempt| {
            let lost = attempt.outputs.into_iter();
            let lost = lost.filter(|output| !self.is_file(&output.digest));
            let lost = lost.map(|output| (attempt.task.clone(), output.name));
            verified.lost.extend(lost);
        });
        let mut faults = self.faults();
        for name in self.names_in(&self.root.join(TEXTS), &mut None) {
            let path = PathBuf::from(TEXTS).join(&name);
            let is_sound = |text: &[u8]| digest_of(&name) == Some(Digest::of(text));
            let fault = self.fault_at(&path, is_sound);
            faults.extend(fault.map(|fault| (path, fault)));
        }
        // Most marks are known by their names, and nobody else reads them.
        for record in self.shared_records(None) {
            verified.records += 1;
            let path = PathBuf::from(record.name());
            let fault = self.fault_at(&path, |bytes| record.is_sound(bytes));
            faults.extend(fault.map(|fault| (path, fault)));
        }
        for (path, fault) in faults {
            let path = self.root.join(path);
            match fault {
                Fault::Damaged => verified.damaged_records.push(path),
                Fault::Unread(why) => verified.unread.push((path, why)),
            }
        }
        Ok(verified)
    }

    /// What is wrong with a small file, which may have gone since it was listed.
    fn fault_at(&self, path: &Path, is_sound: impl FnOnce(&[u8]) -> bool) -> Option<Fault> {
        match read_record(&self.root.join(path)) {
            Ok(bytes) => (!is_sound(&bytes)).then_some(Fault::Damaged),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => Some(fault_of(&e)),
        }
    }

    /// Moves an object that this process has found damaged out of the way of the one that is made in
    /// its place, so that no later process takes it for sound. Its bytes stay, in `damaged/`; in a
    /// cache that cannot be written to, everything does.
    pub fn put_aside(&self, digest: &Digest) -> Result<()> {
        if !self.is_known_damaged(digest) || self.ensure_writable().is_err() {
            return Ok(());
        }
        let (from, to) = (
            self.object_path(digest),
            self.root().join(DAMAGED).join(digest.to_string()),
        );
        files::move_to(&from, &to)?;
        // Somebody may have put a good one in its place just before.
        let is_sound = files::open_regular_no_link(&to)
            .and_then(|(file, _)| ObjectReader::new(file, *digest, to.clone()))
            .and_then(|mut moved| io::copy(&mut moved, &mut io::sink()))
            .is_ok();
        if is_sound {
            files::move_to(&to, &from)?;
        }
        Ok(())
    }

    /// Whose files some objects are: those of runs first. Reads all records.
    #[must_use]
    pub fn owners(&self, digests: &[Digest]) -> Vec<NamedObject> {
        if digests.is_empty() {
            return Vec::new();
        }
        let wanted: HashSet<&Digest> = digests.iter().collect();
        let named = |task: &str, outputs: &[Output]| -> Vec<NamedObject> {
            let outputs = outputs.iter().filter(|o| wanted.contains(&o.digest));
            let named = outputs.map(|output| NamedObject {
                digest: output.digest,
                task: task.to_owned(),
                name: output.name.clone(),
            });
            named.collect()
        };
        let (mut of_runs, mut others) = (BTreeSet::new(), BTreeSet::new());
        self.each_attempt(|attempt| of_runs.extend(named(&attempt.task, &attempt.outputs)));
        self.each_made(|_, entry| others.extend(named(&entry.task, &entry.outputs)));
        of_runs.into_iter().chain(others).collect()
    }

    /// The error of whoever needs an object that is missing or damaged: says whose it is, and
    /// what makes it anew. `name` is its file's name where no record has it.
    #[must_use]
    pub fn gone(&self, digest: &Digest, name: &str) -> Error {
        let owners = self.owners(&[*digest]);
        let mut what = match owners.first() {
            Some(of) => format!("`{}` of {} ({})", of.name, of.task, digest.short()),
            None => format!("`{name}` ({})", digest.short()),
        };
        if self.is_known_damaged(digest) {
            what += &format!(", {},", self.object_path(digest).display());
        }
        let is_of_run = |of: &NamedObject| of.task.starts_with(TaskKind::Train.name());
        let again = match owners.first() {
            Some(of) if is_of_run(of) => {
                "`tprimat cache pull` brings it back where another cache has it, else `tprimat build --force=measured` measures it anew"
            }
            _ => "build again",
        };
        CacheError::Gone { what, again }.into()
    }

    /// What may be removed: objects that no record names, and what was drawn before then, in seconds since 1970. The caller holds the cache alone (`claim_unused`). While
    /// a record cannot be read, what it names would be nobody's: then nothing is garbage but an error.
    pub fn garbage(&self, drawn_before: Option<f64>) -> Result<Vec<Garbage>> {
        let (named, now) = (self.named(), SystemTime::now());
        let faults = self.faults().into_keys();
        // A decision names no files.
        let mut naming = faults.filter(|path| !is_decision(path));
        if let Some(path) = naming.next() {
            let path = self.root.join(path);
            return Err(Error::Failed {
                message: format!(
                    "{} cannot be read, and the files that it names would be removed as nobody's; nothing was removed",
                    path.display()
                ),
                help: Some(
                    "bring it back from a backup or by `tprimat cache pull`, or remove it: what it tells then counts as never done"
                        .into(),
                ),
            });
        }
        let is_old = |recorded: u64| drawn_before.is_some_and(|then| recorded as f64 / 1e9 < then);
        let garbage = |object: Stored| {
            let drawn = named.drawn.get(&object.digest);
            let goes = match drawn {
                _ if named.kept.contains(&object.digest) => false,
                Some(recorded) => is_old(*recorded),
                None => now
                    .duration_since(object.written)
                    .is_ok_and(|age| age > YOUNG),
            };
            goes.then_some(Garbage {
                digest: object.digest,
                bytes: object.bytes,
                is_named: drawn.is_some(),
            })
        };
        Ok(self.stored()?.into_iter().filter_map(garbage).collect())
    }

    /// Removes what [`Cache::garbage`] found, and the files of locks, which nobody holds then.
    pub fn remove(&self, garbage: &[Garbage]) -> Result<()> {
        self.remove_locks();
        for object in garbage {
            let path = self.object_path(&object.digest);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("cannot remove", path)(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn named(&self) -> Named {
        let mut named = Named::default();
        self.each_attempt(|attempt| {
            let outputs = attempt.outputs.iter();
            named.kept.extend(outputs.map(|output| output.digest));
        });
        self.each_made(|recorded, entry| {
            let digests = entry.outputs.iter().map(|output| output.digest);
            if !is_drawn(entry.kind) {
                named.kept.extend(digests);
                return;
            }
            for digest in digests {
                let last = named.drawn.entry(digest).or_default();
                *last = recorded.max(*last);
            }
        });
        named
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
                let (Some(digest), Ok(meta)) = (digest_of(&hex), entry.metadata()) else {
                    continue;
                };
                if meta.is_file() && self.object_path(&digest) == entry.path() {
                    found.push(Stored {
                        digest,
                        bytes: meta.len(),
                        written: meta.modified().unwrap_or_else(|_| SystemTime::now()),
                    });
                }
            }
        }
        Ok(found)
    }
}

/// Is it the file of a decision? A damaged one still holds by its name, and has lost its reason.
#[must_use]
pub fn is_decision(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("mark-") || name.starts_with("generation-"))
}

/// Is a task's output made again from summaries, at the cost of seconds?
fn is_drawn(kind: TaskKind) -> bool {
    matches!(kind, TaskKind::Compare | TaskKind::Plot | TaskKind::Report)
}

#[cfg(test)]
mod tests;
