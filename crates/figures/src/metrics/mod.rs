//! What follows from a cell's rate: cost, efficiency, time. Formulas, units, sources and worked numbers:
//! docs/METRICS.md, in the order of the list below.

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
pub(super) use scaling::{Sizes, scaling, set_ups};
use tprimat_job::Vendor;

use super::{CellInput, Device, Figure, Metric, Metrics, Mfu, Peaks, Summary, mfu_of};

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
type Made = Result<(f64, String), Figure>;

fn absent(reason: impl Into<String>) -> Figure {
    Figure::Absent { reason: reason.into() }
}

fn error(reason: impl Into<String>) -> Figure {
    Figure::Error { reason: reason.into() }
}

/// Nearly all of these are quantities: what is not a finite number above 0 is made of something wrong.
fn figure(made: Made) -> Figure {
    figure_if(made, |value| value > 0.0)
}

fn figure_if(made: Made, is_possible: fn(f64) -> bool) -> Figure {
    match made {
        Ok((value, basis)) if value.is_finite() && is_possible(value) => Figure::Ok { value, basis },
        Ok((value, basis)) => {
            error(format!("the result is {value}, which is not a positive number; computed from {basis}"))
        }
        Err(figure) => figure,
    }
}

/// What the metrics of one cell are made of.
struct Subject<'a> {
    cell: &'a CellInput,
    summary: &'a Summary,
    catalogue: &'a Catalogue,
    /// `Err`: what is known of the device contradicts itself, so nothing of a platform or a datasheet holds.
    device: Result<Device<'a>, String>,
}

impl Subject<'_> {
    /// tokens/s/GPU
    fn rate(&self) -> Result<f64, Figure> {
        let estimate = self.summary.tokens_per_second_per_gpu.as_ref().ok_or_else(|| absent("no repeat counts"))?;
        match estimate.value {
            rate if rate.is_finite() && rate > 0.0 => Ok(rate),
            rate => Err(error(format!("the rate is {rate} tokens/s/GPU"))),
        }
    }
    fn num_gpus(&self) -> Result<u64, Figure> {
        let count = self.summary.workload.as_ref().and_then(|w| w.num_gpus).filter(|n| *n > 0);
        count.ok_or_else(|| absent("the number of devices is not known"))
    }
    fn device(&self) -> Result<&Device<'_>, Figure> {
        self.device.as_ref().map_err(|reason| error(reason.clone()))
    }
    fn gpu(&self, what: &str) -> Result<&Device<'_>, Figure> {
        let device = self.device()?;
        if device.is_cpu() { Err(absent(format!("{what} is not defined for a CPU"))) } else { Ok(device) }
    }
    /// Tokens/s of all devices together, and how that is written.
    fn total_rate(&self) -> Result<(f64, String), Figure> {
        let (rate, gpus) = (self.rate()?, self.num_gpus()?);
        Ok((rate * gpus as f64, format!("{} tokens/s/GPU × {}", short(rate), devices(gpus))))
    }
}

/// All metrics of a cell but `scaling_efficiency`, which needs the other cells.
#[must_use]
pub fn metrics_of(cell: &CellInput, summary: &Summary, catalogue: &Catalogue) -> Metrics {
    let device = Device::of(cell, summary, catalogue);
    let of = Subject { cell, summary, catalogue, device };
    let currency = cost::currency(&of);
    let (up, down) = (Some(true), Some(false));
    Metrics(vec![
        metric("tokens_per_second", "tokens/s", "tokens/s", up, of.total_rate()),
        metric("tflops_per_gpu", "TFLOP/s/GPU", "TFLOP/s", up, tflops(&of)),
        metric("mfu", "MFU", "fraction", up, mfu(&of)),
        headroom(&of),
        metric("loss_at_end", "loss at end", "nats/token", down, loss::at_end(&of)),
        metric("time_to_loss", "time to loss", "s", down, loss::time_to(&of)),
        metric(
            "tokens_per_dollar",
            &format!("tokens/{currency}"),
            &format!("tokens/{currency}"),
            up,
            cost::tokens_per_dollar(&of),
        ),
        metric(
            "dollars_per_trillion_tokens",
            &format!("{currency}/1T tokens"),
            &currency,
            down,
            cost::dollars_per_trillion(&of),
        ),
        metric("tokens_per_joule", "tokens/J", "tokens/J", up, energy::measured(&of)),
        metric("tokens_per_joule_at_tdp", "tokens/J at TDP", "tokens/J", up, energy::at_tdp(&of)),
        metric("days_to_1t_tokens", "days to 1T tokens", "days", down, days(&of, 1.0)),
        metric("days_to_15t_tokens", "days to 15T tokens", "days", down, days(&of, 15.0)),
        metric("gpu_hours_per_trillion_tokens", "GPU-hours/1T tokens", "GPU-hours", down, gpu_hours(&of)),
    ])
}

