//! What was sampled beside a run, over its measured steps.
//!
//! When those were follows from the log: a step ended when its line was written (or when the
//! trainer says so), and the first measured one began its own time before that. If that time on the
//! clock is not what the steps' times add up to, lines were held back or something else ran in
//! between, and then nothing is said of energy.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_logs::Step;
use tprimat_results::{Point, RunResult, Samples, telemetry_samples::is_none};

use super::{NoEnergy, NoTelemetry, RepeatSummary, RunFact, clock, summary::notes::add};

/// How far clock and step times may be apart: this part of the measured time, and in any case so
/// many seconds (the log is looked at ten times a second).
const TOLERANCE: f64 = 0.05;
const TOLERANCE_SECONDS: f64 = 0.5;
/// In sampling intervals: how long a measured part must be, and for how long samples may be missing
/// at its two ends.
const SHORTEST: f64 = 2.0;
const HELD: f64 = 1.5;
/// Two samples between which the measured part begins or ends may be this many sampling intervals
/// apart. Where they are further apart, its beginning or end counts as not sampled, unless the gap is
/// at most [`END_PART`] of the measured part.
const END_INTERVALS: f64 = 3.5;
const END_PART: f64 = 0.02;

/// Of one run. What the sampler could not read is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Telemetry {
    /// Who sampled: `nvml`, `amd-smi`, `rocm-smi`.
    pub source: String,
    /// Devices sampled: those that the run owned.
    pub devices: u64,
    /// Length of the measured part by the clock, in seconds.
    pub seconds: f64,
    /// GPU board energy of all devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
    /// Why there is no energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_absent: Option<NoEnergy>,
    /// Of all devices together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_power_watts: Option<f64>,
    /// The most that one device had in use, of whatever process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory_used_bytes: Option<u64>,
    /// Mean over devices and samples of what a device had in use, of whatever process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_memory_used_bytes: Option<f64>,
    /// Of the device, all devices' mean, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_utilization: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_clock_hz: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_temperature_celsius: Option<f64>,
    /// Reasons for lowered clocks that were seen, in the driver's words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled: Vec<String>,
    /// In which part of the samples each was seen on any device, 0 to 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throttled_share: BTreeMap<String, f64>,
    /// At how many samples it is known which processes of others were on the devices; absent: it is
    /// not known of any.
    #[serde(default, skip_serializing_if = "is_none")]
    pub processes_known: u64,
    /// For pictures, over the whole run: seconds since its start, watts of all devices; at most 512
    /// points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub power_series: Vec<[f64; 2]>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Energy {
    pub joules: f64,
    /// `counter`: difference of the hardware counter; `integrated`: power over time.
    pub method: String,
}

/// Of the measured steps of a run, or why there is none; `None`: nothing was to be sampled.
pub(super) fn of_run(
    result: &RunResult,
    is_measured: impl Fn(&Step) -> bool,
) -> Option<Result<Telemetry, NoTelemetry>> {
    let samples = result.telemetry.as_ref()?;
    if let Some(why) = &samples.unavailable {
        return Some(Err(NoTelemetry::NotSampled(why.clone())));
    }
    let window = window(result.trace.steps.iter().filter(|s| is_measured(s)));
    Some(window.map(|window| of_window(samples, window, result.started_at)))
}

/// When the measured steps began and ended: seconds since 1970.
pub(super) fn window<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<[f64; 2], NoTelemetry> {
    let timed = clock::timed(steps);
    let (first, last) = timed
        .first()
        .zip(timed.last())
        .ok_or(NoTelemetry::NoStepIsMeasured)?;
    let measured: f64 = timed.iter().map(|t| t.seconds).sum();
    let (begin, end) = first
        .line
        .ended_at
        .zip(last.line.ended_at)
        .ok_or(NoTelemetry::EndsNotKnown)?;
    let begin = begin - first.seconds;
    let passed = end - begin;
    if !((passed - measured).abs() <= (TOLERANCE * measured).max(TOLERANCE_SECONDS) && passed > 0.0)
    {
        return Err(NoTelemetry::ClockDisagrees { measured, passed });
    }
    Ok([begin, end])
}

