//! What most other crates need: errors that name a file, line and column ([`error`]), digests
//! ([`digest`]), and the one module that writes files ([`files`]).
// A byte position in foreign text may lie within a character: `tprimat_words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

pub mod digest;
pub mod error;
pub mod files;
