//! Paths as a user names them → units, each of them one run.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use super::Kind;
use crate::{
    error::{Error, Problem, Result},
    files::open_regular,
};

/// Files of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub kind: Kind,
    /// What the run is called: the file, or the folder of its ranks.
    pub name: String,
    /// Per-rank files by rank; else one.
    pub files: Vec<PathBuf>,
}

impl Unit {
    /// A run that is called like the first of its files.
    #[must_use]
    pub fn of(kind: Kind, files: Vec<PathBuf>) -> Self {
        let name = files
            .first()
            .map_or_else(String::new, |file| file_name(file));
        Self { kind, name, files }
    }
}

/// What the names of event files have.
const EVENTS: &str = ".tfevents.";
/// How the names of logs and of results end.
const LOGS: [&str; 6] = [".log", ".txt", ".out", ".err", ".jsonl", ".log.gz"];
const RESULTS: &str = ".json";

/// Folders within folders that are looked into.
const DEPTH: usize = 6;

/// All runs below the paths, in order of their names, and the files of folders that are neither, and
/// links: what a link in somebody's folder leads to may be any file of the caller's, which nobody named.
/// Folders and files in `own` are what tprimat itself keeps and publishes here: nobody brings those along
/// by naming a folder around them.
pub fn gather(paths: &[PathBuf], own: &[PathBuf]) -> Result<(Vec<Unit>, Vec<PathBuf>)> {
    let own = own.iter().filter_map(|path| path.canonicalize().ok());
    let mut found = Found {
        own: own.collect(),
        units: Vec::new(),
        skipped: Vec::new(),
    };
    for path in paths {
        if path.is_dir() {
            found.folder(path, 0)?;
        } else {
            open_regular(path).map_err(Error::io("cannot read", path))?;
            let kind = kind_of(path).unwrap_or(Kind::Log);
            found.units.push(Unit::of(kind, vec![path.clone()]));
        }
    }
    if found.units.is_empty() {
        let shown: Vec<_> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let problem = Problem::new(format!(
            "there is nothing to import in {}",
            shown.join(", ")
        ));
        return Err(Error::invalid(problem.help(format!(
            "logs end with {}, results with {RESULTS}, and event files have {EVENTS} in their names",
            LOGS.join(", ")
        ))));
    }
    Ok((found.units, found.skipped))
}

struct Found {
    own: Vec<PathBuf>,
    units: Vec<Unit>,
    skipped: Vec<PathBuf>,
}

impl Found {
    fn folder(&mut self, at: &Path, depth: usize) -> Result<()> {
        let mut ranks: Vec<(u32, PathBuf)> = Vec::new();
        for path in paths_in(at)? {
            let name = file_name(&path);
            let rank = rank_of(&name).or_else(|| rank_of_process(&path));
            let is_own = || {
                path.canonicalize()
                    .is_ok_and(|path| self.own.contains(&path))
            };
            // People do not hide their logs.
            if name.starts_with('.') || (!path.is_symlink() && is_own()) {
                continue;
            }
            if path.is_dir() && !path.is_symlink() && depth < DEPTH {
                match rank {
                    None => self.folder(&path, depth + 1)?,
                    Some(rank) => {
                        let logs = paths_in(&path)?.into_iter();
                        let logs = logs.filter(|path| kind_of_entry(path) == Some(Kind::Log));
                        ranks.extend(logs.map(|path| (rank, path)));
                    }
                }
                continue;
            }
            match (kind_of_entry(&path), rank) {
                (Some(Kind::Log), Some(rank)) => ranks.push((rank, path)),
                (Some(kind), _) => self.units.push(Unit::of(kind, vec![path])),
                (None, _) => self.skipped.push(path),
            }
        }
        ranks.sort();
        let files: Vec<PathBuf> = ranks.into_iter().map(|(_, path)| path).collect();
        if files.is_empty() {
            return Ok(());
        }
        let mut unit = Unit::of(Kind::Log, files);
        if unit.files.len() > 1 {
            unit.name = file_name(&at.canonicalize().unwrap_or_else(|_| at.to_owned()));
        }
        self.units.push(unit);
        Ok(())
    }
}

