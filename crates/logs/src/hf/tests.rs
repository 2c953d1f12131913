use proptest::prelude::*;

use super::super::{LogSection, Trace, parse_any, testing::all_kinds};

pub fn parse(log: &str) -> Trace {
    super::super::parse(&LogSection::named("hf-trainer"), log.as_bytes())
}

const LOG: &str = concat!(
    "Map: 100%|██████████| 500/500 [00:00<00:00, 5000.00 examples/s]\n",
    "  0%|          | 0/40 [00:00<?, ?it/s]\r  8%|8         | 3/40 [00:06<01:14,  2.00s/it]\n\n",
    "{'loss': 2.5, 'grad_norm': 6.5, 'learning_rate': 5e-05, 'epoch': 0.01, 'num_input_tokens_seen': 4000, 'train_runtime': 20.0, 'train_tokens_per_second': 200.5}\n",
    " 10%|#         | 4/40 [00:08<01:12,  2.00s/it][2023-06-07] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32\n",
    " 20%|##        | 8/40 [00:16<01:04,  2.00s/it]{'loss': '2.25', 'grad_norm': 'nan', 'learning_rate': '4e-05', 'epoch': '0.02', 'num_input_tokens_seen': 8000, 'train_runtime': 30.0} 20%|##        | 8/40 [00:16<01:04,  1.25it/s]\n",
    "100%|##########| 4/4 [00:02<00:00,  1.00s/it]\n",
    "{'eval_loss': 2.125, 'eval_runtime': 2.5, 'epoch': 0.02}\n",
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 3e-05, 'epoch': 0.03, 'num_input_tokens_seen': 12000, 'train_runtime': 38.0}\n",
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 3e-05, 'epoch': 0.03, 'num_input_tokens_seen': 12000, 'train_runtime': 38.0}\n",
    " 30%|###       | 12/40 [00:24<00:56,  2.00s/it]\n",
    "{'loss': 1.5, 'learning_rate': 0.0, 'epoch': 0.1, 'num_input_tokens_seen': 40000, 'train_runtime': 100.0}\n",
    "100%|##########| 40/40 [01:20<00:00,  2.00s/it]\n",
    "{'train_runtime': 81.5, 'train_samples_per_second': 5.5, 'train_steps_per_second': 0.5, 'train_loss': 1.75, 'epoch': 0.1}\n",
    "{'train_runtime': 81.6253, 'train_samples_per_second': 5.0, 'train_steps_per_second': 0.5, 'train_loss': 1.75, 'epoch': 0.1}\n",
    "***** train metrics *****\n  train_runtime            = 0:01:21.62\n  total_flos               =  4454709GF\n  train_samples            =     726000\n",
    "***** eval metrics *****\n  eval_loss               =     2.0\n  eval_runtime            = 0:00:14.81\n",
    "{'loss': 2.5, 'grad_norm': 6.5, 'learning_rate': 5e-05, 'epoch': 0.01}\n",
);

