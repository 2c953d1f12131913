//! The device that a job runs on: found or refused, never replaced by another; its name and its
//! memory.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tch::{Cuda, Device, TchError, Tensor, kind::Element};
use tprimat_job::Vendor;

use crate::{shim, stop::Stop};

/// Opens the vendor's device with this number among the visible ones, and makes it the current one.
/// To be called before anything else of libtorch: the GPU backend registers itself when its library
/// is loaded, and the first question about GPUs fixes the answer.
pub fn open(vendor: Vendor, number: usize) -> Result<Device, Stop> {
    let library = match vendor {
        Vendor::Cpu => return Ok(Device::Cpu),
        Vendor::Nvd => "libtorch_cuda.so",
        Vendor::Amd => "libtorch_hip.so",
    };
    let refuse =
        |why: String| Stop::Refused(format!("{why}; this trainer does not fall back to the CPU"));
    // The linker drops this library, as no symbol of it is named: only its initialisers are wanted.
    // SAFETY: the initialisers of PyTorch's own backend, on the main thread, before any other use
    // of libtorch.
    match unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(loaded) => std::mem::forget(loaded),
        Err(error) => {
            return Err(refuse(format!(
                "this PyTorch has no usable {library} ({error})"
            )));
        }
    }
    if !Cuda::is_available() {
        return Err(refuse(format!(
            "{library} was loaded but sees no device ({} counted)",
            Cuda::device_count()
        )));
    }
    let visible = Cuda::device_count().max(0) as usize;
    if number >= visible {
        return Err(refuse(format!(
            "the job needs device {number}, and {visible} can be seen, counted from 0"
        )));
    }
    shim::set_device(number as i8)?;
    Ok(Device::Cuda(number))
}

/// Gives each of several ranks on a CPU its share of the cores, unless the environment says how
/// many threads it has.
pub fn share_cores(device: Device, ranks: usize) {
    if device == Device::Cpu && std::env::var_os("OMP_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        tch::set_num_threads((cores / ranks).max(1) as i32);
    }
}

/// Sends values to the device, without waiting for what is queued there.
pub fn send<T: Element>(values: &[T], device: Device) -> Result<Tensor, TchError> {
    let host = Tensor::f_from_slice(values)?;
    match device {
        Device::Cuda(index) => shim::send(&host, index as i8),
        _ => Ok(host),
    }
}

/// `cpu` or `cuda` (which ROCm builds of PyTorch say as well), model name, count in use.
pub fn describe(device: Device, count: usize) -> serde_json::Value {
    let (kind, name) = match device {
        Device::Cpu => ("cpu", cpu_name()),
        _ => ("cuda", nvidia_name()),
    };
    let mut line = serde_json::json!({ "type": kind, "count": count });
    if let Some(name) = name {
        line["name"] = name.into();
    }
    line
}

/// A memory figure with what it counts and who counted it.
pub struct Memory {
    pub bytes: u64,
    pub kind: &'static str,
    pub source: &'static str,
}

/// The peak so far: of PyTorch's allocator on a GPU, of the process's resident set on the CPU.
pub fn peak_memory(device: Device) -> Result<Option<Memory>, TchError> {
    match device {
        Device::Cuda(index) => {
            let bytes = shim::peak_allocated(index as i8)?;
            Ok(Some(Memory {
                bytes,
                kind: "peak_allocated",
                source: "torch",
            }))
        }
        _ => Ok(peak_rss().map(|bytes| Memory {
            bytes,
            kind: "peak_rss",
            source: "proc",
        })),
    }
}

fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn cpu_name() -> Option<String> {
    let info = std::fs::read_to_string(Path::new("/proc/cpuinfo")).ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("model name"))?;
    Some(line.trim_start().strip_prefix(':')?.trim().to_owned())
}

/// Name of the first visible NVIDIA GPU; `None` where NVML is missing or the choice is not plain.
fn nvidia_name() -> Option<String> {
    nvidia().map(|(name, _)| name)
}

/// The first visible NVIDIA GPU's name and its driver's version; `None` as above.
pub fn nvidia() -> Option<(String, String)> {
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let first = visible.as_deref().map_or("0", |list| {
        list.split(',').next().unwrap_or_default().trim()
    });
    let device = match first.parse() {
        Ok(index) => nvml.device_by_index(index),
        Err(_) => nvml.device_by_uuid(first),
    };
    Some((device.ok()?.name().ok()?, nvml.sys_driver_version().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_peak() {
        let memory = peak_memory(Device::Cpu).unwrap().unwrap();
        assert!(memory.bytes > 1 << 20 && memory.kind == "peak_rss");
    }

    #[test]
    fn a_missing_gpu_is_refused_and_says_why() {
        if let Err(stop) = open(Vendor::Amd, 0) {
            assert!(stop.to_string().contains("libtorch_hip.so"), "{stop}");
            assert_eq!(stop.exit_code(), 2);
        }
    }
}
