//! The sentence on two cells that were compared: the faster one is its subject.

use tprimat_figures::{EnvironmentDifference, Gaps, Group, Label, Price, Row, Speedup, Warning};
use tprimat_results::{FieldDifference, Tier, differences};
use tprimat_sentences as sentences;
use tprimat_sentences::{said, standing};
use tprimat_words::plain::counted;

use super::{
    SpeedVerdict,
    phrases::{
        duration, over_hosts, same_as, short_step_times, times, unit, unnamed_hosts, warned,
    },
};
use crate::{
    format::{change_range, faster, number, ratio, ratio_beside_1},
    notes::capital,
};

/// Two cells in the order of the sentence: the faster one is its subject.
pub(super) struct Pair<'a> {
    pub first: &'a Row,
    pub second: &'a Row,
    pub first_name: &'a str,
    pub second_name: &'a str,
    /// Speed of the first ÷ that of the second, and the ends of its interval.
    pub ratio: f64,
    pub ends: Option<[f64; 2]>,
    /// The first is the speed-up's baseline.
    pub is_turned: bool,
}

impl<'a> Pair<'a> {
    pub fn of(speedup: &Speedup, a: (&'a Row, &'a str), b: (&'a Row, &'a str)) -> Self {
        let ends = speedup
            .interval
            .map(|i| [i.low, i.high])
            .filter(|ends| ends.iter().all(|end| end.is_finite()));
        let is_turned = speedup.ratio < 1.0;
        let ((first, first_name), (second, second_name)) = if is_turned { (b, a) } else { (a, b) };
        let (ratio, ends) = if is_turned {
            (
                1.0 / speedup.ratio,
                ends.map(|[low, high]| [1.0 / high, 1.0 / low]),
            )
        } else {
            (speedup.ratio, ends)
        };
        Self {
            first,
            second,
            first_name,
            second_name,
            ratio,
            ends,
            is_turned,
        }
    }
}

/// `titan (compiled) trains llama 13 % faster than native: 61,894 against 54,838 tokens/s per GPU
/// (95 % CI 11–15 %). Same workload except: compile.`
pub(super) fn pair_sentence(
    environment_of_a: &[EnvironmentDifference],
    group: &Group,
    speedup: &Speedup,
    (a, name_a): (&Row, &str),
    (b, name_b): (&Row, &str),
) -> (String, String) {
    let pair = Pair::of(speedup, (a, name_a), (b, name_b));
    let mut parts = vec![figures(&pair, speedup, &group.model)];
    parts.extend(workload(&pair));
    // What only the job says is no less a part of the answer than what the logs confirm.
    let declared = only_declared(&pair).filter(|_| !by_labels_only(a) || !by_labels_only(b));
    // Recomputation that only one log states costs as much as recomputation in which both differ.
    let unstated = unstated_speed(&pair);
    parts.extend(unstated.clone());
    let doubts: Vec<String> = [(a, name_a), (b, name_b)]
        .into_iter()
        .filter_map(|(row, name)| short_step_times(row, &format!("The rate of {name}")))
        .collect();
    let short: Vec<String> = parts
        .iter()
        .take(2)
        .cloned()
        .chain(unstated)
        .chain(declared)
        .chain(doubts.clone())
        .collect();
    let short = format!("{}.", short.join(". "));
    parts.extend(doubts);
    parts.extend(totals(&pair));
    parts.extend(cost(&pair, speedup));
    parts.extend(
        speedup
            .reason
            .as_ref()
            .map(|reason| format!("No verdict: {}", said(reason))),
    );
    if let Some(seconds) = speedup.apart_seconds {
        parts.push(format!(
            "They were measured {} apart, and the interval does not cover what changed in between: \
             a build with --force=measured and --only for both measures them anew, in turns",
            duration(seconds)
        ));
    }
    let added: Vec<&str> = [(a, name_a), (b, name_b)]
        .into_iter()
        .filter(|(row, _)| row.repeats_added_later)
        .map(|(_, name)| name)
        .collect();
    if !added.is_empty() {
        parts.push(format!(
            "Repeats of {} were added after the first results were seen",
            added.join(" and ")
        ));
    }
    for (row, name) in [(a, name_a), (b, name_b)] {
        parts.extend(
            standing(&row.standing)
                .iter()
                .map(|words| format!("{name}: {words}")),
        );
        if row
            .dropped
            .iter()
            .any(|d| d.remeasured > 0 || !d.set_aside.is_empty())
        {
            parts.push(format!(
                "Measurements of {name} were replaced after they were seen"
            ));
        }
    }
    if let Some(other) = &speedup.same_as {
        parts.push(format!("{name_a} has the same measurements as {other}"));
    }
    // Where both are one measurement, the reason above says so.
    if a.launches_as(b) && !a.is_measured_as(b) {
        parts.push(format!("{name_a} {}", same_as(a, name_b, Some(b))));
    }
    parts.extend(unnamed_hosts(&[a, b]));
    let of_pair = environment_of_a.iter().filter(|e| e.cell_b == b.cell);
    let dangerous: Vec<_> = of_pair.filter(|e| e.dangerous.is_some()).collect();
    parts.extend(dangerous.iter().map(|e| environment(e, name_a, name_b)));
    for (row, name) in [(a, name_a), (b, name_b)] {
        // A variable that only one of the two runs with is among the differences.
        let is_told = |warning: &Warning| {
            let Warning::Variable { name, .. } = warning else {
                return false;
            };
            dangerous.iter().any(|e| e.name == *name)
        };
        parts.extend(warned(row, name, |warning| !is_told(warning)));
    }
    (short, format!("{}.", parts.join(". ")))
}

