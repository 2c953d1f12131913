//! Comparisons → tables, pictures and a page. Pure: strings and bytes out, nothing is written here.
mod format;
mod html;
mod plot;
mod table;

pub use format::{bytes, number};
pub use html::*;
pub use plot::*;
pub use table::*;
