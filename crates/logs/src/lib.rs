//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `tprimat-results` and `tprimat-figures`.
// A byte position in foreign text may lie within a character: `tprimat_words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

mod arguments;
mod automodel;
mod builder;
mod causes;
mod classify;
mod composer;
mod deepspeed;
mod deepspeed_config;
mod events;
mod fields;
mod format;
mod hf;
mod launcher;
mod lines;
mod llama_recipes;
mod llmc;
mod maxtext;
mod megatron;
mod megatron_line;
mod mlperf;
mod nanogpt;
mod nemo;
mod nemo_bars;
mod nemo_settings;
mod numbers;
mod parser;
mod pattern;
mod regex_format;
mod step_time_lines;
mod tail;
mod telemetry;
#[cfg(test)]
#[path = "shared_by_tests.rs"]
mod testing;
mod tfevents;
mod titan_settings;
mod torchtitan;
mod tprimat;
mod tqdm;
mod trace;
mod values;

pub use causes::same_failure;
pub use classify::{ExitSummary, classify};
pub use events::{Event, events_schema};
pub use format::names;
pub use numbers::GIB;
pub use parser::{Live, LogSection, Parser, parse, parse_any, parse_dated};
pub use regex_format::PatternError;
pub use tail::tail;
pub use tfevents::{Scalar, TfEvents, event_file, tfevents};
pub use tprimat_job::FailureClass;
pub use trace::{
    ABSURD_STEP_TIME, Anomaly, DeviceLine, Effective, Evaluation, Failure, MAX_REPORTS,
    MemoryFigure, MemoryReport, RunningAverage, Step, TelemetrySample, Trace, UNREADABLE,
    UnreadableLines,
};
