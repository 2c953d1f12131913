//! Rates: tokens/s/GPU with its interval, and the share of the dense peak.

use tprimat_figures::{Comparison, Mfu, Row, rate_unit};

use super::{
    bars::{Bar, Entry, Panel, panels},
    canvas::Canvas,
    cell_selection::Shown,
    names::{Names, absent, count_absent},
    sweep::swept_groups,
};
use crate::format::{number, percent};

/// What the bars of rates are.
pub const BARS: &str = "Bars: geometric mean over repeats; whiskers: 95 % interval; n: repeats that count. Longer is faster; the fastest comes first. A framework has one colour in all pictures.";

/// Warns of panels that are no comparison.
pub fn apart(comparison: &Comparison) -> &'static str {
    if comparison.groups.len() > 1 {
        " Panels are different workloads: do not compare across them."
    } else {
        ""
    }
}

/// Says that panels of bars are different workloads, where there are several. Points of a sweep have
/// no panel there.
pub fn bars_apart(comparison: &Comparison) -> &'static str {
    if bar_groups(comparison) > 1 {
        " Panels are different workloads: do not compare across them."
    } else {
        ""
    }
}

/// How many groups have bars.
pub fn bar_groups(comparison: &Comparison) -> usize {
    comparison.groups.len() - swept_groups(comparison).len()
}

pub fn throughput(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    if comparison.rows.is_empty() {
        return Err("no cell has figures".to_owned());
    }
    let subtitle = format!("{BARS}{}", bars_apart(comparison));
    let unit = rate_unit(comparison.rows.iter());
    let mut canvas = shown.titled(&format!("Training throughput, {unit}"), &subtitle);
    rates(&mut canvas, comparison);
    absent(&mut canvas, comparison);
    Ok(canvas)
}

pub fn rates(canvas: &mut Canvas, comparison: &Comparison) {
    let panel = Panel {
        unit: rate_unit(comparison.rows.iter()),
        roof: None,
    };
    let bar = |_: usize, row: &Row| -> Entry {
        if let Some(reason) = row.impossible() {
            return Err(format!("impossible: {reason}"));
        }
        let estimate = &row.tokens_per_second_per_gpu;
        Ok(vec![Bar {
            interval: estimate.ci95,
            ..Bar::new(estimate.value, rate_figures(row))
        }])
    };
    panels(canvas, comparison, &Names::wide(comparison), &panel, bar);
}

/// `10,682 (10,600 to 10,764), n = 3 of 3`
fn rate_figures(row: &Row) -> String {
    let estimate = &row.tokens_per_second_per_gpu;
    let mut figures = number(estimate.value);
    if let Some([low, high]) = estimate.ci95 {
        figures += &format!(" ({} to {})", number(low), number(high));
    }
    figures + &format!(", {}", counted(row))
}

/// `n = 3 of 5, 1 contradicted`
fn counted(row: &Row) -> String {
    let mut words = format!("n = {} of {}", row.n, row.repeats_wanted);
    for (why, count) in row.uncounted.by_why() {
        if count > 0 {
            words += &format!(", {count} {why}");
        }
    }
    words
}

pub fn mfu(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    let subtitle = format!(
        "Model FLOPs utilisation: FLOPs of the model a second, as a share of the device's dense peak.{}",
        bars_apart(comparison)
    );
    let mut canvas = shown.titled("MFU", &subtitle);
    let panel = Panel {
        unit: "% of the peak",
        roof: Some((100.0, "100 % = dense peak of the device")),
    };
    let bar = |_: usize, row: &Row| -> Entry {
        match &row.mfu {
            Mfu::Ok {
                value,
                convention,
                peak,
                ..
            } => {
                let figures = format!(
                    "{} of {} TFLOP/s; {convention}",
                    percent(*value),
                    number(peak.tflops)
                );
                Ok(vec![Bar::new(value * 100.0, figures)])
            }
            Mfu::Absent { reason } => Err(format!("no MFU: {reason}")),
            Mfu::Error { reason } => Err(format!("MFU is impossible: {reason}")),
        }
    };
    let drawn = panels(
        &mut canvas,
        comparison,
        &Names::wide(comparison),
        &panel,
        bar,
    );
    if drawn == 0 {
        let first = comparison.rows.iter().find_map(|row| bar(0, row).err());
        return Err(first.unwrap_or_else(|| "no cell has figures".to_owned()));
    }
    count_absent(&mut canvas, comparison);
    Ok(canvas)
}
