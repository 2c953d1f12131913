//! The parse task: what an attempt left → its result.

use tprimat_job::{Job, RunOutcome};
use tprimat_logs::Trace;

use crate::results::{Claim, Reason, RepeatsPlanned, RunFacts, RunResult, Samples};

/// What an attempt left, and what is known of it besides.
pub struct AttemptOutputs<'a> {
    /// What its logs say.
    pub trace: Trace,
    /// Their last lines.
    pub log_tail: Vec<String>,
    /// `telemetry.jsonl`: absent where nothing was to be sampled, empty where it is gone from the
    /// cache.
    pub samples: Option<Option<&'a [u8]>>,
    pub facts: RunFacts,
    pub repeats_planned: Option<RepeatsPlanned>,
    pub suspect: Option<String>,
}

impl AttemptOutputs<'_> {
    /// What the log says, held against the job. `unreached`: settings that the recipe does not hand
    /// over. `unwritten`: those that it does not hand over either and whose values are only defaults.
    #[must_use]
    pub fn result(self, job: &Job, unreached: &[&str], unwritten: &[&str]) -> RunResult {
        let claim = Claim {
            unwritten: unwritten.iter().map(|name| (*name).to_owned()).collect(),
            ..Claim::of(job)
        };
        let mut result = RunResult::of_claim(self.trace, &claim, self.facts, true);
        result.withhold(unreached);
        result.repeats_planned = self.repeats_planned;
        result.suspect = self.suspect;
        let gone = || {
            let text = "telemetry.jsonl is gone from the cache";
            Samples::none(Reason::detail("gone_from_cache", text))
        };
        result.telemetry = self
            .samples
            .map(|text| text.map_or_else(gone, Samples::read));
        if result.outcome != RunOutcome::Ok {
            result.log_tail = self.log_tail;
        }
        result
    }
}
