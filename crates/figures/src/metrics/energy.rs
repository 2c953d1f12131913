//! Tokens for a joule of GPU board energy: what a meter saw, and what the datasheet would allow.

use tprimat_results::geometric_mean;

use super::{Computed, Subject, absent, error};
use crate::{Basis, CpuHasNo, Figure, NoFigure, RepeatStatus, RepeatSummary};

/// How far the metered time may be from the measured steps' own.
const TOLERANCE: f64 = 0.1;
/// Boards stay below their power limit but for moments; a mean beyond this is of another unit.
const MOST_OF_TDP: f64 = 1.25;

/// Geometric mean over the repeats that were metered.
pub(super) fn measured(of: &Subject) -> Computed {
    of.gpu(CpuHasNo::BoardEnergy)?;
    let (num_gpus, tdp) = (of.num_gpus()?, tdp(of).ok().map(|(watts, _)| watts));
    let tokens = of.summary.workload.as_ref().and_then(|w| w.tokens_per_step);
    let tokens = tokens.ok_or_else(|| absent(NoFigure::TokensNotKnown))? as f64;
    let counted: Vec<&RepeatSummary> = of
        .summary
        .repeats
        .iter()
        .filter(|r| r.status == RepeatStatus::Ok)
        .collect();
    let (mut rates, mut methods, mut why_not) = (Vec::new(), Vec::new(), None);
    for repeat in &counted {
        match of_repeat(repeat, tokens, num_gpus, tdp) {
            Ok((rate, method)) => {
                rates.push(rate);
                methods.push(method);
            }
            Err(Why::Impossible(reason)) => return Err(error(reason)),
            Err(Why::Missing(reason)) => why_not = why_not.or(Some(reason)),
        }
    }
    let Some(rate) = geometric_mean(&rates) else {
        return Err(absent(why_not.unwrap_or(NoFigure::NoRepeatCounts)));
    };
    methods.sort();
    methods.dedup();
    Ok((
        rate,
        Basis::Metered {
            repeats: rates.len(),
            of: counted.len(),
            methods,
        },
    ))
}

enum Why {
    Missing(NoFigure),
    Impossible(NoFigure),
}

fn of_repeat(
    repeat: &RepeatSummary,
    tokens: f64,
    num_gpus: u64,
    tdp: Option<f64>,
) -> Result<(f64, [String; 2]), Why> {
    let missing = |reason: NoFigure| Err(Why::Missing(reason));
    let (Some(telemetry), Some(steady)) = (&repeat.telemetry, &repeat.steady) else {
        return missing(NoFigure::PowerNotSampled);
    };
    let Some(energy) = &telemetry.energy else {
        return missing(NoFigure::NoEnergy);
    };
    if telemetry.devices != num_gpus {
        return missing(NoFigure::EnergyOf {
            devices: telemetry.devices,
            used: num_gpus,
        });
    }
    let seconds = steady.steps as f64 * steady.step_time.mean_seconds;
    if !(telemetry.seconds / seconds - 1.0).abs().le(&TOLERANCE) {
        return missing(NoFigure::EnergyOver {
            metered: telemetry.seconds,
            measured: seconds,
        });
    }
    if !(energy.joules.is_finite() && energy.joules > 0.0) {
        return Err(Why::Impossible(NoFigure::BadEnergy {
            repeat: repeat.repeat,
            joules: energy.joules,
        }));
    }
    let watts = energy.joules / telemetry.seconds / num_gpus as f64;
    if let Some(tdp) = tdp.filter(|tdp| watts > MOST_OF_TDP * tdp) {
        return Err(Why::Impossible(NoFigure::MoreWattsThanTdp {
            repeat: repeat.repeat,
            watts,
            tdp,
        }));
    }
    Ok((
        tokens * steady.steps as f64 / energy.joules,
        [telemetry.source.clone(), energy.method.clone()],
    ))
}

pub(super) fn at_tdp(of: &Subject) -> Computed {
    let (rate, (watts, source)) = (of.rate()?, tdp(of)?);
    Ok((
        rate / watts,
        Basis::AtTdp {
            rate,
            watts,
            source,
        },
    ))
}

/// Board power of one device in watts: the configuration's, else the datasheet's.
fn tdp(of: &Subject) -> Result<(f64, String), Figure> {
    let device = of.gpu(CpuHasNo::Tdp)?;
    if let Some(stated) = device.stated(&of.catalogue.tdp) {
        return Ok((stated.watts, stated.source.clone()));
    }
    let sku = device.sku().map_err(absent)?;
    let no_tdp = || {
        absent(NoFigure::NoTdp {
            source: sku.source.clone(),
        })
    };
    let watts = sku.tdp_watts.ok_or_else(no_tdp)?;
    Ok((watts, sku.source.clone()))
}
