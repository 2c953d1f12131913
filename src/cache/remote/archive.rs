//! One file in place of a folder: what a remote has, as a `.tar.zst` that any `tar` unpacks.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write},
    path::Path,
    sync::Mutex,
};

use tar::{EntryType, Header};
use tprimat_base::{
    error::{Error, Result},
    files,
};

use super::{Pulled, Pushed, Remote, Shared, held};
use crate::cache::{error::CacheError, names::digest_of, store::Cache};

const LEVEL: i32 = 3;

/// An archive that is being written. Nothing is ever asked of it.
struct Archive<W: Write>(Mutex<(tar::Builder<W>, BTreeSet<String>)>);

impl<W: Write> Archive<W> {
    fn add(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        let mut held = held(&self.0);
        let (tar, names) = &mut *held;
        if !names.insert(name.to_owned()) {
            return Ok(false);
        }
        // No time, owner or mode of this host: the same content gives the same archive.
        let mut header = Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(EntryType::Regular);
        tar.append_data(&mut header, name, bytes).map(|()| true)
    }
}

impl Cache {
    /// Writes every run, import and decision of this cache into one file.
    pub fn export(&self, into: impl Write) -> Result<Pushed> {
        let refused = |e: io::Error| Error::failed(format!("the archive cannot be written: {e}"));
        let encoder = zstd::Encoder::new(into, LEVEL).map_err(refused)?;
        let archive = Archive(Mutex::new((tar::Builder::new(encoder), BTreeSet::new())));
        let mut pushed = Pushed::default();
        for record in self.shared_records(None) {
            let put = |name: &str, bytes: Vec<u8>| archive.add(name, &bytes);
            match self.give(&record, &put, &refused)? {
                None => pushed.incomplete += 1,
                Some(_) => pushed.counts.add(&record),
            }
        }
        let (tar, _) = archive
            .0
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let encoder = tar.into_inner().map_err(refused)?;
        encoder
            .finish()
            .and_then(|mut file| file.flush())
            .map_err(refused)?;
        Ok(pushed)
    }

    /// Takes in what an archive has and this cache lacks.
    pub fn import(&self, file: File, path: &Path) -> Result<Pulled> {
        let folder = tempfile::Builder::new()
            .prefix("new-")
            .tempdir_in(self.root().join("tmp"))
            .map_err(self.refused())?;
        unpack(file, folder.path()).map_err(|why| CacheError::Archive {
            path: path.to_owned(),
            why,
        })?;
        let remote = Remote::of_cache(folder.path());
        remote.pull(self, &remote.list(None)?, &|_, _| Ok(()))
    }
}

/// Only files under names that a cache has: nothing leads out of the folder.
fn unpack(file: File, folder: &Path) -> Result<(), String> {
    let bad = |e: io::Error| format!("is not an archive that can be read: {e}");
    let decoder = zstd::Decoder::new(file).map_err(bad)?;
    let mut archive = tar::Archive::new(decoder);
    let mut members = 0;
    for member in archive.entries().map_err(bad)? {
        let mut member = member.map_err(bad)?;
        let name = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        if member.header().entry_type() != EntryType::Regular || !is_of_cache(&name) {
            return Err(format!("has a member `{name}`, which no cache has"));
        }
        files::write_all_of(&folder.join(&name), &mut member).map_err(|e| e.to_string())?;
        members += 1;
    }
    match members {
        0 => Err("is not an archive of a cache".into()),
        _ => Ok(()),
    }
}

fn is_of_cache(name: &str) -> bool {
    let digest = match name.split_once('/') {
        Some(("records", _)) => return Shared::parse(name).is_some(),
        Some(("objects", rest)) => rest.split_once('/').filter(|(folder, _)| folder.len() == 2),
        Some(("texts", rest)) => Some(("", rest)),
        _ => None,
    };
    digest.is_some_and(|(folder, rest)| digest_of(&format!("{folder}{rest}")).is_some())
}
