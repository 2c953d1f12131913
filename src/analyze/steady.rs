//! Where the measured part of a run begins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the start of the measured part was found, and what the declared warm-up alone would give.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cut {
    /// First measured step, as the log counts.
    pub first_step: u64,
    /// Optimiser steps dropped after the declared warm-up.
    pub dropped_steps: u64,
    /// Name of the method; `declared` where none was applied.
    pub method: String,
    /// Why steady state was not assessed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_assessed: Option<String>,
    /// Rate over all steps after the declared warm-up.
    pub declared_tokens_per_second_per_gpu: f64,
    /// The step time changed for good within the measured part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level_shift: Option<LevelShift>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelShift {
    /// First step of the new level, as the log counts.
    pub step: u64,
    /// Mean step time from there on ÷ before.
    pub ratio: f64,
}
