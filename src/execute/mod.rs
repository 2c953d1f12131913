//! DAG → outcomes: supervised runs, device ownership, progress.

pub mod container;
mod container_run;
pub mod derived;
mod devices;
mod end_note;
mod error;
mod event_sink;
mod events;
mod executor;
mod follow;
mod fork_server;
mod guard;
mod hang;
pub mod history;
mod image_contents;
mod imports;
mod inbox;
mod ingest;
mod input_watch;
mod interrupt;
mod launch;
mod leftovers;
mod lifeline;
mod log_times;
mod nodes;
mod preflight;
mod prepare_run;
mod price;
mod process;
mod process_title;
mod profile;
mod progress;
pub mod reading;
mod recover_runs;
mod run;
mod schedule;
mod secrets;
mod slurm;
mod supervisor;
mod supervisor_process;
mod takeover;
mod train;
mod train_work;
mod watched_inputs;

pub use container_run::{ContainerSpec, preflight_container};
pub use devices::{Holder, device_holder};
pub use error::{IngestError, LaunchError};
pub use event_sink::EventSink;
pub use events::{
    Amount, Bars, CellCounts, Event, JsonLines, Outcome, PlainLines, Progress, Reporter, Stamped,
};
pub use executor::{End, Executor, Run};
pub use fork_server::{ForkServer, SUPERVISORS_ARGUMENT, fork_supervisors};
pub use hang::Hang;
pub use interrupt::{Interrupts, explain_cut_files, install_interrupt_handler};
pub use launch::job_json;
pub use leftovers::{
    END_ARGUMENT, GpuHolder, ProcessOwner, end_leftovers, end_processes, gpu_holders, gpu_processes,
};
pub use nodes::{NODE_ARGUMENT, supervise_node};
pub use preflight::{ProbeDepth, preflight, preflight_command, preflight_data};
pub use prepare_run::dropped_env;
pub use price::{ASSUMED_MFU, Basis, CellPrice, Prices, Runs, few_digits};
pub use process::process_start;
pub use profile::{Profiler, profile};
pub use progress::Growing;
pub use recover_runs::{Leftover, Swept, sweep};
pub use run::{
    ExitKind, RunExit, RunSpec, RunState, Running, SUPERVISE_ARGUMENT, TELEMETRY, Verbatim,
    hostname, start,
};
pub use schedule::{BuildOptions, BuildSummary, build};
pub use secrets::{Secrets, masked};
pub use slurm::{Commands, JOB_ARGUMENT, JobSpec, is_of_a_job};
pub use supervisor::supervise_job;
pub use takeover::{
    Folders, environment_of, is_over, left_behind, live_run, live_run_of, live_runs,
    sweep_profiles, sweep_up,
};
pub use train::{Gpu, Share, TrainHost};
pub use watched_inputs::Watched;
