//! The cache, and the remote that it shares its runs with.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::cells::moment;
use crate::cli::flags::Common;

#[derive(Subcommand, Clone, Debug)]
pub enum CacheCommand {
    /// Put the runs of this cache into the remote cache
    Push {
        #[command(flatten)]
        remote: RemoteArgs,
        /// Also read what the remote has of these runs, and replace what is damaged there
        #[arg(long)]
        repair: bool,
    },
    /// Take in the runs that the remote cache has and this one lacks
    Pull(RemoteArgs),
    /// Show what the cache holds
    Stat,
    /// Read every record and file and hold it against its digest; exit with 1 if something is damaged
    /// or lost
    Verify {
        /// Read every run of the remote cache instead, and change nothing [default: paths.remote]
        #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
        remote: Option<String>,
    },
    /// Remove what a build draws again (old comparisons, pictures, pages) and what no record names;
    /// never a log or a result
    Gc(GcArgs),
    /// Write every run and import to one file, for another cache: a .tar.zst of this folder's shared
    /// part
    Export {
        /// The file to write, say runs.tar.zst
        file: PathBuf,
    },
    /// Take in the runs and imports of a file that `cache export` wrote
    Import {
        /// A file that `cache export` wrote
        file: PathBuf,
    },
    /// Keep a run but do not count it; the reason is shown beside the figures
    SetAside {
        /// The attempt's id, or the beginning of it; CELL or CELL#REPEAT of which one run counts, or an
        /// import
        #[arg(value_name = "ID | CELL")]
        id: String,
        #[command(flatten)]
        common: Common,
        /// What was wrong with the run
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Let a run that was set aside count again
    Restore {
        /// The attempt's id, or the beginning of it; CELL or CELL#REPEAT of which one run was set aside,
        /// or an import
        #[arg(value_name = "ID | CELL")]
        id: String,
        #[command(flatten)]
        common: Common,
    },
    /// Remove what was published in the output folder
    Clean {
        /// Remove the cache as well: every measurement that is not elsewhere is lost
        #[arg(long)]
        all: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Args, Clone, Debug, Default)]
pub struct RemoteArgs {
    /// The remote cache: file:///FOLDER, s3://BUCKET/PREFIX, gs:// or az:// [default: paths.remote]
    #[arg(long, value_name = "ADDRESS")]
    pub remote: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct GcArgs {
    /// Remove what is drawn and older than this: 12h, 30d
    #[arg(long, value_name = "AGE|DATE", value_parser = moment)]
    pub older_than: Option<f64>,
    /// Say what would be removed, and remove nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}
