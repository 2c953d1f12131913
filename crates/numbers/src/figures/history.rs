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
        // Of what may be other work, nothing is held against the level before it.
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
mod tests {
    use super::*;
    use crate::figures::{CORE, LEVEL_SD, Run};

    fn measured(day: f64, rates: &[f64]) -> Measurement {
        let at = day * 86_400.0;
        let run = |rate: &f64| Run {
            rate: *rate,
            host: "h",
            started_at: Some(at),
            ended_at: Some(at + 60.0),
        };
        let mut contract = Contract::default();
        // A run that failed may say nothing.
        let said = CORE.into_iter().filter(|_| !rates.is_empty());
        for field in said {
            contract.declare(field, "stated".into());
        }
        Measurement {
            contract,
            started_at: at,
            ended_at: at + 60.0,
            host: "h".into(),
            tokens_per_second_per_gpu: Estimate::of(&rates.iter().map(run).collect::<Vec<_>>()),
            ..Measurement::default()
        }
    }

    #[test]
    fn two_works_of_one_name_are_told_apart_and_one_is_not() {
        let of_length = |day: f64, rate: f64, length: u64| {
            let mut measured = measured(day, &[rate, rate + 0.3, rate - 0.3]);
            measured.contract.declare("seq_length", length.into());
            measured
        };
        let all = vec![
            of_length(0.0, 100.0, 2048),
            of_length(1.0, 50.0, 4096),
            of_length(2.0, 64.0, 2048),
            of_length(3.0, 50.0, 4096),
            // It failed before it said anything.
            measured(4.0, &[]),
        ];
        let of = |all: Vec<Measurement>| CellHistory::of("c", false, all, None, |_, _| Vec::new());
        let works = of(all.clone());
        let days = |work: &CellHistory| -> Vec<f64> {
            let all = work.measurements.iter();
            all.map(|m| m.started_at / 86_400.0).collect()
        };
        let parted: Vec<_> = works
            .iter()
            .map(|work| (days(work), &work.work["seq_length"]))
            .collect();
        assert_eq!(
            parted,
            [
                (vec![0.0, 2.0], &"2048".to_owned()),
                (vec![1.0, 3.0, 4.0], &"4096".to_owned())
            ]
        );
        assert_eq!(levels(&works[0].measurements), [None, Some(Level::Slower)]);
        assert_eq!(of(all[..1].to_vec())[0].work, BTreeMap::new());
    }

    /// What takes a verdict from a comparison takes it here, and what is named there is named here.
    #[test]
    fn what_logs_state_otherwise_is_named_and_other_work_is_not_judged() {
        let stated = |day: f64, field: &str, value: &str| {
            let mut measured = measured(day, &[100.0, 100.3, 99.7]);
            measured.contract.declare(field, value.into());
            measured
        };
        let mut all = [
            stated(0.0, "dataset", "c4"),
            stated(1.0, "dataset", "pile"),
            stated(2.0, "dropout", "0.1"),
            stated(3.0, "lora_rank", "16"),
        ];
        assess(&mut all, None, |_, _| Vec::new());
        let told = |at: usize| {
            let changes = all[at].since.as_ref().unwrap().changes.iter();
            changes.map(ChangedSetting::words).collect::<Vec<_>>()
        };
        assert_eq!(told(1), ["dataset c4 → pile"]);
        assert_eq!(
            told(2),
            ["dataset pile → not stated", "dropout not stated → 0.1"]
        );
        let why = all[3].since.as_ref().unwrap().reason.as_ref().unwrap();
        assert_eq!(why.text, "the workloads may differ in lora_rank");
        assert_eq!(
            (&all[3].since_level, all[2].since_level.is_some()),
            (&None, true)
        );
        // The configuration has said it already.
        let named = |_: &Measurement, _: &Measurement| {
            vec![ChangedSetting {
                what: "models.tiny.dataset".into(),
                how: None,
                old: Some("c4".into()),
                new: Some("pile".into()),
            }]
        };
        assess(&mut all[..2], None, named);
        assert_eq!(all[1].since.as_ref().unwrap().changes.len(), 1);
    }

    /// By the clock the second rate may be twice too high, and then it is the first one's.
    #[test]
    fn a_doubted_rate_is_no_change_of_speed() {
        let mut doubled = [0.0, 1.0, 2.0].map(|day| {
            let rate = if day == 1.0 { 200.0 } else { 100.0 };
            measured(day, &[rate, rate + 0.3, rate - 0.3])
        });
        assess(&mut doubled, None, |_, _| Vec::new());
        assert_eq!(
            levels(&doubled),
            [None, Some(Level::Faster), Some(Level::Slower)]
        );
        doubled[1].timer_factor = Some(2.0);
        assess(&mut doubled, None, |_, _| Vec::new());
        assert_eq!(
            levels(&doubled),
            [None, Some(Level::NotAssessed), Some(Level::NotAssessed)]
        );
        let why = doubled[1].since.as_ref().and_then(|s| s.reason.as_ref());
        assert!(why.unwrap().is("short_step_times"));
        // Slower than before although the rate may be too high: that is certain.
        let mut slower = [100.0, 50.0].map(|rate| measured(rate, &[rate, rate + 0.3, rate - 0.3]));
        slower[1].timer_factor = Some(1.5);
        assess(&mut slower, None, |_, _| Vec::new());
        assert_eq!(levels(&slower), [None, Some(Level::Slower)]);
    }

    fn levels(all: &[Measurement]) -> Vec<Option<Level>> {
        all.iter()
            .map(|m| m.since.as_ref().map(|s| s.level))
            .collect()
    }

