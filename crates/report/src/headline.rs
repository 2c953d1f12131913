//! What a person takes away, in a few words a pair: who is how much faster, or why that may not be
//! said. The number comes first, then what it means, then only the reservations that change what a
//! reader would do.

use std::collections::{BTreeMap, BTreeSet};

use tprimat_figures::{
    AbsentCell, Comparison, Difference, EnvironmentDifference, Gaps, Group, Label, Price,
    RatioInterval, RepeatStatus, Row, Speedup, SweepPoint, Unit, Warning, rate_unit, sweeps,
    unit_in_prose,
};
use tprimat_results::{FieldDifference, Tier, differences};
use tprimat_sentences as sentences;
use tprimat_sentences::{each, hours_or_days, said, standing};

use super::{
    format::{change_range, faster, number, ratio, ratio_beside_1},
    mark,
    names::short_names,
    notes::capital,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    /// Index into the comparison's groups; none where two cells may not be compared.
    pub group: Option<usize>,
    /// The cell that it is about, and the one that it is compared with.
    pub a: String,
    pub b: Option<String>,
    pub verdict: Verdict,
    /// Who is how much faster, and whether the work was the same.
    pub short: String,
    /// The same with every reservation.
    pub text: String,
}

/// How the first cell does against the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Faster,
    Slower,
    NoDifference,
    /// The ratio is shown without a verdict: too few repeats, other steps measured, or unknown
    /// whether the work is the same.
    NotAssessed,
    /// The workloads differ, so there is no comparison.
    Refused,
    /// No other cell can be compared with this one.
    Alone,
}

impl Verdict {
    #[must_use]
    pub fn of(speedup: &Speedup) -> Self {
        match speedup.significant {
            _ if !(speedup.ratio.is_finite() && speedup.ratio > 0.0) => Self::NotAssessed,
            Some(true) if speedup.ratio > 1.0 => Self::Faster,
            Some(true) => Self::Slower,
            Some(false) => Self::NoDifference,
            None => Self::NotAssessed,
        }
    }
}

/// The weightiest first: what is refused; then group by group the cells that are faster than the
/// baseline, those that are slower, each the largest difference first; then the others in matrix
/// order.
#[must_use]
pub fn headlines(comparison: &Comparison) -> Vec<Headline> {
    let mut all = refusals(comparison);
    let mixed = mixed(comparison);
    let speedups = comparison.speedups_by_cell();
    let environment = comparison.environment_by_cell();
    let refused: BTreeSet<&str> = comparison
        .differences
        .iter()
        .filter(|d| d.refused)
        .flat_map(|d| [&*d.cell_a, &*d.cell_b])
        .collect();
    for ((index, group), rows) in comparison
        .groups
        .iter()
        .enumerate()
        .zip(comparison.rows_by_group())
    {
        let rows: Vec<&Row> = rows.into_iter().map(|(_, row)| row).collect();
        let names: BTreeMap<&str, String> = rows
            .iter()
            .map(|row| row.cell.as_str())
            .zip(short_names(&rows))
            .collect();
        let name = |row: &Row| names.get(row.cell.as_str()).map_or("", String::as_str);
        let Some(b) = rows.iter().find(|r| r.cell == group.baseline) else {
            continue;
        };
        if let [alone] = rows[..] {
            let others = refused.contains(alone.cell.as_str());
            let (a, text) = (alone.cell.clone(), alone_sentence(alone, others));
            all.push(Headline {
                group: Some(index),
                a,
                b: None,
                verdict: Verdict::Alone,
                short: text.clone(),
                text,
            });
        }
        let others = rows.iter().filter(|r| r.cell != group.baseline);
        let mut pairs: Vec<(&Row, &Speedup)> = others
            .filter_map(|a| {
                Some((
                    *a,
                    *speedups.get(a.cell.as_str()).filter(|s| s.b == b.cell)?,
                ))
            })
            .collect();
        // Large losses would otherwise hide which cells beat the baseline, and a tuned cell against
        // an untuned baseline says more of the tuning than of the framework.
        let rank = |row: &Row, speedup: &Speedup| {
            let is_faster = Verdict::of(speedup) == Verdict::Faster;
            (mixed.contains(row.cell.as_str()), !is_faster)
        };
        pairs.sort_by(|(a, x), (b, y)| {
            rank(a, x)
                .cmp(&rank(b, y))
                .then(weight(y).total_cmp(&weight(x)))
        });
        all.extend(rows.iter().filter_map(|row| {
            let other = row.same_runs_as.as_ref()?;
            let text = format!(
                "{} is not compared: it has the same runs as {other}, imported twice. \
                 `tprimat attempts set-aside {} --reason TEXT` takes one of the two back.",
                named(row),
                row.cell
            );
            let (a, b) = (row.cell.clone(), Some(other.clone()));
            Some(Headline {
                group: None,
                a,
                b,
                verdict: Verdict::Refused,
                short: text.clone(),
                text,
            })
        }));
        all.extend(pairs.into_iter().map(|(a, speedup)| {
            let environment = environment
                .get(a.cell.as_str())
                .copied()
                .unwrap_or_default();
            let (short, text) =
                pair_sentence(environment, group, speedup, (a, name(a)), (*b, name(b)));
            let (verdict, b) = (Verdict::of(speedup), Some(b.cell.clone()));
            Headline {
                group: Some(index),
                a: a.cell.clone(),
                b,
                verdict,
                short,
                text,
            }
        }));
    }
    all
}

