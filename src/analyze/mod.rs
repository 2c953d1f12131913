//! Traces → results, summaries and comparisons. Pure: no file, no clock, no environment.
//!
//! | file | from | to |
//! |---|---|---|
//! | `settings` | – | the one table of settings that are attested and contracted |
//! | `claim` | – | what a run is said to be: a whole job, or the labels of an import |
//! | `attest` | trace × claim | did the run do what it was asked to? |
//! | `cross` | trace × claim | what the trainer's figures say of settings that it does not state |
//! | `anomalies` | trace | what a reader must know of the steps |
//! | `contract` | trace × claim | the workload, as far as comparisons depend on it |
//! | `result` | trace × claim × how the run ended | [`RunResult`], one repeat |
//! | `summary` | a cell's results | [`Summary`], the statistics over repeats |
//! | `compare` | the cells' summaries × [`Peaks`] | [`Comparison`] |
//! | `unified` | a cell's job and results | the JSON that is published |
mod anomalies;
mod attest;
mod claim;
mod compare;
mod contract;
mod conventions;
mod cross;
mod flops;
mod notes;
mod peaks;
mod result;
mod schedule;
mod settings;
mod stats;
mod summary;
mod unified;

pub use crate::plan::shape::count_parameters;
pub use anomalies::*;
pub use attest::*;
pub use claim::*;
pub use compare::*;
pub use contract::*;
pub use conventions::*;
pub use cross::{PUBLISHED_RATE, PUBLISHED_STEP_TIME};
pub use flops::*;
pub use peaks::*;
pub use result::*;
pub use settings::{Tier, fields, known_field};
pub use stats::*;
pub use summary::*;
pub use unified::*;

/// Stand-ins that other stages' tests build their comparisons from.
#[cfg(test)]
pub(crate) mod tests {
    pub use super::{
        attest::tests::job as test_job,
        compare::tests::{cell, measured, measured_steps},
    };
}
