//! Loads the inputs of a project and prepares every cell of a matrix.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, OnceLock},
};

use rayon::prelude::*;
use serde_json::Value;

use super::{
    DataFile, DataKind, Job, PlatformFacts, Resolved, Unresolved, Vendor, facts::FactBook, inputs::Inputs, resolve,
};
use crate::{
    analyze::{self, CellEnvironment},
    config::{Config, framework_named},
    digest::Digest,
    error::{Error, Problem, Result, Source, nearest},
    files::{ReadSet, require_inside},
    graph::key::canonical,
    matrix::{self, Cell, Matrix, Selection, Wanted},
    recipe::{Recipe, RecipeSet, Unreached, unreached},
};

/// What a framework's recipe does not hand over, by framework, vendor and architecture.
type UnreachedSettings = BTreeMap<(Arc<str>, Vendor, String), Vec<Unreached>>;

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
}

/// A matrix, prepared: everything that keys are made of, and nothing that has run.
pub struct Plan {
    pub root: PathBuf,
    pub config: Config,
    pub recipes: RecipeSet,
    pub matrix: Matrix,
    /// The matrix is the one that is planned where none is named.
    pub is_default: bool,
    pub cells: Vec<CellPlan>,
    pub facts: FactBook,
    /// Everything that the plan rests on, as it was when it was read.
    pub reads: ReadSet,
    pub allow_drift: bool,
    /// The matrix file that config.yaml implies, where there is none.
    pub implied: Option<Arc<Source>>,
    pub(super) unreached: OnceLock<UnreachedSettings>,
    /// How config.yaml and the matrix were understood, where a reader should know it.
    pub notes: Vec<String>,
}

pub struct CellPlan {
    pub id: String,
    pub repeats: u32,
    pub selected: bool,
    /// Why a build cannot measure it on this host now although it is the right host: something is missing.
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
    /// Project files that the command declares or names: path, digest.
    pub inputs: Vec<(String, Digest)>,
    pub facts: Arc<PlatformFacts>,
    /// What the runs read, where they read real data.
    pub data: Vec<DataFile>,
}

impl Prepared {
    /// Are the facts known that keys are made of? If not, why.
    pub fn known(&self) -> Result<(), &str> {
        self.facts.known.as_ref().map_err(String::as_str)?;
        self.data.iter().try_for_each(|file| file.digest.as_ref().map(|_| ()).map_err(String::as_str))
    }

    /// Can this host run the job? If not, why.
    pub fn here(&self) -> Result<(), String> {
        self.facts.here(self.job())?;
        match self.data.iter().find(|file| !file.is_here) {
            Some(DataFile { kind, name, path, .. }) => {
                Err(format!("the {} `{name}` is not here ({})", kind.name(), path.display()))
            }
            None => Ok(()),
        }
    }

