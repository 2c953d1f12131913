//! What a gate finds.

use tprimat_results::decimals_beside;
use tprimat_words::plain::counted;

use super::comparison::{
    absent, changed_setting, environment, gaps, impossible_rate, warm_up, warning,
};
use super::figures::{BaselineFault, Change, Dropped, GateNote, GateReason, Needed, When};
use super::results::difference as values;
use super::words::{evidence, one, units};

pub(super) fn reason(of: &GateReason) -> String {
    match of {
        GateReason::Said(text) => text.clone(),
        GateReason::Impossible(why) => impossible_rate(why),
        GateReason::Failed {
            class,
            evidence: line,
        } => {
            format!("failed ({}){}", class.name(), evidence(line.as_ref()))
        }
        GateReason::Absent { state, why } => absent(*state, why),
        GateReason::Contradicted { repeats } => {
            format!(
                "contradicted: {} did not run what was asked for",
                counted(*repeats, "repeat")
            )
        }
        GateReason::NotInBaseline => "not in the baseline".to_owned(),
        GateReason::NotMeasured(why) => {
            format!("not in the baseline, nor measured: {}", reason(why))
        }
        GateReason::NotInMatrix => "missing: the matrix no longer has it".to_owned(),
        GateReason::NotSelected => "not among the selected cells".to_owned(),
        GateReason::OtherOrigin { is_imported_now } => {
            let (now, then) = if *is_imported_now {
                ("imported", "measured")
            } else {
                ("measured", "imported")
            };
            format!("not comparable: {now} now, {then} in the baseline")
        }
        GateReason::OtherWorkload {
            fields,
            warm_up: steps,
        } => {
            let fields = fields.iter().map(values);
            let all: Vec<String> = fields.chain(steps.as_ref().map(warm_up)).collect();
            format!("another workload than the baseline's: {}", all.join("; "))
        }
        GateReason::FewUnits { now, then, least } => {
            let [now, then] = [now, then].map(|(n, unit)| units(*n, *unit));
            format!("{now} now and {then} then: a verdict needs {least} each")
        }
        GateReason::WorkloadNotKnown(found) => {
            let words = gaps(found, "the cell now", "the baseline");
            format!("{words}: it is unknown whether the workload is the same")
        }
        GateReason::SomeAreTheBaselines { known, of } => format!(
            "{known} of {} are the baseline's own: write a new baseline, or measure all of them anew",
            counted(*of, "repeat")
        ),
        GateReason::SameMeasurements { now, then } if now == then => {
            "the same measurements as the baseline: nothing was measured since".to_owned()
        }
        GateReason::SameMeasurements { now, then } => {
            format!(
                "the same measurements as the baseline, {now} of its {then}: nothing was measured since"
            )
        }
        GateReason::Slower { change } => {
            format!(
                "{}: beyond the limit of {}, and significant",
                interval(change),
                allowed(change)
            )
        }
        GateReason::NotSignificant {
            change,
            tested,
            needed: more,
        } => {
            let over = if *tested > 1 {
                format!(" after Holm's correction over {tested} cells")
            } else {
                String::new()
            };
            let (interval, allowed, needed) = (interval(change), allowed(change), needed(*more));
            format!(
                "{interval}: beyond the limit of {allowed}, but not significant{over}; {needed}"
            )
        }
        GateReason::WithinButSlower { change } => {
            format!(
                "{}: slower than the baseline, but within the limit of {}",
                interval(change),
                allowed(change)
            )
        }
        GateReason::Within { change } => {
            let (interval, allowed) = (interval(change), allowed(change));
            if change.ci95[0] > 1.0 {
                format!("{interval}: faster than the baseline; limit {allowed}")
            } else {
                format!("no significant change: {interval}; limit {allowed}")
            }
        }
        GateReason::CannotTell {
            change,
            needed: more,
        } => {
            let (interval, allowed, needed) = (interval(change), allowed(change), needed(*more));
            format!(
                "{interval}: these repeats cannot tell whether it is beyond the limit of {allowed}; {needed}"
            )
        }
        GateReason::ShortStepTimes {
            change,
            when,
            factor,
        } => {
            let of = match when {
                When::Then => "the baseline's step times",
                When::Now | When::Only => "its step times",
            };
            format!(
                "{}: {of} leave out time that passes after most steps, so that rate may be {factor:.1}× too high; let the timer stop \
                 when the device has finished, and measure anew",
                interval(change)
            )
        }
    }
}

/// `−3.21 % (95 % CI −4.12 to −2.30 %)`: the change of the rate, below 0 where it is slower.
fn interval(change: &Change) -> String {
    // As many decimals as show on which side of the limit it is; at the limit itself two.
    let percent = |ratio: f64| {
        let percent = (ratio - 1.0) * 100.0;
        let limit = -100.0 * change.max_regression;
        let decimals = if change.is_at_limit(ratio) {
            2
        } else {
            decimals_beside(percent, limit, 2)
        };
        format!("{percent:+.decimals$}").replace('-', "−")
    };
    let [low, high] = change.ci95.map(percent);
    format!("{} % (95 % CI {low} to {high} %)", percent(change.ratio))
}

