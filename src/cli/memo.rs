//! The memo of a build that left nothing to do: a no-op is then a few comparisons.
//!
//! It names every input by content, the cache by its fingerprint, and every published file. If all of
//! them are as they were, so is the verdict. It is disposable: any doubt, and the plan is made anew.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{args::BuildArgs, build::cache_dir_of};
use crate::{
    analyze::is_secret,
    cache::{Cache, TaskKind},
    digest::Digest,
    execute::publish,
    files::Stamp,
    graph::{BUILD, Engine, Statuses},
    plan::PlanRequest,
};

/// Variables that change from shell to shell and that no project reads.
const IDLE_VARIABLES: &[&str] =
    &["_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM", "SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "WINDOWID"];

#[derive(Serialize, Deserialize)]
struct Memo {
    cache: Digest,
    /// Files by path; `None` = was not there.
    files: BTreeMap<PathBuf, Option<Known>>,
    /// Folders that are read whole: the names in them.
    listings: BTreeMap<PathBuf, Digest>,
    verdict: Value,
}

/// A file that was read.
#[derive(Serialize, Deserialize)]
struct Known {
    stamp: Stamp,
    digest: Digest,
}

/// What the memo is filed under: the binary, the request, the caller's environment without its secrets, which are hashed
/// nowhere.
pub fn name(request: &PlanRequest, args: &BuildArgs) -> Digest {
    let env: BTreeMap<_, _> =
        request.env.iter().filter(|(name, _)| !IDLE_VARIABLES.contains(&name.as_str()) && !is_secret(name)).collect();
    let PlanRequest { root, matrix, sets, selection, repeats, allow_drift, .. } = request;
    let asked = (args.cached_only, args.require_complete, args.insist.retry_failed);
    Digest::of(format!(
        "{BUILD} {root:?} {matrix:?} {sets:?} {selection:?} {repeats:?} {allow_drift} {asked:?} {env:?}"
    ))
}

/// The verdict of the last build, if nothing that it depends on has changed.
pub fn nothing_to_do(request: &PlanRequest, name: &Digest) -> Option<String> {
    let root = cache_dir_of(request)?;
    let cache = Cache::open(&root).ok()?;
    // What a killed build left must be swept, and only the whole path does that.
    if std::fs::read_dir(root.join("runs"))
        .is_ok_and(|runs| runs.flatten().any(|r| !r.file_name().to_string_lossy().starts_with('.')))
    {
        return None;
    }
    let mut memo: Memo = serde_json::from_slice(&cache.load_memo(name)?).ok()?;
    let mut is_outdated = false;
    for (path, stamp) in &mut memo.files {
        match look(path, stamp.as_ref()) {
            Seen::Untouched => {}
            Seen::Reread(new) => {
                is_outdated |= new.stamp.is_settled();
                *stamp = Some(new);
            }
            Seen::Changed => return None,
        }
    }
    let same = memo.listings.iter().all(|(path, digest)| listing(path) == *digest) && cache.fingerprint() == memo.cache;
    if same && is_outdated {
        // What a build has just written is too young to be trusted by its stamp; from now on it is.
        write(&cache, name, &memo);
    }
    same.then(|| memo.verdict.to_string())
}

/// A memo that cannot be written costs time, nothing else.
fn write(cache: &Cache, name: &Digest, memo: &Memo) {
    if let Ok(bytes) = serde_json::to_vec(memo) {
        let _ = cache.store_memo(name, &bytes);
    }
}

/// Files a memo.
pub fn store(engine: &Engine, statuses: &Statuses, name: &Digest, verdict: &Value) {
    let plan = engine.plan;
    // Facts that were probed can change with no file changing.
    if !plan.facts.are_all_locked() {
        return;
    }
    let mut files = BTreeMap::new();
    let mut listings = BTreeMap::new();
    for path in &plan.read {
        files.insert(path.clone(), stamp(path));
    }
    for folder in ["recipes", "templates"] {
        collect(&plan.root.join(folder), &mut files, &mut listings);
    }
    for folder in &plan.read_folders {
        listings.insert(folder.clone(), listing(folder));
    }
    let output = publish::output_dir(plan);
    let report = statuses.get(engine.dag.node(TaskKind::Report, 0, 0));
    for published in report.outputs() {
        let path = output.join(&published.name);
        let stamp = stamp(&path).filter(|s| s.digest == published.digest);
        if stamp.is_none() {
            return;
        }
        files.insert(path, stamp);
    }
    let cache = engine.cache.fingerprint();
    write(engine.cache, name, &Memo { cache, files, listings, verdict: verdict.clone() });
}

fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, Option<Known>>, listings: &mut BTreeMap<PathBuf, Digest>) {
    listings.insert(folder.to_owned(), listing(folder));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files, listings);
        } else {
            files.insert(path.clone(), stamp(&path));
        }
    }
}

fn listing(folder: &Path) -> Digest {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name()).filter(|n| n != "__pycache__").collect();
    names.sort();
    Digest::of(format!("{names:?}"))
}

fn stamp(path: &Path) -> Option<Known> {
    let stamp = Stamp::of(path).ok()?;
    Some(Known { stamp, digest: Digest::of_file(path).ok()? })
}

/// What has become of a file since its stamp was taken.
enum Seen {
    Untouched,
    /// Its bytes are the same; the stamp as it would be taken now.
    Reread(Known),
    Changed,
}

fn look(path: &Path, known: Option<&Known>) -> Seen {
    let (Ok(now), Some(old)) = (Stamp::of(path), known) else {
        return if known.is_none() && !path.exists() { Seen::Untouched } else { Seen::Changed };
    };
    if now.size != old.stamp.size {
        return Seen::Changed;
    }
    if old.stamp.is_still(&now) {
        return Seen::Untouched;
    }
    match stamp(path) {
        Some(new) if new.digest == old.digest => Seen::Reread(new),
        _ => Seen::Changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    #[test]
    fn a_young_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(matches!(look(&path, None), Seen::Untouched));
        write_atomically(&path, b"one", Durability::Plain).unwrap();
        assert!(matches!(look(&path, None), Seen::Changed));

        // Just written, so not settled: read again, and the same.
        let old = stamp(&path).unwrap();
        assert!(matches!(look(&path, Some(&old)), Seen::Reread(new) if new.digest == old.digest));

        write_atomically(&path, b"two", Durability::Plain).unwrap();
        assert!(matches!(look(&path, Some(&old)), Seen::Changed));
    }
}
