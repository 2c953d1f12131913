//! What a reader must know beside a summary's figures.

use std::collections::BTreeSet;

use crate::results::{
    MIN_REPEATS, RunResult, Source,
    anomalies::{CONSTANT_LOSS, ENDS_EARLY, RATE_DISAGREES, SLOW_FIRST_STEPS},
    cross, differences, is_positive, outlier_limit, quantile, settings, slow_first_steps,
    words::{repeats as named, step_time, verb},
};
use tprimat_base::words::{nearest, plain::counted};
use tprimat_logs::{Anomaly, RESTART, UNREADABLE, UnreadableLines, WHOLE_RUN};

use crate::figures::{
    Cut, Estimate, Note, NoteKind, RepeatStatus, RepeatSummary, SESSION_GAP_SECONDS, Statistics,
    StepTime, Unit, clock,
    codes::{LEVEL_SHIFT, NOT_COUNTED},
    otherwise::{LARGE_SHIFT, largest_shift, shift_words},
    summary,
    summary::{beside, drift},
    telemetry,
};

pub(crate) fn notes(
    counted: &[(&RepeatSummary, &RunResult)],
    repeats: &[RepeatSummary],
    results: &[(u32, RunResult)],
    estimate: Option<&Estimate>,
    statistics: &Statistics,
) -> Vec<Note> {
    let mut notes = outcomes(repeats);
    notes.extend(repeats.iter().filter_map(cross_check));
    notes.extend(counted.iter().filter_map(|(r, _)| more_warm_up(r)));
    notes.extend(not_assessed(counted));
    notes.extend(level_shifts(counted));
    notes.extend(drift::notes(counted));
    notes.extend(measured_apart(counted));
    notes.extend(odd_repeats(counted));
    notes.extend(pauses(counted));
    notes.extend(anomalies_by_kind(repeats, results, statistics));
    notes.extend(sources_of_step_times(repeats, results));
    notes.extend(restarts(counted, statistics));
    notes.extend(unreadable_lines(counted));
    notes.extend(skipped_updates(counted));
    notes.extend(odd_in_the_log(counted));
    notes.extend(match estimate {
        Some(e) if e.values.len() == 1 => {
            Some(remark("one_repeat", "one repeat gives no interval"))
        }
        Some(e) if e.ci95.is_none() => {
            let text = "the repeats do not vary, so there is no interval";
            Some(remark("no_variation", text))
        }
        Some(e) => replication(e, counted),
        None => None,
    });
    notes.extend(unknown_settings(counted));
    let tokens_are = |source: Source| {
        let mut of_counted = counted.iter().map(|(_, r)| r.workload.tokens_source);
        of_counted.any(|own| own == source)
    };
    if tokens_are(Source::Declared) {
        let text =
            "the log does not state the tokens of a step, so those that were asked for are used";
        notes.push(remark("tokens_declared", text));
    }
    if let Some((planned, added)) = summary::repeats_added_later(repeats) {
        notes.push(added_later(planned, added));
    }
    notes.extend(clock::notes(counted));
    notes.extend(telemetry::notes(counted));
    if statistics.warmup_steps == 0 && !counted.is_empty() {
        let text = "no warm-up is declared, so no step is dropped";
        notes.push(remark("no_warm_up", text));
    }
    if let Some(((_, first), rest)) = counted.split_first() {
        let differing: BTreeSet<String> = rest
            .iter()
            .flat_map(|(_, r)| differences(&first.contract, &r.contract))
            .map(|difference| difference.field)
            .collect();
        if !differing.is_empty() {
            let fields: Vec<String> = differing.into_iter().collect();
            let text = format!("the repeats do not agree on {}", fields.join(", "));
            notes.push(remark("repeats_disagree", text).with("fields", fields));
        }
    }
    notes.extend(beside::notes(counted));
    notes
}

pub(crate) fn remark(code: &'static str, text: impl Into<String>) -> Note {
    Note::new(NoteKind::Remark, code, text)
}

