//! Facts of runs, and of a cell's runs together.

use serde::{Deserialize, Serialize};
use tprimat_job::FailureClass;
use tprimat_results::{
    FieldAttestation, FieldDifference, NoSamples, Oddity, StepTimeSource, Withheld,
};

use crate::Unit;

/// Why a run has no rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum NoRate {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    /// The run's result says so itself.
    Stated(Withheld),
    /// The log's own line on a time in the measured part.
    AbsurdTime(String),
    /// These two repeats, the first of the cell that do, did work that differs in these fields.
    OtherWorkloads {
        repeats: [u32; 2],
        fields: Vec<FieldDifference>,
    },
    TokensNotKnown,
    DevicesNotKnown,
    /// Typical step times in seconds, in two groups that no run has in one unit.
    MixedUnits {
        #[serde(with = "super::any_number")]
        low: f64,
        #[serde(with = "super::any_number")]
        high: f64,
    },
    BeyondComputing,
    /// `seconds` as text, for it may be no number, and a NaN is not even itself.
    BadTime {
        step: u64,
        seconds: String,
    },
    NoStep,
    NoStepIsTimed {
        steps: usize,
    },
    AllWithinWarmUp {
        timed: usize,
        warmup_steps: u64,
    },
    /// Seconds.
    LongerThanRun {
        #[serde(with = "super::any_number")]
        claimed: f64,
        #[serde(with = "super::any_number")]
        run: f64,
    },
    ShorterThanAMicrosecond {
        #[serde(with = "super::any_number")]
        seconds: f64,
    },
    /// Seconds.
    LongerThanPassed {
        #[serde(with = "super::any_number")]
        claimed: f64,
        #[serde(with = "super::any_number")]
        passed: f64,
        clock: WhoseClock,
    },
    /// Seconds that all steps would take if they were as those that the log shows.
    SlowStepsShownMoreOften {
        #[serde(with = "super::any_number")]
        claimed: f64,
        #[serde(with = "super::any_number")]
        passed: f64,
        clock: WhoseClock,
    },
    /// The same, where it is so of the typical line already: the log shows every so-many-th step,
    /// and its times seem to be those of that many steps.
    TimesOfSeveralSteps {
        every: u64,
        #[serde(with = "super::any_number")]
        claimed: f64,
        #[serde(with = "super::any_number")]
        passed: f64,
        clock: WhoseClock,
    },
    /// Seconds a step.
    TimerStopsEarly {
        #[serde(with = "super::any_number")]
        claimed: f64,
        #[serde(with = "super::any_number")]
        passed: f64,
        /// By tprimat's looks at the log, not by the trainer's own dates.
        by_lines: bool,
    },
}

/// By which clock time passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhoseClock {
    /// The dates that the trainer gives its steps.
    #[default]
    Trainer,
    /// When tprimat saw the lines of the log.
    Lines,
    /// From the start of the run to its end.
    Run,
}

/// Why steady state was not assessed: what a run must have after its declared warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum NotAssessed {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    FewSteps {
        least: u64,
    },
    FewTimes {
        least: usize,
    },
    FewSeconds {
        #[serde(with = "super::any_number")]
        least: f64,
    },
}

/// Why nothing is said of what was sampled beside a run.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum NoTelemetry {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    NotSampled(NoSamples),
    NoStepIsMeasured,
    EndsNotKnown,
    /// Seconds, by the steps' times and by the clock.
    ClockDisagrees {
        #[serde(with = "super::any_number")]
        measured: f64,
        #[serde(with = "super::any_number")]
        passed: f64,
    },
}

/// Why there is no energy of the measured part. All in seconds.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum NoEnergy {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    TooShort {
        #[serde(with = "super::any_number")]
        seconds: f64,
        #[serde(with = "super::any_number")]
        interval: f64,
    },
    NoSample,
    NoSampleAtTheBeginning {
        #[serde(with = "super::any_number")]
        seconds: f64,
    },
    NoSampleAtTheEnd {
        #[serde(with = "super::any_number")]
        seconds: f64,
    },
    /// Samples of a long run are kept in sums.
    SumsTooLong {
        #[serde(with = "super::any_number")]
        seconds: f64,
        #[serde(with = "super::any_number")]
        sums_over: f64,
    },
    GapAtAnEnd {
        #[serde(with = "super::any_number")]
        seconds: f64,
    },
    NotOfEveryDevice,
}

