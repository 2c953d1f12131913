//! A project that a command has opened: its settings alone, or with the cells of a matrix and what
//! the cache knows of them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rayon::prelude::*;
use serde_json::json;

use super::{
    args::Globals,
    blocked,
    build::Round,
    flags::{Common, Force, Measured, Overrides},
    output, project,
};
use crate::{
    cache::{Cache, Fault, TaskKind, is_decision},
    config::Config,
    error::Result,
    execute::{
        derived,
        reading::{self, FigureScope},
    },
    figures::{self, CellInput, GateInput},
    files::ReadSet,
    graph::{CodeDigests, Dag, Engine, Options, State, Statuses, Verdicts},
    import::Imports,
    matrix::{self, CellId, PerCell},
    plan::{self, CellPlan, CompareConfig, Plan, PlanRequest, Support, load_config},
    words::plain::counted,
};

/// A folder with a config.yaml, for commands that look at no matrix.
pub struct Project {
    pub request: PlanRequest,
    pub config: Config,
    /// The folder has no config.yaml, only a cache with imports.
    is_bare: bool,
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
        Ok(Self {
            request,
            config,
            is_bare: false,
        })
    }

    /// The same for commands that look at the cache alone: also a folder without config.yaml, whose
    /// cache holds imports.
    pub fn open_or_imports(globals: &Globals, sets: &[String]) -> Result<Self> {
        let common = Common::of(None, sets.to_vec());
        match project::of_imports(globals, &common)? {
            Some(request) => Ok(Self {
                config: plan::starter_config(&request)?,
                request,
                is_bare: true,
            }),
            None => Self::open(globals, sets),
        }
    }

    /// The matrix of the project, or what is needed to read its imports where it has none.
    pub fn session(&self) -> Result<Session> {
        let request = self.request.clone();
        if self.is_bare {
            Session::bare(request)
        } else {
            Session::open(request)
        }
    }

    /// The same where the project has no matrix that can be read, and what was recorded has to do.
    pub fn without_matrix(self) -> Result<Session> {
        let plan = Plan::without_matrix(&self.request, self.config)?;
        Session::of(self.request, plan)
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
    /// The round that the next runs are of.
    round: Option<u64>,
    /// Bytes of damaged records that the user knows of.
    damage_told: AtomicU64,
}

impl Session {
    pub fn open(request: PlanRequest) -> Result<Self> {
        let plan = Plan::load(&request)?;
        Self::of(request, plan)
    }

    /// The same for commands that need no project: in a folder without one, or with a config.yaml that
    /// implies no matrix, only what is needed to read the imports of its cache.
    pub fn open_or_imports(
        globals: &Globals,
        common: &Common,
        measured: &Measured,
    ) -> Result<Self> {
        let error = match project::request(globals, common, None, measured) {
            Ok(request) => {
                let opened = Self::open(request.clone());
                let instead = || Self::without_implied(request).filter(Self::has_imports);
                let Some(session) = opened.as_ref().err().and_then(|_| instead()) else {
                    return opened;
                };
                output::note(&format!(
                    "note: config.yaml implies no matrix that can be planned (`{}` says why), so only what was imported is looked at",
                    session.plan.asked.of_project(&["check"])
                ));
                return Ok(session);
            }
            Err(error) => error,
        };
        match project::of_imports(globals, common)? {
            Some(request) => Self::bare(request),
            None => Err(error),
        }
    }

    /// A project whose config.yaml can be read, where what is wrong is the matrix that it implies:
    /// nothing of it can be built, and imports need none.
    pub fn without_implied(request: PlanRequest) -> Option<Self> {
        let found = matrix::find(None, &request.root, &ReadSet::default());
        if request.matrix.is_some() || !matches!(found, Ok(None)) {
            return None;
        }
        let config = load_config(&request.root.join("config.yaml"), &request).ok()?;
        let plan = Plan::without_matrix(&request, config).ok()?;
        Self::of(request, plan).ok()
    }

    fn has_imports(&self) -> bool {
        Imports::of(&self.cache).kept_cells().next().is_some()
    }

    /// The folder of a request that has no project.
    pub fn bare(request: PlanRequest) -> Result<Self> {
        let plan = Plan::bare(&request)?;
        Self::of(request, plan)
    }

    fn of(request: PlanRequest, plan: Plan) -> Result<Self> {
        let cache = Cache::open(&plan.cache_dir())?;
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
        let mut session = Self {
            request,
            plan,
            cache,
            dag,
            round: None,
            damage_told: AtomicU64::new(0),
        };
        session.add_decided()?;
        session.tell_damage();
        Ok(session)
    }

