//! cells × recipes × config × lock → jobs: what each cell would run, or why it cannot.
mod command_files;
mod data;
pub mod execution;
mod facts;
pub mod fit;
mod inputs;
pub mod preimage;
mod prepare;
mod resolve;
mod without_matrix;

pub use data::{DataFile, DataKind};
pub use execution::{Container, Execution, Place, Slurm};
pub use facts::{FactBook, Image, PlatformFacts, seconds};
pub use inputs::{Input, Inputs};
pub(crate) use prepare::same_file;
pub use prepare::{CellPlan, Plan, PlanRequest, Prepared, Support, load_config, look_at_config};
pub use resolve::{Resolved, Unresolved, model_shape, resolve};
