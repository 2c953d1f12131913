//! Every attempt that the cache has at a cell, as measurements in order of time, each with what was
//! changed before it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    cache::{Attempt, Cache, Entry, TaskKind},
    config::Config,
    digest::Digest,
    error::Result,
    execute::reading::StoredResult,
    figures::{
        self, CellHistory, ChangedSetting, Measurement, PastRun, Statistics, Summary, WorkField,
    },
    graph::{outcome_text, worded},
    job::Job,
    plan::{Plan, preimage},
    results::RunResult,
    sentences,
};

/// The names of all cells that the cache has attempts at, sorted.
#[must_use]
pub fn cells_with_attempts(cache: &Cache) -> Vec<String> {
    let mut cells: Vec<String> = cache
        .all_attempts()
        .iter()
        .filter_map(|attempt| Some(run_of(&attempt.task)?.0.to_owned()))
        .collect();
    cells.sort();
    cells.dedup();
    cells
}

/// The warm-up that applies to each measurement, as a build would choose it.
///
/// A measurement whose job is in the plan has the plan's warm-up. An older one has the warm-up of
/// the last summary made from it. One that was never summarised has the warm-up of the cell of that
/// name in the plan, or else `otherwise`.
pub struct Warmups {
    /// By the name of a cell in the plan: the digest of its job, and its statistics.
    planned: BTreeMap<String, (String, Statistics)>,
    pub otherwise: Statistics,
}

impl Warmups {
    /// `otherwise` comes from config.yaml and applies to cells that set no warm-up themselves.
    #[must_use]
    pub fn of(plan: Option<&Plan>, config: &Config) -> Self {
        let otherwise = Statistics {
            warmup_steps: config.settings().benchmarking.warmup.skip_steps,
        };
        let cells = plan.into_iter().flat_map(|plan| {
            plan.cells
                .with_ids()
                .map(move |(at, cell)| (plan, at, cell))
        });
        let planned = cells.filter_map(|(plan, at, cell)| {
            let prepared = plan.prepared(at)?;
            Some((
                cell.id.clone(),
                (
                    prepared.job_digest.to_string(),
                    prepared.resolved.statistics.clone(),
                ),
            ))
        });
        Self {
            planned: planned.collect(),
            otherwise,
        }
    }
}

/// The histories of some cells.
pub struct Histories {
    pub cells: Vec<CellHistory>,
    /// Cells whose warm-up nobody recorded, and that are not in the plan.
    pub guessed: Vec<String>,
}

/// What was measured of the wanted cells on the wanted hosts, sorted by cell.
pub fn histories(
    cache: &Cache,
    warmups: &Warmups,
    is_wanted: impl Fn(&str) -> bool,
    is_host: impl Fn(&str) -> bool,
) -> Result<Histories> {
    let mut attempts: BTreeMap<String, Vec<(u32, Attempt)>> = BTreeMap::new();
    for attempt in cache.all_attempts() {
        let Some((cell, repeat)) = run_of(&attempt.task).filter(|(cell, _)| is_wanted(cell)) else {
            continue;
        };
        if is_host(&attempt.host) {
            let cell = cell.to_owned();
            attempts.entry(cell).or_default().push((repeat, attempt));
        }
    }
    let records = Records::of(cache, &is_wanted);
    let mut guessed = Vec::new();
    let mut cells = Vec::new();
    for (cell, attempts) in attempts {
        let (works, is_guessed) = history(&records, warmups, &cell, attempts)?;
        guessed.extend(is_guessed.then_some(cell));
        cells.extend(works);
    }
    Ok(Histories { cells, guessed })
}

/// Files, datasets and images that were changed between an attempt and a later one at a cell, for
/// each such pair of the attempts' names. Nothing where the cache no longer has one of them.
#[must_use]
pub fn changed_inputs(cache: &Cache, pairs: &[(&str, &str, &str)]) -> Vec<Vec<ChangedSetting>> {
    let attempts: BTreeMap<String, Attempt> = cache
        .all_attempts()
        .into_iter()
        .map(|attempt| (attempt.id.clone(), attempt))
        .collect();
    let records = Records::of(cache, |cell| pairs.iter().any(|(of, ..)| *of == cell));
    let changed = |(cell, before, now): &(&str, &str, &str)| {
        let (Some(before), Some(now)) = (attempts.get(*before), attempts.get(*now)) else {
            return Vec::new();
        };
        let mut changes = records.changes(cell, before, now);
        changes.retain(|change| change.how.is_some());
        changes
    };
    pairs.iter().map(changed).collect()
}

