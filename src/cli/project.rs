//! Common ground of the subcommands: the project's root, what is to be planned, what is said of a
//! plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use rayon::prelude::*;

use super::{
    args::Globals,
    blocked,
    build::profile,
    flags::{Cells, Common, MatrixSelection, Measured},
    session::Session,
};
use crate::{
    cache::{Attempt, TaskKind},
    error::{Error, Result},
    execute::reading::{self, UncountedRun},
    figures, files,
    graph::{Engine, Reason, State, Status, Statuses},
    import::Imports,
    job::Vendor,
    matrix::{CellId, Selection},
    plan::{CellPlan, Place, Plan, PlanRequest, Support},
    recipe::COMMAND,
};

/// The nearest folder, from `at` upwards, with a config.yaml.
pub fn root(globals: &Globals) -> Result<PathBuf> {
    let start = start(globals)?;
    let root = above(&start).ok_or_else(|| {
        Error::refused(
            format!("there is no config.yaml in {} or above it", start.display()),
            "`tprimat init` writes a starter project",
        )
    })?;
    // Anybody may put a config.yaml into /tmp, which is above many a folder.
    files::require_own("the project", &root)?;
    for name in ["config.yaml", "recipes", "templates", "pipelines"] {
        files::require_inside(&root, &root.join(name))?;
    }
    Ok(root)
}

fn start(globals: &Globals) -> Result<PathBuf> {
    let at = globals.directory.as_deref();
    let start = at.map_or_else(std::env::current_dir, |dir| dir.canonicalize());
    start.map_err(Error::io(
        "cannot find the folder",
        at.unwrap_or(Path::new(".")),
    ))
}

fn above(start: &Path) -> Option<PathBuf> {
    start
        .ancestors()
        .find(|dir| dir.join("config.yaml").is_file())
        .map(Path::to_owned)
}

/// The request of a command that needs no project, where there is none: the folder itself is its
/// root.
pub fn without_project(globals: &Globals, common: &Common) -> Result<Option<PlanRequest>> {
    let root = start(globals)?;
    // A project of somebody else's is refused, not passed over.
    if above(&root).is_some() || common.matrix().is_some() {
        return Ok(None);
    }
    Ok(Some(PlanRequest {
        root,
        directory: globals.directory.clone(),
        sets: common.sets.clone(),
        env: environment(),
        ..PlanRequest::default()
    }))
}

/// The same where the folder has a cache, which holds imports.
pub fn of_imports(globals: &Globals, common: &Common) -> Result<Option<PlanRequest>> {
    let request = without_project(globals, common)?;
    Ok(request.filter(|request| is_cache(&request.root.join("cache"))))
}

/// Did tprimat make this folder for its cache?
#[must_use]
pub fn is_cache(folder: &Path) -> bool {
    folder.join("CACHEDIR.TAG").is_file() && folder.join("records").is_dir()
}

/// The caller's environment, as far as it is text.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// What is to be planned; `cells` where the command is of some cells only.
pub fn request(
    globals: &Globals,
    common: &Common,
    cells: Option<&Cells>,
    measured: &Measured,
) -> Result<PlanRequest> {
    let env = environment();
    Ok(PlanRequest {
        root: root(globals)?,
        directory: globals.directory.clone(),
        matrix: common.matrix().cloned(),
        sets: common.sets.clone(),
        selection: cells
            .map(|cells| selection(cells, &env))
            .transpose()?
            .unwrap_or_default(),
        repeats: measured.repeats.repeats,
        env,
        allow_drift: measured.drift.allow_drift,
        executor: measured.executor.clone(),
        packages: Vec::new(),
        arms: Vec::new(),
    })
}

/// The same where a command takes all of that.
pub fn matrix_request(
    globals: &Globals,
    MatrixSelection {
        common,
        cells,
        measured,
        ..
    }: &MatrixSelection,
) -> Result<PlanRequest> {
    request(globals, common, Some(cells), measured)
}

