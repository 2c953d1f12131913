//! What the rooms above share: errors with their place, digests, and the one module that writes files.

pub mod digest;
pub mod error;
pub mod files;
