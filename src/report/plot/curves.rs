//! Loss and step time against step: one line a cell, the median over its repeats, each repeat faintly behind it.

use std::collections::BTreeMap;

use plotters::{
    coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    prelude::*,
};

use super::style::{Drawing, FAINT, FONT, INK, LINE, colour, tick_label, to_error};
use crate::{
    analyze::{Curve, RepeatStatus, Row, quantile},
    error::Result,
};

/// Points of a line; more would not be seen.
const POINTS: usize = 600;
/// Where the largest value is this many times the smallest, the axis is logarithmic.
const LOGARITHMIC: f64 = 8.0;

type Series = Vec<(f64, f64)>;

pub fn draw<DB: DrawingBackend>(area: &Drawing<DB>, rows: &[Row]) -> Result<()> {
    let (left, right) = area.split_horizontally(area.dim_in_pixel().0 / 2);
    panel(&left, rows, "Loss against step", "loss", |curve| &curve.loss)?;
    panel(&right, rows, "Step time against step", "step time (s)", |curve| &curve.step_time_seconds)
}

/// One cell's lines.
struct Lines {
    index: usize,
    median: Series,
    repeats: Vec<Series>,
}

fn panel<DB: DrawingBackend>(
    area: &Drawing<DB>,
    rows: &[Row],
    caption: &str,
    unit: &str,
    values: fn(&Curve) -> &Vec<Option<f64>>,
) -> Result<()> {
    let all: Vec<Lines> = rows.iter().enumerate().map(|(index, row)| lines(index, row, values)).collect();
    let points = || all.iter().flat_map(|l| l.repeats.iter().flatten());
    let extent = |pick: fn(&(f64, f64)) -> f64| {
        points().map(pick).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (x_low, x_high) = extent(|p| p.0);
    let (y_low, y_high) = extent(|p| p.1);
    if x_low > x_high {
        let empty = (FONT, 15).into_font().color(&FAINT);
        return area.draw(&Text::new(format!("{caption}: no values"), (60, 40), empty)).map_err(to_error);
    }
    let x = (x_low.min(1.0))..x_high.max(x_low + 1.0);
    if y_low > 0.0 && y_high / y_low > LOGARITHMIC {
        // Within two decades, ticks at powers of ten would be too few.
        let base = if y_high / y_low < 100.0 { 2.0 } else { 10.0 };
        chart(
            area,
            &all,
            [caption, &format!("{unit}, logarithmic")],
            x,
            (y_low / 1.1..y_high * 1.1).log_scale().base(base),
        )
    } else {
        // A curve that stays away from 0 is shown from where it is; one that is near it, from 0.
        let floor = if y_low > 0.0 && y_low < y_high * 0.5 { 0.0 } else { y_low };
        let margin = ((y_high - floor) * 0.06).max(y_high.abs() * 1e-3).max(1e-12);
        let low = if floor == 0.0 { 0.0 } else { floor - margin };
        chart(area, &all, [caption, unit], x, low..y_high + margin)
    }
}

fn chart<DB, Y>(
    area: &Drawing<DB>,
    all: &[Lines],
    [caption, unit]: [&str; 2],
    x: std::ops::Range<f64>,
    y: Y,
) -> Result<()>
where
    DB: DrawingBackend,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 17).into_font().color(&INK))
        .margin_left(12)
        .margin_right(28)
        .margin_bottom(10)
        .margin_top(6)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(x, y)
        .map_err(to_error)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(LINE)
        .axis_style(FAINT)
        .x_labels(8)
        .y_labels(7)
        .x_desc("optimiser step")
        .y_desc(unit)
        .label_style((FONT, 14).into_font().color(&FAINT))
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .x_label_formatter(&|v| format!("{v:.0}"))
        .y_label_formatter(&|v| tick_label(*v))
        .draw()
        .map_err(to_error)?;
    for lines in all {
        let colour = colour(lines.index);
        if lines.repeats.len() > 1 {
            for repeat in &lines.repeats {
                chart
                    .draw_series(LineSeries::new(repeat.clone(), colour.mix(0.25).stroke_width(1)))
                    .map_err(to_error)?;
            }
        }
    }
    for lines in all {
        let style = colour(lines.index).stroke_width(2);
        chart.draw_series(LineSeries::new(lines.median.clone(), style)).map_err(to_error)?;
    }
    Ok(())
}

fn lines(index: usize, row: &Row, values: fn(&Curve) -> &Vec<Option<f64>>) -> Lines {
    let mut by_step: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let mut repeats = Vec::new();
    for curve in row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok).map(|r| &r.curve) {
        let points: Vec<(u64, f64)> = curve
            .step
            .iter()
            .zip(values(curve))
            .filter_map(|(step, value)| Some((*step, (*value)?)))
            .filter(|(_, value)| value.is_finite())
            .collect();
        for (step, value) in &points {
            by_step.entry(*step).or_default().push(*value);
        }
        repeats.push(thinned(points));
    }
    let median = by_step.into_iter().filter_map(|(step, values)| Some((step, quantile(&values, 0.5)?))).collect();
    Lines { index, median: thinned(median), repeats }
}

/// At most about [`POINTS`] points: each the median of its neighbours, at the last of their steps.
fn thinned(points: Vec<(u64, f64)>) -> Series {
    let size = points.len().div_ceil(POINTS).max(1);
    let middle = |chunk: &[(u64, f64)]| {
        let values: Vec<f64> = chunk.iter().map(|(_, value)| *value).collect();
        Some((chunk.last()?.0 as f64, quantile(&values, 0.5)?))
    };
    points.chunks(size).filter_map(middle).collect()
}
