//! A cell's rate with its interval. The n of every interval and test counts units of replication:
//! runs, sessions of runs, or hosts. The interval is Student's t (`crate::results::t_interval`, with
//! its formula) or, from ten units on, a bootstrap ([`bootstrap`]).

mod bootstrap;

use std::collections::{BTreeMap, BTreeSet};

use crate::results::{CONFIDENCE, RunResult, Sequential, geometric_mean, logs, t_interval};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_base::words::plain::counted;

use super::{RepeatStatus, RepeatSummary, pairs::are_until_decided};
use bootstrap::BOOTSTRAP_FROM;
pub use bootstrap::bootstrap_interval;

/// Runs that follow the one before later than this begin another session; midnight does not.
pub const SESSION_GAP_SECONDS: f64 = 6.0 * 3600.0;

/// A host's name; none where a log does not name its host.
#[must_use]
pub fn host_named(host: &str) -> Option<&str> {
    (!host.is_empty()).then_some(host)
}

/// The hosts of several runs; none where one of them does not name its host, since the others are
/// not all of them then.
#[must_use]
pub fn all_hosts<'h>(hosts: impl IntoIterator<Item = &'h String>) -> Option<BTreeSet<&'h str>> {
    hosts.into_iter().map(|host| host_named(host)).collect()
}

/// A rate over repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Geometric mean over the units.
    pub value: f64,
    /// Absent below two units, or where they do not vary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<IntervalKind>,
    /// One a repeat, in order.
    pub values: Vec<f64>,
    /// What the interval speaks of.
    pub unit: Unit,
    /// One a unit: geometric means of its repeats. Equal to `values` where repeats are the units.
    /// Repeats on unknown hosts are in none where hosts are the units, and repeats without a date in
    /// none where sessions are.
    pub units: Vec<f64>,
}

/// How an interval was made.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum IntervalKind {
    /// Student's t on logarithms.
    StudentT,
    /// Bootstrap of Student's t on logarithms.
    BootstrapT,
    /// Sequential t on logarithms: runs were added until a decision. So it is also told where they are
    /// too few for an interval.
    SequentialT,
}

/// Unit of replication.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// One host, one session: the figures speak of these hosts.
    #[default]
    Repeat,
    /// Runs of one host that are more than [`SESSION_GAP_SECONDS`] apart.
    Session,
    Host,
}

impl Unit {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Repeat => "repeat",
            Self::Session => "session",
            Self::Host => "host",
        }
    }

    /// `3 hosts`, `1 repeat`
    #[must_use]
    pub fn counted(self, n: usize) -> String {
        counted(n, self.name())
    }

    /// Is this run in one of the units? Where those are hosts, a run on an unknown one is not; where
    /// they are sessions, a run without a date is not.
    #[must_use]
    pub fn has(self, run: &RepeatSummary) -> bool {
        match self {
            Self::Repeat => true,
            Self::Session => is_dated(run.started_at),
            Self::Host => host_named(&run.host).is_some(),
        }
    }
}

fn is_dated(started_at: Option<f64>) -> bool {
    started_at.is_some_and(f64::is_finite)
}

/// The estimate of a cell from the repeats that count.
pub(super) fn estimate(counted: &[(&RepeatSummary, &RunResult)]) -> Option<Estimate> {
    let steady = counted
        .iter()
        .map(|(r, _)| r.steady.as_ref().map(|s| s.tokens_per_second_per_gpu));
    let runs: Vec<Run<'_>> = counted
        .iter()
        .zip(steady.collect::<Option<Vec<f64>>>()?)
        .map(|((repeat, result), rate)| Run {
            rate,
            host: &result.host,
            started_at: repeat.started_at,
            ended_at: repeat.ended_at,
        })
        .collect();
    let repeats = counted.iter().map(|(repeat, _)| *repeat);
    let estimate = Estimate::of(&runs)?;
    Some(match are_until_decided(repeats) {
        true => estimate.until_decided(),
        false => estimate,
    })
}

