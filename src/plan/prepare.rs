//! Loads the inputs of a project and prepares every cell of a matrix.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use rayon::prelude::*;
use serde_json::Value;

use super::{Job, PlatformFacts, Resolved, facts::FactBook, resolve};
use crate::{
    config::{Config, Values},
    digest::Digest,
    error::{Error, Problem, Result, Source},
    graph::key::canonical,
    matrix::{self, Cell, Matrix, Selection},
    recipe::{Recipe, RecipeSet},
};

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
    pub cells: Vec<CellPlan>,
    pub facts: FactBook,
    /// Files that were read, for the memo of a build with nothing to do.
    pub read: Vec<PathBuf>,
    /// Folders whose names were matched against globs.
    pub read_folders: Vec<PathBuf>,
    pub allow_drift: bool,
}

pub struct CellPlan {
    pub id: String,
    pub repeats: u32,
    pub selected: bool,
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
    /// Project files that the command declares: path, digest.
    pub inputs: Vec<(String, Digest)>,
    pub facts: Arc<PlatformFacts>,
}

impl Prepared {
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
        let mut problems = Vec::new();
        let config_path = root.join("config.yaml");
        let config = collect(load_config(&config_path, request), &mut problems)?;
        let recipes = collect(RecipeSet::load(root), &mut problems)?;
        let matrix_path = matrix::find(request.matrix.as_deref(), root)?;
        let (Some(config), Some(recipes)) = (config, recipes) else { return Err(Error::Invalid(problems)) };
        let mut facts = FactBook::load(root, request.allow_drift)?;
        let text = crate::files::read_to_string(&matrix_path)?;
        let source = Source::new(relative(&matrix_path, root), text);
        let auto = facts.auto_platform(&config, &source.text);
        let mut matrix = matrix::load(source, &config, &recipes.ids(), auto.as_deref())?;
        if let Some(repeats) = request.repeats {
            matrix.cells.iter_mut().for_each(|cell| cell.repeats = repeats);
        }
        let selected = request.selection.select(&matrix.cells)?;
        facts.gather(&config, &recipes, &matrix.cells)?;
        let inputs = Inputs::gather(root, &config, &matrix.cells)?;
        let prepared: Vec<Result<CellPlan, Vec<Problem>>> = matrix
            .cells
            .par_iter()
            .zip(selected.par_iter())
            .map(|(cell, selected)| prepare(cell, *selected, &config, &recipes, &facts, &inputs))
            .collect();
        let mut cells = Vec::with_capacity(prepared.len());
        for result in prepared {
            match result {
                Ok(cell) => cells.push(cell),
                // Cells share their config: report one problem once, however many cells meet it.
                Err(more) => {
                    for problem in more {
                        if !problems.contains(&problem) {
                            problems.push(problem);
                        }
                    }
                }
            }
        }
        if !problems.is_empty() {
            return Err(Error::Invalid(problems));
        }
        let mut read = vec![config_path, matrix_path, root.join("tprimat.lock")];
        read.extend(inputs.files.keys().map(|name| root.join(name)));
        let read_folders = inputs.files.keys().filter_map(|name| Some(root.join(name).parent()?.to_owned())).collect();
        Ok(Self {
            root: root.clone(),
            config,
            recipes,
            matrix,
            cells,
            facts,
            read,
            read_folders,
            allow_drift: request.allow_drift,
        })
    }

    #[must_use]
    pub fn recipe(&self, cell: usize) -> &Recipe {
        &self.recipes.recipes[&*self.matrix.cells[cell].framework]
    }

    #[must_use]
    pub fn prepared(&self, cell: usize) -> Option<&Prepared> {
        match &self.cells[cell].support {
            Support::Ready(prepared) => Some(prepared),
            Support::Unsupported(_) => None,
        }
    }

    /// Position of a cell by its id.
    pub fn find(&self, id: &str) -> Result<usize> {
        self.cells.iter().position(|c| c.id == id).ok_or_else(|| Error::NothingSelected {
            message: format!("the matrix `{}` has no cell `{id}`", self.matrix.name),
            help: crate::error::nearest(id, self.cells.iter().map(|c| c.id.as_str()))
                .map(|near| format!("did you mean `{near}`?")),
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
    let text = crate::files::read_to_string(path)?;
    Config::load(Source::new("config.yaml", text), &request.env, &request.sets)
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
    let support = |support| Ok(CellPlan { id: cell.to_string(), repeats: cell.repeats, selected, support });
    let Some(recipe) = recipes.recipes.get(&*cell.framework) else {
        return support(Support::Unsupported(format!("there is no recipe `{}` yet", cell.framework)));
    };
    let resolved = resolve(config, cell, recipe)?;
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
        inputs: inputs.of(&resolved.inputs),
        facts: facts.of(&cell.platform, &cell.framework),
        resolved,
    })))
}

