//! A build with `experiment.profiling`: each selected cell once under a profiler, and nothing measured.

use serde_json::{Value, json};

use crate::{
    cli::{
        args::{BuildArgs, Globals},
        flags::Force,
        output::{self, print_json},
    },
    error::{Error, Problem, Result, exit},
    execute::{self, Event, EventSink, ProbeDepth, Profiler, TrainHost},
    matrix::CellId,
    plan::{Place, Plan},
    publish,
    recipe::Recipe,
};

/// Which profiler `experiment.profiling` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// That of the platform's vendor.
    OfVendor,
    By(Profiler),
}

/// `true`, or a profiler by its name; the schema knows no other values.
pub fn asked(plan: &Plan) -> Option<Profiling> {
    Some(
        match plan.config.settings().experiment.profiling.as_ref()? {
            Value::Bool(true) => Profiling::OfVendor,
            Value::String(name) => Profiling::By(match name.as_str() {
                "nsys" => Profiler::Nsys,
                "rocprof" => Profiler::Rocprof,
                _ => Profiler::Torch,
            }),
            _ => return None,
        },
    )
}

/// What whoever checks, plans or starts a build is told where the configuration asks for profiles.
#[must_use]
pub fn told(plan: &Plan) -> Option<String> {
    let value = plan.config.settings().experiment.profiling.as_ref();
    asked(plan).map(|_| {
        format!(
            "experiment.profiling is {}: cells are profiled, none is measured; a build measures once it is false",
            value.map(crate::config::plain).unwrap_or_default()
        )
    })
}

/// What is asked of measurements means nothing where none is made.
pub fn refuse_measuring(args: &BuildArgs) -> Result<()> {
    let asked = [
        (args.cached_only, "--cached-only"),
        (args.max_gpu_hours.is_some(), "--max-gpu-hours"),
        (args.decide.is_some(), "--decide"),
        (args.overrides.has(Force::Measured), "--force=measured"),
    ];
    match asked.into_iter().find(|(is_asked, _)| *is_asked) {
        Some((_, option)) => Err(Error::refused(
            format!("experiment.profiling measures nothing, so {option} means nothing beside it"),
            format!("leave {option} out, or give --set experiment.profiling=false"),
        )),
        None => Ok(()),
    }
}

/// Do its trainers start torch's profiler when they are asked to?
pub fn starts_torch(recipe: &Recipe) -> bool {
    ["tprimat", "any", "torchtitan"].contains(&recipe.file.log.format.as_str())
}

pub fn run(
    plan: &Plan,
    globals: &Globals,
    profiling: Profiling,
    host: &TrainHost,
    events: &EventSink,
) -> Result<i32> {
    let note = |message: String| events.report(&Event::Note { message });
    let mut cells = Vec::new();
    let mut problems = Vec::new();
    for (cell, planned) in plan.cells.with_ids().filter(|(_, c)| c.selected) {
        let Some(prepared) = plan.prepared(cell) else {
            continue;
        };
        if let Err(why) = prepared.facts.here(prepared.job()) {
            note(format!("{} is not profiled: {why}", planned.id));
            continue;
        }
        if prepared.resolved.execution.place != Place::Local {
            note(format!(
                "{} is not profiled: profiles are made on this host; --executor local on a node makes one",
                planned.id
            ));
            continue;
        }
        let is_there = |command: &str| crate::host::which(command, &host.caller_env).is_some();
        let profiler = match profiling {
            Profiling::OfVendor => Profiler::of(prepared.job().vendor),
            Profiling::By(profiler) => profiler,
        };
        let recipe = plan.recipe(cell);
        problems.extend(execute::preflight(
            recipe,
            &plan.facts.checkouts(recipe),
            prepared,
            plan.facts.python(&recipe.file.id),
            host,
            ProbeDepth::ByAsking,
        ));
        // Programs that print our events have our callback at their steps; so has our torchtitan.
        if profiler == Profiler::Torch && !starts_torch(recipe) {
            let problem = Problem::new(format!(
                "the trainer of `{}` cannot start torch's profiler",
                recipe.file.id
            ));
            problems.push(problem.help(
                "its steps are its framework's own; experiment.profiling=nsys or rocprof wraps any trainer",
            ));
        }
        if let Some(command) = profiler.command().filter(|command| !is_there(command)) {
            let problem = Problem::new(format!("the profiler `{command}` is not there"));
            problems.push(
                problem.help("it is looked up in PATH; experiment.profiling=torch needs none"),
            );
        }
        cells.push((cell, profiler));
    }
    let mut seen = Vec::new();
    problems.retain(|p| {
        !seen.contains(p) && {
            seen.push(p.clone());
            true
        }
    });
    if !problems.is_empty() {
        return Err(Error::Invalid(problems));
    }
    let interrupts = execute::install_interrupt_handler()?;
    execute::sweep_profiles(host, events);
    let output = publish::output_dir(plan);
    let (mut made, mut failed) = (Vec::new(), 0);
    for (cell, profiler) in cells {
        let id = &plan.cells[cell].id;
        note(format!(
            "{id}: runs once under a profiler; this is not a measurement"
        ));
        match execute::profile(
            plan,
            cell,
            profiler,
            host,
            (&output, &file_name(plan, cell)),
            interrupts,
        ) {
            Ok(trace) => {
                note(format!(
                    "{id}: {}",
                    trace.strip_prefix(&plan.root).unwrap_or(&trace).display()
                ));
                made.push(json!({ "cell": id, "trace": trace }));
            }
            Err(error) => {
                if let Some(signal) = interrupts.asked() {
                    return Err(Error::Interrupted(signal));
                }
                failed += 1;
                output::report(&error, false);
            }
        }
    }
    if globals.json {
        print_json("profiles", &json!({ "profiles": made, "failed": failed }))?;
    }
    if made.is_empty() && failed == 0 {
        let selected = || plan.cells.with_ids().filter(|(_, c)| c.selected);
        let why = if selected().all(|(cell, _)| plan.prepared(cell).is_none()) {
            ": none of the selected cells is supported"
        } else {
            ""
        };
        output::say(&format!("error: no cell was profiled{why}"));
    }
    Ok(if failed > 0 || made.is_empty() {
        exit::FAILED
    } else {
        exit::OK
    })
}

/// `profile_<platform>_<framework>_<model>_<strategy>`, with further axes behind it.
pub fn file_name(plan: &Plan, cell: CellId) -> String {
    let of = &plan.matrix.cells[cell];
    let axes = of
        .axes
        .iter()
        .map(|(axis, value)| format!("_{axis}-{value}"));
    let name = format!(
        "profile_{}_{}_{}_{}",
        of.platform, of.framework, of.model, of.parallelism
    );
    publish::short_name(publish::safe_name(
        &axes.fold(name, |name, axis| name + &axis),
    ))
}
