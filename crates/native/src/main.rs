//! tprimat-native: trains Llama, Mistral, Qwen2.5 and GPT-2 shapes with libtorch and prints JSON lines.
//!
//! The flow: job → refused or accepted (`support`) → device, parameters, model → `train`, which runs
//! `tokens` → `model` → `backward` → `parameters` once per step, or on a GPU `fused` in place of the last three. The only program that may use tch.

mod backward;
mod device;
mod events;
mod fused;
mod gpt2;
mod model;
mod parameters;
mod rope;
mod schedule;
mod shape;
mod shim;
mod stop;
mod support;
mod tokens;
mod train;
mod weights;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use tprimat_job::Job;

use crate::{events::Events, stop::Stop, train::Trainer};

/// Trains what a tprimat job describes, and prints its progress as JSON lines.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The job, as JSON.
    #[arg(long, env = "TPRIMAT_JOB", value_name = "FILE", required_unless_present = "self_test")]
    job: Option<PathBuf>,
    /// Starts from these weights (safetensors, Hugging Face names) instead of random ones.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// What a job with a dataset trains on: PREFIX.bin and PREFIX.idx.
    #[arg(long, env = "TPRIMAT_DATASET", value_name = "PREFIX")]
    dataset: Option<PathBuf>,
    /// Writes tokens and logits of the first micro-batch as safetensors, and does not train.
    #[arg(long, value_name = "FILE")]
    dump_logits: Option<PathBuf>,
    /// Compares the kernels of the fused step with float64 on this GPU, times them at the job's sizes if there is a job,
    /// and does not train.
    #[arg(long)]
    self_test: bool,
}

fn main() -> ExitCode {
    // tprimat asks before it starts runs: which sources is this the trainer of?
    if std::env::args_os().skip(1).eq(["--code"]) {
        println!("{}", env!("TPRIMAT_CODE"));
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::parse();
    let mut events = Events(io::stdout().lock());
    let Err(stop) = run(&arguments, &mut events) else { return ExitCode::SUCCESS };
    // Told twice: the event is for programs, and stdout may be what broke.
    let _ = events.error(stop.class(), &stop.to_string());
    eprintln!("tprimat-native: {stop}");
    ExitCode::from(stop.exit_code() as u8)
}

fn run<W: io::Write>(arguments: &Arguments, events: &mut Events<W>) -> Result<(), Stop> {
    let job = arguments.job.as_deref().map(read_job).transpose()?;
    if arguments.self_test {
        return match fused::self_test::run(job.as_ref())? {
            true => Ok(()),
            false => Err(Stop::SelfTest),
        };
    }
    let Some(job) = job else { return Err(Stop::Refused("no job is named; use --job FILE".to_owned())) };
    let refusals = support::refusals(&job);
    if !refusals.is_empty() {
        return Err(Stop::Refused(format!("cannot run this job: {}", refusals.join("; "))));
    }
    let mut trainer = Trainer::new(&job, arguments.weights.as_deref(), arguments.dataset.as_deref())?;
    match &arguments.dump_logits {
        Some(path) => trainer.dump_logits(path),
        None => trainer.run(events),
    }
}

fn read_job(path: &Path) -> Result<Job, Stop> {
    let fail = |source| Stop::File { what: "cannot read the job", path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(|e| fail(e.into()))?;
    serde_json::from_slice(&bytes).map_err(|e| fail(e.into()))
}
