//! What the analysis costs: 1,000 results of 500 steps each → summaries → comparison, beside
//! reading the same results from JSON in the same run: `cargo bench --bench analyze`. Also what
//! many contracts and odd series cost.

use std::{collections::BTreeMap, time::Instant};

use serde_json::json;
use tprimat::{
    figures::{
        Catalogue, CellEnvironment, CellInput, CellState, CompareSettings, Standing, Statistics,
        Summary, compare, summarize,
    },
    job::{DataJob, Job, ModelShape, OptimizerJob, ParallelismJob, RunOutcome},
    logs::{Effective, Step, Trace},
    results::{CUSUM, RunFacts, RunResult, slow_first_steps},
};

const REPEATS: u32 = 5;
const STEPS: u64 = 500;
/// Of each figure the best of so many.
const ROUNDS: usize = 5;

fn main() {
    let jobs: Vec<Job> = (0..200).map(|cell| job(cell, 8)).collect();
    let results: Vec<Vec<(u32, RunResult)>> = jobs
        .iter()
        .enumerate()
        .map(|(i, job)| repeats(i, job))
        .collect();
    let count = results.iter().map(Vec::len).sum::<usize>();
    println!(
        "{count} results of {STEPS} steps, {} cells; best of {ROUNDS} rounds",
        results.len()
    );
    let statistics = Statistics { warmup_steps: 5 };
    let text: Vec<String> = results
        .iter()
        .flatten()
        .map(|(_, r)| serde_json::to_string(r).expect("JSON"))
        .collect();
    let (reading, read) = best(|| {
        text.iter()
            .map(|t| serde_json::from_str::<RunResult>(t))
            .filter(Result::is_ok)
            .count()
    });
    assert_eq!(read, count);
    let (summing, summaries) = best(|| {
        results
            .iter()
            .map(|cell| summarize(cell, &statistics))
            .collect::<Vec<_>>()
    });
    let all_count = |s: &Summary| s.n == REPEATS as usize && s.steady_state == CUSUM;
    assert!(
        summaries.iter().all(all_count),
        "a repeat does not count: {:?}",
        summaries[0].notes
    );
    let cells: Vec<CellInput> = summaries
        .into_iter()
        .enumerate()
        .map(|(i, s)| cell(i, s, "auto"))
        .collect();
    let (comparing, comparison) =
        best(|| compare(&cells, &CompareSettings::default(), &Catalogue::default()));
    assert_eq!(
        (comparison.rows.len(), comparison.groups.len()),
        (cells.len(), 1)
    );
    let megabytes = text.iter().map(String::len).sum::<usize>() as f64 / 1e6;
    println!(
        "  reading the results' JSON   {:8.1} ms ({megabytes:.0} MB)",
        reading * 1e3
    );
    println!("  summarize                   {:8.1} ms", summing * 1e3);
    println!("  compare                     {:8.1} ms", comparing * 1e3);
    println!(
        "  analysis ÷ reading          {:8.2}",
        (summing + comparing) / reading
    );

    println!("compare alone, one repeat of 20 steps a cell:");
    for (what, strategy, other_batches) in [
        ("600 seeds, one group", "auto", false),
        ("600 batch sizes, a group each", "auto", true),
        (
            "600 seeds, identical_config, a group each",
            "identical_config",
            false,
        ),
    ] {
        let cells: Vec<CellInput> = (0..600)
            .map(|i| {
                let job = Job {
                    train_iters: 20,
                    ..job(i, if other_batches { 8 + i as u64 } else { 8 })
                };
                cell(i, summarize(&[(1, run(i, 1, &job))], &statistics), strategy)
            })
            .collect();
        let (seconds, comparison) =
            best(|| compare(&cells, &CompareSettings::default(), &Catalogue::default()));
        println!(
            "  {what:42} {:8.1} ms, groups: {}",
            seconds * 1e3,
            comparison.groups.len()
        );
    }

    println!("slow_first_steps where every step is faster than the one before:");
    for n in [500, 5_000, 50_000] {
        let step = |i: u32| Step {
            step_time_seconds: Some(2.0 / (1.0 + f64::from(i)).powi(2)),
            ..Step::default()
        };
        let falling: Vec<Step> = (0..n).map(step).collect();
        let (seconds, slow) = best(|| slow_first_steps(&falling));
        println!("  {n:6} steps {:8.2} ms, slow: {slow}", seconds * 1e3);
    }
}

