use crate::results::RunResult;
use proptest::prelude::*;

use super::*;
use crate::figures::{
    RepeatStatus, Summary, summarize,
    summary::tests::{run, run_of},
};

/// Not quite regular, and the same every time.
fn noisy(level: f64, count: usize) -> Vec<f64> {
    (0..count)
        .map(|i| level * (1.0 + 0.004 * ((i * 7) % 5) as f64))
        .collect()
}

fn summary(result: RunResult, warmup_steps: u64) -> Summary {
    summarize(&[(1, result)], &Statistics { warmup_steps })
}

fn of(times: &[f64], warmup_steps: u64) -> Steady {
    summary(run(times), warmup_steps).repeats[0]
        .steady
        .clone()
        .unwrap()
}

#[test]
fn a_slow_start_is_cut_and_both_rates_are_kept() {
    // 10 declared steps, 8 more of 9 s, 60 of 3 s.
    let times = [vec![30.0; 10], vec![9.0; 8], vec![3.0; 60]].concat();
    let steady = of(&times, 10);
    let cut = steady.cut.unwrap();
    assert_eq!(
        (
            cut.first_step,
            cut.dropped_steps,
            cut.method.as_str(),
            cut.not_assessed
        ),
        (19, 8, CUSUM, None)
    );
    assert_eq!((steady.steps, steady.step_time.mean_seconds), (60, 3.0));
    // 1024 tokens a step: 1024 ÷ 3, and 68 × 1024 ÷ (8 × 9 + 60 × 3).
    assert!((steady.tokens_per_second_per_gpu - 1024.0 / 3.0).abs() < 1e-9);
    assert!((cut.declared_tokens_per_second_per_gpu - 68.0 * 1024.0 / 252.0).abs() < 1e-9);
    let told = summary(run(&times), 10);
    assert_eq!(told.steady_state, CUSUM);
    assert!(
        !told
            .notes
            .iter()
            .any(|n| n.text().contains("the median of the rest")),
        "{:?}",
        told.notes
    );
}

#[test]
fn what_is_short_is_not_assessed_and_says_why() {
    for (times, why) in [
        (vec![3.0; 19], "under 20 timed steps"),
        (vec![1.0; 29], "under 30 s"),
        ([vec![90.0], vec![1.0; 15]].concat(), "under 20 timed steps"),
    ] {
        let steady = of(&times, 0);
        let cut = steady.cut.unwrap();
        assert_eq!(
            (cut.dropped_steps, cut.method.as_str(), steady.steps),
            (0, DECLARED, times.len() as u64)
        );
        assert!(cut.not_assessed.unwrap().text.contains(why), "{why}");
        assert!(
            (cut.declared_tokens_per_second_per_gpu - steady.tokens_per_second_per_gpu).abs()
                < 1e-9
        );
    }
    let slow = summary(run(&[vec![90.0], vec![1.0; 15]].concat()), 0);
    assert_eq!(slow.steady_state, DECLARED);
    let said = "repeat 1: step 1 takes 90";
    assert!(
        slow.notes.iter().any(|n| n.text().contains(said)),
        "{:?}",
        slow.notes
    );
    let dropped = summary(run(&[vec![90.0], vec![1.0; 15]].concat()), 1);
    assert!(
        !dropped
            .notes
            .iter()
            .any(|n| n.text().contains("the median of the rest")),
        "{:?}",
        dropped.notes
    );
    // Ten lines that are means of ten steps are too few lines for nine of them.
    let mut averaged = run(&[3.0; 9]);
    for (i, step) in averaged.trace.steps.iter_mut().enumerate() {
        (step.step, step.steps_averaged) = (10 * (i as u64 + 1), Some(10));
    }
    let told = summary(averaged, 0).repeats[0].steady.clone().unwrap();
    assert!(told.steps == 90 && told.cut.unwrap().not_assessed.unwrap().is("few_times"));
    let mixed = summarize(
        &[(1, run(&[3.0; 40])), (2, run(&[3.0; 5]))],
        &Statistics::default(),
    );
    assert_eq!(mixed.steady_state, MIXED);
}

