//! What a build would cost: GPU-hours and money of every stale run, and how each figure is known.
//!
//! Order of belief: how long attempts at the cell's present keys took; how long earlier attempts
//! under its name took, whose key was another, scaled by tokens per device; a model, FLOPs of the
//! job ÷ ([`ASSUMED_MFU`] × dense peak × GPUs) + [`STARTUP_SECONDS`]. Where none of them is to be
//! had, there is no figure. See docs/METRICS.md, "Price of a plan".

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cache::{Entry, TaskKind},
    config::{Values, schema::Platform, vendor_names},
    digest::Digest,
    figures::{Catalogue, Price, accelerators_like},
    graph::{Engine, State, Statuses, Task, TaskId, label},
    job::{Job, RunOutcome, Vendor},
    matrix::CellId,
    plan::{self, preimage},
    results::flops_per_token,
};

/// Model FLOPs utilisation that a run is assumed to reach where nothing was measured; below most of
/// what is published.
pub const ASSUMED_MFU: f64 = 0.35;
/// From launch to the first step: imports, weights, compilation. Assumed.
const STARTUP_SECONDS: f64 = 60.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Attempts at the cell's present keys.
    Measured,
    /// Attempts under the cell's name at keys that it had before.
    Earlier,
    /// FLOPs ÷ assumed MFU.
    Model,
}

/// Which runs are priced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// Those that a build would make here.
    Stale,
    /// Those, and what is there and would be measured again.
    Anew,
    /// Those that another host must make.
    Waiting,
}

impl Runs {
    fn have(self, state: State) -> bool {
        match self {
            Self::Stale => state == State::Stale,
            Self::Anew => matches!(state, State::Stale | State::Fresh | State::Failed),
            Self::Waiting => state == State::Waiting,
        }
    }
}

/// The stale runs of one cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct CellPrice {
    pub cell: String,
    /// Runs to be made. A run that two cells share is counted at one of them only.
    pub runs: usize,
    pub gpus: u64,
    /// Estimated time of all runs together, cooldowns included; absent where there is no estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Seconds × GPUs ÷ 3600; absent on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// How the time was estimated, or why it was not.
    pub how: String,
}

/// The stale runs of the selected cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Prices {
    pub cells: Vec<CellPrice>,
}

impl Prices {
    #[must_use]
    pub fn of(engine: &Engine, statuses: &Statuses, which: Runs) -> Self {
        let catalogue = plan::catalogue(&engine.plan.config);
        let (mut seen, mut is_first) = (BTreeSet::new(), true);
        // Without a lock there are no keys; what launches the same bytes is one measurement all the
        // same.
        let twins = engine.same_launch(statuses);
        let is_twin =
            |cell: CellId| twins[cell].is_some_and(|first| engine.plan.cells[first].selected);
        let mut prices = Self::default();
        for cell in engine.plan.cells.ids() {
            let Some(prepared) = engine
                .plan
                .prepared(cell)
                .filter(|_| engine.plan.cells[cell].selected)
            else {
                continue;
            };
            let status = |repeat| statuses.get(engine.dag.node(TaskKind::Train, cell, repeat));
            let repeats = 1..=engine.plan.cells[cell].repeats;
            let stale: Vec<u32> = repeats
                .filter(|r| which.have(status(*r).state))
                // What is not started takes nothing, here or on another host.
                .filter(|r| {
                    which == Runs::Stale || engine.withheld(cell, status(*r).key.as_ref()).is_none()
                })
                .filter(|r| {
                    status(*r)
                        .key
                        .map_or_else(|| !is_twin(cell), |key| seen.insert(key))
                })
                .collect();
            if stale.is_empty() {
                continue;
            }
            let cooldowns = stale.len() - usize::from(std::mem::take(&mut is_first));
            let idle = cooldowns as f64 * prepared.resolved.cooldown_seconds;
            let each = run_seconds(engine, statuses, cell, &catalogue);
            prices
                .cells
                .push(priced(engine, cell, stale.len(), idle, each, &catalogue));
        }
        prices
    }

