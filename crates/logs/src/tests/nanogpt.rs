use crate::{LogSection, Trace, parse_any, testing};

const LOG: &str = "Overriding: batch_size = 12\nOverriding: compile = True\nOverriding: dtype = bfloat16\n\
    tokens per iteration will be: 98,304\nnumber of parameters: 12.34M\n\
    step 0: train loss 9.1000, val loss 9.2000\n\
    iter 0: loss 9.0123, time 8123.40ms, mfu -100.00%\n\
    saving checkpoint to out\n\
    iter 10: loss 8.5, time 101.50ms, mfu 31.25%\n\
    iter 20: loss nan, time 102.00ms, mfu 31.00%\n\
    iter 21: loss 7.25, time 99.00ms\n";

fn parse(log: &[u8]) -> Trace {
    crate::parse(&LogSection::named("nanogpt"), log)
}

#[test]
fn iterations_evaluations_and_settings() {
    let trace = parse_any(LOG.as_bytes());
    assert_eq!(trace.format, "nanogpt");
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds, s.loss))
        .collect();
    assert_eq!(
        steps,
        [
            (0, Some(8.1234), Some(9.0123)),
            (10, Some(0.1015), Some(8.5)),
            (20, Some(0.102), None),
            (21, Some(0.099), Some(7.25)),
        ]
    );
    assert_eq!(
        trace
            .steps
            .iter()
            .map(|s| s.includes_evaluation)
            .collect::<Vec<_>>(),
        [true, false, false, false]
    );
    assert!(
        trace
            .steps
            .iter()
            .all(|s| s.steps_averaged.is_none() && s.tokens == Some(98304))
    );
    assert!(trace.steps[0].other.is_empty(), "−100 % is no utilisation");
    assert_eq!(trace.steps[1].other["mfu_percent"], 31.25);
    assert!(trace.steps[3].other.is_empty());
    let evaluations: Vec<_> = trace
        .evaluations
        .iter()
        .map(|e| (e.step, &*e.name, e.value))
        .collect();
    assert_eq!(
        evaluations,
        [
            (Some(0), "train_loss", 9.1),
            (Some(0), "validation_loss", 9.2)
        ]
    );
    assert_eq!(trace.effective.0["micro_batch_size"], 12);
    assert_eq!(trace.effective.0["compile"], true);
    assert_eq!(
        testing::kinds(&trace),
        ["evaluation_in_interval", "nan_loss"]
    );
}

#[test]
fn a_cut_off_last_line_is_no_step() {
    let trace = parse(b"iter 1: loss 8.5, time 101.50ms\niter 2: loss 8.4, time 10");
    assert_eq!(
        (trace.steps.len(), testing::kinds(&trace)),
        (1, vec!["truncated"])
    );
}

testing::damaged!("nanogpt", LOG);
