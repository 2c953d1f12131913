//! Where the time of a step goes, drawn: bars from one place of an axis to another.

use plotters::style::RGBColor;
use tprimat_base::error::Result;

use super::{
    Picture,
    axis::Scale,
    canvas::{Anchor, Canvas},
    style::{FAINT, INK, LINE, MARGIN, SERIES, SMALL, TEXT, WIDTH},
};

const NAME: &str = "why";
const TITLE: &str = "Where the time goes";
/// Where the axis begins and ends; names stand left of it, figures right of it.
const AXIS: [i32; 2] = [MARGIN + 330, WIDTH - MARGIN - 120];
const THICK: i32 = 20;
const ROW: i32 = THICK + 8;
/// The most letters of a name that have room left of the axis.
const NAME_LETTERS: usize = 42;

/// A bar between two times, in seconds.
pub struct Bar {
    pub name: String,
    pub from: f64,
    pub to: f64,
    /// Right of it.
    pub figure: String,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    WholeStep,
    Part,
    Longer,
    Shorter,
}

impl Kind {
    fn colour(self) -> RGBColor {
        match self {
            Self::WholeStep => FAINT,
            Self::Part => SERIES[0],
            Self::Longer => SERIES[1],
            Self::Shorter => SERIES[2],
        }
    }
}

/// `sentence` says what the bars show.
///
/// # Errors
/// Only where plotters or the PNG encoder fail.
pub fn picture(sentence: &str, bars: &[Bar]) -> Result<Picture> {
    let mut canvas = Canvas::titled(TITLE, sentence);
    canvas.top += 10;
    let most = bars
        .iter()
        .map(|bar| bar.from.max(bar.to))
        .fold(0.0, f64::max);
    let scale = Scale::new([0.0, 1e3 * most.max(1e-9)]).on(AXIS);
    let (top, since) = (canvas.top, canvas.count());
    for bar in bars {
        draw(&mut canvas, bar, &scale);
    }
    let bottom = canvas.top;
    canvas.behind(since, |canvas| {
        for (value, label) in scale.ticks(6) {
            let x = scale.at(value);
            canvas.line(vec![(x, top - 4), (x, bottom)], LINE, 1);
            canvas.text(&label, (x, bottom + 6), SMALL, FAINT, Anchor::Center);
        }
        canvas.text("ms", (AXIS[1] + 44, bottom + 6), SMALL, FAINT, Anchor::Left);
    });
    canvas.top = bottom + 6 + SMALL + 10;
    Picture::of(NAME, TITLE, canvas)
}

fn draw(canvas: &mut Canvas, bar: &Bar, scale: &Scale) {
    let [from, to] = [bar.from, bar.to].map(|seconds| scale.at(1e3 * seconds));
    let (left, right) = (from.min(to), from.max(to).max(from.min(to) + 1));
    let (top, bottom) = (canvas.top, canvas.top + THICK);
    let name: String = bar.name.chars().take(NAME_LETTERS).collect();
    canvas.label(&name, (AXIS[0] - 10, top + 2), TEXT, INK, Anchor::Right);
    canvas.rectangle([(left, top), (right, bottom)], bar.kind.colour(), true);
    canvas.text(&bar.figure, (right + 8, top + 2), TEXT, INK, Anchor::Left);
    canvas.top += ROW;
}
