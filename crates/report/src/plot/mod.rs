//! A comparison as pictures, each as PNG and as SVG.
//!
//! One drawing code for both, an embedded font, no clock: the same comparison gives the same bytes everywhere. Cells of
//! different groups never share an axis. A picture has a bounded size, however many cells there are. What each file draws:
//!
//! | picture | shows |
//! |---|---|
//! | `overview` | `compare`: rates of all cells, and the curves of the fastest and the slowest |
//! | `throughput` | `throughput` and `mfu` |
//! | `step_time`, `spread` | what repeats are made of, and how far they are apart |
//! | `loss` | loss and learning rate, over steps and over tokens |
//! | `memory`, `power`, `cost`, `scaling` | what it takes |
//!
//! `canvas` holds shapes in pixels, `axis` and `text` measure them; `bars` and `chart` are the two kinds of panel,
//! `shown` chooses the cells, `names` says which cell it is, `series` makes curves of repeats, `style` has colours.
mod axis;
mod bars;
mod canvas;
mod chart;
mod cost;
mod loss;
mod memory;
mod names;
mod overview;
mod power;
mod scaling;
mod series;
mod shown;
mod spread;
mod step_time;
mod style;
mod text;
mod throughput;

use canvas::Canvas;
pub(super) use loss::loss_apart;
use rayon::prelude::*;
use shown::Shown;
use tprimat_base::error::Result;
use tprimat_figures::Comparison;

/// The same picture in both formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// `compare`, `throughput`, …; see [`Picture::file`].
    pub name: &'static str,
    /// What it shows, for a heading or a text in its place.
    pub title: &'static str,
    pub png: Vec<u8>,
    pub svg: String,
}

impl Picture {
    /// Its file without extension: `compare`, `plot_throughput`.
    #[must_use]
    pub fn file(&self) -> String {
        if self.name == OVERVIEW { self.name.to_owned() } else { format!("plot_{}", self.name) }
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
    (OVERVIEW, "Overview", |shown| Ok(overview::overview(shown))),
    ("throughput", "Throughput", throughput::throughput),
    ("mfu", "MFU", throughput::mfu),
    ("step_time", "Step time over steps", step_time::step_time),
    ("spread", "Spread over repeats", spread::spread),
    ("loss", "Loss and learning rate", loss::loss),
    ("memory", "Peak memory", memory::memory),
    ("power", "Power and energy", power::power),
    ("cost", "Cost", cost::cost),
    ("scaling", "Scaling", scaling::scaling),
];

/// What a picture of this file name shows.
#[must_use]
pub fn title_of(file: &str) -> Option<&'static str> {
    let name = file.strip_prefix("plot_").unwrap_or(file);
    PLOTS.iter().find(|(n, ..)| *n == name).map(|(_, title, _)| *title)
}

/// Pictures that were not drawn, each with its reason: that much is found without drawing.
#[must_use]
pub fn left_out(comparison: &Comparison, drawn: &[&str]) -> Vec<LeftOut> {
    let is_drawn = |name: &str| drawn.iter().any(|file| file.strip_prefix("plot_").unwrap_or(file) == name);
    let shown = Shown::of(comparison);
    let reason = |(name, title, draw): (&'static str, &'static str, Draw)| {
        let reason = if is_drawn(name) { None } else { draw(&shown).err() };
        reason.map(|reason| LeftOut { name, title, reason: shown.reason(reason) })
    };
    PLOTS.into_iter().filter_map(reason).collect()
}

/// All pictures that have something to show.
///
/// # Errors
/// Only where plotters or the PNG encoder fail.
pub fn pictures(comparison: &Comparison) -> Result<Pictures> {
    text::register_fonts()?;
    let shown = Shown::of(comparison);
    let each = |(name, title, draw): (&'static str, &'static str, Draw)| match draw(&shown) {
        Ok(canvas) => canvas.bounded().finish().map(|(png, svg)| Ok(Picture { name, title, png, svg })),
        Err(reason) => Ok(Err(LeftOut { name, title, reason: shown.reason(reason) })),
    };
    let mut all = Pictures::default();
    for picture in PLOTS.into_par_iter().map(each).collect::<Result<Vec<_>>>()? {
        match picture {
            Ok(picture) => all.drawn.push(picture),
            Err(left_out) => all.left_out.push(left_out),
        }
    }
    Ok(all)
}

#[cfg(test)]
pub(super) mod sample;
#[cfg(test)]
mod tests;
