//! A remote: a place outside the cache where caches share their runs.
//!
//! ```text
//! ADDRESS/runs/KEY/DIGEST.tar.zst    one record with the files that it names, as a bundle
//! ```
//!
//! KEY is the train key and DIGEST that of the record's bytes, which name the digests of its files.
//! So a name says what its content must be: a reader takes nothing else, two writers of one name
//! write the same run, and nobody needs to overwrite or to lock anything. The remote is the union
//! of what was pushed to it.
#[cfg(feature = "cloud")]
mod cloud;
mod folder;
mod store;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashSet},
    io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use store::Store;
use tprimat_base::{
    digest::Digest,
    error::{Error, Problem, Result},
};
use tprimat_cache::{
    Cache, Counts, Expected, OTHER_KEY, Received, SharedRecord, bundle_fault, check_bundle,
};

/// Requests that are under way at once.
const AT_ONCE: usize = 16;
/// The most that one run may take, compressed. It is held in memory while it is sent or checked.
const MOST_BYTES: u64 = 1 << 30;
/// Up to so many keys the remote is asked for each; beyond, for all that it has.
const FEW_KEYS: usize = 64;

const RUNS: &str = "runs";
const SUFFIX: &str = ".tar.zst";

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
}

/// Records that a remote has.
#[derive(Clone, Debug, Default)]
pub struct Listing(BTreeSet<(Digest, Digest)>);

impl Listing {
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    #[must_use]
    pub fn has(&self, record: &SharedRecord) -> bool {
        self.0.contains(&(record.key, record.digest))
    }
    /// Is every record of the remote here, with all its files?
    pub fn is_known_to(&self, cache: &Cache) -> Result<bool> {
        if self.is_empty() {
            return Ok(true);
        }
        let records = cache.shared_records()?;
        let known = records.iter().filter(|record| self.has(record));
        let whole: HashSet<_> = known
            .filter(|r| cache.is_whole(r))
            .map(|r| r.digest)
            .collect();
        Ok(self.0.iter().all(|(_, digest)| whole.contains(digest)))
    }
}

/// What a pull brought.
#[derive(Debug, Default)]
pub struct Pulled {
    pub counts: Counts,
    /// What the remote has and is not what its name says, each with the reason.
    pub refused: Vec<String>,
    /// Why it broke off; what came before is here.
    pub cut: Option<Error>,
}

/// What a push did.
#[derive(Debug, Default)]
pub struct Pushed {
    pub runs: usize,
    /// The ids of all its runs that are there now, whoever put them there.
    pub there: Vec<String>,
    /// Runs of which this cache has lost a file.
    pub incomplete: usize,
    /// Why it broke off; what went before is there.
    pub cut: Option<Error>,
}

/// What was replaced because it was damaged.
#[derive(Debug, Default)]
pub struct Repaired {
    /// The names that were damaged and are whole now.
    pub names: Vec<String>,
    /// Why it broke off.
    pub cut: Option<Error>,
}

/// What was read of a remote.
#[derive(Debug, Default)]
pub struct Verified {
    pub damaged: Vec<Damaged>,
    /// Why it broke off; nothing is known of what was not read.
    pub cut: Option<Error>,
}

