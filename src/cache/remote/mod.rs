//! A remote: a place outside the cache where caches share what was measured. It has the layout of a
//! cache's shared part, so a cache's own folder is one as well.
//!
//! ```text
//! ADDRESS/records/KEY/NAME.json   a run, or a decision on one
//! ADDRESS/objects/ab/cdef…        the files that runs name
//! ADDRESS/texts/DIGEST            the texts that keys name
//! ```
//!
//! A record is put there after all that it names, and shows its own damage; what it names is held
//! against its digest. Nobody overwrites anything or needs a lock: the remote is the union of what
//! was pushed to it.
mod archive;
#[cfg(feature = "remote")]
mod cloud;
mod folder;
mod shared;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::fd::AsFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tprimat_base::{
    digest::Digest,
    error::{Error, Problem, Result},
};

use super::{
    error::is_of_one_file,
    names::{RECORDS, digest_of},
    sealed,
    store::Cache,
};
use shared::{Content, MOST_BYTES};
pub use shared::{Counts, Shared};

/// Requests that are under way at once.
const AT_ONCE: usize = 16;
/// Up to this number of keys, the remote is asked for each key; above it, one listing of the whole remote is
/// cheaper.
const FEW_KEYS: usize = 64;

/// What a remote is kept in: names with bytes behind them.
trait Store: Send + Sync {
    /// The full names of everything below a folder; none where it is not there.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// The bytes behind a name. More than `most` are an error of the kind `FileTooLarge`.
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>>;
    /// False: something is there already, and stays. Nobody ever sees a part of it.
    fn put_if_absent(&self, name: &str, bytes: Vec<u8>) -> io::Result<bool>;
    /// Puts whole bytes in the place of damaged ones.
    fn replace(&self, name: &str, bytes: Vec<u8>) -> io::Result<()>;
    /// Removes old parts that killed writers left, where there can be some.
    fn sweep(&self) {}
}

fn too_large(name: &str, most: u64) -> io::Error {
    let why = format!("{name} is larger than {} MiB", most >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}

/// Why a remote could not be used. The caller warns and goes on without it.
#[derive(Debug, thiserror::Error)]
#[error("the remote cache {address} cannot be reached: {source}")]
pub struct Unreachable {
    pub address: String,
    pub source: io::Error,
}

/// A remote, by its address.
pub struct Remote {
    address: String,
    store: Box<dyn Store>,
    /// What was listed in the place of a folder of records and is none, for the next pull to tell.
    no_folders: Mutex<Vec<String>>,
}

/// Records that a remote has.
pub type Listing = BTreeSet<Shared>;

/// What a pull brought.
#[derive(Debug, Default)]
pub struct Pulled {
    pub counts: Counts,
    pub objects: usize,
    /// What the remote has and is not what its name says, each with the reason.
    pub refused: Vec<String>,
    /// Why it broke off; what came before is here.
    pub cut: Option<Error>,
}

/// What a push did.
#[derive(Debug, Default)]
pub struct Pushed {
    pub counts: Counts,
    /// The ids of all its runs that are there now, whoever put them there.
    pub there: BTreeSet<String>,
    /// Records that are damaged here, and runs of which this cache has lost a file.
    pub incomplete: usize,
    /// Why it broke off; what went before is there.
    pub cut: Option<Error>,
}

/// A record of a remote that is not what was pushed, or that names a file which is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    pub record: Shared,
    pub why: String,
}

/// Is told how many of how many are done; an error ends the work after what is under way.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) -> Result<()> + Sync);

impl Remote {
    /// Reads an address; nothing is asked for yet.
    ///
    /// # Errors
    /// Where the address is not one, or where this tprimat was built without what it needs.
    pub fn open(address: &str) -> Result<Self, Problem> {
        let wrong = |why: &str, help: &str| {
            Problem::new(format!("the remote cache `{address}` {why}")).help(help)
        };
        let forms = "expected file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX";
        let (scheme, rest) = address
            .split_once("://")
            .ok_or_else(|| wrong("is not an address", forms))?;
        if rest.contains(['@', '?', '#']) {
            let help = "leave out users, passwords and tokens: keys are read from the environment (AWS_ACCESS_KEY_ID, …)";
            return Err(wrong("holds more than a place", help));
        }
        let store: Box<dyn Store> = match scheme {
            "file" if rest.starts_with('/') => Box::new(folder::Folder::new(rest)),
            "file" => return Err(wrong("is not an absolute path", forms)),
            #[cfg(feature = "remote")]
            "s3" | "gs" | "az" => Box::new(
                cloud::Cloud::new(scheme, rest).map_err(|why| wrong("cannot be used", &why))?,
            ),
            #[cfg(not(feature = "remote"))]
            "s3" | "gs" | "az" => {
                let help = "the wheel's tprimat does it, and so does one of `cargo install --path . --features remote`; file:// works without it";
                return Err(wrong("needs what this tprimat was built without", help));
            }
            _ => return Err(wrong("is of an unknown kind", forms)),
        };
        Ok(Self {
            address: address.to_owned(),
            store,
            no_folders: Mutex::default(),
        })
    }

    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    fn lost(&self, source: io::Error) -> Error {
        let address = self.address.clone();
        Error::stage(Unreachable { address, source })
    }

