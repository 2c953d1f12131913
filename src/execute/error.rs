use std::path::PathBuf;

use crate::error::{Error, Problem};

/// Why a run is not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(
        "the cache records other launch files of `{cell}` than its templates make: somebody changed {}, or what a template \
         reads. Nothing was run; remove the cache's record by moving the cache away, or name another one in paths.cache",
        .cache.display()
    )]
    OtherLaunchFiles { cell: String, cache: PathBuf },
    /// The run cannot be put into the container that its configuration names.
    #[error("{}", .0.help.as_ref().map_or_else(|| .0.message.clone(), |help| format!("{}: {help}", .0.message)))]
    NotContained(Problem),
}

/// Is this an error of one run, which other runs may not have?
pub(super) fn is_of_one_run(error: &Error) -> bool {
    let Error::Stage(stage) = error else {
        return false;
    };
    matches!(stage.downcast_ref(), Some(LaunchError::NotContained(_)))
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::stage(error)
    }
}
