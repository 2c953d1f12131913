//! Sentences on runs, and on a cell's runs together.

use tprimat_results::{FieldDifference, MIN_REPEATS, decimals_beside, settings::show};
use tprimat_words::plain::counted;

use super::figures::{
    Contradiction, DeviceSet, Disturbance, LogAnomaly, NoEnergy, NoRate, NoTelemetry, NotAssessed,
    NotCounted, OutsideSteps, RepeatStatus, RunFact, SESSION_GAP_SECONDS, Unchecked, Unit,
    WhoseClock,
};
use super::results::{field, no_samples, oddity, step_time_source, withheld};
use super::words::{evidence, list, one, repeats, seconds, step_time, units, verb};

pub(super) fn fact(fact: &RunFact) -> String {
    match fact {
        RunFact::NotCounted { repeats, why } => not_counted(repeats, why),
        RunFact::TrainersRateDiffers { repeat, ratio } => format!(
            "repeat {repeat}: the trainer prints {ratio:.2} times our tokens/s per device; ours is the tokens of a step ÷ its time"
        ),
        RunFact::MoreWarmUp {
            repeat,
            steps,
            method,
            first_step,
            rate,
            with_them,
        } => {
            let decimals = if rate.min(*with_them) < 100.0 { 3 } else { 0 };
            let (more, left_out) = match steps {
                1 => ("1 more step was".to_owned(), "is"),
                n => (format!("{n} more steps were"), "are"),
            };
            format!(
                "repeat {repeat}: {more} still warming up (found by {method}) and {left_out} left out. Measured from step \
                 {first_step}: {rate:.decimals$} tokens/s per device; with them {with_them:.decimals$}"
            )
        }
        RunFact::LevelShift {
            repeat,
            step,
            ratio,
        } => {
            let percent = (ratio - 1.0) * 100.0;
            let decimals = decimals_beside(percent, 0.0, 1);
            format!(
                "repeat {repeat}: the median step time changes by {percent:+.decimals$} % near step {step} and stays there: the \
                 rate is a mean of both"
            )
        }
        RunFact::TooShortToAssess { repeats, all, why } => {
            let which = match repeats.len() {
                _ if *all => "the repeats are".to_owned(),
                1 => format!("repeat {} is", repeats[0]),
                _ => format!("repeats {} are", list(repeats)),
            };
            let why = not_assessed(why);
            format!("{which} too short to look for more warm-up than the declared one ({why})")
        }
        RunFact::MeasuredApart { first, last, steps } => format!(
            "the measured parts begin between steps {first} and {last} of {steps}: the step time drifts, or settles later in some \
             repeats, so the repeats do not measure the same part of a run; a longer declared warm-up does"
        ),
        RunFact::OddRepeat {
            repeat,
            change,
            others,
            farthest,
        } => {
            let word = if *change < 0.0 { "slower" } else { "faster" };
            format!(
                "repeat {repeat} is {:.1} % {word} than the median of the other {others}, which agree within {:.1} %; `tprimat \
                 logs CELL#{repeat}` shows its log",
                change.abs() * 100.0,
                farthest * 100.0
            )
        }
        RunFact::Pauses {
            repeat,
            slow,
            measured,
            share,
            step,
            longest,
            median,
            rate,
            rate_at_median,
            every,
        } => {
            let counted = every.map_or_else(String::new, |every| {
                format!(
                    "; {}, so a pause in one of them counts {every} times",
                    sampled(every)
                )
            });
            let (share, longest, median) = (share * 100.0, step_time(*longest), step_time(*median));
            format!(
                "repeat {repeat}: {slow} of {measured} measured steps took {share:.0} % of the time (up to {longest} at step {step}; \
                 the median is {median}). At the median it would be {rate_at_median:.0} instead of {rate:.0} \
                 tokens/s per device{counted}"
            )
        }
        RunFact::Sampled { repeat, every } => {
            format!(
                "repeat {repeat}: {}: pauses between them are not seen",
                sampled(*every)
            )
        }
        RunFact::Anomaly {
            repeats: of,
            detail,
            is_of_first,
        } => {
            let first = of.first().filter(|_| *is_of_first);
            let first =
                first.map_or_else(String::new, |first| format!(" (figures of repeat {first})"));
            format!("{}{first}: {}", repeats(of), oddity(detail))
        }
        RunFact::UnreadableLines {
            repeats: of,
            count,
            first,
        } => {
            let lines = match count {
                1 => format!("line {first} of the log is damaged; what it said is"),
                _ => format!(
                    "{count} lines of the log are damaged (the first is line {first}); what they said is"
                ),
            };
            format!("{}: {lines} missing from the figures", repeats(of))
        }
        RunFact::OddInTheLog { repeats: of, what } => {
            let word = |LogAnomaly { kind, detail }: &LogAnomaly| {
                if kind == "end_status" {
                    return "the trainer's last event does not say how it ended".to_owned();
                }
                let detail = detail
                    .as_ref()
                    .map(|detail| format!(" ({detail})"))
                    .unwrap_or_default();
                format!("{}{detail}", kind.replace('_', " "))
            };
            let what = what.iter().map(word).collect::<Vec<_>>().join(", ");
            format!("{}: odd in the log: {what}", repeats(of))
        }
        RunFact::StepTimesAre {
            repeats: of,
            source,
        } => {
            format!(
                "{}: the log has no step times; they are {}",
                repeats(of),
                step_time_source(source)
            )
        }
        RunFact::OneRepeat => "one repeat gives no interval".to_owned(),
        RunFact::NoVariation => "the repeats do not vary, so there is no interval".to_owned(),
        RunFact::Replication {
            repeats,
            units: n,
            unit,
            in_no_unit,
        } => {
            let (where_, these, apart) = match unit {
                Unit::Host => ("on", units(*n, *unit), String::new()),
                _ => (
                    "in",
                    units(*n, *unit),
                    format!(" more than {:.0} hours apart", SESSION_GAP_SECONDS / 3600.0),
                ),
            };
            let verdict = match unit {
                Unit::Session => format!(
                    ". A verdict needs {MIN_REPEATS} sessions in each cell, or one build of both with --force=measured"
                ),
                _ => String::new(),
            };
            let lack = match unit {
                Unit::Session => "state when it ran",
                _ => "name its host",
            };
            let left_out = match in_no_unit {
                0 => String::new(),
                1 => format!(
                    ". The log of 1 other repeat does not {lack}, so the rate, its interval and the step time are computed \
                     without that repeat"
                ),
                more => format!(
                    ". The logs of {more} other repeats do not {}, so the rate, its interval and the step time are computed \
                     without those repeats",
                    lack.replace("it ran", "they ran").replace("its", "their")
                ),
            };
            let unit = one(*unit);
            format!(
                "the {repeats} repeats ran {where_} {these}{apart}; the interval is computed from the {n} {unit} means (n = \
                 {n}){verdict}{left_out}"
            )
        }
        RunFact::TokensDeclared => {
            "the log does not state the tokens of a step, so those that were asked for are used"
                .to_owned()
        }
        RunFact::TokensDerived => {
            "the tokens of a step are computed from the trainer's own rate and step time".to_owned()
        }
        RunFact::AddedLater { repeats, planned } => {
            let names: Vec<String> = repeats.iter().map(u32::to_string).collect();
            let (names, were) = match names.split_last() {
                Some((last, rest)) if !rest.is_empty() => {
                    (format!("repeats {} and {last}", rest.join(", ")), "were")
                }
                _ => (format!("repeat {}", names.concat()), "was"),
            };
            format!(
                "{names} {were} added after the results of {planned} were seen: intervals assume that the number was fixed \
                 beforehand"
            )
        }
        RunFact::SeveralSetsOfDevices(sets) => {
            let set = |DeviceSet {
                           device,
                           more,
                           repeats: of,
                       }: &DeviceSet| {
                let more = if *more > 0 {
                    format!(" and {more} more")
                } else {
                    String::new()
                };
                format!("{device}{more} ({})", repeats(of))
            };
            let told: Vec<String> = sets.iter().map(set).collect();
            format!(
                "the repeats ran on {} different sets of devices: {}",
                sets.len(),
                told.join("; ")
            )
        }
        RunFact::OutsideSteps {
            repeats: of,
            cause,
            outside,
            passed,
            factor,
        } => {
            let most = verb(of, "", "up to ");
            let why = match cause {
                OutsideSteps::Pauses => "in pauses, as evaluations and checkpoints are".to_owned(),
                OutsideSteps::Timer => {
                    let factor = factor.unwrap_or(passed / (passed - outside));
                    format!(
                        "after most steps, where {factor:.1}× the step time passes from one to the next, so the trainer may stop its \
                         timer before the device has finished, and the rate may be {factor:.1}× too high"
                    )
                }
                OutsideSteps::NotKnown => {
                    "evaluations, checkpoints, or a timer that stops before the device has finished"
                        .to_owned()
                }
            };
            let (of, outside, passed) = (repeats(of), seconds(*outside), seconds(*passed));
            format!("{of}: {most}{outside} of {passed} lie outside the reported step times: {why}")
        }
        RunFact::Unchecked { repeats: of, why } => {
            let of = match &of[..] {
                [] => String::new(),
                of => format!("{}: ", repeats(of)),
            };
            format!(
                "{of}the speed was not checked against the clock, because {}",
                unchecked(why)
            )
        }
        RunFact::NoTelemetry { repeats: of, why } => {
            format!("{}: no telemetry: {}", repeats(of), no_telemetry(why))
        }
        RunFact::NoEnergy { repeats: of, why } => {
            format!("{}: no energy: {}", repeats(of), no_energy(why))
        }
        RunFact::ClocksLowered {
            reason,
            low,
            high,
            repeats,
            of,
        } => {
            let [low, high] = [low, high].map(|share| format!("{:.0}", share * 100.0));
            let range = if low == high {
                high
            } else {
                format!("{low}–{high}")
            };
            let of = if repeats == of {
                String::new()
            } else {
                format!(" of {repeats} of {of} repeats")
            };
            if reason == "sw_power_cap" {
                format!("ran at its power cap in {range} % of the samples{of}")
            } else {
                format!("clocks were lowered ({reason}) in {range} % of the samples{of}")
            }
        }
        RunFact::NoWarmUp => "no warm-up is declared, so no step is dropped".to_owned(),
        RunFact::RepeatsDisagree { fields } => {
            format!("the repeats do not agree on {}", fields.join(", "))
        }
        RunFact::UnknownSetting {
            repeats: of,
            name,
            meant,
        } => format!(
            "{}: the log states `{name}`, which is not the name of a setting, so nothing was compared with it; \
             perhaps `{meant}` is meant",
            repeats(of)
        ),
        RunFact::MeasuredAnew {
            repeats: of,
            measurements,
        } => {
            let earlier = match measurements {
                1 => "the earlier result does".to_owned(),
                n => format!("the {n} earlier results do"),
            };
            let (of, were) = (repeats(of), verb(of, "was", "were"));
            format!(
                "{of} {were} measured again on request (--force=measured); {earlier} not count. Intervals assume that nobody picked the \
                 better ones"
            )
        }
        RunFact::SetAside { repeat, why } => {
            format!("a run of repeat {repeat} was set aside by hand: {why}")
        }
        RunFact::MeasuredAgain {
            repeats: of,
            disturbed,
        } => {
            let runs = counted(*disturbed as usize, "run");
            let were = verb(of, "was", "were");
            format!(
                "{} {were} measured again after something else disturbed {runs}",
                repeats(of)
            )
        }
        RunFact::PublishedRateDiffers {
            repeat,
            published,
            ours,
            dropped_steps,
        } => format!(
            "repeat {repeat}: the file publishes {published:.0} tokens/s per device; its labels and steps, {dropped_steps} of warm-up \
             dropped, give {ours:.0}"
        ),
    }
}

