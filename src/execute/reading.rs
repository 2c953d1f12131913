//! What can be shown of a cell that no build has finished: the repeats that are there, or what was
//! measured before the configuration changed. Runs and writes nothing; whatever stands in says so
//! ([`Standing`]).

mod past;

use std::sync::Arc;

use rayon::prelude::*;

use super::derived::{self, CellSeed, Results};
use crate::{
    cache::{Attempt, Cache, Entry, TaskKind, is_of_one_file},
    digest::Digest,
    error::Result,
    figures::{self, CellEnvironment, CellState, SHARE, Standing, Summary, codes::SUSPECT},
    graph::{Engine, State, Statuses, logs_to_read},
    job::RunOutcome,
    matrix::{CellId, PerCell},
    plan::DataKind,
    plan::Support,
    results::{DATASET_DIGEST, Reason, RunResult, TOKENIZER_DIGEST},
};
pub(super) use past::launch_of;
pub use past::{PastMeasurements, cells_with_attempts, measured_before, run_of, trainings};

/// How far to look for figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureScope {
    /// Only where all repeats of the present configuration are measured, although nobody has summed
    /// them up.
    Complete,
    /// Also where repeats are missing, or where only an earlier configuration was measured.
    Everything,
}

/// The cells of a matrix as the cache has them, with stand-ins for summaries that are not there.
pub fn cell_seeds(
    engine: &Engine,
    statuses: &Statuses,
    reach: FigureScope,
) -> Result<PerCell<CellSeed>> {
    let mut seeds = derived::cell_seeds(engine, statuses);
    let mut past = None;
    for (cell, seed) in seeds.with_ids_mut() {
        if !seed.has_no_measurement()
            || matches!(engine.plan.cells[cell].support, Support::Unsupported(_))
        {
            continue;
        }
        let (results, to_come) = present(engine, statuses, cell)?;
        let has_figures = results
            .iter()
            .any(|(_, result)| result.outcome == RunOutcome::Ok);
        if has_figures && (to_come == 0 || reach == FigureScope::Everything) {
            let standing = Standing {
                to_come,
                ..Standing::default()
            };
            let dropped = engine
                .dropped(cell, statuses)
                .into_iter()
                .cloned()
                .collect();
            let summary = summary(engine, cell, &results).disclosing(dropped);
            seed.stand_in(derived::own_input(engine, cell), summary, standing);
        } else if !has_figures && (!seed.is_imported() || reach == FigureScope::Everything) {
            // What was imported stands for a cell only where nothing was measured, also not before its
            // configuration changed.
            let past = past.get_or_insert_with(|| PastMeasurements::of(engine.cache, engine.plan));
            let Some(found) = past.of_cell(engine, statuses, cell)? else {
                continue;
            };
            if reach == FigureScope::Complete {
                let aggregate = engine.dag.node(TaskKind::Aggregate, cell, 0);
                let is_stale = statuses.get(aggregate).state == State::Stale;
                seed.is_outdated(&found.why, is_stale);
                continue;
            }
            let summary = summary(engine, cell, &found.results);
            let mut input = derived::own_input(engine, cell);
            // What it was started in then is not what it would be started in now.
            (input.environment, input.same_launch_as) = (environment(&found.preimage), None);
            seed.stand_in(
                input,
                summary,
                Standing {
                    earlier: Some(found.why),
                    ..Standing::default()
                },
            );
        }
    }
    Ok(seeds)
}

/// One repeat of a cell, and why it is not of the present configuration, if it is not.
pub fn repeat(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    repeat: u32,
) -> Result<Option<(RunResult, Standing)>> {
    if let Some(result) = present_repeat(engine, statuses, cell, repeat)? {
        return Ok(Some((result, Standing::default())));
    }
    let found = PastMeasurements::of(engine.cache, engine.plan).of_cell(engine, statuses, cell)?;
    Ok(found.and_then(|found| {
        let (_, result) = found
            .results
            .into_iter()
            .find(|(number, _)| *number == repeat)?;
        Some((
            result,
            Standing {
                earlier: Some(found.why),
                ..Standing::default()
            },
        ))
    }))
}

/// What the results of a cell come to, with the warm-up that the plan has for it.
#[must_use]
pub fn summary(engine: &Engine, cell: CellId, results: &Results) -> Summary {
    let statistics = engine
        .plan
        .prepared(cell)
        .map(|p| p.resolved.statistics.clone())
        .unwrap_or_default();
    figures::summarize(results, &statistics)
}

/// A run that ended well and does not count by what its log says.
pub struct UncountedRun {
    pub cell: CellId,
    pub repeat: u32,
    pub attempt: Arc<Attempt>,
    pub why: Reason,
}