#[test]
fn steps_take_their_numbers_from_the_bars() {
    let trace = parse_any(LOG.as_bytes());
    assert_eq!(
        (trace.format.as_str(), trace.finished),
        ("hf-trainer", true)
    );
    assert_eq!(
        trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
        [4, 8, 12, 40]
    );
    let [first, second, third, last] = &trace.steps[..] else {
        panic!()
    };
    assert_eq!(
        (first.loss, first.grad_norm, first.learning_rate),
        (Some(2.5), Some(6.5), Some(5e-5))
    );
    assert_eq!(
        (
            first.step_time_seconds,
            first.tokens,
            first.tokens_per_second_per_gpu
        ),
        (None, None, None)
    );
    assert_eq!(
        (first.steps_averaged, first.other["train_runtime_seconds"]),
        (Some(4), 20.0)
    );
    assert_eq!(
        first.running_average.as_ref().unwrap().step_time_seconds,
        Some(2.0)
    );
    assert_eq!(
        (second.loss, second.grad_norm, second.learning_rate),
        (Some(2.25), None, Some(4e-5))
    );
    assert_eq!(
        (
            second.step_time_seconds,
            second.tokens,
            second.steps_averaged
        ),
        (Some(2.5), Some(1000), Some(4))
    );
    assert_eq!(
        second.running_average.as_ref().unwrap().step_time_seconds,
        Some(0.8)
    );
    assert_eq!((third.loss, third.step_time_seconds), (None, Some(2.0)));
    assert_eq!(
        (last.step_time_seconds, last.steps_averaged),
        (None, Some(4)),
        "lines are missing before it"
    );
    let evaluations: Vec<_> = trace
        .evaluations
        .iter()
        .map(|e| (e.step, e.name.as_str(), e.value))
        .collect();
    assert_eq!(
        evaluations,
        [(Some(8), "eval_loss", 2.125), (Some(40), "eval_loss", 2.0)]
    );
    assert_eq!(
        (
            trace.totals["train_runtime_seconds"],
            trace.totals["train_samples_per_second"]
        ),
        (81.6253, 5.5)
    );
    assert_eq!(trace.totals["train_samples"], 726_000.0);
    assert_eq!(
        all_kinds(&trace),
        [
            "overflow_skip",
            "nan_grad_norm",
            "nan_grad_norm",
            "step_time_derived",
            "divergence",
            "second_run",
            "missing_steps"
        ]
    );
}