/// One run that counts.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub rate: f64,
    pub host: &'a str,
    /// Seconds since 1970.
    pub started_at: Option<f64>,
    pub ended_at: Option<f64>,
}

impl Estimate {
    /// None without a run, or where a rate is none.
    #[must_use]
    pub fn of(runs: &[Run<'_>]) -> Option<Self> {
        let (unit, units) = units(runs);
        let units = units
            .iter()
            .map(|rates| geometric_mean(rates))
            .collect::<Option<Vec<f64>>>()?;
        let (kind, ci95) = if units.len() < BOOTSTRAP_FROM {
            (IntervalKind::StudentT, t_interval(&units))
        } else {
            (IntervalKind::BootstrapT, bootstrap_interval(&units))
        };
        Some(Self {
            value: geometric_mean(&units)?,
            ci95,
            interval: ci95.map(|_| kind),
            values: runs.iter().map(|r| r.rate).collect(),
            unit,
            units,
        })
    }

    /// The same where the number of runs depended on what they showed.
    fn until_decided(self) -> Self {
        let test = logs(&self.units).and_then(|logs| Sequential::of(&logs));
        Self {
            ci95: test.and_then(|test| test.interval(CONFIDENCE)),
            interval: Some(IntervalKind::SequentialT),
            ..self
        }
    }

    /// Did the number of runs depend on what they showed?
    pub(super) fn is_until_decided(&self) -> bool {
        self.interval == Some(IntervalKind::SequentialT)
    }
}

/// Rates by unit: by host where several are named, else by session where there are several, else
/// one by one. A run on an unknown host may have been on any of the others, so it is neither a unit
/// of its own nor part of one, and its rate is left out of units that are hosts. Runs as units
/// instead would narrow the interval, as if all hosts were equally fast. A run without a date is left
/// out of units that are sessions for the same reason.
fn units(runs: &[Run<'_>]) -> (Unit, Vec<Vec<f64>>) {
    let mut by_host: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in runs {
        if let Some(host) = host_named(run.host) {
            by_host.entry(host).or_default().push(run.rate);
        }
    }
    if by_host.len() > 1 {
        return (Unit::Host, by_host.into_values().collect());
    }
    let sessions = sessions(runs);
    if sessions.len() > 1 {
        return (Unit::Session, sessions);
    }
    (Unit::Repeat, runs.iter().map(|r| vec![r.rate]).collect())
}

/// How far the level of one cell moves from one time to another, as a standard deviation of logarithms:
/// clocks, heat, placement, a busy network. docs/METRICS.md, "Sessions".
pub const LEVEL_SD: f64 = 0.01;

/// Seconds between the nearest runs of two cells that were not measured in turns: no session has runs
/// of both, or all runs of one were made before those of the other. None where a date is not known.
pub(super) fn apart(a: &[RepeatSummary], b: &[RepeatSummary]) -> Option<f64> {
    let spans = |repeats: &[RepeatSummary]| -> Option<Vec<(f64, f64)>> {
        let counted = repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
        let span = |r: &RepeatSummary| {
            let start = r.started_at.filter(|s| s.is_finite())?;
            Some((
                start,
                r.ended_at
                    .filter(|e| e.is_finite())
                    .unwrap_or(start)
                    .max(start),
            ))
        };
        counted.map(span).collect()
    };
    let (a, b) = (spans(a)?, spans(b)?);
    let mut runs: Vec<((f64, f64), bool)> = a
        .iter()
        .map(|s| (*s, true))
        .chain(b.iter().map(|s| (*s, false)))
        .collect();
    runs.sort_by(|(x, _), (y, _)| x.0.total_cmp(&y.0));
    // All runs in order of time: the pauses at which they change from one cell to the other.
    let mut changes: Vec<f64> = Vec::new();
    let mut before: Option<((f64, f64), bool)> = None;
    for ((start, end), is_a) in runs {
        if let Some(((last, until), was_a)) = before
            && was_a != is_a
        {
            // Runs that begin together are in turns.
            if start <= last {
                return None;
            }
            changes.push(start - until);
        }
        let until = before.map_or(end, |((_, until), _)| until.max(end));
        before = Some(((start, until), is_a));
    }
    // One run of each is in some order, which says nothing.
    if a.len().min(b.len()) < 2 && changes.iter().all(|pause| *pause <= SESSION_GAP_SECONDS) {
        return None;
    }
    let is_shared = changes.iter().any(|pause| *pause <= SESSION_GAP_SECONDS);
    let nearest = changes.iter().copied().reduce(f64::min)?.max(0.0);
    (changes.len() == 1 || !is_shared).then_some(nearest)
}

/// Rates by session, in order of time, without those of runs whose start is not known.
fn sessions(runs: &[Run<'_>]) -> Vec<Vec<f64>> {
    let dated = runs.iter().filter(|run| is_dated(run.started_at));
    let mut started: Vec<(f64, &Run<'_>)> = dated
        .filter_map(|run| Some((run.started_at?, run)))
        .collect();
    started.sort_by(|(a, x), (b, y)| a.total_cmp(b).then(x.rate.total_cmp(&y.rate)));
    let mut sessions: Vec<Vec<f64>> = Vec::new();
    let mut until = f64::NEG_INFINITY;
    for (start, run) in started {
        match sessions.last_mut() {
            Some(session) if start - until <= SESSION_GAP_SECONDS => session.push(run.rate),
            _ => sessions.push(vec![run.rate]),
        }
        until = until
            .max(run.ended_at.filter(|e| e.is_finite()).unwrap_or(start))
            .max(start);
    }
    sessions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(rate: f64, host: &'static str, hours: f64) -> Run<'static> {
        Run {
            rate,
            host,
            started_at: Some(hours * 3600.0),
            ended_at: Some(hours * 3600.0 + 1800.0),
        }
    }

    #[test]
    fn means_of_hosts_are_the_units_where_there_are_several() {
        let runs = [
            run(1.0, "a", 0.0),
            run(4.0, "a", 1.0),
            run(8.0, "b", 2.0),
            run(4.0, "c", 3.0),
        ];
        let estimate = Estimate::of(&runs).unwrap();
        assert_eq!(
            (estimate.unit, estimate.units.len(), estimate.values.len()),
            (Unit::Host, 3, 4)
        );
        // 2, 8 and 4: their geometric mean is 4, and each counts once, however many runs it has.
        assert!((estimate.value - 4.0).abs() < 1e-12, "{estimate:?}");
        assert_eq!(estimate.unit.counted(3), "3 hosts");
    }

    #[test]
    fn a_run_on_an_unknown_host_is_not_on_another_host() {
        let runs = [
            run(1.0, "a", 0.0),
            run(4.0, "a", 1.0),
            run(8.0, "", 2.0),
            run(4.0, "", 3.0),
        ];
        let estimate = Estimate::of(&runs).unwrap();
        assert_eq!((estimate.unit, estimate.units.len()), (Unit::Repeat, 4));
    }

    #[test]
    fn a_run_on_an_unknown_host_takes_nothing_from_the_clustering_by_host() {
        let hosts = [("a", 1.0), ("b", 1.02), ("c", 0.98), ("d", 1.01)];
        let named: Vec<_> = hosts
            .iter()
            .flat_map(|(host, rate)| [0.999, 1.0, 1.001].map(|by| run(rate * by, host, 0.0)))
            .collect();
        let with_unknown: Vec<_> = named.iter().copied().chain([run(5.0, "", 0.0)]).collect();
        let [all_named, one_unknown] =
            [&named, &with_unknown].map(|runs| Estimate::of(runs).unwrap());
        assert_eq!(
            (one_unknown.unit, one_unknown.units.len()),
            (Unit::Host, 4),
            "13 repeats are not 13 units"
        );
        assert_eq!(one_unknown.values.len(), 13);
        assert_eq!(
            (one_unknown.value, one_unknown.ci95),
            (all_named.value, all_named.ci95)
        );
    }

    #[test]
    fn a_session_goes_across_midnight_and_ends_with_a_long_pause() {
        let unit = |hours: &[f64]| {
            let runs: Vec<_> = hours.iter().map(|h| run(1.0 + h, "a", *h)).collect();
            let estimate = Estimate::of(&runs).unwrap();
            (estimate.unit, estimate.units.len())
        };
        assert_eq!(
            unit(&[22.0, 23.5, 25.0]),
            (Unit::Repeat, 3),
            "one night is one session"
        );
        assert_eq!(unit(&[1.0, 2.0, 3.0, 20.0, 21.0]), (Unit::Session, 2));
        assert_eq!(
            unit(&[0.0, 6.5]),
            (Unit::Repeat, 2),
            "the pause counts from the end of a run"
        );
        let unknown = [
            Run {
                started_at: None,
                ..run(1.0, "a", 0.0)
            },
            run(2.0, "a", 90.0),
        ];
        assert_eq!(Estimate::of(&unknown).unwrap().unit, Unit::Repeat);
    }

    #[test]
    fn a_run_without_a_date_takes_nothing_from_the_clustering_by_session() {
        let dated: Vec<_> = [0.0, 20.0, 40.0]
            .iter()
            .flat_map(|hours| {
                [0.0, 0.6, 1.2].map(|later| run(1.0 + hours / 100.0, "a", hours + later))
            })
            .collect();
        let undated = Run {
            started_at: None,
            ..run(5.0, "a", 0.0)
        };
        let with_undated: Vec<_> = dated.iter().copied().chain([undated]).collect();
        let [all_dated, one_undated] =
            [&dated, &with_undated].map(|runs| Estimate::of(runs).unwrap());
        assert_eq!(
            (one_undated.unit, one_undated.units.len()),
            (Unit::Session, 3)
        );
        assert_eq!(
            (one_undated.value, one_undated.ci95),
            (all_dated.value, all_dated.ci95)
        );
    }

    #[test]
    fn one_run_has_no_interval_and_equal_runs_have_none_either() {
        let of = |rates: &[f64]| {
            Estimate::of(&rates.iter().map(|r| run(*r, "a", 0.0)).collect::<Vec<_>>())
        };
        assert!(of(&[]).is_none() && of(&[0.0]).is_none() && of(&[1.0, f64::NAN]).is_none());
        let one = of(&[5.0]).unwrap();
        assert_eq!((one.ci95, one.interval), (None, None));
        assert_eq!(
            of(&[5.0, 5.0, 5.0]).unwrap().ci95,
            None,
            "no spread is not certainty"
        );
        assert_eq!(
            of(&[5.0, 5.1]).unwrap().interval,
            Some(IntervalKind::StudentT)
        );
        let ten: Vec<f64> = (0..10).map(|i| 5.0 + 0.01 * f64::from(i)).collect();
        assert_eq!(of(&ten).unwrap().interval, Some(IntervalKind::BootstrapT));
    }

    proptest! {
        #[test]
        fn the_order_of_repeats_does_not_matter(
            runs in proptest::collection::vec((1.0f64..2.0, 0usize..3, 0.0f64..40.0), 1..14),
            seed in any::<u64>(),
        ) {
            let hosts = ["a", "b", "c"];
            let runs: Vec<_> = runs.into_iter().map(|(rate, host, hours)| run(rate, hosts[host], hours)).collect();
            let mut shuffled = runs.clone();
            shuffled.sort_by_key(|r| r.rate.to_bits().wrapping_mul(seed | 1));
            let (a, b) = (Estimate::of(&runs).unwrap(), Estimate::of(&shuffled).unwrap());
            let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
            prop_assert!(near(a.value, b.value) && a.unit == b.unit && a.units.len() == b.units.len());
            prop_assert_eq!(a.ci95.is_some(), b.ci95.is_some());
            if let (Some(a), Some(b)) = (a.ci95, b.ci95) {
                prop_assert!((a[0] / b[0] - 1.0).abs() < 1e-9 && (a[1] / b[1] - 1.0).abs() < 1e-9);
            }
        }
    }
}
