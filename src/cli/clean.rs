//! `clean`: removes what tprimat published; with `--cache`, every measurement as well, after asking.

use std::{
    fs::File,
    io::{BufRead, ErrorKind, IsTerminal, Write},
    path::Path,
};

use super::{args::CleanArgs, project};
use crate::{
    cache::{Cache, claim_unused},
    error::{Error, Problem, Result, exit},
    execute::publish,
    plan::{PlanRequest, load_config},
};

/// What a cache is made of. Runs of killed builds stay: they may hold measurements that no build has taken in.
const PARTS: [&str; 6] = ["objects", "segments", "snapshot", "memos", "locks", "tmp"];

pub fn run(at: Option<&Path>, args: &CleanArgs) -> Result<i32> {
    let root = project::root(at)?;
    let request = PlanRequest { root: root.clone(), env: project::environment(), ..PlanRequest::default() };
    let config = load_config(&root.join("config.yaml"), &request)?;
    let folder = |path: &str, default: &str| root.join(config.get(path).and_then(|v| v.as_str()).unwrap_or(default));
    let (output, cache) = (folder("paths.output", "output"), folder("paths.cache", "cache"));
    // Before anything is removed: a clean that is refused removes nothing.
    if args.cache {
        refuse_what_is_not_a_cache(&cache)?;
        let question =
            format!("Remove every measurement in {}, and what is published in {}?", cache.display(), output.display());
        if !args.yes && !confirmed(&question)? {
            return Ok(exit::OK);
        }
    } else if !args.yes && std::io::stdin().is_terminal() {
        // Published files are made again from the cache, so a script is not asked.
        let published = publish::published(&output).len();
        let question = format!("Remove {published} published files from {}?", output.display());
        if published > 0 && !confirmed(&question)? {
            return Ok(exit::OK);
        }
    }
    let _unused = unused(&cache)?;
    let withdrawn = publish::withdraw(&output)?;
    let files = if withdrawn.removed == 1 { "file" } else { "files" };
    eprintln!("removed {} published {files} from {}", withdrawn.removed, output.display());
    for path in &withdrawn.changed {
        eprintln!("kept {}: it was changed after tprimat published it", path.display());
    }
    if args.cache {
        remove_cache(&cache)?;
    }
    Ok(exit::OK)
}

fn refuse_what_is_not_a_cache(cache: &Path) -> Result<()> {
    if Cache::is_one(cache) || !cache.exists() {
        return Ok(());
    }
    let what = format!("{} is not a cache of tprimat: it has no CACHEDIR.TAG that says so", cache.display());
    let help = "nothing was removed; `paths.cache` of config.yaml names the folder, and you can remove it yourself";
    Err(Error::invalid(Problem::new(what).help(help)))
}

/// Held while files are removed, so that no build begins meanwhile.
fn unused(cache: &Path) -> Result<Option<File>> {
    claim_unused(cache).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => {
            let what = format!("a build is using the cache {}", cache.display());
            Error::invalid(Problem::new(what).help("nothing was removed; wait for the build, or stop it with Ctrl-C"))
        }
        _ => Error::io("cannot lock the cache", cache)(error),
    })
}

fn remove_cache(cache: &Path) -> Result<()> {
    for part in PARTS {
        let path = cache.join(part);
        // A link is removed, never what it leads to.
        let is_folder = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        let removed = if is_folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("cannot remove", path)(e)),
            _ => {}
        }
    }
    Ok(())
}

fn confirmed(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::invalid(
            Problem::new("`clean --cache` asks first, and there is no terminal").help("pass --yes"),
        ));
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "{question} [y/N] ");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Error::io("cannot read", "stdin"))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