/// Digests of the project files that commands declare as inputs; each glob is walked once.
struct Inputs {
    globs: HashMap<String, Vec<String>>,
    files: BTreeMap<String, Digest>,
}

impl Inputs {
    fn gather(root: &Path, config: &Config, cells: &[Cell]) -> Result<Self> {
        let mut inputs = Self { globs: HashMap::new(), files: BTreeMap::new() };
        let nothing = &Values::default();
        for cell in cells {
            // Only settings that cells share or override can differ; the cost is one look-up a cell.
            let view = config.view(nothing, &cell.overlay);
            let path = format!("frameworks.{}.inputs", cell.framework);
            let Some(value) = view.get(&path) else { continue };
            for glob in super::resolve::strings(Some(value)) {
                let glob = glob.as_str();
                if !inputs.globs.contains_key(glob) {
                    let matched = expand_glob(root, glob)?;
                    if matched.is_empty() {
                        let message = format!("no file of the project matches the input `{glob}`");
                        return Err(Error::invalid(config.problem_at(&path, message, "matches nothing")));
                    }
                    for name in &matched {
                        if !inputs.files.contains_key(name) {
                            let full = root.join(name);
                            let digest = Digest::of_file(&full).map_err(Error::io("cannot read the input", &full))?;
                            inputs.files.insert(name.clone(), digest);
                        }
                    }
                    inputs.globs.insert(glob.to_owned(), matched);
                }
            }
        }
        Ok(inputs)
    }

    fn of(&self, globs: &[String]) -> Vec<(String, Digest)> {
        let names: std::collections::BTreeSet<&String> =
            globs.iter().filter_map(|g| self.globs.get(g)).flatten().collect();
        names.into_iter().map(|name| (name.clone(), self.files[name])).collect()
    }
}

fn expand_glob(root: &Path, pattern: &str) -> Result<Vec<String>> {
    if !pattern.contains(['*', '?', '[', '{']) {
        return Ok(if root.join(pattern).is_file() { vec![pattern.to_owned()] } else { Vec::new() });
    }
    let glob = globset::GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(|e| Error::invalid(Problem::new(format!("`{pattern}` is not a glob: {e}"))))?
        .compile_matcher();
    // Start below the part of the pattern that is not a glob, never at the cache.
    let fixed: PathBuf = Path::new(pattern)
        .components()
        .take_while(|c| !c.as_os_str().to_string_lossy().contains(['*', '?', '[', '{']))
        .collect();
    let (mut found, mut pending) = (Vec::new(), vec![fixed]);
    while let Some(below) = pending.pop() {
        for entry in std::fs::read_dir(root.join(&below)).into_iter().flatten().flatten() {
            let path = below.join(entry.file_name());
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                pending.push(path);
            } else if glob.is_match(&path) {
                found.extend(path.to_str().map(str::to_owned));
            }
        }
    }
    found.sort();
    Ok(found)
}
