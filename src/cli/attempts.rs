//! `attempts CELL`: every run of a cell that was ever made, what it measured, and whether it
//! counts. `set-aside` and `restore` decide that by hand.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{
    args::{AttemptsArgs, AttemptsCommand, Globals, RestoreArgs, SetAsideArgs},
    flags::Measured,
    imported_runs::{self, ImportedLine},
    output::{print, print_json},
    project::split_repeat,
    session::Session,
};
use crate::{
    cache::{Attempt, Cache, SetAside, TaskKind},
    error::{Error, Problem, Result, exit},
    execute::reading::{PastMeasurements, StoredResult, measured_before},
    figures::{self, RepeatStatus},
    files,
    graph::{Engine, State, Statuses, outcome_text},
    job::RunOutcome,
    matrix::CellId,
    plan::Asked,
    report,
    results::RunResult,
    sentences,
};

pub fn run(globals: &Globals, args: &AttemptsArgs) -> Result<i32> {
    match (&args.command, &args.cell) {
        (Some(AttemptsCommand::SetAside(args)), _) => set_aside(globals, args),
        (Some(AttemptsCommand::Restore(args)), _) => restore(globals, args),
        (None, Some(cell)) => list(globals, args, cell),
        (None, None) => {
            let asked = Asked {
                directory: globals.directory.clone(),
                matrix: args.common.matrix().cloned(),
                sets: args.common.sets.clone(),
                ..Asked::default()
            };
            let problem = Problem::new("`tprimat attempts` needs a cell");
            let list = asked.command("list", &[]);
            Err(Error::invalid(problem.help(format!("`{list}` names them"))))
        }
    }
}

/// One run, as it is shown.
struct Line {
    attempt: Attempt,
    repeat: u32,
    /// Tokens/s/GPU and seconds a step, where its log was read and has them.
    figures: Option<(f64, f64)>,
    counts: bool,
    verdict: String,
}

fn list(globals: &Globals, args: &AttemptsArgs, asked: &str) -> Result<i32> {
    let session = Session::open_or_imports(globals, &args.common, &args.measured)?;
    let imports = imported_runs::of(&session.cache, asked)?;
    let lines = match imports.is_empty() {
        true => lines(&session, asked)?,
        false => lines_if_any(&session, asked)?,
    };
    if globals.json {
        print_json(
            "attempts",
            &json!({
                "attempts": lines.iter().map(Line::json).collect::<Vec<_>>(),
                "imports": imports.iter().map(ImportedLine::json).collect::<Vec<_>>(),
            }),
        )?;
    } else if lines.is_empty() && !imports.is_empty() {
        print(&imported_runs::text(&imports, &session.plan.asked))?;
    } else if lines.is_empty() {
        let (cell, _) = split_repeat(asked)?;
        let plan = &session.plan;
        let then = match plan.find(cell).ok().and_then(|id| plan.why_not_run(id)) {
            Some(why) => format!(". It {why}"),
            None => format!("; `{}` runs it", plan.command("build", &["--only", cell])),
        };
        eprintln!("`{asked}` was never run{then}");
    } else {
        print(&text(&lines, figures::rate_unit_of([asked])))?;
        print(&imported_runs::text(&imports, &session.plan.asked))?;
    }
    Ok(exit::OK)
}

/// The runs of a cell, or of one repeat of it.
fn lines(session: &Session, asked: &str) -> Result<Vec<Line>> {
    let (id, only) = split_repeat(asked)?;
    let cell = session.plan.find(id)?;
    let (engine, statuses) = session.look()?;
    let past = PastMeasurements::of(&session.cache, &session.plan);
    let mut lines = Vec::new();
    for (repeat, attempt) in past.of_cell_and_keys(&engine, &statuses, id, Some(cell)) {
        if only.is_none_or(|only| only == repeat) {
            lines.push(line(&engine, &statuses, cell, repeat, attempt, &past)?);
        }
    }
    Ok(lines)
}

