//! A comparison with its sweeps, for readers of `compare --json` and of the published compare.json.

use std::borrow::Cow;

use crate::results::{Contract, Severity};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Comparison, Judged, Metrics, Row, Sweep, sweeps};

/// A comparison with the sweeps that its cells make up.
#[derive(Serialize, JsonSchema)]
pub struct ComparisonDocument<'a> {
    #[serde(flatten)]
    pub comparison: Cow<'a, Comparison>,
    /// Cells of one model over a numeric axis with at least three values, or over two such axes.
    pub sweeps: Vec<Sweep>,
}

impl<'a> ComparisonDocument<'a> {
    #[must_use]
    pub fn of(comparison: &'a Comparison) -> Self {
        Self {
            comparison: Cow::Borrowed(comparison),
            sweeps: sweeps(comparison, &Judged::of_comparison(comparison)),
        }
    }

    /// As a report publishes it: without notes that are looked up, and without what the cell's own file
    /// has as well. Of thousands of cells that would be most of it.
    #[must_use]
    pub fn published(comparison: &'a Comparison) -> Self {
        let is_published = |reason: &Severity| *reason != Severity::Detail;
        let notes = comparison.notes.iter();
        let notes = notes.filter(|note| is_published(&note.reason.severity));
        let published = Comparison {
            rows: comparison.rows.iter().map(short).collect(),
            notes: notes.cloned().collect(),
            ..comparison.clone()
        };
        Self {
            comparison: Cow::Owned(published),
            ..Self::of(comparison)
        }
    }
}

/// A row without what the cell's own file has. An import has none.
fn short(row: &Row) -> Row {
    if !row.imported.is_empty() {
        return row.clone();
    }
    Row {
        contract: Contract::default(),
        attested: None,
        repeats: Vec::new(),
        metrics: Metrics::default(),
        unlisted: Default::default(),
        declared_only: Vec::new(),
        ..row.clone()
    }
}
