//! Power and energy of the measured steps, as sampled beside the runs.

use tprimat_figures::{RepeatStatus, RepeatSummary, Row, Telemetry};
use tprimat_results::mean;

use super::{
    bars::{Bar, Entry, Panel, panels},
    canvas::Canvas,
    cell_selection::Shown,
    names::{Names, count_absent},
    style::{HEADING, INK},
    throughput::bars_apart,
};
use crate::format::number;

const NONE: &str = "no power was sampled";

pub fn power(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    let subtitle = format!(
        "GPU boards only, over the measured steps; means over the counted repeats that were sampled.{}",
        bars_apart(comparison)
    );
    let mut canvas = shown.titled("Power and energy", &subtitle);
    let names = Names::wide(comparison);
    let mut drawn = 0;
    for (title, unit, entry) in [
        (
            "Mean power of all devices of a run",
            "W",
            watts as fn(&Row) -> Entry,
        ),
        ("Energy of one optimiser step, all devices", "J", joules),
    ] {
        if comparison.rows.iter().any(|row| entry(row).is_ok()) {
            canvas.top += 6;
            canvas.paragraph(title, HEADING + 2, INK);
            drawn += panels(
                &mut canvas,
                comparison,
                &names,
                &Panel { unit, roof: None },
                |_, row| entry(row),
            );
        }
    }
    if drawn == 0 {
        return Err(NONE.to_owned());
    }
    count_absent(&mut canvas, comparison);
    Ok(canvas)
}

/// Counted repeats with telemetry.
fn sampled(row: &Row) -> impl Iterator<Item = (&RepeatSummary, &Telemetry)> {
    let counted = row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    counted.filter_map(|r| Some((r, r.telemetry.as_ref()?)))
}

fn sources(row: &Row) -> String {
    let mut names: Vec<&str> = sampled(row).map(|(_, t)| t.source.as_str()).collect();
    names.dedup();
    names.join(", ")
}

fn watts(row: &Row) -> Entry {
    let all: Vec<f64> = sampled(row)
        .filter_map(|(_, t)| t.mean_power_watts)
        .collect();
    let value = mean(&all).ok_or(NONE)?;
    let devices = sampled(row).map(|(_, t)| t.devices).max().unwrap_or(0);
    let each = if devices > 1 {
        format!(", {} a device", number(value / devices as f64))
    } else {
        String::new()
    };
    let figures = format!(
        "{} W{each}, {}, {} of {} repeats",
        number(value),
        sources(row),
        all.len(),
        row.n
    );
    Ok(vec![Bar::new(value, figures)])
}

fn joules(row: &Row) -> Entry {
    let of_step = |(repeat, telemetry): (&RepeatSummary, &Telemetry)| {
        let steps = repeat
            .steady
            .as_ref()
            .map(|s| s.steps)
            .filter(|steps| *steps > 0)?;
        let energy = telemetry.energy.as_ref()?;
        Some((energy.joules / steps as f64, energy.method.clone()))
    };
    let all: Vec<(f64, String)> = sampled(row).filter_map(of_step).collect();
    let value = mean(&all.iter().map(|(joules, _)| *joules).collect::<Vec<_>>())
        .ok_or("no energy was sampled")?;
    let mut methods: Vec<&str> = all.iter().map(|(_, method)| method.as_str()).collect();
    methods.dedup();
    let figures = format!(
        "{} J ({}), {} of {} repeats",
        number(value),
        methods.join(", "),
        all.len(),
        row.n
    );
    Ok(vec![Bar::new(value, figures)])
}
