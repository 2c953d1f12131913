//! One run on several nodes, of a Slurm job or allocation or of the pods of as many Jobs: a supervisor on
//! each, and one process that conducts them.
//!
//! ```text
//! conductor ── srun ──┬── supervisor of node 0 ── trainer (its log is the run's)
//!   (this half)       └── supervisor of node 1 ── trainer   (that half)
//! ```
//!
//! Node 0 has rank 0, or the last rank where that is the one that prints the steps (`nodes =
//! "last"` in a recipe); the nodes meet at the one that has rank 0.
//!
//! srun's standard input goes to every node: first the run's environment, then, once all nodes are
//! ready, where they meet; its end ends the run. In Kubernetes the conductor is in the pod of node 0, and
//! the other pods connect to it (`lifelines`). Each node answers in its folder: `ready.json`, then
//! `exit.json`.

mod conductor;
mod lifelines;
mod node;

pub(crate) use conductor::conduct;
pub(crate) use lifelines::supervise_pod;
pub(crate) use node::{NODE, NodeFile, files_of, number, supervise};
