//! What another tprimat made of logs, or of results, that are gone since.
//!
//! This tprimat would compute it anew, which takes no time. Without the log it would have to train
//! again, so what is there stands.

use std::collections::HashMap;

use crate::{
    cache::{Cache, Entry, TaskKind},
    digest::Digest,
    figures::Summary,
    plan::preimage::without_analysis,
    results::RunResult,
};

/// Entries by their pre-images without the analysis.
pub struct Earlier(HashMap<Digest, Entry>);

impl Earlier {
    #[must_use]
    pub fn of(cache: &Cache) -> Self {
        let kinds = [TaskKind::Parse, TaskKind::Aggregate];
        // Where several versions of tprimat read the same run, the result that was recorded last stands.
        let entries = kinds
            .into_iter()
            .flat_map(|kind| cache.entries_named(kind, |_| true));
        let named = |entry: Entry| (Digest::of(without_analysis(&entry.preimage)), entry);
        Self(entries.map(named).collect())
    }

    /// The entry of the task with this pre-image, whatever analysis it names.
    #[must_use]
    pub fn entry(&self, preimage: &str) -> Option<&Entry> {
        self.0.get(&Digest::of(without_analysis(preimage)))
    }
}

/// Can this tprimat read what the other one wrote?
pub(super) fn is_readable(cache: &Cache, entry: &Entry) -> bool {
    let bytes = entry
        .outputs
        .first()
        .and_then(|output| cache.get(&output.digest).ok()?);
    bytes.is_some_and(|bytes| match entry.kind {
        TaskKind::Parse => serde_json::from_slice::<RunResult>(&bytes).is_ok(),
        _ => serde_json::from_slice::<Summary>(&bytes).is_ok(),
    })
}
