//! What follows from a cell's rate: cost, efficiency, time. Formulas, units, sources and worked
//! numbers: docs/METRICS.md, in the order of the list below.

mod cost;
mod energy;
mod loss;
mod memory;
mod scaling;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cost::cost_ratio;
pub(super) use scaling::scaling;
use tprimat_job::Vendor;

use crate::results::{Reason, words::short};
use tprimat_base::words::plain::counted;

use super::{
    CellInput, Device, Figure, Metric, Metrics, Peaks, Summary, codes, mfu_of,
    model_flops::flops_of, peaks::bad_rate,
};

const TRILLION: f64 = 1e12;
const SECONDS_PER_HOUR: f64 = 3600.0;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// What figures beyond the log are made of, besides the makers' data (`accelerators.toml`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Catalogue {
    pub peaks: Peaks,
    /// By platform id or a vendor's name; the id wins.
    pub prices: BTreeMap<String, Price>,
    /// Board power of one device as the configuration states it; by the same names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tdp: BTreeMap<String, Tdp>,
    /// Vendors of the platforms that the configuration declares.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vendors: BTreeMap<String, Vendor>,
    /// Loss that `time_to_loss` waits for, in nats per token, by model id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub target_loss: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Price {
    pub per_gpu_hour: f64,
    pub currency: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tdp {
    pub watts: f64,
    pub source: String,
}

/// A value and what it is made of, or why there is none.
type Computed = Result<(f64, String), Figure>;

fn absent(code: &'static str, text: impl Into<String>) -> Figure {
    let reason = Reason::detail(code, text);
    Figure::Absent { reason }
}

fn error(code: &'static str, text: impl Into<String>) -> Figure {
    let reason = Reason::excludes(code, text);
    Figure::Error { reason }
}

fn no_repeat_counts() -> Figure {
    absent("no_repeat_counts", "no repeat counts")
}

fn devices_not_known() -> Figure {
    absent(
        codes::DEVICES_NOT_KNOWN,
        "the number of devices is not known",
    )
}

/// Nearly all of these are quantities: what is not a finite number above 0 is made of something
/// wrong.
fn figure(computed: Computed) -> Figure {
    figure_if(computed, |value| value > 0.0)
}

fn figure_if(computed: Computed, is_possible: impl Fn(f64) -> bool) -> Figure {
    match computed {
        Ok((value, basis)) if value.is_finite() && is_possible(value) => {
            Figure::Ok { value, basis }
        }
        Ok((value, basis)) => {
            let text = format!(
                "the result is {value}, which is not a positive number; computed from {basis}"
            );
            error("bad_result", text)
        }
        Err(figure) => figure,
    }
}

/// What the metrics of one cell are made of.
struct Subject<'a> {
    cell: &'a CellInput,
    summary: &'a Summary,
    catalogue: &'a Catalogue,
    /// `Err`: what is known of the device contradicts itself, so nothing of a platform or a
    /// datasheet holds.
    device: Result<Device<'a>, Reason>,
}

impl Subject<'_> {
    /// tokens/s/GPU
    fn rate(&self) -> Result<f64, Figure> {
        let estimate = self
            .summary
            .tokens_per_second_per_gpu
            .as_ref()
            .ok_or_else(no_repeat_counts)?;
        match estimate.value {
            rate if rate.is_finite() && rate > 0.0 => Ok(rate),
            rate => Err(Figure::Error {
                reason: bad_rate(rate),
            }),
        }
    }
    fn num_gpus(&self) -> Result<u64, Figure> {
        let count = self
            .summary
            .workload
            .as_ref()
            .and_then(|w| w.num_gpus)
            .filter(|n| *n > 0);
        count.ok_or_else(devices_not_known)
    }
    fn device(&self) -> Result<&Device<'_>, Figure> {
        self.device.as_ref().map_err(|reason| Figure::Error {
            reason: reason.clone(),
        })
    }
    /// `what` is defined for accelerators alone.
    fn gpu(&self, what: &str) -> Result<&Device<'_>, Figure> {
        let device = self.device()?;
        if device.is_cpu() {
            let text = format!("{what} is not defined for a CPU");
            Err(absent("not_of_a_cpu", text))
        } else {
            Ok(device)
        }
    }
    /// Tokens/s of one device, and how many there are.
    fn rate_and_gpus(&self) -> Result<(f64, u64), Figure> {
        Ok((self.rate()?, self.num_gpus()?))
    }
}

/// How a metric is computed from its subject.
type Compute = fn(&Subject<'_>) -> Computed;

const UP: Option<bool> = Some(true);
const DOWN: Option<bool> = Some(false);

/// Name, title and unit of a metric, whether more is better, and its figure. `$` stands for the
/// currency of the cell's price.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    Option<bool>,
    Compute,
);

