//! A panel with two axes, as data and drawn: lines that are told apart by marks and names at their
//! ends, whiskers, dashed lines, marks.

use plotters::style::RGBColor;

use super::{
    axis::Scale,
    canvas::{Anchor, Canvas, LINE_MARKS, Mark, Point},
    series::Series,
    style::{FAINT, FULL, GAP, HALF, INK, LINE, MARGIN, MOST_LINES, SMALL},
    text::width_of,
};

pub struct Lines {
    pub title: String,
    pub x_title: String,
    pub x: Scale,
    pub y: Scale,
    /// The marks of the horizontal axis with their labels. Where there are none, the axis has round whole numbers,
    /// since it counts steps, tokens or devices.
    pub ticks: Vec<(f64, String)>,
    /// In the order in which they are drawn.
    pub curves: Vec<Curve>,
    pub whiskers: Vec<Whisker>,
    pub dashes: Vec<Dashes>,
    pub marks: Vec<(Mark, (f64, f64), RGBColor)>,
}

pub struct Curve {
    /// Its name, which stands at its end.
    pub tag: String,
    pub colour: RGBColor,
    pub width: u32,
    pub mark: Option<Mark>,
    pub points: Series,
}

/// An interval at a point of the horizontal axis.
pub struct Whisker {
    pub at: f64,
    pub ends: [f64; 2],
    pub colour: RGBColor,
}

/// A dashed line between two points.
pub struct Dashes {
    pub from: (f64, f64),
    pub to: (f64, f64),
    pub colour: RGBColor,
    /// At its upper end.
    pub number: String,
}

impl Curve {
    /// A line without a name or marks.
    pub fn plain(colour: RGBColor, width: u32, points: Series) -> Self {
        Self {
            tag: String::new(),
            colour,
            width,
            mark: None,
            points,
        }
    }

    /// The line that is drawn at this place among others, each with a mark of its own.
    pub fn at_place(place: usize, tag: &str, colour: RGBColor, points: Series) -> Self {
        Self {
            tag: tag.to_owned(),
            colour,
            width: 2,
            mark: Some(LINE_MARKS[place % MOST_LINES]),
            points,
        }
    }
}

/// Room for names at the ends of lines, at least and at most, and where there are none.
const TAGS: i32 = 150;
const MOST_TAGS: i32 = 270;
const NO_TAGS: i32 = 20;
/// Pixels of that room in which no name stands.
const BESIDE_TAG: i32 = 20;
/// A name at the end of a line that is wider than this is shortened.
pub const WIDEST_TAG: i32 = MOST_TAGS - BESIDE_TAG;
const Y_LABELS: i32 = 84;
const ABOVE: i32 = 24;
const BELOW: i32 = 44;
/// Marks on a line of many points; one of few has a mark at each.
const MARKS: i32 = 6;
const FEW_POINTS: usize = 24;

/// Panels side by side, two of them at most; the canvas then goes on below them.
pub fn draw_beside<'a>(
    canvas: &mut Canvas,
    height: i32,
    panels: impl IntoIterator<Item = &'a Lines>,
) {
    let top = canvas.top;
    for (column, lines) in (0..).zip(panels) {
        lines.draw(canvas, [MARGIN + column * (HALF + GAP), top, HALF, height]);
    }
    canvas.top = top + height;
}

