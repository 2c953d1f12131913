//! Whether a run counts, asked of one result before its cell is summed up.

use tprimat_results::RunResult;

use super::{notes, summarize_repeat};
use crate::{NoRate, NotCounted, Statistics};

/// Why a run does not count; none where it does.
#[must_use]
pub fn why_uncounted(result: &RunResult, statistics: &Statistics) -> Option<NotCounted> {
    notes::not_counted(&summarize_repeat(1, result, statistics).status, result)
}

impl NotCounted {
    /// Would every run that is launched the same come to this? It follows from what the trainer
    /// does and prints, not from what else went on: another run would be spent in vain.
    #[must_use]
    pub fn comes_again(&self) -> bool {
        match self {
            Self::Failed { class, .. } => class.is_deterministic(),
            // A log that ends early may be cut off; one without any step is not read at all.
            Self::Contradicted { fields, .. } => fields.iter().any(|of| {
                of.field != "steps_run"
                    || of.effective.as_ref().and_then(serde_json::Value::as_u64) == Some(0)
            }),
            Self::Suspect(_) => false,
            Self::NoRate(why) => match why {
                NoRate::Stated(_)
                | NoRate::TokensNotKnown
                | NoRate::DevicesNotKnown
                | NoRate::MixedUnits { .. }
                | NoRate::NoStep
                | NoRate::NoStepIsTimed { .. }
                | NoRate::AllWithinWarmUp { .. }
                | NoRate::LongerThanRun { .. }
                | NoRate::LongerThanPassed { .. }
                | NoRate::TimesOfSeveralSteps { .. }
                | NoRate::TimerStopsEarly { .. } => true,
                // One step, one pause or another repeat decides these.
                NoRate::Said(_)
                | NoRate::AbsurdTime(_)
                | NoRate::OtherWorkloads { .. }
                | NoRate::BeyondComputing
                | NoRate::BadTime { .. }
                | NoRate::ShorterThanAMicrosecond { .. }
                | NoRate::SlowStepsShownMoreOften { .. } => false,
            },
        }
    }
}
