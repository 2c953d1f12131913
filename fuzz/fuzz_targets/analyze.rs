//! A log of any format against a job made of the first bytes: attested, summarised, and plain JSON
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tprimat::{results::{Claim, RunFacts, RunResult}, job::{RunOutcome, DataJob, Job, ModelShape, ParallelismJob}, figures::{Statistics, summarize}, logs::parse_any};

fuzz_target!(|data: &[u8]| {
    let Some((head, log)) = data.split_at_checked(8) else { return };
    // Small counts, powers of two, and what only the labels of an imported file can claim.
    let count = |i: usize| match head[i] {
        byte @ 0..128 => u64::from(byte),
        byte @ 128..192 => 1 << (byte - 128),
        byte => u64::MAX - u64::from(byte - 192),
    };
    let small = |i: usize| count(i).min(1 << 20);
    let job = Job {
        model: ModelShape {
            architecture: "llama".into(),
            num_layers: small(6).min(256),
            hidden_size: small(7).min(1 << 15),
            ffn_hidden_size: small(7).min(1 << 15),
            num_attention_heads: 2,
            num_kv_heads: 2,
            head_dim: small(7).min(1 << 15) / 2,
            vocab_size: small(6),
            ..ModelShape::default()
        },
        data: DataJob {
            micro_batch_size: count(0),
            global_batch_size: count(1),
            gradient_accumulation_steps: count(2),
            seq_length: count(3),
        },
        train_iters: count(4),
        parallelism: ParallelismJob { num_gpus: count(5), ..ParallelismJob::default() },
        precision: "bf16".into(),
        ..Job::default()
    };
    let trace = parse_any(log);
    for claim in [Claim::of(&job), Claim::of_model(Some(job.model.clone()))] {
        let facts = RunFacts {
            attempt: "a".into(),
            host: "h".into(),
            started_at: None,
            ended_at: None,
            outcome: RunOutcome::Ok,
        };
        let result = RunResult::of_claim(trace.clone(), &claim, facts, true);
        let json = serde_json::to_string(&result).expect("a result is JSON");
        assert_eq!(serde_json::from_str::<RunResult>(&json).expect("and no number of it is lost"), result);
        let statistics = Statistics { warmup_steps: small(4) };
        let _ = summarize(&[(1, result.clone()), (2, result)], &statistics);
    }
});
