//! `attempts CELL`: every run of a cell that was ever made or imported, what it measured, and whether
//! it counts. `set-aside` and `restore` decide that by hand.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{
    args::{AttemptsArgs, AttemptsCommand, Globals, RestoreArgs, SetAsideArgs},
    flags::Measured,
    output::{leave_out, print, print_json},
    project::split_repeat,
    session::Session,
};
use crate::{
    cache::{Attempt, Cache, SetAside, TaskKind},
    error::{Error, Problem, Result, exit},
    execute::reading::{PastMeasurements, StoredResult, measured_before},
    figures::{self, RepeatStatus, RepeatSummary},
    files,
    graph::{Engine, State, Statuses, outcome_text},
    import::{self, ImportedRun, Imports, KeptRun},
    job::RunOutcome,
    matrix::CellId,
    plan::Asked,
    report,
    results::{Contract, RunResult},
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
    import: Option<KeptRun>,
}

fn list(globals: &Globals, args: &AttemptsArgs, asked: &str) -> Result<i32> {
    let session = Session::open_or_imports(globals, &args.common, &args.measured)?;
    let imports = import_lines(&session, asked)?;
    let lines = match imports.is_empty() {
        true => lines(&session, asked)?,
        false => lines_if_any(&session, asked)?,
    };
    if globals.json {
        let json = |lines: &[Line]| lines.iter().map(Line::json).collect::<Vec<_>>();
        print_json(
            "attempts",
            &json!({ "attempts": json(&lines), "imports": json(&imports) }),
        )?;
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

/// The run or import that a person names to be set aside, or to be restored: by its id, by the beginning
/// of it, or by its cell, where only one of the cell's runs may be meant.
fn meant(session: &Session, name: &str, is_aside: bool) -> Result<Line> {
    let Session { plan, cache, .. } = session;
    let mut lines = lines_if_any(session, name)?;
    lines.extend(import_lines(session, name)?);
    if lines.is_empty() && !name.contains('/') {
        let attempt = find(cache, &plan.asked, name)?;
        return Ok(Line {
            repeat: 0,
            figures: None,
            counts: false,
            verdict: String::new(),
            import: None,
            attempt,
        });
    }
    let help = format!("`{}` lists its runs", plan.command("attempts", &[name]));
    let already = match &lines[..] {
        [one] => match &one.attempt.set_aside {
            Some(SetAside { reason, at }) => {
                let on = time(*at);
                format!("{} was set aside already, on {on}: {reason}", one.name())
            }
            None => format!("{} was not set aside", one.name()),
        },
        _ if is_aside => format!("no run of `{name}` was set aside"),
        _ => format!("no run of `{name}` counts"),
    };
    let is_measured = lines.iter().any(|line| line.import.is_none());
    // An import may be set aside whatever it says.
    lines.retain(|line| match (is_aside, &line.attempt.set_aside) {
        (true, aside) => aside.is_some(),
        (false, aside) => line.counts || (line.import.is_some() && aside.is_none()),
    });
    if lines.iter().any(|line| line.import.is_none()) {
        lines.retain(|line| line.import.is_none());
    }
    match &lines[..] {
        [_] => Ok(lines.remove(0)),
        [] if is_measured => Err(Error::NothingSelected {
            message: already,
            help: Some(help),
        }),
        [] => Err(Error::Failed {
            message: already,
            help: Some(help),
        }),
        several => {
            let runs: Vec<String> = several
                .iter()
                .map(|line| format!("#{} is {}", line.repeat, line.name()))
                .collect();
            let problem = Problem::new(format!("{} runs of `{name}` may be meant", several.len()));
            Err(Error::invalid(problem.help(format!(
                "name one by CELL#REPEAT or its id: {}",
                runs.join(", ")
            ))))
        }
    }
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
    fn name(&self) -> String {
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
    let Line {
        attempt, import, ..
    } = meant(&session, &args.id, false)?;
    session.cache.set_aside(&attempt, Some(&why))?;
    let plan = &session.plan;
    if let Some(import) = import {
        let name = import.name();
        eprintln!("set aside the import {name}; no comparison counts it");
        let restore = plan.command("attempts restore", &[&name]);
        eprintln!("`{restore}` lets it count again");
        return Ok(exit::OK);
    }
    let run = attempt.task.strip_prefix("train ").unwrap_or(&attempt.task);
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

fn restore(globals: &Globals, args: &RestoreArgs) -> Result<i32> {
    let session = Session::open_or_imports(globals, &args.common, &Measured::default())?;
    let line = meant(&session, &args.id, true)?;
    if let Some(import) = &line.import {
        refuse_beside_other_work(&session, import)?;
    }
    if line.attempt.set_aside.is_none() {
        return Err(Error::Failed {
            message: format!("{} was not set aside", line.name()),
            help: Some(format!(
                "`{}` says what counts and why",
                session.plan.command("attempts", &["CELL"])
            )),
        });
    }
    session.cache.set_aside(&line.attempt, None)?;
    eprintln!("{} counts again as it did before", line.name());
    Ok(exit::OK)
}

/// An import does not come back where its cell holds an import of another workload by now.
fn refuse_beside_other_work(session: &Session, import: &KeptRun) -> Result<()> {
    let Session { plan, cache, .. } = session;
    let (cell, recorded) = (&import.cell, import.recorded.clone());
    let claims = import::claim_for(plan, cell);
    let own = ImportedRun::read(cache, import.number, recorded, &claims)?;
    let others = import::runs(cache, &Imports::of(cache), cell, &claims, leave_out)?;
    refuse_other_workload(
        &plan.asked,
        cell,
        &own.result.contract,
        others.iter().map(|run| &run.result.contract),
        "take back what the cell holds first",
    )
}

/// An error if an import of the cell that counts did other work: the two would be averaged as
/// repeats of one. `instead`: what else to do.
pub fn refuse_other_workload<'a>(
    asked: &Asked,
    cell: &str,
    own: &Contract,
    mut others: impl Iterator<Item = &'a Contract>,
    instead: &str,
) -> Result<()> {
    let Some(difference) = others.find_map(|other| import::other_workload(own, other)) else {
        return Ok(());
    };
    Err(Error::Failed {
        message: format!("`{cell}` holds an import of another workload: {difference}"),
        help: Some(format!(
            "they are not repeats of each other; {instead}: `{}`",
            asked.command("attempts set-aside", &[cell, "--reason", "TEXT"])
        )),
    })
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
