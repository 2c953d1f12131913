//! Flags that several subcommands share. Each takes those groups that mean something to it, and no
//! other.

use std::collections::BTreeSet;

use clap::Args;

use crate::error::{Error, Result};

/// Headings of a long help, of which a command has those that it needs.
const CELLS: &str = "Which cells";
pub const RUNS: &str = "How runs are made";
pub const OUTPUT: &str = "What is told, and where";
pub const EVERYWHERE: &str = "For every command";

/// Which matrix, with which settings. In every command that takes one it is named last, behind the
/// cells, or in any place by `--matrix`.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
    /// A matrix file, or its name in pipelines/ [default: matrix.toml, then pipelines/matrix.toml]
    #[arg(value_name = "MATRIX")]
    matrix: Option<String>,
    /// The same, in any place
    #[arg(long = "matrix", value_name = "MATRIX", conflicts_with = "matrix")]
    by_name: Option<String>,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
}

impl Common {
    pub fn of(matrix: Option<String>, sets: Vec<String>) -> Self {
        Self {
            matrix,
            by_name: None,
            sets,
        }
    }

    pub fn matrix(&self) -> Option<&String> {
        self.by_name.as_ref().or(self.matrix.as_ref())
    }

    /// Whoever writes the matrix before the cell means the same.
    pub fn in_order(&mut self, cell: &mut String) {
        if let Some(matrix) = &mut self.matrix
            && is_matrix(cell)
            && !is_matrix(matrix)
        {
            std::mem::swap(cell, matrix);
        }
    }
}

/// May this word name a matrix? A cell's name or pattern has a slash and does not end with `.toml`.
#[must_use]
pub fn is_matrix(word: &str) -> bool {
    !word.contains('/') || word.ends_with(".toml")
}

/// The matrix that is named before or behind the cells, if one is, and the cells.
pub fn matrix_and_cells<'a>(
    names: &'a [String],
    by_name: &Option<String>,
    is_first: impl Fn(&str) -> bool,
    is_last: impl Fn(&str) -> bool,
) -> Result<(Option<String>, &'a [String])> {
    let (matrix, cells) = match names {
        [first, cells @ ..] if is_first(first) => (Some(first), cells),
        [cells @ .., last] if is_last(last) => (Some(last), cells),
        _ => (None, names),
    };
    match (matrix, by_name) {
        (Some(first), Some(_)) => Err(Error::refused(
            format!("`{first}` and --matrix name a matrix each"),
            "this command takes one matrix; a cell's name has a slash",
        )),
        (matrix, named) => Ok((matrix.or(named.as_ref()).cloned(), cells)),
    }
}

/// Which cells, where a command is of some of them.
#[derive(Args, Clone, Debug, Default)]
pub struct Cells {
    /// Only cells that match: leading segments of platform/framework/model/parallelism, globs
    /// allowed
    #[arg(long, help_heading = CELLS, value_name = "CELL")]
    pub only: Vec<String>,
    /// All but the cells that match
    #[arg(long, help_heading = CELLS, value_name = "CELL")]
    pub skip: Vec<String>,
    /// Only cells with this axis value
    #[arg(long = "where", help_heading = CELLS, value_name = "AXIS=VALUE")]
    pub where_: Vec<String>,
    /// Only the i-th of n parts, so that n hosts share one matrix: 1/3
    #[arg(long, help_heading = CELLS, value_name = "I/N")]
    pub shard: Option<String>,
}

/// A selection by what became of a cell.
#[derive(Args, Clone, Debug, Default)]
pub struct LastFailed {
    /// Only cells whose last run failed and that have no figures since; a build runs them again
    #[arg(long, help_heading = CELLS)]
    pub failed: bool,
}

