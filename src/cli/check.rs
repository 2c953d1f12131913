//! `check`: everything that can be known to be wrong without running anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Value, json};

use super::{
    args::{CheckArgs, Globals},
    blocked::{self, few},
    build::profile,
    fit,
    output::{answer, say},
    project, remote,
    session::Session,
};
use crate::{
    error::{Error, Problem, Result, exit},
    execute::{self, ProbeDepth},
    matrix::CellId,
    plan::{self, InputOrigin, Plan, Support},
    recipe::context,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &CheckArgs) -> Result<i32> {
    let session = Session::open(project::request(
        globals,
        &args.common,
        None,
        &args.measured,
    )?)?;
    let plan = &session.plan;
    // Its address alone: nothing is asked of it.
    remote::of(&plan.config)?;
    let rendered = Rendered::of(plan)?;
    plan.recipes_without_rate()?;
    let notes = notes(plan, &rendered);
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    let (engine, statuses) = session.look()?;
    let twins = engine.same_launch(&statuses);
    let twins = twins
        .with_ids()
        .filter_map(|(cell, first)| Some((cell, (*first)?)));
    let mut same_launch = Vec::new();
    for (cell, first) in twins {
        let (cell, first) = (&plan.cells[cell].id, &plan.cells[first].id);
        eprintln!(
            "note: `{cell}` launches exactly what `{first}` does: one measurement serves both"
        );
        same_launch.push(json!({ "cell": cell, "same_launch_as": first }));
    }
    let fits = plan
        .cells
        .ids()
        .filter_map(|cell| plan::fit::fit(plan, cell));
    let [will_not_fit, may_not_fit] = fit::warn(plan, &fits.collect::<Vec<_>>());
    let host = super::train_host::train_host(&session)?;
    let is_here = |cell: &CellId| plan.prepared(*cell).is_some_and(|p| p.here().is_ok());
    let here: Vec<CellId> = plan.cells.ids().filter(is_here).collect();
    let blocked = blocked::find(plan, &here, &host, ProbeDepth::AtFiles)?;
    for line in blocked::told(plan, &blocked) {
        eprintln!("note: {line}");
    }
    // A package may be on another host; a file of the project that a command names is on none. Where
    // no cell can be measured without such a file, every build fails.
    let lacks_file = |cell: &CellId| {
        let prepared = plan.prepared(*cell);
        let absent = prepared.and_then(|p| execute::preflight_command(&plan.root, p, &host));
        absent.is_some_and(|absent| absent.is_of_project)
    };
    let (cells, tasks) = (plan.cells.len(), session.dag.graph.node_count());
    let Rendered {
        launches,
        unsupported,
        ..
    } = rendered;
    let lacks_files =
        !here.is_empty() && cells - unsupported == blocked.len() && here.iter().all(lacks_file);
    let is_nothing = lacks_files || cells == unsupported;
    let found = found_inputs(plan);
    let row = |(of, cells): (&FoundInputs, &Vec<&str>)| {
        let inputs: Vec<_> = of.named.iter().chain(&of.code).collect();
        json!({ "inputs": inputs, "cells": cells })
    };
    let found: Vec<_> = found.iter().map(row).collect();
    let value = json!({
        "cells": cells, "unsupported": unsupported, "launch_files": launches, "tasks": tasks,
        "same_launch": same_launch, "will_not_fit": will_not_fit, "may_not_fit": may_not_fit,
        "blocked": blocked.len(), "found_inputs": found,
    });
    answer(globals, "check", &value, || {
        let not_now = match blocked.len() {
            0 => String::new(),
            n => format!("; {} cannot be measured here now", counted(n, "cell")),
        };
        let found = if is_nothing { "" } else { "; no problem found" };
        let not_at_all = match unsupported {
            0 => String::new(),
            n => format!(" ({n} unsupported)"),
        };
        format!(
            "{}: {}{not_at_all}, {} rendered, {}{found}{not_now}\n",
            plan.matrix.name,
            counted(cells, "cell"),
            counted(launches, "launch file"),
            counted(tasks, "task")
        )
    })?;
    if cells == unsupported {
        say("error: no cell can be measured: none is supported");
    }
    Ok(if is_nothing { exit::FAILED } else { exit::OK })
}

