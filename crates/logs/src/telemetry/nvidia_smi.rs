//! nvidia-smi: `--format=csv`, the plain table, and `dmon`, each perhaps behind host names.

use std::collections::BTreeMap;
use tprimat_words::part;

use super::quantity::{Field, says_something, set};
use crate::{
    TelemetrySample,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{after, count},
};

/// Hosts whose interleaved tables are followed, and bytes of a host's name.
const MAX_HOSTS: usize = 4096;
const MAX_NAME: usize = 256;

pub fn evidence(line: &str) -> Evidence {
    // Weak: trainers' scripts like to show it before they begin.
    let found =
        csv_heading(line).is_some() || dmon_heading(line).is_some() || version(line).is_some();
    if found {
        Evidence::Weak
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct NvidiaSmi {
    csv: Vec<Column>,
    dmon: Vec<String>,
    /// The plain table, by host: its time stamp, and the device whose second row is to come.
    hosts: BTreeMap<String, (Option<String>, Option<TelemetrySample>)>,
}

struct Column {
    key: String,
    /// From the heading, for `nounits`.
    unit: String,
}

impl Reader for NvidiaSmi {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = line.text.trim_end();
        if let Some(columns) = csv_heading(text) {
            (self.csv, self.dmon) = (columns, Vec::new());
        } else if let Some(names) = dmon_heading(text) {
            (self.dmon, self.csv) = (names, Vec::new());
        } else if !self.csv.is_empty() && text.contains(',') {
            self.csv_row(text, out);
        } else if !self.dmon.is_empty() && !text.contains('#') {
            self.dmon_row(text, out);
        } else {
            self.table(text, out);
        }
    }
}

impl NvidiaSmi {
    fn csv_row(&mut self, text: &str, out: &mut Builder) {
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        if cells.len() != self.csv.len() {
            out.notes.add("unreadable_line", || cut(text, 120));
            return;
        }
        let (host, first) = cells[0]
            .rsplit_once(": ")
            .map_or((None, cells[0]), |(host, cell)| (Some(host), cell));
        let mut sample = TelemetrySample::default();
        // How well a column tells devices apart.
        let mut known_by = 0;
        for (at, column) in self.csv.iter().enumerate() {
            let cell = if at == 0 { first } else { cells[at] };
            let field = match column.key.as_str() {
                key @ ("index" | "uuid" | "gpu_uuid" | "pci.bus_id" | "gpu_bus_id" | "serial"
                | "gpu_serial") => {
                    let rank = match key {
                        "index" => 3,
                        "uuid" | "gpu_uuid" => 2,
                        _ => 1,
                    };
                    if rank > known_by && !cell.is_empty() && !cell.starts_with('[') {
                        (known_by, sample.device) = (rank, cut(cell, 80));
                    }
                    continue;
                }
                "timestamp" => {
                    sample.timestamp = Some(cut(cell, 40)).filter(|t| !t.is_empty());
                    continue;
                }
                "name" | "gpu_name" => {
                    sample.name = Some(cut(cell, 80))
                        .filter(|name| !name.is_empty() && !name.starts_with('['));
                    continue;
                }
                "power.draw" => Field::Power,
                "power.draw.average" | "power.draw.instant" if sample.power_watts.is_none() => {
                    Field::Power
                }
                "power.limit" => Field::PowerLimit,
                "enforced.power.limit" if sample.power_limit_watts.is_none() => Field::PowerLimit,
                "memory.used" => Field::MemoryUsed,
                "memory.total" => Field::MemoryTotal,
                "utilization.gpu" => Field::Utilization,
                "temperature.gpu" => Field::Temperature,
                "clocks.sm" | "clocks.current.sm" => Field::Clock,
                "clocks.gr" | "clocks.current.graphics" if sample.clock_mhz.is_none() => {
                    Field::Clock
                }
                "clocks.mem" | "clocks.current.memory" => Field::MemoryClock,
                _ => continue,
            };
            set(&mut sample, field, cell, &column.unit);
        }
        if known_by == 0 {
            sample.device = "unknown".to_owned();
        }
        give(host, sample, out);
    }

    fn dmon_row(&mut self, text: &str, out: &mut Builder) {
        let (host, text) = text
            .rsplit_once(": ")
            .map_or((None, text), |(host, rest)| (Some(host), rest));
        let cells: Vec<&str> = text.split_whitespace().collect();
        if cells.len() != self.dmon.len() {
            return;
        }
        let mut sample = TelemetrySample {
            device: "unknown".to_owned(),
            ..TelemetrySample::default()
        };
        for (name, cell) in self.dmon.iter().zip(cells) {
            let (field, unit) = match name.as_str() {
                "gpu" if cell.parse::<u32>().is_ok() => {
                    sample.device = cell.to_owned();
                    continue;
                }
                // A heading or prose.
                "gpu" => return,
                "date" | "time" => {
                    let before = sample.timestamp.take().map(|t| t + " ").unwrap_or_default();
                    sample.timestamp = Some(before + &cut(cell, 40));
                    continue;
                }
                "pwr" => (Field::Power, "w"),
                "gtemp" | "temp" => (Field::Temperature, "c"),
                "sm" => (Field::Utilization, "%"),
                "mclk" => (Field::MemoryClock, "mhz"),
                "pclk" => (Field::Clock, "mhz"),
                "fb" => (Field::MemoryUsed, "mib"),
                _ => continue,
            };
            set(&mut sample, field, cell, unit);
        }
        give(host, sample, out);
    }

    fn table(&mut self, text: &str, out: &mut Builder) {
        if let Some((driver, cuda)) = version(text) {
            let mut state = |key: &str, value: &str| {
                out.trace
                    .versions
                    .entry(key.to_owned())
                    .or_insert_with(|| cut(value, 40));
            };
            state("driver", driver);
            cuda.into_iter()
                .for_each(|cuda| state("cuda_driver_api", cuda));
            return;
        }
        let Some(bar) = text.find('|') else {
            if let Some((host, time)) = time_stamp(text)
                && let Some((stamp, _)) = self.host(host)
            {
                *stamp = Some(time.to_owned());
            }
            return;
        };
        let host = part(text, ..bar)
            .trim()
            .trim_end_matches(':')
            .trim_end()
            .to_owned();
        let cells: Vec<&str> = part(text, bar + 1..).split('|').map(str::trim).collect();
        let Some((stamp, pending)) = self.host(&host) else {
            return;
        };
        if let Some((index, name)) = device_row(&cells) {
            let sample = TelemetrySample {
                device: index.to_string(),
                timestamp: stamp.clone(),
                name: Some(cut(name, 80)).filter(|name| !name.is_empty()),
                ..TelemetrySample::default()
            };
            *pending = Some(sample);
        } else if let [left, memory, utilization, ..] = cells[..]
            && (memory.contains("MiB /") || left.contains("W /") || left.contains("N/A /"))
            && let Some(mut sample) = pending.take()
        {
            let temperature = left.split_whitespace().find(|word| {
                word.strip_suffix('C')
                    .is_some_and(|degrees| degrees.parse::<f64>().is_ok())
            });
            temperature
                .into_iter()
                .for_each(|cell| set(&mut sample, Field::Temperature, cell, ""));
            if let Some((power, limit)) = left.rsplit_once(" / ") {
                set(
                    &mut sample,
                    Field::Power,
                    power.rsplit(' ').next().unwrap_or_default(),
                    "",
                );
                set(&mut sample, Field::PowerLimit, limit, "");
            }
            if let Some((used, total)) = memory.split_once(" / ") {
                set(&mut sample, Field::MemoryUsed, used, "");
                set(&mut sample, Field::MemoryTotal, total, "");
            }
            set(
                &mut sample,
                Field::Utilization,
                utilization.split_whitespace().next().unwrap_or_default(),
                "",
            );
            give(Some(host.as_str()), sample, out);
        }
    }

    fn host(&mut self, name: &str) -> Option<&mut (Option<String>, Option<TelemetrySample>)> {
        if name.len() > MAX_NAME
            || (self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(name))
        {
            return None;
        }
        Some(self.hosts.entry(name.to_owned()).or_default())
    }
}

fn give(host: Option<&str>, mut sample: TelemetrySample, out: &mut Builder) {
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        sample.device = format!("{}/{}", cut(host, 120), sample.device);
    }
    if says_something(&sample) {
        out.sample(sample);
    }
}

