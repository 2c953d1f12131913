//! What was measured before the configuration changed, and what changed since.

use std::{
    cell::OnceCell,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::StoredResult;
use crate::{
    cache::{Attempt, Cache, Entry, TaskKind},
    digest::Digest,
    error::Result,
    execute::derived::Results,
    figures::ChangedSetting,
    graph::{Engine, Status, Statuses, Trainings, is_same_work, job_in, worded_of_task},
    matrix::{CellId, PerCell},
    plan::{Plan, preimage},
    results::RunResult,
};

/// All that was ever measured under the names of a plan's cells. A measurement that several cells
/// share is filed under the name of one of them, and is the past of all.
pub struct PastMeasurements<'a> {
    cache: &'a Cache,
    /// By the task's name, in the order in which they were recorded; also those of other names that
    /// were parsed for this one.
    attempts: BTreeMap<String, Vec<Attempt>>,
    /// By the attempt's id, in the order in which they were recorded.
    parses: BTreeMap<String, Vec<Entry>>,
    /// For each cell the first one that launches the same. Asked for once.
    twins: OnceCell<PerCell<Option<CellId>>>,
}

/// Measurements of one earlier configuration.
pub(super) struct Found {
    pub results: Results,
    pub preimage: String,
    /// `measured before training.seq_length changed`
    pub why: String,
}

impl<'a> PastMeasurements<'a> {
    #[must_use]
    pub fn of(cache: &'a Cache, plan: &Plan) -> Self {
        let ids: BTreeSet<&str> = plan.cells.iter().map(|cell| cell.id.as_str()).collect();
        Self::of_cells(cache, |cell| ids.contains(cell))
    }

    /// The same under the names of any cells.
    pub fn of_cells(cache: &'a Cache, is_wanted: impl Fn(&str) -> bool) -> Self {
        let is_named = |task: &str| {
            let name = task.split_once(' ').map_or(task, |(_, name)| name);
            is_wanted(name.rsplit_once('#').map_or(name, |(cell, _)| cell))
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

    /// Runs under the cell's own name, and those of its present keys that another cell's name stands
    /// on; the oldest first. `at`: where the plan has the cell.
    #[must_use]
    pub fn of_cell_and_keys(
        &self,
        engine: &Engine,
        statuses: &Statuses,
        cell: &str,
        at: Option<CellId>,
    ) -> Vec<(u32, Attempt)> {
        let named = match at {
            Some(at) => self.shared(engine, statuses, at),
            None => self.of_name(cell),
        };
        let named = named.into_iter().map(|(n, attempt)| (n, attempt.clone()));
        let mut found: Vec<(u32, Attempt)> = named.collect();
        let present = at.map(|at| trainings(engine, statuses, at));
        for (repeat, train) in present.into_iter().flatten() {
            let attempts = train.key.map(|key| engine.cache.attempts(&key));
            found.extend(attempts.into_iter().flatten().map(|of| (repeat, of)));
        }
        found.sort_by(|(_, a), (_, b)| (a.recorded, &a.id).cmp(&(b.recorded, &b.id)));
        found.dedup_by(|(_, later), (_, earlier)| later.id == earlier.id);
        found
    }

    /// The readings of an attempt's log, in the order in which they were recorded.
    pub(in crate::execute) fn parses(&self, attempt: &str) -> &[Entry] {
        self.parses.get(attempt).map_or(&[], Vec::as_slice)
    }

    /// What was read from an attempt's log when it was last parsed: for this repeat of this cell,
    /// else for that whose name it stands on.
    pub fn result(&self, cell: &str, repeat: u32, attempt: &Attempt) -> Result<StoredResult> {
        let own = format!("parse {cell}#{repeat}");
        let task = attempt.task.replacen("train ", "parse ", 1);
        let all = || self.parses.get(&attempt.id).into_iter().flatten().rev();
        // Cells that ask for the same job share one parse, which is filed under the name of any of
        // them.
        let job = preimage::line(&attempt.preimage, "job");
        let shared =
            all().filter(|entry| job.is_some() && preimage::line(&entry.preimage, "job") == job);
        let parses = all()
            .filter(|e| e.task == own)
            .chain(all().filter(|e| e.task == task))
            .chain(shared);
        StoredResult::among(self.cache, attempt, parses)
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
        let twins = self.twins.get_or_init(|| engine.same_launch(statuses));
        let job = |of: CellId| engine.plan.prepared(of).map(|prepared| prepared.job_digest);
        let group = |of: CellId| (twins[of].unwrap_or(of), job(of));
        let (own, cells) = (group(cell), engine.plan.cells.with_ids());
        let others = cells.filter(|(other, _)| group(*other) == own);
        others.flat_map(|(_, of)| self.of_name(&of.id)).collect()
    }

    /// The repeats of the nearest configuration that was measured, the last of several, each by the
    /// attempt that counted then.
    pub(super) fn of_cell(
        &self,
        engine: &Engine,
        statuses: &Statuses,
        cell: CellId,
    ) -> Result<Option<Found>> {
        let mut counted = self.shared(engine, statuses, cell);
        counted.retain(|(_, attempt)| attempt.is_valid());
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
                && let Some(result) = self
                    .result(&engine.plan.cells[cell].id, repeat, attempt)?
                    .there()
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

/// `train CELL#2` → (`CELL`, 2)
#[must_use]
pub fn run_of(task: &str) -> Option<(&str, u32)> {
    let (cell, repeat) = task.strip_prefix("train ")?.rsplit_once('#')?;
    Some((cell, repeat.parse().ok()?))
}

/// A training's pre-image without the line that tells its repeats apart.
pub(in crate::execute) fn launch_of(preimage: &str) -> String {
    let lines = preimage
        .lines()
        .filter(|line| !line.starts_with("repeat = "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The names of all cells that the cache has attempts at.
#[must_use]
pub fn cells_with_attempts(cache: &Cache) -> BTreeSet<String> {
    let attempts = cache.all_attempts().into_iter();
    let cells = attempts.filter_map(|attempt| Some(run_of(&attempt.task)?.0.to_owned()));
    cells.collect()
}

/// The states of a cell's trainings, each with its repeat.
pub fn trainings<'a>(
    engine: &'a Engine,
    statuses: &'a Statuses,
    cell: CellId,
) -> impl Iterator<Item = (u32, &'a Status)> {
    let of = move |repeat| engine.dag.find(TaskKind::Train, cell, repeat);
    (1..=engine.plan.cells[cell].repeats)
        .filter_map(move |repeat| Some((repeat, statuses.get(of(repeat)?))))
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