/// The launch files of all cells, rendered.
struct Rendered {
    launches: usize,
    unsupported: usize,
    /// Why cells are unsupported, each reason with the cells it holds for.
    reasons: BTreeMap<String, Vec<String>>,
    /// Absolute paths that config.yaml puts into launch files, each with its cells.
    host_paths: BTreeMap<String, Vec<String>>,
}

impl Rendered {
    /// An error where a template refuses a job, or names a path that another host may not have.
    fn of(plan: &Plan) -> Result<Self> {
        let mut found = Self {
            launches: 0,
            unsupported: 0,
            reasons: BTreeMap::new(),
            host_paths: BTreeMap::new(),
        };
        let mut problems = Vec::new();
        for (cell, planned) in plan.cells.with_ids() {
            let id = &planned.id;
            let prepared = match &planned.support {
                Support::Ready(prepared) => prepared,
                Support::Unsupported(why) => {
                    found.unsupported += 1;
                    found
                        .reasons
                        .entry(why.to_string())
                        .or_default()
                        .push(id.clone());
                    continue;
                }
            };
            let context = context(prepared.job());
            let settings = prepared.job().framework.values().flat_map(texts);
            let of_settings = settings.flat_map(|text| absolute_paths(text.as_bytes()));
            let of_settings: BTreeSet<String> = of_settings.map(|(_, path)| path).collect();
            for (name, _) in &plan.recipe(cell).templates {
                let file = match plan.recipes.templates.render(name, &context) {
                    Ok(file) => file,
                    Err(Error::Invalid(more)) => {
                        problems.extend(more);
                        continue;
                    }
                    Err(other) => return Err(other),
                };
                found.launches += 1;
                for (line, path) in absolute_paths(&file.bytes) {
                    // What config.yaml says is the user's to say; a template is for every host.
                    if !of_settings.contains(&path) {
                        problems.push(names_a_path(id, &file.name, line, &path));
                        continue;
                    }
                    let cells = found.host_paths.entry(path).or_default();
                    if cells.last() != Some(id) {
                        cells.push(id.clone());
                    }
                }
            }
        }
        problems.dedup();
        match problems.is_empty() {
            true => Ok(found),
            false => Err(Error::Invalid(problems)),
        }
    }
}

/// What is worth knowing of the configuration, and wrong with none of it.
fn notes(plan: &Plan, rendered: &Rendered) -> Vec<String> {
    let mut notes: Vec<String> = plan.told_implied().into_iter().collect();
    notes.extend(profile::told(plan));
    notes.extend(plan.facts.differing.iter().cloned());
    notes.extend(plan.notes.iter().cloned());
    let descriptive = plan.config.descriptive();
    if !descriptive.is_empty() {
        notes.push(format!(
            "these keys of config.yaml are for people and change nothing: {}",
            descriptive.join(", ")
        ));
    }
    notes.extend(project::not_handed_over(plan));
    notes.extend(project::not_identical(plan));
    for (FoundInputs { named, code }, cells) in &found_inputs(plan) {
        let words =
            (!named.is_empty()).then(|| format!("{}, which the command names", named.join(", ")));
        let below = match &code[..] {
            [] => None,
            few if few.len() < 4 => Some(format!("the code beside it ({})", few.join(", "))),
            [first, .., last] => Some(format!(
                "{} files of code below its folder ({first} … {last})",
                code.len()
            )),
            [_] => None,
        };
        let all: Vec<String> = words.into_iter().chain(below).collect();
        notes.push(format!(
            "inputs of {}: {}; `inputs: [\"!NAME\"]` takes back one that the run writes. {}",
            few(cells),
            all.join(", and "),
            plan::UNWATCHED
        ));
    }
    for (sentence, cells) in unwatched_outside(plan) {
        notes.push(format!("{}: {sentence}", few(&cells)));
    }
    for (word, cells) in unfollowed(plan) {
        notes.push(format!(
            "{}: the command, or a file that it names, names `{word}`, of which no more is an input than the code below the \
             script's folder: list what a run reads there in `inputs` (`folder/**` is all below one), or edits of it make nothing stale",
            few(&cells)
        ));
    }
    let names = |cells: &[String]| {
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        few(&cells)
    };
    for (path, cells) in &rendered.host_paths {
        notes.push(format!(
            "{} names `{path}`: a host that has it elsewhere, or not at all, cannot use this one's measurements; a path from \
             the project's folder is the same everywhere",
            names(cells)
        ));
    }
    for (why, cells) in &rendered.reasons {
        notes.push(format!("unsupported, {}: {why}", names(cells)));
    }
    notes
}