/// `train CELL#2` → (`CELL`, 2)
#[must_use]
pub fn run_of(task: &str) -> Option<(&str, u32)> {
    let (cell, repeat) = task.strip_prefix("train ")?.rsplit_once('#')?;
    Some((cell, repeat.parse().ok()?))
}

/// The histories of the works that were measured under a cell's name; is the warm-up of one of
/// their measurements a guess?
fn history(
    records: &Records,
    warmups: &Warmups,
    cell: &str,
    mut attempts: Vec<(u32, Attempt)>,
) -> Result<(Vec<CellHistory>, bool)> {
    attempts.sort_by(|(_, a), (_, b)| {
        a.started_at
            .total_cmp(&b.started_at)
            .then_with(|| a.id.cmp(&b.id))
    });
    let groups = groups(attempts);
    let mut is_guessed = false;
    let mut measurements = Vec::new();
    for group in &groups {
        let statistics = records.statistics(cell, group, warmups);
        // A run whose log nobody here has read has no rate that a warm-up could be cut from.
        let has_figures = |(_, attempt): &(u32, Attempt)| {
            attempt.is_valid() && records.parses.contains_key(&attempt.id)
        };
        is_guessed |= statistics.is_none() && group.attempts.iter().any(has_figures);
        let statistics = statistics.as_ref().unwrap_or(&warmups.otherwise);
        let matrices = records.matrices(cell, group);
        measurements.push(Measurement {
            matrices,
            ..measurement(records, statistics, group)?
        });
    }
    let of_work = |(places, work): (Vec<usize>, Vec<WorkField>)| {
        let mut measurements: Vec<Measurement> =
            places.iter().map(|at| measurements[*at].clone()).collect();
        figures::assess(&mut measurements, |before, now| {
            let attempt = |at: usize| groups[places[at]].first();
            records.changes(cell, attempt(before), attempt(now))
        });
        CellHistory {
            cell: cell.to_owned(),
            imported: false,
            work,
            measurements,
        }
    };
    let works = figures::works(&measurements);
    Ok((works.into_iter().map(of_work).collect(), is_guessed))
}

/// Attempts of one configuration on one host in one session, with those that were made later in
/// place of some of them.
struct Group {
    launch: String,
    attempts: Vec<(u32, Attempt)>,
}

impl Group {
    fn first(&self) -> &Attempt {
        &self.attempts[0].1
    }

    fn ended_at(&self) -> f64 {
        self.attempts
            .iter()
            .map(|(_, attempt)| attempt.ended_at)
            .fold(f64::NEG_INFINITY, f64::max)
    }

    fn is_of(&self, launch: &str, attempt: &Attempt) -> bool {
        self.launch == launch
            && self.first().generation == attempt.generation
            && self.first().host == attempt.host
    }

    /// Has it no run of this repeat that counts? One that is made later, because a run failed, was
    /// disturbed or was set aside, completes this measurement as it completes a build's.
    fn lacks(&self, repeat: u32) -> bool {
        let mut counted = self.attempts.iter().filter(|(_, a)| a.is_valid());
        !counted.any(|(number, _)| *number == repeat)
    }
}

/// `attempts` are in order of time, and so are the groups, by their beginnings.
fn groups(attempts: Vec<(u32, Attempt)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (repeat, attempt) in attempts {
        let launch = launch_of(&attempt.preimage);
        // If the host ran another configuration last, another run of a repeat that counts is a new
        // measurement.
        let last = groups
            .iter()
            .rposition(|group| group.first().host == attempt.host);
        let goes_on =
            |group: &Group| figures::is_same_session(group.ended_at(), attempt.started_at);
        let own = groups.iter_mut().enumerate().rfind(|(at, group)| {
            group.is_of(&launch, &attempt)
                && (group.lacks(repeat) || Some(*at) == last && goes_on(group))
        });
        match own {
            Some((_, group)) => group.attempts.push((repeat, attempt)),
            None => groups.push(Group {
                launch,
                attempts: vec![(repeat, attempt)],
            }),
        }
    }
    groups
}

