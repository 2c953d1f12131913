use tprimat_job::RunOutcome;

use super::*;
use crate::figures::{Statistics, Summary, WHOLE, summarize, why_uncounted};
use crate::results::Claim;
use crate::run_stand_ins::{facts, test_job};

fn printed(steps: u64, each: f64, logged_every: u64) -> [String; 2] {
    printed_with(steps, each, logged_every, u64::MAX)
}

/// A training whose first step takes ten times as long as the others, as Hugging Face's Trainer prints it: with its bar, and
/// as `trainer_state.json`. Behind step `evaluated` it evaluates for 100 s.
fn printed_with(steps: u64, each: f64, logged_every: u64, evaluated: u64) -> [String; 2] {
    let at = |step: u64| {
        let pause = if step > evaluated { 100.0 } else { 0.0 };
        pause + each * (step + 9) as f64 * f64::from(u8::from(step > 0))
    };
    let bar = |step: u64| {
        let seconds = at(step).floor() as u64;
        let clock = format!("{:02}:{:02}", seconds / 60, seconds % 60);
        format!(
            "\r {}%|# | {step}/{steps} [{clock}<00:01,  1.00it/s]",
            100 * step / steps
        )
    };
    let seconds = at(steps) + 0.06;
    let summary = |quote: char| {
        let rate = |of: f64| format!("{:.3}", of / seconds);
        let pairs = [
            ("train_runtime", format!("{seconds:.4}")),
            ("train_samples_per_second", rate(8.0 * steps as f64)),
            ("train_steps_per_second", rate(steps as f64)),
            ("train_loss", "6.5".to_owned()),
            ("epoch", "0.5".to_owned()),
        ];
        let pairs = pairs.map(|(name, value)| format!("{quote}{name}{quote}: {value}"));
        pairs.join(", ")
    };
    let (mut log, mut state) = (
        bar(0),
        "{\n  \"max_steps\": 0,\n  \"log_history\": [\n".to_owned(),
    );
    for step in 1..=steps {
        log += &bar(step);
        if step % logged_every == 0 {
            log += &format!(
                "{{'loss': '6.5', 'learning_rate': '1e-4', 'epoch': '{:.3}'}}\n",
                step as f64 / 1e3
            );
            log += &bar(step);
            state += &format!(
                "    {{\n      \"epoch\": {:.3},\n      \"learning_rate\": 1e-4,\n      \"loss\": 6.5,\n      \"step\": {step}\n    }},\n",
                step as f64 / 1e3
            );
        }
        if step == evaluated {
            log += "{'eval_loss': 6.4, 'eval_runtime': 100.0, 'epoch': 0.06}\n";
        }
    }
    log += &format!("{{{}}}\n", summary('\''));
    log += &bar(steps);
    state += &format!(
        "    {{\n      {},\n      \"step\": {steps}\n    }}\n  ]\n}}\n",
        summary('"').replace(", ", ",\n      ")
    );
    [log, state]
}

fn summary(log: &str, warmup_steps: u64) -> Summary {
    let claimed = ["global_batch_size", "seq_length", "num_gpus"];
    summary_of(log, warmup_steps, &claimed)
}

fn summary_of(log: &str, warmup_steps: u64, claimed: &[&str]) -> Summary {
    summarize(
        &[(1, result_of(log, claimed))],
        &Statistics { warmup_steps },
    )
}

fn result_of(log: &str, claimed: &[&str]) -> RunResult {
    let trace = tprimat_logs::parse_any(log.as_bytes());
    assert_eq!(trace.format, "hf-trainer", "{log}");
    let mut claim = Claim::of(&test_job());
    claim.fields = Some(claimed.iter().map(|name| (*name).to_owned()).collect());
    RunResult::of_claim(trace, &claim, facts(RunOutcome::Ok), false)
}

/// Seconds of a step, by the rate; and how the measured part was found.
fn step_seconds(log: &str, warmup_steps: u64) -> (f64, String) {
    let summary = summary(log, warmup_steps);
    let steady = summary.repeats[0].steady.as_ref();
    let steady = steady.unwrap_or_else(|| panic!("{:?}", summary.repeats[0].why));
    (steady.step_time.mean_seconds, summary.steady_state)
}

#[test]
fn a_bar_times_what_follows_the_warm_up_to_the_last_step() {
    for (steps, logged_every) in [(60, 10), (60, 20), (47, 15), (60, 60)] {
        let [log, _] = printed(steps, 0.9, logged_every);
        let (seconds, how) = step_seconds(&log, 5);
        assert!(
            (seconds / 0.9 - 1.0).abs() < 0.05,
            "{seconds} with lines every {logged_every}"
        );
        assert_eq!(how, "declared");
        let measured = summary(&log, 5).repeats[0].steady.as_ref().unwrap().steps;
        assert_eq!(measured, steps - 5);
    }
}

/// The line of step 10 has the warm-up in it, and there may be no other.
#[test]
fn a_run_too_short_for_its_bar_has_the_rate_of_the_whole_and_says_so() {
    for logged_every in [10, 20, 500] {
        let [log, state] = printed(20, 0.45, logged_every);
        for log in [log, state]
            .iter()
            .filter(|log| log.contains("'loss'") || log.contains('%'))
        {
            let (seconds, how) = step_seconds(log, 5);
            assert!(
                (seconds / (0.45 * 29.0 / 20.0) - 1.0).abs() < 0.01,
                "{seconds}: {log}"
            );
            assert_eq!(how, WHOLE);
            let notes = summary(log, 5).notes;
            assert!(
                notes
                    .iter()
                    .any(|note| note.reason.text.contains("that of the whole run")),
                "{notes:?}"
            );
        }
    }
}

