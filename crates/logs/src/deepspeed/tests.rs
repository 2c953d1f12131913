use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Config, overflow};
use crate::{LogSection, Trace, builder::Builder, lines::for_each_line, parse_any};

fn parse(log: &str) -> Trace {
    super::super::parse(&LogSection::named("deepspeed"), log.as_bytes())
}

const LOG: &str = concat!(
    "[2024-01-01 00:00:00,1] [INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]\n",
    "[2024-01-01 00:00:01,1] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32\n",
    "[2024-01-01 00:00:02,1] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | optimizer_step: 14.45\n",
    "[2024-01-01 00:00:02,1] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1, lr=[9.65e-06, 9.65e-06], mom=[(0.9, 0.95)]\n",
    "[2024-01-01 00:00:02,1] [INFO] [timer.py:199:stop] epoch=0/micro_step=80/global_step=10, RunningAvgSamplesPerSec=173.5, CurrSamplesPerSec=172.5, MemAllocated=4.0GB, MaxMemAllocated=22.5GB\n",
    "[2024-01-01 00:00:02,1] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 9340.5 | bwd_microstep: -296010.26 | step_microstep: 158.5\n",
    "Model Parameters: 0.331 B, Latency: 0.14s, TFLOPs: 1.98, Samples/sec: 14.08, Time/seq 0.07s, Batch Size: 2, Sequence Length: 512\n",
    "Model Parameters: 0.331 B, Latency: 0.99s, TFLOPs: 0.98, Samples/sec: 4.08, Time/seq 0.07s, Batch Size: 2, Sequence Length: 512\n",
    "ppl: 4.5, loss: 1.5\n",
    "[2024-01-01 00:00:09,1] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=1, lr=[9e-06], mom=[(0.9, 0.95)]\n",
    "[2024-01-01 00:00:09,1] [INFO] [launch.py:460:main] Process 73593 exits successfully.\n",
);

#[test]
fn the_engines_lines() {
    let trace = parse_any(LOG.as_bytes());
    assert_eq!((trace.format.as_str(), trace.finished), ("deepspeed", true));
    let [first, second] = &trace.steps[..] else {
        panic!("{:?}", trace.steps)
    };
    assert_eq!(
        (first.step, first.learning_rate, first.loss),
        (10, Some(9.65e-6), None)
    );
    assert_eq!(
        (first.step_time_seconds, first.tokens_per_second_per_gpu),
        (None, None)
    );
    assert_eq!(
        (first.memory_bytes, first.memory_kind.as_deref()),
        (Some(45 << 29), Some("peak_allocated"))
    );
    assert_eq!(first.memory_figures[0].bytes, 4 << 30);
    let other: Vec<_> = first.other.iter().map(|(k, v)| (k.as_ref(), *v)).collect();
    assert_eq!(
        other,
        [
            ("curr_samples_per_sec", 172.5),
            ("fwd_microstep_ms", 9340.5),
            ("micro_step_latency_seconds", 0.14),
            ("micro_step_samples_per_sec", 14.08),
            ("micro_step_tflops", 1.98),
            ("optimizer_step_ms", 14.45),
            ("running_avg_samples_per_sec", 173.5),
            ("skipped_steps", 1.0),
            ("step_microstep_ms", 158.5),
        ]
    );
    assert_eq!((second.step, second.other.len()), (20, 1));
    assert_eq!(
        (trace.evaluations[0].step, trace.evaluations[0].value),
        (Some(10), 4.5)
    );
    let kinds: Vec<_> = trace
        .anomalies
        .iter()
        .map(|a| (a.kind.as_str(), a.detail.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("overflow_skip", "after step 0: loss scale 64 → 32"),
            (
                "negative_time",
                "after step 10: bwd_microstep is -296010.26 ms"
            )
        ]
    );
    assert_eq!(
        (
            &trace.effective.0["micro_batch_size"],
            &trace.effective.0["seq_length"]
        ),
        (&2.into(), &512.into())
    );
}

#[test]
fn loops_of_their_own() {
    let trace = parse_any(b"time (ms) | fwd: 55.0 | step: 183.5\nStep 0 time: 178.5ms\nStep 1 time: 2.5s\n[Summary] x=1 avg_accumulation_step=16.5ms avg_update_step=171.5ms\n");
    let times: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds))
        .collect();
    assert_eq!(
        (times, trace.steps[0].other["fwd_ms"]),
        (vec![(0, Some(0.1785)), (1, Some(2.5))], 55.0)
    );
    assert_eq!(
        (trace.format.as_str(), trace.totals["avg_update_step_ms"]),
        ("deepspeed", 171.5)
    );
    let log = "Step 10/500, Loss: 11.5, Step Time: 0.75s, Elapsed: 7.5s\nStep 20/500, Loss: nan, Step Time: 0.5s, Elapsed: 15s\n";
    let trace = parse_any(log.as_bytes());
    let first = &trace.steps[0];
    assert_eq!(
        (
            first.loss,
            first.step_time_seconds,
            first.other["micro_step_time_seconds"]
        ),
        (Some(11.5), None, 0.75)
    );
    assert_eq!(
        (
            trace.effective.0["train_iters"].as_u64(),
            trace.anomalies[0].kind.as_str()
        ),
        (Some(500), "nan_loss")
    );
    let stated = parse(&format!(
        "[config.py:1:print]   gradient_accumulation_steps .. 1\n{log}"
    ));
    assert_eq!(
        (
            stated.steps[0].step_time_seconds,
            stated.steps[0].steps_averaged
        ),
        (Some(0.75), Some(1))
    );
}

