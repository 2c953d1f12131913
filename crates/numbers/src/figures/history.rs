//! A cell's measurements over time: how fast each was, and where the speed changed.

mod spread;

use std::collections::BTreeMap;

use crate::results::{
    CONFIDENCE, Contract, FieldDifference, MIN_REPEATS, Reason, Tier, differences,
    settings::{NOT_STATED, is_in_table, show},
    welch,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{
    BaselineCell, Estimate, SESSION_GAP_SECONDS,
    codes::WORKLOADS_MAY_DIFFER,
    judged::{no_variation, short_step_times},
    unstated::{Gaps, Stated, follows, unknown_differences, work_not_known},
};
use spread::{Rate, Spread};

pub const HISTORY_SCHEMA: &str = "tprimat.history/1";

/// Everything that was ever measured of some cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    pub schema_version: String,
    pub cells: Vec<CellHistory>,
}

impl History {
    #[must_use]
    pub fn of(cells: Vec<CellHistory>) -> Self {
        Self {
            schema_version: HISTORY_SCHEMA.to_owned(),
            cells,
        }
    }
}

/// What was measured of one work under a cell's name. Matrices may use one name for several works
/// (another sequence length, say): each of them has a history of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellHistory {
    pub cell: String,
    /// Are its runs imports? They are never mixed with runs of this cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// The settings that tell this work from the others of the cell's name; empty where there is
    /// only one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub work: BTreeMap<String, String>,
    /// In order of time.
    pub measurements: Vec<Measurement>,
    /// Is each measurement's level that of the baseline that was named?
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_against_baseline: bool,
    /// How far the level moves from session to session, as a standard deviation of logarithms: what
    /// intervals allow for. Absent where nothing was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_sd: Option<f64>,
}

impl CellHistory {
    /// The histories under a cell's name, a work each. `measurements`: all of them, in order of
    /// time; `baseline`: what they are held against beside each other; `changes(earlier, later)` names
    /// what was changed between two of one work.
    pub fn of(
        cell: &str,
        imported: bool,
        measurements: Vec<Measurement>,
        baseline: Option<&BaselineCell>,
        changes: impl Fn(&Measurement, &Measurement) -> Vec<ChangedSetting>,
    ) -> Vec<Self> {
        let works = works(measurements);
        let names: Vec<_> = works.iter().map(|work| told_apart(work, &works)).collect();
        let of_work = |(mut measurements, work): (Vec<Measurement>, _)| {
            let is_its = |of: &&BaselineCell| {
                let mut all = measurements.iter();
                let is_one = |m: &Measurement| {
                    let is_measured = m.tokens_per_second_per_gpu.is_some();
                    other_workload(&m.contract, &of.contract).is_empty()
                        && !(is_measured && work_not_known(&m.contract, &of.contract).is_some())
                };
                of.imported.is_empty() != imported && all.all(is_one)
            };
            let level = baseline.filter(is_its).and_then(Reference::of);
            let session_sd = assess(&mut measurements, level, &changes);
            Self {
                cell: cell.to_owned(),
                imported,
                work,
                measurements,
                is_against_baseline: level.is_some(),
                session_sd,
            }
        };
        works.into_iter().zip(names).map(of_work).collect()
    }
}

/// Runs of one configuration on one host, without a pause of more than six hours between them.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Seconds since 1970.
    pub started_at: f64,
    /// Seconds since 1970.
    pub ended_at: f64,
    pub host: String,
    /// Digest of all that the train keys of these runs cover but the number of the repeat.
    pub configuration: String,
    /// How often `--force=measured` had asked for new runs of this configuration.
    pub generation: u32,
    /// Tokens per second and GPU over the runs that count; absent where none does.
    pub tokens_per_second_per_gpu: Option<Estimate>,
    /// How many times too high the rate may be, by the clock.
    pub timer_factor: Option<f64>,
    /// What this measurement is held against: the last one before it with a rate, else the one
    /// before it.
    pub since: Option<Since>,
    /// The same against the level of a baseline, else of the first measurements of one speed: what creeps
    /// is not seen from one measurement to the next.
    pub since_level: Option<Since>,
    /// Do runs of it count for the cell as it is configured now?
    pub counts_now: bool,
    pub runs: Vec<PastRun>,
    /// Decides whether two rates are rates of the same work.
    #[serde(skip)]
    pub contract: Contract,
    /// Settings of unknown meaning, which may be among what changed.
    #[serde(skip)]
    pub unlisted: BTreeMap<String, serde_json::Value>,
    /// What its runs were started with, as lines; two such texts differ in what was changed.
    #[serde(skip)]
    pub inputs: String,
}