/// A training's pre-image without the line that tells its repeats apart.
pub(super) fn launch_of(preimage: &str) -> String {
    preimage
        .lines()
        .filter(|line| !line.starts_with("repeat = "))
        .collect::<Vec<_>>()
        .join("\n")
}

fn measurement(records: &Records, statistics: &Statistics, group: &Group) -> Result<Measurement> {
    // The first good attempt at a repeat counts, as in a build.
    let mut counted: BTreeMap<u32, (&Attempt, RunResult)> = BTreeMap::new();
    for (repeat, attempt) in group
        .attempts
        .iter()
        .filter(|(_, attempt)| attempt.is_valid())
    {
        if !counted.contains_key(repeat)
            && let Some(result) = records.result(attempt)?.there()
        {
            counted.insert(*repeat, (attempt, result));
        }
    }
    let results: Vec<(u32, RunResult)> = counted
        .iter()
        .map(|(n, (_, result))| (*n, result.clone()))
        .collect();
    let summary = (!results.is_empty()).then(|| figures::summarize(&results, statistics));
    let mut runs = Vec::new();
    for (repeat, attempt) in &group.attempts {
        let is_candidate = counted
            .get(repeat)
            .is_some_and(|(counted, _)| counted.id == attempt.id);
        let summed = summary
            .iter()
            .flat_map(|s| &s.repeats)
            .find(|r| is_candidate && r.repeat == *repeat);
        let why_not = match summed {
            Some(repeat) => sentences::why_not(&repeat.status),
            None => Some(not_counted(records, attempt, counted.contains_key(repeat))?),
        };
        let is_unread = summed.is_none()
            && attempt.is_valid()
            && !counted.contains_key(repeat)
            && matches!(records.result(attempt)?, StoredResult::NeverRead);
        let rate = summed
            .and_then(|r| r.steady.as_ref())
            .map(|steady| steady.tokens_per_second_per_gpu);
        runs.push(PastRun {
            attempt: attempt.id.clone(),
            repeat: *repeat,
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            tokens_per_second_per_gpu: rate,
            counts: why_not.is_none(),
            why_not,
            is_unread,
        });
    }
    // A run that failed says as well what it was of.
    let mut contract = summary.as_ref().map(|s| s.contract.clone());
    for (_, attempt) in &group.attempts {
        if contract.is_none() {
            contract = records
                .result(attempt)?
                .there()
                .map(|result| result.contract);
        }
    }
    let first = group.first();
    Ok(Measurement {
        started_at: first.started_at,
        ended_at: group.ended_at(),
        host: first.host.clone(),
        configuration: Digest::of(&group.launch).short(),
        generation: first.generation,
        contract: contract.unwrap_or_default(),
        matrices: BTreeSet::new(),
        timer_factor: summary.as_ref().and_then(Summary::timer_factor),
        tokens_per_second_per_gpu: summary.and_then(|summary| summary.tokens_per_second_per_gpu),
        since: None,
        counts_now: None,
        runs,
    })
}

/// Why a run that no summary has does not count. `another_counts`: another run of its repeat does.
fn not_counted(records: &Records, attempt: &Attempt, another_counts: bool) -> Result<String> {
    Ok(match (&attempt.set_aside, &attempt.suspect) {
        (Some(set_aside), _) => format!("set aside: {}", set_aside.reason),
        (None, _) if attempt.is_interrupted() => "it was interrupted".to_owned(),
        (None, _) if !attempt.is_valid() && !attempt.is_disturbed() => {
            format!("failed ({})", outcome_text(attempt))
        }
        (None, Some(why)) => format!("disturbed: {why}"),
        (None, None) if another_counts => "another run of this repeat counts".to_owned(),
        (None, None) => match records.result(attempt)? {
            StoredResult::Lost(why) => why,
            StoredResult::There(_) | StoredResult::NeverRead => {
                "no build here has read its log; the next build of a matrix that has the cell does"
                    .to_owned()
            }
        },
    })
}

/// The cells of a comparison's pre-image, each with its state as JSON.
fn cells_compared(preimage: &str) -> impl Iterator<Item = (String, &str)> {
    preimage.lines().filter_map(|line| {
        let (name, state) = line.strip_prefix("cell.")?.split_once(" = ")?;
        Some((preimage::unescaped(name), state))
    })
}

