//! Cells over a numeric axis: curves with intervals, a line a framework; over two axes a map.

use std::collections::BTreeSet;

use plotters::style::RGBColor;
use tprimat_figures::{Best, Comparison, Row, Surface, Sweep, SweepPoint, rate_unit, sweeps};
use tprimat_results::GIB;

use super::{
    axis::{Scale, extent, whole},
    canvas::{Anchor, Canvas, Mark},
    cell_selection::Shown,
    chart::{Curve, Frame, WIDEST_TAG, room_for},
    short_names::without_axes,
    style::{
        FAINT, GAP, HALF, HEAT, INK, LINE, MARGIN, MOST_LINES, Pen, SMALL, TEXT, WIDTH, colour_of,
    },
    sweep_text::sweep_sentences,
    text::{elide_names, width_of},
};
use crate::format::number;

/// A value, and its interval where it has one.
type Reading = (f64, Option<[f64; 2]>);

const HEIGHT: i32 = 300;
/// Models of a picture, and surfaces of a model.
const MOST_SWEEPS: usize = 8;
const MOST_SURFACES: usize = 12;
/// From this ratio of the largest to the smallest value on, an axis is logarithmic.
const LOGARITHMIC: f64 = 6.0;

pub fn sweep(shown: &Shown) -> Result<Canvas, String> {
    let comparison = shown.all;
    let found = sweeps(comparison, shown.judged());
    if found.is_empty() {
        return Err("no axis of the matrix has three numbers or more".to_owned());
    }
    let subtitle = caption(&found).unwrap_or_default();
    let mut canvas = Canvas::titled("Sweep", &subtitle);
    for one in found.iter().take(MOST_SWEEPS) {
        heading(&mut canvas, one);
        for sentence in sweep_sentences(comparison, one) {
            canvas.paragraph(&sentence, TEXT, INK);
        }
        canvas.top += 6;
        if one.second.is_some() {
            maps(&mut canvas, comparison, one);
        } else {
            curves(&mut canvas, comparison, one, &PANELS);
        }
    }
    Ok(canvas)
}

/// What the marks of the sweeps in a picture are, as far as there are any.
pub fn caption(found: &[Sweep]) -> Option<String> {
    let drawn = &found[..found.len().min(MOST_SWEEPS)];
    let of = |is_map: bool| {
        drawn
            .iter()
            .filter(move |one| one.second.is_some() == is_map)
    };
    let has_fastest = |sweep: &Sweep| {
        let mut best = sweep.surfaces.iter().filter_map(|one| one.best.as_ref());
        sweep.fields.is_empty() && best.any(Best::is_fastest)
    };
    let has_gaps = |sweep: &Sweep| {
        let places = |surface: &Surface| {
            let up = values(surface, |p| p.second.unwrap_or(0.0));
            values(surface, |p| p.x).len() * up.len()
        };
        sweep
            .surfaces
            .iter()
            .any(|one| one.points.len() < places(one))
    };
    let mut said = Vec::new();
    if of(false).next().is_some() {
        said.push("Whiskers: 95 % interval over repeats.");
        if of(false).any(has_fastest) {
            said.push("Ring: the fastest point of a line.");
        }
        said.push("Vertical axes need not begin at 0.");
    }
    if of(true).next().is_some() {
        said.push("Maps: darker is faster, on one scale for all maps of a model.");
        if of(true).any(has_fastest) {
            said.push("Outlined: the fastest point of a map.");
        }
        if of(true).any(has_gaps) {
            said.push("Empty: no figures.");
        }
    }
    (!said.is_empty()).then(|| said.join(" "))
}

/// The rates of all sweeps, for the picture of the whole comparison.
pub fn rates(canvas: &mut Canvas, comparison: &Comparison, sweeps: &[Sweep]) {
    for one in sweeps.iter().take(MOST_SWEEPS) {
        heading(canvas, one);
        for sentence in sweep_sentences(comparison, one).iter().take(4) {
            canvas.paragraph(sentence, SMALL, FAINT);
        }
        if one.second.is_some() {
            maps(canvas, comparison, one);
        } else {
            curves(canvas, comparison, one, &PANELS[..2]);
        }
    }
}

/// Groups that are points of a sweep over workloads: a panel for each would compare nothing.
pub fn swept_groups(comparison: &Comparison) -> BTreeSet<usize> {
    tprimat_figures::swept_groups(comparison, |sweep| !sweep.fields.is_empty())
}