/// The worked example of docs/METRICS.md.
#[test]
fn times_in_two_units_have_no_figure() {
    let why = |times: &[f64], warmup| match summary(run(times), warmup).repeats[0].status.clone() {
        RepeatStatus::Unmeasured { reason } => reason.text,
        _ => String::new(),
    };
    let mixed = [vec![0.5; 20], vec![500.0; 20]].concat();
    assert_eq!(
        why(&mixed, 0),
        "step times of about 0.5 s and of about 500 s in one log: mixed units?"
    );
    assert_eq!(why(&mixed, 20), "", "what is warm-up counts nowhere");
    // Minutes and seconds, mixed line by line.
    let minutes: Vec<f64> = noisy(3.0, 40)
        .iter()
        .enumerate()
        .map(|(i, t)| if i % 2 == 0 { t / 60.0 } else { *t })
        .collect();
    assert!(
        why(&minutes, 0).ends_with("mixed units?"),
        "{}",
        why(&minutes, 0)
    );
    assert_eq!(
        why(&[vec![0.5; 20], vec![24.9; 20]].concat(), 0),
        "",
        "below the factor"
    );
    assert_eq!(
        why(&[vec![0.5; 37], vec![500.0; 3]].concat(), 0),
        "",
        "pauses: fewer than a tenth"
    );
    assert_ne!(
        why(&[vec![0.5; 36], vec![500.0; 4]].concat(), 0),
        "",
        "a tenth"
    );
    assert_eq!(
        why(&[0.5, 0.5, 0.5, 0.5, 500.0, 500.0], 0),
        "",
        "fewer than three"
    );
    assert_ne!(
        why(&[0.5, 0.5, 0.5, 500.0, 500.0, 500.0], 0),
        "",
        "three of six"
    );
}

#[test]
fn means_over_steps_are_cut_whole_and_at_most_half_of_the_steps() {
    let mut result = run(&[vec![4.0; 3], vec![2.0; 17]].concat());
    for (i, step) in result.trace.steps.iter_mut().enumerate() {
        (step.step, step.steps_averaged) = (10 * (i as u64 + 1), Some(10));
    }
    let steady = summary(result.clone(), 10).repeats[0]
        .steady
        .clone()
        .unwrap();
    let cut = steady.cut.unwrap();
    assert_eq!(
        (cut.first_step, cut.dropped_steps, steady.steps),
        (31, 20, 170)
    );
    // The first line stands for more than half of the steps: it stays.
    result.trace.steps[0].steps_averaged = Some(1000);
    result.trace.steps.iter_mut().for_each(|s| s.step += 1000);
    assert_eq!(
        summary(result, 0).repeats[0]
            .steady
            .clone()
            .unwrap()
            .cut
            .unwrap()
            .dropped_steps,
        0
    );
}

#[test]
fn a_shift_within_the_measured_part_is_told() {
    let times = [noisy(2.0, 60), noisy(2.2, 40)].concat();
    let steady = of(&times, 0);
    assert_eq!(steady.steps, 100);
    let shift = steady.cut.unwrap().level_shift.unwrap();
    assert!(
        (59..=63).contains(&shift.step) && (shift.ratio - 1.1).abs() < 0.01,
        "{shift:?}"
    );
    let told = summary(run(&times), 0);
    assert!(
        told.notes
            .iter()
            .any(|n| n.text().contains("and stays there") && n.text().contains("+10.")),
        "{:?}",
        told.notes
    );
}

/// Steps that are quicker after a restart are another level: the life before it is no warm-up.
#[test]
fn a_life_before_a_restart_is_no_warm_up() {
    let mut result = run(&[noisy(3.0, 40), noisy(2.0, 40)].concat());
    for step in &mut result.trace.steps {
        step.process = u32::from(step.step > 40);
    }
    let process = |first_step| tprimat_logs::Process {
        line: 1,
        first_step,
    };
    result.trace.processes = vec![process(None), process(Some(41))];
    let steady = summary(result, 0).repeats[0].steady.clone().unwrap();
    let cut = steady.cut.unwrap();
    assert_eq!((steady.steps, cut.dropped_steps), (80, 0));
    let shift = cut.level_shift.unwrap();
    assert!(
        (39..=43).contains(&shift.step) && shift.ratio < 0.7,
        "{shift:?}"
    );
}

