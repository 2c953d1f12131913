//! The picture of the whole comparison: rates of all cells, and the curves of as many as can be
//! told apart.

use tprimat_numbers::figures::{Row, rate_unit, sweeps};
use tprimat_numbers::results::quantile;

use super::{
    axis::{Scale, extent},
    canvas::Canvas,
    cells::{Cell, Shown, Workload},
    lines::{Curve, Lines, draw_beside},
    loss::loss_axis,
    rates::{BARS, rates},
    series::{Series, median, thinned},
    style::{FAINT, LINE, MOST_LINES, SMALL},
    sweep,
};

const HEIGHT: i32 = 380;
/// Points of a line: a panel is no wider.
const POINTS: usize = 400;
/// Points of a line that only stands behind the others.
const BEHIND: usize = 100;

pub fn overview(shown: &Shown) -> Result<Canvas, String> {
    let found = sweeps(shown.all, shown.judged());
    let workloads = shown.bar_workloads();
    let bars = (workloads > 0).then(|| BARS.to_owned());
    let subtitle: Vec<String> = sweep::caption(&found).into_iter().chain(bars).collect();
    let title = format!("Training throughput, {}", rate_unit(shown.rows()));
    let mut canvas = shown.titled(&title, &subtitle.join(" "), workloads);
    sweep::rates(&mut canvas, shown.all, &found);
    rates(shown).draw(&mut canvas, shown);
    shown.list_absent(&mut canvas);
    for workload in shown.workloads.iter().filter(|one| !one.is_swept) {
        curves(&mut canvas, workload);
    }
    Ok(canvas)
}

fn curves<'a>(canvas: &mut Canvas, workload: &'a Workload<'a>) {
    let cells = &workload.cells;
    // All cells, or the fastest and the slowest of many.
    let (ends, all) = (MOST_LINES / 2, cells.len());
    let has_place = |at: usize| all <= MOST_LINES || at < ends || at >= all - ends;
    let place_of = |at: usize| {
        if at < ends {
            at
        } else {
            at + MOST_LINES - all.max(MOST_LINES)
        }
    };
    let series = |values: fn(&Row) -> Series| -> Vec<(&'a Cell<'a>, Curve)> {
        let curve = |(at, cell): (usize, &'a Cell<'a>)| {
            let curve = if has_place(at) {
                let points = thinned(values(cell.row), POINTS);
                Curve::at_place(place_of(at), &cell.tag, cell.colour, points)
            } else {
                Curve::plain(LINE, 1, thinned(values(cell.row), BEHIND))
            };
            (cell, curve)
        };
        let curves = cells.iter().enumerate().map(curve);
        let mut drawn: Vec<_> = curves
            .filter(|(_, curve)| !curve.points.is_empty())
            .collect();
        // The grey ones behind the others.
        drawn.sort_by_key(|(_, curve)| curve.mark.is_some());
        drawn
    };
    let losses = series(|row| median(row, |curve| &curve.loss));
    let mut times = series(measured_times);
    if losses.is_empty() && times.is_empty() {
        return;
    }
    // The baseline's, if it logs one; else that of the fastest that does.
    let is_baseline = |cell: &Cell| cell.row.cell == workload.group.baseline;
    let logged = || {
        cells
            .iter()
            .filter(|cell| losses.iter().any(|(one, _)| one.row.cell == cell.row.cell))
    };
    let shown = logged()
        .find(|cell| is_baseline(cell))
        .or_else(|| logged().next());
    let shown = shown.map(|cell| cell.row.loss_group);
    let (losses, apart): (Vec<_>, Vec<_>) = losses
        .into_iter()
        .partition(|(cell, _)| Some(cell.row.loss_group) == shown);
    // Slow first steps would flatten everything else.
    let highest = times.iter().filter_map(|(_, curve)| {
        let seconds: Vec<f64> = curve.points.iter().map(|p| p.1).collect();
        quantile(&seconds, 0.98)
    });
    let highest = highest.fold(0.0, f64::max) * 1.2;
    for (_, curve) in &mut times {
        curve.points.retain(|(_, seconds)| *seconds <= highest);
    }
    workload.draw_heading(canvas);
    let mut words = "Medians over repeats; colours are those of the bars.".to_owned();
    if all > MOST_LINES {
        words +=
            &format!(" The {ends} fastest and {ends} slowest of {all} cells; the others in grey.");
    }
    if !apart.is_empty() {
        let names: Vec<&str> = apart.iter().map(|(cell, _)| cell.tag.as_str()).collect();
        let names = names.join(", ");
        words += &format!(" Not with the losses, for seed, data or schedule differ: {names}.");
    }
    canvas.paragraph(&words, SMALL, FAINT);
    canvas.top += 4;
    let panels = [
        ("loss", losses),
        (
            "step time, s; measured steps up to 1.2 × the 98th percentile",
            times,
        ),
    ];
    draw_beside(
        canvas,
        HEIGHT,
        &panels.map(|(title, curves)| panel(title, curves)),
    );
    canvas.top += 6;
}

fn panel(title: &str, curves: Vec<(&Cell, Curve)>) -> Lines {
    let curves: Vec<Curve> = curves.into_iter().map(|(_, curve)| curve).collect();
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (steps, values) = (extent(points().map(|p| p.0)), extent(points().map(|p| p.1)));
    let (Some(steps), Some(values)) = (steps, values) else {
        let title = format!("{title}: no values");
        return Lines::new(
            &title,
            "step",
            Scale::new([0.0, 1.0]),
            Scale::new([0.0, 1.0]),
        );
    };
    let mut lines = Lines::new(title, "step", Scale::new(steps), loss_axis(values));
    lines.curves = curves;
    lines
}

/// From the first step that any repeat measures.
fn measured_times(row: &Row) -> Series {
    let cuts = row
        .repeats
        .iter()
        .filter_map(|r| r.steady.as_ref()?.cut.as_ref());
    let first = cuts.map(|cut| cut.first_step).min().unwrap_or(0) as f64;
    let mut times = median(row, |curve| &curve.step_time_seconds);
    times.retain(|(step, _)| *step >= first);
    times
}