/// The quicker run of a cell leaves its bar too few seconds, and the slower one does not.
#[test]
fn repeats_have_one_kind_of_rate_and_a_run_that_counts_in_its_cell_counts_alone() {
    let claimed = ["global_batch_size", "seq_length", "num_gpus"];
    let statistics = Statistics { warmup_steps: 5 };
    let [quick, slow] = [0.45, 0.9].map(|each| result_of(&printed(40, each, 40)[0], &claimed));
    for run in [&quick, &slow] {
        assert_eq!(why_uncounted(run, &statistics), None);
    }
    let method = |runs: &[(u32, RunResult)]| summarize(runs, &statistics).steady_state;
    assert_eq!(method(&[(1, slow.clone())]), "declared");
    assert_eq!(method(&[(1, slow), (2, quick)]), WHOLE);
}

#[test]
fn a_log_and_the_state_file_of_one_short_training_agree() {
    let [log, state] = printed(20, 0.45, 5);
    assert_eq!(step_seconds(&log, 5), step_seconds(&state, 5));
}

#[test]
fn an_evaluation_is_in_no_step_time() {
    let [log, _] = printed_with(120, 0.9, 10, 60);
    let (seconds, _) = step_seconds(&log, 5);
    assert!((seconds / 0.9 - 1.0).abs() < 0.05, "{seconds}");
}

#[test]
fn another_batch_than_the_claimed_one_is_contradicted_by_the_summary() {
    let [log, _] = printed(60, 0.9, 10);
    let of = |batch: u64| {
        let mut claim = Claim::of(&test_job());
        claim.job.data.global_batch_size = batch;
        claim.fields = Some(
            ["global_batch_size", "seq_length", "num_gpus"]
                .map(str::to_owned)
                .into(),
        );
        let trace = tprimat_logs::parse_any(log.as_bytes());
        let result = RunResult::of_claim(trace, &claim, facts(RunOutcome::Ok), false);
        let fields = result
            .attestation
            .contradicted()
            .map(|field| field.field.clone());
        fields.collect::<Vec<_>>()
    };
    assert_eq!(of(8), [""; 0]);
    for batch in [4, 7, 16] {
        assert_eq!(of(batch), ["global_batch_size_from_summary"], "{batch}");
    }
}

/// Each line counts the tokens of its own step, and the bar times several of them: both are of the same steps.
#[test]
fn tokens_are_those_of_the_steps_that_are_timed() {
    let [log, _] = printed(60, 1.0, u64::MAX);
    let tokens = |step: u64| 1000 + 700 * (step * 7 % 13);
    let (mut out, mut seen) = (String::new(), 0);
    for (step, bar) in (0..).zip(log.split('\r').skip(1)) {
        let (bar, rest) = bar.split_once("it/s]").unwrap();
        out += &format!("\r{bar}it/s]\n");
        if (1..=60).contains(&step) {
            seen += tokens(step);
            out += &format!(
                "{{'loss': 6.5, 'learning_rate': 1e-4, 'epoch': 0.01, 'num_input_tokens_seen': {seen}}}\n"
            );
        }
        out += rest;
    }
    let summary = summary_of(&out, 5, &["num_gpus"]);
    let steady = summary.repeats[0].steady.as_ref();
    let steady = steady.unwrap_or_else(|| panic!("{:?}", summary.repeats[0].why));
    let all: u64 = (6..=60).map(tokens).sum();
    let rate = all as f64 / 55.0;
    assert!(
        (steady.tokens_per_second / rate - 1.0).abs() < 0.03,
        "{} beside {rate}",
        steady.tokens_per_second
    );
}

/// The time of the summary is that of its own 50 steps.
#[test]
fn the_whole_run_of_one_that_goes_on_begins_behind_its_checkpoint() {
    let log = "***** Running training *****\n  Total optimization steps = 100\n  Continuing training from global step 50\n\
               {'train_runtime': 25.0, 'train_steps_per_second': 4.0, 'epoch': 1.0}\n";
    let summary = summary(log, 5);
    let repeat = &summary.repeats[0];
    let steady = repeat.steady.as_ref().unwrap();
    assert_eq!((steady.steps, steady.step_time.mean_seconds), (50, 0.5));
    let drawn = "***** Running training *****\n  Total optimization steps = 100\n  Continuing training from global step 50\n\
                 \r 51%|# | 51/100 [00:05<00:01,  1.00it/s]\r 100%|# | 100/100 [00:25<00:00,  1.00it/s]\n\
                 {'train_runtime': 25.0, 'train_steps_per_second': 4.0, 'epoch': 1.0}\n";
    let result = result_of(drawn, &["global_batch_size", "seq_length", "num_gpus"]);
    let whole = of_whole_run(&result, 5);
    let timed = whole
        .trace
        .steps
        .iter()
        .find(|s| s.step_time_seconds.is_some());
    let timed = timed.unwrap();
    assert_eq!(
        (timed.step, timed.count(), timed.step_time_seconds),
        (100, 50, Some(0.5))
    );
}
