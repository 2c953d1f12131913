//! Recording what was done under which key, and looking it up.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
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
    entry::{Attempt, SetAside, TaskKind},
    error::CacheError,
    names::{MOST_NUMBER, Name, RECORDS, TAG, TEXTS, digest_of},
    sealed,
    store::Cache,
};

/// The largest text or input that is kept beside the keys that name it.
pub const MOST_TEXT: u64 = 1 << 20;

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

    /// What could not be read so far. What is damaged counts as never recorded; of what could not be
    /// read nothing is known.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.noted().clone()
    }

    fn noted(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, path: &Path, fault: Option<Fault>) {
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
        self.persist(self.synced(bytes)?, path)?;
        self.sync_folder(path.parent().unwrap_or(&self.root))
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
    pub(super) fn now(&self) -> u64 {
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
        let temporary = self.synced(bytes)?;
        files::create_dir_all(folder)?;
        match temporary.persist_noclobber(&path) {
            Ok(_) => {}
            Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(e) => return Err(self.refused()(e.error)),
        }
        for folder in path.ancestors().skip(1).take(1 + usize::from(is_new)) {
            self.sync_folder(folder)?;
        }
        Ok(true)
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
            self.persist(self.synced(text)?, &path)?;
            self.sync_folder(&self.root.join(TEXTS))?;
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
