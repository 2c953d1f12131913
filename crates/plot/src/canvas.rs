//! A picture as a list of shapes: laid out once, in pixels, then drawn by plotters as SVG and as
//! PNG.

use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        RGBColor,
        text_anchor::{HPos, Pos, VPos},
    },
};
use tprimat_base::error::{Error, Result};

use super::{
    style::{FAINT, HEADING, INK, MARGIN, MOST_LINES, PAPER, Pen, TEXT, TITLE, WIDTH},
    text::{FONT, clean, elide, width_of, wrap},
};

pub type Point = (i32, i32);

/// Pixels of the tallest picture: viewers and browsers still open it, and as pixels it takes 50 MB.
const TALLEST: i32 = 12_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Left,
    Middle,
    Right,
}

#[derive(Clone, Debug, PartialEq)]
enum Shape {
    /// `at`: the upper edge, and the edge or middle that the anchor names.
    Text {
        words: String,
        at: Point,
        size: i32,
        colour: RGBColor,
        anchor: Anchor,
    },
    Line {
        points: Vec<Point>,
        colour: RGBColor,
        width: u32,
    },
    Rectangle {
        corners: [Point; 2],
        colour: RGBColor,
        filled: bool,
    },
    Polygon {
        points: Vec<Point>,
        colour: RGBColor,
    },
    Circle {
        centre: Point,
        radius: i32,
        colour: RGBColor,
        filled: bool,
    },
}

