//! Rate over devices, and how much of the smaller cell's rate a device keeps.

use tprimat_figures::{Comparison, Row};
use tprimat_results::{CONFIDENCE, welch};

use super::{
    axis::extent,
    canvas::Canvas,
    cell_selection::Shown,
    chart::{Curve, Frame, room_for},
    cost::{metric_panels, why_absent},
    names::Names,
    style::{FAINT, MARGIN, MOST_LINES, WIDTH},
    throughput::apart,
};

const METRIC: &str = "scaling_efficiency";
const HEIGHT: i32 = 360;

pub fn scaling(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    let subtitle = format!(
        "Dashed: the rate of the smallest cell times devices. A line joins cells that differ in nothing but the number of \
         devices and what follows from it; with the global batch unchanged (strong scaling) or grown (weak scaling).{}",
        apart(comparison)
    );
    let mut canvas = shown.titled("Scaling", &subtitle);
    let mut drawn = 0;
    let names = Names::beside_samples(comparison);
    let mut models: Vec<&str> = comparison
        .rows
        .iter()
        .map(|row| row.model.as_str())
        .collect();
    models.sort_unstable();
    models.dedup();
    for model in models {
        let series = lines(comparison, model);
        for some in series.chunks(MOST_LINES) {
            canvas.heading(model);
            draw(&mut canvas, &names, comparison, some);
            drawn += 1;
        }
    }
    drawn += metric_panels(&mut canvas, comparison, METRIC);
    if drawn == 0 {
        return Err(why_absent(comparison, METRIC));
    }
    Ok(canvas)
}

/// A row's index, devices and rate of all of them.
type At = (usize, f64, f64);

/// Lines from a cell through those of its model whose metric has it as the reference, smallest
/// first. Two cells of as many devices are never on one line, nor are strong and weak scaling.
fn lines(comparison: &Comparison, model: &str) -> Vec<Vec<At>> {
    let at = |row: &Row| {
        Some((
            row.contract.count("num_gpus")? as f64,
            row.tokens_per_second?,
        ))
    };
    let batch = |row: &Row| row.contract.count("global_batch_size");
    let mut pairs: Vec<(At, At, bool)> = Vec::new();
    for (index, row) in comparison
        .rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.model == model)
    {
        let metric = row
            .metrics
            .0
            .iter()
            .find(|m| m.name == METRIC && m.figure.value().is_some());
        let Some(reference) = metric.and_then(|m| m.reference.as_ref()) else {
            continue;
        };
        let base = comparison
            .rows
            .iter()
            .enumerate()
            .find(|(_, r)| r.cell == *reference);
        let Some((from, base)) = base else { continue };
        let (Some((devices, rate)), Some((of_base, rate_of_base))) = (at(row), at(base)) else {
            continue;
        };
        if of_base < devices {
            pairs.push((
                (from, of_base, rate_of_base),
                (index, devices, rate),
                batch(base) == batch(row),
            ));
        }
    }
    // Stable: matrix order among equals.
    pairs.sort_by(|a, b| {
        a.0.0
            .cmp(&b.0.0)
            .then(a.2.cmp(&b.2))
            .then(a.1.1.total_cmp(&b.1.1))
    });
    let mut lines: Vec<(bool, Vec<At>)> = Vec::new();
    for (base, cell, is_strong) in pairs {
        let goes_on = |(strong, line): &&mut (bool, Vec<At>)| {
            let is_larger = line.last().is_some_and(|last| last.1 < cell.1);
            *strong == is_strong && line[0].0 == base.0 && is_larger
        };
        match lines.iter_mut().find(goes_on) {
            Some((_, line)) => line.push(cell),
            None => lines.push((is_strong, vec![base, cell])),
        }
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

fn draw(canvas: &mut Canvas, names: &Names, comparison: &Comparison, lines: &[Vec<At>]) {
    let (left, top, width) = (MARGIN, canvas.top, WIDTH - 2 * MARGIN);
    let ends = lines.iter().filter_map(|line| line.last());
    let tags: Vec<String> = ends.map(|at| names.tag(at.0)).collect();
    let frame = Frame {
        left,
        top,
        width,
        height: HEIGHT,
        tags: room_for(tags.iter().map(String::as_str)),
        title: "tokens/s, all devices",
        x_title: "devices",
    };
    let points = || lines.iter().flatten();
    let [_, most] = extent(points().map(|p| p.1)).unwrap_or([0.0, 1.0]);
    let [_, fastest] = extent(points().map(|p| p.2)).unwrap_or([0.0, 1.0]);
    let ideals: Vec<f64> = lines.iter().map(|line| line[0].2 / line[0].1).collect();
    let best = ideals.iter().copied().fold(0.0, f64::max) * most;
    let (x, y) = (
        frame.x([0.0, most]),
        frame.y([0.0, fastest.max(best) * 1.02]),
    );
    frame.draw(canvas, &x, &y);
    for (line, ideal) in lines.iter().zip(&ideals) {
        let end = line.last().map_or(most, |p| p.1);
        canvas.dashed(
            (x.at(0.0), y.at(0.0)),
            (x.at(end), y.at(ideal * end)),
            FAINT,
        );
    }
    let curve = |(style, line): (usize, &Vec<At>)| Curve {
        tag: line.last().map_or_else(String::new, |p| names.tag(p.0)),
        pen: Some(names.pen(line[0].0, style)),
        points: line.iter().map(|p| (p.1, p.2)).collect(),
    };
    frame.curves(
        canvas,
        &lines.iter().enumerate().map(curve).collect::<Vec<_>>(),
        &x,
        &y,
    );
    canvas.top = top + HEIGHT;
    for (style, line) in lines.iter().enumerate() {
        for (index, devices, rate) in line {
            names.draw_with_sample(canvas, *index, style);
            let each = rate / devices / (line[0].2 / line[0].1);
            let smaller = &comparison.rows[line[0].0].cell;
            let units = |row: usize| &comparison.rows[row].tokens_per_second_per_gpu.units;
            let test = welch(units(*index), units(line[0].0)).filter(|_| *index != line[0].0);
            let interval = test.and_then(|test| test.interval(CONFIDENCE));
            let interval = interval.map_or_else(String::new, |ends| {
                let [low, high] = ends.map(|end| end * 100.0);
                format!(" (95 % CI {low:.1}–{high:.1} %)")
            });
            let words = format!(
                "{devices} {}: {} tokens/s, {:.1} %{interval} of the rate per device of {smaller}",
                if *devices == 1.0 { "device" } else { "devices" },
                crate::format::number(*rate),
                each * 100.0
            );
            names.draw_below(canvas, &words);
        }
    }
    canvas.top += 10;
}
