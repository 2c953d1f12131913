//! What a reader must know beside a summary's figures.

use std::collections::BTreeSet;

use tprimat_logs::{UNREADABLE, UnreadableLines};
use tprimat_results::{
    Finding, Oddity, RunResult, Source,
    anomalies::{ENDS_EARLY, RATE_DISAGREES, SLOW_FIRST_STEPS},
    cross, differences, is_positive, outlier_limit, quantile, settings, slow_first_steps,
};
use tprimat_words::nearest;

use crate::{
    Contradiction, Cut, DeviceSet, Estimate, LevelShift, LogAnomaly, NotAssessed, NotCounted, Note,
    NoteKind, RepeatStatus, RepeatSummary, RunFact, Statistics, StepTime, Unit, clock, short_name,
    summary, telemetry,
};

pub(crate) fn notes(
    counted: &[(&RepeatSummary, &RunResult)],
    repeats: &[RepeatSummary],
    results: &[(u32, RunResult)],
    estimate: Option<&Estimate>,
    statistics: &Statistics,
) -> Vec<Note> {
    let mut notes = outcomes(repeats, results);
    notes.extend(repeats.iter().filter_map(cross_check));
    notes.extend(repeats.iter().flat_map(steadiness));
    notes.extend(not_assessed(counted).map(remark));
    notes.extend(measured_apart(counted));
    notes.extend(odd_repeats(counted));
    notes.extend(pauses(counted));
    notes.extend(anomalies_by_kind(repeats, results, statistics));
    notes.extend(
        sources_of_step_times(repeats, results)
            .into_iter()
            .map(remark),
    );
    notes.extend(unreadable_lines(counted));
    notes.extend(odd_in_the_log(counted).into_iter().map(remark));
    let replicated = match estimate {
        Some(e) if e.values.len() == 1 => Some(RunFact::OneRepeat),
        Some(e) if e.ci95.is_none() => Some(RunFact::NoVariation),
        Some(e) => replication(e, counted),
        None => None,
    };
    notes.extend(replicated.map(remark));
    notes.extend(unknown_settings(counted));
    let tokens_are = |source: Source| {
        counted
            .iter()
            .any(|(_, r)| r.workload.tokens_source == source)
    };
    if tokens_are(Source::Declared) {
        notes.push(remark(RunFact::TokensDeclared));
    }
    if tokens_are(Source::Derived) {
        notes.push(remark(RunFact::TokensDerived));
    }
    if let Some((planned, repeats)) = summary::repeats_added_later(repeats) {
        notes.push(remark(RunFact::AddedLater { repeats, planned }));
    }
    notes.extend(several_sets_of_devices(counted).map(remark));
    notes.extend(clock::notes(counted));
    notes.extend(telemetry::notes(counted).into_iter().map(remark));
    if statistics.warmup_steps == 0 && !counted.is_empty() {
        notes.push(remark(RunFact::NoWarmUp));
    }
    if let Some(((_, first), rest)) = counted.split_first() {
        let differing: BTreeSet<String> = rest
            .iter()
            .flat_map(|(_, r)| differences(&first.contract, &r.contract))
            .map(|difference| difference.field)
            .collect();
        if !differing.is_empty() {
            notes.push(remark(RunFact::RepeatsDisagree {
                fields: differing.into_iter().collect(),
            }));
        }
    }
    notes
}

fn remark(fact: RunFact) -> Note {
    Note::new(NoteKind::Remark, fact)
}

/// Adds a repeat to those of which the same holds.
pub(crate) fn add<T: PartialEq>(what: T, repeat: u32, found: &mut Vec<(T, Vec<u32>)>) {
    match found.iter_mut().find(|(known, _)| *known == what) {
        Some((_, repeats)) => repeats.push(repeat),
        None => found.push((what, vec![repeat])),
    }
}

/// Says which step times do not come from the trainer, and why.
fn sources_of_step_times(repeats: &[RepeatSummary], results: &[(u32, RunResult)]) -> Vec<RunFact> {
    let mut found = Vec::new();
    for (repeat, (_, result)) in repeats.iter().zip(results) {
        if let Some(source) = &result.workload.step_time_source {
            add(source, repeat.repeat, &mut found);
        }
    }
    found
        .into_iter()
        .map(|(source, repeats)| RunFact::StepTimesAre {
            repeats,
            source: source.clone(),
        })
        .collect()
}