    fn runs_of(&self, is_one: impl Fn(&CellPrice) -> bool) -> usize {
        let cells = self.cells.iter().filter(|cell| is_one(cell));
        cells.map(|cell| cell.runs).sum()
    }

    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs_of(|_| true)
    }

    /// Runs on GPUs without an estimate; those on a CPU take no GPU-hours.
    fn unknown_gpu_runs(&self) -> usize {
        self.runs_of(|cell| cell.seconds.is_none() && cell.gpus > 0)
    }

    #[must_use]
    pub fn unknown_runs(&self) -> usize {
        self.runs_of(|cell| cell.seconds.is_none())
    }

    /// Sum over the runs with an estimate; `None` if there are none.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        self.cells
            .iter()
            .filter_map(|c| c.seconds)
            .reduce(|a, b| a + b)
    }

    #[must_use]
    pub fn gpu_hours(&self) -> Option<f64> {
        self.cells
            .iter()
            .filter_map(|c| c.gpu_hours)
            .reduce(|a, b| a + b)
    }

    /// Sums by currency.
    #[must_use]
    pub fn costs(&self) -> BTreeMap<&str, f64> {
        let mut costs = BTreeMap::new();
        for cell in &self.cells {
            if let (Some(cost), Some(currency)) = (cell.cost, &cell.currency) {
                *costs.entry(currency.as_str()).or_insert(0.0) += cost;
            }
        }
        costs
    }

    /// Runs whose GPU-hours are estimated and have no price.
    #[must_use]
    pub fn unpriced_runs(&self) -> usize {
        self.runs_of(|cell| cell.gpu_hours.is_some() && cell.cost.is_none())
    }

    /// Runs by what their estimate rests on.
    #[must_use]
    pub fn by_basis(&self) -> BTreeMap<Basis, usize> {
        let mut runs = BTreeMap::new();
        for cell in &self.cells {
            if let Some(basis) = cell.basis {
                *runs.entry(basis).or_insert(0) += cell.runs;
            }
        }
        runs
    }

    /// Why all of it within `limit` GPU-hours is refused, if it is. What is not estimated may be
    /// anything.
    #[must_use]
    pub fn beyond(all: &[&Self], limit: f64, allows_unknown: bool) -> Option<String> {
        let known: f64 = all.iter().filter_map(|prices| prices.gpu_hours()).sum();
        if known > limit {
            return Some(format!(
                "the estimate is {} GPU-hours, --max-gpu-hours allows {limit}",
                few_digits(known)
            ));
        }
        let unknown: usize = all.iter().map(|prices| prices.unknown_gpu_runs()).sum();
        (unknown > 0 && !allows_unknown).then(|| {
            format!(
                "{unknown} runs cannot be estimated, and --max-gpu-hours allows {limit}; --force=unpriced counts them as 0 GPU-hours"
            )
        })
    }
}

fn priced(
    engine: &Engine,
    cell: CellId,
    runs: usize,
    idle: f64,
    each: Result<(f64, Basis, String), String>,
    catalogue: &Catalogue,
) -> CellPrice {
    let job = engine.plan.prepared(cell).map(|p| p.job());
    let vendor = job.map_or(Vendor::Cpu, |job| job.vendor);
    let gpus = job
        .filter(|_| vendor != Vendor::Cpu)
        .map_or(0, |job| job.parallelism.num_gpus);
    let mut row = CellPrice {
        cell: engine.plan.cells[cell].id.clone(),
        runs,
        gpus,
        ..CellPrice::default()
    };
    match each {
        Err(why) => row.how = format!("not estimated: {why}"),
        Ok((seconds, basis, how)) => {
            let seconds = seconds * runs as f64 + idle;
            (row.seconds, row.basis, row.how) = (Some(seconds), Some(basis), how);
            row.gpu_hours = (gpus > 0).then_some(seconds * gpus as f64 / 3600.0);
        }
    }
    if let (Some(hours), Some(price)) = (
        row.gpu_hours,
        price_of(catalogue, &engine.plan.matrix.cells[cell].platform, vendor),
    ) {
        (row.cost, row.currency) = (
            Some(hours * price.per_gpu_hour),
            Some(price.currency.clone()),
        );
    }
    row
}