/// LLaMA-Factory prints a line of its own beside the Trainer's, with a date, and counts whole seconds in its other file.
#[test]
fn one_step_in_the_words_of_two_handlers_is_one() {
    let line = |n: u64| {
        let seconds = 30 + 10 * n + if n > 8 { 60 } else { 0 };
        format!(
            "[INFO|2026-03-01 10:{:02}:{:02}] llamafactory.train.callbacks:143 >> {{'loss': {}.1234, 'learning_rate': 1.{n:02}35e-05, \
             'epoch': 0.{n:02}, 'throughput': 4096.50}}\n\
             {{'loss': {}.1234, 'grad_norm': 0.5, 'learning_rate': 1.{n:02}3499e-05, 'epoch': 0.{n:02}}}\n",
            seconds / 60,
            seconds % 60,
            40 - n,
            40 - n,
        )
    };
    let log =
        "TrainingArguments(logging_steps=5)\n".to_owned() + &(1..=20).map(line).collect::<String>();
    let trace = parse(&log);
    let numbers: Vec<u64> = trace.steps.iter().map(|s| s.step).collect();
    assert_eq!(numbers, (1..=20).map(|n| 5 * n).collect::<Vec<_>>());
    assert_eq!(trace.steps[0].grad_norm, Some(0.5));
    assert_eq!(trace.steps[0].other["throughput"], 4096.5);
    // Without a bar the dates tell: two seconds a step, and a minute in which it stood still.
    let times: Vec<f64> = trace
        .steps
        .iter()
        .filter_map(|s| s.step_time_seconds)
        .collect();
    assert_eq!(times, [2.0, 2.0, 2.0, 8.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
}

/// A clock of whole seconds times all lines or none: those that took long are not the others.
#[test]
fn a_stall_is_not_the_only_time_of_a_log() {
    let line = |n: u64| {
        let seconds = 20 + 10 * n + if n > 8 { 60 } else { 0 };
        format!(
            "{{\"current_steps\": {}, \"total_steps\": 100, \"loss\": {}.5, \"lr\": 1e-05, \"epoch\": 0.{n:02}, \"elapsed_time\": \
             \"0:{:02}:{:02}\"}}\n",
            5 * n,
            30 - n,
            seconds / 60,
            seconds % 60
        )
    };
    let trace = parse(&(1..=20).map(line).collect::<String>());
    let timed = trace.steps.iter().filter(|s| s.step_time_seconds.is_some());
    let steps: u64 = timed.clone().map(crate::Step::count).sum();
    let seconds: f64 = timed
        .map(|s| s.step_time_seconds.unwrap() * s.count() as f64)
        .sum();
    assert!(steps >= 90, "{:?}", trace.steps);
    assert_eq!(seconds, 2.0 * steps as f64 + 60.0);
}

/// Behind the banner of the first process, its bar alone tells of the next one, which goes on with the step that comes next.
#[test]
fn a_bar_that_begins_anew_is_a_process_also_where_no_step_comes_again() {
    let process = |from: u64, to: u64| -> String {
        let line = |n: u64| {
            let bar = format!(
                "\r {n}%|#| {n}/60 [00:{:02}<01:00,  2.00s/it]",
                2 * (n - from)
            );
            format!(
                "{bar}\n{{'loss': {}.5, 'learning_rate': 1e-05, 'epoch': 0.{n:02}}}\n{bar}",
                99 - n
            )
        };
        let begin = "\n  0%|          | 0/60 [00:00<?, ?it/s]".to_owned();
        begin + &(from..=to).map(line).collect::<String>()
    };
    let banner = "***** Running training *****\n  Total optimization steps = 60\n";
    for from in [18, 21] {
        let trace = parse(&(banner.to_owned() + &process(1, 20) + &process(from, 40)));
        assert_eq!(trace.processes.len(), 2, "{from}: {:?}", trace.anomalies);
        assert_eq!(trace.processes[1].first_step, Some(from));
        assert_eq!(trace.steps.len(), 40);
    }
}

#[test]
fn without_bars_the_interval_or_the_epoch_decide() {
    let lines = "{'loss': 2.0, 'learning_rate': 1e-05, 'epoch': 0.13}\n\n{'loss': 1.0, 'learning_rate': 1e-06, 'epoch': 0.26}\n";
    let numbers = |log: &str| {
        let trace = parse(log);
        (
            trace
                .steps
                .iter()
                .map(|s| (s.step, s.steps_averaged))
                .collect::<Vec<_>>(),
            all_kinds(&trace).len(),
        )
    };
    assert_eq!(numbers(lines), (vec![(1, None), (2, None)], 1));
    assert_eq!(
        numbers(&format!("logging_steps: 10\n{lines}")).0,
        [(10, Some(10)), (20, Some(10))]
    );
    let first = "TrainingArguments(logging_first_step=True, logging_steps=10)\n";
    assert_eq!(
        numbers(&format!("{first}{lines}")).0,
        [(1, None), (10, None)]
    );
    let banner = "  Num examples = 2,415\n  Total train batch size (w. parallel, distributed & accumulation) = 64\n";
    assert_eq!(
        numbers(&format!("{banner}{lines}")).0,
        [(5, Some(5)), (10, Some(5))]
    );
    // The Trainer's epochs are made of whole micro-batches: 63 of them, two a step.
    let accumulated = "  Num examples = 1,000\n  Total train batch size (w. parallel, distributed & accumulation) = 32\n  Gradient Accumulation steps = 2\n{'loss': 4.8, 'epoch': 0.32}\n{'loss': 4.6, 'epoch': 0.63}\n{'loss': 4.4, 'epoch': 0.95}\n";
    assert_eq!(
        numbers(accumulated).0,
        [(10, Some(10)), (20, Some(10)), (30, Some(10))]
    );
    assert!(parse(lines).steps_assumed && !parse(accumulated).steps_assumed);
    let coarse = banner.replace("2,415", "241,500");
    assert_eq!(
        numbers(&format!("{coarse}{lines}")).0,
        [(1, None), (2, None)]
    );
}

#[test]
fn relatives() {
    let axolotl = parse_any(b"{'loss': 4.75, 'grad_norm': 98.5, 'learning_rate': 5e-06, 'memory/max_mem_active(gib)': 25.5, 'memory/max_mem_allocated(gib)': 25.25, 'memory/device_mem_reserved(gib)': 30.5, 'epoch': 1.0}\n{'loss': 4.5, 'memory/max_active (GiB)': 26.0, 'memory/max_allocated (GiB)': 25.75, 'tokens_per_second_per_gpu': 1000.0, 'epoch': 2.0}\n");
    let [first, second] = &axolotl.steps[..] else {
        panic!()
    };
    assert_eq!(
        (first.memory_bytes, first.memory_kind.as_deref()),
        (Some(101 << 28), Some("peak_allocated"))
    );
    let reserved = &first.memory_figures[1];
    assert_eq!(
        (reserved.kind.as_ref(), reserved.bytes),
        ("peak_reserved", 61 << 29)
    );
    let active = |step: &crate::Step| {
        let figure = step.memory_figures.iter().find(|f| f.kind == "peak_active");
        figure.map(|figure| figure.bytes)
    };
    assert_eq!(
        (active(first), active(second)),
        (Some(51 << 29), Some(13 << 31))
    );
    assert_eq!(
        (second.memory_bytes, second.tokens_per_second_per_gpu),
        (Some(103 << 28), Some(1000.0))
    );

    let factory = parse_any(concat!(
        "{\"current_steps\": 10, \"total_steps\": 40, \"loss\": 3.5, \"lr\": 9e-05, \"epoch\": 0.32, \"elapsed_time\": \"0:01:20\"}\n",
        "{\"current_steps\": 20, \"total_steps\": 40, \"loss\": 0.25, \"lr\": 8e-05, \"epoch\": 0.64, \"elapsed_time\": \"0:02:45\", \"remaining_time\": \"0:10:27\"}\n",
        "{\"current_steps\": 20, \"total_steps\": 40, \"eval_loss\": 0.75, \"epoch\": 0.64}\n",
        "{\"current_steps\": 30, \"total_steps\": 40, \"loss\": 0.125, \"lr\": 7e-05, \"epoch\": 0.9, \"elapsed_time\": \"0:03:05\"}\n",
        "{\"current_steps\": 40, \"total_steps\": 40, \"epoch\": 1.0, \"percentage\": 100.0, \"elapsed_time\": \"0:05:00\"}\n",
    ).as_bytes());
    assert_eq!(factory.format, "hf-trainer");
    let times: Vec<_> = factory
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds, s.steps_averaged))
        .collect();
    assert_eq!(
        times,
        [
            (10, None, Some(10)),
            (20, Some(8.5), Some(10)),
            (30, Some(2.0), Some(10))
        ]
    );
    assert_eq!(
        (factory.steps[1].learning_rate, factory.evaluations[0].value),
        (Some(8e-5), 0.75)
    );
    assert_eq!(
        (
            factory.effective.0["train_iters"].as_u64(),
            factory.finished
        ),
        (Some(40), true)
    );

    let notebook = parse_any(b"TrainOutput(global_step=250, training_loss=1.5, metrics={'train_runtime': 196.5, 'train_samples_per_second': 5.0, 'train_loss': 1.5, 'epoch': 1.0})\n");
    assert_eq!(
        (
            notebook.totals["train_runtime_seconds"],
            notebook.totals["global_step"]
        ),
        (196.5, 250.0)
    );
    assert_eq!(
        (
            notebook.steps[0].count(),
            notebook.format.as_str(),
            notebook.finished
        ),
        (250, "hf-trainer", true)
    );
}

