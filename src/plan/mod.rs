//! cells × recipes × config × lock → jobs: what each cell would run, or why it cannot.
mod bare;
mod data;
mod facts;
pub mod fit;
mod inputs;
mod prepare;
mod resolve;

pub use data::{DataFile, DataKind};
pub use facts::{FactBook, PlatformFacts, seconds};
pub use prepare::{CellPlan, Plan, PlanRequest, Prepared, Support, load_config, look_at_config};
pub use resolve::{Resolved, Unresolved, model_shape, resolve};
pub use tprimat_job::*;
