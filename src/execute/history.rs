//! The cells of a store in time: one query over its attempts and imports. Every measurement of a
//! cell, in order of time, with what was changed before it (docs/design/store.md, "History").

use std::collections::{BTreeMap, BTreeSet};

use globset::GlobMatcher;
use serde_json::{Value, json};

use super::reading::{PastMeasurements, StoredResult, launch_of, run_of, trainings};
use crate::{
    cache::{Attempt, Cache, TaskKind},
    digest::Digest,
    error::Result,
    figures::{
        self, Baseline, CellHistory, ChangedSetting, Measurement, PastRun, Statistics, host_named,
    },
    graph::{Engine, Present, Statuses, outcome_text, worded},
    import::{self, ImportedRun, Imports, OnDamage},
    job::{Job, RunOutcome},
    matrix::CellId,
    plan::{
        Prepared,
        preimage::{self, Change},
    },
    results::{RunResult, settings::agree},
};

const NEVER_READ: &str = "no build here has read its log";

/// The histories of these cells in order of their names, and how many imported runs have no date,
/// so that they are in none. `host`: only of runs on hosts that match. `baseline`: what they are held
/// against besides.
pub fn histories(
    engine: &Engine,
    statuses: &Statuses,
    wanted: &BTreeSet<String>,
    host: Option<&GlobMatcher>,
    baseline: Option<&Baseline>,
    on_damage: OnDamage,
) -> Result<(Vec<CellHistory>, usize)> {
    let (cache, plan) = (engine.cache, engine.plan);
    let mut planned: BTreeMap<&str, CellId> = BTreeMap::new();
    // The attempts that serve the cells as they are configured now, and how those judge them.
    let mut serving: BTreeMap<String, &Statistics> = BTreeMap::new();
    // A run that serves several cells is recorded under the name of one.
    let mut named = wanted.clone();
    for (at, cell) in plan.cells.with_ids() {
        planned.insert(&cell.id, at);
        let prepared = plan.prepared(at);
        for (_, train) in trainings(engine, statuses, at) {
            let Some((attempt, prepared)) = train.attempt().zip(prepared) else {
                continue;
            };
            serving.insert(attempt.id.clone(), statistics(prepared));
            if let Some((name, _)) = run_of(&attempt.task).filter(|_| wanted.contains(&cell.id)) {
                named.insert(name.to_owned());
            }
        }
    }
    let records = Records::of(cache, |cell| named.contains(cell));
    let imports = Imports::of(cache);
    let (mut cells, mut undated) = (Vec::new(), 0);
    for cell in wanted {
        let at = planned.get(cell.as_str()).copied();
        let attempts = records.past.of_cell_and_keys(engine, statuses, cell, at);
        let own = attempts.iter().map(|(n, attempt)| records.run(*n, attempt));
        let own: Vec<Run> = own.collect::<Result<_>>()?;
        let claims = import::claim_for(plan, cell);
        let imported = import::runs(cache, &imports, cell, &claims, on_damage)?;
        let imported: Vec<Run> = imported.iter().map(Run::imported).collect();
        for (is_import, mut runs) in [(false, own), (true, imported)] {
            runs.retain(|run| host.is_none_or(|host| host.is_match(&run.host)));
            let all = runs.len();
            runs.retain(|run| run.past.started_at.is_finite());
            undated += all - runs.len();
            runs.sort_by(|a, b| {
                let by_time = a.past.started_at.total_cmp(&b.past.started_at);
                by_time.then_with(|| a.past.attempt.cmp(&b.past.attempt))
            });
            let measured = |group: &Vec<Run>| {
                let ids = || group.iter().map(|run| run.past.attempt.as_str());
                let now = ids().find_map(|id| serving.get(id).copied());
                let then = || ids().find_map(|id| records.judged(id));
                let prepared = at.filter(|_| !is_import).and_then(|at| plan.prepared(at));
                let planned = || prepared.map(statistics);
                let of = now
                    .or_else(then)
                    .or_else(planned)
                    .unwrap_or(&claims.statistics);
                let mut measurement = measurement(group, of);
                let mut counted = measurement.runs.iter().filter(|run| run.counts);
                measurement.counts_now = counted.any(|run| serving.contains_key(&run.attempt));
                measurement
            };
            let measurements = groups(runs, is_import).iter().map(measured).collect();
            let changes = |before: &Measurement, now: &Measurement| {
                let mut changes = records.changes(&before.inputs, &now.inputs);
                changes.retain(|change| !is_import || is_known(change));
                worded(&changes, &records.default_job)
            };
            let held = baseline.and_then(|of| of.cells.iter().find(|of| of.cell == *cell));
            let of_cell = CellHistory::of(cell, is_import, measurements, held, changes);
            cells.extend(of_cell);
        }
    }
    Ok((cells, undated))
}

