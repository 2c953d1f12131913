//! The lines of `telemetry.jsonl`, and what a result keeps of them.
//!
//! A result must not grow with the run, so samples are condensed to points. A point holds what
//! happened *since the point before it*: energies are sums, so condensing loses none of them, only
//! the times at which they are known.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Reason;

pub const TELEMETRY_SCHEMA: &str = "tprimat.telemetry/1";

/// Points that a result keeps at most; an even number, so that full points pair up.
const MAX_POINTS: usize = 512;
/// Power is not integrated over a longer time without a sample, in intervals.
const LONGEST_GAP: f64 = 3.5;

/// First line of `telemetry.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TelemetryHeader {
    /// `tprimat.telemetry/1`.
    pub schema: String,
    /// Who samples: `nvml`, `amd-smi`, `rocm-smi`.
    pub source: String,
    pub interval_seconds: f64,
    /// The run's devices, by their locks' names; readings stand in this order.
    pub devices: Vec<String>,
    /// Why nothing is sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Every further line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TelemetryLine {
    /// Seconds since 1970.
    pub time: f64,
    pub devices: Vec<Reading>,
}

impl TelemetryLine {
    /// All devices together; `None` where one of them does not tell.
    #[must_use]
    pub fn power_watts(&self) -> Option<f64> {
        let total = self
            .devices
            .iter()
            .map(|d| d.power_watts.filter(|w| w.is_finite()))
            .sum::<Option<f64>>();
        total.filter(|_| !self.devices.is_empty())
    }

    pub fn all_know(&self, what: impl Fn(&Reading) -> bool) -> bool {
        !self.devices.is_empty() && self.devices.iter().all(what)
    }
}

/// One device at one time; what its driver does not tell is absent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    pub power_watts: Option<f64>,
    /// Hardware counter, from whenever it began.
    pub energy_joules: Option<f64>,
    /// Memory in use by all processes on the device.
    pub memory_used_bytes: Option<u64>,
    pub clock_hz: Option<f64>,
    pub temperature_celsius: Option<f64>,
    /// 0 to 1.
    pub utilization: Option<f64>,
    /// Reasons for lowered clocks, in the driver's words; empty: none, absent: not told.
    pub throttled: Option<Vec<String>>,
    /// Processes on the device that are not the run's; empty: none, absent: not looked at, or not
    /// known.
    pub other_processes: Option<Vec<OtherProcess>>,
}

/// A process of somebody else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OtherProcess {
    pub pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a result keeps of the samples beside its run, all devices together.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Samples {
    pub source: String,
    pub interval_seconds: f64,
    /// Number of devices.
    pub devices: u64,
    /// Names of the devices' locks, `gpu-<uuid>`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_names: Vec<String>,
    /// Why there are none.
    pub unavailable: Option<Reason>,
    /// When the first sample was taken: seconds since 1970.
    pub begin: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<Point>,
}

/// What was sampled after the point before it (or `begin`), up to `time`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Seconds since 1970.
    pub time: f64,
    pub samples: u64,
    /// By the hardware counters; absent where one is missing or began anew.
    pub counter_joules: Option<f64>,
    /// Power over time, by trapezoids; absent where a power is missing or samples are too far
    /// apart.
    pub integrated_joules: Option<f64>,
    /// The most that one device had in use.
    pub max_memory_used_bytes: Option<u64>,
    /// Mean over devices and samples.
    pub memory_used_bytes: Option<f64>,
    pub max_temperature_celsius: Option<f64>,
    /// Mean over devices and samples, 0 to 1.
    pub utilization: Option<f64>,
    /// Mean over devices and samples.
    pub clock_hz: Option<f64>,
    /// Samples that tell whether clocks were lowered on any device.
    pub throttle_known: u64,
    /// In how many of them, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throttled: BTreeMap<String, u64>,
    /// Samples that tell which processes of others were on the devices, all of them.
    #[serde(default, skip_serializing_if = "is_none")]
    pub processes_known: u64,
}

