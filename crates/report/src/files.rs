//! The files of a report: each with its name and its text.

use rayon::prelude::*;
use tprimat_base::error::Result;
use tprimat_numbers::figures::Comparison;

use crate::{Meta, Page, PagePicture, csv, csv_repeats, html, left_out, markdown, table};

/// The page, which shows all the others show.
pub const PAGE: &str = "report.html";

type Text = fn(&Comparison) -> String;

/// Text, Markdown, CSV and the page of a comparison. `drawn`: the pictures that the page shows.
///
/// # Errors
/// Where the page cannot be made.
pub fn files(
    comparison: &Comparison,
    drawn: &[PagePicture],
    matrix: &str,
) -> Result<Vec<(&'static str, String)>> {
    let names: Vec<&str> = drawn.iter().map(|d| d.name.as_str()).collect();
    let meta = Meta {
        matrix: matrix.to_owned(),
        left_out: left_out(comparison, &names),
    };
    let texts: [(&'static str, Text); 4] = [
        ("compare.txt", |comparison| table(comparison, &Page::file())),
        ("compare.md", markdown),
        ("compare.csv", csv),
        ("compare_repeats.csv", csv_repeats),
    ];
    let text = |(name, of): &(&'static str, Text)| (*name, of(comparison));
    // With thousands of cells each text takes a good part of a second, and the page as long as all four.
    let (page, texts): (_, Vec<_>) = rayon::join(
        || html(comparison, drawn, &meta),
        || texts.par_iter().map(text).collect(),
    );
    let mut files = texts;
    files.push((PAGE, page?));
    Ok(files)
}
