//! Building, planning, and builds that run on their own.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;

use crate::cli::flags::{Common, LastFailed, MatrixSelection, OUTPUT, Overrides, RUNS};

#[derive(Args, Clone, Debug, Default)]
pub struct BuildArgs {
    #[command(flatten)]
    pub selection: MatrixSelection,
    #[command(flatten)]
    pub last: LastFailed,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Run nothing: the same as `plan`
    #[arg(short = 'n', long, help_heading = OUTPUT, conflicts_with_all = ["cached_only", "events"])]
    pub dry_run: bool,
    /// How many runs at once, of those that may share the host, and as many other tasks; no two runs
    /// have the same GPU [default: cores]
    #[arg(short, long, value_name = "N", help_heading = RUNS)]
    pub jobs: Option<NonZeroUsize>,
    /// Stop at the first failure instead of finishing the rest
    #[arg(long, help_heading = RUNS)]
    pub fail_fast: bool,
    /// Train nothing: use what the cache has
    #[arg(long, help_heading = RUNS, conflicts_with = "force")]
    pub cached_only: bool,
    /// Without what the build fails
    #[arg(
        long,
        value_enum,
        help_heading = RUNS,
        value_name = "locked|complete|remote",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub require: Vec<Require>,
    /// Run nothing if the plan's estimate is above this, or a run has none
    #[arg(long, value_name = "H", help_heading = RUNS, value_parser = hours)]
    pub max_gpu_hours: Option<f64>,
    /// Add runs, in turns, until each pair of cells is faster, slower or the same within this margin
    /// (`2%`), by a test that allows it; at most so many runs of a cell as --repeats says [default: 20
    /// more]
    #[arg(long, value_name = "MARGIN", help_heading = RUNS, value_parser = margin, allow_hyphen_values = true, conflicts_with = "cached_only")]
    pub decide: Option<f64>,
    /// With --decide, make at most so many runs
    #[arg(long, value_name = "N", help_heading = RUNS, requires = "decide")]
    pub max_runs: Option<usize>,
    /// Write events as JSON lines to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub events: Option<PathBuf>,
    /// Go on without this terminal; `status` and `stop` manage such builds
    #[arg(long, help_heading = OUTPUT, conflicts_with = "dry_run")]
    pub detach: bool,
    /// Run this command at the end, for at most 60 s, with TPRIMAT_EXIT_CODE set
    #[arg(long, value_name = "COMMAND", help_heading = OUTPUT, conflicts_with = "dry_run")]
    pub notify: Option<String>,
}

/// What a build must have, or it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Require {
    /// tprimat.lock, complete and as this host is: exit with 2 else
    Locked,
    /// A result of each cell of the matrix: exit with 5 else
    Complete,
    /// The remote cache: fail before anything runs, or with 1 at the end
    Remote,
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

impl BuildArgs {
    pub fn requires(&self, what: Require) -> bool {
        self.require.contains(&what)
    }

    pub fn into_plan(self) -> PlanArgs {
        let require = self.requires(Require::Locked).then(|| "locked".to_owned());
        PlanArgs {
            selection: self.selection,
            last: self.last,
            overrides: self.overrides,
            exit_code: false,
            require,
            max_gpu_hours: self.max_gpu_hours,
            decide: self.decide,
            max_runs: self.max_runs,
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
    /// Exit with 5 if anything is stale
    #[arg(long)]
    pub exit_code: bool,
    /// Exit with 2 if the estimate is above this, on all hosts together, or a run has none
    #[arg(long, value_name = "H", value_parser = hours)]
    pub max_gpu_hours: Option<f64>,
    /// Exit with 2 if tprimat.lock would have to be written, or if this host differs from it
    #[arg(long, value_name = "locked", value_parser = ["locked"], hide_possible_values = true)]
    pub require: Option<String>,
    /// The margin of `build --decide --dry-run`.
    #[arg(skip)]
    pub decide: Option<f64>,
    /// Its `--max-runs`.
    #[arg(skip)]
    pub max_runs: Option<usize>,
}

/// A share that is no more than half: `2%` or `0.02`.
pub fn margin(text: &str) -> Result<f64, String> {
    const EXPECTED: &str = "expected a margin of at most 50 %: `2%` or `0.02`";
    match (share(text), share(&format!("{text}%"))) {
        (Some(share), _) if share > 0.0 && share <= 0.5 => Ok(share),
        (None, Some(percent)) if percent <= 0.5 => {
            Err(format!("{EXPECTED}; did you mean `{text}%`?"))
        }
        _ => Err(EXPECTED.into()),
    }
}

/// `3%` or `0.03` → 0.03.
pub fn share(text: &str) -> Option<f64> {
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    let share = number.parse::<f64>().ok()? / unit;
    (0.0..1.0).contains(&share).then_some(share)
}

/// GPU-hours: a number that is not negative.
pub fn hours(text: &str) -> Result<f64, String> {
    let hours = text.parse::<f64>().map_err(|e| e.to_string())?;
    if hours.is_finite() && hours >= 0.0 {
        Ok(hours)
    } else {
        Err("expected a number of hours, 0 or more".into())
    }
}
