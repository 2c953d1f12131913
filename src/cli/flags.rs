//! Flags that several subcommands share. Each takes those groups that mean something to it, and no other.

use clap::Args;

/// Which matrix, with which settings.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
    /// A matrix file, or its name in pipelines/ [default: matrix.toml, then pipelines/matrix.toml]
    #[arg(value_name = "MATRIX")]
    pub matrix: Option<String>,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
}

/// Which cells, where a command is of some of them.
#[derive(Args, Clone, Debug, Default)]
pub struct Cells {
    /// Only cells that match: leading segments of platform/framework/model/parallelism, globs allowed
    #[arg(long, value_name = "CELL")]
    pub only: Vec<String>,
    /// All but the cells that match
    #[arg(long, value_name = "CELL")]
    pub skip: Vec<String>,
    /// Only cells with this axis value
    #[arg(long = "where", value_name = "AXIS=VALUE")]
    pub where_: Vec<String>,
    /// Only the i-th of n parts
    #[arg(long, value_name = "I/N")]
    pub shard: Option<String>,
}

/// Which measurements are a cell's, where a command runs them or looks them up.
#[derive(Args, Clone, Debug, Default)]
pub struct Measured {
    #[command(flatten)]
    pub repeats: Repeats,
    #[command(flatten)]
    pub drift: Drift,
    /// Where runs are started, whatever config.yaml says
    #[arg(long, value_name = "local|container|slurm")]
    pub executor: Option<String>,
}

#[derive(Args, Clone, Debug, Default)]
pub struct Repeats {
    /// Measured runs a cell, whatever the matrix says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeats: Option<u32>,
}

#[derive(Args, Clone, Debug, Default)]
pub struct Drift {
    /// Go on although this host differs from tprimat.lock; results are filed under what was found
    #[arg(long)]
    pub allow_drift: bool,
}

/// Some cells of a matrix, with their measurements.
#[derive(Args, Clone, Debug)]
pub struct Wanted {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub cells: Cells,
    #[command(flatten)]
    pub measured: Measured,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

/// A part of what a matrix has.
#[derive(Args, Clone, Debug, Default)]
pub struct Part {
    /// Only cells that match, of the matrix or of the imports: leading segments of platform/framework/model/parallelism, globs
    /// allowed
    #[arg(long, value_name = "CELL")]
    pub only: Vec<String>,
    /// All but the cells that match
    #[arg(long, value_name = "CELL")]
    pub skip: Vec<String>,
    /// Only cells with this axis value
    #[arg(long = "where", value_name = "AXIS=VALUE")]
    pub where_: Vec<String>,
    /// Only cells of these platforms
    #[arg(long, value_name = "PLATFORM", value_delimiter = ',')]
    pub platform: Vec<String>,
    /// Only cells of these frameworks
    #[arg(long, value_name = "FRAMEWORK", value_delimiter = ',')]
    pub frameworks: Vec<String>,
}

/// What is run although it would not be.
#[derive(Args, Clone, Debug, Default)]
pub struct Insist {
    /// Take cells whose last attempt failed as stale
    #[arg(long)]
    pub retry_failed: bool,
    /// Run also what is predicted not to fit in memory, and with --max-gpu-hours what cannot be estimated
    #[arg(long)]
    pub force: bool,
}

/// What is compared.
#[derive(Args, Clone, Debug)]
pub struct Compared {
    /// A matrix, some of its cells, or both: `M`, `A B C`, `M A B`; globs and leading segments of cells' names allowed
    #[arg(value_name = "MATRIX | CELL")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub part: Part,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub measured: Measured,
    /// Compare cells although they differ in these fields of the workload, or in `warmup`; every output says so
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    pub across: Vec<String>,
    /// The cell that speed-ups are relative to [default: the first of each group]
    #[arg(long, value_name = "CELL")]
    pub baseline: Option<String>,
    /// Compare all imported cells, and no others [default where no cell of the matrix is measured]
    #[arg(long, conflicts_with = "names")]
    pub imported: bool,
}
