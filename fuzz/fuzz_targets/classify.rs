//! Any log and any way to end: a class, and evidence that is short.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tprimat::logs::{ExitSummary, classify};

fuzz_target!(|data: &[u8]| {
    let [code, signal, log @ ..] = data else { return };
    let known = |byte: u8| (byte < 192).then_some(i32::from(byte));
    let status =
        ExitSummary { code: known(*code), signal: known(*signal), timed_out: code & 1 == 1, launch_error: None };
    let failure = classify(log, &status);
    assert!(failure.evidence.len() <= 5 && failure.evidence.iter().all(|line| line.chars().count() <= 400));
});
