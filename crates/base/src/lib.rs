//! What most other crates need: errors that name a file, line and column ([`error`]), digests
//! ([`digest`]), the one module that writes files ([`files`]), files that grow ([`growing`]),
//! values that nobody may read ([`secrets`]), and text made harmless ([`words`]).
// A byte position in foreign text may lie within a character: `crate::words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

pub mod digest;
pub mod error;
pub mod files;
pub mod growing;
pub mod secrets;
pub mod words;