fn heading(canvas: &mut Canvas, sweep: &Sweep) {
    let over = match &sweep.second {
        Some(second) => format!("{} and {second}", sweep.axis),
        None => sweep.axis.clone(),
    };
    canvas.heading(&format!("{} over {over}", sweep.model));
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
        let bytes = peak.bytes as f64;
        Some((bytes / GIB, None))
    }),
    ("tokens/J", |row, _| {
        Some((row.metrics.get("tokens_per_joule")?.value()?, None))
    }),
    ("price of 10¹² tokens", |row, _| {
        Some((
            row.metrics.get("dollars_per_trillion_tokens")?.value()?,
            None,
        ))
    }),
];

/// Names of the surfaces, without the axes that the picture shows.
pub fn surface_names(comparison: &Comparison, sweep: &Sweep) -> Vec<String> {
    let axes: Vec<&str> = [Some(sweep.axis.as_str()), sweep.second.as_deref()]
        .into_iter()
        .flatten()
        .collect();
    let first = |surface: &Surface| &comparison.rows[surface.points[0].row];
    let rows: Vec<&Row> = sweep.surfaces.iter().map(first).collect();
    without_axes(&rows, &axes)
}

fn curves(canvas: &mut Canvas, comparison: &Comparison, sweep: &Sweep, panels: &[(&str, Value)]) {
    let names = surface_names(comparison, sweep);
    let names = elide_names(&names, SMALL, |_| WIDEST_TAG);
    let lines: Vec<(&Surface, &String)> = sweep.surfaces.iter().zip(&names).collect();
    let shown = lines.len().min(MOST_SURFACES);
    for some in lines[..shown].chunks(MOST_LINES) {
        let row = |point: &SweepPoint| &comparison.rows[point.row];
        let points = || some.iter().flat_map(|(surface, _)| &surface.points);
        let kind = kind_of_memory(points().map(row));
        let has = |value: &Value| points().filter(|p| value(row(p), kind).is_some()).count() > 1;
        let drawn: Vec<_> = panels.iter().filter(|(_, value)| has(value)).collect();
        for line in drawn.chunks(2) {
            let top = canvas.top;
            for (column, (title, value)) in (0..).zip(line) {
                let unit = rate_unit(points().map(row));
                let title = match *title {
                    "" => unit.to_owned(),
                    "peak memory, GiB" => format!("{title} ({})", kind.replace('_', " ")),
                    title => title.to_owned(),
                };
                let frame = Frame {
                    left: MARGIN + column * (HALF + GAP),
                    top,
                    width: HALF,
                    height: HEIGHT,
                    tags: room_for(some.iter().map(|(_, name)| name.as_str())),
                    title: &title,
                    x_title: &sweep.axis,
                };
                // The ring is the rate's.
                let is_rate = title == unit;
                let value = |row: &Row| value(row, kind);
                panel(canvas, comparison, &frame, (some, sweep), &value, is_rate);
            }
            canvas.top = top + HEIGHT + 4;
        }
    }
    if lines.len() > shown {
        let words = format!("{} more lines are not drawn.", lines.len() - shown);
        canvas.paragraph(&words, SMALL, FAINT);
    }
}

/// The kind of memory that most rows state: what one kind counts another does not.
fn kind_of_memory<'a>(rows: impl Iterator<Item = &'a Row>) -> &'a str {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for peak in rows.flat_map(|row| &row.memory) {
        match counts.iter_mut().find(|(kind, _)| *kind == peak.kind) {
            Some((_, count)) => *count += 1,
            None => counts.push((&peak.kind, 1)),
        }
    }
    // Stable: of kinds that are as frequent, the first.
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.first().map_or("", |(kind, _)| kind)
}