#[test]
fn deepspeed_below_the_trainer() {
    let log = "[deepspeed] x\n[Rank 0] step=2, skipped=0, lr=[1e-05], mom=[]\n[config.py:1:print]   train_batch_size ... 64\n\
               {'loss': 2.0, 'learning_rate': 1e-05, 'epoch': 0.13}\n";
    let trace = parse_any(log.as_bytes());
    assert_eq!(
        (trace.format.as_str(), trace.steps.len()),
        ("hf-trainer", 1)
    );
    assert_eq!(trace.effective.0["global_batch_size"], 64);
}

super::super::testing::damaged!("hf-trainer", LOG);

proptest! {
    #[test]
    fn noise_between_the_lines_changes_nothing(noise in proptest::collection::vec("[ -$&-é]{0,60}", 8)) {
        let mut noisy = String::new();
        for (line, noise) in LOG.lines().zip(noise.iter().cycle()) {
            noisy.push_str(&format!("{noise}\n{line}\r\n"));
        }
        prop_assert_eq!(parse(&noisy).steps, parse(LOG).steps);
    }
}

/// ms-swift's own way to number steps.
#[test]
fn a_step_of_so_many_is_the_steps_number() {
    let line = |at: u32| {
        format!(
            "{{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1, 'global_step/max_steps': '{at}/94'}}\n"
        )
    };
    let trace = crate::parse_any([line(5), line(10), line(15)].concat().as_bytes());
    assert_eq!(
        trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
        [5, 10, 15]
    );
}

