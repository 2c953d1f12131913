//! Cells over a numeric axis: curves with intervals, a line a framework; over two axes a map.

use std::collections::BTreeSet;

use plotters::style::RGBColor;
use tprimat_numbers::figures::{
    Best, Comparison, Row, Surface, Sweep, SweepPoint, rate_unit, sweeps,
};
use tprimat_numbers::results::GIB;

use super::{
    axis::{Scale, extent},
    canvas::{Anchor, Canvas, Mark},
    cells::Shown,
    format::{grouped, number},
    lines::{Curve, Lines, WIDEST_TAG, Whisker, draw_beside},
    short_names::without_axes,
    style::{FAINT, FULL, GAP, HALF, HEAT, INK, LINE, MARGIN, MOST_LINES, SMALL, TEXT, colour_of},
    sweep_text::sweep_sentences,
    text::{elide_names, width_of},
};

/// A value, and its interval where it has one.
type Reading = (f64, Option<[f64; 2]>);
/// A surface and its name.
type Named<'a> = (&'a Surface, &'a String);

const HEIGHT: i32 = 300;
/// Models of a picture, and surfaces of a model.
const MOST_SWEEPS: usize = 8;
const MOST_SURFACES: usize = 12;
/// From this ratio of the largest to the smallest value on, an axis is logarithmic.
const LOGARITHMIC: f64 = 6.0;
/// Values of the first axis up to which two maps stand beside each other.
const NARROW: usize = 6;
/// Height of a place of a map, and its greatest width.
const PLACE: i32 = 26;
const WIDEST_PLACE: i32 = 110;

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
    let drawn = || found.iter().take(MOST_SWEEPS);
    let has_fastest = |sweep: &&Sweep| {
        let mut best = sweep.surfaces.iter().filter_map(|one| one.best.as_ref());
        sweep.fields.is_empty() && best.any(Best::is_fastest)
    };
    let (maps, curves): (Vec<&Sweep>, Vec<&Sweep>) = drawn().partition(|one| one.second.is_some());
    let said = [
        (!curves.is_empty(), "Whiskers: 95 % interval over repeats."),
        (
            curves.iter().any(has_fastest),
            "Ring: the fastest point of a line.",
        ),
        (!curves.is_empty(), "Vertical axes need not begin at 0."),
        (
            !maps.is_empty(),
            "Maps: darker is faster, on one scale for all maps of a model.",
        ),
        (
            maps.iter().any(has_fastest),
            "Outlined: the fastest point of a map.",
        ),
        (!maps.is_empty(), "Empty: no figures."),
    ];
    let said: Vec<&str> = said
        .into_iter()
        .filter(|one| one.0)
        .map(|one| one.1)
        .collect();
    (!found.is_empty()).then(|| said.join(" "))
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
    let names = surface_names(comparison, sweep);
    let room = if sweep.second.is_some() {
        HALF
    } else {
        WIDEST_TAG
    };
    let names = elide_names(&names, TEXT, |_| room);
    let named: Vec<Named> = sweep.surfaces.iter().zip(&names).collect();
    let shown = &named[..named.len().min(MOST_SURFACES)];
    let what = match sweep.second {
        Some(_) => {
            maps(canvas, comparison, sweep, shown);
            "maps"
        }
        None => {
            for some in shown.chunks(MOST_LINES) {
                curves(canvas, comparison, sweep, (some, panels));
            }
            "lines"
        }
    };
    if named.len() > shown.len() {
        let words = format!("{} more {what} are not drawn.", named.len() - shown.len());
        canvas.paragraph(&words, SMALL, FAINT);
    }
}