#[test]
fn reinforcement_learning_has_other_losses() {
    let trace = parse_any(b"epoch: 0|step: 10|ppo_ep: 1|act_loss: 0.5|cri_loss: 0.25|unsuper_loss: 0.0\nEpoch: 0 | Step: 11 | PPO Epoch: 1 | Actor Loss: nan | Critic Loss: 0.5 | Unsupervised Loss: 0.0\n");
    let losses: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.loss, s.other["critic_loss"], s.other.len()))
        .collect();
    assert_eq!(
        (losses, trace.format.as_str()),
        (vec![(10, None, 0.25, 3), (11, None, 0.5, 2)], "deepspeed")
    );
}

#[test]
fn the_profilers_summary() {
    let trace = parse(concat!(
        "-------------------------- DeepSpeed Flops Profiler --------------------------\n",
        "world size:                                     24\nbatch size per GPU:    6\n",
        "fwd latency:                                    9.5 s\nbwd latency:     -2.9601e+08 us\n",
        "step latency:                                   158.5 ms\n",
        "FLOPS per GPU = 3 * fwd flops per GPU / iter latency:    -1.16192e+18 uFLOPS\nsamples/second:   -0.5\n",
    ));
    assert_eq!(
        (
            trace.totals["profile_fwd_latency_seconds"],
            trace.totals["profile_step_latency_seconds"]
        ),
        (9.5, 0.1585)
    );
    assert_eq!((trace.totals.len(), trace.anomalies.len()), (2, 3));
    assert_eq!(
        (
            trace.effective.0["num_gpus"].as_u64(),
            trace.effective.0["micro_batch_size"].as_u64()
        ),
        (Some(24), Some(6))
    );
}

super::super::testing::damaged!("deepspeed", LOG);

proptest! {
    #[test]
    fn noise_between_the_lines_changes_nothing(noise in proptest::collection::vec("[ -~é]{0,60}", 8)) {
        let noisy: String = LOG.lines().zip(noise.iter().cycle()).map(|(line, noise)| format!("{noise}\nnode1: {line}\r\n")).collect();
        // A prefix hides only the bare `ppl:` line.
        prop_assert_eq!(parse(&noisy).steps, parse(LOG).steps);
    }
}

fn effective(log: &str) -> Value {
    let (mut config, mut out) = (Config::default(), Builder::default());
    for_each_line(log.as_bytes(), |line| {
        config.line(&line.text, &mut out);
    });
    let mut stated = out.finish().effective;
    stated.0.remove(crate::ARGUMENTS);
    serde_json::to_value(stated).unwrap()
}

#[test]
fn the_older_print_and_the_newer() {
    let older = concat!(
        "[2021-01-01 00:00:00,1] [INFO] [logging.py:60:log_dist] [Rank 0] DeepSpeed info: version=0.3.17+x, git-hash=y\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:748:print] DeepSpeedEngine configuration:\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   activation_checkpointing_config  {\n    \"profile\": false\n}\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   fp16_enabled ................. True\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   gradient_accumulation_steps .. 2\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   gradient_clipping ............ 1.0\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   optimizer_name ............... adamw\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   optimizer_params ............. {'lr': 5e-05, 'betas': [0.9, 0.98], 'eps': 1e-08}\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   train_batch_size ............. 64\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   train_micro_batch_size_per_gpu  4\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   world_size ................... 8\n",
        "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   zero_config .................. {\n    \"stage\": 3, \n",
        "    \"reduce_bucket_size\": 5.138022e+07, \n    \"offload_optimizer\": {\n        \"device\": \"cpu\"\n    }\n}\n",
    );
    let newer = concat!(
        "[INFO] [config.py:999:print]   bfloat16_enabled ............. False\n",
        "[INFO] [config.py:999:print]   zero_config .................. stage=3 contiguous_gradients=True\n",
        "[INFO] [config.py:985:print_user_config]   json = {\n",
        "    \"train_batch_size\": 64, \n    \"train_micro_batch_size_per_gpu\": 4, \n    \"gradient_accumulation_steps\": 2, \n",
        "    \"gradient_clipping\": 1.0, \n    \"fp16\": {\n        \"enabled\": true\n    }, \n    \"zero_optimization\": {\n        \"stage\": 3, \n",
        "        \"offload_optimizer\": {\n            \"device\": \"cpu\"\n        }\n    }, \n    \"optimizer\": {\n        \"type\": \"AdamW\", \n",
        "        \"params\": {\n            \"lr\": 5e-05, \"eps\": 1e-08, \"betas\": [0.9, 0.98]\n        }\n    }\n}\n",
        "[INFO] [config.py:999:print]   world_size ................... 8\n",
    );
    let expected = json!({
        "precision": "fp16", "gradient_accumulation_steps": 2, "clip_grad": 1, "optimizer": "adamw", "learning_rate": 5e-5,
        "beta1": 0.9, "beta2": 0.98, "eps": 1e-8, "global_batch_size": 64, "micro_batch_size": 4, "data_parallel_size": 8,
        "sharding": "zero3", "offload": true,
    });
    assert_eq!(
        (effective(older), effective(newer)),
        (expected.clone(), expected)
    );
    assert_eq!(
        effective("[config.py:1:print]   json = {\n never ended\n"),
        json!({})
    );
}

#[test]
fn only_rank_zero_tells_of_a_skipped_step() {
    let line = |rank: u8| {
        format!(
            "[deepspeed] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: 64, reducing to 32"
        )
    };
    assert_eq!(
        (overflow(&line(0)).as_deref(), overflow(&line(1))),
        (Some("loss scale 64 → 32"), None)
    );
    let hysteresis = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, but hysteresis is 2. Reducing hysteresis to 1";
    assert_eq!(overflow(hysteresis).as_deref(), Some("loss scale 64"));
}
