//! Lines of every format that states how long its steps take.

use serde_json::json;

pub const STEPS: u64 = 60;

/// Seconds of a step: the first ones of a process are slow.
pub fn time(at: u64) -> f64 {
    let slow = match at {
        1 => 15.0,
        2 => 1.5,
        _ => 0.0,
    };
    2.0 + slow + 0.01 * ((at * 7) % 5) as f64
}

fn clock(seconds: f64) -> String {
    let (whole, thousandths) = (seconds as u64, (seconds.fract() * 1e3) as u64);
    format!(
        "{:02}:{:02}:{:02}.{thousandths:03}",
        10 + whole / 3600,
        whole / 60 % 60,
        whole % 60
    )
}

/// The lines of one step: its number, its place in its process, and when it ends.
pub type Lines = fn(u64, u64, f64) -> String;

fn loss(step: u64) -> f64 {
    11.0 - 0.05 * step as f64
}

/// The mean time of the steps since the line before, in a log of every tenth step and, if `of_first`, of the first one of a
/// process; none where there is no line.
fn mean(step: u64, at: u64, of_first: bool) -> Option<f64> {
    let is_first = of_first && at == 1;
    let since = if of_first { 2 } else { 1 };
    let from = if is_first {
        1
    } else {
        at.saturating_sub(9).max(since)
    };
    (is_first || step.is_multiple_of(10))
        .then(|| (from..=at).map(time).sum::<f64>() / (at + 1 - from) as f64)
}