fn sampled(every: u64) -> String {
    let every = ordinal(every);
    format!(
        "the log shows only every {every} step, and its times are taken as those of single steps"
    )
}

fn passed_by(passed: f64, clock: WhoseClock) -> String {
    let passed = seconds(passed);
    match clock {
        WhoseClock::Trainer => format!("{passed} passed by the trainer's own clock"),
        WhoseClock::Lines => format!("{passed} passed by tprimat's clock"),
        WhoseClock::Run => format!("the run took {passed}"),
    }
}

fn ordinal(n: u64) -> String {
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}

fn not_counted(of: &[u32], why: &NotCounted) -> String {
    let reason = uncounted(why);
    match why {
        NotCounted::Failed { .. } => format!("{} {reason}", repeats(of)),
        _ => format!(
            "{} {} not counted: {reason}",
            repeats(of),
            verb(of, "is", "are")
        ),
    }
}

/// Why a repeat does not count, in short; nothing where it does.
#[must_use]
pub fn why_not(status: &RepeatStatus) -> Option<String> {
    match status {
        RepeatStatus::Ok => None,
        RepeatStatus::Contradicted { fields } => Some(format!(
            "the log contradicts itself or the job in {}",
            fields.join(", ")
        )),
        RepeatStatus::Suspect { reason } => Some(reason.clone()),
        RepeatStatus::Unmeasured { reason } => Some(no_rate(reason)),
        RepeatStatus::Failed { class, .. } => Some(format!("failed ({})", class.name())),
    }
}

