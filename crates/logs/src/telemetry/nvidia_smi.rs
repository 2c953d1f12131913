//! nvidia-smi: `--format=csv`, the plain table, and `dmon`, each perhaps behind host names.

use std::collections::BTreeMap;

use super::reading::{Csv, Reading, names};
use crate::{
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::after,
    pattern::Pattern,
};

/// Hosts whose interleaved tables are followed, and bytes of a host's name.
const MAX_HOSTS: usize = 4096;
const MAX_NAME: usize = 256;

/// `index, name, utilization.gpu [%], memory.used [MiB]`; text before the first key is somebody
/// else's.
static QUERY: Pattern =
    Pattern::new(r"^(?:[^,]*\s)?[a-z0-9._]+(?: \[[^,]*)?(?:,\s*[a-z0-9._]+(?: \[[^,]*)?)*\s*$");

/// `| NVIDIA-SMI 535.1  Driver Version: 535.1  CUDA Version: 12.2 |`
static VERSION: Pattern =
    Pattern::new(r"\| NVIDIA-SMI .*?Driver Version: +(\S+)(?:.*?CUDA Version: +(\d\S*))?");

/// `[host: ]Sat Sep 28 16:38:50 2024`
static TIME: Pattern = Pattern::new(
    r"^(?:(.*): )?\s*((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\s+\S+\s+\S+\s+\S*:\S*\s+\S+)\s*$",
);

/// `|   0  NVIDIA H100 80GB HBM3          On  | 00000000:0F:00.0 Off | … |`
static DEVICE: Pattern = Pattern::new(
    r"^[^|]*\|\s*(\d+)\s*(\S.*?)\s+(?:On|Off|N/A)\s*\|\s*[^|\s:]*:[^|\s:]*:[^|\s:]*\.[^|\s:]*(?:[|\s]|$)",
);

/// `| N/A   31C    P0    110W / 700W |   1024MiB / 81559MiB |     17%      Default |`
static FIGURES: Pattern = Pattern::new(r"^[^|]*\|([^|]*)\|([^|]*)\|\s*([^|\s]*)");
static TEMPERATURE: Pattern = Pattern::new(r"(?:^|\s)(\d[\d.]*C)(?:\s|$)");
static PAIR: Pattern = Pattern::new(r"(\S+) /\s+(\S+)");

/// Weak at most: the scripts of many trainers show such a table before they begin.
pub fn evidence(line: &str) -> Evidence {
    let is_heading = query_heading(line).is_some() || dmon_heading(line).is_some();
    Evidence::Weak.only_if(is_heading || VERSION.is_match(line))
}

#[derive(Default)]
pub struct NvidiaSmi {
    query: Option<Csv>,
    dmon: Vec<String>,
    /// The plain table, by host: its time stamp, and the device whose second row is to come.
    hosts: BTreeMap<String, (String, Option<Reading>)>,
}

impl Reader for NvidiaSmi {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = line.text.trim_end();
        if let Some(heading) = query_heading(text) {
            (self.query, self.dmon) = (Some(heading), Vec::new());
        } else if let Some(heading) = dmon_heading(text) {
            (self.dmon, self.query) = (heading, None);
        } else if let Some(heading) = self.query.as_ref().filter(|_| text.contains(',')) {
            let first = text.split(',').next().unwrap_or_default();
            let (host, row) = behind_host(text, first);
            if let Some(reading) = heading.row(row, names("nvidia_query"), out) {
                reading.give(host, out);
            }
        } else if !self.dmon.is_empty() && !text.contains('#') {
            self.dmon_row(text, out);
        } else {
            self.table(text, out);
        }
    }
}

impl NvidiaSmi {
    fn dmon_row(&self, text: &str, out: &mut Builder) {
        let (host, row) = behind_host(text, text);
        let cells: Vec<&str> = row.split_whitespace().collect();
        if cells.len() != self.dmon.len() {
            return;
        }
        let mut reading = Reading::default();
        let mut times = Vec::new();
        for (name, cell) in self.dmon.iter().zip(cells) {
            match name.as_str() {
                "gpu" if cell.parse::<u32>().is_err() => return,
                "gpu" => drop(reading.put("device", cell, "")),
                "date" | "time" => times.push(cell),
                name => {
                    let unit = if name == "fb" { "MB" } else { "" };
                    reading.take(names("nvidia_dmon"), name, cell, unit);
                }
            }
        }
        reading.put("timestamp", &times.join(" "), "");
        reading.give(host, out);
    }

