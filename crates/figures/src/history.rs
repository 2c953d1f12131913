//! A cell's measurements over time: how fast each was, and where the speed changed.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CONFIDENCE, Contract, Estimate, FieldDifference, MIN_REPEATS, SESSION_GAP_SECONDS, Tier, Welch, differences,
    verdicts, welch,
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
        Self { schema_version: HISTORY_SCHEMA.to_owned(), cells }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellHistory {
    pub cell: String,
    /// In order of time.
    pub measurements: Vec<Measurement>,
}

/// Runs of one configuration on one host, without a pause of more than six hours between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Seconds since 1970.
    pub started_at: f64,
    /// Seconds since 1970.
    pub ended_at: f64,
    pub host: String,
    /// Digest of all that the train keys of these runs cover but the number of the repeat.
    pub configuration: String,
    /// How often `--remeasure` had asked for new runs of this configuration.
    pub generation: u32,
    /// Tokens per second and GPU over the runs that count; absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_per_gpu: Option<Estimate>,
    /// What this measurement is held against: the last one before it with a rate, else the one before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Since>,
    pub runs: Vec<PastRun>,
    /// Decides whether two rates are rates of the same work.
    #[serde(skip)]
    pub contract: Contract,
}

/// How a measurement differs from an earlier one of its cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Since {
    /// When the earlier measurement started, seconds since 1970.
    pub started_at: f64,
    /// What was changed in between, as far as tprimat records it.
    pub changes: Vec<ChangedSetting>,
    /// Speed now ÷ speed then; absent where one of the two has no rate, or where they are rates of different work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// At least 95 %: Holm's correction widens it over the changes of a cell's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    pub level: Level,
    /// Why there is no verdict on the speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
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

/// A setting, a file or a fact of the host that was changed, under the name that a user knows it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedSetting {
    pub what: String,
    /// `edited`, `added`, `removed`: of something that has no value that people read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// `TP 2 → 4`, `train.py edited`
impl fmt::Display for ChangedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(how) = &self.how {
            return write!(f, "{} {how}", self.what);
        }
        let value = |value: &Option<String>| value.as_deref().map_or_else(|| "not set".to_owned(), str::to_owned);
        write!(f, "{} {} → {}", self.what, value(&self.old), value(&self.new))
    }
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// Between two sessions, or hosts, a smaller change of the speed is no news: docs/METRICS.md, "Speed over time".
pub const SESSION_FLOOR: f64 = 0.03;

/// Does a run that starts then belong to the session that ended at `until`?
#[must_use]
pub fn is_same_session(until: f64, started_at: f64) -> bool {
    started_at - until <= SESSION_GAP_SECONDS
}

/// What the measurement at `at` is held against.
#[must_use]
pub fn earlier(measurements: &[Measurement], at: usize) -> Option<usize> {
    let with_rate = measurements[..at].iter().rposition(|m| m.tokens_per_second_per_gpu.is_some());
    with_rate.or_else(|| at.checked_sub(1))
}

