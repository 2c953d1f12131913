//! Loads the inputs of a project and prepares every cell of a matrix.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use rayon::prelude::*;
use serde_json::Value;
use tprimat_words::part;

use super::{
    DataFile, DataKind, Image, Place, PlatformFacts, Resolved, Unresolved,
    facts::FactBook,
    inputs::{Finder, Inputs},
    preimage::canonical,
    resolve,
};
use crate::{
    config::{Config, framework_named},
    digest::Digest,
    error::{Error, Problem, Result, Source, nearest},
    figures::CellEnvironment,
    files::{ReadSet, require_inside},
    job::Job,
    matrix::{self, Cell, CellId, ImpliedNames, Matrix, PerCell, Selection},
    recipe::{Constraint, Recipe, RecipeSet, Unreached, unreached},
};

/// What a framework's recipe does not hand over, by framework and job.
type UnreachedSettings = Mutex<HashMap<(Arc<str>, Digest), Arc<[Unreached]>>>;

/// What to plan.
#[derive(Clone, Debug, Default)]
pub struct PlanRequest {
    /// The project root: the nearest ancestor with a config.yaml.
    pub root: PathBuf,
    /// `None` = the default matrix.
    pub matrix: Option<String>,
    pub sets: Vec<String>,
    pub selection: Selection,
    /// `--repeats`: overrides the matrix.
    pub repeats: Option<u32>,
    /// The caller's environment.
    pub env: BTreeMap<String, String>,
    /// `--allow-drift`: file attempts under the probed facts where they differ from the lock.
    pub allow_drift: bool,
    /// `--executor`: in place of `execution.<platform>.executor`, for every platform.
    pub executor: Option<String>,
}

/// A matrix, prepared: everything that keys are made of, and nothing that has run.
pub struct Plan {
    pub root: PathBuf,
    pub config: Config,
    pub recipes: RecipeSet,
    pub matrix: Matrix,
    /// The matrix is the one that is planned where none is named.
    pub is_default: bool,
    /// What names the matrix on the command line, where a command would take another one without
    /// it.
    pub argument: Option<String>,
    pub cells: PerCell<CellPlan>,
    pub facts: FactBook,
    /// Everything that the plan rests on, as it was when it was read.
    pub reads: ReadSet,
    pub allow_drift: bool,
    /// The matrix file that config.yaml implies, where there is none.
    pub implied: Option<Arc<Source>>,
    pub(super) unreached: UnreachedSettings,
    /// How config.yaml and the matrix were understood, where a reader should know it.
    pub notes: Vec<String>,
    /// Names that the selection asks for and no cell has, and how the matrix would get them.
    pub unmet: Vec<String>,
}

pub struct CellPlan {
    pub id: String,
    pub repeats: u32,
    pub selected: bool,
    /// Why a build cannot measure it on this host now although it is the right host: something is
    /// missing.
    pub blocked: Option<String>,
    pub support: Support,
}

pub enum Support {
    Ready(Box<Prepared>),
    Unsupported(String),
}

/// A cell that can be planned.
pub struct Prepared {
    pub resolved: Resolved,
    /// Digest of the job's text.
    pub job_digest: Digest,
    /// Project files that are declared, or that the command names.
    pub inputs: Arc<Inputs>,
    pub facts: Arc<PlatformFacts>,
    /// What the runs read, where they read real data.
    pub data: Vec<DataFile>,
    /// What the runs are started in, where that is a container.
    pub image: Option<Image>,
}

impl Prepared {
    /// Are the facts known that keys are made of? If not, why.
    pub fn known(&self) -> Result<(), &str> {
        self.facts.known.as_ref().map_err(String::as_str)?;
        self.image
            .iter()
            .try_for_each(|image| image.digest.as_ref().map(|_| ()).map_err(String::as_str))?;
        self.data
            .iter()
            .try_for_each(|file| file.digest.as_ref().map(|_| ()).map_err(String::as_str))
    }