impl Lines {
    /// Without anything in it yet.
    pub fn new(title: &str, x_title: &str, x: Scale, y: Scale) -> Self {
        Self {
            title: title.to_owned(),
            x_title: x_title.to_owned(),
            x,
            y,
            ticks: Vec::new(),
            curves: Vec::new(),
            whiskers: Vec::new(),
            dashes: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Over the whole width.
    pub fn draw_wide(&self, canvas: &mut Canvas, height: i32) {
        self.draw(canvas, [MARGIN, canvas.top, FULL, height]);
        canvas.top += height;
    }

    /// First and last pixel of the horizontal axis.
    pub fn across(&self, left: i32, width: i32) -> [i32; 2] {
        let tags = self.curves.iter().map(|curve| width_of(&curve.tag, SMALL));
        let room = match tags.max() {
            None | Some(0) => NO_TAGS,
            Some(widest) => (widest + BESIDE_TAG).clamp(TAGS, MOST_TAGS),
        };
        [left + Y_LABELS, left + width - room]
    }

    /// Without anything in it the title alone, which says so: empty axes would look like a measurement.
    fn draw(&self, canvas: &mut Canvas, [left, top, width, height]: [i32; 4]) {
        let has_lines = !self.curves.is_empty() || !self.dashes.is_empty();
        if !has_lines && self.whiskers.is_empty() && self.marks.is_empty() {
            return canvas.fit(&self.title, (left + 8, top), width - 16, SMALL, INK);
        }
        let across = self.across(left, width);
        let [upper, lower] = [top + ABOVE, top + height - BELOW];
        let x = self.x.on(across);
        let y = self.y.on([lower, upper]);
        self.draw_axes(canvas, (&x, &y), (across, [upper, lower]));
        let logarithmic = if y.logarithmic { ", logarithmic" } else { "" };
        let title = format!("{}{logarithmic}", self.title);
        canvas.fit(&title, (left + 8, top), width - 16, SMALL, INK);
        let place = |(across, up): (f64, f64)| (x.at(across), y.at(up));
        for line in &self.dashes {
            let (from, to) = (place(line.from), place(line.to));
            canvas.dashed(from, to, line.colour);
            canvas.label(&line.number, to, SMALL, INK, Anchor::Center);
        }
        for whisker in &self.whiskers {
            let end = |end| (place((whisker.at, end)), y.holds(end));
            canvas.whisker(whisker.ends.map(end), (4, 0), whisker.colour, 1);
        }
        let mut tagged = Vec::new();
        for (style, curve) in self.curves.iter().enumerate() {
            let mut points: Vec<Point> = curve.points.iter().copied().map(place).collect();
            points.dedup();
            if let Some(end) = points.last().filter(|_| !curve.tag.is_empty()) {
                tagged.push((*end, &curve.tag));
            }
            let marked = curve.mark.map(|mark| (mark, marked(&points, style)));
            canvas.line(points, curve.colour, curve.width);
            if let Some((mark, places)) = marked {
                for at in places {
                    canvas.mark(mark, at, curve.colour);
                }
            }
        }
        for (mark, at, colour) in &self.marks {
            canvas.mark(*mark, place(*at), *colour);
        }
        // Names right of the axes, each with a line to its point.
        let room = left + width - across[1] - 15;
        tagged.sort_by_key(|((_, y), _)| *y);
        let wanted: Vec<i32> = tagged.iter().map(|((_, y), _)| y - 6).collect();
        let places = spread(&wanted, SMALL, [upper - 6, lower - 6]);
        for ((end, tag), at) in tagged.into_iter().zip(places) {
            canvas.line(vec![end, (across[1] + 10, at + 6)], FAINT, 1);
            canvas.fit(tag, (across[1] + 13, at), room, SMALL, INK);
        }
    }

    fn draw_axes(
        &self,
        canvas: &mut Canvas,
        (x, y): (&Scale, &Scale),
        ([left, right], [top, bottom]): ([i32; 2], [i32; 2]),
    ) {
        let rows = ((bottom - top) / 22).clamp(2, 8) as usize;
        let mut lowest = i32::MAX;
        for (value, label) in y.ticks(rows) {
            let at = y.at(value);
            canvas.line(vec![(left, at), (right, at)], LINE, 1);
            if at < lowest {
                canvas.text(&label, (left - 8, at - 6), SMALL, FAINT, Anchor::Right);
                lowest = at - SMALL;
            }
        }
        let mut ticks = self.ticks.clone();
        if ticks.is_empty() {
            ticks = x.ticks(((right - left) / 90).max(2) as usize);
            ticks.retain(|(value, _)| value.fract() == 0.0);
        }
        for (value, _) in &ticks {
            let at = x.at(*value);
            canvas.line(vec![(at, bottom), (at, bottom + 4)], FAINT, 1);
        }
        label_ticks(canvas, x, &ticks, bottom + 7, [left - 30, right + NO_TAGS]);
        let middle = (i32::midpoint(left, right), bottom + 25);
        canvas.text(&self.x_title, middle, SMALL, FAINT, Anchor::Center);
        canvas.line(vec![(left, top), (left, bottom), (right, bottom)], FAINT, 1);
    }
}

/// Labels of ticks, as far as they have room beside each other.
pub fn label_ticks(
    canvas: &mut Canvas,
    scale: &Scale,
    ticks: &[(f64, String)],
    top: i32,
    [mut free, end]: [i32; 2],
) {
    for (value, label) in ticks {
        let half = width_of(label, SMALL) / 2;
        let at = scale.at(*value).max(half + 2);
        if at - half >= free && at + half < end {
            canvas.text(label, (at, top), SMALL, FAINT, Anchor::Center);
            free = at + half + 14;
        }
    }
}

/// Each point of a few; else points at even distances, at other places for each style, so that
/// equal lines do not hide each other's marks.
fn marked(points: &[Point], style: usize) -> Vec<Point> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let step = (last.0 - first.0) / MARKS;
    if points.len() <= FEW_POINTS || step <= 0 {
        return points.to_vec();
    }
    let offset = step * (style % MOST_LINES) as i32 / MOST_LINES as i32;
    let nearest = |x: i32| points[points.partition_point(|p| p.0 < x).min(points.len() - 1)];
    let places = (0..MARKS).map(|i| first.0 + offset + i * step);
    let mut marks: Vec<Point> = places.map(nearest).collect();
    marks.dedup();
    marks
}

/// Sorted places moved as little as need be, so that they are `apart`; within `room` if that is
/// possible.
fn spread(wanted: &[i32], apart: i32, [low, high]: [i32; 2]) -> Vec<i32> {
    let mut placed = wanted.to_vec();
    let mut least = low;
    for place in &mut placed {
        *place = (*place).max(least);
        least = *place + apart;
    }
    let mut most = high;
    for place in placed.iter_mut().rev() {
        *place = (*place).min(most);
        most = *place - apart;
    }
    placed
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_at_one_place_stand_apart() {
        assert_eq!(spread(&[50, 50, 50], 14, [0, 200]), [50, 64, 78]);
        assert_eq!(spread(&[195, 200, 200], 14, [0, 200]), [172, 186, 200]);
        assert_eq!(spread(&[10, 100], 14, [0, 200]), [10, 100]);
    }
}
