//! One training: what it measures, where the plan says how it is run, and what it is started with, collected
//! while the states are at hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{error::LaunchError, price};
use crate::{
    cache::{Output, TaskKind},
    data::prefix_of,
    digest::Digest,
    error::Result,
    figures::Statistics,
    graph::{Engine, Statuses, Task, TaskId, label},
    host::commit_around,
    job::Job,
    logs::LogSection,
    matrix::CellId,
    plan::{DataKind, Execution, Input, Place, Plan, Prepared},
    recipe::Recipe,
    results::RepeatsPlanned,
    run::{
        RunSpec,
        watched_inputs::{Content, Watched},
    },
};

/// One training: its cell in the plan, and what only this run of it has.
pub struct TrainWork<'a> {
    pub plan: &'a Plan,
    pub recipe: &'a Recipe,
    pub prepared: &'a Prepared,
    pub measurement: Measurement,
    /// Attempts that were known when this one was planned.
    pub seen: BTreeSet<String>,
    /// Names and bytes of the files that the recipe's templates make.
    pub launch_files: Vec<(String, Vec<u8>)>,
    /// The devices given to this run, as positions in `TrainHost::gpus`; empty on the cpu platform.
    pub devices: Vec<usize>,
    /// How long it is likely to take, where earlier runs tell.
    pub estimated_seconds: Option<f64>,
}

/// What a run measures: where its attempt is filed, and what its log is held against. It is a part
/// of the run's spec, so a tprimat that finds the run folder later knows it too.
#[derive(Clone, Serialize, Deserialize)]
pub struct Measurement {
    pub key: Digest,
    /// The task's name: `train cpu/native/llama/single#2`.
    pub task: String,
    pub preimage: String,
    pub generation: u32,
    pub log_section: LogSection,
    /// Repeats that the plan wants of the cell.
    pub repeats_planned: Option<RepeatsPlanned>,
    pub job: Job,
    /// The commit of the project, where it is a repository's.
    #[serde(default)]
    pub commit: Option<String>,
    /// The warm-up: whether something disturbed the run is judged on the steps after it.
    pub statistics: Statistics,
}

impl Measurement {
    /// What the folder of a run says of it; else why it is no measurement of anything.
    pub(super) fn of(spec: &RunSpec) -> std::result::Result<Self, String> {
        let unreadable = |why: serde_json::Error| {
            let dir = spec.dir.display();
            format!("the run folder {dir} is not readable: {why}")
        };
        Self::deserialize(&spec.meta).map_err(unreadable)
    }
}

