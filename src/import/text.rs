//! Imported runs as people read them: what was claimed, what the figures show, what is odd.

use std::fmt::Write;

use super::ImportedRun;
use crate::{
    figures::{
        NoteKind, RepeatSummary, Statistics, Summary, rate_unit_of, summarize, unit_in_prose,
    },
    job::RunOutcome,
    report::{bytes, number},
    results::{AttestationStatus, FieldAttestation, anomalies::SLOW_FIRST_STEPS},
    sentences::{arithmetic, oddity, said, why_not},
    words::plain::counted,
};

/// One run in a line, with what contradicts it and what is odd below; [`tell`] has the rest.
#[must_use]
pub fn brief(cell: &str, run: &ImportedRun, statistics: &Statistics) -> String {
    let result = &run.result;
    let summary = summarize(&[(1, result.clone())], statistics);
    let mut out = format!(
        "{cell}#{}  imported from {}: {}",
        run.number,
        run.recorded.from(),
        mark(run)
    );
    let repeat = &summary.repeats[0];
    match (why_not(&repeat.status), &repeat.steady) {
        (None, Some(steady)) => {
            let rate = number(steady.tokens_per_second_per_gpu);
            _ = write!(
                out,
                ", {rate} {} over {}",
                unit(cell),
                counted(steady.steps as usize, "step")
            );
        }
        // `mark` has said that it failed, and how.
        (Some(_), _) if result.outcome != RunOutcome::Ok => {}
        (Some(why), None) => _ = write!(out, ", no rate: {why}"),
        (Some(why), Some(_)) => _ = write!(out, ", does not count: {why}"),
        (None, None) => {}
    }
    let confirmed = of(run, AttestationStatus::Attested).count();
    _ = writeln!(
        out,
        ", {} confirmed by the file",
        counted(confirmed, "setting")
    );
    if let RunOutcome::Failed { evidence, .. } = &result.outcome {
        evidence
            .iter()
            .for_each(|line| _ = writeln!(out, "  {line}"));
    }
    contradictions(&mut out, run);
    // The first steps of every run are slow; that is what warm-up is for.
    oddities(&mut out, run, &[SLOW_FIRST_STEPS]);
    out
}

fn unit(cell: &str) -> String {
    unit_in_prose(rate_unit_of([cell]))
}

fn mark(run: &ImportedRun) -> String {
    match (&run.result.outcome, run.result.attestation.status) {
        (RunOutcome::Failed { class, .. }, _) => format!("failed ({})", class.name()),
        (_, AttestationStatus::Contradicted) => "CONTRADICTED".to_owned(),
        (_, AttestationStatus::Attested) => "attested".to_owned(),
        (_, AttestationStatus::NotStated) => "not attested".to_owned(),
    }
}

/// One run, in a paragraph. `repeat`: what it is among the imports of its cell, some of which may
/// be the same run.
#[must_use]
pub fn tell(
    cell: &str,
    run: &ImportedRun,
    repeat: &RepeatSummary,
    statistics: &Statistics,
) -> String {
    let mut out = String::new();
    let result = &run.result;
    let trace = &result.trace;
    let unit = rate_unit_of([cell]);
    _ = writeln!(
        out,
        "{cell}#{}  imported from {} ({}): {}",
        run.number,
        run.recorded.from(),
        trace.format,
        mark(run)
    );
    if let RunOutcome::Failed { evidence, .. } = &result.outcome {
        evidence
            .iter()
            .for_each(|line| _ = writeln!(out, "  {line}"));
    }
    if trace.steps.is_empty() {
        return out;
    }
    let device = trace.device.as_ref().and_then(|d| d.name.clone());
    let gpus = result
        .workload
        .num_gpus
        .map_or_else(String::new, |n| format!(" × {n}"));
    let device = device.map_or_else(
        || "device not stated".to_owned(),
        |name| format!("{name}{gpus}"),
    );
    let lines = match (&trace.steps[0], &trace.steps[trace.steps.len() - 1]) {
        (one, last) if one.step == last.step => format!("1 line, of step {}", one.step),
        (first, last) => format!(
            "{} lines of steps {} to {}",
            trace.steps.len(),
            first.step,
            last.step
        ),
    };
    _ = writeln!(out, "  {lines}; {device}");
    let times: Vec<f64> = trace
        .steps
        .iter()
        .filter_map(|s| s.step_time_seconds)
        .collect();
    if let [first, rest @ ..] = &times[..]
        && !rest.is_empty()
    {
        let mean = rest.iter().sum::<f64>() / rest.len() as f64;
        let median = crate::results::quantile(&times, 0.5).unwrap_or(mean);
        _ = writeln!(
            out,
            "  step time: first {first:.4} s, mean of the rest {mean:.4} s, median {median:.4} s"
        );
    } else if let [one] = times[..] {
        _ = writeln!(out, "  step time: {one:.4} s, one line");
    }
    if let Some(own) = trace
        .steps
        .iter()
        .rev()
        .find_map(|s| s.running_average.as_deref())
    {
        let time = own.step_time_seconds.map(|t| format!("{t:.4} s"));
        let rate = own
            .tokens_per_second_per_gpu
            .map(|r| format!("{} {unit}", number(r)));
        let both: Vec<String> = time.into_iter().chain(rate).collect();
        _ = writeln!(
            out,
            "  the log's own running mean at its end: {}",
            both.join(", ")
        );
    }
    let why_not = why_not(&repeat.status);
    if let Some(steady) = &repeat.steady {
        let mark = why_not
            .as_ref()
            .map_or_else(String::new, |why| format!("; does not count: {why}"));
        let dropped = steady.cut.as_ref().map_or(0, |c| c.dropped_steps);
        _ = writeln!(
            out,
            "  {} steps after {} of warm-up: {:.4} s, {} {unit}{mark}",
            steady.steps,
            statistics.warmup_steps.saturating_add(dropped),
            steady.step_time.mean_seconds,
            number(steady.tokens_per_second_per_gpu)
        );
    } else if result.outcome == RunOutcome::Ok
        && let Some(why) = &why_not
    {
        _ = writeln!(out, "  no rate: {why}");
    }
    if why_not.is_none() {
        let alone = summarize(&[(1, result.clone())], statistics);
        for note in alone.notes.iter().filter(|n| n.kind == NoteKind::WarmUp) {
            _ = writeln!(
                out,
                "  {}",
                said(&note.fact).trim_start_matches("repeat 1: ")
            );
        }
    }
    if let Some(rate) = trace.totals.get("published_tokens_per_second_per_gpu") {
        _ = writeln!(out, "  the file publishes {} {unit}", number(*rate));
    }
    let memory: Vec<String> = repeat
        .memory
        .iter()
        .map(|m| {
            format!(
                "{} ({}, {})",
                bytes(m.bytes),
                m.kind.replace('_', " "),
                m.source
            )
        })
        .collect();
    _ = writeln!(
        out,
        "  memory: {}",
        if memory.is_empty() {
            "not stated".to_owned()
        } else {
            memory.join(", ")
        }
    );
    let losses: Vec<f64> = trace.steps.iter().filter_map(|s| s.loss).collect();
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        _ = writeln!(out, "  loss: {first:.4} to {last:.4}");
    }
    fields(&mut out, run);
    oddities(&mut out, run, &[]);
    out
}

