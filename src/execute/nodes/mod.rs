//! One run on the nodes of a Slurm job or allocation: a supervisor on each, and one process that
//! conducts them.
//!
//! ```text
//! conductor ── srun ──┬── supervisor of node 0 ── trainer (its log is the run's)
//!   (this half)       └── supervisor of node 1 ── trainer   (that half)
//! ```
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

pub(in crate::execute) use conductor::conduct;
pub use node::supervise_node;

use super::run::{TELEMETRY, hostname};
use crate::files;

/// `tprimat __node DIR` is the supervisor of one node of the run in DIR.
pub const NODE_ARGUMENT: &str = "__node";

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
pub(super) struct NodeFile {
    pub node: usize,
    pub name: String,
    pub path: PathBuf,
}

/// Logs and samples of each node of a run of several, as far as they are there. A folder may have
/// come with somebody's project, so nothing is followed through links.
pub(super) fn files_of(dir: &Path, nodes: usize) -> (Vec<NodeFile>, Vec<NodeFile>) {
    let is_regular = |file: &NodeFile| {
        let folder = file.path.parent().unwrap_or(dir);
        files::is_own(folder)
            && std::fs::symlink_metadata(&file.path).is_ok_and(|found| found.is_file())
            && files::is_own(&file.path)
    };
    let all = if nodes > 1 { 0..nodes } else { 0..0 };
    let logs = all.clone().skip(1).map(|node| NodeFile {
        node,
        name: format!("log.node-{node}"),
        path: folder_of(dir, node).join("log"),
    });
    let samples = all.map(|node| NodeFile {
        node,
        name: format!("telemetry.node-{node}.jsonl"),
        path: telemetry_of(dir, node),
    });
    (
        logs.filter(is_regular).collect(),
        samples.filter(is_regular).collect(),
    )
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
