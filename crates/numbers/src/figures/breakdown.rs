//! Where the time of a step goes, from a profiler's trace of the device.

use std::{collections::BTreeMap, sync::LazyLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tprimat_logs::DeviceTrace;

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
    /// How long a step took under the profiler, the mean over these steps.
    pub step_seconds: f64,
    /// How long a step of the same cell takes without a profiler; absent where it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_step_seconds: Option<f64>,
    /// Every part, in the order of [`StepPart::ALL`].
    pub parts: Vec<PartTime>,
    /// Collectives of a step that ran while the device computed.
    pub hidden_exchange_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartTime {
    pub part: StepPart,
    /// Seconds of each step that count as this part, the mean over the profiled steps.
    pub seconds: f64,
    /// The kernels that take most of it.
    pub largest: Vec<KernelTime>,
}

/// One kernel, over a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelTime {
    pub name: String,
    /// Seconds of each step in which it ran, also while other kernels did.
    pub seconds: f64,
    /// How often it was launched in each step, the mean over the profiled steps.
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
    /// At each moment of the profiled steps the device does what computes; collectives and copies count
    /// where nothing does. Where several kernels compute at once, they share the moment. A trace that marks
    /// no steps has as many as are `counted`.
    #[must_use]
    pub fn of(trace: &DeviceTrace, counted: Option<usize>) -> Self {
        let (window, marked) = window(trace);
        let steps = marked.or(counted);
        let is_by_step = steps.is_some();
        let steps = steps.unwrap_or(1);
        let per_step = |micros: f64| micros / 1e6 / steps as f64;
        let kinds: Vec<StepPart> = trace.names.iter().map(|n| StepPart::of_kernel(n)).collect();
        let mut ends = Vec::with_capacity(2 * trace.spans.len());
        let mut by_name: BTreeMap<(StepPart, usize), (f64, f64)> = BTreeMap::new();
        for span in &trace.spans {
            let [start, end] = [span.start.max(window[0]), span.end.min(window[1])];
            if end <= start {
                continue;
            }
            let part = match kinds[span.name] {
                _ if span.is_copy => StepPart::Copies,
                StepPart::Exchange => StepPart::Exchange,
                _ if span.is_of_optimizer => StepPart::Optimizer,
                by_name => by_name,
            };
            let (micros, launches) = by_name.entry((part, span.name)).or_default();
            (*micros, *launches) = (*micros + end - start, *launches + 1.0);
            let end_of = |at, starts| End { at, part, starts };
            ends.extend([end_of(start, true), end_of(end, false)]);
        }
        let (micros, hidden) = shares(ends, window);
        let largest = |part: StepPart| {
            let of_part = by_name.iter().filter(|((of, _), _)| *of == part);
            let mut all: Vec<KernelTime> = of_part
                .map(|((_, name), (micros, launches))| KernelTime {
                    name: trace.names[*name].clone(),
                    seconds: per_step(*micros),
                    launches: launches / steps as f64,
                })
                .collect();
            all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
            all.truncate(NAMED);
            all
        };
        Self {
            steps,
            is_by_step,
            step_seconds: per_step(window[1] - window[0]),
            measured_step_seconds: None,
            parts: StepPart::ALL
                .map(|part| PartTime {
                    part,
                    seconds: per_step(micros[part.at()]),
                    largest: largest(part),
                })
                .into(),
            hidden_exchange_seconds: per_step(hidden),
        }
    }
}

/// The profiled time, and how many steps it is. By the device's own marks it goes from where one step begins
/// to where another does, so the gap between steps is in it; a mark that is alone goes from its first kernel on for as long as
/// the host's mark, if that is longer than up to its last kernel. By the host's it goes from the first to the end of
/// the last, or of what the device does after it: the host may have gone ahead.
fn window(trace: &DeviceTrace) -> ([f64; 2], Option<usize>) {
    if let [first, .., last] = &trace.device_steps[..] {
        return ([first[0], last[0]], Some(trace.device_steps.len() - 1));
    }
    // The host's marks would take in what is left of a step before it.
    if let [alone] = trace.device_steps[..] {
        let host = match trace.steps[..] {
            [[begin, end]] => end - begin,
            _ => 0.0,
        };
        return ([alone[0], alone[1].max(alone[0] + host)], Some(1));
    }
    let end = trace
        .spans
        .iter()
        .map(|s| s.end)
        .fold(f64::NEG_INFINITY, f64::max);
    if let (Some(first), Some(last)) = (trace.steps.first(), trace.steps.last()) {
        return ([first[0], last[1].max(end)], Some(trace.steps.len()));
    }
    let start = trace
        .spans
        .iter()
        .map(|s| s.start)
        .fold(f64::INFINITY, f64::min);
    ([start, end], None)
}

/// Microseconds of each part, and those of collectives that were hidden.
fn shares(mut ends: Vec<End>, window: [f64; 2]) -> ([f64; 8], f64) {
    ends.sort_by(|a, b| a.at.total_cmp(&b.at));
    let (mut micros, mut hidden) = ([0.0; 8], 0.0);
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
                }
            }
            hidden += if exchange > 0 { passed } else { 0.0 };
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
    (micros, hidden)
}

#[cfg(test)]
mod tests;
