//! tprimat-native: trains Llama, Mistral, Qwen2.5 and GPT-2 shapes with libtorch and prints JSON
//! lines.
//!
//! The flow: job → refused or accepted (`support`) → device, parameters, model → `train`, which
//! runs `tokens` → `model` → `backward` → `parameters` once per step, or in place of the last three
//! `fused` (on a GPU). For several devices it first starts itself once for each (`ranks`). The only
//! program that may use tch.

mod backward;
mod checkpoint;
#[cfg(test)]
#[path = "../../job/src/samples/dataset_for_tests.rs"]
mod dataset_for_tests;
mod device;
mod events;
mod fused;
mod gpt2;
mod model;
mod parameters;
mod profile;
mod ranks;
mod rope;
mod shape;
mod shim;
mod stop;
mod support;
mod tensor_file;
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

use crate::{
    checkpoint::Checkpoints,
    events::Events,
    ranks::{Ring, launch},
    stop::Stop,
    train::{Begin, Trainer},
};

/// Trains what a tprimat job describes, and prints its progress as JSON lines.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The job, as JSON.
    #[arg(
        long,
        env = "TPRIMAT_JOB",
        value_name = "FILE",
        required_unless_present = "self_test"
    )]
    job: Option<PathBuf>,
    /// Starts from these weights (safetensors, Hugging Face names) instead of random ones: a file,
    /// or a folder with model.safetensors or with several files and their index.
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// What a job with a dataset trains on: PREFIX.bin and PREFIX.idx.
    #[arg(long, env = "TPRIMAT_DATASET", value_name = "PREFIX")]
    dataset: Option<PathBuf>,
    /// Writes checkpoints to FOLDER/step-N, in Hugging Face's layout, after every
    /// `checkpoint_every` steps of the job's framework settings, and after the last one.
    #[arg(
        long,
        env = "TPRIMAT_CHECKPOINTS",
        value_name = "FOLDER",
        default_value = "checkpoints"
    )]
    checkpoints: PathBuf,
    /// Goes on after the last step of this checkpoint.
    #[arg(long, value_name = "FOLDER", conflicts_with = "weights")]
    resume: Option<PathBuf>,
    /// Writes tokens and logits of the first micro-batch as safetensors, and does not train.
    #[arg(long, value_name = "FILE")]
    dump_logits: Option<PathBuf>,
    /// Compares the kernels of the fused step with float64 on this GPU, times them at the job's
    /// sizes if there is a job, and does not train.
    #[arg(long)]
    self_test: bool,
    #[command(flatten)]
    place: launch::Place,
}

fn main() -> ExitCode {
    // tprimat asks before it starts runs: which sources is this the trainer of?
    if std::env::args_os().skip(1).eq(["--code"]) {
        println!("{}", env!("TPRIMAT_NATIVE"));
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::parse();
    let ring = match arguments.place.join() {
        Ok(ring) => ring,
        Err(stop) => return told(&stop, None),
    };
    let rank = ring.as_ref().map(Ring::rank);
    match run(&arguments, ring) {
        Ok(code) => code,
        // Every rank has the same loss.
        Err(Stop::NanLoss(_)) if rank.is_some_and(|rank| rank > 0) => {
            ExitCode::from(launch::FOLLOWS)
        }
        // The process that started the ranks waits for the one that knows why.
        Err(Stop::Lost(error)) if rank.is_some() => {
            eprintln!("tprimat-native, rank {}: {error}", rank.unwrap_or_default());
            ExitCode::from(launch::FOLLOWS)
        }
        Err(stop) => told(&stop, rank),
    }
}

/// Says why nothing more is trained: the event is for programs, and stdout may be what broke.
fn told(stop: &Stop, rank: Option<usize>) -> ExitCode {
    let message = rank.map_or_else(|| stop.to_string(), |rank| format!("rank {rank}: {stop}"));
    let _ = Events(io::stdout().lock()).error(stop.class(), &message);
    eprintln!("tprimat-native: {message}");
    ExitCode::from(stop.exit_code() as u8)
}

fn run(arguments: &Arguments, ring: Option<Ring>) -> Result<ExitCode, Stop> {
    let job = arguments.job.as_deref().map(read_job).transpose()?;
    if arguments.self_test {
        return match fused::self_test::run(job.as_ref())? {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Stop::SelfTest),
        };
    }
    let Some(job) = job else {
        return Err(Stop::Refused("no job is named; use --job FILE".to_owned()));
    };
    let refusals = support::refusals(&job);
    if !refusals.is_empty() {
        return Err(Stop::Refused(format!(
            "cannot run this job: {}",
            refusals.join("; ")
        )));
    }
    let ranks = job.parallelism.num_gpus as usize;
    let is_silent = ring.as_ref().is_some_and(|ring| ring.rank() > 0);
    if ring.is_none() && ranks > 1 {
        return launch::run(ranks, &mut Events(io::stdout().lock()));
    }
    let begin = match (&arguments.resume, &arguments.weights) {
        (Some(folder), _) => Begin::Resume(folder),
        (None, Some(file)) => Begin::Weights(file),
        (None, None) => Begin::Random,
    };
    let mut trainer = Trainer::new(&job, begin, arguments.dataset.as_deref(), ring)?;
    // One folder is set for all runs of a matrix, so each has a folder of its own in it.
    let run = std::env::var_os("TPRIMAT_RUN_ID")
        .filter(|_| std::env::var_os("TPRIMAT_CHECKPOINTS").is_some());
    let folder = run.map_or_else(
        || arguments.checkpoints.clone(),
        |run| arguments.checkpoints.join(run),
    );
    trainer.checkpoints =
        support::checkpoint_every(&job).map(|every| Checkpoints { folder, every });
    match &arguments.dump_logits {
        Some(path) => trainer.dump_logits(path)?,
        None if is_silent => trainer.run(&mut Events(io::sink()))?,
        None => trainer.run(&mut Events(io::stdout().lock()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read_job(path: &Path) -> Result<Job, Stop> {
    let fail = |source| Stop::File {
        what: "cannot read the job",
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::read(path).map_err(|e| fail(e.into()))?;
    serde_json::from_slice(&bytes).map_err(|e| fail(e.into()))
}
