//! `show CELL` → its summary; `show CELL#2` → one result; where there are no figures, why.

pub mod attempts;
mod launch;
mod stale;

use indexmap::IndexMap;
use serde_json::{Value, json};

use self::launch::Launch;
use super::{
    args::{Globals, ShowArgs},
    flags::Overrides,
    output::{leave_out, page, print, print_document},
    project::{self, split_repeat},
    session::Session,
};
use crate::{
    cache::{Cache, TaskKind},
    error::{Error, Result, exit},
    execute::{
        derived,
        reading::{self, FigureScope},
    },
    figures::{RepeatStatus, RepeatSummary},
    graph::{Engine, State, Statuses},
    import::{self, Imports},
    job::RunOutcome,
    matrix::CellId,
    plan::{CompareConfig, Plan},
    report,
    results::settings::show,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &ShowArgs) -> Result<i32> {
    let Overrides { force, keep_going } = &args.overrides;
    if !args.stale && (!force.is_empty() || *keep_going) {
        return Err(Error::refused(
            "--force and --keep-going say what a build would run, which --stale alone shows",
            "leave it out, or add --stale",
        ));
    }
    if args.stale {
        stale::run(globals, args)
    } else if args.attempts {
        attempts::run(globals, args)
    } else if args.launch {
        launch::run(globals, args)
    } else {
        figures(globals, args)
    }
}

fn figures(globals: &Globals, args: &ShowArgs) -> Result<i32> {
    let session = Session::open_or_imports(globals, &args.common, &args.measured)?;
    let Session { plan, cache, .. } = &session;
    let (asked, repeat) = split_repeat(&args.cell)?;
    let imports = Imports::of(cache);
    let (id, cell) = project::named(plan, &imports, asked)?;
    let (engine, statuses) = session.look()?;
    let is_planned =
        |cell: &CellId| project::require_planned(plan, *cell, &args.cell, repeat).is_ok();
    let own = match cell.filter(is_planned) {
        Some(cell) => measured(&engine, &statuses, cell, repeat)?,
        None => None,
    };
    match (own, cell) {
        (Some(found), _) => {
            if imports.has(&id) {
                eprintln!("note: `{id}` has imports too; what was measured here is shown");
            }
            tell(plan, cache, &id, found, globals.json)?;
        }
        (None, Some(cell)) if !imports.has(&id) => {
            if let Some(why) = import::told_set_aside(&imports, &id) {
                eprintln!("note: nothing was measured, and {why}");
            }
            without_figures(&engine, &statuses, cell, (&args.cell, repeat), globals.json)?;
        }
        _ => {
            let (found, sources) = imported(plan, cache, &imports, &id, repeat)?;
            tell(plan, cache, &id, found, globals.json)?;
            if repeat.is_none() && !globals.json {
                print(&sources)?;
            }
        }
    }
    Ok(exit::OK)
}

/// What was measured or imported of a cell, or of one repeat of it.
struct Found {
    /// A summary or a result; it names its own form.
    value: Value,
    /// What stands above everything else, as comments of YAML.
    head: String,
    speed: Option<RepeatSummary>,
    /// The cells that a whole cell is shown beside: its prices, peaks, speed-ups and scaling come from that
    /// comparison.
    seeds: Option<Vec<derived::CellSeed>>,
}

fn measured(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    repeat: Option<u32>,
) -> Result<Option<Found>> {
    let (value, standing, speed, seeds) = match repeat {
        None => {
            let seeds = reading::cell_seeds(engine, statuses, FigureScope::Everything)?;
            let Some((value, standing)) = seeds[cell].measured(engine.cache)? else {
                return Ok(None);
            };
            let standing = standing.clone();
            (value, standing, None, Some(seeds.into_iter().collect()))
        }
        Some(repeat) => {
            let Some((result, standing)) = reading::repeat(engine, statuses, cell, repeat)? else {
                return Ok(None);
            };
            let value = json(&result)?;
            let mut speed = reading::summary(engine, cell, &vec![(repeat, result)]);
            (value, standing, speed.repeats.pop(), None)
        }
    };
    let mut value = value;
    if !standing.is_present() {
        value["standing"] = json!(standing);
    }
    let head = standing.words().into_iter();
    Ok(Some(Found {
        value,
        head: head.map(|words| format!("# {words}\n")).collect(),
        speed,
        seeds,
    }))
}

