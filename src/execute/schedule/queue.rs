//! The stale tasks whose inputs are done: derived ones first come, first served, trainings by repeat.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::{digest::Digest, graph::TaskId, matrix::CellId};

/// A training that may start, in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueuedTraining {
    turn: (u32, usize),
    pub repeat: u32,
    pub cell: CellId,
    pub node: TaskId,
}

impl QueuedTraining {
    /// All cells' first repeats come before all second ones. In a round of `build --decide` each cell has
    /// one run, whatever its repeat, and every other round goes through the cells backwards: a machine
    /// that slows down evenly then slows down neither cell of a pair.
    pub fn new(node: TaskId, cell: CellId, repeat: u32, round: Option<u64>) -> Self {
        let turn = match round {
            None => (repeat, cell.place()),
            Some(round) if round % 2 == 1 => (0, usize::MAX - cell.place()),
            Some(_) => (0, cell.place()),
        };
        Self {
            turn,
            repeat,
            cell,
            node,
        }
    }
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
        QueuedTraining::new(TaskId::new(node), CellId::default(), repeat, None)
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
    fn every_other_round_goes_through_the_cells_backwards() {
        let order = |round: u64| -> Vec<usize> {
            let cells = [(0, 9), (1, 4), (2, 7)];
            let mut all = cells.map(|(cell, repeat)| {
                QueuedTraining::new(TaskId::new(cell), cell.into(), repeat, Some(round))
            });
            all.sort();
            all.map(|train| train.node.index()).to_vec()
        };
        assert_eq!([order(2), order(3)], [[0, 1, 2], [2, 1, 0]]);
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
