//! Imported runs as people read them: what was claimed, what the figures show, what is odd.

use std::fmt::Write;

use super::ImportedRun;
use crate::{
    analyze::{AttestationStatus, NoteKind, RepeatStatus, RunOutcome, Statistics, Summary, summarize},
    report::{bytes, number},
};

/// One run, in a paragraph.
#[must_use]
pub fn tell(cell: &str, n: usize, run: &ImportedRun, statistics: &Statistics) -> String {
    let mut out = String::new();
    let result = &run.result;
    let trace = &result.trace;
    let mark = match (&result.outcome, result.attestation.status) {
        (RunOutcome::Failed { class, .. }, _) => format!("failed ({})", class.name()),
        (_, AttestationStatus::Contradicted) => "CONTRADICTED".to_owned(),
        (_, AttestationStatus::Attested) => "attested".to_owned(),
        (_, AttestationStatus::NotStated) => "not attested: the workload is as labelled".to_owned(),
    };
    _ = writeln!(out, "{cell}#{n}  imported from {} ({}): {mark}", run.recorded.from(), trace.format);
    if let RunOutcome::Failed { evidence, .. } = &result.outcome {
        evidence.iter().for_each(|line| _ = writeln!(out, "  {line}"));
    }
    if trace.steps.is_empty() {
        return out;
    }
    let device = trace.device.as_ref().and_then(|d| d.name.clone());
    let gpus = result.workload.num_gpus.map_or_else(String::new, |n| format!(" × {n}"));
    let device = device.map_or_else(|| "device not stated".to_owned(), |name| format!("{name}{gpus}"));
    let lines = match (&trace.steps[0], &trace.steps[trace.steps.len() - 1]) {
        (one, last) if one.step == last.step => format!("1 line, of step {}", one.step),
        (first, last) => format!("{} lines of steps {} to {}", trace.steps.len(), first.step, last.step),
    };
    _ = writeln!(out, "  {lines}; {device}");
    let times: Vec<f64> = trace.steps.iter().filter_map(|s| s.step_time_seconds).collect();
    if let [first, rest @ ..] = &times[..]
        && !rest.is_empty()
    {
        let mean = rest.iter().sum::<f64>() / rest.len() as f64;
        let median = crate::analyze::quantile(&times, 0.5).unwrap_or(mean);
        _ = writeln!(out, "  step time: first {first:.4} s, mean of the rest {mean:.4} s, median {median:.4} s");
    } else if let [one] = times[..] {
        _ = writeln!(out, "  step time: {one:.4} s, one line");
    }
    if let Some(own) = trace.steps.iter().rev().find_map(|s| s.running_average.as_deref()) {
        let time = own.step_time_seconds.map(|t| format!("{t:.4} s"));
        let rate = own.tokens_per_second_per_gpu.map(|r| format!("{} tokens/s/GPU", number(r)));
        let both: Vec<String> = time.into_iter().chain(rate).collect();
        _ = writeln!(out, "  the log's own running mean at its end: {}", both.join(", "));
    }
    let summary = summarize(&[(1, result.clone())], statistics);
    let repeat = &summary.repeats[0];
    match &repeat.steady {
        Some(steady) => {
            let counted = if result.is_contradicted() { "; contradicted, so it does not count" } else { "" };
            let dropped = steady.cut.as_ref().map_or(0, |c| c.dropped_steps);
            _ = writeln!(
                out,
                "  {} steps after {} of warm-up: {:.4} s, {} tokens/s/GPU{counted}",
                steady.steps,
                statistics.warmup_steps.saturating_add(dropped),
                steady.step_time.mean_seconds,
                number(steady.tokens_per_second_per_gpu)
            );
        }
        None => {
            if let RepeatStatus::Unmeasured { reason } = &repeat.status {
                _ = writeln!(out, "  no rate: {reason}");
            }
        }
    }
    for note in summary.notes.iter().filter(|n| n.kind == NoteKind::WarmUp) {
        _ = writeln!(out, "  {}", note.text.trim_start_matches("repeat 1: "));
    }
    if let Some(rate) = trace.totals.get("published_tokens_per_second_per_gpu") {
        _ = writeln!(out, "  the file publishes {} tokens/s/GPU", number(*rate));
    }
    let memory: Vec<String> = repeat
        .memory
        .iter()
        .map(|m| format!("{} ({}, {})", bytes(m.bytes), m.kind.replace('_', " "), m.source))
        .collect();
    _ = writeln!(out, "  memory: {}", if memory.is_empty() { "not stated".to_owned() } else { memory.join(", ") });
    let losses: Vec<f64> = trace.steps.iter().filter_map(|s| s.loss).collect();
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        _ = writeln!(out, "  loss: {first:.4} to {last:.4}");
    }
    fields(&mut out, run);
    for anomaly in result.anomalies.iter().chain(&trace.anomalies) {
        _ = writeln!(out, "  anomaly {}: {}", anomaly.kind, anomaly.detail);
    }
    out
}

/// Contradictions first, each with its arithmetic; then what is attested, then what only labels say.
fn fields(out: &mut String, run: &ImportedRun) {
    let shown = |v: &Option<serde_json::Value>| v.as_ref().map_or_else(|| "–".to_owned(), ToString::to_string);
    let of = |status| run.result.attestation.fields.iter().filter(move |f| f.status == status);
    for field in of(AttestationStatus::Contradicted) {
        let says = field
            .arithmetic
            .clone()
            .unwrap_or_else(|| format!("claimed {}, the log says {}", shown(&field.declared), shown(&field.effective)));
        _ = writeln!(out, "  contradicted {}: {says}", field.field);
    }
    for field in of(AttestationStatus::Attested) {
        let says = field.arithmetic.clone().unwrap_or_else(|| shown(&field.effective));
        _ = writeln!(out, "  attested {}: {says}", field.field);
    }
    for field in of(AttestationStatus::NotStated).filter(|f| f.arithmetic.is_some()) {
        _ = writeln!(out, "  {}: {}", field.field, field.arithmetic.as_deref().unwrap_or_default());
    }
    let silent: Vec<String> = of(AttestationStatus::NotStated)
        .filter(|f| f.arithmetic.is_none() && !crate::analyze::is_of_model(&f.field))
        .map(|f| format!("{} {}", f.field, shown(&f.declared)))
        .collect();
    if !silent.is_empty() {
        _ = writeln!(out, "  claimed, not stated: {}", silent.join(", "));
    }
}

/// All imports of a cell, then what they come to.
#[must_use]
pub fn show(cell: &str, runs: &[ImportedRun], summary: &Summary, statistics: &Statistics) -> String {
    let mut out: String = (1..).zip(runs).map(|(n, run)| tell(cell, n, run, statistics)).collect();
    match &summary.tokens_per_second_per_gpu {
        Some(rate) => {
            let n = summary.n;
            let runs = if n == 1 { "1 imported run".to_owned() } else { format!("{n} imported runs") };
            _ = writeln!(out, "{cell} (imported): {} tokens/s/GPU over {runs}", number(rate.value));
        }
        None => _ = writeln!(out, "{cell} (imported): no run counts"),
    }
    for note in &summary.notes {
        _ = writeln!(out, "- {}", note.text);
    }
    out
}
