//! `clean`: removes published output; with `--cache`, every measurement as well, after asking.

use std::{
    io::{BufRead, IsTerminal, Write},
    path::Path,
};

use super::{args::CleanArgs, project};
use crate::{
    error::{Error, Problem, Result, exit},
    plan::{PlanRequest, load_config},
};

pub fn run(at: Option<&Path>, args: &CleanArgs) -> Result<i32> {
    let root = project::root(at)?;
    let request = PlanRequest { root: root.clone(), env: project::environment(), ..PlanRequest::default() };
    let config = load_config(&root.join("config.yaml"), &request)?;
    let folder = |path: &str, default: &str| root.join(config.get(path).and_then(|v| v.as_str()).unwrap_or(default));
    let output = folder("paths.output", "output");
    for entry in std::fs::read_dir(&output).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Only what tprimat publishes: people keep their own files there too.
        if name.starts_with("compare.") || (name.starts_with("train_") && name.ends_with(".json")) {
            std::fs::remove_file(entry.path()).map_err(Error::io("cannot remove", entry.path()))?;
        }
    }
    if args.cache {
        let cache = folder("paths.cache", "cache");
        if !args.yes && !confirmed(&format!("Remove every measurement in {}?", cache.display()))? {
            return Ok(exit::OK);
        }
        for part in ["objects", "segments", "snapshot", "memos", "locks", "tmp"] {
            let path = cache.join(part);
            let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            match removed {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("cannot remove", path)(e)),
                _ => {}
            }
        }
    }
    Ok(exit::OK)
}

fn confirmed(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::invalid(
            Problem::new("`clean --cache` asks first, and there is no terminal").help("say --yes"),
        ));
    }
    let mut err = std::io::stderr();
    let _ = write!(err, "{question} [y/N] ");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Error::io("cannot read", "stdin"))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
