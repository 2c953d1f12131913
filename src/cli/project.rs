//! Common ground of the subcommands: the project root, the plan, the cache, the engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde_json::json;

use super::flags::{Cells, Common, Insist, Measured, Wanted};
use crate::{
    analyze::{self, CellInput, GateInput},
    cache::{Cache, TaskKind},
    error::{Error, Problem, Result},
    execute::{
        derived,
        reading::{self, Reach},
    },
    files,
    graph::{CodeDigests, Dag, Engine, Options},
    import::Imports,
    matrix::Selection,
    plan::{CellPlan, Plan, PlanRequest, Support, Vendor},
};

/// The nearest folder, from `at` upwards, with a config.yaml.
pub fn root(at: Option<&Path>) -> Result<PathBuf> {
    let start = start(at)?;
    let root = above(&start).ok_or_else(|| {
        let problem = Problem::new(format!("there is no config.yaml in {} or above it", start.display()));
        Error::invalid(problem.help("`tprimat init` writes a starter project"))
    })?;
    // Anybody may put a config.yaml into /tmp, which is above many a folder.
    files::require_own("the project", &root)?;
    files::require_own("the file", &root.join("config.yaml"))?;
    Ok(root)
}

fn start(at: Option<&Path>) -> Result<PathBuf> {
    let start = at.map_or_else(std::env::current_dir, |dir| dir.canonicalize());
    start.map_err(Error::io("cannot find the folder", at.unwrap_or(Path::new("."))))
}

fn above(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|dir| dir.join("config.yaml").is_file()).map(Path::to_owned)
}

/// The plan of a project. In a folder without one, what is needed to read imports that its cache has.
pub fn plan_or_imports(at: Option<&Path>, common: &Common, measured: &Measured) -> Result<Plan> {
    match request(at, common, None, measured) {
        Ok(request) => Plan::load(&request),
        Err(error) => match without_project(at, common)? {
            Some(request) if is_cache(&request.root.join("cache")) => Plan::bare(&request),
            _ => Err(error),
        },
    }
}

/// The request of a command that needs no project, where there is none: the folder itself is its root.
pub fn without_project(at: Option<&Path>, common: &Common) -> Result<Option<PlanRequest>> {
    let root = start(at)?;
    // A project of somebody else's is refused, not passed over.
    if above(&root).is_some() || common.matrix.is_some() {
        return Ok(None);
    }
    Ok(Some(PlanRequest { root, sets: common.sets.clone(), env: environment(), ..PlanRequest::default() }))
}

/// Did tprimat make this folder for its cache?
#[must_use]
pub fn is_cache(folder: &Path) -> bool {
    folder.join("CACHEDIR.TAG").is_file() && folder.join("segments").is_dir()
}

/// The caller's environment, as far as it is text.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// What is to be planned; `cells` where the command is of some cells only.
pub fn request(at: Option<&Path>, common: &Common, cells: Option<&Cells>, measured: &Measured) -> Result<PlanRequest> {
    let env = environment();
    Ok(PlanRequest {
        root: root(at)?,
        matrix: common.matrix.clone(),
        sets: common.sets.clone(),
        selection: cells.map(|cells| selection(cells, &env)).transpose()?.unwrap_or_default(),
        repeats: measured.repeats.repeats,
        env,
        allow_drift: measured.drift.allow_drift,
    })
}

/// The same where a command takes all of that.
pub fn wanted(at: Option<&Path>, Wanted { common, cells, measured, .. }: &Wanted) -> Result<PlanRequest> {
    request(at, common, Some(cells), measured)
}

fn selection(cells: &Cells, env: &BTreeMap<String, String>) -> Result<Selection> {
    let Cells { only, skip, where_, shard } = cells.clone();
    let shard = shard.as_deref().map(Selection::parse_shard).transpose()?;
    Ok(Selection { only, skip, where_, shard, ..Selection::default() }.with_environment(env))
}

/// Where the cache of a project is.
#[must_use]
pub fn cache_dir(plan: &Plan) -> PathBuf {
    let name = plan.config.get("paths.cache").and_then(|v| v.as_str()).unwrap_or("cache");
    plan.root.join(name)
}