/// `2nd`
pub(crate) fn ordinal(n: u64) -> String {
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

fn added_later(planned: u32, added: Vec<u32>) -> Note {
    let text = format!(
        "{} {} added after the results of {planned} were seen: intervals assume that the number was fixed beforehand",
        named(&added),
        verb(&added, "was", "were")
    );
    remark("added_later", text).with("repeats", added)
}

/// A note for each thing that is found in some repeats, with the numbers of these.
pub(crate) fn by_repeat<T: PartialEq>(
    found: impl IntoIterator<Item = (u32, T)>,
    note: impl Fn(T, &[u32]) -> Note,
) -> Vec<Note> {
    let mut all: Vec<(T, Vec<u32>)> = Vec::new();
    for (repeat, what) in found {
        match all.iter_mut().find(|(known, _)| *known == what) {
            Some((_, repeats)) => repeats.push(repeat),
            None => all.push((what, vec![repeat])),
        }
    }
    let note = |(what, of): (T, Vec<u32>)| note(what, &of).with("repeats", of);
    all.into_iter().map(note).collect()
}

/// Says which step times do not come from the trainer, and why.
fn sources_of_step_times(repeats: &[RepeatSummary], results: &[(u32, RunResult)]) -> Vec<Note> {
    let found = repeats
        .iter()
        .zip(results)
        .filter_map(|(repeat, (_, result))| {
            Some((repeat.repeat, result.workload.step_time_source.as_ref()?))
        });
    by_repeat(found, |source, of| {
        let text = format!(
            "{}: the log has no step times; they are {source}",
            named(of)
        );
        remark("step_times_are", text)
    })
}

/// Misspelt settings would leave the declared ones unconfirmed without a word.
fn unknown_settings(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut found = Vec::new();
    for (repeat, result) in counted {
        let stated = &result.trace.effective.0;
        let unlisted = settings::unlisted(stated).into_keys();
        for name in unlisted.filter(|name| settings::tier_of(name).is_none()) {
            let last = name.rsplit('.').next().unwrap_or_default();
            if let Some(meant) = nearest(last, settings::names_not_stated(stated)) {
                found.push((repeat.repeat, (name, meant.to_owned())));
            }
        }
    }
    by_repeat(found, |(name, meant), of| {
        let text = format!(
            "{}: the log states `{name}`, which is not the name of a setting, so nothing was compared with it; perhaps `{meant}` is \
             meant",
            named(of)
        );
        Note::new(NoteKind::Doubtful, "unknown_setting", text)
            .with("name", name)
            .with("meant", meant)
    })
}

/// Kinds of anomalies of a log that say little without the log's own words or numbers.
const SHOWN: [&str; 5] = [
    "absurd_value",
    "copied_steps",
    "end_status",
    "second_start",
    "step_count",
];

/// What a lost line would have said may be a step of the measured part: no figure is whole.
fn unreadable_lines(results: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let lines = |(repeat, result): &(&RepeatSummary, &RunResult)| {
        Some((repeat.repeat, result.trace.unreadable?))
    };
    let found = results.iter().filter_map(lines);
    by_repeat(found, |UnreadableLines { count, first }, of| {
        let lines = counted(count as usize, "line");
        let text = format!(
            "{}: {lines} of the log cannot be read (the first is line {first}): what was there is missing from the figures",
            named(of)
        );
        Note::new(NoteKind::Doubtful, "unreadable_lines", text).with("count", count)
    })
}

/// Where processes of the trainer begin within a log, and that their start-up is left out.
fn restarts(results: &[(&RepeatSummary, &RunResult)], statistics: &Statistics) -> Vec<Note> {
    let note = |(repeat, result): &(&RepeatSummary, &RunResult)| {
        let mut told = result.trace.anomalies.iter().filter(|a| a.kind == RESTART);
        let first = told.next()?;
        let more = match told.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let text = format!(
            "repeat {}: the trainer started again within the log: {}{more}; its first {} left out as warm-up",
            repeat.repeat,
            first.detail,
            counted(statistics.warmup_steps as usize, "step")
        );
        Some(Note::new(NoteKind::WarmUp, RESTART, text).with("repeat", repeat.repeat))
    };
    results.iter().filter_map(note).collect()
}

/// Anomalies of a step whose gradients overflowed, so that no weight changed.
const SKIPPED: [&str; 2] = ["skipped_iterations", "overflow_skip"];

/// A tenth of the steps, and not one after the other from the first one on: so the loss scale of fp16 is found.
fn skipped_updates(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let are_many = |result: &RunResult| {
        let trace = &result.trace;
        SKIPPED.iter().any(|kind| {
            let steps = trace.anomalies.iter().filter(|a| a.kind == *kind);
            let steps: Vec<u64> = steps.filter_map(|a| a.step).collect();
            let is_search = steps.windows(2).all(|pair| pair[1] <= pair[0] + 1);
            !is_search && 10 * trace.occurrences(kind) >= trace.step_lines
        })
    };
    let of = counted.iter().filter(|(_, result)| are_many(result));
    let of: Vec<u32> = of.map(|(repeat, _)| repeat.repeat).collect();
    let text = || {
        let of = named(&of);
        format!(
            "{of}: many steps did not change the weights, because gradients overflowed, and a step without an update is quicker"
        )
    };
    let note = (!of.is_empty()).then(|| Note::new(NoteKind::Doubtful, "skipped_updates", text()));
    note.into_iter().collect()
}

fn odd_in_the_log(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let mut found = Vec::new();
    for (repeat, result) in counted {
        let all = &result.trace.anomalies;
        // Lines that were counted have a note of their own.
        let is_counted = |kind: &&str| {
            result.trace.unreadable.is_some() && UNREADABLE.contains(kind)
                || [RESTART, WHOLE_RUN].contains(kind)
        };
        let kinds = all.iter().map(|a| a.kind.as_str());
        let kinds: BTreeSet<&str> = kinds.filter(|kind| !is_counted(kind)).collect();
        let words = |kind: &str| {
            let first = all.iter().find(|a| a.kind == kind && SHOWN.contains(&kind));
            let detail = first.map_or_else(String::new, |first| format!(" ({})", first.detail));
            format!("{}{detail}", kind.replace('_', " "))
        };
        let what: Vec<String> = kinds.into_iter().map(words).collect();
        if !what.is_empty() {
            found.push((repeat.repeat, what));
        }
    }
    by_repeat(found, |what, of| {
        let text = format!("{}: odd in the log: {}", named(of), what.join(", "));
        remark("odd_in_the_log", text)
    })
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
        let text = format!(
            "the measured parts begin between steps {first} and {last} of {steps}: the step time drifts, or settles later in some \
             repeats, so the repeats do not measure the same part of a run; a longer declared warm-up does"
        );
        Note::new(NoteKind::Doubtful, "measured_apart", text)
    })
}

