//! Which accelerator a cell ran on, and what its maker says of it (`accelerators.toml`).

use std::{collections::BTreeMap, sync::LazyLock};

use crate::results::{GIB, Reason};
use serde::Deserialize;
use tprimat_job::{Vendor, vendor_named, vendor_names};

use super::{Catalogue, CellInput, Summary, codes::DEVICE_NOT_NAMED};

/// One SKU. Units: `accelerators.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    pub names: Vec<String>,
    pub vendor: Vendor,
    pub bf16: f64,
    pub fp8: Option<f64>,
    pub fp4: Option<f64>,
    pub tf32: Option<f64>,
    /// None where the maker states the power of more than this device.
    pub tdp_watts: Option<f64>,
    pub memory_gib: f64,
    pub source: String,
    pub url: String,
}

impl Accelerator {
    /// Whether its matrix units read this format.
    #[must_use]
    pub fn computes(&self, precision: &str) -> bool {
        match precision {
            "fp8" => self.fp8.is_some(),
            // The cards that have scaled blocks of 8 bits are those that have some of 4 bits.
            "mxfp8" | "mxfp4" => self.fp4.is_some(),
            "nvfp4" => self.fp4.is_some() && self.vendor == Vendor::Nvd,
            _ => true,
        }
    }
    #[must_use]
    pub fn memory_bytes(&self) -> f64 {
        self.memory_gib * GIB
    }
}

static TABLE: LazyLock<Vec<Accelerator>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        accelerator: Vec<Accelerator>,
    }
    let file: File = toml::from_str(include_str!("accelerators.toml")).expect("a test reads it");
    file.accelerator
});

/// The SKU of this whole name; a MIG slice or an "H200 NVL" is not its namesake.
#[must_use]
pub fn accelerator(name: &str) -> Option<&'static Accelerator> {
    let words: Vec<String> = name.split_whitespace().map(str::to_lowercase).collect();
    let vendor = words.first().and_then(|w| vendor_named(w));
    let bare = words[usize::from(vendor.is_some())..].join(" ");
    TABLE
        .iter()
        .find(|a| a.names.contains(&bare) && vendor.is_none_or(|v| v == a.vendor))
}

/// The vendor of a platform on which this device would be: `Cpu` for any maker's processor, also
/// where its name begins with a GPU vendor's ("AMD EPYC").
#[must_use]
pub fn device_vendor(name: &str) -> Option<Vendor> {
    let words: Vec<String> = name
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    if let Some(sku) = accelerator(name) {
        return Some(sku.vendor);
    }
    if words.iter().any(|word| PROCESSORS.contains(&&**word)) {
        return Some(Vendor::Cpu);
    }
    words.first().and_then(|word| vendor_named(word))
}

/// Words that only names of CPUs have.
const PROCESSORS: [&str; 12] = [
    "altra",
    "core",
    "cpu",
    "epyc",
    "graviton",
    "neoverse",
    "opteron",
    "power9",
    "processor",
    "ryzen",
    "threadripper",
    "xeon",
];

/// The SKUs that a short name may mean, the usual one first: `H100` is the SXM module or the PCIe
/// card.
#[must_use]
pub fn accelerators_like(name: &str) -> Vec<&'static Accelerator> {
    if let Some(exact) = accelerator(name) {
        return vec![exact];
    }
    let of = |text: &str| -> Vec<String> {
        text.to_lowercase()
            .split(|c: char| !c.is_alphanumeric())
            .map(str::to_owned)
            .collect()
    };
    let mut words = of(name);
    words.retain(|word| vendor_named(word).is_none() && !matches!(word.as_str(), "" | "instinct"));
    if !words
        .iter()
        .any(|word| word.chars().any(|c| c.is_ascii_digit()))
    {
        return Vec::new();
    }
    let is_meant = |known: &String| words.iter().all(|word| of(known).contains(word));
    TABLE
        .iter()
        .filter(|a| a.names.iter().any(is_meant))
        .collect()
}

/// Those of a vendor; all where it is not known.
pub(super) fn accelerators_of(
    vendor: Option<Vendor>,
) -> impl Iterator<Item = &'static Accelerator> {
    TABLE
        .iter()
        .filter(move |sku| vendor.is_none_or(|vendor| sku.vendor == vendor))
}

/// The names of all SKUs, in small letters and without the maker's.
pub fn accelerator_names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|a| &a.names).map(String::as_str)
}

/// What a cell's runs were on.
#[derive(Clone, Debug)]
pub struct Device<'a> {
    platform: &'a str,
    vendor: Option<Vendor>,
    pub name: Option<&'a str>,
    is_cpu: bool,
    /// MIG or AMD's partition mode, where the accelerators are not whole.
    partition: Option<&'a str>,
    /// Bytes, as tprimat.lock has them.
    memory: Option<f64>,
}

