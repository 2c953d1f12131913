use super::*;
use crate::{LogSection, NEXT_RANK, Trace, parse, parse_any, testing};

fn megatron(date: u64, step: u64, ms: f64, rest: &str) -> String {
    format!(
        " [2026-08-04 10:{:02}:{:02}.000000] iteration {step:8}/ 200 | consumed samples: {} | elapsed time per iteration (ms): {ms} | \
         lm loss: {:.3}E+00 |{rest}\n",
        date / 60,
        date % 60,
        step * 32,
        3.0 - 0.01 * step as f64,
    )
}

fn lines(dates: u64, steps: std::ops::RangeInclusive<u64>) -> String {
    let first = *steps.start();
    let of = |step| {
        megatron(
            dates + 2 * (step - first),
            step,
            if step == first { 9000.0 } else { 2000.0 },
            "",
        )
    };
    steps.map(of).collect()
}

fn numbers(trace: &Trace) -> Vec<(u64, u32)> {
    trace.steps.iter().map(|s| (s.step, s.process)).collect()
}

#[test]
fn words_that_begin_a_process() {
    for (line, expected) in [
        (
            " successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 50",
            Some(Said::After(50)),
        ),
        (
            "[titan] - root - INFO - Training starts at step 101.",
            Some(Said::First(101)),
        ),
        (
            "Loading the checkpoint from ./outputs/checkpoint/step-100.",
            Some(Said::After(100)),
        ),
        (
            "  Continuing training from global step 1,900",
            Some(Said::After(1900)),
        ),
        (
            "[default] Worker group FAILED. 3/3 attempts left; will restart worker group",
            Some(Said::Begins),
        ),
        ("***** Running training *****", Some(Said::Begins)),
        ("Resuming training from out", Some(Said::Begins)),
        (
            "srun: error: node3: task 0: Out Of Memory",
            Some(Said::Begins),
        ),
        ("srun: error: slurm_receive_msgs: Socket timed out", None),
        ("restarting data loader workers", None),
        ("saving checkpoint at iteration 50 to /ckpt", None),
        ("loaded 400 examples in step 3", None),
        ("lr_scheduler: cosine_with_restarts", None),
    ] {
        assert_eq!(said(line), expected, "{line}");
    }
}

#[test]
fn a_resumed_process_begins_behind_its_checkpoint() {
    let log =
        "successfully loaded checkpoint from /c at iteration 50\n".to_owned() + &lines(0, 51..=60);
    let trace = parse_any(log.as_bytes());
    assert_eq!(
        trace.processes,
        [Process {
            line: 1,
            first_step: Some(51)
        }]
    );
    assert_eq!(
        (
            trace.ordinal(&trace.steps[0], 1),
            trace.ordinal(&trace.steps[9], 1)
        ),
        (1, 10)
    );
    assert_eq!(
        trace.steps[1].steps_averaged,
        Some(2),
        "its sums were not started anew"
    );
    assert!(trace.anomalies.is_empty(), "{:?}", trace.anomalies);
    // The middle of a run has no start.
    let middle = parse_any(lines(0, 51..=60).as_bytes());
    assert_eq!(
        (middle.processes.len(), middle.steps[1].steps_averaged),
        (0, None)
    );
}

#[test]
fn steps_that_a_later_process_does_again_count_once_and_as_it_did_them() {
    for banner in ["", "will restart worker group\n"] {
        let log = lines(0, 1..=30) + banner + &lines(100, 21..=40);
        let trace = parse_any(log.as_bytes());
        let expected: Vec<(u64, u32)> = (1..=40).map(|n| (n, u32::from(n > 20))).collect();
        assert_eq!(numbers(&trace), expected, "{banner}");
        assert_eq!(trace.steps[20].step_time_seconds, Some(9.0));
        assert_eq!(trace.processes[1].first_step, Some(21));
        assert!(testing::kinds(&trace).contains(&RESTART));
    }
    // At the end of the log it is start-up, and the next step shows no more of it.
    let short = parse_any(
        (lines(0, 1..=30) + "will restart worker group\n" + &lines(100, 31..=33)).as_bytes(),
    );
    assert_eq!(numbers(&short)[29..], [(30, 0), (31, 1), (32, 1), (33, 1)]);
}

