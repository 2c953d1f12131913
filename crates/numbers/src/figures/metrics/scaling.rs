//! How much of a device's rate is kept when there are more of them.

use crate::results::{Tier, differences, words::short};

use super::{absent, devices_not_known, figure, per_device};
use crate::figures::{
    Figure, Metric,
    comparability::{Candidate, measure_alike},
};

/// What more devices change by themselves; anything else in which the work or its execution differs
/// is another set-up.
const FOLLOWS: [&str; 5] = [
    "num_gpus",
    "global_batch_size",
    "data_parallel_size",
    "gradient_accumulation_steps",
    "sharding",
];

/// Platform, framework, model, device, and whether it was imported.
type Names<'a> = (&'a str, &'a str, &'a str, Option<&'a str>, bool);

/// tokens/s/GPU of the candidate ÷ those of the reference: of all cells with the same platform,
/// framework, model and device that differ in nothing but [`FOLLOWS`], the one with the fewest devices;
/// of several, the first in matrix order.
pub(crate) fn scaling(candidate: &Candidate<'_>, all: &[Candidate<'_>]) -> Metric {
    let made = efficiency(candidate, all);
    let reference = made.as_ref().ok().map(|(_, _, base)| base.clone());
    Metric {
        name: "scaling_efficiency".to_owned(),
        title: "scaling efficiency".to_owned(),
        unit: "fraction".to_owned(),
        higher_is_better: Some(true),
        reference,
        figure: figure(made.map(|(value, basis, _)| (value, basis))),
    }
}

/// The figure, what it is made of, and the reference.
fn efficiency(
    candidate: &Candidate<'_>,
    all: &[Candidate<'_>],
) -> Result<(f64, String, String), Figure> {
    let own = gpus(candidate).ok_or_else(devices_not_known)?;
    let with_fewer = |other: &'_ Candidate<'_>| {
        let n = gpus(other).filter(|n| *n < own)?;
        (names(other) == names(candidate)).then_some(n)
    };
    let smaller = all
        .iter()
        .filter_map(|other| Some((with_fewer(other)?, other)));
    let mut smaller: Vec<(u64, &Candidate<'_>)> = smaller.collect();
    smaller.sort_by_key(|(n, _)| *n);
    let Some((nearest_n, nearest)) = smaller.first() else {
        let text = "no cell of this platform, framework and model has fewer devices";
        return Err(absent("nothing_smaller", text));
    };
    let alike = smaller.iter().find(|(_, b)| other(candidate, b).is_empty());
    let Some((n, base)) = alike else {
        let (reference, fields) = (&nearest.cell.cell, other(candidate, nearest).join(", "));
        let text = format!("{reference} with {nearest_n} differs in {fields} as well");
        return Err(absent("other_set_up", text));
    };
    let is_strong = is_strong(candidate, base, own, *n)?;
    let (rate, reference_rate) = (candidate.estimate.value, base.estimate.value);
    let reference = base.cell.cell.clone();
    let kind = if is_strong { "strong" } else { "weak" };
    let basis = format!(
        "{kind} scaling: {} on {own} ÷ {} on {n} ({reference})",
        per_device(rate),
        short(reference_rate)
    );
    Ok((rate / reference_rate, basis, reference))
}

fn gpus(candidate: &Candidate<'_>) -> Option<u64> {
    candidate.summary.workload.as_ref()?.num_gpus
}

fn names<'a>(candidate: &Candidate<'a>) -> Names<'a> {
    let device = candidate
        .summary
        .device
        .as_ref()
        .and_then(|d| d.name.as_deref());
    (
        &candidate.cell.platform,
        &candidate.cell.framework,
        &candidate.cell.model,
        device,
        candidate.cell.imported.is_empty(),
    )
}

/// Does a difference in this field make it another set-up?
fn bears(tier: Tier, field: &str) -> bool {
    tier != Tier::Convergence && !FOLLOWS.contains(&field)
}

/// In what else they differ, as far as it bears on the speed.
fn other(a: &Candidate<'_>, b: &Candidate<'_>) -> Vec<String> {
    let differ = differences(&a.summary.contract, &b.summary.contract).into_iter();
    let fields = differ.filter(|d| bears(d.tier, &d.field));
    let warm_up =
        (!measure_alike(a.summary.warm_up(), b.summary.warm_up())).then(|| "warm-up".to_owned());
    fields.map(|d| d.field).chain(warm_up).collect()
}

/// Strong: they share one batch. Weak: each device keeps its share of it. None of both is no
/// scaling of one set-up.
fn is_strong(a: &Candidate<'_>, b: &Candidate<'_>, of_a: u64, of_b: u64) -> Result<bool, Figure> {
    let batch = |candidate: &Candidate<'_>| candidate.summary.contract.count("global_batch_size");
    let (Some(ours), Some(theirs)) = (batch(a), batch(b)) else {
        let text = "the global batch size is not known";
        return Err(absent("batch_not_known", text));
    };
    let grown = |n: u64, by: u64| u128::from(n) * u128::from(by);
    if ours != theirs && grown(ours, of_b) != grown(theirs, of_a) {
        let text = format!(
            "the batch went from {theirs} to {ours} for {of_b} → {of_a} devices: neither strong nor weak scaling from {}",
            b.cell.cell
        );
        return Err(absent("neither_strong_nor_weak", text));
    }
    Ok(ours == theirs)
}
