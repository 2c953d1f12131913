//! Results → summaries, comparisons and verdicts of gates. Pure: no file, no clock, no environment.
//!
//! | file | from | to |
//! |---|---|---|
//! | `steady` | a run's steps | its measured part, and where that begins |
//! | `windows` | a result | its step times, where only a progress bar counts seconds |
//! | `clock` | a result | do its step times fit the time that passed? |
//! | `interval/bootstrap` | rates of units | intervals without an assumption on their distribution |
//! | `interval` | rates of repeats, hosts, times | a rate with its interval; what is a unit of replication |
//! | `suspect` | samples × a result | was the run disturbed? |
//! | `telemetry` | a result with samples | power, energy, clocks of its measured part |
//! | `summary` | a cell's results | [`Summary`], the statistics over repeats |
//! | `not_counted` | measurements that do not count | what is disclosed of them |
//! | `summary/notes` | a summary | what a reader must know beside it |
//! | `note`, `codes` | – | what stands beside figures; codes of reasons by which something is decided |
//! | `environment` | what two cells ran in | how that differs, and what of it is dangerous |
//! | `unstated` | two contracts | what only one side states, or neither |
//! | `same_run` | two series of steps | are they one run, imported twice? |
//! | `comparability` | two summaries | may they stand side by side, and how do they differ? |
//! | `accelerators` | a device's name | what its maker says of it, from `accelerators.toml` |
//! | `peaks` | a device and a precision | its peak rate; MFU |
//! | `figure` | – | a figure, or the reason why it is not known |
//! | `metrics` | a summary × [`Catalogue`] | what follows from its rate: cost, efficiency, time |
//! | `compare` | the cells' summaries × [`Catalogue`] | [`Comparison`], the data of every output (`compare/data`) |
//! | `pairs` | runs of two cells | those that were made as pairs, and what is decided by them |
//! | `judged` | a [`Comparison`] | each pair of its cells that is judged, with one correction for all |
//! | `sweep` | a [`Comparison`] | cells over a numeric axis, and which value is the fastest |
//! | `sweep_document` | a [`Comparison`] | the same with its sweeps, as JSON has it |
//! | `history` | a cell's measurements over time | where its speed changed |
//! | `family` | the tests of one table | the tests without those that ask the same question again |
//! | `gate/baseline` | the cells at one time | [`Baseline`], what later gates hold cells against |
//! | `gate` | a [`Baseline`] × the cells now | [`GateReport`]: has anything become slower? |
//! | `blame` | measured arms between two configurations | which of their differences changed the speed |
//! | `breakdown` | a profiler's trace | where the time of a step goes |
//! | `unified` | a cell's job and results | the JSON that is published |

mod accelerators;
pub mod blame;
mod breakdown;
mod clock;
pub mod codes;
mod comparability;
mod compare;
mod environment;
mod family;
mod figure;
mod gate;
mod history;
mod interval;
mod judged;
mod metrics;
mod model_flops;
mod not_counted;
mod note;
mod otherwise;
mod pairs;
mod peaks;
mod same_losses;
mod same_run;
mod steady;
mod summary;
mod suspect;
mod sweep;
mod sweep_document;
mod telemetry;
mod unified;
mod unstated;
mod windows;

pub use accelerators::{
    Accelerator, Device, accelerator, accelerator_names, accelerators_like, device_vendor,
};
pub use breakdown::{Breakdown, KernelTime, PartTime, StepPart};

pub use clock::Clock;
pub use comparability::{is_crossed, not_identical, varied_for_losses};
pub(crate) use compare::mfu_of;
pub use compare::{
    AbsentCell, AbsentState, CellEnvironment, CellInput, CellState, CompareSettings, Comparison,
    Difference, EnvironmentDifference, EnvironmentKind, Group, RatioInterval, Row, Speedup,
    Standing, compare, framework_of, impossible, is_host, platform_of, rate_unit, rate_unit_of,
    unit_in_prose,
};
pub use environment::{ComparedEnvironment, SHARE, environment_words};
pub(crate) use environment::{environment_differences, warnings_of};
pub use figure::{Figure, Metric, Metrics};
pub use gate::{
    BASELINE_SCHEMA, Baseline, BaselineCell, GateCell, GateInput, GateReport, GateVerdict, gate,
};
pub use history::{
    CellHistory, ChangedSetting, FIRST_LEVEL, History, Level, Measurement, PastRun, Since,
    is_same_session,
};
pub use interval::{
    Estimate, IntervalKind, LEVEL_SD, Run, SESSION_GAP_SECONDS, Unit, all_hosts,
    bootstrap_interval, host_named,
};
pub use judged::Judged;
pub(crate) use metrics::metrics_of;
pub use metrics::{Catalogue, Price, Tdp, cost_ratio, memory_capacity_bytes};
pub use not_counted::{Dropped, dropped_words};
pub use note::{Note, NoteKind};
pub use pairs::{Decided, decided, usual_rounds};
pub use peaks::{Peak, PeakOverride, Peaks, mfu};
pub use same_run::repeated_runs;
pub use steady::{CrossCheck, Cut, DECLARED, LevelShift, Steady, WHOLE};
pub use summary::{
    Curve, Memory, RepeatStatus, RepeatSummary, Statistics, StepTime, Summary, UncountedRepeats,
    comes_again, failure_class, summarize, why_uncounted,
};
pub use suspect::{Signs, memory_of_others};
pub use sweep::{
    Best, Highest, LineBest, SameSetting, Surface, SurfacePair, Sweep, SweepPoint, sweeps,
    sweeps_unjudged, swept_groups,
};
pub use sweep_document::ComparisonDocument;
pub use telemetry::{Energy, Telemetry};
pub use unified::{UNIFIED_SCHEMA, unified};
pub use unstated::{CORE, Gaps, Stated, follows, unknown_differences};

use crate::results::Reason;

/// The sentences of reasons.
#[must_use]
pub fn texts(reasons: &[Reason]) -> Vec<&str> {
    reasons.iter().map(|reason| &*reason.text).collect()
}

/// `measured 30 days apart`; for cells of one session `measured one after the other, not in turns`.
#[must_use]
pub fn apart_words(seconds: f64) -> String {
    if seconds <= SESSION_GAP_SECONDS {
        return "measured one after the other, not in turns".to_owned();
    }
    let (n, unit) = hours_or_days(seconds);
    format!("measured {n:.0} {unit} apart")
}

/// How far the level of a cell may move from one time to another, in the words of a sentence.
#[must_use]
pub fn level_words() -> String {
    format!(
        "so the interval allows for {:.0} % (standard deviation) by which the speed of each may move with time",
        LEVEL_SD * 100.0
    )
}

/// `(8, "hours")`, `(30, "days")`
#[must_use]
pub fn hours_or_days(seconds: f64) -> (f64, &'static str) {
    let hours = seconds / 3600.0;
    if hours < 48.0 {
        (hours.round(), "hours")
    } else {
        ((hours / 24.0).round(), "days")
    }
}

#[cfg(test)]
#[path = "figures/stand_ins_for_tests.rs"]
mod stand_ins;
