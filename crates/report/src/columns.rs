//! The table of a comparison that CSV is written from: what its columns are called, and its rows.

use std::collections::HashMap;

#[derive(Debug)]
pub(super) enum Cell {
    Text(String),
    Number(f64),
    Count(u64),
    Flag(bool),
}

/// Columns in the order of their first use. What is not known is absent: never an empty text, and
/// never 0.
#[derive(Default)]
pub(super) struct Columns {
    columns: Vec<String>,
    places: HashMap<String, usize>,
    /// The cells of each row, by column. A row may be shorter than there are columns.
    rows: Vec<Vec<Option<Cell>>>,
}

impl Columns {
    pub fn start_row(&mut self) {
        self.rows.push(Vec::new());
    }
    pub fn text(&mut self, name: &str, value: &str) {
        let value = Some(value).filter(|text| !text.is_empty());
        self.put(name, value.map(|text| Cell::Text(text.to_owned())));
    }
    pub fn number(&mut self, name: &str, value: Option<f64>) {
        let value = value.filter(|v| v.is_finite());
        self.put(name, value.map(Cell::Number));
    }
    pub fn count(&mut self, name: &str, value: Option<u64>) {
        self.put(name, value.map(Cell::Count));
    }
    pub fn flag(&mut self, name: &str, value: Option<bool>) {
        self.put(name, value.map(Cell::Flag));
    }
    /// Where the column is, which is the next one if none has this name yet.
    pub fn place(&mut self, name: &str) -> usize {
        self.places.get(name).copied().unwrap_or_else(|| {
            self.columns.push(name.to_owned());
            self.places.insert(name.to_owned(), self.columns.len() - 1);
            self.columns.len() - 1
        })
    }
    fn put(&mut self, name: &str, value: Option<Cell>) {
        let at = self.place(name);
        if let Some(row) = self.rows.last_mut() {
            if row.len() <= at {
                row.resize_with(at + 1, || None);
            }
            row[at] = value;
        }
    }
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(String::as_str)
    }
    /// The cells of each row, as many as there are columns.
    pub fn rows(&self) -> impl Iterator<Item = impl Iterator<Item = Option<&Cell>>> {
        let width = self.columns.len();
        self.rows
            .iter()
            .map(move |row| (0..width).map(move |at| row.get(at).and_then(Option::as_ref)))
    }
}