/// A point with the time at which it begins, and the part of it that lies in the window.
struct Piece<'a> {
    point: &'a Point,
    begin: f64,
    part: f64,
}

fn of_window(samples: &Samples, window: [f64; 2], started_at: Option<f64>) -> Telemetry {
    let begin = samples.begin.unwrap_or_default();
    let begins = std::iter::once(begin).chain(samples.points.iter().map(|p| p.time));
    let all: Vec<Piece<'_>> = samples
        .points
        .iter()
        .zip(begins)
        .map(|(point, begin)| {
            let overlap = window[1].min(point.time) - window[0].max(begin);
            Piece {
                point,
                begin,
                part: (overlap / (point.time - begin)).clamp(0.0, 1.0),
            }
        })
        .collect();
    let inside: Vec<&Piece<'_>> = all.iter().filter(|p| p.part > 0.0).collect();
    let seconds = window[1] - window[0];
    let (energy, energy_absent) = match energy(&inside, window, samples.interval_seconds) {
        Ok(energy) => (Some(energy), None),
        Err(why) => (None, Some(why)),
    };
    // As the part of a point that is inside counts; a point without the value counts nowhere.
    let mean = |field: fn(&Point) -> Option<f64>| {
        let weighted = inside
            .iter()
            .filter_map(|p| Some((field(p.point)?, p.part * p.point.samples as f64)));
        let (sum, weight) = weighted.fold((0.0, 0.0), |(s, w), (value, weight)| {
            (s + value * weight, w + weight)
        });
        (weight > 0.0).then(|| sum / weight)
    };
    let known = inside.iter().map(|p| p.point.throttle_known).sum::<u64>();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (reason, n) in inside.iter().flat_map(|p| &p.point.throttled) {
        *counts.entry(reason.clone()).or_default() += n;
    }
    let watts = |p: &Piece<'_>| {
        Some(p.point.counter_joules.or(p.point.integrated_joules)? / (p.point.time - p.begin))
    };
    let start = started_at.unwrap_or(begin);
    Telemetry {
        source: samples.source.clone(),
        devices: samples.devices,
        seconds,
        mean_power_watts: energy.as_ref().map(|e| e.joules / seconds),
        energy,
        energy_absent,
        max_memory_used_bytes: inside
            .iter()
            .filter_map(|p| p.point.max_memory_used_bytes)
            .max(),
        mean_memory_used_bytes: mean(|p| p.memory_used_bytes),
        mean_utilization: mean(|p| p.utilization),
        mean_clock_hz: mean(|p| p.clock_hz),
        max_temperature_celsius: inside
            .iter()
            .filter_map(|p| p.point.max_temperature_celsius)
            .reduce(f64::max),
        throttled: counts.keys().cloned().collect(),
        throttled_share: counts
            .into_iter()
            .map(|(reason, n)| (reason, n as f64 / known as f64))
            .collect(),
        processes_known: inside.iter().map(|p| p.point.processes_known).sum(),
        // In the middle of its point.
        power_series: all
            .iter()
            .filter_map(|p| Some([(p.begin + p.point.time) / 2.0 - start, watts(p)?]))
            .collect(),
    }
}

