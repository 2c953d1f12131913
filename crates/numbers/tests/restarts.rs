//! A log that was cut in two and put together again with a launcher's words between gives the rate of the whole, or says
//! why not.

use proptest::prelude::*;
use tprimat_job::RunOutcome;
use tprimat_logs::{Trace, parse_any};
use tprimat_numbers::{
    figures::{RepeatStatus, Statistics, summarize},
    results::{Claim, RunFacts, RunResult},
};

const STEPS: u64 = 60;
const WARM_UP: u64 = 5;
/// Step times vary by this much, so a mean over some of the steps may be off by as much.
const NOISE: f64 = 0.03;

/// Seconds of a step: the first ones of a process are slow.
fn time(at: u64) -> f64 {
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
type Lines = fn(u64, u64, f64) -> String;

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

const FORMATS: [(&str, Lines); 12] = [
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
];

/// What launchers and trainers say when they start again.
const BANNERS: [&str; 4] = [
    "E0304 10:00:00.000000 7 api.py:1] [default] Worker group FAILED. 3/3 attempts left; will restart worker group\n",
    "*** JOB 4711 ON node3 CANCELLED AT 2026-03-04T10:00:00 DUE TO PREEMPTION ***\n",
    "resuming training from the last checkpoint\n",
    "=== restarting the job, attempt 2 ===\n",
];

/// `steps` of a run; a process begins behind `cut` of them, which goes on with step `cut + 1 - back`.
fn log(lines: Lines, cut: Option<(u64, u64, &str)>) -> String {
    let (mut log, mut end) = (String::new(), 0.0);
    let mut write = |step: u64, at: u64| {
        end += time(at);
        lines(step, at, end)
    };
    let (first, again) = cut.map_or((STEPS, None), |(cut, back, banner)| {
        (cut, Some((cut - back, banner)))
    });
    for step in 1..=first {
        log += &write(step, step);
    }
    if let Some((before, banner)) = again {
        log += banner;
        for step in before + 1..=STEPS {
            log += &write(step, step - before);
        }
    }
    log
}

/// Tokens per second per device, of a workload that nobody need state.
fn rate(trace: Trace) -> Result<f64, String> {
    let facts = RunFacts {
        attempt: "import-x".to_owned(),
        host: String::new(),
        started_at: None,
        ended_at: None,
        outcome: RunOutcome::Ok,
    };
    let mut trace = trace;
    for (name, value) in [
        ("global_batch_size", 32),
        ("seq_length", 4096),
        ("num_gpus", 8),
    ] {
        trace
            .effective
            .0
            .entry(name.to_owned())
            .or_insert_with(|| value.into());
    }
    let result = RunResult::of_claim(trace, &Claim::of_model(None), facts, false);
    let summary = summarize(
        &[(1, result)],
        &Statistics {
            warmup_steps: WARM_UP,
        },
    );
    match &summary.repeats[0].status {
        RepeatStatus::Ok => Ok(summary.tokens_per_second_per_gpu.expect("it counts").value),
        other => Err(other.why_not().unwrap_or_default()),
    }
}

#[test]
fn every_format_gives_the_rate_of_its_steps() {
    for (name, lines) in FORMATS {
        let trace = parse_any(log(lines, None).as_bytes());
        assert_eq!(trace.format, name);
        assert!(
            [STEPS, STEPS / 10, STEPS / 10 + 1].contains(&(trace.steps.len() as u64)),
            "{name}"
        );
        let rate = rate(trace).unwrap();
        assert!(
            (rate / (32.0 * 4096.0 / 8.0 / 2.02) - 1.0).abs() < NOISE,
            "{name}: {rate}"
        );
    }
}

#[test]
fn few_cuts_are_refused() {
    for (name, lines) in FORMATS {
        let whole = rate(parse_any(log(lines, None).as_bytes())).unwrap();
        let (mut cuts, mut refused) = (0, Vec::new());
        for cut in 1..STEPS {
            for (back, banner) in [(0, 0), (3, 1), (20, 2), (cut, 3)] {
                if back > cut {
                    continue;
                }
                let log = log(lines, Some((cut, back, BANNERS[banner])));
                let trace = parse_any(log.as_bytes());
                cuts += 1;
                match rate(trace) {
                    Ok(rate) => assert!(
                        (rate / whole - 1.0).abs() < NOISE,
                        "{name}, cut behind {cut}, {back} again: {rate}, not {whole}"
                    ),
                    Err(why) => refused.push((cut, back, why)),
                }
            }
        }
        assert!(
            10 * refused.len() <= cuts,
            "{name}: {} of {cuts} refused: {refused:?}",
            refused.len()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_cut_log_gives_the_rate_of_the_whole(
        (_, lines) in prop::sample::select(FORMATS.to_vec()),
        cut in 1..STEPS,
        back in 0..STEPS,
        banner in prop::sample::select(BANNERS.to_vec()),
    ) {
        let whole = rate(parse_any(log(lines, None).as_bytes())).unwrap();
        let log = log(lines, Some((cut, back.min(cut), banner)));
        if let Ok(rate) = rate(parse_any(log.as_bytes())) {
            prop_assert!((rate / whole - 1.0).abs() < NOISE, "{rate}, not {whole}:\n{log}");
        }
    }
}
