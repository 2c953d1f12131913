//! output/: what people open. Each file is written from the cache, whole or not at all; while a build
//! runs, the page alone is ahead of the others.

mod outdated;
mod running;

pub use outdated::NOTICE;
pub use running::{RunningPage, end_running_page, write_running_page};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Component, Path, PathBuf},
};

use rayon::prelude::*;

use crate::{
    cache::{Cache, NamedObject, Output, TaskKind},
    digest::Digest,
    error::{Error, Problem, Result},
    files::{self, Durability, ReadSet, TEMPORARY, write_atomically},
    matrix,
    plan::{Plan, same_file},
    words::part,
};

/// Where builds of a plan's matrix publish: the default matrix in the output folder itself, every
/// other one in a folder of its name there, so that no matrix writes over the pages of another.
#[must_use]
pub fn output_dir(plan: &Plan) -> PathBuf {
    let output = output_root(plan);
    if plan.is_default {
        output
    } else {
        output.join(folder_name(&plan.matrix.name))
    }
}

/// Refuses a matrix whose pages would replace those of another file's matrix: two that have one
/// name publish into one folder.
pub fn refuse_shared_folder(plan: &Plan) -> Result<()> {
    let (false, Some(own)) = (plan.is_default, &plan.matrix_path) else {
        return Ok(());
    };
    let reads = ReadSet::default();
    let default = matrix::find(None, &plan.root, &reads).ok().flatten();
    let is_other = |path: &Path| {
        !same_file(path, own)
            && !default
                .as_deref()
                .is_some_and(|default| same_file(path, default))
    };
    // Where a file cannot be read, nobody builds it either.
    let all = matrix::named(&plan.root).unwrap_or_default();
    let folder = folder_name(&plan.matrix.name);
    let mut others = all.iter();
    let Some((other, name)) =
        others.find(|(path, name)| folder_name(name) == folder && is_other(path))
    else {
        return Ok(());
    };
    let shown = |path: &Path| {
        path.strip_prefix(&plan.root)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    let (own, other) = (shown(own), shown(other));
    let message = if *name == plan.matrix.name {
        format!(
            "{own} and {other} are both named `{name}`, so each would replace the other's pages"
        )
    } else {
        format!(
            "{own} and {other} publish into one folder, `{folder}`, so each would replace the other's pages"
        )
    };
    Err(Error::invalid(Problem::new(message).help(
        "give one of them another `name` below [matrix]; nothing measured is lost by it",
    )))
}

/// Where the results of a matrix are from now on, if earlier builds published them in the output folder
/// itself: another matrix file was added since, or became the default.
#[must_use]
pub fn told_moved(plan: &Plan) -> Option<String> {
    let (root, name) = (output_root(plan), &plan.matrix.name);
    if plan.is_default || !has_figures(&root, name) {
        return None;
    }
    // The default has its figures there, and may have the same name.
    let reads = ReadSet::default();
    let default = matrix::find(None, &plan.root, &reads).ok().flatten();
    let is_default = |path: &Path| default.as_deref().is_some_and(|it| same_file(path, it));
    let all = matrix::named(&plan.root).unwrap_or_default();
    if all
        .iter()
        .any(|(path, other)| other == name && is_default(path))
    {
        return None;
    }
    let shown = |path: &Path| {
        let within = path.strip_prefix(&plan.root).unwrap_or(path);
        within.display().to_string()
    };
    Some(format!(
        "`{name}` is not the default matrix any more and publishes in {}; its files in {} are of earlier builds; \
         `tprimat cache clean` removes them with all else that was published, and the next builds publish it again. The default is matrix.toml, or else the only file in pipelines/",
        shown(&output_dir(plan)),
        shown(&root)
    ))
}

/// The folder that config.yaml names for what is published.
#[must_use]
pub fn output_root(plan: &Plan) -> PathBuf {
    plan.config.output_dir(&plan.root)
}

/// A name that leads nowhere else: not hidden, not `..`.
fn folder_name(matrix: &str) -> String {
    let name = short_name(safe_name(matrix));
    if name.is_empty() || name.starts_with('.') {
        format!("-{name}")
    } else {
        name
    }
}

/// A file name that no shell and no file system trips over.
#[must_use]
pub fn safe_name(name: &str) -> String {
    name.chars()
        .map(|ch| {
            if ch.is_alphanumeric() || "-_.".contains(ch) {
                ch
            } else {
                '-'
            }
        })
        .collect()
}

/// A name with room for an ending: file systems take no more than 255 bytes. What is cut off is in a
/// digest, by which two long names stay two.
#[must_use]
pub fn short_name(name: String) -> String {
    const MOST: usize = 230;
    if name.len() <= MOST {
        return name;
    }
    let digest = format!("-{}", Digest::of(&name).short());
    let end = name.floor_char_boundary(MOST - digest.len());
    part(&name, ..end).to_owned() + &digest
}

/// A file of the output folder that is not what it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Unpublished {
    pub name: String,
    pub how: Mismatch,
}

