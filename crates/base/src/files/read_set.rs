//! What somebody read, as it was when it was read: files by content, and places where no file was.
//!
//! A plan notes here whatever it reads: a digest that is taken later is not of what was planned, for the
//! file may have been edited since.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{MOST_BYTES, MOST_TEXT, Stamp, open_regular, read_open, unix_now, what_else};
use crate::digest::Digest;

/// Entries that one walk looks at. More are not what anybody means by the inputs of a training.
const MOST_ENTRIES: usize = 100_000;

/// Endings of files that a trainer is made of.
const CODE: [&str; 9] = ["py", "sh", "cu", "cuh", "c", "cc", "cpp", "h", "hpp"];

/// Is it code by its ending?
#[must_use]
pub fn is_code(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| CODE.contains(&ending))
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known {
    pub stamp: Stamp,
    pub digest: Digest,
}

impl Known {
    /// Reads the file.
    pub fn of(path: &Path) -> io::Result<Self> {
        let taken = unix_now();
        let (file, metadata) = open_regular(path)?;
        let stamp = Stamp::of_metadata(&metadata, taken);
        Ok(Self {
            stamp,
            digest: Digest::of_reader(file)?,
        })
    }
}

/// Reads files and folders and notes what it finds.
#[derive(Default)]
pub struct ReadSet(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    /// By path, as it was when it was first read; `None`: no regular file was there.
    files: BTreeMap<PathBuf, Option<Known>>,
    /// Paths that tprimat itself makes: they are left out of listings.
    made: BTreeSet<PathBuf>,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: EntryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Folder,
    /// An environment of Python's `venv` or of conda: a folder that belongs to the host.
    Environment,
    /// In words: a pipe, a link to nothing.
    Other(&'static str),
}

/// A file below a folder that was walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// From the folder that the walk began in.
    pub path: PathBuf,
    pub kind: EntryKind,
}

impl ReadSet {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells which files and folders tprimat itself makes, before anything is walked.
    pub fn leave_out(&self, made: impl IntoIterator<Item = PathBuf>) {
        self.noted().made.extend(made);
    }

    #[must_use]
    pub fn is_made(&self, path: &Path) -> bool {
        let noted = self.noted();
        noted.made.iter().any(|made| path.starts_with(made))
    }

    /// Was this file read, or looked for?
    #[must_use]
    pub fn has_read(&self, is_it: impl Fn(&Path) -> bool) -> bool {
        self.noted().files.keys().any(|path| is_it(path))
    }

    /// A file as it was when it was read; `None`: it was not read.
    #[must_use]
    pub fn known(&self, path: &Path) -> Option<Known> {
        self.noted().files.get(path).cloned().flatten()
    }

    /// Replaces what is known of a file that tprimat itself has just written.
    pub fn wrote(&self, path: &Path) -> io::Result<()> {
        let known = Known::of(path)?;
        self.noted().files.insert(path.to_owned(), Some(known));
        Ok(())
    }

    /// The text of a file that people write; `None` where there is none.
    pub fn read_text(&self, path: &Path) -> io::Result<Option<String>> {
        let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8");
        let bytes = self.read_at_most(path, MOST_TEXT)?;
        bytes
            .map(|bytes| String::from_utf8(bytes).map_err(not_text))
            .transpose()
    }

    /// The bytes of a file; `None` where there is none.
    pub fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        self.read_at_most(path, MOST_BYTES)
    }

    fn read_at_most(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        let taken = unix_now();
        let (file, metadata) = match open_regular(path) {
            Ok(opened) => opened,
            Err(error) if is_absence(&error) => {
                self.note(path, None);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let stamp = Stamp::of_metadata(&metadata, taken);
        let bytes = read_open(&file, metadata.len(), most)?;
        self.note(
            path,
            Some(Known {
                stamp,
                digest: Digest::of(&bytes),
            }),
        );
        Ok(Some(bytes))
    }

    /// The digest of a file of any size.
    pub fn digest(&self, path: &Path) -> io::Result<Digest> {
        let known = Known::of(path)?;
        let digest = known.digest;
        self.note(path, Some(known));
        Ok(digest)
    }

    /// Is a regular file there? That there is none is noted; that there is one when it is read.
    /// Where it cannot be known, in a folder that the caller may not search, it is an error.
    pub fn is_file(&self, path: &Path) -> io::Result<bool> {
        self.looks_like(path, fs::Metadata::is_file)
    }

    /// Is anything there but a folder? That there is nothing is noted; that there is a file when it
    /// is read, and what is not a file, a pipe or a device, is an error then.
    pub fn is_there(&self, path: &Path) -> io::Result<bool> {
        self.looks_like(path, |metadata| !metadata.is_dir())
    }

    fn looks_like(&self, path: &Path, is_it: impl Fn(&fs::Metadata) -> bool) -> io::Result<bool> {
        let is_it = match path.metadata() {
            Ok(metadata) => is_it(&metadata),
            Err(error) if is_absence(&error) => false,
            Err(error) => return Err(error),
        };
        if !is_it {
            self.note(path, None);
        }
        Ok(is_it)
    }

    fn note(&self, path: &Path, known: Option<Known>) {
        self.noted().files.entry(path.to_owned()).or_insert(known);
    }

    /// The entries of a folder, sorted, without what is never an input; none where there is no
    /// folder. A folder that cannot be read is an error: it is not known to be empty.
    pub fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.list_of(folder, Keeps::All)
    }

    fn list_of(&self, folder: &Path, keeps: Keeps) -> io::Result<Vec<Entry>> {
        entries(folder, &self.noted().made, keeps)
    }

    /// Everything below `root`/`start` that is not a folder, by its path from `root`, at most
    /// `depth` names below `start`. Follows links to folders, but never round in a circle. The
    /// error says why the walk was given up.
    pub fn walk(&self, root: &Path, start: &Path, depth: usize) -> Result<Vec<Found>, String> {
        let walk = Walk {
            reads: self,
            root,
            keeps: Keeps::All,
            skips: &|_| false,
            found: Vec::new(),
            above: Vec::new(),
            left: MOST_ENTRIES,
            most: MOST_ENTRIES,
        };
        walk.from(start, depth)
    }

    /// The files of code below `root`/`start`, at any depth, but not in hidden folders and in those
    /// that `skips` names by their paths from `root`. Looks at no more than `most` entries.
    pub fn walk_code(
        &self,
        root: &Path,
        start: &Path,
        most: usize,
        skips: &dyn Fn(&Path) -> bool,
    ) -> Result<Vec<Found>, String> {
        let walk = Walk {
            reads: self,
            root,
            keeps: Keeps::Code,
            skips,
            found: Vec::new(),
            above: Vec::new(),
            left: most,
            most,
        };
        walk.from(start, usize::MAX)
    }
}

