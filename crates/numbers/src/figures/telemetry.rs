//! What was sampled beside a run, over its measured steps.
//!
//! When those were follows from the log: a step ended when its line was written (or when the
//! trainer says so), and the first measured one began its own time before that. If that time on the
//! clock is not what the steps' times add up to, lines were held back or something else ran in
//! between, and then nothing is said of energy.

use std::collections::BTreeMap;

use crate::results::{
    Point, Reason, RunResult, Samples, telemetry_samples::is_none, words::repeats,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use tprimat_logs::Step;

use super::{
    Note, RepeatSummary, clock,
    summary::notes::{by_repeat, remark},
};

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

/// What was sampled during one run's measured part. What the sampler could not read is absent.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Telemetry {
    /// Who sampled: `nvml`, `amd-smi`, `rocm-smi`.
    pub source: String,
    /// Devices sampled: those that the run owned.
    pub devices: u64,
    /// Length of the measured part by the clock, in seconds.
    pub seconds: f64,
    /// GPU board energy of all devices.
    pub energy: Option<Energy>,
    /// Why there is no energy.
    pub energy_absent: Option<Reason>,
    /// The sum over all devices.
    pub mean_power_watts: Option<f64>,
    /// The most that one device had in use, of whatever process.
    pub max_memory_used_bytes: Option<u64>,
    /// Mean over devices and samples of what a device had in use, of whatever process.
    pub mean_memory_used_bytes: Option<f64>,
    /// From 0 to 1, the mean over all devices.
    pub mean_utilization: Option<f64>,
    pub mean_clock_hz: Option<f64>,
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
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Energy {
    pub joules: f64,
    /// `counter`: difference of the hardware counter; `integrated`: power over time.
    pub method: String,
}

/// The telemetry of a run's measured steps, or why there is none; `None` where nothing was to be
/// sampled.
pub(super) fn of_run(
    result: &RunResult,
    is_measured: impl Fn(&Step) -> bool,
) -> Option<Result<Telemetry, Reason>> {
    let samples = result.telemetry.as_ref()?;
    if let Some(why) = &samples.unavailable {
        return Some(Err(why.clone()));
    }
    let window = window(result.trace.steps.iter().filter(|s| is_measured(s)));
    Some(window.map(|window| of_window(samples, window)))
}

/// When the measured steps began and ended: seconds since 1970.
pub(super) fn window<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<[f64; 2], Reason> {
    let timed = clock::timed(steps);
    let (first, last) = timed
        .first()
        .zip(timed.last())
        .ok_or_else(|| Reason::detail("no_step_is_measured", "no step is measured"))?;
    let measured: f64 = timed.iter().map(|t| t.seconds).sum();
    let (begin, end) = first.line.ended_at.zip(last.line.ended_at).ok_or_else(|| {
        let text = "it is not known when the measured steps ended";
        Reason::detail("ends_not_known", text)
    })?;
    let begin = begin - first.seconds;
    let passed = end - begin;
    if !((passed - measured).abs() <= (TOLERANCE * measured).max(TOLERANCE_SECONDS) && passed > 0.0)
    {
        let text = format!(
            "the measured steps take {measured:.1} s, but {passed:.1} s passed between their lines in the log"
        );
        return Err(Reason::detail("clock_disagrees", text));
    }
    Ok([begin, end])
}

/// A point with the time at which it begins, and the part of it that lies in the window.
struct Piece<'a> {
    point: &'a Point,
    begin: f64,
    part: f64,
}

fn of_window(samples: &Samples, window: [f64; 2]) -> Telemetry {
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
    // A point counts by the part of it that lies inside; one without the value does not count.
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
    }
}

fn energy(inside: &[&Piece<'_>], window: [f64; 2], interval: f64) -> Result<Energy, Reason> {
    let seconds = window[1] - window[0];
    if seconds < SHORTEST * interval {
        let text = format!("{seconds:.1} s are too short for samples every {interval:.0} s");
        return Err(Reason::detail("too_short", text));
    }
    let (Some(first), Some(last)) = (inside.first(), inside.last()) else {
        let text = "no sample was taken while the steps were measured";
        return Err(Reason::detail("no_sample", text));
    };
    let missing = [first.begin - window[0], window[1] - last.point.time].map(|s| s.max(0.0));
    let is_too_long = |seconds: f64| seconds > HELD * interval;
    for (which, seconds) in ["first", "last"].into_iter().zip(missing) {
        if is_too_long(seconds) {
            let text =
                format!("no sample was taken in the {which} {seconds:.1} s of the measured part");
            return Err(Reason::detail("no_sample_at_an_end", text));
        }
    }
    for end in [first, last] {
        let length = end.point.time - end.begin;
        if end.part < 1.0 && length > (END_INTERVALS * interval).max(END_PART * seconds) {
            if length <= END_INTERVALS * interval * end.point.samples as f64 {
                let text = format!(
                    "{seconds:.1} s are too short a part of so long a run: its samples are kept in sums over {length:.0} s"
                );
                return Err(Reason::detail("sums_too_long", text));
            }
            let text =
                format!("the measured part begins or ends in {length:.1} s without a sample");
            return Err(Reason::detail("gap_at_an_end", text));
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
        .ok_or_else(|| {
            let text =
                "neither the energy counter nor the power of every device is known throughout";
            Reason::detail("not_of_every_device", text)
        })
}

/// What a reader must know of the telemetry of the repeats that count.
pub(super) fn notes(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut lowered: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let telemetry = counted.iter().filter_map(|(r, _)| r.telemetry.as_ref());
    for (reason, share) in telemetry.flat_map(|telemetry| &telemetry.throttled_share) {
        lowered.entry(reason).or_default().push(*share);
    }
    let clocks = |(reason, shares): (&str, Vec<f64>)| {
        let high = shares.iter().copied().fold(0.0, f64::max) * 100.0;
        let of = if shares.len() == counted.len() {
            String::new()
        } else {
            format!(" of {} of {} repeats", shares.len(), counted.len())
        };
        let text = if reason == "sw_power_cap" {
            format!("ran at its power cap in {high:.0} % of the samples{of}")
        } else {
            format!("clocks were lowered ({reason}) in {high:.0} % of the samples{of}")
        };
        remark("clocks_lowered", text).with("reason", reason)
    };
    let mut notes: Vec<Note> = lowered.into_iter().map(clocks).collect();
    let absent = counted.iter().filter_map(|(repeat, _)| {
        let energy = |telemetry: &Telemetry| telemetry.energy_absent.clone();
        let why = match &repeat.telemetry_absent {
            Some(why) => ("no_telemetry", "telemetry", why.clone()),
            None => (
                "no_energy",
                "energy",
                repeat.telemetry.as_ref().and_then(energy)?,
            ),
        };
        Some((repeat.repeat, why))
    });
    notes.extend(by_repeat(absent, |(code, what, why), of| {
        let text = format!("{}: no {what}: {why}", repeats(of));
        remark(code, text).with("why", &*why.code)
    }));
    notes
}

#[cfg(test)]
mod tests;