/// How a file of the output folder differs from what was published under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Missing,
    /// Another build published it, with other settings or before other runs counted.
    AnotherBuilds,
    /// Somebody changed it after it was published.
    Changed,
}

impl Unpublished {
    #[must_use]
    pub fn missing(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            how: Mismatch::Missing,
        }
    }
}

impl std::fmt::Display for Unpublished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.name;
        match self.how {
            Mismatch::Missing => write!(f, "{name} is not in the output folder"),
            Mismatch::AnotherBuilds => {
                write!(f, "{name} in the output folder is from another build")
            }
            Mismatch::Changed => write!(f, "{name} in the output folder was changed"),
        }
    }
}

/// For each output, whether its file in the folder is as it should be.
fn are_published(folder: &Path, outputs: &[Output]) -> Vec<bool> {
    let is_right = |output: &Output| {
        let path = folder.join(&output.name);
        // Most of what changed has another length, and need not be read.
        let is_as_long = path.metadata().is_ok_and(|meta| meta.len() == output.size);
        is_as_long && Digest::of_file(&path).is_ok_and(|digest| digest == output.digest)
    };
    outputs.par_iter().map(is_right).collect()
}

/// The first output whose published file is not what it should be.
#[must_use]
pub fn first_unpublished(cache: &Cache, folder: &Path, outputs: &[Output]) -> Option<Unpublished> {
    let published = are_published(folder, outputs);
    let (output, _) = outputs
        .iter()
        .zip(published)
        .find(|(_, is_published)| !is_published)?;
    let how = match std::fs::read(folder.join(&output.name)).map(Digest::of) {
        Err(_) => Mismatch::Missing,
        Ok(digest) => {
            let manifest = read_manifest(&folder.join(MANIFEST));
            let mut known = manifest
                .values()
                .filter_map(|files| files.get(&output.name));
            // The cache has the bytes of whatever was published under this name before.
            if known.any(|published| *published == digest) || cache.has(&digest) {
                Mismatch::AnotherBuilds
            } else {
                Mismatch::Changed
            }
        }
    };
    Some(Unpublished {
        name: output.name.clone(),
        how,
    })
}

/// Which matrix published which file with which digest: by this list, and by nothing else, files
/// are replaced and removed.
const MANIFEST: &str = ".published.json";

/// Where files go that lay in the place of published ones and that tprimat did not publish: older
/// suites write results of the same names to the same folder, and nobody has them twice.
const EARLIER: &str = "earlier";

/// The comparison as data, among what is published.
const COMPARISON: &str = "compare.json";

type Manifest = BTreeMap<String, BTreeMap<String, Digest>>;

/// What a matrix publishes.
pub struct Publication<'a> {
    pub matrix: &'a str,
    pub outputs: &'a [Output],
    /// Files that stay as they were published, although this publication does not have them.
    pub keeps: &'a BTreeSet<String>,
    /// Names of the project's matrices, where they are known; what any other one published here is
    /// removed.
    pub known: Option<&'a BTreeSet<String>>,
    pub has_figures: bool,
    /// Why no cell has figures although some ran.
    pub refused: Option<&'a str>,
}

/// What became of a publication.
#[derive(Debug, Default)]
pub struct Published {
    /// False where nothing was written: a publication without figures replaces none that has some.
    pub is_written: bool,
    /// What lies there instead is marked as outdated.
    pub is_marked: bool,
    /// Sentences on files of somebody's own that had a published name, and where they are now; and on
    /// results that no list names.
    pub notes: Vec<String>,
}