pub const FORMATS: [(&str, Lines); 26] = [
    ("megatron", |step, at, end| {
        format!(
            " [2026-03-04 {}] iteration {step:8}/ {STEPS:7} | consumed samples: {:12} | elapsed time per iteration (ms): {:.1} | \
             learning rate: 1.0E-04 | global batch size: 32 | lm loss: {:.4E} | grad norm: 1.0 |\n",
            clock(end),
            step * 32,
            time(at) * 1e3,
            loss(step)
        )
    }),
    ("nanogpt", |step, at, _| {
        format!(
            "iter {step}: loss {:.4}, time {:.2}ms, mfu 30.00%\n",
            loss(step),
            time(at) * 1e3
        )
    }),
    ("llm.c", |step, at, _| {
        format!(
            "step {step:4}/{STEPS} | loss {:.6} (+nanz)| norm 1.2 (+nanz)| lr 8.57e-07 | {:.2} ms | 31.2% bf16 MFU | 65536 tok/s\n",
            loss(step),
            time(at) * 1e3
        )
    }),
    ("maxtext", |step, at, _| {
        format!(
            "completed step: {step}, seconds: {:.3}, TFLOP/s/device: 100.0, Tokens/s/device: 8192.0, total_weights: 16384, loss: {:.3}\n",
            time(at),
            loss(step)
        )
    }),
    ("automodel", |step, at, end| {
        format!(
            "2026-03-04 {} | INFO | step {step} | epoch 0 | loss {:.4} | grad_norm 3.1 | lr 4e-06 | mem 34.45 GiB | \
             tps {:.2}({:.2}/gpu) | num_label_tokens 900\n",
            clock(end),
            loss(step),
            131_072.0 / time(at),
            16_384.0 / time(at)
        )
    }),
    ("torchtitan", |step, at, end| {
        format!(
            "[rank0]:[titan] 2026-03-04 {} - root - INFO - step: {step:2}  loss: {:.4}  grad_norm: 1.0  memory: 3.31GiB(4.18%)  \
             tps: {:.0}  tflops: 96.40  mfu: 9.75%\n",
            clock(end).replace('.', ","),
            loss(step),
            16_384.0 / time(at)
        )
    }),
    ("nemo", |step, at, _| {
        format!(
            "Training epoch 0, iteration {step}/{STEPS} | lr: 2.5e-06 | global_batch_size: 32 | global_step: {step} | \
             reduced_train_loss: {:.3} | train_step_timing in s: {:.3} | consumed_samples: {}\n",
            loss(step),
            time(at),
            32 * (step + 1)
        )
    }),
    ("composer", |step, at, _| {
        format!(
            "[batch={step}/{STEPS}]:\n\t Train time/batch: {}\n\t Train loss/train/total: {:.4}\n\t \
             Train throughput/device/tokens_per_sec: {:.4}\n",
            step - 1,
            loss(step),
            16_384.0 / time(at)
        )
    }),
    ("tprimat", |step, at, end| {
        format!(
            "{{\"event\":\"step\",\"step\":{step},\"time\":{},\"step_time_seconds\":{},\"loss\":{}}}\n",
            1.77e9 + end,
            time(at),
            loss(step)
        )
    }),
    ("gpt-neox", |step, at, end| {
        format!(
            "[2026-03-04 {}] iteration {step:8}/ {STEPS:7} | elapsed time per iteration (ms): {:.1} | learning rate: 1.0E-04 | \
             approx flops per GPU: 91.1TFLOPS | lm_loss: {:.4E} | number of skipped iterations: 0 |\n",
            clock(end),
            time(at) * 1e3,
            loss(step)
        )
    }),
    ("megatron", |step, at, end| {
        let line = |mean: f64| {
            format!(
                " [2026-03-04 {}] iteration {step:8}/ {STEPS:7} | consumed samples: {:12} | elapsed time per iteration (ms): {:.1} | \
                 learning rate: 1.0E-04 | global batch size: 32 | lm loss: {:.4E} | grad norm: 1.0 |\n",
                clock(end),
                step * 32,
                mean * 1e3,
                loss(step)
            )
        };
        mean(step, at, false).map_or_else(String::new, line)
    }),
    ("torchtitan", |step, at, end| {
        let line = |mean: f64| {
            format!(
                "[rank0]:[titan] 2026-03-04 {} - root - INFO - step: {step:2}  loss: {:.4}  grad_norm: 1.0  memory: 3.31GiB(4.18%)  \
                 tps: {:.0}  tflops: 96.40  mfu: 9.75%\n",
                clock(end).replace('.', ","),
                loss(step),
                16_384.0 / mean
            )
        };
        mean(step, at, true).map_or_else(String::new, line)
    }),
    ("primus", |step, at, end| {
        let rate = 16_384.0 / time(at);
        format!(
            " [2026-03-04 {}] iteration {step:8}/ {STEPS:7} | consumed samples: {:12} | elapsed time per iteration (ms): {:.1}/{:.1} | \
             throughput per GPU (TFLOP/s/GPU): 100.1/100.2 | tokens per GPU (tokens/s/GPU): {rate:.1}/{rate:.1} | \
             learning rate: 1.0E-04 | global batch size: 32 | lm loss: {:.4E} | grad norm: 1.0 | \
             hip mem usage/free/total/usage_ratio: 150.00GB/106.00GB/256.00GB/58.59% |\n",
            clock(end),
            step * 32,
            time(at) * 1e3,
            time(at) * 1e3,
            loss(step)
        )
    }),
    ("megatron-bridge", |step, at, end| {
        format!(
            "Step Time : {:.2}s GPU utilization: 100.5MODEL_TFLOP/s/GPU\n [2026-03-04 {}] iteration {step:8}/ {STEPS:7} | \
             consumed samples: {:12} | elapsed time per iteration (ms): {:.1} | learning rate: 1.0E-04 | global batch size: 32 | \
             lm loss: {:.4E} | grad norm: 1.0 |\n",
            time(at),
            clock(end),
            step * 32,
            time(at) * 1e3,
            loss(step)
        )
    }),
    ("megatron-deepspeed", |step, at, _| {
        format!(
            " iteration {step:8}/ {STEPS:7} | consumed samples: {:12} | consumed tokens: {:14} | elapsed time per iteration (ms): {:.1} | \
             learning rate: 1.0E-04 | global batch size: 32 | lm loss: {:.4E} | actual seqlen:  4096 | \
             tokens per gpu per second (tgs): {:.3} | TFLOPs: 50.1 |\n",
            step * 32,
            step * 32 * 4096,
            time(at) * 1e3,
            loss(step),
            16_384.0 / time(at)
        )
    }),
    ("nanochat", |step, at, _| {
        format!(
            "step {step:05}/{STEPS} (1.00%) | loss: {:.6} | lrm: 1.00 | dt: {:.2}ms | tok/sec: {:.0} | mfu: 40.13 | total time: 0.10m\n",
            loss(step),
            time(at) * 1e3,
            131_072.0 / time(at)
        )
    }),
    ("torchtune", |step, at, _| {
        format!(
            "Step {step} | loss:{:.6} lr:1e-05 tokens_per_second_per_gpu:{:.4} peak_memory_active:4.3 peak_memory_alloc:4.5\n",
            loss(step),
            16_384.0 / time(at)
        )
    }),
    ("olmo-core", |step, at, end| {
        format!(
            "2026-03-04 {}\thost:0\tolmo_core.train.callbacks.console_logger:105\tINFO\t[step={step}/{STEPS},epoch=1]\n    \
             throughput/device/TPS={:.0}\n    train/CE loss={:.4}\n",
            clock(end),
            16_384.0 / time(at),
            loss(step)
        )
    }),
    ("verl", |step, at, _| {
        format!(
            "step:{step} - actor/pg_loss:{:.4} - timing_s/step:{:.3} - perf/time_per_step:{:.3} - perf/throughput:{:.1}\n",
            loss(step),
            time(at),
            time(at),
            16_384.0 / time(at)
        )
    }),
    ("prime-rl", |step, at, _| {
        format!(
            "Step {step} | Time: {:.2}s | Loss: {:.4} | Grad. Norm: 0.4312 | LR: 1.00e-05 | Throughput: {:.0} tokens/s | MFU: 38.2% | \
             Peak Mem.: 61.4 GiB\n",
            time(at),
            loss(step),
            131_072.0 / time(at)
        )
    }),
    ("nanotron", |step, at, end| {
        format!(
            "03/04/2026 {} [INFO|DP=0|PP=0|TP=0|ip-1]: iteration: {step} / {STEPS} | elapsed_time_per_iteration_ms: {:.2}K | \
             lm_loss: {:.4} | lr: 0.0003 | grad_norm: 1.2\n",
            clock(end).split('.').next().unwrap_or_default(),
            time(at),
            loss(step)
        )
    }),
    ("hf-trainer", |step, at, _| {
        // The bar is drawn, the line is written in its place, and the bar again below it.
        let seconds = (1..=at).map(time).sum::<f64>() as u64;
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let bar =
            format!("\r 10%|#   | {step}/{STEPS} [{minutes:02}:{seconds:02}<01:00,  2.02s/it]");
        format!(
            "{bar}{{'loss': {:.4}, 'grad_norm': 1.5, 'learning_rate': 2e-05, 'epoch': {:.4}}}\n{bar}",
            loss(step),
            step as f64 / STEPS as f64
        )
    }),
    ("deepspeed", |step, at, _| {
        format!("Step {step} time: {:.1}ms\n", time(at) * 1e3)
    }),
    ("mlperf", |step, at, end| {
        let entry = |key: &str, value: serde_json::Value, samples: u64| {
            let time = 1_772_618_400_000 + (end * 1e3) as u64;
            let entry = json!({"namespace": "", "time_ms": time, "event_type": "POINT_IN_TIME", "key": key, "value": value,
                "metadata": {"step": samples}});
            format!(":::MLLOG {entry}\n")
        };
        let stats = json!({"train_step_time": time(at), "reduced_train_loss": loss(step)});
        let batch = entry("global_batch_size", json!(32), 0);
        batch + &entry("tracked_stats", stats, 32 * step)
    }),
    ("nemo", |step, at, _| {
        let seconds = (1..=at).map(time).sum::<f64>() as u64;
        format!(
            "\rEpoch 0:  10%|#   | {step}/{STEPS} [{:02}:{:02}<01:00,  0.50it/s, v_num=0, reduced_train_loss={:.2}, \
             global_step={step}.0, consumed_samples={}.0, train_step_timing in s={:.3}]",
            seconds / 60,
            seconds % 60,
            loss(step),
            32 * step,
            time(at)
        )
    }),
    ("megatron", |step, at, end| {
        format!(
            "7: [2026-03-04 {}] iteration {step:8}/ {STEPS:7} | elapsed time per iteration (ms): {:.1} | tokens/sec/gpu: {:.1} | \
             global batch size: 32 | lm loss: {:.4E} |\n",
            clock(end),
            time(at) * 1e3,
            16_384.0 / time(at),
            loss(step)
        )
    }),
];