/// Words that may name files which no key covers, each with its cells.
fn unfollowed(plan: &Plan) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (cell, planned) in plan.cells.with_ids() {
        let inputs = plan.prepared(cell).map(|prepared| &prepared.inputs);
        for word in inputs.into_iter().flat_map(|inputs| &inputs.unfollowed) {
            found.entry(word).or_default().push(&planned.id);
        }
    }
    found
}

/// What is to be said of code outside of the project, with the cells whose runs read it.
fn unwatched_outside(plan: &Plan) -> BTreeMap<String, Vec<&str>> {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (cell, planned) in plan.cells.with_ids() {
        let inputs = plan.prepared(cell).map(|prepared| &prepared.inputs);
        if let Some(sentence) = inputs.and_then(|inputs| inputs.unwatched_outside()) {
            found.entry(sentence).or_default().push(&planned.id);
        }
    }
    found
}

/// Inputs that nobody declares.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FoundInputs<'p> {
    named: Vec<&'p str>,
    code: Vec<&'p str>,
}

/// Each set of them with its cells.
fn found_inputs(plan: &Plan) -> BTreeMap<FoundInputs<'_>, Vec<&str>> {
    let mut found: BTreeMap<FoundInputs<'_>, Vec<&str>> = BTreeMap::new();
    for (cell, planned) in plan.cells.with_ids() {
        let Some(prepared) = plan.prepared(cell) else {
            continue;
        };
        let of = FoundInputs {
            named: prepared.inputs.found(InputOrigin::Word).collect(),
            code: prepared.inputs.found(InputOrigin::Code).collect(),
        };
        if !of.named.is_empty() || !of.code.is_empty() {
            found.entry(of).or_default().push(&planned.id);
        }
    }
    found
}

/// All texts of a setting, as they were written.
fn texts(setting: &Value) -> Vec<&str> {
    match setting {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::Object(table) => table.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// Rendered bytes must be the same on every host, so they may name no absolute path but an
/// interpreter's: such paths, each with its line.
fn absolute_paths(bytes: &[u8]) -> Vec<(usize, String)> {
    const ALLOWED: [&str; 6] = [
        "/usr/bin/env",
        "/bin/sh",
        "/bin/bash",
        "/dev/null",
        "/dev/shm",
        "/proc",
    ];
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().enumerate();
    let of_line = |(index, line): (usize, &str)| {
        let words = line.split(|c: char| c.is_whitespace() || "'\"=:,;()[]<>|&`".contains(c));
        let paths = words
            .map(|w| w.trim_matches(['{', '}'])) // what follows ${NAME} is below that folder
            .filter(|w| {
                w.strip_prefix('/')
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_alphanumeric()))
            })
            .filter(|w| !ALLOWED.iter().any(|a| Path::new(w).starts_with(a)))
            .filter(|_| !line.trim_start().starts_with("//"));
        paths
            .map(|path| (index + 1, path.to_owned()))
            .collect::<Vec<_>>()
    };
    lines.flat_map(of_line).collect()
}

fn names_a_path(cell: &str, file: &str, line: usize, path: &str) -> Problem {
    Problem::new(format!("{cell}: {file}, line {line}, names the absolute path `{path}`"))
        .help("what differs between hosts reaches a script through variables set at launch ($TPRIMAT_RUN_DIR, $TPRIMAT_PYTHON, …)")
}