pub fn is_none(n: &u64) -> bool {
    *n == 0
}

impl Samples {
    /// Reads `telemetry.jsonl`. Lines that cannot be read (a torn last one) are passed over, which
    /// leaves a gap.
    #[must_use]
    pub fn read(text: &[u8]) -> Self {
        let Some((header, lines)) = read_lines(text) else {
            let text = "telemetry.jsonl has no heading that this version reads";
            return Self::none(Reason::detail("no_heading", text));
        };
        let mut samples = Self {
            source: header.source,
            interval_seconds: header.interval_seconds,
            devices: header.devices.len() as u64,
            device_names: header.devices,
            unavailable: header.unavailable.map(|why| Reason::detail("sampler", why)),
            begin: None,
            points: Vec::new(),
        };
        let mut condensed = Condensed::default();
        let mut last: Option<TelemetryLine> = None;
        // The first sample ends no point; what it says belongs to the one that follows.
        let mut first: Option<Point> = None;
        for line in lines {
            let in_order = last.as_ref().is_none_or(|last| line.time > last.time);
            if !in_order {
                continue;
            }
            let point = point(last.as_ref(), &line, samples.interval_seconds);
            if last.is_none() {
                (samples.begin, first) = (Some(line.time), Some(point));
            } else {
                condensed.push(match first.take() {
                    Some(first) => Point {
                        counter_joules: point.counter_joules,
                        integrated_joules: point.integrated_joules,
                        ..join(&first, &point)
                    },
                    None => point,
                });
            }
            last = Some(line);
        }
        samples.points = condensed.points;
        if samples.unavailable.is_none() && samples.points.is_empty() {
            let text = "fewer than two samples were taken";
            samples.unavailable = Some(Reason::detail("few_samples", text));
        }
        samples
    }

    /// No samples, and why.
    #[must_use]
    pub fn none(why: impl Into<Reason>) -> Self {
        Self {
            unavailable: Some(why.into()),
            ..Self::default()
        }
    }
}

/// The heading of `telemetry.jsonl`, and those of its lines that can be read and speak of all
/// devices.
pub fn read_lines(text: &[u8]) -> Option<(TelemetryHeader, impl Iterator<Item = TelemetryLine>)> {
    let mut lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let header = lines
        .next()
        .and_then(|line| serde_json::from_slice::<TelemetryHeader>(line).ok());
    let header = header.filter(|h| h.schema == TELEMETRY_SCHEMA && h.interval_seconds > 0.0)?;
    let devices = header.devices.len();
    let lines = lines.filter_map(|line| serde_json::from_slice::<TelemetryLine>(line).ok());
    Some((
        header,
        lines.filter(move |line| line.time.is_finite() && line.devices.len() == devices),
    ))
}

/// Points of equal weight, but for the last one.
struct Condensed {
    points: Vec<Point>,
    /// Times between two samples that a point holds.
    stride: usize,
    /// How many of them the last point holds by now.
    held: usize,
}

impl Default for Condensed {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            stride: 1,
            held: 0,
        }
    }
}

impl Condensed {
    fn push(&mut self, point: Point) {
        if let Some(last) = self.points.last_mut().filter(|_| self.held < self.stride) {
            *last = join(last, &point);
            self.held += 1;
            return;
        }
        if self.points.len() == MAX_POINTS {
            self.points = self
                .points
                .chunks_exact(2)
                .map(|pair| join(&pair[0], &pair[1]))
                .collect();
            self.stride *= 2;
        }
        self.points.push(point);
        self.held = 1;
    }
}

