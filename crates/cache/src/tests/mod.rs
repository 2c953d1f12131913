//! The cache as a whole: against a model, under kill, on a full disk, read-only.
mod child;
mod limits;
mod model;
mod processes;
mod state;

use std::{path::Path, thread, time::Duration};

use tprimat_base::{digest::Digest, error::Error, files::Durability};
use tprimat_job::RunOutcome;

use super::*;

fn digest(n: impl std::fmt::Display) -> Digest {
    Digest::of(n.to_string())
}

fn entry(kind: TaskKind, key: u32, task: u32, output: u32) -> Entry {
    let outputs = vec![Output {
        name: format!("file {output}"),
        digest: digest(output),
        size: u64::from(output),
    }];
    Entry {
        key: digest(key),
        kind,
        task: format!("task {task}"),
        preimage: format!("preimage of {key}"),
        outputs,
    }
}

pub fn attempt(key: u32, generation: u32, task: u32, id: u32) -> Attempt {
    let Entry {
        key,
        task,
        preimage,
        outputs,
        ..
    } = entry(TaskKind::Train, key, task, id);
    Attempt {
        id: format!("{id:08}"),
        key,
        task,
        preimage,
        generation,
        outcome: RunOutcome::Ok,
        outputs,
        started_at: 0.1 + f64::from(id),
        ended_at: 1e9 / 3.0,
        host: "host".into(),
        suspect: None,
        repeats_planned: None,
        set_aside: None,
        undeclared: Default::default(),
        recorded: 0,
    }
}

/// Records an attempt whose outputs are in the cache, as a build does.
fn record_with_outputs(cache: &Cache, attempt: &Attempt) -> Result<(), Error> {
    for output in &attempt.outputs {
        cache.put(output.size.to_string().as_bytes(), Durability::Plain)?;
    }
    cache.record_attempt(attempt)
}

fn outputs(entry: &EntryRef<'_>) -> Vec<Output> {
    entry.outputs().map(|output| output.to_owned()).collect()
}

/// Repairs a cache in which nobody writes. What another test forks just then shares this process's
/// locks until it executes something, so the repair is tried again where a segment is locked.
pub fn repaired(root: &Path) -> Repair {
    let repair = || Cache::open(root).unwrap().repair().unwrap();
    for _ in 0..1000 {
        let repaired = repair();
        if repaired.left.is_empty() {
            return repaired;
        }
        thread::sleep(Duration::from_millis(1));
    }
    repair()
}

/// Without the order in which they were recorded, which a model does not know.
fn plain(mut attempts: Vec<Attempt>) -> Vec<Attempt> {
    attempts.iter_mut().for_each(|attempt| attempt.recorded = 0);
    attempts
}