impl<'a> Device<'a> {
    /// A device of this name, on a platform whose id may tell the vendor.
    #[must_use]
    pub fn named(platform: &'a str, name: Option<&'a str>) -> Self {
        let first_word = name
            .and_then(|n| n.split_whitespace().next())
            .map(str::to_lowercase);
        let vendor = vendor_named(platform).or_else(|| vendor_named(&first_word?));
        Self {
            platform,
            vendor,
            name,
            is_cpu: vendor == Some(Vendor::Cpu),
            partition: None,
            memory: None,
        }
    }

    /// The device that the log names, else that of tprimat.lock. `Err`: what is known of it
    /// contradicts itself.
    pub fn of(
        cell: &'a CellInput,
        summary: &'a Summary,
        catalogue: &Catalogue,
    ) -> Result<Self, Reason> {
        let platform = cell.platform.as_str();
        let fact = |name: &str| cell.environment.facts.get(name).map(String::as_str);
        let declared = catalogue
            .vendors
            .get(platform)
            .copied()
            .or_else(|| vendor_named(platform));
        let told = summary.device.as_ref();
        let logged = told
            .and_then(|d| d.name.as_deref())
            .filter(|name| !name.trim().is_empty());
        let on_cpu = told.is_some_and(|d| d.r#type == "cpu")
            || logged.and_then(device_vendor) == Some(Vendor::Cpu);
        let is_cpu = on_cpu || declared == Some(Vendor::Cpu);
        // A CPU's name may begin with a GPU vendor's: "AMD EPYC".
        let locked = if is_cpu { None } else { fact("accelerator") };
        let name = logged.or(locked);
        let sku = name.and_then(accelerator);
        let seen = match sku {
            Some(sku) => Some(sku.vendor),
            None if is_cpu => Some(Vendor::Cpu),
            None => Self::named("", name).vendor,
        };
        match (
            declared,
            seen,
            logged.and_then(accelerator),
            locked.and_then(accelerator),
        ) {
            (Some(Vendor::Nvd | Vendor::Amd), ..) if on_cpu => {
                let text =
                    format!("the platform is {platform}, but the log says that it ran on a CPU");
                return Err(Reason::excludes("log_says_cpu", text));
            }
            (Some(declared), Some(seen), ..) if declared != seen => {
                let device = name.unwrap_or_default();
                let text = format!("the platform is {platform}, but the device is \"{device}\"");
                return Err(Reason::excludes("other_vendor", text));
            }
            (.., Some(a), Some(b)) if !std::ptr::eq(a, b) => {
                let [logged, locked] = [logged, locked].map(Option::unwrap_or_default);
                let text = format!("the log names \"{logged}\", and tprimat.lock \"{locked}\"");
                return Err(Reason::excludes("other_device_in_lock", text));
            }
            _ => {}
        }
        let partition = fact("partition").filter(|mode| !is_whole(mode));
        let memory = fact("memory_bytes").and_then(|bytes| bytes.parse().ok());
        Ok(Self {
            platform,
            vendor: declared.or(seen),
            name,
            is_cpu,
            partition,
            memory,
        })
    }

    pub(super) fn vendor(&self) -> Option<Vendor> {
        self.vendor
    }

    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.is_cpu
    }

    /// What the configuration states for this platform: under its id, else under one of its
    /// vendor's names.
    #[must_use]
    pub fn stated<'t, T>(&self, table: &'t BTreeMap<String, T>) -> Option<&'t T> {
        self.names().find_map(|name| table.get(name))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.platform)
            .chain(self.vendor.map_or(&[][..], vendor_names).iter().copied())
    }

    /// The whole accelerator, or why its maker's figures do not hold here.
    pub fn sku(&self) -> Result<&'static Accelerator, Reason> {
        let Some(name) = self.name else {
            let text = "the log does not name the device";
            return Err(Reason::detail(DEVICE_NOT_NAMED, text));
        };
        if let Some(mode) = self.partition {
            let text =
                format!("\"{name}\" is partitioned ({mode}): a part does less than the whole");
            return Err(Reason::detail("partitioned", text));
        }
        let sku = accelerator(name).ok_or_else(|| {
            let text = format!("no datasheet is known for \"{name}\"");
            Reason::detail("no_datasheet", text)
        })?;
        if name.to_lowercase().ends_with(" vf")
            && self
                .memory
                .is_none_or(|bytes| bytes < WHOLE * sku.memory_bytes())
        {
            let text = format!(
                "\"{name}\" is a virtual function, and tprimat.lock does not show that it has the memory of a whole device"
            );
            return Err(Reason::detail("virtual_function", text));
        }
        Ok(sku)
    }
}

