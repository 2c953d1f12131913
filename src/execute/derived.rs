//! The tasks that compute rather than measure: bytes of the cache in, bytes of the cache out.
//!
//! `prepare` collects what a task needs while the states are at hand; `run` does it on any thread.

mod cells;
mod report;
mod stored;

use std::sync::Arc;

pub use cells::{CellSeed, cell_inputs, cell_seeds, compare_cells};
pub use report::{Report, report_of};
pub(super) use stored::read_uncounted;
pub use stored::{read_comparison, read_summary};

pub(super) use cells::own_input;
pub(super) use stored::need;

use crate::{
    cache::{Attempt, Cache, Output, TaskKind},
    digest::Digest,
    error::Result,
    figures::{self, Dropped, Statistics},
    graph::{Artifacts, Engine, Statuses, TaskId, logs_to_read, lost_log},
    job::RunOutcome,
    logs::{self, Dated, LogSection, Parser, Trace},
    matrix::CellId,
    plan::CompareConfig,
    recipe::Rendered,
    results::{AttemptOutputs, Reason, RunFacts, RunResult},
    run::TELEMETRY,
};
use report::{ReportWork, report_work};
use stored::{UNCOUNTED, json_bytes, put, put_comparison_to_read, put_picture, put_value, read};

/// What one derived task needs, owned.
pub enum DerivedWork {
    Render(Vec<Rendered>),
    Parse {
        attempt: Arc<Attempt>,
        cell: CellId,
    },
    Aggregate {
        cell: CellId,
        results: Vec<(u32, Digest)>,
        dropped: Vec<Dropped>,
    },
    Compare {
        cells: Vec<CellSeed>,
    },
    Plot {
        comparison: Option<Output>,
    },
    Report(Box<ReportWork>),
}

/// Bytes of a log's end that its last lines are taken from.
const TAIL: usize = 64 << 10;

/// Results by repeat.
pub type Results = Vec<(u32, RunResult)>;

/// Collects what the task at `node` needs.
#[must_use]
pub fn prepare(engine: &Engine, node: TaskId, statuses: &Statuses) -> DerivedWork {
    let task = engine.dag.task(node);
    let cell = task.cell;
    let comparison = || {
        statuses
            .get(engine.dag.over_all(TaskKind::Compare))
            .outputs()
            .first()
            .cloned()
    };
    match task.kind {
        TaskKind::Render => DerivedWork::Render(match &statuses.get(node).artifacts {
            Artifacts::Rendered(_, files) => files.clone(),
            _ => Vec::new(),
        }),
        TaskKind::Parse | TaskKind::Train => {
            let train = statuses.get(engine.dag.node(TaskKind::Train, task.cell, task.repeat));
            let attempt = train.attempt();
            let attempt = attempt.expect("parse is stale only after an attempt");
            DerivedWork::Parse {
                attempt: attempt.clone(),
                cell,
            }
        }
        TaskKind::Aggregate => DerivedWork::Aggregate {
            cell,
            results: engine.results(cell, statuses),
            dropped: engine
                .dropped(task.cell, statuses)
                .into_iter()
                .cloned()
                .collect(),
        },
        TaskKind::Compare => DerivedWork::Compare {
            cells: cell_seeds(engine, statuses).into_iter().collect(),
        },
        TaskKind::Plot => DerivedWork::Plot {
            comparison: comparison(),
        },
        TaskKind::Report => {
            let pictures = statuses
                .get(engine.dag.over_all(TaskKind::Plot))
                .outputs()
                .to_vec();
            DerivedWork::Report(Box::new(report_work(
                engine,
                statuses,
                comparison(),
                pictures,
            )))
        }
    }
}

/// What a derived task left.
#[derive(Default)]
pub struct Derived {
    pub outputs: Vec<Output>,
    /// Sentences for people.
    pub notes: Vec<String>,
    /// Only a parse gives one: `Some(None)` where its run counts, else the reason why it does not.
    pub verdict: Option<Option<Reason>>,
}

/// Does one derived task. Its outputs are in the cache when this returns.
pub fn run(work: DerivedWork, engine: &Engine) -> Result<Derived> {
    let cache = engine.cache;
    let statistics = |cell| {
        let prepared = engine.plan.prepared(cell);
        prepared.map_or_else(Statistics::default, |of| of.resolved.statistics.clone())
    };
    let put = |name: &str, bytes: &[u8]| put(cache, name, bytes);
    let mut verdict = None;
    let outputs = match work {
        DerivedWork::Report(work) => return work.run(cache),
        DerivedWork::Render(files) => files
            .iter()
            .map(|f| put(&f.name, &f.bytes))
            .collect::<Result<_>>()?,
        DerivedWork::Parse { attempt, cell } => {
            let result = result_of(engine, cell, &attempt)?;
            verdict = Some(figures::why_uncounted(&result, &statistics(cell)));
            vec![put_value(cache, "result.json", &result)?]
        }
        DerivedWork::Aggregate {
            cell,
            results,
            dropped,
        } => {
            let results = results.iter();
            let results = results.map(|(r, d)| Ok((*r, read(cache, d, "result.json")?)));
            let results: Vec<_> = results.collect::<Result<_>>()?;
            let summary = figures::summarize(&results, &statistics(cell)).disclosing(dropped);
            vec![put_value(cache, "summary.json", &summary)?]
        }
        DerivedWork::Compare { cells } => {
            let settings = CompareConfig::of(engine.plan);
            let comparison = compare_cells(cells, &settings, cache, |_, error| Err(error))?;
            let uncounted = json_bytes(&comparison.cells_with_uncounted())?;
            vec![
                put_comparison_to_read(cache, comparison)?,
                put(UNCOUNTED, &uncounted)?,
            ]
        }
        DerivedWork::Plot { comparison } => plot(comparison.as_ref(), cache)?,
    };
    Ok(Derived {
        outputs,
        verdict,
        ..Derived::default()
    })
}

