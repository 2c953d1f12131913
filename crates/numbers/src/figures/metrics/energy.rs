//! Tokens for a joule of GPU board energy: what a meter saw, and what the datasheet would allow.

use crate::results::{geometric_mean, words::short};
use tprimat_base::words::plain::counted;

use super::{Computed, Subject, absent, error, no_repeat_counts, per_device};
use crate::figures::{Figure, RepeatStatus, RepeatSummary, codes};

/// How far the metered time may be from the measured steps' own.
const TOLERANCE: f64 = 0.1;
/// Boards stay below their power limit but for moments; a mean beyond this is of another unit.
const MOST_OF_TDP: f64 = 1.25;

/// Geometric mean over the repeats that were metered.
pub(super) fn measured(of: &Subject) -> Computed {
    of.gpu("GPU board energy")?;
    let (num_gpus, tdp) = (of.num_gpus()?, tdp(of).ok().map(|(watts, _)| watts));
    let tokens = of.summary.workload.as_ref().and_then(|w| w.tokens_per_step);
    let unknown = || {
        let text = "tokens of an optimiser step are not known";
        absent(codes::TOKENS_NOT_KNOWN, text)
    };
    let tokens = tokens.ok_or_else(unknown)? as f64;
    let repeats: Vec<&RepeatSummary> = of
        .summary
        .repeats
        .iter()
        .filter(|r| r.status == RepeatStatus::Ok)
        .collect();
    let (mut rates, mut methods, mut why_not) = (Vec::new(), Vec::new(), None);
    for repeat in &repeats {
        match of_repeat(repeat, tokens, num_gpus, tdp) {
            Ok((rate, method)) => {
                rates.push(rate);
                methods.push(method);
            }
            Err(impossible @ Figure::Error { .. }) => return Err(impossible),
            Err(missing) => why_not = why_not.or(Some(missing)),
        }
    }
    let Some(rate) = geometric_mean(&rates) else {
        return Err(why_not.unwrap_or_else(no_repeat_counts));
    };
    methods.sort();
    methods.dedup();
    let over = if rates.len() == repeats.len() {
        String::new()
    } else {
        format!("{} of ", rates.len())
    };
    let basis = format!(
        "GPU board energy over the measured steps of {over}{} ({})",
        counted(repeats.len(), "repeat"),
        methods.join(", ")
    );
    Ok((rate, basis))
}

/// Tokens for a joule of one repeat, and who sampled how; or why they are missing or impossible.
fn of_repeat(
    repeat: &RepeatSummary,
    tokens: f64,
    num_gpus: u64,
    tdp: Option<f64>,
) -> Result<(f64, String), Figure> {
    let (Some(telemetry), Some(steady)) = (&repeat.telemetry, &repeat.steady) else {
        let text = "power was not sampled beside the runs";
        return Err(absent("power_not_sampled", text));
    };
    let Some(energy) = &telemetry.energy else {
        let text = "the energy of the measured steps is not known";
        return Err(absent("no_energy", text));
    };
    if telemetry.devices != num_gpus {
        let text = format!(
            "energy is of {} devices, the run used {num_gpus}",
            telemetry.devices
        );
        return Err(absent("energy_of_other_devices", text));
    }
    let seconds = steady.steps as f64 * steady.step_time.mean_seconds;
    if !(telemetry.seconds / seconds - 1.0).abs().le(&TOLERANCE) {
        let text = format!(
            "energy is of {} s, the measured steps took {} s",
            short(telemetry.seconds),
            short(seconds)
        );
        return Err(absent("energy_over_other_time", text));
    }
    if !(energy.joules.is_finite() && energy.joules > 0.0) {
        let text = format!("repeat {}: {} J were metered", repeat.repeat, energy.joules);
        return Err(error("bad_energy", text));
    }
    let watts = energy.joules / telemetry.seconds / num_gpus as f64;
    if let Some(tdp) = tdp.filter(|tdp| watts > MOST_OF_TDP * tdp) {
        let text = format!(
            "repeat {}: {} W a device were metered, and it is made for {} W",
            repeat.repeat,
            short(watts),
            short(tdp)
        );
        return Err(error("more_watts_than_tdp", text));
    }
    Ok((
        tokens * steady.steps as f64 / energy.joules,
        format!("{}, {}", telemetry.source, energy.method),
    ))
}

pub(super) fn at_tdp(of: &Subject) -> Computed {
    let (rate, (watts, source)) = (of.rate()?, tdp(of)?);
    let basis = format!(
        "{} at {} W ({source}); not metered",
        per_device(rate),
        short(watts)
    );
    Ok((rate / watts, basis))
}

/// Board power of one device in watts: the configuration's, else the datasheet's.
fn tdp(of: &Subject) -> Result<(f64, String), Figure> {
    let device = of.gpu("TDP")?;
    if let Some(stated) = device.stated(&of.catalogue.tdp) {
        return Ok((stated.watts, stated.source.clone()));
    }
    let sku = device.sku().map_err(|reason| Figure::Absent { reason })?;
    let no_tdp = || {
        let text = format!("no TDP of this device alone is known ({})", sku.source);
        absent("no_tdp", text)
    };
    let watts = sku.tdp_watts.ok_or_else(no_tdp)?;
    Ok((watts, sku.source.clone()))
}
