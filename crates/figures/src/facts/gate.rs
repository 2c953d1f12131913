//! What a gate finds.

use serde::{Deserialize, Serialize};
use tprimat_job::FailureClass;
use tprimat_results::FieldDifference;

use super::{EnvironmentSummary, ImpossibleRate, WarmUpDifference, Warning, WhyAbsent};
use crate::{AbsentState, ChangedSetting, Dropped, Gaps, Unit};

/// Why a cell has its verdict. Ratios are now ÷ then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum GateReason {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    Impossible(Box<ImpossibleRate>),
    Failed {
        class: FailureClass,
        evidence: Option<String>,
    },
    Absent {
        state: AbsentState,
        why: WhyAbsent,
    },
    Contradicted {
        repeats: usize,
    },
    NotInBaseline,
    NotMeasured(Box<GateReason>),
    NotInMatrix,
    NotSelected,
    OtherOrigin {
        is_imported_now: bool,
    },
    OtherWorkload {
        fields: Vec<FieldDifference>,
        warm_up: Option<WarmUpDifference>,
    },
    FewUnits {
        now: (usize, Unit),
        then: (usize, Unit),
        least: usize,
    },
    WorkloadNotKnown(Gaps),
    SomeAreTheBaselines {
        known: usize,
        of: usize,
    },
    SameMeasurements {
        now: usize,
        then: usize,
    },
    Slower {
        change: Change,
    },
    NotSignificant {
        change: Change,
        tested: usize,
        needed: Needed,
    },
    WithinButSlower {
        change: Change,
    },
    Within {
        change: Change,
    },
    CannotTell {
        change: Change,
        needed: Needed,
    },
    /// The clock shows that the step times of one side leave out time, so that its rate may be so
    /// many times too high.
    ShortStepTimes {
        change: Change,
        when: When,
        factor: f64,
    },
}

/// A ratio with its 95 % interval, and the share by which it may be below 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub ratio: f64,
    pub ci95: [f64; 2],
    pub max_regression: f64,
}

impl Change {
    /// Is this ratio at the limit, but for rounding?
    #[must_use]
    pub fn is_at_limit(&self, ratio: f64) -> bool {
        (ratio - (1.0 - self.max_regression)).abs() <= crate::gate::ROUNDING
    }
}

/// How many units of replication, now and in the baseline, would tell at this spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Needed {
    About(usize, Unit),
    MoreThan(usize, Unit),
}

/// What is to be known beside a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum GateNote {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    SharesMeasurements {
        with: String,
    },
    Failed {
        repeats: usize,
    },
    Disturbed {
        repeats: usize,
    },
    /// Repeats that ended well with nothing to measure.
    Unmeasured {
        repeats: usize,
    },
    Warning(Warning),
    AddedLater(When),
    Dropped(When, Vec<Dropped>),
    Field(FieldDifference),
    WarmUp(WarmUpDifference),
    Environment(EnvironmentSummary),
    Device {
        now: String,
        then: String,
    },
    Hosts {
        now: Vec<String>,
        then: Vec<String>,
    },
    MeasuredLater {
        seconds: f64,
    },
    EvaluatedAnew,
    /// Files that are inputs of the runs, in the words of the history.
    Changed(Vec<ChangedSetting>),
    /// The logs of the cell do not confirm its settings.
    NotAttested {
        much_faster: bool,
    },
}

/// Which measurement a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// The only one that there is.
    Only,
    Now,
    Then,
}

/// What is wrong with a baseline that came from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BaselineFault {
    Twice { cell: String },
    NotPositive { cell: String },
    NotTheMean { cell: String, unit: Unit },
}
