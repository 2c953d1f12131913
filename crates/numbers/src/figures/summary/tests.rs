use proptest::prelude::*;
use serde_json::json;

use super::*;

use crate::figures::NoteKind;
pub use crate::figures::stand_ins::run_of;
use crate::figures::stand_ins::test_job as job;

/// A run of the test job (8 × 128 tokens a step, 1 device) with these step times.
pub fn run(times: &[f64]) -> RunResult {
    run_of(
        &job(),
        times,
        json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1}),
    )
}

/// What files of one cell may differ in, and what their logs state of parts of them.
#[test]
fn software_profilers_and_memory_of_the_first_step_are_told() {
    let codes = |change: fn(&mut [RunResult; 2])| -> Vec<String> {
        let mut runs = [run(&[1.0; 8]), run(&[1.0; 8])];
        change(&mut runs);
        let runs: Vec<_> = (1..).zip(runs).collect();
        let notes = summarize(&runs, &Statistics::default()).notes;
        let codes = notes.into_iter().map(|note| note.reason.code.to_string());
        let own = ["other_software", "profiled", "early_memory"];
        codes.filter(|code| own.contains(&&**code)).collect()
    };
    assert_eq!(codes(|_| {}), [""; 0]);
    let found = codes(|runs| {
        for (run, version) in runs.iter_mut().zip(["2.7.0", "2.8.0"]) {
            let versions = &mut run.trace.versions;
            versions.insert("torch".to_owned(), version.to_owned());
        }
    });
    assert_eq!(found, ["other_software"]);
    let found = codes(|runs| {
        let arguments = json!({"profile": true, "profile_step_start": 4, "profile_step_end": 6});
        let effective = &mut runs[0].trace.effective.0;
        effective.insert(tprimat_logs::ARGUMENTS.to_owned(), arguments);
    });
    assert_eq!(found, ["profiled"]);
    let found = codes(|runs| {
        let figure = tprimat_logs::MemoryFigure {
            kind: "peak_allocated".into(),
            source: "torch".into(),
            bytes: 1 << 30,
        };
        for step in &mut runs[0].trace.steps {
            step.memory_bytes = None;
        }
        runs[0].trace.memory.push(tprimat_logs::MemoryReport {
            rank: None,
            after_step: Some(1),
            figures: vec![figure],
        });
    });
    assert_eq!(found, ["early_memory"]);
}

#[test]
fn a_step_time_that_follows_from_the_rate_is_said_to() {
    let mut result = run(&[1.0, 1.0, 1.0]);
    result.workload.step_time_source = Some("derived from the trainer's tokens/s".to_owned());
    let notes = summarize(&[(1, result)], &Statistics::default()).notes;
    assert!(
        notes
            .iter()
            .any(|n| n.text().contains("derived from the trainer's tokens/s")),
        "{notes:?}"
    );
}

/// The rate of one device is stated, so times lack nothing but the number of devices.
#[test]
fn what_a_time_would_follow_from_is_what_the_log_lacks() {
    let mut result = run(&[1.0; 6]);
    result.contract.0.retain(|of| of.field != "num_gpus");
    result.workload.num_gpus = None;
    for step in &mut result.trace.steps {
        (step.step_time_seconds, step.tokens_per_second_per_gpu) = (None, Some(1024.0));
    }
    let summary = summarize(&[(1, result)], &Statistics::default());
    let why = summary.repeats[0].why.as_ref().unwrap();
    let wanted = "the log does not state the number of devices; the median of the trainer's own rates is 1024 tokens/s per device";
    assert_eq!((&*why.text, &*why.code), (wanted, "devices_not_known"));
}