#[test]
fn rows_of_a_table_stand_below_its_header() {
    let trace = parse_any(
        b"[75/75 03:14, Epoch 1/1]\nStep\tTraining Loss\tValidation Loss\n25\tNo log\t2.500000\n50\t2.250000\t2.125000\n75\t2.000000\t2.000000\n\
          done\n100\t1.0\t1.0\nTrainOutput(global_step=75, training_loss=2.1, metrics={'train_runtime': 194.5})\n",
    );
    assert_eq!(trace.format, "hf-trainer");
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.loss, s.steps_averaged))
        .collect();
    assert_eq!(
        steps,
        [
            (25, None, Some(25)),
            (50, Some(2.25), Some(25)),
            // Its time is that of the whole run.
            (75, Some(2.0), Some(75))
        ]
    );
    assert_eq!(
        (
            trace.evaluations.len(),
            trace.totals["train_runtime_seconds"]
        ),
        (3, 194.5)
    );
    let spaced = parse_any(b"  Step    Training Loss\n  10      1.500000\n  20      1.250000\n");
    assert_eq!((spaced.steps.len(), spaced.steps[1].loss), (2, Some(1.25)));
}

#[test]
fn bars_of_two_processes_give_the_times_of_each() {
    let line = |step: u64, at: u64| {
        let bar = format!(
            "{step:3}%|#  | {step}/100 [{:02}:{:02}<01:00,  2.00s/it]",
            2 * at / 60,
            2 * at % 60
        );
        format!(
            "\r{bar}{{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 2e-05, 'epoch': 0.{step:03}}}\n\r{bar}"
        )
    };
    let first: String = (1..=50).map(|n| line(n, n)).collect();
    for (back, steps) in [(0, 100), (5, 100)] {
        let second: String = (51 - back..=100).map(|n| line(n, n + back - 50)).collect();
        let log = format!("{first}\nwill restart worker group\n{second}");
        let trace = parse(&log);
        let timed = |process: u32| {
            trace
                .steps
                .iter()
                .filter(|s| s.process == process && s.step_time_seconds == Some(2.0))
                .count()
        };
        assert_eq!(trace.steps.len(), steps, "{:?}", trace.anomalies);
        let told: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.process, s.ended_at, s.step_time_seconds))
            .collect();
        assert!(
            timed(0) > 3 && timed(1) > 3,
            "{back}: {told:?} {:?}",
            trace.anomalies
        );
    }
}