/// Repeats that do not count, and why; those of one reason together.
fn outcomes(repeats: &[RepeatSummary]) -> Vec<Note> {
    let outcome = |repeat: &'_ RepeatSummary| {
        let why = repeat.why.clone()?;
        Some((repeat.repeat, (kind_of(&repeat.status), why)))
    };
    by_repeat(repeats.iter().filter_map(outcome), |(kind, why), of| {
        let told = match kind {
            NoteKind::Failed => String::new(),
            _ => format!("{} not counted: ", verb(of, "is", "are")),
        };
        let text = format!("{} {told}{why}", named(of));
        Note::new(kind, NOT_COUNTED, text).with("why", &*why.code)
    })
}

fn kind_of(status: &RepeatStatus) -> NoteKind {
    match status {
        RepeatStatus::Failed { .. } => NoteKind::Failed,
        RepeatStatus::Contradicted { .. } => NoteKind::Contradicted,
        RepeatStatus::Suspect { .. } => NoteKind::Suspect,
        RepeatStatus::Ok | RepeatStatus::Unmeasured { .. } => NoteKind::Remark,
    }
}

fn cross_check(repeat: &RepeatSummary) -> Option<Note> {
    let check = repeat
        .steady
        .as_ref()?
        .cross_check
        .as_ref()
        .filter(|c| !c.agrees)?;
    let text = format!(
        "repeat {}: the trainer prints {:.2} times our tokens/s per device; ours is the tokens of a step ÷ its time",
        repeat.repeat, check.ratio
    );
    let note = Note::new(NoteKind::Doubtful, "trainers_rate_differs", text);
    Some(note.with("ratio", check.ratio))
}