/// Settings of the workload in which two contracts are known to differ.
fn other_workload(a: &Contract, b: &Contract) -> Vec<FieldDifference> {
    let known = differences(a, b)
        .into_iter()
        .filter(FieldDifference::is_known);
    known.filter(|d| d.tier == Tier::Workload).collect()
}

/// Measurements in order of time, parted where the workload is known to differ.
fn works(measurements: Vec<Measurement>) -> Vec<Vec<Measurement>> {
    let mut works: Vec<Vec<Measurement>> = Vec::new();
    for now in measurements {
        let is_its = |work: &&mut Vec<Measurement>| {
            work.iter()
                .all(|m| other_workload(&now.contract, &m.contract).is_empty())
        };
        let last = |work: &Vec<Measurement>| work.last().map_or(0.0, |m| m.started_at);
        // A measurement that states little may fit several works: it joins the one measured last.
        let fitting = works.iter_mut().filter(is_its);
        match fitting.max_by(|a, b| last(a).total_cmp(&last(b))) {
            Some(work) => work.push(now),
            None => works.push(vec![now]),
        }
    }
    works
}

/// The settings in which a work differs from the others.
fn told_apart(work: &[Measurement], works: &[Vec<Measurement>]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    for own in work {
        for other in works.iter().flatten() {
            for difference in other_workload(&own.contract, &other.contract) {
                let value = show(difference.a.as_ref());
                fields.entry(difference.field).or_insert(value);
            }
        }
    }
    fields
}

/// How a measurement differs from an earlier one of its cell.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Since {
    /// When the earlier measurement started, seconds since 1970.
    pub started_at: f64,
    /// What was changed in between, as far as tprimat records it.
    pub changes: Vec<ChangedSetting>,
    /// Speed now ÷ speed then; absent where one of the two has no rate, or where they are rates of
    /// different work.
    pub ratio: Option<f64>,
    /// At least 95 %: corrected for all that is asked of a cell's history, and wide enough for what its
    /// sessions differ by.
    pub interval: Option<[f64; 2]>,
    pub level: Level,
    /// Why there is no verdict on the speed.
    pub reason: Option<Reason>,
}

/// Whether the speed changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Faster,
    Slower,
    /// The difference is not significant.
    Same,
    #[default]
    NotAssessed,
}

impl Level {
    fn of(interval: [f64; 2]) -> Self {
        match interval {
            [low, _] if low > 1.0 => Self::Faster,
            [_, high] if high < 1.0 => Self::Slower,
            _ => Self::Same,
        }
    }

    /// Did the speed change, as far as that can be told?
    #[must_use]
    pub fn is_change(self) -> bool {
        matches!(self, Self::Faster | Self::Slower)
    }
}

/// A setting, a file or a fact of the host that was changed, under the name that a user knows it
/// by.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedSetting {
    pub what: String,
    /// `edited`, `added`, `removed`, `changed during the run`, or `changed during the run before`: of
    /// something that has no value that people read.
    pub how: Option<String>,
    pub old: Option<String>,
    pub new: Option<String>,
}

impl ChangedSetting {
    /// `TP 2 → 4`, `train.py edited`
    #[must_use]
    pub fn words(&self) -> String {
        if let Some(how) = &self.how {
            return format!("{} {how}", self.what);
        }
        let [old, new] = [&self.old, &self.new].map(|value| value.as_deref().unwrap_or("not set"));
        format!("{} {old} → {new}", self.what)
    }
}

/// One attempt.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PastRun {
    pub attempt: String,
    pub repeat: u32,
    /// Seconds since 1970.
    pub started_at: f64,
    /// Seconds since 1970.
    pub ended_at: f64,
    pub tokens_per_second_per_gpu: Option<f64>,
    /// Is it a part of the measurement's rate?
    pub counts: bool,
    /// Why it is not.
    pub why_not: Option<String>,
}

/// So many measurements of one speed are the level that later ones are held against.
pub const FIRST_LEVEL: usize = 3;

/// A level that measurements are held against, and since when it is one.
#[derive(Clone, Copy)]
struct Reference {
    started_at: f64,
    rate: Rate,
}

