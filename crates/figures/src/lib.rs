//! Traces → results, summaries and comparisons. Pure: no file, no clock, no environment.
//!
//! | file | from | to |
//! |---|---|---|
//! | `steady` | a run's steps | its measured part, and where that begins |
//! | `clock` | a result | do its step times fit the time that passed? |
//! | `stats`, `bootstrap` | rates of units | intervals and tests |
//! | `units` | rates of repeats, hosts, times | what is a unit of replication |
//! | `suspect` | samples × a result | was the run disturbed? |
//! | `telemetry` | a result with samples | power, energy, clocks of its measured part |
//! | `summary` | a cell's results | [`Summary`], the statistics over repeats |
//! | `dropped` | measurements that do not count | what is disclosed of them |
//! | `note` | – | a sentence beside the figures, with its sort |
//! | `environment` | what two cells ran in | how that differs, and what of it is dangerous |
//! | `gaps` | two contracts | what only one side states, or neither |
//! | `same_run` | two series of steps | are they one run, imported twice? |
//! | `guard` | two summaries | may they stand side by side, and how do they differ? |
//! | `accelerators` | a device's name | what its maker says of it, from `accelerators.toml` |
//! | `metrics` | a summary × [`Catalogue`] | what follows from its rate: cost, efficiency, time |
//! | `compare` | the cells' summaries × [`Catalogue`] | [`Comparison`], the data of every output (`comparison`) |
//! | `history` | a cell's measurements over time | where its speed changed |
//! | `gate` | a [`Baseline`] × the cells now | [`GateReport`]: has anything become slower? |
//! | `unified` | a cell's job and results | the JSON that is published |
mod accelerators;
mod bootstrap;
mod clock;
mod compare;
mod comparison;
mod dropped;
mod environment;
mod figure;
mod gaps;
mod gate;
mod guard;
mod history;
mod metrics;
mod note;
mod notes;
mod peaks;
mod same_run;
mod steady;
mod summary;
mod suspect;
mod telemetry;
mod unified;
mod units;

pub use accelerators::*;
pub use bootstrap::*;
pub use clock::Clock;
pub use compare::*;
pub use comparison::*;
pub use dropped::*;
pub use environment::*;
pub use figure::*;
pub use gaps::*;
pub use gate::*;
pub use guard::not_identical;
pub use history::*;
pub use metrics::*;
pub use note::*;
pub use peaks::*;
pub use same_run::repeated_runs;
pub use steady::*;
pub use summary::*;
pub use suspect::*;
pub use telemetry::*;
pub use tprimat_results::*;
pub use unified::*;
pub use units::*;

#[cfg(test)]
#[path = "../../results/src/stand_ins.rs"]
mod run_stand_ins;
#[cfg(test)]
mod stand_ins;
#[cfg(test)]
use crate as figures;
#[cfg(test)]
use tprimat_results as results;