/// What the cache recorded of the attempts besides themselves.
struct Records<'a> {
    cache: &'a Cache,
    /// By the attempt's id, in the order in which they were recorded.
    parses: BTreeMap<String, Vec<Entry>>,
    /// By cell, in the order in which they were recorded.
    renders: BTreeMap<String, Vec<Entry>>,
    /// Summaries by cell, in the order in which they were recorded.
    summaries: BTreeMap<String, Vec<Entry>>,
    /// Matrices by the digest of a summary that they compared.
    compared: BTreeMap<String, BTreeSet<String>>,
    default_job: Value,
}

impl<'a> Records<'a> {
    fn of(cache: &'a Cache, is_wanted: impl Fn(&str) -> bool) -> Self {
        let of_run = |task: &str| {
            task.strip_prefix("parse ")
                .and_then(|name| Some(name.rsplit_once('#')?.0.to_owned()))
        };
        let of_cell = |task: &str| task.strip_prefix("render ").map(str::to_owned);
        let mut parses: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for entry in cache.entries_named(TaskKind::Parse, |task| {
            of_run(task).is_some_and(|cell| is_wanted(&cell))
        }) {
            if let Some(attempt) =
                preimage::line(&entry.preimage, "attempt").map(|id| id.trim_matches('"').to_owned())
            {
                parses.entry(attempt).or_default().push(entry);
            }
        }
        let mut renders: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for entry in cache.entries_named(TaskKind::Render, |task| {
            of_cell(task).is_some_and(|cell| is_wanted(&cell))
        }) {
            if let Some(cell) = of_cell(&entry.task) {
                renders.entry(cell).or_default().push(entry);
            }
        }
        let of_summary = |task: &str| task.strip_prefix("aggregate ").map(str::to_owned);
        let mut summaries: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        let is_summary = |task: &str| of_summary(task).is_some_and(|cell| is_wanted(&cell));
        for entry in cache.entries_named(TaskKind::Aggregate, is_summary) {
            if let Some(cell) = of_summary(&entry.task) {
                summaries.entry(cell).or_default().push(entry);
            }
        }
        let mut compared: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for entry in cache.entries_named(TaskKind::Compare, |_| true) {
            let matrix = entry.task.strip_prefix("compare ").unwrap_or_default();
            for (cell, state) in cells_compared(&entry.preimage) {
                let state: Option<Value> = is_wanted(&cell)
                    .then(|| serde_json::from_str(state).ok())
                    .flatten();
                if let Some(summary) = state.as_ref().and_then(|state| state["summary"].as_str()) {
                    let matrices = compared.entry(summary.to_owned()).or_default();
                    matrices.insert(matrix.to_owned());
                }
            }
        }
        let default_job = serde_json::to_value(Job::default()).unwrap_or_default();
        Self {
            cache,
            parses,
            renders,
            summaries,
            compared,
            default_job,
        }
    }

    fn parses_of(&self, group: &Group) -> impl Iterator<Item = &Entry> {
        let attempts = group.attempts.iter();
        attempts
            .filter_map(|(_, attempt)| self.parses.get(&attempt.id))
            .flatten()
    }

    /// The summaries that a measurement is in, in the order in which they were recorded.
    fn summaries_of(&self, cell: &str, group: &Group) -> impl DoubleEndedIterator<Item = &Entry> {
        let results: BTreeSet<String> = self
            .parses_of(group)
            .filter_map(|entry| Some(entry.outputs.first()?.digest.to_string()))
            .collect();
        let is_of_group = move |entry: &&Entry| {
            let mut values = entry
                .preimage
                .lines()
                .filter_map(|line| line.strip_prefix("result.")?.split_once(" = "));
            values.any(|(_, digest)| results.contains(digest.trim_matches('"')))
        };
        let all = self.summaries.get(cell).into_iter().flatten();
        all.filter(is_of_group)
    }

    /// The matrices whose comparisons had this measurement.
    fn matrices(&self, cell: &str, group: &Group) -> BTreeSet<String> {
        let outputs = self.summaries_of(cell, group).flat_map(|s| &s.outputs);
        let compared = outputs.filter_map(|output| self.compared.get(&output.digest.to_string()));
        compared.flatten().cloned().collect()
    }

