//! rocm-smi: its concise table, `--json`, `--csv` and `GPU[0] : key: value` lines. Keys' names vary
//! between versions.

use std::collections::{BTreeMap, BTreeSet};
use tprimat_words::part;

use serde_json::Value;

use super::{
    document::{Documents, Found},
    quantity::{Field, says_something, set},
};
use crate::{
    TelemetrySample,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
};

/// Devices, and keys of one, that are followed.
const MAX_KEPT: usize = 256;

pub fn evidence(line: &str) -> Evidence {
    // Weak: trainers' scripts like to show it before they begin.
    let has = |word: &str| memchr::memmem::find(line.as_bytes(), word.as_bytes()).is_some();
    let own = [
        "ROCm System Management Interface",
        "Graphics Package Power (W)",
        "VRAM Total Memory (B)",
        "GPU use (%)",
    ];
    if own.iter().any(|word| has(word)) || has("Temperature (Sensor ") {
        Evidence::Weak
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct RocmSmi {
    /// Columns of the concise table behind its partitions, from the left.
    columns: Vec<String>,
    csv: Vec<String>,
    documents: Documents,
    /// The sample of each device that is being collected from lines `GPU[0] : key: value`, and the
    /// keys that it has so far. The tool goes through all devices for one key after another.
    keyed: BTreeMap<String, (TelemetrySample, BTreeSet<String>)>,
}

impl Reader for RocmSmi {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = line.text.trim();
        if self.documents.inside() || text.starts_with('{') {
            let found = self.documents.line(text);
            document(found, out);
        } else if let Some((device, key, value)) = keyed(text) {
            self.keyed(device, key, value, out);
        } else if text.starts_with("device,") {
            self.csv = text.split(',').map(|cell| cell.trim().to_owned()).collect();
        } else if !self.csv.is_empty() && text.starts_with("card") {
            self.csv_row(text, out);
        } else if let Some(columns) = heading(text) {
            self.columns = columns;
        } else if !self.columns.is_empty() {
            self.row(text, out);
        }
    }

    fn end(&mut self, out: &mut Builder) {
        let found = self.documents.end();
        if !matches!(found, Found::Nothing) {
            out.notes
                .add("truncated", || "the document is not closed".to_owned());
        }
        document(found, out);
        for (sample, _) in std::mem::take(&mut self.keyed).into_values() {
            if says_something(&sample) {
                out.sample(sample);
            }
        }
    }
}

impl RocmSmi {
    fn row(&mut self, text: &str, out: &mut Builder) {
        let cells: Vec<&str> = text.split_whitespace().collect();
        let Some(device) = cells.first().filter(|d| d.parse::<u32>().is_ok()) else {
            return;
        };
        if cells.len() <= self.columns.len() {
            return;
        }
        let (left, right) = cells.split_at(cells.len() - self.columns.len());
        let mut sample = TelemetrySample {
            device: (*device).to_owned(),
            ..TelemetrySample::default()
        };
        // The left part has columns of several words: what it says is known by its unit.
        let with_unit = |unit: &[char]| {
            left[1..]
                .iter()
                .find(|cell| cell.ends_with(unit) && cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        if let Some(cell) = with_unit(&['C', 'c']) {
            set(&mut sample, Field::Temperature, cell, "");
        }
        if let Some(cell) = with_unit(&['W', 'w']) {
            set(&mut sample, Field::Power, cell, "");
        }
        for (column, cell) in self.columns.iter().zip(right) {
            let field = match column.as_str() {
                "SCLK" => Field::Clock,
                "MCLK" => Field::MemoryClock,
                "PwrCap" => Field::PowerLimit,
                "GPU%" => Field::Utilization,
                // A part of an amount that the table does not state.
                _ => continue,
            };
            set(&mut sample, field, cell, "");
        }
        if says_something(&sample) {
            out.sample(sample);
        }
    }

    fn csv_row(&mut self, text: &str, out: &mut Builder) {
        let cells: Vec<&str> = text.split(',').collect();
        if cells.len() != self.csv.len() {
            out.notes.add("unreadable_line", || cut(text, 120));
            return;
        }
        let mut sample = TelemetrySample {
            device: device(cells[0]),
            ..TelemetrySample::default()
        };
        for (key, value) in self.csv.iter().zip(&cells).skip(1) {
            entry(&mut sample, key, value);
        }
        if says_something(&sample) {
            out.sample(sample);
        }
    }

    fn keyed(&mut self, device: &str, key: &str, value: &str, out: &mut Builder) {
        if self.keyed.len() >= MAX_KEPT && !self.keyed.contains_key(device) {
            return;
        }
        let fresh = || {
            (
                TelemetrySample {
                    device: device.to_owned(),
                    ..TelemetrySample::default()
                },
                BTreeSet::new(),
            )
        };
        let (sample, keys) = self.keyed.entry(device.to_owned()).or_insert_with(fresh);
        if keys.contains(key) {
            // The tool was run again.
            let (done, _) =
                std::mem::replace(self.keyed.entry(device.to_owned()).or_default(), fresh());
            if says_something(&done) {
                out.sample(done);
            }
            return self.keyed(device, key, value, out);
        }
        if keys.len() < MAX_KEPT {
            keys.insert(key.to_owned());
        }
        entry(sample, key, value);
    }
}

/// Names of the columns from SCLK on, each of which is one word in every row.
fn heading(text: &str) -> Option<Vec<String>> {
    let at = text
        .find("SCLK")
        .filter(|_| text.starts_with("GPU ") || text.starts_with("Device "))?;
    Some(
        part(text, at..)
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    )
}

/// `GPU[0]  : key: value`.
fn keyed(text: &str) -> Option<(&str, &str, &str)> {
    let (device, rest) = text.strip_prefix("GPU[")?.split_once(']')?;
    let (key, value) = rest.trim_start().strip_prefix(':')?.rsplit_once(": ")?;
    Some((device, key.trim(), value.trim()))
        .filter(|(device, key, _)| !device.is_empty() && device.len() < 8 && key.len() < 128)
}

/// `card3` → `3`, as the other forms write it.
fn device(name: &str) -> String {
    cut(name.trim().strip_prefix("card").unwrap_or(name.trim()), 40)
}

fn document(found: Found, out: &mut Builder) {
    let value = match found {
        Found::Document(value) => value,
        Found::Unreadable(why) => return out.notes.add("unreadable_document", || why.to_owned()),
        Found::Nothing => return,
    };
    let Value::Object(devices) = value else {
        return;
    };
    for (name, entries) in &devices {
        let (true, Value::Object(entries)) = (name.starts_with("card"), entries) else {
            continue;
        };
        let mut sample = TelemetrySample {
            device: device(name),
            ..TelemetrySample::default()
        };
        for (key, value) in entries {
            match value {
                Value::String(text) => entry(&mut sample, key, text),
                Value::Number(number) => entry(&mut sample, key, &number.to_string()),
                _ => {}
            }
        }
        if says_something(&sample) {
            out.sample(sample);
        }
    }
}

/// One `key (unit)` and its value, which has no unit of its own or the key's.
fn entry(sample: &mut TelemetrySample, key: &str, value: &str) {
    let name = key.to_ascii_lowercase();
    let unit = name
        .rsplit_once('(')
        .and_then(|(_, unit)| unit.split(')').next())
        .unwrap_or_default();
    let field = match name.as_str() {
        "vram total used memory (b)" => Field::MemoryUsed,
        "vram total memory (b)" => Field::MemoryTotal,
        "gpu use (%)" => Field::Utilization,
        "card series" | "card model" | "device name" => {
            if sample.name.is_none() && !value.starts_with("0x") && !value.starts_with("N/A") {
                sample.name = Some(cut(value, 80));
            }
            return;
        }
        _ if name.starts_with("accumulated energy (") => Field::Energy,
        _ if name.starts_with("max graphics package power") => Field::PowerLimit,
        _ if name.contains("graphics package power") => Field::Power,
        _ if name.starts_with("temperature (sensor junction)") => Field::Temperature,
        // What is hottest counts where the tool knows it.
        _ if name.starts_with("temperature (sensor edge)")
            && sample.temperature_celsius.is_none() =>
        {
            Field::Temperature
        }
        _ if name.starts_with("sclk clock speed") => Field::Clock,
        _ if name.starts_with("mclk clock speed") => Field::MemoryClock,
        _ => return,
    };
    let unit = if matches!(field, Field::Clock | Field::MemoryClock) {
        "mhz"
    } else {
        unit
    };
    set(sample, field, value, unit);
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, Trace, parse_any, testing};

    const CONCISE: &str = "\
================ ROCm System Management Interface ================
========================== Concise Info ==========================
Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
\x1b[3m              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)                                     \x1b[0m
==================================================================
0       2     0x1234,   1111   61.0°C      450.5W    NPS1, SPX, 0        1320Mhz 900Mhz  0%   auto  750.0W  40%    99%
1       3     0x1234,   2222   N/A         N/A       NPS1, SPX, 0        140Mhz  900Mhz  0%   auto  N/A     0%     N/A
===================== End of ROCm SMI Log ========================
GPU  Temp   AvgPwr  SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
0    35.0c  38.5W   800Mhz  1600Mhz 0%   auto  300.0W    0%   0%
";
    const JSON: &str = "{\"card0\": {\"Temperature (Sensor edge) (C)\": \"45.0\", \"Temperature (Sensor junction) (C)\": \"52.0\",\n\
        \"Current Socket Graphics Package Power (W)\": \"152.0\", \"GPU use (%)\": \"0\", \"VRAM Total Memory (B)\": \"206141652992\",\n\
        \"VRAM Total Used Memory (B)\": \"297746432\", \"sclk clock speed:\": \"(132Mhz)\", \"Accumulated Energy (uJ)\": \"5001500.5\", \"Card Series\": \"Example GPU\"},\n\
        \"card1\": {\"Temperature (Sensor edge) (C)\": \"N/A\", \"Average Graphics Package Power (W)\": \"38.0\", \"GPU use (%)\": \"N/A\"},\n\
        \"system\": {\"Driver version\": \"6.7.0\"}}\n";
    const CSV: &str = "device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)\r\ncard0,7,1000,100\r\ncard1,N/A,1000,0\r\n";
    const KEYED: &str = "GPU[0]\t\t: VRAM Total Memory (B): 1000\nGPU[1]\t\t: VRAM Total Memory (B): 1000\n\
        GPU[0]\t\t: VRAM Total Used Memory (B): 250\n";

    fn first(log: &str) -> Trace {
        let trace = parse_any(log.as_bytes());
        assert_eq!((trace.format.as_str(), trace.steps.len()), ("rocm-smi", 0));
        trace
    }

    #[test]
    fn the_concise_table_of_two_versions() {
        let trace = first(CONCISE);
        let samples = &trace.telemetry;
        assert_eq!(samples.len(), 3);
        assert_eq!(
            (samples[0].power_watts, samples[0].power_limit_watts),
            (Some(450.5), Some(750.0))
        );
        assert_eq!(
            (samples[0].temperature_celsius, samples[0].clock_mhz),
            (Some(61.0), Some(1320.0))
        );
        assert_eq!(
            (samples[0].utilization_percent, samples[0].memory_used_bytes),
            (Some(99.0), None)
        );
        assert_eq!(
            (
                samples[1].power_watts,
                samples[1].temperature_celsius,
                samples[1].utilization_percent
            ),
            (None, None, None)
        );
        assert_eq!(
            (samples[1].clock_mhz, samples[1].memory_clock_mhz),
            (Some(140.0), Some(900.0))
        );
        assert_eq!(
            (samples[2].power_watts, samples[2].temperature_celsius),
            (Some(38.5), Some(35.0))
        );
    }

    #[test]
    fn json_has_strings_and_bytes() {
        let samples = first(JSON).telemetry;
        let shown: Vec<_> = samples
            .iter()
            .map(|s| {
                (
                    s.device.as_str(),
                    s.power_watts,
                    s.utilization_percent,
                    s.temperature_celsius,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("0", Some(152.0), Some(0.0), Some(52.0)),
                ("1", Some(38.0), None, None)
            ]
        );
        assert_eq!(
            (samples[0].memory_used_bytes, samples[0].memory_total_bytes),
            (Some(297_746_432), Some(206_141_652_992))
        );
        assert_eq!(
            (samples[0].name.as_deref(), samples[0].clock_mhz),
            (Some("Example GPU"), Some(132.0))
        );
        assert_eq!(samples[1].memory_used_bytes, None);
        assert_eq!(
            (samples[0].energy_joules, samples[1].energy_joules),
            (Some(5.001_500_5), None)
        );
    }

    #[test]
    fn csv_and_keyed_lines() {
        let samples = first(CSV).telemetry;
        assert_eq!(
            (samples[0].utilization_percent, samples[0].memory_used_bytes),
            (Some(7.0), Some(100))
        );
        assert_eq!(
            (samples[1].utilization_percent, samples[1].memory_used_bytes),
            (None, Some(0))
        );
        let keyed = first(&KEYED.repeat(2)).telemetry;
        assert_eq!(
            keyed.iter().map(|s| s.device.as_str()).collect::<Vec<_>>(),
            ["0", "1", "0", "1"]
        );
        assert_eq!(
            (keyed[0].memory_used_bytes, keyed[0].memory_total_bytes),
            (Some(250), Some(1000))
        );
        assert_eq!(
            (keyed[3].memory_used_bytes, keyed[3].memory_total_bytes),
            (None, Some(1000))
        );
    }

    testing::damaged!("rocm-smi", format!("{CONCISE}{JSON}{CSV}{KEYED}"));
}
