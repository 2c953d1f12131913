//! Sizes, colours and marks of the pictures.
//!
//! An SVG has these colours and no others: [`PAPER`], [`INK`], [`FAINT`], [`LINE`], and those of
//! [`SERIES`]. They stand as `fill="#202024"` or `stroke="#202024"`, so a page maps them with CSS,
//! as for a dark scheme: `svg [fill="#FFFFFF"] { fill: … } svg [stroke="#202024"] { stroke: … }`.
//! Colour never speaks alone: bars carry their names, lines a mark and a name.

use plotters::style::RGBColor;

pub const WIDTH: i32 = 1400;
pub const MARGIN: i32 = 24;
/// What is between the margins.
pub const FULL: i32 = WIDTH - 2 * MARGIN;
/// Between two panels side by side, each of which is [`HALF`] wide.
pub const GAP: i32 = 16;
pub const HALF: i32 = (FULL - GAP) / 2;

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

/// Lines that one panel may have and still be told apart, by their marks and the names at their
/// ends.
pub const MOST_LINES: usize = 6;

/// `#0072B2 #D55E00 #009E73 #CC468C #3A9BDC #96810F #7E57C2 #D32F2F #00838F #A1662F #5C6BC0
/// #6B8E23`: each stands out from white and from dark paper.
pub const SERIES: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 70, 140),
    RGBColor(58, 155, 220),
    RGBColor(150, 129, 15),
    RGBColor(126, 87, 194),
    RGBColor(211, 47, 47),
    RGBColor(0, 131, 143),
    RGBColor(161, 102, 47),
    RGBColor(92, 107, 192),
    RGBColor(107, 142, 35),
];

/// Frameworks in the order of their colours, so that each has one colour in every picture of every
/// project.
const FRAMEWORKS: [&str; 11] = [
    "native", "tran", "fsdp", "deep", "mega", "titan", "nemo", "prim", "mlm", "mgds", "cmd",
];

/// The colour of a framework. Those that do not ship with tprimat share the colours by their names;
/// a name stands beside every bar and line.
pub fn colour_of(framework: &str) -> RGBColor {
    let known = FRAMEWORKS.iter().position(|name| *name == framework);
    let by_name = || {
        framework.bytes().fold(7usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        }) % SERIES.len()
    };
    SERIES[known.unwrap_or_else(by_name)]
}

/// `#0072B2`, as a picture writes it.
#[must_use]
pub fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}