fn curves(
    canvas: &mut Canvas,
    comparison: &Comparison,
    sweep: &Sweep,
    (some, panels): (&[Named], &[(&str, Value)]),
) {
    let rows = || {
        let points = some.iter().flat_map(|(surface, _)| &surface.points);
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
    (some, sweep): (&[Named], &Sweep),
    value: &dyn Fn(&Row) -> Option<Reading>,
    is_rate: bool,
) -> Option<Lines> {
    let at = |point: &SweepPoint| {
        let (value, ends) = value(&comparison.rows[point.row])?;
        let ends = ends.filter(|ends| ends.iter().all(|end| end.is_finite()));
        value.is_finite().then_some((point.x, value, ends))
    };
    let points = || {
        some.iter()
            .flat_map(|(surface, _)| &surface.points)
            .filter_map(at)
    };
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
    for (place, (surface, name)) in some.iter().enumerate() {
        let colour = colour_of(&comparison.rows[surface.points[0].row].framework);
        let points = || surface.points.iter().filter_map(at);
        let whisker = |(at, _, ends): (f64, f64, Option<[f64; 2]>)| {
            let ends = ends?;
            Some(Whisker { at, ends, colour })
        };
        lines.whiskers.extend(points().filter_map(whisker));
        let points = points().map(|p| (p.0, p.1)).collect();
        lines
            .curves
            .push(Curve::at_place(place, name, colour, points));
        let best = surface.best.as_ref().filter(|best| best.is_fastest());
        // The ring is the rate's.
        let best = best.filter(|_| is_rate && sweep.fields.is_empty());
        let best = best.and_then(|best| at(&surface.points[best.at]));
        lines
            .marks
            .extend(best.map(|(x, rate, _)| (Mark::WideRing, (x, rate), INK)));
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

/// The values of both axes.
fn values(surface: &Surface) -> [Vec<f64>; 2] {
    let points = || surface.points.iter();
    [
        sorted(points().map(|p| p.x)),
        sorted(points().map(|p| p.second.unwrap_or(0.0))),
    ]
}

/// A map a surface: the first axis across, the second one up, in each place the rate. All are on one
/// scale, so that maps of two platforms or frameworks can be held against each other.
fn maps(canvas: &mut Canvas, comparison: &Comparison, sweep: &Sweep, shown: &[Named]) {
    let points = || shown.iter().flat_map(|(surface, _)| &surface.points);
    let rows = || points().map(|p| &comparison.rows[p.row]);
    let rate = |row: &Row| row.tokens_per_second_per_gpu.value;
    let Some([low, high]) = extent(rows().map(rate)) else {
        return;
    };
    let legend = format!(
        "{}, from {} to {}",
        rate_unit(rows()),
        number(low),
        number(high)
    );
    canvas.text(&legend, (MARGIN, canvas.top), SMALL, FAINT, Anchor::Left);
    let swatches = MARGIN + width_of(&legend, SMALL) + 12;
    for (place, shade) in (0..).zip(HEAT) {
        let left = swatches + place * 26;
        let corners = [(left, canvas.top), (left + 24, canvas.top + SMALL)];
        canvas.rectangle(corners, shade, true);
    }
    canvas.top += SMALL + 12;
    let shade = |row: &Row| {
        let share = (rate(row) - low) / (high - low).max(f64::MIN_POSITIVE);
        HEAT[((share * HEAT.len() as f64) as usize).min(HEAT.len() - 1)]
    };
    let is_narrow = shown
        .iter()
        .all(|(surface, _)| values(surface)[0].len() <= NARROW);
    let (columns, width) = if is_narrow { (2, HALF) } else { (1, FULL) };
    for line in shown.chunks(columns) {
        let (top, mut bottom) = (canvas.top, canvas.top);
        for (column, (surface, name)) in (0..).zip(line) {
            canvas.top = top;
            let left = MARGIN + column * (HALF + GAP);
            canvas.fit(name, (left, top), width, TEXT, INK);
            canvas.top += TEXT + 8;
            let map = Map {
                sweep,
                surface,
                left,
                width,
            };
            map.draw(canvas, |point| {
                let row = &comparison.rows[point.row];
                (number(rate(row)), shade(row))
            });
            bottom = bottom.max(canvas.top);
        }
        canvas.top = bottom;
    }
}

struct Map<'a> {
    sweep: &'a Sweep,
    surface: &'a Surface,
    left: i32,
    width: i32,
}

impl Map<'_> {
    /// `place`: the words of a point, and its shade.
    fn draw(&self, canvas: &mut Canvas, place: impl Fn(&SweepPoint) -> (String, RGBColor)) {
        let second = self.sweep.second.as_deref().unwrap_or_default();
        let [across, up] = values(self.surface);
        let widest = up.iter().map(|value| width_of(&plain(*value), SMALL)).max();
        let left = self.left + widest.unwrap_or(0).max(width_of(second, SMALL)) + 12;
        let wide = (self.left + self.width - left) / across.len().max(1) as i32;
        let wide = wide.min(WIDEST_PLACE);
        let bottom = canvas.top + up.len() as i32 * PLACE;
        let column = |x: f64| left + across.partition_point(|other| *other < x) as i32 * wide;
        let line = |y: f64| bottom - (1 + up.partition_point(|other| *other < y) as i32) * PLACE;
        let best = self.surface.best.as_ref().filter(|best| best.is_fastest());
        for (index, point) in self.surface.points.iter().enumerate() {
            let (x, y) = (column(point.x), line(point.second.unwrap_or(0.0)));
            let (right, lower) = (x + wide - 2, y + PLACE - 2);
            let (words, shade) = place(point);
            canvas.rectangle([(x, y), (right, lower)], shade, true);
            if best.is_some_and(|best| best.at == index) {
                let frame = vec![(x, y), (right, y), (right, lower), (x, lower), (x, y)];
                canvas.line(frame, INK, 2);
            }
            if width_of(&words, SMALL) < wide - 4 {
                let at = (x + wide / 2 - 1, y + 6);
                canvas.text(&words, at, SMALL, INK, Anchor::Center);
            }
        }
        for value in &up {
            let at = (left - 8, line(*value) + 6);
            canvas.text(&plain(*value), at, SMALL, FAINT, Anchor::Right);
        }
        for value in &across {
            let (label, at) = (plain(*value), (column(*value) + wide / 2 - 1, bottom + 5));
            if width_of(&label, SMALL) < wide - 2 {
                canvas.text(&label, at, SMALL, FAINT, Anchor::Center);
            }
        }
        let right = left + wide * across.len() as i32;
        canvas.line(vec![(left, bottom), (right, bottom)], LINE, 1);
        canvas.text(second, (left - 8, bottom + 5), SMALL, FAINT, Anchor::Right);
        let under = (i32::midpoint(left, right), bottom + 24);
        canvas.text(&self.sweep.axis, under, SMALL, FAINT, Anchor::Center);
        canvas.top = bottom + 54;
    }
}
