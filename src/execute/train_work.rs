//! One training: what it measures, and where the plan says how it is run.

use std::{collections::BTreeSet, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    figures::Statistics,
    job::Job,
    logs::LogSection,
    plan::{Execution, Plan, Prepared},
    recipe::Recipe,
    results::RepeatsPlanned,
    run::RunSpec,
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
    pub(super) fn of(spec: &RunSpec) -> Result<Self, String> {
        let unreadable = |why: serde_json::Error| {
            let dir = spec.dir.display();
            format!("the run folder {dir} is not readable: {why}")
        };
        Self::deserialize(&spec.meta).map_err(unreadable)
    }
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
}
