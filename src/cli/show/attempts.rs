//! `show CELL --attempts`: every run of a cell that was ever made or imported, what it measured, and
//! whether it counts.

use serde_json::{Value, json};

use crate::{
    cache::{Attempt, Cache, SetAside, TaskKind},
    cli::{
        args::{Globals, ShowArgs},
        output::{columns, leave_out, print, print_json},
        project::split_repeat,
        session::Session,
    },
    error::{Error, Result, exit},
    execute::{
        derived,
        reading::{self, FigureScope, PastMeasurements, StoredResult, measured_before},
    },
    figures::{self, RepeatStatus, RepeatSummary},
    graph::{Engine, State, Statuses, outcome_text},
    import::{self, Imports, KeptRun},
    job::RunOutcome,
    matrix::CellId,
    plan::{Asked, CompareConfig},
    report,
    results::RunResult,
};

pub fn run(globals: &Globals, args: &ShowArgs) -> Result<i32> {
    let (session, asked) = (
        Session::open_or_imports(globals, &args.common, &args.measured)?,
        args.cell.as_str(),
    );
    let imports = import_lines(&session, asked)?;
    let lines = match imports.is_empty() {
        true => lines(&session, asked)?,
        false => lines_if_any(&session, asked)?,
    };
    if globals.json {
        let json = |lines: &[Line]| lines.iter().map(Line::json).collect::<Vec<_>>();
        let value = json!({ "attempts": json(&lines), "imports": json(&imports) });
        print_json("attempts", &value)?;
    } else if lines.is_empty() && imports.is_empty() {
        let (cell, _) = split_repeat(asked)?;
        let plan = &session.plan;
        let then = match plan.find(cell).ok().and_then(|id| plan.why_not_run(id)) {
            Some(why) => format!(". It {why}"),
            None => format!("; `{}` runs it", plan.command("build", &["--only", cell])),
        };
        eprintln!("`{asked}` was never run{then}");
    } else {
        let all: Vec<&Line> = lines.iter().chain(&imports).collect();
        print(&text(&all, figures::rate_unit_of([asked])))?;
    }
    Ok(exit::OK)
}

/// One run, as it is shown.
pub struct Line {
    pub attempt: Attempt,
    pub repeat: u32,
    /// Tokens/s/GPU and seconds a step, where its log was read and has them.
    figures: Option<(f64, f64)>,
    pub counts: bool,
    pub verdict: String,
    pub import: Option<KeptRun>,
}

/// The runs of a cell, or of one repeat of it.
fn lines(session: &Session, asked: &str) -> Result<Vec<Line>> {
    let (id, only) = split_repeat(asked)?;
    let cell = session.plan.find(id)?;
    let (engine, statuses) = session.look()?;
    let past = PastMeasurements::of(&session.cache, &session.plan);
    let mut lines = of_cell(&engine, &statuses, &past, (cell, only))?;
    if lines.iter().any(|line| line.counts)
        && let Some(why) = refused_beside_others(&engine, &statuses, &session.plan.cells[cell].id)?
    {
        for line in lines.iter_mut().filter(|line| line.counts) {
            (line.counts, line.verdict) = (false, format!("does not count: {why}"));
        }
    }
    Ok(lines)
}

/// Why a cell has no figures although runs of it serve: what those of the others show.
fn refused_beside_others(engine: &Engine, statuses: &Statuses, id: &str) -> Result<Option<String>> {
    let seeds = reading::cell_seeds(engine, statuses, FigureScope::Everything)?;
    let settings = CompareConfig::of(engine.plan);
    let comparison = derived::compare_cells(seeds, &settings, engine.cache, leave_out)?;
    let absent = comparison.absent.iter().find(|absent| absent.cell == id);
    Ok(absent.map(|absent| absent.reason.text.clone()))
}

/// The same of a cell of the plan.
pub fn of_cell(
    engine: &Engine,
    statuses: &Statuses,
    past: &PastMeasurements,
    (cell, only): (CellId, Option<u32>),
) -> Result<Vec<Line>> {
    let id = &engine.plan.cells[cell].id;
    let mut runs = past.of_cell_and_keys(engine, statuses, id, Some(cell));
    runs.retain(|(repeat, _)| only.is_none_or(|only| only == *repeat));
    let runs = runs.into_iter();
    runs.map(|(repeat, attempt)| line(engine, statuses, cell, repeat, attempt, past))
        .collect()
}

/// The same; none where the matrix has no such cell, for an import may have its name.
fn lines_if_any(session: &Session, asked: &str) -> Result<Vec<Line>> {
    match lines(session, asked) {
        Err(Error::NothingSelected { .. }) => Ok(Vec::new()),
        lines => lines,
    }
}

/// The runs and the imports that may be meant by a cell's name.
pub fn lines_of_any(session: &Session, asked: &str) -> Result<Vec<Line>> {
    let mut lines = lines_if_any(session, asked)?;
    lines.extend(import_lines(session, asked)?);
    Ok(lines)
}

