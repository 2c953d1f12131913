//! What builds leave: objects by digest, and packed records of what made them.
//!
//! Unaware of configs, cells and jobs: a task is a string here, a key is a digest.
mod record;
pub use record::*;
