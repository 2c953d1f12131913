//! What most other crates need: errors that name a file, line and column ([`error`]), digests
//! ([`digest`]), the one module that writes files ([`files`]), files that grow ([`growing`]),
//! and values that nobody may read ([`secrets`]).
// A byte position in foreign text may lie within a character: `tprimat_words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

pub mod digest;
pub mod error;
pub mod files;
pub mod growing;
pub mod secrets;
