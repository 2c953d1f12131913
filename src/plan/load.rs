//! Loads the inputs of a project and prepares every cell of a matrix.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use rayon::prelude::*;

use super::{
    Asked, CellPlan, CellProblem, FactBook, Place, Support,
    inputs::Finder,
    prepare::prepare,
    read_config::{read_config, read_text},
};
use crate::{
    config::{Config, framework_named},
    digest::Digest,
    error::{Error, Problem, Result, Source, nearest},
    files::{ReadSet, require_inside},
    matrix::{self, Cell, CellId, ImpliedNames, Matrix, PerCell, Selection},
    recipe::{RecipeSet, Unreached},
    words::plain::counted,
};

/// What a framework's recipe does not hand over, by framework and job.
type UnreachedSettings = Mutex<HashMap<(Arc<str>, Digest), Arc<[Unreached]>>>;

/// What to plan.
#[derive(Clone, Debug, Default)]
pub struct PlanRequest {
    /// The project root: the nearest ancestor with a config.yaml.
    pub root: PathBuf,
    /// `-C`, as it was given.
    pub directory: Option<PathBuf>,
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
    /// Packages whose versions keys cover, besides those that recipes name.
    pub packages: Vec<String>,
    /// Cells in place of those that the matrix has: the arms of a search.
    pub arms: Vec<Cell>,
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
    /// Its file; none where config.yaml implies it.
    pub matrix_path: Option<PathBuf>,
    /// What the command line named, for the commands that messages suggest.
    pub asked: Asked,
    pub cells: PerCell<CellPlan>,
    pub facts: FactBook,
    /// Everything that the plan rests on, as it was when it was read.
    pub reads: ReadSet,
    pub allow_drift: bool,
    /// The matrix file that config.yaml implies, where there is none.
    pub implied: Option<Arc<Source>>,
    pub(super) unreached: UnreachedSettings,
    /// The same of commands of the user's own, by cell.
    pub(super) lost: OnceLock<HashMap<CellId, Arc<[Unreached]>>>,
    /// Does a command open the job? By where the list of its inputs is in memory, which its cells share.
    pub(super) readers: Mutex<HashMap<usize, bool>>,
    /// How config.yaml and the matrix were understood, where a reader should know it.
    pub notes: Vec<String>,
    /// Names that the selection asks for and no cell has, and how the matrix would get them.
    pub unmet: Vec<String>,
}

impl Plan {
    /// Loads config.yaml, the matrix and the recipes, and prepares every cell. All problems of all
    /// files at once.
    pub fn load(request: &PlanRequest) -> Result<Self> {
        let root = &request.root;
        let reads = ReadSet::default();
        let (config, recipes, mut problems) = read_inputs(request, &reads)?;
        let (Some(config), Some(mut recipes)) = (config, recipes) else {
            return Err(Error::Invalid(problems));
        };
        for recipe in recipes.recipes.values_mut() {
            recipe.file.lock.cover(&request.packages);
        }
        let found = collect(
            matrix::find(request.matrix.as_deref(), root, &reads),
            &mut problems,
        )?;
        let Some(matrix_path) = found else {
            return Err(Error::Invalid(problems));
        };
        let is_default = is_default(matrix_path.as_deref(), root, &reads);
        let asked = Asked {
            matrix: request.matrix.clone().filter(|_| !is_default),
            ..Asked::of(request)
        };
        let mut facts = FactBook::load(root, request.allow_drift, &request.env, &reads)?;
        facts.update = asked.command("lock", &["--update"]);
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
        if !request.arms.is_empty() {
            matrix.cells = request.arms.clone().into();
        }
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
        let mut unmet: Vec<String> = unmet.iter().map(|unmet| project.note(unmet)).collect();
        if let Some((part, parts)) = request.selection.shard
            && !selected.contains(&true)
        {
            let of_all_shards = Selection {
                shard: None,
                ..request.selection.clone()
            };
            let all = of_all_shards.select(&matrix.cells)?;
            let all = all.into_iter().filter(|is_selected| *is_selected).count();
            unmet.push(format!(
                "shard {part}/{parts} has no cell; the other shards have the {} of the matrix `{}`",
                counted(all, "selected cell"),
                matrix.name
            ));
        }
        // Nothing will be planned of a project with mistakes, so nothing is looked for on this
        // host.
        if problems.is_empty() {
            facts.gather(&config, &recipes, &matrix.cells)?;
        }
        let (mut cells, of_cells) =
            prepare_all(&matrix.cells, &selected, &config, &recipes, &facts);
        problems.extend(of_cells);
        if !problems.is_empty() {
            return Err(Error::Invalid(problems));
        }
        find_inputs(root, &config, &recipes, &matrix.cells, &mut cells, &reads)?;
        facts.gather_packages(&recipes, &matrix.cells, &mut cells, &reads)?;
        let notes = notes(&config, &recipes, &cells);
        facts.gather_data(&config, &matrix.cells, &mut cells)?;
        leave_pods_out(&matrix.cells, &cells, &mut facts);
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
            matrix_path,
            asked,
            cells,
            facts,
            reads,
            allow_drift,
            implied,
            unreached,
            lost: OnceLock::new(),
            readers: Mutex::default(),
            notes,
            unmet,
        })
    }
}

