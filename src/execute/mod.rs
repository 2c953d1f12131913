//! DAG → outcomes: supervised runs, device ownership, progress.

pub mod container;
pub mod derived;
mod devices;
mod events;
mod interrupt;
mod launch;
mod looked;
mod preflight;
mod price;
mod process;
mod profile;
mod progress;
pub mod publish;
pub mod reading;
mod run;
mod schedule;
mod secrets;
mod supervisor;
mod sweep;
mod talk;
mod train;
mod watch;

pub use devices::Holder;
pub use events::{Bars, Event, JsonLines, Outcome, PlainLines, Reporter, Reporters};
pub use interrupt::{Interrupts, explain_cut_files, install_interrupt_handler};
pub use preflight::{Look, preflight, preflight_data};
pub use price::{ASSUMED_MFU, Basis, CellPrice, Prices, Runs};
pub use profile::{Profiler, profile};
pub use run::{ExitKind, RunExit, RunSpec, RunState, Running, SUPERVISE_ARGUMENT, start};
pub use schedule::{BuildOptions, BuildSummary, build, sweep_up};
pub use secrets::{Secrets, masked};
pub use supervisor::supervise;
pub use sweep::{Leftover, sweep};
pub use talk::Talk;
pub use train::{TrainHost, dropped_env, is_over, left_behind, live_run};
pub use watch::Watched;
