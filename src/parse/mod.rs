//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `analyze`.
mod builder;
mod classify;
mod composer;
mod events;
mod format;
mod lines;
mod llama_recipes;
mod llmc;
mod maxtext;
mod mlperf;
mod nanogpt;
mod numbers;
mod parser;
mod patterns;
mod telemetry;
#[cfg(test)]
mod testing;
mod tfevents;
mod tprimat;
mod trace;

pub use builder::MAX_STEPS;
pub use classify::*;
pub use events::*;
pub use format::names;
pub use lines::MAX_LINE;
pub use parser::*;
pub use patterns::PatternError;
pub use tfevents::{TfEvents, tfevents};
pub use trace::*;