/// Seconds of the fastest round, and what it made.
fn best<T>(work: impl Fn() -> T) -> (f64, T) {
    let round = || {
        let start = Instant::now();
        let made = work();
        (start.elapsed().as_secs_f64(), made)
    };
    let mut fastest = round();
    for _ in 1..ROUNDS {
        let this = round();
        if this.0 < fastest.0 {
            fastest = this;
        }
    }
    fastest
}

fn job(cell: usize, global_batch_size: u64) -> Job {
    Job {
        model: ModelShape {
            architecture: "llama".into(),
            num_layers: 32,
            hidden_size: 4096,
            ffn_hidden_size: 14336,
            num_attention_heads: 32,
            num_kv_heads: 8,
            head_dim: 128,
            vocab_size: 128_256,
            ..ModelShape::default()
        },
        data: DataJob {
            micro_batch_size: 1,
            global_batch_size,
            gradient_accumulation_steps: 1,
            seq_length: 2048,
        },
        parallelism: ParallelismJob {
            num_gpus: 8,
            data_parallel_size: 8,
            ..ParallelismJob::default()
        },
        train_iters: STEPS,
        optimizer: OptimizerJob {
            r#type: "adamw".into(),
            learning_rate: 3e-4,
            min_learning_rate: 3e-4,
            warmup_steps: 20,
            state_precision: "fp32".into(),
            ..OptimizerJob::default()
        },
        precision: "bf16".into(),
        seed: 1000 + cell as u64,
        ..Job::default()
    }
}

fn repeats(cell: usize, job: &Job) -> Vec<(u32, RunResult)> {
    (1..=REPEATS)
        .map(|repeat| (repeat, run(cell, repeat, job)))
        .collect()
}

/// A run that states what it does: slow first steps, a start that settles, noise, a stall now and
/// then.
fn run(cell: usize, repeat: u32, job: &Job) -> RunResult {
    let noise = |step: u64| noise(cell as u64 * 1_000_003 + u64::from(repeat) * 10_007 + step);
    let level = (2.0 + 0.01 * (cell % 17) as f64) * (1.0 + 0.01 * noise(0));
    let step = |step: u64| {
        let i = step as f64;
        let stall = if noise(step + 3) > 0.995 { 1.3 } else { 1.0 };
        let time = level
            * stall
            * (1.0 + 0.01 * noise(step) + 6.0 * (-i).exp() + 0.05 * (-i / 40.0).exp());
        Step {
            step,
            step_time_seconds: Some(time),
            loss: Some(2.0 + 9.8 * (-i / 90.0).exp() + 0.1 * noise(step + 5)),
            learning_rate: Some(3e-4 * (i / 20.0).min(1.0)),
            grad_norm: Some(1.0 + noise(step + 7)),
            memory_bytes: Some(50 << 30),
            memory_kind: Some("peak_allocated".into()),
            memory_source: Some("torch".into()),
            ..Step::default()
        }
    };
    let stated = json!({"global_batch_size": job.data.global_batch_size, "seq_length": job.data.seq_length,
        "num_gpus": job.parallelism.num_gpus, "precision": "torch.bfloat16", "seed": job.seed});
    let trace = Trace {
        format: "tprimat".into(),
        steps: (1..=job.train_iters).map(step).collect(),
        effective: Effective(serde_json::from_value(stated).expect("an object")),
        finished: true,
        ..Trace::default()
    };
    let started_at = 1.7e9 + 3600.0 * f64::from(repeat);
    let facts = RunFacts {
        attempt: format!("{cell}-{repeat}"),
        host: "node1".into(),
        started_at: Some(started_at),
        ended_at: Some(started_at + 1200.0),
        outcome: RunOutcome::Ok,
    };
    RunResult::from(trace, job, facts)
}

fn cell(i: usize, summary: Summary, strategy: &str) -> CellInput {
    CellInput {
        cell: format!("nvd/tran/llama-3.1-8b/{strategy}/seed={i}"),
        platform: "nvd".into(),
        framework: "tran".into(),
        model: "llama-3.1-8b".into(),
        parallelism: strategy.to_owned(),
        axes: BTreeMap::from([("seed".to_owned(), i.to_string())]),
        repeats_wanted: REPEATS,
        state: CellState::Ok {
            summary: Box::new(summary),
        },
        same_launch_as: None,
        imported: Vec::new(),
        environment: CellEnvironment::default(),
        standing: Standing::default(),
    }
}

/// The same numbers for the same `n`, from 0 to 1 (SplitMix64's mixing).
fn noise(n: u64) -> f64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
