//! What one log says, held against its job: trace × claim → [`RunResult`]. Pure: no file, no clock, no environment.
//!
//! The parse task calls this and what it is built on, and nothing else: a change of statistics, comparisons or sentences asks
//! for no log that may be gone.
//!
//! | file | from | to |
//! |---|---|---|
//! | `shared` | – | values that most cells have alike, kept once |
//! | `settings` | – | the one table of settings that are attested and contracted |
//! | `claim` | – | what a run is said to be: a whole job, or the labels of an import |
//! | `attest` | trace × claim | did the run do what it was asked to? |
//! | `cross` | trace × claim | what the trainer's figures say of settings that it does not state |
//! | `anomalies` | trace | what a reader must know of the steps |
//! | `contract` | trace × claim | the workload, as far as comparisons depend on it |
//! | `result` | trace × claim × how the run ended | [`RunResult`], one repeat |
//! | `left` | what an attempt left | [`RunResult`]: the parse task |
//! | `changes` | a series of step times | where its level changes |
//! | `samples` | `telemetry.jsonl` | what a result keeps of the samples beside its run |
pub mod anomalies;
pub mod attest;
pub mod changes;
mod claim;
pub mod contract;
mod conventions;
pub mod cross;
pub mod flops;
mod left;
mod result;
pub mod samples;
mod schedule;
pub mod settings;
mod shared;
pub mod stats;

pub use anomalies::*;
pub use attest::*;
pub use changes::*;
pub use claim::*;
pub use contract::*;
pub use cross::{PUBLISHED_RATE, PUBLISHED_STEP_TIME};
pub use flops::*;
pub use left::Left;
pub use result::*;
pub use samples::*;
pub use settings::{DATASET_DIGEST, TOKENIZER_DIGEST, Tier, fields, known_field};
pub use shared::*;
pub use stats::*;
pub use tprimat_job::count_parameters;

#[cfg(test)]
use crate as results;
#[cfg(test)]
mod stand_ins;
