//! `check`: everything that can be known to be wrong without running anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Value, json};

use super::{
    args::{CheckArgs, Globals},
    blocked::{self, few},
    fit,
    output::{print, print_json, say},
    profile, project, remote,
    session::Session,
};
use crate::{
    error::{Error, Problem, Result, exit},
    execute::{self, ProbeDepth},
    graph::label,
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
    let Session { plan, dag, .. } = &session;
    // Its address alone: nothing is asked of it.
    remote::of(&plan.config)?;
    let mut problems = Vec::new();
    let mut host_paths: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let (mut launches, mut unsupported) = (0usize, 0usize);
    let mut reasons: Vec<(&str, &str, usize)> = Vec::new();
    for (cell, planned) in plan.cells.with_ids() {
        let prepared = match &planned.support {
            Support::Ready(prepared) => prepared,
            Support::Unsupported(why) => {
                unsupported += 1;
                match reasons.iter_mut().find(|(known, ..)| known == why) {
                    Some((.., more)) => *more += 1,
                    None => reasons.push((why, &planned.id, 0)),
                }
                continue;
            }
        };
        let context = context(prepared.job());
        let settings = prepared.job().framework.values().flat_map(texts);
        let of_settings: BTreeSet<String> = settings
            .flat_map(|text| absolute_paths(text.as_bytes()))
            .map(|(_, path)| path)
            .collect();
        for (name, _) in &plan.recipe(cell).templates {
            match plan.recipes.templates.render(name, &context) {
                Ok(file) => {
                    launches += 1;
                    for (line, path) in absolute_paths(&file.bytes) {
                        // What config.yaml says is the user's to say; a template is for every host.
                        if of_settings.contains(&path) {
                            let cells = host_paths.entry(path).or_default();
                            if cells.last() != Some(&planned.id.as_str()) {
                                cells.push(&planned.id);
                            }
                        } else {
                            problems.push(names_a_path(&planned.id, &file.name, line, &path));
                        }
                    }
                }
                Err(Error::Invalid(more)) => problems.extend(more),
                Err(other) => return Err(other),
            }
        }
    }
    problems.dedup();
    if !problems.is_empty() {
        return Err(Error::Invalid(problems));
    }
    let profiled = profile::told(plan);
    for note in plan
        .told_implied()
        .iter()
        .chain(&profiled)
        .chain(&plan.notes)
    {
        eprintln!("note: {note}");
    }
    let descriptive = plan.config.descriptive();
    if !descriptive.is_empty() {
        eprintln!(
            "note: these keys of config.yaml are for people and change nothing: {}",
            descriptive.join(", ")
        );
    }
    for note in project::not_handed_over(plan)
        .into_iter()
        .chain(project::not_identical(plan))
    {
        eprintln!("note: {note}");
    }
    let found = found_inputs(plan);
    for (FoundInputs { named, code }, cells) in &found {
        let words = match named.len() {
            0 => None,
            1 => Some(format!("{}, which the command names", named[0])),
            _ => Some(format!("{}, which the command names", named.join(", "))),
        };
        let below = match &code[..] {
            [] => None,
            few if few.len() < 4 => Some(format!("the code beside it ({})", few.join(", "))),
            [first, .., last] => Some(format!(
                "{} files of code below its folder ({first} … {last})",
                code.len()
            )),
            _ => None,
        };
        let all: Vec<String> = words.into_iter().chain(below).collect();
        eprintln!(
            "note: inputs of {}: {}; `inputs: [\"!NAME\"]` takes back one that the run writes",
            few(cells),
            all.join(", and ")
        );
    }
    for (word, cells) in unfollowed(plan) {
        eprintln!(
            "note: {}: the command names `{word}`. Of its files only code below the script's folder is an input: list what a run \
             reads there in `inputs` (`folder/**` is all below one), or edits of it make nothing stale",
            few(&cells)
        );
    }
    for (path, cells) in &host_paths {
        eprintln!(
            "note: {} names `{path}`: a host that has it elsewhere, or not at all, cannot use this one's measurements; a path from \
             the project's folder is the same everywhere",
            few(cells)
        );
    }
    for (why, cell, more) in reasons {
        let others = if more == 0 {
            String::new()
        } else {
            format!(" and {more} more")
        };
        eprintln!("note: unsupported, `{cell}`{others}: {why}");
    }
    let (engine, statuses) = session.look()?;
    let twins = engine.same_launch(&statuses);
    let mut same_launch = Vec::new();
    for (cell, first) in twins
        .with_ids()
        .filter_map(|(cell, first)| Some((cell, (*first)?)))
    {
        let (cell, first) = (&plan.cells[cell].id, &plan.cells[first].id);
        eprintln!(
            "note: `{cell}` launches exactly what `{first}` does: one measurement serves both"
        );
        same_launch.push(json!({ "cell": cell, "same_launch_as": first }));
    }
    let cells = plan.cells.ids();
    let fits: Vec<_> = cells
        .filter_map(|cell| plan::fit::fit(plan, cell))
        .collect();
    let [will_not_fit, may_not_fit] = fit::warn(plan, &fits);
    let host = super::train_host::train_host(&session)?;
    let here: Vec<CellId> = plan
        .cells
        .ids()
        .filter(|cell| plan.prepared(*cell).is_some_and(|p| p.here().is_ok()))
        .collect();
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
    let lacks_files = !here.is_empty()
        && plan.cells.len() - unsupported == blocked.len()
        && here.iter().all(lacks_file);
    let is_nothing = lacks_files || plan.cells.len() == unsupported;
    let tasks = dag.graph.node_count();
    debug_assert!(
        dag.order
            .iter()
            .all(|n| !label(plan, &dag.task(*n)).is_empty())
    );
    if globals.json {
        print_json(
            "check",
            &json!({ "cells": plan.cells.len(), "unsupported": unsupported, "launch_files": launches, "tasks": tasks, "same_launch": same_launch, "will_not_fit": will_not_fit, "may_not_fit": may_not_fit, "blocked": blocked.len(),
                "found_inputs": found.iter().map(|(of, cells)| json!({ "inputs": of.named.iter().chain(&of.code).collect::<Vec<_>>(), "cells": cells })).collect::<Vec<_>>() }),
        )?;
    } else {
        let not_now = match blocked.len() {
            0 => String::new(),
            1 => "; 1 cell cannot be measured here now".to_owned(),
            n => format!("; {n} cells cannot be measured here now"),
        };
        let found = if is_nothing { "" } else { "; no problem found" };
        let not_at_all = if unsupported == 0 {
            String::new()
        } else {
            format!(" ({unsupported} unsupported)")
        };
        print(&format!(
            "{}: {}{not_at_all}, {} rendered, {}{found}{not_now}\n",
            plan.matrix.name,
            counted(plan.cells.len(), "cell"),
            counted(launches, "launch file"),
            counted(tasks, "task")
        ))?;
    }
    if plan.cells.len() == unsupported {
        say("error: no cell can be measured: none is supported");
    }
    Ok(if is_nothing { exit::FAILED } else { exit::OK })
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
