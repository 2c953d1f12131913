//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `analyze`.
mod arguments;
mod builder;
mod causes;
mod classify;
mod events;
mod format;
mod iteration;
mod launcher;
mod lines;
mod loose;
mod megatron;
mod nemo;
mod nemo_bars;
mod nemo_settings;
mod parser;
mod titan_settings;
mod torchtitan;
mod tprimat;
mod tqdm;
mod trace;
mod values;
mod words;

pub use builder::MAX_STEPS;
pub use classify::*;
pub use events::*;
pub use format::names;
pub use lines::MAX_LINE;
pub use parser::*;
pub use trace::*;
