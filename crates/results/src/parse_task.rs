//! The parse task: what an attempt left → its result.

use tprimat_job::{Job, RunOutcome};
use tprimat_logs::{LogSection, parse_dated, tail};

use crate::{NoSamples, RunFacts, RunResult, Samples};

/// What an attempt left, and what is known of it besides.
pub struct AttemptOutputs<'a> {
    pub log: &'a [u8],
    /// The recipe's, which says how the log is read.
    pub section: &'a LogSection,
    /// When the lines of the log were seen; empty where nobody noted it.
    pub times: &'a [u8],
    /// `telemetry.jsonl`: absent where nothing was to be sampled, empty where it is gone from the
    /// cache.
    pub samples: Option<Option<&'a [u8]>>,
    pub facts: RunFacts,
    pub repeats_planned: Option<u32>,
    pub suspect: Option<String>,
}

impl AttemptOutputs<'_> {
    /// What the log says, held against the job. `unreached`: settings that the recipe does not hand
    /// over.
    #[must_use]
    pub fn result(self, job: &Job, unreached: &[&str]) -> RunResult {
        let mut result = RunResult::from(
            parse_dated(self.section, self.log, self.times),
            job,
            self.facts,
        );
        result.withhold(unreached);
        result.repeats_planned = self.repeats_planned;
        result.suspect = self.suspect;
        let gone = || Samples::none(NoSamples::GoneFromCache);
        result.telemetry = self
            .samples
            .map(|text| text.map_or_else(gone, Samples::read));
        if result.outcome != RunOutcome::Ok {
            result.log_tail = tail(self.log);
        }
        result
    }
}