fn panel(
    canvas: &mut Canvas,
    comparison: &Comparison,
    frame: &Frame,
    (lines, sweep): (&[(&Surface, &String)], &Sweep),
    value: &dyn Fn(&Row) -> Option<Reading>,
    is_rate: bool,
) {
    let at = |point: &SweepPoint| {
        let (value, ends) = value(&comparison.rows[point.row])?;
        let ends = ends.filter(|ends| ends.iter().all(|end| end.is_finite()));
        value.is_finite().then_some((point.x, value, ends))
    };
    let points = || {
        lines
            .iter()
            .flat_map(|(surface, _)| &surface.points)
            .filter_map(at)
    };
    let (Some([from, to]), Some([low, high])) =
        (extent(points().map(|p| p.0)), extent(points().map(|p| p.1)))
    else {
        return;
    };
    // An interval of two repeats may be of any width; it must not flatten the lines.
    let room = (high - low).max(high.abs() * 0.05);
    let ends = points().filter_map(|(_, value, ends)| {
        let [low, high] = ends?;
        Some([low.max(value - room), high.min(value + room)])
    });
    let [low, high] = extent(ends.flatten().chain([low, high])).unwrap_or([low, high]);
    let is_near_0 = low > 0.0 && low < high * 0.5;
    let margin = (high - low).max(high.abs() * 0.02) * 0.12;
    let y = frame.y([if is_near_0 { 0.0 } else { low - margin }, high + margin]);
    let is_wide = from > 0.0 && to / from >= LOGARITHMIC;
    let x = if is_wide {
        let room = (to / from).powf(0.04);
        frame.x([from / room, to * room]).logarithmic()
    } else {
        let room = (to - from) * 0.04;
        frame.x([from - room, to + room])
    };
    let mut values: Vec<f64> = points().map(|p| p.0).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let ticks = values.iter().map(|value| (*value, plain(*value))).collect();
    frame.draw_at(canvas, &y, (&x, ticks));
    let pen = |place: usize, surface: &Surface| Pen {
        colour: colour_of(&comparison.rows[surface.points[0].row].framework),
        mark: place,
    };
    for (place, (surface, _)) in lines.iter().enumerate() {
        whiskers(
            canvas,
            surface.points.iter().filter_map(at),
            (&x, &y),
            pen(place, surface).colour,
        );
    }
    let curve = |(place, (surface, name)): (usize, &(&Surface, &String))| Curve {
        tag: (*name).clone(),
        pen: Some(pen(place, surface)),
        points: surface
            .points
            .iter()
            .filter_map(at)
            .map(|p| (p.0, p.1))
            .collect(),
    };
    let all: Vec<Curve> = lines.iter().enumerate().map(curve).collect();
    frame.curves_marked(canvas, &all, &x, &y);
    let best = lines.iter().filter_map(|(surface, _)| {
        let best = surface.best.as_ref().filter(|best| best.is_fastest())?;
        at(&surface.points[best.at])
    });
    for (x_value, rate, _) in best.filter(|_| is_rate && sweep.fields.is_empty()) {
        canvas.mark(Mark::Best, (x.at(x_value), y.at(rate)), INK);
    }
}

fn whiskers(
    canvas: &mut Canvas,
    points: impl Iterator<Item = (f64, f64, Option<[f64; 2]>)>,
    (x, y): (&Scale, &Scale),
    colour: RGBColor,
) {
    for (across, _, ends) in points {
        let Some([low, high]) = ends else { continue };
        let (across, low_at, high_at) = (x.at(across), y.at(low), y.at(high));
        canvas.line(vec![(across, low_at), (across, high_at)], colour, 1);
        for (end, at) in [(low, low_at), (high, high_at)] {
            if y.holds(end) {
                canvas.line(vec![(across - 4, at), (across + 4, at)], colour, 1);
            }
        }
    }
}

/// `4,096`, `0.5`
pub fn plain(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e7 {
        return whole(value);
    }
    format!("{value}")
}

/// A map a surface: the first axis across, the second one up, in each place the rate. All are on one
/// scale, so that maps of two platforms or frameworks can be held against each other.
fn maps(canvas: &mut Canvas, comparison: &Comparison, sweep: &Sweep) {
    let names = surface_names(comparison, sweep);
    let shown: Vec<(&Surface, &String)> = sweep
        .surfaces
        .iter()
        .zip(&names)
        .take(MOST_SURFACES)
        .collect();
    let rate = |p: &SweepPoint| comparison.rows[p.row].tokens_per_second_per_gpu.value;
    let points = || shown.iter().flat_map(|(surface, _)| &surface.points);
    let Some(scale) = extent(points().map(rate)) else {
        return;
    };
    let unit = rate_unit(points().map(|p| &comparison.rows[p.row]));
    let legend = format!("{unit}, from {} to {}", number(scale[0]), number(scale[1]));
    canvas.text(&legend, (MARGIN, canvas.top), SMALL, FAINT, Anchor::Left);
    let swatches = MARGIN + width_of(&legend, SMALL) + 12;
    for (place, shade) in (0..).zip(HEAT) {
        let left = swatches + place * 26;
        let corners = [(left, canvas.top), (left + 24, canvas.top + SMALL)];
        canvas.rectangle(corners, shade, true);
    }
    canvas.top += SMALL + 12;
    // Two beside each other where the rates can be read in half the width.
    let widest = shown
        .iter()
        .map(|(surface, _)| values(surface, |p| p.x).len());
    let is_narrow = widest.max().unwrap_or(0) <= 6;
    let columns = if is_narrow { 2 } else { 1 };
    let width = if is_narrow { HALF } else { WIDTH - 2 * MARGIN };
    for line in shown.chunks(columns) {
        let top = canvas.top;
        let mut bottom = top;
        for (column, (surface, name)) in (0..).zip(line) {
            canvas.top = top;
            let left = MARGIN + column * (HALF + GAP);
            canvas.fit(name, (left, top), width, TEXT, INK);
            canvas.top += TEXT + 8;
            map(canvas, comparison, (surface, sweep), (left, width), scale);
            bottom = bottom.max(canvas.top);
        }
        canvas.top = bottom;
    }
    if sweep.surfaces.len() > shown.len() {
        let words = format!(
            "{} more maps are not drawn.",
            sweep.surfaces.len() - shown.len()
        );
        canvas.paragraph(&words, SMALL, FAINT);
    }
}

