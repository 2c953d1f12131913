//! What was derived from runs, under keys of its own, and the index by which the last result of a task
//! is found. All of it can be made again.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::PathBuf,
    sync::PoisonError,
};

use serde::{Deserialize, Serialize};
use tprimat_base::{digest::Digest, error::Result};

use super::{
    entry::{Entry, Output, TaskKind},
    names::{ENDING, MADE, digest_of},
    records::{Fault, fault_of, read_record},
    sealed,
    store::Cache,
};

/// What was derived, without its key: that is the file's name.
#[derive(Serialize, Deserialize)]
struct Made {
    kind: TaskKind,
    task: String,
    recorded: u64,
    outputs: Vec<Output>,
    preimage: String,
}

/// When something was recorded for a task, and under which key.
pub(super) type Index = HashMap<(TaskKind, String), Vec<(u64, Digest)>>;

impl Cache {
    fn made_at(&self, key: &Digest) -> PathBuf {
        self.root.join(MADE).join(format!("{key}{ENDING}"))
    }

    /// What was derived under a key left; `None` if it is to be derived.
    #[must_use]
    pub fn outputs(&self, key: &Digest) -> Option<Vec<Output>> {
        self.made(key).map(|(_, entry)| entry.outputs)
    }

    /// A derived entry with when it was recorded. A damaged one is made again, so nobody is told.
    fn made(&self, key: &Digest) -> Option<(u64, Entry)> {
        let path = self.made_at(key);
        let bytes = match read_record(&path) {
            Ok(bytes) => bytes,
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound && fault_of(&e) != Fault::Damaged {
                    self.note(&path, Some(Fault::Unread(e.to_string())));
                }
                return None;
            }
        };
        let made: Made = sealed::unseal(&bytes)?;
        let entry = Entry {
            key: *key,
            kind: made.kind,
            task: made.task,
            preimage: made.preimage,
            outputs: made.outputs,
        };
        Some((made.recorded, entry))
    }

    pub fn record_entry(&self, entry: &Entry) -> Result<()> {
        let recorded = self.now();
        let made = sealed::seal(&Made {
            kind: entry.kind,
            task: entry.task.clone(),
            recorded,
            outputs: entry.outputs.clone(),
            preimage: entry.preimage.clone(),
        })?;
        self.persist(self.temporary_of(&made)?, &self.made_at(&entry.key))?;
        self.add_to_index(entry.kind, &entry.task, recorded, entry.key);
        Ok(())
    }

    /// Hands over every derived entry that can be read, with when it was recorded: one by one, for
    /// the texts of their keys are larger than all that is kept of them.
    pub(super) fn each_made(&self, mut take: impl FnMut(u64, Entry)) {
        let names = self.names_in(&self.root.join(MADE), &mut None);
        let keys = names
            .iter()
            .filter_map(|name| digest_of(name.strip_suffix(ENDING)?));
        keys.filter_map(|key| self.made(&key))
            .for_each(|(recorded, entry)| take(recorded, entry));
    }

    /// What ran last under a task's name, for "what changed". A training's is its last attempt.
    #[must_use]
    pub fn last_of(&self, kind: TaskKind, task: &str) -> Option<Entry> {
        let (_, key) = self.in_index(|index| {
            let of_task = index.get(&(kind, task.to_owned()))?;
            of_task.iter().max().copied()
        })?;
        if kind != TaskKind::Train {
            return self.made(&key).map(|(_, entry)| entry);
        }
        let attempts = self.attempts(&key).into_iter();
        let of_task = attempts.filter(|attempt| attempt.task == task);
        let last = of_task.max_by_key(|attempt| attempt.recorded)?;
        Some(Entry {
            key,
            kind,
            task: last.task,
            preimage: last.preimage,
            outputs: last.outputs,
        })
    }

    /// The entry of each key of a kind whose task's name is wanted, in the order in which they were
    /// recorded.
    #[must_use]
    pub fn entries_named(&self, kind: TaskKind, is_wanted: impl Fn(&str) -> bool) -> Vec<Entry> {
        // The same key may have been recorded more than once; its last time counts.
        let mut last: BTreeMap<Digest, u64> = BTreeMap::new();
        self.in_index(|index| {
            let named = index
                .iter()
                .filter(|((of, task), _)| *of == kind && is_wanted(task));
            for (recorded, key) in named.flat_map(|(_, keys)| keys) {
                let at = last.entry(*key).or_default();
                *at = (*recorded).max(*at);
            }
        });
        let mut keys: Vec<(u64, Digest)> = last.into_iter().map(|(key, at)| (at, key)).collect();
        keys.sort_unstable();
        keys.iter()
            .filter_map(|(_, key)| Some(self.made(key)?.1))
            .collect()
    }

    /// The index of what ran. It is made when somebody first asks for it, which nothing that is fresh
    /// does, and kept in memory only.
    fn in_index<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        let mut held = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let index = held.get_or_insert_with(|| {
            let mut index = Index::new();
            self.each_made(|recorded, entry| {
                let of_task = index.entry((entry.kind, entry.task)).or_default();
                of_task.push((recorded, entry.key));
            });
            self.each_attempt(|run| {
                let of_task = index.entry((TaskKind::Train, run.task)).or_default();
                of_task.push((run.recorded, run.key));
            });
            index
        });
        look(index)
    }

    pub(super) fn add_to_index(&self, kind: TaskKind, task: &str, recorded: u64, key: Digest) {
        let mut held = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = held.as_mut() {
            let of_task = index.entry((kind, task.to_owned())).or_default();
            of_task.push((recorded, key));
        }
    }
}
