//! What one log says: the per-step series and the effective settings, with nothing made up.
//!
//! Every field is an `Option` or a list: what the log does not state is absent, never 0.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// Name of the log format, as in a recipe's `[log] format`.
    pub format: String,
    pub steps: Vec<Step>,
    pub effective: Effective,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_parameters: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceLine>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub versions: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub anomalies: Vec<Anomaly>,
    /// The trainer said that it reached its end.
    pub finished: bool,
}

/// One optimiser step, or the mean over `steps_averaged` of them ending with `step`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Counted from 1.
    pub step: u64,
    /// How many steps the values are a mean of; absent = 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_averaged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_time_seconds: Option<f64>,
    /// `nan` in a log is kept as the anomaly `nan_loss`, and the loss is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Tokens of this optimiser step over all ranks, as the trainer counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The trainer's own figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_per_gpu: Option<f64>,
    /// The trainer's own figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tflops_per_gpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// What `memory_bytes` counts: `peak_allocated`, `peak_reserved`, `device_used`, `process_device_used`, `peak_rss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_kind: Option<String>,
    /// Who counted it: `torch`, `nvml`, `proc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_source: Option<String>,
}

/// Settings as the trainer itself reports them, by the job's names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Effective(pub BTreeMap<String, serde_json::Value>);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceLine {
    /// `cpu` or `cuda` (ROCm builds of PyTorch say `cuda` as well).
    pub r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    Oom,
    Nccl,
    Timeout,
    Nan,
    Import,
    Port,
    Killed,
    Node,
    Launch,
    Unknown,
}

impl FailureClass {
    /// Would the same bytes on the same hardware fail again? Such failures stay failed until the key changes.
    #[must_use]
    pub fn is_deterministic(self) -> bool {
        matches!(self, Self::Oom | Self::Nan | Self::Import | Self::Launch)
    }
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Nccl => "nccl",
            Self::Timeout => "timeout",
            Self::Nan => "nan",
            Self::Import => "import",
            Self::Port => "port",
            Self::Killed => "killed",
            Self::Node => "node",
            Self::Launch => "launch",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    pub class: FailureClass,
    /// The lines of the log that say so, at most a few, cut to a readable length.
    pub evidence: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Anomaly {
    /// `nan_loss`, `missing_steps`, `duplicate_step`, `truncated`, `unreadable_line`, …
    pub kind: String,
    pub detail: String,
}
