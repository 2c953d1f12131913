//! BLAKE3 digests: the only kind of content hash in tprimat.

use std::{
    fmt,
    io::{self, Read},
    path::Path,
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Files below this size are read in one piece. The room for larger pieces is memory that the kernel
/// must find first, which takes longer than to read a small file.
const SMALL: u64 = 16 << 10;

/// A 256-bit BLAKE3 digest, printed and serialised as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    #[must_use]
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(*blake3::hash(bytes.as_ref()).as_bytes())
    }

    /// Digest of a regular file's bytes, read in constant memory.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let (file, metadata) = crate::files::open_regular(path)?;
        let mut begun = Vec::with_capacity(metadata.len().min(SMALL) as usize + 1);
        (&file).take(SMALL).read_to_end(&mut begun)?;
        if (begun.len() as u64) < SMALL {
            return Ok(Self::of(begun));
        }
        Self::of_reader(begun.as_slice().chain(file))
    }

    pub fn of_reader(reader: impl io::Read) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(reader)?;
        Ok(Self(*hasher.finalize().as_bytes()))
    }

    /// The first 12 hexadecimal digits, for people.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(12).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

impl FromStr for Digest {
    type Err = blake3::HexError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Ok(Self(*blake3::Hash::from_hex(s)?.as_bytes()))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}
