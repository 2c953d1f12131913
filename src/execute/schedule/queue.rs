//! The stale tasks whose inputs are done: derived ones first come, first served, trainings by repeat.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::{digest::Digest, graph::TaskId, matrix::CellId};

/// A training that may start. They are ordered by repeat, then cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuedTraining {
    pub repeat: u32,
    pub cell: CellId,
    pub node: TaskId,
}

#[derive(Default)]
pub(super) struct Queue {
    derived: VecDeque<TaskId>,
    /// Trainings that have not started, with their keys.
    trainings: BTreeMap<QueuedTraining, Digest>,
    /// The same by their keys: a build measures a key once, whichever cells have it.
    by_key: HashMap<Digest, Vec<QueuedTraining>>,
    /// Keys that are being trained, and the trainings that wait for what comes of them.
    in_flight: HashMap<Digest, Vec<TaskId>>,
}

impl Queue {
    /// Does nothing wait to be started?
    pub fn is_empty(&self) -> bool {
        self.derived.is_empty() && self.trainings.is_empty()
    }

    pub fn push_derived(&mut self, node: TaskId) {
        self.derived.push_back(node);
    }

    pub fn next_derived(&mut self) -> Option<TaskId> {
        self.derived.pop_front()
    }

    /// Adds a training. One whose key is being trained waits for that instead.
    pub fn push_training(&mut self, train: QueuedTraining, key: Digest) {
        if let Some(waiting) = self.in_flight.get_mut(&key) {
            waiting.push(train.node);
            return;
        }
        self.trainings.insert(train, key);
        self.by_key.entry(key).or_default().push(train);
    }

    /// The trainings that have not started, in their order.
    pub fn trainings(&self) -> impl Iterator<Item = QueuedTraining> {
        self.trainings.keys().copied()
    }

    pub fn has(&self, train: QueuedTraining) -> bool {
        self.trainings.contains_key(&train)
    }

    /// Takes out a training that will not run.
    pub fn remove(&mut self, train: QueuedTraining) {
        if let Some(key) = self.trainings.remove(&train)
            && let Some(same) = self.by_key.get_mut(&key)
        {
            same.retain(|other| *other != train);
        }
    }

    /// Takes out a training that starts now; the others of its key wait for its end.
    pub fn start(&mut self, train: QueuedTraining) {
        let Some(key) = self.trainings.get(&train).copied() else {
            return;
        };
        let mut waiting = Vec::new();
        for same in self.by_key.remove(&key).unwrap_or_default() {
            self.trainings.remove(&same);
            if same != train {
                waiting.push(same.node);
            }
        }
        self.in_flight.insert(key, waiting);
    }

    /// A key is not being trained any more: the trainings that waited for it.
    pub fn end(&mut self, key: &Digest) -> Vec<TaskId> {
        self.in_flight.remove(key).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(repeat: u32, node: usize) -> QueuedTraining {
        QueuedTraining {
            repeat,
            cell: CellId::default(),
            node: TaskId::new(node),
        }
    }

    fn queue(trainings: &[(QueuedTraining, &str)]) -> Queue {
        let mut queue = Queue::default();
        for (train, key) in trainings {
            queue.push_training(*train, Digest::of(key));
        }
        queue
    }

    #[test]
    fn all_cells_repeat_once_before_any_repeats_again() {
        let queue = queue(&[
            (training(2, 1), "a2"),
            (training(1, 0), "a1"),
            (training(1, 2), "b1"),
        ]);
        let order: Vec<usize> = queue.trainings().map(|t| t.node.index()).collect();
        assert_eq!(order, [0, 2, 1]);
    }

    #[test]
    fn a_key_is_trained_once_and_all_that_have_it_wait_for_the_end() {
        let (first, twin, later) = (training(1, 0), training(1, 1), training(1, 2));
        let mut queue = queue(&[(first, "one"), (twin, "one"), (training(2, 3), "two")]);
        queue.start(first);
        assert!(!queue.has(first) && !queue.has(twin));
        queue.push_training(later, Digest::of("one"));
        assert!(!queue.has(later), "its key is being trained");
        assert_eq!(queue.end(&Digest::of("one")), [twin.node, later.node]);
        assert_eq!(queue.end(&Digest::of("one")), []);
        assert_eq!(queue.trainings().count(), 1);
    }

    #[test]
    fn a_training_that_was_taken_out_waits_for_nothing() {
        let (one, twin) = (training(1, 0), training(1, 1));
        let mut queue = queue(&[(one, "one"), (twin, "one")]);
        queue.remove(twin);
        queue.start(one);
        assert_eq!(queue.end(&Digest::of("one")), []);
        assert!(queue.is_empty());
    }
}