/// The same; none where the matrix has no such cell, for an import may have its name.
fn lines_if_any(session: &Session, asked: &str) -> Result<Vec<Line>> {
    match lines(session, asked) {
        Err(Error::NothingSelected { .. }) => Ok(Vec::new()),
        lines => lines,
    }
}

/// The attempt that a person names: by its id, by the beginning of it, or by its cell, where only
/// one of the cell's runs `may` be meant.
fn meant(session: &Session, name: &str, may: fn(&Line) -> bool, what: &str) -> Result<Attempt> {
    if !name.contains('/') {
        return find(&session.cache, &session.plan.asked, name);
    }
    let mut lines = lines(session, name)?;
    lines.retain(may);
    match &lines[..] {
        [one] => Ok(one.attempt.clone()),
        [] => Err(Error::NothingSelected {
            message: format!("no run of `{name}` {what}"),
            help: Some(format!(
                "`{}` lists its runs",
                session.plan.command("attempts", &[name])
            )),
        }),
        several => {
            let runs: Vec<String> = several
                .iter()
                .map(|line| format!("#{} is {}", line.repeat, line.attempt.id))
                .collect();
            let problem = Problem::new(format!("{} runs of `{name}` may be meant", several.len()));
            Err(Error::invalid(problem.help(format!(
                "name one by CELL#REPEAT or its id: {}",
                runs.join(", ")
            ))))
        }
    }
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
        let why = sentences::why_not(&status)?;
        Some(format!("does not count: {why}{evidence}"))
    });
    let verdict = match (&attempt.set_aside, &attempt.outcome, &attempt.suspect) {
        (Some(SetAside { reason, at }), ..) => format!("set aside on {}: {reason}", time(*at)),
        (None, ..) if attempt.is_interrupted() => {
            "does not count: it was interrupted before its end".to_owned()
        }
        (None, RunOutcome::Failed { .. }, _) => format!("failed ({})", outcome_text(&attempt)),
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
                measured_before(engine, statuses, cell, &attempt)
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
    let figures = repeat
        .steady
        .map(|s| (s.tokens_per_second_per_gpu, s.step_time.mean_seconds));
    (repeat.status, figures)
}

impl Line {
    fn json(&self) -> Value {
        let Self {
            attempt,
            repeat,
            figures,
            counts,
            verdict,
        } = self;
        json!({
            "id": attempt.id, "repeat": repeat, "key": attempt.key, "generation": attempt.generation, "host": attempt.host,
            "started_at": attempt.started_at, "ended_at": attempt.ended_at, "outcome": outcome_text(attempt),
            "suspect": attempt.suspect, "set_aside": attempt.set_aside, "counts": counts, "verdict": verdict,
            "tokens_per_second_per_gpu": figures.map(|f| f.0), "step_time_seconds": figures.map(|f| f.1),
        })
    }
}

