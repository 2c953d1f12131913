//! Results → summaries, comparisons and verdicts of gates. Pure: no file, no clock, no environment.
//!
//! | file | from | to |
//! |---|---|---|
//! | `steady` | a run's steps | its measured part, and where that begins |
//! | `clock` | a result | do its step times fit the time that passed? |
//! | `bootstrap` | rates of units | intervals without an assumption on their distribution |
//! | `interval` | rates of repeats, hosts, times | a rate with its interval; what is a unit of replication |
//! | `suspect` | samples × a result | was the run disturbed? |
//! | `telemetry` | a result with samples | power, energy, clocks of its measured part |
//! | `summary` | a cell's results | [`Summary`], the statistics over repeats |
//! | `not_counted` | measurements that do not count | what is disclosed of them |
//! | `summary/notes` | a summary | what a reader must know beside it |
//! | `facts` | – | what all of these find out, as values: sentences are `tprimat-sentences`' |
//! | `environment` | what two cells ran in | how that differs, and what of it is dangerous |
//! | `unstated` | two contracts | what only one side states, or neither |
//! | `same_run` | two series of steps | are they one run, imported twice? |
//! | `guard` | two summaries | may they stand side by side, and how do they differ? |
//! | `accelerators` | a device's name | what its maker says of it, from `accelerators.toml` |
//! | `peaks` | a device and a precision | its peak rate; MFU |
//! | `figure` | – | a figure, or the reason why it is not known |
//! | `metrics` | a summary × [`Catalogue`] | what follows from its rate: cost, efficiency, time |
//! | `compare` | the cells' summaries × [`Catalogue`] | [`Comparison`], the data of every output (`compare/data`) |
//! | `sweep` | a [`Comparison`] | cells over a numeric axis, and which value is the fastest |
//! | `sweep_document` | a sweep | the same for `compare --json` |
//! | `history` | a cell's measurements over time | where its speed changed |
//! | `gate/baseline` | the cells at one time | [`Baseline`], what later gates hold cells against |
//! | `gate` | a [`Baseline`] × the cells now | [`GateReport`]: has anything become slower? |
//! | `unified` | a cell's job and results | the JSON that is published |
// A byte position in foreign text may lie within a character: `tprimat_words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

mod accelerators;
mod bootstrap;
mod clock;
mod compare;
mod environment;
mod facts;
mod figure;
mod gate;
mod guard;
mod history;
mod interval;
mod metrics;
mod not_counted;
mod peaks;
mod same_run;
mod steady;
mod summary;
mod suspect;
mod sweep;
mod sweep_document;
mod telemetry;
mod unified;
mod unstated;

pub use accelerators::*;
pub use bootstrap::*;
pub use clock::Clock;
pub use compare::*;
pub use environment::*;
pub use facts::*;
pub use figure::*;
pub use gate::*;
pub use guard::not_identical;
pub use history::*;
pub use interval::*;
pub use metrics::*;
pub use not_counted::*;
pub use peaks::*;
pub use same_run::repeated_runs;
pub use steady::*;
pub use summary::*;
pub use suspect::*;
pub use sweep::*;
pub use sweep_document::*;
pub use telemetry::*;
pub use unified::*;
pub use unstated::*;

#[cfg(test)]
#[path = "../../results/src/stand_ins_for_tests.rs"]
mod run_stand_ins;
#[cfg(test)]
#[path = "sentences_for_tests.rs"]
mod sentences;
#[cfg(test)]
#[path = "stand_ins_for_tests.rs"]
mod stand_ins;
#[cfg(test)]
use crate as figures;
#[cfg(test)]
use tprimat_results as results;