#[test]
fn a_repeat_on_an_unknown_host_is_named_where_hosts_are_the_units() {
    let results: Vec<_> = [("a", 1.0), ("a", 1.1), ("b", 1.2), ("", 5.0)]
        .into_iter()
        .zip(1..)
        .map(|((host, time), repeat)| {
            let mut result = run(&[time; 6]);
            result.host = host.to_owned();
            (repeat, result)
        })
        .collect();
    let summary = summarize(&results, &Statistics::default());
    let step_time = summary.step_time.unwrap().mean_seconds;
    let expected = 1.32f64.cbrt();
    assert!(
        close(step_time, expected),
        "the rate's three runs: {step_time}"
    );
    let told: Vec<String> = summary.notes.iter().map(|note| note.text()).collect();
    let expected = "the 3 repeats ran on 2 hosts, and the interval is computed from 2 means. 1 more are left out, for their logs \
                    do not name a host";
    assert!(told.iter().any(|text| text == expected), "{told:?}");
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

#[test]
fn one_repeat_is_tokens_by_steady_time_and_has_no_interval() {
    let summary = summarize(
        &[(1, run(&[9.0, 9.0, 2.0, 4.0, 3.0, 3.0]))],
        &Statistics { warmup_steps: 2 },
    );
    let repeat = summary.repeats[0].steady.as_ref().unwrap();
    assert_eq!(
        (
            repeat.steps,
            repeat.step_time.mean_seconds,
            repeat.step_time.median_seconds
        ),
        (4, 3.0, Some(3.0))
    );
    let estimate = summary.tokens_per_second_per_gpu.unwrap();
    assert!(close(estimate.value, 1024.0 / 3.0) && estimate.ci95.is_none() && summary.n == 1);
    assert_eq!(
        summary.memory,
        [Memory {
            kind: "peak_rss".into(),
            source: "proc".into(),
            bytes: 1005
        }]
    );
    assert_eq!(
        (summary.loss_at_end, summary.attestation),
        (Some(1.0), AttestationStatus::Attested)
    );
    assert!(
        summary
            .notes
            .iter()
            .any(|n| n.text().starts_with("one repeat")),
        "{:?}",
        summary.notes
    );
}

#[test]
fn one_odd_repeat_of_five_is_named() {
    let odd = |factors: [f64; 5]| -> Vec<(NoteKind, String)> {
        let runs: Vec<(u32, RunResult)> = (1..)
            .zip(factors.map(|factor| run(&[factor; 12])))
            .collect();
        let notes = summarize(&runs, &Statistics::default()).notes;
        notes
            .into_iter()
            .filter(|n| n.text().contains("the median of the other"))
            .map(|n| (n.kind, n.text()))
            .collect()
    };
    let said = odd([2.0, 2.004, 1.998, 2.002, 2.5]);
    let [(NoteKind::Doubtful, text)] = &said[..] else {
        panic!("{said:?}")
    };
    let words =
        "repeat 5 is 20.0 % slower than the median of the other 4, which agree within 0.2 %";
    assert!(text.starts_with(words), "{text}");
    assert!(
        odd([2.0, 1.5, 2.004, 1.998, 2.002])[0]
            .1
            .starts_with("repeat 2 is 33.4 % faster")
    );
    // Repeats that all vary, a difference that is small, and two that agree with each other.
    for factors in [
        [2.0, 2.2, 2.4, 1.9, 2.5],
        [2.0, 2.0, 2.0, 2.0, 2.04],
        [2.0, 2.0, 2.0, 2.5, 2.5],
    ] {
        assert_eq!(odd(factors), [], "{factors:?}");
    }
}

#[test]
fn repeats_that_measure_other_parts_of_their_runs_are_told() {
    let slow_until = |n: usize| run(&[vec![3.0; n], vec![2.0; 120 - n]].concat());
    let said = |runs: [RunResult; 2]| {
        let results: Vec<(u32, RunResult)> = (1..).zip(runs).collect();
        let notes = summarize(&results, &Statistics { warmup_steps: 5 }).notes;
        notes
            .into_iter()
            .find(|note| note.text().starts_with("the measured parts begin"))
    };
    let note = said([slow_until(8), slow_until(50)]).unwrap();
    assert!(
        note.text()
            .starts_with("the measured parts begin between steps 9 and 51 of 120: "),
        "{}",
        note.text()
    );
    assert_eq!(note.kind, NoteKind::Doubtful);
    assert_eq!(said([slow_until(8), slow_until(12)]), None);
}

#[test]
fn the_figures_of_one_repeat_are_not_said_of_another() {
    let ending_with = |last: f64| run(&[vec![1.0; 20], vec![last]].concat());
    let said = |others: f64| {
        let results: Vec<_> = (1..).zip([4.0, others].map(ending_with)).collect();
        let notes = summarize(&results, &Statistics::default()).notes;
        let mut texts = notes.into_iter().map(|note| note.text());
        texts.find(|text| text.contains("the last step")).unwrap()
    };
    let own = "the last step, 21, takes 4.00 s";
    assert!(
        said(4.0).starts_with(&format!("repeats 1, 2: {own}")),
        "{}",
        said(4.0)
    );
    let different = said(5.0);
    let expected = format!("repeats 1, 2 (figures of repeat 1): {own}");
    assert!(different.starts_with(&expected), "{different}");
}

/// docs/METRICS.md, "step_time".
#[test]
fn step_times_of_a_cell_worked_by_hand() {
    let summary = summarize(
        &[(1, run(&[2.0, 4.0])), (2, run(&[3.0, 3.0]))],
        &Statistics::default(),
    );
    let time = summary.step_time.unwrap();
    let found = [
        time.mean_seconds,
        time.median_seconds.unwrap(),
        time.p95_seconds.unwrap(),
        time.sd_seconds.unwrap(),
        time.cv.unwrap(),
    ];
    assert!(
        found
            .iter()
            .zip([3.0, 3.0, (3.9f64 * 3.0).sqrt(), 1.0, 1.0 / 3.0])
            .all(|(a, b)| close(*a, b)),
        "{found:?}"
    );
}

#[test]
fn over_repeats_the_geometric_mean_with_its_interval() {
    let runs: Vec<_> = [1.0, 2.0, 4.0]
        .iter()
        .enumerate()
        .map(|(i, t)| (i as u32 + 1, run(&[*t, *t])))
        .collect();
    let estimate = summarize(&runs, &Statistics::default())
        .tokens_per_second_per_gpu
        .unwrap();
    // sd of the logarithms is ln 2.
    let half = 4.302_652_729_749_5 * 2.0f64.ln() / 3.0f64.sqrt();
    let ci = estimate.ci95.unwrap();
    assert!(close(estimate.value, 512.0), "{estimate:?}");
    assert!(
        (ci[0].ln() - (512.0f64.ln() - half)).abs() < 1e-6
            && (ci[1].ln() - (512.0f64.ln() + half)).abs() < 1e-6
    );
}

#[test]
fn failed_contradicted_and_unmeasured_repeats_are_rows_and_do_not_count() {
    let mut failed = run(&[1.0, 1.0]);
    failed.outcome = RunOutcome::Failed {
        class: FailureClass::Oom,
        evidence: vec!["boom".into()],
        status: "exit 1".into(),
    };
    let contradicted = run_of(&job(), &[1.0, 1.0], json!({"global_batch_size": 64}));
    let runs = [
        (1, run(&[2.0, 2.0])),
        (2, failed),
        (3, contradicted),
        (4, run(&[1.0])),
    ];
    let summary = summarize(&runs, &Statistics { warmup_steps: 1 });
    assert_eq!((summary.n, summary.repeats.len()), (1, 4));
    assert!(close(
        summary.tokens_per_second_per_gpu.unwrap().value,
        512.0
    ));
    let statuses: Vec<_> = summary.repeats.iter().map(|r| &r.status).collect();
    assert!(matches!(
        statuses[1],
        RepeatStatus::Failed {
            class: FailureClass::Oom,
            ..
        }
    ));
    assert!(
        matches!(statuses[2], RepeatStatus::Contradicted { fields } if fields.contains(&"global_batch_size".to_owned()))
    );
    assert!(
        matches!(statuses[3], RepeatStatus::Unmeasured { .. }),
        "{statuses:?}"
    );
    assert!(
        summarize(&[], &Statistics::default())
            .tokens_per_second_per_gpu
            .is_none()
    );
}

#[test]
fn repeats_that_do_not_count_for_one_reason_are_told_together() {
    let contradicted = || run_of(&job(), &[1.0, 1.0], json!({"global_batch_size": 64}));
    let mut failed = run(&[1.0]);
    failed.outcome = RunOutcome::Failed {
        class: FailureClass::Nan,
        evidence: vec![],
        status: "exit 1".into(),
    };
    let runs = [
        (1, contradicted()),
        (2, failed.clone()),
        (3, contradicted()),
        (4, failed),
    ];
    let notes = summarize(&runs, &Statistics::default()).notes;
    let told: Vec<_> = notes.iter().take(2).map(|n| (n.kind, n.text())).collect();
    assert!(
        told[0].1.starts_with(
            "repeats 1, 3 are not counted: the log contradicts the job: the trainer says global_batch_size 64"
        ),
        "{told:?}"
    );
    assert_eq!(
        told[1],
        (NoteKind::Failed, "repeats 2, 4 failed (nan)".to_owned())
    );
}

#[test]
fn a_time_that_cannot_be_one_leaves_no_figure_unless_it_is_of_the_warm_up() {
    let with = |step: u64| {
        let mut result = run(&[1.0; 8]);
        result.trace.steps[step as usize - 1].step_time_seconds = None;
        let detail = "step_time_seconds is -1".to_owned();
        result.trace.anomalies.push(tprimat_logs::Anomaly {
            kind: ABSURD_STEP_TIME.to_owned(),
            detail,
            step: Some(step),
        });
        summarize(&[(1, result)], &Statistics { warmup_steps: 2 })
    };
    let summary = with(5);
    assert!(summary.tokens_per_second_per_gpu.is_none());
    let RepeatStatus::Unmeasured { reason } = &summary.repeats[0].status else {
        panic!("{:?}", summary.repeats)
    };
    assert_eq!(
        reason.text,
        "step_time_seconds is -1, which cannot be a step time"
    );
    assert_eq!(with(2).n, 1);
}

#[test]
fn a_trainer_that_credits_the_whole_batch_to_a_micro_step_is_caught() {
    let mut result = run(&[2.0, 2.0]);
    result
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.tokens_per_second_per_gpu = Some(512.0 * 8.0));
    let summary = summarize(&[(1, result)], &Statistics::default());
    let check = summary.repeats[0]
        .steady
        .as_ref()
        .unwrap()
        .cross_check
        .clone()
        .unwrap();
    assert!(close(check.ratio, 8.0) && !check.agrees);
    assert!(
        summary
            .notes
            .iter()
            .any(|n| n.kind == NoteKind::Doubtful && n.text().contains("8.00 times")),
        "{:?}",
        summary.notes
    );
}

proptest! {
    #[test]
    fn a_mean_over_k_steps_is_k_steps(blocks in proptest::collection::vec((0.25f64..10.0, 1u64..5), 1..10)) {
        let mut averaged = run(&[1.0]);
        let mut single = Vec::new();
        averaged.trace.steps.clear();
        for (time, k) in &blocks {
            single.extend(std::iter::repeat_n(*time, *k as usize));
            averaged.trace.steps.push(Step { step: single.len() as u64, steps_averaged: Some(*k), step_time_seconds: Some(*time), ..Step::default() });
        }
        let cut = |result| summarize(&[(1, result)], &Statistics::default()).repeats[0].steady.clone().unwrap().cut.unwrap();
        let rate = |result| cut(result).declared_tokens_per_second_per_gpu;
        prop_assert!((rate(averaged) / rate(run(&single)) - 1.0).abs() < 1e-9);
    }
}
