//! What finished runs are worth: [`results`] holds one log against its job, [`figures`] makes
//! summaries, comparisons and verdicts of results. Pure: no file, no clock, no environment.
// A byte position in foreign text may lie within a character: `tprimat_base::words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

pub mod figures;
pub mod results;
#[cfg(test)]
#[path = "results/stand_ins_for_tests.rs"]
mod run_stand_ins;
