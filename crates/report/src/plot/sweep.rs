//! Cells over a numeric axis: curves with intervals, a line a framework; over two axes a line each value
//! of the second one.

use std::collections::BTreeSet;

use tprimat_numbers::figures::{Comparison, Row, Surface, Sweep, SweepPoint, rate_unit, sweeps};
use tprimat_numbers::results::GIB;

use super::{
    axis::{Scale, extent},
    canvas::{Canvas, Mark},
    cells::Shown,
    format::grouped,
    lines::{Curve, Lines, WIDEST_TAG, Whisker, draw_beside},
    short_names::without_axes,
    style::{FAINT, INK, MOST_LINES, SMALL, TEXT, colour_of},
    sweep_text::sweep_sentences,
    text::elide_names,
};

/// A value, and its interval where it has one.
type Reading = (f64, Option<[f64; 2]>);

/// What is drawn as one line.
struct Drawn<'a> {
    name: String,
    points: Vec<&'a SweepPoint>,
    /// The fastest point of its surface, where that is known and on this line.
    fastest: Option<&'a SweepPoint>,
}

const HEIGHT: i32 = 300;
/// Models of a picture, and lines of a model.
const MOST_SWEEPS: usize = 8;
const MOST_DRAWN: usize = 24;
/// From this ratio of the largest to the smallest value on, an axis is logarithmic.
const LOGARITHMIC: f64 = 6.0;
pub fn sweep(shown: &Shown) -> Result<Canvas, String> {
    let found = sweeps(shown.all, shown.judged());
    let subtitle = caption(&found).ok_or("no axis of the matrix has three numbers or more")?;
    let mut canvas = Canvas::titled("Sweep", &subtitle);
    for one in found.iter().take(MOST_SWEEPS) {
        heading(&mut canvas, one);
        for sentence in sweep_sentences(shown.all, one) {
            canvas.paragraph(&sentence, TEXT, INK);
        }
        canvas.top += 6;
        draw(&mut canvas, shown.all, one, &PANELS);
    }
    Ok(canvas)
}

/// The rates of all sweeps, for the picture of the whole comparison.
pub fn rates(canvas: &mut Canvas, comparison: &Comparison, sweeps: &[Sweep]) {
    for one in sweeps.iter().take(MOST_SWEEPS) {
        heading(canvas, one);
        for sentence in sweep_sentences(comparison, one).iter().take(4) {
            canvas.paragraph(sentence, SMALL, FAINT);
        }
        draw(canvas, comparison, one, &PANELS[..2]);
    }
}

/// What the marks of the sweeps in a picture are, as far as there are any.
pub fn caption(found: &[Sweep]) -> Option<String> {
    let has_fastest = found.iter().take(MOST_SWEEPS).any(|sweep| {
        let mut best = sweep.surfaces.iter().filter_map(|one| one.best.as_ref());
        sweep.fields.is_empty() && best.any(|best| best.is_fastest)
    });
    let ring = match has_fastest {
        true => " Ring: the fastest point.",
        false => "",
    };
    (!found.is_empty()).then(|| {
        format!("Whiskers: 95 % interval over repeats.{ring} Vertical axes need not begin at 0.")
    })
}

fn heading(canvas: &mut Canvas, sweep: &Sweep) {
    let axes = sweep
        .second
        .iter()
        .fold(sweep.axis.clone(), |a, b| format!("{a} and {b}"));
    canvas.heading(&format!("{} over {axes}", sweep.model));
}

/// What a panel shows of a row: the value, and its interval. The text is the kind of memory.
type Value = fn(&Row, &str) -> Option<Reading>;

/// In the order in which they are drawn; the first one is the rate.
const PANELS: [(&str, Value); 5] = [
    ("", |row, _| {
        let estimate = &row.tokens_per_second_per_gpu;
        Some((estimate.value, estimate.ci95))
    }),
    ("MFU, %", |row, _| Some((row.mfu.value()? * 100.0, None))),
    ("peak memory, GiB", |row, kind| {
        let peak = row.memory.iter().find(|peak| peak.kind == kind)?;
        Some((peak.bytes as f64 / GIB, None))
    }),
    ("tokens/J", |row, _| {
        Some((row.metrics.get("tokens_per_joule")?.value()?, None))
    }),
    ("price of 10¹² tokens", |row, _| {
        let price = row.metrics.get("dollars_per_trillion_tokens")?;
        Some((price.value()?, None))
    }),
];

/// Names of the surfaces, without the axes that the picture shows.
pub fn surface_names(comparison: &Comparison, sweep: &Sweep) -> Vec<String> {
    let axes = [Some(sweep.axis.as_str()), sweep.second.as_deref()];
    let axes: Vec<&str> = axes.into_iter().flatten().collect();
    let first = |surface: &Surface| &comparison.rows[surface.points[0].row];
    let rows: Vec<&Row> = sweep.surfaces.iter().map(first).collect();
    without_axes(&rows, &axes)
}

/// `4,096`, `0.5`
pub fn plain(value: f64) -> String {
    match value.fract() == 0.0 && value.abs() < 1e7 {
        true => grouped(&format!("{value:.0}")),
        false => value.to_string(),
    }
}

fn draw(canvas: &mut Canvas, comparison: &Comparison, sweep: &Sweep, panels: &[(&str, Value)]) {
    let mut lines = lines_of(comparison, sweep);
    let names: Vec<String> = lines.iter().map(|line| line.name.clone()).collect();
    let names = elide_names(&names, TEXT, |_| WIDEST_TAG);
    for (line, name) in lines.iter_mut().zip(names) {
        line.name = name;
    }
    let shown = &lines[..lines.len().min(MOST_DRAWN)];
    for some in shown.chunks(MOST_LINES) {
        curves(canvas, comparison, sweep, (some, panels));
    }
    if lines.len() > shown.len() {
        let words = format!("{} more lines are not drawn.", lines.len() - shown.len());
        canvas.paragraph(&words, SMALL, FAINT);
    }
}