    /// The statistics that a measurement is judged by; `None` where nobody ever said.
    fn statistics(&self, cell: &str, group: &Group, warmups: &Warmups) -> Option<Statistics> {
        let planned = warmups.planned.get(cell);
        let is_planned = |(job, _): &&(String, Statistics)| {
            self.parses_of(group).any(|entry| {
                preimage::line(&entry.preimage, "job").map(|job| job.trim_matches('"'))
                    == Some(job.as_str())
            })
        };
        if let Some((_, statistics)) = planned.filter(is_planned) {
            return Some(statistics.clone());
        }
        let summary = self.summaries_of(cell, group).next_back();
        let recorded = summary.and_then(|entry| {
            serde_json::from_str(preimage::line(&entry.preimage, "statistics")?).ok()
        });
        recorded.or_else(|| planned.map(|(_, statistics)| statistics.clone()))
    }

    /// What was read from an attempt's log when it was last parsed.
    fn result(&self, attempt: &Attempt) -> Result<StoredResult> {
        let parses = self.parses.get(&attempt.id).into_iter().flatten().rev();
        StoredResult::among(self.cache, attempt, parses)
    }

    /// What was changed between two attempts at a cell: settings, files, variables, facts of the
    /// host, and the host.
    fn changes(&self, cell: &str, before: &Attempt, now: &Attempt) -> Vec<ChangedSetting> {
        let nested = |digest: &Digest| self.cache.preimage(digest);
        let mut changes = preimage::changes(&before.preimage, &now.preimage, &nested);
        // Recipes that render their launch files have the job in no train key: it is where the log
        // was read.
        if preimage::line(&before.preimage, "job").is_none()
            && preimage::line(&now.preimage, "job").is_none()
        {
            let jobs = [before, now].map(|attempt| self.job(attempt));
            if let [Some(old), Some(new)] = &jobs {
                let of_job = preimage::changes(old, new, &nested).into_iter();
                changes.extend(of_job.map(|c| preimage::Change {
                    field: format!("job.{}", c.field),
                    ..c
                }));
            }
        }
        if changes
            .iter()
            .any(|change| change.field.starts_with("rendered."))
        {
            changes.extend(self.changed_templates(cell, before, now));
            // A launch file is what the settings and the templates make of it.
            let is_cause = |c: &preimage::Change| {
                c.field.starts_with("job.") || c.field.starts_with("template.")
            };
            if changes.iter().any(is_cause) {
                changes.retain(|change| !change.field.starts_with("rendered."));
            }
        }
        let mut named = worded(&changes, &self.default_job);
        if before.host != now.host {
            let (old, new) = (Some(before.host.clone()), Some(now.host.clone()));
            named.push(ChangedSetting {
                what: "host".into(),
                how: None,
                old,
                new,
            });
        }
        named
    }

    /// The job's text, as the first one who read the attempt's log knew it.
    fn job(&self, attempt: &Attempt) -> Option<String> {
        let entry = self.parses.get(&attempt.id)?.first()?;
        self.cache.preimage(
            &preimage::line(&entry.preimage, "job")?
                .trim_matches('"')
                .parse()
                .ok()?,
        )
    }

    fn changed_templates(
        &self,
        cell: &str,
        before: &Attempt,
        now: &Attempt,
    ) -> Vec<preimage::Change> {
        let [Some(old), Some(new)] = [before, now].map(|attempt| self.render(cell, attempt)) else {
            return Vec::new();
        };
        let mut changes = preimage::changes(&old.preimage, &new.preimage, &|_| None);
        changes.retain(|change| change.field.starts_with("template."));
        changes
    }

    /// The rendering that made the launch files of an attempt.
    fn render(&self, cell: &str, attempt: &Attempt) -> Option<&Entry> {
        let made = |entry: &&Entry| {
            !entry.outputs.is_empty()
                && entry.outputs.iter().all(|output| {
                    let digest =
                        preimage::line(&attempt.preimage, &format!("rendered.{}", output.name));
                    digest
                        .is_some_and(|digest| digest.trim_matches('"') == output.digest.to_string())
                })
        };
        self.renders.get(cell)?.iter().rfind(made)
    }
}