/// What is odd about the runs: each kind once, by its first case, with the repeats that have it.
fn anomalies_by_kind(
    repeats: &[RepeatSummary],
    results: &[(u32, RunResult)],
    statistics: &Statistics,
) -> impl Iterator<Item = Note> {
    let mut kinds: Vec<(&str, &str, Vec<u32>, bool)> = Vec::new();
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
                    *is_of_first |= *detail != anomaly.detail;
                }
                None => kinds.push((&anomaly.kind, &anomaly.detail, vec![*n], false)),
            }
        }
    }
    kinds.into_iter().map(|(kind, detail, of, is_of_first)| {
        let sort = match kind {
            SLOW_FIRST_STEPS => NoteKind::WarmUp,
            RATE_DISAGREES | ENDS_EARLY | CONSTANT_LOSS | WHOLE_RUN => NoteKind::Doubtful,
            _ => NoteKind::Remark,
        };
        let first = match of.first().filter(|_| is_of_first) {
            Some(first) => format!(" (figures of repeat {first})"),
            None => String::new(),
        };
        let text = format!("{}{first}: {detail}", named(&of));
        Note::new(sort, "anomaly", text)
            .with("anomaly", kind)
            .with("repeats", of)
    })
}

/// Is an anomaly of the step times not dealt with by the warm-up that is dropped?
fn is_left(
    anomaly: &Anomaly,
    repeat: &RepeatSummary,
    result: &RunResult,
    statistics: &Statistics,
) -> bool {
    let cut = repeat.steady.as_ref().and_then(|s| s.cut.as_ref());
    let assessed = cut.is_some_and(Cut::is_assessed);
    let is_shifted = cut.is_some_and(|cut| cut.level_shift.is_some());
    match anomaly.kind.as_str() {
        SLOW_FIRST_STEPS if repeat.steady.is_some() => {
            let timed = result
                .trace
                .steps
                .iter()
                .filter(|s| s.step_time_seconds.is_some_and(is_positive));
            let slow = slow_first_steps(&result.trace.steps);
            let counts_from = result.workload.counts_from;
            let through = timed
                .take(slow)
                .last()
                .map_or(0, |s| result.trace.ordinal(s, counts_from));
            !assessed && through > statistics.warmup_steps
        }
        "level_shift" => !assessed && !is_shifted,
        // At another level every later step is as odd.
        "last_step_outlier" => {
            let is_level_shift = |a: &Anomaly| a.kind == "level_shift";
            !is_shifted && (assessed || !result.anomalies.iter().any(is_level_shift))
        }
        _ => true,
    }
}

/// Where the measured part begins, if not after the declared warm-up.
fn more_warm_up(repeat: &RepeatSummary) -> Option<Note> {
    let steady = repeat.steady.as_ref()?;
    let cut = steady.cut.as_ref().filter(|cut| cut.dropped_steps > 0)?;
    let decimals = match steady.tokens_per_second_per_gpu < 100.0 {
        true => 3,
        false => 0,
    };
    let text = format!(
        "repeat {}: {} more of warm-up left out. Measured from step {}: {:.decimals$} tokens/s per device; with them {:.decimals$}",
        repeat.repeat,
        counted(cut.dropped_steps as usize, "step"),
        cut.first_step,
        steady.tokens_per_second_per_gpu,
        cut.declared_tokens_per_second_per_gpu
    );
    let note = Note::new(NoteKind::WarmUp, "more_warm_up", text);
    Some(note.with("steps", cut.dropped_steps))
}

/// Repeats that are too short to look for more warm-up.
fn not_assessed(counted: &[(&RepeatSummary, &RunResult)]) -> Vec<Note> {
    let found = counted
        .iter()
        .filter_map(|(r, _)| Some((r.repeat, r.cut()?.not_assessed.as_ref()?)));
    by_repeat(found, |why, of| {
        let text = format!(
            "{}too short to look for more warm-up than the declared one ({why})",
            whose(of, counted.len())
        );
        remark("too_short_to_assess", text)
    })
}

/// What is so of all repeats of several cells is one line below their table.
pub(crate) fn whose(of: &[u32], all: usize) -> String {
    match of.len() == all {
        true => String::new(),
        false => format!("{}: ", named(of)),
    }
}

