//! Tables of what ran on a device, one row a kernel or copy: nsys' `cuda_gpu_trace` and rocprofv3's
//! `kernel_trace` and `memory_copy_trace`, as CSV. Nothing in them marks a step.

use std::{
    collections::BTreeMap,
    io::{BufRead, Read},
};

use crate::kineto::{DeviceSpan, DeviceTrace, Unusable};

/// The header is one of the first 50 lines of a file: `nsys stats` prints a few lines before its table.
const LINES_BEFORE: usize = 50;

/// How one profiler names its columns. Its times are in nanoseconds.
struct Columns {
    name: &'static str,
    start: &'static str,
    /// When it ended, or how long it took.
    end: End,
    device: &'static str,
}

enum End {
    At(&'static str),
    After(&'static str),
}

const TABLES: [Columns; 3] = [
    Columns {
        name: "Name",
        start: "Start (ns)",
        end: End::After("Duration (ns)"),
        device: "Device",
    },
    Columns {
        name: "Kernel_Name",
        start: "Start_Timestamp",
        end: End::At("End_Timestamp"),
        device: "Agent_Id",
    },
    // Copies to a device and from it: which one is in either of two columns, so none is named.
    Columns {
        name: "Direction",
        start: "Start_Timestamp",
        end: End::At("End_Timestamp"),
        device: "",
    },
];

/// What a table says of its device.
pub fn read(mut from: impl BufRead) -> Result<DeviceTrace, Unusable> {
    let (header, columns) = header(&mut from)?;
    let place = |name: &str| header.iter().position(|column| column == name);
    let missing = |name: &str| format!("has no column `{name}`");
    let required = |name: &str| place(name).ok_or_else(|| missing(name));
    let (name_at, start_at) = (required(columns.name)?, required(columns.start)?);
    let end_at = match columns.end {
        End::At(name) | End::After(name) => required(name)?,
    };
    let device_at = place(columns.device);
    let mut trace = DeviceTrace::default();
    let mut places = BTreeMap::new();
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(from);
    let mut row = csv::StringRecord::new();
    while rows
        .read_record(&mut row)
        .map_err(|error| format!("cannot be read: {error}"))?
    {
        let time = |at: usize| row.get(at).and_then(|field| field.parse::<f64>().ok());
        // Other text behind the table, or a row that breaks off.
        let (Some(name), Some(start), Some(end)) = (row.get(name_at), time(start_at), time(end_at))
        else {
            return Err(format!("breaks off after {} rows", trace.spans.len()));
        };
        let end = match columns.end {
            End::At(_) => end,
            End::After(_) => start + end,
        };
        let name = *places.entry(name.to_owned()).or_insert_with(|| {
            trace.names.push(name.to_owned());
            trace.names.len() - 1
        });
        let device = device_at.and_then(|at| row.get(at));
        trace.devices.extend(device.map(str::to_owned));
        trace.spans.push(DeviceSpan {
            name,
            is_copy: columns.name == "Direction" || is_copy(&trace.names[name]),
            is_of_optimizer: false,
            start: start / 1e3,
            end: end.max(start) / 1e3,
        });
    }
    Ok(trace)
}

/// nsys has copies and fills among the kernels.
fn is_copy(name: &str) -> bool {
    ["[CUDA memcpy", "[CUDA memset"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// The header, and whose table it begins.
fn header(from: &mut impl BufRead) -> Result<(Vec<String>, &'static Columns), Unusable> {
    for _ in 0..LINES_BEFORE {
        let mut line = Vec::new();
        // No header is as long as this.
        let read = from.by_ref().take(1 << 14).read_until(b'\n', &mut line);
        if read.map_err(|error| format!("cannot be read: {error}"))? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&line);
        let fields = line.trim().split(',').map(|field| field.trim_matches('"'));
        let header: Vec<String> = fields.map(str::to_owned).collect();
        let is_there = |name: &str| header.iter().any(|column| column == name);
        let table = TABLES
            .iter()
            .find(|table| is_there(table.start) && is_there(table.name));
        if let Some(table) = table {
            return Ok((header, table));
        }
    }
    Err("is neither one of PyTorch's profiler nor a table of nsys or rocprofv3".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::device_trace;

    const NSYS: &str = "NOTICE: an export is there already\n\n\
        Start (ns),Duration (ns),CorrId,GrdX,Bytes (MB),Device,Ctx,Strm,Name\n\
        1000,500,1,4,,NVIDIA H200 (0),1,7,\"void gemm<float, 2>(float*)\"\n\
        2000,250,2,,0.5,NVIDIA H200 (0),1,7,[CUDA memcpy Host-to-Device]\n\
        3000,500,1,4,,NVIDIA H200 (0),1,7,\"void gemm<float, 2>(float*)\"\n";

    const ROCPROF: &str = "\"Kind\",\"Agent_Id\",\"Queue_Id\",\"Kernel_Name\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n\
        \"KERNEL_DISPATCH\",\"Agent 4\",1,\"Cijk_Ailk(float*, int)\",9,1000,1500\n\
        \"KERNEL_DISPATCH\",\"Agent 4\",1,\"Cijk_Ailk(float*, int)\",9,3000,3500\n";

    const COPIES: &str = "\"Kind\",\"Direction\",\"Source_Agent_Id\",\"Destination_Agent_Id\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n\
        \"MEMORY_COPY\",\"HOST_TO_DEVICE\",0,4,7,2000,2250\n";

    /// Name, kind, and microseconds of begin and end.
    fn spans(text: &str) -> Vec<(String, bool, f64, f64)> {
        let trace = device_trace(text.as_bytes()).unwrap();
        let spans = trace.spans.iter();
        spans
            .map(|s| (trace.names[s.name].clone(), s.is_copy, s.start, s.end))
            .collect()
    }

    #[test]
    fn tables_of_both_vendors_are_read() {
        let kernel = |name: &str, start, end| (name.to_owned(), false, start, end);
        let gemm = "void gemm<float, 2>(float*)";
        let copy = |name: &str| (name.to_owned(), true, 2.0, 2.25);
        assert_eq!(
            spans(NSYS),
            [
                kernel(gemm, 1.0, 1.5),
                copy("[CUDA memcpy Host-to-Device]"),
                kernel(gemm, 3.0, 3.5)
            ]
        );
        let tensile = "Cijk_Ailk(float*, int)";
        assert_eq!(
            spans(ROCPROF),
            [kernel(tensile, 1.0, 1.5), kernel(tensile, 3.0, 3.5)]
        );
        assert_eq!(spans(COPIES), [copy("HOST_TO_DEVICE")]);
    }

    #[test]
    fn a_table_that_is_cut_or_of_two_devices_is_refused_with_the_reason() {
        let cut = &NSYS[..NSYS
            .find(",500,1,4,,NVIDIA H200 (0),1,7,\"void gemm<float, 2>(float*)\"\n2000")
            .unwrap()
            + 3];
        let two = ROCPROF.replacen("Agent 4", "Agent 5", 1);
        let renamed = NSYS.replacen("Duration (ns)", "Duration", 1);
        for (text, why) in [
            (cut, "breaks off after 0 rows"),
            (&two, "of 2 devices at once"),
            (&renamed, "no column `Duration (ns)`"),
            (
                "step 3 loss 2.5",
                "neither one of PyTorch's profiler nor a table",
            ),
        ] {
            let told = device_trace(text.as_bytes()).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
