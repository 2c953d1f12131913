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
//! | `changes` | a series of step times | where its level changes |
//! | `steady` | a run's steps | its measured part, and where that begins |
//! | `clock` | a result | do its step times fit the time that passed? |
//! | `stats`, `bootstrap` | rates of units | intervals and tests |
//! | `units` | rates of repeats, hosts, times | what is a unit of replication |
//! | `samples` | `telemetry.jsonl` | what a result keeps of the samples beside its run |
//! | `suspect` | samples × a result | was the run disturbed? |
//! | `telemetry` | a result with samples | power, energy, clocks of its measured part |
//! | `summary` | a cell's results | [`Summary`], the statistics over repeats |
//! | `dropped` | measurements that do not count | what is disclosed of them |
//! | `note` | – | a sentence beside the figures, with its sort |
//! | `environment` | what two cells ran in | how that differs, and what of it is dangerous |
//! | `gaps` | two contracts | what only one side states, or neither |
//! | `shared` | – | values that most cells have alike, kept once |
//! | `same_run` | two series of steps | are they one run, imported twice? |
//! | `guard` | two summaries | may they stand side by side, and how do they differ? |
//! | `accelerators` | a device's name | what its maker says of it, from `accelerators.toml` |
//! | `metrics` | a summary × [`Catalogue`] | what follows from its rate: cost, efficiency, time |
//! | `compare` | the cells' summaries × [`Catalogue`] | [`Comparison`], the data of every output (`comparison`) |
//! | `gate` | a [`Baseline`] × the cells now | [`GateReport`]: has anything become slower? |
//! | `unified` | a cell's job and results | the JSON that is published |
mod accelerators;
mod anomalies;
mod attest;
mod bootstrap;
mod changes;
mod claim;
mod clock;
mod compare;
mod comparison;
mod contract;
mod conventions;
mod cross;
mod dropped;
mod environment;
mod figure;
mod flops;
mod gaps;
mod gate;
mod guard;
mod metrics;
mod note;
mod notes;
mod peaks;
mod result;
mod same_run;
mod samples;
mod schedule;
mod settings;
mod shared;
mod stats;
mod steady;
mod summary;
mod suspect;
mod telemetry;
mod unified;
mod units;

pub use accelerators::*;
pub use anomalies::*;
pub use attest::*;
pub use bootstrap::*;
pub use changes::*;
pub use claim::*;
pub use clock::Clock;
pub use compare::*;
pub use comparison::*;
pub use contract::*;
pub use cross::{PUBLISHED_RATE, PUBLISHED_STEP_TIME};
pub use dropped::*;
pub use environment::*;
pub use figure::*;
pub use flops::*;
pub use gaps::*;
pub use gate::*;
pub use guard::not_identical;
pub use metrics::*;
pub use note::*;
pub use peaks::*;
pub use result::*;
pub use same_run::repeated_runs;
pub use samples::*;
pub use settings::{DATASET_DIGEST, TOKENIZER_DIGEST, Tier, fields, known_field};
pub use shared::*;
pub use stats::*;
pub use steady::*;
pub use summary::*;
pub use suspect::*;
pub use telemetry::*;
pub use tprimat_job::count_parameters;
pub use unified::*;
pub use units::*;

#[cfg(test)]
use crate as figures;
#[cfg(test)]
mod stand_ins;
