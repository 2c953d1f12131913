//! What was sampled beside a run, over its measured steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Of one run. What the sampler could not read is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Telemetry {
    /// Who sampled: `nvml`, `amd-smi`, `rocm-smi`.
    pub source: String,
    /// Devices sampled: those that the run owned.
    pub devices: u64,
    /// Length of the measured part, in seconds.
    pub seconds: f64,
    /// GPU board energy of all devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
    /// Of all devices together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_power_watts: Option<f64>,
    /// The most that one device had in use, of whatever process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory_used_bytes: Option<u64>,
    /// Of the device, all devices' mean, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_utilization: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_clock_hz: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_temperature_celsius: Option<f64>,
    /// Reasons for lowered clocks that were seen, in the driver's words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled: Vec<String>,
    /// For pictures, over the whole run: seconds since its start, watts of all devices; at most 512 points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub power_series: Vec<[f64; 2]>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Energy {
    pub joules: f64,
    /// `counter`: difference of the hardware counter; `integrated`: power over time.
    pub method: String,
}
