//! NVIDIA GPUs through NVML, opened at run time.

use std::{sync::atomic::AtomicBool, time::Duration};

use nvml_wrapper::{
    Device, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{Clock, TemperatureSensor},
    error::NvmlError,
};

use super::{
    Source, Unavailable,
    processes::{IsOwn, Processes},
    timed,
};
use crate::results::Reading;

pub(super) const NAME: &str = "nvml";
const INTERVAL: Duration = Duration::from_secs(1);
/// Processes are looked at with every so many samples: one that computes stays for longer, and each
/// look reads /proc.
const LOOK_EVERY: u64 = 5;

/// The name without a version belongs to the development package, which few hosts have.
pub fn open() -> Result<Nvml, NvmlError> {
    Nvml::builder()
        .lib_path("libnvidia-ml.so.1".as_ref())
        .init()
        .or_else(|error| match error {
            NvmlError::LibloadingError(_) => Nvml::init(),
            other => Err(other),
        })
}

pub(super) fn source(locks: &[String], is_own: Box<IsOwn>) -> Result<Source, Unavailable> {
    let nvml = open().map_err(|e| (NAME, format!("NVML does not answer: {e}")))?;
    let indices: Option<Vec<u32>> = locks.iter().map(|lock| index_of(&nvml, lock)).collect();
    let indices = indices.ok_or_else(|| {
        (
            NAME,
            format!("NVML does not know all of {}", locks.join(", ")),
        )
    })?;
    let processes = Processes::new(is_own);
    let mut taken = 0;
    let sample = move |_: &AtomicBool| {
        let devices = || indices.iter().map(|i| nvml.device_by_index(*i));
        let (time, mut readings) = timed(|| {
            devices()
                .map(|d| d.map(|d| read(&d)).unwrap_or_default())
                .collect::<Vec<_>>()
        });
        if taken % LOOK_EVERY == 0 {
            for (reading, device) in readings.iter_mut().zip(devices()) {
                let listed = device.and_then(|d| d.running_compute_processes()).ok();
                let pids =
                    listed.map(|all| all.iter().map(|process| process.pid).collect::<Vec<_>>());
                reading.other_processes = pids.and_then(|pids| processes.others(&pids));
            }
        }
        taken += 1;
        Some((time, readings))
    };
    Ok(Source {
        name: NAME,
        interval: INTERVAL,
        sample: Box::new(sample),
        is_quick: true,
    })
}

/// NVML's index of the device with this lock: `gpu-<uuid>`, or `gpu-nvd-<index>` for one that has
/// none.
fn index_of(nvml: &Nvml, lock: &str) -> Option<u32> {
    if let Some(index) = lock.strip_prefix("gpu-nvd-") {
        return index.parse().ok();
    }
    (0..nvml.device_count().ok()?).find(|index| {
        let uuid = nvml
            .device_by_index(*index)
            .and_then(|device| device.uuid());
        uuid.is_ok_and(|uuid| uuid.eq_ignore_ascii_case(lock))
    })
}

fn read(device: &Device<'_>) -> Reading {
    Reading {
        power_watts: device
            .power_usage()
            .ok()
            .map(|milliwatts| f64::from(milliwatts) / 1e3),
        energy_joules: device
            .total_energy_consumption()
            .ok()
            .map(|millijoules| millijoules as f64 / 1e3),
        memory_used_bytes: device.memory_info().ok().map(|memory| memory.used),
        clock_hz: device
            .clock_info(Clock::SM)
            .ok()
            .map(|megahertz| f64::from(megahertz) * 1e6),
        temperature_celsius: device
            .temperature(TemperatureSensor::Gpu)
            .ok()
            .map(f64::from),
        utilization: device
            .utilization_rates()
            .ok()
            .map(|used| f64::from(used.gpu) / 100.0),
        throttled: device.current_throttle_reasons().ok().map(reasons),
        other_processes: None,
    }
}

/// In NVML's words; an idle device's low clocks are not lowered ones.
fn reasons(found: ThrottleReasons) -> Vec<String> {
    let found = found.difference(ThrottleReasons::GPU_IDLE);
    found
        .iter_names()
        .map(|(name, _)| name.to_ascii_lowercase())
        .filter(|name| name != "none")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_named_and_an_idle_device_has_none() {
        assert!(
            reasons(ThrottleReasons::GPU_IDLE).is_empty()
                && reasons(ThrottleReasons::NONE).is_empty()
        );
        let both = ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::GPU_IDLE;
        assert_eq!(reasons(both), ["sw_power_cap", "hw_thermal_slowdown"]);
    }
}