/// Cells of a sweep over several frameworks that have another value of its axis than the baseline
/// of their workload.
fn mixed(comparison: &Comparison) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for sweep in sweeps(comparison).iter().filter(|s| s.surfaces.len() > 1) {
        let points = || sweep.surfaces.iter().flat_map(|surface| &surface.points);
        let cell = |point: &SweepPoint| comparison.rows[point.row].cell.as_str();
        for point in points() {
            let baseline = &comparison.groups[comparison.rows[point.row].group].baseline;
            let base = points().find(|other| cell(other) == baseline);
            if base.is_some_and(|base| (base.x, base.second) != (point.x, point.second)) {
                found.insert(cell(point));
            }
        }
    }
    found
}

/// Above 0 by the size of what is significant; twice as fast weighs as much as half as fast,
/// whatever the last bits are.
fn weight(speedup: &Speedup) -> f64 {
    match Verdict::of(speedup) {
        // Told already, under another name.
        _ if speedup.same_as.is_some() => -2.0,
        Verdict::Faster | Verdict::Slower => (speedup.ratio.ln().abs() * 1e9).round(),
        Verdict::NoDifference => 0.0,
        Verdict::NotAssessed | Verdict::Refused | Verdict::Alone => -1.0,
    }
}

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
    fn of(speedup: &Speedup, a: (&'a Row, &'a str), b: (&'a Row, &'a str)) -> Self {
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
fn pair_sentence(
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
    let doubts: Vec<String> = [(a, name_a), (b, name_b)]
        .into_iter()
        .filter_map(|(row, name)| short_step_times(row, &format!("The rate of {name}")))
        .collect();
    let short: Vec<String> = parts
        .iter()
        .take(2)
        .cloned()
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
             the option --together of `tprimat build` measures both anew, in turns",
            duration(seconds)
        ));
    }
    for (row, name) in [(a, name_a), (b, name_b)] {
        if row.repeats_added_later {
            parts.push(format!(
                "Repeats of {name} were added after the first results were seen"
            ));
        }
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
    // That both are one measurement is the reason above.
    if a.launches_as(b) && !a.is_measured_as(b) {
        parts.push(format!("{name_a} {}", same_as(a, name_b, Some(b))));
    }
    parts.extend(unnamed_hosts(&[a, b]));
    let of_pair = environment_of_a.iter().filter(|e| e.cell_b == b.cell);
    let dangerous: Vec<_> = of_pair.filter(|e| e.dangerous.is_some()).collect();
    parts.extend(dangerous.iter().map(|e| environment(e, name_a, name_b)));
    for (row, name) in [(a, name_a), (b, name_b)] {
        // What only one of the two runs with is among the differences.
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

/// That the clock shows step times to be too short.
fn short_step_times(row: &Row, rate: &str) -> Option<String> {
    let factor = row.timer_factor?;
    Some(format!(
        "{rate} may be {factor:.1}× too high: by the clock, its step times leave out time that passes after most steps"
    ))
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
    match Verdict::of(speedup) {
        Verdict::Faster | Verdict::Slower => {
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
        Verdict::NoDifference => {
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

fn unit(rows: &[&Row]) -> String {
    unit_in_prose(rate_unit(rows.iter().copied()))
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
        _ => false,
    }
}

/// The settings of a tier that differ, without those that follow from others.
fn different_settings(pair: &Pair<'_>, tier: Tier) -> Vec<String> {
    let known: Vec<FieldDifference> = differences(&pair.first.contract, &pair.second.contract)
        .into_iter()
        .filter(FieldDifference::is_known)
        .collect();
    let own = known
        .iter()
        .filter(|d| d.tier == tier && !follows(&d.field, &known));
    own.map(|d| difference(d, pair)).collect()
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
    let mut parts = Vec::new();
    if !crossed.is_empty() {
        parts.push(format!("Not the same workload: {}", crossed.join(", ")));
        parts.extend(
            (!execution.is_empty()).then(|| format!("Also different: {}", execution.join(", "))),
        );
    } else if by_labels_only(first) && by_labels_only(second) {
        parts.push(if gaps.is_empty() {
            "Same workload by their labels only: neither log confirms any of it".to_owned()
        } else {
            "The labels of their files agree, but neither log confirms them, so the workloads may differ".to_owned()
        });
    } else if gaps.is_empty() && only_declared(pair).is_some() {
        // A log that confirms less than everything leaves the rest to the job that was asked for.
        parts.push(if execution.is_empty() {
            "Declared the same workload".to_owned()
        } else {
            format!(
                "Declared the same workload, except: {}",
                execution.join(", ")
            )
        });
    } else if !gaps.is_empty() && !execution.is_empty() {
        parts.push(format!(
            "Same workload as far as it is stated, except: {}",
            execution.join(", ")
        ));
    } else if !gaps.is_empty() {
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
    // What they drop as warm-up is told from the cell's side, not the baseline's.
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
            "In total {} tokens/s on {gpus} GPUs against {} on {others}, {times}",
            number(first),
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

/// What is to be known of a cell that launches what the cell `name` does; `twin` is its row, if it
/// has figures.
pub(super) fn same_as(row: &Row, name: &str, twin: Option<&Row>) -> String {
    match twin {
        Some(twin) if row.is_measured_as(twin) => format!("has the same measurements as {name}"),
        Some(_) => format!(
            "launches the very same bytes as {name}, so any difference between them is noise"
        ),
        None => format!("launches the very same bytes as {name}, which has no figures"),
    }
}

/// `A runs with NCCL_DEBUG=INFO: collectives write logs while they run`
fn warned(row: &Row, name: &str, wanted: impl Fn(&Warning) -> bool) -> Option<String> {
    let warnings = each(row.warnings.iter().filter(|w| wanted(w)));
    (!warnings.is_empty()).then(|| format!("{name} runs with {}", warnings.join(", ")))
}

/// Sentences of a group that are told before its table.
const LEADING: usize = 3;

/// What of many is told before a table: they are in order of weight.
pub(super) fn leading<'a>(sentences: &[&'a Headline]) -> Vec<&'a Headline> {
    sentences.iter().take(LEADING).copied().collect()
}

/// How many sentences are left to the table, if any.
pub(super) fn more(sentences: &[&Headline]) -> Option<String> {
    let more = sentences.len().saturating_sub(LEADING);
    (more > 0).then(|| format!("And {more} more, in the table"))
}

/// The headlines of each group, in their order.
pub(super) fn by_group<'a>(comparison: &Comparison, all: &'a [Headline]) -> Vec<Vec<&'a Headline>> {
    let mut groups = vec![Vec::new(); comparison.groups.len()];
    for headline in all {
        if let Some(group) = headline.group {
            groups[group].push(headline);
        }
    }
    groups
}

/// What may not be compared, and how many more pairs are left to the notes.
pub(super) fn refused(sentences: &[Headline]) -> (Vec<&Headline>, usize) {
    const MOST: usize = 10;
    let all: Vec<&Headline> = sentences
        .iter()
        .filter(|h| h.verdict == Verdict::Refused)
        .collect();
    let more = all.len().saturating_sub(MOST);
    (all.into_iter().take(MOST).collect(), more)
}

/// `1.31×`
pub(super) fn times(speedup: &Speedup) -> String {
    let width = speedup.interval.map(|i| i.high - i.low);
    // What is called faster or slower is not told to be as fast.
    let print = if speedup.significant == Some(true) {
        ratio_beside_1
    } else {
        ratio
    };
    format!("{}×", print(speedup.ratio, width))
}

/// `95 % CI 1.29–1.33`. Where a table has several comparisons it is wider than that, and a note
/// says so once.
pub(super) fn interval(speedup: &Speedup) -> Option<String> {
    let RatioInterval { low, high, .. } = speedup.interval?;
    let width = Some(high - low).filter(|width| width.is_finite())?;
    Some(format!(
        "95 % CI {}–{}",
        ratio_beside_1(low, Some(width)),
        ratio_beside_1(high, Some(width))
    ))
}

/// `others`: there are cells that it may not be compared with.
fn alone_sentence(row: &Row, others: bool) -> String {
    let name = named(row);
    if let Some(reason) = row.impossible() {
        return format!(
            "The rate of {name} on {} is impossible: {}.",
            row.model,
            said(reason)
        );
    }
    let estimate = &row.tokens_per_second_per_gpu;
    let over = over_hosts(&[row]);
    let interval = match estimate.ci95 {
        Some([lo, hi]) => format!(" (95 % CI {}–{}{over})", number(lo), number(hi)),
        None => String::new(),
    };
    let why = if others {
        "No other cell has a comparable workload"
    } else {
        "There is no other cell to compare it with"
    };
    let rate = format!(
        "{name} trains {} at {} {}{interval}",
        row.model,
        number(estimate.value),
        unit(&[row])
    );
    let mut parts = vec![rate];
    parts.extend(short_step_times(row, "This rate"));
    parts.push(why.to_owned());
    parts.extend(unnamed_hosts(&[row]));
    parts.extend(warned(row, &name, |_| true));
    format!("{}.", parts.join(". "))
}

/// Fields that somebody may have reason to compare across.
const CROSSABLE: [&str; 6] = [
    "precision",
    "seq_length",
    "global_batch_size",
    "num_gpus",
    "optimizer",
    "data",
];

/// ` `--across precision` compares them all the same.`; nothing where no field in the way is one to
/// compare across: tokens/s of two models say nothing of each other.
pub(super) fn across(fields: &[&str]) -> String {
    if fields.iter().all(|field| CROSSABLE.contains(field)) {
        format!(
            " `--across {}` compares them all the same.",
            fields.join(",")
        )
    } else {
        String::new()
    }
}

/// Cells none of whose runs counts because a log contradicts what its run is said to be: what it is
/// and what it contradicts. Whatever is declared of them is no fact.
pub(super) fn contradicted(
    comparison: &Comparison,
) -> BTreeMap<&str, (&'static str, &'static str)> {
    let of = |absent: &'_ &AbsentCell| absent.contradicted > 0;
    let claim = |absent: &AbsentCell| {
        if absent.imported.is_empty() {
            ("log", "job")
        } else {
            ("file", "label")
        }
    };
    let absent = comparison.absent.iter().filter(of);
    absent
        .map(|absent| (absent.cell.as_str(), claim(absent)))
        .collect()
}

/// One sentence a pair, with every field that forbids it.
fn refusals(comparison: &Comparison) -> Vec<Headline> {
    let refused: Vec<_> = comparison
        .differences
        .iter()
        .filter(|d| d.refused)
        .collect();
    let pairs = refused.chunk_by(|x, y| (&x.cell_a, &x.cell_b) == (&y.cell_a, &y.cell_b));
    let contradicted = contradicted(comparison);
    let unknown = |a: &str, b: &str| {
        let (cell, (file, claim)) = [a, b]
            .into_iter()
            .find_map(|c| contradicted.get_key_value(c))?;
        Some(format!(
            "{a} and {b} are not compared, because the {file} of {cell} contradicts its {claim}: what it trained is not known."
        ))
    };
    let sentence = |of_pair: &[&Difference]| {
        let fields: Vec<String> = of_pair
            .iter()
            .map(|d| sentences::difference(&d.field))
            .collect();
        let names: Vec<&str> = of_pair.iter().map(|d| &*d.field.field).collect();
        let (a, b) = (&of_pair[0].cell_a, &of_pair[0].cell_b);
        let differ = || {
            format!(
                "{a} and {b} may not be compared, because they differ in {}.{}",
                fields.join("; "),
                across(&names)
            )
        };
        let text = unknown(a, b).unwrap_or_else(differ);
        let (a, b) = (a.clone(), Some(b.clone()));
        Headline {
            group: None,
            a,
            b,
            verdict: Verdict::Refused,
            short: text.clone(),
            text,
        }
    };
    pairs.map(sentence).collect()
}

fn named(row: &Row) -> String {
    format!("{}{}", row.cell, mark(&row.imported))
}

/// What an interval speaks of, where that is hosts in general.
fn over_hosts(rows: &[&Row]) -> &'static str {
    let is_over_hosts = rows
        .iter()
        .all(|r| r.tokens_per_second_per_gpu.unit == Unit::Host);
    if is_over_hosts { ", over hosts" } else { "" }
}

/// An imported log may not say where it was written.
fn unnamed_hosts(rows: &[&Row]) -> Option<String> {
    let counted = rows
        .iter()
        .flat_map(|r| &r.repeats)
        .filter(|r| r.status == RepeatStatus::Ok);
    let hosts: BTreeSet<&str> = counted.map(|r| r.host.as_str()).collect();
    let is_unnamed = |host: &&str| ["", "not stated"].contains(host);
    let unnamed = hosts.iter().filter(|host| is_unnamed(host)).count();
    match (unnamed, hosts.len()) {
        (0, _) => None,
        (_, n) if n == unnamed && rows.len() == 1 => {
            Some("The log does not name its host".to_owned())
        }
        (_, n) if n == unnamed => Some("Neither log names its host".to_owned()),
        _ => Some("Some logs do not name their host".to_owned()),
    }
}

/// `30 days`, `8 hours`
pub(super) fn duration(seconds: f64) -> String {
    let (n, unit) = hours_or_days(seconds);
    format!("{n:.0} {unit}")
}

mod ranking;
pub use ranking::ranking;

#[cfg(test)]
mod tests;