fn statistics(prepared: &Prepared) -> &Statistics {
    &prepared.resolved.statistics
}

/// Do two files both state it, and state it differently? What only one states is not known to have
/// been changed.
fn is_known(change: &Change) -> bool {
    let value = |side: &Option<String>| serde_json::from_str(side.as_deref()?).ok();
    let both = value(&change.old).zip(value(&change.new));
    both.is_some_and(|(old, new)| !agree(&old, &new))
}

/// What differs between the inputs of a measurement of a cell and what it would be started with now.
#[must_use]
pub fn changes_since(
    cache: &Cache,
    cell: &str,
    then: &str,
    now: &Present,
    host: &str,
) -> Vec<Change> {
    let records = Records::of(cache, |of| of == cell);
    let mut text = now.preimage.clone();
    if let Some((digest, _)) = now
        .job
        .as_ref()
        .filter(|_| preimage::line(&text, "job").is_none())
    {
        text += &format!("job = {}\n", json!(digest));
    }
    text += &format!("fact.host = {}\n", json!(host));
    records.changes_with(then, &text, &|digest| match &now.job {
        Some((job, text)) if job == digest => Some(text.clone()),
        _ => cache.preimage(digest),
    })
}

/// Files, datasets, images and a framework's options that were changed between an attempt and a later one at a cell,
/// for each such pair of the attempts' names. Nothing where the cache no longer has one of them.
#[must_use]
pub fn changed_inputs(cache: &Cache, pairs: &[(&str, &str, &str)]) -> Vec<Vec<ChangedSetting>> {
    let attempts = cache.all_attempts();
    let records = Records::of(cache, |cell| pairs.iter().any(|(of, ..)| *of == cell));
    let inputs = |id: &str| Some(records.inputs(attempts.iter().find(|of| of.id == id)?));
    let changed = |(_, before, now): &(&str, &str, &str)| {
        let both = inputs(before).zip(inputs(now));
        let changes = both.map(|(before, now)| records.changes(&before, &now));
        let changes = changes.unwrap_or_default();
        let mut all = worded(&changes, &records.default_job);
        all.retain(|change| change.how.is_some());
        let is_option = |change: &&Change| change.field.starts_with("job.framework.");
        let options: Vec<Change> = changes.iter().filter(is_option).cloned().collect();
        let options = worded(&options, &records.default_job).into_iter();
        all.extend(options.filter(|change| change.how.is_none()));
        all
    };
    pairs.iter().map(changed).collect()
}

/// A run that was made here or imported.
struct Run {
    /// Says why it does not count where that needs no look at its log.
    past: PastRun,
    host: String,
    generation: u32,
    /// Runs with the same text are repeats of each other.
    configuration: String,
    /// See [`Measurement::inputs`].
    inputs: String,
    /// What its log says, or why nobody knows.
    result: std::result::Result<RunResult, String>,
}

impl Run {
    fn imported(run: &ImportedRun) -> Self {
        let result = run.result.clone();
        let settings = result.contract.0.iter().map(|of| (&of.field, &of.value));
        let device = result.trace.device.as_ref().map(|device| &device.name);
        let stated = json!({
            "job": settings.collect::<BTreeMap<_, _>>(),
            "fact": { "package": result.trace.versions, "device": device, "host": host_named(&result.host) },
            "train_key": run.train_key,
        });
        let unstated = json!({ "fact": { "device": null, "host": null }, "train_key": null });
        let inputs = preimage::canonical("import", &stated, &unstated);
        // An imported log is dated by its own steps, where nothing else dates it.
        let (started_at, ended_at) = result.span();
        let started_at = started_at.unwrap_or(f64::NAN);
        Self {
            past: PastRun {
                attempt: run.recorded.id(),
                repeat: run.number,
                started_at,
                ended_at: ended_at.unwrap_or(started_at),
                ..PastRun::default()
            },
            host: result.host.clone(),
            generation: 0,
            configuration: run.train_key.clone().unwrap_or_else(|| inputs.clone()),
            inputs,
            result: Ok(result),
        }
    }

    fn is_repeat_of(&self, other: &Self) -> bool {
        self.configuration == other.configuration
            && self.generation == other.generation
            && self.host == other.host
    }
}

