//! What a token costs: figures of the metrics, drawn as they stand there.

use tprimat_figures::{Comparison, Figure, Row};

use super::{
    bars::{Bar, Entry, Panel, panels},
    canvas::Canvas,
    cell_selection::Shown,
    names::{Names, count_absent},
    style::{HEADING, INK},
    throughput::bars_apart,
};
use crate::format::metric as metric_text;

pub fn cost(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    let subtitle = format!(
        "From the rate and the price of an hour of one device, as configured.{}",
        bars_apart(comparison)
    );
    let mut canvas = shown.titled("Cost", &subtitle);
    let mut drawn = 0;
    for name in ["dollars_per_trillion_tokens", "tokens_per_dollar"] {
        drawn += metric_panels(&mut canvas, comparison, name);
    }
    if drawn == 0 {
        return Err(why_absent(comparison, "dollars_per_trillion_tokens"));
    }
    count_absent(&mut canvas, comparison);
    Ok(canvas)
}

/// Bars of one metric, by its unit, which may be another currency; how many panels.
pub fn metric_panels(canvas: &mut Canvas, comparison: &Comparison, name: &str) -> usize {
    let names = Names::wide(comparison);
    let metric = |row: &Row| row.metrics.0.iter().find(|m| m.name == name).cloned();
    let mut units: Vec<(String, String, Option<bool>)> = Vec::new();
    for found in comparison
        .rows
        .iter()
        .filter_map(metric)
        .filter(|m| m.figure.value().is_some())
    {
        if units.iter().all(|(_, unit, _)| *unit != found.unit) {
            units.push((found.title, found.unit, found.higher_is_better));
        }
    }
    let mut drawn = 0;
    for (title, unit, higher_is_better) in units {
        let better = match higher_is_better {
            Some(true) => ". Longer is better.",
            Some(false) => ". Shorter is better.",
            None => "",
        };
        let is_share = unit == "fraction";
        canvas.top += 6;
        canvas.paragraph(&format!("{title}{better}"), HEADING + 2, INK);
        let entry = |_: usize, row: &Row| -> Entry {
            let found = metric(row).ok_or("no figure of this kind")?;
            match found.figure {
                Figure::Ok { value, .. } if found.unit == unit => {
                    let figures = metric_text(value, &unit, "");
                    Ok(vec![Bar::new(
                        if is_share { value * 100.0 } else { value },
                        figures,
                    )])
                }
                Figure::Ok { .. } => Err(format!("in {}: see there", found.unit)),
                Figure::Absent { reason } => Err(reason.text.clone()),
                Figure::Error { reason } => Err(format!("impossible: {reason}")),
            }
        };
        drawn += panels(
            canvas,
            comparison,
            &names,
            &Panel {
                unit: if is_share { "%" } else { &unit },
                roof: None,
            },
            entry,
        );
    }
    drawn
}

/// The first reason that a row gives for having no such metric.
pub fn why_absent(comparison: &Comparison, name: &str) -> String {
    let reason = |row: &Row| match row.metrics.get(name)? {
        Figure::Absent { reason } | Figure::Error { reason } => Some(reason.text.clone()),
        Figure::Ok { .. } => None,
    };
    comparison
        .rows
        .iter()
        .find_map(reason)
        .unwrap_or_else(|| format!("no cell has `{name}`"))
}
