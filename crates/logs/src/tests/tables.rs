//! Formats that are nothing but a table in formats.toml: of each, a log and what is read of it.

use serde_json::{Value, json};

use crate::parse_any;

/// What a log is read as, by its own lines alone, as far as the expectation goes.
#[track_caller]
fn reads(log: &str, expected: Value) {
    let read = serde_json::to_value(parse_any(log.as_bytes())).unwrap();
    let mut wrong = Vec::new();
    differences(&read, &expected, "", &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?} in {read:#}");
}

fn differences(read: &Value, expected: &Value, at: &str, wrong: &mut Vec<String>) {
    match expected {
        Value::Object(members) => {
            for (name, value) in members {
                differences(&read[name], value, &format!("{at}.{name}"), wrong);
            }
        }
        Value::Array(items) if read.as_array().map(Vec::len) == Some(items.len()) => {
            for (nth, value) in items.iter().enumerate() {
                differences(&read[nth], value, &format!("{at}[{nth}]"), wrong);
            }
        }
        _ if read == expected => {}
        _ => wrong.push(format!("{at}: {read}, not {expected}")),
    }
}

#[test]
fn nanochat() {
    reads(
        "Total batch size 524,288 => gradient accumulation steps: 2\n\
         Tokens / micro-batch / rank: 16 x 2048 = 32,768\n\
         Step 00000 | Validation bpb: 3.3012\n\
         step 00000/800 (0.00%) | loss: 11.090355 | lrm: 1.00 | dt: 2100.50ms | tok/sec: 249,601 | mfu: 24.10 | total time: 0.00m\n\
         step 00001/800 (0.13%) | loss: 10.5 | lrm: 1.00 | dt: 1000.25ms | tok/sec: 524,157 | mfu: 50.61 | total time: 0.02m\n\
         Peak memory usage: 30720.50MiB\n",
        json!({
            "format": "nanochat",
            "effective": {
                "global_batch_size": 256, "gradient_accumulation_steps": 2, "micro_batch_size": 16, "seq_length": 2048, "train_iters": 800,
            },
            "evaluations": [{"step": 0, "name": "validation_bits_per_byte", "value": 3.3012}],
            "steps": [
                {"step": 0, "step_time_seconds": 2.1005, "loss": 11.090355, "tokens": 524_288},
                {"step": 1, "step_time_seconds": 1.00025, "other": {"tokens_per_second": 524_157.0, "mfu_percent": 50.61}},
            ],
            "memory": [{"figures": [{"kind": "peak_allocated", "bytes": 32_212_779_008_u64}]}],
        }),
    );
}

/// Its lines end with carriage returns, and what it says at the end is what it is judged by.
#[test]
fn autoresearch() {
    reads(
        "Vocab size: 4,096\n\
         Model config: {\"sequence_len\": 1024, \"vocab_size\": 4096, \"n_layer\": 8}\n\
         Gradient accumulation steps: 2\n\
         step 00007 (10.0%) | loss: 4.25 | lrm: 0.50 | dt: 520ms | tok/sec: 126,030 | mfu: 20.1% | epoch: 1 | remaining: 9s   \r\
         step 00008 (20.0%) | loss: 4.20 | lrm: 0.40 | dt: 519ms | tok/sec: 126,273 | mfu: 20.2% | epoch: 1 | remaining: 8s   \n\
         ---\nval_bpb:          1.125000\npeak_vram_mb:     2048.0\n",
        json!({
            "format": "nanochat",
            "finished": true,
            "effective": {"seq_length": 1024, "num_layers": 8, "vocab_size": 4096},
            "steps": [{"step": 7, "step_time_seconds": 0.52}, {"step": 8, "loss": 4.2}],
            "evaluations": [{"name": "validation_bits_per_byte", "value": 1.125}],
            "memory": [{"figures": [{"kind": "peak_allocated", "bytes": 2_147_483_648_u64}]}],
        }),
    );
}

#[test]
fn torchtune() {
    reads(
        "1|3|Loss: 1.75:  30%|###       | 3/10 [00:09<00:21,  3.00s/it]Step 3 | loss:1.75 lr:2e-05 tokens_per_second_per_gpu:9876.5 peak_memory_active:10.5 peak_memory_alloc:10.25 peak_memory_reserved:12.0\n",
        json!({
            "format": "torchtune",
            "steps": [{
                "step": 3, "loss": 1.75, "learning_rate": 2e-5, "tokens_per_second_per_gpu": 9876.5,
                "memory_kind": "peak_allocated", "memory_bytes": 11_005_853_696_u64,
            }],
        }),
    );
}

/// The lines below a step's are its figures.
#[test]
fn olmo_core() {
    let step = |step: u64, rate: &str, loss: f64| {
        format!(
            "2026-01-05 10:00:00.{step}\thost:0\tolmo_core.train.callbacks.console_logger:105\tINFO\t[step={step}/500,epoch=1,eta=0:01:00]\n    \
             optim/LR (group 0)=0.0004\n    throughput/device/TPS={rate}\n    throughput/device/TPS (actual avg)=9\n    train/CE loss={loss}\n    \
             gpu_memory/GPU reserved mem (GiB)=40.5\n"
        )
    };
    reads(
        &[step(100, "12,345", 9.5), step(200, "13,500", 9.25)].concat(),
        json!({
            "format": "olmo-core",
            "effective": {"train_iters": 500},
            "steps": [
                {"step": 100, "tokens_per_second_per_gpu": 12345.0, "loss": 9.5, "learning_rate": 4e-4},
                {"step": 200, "steps_averaged": null, "tokens_per_second_per_gpu": 13500.0, "loss": 9.25, "memory_kind": "peak_reserved"},
            ],
        }),
    );
}

/// The rate is that of the whole step, of which training is a part.
#[test]
fn verl() {
    reads(
        "(TaskRunner pid=7) step:4 - actor/grad_norm:0.25 - perf/max_memory_allocated_gb:20.5 - timing_s/gen:30.5 - timing_s/update_actor:9.5 - \
         timing_s/step:45.0 - perf/total_num_tokens:900000 - perf/time_per_step:45.0 - perf/throughput:2500.0\n",
        json!({
            "format": "verl",
            "steps": [{
                "step": 4, "step_time_seconds": 45.0, "tokens": 900_000, "tokens_per_second_per_gpu": 2500.0, "grad_norm": 0.25,
                "other": {"update_actor_seconds": 9.5, "gen_seconds": 30.5},
            }],
        }),
    );
}

#[test]
fn prime_rl() {
    reads(
        "12:00:01 SUCCESS Step 12 | Time: 1.52s | Loss: 2.1034 | Grad. Norm: 0.4312 | LR: 1.00e-05 | Throughput: 43210 tokens/s | MFU: 38.2% | \
         Peak Mem.: 61.5/80.0 GiB (76.9%)\n",
        json!({
            "format": "prime-rl",
            "steps": [{
                "step": 12, "step_time_seconds": 1.52, "loss": 2.1034, "learning_rate": 1e-5, "grad_norm": 0.4312,
                "memory_kind": "peak_reserved", "memory_bytes": 66_035_122_176_u64, "other": {"tokens_per_second_smoothed": 43210.0},
            }],
        }),
    );
}

#[test]
fn nanotron() {
    reads(
        "01/05/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 6 / 20 | consumed_tokens: 12.6M | elapsed_time_per_iteration_ms: 1.25K | \
         tokens_per_sec: 1.68M | tokens_per_sec_per_gpu: 13.1K | global_batch_size: 1.02K | lm_loss: 9.5 | lr: 0.0003 | model_tflops_per_gpu: 110\n",
        json!({
            "format": "nanotron",
            "effective": {"train_iters": 20},
            "steps": [{
                "step": 6, "step_time_seconds": 1.25, "tokens_per_second_per_gpu": 13100.0, "loss": 9.5, "learning_rate": 3e-4, "tflops_per_gpu": 110.0,
            }],
        }),
    );
}

/// What it times is a micro-batch.
#[test]
fn litgpt() {
    reads(
        "Total parameters: 1,100,048,384\n\
         Epoch 1 | iter 4 step 1 | loss train: 10.975, val: n/a | iter time: 812.50 ms (step) remaining time: 1:02:03\n\
         Epoch 1 | iter 8 step 2 | loss train: 10.500, val: 10.412 | iter time: 402.25 ms (step) remaining time: 1:02:00\n\
         Memory used: 20.50 GB\n",
        json!({
            "format": "litgpt",
            "num_parameters": 1_100_048_384,
            "steps": [
                {"step": 1, "loss": 10.975, "step_time_seconds": null, "other": {"micro_batch_ms": 812.5}},
                {"step": 2, "loss": 10.5},
            ],
            "memory": [{"figures": [{"kind": "peak_allocated", "bytes": 20_500_000_000_u64}]}],
        }),
    );
}

#[test]
fn modded_nanogpt() {
    reads(
        "step:0/1750 val_loss:10.8258 train_time:0ms step_avg:0.05ms\n\
         step:1/1750 train_time:150ms step_avg:150.25ms\n\
         step:2/1750 train_time:231ms step_avg:115.50ms\n\
         peak memory allocated: 1024 MiB reserved: 2048 MiB\n",
        json!({
            "format": "modded-nanogpt",
            "finished": true,
            "effective": {"train_iters": 1750},
            "evaluations": [{"step": 0, "name": "validation_loss", "value": 10.8258}],
            "steps": [{"step": 1, "step_time_seconds": null}, {"step": 2, "step_time_seconds": null}],
            "memory": [{"figures": [{"kind": "peak_allocated"}, {"kind": "peak_reserved", "bytes": 2_147_483_648_u64}]}],
        }),
    );
}

#[test]
fn slime() {
    reads(
        "(MegatronTrainRayActor pid=9) [2026-04-15 08:03:11] train_metric_utils.py:48 - perf 3: {'perf/train_wait_time': 61.25, \
         'perf/actor_train_time': 25.5, 'perf/train_time': 30.5, 'perf/actor_train_tok_per_s': 41250.5, 'perf/step_time': 91.75, \
         'perf/wait_time_ratio': 0.667}\n\
         (RolloutManager pid=8) [2026-04-15 08:03:12] rollout.py:1193 - perf 4: {'rollout/truncated_ratio': 0.4, 'perf/rollout_time': 371.2}\n",
        json!({
            "format": "slime",
            "steps": [{
                "step": 3, "step_time_seconds": 91.75,
                "other": {"wait_seconds": 61.25, "train_seconds": 30.5, "actor_train_seconds": 25.5},
            }],
        }),
    );
}

#[test]
fn superbench() {
    reads(
        "[2026-01-05 10:00:00,000 node:1][model_base.py:214][INFO] Average train time - round: 0, model: pytorch-llama2-7b, precision: float16, \
         step time: 512.500000 ms.\n",
        json!({
            "format": "superbench",
            "steps": [],
            "totals": {"average_step_time_seconds": 0.5125},
        }),
    );
}

#[test]
fn madengine() {
    reads(
        "model,performance,metric\nprimus_run,8765.4,tokens_per_second\nprimus_run,450.5,tflops\nprimus_run,20.5,model_flops_utilization\n",
        json!({
            "format": "madengine",
            "steps": [],
            "totals": {"tokens_per_second_per_gpu": 8765.4, "tflops_per_gpu": 450.5, "mfu_percent": 20.5},
        }),
    );
}
