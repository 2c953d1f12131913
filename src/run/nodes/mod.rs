//! One run on the nodes of a Slurm job or allocation: a supervisor on each, and one process that
//! conducts them.
//!
//! ```text
//! conductor ── srun ──┬── supervisor of node 0 ── trainer (its log is the run's)
//!   (this half)       └── supervisor of node 1 ── trainer   (that half)
//! ```
//!
//! Node 0 has rank 0, or the last rank where that is the one that prints the steps (`nodes =
//! "last"` in a recipe); the nodes meet at the one that has rank 0.
//!
//! srun carries everything between the two halves, so nothing waits for a file to be seen on
//! another host. Its standard input goes to every node: first the run's environment, then, once
//! all nodes are ready, where they meet; its end ends the run. Its standard output brings each
//! node's answers, as lines of [`Message`].

mod conductor;
mod heard;
mod messages;
mod node;

use std::path::{Path, PathBuf};

use super::{
    folder::if_there,
    spec::{TELEMETRY, hostname},
};
use crate::{error::Result, files};

pub(crate) use conductor::conduct;
pub(crate) use node::supervise;

/// The last word of `tprimat __run DIR node`, the supervisor of one node of the run in DIR.
pub(crate) const NODE: &str = "node";

/// Where the conductor tells the supervisors which host node 0 is on. No trainer sees it.
const FIRST_NODE: &str = "TPRIMAT_FIRST_NODE";

/// Where the files of a node are: those of node 0 are the run's own.
pub(super) fn folder_of(dir: &Path, node: usize) -> PathBuf {
    if node == 0 {
        dir.to_owned()
    } else {
        dir.join(format!("node-{node}"))
    }
}

/// What was sampled on a node of several. It is not the run's: each file has one node's devices.
pub(super) fn telemetry_of(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("node-{node}")).join(TELEMETRY)
}

/// A file that a node left beside those of node 0, and its name among an attempt's outputs.
pub(crate) struct NodeFile {
    pub node: usize,
    pub name: String,
    pub path: PathBuf,
}

/// Logs and samples of each node of a run of several, as far as they are there. A folder may have
/// come with somebody's project, so nothing is followed through links.
pub(crate) fn files_of(dir: &Path, nodes: usize) -> Result<(Vec<NodeFile>, Vec<NodeFile>)> {
    let is_regular = |file: &NodeFile| -> Result<bool> {
        let found = if_there(&file.path, std::fs::symlink_metadata(&file.path))?;
        let folder = file.path.parent().unwrap_or(dir);
        Ok(found.is_some_and(|found| found.is_file())
            && files::is_own(folder)
            && files::is_own(&file.path))
    };
    let regular = |all: &mut dyn Iterator<Item = NodeFile>| {
        all.filter_map(|file| match is_regular(&file) {
            Ok(is_regular) => is_regular.then_some(Ok(file)),
            Err(error) => Some(Err(error)),
        })
        .collect::<Result<Vec<_>>>()
    };
    let all = if nodes > 1 { 0..nodes } else { 0..0 };
    let mut logs = all.clone().skip(1).map(|node| NodeFile {
        node,
        name: format!("log.node-{node}"),
        path: folder_of(dir, node).join("log"),
    });
    let mut samples = all.map(|node| NodeFile {
        node,
        name: format!("telemetry.node-{node}.jsonl"),
        path: telemetry_of(dir, node),
    });
    Ok((regular(&mut logs)?, regular(&mut samples)?))
}

/// Which node of the run this process is on.
pub(super) fn this_node() -> Option<usize> {
    std::env::var("SLURM_NODEID").ok()?.parse().ok()
}

pub(super) fn name_of_this_node() -> String {
    std::env::var("SLURMD_NODENAME")
        .ok()
        .or_else(hostname)
        .unwrap_or_else(|| "this node".into())
}
