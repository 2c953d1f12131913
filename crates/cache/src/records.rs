//! Recording what was done under which key, and looking it up.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{MutexGuard, PoisonError, atomic::Ordering},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
    files,
};

use super::{
    entry::{Attempt, Entry, Output, SetAside, TaskKind},
    error::CacheError,
    sealed,
    store::Cache,
};

pub(super) const RECORDS: &str = "records";
pub(super) const TEXTS: &str = "texts";
pub(super) const MADE: &str = "made";
const ENDING: &str = ".json";

/// Nobody decides on one run, or measures one key anew, so often.
const MOST_NUMBER: u32 = 1_000_000;
/// The longest id of a run: its file's name must fit any file system.
const LONGEST_ID: usize = 96;
/// Digits of a digest that tell apart what one number of decision says.
const TAG: usize = 8;
/// The largest text or input that is kept beside the keys that name it.
pub const MOST_TEXT: u64 = 1 << 20;

/// What the name of a file below `records/KEY` says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// The run or the import of this id.
    Attempt(String),
    /// The decision of this number on a run. Of two with one number, made where caches did not
    /// know of each other, the one that sets aside stands.
    Mark {
        number: u32,
        is_aside: bool,
        /// Of what it says: two that say other things have other names, so that caches which have
        /// one of them each are merged into one that has both.
        tag: String,
        id: String,
    },
    Generation(u32),
}

impl Name {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let name = name.strip_suffix(ENDING)?;
        let parsed = if let Some(number) = name.strip_prefix("generation-") {
            Self::Generation(number.parse().ok()?)
        } else if let Some(mark) = name.strip_prefix("mark-") {
            let (number, mark) = mark.split_once('-')?;
            let (kind, mark) = mark.split_once('-')?;
            let (tag, id) = mark.split_once('-')?;
            Self::Mark {
                number: number.parse().ok()?,
                is_aside: match kind {
                    "aside" => true,
                    "restore" => false,
                    _ => return None,
                },
                tag: tag.to_owned(),
                id: id.to_owned(),
            }
        } else {
            Self::Attempt(name.to_owned())
        };
        let is_one = match &parsed {
            Self::Attempt(id) => is_id(id),
            Self::Mark {
                number, tag, id, ..
            } => is_id(id) && *number <= MOST_NUMBER && tag.len() == TAG,
            Self::Generation(number) => *number <= MOST_NUMBER,
        };
        // One name for each record: `mark-1-…` is none beside `mark-0001-…`.
        (is_one && parsed.file() == format!("{name}{ENDING}")).then_some(parsed)
    }

    /// What a decision is, without what tells it apart from others of its number.
    pub(super) fn said(&self) -> String {
        match self {
            Self::Mark {
                number,
                is_aside,
                id,
                ..
            } => {
                let kind = if *is_aside { "aside" } else { "restore" };
                format!("{kind} {number} {id}")
            }
            Self::Attempt(id) => id.clone(),
            Self::Generation(number) => format!("generation {number}"),
        }
    }

    pub(super) fn file(&self) -> String {
        match self {
            Self::Attempt(id) => format!("{id}{ENDING}"),
            Self::Mark {
                number,
                is_aside,
                tag,
                id,
            } => {
                let kind = if *is_aside { "aside" } else { "restore" };
                format!("mark-{number:04}-{kind}-{tag}-{id}{ENDING}")
            }
            Self::Generation(number) => format!("generation-{number:04}{ENDING}"),
        }
    }
}

/// Can a run be called so? The id becomes a file's name.
pub(super) fn is_id(id: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    !id.is_empty() && id.len() <= LONGEST_ID && !id.starts_with('.') && id.chars().all(is_plain)
}

/// What a decision on a run says.
#[derive(Serialize, Deserialize)]
pub(super) struct Decision {
    /// The train key that it belongs to.
    pub(super) key: Digest,
    /// What its name says as well, so that nobody can pass one off as another.
    pub(super) of: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Seconds since 1970.
    pub(super) at: f64,
}