/// Why a run does not count: `the log contradicts the job: …`
#[must_use]
pub fn uncounted(why: &NotCounted) -> String {
    match why {
        NotCounted::Failed {
            class,
            evidence: line,
        } => format!("failed ({}){}", class.name(), evidence(line.as_ref())),
        NotCounted::Contradicted { by, fields } => {
            let asked = if by.is_imported() {
                "its label or its model says"
            } else {
                "the job asked for"
            };
            let what = match by {
                Contradiction::Job => "the job",
                Contradiction::Labels => "its label, or the model that config.yaml has",
                Contradiction::Itself { .. } => "itself",
            };
            let shown: Vec<String> = fields.iter().map(|of| field(of, asked)).collect();
            let file = if by.is_imported() { "file" } else { "log" };
            format!("the {file} contradicts {what}: {}", shown.join("; "))
        }
        NotCounted::Suspect(reason) => reason.clone(),
        NotCounted::NoRate(why) => no_rate(why),
    }
}

pub(super) fn no_rate(why: &NoRate) -> String {
    match why {
        NoRate::Said(text) => text.clone(),
        NoRate::Stated(why) => withheld(why),
        NoRate::AbsurdTime(detail) => format!("{detail}, which cannot be a step time"),
        NoRate::OtherWorkloads {
            repeats: [a, b],
            fields,
        } => {
            let value = |field: &FieldDifference| {
                format!(
                    "{} ({} in repeat {a}, {} in repeat {b})",
                    field.field,
                    show(field.a.as_ref()),
                    show(field.b.as_ref())
                )
            };
            let fields: Vec<String> = fields.iter().map(value).collect();
            format!(
                "the repeats do not agree on {}, so they measure different work",
                fields.join(", ")
            )
        }
        NoRate::TokensNotKnown => "tokens of an optimiser step are not known".to_owned(),
        NoRate::DevicesNotKnown => "the number of devices is not known".to_owned(),
        NoRate::MixedUnits { low, high } => {
            let three_digits = |seconds: f64| format!("{seconds:.2e}").parse().unwrap_or(seconds);
            let (low, high) = (three_digits(*low), three_digits(*high));
            format!("step times of about {low} s and of about {high} s in one log: mixed units?")
        }
        NoRate::BeyondComputing => "the step times are beyond what can be computed with".to_owned(),
        NoRate::BadTime { step, seconds } => {
            format!("step {step} has a time of {seconds} s, which cannot be")
        }
        NoRate::NoStep => "no training step was found in the log".to_owned(),
        NoRate::NoStepIsTimed { steps } => {
            format!(
                "none of the {steps} steps has a time (`step_time_seconds` in an event), so there is no rate"
            )
        }
        NoRate::AllWithinWarmUp {
            timed,
            warmup_steps,
        } => {
            let which = match timed {
                1 => "the only timed step is".to_owned(),
                n => format!("all {n} timed steps are"),
            };
            let warm_up = counted(*warmup_steps as usize, "step");
            format!("{which} within the declared warm-up of {warm_up}, so there is no rate")
        }
        NoRate::LongerThanRun { claimed, run } => {
            format!(
                "the log claims {} of steps in a run of {}",
                seconds(*claimed),
                seconds(*run)
            )
        }
        NoRate::ShorterThanAMicrosecond { seconds } => {
            format!(
                "the log claims a step of {seconds:e} s, and no step is shorter than a microsecond"
            )
        }
        NoRate::LongerThanPassed {
            claimed,
            passed,
            clock,
        } => {
            let (claimed, passed) = (seconds(*claimed), passed_by(*passed, *clock));
            format!("the log claims {claimed} of steps while {passed}")
        }
        NoRate::SlowStepsShownMoreOften {
            claimed,
            passed,
            clock,
        } => {
            let (claimed, passed) = (seconds(*claimed), passed_by(*passed, *clock));
            format!(
                "the log shows only some of the steps, and by these all would take {claimed}, but {passed}: slow steps are logged \
                 more often than others"
            )
        }
        NoRate::TimesOfSeveralSteps {
            every,
            claimed,
            passed,
            clock,
        } => {
            let (claimed, passed) = (seconds(*claimed), passed_by(*passed, *clock));
            format!(
                "the log shows only every {} step, and at the times that it prints all steps would take {claimed}, but {passed}: each \
                 time seems to be that of {every} steps, and the trainer must print that of one step",
                ordinal(*every)
            )
        }
        NoRate::TimerStopsEarly {
            claimed,
            passed,
            by_lines,
        } => {
            let (claimed, passed) = (step_time(*claimed), step_time(*passed));
            let clock = if *by_lines {
                "tprimat's clock"
            } else {
                "the trainer's own clock"
            };
            format!(
                "the log claims {claimed} a step, but {passed} pass from one to the next by {clock}: the trainer may stop its timer \
                 before the device has finished"
            )
        }
    }
}