/// What recipes do not hand to their trainers, a sentence a recipe.
#[must_use]
pub fn not_handed_over(plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    for cell in 0..plan.cells.len() {
        let fields: Vec<&str> = plan.unreached(cell).iter().map(|unreached| unreached.field).collect();
        if let Some(first) = fields.first() {
            let id = &plan.recipe(cell).file.id;
            let note = format!(
                "recipe `{id}` does not hand over {}: its cells have no rate unless the log states these settings; use `{{{{ job.{first} }}}}` in its templates, hand the whole job over with `reads_job = true`, or say in an `[[ignored]]` why a field means nothing to it",
                fields.join(", ")
            );
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes
}

/// Says on stderr where the matrix comes from, and that there are notes.
pub fn say_notes(plan: &Plan) {
    if let Some(implied) = plan.told_implied() {
        eprintln!("note: {implied}");
    }
    match plan.notes.len() {
        0 => {}
        1 => eprintln!("note: {}", plan.notes[0]),
        n => eprintln!("note: {n} settings were adapted or read in an older spelling; `tprimat check` lists them"),
    }
    for note in not_handed_over(plan).into_iter().chain(not_identical(plan)) {
        eprintln!("note: {note}");
    }
}

/// Cells of which the matrix says that nothing but platform and framework differs, and more does.
#[must_use]
pub fn not_identical(plan: &Plan) -> Vec<String> {
    let ready = (0..plan.cells.len()).filter_map(|at| Some((at, plan.prepared(at)?)));
    analyze::not_identical(ready.map(|(at, prepared)| {
        let cell = &plan.matrix.cells[at];
        ((&cell.model, &cell.axes), plan.cells[at].id.as_str(), &*cell.parallelism, prepared.job())
    }))
}

/// Settings of the later stages, as their keys cover them.
pub fn engine<'a>(plan: &'a Plan, dag: &'a Dag, cache: &'a Cache, insist: &Insist) -> Engine<'a> {
    let settings = crate::execute::derived::Settings::of(plan);
    Engine {
        plan,
        dag,
        cache,
        code: CodeDigests::default(),
        options: Options { retry_failed: insist.retry_failed, force: insist.force, replace: false },
        compare_settings: json!(settings.compare),
    }
}

/// The same for those who run what is stale, or say what would.
pub fn planner<'a>(plan: &'a Plan, dag: &'a Dag, cache: &'a Cache, insist: &Insist) -> Engine<'a> {
    let engine = engine(plan, dag, cache, insist);
    Engine { options: Options { replace: true, ..engine.options.clone() }, ..engine }
}

/// An error if this host contradicts tprimat.lock in what the selected cells would run with.
pub fn refuse_drift(plan: &Plan) -> Result<()> {
    let mut frameworks: BTreeMap<&str, (Vendor, BTreeSet<&str>)> = BTreeMap::new();
    for (cell, planned) in plan.cells.iter().enumerate().filter(|(_, c)| c.selected) {
        let Support::Ready(prepared) = &planned.support else { continue };
        if prepared.here().is_ok() {
            let of = &plan.matrix.cells[cell];
            let entry = frameworks.entry(&of.platform).or_insert_with(|| (prepared.job().vendor, BTreeSet::new()));
            entry.1.insert(&of.framework);
        }
    }
    for (platform, (vendor, frameworks)) in frameworks {
        let recipes: Vec<_> = frameworks.iter().map(|f| &plan.recipes.recipes[*f]).collect();
        let drift = plan.facts.drift(platform, vendor, &recipes)?;
        if !drift.is_empty() {
            return Err(plan.facts.drift_error(platform, &drift));
        }
    }
    Ok(())
}

/// The cells of a matrix with their summaries, as far as they are fresh; runs and writes nothing.
pub fn gate_inputs(plan: &Plan) -> Result<Vec<GateInput>> {
    let cache = Cache::open(&cache_dir(plan))?;
    let dag = Dag::new(plan)?;
    let engine = engine(plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let inputs = derived::cell_inputs(reading::cell_seeds(&engine, &statuses, Reach::Complete)?, &cache)?;
    let catalogue = derived::Settings::of(plan).compare.catalogue;
    let key = |cell: u32| statuses.get(dag.node(TaskKind::Train, cell, 1)).key.map(|key| key.to_string());
    let gated = |((input, planned), id): ((CellInput, &CellPlan), u32)| GateInput {
        key: (planned.repeats > 0 && input.imported.is_empty() && matches!(planned.support, Support::Ready(_)))
            .then(|| key(id))
            .flatten(),
        selected: planned.selected,
        impossible: analyze::impossible(&input, &catalogue),
        input,
    };
    Ok(inputs.into_iter().zip(&plan.cells).zip(0u32..).map(gated).collect())
}

/// What a cell's name on the command line stands for: the id, and the position of a cell that the matrix has; a cell that
/// it has not may have been imported.
pub fn named(plan: &Plan, imports: &Imports, name: &str) -> Result<(String, Option<usize>)> {
    let is_imported = !imports.digests(name).is_empty();
    match plan.find(name) {
        Ok(cell) if plan.cells[cell].id == name || !is_imported => Ok((plan.cells[cell].id.clone(), Some(cell))),
        Err(error) => imports.named(name).map(|id| (id.to_owned(), None)).ok_or(error),
        Ok(_) => Ok((name.to_owned(), None)),
    }
}

/// `CELL#2` → (`CELL`, 2).
pub fn split_repeat(text: &str) -> Result<(&str, Option<u32>)> {
    match text.split_once('#') {
        None => Ok((text, None)),
        Some((cell, repeat)) => match repeat.parse() {
            Ok(repeat) if repeat > 0 => Ok((cell, Some(repeat))),
            _ => Err(Error::invalid(
                Problem::new(format!("`#{repeat}` is not a repeat")).help("repeats count from 1: CELL#2"),
            )),
        },
    }
}