/// The values of an axis, each once.
fn values(surface: &Surface, of: fn(&SweepPoint) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = surface.points.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

fn map(
    canvas: &mut Canvas,
    comparison: &Comparison,
    (surface, sweep): (&Surface, &Sweep),
    (from, width): (i32, i32),
    [low, high]: [f64; 2],
) {
    const PLACE: i32 = 26;
    let second = sweep.second.as_deref().unwrap_or_default();
    let (across, up) = (
        values(surface, |p| p.x),
        values(surface, |p| p.second.unwrap_or(0.0)),
    );
    let rate = |p: &SweepPoint| comparison.rows[p.row].tokens_per_second_per_gpu.value;
    let labels: Vec<String> = up.iter().map(|value| plain(*value)).collect();
    let widest = labels.iter().map(|label| width_of(label, SMALL)).max();
    let left = from + widest.unwrap_or(0).max(width_of(second, SMALL)) + 12;
    let wide = ((from + width - left) / across.len() as i32).min(110);
    let top = canvas.top;
    for (line, (value, label)) in (0..).zip(up.iter().zip(&labels).rev()) {
        let at = top + line * PLACE;
        canvas.text(label, (left - 8, at + 6), SMALL, FAINT, Anchor::Right);
        for point in surface.points.iter().filter(|p| p.second == Some(*value)) {
            let place = across.iter().position(|x| *x == point.x).unwrap_or(0) as i32;
            let corners = [
                (left + place * wide, at),
                (left + (place + 1) * wide - 2, at + PLACE - 2),
            ];
            let share = (rate(point) - low) / (high - low).max(f64::MIN_POSITIVE);
            let shade = (share * HEAT.len() as f64) as usize;
            canvas.rectangle(corners, HEAT[shade.min(HEAT.len() - 1)], true);
            let best = surface.best.as_ref().filter(|best| best.is_fastest());
            if best.is_some_and(|best| surface.points[best.at] == *point) {
                canvas.line(frame_of(corners), INK, 2);
            }
            let words = number(rate(point));
            if width_of(&words, SMALL) < wide - 4 {
                let middle = left + place * wide + wide / 2 - 1;
                canvas.text(&words, (middle, at + 6), SMALL, INK, Anchor::Middle);
            }
        }
    }
    let bottom = top + up.len() as i32 * PLACE;
    canvas.line(
        vec![(left, bottom), (left + wide * across.len() as i32, bottom)],
        LINE,
        1,
    );
    for (place, value) in (0..).zip(&across) {
        let middle = left + place * wide + wide / 2 - 1;
        let label = plain(*value);
        if width_of(&label, SMALL) < wide - 2 {
            canvas.text(&label, (middle, bottom + 5), SMALL, FAINT, Anchor::Middle);
        }
    }
    canvas.text(second, (left - 8, bottom + 5), SMALL, FAINT, Anchor::Right);
    let middle = left + wide * across.len() as i32 / 2;
    let under = (middle, bottom + 24);
    canvas.text(&sweep.axis, under, SMALL, FAINT, Anchor::Middle);
    canvas.top = bottom + 54;
}

fn frame_of([(left, top), (right, bottom)]: [(i32, i32); 2]) -> Vec<(i32, i32)> {
    vec![
        (left, top),
        (right, top),
        (right, bottom),
        (left, bottom),
        (left, top),
    ]
}
