//! DAG → outcomes: supervised runs, device ownership, progress.

mod devices;
mod events;
mod interrupt;
mod process;
mod progress;
mod run;
mod supervisor;
mod sweep;

pub use devices::Holder;
pub use events::{Bars, Event, JsonLines, Outcome, PlainLines, Reporter, Reporters};
pub use interrupt::{Interrupts, install_interrupt_handler};
pub use progress::Tail;
pub use run::{ExitKind, RunExit, RunSpec, RunState, Running, SUPERVISE_ARGUMENT, start};
pub use supervisor::supervise;
pub use sweep::{Leftover, sweep};
