//! A result file of an older suite: read, judged by its own labels and summarised, all of it plain
//! JSON again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tprimat::{results::{Claim, RunFacts, RunResult}, job::RunOutcome, figures::{Statistics, summarize}};

fuzz_target!(|data: &[u8]| {
    let Ok(old) = tprimat::import::read_result(data, None) else { return };
    let mut claim = Claim::of_model(None);
    old.claim(&mut claim);
    let facts =
        RunFacts { attempt: "a".into(), host: "h".into(), started_at: None, ended_at: None, outcome: RunOutcome::Ok };
    let result = RunResult::of_claim(old.trace, &claim, facts, true);
    let json = serde_json::to_string(&result).expect("a result is JSON");
    assert_eq!(serde_json::from_str::<RunResult>(&json).expect("and no number of it is lost"), result);
    let _ = summarize(&[(1, result)], &Statistics { warmup_steps: 1 });
});