/// The settings of a tier that differ, without those that follow from others.
pub(super) fn different_settings(pair: &Pair<'_>, tier: Tier) -> Vec<String> {
    let known: Vec<FieldDifference> = differences(&pair.first.contract, &pair.second.contract)
        .into_iter()
        .filter(FieldDifference::is_known)
        .collect();
    let own = known
        .iter()
        .filter(|d| d.tier == tier && !follows(&d.field, &known));
    own.map(|d| difference(d, pair)).collect()
}

/// Who is how much faster, with both rates and the interval.
fn figures(pair: &Pair<'_>, speedup: &Speedup, model: &str) -> String {
    let Pair {
        first,
        second,
        first_name,
        second_name,
        ratio,
        ends,
        ..
    } = pair;
    let rate = |row: &Row| number(row.tokens_per_second_per_gpu.value);
    let rates = format!(
        "{} against {} {}",
        rate(first),
        rate(second),
        unit(&[first, second])
    );
    let width = ends.map(|[low, high]| high - low);
    let over = over_hosts(&[first, second]);
    let interval = ends
        .map(|ends| format!(" (95 % CI {}{over})", change_range(*ratio, ends)))
        .unwrap_or_default();
    match SpeedVerdict::of(speedup) {
        SpeedVerdict::Faster | SpeedVerdict::Slower => {
            let (size, than) = faster(*ratio, width);
            // Columns give the cell's speed relative to the baseline's, so both ways are said.
            let inverse = if pair.is_turned {
                format!("; {second_name} is {} {first_name}", times(speedup))
            } else {
                String::new()
            };
            format!(
                "{first_name} trains {model} {size} {than} {second_name}: {rates}{interval}{inverse}"
            )
        }
        SpeedVerdict::NoDifference => {
            format!(
                "{first_name} and {second_name} show no significant difference on {model}: {rates}{interval}"
            )
        }
        _ => {
            let inverse = if pair.is_turned && speedup.ratio.is_finite() {
                format!("; {second_name} is {} {first_name}", times(speedup))
            } else {
                String::new()
            };
            format!(
                "{first_name} trains {model} at {} {}, {second_name} at {}{}{inverse}",
                rate(first),
                unit(&[first, second]),
                rate(second),
                of_ratio(*ratio, *ends)
            )
        }
    }
}

/// `: 1.13×`, and its interval; nothing where it is not a ratio.
fn of_ratio(value: f64, ends: Option<[f64; 2]>) -> String {
    if !(value.is_finite() && value > 0.0) {
        return String::new();
    }
    let width = ends.map(|[low, high]| high - low);
    let interval = ends.map(|[low, high]| {
        format!(
            " (95 % CI {}–{})",
            ratio_beside_1(low, width),
            ratio_beside_1(high, width)
        )
    });
    format!(": {}×{}", ratio(value, width), interval.unwrap_or_default())
}

/// Settings that follow from others that differ as well, so that naming them says nothing new.
fn follows(field: &str, all: &[FieldDifference]) -> bool {
    let has = |names: &[&str]| all.iter().any(|d| names.contains(&&*d.field));
    match field {
        "gradient_accumulation_steps" => has(&["micro_batch_size", "data_parallel_size"]),
        "data_parallel_size" => has(&[
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "num_gpus",
        ]),
        // Stated only where the setting that they belong to is on.
        "compile_mode" => has(&["compile"]),
        "sac_frequency" => has(&["activation_checkpointing"]),
        "fp8_hybrid" | "fp8_param" => has(&["precision"]),
        "num_nodes" => has(&["num_gpus"]),
        _ => false,
    }
}