    /// Can this host run the job? If not, why.
    pub fn here(&self) -> Result<(), String> {
        let nodes = self.job().parallelism.num_nodes;
        if nodes > 1 && self.resolved.execution.place == Place::Local {
            return Err(format!(
                "needs {nodes} nodes, which only the slurm executor starts (--executor slurm)"
            ));
        }
        self.facts.here(self.job())?;
        match self.data.iter().find(|file| !file.is_here) {
            Some(DataFile {
                kind, name, path, ..
            }) => Err(format!(
                "the {} `{name}` is not here ({})",
                kind.name(),
                path.display()
            )),
            None => Ok(()),
        }
    }

    /// What the runs are started in, for people: declared variables, facts of the lock, digests of
    /// the data.
    #[must_use]
    pub fn environment(&self) -> CellEnvironment {
        let mut facts = self.facts.all.clone();
        for DataFile { kind, digest, .. } in &self.data {
            let name = match kind {
                DataKind::Dataset => crate::results::DATASET_DIGEST,
                DataKind::Tokenizer => crate::results::TOKENIZER_DIGEST,
            };
            facts.extend(
                digest
                    .as_ref()
                    .ok()
                    .map(|digest| (name.to_owned(), digest.to_string())),
            );
        }
        let digest = self
            .image
            .as_ref()
            .and_then(|image| image.digest.as_ref().ok());
        facts.extend(digest.map(|digest| ("image".to_owned(), digest.clone())));
        CellEnvironment {
            variables: self.resolved.env.clone(),
            facts,
        }
        .public()
    }

    #[must_use]
    pub fn job(&self) -> &Job {
        &self.resolved.job
    }

    /// Canonical text of the job, the nested pre-image in keys. Made anew: only what runs needs it.
    #[must_use]
    pub fn job_text(&self) -> String {
        job_text(&as_json(self.job()))
    }
}

fn as_json(job: &Job) -> Value {
    serde_json::to_value(job).expect("a job is plain data")
}

fn job_text(job: &Value) -> String {
    static DEFAULT: LazyLock<Value> = LazyLock::new(|| as_json(&Job::default()));
    canonical("tprimat-job 1", job, &DEFAULT)
}

