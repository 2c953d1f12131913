//! Comparisons → sentences, tables, files, pictures and a page. Pure: strings and bytes out,
//! nothing is written here.
// A byte position in foreign text may lie within a character: `tprimat_words::part`.
#![cfg_attr(not(test), warn(clippy::string_slice))]

mod advice;
mod cell;
mod columns;
mod csv;
mod document;
mod environment;
mod files;
mod gate;
mod glance;
mod headline;
mod history;
mod html;
mod junit;
mod markdown;
mod names;
mod notes;
mod paint;
#[cfg(test)]
#[path = "../../results/src/stand_ins_for_tests.rs"]
mod run_stand_ins;
#[cfg(test)]
#[path = "../../plot/src/sample_for_tests.rs"]
mod sample;
mod sheet;
#[cfg(test)]
#[path = "../../figures/src/stand_ins_for_tests.rs"]
mod stand_ins;
mod sweep;
#[cfg(test)]
mod tests;

pub use self::csv::{csv, csv_repeats};
pub use advice::advice;
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
pub use sheet::wrapped;
pub use tprimat_plot::format::{bytes, mark, number, seconds};
pub use tprimat_plot::{LeftOut, Picture, Pictures, history_picture, left_out, pictures, title_of};
use tprimat_plot::{format, hardware};

#[cfg(test)]
use tprimat_figures as figures;
#[cfg(test)]
use tprimat_results as results;
