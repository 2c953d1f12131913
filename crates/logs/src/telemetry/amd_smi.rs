//! amd-smi: `monitor` tables, `metric` as text, JSON (an array, or below `gpu_data`), Python's form
//! of it, and CSV. What it calls MB is MiB.

use serde_json::{Map, Value};

use super::{
    document::Documents,
    reading::{Csv, Reading, names},
};
use crate::{
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{after, count},
    pattern::Pattern,
};

static KEYS: Pattern =
    Pattern::new(r#"["'](?:gpu_data|gfx_activity|socket_power|used_vram)["']:|^\s*SOCKET_POWER: "#);

/// Objects within a device's that have readings.
const GROUPS: [&str; 6] = [
    "usage",
    "power",
    "clock",
    "temperature",
    "mem_usage",
    "energy",
];

/// Weak at most: the scripts of many trainers show such a table before they begin.
pub fn evidence(line: &str) -> Evidence {
    let is_heading = monitor_heading(line).is_some() || csv_heading(line).is_some();
    Evidence::Weak.only_if(is_heading || KEYS.is_match(line))
}

#[derive(Default)]
pub struct AmdSmi {
    monitor: Vec<String>,
    csv: Option<Csv>,
    documents: Documents,
    /// `metric` as text: the device's reading, and the heading that a `CLK` line stands below.
    metric: Option<Reading>,
    below: String,
    /// The device that a debugger's expression named, for a document that names none.
    named: Option<String>,
}

impl Reader for AmdSmi {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = line.text.trim();
        if self.documents.inside() || text.starts_with(['{', '[']) {
            let found = self.documents.line(text, out);
            self.document(found, out);
        } else if let Some(heading) = monitor_heading(text) {
            (self.monitor, self.csv) = (heading, None);
        } else if let Some(heading) = csv_heading(text) {
            (self.csv, self.monitor) = (Some(heading), Vec::new());
        } else if let Some(device) = text
            .strip_prefix("GPU: ")
            .filter(|d| d.parse::<u32>().is_ok())
        {
            self.give_metric(out);
            self.metric = Some(Reading::of_device(device));
        } else if self.metric.is_some() && text.contains(':') {
            self.metric_line(text);
        } else if let Some(csv) = self.csv.as_ref().filter(|_| text.contains(',')) {
            if let Some(reading) = csv.row(text, names("amd_metric"), out) {
                reading.give(None, out);
            }
        } else if text.starts_with("GPU ") || text.ends_with(':') {
            // Another table: of processes.
            self.monitor.clear();
        } else if !self.monitor.is_empty() {
            self.monitor_row(text, out);
        } else if let Some((device, _)) = after(text, "gpu_data'][").and_then(count) {
            self.named = Some(device.to_string());
        }
    }

    fn end(&mut self, out: &mut Builder) {
        let found = self.documents.end(out);
        self.document(found, out);
        self.give_metric(out);
    }
}

impl AmdSmi {
    fn give_metric(&mut self, out: &mut Builder) {
        if let Some(reading) = self.metric.take() {
            reading.give(None, out);
        }
    }

    fn metric_line(&mut self, text: &str) {
        let (Some((key, value)), Some(reading)) = (text.split_once(':'), &mut self.metric) else {
            return;
        };
        let key = key.trim().to_ascii_lowercase();
        if value.trim().is_empty() {
            self.below = key;
        } else if key == "clk" {
            let key = format!("{}_clk", self.below);
            reading.take(names("amd_metric"), &key, value, "");
        } else {
            reading.take(names("amd_metric"), &key, value, "");
        }
    }

    fn monitor_row(&self, text: &str, out: &mut Builder) {
        // `0.3/ 191.7 GB` is one value.
        let text = text.replace("/ ", "/");
        let mut words = text.split_whitespace().peekable();
        let mut reading = Reading::default();
        for column in &self.monitor {
            let Some(word) = words.next() else { break };
            let is_unit =
                |w: &&str| !w.starts_with(|c: char| c.is_ascii_digit() || c == '-') && *w != "N/A";
            let unit = words.next_if(is_unit).unwrap_or_default();
            match column.as_str() {
                // Not a row of this table.
                "GPU" if word.parse::<u32>().is_err() => return,
                "GPU" => drop(reading.put("device", word, "")),
                // A partition of the device; the first one stands for all that is not partitioned.
                "XCP" if word != "0" && word != "N/A" => {
                    let device = format!("{}.{}", reading.device(), cut(word, 8));
                    reading.put("device", &device, "");
                }
                "VRAM_USAGE" => {
                    if let Some((used, total)) = word.split_once('/') {
                        reading.put("memory_used_bytes", used, unit);
                        reading.put("memory_total_bytes", total, unit);
                    }
                }
                name => reading.take(names("amd_monitor"), name, word, unit),
            }
        }
        reading.give(None, out);
    }

    fn document(&self, found: Option<Value>, out: &mut Builder) {
        let devices = match found {
            Some(Value::Array(devices)) => devices,
            Some(Value::Object(mut object)) => match object.remove("gpu_data") {
                Some(Value::Array(devices)) => devices,
                _ => vec![Value::Object(object)],
            },
            _ => return,
        };
        for device in devices {
            let Value::Object(device) = device else {
                continue;
            };
            let mut reading = Reading::of_device(self.named.as_deref().unwrap_or_default());
            let groups = GROUPS
                .iter()
                .filter_map(|group| device.get(*group)?.as_object());
            for group in std::iter::once(&device).chain(groups) {
                fields(&mut reading, group);
            }
            reading.give(None, out);
        }
    }
}

fn fields(reading: &mut Reading, group: &Map<String, Value>) {
    for (key, value) in group {
        // A clock is an object of several values.
        let (key, value) = match value.get("clk") {
            Some(clock) => (&format!("{key}_clk"), clock),
            None => (key, value),
        };
        // `{"value": 5, "unit": "%"}`, `5` or `"5 %"`; `"N/A"` may stand in place of any of them.
        let unit = value.get("unit").and_then(Value::as_str);
        let text = match value.get("value").unwrap_or(value) {
            Value::String(text) => text,
            Value::Number(number) => &number.to_string(),
            _ => continue,
        };
        reading.take(names("amd_metric"), key, text, unit.unwrap_or_default());
    }
}

/// `GPU  POWER  GPU_TEMP  …` of `monitor`.
fn monitor_heading(line: &str) -> Option<Vec<String>> {
    let line = line.trim();
    if !(line.starts_with("GPU ") || line.starts_with("TIMESTAMP ")) {
        return None;
    }
    let columns: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    let is_reading = |name: &String| name != "TIMESTAMP" && names("amd_monitor").contains_key(name);
    let is_heading = columns.iter().any(|name| name == "GPU")
        && columns
            .iter()
            .any(|name| is_reading(name) || name == "VRAM_USAGE");
    is_heading.then_some(columns)
}

/// `timestamp,gpu,gfx_activity,…`
fn csv_heading(line: &str) -> Option<Csv> {
    if !line.contains("gpu,") {
        return None;
    }
    let unit = |name: &str| if name.contains("vram") { "MB" } else { "" };
    let heading = Csv::heading(line.trim(), |name| (name.to_owned(), unit(name).to_owned()));
    let is_heading = heading.columns.iter().any(|(name, _)| name == "gpu");
    (is_heading && heading.has(names("amd_metric"))).then_some(heading)
}
