//! Where `experiment.profiling=torch` asks for a trace, the trainer leaves one with a mark around each profiled step.
#![allow(
    clippy::disallowed_methods,
    reason = "plays tprimat, which writes the job"
)]

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

#[test]
fn a_profiled_run_leaves_its_steps_in_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    for (steps, marked) in [(7, vec![3, 4, 5]), (4, vec![3, 4])] {
        let job = json!({
            "model": {
                "architecture": "llama", "num_layers": 1, "hidden_size": 16, "ffn_hidden_size": 32,
                "num_attention_heads": 2, "num_kv_heads": 1, "head_dim": 8, "vocab_size": 32, "rope_theta": 1e4, "norm_eps": 1e-5
            },
            "data": { "micro_batch_size": 1, "global_batch_size": 1, "gradient_accumulation_steps": 1, "seq_length": 8 },
            "train_iters": steps,
            "optimizer": { "type": "adamw", "learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "state_precision": "fp32" },
            "precision": "fp32",
            "seed": 7
        });
        fs::write(folder.path().join("job.json"), job.to_string()).unwrap();
        let done = Command::new(env!("CARGO_BIN_EXE_tprimat-native"))
            .current_dir(&folder)
            .args(["--job", "job.json"])
            .env("OMP_NUM_THREADS", "1")
            .env("TPRIMAT_PROFILE_DIR", folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let trace = fs::read(folder.path().join("trace.json")).unwrap();
        let trace: Value = serde_json::from_slice(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names: Vec<&str> = events
            .iter()
            .filter_map(|event| event["name"].as_str())
            .collect();
        let mut marks = names.clone();
        marks.retain(|name| name.starts_with("ProfilerStep#"));
        let expected: Vec<String> = marked.iter().map(|n| format!("ProfilerStep#{n}")).collect();
        assert_eq!(marks, expected);
        assert!(
            names.iter().any(|name| name.starts_with("aten::")),
            "no operation is in the trace"
        );
    }
}
