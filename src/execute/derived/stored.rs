//! What derived tasks store in the cache, and read back out of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cache::{Cache, CacheError, JsonLayout, Output},
    digest::Digest,
    error::{Error, Result},
    figures::{Comparison, Summary},
    files::Durability,
    report,
    results::RunResult,
    run::folder::lock,
};

pub(super) fn put(cache: &Cache, name: &str, bytes: &[u8]) -> Result<Output> {
    let digest = cache.put(bytes, Durability::Plain)?;
    Ok(Output {
        name: name.to_owned(),
        digest,
        size: bytes.len() as u64,
    })
}

pub(super) fn put_picture(cache: &Cache, picture: &report::Picture) -> Result<[Output; 2]> {
    let file = picture.file();
    Ok([
        put(cache, &format!("{file}.png"), &picture.png)?,
        put(cache, &format!("{file}.svg"), picture.svg.as_bytes())?,
    ])
}

/// Stores the comparison as a stream: for ten thousand cells its text is some hundred MiB, and is
/// never whole in memory.
pub(super) fn put_comparison(
    cache: &Cache,
    comparison: &impl Serialize,
    layout: JsonLayout,
) -> Result<Output> {
    let (digest, size) = cache.put_json(comparison, layout, Durability::Plain)?;
    Ok(Output {
        name: "compare.json".to_owned(),
        digest,
        size,
    })
}

/// The last comparison that was read, or was stored to be read next: a build needs the same one for
/// its pictures, its report and what it says at its end, and of thousands of cells it takes a good
/// part of a second each time.
static LAST_READ: Mutex<Option<(Digest, Arc<Comparison>)>> = Mutex::new(None);

/// Stores a comparison that is read next, from memory: what is read is what was stored.
pub(super) fn put_comparison_to_read(cache: &Cache, comparison: Comparison) -> Result<Output> {
    let stored = put_comparison(cache, &comparison, JsonLayout::Dense)?;
    #[cfg(debug_assertions)]
    if let Some(Ok(read)) = cache.get_json::<Comparison>(&stored.digest)? {
        assert!(
            read == comparison,
            "a comparison is read otherwise than it was made"
        );
    }
    let mut last = lock(&LAST_READ);
    *last = Some((stored.digest, Arc::new(comparison)));
    Ok(stored)
}

/// The comparison that a plot or a report shows.
pub fn read_comparison(cache: &Cache, stored: Option<&Output>) -> Result<Arc<Comparison>> {
    let Output { name, digest, .. } =
        stored.ok_or_else(|| Error::Internal("the comparison has no record".to_owned()))?;
    let mut last = lock(&LAST_READ);
    if let Some((_, comparison)) = last.as_ref().filter(|(of, _)| of == digest) {
        return Ok(comparison.clone());
    }
    let read = cache
        .get_json::<Comparison>(digest)?
        .ok_or_else(|| cache.gone(digest, name))?;
    let comparison = Arc::new(read.map_err(|e| not_ours(digest, name, e))?);
    *last = Some((*digest, comparison.clone()));
    Ok(comparison)
}

/// The summary that an aggregate stored.
pub fn read_summary(cache: &Cache, stored: &Output) -> Result<Summary> {
    SUMMARIES.read(cache, &stored.digest, &stored.name)
}

/// Values of one kind that this process stored, for later tasks of it: of thousands of short runs it
/// takes longer to read them again than to make them.
pub(super) struct Kept<T>(Mutex<KeptValues<T>>);

struct KeptValues<T> {
    by_digest: BTreeMap<Digest, Arc<T>>,
    /// Bytes of their files.
    size: u64,
}

/// Bytes of files whose values are kept, of each kind. Other values are read from their files.
const MOST_KEPT: u64 = 64 << 20;

pub(super) static RESULTS: Kept<RunResult> = Kept::none();
pub(super) static SUMMARIES: Kept<Summary> = Kept::none();

impl<T: Clone + PartialEq + Serialize + DeserializeOwned> Kept<T> {
    const fn none() -> Self {
        Self(Mutex::new(KeptValues {
            by_digest: BTreeMap::new(),
            size: 0,
        }))
    }

    /// Stores a value and keeps it: what later tasks read is what was stored.
    pub fn put(&self, cache: &Cache, name: &str, value: T) -> Result<Output> {
        // Without the spaces of published files: nobody reads it but tprimat.
        let text = serde_json::to_vec(&value)
            .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
        debug_assert!(
            serde_json::from_slice::<T>(&text).is_ok_and(|read| read == value),
            "{name} is read otherwise than it was made"
        );
        let output = put(cache, name, &text)?;
        let mut kept = lock(&self.0);
        if kept.size + output.size <= MOST_KEPT {
            kept.size += output.size;
            kept.by_digest.insert(output.digest, Arc::new(value));
        }
        Ok(output)
    }

    /// Reads such a value, from its file where it is not kept.
    pub fn read(&self, cache: &Cache, digest: &Digest, name: &str) -> Result<T> {
        // It is copied once the lock is free: many threads read at the same time.
        let kept = lock(&self.0).by_digest.get(digest).cloned();
        kept.map_or_else(|| read(cache, digest, name), |kept| Ok((*kept).clone()))
    }
}

/// The cells with runs that the last comparison did not count; `outputs` are its task's. A file of
/// its own, since the comparison of many cells takes longer to read than all else of a plan.
pub(in crate::execute) fn read_uncounted(
    cache: &Cache,
    outputs: &[Output],
) -> Result<BTreeSet<String>> {
    let Some(output) = outputs.iter().find(|output| output.name == UNCOUNTED) else {
        return Ok(BTreeSet::new());
    };
    read(cache, &output.digest, UNCOUNTED)
}

pub(super) const UNCOUNTED: &str = "uncounted.json";

pub(in crate::execute) fn need(cache: &Cache, digest: &Digest, name: &str) -> Result<Vec<u8>> {
    cache.get(digest)?.ok_or_else(|| cache.gone(digest, name))
}

fn read<T: DeserializeOwned>(cache: &Cache, digest: &Digest, name: &str) -> Result<T> {
    serde_json::from_slice(&need(cache, digest, name)?).map_err(|e| not_ours(digest, name, e))
}

pub(super) fn not_ours(digest: &Digest, name: &str, source: serde_json::Error) -> Error {
    CacheError::OtherVersion {
        what: format!("`{name}` ({})", digest.short()),
        source,
    }
    .into()
}

pub(super) fn json_bytes(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}