/// What was derived, without its key: that is the file's name.
#[derive(Serialize, Deserialize)]
struct Made {
    kind: TaskKind,
    task: String,
    recorded: u64,
    outputs: Vec<Output>,
    preimage: String,
}

/// When something was recorded for a task, and under which key.
pub(super) type Index = HashMap<(TaskKind, String), Vec<(u64, Digest)>>;

/// Why a file of the cache tells nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its bytes are not those that were written, or it is no file.
    Damaged,
    /// It could not be read now, and may be sound.
    Unread(String),
}

/// Files of the cache that told nothing, by their places below it.
pub type Faults = BTreeMap<PathBuf, Fault>;

impl Cache {
    fn folder_of(&self, key: &Digest) -> PathBuf {
        self.root.join(RECORDS).join(key.to_string())
    }

    fn made_at(&self, key: &Digest) -> PathBuf {
        self.root.join(MADE).join(format!("{key}{ENDING}"))
    }

    /// What could not be read so far. What is damaged counts as never recorded; of what could not be
    /// read nothing is known.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.noted().clone()
    }

    fn noted(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, path: &Path, fault: Option<Fault>) {
        let name = path.strip_prefix(&self.root).unwrap_or(path);
        let mut noted = self.noted();
        match fault {
            Some(fault) => drop(noted.insert(name.to_owned(), fault)),
            // It was mended meanwhile.
            None => drop(noted.remove(name)),
        }
    }

    /// What a sealed file says; what is wrong with it is noted, and told to the caller where it may be
    /// sound.
    fn sealed<T: DeserializeOwned>(
        &self,
        path: &Path,
        unread: &mut Option<CacheError>,
    ) -> Option<T> {
        let (value, fault) = match read_record(path) {
            Ok(bytes) => match sealed::unseal(&bytes) {
                Some(value) => (Some(value), None),
                None => (None, Some(Fault::Damaged)),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => (None, None),
            Err(e) => {
                let fault = fault_of(&e);
                if matches!(fault, Fault::Unread(_)) {
                    *unread = Some(CacheError::unreadable(path)(e));
                }
                (None, Some(fault))
            }
        };
        self.note(path, fault);
        value
    }

    /// The names in a folder, sorted; none where it is not there.
    pub(super) fn names_in(&self, folder: &Path, unread: &mut Option<CacheError>) -> Vec<String> {
        let names = fs::read_dir(folder).and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<Vec<String>>>()
        });
        match names {
            Ok(mut names) => {
                names.sort_unstable();
                self.note(folder, None);
                names
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.note(folder, None);
                Vec::new()
            }
            Err(e) => {
                self.note(folder, Some(Fault::Unread(e.to_string())));
                *unread = Some(CacheError::unreadable(folder)(e));
                Vec::new()
            }
        }
    }

    /// The records of a key, as their names tell them.
    pub(super) fn names_of(&self, key: &Digest, unread: &mut Option<CacheError>) -> Vec<Name> {
        let names = self.names_in(&self.folder_of(key), unread);
        names.iter().filter_map(|name| Name::parse(name)).collect()
    }

    /// Every key that has records.
    pub(super) fn keys(&self) -> Vec<Digest> {
        let names = self.names_in(&self.root.join(RECORDS), &mut None);
        names.iter().filter_map(|name| digest_of(name)).collect()
    }

    /// All attempts at a key, imports among them: the highest generation first, then by id.
    #[must_use]
    pub fn attempts(&self, key: &Digest) -> Vec<Attempt> {
        self.read_attempts(key, &mut None)
    }

    /// The same, and an error where one could not be read: a run that is there must not be made again
    /// because the disk did not answer.
    pub fn attempts_checked(&self, key: &Digest) -> Result<Vec<Attempt>> {
        let mut unread = None;
        let attempts = self.read_attempts(key, &mut unread);
        unread.map_or(Ok(attempts), |unread| Err(unread.into()))
    }

    fn read_attempts(&self, key: &Digest, unread: &mut Option<CacheError>) -> Vec<Attempt> {
        let names = self.names_of(key, unread);
        // Their order is that of their numbers, and of equal ones what sets aside comes last.
        let mut last: HashMap<&str, &Name> = HashMap::new();
        for name in &names {
            if let Name::Mark { id, .. } = name {
                let last = last.entry(id).or_insert(name);
                *last = (*last).max(name);
            }
        }
        let mut attempts: Vec<Attempt> = Vec::new();
        for name in &names {
            let Name::Attempt(id) = name else { continue };
            let path = self.folder_of(key).join(name.file());
            let Some(mut attempt) = self.sealed::<Attempt>(&path, unread) else {
                continue;
            };
            if attempt.id != *id || attempt.key != *key {
                self.note(&path, Some(Fault::Damaged));
                continue;
            }
            let last = last.get(id.as_str());
            attempt.set_aside = last.and_then(|mark| self.set_aside_by(key, mark));
            attempts.push(attempt);
        }
        attempts.sort_by(|a, b| {
            let by_generation = b.generation.cmp(&a.generation);
            by_generation.then_with(|| a.id.cmp(&b.id))
        });
        attempts
    }

    /// Its name alone sets a run aside; the reason may be lost.
    fn set_aside_by(&self, key: &Digest, mark: &Name) -> Option<SetAside> {
        if !matches!(mark, Name::Mark { is_aside: true, .. }) {
            return None;
        }
        let path = self.folder_of(key).join(mark.file());
        let decision: Option<Decision> = self.sealed(&path, &mut None);
        let lost = || "the reason is damaged in the cache".to_owned();
        let written = || {
            let modified = path.symlink_metadata().and_then(|found| found.modified());
            let since = modified.ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(since.as_secs_f64())
        };
        let at = decision.as_ref().map(|decision| decision.at);
        Some(SetAside {
            at: at.or_else(written).unwrap_or_default(),
            reason: decision.and_then(|one| one.reason).unwrap_or_else(lost),
        })
    }

    /// Every run of every key, in the order in which they were recorded.
    #[must_use]
    pub fn all_attempts(&self) -> Vec<Attempt> {
        let mut runs = Vec::new();
        self.each_attempt(|attempt| runs.extend(attempt.origin.is_none().then_some(attempt)));
        runs.sort_by_key(|run| run.recorded);
        runs
    }

    /// Hands over every run and every import, one by one.
    pub(super) fn each_attempt(&self, mut take: impl FnMut(Attempt)) {
        for key in self.keys() {
            self.attempts(&key).into_iter().for_each(&mut take);
        }
    }

    /// Sets an attempt aside, or with `None` lets it count again. Nothing is deleted: it is one
    /// more record.
    pub fn set_aside(&self, attempt: &Attempt, verdict: Option<&SetAside>) -> Result<()> {
        loop {
            let names = self.names_checked(&attempt.key)?.into_iter();
            let numbers = names.map(|name| match name {
                Name::Mark { number, id, .. } if id == attempt.id => number,
                _ => 0,
            });
            let mut mark = Name::Mark {
                number: self.next(&attempt.key, numbers.max())?,
                is_aside: verdict.is_some(),
                tag: String::new(),
                id: attempt.id.clone(),
            };
            let decision = sealed::seal(&Decision {
                key: attempt.key,
                of: mark.said(),
                reason: verdict.map(|verdict| verdict.reason.clone()),
                at: verdict.map_or_else(files::unix_now, |verdict| verdict.at),
            })?;
            if let Name::Mark { tag, .. } = &mut mark {
                *tag = Digest::of(&decision)
                    .to_string()
                    .chars()
                    .take(TAG)
                    .collect();
            }
            // Somebody else took the number just now: the next one comes after it.
            if self.write_record(&attempt.key, &mark, &decision)? {
                return Ok(());
            }
        }
    }

    fn names_checked(&self, key: &Digest) -> Result<Vec<Name>> {
        let mut unread = None;
        let names = self.names_of(key, &mut unread);
        unread.map_or(Ok(names), |unread| Err(unread.into()))
    }

    fn next(&self, key: &Digest, last: Option<u32>) -> Result<u32> {
        let next = last.unwrap_or(0) + 1;
        match next <= MOST_NUMBER {
            true => Ok(next),
            false => Err(CacheError::NoNumberLeft(*key).into()),
        }
    }

    /// The highest generation that was opened, or measured in; 0 at first.
    #[must_use]
    pub fn generation(&self, key: &Digest) -> u32 {
        last_generation(self.names_of(key, &mut None))
    }

    /// Opens the next generation. Processes that must not open the same one hold the key's lock.
    pub fn open_generation(&self, key: &Digest) -> Result<u32> {
        let last = last_generation(self.names_checked(key)?);
        let next = self.next(key, Some(last))?;
        self.note_generation(key, next)?;
        Ok(next)
    }

    fn note_generation(&self, key: &Digest, generation: u32) -> Result<()> {
        let name = Name::Generation(generation);
        let opened = sealed::seal(&Decision {
            key: *key,
            of: name.said(),
            reason: None,
            at: files::unix_now(),
        })?;
        self.write_record(key, &name, &opened).map(drop)
    }

    /// Returns when the attempt is on disk with the outputs that it names. What it was made of may go
    /// then, and not before: whoever finds both takes the run in once more, and a power cut in between
    /// loses nothing. Of one id recorded twice, the first record stays.
    pub fn record_attempt(&self, attempt: &Attempt) -> Result<()> {
        let attempt = &self.dated(attempt);
        let (name, bytes) = sealed_attempt(attempt)?;
        let outputs: Vec<&Digest> = attempt.outputs.iter().map(|one| &one.digest).collect();
        self.sync_objects(&outputs)?;
        if attempt.generation > 0 {
            self.note_generation(&attempt.key, attempt.generation)?;
        }
        if !self.write_record(&attempt.key, &name, &bytes)? {
            let path = self.folder_of(&attempt.key).join(name.file());
            let is_it = |found: &[u8]| {
                let found = sealed::unseal::<Attempt>(found);
                found.is_some_and(|found| found.id == attempt.id && found.key == attempt.key)
            };
            self.mend_record(&path, &bytes, is_it)?;
        }
        self.add_to_index(
            TaskKind::Train,
            &attempt.task,
            attempt.recorded,
            attempt.key,
        );
        Ok(())
    }

    /// The same for an import, whose record is replaced where its file is read in another way by now.
    pub fn record_import(&self, import: &Attempt) -> Result<()> {
        let (name, bytes) = sealed_attempt(&self.dated(import))?;
        let outputs: Vec<&Digest> = import.outputs.iter().map(|one| &one.digest).collect();
        self.sync_objects(&outputs)?;
        if !self.write_record(&import.key, &name, &bytes)? {
            let path = self.folder_of(&import.key).join(name.file());
            self.mend_record(&path, &bytes, |_| false)?;
        }
        Ok(())
    }

    /// Puts a record in the place of one that is damaged. One that cannot be read now may be sound, and
    /// stays.
    pub(super) fn mend_record(
        &self,
        path: &Path,
        bytes: &[u8],
        is_sound: impl FnOnce(&[u8]) -> bool,
    ) -> Result<()> {
        match read_record(path) {
            Ok(found) if is_sound(&found) => return Ok(()),
            Err(e) if matches!(fault_of(&e), Fault::Unread(_)) => {
                return Err(CacheError::unreadable(path)(e).into());
            }
            _ => {}
        }
        if path.is_dir() {
            return Err(CacheError::FolderInTheWay(path.to_owned()).into());
        }
        let temporary = self.temporary_of(bytes)?;
        temporary.as_file().sync_all().map_err(self.refused())?;
        self.persist(temporary, path)?;
        let folder = path.parent().unwrap_or(&self.root);
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(self.refused())
    }

    /// An attempt as it is recorded: decisions on it are records of their own.
    fn dated(&self, attempt: &Attempt) -> Attempt {
        Attempt {
            recorded: self.now(),
            set_aside: None,
            ..attempt.clone()
        }
    }

    /// Later than all that this process has recorded. Nanoseconds since 1970.
    fn now(&self) -> u64 {
        let now = (files::unix_now() * 1e9) as u64;
        let later = |last: u64| now.max(last + 1);
        let last = self
            .last_recorded
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(later(last))
            });
        later(last.unwrap_or_default())
    }

    /// Puts a record on disk, for good. False: one of this name is there, and stays.
    pub(super) fn write_record(&self, key: &Digest, name: &Name, bytes: &[u8]) -> Result<bool> {
        let path = self.folder_of(key).join(name.file());
        let folder = path.parent().unwrap_or(&self.root);
        let is_new = !folder.is_dir();
        let temporary = self.temporary_of(bytes)?;
        temporary.as_file().sync_all().map_err(self.refused())?;
        files::create_dir_all(folder)?;
        match temporary.persist_noclobber(&path) {
            Ok(_) => {}
            Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(e) => return Err(self.refused()(e.error)),
        }
        for folder in path.ancestors().skip(1).take(1 + usize::from(is_new)) {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(self.refused())?;
        }
        Ok(true)
    }

    /// What was derived under a key left; `None` if it is to be derived.
    #[must_use]
    pub fn outputs(&self, key: &Digest) -> Option<Vec<Output>> {
        self.made(key).map(|(_, entry)| entry.outputs)
    }

    /// A derived entry with when it was recorded. A damaged one is made again, so nobody is told.
    fn made(&self, key: &Digest) -> Option<(u64, Entry)> {
        let path = self.made_at(key);
        let bytes = match read_record(&path) {
            Ok(bytes) => bytes,
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound && fault_of(&e) != Fault::Damaged {
                    self.note(&path, Some(Fault::Unread(e.to_string())));
                }
                return None;
            }
        };
        let made: Made = sealed::unseal(&bytes)?;
        let entry = Entry {
            key: *key,
            kind: made.kind,
            task: made.task,
            preimage: made.preimage,
            outputs: made.outputs,
        };
        Some((made.recorded, entry))
    }

    pub fn record_entry(&self, entry: &Entry) -> Result<()> {
        let recorded = self.now();
        let made = sealed::seal(&Made {
            kind: entry.kind,
            task: entry.task.clone(),
            recorded,
            outputs: entry.outputs.clone(),
            preimage: entry.preimage.clone(),
        })?;
        self.persist(self.temporary_of(&made)?, &self.made_at(&entry.key))?;
        self.add_to_index(entry.kind, &entry.task, recorded, entry.key);
        Ok(())
    }

    /// Hands over every derived entry that can be read, with when it was recorded: one by one, for
    /// the texts of their keys are larger than all that is kept of them.
    pub(super) fn each_made(&self, mut take: impl FnMut(u64, Entry)) {
        let names = self.names_in(&self.root.join(MADE), &mut None);
        let keys = names
            .iter()
            .filter_map(|name| digest_of(name.strip_suffix(ENDING)?));
        keys.filter_map(|key| self.made(&key))
            .for_each(|(recorded, entry)| take(recorded, entry));
    }

    /// What ran last under a task's name, for "what changed". A training's is its last attempt.
    #[must_use]
    pub fn last_of(&self, kind: TaskKind, task: &str) -> Option<Entry> {
        let (_, key) = self.in_index(|index| {
            let of_task = index.get(&(kind, task.to_owned()))?;
            of_task.iter().max().copied()
        })?;
        if kind != TaskKind::Train {
            return self.made(&key).map(|(_, entry)| entry);
        }
        let attempts = self.attempts(&key).into_iter();
        let of_task = attempts.filter(|attempt| attempt.task == task);
        let last = of_task.max_by_key(|attempt| attempt.recorded)?;
        Some(Entry {
            key,
            kind,
            task: last.task,
            preimage: last.preimage,
            outputs: last.outputs,
        })
    }

    /// The entry of each key of a kind whose task's name is wanted, in the order in which they were
    /// recorded.
    #[must_use]
    pub fn entries_named(&self, kind: TaskKind, is_wanted: impl Fn(&str) -> bool) -> Vec<Entry> {
        let mut keys: Vec<(u64, Digest)> = self.in_index(|index| {
            let named = index
                .iter()
                .filter(|((of, task), _)| *of == kind && is_wanted(task));
            named.flat_map(|(_, keys)| keys.iter().copied()).collect()
        });
        keys.sort_unstable_by_key(|(recorded, key)| (*key, *recorded));
        // Of one key recorded twice the last.
        keys.reverse();
        keys.dedup_by_key(|(_, key)| *key);
        keys.sort_unstable();
        keys.iter()
            .filter_map(|(_, key)| Some(self.made(key)?.1))
            .collect()
    }

    /// The index of what ran. It is made when somebody first asks for it, which nothing that is fresh
    /// does, and kept in memory only.
    fn in_index<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        let mut held = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let index = held.get_or_insert_with(|| {
            let mut index = Index::new();
            self.each_made(|recorded, entry| {
                let of_task = index.entry((entry.kind, entry.task)).or_default();
                of_task.push((recorded, entry.key));
            });
            self.each_attempt(|run| {
                let of_task = index.entry((TaskKind::Train, run.task)).or_default();
                of_task.push((run.recorded, run.key));
            });
            index
        });
        look(index)
    }

    fn add_to_index(&self, kind: TaskKind, task: &str, recorded: u64, key: Digest) {
        let mut held = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = held.as_mut() {
            let of_task = index.entry((kind, task.to_owned())).or_default();
            of_task.push((recorded, key));
        }
    }

    /// A text that keys name by its digest.
    #[must_use]
    pub fn preimage(&self, digest: &Digest) -> Option<String> {
        let bytes = self.text(digest)?;
        String::from_utf8(bytes).ok()
    }

    pub(super) fn text(&self, digest: &Digest) -> Option<Vec<u8>> {
        let path = self.root.join(TEXTS).join(digest.to_string());
        let bytes = read_record(&path).ok()?;
        (Digest::of(&bytes) == *digest).then_some(bytes)
    }

    /// Keeps a text, or a small input, beside the keys that name it by its digest.
    pub fn record_preimage(&self, text: impl AsRef<[u8]>) -> Result<Digest> {
        let text = text.as_ref();
        let digest = Digest::of(text);
        if self.text(&digest).is_none() {
            let path = self.root.join(TEXTS).join(digest.to_string());
            let temporary = self.temporary_of(text)?;
            temporary.as_file().sync_all().map_err(self.refused())?;
            self.persist(temporary, &path)?;
            let synced = File::open(self.root.join(TEXTS)).and_then(|folder| folder.sync_all());
            synced.map_err(self.refused())?;
        }
        Ok(digest)
    }
}