impl Shape {
    /// The lowest pixel.
    fn lowest(&self) -> i32 {
        let of = |points: &[Point]| points.iter().map(|(_, y)| *y).max().unwrap_or(0);
        match self {
            Self::Text { at, size, .. } => at.1 + size,
            Self::Line { points, .. } | Self::Polygon { points, .. } => of(points),
            Self::Rectangle { corners, .. } => of(corners),
            Self::Circle { centre, radius, .. } => centre.1 + radius,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Canvas {
    shapes: Vec<Shape>,
    /// Where the next block begins.
    pub top: i32,
}

/// What the marks of a line and of a repeat look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// One of [`MOST_LINES`] that stay apart without colour.
    Series(usize),
    Counted,
    Failed,
    Contradicted,
    Suspect,
    Unmeasured,
    /// Beyond the upper edge of the panel.
    Above,
    /// Lower than before.
    Lower,
    /// A step that took longer than its neighbours.
    Outlier,
    /// Around the fastest point of a line.
    Best,
}

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

    pub fn text(&mut self, words: &str, at: Point, size: i32, colour: RGBColor, anchor: Anchor) {
        let words = clean(words);
        if !words.trim().is_empty() {
            self.shapes.push(Shape::Text {
                words,
                at,
                size,
                colour,
                anchor,
            });
        }
    }

    /// Words that grid lines do not run through.
    pub fn label(&mut self, words: &str, at: Point, size: i32, colour: RGBColor, anchor: Anchor) {
        let width = width_of(&clean(words), size);
        let left = left_edge(at.0, width, anchor);
        self.rectangle(
            [(left - 3, at.1 - 1), (left + width + 3, at.1 + size)],
            PAPER,
            true,
        );
        self.text(words, at, size, colour, anchor);
    }

    /// Lines over the whole width, from `top` on.
    pub fn paragraph(&mut self, words: &str, size: i32, colour: RGBColor) {
        self.lines_of(words, MARGIN, WIDTH - 2 * MARGIN, size, colour);
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

    pub fn line(&mut self, points: Vec<Point>, colour: RGBColor, width: u32) {
        match points[..] {
            [] => {}
            [(x, y)] => self.rectangle([(x, y), (x + 1, y + 1)], colour, true),
            _ => self.shapes.push(Shape::Line {
                points,
                colour,
                width,
            }),
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

    pub fn rectangle(&mut self, corners: [Point; 2], colour: RGBColor, filled: bool) {
        self.shapes.push(Shape::Rectangle {
            corners,
            colour,
            filled,
        });
    }

    /// A frame with slanted lines in it, drawn as one line to and fro; `back`: they fall.
    pub fn hatched(
        &mut self,
        [(left, top), (right, bottom)]: [Point; 2],
        colour: RGBColor,
        back: bool,
    ) {
        let (slant, mut points) = (bottom - top, Vec::new());
        let mut at = left + slant;
        let (first, last) = if back { (bottom, top) } else { (top, bottom) };
        while at < right {
            let ends = [(at, first), (at - slant, last)];
            points.extend(if points.len() % 4 == 0 {
                ends
            } else {
                [ends[1], ends[0]]
            });
            at += 8;
        }
        self.line(points, colour, 1);
        self.rectangle([(left, top), (right, bottom)], colour, false);
    }

    pub fn mark(&mut self, mark: Mark, (x, y): Point, colour: RGBColor) {
        let polygon = |points: &[Point]| {
            points
                .iter()
                .map(|(dx, dy)| (x + dx, y + dy))
                .collect::<Vec<_>>()
        };
        let closed = |points: &[Point]| {
            polygon(points)
                .into_iter()
                .chain([(x + points[0].0, y + points[0].1)])
                .collect()
        };
        let shape = |points: &[Point]| Shape::Polygon {
            points: polygon(points),
            colour,
        };
        let circle = |filled| Shape::Circle {
            centre: (x, y),
            radius: 4,
            colour,
            filled,
        };
        match mark {
            Mark::Counted => self.shapes.push(circle(true)),
            Mark::Unmeasured => self.shapes.push(circle(false)),
            Mark::Failed => {
                self.line(polygon(&[(-4, -4), (4, 4)]), colour, 2);
                self.line(polygon(&[(-4, 4), (4, -4)]), colour, 2);
            }
            Mark::Contradicted => self.line(closed(&[(0, -5), (5, 0), (0, 5), (-5, 0)]), colour, 2),
            Mark::Suspect => self.line(closed(&[(-4, -4), (4, -4), (4, 4), (-4, 4)]), colour, 2),
            Mark::Above => self.shapes.push(shape(&[(0, 0), (4, 7), (-4, 7)])),
            Mark::Lower => self.shapes.push(shape(&[(0, 6), (6, -5), (-6, -5)])),
            Mark::Outlier => self.shapes.push(circle(false)),
            Mark::Best => self.shapes.push(Shape::Circle {
                centre: (x, y),
                radius: 10,
                colour,
                filled: false,
            }),
            Mark::Series(index) => match index % MOST_LINES {
                0 => self.shapes.push(circle(true)),
                1 => self.rectangle([(x - 4, y - 4), (x + 4, y + 4)], colour, true),
                2 => self.shapes.push(shape(&[(0, -5), (5, 4), (-5, 4)])),
                3 => self.line(closed(&[(0, -5), (5, 0), (0, 5), (-5, 0)]), colour, 2),
                4 => self.line(closed(&[(-4, -4), (4, -4), (4, 4), (-4, 4)]), colour, 2),
                _ => self.mark(Mark::Failed, (x, y), colour),
            },
        }
    }

    /// A short piece of a line with its mark, as it is drawn in the panel above.
    pub fn sample(&mut self, pen: Pen, (x, y): Point) {
        self.line(vec![(x, y), (x + 30, y)], pen.colour, 2);
        self.mark(Mark::Series(pen.mark), (x + 15, y), pen.colour);
    }

    /// `words` in at most `room` pixels, shortened at its end.
    pub fn fit(&mut self, words: &str, at: Point, room: i32, size: i32, colour: RGBColor) {
        self.text(
            &elide(&clean(words), size, room, 1.0),
            at,
            size,
            colour,
            Anchor::Left,
        );
    }

    /// The same picture, ended where it would be taller than viewers open; its last line then says
    /// so. How many cells a picture shows is bounded before (see `shown`), so only cells with very
    /// many labels or curves come here.
    pub fn bounded(mut self) -> Self {
        if self.top > TALLEST {
            self.shapes.retain(|shape| shape.lowest() < TALLEST);
            self.top = TALLEST;
            self.paragraph(
                "The picture ends here. report.html and compare.csv have what is missing.",
                TEXT,
                INK,
            );
        }
        self
    }

    /// The picture as PNG and SVG.
    pub fn finish(&self) -> Result<(Vec<u8>, String)> {
        let size = (WIDTH as u32, u32::try_from(self.top + 14).unwrap_or(1));
        let (png, svg) = rayon::join(|| self.png(size), || self.svg(size));
        Ok((png?, svg?))
    }

    fn svg(&self, size: (u32, u32)) -> Result<String> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, size).into_drawing_area())?;
        Ok(terse(&svg))
    }

    fn png(&self, size: (u32, u32)) -> Result<Vec<u8>> {
        let mut pixels = vec![255; size.0 as usize * size.1 as usize * 3];
        self.draw(&BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area())?;
        encode(&pixels, size)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Result<()> {
        area.fill(&PAPER).map_err(to_error)?;
        for shape in &self.shapes {
            match shape {
                Shape::Text {
                    words,
                    at,
                    size,
                    colour,
                    anchor,
                } => {
                    let across = match anchor {
                        Anchor::Left => HPos::Left,
                        Anchor::Middle => HPos::Center,
                        Anchor::Right => HPos::Right,
                    };
                    let style = (FONT, *size)
                        .into_font()
                        .color(colour)
                        .pos(Pos::new(across, VPos::Top));
                    area.draw(&Text::new(words.as_str(), *at, style))
                }
                Shape::Line {
                    points,
                    colour,
                    width,
                } => area.draw(&PathElement::new(
                    points.as_slice(),
                    colour.stroke_width(*width),
                )),
                Shape::Rectangle {
                    corners,
                    colour,
                    filled,
                } => {
                    let style = if *filled {
                        colour.filled()
                    } else {
                        colour.stroke_width(1)
                    };
                    area.draw(&Rectangle::new(*corners, style))
                }
                Shape::Polygon { points, colour } => {
                    area.draw(&Polygon::new(points.as_slice(), colour.filled()))
                }
                Shape::Circle {
                    centre,
                    radius,
                    colour,
                    filled,
                } => {
                    let style = if *filled {
                        colour.filled()
                    } else {
                        colour.stroke_width(2)
                    };
                    area.draw(&Circle::new(*centre, *radius, style))
                }
            }
            .map_err(to_error)?;
        }
        area.present().map_err(to_error)
    }
}

/// The same picture without what an SVG means anyway, and with the font said once. Words cannot be
/// hit: in them, quotes are escaped.
fn terse(svg: &str) -> String {
    let font = format!(" font-family=\"{FONT}\"");
    let short = svg
        .replace(&font, "")
        .replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\"", "");
    let short = short
        .replace(" stroke-width=\"1\"", "")
        .replace(" text-anchor=\"start\"", "")
        .replace(" \"/>", "\"/>");
    short.replacen("<svg", &format!("<svg{font}"), 1)
}

fn left_edge(x: i32, width: i32, anchor: Anchor) -> i32 {
    match anchor {
        Anchor::Left => x,
        Anchor::Middle => x - width / 2,
        Anchor::Right => x - width,
    }
}

fn to_error<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> Error {
    Error::failed(format!("cannot draw the picture: {error}"))
}

fn encode(pixels: &[u8], (width, height): (u32, u32)) -> Result<Vec<u8>> {
    let failed = |e: png::EncodingError| Error::failed(format!("cannot encode the picture: {e}"));
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // Flat colours: filters would only hide the repetition. The default level takes ten times as
    // long, for a file that is a quarter smaller.
    encoder.set_filter(png::Filter::NoFilter);
    encoder.set_deflate_compression(png::DeflateCompression::Level(1));
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
impl Canvas {
    /// All words, in the order in which they are drawn.
    pub fn words(&self) -> String {
        let words = self.shapes.iter().filter_map(|s| {
            if let Shape::Text { words, .. } = s {
                Some(&**words)
            } else {
                None
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// What is wrong with the layout: words that lie on other words, or that leave the picture.
    pub fn faults(&self) -> Vec<String> {
        let mut boxes: Vec<([i32; 4], &str)> = Vec::new();
        for shape in &self.shapes {
            if let Shape::Text {
                words,
                at,
                size,
                anchor,
                ..
            } = shape
            {
                let width = width_of(words, *size);
                let left = left_edge(at.0, width, *anchor);
                boxes.push(([left, at.1, left + width, at.1 + size * 100 / 124], words));
            }
        }
        boxes.sort_unstable_by_key(|(b, _)| b[1]);
        let height = self.top + 14;
        let outside = |b: &[i32; 4]| b[0] < 0 || b[1] < 0 || b[2] > WIDTH || b[3] > height;
        let mut faults: Vec<String> = boxes
            .iter()
            .filter(|(b, _)| outside(b))
            .map(|(b, w)| format!("outside: {w:?} {b:?}"))
            .collect();
        for (i, (a, words)) in boxes.iter().enumerate() {
            for (b, other) in boxes[i + 1..].iter().take_while(|(b, _)| b[1] < a[3]) {
                if a[0] < b[2] && b[0] < a[2] {
                    faults.push(format!("{words:?} {a:?} lies on {other:?} {b:?}"));
                }
            }
        }
        let points = self.shapes.iter().flat_map(|shape| match shape {
            Shape::Line { points, .. } | Shape::Polygon { points, .. } => points.clone(),
            Shape::Rectangle { corners, .. } => corners.to_vec(),
            Shape::Circle { centre, .. } => vec![*centre],
            Shape::Text { .. } => Vec::new(),
        });
        faults.extend(
            points
                .filter(|(x, y)| !(0..=WIDTH).contains(x) || !(0..=height).contains(y))
                .map(|p| format!("a shape at {p:?} is outside")),
        );
        faults
    }
}
