//! Tokens for a joule of GPU board energy: what a meter saw, and what the datasheet would allow.

use super::{Made, Subject, absent, error, repeats, short};
use crate::{RepeatStatus, RepeatSummary, geometric_mean};

/// How far the metered time may be from the measured steps' own.
const TOLERANCE: f64 = 0.1;
/// Boards stay below their power limit but for moments; a mean beyond this is of another unit.
const MOST_OF_TDP: f64 = 1.25;

/// Geometric mean over the repeats that were metered.
pub(super) fn measured(of: &Subject) -> Made {
    of.gpu("GPU board energy")?;
    let (num_gpus, tdp) = (of.num_gpus()?, tdp(of).ok().map(|(watts, _)| watts));
    let tokens = of.summary.workload.as_ref().and_then(|w| w.tokens_per_step);
    let tokens = tokens.ok_or_else(|| absent("tokens of an optimiser step are not known"))? as f64;
    let counted: Vec<&RepeatSummary> = of.summary.repeats.iter().filter(|r| r.status == RepeatStatus::Ok).collect();
    let (mut rates, mut methods, mut why_not) = (Vec::new(), Vec::new(), None);
    for repeat in &counted {
        match of_repeat(repeat, tokens, num_gpus, tdp) {
            Ok((rate, method)) => {
                rates.push(rate);
                methods.push(method);
            }
            Err(Why::Impossible(reason)) => return Err(error(format!("repeat {}: {reason}", repeat.repeat))),
            Err(Why::Missing(reason)) => why_not = why_not.or(Some(reason)),
        }
    }
    let Some(rate) = geometric_mean(&rates) else {
        return Err(absent(why_not.unwrap_or_else(|| "no repeat counts".to_owned())));
    };
    methods.sort();
    methods.dedup();
    let over = if rates.len() == counted.len() {
        repeats(rates.len())
    } else {
        format!("{} of {}", rates.len(), repeats(counted.len()))
    };
    Ok((rate, format!("GPU board energy over the measured steps of {over} ({})", methods.join(", "))))
}

enum Why {
    Missing(String),
    Impossible(String),
}

fn of_repeat(repeat: &RepeatSummary, tokens: f64, num_gpus: u64, tdp: Option<f64>) -> Result<(f64, String), Why> {
    let missing = |reason: String| Err(Why::Missing(reason));
    let (Some(telemetry), Some(steady)) = (&repeat.telemetry, &repeat.steady) else {
        return missing("power was not sampled beside the runs".to_owned());
    };
    let Some(energy) = &telemetry.energy else { return missing("the sampler gave no energy".to_owned()) };
    if telemetry.devices != num_gpus {
        return missing(format!("energy is of {} devices, the run used {num_gpus}", telemetry.devices));
    }
    let seconds = steady.steps as f64 * steady.step_time.mean_seconds;
    if !(telemetry.seconds / seconds - 1.0).abs().le(&TOLERANCE) {
        let (metered, stepped) = (short(telemetry.seconds), short(seconds));
        return missing(format!("energy is of {metered} s, the measured steps took {stepped} s"));
    }
    if !(energy.joules.is_finite() && energy.joules > 0.0) {
        return Err(Why::Impossible(format!("{} J were metered", energy.joules)));
    }
    let watts = energy.joules / telemetry.seconds / num_gpus as f64;
    if let Some(tdp) = tdp.filter(|tdp| watts > MOST_OF_TDP * tdp) {
        let (watts, tdp) = (short(watts), short(tdp));
        return Err(Why::Impossible(format!("{watts} W a device were metered, and it is made for {tdp} W")));
    }
    Ok((tokens * steady.steps as f64 / energy.joules, format!("{}, {}", telemetry.source, energy.method)))
}

pub(super) fn at_tdp(of: &Subject) -> Made {
    let (rate, (watts, source)) = (of.rate()?, tdp(of)?);
    Ok((rate / watts, format!("{} tokens/s/GPU at {} W ({source}); not metered", short(rate), short(watts))))
}

/// Board power of one device in watts: the configuration's, else the datasheet's.
fn tdp(of: &Subject) -> Made {
    let device = of.gpu("TDP")?;
    if let Some(stated) = device.stated(&of.catalogue.tdp) {
        return Ok((stated.watts, stated.source.clone()));
    }
    let sku = device.sku().map_err(absent)?;
    let watts =
        sku.tdp_watts.ok_or_else(|| absent(format!("no TDP of this device alone is known ({})", sku.source)))?;
    Ok((watts, sku.source.clone()))
}
