//! A picture as a list of shapes: laid out once, in pixels, then drawn by plotters as SVG and as
//! PNG.

pub use plotters::style::text_anchor::HPos as Anchor;
use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        RGBColor,
        text_anchor::{Pos, VPos},
    },
};
use tprimat_base::error::{Error, Result};

use super::{
    style::{FAINT, FULL, HEADING, INK, MARGIN, MOST_LINES, PAPER, SMALL, TEXT, TITLE, WIDTH},
    text::{FONT, clean, elide, font, set, width_of, wrap},
};

pub type Point = (i32, i32);

/// Pixels of the tallest picture: viewers and browsers still open it, and as pixels it takes 50 MB.
const TALLEST: i32 = 12_000;

enum Shape {
    Words(Words),
    Line(Vec<Point>, ShapeStyle),
    Box(Rectangle<Point>),
    Polygon(Polygon<Point>),
    Circle(Circle<Point, i32>),
}

struct Words {
    text: String,
    /// The upper edge, and the edge or middle that the anchor names.
    at: Point,
    size: i32,
    colour: RGBColor,
    anchor: Anchor,
}

#[derive(Default)]
pub struct Canvas {
    /// Each with its lowest pixel.
    shapes: Vec<(i32, Shape)>,
    /// Where the next block begins.
    pub top: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Disc,
    Ring,
    /// Around another mark.
    WideRing,
    Cross,
    Diamond,
    Square,
    Block,
    Up,
    Down,
    /// A stroke on the lower edge of a panel.
    Foot,
}

/// Marks of lines, which stay apart without colour.
pub const LINE_MARKS: [Mark; MOST_LINES] = [
    Mark::Disc,
    Mark::Block,
    Mark::Up,
    Mark::Diamond,
    Mark::Square,
    Mark::Cross,
];

impl Canvas {
    /// Begins a picture: its title, and what a reader must know of all panels.
    pub fn titled(title: &str, subtitle: &str) -> Self {
        let mut canvas = Self {
            top: 14,
            ..Self::default()
        };
        canvas.text(title, (MARGIN, canvas.top), TITLE, INK, Anchor::Left);
        canvas.top += 32;
        canvas.paragraph(subtitle, TEXT, FAINT);
        canvas.top += 8;
        canvas
    }

    /// `at`: the upper edge, and the edge or middle that the anchor names.
    pub fn text(&mut self, words: &str, at: Point, size: i32, colour: RGBColor, anchor: Anchor) {
        let text = clean(words);
        if !text.trim().is_empty() {
            let words = Words {
                text,
                at,
                size,
                colour,
                anchor,
            };
            self.add(at.1 + size, Shape::Words(words));
        }
    }

    fn add(&mut self, lowest: i32, shape: Shape) {
        self.shapes.push((lowest, shape));
    }

    /// Words that grid lines do not run through.
    pub fn label(&mut self, words: &str, at: Point, size: i32, colour: RGBColor, anchor: Anchor) {
        if words.trim().is_empty() {
            return;
        }
        let width = width_of(&clean(words), size);
        let left = match anchor {
            Anchor::Left => at.0,
            Anchor::Center => at.0 - width / 2,
            Anchor::Right => at.0 - width,
        };
        let corners = [(left - 3, at.1 - 1), (left + width + 3, at.1 + size)];
        self.rectangle(corners, PAPER, true);
        self.text(words, at, size, colour, anchor);
    }

    /// Lines over the whole width, from `top` on.
    pub fn paragraph(&mut self, words: &str, size: i32, colour: RGBColor) {
        self.lines_of(words, MARGIN, FULL, size, colour);
    }

    /// Lines from `left` on, no wider than `room`; on white.
    pub fn lines_of(&mut self, words: &str, left: i32, room: i32, size: i32, colour: RGBColor) {
        for line in wrap(&clean(words), size, room) {
            self.label(&line, (left, self.top), size, colour, Anchor::Left);
            self.top += size + 4;
        }
    }

    /// What stands over a panel, or a group of them.
    pub fn heading(&mut self, words: &str) {
        self.top += 10;
        self.paragraph(words, HEADING, INK);
        self.top += 2;
    }

    /// Words of second rank in one line, shortened at their end.
    pub fn fit(&mut self, words: &str, at: Point, room: i32, size: i32, colour: RGBColor) {
        let words = elide(&clean(words), size, room, 1.0);
        self.text(&words, at, size, colour, Anchor::Left);
    }