pub(super) fn unchecked(why: &Unchecked) -> String {
    match why {
        Unchecked::Said(text) => text.clone(),
        Unchecked::NoDates => "the log does not say when its steps ended".to_owned(),
        Unchecked::BadDates => {
            "the dates of its steps go back, stand still or are not in seconds".to_owned()
        }
        Unchecked::HeldBack => {
            "most lines of the log came several at a time: the trainer should write each line at once (for Python, PYTHONUNBUFFERED=1)"
                .to_owned()
        }
        Unchecked::TooShort => {
            "lines of several steps came between two looks at the log (ten a second): the steps are short, or the trainer holds its lines back"
                .to_owned()
        }
        Unchecked::FewSteps { least } => {
            format!("the log has fewer than {least} measured steps")
        }
        Unchecked::Evaluations { least } => format!(
            "fewer than {least} measured steps follow another one without an evaluation in between"
        ),
    }
}

pub(super) fn not_assessed(why: &NotAssessed) -> String {
    match why {
        NotAssessed::Said(text) => text.clone(),
        NotAssessed::FewSteps { least } => {
            format!("under {least} timed steps after the declared warm-up")
        }
        NotAssessed::FewTimes { least } => {
            format!("under {least} logged times after the declared warm-up")
        }
        NotAssessed::FewSeconds { least } => {
            format!("under {least:.0} s after the declared warm-up")
        }
    }
}

