//! Every attempt that the cache has at a cell, as measurements in order of time, each with what was changed before it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    analyze::{self, CellHistory, ChangedSetting, Contract, Measurement, PastRun, RepeatStatus, RunResult, Statistics},
    cache::{Attempt, Cache, Entry, TaskKind},
    digest::Digest,
    error::Result,
    graph::{key, outcome_text, worded},
    plan::Job,
};

/// The names of all cells that the cache has attempts at, sorted.
#[must_use]
pub fn cells_with_attempts(cache: &Cache) -> Vec<String> {
    let mut cells: Vec<String> =
        cache.all_attempts().iter().filter_map(|attempt| Some(run_of(&attempt.task)?.0.to_owned())).collect();
    cells.sort();
    cells.dedup();
    cells
}

/// What was measured of the wanted cells on the wanted hosts, sorted by cell.
pub fn histories(
    cache: &Cache,
    statistics: &Statistics,
    is_wanted: impl Fn(&str) -> bool,
    is_host: impl Fn(&str) -> bool,
) -> Result<Vec<CellHistory>> {
    let mut attempts: BTreeMap<String, Vec<(u32, Attempt)>> = BTreeMap::new();
    for attempt in cache.all_attempts() {
        let Some((cell, repeat)) = run_of(&attempt.task).filter(|(cell, _)| is_wanted(cell)) else { continue };
        if is_host(&attempt.host) {
            let cell = cell.to_owned();
            attempts.entry(cell).or_default().push((repeat, attempt));
        }
    }
    let records = Records::of(cache, &is_wanted);
    attempts.into_iter().map(|(cell, attempts)| history(&records, statistics, cell, attempts)).collect()
}

/// `train CELL#2` → (`CELL`, 2)
fn run_of(task: &str) -> Option<(&str, u32)> {
    let (cell, repeat) = task.strip_prefix("train ")?.rsplit_once('#')?;
    Some((cell, repeat.parse().ok()?))
}

fn history(
    records: &Records,
    statistics: &Statistics,
    cell: String,
    mut attempts: Vec<(u32, Attempt)>,
) -> Result<CellHistory> {
    attempts.sort_by(|(_, a), (_, b)| a.started_at.total_cmp(&b.started_at).then_with(|| a.id.cmp(&b.id)));
    let groups = groups(attempts);
    let mut measurements =
        groups.iter().map(|group| measurement(records, statistics, group)).collect::<Result<Vec<_>>>()?;
    analyze::assess(&mut measurements, |before, now| {
        let attempt = |at: usize| &groups[at].attempts[0].1;
        records.changes(&cell, attempt(before), attempt(now))
    });
    Ok(CellHistory { cell, measurements })
}

/// Attempts of one configuration on one host in one session.
struct Group {
    launch: String,
    attempts: Vec<(u32, Attempt)>,
}

impl Group {
    fn first(&self) -> &Attempt {
        &self.attempts[0].1
    }

    fn ended_at(&self) -> f64 {
        self.attempts.iter().map(|(_, attempt)| attempt.ended_at).fold(f64::NEG_INFINITY, f64::max)
    }

    fn takes(&self, launch: &str, attempt: &Attempt) -> bool {
        self.launch == launch
            && self.first().generation == attempt.generation
            && analyze::is_same_session(self.ended_at(), attempt.started_at)
    }
}

/// `attempts` are in order of time, and so are the groups, by their beginnings.
fn groups(attempts: Vec<(u32, Attempt)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (repeat, attempt) in attempts {
        let launch = launch_of(&attempt.preimage);
        // What the host ran last: if that was of another configuration, this is a new measurement.
        let last = groups.iter_mut().rfind(|group| group.first().host == attempt.host);
        match last.filter(|group| group.takes(&launch, &attempt)) {
            Some(group) => group.attempts.push((repeat, attempt)),
            None => groups.push(Group { launch, attempts: vec![(repeat, attempt)] }),
        }
    }
    groups
}