    pub fn line(&mut self, points: Vec<Point>, colour: RGBColor, width: u32) {
        match points[..] {
            [] => {}
            [(x, y)] => self.rectangle([(x, y), (x + 1, y + 1)], colour, true),
            _ => {
                let lowest = points.iter().map(|(_, y)| *y).max().unwrap_or(0);
                self.add(lowest, Shape::Line(points, colour.stroke_width(width)));
            }
        }
    }

    /// Straight, from `a` to `b`, in dashes.
    pub fn dashed(&mut self, a: Point, b: Point, colour: RGBColor) {
        const DASH: i32 = 5;
        let length = (b.0 - a.0).abs().max((b.1 - a.1).abs()).max(1);
        let at = |along: i32| {
            (
                a.0 + (b.0 - a.0) * along / length,
                a.1 + (b.1 - a.1) * along / length,
            )
        };
        for start in (0..length).step_by(2 * DASH as usize) {
            self.line(vec![at(start), at((start + DASH).min(length))], colour, 1);
        }
    }

    /// From `low` to `high`, with a stroke at each end that is shown, and an arrow where it goes on beyond the picture.
    pub fn whisker(
        &mut self,
        ends: [(Point, bool); 2],
        (x, y): Point,
        colour: RGBColor,
        width: u32,
    ) {
        self.line(ends.map(|(end, _)| end).to_vec(), colour, width);
        const HEAD: i32 = 7;
        for (at, (end, is_shown)) in ends.into_iter().enumerate() {
            let other = ends[1 - at].0;
            let back = (
                HEAD * (other.0 - end.0).signum(),
                HEAD * (other.1 - end.1).signum(),
            );
            let stroke = |side: i32| (end.0 + side * x, end.1 + side * y);
            let head = |side: i32| (stroke(side).0 + back.0, stroke(side).1 + back.1);
            let points = if is_shown {
                vec![stroke(-1), stroke(1)]
            } else {
                vec![head(-1), end, head(1)]
            };
            self.line(points, colour, width);
        }
    }

    pub fn rectangle(&mut self, corners: [Point; 2], colour: RGBColor, filled: bool) {
        let lowest = corners[0].1.max(corners[1].1);
        let shape = Rectangle::new(corners, style(colour, filled, 1));
        self.add(lowest, Shape::Box(shape));
    }

    pub fn mark(&mut self, mark: Mark, (x, y): Point, colour: RGBColor) {
        let moved = |points: &[Point]| -> Vec<Point> {
            points.iter().map(|(dx, dy)| (x + dx, y + dy)).collect()
        };
        let mut circle = |radius, filled| {
            let circle = Circle::new((x, y), radius, style(colour, filled, 2));
            self.shapes.push((y + radius, Shape::Circle(circle)));
        };
        let (points, filled): (&[Point], bool) = match mark {
            Mark::Disc => return circle(4, true),
            Mark::Ring => return circle(4, false),
            Mark::WideRing => return circle(10, false),
            Mark::Cross => {
                self.line(moved(&[(-4, -4), (4, 4)]), colour, 2);
                (&[(-4, 4), (4, -4)], false)
            }
            Mark::Diamond => (&[(0, -5), (5, 0), (0, 5), (-5, 0), (0, -5)], false),
            Mark::Square => (&[(-4, -4), (4, -4), (4, 4), (-4, 4), (-4, -4)], false),
            Mark::Block => (&[(-4, -4), (4, -4), (4, 4), (-4, 4)], true),
            Mark::Up => (&[(0, -5), (5, 4), (-5, 4)], true),
            Mark::Down => (&[(0, 6), (6, -5), (-6, -5)], true),
            Mark::Foot => (&[(0, -10), (0, 0)], false),
        };
        if filled {
            let shape = Polygon::new(moved(points), colour.filled());
            self.add(y + 6, Shape::Polygon(shape));
        } else {
            self.line(moved(points), colour, 2);
        }
    }

    /// Draws behind all that was drawn since there were `since` shapes.
    pub fn behind(&mut self, since: usize, draw: impl FnOnce(&mut Self)) {
        let front = self.shapes.split_off(since);
        draw(self);
        self.shapes.extend(front);
    }

    pub fn count(&self) -> usize {
        self.shapes.len()
    }

    /// The same picture, ended where it would be taller than viewers open; its last line then says
    /// so. How many cells a picture shows is bounded before (see `cells`), so only cells with very
    /// many labels or curves come here.
    pub fn bounded(mut self) -> Self {
        if self.top > TALLEST {
            self.shapes.retain(|(lowest, _)| *lowest < TALLEST);
            self.top = TALLEST;
            let words = "The picture ends here. report.html and compare.csv have what is missing.";
            self.paragraph(words, TEXT, INK);
        }
        self
    }

