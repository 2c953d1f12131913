//! amd-smi: `monitor` tables, `metric` as text, JSON (an array, or below `gpu_data`), Python's form
//! of it, and CSV.
//!
//! What it calls MB is MiB. Of several temperatures the hottest spot's counts, as it does in
//! `monitor`.

use serde_json::{Map, Value};

use super::{
    document::{Documents, Found},
    quantity::{Field, put, quantity, says_something, set},
};
use crate::{
    TelemetrySample,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{after, count},
};

pub fn evidence(line: &str) -> Evidence {
    // Weak: trainers' scripts like to show it before they begin.
    let has = |word: &str| memchr::memmem::find(line.as_bytes(), word.as_bytes()).is_some();
    let keys = [
        "\"gpu_data\":",
        "\"gfx_activity\":",
        "\"socket_power\":",
        "\"used_vram\":",
        "'gpu_data':",
        "'gfx_activity':",
        "'socket_power':",
        "'used_vram':",
    ];
    let key = keys.into_iter().any(has);
    let found = key
        || heading(line).is_some()
        || csv_heading(line).is_some()
        || line.trim_start().starts_with("SOCKET_POWER: ");
    if found {
        Evidence::Weak
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct AmdSmi {
    monitor: Vec<String>,
    csv: Vec<String>,
    documents: Documents,
    /// `metric` as text: the device's sample, and the heading that a `CLK` line stands below.
    metric: Option<TelemetrySample>,
    below: String,
    /// The device that a debugger's expression named, for a document that names none.
    named: Option<String>,
}

impl Reader for AmdSmi {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = line.text.trim();
        if self.documents.inside() || text.starts_with(['{', '[']) {
            let found = self.documents.line(text);
            self.document(found, out);
        } else if let Some(columns) = heading(text) {
            (self.monitor, self.csv) = (columns, Vec::new());
        } else if let Some(columns) = csv_heading(text) {
            (self.csv, self.monitor) = (columns, Vec::new());
        } else if let Some(device) = text
            .strip_prefix("GPU: ")
            .filter(|d| d.parse::<u32>().is_ok())
        {
            self.flush(out);
            self.metric = Some(TelemetrySample {
                device: device.to_owned(),
                ..TelemetrySample::default()
            });
        } else if self.metric.is_some() && text.contains(':') {
            self.metric_line(text);
        } else if !self.csv.is_empty() && text.contains(',') {
            self.csv_row(text, out);
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
        let found = self.documents.end();
        if !matches!(found, Found::Nothing) {
            out.notes
                .add("truncated", || "the document is not closed".to_owned());
        }
        self.document(found, out);
        self.flush(out);
    }
}

impl AmdSmi {
    fn flush(&mut self, out: &mut Builder) {
        self.metric
            .take()
            .filter(says_something)
            .into_iter()
            .for_each(|sample| out.sample(sample));
    }

    fn metric_line(&mut self, text: &str) {
        let (Some((key, value)), Some(sample)) = (text.split_once(':'), &mut self.metric) else {
            return;
        };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        if value.is_empty() {
            self.below = key;
        } else if key == "clk" {
            set_key(sample, &format!("{}_clk", self.below), value, "");
        } else {
            set_key(sample, &key, value, "");
        }
    }

    fn csv_row(&mut self, text: &str, out: &mut Builder) {
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        if cells.len() != self.csv.len() {
            out.notes.add("unreadable_line", || cut(text, 120));
            return;
        }
        let mut sample = TelemetrySample {
            device: "unknown".to_owned(),
            ..TelemetrySample::default()
        };
        for (key, cell) in self.csv.iter().zip(cells) {
            match key.as_str() {
                "gpu" => sample.device = cut(cell, 40),
                "timestamp" => sample.timestamp = Some(cut(cell, 40)).filter(|t| !t.is_empty()),
                _ => set_key(&mut sample, key, cell, "mb"),
            }
        }
        if says_something(&sample) {
            out.sample(sample);
        }
    }

    fn monitor_row(&mut self, text: &str, out: &mut Builder) {
        // `0.3/ 191.7 GB` is one value.
        let text = text.replace("/ ", "/");
        let mut words = text.split_whitespace().peekable();
        let mut sample = TelemetrySample {
            device: "unknown".to_owned(),
            ..TelemetrySample::default()
        };
        for column in &self.monitor {
            let Some(word) = words.next() else { break };
            let is_unit =
                |w: &&str| !w.starts_with(|c: char| c.is_ascii_digit() || c == '-') && *w != "N/A";
            let unit = words.next_if(|w| is_unit(w)).unwrap_or_default();
            match column.as_str() {
                "GPU" if word.parse::<u32>().is_ok() => sample.device = word.to_owned(),
                // Not a row of this table.
                "GPU" => return,
                // A partition of the device; the first one stands for all that is not partitioned.
                "XCP" if word != "0" && word != "N/A" => {
                    sample.device = format!("{}.{}", sample.device, cut(word, 8))
                }
                "TIMESTAMP" => sample.timestamp = Some(cut(word, 40)),
                "POWER" => set(&mut sample, Field::Power, word, unit),
                "PWR_CAP" => set(&mut sample, Field::PowerLimit, word, unit),
                "GPU_TEMP" | "GPU_T" => set(&mut sample, Field::Temperature, word, unit),
                "GFX_UTIL" | "GFX%" => set(&mut sample, Field::Utilization, word, unit),
                "GFX_CLOCK" | "GFX_CLK" => set(&mut sample, Field::Clock, word, unit),
                "MEM_CLOCK" => set(&mut sample, Field::MemoryClock, word, unit),
                "VRAM_USED" => set(&mut sample, Field::MemoryUsed, word, unit),
                "VRAM_TOTAL" => set(&mut sample, Field::MemoryTotal, word, unit),
                "VRAM_USAGE" => {
                    if let Some((used, total)) = word.split_once('/') {
                        set(&mut sample, Field::MemoryUsed, used, unit);
                        set(&mut sample, Field::MemoryTotal, total, unit);
                    }
                }
                _ => {}
            }
        }
        if says_something(&sample) {
            out.sample(sample);
        }
    }

    fn document(&mut self, found: Found, out: &mut Builder) {
        let value = match found {
            Found::Document(value) => value,
            Found::Unreadable(why) => {
                return out.notes.add("unreadable_document", || why.to_owned());
            }
            Found::Nothing => return,
        };
        let devices = match value {
            Value::Array(devices) => devices,
            Value::Object(mut object) => match object.remove("gpu_data") {
                Some(Value::Array(devices)) => devices,
                _ => vec![Value::Object(object)],
            },
            _ => return,
        };
        for device in devices {
            let Value::Object(device) = device else {
                continue;
            };
            let index = device.get("gpu").map(plain).or_else(|| self.named.clone());
            let mut sample = TelemetrySample {
                device: index.unwrap_or_else(|| "unknown".to_owned()),
                ..TelemetrySample::default()
            };
            sample.timestamp = device.get("timestamp").map(plain);
            fields(&mut sample, &device);
            for group in [
                "usage",
                "power",
                "clock",
                "temperature",
                "mem_usage",
                "energy",
            ] {
                if let Some(Value::Object(group)) = device.get(group) {
                    fields(&mut sample, group);
                }
            }
            if says_something(&sample) {
                out.sample(sample);
            }
        }
    }
}

/// A number or a text, as text.
fn plain(value: &Value) -> String {
    cut(
        &value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned),
        40,
    )
}

fn fields(sample: &mut TelemetrySample, group: &Map<String, Value>) {
    for (key, value) in group {
        match value {
            // A clock is an object of several values.
            Value::Object(object) if object.contains_key("clk") => {
                if let Some((text, unit)) = stated(&object["clk"]) {
                    set_key(sample, &format!("{key}_clk"), &text, &unit);
                }
            }
            value => {
                if let Some((text, unit)) = stated(value) {
                    set_key(sample, key, &text, &unit);
                }
            }
        }
    }
}

/// `{"value": 5, "unit": "%"}`, `5` or `"5 %"`; `"N/A"` may stand in place of any of them.
fn stated(value: &Value) -> Option<(String, String)> {
    match value {
        Value::Object(object) => {
            let unit = object
                .get("unit")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            stated(object.get("value")?)
                .map(|(text, own)| (text, if own.is_empty() { unit } else { own }))
        }
        Value::Number(number) => Some((number.to_string(), String::new())),
        Value::String(text) => {
            quantity(text).map(|(value, unit)| (value.to_string(), unit.to_owned()))
        }
        _ => None,
    }
}

/// One reading by the tool's name for it. `unit` is taken for memory whose value has none.
fn set_key(sample: &mut TelemetrySample, key: &str, text: &str, unit: &str) {
    let field = match key {
        "socket_power" | "current_socket_power" | "power_usage" => Field::Power,
        "average_socket_power" if sample.power_watts.is_none() => Field::Power,
        "power_cap" | "pwr_cap" => Field::PowerLimit,
        "total_energy_consumption" => Field::Energy,
        "gfx_activity" | "gfx_util" | "gfx" => Field::Utilization,
        "hotspot" | "hotspot_temperature" => Field::Temperature,
        "edge" if sample.temperature_celsius.is_none() => Field::Temperature,
        "gfx_0_clk" | "gfx_clk" | "gfx_clock" => Field::Clock,
        "mem_0_clk" | "mem_clock" => Field::MemoryClock,
        "used_vram" | "vram_used" => Field::MemoryUsed,
        "total_vram" | "vram_total" => Field::MemoryTotal,
        _ => return,
    };
    let Some((value, own)) = quantity(text) else {
        return;
    };
    let own = if own.is_empty() { unit } else { own };
    let is_memory = matches!(field, Field::MemoryUsed | Field::MemoryTotal);
    put(
        sample,
        field,
        value,
        if own == "mb" && !is_memory { "" } else { own },
    );
}

/// `GPU  POWER  GPU_TEMP  …` of `monitor`.
fn heading(line: &str) -> Option<Vec<String>> {
    let line = line.trim();
    if !(line.starts_with("GPU ") || line.starts_with("TIMESTAMP ")) {
        return None;
    }
    let columns: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    let known = [
        "POWER",
        "GPU_TEMP",
        "GPU_T",
        "GFX_UTIL",
        "GFX%",
        "GFX_CLK",
        "VRAM_USED",
        "VRAM_USAGE",
    ];
    (columns.iter().any(|c| c == "GPU") && columns.iter().any(|c| known.contains(&c.as_str())))
        .then_some(columns)
}

/// `timestamp,gpu,gfx_activity,…`
fn csv_heading(line: &str) -> Option<Vec<String>> {
    if !line.contains("gpu,") {
        return None;
    }
    let columns: Vec<_> = line
        .trim()
        .split(',')
        .map(|cell| cell.trim().to_owned())
        .collect();
    let known = [
        "gfx_activity",
        "socket_power",
        "used_vram",
        "vram_used",
        "power_usage",
        "hotspot",
    ];
    (columns.iter().any(|c| c == "gpu") && columns.iter().any(|c| known.contains(&c.as_str())))
        .then_some(columns)
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, Trace, parse_any, testing};

    const MONITOR: &str = "\
GPU  POWER  GPU_TEMP  MEM_TEMP  GFX_UTIL  GFX_CLOCK  VRAM_USED  VRAM_TOTAL   PCIE_BW
  0  248 W     55 °C     48 °C      99 %   1920 MHz    1235 MB   196300 MB  N/A Mb/s
  1    N/A       N/A     48 °C       N/A      0 MHz     283 MB   196300 MB  N/A Mb/s
PROCESS INFO:
GPU                  NAME      PID  GTT_MEM  CPU_MEM  VRAM_MEM  MEM_USAGE     GFX     ENC
  0                   rvs  1564865    0.0 B    0.0 B    1.1 GB      0.0 B    0 ns    0 ns
GPU  XCP  POWER   GPU_T   MEM_T   GFX_CLK   GFX%   MEM%   ENC%   DEC%      VRAM_USAGE
  0    0   12 W   40 °C   44 °C     9 MHz    8 %    1 %    N/A    0 %    0.5/ 24.0 GB
  0    1    N/A     N/A     N/A     9 MHz    3 %    N/A    N/A    N/A    0.5/ 24.0 GB
";
    const JSON: &str = r#"[
  { "gpu": 0,
    "usage": { "gfx_activity": {"value": 5, "unit": "%"}, "mm_activity": "N/A" },
    "power": { "socket_power": {"value": 22, "unit": "W"} },
    "clock": { "gfx_0": {"clk": {"value": 132, "unit": "MHz"}, "max_clk": {"value": 2100, "unit": "MHz"}}, "mem_0": "N/A" },
    "temperature": { "edge": {"value": 44, "unit": "C"}, "hotspot": "N/A" },
    "mem_usage": { "total_vram": {"value": 20464, "unit": "MB"}, "used_vram": {"value": 26, "unit": "MB"} },
    "energy": { "total_energy_consumption": {"value": 250906.154, "unit": "J"} } },
  { "gpu": 1, "usage": "N/A", "power": {"socket_power": "N/A"}, "temperature": {"edge": {"value": 40, "unit": "C"}, "hotspot": {"value": 60, "unit": "C"}} }
]
"#;
    const WRAPPED: &str = "{\"gpu_data\": [{\"gpu\": 3, \"power\": {\"socket_power\": {\"value\": 140, \"unit\": \"W\"}}}]}\n";
    const PYTHON: &str = "(Pdb) metrics['gpu_data'][2]['usage']\n\
        {'gfx_activity': {'value': 0, 'unit': '%'}, 'mm_activity': 'N/A', 'busy': {'xcp_0': [{'value': 0, 'unit': '%'}, 'N/A']}\n";
    const CSV: &str = "timestamp,gpu,gfx_activity,socket_power,gfx_0_clk,mem_0_clk,edge,hotspot,mem,used_vram\r\n\
        1700000000,0,0,288,2402,2000,N/A,44,24,283\r\n1700000001,0,95,N/A,2100,2000,55,78,60,N/A\r\n";
    const TEXT: &str = "GPU: 0\n    USAGE:\n        GFX_ACTIVITY: 7 %\n    POWER:\n        SOCKET_POWER: 140 W\n    CLOCK:\n        GFX_0:\n            CLK: 132 MHz\n            MIN_CLK: 500 MHz\n    TEMPERATURE:\n        EDGE: N/A\n        HOTSPOT: 37 °C\n    MEM_USAGE:\n        TOTAL_VRAM: 1024 MB\nGPU: 1\n    POWER:\n        SOCKET_POWER: N/A\n";

    fn read(log: &str) -> Trace {
        let trace = parse_any(log.as_bytes());
        assert_eq!(trace.format, "amd-smi");
        trace
    }

    #[test]
    fn monitor_of_two_versions_without_the_table_of_processes() {
        let samples = read(MONITOR).telemetry;
        let devices: Vec<_> = samples.iter().map(|s| s.device.as_str()).collect();
        assert_eq!(devices, ["0", "1", "0", "0.1"]);
        assert_eq!(
            (samples[0].power_watts, samples[0].temperature_celsius),
            (Some(248.0), Some(55.0))
        );
        assert_eq!(
            (samples[0].utilization_percent, samples[0].clock_mhz),
            (Some(99.0), Some(1920.0))
        );
        assert_eq!(
            (samples[0].memory_used_bytes, samples[0].memory_total_bytes),
            (Some(1235 << 20), Some(196_300 << 20))
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
            (samples[1].clock_mhz, samples[1].memory_used_bytes),
            (Some(0.0), Some(283 << 20))
        );
        assert_eq!(
            (samples[2].power_watts, samples[2].utilization_percent),
            (Some(12.0), Some(8.0))
        );
        assert_eq!(
            (samples[2].memory_used_bytes, samples[2].memory_total_bytes),
            (Some(512 << 20), Some(24 << 30))
        );
    }

    #[test]
    fn json_arrays_wrapped_or_not_and_pythons_form() {
        let samples = read(JSON).telemetry;
        assert_eq!(
            (samples[0].power_watts, samples[0].utilization_percent),
            (Some(22.0), Some(5.0))
        );
        assert_eq!(
            (
                samples[0].temperature_celsius,
                samples[0].clock_mhz,
                samples[0].memory_clock_mhz
            ),
            (Some(44.0), Some(132.0), None)
        );
        assert_eq!(
            (samples[0].memory_used_bytes, samples[0].memory_total_bytes),
            (Some(26 << 20), Some(20464 << 20))
        );
        assert_eq!(
            (samples[1].power_watts, samples[1].temperature_celsius),
            (None, Some(60.0))
        );
        assert_eq!(
            (samples[0].energy_joules, samples[1].energy_joules),
            (Some(250_906.154), None)
        );
        let wrapped = &read(WRAPPED).telemetry[0];
        assert_eq!(
            (wrapped.device.as_str(), wrapped.power_watts),
            ("3", Some(140.0))
        );
        let python = read(PYTHON);
        let sample = &python.telemetry[0];
        assert_eq!(
            (sample.device.as_str(), sample.utilization_percent),
            ("2", Some(0.0))
        );
        assert_eq!(testing::kinds(&python), ["truncated"]);
    }

    #[test]
    fn csv_and_text() {
        let samples = read(CSV).telemetry;
        let shown: Vec<_> = samples
            .iter()
            .map(|s| (s.power_watts, s.utilization_percent, s.temperature_celsius))
            .collect();
        assert_eq!(
            shown,
            [
                (Some(288.0), Some(0.0), Some(44.0)),
                (None, Some(95.0), Some(78.0))
            ]
        );
        assert_eq!(
            (samples[0].memory_used_bytes, samples[1].memory_used_bytes),
            (Some(283 << 20), None)
        );
        assert_eq!(
            (samples[0].clock_mhz, samples[0].memory_clock_mhz),
            (Some(2402.0), Some(2000.0))
        );
        assert_eq!(samples[0].timestamp.as_deref(), Some("1700000000"));
        let text = read(TEXT).telemetry;
        assert_eq!(text.len(), 1, "the second device says nothing");
        assert_eq!(
            (
                text[0].power_watts,
                text[0].clock_mhz,
                text[0].memory_total_bytes
            ),
            (Some(140.0), Some(132.0), Some(1 << 30))
        );
        assert_eq!(
            (text[0].utilization_percent, text[0].temperature_celsius),
            (Some(7.0), Some(37.0))
        );
    }

    testing::damaged!(
        "amd-smi",
        format!("{MONITOR}{JSON}{CSV}{TEXT}{WRAPPED}{PYTHON}")
    );
}
