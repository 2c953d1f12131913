//! One run: `tprimat __run DIR` beside its trainer, on this host, in a container, in a batch job or on
//! each of its nodes. docs/design/run.md says who may die when, and what happens then.
//!
//! | module | |
//! |---|---|
//! | `spec` | what a run needs, what it is doing, how it ended |
//! | `folder` | the files of a run's folder, its locks |
//! | `local`, `batch`, `nodes` | starts a run somewhere, and waits for its end (`executor`) |
//! | `system`, `slurm`, `kubernetes` | what a batch system is, and the two |
//! | `serve`, `supervisor` | the process beside the trainer; `inbox` is what reaches it |
//! | `process` | which processes are whose, and how all of them are ended |
//! | `contained`, `container` | a run's container, and the flags that it needs |
//! | `recover` | what earlier builds left: swept, or taken up |

pub(crate) mod batch;
pub(crate) mod contained;
pub mod container;
pub(crate) mod devices;
pub(crate) mod end_note;
pub(crate) mod executor;
pub(crate) mod folder;
pub(crate) mod hang;
mod inbox;
pub(crate) mod kubernetes;
pub(crate) mod leftovers;
pub(crate) mod local;
mod log_times;
pub(crate) mod nodes;
pub(crate) mod process;
pub(crate) mod recover;
mod serve;
pub(crate) mod slurm;
pub(crate) mod spec;
mod supervisor;
mod system;
pub(crate) mod watched_inputs;

pub use batch::{Systems, is_of_a_job};
pub use devices::{Holder, device_holder};
pub use executor::{End, Interrupted, Run};
pub use kubernetes::Kubernetes;
pub use leftovers::{GpuHolder, ProcessOwner, end_leftovers, gpu_holders, gpu_processes};
pub use local::{Running, start};
pub use process::{RUN_ID_VARIABLE, process_start};
pub use recover::{Leftover, Swept, sweep};
pub use serve::supervise;
pub use slurm::Slurm;
pub use spec::{
    ContainerSpec, ExitKind, Gpu, Hang, JobSpec, RUN_ARGUMENT, RunExit, RunSpec, RunState,
    TELEMETRY, Target, attempt_id, hostname,
};
pub use watched_inputs::Watched;
