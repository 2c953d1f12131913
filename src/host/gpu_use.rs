//! Who uses the GPUs of this host now, as their drivers tell: NVML, or what the kernel's compute
//! driver of AMD shows in /sys (written from the kernel's documentation; not tried on such a host).

use std::{
    fs,
    path::{Path, PathBuf},
};

use nvml_wrapper::{Device, enums::device::UsedGpuMemory, struct_wrappers::device::ProcessInfo};

use super::{
    probe::{amd_cards, kfd_nodes},
    telemetry::open_nvml,
};
use crate::job::Vendor;

/// What is taken of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// Memory that is not allocated; `None`: the driver does not say it.
    pub free_bytes: Option<u64>,
    /// The processes that the driver lists, those of all users; `None`: it lists none because it
    /// does not answer.
    pub processes: Option<Vec<GpuProcess>>,
    /// `/dev/nvidia0`, `/dev/dri/renderD128`.
    pub device_file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    pub pid: u32,
    pub memory_bytes: Option<u64>,
}

/// The use of a vendor's GPUs, in the order of [`super::HostFacts`].
#[must_use]
pub fn gpu_use(vendor: Vendor) -> Vec<GpuUse> {
    match vendor {
        Vendor::Cpu => Vec::new(),
        Vendor::Nvd => nvidia().unwrap_or_default(),
        Vendor::Amd => amd(Path::new("/sys")),
    }
}

/// Does a GPU of this vendor sit in the host, with or without a driver? Read from the PCI bus, which
/// containers see as well.
#[must_use]
pub fn has_gpu_hardware(vendor: Vendor) -> bool {
    has_hardware(Path::new("/sys"), vendor)
}

fn has_hardware(sys: &Path, vendor: Vendor) -> bool {
    let number = match vendor {
        Vendor::Cpu => return true,
        Vendor::Nvd => "0x10de",
        Vendor::Amd => "0x1002",
    };
    let devices = fs::read_dir(sys.join("bus/pci/devices"));
    devices.into_iter().flatten().flatten().any(|device| {
        let text = |name: &str| fs::read_to_string(device.path().join(name)).unwrap_or_default();
        // AMD makes bridges and processors with a display of their own as well, so only the classes
        // of accelerators count there.
        let classes: &[&str] = match vendor {
            Vendor::Amd => &["0x0380", "0x12"],
            _ => &["0x03"],
        };
        let class = text("class");
        let is_gpu = classes.iter().any(|known| class.trim().starts_with(known));
        is_gpu && text("vendor").trim() == number
    })
}

fn nvidia() -> Option<Vec<GpuUse>> {
    let nvml = open_nvml().ok()?;
    let count = nvml.device_count().ok()?;
    let devices = (0..count).filter_map(|index| nvml.device_by_index(index).ok());
    Some(devices.map(|device| nvidia_gpu(&device)).collect())
}

fn nvidia_gpu(device: &Device<'_>) -> GpuUse {
    let compute = device.running_compute_processes();
    let mut processes: Option<Vec<GpuProcess>> =
        compute.ok().map(|all| all.iter().map(process).collect());
    // A process that draws as well is in both lists.
    for drawing in device.running_graphics_processes().into_iter().flatten() {
        let known = processes.get_or_insert_default();
        if known.iter().all(|process| process.pid != drawing.pid) {
            known.push(process(&drawing));
        }
    }
    GpuUse {
        free_bytes: device.memory_info().ok().map(|memory| memory.free),
        processes,
        device_file: device
            .minor_number()
            .ok()
            .map(|minor| format!("/dev/nvidia{minor}").into()),
    }
}

fn process(listed: &ProcessInfo) -> GpuProcess {
    GpuProcess {
        pid: listed.pid,
        memory_bytes: match listed.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    }
}