/// The pictures of a stored comparison.
fn plot(comparison: Option<&Output>, cache: &Cache) -> Result<Vec<Output>> {
    let comparison = read_comparison(cache, comparison)?;
    let mut outputs = Vec::new();
    for picture in crate::report::pictures(&comparison)?.drawn {
        outputs.extend(put_picture(cache, &picture)?);
    }
    Ok(outputs)
}

/// What the log of a repeat's run says, whether or not a parse has read it; nothing where it was not
/// measured, or its log is lost.
pub(super) fn result_from_log(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    repeat: u32,
) -> Result<Option<RunResult>> {
    let train = statuses.get(engine.dag.node(TaskKind::Train, cell, repeat));
    let Some(attempt) = train.attempt() else {
        return Ok(None);
    };
    if engine.plan.prepared(cell).is_none() || lost_log(engine.cache, attempt).is_some() {
        return Ok(None);
    }
    result_of(engine, cell, attempt).map(Some)
}

/// What an attempt's log says, held against the job of its cell.
fn result_of(engine: &Engine, cell: CellId, attempt: &Attempt) -> Result<RunResult> {
    let (plan, cache) = (engine.plan, engine.cache);
    let prepared = plan.prepared(cell).expect("what ran is supported");
    let section = &plan.recipe(cell).file.log;
    let output = |name: &str| {
        attempt
            .outputs
            .iter()
            .find(|o| o.name == name)
            .map(|o| &o.digest)
    };
    let get = |digest: Option<&Digest>| digest.map_or(Ok(None), |digest| cache.get(digest));
    let sampled = output(TELEMETRY);
    // Without the times the log still says all else.
    let (times, samples) = (get(output("times"))?.unwrap_or_default(), get(sampled)?);
    let (trace, log_tail) = read_logs(cache, attempt, section, &times)?;
    let left = AttemptOutputs {
        trace,
        log_tail,
        samples: sampled.map(|_| samples.as_deref()),
        facts: facts_of(attempt),
        repeats_planned: attempt.repeats_planned,
        suspect: attempt.suspect.clone(),
    };
    let unreached = plan.unreached(cell);
    let unreached = unreached.iter().filter(|field| field.is_of_speed);
    let unreached: Vec<_> = unreached.map(|field| field.setting).collect();
    Ok(left.result(prepared.job(), &unreached, plan.unwritten(cell)))
}

/// What the logs of an attempt say, and their last lines, read piece by piece. Of a run whose last rank
/// prints the steps, the logs of the other nodes, from the one with rank 0 up, come before the run's
/// own: Megatron prints its settings on rank 0 and memory on one rank of each stage, and a host that has
/// all ranks shows all of it in one log. The times are those of the last log.
fn read_logs(
    cache: &Cache,
    attempt: &Attempt,
    section: &LogSection,
    times: &[u8],
) -> Result<(Trace, Vec<String>)> {
    let (trace, end) = read_dated(cache, attempt, section, times)?;
    if !section.is_any() || !trace.steps.is_empty() {
        return Ok((trace, end));
    }
    let mut parser = Parser::detecting();
    each_chunk(cache, attempt, |bytes, _| parser.feed(bytes))?;
    let found = parser.finish();
    if found.steps.is_empty() {
        return Ok((trace, end));
    }
    // Once more, with the times: what a trainer says of its steps is held against them.
    read_dated(cache, attempt, &LogSection::named(&found.format), times)
}

fn read_dated(
    cache: &Cache,
    attempt: &Attempt,
    section: &LogSection,
    times: &[u8],
) -> Result<(Trace, Vec<String>)> {
    let mut parser = Dated::new(section, times);
    let mut end: Vec<u8> = Vec::new();
    each_chunk(cache, attempt, |bytes, is_own| {
        if is_own {
            parser.feed(bytes);
        } else {
            parser.feed_before(bytes);
        }
        end.extend_from_slice(bytes);
        end.drain(..end.len().saturating_sub(TAIL));
    })?;
    if attempt.outcome == RunOutcome::Ok && end.last() != Some(&b'\n') {
        // The last line of a run that ended well is whole.
        parser.feed(b"\n");
    }
    Ok((parser.finish(), logs::tail(&end)))
}

/// Hands the logs of an attempt out piece by piece, and says of each piece whether it is of the run's
/// own log, which comes last.
fn each_chunk(cache: &Cache, attempt: &Attempt, mut take: impl FnMut(&[u8], bool)) -> Result<()> {
    let logs = logs_to_read(attempt);
    for (number, log) in logs.iter().enumerate() {
        let is_own = number + 1 == logs.len();
        let is_sound = cache.stream(&log.digest, |bytes| {
            take(bytes, is_own);
            Ok(())
        })?;
        if !is_sound {
            return Err(cache.gone(&log.digest, &log.name));
        }
        if !is_own {
            take(logs::NEXT_RANK, is_own);
        }
    }
    Ok(())
}

/// What is known of a run besides its log.
pub(super) fn facts_of(attempt: &Attempt) -> RunFacts {
    RunFacts {
        attempt: attempt.id.clone(),
        host: attempt.host.clone(),
        started_at: Some(attempt.started_at),
        ended_at: Some(attempt.ended_at),
        outcome: attempt.outcome.clone(),
    }
}