/// Which measurements are a cell's, where a command runs them or looks them up.
#[derive(Args, Clone, Debug, Default)]
pub struct Measured {
    #[command(flatten)]
    pub repeats: Repeats,
    #[command(flatten)]
    pub drift: Drift,
    /// Where runs are started; `allocation`: as steps of the Slurm job that tprimat is in (salloc,
    /// sbatch) [overrides config.yaml]
    #[arg(long, help_heading = RUNS, value_name = "local|container|slurm|kubernetes|allocation")]
    pub executor: Option<String>,
}

#[derive(Args, Clone, Debug, Default)]
pub struct Repeats {
    /// Measured runs per cell [overrides the matrix]
    #[arg(long, help_heading = RUNS, alias = "runs", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeats: Option<u32>,
}

#[derive(Args, Clone, Debug, Default)]
pub struct Drift {
    /// Measure although this host differs from tprimat.lock; results are kept apart from the pinned
    /// ones
    #[arg(long, help_heading = RUNS)]
    pub allow_drift: bool,
}

/// Some cells of a matrix, with their measurements.
#[derive(Args, Clone, Debug, Default)]
pub struct MatrixSelection {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub cells: Cells,
    #[command(flatten)]
    pub measured: Measured,
}

/// A part of what a matrix has.
#[derive(Args, Clone, Debug, Default)]
pub struct Filters {
    /// Only cells that match, of the matrix or of the imports: leading segments of
    /// platform/framework/model/parallelism, globs allowed
    #[arg(long, help_heading = CELLS, value_name = "CELL")]
    pub only: Vec<String>,
    /// All but the cells that match
    #[arg(long, help_heading = CELLS, value_name = "CELL")]
    pub skip: Vec<String>,
    /// Only cells with this axis value
    #[arg(long = "where", help_heading = CELLS, value_name = "AXIS=VALUE")]
    pub where_: Vec<String>,
}

/// What a build would leave as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Force {
    /// Measure the selected cells anew; the earlier attempts are kept
    Measured,
    /// Run cells again whose last attempt failed, also where the failure would be the same
    Failed,
    /// Run cells that are predicted not to fit in memory
    Memory,
    /// Count GPU runs without an estimate as 0 GPU-hours, where --max-gpu-hours would refuse them
    Unpriced,
}

#[derive(Args, Clone, Debug, Default)]
pub struct Overrides {
    /// Run what a build would leave as it is
    #[arg(
        long,
        help_heading = RUNS,
        value_enum,
        value_name = "measured|failed|memory|unpriced",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub force: Vec<Force>,
    /// Run the other cells of a recipe and command too, after two of them ended alike
    #[arg(long, help_heading = RUNS)]
    pub keep_going: bool,
}

impl Overrides {
    pub fn has(&self, what: Force) -> bool {
        self.force.contains(&what)
    }

    /// For commands that run nothing.
    pub fn refuse_measured(&self) -> Result<()> {
        if !self.has(Force::Measured) {
            return Ok(());
        }
        Err(Error::refused(
            "--force=measured is for builds: nothing is measured here",
            "leave it out",
        ))
    }
}

/// What is compared.
#[derive(Args, Clone, Debug)]
pub struct Compared {
    /// A matrix, some of its cells, or both: `M`, `A B C`, `M A B`; globs and leading segments of
    /// cells' names allowed. `compare` takes a folder of old results as well (`old-results/`), and imports it first
    #[arg(value_name = "MATRIX | CELL")]
    pub names: Vec<String>,
    /// The matrix, in any place
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Option<String>,
    #[command(flatten)]
    pub part: Filters,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub measured: Measured,
    /// Compare cells although they differ in these fields, such as precision or seq_length; every
    /// output says so
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    pub across: Vec<String>,
    /// The cell that speed-ups are relative to [default: the first of each group]
    #[arg(long, value_name = "CELL")]
    pub baseline: Option<String>,
    /// Compare all imported cells, and no others [default where no cell of the matrix is measured]
    #[arg(long, conflicts_with = "names")]
    pub imported: bool,
    /// Only these imported cells are compared: those of a folder that was named in place of cells.
    #[arg(skip)]
    pub of_folder: Option<BTreeSet<String>>,
}
