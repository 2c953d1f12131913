//! What builds leave: objects by digest, and packed records of what made them.
//!
//! Unaware of configs, cells and jobs: a task is a string here, a key is a digest.
//!
//! ```text
//! objects/ab/cdef…       a blob by its digest, zstd-compressed where that makes it smaller
//! segments/0001-x.seg    append-only records: entries, attempts, generations, pre-images
//! snapshot               an index of the segments; may be deleted at any time
//! damaged/ab…            a blob that had other bytes than its digest names, put aside by a build
//! in-use                 locked while a build uses the cache
//! memos/ locks/ tmp/     the last build's summary; keys in flight; files being written
//! ```
mod adopt;
mod bundle;
mod encode;
mod entry;
mod error;
mod fingerprint;
mod frame;
mod index;
mod lock;
mod memo;
mod objects;
mod records;
mod segment;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod upkeep;

pub use adopt::Adopted;
pub use bundle::{Counts, Expected, OTHER_KEY, Received, SharedRecord, check_bundle};
pub use encode::{OutputRef, Outputs};
pub use entry::*;
pub use error::{CacheError, bundle_fault, is_of_one_file};
pub use lock::{KeyLock, claim_unused};
pub use objects::{JsonLayout, ObjectReader};
pub use records::EntryRef;
pub use segment::DamagedRecords;
pub use store::{CONTAINER_HOME, Cache, DETACHED};
pub use upkeep::{Garbage, Limits, NamedObject, Repair, Usage, Verified};