impl Reference {
    fn of(baseline: &BaselineCell) -> Option<Self> {
        Some(Self {
            started_at: baseline.measured.map_or(0.0, |[start, _]| start),
            rate: Rate::of(&baseline.tokens_per_second_per_gpu)?,
        })
    }

    /// The first of these measurements, which are of one speed; one alone is the one before as well.
    fn of_first(all: &[(f64, Rate)]) -> Option<Self> {
        let first = all
            .get(..FIRST_LEVEL.min(all.len()))
            .filter(|first| first.len() > 1)?;
        let rates: Vec<Rate> = first.iter().map(|(_, rate)| *rate).collect();
        Some(Self {
            started_at: first[0].0,
            rate: Rate::level(&rates)?,
        })
    }
}

/// Does a run that starts then belong to the session that ended at `until`?
#[must_use]
pub fn is_same_session(until: f64, started_at: f64) -> bool {
    started_at - until <= SESSION_GAP_SECONDS
}

/// What the measurement at `at` is held against.
#[must_use]
pub fn earlier(measurements: &[Measurement], at: usize) -> Option<usize> {
    let with_rate = measurements[..at]
        .iter()
        .rposition(|m| m.tokens_per_second_per_gpu.is_some());
    with_rate.or_else(|| at.checked_sub(1))
}

/// Says of each measurement whether the speed changed; `changes(earlier, later)` names what else
/// did. `baseline`: the level that each is held against besides; where there is none, that of the first
/// measurements, and after a change of those that follow it. Returns how far the level moves from
/// session to session, where anything was judged.
fn assess(
    measurements: &mut [Measurement],
    baseline: Option<Reference>,
    changes: impl Fn(&Measurement, &Measurement) -> Vec<ChangedSetting>,
) -> Option<f64> {
    let all: &[Measurement] = measurements;
    let rate = |at: usize| Rate::of(all[at].tokens_per_second_per_gpu.as_ref()?);
    let mut found: Vec<(Option<Since>, Option<Since>)> = Vec::new();
    // The places of those that may be judged, and the rates before and now.
    let mut judged: Vec<(usize, Rate, Rate)> = Vec::new();
    for (at, now) in all.iter().enumerate() {
        let before = earlier(all, at);
        let since = before.map(|before| Since {
            changes: with_stated(&all[before], now, changes(&all[before], now)),
            ..since(&all[before], now)
        });
        let may_be = since.as_ref().is_some_and(|since| since.reason.is_none());
        let rates = before
            .filter(|_| may_be)
            .and_then(|before| rate(before).zip(rate(at)));
        judged.extend(rates.map(|(before, now)| (at, before, now)));
        found.push((since, None));
    }
    // What sessions differ by is seen where nothing else was changed.
    let is_unchanged = |at: usize| found[at].0.as_ref().is_some_and(|s| s.changes.is_empty());
    let unchanged = judged.iter().filter(|(at, ..)| is_unchanged(*at));
    let unchanged: Vec<(Rate, Rate)> = unchanged.map(|(_, before, now)| (*before, *now)).collect();
    let against_level = match baseline {
        Some(_) => judged.len() + 1,
        None => judged.len().saturating_sub(1),
    };
    let spread = Spread::of(&unchanged, judged.len() + against_level);
    let is_any = !judged.is_empty();
    let mut judged = judged.into_iter().peekable();
    let mut level: Vec<(f64, Rate)> = Vec::new();
    for (at, (since, since_level)) in found.iter_mut().enumerate() {
        if let Some((_, before, now)) = judged.next_if(|(of, ..)| *of == at)
            && let (Some(since), Some(interval)) = (since.as_mut(), spread.interval(&now, &before))
        {
            (since.interval, since.level) = (Some(interval), Level::of(interval));
        }
        // A measurement that may be of other work begins a new level: it is not compared with earlier ones.
        let why = since.as_ref().and_then(|since| since.reason.as_ref());
        if why.is_some_and(|why| why.is(WORKLOADS_MAY_DIFFER)) {
            level.clear();
        }
        // A rate that may be too high is no level.
        let Some(now) = rate(at).filter(|_| all[at].timer_factor.is_none()) else {
            continue;
        };
        if let Some(reference) = baseline.or_else(|| Reference::of_first(&level))
            && let Some(interval) = spread.interval(&now, &reference.rate)
        {
            *since_level = Some(Since {
                started_at: reference.started_at,
                ratio: Some((interval[0] * interval[1]).sqrt()),
                interval: Some(interval),
                level: Level::of(interval),
                ..Since::default()
            });
        }
        let mut both = [&*since, &*since_level].into_iter().flatten();
        if both.any(|since| since.level.is_change()) {
            level.clear();
        }
        level.push((all[at].started_at, now));
    }
    let sd = is_any.then(|| spread.sd());
    for (measurement, found) in measurements.iter_mut().zip(found) {
        (measurement.since, measurement.since_level) = found;
    }
    sd
}