    /// The folder of another cache, which has what a remote has.
    #[must_use]
    pub fn of_cache(root: &std::path::Path) -> Self {
        Self {
            address: format!("file://{}", root.display()),
            store: Box::new(folder::Folder::new(root)),
            no_folders: Mutex::default(),
        }
    }

    /// What the remote has, of these keys or of all. Names that are none of tprimat's are passed
    /// over.
    pub fn list(&self, keys: Option<&BTreeSet<Digest>>) -> Result<Listing> {
        let names = match keys {
            Some(keys) if keys.len() <= FEW_KEYS => {
                let found = Mutex::new(Vec::new());
                let keys: Vec<_> = keys.iter().collect();
                side_by_side(&keys, &|_, _| Ok(()), |key| {
                    let names = self.store.list(&format!("{RECORDS}/{key}"));
                    held(&found).extend(names.map_err(|error| self.lost(error))?);
                    Ok(())
                })?;
                found.into_inner().unwrap_or_else(PoisonError::into_inner)
            }
            _ => self.store.list(RECORDS).map_err(|error| self.lost(error))?,
        };
        let is_key = |name: &&String| {
            let key = name
                .strip_prefix(RECORDS)
                .and_then(|rest| rest.strip_prefix('/'));
            key.is_some_and(|key| digest_of(key).is_some())
        };
        let links = names.iter().filter(is_key);
        *held(&self.no_folders) = links
            .map(|name| format!("{name} is a link or a file, and no folder of records"))
            .collect();
        let all = names.iter().filter_map(|name| Shared::parse(name));
        let wanted = all.filter(|one| keys.is_none_or(|keys| keys.contains(&one.key)));
        Ok(wanted.collect())
    }

