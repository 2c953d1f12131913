use tprimat_job::{Job, RunOutcome};
use tprimat_logs::Effective;

use super::*;
use crate::results::{
    Attestation, RunResult, attest::tests::job, flops::tests::llama_8b, result::tests::facts,
    stand_ins::trace,
};

/// 8 steps of 8 × 128 tokens on one device, half a second each.
fn steps(change: impl Fn(&mut Step)) -> Vec<Step> {
    let step = |n| {
        let mut step = Step {
            step: n,
            step_time_seconds: Some(0.5),
            ..Step::default()
        };
        change(&mut step);
        step
    };
    (1..=8).map(step).collect()
}

fn run(steps: Vec<Step>, stated: Value, claim: &Claim) -> RunResult {
    let effective = Effective(serde_json::from_value(stated).unwrap());
    RunResult::of_claim(
        Trace {
            steps,
            effective,
            ..Trace::default()
        },
        claim,
        facts(RunOutcome::Ok),
        false,
    )
}

fn field<'a>(attestation: &'a Attestation, name: &str) -> Option<&'a FieldAttestation> {
    attestation.fields.iter().find(|f| f.field == name)
}

#[test]
fn rate_times_time_attests_what_nobody_states() {
    let rated = |s: &mut Step| s.tokens_per_second_per_gpu = Some(2050.0);
    let claimed = run(steps(rated), json!({}), &Claim::of(&job()));
    assert_eq!(
        claimed.attestation.status,
        AttestationStatus::NotStated,
        "devices are only claimed"
    );
    let result = run(steps(rated), json!({ "num_gpus": 1 }), &Claim::of(&job()));
    assert_eq!(result.attestation.status, AttestationStatus::Attested);
    assert_eq!(result.workload.tokens_source, Source::Derived);
    let found = field(&result.attestation, "tokens_per_step_from_rate").unwrap();
    assert_eq!(
        found.arithmetic.as_deref(),
        Some("2,050 tokens/s per device × 1 × 0.500 s = 1,025 tokens per step ≈ 1,024 = 8 × 128")
    );
}

#[test]
fn a_label_of_another_length_is_contradicted_and_what_fits_is_named() {
    let result = run(
        steps(|s| s.tokens_per_second_per_gpu = Some(8.0 * 512.0 / 0.5)),
        json!({ "global_batch_size": 8 }),
        &Claim::of(&job()),
    );
    assert_eq!(result.attestation.status, AttestationStatus::Contradicted);
    let found = field(&result.attestation, "tokens_per_step_from_rate").unwrap();
    let told = found.arithmetic.as_ref().unwrap();
    let others = "tokens per step ≈ 4,096 = 8 × 512 or 4,096 = 32 × 128, not 8 × 128 = 1,024";
    assert!(told.ends_with(others), "{told}");
}

#[test]
fn a_rate_against_all_that_the_trainer_states_is_told_and_not_believed() {
    let stated = json!({ "global_batch_size": 8, "seq_length": 128, "num_gpus": 1 });
    let result = run(
        steps(|s| s.tokens_per_second_per_gpu = Some(16_384.0)),
        stated,
        &Claim::of(&job()),
    );
    assert_eq!(result.attestation.status, AttestationStatus::Attested);
    assert!(
        result.anomalies.iter().any(|a| a.kind == "rate_disagrees"),
        "{:?}",
        result.anomalies
    );
}

