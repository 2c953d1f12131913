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
pub(super) use scaling::{Sizes, scaling, set_ups};
use tprimat_job::Vendor;

use super::{
    Basis, CellInput, CpuHasNo, Device, Figure, Metric, Metrics, Mfu, NoFigure, Peaks, Summary,
    mfu_of,
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
type Computed = Result<(f64, Basis), Figure>;

fn absent(reason: NoFigure) -> Figure {
    Figure::Absent { reason }
}

fn error(reason: NoFigure) -> Figure {
    Figure::Error { reason }
}

/// Nearly all of these are quantities: what is not a finite number above 0 is made of something
/// wrong.
fn figure(computed: Computed) -> Figure {
    figure_if(computed, |value| value > 0.0)
}

fn figure_if(computed: Computed, is_possible: fn(f64) -> bool) -> Figure {
    match computed {
        Ok((value, basis)) if value.is_finite() && is_possible(value) => {
            Figure::Ok { value, basis }
        }
        Ok((value, basis)) => error(NoFigure::BadResult { value, basis }),
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
    device: Result<Device<'a>, NoFigure>,
}

impl Subject<'_> {
    /// tokens/s/GPU
    fn rate(&self) -> Result<f64, Figure> {
        let estimate = self
            .summary
            .tokens_per_second_per_gpu
            .as_ref()
            .ok_or_else(|| absent(NoFigure::NoRepeatCounts))?;
        match estimate.value {
            rate if rate.is_finite() && rate > 0.0 => Ok(rate),
            rate => Err(error(NoFigure::BadRate { rate })),
        }
    }
    fn num_gpus(&self) -> Result<u64, Figure> {
        let count = self
            .summary
            .workload
            .as_ref()
            .and_then(|w| w.num_gpus)
            .filter(|n| *n > 0);
        count.ok_or_else(|| absent(NoFigure::DevicesNotKnown))
    }
    fn device(&self) -> Result<&Device<'_>, Figure> {
        self.device.as_ref().map_err(|reason| error(reason.clone()))
    }
    fn gpu(&self, what: CpuHasNo) -> Result<&Device<'_>, Figure> {
        let device = self.device()?;
        if device.is_cpu() {
            Err(absent(NoFigure::NotOfACpu(what)))
        } else {
            Ok(device)
        }
    }
    /// Tokens/s of one device, and how many there are.
    fn rate_and_gpus(&self) -> Result<(f64, u64), Figure> {
        Ok((self.rate()?, self.num_gpus()?))
    }
}

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
    let (up, down) = (Some(true), Some(false));
    Metrics(vec![
        metric(
            "tokens_per_second",
            "tokens/s",
            "tokens/s",
            up,
            total_rate(&of),
        ),
        metric("tflops_per_gpu", "TFLOP/s/GPU", "TFLOP/s", up, tflops(&of)),
        metric("mfu", "MFU", "fraction", up, mfu(&of)),
        headroom(&of),
        metric(
            "loss_at_end",
            "loss at end",
            "nats/token",
            down,
            loss::at_end(&of),
        ),
        metric(
            "time_to_loss",
            "time to loss",
            "s",
            down,
            loss::time_to(&of),
        ),
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
        metric(
            "tokens_per_joule",
            "tokens/J",
            "tokens/J",
            up,
            energy::measured(&of),
        ),
        metric(
            "tokens_per_joule_at_tdp",
            "tokens/J at TDP",
            "tokens/J",
            up,
            energy::at_tdp(&of),
        ),
        metric(
            "days_to_1t_tokens",
            "days to 1T tokens",
            "days",
            down,
            days(&of, 1.0),
        ),
        metric(
            "days_to_15t_tokens",
            "days to 15T tokens",
            "days",
            down,
            days(&of, 15.0),
        ),
        metric(
            "gpu_hours_per_trillion_tokens",
            "GPU-hours/1T tokens",
            "GPU-hours",
            down,
            gpu_hours(&of),
        ),
    ])
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

fn metric(
    name: &str,
    title: &str,
    unit: &str,
    higher_is_better: Option<bool>,
    computed: Computed,
) -> Metric {
    let (name, title, unit) = (name.to_owned(), title.to_owned(), unit.to_owned());
    Metric {
        name,
        title,
        unit,
        higher_is_better,
        reference: None,
        figure: figure(computed),
    }
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

fn tflops(of: &Subject) -> Computed {
    let rate = of.rate()?;
    let flops = of
        .summary
        .flops_per_token()
        .ok_or_else(|| absent(NoFigure::FlopsNotKnown))?;
    // What is beyond the peak was not achieved.
    if let Mfu::Error { reason } = mfu_of(of.cell, of.summary, rate, of.catalogue)
        && of.device.is_ok()
    {
        return Err(error(reason));
    }
    let basis = Basis::Flops {
        rate,
        per_token: flops.value,
        convention: flops.convention.clone(),
    };
    Ok((rate * flops.value / TRILLION, basis))
}

fn mfu(of: &Subject) -> Computed {
    match Figure::from(mfu_of(of.cell, of.summary, of.rate()?, of.catalogue)) {
        Figure::Ok { value, basis } => Ok((value, basis)),
        none => Err(none),
    }
}

fn total_rate(of: &Subject) -> Computed {
    let (rate, gpus) = of.rate_and_gpus()?;
    Ok((rate * gpus as f64, Basis::TotalRate { rate, gpus }))
}

/// Days in which this cell's devices train on `trillions` × 10¹² tokens, if they run all the time at
/// the measured rate.
fn days(of: &Subject, trillions: f64) -> Computed {
    let (rate, gpus) = of.rate_and_gpus()?;
    let basis = Basis::WithoutPause { rate, gpus };
    Ok((
        trillions * TRILLION / (rate * gpus as f64) / SECONDS_PER_DAY,
        basis,
    ))
}

fn gpu_hours(of: &Subject) -> Computed {
    let rate = of.rate()?;
    of.gpu(CpuHasNo::GpuHour)?;
    Ok((TRILLION / rate / SECONDS_PER_HOUR, Basis::Rate { rate }))
}
