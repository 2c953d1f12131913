//! `cache clean`: removes what tprimat published; with `--all`, every measurement as well, after
//! asking.

use std::{
    fs::File,
    io::{ErrorKind, IsTerminal},
    path::Path,
};

use super::{args::Globals, output::confirmed, session::Project};
use crate::{
    cache::{Cache, claim_unused},
    error::{Error, Result, exit},
    publish,
    words::plain::counted,
};

/// What a cache is made of. Runs of killed builds stay: they may hold measurements that no build
/// has taken in.
const PARTS: [&str; 8] = [
    "records", "objects", "texts", "made", "damaged", "memos", "locks", "tmp",
];

pub fn run(globals: &Globals, all: bool, is_sure: bool) -> Result<i32> {
    let project = Project::open(globals, &[])?;
    let (output, cache) = (
        project.config.output_dir(project.root()),
        project.cache_dir(),
    );
    // Before anything is removed: a clean that is refused removes nothing.
    if all {
        refuse_what_is_not_a_cache(&cache)?;
        let question = format!(
            "Remove every measurement in {} ({}), and what is published in {}?",
            cache.display(),
            counted(runs_in(&cache), "run"),
            output.display()
        );
        if !is_sure && !confirmed("cache clean --all", &question)? {
            return Ok(exit::OK);
        }
    } else if !is_sure && std::io::stdin().is_terminal() {
        // Published files are made again from the cache, so a script is not asked.
        let published = publish::published(&output).len();
        let question = format!(
            "Remove {} from {}?",
            counted(published, "published file"),
            output.display()
        );
        if published > 0 && !confirmed("cache clean", &question)? {
            return Ok(exit::OK);
        }
    }
    let _unused = unused(&cache)?;
    let withdrawn = publish::withdraw(&output)?;
    eprintln!(
        "removed {} from {}",
        counted(withdrawn.removed, "published file"),
        output.display()
    );
    for path in &withdrawn.changed {
        eprintln!(
            "kept {}: it was changed after tprimat published it",
            path.display()
        );
    }
    if all {
        let runs = runs_in(&cache);
        remove_cache(&cache)?;
        eprintln!("removed {} from {}", counted(runs, "run"), cache.display());
    }
    Ok(exit::OK)
}

/// How many runs a cache has, made here or imported, whether they count or not.
fn runs_in(cache: &Path) -> usize {
    match Cache::open(cache) {
        Ok(open) if cache.exists() => {
            let records = open.shared_records(None).into_iter();
            records.filter(|record| record.run().is_some()).count()
        }
        _ => 0,
    }
}

fn refuse_what_is_not_a_cache(cache: &Path) -> Result<()> {
    if Cache::is_one(cache) || !cache.exists() {
        return Ok(());
    }
    let what = format!(
        "{} is not a cache of tprimat: it has no CACHEDIR.TAG that says so",
        cache.display()
    );
    let help = "nothing was removed; `paths.cache` of config.yaml names the folder, and you can remove it yourself";
    Err(Error::refused(what, help))
}

/// Held while files are removed, so that no build begins meanwhile.
pub fn unused(cache: &Path) -> Result<Option<File>> {
    claim_unused(cache).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => {
            let what = format!("a build is using the cache {}", cache.display());
            Error::refused(what, "nothing was removed; wait for the build, or end it: with Ctrl-C where it runs, a detached one with `tprimat stop`")
        }
        _ => Error::io("cannot lock the cache", cache)(error),
    })
}

fn remove_cache(cache: &Path) -> Result<()> {
    for part in PARTS {
        let path = cache.join(part);
        // A link is removed, never what it leads to.
        let is_folder = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        let removed = if is_folder {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        match removed {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", path)(e));
            }
            _ => {}
        }
    }
    Ok(())
}