/// Writes the outputs that are not there yet as they should be, and removes what the matrix
/// published earlier and does not publish any more; one tprimat at a time.
pub fn publish(folder: &Path, publication: &Publication, cache: &Cache) -> Result<Published> {
    let _alone = cache.lock_key(&Digest::of("publish"))?;
    files::create_dir_all(folder)?;
    let _alone_here = alone_in(folder);
    let path = folder.join(MANIFEST);
    let mut manifest = read_manifest(&path);
    if !publication.has_figures && has_figures(folder, publication.matrix) {
        let is_marked = publication.refused.is_some();
        if let (Some(why), Some(files)) =
            (publication.refused, manifest.get_mut(publication.matrix))
        {
            running::restore(folder, files)?;
            *files = outdated::mark(folder, publication.matrix, why, files)?;
            write_manifest(&path, &manifest)?;
        }
        return Ok(Published {
            is_marked,
            ..Published::default()
        });
    }
    remove_temporaries(folder);
    let mut record = |files: BTreeMap<String, Digest>, forgotten: &[String]| -> Result<()> {
        let is_news = manifest.get(publication.matrix) != Some(&files)
            || forgotten.iter().any(|m| manifest.contains_key(m));
        if is_news {
            manifest.insert(publication.matrix.to_owned(), files);
            manifest.retain(|matrix, _| !forgotten.contains(matrix));
            write_manifest(&path, &manifest)?;
        }
        Ok(())
    };
    let published = read_manifest(&path);
    let before = published
        .get(publication.matrix)
        .cloned()
        .unwrap_or_default();
    let now: BTreeMap<String, Digest> = publication
        .outputs
        .iter()
        .map(|o| (o.name.clone(), o.digest))
        .collect();
    let is_there = are_published(folder, publication.outputs);
    let others = publication
        .outputs
        .iter()
        .zip(&is_there)
        .filter(|(_, is_there)| !**is_there)
        .map(|(output, _)| output);
    let mut notes = set_aside_earlier(folder, others, &published, cache)?;
    // Claimed before they are written: killed in between, files are missing and it is all done
    // again; killed after the last file, nothing is.
    record(before.clone().into_iter().chain(now.clone()).collect(), &[])?;
    let to_write = publication.outputs.par_iter().zip(is_there);
    to_write
        .filter(|(_, is_there)| !is_there)
        .try_for_each(|(output, _)| {
            match cache.copy_to(&output.digest, &folder.join(&output.name))? {
                true => Ok(()),
                false => Err(cache.gone(&output.digest, &output.name)),
            }
        })?;
    let (gone, others): (Vec<_>, Vec<_>) = published
        .into_iter()
        .filter(|(m, _)| m != publication.matrix)
        .partition(|(m, _)| publication.known.is_some_and(|known| !known.contains(m)));
    let (kept, left): (BTreeMap<_, _>, BTreeMap<_, _>) = before
        .into_iter()
        .filter(|(name, _)| !now.contains_key(name))
        .partition(|(name, _)| publication.keeps.contains(name));
    let is_claimed = |name: &String| {
        now.contains_key(name)
            || kept.contains_key(name)
            || others.iter().any(|(_, files)| files.contains_key(name))
    };
    for (name, digest) in gone.iter().flat_map(|(_, files)| files).chain(&left) {
        if !is_claimed(name) {
            withdraw_file(folder, name, digest);
        }
    }
    notes.extend(unlisted(folder, is_claimed, cache));
    let forgotten: Vec<String> = gone.into_iter().map(|(matrix, _)| matrix).collect();
    record(now.into_iter().chain(kept.clone()).collect(), &forgotten)?;
    Ok(Published {
        is_written: true,
        is_marked: false,
        notes,
    })
}

/// Results of cells that lie in the folder and that no list names, because it was lost: without it
/// nothing is removed, and whoever reads the folder would take them for present ones.
fn unlisted(folder: &Path, is_claimed: impl Fn(&String) -> bool, cache: &Cache) -> Option<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("train_") && name.ends_with(".json") && !is_claimed(name))
        .collect();
    let digest = |name: String| Some((Digest::of_file(&folder.join(&name)).ok()?, name));
    let files: Vec<(Digest, String)> = names.into_iter().filter_map(digest).collect();
    let ours = of_reports(cache, files.iter().map(|(digest, _)| *digest).collect());
    let files = files
        .into_iter()
        .filter(|(digest, _)| ours.contains(digest));
    let mut names: Vec<String> = files.map(|(_, name)| name).collect();
    names.sort();
    let of = folder.display();
    Some(match &names[..] {
        [] => return None,
        [one] => format!(
            "{one} in {of} is of an earlier build, and no matrix publishes its cell any more; it stays, because {MANIFEST}, by which \
             files are removed, does not name it"
        ),
        [one, ..] => format!(
            "{} files in {of} ({one}, …) are of earlier builds, and no matrix publishes their cells any more; they stay, because \
             {MANIFEST}, by which files are removed, does not name them",
            names.len()
        ),
    })
}

fn write_manifest(path: &Path, manifest: &Manifest) -> Result<()> {
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    write_atomically(path, &text, Durability::Plain)
}

/// Those of the digests that are of files which a report of this cache made. A file that is only in
/// the cache may be somebody's own, which was imported.
fn of_reports(cache: &Cache, mut digests: Vec<Digest>) -> BTreeSet<Digest> {
    digests.retain(|digest| cache.has(digest));
    let of_report = |of: &NamedObject| of.task.split(' ').next() == Some(TaskKind::Report.name());
    let owners = cache.owners(&digests).into_iter();
    owners.filter(of_report).map(|of| of.digest).collect()
}

