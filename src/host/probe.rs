//! What this host is, in milliseconds and without running anything.
//!
//! NVIDIA through NVML, opened at run time: no library means no NVIDIA GPU. AMD through what the
//! amdgpu driver shows in /sys (written from the kernel's documentation; not tried on such a host).
//! What cannot be read is `None`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nvml_wrapper::error::NvmlError;
use serde::Serialize;

use super::{
    lock::{Fact, Section},
    telemetry::open_nvml,
};
use crate::job::Vendor;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostFacts {
    pub hostname: Option<String>,
    pub cpu: CpuFacts,
    pub nvd: Vec<GpuFacts>,
    pub amd: Vec<GpuFacts>,
    /// What kept a device from being read, for `doctor`.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CpuFacts {
    pub model: Option<String>,
    /// Cores that this process may use: affinity and container limits count.
    pub cores: Option<u64>,
    pub memory_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuFacts {
    /// The SKU, as its driver names it.
    pub name: Option<String>,
    pub uuid: Option<String>,
    pub memory_bytes: Option<u64>,
    /// The limit in force.
    pub power_cap_watts: Option<u64>,
    /// `none`, `mig`, or AMD's compute and memory partition (`SPX/NPS1`).
    pub partition: Option<String>,
    pub driver: Option<String>,
    /// `/dev/dri/renderD128`, of AMD's: a container that gets this one sees this GPU.
    #[serde(skip)]
    pub render_node: Option<PathBuf>,
}

#[must_use]
pub fn probe() -> HostFacts {
    let mut notes = Vec::new();
    let nvd = nvidia(&mut notes);
    HostFacts {
        hostname: nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok()),
        cpu: cpu(&read("/proc/cpuinfo"), &read("/proc/meminfo")),
        nvd,
        amd: if Path::new("/dev/kfd").exists() {
            amd(Path::new("/sys"))
        } else {
            Vec::new()
        },
        notes,
    }
}

/// The variables by which a process is shown some of a vendor's GPUs, the one that Slurm itself
/// sets first. Each counts among the devices that those before it leave.
#[must_use]
pub fn visibility(vendor: Vendor) -> &'static [&'static str] {
    match vendor {
        Vendor::Cpu => &[],
        Vendor::Nvd => &["CUDA_VISIBLE_DEVICES"],
        Vendor::Amd => &["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"],
    }
}

impl HostFacts {
    /// A vendor's GPUs, of which a CPU has none.
    fn gpus(&self, vendor: Vendor) -> &[GpuFacts] {
        match vendor {
            Vendor::Cpu => &[],
            Vendor::Nvd => &self.nvd,
            Vendor::Amd => &self.amd,
        }
    }