/// The imports that `CELL` or `CELL#2` names; none where nothing was imported so.
fn import_lines(session: &Session, asked: &str) -> Result<Vec<Line>> {
    let Session { plan, cache, .. } = session;
    let (name, only) = split_repeat(asked)?;
    let imports = Imports::of(cache);
    let Some(cell) = imports.named(name) else {
        return Ok(Vec::new());
    };
    let claims = import::claim_for(plan, cell);
    let runs = import::runs(cache, &imports, cell, &claims, leave_out)?;
    let summary = import::summary(&runs, &claims.statistics);
    let mut lines = Vec::new();
    for import in imports.kept(cell) {
        let repeat = import.number;
        if only.is_some_and(|only| only != repeat) {
            continue;
        }
        let read = summary.repeats.iter().find(|read| read.repeat == repeat);
        let why_not = match (import.set_aside(), read) {
            (Some(why), _) => Some(told(why)),
            (None, Some(read)) => read
                .status
                .why_not()
                .map(|why| format!("does not count: {why}")),
            (None, None) => Some("does not count: a file of it cannot be read".to_owned()),
        };
        lines.push(Line {
            attempt: import.attempt.clone(),
            repeat,
            figures: read.and_then(speed),
            counts: why_not.is_none(),
            verdict: format!(
                "{}, imported from {}, {}",
                import.name(),
                import.recorded.from(),
                why_not.as_deref().unwrap_or("counts")
            ),
            import: Some(import.clone()),
        });
    }
    Ok(lines)
}

fn told(SetAside { reason, at }: &SetAside) -> String {
    format!("set aside on {}: {reason}", time(*at))
}

/// How many repeats the cell has; 0 where it is unsupported, for then it has no tasks.
fn repeats(engine: &Engine, cell: CellId) -> u32 {
    engine
        .plan
        .prepared(cell)
        .map_or(0, |_| engine.plan.cells[cell].repeats)
}

fn line(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    repeat: u32,
    mut attempt: Attempt,
    past: &PastMeasurements,
) -> Result<Line> {
    let is_planned = (1..=repeats(engine, cell)).contains(&repeat);
    let train = is_planned.then(|| statuses.get(engine.dag.node(TaskKind::Train, cell, repeat)));
    let used = train
        .and_then(|train| train.attempt())
        .filter(|used| used.id == attempt.id);
    if let Some(used) = used {
        // A file that changed under it may be declared as what the run writes.
        attempt.suspect.clone_from(&used.suspect);
    }
    let result = past.result(&engine.plan.cells[cell].id, repeat, &attempt)?;
    let lost = match &result {
        StoredResult::Lost(why) => Some(why.clone()),
        StoredResult::There(_) | StoredResult::NeverRead => None,
    };
    let read = result
        .there()
        .map(|result| summarized(engine, cell, repeat, result));
    let figures = read.as_ref().and_then(|(_, figures)| *figures);
    let is_used = used.is_some() && train.is_some_and(|train| train.state == State::Fresh);
    let not_counted = read.and_then(|(status, _)| {
        let evidence = match &status {
            // The attempt says it as well.
            RepeatStatus::Suspect { .. } => return None,
            RepeatStatus::Failed { evidence, .. } => format!(": {}", evidence.join("; ")),
            _ => String::new(),
        };
        let why = status.why_not()?;
        Some(format!("does not count: {why}{evidence}"))
    });
    let verdict = match (&attempt.set_aside, &attempt.outcome, &attempt.suspect) {
        (Some(why), ..) => told(why),
        (None, ..) if attempt.is_interrupted() => {
            "does not count: it was interrupted before its end".to_owned()
        }
        (None, RunOutcome::Failed { .. }, _) => {
            let is_earlier = train
                .and_then(|train| train.key)
                .is_some_and(|key| key != attempt.key);
            let before = match is_earlier {
                true => ", before its settings or files were edited",
                false => "",
            };
            format!("failed ({}){before}", outcome_text(&attempt))
        }
        (None, RunOutcome::Ok, Some(why)) => {
            format!("does not count: it was disturbed ({why})")
        }
        (None, RunOutcome::Ok, None) => match train {
            None => format!("the matrix asks for fewer than {repeat} repeats"),
            Some(_) if is_used => match (&not_counted, &lost) {
                (Some(why), _) => why.clone(),
                (None, Some(lost)) => format!("counts, but {lost}"),
                (None, None) => "counts".to_owned(),
            },
            Some(train) if train.key != Some(attempt.key) => {
                let when = measured_before(engine, statuses, cell, &attempt);
                let lost = lost.map(|why| format!(", but {why}"));
                when + &lost.unwrap_or_default()
            }
            Some(_) if attempt.generation < engine.cache.generation(&attempt.key) => {
                "does not count: replaced on request by a later run".to_owned()
            }
            // The first that serves counts, so this one does not serve.
            Some(train) if train.attempt().is_none_or(|used| used.id > attempt.id) => {
                let why = lost.as_deref().unwrap_or("no build has used it yet");
                format!("does not count: {why}")
            }
            Some(_) => "does not count: another run of this repeat was made first".to_owned(),
        },
    };
    let counts = is_used && not_counted.is_none() && attempt.is_valid();
    Ok(Line {
        attempt,
        repeat,
        figures,
        counts,
        verdict,
        import: None,
    })
}

