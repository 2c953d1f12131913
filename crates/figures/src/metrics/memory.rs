//! How much of the device's memory was left at the peak.

use super::{Made, Subject, absent, error};
use crate::{Device, Memory, RepeatStatus};

const GIB: f64 = (1u64 << 30) as f64;

/// Kinds of device memory. None of them is always the largest: one that was read at some moment may have missed the peak
/// that another one kept.
const KINDS: [&str; 4] = ["device_used", "process_device_used", "peak_reserved", "peak_allocated"];

pub(super) fn headroom(of: &Subject) -> Made {
    let device = of.gpu("device memory")?;
    let stated = of.summary.memory.iter().filter(|m| KINDS.contains(&m.kind.as_str()) && m.bytes > 0);
    // Of equal ones the first in the list.
    let rank = |m: &Memory| KINDS.iter().position(|kind| *kind == m.kind).map(std::cmp::Reverse);
    let peak = stated.max_by_key(|m| (m.bytes, rank(m))).cloned().or_else(|| sampled(of));
    let peak = peak.ok_or_else(|| absent("no figure of device memory"))?;
    let (capacity, whose) = capacity(of, device).map_err(absent)?;
    let used = peak.bytes as f64;
    let words = format!("{} ({}) {:.2} GiB of {:.2} GiB ({whose})", peak.kind, peak.source, used / GIB, capacity / GIB);
    if used > capacity {
        return Err(error(format!("more than there is: {words}")));
    }
    Ok((1.0 - used / capacity, words))
}

/// Bytes of one device, and who says so: the driver's own count, where tprimat.lock has it, for boards report a little
/// less than their nominal size.
fn capacity(of: &Subject, device: &Device) -> Result<(f64, String), String> {
    let locked = of.cell.environment.facts.get("memory_bytes").and_then(|b| b.parse::<f64>().ok());
    match locked.filter(|bytes| bytes.is_finite() && *bytes > 0.0) {
        Some(bytes) => Ok((bytes, "tprimat.lock".to_owned())),
        None => device.sku().map(|sku| (sku.memory_bytes(), sku.source.clone())),
    }
}

/// The same as a number for a picture; none of a CPU, or of a device that contradicts itself.
pub(super) fn capacity_bytes(of: &Subject) -> Option<u64> {
    let device = of.gpu("device memory").ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and whole bytes")]
    capacity(of, device).ok().map(|(bytes, _)| bytes as u64)
}

/// What the sampler saw, where the trainers state nothing: it may have missed the very peak.
fn sampled(of: &Subject) -> Option<Memory> {
    let counted =
        of.summary.repeats.iter().filter(|r| r.status == RepeatStatus::Ok).filter_map(|r| r.telemetry.as_ref());
    let most = counted.max_by_key(|t| t.max_memory_used_bytes)?;
    let bytes = most.max_memory_used_bytes.filter(|bytes| *bytes > 0)?;
    Some(Memory { kind: "sampled device_used".to_owned(), source: most.source.clone(), bytes })
}