    /// The vendors whose runs this host can take, and with how many devices. A host's cores are one
    /// device.
    #[must_use]
    pub fn platforms(&self) -> Vec<(Vendor, usize)> {
        [
            (Vendor::Cpu, 1),
            (Vendor::Nvd, self.nvd.len()),
            (Vendor::Amd, self.amd.len()),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect()
    }

    /// Names of the device locks, in the order of the vendor's own ids.
    #[must_use]
    pub fn device_locks(&self, vendor: Vendor) -> Vec<String> {
        if vendor == Vendor::Cpu {
            return vec!["cpu".into()];
        }
        let name = |(index, gpu): (usize, &GpuFacts)| match &gpu.uuid {
            Some(uuid) => format!("gpu-{}", uuid.to_lowercase().trim_start_matches("gpu-")),
            None => format!("gpu-{}-{index}", vendor.name()),
        };
        self.gpus(vendor).iter().enumerate().map(name).collect()
    }

    /// The indices of a vendor's GPUs that this process may use: those that the variables of
    /// [`visibility`] leave, as a batch system sets them; all where they are unset.
    #[must_use]
    pub fn usable(&self, vendor: Vendor, variable: &dyn Fn(&str) -> Option<String>) -> Vec<usize> {
        let gpus = self.gpus(vendor);
        let mut left: Vec<usize> = (0..gpus.len()).collect();
        for visible in visibility(vendor).iter().filter_map(|name| variable(name)) {
            let find = |name: &str| match name.parse::<usize>() {
                Ok(index) => left.get(index).copied(),
                Err(_) => left.iter().copied().find(|index| {
                    gpus[*index]
                        .uuid
                        .as_deref()
                        .is_some_and(|u| !name.is_empty() && u.starts_with(name))
                }),
            };
            // As CUDA reads it: the list ends at the first name that means nothing.
            left = visible
                .split(',')
                .map(|name| find(name.trim()))
                .take_while(Option::is_some)
                .flatten()
                .collect();
        }
        left
    }

    /// What a platform's numbers depend on, for tprimat.lock; without recipes. `None`: no such
    /// device here.
    #[must_use]
    pub fn section(&self, vendor: Vendor) -> Option<Section> {
        if vendor == Vendor::Cpu {
            return Some(self.cpu.section());
        }
        let gpus = self.gpus(vendor);
        let text = |fact: fn(&GpuFacts) -> &Option<String>| {
            common(gpus, |gpu| fact(gpu).clone().map(Fact::Text))
        };
        let mut section = Section::default();
        section.set("vendor", Some(vendor.name().into()));
        section.set("count", Some(number(gpus.len() as u64)));
        section.set("accelerator", text(|gpu| &gpu.name));
        let memory = common(gpus, |gpu| gpu.memory_bytes.map(number));
        section.set("memory_bytes", memory);
        let power = common(gpus, |gpu| gpu.power_cap_watts.map(number));
        section.set("power_cap_watts", power);
        section.set("partition", text(|gpu| &gpu.partition));
        section.set("driver", text(|gpu| &gpu.driver));
        (!gpus.is_empty()).then_some(section)
    }
}

impl CpuFacts {
    /// Not its memory: the kernel reports a few pages more or less after every update.
    fn section(&self) -> Section {
        let mut section = Section::default();
        section.set("vendor", Some(Vendor::Cpu.name().into()));
        section.set("count", Some(number(1)));
        section.set("accelerator", self.model.clone().map(Fact::Text));
        section.set("cores", self.cores.map(number));
        section
    }
}

fn number(value: u64) -> Fact {
    Fact::Number(i64::try_from(value).unwrap_or(i64::MAX))
}

/// The value that all devices share, or all values there are (`A + B`); `None` if any cannot be
/// read.
fn common(gpus: &[GpuFacts], fact: impl Fn(&GpuFacts) -> Option<Fact>) -> Option<Fact> {
    let mut facts = gpus.iter().map(fact).collect::<Option<Vec<Fact>>>()?;
    facts.sort();
    facts.dedup();
    match &facts[..] {
        [one] => Some(one.clone()),
        [] => None,
        several => Some(Fact::Text(
            several
                .iter()
                .map(Fact::to_string)
                .collect::<Vec<_>>()
                .join(" + "),
        )),
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The trimmed text of a small file, if it has any.
fn line(path: impl AsRef<Path>) -> Option<String> {
    Some(read(path).trim().to_owned()).filter(|text| !text.is_empty())
}

fn cpu(cpuinfo: &str, meminfo: &str) -> CpuFacts {
    let value = |text: &str, name: &str| {
        let line = text
            .lines()
            .find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let kilobytes = value(meminfo, "MemTotal")
        .and_then(|text| text.strip_suffix(" kB")?.trim().parse::<u64>().ok());
    CpuFacts {
        model: value(cpuinfo, "model name"),
        cores: std::thread::available_parallelism()
            .ok()
            .map(|cores| cores.get() as u64),
        memory_bytes: kilobytes.and_then(|kb| kb.checked_mul(1024)),
    }
}

fn nvidia(notes: &mut Vec<String>) -> Vec<GpuFacts> {
    let nvml = match open_nvml() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound) => return Vec::new(),
        Err(error) => {
            notes.push(format!("NVML is installed and does not answer: {error}"));
            return Vec::new();
        }
    };
    let driver = nvml.sys_driver_version().ok();
    let mut gpus = Vec::new();
    for index in 0..gpu_count(nvml.device_count(), notes) {
        match nvml.device_by_index(index) {
            Ok(device) => gpus.push(GpuFacts {
                name: device.name().ok(),
                uuid: device.uuid().ok(),
                memory_bytes: device.memory_info().ok().map(|memory| memory.total),
                power_cap_watts: device
                    .enforced_power_limit()
                    .ok()
                    .map(|milliwatts| u64::from(milliwatts) / 1000),
                partition: match device.mig_mode() {
                    Ok(mode) => Some(if mode.current == 0 { "none" } else { "mig" }.into()),
                    Err(NvmlError::NotSupported) => Some("none".into()),
                    Err(_) => None,
                },
                driver: driver.clone(),
                render_node: None,
            }),
            Err(error) => notes.push(format!("GPU {index} cannot be read: {error}")),
        }
    }
    gpus
}

/// No answer is no count of 0: it is noted.
fn gpu_count(answer: Result<u32, NvmlError>, notes: &mut Vec<String>) -> u32 {
    answer.unwrap_or_else(|error| {
        notes.push(format!(
            "NVML does not say how many GPUs there are: {error}"
        ));
        0
    })
}

fn amd(sys: &Path) -> Vec<GpuFacts> {
    amd_cards(sys).into_iter().map(|(_, gpu)| gpu).collect()
}

/// Display cards of the amdgpu driver that KFD, the compute driver, knows as well, each with its
/// folder in /sys.
pub(super) fn amd_cards(sys: &Path) -> Vec<(PathBuf, GpuFacts)> {
    let driver = line(sys.join("module/amdgpu/version"));
    let mut cards: Vec<(u32, PathBuf)> = fs::read_dir(sys.join("class/drm"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            // `card0`, not its connectors (`card0-DP-1`).
            let number = entry
                .file_name()
                .to_str()?
                .strip_prefix("card")?
                .parse()
                .ok()?;
            Some((number, entry.path().join("device")))
        })
        .filter(|(_, device)| line(device.join("vendor")).as_deref() == Some("0x1002"))
        .collect();
    cards.sort();
    let compute = kfd_nodes(sys);
    cards
        .into_iter()
        .map(|(_, device)| {
            let gpu = amd_gpu(&device, driver.clone());
            (device, gpu)
        })
        .filter(|(_, gpu)| match &gpu.uuid {
            // A card without an id of its own is no accelerator of the kinds that have one.
            Some(id) => compute.iter().any(|(_, known)| known == id),
            None => compute.is_empty(),
        })
        .collect()
}

/// Ids of the nodes that compute (CPUs are nodes too, with no SIMD units), as /sys/class/drm writes
/// them.
pub(super) fn kfd_nodes(sys: &Path) -> Vec<(PathBuf, String)> {
    let nodes = fs::read_dir(sys.join("class/kfd/kfd/topology/nodes"))
        .into_iter()
        .flatten()
        .flatten();
    nodes
        .filter_map(|node| {
            let properties = read(node.path().join("properties"));
            let value = |name: &str| {
                properties.lines().find_map(|line| {
                    line.strip_prefix(name)?
                        .strip_prefix(' ')?
                        .parse::<u64>()
                        .ok()
                })
            };
            value("simd_count").filter(|&count| count > 0)?;
            value("unique_id")
                .filter(|&id| id != 0)
                .map(|id| (node.path(), format!("{id:016x}")))
        })
        .collect()
}

fn amd_gpu(device: &Path, driver: Option<String>) -> GpuFacts {
    let parsed = |path: PathBuf| line(path)?.parse::<u64>().ok();
    let hwmon = fs::read_dir(device.join("hwmon"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let partition = match (
        line(device.join("current_compute_partition")),
        line(device.join("current_memory_partition")),
    ) {
        (Some(compute), Some(memory)) => Some(format!("{compute}/{memory}")),
        (Some(one), None) | (None, Some(one)) => Some(one),
        (None, None) => None,
    };
    GpuFacts {
        // Without a product name, the exact SKU is not known, but its PCI id is.
        name: line(device.join("product_name"))
            .or_else(|| Some(format!("AMD {}", line(device.join("device"))?))),
        uuid: line(device.join("unique_id")),
        memory_bytes: parsed(device.join("mem_info_vram_total")),
        power_cap_watts: hwmon
            .filter_map(|path| parsed(path.join("power1_cap")))
            .next()
            .map(|microwatts| microwatts / 1_000_000),
        partition,
        driver,
        render_node: fs::read_dir(device.join("drm"))
            .into_iter()
            .flatten()
            .flatten()
            .find_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                name.starts_with("renderD")
                    .then(|| Path::new("/dev/dri").join(name))
            }),
    }
}

#[cfg(test)]
mod tests;