#[test]
fn the_length_and_the_devices_follow_where_only_one_value_fits() {
    let nothing = Claim::of_model(None);
    let rated = |s: &mut Step| s.tokens_per_second_per_gpu = Some(1029.0);
    let result = run(
        steps(rated),
        json!({ "global_batch_size": 8, "num_gpus": 2 }),
        &nothing,
    );
    let length = result
        .contract
        .0
        .iter()
        .find(|f| f.field == "seq_length")
        .unwrap();
    assert_eq!(
        (&length.value, length.source),
        (&json!(128), Source::Derived)
    );
    assert_eq!(
        (result.workload.tokens_per_step, result.attestation.status),
        (Some(1024), AttestationStatus::Attested)
    );
    let result = run(
        steps(rated),
        json!({ "global_batch_size": 8, "seq_length": 128 }),
        &nothing,
    );
    assert_eq!(
        (result.contract.count("num_gpus"), result.workload.num_gpus),
        (Some(2), Some(2))
    );
    let result = run(steps(rated), json!({ "num_gpus": 2 }), &nothing);
    assert_eq!(
        result.workload.tokens_per_step,
        Some(1029),
        "the product alone"
    );
}

#[test]
fn samples_between_lines_are_the_batch() {
    let counted = |s: &mut Step| s.consumed_samples = Some(s.step * 8);
    let result = run(
        steps(counted),
        json!({ "seq_length": 128, "num_gpus": 1 }),
        &Claim::of(&job()),
    );
    assert_eq!(result.attestation.status, AttestationStatus::Attested);
    let other = run(
        steps(|s| s.consumed_samples = Some(s.step * 16)),
        json!({}),
        &Claim::of(&job()),
    );
    let found = field(&other.attestation, "global_batch_size_from_samples").unwrap();
    assert_eq!(found.status, AttestationStatus::Contradicted);
    assert_eq!(
        found.arithmetic.as_deref(),
        Some("16 samples after step 1, 128 after step 8: 16 a step")
    );
}

#[test]
fn samples_attest_a_batch_only_if_all_of_them_do() {
    // 40 lines from step `from` on, eight samples a step, but for `odd`: a line's place and how
    // many more came before it.
    let derived = |from: u64, odd: &[(u64, i64)], claim: &Claim| {
        let more = |n: u64| {
            odd.iter()
                .filter(|(at, _)| n >= *at)
                .map(|(_, more)| more)
                .sum::<i64>()
        };
        let line = |n: u64| Step {
            step: from + n,
            consumed_samples: (8 * (from + n)).checked_add_signed(more(n)),
            ..Step::default()
        };
        let result = run((0..40).map(line).collect(), json!({}), claim);
        let status = field(&result.attestation, "global_batch_size_from_samples").map(|f| f.status);
        (status, result.contract.count("global_batch_size"))
    };
    let nothing = Claim::of_model(None);
    let attested = (Some(AttestationStatus::Attested), Some(8));
    assert_eq!(derived(1, &[], &nothing), attested);
    assert_eq!(
        derived(1, &[(20, 1)], &nothing),
        (None, None),
        "39 of 40 are not all"
    );
    assert_eq!(derived(1, &[(39, -3)], &nothing), attested, "data ends");
    assert_eq!(
        derived(1, &[(39, 3)], &nothing),
        (None, None),
        "no end of data gives more"
    );
    assert_eq!(
        derived(101, &[(1, 64)], &nothing),
        attested,
        "a run that goes on"
    );
    assert_eq!(
        derived(1, &[(1, 64)], &nothing),
        (None, None),
        "a run that begins"
    );
    assert_eq!(
        derived(1, &[(20, 1)], &Claim::of(&job())),
        (None, Some(8)),
        "nor is the claim contradicted by it"
    );
    let mut sixteen = job();
    sixteen.data.global_batch_size = 16;
    let status = derived(1, &[(20, 1)], &Claim::of(&sixteen)).0;
    assert_eq!(
        status,
        Some(AttestationStatus::Contradicted),
        "no line shows the batch that is claimed"
    );
}

