//! Where the time of a step goes, from a profiler's trace of the device.

use std::{collections::BTreeMap, sync::LazyLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_logs::{DeviceSpan, DeviceTrace};

/// What a device does at one moment.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StepPart {
    MatrixProducts,
    Attention,
    NormsAndElementwise,
    Optimizer,
    /// Collectives while nothing else computes.
    Exchange,
    /// Copies and fills of memory while nothing else runs.
    Copies,
    /// Kernels that no row of kernels.toml knows.
    Other,
    /// Nothing runs: launches that come late, data that is waited for.
    Idle,
}

impl StepPart {
    pub const ALL: [Self; 8] = [
        Self::MatrixProducts,
        Self::Attention,
        Self::NormsAndElementwise,
        Self::Optimizer,
        Self::Exchange,
        Self::Copies,
        Self::Other,
        Self::Idle,
    ];

    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::MatrixProducts => "matrix products",
            Self::Attention => "attention",
            Self::NormsAndElementwise => "norms and element-wise",
            Self::Optimizer => "optimizer",
            Self::Exchange => "exchange, exposed",
            Self::Copies => "copies",
            Self::Other => "other kernels",
            Self::Idle => "idle",
        }
    }

    fn at(self) -> usize {
        self as usize
    }

    /// What a kernel of this name does: docs/answers.md, "Kernels".
    #[must_use]
    pub fn of_kernel(name: &str) -> Self {
        let name = name.to_lowercase();
        let has = |row: &&KernelRow| row.names.iter().any(|part| name.contains(part.as_str()));
        KERNELS.iter().find(has).map_or(Self::Other, |row| row.part)
    }
}

#[derive(Deserialize)]
struct KernelRow {
    part: StepPart,
    names: Vec<String>,
}

static KERNELS: LazyLock<Vec<KernelRow>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Table {
        kernels: Vec<KernelRow>,
    }
    let table: Table = toml::from_str(include_str!("kernels.toml")).expect("kernels.toml is right");
    table.kernels
});

/// A step's time, divided. The parts add up to the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Breakdown {
    /// Steps that the trace spans.
    pub steps: usize,
    /// Are these steps that the trace marks, or that whoever made it counted? Otherwise all times are of the
    /// whole trace.
    pub is_by_step: bool,
    /// How long a step took under the profiler: the median, if the trace shows where each step begins on
    /// the device, else the mean.
    pub step_seconds: f64,
    /// The shortest and the longest step; absent where the times of single steps are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_range_seconds: Option<[f64; 2]>,
    /// How long a step of the same cell takes without a profiler; absent where it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_step_seconds: Option<f64>,
    /// Every part, in the order of [`StepPart::ALL`].
    pub parts: Vec<PartTime>,
    /// Time of a step in which the device computed and a collective ran beside it. It is in the parts that
    /// computed, and not in that of exchange.
    pub hidden_exchange_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartTime {
    pub part: StepPart,
    /// Seconds of the step that count as this part.
    pub seconds: f64,
    /// Those of them in which a collective ran beside it, which takes a part of the device from its kernels.
    #[serde(default)]
    pub beside_exchange_seconds: f64,
    /// The kernels that take most of it.
    pub largest: Vec<KernelTime>,
}

/// One kernel, over a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelTime {
    pub name: String,
    /// Seconds of the step in which it ran, also while other kernels did.
    pub seconds: f64,
    /// How often it was launched in the step.
    pub launches: f64,
}

/// So many kernels of a part are named.
const NAMED: usize = 3;

/// One end of a span.
#[derive(Clone, Copy)]
struct End {
    at: f64,
    part: StepPart,
    starts: bool,
}

impl Breakdown {
    /// At each moment of a step the device does what computes; collectives and copies count where nothing
    /// does. Where several kernels compute at once, they share the moment. The step is the one whose time is
    /// the median, or the mean of the two in the middle, so that a step that was disturbed is in no part. A
    /// trace that marks no steps has as many as are `counted`.
    #[must_use]
    pub fn of(trace: &DeviceTrace, counted: Option<usize>) -> Self {
        let (mut windows, marked) = windows(trace);
        let steps = marked.or(counted);
        let is_by_step = steps.is_some();
        let steps = steps.unwrap_or(1);
        let length = |window: &[f64; 2]| window[1] - window[0];
        windows.sort_by(|a, b| length(a).total_cmp(&length(b)));
        let range = match &windows[..] {
            [first, .., last] => Some([first, last].map(|window| length(window) / 1e6)),
            _ => None,
        };
        let of_window = steps / windows.len();
        let middle = &windows[(windows.len() - 1) / 2..=windows.len() / 2];
        let per_step = |micros: f64| micros / 1e6 / (of_window * middle.len()) as f64;
        let (mut micros, mut beside) = ([0.0; 8], [0.0; 8]);
        let mut by_name = BTreeMap::new();
        for window in middle {
            let ends = ends(trace, *window, &mut by_name);
            shares(ends, *window, &mut micros, &mut beside);
        }
        let largest = |part: StepPart| {
            let of_part = by_name.iter().filter(|((of, _), _)| *of == part);
            let mut all: Vec<KernelTime> = of_part
                .map(|((_, name), (micros, launches))| KernelTime {
                    name: trace.names[*name].clone(),
                    seconds: per_step(*micros),
                    launches: launches / (of_window * middle.len()) as f64,
                })
                .collect();
            all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
            all.truncate(NAMED);
            all
        };
        Self {
            steps,
            is_by_step,
            step_seconds: per_step(middle.iter().map(length).sum()),
            step_range_seconds: range,
            measured_step_seconds: None,
            parts: StepPart::ALL
                .map(|part| PartTime {
                    part,
                    seconds: per_step(micros[part.at()]),
                    beside_exchange_seconds: per_step(beside[part.at()]),
                    largest: largest(part),
                })
                .into(),
            hidden_exchange_seconds: per_step(beside.iter().sum()),
        }
    }
}

