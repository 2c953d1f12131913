//! Comparisons → sentences, tables, files, pictures and a page. Pure: strings and bytes out, nothing is written here.
mod advice;
mod cell;
mod cost;
mod csv;
mod environment;
mod format;
mod gate;
mod headline;
mod html;
mod junit;
mod markdown;
mod names;
mod notes;
mod paint;
mod plot;
mod sheet;
#[cfg(test)]
#[path = "../../figures/src/stand_ins.rs"]
mod stand_ins;
mod table;
#[cfg(test)]
mod tests;

pub use self::csv::*;
pub use advice::advice;
pub use cell::*;
pub use format::{bytes, number, seconds};
pub use gate::*;
pub use headline::*;
pub use html::*;
pub use junit::*;
pub use markdown::*;
pub use paint::{Ink, Page, Paint};
pub use plot::*;
pub use table::*;

#[cfg(test)]
use tprimat_figures as figures;
