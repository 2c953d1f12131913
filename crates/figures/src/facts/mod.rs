//! What is found out, as values with the numbers in them. No English: `tprimat-sentences` says each
//! of them, in a file of the same name, so that a reworded sentence makes no figure stale.
//!
//! | file | facts |
//! |---|---|
//! | `note` | what stands beside figures: a [`Fact`] with its sort and its cell |
//! | `run` | why a run has no rate, no telemetry, no energy; what is to be known of a cell's runs |
//! | `comparison` | how cells differ, why there is no verdict, what a comparison rests on |
//! | `metric` | what a figure is made of, or why there is none |
//! | `gate` | what a gate finds |
//!
//! Values are kept as JSON by name (`{"few_units": {"n": 2, …}}`) between tasks. What is published
//! has the sentence in their place, so that other tools need no table ([`in_words`]); read again,
//! such a file gives `Said`.

mod comparison;
mod gate;
mod metric;
mod note;
mod run;

pub use comparison::{
    ComparisonFact, Danger, EnvironmentChange, EnvironmentSummary, GroupWorkload, ImpossibleRate,
    Label, NoVerdict, NotIdentical, SameLaunch, UnlistedDifference, WarmUpDifference, Warning,
    WhyAbsent,
};
pub use gate::{BaselineFault, Change, GateNote, GateReason, Needed, When};
pub use metric::{Basis, CpuHasNo, MemoryUse, NoFigure};
pub use note::{Fact, Note, NoteKind};
pub use run::{
    Contradiction, DeviceSet, Disturbance, LogAnomaly, NoEnergy, NoRate, NoTelemetry, NotAssessed,
    NotCounted, OutsideSteps, RunFact, Unchecked, WhoseClock,
};
use tprimat_results::facts::any_number;

tprimat_results::facts! {
    AnyFact:
    Fact NoRate NotAssessed NoTelemetry NoEnergy Unchecked
    NoVerdict Label Danger Warning WhyAbsent GroupWorkload
    Basis NoFigure
    GateReason GateNote
}