/// Misspelt settings would leave the declared ones unconfirmed without a word.
fn unknown_settings(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut found = Vec::new();
    for (repeat, result) in counted {
        let stated = &result.trace.effective.0;
        for name in settings::unlisted(stated).into_keys() {
            let last = name.rsplit('.').next().unwrap_or_default();
            if let Some(meant) = nearest(last, settings::names_not_stated(stated)) {
                add((name, meant.to_owned()), repeat.repeat, &mut found);
            }
        }
    }
    let note = |((name, meant), repeats)| {
        let fact = RunFact::UnknownSetting {
            repeats,
            name,
            meant,
        };
        Note::new(NoteKind::Doubtful, fact)
    };
    found.into_iter().map(note).collect()
}

/// Kinds of anomalies of a log that say little without the log's own words or numbers.
const SHOWN: [&str; 4] = ["absurd_value", "end_status", "second_start", "step_count"];

/// What a lost line would have said may be a step of the measured part: no figure is whole.
fn unreadable_lines(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut found = Vec::new();
    for (repeat, result) in counted {
        if let Some(lines) = result.trace.unreadable {
            add(lines, repeat.repeat, &mut found);
        }
    }
    let note = |(lines, repeats): (UnreadableLines, _)| {
        let fact = RunFact::UnreadableLines {
            repeats,
            count: lines.count,
            first: lines.first,
        };
        Note::new(NoteKind::Doubtful, fact)
    };
    found.into_iter().map(note).collect()
}