/// What filters select, with those of the environment.
pub fn selection(cells: &Cells, env: &BTreeMap<String, String>) -> Result<Selection> {
    let Cells {
        only,
        skip,
        where_,
        shard,
    } = cells.clone();
    let shard = shard.as_deref().map(Selection::parse_shard).transpose()?;
    Ok(Selection {
        only,
        skip,
        where_,
        shard,
        ..Selection::default()
    }
    .with_environment(env))
}

/// Why a repeat has no run, where a build did not start it because of how others ended.
#[must_use]
pub fn not_started(plan: &Plan, asked: &str, cell: &str, train: &Status) -> Option<Error> {
    let (State::Failed, Some(Reason::NotStarted(why))) = (train.state, &train.reason) else {
        return None;
    };
    Some(Error::failed_with(
        format!("`{asked}` was {why}"),
        format!(
            "`{}` says what went wrong; `{}` starts it anyway",
            plan.command("show", &[cell]),
            plan.command("build", &["--force=failed", "--only", cell])
        ),
    ))
}

/// The failed runs of a cell: of each repeat that is planned the last run, whatever its settings
/// were, if it failed. One that was interrupted says nothing, so the run before it is the last one.
#[must_use]
pub fn last_failures<'a>(
    past: &'a reading::PastMeasurements,
    cell: &CellPlan,
) -> Vec<(u32, &'a Attempt)> {
    let mut last = last_runs(past, cell, |attempt| !attempt.is_interrupted());
    last.retain(|(_, attempt)| attempt.has_failed());
    last
}

/// The last run of each planned repeat, among those for which `may` is true. Runs that were set aside
/// are not looked at.
#[must_use]
pub fn last_runs<'a>(
    past: &'a reading::PastMeasurements,
    cell: &CellPlan,
    may: impl Fn(&Attempt) -> bool,
) -> Vec<(u32, &'a Attempt)> {
    let mut last: BTreeMap<u32, &Attempt> = BTreeMap::new();
    for (repeat, attempt) in past.of_name(&cell.id) {
        if repeat <= cell.repeats && attempt.set_aside.is_none() && may(attempt) {
            let newest = last.entry(repeat).or_insert(attempt);
            if attempt.recorded >= newest.recorded {
                *newest = attempt;
            }
        }
    }
    last.into_iter().collect()
}

/// `--failed`: of the selected cells only those whose last run failed, or ended well and does not
/// count by what its log says. The runs that ended well are returned.
pub fn keep_failed(session: &mut Session) -> Result<Vec<UncountedRun>> {
    let (engine, statuses) = session.look()?;
    let uncounted = reading::uncounted_runs(&engine, &statuses)?;
    let Session {
        plan, cache, dag, ..
    } = session;
    let past = reading::PastMeasurements::of(cache, plan);
    for (id, cell) in plan.cells.with_ids_mut() {
        let is_fresh = |repeat| {
            let train = dag.find(TaskKind::Train, id, repeat);
            train.is_some_and(|train| statuses.get(train).state == State::Fresh)
        };
        let mut failures = last_failures(&past, cell).into_iter();
        // A run that counts as configured now has taken the place of one that failed.
        cell.selected &= failures.any(|(repeat, _)| !is_fresh(repeat))
            || uncounted.iter().any(|run| run.cell == id);
    }
    if plan.cells.iter().any(|cell| cell.selected) {
        return Ok(uncounted);
    }
    Err(Error::NothingSelected {
        message:
            "--failed selects nothing: no cell's last run failed, or every one has figures again"
                .to_owned(),
        help: Some("--matrix NAME looks at another matrix".to_owned()),
    })
}

