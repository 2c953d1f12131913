//! The project's own files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::flags::{Cells, Common, Repeats};

#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// Print one value: `get training.data.seq_length`
    #[arg(value_name = "get PATH", num_args = 0..=2)]
    pub get: Vec<String>,
    /// Print as `export` lines for a shell
    #[arg(long, conflicts_with = "json")]
    pub shell: bool,
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct GraphArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub cells: Cells,
    #[command(flatten)]
    pub repeats: Repeats,
}

#[derive(Args, Clone, Debug)]
pub struct LockArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub cells: Cells,
    /// Write what this host has now
    #[arg(long)]
    pub update: bool,
}

#[derive(Subcommand, Clone, Debug)]
pub enum RecipeCommand {
    /// List the recipes that this project can use
    List,
    /// List the files of a recipe, or print one of them
    Show {
        /// A recipe, or `lib`: what the programs of several recipes share
        #[arg(value_name = "RECIPE")]
        id: String,
        /// One of its files
        file: Option<String>,
    },
    /// Copy a recipe with its templates into recipes/ of this project, to change it
    Copy {
        #[arg(value_name = "RECIPE")]
        id: String,
        /// The name of the copy [default: the same, which then takes the place of the shipped one]
        #[arg(long = "as", value_name = "NAME")]
        new_id: Option<String>,
    },
}

/// Token files; PREFIX.idx and PREFIX.bin are read.
#[derive(Subcommand, Clone, Debug)]
pub enum DataCommand {
    /// Say what a dataset holds, and all that is wrong with it
    Verify {
        /// PREFIX.idx and PREFIX.bin are read
        prefix: PathBuf,
        /// Every token must be below this
        #[arg(long, value_name = "N")]
        vocab_size: Option<u64>,
    },
    /// Name a dataset's content: the same wherever it lies
    Fingerprint {
        /// PREFIX.idx and PREFIX.bin are read
        prefix: PathBuf,
    },
}

#[derive(Subcommand, Clone, Debug)]
pub enum PrintCommand {
    /// Print the task graph
    Graph(GraphArgs),
    /// Print the JSON schema of a format
    Schema {
        #[arg(value_enum)]
        what: SchemaName,
    },
    /// Print a shell's completions
    Completions { shell: clap_complete::Shell },
}

#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// The folder [default: this one]
    pub folder: Option<PathBuf>,
    /// Write the matrix that config.yaml implies to pipelines/matrix.toml
    #[arg(long)]
    pub matrix: bool,
    /// Write a large project in place of one script: all frameworks, on AMD and NVIDIA
    #[arg(long, value_name = "amd-vs-nvidia", value_parser = ["amd-vs-nvidia"], hide_possible_values = true)]
    pub example: Option<String>,
}

/// The formats that have a schema.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum SchemaName {
    Job,
    Events,
    Trace,
    Result,
    Summary,
    Comparison,
    History,
    Baseline,
    Gate,
    Blame,
    Config,
    Matrix,
    Recipe,
    Fit,
}