/// What was changed, and what logs state otherwise beyond that.
fn with_stated(
    before: &Measurement,
    now: &Measurement,
    mut changes: Vec<ChangedSetting>,
) -> Vec<ChangedSetting> {
    let (then, of_now) = (&before.contract, &now.contract);
    let all = differences(then, of_now);
    let mut found: Vec<FieldDifference> = all.iter().filter(|d| d.is_known()).cloned().collect();
    found.retain(|d| d.tier != Tier::Workload || !is_in_table(&d.field));
    found.retain(|d| !follows(&d.field, &all));
    found.extend(unknown_differences(&before.unlisted, &now.unlisted));
    let mut stated: Vec<ChangedSetting> = found
        .into_iter()
        .map(|d| ChangedSetting {
            what: d.field,
            how: None,
            old: Some(show(d.a.as_ref())),
            new: Some(show(d.b.as_ref())),
        })
        .collect();
    // A run that ended before it said anything lacks every setting.
    let are_measured = [before, now].map(|m| m.tokens_per_second_per_gpu.is_some()) == [true; 2];
    for gaps in [Gaps::of(then, of_now), Gaps::of_speed(then, of_now)] {
        let one_sided = |side: Vec<Stated>, is_old: bool| {
            let change = move |one: Stated| ChangedSetting {
                what: one.field,
                how: None,
                old: Some(if is_old { &*one.value } else { NOT_STATED }.to_owned()),
                new: Some(if is_old { NOT_STATED } else { &*one.value }.to_owned()),
            };
            side.into_iter().map(change)
        };
        if are_measured {
            stated.extend(one_sided(gaps.only_a, true));
            stated.extend(one_sided(gaps.only_b, false));
        }
    }
    // Whatever the configuration calls it, it is told once.
    stated.retain(|own| {
        let is_it = |told: &ChangedSetting| told.old == own.old && told.new == own.new;
        !changes.iter().any(is_it)
    });
    changes.extend(stated);
    changes
}

/// The speeds of two measurements beside each other, or why there is to be no verdict on them.
fn since(before: &Measurement, now: &Measurement) -> Since {
    let mut since = Since {
        started_at: before.started_at,
        ..Since::default()
    };
    let (Some(then), Some(rate)) = (
        &before.tokens_per_second_per_gpu,
        &now.tokens_per_second_per_gpu,
    ) else {
        return since;
    };
    let fields: Vec<String> = other_workload(&now.contract, &before.contract)
        .into_iter()
        .map(|d| d.field)
        .collect();
    if !fields.is_empty() {
        let text = format!("the work is not the same: {}", fields.join(", "));
        since.reason = Some(Reason::no_verdict("other_work", text).with("fields", fields));
        return since;
    }
    since.reason = work_not_known(&now.contract, &before.contract);
    if since.reason.is_some() {
        return since;
    }
    since.ratio = Some(rate.value / then.value).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    let test = welch(&rate.units, &then.units);
    let fewest = rate.units.len().min(then.units.len());
    since.interval = test.and_then(|test| test.interval(CONFIDENCE));
    // Such a rate may be too high and never too low: it may make a cell look faster than before, or
    // slower than after it.
    let doubted = match since.ratio {
        Some(ratio) if ratio > 1.0 => now.timer_factor,
        _ => before.timer_factor,
    };
    since.reason = match test {
        _ if doubted.is_some() => doubted.map(short_step_times),
        _ if fewest < MIN_REPEATS => {
            let text = format!("a verdict needs {MIN_REPEATS} repeats of each");
            Some(Reason::no_verdict("few_repeats", text))
        }
        None => Some(no_variation()),
        Some(_) => None,
    };
    since
}

#[cfg(test)]
mod tests;
