//! What a reader must know beside a summary's figures, in sentences.

use std::collections::BTreeSet;

use tprimat_logs::Anomaly;

use super::{
    Cut, Estimate, MIN_REPEATS, Note, NoteKind, RepeatStatus, RepeatSummary, RunResult, SESSION_GAP_SECONDS, Source,
    Statistics, StepTime, Unit,
    anomalies::{RATE_DISAGREES, SLOW_FIRST_STEPS},
    clock, cross, decimals_beside, differences, is_positive, outlier_limit, quantile, short_name, slow_first_steps,
    summary, telemetry,
};

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
    notes.extend(measured_apart(counted));
    notes.extend(odd_repeats(counted));
    notes.extend(pauses(counted));
    notes.extend(anomalies_by_kind(repeats, results, statistics));
    for (repeat, result) in counted {
        let all = &result.trace.anomalies;
        let kinds: BTreeSet<&str> = all.iter().map(|a| a.kind.as_str()).collect();
        // What was left out of the log's own words is shown.
        let word = |kind: &str| match all.iter().find(|a| a.kind == kind && SHOWN.contains(&kind)) {
            Some(first) => format!("{} ({})", kind.replace('_', " "), first.detail),
            None => kind.replace('_', " "),
        };
        if !kinds.is_empty() {
            let kinds = kinds.into_iter().map(word).collect::<Vec<_>>().join(", ");
            said_of(repeat.repeat, format!("odd in the log: {kinds}"), &mut shared);
        }
    }
    notes.extend(shared.into_iter().map(|(text, repeats)| {
        let s = if repeats.len() == 1 { "" } else { "s" };
        remark(format!("repeat{s} {}: {text}", repeats.join(", ")))
    }));
    let replicated = match estimate {
        Some(e) if e.values.len() == 1 => Some("one repeat gives no interval".to_owned()),
        Some(e) if e.ci95.is_none() => Some("the repeats do not vary, so there is no interval".to_owned()),
        Some(e) => replication(e),
        None => None,
    };
    notes.extend(replicated.map(remark));
    let tokens_are = |source: Source| counted.iter().any(|(_, r)| r.workload.tokens_source == source);
    if tokens_are(Source::Declared) {
        notes.push(remark("the log does not state the tokens of a step, so those that were asked for are used"));
    }
    if tokens_are(Source::Derived) {
        notes.push(remark("the tokens of a step are computed from the trainer's own rate and step time"));
    }
    notes.extend(repeats_added_later(repeats).map(remark));
    notes.extend(several_sets_of_devices(counted).map(remark));
    notes.extend(clock::notes(counted));
    notes.extend(telemetry::notes(counted).into_iter().map(remark));
    if statistics.warmup_steps == 0 && !counted.is_empty() {
        notes.push(remark("no warm-up is declared, so no step is dropped"));
    }
    if let Some(((_, first), rest)) = counted.split_first() {
        let differing: BTreeSet<String> = rest
            .iter()
            .flat_map(|(_, r)| differences(&first.contract, &r.contract))
            .map(|difference| difference.field)
            .collect();
        if !differing.is_empty() {
            let fields = differing.into_iter().collect::<Vec<_>>().join(", ");
            notes.push(remark(format!("the repeats do not agree on {fields}")));
        }
    }
    notes
}

/// From how many steps, and from what share of a run, the beginnings of the measured parts are too far apart.
const APART: (u64, f64) = (10, 0.1);

