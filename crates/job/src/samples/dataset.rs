//! Both files of an indexed dataset, mapped into memory.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use crate::samples::{
    Error,
    index::{Index, Layout},
};

/// What people point at: the prefix, or one of its two files.
#[must_use]
pub fn prefix_of(path: &Path) -> PathBuf {
    match path.extension() {
        Some(extension) if extension == "idx" || extension == "bin" => path.with_extension(""),
        _ => path.to_owned(),
    }
}

pub struct Dataset {
    prefix: PathBuf,
    idx: Mmap,
    bin: Mmap,
    layout: Layout,
}

impl Dataset {
    /// Opens PREFIX.idx and PREFIX.bin; only the header is looked at. Whoever names the files is
    /// trusted not to name a pipe, which would be waited for; [`Dataset::of`] takes files that
    /// somebody else opened.
    pub fn open(prefix: &Path) -> Result<Self, Error> {
        Self::of(prefix, |path| File::open(path))
    }

    /// The same, with both files opened by `open`.
    pub fn of(prefix: &Path, open: impl Fn(&Path) -> std::io::Result<File>) -> Result<Self, Error> {
        let prefix = prefix_of(prefix);
        let [idx_path, bin_path] = Self::paths(&prefix);
        let map = |path: &Path| {
            // SAFETY: datasets are written once; one that is cut while it is read ends the process
            // with SIGBUS.
            let map = open(path).and_then(|file| unsafe { Mmap::map(&file) });
            map.map_err(|source| Error::Read {
                path: path.to_owned(),
                source,
            })
        };
        let (idx, bin) = (map(&idx_path)?, map(&bin_path)?);
        let layout = Layout::parse(&idx).map_err(|damage| Error::Damaged {
            path: idx_path,
            damage,
        })?;
        Ok(Self {
            prefix,
            idx,
            bin,
            layout,
        })
    }

    /// Its `.idx` and its `.bin`. A dot in the name is no extension.
    #[must_use]
    pub fn paths(prefix: &Path) -> [PathBuf; 2] {
        ["idx", "bin"].map(|extension| {
            let mut path = prefix.as_os_str().to_owned();
            path.push(".");
            path.push(extension);
            path.into()
        })
    }

    #[must_use]
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }
    #[must_use]
    pub fn index(&self) -> Index<'_> {
        Index::with(&self.layout, &self.idx)
    }
    /// The bytes of all tokens.
    #[must_use]
    pub fn bin(&self) -> &[u8] {
        &self.bin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_may_have_dots_and_may_be_given_as_a_file() {
        let names = |given: &str| {
            Dataset::paths(&prefix_of(Path::new(given))).map(|p| p.display().to_string())
        };
        for given in ["d/c4.v2_text", "d/c4.v2_text.idx", "d/c4.v2_text.bin"] {
            assert_eq!(names(given), ["d/c4.v2_text.idx", "d/c4.v2_text.bin"]);
        }
    }
}