impl Plan {
    /// Loads config.yaml, the matrix and the recipes, and prepares every cell. All problems of all
    /// files at once.
    pub fn load(request: &PlanRequest) -> Result<Self> {
        let root = &request.root;
        let reads = ReadSet::default();
        // What is right of a file that has mistakes is read on, so that those of the matrix and of
        // its cells are told as well.
        let (config, mut problems) = read_config(&root.join("config.yaml"), request, &reads)?;
        if let Some(config) = &config {
            let (cache, output) = (config.cache_dir(root), config.output_dir(root));
            // What is published or cached is no input, so nothing of such a project could be one.
            for (key, folder) in [("paths.cache", &cache), ("paths.output", &output)] {
                if root.starts_with(folder) {
                    let message =
                        format!("`{key}` must not be the project itself, or a folder above it");
                    problems.push(
                        config
                            .problem_at(key, message, "here")
                            .help("name a folder for it alone"),
                    );
                }
            }
            reads.leave_out([cache, output, root.join("tprimat.lock")]);
        }
        let recipes = collect(RecipeSet::read(root, &reads), &mut problems)?;
        problems.extend(recipes.iter().flat_map(reserved_names));
        let (Some(config), Some(recipes)) = (config, recipes) else {
            return Err(Error::Invalid(problems));
        };
        let found = collect(
            matrix::find(request.matrix.as_deref(), root, &reads),
            &mut problems,
        )?;
        let Some(matrix_path) = found else {
            return Err(Error::Invalid(problems));
        };
        // Looked for as well, since it says where the matrix publishes.
        let is_default = match (matrix::find(None, root, &reads), &matrix_path) {
            (Ok(Some(default)), Some(path)) => same_file(&default, path),
            (Ok(default), path) => default.is_none() && path.is_none(),
            (Err(_), _) => false,
        };
        let mut facts = FactBook::load(root, request.allow_drift, &request.env, &reads)?;
        let Selection {
            frameworks,
            strategies,
            ..
        } = Selection::default().with_environment(&request.env);
        let wanted = ImpliedNames {
            frameworks: &frameworks,
            strategies: &strategies,
        };
        let source = matrix_source(
            &config,
            &recipes,
            matrix_path.as_deref(),
            wanted,
            (root, &reads),
        );
        let Some(source) = collect(source, &mut problems)? else {
            return Err(Error::Invalid(problems));
        };
        let auto = facts.auto_platform(&config, &source.text);
        let loaded = matrix::load(
            source.clone(),
            &config,
            &recipes.ids(),
            auto.as_deref(),
            &strategies,
        );
        let Some(mut matrix) = collect(loaded, &mut problems)? else {
            return Err(Error::Invalid(problems));
        };
        if let Some(repeats) = request.repeats {
            matrix
                .cells
                .iter_mut()
                .for_each(|cell| cell.repeats = repeats);
        }
        matrix.check_runs()?;
        let named_file = matrix_path.as_ref().map(|path| relative(path, root));
        let project = matrix::Project {
            config: &config,
            recipes: &recipes.ids(),
            matrix: &matrix,
            file: named_file.as_deref(),
            is_chosen: !frameworks.is_empty(),
        };
        let unmet = request.selection.unmet(&matrix.cells);
        let selected = match request.selection.select(&matrix.cells) {
            Err(_) if !problems.is_empty() => return Err(Error::Invalid(problems)),
            Err(Error::NothingSelected { message, help }) => {
                let how = unmet.iter().find_map(|unmet| project.how_to_add(unmet));
                let help = how.or(help);
                return Err(Error::NothingSelected { message, help });
            }
            selected => selected?,
        };
        let unmet = unmet.iter().map(|unmet| project.note(unmet)).collect();
        // Nothing will be planned of a project with mistakes, so nothing is looked for on this
        // host.
        if problems.is_empty() {
            facts.gather(&config, &recipes, &matrix.cells)?;
        }
        let prepared: Vec<Result<CellPlan, Vec<Problem>>> = matrix
            .cells
            .par_iter()
            .zip(selected.par_iter())
            .map(|(cell, selected)| prepare(cell, *selected, &config, &recipes, &facts))
            .collect();
        let mut cells = Vec::with_capacity(prepared.len());
        let mut of_cells = CellProblems::default();
        for (result, cell) in prepared.into_iter().zip(&matrix.cells) {
            match result {
                Ok(cell) => cells.push(cell),
                Err(more) => more
                    .into_iter()
                    .for_each(|problem| of_cells.add(&cell.to_string(), problem)),
            }
        }
        problems.extend(of_cells.finish());
        if !problems.is_empty() {
            return Err(Error::Invalid(problems));
        }
        find_inputs(root, &config, &recipes, &matrix.cells, &mut cells, &reads)?;
        let notes = notes(&config, &recipes, &cells);
        facts.gather_data(&config, &matrix.cells, &mut cells)?;
        let implied = matrix_path.is_none().then_some(source);
        let cells = cells.into();
        let allow_drift = request.allow_drift;
        let unreached = Mutex::default();
        Ok(Self {
            root: root.clone(),
            config,
            recipes,
            matrix,
            is_default,
            argument: request.matrix.clone().filter(|_| !is_default),
            cells,
            facts,
            reads,
            allow_drift,
            implied,
            unreached,
            notes,
            unmet,
        })
    }

    /// The folder of the project's measurements.
    #[must_use]
    pub fn cache_dir(&self) -> PathBuf {
        self.config.cache_dir(&self.root)
    }

    /// In a line, where the matrix comes from config.yaml alone.
    #[must_use]
    pub fn told_implied(&self) -> Option<String> {
        self.implied.as_ref()?;
        let names = |dimension: &str| {
            let mut names: Vec<&str> = Vec::new();
            for name in self
                .matrix
                .cells
                .iter()
                .filter_map(|cell| cell.value(dimension))
            {
                if !names.contains(&&**name) {
                    names.push(name);
                }
            }
            names.join(", ")
        };
        let axes = ["platform", "framework", "model", "parallelism"]
            .map(names)
            .join(" × ");
        Some(format!(
            "there is no matrix file; config.yaml implies {axes}: {} (`tprimat init --matrix` writes it)",
            crate::words::plain::counted(self.cells.len(), "cell")
        ))
    }

