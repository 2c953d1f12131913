//! The parse task: what an attempt left → its result.

use std::borrow::Cow;

use tprimat_job::{Job, RunOutcome};
use tprimat_logs::{LogSection, NEXT_RANK, parse_dated, tail};

use crate::results::{Reason, RunFacts, RunResult, Samples};

/// What an attempt left, and what is known of it besides.
pub struct AttemptOutputs<'a> {
    /// In the order in which they are read. Of a run whose last rank prints the steps, the logs of
    /// the other nodes, from the one with rank 0 up, come before the run's own: Megatron prints its
    /// settings on rank 0 and memory on one rank of each stage, and a host that has all ranks shows
    /// all of it in one log. Empty where the run left none.
    pub logs: &'a [Vec<u8>],
    /// The recipe's, which says how the log is read.
    pub section: &'a LogSection,
    /// When the lines of the last of these logs were seen; empty where nobody noted it.
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
        let (log, times) = in_one(self.logs, self.times);
        let mut result = RunResult::from(parse_dated(self.section, &log, &times), job, self.facts);
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
            result.log_tail = tail(&log);
        }
        result
    }
}

/// Several logs as one, and the times of the last one moved to where its lines are then.
fn in_one<'a>(logs: &'a [Vec<u8>], times: &'a [u8]) -> (Cow<'a, [u8]>, Cow<'a, [u8]>) {
    let Some((own, others)) = logs.split_last() else {
        return (Cow::default(), times.into());
    };
    if others.is_empty() {
        return (own.into(), times.into());
    }
    let mut all = Vec::new();
    for log in others {
        all.extend_from_slice(log);
        all.extend_from_slice(NEXT_RANK);
    }
    let before = all.len();
    all.extend_from_slice(own);
    let text = String::from_utf8_lossy(times);
    let moved = text.lines().filter_map(|line| {
        let (time, length) = line.split_once(' ')?;
        let length: usize = length.parse().ok()?;
        Some(format!("{time} {}\n", before + length))
    });
    (all.into(), moved.collect::<String>().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_speaks_before_the_last_one_whose_times_stay_its_own() {
        let logs = [b"args".to_vec(), b"memory\n".to_vec(), b"step 1\n".to_vec()];
        let (both, times) = in_one(&logs, b"10.5 0\n11.25 6\ntorn");
        assert_eq!(&*both, b"args\n\x1e\nmemory\n\n\x1e\nstep 1\n");
        assert_eq!(&*times, b"10.5 17\n11.25 23\n");
        let (alone, times) = in_one(&logs[2..], b"10.5 0\n");
        assert_eq!((&*alone, &*times), (&b"step 1\n"[..], &b"10.5 0\n"[..]));
    }
}
