//! cells × recipes × config → jobs.
mod job;
pub use job::*;
