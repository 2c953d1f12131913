use std::path::PathBuf;

use crate::error::Error;

/// Why a run is not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(
        "the cache records other launch files of `{cell}` than its templates make: somebody changed {}, or what a template \
         reads. Nothing was run; remove the cache's record by moving the cache away, or name another one in paths.cache",
        .cache.display()
    )]
    OtherLaunchFiles { cell: String, cache: PathBuf },
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::stage(error)
    }
}

/// Why what a run left is not taken into the cache.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// It does not say which run it was, so it is no measurement of anything.
    #[error("the run folder {} is not readable: {source}", .dir.display())]
    Unreadable {
        dir: PathBuf,
        source: serde_json::Error,
    },
    #[error(transparent)]
    Other(#[from] Error),
}

impl From<IngestError> for Error {
    fn from(error: IngestError) -> Self {
        match error {
            IngestError::Other(error) => error,
            unreadable @ IngestError::Unreadable { .. } => Self::stage(unreadable),
        }
    }
}
