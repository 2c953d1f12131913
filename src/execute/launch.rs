//! What a training is started with, collected while the states are at hand.

use std::{collections::BTreeMap, path::Path};

use super::{
    error::LaunchError,
    price,
    train_work::{Launch, Limits, Measurement, Placement, TrainWork},
};
use crate::{
    cache::{Output, TaskKind},
    data::prefix_of,
    digest::Digest,
    error::Result,
    graph::{Engine, Statuses, Task, TaskId, label},
    host::commit_around,
    job::{Job, Vendor},
    matrix::CellId,
    plan::{DataKind, Input, Place, Plan, Prepared},
    results::RepeatsPlanned,
    run::{spec::Hang, watched_inputs::Watched},
};

/// For the train task at `node`.
pub fn train_work(
    engine: &Engine,
    node: TaskId,
    statuses: &Statuses,
    devices: Vec<usize>,
    preimage: &str,
) -> Result<TrainWork> {
    let task = engine.dag.task(node);
    let render = statuses.get(engine.dag.node(TaskKind::Render, task.cell, 0));
    let key = statuses
        .get(node)
        .key
        .expect("a stale train task has a key");
    let launch_files = launch_files(engine, task.cell, render.outputs())?;
    let mut work = launch(engine.plan, task.cell, launch_files);
    let seen = engine.cache.attempts(&key).into_iter();
    work.seen = seen.map(|attempt| attempt.id).collect();
    if work.placement.execution.place == Place::Allocation {
        work.limits.estimated_seconds = price::seconds_of_run(engine, statuses, task.cell);
    }
    work.placement.devices = devices;
    work.measurement = Measurement {
        key,
        task: label(engine.plan, &task),
        preimage: preimage.to_owned(),
        generation: engine.cache.generation(&key),
        repeats_planned: Some(repeats_planned(engine, task)),
        commit: commit_around(&engine.plan.root),
        ..work.measurement
    };
    Ok(work)
}

/// A run beyond those that the matrix asks for is one that was added until a decision, also where a build
/// makes it again.
fn repeats_planned(engine: &Engine, task: Task) -> RepeatsPlanned {
    let asked = engine.plan.matrix.cells[task.cell].repeats;
    match engine.options.round {
        Some(round) => RepeatsPlanned::UntilDecided { round },
        None if task.repeat > asked => RepeatsPlanned::UntilDecided {
            round: round_now(0),
        },
        None => RepeatsPlanned::Number(asked),
    }
}

/// A name for a round that begins now, even or odd as `number` is.
#[must_use]
pub fn round_now(number: u64) -> u64 {
    let now = jiff::Timestamp::now().as_millisecond().unsigned_abs();
    now - now % 2 + number % 2
}

/// What runs is made now from the project's templates. The cache says what its digests are, as the
/// key has it, and no more: who else may write to a cache must not choose what this user runs.
fn launch_files(
    engine: &Engine,
    cell: CellId,
    recorded: &[Output],
) -> Result<Vec<(String, Vec<u8>)>> {
    let prepared = engine.plan.prepared(cell).expect("what runs is supported");
    let files = engine.rendered(cell, prepared.job())?;
    let is_same = files.len() == recorded.len()
        && files
            .iter()
            .zip(recorded)
            .all(|(file, known)| file.name == known.name && file.digest == known.digest);
    if !is_same {
        let (cell, cache) = (
            engine.plan.cells[cell].id.clone(),
            engine.cache.root().to_owned(),
        );
        return Err(LaunchError::OtherLaunchFiles { cell, cache }.into());
    }
    Ok(files
        .into_iter()
        .map(|file| (file.name, file.bytes))
        .collect())
}

/// How a cell is run, whatever for: without a key, and without devices.
pub fn launch(plan: &Plan, cell: CellId, launch_files: Vec<(String, Vec<u8>)>) -> TrainWork {
    let prepared = plan.prepared(cell).expect("what runs is supported");
    let (recipe, job) = (plan.recipe(cell), prepared.job());
    let checkouts = plan.facts.checkouts(recipe).into_iter();
    TrainWork {
        measurement: Measurement {
            key: Digest::of(""),
            task: plan.cells[cell].id.clone(),
            preimage: String::new(),
            generation: 0,
            log_section: recipe.file.log.clone(),
            repeats_planned: None,
            commit: None,
            job: job.clone(),
            statistics: prepared.resolved.statistics.clone(),
        },
        seen: Default::default(),
        job: job.clone(),
        launch: Launch {
            launch_files,
            recipe_files: recipe
                .files_of_run(job.vendor)
                .map(|(name, bytes, _)| (name.to_owned(), bytes.to_vec()))
                .collect(),
            job_json: recipe.file.launch.reads_job.then(|| job_json(job)),
            command: recipe.file.launch.command.clone(),
            nodes: recipe.file.launch.nodes,
            declared_env: prepared.resolved.env.clone(),
            data_env: data_env(&plan.root, prepared),
            pass_env: recipe.file.launch.pass_env.clone(),
            inputs_setting: format!("frameworks.{}.inputs", recipe.file.id),
            starts_python: prepared.python.is_some()
                || !recipe.file.require.python_modules.is_empty(),
            python: plan.facts.python(&recipe.file.id).to_owned(),
            checkouts: checkouts
                .filter_map(|(checkout, path)| Some((checkout.variable.clone(), path?)))
                .collect(),
            needs_native: recipe
                .file
                .require
                .programs
                .iter()
                .any(|program| program == "tprimat-native"),
            watched: watched(plan, cell, prepared),
        },
        placement: Placement {
            execution: prepared.resolved.execution.clone(),
            image: prepared
                .image
                .as_ref()
                .and_then(|image| image.digest.clone().ok()),
            facts: prepared.facts.section.clone(),
            packages: packages(prepared),
            python: prepared
                .python
                .as_ref()
                .map(|python| python.interpreter.clone())
                .unwrap_or_else(|| plan.facts.python(&recipe.file.id).to_owned()),
            exclusive: is_alone_on_devices(prepared.resolved.share, job.vendor),
            devices: Vec::new(),
        },
        limits: Limits {
            timeout_seconds: prepared.resolved.timeout_seconds,
            hang: prepared.resolved.hang.map(|(factor, least_seconds)| Hang {
                factor,
                least_seconds,
                steps: job.train_iters,
                log: recipe.file.log.clone(),
            }),
            estimated_seconds: None,
        },
    }
}

