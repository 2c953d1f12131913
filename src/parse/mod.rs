//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `analyze`.
mod automodel;
mod builder;
mod classify;
mod deepspeed;
mod deepspeed_config;
mod events;
mod format;
mod hf;
mod hf_fields;
mod hf_settings;
mod lines;
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

pub use builder::MAX_STEPS;
pub use classify::*;
pub use events::*;
pub use format::names;
pub use lines::MAX_LINE;
pub use parser::*;
pub use trace::*;