    #[must_use]
    pub fn recipe(&self, cell: CellId) -> &Recipe {
        &self.recipes.recipes[&*self.matrix.cells[cell].framework]
    }

    /// Settings of the workload that the cell's recipe does not hand to its trainer. A template may
    /// use a setting in some cells only, so they are looked for once for each job.
    #[must_use]
    pub fn unreached(&self, cell: CellId) -> Arc<[Unreached]> {
        let Some(prepared) = self.prepared(cell) else {
            return Arc::default();
        };
        let recipe = self.recipe(cell);
        if recipe.file.launch.reads_job {
            return Arc::default();
        }
        let key = (
            self.matrix.cells[cell].framework.clone(),
            prepared.job_digest,
        );
        let known = || {
            self.unreached
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(found) = known().get(&key) {
            return found.clone();
        }
        let found: Arc<[Unreached]> =
            unreached(recipe, &self.recipes.templates, prepared.job()).into();
        known().insert(key, found.clone());
        found
    }

    #[must_use]
    pub fn prepared(&self, cell: CellId) -> Option<&Prepared> {
        match &self.cells[cell].support {
            Support::Ready(prepared) => Some(prepared),
            Support::Unsupported(_) => None,
        }
    }

    /// The cell that was meant; its axes may have been left out.
    fn near(&self, id: &str) -> Option<&str> {
        let ids = || self.cells.iter().map(|c| c.id.as_str());
        let base = |id: &'_ str| id.find('@').unwrap_or(id.len());
        // As many parts as were written.
        let depth = id.split('/').count();
        let end = |id: &'_ str| {
            id.match_indices('/')
                .nth(depth - 1)
                .map_or(base(id), |(at, _)| at)
        };
        let near = nearest(id, ids())
            .or_else(|| nearest(id, ids().map(|id| part(id, ..base(id)))))
            .or_else(|| nearest(id, ids().map(|id| part(id, ..end(id)))))?;
        ids().find(|id| *id == near || part(id, ..base(id)) == near || part(id, ..end(id)) == near)
    }

    /// Which other matrix of the project has the cell. Those that cannot be read have none.
    fn in_another_matrix(&self, name: &str) -> Option<String> {
        let reads = ReadSet::default();
        let has_it = |file: &String| {
            let path = matrix::find(Some(file), &self.root, &reads).ok().flatten();
            let text = path.and_then(|path| read_text(&path, &reads).ok());
            let source = Source::new(file.as_str(), text.unwrap_or_default());
            matrix::load(source, &self.config, &self.recipes.ids(), None, &[])
                .is_ok_and(|other| other.cells.iter().any(|cell| cell.to_string() == name))
        };
        let file = matrix::files(&self.root).into_iter().find(has_it)?;
        Some(format!("the matrix `{file}` has it: add --matrix {file}"))
    }

    /// Position of the cell that a name on the command line means: its id, or whatever `--only`
    /// takes if it means one cell.
    pub fn find(&self, name: &str) -> Result<CellId> {
        if let Some((id, _)) = self.cells.with_ids().find(|(_, c)| c.id == name) {
            return Ok(id);
        }
        let meant = Selection::of_cell(name).select(&self.matrix.cells);
        let meant: Vec<CellId> = match &meant {
            Ok(selected) => {
                let cells = self.cells.ids().zip(selected);
                cells.filter(|(_, is)| **is).map(|(id, _)| id).collect()
            }
            Err(_) => Vec::new(),
        };
        match meant[..] {
            [one] => Ok(one),
            [] => {
                let near = || Some(format!("did you mean `{}`?", self.near(name)?));
                let help = self
                    .in_another_matrix(name)
                    .or_else(near)
                    .unwrap_or_else(|| "`tprimat list` names the cells".to_owned());
                let message = format!("the matrix `{}` has no cell `{name}`", self.matrix.name);
                Err(Error::NothingSelected {
                    message,
                    help: Some(help),
                })
            }
            [first, second, ..] => {
                let more = if meant.len() > 2 {
                    format!(", or {} more", meant.len() - 2)
                } else {
                    String::new()
                };
                let problem = Problem::new(format!("`{name}` may be any of {} cells", meant.len()));
                let (first, second) = (&self.cells[first].id, &self.cells[second].id);
                Err(Error::invalid(
                    problem.help(format!("name one: {first}, {second}{more}")),
                ))
            }
        }
    }
}

