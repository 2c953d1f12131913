//! A cell's measurements over time: how fast each was, and where the speed changed.

use std::collections::BTreeMap;

use crate::results::{
    CONFIDENCE, Contract, FieldDifference, MIN_REPEATS, Reason, Tier, Welch, differences,
    settings::show, verdicts, welch,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Estimate, SESSION_GAP_SECONDS, host_named,
    judged::{no_variation, short_step_times},
};

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
}

impl CellHistory {
    /// The histories under a cell's name, a work each. `measurements`: all of them, in order of
    /// time; `changes(earlier, later)` names what was changed between two of one work.
    pub fn of(
        cell: &str,
        imported: bool,
        measurements: Vec<Measurement>,
        changes: impl Fn(&Measurement, &Measurement) -> Vec<ChangedSetting>,
    ) -> Vec<Self> {
        let works = works(measurements);
        let names: Vec<_> = works.iter().map(|work| told_apart(work, &works)).collect();
        let of_work = |(mut measurements, work): (Vec<Measurement>, _)| {
            assess(&mut measurements, &changes);
            Self {
                cell: cell.to_owned(),
                imported,
                work,
                measurements,
            }
        };
        works.into_iter().zip(names).map(of_work).collect()
    }
}

/// Runs of one configuration on one host, without a pause of more than six hours between them.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_per_gpu: Option<Estimate>,
    /// How many times too high the rate may be, by the clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer_factor: Option<f64>,
    /// What this measurement is held against: the last one before it with a rate, else the one
    /// before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Since>,
    /// Do runs of it count for the cell as it is configured now?
    pub counts_now: bool,
    pub runs: Vec<PastRun>,
    /// Decides whether two rates are rates of the same work.
    #[serde(skip)]
    pub contract: Contract,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Since {
    /// When the earlier measurement started, seconds since 1970.
    pub started_at: f64,
    /// What was changed in between, as far as tprimat records it.
    pub changes: Vec<ChangedSetting>,
    /// Speed now ÷ speed then; absent where one of the two has no rate, or where they are rates of
    /// different work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// At least 95 %: Holm's correction widens it over the changes of a cell's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    pub level: Level,
    /// Why there is no verdict on the speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Whether the speed changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Faster,
    Slower,
    /// The difference is not significant.
    Same,
    NotAssessed,
}

impl Level {
    /// Did the speed change, as far as that can be told?
    #[must_use]
    pub fn is_change(self) -> bool {
        matches!(self, Self::Faster | Self::Slower)
    }
}

/// A setting, a file or a fact of the host that was changed, under the name that a user knows it
/// by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedSetting {
    pub what: String,
    /// `edited`, `added`, `removed`, `changed during the run`, or `changed during the run before`: of
    /// something that has no value that people read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PastRun {
    pub attempt: String,
    pub repeat: u32,
    /// Seconds since 1970.
    pub started_at: f64,
    /// Seconds since 1970.
    pub ended_at: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_per_gpu: Option<f64>,
    /// Is it a part of the measurement's rate?
    pub counts: bool,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// Between two sessions, or hosts, a smaller change of the speed is no news: docs/METRICS.md,
/// "Speed over time".
pub const SESSION_FLOOR: f64 = 0.03;

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
/// did.
pub fn assess(
    measurements: &mut [Measurement],
    changes: impl Fn(&Measurement, &Measurement) -> Vec<ChangedSetting>,
) {
    let mut found: Vec<Option<Since>> = Vec::new();
    let mut tests: Vec<(usize, Welch)> = Vec::new();
    for at in 0..measurements.len() {
        found.push(earlier(measurements, at).map(|before| {
            let (mut since, test) = since(&measurements[before], &measurements[at]);
            since.changes = changes(&measurements[before], &measurements[at]);
            tests.extend(test.map(|test| (at, test)));
            since
        }));
    }
    let judged = verdicts(&tests.iter().map(|(_, test)| *test).collect::<Vec<_>>());
    for ((at, test), verdict) in tests.into_iter().zip(judged) {
        let Some(since) = &mut found[at] else {
            continue;
        };
        since.interval = verdict
            .interval()
            .filter(|ends| ends.iter().all(|end| end.is_finite()));
        let before = earlier(measurements, at).map(|before| &measurements[before]);
        let is_one_session = before.is_some_and(|before| {
            host_named(&before.host).is_some_and(|host| host == measurements[at].host)
                && is_same_session(before.ended_at, measurements[at].started_at)
        });
        let is_small = test.ratio.max(1.0 / test.ratio) < 1.0 + SESSION_FLOOR;
        if verdict.significant && !is_one_session && is_small {
            let text = format!(
                "two sessions may differ by {} % without a cause",
                SESSION_FLOOR * 100.0
            );
            since.reason = Some(Reason::no_verdict("small_between_sessions", text));
            continue;
        }
        since.level = match verdict.significant {
            false => Level::Same,
            true if test.ratio > 1.0 => Level::Faster,
            true => Level::Slower,
        };
    }
    for (measurement, since) in measurements.iter_mut().zip(found) {
        measurement.since = since;
    }
}

