//! Token files: Megatron's indexed datasets, `PREFIX.idx` beside `PREFIX.bin`.
//!
//! `tprimat_job::samples` reads them as trainers do; here [`verify()`] tells what is wrong with them, and
//! [`fingerprint()`] names their content.

mod fingerprint;
mod verify;

use std::path::Path;

pub use fingerprint::{fingerprint, tokenizer_fingerprint};
pub use tprimat_job::samples::{Damage, Dataset, Dtype, Index, Samples, prefix_of};
pub use verify::{Report, verify, verify_sampled};

use crate::{
    error::{Error, Problem, Result},
    files::open_regular,
};

/// Opens a dataset that a person named: a pipe in its place is an error, not a hang.
pub fn open(prefix: &Path) -> Result<Dataset> {
    let opened = Dataset::of(prefix, |path| open_regular(path).map(|(file, _)| file));
    opened.map_err(|error| match error {
        tprimat_job::samples::Error::Read { path, source } => {
            Error::io("cannot read", path)(source)
        }
        other => Error::invalid(Problem::new(other.to_string())),
    })
}