/// The text of the matrix: of its file, or what config.yaml implies.
fn matrix_source(
    config: &Config,
    recipes: &RecipeSet,
    path: Option<&Path>,
    wanted: ImpliedNames<'_>,
    (root, reads): (&Path, &ReadSet),
) -> Result<Arc<Source>> {
    let Some(path) = path else {
        let text = matrix::implied(config, wanted, &recipes.ids()).map_err(Error::Invalid)?;
        return Ok(Source::new("the matrix that config.yaml implies", text));
    };
    require_inside(root, path)?;
    Ok(Source::new(relative(path, root), read_text(path, reads)?))
}

/// Each cell's inputs, from its settings as they are in effect: also those that its recipe gives.
fn find_inputs(
    root: &Path,
    config: &Config,
    recipes: &RecipeSet,
    of: &[Cell],
    cells: &mut [CellPlan],
    reads: &ReadSet,
) -> Result<()> {
    let mut finder = Finder::new(root, reads);
    for (planned, cell) in cells.iter_mut().zip(of) {
        if let Support::Ready(prepared) = &mut planned.support {
            let view = config.view(&recipes.recipes[&*cell.framework].defaults, &cell.overlay);
            prepared.inputs = finder.of(&prepared.resolved, &view, &cell.framework)?;
        }
    }
    Ok(())
}

/// A recipe of the project under another name of a shipped one: what config.yaml says of it would
/// be the other's.
fn reserved_names(recipes: &RecipeSet) -> Vec<Problem> {
    let mut problems = Vec::new();
    for id in recipes.ids() {
        if let Some(shipped) = framework_named(id).filter(|shipped| *shipped != id) {
            let message =
                format!("recipes/{id}: `{id}` is another name of the shipped recipe `{shipped}`");
            problems.push(Problem::new(message).help("give the folder and its `id` another name"));
        }
    }
    problems
}