/// The runs of the selected cells' present configuration that ended well, do not count and are not made
/// again: what their logs say is the reason. Nothing is parsed for it.
pub fn uncounted_runs(engine: &Engine, statuses: &Statuses) -> Result<Vec<UncountedRun>> {
    let compare = statuses.get(engine.dag.over_all(TaskKind::Compare));
    // The last comparison names the cells to look at, if it still stands and can be read.
    let known = match derived::read_uncounted(engine.cache, compare.outputs()) {
        Ok(known) => Some(known).filter(|_| compare.state == State::Fresh),
        Err(error) if is_of_one_file(&error) => None,
        Err(error) => return Err(error),
    };
    let of_cell = |cell: CellId| -> Result<Vec<UncountedRun>> {
        let planned = &engine.plan.cells[cell];
        let is_known_to_count = known
            .as_ref()
            .is_some_and(|known| !known.contains(&planned.id));
        if !planned.selected || engine.plan.prepared(cell).is_none() || is_known_to_count {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for (repeat, why) in not_counted(engine, statuses, cell)? {
            // Disturbed runs have a state of their own.
            if why.is(SUSPECT) {
                continue;
            }
            let train = statuses.get(engine.dag.node(TaskKind::Train, cell, repeat));
            let attempt = train.attempt().filter(|a| a.outcome == RunOutcome::Ok);
            found.extend(attempt.map(|attempt| UncountedRun {
                cell,
                repeat,
                attempt: attempt.clone(),
                why,
            }));
        }
        Ok(found)
    };
    let all: Vec<Result<Vec<UncountedRun>>> = engine.plan.cells.par_ids().map(of_cell).collect();
    let all: Vec<Vec<UncountedRun>> = all.into_iter().collect::<Result<_>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// Which repeats of a cell do not count and why, by its summary, else by the results that are there.
fn not_counted(engine: &Engine, statuses: &Statuses, cell: CellId) -> Result<Vec<(u32, Reason)>> {
    let output =
        |node| (statuses.get(node).state == State::Fresh).then(|| statuses.first_output(node))?;
    let stored_summary = match output(engine.dag.node(TaskKind::Aggregate, cell, 0)) {
        Some(digest) => engine.cache.get(&digest)?,
        None => None,
    };
    let summary: Option<Summary> =
        stored_summary.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let summary = match summary {
        Some(summary) => summary,
        None => {
            let mut results = Results::new();
            for repeat in 1..=engine.plan.cells[cell].repeats {
                if let Some(digest) = output(engine.dag.node(TaskKind::Parse, cell, repeat))
                    && let Some(result) = stored(engine.cache, &digest)?
                {
                    results.push((repeat, result));
                }
            }
            self::summary(engine, cell, &results)
        }
    };
    let repeats = summary.repeats.into_iter();
    Ok(repeats
        .filter_map(|run| Some((run.repeat, run.why?)))
        .collect())
}

/// The results of the present configuration, and how many repeats are still to be measured.
fn present(engine: &Engine, statuses: &Statuses, cell: CellId) -> Result<(Results, u32)> {
    let (mut results, mut to_come) = (Vec::new(), 0);
    for number in 1..=engine.plan.cells[cell].repeats {
        match present_repeat(engine, statuses, cell, number)? {
            Some(result) => results.push((number, result)),
            // One that is not started, because it would fail as another did, is not to come.
            None => to_come += u32::from(is_to_come(engine, statuses, cell, number)),
        }
    }
    Ok((results, to_come))
}

fn is_to_come(engine: &Engine, statuses: &Statuses, cell: CellId, repeat: u32) -> bool {
    let train = statuses.get(engine.dag.node(TaskKind::Train, cell, repeat));
    matches!(train.state, State::Stale | State::Waiting | State::Blocked)
}

/// The result of a repeat that was measured; made here from its log where no parse has.
fn present_repeat(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    repeat: u32,
) -> Result<Option<RunResult>> {
    let parse = engine.dag.node(TaskKind::Parse, cell, repeat);
    if let (State::Fresh, Some(output)) = (statuses.get(parse).state, statuses.first_output(parse))
        && let Some(result) = stored(engine.cache, &output)?
    {
        return Ok(Some(result));
    }
    derived::result_from_log(engine, statuses, cell, repeat)
}

/// What the cache has of what was read from a run's log.
pub enum StoredResult {
    There(Box<RunResult>),
    /// Neither it nor what it was read from can be read, or it alone cannot: why, and what helps.
    Lost(String),
    /// No build has read the log, which is there.
    NeverRead,
}

impl StoredResult {
    /// The first that can be read of what `parses` of the attempt left.
    pub(super) fn among<'a>(
        cache: &Cache,
        attempt: &Attempt,
        parses: impl Iterator<Item = &'a Entry>,
    ) -> Result<Self> {
        let mut of_other_version = None;
        for output in parses.filter_map(|entry| entry.outputs.first()) {
            if let Some(result) = stored(cache, &output.digest)? {
                return Ok(Self::There(Box::new(result)));
            }
            of_other_version.get_or_insert(cache.has(&output.digest));
        }
        let why = match (of_other_version, has_log(cache, attempt)?) {
            (None, true) => return Ok(Self::NeverRead),
            (None, false) => format!("its log {GONE}; {BRINGS_BACK}"),
            (Some(false), false) => format!("its log and its result {GONE}; {BRINGS_BACK}"),
            (Some(true), false) => format!(
                "its result is of another version of tprimat, and its log {GONE}; {BRINGS_BACK}"
            ),
            (Some(false), true) => format!("its result {GONE}; {READS_AGAIN}"),
            (Some(true), true) => {
                format!("its result is of another version of tprimat; {READS_AGAIN}")
            }
        };
        Ok(Self::Lost(why))
    }

    #[must_use]
    pub fn there(self) -> Option<RunResult> {
        match self {
            Self::There(result) => Some(*result),
            Self::Lost(_) | Self::NeverRead => None,
        }
    }
}

const READS_AGAIN: &str = "a build that uses this run reads its log again";

/// What happened to a file of the cache that cannot be read.
pub const GONE: &str = "cannot be read: gone from the cache, or damaged there";

/// What helps where a file of a run is lost.
pub const BRINGS_BACK: &str = "`tprimat cache pull` brings it back where another cache has it";

/// Can the log of a run be read?
fn has_log(cache: &Cache, attempt: &Attempt) -> Result<bool> {
    for log in logs_to_read(attempt) {
        if !cache.is_sound(&log.digest)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A result of the cache; `None` where it is gone, or of a version that this one cannot read.
fn stored(cache: &Cache, digest: &Digest) -> Result<Option<RunResult>> {
    Ok(cache
        .get(digest)?
        .and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// What a run was started in, as far as its pre-image names it.
fn environment(preimage: &str) -> CellEnvironment {
    let lines = |prefix: &'static str| {
        let named = preimage.lines().filter_map(|line| line.split_once(" = "));
        let of_kind = named
            .filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value)));
        of_kind.map(|(name, value)| {
            let text = serde_json::from_str::<serde_json::Value>(value).ok();
            (
                name,
                text.and_then(|v| v.as_str().map(str::to_owned))
                    .unwrap_or_else(|| value.to_owned()),
            )
        })
    };
    // What is a line of its own in a pre-image, under the name that the facts of a cell have for it.
    let own = [
        ("vendor", "vendor"),
        ("image", "image"),
        ("share", SHARE),
        (DataKind::Dataset.name(), DATASET_DIGEST),
        (DataKind::Tokenizer.name(), TOKENIZER_DIGEST),
    ];
    let own = own.into_iter().filter_map(|(line, fact)| {
        let (_, value) = lines(line).find(|(rest, _)| rest.is_empty())?;
        Some((fact.to_owned(), value))
    });
    // A pre-image names `share` only where it is set.
    let alone = (SHARE.to_owned(), false.to_string());
    CellEnvironment {
        variables: lines("env.").collect(),
        facts: std::iter::once(alone)
            .chain(lines("fact."))
            .chain(own)
            .collect(),
    }
    .public()
}

impl CellSeed {
    /// Has it no summary of what was measured here? A failure is one.
    fn has_no_measurement(&self) -> bool {
        self.summary.is_none()
            && (self.is_imported() || matches!(self.input.state, CellState::Missing { .. }))
    }

    fn is_imported(&self) -> bool {
        self.imported.is_some()
    }

    /// Says what there is of the cell: in place of that nothing is, or beside why it waits.
    fn is_outdated(&mut self, why: &str, is_stale: bool) {
        if let CellState::Missing { reason } = &mut self.input.state {
            *reason = if is_stale {
                format!("only {why}")
            } else {
                format!("{reason}; only {why}")
            };
        }
    }

    fn stand_in(&mut self, input: figures::CellInput, summary: Summary, standing: Standing) {
        self.input = figures::CellInput {
            state: CellState::Ok {
                summary: Box::new(summary),
            },
            standing,
            ..input
        };
        self.imported = None;
    }

    /// The cell's summary of what was measured here, and how it stands to the present
    /// configuration.
    pub fn measured(&self, cache: &Cache) -> Result<Option<(serde_json::Value, &Standing)>> {
        let as_json = |summary: &Summary| serde_json::to_value(summary).ok();
        let value = match (&self.summary, &self.input.state) {
            (Some(digest), _) => {
                serde_json::from_slice(&derived::need(cache, digest, "summary.json")?)
                    .ok()
                    .and_then(|summary: Summary| as_json(&summary))
            }
            (None, CellState::Ok { summary }) => as_json(summary),
            _ => None,
        };
        Ok(value.map(|value| (value, &self.input.standing)))
    }
}