/// Moves files out of the way that have a published name and that somebody else wrote, or edited
/// since they were published: what is there now is neither listed nor what a report made. Says where
/// they are.
fn set_aside_earlier<'a>(
    folder: &Path,
    outputs: impl Iterator<Item = &'a Output>,
    published: &Manifest,
    cache: &Cache,
) -> Result<Vec<String>> {
    let is_listed = |name: &str, digest: &Digest| {
        published
            .values()
            .any(|files| files.get(name) == Some(digest))
    };
    let mut unlisted = Vec::new();
    for Output { name, .. } in outputs {
        let path = folder.join(name);
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        let digest = found
            .is_file()
            .then(|| Digest::of_file(&path).ok())
            .flatten();
        let is_own = digest.is_some_and(|digest| is_listed(name, &digest))
            || running::is_running_page(&path);
        if !found.is_dir() && !is_own {
            unlisted.push((name, path, digest));
        }
    }
    let ours = of_reports(
        cache,
        unlisted.iter().filter_map(|(.., digest)| *digest).collect(),
    );
    unlisted.retain(|(.., digest)| !digest.is_some_and(|digest| ours.contains(&digest)));
    let mut notes = Vec::new();
    for (name, path, _) in unlisted {
        let mut to = folder.join(EARLIER).join(name);
        for number in 2.. {
            if std::fs::symlink_metadata(&to).is_err() {
                break;
            }
            to = folder.join(format!("{EARLIER}-{number}")).join(name);
        }
        files::create_dir_all(to.parent().unwrap_or(folder))?;
        files::move_to(&path, &to)?;
        let may_be_result = Path::new(name)
            .extension()
            .is_some_and(|ending| ending == "json");
        let import = if may_be_result {
            ", where `tprimat import` can read it"
        } else {
            ""
        };
        notes.push(format!(
            "{} was not written by tprimat, or was edited since; it is now {}{import}",
            path.display(),
            to.display()
        ));
    }
    Ok(notes)
}

/// Is what this matrix published last still there, and has any cell figures in it?
#[must_use]
pub fn has_figures(folder: &Path, matrix: &str) -> bool {
    let manifest = read_manifest(&folder.join(MANIFEST));
    // Cells without figures have files of their own as well, so the comparison is what tells.
    let published = manifest.get(matrix).and_then(|files| files.get(COMPARISON));
    let is_there =
        |digest| Digest::of_file(&folder.join(COMPARISON)).is_ok_and(|found| found == digest);
    published.is_some_and(|digest| is_there(*digest)) && has_rows(folder)
}

fn has_rows(folder: &Path) -> bool {
    let text = std::fs::read(folder.join(COMPARISON)).unwrap_or_default();
    let comparison: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    comparison["rows"]
        .as_array()
        .is_some_and(|rows| !rows.is_empty())
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

/// Removes what tprimat published in the output folder and in the matrices' folders there: the
/// files of its lists that are still as they were published, and nothing else.
pub fn withdraw(output: &Path) -> Result<Withdrawn> {
    let mut withdrawn = Withdrawn::default();
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    // Not through links: what they lead to is not ours.
    let mut folders: Vec<PathBuf> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.push(output.to_owned());
    for folder in folders {
        let list = folder.join(MANIFEST);
        if !list.is_file() {
            continue;
        }
        let _alone_here = alone_in(&folder);
        remove_temporaries(&folder);
        let files: BTreeMap<String, Digest> =
            read_manifest(&list).into_values().flatten().collect();
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
    let folders = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path());
    let mut files = Vec::new();
    for folder in folders.chain([output.to_owned()]) {
        let list = folder.join(MANIFEST);
        if list.is_file() {
            let names = read_manifest(&list)
                .into_values()
                .flatten()
                .map(|(name, _)| name);
            files.extend(names.map(|name| folder.join(name)));
        }
    }
    files
}

/// Removes a file that is still as it was published; one that people changed is theirs.
fn withdraw_file(folder: &Path, name: &str, digest: &Digest) -> bool {
    let path = folder.join(name);
    let is_file = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
    is_file
        && Digest::of_file(&path).is_ok_and(|found| found == *digest)
        && std::fs::remove_file(&path).is_ok()
}

/// Held while files of a folder are published or withdrawn, whichever cache they come from. Where
/// the file system has no locks, nothing is held.
fn alone_in(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.lock().ok().map(|()| folder)
}

/// The list of a folder. It may come with a repository, so a name in it that leads out of the
/// folder is passed over.
fn read_manifest(path: &Path) -> Manifest {
    let mut manifest: Manifest = std::fs::read(path)
        .ok()
        .and_then(|b| serde_json::from_slice(&b).ok())
        .unwrap_or_default();
    let is_plain = |name: &str| {
        let mut parts = Path::new(name).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
    };
    manifest
        .values_mut()
        .for_each(|files| files.retain(|name, _| is_plain(name)));
    manifest
}

/// What a tprimat left that was killed while it published; nobody else publishes now.
fn remove_temporaries(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(TEMPORARY))
    {
        let _ = std::fs::remove_file(entry.path());
    }
}
