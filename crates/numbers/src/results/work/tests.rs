use serde_json::json;
use tprimat_job::RunOutcome;
use tprimat_logs::parse_any;

use super::*;
use crate::results::{AttestationStatus, Claim, RunResult, Source};
use crate::run_stand_ins::facts;

fn log(settings: &str, lines: impl Fn(u64) -> String) -> RunResult {
    let lines = |n: u64| {
        format!(
            " iteration {n:8}/ 99 | elapsed time per iteration (ms): 500.0 | lm loss: 9.5E+00 |{}\n",
            lines(n)
        )
    };
    let log = settings.to_owned() + &(1..=40).map(lines).collect::<String>();
    RunResult::of_claim(
        parse_any(log.as_bytes()),
        &Claim::of_model(None),
        facts(RunOutcome::Ok),
        false,
    )
}

const ARGUMENTS: &str =
    "  seq_length ........ 2048\n  world_size ........ 8\n  global_batch_size . 256\n";

/// PEFT counts its adapters among all parameters; a sharded model's rank counts its share.
#[test]
fn a_part_that_is_trained_is_a_setting_and_a_share_of_a_rank_is_none() {
    const ALL: u64 = 8_030_261_248;
    let trained = |line: String| {
        let log = log(&(ARGUMENTS.to_owned() + &line + "\n"), |_| String::new());
        log.contract.count("trainable_parameters")
    };
    let of_all = |n: u64| format!("trainable params: {n} || all params: {ALL} || trainable%: 0.5");
    assert_eq!(trained(of_all(41_943_040)), Some(41_943_040));
    assert_eq!(trained(of_all(ALL)), None);
    assert_eq!(trained(of_all(ALL / 8)), None);
    let unsloth = "Trainable parameters = 41,943,040 of 8,072,204,288 (0.52% trained)";
    assert_eq!(trained(unsloth.to_owned()), Some(41_943_040));
    // Of how many is not said.
    let alone = "  Number of trainable parameters = 41,943,040";
    assert_eq!(trained(alone.to_owned()), None);
}

#[test]
fn lengths_of_lines_are_stronger_than_an_argument() {
    let seqlen = log(ARGUMENTS, |_| {
        " global batch size: 256 | actual seqlen: 512 |".to_owned()
    });
    let counted = log(ARGUMENTS, |n| {
        format!(
            " consumed samples: {} | consumed tokens: {} |",
            256 * n,
            256 * 512 * n
        )
    });
    for result in [seqlen, counted] {
        assert_eq!(
            (
                result.contract.count("seq_length"),
                result.workload.tokens_per_step
            ),
            (Some(512), Some(256 * 512))
        );
        assert_eq!(
            result.contract.source("seq_length"),
            Some(Source::Effective)
        );
        assert!(
            result
                .anomalies
                .iter()
                .any(|a| a.kind == "line_beats_argument")
        );
    }
    let plain = log(ARGUMENTS, |_| " actual seqlen: 2048 |".to_owned());
    assert!(
        plain
            .anomalies
            .iter()
            .all(|a| a.kind != "line_beats_argument")
    );
}

#[test]
fn what_varies_has_a_range_and_each_step_its_tokens() {
    let curriculum = log(ARGUMENTS, |n| {
        format!(
            " global batch size: 256 | actual seqlen: {} |",
            64 * n.min(32)
        )
    });
    assert_eq!(
        curriculum.contract.get("seq_length"),
        Some(&json!("64 to 2048"))
    );
    assert_eq!(curriculum.trace.steps[9].tokens, Some(256 * 640));
    let ramp = log(ARGUMENTS, |n| {
        format!(" global batch size: {} |", if n < 20 { 128 } else { 256 })
    });
    assert_eq!(
        ramp.contract.get("global_batch_size"),
        Some(&json!("128 to 256"))
    );
    assert_eq!(
        ramp.contract.get(TOKENS_PER_STEP),
        Some(&json!("262144 to 524288"))
    );
    for result in [curriculum, ramp] {
        assert_eq!(
            (result.workload.tokens_per_step, result.workload.tokens_vary),
            (None, true)
        );
        assert_eq!(result.attestation.status, AttestationStatus::Attested);
    }
}

/// The sequence length came with the log: each step has its batch of such sequences.
#[test]
fn a_batch_that_grows_is_multiplied_by_a_length_that_was_supplied() {
    let line = |n: u64| {
        let (batch, seconds) = if n < 20 { (128, 1.0) } else { (256, 2.0) };
        format!(
            "Training epoch 0, iteration {n}/40 | lr: 2.5e-06 | global_batch_size: {batch} | global_step: {n} | \
             reduced_train_loss: 9.5 | train_step_timing in s: {seconds:.1}\n"
        )
    };
    let log: String = (0..40).map(line).collect();
    let mut claim = Claim::of_model(None);
    claim.add("seq_length");
    claim.job.data.seq_length = 4096;
    let result = RunResult::of_claim(
        parse_any(log.as_bytes()),
        &claim,
        facts(RunOutcome::Ok),
        false,
    );
    let tokens = |at: usize| result.trace.steps[at].tokens;
    assert_eq!(
        (tokens(5), tokens(35)),
        (Some(128 * 4096), Some(256 * 4096))
    );
    assert!(result.workload.tokens_vary);
}

/// Forty sequences are a batch of 32 and one of 8.
#[test]
fn partial_batches_have_the_tokens_of_the_mean() {
    let run = |micro: u64| {
        let bar = |n: u64| {
            format!(
                "\r 5%|# | {n}/80 [{:02}:{:02}<00:10,  2.00s/it]",
                n / 30,
                2 * n % 60
            )
        };
        let banner = format!(
            "***** Running training *****\n  Num examples = 40\n  Num Epochs = 40\n  Instantaneous batch size per device = {micro}\n  Total \
             train batch size (w. parallel, distributed & accumulation) = 32\n  Gradient Accumulation steps = 1\n  Total optimization \
             steps = 80\n"
        );
        let log = banner
            + &(0..=80).map(bar).collect::<String>()
            + "\n{'train_runtime': 160.5, 'train_steps_per_second': 0.498, 'epoch': 40.0}\n";
        let mut claim = Claim::of_model(None);
        claim.add("seq_length");
        claim.job.data.seq_length = 4096;
        RunResult::of_claim(
            parse_any(log.as_bytes()),
            &claim,
            facts(RunOutcome::Ok),
            false,
        )
    };
    let result = run(32);
    assert_eq!(result.workload.tokens_per_step, Some(20 * 4096));
    assert!(
        result
            .anomalies
            .iter()
            .any(|a| a.kind == tprimat_logs::PARTIAL_BATCHES)
    );
    assert_eq!(run(4).workload.tokens_per_step, Some(32 * 4096));
}
