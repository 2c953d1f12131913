//! What ran on a device, as a profiler saw it. Of PyTorch's profiler (Kineto's JSON) also where its steps
//! begin. Read event by event, plain or gzip; memory grows with the kernels alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{BufRead, BufReader, ErrorKind, Read},
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::kernel_table;

/// Why a trace cannot be used, as a sentence without its end.
pub type Unusable = String;

/// What a device did, as a profiler saw it. Times are in microseconds of the trace's own clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceTrace {
    /// Begin and end of each profiled step as the host sees it, in order of time.
    pub steps: Vec<[f64; 2]>,
    /// The same as the device sees it, where the trace says: from the first to the last of all its streams.
    pub device_steps: Vec<[f64; 2]>,
    /// Names of kernels and copies; each once.
    pub names: Vec<String>,
    pub spans: Vec<DeviceSpan>,
    /// The devices that something ran on, as the profiler names them.
    pub devices: BTreeSet<String>,
}

impl DeviceTrace {
    /// Takes in what another file says of the same device and time.
    pub fn add(&mut self, other: Self) {
        let first = self.names.len();
        self.names.extend(other.names);
        self.devices.extend(other.devices);
        let moved = other.spans.into_iter().map(|mut span| {
            span.name += first;
            span
        });
        self.spans.extend(moved);
    }
}

/// One kernel or copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSpan {
    /// Its place among the trace's names.
    pub name: usize,
    pub is_copy: bool,
    /// Did the optimizer's step launch it? torch marks that step, whatever kernels it is made of.
    pub is_of_optimizer: bool,
    pub start: f64,
    pub end: f64,
}

/// One event of Chrome's trace format, as far as it is of use.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default, deserialize_with = "text")]
    name: String,
    ts: Option<f64>,
    dur: Option<f64>,
    /// The number of the device's stream, for events of kernels and copies.
    #[serde(default, deserialize_with = "number")]
    tid: Option<u64>,
    #[serde(default)]
    args: Arguments,
}

#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(default, deserialize_with = "number")]
    device: Option<u64>,
}

/// Some events are named by a number.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(serde_json::Value::deserialize(from)?.as_u64())
}

/// What a trace says of its device.
///
/// # Errors
///
/// Says why a file cannot be used: it is of no known profiler, it breaks off, or nothing in it ran on
/// a device, or several devices did.
pub fn device_trace(from: impl Read) -> Result<DeviceTrace, Unusable> {
    let mut from = BufReader::with_capacity(1 << 16, from);
    let trace = if start(&mut from)?.starts_with(&[0x1f, 0x8b]) {
        let plain = flate2::read::MultiGzDecoder::new(from);
        trace(BufReader::with_capacity(1 << 16, plain))?
    } else {
        trace(from)?
    };
    match trace.devices.len() {
        _ if trace.spans.is_empty() => Err(
            "has nothing that ran on a device: it is of a run on the CPU, or was made without CUDA's activity"
                .to_owned(),
        ),
        0 | 1 => Ok(trace),
        count => Err(format!(
            "is of {count} devices at once; expected a trace of one rank"
        )),
    }
}

fn start(from: &mut impl BufRead) -> Result<&[u8], Unusable> {
    from.fill_buf().map_err(|e| format!("cannot be read: {e}"))
}

fn trace(mut from: impl BufRead) -> Result<DeviceTrace, Unusable> {
    let first = start(&mut from)?.trim_ascii_start().first();
    match first {
        Some(b'{' | b'[') => read(from),
        _ => kernel_table::read(from),
    }
}

fn read(from: impl Read) -> Result<DeviceTrace, Unusable> {
    let mut into = Reading::default();
    let mut json = serde_json::Deserializer::from_reader(from);
    if let Err(error) = Whole(&mut into).deserialize(&mut json) {
        // A compressed file that was cut off is an error of reading.
        let is_cut = error.is_eof() || error.io_error_kind() == Some(ErrorKind::UnexpectedEof);
        return Err(if is_cut {
            format!("breaks off after {} events", into.events)
        } else {
            format!("is no trace of PyTorch's profiler: {error}")
        });
    }
    let mut trace = into.trace;
    for (span, stream) in trace.spans.iter_mut().zip(&into.streams) {
        let mut marks = into.optimizer_marks.iter();
        span.is_of_optimizer =
            marks.any(|(of, [start, end])| of == stream && (*start..*end).contains(&span.start));
    }
    trace.device_steps = into.device_steps.into_values().collect();
    for steps in [&mut trace.steps, &mut trace.device_steps] {
        steps.sort_by(|a, b| a[0].total_cmp(&b[0]));
    }
    if into.events == 0 {
        return Err("has no events".to_owned());
    }
    Ok(trace)
}

#[derive(Default)]
struct Reading {
    trace: DeviceTrace,
    places: BTreeMap<String, usize>,
    /// By the step's name: each stream has a mark of its own.
    device_steps: BTreeMap<String, [f64; 2]>,
    /// The stream of each span.
    streams: Vec<Option<u64>>,
    /// From the first to the last kernel of each of the optimizer's steps, on each stream.
    optimizer_marks: Vec<(Option<u64>, [f64; 2])>,
    events: u64,
}

