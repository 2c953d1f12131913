//! Comparisons → tables, pictures and a page. Pure: strings and bytes out, nothing is written here.
mod format;
mod gate;
mod html;
mod junit;
mod plot;
mod table;

pub use format::{bytes, number};
pub use gate::*;
pub use html::*;
pub use junit::*;
pub use plot::*;
pub use table::*;
