//! A panel with two axes, and lines in it that are told apart by marks and numbers at their ends.

use super::{
    axis::Scale,
    canvas::{Anchor, Canvas, Mark, Point},
    series::simplified,
    style::{FAINT, INK, LINE, MOST_LINES, Pen, SMALL},
    text::{elide, width_of},
};

/// Where a panel is, and what its axes are; `x` and `y` are made for [`Frame::inside`].
pub struct Frame<'a> {
    pub left: i32,
    pub top: i32,
    pub width: i32,
    pub height: i32,
    /// Room right of the axes for names of lines; see [`room_for`].
    pub tags: i32,
    pub title: &'a str,
    pub x_title: &'a str,
}

/// Room for names at the ends of lines, at least and at most, and where there are none.
const TAGS: i32 = 150;
const MOST_TAGS: i32 = 270;
pub const NO_TAGS: i32 = 20;
/// Pixels of that room in which no name stands.
const BESIDE_TAG: i32 = 20;
/// A name at the end of a line that is wider than this is shortened.
pub const WIDEST_TAG: i32 = MOST_TAGS - BESIDE_TAG;

/// Room for these names, so that none is shortened without need.
pub fn room_for<'a>(tags: impl IntoIterator<Item = &'a str>) -> i32 {
    let widths = tags.into_iter().map(|tag| width_of(tag, SMALL));
    (widths.max().unwrap_or(0) + BESIDE_TAG).clamp(TAGS, MOST_TAGS)
}

/// One line of a panel.
pub struct Curve {
    /// Its name, which stands at its end.
    pub tag: String,
    /// None = stands behind the others, without a name.
    pub pen: Option<Pen>,
    pub points: Vec<(f64, f64)>,
}

const Y_LABELS: i32 = 84;
const ABOVE: i32 = 24;
const BELOW: i32 = 44;
/// Marks on a line.
const MARKS: i32 = 6;