/// What `line` says, and what happened since `last`.
fn point(last: Option<&TelemetryLine>, line: &TelemetryLine, interval: f64) -> Point {
    let all = |field: fn(&Reading) -> Option<f64>| -> Option<f64> {
        let values: Option<Vec<f64>> = line
            .devices
            .iter()
            .map(|d| field(d).filter(|v| v.is_finite()))
            .collect();
        values
            .filter(|v| !v.is_empty())
            .map(|v| v.iter().sum::<f64>() / v.len() as f64)
    };
    let known = line.all_know(|d| d.throttled.is_some());
    let reasons = line
        .devices
        .iter()
        .filter(|_| known)
        .flat_map(|d| d.throttled.iter().flatten());
    Point {
        time: line.time,
        samples: 1,
        counter_joules: last.and_then(|last| counted(last, line)),
        integrated_joules: last.and_then(|last| integrated(last, line, interval)),
        max_memory_used_bytes: line
            .devices
            .iter()
            .filter_map(|d| d.memory_used_bytes)
            .max(),
        memory_used_bytes: all(|d| d.memory_used_bytes.map(|bytes| bytes as f64)),
        max_temperature_celsius: line
            .devices
            .iter()
            .filter_map(|d| d.temperature_celsius)
            .reduce(f64::max),
        utilization: all(|d| d.utilization),
        clock_hz: all(|d| d.clock_hz),
        throttle_known: u64::from(known),
        throttled: reasons.map(|reason| (reason.clone(), 1)).collect(),
        processes_known: u64::from(line.all_know(|d| d.other_processes.is_some())),
    }
}

fn counted(last: &TelemetryLine, line: &TelemetryLine) -> Option<f64> {
    let mut pairs = Vec::with_capacity(line.devices.len());
    for (before, after) in last.devices.iter().zip(&line.devices) {
        let pair = (before.energy_joules?, after.energy_joules?);
        // A counter that goes back wrapped round or began anew: by how much, nobody knows.
        if !pair.0.is_finite() || !pair.1.is_finite() || pair.1 < pair.0 {
            return None;
        }
        pairs.push(pair);
    }
    // Two devices with one and the same counter share it (dies of a module), and each its own
    // cannot be told.
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let is_shared = pairs.windows(2).any(|pair| pair[0] == pair[1]);
    let joules = pairs
        .iter()
        .map(|(before, after)| after - before)
        .sum::<f64>();
    // No device that is switched on uses nothing for a second: such a counter does not count.
    (joules > 0.0 && !is_shared).then_some(joules)
}

fn integrated(last: &TelemetryLine, line: &TelemetryLine, interval: f64) -> Option<f64> {
    let seconds = line.time - last.time;
    let total = |line: &TelemetryLine| -> Option<f64> {
        line.devices
            .iter()
            .map(|d| d.power_watts.filter(|w| w.is_finite() && *w >= 0.0))
            .sum()
    };
    let watts = (total(last)? + total(line)?) / 2.0;
    (seconds <= LONGEST_GAP * interval && !line.devices.is_empty()).then_some(watts * seconds)
}

/// Two neighbours as one point.
fn join(a: &Point, b: &Point) -> Point {
    let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
    let all = (a.samples + b.samples) as f64;
    let mean = |x: Option<f64>, y: Option<f64>| {
        Some((x? * a.samples as f64 + y? * b.samples as f64) / all)
    };
    let mut throttled = a.throttled.clone();
    b.throttled
        .iter()
        .for_each(|(reason, n)| *throttled.entry(reason.clone()).or_default() += n);
    Point {
        time: b.time,
        samples: a.samples + b.samples,
        counter_joules: sum(a.counter_joules, b.counter_joules),
        integrated_joules: sum(a.integrated_joules, b.integrated_joules),
        max_memory_used_bytes: a.max_memory_used_bytes.max(b.max_memory_used_bytes),
        memory_used_bytes: mean(a.memory_used_bytes, b.memory_used_bytes),
        max_temperature_celsius: [a, b]
            .iter()
            .filter_map(|p| p.max_temperature_celsius)
            .reduce(f64::max),
        utilization: mean(a.utilization, b.utilization),
        clock_hz: mean(a.clock_hz, b.clock_hz),
        throttle_known: a.throttle_known + b.throttle_known,
        throttled,
        processes_known: a.processes_known + b.processes_known,
    }
}

#[cfg(test)]
mod tests;
