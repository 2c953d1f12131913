//! output/: what people open. Written from the cache, whole or not at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Component, Path, PathBuf},
};

use super::looked;
use crate::{
    cache::{Cache, Output},
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability, TEMPORARY, write_atomically},
    plan::Plan,
};

/// Where builds of a plan's matrix publish: the default matrix in the output folder itself, every other one in a folder of its
/// name there, so that no matrix writes over the pages of another.
#[must_use]
pub fn output_dir(plan: &Plan) -> PathBuf {
    let output = output_root(plan);
    if plan.is_default { output } else { output.join(folder_name(&plan.matrix.name)) }
}

/// The folder that config.yaml names for what is published.
#[must_use]
pub fn output_root(plan: &Plan) -> PathBuf {
    plan.root.join(plan.config.get("paths.output").and_then(|v| v.as_str()).unwrap_or("output"))
}

/// A name that leads nowhere else: not hidden, not `..`.
fn folder_name(matrix: &str) -> String {
    let name = safe_name(matrix);
    if name.is_empty() || name.starts_with('.') { format!("-{name}") } else { name }
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

/// Which matrix published which file with which digest: by this list, and by nothing else, files are replaced and removed.
const MANIFEST: &str = ".published.json";

/// Where files go that lay in the place of published ones and that tprimat did not publish: older suites write results of the
/// same names to the same folder, and nobody has them twice.
const EARLIER: &str = "earlier";

/// The comparison as data, among what is published.
const COMPARISON: &str = "compare.json";

type Manifest = BTreeMap<String, BTreeMap<String, Digest>>;

/// What a matrix publishes.
pub struct Edition<'a> {
    pub matrix: &'a str,
    pub outputs: &'a [Output],
    /// Files that stay as they were published, although this edition does not have them.
    pub keeps: &'a BTreeSet<String>,
    /// Names of the project's matrices, where they are known; what any other one published here is removed.
    pub known: Option<&'a BTreeSet<String>>,
    pub has_figures: bool,
}

/// Writes the outputs that are not there yet as they should be, and removes what the matrix published earlier and does not
/// publish any more; one tprimat at a time. False where nothing was written: an edition without figures replaces none that
/// has some.
pub fn publish(folder: &Path, edition: &Edition, cache: &Cache) -> Result<bool> {
    let _alone = cache.lock_key(&Digest::of("publish"))?;
    files::create_dir_all(folder)?;
    let _alone_here = alone_in(folder);
    if !edition.has_figures && has_figures(folder, edition.matrix) {
        return Ok(false);
    }
    remove_temporaries(folder);
    let path = folder.join(MANIFEST);
    let mut manifest = read_manifest(&path);
    let mut record = |files: BTreeMap<String, Digest>, forgotten: &[String]| -> Result<()> {
        let is_news =
            manifest.get(edition.matrix) != Some(&files) || forgotten.iter().any(|m| manifest.contains_key(m));
        if is_news {
            manifest.insert(edition.matrix.to_owned(), files);
            manifest.retain(|matrix, _| !forgotten.contains(matrix));
            let text = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::Cache(e.to_string()))?;
            write_atomically(&path, &text, Durability::Plain)?;
        }
        Ok(())
    };
    let published = read_manifest(&path);
    let before = published.get(edition.matrix).cloned().unwrap_or_default();
    let now: BTreeMap<String, Digest> = edition.outputs.iter().map(|o| (o.name.clone(), o.digest)).collect();
    set_aside_earlier(folder, edition.outputs, &published)?;
    // Claimed before they are written: killed in between, files are missing and it is all done again; killed after
    // the last file, nothing is.
    record(before.clone().into_iter().chain(now.clone()).collect(), &[])?;
    let is_there = looked::are_published(cache, folder, edition.outputs);
    for (output, _) in edition.outputs.iter().zip(is_there).filter(|(_, is_there)| !is_there) {
        let gone = || Error::Cache(format!("`{}` is gone from the cache or damaged; build again", output.name));
        if !cache.copy_to(&output.digest, &folder.join(&output.name))? {
            return Err(gone());
        }
    }
    let (gone, others): (Vec<_>, Vec<_>) = published
        .into_iter()
        .filter(|(m, _)| m != edition.matrix)
        .partition(|(m, _)| edition.known.is_some_and(|known| !known.contains(m)));
    let (kept, left): (BTreeMap<_, _>, BTreeMap<_, _>) = before
        .into_iter()
        .filter(|(name, _)| !now.contains_key(name))
        .partition(|(name, _)| edition.keeps.contains(name));
    let is_claimed = |name: &String| {
        now.contains_key(name) || kept.contains_key(name) || others.iter().any(|(_, files)| files.contains_key(name))
    };
    for (name, digest) in gone.iter().flat_map(|(_, files)| files).chain(&left) {
        if !is_claimed(name) {
            withdraw_file(folder, name, digest);
        }
    }
    let forgotten: Vec<String> = gone.into_iter().map(|(matrix, _)| matrix).collect();
    record(now.into_iter().chain(kept.clone()).collect(), &forgotten)?;
    Ok(true)
}