/// `−3 %`
fn allowed(change: &Change) -> String {
    let percent = format!("{:.2}", change.max_regression * 100.0);
    match percent.trim_end_matches('0').trim_end_matches('.') {
        "0" => "0 %".to_owned(),
        percent => format!("−{percent} %"),
    }
}

fn needed(needed: Needed) -> String {
    match needed {
        Needed::About(n, unit) => {
            format!(
                "about {} now and in the baseline would tell, at this spread",
                units(n, unit)
            )
        }
        Needed::MoreThan(most, unit) => {
            format!(
                "more than {most} {}s would be needed to tell, at this spread",
                one(unit)
            )
        }
    }
}

pub(super) fn note(of: &GateNote) -> String {
    match of {
        GateNote::Said(text) => text.clone(),
        GateNote::SharesMeasurements { with } => {
            format!("shares its measurements with {with}: one test for both")
        }
        GateNote::Failed { repeats } => format!("{} failed", counted(*repeats, "repeat")),
        GateNote::Disturbed { repeats } => {
            format!("{} disturbed, so not counted", counted(*repeats, "repeat"))
        }
        GateNote::Unmeasured { repeats } => {
            let ended = counted(*repeats, "repeat");
            format!("{ended} ended with nothing to measure, so not counted")
        }
        GateNote::Warning(of) => warning(of),
        GateNote::AddedLater(when) => {
            let which = match when {
                When::Only => return "repeats were added after the first results were seen".into(),
                When::Now => "repeats measured now",
                When::Then => "baseline's repeats",
            };
            format!(
                "some of the {which} were added after the first results were seen: the interval assumes that their number was chosen before"
            )
        }
        GateNote::Dropped(when, dropped) => {
            let dropped = dropped_words(dropped).join(", ");
            match name(*when) {
                None => format!("there are runs that do not count: {dropped}"),
                Some(when) => format!(
                    "there are runs that do not count ({when}: {dropped}): the interval assumes that no run was chosen for \
                     its figures"
                ),
            }
        }
        GateNote::Field(difference) => values(difference),
        GateNote::WarmUp(difference) => warm_up(difference),
        GateNote::Environment(summary) => environment(summary, "the baseline"),
        GateNote::Device { now, then } => format!("device: {now} now, {then} then"),
        GateNote::Hosts { now, then } => {
            format!("hosts: {} now, {} then", now.join(", "), then.join(", "))
        }
        GateNote::MeasuredLater { seconds } => {
            let (n, unit) = hours_or_days(*seconds);
            format!(
                "measured {n:.0} {unit} after the baseline: what else changed on the hosts since then is not in the interval"
            )
        }
        GateNote::EvaluatedAnew => {
            "the rate is another one because the same runs are evaluated in another way".to_owned()
        }
        GateNote::Changed(changes) => {
            let changes: Vec<String> = changes.iter().map(changed_setting).collect();
            format!("changed since the baseline: {}", changes.join(", "))
        }
        GateNote::NotAttested { much_faster } => {
            let more = if *much_faster {
                ", so it may be this fast because it did less work; a log that states the batch size would show it"
            } else {
                ""
            };
            format!("some settings are only declared: the log does not confirm them{more}")
        }
    }
}

fn name(when: When) -> Option<&'static str> {
    match when {
        When::Only => None,
        When::Now => Some("now"),
        When::Then => Some("in the baseline"),
    }
}

/// `(8, "hours")`, `(30, "days")`
#[must_use]
pub fn hours_or_days(seconds: f64) -> (f64, &'static str) {
    let hours = seconds / 3600.0;
    if hours < 48.0 {
        (hours.round(), "hours")
    } else {
        ((hours / 24.0).round(), "days")
    }
}

/// `measured anew`, `1 set aside`: what is said of all repeats beside a figure.
#[must_use]
pub fn dropped_words(dropped: &[Dropped]) -> Vec<String> {
    let set_aside: usize = dropped.iter().map(|d| d.set_aside.len()).sum();
    let disturbed: u32 = dropped.iter().map(|d| d.disturbed).sum();
    let mut words = Vec::new();
    if dropped.iter().any(|d| d.remeasured > 0) {
        words.push("measured anew".to_owned());
    }
    if set_aside > 0 {
        words.push(format!("{set_aside} set aside"));
    }
    if disturbed > 0 {
        words.push(format!("{disturbed} disturbed and replaced"));
    }
    words
}

/// What is wrong with a baseline.
#[must_use]
pub fn fault(fault: &BaselineFault) -> String {
    match fault {
        BaselineFault::Twice { cell } => format!("`{cell}` is in it twice"),
        BaselineFault::NotPositive { cell } => {
            format!("the rates of `{cell}` are not all positive numbers")
        }
        BaselineFault::NotTheMean { cell, unit } => {
            format!(
                "the rate of `{cell}` is not the mean of its {}s",
                one(*unit)
            )
        }
    }
}
