use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{LogSection, Trace, parse_any, testing::all_kinds};

fn parse(log: &str) -> Trace {
    super::super::parse(&LogSection::named("torchtitan"), log.as_bytes())
}

/// Colours, an incomplete set of metrics and a validation, as versions of three years print
/// them.
const LOG: &str = concat!(
    "[rank0]:[titan] 2025-05-01 10:00:00,001 - root - INFO - CUDA memory usage for model: 2.50GiB(3.12%)\n",
    "[rank0]:[titan] 2025-05-01 10:00:01,001 - root - INFO - Training starts at step 1.\n",
    "[rank0]:[titan] 2025-05-01 10:00:09,001 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 11.7500  ",
    "\x1b[38;2;180;60;0mgrad_norm:  3.2500  \x1b[33mmemory: 40.00GiB(50.00%)  \x1b[34mtps: 1,024  \x1b[36mtflops: 60.50  ",
    "\x1b[35mmfu: 6.12%\x1b[39m\n",
    "[rank0]:[titan] x - INFO - step: 10  loss:  nan  grad_norm:  inf  memory: 44.00GiB(55.00%)  tps: 12,345  tflops: 1,001.25  mfu: N/A\n",
    "[rank0]:[titan] x - INFO - validate step: 10  loss:  9.5000  memory: 44.00GiB(55.00%)  tps: 20,000\n",
    "2: 2024-09-01 - root - INFO - step: 20  loss:  8.0000  memory: 44.00GiB(55.00%)  wps: 12,000  mfu: 31.50%\n",
    "3: 2024-09-01 - root - INFO - step: 20  loss:  8.0000  memory: 45.00GiB(56.25%)  wps: 12,001  mfu: 31.50%\n",
    "[titan] step: 30  loss: -1.0000  memory: 44.00GiB(55.00%)  tps: 12,000  tflops: 1.00  mfu: 1.00%",
    "[rank1]:step: 30  loss: 7.5000  memory: 44.00GiB(55.00%)  tps: 12,000  tflops: 1.00  mfu: 1.00%\n",
    "[titan] 2025-05-01 - INFO - Training completed\n",
);

#[test]
fn metric_lines_of_all_versions() {
    let trace = parse(LOG);
    assert_eq!(
        trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
        [1, 10, 20, 30]
    );
    let first = &trace.steps[0];
    assert_eq!(
        (first.loss, first.grad_norm, first.step_time_seconds),
        (Some(11.75), Some(3.25), None)
    );
    assert_eq!(
        (first.tokens_per_second_per_gpu, first.tflops_per_gpu),
        (Some(1024.0), Some(60.5))
    );
    assert_eq!(
        (first.memory_bytes, first.memory_kind.as_deref()),
        (Some(40 << 30), Some("peak_reserved"))
    );
    assert_eq!(first.other["mfu_percent"], 6.12);
    let second = &trace.steps[1];
    assert_eq!(
        (second.loss, second.grad_norm, second.other.len()),
        (None, None, 0)
    );
    assert_eq!(
        (second.tflops_per_gpu, second.steps_averaged),
        (Some(1001.25), Some(9))
    );
    assert_eq!(
        (
            trace.steps[2].tokens_per_second_per_gpu,
            trace.steps[2].memory_bytes
        ),
        (Some(12001.0), Some(45 << 30))
    );
    assert_eq!((trace.steps[3].loss, trace.step_lines), (Some(7.5), 6));
    assert_eq!(
        (trace.evaluations[0].value, trace.evaluations.len()),
        (9.5, 1)
    );
    assert_eq!(
        all_kinds(&trace),
        ["nan_grad_norm", "nan_loss", "loss_not_visible"]
    );
    assert!(trace.finished);
    assert_eq!(trace.memory[0].figures[0].bytes, 5 << 29);
}

#[test]
fn lingua_prints_relatives() {
    let log = "1: INFO    24-10-19 18:00:00 - 0:00:49 - step: 1  acc: 0  loss: 12.0  grad: 1.25e+01  flops: 2.50e+14  \
               wps: 2.00e+04  iter:  0.5  data: 0.25  lr: 6.00e-07  mem: 50%  pow: 400.5 W\n";
    let trace = parse_any(log.as_bytes());
    let step = &trace.steps[0];
    assert_eq!(
        (
            trace.format.as_str(),
            step.step_time_seconds,
            step.grad_norm
        ),
        ("torchtitan", Some(0.5), Some(12.5))
    );
    assert_eq!(
        (step.tokens_per_second_per_gpu, step.tflops_per_gpu),
        (Some(2e4), Some(250.0))
    );
    assert_eq!((step.learning_rate, step.memory_bytes), (Some(6e-7), None));
    let other: Vec<_> = step.other.iter().map(|(k, v)| (k.as_ref(), *v)).collect();
    let expected = [
        ("accumulation_step", 0.0),
        ("data_time_seconds", 0.25),
        ("memory_percent", 50.0),
        ("power_watts", 400.5),
    ];
    assert_eq!(other, expected);
}

#[test]
fn other_logs_are_not_claimed() {
    for line in [
        "step: 4",
        "global_step: 4 loss: 2 memory: 3GiB",
        "step: x loss: 1 tps: 2",
        "iter step: 3, loss: 2",
    ] {
        assert_eq!(parse_any(line.as_bytes()).format, "unknown", "{line}");
    }
}

super::super::testing::damaged!("torchtitan", LOG);