fn sealed_attempt(attempt: &Attempt) -> Result<(Name, Vec<u8>)> {
    let name = Name::Attempt(attempt.id.clone());
    match Name::parse(&name.file()) == Some(name.clone()) {
        true => Ok((name, sealed::seal(attempt)?)),
        false => Err(Error::Internal(format!("no run is called {}", attempt.id))),
    }
}

/// The bytes of a record. No link is followed, and nobody is waited for.
pub(super) fn read_record(path: &Path) -> io::Result<Vec<u8>> {
    let (file, metadata) = files::open_regular_no_link(path)?;
    files::read_open(&file, metadata.len(), sealed::MOST_BYTES)
}

/// What is wrong with a file that could not be read. A link, a folder or a pipe in its place is no
/// record, and a sealed file is never too large.
pub(super) fn fault_of(error: &io::Error) -> Fault {
    let is_link = error.raw_os_error() == Some(nix::libc::ELOOP);
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::NotADirectory | io::ErrorKind::FileTooLarge => {
            Fault::Damaged
        }
        _ if is_link => Fault::Damaged,
        _ => Fault::Unread(error.to_string()),
    }
}

fn last_generation(names: Vec<Name>) -> u32 {
    let generations = names.into_iter().map(|name| match name {
        Name::Generation(number) => number,
        _ => 0,
    });
    generations.max().unwrap_or(0)
}

/// A digest in the one spelling that names of files have.
pub(super) fn digest_of(name: &str) -> Option<Digest> {
    let digest: Digest = name.parse().ok()?;
    (digest.to_string() == name).then_some(digest)
}
