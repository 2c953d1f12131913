//! A folder as a remote: a disk that several hosts mount.

use std::{
    fs::{self, Permissions},
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::NamedTempFile;
use tprimat_base::files;

use super::{Store, too_large};

/// How the names of unfinished files begin.
const PART: &str = ".new-";
/// No push takes longer for one run.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The folder itself is never made: where a disk is not mounted, nothing must be written in
    /// its place.
    fn require(&self) -> io::Result<()> {
        if self.0.is_dir() {
            return Ok(());
        }
        let why = format!(
            "there is no folder {}; `mkdir -p` makes it",
            self.0.display()
        );
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }

    /// Where a name is kept. Whoever else writes to the remote may have put a link in place of one of
    /// its folders, to have files elsewhere read or made: such a link is an error.
    fn place(&self, name: &str) -> io::Result<PathBuf> {
        let mut path = self.0.clone();
        let mut parts = name.split('/').peekable();
        while let Some(part) = parts.next() {
            path.push(part);
            if parts.peek().is_some() && path.is_symlink() {
                return Err(is_a_link(&path));
            }
        }
        Ok(path)
    }

    /// The bytes in a file beside `path`, which is not there yet under its own name.
    fn staged(&self, path: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
        let folder = path.parent().unwrap_or(&self.0);
        // One by one, and never the remote itself: its disk may be unmounted right now.
        let mut made = self.0.clone();
        for part in folder.strip_prefix(&self.0).into_iter().flatten() {
            made.push(part);
            match fs::DirBuilder::new().create(&made) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        // Readable by whoever may enter the folder, as far as the umask lets it.
        let mut file = tempfile::Builder::new()
            .prefix(PART)
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        Ok(file)
    }
}

impl Store for Folder {
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.require()?;
        let (place, mut found) = (self.place(folder)?, Vec::new());
        match (place.is_symlink(), folder.contains('/')) {
            (true, false) => return Err(is_a_link(&place)),
            (true, true) => found.push(folder.to_owned()),
            (false, _) => names_below(&place, folder, 2, &mut found)?,
        }
        Ok(found)
    }

    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let (file, _) = match files::open_regular_no_link(&self.place(name)?) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The folder is reached: it is this file that cannot be read, or is none.
            Err(e) => {
                self.require()?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, e.to_string()));
            }
            Ok(opened) => opened,
        };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(too_large(name, most));
        }
        Ok(Some(bytes))
    }

    fn put_if_absent(&self, name: &str, bytes: Vec<u8>) -> io::Result<bool> {
        self.require()?;
        let path = self.place(name)?;
        if path.symlink_metadata().is_ok() {
            return Ok(false);
        }
        let file = self.staged(&path, &bytes)?;
        match file.persist_noclobber(&path) {
            Ok(_) => Ok(true),
            Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e.error),
        }
    }

    fn replace(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.require()?;
        let path = self.place(name)?;
        let file = self.staged(&path, &bytes)?;
        file.persist(&path).map(drop).map_err(|e| e.error)
    }

    fn sweep(&self) {
        let mut names = Vec::new();
        for folder in ["records", "objects", "texts"] {
            let place = self.place(&format!("{folder}/"));
            let _ = place.and_then(|place| names_below(&place, folder, 2, &mut names));
        }
        let is_part = |name: &&String| {
            let last = name.rsplit('/').next();
            last.is_some_and(|last| last.starts_with(PART))
        };
        for path in names.iter().filter(is_part).map(|name| self.0.join(name)) {
            let age = path
                .symlink_metadata()
                .and_then(|found| found.modified())
                .map(|modified| modified.elapsed().unwrap_or_default());
            if age.is_ok_and(|age| age > OLD) {
                // It may be another user's: then that one's push removes it.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// `depth`: a folder of keys, with a folder of records each. Links are followed nowhere.
fn names_below(path: &Path, name: &str, depth: u32, found: &mut Vec<String>) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(());
        }
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(last) = entry.file_name().into_string() else {
            continue;
        };
        // One that was being written has its own name by now.
        let (Ok(kind), name) = (entry.file_type(), format!("{name}/{last}")) else {
            continue;
        };
        if kind.is_dir() && depth > 1 {
            names_below(&entry.path(), &name, depth - 1, found)?;
        } else {
            // What is a pipe or a link in the place of a file or folder is told by who asks for it.
            found.push(name);
        }
    }
    Ok(())
}

fn is_a_link(path: &Path) -> io::Error {
    let why = format!(
        "{} is a link, and no link in a remote is followed; put what it leads to in its place",
        path.display()
    );
    io::Error::new(io::ErrorKind::InvalidData, why)
}
