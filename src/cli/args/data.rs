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
}

#[derive(Args, Clone, Debug)]
pub struct FingerprintArgs {
    /// PREFIX.idx and PREFIX.bin are read
    pub prefix: PathBuf,
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
    #[arg(short, long, value_name = "PREFIX")]
    pub output: PathBuf,
    /// End each document with a token [default: the tokenizer's own, where that is plain]
    #[arg(long, value_name = "TOKEN", num_args = 0..=1, require_equals = true)]
    pub append_eod: Option<Option<String>>,
    /// Where in a .jsonl line the text is
    #[arg(long, value_name = "KEY", default_value = "text")]
    pub json_key: String,
}