/// The speeds of two measurements beside each other, and the test of whether they differ where
/// there is to be a verdict.
fn since(before: &Measurement, now: &Measurement) -> (Since, Option<Welch>) {
    let mut since = Since {
        started_at: before.started_at,
        changes: Vec::new(),
        ratio: None,
        interval: None,
        level: Level::NotAssessed,
        reason: None,
    };
    let (Some(then), Some(rate)) = (
        &before.tokens_per_second_per_gpu,
        &now.tokens_per_second_per_gpu,
    ) else {
        return (since, None);
    };
    let fields: Vec<String> = other_workload(&now.contract, &before.contract)
        .into_iter()
        .map(|d| d.field)
        .collect();
    if !fields.is_empty() {
        let text = format!("the work is not the same: {}", fields.join(", "));
        since.reason = Some(Reason::no_verdict("other_work", text).with("fields", fields));
        return (since, None);
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
    let test = test.filter(|_| since.reason.is_none());
    (since, test)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Run;

    fn measured(day: f64, rates: &[f64]) -> Measurement {
        let at = day * 86_400.0;
        let run = |rate: &f64| Run {
            rate: *rate,
            host: "h",
            started_at: Some(at),
            ended_at: Some(at + 60.0),
        };
        Measurement {
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
        let of = |all: Vec<Measurement>| CellHistory::of("c", false, all, |_, _| Vec::new());
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

    /// By the clock the second rate may be twice too high, and then it is the first one's.
    #[test]
    fn a_doubted_rate_is_no_change_of_speed() {
        let mut doubled = [0.0, 1.0, 2.0].map(|day| {
            let rate = if day == 1.0 { 200.0 } else { 100.0 };
            measured(day, &[rate, rate + 0.3, rate - 0.3])
        });
        assess(&mut doubled, |_, _| Vec::new());
        assert_eq!(
            levels(&doubled),
            [None, Some(Level::Faster), Some(Level::Slower)]
        );
        doubled[1].timer_factor = Some(2.0);
        assess(&mut doubled, |_, _| Vec::new());
        assert_eq!(
            levels(&doubled),
            [None, Some(Level::NotAssessed), Some(Level::NotAssessed)]
        );
        let why = doubled[1].since.as_ref().and_then(|s| s.reason.as_ref());
        assert!(why.unwrap().is("short_step_times"));
        // Slower than before although the rate may be too high: that is certain.
        let mut slower = [100.0, 50.0].map(|rate| measured(rate, &[rate, rate + 0.3, rate - 0.3]));
        slower[1].timer_factor = Some(1.5);
        assess(&mut slower, |_, _| Vec::new());
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
        assess(&mut all, |before, now| {
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

    #[test]
    fn between_sessions_a_small_difference_is_no_change() {
        let (before, slower) = (measured(0.0, &[100.0, 100.1, 99.9]), [98.0, 98.1, 97.9]);
        let level = |day: f64, host: &str| {
            let mut all = [
                before.clone(),
                Measurement {
                    host: host.into(),
                    ..measured(day, &slower)
                },
            ];
            assess(&mut all, |_, _| Vec::new());
            let since = all[1].since.clone().unwrap();
            (since.level, since.reason.is_some())
        };
        assert_eq!(level(0.1, "h"), (Level::Slower, false));
        assert_eq!(level(1.0, "h"), (Level::NotAssessed, true));
        assert_eq!(level(0.1, "g"), (Level::NotAssessed, true));
    }

    #[test]
    fn few_repeats_give_a_ratio_and_no_verdict() {
        let mut all = [measured(0.0, &[100.0, 101.0]), measured(1.0, &[50.0, 50.5])];
        assess(&mut all, |_, _| Vec::new());
        let since = all[1].since.as_ref().unwrap();
        assert_eq!(
            (since.level, &*since.reason.as_ref().unwrap().code),
            (Level::NotAssessed, "few_repeats")
        );
        assert!(since.ratio.is_some() && since.interval.is_some());
    }
}