/// For the train task at `node`.
pub fn train_work<'a>(
    engine: &Engine<'a>,
    node: TaskId,
    statuses: &Statuses,
    devices: Vec<usize>,
    preimage: &str,
) -> Result<TrainWork<'a>> {
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
    if work.execution().place == Place::Allocation {
        work.estimated_seconds = price::seconds_of_run(engine, statuses, task.cell);
    }
    work.devices = devices;
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
pub fn launch(plan: &Plan, cell: CellId, launch_files: Vec<(String, Vec<u8>)>) -> TrainWork<'_> {
    let prepared = plan.prepared(cell).expect("what runs is supported");
    let recipe = plan.recipe(cell);
    TrainWork {
        plan,
        recipe,
        prepared,
        measurement: Measurement {
            key: Digest::of(""),
            task: plan.cells[cell].id.clone(),
            preimage: String::new(),
            generation: 0,
            log_section: recipe.file.log.clone(),
            repeats_planned: None,
            commit: None,
            job: prepared.job().clone(),
            statistics: prepared.resolved.statistics.clone(),
        },
        seen: BTreeSet::new(),
        launch_files,
        devices: Vec::new(),
        estimated_seconds: None,
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

impl TrainWork<'_> {
    /// The task's name.
    pub(super) fn name(&self) -> &str {
        &self.measurement.task
    }

    pub(super) fn key(&self) -> &Digest {
        &self.measurement.key
    }

    pub(super) fn job(&self) -> &Job {
        self.prepared.job()
    }

    /// Where and how it is started.
    pub(super) fn execution(&self) -> &Execution {
        &self.prepared.resolved.execution
    }

    /// Does it start the trainer that ships with tprimat?
    pub(super) fn needs_native(&self) -> bool {
        let mut programs = self.recipe.file.require.programs.iter();
        programs.any(|program| program == "tprimat-native")
    }

    /// Where checkouts are on this host, by the variable that the script reads.
    pub(super) fn checkouts(&self) -> impl Iterator<Item = (String, PathBuf)> {
        let checkouts = self.plan.facts.checkouts(self.recipe).into_iter();
        checkouts.filter_map(|(checkout, path)| Some((checkout.variable.clone(), path?)))
    }

    /// What the plan knows by content and the run reads where it lies.
    pub(super) fn watched(&self) -> Vec<Watched> {
        let (plan, prepared) = (self.plan, self.prepared);
        let mut all = Vec::new();
        for input in &prepared.inputs.files {
            let Input { name, digest, .. } = input;
            let path = plan.root.join(name);
            let known = plan.reads.known(&path);
            let stamp = known.filter(|known| known.digest == *digest);
            let stamp = stamp.map(|known| known.stamp);
            let content = Content::File(*digest);
            let stamps = stamp.into_iter().collect();
            let mut watched = Watched::new(name, path, content, stamps);
            watched.is_guessed = input.may_be_output();
            all.push(watched);
        }
        let absent = prepared.inputs.absent.iter();
        all.extend(
            absent
                .map(|name| Watched::new(name, plan.root.join(name), Content::Nothing, Vec::new())),
        );
        for file in &prepared.data {
            if let Ok(digest) = file.digest {
                let (kind, path) = (file.kind, file.path.clone());
                let stamps = plan.facts.data_stamps(&path, digest);
                let name = format!("the {} {}", kind.name(), file.name);
                let content = Content::Data { kind, digest };
                all.push(Watched::new(name, path, content, stamps));
            }
        }
        if let Some(image) = &prepared.image
            && let (Some(file), Ok(text)) = (&image.file, &image.digest)
            && let Some(Ok(digest)) = text.strip_prefix("blake3:").map(str::parse)
        {
            let stamps = plan.facts.data_stamps(file, digest);
            let name = format!("the image {}", image.name);
            all.push(Watched::new(
                name,
                file.clone(),
                Content::File(digest),
                stamps,
            ));
        }
        for (checkout, path) in plan.facts.checkouts(self.recipe) {
            let (Some(path), Ok(known)) = (path, &prepared.facts.known) else {
                continue;
            };
            let prefix = format!("checkout.{}.", checkout.variable);
            let name = format!("the checkout in ${}", checkout.variable);
            let content = Content::Checkout {
                file: checkout.file.clone(),
                facts: texts_below(&prefix, known),
            };
            all.push(Watched::new(name, path, content, Vec::new()));
        }
        all
    }

    /// Where the run finds its data: absolute, and in no key. A tokenizer that is no file here is a
    /// name on a hub.
    pub(super) fn data_env(&self) -> BTreeMap<String, String> {
        let variable = |kind: DataKind| format!("TPRIMAT_{}", kind.name().to_uppercase());
        let place = |(kind, path): (&DataKind, &String)| {
            let full = self.plan.root.join(path);
            let place = match kind {
                DataKind::Dataset => prefix_of(&full).display().to_string(),
                DataKind::Tokenizer if full.exists() => full.display().to_string(),
                DataKind::Tokenizer => path.clone(),
            };
            (variable(*kind), place)
        };
        let paths = &self.prepared.resolved.data_paths;
        paths.iter().map(place).collect()
    }

    /// The versions of packages that the cell's key is made of.
    pub(super) fn packages(&self) -> BTreeMap<String, String> {
        let known = self.prepared.facts.known.as_ref().ok();
        known.map_or_else(BTreeMap::new, |known| texts_below("package.", known))
    }
}

/// The facts whose names begin so and whose values are texts, by the rest of their names.
fn texts_below(prefix: &str, facts: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let texts = facts.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix(prefix)?;
        Some((name.to_owned(), value.as_str()?.to_owned()))
    });
    texts.collect()
}