pub(super) fn no_telemetry(why: &NoTelemetry) -> String {
    match why {
        NoTelemetry::Said(text) => text.clone(),
        NoTelemetry::NotSampled(why) => no_samples(why),
        NoTelemetry::NoStepIsMeasured => "no step is measured".to_owned(),
        NoTelemetry::EndsNotKnown => "it is not known when the measured steps ended".to_owned(),
        NoTelemetry::ClockDisagrees { measured, passed } => {
            format!(
                "the measured steps take {measured:.1} s, but {passed:.1} s passed between their lines in the log"
            )
        }
    }
}

pub(super) fn no_energy(why: &NoEnergy) -> String {
    let missing = |which: &str, seconds: &f64| {
        format!("no sample was taken in the {which} {seconds:.1} s of the measured part")
    };
    match why {
        NoEnergy::Said(text) => text.clone(),
        NoEnergy::TooShort { seconds, interval } => {
            format!("{seconds:.1} s are too short for samples every {interval:.0} s")
        }
        NoEnergy::NoSample => "no sample was taken while the steps were measured".to_owned(),
        NoEnergy::NoSampleAtTheBeginning { seconds } => missing("first", seconds),
        NoEnergy::NoSampleAtTheEnd { seconds } => missing("last", seconds),
        NoEnergy::SumsTooLong { seconds, sums_over } => format!(
            "{seconds:.1} s are too short a part of so long a run: its samples are kept in sums over {sums_over:.0} s"
        ),
        NoEnergy::GapAtAnEnd { seconds } => {
            format!("the measured part begins or ends in {seconds:.1} s without a sample")
        }
        NoEnergy::NotOfEveryDevice => {
            "neither the energy counter nor the power of every device is known throughout"
                .to_owned()
        }
    }
}

/// `its GPU gpu-1b2c3d4e was also used by process 4711 (python3)`; none of none.
#[must_use]
pub fn disturbances<'a>(all: impl IntoIterator<Item = &'a Disturbance>) -> Option<String> {
    let all: Vec<String> = all.into_iter().map(disturbance).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn disturbance(disturbance: &Disturbance) -> String {
    match disturbance {
        Disturbance::OtherProcesses {
            device,
            shared,
            devices,
            pid,
            name,
            more,
        } => {
            let name = name
                .as_ref()
                .map(|name| format!(" ({name})"))
                .unwrap_or_default();
            let more = match more {
                0 => String::new(),
                1 => " and another process".to_owned(),
                n => format!(" and {n} other processes"),
            };
            let whose = match device {
                Some(device) => format!("its GPU {device} was"),
                None => format!("{shared} of its {devices} GPUs were"),
            };
            format!("{whose} also used by process {pid}{name}{more}")
        }
        Disturbance::ClocksLowered { reasons, share } => {
            format!(
                "clocks were lowered ({}) in {:.0} % of the samples",
                reasons.join(", "),
                share * 100.0
            )
        }
        Disturbance::MemoryTaken { pid, used } => {
            format!("process {pid} had {used} of its GPU's memory")
        }
    }
}