/// Repeats whose measured parts begin at other steps do not measure the same. Where step times drift rather than settle, CUSUM
/// finds the end of the warm-up at another place in each run.
fn measured_apart(counted: &[(&RepeatSummary, &RunResult)]) -> Option<Note> {
    let cuts = || counted.iter().filter_map(|(r, _)| r.steady.as_ref()?.cut.as_ref().filter(|cut| cut.is_assessed()));
    let (first, last) = (cuts().map(|c| c.first_step).min()?, cuts().map(|c| c.first_step).max()?);
    let steps = counted.iter().filter_map(|(r, _)| r.last_step).max()?;
    let is_far = last - first >= APART.0 && (last - first) as f64 >= APART.1 * steps as f64;
    is_far.then(|| {
        let text = format!(
            "the measured parts begin between steps {first} and {last} of {steps}: the step time drifts, or settles later in some \
             repeats, so the repeats do not measure the same part of a run; a longer declared warm-up does"
        );
        Note::new(NoteKind::Doubtful, text)
    })
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
            RepeatStatus::Contradicted { .. } => {
                let is_alone = result.attestation.contradicted().all(|f| f.declared.is_none());
                // Nobody asked for an imported run here.
                let asked =
                    if result.started_at.is_none() { "its label or its model says" } else { "the job asked for" };
                let shown: Vec<String> = result.attestation.contradicted().map(|f| f.sentence(asked)).collect();
                let what = if is_alone { "itself" } else { "the job" };
                (NoteKind::Contradicted, format!("the log contradicts {what}: {}", shown.join("; ")))
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
        "repeat {}: the trainer prints {:.2} times our tokens/s/GPU; ours is the tokens of a step ÷ its time",
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
        "{names} {were} added after the results of {first_plan} were seen: intervals assume that the number was fixed beforehand"
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
        Note::new(sort, format!("repeat{s} {}: {detail}", repeats.join(", ")))
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

/// Where the measured part begins, if not after the declared warm-up, and whether step times change in it for good.
fn steadiness(repeat: &RepeatSummary) -> Vec<Note> {
    let Some((steady, cut)) = repeat.steady.as_ref().and_then(|s| Some((s, s.cut.as_ref()?))) else {
        return Vec::new();
    };
    let n = repeat.repeat;
    let mut notes = Vec::new();
    if cut.dropped_steps > 0 {
        let (rate, declared) = (steady.tokens_per_second_per_gpu, cut.declared_tokens_per_second_per_gpu);
        let decimals = if rate.min(declared) < 100.0 { 3 } else { 0 };
        let more = match cut.dropped_steps {
            1 => "1 more step was still warming up".to_owned(),
            n => format!("{n} more steps were still warming up"),
        };
        let left_out = if cut.dropped_steps == 1 { "is" } else { "are" };
        let text = format!(
            "repeat {n}: {more} (found by {}) and {left_out} left out. Measured from step {}: {rate:.decimals$} tokens/s/GPU; with them {declared:.decimals$}",
            cut.method, cut.first_step,
        );
        notes.push(Note::new(NoteKind::WarmUp, text));
    }
    if let Some(shift) = &cut.level_shift {
        let percent = (shift.ratio - 1.0) * 100.0;
        let decimals = decimals_beside(percent, 0.0, 1);
        notes.push(remark(format!(
            "repeat {n}: the median step time changes by {percent:+.decimals$} % near step {} and stays there: the rate is a mean of both",
            shift.step
        )));
    }
    notes
}

/// `repeats 1, 2 are too short to look for more warm-up: …`; the reason is the first one's.
fn not_assessed(counted: &[(&RepeatSummary, &RunResult)]) -> Option<String> {
    let reason = |r: &RepeatSummary| r.steady.as_ref()?.cut.as_ref()?.not_assessed.clone();
    let without: Vec<(u32, String)> = counted.iter().filter_map(|(r, _)| Some((r.repeat, reason(r)?))).collect();
    let (_, why) = without.first()?;
    let names: Vec<String> = without.iter().map(|(n, _)| n.to_string()).collect();
    let which = match names.len() {
        n if n == counted.len() => "the repeats are".to_owned(),
        1 => format!("repeat {} is", names[0]),
        _ => format!("repeats {} are", names.join(", ")),
    };
    Some(format!("{which} too short to look for more warm-up than the declared one ({why})"))
}

/// A repeat is odd if its rate is this far from the median of the others, and this many times as far as any of them.
const ODD_REPEAT: f64 = 0.03;
const ODD_REPEAT_TIMES: f64 = 4.0;

/// Repeats whose rate is far from that of the others: one of five moves the mean and widens the interval, and nobody sees why.
fn odd_repeats(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let rate = |repeat: &RepeatSummary| repeat.steady.as_ref().map(|s| s.tokens_per_second_per_gpu);
    let rates: Vec<(u32, f64)> = counted.iter().filter_map(|(r, _)| Some((r.repeat, rate(r)?))).collect();
    let mut notes = Vec::new();
    for (n, own) in &rates {
        let others: Vec<f64> = rates.iter().filter(|(other, _)| other != n).map(|(_, rate)| *rate).collect();
        // With two repeats, either could be the odd one.
        let Some(median) = quantile(&others, 0.5).filter(|_| others.len() >= 2) else { continue };
        let change = own / median - 1.0;
        let farthest = others.iter().map(|other| (other / median - 1.0).abs()).fold(0.0, f64::max);
        if change.abs() >= ODD_REPEAT && change.abs() > ODD_REPEAT_TIMES * farthest {
            let word = if change < 0.0 { "slower" } else { "faster" };
            let text = format!(
                "repeat {n} is {:.1} % {word} than the median of the other {}, which agree within {:.1} %; `tprimat logs` shows its log",
                change.abs() * 100.0,
                others.len(),
                farthest * 100.0
            );
            notes.push(Note::new(NoteKind::Doubtful, text));
        }
    }
    notes
}

/// A mean step time this many times the median is remarked, and from the second one on doubtful.
const PAUSES: [f64; 2] = [1.1, 1.5];

/// A few steps that take much of the measured time, as pauses, evaluations and checkpoints within a step do: they count, but a
/// reader must know. In a log of every k-th step each of them stands for k.
fn pauses(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (repeat, result) in counted {
        let Some(steady) = &repeat.steady else { continue };
        let first = steady.cut.as_ref().map_or(0, |cut| cut.first_step);
        let own = result.trace.steps.iter().filter(|s| s.step >= first);
        let timed: Vec<(u64, f64)> = own.filter_map(|s| Some((s.step, s.step_time_seconds?))).collect();
        let times: Vec<f64> = timed.iter().map(|(_, time)| *time).collect();
        let every = cross::interval(&result.trace.steps);
        let is_sampled = every > 1 && result.trace.steps.iter().all(|s| s.steps_averaged.unwrap_or(1) <= 1);
        let n = repeat.repeat;
        let sampled = format!("the log shows only every {every}th step, each with its own time");
        let StepTime { mean_seconds: mean, median_seconds: median, .. } = steady.step_time;
        let limit = outlier_limit(&times, median).unwrap_or(f64::INFINITY);
        let slow: Vec<&(u64, f64)> = timed.iter().filter(|(_, time)| time - median > limit).collect();
        let Some((step, longest)) =
            slow.iter().max_by(|x, y| x.1.total_cmp(&y.1)).filter(|_| mean > PAUSES[0] * median)
        else {
            if is_sampled {
                notes.push(remark(format!("repeat {n}: {sampled}: pauses between them are not seen")));
            }
            continue;
        };
        let share = 100.0 * slow.iter().map(|(_, time)| time).sum::<f64>() / times.iter().sum::<f64>();
        let what = format!(
            "repeat {n}: {} of {} measured steps took {share:.0} % of the time (step {step}: {longest:.3} s, the median is {median:.3} s)",
            slow.len(),
            times.len(),
        );
        let rate = steady.tokens_per_second_per_gpu;
        let effect = format!("at the median it would be {:.0} instead of {rate:.0} tokens/s/GPU", rate * mean / median);
        let kind = if is_sampled || mean > PAUSES[1] * median { NoteKind::Doubtful } else { NoteKind::Remark };
        let sampled = if is_sampled {
            format!("; {sampled}, so a pause in one of them counts {every} times")
        } else {
            String::new()
        };
        notes.push(Note::new(kind, format!("{what}; {effect}{sampled}")));
    }
    notes
}

/// What the n of the interval counts, where it is not the repeats.
fn replication(estimate: &Estimate) -> Option<String> {
    let (repeats, n) = (estimate.values.len(), estimate.units.len());
    let units = estimate.unit.count(n);
    match estimate.unit {
        Unit::Repeat => None,
        Unit::Host => Some(format!(
            "the {repeats} repeats ran on {units}; the interval is computed from the {n} host means (n = {n})"
        )),
        Unit::Session => Some(format!(
            "the {repeats} repeats ran in {units} more than {:.0} hours apart; the interval is computed from the {n} session means (n = {n}). A verdict needs {MIN_REPEATS} sessions in each cell, or `tprimat build --remeasure` of both in one",
            SESSION_GAP_SECONDS / 3600.0
        )),
    }
}