#[test]
fn a_batch_on_every_line_is_the_trainers_statement() {
    let result = run(
        steps(|s| s.global_batch_size = Some(64)),
        json!({}),
        &Claim::of(&job()),
    );
    assert_eq!(
        field(&result.attestation, "global_batch_size")
            .unwrap()
            .status,
        AttestationStatus::Contradicted
    );
    let ramp = |s: &mut Step| s.global_batch_size = Some(if s.step < 5 { 8 } else { 16 });
    let stated = json!({ "global_batch_size": 8, "seq_length": 128, "num_gpus": 1 });
    let ramped = run(steps(ramp), stated, &Claim::of(&job()));
    assert_eq!(ramped.attestation.status, AttestationStatus::Contradicted);
    let growing = run(
        steps(|s| s.global_batch_size = Some(s.step)),
        json!({}),
        &Claim::of_model(None),
    );
    assert!(
        growing
            .anomalies
            .iter()
            .any(|a| a.kind == "batch_size_changes")
    );
}

#[test]
fn flops_per_token_name_their_convention_or_contradict_the_model() {
    let mut job = Job {
        model: llama_8b(),
        ..job()
    };
    job.data.seq_length = 8192;
    let of = |tflops: f64| {
        let rated = |s: &mut Step| {
            s.tokens_per_second_per_gpu = Some(13_241.3);
            s.tflops_per_gpu = Some(tflops);
            s.step_time_seconds = None;
        };
        let result = run(steps(rated), json!({}), &Claim::of(&job));
        field(&result.attestation, "flops_per_token_from_rate")
            .cloned()
            .unwrap()
    };
    let found = of(766.8);
    assert_eq!(found.status, AttestationStatus::Attested);
    let fits = |found: &FieldAttestation| {
        let told = found.arithmetic.as_ref().unwrap();
        told.contains("that is 6·(N − N_embedding) + 12·L·H·Q·T, full attention: ")
    };
    assert!(fits(&found), "{found:?}");
    // 3.5 % less: another model of about this size would be told as this one.
    let near = of(740.0);
    assert_eq!(near.status, AttestationStatus::NotStated);
    assert!(!fits(&near));
    let other = of(90.0);
    assert_eq!(other.status, AttestationStatus::Contradicted);
    assert!(!fits(&other));
}

#[test]
fn recomputation_that_the_trainer_denies_explains_no_flops() {
    let mut job = Job {
        model: llama_8b(),
        ..job()
    };
    job.data.seq_length = 8192;
    let of = |recomputes: bool| {
        let rated = |s: &mut Step| {
            s.tokens_per_second_per_gpu = Some(13_241.3);
            // 4/3 of 57.9 GFLOP a token.
            s.tflops_per_gpu = Some(766.8 * 4.0 / 3.0);
            s.step_time_seconds = None;
        };
        let effective = json!({ "activation_checkpointing": recomputes });
        let result = run(steps(rated), effective, &Claim::of(&job));
        field(&result.attestation, "flops_per_token_from_rate").map(|field| field.status)
    };
    assert_eq!(of(true), Some(AttestationStatus::Attested));
    assert_eq!(of(false), Some(AttestationStatus::Contradicted));
}

#[test]
fn a_rate_of_flops_that_rounding_explains_contradicts_nothing() {
    let of = |tflops: f64, tokens: f64| {
        let rated = |s: &mut Step| {
            s.tokens_per_second_per_gpu = Some(tokens);
            s.tflops_per_gpu = Some(tflops);
            s.step_time_seconds = None;
        };
        let job = Job {
            model: llama_8b(),
            ..job()
        };
        let result = run(steps(rated), json!({}), &Claim::of(&job));
        field(&result.attestation, "flops_per_token_from_rate").map(|field| field.status)
    };
    // One token/s of a model of 8 · 10⁹ parameters is 0.05 TFLOP/s, which is printed as 0.1, or as
    // 0.0.
    assert_eq!(of(0.1, 1.0), None);
    assert_eq!(of(0.3, 1.0), Some(AttestationStatus::Contradicted));
}

