//! The command line, as clap sees it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::flags::{Cells, Common, Compared, Drift, Insist, Measured, Repeats, Wanted};

/// A build system for LLM-training benchmarks: declare the matrix once, get numbers that may honestly be compared,
/// and re-run only what is stale.
#[derive(Parser)]
#[command(version, max_term_width = 110)]
pub struct Cli {
    /// The project: this folder or its nearest ancestor with a config.yaml.
    #[arg(short = 'C', long, value_name = "DIR", global = true)]
    pub directory: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run what is stale, then compare and publish
    Build(BuildArgs),
    /// Show every task with its state and the reason; run nothing
    Plan(PlanArgs),
    /// Say why a cell's tasks are stale, field by field
    Explain(ExplainArgs),
    /// Predict the memory that each cell needs on a GPU, against what there is
    Fit(FitArgs),
    /// List the cells of the matrix
    List(ListArgs),
    /// Show a cell's summary, or one repeat's result (CELL#2)
    Show(ShowArgs),
    /// List every run of a cell that was ever made, and say which one counts; set one aside
    Attempts(AttemptsArgs),
    /// Show what a cell would launch: its settings with their origins, and its launch files
    Render(RenderArgs),
    /// Print the log of a cell's run
    Logs(LogsArgs),
    /// Show the comparison of a matrix, or of two cells
    Compare(CompareArgs),
    /// Write what the cells measured to a file that `gate` compares with
    Baseline(BaselineArgs),
    /// Has any cell become slower than a baseline? Exit with 3 if so, with 6 if that cannot be told
    Gate(GateArgs),
    /// Write the report of a matrix, or of two cells, from what the cache has; run nothing
    Report(ReportArgs),
    /// Take in logs and results that others measured; they are shown beside yours, labelled
    Import(ImportArgs),
    /// Say what a log says
    Parse(ParseArgs),
    /// Validate config, matrix, recipes and templates
    Check(CheckArgs),
    /// List the recipes, print one, or copy one into the project
    Recipe(RecipeArgs),
    /// Show every effective setting and where it comes from
    Config(ConfigArgs),
    /// Print the DAG
    Graph(GraphArgs),
    /// Verify, fingerprint or make token files (Megatron's .bin/.idx)
    Data(DataArgs),
    /// Show or update what tprimat.lock pins
    Lock(LockArgs),
    /// Build a framework's container image
    Image(ImageArgs),
    /// Open a shell in a framework's container, with the project and the GPUs
    Shell(ShellArgs),
    /// Remove published output, or the whole cache
    Clean(CleanArgs),
    /// Write a starter project into a folder; a config.yaml that is there is kept
    Init(InitArgs),
    /// Print the JSON schema of a format
    Schema(SchemaArgs),
    /// Print a shell's completions
    Completions(CompletionsArgs),
}

