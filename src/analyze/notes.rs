//! What a reader must know beside a summary's figures, in sentences.

use std::collections::BTreeSet;

use super::{
    CONFIDENCE, Cut, Estimate, Note, NoteKind, RepeatStatus, RepeatSummary, RunResult, SESSION_GAP_SECONDS, Source,
    Statistics, Unit,
    anomalies::{RATE_DISAGREES, SLOW_FIRST_STEPS},
    clock, decimals_beside, differences, is_positive, short_name, slow_first_steps, summary, telemetry,
};
use crate::parse::Anomaly;

pub(super) fn notes(
    counted: &[(&RepeatSummary, &RunResult)],
    repeats: &[RepeatSummary],
    results: &[(u32, RunResult)],
    estimate: Option<&Estimate>,
    statistics: &Statistics,
) -> Vec<Note> {
    let mut notes = outcomes(repeats, results);
    notes.extend(repeats.iter().filter_map(cross_check));
    let mut shared = Vec::new();
    for (repeat, (_, result)) in repeats.iter().zip(results) {
        notes.extend(steadiness(repeat));
        if let Some(source) = &result.workload.step_time_source {
            said_of(repeat.repeat, format!("step times are {source}"), &mut shared);
        }
    }
    notes.extend(not_assessed(counted).map(remark));
    notes.extend(anomalies_by_kind(repeats, results, statistics));
    for (repeat, result) in counted {
        let all = &result.trace.anomalies;
        let kinds: BTreeSet<&str> = all.iter().map(|a| a.kind.as_str()).collect();
        // What was left out of the log's own words is shown.
        let word = |kind: &str| match all.iter().find(|a| a.kind == kind && SHOWN.contains(&kind)) {
            Some(first) => format!("{kind} ({})", first.detail),
            None => kind.to_owned(),
        };
        if !kinds.is_empty() {
            let kinds = kinds.into_iter().map(word).collect::<Vec<_>>().join(", ");
            said_of(repeat.repeat, format!("the log has {kinds}"), &mut shared);
        }
    }
    notes.extend(shared.into_iter().map(|(text, repeats)| {
        let s = if repeats.len() == 1 { "" } else { "s" };
        remark(format!("repeat{s} {}: {text}", repeats.join(", ")))
    }));
    let replicated = match estimate {
        Some(e) if e.values.len() == 1 => Some(format!("one repeat: no {:.0} % interval", CONFIDENCE * 100.0)),
        Some(e) if e.ci95.is_none() => Some("the repeats do not vary: no interval".to_owned()),
        Some(e) => replication(e),
        None => None,
    };
    notes.extend(replicated.map(remark));
    let tokens_are = |source: Source| counted.iter().any(|(_, r)| r.workload.tokens_source == source);
    if tokens_are(Source::Declared) {
        notes.push(remark("tokens of an optimiser step are declared: the log does not state them"));
    }
    if tokens_are(Source::Derived) {
        notes.push(remark("tokens of an optimiser step are shown by the trainer's own rate and step time"));
    }
    notes.extend(repeats_added_later(repeats).map(remark));
    notes.extend(several_sets_of_devices(counted).map(remark));
    notes.extend(clock::notes(counted));
    notes.extend(telemetry::notes(counted).into_iter().map(remark));
    if statistics.warmup_steps == 0 && !counted.is_empty() {
        notes.push(remark("no warm-up steps are dropped"));
    }
    if let Some(((_, first), rest)) = counted.split_first() {
        let differing: BTreeSet<String> = rest
            .iter()
            .flat_map(|(_, r)| differences(&first.contract, &r.contract))
            .map(|difference| difference.field)
            .collect();
        if !differing.is_empty() {
            let fields = differing.into_iter().collect::<Vec<_>>().join(", ");
            notes.push(remark(format!("the repeats do not state the same {fields}")));
        }
    }
    notes
}

/// Kinds of anomalies of a log that are told with the first of them.
const SHOWN: [&str; 2] = ["absurd_value", "second_start"];

fn remark(text: impl Into<String>) -> Note {
    Note::new(NoteKind::Remark, text)
}

