//! What was measured, compared and handed on.

use std::path::PathBuf;

use clap::Args;

use super::running::{hours, margin};
use crate::cli::flags::{Compared, Drift, MatrixSelection};

#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    #[command(flatten)]
    pub compared: Compared,
    /// Print every figure and every note in place of the summary
    #[arg(long, conflicts_with = "json")]
    pub details: bool,
    /// How it is printed; csv has a row a cell
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table",
        conflicts_with = "json"
    )]
    pub format: CompareFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CompareFormat {
    /// For a terminal, as wide as it is
    Table,
    /// For a comment on a pull request
    Markdown,
    Csv,
    Json,
}

impl CompareArgs {
    pub fn format(&self, json: bool) -> CompareFormat {
        if json {
            CompareFormat::Json
        } else {
            self.format
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    #[command(flatten)]
    pub compared: Compared,
    /// A folder for all files, or FILE.html for the page alone [default: the folder of builds; of
    /// imports, the folder `imports` in it; a part of a matrix needs one]
    #[arg(short, long, value_name = "DIR|FILE.html")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub struct GateArgs {
    #[command(flatten)]
    pub selection: MatrixSelection,
    /// What `tprimat gate --write FILE` wrote
    #[arg(long, value_name = "FILE", required_unless_present = "write")]
    pub baseline: Option<PathBuf>,
    /// Write what the cells measured to a file that later gates compare with, or to stdout with `-`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["baseline", "max_regression", "junit", "markdown", "annotations"])]
    pub write: Option<PathBuf>,
    /// How much slower a cell may be, in tokens/s/GPU: `3%` or `0.03`
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "3%",
        allow_hyphen_values = true
    )]
    pub max_regression: String,
    /// Before that, add runs of the cells that it cannot tell, until each passes or fails, by a test
    /// that allows it; --repeats N: at most N runs of a cell [default: 20 more]
    #[arg(long, conflicts_with = "write")]
    pub decide: bool,
    /// With --decide, make at most so many runs
    #[arg(long, value_name = "N", requires = "decide")]
    pub max_runs: Option<usize>,
    /// With --decide, make runs of at most so many GPU-hours, by the plan's estimate
    #[arg(long, value_name = "H", value_parser = hours, requires = "decide")]
    pub max_gpu_hours: Option<f64>,
    /// Write the verdicts as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write the verdicts as Markdown, for a comment on a pull request
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Print the verdicts as the commands of a CI system (with --json on stderr)
    #[arg(long, value_enum, value_name = "SYSTEM")]
    pub annotations: Option<Annotations>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Annotations {
    /// GitHub Actions
    Github,
}

#[derive(Args, Clone, Debug)]
pub struct ImportArgs {
    /// A cell, with --log, --result or --tfevents; else files, or folders with names as the suites
    /// wrote them
    #[arg(value_name = "CELL | PATH")]
    pub names: Vec<String>,
    /// A trainer's log; several are the ranks of one run, in their order. Repeats are imported one
    /// by one
    #[arg(long, value_name = "FILE")]
    pub log: Vec<PathBuf>,
    /// A result file of an older suite (JSON)
    #[arg(long, value_name = "FILE")]
    pub result: Vec<PathBuf>,
    /// A TensorBoard event file
    #[arg(long, value_name = "FILE")]
    pub tfevents: Vec<PathBuf>,
    /// A fact that the file lacks, as in `--set num_gpus=8 --set seq_length=4096`. It is marked
    /// wherever a figure rests on it
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub facts: Vec<String>,
    /// Import into the cell although the file names a device or a platform of another vendor
    #[arg(long)]
    pub other_platform: bool,
    /// Matrix to look the cell's name up in [default: as for plan]
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Option<String>,
}

impl ImportArgs {
    /// `tprimat import FOLDER`
    pub fn of_folder(folder: &str) -> Self {
        Self {
            names: vec![folder.to_owned()],
            log: Vec::new(),
            result: Vec::new(),
            tfevents: Vec::new(),
            facts: Vec::new(),
            other_platform: false,
            matrix: None,
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct ParseArgs {
    /// A log, or `-` for stdin
    pub file: PathBuf,
    /// The log's format; a recipe of the project, whose format and patterns are meant; or a line of your own,
    /// such as 'step <step> loss <loss>' [default: detected]
    #[arg(long)]
    pub format: Option<String>,
    /// Say of each line that is read which kind of line it is, or which pattern finds something in it
    #[arg(long)]
    pub lines: bool,
}

#[derive(Args, Clone, Debug)]
pub struct WhyArgs {
    /// A trace of torch's profiler (JSON) or of nsys or rocprofv3 (CSV), plain or gzip, or a cell that was
    /// built with --set experiment.profiling=torch; of two, the second is held against the first
    #[arg(value_name = "CELL | TRACE", required_unless_present = "traces", num_args = 1..=2)]
    pub names: Vec<String>,
    /// The same as naming the file without an option
    #[arg(
        long = "trace",
        value_name = "FILE",
        hide = true,
        conflicts_with = "names"
    )]
    pub traces: Vec<String>,
    /// How many steps a trace is of that marks none
    #[arg(long, value_name = "N")]
    pub steps: Option<std::num::NonZeroUsize>,
    /// The matrix that has the cells [default: as for plan]
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Option<String>,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct BlameArgs {
    /// Two cells of one matrix, the second held against the first; with --since one, held against
    /// itself
    #[arg(value_name = "CELL", required = true, num_args = 1..=2)]
    pub cells: Vec<String>,
    /// What was changed since the cell was measured: for this baseline (`tprimat gate --write FILE`), or
    /// last before a date (`2026-10-02`) or an age (`30d`)
    #[arg(long, value_name = "BASELINE|DATE|AGE")]
    pub since: Option<String>,
    /// Which commit changed it, of the recipe's checkout or else of the project: those after OLD, up to
    /// NEW or HEAD
    #[arg(long, value_name = "OLD[..NEW]", conflicts_with = "since")]
    pub commits: Option<String>,
    /// Which version of a Python package changed it: those from OLD to NEW that `pip` offers, or a list,
    /// the oldest first (`NAME==1.0,1.1,2.0`)
    #[arg(long, value_name = "NAME==OLD..NEW", conflicts_with_all = ["since", "commits"])]
    pub versions: Option<String>,
    /// The matrix that has the cells [default: as for plan]
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Option<String>,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    /// Times within this margin count as the same
    #[arg(long, value_name = "MARGIN", default_value = "2%", value_parser = margin, allow_hyphen_values = true)]
    pub decide: f64,
    /// Make at most so many runs
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub max_runs: usize,
    /// Start no round that is estimated to go beyond this
    #[arg(long, value_name = "H", value_parser = hours)]
    pub max_gpu_hours: Option<f64>,
    /// Run nothing: list the differences, and what telling them apart takes
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub drift: Drift,
    /// Where runs are started [overrides config.yaml]
    #[arg(long, value_name = "local|container|slurm|kubernetes|allocation")]
    pub executor: Option<String>,
}
