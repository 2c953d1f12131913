//! Rate over devices, and how much of the smaller cell's rate a device keeps.

use tprimat_numbers::results::{CONFIDENCE, welch};

use super::{
    axis::{Scale, extent},
    canvas::Canvas,
    cells::{Cell, Shown},
    format::number,
    lines::{Curve, Dashes, Lines},
    rates::{metric, why_absent},
    style::{FAINT, MOST_LINES},
};

const METRIC: &str = "scaling_efficiency";
const HEIGHT: i32 = 360;

pub fn scaling(shown: &Shown) -> Result<Canvas, String> {
    let subtitle = "Dashed: the rate of the smallest cell times devices. A line joins cells that differ in nothing but the number of \
         devices and what follows from it; with the global batch unchanged (strong scaling) or grown (weak scaling).";
    let mut canvas = shown.titled("Scaling", subtitle, shown.workloads.len());
    let mut drawn = 0;
    let mut models: Vec<&str> = shown.rows().map(|row| row.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    for model in models {
        for some in lines(shown, model).chunks(MOST_LINES) {
            canvas.heading(model);
            draw(&mut canvas, some);
            drawn += 1;
        }
    }
    for panels in metric(shown, METRIC) {
        drawn += panels.draw(&mut canvas, shown);
    }
    match drawn {
        0 => Err(why_absent(shown, METRIC)),
        _ => Ok(canvas),
    }
}

#[derive(Clone, Copy)]
struct Point<'a> {
    cell: &'a Cell<'a>,
    devices: f64,
    /// Of all devices.
    rate: f64,
}

impl Point<'_> {
    fn batch(&self) -> Option<u64> {
        self.cell.row.contract.count("global_batch_size")
    }
}

/// Lines from a cell through those of its model whose metric has it as the reference, smallest
/// first. Two cells of as many devices are never on one line, nor are strong and weak scaling.
fn lines<'a>(shown: &'a Shown, model: &str) -> Vec<Vec<Point<'a>>> {
    let point = |cell: &'a Cell<'a>| {
        Some(Point {
            cell,
            devices: cell.row.contract.count("num_gpus")? as f64,
            rate: cell.row.tokens_per_second?,
        })
    };
    let pair = |cell: &'a Cell<'a>| {
        let mut metrics = cell.row.metrics.0.iter();
        let metric = metrics.find(|m| m.name == METRIC && m.figure.value().is_some())?;
        let base = shown
            .cells()
            .find(|base| Some(&base.row.cell) == metric.reference.as_ref())?;
        let (base, point) = (point(base)?, point(cell)?);
        (base.devices < point.devices).then_some((base, point))
    };
    let of_model = shown.cells().filter(|cell| cell.row.model == model);
    let mut pairs: Vec<(Point, Point)> = of_model.filter_map(pair).collect();
    let is_strong = |base: &Point, point: &Point| base.batch() == point.batch();
    pairs.sort_by(|(a, a_point), (b, b_point)| {
        let of_base = a.cell.row.cell.cmp(&b.cell.row.cell);
        let kind = is_strong(a, a_point).cmp(&is_strong(b, b_point));
        let devices = a_point.devices.total_cmp(&b_point.devices);
        of_base.then(kind).then(devices)
    });
    let mut lines: Vec<Vec<Point>> = Vec::new();
    for (base, point) in pairs {
        let goes_on = |line: &&mut Vec<Point>| {
            is_strong(&line[0], &line[1]) == is_strong(&base, &point)
                && line[0].cell.row.cell == base.cell.row.cell
                && line[line.len() - 1].devices < point.devices
        };
        match lines.iter_mut().find(goes_on) {
            Some(line) => line.push(point),
            None => lines.push(vec![base, point]),
        }
    }
    lines
}

fn draw(canvas: &mut Canvas, lines: &[Vec<Point>]) {
    let points = || lines.iter().flatten();
    let [_, most] = extent(points().map(|p| p.devices)).unwrap_or([0.0, 1.0]);
    let [_, fastest] = extent(points().map(|p| p.rate)).unwrap_or([0.0, 1.0]);
    let ideal = |line: &Vec<Point>| line[0].rate / line[0].devices;
    let best = lines.iter().map(ideal).fold(0.0, f64::max) * most;
    let (x, y) = ([0.0, most], [0.0, fastest.max(best) * 1.02]);
    let mut panel = Lines::new(
        "tokens/s, all devices",
        "devices",
        Scale::new(x),
        Scale::new(y),
    );
    for (place, line) in lines.iter().enumerate() {
        let (first, last) = (&line[0], &line[line.len() - 1]);
        panel.dashes.push(Dashes {
            from: (0.0, 0.0),
            to: (last.devices, ideal(line) * last.devices),
            colour: FAINT,
            number: String::new(),
        });
        let points = line
            .iter()
            .map(|point| (point.devices, point.rate))
            .collect();
        let curve = Curve::at_place(place, &last.cell.tag, first.cell.colour, points);
        panel.curves.push(curve);
    }
    panel.draw_wide(canvas, HEIGHT);
    for (place, line) in lines.iter().enumerate() {
        for point in line {
            let words = in_words(point, &line[0]);
            point
                .cell
                .draw_key(canvas, place, line[0].cell.colour, &words);
        }
    }
    canvas.top += 10;
}

/// `4 devices: 3,600 tokens/s, 90.0 % (95 % CI 89.1–90.9 %) of the rate per device of …`
fn in_words(point: &Point, first: &Point) -> String {
    let units = |point: &Point| point.cell.row.tokens_per_second_per_gpu.units.clone();
    let test = welch(&units(point), &units(first));
    let test = test.filter(|_| point.cell.row.cell != first.cell.row.cell);
    let interval = test.and_then(|test| test.interval(CONFIDENCE));
    let interval = interval.map_or_else(String::new, |ends| {
        let [low, high] = ends.map(|end| end * 100.0);
        format!(" (95 % CI {low:.1}–{high:.1} %)")
    });
    let share = point.rate / point.devices / (first.rate / first.devices) * 100.0;
    format!(
        "{} {}: {} tokens/s, {share:.1} %{interval} of the rate per device of {}",
        point.devices,
        if point.devices == 1.0 {
            "device"
        } else {
            "devices"
        },
        number(point.rate),
        first.cell.row.cell
    )
}
