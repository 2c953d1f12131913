//! What derived tasks store in the cache, and read back out of it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cache::{Cache, CacheError, Output},
    digest::Digest,
    error::{Error, Result},
    figures::{Comparison, Summary},
    files::Durability,
    report,
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

pub(super) fn put_comparison(cache: &Cache, comparison: &impl Serialize) -> Result<Output> {
    let mut text = serde_json::to_vec(comparison)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    text.push(b'\n');
    put(cache, "compare.json", &text)
}

/// The last comparison that was read, or was stored to be read next: a build needs the same one for
/// its pictures, its report and what it says at its end, and of thousands of cells it takes a good
/// part of a second each time.
static LAST_READ: Mutex<Option<(Digest, Arc<Comparison>)>> = Mutex::new(None);

/// Stores a comparison that is read next, from memory: what is read is what was stored.
pub(super) fn put_comparison_to_read(cache: &Cache, comparison: Comparison) -> Result<Output> {
    let stored = put_comparison(cache, &comparison)?;
    debug_assert!(
        read::<Comparison>(cache, &stored.digest, &stored.name)
            .is_ok_and(|read| read == comparison),
        "a comparison is read otherwise than it was made"
    );
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
    let comparison: Arc<Comparison> = Arc::new(read(cache, digest, name)?);
    *last = Some((*digest, comparison.clone()));
    Ok(comparison)
}

/// The summary that an aggregate stored.
pub fn read_summary(cache: &Cache, stored: &Output) -> Result<Summary> {
    read(cache, &stored.digest, &stored.name)
}

/// Stores what only tprimat reads, without the spaces of published files.
pub(super) fn put_value(
    cache: &Cache,
    name: &str,
    value: &(impl Serialize + DeserializeOwned + PartialEq),
) -> Result<Output> {
    let text = serde_json::to_vec(value)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    debug_assert!(
        serde_json::from_slice(&text).is_ok_and(|read| *value == read),
        "{name} is read otherwise than it was made"
    );
    put(cache, name, &text)
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

pub(super) fn read<T: DeserializeOwned>(cache: &Cache, digest: &Digest, name: &str) -> Result<T> {
    serde_json::from_slice(&need(cache, digest, name)?).map_err(|source| {
        let what = format!("`{name}` ({})", digest.short());
        CacheError::OtherVersion { what, source }.into()
    })
}

pub(super) fn json_bytes(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}