#[test]
fn another_rank_begins_no_process() {
    let both: String = (1..=30)
        .map(|n| megatron(2 * n, n, 2000.0, "") + &megatron(2 * n, n, 2010.0, ""))
        .collect();
    let late: String = (1..=30)
        .map(|n| {
            megatron(2 * n, n, 2000.0, "")
                + &if n > 3 {
                    megatron(2 * n - 6, n - 3, 2001.0, "")
                } else {
                    String::new()
                }
        })
        .collect();
    let cat = lines(0, 1..=30) + &lines(0, 1..=30);
    let files = lines(0, 1..=30)
        + std::str::from_utf8(NEXT_RANK).unwrap()
        + "using world size: 8\n"
        + &lines(0, 1..=30);
    for log in [both, late, cat, files] {
        let trace = parse(&LogSection::named("megatron"), log.as_bytes());
        assert_eq!((trace.steps.len(), trace.processes.len()), (30, 0), "{log}");
        assert!(!testing::kinds(&trace).contains(&SECOND_RUN), "{log}");
    }
}

#[test]
fn what_follows_a_run_that_has_ended_is_another_run() {
    let settings =
        |iters: u64| format!("  seq_length ........ 4096\n  train_iters ....... {iters}\n");
    let run = |dates, iters: u64| {
        settings(iters) + &lines(dates, 1..=iters).replace("/ 200", &format!("/ {iters}"))
    };
    let trace = parse_any((run(0, 20) + &run(100, 60)).as_bytes());
    assert_eq!(
        (trace.steps.len(), trace.effective.0["train_iters"].as_u64()),
        (20, Some(20))
    );
    let told = trace
        .anomalies
        .iter()
        .find(|a| a.kind == SECOND_RUN)
        .unwrap();
    assert!(
        told.detail.contains("in line 23") && told.detail.contains("20 logged steps"),
        "{told:?}"
    );
    // One that is broken off and begun anew is one run, unless it goes at another pace or is another.
    let anew = lines(0, 1..=20) + "will restart worker group\n" + &lines(100, 1..=30);
    let trace = parse_any(anew.as_bytes());
    assert_eq!((trace.steps.len(), trace.steps[0].process), (30, 1));
    let slower = anew.replace("2000", "2600").replacen("2600", "2000", 19);
    assert!(testing::kinds(&parse_any(slower.as_bytes())).contains(&SECOND_RUN));
    let other = |world: u64| format!("using world size: {world}, data-parallel size: {world}\n");
    let elastic = other(8) + &lines(0, 1..=20) + &other(16) + &lines(100, 21..=40);
    let told = parse_any(elastic.as_bytes());
    assert!(
        testing::kinds(&told).contains(&SECOND_RUN),
        "{:?}",
        told.anomalies
    );
}

#[test]
fn the_first_line_of_a_process_stands_for_the_steps_since_its_start() {
    let line = |step: u64, tps: u64| {
        format!(
            "[titan] - INFO - step: {step}  loss: 3.1  grad_norm: 1.0  memory: 3.31GiB(4%)  tps: {tps}  mfu: 9%\n"
        )
    };
    let of = |log: String| -> Vec<(u64, u64)> {
        let trace = parse_any(log.as_bytes());
        trace.steps.iter().map(|s| (s.step, s.count())).collect()
    };
    let rest = || line(110, 8192) + &line(120, 8192) + &line(130, 8192);
    assert_eq!(
        of("Training starts at step 101\n".to_owned() + &line(101, 819) + &rest()),
        [(101, 1), (110, 9), (120, 10), (130, 10)]
    );
    assert_eq!(of(line(101, 819) + &rest())[0], (101, 1));
    assert_eq!(
        of("Training starts at step 106\n".to_owned() + &rest())[0],
        (110, 5)
    );
    assert_eq!(of(rest())[0], (110, 10));
    let again = line(1, 900)
        + &line(10, 8192)
        + &line(20, 8192)
        + "Training starts at step 16\n"
        + &line(20, 4000)
        + &line(30, 8192);
    assert_eq!(of(again), [(1, 1), (10, 9), (20, 5), (30, 10)]);
}

