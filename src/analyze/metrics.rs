//! What follows from a cell's rate: cost, efficiency, time. Formulas and sources: docs/METRICS.md.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CellInput, Metrics, Peaks, Summary};

/// What figures beyond the log are made of: dense peaks by device, prices by platform.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Catalogue {
    pub peaks: Peaks,
    /// By platform id or a vendor's name; the id wins.
    pub prices: BTreeMap<String, Price>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Price {
    pub per_gpu_hour: f64,
    pub currency: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// All metrics of a cell that has a rate.
#[must_use]
pub fn metrics_of(_cell: &CellInput, _summary: &Summary, _catalogue: &Catalogue) -> Metrics {
    Metrics::default()
}
