//! What builds leave, as plain files: records of what was done, and objects by digest.
//!
//! Unaware of configs, cells and jobs: a task is a string here, a key is a digest.
//!
//! ```text
//! records/KEY/ID.json                 a run under its train key, or an import under a key of its own
//! records/KEY/mark-0001-….json         a decision on a run: set aside, or restored
//! records/KEY/generation-0002.json    the key was measured anew
//! objects/ab/cdef…                    a file by its digest, zstd-compressed unless it is small
//! texts/DIGEST                        a text or a small input that keys name by its digest
//! made/KEY.json                       what was derived under a key; made again where it is gone
//! damaged/DIGEST                      an object that had other bytes, put aside by a build
//! in-use                              locked while a build uses the cache
//! memos/ locks/ tmp/                  the last build's notes; keys in flight; files being written
//! ```
//!
//! Each file is written once, beside its place, and renamed. `records`, `objects` and `texts` are
//! what caches share: two of them are merged by copying what the other one lacks, whoever copies
//! (`cp -rn`, a remote, an archive).
mod entry;
mod error;
mod lock;
mod made;
mod names;
mod objects;
mod records;
mod remote;
mod sealed;
mod store;
#[cfg(test)]
mod tests;
mod upkeep;

pub use entry::*;
pub use error::{CacheError, is_of_one_file};
pub use lock::{KeyLock, claim_unused};
pub use objects::ObjectReader;
pub use records::{Fault, Faults, MOST_TEXT};
pub use remote::{Counts, Damaged, Listing, Progress, Pulled, Pushed, Remote, Shared, Unreachable};
pub use store::{CONTAINER_HOME, Cache, DETACHED};
pub use upkeep::{Garbage, NamedObject, Usage, Verified, is_decision};