/// Runs of one configuration on one host in one session, with those that were made later in place
/// of some of them. `runs` are in order of time, and so are the groups, by their beginnings.
fn groups(runs: Vec<Run>, is_import: bool) -> Vec<Vec<Run>> {
    let mut groups: Vec<Vec<Run>> = Vec::new();
    for run in runs {
        let last = groups.iter().rposition(|group| group[0].host == run.host);
        let own = groups.iter_mut().enumerate().rfind(|(at, group)| {
            let goes_on = figures::is_same_session(ended_at(group), run.past.started_at);
            // A run that is made later, because one failed, was disturbed or was set aside, completes
            // the measurement as it completes a build's. Each import has a number of its own.
            let is_good = |of: &Run| of.past.repeat == run.past.repeat && of.past.why_not.is_none();
            let completes = !group.iter().any(is_good) && (goes_on || !is_import);
            // If the host ran another configuration last, another run of a repeat that counts is a
            // new measurement.
            run.is_repeat_of(&group[0]) && (completes || Some(*at) == last && goes_on)
        });
        match own {
            Some((_, group)) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

fn ended_at(group: &[Run]) -> f64 {
    let ends = group.iter().map(|run| run.past.ended_at);
    ends.fold(f64::NEG_INFINITY, f64::max)
}

fn measurement(group: &[Run], statistics: &Statistics) -> Measurement {
    let mut runs: Vec<PastRun> = group.iter().map(|run| run.past.clone()).collect();
    let mut results: Vec<(u32, RunResult)> = Vec::new();
    for (past, run) in runs
        .iter_mut()
        .zip(group)
        .filter(|(past, _)| past.why_not.is_none())
    {
        match &run.result {
            // The first good run of a repeat counts, as in a build.
            _ if results.iter().any(|(repeat, _)| *repeat == past.repeat) => {
                past.why_not = Some("another run of this repeat counts".to_owned());
            }
            Ok(result) => results.push((past.repeat, result.clone())),
            Err(why) => past.why_not = Some(why.clone()),
        }
    }
    results.sort_by_key(|(repeat, _)| *repeat);
    let summary = (!results.is_empty()).then(|| figures::summarize(&results, statistics));
    for past in runs.iter_mut().filter(|past| past.why_not.is_none()) {
        let mut repeats = summary.iter().flat_map(|summary| &summary.repeats);
        if let Some(repeat) = repeats.find(|repeat| repeat.repeat == past.repeat) {
            let steady = repeat.steady.as_ref();
            past.tokens_per_second_per_gpu = steady.map(|steady| steady.tokens_per_second_per_gpu);
            past.why_not = repeat.status.why_not();
            past.counts = past.why_not.is_none();
        }
    }
    let first = &group[0];
    let mut measurement = Measurement {
        started_at: first.past.started_at,
        ended_at: ended_at(group),
        host: first.host.clone(),
        configuration: Digest::of(&first.configuration).short(),
        generation: first.generation,
        inputs: first.inputs.clone(),
        runs,
        ..Measurement::default()
    };
    if let Some(summary) = summary {
        measurement.timer_factor = summary.timer_factor();
        measurement.tokens_per_second_per_gpu = summary.tokens_per_second_per_gpu;
        measurement.contract = summary.contract;
        measurement.unlisted = summary.unlisted;
    } else if let Some(result) = group.iter().find_map(|run| run.result.as_ref().ok()) {
        // A run that failed says as well what work it was.
        measurement.contract = result.contract.clone();
    }
    measurement
}

/// What the cache recorded of some cells.
struct Records<'a> {
    cache: &'a Cache,
    past: PastMeasurements<'a>,
    /// The templates of launch files, as lines, by the digests of the files.
    templates: BTreeMap<BTreeSet<String>, String>,
    /// How the last summary of a result judged it, by the digest of the result.
    judged: BTreeMap<String, Statistics>,
    default_job: Value,
}

impl<'a> Records<'a> {
    fn of(cache: &'a Cache, is_wanted: impl Fn(&str) -> bool) -> Self {
        let entries = |kind: TaskKind| {
            let is_named = |task: &str| {
                task.split_once(' ')
                    .is_some_and(|(_, cell)| is_wanted(cell))
            };
            cache.entries_named(kind, is_named).into_iter()
        };
        let templates = entries(TaskKind::Render).map(|render| {
            let files = render.outputs.iter().map(|file| file.digest.to_string());
            let lines = render.preimage.split_inclusive('\n');
            (
                files.collect(),
                lines.filter(|line| line.starts_with("template.")).collect(),
            )
        });
        let judged = entries(TaskKind::Aggregate).flat_map(|summary| {
            let text = preimage::line(&summary.preimage, "statistics");
            let statistics: Option<Statistics> =
                text.and_then(|text| serde_json::from_str(text).ok());
            values(&summary.preimage, "result.")
                .into_iter()
                .zip(statistics.into_iter().cycle())
        });
        Self {
            cache,
            templates: templates.collect(),
            judged: judged.collect(),
            past: PastMeasurements::of_cells(cache, &is_wanted),
            default_job: json!(Job::default()),
        }
    }

    fn run(&self, repeat: u32, attempt: &Attempt) -> Result<Run> {
        let why_not = match (&attempt.set_aside, &attempt.outcome, &attempt.suspect) {
            (Some(set_aside), ..) => Some(format!("set aside: {}", set_aside.reason)),
            _ if attempt.is_interrupted() => Some("it was interrupted".to_owned()),
            (_, RunOutcome::Failed { .. }, _) => {
                Some(format!("failed ({})", outcome_text(attempt)))
            }
            (.., suspect) => suspect.as_ref().map(|why| format!("disturbed: {why}")),
        };
        let parses = self.past.parses(&attempt.id).iter().rev();
        let result = match StoredResult::among(self.cache, attempt, parses)? {
            StoredResult::There(result) => Ok(*result),
            StoredResult::Lost(why) => Err(why),
            StoredResult::NeverRead => Err(NEVER_READ.to_owned()),
        };
        Ok(Run {
            past: PastRun {
                attempt: attempt.id.clone(),
                repeat,
                started_at: attempt.started_at,
                ended_at: attempt.ended_at,
                why_not,
                ..PastRun::default()
            },
            host: attempt.host.clone(),
            generation: attempt.generation,
            configuration: launch_of(&attempt.preimage),
            inputs: self.inputs(attempt),
            result,
        })
    }

    /// An attempt's pre-image and host, and what some train keys do not have: the job, as the first
    /// one who read the log knew it, and the templates of the launch files.
    fn inputs(&self, attempt: &Attempt) -> String {
        let mut text = attempt.preimage.clone();
        let parse = self.past.parses(&attempt.id).first();
        let job = parse.and_then(|parse| preimage::line(&parse.preimage, "job"));
        if let Some(job) = job.filter(|_| preimage::line(&text, "job").is_none()) {
            text += &format!("job = {job}\n");
        }
        let files = values(&attempt.preimage, "rendered.");
        text += self.templates.get(&files).map_or("", String::as_str);
        text + &format!("fact.host = {}\n", json!(attempt.host))
    }

    /// How an attempt was judged when it was last summed up.
    fn judged(&self, attempt: &str) -> Option<&Statistics> {
        let results = self.past.parses(attempt).iter().rev();
        let mut results = results.filter_map(|parse| parse.outputs.first());
        results.find_map(|result| self.judged.get(&result.digest.to_string()))
    }

    /// What differs between the inputs of two runs.
    fn changes(&self, before: &str, now: &str) -> Vec<Change> {
        self.changes_with(before, now, &|digest| self.cache.preimage(digest))
    }

    /// `nested`: the text of a job.
    fn changes_with(
        &self,
        before: &str,
        now: &str,
        nested: &dyn Fn(&Digest) -> Option<String>,
    ) -> Vec<Change> {
        let mut changes = preimage::changes(before, now, nested);
        changes.retain(|change| {
            let is_of_one = change.old.is_none() || change.new.is_none();
            // That only one run has these means that the other one's are not known.
            !is_of_one || change.field != "job" && !change.field.starts_with("template.")
        });
        let has = |prefix: &str| {
            changes
                .iter()
                .any(|change| change.field.starts_with(prefix))
        };
        // A launch file is what the settings and the templates make of it.
        let follows = match (has("rendered."), has("job.") || has("template.")) {
            (false, _) => "template.",
            (true, true) => "rendered.",
            (true, false) => return changes,
        };
        changes.retain(|change| !change.field.starts_with(follows));
        changes
    }
}

/// The digests in lines of a pre-image whose names begin so.
fn values(preimage: &str, prefix: &str) -> BTreeSet<String> {
    let lines = preimage.lines().filter(|line| line.starts_with(prefix));
    let values = lines.filter_map(|line| line.split_once(" = "));
    values
        .map(|(_, digest)| digest.trim_matches('"').to_owned())
        .collect()
}
