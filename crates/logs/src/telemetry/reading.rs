//! What a tool says of one device at one time.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Map, Value};

use crate::{
    builder::Builder,
    lines::cut,
    numbers::{self, GIB, MIB, number},
};

/// The names of one form of output: which quantity each one is, and how many better names of that
/// quantity there are.
pub type Names = HashMap<String, (String, usize)>;

static FORMS: LazyLock<HashMap<String, Names>> = LazyLock::new(|| {
    let forms: HashMap<String, HashMap<String, Vec<String>>> =
        toml::from_str(include_str!("names.toml")).expect("a table of our own");
    let names = |quantities: HashMap<String, Vec<String>>| {
        let all = quantities.into_iter().flat_map(|(quantity, names)| {
            let ranked = names.into_iter().enumerate();
            ranked.map(move |(rank, name)| (name, (quantity.clone(), rank)))
        });
        all.collect()
    };
    let forms = forms.into_iter();
    forms.map(|(form, q)| (form, names(q))).collect()
});

/// The names of a form that `names.toml` has.
pub fn names(form: &str) -> &'static Names {
    &FORMS[form]
}

/// Characters that are kept of a device's name and the like.
const WORDS: usize = 80;

#[derive(Default)]
pub struct Reading {
    /// By the names of a `TelemetrySample`'s fields.
    values: Map<String, Value>,
    ranks: HashMap<&'static str, usize>,
}

impl Reading {
    pub fn of_device(device: &str) -> Self {
        let mut reading = Self::default();
        reading.put("device", device, "");
        reading
    }

    /// Takes what stands under `name`, if it is the name of a quantity and no better one has said
    /// it. `unit` is that of the heading, which counts where the value has none.
    pub fn take(&mut self, names: &'static Names, name: &str, text: &str, unit: &str) {
        let Some((quantity, rank)) = names.get(name) else {
            return;
        };
        let known = self.ranks.get(quantity.as_str());
        if known.is_none_or(|known| known >= rank) && self.put(quantity, text, unit) {
            self.ranks.insert(quantity, *rank);
        }
    }

    /// Takes a value of a quantity; false if the text states none.
    pub fn put(&mut self, quantity: &str, text: &str, unit: &str) -> bool {
        let value = value(quantity, text.trim(), unit);
        value
            .map(|value| self.values.insert(quantity.to_owned(), value))
            .is_some()
    }

    pub fn device(&self) -> &str {
        let device = self.values.get("device").and_then(Value::as_str);
        device.unwrap_or("unknown")
    }

    /// Hands the reading on, unless it has nothing but names.
    pub fn give(mut self, host: Option<&str>, out: &mut Builder) {
        if self.values.keys().all(|quantity| is_words(quantity)) {
            return;
        }
        let mut device = self.device().to_owned();
        if let Some(host) = host.filter(|host| !host.is_empty()) {
            device = format!("{}/{device}", cut(host, 120));
        }
        self.values.insert("device".to_owned(), device.into());
        if let Ok(sample) = serde_json::from_value(Value::Object(self.values)) {
            out.sample(sample);
        }
    }
}

fn is_words(quantity: &str) -> bool {
    ["device", "timestamp", "name"].contains(&quantity)
}

/// A text in the unit of its quantity, which is the last word of the quantity's name. `[N/A]`, `-`,
/// `ERR!` and the like are none, and a value in another unit is none.
fn value(quantity: &str, text: &str, unit: &str) -> Option<Value> {
    if is_words(quantity) {
        let is_absent = text.is_empty() || text.starts_with('[');
        return (!is_absent).then(|| cut(text, WORDS).into());
    }
    let text = text.trim_start_matches('(').trim_end_matches(')');
    let (value, own) = number(text).filter(|(value, _)| value.is_finite())?;
    let unit = [own.trim(), unit][usize::from(own.trim().is_empty())];
    let unit = unit.trim_start_matches('°').to_ascii_lowercase();
    let kind = quantity.rsplit('_').next()?;
    let value = match (kind, unit.as_str()) {
        ("watts", "" | "w") | ("mhz", "" | "mhz") | ("joules", "j") => value,
        ("joules", "uj") => value / 1e6,
        ("percent", "" | "%") if value <= 100.0 => value,
        ("celsius", "" | "c") => return Some(value.into()),
        ("bytes", unit) => {
            let bytes = numbers::bytes(value, scale(unit)?)?;
            let is_one = bytes > 0 || quantity != "memory_total_bytes";
            return is_one.then(|| bytes.into());
        }
        _ => return None,
    };
    (value >= 0.0).then(|| value.into())
}

/// All of these tools divide by powers of 1024, and some write MB and GB.
fn scale(unit: &str) -> Option<f64> {
    match unit {
        "b" | "bytes" => Some(1.0),
        "kib" | "kb" => Some(1024.0),
        "mib" | "mb" => Some(MIB),
        "gib" | "gb" => Some(GIB),
        _ => None,
    }
}

/// The heading of comma-separated output: name and unit of each column.
#[derive(Default)]
pub struct Csv {
    pub columns: Vec<(String, String)>,
}

impl Csv {
    /// A heading whose columns `column` tells apart into name and unit.
    pub fn heading(line: &str, column: impl Fn(&str) -> (String, String)) -> Self {
        let columns = line.split(',').map(|cell| column(cell.trim())).collect();
        Self { columns }
    }

    pub fn has(&self, names: &Names) -> bool {
        self.columns.iter().any(|(name, _)| {
            let known = names.get(name);
            known.is_some_and(|(quantity, _)| !is_words(quantity))
        })
    }

    pub fn row(&self, text: &str, names: &'static Names, out: &mut Builder) -> Option<Reading> {
        let cells = cells(text);
        if cells.len() != self.columns.len() {
            let (has, wants) = (cells.len(), self.columns.len());
            out.notes.add("unreadable_line", || {
                format!("{has} cells below {wants} columns: {}", cut(text, 80))
            });
            return None;
        }
        let mut reading = Reading::default();
        for ((name, unit), cell) in self.columns.iter().zip(cells) {
            reading.take(names, name, cell, unit);
        }
        Some(reading)
    }
}

/// The cells of a row; one that stands in quotes may hold commas.
fn cells(row: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let is_end = |c: char| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    };
    row.split(is_end)
        .map(|cell| cell.trim().trim_matches('"'))
        .collect()
}