/// What the config and the selected cells note, each once.
fn notes(config: &Config, recipes: &RecipeSet, cells: &[CellPlan]) -> Vec<String> {
    let mut notes: Vec<String> = config.notes().iter().map(told).collect();
    notes.extend(config.literal_secrets().into_iter().map(|path| {
        let name = path.rsplit('.').next().unwrap_or_default();
        format!(
            "`{path}` looks like a secret, so its value is hidden and is not part of the cache key: changing it does not trigger a new run. \
             If it is a setting, set it in the command (`{name}=… python …`), which is part of the key; if it is a secret, take it \
             from an environment variable: \"${{{name}}}\""
        )
    }));
    let unknown = config
        .children("frameworks")
        .filter(|id| !recipes.recipes.contains_key(*id));
    notes.extend(unknown.map(|id| match nearest(id, recipes.ids()) {
        Some(near) => {
            format!("`frameworks.{id}` is used by nothing: there is no recipe `{id}`; did you mean `{near}`?")
        }
        None => format!("`frameworks.{id}` is used by nothing: there is no recipe `{id}`"),
    }));
    let selected = cells.iter().filter(|cell| cell.selected);
    for cell in selected {
        let Support::Ready(prepared) = &cell.support else {
            continue;
        };
        for note in &prepared.resolved.notes {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
    }
    notes
}

/// A note of the config in one line.
fn told(note: &Problem) -> String {
    if note.label.is_empty() {
        note.to_string()
    } else {
        format!("{note}: {}", note.label)
    }
}

/// Cells share their config: one problem is told once, however many cells meet it.
#[derive(Default)]
struct CellProblems {
    /// The first cell that met it, the problem without that cell's name, how many more met it.
    found: Vec<(Option<String>, Problem, usize)>,
}

impl CellProblems {
    fn add(&mut self, cell: &str, mut problem: Problem) {
        let named = problem
            .message
            .strip_prefix(cell)
            .and_then(|rest| rest.strip_prefix(": "))
            .map(str::to_owned);
        let cell = named.is_some().then(|| cell.to_owned());
        if let Some(message) = named {
            problem.message = message;
        }
        match self
            .found
            .iter_mut()
            .find(|(_, known, _)| *known == problem)
        {
            Some((_, _, more)) => *more += 1,
            None => self.found.push((cell, problem, 0)),
        }
    }

    fn finish(self) -> impl Iterator<Item = Problem> {
        self.found.into_iter().map(|(cell, mut problem, more)| {
            let others = match more {
                0 => String::new(),
                1 => " and 1 more cell".to_owned(),
                _ => format!(" and {more} more cells"),
            };
            if let Some(cell) = cell {
                problem.message = format!("{cell}{others}: {}", problem.message);
            }
            problem
        })
    }
}

fn collect<T>(result: Result<T>, problems: &mut Vec<Problem>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Invalid(more)) => {
            problems.extend(more);
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

pub fn load_config(path: &Path, request: &PlanRequest) -> Result<Config> {
    match look_at_config(path, request)? {
        (Some(config), problems) if problems.is_empty() => Ok(config),
        (_, problems) => Err(Error::Invalid(problems)),
    }
}

/// What is right of a config.yaml, and all that is wrong with it. No config: it is not YAML.
pub fn look_at_config(
    path: &Path,
    request: &PlanRequest,
) -> Result<(Option<Config>, Vec<Problem>)> {
    read_config(path, request, &ReadSet::default())
}

fn read_config(
    path: &Path,
    request: &PlanRequest,
    reads: &ReadSet,
) -> Result<(Option<Config>, Vec<Problem>)> {
    require_inside(path.parent().unwrap_or(path), path)?;
    let source = Source::new("config.yaml", read_text(path, reads)?);
    let (mut config, mut problems) = Config::read(source.clone(), &request.env, &request.sets);
    let platforms: Vec<String> = config
        .iter()
        .flat_map(|c| c.children("hardware.platforms").map(str::to_owned))
        .collect();
    if let Some(executor) = &request.executor {
        let sets = platforms
            .iter()
            .map(|platform| format!("execution.{platform}.executor={executor}"));
        let sets: Vec<String> = request.sets.iter().cloned().chain(sets).collect();
        (config, problems) = Config::read(source, &request.env, &sets);
    }
    if let Some(config) = &mut config {
        for (model, file) in config.hf_configs() {
            if let Err(problem) = complete_from_hf(config, request, &model, &file, reads) {
                problems.push(problem);
            }
        }
    }
    Ok((config, problems))
}

/// Takes a model's shape from the file that its `hf_config` names, or from the `config.json` of the
/// folder that it names.
fn complete_from_hf(
    config: &mut Config,
    request: &PlanRequest,
    model: &str,
    file: &str,
    reads: &ReadSet,
) -> Result<(), Problem> {
    let mut path = request.root.join(file);
    if path.is_dir() {
        path = path.join("config.json");
    }
    let text = require_inside(&request.root, &path).and_then(|()| read_text(&path, reads));
    let text = text.map_err(|error| {
        let at = format!("models.{model}.hf_config");
        let (message, help) = match &error {
            Error::Invalid(problems) => (problems[0].message.clone(), problems[0].help.clone()),
            other => (other.to_string(), None),
        };
        Problem {
            help,
            ..config.problem_at(&at, message, "this file")
        }
    })?;
    config.complete_from_hf(model, file, &text)
}

fn read_text(path: &Path, reads: &ReadSet) -> Result<String> {
    let bytes = reads
        .read(path)
        .and_then(|bytes| bytes.ok_or_else(|| io::ErrorKind::NotFound.into()));
    let bytes = bytes.map_err(Error::io("cannot read", path))?;
    let not_text = |_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "stream did not contain valid UTF-8",
        )
    };
    String::from_utf8(bytes)
        .map_err(not_text)
        .map_err(Error::io("cannot read", path))
}

