//! The records read since the snapshot, by key. In memory only.

use std::{collections::HashMap, sync::Arc};

use tprimat_base::digest::Digest;

use super::encode::{self, Glance, Stamp, What};
use super::entry::TaskKind;

/// Where a record's frame lies: the segment's number in this process's list, and the place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub segment: u32,
    pub offset: u64,
    pub body_length: u32,
}

#[derive(Default)]
pub(super) struct Index {
    pub entries: HashMap<Digest, IndexedEntry>,
    /// Attempts at a key, and what was decided of them.
    pub attempts: HashMap<Digest, Vec<Place>>,
    /// The highest one that was opened or measured in.
    pub generations: HashMap<Digest, u32>,
    /// By [`encode::task_id`]: what ran last under that name.
    pub tasks: HashMap<Digest, (Stamp, Place)>,
    pub preimages: HashMap<Digest, Place>,
    pub last_stamp: Stamp,
}

pub(super) struct IndexedEntry {
    pub stamp: Stamp,
    pub place: Place,
    /// Up to and with the outputs; see [`encode::decode_head`].
    pub head: Arc<[u8]>,
}

impl Index {
    /// Adds one record; the same one twice changes nothing, and the order of adding does not
    /// matter.
    pub fn add(&mut self, body: &[u8], place: Place) {
        let Some(Glance { stamp, key, what }) = encode::glance(body) else {
            return;
        };
        self.last_stamp = self.last_stamp.max(stamp);
        match what {
            What::Entry { kind, task, head } => {
                self.ran_last(kind, task, stamp, place);
                if self
                    .entries
                    .get(&key)
                    .is_none_or(|known| known.stamp < stamp)
                {
                    self.entries.insert(
                        key,
                        IndexedEntry {
                            stamp,
                            place,
                            head: head.into(),
                        },
                    );
                }
            }
            What::Attempt { generation, task } => {
                self.ran_last(TaskKind::Train, task, stamp, place);
                self.raise_generation(key, generation);
                self.of_attempts(key, place);
            }
            What::Verdict => self.of_attempts(key, place),
            What::Generation(generation) => self.raise_generation(key, generation),
            What::Preimage => {
                self.preimages.insert(key, place);
            }
        }
    }

    fn of_attempts(&mut self, key: Digest, place: Place) {
        let places = self.attempts.entry(key).or_default();
        if !places.contains(&place) {
            places.push(place);
        }
    }

    fn ran_last(&mut self, kind: TaskKind, task: &str, stamp: Stamp, place: Place) {
        let last = self
            .tasks
            .entry(encode::task_id(kind, task))
            .or_insert((stamp, place));
        if last.0 < stamp {
            *last = (stamp, place);
        }
    }

    fn raise_generation(&mut self, key: Digest, generation: u32) {
        let highest = self.generations.entry(key).or_default();
        *highest = generation.max(*highest);
    }
}