fn energy(inside: &[&Piece<'_>], window: [f64; 2], interval: f64) -> Result<Energy, NoEnergy> {
    let seconds = window[1] - window[0];
    if seconds < SHORTEST * interval {
        return Err(NoEnergy::TooShort { seconds, interval });
    }
    let (Some(first), Some(last)) = (inside.first(), inside.last()) else {
        return Err(NoEnergy::NoSample);
    };
    let missing = [first.begin - window[0], window[1] - last.point.time].map(|s| s.max(0.0));
    let is_too_long = |seconds: f64| seconds > HELD * interval;
    match missing {
        [seconds, _] if is_too_long(seconds) => {
            return Err(NoEnergy::NoSampleAtTheBeginning { seconds });
        }
        [_, seconds] if is_too_long(seconds) => return Err(NoEnergy::NoSampleAtTheEnd { seconds }),
        _ => {}
    }
    for end in [first, last] {
        let length = end.point.time - end.begin;
        if end.part < 1.0 && length > (END_INTERVALS * interval).max(END_PART * seconds) {
            if length <= END_INTERVALS * interval * end.point.samples as f64 {
                return Err(NoEnergy::SumsTooLong {
                    seconds,
                    sums_over: length,
                });
            }
            return Err(NoEnergy::GapAtAnEnd { seconds: length });
        }
    }
    let sum = |field: fn(&Point) -> Option<f64>| -> Option<f64> {
        let rate = |p: &Piece<'_>| Some(field(p.point)? / (p.point.time - p.begin));
        let within = |(i, p): (usize, &&Piece<'_>)| {
            // A sample that straddles the window's edge may include idle time; its nearest
            // neighbour wholly inside speaks for it.
            let neighbour = if i == 0 {
                inside.get(1)
            } else {
                inside.get(i - 1)
            };
            let speaker = neighbour
                .filter(|n| p.part < 1.0 && n.part >= 1.0)
                .unwrap_or(p);
            field(p.point)?;
            Some(rate(speaker)? * p.part * (p.point.time - p.begin))
        };
        let of_points: Option<f64> = inside.iter().enumerate().map(within).sum();
        // Power next to a missing end is taken to be that of the end.
        let held: Option<f64> = [first, last]
            .into_iter()
            .zip(missing)
            .map(|(p, s)| Some(rate(p)? * s))
            .sum();
        Some(of_points? + held?)
    };
    let by = |method: &str, joules| Energy {
        joules,
        method: method.to_owned(),
    };
    sum(|p| p.counter_joules)
        .map(|joules| by("counter", joules))
        .or_else(|| sum(|p| p.integrated_joules).map(|joules| by("integrated", joules)))
        .ok_or(NoEnergy::NotOfEveryDevice)
}

/// What a reader must know of the telemetry of the repeats that count.
pub(super) fn notes(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<RunFact> {
    let mut no_telemetry: Vec<(&NoTelemetry, Vec<u32>)> = Vec::new();
    let mut no_energy: Vec<(&NoEnergy, Vec<u32>)> = Vec::new();
    let mut lowered: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (repeat, _) in counted {
        if let Some(why) = &repeat.telemetry_absent {
            add(why, repeat.repeat, &mut no_telemetry);
        }
        let Some(telemetry) = &repeat.telemetry else {
            continue;
        };
        if let Some(why) = &telemetry.energy_absent {
            add(why, repeat.repeat, &mut no_energy);
        }
        for (reason, share) in &telemetry.throttled_share {
            lowered.entry(reason).or_default().push(*share);
        }
    }
    let clocks = |(reason, shares): (&str, Vec<f64>)| RunFact::ClocksLowered {
        reason: reason.to_owned(),
        low: shares.iter().copied().fold(f64::INFINITY, f64::min),
        high: shares.iter().copied().fold(0.0, f64::max),
        repeats: shares.len(),
        of: counted.len(),
    };
    let mut facts: Vec<RunFact> = lowered.into_iter().map(clocks).collect();
    facts.extend(
        no_energy
            .into_iter()
            .map(|(why, repeats)| RunFact::NoEnergy {
                repeats,
                why: why.clone(),
            }),
    );
    facts.extend(
        no_telemetry
            .into_iter()
            .map(|(why, repeats)| RunFact::NoTelemetry {
                repeats,
                why: why.clone(),
            }),
    );
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Statistics,
        sentences::said,
        stand_ins::{file, reading},
        summarize,
        summary::tests::run,
    };
    use tprimat_results::Reading;

    /// Ten steps of 3 s that end at 103, 106, …, 130; all at 500 W, after 10 s at 50 W.
    fn measured(change: impl Fn(f64, &mut Vec<Reading>)) -> RunResult {
        let mut result = run(&[3.0; 10]);
        result
            .trace
            .steps
            .iter_mut()
            .for_each(|s| s.ended_at = Some(100.0 + 3.0 * s.step as f64));
        result.started_at = Some(90.0);
        let lines: Vec<_> = (0..45)
            .map(|i| {
                let time = 90.0 + f64::from(i);
                let joules = if time <= 100.0 {
                    50.0 * (time - 90.0)
                } else {
                    500.0 + 500.0 * (time - 100.0)
                };
                let mut devices = vec![reading(
                    if time < 100.0 { 50.0 } else { 500.0 },
                    1e7 + joules,
                )];
                change(time, &mut devices);
                (time, devices)
            })
            .filter(|(_, devices)| !devices.is_empty())
            .collect();
        result.telemetry = Some(Samples::read(&file(1.0, 1, &lines)));
        result
    }

    fn of(result: RunResult, warmup_steps: u64) -> (Result<Telemetry, String>, Vec<String>) {
        let summary = summarize(&[(1, result)], &Statistics { warmup_steps });
        let repeat = &summary.repeats[0];
        let found = repeat.telemetry.clone().ok_or_else(|| {
            repeat
                .telemetry_absent
                .as_ref()
                .map(said)
                .unwrap_or_default()
        });
        (
            found,
            summary.notes.into_iter().map(|note| note.text()).collect(),
        )
    }

    fn energy_of(result: RunResult, warmup_steps: u64) -> Result<(f64, String), String> {
        let telemetry = of(result, warmup_steps).0?;
        let energy = telemetry.energy.ok_or_else(|| {
            telemetry
                .energy_absent
                .as_ref()
                .map(said)
                .unwrap_or_default()
        })?;
        Ok((energy.joules, energy.method))
    }

    #[track_caller]
    fn is_about(found: &Result<(f64, String), String>, joules: f64, method: &str) {
        let (value, by) = found.as_ref().unwrap();
        assert!(
            (value / joules - 1.0).abs() < 1e-6 && by == method,
            "{found:?}"
        );
    }

    #[test]
    fn the_counter_is_read_over_the_measured_steps_alone() {
        // Warm-up of 2: from 106 to 130, 24 s at 500 W.
        is_about(&energy_of(measured(|_, _| {}), 2), 12_000.0, "counter");
        let (telemetry, notes) = of(measured(|_, _| {}), 2);
        let telemetry = telemetry.unwrap();
        assert!(
            (telemetry.seconds - 24.0).abs() < 1e-9
                && (telemetry.mean_power_watts.unwrap() - 500.0).abs() < 1e-6
        );
        assert_eq!(
            (telemetry.power_series[0], telemetry.power_series.len()),
            ([0.5, 50.0], 44)
        );
        assert!(telemetry.max_memory_used_bytes.is_none() && telemetry.throttled.is_empty());
        assert!(
            !notes
                .iter()
                .any(|n| n.contains("telemetry") || n.contains("clocks")),
            "{notes:?}"
        );
        // Ends between two samples are interpolated: 100.25 to 130.25.
        let mut shifted = measured(|_, _| {});
        shifted
            .trace
            .steps
            .iter_mut()
            .for_each(|s| s.ended_at = s.ended_at.map(|t| t + 0.25));
        is_about(&energy_of(shifted, 0), 15_000.0, "counter");
    }

    #[test]
    fn what_the_device_does_after_the_last_step_is_not_of_it() {
        // The last step ends between two samples, and the counter stands still from there on.
        let idle = |time: f64, d: &mut Vec<Reading>| {
            if time > 129.5 {
                let at_end = d[0].energy_joules.map(|j| j - 500.0 * (time - 129.5));
                d[0].energy_joules = at_end;
            }
        };
        let mut early = measured(idle);
        early
            .trace
            .steps
            .iter_mut()
            .for_each(|s| s.ended_at = s.ended_at.map(|t| t - 0.25));
        is_about(&energy_of(early, 2), 12_000.0, "counter");
    }

    #[test]
    fn without_a_counter_power_is_integrated_and_a_reset_counter_is_none() {
        is_about(
            &energy_of(measured(|_, d| d[0].energy_joules = None), 2),
            12_000.0,
            "integrated",
        );
        let reset = |time, d: &mut Vec<Reading>| {
            if time > 120.0 {
                d[0].energy_joules = d[0].energy_joules.map(|j| j - 1e7)
            }
        };
        is_about(&energy_of(measured(reset), 2), 12_000.0, "integrated");
        // Before the measured part it does not matter.
        let early = |time, d: &mut Vec<Reading>| {
            if time < 95.0 {
                d[0].energy_joules = Some(9e9)
            }
        };
        is_about(&energy_of(measured(early), 2), 12_000.0, "counter");
    }

    #[test]
    fn what_is_missing_is_missing_and_says_why() {
        let nothing = |_, d: &mut Vec<Reading>| d[0] = Reading::default();
        assert!(
            energy_of(measured(nothing), 2)
                .unwrap_err()
                .contains("neither")
        );
        // A gap does not hurt a counter, but power is not guessed over it.
        let gap = |time: f64, d: &mut Vec<Reading>| {
            if (112.0..120.0).contains(&time) {
                d.clear()
            }
        };
        is_about(&energy_of(measured(gap), 2), 12_000.0, "counter");
        let gap_of_power = |time: f64, d: &mut Vec<Reading>| {
            d[0].energy_joules = None;
            gap(time, d);
        };
        assert!(
            energy_of(measured(gap_of_power), 2)
                .unwrap_err()
                .contains("neither")
        );
        let late = |time: f64, d: &mut Vec<Reading>| {
            if (102.0..110.0).contains(&time) {
                d.clear()
            }
        };
        assert!(
            energy_of(measured(late), 2)
                .unwrap_err()
                .contains("begins or ends")
        );
        let short = |time: f64, d: &mut Vec<Reading>| {
            if time > 120.0 {
                d.clear()
            }
        };
        assert!(
            energy_of(measured(short), 2)
                .unwrap_err()
                .contains("last 10.0 s")
        );
        let a_little_short = |time: f64, d: &mut Vec<Reading>| {
            if time > 129.0 {
                d.clear()
            }
        };
        is_about(&energy_of(measured(a_little_short), 2), 12_000.0, "counter");
        let mut unavailable = measured(|_, _| {});
        unavailable.telemetry = Some(Samples::none("no driver answers"));
        let (found, notes) = of(unavailable, 2);
        assert_eq!(found.unwrap_err(), "no driver answers");
        assert!(
            notes.contains(&"repeat 1: no telemetry: no driver answers".to_owned()),
            "{notes:?}"
        );
    }

    /// A run of so many seconds: the first 100 at 50 W, then 500 W; steps of 10 s from there on.
    fn long(seconds: u32) -> RunResult {
        let steps = seconds / 10 - 10;
        let mut result = run(&vec![10.0; steps as usize]);
        result
            .trace
            .steps
            .iter_mut()
            .for_each(|s| s.ended_at = Some(1100.0 + 10.0 * s.step as f64));
        result.started_at = Some(1000.0);
        let joules = |t: f64| 50.0 * t.min(100.0) + 500.0 * (t - 100.0).max(0.0);
        let lines: Vec<_> = (0..=seconds + 1)
            .map(f64::from)
            .map(|t| {
                (
                    1000.0 + t,
                    vec![reading(
                        if t < 100.0 { 50.0 } else { 500.0 },
                        1e7 + joules(t),
                    )],
                )
            })
            .collect();
        result.telemetry = Some(Samples::read(&file(1.0, 1, &lines)));
        result
    }

    #[test]
    fn long_runs_keep_the_energy_of_their_measured_steps() {
        for (seconds, stride) in [(3600, 8.0), (36_000, 128.0)] {
            // With the first step the measured part begins in the point in which the power changes.
            for warmup in [0, 5, 100] {
                let exact = 500.0 * f64::from(seconds - 100 - 10 * warmup);
                let (joules, method) = energy_of(long(seconds), u64::from(warmup)).unwrap();
                assert!(
                    (joules - exact).abs() <= stride * 450.0 && method == "counter",
                    "{seconds} {warmup}: {joules}"
                );
                assert!(
                    warmup == 0 || (joules / exact - 1.0).abs() < 5e-3,
                    "{seconds} {warmup}: {joules} {exact}"
                );
            }
        }
        // 100 s at the end of ten hours.
        let why = energy_of(long(36_000), 3580).unwrap_err();
        assert!(
            why.contains("too short a part") && !why.contains("without a sample"),
            "{why}"
        );
    }

    #[test]
    fn lines_that_were_held_back_date_nothing() {
        let mut held = measured(|_, _| {});
        held.trace
            .steps
            .iter_mut()
            .for_each(|s| s.ended_at = Some(130.0));
        assert!(
            of(held, 2)
                .0
                .unwrap_err()
                .contains("passed between their lines")
        );
        let mut undated = measured(|_, _| {});
        undated
            .trace
            .steps
            .iter_mut()
            .for_each(|s| s.ended_at = None);
        assert!(of(undated, 2).0.unwrap_err().contains("not known when"));
        // An evaluation of 20 s between two steps is no training.
        let mut paused = measured(|_, _| {});
        paused
            .trace
            .steps
            .iter_mut()
            .filter(|s| s.step > 5)
            .for_each(|s| s.ended_at = s.ended_at.map(|t| t + 20.0));
        assert!(of(paused, 2).0.is_err());
    }

    #[test]
    fn a_mean_over_k_steps_begins_k_steps_before_its_line() {
        let mut result = measured(|_, _| {});
        result.trace.steps.retain(|s| s.step.is_multiple_of(5));
        result
            .trace
            .steps
            .iter_mut()
            .for_each(|s| s.steps_averaged = Some(5));
        is_about(&energy_of(result, 0), 15_000.0, "counter");
    }

    #[test]
    fn lowered_clocks_are_told_with_their_share() {
        let lowered = |time: f64, d: &mut Vec<Reading>| {
            let capped = (106.5..112.5).contains(&time);
            d[0].throttled = Some(if capped {
                vec!["sw_power_cap".into()]
            } else {
                vec![]
            });
            (d[0].memory_used_bytes, d[0].temperature_celsius) = (Some(time as u64), Some(time));
            (d[0].utilization, d[0].clock_hz) = (Some(0.5), Some(1.5e9));
        };
        let (telemetry, notes) = of(measured(lowered), 2);
        let telemetry = telemetry.unwrap();
        assert_eq!(telemetry.throttled, ["sw_power_cap"]);
        assert!(
            (telemetry.throttled_share["sw_power_cap"] - 0.25).abs() < 1e-9,
            "{telemetry:?}"
        );
        assert_eq!(
            (
                telemetry.max_memory_used_bytes,
                telemetry.max_temperature_celsius
            ),
            (Some(130), Some(130.0))
        );
        assert_eq!(
            (telemetry.mean_utilization, telemetry.mean_clock_hz),
            (Some(0.5), Some(1.5e9))
        );
        // Samples of 107 s to 130 s, one a second.
        assert!(
            (telemetry.mean_memory_used_bytes.unwrap() - 118.5).abs() < 1.0,
            "{telemetry:?}"
        );
        assert!(
            notes.contains(&"ran at its power cap in 25 % of the samples".to_owned()),
            "{notes:?}"
        );
    }
}