#[test]
fn the_first_loss_of_random_weights_is_a_guess() {
    let of = |first: f64, step: u64| {
        let mut all = steps(|s| s.loss = Some(first));
        all.iter_mut().for_each(|s| s.step += step - 1);
        run(all, json!({}), &Claim::of(&job()))
    };
    let told = |result: &RunResult| field(&result.attestation, "first_loss").map(|f| f.status);
    assert_eq!(
        told(&of(5.6, 1)),
        Some(AttestationStatus::Attested),
        "ln 256 = 5.545"
    );
    // A vocabulary five times as large begins there.
    let larger = of(7.1, 1);
    assert_eq!(told(&larger), Some(AttestationStatus::NotStated));
    assert!(!larger.anomalies.iter().any(|a| a.kind == "first_loss"));
    let trained = of(2.0, 1);
    assert_eq!(told(&trained), Some(AttestationStatus::NotStated));
    assert!(trained.anomalies.iter().any(|a| a.kind == "first_loss"));
    assert_eq!(
        told(&of(2.0, 40)),
        None,
        "a log that begins later says nothing of the beginning"
    );
}

#[test]
fn published_means_are_checked_against_labels_and_series() {
    let mut claim = Claim::of_model(None);
    claim.job.data.global_batch_size = 8;
    claim.job.data.seq_length = 32;
    ["global_batch_size", "seq_length"]
        .iter()
        .for_each(|f| claim.add(f));
    let mut trace = Trace {
        steps: steps(|_| {}),
        ..Trace::default()
    };
    trace.steps[0].step_time_seconds = Some(4.0);
    trace.totals = [
        (PUBLISHED_RATE.to_owned(), 2048.0),
        (PUBLISHED_STEP_TIME.to_owned(), 0.5),
    ]
    .into();
    let result = RunResult::of_claim(trace, &claim, facts(RunOutcome::Ok), false);
    assert_eq!(result.attestation.status, AttestationStatus::Contradicted);
    let said = |name: &str| {
        field(&result.attestation, name)
            .unwrap()
            .arithmetic
            .clone()
            .unwrap()
    };
    let tokens = said("tokens_per_step_from_published");
    assert!(
        tokens.starts_with(
            "2,048 tokens/s × 0.500 s = 1,024 tokens per step (the labels would give 512 tokens/s)"
        ) && tokens.contains("1,024 = 8 × 128"),
        "{tokens}"
    );
    assert_eq!(
        said("avg_step_time_from_steps"),
        "0.500 s is the mean of steps 2 to 8: 1 skipped"
    );
}

#[test]
fn steps_are_counted_as_the_log_counts_them() {
    let numbered = |numbers: &[u64], samples: Option<u64>| -> Vec<Step> {
        let step = |n: &u64| Step {
            step: *n,
            consumed_samples: samples.map(|b| (n + 1) * b),
            ..Step::default()
        };
        numbers.iter().map(step).collect()
    };
    assert_eq!(counts_from(&numbered(&[0, 1, 2], None), None), 0);
    assert_eq!(counts_from(&numbered(&[1, 2, 3], None), None), 1);
    assert_eq!(
        counts_from(&numbered(&[9], Some(8)), Some(8)),
        0,
        "80 samples of 8 are ten steps"
    );
    assert_eq!(counts_from(&numbered(&[9, 19, 29], None), None), 0);
    assert_eq!(counts_from(&numbered(&[10, 20, 30], None), None), 1);
    assert_eq!(counts_from(&numbered(&[1, 10, 20], None), None), 1);
    assert_eq!(counts_from(&[], None), 1);
}

