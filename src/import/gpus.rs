//! How much memory GPUs are known to have, to tell whether an older result file counts in decimal
//! gigabytes.

/// Part of a device's name, memory in GiB.
const GPUS: [(&str, f64); 8] = [
    ("H100", 79.6),
    ("H200", 141.0),
    ("A100", 79.6),
    ("MI300X", 192.0),
    ("MI325X", 256.0),
    ("MI355X", 288.0),
    ("MI250X", 64.0),
    ("B200", 180.0),
];

/// Does `total_gb` count decimal gigabytes of this device's memory (`Some(true)`), or GiB?
pub(super) fn is_decimal(device: &str, total_gb: f64) -> Option<bool> {
    let (_, gib) = GPUS.iter().find(|(name, _)| device.contains(name))?;
    let near = |value: f64| (total_gb / value - 1.0).abs() < 0.02;
    match (near(gib * 1.073_741_824), near(*gib)) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    }
}
