//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `tprimat-numbers`.
// A byte position in foreign text may lie within a character: `tprimat_base::words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

mod arguments;
mod builder;
mod causes;
mod classify;
mod compile;
mod composer;
mod dates;
mod deepspeed;
mod dump;
mod encoding;
mod engine;
mod events;
mod fields;
mod format;
mod hf;
mod kernel_table;
mod kineto;
mod launcher;
mod lines;
mod megatron;
mod megatron_line;
mod mlperf;
mod nemo;
mod nemo_bars;
mod numbers;
mod parser;
mod pattern;
mod places;
mod process;
mod step_time_lines;
mod suggest;
mod table;
mod tail;
mod telemetry;
#[cfg(test)]
#[path = "shared_by_tests.rs"]
mod testing;
#[cfg(test)]
mod tests {
    mod automodel;
    mod llama_recipes;
    mod llmc;
    mod maxtext;
    mod nanogpt;
    mod regex;
    mod tables;
}
mod tfevents;
mod torchtitan;
mod tprimat;
mod tqdm;
mod trace;
mod values;
mod wandb;
mod wild;

pub use builder::ARGUMENTS;
pub use causes::{same_failure, same_fault};
pub use classify::{ExitSummary, classify};
pub use compile::PatternError;
pub use events::{Event, events_schema};
pub use fields::TOTAL_RATE;
pub use format::names;
pub use kineto::{DeviceSpan, DeviceTrace, device_trace};
pub use numbers::GIB;
pub use parser::{Dated, Live, NEXT_RANK, Parser, parse, parse_any, parse_dated};
pub use suggest::{Suggestion, suggest};
pub use table::LogSection;
pub use tail::tail;
pub use tfevents::{TfEvents, tfevents};
pub use tprimat_job::FailureClass;
pub use trace::{
    ABSURD_STEP_TIME, Anomaly, CoarseClock, DeviceLine, Effective, Evaluation, Failure,
    LOSS_STEPS_AVERAGED, MAX_REPORTS, MEAN_BATCH, MemoryFigure, MemoryReport, PARTIAL_BATCHES,
    Process, RESTART, RunningAverage, SECOND_RUN, Step, TelemetrySample, Trace, UNREADABLE,
    UnreadableLines, WHOLE_RUN,
};