/// A training's pre-image without the line that tells its repeats apart.
pub(super) fn launch_of(preimage: &str) -> String {
    preimage.lines().filter(|line| !line.starts_with("repeat = ")).collect::<Vec<_>>().join("\n")
}

fn measurement(records: &Records, statistics: &Statistics, group: &Group) -> Result<Measurement> {
    // The first good attempt at a repeat counts, as in a build.
    let mut counted: BTreeMap<u32, (&Attempt, RunResult)> = BTreeMap::new();
    for (repeat, attempt) in group.attempts.iter().filter(|(_, attempt)| attempt.is_valid()) {
        if !counted.contains_key(repeat)
            && let Some(result) = records.result(attempt)?
        {
            counted.insert(*repeat, (attempt, result));
        }
    }
    let results: Vec<(u32, RunResult)> = counted.iter().map(|(n, (_, result))| (*n, result.clone())).collect();
    let summary = (!results.is_empty()).then(|| analyze::summarize(&results, statistics));
    let mut runs = Vec::new();
    for (repeat, attempt) in &group.attempts {
        let is_candidate = counted.get(repeat).is_some_and(|(counted, _)| counted.id == attempt.id);
        let summed = summary.iter().flat_map(|s| &s.repeats).find(|r| is_candidate && r.repeat == *repeat);
        let why_not = match summed.map(|r| &r.status) {
            Some(RepeatStatus::Ok) => None,
            Some(RepeatStatus::Contradicted { fields }) => {
                Some(format!("the log contradicts the job in {}", fields.join(", ")))
            }
            Some(RepeatStatus::Unmeasured { reason } | RepeatStatus::Suspect { reason }) => Some(reason.clone()),
            Some(RepeatStatus::Failed { class, .. }) => Some(format!("failed ({})", class.name())),
            None => Some(not_counted(attempt)),
        };
        let rate = summed.and_then(|r| r.steady.as_ref()).map(|steady| steady.tokens_per_second_per_gpu);
        runs.push(PastRun {
            attempt: attempt.id.clone(),
            repeat: *repeat,
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            tokens_per_second_per_gpu: rate,
            counts: why_not.is_none(),
            why_not,
        });
    }
    let first = group.first();
    Ok(Measurement {
        started_at: first.started_at,
        ended_at: group.ended_at(),
        host: first.host.clone(),
        configuration: Digest::of(&group.launch).short(),
        generation: first.generation,
        contract: summary.as_ref().map(|s| s.contract.clone()).unwrap_or_else(Contract::default),
        tokens_per_second_per_gpu: summary.and_then(|summary| summary.tokens_per_second_per_gpu),
        since: None,
        runs,
    })
}

fn not_counted(attempt: &Attempt) -> String {
    match (&attempt.set_aside, &attempt.suspect) {
        (Some(set_aside), _) => format!("set aside: {}", set_aside.reason),
        (None, _) if !attempt.is_valid() && !attempt.is_disturbed() => format!("failed ({})", outcome_text(attempt)),
        (None, Some(why)) => format!("disturbed: {why}"),
        (None, None) => "another attempt at this repeat counts, or its log was never read".to_owned(),
    }
}

/// What the cache recorded of the attempts besides themselves.
struct Records<'a> {
    cache: &'a Cache,
    /// By the attempt's id, in the order in which they were recorded.
    parses: BTreeMap<String, Vec<Entry>>,
    /// By cell, in the order in which they were recorded.
    renders: BTreeMap<String, Vec<Entry>>,
    default_job: Value,
}