/// Step times that change for good, in one note: of the repeat in which they change the most.
fn level_shifts(counted: &[(&RepeatSummary, &RunResult)]) -> Option<Note> {
    let repeats = || counted.iter().map(|(r, _)| *r);
    let shift = largest_shift(repeats())?;
    let shift_of = |r: &RepeatSummary| r.cut()?.level_shift.clone();
    let of = repeats().filter(|r| shift_of(r).is_some());
    let of: Vec<u32> = of.map(|r| r.repeat).collect();
    let mut own = repeats().filter(|r| shift_of(r).as_ref() == Some(shift));
    let first = own.next().filter(|_| of.len() > 1);
    let figures = first.map_or_else(String::new, |r| {
        format!(" (figures of repeat {})", r.repeat)
    });
    let text = format!("{}{figures}: {}", named(&of), shift_words(shift));
    let kind = match shift.ratio.ln().abs() >= LARGE_SHIFT.ln_1p() {
        true => NoteKind::Doubtful,
        false => NoteKind::Remark,
    };
    let note = Note::new(kind, LEVEL_SHIFT, text);
    Some(note.with("ratio", shift.ratio).with("repeats", of))
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
            let word = if change < 0.0 { "slower" } else { "faster" };
            let text = format!(
                "repeat {n} is {:.1} % {word} than the median of the other {}, which agree within {:.1} %; `tprimat logs CELL#{n}` \
                 shows its log",
                change.abs() * 100.0,
                others.len(),
                farthest * 100.0
            );
            let note = Note::new(NoteKind::Doubtful, "odd_repeat", text);
            notes.push(note.with("repeat", *n).with("change", change));
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
        let median = median.unwrap_or(mean);
        let limit = outlier_limit(&times, median).unwrap_or(f64::INFINITY);
        let slow: Vec<&(u64, f64)> = timed
            .iter()
            .filter(|(_, time)| time - median > limit)
            .collect();
        let longest = slow
            .iter()
            .max_by(|x, y| x.1.total_cmp(&y.1))
            .filter(|_| mean > PAUSES[0] * median);
        let sampled =
            is_sampled.then(|| format!("the log shows only every {} step", ordinal(every)));
        let Some((step, longest)) = longest else {
            notes.extend(sampled.map(|sampled| {
                let text = format!(
                    "repeat {}: {sampled}: pauses between them are not seen",
                    repeat.repeat
                );
                remark("sampled", text).with("every", every)
            }));
            continue;
        };
        let rate = steady.tokens_per_second_per_gpu;
        let share = slow.iter().map(|(_, time)| time).sum::<f64>() / times.iter().sum::<f64>();
        let times_counted = sampled.map_or_else(String::new, |sampled| format!("; {sampled}"));
        let text = format!(
            "repeat {}: {} of {} measured steps took {:.0} % of the time (up to {} at step {step}; the median is {}). At the median \
             it would be {:.0} instead of {rate:.0} tokens/s per device{times_counted}",
            repeat.repeat,
            slow.len(),
            times.len(),
            share * 100.0,
            step_time(*longest),
            step_time(median),
            rate * mean / median
        );
        let kind = if is_sampled || mean > PAUSES[1] * median {
            NoteKind::Doubtful
        } else {
            NoteKind::Remark
        };
        let note = Note::new(kind, "pauses", text);
        notes.push(note.with("repeat", repeat.repeat).with("share", share));
    }
    notes
}

/// What the n of the interval counts, where it is not the repeats.
fn replication(estimate: &Estimate, counted: &[(&RepeatSummary, &RunResult)]) -> Option<Note> {
    let (n, unit) = (estimate.units.len(), estimate.unit);
    let in_no_unit = counted.iter().filter(|(run, _)| !unit.has(run)).count();
    let units = unit.counted(n);
    let (ran, verdict, lack) = match unit {
        Unit::Repeat => return None,
        Unit::Host => (format!("on {units}"), String::new(), "name a host"),
        Unit::Session => {
            let hours = SESSION_GAP_SECONDS / 3600.0;
            let verdict = format!(
                ". A verdict needs {MIN_REPEATS} sessions in each cell, or one build of both with --force=measured"
            );
            let ran = format!("in {units} more than {hours:.0} hours apart");
            (ran, verdict, "state when it ran")
        }
    };
    let left_out = match in_no_unit {
        0 => String::new(),
        more => format!(". {more} more are left out, for their logs do not {lack}"),
    };
    let repeats = estimate.values.len() - in_no_unit;
    let text = format!(
        "the {repeats} repeats ran {ran}, and the interval is computed from {n} means{verdict}{left_out}"
    );
    Some(remark("replication", text).with("n", n))
}
