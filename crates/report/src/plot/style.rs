//! Sizes, colours and marks of the pictures.
//!
//! An SVG has these colours and no others: [`PAPER`], [`INK`], [`FAINT`], [`LINE`], and those of [`SERIES`]. They stand
//! as `fill="#202024"` or `stroke="#202024"`, so a page maps them with CSS, as for a dark scheme:
//! `svg [fill="#FFFFFF"] { fill: … } svg [stroke="#202024"] { stroke: … }`.
//! Colour never speaks alone: bars carry their names, lines a mark and a number.

use plotters::style::RGBColor;

pub const WIDTH: i32 = 1400;
pub const MARGIN: i32 = 24;
/// Between two panels side by side, each of which is [`HALF`] wide.
pub const GAP: i32 = 16;
pub const HALF: i32 = (WIDTH - 2 * MARGIN - GAP) / 2;

/// `#FFFFFF`: behind everything, and behind words that grid lines would run through.
pub const PAPER: RGBColor = RGBColor(255, 255, 255);
/// `#202024`: words, whiskers, roofs.
pub const INK: RGBColor = RGBColor(32, 32, 36);
/// `#6E6E76`: words and lines of second rank.
pub const FAINT: RGBColor = RGBColor(110, 110, 118);
/// `#D6D6DC`: grid lines, and curves that only stand behind others.
pub const LINE: RGBColor = RGBColor(214, 214, 220);

/// Sizes of words, in pixels of line height.
pub const TITLE: i32 = 26;
pub const HEADING: i32 = 17;
pub const TEXT: i32 = 15;
pub const SMALL: i32 = 14;

/// Lines that one panel may have and still be told apart.
pub const MOST_LINES: usize = 6;

/// `#0072B2 #D55E00 #009E73 #CC468C #56B4E9 #96810F`: most colour-blind readers can tell them apart.
pub const SERIES: [RGBColor; MOST_LINES] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 70, 140),
    RGBColor(86, 180, 233),
    RGBColor(150, 129, 15),
];

/// Colour of bars that belong to no line.
pub const BAR: RGBColor = SERIES[0];
