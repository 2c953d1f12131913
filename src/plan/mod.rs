//! cells × recipes × config × lock → jobs: what each cell would run, or why it cannot.
mod command;
mod command_words;
mod compare_config;
mod data;
pub mod execution;
mod facts;
pub mod fit;
mod inputs;
mod load;
mod lookup;
pub mod preimage;
mod prepare;
mod read_config;
mod resolve;
mod without_matrix;
pub use without_matrix::starter_config;

pub use command::{Asked, command_line};
pub use compare_config::{CompareConfig, catalogue};
pub use data::{DataFile, DataKind};
pub use execution::{Container, Execution, Kubernetes, Place, Slurm, Volume};
pub use facts::{CommandPython, FactBook, Image, PlatformFacts};
pub use inputs::{Input, InputOrigin, Inputs, UNWATCHED};
pub(crate) use load::same_file;
pub use load::{Plan, PlanRequest};
pub use prepare::{CellPlan, Prepared, Support};
pub use read_config::{load_config, look_at_config};
pub use resolve::{CellProblem, Resolved, Unresolved, model_shape, resolve};