#[test]
fn a_trainer_that_prints_only_its_rate_gets_its_step_time_from_it() {
    let rated =
        |s: &mut Step| (s.step_time_seconds, s.tokens_per_second_per_gpu) = (None, Some(1024.0));
    let stated = json!({ "global_batch_size": 8, "seq_length": 128, "num_gpus": 2 });
    let mut job = job();
    job.parallelism.num_gpus = 2;
    let result = run(steps(rated), stated, &Claim::of(&job));
    assert_eq!(result.trace.steps[3].step_time_seconds, Some(0.5));
    assert_eq!(
        result.workload.step_time_source.as_deref(),
        Some("derived from the trainer's tokens/s")
    );
    let declared = run(
        steps(rated),
        json!({ "global_batch_size": 8 }),
        &Claim::of(&job),
    );
    assert_eq!(declared.trace.steps[3].step_time_seconds, Some(0.5));
    assert_eq!(
        declared.workload.step_time_source.as_deref(),
        Some("derived from the trainer's tokens/s and the job's tokens per step")
    );
    // DeepSpeed prints sequences a second of all devices.
    let sampled = |s: &mut Step| {
        s.step_time_seconds = None;
        s.other.insert("curr_samples_per_sec".into(), 16.0);
    };
    let result = run(steps(sampled), json!({}), &Claim::of(&job));
    assert_eq!(result.trace.steps[3].step_time_seconds, Some(0.5));
    assert_eq!(
        result.workload.step_time_source.as_deref(),
        Some("derived from the trainer's sequences/s and the job's sequences per step")
    );
}

/// The Trainer's banner has the batch of all devices and that of one; two rates of one log do not
/// bear a third number out.
#[test]
fn devices_follow_from_batches_and_are_refuted_by_rates() {
    let stated =
        json!({ "global_batch_size": 24, "micro_batch_size": 1, "gradient_accumulation_steps": 1 });
    let claim = Claim::of_model(None);
    let mut of_trainer = trace(stated.clone(), None);
    of_trainer.format = "hf-trainer".to_owned();
    let result = RunResult::of_claim(of_trainer, &claim, facts(RunOutcome::Ok), true);
    assert_eq!(result.contract.count("num_gpus"), Some(24));
    let result = RunResult::of_claim(trace(stated, None), &claim, facts(RunOutcome::Ok), true);
    assert_eq!(result.contract.count("num_gpus"), None);
    let rated = |s: &mut Step| {
        s.tokens_per_second_per_gpu = Some(1000.0);
        s.other.insert("tokens_per_second".into(), 8003.0);
    };
    let status = |devices: u64| {
        let result = run(steps(rated), json!({ "num_gpus": devices }), &claim);
        let mut fields = result.attestation.fields.into_iter();
        fields.any(|f| f.field == "num_gpus" && f.status == AttestationStatus::Contradicted)
    };
    assert_eq!([status(8), status(4)], [false, true]);
}

#[test]
fn an_absurd_step_is_no_panic() {
    let step = |step, consumed_samples| Step {
        step,
        consumed_samples,
        loss: Some(4.8),
        ..Step::default()
    };
    assert_eq!(counts_from(&[step(u64::MAX, Some(5))], Some(8)), 1);
    assert_eq!(
        counts_from(&[step(u64::MAX - 2, None), step(u64::MAX, None)], None),
        1
    );
    assert_eq!(counts_from(&[step(u64::MAX, None), step(7, None)], None), 1);
    run(vec![step(u64::MAX, None)], json!({}), &Claim::of(&job()));
}

#[test]
fn a_rate_of_all_devices_that_is_called_one_s_is_told_where_the_batch_says_how_many_there_are() {
    let mut job = job();
    job.parallelism.num_gpus = 4;
    let claim = Claim::of(&job);
    // 8 × 128 tokens in half a second are 2,048 tokens/s.
    let rated = |s: &mut Step| s.tokens_per_second_per_gpu = Some(2048.0);
    let of = |accumulation: u64| {
        let stated = json!({ "global_batch_size": 8, "micro_batch_size": 2, "gradient_accumulation_steps": accumulation });
        let result = run(steps(rated), stated, &claim);
        let is_told = result.anomalies.iter().any(|a| a.kind == RATE_DISAGREES);
        (
            is_told,
            field(&result.attestation, "tokens_per_step_from_rate").map(|f| f.status),
        )
    };
    assert_eq!(of(1), (true, None));
    // By these there is one device, and its rate is right.
    assert_eq!(of(4), (false, Some(AttestationStatus::Contradicted)));
}