fn odd_in_the_log(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<RunFact> {
    let mut found = Vec::new();
    for (repeat, result) in counted {
        let all = &result.trace.anomalies;
        // Lines that were counted have a note of their own.
        let is_counted =
            |kind: &&str| result.trace.unreadable.is_some() && UNREADABLE.contains(kind);
        let kinds = all.iter().map(|a| a.kind.as_str());
        let kinds: BTreeSet<&str> = kinds.filter(|kind| !is_counted(kind)).collect();
        let first = |kind: &str| {
            all.iter()
                .find(|a| a.kind == kind && SHOWN.contains(&kind))
                .map(|a| a.detail.clone())
        };
        let what: Vec<LogAnomaly> = kinds
            .into_iter()
            .map(|kind| LogAnomaly {
                kind: kind.to_owned(),
                detail: first(kind),
            })
            .collect();
        if !what.is_empty() {
            add(what, repeat.repeat, &mut found);
        }
    }
    found
        .into_iter()
        .map(|(what, repeats)| RunFact::OddInTheLog { repeats, what })
        .collect()
}

/// From how many steps, and from what share of a run, the beginnings of the measured parts are too
/// far apart.
const APART: (u64, f64) = (10, 0.1);

/// Repeats whose measured parts begin at other steps do not measure the same. Where step times
/// drift rather than settle, CUSUM finds the end of the warm-up at another place in each run.
fn measured_apart(counted: &[(&RepeatSummary, &RunResult)]) -> Option<Note> {
    let cuts = || {
        counted.iter().filter_map(|(r, _)| {
            r.steady
                .as_ref()?
                .cut
                .as_ref()
                .filter(|cut| cut.is_assessed())
        })
    };
    let (first, last) = (
        cuts().map(|c| c.first_step).min()?,
        cuts().map(|c| c.first_step).max()?,
    );
    let steps = counted.iter().filter_map(|(r, _)| r.last_step).max()?;
    let is_far = last - first >= APART.0 && (last - first) as f64 >= APART.1 * steps as f64;
    is_far.then(|| {
        Note::new(
            NoteKind::Doubtful,
            RunFact::MeasuredApart { first, last, steps },
        )
    })
}

/// Repeats that do not count, and why; those of one reason together.
fn outcomes(repeats: &[RepeatSummary], results: &[(u32, RunResult)]) -> Vec<Note> {
    let mut found = Vec::new();
    for (repeat, (_, result)) in repeats.iter().zip(results) {
        if let Some(why) = not_counted(&repeat.status, result) {
            add(why, repeat.repeat, &mut found);
        }
    }
    let note = |(why, repeats)| {
        let kind = match &why {
            NotCounted::Failed { .. } => NoteKind::Failed,
            NotCounted::Contradicted { .. } => NoteKind::Contradicted,
            NotCounted::Suspect(_) => NoteKind::Suspect,
            NotCounted::NoRate(_) => NoteKind::Remark,
        };
        Note::new(kind, RunFact::NotCounted { repeats, why })
    };
    found.into_iter().map(note).collect()
}

/// Why a run of this status does not count; none where it does.
pub(crate) fn not_counted(status: &RepeatStatus, result: &RunResult) -> Option<NotCounted> {
    Some(match status {
        RepeatStatus::Ok => return None,
        RepeatStatus::Failed { class, evidence } => NotCounted::Failed {
            class: *class,
            evidence: evidence.first().cloned(),
        },
        RepeatStatus::Contradicted { .. } => {
            let is_imported = result.is_imported();
            let by = match is_imported {
                _ if result
                    .attestation
                    .contradicted()
                    .all(|f| f.declared.is_none()) =>
                {
                    Contradiction::Itself { is_imported }
                }
                true => Contradiction::Labels,
                false => Contradiction::Job,
            };
            let fields = result.attestation.contradicted().cloned().collect();
            NotCounted::Contradicted { by, fields }
        }
        RepeatStatus::Suspect { reason } => NotCounted::Suspect(reason.clone()),
        RepeatStatus::Unmeasured { reason } => NotCounted::NoRate(reason.clone()),
    })
}

fn cross_check(repeat: &RepeatSummary) -> Option<Note> {
    let check = repeat
        .steady
        .as_ref()?
        .cross_check
        .as_ref()
        .filter(|c| !c.agrees)?;
    let fact = RunFact::TrainersRateDiffers {
        repeat: repeat.repeat,
        ratio: check.ratio,
    };
    Some(Note::new(NoteKind::Doubtful, fact))
}

/// Devices of one kind are not equally fast, and hosts of one name need not be one host.
fn several_sets_of_devices(counted: &[(&RepeatSummary, &RunResult)]) -> Option<RunFact> {
    let mut sets: Vec<(&[String], Vec<u32>)> = Vec::new();
    for (repeat, _) in counted.iter().filter(|(r, _)| !r.devices.is_empty()) {
        add(&*repeat.devices, repeat.repeat, &mut sets);
    }
    let set = |(devices, repeats): &(&[String], Vec<u32>)| {
        // Named by what tells it apart.
        let own = devices
            .iter()
            .find(|d| sets.iter().any(|(others, _)| !others.contains(d)))
            .unwrap_or(&devices[0]);
        DeviceSet {
            device: short_name(own),
            more: devices.len() - 1,
            repeats: repeats.clone(),
        }
    };
    (sets.len() > 1).then(|| RunFact::SeveralSetsOfDevices(sets.iter().map(set).collect()))
}

/// What is odd about the runs: each kind once, by its first case, with the repeats that have it.
fn anomalies_by_kind(
    repeats: &[RepeatSummary],
    results: &[(u32, RunResult)],
    statistics: &Statistics,
) -> impl Iterator<Item = Note> {
    let mut kinds: Vec<(&str, &Oddity, Vec<u32>, bool)> = Vec::new();
    for (repeat, (n, result)) in repeats.iter().zip(results) {
        for anomaly in result
            .anomalies
            .iter()
            .filter(|a| is_left(a, repeat, result, statistics))
        {
            match kinds.iter_mut().find(|(kind, ..)| *kind == anomaly.kind) {
                Some((.., repeats, _)) if repeats.last() == Some(n) => {}
                Some((_, detail, repeats, is_of_first)) => {
                    repeats.push(*n);
                    *is_of_first |= **detail != anomaly.detail;
                }
                None => kinds.push((&anomaly.kind, &anomaly.detail, vec![*n], false)),
            }
        }
    }
    kinds
        .into_iter()
        .map(|(kind, detail, repeats, is_of_first)| {
            let sort = match kind {
                SLOW_FIRST_STEPS => NoteKind::WarmUp,
                RATE_DISAGREES | ENDS_EARLY => NoteKind::Doubtful,
                _ => NoteKind::Remark,
            };
            Note::new(
                sort,
                RunFact::Anomaly {
                    repeats,
                    detail: detail.clone(),
                    is_of_first,
                },
            )
        })
}

/// Is an anomaly of the step times not dealt with by the warm-up that is dropped?
fn is_left(
    anomaly: &Finding,
    repeat: &RepeatSummary,
    result: &RunResult,
    statistics: &Statistics,
) -> bool {
    let assessed = repeat
        .steady
        .as_ref()
        .and_then(|s| s.cut.as_ref())
        .is_some_and(Cut::is_assessed);
    match anomaly.kind.as_str() {
        SLOW_FIRST_STEPS if repeat.steady.is_some() => {
            let timed = result
                .trace
                .steps
                .iter()
                .filter(|s| s.step_time_seconds.is_some_and(is_positive));
            let slow = slow_first_steps(&result.trace.steps);
            let through = timed
                .take(slow)
                .last()
                .map_or(0, |s| s.step.saturating_add(1));
            !assessed
                && through - result.workload.counts_from.min(1).min(through)
                    > statistics.warmup_steps
        }
        "level_shift" => !assessed,
        // At another level every later step is as odd.
        "last_step_outlier" => {
            let cut = repeat.steady.as_ref().and_then(|s| s.cut.as_ref());
            let is_shifted = match cut {
                Some(cut) if assessed => cut.level_shift.is_some(),
                _ => result.anomalies.iter().any(|a| a.kind == "level_shift"),
            };
            !is_shifted
        }
        _ => true,
    }
}

/// Says where the measured part begins, if not after the declared warm-up, and whether step times change
/// in it for good.
fn steadiness(repeat: &RepeatSummary) -> Vec<Note> {
    let Some((steady, cut)) = repeat
        .steady
        .as_ref()
        .and_then(|s| Some((s, s.cut.as_ref()?)))
    else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if cut.dropped_steps > 0 {
        let fact = RunFact::MoreWarmUp {
            repeat: repeat.repeat,
            steps: cut.dropped_steps,
            method: cut.method.clone(),
            first_step: cut.first_step,
            rate: steady.tokens_per_second_per_gpu,
            with_them: cut.declared_tokens_per_second_per_gpu,
        };
        notes.push(Note::new(NoteKind::WarmUp, fact));
    }
    if let Some(LevelShift { step, ratio }) = cut.level_shift {
        notes.push(remark(RunFact::LevelShift {
            repeat: repeat.repeat,
            step,
            ratio,
        }));
    }
    notes
}

/// Repeats that are too short to look for more warm-up; the reason is the first one's.
fn not_assessed(counted: &[(&RepeatSummary, &RunResult)]) -> Option<RunFact> {
    let reason = |r: &RepeatSummary| r.steady.as_ref()?.cut.as_ref()?.not_assessed.clone();
    let without: Vec<(u32, NotAssessed)> = counted
        .iter()
        .filter_map(|(r, _)| Some((r.repeat, reason(r)?)))
        .collect();
    let (_, why) = without.first()?.clone();
    let repeats: Vec<u32> = without.into_iter().map(|(n, _)| n).collect();
    Some(RunFact::TooShortToAssess {
        all: repeats.len() == counted.len(),
        repeats,
        why,
    })
}

/// A repeat is odd if its rate is this far from the median of the others, and this many times as
/// far as any of them.
const ODD_REPEAT: f64 = 0.03;
const ODD_REPEAT_TIMES: f64 = 4.0;
/// Two others are near each other by chance too often: of three repeats that vary by 2 %, one in
/// three cells would have an odd one.
const ODD_REPEAT_OTHERS: usize = 3;

/// Repeats whose rate is far from that of the others: one of five moves the mean and widens the
/// interval, and nobody sees why.
fn odd_repeats(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let rate = |repeat: &RepeatSummary| repeat.steady.as_ref().map(|s| s.tokens_per_second_per_gpu);
    let rates: Vec<(u32, f64)> = counted
        .iter()
        .filter_map(|(r, _)| Some((r.repeat, rate(r)?)))
        .collect();
    let mut notes = Vec::new();
    for (n, own) in &rates {
        let others: Vec<f64> = rates
            .iter()
            .filter(|(other, _)| other != n)
            .map(|(_, rate)| *rate)
            .collect();
        let Some(median) = quantile(&others, 0.5).filter(|_| others.len() >= ODD_REPEAT_OTHERS)
        else {
            continue;
        };
        let change = own / median - 1.0;
        let farthest = others
            .iter()
            .map(|other| (other / median - 1.0).abs())
            .fold(0.0, f64::max);
        if change.abs() >= ODD_REPEAT && change.abs() > ODD_REPEAT_TIMES * farthest {
            let fact = RunFact::OddRepeat {
                repeat: *n,
                change,
                others: others.len(),
                farthest,
            };
            notes.push(Note::new(NoteKind::Doubtful, fact));
        }
    }
    notes
}

/// A mean step time this many times the median is remarked, and from the second one on doubtful.
const PAUSES: [f64; 2] = [1.1, 1.5];

/// A few steps that take much of the measured time, as pauses, evaluations and checkpoints within a
/// step do: they count, but a reader must know. In a log of every k-th step each of them stands for
/// k.
fn pauses(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (repeat, result) in counted {
        let Some(steady) = &repeat.steady else {
            continue;
        };
        let first = steady.cut.as_ref().map_or(0, |cut| cut.first_step);
        let own = result.trace.steps.iter().filter(|s| s.step >= first);
        let timed: Vec<(u64, f64)> = own
            .filter_map(|s| Some((s.step, s.step_time_seconds.filter(|t| is_positive(*t))?)))
            .collect();
        let times: Vec<f64> = timed.iter().map(|(_, time)| *time).collect();
        let every = cross::interval(&result.trace.steps);
        let is_sampled = every > 1 && result.trace.steps.iter().all(|s| s.count() == 1);
        let StepTime {
            mean_seconds: mean,
            median_seconds: median,
            ..
        } = steady.step_time;
        let limit = outlier_limit(&times, median).unwrap_or(f64::INFINITY);
        let slow: Vec<&(u64, f64)> = timed
            .iter()
            .filter(|(_, time)| time - median > limit)
            .collect();
        let longest = slow
            .iter()
            .max_by(|x, y| x.1.total_cmp(&y.1))
            .filter(|_| mean > PAUSES[0] * median);
        let Some((step, longest)) = longest else {
            notes.extend(is_sampled.then(|| {
                remark(RunFact::Sampled {
                    repeat: repeat.repeat,
                    every,
                })
            }));
            continue;
        };
        let rate = steady.tokens_per_second_per_gpu;
        let fact = RunFact::Pauses {
            repeat: repeat.repeat,
            slow: slow.len(),
            measured: times.len(),
            share: slow.iter().map(|(_, time)| time).sum::<f64>() / times.iter().sum::<f64>(),
            step: *step,
            longest: *longest,
            median,
            rate,
            rate_at_median: rate * mean / median,
            every: is_sampled.then_some(every),
        };
        let kind = if is_sampled || mean > PAUSES[1] * median {
            NoteKind::Doubtful
        } else {
            NoteKind::Remark
        };
        notes.push(Note::new(kind, fact));
    }
    notes
}

/// What the n of the interval counts, where it is not the repeats.
fn replication(estimate: &Estimate, counted: &[(&RepeatSummary, &RunResult)]) -> Option<RunFact> {
    let (repeats, units, unit) = (estimate.values.len(), estimate.units.len(), estimate.unit);
    let in_no_unit = counted.iter().filter(|(run, _)| !unit.has(run)).count();
    (unit != Unit::Repeat).then_some(RunFact::Replication {
        repeats: repeats - in_no_unit,
        units,
        unit,
        in_no_unit,
    })
}
