//! The events that a trainer prints, one JSON object a line: the format `tprimat`.
//!
//! These types document the format and give its JSON Schema; the parser reads more tolerantly.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{DeviceLine, FailureClass};

/// One line of a trainer's standard output. Other text may stand between such lines and before one.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Once, before the first step, by one rank.
    Start {
        /// `tprimat.events/1`.
        schema: String,
        trainer: Option<String>,
        /// Seconds since 1970.
        time: Option<f64>,
        /// The settings that are really in effect, by the job's names. State what the trainer uses,
        /// not what it was asked for: this is what the job is checked against.
        effective: BTreeMap<String, serde_json::Value>,
        /// Counted from the model.
        num_parameters: Option<u64>,
        device: Option<DeviceLine>,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        versions: BTreeMap<String, String>,
    },
    /// After every optimiser step, by one rank.
    Step {
        /// Counted from 1, or from 0.
        step: u64,
        /// Seconds since 1970, when the step ended.
        time: Option<f64>,
        /// Wall time of the whole optimiser step: all its micro-steps, gradient exchange and
        /// update.
        step_time_seconds: Option<f64>,
        /// Mean over the global batch; null where it is not a finite number.
        #[serde(default)]
        #[serialize_always]
        loss: Option<f64>,
        /// How many steps the loss is the mean of, where it is not this step's own. The step time is
        /// that of this step all the same.
        loss_steps_averaged: Option<u64>,
        learning_rate: Option<f64>,
        /// Global norm before clipping.
        grad_norm: Option<f64>,
        /// Tokens of this optimiser step over all ranks, as counted from the batches.
        tokens: Option<u64>,
        memory_bytes: Option<u64>,
        /// `peak_allocated`, `peak_reserved`, `device_used`, `process_device_used` or `peak_rss`.
        memory_kind: Option<String>,
        /// `torch`, `nvml` or `proc`.
        memory_source: Option<String>,
        tokens_per_second_per_gpu: Option<f64>,
        tflops_per_gpu: Option<f64>,
        /// Something about this step that a reader must know, as one word: `nan_loss`.
        anomaly: Option<String>,
    },
    /// Once, after the last step.
    End {
        /// `ok`; anything else means that the run is not a measurement.
        status: String,
        /// Optimiser steps done.
        steps: Option<u64>,
    },
    /// Instead of `end`, where the trainer knows why it stops.
    Error {
        class: FailureClass,
        message: String,
    },
}

/// JSON Schema of one event.
#[must_use]
pub fn events_schema() -> serde_json::Value {
    schemars::schema_for!(Event).to_value()
}
