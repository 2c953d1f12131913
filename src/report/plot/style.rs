//! Font, colours and text of the pictures.

use plotters::{coord::Shift, prelude::*, style::RGBColor};

use crate::{
    error::{Error, Result},
    report::format::number,
};

pub type Drawing<DB> = DrawingArea<DB, Shift>;

pub const WIDTH: u32 = 1400;
pub const MARGIN: i32 = 24;
pub const INK: RGBColor = RGBColor(32, 32, 36);
pub const FAINT: RGBColor = RGBColor(110, 110, 118);
pub const LINE: RGBColor = RGBColor(214, 214, 220);

/// Under this name the font is embedded for layout and PNG; in an SVG it is a list that a viewer goes through.
pub const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

pub fn register_fonts() -> Result<()> {
    plotters::style::register_font(FONT, FontStyle::Normal, dejavu::sans::regular())
        .map_err(|_| Error::Failed { message: "the embedded font cannot be read".to_owned(), help: None })
}

pub fn to_error<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> Error {
    Error::Failed { message: format!("cannot draw the picture: {error}"), help: None }
}

/// Colours that stay apart for most colour-blind readers, then hues as far from each other as can be.
pub fn colour(index: usize) -> RGBColor {
    const FIRST: [RGBColor; 8] = [
        RGBColor(0, 114, 178),
        RGBColor(230, 130, 0),
        RGBColor(0, 158, 115),
        RGBColor(204, 70, 140),
        RGBColor(86, 180, 233),
        RGBColor(178, 60, 0),
        RGBColor(120, 94, 200),
        RGBColor(150, 140, 20),
    ];
    FIRST.get(index).copied().unwrap_or_else(|| {
        let lightness = if index.is_multiple_of(2) { 0.3 } else { 0.62 };
        let (r, g, b) = HSLColor((0.1 + index as f64 * 0.618_034).fract(), 0.6, lightness).rgb();
        RGBColor(r, g, b)
    })
}

/// A round number without the zeros that say nothing: `1,500`, `0.25`, `0`.
pub fn tick_label(tick: f64) -> String {
    let text = if tick == 0.0 { "0".to_owned() } else { number(tick) };
    if text.contains('.') && !text.contains('e') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// Text with its upper left corner at `at`.
pub fn text<DB: DrawingBackend>(
    area: &Drawing<DB>,
    words: &str,
    at: (i32, i32),
    size: i32,
    colour: &RGBColor,
) -> Result<()> {
    area.draw(&Text::new(words.to_owned(), at, (FONT, size).into_font().color(colour))).map_err(to_error)
}

/// Width in pixels of `words`.
pub fn width_of(words: &str, size: i32) -> i32 {
    (FONT, size).into_font().box_size(words).map_or(0, |(width, _)| i32::try_from(width).unwrap_or(i32::MAX))
}

/// `words`, cut with an ellipsis where they would be wider than `room` pixels.
pub fn fit(words: &str, size: i32, room: i32) -> String {
    if width_of(words, size) <= room {
        return words.to_owned();
    }
    let mut kept: Vec<char> = words.chars().collect();
    while kept.pop().is_some() {
        let cut = kept.iter().collect::<String>() + "…";
        if width_of(&cut, size) <= room {
            return cut;
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_lose_only_zeros_that_say_nothing() {
        for (tick, label) in [(0.0, "0"), (500_000.0, "500,000"), (2000.0, "2,000"), (0.25, "0.25"), (10.0, "10")] {
            assert_eq!(tick_label(tick), label);
        }
    }
}