impl Command {
    pub fn as_json(&self) -> bool {
        match self {
            Self::Build(a) => a.wanted.json,
            Self::Plan(a) => a.wanted.json,
            Self::List(a) => a.wanted.json,
            Self::Check(a) => a.json,
            Self::Explain(a) => a.json,
            Self::Show(a) => a.json,
            Self::Attempts(a) => a.json,
            Self::Render(a) => a.json,
            Self::Fit(a) => a.json,
            Self::Compare(a) => a.format() == CompareFormat::Json,
            Self::Baseline(a) => a.wanted.json,
            Self::Gate(a) => a.wanted.json,
            Self::Report(a) => a.json,
            Self::Parse(a) => a.json,
            Self::Import(a) => a.json,
            Self::Config(a) => a.json,
            Self::Lock(a) => a.json,
            Self::Recipe(a) => matches!(&a.command, RecipeCommand::List(a) if a.json),
            Self::Data(a) => match &a.command {
                DataCommand::Verify(a) => a.json,
                DataCommand::Fingerprint(a) => a.json,
                DataCommand::Encode(a) => a.json,
            },
            _ => false,
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct BuildArgs {
    #[command(flatten)]
    pub wanted: Wanted,
    #[command(flatten)]
    pub insist: Insist,
    /// Run nothing: the same as `plan`
    #[arg(short = 'n', long, conflicts_with_all = ["remeasure", "cached_only", "events"])]
    pub dry_run: bool,
    /// How many tasks at once; measured runs are alone all the same [default: cores]
    #[arg(short, long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Measure the selected cells anew; the earlier attempts are kept
    #[arg(long)]
    pub remeasure: bool,
    /// Stop at the first failure instead of finishing the rest
    #[arg(long)]
    pub fail_fast: bool,
    /// Go on after a failure (the default)
    #[arg(long, conflicts_with = "fail_fast")]
    pub keep_going: bool,
    /// Exit with 5 if a cell of the matrix ends without a result
    #[arg(long)]
    pub require_complete: bool,
    /// Train nothing: use what the cache has
    #[arg(long, conflicts_with_all = ["remeasure", "retry_failed"])]
    pub cached_only: bool,
    /// Exit with 2 if tprimat.lock would have to be written, or if this host differs from it
    #[arg(long, conflicts_with = "allow_drift")]
    pub locked: bool,
    /// Run each selected cell once under a profiler and measure nothing; traces go to the output folder
    #[arg(long, value_enum, value_name = "PROFILER", conflicts_with_all = ["dry_run", "remeasure", "cached_only"])]
    pub profile: Option<ProfilerName>,
    /// Run nothing if the plan's estimate is above this, or a run has none
    #[arg(long, value_name = "H", value_parser = hours, conflicts_with = "profile")]
    pub max_gpu_hours: Option<f64>,
    /// Write events as JSON lines to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ProfilerName {
    /// NVIDIA Nsight Systems
    Nsys,
    /// ROCm's rocprofv3
    Rocprof,
    /// torch's own profiler, in tprimat's trainers
    Torch,
}

impl From<ProfilerName> for crate::execute::Profiler {
    fn from(name: ProfilerName) -> Self {
        match name {
            ProfilerName::Nsys => Self::Nsys,
            ProfilerName::Rocprof => Self::Rocprof,
            ProfilerName::Torch => Self::Torch,
        }
    }
}

impl BuildArgs {
    pub fn into_plan(self) -> PlanArgs {
        PlanArgs {
            wanted: self.wanted,
            insist: self.insist,
            exit_code: false,
            locked: self.locked,
            max_gpu_hours: self.max_gpu_hours,
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    pub wanted: Wanted,
    #[command(flatten)]
    pub insist: Insist,
    /// Exit with 5 if anything is stale
    #[arg(long)]
    pub exit_code: bool,
    /// Exit with 2 if the estimate is above this, on all hosts together, or a run has none
    #[arg(long, value_name = "H", value_parser = hours)]
    pub max_gpu_hours: Option<f64>,
    /// Exit with 2 if tprimat.lock would have to be written, or if this host differs from it
    #[arg(long, conflicts_with = "allow_drift")]
    pub locked: bool,
}

/// GPU-hours: a number that is not negative.
fn hours(text: &str) -> Result<f64, String> {
    let hours = text.parse::<f64>().map_err(|e| e.to_string())?;
    if hours.is_finite() && hours >= 0.0 { Ok(hours) } else { Err("expected a number of hours, 0 or more".into()) }
}

#[derive(Args, Clone, Debug)]
pub struct FitArgs {
    /// A matrix, or a cell of it: leading segments of platform/framework/model/parallelism, globs allowed
    #[arg(value_name = "MATRIX|CELL")]
    pub target: Option<String>,
    /// The matrix that has the cell [default: as for plan]
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Option<String>,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub cells: Cells,
    #[command(flatten)]
    pub drift: Drift,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub wanted: Wanted,
}

#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// platform/framework/model/parallelism, with #REPEAT for one run
    pub cell: String,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    #[command(flatten)]
    pub insist: Insist,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// platform/framework/model/parallelism, with #REPEAT for one run
    pub cell: String,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AttemptsArgs {
    #[command(subcommand)]
    pub command: Option<AttemptsCommand>,
    /// platform/framework/model/parallelism, with #REPEAT for one repeat
    pub cell: Option<String>,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand, Clone, Debug)]
pub enum AttemptsCommand {
    /// Keep a measurement but do not count it; the reason is shown beside the figures
    SetAside(SetAsideArgs),
    /// Let a measurement that was set aside count again
    Restore(RestoreArgs),
}

#[derive(Args, Clone, Debug)]
pub struct SetAsideArgs {
    /// The attempt's id, or the beginning of it; CELL or CELL#REPEAT of which one run counts
    pub id: String,
    /// What was wrong with the run
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

#[derive(Args, Clone, Debug)]
pub struct RestoreArgs {
    /// The attempt's id, or the beginning of it; CELL or CELL#REPEAT of which one run was set aside
    pub id: String,
}

#[derive(Args, Clone, Debug)]
pub struct RenderArgs {
    /// platform/framework/model/parallelism
    pub cell: String,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    /// Write the launch files and job.json into this folder instead of printing them
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// platform/framework/model/parallelism, with #REPEAT for one run
    #[arg(required_unless_present = "attempt")]
    pub cell: Option<String>,
    /// The log of this attempt, whether it counts or not; `tprimat attempts CELL` lists them
    #[arg(long, value_name = "ID", conflicts_with_all = ["cell", "follow"])]
    pub attempt: Option<String>,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    /// Go on printing while the run goes on
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    #[command(flatten)]
    pub compared: Compared,
    /// How it is printed; csv has a row a cell
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub format: CompareFormat,
    /// Print exactly one JSON value: the same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
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
    pub fn format(&self) -> CompareFormat {
        if self.json { CompareFormat::Json } else { self.format }
    }
}

#[derive(Args, Clone, Debug)]
pub struct BaselineArgs {
    #[command(flatten)]
    pub wanted: Wanted,
    /// The file to write [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    #[command(flatten)]
    pub compared: Compared,
    /// A folder for all files, or FILE.html for the page alone [default: the folder of builds; two cells need one]
    #[arg(short, long, value_name = "DIR|FILE.html")]
    pub output: Option<PathBuf>,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct GateArgs {
    #[command(flatten)]
    pub wanted: Wanted,
    /// What `tprimat baseline` wrote
    #[arg(long, value_name = "FILE")]
    pub baseline: PathBuf,
    /// How much slower a cell may be, in tokens/s/GPU: `3%` or `0.03`
    #[arg(long, value_name = "SHARE", default_value = "3%")]
    pub max_regression: String,
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
    /// A cell, with --log, --result or --tfevents; else files, folders with names as the suites wrote them, or another
    /// project's cache
    #[arg(value_name = "CELL | PATH")]
    pub names: Vec<String>,
    /// A trainer's log; several are the ranks of one run, in their order
    #[arg(long, value_name = "FILE")]
    pub log: Vec<PathBuf>,
    /// A result file of an older suite (JSON)
    #[arg(long, value_name = "FILE")]
    pub result: Vec<PathBuf>,
    /// A TensorBoard event file
    #[arg(long, value_name = "FILE")]
    pub tfevents: Vec<PathBuf>,
    /// The matrix that may have the cell [default: as for plan]
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Option<String>,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct ParseArgs {
    /// A log, or `-` for stdin
    pub file: PathBuf,
    /// The log's format [default: detected]
    #[arg(long)]
    pub format: Option<String>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// Print one value: `get training.data.seq_length`
    #[arg(value_name = "get PATH", num_args = 0..=2)]
    pub get: Vec<String>,
    /// Print as `export` lines for a shell
    #[arg(long, conflicts_with = "json")]
    pub shell: bool,
    /// Print config.yaml with the keys of older suites in today's spelling; comments are kept, and the file is not changed
    #[arg(long, conflicts_with_all = ["json", "shell", "get"])]
    pub upgrade: bool,
    #[arg(long)]
    pub json: bool,
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
    #[arg(long, value_enum, default_value = "dot")]
    pub format: GraphFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum GraphFormat {
    Dot,
    Mermaid,
}

#[derive(Args, Clone, Debug)]
pub struct LockArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub cells: Cells,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
    /// Write what this host has now
    #[arg(long)]
    pub update: bool,
}

#[derive(Args, Clone, Debug)]
pub struct RecipeArgs {
    #[command(subcommand)]
    pub command: RecipeCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum RecipeCommand {
    /// List the recipes that this project can use
    List(RecipeListArgs),
    /// List the files of a recipe, or print one of them
    Show(RecipeShowArgs),
    /// Copy a recipe with its templates into recipes/ of this project, to change it
    Copy(RecipeCopyArgs),
}

#[derive(Args, Clone, Debug)]
pub struct RecipeListArgs {
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct RecipeShowArgs {
    /// A recipe, or `lib`: what the programs of several recipes share
    #[arg(value_name = "RECIPE")]
    pub id: String,
    /// One of its files
    pub file: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct RecipeCopyArgs {
    #[arg(value_name = "RECIPE")]
    pub id: String,
    /// The name of the copy [default: the same, which then takes the place of the shipped one]
    #[arg(long = "as", value_name = "NAME")]
    pub new_id: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct ImageArgs {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum ImageCommand {
    /// Render the Dockerfile of a framework and build it with docker or podman
    Build(ImageBuildArgs),
}

#[derive(Args, Clone, Debug)]
pub struct ImageBuildArgs {
    /// A framework, or a cell of it: platform/framework/…
    #[arg(value_name = "CELL|FRAMEWORK")]
    pub target: String,
    /// For which platform, where no cell says it
    #[arg(long, value_name = "PLATFORM")]
    pub platform: Option<String>,
    /// The base image [default: frameworks.<id>.image of config.yaml, then the recipe's]
    #[arg(long, value_name = "IMAGE")]
    pub base: Option<String>,
    /// Let the container run as this user instead of the base image's, which is often root
    #[arg(long, value_name = "UID[:GID]")]
    pub user: Option<String>,
    /// The name of the image [default: tprimat/<framework>:<vendor>]
    #[arg(long, value_name = "NAME")]
    pub tag: Option<String>,
    /// Print the Dockerfile and the command; build nothing
    #[arg(long)]
    pub print: bool,
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct ShellArgs {
    /// Whose GPUs, and whose environment
    pub platform: String,
    /// Whose image [default: the first framework of config.yaml with one]
    #[arg(long, value_name = "FRAMEWORK")]
    pub framework: Option<String>,
    /// Another image
    #[arg(long, value_name = "NAME")]
    pub image: Option<String>,
    /// Print the command; run nothing
    #[arg(long)]
    pub print: bool,
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    /// What to run in place of a shell
    #[arg(last = true)]
    pub command: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct DataArgs {
    #[command(subcommand)]
    pub command: DataCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum DataCommand {
    /// Say what a dataset holds, and all that is wrong with it
    Verify(VerifyArgs),
    /// Name a dataset's content: the same wherever it lies
    Fingerprint(FingerprintArgs),
    /// Write a dataset from local text
    Encode(EncodeArgs),
}

#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// PREFIX.idx and PREFIX.bin are read
    pub prefix: PathBuf,
    /// Every token must be below this
    #[arg(long, value_name = "N")]
    pub vocab_size: Option<u64>,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct FingerprintArgs {
    /// PREFIX.idx and PREFIX.bin are read
    pub prefix: PathBuf,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct EncodeArgs {
    /// .txt (documents with blank lines between them) or .jsonl (one document a line)
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<PathBuf>,
    /// A tokenizer.json, or a folder that has one
    #[arg(long, value_name = "FILE")]
    pub tokenizer: PathBuf,
    /// PREFIX.idx and PREFIX.bin are written
    #[arg(long, value_name = "PREFIX")]
    pub output: PathBuf,
    /// End each document with a token [default: the tokenizer's own, where that is plain]
    #[arg(long, value_name = "TOKEN", num_args = 0..=1, require_equals = true)]
    pub append_eod: Option<Option<String>>,
    /// Where in a .jsonl line the text is
    #[arg(long, value_name = "KEY", default_value = "text")]
    pub json_key: String,
    /// Print exactly one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct CleanArgs {
    /// Remove the cache as well: every measurement that is not elsewhere is lost
    #[arg(long)]
    pub cache: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// The folder [default: this one]
    pub folder: Option<PathBuf>,
    /// Write the matrix that config.yaml implies to pipelines/matrix.toml
    #[arg(long)]
    pub matrix: bool,
}

#[derive(Args, Clone, Debug)]
pub struct SchemaArgs {
    /// One of: job, events, trace, result, summary, comparison, baseline, gate, config, recipe, fit
    pub what: String,
}

#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    pub shell: clap_complete::Shell,
}
