//! The cache as a whole: against a model, under kill, on a full disk, read-only.
mod child;
mod limits;
mod model;
mod processes;

use tprimat_base::{digest::Digest, error::Error, files::Durability};

use super::*;

fn digest(n: impl std::fmt::Display) -> Digest {
    Digest::of(n.to_string())
}

fn entry(kind: TaskKind, key: u32, task: u32, output: u32) -> Entry {
    let outputs = vec![Output {
        name: format!("file {output}"),
        digest: digest(output),
        size: output.to_string().len() as u64,
    }];
    Entry {
        key: digest(key),
        kind,
        task: format!("task {task}"),
        preimage: key.to_string(),
        outputs,
    }
}

pub fn attempt(key: u32, generation: u32, task: u32, id: u32) -> Attempt {
    let of = entry(TaskKind::Train, key, task, id);
    Attempt {
        generation,
        started_at: 0.1 + f64::from(id),
        ended_at: 1e9 / 3.0,
        host: "host".into(),
        ..Attempt::ok(format!("{id:08}"), of.task, of.preimage, of.outputs)
    }
}

/// Records an attempt whose outputs are in the cache, as a build does.
fn record_with_outputs(cache: &Cache, attempt: &Attempt) -> Result<(), Error> {
    for output in &attempt.outputs {
        let text = output.name.trim_start_matches("file ");
        cache.put(text.as_bytes(), Durability::Plain)?;
    }
    cache.record_attempt(attempt)
}

/// Without the order in which they were recorded, which a model does not know.
fn plain(mut attempts: Vec<Attempt>) -> Vec<Attempt> {
    attempts.iter_mut().for_each(|attempt| attempt.recorded = 0);
    attempts
}