/// config.yaml and the recipes, and all that is wrong with them. What is right of a file that has
/// mistakes is read on, so that those of the matrix and of its cells are told as well.
fn read_inputs(
    request: &PlanRequest,
    reads: &ReadSet,
) -> Result<(Option<Config>, Option<RecipeSet>, Vec<Problem>)> {
    let root = &request.root;
    let (config, mut problems) = read_config(&root.join("config.yaml"), request, reads)?;
    if let Some(config) = &config {
        let (cache, output) = (config.cache_dir(root), config.output_dir(root));
        // What is published or cached is no input, so nothing of such a project could be one.
        for (key, folder) in [("paths.cache", &cache), ("paths.output", &output)] {
            if root.starts_with(folder) {
                let message =
                    format!("`{key}` must not be the project itself, or a folder above it");
                let problem = config.problem_at(key, message, "here");
                problems.push(problem.help("name a folder for it alone"));
            }
        }
        reads.leave_out([cache, output, root.join("tprimat.lock")]);
    }
    let mut recipes = collect(RecipeSet::read(root, reads), &mut problems)?;
    if let (Some(config), Some(recipes)) = (&config, &mut recipes) {
        collect(recipes.add_commands(config), &mut problems)?;
    }
    problems.extend(recipes.iter().flat_map(reserved_names));
    Ok((config, recipes, problems))
}

/// Is the matrix the one that is planned where none is named? That one is looked for as well, since
/// it says where the matrix publishes.
fn is_default(matrix: Option<&Path>, root: &Path, reads: &ReadSet) -> bool {
    match (matrix::find(None, root, reads), matrix) {
        (Ok(Some(default)), Some(path)) => same_file(&default, path),
        (Ok(default), path) => default.is_none() && path.is_none(),
        (Err(_), _) => false,
    }
}

/// Every cell that can be planned, and what is wrong with the others.
fn prepare_all(
    cells: &[Cell],
    selected: &[bool],
    config: &Config,
    recipes: &RecipeSet,
    facts: &FactBook,
) -> (Vec<CellPlan>, Vec<Problem>) {
    let prepared: Vec<Result<CellPlan, Vec<CellProblem>>> = cells
        .par_iter()
        .zip(selected.par_iter())
        .map(|(cell, selected)| prepare(cell, *selected, config, recipes, facts))
        .collect();
    let mut plans = Vec::with_capacity(cells.len());
    let mut problems = CellProblems::default();
    for (result, cell) in prepared.into_iter().zip(cells) {
        match result {
            Ok(plan) => plans.push(plan),
            Err(found) => {
                for problem in found {
                    problems.add(cell, problem);
                }
            }
        }
    }
    (plans, problems.finish().collect())
}

/// What this host is is not written into the lock for a platform whose runs are all in pods.
fn leave_pods_out(cells: &PerCell<Cell>, plans: &[CellPlan], facts: &mut FactBook) {
    let is_elsewhere = |platform: &str| {
        let of_platform = cells
            .iter()
            .zip(plans)
            .filter(|(cell, _)| *cell.platform == *platform);
        let mut ready = of_platform.filter_map(|(_, plan)| match &plan.support {
            Support::Ready(prepared) => Some(prepared.resolved.execution.place),
            Support::Unsupported(_) => None,
        });
        ready.all(|place| place == Place::Kubernetes)
    };
    let platforms: Vec<String> = facts.missing.keys().cloned().collect();
    for platform in platforms {
        if facts.lacks(&platform) && is_elsewhere(&platform) {
            facts.missing.remove(&platform);
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

/// Refuses a recipe of the project whose id is another name of a shipped recipe: what config.yaml
/// says of it would be taken for the shipped one's.
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
        None => format!(
            "`frameworks.{id}` is used by nothing: it has no `command`, and there is no recipe `{id}`"
        ),
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
    fn add(&mut self, cell: &Cell, found: CellProblem) {
        let CellProblem {
            problem,
            is_of_cell,
        } = found;
        let cell = is_of_cell.then(|| cell.to_string());
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

pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
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
