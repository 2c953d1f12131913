//! A project that a command has opened: its settings alone, or with the cells of a matrix and what
//! the cache knows of them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde_json::json;

use super::{
    args::Globals,
    flags::{Common, Measured, Overrides},
    output, project,
};
use crate::{
    cache::{Cache, TaskKind},
    config::Config,
    error::Result,
    execute::{
        derived,
        reading::{self, FigureScope},
    },
    figures::{self, CellInput, GateInput},
    graph::{CodeDigests, Dag, Engine, Options, Statuses},
    matrix::{self, CellId},
    plan::{self, CellPlan, CompareConfig, Plan, PlanRequest, Support, load_config},
    words::plain::counted,
};

/// A folder with a config.yaml, for commands that look at no matrix.
pub struct Project {
    pub request: PlanRequest,
    pub config: Config,
}

impl Project {
    pub fn open(globals: &Globals, sets: &[String]) -> Result<Self> {
        let root = project::root(globals)?;
        Self::of(PlanRequest {
            root,
            directory: globals.directory.clone(),
            sets: sets.to_vec(),
            env: project::environment(),
            ..PlanRequest::default()
        })
    }

    pub fn of(request: PlanRequest) -> Result<Self> {
        let config = load_config(&request.root.join("config.yaml"), &request)?;
        output::detail(&format!("project: {}", request.root.display()));
        Ok(Self { request, config })
    }

    pub fn root(&self) -> &Path {
        &self.request.root
    }

    pub fn cache_dir(&self) -> PathBuf {
        self.config.cache_dir(self.root())
    }

    pub fn cache(&self) -> Result<Cache> {
        Cache::open(&self.cache_dir())
    }
}

/// The cells of a matrix, the tasks that they need, and the cache that holds what those left.
pub struct Session {
    pub request: PlanRequest,
    pub plan: Plan,
    pub cache: Cache,
    pub dag: Dag,
}

impl Session {
    pub fn open(request: PlanRequest) -> Result<Self> {
        let plan = Plan::load(&request)?;
        Self::of(request, plan)
    }

    /// The same for commands that need no project: in a folder without one, only what is needed to
    /// read the imports of its cache.
    pub fn open_or_imports(
        globals: &Globals,
        common: &Common,
        measured: &Measured,
    ) -> Result<Self> {
        let error = match project::request(globals, common, None, measured) {
            Ok(request) => return Self::open(request),
            Err(error) => error,
        };
        match project::without_project(globals, common)? {
            Some(request) if project::is_cache(&request.root.join("cache")) => Self::bare(request),
            _ => Err(error),
        }
    }

    /// The folder of a request that has no project.
    pub fn bare(request: PlanRequest) -> Result<Self> {
        let plan = Plan::bare(&request)?;
        Self::of(request, plan)
    }

    fn of(request: PlanRequest, plan: Plan) -> Result<Self> {
        let cache = Cache::open(&plan.cache_dir())?;
        if let bytes @ 1.. = cache.unreadable_bytes() {
            output::say(&format!(
                "warning: {} of the cache's records cannot be read: runs may be missing; `tprimat cache verify` says where",
                counted(bytes as usize, "byte")
            ));
        }
        let found = matrix::find(request.matrix.as_deref(), &plan.root, &plan.reads);
        let matrix = found.ok().flatten().map_or_else(
            || "the one that config.yaml implies".to_owned(),
            |path| path.display().to_string(),
        );
        output::detail(&format!(
            "project: {}\nmatrix: {matrix} ({})\ncache: {}\ntprimat.lock: {}",
            plan.root.display(),
            counted(plan.cells.len(), "cell"),
            cache.root().display(),
            plan.root.join("tprimat.lock").display(),
        ));
        let dag = Dag::new(&plan)?;
        Ok(Self {
            request,
            plan,
            cache,
            dag,
        })
    }

    /// The states of all tasks, for commands that show what there is.
    pub fn look(&self) -> Result<(Engine<'_>, Statuses)> {
        let engine = self.engine(&Overrides::default());
        let statuses = engine.evaluate_all()?;
        Ok((engine, statuses))
    }

    /// An engine that keeps disturbed measurements.
    pub fn engine(&self, overrides: &Overrides) -> Engine<'_> {
        self.engine_that(overrides, false)
    }

    /// An engine that replaces disturbed measurements, for commands that run what is stale, or say
    /// what would run.
    pub fn planner(&self, overrides: &Overrides) -> Engine<'_> {
        self.engine_that(overrides, true)
    }

    fn engine_that(&self, overrides: &Overrides, replace: bool) -> Engine<'_> {
        Engine {
            plan: &self.plan,
            dag: &self.dag,
            cache: &self.cache,
            code: CodeDigests::default(),
            options: Options {
                retry_failed: overrides.retry_failed,
                force: overrides.force,
                replace,
            },
            compare_settings: json!(CompareConfig::of(&self.plan)),
            trainings: OnceLock::new(),
            measured: BTreeMap::new(),
        }
    }

    /// The cells of the matrix with their summaries, as far as they are fresh.
    pub fn gate_inputs(&self) -> Result<Vec<GateInput>> {
        let Self {
            plan, cache, dag, ..
        } = self;
        let (engine, statuses) = self.look()?;
        let inputs = derived::cell_inputs(
            reading::cell_seeds(&engine, &statuses, FigureScope::Complete)?,
            cache,
        )?;
        let catalogue = plan::catalogue(&plan.config);
        let key = |cell: CellId| {
            statuses
                .get(dag.node(TaskKind::Train, cell, 1))
                .key
                .map(|key| key.to_string())
        };
        let gated = |(input, (cell, planned)): (CellInput, (CellId, &CellPlan))| GateInput {
            key: (planned.repeats > 0
                && input.imported.is_empty()
                && matches!(planned.support, Support::Ready(_)))
            .then(|| key(cell))
            .flatten(),
            selected: planned.selected,
            impossible: figures::impossible(&input, &catalogue),
            input,
        };
        Ok(inputs
            .into_iter()
            .zip(plan.cells.with_ids())
            .map(gated)
            .collect())
    }
}
