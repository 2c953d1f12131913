//! A prediction against a device.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Change, Memory, changes, memory};
use crate::{
    config::{Values, schema::Platform},
    figures::accelerators_like,
    logs::GIB,
    matrix::CellId,
    plan::{Plan, Support},
};

/// Above this share of the capacity a cell is not started: wider than the model has erred, so that
/// a wrong model withholds no run.
const WITHHELD_ABOVE: f64 = 1.15;
/// The same for a model that was never compared with a measured peak. Its parameters, gradients and
/// optimizer states are counted and not estimated, so no error of it is as wide as this.
const WITHHELD_UNCHECKED_ABOVE: f64 = 1.5;
/// From this share on a cell may or may not fit.
const TIGHT_ABOVE: f64 = 0.92;
/// CUDA context, loaded kernels and NCCL's buffers, which PyTorch's allocator does not see:
/// assumed.
const CONTEXT_BYTES: f64 = 1.0e9;
/// Blocks that PyTorch's allocator holds and cannot use, as a share of what it hands out: assumed.
const FRAGMENTATION: f64 = 0.03;

/// Memory of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    pub bytes: u64,
    pub source: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FitVerdict {
    Fits,
    /// Between 92 % and 100 % of the capacity.
    Tight,
    /// Above the capacity, but by no more than the prediction may err: it is started.
    MayNotFit,
    /// Not started without `--force=memory`.
    DoesNotFit,
}

impl FitVerdict {
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Tight => "tight",
            Self::MayNotFit => "may not fit",
            Self::DoesNotFit => "does not fit",
        }
    }
}

/// One cell: what it needs, what there is, and what follows. What is absent is not known, and
/// `unknown` says why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MemoryFit {
    pub cell: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The allocator's peak, the context and fragmentation: what the device must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// `device_bytes` ÷ capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<FitVerdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// What would need less, each change alone and the cheapest first; where the cell is tight or
    /// does not fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

impl MemoryFit {
    #[must_use]
    pub fn of(cell: &str, memory: Result<Memory, String>, capacity: Option<Capacity>) -> Self {
        let mut fit = Self {
            cell: cell.to_owned(),
            capacity,
            ..Self::default()
        };
        let memory = match memory {
            Ok(memory) => memory,
            Err(why) => {
                return Self {
                    unknown: Some(why),
                    ..fit
                };
            }
        };
        let needed = memory.peak_allocated_bytes as f64 * (1.0 + FRAGMENTATION) + CONTEXT_BYTES;
        fit.device_bytes = Some(needed.round() as u64);
        let withheld_above = if memory.is_checked {
            WITHHELD_ABOVE
        } else {
            WITHHELD_UNCHECKED_ABOVE
        };
        fit.memory = Some(memory);
        match &fit.capacity {
            None => fit.unknown = Some("the device's memory is not known".into()),
            Some(capacity) => {
                let ratio = needed / capacity.bytes as f64;
                fit.ratio = Some(ratio);
                fit.verdict = Some(match ratio {
                    r if r > withheld_above => FitVerdict::DoesNotFit,
                    r if r > 1.0 => FitVerdict::MayNotFit,
                    r if r > TIGHT_ABOVE => FitVerdict::Tight,
                    _ => FitVerdict::Fits,
                });
            }
        }
        fit
    }

    /// Why the cell is not to be started, where it is far from fitting.
    #[must_use]
    pub fn withheld(&self) -> Option<String> {
        (self.verdict? == FitVerdict::DoesNotFit).then(|| self.warning())?
    }

    /// For people: that a cell will not fit, or may not, and what follows.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let (needed, capacity) = (self.device_bytes?, self.capacity.as_ref()?);
        let is_checked = self.memory.as_ref().is_some_and(|memory| memory.is_checked);
        let (words, what) = match self.verdict? {
            FitVerdict::Fits | FitVerdict::Tight => return None,
            FitVerdict::DoesNotFit => ("will not fit", "--force=memory runs it"),
            FitVerdict::MayNotFit if is_checked => (
                "may not fit",
                "it runs, since a prediction can be off by that much",
            ),
            FitVerdict::MayNotFit => (
                "may not fit",
                "it runs, since predictions for this model were never compared with a measured peak",
            ),
        };
        let (needed, has) = (gib(needed), gib(capacity.bytes));
        let needs = match self.memory.as_ref().is_some_and(Memory::is_upper_bound) {
            true => "its upper bound is",
            false => "needs",
        };
        let source = &capacity.source;
        Some(format!(
            "{words}: {needs} {needed} a GPU, which has {has} ({source}); {what}"
        ))
    }
}

/// `52.0 GiB`: 2³⁰ bytes, in which makers count what they call GB.
#[must_use]
pub fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB)
}

/// What a cell needs against its platform's device. `None` for a cell that is not supported.
#[must_use]
pub fn fit(plan: &Plan, cell: CellId) -> Option<MemoryFit> {
    let Support::Ready(prepared) = &plan.cells[cell].support else {
        return None;
    };
    let recipe = &plan.recipe(cell).file;
    let job = prepared.job();
    let fit = MemoryFit::of(
        &plan.cells[cell].id,
        memory(recipe, job),
        capacity(plan, cell),
    );
    let is_small = fit.verdict == Some(FitVerdict::Fits);
    let changes = if is_small {
        Vec::new()
    } else {
        changes(recipe, job)
    };
    Some(MemoryFit { changes, ..fit })
}

/// The locked or probed memory, else what config.yaml says, else the least that a card of the named model has.
fn capacity(plan: &Plan, cell: CellId) -> Option<Capacity> {
    let of = &plan.matrix.cells[cell];
    let prepared = plan.prepared(cell)?;
    let known = prepared
        .facts
        .known
        .as_ref()
        .ok()
        .and_then(|facts| facts.get("memory_bytes"))
        .and_then(Value::as_u64);
    if let Some(bytes) = known.filter(|bytes| *bytes > 0) {
        return Some(Capacity {
            bytes,
            source: "tprimat.lock, or this host".into(),
        });
    }
    let path = format!("hardware.platforms.{}.memory_per_gpu_gb", of.platform);
    let defaults = Values::default();
    let view = plan.config.view(&defaults, &of.overlay);
    let platform: Platform = view.entry(&of.platform);
    // Makers say GB and build GiB: an "80 GB" H100 reports 85.5·10⁹ bytes, a "192 GB" MI300X
    // 206.1·10⁹.
    let of_gib = |gib: f64, source: String| Capacity {
        bytes: (gib * GIB).round() as u64,
        source,
    };
    if let Some(stated) = platform.memory_per_gpu_gb.filter(|gb| *gb > 0.0) {
        return Some(of_gib(
            stated,
            format!("{path} of config.yaml: {stated} GiB"),
        ));
    }
    let model = platform.gpu_model?;
    let cards = accelerators_like(&model).into_iter();
    let least = cards.map(|card| card.memory_gib).min_by(f64::total_cmp)?;
    Some(of_gib(
        least,
        format!("the least that a {model} has; {path} states another"),
    ))
}