/// As `Trainer.save_state` writes it: indented, with its keys sorted.
#[test]
fn the_state_that_the_trainer_saves_is_a_log() {
    let step = |step: u32, loss: f64| {
        format!(
            "    {{\n      \"epoch\": 0.5,\n      \"grad_norm\": 1.5,\n      \"learning_rate\": 0.0001,\n      \"loss\": {loss},\n      \"step\": {step}\n    }},\n"
        )
    };
    let summary = "    {\n      \"step\": 20,\n      \"total_flos\": 1e+12,\n      \"train_loss\": 5.9,\n      \"train_runtime\": 10.0,\n      \
                   \"train_samples_per_second\": 16.0,\n      \"train_steps_per_second\": 2.0\n    }\n";
    let state = |history: &str| {
        format!(
            "{{\n  \"best_metric\": null,\n  \"global_step\": 20,\n  \"log_history\": [\n{history}  ],\n  \"logging_steps\": 10,\n  \
             \"max_steps\": 20,\n  \"num_input_tokens_seen\": 20480\n}}\n"
        )
    };
    let steps = step(10, 6.5) + &step(20, 5.25);
    let trace = parse_any(state(&(steps.clone() + summary)).as_bytes());
    let seen: Vec<_> = trace.steps.iter().map(|s| (s.step, s.loss)).collect();
    assert_eq!(
        (trace.format.as_str(), seen),
        ("hf-trainer", vec![(10, Some(6.5)), (20, Some(5.25))])
    );
    // The whole run: 20 steps in 10 s, of 1,024 tokens each.
    let last = &trace.steps[1];
    assert_eq!(
        (last.step_time_seconds, last.tokens),
        (Some(0.5), Some(1024))
    );
    // A checkpoint's state, which knows no end of the training, has losses alone.
    let trace = parse_any(state(&steps.replace("},\n  ]", "}\n  ]")).as_bytes());
    assert_eq!(
        (trace.steps.len(), trace.steps[1].step_time_seconds),
        (2, None)
    );
}

/// What an untouched Trainer prints when it is killed and goes on from a checkpoint: no word of it, a bar that begins at 0
/// and jumps, and the lines since the checkpoint once more.
#[test]
fn a_process_that_goes_on_is_known_by_its_bar() {
    let bar =
        |step: u64, at: u64| format!("\r {step}%|# | {step}/40 [00:{at:02}<00:10,  1.00it/s]");
    let line = |step: u64| {
        format!(
            "\n{{'loss': '6.{step:02}', 'grad_norm': '1.1', 'learning_rate': '1e-05', 'epoch': '0.{:03}'}}\n",
            2 * step
        )
    };
    let train = |steps: std::ops::RangeInclusive<u64>, interval: u64, before: u64| -> String {
        steps
            .map(|step| {
                let at = step - before;
                let logged = step.is_multiple_of(interval);
                let logged = logged.then(|| line(step) + &bar(step, at));
                bar(step, at) + &logged.unwrap_or_default()
            })
            .collect()
    };
    for interval in [1, 5] {
        for evaluates in [false, true] {
            // An evaluation of as many parts as training has steps.
            let evaluation: String = match evaluates {
                true => (0..=40)
                    .step_by(4)
                    .map(|part| bar(part, part / 8))
                    .collect(),
                false => String::new(),
            };
            let log = bar(0, 0)
                + &train(1..=10, interval, 0)
                + &evaluation
                + &train(11..=23, interval, 0)
                + &bar(0, 0)
                + &train(21..=40, interval, 20);
            let trace = parse(&log);
            let steps: Vec<u64> = trace.steps.iter().map(|s| s.step).collect();
            let all: Vec<u64> = (1..=40).filter(|n| n % interval == 0).collect();
            assert_eq!(steps, all, "{interval} {evaluates}");
            let began: Vec<_> = trace.processes.iter().map(|p| p.first_step).collect();
            assert_eq!(began.last(), Some(&Some(21)), "{interval} {evaluates}");
            let times = trace.steps.iter().filter_map(|s| s.step_time_seconds);
            let times: Vec<f64> = times.collect();
            assert!(
                !times.is_empty() && times.iter().all(|t| (t - 1.0).abs() < 1e-9),
                "{times:?}"
            );
        }
    }
}

#[test]
fn lines_of_an_epoch_that_was_there_are_of_its_step() {
    let line = |step: u64| {
        format!(
            "{{'loss': '6.{step:02}', 'learning_rate': '1e-05', 'epoch': '0.{:03}'}}\n",
            2 * step
        )
    };
    let log: String = (1..=24).chain(21..=40).map(line).collect();
    let steps: Vec<u64> = parse(&log).steps.iter().map(|s| s.step).collect();
    assert_eq!(steps, (1..=40).collect::<Vec<_>>());
}