proptest! {
    #[test]
    fn noise_between_the_lines_changes_nothing(noise in proptest::collection::vec("[ -~é]{0,60}", 8)) {
        let mut noisy = String::new();
        for (line, noise) in LOG.lines().zip(noise.iter().cycle()) {
            noisy.push_str(&format!("{noise}\n[20250501 10:00:00][rank-1/8][INFO ] {line}\r\n"));
        }
        // A line's date is noise of a kind.
        let undated = |log: &str| {
            let mut steps = parse(log).steps;
            steps.iter_mut().for_each(|s| s.ended_at = None);
            steps
        };
        prop_assert_eq!(undated(&noisy), undated(LOG));
    }
}

fn effective(log: &str) -> (Value, Trace) {
    let trace = parse(log);
    (serde_json::to_value(&trace.effective).unwrap(), trace)
}

#[test]
fn header_lines() {
    let (stated, trace) = effective(concat!(
        "[titan] - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n",
        "[titan] - WARNING - Peak flops undefined for: X, fallback to A100\n",
        "[titan] - INFO - Peak FLOPS used for computing MFU: 3.120e+14\n",
        "[titan] - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n",
        "[titan] - INFO - Building llama3 1B with TransformerModelArgs(_x='y', dim=2048, n_layers=16, n_heads=32, n_kv_heads=8, vocab_size=128256, norm_eps=1e-05, rope_theta=500000, depth_init=True)\n",
        "[titan] - INFO - \x1b[34mModel llama3 1B \x1b[31msize: 1,498,482,688 total parameters\x1b[39m\n",
        "[titan] - INFO - Applied selective activation checkpointing to the model\n",
        "[titan] - INFO - Compiling each TransformerBlock with torch.compile\n",
        "[titan] - INFO - Applied FSDP to the model\n",
        "[titan] - WARNING - Warmup steps (200) exceed total training steps (50). Adjusting warmup steps to 50.\n",
        "[titan] - INFO - Trainer is initialized with local batch size 2, global batch size 16, gradient accumulation steps 2, sequence length 4096, total steps 50 (warmup 200)\n",
    ));
    assert_eq!(
        stated,
        json!({
            "data_parallel_size": 4, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1, "num_gpus": 8, "hidden_size": 2048, "num_layers": 16, "num_attention_heads": 32,
            "num_kv_heads": 8, "vocab_size": 128_256, "norm_eps": 1e-5, "rope_theta": 500_000,
            "activation_checkpointing": true, "recompute_granularity": "selective", "compile": true, "sharding": "fsdp",
            "warmup_steps": 50, "micro_batch_size": 2, "global_batch_size": 16, "gradient_accumulation_steps": 2, "seq_length": 4096,
            "train_iters": 50,
        })
    );
    assert_eq!(
        (trace.num_parameters, trace.totals["mfu_peak_flops"]),
        (Some(1_498_482_688), 3.12e14)
    );
    assert_eq!(
        trace.device.unwrap().name.as_deref(),
        Some("NVIDIA H100 80GB HBM3")
    );
    assert_eq!(trace.anomalies[0].kind, "false_mfu");
}

#[test]
fn the_configuration_in_three_spellings() {
    let dotted = concat!(
        "[rank-1/8][INFO ] ========== TorchTitan Config ==========\n",
        "[rank-1/8][INFO ] arguments activation_checkpoint.mode........... none\n",
        "[rank-1/8][INFO ] arguments activation_checkpoint.per_op_sac_force_recompute ['moe.router']\n",
        "[rank-1/8][INFO ] arguments optimizer.lr......................... 0.0008\n",
        "[rank-1/8][INFO ] arguments optimizer.name....................... AdamW\n",
        "[rank-1/8][INFO ] arguments training.global_batch_size........... -1\n",
        "[rank-1/8][INFO ] arguments training.mixed_precision_param....... bfloat16\n",
        "[rank-1/8][INFO ] arguments training.seed........................ None\n",
        "[rank-1/8][INFO ] arguments training.seq_len..................... 2048\n",
        "[rank-1/8][INFO ] arguments validation.seq_len................... 512\n",
    );
    let lines = "Running with configs: {\n  \"activation_checkpoint\": {\"mode\": \"none\"},\n  \"optimizer\": {\"name\": \"AdamW\",\n \
                 \"lr\": 0.0008},\n  \"training\": {\"mixed_precision_param\": \"bfloat16\", \"seq_len\": 2048,\n \"seed\": null}\n}\n";
    let python = "x Running with args: {'activation_checkpoint': {'mode': 'none'}, 'optimizer': {'name': 'AdamW', 'lr': 0.0008}, \
                  'training': {'mixed_precision_param': 'bfloat16', 'seq_len': 2048, 'seed': None, 'compile': False}}\n";
    let expected = json!({
        "activation_checkpointing": false, "learning_rate": 0.0008, "optimizer": "adamw", "precision": "bf16",
        "seq_length": 2048,
    });
    for log in [dotted, lines, python] {
        let (mut stated, _) = effective(log);
        let others = stated.as_object_mut().unwrap().remove("arguments");
        assert_eq!(stated, expected, "{log}");
        assert_eq!(others.is_some(), log != lines, "{others:?}");
    }
    let (quantised, _) = effective(&format!(
        "{dotted}[rank-1/8] Swapped to Float8Linear layers\n"
    ));
    assert_eq!(quantised["precision"], "fp8");
}

#[test]
fn newer_meshes_name_their_sizes() {
    let (stated, _) = effective(
        "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=4, etp=1\n",
    );
    assert_eq!(
        (&stated["data_parallel_size"], &stated["num_gpus"]),
        (&json!(4), &json!(8))
    );
    let (stated, _) =
        effective("Building 2-D device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep'], [2, 4]\n");
    assert_eq!(stated["data_parallel_size"], 8);
    for broken in [
        "Building device mesh with",
        "device mesh with [], []",
        "device mesh with ['tp'], [99999999999999999999]",
    ] {
        let _ = effective(broken);
    }
}
