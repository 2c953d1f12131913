//! Megatron's indexed datasets, `PREFIX.idx` beside `PREFIX.bin`, as trainers see them.
//!
//! [`Index`] reads any bytes as an `.idx`, [`Dataset`] both files, [`Samples`] cuts them into the
//! sequences that every trainer of ours sees in the same order. The native trainer's keys cover
//! this module.
// A byte position in foreign text may lie within a character.
#![cfg_attr(not(test), warn(clippy::string_slice))]

mod dataset;
#[cfg(test)]
mod dataset_for_tests;
mod index;
mod order;

use std::{io, path::PathBuf};

pub use dataset::{Dataset, prefix_of};
pub use index::{Damage, Dtype, HEADER, Index, MAGIC, VERSION};
pub use order::Samples;

/// Why a dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} {damage}", .path.display())]
    Damaged { path: PathBuf, damage: Damage },
    #[error("{} cannot be trained on: {why}; `tprimat data verify` says all that is wrong with it", .prefix.display())]
    Untrainable { prefix: PathBuf, why: String },
}
