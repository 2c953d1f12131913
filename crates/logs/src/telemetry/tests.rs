//! What each tool prints, and what is read of it.

mod reading {
    use super::super::reading::{Reading, names};
    use crate::{TelemetrySample, builder::Builder};

    fn sample(fill: impl FnOnce(&mut Reading)) -> TelemetrySample {
        let (mut reading, mut out) = (Reading::default(), Builder::default());
        fill(&mut reading);
        reading.give(None, &mut out);
        out.trace.telemetry.pop().unwrap_or_default()
    }

    #[test]
    fn units_decide_and_what_is_not_there_is_absent() {
        let sample = sample(|reading| {
            reading.put("power_watts", "110W", "");
            reading.put("memory_used_bytes", " 78942 MiB", "");
            reading.put("memory_total_bytes", "196300", "MB");
            reading.put("temperature_celsius", "51.0°C", "");
            reading.put("clock_mhz", "(132Mhz)", "");
            for nothing in [
                "[N/A]",
                "N/A",
                "-",
                "ERR!",
                "[Not Supported]",
                "",
                "Unsupported",
            ] {
                reading.put("utilization_percent", nothing, "%");
                reading.put("power_watts", nothing, "W");
            }
            reading.put("power_limit_watts", "5 MHz", "");
        });
        assert_eq!(sample.power_watts, Some(110.0));
        assert_eq!(sample.memory_used_bytes, Some(78942 << 20));
        assert_eq!(sample.memory_total_bytes, Some(196_300 << 20));
        assert_eq!(
            (sample.temperature_celsius, sample.clock_mhz),
            (Some(51.0), Some(132.0))
        );
        assert_eq!(
            (sample.utilization_percent, sample.power_limit_watts),
            (None, None)
        );
    }

    #[test]
    fn a_stated_0_is_a_0_and_memory_without_a_unit_says_nothing() {
        let zero = sample(|reading| {
            reading.put("utilization_percent", "0 %", "");
            reading.put("memory_used_bytes", "5", "");
        });
        assert_eq!(zero.utilization_percent, Some(0.0));
        assert_eq!(zero.memory_used_bytes, None);
    }

    #[test]
    fn the_better_name_counts_wherever_it_stands() {
        let columns = [("edge", "44"), ("hotspot", "60"), ("edge", "45")];
        let hottest = sample(|reading| {
            for (name, text) in columns {
                reading.take(names("amd_metric"), name, text, "");
            }
        });
        assert_eq!(hottest.temperature_celsius, Some(60.0));
    }

    /// A quantity that a sample has no field for would be dropped without a word.
    #[test]
    fn each_quantity_of_the_table_is_a_field_of_a_sample() {
        let forms: toml::Table = toml::from_str(include_str!("names.toml")).unwrap();
        for (form, quantities) in &forms {
            for quantity in quantities.as_table().unwrap().keys() {
                let text = match quantity.as_str() {
                    "device" | "timestamp" | "name" => continue,
                    bytes if bytes.ends_with("_bytes") => "1 MiB",
                    energy if energy.ends_with("_joules") => "1 J",
                    _ => "1",
                };
                let sample = sample(|reading| assert!(reading.put(quantity, text, "")));
                let published = serde_json::to_value(sample).unwrap();
                assert!(published.get(quantity).is_some(), "{form}: {quantity}");
            }
        }
    }
}

mod document {
    use serde_json::json;

    use super::super::document::Documents;
    use crate::builder::Builder;

    fn all(text: &str) -> Vec<serde_json::Value> {
        let (mut documents, mut out) = (Documents::default(), Builder::default());
        let mut found = Vec::new();
        for line in text.lines() {
            if documents.inside() || line.trim_start().starts_with(['{', '[']) {
                found.extend(documents.line(line, &mut out));
            }
        }
        found.extend(documents.end(&mut out));
        found
    }

    #[test]
    fn documents_over_many_lines_one_after_another_and_cut_off() {
        assert_eq!(
            all("noise\n[\n {\"a\": \"]\"}\n]\n{\"b\": 1}\n"),
            [json!([{"a": "]"}]), json!({"b": 1})]
        );
        assert_eq!(
            all("{'a': None, 'b': [True, 'it\\'s \"x\"'], 'c': 'N/A'}"),
            [json!({"a": null, "b": [true, "it's \"x\""], "c": "N/A"})]
        );
        assert_eq!(
            all("{'a': {'b': 1}, 'c': [1, 2]"),
            [json!({"a": {"b": 1}, "c": [1, 2]})]
        );
        assert_eq!(all("{]\n{\"b\": 1}"), [json!({"b": 1})]);
        assert!(all(&"[".repeat(100_000)).is_empty());
    }
}

mod nvidia_smi {
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

mod rocm_smi {
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

mod amd_smi {
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
