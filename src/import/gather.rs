//! Paths as a user names them → units, each of them one run.

use std::path::{Path, PathBuf};

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

/// What the names of event files have.
const EVENTS: &str = ".tfevents.";
/// How the names of other files end, and what those are.
const ENDINGS: [(&str, Kind); 6] = [
    ("log", Kind::Log),
    ("txt", Kind::Log),
    ("out", Kind::Log),
    ("err", Kind::Log),
    ("jsonl", Kind::Log),
    ("json", Kind::Result),
];

/// Folders within folders that are looked into.
const DEPTH: usize = 6;

/// All runs below the paths, in order of their names; `skipped` gets the files of folders that are
/// neither, and links: what a link in somebody's folder leads to may be any file of the caller's,
/// which nobody named. Folders and files in `own` are what tprimat itself keeps and publishes here:
/// nobody brings those along by naming a folder around them.
pub fn gather(paths: &[PathBuf], own: &[PathBuf], skipped: &mut Vec<PathBuf>) -> Result<Vec<Unit>> {
    let own: Vec<PathBuf> = own
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    let mut units = Vec::new();
    for path in paths {
        if path.is_dir() {
            folder(path, 0, &own, &mut units, skipped)?;
        } else {
            let kind = kind_of(path).unwrap_or(Kind::Log);
            open_regular(path).map_err(Error::io("cannot read", path))?;
            units.push(Unit {
                kind,
                name: file_name(path),
                files: vec![path.clone()],
            });
        }
    }
    if units.is_empty() {
        let shown = paths
            .iter()
            .map(|p| p.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let problem = Problem::new(format!("there is nothing to import in {shown}"));
        let of_kind = |kind: Kind| {
            let endings = ENDINGS.iter().filter(|(_, of)| *of == kind);
            let endings: Vec<String> = endings.map(|(ending, _)| format!(".{ending}")).collect();
            endings.join(", ")
        };
        return Err(Error::invalid(problem.help(format!(
            "logs end with {}, results with {}, and event files have {EVENTS} in their names",
            of_kind(Kind::Log),
            of_kind(Kind::Result)
        ))));
    }
    Ok(units)
}

fn folder(
    at: &Path,
    depth: usize,
    own: &[PathBuf],
    units: &mut Vec<Unit>,
    skipped: &mut Vec<PathBuf>,
) -> Result<()> {
    let entries = std::fs::read_dir(at).map_err(Error::io("cannot read", at))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut ranks: Vec<(u32, PathBuf)> = Vec::new();
    for path in paths {
        let name = file_name(&path);
        // People do not hide their logs.
        if name.starts_with('.') {
            continue;
        }
        if path.is_symlink() {
            skipped.push(path);
            continue;
        }
        if path.canonicalize().is_ok_and(|path| own.contains(&path)) {
            continue;
        }
        if path.is_dir() {
            match rank_of(&name).filter(|_| depth < DEPTH) {
                Some(rank) => ranks.extend(files_in(&path)?.into_iter().map(|file| (rank, file))),
                None if depth < DEPTH => folder(&path, depth + 1, own, units, skipped)?,
                None => skipped.push(path),
            }
            continue;
        }
        match kind_of(&path).filter(|_| path.is_file()) {
            Some(Kind::Log) if let Some(rank) = rank_of(&name) => ranks.push((rank, path)),
            Some(kind) => units.push(Unit {
                kind,
                name,
                files: vec![path],
            }),
            None => skipped.push(path),
        }
    }
    if let [(_, only)] = &ranks[..] {
        units.push(Unit {
            kind: Kind::Log,
            name: file_name(only),
            files: vec![only.clone()],
        });
    } else if !ranks.is_empty() {
        ranks.sort();
        let files = ranks.into_iter().map(|(_, path)| path).collect();
        units.push(Unit {
            kind: Kind::Log,
            name: folder_name(at),
            files,
        });
    }
    Ok(())
}

/// Logs directly in one rank's folder.
fn files_in(at: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(at).map_err(Error::io("cannot read", at))?;
    Ok(entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| is_log(p))
        .collect())
}

fn is_log(path: &Path) -> bool {
    !path.is_symlink() && path.is_file() && kind_of(path) == Some(Kind::Log)
}

fn kind_of(path: &Path) -> Option<Kind> {
    let name = file_name(path);
    if name.contains(EVENTS) {
        return Some(Kind::Events);
    }
    let extension = Path::new(&name).extension()?;
    let found = ENDINGS.iter().find(|(ending, _)| extension == *ending);
    found.map(|(_, kind)| *kind)
}

/// The rank in `rank-7.info.log`, `rank_7`, `log.rank7.txt`.
pub(super) fn rank_of(name: &str) -> Option<u32> {
    let (_, after) = name
        .to_lowercase()
        .split_once("rank")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))?;
    let digits: String = after
        .trim_start_matches(['-', '_', '.'])
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn folder_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    file_name(&full)
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
            "events/x.events.out.tfevents.1",
            "cache/runs/one/run.log",
        ] {
            write_atomically(&root.path().join(name), b"x", Durability::Plain).unwrap();
        }
        let mut skipped = Vec::new();
        let units = gather(
            &[root.path().to_owned()],
            &[root.path().join("cache")],
            &mut skipped,
        )
        .unwrap();
        let shown: Vec<_> = units
            .iter()
            .map(|u| (u.name.as_str(), u.kind, u.files.len()))
            .collect();
        assert_eq!(
            shown,
            [
                ("benchmark_cuda_llama.json", Kind::Result, 1),
                ("x.events.out.tfevents.1", Kind::Events, 1),
                ("nested", Kind::Log, 2),
                ("rank-3.log", Kind::Log, 1),
                ("run-ranks", Kind::Log, 3),
                ("train_amd_prim_llama.json", Kind::Result, 1),
                ("training_llama.log", Kind::Log, 1),
            ]
        );
        let ranks = units[4]
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
        let mut skipped = Vec::new();
        let units = gather(&[folder], &[], &mut skipped).unwrap();
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
            gather(&[root.path().join("logs/b.log")], &[], &mut Vec::new())
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn nothing_there_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(gather(&[root.path().to_owned()], &[], &mut Vec::new()).is_err());
        assert!(gather(&[root.path().join("no.log")], &[], &mut Vec::new()).is_err());
    }
}