const METRICS: [Row; 12] = [
    ("tokens_per_second", "tokens/s", "tokens/s", UP, total_rate),
    ("tflops_per_gpu", "TFLOP/s/GPU", "TFLOP/s", UP, tflops),
    ("mfu", "MFU", "fraction", UP, mfu),
    (
        HEADROOM,
        "memory headroom",
        "fraction",
        None,
        memory::headroom,
    ),
    (
        "loss_at_end",
        "loss at end",
        "nats/token",
        DOWN,
        loss::at_end,
    ),
    ("time_to_loss", "time to loss", "s", DOWN, loss::time_to),
    (
        "tokens_per_dollar",
        "tokens/$",
        "tokens/$",
        UP,
        cost::tokens_per_dollar,
    ),
    (
        cost::DOLLARS,
        "$/1T tokens",
        "$",
        DOWN,
        cost::dollars_per_trillion,
    ),
    (
        "tokens_per_joule",
        "tokens/J",
        "tokens/J",
        UP,
        energy::measured,
    ),
    (
        "tokens_per_joule_at_tdp",
        "tokens/J at TDP",
        "tokens/J",
        UP,
        energy::at_tdp,
    ),
    ("days_to_1t_tokens", "days to 1T tokens", "days", DOWN, days),
    (
        GPU_HOURS,
        "GPU-hours/1T tokens",
        "GPU-hours",
        DOWN,
        gpu_hours,
    ),
];
const HEADROOM: &str = "memory_headroom";
const GPU_HOURS: &str = "gpu_hours_per_trillion_tokens";

/// All metrics of a cell but `scaling_efficiency`, which needs the other cells.
#[must_use]
pub fn metrics_of(cell: &CellInput, summary: &Summary, catalogue: &Catalogue) -> Metrics {
    let device = Device::of(cell, summary, catalogue);
    let of = Subject {
        cell,
        summary,
        catalogue,
        device,
    };
    let currency = cost::currency(&of);
    let metric = |(name, title, unit, higher_is_better, compute): &Row| {
        // Nothing may be left of the memory.
        let least_is_possible = |value| value > 0.0 || (*name == HEADROOM && value == 0.0);
        Metric {
            name: (*name).to_owned(),
            title: title.replace('$', &currency),
            unit: unit.replace('$', &currency),
            higher_is_better: *higher_is_better,
            reference: None,
            figure: figure_if(compute(&of), least_is_possible),
        }
    };
    Metrics(METRICS.iter().map(metric).collect())
}

/// Memory of one device, in bytes.
#[must_use]
pub fn memory_capacity_bytes(
    cell: &CellInput,
    summary: &Summary,
    catalogue: &Catalogue,
) -> Option<u64> {
    let device = Device::of(cell, summary, catalogue);
    memory::capacity_bytes(&Subject {
        cell,
        summary,
        catalogue,
        device,
    })
}

/// `10682 tokens/s per device`
fn per_device(rate: f64) -> String {
    format!("{} tokens/s per device", short(rate))
}

fn tflops(of: &Subject) -> Computed {
    let rate = of.rate()?;
    let flops = flops_of(of.summary).map_err(|reason| Figure::Absent { reason })?;
    // What is beyond the peak was not achieved.
    if let Figure::Error { reason } = mfu_of(of.cell, of.summary, rate, of.catalogue)
        && of.device.is_ok()
    {
        return Err(Figure::Error { reason });
    }
    let basis = format!(
        "{} × {} GFLOP a token ({})",
        per_device(rate),
        short(flops.value / 1e9),
        flops.convention
    );
    Ok((rate * flops.value / TRILLION, basis))
}

fn mfu(of: &Subject) -> Computed {
    match mfu_of(of.cell, of.summary, of.rate()?, of.catalogue) {
        Figure::Ok { value, basis } => Ok((value, basis)),
        none => Err(none),
    }
}

fn total_rate(of: &Subject) -> Computed {
    let (rate, gpus) = of.rate_and_gpus()?;
    let devices = counted(gpus as usize, "device");
    let basis = format!("{} × {devices}", per_device(rate));
    Ok((rate * gpus as f64, basis))
}

/// Days in which this cell's devices train on 10¹² tokens, if they run all the time at
/// the measured rate.
fn days(of: &Subject) -> Computed {
    let (rate, gpus) = of.rate_and_gpus()?;
    let total = short(rate * gpus as f64);
    let basis = format!("tokens ÷ ({total} tokens/s × 86,400 s a day), without a pause");
    Ok((TRILLION / (rate * gpus as f64) / SECONDS_PER_DAY, basis))
}

fn gpu_hours(of: &Subject) -> Computed {
    let rate = of.rate()?;
    of.gpu("a GPU-hour")?;
    Ok((TRILLION / rate / SECONDS_PER_HOUR, per_device(rate)))
}
