use std::{
    io,
    path::{Path, PathBuf},
};

use tprimat_base::{digest::Digest, error::Error};

/// Why the cache, or something in it, cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error(
        "in the cache {} `{name}` is a link; a cache has no links in it, so that nothing outside it is changed or removed. \
         Move what it leads to in its place, or make the whole cache a link",
        .cache.display()
    )]
    Link { cache: PathBuf, name: &'static str },
    #[error(
        "{} is not a cache: it holds `{holds}` and has no CACHEDIR.TAG of tprimat. Name an empty or a new folder in paths.cache",
        .folder.display()
    )]
    NotACache { folder: PathBuf, holds: String },
    #[error(
        "cannot write to the cache {}: its disk has {free_mib} MiB free, and a build needs {needed_mib} MiB",
        .cache.display()
    )]
    DiskFull {
        cache: PathBuf,
        free_mib: u64,
        needed_mib: u64,
    },
    #[error("{} is a folder where the cache keeps a file; remove it and build again", .0.display())]
    FolderInTheWay(PathBuf),
    #[error(
        "the object {} is larger than {most_mib} MiB, the most that is read into memory",
        .digest.short()
    )]
    ObjectTooLarge { digest: Digest, most_mib: u64 },
    #[error("{}: {why}; nothing was taken in", .path.display())]
    Archive { path: PathBuf, why: String },
    #[error("key {} has no number left for another decision or generation", .0.short())]
    NoNumberLeft(Digest),
    /// `again`: what makes it anew.
    #[error("{what} is gone from the cache or damaged; {again}")]
    Gone { what: String, again: &'static str },
    #[error("{what} is not what this version writes: {source}")]
    OtherVersion {
        what: String,
        source: serde_json::Error,
    },
    /// It may be sound, so nothing is concluded from it.
    #[error("{}", read_failed(.path, .source))]
    Unreadable { path: PathBuf, source: io::Error },
}

impl CacheError {
    pub(super) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unreadable { path, source }
    }
}

fn read_failed(path: &Path, source: &io::Error) -> String {
    let path = path.display();
    match source.kind() {
        io::ErrorKind::OutOfMemory => {
            format!("not enough memory to read {path}, which was left as it is")
        }
        _ => format!("cannot read {path}, which was left as it is: {source}"),
    }
}

/// Does the error concern one file of the cache? Then only the tasks that need that file fail.
#[must_use]
pub fn is_of_one_file(error: &Error) -> bool {
    matches!(error, Error::Lost(_))
}

impl From<CacheError> for Error {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Gone { .. }
            | CacheError::OtherVersion { .. }
            | CacheError::Unreadable { .. }
            | CacheError::FolderInTheWay(_)
            | CacheError::ObjectTooLarge { .. } => Self::Lost(Box::new(error)),
            _ => Self::stage(error),
        }
    }
}