/// `index, name, utilization.gpu [%], memory.used [MiB]`; text before the first key is somebody
/// else's.
fn csv_heading(line: &str) -> Option<Vec<Column>> {
    const TELLING: [&str; 5] = [
        "memory.",
        "utilization.",
        "power.",
        "temperature.",
        "clocks.",
    ];
    if !TELLING
        .iter()
        .any(|word| memchr::memmem::find(line.as_bytes(), word.as_bytes()).is_some())
    {
        return None;
    }
    let mut columns = Vec::new();
    for (at, cell) in line.split(',').map(str::trim).enumerate() {
        let (name, unit) = cell.split_once(" [").map_or((cell, ""), |(name, unit)| {
            (name, unit.trim_end_matches(']'))
        });
        let name = if at == 0 {
            name.rsplit(char::is_whitespace).next().unwrap_or(name)
        } else {
            name
        };
        let is_key =
            |c: char| c.is_ascii_lowercase() || matches!(c, '.' | '_') || c.is_ascii_digit();
        if name.is_empty() || !name.chars().all(is_key) {
            return None;
        }
        columns.push(Column {
            key: name.to_owned(),
            unit: unit.to_owned(),
        });
    }
    let telling = |c: &Column| TELLING.iter().any(|word| c.key.starts_with(word));
    let is_heading = columns.len() > 1 || columns.iter().any(|c| !c.unit.is_empty());
    (is_heading && columns.iter().any(telling)).then_some(columns)
}

