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
//! srun's standard input goes to every node: first the run's environment, then, once all nodes are
//! ready, where they meet; its end ends the run. Each node answers in its folder: `ready.json`, then
//! `exit.json`.

mod conductor;
mod node;

pub(crate) use conductor::conduct;
pub(crate) use node::{NODE, NodeFile, files_of, supervise};