    /// Takes in what the remote has and the cache lacks. What is not what it should be is refused,
    /// and the rest is taken.
    pub fn pull(&self, cache: &Cache, listing: &Listing, progress: Progress<'_>) -> Result<Pulled> {
        // A run whose log was lost here comes again.
        let wanted: Vec<_> = listing.iter().filter(|one| !cache.is_whole(one)).collect();
        let (received, refused) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let objects = AtomicUsize::new(0);
        let asked = side_by_side(&wanted, progress, |record| {
            match self.fetch(record, Some((cache, &objects)))? {
                Fetched::Whole(bytes) => held(&received).push((*record, bytes)),
                Fetched::Nothing => {}
                Fetched::Damaged(why) => held(&refused).push(format!("{}: {why}", record.name())),
            }
            Ok(())
        });
        let mut pulled = Pulled {
            objects: objects.into_inner(),
            refused: std::mem::take(&mut *held(&refused)),
            cut: asked.err(),
            ..Pulled::default()
        };
        pulled.refused.append(&mut held(&self.no_folders));
        pulled.refused.sort();
        let mut received = std::mem::take(&mut *held(&received));
        // Decisions first: a run that was set aside counts at no moment.
        received.sort_by_key(|(record, _)| record.run().is_some());
        if received.is_empty() {
            return Ok(pulled);
        }
        // No record before the files that it names. One call for all of them, in place of three for
        // each.
        let root = File::open(cache.root()).map_err(cache.refused())?;
        nix::unistd::syncfs(root.as_fd()).map_err(|e| cache.refused()(e.into()))?;
        for (record, bytes) in received {
            match cache.admit(record, &bytes) {
                Ok(true) => pulled.counts.add(record),
                Ok(false) => {}
                // What is in its place here cannot be read now, or is a folder.
                Err(error) if is_of_one_file(&error) => {
                    pulled.refused.push(format!("{}: {error}", record.name()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(pulled)
    }

    /// Puts there what the remote lacks of these records. What another host puts there meanwhile
    /// stays.
    pub fn push(
        &self,
        cache: &Cache,
        records: &[Shared],
        listing: &Listing,
        progress: Progress<'_>,
    ) -> Pushed {
        let (known, missing): (Vec<_>, Vec<_>) = records.iter().partition(|r| listing.contains(r));
        let known = known.into_iter().filter_map(Shared::run).map(str::to_owned);
        let pushed = Mutex::new(Pushed {
            there: known.collect(),
            ..Pushed::default()
        });
        // All decisions are there before the first run that may be set aside by one.
        let (runs, decisions): (Vec<&Shared>, Vec<&Shared>) = missing
            .into_iter()
            .partition(|record| record.run().is_some());
        let push = |record: &&Shared| {
            let put = |name: &str, bytes| self.store.put_if_absent(name, bytes);
            let put = cache.give(record, &put, &|error| self.lost(error))?;
            let mut pushed = held(&pushed);
            let Some(is_new) = put else {
                pushed.incomplete += 1;
                return Ok(());
            };
            if is_new {
                pushed.counts.add(record);
            }
            pushed.there.extend(record.run().map(str::to_owned));
            Ok(())
        };
        let asked = side_by_side(&decisions, progress, push);
        let asked = asked.and_then(|()| side_by_side(&runs, progress, push));
        let mut pushed = pushed.into_inner().unwrap_or_else(PoisonError::into_inner);
        pushed.cut = asked.err();
        pushed
    }

    /// Reads everything that is listed, with the files that it names, and returns what is damaged.
    /// With a cache, what that has whole is put in the place of what is damaged, and only that is
    /// returned.
    pub fn verify(
        &self,
        listing: &Listing,
        repair_from: Option<&Cache>,
        progress: Progress<'_>,
    ) -> Result<Vec<Damaged>> {
        let here = |one: &&Shared| repair_from.is_none_or(|cache| cache.is_whole(one));
        let listed: Vec<_> = listing.iter().filter(here).collect();
        let damaged = Mutex::new(Vec::new());
        side_by_side(&listed, progress, |record| {
            let Fetched::Damaged(why) = self.fetch(record, None)? else {
                return Ok(());
            };
            if let Some(cache) = repair_from {
                let put = |name: &str, bytes| self.store.replace(name, bytes).map(|()| true);
                if cache
                    .give(record, &put, &|error| self.lost(error))?
                    .is_none()
                {
                    return Ok(());
                }
            }
            let record = Shared::clone(record);
            held(&damaged).push(Damaged { record, why });
            Ok(())
        })?;
        let mut damaged = std::mem::take(&mut *held(&damaged));
        damaged.sort_by(|a, b| a.record.cmp(&b.record));
        Ok(damaged)
    }

    /// Reads a record and all that it names. What the cache lacks of its files is taken in; without a
    /// cache all are read, and none is stored.
    fn fetch(&self, record: &Shared, into: Option<(&Cache, &AtomicUsize)>) -> Result<Fetched> {
        let bytes = match self.bytes(&record.name(), sealed::MOST_BYTES)? {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(Fetched::Nothing),
            Err(why) => return Ok(Fetched::Damaged(why)),
        };
        let content = match Content::of_stranger(record, &bytes) {
            Ok(content) => content,
            Err(why) => return Ok(Fetched::Damaged(why)),
        };
        for digest in &content.texts {
            if into.is_some_and(|(cache, _)| cache.text(digest).is_some()) {
                continue;
            }
            // A key may name files that nobody kept.
            let Ok(Some(text)) = self.bytes(&shared::text_name(digest), sealed::MOST_BYTES)? else {
                continue;
            };
            if Digest::of(&text) != *digest {
                return Ok(Fetched::Damaged(format!(
                    "the text {} is damaged",
                    digest.short()
                )));
            }
            if let Some((cache, _)) = into {
                cache.record_preimage(&text)?;
            }
        }
        for output in &content.outputs {
            // Bytes that are known to be right mend what is damaged here, or cannot be read.
            if into.is_some_and(|(cache, _)| cache.is_sound(&output.digest).unwrap_or(false)) {
                continue;
            }
            let damaged = |why: String| Ok(Fetched::Damaged(format!("`{}` {why}", output.name)));
            let stored = match self.bytes(&shared::object_name(&output.digest), MOST_BYTES)? {
                Ok(Some(stored)) => stored,
                Ok(None) => return damaged("is not there".into()),
                Err(why) => return damaged(why),
            };
            if let Err(why) = shared::check(&stored, output) {
                return damaged(why);
            }
            if let Some((cache, objects)) = into {
                cache.put_expected(&stored, output)?;
                objects.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(Fetched::Whole(bytes))
    }

    /// What is larger than any file may be is damaged, not out of reach.
    fn bytes(&self, name: &str, most: u64) -> Result<Result<Option<Vec<u8>>, String>> {
        match self.store.get(name, most) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(Err(error.to_string())),
            // A link, a folder or a pipe in its place.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Err(error.to_string())),
            other => other.map(Ok).map_err(|error| self.lost(error)),
        }
    }

    /// Removes what pushes left that were killed more than a day ago.
    pub fn sweep(&self) {
        self.store.sweep();
    }

    /// The folder, where the remote is one.
    #[must_use]
    pub fn folder(&self) -> Option<&std::path::Path> {
        let folder = self.address.strip_prefix("file://");
        folder.map(std::path::Path::new)
    }
}

/// What lies under a name that was listed.
enum Fetched {
    /// It was removed meanwhile.
    Nothing,
    /// Why it is not what was pushed.
    Damaged(String),
    /// The record's bytes; all that it names is sound.
    Whole(Vec<u8>),
}

/// Does `work` for every item on a few threads; after the first failure no other item is begun.
fn side_by_side<T: Sync>(
    items: &[T],
    progress: Progress<'_>,
    work: impl Fn(&T) -> Result<()> + Sync,
) -> Result<()> {
    let (next, done, stop) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(items.len()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        return;
                    };
                    let count = || done.fetch_add(1, Ordering::Relaxed) + 1;
                    if let Err(error) = work(item).and_then(|()| progress(count(), items.len())) {
                        stop.store(true, Ordering::Relaxed);
                        held(&failure).get_or_insert(error);
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