impl Reading {
    fn take(&mut self, event: Event) {
        self.events += 1;
        let (Some(start), Some(duration)) = (event.ts, event.dur) else {
            return;
        };
        let is_whole = event.ph == "X" && start.is_finite() && duration >= 0.0;
        let span = [start, start + duration];
        let is_step = event.name.starts_with("ProfilerStep");
        match event.cat.as_str() {
            _ if !is_whole => {}
            "user_annotation" if is_step => self.trace.steps.push(span),
            "gpu_user_annotation" if is_step => {
                let step = self.device_steps.entry(event.name).or_insert(span);
                *step = [step[0].min(span[0]), step[1].max(span[1])];
            }
            "gpu_user_annotation" if event.name.starts_with("Optimizer.step") => {
                self.optimizer_marks.push((event.tid, span));
            }
            "kernel" | "gpu_memcpy" | "gpu_memset" => {
                let names = &mut self.trace.names;
                let name = *self.places.entry(event.name).or_insert_with_key(|name| {
                    names.push(name.clone());
                    names.len() - 1
                });
                self.trace
                    .devices
                    .extend(event.args.device.map(|number| number.to_string()));
                self.streams.push(event.tid);
                self.trace.spans.push(DeviceSpan {
                    name,
                    is_copy: event.cat != "kernel",
                    is_of_optimizer: false,
                    start: span[0],
                    end: span[1],
                });
            }
            _ => {}
        }
    }
}

/// The whole file: an object with `traceEvents`, or these alone.
struct Whole<'a>(&'a mut Reading);

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            if name == "traceEvents" {
                members.next_value_seed(Whole(self.0))?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element::<Event>()? {
            self.0.take(event);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TRACE: &str = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 300, "dur": 100},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 200.5, "dur": 99.5},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 201, "dur": 4},
        {"ph": "X", "cat": "kernel", "name": "gemm", "tid": 7, "ts": 210, "dur": 50, "args": {"device": 0, "stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "tid": 7, "ts": 310, "dur": 50, "args": {"device": 0, "stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 270, "dur": 5, "args": {"device": 0}},
        {"ph": "i", "cat": "x", "name": 3, "ts": 1}], "traceName": "t.json"}"#;

    #[test]
    fn kernels_copies_and_steps_are_read_and_nothing_else() {
        let trace = device_trace(TRACE.as_bytes()).unwrap();
        assert_eq!(trace.steps, [[200.5, 300.0], [300.0, 400.0]]);
        assert_eq!(trace.names, ["gemm", "Memcpy HtoD"]);
        let spans: Vec<_> = trace
            .spans
            .iter()
            .map(|s| (s.name, s.is_copy, s.start, s.end))
            .collect();
        let wanted = [
            (0, false, 210.0, 260.0),
            (0, false, 310.0, 360.0),
            (1, true, 270.0, 275.0),
        ];
        assert_eq!(spans, wanted);
    }

    /// Each stream marks the steps that it has a part of.
    #[test]
    fn a_step_on_two_streams_is_one_step() {
        let mark = |name: u64, ts: u64, stream: u64| {
            format!(
                r#"{{"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#{name}", "ts": {ts}, "dur": 80, "args": {{"device": 0, "stream": {stream}}}}},"#
            )
        };
        let marks = [(9, 205, 7), (9, 230, 13), (10, 305, 7), (10, 301, 13)];
        let marks: String = marks.map(|(n, ts, stream)| mark(n, ts, stream)).concat();
        let trace = TRACE.replacen("[\n", &format!("[\n{marks}"), 1);
        let trace = device_trace(trace.as_bytes()).unwrap();
        assert_eq!(trace.device_steps, [[205.0, 310.0], [301.0, 385.0]]);
    }

    /// Written as a loop, an optimizer is made of the same kernels as other element-wise passes.
    #[test]
    fn what_the_optimizers_step_launches_is_known_by_its_mark() {
        let mark = r#"{"ph": "X", "cat": "gpu_user_annotation", "name": "Optimizer.step#AdamW.step", "tid": STREAM, "ts": 309, "dur": 60},"#;
        for (stream, expected) in [("7", [false, true, false]), ("13", [false; 3])] {
            let mark = mark.replace("STREAM", stream);
            let trace = TRACE.replacen("[\n", &format!("[\n{mark}"), 1);
            let trace = device_trace(trace.as_bytes()).unwrap();
            let found = trace.spans.iter().map(|span| span.is_of_optimizer);
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_compressed_trace_is_the_same_trace() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(TRACE.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(device_trace(&*packed), device_trace(TRACE.as_bytes()));
        let cut = device_trace(&packed[..packed.len() / 2]).unwrap_err();
        assert!(cut.contains("breaks off"), "{cut}");
    }

    #[test]
    fn what_is_no_whole_trace_of_one_device_is_refused_with_the_reason() {
        let cut = &TRACE[..TRACE.find("gpu_memcpy").unwrap()];
        let two = TRACE.replacen("\"device\": 0", "\"device\": 1", 1);
        let on_cpu = TRACE
            .replace("kernel", "cpu_op")
            .replace("gpu_memcpy", "cpu_op");
        for (text, why) in [
            (cut, "breaks off after 6 events"),
            (&two, "of 2 devices at once"),
            (&on_cpu, "nothing that ran on a device"),
            ("{}", "no events"),
            ("[{]", "no trace of PyTorch's profiler"),
        ] {
            let told = device_trace(text.as_bytes()).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
