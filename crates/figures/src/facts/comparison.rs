//! Facts of a comparison.

use serde::{Deserialize, Serialize};
use tprimat_job::FailureClass;
use tprimat_results::FieldDifference;

use super::{Fact, NoFigure};
use crate::{EnvironmentKind, Gaps, IntervalKind, Unit};

/// What is found where cells are compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonFact {
    NotCompared {
        with: String,
        fields: Vec<FieldDifference>,
    },
    Unlike {
        baseline: String,
        labels: Vec<Label>,
    },
    /// Settings that the log does not state, so that what the job asked for stands, or what an
    /// imported file's labels say.
    DeclaredOnly {
        fields: Vec<String>,
        is_imported: bool,
    },
    WorkloadGaps {
        baseline: String,
        gaps: Gaps,
    },
    ExecutionGaps {
        baseline: String,
        gaps: Gaps,
    },
    /// Settings that tprimat has no name for.
    UnlistedDiffer {
        baseline: String,
        settings: Vec<UnlistedDifference>,
    },
    SameLaunch {
        as_cell: String,
        measured: SameLaunch,
    },
    /// What `Standing::earlier` says.
    Earlier(String),
    Incomplete {
        measured: u32,
        wanted: u32,
    },
    Imported,
    FewCount {
        n: usize,
        wanted: u32,
    },
    WorkloadNotConfirmed,
    OtherWarmUp,
    MfuImpossible(NoFigure),
    /// Kinds and sources of memory figures, of each cell the first.
    MemoryOfSeveralKinds(Vec<(String, String)>),
    NoSuchBaseline {
        wanted: String,
    },
    /// How the intervals of rates are made, and of which hosts they speak, as far as these are
    /// named.
    Intervals {
        made: Vec<(IntervalKind, Unit)>,
        hosts: Vec<String>,
        all_are_hosts: bool,
    },
    Tested {
        comparisons: usize,
    },
    OtherLosses {
        baseline: String,
        fields: Vec<FieldDifference>,
    },
    OtherDevices {
        baseline: String,
    },
    RunWith(Vec<Warning>),
    Environment(EnvironmentSummary),
    /// The runs of this cell are those of another, imported twice.
    SameRuns {
        as_cell: String,
    },
    RateImpossible {
        baseline: String,
        why: ImpossibleRate,
    },
}

/// A setting that two logs state differently, or only one of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnlistedDifference {
    pub name: String,
    pub own: Option<serde_json::Value>,
    pub other: Option<serde_json::Value>,
}

/// What is known of two cells that launch the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SameLaunch {
    /// They have the same attempts.
    Once,
    Apart,
    NotYet,
}

/// The rate of a cell that cannot be what it seems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImpossibleRate {
    pub cell: String,
    pub reason: NoFigure,
}

/// In what else two cells ran differently, shortened for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentSummary {
    pub baseline: String,
    /// Dangerous ones first.
    pub shown: Vec<EnvironmentChange>,
    pub more: usize,
    /// Names of what differs because something else does, and what that is: `vendor`, `platform`,
    /// `framework`.
    pub following: Vec<String>,
    pub follows: Vec<String>,
}

/// A variable, version or fact that differs; `None`: a variable is not set there, anything else not
/// stated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentChange {
    pub kind: EnvironmentKind,
    pub name: String,
    pub a: Option<String>,
    pub b: Option<String>,
    pub dangerous: Option<Danger>,
}

/// Why there is no verdict, or not even an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum NoVerdict {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    SameMeasurements,
    SomeSameMeasurements {
        n: usize,
    },
    WorkloadsMayDiffer {
        fields: Vec<String>,
    },
    OneRepeat,
    NoVariation,
    OtherWarmUp,
    /// The clock shows step times of one of them to be too short, by up to this factor.
    ShortStepTimes {
        factor: f64,
    },
    FewUnits {
        n: usize,
        unit: Unit,
        least: usize,
    },
    /// Over time: repeats of each measurement.
    FewRepeats {
        least: usize,
    },
    /// Over time: another host or session, and a difference below this share.
    SmallBetweenSessions {
        share: f64,
    },
    OtherWork {
        fields: Vec<String>,
    },
    /// One of them has figures of an earlier configuration; what `Standing::earlier` says of it.
    OtherConfiguration {
        earlier: String,
    },
}

/// How a cell differs from its baseline; beside every figure that puts one next to the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Label {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    /// What `Standing::earlier` says of both; [`Self::Earlier`] is what it says of each.
    BothEarlier(String),
    Earlier(Vec<(String, String)>),
    Imported {
        cell: String,
    },
    WarmUp {
        is_crossed: bool,
        difference: WarmUpDifference,
    },
    Field {
        is_crossed: bool,
        difference: FieldDifference,
    },
}

impl Label {
    /// Is it a field that the user asked to compare across?
    #[must_use]
    pub fn is_crossed(&self) -> bool {
        match self {
            Self::WarmUp { is_crossed, .. } | Self::Field { is_crossed, .. } => *is_crossed,
            // All that a published file keeps.
            Self::Said(words) => words.starts_with("across "),
            Self::BothEarlier(_) | Self::Earlier(_) | Self::Imported { .. } => false,
        }
    }
}

/// Steps that two cells drop, and the rules by which; each only where it differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmUpDifference {
    pub steps: Option<[u64; 2]>,
    /// Values of `steady_state`.
    pub rules: Option<[String; 2]>,
}

/// A setting of a run's surroundings that alone can decide a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Danger {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    WaitsForKernels,
    Serialised,
    CollectivesLog,
    CollectivesChecked,
    WaitsForCollectives,
    NoDirectTransfers,
    DeterministicProducts,
    DeterministicAttention,
    DeterministicAlgorithms,
    MemoryNotCached,
    NotCompiled,
    RuntimeLogs,
    Profiled,
    OtherPowerLimit,
    OtherPartition,
    /// Only one side's runs may have run beside others on their host.
    SharedHost,
}

/// A danger in which a cell ran, whoever shares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Warning {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    Variable {
        name: String,
        value: String,
        danger: Danger,
    },
    Deterministic,
}

/// Why a cell has no figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum WhyAbsent {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    NoRepeat,
    Fact(Box<Fact>),
    /// What is so of some repeats, and how many others do not count for reasons of their own.
    FirstOf {
        fact: Box<Fact>,
        others: usize,
    },
    Failed {
        class: FailureClass,
        evidence: Option<String>,
    },
    /// The cell's state, in its own words.
    Stated(String),
}

/// What all cells of a group ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum GroupWorkload {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    /// Several values of one setting where cells differ in it.
    Settings {
        precision: Vec<String>,
        seq_length: Vec<String>,
        global_batch_size: Vec<String>,
        num_gpus: Vec<String>,
        data: Vec<String>,
        /// Fields that are compared across.
        across: Vec<String>,
    },
}

/// Cells of a strategy under which nothing may differ, whose jobs differ from the first one's in
/// the same settings.
#[derive(Clone, Debug, PartialEq)]
pub struct NotIdentical {
    pub strategy: &'static str,
    pub first: String,
    pub cells: Vec<String>,
    pub fields: Vec<FieldDifference>,
}
