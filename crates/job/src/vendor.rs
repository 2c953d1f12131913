//! Whose accelerators a cell runs on, and what people call them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    #[default]
    Cpu,
    Nvd,
    Amd,
}

impl Vendor {
    /// What its devices are called in sentences.
    #[must_use]
    pub fn devices(self) -> &'static str {
        match self {
            Self::Cpu => "CPUs",
            Self::Nvd => "NVIDIA GPUs",
            Self::Amd => "AMD GPUs",
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Nvd => "nvd",
            Self::Amd => "amd",
        }
    }
}

/// The shipped platform id of each vendor first, then its aliases.
const VENDORS: [(Vendor, &[&str]); 3] = [
    (Vendor::Nvd, &["nvd", "nvidia", "cuda"]),
    (Vendor::Amd, &["amd", "rocm"]),
    (Vendor::Cpu, &["cpu"]),
];

/// The vendor that `name` stands for.
#[must_use]
pub fn vendor_named(name: &str) -> Option<Vendor> {
    // `NVIDIA` is what people write.
    let is_called = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    VENDORS
        .iter()
        .find(|(_, names)| is_called(names))
        .map(|(vendor, _)| *vendor)
}

/// The vendor's shipped platform id, then its aliases.
#[must_use]
pub fn vendor_names(vendor: Vendor) -> &'static [&'static str] {
    VENDORS
        .iter()
        .find(|(v, _)| *v == vendor)
        .map_or(&[], |(_, names)| names)
}
