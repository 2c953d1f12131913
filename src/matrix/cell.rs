//! One point of the matrix, and all of them.

use std::{fmt, sync::Arc};

use super::PerCell;
use crate::{
    config::{Setting, vendor_named},
    error::{Error, Problem, Result},
    job::Vendor,
};

/// The dimensions that every cell has, in the order of its name.
pub(super) const BASE: [&str; 4] = ["platform", "framework", "model", "parallelism"];

/// One point of the matrix. Names are canonical ids: aliases and `auto` are resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub platform: Arc<str>,
    pub vendor: Vendor,
    pub framework: Arc<str>,
    pub model: Arc<str>,
    /// The strategy.
    pub parallelism: Arc<str>,
    /// Further axes in file order: name and printed value.
    pub axes: Vec<(Arc<str>, Arc<str>)>,
    /// What the axes set, then what overrides set; a path stands there once.
    pub overlay: Vec<Setting>,
    pub repeats: u32,
}

impl Cell {
    /// The cell that an id names, of which nothing else is known: one that was imported.
    #[must_use]
    pub fn of_id(id: &str) -> Self {
        let (path, axes) = id.split_once('@').unwrap_or((id, ""));
        let mut parts = path.splitn(4, '/').map(Arc::<str>::from);
        let mut part = || parts.next().unwrap_or_default();
        let platform = part();
        Self {
            vendor: vendor_named(&platform).unwrap_or_default(),
            platform,
            framework: part(),
            model: part(),
            parallelism: part(),
            axes: axes
                .split(',')
                .filter_map(|a| a.split_once('='))
                .map(|(n, v)| (n.into(), v.into()))
                .collect(),
            overlay: Vec::new(),
            repeats: 1,
        }
    }

    /// The name on one of the four dimensions, or the value on a further axis.
    #[must_use]
    pub fn value(&self, dimension: &str) -> Option<&Arc<str>> {
        match dimension {
            "platform" => Some(&self.platform),
            "framework" => Some(&self.framework),
            "model" => Some(&self.model),
            "parallelism" => Some(&self.parallelism),
            axis => self
                .axes
                .iter()
                .find(|(name, _)| &**name == axis)
                .map(|(_, value)| value),
        }
    }
}

/// `platform/framework/model/parallelism`, further axes as `@axis=value,axis=value`.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [
            &*self.platform,
            "/",
            &self.framework,
            "/",
            &self.model,
            "/",
            &self.parallelism,
        ] {
            f.write_str(part)?;
        }
        for (index, (name, value)) in self.axes.iter().enumerate() {
            f.write_str(if index == 0 { "@" } else { "," })?;
            f.write_str(name)?;
            f.write_str("=")?;
            f.write_str(value)?;
        }
        Ok(())
    }
}

/// Runs of one matrix: more is taken for a mistake.
const MAX_RUNS: u64 = 1_000_000;

impl Matrix {
    /// An error where cells × repeats are more than anybody runs.
    pub fn check_runs(&self) -> Result<()> {
        let runs: u64 = self.cells.iter().map(|cell| u64::from(cell.repeats)).sum();
        if runs <= MAX_RUNS {
            return Ok(());
        }
        let message = format!(
            "the matrix `{}` has {runs} runs (cells × repeats); at most {MAX_RUNS} are planned",
            self.name
        );
        Err(Error::invalid(
            Problem::new(message).help("fewer repeats, or several matrices"),
        ))
    }
}

/// All cells of one file, in matrix order: the last axis varies fastest, included cells come last.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub name: String,
    /// Fields of the workload that its comparison crosses.
    pub across: Vec<String>,
    pub cells: PerCell<Cell>,
    /// Cells of the product that an `[[exclude]]` took out, with its reason.
    pub excluded: Vec<(Cell, String)>,
}
