//! Damage in the cache, looked for before anything runs: a build that met it task by task would
//! fail once for each stage that is lost below, and call for another build each time.

use std::collections::BTreeSet;

use petgraph::Direction;
use rayon::prelude::*;

use super::{Engine, State, Status, Statuses, TaskId};
use crate::{cache::TaskKind, digest::Digest, error::Result};

impl Engine<'_> {
    /// Reads whatever stale tasks would read of the cache, and the comparison, which a build shows
    /// at its end. What is damaged is dropped there, and so is lost to the next evaluation; how
    /// many files that were.
    pub fn drop_damaged(&self, statuses: &Statuses) -> Result<usize> {
        let mut needed = self.left_by(self.dag.over_all(TaskKind::Compare), statuses);
        let is_due =
            |node: &TaskId| statuses.get(*node).state == State::Stale && self.is_wanted(*node);
        for node in self.dag.order.iter().copied().filter(is_due) {
            for of in self.dag.graph.neighbors_directed(node, Direction::Incoming) {
                needed.extend(self.left_by(of, statuses));
            }
        }
        let damaged = needed.into_par_iter().map(|digest| {
            // What is gone is known to be. What a cache that cannot be written to still has would be
            // found again at each look, so it does not count as dropped.
            let was_there = self.cache.has(&digest);
            let is_dropped =
                was_there && !self.cache.is_sound(&digest)? && !self.cache.has(&digest);
            Ok(usize::from(is_dropped))
        });
        damaged.sum()
    }

    /// The files of a task that is done, also those of a failed run, whose log says why. Launch files are
    /// made again from the templates.
    fn left_by(&self, node: TaskId, statuses: &Statuses) -> BTreeSet<Digest> {
        let Status { state, .. } = statuses.get(node);
        let is_done = matches!(state, State::Fresh | State::Failed);
        if !is_done || self.dag.task(node).kind == TaskKind::Render {
            return BTreeSet::new();
        }
        let outputs = statuses.get(node).outputs().iter();
        outputs.map(|output| output.digest).collect()
    }
}