/// A batch that grows is no warm-up of the device: each step counts, with the tokens that it has.
#[test]
fn a_ramp_of_the_batch_is_no_warm_up() {
    let mut result = run(&[noisy(1.2, 20), noisy(2.0, 20), noisy(3.6, 20)].concat());
    result.workload.tokens_vary = true;
    for step in &mut result.trace.steps {
        step.tokens = Some(4096 * [16, 32, 64][(step.step as usize - 1) / 20]);
    }
    let steady = summary(result, 0).repeats[0].steady.clone().unwrap();
    assert_eq!((steady.steps, steady.cut.unwrap().dropped_steps), (60, 0));
    // One odd batch before the end of a warm-up is no ramp.
    let mut result = run(&[noisy(2.0, 40), noisy(1.0, 110)].concat());
    result.workload.tokens_vary = true;
    for step in &mut result.trace.steps {
        step.tokens = Some(if step.step == 20 { 4064 } else { 4096 });
    }
    let steady = summary(result, 0).repeats[0].steady.clone().unwrap();
    assert!((38..=42).contains(&steady.cut.unwrap().dropped_steps));
}

/// In a run of half a second a few slow steps near the end are noise, where as many again are not slow.
#[test]
fn a_few_slow_steps_at_the_end_of_a_short_run_are_no_new_level() {
    let shift = |last: &[f64]| {
        of(&[&noisy(0.0129, 24), last].concat(), 0)
            .cut
            .unwrap()
            .level_shift
    };
    assert!(shift(&[0.0144, 0.0141, 0.0129, 0.0129, 0.0156, 0.0152]).is_none());
    assert!(shift(&[0.0144; 12]).is_some());
}

/// That the last step is slow sends the reader the wrong way where all later ones are.
#[test]
fn after_a_shift_the_last_step_is_not_odd() {
    let notes = |times: &[f64]| summary(run(times), 0).notes;
    let has = |notes: &[crate::figures::Note], words: &str| {
        notes.iter().any(|n| n.text().contains(words))
    };
    let shifted = notes(&[noisy(2.0, 60), noisy(4.0, 40)].concat());
    assert!(has(&shifted, "and stays there"), "{shifted:?}");
    assert!(!has(&shifted, "the last step, "), "{shifted:?}");
    let odd = notes(&[noisy(2.0, 99), vec![4.0]].concat());
    assert!(has(&odd, "the last step, "), "{odd:?}");
}

#[test]
fn a_step_time_that_is_none_gives_a_reason_and_no_number() {
    for (bad, said) in [
        (0.0, "0 s"),
        (-1.0, "-1 s"),
        (f64::NAN, "NaN s"),
        (f64::INFINITY, "inf s"),
    ] {
        let mut times = vec![2.0; 30];
        times[20] = bad;
        let summary = summary(run(&times), 5);
        let RepeatStatus::Unmeasured { reason } = &summary.repeats[0].status else {
            panic!("{bad}")
        };
        let reason = &reason.text;
        assert!(
            reason.contains("step 21") && reason.contains(said),
            "{reason}"
        );
        assert!(
            summary.n == 0
                && summary.tokens_per_second_per_gpu.is_none()
                && summary.step_time.is_none()
        );
        assert_eq!(summary.repeats[0].curve.step_time_seconds[20], None);
        // In the warm-up it does no harm.
        assert!(super::steady(&run(&times), &Statistics { warmup_steps: 21 }).is_ok());
    }
    for (times, said) in [
        (vec![1e308; 40], "beyond what can be computed"),
        (vec![1e-320; 40], "beyond what can be computed"),
        (vec![], "no training step was found"),
    ] {
        let summary = summary(run(&times), 0);
        let RepeatStatus::Unmeasured { reason } = &summary.repeats[0].status else {
            panic!("{times:?}")
        };
        let reason = &reason.text;
        assert!(reason.contains(said), "{reason}");
    }
}

#[test]
fn a_batch_of_no_tokens_has_no_rate() {
    let mut result = run(&[2.0; 5]);
    result.workload.tokens_per_step = Some(0);
    assert!(super::steady(&result, &Statistics::default()).is_err());
}

#[test]
fn a_trainers_rate_of_zero_checks_nothing() {
    let mut result = run(&[2.0; 5]);
    result
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.tokens_per_second_per_gpu = Some(0.0));
    assert_eq!(
        summary(result, 0).repeats[0]
            .steady
            .as_ref()
            .unwrap()
            .cross_check,
        None
    );
}