fn text(lines: &[Line], unit: &str) -> String {
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
    let row = |line: &Line| {
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
    let rows: Vec<[String; 8]> = std::iter::once(header.map(str::to_owned))
        .chain(lines.iter().map(row))
        .collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (word, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{word:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// `2026-11-21 18:30:05`
pub fn time(seconds: f64) -> String {
    jiff::Timestamp::from_second(seconds as i64).map_or_else(
        |_| "unknown".to_owned(),
        |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

fn set_aside(globals: &Globals, args: &SetAsideArgs) -> Result<i32> {
    let reason = args.reason.trim();
    if reason.is_empty() {
        let problem = Problem::new("--reason is empty, and a run is set aside for a reason only");
        return Err(Error::invalid(problem.help(
            "say what was wrong with the run: it is shown beside the figures",
        )));
    }
    let why = SetAside {
        reason: reason.to_owned(),
        at: files::unix_now(),
    };
    let session = Session::open_or_imports(globals, &args.common, &Measured::default())?;
    let measured = lines_if_any(&session, &args.id)?;
    if !measured.iter().any(|line| line.counts)
        && let Some(run) = imported_runs::one(&session.cache, &args.id, true)?
    {
        return run.set_aside(&session.cache, &why, &session.plan.asked);
    }
    refuse_if_so_already(&session, &args.id, &measured, true)?;
    let attempt = meant(&session, &args.id, |line| line.counts, "counts")?;
    session.cache.set_aside(&attempt, Some(&why))?;
    let run = attempt.task.strip_prefix("train ").unwrap_or(&attempt.task);
    let plan = &session.plan;
    let cell = run.split('#').next().unwrap_or(run);
    let repeat = run.split('#').nth(1).unwrap_or_default();
    let then = match plan.find(cell) {
        Ok(id) => match plan.why_not_run(id) {
            Some(why) => format!("the cell {why}"),
            None => {
                let mut words = vec!["--only", cell];
                // A build asks for the matrix's repeats, unless it is told of more.
                if repeat
                    .parse()
                    .is_ok_and(|n: u32| n > plan.cells[id].repeats)
                {
                    words.extend(["--repeats", repeat]);
                }
                format!("`{}` measures it anew", plan.command("build", &words))
            }
        },
        Err(_) => match plan.matrix_with(cell) {
            Some(matrix) => {
                let asked = Asked {
                    matrix: Some(matrix),
                    ..plan.asked.clone()
                };
                let again = asked.command("build", &["--only", cell]);
                format!("`{again}` measures it anew, if that matrix asks for the repeat")
            }
            None => "no matrix of the project has this cell now".to_owned(),
        },
    };
    eprintln!("set aside {} ({run}); {then}", attempt.id);
    eprintln!(
        "`{}` lets it count again",
        plan.command("attempts restore", &[&attempt.id])
    );
    Ok(exit::OK)
}

/// Says so where an import is set aside already, or counts already. Its cell may be in no matrix, so
/// nothing else would find it.
fn refuse_if_so_already(
    session: &Session,
    name: &str,
    measured: &[Line],
    set_aside: bool,
) -> Result<()> {
    if !measured.is_empty() {
        return Ok(());
    }
    let asked = &session.plan.asked;
    match imported_runs::is_so_already(&session.cache, name, set_aside, asked)? {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn restore(globals: &Globals, args: &RestoreArgs) -> Result<i32> {
    let session = Session::open_or_imports(globals, &args.common, &Measured::default())?;
    let measured = lines_if_any(&session, &args.id)?;
    if !measured.iter().any(|line| line.attempt.set_aside.is_some())
        && let Some(run) = imported_runs::one(&session.cache, &args.id, false)?
    {
        return run.restore(&session.plan, &session.cache);
    }
    refuse_if_so_already(&session, &args.id, &measured, false)?;
    let attempt = meant(
        &session,
        &args.id,
        |line| line.attempt.set_aside.is_some(),
        "was set aside",
    )?;
    if attempt.set_aside.is_none() {
        let message = format!("{} was not set aside", attempt.id);
        return Err(Error::Failed {
            message,
            help: Some(format!(
                "`{}` says what counts and why",
                session.plan.command("attempts", &["CELL"])
            )),
        });
    }
    session.cache.set_aside(&attempt, None)?;
    eprintln!("{} counts again as it did before", attempt.id);
    Ok(exit::OK)
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
    let list = asked.command("attempts", &["CELL"]);
    match (found.pop(), several) {
        (Some(attempt), 1) => Ok(attempt),
        (None, _) => Err(Error::NothingSelected {
            message: format!("no attempt has the id `{id}`"),
            help: Some(format!("`{list}` lists the attempts at a cell")),
        }),
        (Some(_), _) => {
            let problem = Problem::new(format!(
                "{several} attempts have ids that begin with `{id}`"
            ));
            Err(Error::invalid(
                problem.help(format!("give more of the id; `{list}` lists them")),
            ))
        }
    }
}