/// A line a surface; over two axes one for each value of the second axis.
fn lines_of<'a>(comparison: &Comparison, sweep: &'a Sweep) -> Vec<Drawn<'a>> {
    let second = |point: &SweepPoint| point.second.unwrap_or(0.0);
    let mut lines = Vec::new();
    for (surface, name) in sweep.surfaces.iter().zip(surface_names(comparison, sweep)) {
        let best = surface.best.as_ref().filter(|best| best.is_fastest);
        let best = best.filter(|_| sweep.fields.is_empty());
        let fastest = best.map(|best| &surface.points[best.at]);
        // Without a second axis all have the same value of it.
        for value in sorted(surface.points.iter().map(second)) {
            let is_on_it = |point: &&'a SweepPoint| second(point) == value;
            let name = match &sweep.second {
                Some(axis) => format!("{name}, {axis} {}", plain(value)),
                None => name.clone(),
            };
            lines.push(Drawn {
                name,
                points: surface.points.iter().filter(is_on_it).collect(),
                fastest: fastest.filter(is_on_it),
            });
        }
    }
    lines
}

fn curves(
    canvas: &mut Canvas,
    comparison: &Comparison,
    sweep: &Sweep,
    (some, panels): (&[Drawn<'_>], &[(&str, Value)]),
) {
    let rows = || {
        let points = some.iter().flat_map(|line| &line.points);
        points.map(|point| &comparison.rows[point.row])
    };
    // The kind of memory that most rows state: what one kind counts another does not.
    let kinds = || {
        rows()
            .flat_map(|row| &row.memory)
            .map(|peak| peak.kind.as_str())
    };
    let frequency = |kind: &&str| kinds().filter(|other| other == kind).count();
    let distinct: BTreeSet<&str> = kinds().collect();
    let kind = distinct
        .into_iter()
        .rev()
        .max_by_key(frequency)
        .unwrap_or_default();
    let has = |value: &Value| rows().filter(|row| value(row, kind).is_some()).count() > 1;
    let panel = |(title, value): &(&str, Value)| {
        let is_rate = title.is_empty();
        let title = match *title {
            "" => rate_unit(rows()).to_owned(),
            "peak memory, GiB" => format!("{title} ({})", kind.replace('_', " ")),
            title => title.to_owned(),
        };
        let value = |row: &Row| value(row, kind);
        panel(comparison, &title, (some, sweep), &value, is_rate)
    };
    let drawn = panels
        .iter()
        .filter(|(_, value)| has(value))
        .filter_map(panel);
    for two in drawn.collect::<Vec<_>>().chunks(2) {
        draw_beside(canvas, HEIGHT, two);
        canvas.top += 4;
    }
}

fn panel(
    comparison: &Comparison,
    title: &str,
    (some, sweep): (&[Drawn<'_>], &Sweep),
    value: &dyn Fn(&Row) -> Option<Reading>,
    is_rate: bool,
) -> Option<Lines> {
    let at = |point: &&SweepPoint| {
        let (value, ends) = value(&comparison.rows[point.row])?;
        let ends = ends.filter(|ends| ends.iter().all(|end| end.is_finite()));
        value.is_finite().then_some((point.x, value, ends))
    };
    let points = || some.iter().flat_map(|line| &line.points).filter_map(at);
    let [from, to] = extent(points().map(|p| p.0))?;
    let [low, high] = extent(points().map(|p| p.1))?;
    // An interval of two repeats may be of any width; it must not flatten the lines.
    let room = (high - low).max(high.abs() * 0.05);
    let ends = points().filter_map(|(_, value, ends)| {
        let [low, high] = ends?;
        Some([low.max(value - room), high.min(value + room)])
    });
    let [low, high] = extent(ends.flatten().chain([low, high]))?;
    let is_near_0 = low > 0.0 && low < high * 0.5;
    let margin = (high - low).max(high.abs() * 0.02) * 0.12;
    let y = Scale::new([if is_near_0 { 0.0 } else { low - margin }, high + margin]);
    let x = if from > 0.0 && to / from >= LOGARITHMIC {
        let room = (to / from).powf(0.04);
        Scale::new([from / room, to * room]).logarithmic()
    } else {
        let room = (to - from) * 0.04;
        Scale::new([from - room, to + room])
    };
    let mut lines = Lines::new(title, &sweep.axis, x, y);
    lines.ticks = sorted(points().map(|p| p.0))
        .into_iter()
        .map(|x| (x, plain(x)))
        .collect();
    for (place, line) in some.iter().enumerate() {
        let colour = colour_of(&comparison.rows[line.points[0].row].framework);
        let points = || line.points.iter().filter_map(at);
        let whisker = |(at, _, ends): (f64, f64, Option<[f64; 2]>)| {
            let ends = ends?;
            Some(Whisker { at, ends, colour })
        };
        lines.whiskers.extend(points().filter_map(whisker));
        let points = points().map(|p| (p.0, p.1)).collect();
        lines
            .curves
            .push(Curve::at_place(place, &line.name, colour, points));
        // The ring is the rate's.
        let fastest = line.fastest.filter(|_| is_rate);
        let fastest = fastest.and_then(|fastest| at(&fastest));
        lines
            .marks
            .extend(fastest.map(|(x, rate, _)| (Mark::WideRing, (x, rate), INK)));
    }
    Some(lines)
}

/// Each value once.
fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}