    #[test]
    fn a_change_of_speed_is_found_where_it_happened_and_nowhere_else() {
        let mut all = [
            measured(0.0, &[100.0, 100.4, 99.7]),
            measured(1.0, &[100.2, 99.8, 100.1]),
            measured(2.0, &[95.1, 94.8, 95.3]),
            measured(3.0, &[]),
            measured(4.0, &[110.0, 110.3, 109.8]),
        ];
        assess(&mut all, None, |before, now| {
            vec![ChangedSetting {
                what: format!("{}", before.started_at / 86_400.0),
                how: None,
                old: None,
                new: Some(now.started_at.to_string()),
            }]
        });
        use Level::{Faster, NotAssessed, Same, Slower};
        assert_eq!(
            levels(&all),
            [
                None,
                Some(Same),
                Some(Slower),
                Some(NotAssessed),
                Some(Faster)
            ]
        );
        // Over the failed one, the last with a rate is what counts.
        let last = all[4].since.as_ref().unwrap();
        assert_eq!(
            (last.started_at, last.changes[0].what.as_str()),
            (2.0 * 86_400.0, "2")
        );
        let slower = all[2].since.as_ref().unwrap();
        assert!(
            slower.interval.unwrap()[1] < 1.0 && slower.ratio.unwrap() < 1.0,
            "{slower:?}"
        );
    }

    /// Whether they are of one session or of two: the level of a host moves from hour to hour as well.
    #[test]
    fn a_difference_that_comes_and_goes_with_time_is_no_change() {
        let (before, rates) = (measured(0.0, &[100.0, 100.1, 99.9]), [1.0, 1.001, 0.999]);
        let level = |day: f64, host: &str, factor: f64| {
            let mut all = [
                before.clone(),
                Measurement {
                    host: host.into(),
                    ..measured(day, &rates.map(|rate| rate * factor))
                },
            ];
            assert_eq!(assess(&mut all, None, |_, _| Vec::new()), Some(LEVEL_SD));
            all[1].since.clone().unwrap().level
        };
        for (day, host) in [(0.1, "h"), (1.0, "h"), (0.1, "g")] {
            assert_eq!(level(day, host, 98.0), Level::Same);
            assert_eq!(level(day, host, 95.0), Level::Slower);
            assert_eq!(level(day, host, 105.0), Level::Faster);
        }
    }

    /// Each step is too small to be one; the last level is far from the first.
    #[test]
    fn what_creeps_is_seen_from_the_first_measurements_and_named_once() {
        let weekly = |week: usize| {
            let rate = 100.0 * 0.99f64.powi(week as i32);
            measured(7.0 * week as f64, &[rate, rate + 0.3, rate - 0.3])
        };
        let mut all: Vec<Measurement> = (0..12).map(weekly).collect();
        assess(&mut all, None, |_, _| Vec::new());
        assert!(
            all.iter()
                .all(|m| m.since.as_ref().is_none_or(|s| !s.level.is_change()))
        );
        let named: Vec<usize> = (0..12)
            .filter(|at| {
                all[*at]
                    .since_level
                    .as_ref()
                    .is_some_and(|s| s.level == Level::Slower)
            })
            .collect();
        assert!(!named.is_empty() && named.len() <= 3, "{named:?}");
        // A baseline is the level of all of them.
        let level = Reference {
            started_at: 0.0,
            rate: Rate::of(all[0].tokens_per_second_per_gpu.as_ref().unwrap()).unwrap(),
        };
        assess(&mut all, Some(level), |_, _| Vec::new());
        let last = all[11].since_level.as_ref().unwrap();
        assert_eq!(last.level, Level::Slower);
        assert!((last.ratio.unwrap() - 0.99f64.powi(11)).abs() < 1e-3);
    }

    #[test]
    fn few_repeats_give_a_ratio_and_no_verdict() {
        let mut all = [measured(0.0, &[100.0, 101.0]), measured(1.0, &[50.0, 50.5])];
        assess(&mut all, None, |_, _| Vec::new());
        let since = all[1].since.as_ref().unwrap();
        assert_eq!(
            (since.level, &*since.reason.as_ref().unwrap().code),
            (Level::NotAssessed, "few_repeats")
        );
        assert!(since.ratio.is_some() && since.interval.is_some());
    }

    /// Nights of a host whose sessions differ by 1 %: at most one history in twenty names a change that is
    /// none, however long it is.
    #[test]
    fn a_long_history_names_no_change_that_is_none() {
        const TRIALS: u32 = 200;
        let mut state = 5u64;
        // SplitMix64.
        let mut uniform = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / 9_007_199_254_740_992.0
        };
        let mut normal =
            || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        for (session, run) in [(0.005, 0.003), (0.01, 0.003), (0.01, 0.01), (0.015, 0.003)] {
            for nights in [2, 7, 30, 90] {
                let mut named = 0;
                for _ in 0..TRIALS {
                    let mut night = |day: usize| {
                        let level = session * normal();
                        let rates = [(); 5].map(|()| (level + run * normal()).exp());
                        measured(day as f64, &rates)
                    };
                    let mut all: Vec<Measurement> = (0..nights).map(&mut night).collect();
                    assess(&mut all, None, |_, _| Vec::new());
                    let is_named = |m: &Measurement| {
                        let both = [&m.since, &m.since_level];
                        both.into_iter()
                            .flatten()
                            .any(|since| since.level.is_change())
                    };
                    named += u32::from(all.iter().any(is_named));
                }
                let share = f64::from(named) / f64::from(TRIALS);
                println!(
                    "sessions {session}, runs {run}, {nights} nights: {:.1} %",
                    share * 100.0
                );
                let most = if nights > 30 { 0.08 } else { 0.05 };
                assert!(
                    session > 0.01 || share <= most,
                    "{session} {run} {nights}: {share}"
                );
            }
        }
    }
}