/// The platform's price, else its vendor's.
fn price_of<'a>(catalogue: &'a Catalogue, platform: &str, vendor: Vendor) -> Option<&'a Price> {
    let names = std::iter::once(platform).chain(vendor_names(vendor).iter().copied());
    names
        .into_iter()
        .find_map(|name| catalogue.prices.get(name))
}

/// Seconds of one run of a cell, by what its runs took before; none where it never ran. A model is
/// no reason to leave a run out.
pub(super) fn seconds_of_run(engine: &Engine, statuses: &Statuses, cell: CellId) -> Option<f64> {
    let catalogue = plan::catalogue(&engine.plan.config);
    let (seconds, basis, _) = run_seconds(engine, statuses, cell, &catalogue).ok()?;
    (basis != Basis::Model).then_some(seconds)
}

/// Seconds of one run of a cell, on what they rest, and how in words.
fn run_seconds(
    engine: &Engine,
    statuses: &Statuses,
    cell: CellId,
    catalogue: &Catalogue,
) -> Result<(f64, Basis, String), String> {
    let repeats = 1..=engine.plan.cells[cell].repeats;
    let nodes = repeats.map(|repeat| engine.dag.node(TaskKind::Train, cell, repeat));
    let (mut now, mut before) = (Vec::new(), Vec::new());
    for node in nodes {
        if let Some(key) = statuses.get(node).key {
            now.extend(durations(engine, &key));
        }
        if now.is_empty() {
            before.extend(earlier(engine, cell, node).unwrap_or_default());
        }
    }
    for (list, basis, words) in [
        (&mut now, Basis::Measured, "of this cell"),
        (
            &mut before,
            Basis::Earlier,
            "of this cell before it was changed, by its tokens per device",
        ),
    ] {
        if let Some(seconds) = median(list) {
            return Ok((
                seconds,
                basis,
                format!("median of {} {words}", counted(list.len())),
            ));
        }
    }
    let prepared = engine.plan.prepared(cell).ok_or("it cannot be planned")?;
    let platform = &*engine.plan.matrix.cells[cell].platform;
    let locked = prepared
        .facts
        .known
        .as_ref()
        .ok()
        .and_then(|facts| facts.get("accelerator")?.as_str());
    let nothing = Values::default();
    let view = engine
        .plan
        .config
        .view(&nothing, &engine.plan.matrix.cells[cell].overlay);
    let stated = view.entry::<Platform>(platform).gpu_model;
    let declared = || {
        let name = stated.as_deref()?;
        Some(
            accelerators_like(name)
                .first()
                .map_or(name, |known| known.names[0].as_str()),
        )
    };
    let device = locked.or_else(declared);
    modelled(prepared.job(), platform, device, catalogue)
}

/// Durations of the good attempts at the key that a repeat had before, as they would be for the
/// tokens of its present job; none where it is not known what they trained.
fn earlier(engine: &Engine, cell: CellId, node: TaskId) -> Option<Vec<f64>> {
    let task = engine.dag.task(node);
    let last = engine
        .cache
        .last_of(TaskKind::Train, &label(engine.plan, &task))?;
    let was = size_of(&job_of(engine, task, &last)?)?;
    let now = size_of(&engine.plan.prepared(cell)?.job_text())?;
    Some(
        durations(engine, &last.key)
            .into_iter()
            .map(|seconds| scaled(seconds, now / was))
            .collect(),
    )
}

/// The text of the job that the last attempt ran. Its own key has the job's digest only where its
/// trainer reads it; else it is in the key under which the attempt was parsed.
fn job_of(engine: &Engine, task: Task, last: &Entry) -> Option<String> {
    let job = line_of::<Digest>(&last.preimage, "job").or_else(|| {
        let parsed = engine.cache.last_of(
            TaskKind::Parse,
            &label(
                engine.plan,
                &Task {
                    kind: TaskKind::Parse,
                    ..task
                },
            ),
        )?;
        let attempt: String = line_of(&parsed.preimage, "attempt")?;
        let is_its = engine
            .cache
            .attempts(&last.key)
            .iter()
            .any(|a| a.id == attempt);
        line_of(&parsed.preimage, "job").filter(|_| is_its)
    })?;
    engine.cache.preimage(&job)
}