/// Repeats that do not count, and why; those of one reason together.
fn outcomes(repeats: &[RepeatSummary], results: &[(u32, RunResult)]) -> Vec<Note> {
    let mut told: Vec<(NoteKind, String, Vec<String>)> = Vec::new();
    for (repeat, (_, result)) in repeats.iter().zip(results) {
        let (kind, why) = match &repeat.status {
            RepeatStatus::Ok => continue,
            RepeatStatus::Failed { class, evidence } => {
                let said = evidence.first().map(|e| format!(": {e}")).unwrap_or_default();
                (NoteKind::Failed, format!("failed ({}){said}", class.name()))
            }
            RepeatStatus::Contradicted { fields } => {
                let shown = result.attestation.contradicted().filter_map(|f| f.arithmetic.clone());
                let shown: Vec<String> = shown.collect();
                let shown = if shown.is_empty() { String::new() } else { format!(" ({})", shown.join("; ")) };
                let is_alone = result.attestation.contradicted().all(|f| f.declared.is_none());
                let what = if is_alone { "itself" } else { "the job" };
                (NoteKind::Contradicted, format!("the log contradicts {what} in {}{shown}", fields.join(", ")))
            }
            RepeatStatus::Suspect { reason } => (NoteKind::Suspect, reason.clone()),
            RepeatStatus::Unmeasured { reason } => (NoteKind::Remark, reason.clone()),
        };
        match told.iter_mut().find(|t| (t.0, &t.1) == (kind, &why)) {
            Some((.., names)) => names.push(repeat.repeat.to_string()),
            None => told.push((kind, why, vec![repeat.repeat.to_string()])),
        }
    }
    let note = |(kind, why, names): (NoteKind, String, Vec<String>)| {
        let (s, are) = if names.len() == 1 { ("", "is") } else { ("s", "are") };
        let not_counted = if kind == NoteKind::Failed { String::new() } else { format!("{are} not counted: ") };
        Note::new(kind, format!("repeat{s} {} {not_counted}{why}", names.join(", ")))
    };
    told.into_iter().map(note).collect()
}

fn cross_check(repeat: &RepeatSummary) -> Option<Note> {
    let check = repeat.steady.as_ref()?.cross_check.as_ref().filter(|c| !c.agrees)?;
    let text = format!(
        "repeat {}: the trainer's own tokens/s/GPU is {:.2} times ours; ours is tokens of an optimiser step ÷ its time",
        repeat.repeat, check.ratio
    );
    Some(Note::new(NoteKind::Doubtful, text))
}

