//! The command line, as clap sees it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::{flags::EVERYWHERE, verbosity::Coloured};

mod cache;
mod cells;
mod container;
mod old;
mod project;
mod results;
mod running;
#[cfg(test)]
mod tests;

pub use cache::{CacheCommand, GcArgs, RemoteArgs};
pub use cells::{CheckArgs, FitArgs, HistoryArgs, ListArgs, LogsArgs, ShowArgs, moment};
pub use container::{BuildImageArgs, ContainerCommand, PullImageArgs, ShellArgs};
pub use old::told;
pub use project::{
    ConfigArgs, DataCommand, GraphArgs, InitArgs, LockArgs, PrintCommand, RecipeCommand, SchemaName,
};
pub use results::{
    Annotations, BlameArgs, CompareArgs, CompareFormat, GateArgs, ImportArgs, ParseArgs,
    ReportArgs, WhyArgs,
};
pub use running::{BuildArgs, DoctorArgs, PlanArgs, Require, StatusArgs, StopArgs, share};

/// What commands exit with, below their help. docs/ci.md has the whole table.
mod exit_codes {
    pub const BUILD: &str = "Exit codes: 0 done; 1 a run failed, or its log contradicts its job; 2 wrong input, or refused by \
                             --require=locked or --max-gpu-hours; 4 no cell selected; 5 incomplete (--require=complete); 6 undecided (--decide)";
    pub const PLAN: &str = "Exit codes: 0 planned; 2 wrong input, or beyond --max-gpu-hours; 4 no cell selected; 5 something is stale (--exit-code)";
    pub const COMPARE: &str = "Exit codes: 0 compared; 1 cells that were named cannot be compared; 2 wrong input; 4 no cell selected";
    pub const BLAME: &str =
        "Exit codes: 0 answered; 1 a cell cannot be measured; 2 wrong input; 6 undecided";
    pub const GATE: &str = "Exit codes: 0 pass; 2 wrong input; 3 a cell is slower than allowed, or failed; 4 no cell selected; 6 undecided";
}

/// A build system for LLM-training benchmarks: declare the matrix once, get numbers that may
/// honestly be compared, and re-run only what is stale.
#[derive(Parser)]
#[command(version, max_term_width = 110, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

// No doc comment: clap would print it in place of the program's own description.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = EVERYWHERE)]
pub struct Globals {
    /// The project: this folder or its nearest ancestor with a config.yaml.
    #[arg(short = 'C', long, value_name = "DIR", global = true)]
    pub directory: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing beside the result but what went wrong
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more: which files are read, and every task of a build with the reason why it runs
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Whether to use colours
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: Coloured,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run what is stale, then compare and publish
    #[command(after_help = exit_codes::BUILD)]
    Build(BuildArgs),
    /// Show what a build would run, and why; run nothing
    #[command(after_help = exit_codes::PLAN)]
    Plan(PlanArgs),
    /// List the cells of the matrix
    List(ListArgs),
    /// Show a cell's summary or one repeat's result (CELL#2), why it is stale, all its runs, or what it launches
    Show(ShowArgs),
    /// Print the log of a cell's run
    Logs(LogsArgs),
    /// Show how a cell's speed changed over time, and what was changed before it did
    History(HistoryArgs),
    /// Show the comparison of a matrix, or of some of its cells
    #[command(after_help = exit_codes::COMPARE)]
    Compare(CompareArgs),
    /// Write the report of a matrix, or of some of its cells, from what the cache has; run nothing
    Report(ReportArgs),
    /// Fail (exit 3) if a cell is slower than a baseline, exit 6 if that cannot be decided; or write a baseline
    #[command(after_help = exit_codes::GATE)]
    Gate(GateArgs),
    /// Validate config, matrix, recipes and templates
    Check(CheckArgs),
    /// Write a starter project into a folder; a config.yaml that is there is kept
    Init(InitArgs),
    /// Predict the memory that each cell needs on a GPU, against what there is
    Fit(FitArgs),
    /// Check this host for devices, containers, Slurm, Python and disk space
    Doctor(DoctorArgs),
    /// Show every effective setting and where it comes from
    Config(ConfigArgs),
    /// List the recipes, print one, or copy one into the project
    #[command(subcommand)]
    Recipe(RecipeCommand),
    /// Import logs and results that were measured elsewhere; they stay marked (imported)
    Import(ImportArgs),
    /// Show what tprimat reads from a log
    Parse(ParseArgs),
    /// Show where the time of a step goes, from a profiler's trace; of two cells or traces, what makes the difference
    Why(WhyArgs),
    /// Measure which of the differences between two cells changed the speed
    #[command(after_help = exit_codes::BLAME)]
    Blame(BlameArgs),
    /// Show or update what tprimat.lock pins
    Lock(LockArgs),
    /// Share the runs of the cache, show what it holds, verify it, tidy it, set a run aside
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Build, fetch and list the images of frameworks, or open a shell in one
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Show detached builds and their progress
    Status(StatusArgs),
    /// End a detached build as Ctrl-C would
    Stop(StopArgs),
    /// Verify or fingerprint token files (Megatron's .bin/.idx)
    #[command(subcommand)]
    Data(DataCommand),
    /// Print the task graph, the JSON schema of a format, or a shell's completions
    #[command(subcommand)]
    Print(PrintCommand),
    /// Print a page of the documentation, or the help of a command
    Help(HelpArgs),
}

#[derive(Args)]
pub struct HelpArgs {
    /// A page such as `recipes`, or a command; without it, all of them are listed
    #[arg(value_name = "PAGE|COMMAND")]
    pub topic: Vec<String>,
}

impl Command {
    /// A cell comes before its matrix; who writes them the other way round means the same.
    pub fn in_order(&mut self) {
        match self {
            Self::Show(args) => args.common.in_order(&mut args.cell),
            Self::Logs(LogsArgs { cell, common, .. }) => {
                cell.iter_mut().for_each(|cell| common.in_order(cell));
            }
            Self::Cache(
                CacheCommand::SetAside { id, common, .. } | CacheCommand::Restore { id, common },
            ) => common.in_order(id),
            _ => {}
        }
    }

    /// Has the command nothing to say in JSON?
    pub fn is_without_json(&self) -> bool {
        match self {
            Self::Logs(_) | Self::Stop(_) | Self::Init(_) | Self::Print(_) | Self::Help(_) => true,
            Self::Cache(command) => matches!(
                command,
                CacheCommand::Clean { .. }
                    | CacheCommand::SetAside { .. }
                    | CacheCommand::Restore { .. }
            ),
            Self::Container(command) => !matches!(command, ContainerCommand::List { .. }),
            Self::Recipe(command) => !matches!(command, RecipeCommand::List),
            _ => false,
        }
    }
}
