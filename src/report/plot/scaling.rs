//! Rate over devices, and how much of the smaller cell's rate a device keeps.

use std::collections::BTreeMap;

use super::{
    axis::extent,
    canvas::Canvas,
    chart::{Curve, Frame},
    cost::{metric_panels, why_absent},
    names::{Names, group_heading},
    style::{FAINT, MARGIN, MOST_LINES, SMALL, WIDTH},
    throughput::apart,
};
use crate::analyze::{Comparison, Row};

const METRIC: &str = "scaling_efficiency";
const HEIGHT: i32 = 360;
const SAMPLE: i32 = 44;

pub fn scaling(comparison: &Comparison) -> Result<Canvas, String> {
    let subtitle = format!(
        "Dashed: the rate of the smallest cell times devices. Cells of different device counts are different workloads, \
         and share a panel only where that was asked for.{}",
        apart(comparison)
    );
    let mut canvas = Canvas::titled("Scaling", &subtitle);
    let mut drawn = 0;
    let names = Names::new(comparison, MARGIN + SAMPLE, WIDTH - 2 * MARGIN - SAMPLE);
    for (i, group) in comparison.groups.iter().enumerate() {
        let series = lines(comparison, i);
        for some in series.chunks(MOST_LINES) {
            canvas.heading(&group_heading(group));
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

/// Cells of a group that differ in nothing but their devices, smallest first; only where there are several.
fn lines(comparison: &Comparison, group: usize) -> Vec<Vec<(usize, f64, f64)>> {
    let mut by_kind: BTreeMap<String, Vec<(usize, f64, f64)>> = BTreeMap::new();
    for (index, row) in comparison.rows.iter().enumerate().filter(|(_, row)| row.group == group) {
        let (Some(devices), Some(rate)) = (row.contract.count("num_gpus"), row.tokens_per_second) else { continue };
        by_kind.entry(kind(row, devices)).or_default().push((index, devices as f64, rate));
    }
    let mut lines: Vec<_> = by_kind.into_values().collect();
    for line in &mut lines {
        line.sort_by(|a, b| a.1.total_cmp(&b.1));
    }
    lines.retain(|line| line.first().zip(line.last()).is_some_and(|(first, last)| first.1 < last.1));
    lines
}

fn kind(row: &Row, devices: u64) -> String {
    let devices = devices.to_string();
    let axes: Vec<String> = row.axes.iter().filter(|(_, v)| **v != devices).map(|(k, v)| format!("{k}={v}")).collect();
    format!("{}/{}/{}/{} {}", row.platform, row.framework, row.model, row.precision, axes.join(","))
}

fn draw(canvas: &mut Canvas, names: &Names, comparison: &Comparison, lines: &[Vec<(usize, f64, f64)>]) {
    let (left, top, width) = (MARGIN, canvas.top, WIDTH - 2 * MARGIN);
    let frame = Frame { left, top, width, height: HEIGHT, title: "tokens/s, all devices", x_title: "devices" };
    let points = || lines.iter().flatten();
    let [_, most] = extent(points().map(|p| p.1)).unwrap_or([0.0, 1.0]);
    let [_, fastest] = extent(points().map(|p| p.2)).unwrap_or([0.0, 1.0]);
    let ideals: Vec<f64> = lines.iter().map(|line| line[0].2 / line[0].1).collect();
    let best = ideals.iter().copied().fold(0.0, f64::max) * most;
    let (x, y) = (frame.x([0.0, most]), frame.y([0.0, fastest.max(best) * 1.02]));
    frame.draw(canvas, &x, &y);
    for (line, ideal) in lines.iter().zip(&ideals) {
        let end = line.last().map_or(most, |p| p.1);
        canvas.dashed((x.at(0.0), y.at(0.0)), (x.at(end), y.at(ideal * end)), FAINT);
    }
    let curve = |(style, line): (usize, &Vec<(usize, f64, f64)>)| Curve {
        tag: line.last().map_or_else(String::new, |p| (p.0 + 1).to_string()),
        style: Some(style),
        points: line.iter().map(|p| (p.1, p.2)).collect(),
    };
    frame.curves(canvas, &lines.iter().enumerate().map(curve).collect::<Vec<_>>(), &x, &y);
    canvas.top = top + HEIGHT;
    for (style, line) in lines.iter().enumerate() {
        for (index, devices, rate) in line {
            canvas.sample(style, (MARGIN, canvas.top + 7));
            names.draw(canvas, *index);
            let each = rate / devices / (line[0].2 / line[0].1);
            let smaller = &comparison.rows[line[0].0].cell;
            let words = format!(
                "{devices} {}: {} tokens/s, {:.1} % of the rate per device of {smaller}",
                if *devices == 1.0 { "device" } else { "devices" },
                crate::report::format::number(*rate),
                each * 100.0
            );
            canvas.lines_of(&words, MARGIN + SAMPLE + 16, WIDTH - 2 * MARGIN - SAMPLE - 16, SMALL, FAINT);
        }
    }
    canvas.top += 10;
}
