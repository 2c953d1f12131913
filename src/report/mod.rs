//! Comparisons → tables and pictures. Pure: strings and bytes out, nothing is written here.
mod format;
mod table;

pub use table::*;