/// Did both do the same work, as far as anybody knows? And what did they do differently?
/// The first sentence answers that; the others are its reservations.
fn workload(pair: &Pair<'_>) -> Vec<String> {
    let Pair {
        first,
        second,
        first_name,
        second_name,
        ..
    } = pair;
    let [crossed, execution] =
        [Tier::Workload, Tier::Execution].map(|tier| different_settings(pair, tier));
    let gaps = Gaps::of(&first.contract, &second.contract);
    let is_open = !gaps.is_empty() || unstated_speed(pair).is_some();
    let mut parts = Vec::new();
    if !crossed.is_empty() {
        parts.push(format!("Not the same workload: {}", crossed.join(", ")));
        parts.extend(
            (!execution.is_empty()).then(|| format!("Also different: {}", execution.join(", "))),
        );
    } else if by_labels_only(first) && by_labels_only(second) {
        parts.push(if !is_open {
            "Same workload by their labels only: neither log confirms any of it".to_owned()
        } else {
            "The labels of their files agree, but neither log confirms them, so the workloads may differ".to_owned()
        });
    } else if !is_open && only_declared(pair).is_some() {
        // A log that confirms less than everything leaves the rest to the job that was asked for.
        parts.push(if execution.is_empty() {
            "Declared the same workload".to_owned()
        } else {
            format!(
                "Declared the same workload, except: {}",
                execution.join(", ")
            )
        });
    } else if is_open && !execution.is_empty() {
        parts.push(format!(
            "Same workload as far as it is stated, except: {}",
            execution.join(", ")
        ));
    } else if is_open {
        parts.push("Same workload as far as it is stated".to_owned());
    } else if execution.is_empty() {
        parts.push("Same workload".to_owned());
    } else {
        parts.push(format!("Same workload except: {}", execution.join(", ")));
    }
    if !gaps.is_empty() {
        parts.push(capital(&sentences::gaps(&gaps, first_name, second_name)));
    }
    if !by_labels_only(first) || !by_labels_only(second) {
        parts.extend(only_declared(pair));
    }
    // The sentence on warm-up is about the cell, whichever of the two cells stands first here.
    let name = if pair.is_turned {
        second_name
    } else {
        first_name
    };
    let cell = if pair.is_turned { second } else { first };
    let of_warm_up = cell
        .labels
        .iter()
        .filter(|label| matches!(label, Label::WarmUp { .. }));
    parts.extend(of_warm_up.map(|label| format!("{name}: {}", said(label))));
    parts
}

/// Settings that may explain the difference in speed and that only one side states.
fn unstated_speed(pair: &Pair<'_>) -> Option<String> {
    let mut gaps = Gaps::of_speed(pair.first, pair.second);
    let all = differences(&pair.first.contract, &pair.second.contract);
    for side in [&mut gaps.only_a, &mut gaps.only_b] {
        side.retain(|stated| !follows(&stated.field, &all));
    }
    (!gaps.is_empty()).then(|| {
        format!(
            "{}, so part of a difference in speed may come from there",
            capital(&sentences::gaps(&gaps, pair.first_name, pair.second_name))
        )
    })
}

/// `micro_batch_size (4 against 1)`; `compile` where the names say who compiles.
fn difference(found: &FieldDifference, pair: &Pair<'_>) -> String {
    let value = |value: &Option<serde_json::Value>| match value {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "not stated".to_owned(),
    };
    let is_named = |name: &str| name.contains("(compiled") || name.contains(", compiled");
    if found.field == "compile" && is_named(pair.first_name) != is_named(pair.second_name) {
        return found.field.clone();
    }
    format!(
        "{} ({} against {})",
        found.field,
        value(&found.a),
        value(&found.b)
    )
}

/// Everything that is known of the work of an imported run comes from the labels of its file.
fn by_labels_only(row: &Row) -> bool {
    !row.imported.is_empty() && all_declared(row)
}

fn all_declared(row: &Row) -> bool {
    let workload = row
        .contract
        .0
        .iter()
        .filter(|f| f.tier == Tier::Workload)
        .count();
    workload > 0 && workload == row.declared_only.len()
}

