//! The sentence on two cells that were compared: the faster one is its subject.

use tprimat_numbers::figures::{Gaps, Group, Row, Speedup, follows, unknown_differences};
use tprimat_numbers::results::{FieldDifference, Tier, differences, settings::show, words::few};

use super::{
    SpeedVerdict,
    phrases::{at_most, short_step_times, times, unit},
};
use crate::{
    format::{change_range, faster, number, ratio, ratio_beside_1},
    notes::capital,
};

/// A cell and its short name.
type Named<'a> = (&'a Row, &'a str);

/// Two cells in the order of the sentence: the faster one is its subject.
struct Pair<'a> {
    first: &'a Row,
    second: &'a Row,
    first_name: &'a str,
    second_name: &'a str,
    /// Speed of the first ÷ that of the second, and the ends of its interval.
    ratio: f64,
    ends: Option<[f64; 2]>,
    /// The first is the speed-up's baseline.
    is_turned: bool,
}

impl<'a> Pair<'a> {
    fn of(speedup: &Speedup, a: Named<'a>, b: Named<'a>) -> Self {
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

    fn width(&self) -> Option<f64> {
        self.ends.map(|[low, high]| high - low)
    }

    /// The settings of a tier that differ, without those that follow from others.
    fn different_settings(&self, tier: Tier) -> Vec<String> {
        let all = differences(&self.first.contract, &self.second.contract).into_iter();
        let known: Vec<FieldDifference> = all.filter(FieldDifference::is_known).collect();
        let own = known
            .iter()
            .filter(|d| d.tier == tier && !follows(&d.field, &known));
        let words = |d: &FieldDifference| {
            let (a, b) = (show(d.a.as_ref()), show(d.b.as_ref()));
            format!("{} ({a} against {b})", d.field)
        };
        own.map(words).collect()
    }
}

/// `titan (compiled) trains llama 13 % faster than native: 61,894 against 54,838 tokens/s per GPU
/// (95 % CI 11–15 %). Same workload except: compile.` What else is to be known stands in the table and
/// in the notes.
pub(super) fn pair_sentence(group: &Group, speedup: &Speedup, sides: [Named<'_>; 2]) -> String {
    let pair = Pair::of(speedup, sides[0], sides[1]);
    let mut parts = vec![figures(&pair, speedup, &group.model), workload(&pair)];
    parts.extend(unknown_settings(&pair));
    parts.extend(gaps_words(&pair));
    // Recomputation that only one log states costs as much as recomputation in which both differ.
    parts.extend(unstated_speed(&pair));
    let of_timer = |(row, name): Named<'_>| short_step_times(row, &format!("The rate of {name}"));
    parts.extend(sides.into_iter().filter_map(of_timer));
    format!("{}.", parts.join(". "))
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
    let interval = pair.ends.map_or_else(String::new, |ends| {
        format!(" (95 % CI {})", change_range(pair.ratio, ends))
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
            // Runs that were added until a decision came to say how small a difference is.
            if let (Some(pairs), Some(at_most)) = (speedup.pairs, at_most(speedup)) {
                return format!(
                    "{first} and {second} differ by less than {at_most} % on {model}, if at all: {rates}, by {pairs} pairs of runs"
                );
            }
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

/// Did both do the same work, as far as anybody knows? And what did they do differently?
fn workload(pair: &Pair<'_>) -> String {
    let crossed = pair.different_settings(Tier::Workload).join(", ");
    let mut others = pair.different_settings(Tier::Execution);
    others.extend(pair.different_settings(Tier::Convergence));
    if !crossed.is_empty() {
        let also = match others.is_empty() {
            true => String::new(),
            false => format!(". Also different: {}", others.join(", ")),
        };
        return format!("Not the same workload: {crossed}{also}");
    }
    let is_open = gaps_words(pair).is_some() || unstated_speed(pair).is_some();
    let is_declared = [pair.first, pair.second].map(|row| !row.declared_only.is_empty());
    let same = if is_open {
        "Same workload as far as it is stated"
    } else if is_declared.contains(&true) {
        "Declared the same workload"
    } else if unknown_settings(pair).is_some() {
        "Same workload as far as it is known"
    } else {
        "Same workload"
    };
    let unconfirmed = unconfirmed(pair);
    match others.is_empty() {
        true => format!("{same}{unconfirmed}"),
        false => format!("{same}{unconfirmed}, except: {}", others.join(", ")),
    }
}

/// What of the work no log confirms, where that is so of both.
fn unconfirmed(pair: &Pair<'_>) -> String {
    let is_whole = |row: &Row| {
        let mut work = row.contract.0.iter().filter(|f| f.tier == Tier::Workload);
        work.all(|field| row.declared_only.contains(&field.field))
    };
    if is_whole(pair.first) && is_whole(pair.second) {
        return ", which neither log confirms".to_owned();
    }
    let by_both = pair.first.declared_only.iter();
    let by_both: Vec<&String> = by_both
        .filter(|field| pair.second.declared_only.contains(field))
        .collect();
    match by_both.is_empty() {
        true => String::new(),
        false => format!(", of which neither log confirms {}", few(&by_both)),
    }
}

/// What of the work only one of the two states, or neither.
fn gaps_words(pair: &Pair<'_>) -> Option<String> {
    let mut gaps = Gaps::of(&pair.first.contract, &pair.second.contract);
    let is_nameless =
        |row: &Row| row.model == "unknown" && row.contract.get("num_layers").is_none();
    if is_nameless(pair.first) && is_nameless(pair.second) {
        gaps.neither.insert(0, "model".to_owned());
    }
    let words = || capital(&gaps.words(pair.first_name, pair.second_name));
    (!gaps.is_empty()).then(words)
}

/// How many settings differ whose meaning nobody knows; the notes list them.
fn unknown_settings(pair: &Pair<'_>) -> Option<String> {
    let found = unknown_differences(&pair.first.unlisted, &pair.second.unlisted).len();
    (found > 0).then(|| format!("Settings of unknown meaning that differ: {found}"))
}

/// Settings that may explain the difference in speed and that only one side states.
fn unstated_speed(pair: &Pair<'_>) -> Option<String> {
    let gaps = Gaps::of_speed(&pair.first.contract, &pair.second.contract);
    (!gaps.is_empty()).then(|| {
        let gaps = capital(&gaps.words(pair.first_name, pair.second_name));
        format!("{gaps}, so part of a difference in speed may come from there")
    })
}