fn paths_in(at: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(at).map_err(Error::io("cannot read", at))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// The same for what is in a folder, where only regular files count.
fn kind_of_entry(path: &Path) -> Option<Kind> {
    let metadata = path.symlink_metadata().ok()?;
    metadata.is_file().then(|| kind_of(path)).flatten()
}

/// What a file is by its name.
fn kind_of(path: &Path) -> Option<Kind> {
    let name = file_name(path);
    if name.contains(EVENTS) {
        Some(Kind::Events)
    } else if LOGS.iter().any(|ending| name.ends_with(ending)) {
        Some(Kind::Log)
    } else if name.ends_with(RESULTS) {
        Some(if has_history(path) {
            Kind::Log
        } else {
            Kind::Result
        })
    } else {
        None
    }
}

/// Is it the state of Hugging Face's Trainer, which holds its log?
fn has_history(path: &Path) -> bool {
    const HEAD: u64 = 64 << 10;
    let mut head = Vec::new();
    let read = open_regular(path).and_then(|(file, _)| file.take(HEAD).read_to_end(&mut head));
    read.is_ok() && memchr::memmem::find(&head, b"\"log_history\"").is_some()
}

/// The rank in `rank-7.info.log`, `rank_7`, `log.rank7.txt`.
pub(super) fn rank_of(name: &str) -> Option<u32> {
    let name = name.to_lowercase();
    let (_, after) = name.split_once("rank")?;
    let after = after.trim_start_matches(['-', '_', '.']).chars();
    let digits: String = after.take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The rank whose streams a folder holds: torchrun's `attempt_0/3`, with `stdout.log` and `stderr.log`.
fn rank_of_process(folder: &Path) -> Option<u32> {
    let attempt = file_name(folder.parent()?);
    attempt.strip_prefix("attempt_")?;
    file_name(folder).parse().ok()
}

/// The rank that the name of a log or of its folder states.
pub(super) fn rank_by_name(log: &Path) -> Option<u32> {
    let folder = log.parent()?;
    rank_of(&file_name(log))
        .or_else(|| rank_of(&file_name(folder)))
        .or_else(|| rank_of_process(folder))
}

/// The name of a file or folder without the folder that it is in.
#[must_use]
pub fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    #[test]
    fn ranks_of_one_run_are_one_unit_and_strangers_are_skipped() {
        let root = tempfile::tempdir().unwrap();
        for name in [
            "train_amd_prim_llama.json",
            "benchmark_cuda_llama.json",
            "training_llama.log",
            "README.md",
            ".hidden.log",
            "one/rank-3.log",
            "run-ranks/rank-10.info.log",
            "run-ranks/rank-0.debug.log",
            "run-ranks/rank-7.info.log",
            "nested/rank-1/info.log",
            "nested/rank-0/debug.log",
            "attempt_0/1/stdout.log",
            "attempt_0/0/stderr.log",
            "attempt_0/0/stdout.log",
            "events/x.events.out.tfevents.1",
            "cache/runs/one/run.log",
        ] {
            write_atomically(&root.path().join(name), b"x", Durability::Plain).unwrap();
        }
        let own = [root.path().join("cache")];
        let (units, skipped) = gather(&[root.path().to_owned()], &own).unwrap();
        let shown: Vec<_> = units
            .iter()
            .map(|u| (u.name.as_str(), u.kind, u.files.len()))
            .collect();
        assert_eq!(
            shown,
            [
                ("attempt_0", Kind::Log, 3),
                ("benchmark_cuda_llama.json", Kind::Result, 1),
                ("x.events.out.tfevents.1", Kind::Events, 1),
                ("nested", Kind::Log, 2),
                ("rank-3.log", Kind::Log, 1),
                ("run-ranks", Kind::Log, 3),
                ("train_amd_prim_llama.json", Kind::Result, 1),
                ("training_llama.log", Kind::Log, 1),
            ]
        );
        let ranks = units[5]
            .files
            .iter()
            .map(|f| file_name(f))
            .collect::<Vec<_>>();
        assert_eq!(
            ranks,
            ["rank-0.debug.log", "rank-7.info.log", "rank-10.info.log"]
        );
        assert_eq!(skipped.len(), 1);
    }

    #[test]
    fn links_and_pipes_of_a_folder_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let (folder, secret) = (root.path().join("logs"), root.path().join("id_rsa"));
        write_atomically(&secret, b"key", Durability::Plain).unwrap();
        write_atomically(&folder.join("a.log"), b"x", Durability::Plain).unwrap();
        write_atomically(&folder.join("rank-0/info.log"), b"x", Durability::Plain).unwrap();
        for name in ["b.log", "c.json", "rank-0/debug.log", "rank-1"] {
            let target = if name == "rank-1" {
                root.path()
            } else {
                &secret
            };
            std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
        }
        nix::unistd::mkfifo(&folder.join("d.log"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (units, skipped) = gather(&[folder], &[]).unwrap();
        let files: Vec<_> = units
            .iter()
            .flat_map(|u| &u.files)
            .map(|f| file_name(f))
            .collect();
        assert_eq!(files, ["a.log", "info.log"]);
        let skipped: Vec<_> = skipped.iter().map(|f| file_name(f)).collect();
        assert_eq!(skipped, ["b.log", "c.json", "d.log", "rank-1"]);
        // One that the caller names is the caller's choice.
        assert_eq!(
            gather(&[root.path().join("logs/b.log")], &[])
                .unwrap()
                .0
                .len(),
            1
        );
    }

    #[test]
    fn nothing_there_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(gather(&[root.path().to_owned()], &[]).is_err());
        assert!(gather(&[root.path().join("no.log")], &[]).is_err());
    }
}
