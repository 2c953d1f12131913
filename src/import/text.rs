//! What `import` says of a run: its rate or why it has none, what contradicts its labels, what is odd.

use std::{collections::BTreeSet, fmt::Write};

use super::{ImportedRun, listed};
use crate::{
    figures::{Clock, RepeatStatus, Statistics, codes, rate_unit_of, summarize, unit_in_prose},
    job::RunOutcome,
    logs::Anomaly,
    report::number,
    results::{AttestationStatus, FieldAttestation, anomalies::SLOW_FIRST_STEPS, settings::show},
    words::plain::counted,
};

/// One run in a line, with what contradicts it and what is odd below.
#[must_use]
pub fn brief(cell: &str, run: &ImportedRun, statistics: &Statistics) -> String {
    let result = &run.result;
    let fields = &result.attestation.fields;
    let evidence = match &result.outcome {
        RunOutcome::Failed { evidence, .. } => &evidence[..],
        RunOutcome::Ok => &[],
    };
    let mark = match (&result.outcome, result.attestation.status) {
        (RunOutcome::Failed { class, .. }, _) => format!("failed{}", class.in_brackets()),
        (_, AttestationStatus::Contradicted) => "CONTRADICTED".to_owned(),
        (_, AttestationStatus::Attested) => "attested".to_owned(),
        (_, AttestationStatus::NotStated) => "not attested".to_owned(),
    };
    let repeat = summarize(&[(1, result.clone())], statistics)
        .repeats
        .remove(0);
    let rate = match (repeat.status.why_not(), &repeat.steady) {
        (None, Some(steady)) => format!(
            ", {} {} over {}",
            number(steady.tokens_per_second_per_gpu),
            unit_in_prose(rate_unit_of([cell])),
            counted(steady.steps as usize, "step")
        ),
        // The mark says that it failed, and how.
        (Some(_), _) if result.outcome != RunOutcome::Ok => String::new(),
        (Some(why), None) => format!(", no rate: {why}"),
        (Some(why), Some(_)) => format!(", does not count: {why}"),
        (None, None) => String::new(),
    };
    let is = |status| move |field: &&FieldAttestation| field.status == status;
    let fields = || fields.iter();
    let confirmed = fields().filter(is(AttestationStatus::Attested)).count();
    let mut out = format!(
        "{cell}#{}  imported from {}: {mark}{rate}, {} confirmed by the file\n",
        run.number,
        run.recorded.from(),
        counted(confirmed, "setting")
    );
    if let Some(factor) = repeat.clock.as_ref().and_then(Clock::timer_factor) {
        _ = writeln!(
            out,
            "  its rate may be {factor:.1}× too high: by the clock, its step times leave out time that passes between steps"
        );
    }
    const SUPPLIABLE: [&str; 3] = [
        codes::LENGTH_NOT_KNOWN,
        codes::BATCH_NOT_KNOWN,
        codes::DEVICES_NOT_KNOWN,
    ];
    if let RepeatStatus::Unmeasured { reason } = &repeat.status
        && SUPPLIABLE.iter().any(|code| reason.is(code))
    {
        let examples = [
            ("seq_length", "4096"),
            ("global_batch_size", "128"),
            ("num_gpus", "8"),
        ];
        let lacking = examples
            .iter()
            .filter(|(name, _)| result.contract.get(name).is_none());
        let words: Vec<String> = lacking
            .map(|(name, value)| format!("--set {name}={value}"))
            .collect();
        if !words.is_empty() {
            _ = writeln!(
                out,
                "  --set supplies what the file lacks, as in `{}`",
                words.join(" ")
            );
        }
    }
    let supplied = run.supplied();
    if !supplied.is_empty() {
        _ = writeln!(
            out,
            "  supplied on import, and not stated by the file: {}",
            listed(&supplied)
        );
    }
    for line in evidence {
        _ = writeln!(out, "  {line}");
    }
    for field in fields().filter(is(AttestationStatus::Contradicted)) {
        let values = || {
            let [claimed, logged] = [&field.declared, &field.effective].map(|v| show(v.as_ref()));
            format!("claimed {claimed}, the log says {logged}")
        };
        let says = field.arithmetic.clone().unwrap_or_else(values);
        _ = writeln!(out, "  contradicted {}: {says}", field.field);
    }
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let all = result.anomalies.iter().chain(&result.trace.anomalies);
    for Anomaly { kind, detail, .. } in all.filter(|found| told.insert(&found.detail)) {
        // The first steps of every run are slow; that is what warm-up is for.
        if kind != SLOW_FIRST_STEPS {
            _ = writeln!(out, "  {}: {detail}", kind.replace('_', " "));
        }
    }
    out
}