/// Why `--force=failed` runs some runs not again, a sentence a cell: they ended well, so that they
/// would end so again.
pub fn not_retried(engine: &Engine, statuses: &Statuses) -> Result<Vec<String>> {
    let mut cells: BTreeMap<CellId, (Vec<String>, UncountedRun)> = BTreeMap::new();
    for run in reading::uncounted_runs(engine, statuses)? {
        let name = format!("{}#{}", engine.plan.cells[run.cell].id, run.repeat);
        let (names, _) = cells.entry(run.cell).or_insert((Vec::new(), run));
        names.push(name);
    }
    let told = cells.into_iter().map(|(cell, (names, run))| {
        let plan = engine.plan;
        let (they, again) = if names.len() == 1 {
            ("it ended well and does", "it")
        } else {
            ("they ended well and do", "them")
        };
        format!(
            "{} will not run again: {they} not count, since {}. Correct the configuration or, where the log is misread, how it is read (`log` in \
             config.yaml, [log] in recipe.toml); `{}` runs {again} again as configured now",
            names.join(", "),
            run.why,
            plan.command("build", &["--force=measured", "--only", &plan.cells[cell].id])
        )
    });
    Ok(told.collect())
}

/// What recipes do not hand to their trainers, a sentence a recipe.
#[must_use]
pub fn not_handed_over(plan: &Plan) -> Vec<String> {
    // Each job that differs takes some 30 renderings, so they are made on all cores; the loop finds
    // them done.
    plan.cells
        .par_ids()
        .for_each(|cell| drop(plan.unreached(cell)));
    let mut notes = Vec::new();
    for cell in plan.cells.ids() {
        let unreached = plan.unreached(cell);
        for is_of_speed in [true, false] {
            let of_kind = unreached.iter().filter(|u| u.is_of_speed == is_of_speed);
            let fields: Vec<&str> = of_kind.map(|unreached| unreached.field).collect();
            let Some(first) = fields.first() else {
                continue;
            };
            let what = if is_of_speed {
                "its cells have no rate unless the log states these settings"
            } else {
                "its losses are those of another setting"
            };
            let recipe = &plan.recipe(cell).file;
            let (id, list) = (&recipe.id, fields.join(", "));
            let note = if recipe.launch.has_option(COMMAND) {
                let short = first.rsplit('.').next().unwrap_or(first);
                format!(
                    "the matrix varies {list}, and the command of `{id}` is the same for each value: {what}; write \
                     `{{{{ {short} }}}}` into the command, or read the job from $TPRIMAT_JOB"
                )
            } else {
                format!(
                    "recipe `{id}` does not hand over {list}: {what}; use `{{{{ job.{first} }}}}` in its templates, hand the \
                     whole job over with `reads_job = true`, or say in an `[[ignored]]` why a field means nothing to it"
                )
            };
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        if let Some(length) = plan.length_of_config(cell) {
            let id = &plan.recipe(cell).file.id;
            let note = format!(
                "the command of `{id}` is not given `seq_length`: unless its log states the length of sequences, tokens/s rest on the {length} of \
                 config.yaml; write `{{{{ seq_length }}}}` into it, or the script's own length into config.yaml"
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
    notes(plan)
        .iter()
        .for_each(|note| eprintln!("note: {note}"));
}

/// Where the matrix comes from, and what a reader of the plan should know.
pub fn notes(plan: &Plan) -> Vec<String> {
    let mut notes: Vec<String> = plan.told_implied().into_iter().collect();
    notes.extend(profile::told(plan));
    notes.extend(plan.unmet.iter().cloned());
    notes.extend(plan.facts.differing.iter().cloned());
    match plan.notes.len() {
        0 => {}
        1 => notes.push(plan.notes[0].clone()),
        n => notes.push(format!(
            "{n} settings were adapted or read in an older spelling; `tprimat check` lists them"
        )),
    }
    notes.extend(not_handed_over(plan));
    notes.extend(not_identical(plan));
    notes
}

/// Notes on cells that differ in more than platform and framework, though the matrix says that they
/// do not.
#[must_use]
pub fn not_identical(plan: &Plan) -> Vec<String> {
    let ready = plan
        .cells
        .ids()
        .filter_map(|at| Some((at, plan.prepared(at)?)));
    figures::not_identical(ready.map(|(at, prepared)| {
        let cell = &plan.matrix.cells[at];
        (
            (&cell.model, &cell.axes),
            plan.cells[at].id.as_str(),
            &*cell.parallelism,
            prepared.job(),
        )
    }))
}

/// `--require=locked`: an error where tprimat.lock would have to be written, or where this host differs
/// from it, if that matters.
pub fn require_locked(plan: &Plan, is_host_asked: bool) -> Result<()> {
    if plan.allow_drift {
        return Err(Error::refused(
            "--require=locked and --allow-drift ask for opposite things",
            "leave one of them out",
        ));
    }
    plan.facts.require_complete()?;
    if is_host_asked {
        refuse_drift(plan)?;
    }
    Ok(())
}

/// An error if this host contradicts tprimat.lock in what the selected cells would run with.
fn refuse_drift(plan: &Plan) -> Result<()> {
    let mut here: BTreeMap<&str, (Vendor, BTreeSet<&str>, Vec<CellId>)> = BTreeMap::new();
    for (cell, planned) in plan.cells.with_ids().filter(|(_, c)| c.selected) {
        let Support::Ready(prepared) = &planned.support else {
            continue;
        };
        // A node of a batch system is looked at by the job.
        if prepared.here().is_ok() && prepared.resolved.execution.place == Place::Local {
            let of = &plan.matrix.cells[cell];
            let new = || (prepared.job().vendor, BTreeSet::new(), Vec::new());
            let (_, frameworks, cells) = here.entry(&of.platform).or_insert_with(new);
            frameworks.insert(&of.framework);
            cells.push(cell);
        }
    }
    for (platform, (vendor, frameworks, cells)) in here {
        let recipes: Vec<_> = frameworks
            .iter()
            .map(|f| &plan.recipes.recipes[*f])
            .collect();
        let mut drift = plan.facts.drift(platform, vendor, &recipes)?;
        drift.retain(|diff| {
            cells
                .iter()
                .any(|cell| blocked::concerns(plan, *cell, &diff.name))
        });
        if !drift.is_empty() {
            return Err(plan.facts.drift_error(
                platform,
                &drift,
                &plan.command("lock", &["--update"]),
            ));
        }
    }
    Ok(())
}

/// What a cell's name on the command line stands for: the id, and the position of a cell that the
/// matrix has; a cell that it has not may have been imported.
pub fn named(plan: &Plan, imports: &Imports, name: &str) -> Result<(String, Option<CellId>)> {
    let is_imported = imports.has(name);
    match plan.find(name) {
        Ok(cell) if plan.cells[cell].id == name || !is_imported => {
            Ok((plan.cells[cell].id.clone(), Some(cell)))
        }
        Err(error) => imports
            .named(name)
            .map(|id| (id.to_owned(), None))
            .ok_or(error),
        Ok(_) => Ok((name.to_owned(), None)),
    }
}

/// An error where the matrix has no such run: the cell is unsupported, or has fewer repeats.
pub fn require_planned(plan: &Plan, cell: CellId, asked: &str, repeat: Option<u32>) -> Result<()> {
    let CellPlan {
        id,
        support,
        repeats,
        ..
    } = &plan.cells[cell];
    if let Support::Unsupported(why) = support {
        return Err(Error::failed(format!("`{id}` is unsupported: {why}")));
    }
    if repeat.is_some_and(|n| n > *repeats) {
        return Err(Error::nothing(
            format!("`{asked}` is not among the repeats"),
            format!("the matrix asks for {repeats}; --repeats asks for more"),
        ));
    }
    Ok(())
}

/// `CELL#2` → (`CELL`, 2).
pub fn split_repeat(text: &str) -> Result<(&str, Option<u32>)> {
    match text.split_once('#') {
        None => Ok((text, None)),
        Some((cell, repeat)) => match repeat.parse() {
            Ok(repeat) if repeat > 0 => Ok((cell, Some(repeat))),
            _ => Err(Error::refused(
                format!("`#{repeat}` is not a repeat"),
                "repeats count from 1: CELL#2",
            )),
        },
    }
}