/// Memory of one device, in bytes.
#[must_use]
pub fn memory_capacity_bytes(cell: &CellInput, summary: &Summary, catalogue: &Catalogue) -> Option<u64> {
    let device = Device::of(cell, summary, catalogue);
    memory::capacity_bytes(&Subject { cell, summary, catalogue, device })
}

fn metric(name: &str, title: &str, unit: &str, higher_is_better: Option<bool>, made: Made) -> Metric {
    let (name, title, unit) = (name.to_owned(), title.to_owned(), unit.to_owned());
    Metric { name, title, unit, higher_is_better, reference: None, figure: figure(made) }
}

/// Nothing may be left.
fn headroom(of: &Subject) -> Metric {
    let figure = figure_if(memory::headroom(of), |value| value >= 0.0);
    Metric {
        name: "memory_headroom".to_owned(),
        title: "memory headroom".to_owned(),
        unit: "fraction".to_owned(),
        higher_is_better: None,
        reference: None,
        figure,
    }
}

fn tflops(of: &Subject) -> Made {
    let rate = of.rate()?;
    let flops = of.summary.flops_per_token().ok_or_else(|| absent("FLOPs per token of this model are not known"))?;
    // What is beyond the peak was not achieved.
    if let Mfu::Error { reason } = mfu_of(of.cell, of.summary, rate, of.catalogue)
        && of.device.is_ok()
    {
        return Err(error(reason));
    }
    let basis =
        format!("{} tokens/s/GPU × {} GFLOP a token ({})", short(rate), short(flops.value / 1e9), flops.convention);
    Ok((rate * flops.value / TRILLION, basis))
}

fn mfu(of: &Subject) -> Made {
    match mfu_of(of.cell, of.summary, of.rate()?, of.catalogue) {
        Mfu::Ok { value, tflops_per_gpu, convention, peak } => {
            let peak = format!("{} TFLOP/s peak ({})", short(peak.tflops), peak.source);
            Ok((value, format!("{} TFLOP/s ({convention}) ÷ {peak}", short(tflops_per_gpu))))
        }
        Mfu::Absent { reason } => Err(absent(reason)),
        Mfu::Error { reason } => Err(error(reason)),
    }
}

/// Of this set-up, at its measured rate and without a pause.
fn days(of: &Subject, trillions: f64) -> Made {
    let (rate, basis) = of.total_rate()?;
    Ok((trillions * TRILLION / rate / SECONDS_PER_DAY, format!("{basis}, without a pause")))
}

fn gpu_hours(of: &Subject) -> Made {
    let rate = of.rate()?;
    of.gpu("a GPU-hour")?;
    Ok((TRILLION / rate / SECONDS_PER_HOUR, format!("{} tokens/s/GPU", short(rate))))
}

fn devices(count: u64) -> String {
    format!("{count} {}", if count == 1 { "device" } else { "devices" })
}

fn repeats(count: usize) -> String {
    format!("{count} {}", if count == 1 { "repeat" } else { "repeats" })
}

/// Four digits for a sentence: `10682`, `549.8`, `0.5557`.
fn short(value: f64) -> String {
    let magnitude = value.abs().log10().floor();
    if value != 0.0 && !(-6.0..15.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let decimals = (3.0 - magnitude).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
