//! How much of a device's rate is kept when there are more of them.

use std::collections::HashMap;

use super::{absent, figure, short};
use crate::{
    Figure, Metric, Tier,
    contract::classes,
    differences,
    guard::{Arm, measure_alike},
};

/// What more devices change by themselves; anything else in which the work or its execution differs is another set-up.
const FOLLOWS: [&str; 5] =
    ["num_gpus", "global_batch_size", "data_parallel_size", "gradient_accumulation_steps", "sharding"];

/// Platform, framework, model, device, and whether it was imported.
type Names<'a> = (&'a str, &'a str, &'a str, Option<&'a str>, bool);

/// Numbers of devices, each with the arm's place.
type BySize = Vec<(u64, usize)>;

/// All cells by their number of devices, fewest first and then in matrix order, so that a reference is looked for among
/// those alone that it can be.
pub(crate) struct Sizes<'a> {
    arms: &'a [Arm<'a>],
    of_names: HashMap<Names<'a>, BySize>,
    /// By names and what [`other`] looks at: arms apart here differ in something else as well.
    of_set_up: HashMap<(Names<'a>, &'a [Option<usize>]), BySize>,
    set_ups: &'a [Vec<Option<usize>>],
}

/// What each arm says of its set-up, for [`Sizes::of`].
pub(crate) fn set_ups(arms: &[Arm<'_>]) -> Vec<Vec<Option<usize>>> {
    classes(&arms.iter().map(|arm| &arm.summary.contract).collect::<Vec<_>>(), |f| bears(f.tier, &f.field))
}

impl<'a> Sizes<'a> {
    pub fn of(arms: &'a [Arm<'a>], set_ups: &'a [Vec<Option<usize>>]) -> Self {
        let mut sized: BySize = arms.iter().enumerate().filter_map(|(i, arm)| Some((gpus(arm)?, i))).collect();
        sized.sort_unstable();
        let mut sizes = Self { arms, of_names: HashMap::new(), of_set_up: HashMap::new(), set_ups };
        for at in sized {
            let names = names(&arms[at.1]);
            sizes.of_names.entry(names).or_default().push(at);
            sizes.of_set_up.entry((names, &*set_ups[at.1])).or_default().push(at);
        }
        sizes
    }
}

/// tokens/s/GPU of the arm at this place ÷ those of the reference: of all cells with the same platform, framework, model and
/// device that differ in nothing but [`FOLLOWS`], the one with the fewest devices; of several, the first in matrix order.
pub(crate) fn scaling(at: usize, sizes: &Sizes<'_>) -> Metric {
    let made = efficiency(at, sizes);
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
fn efficiency(at: usize, sizes: &Sizes<'_>) -> Result<(f64, String, String), Figure> {
    let arm = &sizes.arms[at];
    let own = gpus(arm).ok_or_else(|| absent("the number of devices is not known"))?;
    let names = names(arm);
    let nearest = sizes.of_names.get(&names).and_then(|all| all.first()).filter(|(n, _)| *n < own);
    let Some((n, nearest)) = nearest else {
        return Err(absent("no cell of this platform, framework and model has fewer devices"));
    };
    let alike = sizes.of_set_up.get(&(names, &*sizes.set_ups[at])).into_iter().flatten();
    let mut smaller = alike.take_while(|(n, _)| *n < own).map(|(n, i)| (*n, &sizes.arms[*i]));
    let Some((n, base)) = smaller.find(|(_, b)| other(arm, b).is_empty()) else {
        let nearest = &sizes.arms[*nearest];
        let fields = other(arm, nearest).join(", ");
        return Err(absent(format!("{} with {n} differs in {fields} as well", nearest.cell.cell)));
    };
    let kind = kind(arm, base, own, n)?;
    let (ours, theirs) = (arm.estimate.value, base.estimate.value);
    let rates = format!("{} tokens/s/GPU on {own} ÷ {} on {n}", short(ours), short(theirs));
    let reference = base.cell.cell.clone();
    Ok((ours / theirs, format!("{kind} scaling: {rates} ({reference})"), reference))
}

fn gpus(arm: &Arm<'_>) -> Option<u64> {
    arm.summary.workload.as_ref()?.num_gpus
}

fn names<'a>(arm: &Arm<'a>) -> Names<'a> {
    let device = arm.summary.device.as_ref().and_then(|d| d.name.as_deref());
    (&arm.cell.platform, &arm.cell.framework, &arm.cell.model, device, arm.cell.imported.is_empty())
}

/// Does a difference in this field make it another set-up?
fn bears(tier: Tier, field: &str) -> bool {
    tier != Tier::Convergence && !FOLLOWS.contains(&field)
}

/// In what else they differ, as far as it bears on the speed.
fn other(a: &Arm<'_>, b: &Arm<'_>) -> Vec<String> {
    let differ = differences(&a.summary.contract, &b.summary.contract).into_iter();
    let fields = differ.filter(|d| bears(d.tier, &d.field));
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