/// `# gpu    pwr  gtemp …`, perhaps with `#Date Time` before it.
fn dmon_heading(line: &str) -> Option<Vec<String>> {
    let names = after(line, "#")?.to_ascii_lowercase();
    let names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
    let gpu = names
        .iter()
        .position(|name| name == "gpu")
        .filter(|at| *at <= 2)?;
    let known = ["pwr", "sm", "gtemp", "temp", "mclk", "fb", "pclk"];
    known
        .contains(&names.get(gpu + 1)?.as_str())
        .then_some(names)
}

/// `| NVIDIA-SMI 535.1  Driver Version: 535.1  CUDA Version: 12.2 |`: driver and CUDA.
fn version(line: &str) -> Option<(&str, Option<&str>)> {
    let rest = after(line, "| NVIDIA-SMI ")?;
    let word = |key: &str| after(rest, key)?.split_whitespace().next();
    Some((
        word("Driver Version: ")?,
        word("CUDA Version: ").filter(|v| v.starts_with(|c: char| c.is_ascii_digit())),
    ))
}

/// `[host: ]Sat Sep 28 16:38:50 2024`: the host and the time.
fn time_stamp(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_end();
    let (host, time) = text.rsplit_once(": ").unwrap_or(("", text));
    let words: Vec<&str> = time.split_whitespace().collect();
    let day = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].contains(words.first()?);
    (day && words.len() == 5 && words[3].contains(':')).then_some((host.trim(), time.trim()))
}

/// `|   0  NVIDIA H100 80GB HBM3          On  | 00000000:0F:00.0 Off | … |`: index and name.
fn device_row<'a>(cells: &[&'a str]) -> Option<(u64, &'a str)> {
    let (index, name) = count(cells.first()?)?;
    let bus = cells.get(1)?.split_whitespace().next()?;
    let (name, persistence) = name.trim().rsplit_once(' ')?;
    let is_bus = bus.matches(':').count() == 2 && bus.contains('.');
    (is_bus && matches!(persistence, "On" | "Off" | "N/A")).then(|| (index, name.trim_end()))
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, Trace, parse_any, testing};

    const CSV: &str = "login3 | CHANGED | rc=0 | (stdout) timestamp, index, name, power.draw [W], power.limit [W], utilization.gpu [%], memory.used [MiB], memory.total [MiB], clocks.current.sm [MHz]\n\
        2025/01/02 03:04:05.678, 0, Example GPU 80GB, 312.50 W, 700.00 W, 97 %, 40960 MiB, 81920 MiB, 1755 MHz\n\
        2025/01/02 03:04:05.679, 1, Example GPU 80GB, [N/A], 700.00 W, [Not Supported], 0 MiB, 81920 MiB, [N/A]\n\
        short, row\n";
    const NO_UNITS: &str = "uuid, memory.used [MiB], temperature.gpu\nnode1: GPU-aaaa, 512, 44\n";
    const TABLE: &str = "\
n1: Sat Sep 28 16:38:50 2024
n1: +-----------------------------------------------------------------------------+
n1: | NVIDIA-SMI 535.100.01   Driver Version: 535.100.01   CUDA Version: 12.2     |
n1: |   0  Example H100 80GB HBM3     On  | 00000000:0F:00.0 Off |               0 |
n2: |   0  Example H100 80GB HBM3     On  | 00000000:1F:00.0 Off |               0 |
n1: | N/A   31C    P0    110W / 700W |   1024MiB / 81559MiB |     17%      Default |
n2: | N/A   N/A    P0    N/A /  N/A  |      0MiB / 81559MiB |     N/A      Default |
n1: |                                |                      |             Disabled |
n1: | Processes:                                                                  |
n1: |    0   N/A  N/A      2211      C   python                          1014MiB |
";
    const DMON: &str = "\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB
 20250102   03:04:05      0    218     43      -     95      0  12481   2325    725
 20250102   03:04:06      0      3     38      -      0      0      -    208    725