/// A name of a remote whose content is not what the name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    pub name: String,
    pub why: String,
    /// The record that the name promises.
    pub digest: Digest,
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
            #[cfg(feature = "cloud")]
            "s3" | "gs" | "az" => Box::new(
                cloud::Cloud::new(scheme, rest).map_err(|why| wrong("cannot be used", &why))?,
            ),
            #[cfg(not(feature = "cloud"))]
            "s3" | "gs" | "az" => {
                let help = "the wheel's tprimat does it, and so does one of `cargo install --path . --features remote`; file:// works without it";
                return Err(wrong("needs what this tprimat was built without", help));
            }
            _ => return Err(wrong("is of an unknown kind", forms)),
        };
        Ok(Self {
            address: address.to_owned(),
            store,
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

    /// What the remote has, of these keys or of all. Names that are none of tprimat's are passed
    /// over.
    pub fn list(&self, keys: Option<&BTreeSet<Digest>>) -> Result<Listing> {
        let names = match keys {
            Some(keys) if keys.len() <= FEW_KEYS => {
                let found = Mutex::new(Vec::new());
                let keys: Vec<_> = keys.iter().collect();
                side_by_side(&keys, &|_, _| Ok(()), |key| {
                    let names = self.store.list(&format!("{RUNS}/{key}"));
                    held(&found).extend(names.map_err(|error| self.lost(error))?);
                    Ok(())
                })?;
                found.into_inner().unwrap_or_else(PoisonError::into_inner)
            }
            _ => self.store.list(RUNS).map_err(|error| self.lost(error))?,
        };
        let all = names.iter().filter_map(|name| key_and_digest(name));
        let wanted = all.filter(|(key, _)| keys.is_none_or(|keys| keys.contains(key)));
        Ok(Listing(wanted.collect()))
    }

    /// Takes in what the remote has and the cache lacks. What is not what its name says is
    /// refused, and the rest is taken.
    pub fn pull(&self, cache: &Cache, listing: &Listing, progress: Progress<'_>) -> Result<Pulled> {
        // A run whose log was lost here comes again.
        let records = cache.shared_records()?.into_iter();
        let whole = records.filter(|record| cache.is_whole(record));
        let own: HashSet<Digest> = whole.map(|record| record.digest).collect();
        let wanted: Vec<_> = listing.0.iter().filter(|(_, d)| !own.contains(d)).collect();
        let (received, refused) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let asked = side_by_side(&wanted, progress, |(key, digest)| {
            let name = name_of(key, digest);
            match self.bytes(&name)? {
                Found::Nothing => {}
                Found::TooLarge(why) => held(&refused).push(why),
                Found::Bundle(bytes) => match received_from(cache, &bytes, key, digest) {
                    Ok(one) => held(&received).push(one),
                    Err(Reason::Bundle(why)) => held(&refused).push(format!("{name}: {why}")),
                    Err(Reason::Here(error)) => return Err(error),
                },
            }
            Ok(())
        });
        let received: Vec<Received> = std::mem::take(&mut *held(&received));
        // Also after a failure: what came is kept.
        let counts = cache.admit(received)?;
        let mut refused = std::mem::take(&mut *held(&refused));
        refused.sort();
        Ok(Pulled {
            counts,
            refused,
            cut: asked.err(),
        })
    }

    /// Puts there what the remote lacks of these records. What another host puts there meanwhile
    /// stays.
    pub fn push(
        &self,
        cache: &Cache,
        records: &[SharedRecord],
        listing: &Listing,
        progress: Progress<'_>,
    ) -> Pushed {
        let (known, missing): (Vec<_>, Vec<_>) = records.iter().partition(|r| listing.has(r));
        let id = |record: &SharedRecord| record.attempt().map(|attempt| attempt.id);
        let there = Mutex::new(known.into_iter().filter_map(id).collect::<Vec<_>>());
        let (runs, incomplete) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let pushed = side_by_side(&missing, progress, |record| {
            let mut bundle = Vec::new();
            if !cache.pack_record(record, &mut bundle)? {
                incomplete.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            let name = name_of(&record.key, &record.digest);
            let is_new = self.store.put_if_absent(&name, bundle);
            let is_new = is_new.map_err(|error| self.lost(error))?;
            if let Some(id) = id(record) {
                runs.fetch_add(usize::from(is_new), Ordering::Relaxed);
                held(&there).push(id);
            }
            Ok(())
        });
        Pushed {
            runs: runs.into_inner(),
            there: there.into_inner().unwrap_or_else(PoisonError::into_inner),
            incomplete: incomplete.into_inner(),
            cut: pushed.err(),
        }
    }

    /// Reads what the remote has of these records, and puts what is here in the place of what is not
    /// what its name says.
    pub fn repair(
        &self,
        cache: &Cache,
        records: &[SharedRecord],
        listing: &Listing,
        progress: Progress<'_>,
    ) -> Repaired {
        let there: Vec<_> = records
            .iter()
            .filter(|r| listing.has(r) && cache.is_whole(r))
            .collect();
        let repaired = Mutex::new(Vec::new());
        let asked = side_by_side(&there, progress, |record| {
            if self.fault(&record.key, &record.digest)?.is_some() {
                let name = name_of(&record.key, &record.digest);
                let mut bundle = Vec::new();
                if cache.pack_record(record, &mut bundle)? {
                    let replaced = self.store.replace(&name, bundle);
                    replaced.map_err(|error| self.lost(error))?;
                    held(&repaired).push(name);
                }
            }
            Ok(())
        });
        let mut names = std::mem::take(&mut *held(&repaired));
        names.sort();
        Repaired {
            names,
            cut: asked.err(),
        }
    }

    /// Reads everything that is listed, changes nothing, and returns each name whose content is not
    /// what the name says, with the reason.
    #[must_use]
    pub fn verify(&self, listing: &Listing, progress: Progress<'_>) -> Verified {
        let listed: Vec<_> = listing.0.iter().collect();
        let damaged = Mutex::new(Vec::new());
        let asked = side_by_side(&listed, progress, |(key, digest)| {
            if let Some(why) = self.fault(key, digest)? {
                let name = name_of(key, digest);
                held(&damaged).push(Damaged {
                    name,
                    why,
                    digest: *digest,
                });
            }
            Ok(())
        });
        let mut damaged = std::mem::take(&mut *held(&damaged));
        damaged.sort_by(|a, b| a.name.cmp(&b.name));
        Verified {
            damaged,
            cut: asked.err(),
        }
    }

    /// Why what lies under a name is not what the name says, if it is not.
    fn fault(&self, key: &Digest, digest: &Digest) -> Result<Option<String>> {
        Ok(match self.bytes(&name_of(key, digest))? {
            Found::Nothing => None,
            Found::TooLarge(why) => Some(why),
            Found::Bundle(bytes) => check_bundle(&bytes[..], key, *digest).err(),
        })
    }

    /// A run that is larger than any run may be is damaged, not out of reach.
    fn bytes(&self, name: &str) -> Result<Found> {
        match self.store.get(name, MOST_BYTES) {
            Ok(Some(bytes)) => Ok(Found::Bundle(bytes)),
            Ok(None) => Ok(Found::Nothing),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Ok(Found::TooLarge(error.to_string()))
            }
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Removes what pushes left that were killed more than a day ago.
    pub fn sweep(&self) {
        self.store.sweep();
    }

    /// The folder, where the remote is one.
    #[must_use]
    pub fn folder(&self) -> Option<&std::path::Path> {
        self.address
            .strip_prefix("file://")
            .map(std::path::Path::new)
    }
}

/// What lies under a name that was listed.
enum Found {
    /// It was removed meanwhile.
    Nothing,
    TooLarge(String),
    Bundle(Vec<u8>),
}

enum Reason {
    /// The remote's: it is passed over.
    Bundle(String),
    /// This host's: a full disk, say.
    Here(Error),
}

fn received_from(
    cache: &Cache,
    bundle: &[u8],
    key: &Digest,
    digest: &Digest,
) -> Result<Received, Reason> {
    match cache.receive(bundle, Expected::One(*digest)) {
        Ok(received) if received.is_of(key) => Ok(received),
        Ok(_) => Err(Reason::Bundle(OTHER_KEY.into())),
        Err(error) => Err(bundle_fault(error).map_or_else(Reason::Here, Reason::Bundle)),
    }
}

fn name_of(key: &Digest, digest: &Digest) -> String {
    format!("{RUNS}/{key}/{digest}{SUFFIX}")
}

fn key_and_digest(name: &str) -> Option<(Digest, Digest)> {
    let (key, digest) = name
        .strip_prefix(RUNS)?
        .strip_prefix('/')?
        .strip_suffix(SUFFIX)?
        .split_once('/')?;
    let pair = (key.parse().ok()?, digest.parse().ok()?);
    (name_of(&pair.0, &pair.1) == name).then_some(pair)
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
