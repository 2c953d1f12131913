//! Any bytes, of any format, in chunks of any size: the trace is the same, and what it holds is
//! sane.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tprimat::logs::{MAX_REPORTS, Parser, parse_any};

fuzz_target!(|data: &[u8]| {
    let Some((first, log)) = data.split_first() else { return };
    let trace = parse_any(log);
    assert!(trace.steps.is_sorted_by(|a, b| a.step < b.step), "steps are in order, each once");
    assert!(trace.memory.len() <= MAX_REPORTS && trace.telemetry.len() <= MAX_REPORTS);
    for step in &trace.steps {
        let values = [step.step_time_seconds, step.loss, step.learning_rate, step.grad_norm, step.tflops_per_gpu];
        assert!(values.into_iter().flatten().chain(step.other.values().copied()).all(f64::is_finite));
        assert!(step.step_time_seconds.is_none_or(|t| t > 0.0));
    }
    let mut pieces = Parser::detecting();
    log.chunks(usize::from(*first) + 1).for_each(|chunk| pieces.feed(chunk));
    assert_eq!(pieces.finish(), trace);
});
