//! What GPUs are known to have, as far as older result files state it: to tell a figure that is
//! another GPU's.

/// Part of a device's name, shader cores as such files count them, memory in GiB.
const GPUS: [(&str, u64, f64); 9] = [
    ("H100 PCIe", 14_592, 79.6),
    ("H100", 16_896, 79.6),
    ("H200", 16_896, 141.0),
    ("A100", 6_912, 79.6),
    ("MI300X", 19_456, 192.0),
    ("MI325X", 19_456, 256.0),
    ("MI355X", 16_384, 288.0),
    ("MI250X", 14_080, 64.0),
    ("B200", 18_944, 180.0),
];

fn known(device: &str) -> Option<&'static (&'static str, u64, f64)> {
    GPUS.iter().find(|(name, ..)| device.contains(name))
}

/// Why `cores` is not what `device` has, if so.
pub(super) fn wrong_cores(device: &str, cores: u64) -> Option<String> {
    let (name, right, _) = known(device).filter(|(_, right, _)| *right != cores)?;
    let owner = GPUS
        .iter()
        .find(|(_, of, _)| *of == cores)
        .map(|(owner, ..)| format!(", the {owner}'s figure"));
    Some(format!(
        "gpu_cores is {cores}{}; the {name} has {right}",
        owner.unwrap_or_default()
    ))
}

/// Why `total_gb`, in either unit, is not the memory of `device`, if it is that of another GPU.
pub(super) fn wrong_memory(device: &str, total_gb: f64) -> Option<String> {
    // A name that states its size, or a slice of a device, is no plain one.
    if device.to_uppercase().contains("MIG") || device.contains("64GB") {
        return None;
    }
    let (name, _, own) = known(device)?;
    let is_kin = |other: &str| other.starts_with("MI") == name.starts_with("MI");
    let is_of = |gib: f64| {
        [gib, gib * 1.073_741_824]
            .iter()
            .any(|size| (total_gb / size - 1.0).abs() < 0.02)
    };
    let (owner, ..) = GPUS
        .iter()
        .find(|(owner, _, gib)| is_kin(owner) && is_of(*gib))
        .filter(|_| !is_of(*own))?;
    Some(format!(
        "total_memory_gb is {total_gb}, the {owner}'s; the {name} has {own} GiB"
    ))
}

/// Does `total_gb` count decimal gigabytes of this device's memory (`Some(true)`), or GiB?
pub(super) fn is_decimal(device: &str, total_gb: f64) -> Option<bool> {
    let (.., gib) = known(device)?;
    let near = |value: f64| (total_gb / value - 1.0).abs() < 0.02;
    match (near(gib * 1.073_741_824), near(*gib)) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_another_gpu_is_told() {
        let told = wrong_cores("AMD Instinct MI300X", 16_896).unwrap();
        assert_eq!(
            told,
            "gpu_cores is 16896, the H100's figure; the MI300X has 19456"
        );
        assert_eq!(wrong_cores("NVIDIA H100 80GB HBM3", 16_896), None);
        assert_eq!(wrong_cores("Some Device", 1), None);
        let told = wrong_memory("NVIDIA H200", 85.018).unwrap();
        assert!(
            told.starts_with("total_memory_gb is 85.018, the H100"),
            "{told}"
        );
        for (device, total) in [
            ("NVIDIA H100 80GB HBM3", 85.018),
            ("NVIDIA H200", 139.8),
            ("NVIDIA H200", 150.1),
            ("Some Device", 85.0),
        ] {
            assert_eq!(wrong_memory(device, total), None, "{device}");
        }
    }

    #[test]
    fn the_unit_of_memory_shows_in_its_total() {
        assert_eq!(is_decimal("NVIDIA H100 80GB HBM3", 85.018), Some(true));
        assert_eq!(is_decimal("AMD Instinct MI300X", 206.142), Some(true));
        assert_eq!(is_decimal("AMD Instinct MI300X", 191.98), Some(false));
        assert_eq!(is_decimal("AMD Instinct MI300X", 12.0), None);
    }
}
