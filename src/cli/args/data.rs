//! Token files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
}

#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// PREFIX.idx and PREFIX.bin are read
    pub prefix: PathBuf,
    /// Every token must be below this
    #[arg(long, value_name = "N")]
    pub vocab_size: Option<u64>,
}

#[derive(Args, Clone, Debug)]
pub struct FingerprintArgs {
    /// PREFIX.idx and PREFIX.bin are read
    pub prefix: PathBuf,
}
