//! Comparisons → tables and pictures. Pure: strings and bytes out, nothing is written here.
mod format;
mod gate;
mod junit;
mod plot;
mod table;

pub use format::{bytes, number};
pub use gate::*;
pub use junit::*;
pub use plot::*;
pub use table::*;
