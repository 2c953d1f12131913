//! A log that was cut in two and put together again with a launcher's words between gives the rate of the whole, or says
//! why not.

#[path = "restarts/formats.rs"]
mod formats;

use formats::{FORMATS, Lines, STEPS, time};
use proptest::prelude::*;
use tprimat_job::RunOutcome;
use tprimat_logs::{Trace, parse_any};
use tprimat_numbers::{
    figures::{RepeatStatus, Statistics, summarize},
    results::{Claim, RunFacts, RunResult},
};

const WARM_UP: u64 = 5;
/// Step times vary by this much, so a mean over some of the steps may be off by as much.
const NOISE: f64 = 0.03;
/// Formats that state neither times nor rates of steps, and two that this file has no log of yet: `slime`,
/// whose steps are rounds of many, and `superbench`, which prints a line a run. A table of W&B has no words of a launcher.
const NOT_TRIED: [&str; 10] = [
    "litgpt",
    "modded-nanogpt",
    "slime",
    "superbench",
    "llama-recipes",
    "madengine",
    "wandb",
    "nvidia-smi",
    "rocm-smi",
    "amd-smi",
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

fn facts() -> RunFacts {
    RunFacts {
        attempt: "import-x".to_owned(),
        host: String::new(),
        started_at: None,
        ended_at: None,
        outcome: RunOutcome::Ok,
    }
}

/// Tokens per second per device, of a workload that nobody need state.
fn rate(trace: Trace) -> Result<f64, String> {
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
    let result = RunResult::of_claim(trace, &Claim::of_model(None), facts(), false);
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
    for name in tprimat_logs::names() {
        let is_tried = FORMATS.iter().any(|(tried, _)| *tried == name);
        assert!(is_tried || NOT_TRIED.contains(&name), "{name}");
    }
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
        for cut in (1..STEPS).step_by(4) {
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

/// What was written when a run was killed, or its log was copied while it ran.
#[test]
fn a_log_that_breaks_off_anywhere_gives_the_rate_of_its_steps() {
    for (name, lines) in FORMATS {
        let log = log(lines, None);
        let whole = rate(parse_any(log.as_bytes())).unwrap();
        // Within its last line.
        for cut in (log.len() - 150..log.len()).step_by(3) {
            if let Ok(rate) = rate(parse_any(&log.as_bytes()[..cut])) {
                let end = String::from_utf8_lossy(&log.as_bytes()[cut - 60..cut]);
                assert!(
                    (rate / whole - 1.0).abs() < NOISE,
                    "{name}: {rate}, not {whole}: {end}"
                );
            }
        }
    }
}

/// A timer without a wait for the device: the bar counts four times as many seconds.
#[test]
fn a_timer_is_held_against_the_seconds_of_a_bar() {
    let bar = |step: u64| {
        let seconds = 8 * step;
        format!(
            "\rEpoch 0:  10%|#   | {step}/60 [{:02}:{:02}<01:00,  8.00s/it, v_num=0, reduced_train_loss=9.1, global_step={step}.0, \
             train_step_timing in s=2.010]",
            seconds / 60,
            seconds % 60
        )
    };
    let log: String = (1..=60).map(bar).collect();
    let why = rate(parse_any(log.as_bytes())).unwrap_err();
    assert!(why.contains("8.00 s pass"), "{why}");
}

/// Older versions of nanochat divided their rate by the accumulation.
#[test]
fn a_rate_that_the_logs_own_tokens_refute_is_not_taken() {
    let line = |step: u64| {
        format!(
            "step {step:05}/60 (1.00%) | loss: 8.8 | lrm: 1.00 | dt: 2000.00ms | tok/sec: 16,384 | mfu: 30.13 | total time: 0.1m\n"
        )
    };
    let banner = "Total batch size 131,072 => gradient accumulation steps: 4\n".to_owned();
    let log = banner + &(1..=60).map(line).collect::<String>();
    let mut trace = parse_any(log.as_bytes());
    trace.effective.0.insert("num_gpus".into(), 8.into());
    let result = RunResult::of_claim(trace, &Claim::of_model(None), facts(), false);
    assert_eq!(result.workload.tokens_per_step, Some(131_072));
    assert!(
        result.anomalies.iter().any(|a| a.kind == "rate_disagrees"),
        "{:?}",
        result.anomalies
    );
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
    /// Nothing says that a process begins: its first step is slow, and is one that was done before. Where not every step has a
    /// line, nothing shows it. The Trainer's bars count their seconds anew, which those of these logs do not.
    #[test]
    fn a_step_or_two_back_without_a_word_do_no_harm(
        (name, lines) in prop::sample::select(FORMATS.to_vec()),
        cut in 3..STEPS,
        back in 1u64..=2,
    ) {
        let whole = parse_any(log(lines, None).as_bytes());
        prop_assume!(whole.steps.len() as u64 == STEPS && name != "hf-trainer");
        let whole = rate(whole).unwrap();
        let log = log(lines, Some((cut, back, "")));
        if let Ok(rate) = rate(parse_any(log.as_bytes())) {
            prop_assert!((rate / whole - 1.0).abs() < NOISE, "{rate}, not {whole}:\n{log}");
        }
    }
}
