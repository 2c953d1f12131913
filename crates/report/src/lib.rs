//! Comparisons → sentences, tables, files, pictures and a page. Pure: strings and bytes out,
//! nothing is written here.
// A byte position in foreign text may lie within a character: `tprimat_base::words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

mod advice;
mod blame;
mod cell;
mod columns;
mod csv;
mod document;
mod files;
mod gate;
mod glance;
mod headline;
mod history;
mod html;
mod junit;
mod markdown;
mod notes;
mod paint;
pub mod plot;
#[cfg(test)]
#[path = "../../numbers/src/results/stand_ins_for_tests.rs"]
mod run_stand_ins;
mod sheet;
mod shown;
#[cfg(test)]
#[path = "../../numbers/src/figures/stand_ins_for_tests.rs"]
mod stand_ins;
mod sweep;
#[cfg(test)]
mod tests;
mod why;

pub use self::csv::{csv, csv_repeats};
pub use advice::advice;
pub use blame::{blame_differences, blame_text};
pub use cell::cell_text;
pub use document::table;
pub use files::{PAGE, files};
pub use gate::{gate_annotations, gate_markdown, gate_text};
pub use glance::{Commands, glance};
pub use headline::{SpeedVerdict, headlines};
pub use history::history_text;
pub use html::{Meta, PagePicture, html};
pub use junit::gate_junit;
pub use markdown::markdown;
pub use paint::{Ink, Page, Paint};
pub use plot::format::{bytes, mark, number, seconds};
pub use plot::{
    LeftOut, Picture, Pictures, history_picture, left_out, pictures, short_names, title_of,
};
use plot::{format, hardware};
pub use sheet::wrapped;
pub use why::why_text;

#[cfg(test)]
use tprimat_numbers::figures;
#[cfg(test)]
use tprimat_numbers::results;