/// What several repeats have in common is told once.
fn said_of(repeat: u32, text: String, shared: &mut Vec<(String, Vec<String>)>) {
    match shared.iter_mut().find(|(known, _)| *known == text) {
        Some((_, repeats)) => repeats.push(repeat.to_string()),
        None => shared.push((text, vec![repeat.to_string()])),
    }
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

/// Devices of one kind are not equally fast, and hosts of one name need not be one host.
fn several_sets_of_devices(counted: &[(&RepeatSummary, &RunResult)]) -> Option<String> {
    let mut sets: Vec<(&[String], Vec<String>)> = Vec::new();
    for (repeat, _) in counted.iter().filter(|(r, _)| !r.devices.is_empty()) {
        match sets.iter_mut().find(|(devices, _)| *devices == repeat.devices) {
            Some((_, repeats)) => repeats.push(repeat.repeat.to_string()),
            None => sets.push((&repeat.devices, vec![repeat.repeat.to_string()])),
        }
    }
    let set = |(devices, repeats): &(&[String], Vec<String>)| {
        let more = if devices.len() > 1 { format!(" and {} more", devices.len() - 1) } else { String::new() };
        let s = if repeats.len() == 1 { "" } else { "s" };
        // Named by what tells it apart.
        let own = devices.iter().find(|d| sets.iter().any(|(others, _)| !others.contains(d))).unwrap_or(&devices[0]);
        format!("{}{more} (repeat{s} {})", short_name(own), repeats.join(", "))
    };
    let told: Vec<String> = sets.iter().map(set).collect();
    (sets.len() > 1)
        .then(|| format!("the repeats ran on {} different sets of devices: {}", sets.len(), told.join("; ")))
}

/// What is odd about the runs: each kind once, by its first case, with the repeats that have it.
fn anomalies_by_kind(
    repeats: &[RepeatSummary],
    results: &[(u32, RunResult)],
    statistics: &Statistics,
) -> impl Iterator<Item = Note> {
    let mut kinds: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for (repeat, (n, result)) in repeats.iter().zip(results) {
        for anomaly in result.anomalies.iter().filter(|a| is_left(a, repeat, result, statistics)) {
            match kinds.iter_mut().find(|(kind, ..)| *kind == anomaly.kind) {
                Some((.., repeats)) if repeats.last() == Some(&n.to_string()) => {}
                Some((.., repeats)) => repeats.push(n.to_string()),
                None => kinds.push((&anomaly.kind, &anomaly.detail, vec![n.to_string()])),
            }
        }
    }
    kinds.into_iter().map(|(kind, detail, repeats)| {
        let s = if repeats.len() == 1 { "" } else { "s" };
        let sort = match kind {
            SLOW_FIRST_STEPS => NoteKind::WarmUp,
            RATE_DISAGREES => NoteKind::Doubtful,
            _ => NoteKind::Remark,
        };
        Note::new(sort, format!("repeat{s} {}: {kind}: {detail}", repeats.join(", ")))
    })
}

/// Is an anomaly of the step times not dealt with by the warm-up that is dropped?
fn is_left(anomaly: &Anomaly, repeat: &RepeatSummary, result: &RunResult, statistics: &Statistics) -> bool {
    let assessed = repeat.steady.as_ref().and_then(|s| s.cut.as_ref()).is_some_and(Cut::is_assessed);
    match anomaly.kind.as_str() {
        SLOW_FIRST_STEPS if repeat.steady.is_some() => {
            let timed = result.trace.steps.iter().filter(|s| s.step_time_seconds.is_some_and(is_positive));
            let slow = slow_first_steps(&result.trace.steps);
            let through = timed.take(slow).last().map_or(0, |s| s.step.saturating_add(1));
            !assessed && through - result.workload.counts_from.min(1).min(through) > statistics.warmup_steps
        }
        "level_shift" => !assessed,
        _ => true,
    }
}

/// Where the measured part begins, if not after the declared warm-up, and whether it is of one level.
fn steadiness(repeat: &RepeatSummary) -> Vec<Note> {
    let Some((steady, cut)) = repeat.steady.as_ref().and_then(|s| Some((s, s.cut.as_ref()?))) else {
        return Vec::new();
    };
    let n = repeat.repeat;
    let mut notes = Vec::new();
    if cut.dropped_steps > 0 {
        let (rate, declared) = (steady.tokens_per_second_per_gpu, cut.declared_tokens_per_second_per_gpu);
        let decimals = if rate.min(declared) < 100.0 { 3 } else { 0 };
        let text = format!(
            "repeat {n}: {} steps after the declared warm-up are of another level and dropped with it (by {}): measured from step {}, {rate:.decimals$} tokens/s/GPU, not {declared:.decimals$}",
            cut.dropped_steps, cut.method, cut.first_step,
        );
        notes.push(Note::new(NoteKind::WarmUp, text));
    }
    if let Some(shift) = &cut.level_shift {
        let percent = (shift.ratio - 1.0) * 100.0;
        let decimals = decimals_beside(percent, 0.0, 1);
        notes.push(remark(format!(
            "repeat {n}: no one level: the median step time changes by {percent:+.decimals$} % near step {}",
            shift.step
        )));
    }
    notes
}

/// `steady state is not assessed in repeats 1, 2: 12 timed steps …`; the reason is the first one's.
fn not_assessed(counted: &[(&RepeatSummary, &RunResult)]) -> Option<String> {
    let reason = |r: &RepeatSummary| r.steady.as_ref()?.cut.as_ref()?.not_assessed.clone();
    let without: Vec<(u32, String)> = counted.iter().filter_map(|(r, _)| Some((r.repeat, reason(r)?))).collect();
    let (_, why) = without.first()?;
    let which = if without.len() == counted.len() {
        String::new()
    } else {
        format!(" in repeat {}", without.iter().map(|(n, _)| n.to_string()).collect::<Vec<_>>().join(", "))
    };
    Some(format!("steady state is not assessed{which}: {why}"))
}

/// What the n of the interval counts, where it is not the repeats.
fn replication(estimate: &Estimate) -> Option<String> {
    let (repeats, n) = (estimate.values.len(), estimate.units.len());
    let units = estimate.unit.count(n);
    match estimate.unit {
        Unit::Repeat => None,
        _ if n == repeats => Some(format!("the {repeats} repeats are of {units}, which the interval speaks of")),
        Unit::Host => Some(format!("the {repeats} repeats are of {units}, whose means are the units: n = {n}")),
        Unit::Session => Some(format!(
            "the {repeats} repeats are of {units} (more than {:.0} hours apart), whose means are the units: n = {n}; if some were added after looking, the interval is too narrow",
            SESSION_GAP_SECONDS / 3600.0
        )),
    }
}