";

    fn read(log: &str) -> Trace {
        let trace = parse_any(log.as_bytes());
        assert_eq!(trace.format, "nvidia-smi");
        trace
    }

    #[test]
    fn csv_with_units_in_cells_or_in_the_heading() {
        let trace = read(CSV);
        let [first, second] = &trace.telemetry[..] else {
            panic!("{:?}", trace.telemetry)
        };
        assert_eq!(
            (first.device.as_str(), first.name.as_deref()),
            ("0", Some("Example GPU 80GB"))
        );
        assert_eq!(first.timestamp.as_deref(), Some("2025/01/02 03:04:05.678"));
        assert_eq!(
            (first.power_watts, first.power_limit_watts),
            (Some(312.5), Some(700.0))
        );
        assert_eq!(
            (first.memory_used_bytes, first.memory_total_bytes),
            (Some(40 << 30), Some(80 << 30))
        );
        assert_eq!(
            (first.utilization_percent, first.clock_mhz),
            (Some(97.0), Some(1755.0))
        );
        assert_eq!(
            (
                second.power_watts,
                second.utilization_percent,
                second.clock_mhz
            ),
            (None, None, None)
        );
        assert_eq!(second.memory_used_bytes, Some(0));
        assert_eq!(testing::kinds(&trace), ["unreadable_line"]);
        let plain = &read(NO_UNITS).telemetry[0];
        assert_eq!(
            (plain.device.as_str(), plain.memory_used_bytes),
            ("node1/GPU-aaaa", Some(512 << 20))
        );
        assert_eq!(plain.temperature_celsius, Some(44.0));
    }

    #[test]
    fn interleaved_tables_of_two_hosts() {
        let trace = read(TABLE);
        let [first, second] = &trace.telemetry[..] else {
            panic!("{:?}", trace.telemetry)
        };
        assert_eq!(
            (first.device.as_str(), first.name.as_deref()),
            ("n1/0", Some("Example H100 80GB HBM3"))
        );
        assert_eq!(first.timestamp.as_deref(), Some("Sat Sep 28 16:38:50 2024"));
        assert_eq!(
            (first.power_watts, first.power_limit_watts),
            (Some(110.0), Some(700.0))
        );
        assert_eq!(
            (first.memory_used_bytes, first.memory_total_bytes),
            (Some(1 << 30), Some(81559 << 20))
        );
        assert_eq!(
            (first.utilization_percent, first.temperature_celsius),
            (Some(17.0), Some(31.0))
        );
        assert_eq!(
            (second.device.as_str(), second.memory_used_bytes),
            ("n2/0", Some(0))
        );
        assert_eq!(
            (
                second.power_watts,
                second.utilization_percent,
                second.temperature_celsius
            ),
            (None, None, None)
        );
        assert_eq!(
            (
                &*trace.versions["driver"],
                &*trace.versions["cuda_driver_api"]
            ),
            ("535.100.01", "12.2")
        );
    }

    #[test]
    fn dmon_has_two_headings_and_dashes() {
        let trace = read(DMON);
        let shown: Vec<_> = trace
            .telemetry
            .iter()
            .map(|s| (s.power_watts, s.memory_clock_mhz, s.clock_mhz))
            .collect();
        assert_eq!(
            shown,
            [
                (Some(218.0), Some(12481.0), Some(2325.0)),
                (Some(3.0), None, Some(208.0))
            ]
        );
        let first = &trace.telemetry[0];
        assert_eq!(
            (first.device.as_str(), first.timestamp.as_deref()),
            ("0", Some("20250102 03:04:05"))
        );
        assert_eq!(
            (first.memory_used_bytes, first.utilization_percent),
            (Some(725 << 20), Some(95.0))
        );
    }

    #[test]
    fn a_trainers_log_that_shows_it_first_is_the_trainers() {
        let log = format!("{TABLE}iter 1: loss 2.5, time 100.00ms\n");
        assert_eq!(parse_any(log.as_bytes()).format, "nanogpt");
    }

    testing::damaged!("nvidia-smi", format!("{CSV}{TABLE}{DMON}{NO_UNITS}"));
}
