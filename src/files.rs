//! The one module that writes files: whole or not at all.

use std::{
    fs, io,
    io::Write,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::error::{Error, Result};

/// Should a write survive a power cut? Measurements must; what can be recomputed need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Synced,
    Plain,
}

/// Begins the name of a file that is being written.
pub const TEMPORARY: &str = ".tmp-";

/// Replaces `path` by `bytes`: temporary in the same folder, (sync,) rename. Creates the folder.
pub fn write_atomically(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_dir_all(folder)?;
    let write = || -> io::Result<()> {
        let mut temporary = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
        temporary.write_all(bytes)?;
        if durability == Durability::Synced {
            temporary.as_file().sync_all()?;
        }
        #[expect(clippy::disallowed_methods, reason = "this is the module that writes")]
        fs::set_permissions(temporary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        temporary.persist(path).map_err(|e| e.error)?;
        if durability == Durability::Synced {
            fs::File::open(folder)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(Error::io("cannot write", path))
}

/// Moves a file or a folder, over what is there; a copy where `to` is on another file system.
pub fn move_to(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(Path::new("."));
    create_dir_all(folder)?;
    let _ = if to.is_dir() { fs::remove_dir_all(to) } else { fs::remove_file(to) };
    #[expect(clippy::disallowed_methods, reason = "this is the module that writes")]
    if fs::rename(from, to).is_ok() {
        return Ok(());
    }
    if from.is_dir() {
        create_dir_all(to)?;
        for entry in fs::read_dir(from).map_err(Error::io("cannot read the folder", from))?.flatten() {
            move_to(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let copy = || -> io::Result<()> {
        let mut temporary = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(folder)?;
        io::copy(&mut fs::File::open(from)?, temporary.as_file_mut())?;
        temporary.persist(to).map_err(|e| e.error)?;
        Ok(())
    };
    copy().map_err(Error::io("cannot write", to))
}

pub fn create_dir_all(path: &Path) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this is the module that writes")]
    fs::create_dir_all(path).map_err(Error::io("cannot create the folder", path))
}

/// A folder in which every user of the host may make files and remove only their own, like /tmp.
pub fn create_shared_dir(path: &Path) -> Result<()> {
    create_dir_all(path)?;
    #[expect(clippy::disallowed_methods, reason = "this is the module that writes")]
    // Refused where somebody else made the folder, who has done this already.
    let _ = fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o1777));
    Ok(())
}

pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io("cannot read", path))
}

pub fn read_to_string(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("cannot read", path))
}

/// Seconds since 1970.
#[must_use]
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