/// Says of each measurement whether the speed changed; `changes(earlier, later)` names what else did.
pub fn assess(measurements: &mut [Measurement], changes: impl Fn(usize, usize) -> Vec<ChangedSetting>) {
    let mut found: Vec<Option<Since>> = Vec::new();
    let mut tests: Vec<(usize, Welch)> = Vec::new();
    for at in 0..measurements.len() {
        found.push(earlier(measurements, at).map(|before| {
            let (mut since, test) = since(&measurements[before], &measurements[at]);
            since.changes = changes(before, at);
            tests.extend(test.map(|test| (at, test)));
            since
        }));
    }
    let judged = verdicts(&tests.iter().map(|(_, test)| *test).collect::<Vec<_>>());
    for ((at, test), verdict) in tests.into_iter().zip(judged) {
        let Some(since) = &mut found[at] else { continue };
        since.interval = verdict.interval.filter(|ends| ends.iter().all(|end| end.is_finite()));
        let before = earlier(measurements, at).map(|before| &measurements[before]);
        let is_one_session = before.is_some_and(|before| {
            before.host == measurements[at].host && is_same_session(before.ended_at, measurements[at].started_at)
        });
        let is_small = test.ratio.max(1.0 / test.ratio) < 1.0 + SESSION_FLOOR;
        if verdict.significant && !is_one_session && is_small {
            let percent = SESSION_FLOOR * 100.0;
            since.reason = Some(format!("two sessions may differ by {percent} % without a cause"));
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

/// The speeds of two measurements beside each other, and the test of whether they differ where there is to be a verdict.
fn since(before: &Measurement, now: &Measurement) -> (Since, Option<Welch>) {
    let mut since = Since {
        started_at: before.started_at,
        changes: Vec::new(),
        ratio: None,
        interval: None,
        level: Level::NotAssessed,
        reason: None,
    };
    let (Some(then), Some(rate)) = (&before.tokens_per_second_per_gpu, &now.tokens_per_second_per_gpu) else {
        return (since, None);
    };
    let known = differences(&now.contract, &before.contract).into_iter().filter(FieldDifference::is_known);
    let work: Vec<String> = known.filter(|d| d.tier == Tier::Workload).map(|d| d.field).collect();
    if !work.is_empty() {
        since.reason = Some(format!("the work is not the same: {}", work.join(", ")));
        return (since, None);
    }
    since.ratio = Some(rate.value / then.value).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    let test = welch(&rate.units, &then.units);
    let fewest = rate.units.len().min(then.units.len());
    since.interval = test.and_then(|test| test.interval(CONFIDENCE));
    since.reason = match test {
        _ if fewest < MIN_REPEATS => Some(format!("a verdict needs {MIN_REPEATS} repeats of each")),
        None => Some("the repeats do not vary, so there is no interval".to_owned()),
        Some(_) => None,
    };
    let test = test.filter(|_| since.reason.is_none());
    (since, test)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;

    fn measured(day: f64, rates: &[f64]) -> Measurement {
        let at = day * 86_400.0;
        let run = |rate: &f64| Run { rate: *rate, host: "h", started_at: Some(at), ended_at: Some(at + 60.0) };
        Measurement {
            started_at: at,
            ended_at: at + 60.0,
            host: "h".into(),
            configuration: String::new(),
            generation: 0,
            tokens_per_second_per_gpu: Estimate::of(&rates.iter().map(run).collect::<Vec<_>>()),
            since: None,
            runs: Vec::new(),
            contract: Contract::default(),
        }
    }

    fn levels(all: &[Measurement]) -> Vec<Option<Level>> {
        all.iter().map(|m| m.since.as_ref().map(|s| s.level)).collect()
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
            vec![ChangedSetting { what: format!("{before}"), how: None, old: None, new: Some(now.to_string()) }]
        });
        use Level::{Faster, NotAssessed, Same, Slower};
        assert_eq!(levels(&all), [None, Some(Same), Some(Slower), Some(NotAssessed), Some(Faster)]);
        // Over the failed one, the last with a rate is what counts.
        let last = all[4].since.as_ref().unwrap();
        assert_eq!((last.started_at, last.changes[0].what.as_str()), (2.0 * 86_400.0, "2"));
        let slower = all[2].since.as_ref().unwrap();
        assert!(slower.interval.unwrap()[1] < 1.0 && slower.ratio.unwrap() < 1.0, "{slower:?}");
    }

    #[test]
    fn between_sessions_a_small_difference_is_no_change() {
        let (before, slower) = (measured(0.0, &[100.0, 100.1, 99.9]), [98.0, 98.1, 97.9]);
        let level = |day: f64, host: &str| {
            let mut all = [before.clone(), Measurement { host: host.into(), ..measured(day, &slower) }];
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
            (since.level, since.reason.as_deref()),
            (Level::NotAssessed, Some("a verdict needs 3 repeats of each"))
        );
        assert!(since.ratio.is_some() && since.interval.is_some());
    }
}