impl Frame<'_> {
    /// Left, right, top and bottom of what the axes span.
    pub fn inside(&self) -> [i32; 4] {
        [
            self.left + Y_LABELS,
            self.left + self.width - self.tags,
            self.top + ABOVE,
            self.top + self.height - BELOW,
        ]
    }

    pub fn x(&self, extent: [f64; 2]) -> Scale {
        let [left, right, ..] = self.inside();
        Scale::new(extent, [left, right])
    }

    pub fn y(&self, extent: [f64; 2]) -> Scale {
        let [.., top, bottom] = self.inside();
        Scale::new(extent, [bottom, top])
    }

    /// Title, grid and ticks.
    pub fn draw(&self, canvas: &mut Canvas, x: &Scale, y: &Scale) {
        let [left, right, ..] = self.inside();
        // Steps, tokens and devices are counted.
        let ticks = x.ticks(((right - left) / 90).max(2) as usize);
        let whole = ticks.into_iter().filter(|(value, _)| value.fract() == 0.0);
        self.draw_at(canvas, y, (x, whole.collect()));
    }

    /// The same with these ticks on the horizontal axis.
    pub fn draw_at(
        &self,
        canvas: &mut Canvas,
        y: &Scale,
        (x, ticks): (&Scale, Vec<(f64, String)>),
    ) {
        let [left, right, top, bottom] = self.inside();
        let logarithmic = if y.is_logarithmic() {
            ", logarithmic"
        } else {
            ""
        };
        let title = elide(
            &format!("{}{logarithmic}", self.title),
            SMALL,
            self.width - 16,
            1.0,
        );
        canvas.text(&title, (self.left + 8, self.top), SMALL, INK, Anchor::Left);
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
        let mut free = left - 30;
        for (value, label) in ticks {
            let (at, half) = (x.at(value), width_of(&label, SMALL) / 2);
            canvas.line(vec![(at, bottom), (at, bottom + 4)], FAINT, 1);
            if at - half >= free && at + half < self.left + self.width {
                canvas.text(&label, (at, bottom + 7), SMALL, FAINT, Anchor::Middle);
                free = at + half + 14;
            }
        }
        canvas.text(
            self.x_title,
            ((left + right) / 2, bottom + 25),
            SMALL,
            FAINT,
            Anchor::Middle,
        );
        canvas.line(vec![(left, top), (left, bottom), (right, bottom)], FAINT, 1);
    }

    /// Lines with their marks, those of second rank first, and at the end of each its tag.
    pub fn curves(&self, canvas: &mut Canvas, curves: &[Curve], x: &Scale, y: &Scale) {
        self.lines(canvas, curves, (x, y), marked);
    }

    /// The same with a mark at each point.
    pub fn curves_marked(&self, canvas: &mut Canvas, curves: &[Curve], x: &Scale, y: &Scale) {
        self.lines(canvas, curves, (x, y), |points, _| points.to_vec());
    }

    fn lines(
        &self,
        canvas: &mut Canvas,
        curves: &[Curve],
        (x, y): (&Scale, &Scale),
        marks: fn(&[Point], usize) -> Vec<Point>,
    ) {
        let pixels = |curve: &Curve| -> Vec<Point> {
            curve
                .points
                .iter()
                .map(|(across, up)| (x.at(*across), y.at(*up)))
                .collect()
        };
        for curve in curves.iter().filter(|curve| curve.pen.is_none()) {
            canvas.line(simplified(&pixels(curve)), LINE, 1);
        }
        let mut ends = Vec::new();
        for curve in curves {
            let Some(pen) = curve.pen else { continue };
            let points = pixels(curve);
            canvas.line(simplified(&points), pen.colour, 2);
            for at in marks(&points, pen.mark) {
                canvas.mark(Mark::Series(pen.mark), at, pen.colour);
            }
            ends.extend(points.last().map(|end| (*end, &curve.tag)));
        }
        self.tag(canvas, ends);
    }

    /// Names right of the axes, each with a line to its point.
    pub fn tag(&self, canvas: &mut Canvas, mut ends: Vec<(Point, &String)>) {
        let [_, right, top, bottom] = self.inside();
        ends.sort_by_key(|((_, y), _)| *y);
        let wanted: Vec<i32> = ends.iter().map(|((_, y), _)| y - 6).collect();
        for (((x, y), tag), at) in ends
            .iter()
            .zip(spread(&wanted, SMALL, [top - 6, bottom - 6]))
        {
            canvas.line(vec![(*x, *y), (right + 10, at + 6)], FAINT, 1);
            canvas.fit(tag, (right + 13, at), self.tags - 15, SMALL, INK);
        }
    }
}

/// Points at even distances, at other places for each style, so that equal lines do not hide each
/// other's marks.
fn marked(points: &[Point], style: usize) -> Vec<Point> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let step = (last.0 - first.0) / MARKS;
    if step <= 0 {
        return vec![*first];
    }
    let offset = step * (style % MOST_LINES) as i32 / MOST_LINES as i32;
    let nearest = |x: i32| points[points.partition_point(|p| p.0 < x).min(points.len() - 1)];
    let mut marks: Vec<Point> = (0..MARKS)
        .map(|i| nearest(first.0 + offset + i * step))
        .collect();
    marks.dedup();
    marks
}

/// Sorted places moved as little as need be, so that they are `apart`; within `room` if that is
/// possible.
fn spread(wanted: &[i32], apart: i32, [low, high]: [i32; 2]) -> Vec<i32> {
    let mut placed: Vec<i32> = Vec::with_capacity(wanted.len());
    for want in wanted {
        placed.push(
            placed
                .last()
                .map_or(*want, |last| (*want).max(last + apart))
                .max(low),
        );
    }
    let mut limit = high;
    for place in placed.iter_mut().rev() {
        *place = (*place).min(limit);
        limit = *place - apart;
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
