//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `analyze`.
mod builder;
mod classify;
mod events;
mod format;
mod lines;
mod parser;
mod tprimat;
mod trace;

pub use builder::MAX_STEPS;
pub use classify::*;
pub use events::*;
pub use format::names;
pub use lines::MAX_LINE;
pub use parser::*;
pub use trace::*;