struct Walk<'a> {
    reads: &'a ReadSet,
    root: &'a Path,
    keeps: Keeps,
    skips: &'a dyn Fn(&Path) -> bool,
    found: Vec<Found>,
    /// The folders that the walk is in, without links, the outermost first.
    above: Vec<PathBuf>,
    /// How many more entries may be looked at.
    left: usize,
    most: usize,
}

impl Walk<'_> {
    fn from(mut self, start: &Path, depth: usize) -> Result<Vec<Found>, String> {
        self.folder(start, depth)?;
        self.found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(self.found)
    }

    fn folder(&mut self, below: &Path, depth: usize) -> Result<(), String> {
        let folder = self.root.join(below);
        let refused =
            |error: io::Error| format!("cannot read the folder {}: {error}", folder.display());
        let real = match folder.canonicalize() {
            Ok(real) => real,
            Err(error) if is_absence(&error) => return Ok(()),
            Err(error) => return Err(refused(error)),
        };
        if self.above.contains(&real) {
            return Ok(());
        }
        // Such a link makes a walk of the whole host, and of this folder once more.
        let root = self.root.canonicalize().map_err(refused)?;
        if root != real && root.starts_with(&real) {
            let (link, to) = (below.display(), real.display());
            return Err(format!(
                "{link} leads to {to}, a folder above; remove the link"
            ));
        }
        self.above.push(real);
        for Entry { name, kind } in self.reads.list_of(&folder, self.keeps).map_err(refused)? {
            let more = || {
                format!(
                    "there are more than {} files and folders; name fewer folders",
                    self.most
                )
            };
            self.left = self.left.checked_sub(1).ok_or_else(more)?;
            let path = below.join(name);
            match kind {
                EntryKind::Folder if (self.skips)(&path) => {}
                EntryKind::Folder if depth > 1 => self.folder(&path, depth - 1)?,
                EntryKind::Folder => {}
                kind => self.found.push(Found { path, kind }),
            }
        }
        self.above.pop();
        Ok(())
    }
}

/// Which entries of a folder are looked at.
#[derive(Clone, Copy)]
enum Keeps {
    All,
    /// Files of code, and folders that are not hidden.
    Code,
}

fn entries(folder: &Path, made: &BTreeSet<PathBuf>, keeps: Keeps) -> io::Result<Vec<Entry>> {
    let all = match fs::read_dir(folder) {
        Ok(all) => all,
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut entries: Vec<Entry> = Vec::new();
    for entry in all {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        if is_leftover(&name) || made.contains(&path) {
            continue;
        }
        if matches!(keeps, Keeps::Code) && !is_code(&path) {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            if is_file || is_hidden || !path.is_dir() {
                continue;
            }
        }
        entries.push(Entry {
            kind: kind_of(&entry, &path),
            name,
        });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn kind_of(entry: &fs::DirEntry, path: &Path) -> EntryKind {
    match entry.file_type() {
        Ok(kind) if kind.is_file() => EntryKind::File,
        // What a link leads to counts.
        _ => match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                EntryKind::Other("a place you may not look at")
            }
            Err(_) => EntryKind::Other("a link to nothing"),
            Ok(metadata) if metadata.is_dir() && is_environment(path) => EntryKind::Environment,
            Ok(metadata) if metadata.is_dir() => EntryKind::Folder,
            Ok(metadata) => what_else(&metadata).map_or(EntryKind::File, EntryKind::Other),
        },
    }
}

/// Made by `venv`, or by conda.
fn is_environment(folder: &Path) -> bool {
    folder.join("pyvenv.cfg").is_file() || folder.join("conda-meta").is_dir()
}

/// What editors, interpreters and version control leave beside files: never an input.
#[must_use]
pub fn is_leftover(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let is_of_vim = || {
        name.starts_with('.')
            && name.len() > 4
            && [".swp", ".swo", ".swn"].iter().any(|e| name.ends_with(e))
    };
    matches!(
        &*name,
        "__pycache__" | ".git" | ".hg" | ".jj" | ".svn" | ".DS_Store" | "4913"
    ) || [".pyc", ".pyo", "~"].iter().any(|end| name.ends_with(end))
        || name.starts_with(".#")
        || name.len() > 1 && name.starts_with('#') && name.ends_with('#')
        || name.starts_with(super::TEMPORARY)
        || is_of_vim()
}

fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    // No file can have a name that is too long, or that holds a NUL.
    matches!(
        error.kind(),
        NotFound | NotADirectory | InvalidFilename | InvalidInput
    )
}

#[cfg(test)]
mod tests;