impl<'a> Records<'a> {
    fn of(cache: &'a Cache, is_wanted: impl Fn(&str) -> bool) -> Self {
        let of_run =
            |task: &str| task.strip_prefix("parse ").and_then(|name| Some(name.rsplit_once('#')?.0.to_owned()));
        let of_cell = |task: &str| task.strip_prefix("render ").map(str::to_owned);
        let mut parses: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for entry in cache.entries_named(TaskKind::Parse, |task| of_run(task).is_some_and(|cell| is_wanted(&cell))) {
            if let Some(attempt) = line(&entry.preimage, "attempt").map(|id| id.trim_matches('"').to_owned()) {
                parses.entry(attempt).or_default().push(entry);
            }
        }
        let mut renders: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for entry in cache.entries_named(TaskKind::Render, |task| of_cell(task).is_some_and(|cell| is_wanted(&cell))) {
            if let Some(cell) = of_cell(&entry.task) {
                renders.entry(cell).or_default().push(entry);
            }
        }
        Self { cache, parses, renders, default_job: serde_json::to_value(Job::default()).unwrap_or_default() }
    }

    /// What was read from an attempt's log when it was last parsed.
    fn result(&self, attempt: &Attempt) -> Result<Option<RunResult>> {
        for entry in self.parses.get(&attempt.id).into_iter().flatten().rev() {
            if let Some(output) = entry.outputs.first()
                && let Some(bytes) = self.cache.get(&output.digest)?
                && let Ok(result) = serde_json::from_slice(&bytes)
            {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// What was changed between two attempts at a cell: settings, files, variables, facts of the host, and the host.
    fn changes(&self, cell: &str, before: &Attempt, now: &Attempt) -> Vec<ChangedSetting> {
        let nested = |digest: &Digest| self.cache.preimage(digest);
        let mut changes = key::changes(&before.preimage, &now.preimage, &nested);
        // Recipes that render their launch files have the job in no train key: it is where the log was read.
        if line(&before.preimage, "job").is_none() && line(&now.preimage, "job").is_none() {
            let jobs = [before, now].map(|attempt| self.job(attempt));
            if let [Some(old), Some(new)] = &jobs {
                let of_job = key::changes(old, new, &nested).into_iter();
                changes.extend(of_job.map(|c| key::Change { field: format!("job.{}", c.field), ..c }));
            }
        }
        if changes.iter().any(|change| change.field.starts_with("rendered.")) {
            changes.extend(self.changed_templates(cell, before, now));
            // A launch file is what the settings and the templates make of it.
            let is_cause = |c: &key::Change| c.field.starts_with("job.") || c.field.starts_with("template.");
            if changes.iter().any(is_cause) {
                changes.retain(|change| !change.field.starts_with("rendered."));
            }
        }
        let mut named = worded(&changes, &self.default_job);
        if before.host != now.host {
            let (old, new) = (Some(before.host.clone()), Some(now.host.clone()));
            named.push(ChangedSetting { what: "host".into(), how: None, old, new });
        }
        named
    }

    /// The job's text, as the first one who read the attempt's log knew it.
    fn job(&self, attempt: &Attempt) -> Option<String> {
        let entry = self.parses.get(&attempt.id)?.first()?;
        self.cache.preimage(&line(&entry.preimage, "job")?.trim_matches('"').parse().ok()?)
    }

    fn changed_templates(&self, cell: &str, before: &Attempt, now: &Attempt) -> Vec<key::Change> {
        let [Some(old), Some(new)] = [before, now].map(|attempt| self.render(cell, attempt)) else { return Vec::new() };
        let mut changes = key::changes(&old.preimage, &new.preimage, &|_| None);
        changes.retain(|change| change.field.starts_with("template."));
        changes
    }

    /// The rendering that made the launch files of an attempt.
    fn render(&self, cell: &str, attempt: &Attempt) -> Option<&Entry> {
        let made = |entry: &&Entry| {
            !entry.outputs.is_empty()
                && entry.outputs.iter().all(|output| {
                    let digest = line(&attempt.preimage, &format!("rendered.{}", output.name));
                    digest.is_some_and(|digest| digest.trim_matches('"') == output.digest.to_string())
                })
        };
        self.renders.get(cell)?.iter().rfind(made)
    }
}

/// The value of one line of a pre-image.
fn line<'t>(preimage: &'t str, name: &str) -> Option<&'t str> {
    preimage.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
}