/// Share of the memory on the datasheet from which on a device is whole: drivers keep some of it
/// for themselves.
const WHOLE: f64 = 0.9;

/// `none` (NVIDIA without MIG) or AMD's SPX, in which the device is one.
fn is_whole(mode: &str) -> bool {
    let mode = mode.to_lowercase();
    mode == "none" || mode.split('/').next() == Some("spx")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_data_file_is_sound() {
        let mut names = BTreeSet::new();
        for sku in TABLE.iter() {
            let what = &sku.names;
            assert!(
                !what.is_empty() && !sku.source.is_empty() && sku.url.starts_with("https://"),
                "{what:?}"
            );
            for name in what {
                assert!(names.insert(name), "{name} stands twice");
                let bare = name
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" ")
                    .to_lowercase();
                assert!(
                    *name == bare && vendor_named(name.split(' ').next().unwrap()).is_none(),
                    "{name}"
                );
                assert!(!name.contains("mig"), "{name} is not whole");
            }
            // Dense: FP8 is twice bf16 and TF32 half of it, on every device so far; sparse figures
            // are double. FP4 is two to four times FP8.
            assert!(
                sku.fp8
                    .is_none_or(|fp8| (fp8 / sku.bf16 - 2.0).abs() < 0.03),
                "{what:?}"
            );
            assert!(
                sku.tf32
                    .is_none_or(|tf32| (tf32 / sku.bf16 - 0.5).abs() < 0.01),
                "{what:?}"
            );
            let times_fp8 = sku.fp4.zip(sku.fp8).map(|(fp4, fp8)| fp4 / fp8);
            assert!(
                times_fp8.is_none_or(|times| (1.9..4.1).contains(&times)),
                "{what:?}"
            );
            assert!((100.0..3000.0).contains(&sku.bf16), "{what:?}");
            assert!(
                sku.tdp_watts
                    .is_none_or(|watts| (200.0..2000.0).contains(&watts)),
                "{what:?}"
            );
            assert!((24.0..512.0).contains(&sku.memory_gib), "{what:?}");
        }
        assert!(names.len() >= 10);
    }

    #[test]
    fn short_names_mean_the_usual_module_first() {
        let bf16 = |name: &str| {
            accelerators_like(name)
                .iter()
                .map(|a| a.bf16)
                .collect::<Vec<_>>()
        };
        assert_eq!(bf16("H100"), [989.4, 756.0, 835.5]);
        assert_eq!(bf16("nvidia h100 pcie"), [756.0]);
        assert_eq!(bf16("MI300X"), [1307.4]);
        assert_eq!(
            (bf16("TPU v5"), bf16("NVIDIA"), bf16("")),
            (vec![], vec![], vec![])
        );
    }

    #[test]
    fn devices_are_known_by_their_whole_name() {
        let tdp = |name: &str| accelerator(name).and_then(|a| a.tdp_watts);
        assert_eq!(tdp("NVIDIA H100 80GB HBM3"), Some(700.0));
        assert_eq!(tdp("NVIDIA  H100 PCIe"), Some(350.0));
        assert_eq!(tdp("A100-SXM4-80GB"), Some(400.0));
        assert_eq!(
            (tdp("AMD Instinct MI300X"), tdp("AMD Instinct MI300X OAM")),
            (Some(750.0), Some(750.0))
        );
        let bf16 = |name: &str| accelerator(name).map(|a| a.bf16);
        for (name, peak) in [
            ("NVIDIA H100 NVL", 835.5),
            ("NVIDIA GH200 480GB", 989.5),
            ("NVIDIA L40S", 362.05),
            ("NVIDIA A100 80GB PCIe", 312.0),
            ("NVIDIA A100-PCIE-40GB", 312.0),
            ("AMD Instinct MI350X", 2306.9),
        ] {
            assert_eq!(bf16(name), Some(peak), "{name}");
        }
        for unknown in [
            "NVIDIA H200 NVL",
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "NVIDIA H20-3e",
            "AMD Instinct MI250X / MI250",
            "AMD H200",
            "AMD",
            "",
        ] {
            assert_eq!(bf16(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_virtual_function_is_whole_where_its_memory_is() {
        let device = |memory| Device {
            memory,
            ..Device::named("amd", Some("AMD Instinct MI300X VF"))
        };
        assert_eq!(
            device(Some(206_141_652_992.0)).sku().map(|sku| sku.bf16),
            Ok(1307.4)
        );
        for part in [None, Some(25_769_803_776.0)] {
            assert!(
                device(part)
                    .sku()
                    .is_err_and(|why| why.is("virtual_function")),
                "{part:?}"
            );
        }
    }
}
