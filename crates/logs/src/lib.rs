//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `analyze`.
mod arguments;
mod automodel;
mod builder;
mod causes;
mod classify;
mod composer;
mod deepspeed;
mod deepspeed_config;
mod events;
mod format;
mod hf;
mod hf_bars;
mod hf_fields;
mod hf_ranks;
mod hf_settings;
mod hf_table;
mod iteration;
mod launcher;
mod lines;
mod llama_recipes;
mod llmc;
mod loose;
mod maxtext;
mod megatron;
mod mlperf;
mod nanogpt;
mod nemo;
mod nemo_bars;
mod nemo_settings;
mod numbers;
mod parser;
mod patterns;
mod tail;
mod telemetry;
#[cfg(test)]
mod testing;
mod tfevents;
mod titan_settings;
mod torchtitan;
mod tprimat;
mod tqdm;
mod trace;
mod values;
mod words;

pub use classify::*;
pub use events::*;
pub use format::names;
pub use parser::*;
pub use patterns::PatternError;
pub use tail::tail;
pub use tfevents::{TfEvents, tfevents};
pub use tprimat_job::FailureClass;
pub use trace::*;
