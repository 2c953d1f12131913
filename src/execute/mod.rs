//! DAG → outcomes: what is stale is run, and what runs left becomes attempts and results.

mod contain;
pub mod derived;
mod error;
mod event_sink;
mod events;
mod folders;
mod follow;
pub mod history;
mod host;
mod imports;
mod ingest;
mod interrupt;
mod launch;
mod manifest;
mod preflight;
mod prepare_run;
mod price;
mod profile;
pub mod reading;
mod schedule;
mod see_through;
mod takeover;
mod train;

pub use contain::preflight_container;
pub use error::LaunchError;
pub use event_sink::EventSink;
pub use events::{
    Amount, CellCounts, Event, JsonLines, LiveLine, Outcome, PlainLines, Progress, Reporter,
    Stamped,
};
pub use folders::{
    Folders, environment_of, is_over, left_behind, live_run, live_run_of, live_runs, unasked,
};
pub use host::{Share, TrainHost};
pub use interrupt::{Interrupts, explain_cut_files, install_interrupt_handler};
pub use launch::{job_json, round_now};
pub use manifest::{Named, manifest};
pub use preflight::{ProbeDepth, preflight, preflight_command, preflight_data};
pub use prepare_run::{PROJECT_DIR, dropped_env};
pub use price::{ASSUMED_MFU, Basis, CellPrice, Prices, Runs, few_digits};
pub use profile::{Profiler, profile};
pub use schedule::{BuildOptions, BuildSummary, build};
pub use takeover::{sweep_profiles, sweep_up};
