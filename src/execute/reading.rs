//! What can be shown of a cell that no build has finished: the repeats that are there, or what was
//! measured before the configuration changed. Runs and writes nothing; whatever stands in says so
//! ([`Standing`]).

use std::{
    cell::OnceCell,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use rayon::prelude::*;

use super::{
    derived::{self, CellSeed, Results},
    history::launch_of,
};
use crate::{
    cache::{Attempt, Cache, Entry, TaskKind},
    digest::Digest,
    error::Result,
    figures::{
        self, CellEnvironment, CellState, ChangedSetting, Fact, NotCounted, Note, RunFact,
        Standing, Summary,
    },
    graph::{Engine, State, Statuses, Trainings, is_same_work, job_in, worded_of_task},
    job::RunOutcome,
    matrix::{CellId, PerCell},
    plan::{Plan, Support, preimage},
    results::RunResult,
    sentences,
};

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
        } else if !seed.is_imported() && !has_figures {
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
pub struct Uncounted {
    pub cell: CellId,
    pub repeat: u32,
    pub attempt: Arc<Attempt>,
    pub why: NotCounted,
}

/// The runs of the selected cells' present configuration that ended well and do not count, but for
/// disturbed ones, which no log tells of. Nothing is parsed for it.
pub fn uncounted(engine: &Engine, statuses: &Statuses) -> Result<Vec<Uncounted>> {
    let compare = statuses.get(engine.dag.over_all(TaskKind::Compare));
    // The last comparison names the cells to look at, if it still stands.
    let known = (compare.state == State::Fresh)
        .then(|| derived::read_uncounted(engine.cache, compare.outputs()))
        .transpose()?;
    let of_cell = |cell: CellId| -> Result<Vec<Uncounted>> {
        let planned = &engine.plan.cells[cell];
        let is_known_to_count = known
            .as_ref()
            .is_some_and(|known| !known.contains(&planned.id));
        if !planned.selected || engine.plan.prepared(cell).is_none() || is_known_to_count {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for (repeats, why) in not_counted(engine, statuses, cell)? {
            if matches!(why, NotCounted::Suspect(_)) {
                continue;
            }
            for repeat in repeats {
                let train = statuses.get(engine.dag.node(TaskKind::Train, cell, repeat));
                let attempt = train.attempt().filter(|a| a.outcome == RunOutcome::Ok);
                found.extend(attempt.map(|attempt| Uncounted {
                    cell,
                    repeat,
                    attempt: attempt.clone(),
                    why: why.clone(),
                }));
            }
        }
        Ok(found)
    };
    let all: Vec<Result<Vec<Uncounted>>> = engine.plan.cells.par_ids().map(of_cell).collect();
    let all: Vec<Vec<Uncounted>> = all.into_iter().collect::<Result<_>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// Which repeats of a cell do not count and why, by its summary, else by the results that are there.
fn not_counted(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
) -> Result<Vec<(Vec<u32>, NotCounted)>> {
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
    let of_run = |note: Note| match note.fact {
        Fact::Run(RunFact::NotCounted { repeats, why }) => Some((repeats, why)),
        _ => None,
    };
    Ok(summary.notes.into_iter().filter_map(of_run).collect())
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
    let status = |kind| statuses.get(engine.dag.node(kind, cell, repeat));
    let parse = engine.dag.node(TaskKind::Parse, cell, repeat);
    if let (State::Fresh, Some(output)) = (statuses.get(parse).state, statuses.first_output(parse))
        && let Some(result) = stored(engine.cache, &output)?
    {
        return Ok(Some(result));
    }
    let (Some(attempt), Some(prepared)) = (
        status(TaskKind::Train).attempt(),
        engine.plan.prepared(cell),
    ) else {
        return Ok(None);
    };
    let section = &engine.plan.recipe(cell).file.log;
    let is_there = attempt
        .log()
        .is_none_or(|log| engine.cache.has(&log.digest));
    let unreached = engine.plan.unreached(cell);
    is_there
        .then(|| derived::result_of(engine.cache, attempt, prepared.job(), section, &unreached))
        .transpose()
}

/// A result of the cache; `None` where it is gone, or of a version that this one cannot read.
fn stored(cache: &Cache, digest: &Digest) -> Result<Option<RunResult>> {
    Ok(cache
        .get(digest)?
        .and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// All that was ever measured under the names of a plan's cells. A measurement that several cells
/// share is filed under the name of one of them, and is the past of all.
pub struct PastMeasurements<'a> {
    cache: &'a Cache,
    /// By the task's name, in the order in which they were recorded; also those of other names that
    /// were parsed for this one.
    attempts: BTreeMap<String, Vec<Attempt>>,
    /// By the attempt's id, in the order in which they were recorded.
    parses: BTreeMap<String, Vec<Entry>>,
    /// Each cell's group: cells of one job that launch the same. Asked for once.
    twins: OnceCell<SharedLaunches>,
}

struct SharedLaunches {
    /// By the first cell of those that launch the same, and the job.
    cells: HashMap<(CellId, Option<Digest>), Vec<CellId>>,
    group: PerCell<(CellId, Option<Digest>)>,
}

/// Measurements of one earlier configuration.
struct Found {
    results: Results,
    preimage: String,
    /// `measured before training.seq_length changed`
    why: String,
}

impl<'a> PastMeasurements<'a> {
    #[must_use]
    pub fn of(cache: &'a Cache, plan: &Plan) -> Self {
        let ids: BTreeSet<&str> = plan.cells.iter().map(|cell| cell.id.as_str()).collect();
        let is_named = |task: &str| {
            let name = task.split_once(' ').map_or(task, |(_, name)| name);
            ids.contains(name.rsplit_once('#').map_or(name, |(cell, _)| cell))
        };
        let (attempts, parses) = (BTreeMap::new(), BTreeMap::new());
        let mut past = Self {
            cache,
            attempts,
            parses,
            twins: OnceCell::new(),
        };
        // Trainings that were parsed for a cell, by the attempt.
        let mut parsed_for: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for entry in cache.entries_named(TaskKind::Parse, is_named) {
            if let Some(attempt) =
                preimage::line(&entry.preimage, "attempt").map(|id| id.trim_matches('"').to_owned())
            {
                let task = entry.task.replacen("parse ", "train ", 1);
                parsed_for.entry(attempt.clone()).or_default().insert(task);
                past.parses.entry(attempt).or_default().push(entry);
            }
        }
        for attempt in cache.all_attempts() {
            let mut names = parsed_for.remove(&attempt.id).unwrap_or_default();
            if is_named(&attempt.task) {
                names.insert(attempt.task.clone());
            }
            for name in names {
                past.attempts.entry(name).or_default().push(attempt.clone());
            }
        }
        past
    }

    /// The attempts that a cell's name stands on, each with its repeat.
    #[must_use]
    pub fn of_name(&self, cell: &str) -> Vec<(u32, &Attempt)> {
        let mut found = Vec::new();
        for (task, attempts) in self.attempts.range(format!("train {cell}#")..) {
            let name = task
                .strip_prefix("train ")
                .and_then(|name| name.strip_prefix(cell)?.strip_prefix('#'));
            let Some(repeat) = name.and_then(|number| number.parse().ok()) else {
                break;
            };
            found.extend(attempts.iter().map(|attempt| (repeat, attempt)));
        }
        found
    }

    /// What was read from an attempt's log when it was last parsed: for this repeat of this cell,
    /// else for that whose name it stands on.
    pub fn result(&self, cell: &str, repeat: u32, attempt: &Attempt) -> Result<Option<RunResult>> {
        let own = format!("parse {cell}#{repeat}");
        let task = attempt.task.replacen("train ", "parse ", 1);
        let all = || self.parses.get(&attempt.id).into_iter().flatten().rev();
        // Cells that ask for the same job share one parse, which is filed under the name of any of
        // them.
        let job = preimage::line(&attempt.preimage, "job");
        let shared =
            all().filter(|entry| job.is_some() && preimage::line(&entry.preimage, "job") == job);
        for entry in all()
            .filter(|e| e.task == own)
            .chain(all().filter(|e| e.task == task))
            .chain(shared)
        {
            if let Some(output) = entry.outputs.first()
                && let Some(result) = stored(self.cache, &output.digest)?
            {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// The attempts of a cell, and of those that ask for the same job and launch the same: they had
    /// one measurement, which is parsed but once.
    #[must_use]
    pub fn shared(
        &self,
        engine: &Engine,
        statuses: &Statuses,
        cell: CellId,
    ) -> Vec<(u32, &Attempt)> {
        let own = self.of_name(&engine.plan.cells[cell].id);
        if !own.is_empty() {
            return own;
        }
        let twins = self
            .twins
            .get_or_init(|| SharedLaunches::of(engine, statuses));
        let others = twins.cells.get(&twins.group[cell]).into_iter().flatten();
        others
            .flat_map(|other| self.of_name(&engine.plan.cells[*other].id))
            .collect()
    }

    /// The repeats of the nearest configuration that was measured, the last of several, each by the
    /// attempt that counted then.
    fn of_cell(&self, engine: &Engine, statuses: &Statuses, cell: CellId) -> Result<Option<Found>> {
        let mut counted = self.shared(engine, statuses, cell);
        counted.retain(|(_, attempt)| attempt.is_beyond_doubt());
        if let Some(prepared) = engine.plan.prepared(cell) {
            let job = prepared.job_text();
            let is_same = |attempt: &Attempt| {
                let of = job_in(&attempt.preimage).or_else(|| {
                    let parses = self.parses.get(&attempt.id)?;
                    job_in(&parses.last()?.preimage)
                });
                let text = of.and_then(|digest| self.cache.preimage(&digest));
                text.is_some_and(|text| is_same_work(&text, &job))
            };
            let same = counted.iter().filter(|(_, attempt)| is_same(attempt));
            let same: Vec<_> = same.copied().collect();
            // Another work is shown only where nothing else is there.
            if !same.is_empty() {
                counted = same;
            }
        }
        let distance = |attempt: &Attempt| {
            let changes = changes_since(engine, statuses, cell, attempt);
            changes.map_or(0, |changes| changes.len())
        };
        let attempts = counted.iter().map(|(_, a)| *a);
        let Some(nearest) = attempts.min_by_key(|a| (distance(a), Reverse(a.recorded))) else {
            return Ok(None);
        };
        let launch = (launch_of(&nearest.preimage), nearest.generation);
        let mut results: BTreeMap<u32, RunResult> = BTreeMap::new();
        counted.sort_by(|a, b| a.1.id.cmp(&b.1.id));
        for (repeat, attempt) in counted {
            if !results.contains_key(&repeat)
                && (launch_of(&attempt.preimage), attempt.generation) == launch
                && let Some(result) = self.result(&engine.plan.cells[cell].id, repeat, attempt)?
            {
                results.insert(repeat, result);
            }
        }
        let why = measured_before(engine, statuses, cell, nearest);
        let results: Results = results.into_iter().collect();
        Ok((!results.is_empty()).then(|| Found {
            results,
            preimage: nearest.preimage.clone(),
            why,
        }))
    }
}

impl SharedLaunches {
    fn of(engine: &Engine, statuses: &Statuses) -> Self {
        let first = engine.same_launch(statuses);
        let group = engine.plan.cells.map(|cell| {
            let prepared = engine.plan.prepared(cell);
            let job = prepared.map(|prepared| prepared.job_digest);
            (first[cell].unwrap_or(cell), job)
        });
        let mut cells: HashMap<_, Vec<CellId>> = HashMap::new();
        for (cell, group) in group.with_ids() {
            cells.entry(*group).or_default().push(cell);
        }
        Self { cells, group }
    }
}

/// How many repeats of a cell's present configuration are measured, counting those that the matrix
/// does not ask for.
#[must_use]
pub fn measured_repeats(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    past: &PastMeasurements,
) -> usize {
    let node = engine.dag.node(TaskKind::Train, cell, 1);
    let Some(present) = engine.preimage(node, statuses) else {
        return 0;
    };
    let launch = launch_of(&present);
    let runs = past.of_name(&engine.plan.cells[cell].id).into_iter();
    let same = runs
        .filter(|(_, run)| run.is_beyond_doubt() && launch_of(&run.preimage) == launch)
        .map(|(repeat, _)| repeat);
    same.collect::<BTreeSet<u32>>().len()
}

/// `measured before seq_length 2048 → 4096 (and 2 more changes)`
#[must_use]
pub fn measured_before(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    old: &Attempt,
) -> String {
    match changes_since(engine, statuses, cell, old).as_deref() {
        None => "measured under an earlier configuration".to_owned(),
        Some([]) => "measured before it was to be measured anew".to_owned(),
        Some(changes) => match other_place(&engine.plan.matrix.cells[cell].platform, changes) {
            Some(why) => why,
            None => format!("measured before {}", was_changed(&worded_of_task(changes))),
        },
    }
}

/// A command that plans without the executor of the build plans other runs than the build made.
fn other_place(platform: &str, changes: &[preimage::Change]) -> Option<String> {
    let image = changes.iter().find(|change| change.field == "image")?;
    let key = format!("execution.{platform}.executor");
    match (&image.old, &image.new) {
        (Some(_), None) => Some(format!(
            "measured in a container, and this command plans it on the host: it needs the build's `--executor`, or `{key}` in config.yaml"
        )),
        (None, Some(_)) => Some(format!(
            "measured on the host, and this command plans it in a container: `--executor` or `{key}` in config.yaml decides"
        )),
        _ => None,
    }
}

/// How a cell's training differs now from an earlier one.
fn changes_since(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    old: &Attempt,
) -> Option<Vec<preimage::Change>> {
    let now = engine.present(engine.dag.node(TaskKind::Train, cell, 1), statuses)?;
    let nested = |digest: &Digest| {
        let present = now
            .job
            .as_ref()
            .filter(|(job, _)| job == digest)
            .map(|(_, text)| text.clone());
        present.or_else(|| engine.cache.preimage(digest))
    };
    let mut changes = preimage::changes(&old.preimage, &now.preimage, &nested);
    changes.retain(|change| change.field != "repeat");
    if let Some((_, job)) = &now.job
        && changes.iter().any(|c| c.field.starts_with("rendered."))
    {
        let trainings = engine.trainings.get_or_init(|| Trainings::of(engine.cache));
        changes = trainings.with_settings(engine.cache, old, job, changes);
    }
    Some(changes)
}

/// `train.py was edited`, `TP changed from 2 to 4 (and 1 more change)`
fn was_changed(changes: &[ChangedSetting]) -> String {
    let Some(one) = changes.first() else {
        return "its key changed".to_owned();
    };
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
    let first = match &one.how {
        Some(how) if how == "changed" => format!("{} changed", one.what),
        Some(how) => format!("{} was {how}", one.what),
        None => format!(
            "{} changed from {} to {}",
            one.what,
            value(&one.old),
            value(&one.new)
        ),
    };
    match changes.len() {
        1 => first,
        2 => format!("{first} (and 1 more change)"),
        more => format!("{first} (and {} more changes)", more - 1),
    }
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
    CellEnvironment {
        variables: lines("env.").collect(),
        facts: lines("fact.").collect(),
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
        let in_words =
            |summary: &Summary| sentences::in_words(|| serde_json::to_value(summary)).ok();
        let value = match (&self.summary, &self.input.state) {
            (Some(digest), _) => {
                serde_json::from_slice(&derived::need(cache, digest, "summary.json")?)
                    .ok()
                    .and_then(|summary: Summary| in_words(&summary))
            }
            (None, CellState::Ok { summary }) => in_words(summary),
            _ => None,
        };
        Ok(value.map(|value| (value, &self.input.standing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_a_container_is_not_called_one_before_an_image_was_removed() {
        let change = |old: Option<&str>, new: Option<&str>| preimage::Change {
            field: "image".to_owned(),
            old: old.map(str::to_owned),
            new: new.map(str::to_owned),
        };
        let why = |old, new| other_place("cpu", &[change(old, new)]);
        let contained = why(Some("\"sha256:1\""), None).unwrap();
        assert!(
            contained.starts_with("measured in a container, and this command plans it on the host")
                && contained.contains("`execution.cpu.executor`"),
            "{contained}"
        );
        assert!(why(None, Some("\"sha256:1\"")).is_some());
        assert_eq!(why(Some("\"sha256:1\""), Some("\"sha256:2\"")), None);
    }
}
