//! Cells: what they are, what they were, what they would do.

use std::path::PathBuf;

use clap::Args;
use jiff::{Span, Timestamp, civil::DateTime, tz::TimeZone};

use crate::cli::flags::{Cells, Common, Drift, LastFailed, MatrixSelection, Measured, Overrides};

#[derive(Args, Clone, Debug)]
pub struct FitArgs {
    /// A matrix, or a cell of it: leading segments of platform/framework/model/parallelism, globs
    /// allowed
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
}

#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub selection: MatrixSelection,
    #[command(flatten)]
    pub last: LastFailed,
}

#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
}

#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// platform/framework/model/parallelism, with #REPEAT for one run
    pub cell: String,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    /// Say why its tasks are stale, field by field
    #[arg(long, group = "instead")]
    pub stale: bool,
    /// List every run of it that was ever made, and say which one counts
    #[arg(long, group = "instead")]
    pub attempts: bool,
    /// Show what it would launch: its settings with their origins, and its launch files
    #[arg(long, group = "instead")]
    pub launch: bool,
    /// Write the launch files and job.json into this folder instead of printing them
    #[arg(short, long, value_name = "DIR", requires = "launch")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub overrides: Overrides,
}

#[derive(Args, Clone, Debug)]
pub struct HistoryArgs {
    /// Cells as in platform/framework/model/parallelism, leading segments and globs allowed; with a
    /// matrix, of its cells [default: all of the cache]
    #[arg(value_name = "MATRIX | CELL")]
    pub names: Vec<String>,
    /// The matrix, in any place
    #[arg(long, value_name = "MATRIX")]
    pub matrix: Option<String>,
    /// Override a setting of config.yaml
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub sets: Vec<String>,
    /// Only measurements from then on: `2026-10-02`, or an age such as `30d`, `12h`, `2w`
    #[arg(long, value_name = "DATE|AGE", value_parser = moment)]
    pub since: Option<f64>,
    /// Only runs on these hosts; globs allowed
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Hold each measurement against this baseline too (`tprimat gate --write FILE`) [default: against
    /// the first measurements of its speed]
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Draw the speed over time into this file
    #[arg(short, long, value_name = "FILE.svg|FILE.png", value_parser = picture)]
    pub output: Option<PathBuf>,
}

/// `2026-10-02`, `2026-10-02T18:30`, or an age; in seconds since 1970.
pub fn moment(text: &str) -> Result<f64, String> {
    let date = || {
        let time = text.parse::<DateTime>().ok()?;
        Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
    };
    let ago = || {
        let age = text.parse::<Span>().ok().filter(|age| !age.is_negative())?;
        let now = Timestamp::now().to_zoned(TimeZone::UTC);
        Some(now.checked_sub(age).ok()?.timestamp())
    };
    let time = text.parse::<Timestamp>().ok().or_else(date).or_else(ago);
    time.map(|time| time.as_microsecond() as f64 / 1e6)
        .ok_or_else(|| "expected a date or an age: 2026-10-02, 2026-10-02T18:30 (UTC), 30d".into())
}

pub(super) fn picture(text: &str) -> Result<PathBuf, String> {
    let is_picture = text.ends_with(".svg") || text.ends_with(".png");
    is_picture
        .then(|| PathBuf::from(text))
        .ok_or_else(|| "expected the name of an .svg or a .png: speed.svg".into())
}

#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// platform/framework/model/parallelism, with #REPEAT for one run
    #[arg(required_unless_present_any = ["attempt", "failed", "follow"])]
    pub cell: Option<String>,
    /// The last log of every cell of the matrix whose last run failed
    #[arg(long, conflicts_with_all = ["attempt", "follow"])]
    pub failed: bool,
    /// The log of this attempt, whether it counts or not; `tprimat show CELL --attempts` lists them
    #[arg(long, value_name = "ID", conflicts_with_all = ["cell", "follow"])]
    pub attempt: Option<String>,
    /// Where the processes of a run that hung were, instead of its log
    #[arg(long, conflicts_with_all = ["failed", "follow", "node"])]
    pub stacks: bool,
    /// The log of this node of a run on several, counted from 0
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with_all = ["failed", "follow"])]
    pub node: usize,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub measured: Measured,
    /// Go on printing while the run goes on; without a cell, of the one that goes on now
    #[arg(short, long)]
    pub follow: bool,
    /// The last lines only, of a run that is over
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "follow")]
    pub tail: Option<usize>,
}
