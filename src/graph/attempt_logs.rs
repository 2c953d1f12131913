//! The logs that the result of an attempt is made from.

use std::cmp::Reverse;

use crate::{
    cache::{Attempt, Cache, Output},
    plan::preimage::{self, RANKS},
};

/// In the order in which they are read. Of a run on several nodes whose own log is that of the last
/// rank these are the logs of the other nodes, from the one with rank 0 up, and its own; of any other
/// run its own alone. Empty where it left none.
#[must_use]
pub fn logs_to_read(attempt: &Attempt) -> Vec<&Output> {
    let of_node = |output: &Output| -> Option<usize> {
        let number = output.name.strip_prefix("log.node-")?;
        number.parse().ok()
    };
    let mut others: Vec<(usize, &Output)> = Vec::new();
    if preimage::line(&attempt.preimage, RANKS).is_some() {
        let outputs = attempt.outputs.iter();
        others.extend(outputs.filter_map(|output| Some((of_node(output)?, output))));
    }
    // The ranks of such a run are those of its nodes backwards.
    others.sort_by_key(|(number, _)| Reverse(*number));
    let others = others.into_iter().map(|(_, log)| log);
    others.chain(attempt.log()).collect()
}

/// The first of them that is gone from the cache.
#[must_use]
pub fn lost_log<'a>(cache: &Cache, attempt: &'a Attempt) -> Option<&'a Output> {
    let logs = logs_to_read(attempt);
    logs.into_iter().find(|log| !cache.has(&log.digest))
}