/// The steps of a log, and whether they are assumed.
fn numbered(log: &str) -> (Vec<u64>, bool) {
    let trace = parse(log);
    let lines = trace.steps.iter().filter(|step| step.loss.is_some());
    (lines.map(|step| step.step).collect(), trace.steps_assumed)
}

/// A bar as it is drawn on stderr, and a line as it comes out of the buffer of stdout.
fn late_bar(step: u64) -> String {
    format!(
        "\r {step:3}%|# | {step}/60 [00:{:02}<00:10,  1.00it/s]",
        step % 60
    )
}

fn late_line(step: u64, epoch: &str) -> String {
    format!(
        "{{'loss': '6.{step:02}', 'grad_norm': '1.{step}', 'learning_rate': '{step}e-06', 'epoch': '{epoch}'}}\n"
    )
}

/// As the Trainer rounds them: to four digits.
fn fine(step: u64) -> String {
    let digits = format!("{:.3e}", step as f64 * 2.0 / 4096.0);
    format!("{}", digits.parse::<f64>().unwrap())
}

#[test]
fn lines_that_come_behind_the_last_bar_are_numbered_by_their_epochs() {
    let bars: String = (0..=60).map(late_bar).collect();
    let end = |epoch: &str| {
        format!(
            "{{'train_runtime': '60.0', 'train_samples_per_second': '2.0', 'train_steps_per_second': '1.0', 'train_loss': '5.5', 'epoch': '{epoch}'}}\n"
        )
    };
    let every = |interval: u64| (1..=60).filter(move |step| step % interval == 0);
    for interval in [1, 7, 10, 25, 60] {
        let lines: String = every(interval)
            .map(|step| late_line(step, &fine(step)))
            .collect();
        let all: Vec<u64> = every(interval).collect();
        let log = format!("{bars}{}\n{lines}{}", late_bar(60), end(&fine(60)));
        assert_eq!(numbered(&log), (all, false), "{interval}");
        let is_of_bar = |step: &crate::Step| step.running_average.is_some();
        assert!(interval == 60 || !parse(&log).steps.iter().any(is_of_bar));
    }
    // An evaluation has its own bar; a run that stops early, no bar of its last step.
    let evaluated = format!("{bars}{}", late_bar(4).replace("/60", "/4"));
    let lines = |steps: u64, coarse: bool| -> String {
        (1..=steps)
            .map(|step| match coarse {
                true => late_line(step, &format!("{:.2}", step as f64 * 2.0 / 4096.0)),
                false => late_line(step, &fine(step)),
            })
            .collect()
    };
    let log = evaluated + "\n" + &lines(60, false) + &end(&fine(60));
    assert_eq!(numbered(&log), ((1..=60).collect(), false));
    let early: String = (0..=40).map(late_bar).collect();
    let log = early + "\n" + &lines(40, false) + &end(&fine(40));
    assert_eq!(numbered(&log), ((1..=40).collect(), false));
    // A bar of something else tells no steps.
    let other = late_bar(0) + &late_bar(60) + "\n" + &lines(30, false);
    let rate = end(&fine(30)).replace("'1.0'", "'0.5'");
    assert_ne!(numbered(&(other + &rate)).0[0], 2);
    // Coarse epochs tell nothing, and neither does a log without a summary.
    for end in [end("0.03"), String::new()] {
        for (count, steps, assumed) in [(60, 1, false), (6, 10, false), (7, 1, true)] {
            let log = format!("{bars}\n{}{end}", lines(count, true));
            let all = (1..=count).map(|n| n * steps).collect();
            assert_eq!(numbered(&log), (all, assumed), "{count}");
        }
    }
    let log = format!("logging_steps: 8\n{bars}\n{}", lines(7, true));
    assert_eq!(numbered(&log).0, (1..=7).map(|n| 8 * n).collect::<Vec<_>>());
}

