//! What holds for every run of a build on this host.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use super::{event_sink::EventSink, folders::Folders};
use crate::{
    cache::{Attempt, Cache},
    digest::Digest,
    error::Result,
    run::{Gpu, Systems, Watched},
};

/// What holds for every run of a build.
pub struct TrainHost {
    pub project: PathBuf,
    pub runs: PathBuf,
    pub lock_dir: PathBuf,
    /// The tprimat binary, which is also the supervisor.
    pub tprimat: PathBuf,
    pub native: Option<PathBuf>,
    /// The file of `native` as the pre-flight check saw it: shows whether it changed since.
    pub native_seen: OnceLock<Watched>,
    pub hostname: String,
    pub caller_env: BTreeMap<String, String>,
    pub grace_seconds: f64,
    /// The accelerators that runs may be given.
    pub gpus: Vec<Gpu>,
    /// All runs of a build ask the same queue.
    pub systems: Systems,
    pub folders: Folders,
    /// The remote cache of the build.
    pub sharing: Option<Arc<dyn Share>>,
}

/// Where a build shares its runs with other hosts while it goes on, so that builds at the same time
/// do not run the same.
pub trait Share: Send + Sync {
    /// Takes in what others have measured of this key by now.
    fn take(&self, key: &Digest, cache: &Cache, events: &EventSink) -> Result<()>;
    /// Leaves a run that has just been filed; `is_stopped`: the build is being ended, and nothing
    /// may delay it.
    fn leave(
        &self,
        attempt: &Attempt,
        cache: &Cache,
        is_stopped: bool,
        events: &EventSink,
    ) -> Result<()>;
}

impl TrainHost {
    /// Where profiled runs are, which no sweep may take for measured ones.
    pub(super) fn profiles(&self) -> PathBuf {
        self.runs.with_file_name("profiles")
    }
}
