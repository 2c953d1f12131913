//! The one door to files that people name. A pipe has no end and nobody may ever write to it, a
//! device has no end either, and a file may be larger than the memory: each of them is an error
//! here, at once.

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use nix::libc;

/// The largest file that is read whole.
pub const MOST_BYTES: u64 = 256 << 20;

/// The largest text that people write, such as config.yaml: parsers of YAML and TOML take a thousand
/// times as much memory for some that are larger.
pub const MOST_TEXT: u64 = 4 << 20;

/// Opens a regular file, or what a link leads to if that is one. Never waits for anybody.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    open_with(path, 0)
}

/// The same, but a link is an error as well.
pub fn open_regular_no_link(path: &Path) -> io::Result<(File, Metadata)> {
    open_with(path, libc::O_NOFOLLOW)
}

fn open_with(path: &Path, flags: i32) -> io::Result<(File, Metadata)> {
    // Without O_NONBLOCK the open itself would wait for a pipe's writer. A regular file does not
    // heed it.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags)
        .open(path)?;
    let metadata = file.metadata()?;
    match what_else(&metadata) {
        Some(what) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it is {what}, not a regular file"),
        )),
        None => Ok((file, metadata)),
    }
}

/// What a thing is that is not a regular file.
#[must_use]
pub fn what_else(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

/// The bytes of a regular file of at most `most` bytes.
pub fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open_regular(path)?;
    read_open(&file, metadata.len(), most)
}

/// The rest of an open file. Its size is not believed: it may grow, and the kernel's own files say
/// 0.
pub fn read_open(file: &File, size: u64, most: u64) -> io::Result<Vec<u8>> {
    let too_large = || {
        let message = format!(
            "it is larger than {} MiB, which is the most that is read",
            most >> 20
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    };
    if size > most {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        Err(too_large())
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    #[test]
    fn what_has_no_end_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let why = |path: &Path| open_regular(path).unwrap_err().to_string();
        assert_eq!(why(&pipe), "it is a pipe, not a regular file");
        assert_eq!(why(folder.path()), "it is a folder, not a regular file");
        assert_eq!(
            why(Path::new("/dev/zero")),
            "it is a device, not a regular file"
        );
        assert!(open_regular(&socket).is_err());
        assert_eq!(
            open_regular(&folder.path().join("none"))
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"four", Durability::Plain).unwrap();
        assert_eq!(read_bounded(&path, 4).unwrap(), b"four");
        assert!(
            read_bounded(&path, 3)
                .unwrap_err()
                .to_string()
                .starts_with("it is larger than")
        );
        // Its size is 0, as the kernel says.
        assert!(
            !read_bounded(Path::new("/proc/self/stat"), 1 << 20)
                .unwrap()
                .is_empty()
        );
        assert!(read_bounded(Path::new("/proc/self/stat"), 3).is_err());
    }

    #[test]
    fn links_are_followed_only_where_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        write_atomically(&path, b"x", Durability::Plain).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open_regular(&link).is_ok());
        assert!(open_regular_no_link(&link).is_err() && open_regular_no_link(&path).is_ok());
    }
}
