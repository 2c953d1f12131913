//! All that one training needs: what it measures, what is started, where, and within which limits.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    figures::Statistics,
    host::Fact,
    job::Job,
    logs::LogSection,
    plan::Execution,
    recipe::Nodes,
    results::RepeatsPlanned,
    run::{spec::Hang, watched_inputs::Watched},
};

/// One training, owned: it runs on a thread of its own.
pub struct TrainWork {
    pub measurement: Measurement,
    /// Attempts that were known when this one was planned.
    pub seen: BTreeSet<String>,
    pub job: Job,
    pub launch: Launch,
    pub placement: Placement,
    pub limits: Limits,
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

/// What is started, and with which files and variables.
pub struct Launch {
    pub launch_files: Vec<(String, Vec<u8>)>,
    pub recipe_files: Vec<(String, Vec<u8>)>,
    /// The job in full, where the recipe reads it.
    pub job_json: Option<Vec<u8>>,
    pub command: Vec<String>,
    /// Which rank each node of a run on several has.
    pub nodes: Nodes,
    pub declared_env: BTreeMap<String, String>,
    /// Where data files are on this host.
    pub data_env: BTreeMap<String, String>,
    /// More names that the recipe lets through.
    pub pass_env: Vec<String>,
    /// Where config.yaml lists what the runs read: `frameworks.cmd.inputs`.
    pub inputs_setting: String,
    /// Does it start a Python, which says what it imports?
    pub starts_python: bool,
    /// The interpreter of the recipe on this host.
    pub python: PathBuf,
    /// Where checkouts are on this host, by the variable that the script reads.
    pub checkouts: Vec<(String, PathBuf)>,
    /// Does it start the trainer that ships with tprimat?
    pub needs_native: bool,
    /// What the run reads outside its folder.
    pub watched: Vec<Watched>,
}

/// Where a run is started, and what is confirmed there.
pub struct Placement {
    pub execution: Execution,
    /// The digest of its container's image.
    pub image: Option<String>,
    /// What its key says of the platform, and the rest of the section that those facts are from.
    pub facts: BTreeMap<String, Fact>,
    /// The packages in its key.
    pub packages: BTreeMap<String, String>,
    /// The interpreter that has them.
    pub python: PathBuf,
    /// Nobody else holds its devices meanwhile.
    pub exclusive: bool,
    /// The devices given to this run, as positions in `TrainHost::gpus`; empty on the cpu platform.
    pub devices: Vec<usize>,
}

/// How long a run may take.
pub struct Limits {
    pub timeout_seconds: Option<f64>,
    /// When it counts as hung.
    pub hang: Option<Hang>,
    /// How long it is likely to take, where earlier runs tell.
    pub estimated_seconds: Option<f64>,
}

impl TrainWork {
    /// The task's name.
    pub(super) fn name(&self) -> &str {
        &self.measurement.task
    }

    pub(super) fn key(&self) -> &Digest {
        &self.measurement.key
    }
}
