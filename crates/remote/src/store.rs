//! What a remote is kept in: names with bytes behind them.

use std::io;

pub trait Store: Send + Sync {
    /// The full names of everything below a folder; none where it is not there.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// The bytes behind a name. More than `most` are an error of the kind `FileTooLarge`.
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>>;
    /// False: something is there already, and stays. Nobody ever sees a part of it.
    fn put_if_absent(&self, name: &str, bytes: Vec<u8>) -> io::Result<bool>;
    /// Puts a whole run in the place of a damaged one.
    fn replace(&self, name: &str, bytes: Vec<u8>) -> io::Result<()>;
    /// Removes old parts that killed writers left, where there can be some.
    fn sweep(&self) {}
}

pub fn too_large(name: &str, most: u64) -> io::Error {
    let why = format!("{name} is larger than {} MiB", most >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}
