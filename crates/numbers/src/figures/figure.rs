//! A figure that is known, or the reason why it is not; and a named one with its unit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::results::Reason;

/// Never a 0 or a default for what is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum Figure {
    Ok {
        value: f64,
        /// What it is made of: prices, peaks and counters with their sources.
        basis: String,
    },
    Absent {
        reason: Reason,
    },
    /// An impossible figure: something that it is made of is wrong.
    Error {
        reason: Reason,
    },
}

/// What stands until it is computed.
impl Default for Figure {
    fn default() -> Self {
        Self::Absent {
            reason: Reason::detail("not_computed", "not computed"),
        }
    }
}

impl Figure {
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        if let Self::Ok { value, .. } = self {
            Some(*value)
        } else {
            None
        }
    }
}

/// One line of docs/METRICS.md.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metric {
    /// Its name in JSON and CSV: `tokens_per_dollar`.
    pub name: String,
    /// Its name in tables: `tokens/USD`.
    pub title: String,
    /// `fraction` is of 1. Rows may differ in it: prices have currencies.
    pub unit: String,
    /// Is more better? Absent where neither is.
    pub higher_is_better: Option<bool>,
    /// The cell beside which the figure is one, where there is such a cell.
    pub reference: Option<String>,
    pub figure: Figure,
}

/// A row's metrics, in the order of docs/METRICS.md; the same names in every row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Metrics(pub Vec<Metric>);

/// Metrics that a wrong rate leaves as they are.
const NOT_OF_THE_RATE: [&str; 2] = ["memory_headroom", "loss_at_end"];

impl Metrics {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing that is made of an impossible rate stands as a figure.
    pub(super) fn void_rates(&mut self, reason: &Reason) {
        let of_rate = |m: &&mut Metric| !NOT_OF_THE_RATE.contains(&m.name.as_str());
        for metric in self.0.iter_mut().filter(of_rate) {
            if let Figure::Ok { .. } = metric.figure {
                metric.figure = Figure::Error {
                    reason: reason.clone(),
                };
            }
        }
    }
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Figure> {
        self.0.iter().find(|m| m.name == name).map(|m| &m.figure)
    }
}