/// What a reader must know of a cell's runs. `repeats` are their numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunFact {
    NotCounted {
        repeats: Vec<u32>,
        why: NotCounted,
    },
    /// The trainer's own rate ÷ ours.
    TrainersRateDiffers {
        repeat: u32,
        #[serde(with = "super::any_number")]
        ratio: f64,
    },
    /// tokens/s/GPU with and without the steps that were found to be warm-up.
    MoreWarmUp {
        repeat: u32,
        steps: u64,
        method: String,
        first_step: u64,
        #[serde(with = "super::any_number")]
        rate: f64,
        #[serde(with = "super::any_number")]
        with_them: f64,
    },
    /// Median step time from this step on ÷ before.
    LevelShift {
        repeat: u32,
        step: u64,
        #[serde(with = "super::any_number")]
        ratio: f64,
    },
    TooShortToAssess {
        repeats: Vec<u32>,
        all: bool,
        why: NotAssessed,
    },
    /// Steps at which the repeats' measured parts begin.
    MeasuredApart {
        first: u64,
        last: u64,
        steps: u64,
    },
    /// Shares: rate ÷ median of the others − 1, and the farthest of the others from their median.
    OddRepeat {
        repeat: u32,
        #[serde(with = "super::any_number")]
        change: f64,
        others: usize,
        #[serde(with = "super::any_number")]
        farthest: f64,
    },
    /// A few steps that take much of the time. Seconds, and tokens/s/GPU.
    Pauses {
        repeat: u32,
        slow: usize,
        measured: usize,
        #[serde(with = "super::any_number")]
        share: f64,
        step: u64,
        #[serde(with = "super::any_number")]
        longest: f64,
        #[serde(with = "super::any_number")]
        median: f64,
        #[serde(with = "super::any_number")]
        rate: f64,
        #[serde(with = "super::any_number")]
        rate_at_median: f64,
        /// Steps from one line of the log to the next, where it does not show each.
        every: Option<u64>,
    },
    /// The log shows only every so-many-th step.
    Sampled {
        repeat: u32,
        every: u64,
    },
    Anomaly {
        repeats: Vec<u32>,
        detail: Oddity,
        /// The others have it with figures of their own.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_of_first: bool,
    },
    /// Lines of the log that begin as its steps do and were lost.
    UnreadableLines {
        repeats: Vec<u32>,
        count: u64,
        /// The number of the first of them.
        first: u64,
    },
    OddInTheLog {
        repeats: Vec<u32>,
        what: Vec<LogAnomaly>,
    },
    StepTimesAre {
        repeats: Vec<u32>,
        source: StepTimeSource,
    },
    OneRepeat,
    NoVariation,
    /// The n of the interval is not that of the repeats.
    Replication {
        repeats: usize,
        units: usize,
        unit: Unit,
        /// Repeats that belong to no unit: units are hosts and their logs do not name one, or units are
        /// sessions and their logs have no date.
        in_no_unit: usize,
    },
    TokensDeclared,
    TokensDerived,
    AddedLater {
        repeats: Vec<u32>,
        planned: u32,
    },
    SeveralSetsOfDevices(Vec<DeviceSet>),
    /// Seconds between measured steps: all that passed, and what no step took; of several repeats
    /// the worst.
    OutsideSteps {
        repeats: Vec<u32>,
        cause: OutsideSteps,
        #[serde(with = "super::any_number")]
        outside: f64,
        #[serde(with = "super::any_number")]
        passed: f64,
        /// How many times too high the rate may be, where it is so between most steps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        factor: Option<f64>,
    },
    /// Nothing checked the step times; empty: of all repeats.
    Unchecked {
        repeats: Vec<u32>,
        why: Unchecked,
    },
    NoTelemetry {
        repeats: Vec<u32>,
        why: NoTelemetry,
    },
    NoEnergy {
        repeats: Vec<u32>,
        why: NoEnergy,
    },
    /// Shares of the samples, and how many of the repeats that count have any.
    ClocksLowered {
        reason: String,
        #[serde(with = "super::any_number")]
        low: f64,
        #[serde(with = "super::any_number")]
        high: f64,
        repeats: usize,
        of: usize,
    },
    NoWarmUp,
    RepeatsDisagree {
        fields: Vec<String>,
    },
    /// The trainer states a setting that tprimat does not have, and not the one it is near to.
    UnknownSetting {
        repeats: Vec<u32>,
        name: String,
        meant: String,
    },
    MeasuredAnew {
        repeats: Vec<u32>,
        measurements: u32,
    },
    SetAside {
        repeat: u32,
        why: String,
    },
    MeasuredAgain {
        repeats: Vec<u32>,
        disturbed: u32,
    },
    /// tokens/s/GPU that an imported file publishes, and what its labels and steps give.
    PublishedRateDiffers {
        repeat: u32,
        #[serde(with = "super::any_number")]
        published: f64,
        #[serde(with = "super::any_number")]
        ours: f64,
        dropped_steps: u64,
    },
}

/// Why repeats do not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotCounted {
    Failed {
        class: FailureClass,
        evidence: Option<String>,
    },
    Contradicted {
        by: Contradiction,
        fields: Vec<FieldAttestation>,
    },
    /// The judgement when the run ended.
    Suspect(String),
    NoRate(NoRate),
}

/// What a log contradicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contradiction {
    Job,
    /// An imported log: the labels of its file, or the model in config.yaml.
    Labels,
    Itself {
        is_imported: bool,
    },
}

impl Contradiction {
    #[must_use]
    pub fn is_imported(self) -> bool {
        matches!(self, Self::Labels | Self::Itself { is_imported: true })
    }
}

/// A sort of oddity in a log, with the log's own words where they are to be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogAnomaly {
    pub kind: String,
    pub detail: Option<String>,
}

/// Devices of some repeats, named by one that tells them apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSet {
    pub device: String,
    pub more: usize,
    pub repeats: Vec<u32>,
}

/// Why time passes between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutsideSteps {
    Timer,
    NotKnown,
    Pauses,
}

/// Why step times were not held against the clock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Unchecked {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    NoDates,
    /// They go back, stand still, or are of another unit than seconds.
    BadDates,
    /// Lines came several at a time.
    HeldBack,
    /// The measured steps were over before a second look at the log.
    TooShort,
    /// Fewer than `least` pairs of neighbours.
    FewSteps {
        least: usize,
    },
    /// Fewer than `least` pairs of neighbours without an evaluation between them.
    Evaluations {
        least: usize,
    },
}

/// What disturbed a run. Said once, when the run has ended: the sentence is kept with the attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Disturbance {
    /// Others were on the run's devices.
    OtherProcesses {
        /// The device's short name, where all were on one.
        device: Option<String>,
        /// Devices that were shared, of those that the run had.
        shared: usize,
        devices: usize,
        pid: u32,
        name: Option<String>,
        more: usize,
    },
    /// Driver's names, and the share of the samples.
    ClocksLowered { reasons: Vec<String>, share: f64 },
    /// `92.85 GiB`, as PyTorch says of a process that is not the run's own.
    MemoryTaken { pid: String, used: String },
}