#[test]
fn lines_of_a_buffer_that_is_emptied_now_and_then_are_numbered_by_their_epochs() {
    let end = "{'train_runtime': '60.0', 'train_loss': '5.5', 'epoch': '0.0293'}\n";
    for (interval, block) in [(1, 13), (1, 2), (2, 7), (5, 3)] {
        let (mut log, mut buffer) = (late_bar(0), Vec::new());
        for step in 1..=60 {
            log += &late_bar(step);
            if step % interval == 0 {
                buffer.push(late_line(step, &fine(step)));
                if buffer.len() == block {
                    log += &format!("\r      \r{}", buffer.concat());
                    buffer.clear();
                }
                log += &late_bar(step);
            }
        }
        let log = log + "\n" + &buffer.concat() + end;
        let all: Vec<u64> = (1..=60).filter(|step| step % interval == 0).collect();
        assert_eq!(numbered(&log), (all, false), "{interval} {block}");
    }
}

/// LLaMA-Factory goes on with its file, and counts the seconds of each process from its own beginning.
#[test]
fn seconds_that_go_back_begin_a_process() {
    let line = |step: u64, seconds: u64| {
        format!(
            "{{\"current_steps\": {step}, \"total_steps\": 200, \"loss\": {}, \"lr\": 5e-05, \"epoch\": {}, \"elapsed_time\": \"0:{:02}:{:02}\"}}\n",
            4.0 - 0.01 * step as f64,
            step as f64 / 200.0,
            seconds / 60,
            seconds % 60
        )
    };
    for (last, first) in [(100, 101), (150, 101)] {
        let before = (5..=last).step_by(5).map(|step| line(step, 13 + 2 * step));
        let after = (first + 4..=200)
            .step_by(5)
            .map(|step| line(step, 13 + 2 * (step - first + 1)));
        let trace = parse_any(before.chain(after).collect::<String>().as_bytes());
        assert_eq!(trace.processes.len(), 2, "{first}");
        assert_eq!(trace.processes[1].first_step, Some(first));
        let mut timed = trace
            .steps
            .iter()
            .filter_map(|step| step.step_time_seconds)
            .peekable();
        assert!(
            timed.peek().is_some() && timed.all(|time| time == 2.0),
            "{first}"
        );
    }
}

/// The summary counts the steps before a checkpoint as well, so it times none.
#[test]
fn a_log_that_begins_at_a_late_epoch_has_no_rate_of_the_whole_run() {
    let log = |first: u64| -> String {
        let lines = (first..=20).map(|at| {
            format!(
                "{{'loss': {}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {:.2}}}\n",
                4.0 - 0.1 * at as f64,
                0.05 * at as f64
            )
        });
        lines.collect::<String>()
            + "{'train_runtime': 213.0, 'train_samples_per_second': 15.02, 'train_steps_per_second': 0.939, 'train_loss': 1.75, 'epoch': 1.0}\n"
    };
    let times = |log: &str| {
        parse_any(log.as_bytes())
            .steps
            .iter()
            .filter_map(|step| step.step_time_seconds)
            .count()
    };
    assert_eq!((times(&log(1)), times(&log(11))), (1, 0));
    // The last line is closer than the others, or one began from scratch.
    let line = |epoch: f64| {
        format!(
            "{{'loss': {}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n",
            4.0 - epoch
        )
    };
    let summary = "{'train_runtime': 213.0, 'train_samples_per_second': 15.02, 'train_steps_per_second': 0.939, 'train_loss': 1.75, 'epoch': 1.1}\n";
    let log = |epochs: &[f64]| epochs.iter().copied().map(line).collect::<String>() + summary;
    assert_eq!(times(&log(&[1.0, 2.0, 3.0, 3.1])), 1);
    assert_eq!(times(&log(&[1.0, 1.1])), 1);
}