/// Moves files out of the way that no list names.
fn set_aside_earlier(folder: &Path, outputs: &[Output], published: &Manifest) -> Result<()> {
    for Output { name, digest, .. } in outputs {
        let path = folder.join(name);
        let is_ours = published.values().any(|files| files.contains_key(name));
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        if is_ours || !is_file || Digest::of_file(&path).is_ok_and(|found| found == *digest) {
            continue;
        }
        let mut to = folder.join(EARLIER).join(name);
        for number in 2.. {
            if !to.exists() {
                break;
            }
            to = folder.join(format!("{EARLIER}-{number}")).join(name);
        }
        files::create_dir_all(to.parent().unwrap_or(folder))?;
        files::move_to(&path, &to)?;
    }
    Ok(())
}

/// How many files a folder's publications have moved out of their way.
#[must_use]
pub fn set_aside(folder: &Path) -> usize {
    std::fs::read_dir(folder.join(EARLIER)).map_or(0, |entries| entries.flatten().count())
}

/// Is what this matrix published last still there, and has any cell figures in it?
#[must_use]
pub fn has_figures(folder: &Path, matrix: &str) -> bool {
    let manifest = read_manifest(&folder.join(MANIFEST));
    // Cells without figures have files of their own as well, so the comparison is what tells.
    let published = manifest.get(matrix).and_then(|files| files.get(COMPARISON));
    let is_there = |digest| Digest::of_file(&folder.join(COMPARISON)).is_ok_and(|found| found == digest);
    published.is_some_and(|digest| is_there(*digest)) && has_rows(folder)
}

fn has_rows(folder: &Path) -> bool {
    let text = std::fs::read(folder.join(COMPARISON)).unwrap_or_default();
    let comparison: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    comparison["rows"].as_array().is_some_and(|rows| !rows.is_empty())
}

/// The matrices whose publications are in a folder.
#[must_use]
pub fn published_in(folder: &Path) -> BTreeSet<String> {
    read_manifest(&folder.join(MANIFEST)).into_keys().collect()
}

/// What `withdraw` did.
#[derive(Default)]
pub struct Withdrawn {
    pub removed: usize,
    /// Files that were changed since they were published; they stay.
    pub changed: Vec<PathBuf>,
}

/// Removes what tprimat published in the output folder and in the matrices' folders there: the files of its lists that are
/// still as they were published, and nothing else.
pub fn withdraw(output: &Path) -> Result<Withdrawn> {
    let mut withdrawn = Withdrawn::default();
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    // Not through links: what they lead to is not ours.
    let mut folders: Vec<PathBuf> =
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect();
    folders.sort();
    folders.push(output.to_owned());
    for folder in folders {
        let list = folder.join(MANIFEST);
        if !list.is_file() {
            continue;
        }
        let _alone_here = alone_in(&folder);
        remove_temporaries(&folder);
        let files: BTreeMap<String, Digest> = read_manifest(&list).into_values().flatten().collect();
        for (name, digest) in files {
            if withdraw_file(&folder, &name, &digest) {
                withdrawn.removed += 1;
            } else if folder.join(&name).exists() {
                withdrawn.changed.push(folder.join(&name));
            }
        }
        std::fs::remove_file(&list).map_err(Error::io("cannot remove", &list))?;
        if folder != output {
            // Stays where something else is in it.
            let _ = std::fs::remove_dir(&folder);
        }
    }
    Ok(withdrawn)
}

/// The files that tprimat's lists name in the output folder and in the matrices' folders there.
#[must_use]
pub fn published(output: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
    let mut files = Vec::new();
    for folder in folders.chain([output.to_owned()]) {
        let list = folder.join(MANIFEST);
        if list.is_file() {
            let names = read_manifest(&list).into_values().flatten().map(|(name, _)| name);
            files.extend(names.map(|name| folder.join(name)));
        }
    }
    files
}

/// Removes a file that is still as it was published; one that people changed is theirs.
fn withdraw_file(folder: &Path, name: &str, digest: &Digest) -> bool {
    let path = folder.join(name);
    let is_file = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
    is_file && Digest::of_file(&path).is_ok_and(|found| found == *digest) && std::fs::remove_file(&path).is_ok()
}

/// Held while files of a folder are published or withdrawn, whichever cache they come from. Where the file system has no
/// locks, nothing is held.
fn alone_in(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.lock().ok().map(|()| folder)
}

/// The list of a folder. It may come with a repository, so a name in it that leads out of the folder is passed over.
fn read_manifest(path: &Path) -> Manifest {
    let mut manifest: Manifest =
        std::fs::read(path).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    let is_plain = |name: &str| {
        let mut parts = Path::new(name).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
    };
    manifest.values_mut().for_each(|files| files.retain(|name, _| is_plain(name)));
    manifest
}

/// What a tprimat left that was killed while it published; nobody else publishes now.
fn remove_temporaries(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(TEMPORARY)) {
        let _ = std::fs::remove_file(entry.path());
    }
}
