//! output/: what people open. Written from the cache, whole or not at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::looked;
use crate::{
    cache::{Cache, Output},
    digest::Digest,
    error::{Error, Result},
    files::{Durability, TEMPORARY, write_atomically},
    plan::Plan,
};

#[must_use]
pub fn output_dir(plan: &Plan) -> PathBuf {
    let name = plan.config.get("paths.output").and_then(|v| v.as_str()).unwrap_or("output");
    plan.root.join(name)
}

/// A file name that no shell and no file system trips over.
#[must_use]
pub fn safe_name(name: &str) -> String {
    name.chars().map(|ch| if ch.is_alphanumeric() || "-_.".contains(ch) { ch } else { '-' }).collect()
}

/// The first output whose published file is not what it should be.
#[must_use]
pub fn first_unpublished(cache: &Cache, folder: &Path, outputs: &[Output]) -> Option<String> {
    let published = looked::are_published(cache, folder, outputs);
    outputs.iter().zip(published).find(|(_, is_published)| !is_published).map(|(output, _)| output.name.clone())
}

/// Which matrix published which file with which digest: what a matrix no longer publishes is removed by this.
const MANIFEST: &str = ".published.json";

type Manifest = BTreeMap<String, BTreeMap<String, Digest>>;

/// Writes the outputs that are not there yet as they should be, and removes what the matrix published earlier and
/// does not publish any more; one tprimat at a time.
pub fn publish(folder: &Path, matrix: &str, cache: &Cache, outputs: &[Output]) -> Result<()> {
    let _alone = cache.lock_key(&Digest::of("publish"))?;
    remove_temporaries(folder);
    let path = folder.join(MANIFEST);
    let mut manifest = read_manifest(&path);
    let before = manifest.get(matrix).cloned().unwrap_or_default();
    let others: BTreeSet<String> =
        manifest.iter().filter(|(m, _)| *m != matrix).flat_map(|(_, files)| files.keys().cloned()).collect();
    let mut record = |files: BTreeMap<String, Digest>| -> Result<()> {
        if manifest.get(matrix) != Some(&files) {
            manifest.insert(matrix.to_owned(), files);
            let text = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::Cache(e.to_string()))?;
            write_atomically(&path, &text, Durability::Plain)?;
        }
        Ok(())
    };
    let now: BTreeMap<String, Digest> = outputs.iter().map(|o| (o.name.clone(), o.digest)).collect();
    // Claimed before they are written: killed in between, files are missing and it is all done again; killed after
    // the last file, nothing is.
    record(before.clone().into_iter().chain(now.clone()).collect())?;
    let published = looked::are_published(cache, folder, outputs);
    for (output, _) in outputs.iter().zip(published).filter(|(_, is_published)| !is_published) {
        let bytes = cache
            .get(&output.digest)?
            .ok_or_else(|| Error::Cache(format!("`{}` is gone from the cache; build again", output.name)))?;
        write_atomically(&folder.join(&output.name), &bytes, Durability::Plain)?;
    }
    let mut left = before;
    left.retain(|name, _| !now.contains_key(name));
    for (name, digest) in &left {
        let is_published = others.contains(name);
        // Only what is still as it was published: a file that people changed is theirs.
        if !is_published && Digest::of_file(&folder.join(name)).ok() == Some(*digest) {
            let _ = std::fs::remove_file(folder.join(name));
        }
    }
    record(now)
}

fn read_manifest(path: &Path) -> Manifest {
    std::fs::read(path).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default()
}

/// What a tprimat left that was killed while it published; nobody else publishes now.
fn remove_temporaries(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(TEMPORARY)) {
        let _ = std::fs::remove_file(entry.path());
    }
}
