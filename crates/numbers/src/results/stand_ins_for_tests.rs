//! Jobs and runs that tests build results from. The crates above include this file in their tests
//! as well, so it names the results by `crate::results`.
#![allow(dead_code, reason = "each crate's tests use some of them")]

use serde_json::Value;
use tprimat_job::{DataJob, Job, ModelShape, OptimizerJob, RunOutcome};
use tprimat_logs::{Effective, Step, Trace};

use crate::results::{Reading, RunFacts, TELEMETRY_SCHEMA, TelemetryHeader, TelemetryLine};

/// Layers, hidden, ffn, heads, key-value heads, head dimension, vocabulary.
pub fn shape(architecture: &str, sizes: [u64; 7], tied: bool) -> ModelShape {
    let [
        num_layers,
        hidden_size,
        ffn_hidden_size,
        num_attention_heads,
        num_kv_heads,
        head_dim,
        vocab_size,
    ] = sizes;
    ModelShape {
        architecture: architecture.into(),
        num_layers,
        hidden_size,
        ffn_hidden_size,
        num_attention_heads,
        num_kv_heads,
        head_dim,
        vocab_size,
        tie_embeddings: tied,
        qkv_bias: architecture == "qwen2",
        max_position_embeddings: if architecture == "gpt2" { 1024 } else { 0 },
        ..ModelShape::default()
    }
}

pub fn llama_8b() -> ModelShape {
    shape("llama", [32, 4096, 14336, 32, 8, 128, 128_256], false)
}

/// Qwen3-30B-A3B.
pub fn mixture() -> ModelShape {
    ModelShape {
        num_experts: 128,
        num_experts_per_tok: 8,
        moe_intermediate_size: 768,
        ..shape("qwen3_moe", [48, 2048, 6144, 32, 4, 128, 151_936], false)
    }
}

pub fn test_job() -> Job {
    Job {
        model: shape("llama", [2, 64, 128, 4, 2, 16, 256], true),
        data: DataJob {
            micro_batch_size: 2,
            global_batch_size: 8,
            gradient_accumulation_steps: 4,
            seq_length: 128,
        },
        train_iters: 3,
        optimizer: OptimizerJob {
            r#type: "adamw".into(),
            learning_rate: 3e-4,
            state_precision: "fp32".into(),
            ..OptimizerJob::default()
        },
        precision: "bf16".into(),
        seed: 1234,
        ..Job::default()
    }
}

pub fn trace(effective: Value, tokens: Option<u64>) -> Trace {
    let step = |step| Step {
        step,
        tokens,
        step_time_seconds: Some(0.5),
        loss: Some(5.0),
        ..Step::default()
    };
    Trace {
        format: "tprimat".into(),
        steps: (1..=3).map(step).collect(),
        effective: Effective(serde_json::from_value(effective).unwrap()),
        finished: true,
        ..Trace::default()
    }
}

pub fn facts(outcome: RunOutcome) -> RunFacts {
    RunFacts {
        attempt: "20260101T000000.000000Z-00".into(),
        host: "node1".into(),
        started_at: Some(1.0),
        ended_at: Some(1e6),
        outcome,
    }
}

/// `telemetry.jsonl` of these lines.
pub fn file(interval: f64, devices: usize, lines: &[(f64, Vec<Reading>)]) -> Vec<u8> {
    let header = TelemetryHeader {
        schema: TELEMETRY_SCHEMA.into(),
        source: "nvml".into(),
        interval_seconds: interval,
        devices: (0..devices).map(|d| format!("gpu-{d}")).collect(),
        unavailable: None,
    };
    let mut text = serde_json::to_string(&header).unwrap();
    for (time, devices) in lines {
        let line = TelemetryLine {
            time: *time,
            devices: devices.clone(),
        };
        text += &format!("\n{}", serde_json::to_string(&line).unwrap());
    }
    (text + "\n").into_bytes()
}

pub fn reading(watts: f64, joules: f64) -> Reading {
    Reading {
        power_watts: Some(watts),
        energy_joules: Some(joules),
        ..Reading::default()
    }
}