/// The job as its trainer reads it. On how many nodes it runs is said to its launcher alone, which
/// has it from the launch files.
#[must_use]
pub fn job_json(job: &Job) -> Vec<u8> {
    let mut job = serde_json::to_value(job).unwrap_or_default();
    if let Some(parallelism) = job["parallelism"].as_object_mut() {
        parallelism.shift_remove("num_nodes");
    }
    serde_json::to_vec_pretty(&job).unwrap_or_default()
}

/// The versions of packages that the cell's key is made of.
fn packages(prepared: &Prepared) -> BTreeMap<String, String> {
    let known = prepared.facts.known.iter().flatten();
    let package =
        known.filter_map(|(name, value)| Some((name.strip_prefix("package.")?, value.as_str()?)));
    package
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .collect()
}

/// What the plan knows by content and the run reads where it lies.
fn watched(plan: &Plan, cell: CellId, prepared: &Prepared) -> Vec<Watched> {
    let mut all = Vec::new();
    for input in &prepared.inputs.files {
        let Input { name, digest, .. } = input;
        let path = plan.root.join(name);
        let stamp = plan
            .reads
            .known(&path)
            .filter(|known| known.digest == *digest)
            .map(|known| known.stamp);
        all.push(Watched::file(name, path, *digest, stamp).guessed(input.may_be_output()));
    }
    all.extend(
        prepared
            .inputs
            .absent
            .iter()
            .map(|name| Watched::absent(name, plan.root.join(name))),
    );
    for file in &prepared.data {
        if let Ok(digest) = file.digest {
            let stamps = plan.facts.data_stamps(&file.path, digest);
            all.push(Watched::data(
                file.kind,
                &file.name,
                file.path.clone(),
                digest,
                stamps,
            ));
        }
    }
    if let Some((image, file)) = prepared
        .image
        .as_ref()
        .and_then(|image| Some((image, image.file.as_ref()?)))
        && let Some(digest) = image
            .digest
            .as_ref()
            .ok()
            .and_then(|text| text.strip_prefix("blake3:")?.parse().ok())
    {
        let stamp = plan.facts.data_stamps(file, digest).pop();
        all.push(Watched::file(
            format!("the image {}", image.name),
            file.clone(),
            digest,
            stamp,
        ));
    }
    for (checkout, path) in plan.facts.checkouts(plan.recipe(cell)) {
        let (Some(path), Ok(known)) = (path, &prepared.facts.known) else {
            continue;
        };
        let prefix = format!("checkout.{}.", checkout.variable);
        let facts = known
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(&prefix)?, value.as_str()?)));
        let facts: BTreeMap<String, String> = facts
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect();
        let name = format!("the checkout in ${}", checkout.variable);
        all.push(Watched::checkout(name, path, &checkout.file, facts));
    }
    all
}

/// Where a run finds its data: absolute, and in no key. A tokenizer that is no file here is a name
/// on a hub.
fn data_env(root: &Path, prepared: &Prepared) -> BTreeMap<String, String> {
    let variable = |kind: DataKind| format!("TPRIMAT_{}", kind.name().to_uppercase());
    let place = |(kind, path): (&DataKind, &String)| {
        let full = root.join(path);
        let place = match kind {
            DataKind::Dataset => prefix_of(&full).display().to_string(),
            DataKind::Tokenizer if full.exists() => full.display().to_string(),
            DataKind::Tokenizer => path.clone(),
        };
        (variable(*kind), place)
    };
    prepared.resolved.data_paths.iter().map(place).collect()
}

/// Runs that share a host have GPUs of their own: a second tprimat that shares as well must not give
/// one of them away again. On a CPU sharing is what was asked for.
fn is_alone_on_devices(shares_host: bool, vendor: Vendor) -> bool {
    !shares_host || vendor != Vendor::Cpu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gpu_is_held_twice_whether_the_host_is_shared_or_not() {
        for vendor in [Vendor::Nvd, Vendor::Amd] {
            assert!([false, true].map(|share| is_alone_on_devices(share, vendor)) == [true; 2]);
        }
        assert!(is_alone_on_devices(false, Vendor::Cpu) && !is_alone_on_devices(true, Vendor::Cpu));
    }
}
