//! Damage in the cache, looked for before anything runs: a build that met it task by task would
//! fail once for each stage that is lost below, and call for another build each time.

use std::collections::BTreeSet;

use petgraph::Direction;
use rayon::prelude::*;

use super::{Engine, State, Status, Statuses, TaskId};
use crate::{
    cache::{TaskKind, is_of_one_file},
    digest::Digest,
    error::Result,
};

impl Engine<'_> {
    /// Reads whatever stale tasks would read of the cache, all summaries, and the comparison, which a
    /// build shows at its end. How many of these files are damaged: they are put aside, so to the next evaluation
    /// they are missing.
    pub fn find_damaged(&self, statuses: &Statuses) -> Result<usize> {
        let mut needed = self.left_by(self.dag.over_all(TaskKind::Compare), statuses);
        let nodes = self.dag.order.iter().copied();
        let summaries = nodes.filter(|node| self.dag.task(*node).kind == TaskKind::Aggregate);
        summaries.for_each(|node| needed.extend(self.left_by(node, statuses)));
        let is_due =
            |node: &TaskId| statuses.get(*node).state == State::Stale && self.is_wanted(*node);
        for node in self.dag.order.iter().copied().filter(is_due) {
            for of in self.dag.graph.neighbors_directed(node, Direction::Incoming) {
                needed.extend(self.left_by(of, statuses));
            }
        }
        let damaged = needed.into_par_iter().map(|digest| {
            // What is gone, or was found before, is known to be.
            if !self.cache.has(&digest) {
                return Ok(0);
            }
            match self.cache.is_sound(&digest) {
                // It may be sound, and nothing is made in its place. The task that needs it says why
                // it cannot be read.
                Err(error) if is_of_one_file(&error) => Ok(0),
                is_sound => {
                    let is_damaged = !is_sound?;
                    if is_damaged {
                        self.cache.put_aside(&digest)?;
                    }
                    Ok(usize::from(is_damaged))
                }
            }
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
