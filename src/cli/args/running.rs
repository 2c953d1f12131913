//! Building, planning, and builds that run on their own.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;

use crate::cli::flags::{Common, LastFailed, MatrixSelection, Overrides};

#[derive(Args, Clone, Debug)]
pub struct BuildArgs {
    #[command(flatten)]
    pub selection: MatrixSelection,
    #[command(flatten)]
    pub last: LastFailed,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Run nothing: the same as `plan`
    #[arg(short = 'n', long, conflicts_with_all = ["remeasure", "cached_only", "events"])]
    pub dry_run: bool,
    /// How many runs at once, of those that may share the host, and as many other tasks; no two runs
    /// have the same GPU [default: cores]
    #[arg(short, long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Measure the selected cells anew; the earlier attempts are kept
    #[arg(long)]
    pub remeasure: bool,
    /// Measure these cells anew, their repeats in turns, so that drift (clocks, heat) affects all
    /// of them equally
    #[arg(
        long,
        value_name = "CELL",
        num_args = 2..,
        conflicts_with_all = ["only", "skip", "where_", "shard", "failed", "remeasure", "cached_only", "dry_run", "profile"]
    )]
    pub together: Vec<String>,
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
    /// Share runs with this remote cache, or with `none` [default: paths.remote]
    #[arg(long, value_name = "ADDRESS")]
    pub remote: Option<String>,
    /// Fail if the remote cache cannot be reached: before anything runs, or with 1 at the end
    #[arg(long)]
    pub remote_required: bool,
    /// Exit with 2 if tprimat.lock would have to be written, or if this host differs from it
    #[arg(long, conflicts_with = "allow_drift")]
    pub locked: bool,
    /// Run each selected cell once under a profiler and measure nothing; traces go to the output
    /// folder
    #[arg(long, value_enum, value_name = "PROFILER", conflicts_with_all = ["dry_run", "remeasure", "cached_only"])]
    pub profile: Option<ProfilerName>,
    /// Run nothing if the plan's estimate is above this, or a run has none
    #[arg(long, value_name = "H", value_parser = hours, conflicts_with = "profile")]
    pub max_gpu_hours: Option<f64>,
    /// End with every figure and every note in place of the summary
    #[arg(long)]
    pub details: bool,
    /// Write events as JSON lines to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Go on without this terminal; `status` and `stop` manage such builds
    #[arg(long, conflicts_with = "dry_run")]
    pub detach: bool,
    /// Run this command at the end, for at most 60 s, with TPRIMAT_EXIT_CODE, TPRIMAT_OK,
    /// TPRIMAT_FAILED and TPRIMAT_WAITING set
    #[arg(long, value_name = "COMMAND", conflicts_with = "dry_run")]
    pub notify: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub common: Common,
    /// List the processes that hold a GPU, and end those that runs of yours left behind, after
    /// asking
    #[arg(long, conflicts_with = "json")]
    pub free_gpus: bool,
    /// Do not ask
    #[arg(short, long, requires = "free_gpus")]
    pub yes: bool,
}

#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Wait until the build is over, and exit as it does; Ctrl-C leaves it alone
    #[arg(long)]
    pub wait: bool,
    /// The build to wait for, by its name [default: the one that goes on, or the last]
    #[arg(value_name = "BUILD", requires = "wait")]
    pub name: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct StopArgs {
    /// The build, as `status` names it [default: the one that goes on, or the last]
    #[arg(value_name = "BUILD")]
    pub name: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ProfilerName {
    /// NVIDIA Nsight Systems
    Nsys,
    /// ROCm's rocprofv3; where there is none, `rocprof --stats`
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
            selection: self.selection,
            last: self.last,
            overrides: self.overrides,
            tasks: false,
            exit_code: false,
            locked: self.locked,
            max_gpu_hours: self.max_gpu_hours,
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    pub selection: MatrixSelection,
    #[command(flatten)]
    pub last: LastFailed,
    #[command(flatten)]
    pub overrides: Overrides,
    /// List every task, not only cells
    #[arg(long)]
    pub tasks: bool,
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
    if hours.is_finite() && hours >= 0.0 {
        Ok(hours)
    } else {
        Err("expected a number of hours, 0 or more".into())
    }
}
