//! `show CELL` → its summary; `show CELL#2` → one result.

use indexmap::IndexMap;

use super::{
    args::{Globals, ShowArgs},
    attempts::time,
    output::{leave_out, page, print, print_document},
    project::{self, split_repeat},
    render::Launch,
    session::Session,
};
use crate::{
    cache::{Attempt, Cache, SetAside, TaskKind},
    error::{Error, Result},
    execute::{
        derived,
        reading::{self, FigureScope, StoredResult},
    },
    figures::{RepeatStatus, RepeatSummary},
    graph::{Engine, State, Status, Statuses, outcome_text},
    import::{self, Imports},
    job::RunOutcome,
    matrix::CellId,
    plan::{CompareConfig, Plan, Support},
    report,
    results::settings::show,
    words::plain::counted,
};

/// YAML without the per-step series, and with one line for all settings of which the same is known:
/// `--json` has each.
fn for_people(mut value: serde_json::Value) -> Result<String> {
    fn strip(value: &mut serde_json::Value) {
        if let Some(settings) = settings(value) {
            *value = settings;
            return;
        }
        match value {
            serde_json::Value::Object(map) => {
                map.remove("curve");
                map.remove("steps");
                map.values_mut().for_each(strip);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut value);
    serde_yaml::to_string(&value).map_err(|e| Error::Internal(format!("cannot print: {e}")))
}

/// `attested: "seq_length 16, global_batch_size 2"` of a list of settings.
fn settings(list: &serde_json::Value) -> Option<serde_json::Value> {
    let mut groups: IndexMap<&str, Vec<String>> = IndexMap::new();
    for item in list.as_array()? {
        let known = item.get("status").or_else(|| item.get("source"))?;
        let value = item.get("value").or_else(|| item.get("declared"));
        let mut text = item.get("field")?.as_str()?.to_owned();
        text.extend(value.map(|value| format!(" {}", show(Some(value)))));
        if let Some(logged) = item
            .get("effective")
            .filter(|logged| Some(*logged) != value)
        {
            text += &format!(" (log: {})", show(Some(logged)));
        }
        groups.entry(known.as_str()?).or_default().push(text);
    }
    let lines = groups
        .into_iter()
        .map(|(known, all)| (known.to_owned(), all.join(", ").into()));
    let lines: serde_json::Map<_, _> = lines.collect();
    (!lines.is_empty()).then_some(lines.into())
}

pub fn run(globals: &Globals, args: &ShowArgs) -> Result<i32> {
    let session = Session::open_or_imports(globals, &args.common, &args.measured)?;
    let Session { plan, cache, .. } = &session;
    let (asked, repeat) = split_repeat(&args.cell)?;
    let imports = Imports::of(cache);
    let (id, cell) = project::named(plan, &imports, asked)?;
    let id = id.as_str();
    let Some(cell) = cell else {
        return imported(plan, cache, &imports, id, args, globals.json);
    };
    let has_imports = imports.has(id);
    if has_imports && matches!(plan.cells[cell].support, Support::Unsupported(_)) {
        return imported(plan, cache, &imports, id, args, globals.json);
    }
    if let Support::Unsupported(why) = &plan.cells[cell].support {
        return Err(Error::failed(format!("`{id}` is unsupported: {why}")));
    }
    if repeat.is_some_and(|r| r > plan.cells[cell].repeats) {
        if has_imports {
            return imported(plan, cache, &imports, id, args, globals.json);
        }
        return Err(project::no_such_repeat(
            &args.cell,
            plan.cells[cell].repeats,
        ));
    }
    let (engine, statuses) = session.look()?;
    let seeds = reading::cell_seeds(&engine, &statuses, FigureScope::Everything)?;
    let mut speed = None;
    let found = match repeat {
        None => seeds[cell]
            .measured(cache)?
            .map(|(value, standing)| (value, standing.clone())),
        Some(repeat) => {
            reading::repeat(&engine, &statuses, cell, repeat)?.and_then(|(result, standing)| {
                speed = reading::summary(&engine, cell, &vec![(repeat, result.clone())])
                    .repeats
                    .pop();
                Some((serde_json::to_value(result).ok()?, standing))
            })
        }
    };
    let Some((mut value, standing)) = found else {
        if has_imports {
            return imported(plan, cache, &imports, id, args, globals.json);
        }
        if let Some(why) = import::told_set_aside(&imports, id) {
            eprintln!("note: nothing was measured, and {why}");
        }
        let past = reading::PastMeasurements::of(cache, plan);
        let mut failures = project::last_failures(&past, &plan.cells[cell]);
        failures.retain(|(n, _)| repeat.is_none_or(|repeat| repeat == *n));
        if failures.is_empty() {
            let all = project::last_runs(&past, &plan.cells[cell], |_| true);
            let mut all = all.into_iter();
            let found = all.find(|(n, attempt)| {
                repeat.is_none_or(|repeat| repeat == *n) && attempt.is_interrupted()
            });
            if let Some((n, attempt)) = found {
                return interrupted(plan, id, n, attempt, globals.json);
            }
        }
        if let Some((n, attempt)) = failures.first() {
            let train = statuses.get(engine.dag.node(TaskKind::Train, cell, *n));
            let is_present = train.key == Some(attempt.key);
            return failed(plan, id, *n, attempt, is_present, globals.json);
        }
        if repeat.is_none() && !globals.json {
            let mut measured = "nothing of it was measured".to_owned();
            for n in 1..=plan.cells[cell].repeats {
                let train = statuses.get(engine.dag.node(TaskKind::Train, cell, n));
                if let Some(message) = lost(&engine, &statuses, &past, (cell, n), train)? {
                    measured = format!("repeat {n} was {message}");
                    break;
                }
            }
            eprintln!(
                "note: `{id}` has no figures: {measured}; this is what `{}` launches",
                plan.command("build", &["--only", id])
            );
            print(&Launch::of(plan, cell)?.text())?;
            return Ok(crate::error::exit::OK);
        }
        let train = repeat.map(|n| statuses.get(engine.dag.node(TaskKind::Train, cell, n)));
        if let Some(error) =
            train.and_then(|train| project::not_started(plan, &args.cell, id, train))
        {
            return Err(error);
        }
        if let Some((n, train)) = repeat.zip(train)
            && let Some(message) = lost(&engine, &statuses, &past, (cell, n), train)?
        {
            let help = match (plan.why_not_run(cell), train.state) {
                (_, State::Fresh) => format!(
                    "its figures are in the summary of the cell, which `{}` shows; `{}` measures all repeats of the cell anew",
                    plan.command("show", &[id]),
                    plan.command("build", &["--remeasure", "--only", id])
                ),
                (Some(why), _) => format!("it {why}"),
                (None, _) => {
                    format!(
                        "`{}` measures it anew",
                        plan.command("build", &["--only", id])
                    )
                }
            };
            return Err(Error::Failed {
                message: format!("`{}` was {message}", args.cell),
                help: Some(help),
            });
        }
        let measures = match plan.why_not_run(cell) {
            Some(why) => format!("it {why}"),
            None => format!("`{}` measures it", plan.command("build", &["--only", id])),
        };
        let help = format!(
            "`{}` says why; {measures}; `{}` shows what it launches",
            plan.command("plan", &["--only", id]),
            plan.command("render", &[id])
        );
        let message = format!("nothing of `{}` was measured", args.cell);
        return Err(Error::Failed {
            message,
            help: Some(help),
        });
    };
    if has_imports {
        eprintln!("note: `{id}` has imports too; what was measured here is shown");
    }
    let head = standing.words().into_iter();
    let head = head.map(|words| format!("# {words}\n")).collect();
    if !standing.is_present() {
        value["standing"] = serde_json::json!(standing);
    }
    let found = Found {
        value,
        head,
        speed,
        seeds: repeat.is_none().then(|| seeds.into_iter().collect()),
    };
    tell(plan, cache, id, found, globals.json)
}

/// What was measured or imported of a cell, or of one repeat of it.
struct Found {
    /// A summary or a result; it names its own form.
    value: serde_json::Value,
    /// What stands above everything else, as comments of YAML.
    head: String,
    speed: Option<RepeatSummary>,
    /// The cells that a whole cell is shown beside: its prices, peaks, speed-ups and scaling come from that
    /// comparison.
    seeds: Option<Vec<derived::CellSeed>>,
}

fn tell(plan: &Plan, cache: &Cache, id: &str, found: Found, as_json: bool) -> Result<i32> {
    let Found {
        mut value,
        head,
        speed,
        seeds,
    } = found;
    if as_json {
        if let Some(speed) = &speed {
            value["repeat"] = json(speed)?;
        }
        print_document(&value)?;
        return Ok(crate::error::exit::OK);
    }
    if let Some(seeds) = seeds {
        let comparison = derived::compare_cells(seeds, &CompareConfig::of(plan), cache, leave_out)?;
        let command = |name: &str, words: &[&str]| plan.command(name, words);
        if let Some(text) = report::cell_text(&comparison, id, command, &page()) {
            print(&text)?;
            return Ok(crate::error::exit::OK);
        }
    }
    let marks = head + &speed.map_or_else(String::new, own_speed) + &contradictions(&value);
    print(&(marks + &for_people(value)?))?;
    Ok(crate::error::exit::OK)
}

/// `# repeat 2: 1,024 tokens/s/GPU, 0.512 s a step over 40 measured steps`
fn own_speed(repeat: RepeatSummary) -> String {
    let n = repeat.repeat;
    match (repeat.steady, repeat.status) {
        (Some(steady), RepeatStatus::Ok) => format!(
            "# repeat {n}: {:.1} tokens/s per device, {:.4} s a step over {}\n",
            steady.tokens_per_second_per_gpu,
            steady.step_time.mean_seconds,
            counted(
                usize::try_from(steady.steps).unwrap_or(usize::MAX),
                "measured step"
            )
        ),
        (_, status) => match status.why_not() {
            Some(why) => format!("# repeat {n} is not counted: {why}\n"),
            None => format!("# repeat {n} is not counted\n"),
        },
    }
}

/// Why a repeat that was measured has no figures here: it was under other settings, what they are
/// read from is lost, or somebody set the run aside. `None`: it was not measured.
fn lost(
    engine: &Engine,
    statuses: &Statuses,
    past: &reading::PastMeasurements,
    (cell, repeat): (CellId, u32),
    train: &Status,
) -> Result<Option<String>> {
    let of_cell = &engine.plan.cells[cell];
    let last = |is_present: bool| {
        let may = |run: &Attempt| {
            run.outcome == RunOutcome::Ok && (train.key == Some(run.key)) == is_present
        };
        let all = project::last_runs(past, of_cell, may);
        all.into_iter().find(|(n, _)| *n == repeat)
    };
    // One that would count now, if nobody had set it aside.
    let aside = |is_present: bool| {
        let mut runs = past.of_name(&of_cell.id).into_iter();
        runs.find_map(|(n, run)| {
            let is_meant = n == repeat && (!is_present || train.key == Some(run.key));
            let SetAside { reason, at } = run.set_aside.as_ref().filter(|_| is_meant)?;
            Some(format!(
                "measured, and set aside on {}: {reason}",
                time(*at)
            ))
        })
    };
    let (when, run, is_present) = match (last(true), last(false)) {
        (Some((_, run)), _) => ("measured".to_owned(), run, true),
        (None, earlier) => match (aside(true), earlier) {
            (Some(aside), _) => return Ok(Some(aside)),
            (None, Some((_, run))) => {
                let when = reading::measured_before(engine, statuses, cell, run);
                (when, run, false)
            }
            (None, None) => return Ok(aside(false)),
        },
    };
    Ok(match past.result(&of_cell.id, repeat, run)? {
        StoredResult::Lost(why) => Some(format!("{when}, but {why}")),
        StoredResult::NeverRead => Some(format!("{when}, and no build has read its log")),
        StoredResult::There(_) if !is_present => Some(when),
        StoredResult::There(_) => None,
    })
}

/// A cell without figures whose last run was ended together with its build.
fn interrupted(
    plan: &Plan,
    id: &str,
    repeat: u32,
    attempt: &Attempt,
    as_json: bool,
) -> Result<i32> {
    let message = format!("`{id}` has no figures: repeat {repeat} was interrupted before its end");
    let help = format!(
        "`{}` runs it again; `{}` prints its log",
        plan.command("build", &["--only", id]),
        plan.command("logs", &["--attempt", &attempt.id])
    );
    if as_json {
        return Err(Error::Failed {
            message,
            help: Some(help),
        });
    }
    print(&format!("{message}\n{help}\n"))?;
    Ok(crate::error::exit::OK)
}

/// A cell without figures whose last run failed: why, where its log is, and what to do.
fn failed(
    plan: &Plan,
    id: &str,
    repeat: u32,
    attempt: &Attempt,
    is_present: bool,
    as_json: bool,
) -> Result<i32> {
    let RunOutcome::Failed {
        class, evidence, ..
    } = &attempt.outcome
    else {
        return Ok(crate::error::exit::OK);
    };
    let before = if is_present {
        ""
    } else {
        ", before its settings or files were edited"
    };
    let why = format!(
        "`{id}` has no figures: repeat {repeat} failed ({}){before}",
        outcome_text(attempt)
    );
    let log = format!(
        "`{}` prints its log",
        plan.command("logs", &["--attempt", &attempt.id])
    );
    if as_json {
        return Err(Error::Failed {
            message: format!("{why}: {}", evidence.join("; ")),
            help: Some(log),
        });
    }
    let mut text = format!("{why}\n");
    for line in evidence {
        text += &format!("    {line}\n");
    }
    let advice = report::advice(*class, id, |name, words| plan.command(name, words));
    text += &format!(
        "{log}\nwhat to do: {advice}\n`{}` says whether the next build runs it again; `{}` shows what it launches\n",
        plan.command("plan", &["--only", id]),
        plan.command("render", &[id])
    );
    print(&text)?;
    Ok(crate::error::exit::OK)
}

/// Lines that stand above everything else: which repeats, or which fields of one, contradict the
/// job.
fn contradictions(value: &serde_json::Value) -> String {
    let list = |value: &serde_json::Value, path: &str| {
        value.pointer(path).and_then(|v| v.as_array()).cloned()
    };
    let text = |value: &serde_json::Value, path: &str| {
        value
            .pointer(path)
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    let mut lines = String::new();
    for repeat in list(value, "/repeats")
        .unwrap_or_default()
        .iter()
        .filter(|r| r["status"]["status"] == "contradicted")
    {
        lines += &format!(
            "# CONTRADICTED, not counted: repeat {} in {}\n",
            repeat["repeat"],
            text(repeat, "/status/fields")
        );
    }
    let fields = list(value, "/attestation/fields").unwrap_or_default();
    for field in fields.iter().filter(|f| f["status"] == "contradicted") {
        let name = field["field"].as_str().unwrap_or_default();
        lines += &format!(
            "# CONTRADICTED {name}: asked for {}, ran {}\n",
            text(field, "/declared"),
            text(field, "/effective")
        );
    }
    lines
}

/// What the imports of a cell say; CELL#N is one of them.
fn imported(
    plan: &Plan,
    cache: &Cache,
    imports: &Imports,
    id: &str,
    args: &ShowArgs,
    as_json: bool,
) -> Result<i32> {
    let (_, repeat) = split_repeat(&args.cell)?;
    let claims = import::claim_for(plan, id);
    let runs = import::runs(cache, imports, id, &claims, leave_out)?;
    let summary = import::summary(&runs, &claims.statistics);
    let found = match repeat {
        Some(n) => {
            let run = runs.iter().find(|run| run.number == n);
            let run = run.ok_or_else(|| not_counted(plan, imports, id, n))?;
            let mut value = json(&run.result)?;
            value["imported"] = json(&run.recorded)?;
            Found {
                value,
                head: format!("# {id}#{n}, imported from {}\n", run.recorded.from()),
                speed: summary.repeats.into_iter().find(|read| read.repeat == n),
                seeds: None,
            }
        }
        None => {
            if runs.is_empty()
                && let Some(why) = import::told_set_aside(imports, id)
            {
                return Err(Error::NothingSelected {
                    message: format!("nothing of `{id}` counts: {why}"),
                    help: Some(format!(
                        "`{}` lists its imports",
                        plan.command("attempts", &[id])
                    )),
                });
            }
            let summary = summary.disclosing(import::set_aside(imports, id));
            let mut value = json(&summary)?;
            value["imported"] = runs
                .iter()
                .map(|run| json(&run.recorded))
                .collect::<Result<_>>()?;
            Found {
                value,
                head: String::new(),
                speed: None,
                seeds: Some(vec![derived::CellSeed::imported(plan, id)]),
            }
        }
    };
    tell(plan, cache, id, found, as_json)?;
    if repeat.is_none() && !as_json {
        for run in &runs {
            print(&format!(
                "#{} was imported from {}\n",
                run.number,
                run.recorded.from()
            ))?;
        }
    }
    Ok(crate::error::exit::OK)
}

/// Why `CELL#n` shows no import.
fn not_counted(plan: &Plan, imports: &Imports, id: &str, n: u32) -> Error {
    let set_aside = imports.set_aside_of(id).find(|(number, _)| *number == n);
    let (message, help) = match set_aside {
        Some((_, why)) => (
            format!("the import `{id}#{n}` was set aside: {}", why.reason),
            format!(
                "`{}` lets it count again",
                plan.command("attempts restore", &[&format!("{id}#{n}")])
            ),
        ),
        None => (
            format!("`{id}` has no import {n}"),
            format!("`{}` lists them", plan.command("attempts", &[id])),
        ),
    };
    Error::NothingSelected {
        message,
        help: Some(help),
    }
}

fn json(value: &impl serde::Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|e| Error::Internal(format!("cannot print: {e}")))
}
