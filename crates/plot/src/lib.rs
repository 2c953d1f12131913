//! A comparison as pictures, each as PNG and as SVG.
//!
//! One drawing code for both, an embedded font, no clock: the same comparison gives the same bytes
//! everywhere. Cells of different groups never share an axis. A picture has a bounded size, however
//! many cells there are. What each file draws:
//!
//! | picture | shows |
//! |---|---|
//! | `overview` | `compare`: rates of all cells, and the curves of the fastest and the slowest |
//! | `sweep` | cells over a numeric axis; `sweep_text` has the sentences |
//! | `throughput` | `throughput` and `mfu` |
//! | `step_time`, `spread` | what repeats are made of, and how far they are apart |
//! | `loss` | loss and learning rate, over steps and over tokens |
//! | `memory`, `power`, `cost`, `scaling` | what it takes |
//!
//! `canvas` holds shapes in pixels, `axis` and `text` measure them; `bars` and `chart` are the two
//! kinds of panel, `cell_selection` chooses the cells and their order, `short_names` and `names` say which cell it
//! is, `series` makes curves of repeats, `style` has colours.
mod axis;
mod bars;
mod canvas;
mod cell_selection;
mod chart;
mod cost;
pub mod format;
pub mod hardware;
pub mod history;
mod loss;
mod memory;
mod names;
mod overview;
mod power;
mod scaling;
mod series;
mod short_names;
mod spread;
mod step_time;
mod style;
mod sweep;
mod sweep_text;
mod text;
mod throughput;
mod unmeasured;

use canvas::Canvas;
use cell_selection::Shown;
pub use history::history_picture;
pub use loss::loss_apart;
use rayon::prelude::*;
pub use short_names::short_names;
pub use style::hex;
pub use sweep::{plain, surface_names};
pub use sweep_text::sweep_sentences;
use tprimat_base::error::Result;
use tprimat_figures::Comparison;
pub use unmeasured::{Unmeasured, unmeasured};

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
const PLOTS: [(&str, &str, Draw); 11] = [
    (OVERVIEW, "Overview", |shown| Ok(overview::overview(shown))),
    ("sweep", "Sweep", sweep::sweep),
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

/// Pictures of bars, in which points of a sweep have no panel.
const BARS: [&str; 5] = ["throughput", "mfu", "memory", "power", "cost"];

/// The picture, or why there is none.
fn draw_one(shown: &Shown, name: &str, draw: Draw) -> std::result::Result<Canvas, String> {
    let groups = shown.comparison.groups.len();
    if BARS.contains(&name) && groups > 0 && sweep::swept_groups(&shown.comparison).len() == groups
    {
        return Err("each workload is a point of the sweep, which has a picture of its own".into());
    }
    draw(shown)
}

/// What a picture of this file name shows.
#[must_use]
pub fn title_of(file: &str) -> Option<&'static str> {
    let name = file.strip_prefix("plot_").unwrap_or(file);
    if name == history::NAME {
        return Some(history::TITLE);
    }
    PLOTS
        .iter()
        .find(|(n, ..)| *n == name)
        .map(|(_, title, _)| *title)
}

/// Pictures that were not drawn, each with its reason: that much is found without drawing.
#[must_use]
pub fn left_out(comparison: &Comparison, drawn: &[&str]) -> Vec<LeftOut> {
    let is_drawn = |name: &str| {
        drawn
            .iter()
            .any(|file| file.strip_prefix("plot_").unwrap_or(file) == name)
    };
    let shown = Shown::of(comparison);
    let reason = |(name, title, draw): (&'static str, &'static str, Draw)| {
        let reason = if is_drawn(name) {
            None
        } else {
            draw_one(&shown, name, draw).err()
        };
        reason.map(|reason| LeftOut {
            name,
            title,
            reason: shown.reason(reason),
        })
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
    let each = |(name, title, draw): (&'static str, &'static str, Draw)| match draw_one(
        &shown, name, draw,
    ) {
        Ok(canvas) => canvas.bounded().finish().map(|(png, svg)| {
            Ok(Picture {
                name,
                title,
                png,
                svg,
            })
        }),
        Err(reason) => Ok(Err(LeftOut {
            name,
            title,
            reason: shown.reason(reason),
        })),
    };
    let mut all = Pictures::default();
    for picture in PLOTS
        .into_par_iter()
        .map(each)
        .collect::<Result<Vec<_>>>()?
    {
        match picture {
            Ok(picture) => all.drawn.push(picture),
            Err(left_out) => all.left_out.push(left_out),
        }
    }
    Ok(all)
}

#[cfg(test)]
#[path = "sample_for_tests.rs"]
mod sample;
#[cfg(test)]
mod tests;