/// Tokens of a run ÷ devices, from the canonical text of its job, which leaves defaults out.
fn size_of(job: &str) -> Option<f64> {
    let count = |name: &str, default: u64| line_of(job, name).unwrap_or(default) as f64;
    let default = Job::default();
    let steps = count("train_iters", default.train_iters);
    let batch = count("data.global_batch_size", default.data.global_batch_size);
    let length = count("data.seq_length", default.data.seq_length);
    let size = steps * batch * length / count("parallelism.num_gpus", default.parallelism.num_gpus);
    (size.is_finite() && size > 0.0).then_some(size)
}

/// The value of a line `name = JSON` of a pre-image.
fn line_of<T: DeserializeOwned>(text: &str, name: &str) -> Option<T> {
    serde_json::from_str(preimage::line(text, name)?).ok()
}

/// A run of `seconds` with so many times its tokens. Never too little: what it takes to start stays
/// where there are fewer, and counts as often as the steps where there are more.
fn scaled(seconds: f64, times: f64) -> f64 {
    let start = if times < 1.0 {
        seconds.min(STARTUP_SECONDS)
    } else {
        0.0
    };
    start + (seconds - start) * times
}

fn counted(runs: usize) -> String {
    crate::words::plain::counted(runs, "run")
}

/// How long the good attempts at a key took, in seconds.
fn durations(engine: &Engine, key: &Digest) -> Vec<f64> {
    let good = |a: &&crate::cache::Attempt| a.outcome == RunOutcome::Ok;
    let attempts = engine.cache.attempts(key);
    attempts
        .iter()
        .filter(good)
        .map(|a| a.ended_at - a.started_at)
        .filter(|s| *s > 0.0 && s.is_finite())
        .collect()
}

fn median(list: &mut [f64]) -> Option<f64> {
    list.sort_by(f64::total_cmp);
    let (low, high) = (
        list.get(list.len().checked_sub(1)? / 2)?,
        list.get(list.len() / 2)?,
    );
    Some(f64::midpoint(*low, *high))
}

/// FLOPs of the whole run ÷ what the devices do at the assumed utilisation, and the start.
fn modelled(
    job: &Job,
    platform: &str,
    device: Option<&str>,
    catalogue: &Catalogue,
) -> Result<(f64, Basis, String), String> {
    if job.vendor == Vendor::Cpu {
        return Err("no run of this cell yet, and a CPU has no peak rate here".into());
    }
    let none = |why: &str| format!("no run of this cell yet, and {why}");
    let flops = flops_per_token(&job.model, job.task, job.data.seq_length)
        .ok_or_else(|| none("its FLOPs are not known"))?;
    let peak = catalogue
        .peaks
        .of(platform, device, &job.precision)
        .map_err(|why| none(&why.text))?;
    let tokens =
        job.train_iters as f64 * job.data.global_batch_size as f64 * job.data.seq_length as f64;
    let rate = ASSUMED_MFU * peak.tflops * 1e12 * job.parallelism.num_gpus as f64;
    let seconds = flops.value * tokens / rate + STARTUP_SECONDS;
    if !seconds.is_finite() {
        return Err(none("its size is absurd"));
    }
    let how = format!(
        "model: FLOPs at {:.0} % of {} TFLOP/s, and {STARTUP_SECONDS:.0} s to start",
        100.0 * ASSUMED_MFU,
        peak.tflops
    );
    Ok((seconds, Basis::Model, how))
}