fn of(run: &ImportedRun, status: AttestationStatus) -> impl Iterator<Item = &FieldAttestation> {
    run.result
        .attestation
        .fields
        .iter()
        .map(|field| &**field)
        .filter(move |f| f.status == status)
}

fn shown(value: &Option<serde_json::Value>) -> String {
    value
        .as_ref()
        .map_or_else(|| "–".to_owned(), ToString::to_string)
}

fn oddities(out: &mut String, run: &ImportedRun, but: &[&str]) {
    let of_log = run.result.trace.anomalies.iter();
    let of_log = of_log.map(|anomaly| (&anomaly.kind, anomaly.detail.clone()));
    let found = run.result.anomalies.iter();
    let found = found.map(|finding| (&finding.kind, oddity(&finding.detail)));
    for (kind, detail) in found.chain(of_log) {
        if !but.contains(&kind.as_str()) {
            _ = writeln!(out, "  {}: {detail}", kind.replace('_', " "));
        }
    }
}

fn contradictions(out: &mut String, run: &ImportedRun) {
    for field in of(run, AttestationStatus::Contradicted) {
        let says = field
            .arithmetic
            .as_ref()
            .map(arithmetic)
            .unwrap_or_else(|| {
                format!(
                    "claimed {}, the log says {}",
                    shown(&field.declared),
                    shown(&field.effective)
                )
            });
        _ = writeln!(out, "  contradicted {}: {says}", field.field);
    }
}

/// Contradictions first, each with its arithmetic; then what is attested, then what only labels
/// say.
fn fields(out: &mut String, run: &ImportedRun) {
    contradictions(out, run);
    for field in of(run, AttestationStatus::Attested) {
        let says = field
            .arithmetic
            .as_ref()
            .map(arithmetic)
            .unwrap_or_else(|| shown(&field.effective));
        _ = writeln!(out, "  attested {}: {says}", field.field);
    }
    for field in of(run, AttestationStatus::NotStated) {
        if let Some(fact) = &field.arithmetic {
            _ = writeln!(out, "  {}: {}", field.field, arithmetic(fact));
        }
    }
    let silent: Vec<String> = of(run, AttestationStatus::NotStated)
        .filter(|f| f.arithmetic.is_none() && !crate::results::is_of_model(&f.field))
        .map(|f| format!("{} {}", f.field, shown(&f.declared)))
        .collect();
    if !silent.is_empty() {
        _ = writeln!(out, "  claimed, not stated: {}", silent.join(", "));
    }
}

/// All imports of a cell, then what they come to.
#[must_use]
pub fn show(
    cell: &str,
    runs: &[ImportedRun],
    summary: &Summary,
    statistics: &Statistics,
) -> String {
    let mut out = String::new();
    match &summary.tokens_per_second_per_gpu {
        Some(rate) => {
            let runs = counted(summary.n, "imported run");
            _ = writeln!(
                out,
                "{cell} (imported): {} {} over {runs}",
                number(rate.value),
                unit(cell)
            );
        }
        None => _ = writeln!(out, "{cell} (imported): no run counts"),
    }
    for note in &summary.notes {
        _ = writeln!(out, "- {}", said(&note.fact));
    }
    // The summary has a repeat for each run, in their order.
    for (run, repeat) in runs.iter().zip(&summary.repeats) {
        out += &tell(cell, run, repeat, statistics);
    }
    out
}
