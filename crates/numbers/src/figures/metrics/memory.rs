//! How much of the device's memory was left at the peak.

use crate::results::{GIB, Reason};

use super::{Computed, Subject, absent, error};
use crate::figures::{Device, Figure, Memory, RepeatStatus};

/// Kinds of device memory. None of them is always the largest: one that was read at some moment may
/// have missed the peak that another one kept.
const KINDS: [&str; 4] = [
    "device_used",
    "process_device_used",
    "peak_reserved",
    "peak_allocated",
];

const DEVICE_MEMORY: &str = "device memory";

pub(super) fn headroom(of: &Subject) -> Computed {
    let device = of.gpu(DEVICE_MEMORY)?;
    let stated = of
        .summary
        .memory
        .iter()
        .filter(|m| KINDS.contains(&m.kind.as_str()) && m.bytes > 0);
    // Among equal ones, the first in the list.
    let rank = |m: &Memory| {
        KINDS
            .iter()
            .position(|kind| *kind == m.kind)
            .map(std::cmp::Reverse)
    };
    let peak = stated
        .max_by_key(|m| (m.bytes, rank(m)))
        .cloned()
        .or_else(|| sampled(of));
    let peak = peak.ok_or_else(|| absent("no_memory", "no figure of device memory"))?;
    let (capacity, capacity_source) =
        capacity(of, device).map_err(|reason| Figure::Absent { reason })?;
    let used = peak.bytes as f64;
    let memory = format!(
        "{} ({}) {:.2} GiB of {:.2} GiB ({capacity_source})",
        peak.kind,
        peak.source,
        used / GIB,
        capacity / GIB
    );
    if used > capacity {
        let text = format!("more than there is: {memory}");
        return Err(error("more_memory_than_there_is", text));
    }
    Ok((1.0 - used / capacity, memory))
}

/// Bytes of one device, and who says so: the driver's own count, where tprimat.lock has it, for
/// boards report a little less than their nominal size.
fn capacity(of: &Subject, device: &Device) -> Result<(f64, String), Reason> {
    let locked = of
        .cell
        .environment
        .facts
        .get("memory_bytes")
        .and_then(|b| b.parse::<f64>().ok());
    match locked.filter(|bytes| bytes.is_finite() && *bytes > 0.0) {
        Some(bytes) => Ok((bytes, "tprimat.lock".to_owned())),
        None => device
            .sku()
            .map(|sku| (sku.memory_bytes(), sku.source.clone())),
    }
}

/// The same as a number for a picture; none of a CPU, or of a device that contradicts itself.
pub(super) fn capacity_bytes(of: &Subject) -> Option<u64> {
    let device = of.gpu(DEVICE_MEMORY).ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and whole bytes"
    )]
    capacity(of, device).ok().map(|(bytes, _)| bytes as u64)
}

/// What the sampler saw, where the trainers state nothing: it may have missed the very peak.
fn sampled(of: &Subject) -> Option<Memory> {
    let counted = of
        .summary
        .repeats
        .iter()
        .filter(|r| r.status == RepeatStatus::Ok)
        .filter_map(|r| r.telemetry.as_ref());
    let most = counted.max_by_key(|t| t.max_memory_used_bytes)?;
    let bytes = most.max_memory_used_bytes.filter(|bytes| *bytes > 0)?;
    Some(Memory {
        kind: "sampled device_used".to_owned(),
        source: most.source.clone(),
        bytes,
    })
}