/// Step times as logs may have them, good and bad.
fn time() -> impl Strategy<Value = f64> {
    prop_oneof![
        40 => 0.5f64..5.0,
        1 => prop_oneof![Just(0.0), Just(-1.0), Just(f64::NAN), Just(f64::INFINITY), Just(1e308), Just(1e-320)],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Noise of any usual size, and pauses of any length in fewer than a tenth of the steps.
    #[test]
    fn stalls_are_no_other_unit(
        noise in proptest::collection::vec(0.25f64..4.0, 1..200),
        level in 1e-3f64..1.0,
        stalls in proptest::collection::vec((any::<proptest::sample::Index>(), 1.0f64..1e4), 0..20),
    ) {
        let mut times: Vec<f64> = noise.iter().map(|n| n * level).collect();
        let most = (times.len() - 1) / 10;
        for (at, pause) in stalls.iter().take(most) {
            let at = at.index(times.len());
            times[at] = level * pause;
        }
        let status = summary(run(&times), 0).repeats[0].status.clone();
        prop_assert_eq!(status, RepeatStatus::Ok);
    }

    #[test]
    fn whatever_the_log_says_there_is_a_number_or_a_reason(
        steps in proptest::collection::vec((time(), 0u64..4, proptest::option::weighted(0.95, Just(()))), 0..80),
        offset in prop_oneof![Just(0u64), Just(7), Just(u64::MAX - 40)],
        warmup_steps in prop_oneof![0u64..20, Just(u64::MAX)],
    ) {
        let mut result = run_of(&crate::figures::stand_ins::test_job(), &[], serde_json::json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1}));
        result.trace.steps = steps.iter().enumerate().map(|(i, (time, weight, is_timed))| Step {
            step: offset.saturating_add(i as u64 + 1),
            steps_averaged: Some(*weight).filter(|w| *w > 0),
            step_time_seconds: is_timed.map(|()| *time),
            ..Step::default()
        }).collect();
        let summary = summarize(&[(1, result)], &Statistics { warmup_steps });
        let repeat = &summary.repeats[0];
        // What is written is read back: no figure is NaN or infinite.
        let text = serde_json::to_string(&summary).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Summary>(&text).unwrap(), &summary);
        match &repeat.steady {
            None => prop_assert!(matches!(&repeat.status, RepeatStatus::Unmeasured { .. }), "no reason"),
            Some(steady) => {
                let cut = steady.cut.as_ref().unwrap();
                prop_assert!(steady.tokens_per_second_per_gpu > 0.0 && cut.declared_tokens_per_second_per_gpu > 0.0);
                prop_assert!(cut.dropped_steps <= steady.steps, "at most half");
                if cut.not_assessed.is_some() {
                    prop_assert!(cut.dropped_steps == 0 && cut.level_shift.is_none() && cut.method == DECLARED);
                }
            }
        }
    }

    #[test]
    fn in_another_unit_of_time_the_same_steps_are_cut(times in proptest::collection::vec(2.0f64..3.0, 30..60), slow in 0usize..30) {
        let mut times = times;
        times[..slow].iter_mut().for_each(|t| *t *= 2.0);
        let (a, b) = (of(&times, 0), of(&times.iter().map(|t| t * 1024.0).collect::<Vec<_>>(), 0));
        prop_assert_eq!(a.cut.as_ref().map(|c| (c.first_step, c.dropped_steps)), b.cut.as_ref().map(|c| (c.first_step, c.dropped_steps)));
        prop_assert!((a.tokens_per_second_per_gpu / b.tokens_per_second_per_gpu / 1024.0 - 1.0).abs() < 1e-9);
    }
}

/// nanoGPT prints the time of an iteration and of the evaluation before it as one.
#[test]
fn an_evaluation_is_no_step_time() {
    let mut result = run(&[2.0; 40]);
    result.trace.steps[20].step_time_seconds = Some(125.0);
    let rate = |result: &RunResult| {
        summary(result.clone(), 0)
            .tokens_per_second_per_gpu
            .unwrap()
            .value
    };
    assert!((rate(&result) - 1024.0 / (203.0 / 40.0)).abs() < 1e-9);
    result.trace.steps[20].includes_evaluation = true;
    assert!((rate(&result) - 512.0).abs() < 1e-9);
}
