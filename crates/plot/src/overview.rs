//! The picture of the whole comparison: rates of all cells, and the curves of as many as can be
//! told apart.

use tprimat_figures::{Comparison, Row, rate_unit, sweeps};
use tprimat_results::quantile;

use super::{
    axis::extent,
    canvas::Canvas,
    cell_selection::Shown,
    chart::{Curve, Frame, room_for},
    loss::loss_axis,
    names::{Names, absent, group_heading},
    series::{Series, median, thinned},
    style::{FAINT, GAP, HALF, MARGIN, MOST_LINES, SMALL},
    sweep,
    throughput::{BARS, bar_groups, bars_apart, rates},
};

const HEIGHT: i32 = 380;
/// Points of a line: a panel is no wider.
const POINTS: usize = 400;
/// Points of a line that only stands behind the others.
const BEHIND: usize = 100;

pub fn overview(shown: &Shown) -> Canvas {
    let comparison = &shown.comparison;
    let found = sweeps(shown.all, shown.judged());
    let sweeps = sweep::caption(&found);
    let bars = match bar_groups(comparison) {
        0 => None,
        _ => Some(format!("{BARS}{}", bars_apart(comparison))),
    };
    let subtitle: Vec<String> = sweeps.into_iter().chain(bars).collect();
    let subtitle = subtitle.join(" ");
    let unit = rate_unit(comparison.rows.iter());
    let mut canvas = shown.titled(&format!("Training throughput, {unit}"), &subtitle);
    let chosen: Vec<Vec<usize>> = (0..comparison.groups.len())
        .map(|group| chosen(comparison, group))
        .collect();
    sweep::rates(&mut canvas, shown.all, &found);
    let swept = sweep::swept_groups(comparison);
    rates(&mut canvas, comparison);
    absent(&mut canvas, comparison);
    let names = Names::beside_samples(comparison);
    for (group, chosen) in chosen
        .iter()
        .enumerate()
        .filter(|(i, _)| !swept.contains(i))
    {
        curves(&mut canvas, &names, comparison, (group, chosen));
    }
    canvas
}

/// All cells of a group, or the fastest and the slowest of many, by index.
fn chosen(comparison: &Comparison, group: usize) -> Vec<usize> {
    let rows = comparison.rows.iter().enumerate();
    let mut members: Vec<(usize, f64)> = rows
        .filter(|(_, row)| row.group == group)
        .map(|(i, row)| (i, row.tokens_per_second_per_gpu.value))
        .collect();
    if members.len() > MOST_LINES {
        members.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        members.drain(MOST_LINES / 2..members.len() - MOST_LINES / 2);
        members.sort_unstable_by_key(|(i, _)| *i);
    }
    members.into_iter().map(|(i, _)| i).collect()
}

fn curves(
    canvas: &mut Canvas,
    names: &Names,
    comparison: &Comparison,
    (group, chosen): (usize, &[usize]),
) {
    let members = || {
        comparison
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.group == group)
    };
    let series = |values: fn(&Row) -> Series| -> Vec<(usize, Curve)> {
        let curve = |(index, row): (usize, &Row)| {
            let mark = chosen.iter().position(|i| *i == index);
            let points = thinned(values(row), if mark.is_some() { POINTS } else { BEHIND });
            let curve = Curve {
                tag: names.tag(index),
                pen: mark.map(|mark| names.pen(index, mark)),
                points,
            };
            (index, curve)
        };
        members()
            .map(curve)
            .filter(|(_, curve)| !curve.points.is_empty())
            .collect()
    };
    let rows: Vec<(usize, &Row)> = members().collect();
    let mut loss = series(|row| median(row, |curve| &curve.loss));
    // The baseline's, if it logs one; else the first that is logged.
    let is_logged = |(i, _): &&(usize, &Row)| loss.iter().any(|(index, _)| index == i);
    let baseline = rows
        .iter()
        .filter(is_logged)
        .find(|(_, row)| row.cell == comparison.groups[group].baseline);
    let shown = baseline
        .or_else(|| rows.iter().find(is_logged))
        .map(|(_, row)| row.loss_group);
    let apart: Vec<usize> = rows
        .iter()
        .filter(is_logged)
        .filter(|(_, row)| Some(row.loss_group) != shown)
        .map(|(i, _)| *i)
        .collect();
    loss.retain(|(index, _)| !apart.contains(index));
    let curves_of = |all: Vec<(usize, Curve)>| -> Vec<Curve> {
        all.into_iter().map(|(_, curve)| curve).collect()
    };
    let loss = curves_of(loss);
    let mut times = curves_of(series(measured_times));
    // Slow first steps would flatten everything else.
    let highest = times
        .iter()
        .filter_map(|c| quantile(&c.points.iter().map(|p| p.1).collect::<Vec<_>>(), 0.98));
    let highest = highest.fold(0.0, f64::max) * 1.2;
    times
        .iter_mut()
        .for_each(|curve| curve.points.retain(|p| p.1 <= highest));
    if loss.is_empty() && times.is_empty() {
        return;
    }
    canvas.heading(&group_heading(comparison, group));
    let named = loss
        .iter()
        .chain(&times)
        .filter(|curve| curve.pen.is_some());
    let named = named.map(|curve| curve.tag.as_str());
    let all = members().count();
    let which = if all > chosen.len() {
        format!(
            " The {} fastest and {} slowest of {all} cells; the others in grey.",
            MOST_LINES / 2,
            MOST_LINES / 2
        )
    } else {
        String::new()
    };
    let apart = match apart.len() {
        0 => String::new(),
        _ => format!(
            " Not with the losses, for seed, data or schedule differ: {}.",
            apart
                .iter()
                .map(|index| names.tag(*index))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let said = format!("Medians over repeats; colours are those of the bars.{which}{apart}");
    canvas.paragraph(&said, SMALL, FAINT);
    let top = canvas.top + 4;
    for (left, title, curves) in [
        (MARGIN, "loss", &loss),
        (
            MARGIN + HALF + GAP,
            "step time, s; measured steps up to 1.2 × the 98th percentile",
            &times,
        ),
    ] {
        let frame = Frame {
            left,
            top,
            width: HALF,
            height: HEIGHT,
            tags: room_for(named.clone()),
            title,
            x_title: "step",
        };
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let (Some(steps), Some(values)) =
            (extent(points().map(|p| p.0)), extent(points().map(|p| p.1)))
        else {
            canvas.text(
                &format!("{title}: no values"),
                (left + 8, top),
                SMALL,
                FAINT,
                super::canvas::Anchor::Left,
            );
            continue;
        };
        let (x, y) = (frame.x(steps), loss_axis(&frame, values));
        frame.draw(canvas, &x, &y);
        frame.curves(canvas, curves, &x, &y);
    }
    canvas.top = top + HEIGHT + 6;
}

/// From the first step that any counted repeat measures.
fn measured_times(row: &Row) -> Series {
    let cut =
        |r: &tprimat_figures::RepeatSummary| Some(r.steady.as_ref()?.cut.as_ref()?.first_step);
    let first = row.repeats.iter().filter_map(cut).min().unwrap_or(0) as f64;
    median(row, |curve| &curve.step_time_seconds)
        .into_iter()
        .filter(|(step, _)| *step >= first)
        .collect()
}