/// For each kernel of each part: how many microseconds it ran, and how often it was launched.
type Kernels = BTreeMap<(StepPart, usize), (f64, f64)>;

/// The ends of what ran in a window.
fn ends(trace: &DeviceTrace, window: [f64; 2], by_name: &mut Kernels) -> Vec<End> {
    let kinds: Vec<StepPart> = trace.names.iter().map(|n| StepPart::of_kernel(n)).collect();
    let mut ends = Vec::new();
    for span in &trace.spans {
        let [start, end] = [span.start.max(window[0]), span.end.min(window[1])];
        if end <= start {
            continue;
        }
        let part = match kinds[span.name] {
            _ if span.is_copy => of_copy(&trace.names[span.name]),
            StepPart::Exchange => StepPart::Exchange,
            _ if span.is_of_optimizer => StepPart::Optimizer,
            by_name => by_name,
        };
        let (micros, launches) = by_name.entry((part, span.name)).or_default();
        (*micros, *launches) = (*micros + end - start, *launches + 1.0);
        let end_of = |at, starts| End { at, part, starts };
        ends.extend([end_of(start, true), end_of(end, false)]);
    }
    ends
}

/// A copy from one device to another is exchange, which copy engines do for symmetric memory and pipelines.
fn of_copy(name: &str) -> StepPart {
    match ["PtoP", "Peer-to-Peer"]
        .iter()
        .any(|way| name.contains(way))
    {
        true => StepPart::Exchange,
        false => StepPart::Copies,
    }
}

/// The profiled time, and how many steps it is: a window for each of them where it is known when each begins on
/// the device, else one for all. By the device's own marks a step goes from where it begins to where the next one
/// does, so the gap between steps is in it; a mark that is alone goes from its first kernel on for as long as the
/// host's mark, if that is longer than up to its last kernel. By the host's marks all of them go from the first to
/// the end of the last, or of what the device does after it: the host may have gone ahead.
fn windows(trace: &DeviceTrace) -> (Vec<[f64; 2]>, Option<usize>) {
    let between = |marks: &[[f64; 2]]| marks.windows(2).map(|two| [two[0][0], two[1][0]]).collect();
    if let [_, .., _] = &trace.device_steps[..] {
        let windows: Vec<[f64; 2]> = between(&trace.device_steps);
        let count = windows.len();
        return (windows, Some(count));
    }
    // The host's marks would take in what is left of a step before it.
    if let [alone] = trace.device_steps[..] {
        let host = match trace.steps[..] {
            [[begin, end]] => end - begin,
            _ => 0.0,
        };
        return (vec![[alone[0], alone[1].max(alone[0] + host)]], Some(1));
    }
    let spans = trace.spans.iter();
    let end = spans
        .clone()
        .map(|s| s.end)
        .fold(f64::NEG_INFINITY, f64::max);
    if let (Some(first), Some(last)) = (trace.steps.first(), trace.steps.last()) {
        let mut windows: Vec<[f64; 2]> = between(&trace.steps);
        windows.push(*last);
        // Where the host waits for the device in each step, nothing runs at its marks.
        let is_at_a_mark = |span: &DeviceSpan| {
            let begun = trace.steps.partition_point(|mark| mark[0] <= span.start);
            trace
                .steps
                .get(begun)
                .is_some_and(|next| next[0] < span.end)
        };
        let is_apart = end <= last[1] && !spans.clone().any(is_at_a_mark);
        if !is_apart {
            windows = vec![[first[0], last[1].max(end)]];
        }
        return (windows, Some(trace.steps.len()));
    }
    let start = spans.map(|s| s.start).fold(f64::INFINITY, f64::min);
    (vec![[start, end]], None)
}

/// Adds the microseconds of each part, and those of them that a collective ran beside.
fn shares(mut ends: Vec<End>, window: [f64; 2], micros: &mut [f64; 8], beside: &mut [f64; 8]) {
    ends.sort_by(|a, b| a.at.total_cmp(&b.at));
    let mut running = [0_u32; 8];
    let mut from = window[0];
    let last = End {
        at: window[1],
        part: StepPart::Idle,
        starts: false,
    };
    for end in ends.iter().chain([&last]) {
        let passed = end.at - from;
        from = end.at;
        let [exchange, copies] = [StepPart::Exchange, StepPart::Copies].map(|p| running[p.at()]);
        let computing = running.iter().sum::<u32>() - exchange - copies;
        if computing > 0 {
            for part in StepPart::ALL {
                if !matches!(part, StepPart::Exchange | StepPart::Copies) {
                    let share = f64::from(running[part.at()]) / f64::from(computing);
                    micros[part.at()] += passed * share;
                    if exchange > 0 {
                        beside[part.at()] += passed * share;
                    }
                }
            }
        } else {
            let part = match (exchange, copies) {
                (1.., _) => StepPart::Exchange,
                (_, 1..) => StepPart::Copies,
                _ => StepPart::Idle,
            };
            micros[part.at()] += passed;
        }
        match (end.starts, end.part) {
            (_, StepPart::Idle) => {}
            (true, part) => running[part.at()] += 1,
            (false, part) => running[part.at()] -= 1,
        }
    }
}

#[cfg(test)]
mod tests;
