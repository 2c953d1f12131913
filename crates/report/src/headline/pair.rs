//! The sentence on two cells that were compared: the faster one is its subject.

use tprimat_base::words::plain::counted;
use tprimat_numbers::figures::{
    EnvironmentDifference, Gaps, Group, Price, Row, Speedup, apart_words, codes::WARM_UP,
    level_words, unknown_differences,
};
use tprimat_numbers::results::{FieldDifference, Reason, Tier, differences, settings::show};

use super::{
    SpeedVerdict,
    phrases::{over_hosts, same_as, short_step_times, times, unit, unnamed_hosts, warned},
};
use crate::{
    format::{change_range, faster, number, ratio, ratio_beside_1},
    notes::capital,
};

/// A cell and its short name.
type Named<'a> = (&'a Row, &'a str);

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
    pub fn of(speedup: &Speedup, a: Named<'a>, b: Named<'a>) -> Self {
        let ends = speedup.interval.map(|i| [i.low, i.high]);
        let ends = ends.filter(|ends| ends.iter().all(|end| end.is_finite()));
        let is_turned = speedup.ratio < 1.0;
        let turned = |[low, high]: [f64; 2]| [1.0 / high, 1.0 / low];
        let (first, second, ratio, ends) = if is_turned {
            (b, a, 1.0 / speedup.ratio, ends.map(turned))
        } else {
            (a, b, speedup.ratio, ends)
        };
        Self {
            first: first.0,
            second: second.0,
            first_name: first.1,
            second_name: second.1,
            ratio,
            ends,
            is_turned,
        }
    }

    pub fn width(&self) -> Option<f64> {
        self.ends.map(|[low, high]| high - low)
    }

    /// The settings of a tier that differ, without those that follow from others.
    pub fn different_settings(&self, tier: Tier) -> Vec<String> {
        let all = differences(&self.first.contract, &self.second.contract).into_iter();
        let known: Vec<FieldDifference> = all.filter(FieldDifference::is_known).collect();
        let own = known
            .iter()
            .filter(|d| d.tier == tier && !follows(&d.field, &known));
        own.map(|d| self.difference(d)).collect()
    }

    /// `micro_batch_size (4 against 1)`; `compile` where the names say who compiles.
    fn difference(&self, found: &FieldDifference) -> String {
        let is_named = |name: &str| name.contains("(compiled") || name.contains(", compiled");
        if found.field == "compile" && is_named(self.first_name) != is_named(self.second_name) {
            return found.field.clone();
        }
        let (a, b) = (show(found.a.as_ref()), show(found.b.as_ref()));
        format!("{} ({a} against {b})", found.field)
    }
}

