//! A comparison as pictures, each as PNG and as SVG.
//!
//! One drawing code for both, an embedded font, no clock: the same comparison gives the same bytes
//! everywhere. Cells of different groups never share an axis. A picture has a bounded size, however
//! many cells there are. What each file draws:
//!
//! | picture | shows |
//! |---|---|
//! | `overview` | `compare`: rates of all cells, and why others have none |
//! | `sweep` | cells over a numeric axis; `sweep_text` has the sentences |
//! | `rates` | `mfu`, `memory`, `energy`, `cost` as bars |
//! | `step_time`, `loss` | what repeats are made of, over steps |
//! | `scaling` | rates over devices |
//! | `history` | a cell's speed over time |
//!
//! A picture chooses what it shows, as data: `bars` is a panel of cells below each other, `lines` a
//! panel with two axes. Each is drawn in one place, on a `canvas` of shapes in pixels, which `axis`
//! and `text` measure. `cells` chooses the cells, their order and their names, `series` makes curves
//! of repeats, `style` has the colours.
mod axis;
mod bars;
mod canvas;
mod cells;
pub mod format;
pub mod hardware;
pub mod history;
mod lines;
mod loss;
mod overview;
mod rates;
mod scaling;
mod series;
mod short_names;
mod step_time;
mod style;
mod sweep;
mod sweep_text;
mod text;
mod unmeasured;

use std::path::Path;

use canvas::Canvas;
use cells::Shown;
pub use history::history_picture;
pub use loss::loss_apart;
use rayon::prelude::*;
pub use short_names::short_names;
pub use style::hex;
pub use sweep::{plain, surface_names};
pub use sweep_text::sweep_sentences;
use tprimat_base::error::Result;
use tprimat_numbers::figures::Comparison;
pub use unmeasured::{Unmeasured, unmeasured};

/// The same picture in both formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// `compare`, `memory`, …; see [`Picture::file`].
    pub name: &'static str,
    /// What it shows, for a heading or a text in its place.
    pub title: &'static str,
    pub png: Vec<u8>,
    pub svg: String,
}

impl Picture {
    fn of(name: &'static str, title: &'static str, canvas: Canvas) -> Result<Self> {
        let canvas = canvas.bounded();
        Ok(Self {
            name,
            title,
            png: canvas.png()?,
            svg: canvas.svg()?,
        })
    }

    /// As a file of this name holds it: SVG if the name ends so, else PNG.
    #[must_use]
    pub fn bytes_for(&self, path: &Path) -> &[u8] {
        match path.extension().is_some_and(|ending| ending == "svg") {
            true => self.svg.as_bytes(),
            false => &self.png,
        }
    }

    /// Its file without extension: `compare`, `plot_memory`.
    #[must_use]
    pub fn file(&self) -> String {
        if self.name == OVERVIEW {
            self.name.to_owned()
        } else {
            format!("plot_{}", self.name)
        }
    }
}

/// A picture that would show nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub name: &'static str,
    pub title: &'static str,
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pictures {
    pub drawn: Vec<Picture>,
    pub left_out: Vec<LeftOut>,
}

const OVERVIEW: &str = "compare";

type Draw = fn(&Shown) -> std::result::Result<Canvas, String>;

/// In the order in which a report shows them.
const PLOTS: [(&str, &str, Draw); 10] = [
    (OVERVIEW, "Overview", overview::overview),
    ("sweep", "Sweep", sweep::sweep),
    // The same bars, in the place of a file that pages elsewhere show.
    ("throughput", "Throughput", overview::overview),
    ("mfu", "MFU", rates::mfu),
    ("step_time", "Step time over steps", step_time::step_time),
    ("loss", "Loss and learning rate", loss::loss),
    ("memory", "Peak memory", rates::memory),
    ("energy", "Energy", rates::energy),
    ("cost", "Cost", rates::cost),
    ("scaling", "Scaling", scaling::scaling),
];

/// A picture's name by the name of its file.
fn name_of(file: &str) -> &str {
    file.strip_prefix("plot_").unwrap_or(file)
}

/// What a picture of this file name shows.
#[must_use]
pub fn title_of(file: &str) -> Option<&'static str> {
    let history = (history::NAME, history::TITLE);
    let mut titles = PLOTS
        .map(|(name, title, _)| (name, title))
        .into_iter()
        .chain([history]);
    titles
        .find(|(name, _)| *name == name_of(file))
        .map(|(_, title)| title)
}

/// Pictures that were not drawn, each with its reason: that much is found without drawing.
#[must_use]
pub fn left_out(comparison: &Comparison, drawn: &[&str]) -> Vec<LeftOut> {
    let shown = Shown::of(comparison);
    let reason = |(name, title, draw): (&'static str, &'static str, Draw)| {
        let is_drawn = drawn.iter().any(|file| name_of(file) == name);
        let why = if is_drawn { None } else { draw(&shown).err() };
        let reason = shown.reason(why?);
        Some(LeftOut {
            name,
            title,
            reason,
        })
    };
    PLOTS.into_iter().filter_map(reason).collect()
}

/// All pictures that have something to show.
///
/// # Errors
/// Only where plotters or the PNG encoder fail.
pub fn pictures(comparison: &Comparison) -> Result<Pictures> {
    let shown = Shown::of(comparison);
    let each = |(name, title, draw): (&'static str, &'static str, Draw)| {
        let canvas = draw(&shown).ok()?;
        Some(Picture::of(name, title, canvas))
    };
    let drawn: Vec<Picture> = PLOTS
        .into_par_iter()
        .filter_map(each)
        .collect::<Result<_>>()?;
    let names: Vec<&str> = drawn.iter().map(|picture| picture.name).collect();
    Ok(Pictures {
        left_out: left_out(comparison, &names),
        drawn,
    })
}

#[cfg(test)]
#[path = "plot/sample_for_tests.rs"]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
