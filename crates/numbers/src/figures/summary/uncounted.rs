//! Whether a run counts, and why it does not.

use crate::results::{
    FieldAttestation, NOT_HANDED_OVER, Reason, RunResult, settings::show, words::evidence,
};
use serde::Deserialize;
use serde_json::json;
use tprimat_job::FailureClass;

use super::{RepeatStatus, Statistics, summarize_repeat};
use crate::figures::codes::{self, CONTRADICTED, ENDS_EARLY, FAILED, NO_STEP, SUSPECT};
use crate::figures::windows::by_clock;

/// Why a run does not count, asked of one result before its cell is summed up; none where it does.
#[must_use]
pub fn why_uncounted(result: &RunResult, statistics: &Statistics) -> Option<Reason> {
    let timed = by_clock(result, statistics.warmup_steps);
    summarize_repeat(1, &timed, statistics).why
}

/// Why a run of this status does not count; none where it does.
pub(super) fn uncounted(status: &RepeatStatus, result: &RunResult) -> Option<Reason> {
    Some(match status {
        RepeatStatus::Ok => return None,
        RepeatStatus::Failed {
            class,
            evidence: lines,
        } => {
            let text = format!("failed{}{}", class.in_brackets(), evidence(lines.first()));
            Reason::excludes(FAILED, text).with("class", json!(class))
        }
        RepeatStatus::Contradicted { .. } => contradicted(result),
        RepeatStatus::Suspect { reason } => Reason::excludes(SUSPECT, reason),
        RepeatStatus::Unmeasured { reason } => reason.clone(),
    })
}

fn contradicted(result: &RunResult) -> Reason {
    let all = || result.attestation.contradicted();
    let is_imported = result.is_imported();
    let (file, asked) = if is_imported {
        ("file", "its label or its model says")
    } else {
        ("log", "the job asked for")
    };
    let what = if all().all(|field| field.declared.is_none()) {
        "itself"
    } else if is_imported {
        "its label, or the model that config.yaml has"
    } else {
        "the job"
    };
    let shown: Vec<String> = all().map(|of| field(of, asked)).collect();
    let text = format!("the {file} contradicts {what}: {}", shown.join("; "));
    let code = if all().any(has_no_step) {
        NO_STEP
    } else if all().all(|field| field.field == "steps_run") {
        ENDS_EARLY
    } else {
        CONTRADICTED
    };
    let fields: Vec<&str> = all().map(|field| &*field.field).collect();
    let reason = Reason::excludes(code, text).with("fields", fields);
    // What a job could take over.
    let is_setting = |of: &&FieldAttestation| of.declared.is_some() && of.arithmetic.is_none();
    let stated = all().filter(is_setting);
    let stated = stated.filter_map(|of| Some((of.field.to_string(), of.effective.clone()?)));
    match is_imported || code != CONTRADICTED {
        true => reason,
        false => reason.with("stated", stated.collect::<serde_json::Map<_, _>>()),
    }
}

fn has_no_step(field: &FieldAttestation) -> bool {
    let steps = field.effective.as_ref().and_then(serde_json::Value::as_u64);
    field.field == "steps_run" && steps == Some(0)
}

/// What contradicts what, with the numbers. `asked`: who wanted the declared value.
fn field(attestation: &FieldAttestation, asked: &str) -> String {
    let FieldAttestation {
        field,
        declared,
        effective,
        arithmetic,
        ..
    } = attestation;
    let (Some(wanted), Some(found)) = (declared, effective) else {
        return match arithmetic {
            Some(arithmetic) => format!("{field}: {arithmetic}"),
            None => field.clone(),
        };
    };
    let (wanted, found) = (show(Some(wanted)), show(Some(found)));
    match arithmetic {
        Some(arithmetic) => format!("{field}: {arithmetic}"),
        None if has_no_step(attestation) => {
            format!("no training step was found in the log ({wanted} were asked for)")
        }
        None if field == "steps_run" => {
            format!("by its log the run came to step {found}; {asked} {wanted} steps")
        }
        None => format!("the trainer says {field} {found}; {asked} {wanted}"),
    }
}

/// How a run failed, where that is why it does not count.
#[must_use]
pub fn failure_class(why: &Reason) -> Option<FailureClass> {
    let class = why.values.get("class").filter(|_| why.is(FAILED))?;
    FailureClass::deserialize(class).ok()
}

/// Would every run that is launched the same come to this? It follows from what the trainer does and
/// prints, not from what else went on: another run would be spent in vain. One step, one pause or
/// another repeat decides the other reasons.
#[must_use]
pub fn comes_again(why: &Reason) -> bool {
    const ALWAYS: [&str; 15] = [
        CONTRADICTED,
        NO_STEP,
        ENDS_EARLY,
        NOT_HANDED_OVER,
        codes::TOKENS_NOT_KNOWN,
        codes::LENGTH_NOT_KNOWN,
        codes::BATCH_NOT_KNOWN,
        codes::DEVICES_NOT_KNOWN,
        codes::MIXED_UNITS,
        codes::NO_STEP_IS_TIMED,
        codes::ALL_WITHIN_WARM_UP,
        codes::LONGER_THAN_RUN,
        codes::LONGER_THAN_PASSED,
        codes::TIMES_OF_SEVERAL_STEPS,
        codes::TIMER_STOPS_EARLY,
    ];
    match failure_class(why) {
        Some(class) => class.is_deterministic(),
        None => ALWAYS.contains(&&*why.code),
    }
}

#[cfg(test)]
mod tests {
    use crate::results::AttestationStatus;

    use super::*;

    #[test]
    fn a_contradiction_is_said_with_both_values() {
        let of = |name: &str, declared: u64, effective: u64| FieldAttestation {
            field: name.to_owned(),
            declared: Some(declared.into()),
            effective: Some(effective.into()),
            status: AttestationStatus::Contradicted,
            arithmetic: None,
        };
        assert_eq!(
            field(&of("seq_length", 128, 256), "the job asked for"),
            "the trainer says seq_length 256; the job asked for 128"
        );
        let none = field(&of("steps_run", 8, 0), "the job asked for");
        assert!(none.starts_with("no training step was found in the log (8 were"));
    }
}