#[test]
fn steps_that_are_stated_again_are_a_restart_whatever_their_pace() {
    let read = |steps: Vec<u64>, noise: f64, growth: &str| {
        let line = |(at, step): (usize, u64)| {
            let (rate, loss) = (98_000 + 7 * at, 4.0 - 0.01 * step as f64);
            let loss = loss + noise * at as f64;
            format!("step {step} tok 512 loss {loss:.4} tokens/s {rate}\n")
        };
        let log: String = steps.into_iter().enumerate().map(line).collect();
        let pattern = "step <step> tok <tokens> loss <loss> tokens/s <tokens_per_second>";
        let section = LogSection::of_lines(&[pattern]);
        crate::parse_dated(&section, log.as_bytes(), growth.as_bytes())
    };
    let whole = |from: u64| (1..=15).chain(from..=30).collect::<Vec<u64>>();
    for growth in ["", "100.0 100\n100.2 900\n100.3 9000\n", "100.0 9000\n"] {
        for from in [1, 11, 13] {
            // Losses that differ in the last digit are of steps that were done again.
            for (noise, processes, told) in [(1e-4, 2, RESTART), (0.0, 0, "copied_steps")] {
                let trace = read(whole(from), noise, growth);
                assert_eq!(
                    (trace.steps.len(), trace.processes.len()),
                    (30, processes),
                    "{from} {growth}"
                );
                assert!(testing::kinds(&trace).contains(&told));
            }
        }
    }
    // Two ranks that write ten lines at a time.
    let in_turn = [1..=10, 1..=10, 11..=20, 11..=20, 21..=24, 21..=24];
    let trace = read(in_turn.into_iter().flatten().collect(), 0.0, "");
    assert_eq!((trace.steps.len(), trace.processes.len()), (24, 0));
    assert_eq!(testing::kinds(&trace), ["copied_steps"]);
    // Two whole runs, or the log of another rank behind that of the first one: the figures are the first one's.
    let line = |step: u64| {
        let bar = format!("\r 50%|#| {step}/8 [00:{:02}<00:10,  2.00s/it]", 2 * step);
        format!(
            "{bar}\r{{'loss': {}, 'learning_rate': {}e-5, 'epoch': {}}}\n{bar}",
            9 - step,
            20 - step,
            step
        )
    };
    let one = "***** Running training *****\n  Total optimization steps = 8\n".to_owned()
        + &(1..=8).map(line).collect::<String>()
        + "{'train_runtime': 16.0, 'train_steps_per_second': 0.5, 'epoch': 8.0}\n";
    let trace = parse_any((one.clone() + &one).as_bytes());
    assert_eq!(trace.steps.len(), 8);
    assert!(
        testing::kinds(&trace).contains(&"copied_steps"),
        "{trace:?}"
    );
    // The same of runs whose losses differ, from a later step on: what had ended does not go back.
    let events = |steps: std::ops::RangeInclusive<u64>, loss: u64| {
        let line = |n: u64| {
            format!(r#"{{"event":"step","step":{n},"step_time_seconds":{loss},"loss":{loss}.5}}"#)
                + "\n"
        };
        steps.map(line).collect::<String>()
    };
    let end = "{\"event\":\"end\",\"status\":\"ok\"}\n";
    let start = "{\"event\":\"start\",\"schema\":\"tprimat.events/1\"}\n";
    let log = format!(
        "{start}{}{end}{start}{}{end}",
        events(1..=20, 1),
        events(2..=20, 3)
    );
    let trace = parse_any(log.as_bytes());
    assert_eq!(
        trace.steps.iter().filter(|s| s.loss != Some(1.5)).count(),
        0
    );
    assert!(testing::kinds(&trace).contains(&SECOND_RUN), "{trace:?}");
    // Ranks whose lines come one by one, and now and then three at once.
    let ranks = vec![1, 1, 2, 2, 3, 4, 3, 4, 5, 6, 7, 5, 6, 7, 8, 8];
    let trace = read(ranks, 0.0, "");
    assert_eq!((trace.steps.len(), trace.processes.len()), (8, 0));
}

/// Another run with the same seed has the same losses, and other times.
#[test]
fn what_follows_an_end_at_another_pace_is_no_rank_s_copy() {
    let run = |ms: f64| -> String {
        let line = |step: u64| {
            format!(
                " iteration {step:8}/ 40 | consumed samples: {} | elapsed time per iteration (ms): {} | lm loss: {:.3}E+00 |\n",
                step * 32,
                ms + (step % 3) as f64,
                3.0 - 0.01 * step as f64
            )
        };
        (1..=40).map(line).collect()
    };
    let parsed = |second: f64| parse_any((run(1400.0) + &run(second)).as_bytes());
    assert_eq!(testing::kinds(&parsed(1401.0)), ["copied_steps"]);
    assert!(testing::kinds(&parsed(2800.0)).contains(&"second_run"));
}

/// Without a word, and one or two steps back: the log stood still for minutes, and the step was a slow one.
#[test]
fn a_step_that_comes_again_long_after_is_of_another_process() {
    for from in [29, 30] {
        let log = lines(0, 1..=30) + &lines(400, from..=60);
        let trace = parse_any(log.as_bytes());
        assert_eq!(trace.processes.len(), 2, "{:?}", trace.anomalies);
        assert_eq!(trace.steps.len(), 60);
        let first = trace.steps.iter().find(|s| s.step == from).unwrap();
        assert_eq!((first.process, first.step_time_seconds), (1, Some(9.0)));
    }
}

#[test]
fn two_beginnings_that_came_to_one_end_are_two_runs() {
    let of_30 = |log: String| log.replace("/ 200", "/ 30");
    let log = of_30(lines(0, 1..=30) + &lines(400, 1..=30));
    let trace = parse_any(log.as_bytes());
    assert!(
        trace.anomalies.iter().any(|a| a.kind == SECOND_RUN),
        "{:?}",
        trace.anomalies
    );
    // One that died on its way is a beginning, and so are two that died at one step.
    let log = of_30(lines(0, 1..=20) + &lines(400, 1..=30));
    let trace = parse_any(log.as_bytes());
    assert!(
        trace.anomalies.iter().all(|a| a.kind != SECOND_RUN),
        "{:?}",
        trace.anomalies
    );
    assert_eq!(trace.steps.len(), 30);
    let dies = lines(0, 1..=20) + "srun: error: node3: task 0: Out Of Memory\n";
    let log = of_30(dies.clone() + &dies + &lines(900, 1..=30));
    let trace = parse_any(log.as_bytes());
    assert_eq!(trace.steps.len(), 30, "{:?}", trace.anomalies);
}

/// Nothing is done again and nothing is said, but hours lie between two lines and the second step is slow. A process that was only
/// paused goes on at once.
#[test]
fn a_slow_step_long_after_the_one_before_begins_a_process() {
    let again = lines(0, 1..=30) + &lines(400, 31..=60);
    let trace = parse_any(again.as_bytes());
    assert_eq!(trace.processes.len(), 2, "{:?}", trace.anomalies);
    assert_eq!(trace.steps.iter().filter(|s| s.process == 1).count(), 30);
    // A mean over ten steps has the slow one in it.
    let line = |step: u64, date: u64, tps: u64| {
        format!(
            "[titan] 2026-08-04 1{}:{:02}:{:02},000 - INFO - step: {step}  loss: 3.1  memory: 3.31GiB(4%)  tps: {tps}  mfu: 9%\n",
            date / 3600,
            date / 60 % 60,
            date % 60
        )
    };
    let rest = |from: u64, at: u64| {
        let of = |n: u64| {
            line(
                10 * n,
                at + 20 * (n - from),
                if n == 4 { 4311 } else { 8192 },
            )
        };
        (from..=from + 2).map(of).collect::<String>()
    };
    let tens = line(1, 10, 819) + &rest(1, 28) + &rest(4, 7304);
    assert_eq!(parse_any(tens.as_bytes()).processes.len(), 2);
    for paused in [again.replace("9000", "2000"), lines(0, 1..=60)] {
        let trace = parse_any(paused.as_bytes());
        assert_eq!(trace.processes.len(), 0, "{:?}", trace.anomalies);
    }
}

/// The engine's line has the date, and the one behind it the time: both are of one step, and no copy.
#[test]
fn a_step_of_two_lines_is_told_as_one_is() {
    let steps = |from: u64, to: u64, at: u64| -> String {
        let line = |n: u64| {
            let seconds = at + 2 * (n - from);
            let ms = if n == from { 20_000 } else { 2000 };
            format!(
                "[2026-08-04 10:{:02}:{:02},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.0001], \
                 mom=[(0.9, 0.999)]\nStep {n} time: {ms}.0ms\n",
                seconds / 60,
                seconds % 60,
            )
        };
        (from..=to).map(line).collect()
    };
    for from in [29, 30, 31] {
        let trace = parse_any((steps(1, 30, 0) + &steps(from, 60, 700)).as_bytes());
        assert_eq!(trace.processes.len(), 2, "{from}: {:?}", trace.anomalies);
        let first = trace.steps.iter().find(|s| s.step == from).unwrap();
        assert_eq!((first.process, first.step_time_seconds), (1, Some(20.0)));
        assert_eq!(trace.steps.len(), 60);
        assert!(!testing::kinds(&trace).contains(&"duplicate_step"));
    }
    let whole = parse_any(steps(1, 60, 0).as_bytes());
    assert_eq!((whole.processes.len(), whole.steps.len()), (0, 60));
}

/// A line is of ten steps of two seconds, and the new process needs a minute and a slow step.
#[test]
fn a_pause_is_measured_in_steps_and_not_in_lines() {
    let line = |step: u64, date: u64, ms: u64| {
        format!(
            " [2026-08-04 10:{:02}:{:02}.000000] iteration {step:8}/ 200 | elapsed time per iteration (ms): {ms}.0 | lm loss: {:.3}E+00 |\n",
            date / 60,
            date % 60,
            3.0 - 0.01 * step as f64,
        )
    };
    let first: String = (1..=6).map(|n| line(10 * n, 20 * n, 2000)).collect();
    let rest: String = (8..=12).map(|n| line(10 * n, 74 + 20 * n, 2000)).collect();
    let of = |date, ms| parse_any((first.clone() + &line(70, date, ms) + &rest).as_bytes());
    let again = of(206, 2600);
    assert_eq!(again.processes.len(), 2, "{:?}", again.anomalies);
    for trace in [of(202, 2200), of(146, 2600)] {
        assert_eq!(trace.processes.len(), 0, "{:?}", trace.anomalies);
    }
}

/// Two whole runs, of which none says how many steps were asked for.
#[test]
fn two_runs_of_nanogpt_are_not_one() {
    let line = |step: u64, at: u64| {
        let loss = 11.0 - 0.05 * step as f64 - 1e-3 * at as f64;
        format!(
            "iter {step}: loss {loss:.4}, time {}.10ms, mfu 30.00%\n",
            2000 + at
        )
    };
    let run = |at| {
        let banner = "tokens per iteration will be: 262,144\n".to_owned();
        banner + &(0..=40).map(|step| line(step, at)).collect::<String>()
    };
    let trace = parse_any((run(1) + &run(3)).as_bytes());
    assert!(
        testing::kinds(&trace).contains(&SECOND_RUN),
        "{:?}",
        trace.anomalies
    );
    let broken: String = (0..=20).map(|step| line(step, 3)).collect();
    let trace = parse_any((broken + &run(1)).as_bytes());
    assert!(
        !testing::kinds(&trace).contains(&SECOND_RUN),
        "{:?}",
        trace.anomalies
    );
}

/// torchrun starts the workers again with other settings, before any of them has trained.
#[test]
fn settings_of_an_attempt_without_a_step_are_not_held_against_the_next() {
    let attempt = |world: u64, more: &str| {
        format!(
            "using world size: {world}, data-parallel size: {world}\n  seq_length ........ 4096\n{more}"
        )
    };
    let dead = attempt(8, "# Micro Batch Size : 2\n");
    let words = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n";
    let log = |words| dead.clone() + words + &attempt(4, "") + &lines(0, 1..=30);
    let trace = parse_any(log(words).as_bytes());
    let settings = &trace.effective.0;
    assert_eq!(
        (
            settings["num_gpus"].as_u64(),
            settings["micro_batch_size"].as_u64()
        ),
        (Some(4), Some(2)),
        "{settings:?}"
    );
    assert_eq!(trace.restated, crate::Effective::default());
    assert_ne!(
        parse_any(log("").as_bytes()).restated,
        crate::Effective::default()
    );
}