/// How a run would stand in a summary, and its figures.
fn summarized(
    engine: &Engine,
    cell: CellId,
    repeat: u32,
    result: RunResult,
) -> (RepeatStatus, Option<(f64, f64)>) {
    let statistics = engine
        .plan
        .prepared(cell)
        .map(|p| p.resolved.statistics.clone())
        .unwrap_or_default();
    let mut summary = figures::summarize(&[(repeat, result)], &statistics);
    let repeat = summary.repeats.remove(0);
    let figures = speed(&repeat);
    (repeat.status, figures)
}

fn speed(repeat: &RepeatSummary) -> Option<(f64, f64)> {
    let steady = repeat.steady.as_ref()?;
    Some((
        steady.tokens_per_second_per_gpu,
        steady.step_time.mean_seconds,
    ))
}

impl Line {
    /// A run that was named by its id, whatever its cell is now.
    pub fn of_id(attempt: Attempt) -> Self {
        Self {
            attempt,
            repeat: 0,
            figures: None,
            counts: false,
            verdict: String::new(),
            import: None,
        }
    }

    pub fn name(&self) -> String {
        match &self.import {
            Some(import) => format!("the import {}", import.name()),
            None => self.attempt.id.clone(),
        }
    }

    fn json(&self) -> Value {
        let Self {
            attempt,
            repeat,
            figures,
            counts,
            verdict,
            import,
        } = self;
        let of_run = || Some(attempt.task.strip_prefix("train ")?.rsplit_once('#')?.0);
        json!({
            "cell": import.as_ref().map_or_else(of_run, |import| Some(&import.cell)),
            "id": attempt.id, "repeat": repeat, "key": attempt.key, "generation": attempt.generation, "host": attempt.host,
            "started_at": attempt.started_at, "ended_at": attempt.ended_at, "outcome": outcome_text(attempt),
            "suspect": attempt.suspect, "set_aside": attempt.set_aside, "counts": counts, "verdict": verdict,
            "tokens_per_second_per_gpu": figures.map(|f| f.0), "step_time_seconds": figures.map(|f| f.1),
        })
    }
}

fn text(lines: &[&Line], unit: &str) -> String {
    let header = [
        "attempt",
        "repeat",
        "key",
        "started (UTC)",
        "host",
        unit,
        "step time",
        "counts?",
    ];
    let row = |line: &&Line| {
        let missing = || "–".to_owned();
        // Figures of a run that does not count are not to be read as its result.
        let marked = |figure: String| {
            if line.counts {
                figure
            } else {
                format!("({figure})")
            }
        };
        let figure = |of: fn((f64, f64)) -> String| {
            line.figures
                .map_or_else(missing, |figures| marked(of(figures)))
        };
        [
            line.attempt.id.clone(),
            format!("#{}", line.repeat),
            line.attempt.key.short(),
            time(line.attempt.started_at),
            line.attempt.host.clone(),
            figure(|(rate, _)| report::number(rate)),
            figure(|(_, seconds)| report::seconds(seconds)),
            line.verdict.clone(),
        ]
    };
    let header = std::iter::once(header.map(str::to_owned));
    let rows: Vec<[String; 8]> = header.chain(lines.iter().map(row)).collect();
    columns(&rows)
}

/// `2026-11-21 18:30:05`
pub fn time(seconds: f64) -> String {
    jiff::Timestamp::from_second(seconds as i64).map_or_else(
        |_| "unknown".to_owned(),
        |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// The attempt that is named by its id, or by the beginning of it.
pub fn find(cache: &Cache, asked: &Asked, id: &str) -> Result<Attempt> {
    let mut found = cache.all_attempts();
    if found.iter().any(|attempt| attempt.id == id) {
        found.retain(|attempt| attempt.id == id);
    } else {
        found.retain(|attempt| attempt.id.starts_with(id) && !id.is_empty());
    }
    let several = found.len();
    let list = asked.command("show", &["CELL", "--attempts"]);
    match (found.pop(), several) {
        (Some(attempt), 1) => Ok(attempt),
        (None, _) => Err(Error::nothing(
            format!("no attempt has the id `{id}`"),
            format!("`{list}` lists the attempts at a cell"),
        )),
        (Some(_), _) => Err(Error::refused(
            format!("{several} attempts have ids that begin with `{id}`"),
            format!("give more of the id; `{list}` lists them"),
        )),
    }
}