fn tell(plan: &Plan, cache: &Cache, id: &str, found: Found, as_json: bool) -> Result<()> {
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
        return print_document(&value);
    }
    if let Some(seeds) = seeds {
        let comparison = derived::compare_cells(seeds, &CompareConfig::of(plan), cache, leave_out)?;
        let command = |name: &str, words: &[&str]| plan.command(name, words);
        if let Some(text) = report::cell_text(&comparison, id, command, &page()) {
            return print(&text);
        }
    }
    let marks = head + &speed.map_or_else(String::new, own_speed) + &contradictions(&value);
    print(&(marks + &for_people(value)?))
}

/// Says of a cell, or of one repeat, without figures what became of its last run and what to do. `asked`:
/// as it was named, with the repeat if there is one.
fn without_figures(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    (asked, repeat): (&str, Option<u32>),
    as_json: bool,
) -> Result<()> {
    let plan = engine.plan;
    let planned = &plan.cells[cell];
    let id = planned.id.as_str();
    project::require_planned(plan, cell, asked, repeat)?;
    let train = |n| statuses.get(engine.dag.node(TaskKind::Train, cell, n));
    let past = reading::PastMeasurements::of(engine.cache, plan);
    let failures = project::last_failures(&past, planned);
    let mut lines = attempts::of_cell(engine, statuses, &past, (cell, repeat))?;
    lines.retain(|line| line.repeat <= planned.repeats);
    // A failure says more than what was interrupted or lost, and a run of today more than an earlier one.
    let last = lines.iter().max_by_key(|line| {
        let is_failure = failures.iter().any(|(_, run)| run.id == line.attempt.id);
        let is_present = train(line.repeat).key == Some(line.attempt.key);
        (is_failure, is_present, line.attempt.recorded)
    });
    let measures = match plan.why_not_run(cell) {
        Some(why) => format!("it {why}"),
        None => format!("`{}` measures it", plan.command("build", &["--only", id])),
    };
    let launch = plan.command("show", &[id, "--launch"]);
    let Some(line) = last else {
        let train = repeat.map(train);
        if let Some(error) = train.and_then(|train| project::not_started(plan, asked, id, train)) {
            return Err(error);
        }
        if repeat.is_none() && !as_json {
            eprintln!("note: nothing of `{id}` was measured; {measures}. This is what it launches");
            return print(&Launch::of(plan, cell)?.text());
        }
        let why = plan.command("plan", &["--only", id]);
        return Err(Error::failed_with(
            format!("nothing of `{asked}` was measured"),
            format!("`{why}` says why; {measures}; `{launch}` shows what it launches"),
        ));
    };
    let attempt = &line.attempt;
    let is_done = train(line.repeat).state == State::Fresh && plan.why_not_run(cell).is_none();
    let measures = match is_done {
        true => {
            let anew = plan.command("build", &["--force=measured", "--only", id]);
            format!("`{anew}` measures all its repeats anew")
        }
        false => measures,
    };
    let mut message = format!(
        "`{id}` has no figures. Repeat {}: {}",
        line.repeat, line.verdict
    );
    let log = plan.command("logs", &["--attempt", &attempt.id]);
    if attempt.is_interrupted() && !as_json {
        let again = plan.command("build", &["--only", id]);
        return print(&format!(
            "{message}\n`{again}` runs it again; `{log}` prints its log\n"
        ));
    }
    let RunOutcome::Failed {
        class, evidence, ..
    } = &attempt.outcome
    else {
        return Err(Error::failed_with(
            message,
            format!("{measures}; `{log}` prints its log"),
        ));
    };
    if as_json || evidence.is_empty() {
        if !evidence.is_empty() {
            message += &format!(": {}", evidence.join("; "));
        }
        return Err(Error::failed_with(
            message,
            format!("`{log}` prints its log"),
        ));
    }
    let evidence: String = evidence
        .iter()
        .map(|line| format!("    {line}\n"))
        .collect();
    let advice = report::advice(*class, id, |name, words| plan.command(name, words));
    let again = plan.command("plan", &["--only", id]);
    print(&format!(
        "{message}\n{evidence}`{log}` prints its log\nwhat to do: {advice}\n`{again}` says whether the next build runs it again; \
         `{launch}` shows what it launches\n"
    ))
}