    fn table(&mut self, text: &str, out: &mut Builder) {
        if let Some([driver, cuda]) = VERSION.groups(text) {
            for (name, version) in [("driver", driver), ("cuda_driver_api", cuda)] {
                let versions = &mut out.trace.versions;
                if !version.is_empty() && !versions.contains_key(name) {
                    versions.insert(name.to_owned(), cut(version, 40));
                }
            }
        } else if let Some((host, _)) = text.split_once('|') {
            let host = host.trim().trim_end_matches(':').trim_end();
            self.table_row(host, text, out);
        } else if let Some([host, time]) = TIME.groups(text)
            && let Some((stamp, _)) = self.host(host)
        {
            time.clone_into(stamp);
        }
    }

    fn table_row(&mut self, host: &str, text: &str, out: &mut Builder) {
        let Some((stamp, pending)) = self.host(host) else {
            return;
        };
        if let Some([device, name]) = DEVICE.groups(text) {
            let mut reading = Reading::of_device(device);
            reading.put("timestamp", stamp, "");
            reading.put("name", name, "");
            *pending = Some(reading);
        } else if let Some([left, memory, utilization]) = FIGURES.groups(text)
            && (memory.contains("MiB /") || left.contains(" /"))
            && let Some(mut reading) = pending.take()
        {
            let [degrees] = TEMPERATURE.groups(left).unwrap_or_default();
            reading.put("temperature_celsius", degrees, "");
            let [power, limit] = PAIR.groups(left).unwrap_or_default();
            reading.put("power_watts", power, "");
            reading.put("power_limit_watts", limit, "");
            let [used, total] = PAIR.groups(memory).unwrap_or_default();
            reading.put("memory_used_bytes", used, "");
            reading.put("memory_total_bytes", total, "");
            reading.put("utilization_percent", utilization, "");
            reading.give(Some(host), out);
        }
    }

    fn host(&mut self, name: &str) -> Option<&mut (String, Option<Reading>)> {
        let name = name.trim();
        let is_new = !self.hosts.contains_key(name);
        if name.len() > MAX_NAME || is_new && self.hosts.len() >= MAX_HOSTS {
            return None;
        }
        Some(self.hosts.entry(name.to_owned()).or_default())
    }
}

/// A row and the host that its beginning names: `node1: 0, 312.50 W`.
fn behind_host<'a>(row: &'a str, beginning: &'a str) -> (Option<&'a str>, &'a str) {
    match beginning.rsplit_once(": ") {
        Some((host, _)) => (Some(host), row.split_at(host.len() + 2).1),
        None => (None, row),
    }
}

fn query_heading(line: &str) -> Option<Csv> {
    const TELLING: [&str; 5] = [
        "memory.",
        "utilization.",
        "power.",
        "temperature.",
        "clocks.",
    ];
    let is_telling = TELLING.iter().any(|word| line.contains(word));
    if !is_telling || !QUERY.is_match(line) {
        return None;
    }
    let heading = Csv::heading(line, |cell| {
        let (name, unit) = cell.split_once(" [").unwrap_or((cell, ""));
        let name = name.rsplit(char::is_whitespace).next().unwrap_or(name);
        (name.to_owned(), unit.trim_end_matches(']').to_owned())
    });
    let columns = &heading.columns;
    let is_heading = columns.len() > 1 || columns.iter().any(|(_, unit)| !unit.is_empty());
    let tells = |name: &str| TELLING.iter().any(|word| name.starts_with(word));
    (is_heading && columns.iter().any(|(name, _)| tells(name))).then_some(heading)
}

/// `# gpu    pwr  gtemp …`, perhaps with `#Date Time` before it.
fn dmon_heading(line: &str) -> Option<Vec<String>> {
    let columns = after(line, "#")?.to_ascii_lowercase();
    let columns: Vec<_> = columns.split_whitespace().map(str::to_owned).collect();
    let gpu = columns.iter().position(|name| name == "gpu")?;
    let next = columns.get(gpu + 1)?;
    (gpu <= 2 && names("nvidia_dmon").contains_key(next)).then_some(columns)
}
