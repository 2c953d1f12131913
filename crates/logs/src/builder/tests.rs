use super::*;

fn built(steps: &[u64], averages: bool) -> Trace {
    let mut builder = Builder {
        averages,
        ..Builder::default()
    };
    for step in steps {
        builder.step(Step {
            step: *step,
            step_time_seconds: Some(*step as f64),
            ..Step::default()
        });
    }
    builder.finish()
}

#[test]
fn an_evaluation_that_is_not_a_number_is_noted_once_for_all_ranks() {
    let mut builder = Builder::default();
    for (step, name) in [(10, "loss"), (10, "accuracy"), (10, "loss"), (20, "loss")] {
        builder.evaluated(Some(step), name, f64::NAN);
    }
    let trace = builder.finish();
    let told: Vec<_> = trace
        .anomalies
        .iter()
        .map(|a| (a.step, &*a.detail))
        .collect();
    let expected = [
        (Some(10), "step 10: loss is NaN"),
        (Some(10), "step 10: accuracy is NaN"),
        (Some(20), "step 20: loss is NaN"),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_line_every_k_steps_is_a_mean_of_k() {
    let weights = |steps: &[u64]| -> Vec<Option<u64>> {
        built(steps, true)
            .steps
            .iter()
            .map(|s| s.steps_averaged)
            .collect()
    };
    assert_eq!(weights(&[10, 20, 30]), [Some(10); 3]);
    assert_eq!(
        weights(&[1, 10, 20, 30]),
        [None, Some(9), Some(10), Some(10)]
    );
    assert_eq!(
        weights(&[10, 20, 60, 70]),
        [Some(10); 4],
        "a missing line makes no mean of 40"
    );
    assert_eq!(weights(&[5426, 5427]), [None; 2]);
    assert_eq!(
        weights(&[7]),
        [None],
        "one line alone says nothing of its interval"
    );
}

#[test]
fn repeated_lines_add_what_is_new_and_contradictions_are_told() {
    let mut builder = Builder::default();
    builder.step(Step {
        step: 1,
        loss: Some(2.0),
        memory_bytes: Some(5),
        ..Step::default()
    });
    builder.step(Step {
        step: 1,
        grad_norm: Some(1.0),
        memory_bytes: Some(9),
        ..Step::default()
    });
    builder.step(Step {
        step: 1,
        loss: Some(2.001),
        ..Step::default()
    });
    assert!(builder.notes.kinds.is_empty());
    builder.step(Step {
        step: 1,
        loss: Some(3.0),
        ..Step::default()
    });
    let trace = builder.finish();
    assert_eq!((trace.steps.len(), trace.step_lines), (1, 4));
    let step = &trace.steps[0];
    assert_eq!(
        (step.loss, step.grad_norm, step.memory_bytes),
        (Some(2.0), Some(1.0), Some(9))
    );
    assert_eq!(trace.anomalies[0].kind, "duplicate_step");
}

fn ends_with(losses: &[(u64, Option<f64>)], finished: bool) -> Option<Vec<String>> {
    let mut builder = Builder::default();
    for (step, loss) in losses {
        if loss.is_some_and(f64::is_nan) {
            builder
                .notes
                .add("nan_loss", || format!("step {step}: NaN"));
        }
        builder.step(Step {
            step: *step,
            loss: loss.filter(|l| l.is_finite()),
            ..Step::default()
        });
    }
    builder.trace.finished = finished;
    let failure = builder.finish().failure?;
    assert_eq!(failure.class, FailureClass::Nan);
    Some(failure.evidence)
}

#[test]
fn a_series_that_ends_in_nan_has_failed() {
    const NAN: Option<f64> = Some(f64::NAN);
    let fine = Some(2.0);
    let said = |first: u64, last: u64| {
        Some(
            [first, last]
                .iter()
                .map(|n| format!("nan_loss: step {n}: NaN"))
                .collect(),
        )
    };
    assert_eq!(
        ends_with(&[(1, fine), (2, NAN), (3, NAN), (4, NAN)], false),
        said(2, 4)
    );
    assert_eq!(
        ends_with(&[(1, fine), (2, NAN), (3, NAN), (4, None), (5, NAN)], false),
        said(2, 5)
    );
    assert_eq!(
        ends_with(&[(1, NAN), (2, NAN)], false),
        said(1, 2),
        "there is no other loss"
    );
    assert_eq!(
        ends_with(&[(1, fine), (2, NAN), (3, NAN)], true),
        said(2, 3),
        "it is the last word"
    );
    for survived in [
        &[(1, fine), (2, NAN), (3, NAN)][..],
        &[(1, NAN), (2, NAN), (3, NAN), (4, fine)],
        &[(1, fine), (2, NAN), (2, NAN), (2, NAN), (2, NAN)],
        &[(1, None), (2, None), (3, None)],
    ] {
        assert_eq!(ends_with(survived, false), None, "{survived:?}");
    }
}

#[test]
fn the_later_line_counts_where_a_format_says_so() {
    let mut builder = Builder {
        latest: true,
        ..Builder::default()
    };
    builder.step(Step {
        step: 1,
        loss: Some(2.0),
        grad_norm: Some(1.0),
        memory_bytes: Some(9),
        ..Step::default()
    });
    builder.step(Step {
        step: 1,
        loss: Some(3.0),
        memory_bytes: Some(5),
        ..Step::default()
    });
    let trace = builder.finish();
    let step = &trace.steps[0];
    assert_eq!(
        (step.loss, step.grad_norm, step.memory_bytes),
        (Some(3.0), Some(1.0), Some(9))
    );
    assert_eq!(
        trace.anomalies[0].detail,
        "step 1 again; the last one counts"
    );
}

#[test]
fn an_endless_series_is_condensed_to_honest_means() {
    let count = 3 * MAX_STEPS as u64;
    let trace = built(&(1..=count).collect::<Vec<_>>(), false);
    assert!(trace.steps.len() <= MAX_STEPS);
    let weight = |s: &Step| s.steps_averaged.unwrap_or(1);
    assert_eq!(trace.steps.iter().map(weight).sum::<u64>(), count);
    let total: f64 = trace
        .steps
        .iter()
        .map(|s| s.step_time_seconds.unwrap() * weight(s) as f64)
        .sum();
    let exact = (count * (count + 1) / 2) as f64;
    assert!((total / exact - 1.0).abs() < 1e-12);
    assert_eq!(trace.anomalies[0].kind, "condensed");
}

#[test]
fn steps_in_any_order_are_bounded() {
    let count = 2 * MAX_STEPS as u64;
    let pairs: Vec<u64> = (1..=count / 2).flat_map(|n| [2 * n, 2 * n - 1]).collect();
    let trace = built(&pairs, false);
    assert!(trace.steps.len() <= MAX_STEPS);
    assert!(trace.steps.is_sorted_by_key(|s| s.step));
    let backwards = built(&(1..=count).rev().collect::<Vec<_>>(), false);
    assert_eq!(backwards.steps.len(), MAX_LATE + 1);
    assert!(backwards.anomalies.iter().any(|a| a.kind == "late_step"));
}

#[test]
fn a_number_that_no_training_reaches_is_no_step() {
    let trace = built(&[1, 2, u64::MAX, LAST_STEP + 1], false);
    assert_eq!((trace.steps.len(), trace.step_lines), (2, 2));
    assert_eq!(trace.anomalies[0].kind, "absurd_value");
}

#[test]
fn gaps_are_told() {
    let told = |steps: &[u64]| -> Vec<String> {
        built(steps, false)
            .anomalies
            .into_iter()
            .map(|a| format!("{} {}", a.kind, a.detail))
            .collect()
    };
    assert_eq!(
        told(&[1, 2, 4, 8]),
        ["missing_steps 3", "missing_steps 5–7"]
    );
    assert_eq!(told(&[2, 3, 4]), ["missing_steps 1"]);
    assert_eq!(told(&[10, 20, 30]), Vec::<String>::new());
    assert_eq!(told(&[0, 1, 2]), Vec::<String>::new());
}

/// What a rate is divided by has one value before the first step.
#[test]
fn a_count_of_devices_that_is_stated_twice_is_kept_twice() {
    let head = "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1\n";
    let log = |later: u64| {
        format!(
            "{head}using world size: {later}, data-parallel size: {later}, tensor-model-parallel size: 1\n iteration 1/ 2 | consumed samples: 32 | elapsed time per iteration (ms): 10.0 | lm loss: 3.0E+00 |\n"
        )
    };
    let restated = |later| crate::parse_any(log(later).as_bytes()).restated.0.len();
    assert_eq!([restated(8), restated(16)], [0, 2]);
}
