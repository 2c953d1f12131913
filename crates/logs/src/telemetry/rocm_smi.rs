//! rocm-smi: its concise table, `--json`, `--csv` and `GPU[0] : key: value` lines.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tprimat_base::words::part;

use super::{
    document::Documents,
    reading::{Csv, Reading, names},
};
use crate::{
    builder::Builder,
    format::{Evidence, Reader},
    lines::Line,
    pattern::Pattern,
};

/// Devices, and keys of one, that are followed.
const MAX_KEPT: usize = 256;

static OWN: Pattern = Pattern::new(
    r"ROCm System Management Interface|Graphics Package Power \(W\)|VRAM Total Memory \(B\)|GPU use \(%\)|Temperature \(Sensor ",
);

/// `GPU[0]  : key: value`.
static KEYED: Pattern = Pattern::new(r"^GPU\[([^\]]{1,7})\]\s*:(.{0,120}): (.*)$");

/// Weak at most: the scripts of many trainers show such a table before they begin.
pub fn evidence(line: &str) -> Evidence {
    Evidence::Weak.only_if(OWN.is_match(line))
}

#[derive(Default)]
pub struct RocmSmi {
    /// Columns of the concise table from SCLK on, each of which is one word in every row.
    columns: Vec<String>,
    csv: Option<Csv>,
    documents: Documents,
    /// The reading of each device that is being collected from lines `GPU[0] : key: value`, and the
    /// keys that it has so far. The tool goes through all devices for one key after another.
    keyed: BTreeMap<String, (Reading, BTreeSet<String>)>,
}

impl Reader for RocmSmi {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = line.text.trim();
        if self.documents.inside() || text.starts_with('{') {
            let found = self.documents.line(text, out);
            document(found, out);
        } else if let Some([device, name, value]) = KEYED.groups(text) {
            self.keyed(device, name.trim(), value, out);
        } else if text.starts_with("device,") {
            self.csv = Some(Csv::heading(text, key));
        } else if let Some(csv) = self.csv.as_ref().filter(|_| text.starts_with("card")) {
            if let Some(mut reading) = csv.row(text, names("rocm_keys"), out) {
                reading.put(
                    "device",
                    number_of(text.split(',').next().unwrap_or("")),
                    "",
                );
                reading.give(None, out);
            }
        } else if let Some(at) = text
            .find("SCLK")
            .filter(|_| text.starts_with("GPU ") || text.starts_with("Device "))
        {
            // Columns of older versions have two words.
            let two = [
                ("SCLK OD", "SCLK-OD"),
                ("MCLK OD", "MCLK-OD"),
                ("GPU use", "GPU%"),
            ];
            let columns = two
                .iter()
                .fold(part(text, at..).to_owned(), |all, (two, one)| {
                    all.replace(two, one)
                });
            self.columns = columns.split_whitespace().map(str::to_owned).collect();
        } else if !self.columns.is_empty() {
            self.row(text, out);
        }
    }

    fn end(&mut self, out: &mut Builder) {
        let found = self.documents.end(out);
        document(found, out);
        for (reading, _) in std::mem::take(&mut self.keyed).into_values() {
            reading.give(None, out);
        }
    }
}

impl RocmSmi {
    fn row(&self, text: &str, out: &mut Builder) {
        let cells: Vec<&str> = text.split_whitespace().collect();
        let device = cells.first().filter(|d| d.parse::<u32>().is_ok());
        let (Some(device), true) = (device, cells.len() > self.columns.len()) else {
            return;
        };
        let (left, right) = cells.split_at(cells.len() - self.columns.len());
        let mut reading = Reading::of_device(device);
        // The left part has columns of several words: what it says is known by its unit.
        for (unit, quantity) in [
            (['C', 'c'], "temperature_celsius"),
            (['W', 'w'], "power_watts"),
        ] {
            let mut cells = left.iter().skip(1);
            let is_one = |cell: &&&str| {
                cell.ends_with(unit) && cell.starts_with(|c: char| c.is_ascii_digit())
            };
            if let Some(cell) = cells.find(is_one) {
                reading.put(quantity, cell, "");
            }
        }
        for (column, cell) in self.columns.iter().zip(right) {
            reading.take(names("rocm_table"), column, cell, "");
        }
        reading.give(None, out);
    }

    fn keyed(&mut self, device: &str, name: &str, value: &str, out: &mut Builder) {
        if self.keyed.len() >= MAX_KEPT && !self.keyed.contains_key(device) {
            return;
        }
        let fresh = || (Reading::of_device(device), BTreeSet::new());
        let kept = self.keyed.entry(device.to_owned()).or_insert_with(fresh);
        if kept.1.contains(name) {
            // The tool was run again.
            let (done, _) = std::mem::replace(kept, fresh());
            done.give(None, out);
        }
        let (reading, names_so_far) = kept;
        if names_so_far.len() < MAX_KEPT {
            names_so_far.insert(name.to_owned());
        }
        entry(reading, name, value);
    }
}

/// `card3` → `3`, as the other forms write it.
fn number_of(card: &str) -> &str {
    let card = card.trim();
    card.strip_prefix("card").unwrap_or(card)
}

fn document(found: Option<Value>, out: &mut Builder) {
    let Some(Value::Object(devices)) = found else {
        return;
    };
    for (name, entries) in &devices {
        let (true, Value::Object(entries)) = (name.starts_with("card"), entries) else {
            continue;
        };
        let mut reading = Reading::of_device(number_of(name));
        for (name, value) in entries {
            match value {
                Value::String(text) => entry(&mut reading, name, text),
                Value::Number(number) => entry(&mut reading, name, &number.to_string()),
                _ => {}
            }
        }
        reading.give(None, out);
    }
}

fn entry(reading: &mut Reading, name: &str, value: &str) {
    let (name, unit) = key(name);
    // A card's model may be its number alone.
    let is_of_model = name.contains("card ") || name == "device name";
    let is_number = is_of_model && value.starts_with("0x");
    if !is_number && !value.starts_with("N/A") {
        reading.take(names("rocm_keys"), &name, value, &unit);
    }
}

/// `VRAM Total Memory (B)` → `vram total memory` and `b`. What is measured by a sensor has the
/// sensor in the same brackets.
fn key(text: &str) -> (String, String) {
    let text = text.trim_end_matches(':').to_ascii_lowercase();
    match text.strip_suffix(')').and_then(|t| t.rsplit_once(" (")) {
        Some((name, unit)) => (name.to_owned(), unit.to_owned()),
        None => (text, String::new()),
    }
}