/// Settings of the work that a log does not confirm.
fn only_declared(pair: &Pair<'_>) -> Option<String> {
    let Pair {
        first,
        second,
        first_name,
        second_name,
        ..
    } = pair;
    if all_declared(first) && all_declared(second) {
        return Some("Neither log confirms it".to_owned());
    }
    let (one, two) = (&first.declared_only, &second.declared_only);
    match (one.is_empty(), two.is_empty()) {
        (true, true) => None,
        (false, false) if one == two => {
            let verb = if one.len() == 1 { "is" } else { "are" };
            Some(format!(
                "{} {verb} confirmed by neither log",
                capital(&settings(one))
            ))
        }
        (false, true) => Some(format!(
            "The log of {first_name} does not confirm {}",
            settings(one)
        )),
        (true, false) => Some(format!(
            "The log of {second_name} does not confirm {}",
            settings(two)
        )),
        (false, false) => Some(format!(
            "The log of {first_name} does not confirm {}, that of {second_name} {}",
            settings(one),
            settings(two)
        )),
    }
}

/// `the setting compile`, `12 settings (architecture, num_layers, …)`
fn settings(names: &[String]) -> String {
    const FEW: usize = 3;
    match names {
        [one] => format!("the setting {one}"),
        _ if names.len() <= FEW => format!("{} settings ({})", names.len(), names.join(", ")),
        [first, second, ..] => format!("{} settings ({first}, {second}, …)", names.len()),
        [] => String::new(),
    }
}

/// `In total 79,123 tokens/s on 8 GPUs against 10,685 on 1`: a rate of one device alone hides that
/// there are more.
fn totals(pair: &Pair<'_>) -> Option<String> {
    let of = |row: &Row| {
        row.tokens_per_second
            .filter(|t| t.is_finite())
            .zip(row.contract.count("num_gpus"))
    };
    let ((first, gpus), (second, others)) = (of(pair.first)?, of(pair.second)?);
    let times = format!("{}× as much", ratio(first / second, None));
    (gpus != others).then(|| {
        format!(
            "In total {} tokens/s on {} against {} on {others}, {times}",
            number(first),
            counted(gpus as usize, "GPU"),
            number(second)
        )
    })
}

/// Prices are worth a word only if somebody stated them, they differ, and the speeds do.
fn cost(pair: &Pair<'_>, speedup: &Speedup) -> Option<String> {
    let [a, b] = &**speedup.prices.as_ref()?;
    let is_example = |price: &Price| {
        price
            .source
            .as_ref()
            .is_some_and(|s| s.to_lowercase().contains("illustrative"))
    };
    let is_one_price =
        a.currency == b.currency && (a.per_gpu_hour / b.per_gpu_hour - 1.0).abs() < 1e-9;
    let ratio_of_cost = speedup
        .cost_ratio
        .value()
        .filter(|v| v.is_finite() && *v > 0.0)?;
    if is_example(a) || is_example(b) || is_one_price || speedup.significant != Some(true) {
        return None;
    }
    let turned = |value: f64| if pair.is_turned { 1.0 / value } else { value };
    let (first, second) = if pair.is_turned { (b, a) } else { (a, b) };
    let value = turned(ratio_of_cost);
    // Prices are exact: cost is as uncertain as speed.
    let ends = pair
        .ends
        .map(|[low, high]| [value * pair.ratio / high, value * pair.ratio / low]);
    let width = ends.map(|[low, high]| high - low);
    let interval = ends.map(|[low, high]| {
        format!(
            " (95 % CI {}–{})",
            ratio_beside_1(low, width),
            ratio_beside_1(high, width)
        )
    });
    Some(format!(
        "At {:.2} against {:.2} {} per GPU-hour, a token costs {}×{} as much",
        first.per_gpu_hour,
        second.per_gpu_hour,
        first.currency,
        ratio_beside_1(value, width),
        interval.unwrap_or_default()
    ))
}

/// `A runs with NCCL_DEBUG=INFO, B without it: collectives write logs while they run`
fn environment(found: &EnvironmentDifference, a: &str, b: &str) -> String {
    let (name, why) = (
        &found.name,
        found.dangerous.as_ref().map(said).unwrap_or_default(),
    );
    match (&found.a, &found.b) {
        (Some(of_a), Some(of_b)) => {
            format!("{a} runs with {name}={of_a}, {b} with {name}={of_b}: {why}")
        }
        (Some(of_a), None) => format!("{a} runs with {name}={of_a}, {b} without it: {why}"),
        (None, of_b) => {
            format!(
                "{b} runs with {name}={}, {a} without it: {why}",
                of_b.as_deref().unwrap_or_default()
            )
        }
    }
}
