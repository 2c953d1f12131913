//! What a reader must know beside a summary's figures, in sentences.

use std::collections::BTreeSet;

use super::{
    CONFIDENCE, RepeatStatus, RepeatSummary, RunResult, Source, Statistics, differences, slow_first_steps,
    summary::{self, steady},
    telemetry,
};
use crate::parse::Step;

pub(super) fn notes(
    counted: &[(&RepeatSummary, &RunResult)],
    repeats: &[RepeatSummary],
    results: &[(u32, RunResult)],
    statistics: &Statistics,
) -> Vec<String> {
    let mut notes = Vec::new();
    for (repeat, (_, result)) in repeats.iter().zip(results) {
        let n = repeat.repeat;
        match &repeat.status {
            RepeatStatus::Ok => {}
            RepeatStatus::Failed { class, evidence } => {
                let said = evidence.first().map(|e| format!(": {e}")).unwrap_or_default();
                notes.push(format!("repeat {n} failed ({}){said}", class.name()));
            }
            RepeatStatus::Contradicted { fields } => {
                let shown = result.attestation.contradicted().filter_map(|f| f.arithmetic.clone());
                let shown: Vec<String> = shown.collect();
                let shown = if shown.is_empty() { String::new() } else { format!(" ({})", shown.join("; ")) };
                let fields = fields.join(", ");
                notes.push(format!("repeat {n} is not counted: its log contradicts the job in {fields}{shown}"));
            }
            RepeatStatus::Unmeasured { reason } => notes.push(format!("repeat {n} is not counted: {reason}")),
        }
        if let Some(check) = repeat.steady.as_ref().and_then(|s| s.cross_check.as_ref()).filter(|c| !c.agrees) {
            notes.push(format!(
                "repeat {n}: the trainer's own tokens/s/GPU is {:.2} times ours; ours is tokens of an optimiser step ÷ its time",
                check.ratio
            ));
        }
    }
    for (repeat, (_, result)) in repeats.iter().zip(results) {
        let n = repeat.repeat;
        notes.extend(slow_start(repeat, result, statistics));
        if let Some(source) = &result.workload.step_time_source {
            notes.push(format!("repeat {n}: step times are {source}"));
        }
    }
    notes.extend(anomalies_by_kind(results));
    for (repeat, result) in counted {
        let kinds: BTreeSet<&str> = result.trace.anomalies.iter().map(|a| a.kind.as_str()).collect();
        if !kinds.is_empty() {
            let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
            notes.push(format!("repeat {}: the log has {kinds}", repeat.repeat));
        }
    }
    if counted.len() == 1 {
        notes.push(format!("one repeat: no {:.0} % interval", CONFIDENCE * 100.0));
    }
    if counted.iter().any(|(_, r)| r.workload.tokens_source == Source::Declared) {
        notes.push("tokens of an optimiser step are declared: the log does not state them".to_owned());
    }
    if counted.iter().any(|(_, r)| r.workload.tokens_source == Source::Derived) {
        notes.push("tokens of an optimiser step are shown by the trainer's own rate and step time".to_owned());
    }
    notes.extend(repeats_added_later(repeats));
    notes.extend(telemetry::notes(counted));
    if statistics.warmup_steps == 0 && !counted.is_empty() {
        notes.push("no warm-up steps are dropped".to_owned());
    }
    if let Some(((_, first), rest)) = counted.split_first() {
        let differing: BTreeSet<String> = rest
            .iter()
            .flat_map(|(_, r)| differences(&first.contract, &r.contract))
            .map(|difference| difference.field)
            .collect();
        if !differing.is_empty() {
            let fields = differing.into_iter().collect::<Vec<_>>().join(", ");
            notes.push(format!("the repeats do not state the same {fields}"));
        }
    }
    notes
}

/// More repeats after a look at the first ones: a result that looks good then is where people stop.
fn repeats_added_later(repeats: &[RepeatSummary]) -> Option<String> {
    let (first_plan, added) = summary::repeats_added_later(repeats)?;
    let names: Vec<String> = added.iter().map(u32::to_string).collect();
    let (names, were) = match names.split_last() {
        Some((last, [])) => (format!("repeat {last}"), "was"),
        Some((last, rest)) => (format!("repeats {} and {last}", rest.join(", ")), "were"),
        None => return None,
    };
    Some(format!(
        "{names} {were} added after the results of {first_plan} were there: intervals assume that the number was fixed beforehand"
    ))
}

/// What is odd about the runs: each kind once, by its first case, with the repeats that have it.
fn anomalies_by_kind(results: &[(u32, RunResult)]) -> impl Iterator<Item = String> {
    let mut kinds: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for (n, anomaly) in results.iter().flat_map(|(n, r)| r.anomalies.iter().map(move |a| (n, a))) {
        match kinds.iter_mut().find(|(kind, ..)| *kind == anomaly.kind) {
            Some((.., repeats)) if repeats.last() == Some(&n.to_string()) => {}
            Some((.., repeats)) => repeats.push(n.to_string()),
            None => kinds.push((&anomaly.kind, &anomaly.detail, vec![n.to_string()])),
        }
    }
    // Slow first steps are told where warm-up leaves them in.
    kinds.into_iter().filter(|(kind, ..)| *kind != "slow_first_steps").map(|(kind, detail, repeats)| {
        let s = if repeats.len() == 1 { "" } else { "s" };
        format!("repeat{s} {}: {kind}: {detail}", repeats.join(", "))
    })
}

/// Slow first steps that the declared warm-up leaves in, and what the rest alone would give.
fn slow_start(repeat: &RepeatSummary, result: &RunResult, statistics: &Statistics) -> Option<String> {
    let slow = slow_first_steps(&result.trace.steps);
    let timed: Vec<&Step> = result.trace.steps.iter().filter(|s| s.step_time_seconds.is_some()).collect();
    let through = timed.get(slow.checked_sub(1)?)?.step + 1 - result.workload.counts_from.min(1);
    let all = repeat.steady.as_ref().filter(|_| through > statistics.warmup_steps)?;
    let rest = steady(&result.trace.steps, &result.workload, &Statistics { warmup_steps: through }).ok()?;
    let told = result.anomalies.iter().find(|a| a.kind == "slow_first_steps")?;
    Some(format!(
        "repeat {}: {}; {} are dropped: without the slow ones {:.0} tokens/s/GPU, not {:.0}",
        repeat.repeat,
        told.detail,
        statistics.warmup_steps,
        rest.tokens_per_second_per_gpu,
        all.tokens_per_second_per_gpu
    ))
}
