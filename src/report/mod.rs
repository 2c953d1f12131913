//! Comparisons → tables and pictures. Pure: strings and bytes out, nothing is written here.
mod format;
mod headline;
mod plot;
mod table;

pub use format::{bytes, number};
pub use headline::*;
pub use plot::*;
pub use table::*;
