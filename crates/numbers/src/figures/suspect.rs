//! Was a run disturbed? Judged once, when it has ended, by what was sampled over its measured part;
//! the judgement is stored with the attempt, so that a plan needs no log and no later version
//! changes what was decided (docs/METRICS.md).

use std::collections::{BTreeMap, BTreeSet};

use crate::results::{OtherProcess, RunResult, TelemetryLine, telemetry_samples::read_lines};

use super::{Statistics, summary::measured_part};

/// The hardware protects itself, or its host is too warm. The power cap is not among them: at full
/// load it is how a device works. Nor is `hw_slowdown`: it is told with either of the first two,
/// and also of a mere change of clocks.
const SLOWDOWNS: &[&str] = &[
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
];
/// In more than this part of the samples, and in so many at least, a slowdown makes a run suspect.
const SHARE: f64 = 0.05;
const LEAST: usize = 2;

/// Whatever in a run's samples could make it suspect.
#[derive(Clone, Debug)]
pub struct Signs {
    /// By their locks' names.
    devices: Vec<String>,
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    time: f64,
    /// Which slowdowns were active on any device; `None`: that is not known of all devices.
    slowdowns: Option<BTreeSet<&'static str>>,
    /// Positions of devices, and who else was on each.
    others: Vec<(usize, OtherProcess)>,
}

impl Signs {
    /// From `telemetry.jsonl`. None: nothing in it could make a run suspect, so that nobody need
    /// read the log.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Self> {
        let (header, lines) = read_lines(text)?;
        let samples: Vec<Sample> = lines.map(|line| Sample::of(&line)).collect();
        let could = |s: &Sample| {
            !s.others.is_empty() || s.slowdowns.as_ref().is_some_and(|found| !found.is_empty())
        };
        samples.iter().any(could).then_some(Self {
            devices: header.devices,
            samples,
        })
    }

    /// What makes the run suspect, if anything: `its GPU gpu-1b2c3d4e was also used by process 4711
    /// (python3)`. One that does not count anyway is not; where it is not known when its measured
    /// part was, nothing is held against it.
    #[must_use]
    pub fn judge(&self, result: &RunResult, statistics: &Statistics) -> Option<String> {
        let [begin, end] = measured_part(result, statistics)?;
        let inside: Vec<&Sample> = self
            .samples
            .iter()
            .filter(|s| (begin..=end).contains(&s.time))
            .collect();
        let all: Vec<String> = self
            .shared(&inside)
            .into_iter()
            .chain(slowed(&inside))
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Who else was on the run's devices at any time, from its start to its end.
    #[must_use]
    pub fn others(&self) -> Option<String> {
        self.shared(&self.samples.iter().collect::<Vec<_>>())
    }

    fn shared(&self, inside: &[&Sample]) -> Option<String> {
        let mut used: BTreeMap<&OtherProcess, BTreeSet<usize>> = BTreeMap::new();
        for (device, process) in inside.iter().flat_map(|s| &s.others) {
            used.entry(process).or_default().insert(*device);
        }
        let shared: BTreeSet<usize> = used.values().flatten().copied().collect();
        let process = used.keys().next()?;
        let whose = match shared.first() {
            Some(one) if shared.len() == 1 => {
                format!("its GPU {} was", short_name(self.devices.get(*one)?))
            }
            _ => format!("{} of its {} GPUs were", shared.len(), self.devices.len()),
        };
        let name = process.name.as_ref();
        let name = name.map_or_else(String::new, |name| format!(" ({})", plain(name)));
        let more = match used.len() - 1 {
            0 => String::new(),
            1 => " and another process".to_owned(),
            n => format!(" and {n} other processes"),
        };
        let pid = process.pid;
        Some(format!("{whose} also used by process {pid}{name}{more}"))
    }
}

/// Whose memory stands in the way, by PyTorch's own words in the log of a run that had too little.
/// None where it does not tell its own share as well: in a container it does not know its number.
#[must_use]
pub fn memory_of_others(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log);
    // Ranks may use memory on each other's devices. A launcher that ends with them tells their
    // numbers.
    let is_own = |pid: &str| {
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        text.match_indices(pid).any(|(at, _)| {
            let (before, rest) = text.split_at(at);
            let after = rest.strip_prefix(pid).unwrap_or_default();
            let is_whole = !is_part(before.chars().next_back()) && !is_part(after.chars().next());
            is_whole
                && (["pid: ", "Killing subprocess "]
                    .iter()
                    .any(|word| before.ends_with(word))
                    || after.starts_with(" closing signal"))
        })
    };
    let mut asked = BTreeSet::new();
    let told = text
        .lines()
        .filter(|line| line.contains("out of memory") && line.contains("this process has "));
    told.flat_map(|line| line.split("Process ").skip(1))
        .find_map(|told| {
            let (pid, rest) = told.split_once(" has ")?;
            let (used, _) = rest.split_once(" memory in use")?;
            let is_told = pid.parse::<u32>().is_ok()
                && used.split(' ').count() == 2
                && asked.insert(pid)
                && !is_own(pid);
            let used = plain(used);
            is_told.then(|| format!("process {pid} had {used} of its GPU's memory"))
        })
}

/// How often clocks were lowered, if often enough.
fn slowed(inside: &[&Sample]) -> Option<String> {
    let known: Vec<&BTreeSet<&str>> = inside.iter().filter_map(|s| s.slowdowns.as_ref()).collect();
    let slowed: Vec<&&BTreeSet<&str>> = known.iter().filter(|found| !found.is_empty()).collect();
    let share = slowed.len() as f64 / known.len() as f64;
    if slowed.len() < LEAST || share <= SHARE {
        return None;
    }
    let names: BTreeSet<&str> = slowed
        .iter()
        .flat_map(|found| found.iter().copied())
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    Some(format!(
        "clocks were lowered ({}) in {:.0} % of the samples",
        names.join(", "),
        share * 100.0
    ))
}

impl Sample {
    fn of(line: &TelemetryLine) -> Self {
        let told = line
            .devices
            .iter()
            .flat_map(|d| d.throttled.iter().flatten());
        let found = told
            .filter_map(|reason| SLOWDOWNS.iter().find(|known| *known == reason).copied())
            .collect();
        let others = line.devices.iter().enumerate();
        Self {
            time: line.time,
            slowdowns: line.all_know(|d| d.throttled.is_some()).then_some(found),
            others: others
                .flat_map(|(i, d)| {
                    d.other_processes
                        .iter()
                        .flatten()
                        .map(move |p| (i, p.clone()))
                })
                .collect(),
        }
    }
}

/// The part of a device's name that tells it apart: `gpu-1b2c3d4e`.
fn short_name(device: &str) -> String {
    const UUID: usize = 36;
    let shown = match device.strip_prefix("gpu-") {
        Some(uuid) if uuid.len() == UUID => device.split('-').take(2).collect::<Vec<_>>().join("-"),
        _ => device.to_owned(),
    };
    plain(&shown)
}

/// What others wrote, without what a terminal would heed, and not too long.
fn plain(text: &str) -> String {
    const MOST: usize = 40;
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(MOST)
        .collect()
}

#[cfg(test)]
mod tests;