/// What the imports of a cell say, and whence each is; CELL#N is one of them.
fn imported(
    plan: &Plan,
    cache: &Cache,
    imports: &Imports,
    id: &str,
    repeat: Option<u32>,
) -> Result<(Found, String)> {
    let claims = import::claim_for(plan, id);
    let runs = import::runs(cache, imports, id, &claims, leave_out)?;
    let summary = import::summary(&runs, &claims.statistics);
    let from = |n: u32, from: String| format!("#{n} was imported from {from}\n");
    let sources = runs.iter().map(|run| from(run.number, run.recorded.told()));
    let sources = sources.collect();
    if let Some(n) = repeat {
        let run = runs.iter().find(|run| run.number == n);
        let run = run.ok_or_else(|| not_counted(plan, imports, id, n))?;
        let mut value = json(&run.result)?;
        value["imported"] = json(&run.recorded)?;
        let found = Found {
            value,
            head: format!("# {id}#{n}, imported from {}\n", run.recorded.told()),
            speed: summary.repeats.into_iter().find(|read| read.repeat == n),
            seeds: None,
        };
        return Ok((found, sources));
    }
    if runs.is_empty()
        && let Some(why) = import::told_set_aside(imports, id)
    {
        let list = plan.command("show", &[id, "--attempts"]);
        return Err(Error::nothing(
            format!("nothing of `{id}` counts: {why}"),
            format!("`{list}` lists its imports"),
        ));
    }
    let mut value = json(&summary.disclosing(import::set_aside(imports, id)))?;
    let recorded = runs.iter().map(|run| json(&run.recorded));
    value["imported"] = recorded.collect::<Result<_>>()?;
    let found = Found {
        value,
        head: String::new(),
        speed: None,
        seeds: Some(vec![derived::CellSeed::imported(plan, id)]),
    };
    Ok((found, sources))
}

/// Why `CELL#n` shows no import.
fn not_counted(plan: &Plan, imports: &Imports, id: &str, n: u32) -> Error {
    match imports.set_aside_of(id).find(|(number, _)| *number == n) {
        Some((_, why)) => {
            let restore = plan.command("cache restore", &[&format!("{id}#{n}")]);
            Error::nothing(
                format!("the import `{id}#{n}` was set aside: {}", why.reason),
                format!("`{restore}` lets it count again"),
            )
        }
        None => {
            let list = plan.command("show", &[id, "--attempts"]);
            Error::nothing(
                format!("`{id}` has no import {n}"),
                format!("`{list}` lists them"),
            )
        }
    }
}

fn json(value: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::Internal(format!("cannot print: {e}")))
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

/// Lines that stand above everything else: which fields of a repeat contradict the job.
fn contradictions(value: &Value) -> String {
    let all = value["attestation"]["fields"].as_array();
    let all = all.into_iter().flatten();
    let mut lines = String::new();
    for field in all.filter(|f| f["status"] == "contradicted") {
        let name = field["field"].as_str().unwrap_or_default();
        let (declared, effective) = (&field["declared"], &field["effective"]);
        lines += &format!("# CONTRADICTED {name}: asked for {declared}, ran {effective}\n");
    }
    lines
}

/// YAML without the per-step series, and with one line for all settings of which the same is known:
/// `--json` has each.
fn for_people(mut value: Value) -> Result<String> {
    fn strip(value: &mut Value) {
        if let Some(settings) = settings(value) {
            *value = settings;
            return;
        }
        match value {
            Value::Object(map) => {
                map.remove("curve");
                map.remove("steps");
                map.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut value);
    serde_yaml::to_string(&value).map_err(|e| Error::Internal(format!("cannot print: {e}")))
}

/// `attested: "seq_length 16, global_batch_size 2"` of a list of settings.
fn settings(list: &Value) -> Option<Value> {
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
