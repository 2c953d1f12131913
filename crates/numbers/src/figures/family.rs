//! The tests of one table without repetitions: where two rows compare the same measurements under
//! two names, Holm's correction for many comparisons counts one test.

use std::collections::{HashMap, hash_map::Entry};
use std::hash::Hash;

/// Tests in the order in which they were added. `T`: a test; `Q`: what tells two questions apart.
pub struct Family<T, Q> {
    /// Each with the place of its row in the table.
    pub tests: Vec<(usize, T)>,
    /// Rows that ask an earlier row's question again: their places, and those of the first ones.
    pub repeated: Vec<(usize, usize)>,
    first: HashMap<Q, usize>,
}

impl<T, Q> Default for Family<T, Q> {
    fn default() -> Self {
        Self {
            tests: Vec::new(),
            repeated: Vec::new(),
            first: HashMap::new(),
        }
    }
}

impl<T, Q: Eq + Hash> Family<T, Q> {
    /// Adds the test of the row at `place`, unless an earlier row asks the same question: then the
    /// place of that row. A question of `None` is no other row's.
    pub fn add(&mut self, place: usize, test: T, question: Option<Q>) -> Option<usize> {
        match question.map(|question| self.first.entry(question)) {
            Some(Entry::Occupied(first)) => {
                self.repeated.push((place, *first.get()));
                return Some(*first.get());
            }
            Some(Entry::Vacant(free)) => drop(free.insert(place)),
            None => {}
        }
        self.tests.push((place, test));
        None
    }
}
