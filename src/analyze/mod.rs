//! Traces → results, summaries and comparisons. Pure: no file, no clock, no environment.
//!
//! | file | from | to |
//! |---|---|---|
//! | `settings` | – | the one table of settings that are attested and contracted |
//! | `attest` | trace × job | did the run do what it was asked to? |
//! | `contract` | trace × job | the workload, as far as comparisons depend on it |
//! | `result` | trace × job × how the run ended | [`RunResult`], one repeat |
//! | `summary` | a cell's results | [`Summary`], the statistics over repeats |
//! | `compare` | the cells' summaries × [`Peaks`] | [`Comparison`] |
//! | `unified` | a cell's job and results | the JSON that is published |
mod attest;
mod compare;
mod contract;
mod flops;
mod peaks;
mod result;
mod settings;
mod stats;
mod summary;
mod unified;

pub use crate::plan::shape::count_parameters;
pub use attest::*;
pub use compare::*;
pub use contract::*;
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