fn amd(sys: &Path) -> Vec<GpuUse> {
    let nodes = kfd_nodes(sys);
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let cards = amd_cards(sys).into_iter().map(|(device, facts)| {
        let node = nodes
            .iter()
            .find(|(_, id)| Some(id) == facts.uuid.as_ref())
            .map(|(node, _)| node);
        let used = number(device.join("mem_info_vram_used"));
        GpuUse {
            free_bytes: facts
                .memory_bytes
                .zip(used)
                .map(|(all, used)| all.saturating_sub(used)),
            processes: node
                .and_then(|node| number(node.join("gpu_id")))
                .and_then(|id| kfd_processes(sys, id)),
            device_file: facts.render_node,
        }
    });
    cards.collect()
}

/// Processes that have memory on the GPU of this number. Each process of ROCm opens all GPUs, so an
/// open device file alone tells little.
fn kfd_processes(sys: &Path, gpu: u64) -> Option<Vec<GpuProcess>> {
    let folders = fs::read_dir(sys.join("class/kfd/kfd/proc")).ok()?;
    let mut found: Vec<GpuProcess> = folders
        .flatten()
        .filter_map(|folder| {
            let pid = folder.file_name().to_str()?.parse().ok()?;
            let used = fs::read_to_string(folder.path().join(format!("vram_{gpu}"))).ok()?;
            let bytes: u64 = used.trim().parse().ok()?;
            (bytes > 0).then_some(GpuProcess {
                pid,
                memory_bytes: Some(bytes),
            })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    #[test]
    fn amd_processes_are_read_from_sys_with_the_memory_that_each_has() {
        let sys = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            write_atomically(&sys.path().join(path), text.as_bytes(), Durability::Plain).unwrap();
        };
        for (card, id, node, gpu) in [("card0", "0a", 1, 111), ("card1", "0b", 2, 222)] {
            let (device, id) = (format!("class/drm/{card}/device"), format!("{id:0>16}"));
            put(&format!("{device}/vendor"), "0x1002\n");
            put(&format!("{device}/unique_id"), &id);
            put(&format!("{device}/mem_info_vram_total"), "1000\n");
            put(&format!("{device}/mem_info_vram_used"), "300\n");
            let node = format!("class/kfd/kfd/topology/nodes/{node}");
            let unique = u64::from_str_radix(&id, 16).unwrap();
            let properties = format!("simd_count 4\nunique_id {unique}\n");
            put(&format!("{node}/properties"), &properties);
            put(&format!("{node}/gpu_id"), &format!("{gpu}\n"));
        }
        assert_eq!(
            amd(sys.path())[0].processes,
            None,
            "this kernel does not say it"
        );
        put("class/kfd/kfd/proc/4711/vram_111", "250\n");
        put("class/kfd/kfd/proc/4711/vram_222", "0\n");
        let found = amd(sys.path());
        assert_eq!(found[0].free_bytes, Some(700));
        let one = GpuProcess {
            pid: 4711,
            memory_bytes: Some(250),
        };
        assert_eq!(found[0].processes, Some(vec![one]));
        assert_eq!(
            found[1].processes,
            Some(Vec::new()),
            "it is open, and unused"
        );
    }

    #[test]
    fn a_gpu_without_a_driver_is_seen_on_the_bus() {
        let sys = tempfile::tempdir().unwrap();
        let put = |device: &str, vendor: &str, class: &str| {
            let folder = sys.path().join("bus/pci/devices").join(device);
            for (name, text) in [("vendor", vendor), ("class", class)] {
                write_atomically(&folder.join(name), text.as_bytes(), Durability::Plain).unwrap();
            }
        };
        put("0000:00:00.0", "0x1002\n", "0x060000\n");
        assert!(!has_hardware(sys.path(), Vendor::Amd), "a bridge of AMD's");
        put("0000:c1:00.0", "0x10de\n", "0x030200\n");
        assert!(has_hardware(sys.path(), Vendor::Nvd));
        put("0000:c2:00.0", "0x1002\n", "0x120000\n");
        assert!(has_hardware(sys.path(), Vendor::Amd));
    }
}