/// `titan (compiled) trains llama 13 % faster than native: 61,894 against 54,838 tokens/s per GPU
/// (95 % CI 11–15 %). Same workload except: compile.` First without its lesser reservations.
pub(super) fn pair_sentence(
    environment_of_a: &[EnvironmentDifference],
    group: &Group,
    speedup: &Speedup,
    sides: [Named<'_>; 2],
) -> (String, String) {
    let [(a, name_a), (b, name_b)] = sides;
    let pair = Pair::of(speedup, sides[0], sides[1]);
    let mut parts = vec![figures(&pair, speedup, &group.model)];
    parts.extend(workload(&pair));
    // What only the job says is no less a part of the answer than what the logs confirm.
    let declared = only_declared(&pair).filter(|_| !by_labels_only(a) || !by_labels_only(b));
    // Recomputation that only one log states costs as much as recomputation in which both differ.
    let unstated = unstated_speed(&pair);
    let (gaps, unknown) = (gaps_words(&pair), unknown_settings(&pair));
    let of_timer = |(row, name): Named<'_>| short_step_times(row, &format!("The rate of {name}"));
    let doubts: Vec<String> = sides.into_iter().filter_map(of_timer).collect();
    let leading = parts.iter().take(2).cloned();
    let short = leading
        .chain(unknown)
        .chain(gaps)
        .chain(unstated.clone())
        .chain(declared)
        .chain(doubts.clone());
    let short = short.collect::<Vec<_>>().join(". ") + ".";
    parts.extend(unstated.into_iter().chain(doubts));
    parts.extend(totals(&pair));
    parts.extend(cost(&pair, speedup));
    let reason = speedup.reason.as_ref();
    parts.extend(reason.map(|reason| format!("No verdict: {}", reason.text.clone())));
    parts.extend(by_pairs(speedup));
    let is_ours = sides.iter().all(|(row, _)| row.imported.is_empty());
    parts.extend(speedup.apart_seconds.map(|seconds| {
        let anew = match is_ours {
            true => ": a build with --decide 2% and --only for both measures them anew, in turns",
            false => "",
        };
        format!(
            "They were {}, {}{anew}",
            apart_words(seconds),
            level_words()
        )
    }));
    let doubts = speedup.doubts.iter();
    parts.extend(doubts.map(|doubt| format!("In doubt: {doubt}")));
    let added = sides.iter().filter(|(row, _)| row.repeats_added_later);
    let added: Vec<&str> = added.map(|(_, name)| *name).collect();
    if !added.is_empty() {
        let names = added.join(" and ");
        parts.push(format!(
            "Repeats of {names} were added after the first results were seen"
        ));
    }
    for (row, name) in sides {
        let standing = row.standing.words().into_iter();
        parts.extend(standing.map(|words| format!("{name}: {words}")));
        let mut dropped = row.dropped.iter();
        if dropped.any(|d| d.remeasured > 0 || !d.set_aside.is_empty()) {
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
    for (row, name) in sides {
        // A variable that only one of the two runs with is among the differences.
        let is_told = |warning: &Reason| {
            let name = warning.values.get("name");
            dangerous
                .iter()
                .any(|e| name.is_some_and(|name| *name == e.name))
        };
        parts.extend(warned(row, name, |warning| !is_told(warning)));
    }
    (short, format!("{}.", parts.join(". ")))
}

/// What the ratio is made of, where runs were added until a decision.
fn by_pairs(speedup: &Speedup) -> Option<String> {
    let pairs = counted(speedup.pairs.filter(|pairs| *pairs > 1)?, "pair");
    Some(format!(
        "The ratio is that of {pairs} of runs made in turns. They were added until a decision, which this test allows at \
         any time"
    ))
}

/// Who is how much faster, with both rates and the interval.
fn figures(pair: &Pair<'_>, speedup: &Speedup, model: &str) -> String {
    let (first, second) = (pair.first_name, pair.second_name);
    let both = [pair.first, pair.second];
    let [rate, other] = both.map(|row| number(row.tokens_per_second_per_gpu.value));
    let unit = unit(&both);
    // Columns give the cell's speed relative to the baseline's, so both ways are said.
    let inverse = || match pair.is_turned && speedup.ratio.is_finite() {
        true => format!("; {second} is {} {first}", times(speedup)),
        false => String::new(),
    };
    let over = over_hosts(&both);
    let interval = pair.ends.map_or_else(String::new, |ends| {
        format!(" (95 % CI {}{over})", change_range(pair.ratio, ends))
    });
    let rates = format!("{rate} against {other} {unit}{interval}");
    match SpeedVerdict::of(speedup) {
        SpeedVerdict::Faster | SpeedVerdict::Slower => {
            let (size, than) = faster(pair.ratio, pair.width());
            format!(
                "{first} trains {model} {size} {than} {second}: {rates}{}",
                inverse()
            )
        }
        SpeedVerdict::NoDifference => {
            format!("{first} and {second} show no significant difference on {model}: {rates}")
        }
        _ => {
            let ratio = if pair.ratio.is_finite() && pair.ratio > 0.0 {
                let ratio = ratio(pair.ratio, pair.width());
                format!(": {ratio}×{}", ends_of_ratio(pair.ends))
            } else {
                String::new()
            };
            format!(
                "{first} trains {model} at {rate} {unit}, {second} at {other}{ratio}{}",
                inverse()
            )
        }
    }
}

/// ` (95 % CI 1.10–1.16)`; nothing where there is no interval.
fn ends_of_ratio(ends: Option<[f64; 2]>) -> String {
    ends.map_or_else(String::new, |[low, high]| {
        let [low, high] = [low, high].map(|end| ratio_beside_1(end, Some(high - low)));
        format!(" (95 % CI {low}–{high})")
    })
}

/// Settings that follow from others that differ as well, so that naming them says nothing new.
fn follows(field: &str, all: &[FieldDifference]) -> bool {
    let from: &[&str] = match field {
        "gradient_accumulation_steps" => &["micro_batch_size", "data_parallel_size"],
        "data_parallel_size" => &[
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "num_gpus",
        ],
        // Stated only where the setting that they belong to is on.
        "compile_mode" => &["compile"],
        "sac_frequency" => &["activation_checkpointing"],
        "fp8_hybrid" | "fp8_param" => &["precision"],
        "num_nodes" => &["num_gpus"],
        _ => &[],
    };
    all.iter().any(|d| from.contains(&&*d.field))
}

/// Did both do the same work, as far as anybody knows? And what did they do differently?
/// The first sentence answers that; the others are its reservations.
fn workload(pair: &Pair<'_>) -> Vec<String> {
    let crossed = pair.different_settings(Tier::Workload).join(", ");
    let mut others = pair.different_settings(Tier::Execution);
    others.extend(pair.different_settings(Tier::Convergence));
    let others = others.join(", ");
    let unknown = unknown_settings(pair);
    let by_labels = by_labels_only(pair.first) && by_labels_only(pair.second);
    let gaps = Gaps::of(&pair.first.contract, &pair.second.contract);
    let is_open = !gaps.is_empty() || unstated_speed(pair).is_some();
    let mut parts = Vec::new();
    if !crossed.is_empty() {
        parts.push(format!("Not the same workload: {crossed}"));
        parts.extend((!others.is_empty()).then(|| format!("Also different: {others}")));
    } else if by_labels {
        parts.push(if !is_open {
            "Same workload by their labels only: neither log confirms any of it".to_owned()
        } else {
            "The labels of their files agree, but neither log confirms them, so the workloads may differ".to_owned()
        });
    } else {
        // A log that confirms less than everything leaves the rest to the job that was asked for.
        let (same, except) = match (is_open, only_declared(pair).is_some()) {
            (true, _) => ("Same workload as far as it is stated", ", except"),
            (false, true) => ("Declared the same workload", ", except"),
            (false, false) if unknown.is_some() => {
                ("Same workload as far as it is known", ", except")
            }
            (false, false) => ("Same workload", " except"),
        };
        let except = format!("{except}: {others}");
        parts.push(format!(
            "{same}{}",
            if others.is_empty() { "" } else { &except }
        ));
    }
    parts.extend(unknown);
    parts.extend(gaps_words(pair));
    if !by_labels {
        parts.extend(only_declared(pair));
    }
    // The sentence on warm-up is about the cell, whichever of the two cells stands first here.
    let (cell, name) = match pair.is_turned {
        true => (pair.second, pair.second_name),
        false => (pair.first, pair.first_name),
    };
    let labels = cell.labels.iter();
    let of_warm_up = labels.filter(|label| label.is(WARM_UP));
    parts.extend(of_warm_up.map(|label| format!("{name}: {label}")));
    parts
}

/// What of the work only one of the two states, or neither.
fn gaps_words(pair: &Pair<'_>) -> Option<String> {
    let gaps = Gaps::of(&pair.first.contract, &pair.second.contract);
    let words = || capital(&gaps.words(pair.first_name, pair.second_name));
    (!gaps.is_empty()).then(words)
}

/// How many settings differ whose meaning nobody knows, and what lists them.
fn unknown_settings(pair: &Pair<'_>) -> Option<String> {
    let found = unknown_differences(&pair.first.unlisted, &pair.second.unlisted);
    let (a, b) = (&pair.second.cell, &pair.first.cell);
    let (settings, differ, their) = match found.len() {
        0 => return None,
        1 => ("1 setting".to_owned(), "differs", "its"),
        n => (format!("{n} settings"), "differ", "their"),
    };
    Some(format!(
        "{settings} {differ} and tprimat does not know {their} meaning: `tprimat compare {a} {b} --details` lists them"
    ))
}

/// Settings that may explain the difference in speed and that only one side states.
fn unstated_speed(pair: &Pair<'_>) -> Option<String> {
    let mut gaps = Gaps::of_speed(pair.first, pair.second);
    let all = differences(&pair.first.contract, &pair.second.contract);
    for side in [&mut gaps.only_a, &mut gaps.only_b] {
        side.retain(|stated| !follows(&stated.field, &all));
    }
    (!gaps.is_empty()).then(|| {
        let gaps = capital(&gaps.words(pair.first_name, pair.second_name));
        format!("{gaps}, so part of a difference in speed may come from there")
    })
}

/// Everything that is known of the work of an imported run comes from the labels of its file.
fn by_labels_only(row: &Row) -> bool {
    !row.imported.is_empty() && all_declared(row)
}

fn all_declared(row: &Row) -> bool {
    let fields = row.contract.0.iter();
    let workload = fields.filter(|f| f.tier == Tier::Workload).count();
    workload > 0 && workload == row.declared_only.len()
}

/// Settings of the work that a log does not confirm.
fn only_declared(pair: &Pair<'_>) -> Option<String> {
    let (first, second) = (pair.first_name, pair.second_name);
    if all_declared(pair.first) && all_declared(pair.second) {
        return Some("Neither log confirms it".to_owned());
    }
    let (one, two) = (&pair.first.declared_only, &pair.second.declared_only);
    let of = |name: &str, names: &[String]| {
        format!("The log of {name} does not confirm {}", settings(names))
    };
    match (one.is_empty(), two.is_empty()) {
        (true, true) => None,
        (false, false) if one == two => {
            let verb = if one.len() == 1 { "is" } else { "are" };
            let settings = capital(&settings(one));
            Some(format!("{settings} {verb} confirmed by neither log"))
        }
        (false, true) => Some(of(first, one)),
        (true, false) => Some(of(second, two)),
        (false, false) => Some(format!(
            "{}, that of {second} {}",
            of(first, one),
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
        let total = row.tokens_per_second.filter(|total| total.is_finite());
        total.zip(row.contract.count("num_gpus"))
    };
    let ((first, gpus), (second, others)) = (of(pair.first)?, of(pair.second)?);
    let times = ratio(first / second, None);
    let [first, second] = [first, second].map(number);
    let on = counted(gpus as usize, "GPU");
    (gpus != others).then(|| {
        format!("In total {first} tokens/s on {on} against {second} on {others}, {times}× as much")
    })
}

/// Prices are worth a word only if somebody stated them, they differ, and the speeds do.
fn cost(pair: &Pair<'_>, speedup: &Speedup) -> Option<String> {
    let [a, b] = &**speedup.prices.as_ref()?;
    let is_example = |price: &Price| {
        let source = price.source.as_ref().map(|source| source.to_lowercase());
        source.is_some_and(|source| source.contains("illustrative"))
    };
    let is_one_price =
        a.currency == b.currency && (a.per_gpu_hour / b.per_gpu_hour - 1.0).abs() < 1e-9;
    let value = speedup.cost_ratio.value();
    let value = value.filter(|v| v.is_finite() && *v > 0.0)?;
    if is_example(a) || is_example(b) || is_one_price || speedup.significant != Some(true) {
        return None;
    }
    let (first, second, value) = match pair.is_turned {
        true => (b, a, 1.0 / value),
        false => (a, b, value),
    };
    // Prices are exact: cost is as uncertain as speed.
    let ends = pair
        .ends
        .map(|ends| ends.map(|end| value * pair.ratio / end));
    let ends = ends.map(|[high, low]| [low, high]);
    let value = ratio_beside_1(value, ends.map(|[low, high]| high - low));
    Some(format!(
        "At {:.2} against {:.2} {} per GPU-hour, a token costs {value}×{} as much",
        first.per_gpu_hour,
        second.per_gpu_hour,
        first.currency,
        ends_of_ratio(ends)
    ))
}

/// `A runs with NCCL_DEBUG=INFO, B without it: collectives write logs while they run`
fn environment(found: &EnvironmentDifference, a: &str, b: &str) -> String {
    let name = &found.name;
    let why = found.dangerous.as_deref().unwrap_or_default();
    match (&found.a, &found.b) {
        (Some(of_a), Some(of_b)) => {
            format!("{a} runs with {name}={of_a}, {b} with {name}={of_b}: {why}")
        }
        (Some(of_a), None) => format!("{a} runs with {name}={of_a}, {b} without it: {why}"),
        (None, of_b) => {
            let of_b = of_b.as_deref().unwrap_or_default();
            format!("{b} runs with {name}={of_b}, {a} without it: {why}")
        }
    }
}
