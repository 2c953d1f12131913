//! Parquet, read back by the library's own reader, beside the CSV of the same comparison.

use std::{borrow::Cow, collections::BTreeMap};

use ::parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Field,
};

use super::*;
use crate::parquet;

fn unmasked(text: &str) -> Cow<'_, str> {
    text.into()
}

fn read(comparison: &Comparison, masked: fn(&str) -> Cow<'_, str>) -> Vec<Vec<(String, Field)>> {
    let reader = reader(comparison, masked);
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().into_columns()).collect()
}

fn reader(
    comparison: &Comparison,
    masked: fn(&str) -> Cow<'_, str>,
) -> SerializedFileReader<::bytes::Bytes> {
    let file = parquet(comparison, masked).unwrap();
    SerializedFileReader::new(file.into()).unwrap()
}

/// The physical type of each column, `STRING` where it is text.
fn types(comparison: &Comparison) -> Vec<(String, String)> {
    let reader = reader(comparison, unmasked);
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let of = |column: &::parquet::schema::types::ColumnDescPtr| {
        let is_text = column.logical_type_ref() == Some(&::parquet::basic::LogicalType::String);
        let physical = column.physical_type().to_string();
        let name = if is_text { "STRING" } else { &physical };
        (column.name().to_owned(), name.to_owned())
    };
    schema.columns().iter().map(of).collect()
}

#[test]
fn parquet_has_the_cells_of_the_csv_and_null_where_it_has_none() {
    let mut all = rich(&[]);
    all.rows[0].device = Some("=1+1".to_owned());
    let csv = csv(&all);
    let mut lines = ::csv::Reader::from_reader(csv.as_bytes());
    let header: Vec<String> = lines.headers().unwrap().iter().map(str::to_owned).collect();
    let rows = read(&all, unmasked);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut read = 0;
    for (row, line) in rows.iter().zip(lines.records()) {
        let names: Vec<&String> = row.iter().map(|(name, _)| name).collect();
        assert_eq!(names, header.iter().collect::<Vec<_>>());
        for ((name, cell), field) in row.iter().zip(&line.unwrap()) {
            let (kind, is_same) = match cell {
                Field::Null => ("null", field.is_empty()),
                // Only a spreadsheet takes a text for a formula.
                Field::Str(text) => ("text", field == text || field == format!("'{text}")),
                Field::Long(count) => ("count", field == count.to_string()),
                Field::Double(number) => ("number", field.parse() == Ok(*number)),
                Field::Bool(is_so) => ("flag", field == is_so.to_string()),
                _ => ("of another type", false),
            };
            assert!(is_same, "{name}: {cell:?} is {field:?} in the CSV");
            *seen.entry(kind).or_default() += 1;
        }
        read += 1;
    }
    assert_eq!(read, csv.lines().count() - 1);
    assert_eq!(read, all.rows.len() + all.absent.len());
    assert_eq!(
        seen.keys().copied().collect::<Vec<_>>(),
        ["count", "flag", "null", "number", "text"]
    );
    assert!(csv.contains("'=1+1") && format!("{rows:?}").contains("\"=1+1\""));
}

#[test]
fn types_of_parquet_are_the_same_whatever_the_cells_have() {
    let with_figures = types(&rich(&[]));
    for (name, of) in [
        ("cell", "STRING"),
        ("n", "INT64"),
        ("tokens_per_step", "INT64"),
        ("tokens_per_second_per_gpu", "DOUBLE"),
        ("speedup_significant", "BOOLEAN"),
    ] {
        let expected = (name.to_owned(), of.to_owned());
        assert!(with_figures.contains(&expected), "{with_figures:?}");
    }
    let mut nothing = rich(&[]);
    nothing.rows.clear();
    let without = types(&nothing);
    assert!(without.len() > 50, "{without:?}");
    for column in &without {
        assert!(
            column.0.starts_with("axis_") || with_figures.contains(column),
            "{column:?}"
        );
    }
}

#[test]
fn no_secret_reaches_parquet() {
    fn masked(text: &str) -> Cow<'_, str> {
        text.replace("mega", "***").into()
    }
    let rows = read(&rich(&[]), masked);
    let text = format!("{rows:?}");
    assert!(
        text.contains("nvd/***/llama") && !text.contains("mega"),
        "{text}"
    );
}