    /// Runs that were added until a decision count, unless the command line says how many do.
    fn add_decided(&mut self) -> Result<()> {
        if self.request.repeats.is_some() {
            return Ok(());
        }
        let engine = self.engine(&Overrides::default());
        let cells = self.plan.cells.par_ids();
        let repeats = cells
            .map(|cell| engine.repeats_with_decided(cell))
            .collect::<Result<Vec<u32>>>()?;
        let asked = self.plan.cells.iter().map(|planned| planned.repeats);
        if asked.eq(repeats.iter().copied()) {
            return Ok(());
        }
        self.set_repeats(&repeats.into())
    }

    /// Gives each cell as many repeats.
    pub fn set_repeats(&mut self, repeats: &PerCell<u32>) -> Result<()> {
        for (cell, planned) in self.plan.cells.with_ids_mut() {
            planned.repeats = repeats[cell];
        }
        self.dag = Dag::new(&self.plan)?;
        Ok(())
    }

    /// Leaves nothing to be run but one round.
    pub fn of_round(&mut self, round: &Round) -> Result<()> {
        for (cell, planned) in self.plan.cells.with_ids_mut() {
            planned.selected &= round.cells.contains(&cell);
        }
        self.round = Some(round.name);
        self.set_repeats(&round.repeats)
    }

    /// Tells what of the cache's records could not be read, each once. Most are met only when a record
    /// is asked for, so this is called again when the states of all tasks are known.
    pub fn tell_damage(&self) {
        let faults = self.cache.faults();
        let told = self
            .damage_told
            .swap(faults.len() as u64, Ordering::Relaxed);
        let Some((path, fault)) = faults.iter().next() else {
            return;
        };
        if faults.len() as u64 <= told {
            return;
        }
        let path = self.cache.root().join(path);
        let what = match fault {
            Fault::Damaged => "is damaged".to_owned(),
            Fault::Unread(why) => format!("cannot be read ({why})"),
        };
        let then = match is_decision(&path) {
            true => "that decision has lost its reason",
            false => "what was recorded there does not count",
        };
        let more = match faults.len() - 1 {
            0 => String::new(),
            more => format!(", and so are {more} more"),
        };
        output::say(&format!(
            "warning: {} {what}{more}: {then}; `{}` names all",
            path.display(),
            self.plan.asked.of_project(&["cache", "verify"])
        ));
    }

    /// The states of all tasks, for commands that show what there is.
    pub fn look(&self) -> Result<(Engine<'_>, Statuses)> {
        let engine = self.engine(&Overrides::default());
        let statuses = engine.evaluate_all()?;
        self.tell_damage();
        let damaged = self.damaged_summaries(&statuses)?;
        if damaged.is_empty() {
            return Ok((engine, statuses));
        }
        let (summaries, are, them) = match damaged.len() {
            1 => ("the summary", "is", "it"),
            _ => ("the summaries", "are", "them"),
        };
        output::say(&format!(
            "warning: {summaries} of {} {are} damaged in the cache; `{}` makes {them} again from the results",
            blocked::few(&damaged),
            self.plan.command("build", &[])
        ));
        // To this process what it has found damaged is not there any more.
        let engine = self.engine(&Overrides::default());
        let statuses = engine.evaluate_all()?;
        Ok((engine, statuses))
    }

    /// Cells whose summary is damaged: nobody would know before it is read, and then it is too late
    /// to sum up the repeats instead.
    fn damaged_summaries(&self, statuses: &Statuses) -> Result<Vec<&str>> {
        let cells = &self.plan.cells;
        let damaged = |id: CellId| {
            let aggregate = self.dag.find(TaskKind::Aggregate, id, 0)?;
            let status = statuses.get(aggregate);
            let summary = status.outputs().first()?;
            if status.state != State::Fresh || !self.cache.has(&summary.digest) {
                return None;
            }
            let is_sound = self.cache.is_sound(&summary.digest);
            is_sound
                .map(|sound| (!sound).then(|| cells[id].id.as_str()))
                .transpose()
        };
        cells.par_ids().filter_map(damaged).collect()
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
                retry_failed: overrides.has(Force::Failed),
                force: overrides.has(Force::Memory),
                keep_going: overrides.keep_going,
                replace,
                round: self.round,
            },
            compare_settings: json!(CompareConfig::of(&self.plan)),
            trainings: OnceLock::new(),
            written: OnceLock::new(),
            earlier: OnceLock::new(),
            measured: BTreeMap::new(),
            verdicts: Verdicts::default(),
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
            output::leave_out,
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
