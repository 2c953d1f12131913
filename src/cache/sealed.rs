//! Small JSON files that show their own damage: the first line is the digest of the rest, so
//! `tail -n +2 FILE | jq .` shows what one says.

use serde::{Serialize, de::DeserializeOwned};
use tprimat_base::{
    digest::Digest,
    error::{Error, Result},
};

/// The largest record that is read. A run's record holds the text of its key, some KiB.
pub(super) const MOST_BYTES: u64 = 16 << 20;

pub(super) fn seal(value: &impl Serialize) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(value)
        .map_err(|e| Error::Internal(format!("a record cannot be written as JSON: {e}")))?;
    if json.len() as u64 + 66 > MOST_BYTES {
        return Err(Error::failed(format!(
            "a record of over {} MiB does not fit the cache",
            MOST_BYTES >> 20
        )));
    }
    let digest = Digest::of(&json).to_string();
    Ok([digest.as_bytes(), b"\n", &json, b"\n"].concat())
}

/// `None` where a byte of it is not what was written.
pub(super) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (digest, rest) = bytes.split_at_checked(64)?;
    let json = rest.strip_prefix(b"\n")?.strip_suffix(b"\n")?;
    let is_sound = Digest::of(json).to_string().as_bytes() == digest;
    is_sound.then(|| serde_json::from_slice(json).ok())?
}