    /// What the runs are started in, for people: declared variables, facts of the lock, digests of the data.
    #[must_use]
    pub fn environment(&self) -> CellEnvironment {
        let mut facts = self.facts.all.clone();
        for DataFile { kind, digest, .. } in &self.data {
            let name = match kind {
                DataKind::Dataset => analyze::DATASET_DIGEST,
                DataKind::Tokenizer => analyze::TOKENIZER_DIGEST,
            };
            facts.extend(digest.as_ref().ok().map(|digest| (name.to_owned(), digest.to_string())));
        }
        CellEnvironment { variables: self.resolved.env.clone(), facts }.public()
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
    /// Loads config.yaml, the matrix and the recipes, and prepares every cell. All problems of all files at once.
    pub fn load(request: &PlanRequest) -> Result<Self> {
        let root = &request.root;
        let reads = ReadSet::default();
        // What is right of a file that has mistakes is read on, so that those of the matrix and of its cells are told as well.
        let (config, mut problems) = read_config(&root.join("config.yaml"), request, &reads)?;
        if let Some(config) = &config {
            let place = |key, default| root.join(config.get(key).and_then(Value::as_str).unwrap_or(default));
            // What is published or cached is no input, so nothing of such a project could be one.
            for (key, default) in [("paths.cache", "cache"), ("paths.output", "output")] {
                if root.starts_with(place(key, default)) {
                    let message = format!("`{key}` must not be the project itself, or a folder above it");
                    problems.push(config.problem_at(key, message, "here").help("name a folder for it alone"));
                }
            }
            reads.leave_out([
                place("paths.cache", "cache"),
                place("paths.output", "output"),
                root.join("tprimat.lock"),
            ]);
        }
        let recipes = collect(RecipeSet::read(root, &reads), &mut problems)?;
        problems.extend(recipes.iter().flat_map(reserved_names));
        let (Some(config), Some(recipes)) = (config, recipes) else { return Err(Error::Invalid(problems)) };
        let found = collect(matrix::find(request.matrix.as_deref(), root, &reads), &mut problems)?;
        let Some(matrix_path) = found else { return Err(Error::Invalid(problems)) };
        // Looked for as well, since it says where the matrix publishes.
        let is_default = match (matrix::find(None, root, &reads), &matrix_path) {
            (Ok(Some(default)), Some(path)) => same_file(&default, path),
            (Ok(default), path) => default.is_none() && path.is_none(),
            (Err(_), _) => false,
        };
        let mut facts = FactBook::load(root, request.allow_drift, &request.env, &reads)?;
        let Selection { frameworks, strategies, .. } = Selection::default().with_environment(&request.env);
        let source = match &matrix_path {
            Some(path) => {
                require_inside(root, path)?;
                Source::new(relative(path, root), read_text(path, &reads)?)
            }
            None => {
                let wanted = Wanted { frameworks: &frameworks, strategies: &strategies };
                let implied = matrix::implied(&config, wanted, &recipes.ids()).map_err(Error::Invalid);
                let Some(text) = collect(implied, &mut problems)? else { return Err(Error::Invalid(problems)) };
                Source::new("the matrix that config.yaml implies", text)
            }
        };
        let auto = facts.auto_platform(&config, &source.text);
        let loaded = matrix::load(source.clone(), &config, &recipes.ids(), auto.as_deref(), &strategies);
        let Some(mut matrix) = collect(loaded, &mut problems)? else { return Err(Error::Invalid(problems)) };
        if let Some(repeats) = request.repeats {
            matrix.cells.iter_mut().for_each(|cell| cell.repeats = repeats);
        }
        matrix.check_runs()?;
        let selected = match request.selection.select(&matrix.cells) {
            Err(_) if !problems.is_empty() => return Err(Error::Invalid(problems)),
            selected => selected?,
        };
        // Nothing will be planned of a project with mistakes, so nothing is looked for on this host.
        if problems.is_empty() {
            facts.gather(&config, &recipes, &matrix.cells)?;
        }
        let inputs = collect(Inputs::gather(root, &config, &matrix.cells, &reads), &mut problems)?.unwrap_or_default();
        let prepared: Vec<Result<CellPlan, Vec<Problem>>> = matrix
            .cells
            .par_iter()
            .zip(selected.par_iter())
            .map(|(cell, selected)| prepare(cell, *selected, &config, &recipes, &facts, &inputs))
            .collect();
        let mut cells = Vec::with_capacity(prepared.len());
        let mut of_cells = CellProblems::default();
        for (result, cell) in prepared.into_iter().zip(&matrix.cells) {
            match result {
                Ok(cell) => cells.push(cell),
                Err(more) => more.into_iter().for_each(|problem| of_cells.add(&cell.to_string(), problem)),
            }
        }
        problems.extend(of_cells.finish());
        if !problems.is_empty() {
            return Err(Error::Invalid(problems));
        }
        let notes = notes(&config, &recipes, &cells);
        facts.gather_data(&config, &matrix.cells, &mut cells)?;
        let implied = matrix_path.is_none().then_some(source);
        let allow_drift = request.allow_drift;
        let unreached = OnceLock::new();
        Ok(Self {
            root: root.clone(),
            config,
            recipes,
            matrix,
            is_default,
            cells,
            facts,
            reads,
            allow_drift,
            implied,
            unreached,
            notes,
        })
    }

    /// In a line, where the matrix comes from config.yaml alone.
    #[must_use]
    pub fn told_implied(&self) -> Option<String> {
        self.implied.as_ref()?;
        let names = |dimension: &str| {
            let mut names: Vec<&str> = Vec::new();
            for name in self.matrix.cells.iter().filter_map(|cell| cell.value(dimension)) {
                if !names.contains(&&**name) {
                    names.push(name);
                }
            }
            names.join(", ")
        };
        let axes = ["platform", "framework", "model", "parallelism"].map(names).join(" × ");
        Some(format!(
            "there is no matrix file; config.yaml implies {axes}: {} (`tprimat init --matrix` writes it)",
            crate::plain::counted(self.cells.len(), "cell")
        ))
    }

    #[must_use]
    pub fn recipe(&self, cell: usize) -> &Recipe {
        &self.recipes.recipes[&*self.matrix.cells[cell].framework]
    }

    /// Settings of the workload that the cell's recipe does not hand to its trainer. They are looked for once for each
    /// recipe, vendor and architecture, in the first such cell.
    #[must_use]
    pub fn unreached(&self, cell: usize) -> &[Unreached] {
        let key = |cell: usize| {
            let job = self.prepared(cell)?.job();
            Some((self.matrix.cells[cell].framework.clone(), job.vendor, job.model.architecture.clone()))
        };
        let all = self.unreached.get_or_init(|| {
            let mut found = BTreeMap::new();
            for cell in 0..self.cells.len() {
                if let (Some(key), Some(prepared)) = (key(cell), self.prepared(cell)) {
                    found
                        .entry(key)
                        .or_insert_with(|| unreached(self.recipe(cell), &self.recipes.templates, prepared.job()));
                }
            }
            found
        });
        key(cell).and_then(|key| all.get(&key)).map_or(&[], Vec::as_slice)
    }

    #[must_use]
    pub fn prepared(&self, cell: usize) -> Option<&Prepared> {
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
        let end = |id: &'_ str| id.match_indices('/').nth(depth - 1).map_or(base(id), |(at, _)| at);
        let near = nearest(id, ids())
            .or_else(|| nearest(id, ids().map(|id| &id[..base(id)])))
            .or_else(|| nearest(id, ids().map(|id| &id[..end(id)])))?;
        ids().find(|id| *id == near || id[..base(id)] == *near || id[..end(id)] == *near)
    }

    /// Position of the cell that a name on the command line means: its id, or whatever `--only` takes if it means one cell.
    pub fn find(&self, name: &str) -> Result<usize> {
        if let Some(position) = self.cells.iter().position(|c| c.id == name) {
            return Ok(position);
        }
        let meant = Selection::of_cell(name).select(&self.matrix.cells);
        let meant: Vec<usize> = match &meant {
            Ok(selected) => (0..selected.len()).filter(|cell| selected[*cell]).collect(),
            Err(_) => Vec::new(),
        };
        match meant[..] {
            [one] => Ok(one),
            [] => {
                let help = self.near(name).map_or_else(
                    || "`tprimat list` names the cells".to_owned(),
                    |near| format!("did you mean `{near}`?"),
                );
                let message = format!("the matrix `{}` has no cell `{name}`", self.matrix.name);
                Err(Error::NothingSelected { message, help: Some(help) })
            }
            [first, second, ..] => {
                let more = if meant.len() > 2 { format!(", or {} more", meant.len() - 2) } else { String::new() };
                let problem = Problem::new(format!("`{name}` may be any of {} cells", meant.len()));
                let (first, second) = (&self.cells[first].id, &self.cells[second].id);
                Err(Error::invalid(problem.help(format!("name one: {first}, {second}{more}"))))
            }
        }
    }
}

/// A recipe of the project under another name of a shipped one: what config.yaml says of it would be the other's.
fn reserved_names(recipes: &RecipeSet) -> Vec<Problem> {
    let mut problems = Vec::new();
    for id in recipes.ids() {
        if let Some(shipped) = framework_named(id).filter(|shipped| *shipped != id) {
            let message = format!("recipes/{id}: `{id}` is another name of the shipped recipe `{shipped}`");
            problems.push(Problem::new(message).help("give the folder and its `id` another name"));
        }
    }
    problems
}

/// What the config and the selected cells note, each once.
fn notes(config: &Config, recipes: &RecipeSet, cells: &[CellPlan]) -> Vec<String> {
    let mut notes: Vec<String> = config.notes().iter().map(told).collect();
    let unknown = config.children("frameworks").filter(|id| !recipes.recipes.contains_key(*id));
    notes.extend(unknown.map(|id| match nearest(id, recipes.ids()) {
        Some(near) => {
            format!("`frameworks.{id}` is used by nothing: there is no recipe `{id}`; did you mean `{near}`?")
        }
        None => format!("`frameworks.{id}` is used by nothing: there is no recipe `{id}`"),
    }));
    let selected = cells.iter().filter(|cell| cell.selected);
    for cell in selected {
        let Support::Ready(prepared) = &cell.support else { continue };
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
    if note.label.is_empty() { note.to_string() } else { format!("{note}: {}", note.label) }
}

/// Cells share their config: one problem is told once, however many cells meet it.
#[derive(Default)]
struct CellProblems {
    /// The first cell that met it, the problem without that cell's name, how many more met it.
    found: Vec<(Option<String>, Problem, usize)>,
}

impl CellProblems {
    fn add(&mut self, cell: &str, mut problem: Problem) {
        let named = problem.message.strip_prefix(cell).and_then(|rest| rest.strip_prefix(": ")).map(str::to_owned);
        let cell = named.is_some().then(|| cell.to_owned());
        if let Some(message) = named {
            problem.message = message;
        }
        match self.found.iter_mut().find(|(_, known, _)| *known == problem) {
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
pub fn look_at_config(path: &Path, request: &PlanRequest) -> Result<(Option<Config>, Vec<Problem>)> {
    read_config(path, request, &ReadSet::default())
}

fn read_config(path: &Path, request: &PlanRequest, reads: &ReadSet) -> Result<(Option<Config>, Vec<Problem>)> {
    require_inside(path.parent().unwrap_or(path), path)?;
    let source = Source::new("config.yaml", read_text(path, reads)?);
    let (mut config, mut problems) = Config::read(source, &request.env, &request.sets);
    if let Some(config) = &mut config {
        for (model, file) in config.hf_configs() {
            if let Err(problem) = complete_from_hf(config, request, &model, &file, reads) {
                problems.push(problem);
            }
        }
    }
    Ok((config, problems))
}

/// Takes a model's shape from the file that its `hf_config` names, or from the `config.json` of the folder that it names.
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
        Problem { help, ..config.problem_at(&at, message, "this file") }
    })?;
    config.complete_from_hf(model, file, &text)
}

fn read_text(path: &Path, reads: &ReadSet) -> Result<String> {
    let bytes = reads.read(path).and_then(|bytes| bytes.ok_or_else(|| io::ErrorKind::NotFound.into()));
    let bytes = bytes.map_err(Error::io("cannot read", path))?;
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(bytes).map_err(not_text).map_err(Error::io("cannot read", path))
}

fn same_file(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

fn prepare(
    cell: &Cell,
    selected: bool,
    config: &Config,
    recipes: &RecipeSet,
    facts: &FactBook,
    inputs: &Inputs,
) -> Result<CellPlan, Vec<Problem>> {
    let support =
        |support| Ok(CellPlan { id: cell.to_string(), repeats: cell.repeats, selected, blocked: None, support });
    let Some(recipe) = recipes.recipes.get(&*cell.framework) else {
        return support(Support::Unsupported(format!("there is no recipe `{}` yet", cell.framework)));
    };
    let resolved = match resolve(config, cell, recipe) {
        Ok(resolved) => resolved,
        Err(Unresolved::Refused(why)) => return support(Support::Unsupported(why)),
        // A variable or a slip may be about other cells than those that are wanted now; `check` has no selection.
        Err(Unresolved::Problems(problems)) if !selected => {
            return support(Support::Unsupported(problems.first().map_or_else(String::new, ToString::to_string)));
        }
        Err(Unresolved::Problems(problems)) => return Err(problems),
    };
    let job = as_json(&resolved.job);
    if !recipe.file.vendors.contains(&resolved.job.vendor) {
        let vendors: Vec<_> = recipe.file.vendors.iter().map(|v| v.name()).collect();
        let reason = format!("`{}` runs on {} only", cell.framework, vendors.join(", "));
        return support(Support::Unsupported(reason));
    }
    if let Some(constraint) = recipe.file.unsupported.iter().find(|c| c.applies(&job)) {
        return support(Support::Unsupported(constraint.reason.clone()));
    }
    support(Support::Ready(Box::new(Prepared {
        job_digest: Digest::of(job_text(&job)),
        inputs: inputs.of(&resolved.inputs, resolved.job.framework.get("command")),
        data: Vec::new(),
        facts: facts.of(&cell.platform, &cell.framework),
        resolved,
    })))
}
