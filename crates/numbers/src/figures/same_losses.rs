//! Cells that are said to train otherwise and whose logs have the same losses to the last digit: the setting did not reach the
//! training, whatever a command was given.

use std::collections::{BTreeSet, HashMap};

use super::{RepeatStatus, codes::CONTRADICTED, comparability::Candidate};
use serde_json::Value;

use crate::results::{
    Reason, Source,
    settings::{agree, show},
};

/// Two curves are called the same if at least 10 losses agree and at least 8 of these are different numbers.
/// Shorter or rounded curves may agree by chance.
const LEAST_STEPS: usize = 10;
const LEAST_VALUES: usize = 8;

/// What decides which tokens a step sees, and with them its loss.
const OF_BATCHES: [&str; 2] = ["global_batch_size", "seq_length"];

/// What changes losses within a few steps. A decay of weights takes longer to show, and a seed may be ignored on purpose.
const OF_LOSSES: [&str; 5] = [
    OF_BATCHES[0],
    OF_BATCHES[1],
    "precision",
    "learning_rate",
    "dropout",
];

/// Why the setting of a candidate did not reach its training; none for most.
pub(super) fn unreached(candidates: &[Candidate<'_>]) -> Vec<Option<Reason>> {
    let mut alike: HashMap<Vec<(u64, u64)>, Vec<usize>> = HashMap::new();
    for (at, candidate) in candidates.iter().enumerate() {
        if let Some(losses) = losses(candidate) {
            alike.entry(losses).or_default().push(at);
        }
    }
    let mut found: Vec<Option<Reason>> = candidates.iter().map(|_| None).collect();
    for (losses, members) in &alike {
        // One of each kind stands for all: of many cells with one curve most differ in other settings.
        let mut kinds: Vec<usize> = Vec::new();
        for &at in members {
            let is_like = |of: &Candidate<'_>| {
                let is_imported = |of: &Candidate<'_>| !of.cell.imported.is_empty();
                let other = &candidates[at];
                said(of) == said(other) && is_imported(of) == is_imported(other)
            };
            if !kinds.iter().any(|of| is_like(&candidates[*of])) {
                kinds.push(at);
            }
        }
        for &at in members {
            // What was measured here is not refuted by a file that came under another name.
            let is_heard = |other: &&Candidate<'_>| {
                !candidates[at].cell.imported.is_empty() || other.cell.imported.is_empty()
            };
            let others = kinds.iter().map(|other| &candidates[*other]);
            found[at] = others
                .filter(is_heard)
                .filter_map(|other| reason(&candidates[at], other, losses.len()))
                .next();
        }
    }
    found
}

/// What a cell says of these settings, where its trainer does not: what that states is held against its log elsewhere.
fn said<'c>(candidate: &'c Candidate<'_>) -> [Option<&'c Value>; OF_LOSSES.len()] {
    OF_LOSSES.map(|field| {
        let source = candidate.contract.source(field)?;
        (source != Source::Effective).then(|| candidate.contract.get(field))?
    })
}

/// The step numbers and losses of the first run that counts, the losses as bits. None where the curve is short or hardly changes, for
/// then two trainings may agree by chance.
fn losses(candidate: &Candidate<'_>) -> Option<Vec<(u64, u64)>> {
    let mut counted = candidate.summary.repeats.iter();
    let first = counted.find(|repeat| repeat.status == RepeatStatus::Ok)?;
    let steps = first.curve.step.iter().zip(&first.curve.loss);
    let losses: Vec<(u64, u64)> = steps
        .filter_map(|(step, loss)| Some((*step, (*loss)?.to_bits())))
        .collect();
    let values: BTreeSet<u64> = losses.iter().map(|(_, loss)| *loss).collect();
    (losses.len() >= LEAST_STEPS && values.len() >= LEAST_VALUES).then_some(losses)
}

/// Below this learning rate, losses may be the same in all digits that a trainer prints.
const SMALL_RATE: f64 = 1e-5;

/// Would two different learning rates show in the losses of that many steps? One of them must be large enough, and its warm-up be over
/// after half of the steps.
fn shows_soon(both: &[&Candidate<'_>; 2], steps: usize) -> bool {
    let rate = |of: &&Candidate<'_>| of.contract.get("learning_rate").and_then(Value::as_f64);
    let warm_up = |of: &&Candidate<'_>| of.contract.count("warmup_steps").unwrap_or(0);
    both.iter().filter_map(rate).any(|rate| rate >= SMALL_RATE)
        && both.iter().all(|of| 2 * warm_up(of) <= steps as u64)
}

fn reason(of: &Candidate<'_>, other: &Candidate<'_>, steps: usize) -> Option<Reason> {
    // A model without attention may see as many tokens cut in two ways.
    let tokens = |candidate: &Candidate<'_>| {
        let counts = OF_BATCHES.map(|field| candidate.contract.count(field));
        Some(counts[0]?.saturating_mul(counts[1]?))
    };
    let tokens = [of, other].map(tokens);
    let has_other_tokens = tokens[0].is_some() && tokens[1].is_some() && tokens[0] != tokens[1];
    OF_LOSSES.iter().enumerate().find_map(|(at, field)| {
        let [own, others] = [of, other].map(|candidate| said(candidate)[at]);
        let (own, others) = own.zip(others).filter(|(own, others)| !agree(own, others))?;
        if OF_BATCHES.contains(field) && !has_other_tokens {
            return None;
        }
        if *field == "learning_rate" && !shows_soon(&[of, other], steps) {
            return None;
        }
        let [own, others] = [own, others].map(|value| show(Some(value)));
        // One text for all cells of a sweep, so that it is told once.
        let whose = match of.cell.imported.is_empty() {
            true => "a cell",
            false => &other.cell.cell,
        };
        let text = format!(
            "its losses are those of {whose} with another {field} to the last digit, at all {steps} steps: the setting does not reach the \
             training of one of them"
        );
        Some(
            Reason::excludes(CONTRADICTED, text)
                .with("field", *field)
                .with("cell", &*other.cell.cell)
                .with("values", vec![own, others]),
        )
    })
}