fn same_file(a: &Path, b: &Path) -> bool {
    a == b
        || a.canonicalize()
            .is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// The facts that hold where the cell's runs are.
fn facts_of(cell: &Cell, resolved: &Resolved, facts: &FactBook) -> Arc<PlatformFacts> {
    let mut facts = facts.of(&cell.platform, &cell.framework);
    if resolved.execution.container.is_some() {
        facts = Arc::new(facts.without_packages());
    }
    if resolved.execution.place != Place::Local {
        facts = Arc::new(facts.elsewhere(&cell.platform));
    }
    facts
}

/// The block to write where a recipe that is data parallel only refuses a degree of model
/// parallelism.
fn data_parallel(
    cell: &Cell,
    resolved: &Resolved,
    recipe: &Recipe,
    refused: &Constraint,
) -> String {
    const TENSOR: &str = "parallelism.tensor_model_parallel_size";
    const DEGREES: [&str; 3] = [
        TENSOR,
        "parallelism.pipeline_model_parallel_size",
        "parallelism.context_parallel_size",
    ];
    let is_of = |constraint: &Constraint, degrees: &[&str]| {
        let mut fields = constraint.when.keys();
        fields.all(|field| degrees.contains(&field.as_str()))
    };
    let has_no_tensor = recipe.file.unsupported.iter().any(|c| is_of(c, &[TENSOR]));
    if !has_no_tensor || !is_of(refused, &DEGREES) {
        return String::new();
    }
    format!(
        "; to run it, add `{}: {{ TP: 1, PP: 1, CP: 1, DP: {} }}` where the strategy `{}` states its degrees",
        cell.framework, resolved.job.parallelism.num_gpus, cell.parallelism
    )
}

fn prepare(
    cell: &Cell,
    selected: bool,
    config: &Config,
    recipes: &RecipeSet,
    facts: &FactBook,
) -> Result<CellPlan, Vec<Problem>> {
    let support = |support| {
        Ok(CellPlan {
            id: cell.to_string(),
            repeats: cell.repeats,
            selected,
            blocked: None,
            support,
        })
    };
    let Some(recipe) = recipes.recipes.get(&*cell.framework) else {
        return support(Support::Unsupported(format!(
            "there is no recipe `{}` yet",
            cell.framework
        )));
    };
    let resolved = match resolve(config, cell, recipe) {
        Ok(resolved) => resolved,
        Err(Unresolved::Refused(why)) => return support(Support::Unsupported(why)),
        // A variable or a slip may be about other cells than those that are wanted now; `check` has
        // no selection.
        Err(Unresolved::Problems(problems)) if !selected => {
            return support(Support::Unsupported(
                problems
                    .first()
                    .map_or_else(String::new, ToString::to_string),
            ));
        }
        Err(Unresolved::Problems(problems)) => return Err(problems),
    };
    let job = as_json(&resolved.job);
    if !recipe.file.vendors.contains(&resolved.job.vendor) {
        let devices: Vec<_> = recipe.file.vendors.iter().map(|v| v.devices()).collect();
        let reason = format!(
            "`{}` runs on {} only",
            cell.framework,
            devices.join(" and ")
        );
        return support(Support::Unsupported(reason));
    }
    if let Some(constraint) = recipe.file.unsupported.iter().find(|c| c.applies(&job)) {
        let reason = &constraint.reason;
        let how = data_parallel(cell, &resolved, recipe, constraint);
        return support(Support::Unsupported(format!("{reason}{how}")));
    }
    let nodes = resolved.job.parallelism.num_nodes;
    if nodes > 1 && !recipe.file.launch.nodes {
        let reason = format!(
            "it needs {nodes} nodes, and the recipe `{}` does not say that it can start on several (`nodes = true` in [launch])",
            cell.framework
        );
        return support(Support::Unsupported(reason));
    }
    support(Support::Ready(Box::new(Prepared {
        job_digest: Digest::of(job_text(&job)),
        inputs: Arc::default(),
        data: Vec::new(),
        image: None,
        facts: facts_of(cell, &resolved, facts),
        resolved,
    })))
}