/// `469`, `4.69`, `0.05`, `less than 0.01`: what is spent is never shown as nothing.
#[must_use]
pub fn few_digits(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value > 0.0 && value < 0.005 {
        "less than 0.01".to_owned()
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gpus: u64, gpu_hours: Option<f64>) -> CellPrice {
        CellPrice {
            runs: 3,
            gpus,
            gpu_hours,
            seconds: gpu_hours.map(|h| h * 3600.0),
            ..CellPrice::default()
        }
    }

    #[test]
    fn what_is_spent_is_never_shown_as_nothing() {
        let shown = [0.0, 0.0028, 0.005, 4.686, 468.6].map(few_digits);
        assert_eq!(shown, ["0.00", "less than 0.01", "0.01", "4.69", "469"]);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn other_tokens_per_device_are_another_price() {
        let job = |steps: u64| {
            format!(
                "tprimat-job 1\ndata.global_batch_size = 8\ndata.seq_length = 128\nparallelism.num_gpus = 2\ntrain_iters = {steps}\n"
            )
        };
        assert_eq!(size_of(&job(10)), Some(5120.0));
        assert_eq!(size_of("tprimat-job 1\n"), None, "no tokens are no size");
        assert_eq!(scaled(100.0, 50.0), 5000.0);
        // 60 s to start and 40 s of steps, of which a tenth is left.
        assert_eq!(scaled(100.0, 0.1), 64.0);
        assert_eq!((scaled(30.0, 0.1), scaled(30.0, 1.0)), (30.0, 30.0));
    }

    #[test]
    fn a_limit_refuses_what_is_beyond_or_unknown() {
        let known = Prices {
            cells: vec![row(8, Some(1.5)), row(1, Some(0.5)), row(0, None)],
        };
        assert_eq!(
            (
                known.gpu_hours(),
                known.unknown_gpu_runs(),
                known.unknown_runs()
            ),
            (Some(2.0), 0, 3)
        );
        assert!(Prices::beyond(&[&known], 2.0, false).is_none());
        assert!(
            Prices::beyond(&[&known], 1.9, true)
                .unwrap()
                .contains("2.00 GPU-hours")
        );
        let unknown = Prices {
            cells: vec![row(8, None)],
        };
        assert!(
            Prices::beyond(&[&unknown], 100.0, false)
                .unwrap()
                .contains("3 runs cannot be estimated")
        );
        assert!(Prices::beyond(&[&unknown], 100.0, true).is_none());
        assert!(Prices::beyond(&[&Prices::default()], 0.0, false).is_none());
        // Two hosts' parts add up.
        assert!(
            Prices::beyond(&[&known, &known], 3.9, true)
                .unwrap()
                .contains("4.00 GPU-hours")
        );
    }

    /// By hand: 8B at T 8192 takes 51.47 GFLOP a token; 10 steps × 128 × 8192 tokens on 8 H100s at
    /// 0.35 × 989.4 TFLOP/s.
    #[test]
    fn the_model_is_flops_over_assumed_rate() {
        let model = serde_json::json!({
            "architecture": "llama", "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336,
            "num_attention_heads": 32, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128_256,
        });
        let mut job = Job {
            model: serde_json::from_value(model).unwrap(),
            vendor: Vendor::Nvd,
            ..Job::default()
        };
        (job.train_iters, job.precision, job.parallelism.num_gpus) = (10, "bf16".into(), 8);
        (job.data.global_batch_size, job.data.seq_length) = (128, 8192);
        let device = Some("NVIDIA H100 80GB HBM3");
        let (seconds, basis, _) = modelled(&job, "nvd", device, &Catalogue::default()).unwrap();
        let by_hand = 51.47e9 * 10.0 * 128.0 * 8192.0 / (0.35 * 989.4e12 * 8.0) + 60.0;
        assert!(
            (seconds / by_hand - 1.0).abs() < 1e-3 && basis == Basis::Model,
            "{seconds} {by_hand}"
        );
        assert!(
            modelled(&job, "nvd", Some("NVIDIA H999"), &Catalogue::default())
                .unwrap_err()
                .contains("H999")
        );
        job.vendor = Vendor::Cpu;
        assert!(modelled(&job, "cpu", None, &Catalogue::default()).is_err());
    }
}