    fn size(&self) -> (u32, u32) {
        (WIDTH as u32, u32::try_from(self.top + SMALL).unwrap_or(1))
    }

    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, self.size()).into_drawing_area();
        self.draw(&area, true).map_err(failed)?;
        drop(area);
        Ok(terse(&svg))
    }

    pub fn png(&self) -> Result<Vec<u8>> {
        encode(&self.pixels()?, self.size()).map_err(failed)
    }

    /// Red, green and blue of each pixel.
    fn pixels(&self) -> Result<Vec<u8>> {
        let (width, height) = self.size();
        let mut pixels = vec![255; width as usize * height as usize * 3];
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        self.draw(&area, false).map_err(failed)?;
        drop(area);
        Ok(pixels)
    }

    /// `is_svg`: words are set and the corners of broken lines joined by whoever shows the picture. In pixels
    /// plotters sets each letter on a whole pixel and lengthens an acute corner of a thick line without
    /// end, so there words are set here, and each piece of a line is drawn by itself.
    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        is_svg: bool,
    ) -> std::result::Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        area.fill(&PAPER)?;
        for (_, shape) in &self.shapes {
            match shape {
                Shape::Words(words) if is_svg => {
                    let style = font(words.size).color(&words.colour);
                    let style = style.pos(Pos::new(words.anchor, VPos::Top));
                    area.draw(&Text::new(words.text.as_str(), words.at, style))?;
                }
                Shape::Words(words) => {
                    let left = match words.anchor {
                        Anchor::Left => 0.0,
                        Anchor::Center => 0.5,
                        Anchor::Right => 1.0,
                    };
                    let mut drawn = Ok(());
                    set(&words.text, words.at, words.size, left, |at, share| {
                        let dot = area.draw_pixel(at, &words.colour.mix(share));
                        drawn = std::mem::replace(&mut drawn, Ok(())).and(dot);
                    });
                    drawn?;
                }
                Shape::Line(points, style) if is_svg || style.stroke_width < 2 => {
                    area.draw(&PathElement::new(points.as_slice(), *style))?;
                }
                Shape::Line(points, style) => {
                    for piece in points.windows(2) {
                        area.draw(&PathElement::new(piece, *style))?;
                    }
                }
                Shape::Box(rectangle) => area.draw(rectangle)?,
                Shape::Polygon(polygon) => area.draw(polygon)?,
                Shape::Circle(circle) => area.draw(circle)?,
            }
        }
        area.present()
    }
}

fn failed(error: impl std::error::Error) -> Error {
    Error::failed(format!("cannot draw the picture: {error}"))
}

fn style(colour: RGBColor, filled: bool, width: u32) -> ShapeStyle {
    if filled {
        colour.filled()
    } else {
        colour.stroke_width(width)
    }
}

/// The same picture without what an SVG means anyway, and with the font said once. Words cannot be
/// hit: in them, quotes are escaped.
fn terse(svg: &str) -> String {
    let font = format!(" font-family=\"{FONT}\"");
    let mut short = svg.replace(&font, "").replace(" \"/>", "\"/>");
    for meant in [
        " opacity=\"1\"",
        " stroke=\"none\"",
        " stroke-width=\"1\"",
        " text-anchor=\"start\"",
    ] {
        short = short.replace(meant, "");
    }
    short.replacen("<svg", &format!("<svg{font}"), 1)
}

fn encode(
    pixels: &[u8],
    (width, height): (u32, u32),
) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // Flat colours: filters would only hide the repetition. The default level takes ten times as
    // long, for a file that is a quarter smaller.
    encoder.set_filter(png::Filter::NoFilter);
    encoder.set_deflate_compression(png::DeflateCompression::Level(1));
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_where_its_points_are() {
        let mut canvas = Canvas {
            top: 400,
            ..Canvas::default()
        };
        // To and fro almost on itself, as step times with outliers are where pixels are few.
        let turns = [
            (100, 200),
            (100, 150),
            (101, 199),
            (101, 152),
            (102, 200),
            (103, 198),
        ];
        let points = (0..40)
            .flat_map(|i| turns.map(|(x, y)| (x + 3 * i, y - i % 7)))
            .collect();
        canvas.line(points, INK, 2);
        let pixels = canvas.pixels().unwrap();
        let rows = pixels.chunks(WIDTH as usize * 3);
        let drawn = rows.map(|row| row.iter().any(|value| *value < 200));
        let drawn: Vec<usize> = drawn
            .enumerate()
            .filter_map(|(y, is)| is.then_some(y))
            .collect();
        assert!(
            drawn[0] >= 140 && drawn[drawn.len() - 1] <= 202,
            "rows {} to {}",
            drawn[0],
            drawn[drawn.len() - 1]
        );
    }
}
