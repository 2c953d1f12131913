//! How much of a device's rate is kept when there are more of them.

use super::{absent, figure, short};
use crate::analyze::{Figure, Metric, Tier, differences, guard::Arm, guard::measure_alike};

/// What more devices change by themselves; anything else in which the work or its execution differs is another set-up.
const FOLLOWS: [&str; 5] =
    ["num_gpus", "global_batch_size", "data_parallel_size", "gradient_accumulation_steps", "sharding"];

/// `arm`'s tokens/s/GPU ÷ those of the reference: of all cells with the same platform, framework, model and device that
/// differ in nothing but [`FOLLOWS`], the one with the fewest devices; of several, the first in matrix order.
pub(crate) fn scaling(arm: &Arm<'_>, arms: &[Arm<'_>]) -> Metric {
    let made = efficiency(arm, arms);
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
fn efficiency(arm: &Arm<'_>, arms: &[Arm<'_>]) -> Result<(f64, String, String), Figure> {
    let own = gpus(arm).ok_or_else(|| absent("the number of devices is not known"))?;
    let mut smaller: Vec<(u64, &Arm<'_>)> =
        arms.iter().filter(|b| is_of(arm, b)).filter_map(|b| Some((gpus(b)?, b))).filter(|(n, _)| *n < own).collect();
    // Stable: matrix order among equals.
    smaller.sort_by_key(|(n, _)| *n);
    let Some(nearest) = smaller.first() else {
        return Err(absent("no cell of this platform, framework and model has fewer devices"));
    };
    let Some((n, base)) = smaller.iter().find(|(_, b)| other(arm, b).is_empty()) else {
        let (n, base) = nearest;
        let fields = other(arm, base).join(", ");
        return Err(absent(format!("{} with {n} differs in {fields} as well", base.cell.cell)));
    };
    let kind = kind(arm, base, own, *n)?;
    let (ours, theirs) = (arm.estimate.value, base.estimate.value);
    let rates = format!("{} tokens/s/GPU on {own} ÷ {} on {n}", short(ours), short(theirs));
    let reference = base.cell.cell.clone();
    Ok((ours / theirs, format!("{kind} scaling: {rates} ({reference})"), reference))
}

fn gpus(arm: &Arm<'_>) -> Option<u64> {
    arm.summary.workload.as_ref()?.num_gpus
}

fn is_of(a: &Arm<'_>, b: &Arm<'_>) -> bool {
    let names = |arm: &Arm<'_>| {
        let device = arm.summary.device.as_ref().and_then(|d| d.name.clone());
        let imported = arm.cell.imported.is_empty();
        (arm.cell.platform.clone(), arm.cell.framework.clone(), arm.cell.model.clone(), device, imported)
    };
    names(a) == names(b)
}

/// In what else they differ, as far as it bears on the speed.
fn other(a: &Arm<'_>, b: &Arm<'_>) -> Vec<String> {
    let differ = differences(&a.summary.contract, &b.summary.contract).into_iter();
    let fields = differ.filter(|d| d.tier != Tier::Convergence && !FOLLOWS.contains(&d.field.as_str()));
    let warm_up = (!measure_alike(a.summary.warm_up(), b.summary.warm_up())).then(|| "warm-up".to_owned());
    fields.map(|d| d.field).chain(warm_up).collect()
}

/// Weak: each device keeps its share of the batch. Strong: they share one batch.
fn kind(a: &Arm<'_>, b: &Arm<'_>, of_a: u64, of_b: u64) -> Result<&'static str, Figure> {
    let batch = |arm: &Arm<'_>| arm.summary.contract.count("global_batch_size");
    let (Some(ours), Some(theirs)) = (batch(a), batch(b)) else {
        return Err(absent("the global batch size is not known"));
    };
    let grown = |n: u64, by: u64| u128::from(n) * u128::from(by);
    if ours == theirs {
        Ok("strong")
    } else if grown(ours, of_b) == grown(theirs, of_a) {
        Ok("weak")
    } else {
        let of = format!("the batch went from {theirs} to {ours} for {of_b} → {of_a} devices");
        Err(absent(format!("{of}: neither strong nor weak scaling from {}", b.cell.cell)))
    }
}
