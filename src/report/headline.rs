//! What a person takes away, in a few words a pair: who is how much faster, or why that may not be said. The number
//! comes first, then what it means, then only the reservations that change what a reader would do.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    format::{MISSING, number, ratio, ratio_beside_1},
    mark,
    names::short_names,
    notes::capital,
};
use crate::analyze::{
    Comparison, Difference, EnvironmentDifference, FieldDifference, Gaps, Group, Price, RatioInterval, RepeatStatus,
    Row, Speedup, Tier, Unit, decimals_beside, differences, few, hours_or_days,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    /// Index into the comparison's groups; none where two cells may not be compared.
    pub group: Option<usize>,
    /// The cell that it is about, and the one that it is compared with.
    pub a: String,
    pub b: Option<String>,
    pub verdict: Verdict,
    pub text: String,
}

/// How the first cell does against the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Faster,
    Slower,
    NoDifference,
    /// The ratio is shown without a verdict: too few repeats, other steps measured, or unknown whether the work is the same.
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

/// The weightiest first: what is refused; then group by group the significant differences, the largest first; then the
/// others in matrix order.
#[must_use]
pub fn headlines(comparison: &Comparison) -> Vec<Headline> {
    let mut all = refusals(comparison);
    let speedups = comparison.speedups_by_cell();
    for (index, group) in comparison.groups.iter().enumerate() {
        let rows: Vec<&Row> = comparison.rows.iter().filter(|r| r.group == index).collect();
        let names: BTreeMap<&str, String> = rows.iter().map(|row| row.cell.as_str()).zip(short_names(&rows)).collect();
        let name = |row: &Row| names.get(row.cell.as_str()).map_or("", String::as_str);
        let Some(b) = rows.iter().find(|r| r.cell == group.baseline) else { continue };
        if let [alone] = rows[..] {
            let is_refused = |d: &&Difference| d.refused && [&d.cell_a, &d.cell_b].contains(&&alone.cell);
            let others = comparison.differences.iter().any(|d| is_refused(&d));
            let (a, text) = (alone.cell.clone(), alone_sentence(alone, others));
            all.push(Headline { group: Some(index), a, b: None, verdict: Verdict::Alone, text });
        }
        let others = rows.iter().filter(|r| r.cell != group.baseline);
        let mut pairs: Vec<(&Row, &Speedup)> =
            others.filter_map(|a| Some((*a, *speedups.get(a.cell.as_str()).filter(|s| s.b == b.cell)?))).collect();
        pairs.sort_by(|(_, x), (_, y)| weight(y).total_cmp(&weight(x)));
        all.extend(pairs.into_iter().map(|(a, speedup)| Headline {
            group: Some(index),
            a: a.cell.clone(),
            b: Some(b.cell.clone()),
            verdict: Verdict::of(speedup),
            text: pair_sentence(comparison, group, speedup, (a, name(a)), (*b, name(b))),
        }));
    }
    all
}

/// Above 0 by the size of what is significant; twice as fast weighs as much as half as fast, whatever the last bits are.
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
        let ends = speedup.interval.map(|i| [i.low, i.high]).filter(|ends| ends.iter().all(|end| end.is_finite()));
        let is_turned = speedup.ratio < 1.0;
        let ((first, first_name), (second, second_name)) = if is_turned { (b, a) } else { (a, b) };
        let (ratio, ends) = if is_turned {
            (1.0 / speedup.ratio, ends.map(|[low, high]| [1.0 / high, 1.0 / low]))
        } else {
            (speedup.ratio, ends)
        };
        Self { first, second, first_name, second_name, ratio, ends, is_turned }
    }
}

/// `titan (compiled) trains llama 13 % faster than native: 61,894 against 54,838 tokens/s per GPU (95 % CI 11–15 %). Same
/// workload except: compile.`
fn pair_sentence(
    comparison: &Comparison,
    group: &Group,
    speedup: &Speedup,
    (a, name_a): (&Row, &str),
    (b, name_b): (&Row, &str),
) -> String {
    let pair = Pair::of(speedup, (a, name_a), (b, name_b));
    let mut parts = vec![figures(&pair, speedup, &group.model), workload(&pair)];
    parts.extend(totals(&pair));
    parts.extend(cost(&pair, speedup));
    parts.extend(speedup.reason.as_ref().map(|reason| format!("No verdict: {reason}")));
    if let Some(seconds) = speedup.apart_seconds {
        parts.push(format!(
            "They were measured {} apart, and the interval does not cover what changed in between: \
             `tprimat build --remeasure` measures both anew",
            duration(seconds)
        ));
    }
    for (row, name) in [(a, name_a), (b, name_b)] {
        if row.repeats_added_later {
            parts.push(format!("Repeats of {name} were added after the first results were seen"));
        }
        parts.extend(row.standing.words().iter().map(|words| format!("{name}: {words}")));
        if row.dropped.iter().any(|d| d.remeasured > 0 || !d.set_aside.is_empty()) {
            parts.push(format!("Measurements of {name} were replaced after they were seen"));
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
    let of_pair = comparison.environment.iter().filter(|e| e.cell_a == a.cell && e.cell_b == b.cell);
    let dangerous: Vec<_> = of_pair.filter(|e| e.dangerous.is_some()).collect();
    parts.extend(dangerous.iter().map(|e| environment(e, name_a, name_b)));
    for (row, name) in [(a, name_a), (b, name_b)] {
        // What only one of the two runs with is among the differences.
        let is_told = |warning: &&String| dangerous.iter().any(|e| warning.split('=').next() == Some(&e.name));
        parts.extend(warned(row, name, |warning| !is_told(&warning)));
    }
    format!("{}.", parts.join(". "))
}

/// Who is how much faster, with both rates and the interval.
fn figures(pair: &Pair<'_>, speedup: &Speedup, model: &str) -> String {
    let Pair { first, second, first_name, second_name, ratio, ends, .. } = pair;
    let rate = |row: &Row| number(row.tokens_per_second_per_gpu.value);
    let rates = format!("{} against {} {}", rate(first), rate(second), unit(&[first, second]));
    let width = ends.map(|[low, high]| high - low);
    let over = over_hosts(&[first, second]);
    let interval = ends.map(|ends| format!(" (95 % CI {}{over})", change_range(*ratio, ends))).unwrap_or_default();
    match Verdict::of(speedup) {
        Verdict::Faster | Verdict::Slower => {
            format!("{first_name} trains {model} {} {second_name}: {rates}{interval}", faster(*ratio, width))
        }
        Verdict::NoDifference => {
            format!("{first_name} and {second_name} show no significant difference on {model}: {rates}{interval}")
        }
        _ => format!(
            "{first_name} trains {model} at {} {}, {second_name} at {}{}",
            rate(first),
            unit(&[first, second]),
            rate(second),
            of_ratio(*ratio, *ends)
        ),
    }
}

/// `: 1.13×`, and its interval; nothing where it is not a ratio.
fn of_ratio(value: f64, ends: Option<[f64; 2]>) -> String {
    if !(value.is_finite() && value > 0.0) {
        return String::new();
    }
    let width = ends.map(|[low, high]| high - low);
    let interval =
        ends.map(|[low, high]| format!(" (95 % CI {}–{})", ratio_beside_1(low, width), ratio_beside_1(high, width)));
    format!(": {}×{}", ratio(value, width), interval.unwrap_or_default())
}

/// From here on, a factor is easier to read than per cent.
const FACTOR: f64 = 2.0;

/// `13 % faster than`, `2.6× as fast as`
fn faster(value: f64, width: Option<f64>) -> String {
    if value < FACTOR {
        format!("{} % faster than", points(value, width))
    } else {
        format!("{}× as fast as", ratio(value, width))
    }
}

/// `11–15 %`, `−0.6 to +1.0 %`, `2.5–2.7×`: a speed as [`faster`] says it.
fn change_range(value: f64, [low, high]: [f64; 2]) -> String {
    let width = Some(high - low);
    if value >= FACTOR {
        format!("{}–{}×", ratio_beside_1(low, width), ratio_beside_1(high, width))
    } else if low >= 1.0 {
        format!("{}–{} %", points(low, width), points(high, width))
    } else {
        let signed =
            |end: f64| format!("{}{}", if end < 1.0 { "−" } else { "+" }, points(end, width).trim_start_matches('-'));
        format!("{} to {} %", signed(low), signed(high))
    }
}

/// Per cent above 1, with as many decimals as the width of the interval calls for and as show on which side of 1 it lies.
fn points(value: f64, width: Option<f64>) -> String {
    let percent = (value - 1.0) * 100.0;
    if !percent.is_finite() {
        return MISSING.to_owned();
    }
    let least = match width.map_or(percent.abs() / 4.0, |width| width * 100.0) {
        w if w >= 2.0 => 0,
        w if w >= 0.2 => 1,
        w if w >= 0.02 => 2,
        _ => 3,
    };
    format!("{percent:.*}", decimals_beside(percent, 0.0, least))
}

/// One device of the platform `cpu` is the whole host.
fn unit(rows: &[&Row]) -> &'static str {
    if rows.iter().all(|row| row.platform == "cpu") { "tokens/s" } else { "tokens/s per GPU" }
}

/// Settings that follow from others that differ as well, so that naming them says nothing new.
fn follows(field: &str, all: &[FieldDifference]) -> bool {
    let has = |names: &[&str]| all.iter().any(|d| names.contains(&&*d.field));
    match field {
        "gradient_accumulation_steps" => has(&["micro_batch_size", "data_parallel_size"]),
        "data_parallel_size" => {
            has(&["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "num_gpus"])
        }
        _ => false,
    }
}

/// Did both do the same work, as far as anybody knows? And what did they do differently?
fn workload(pair: &Pair<'_>) -> String {
    let Pair { first, second, first_name, second_name, .. } = pair;
    let known: Vec<FieldDifference> =
        differences(&first.contract, &second.contract).into_iter().filter(FieldDifference::is_known).collect();
    let of = |tier: Tier| -> Vec<String> {
        let own = known.iter().filter(|d| d.tier == tier && !follows(&d.field, &known));
        own.map(|d| difference(d, pair)).collect()
    };
    let (crossed, execution) = (of(Tier::Workload), of(Tier::Execution));
    let gaps = Gaps::of(&first.contract, &second.contract);
    let mut parts = Vec::new();
    if !crossed.is_empty() {
        parts.push(format!("Not the same workload: {}", crossed.join(", ")));
        if !execution.is_empty() {
            parts.push(format!("Also different: {}", execution.join(", ")));
        }
    } else if by_labels_only(first) && by_labels_only(second) {
        parts.push("Same workload by their labels only: neither log confirms any of it".to_owned());
    } else if !gaps.is_empty() && !execution.is_empty() {
        parts.push(format!("Same workload as far as it is stated, except: {}", execution.join(", ")));
    } else if !gaps.is_empty() {
        parts.push("Same workload as far as it is stated".to_owned());
    } else if execution.is_empty() {
        parts.push("Same workload".to_owned());
    } else {
        parts.push(format!("Same workload except: {}", execution.join(", ")));
    }
    if !gaps.is_empty() {
        parts.push(capital(&gaps.words(first_name, second_name)));
    }
    if !by_labels_only(first) || !by_labels_only(second) {
        parts.extend(only_declared(pair));
    }
    // What they drop as warm-up is told from the cell's side, not the baseline's.
    let name = if pair.is_turned { second_name } else { first_name };
    let cell = if pair.is_turned { second } else { first };
    parts.extend(cell.labels.iter().filter(|label| is_of_warm_up(label)).map(|label| format!("{name}: {label}")));
    parts.join(". ")
}

fn is_of_warm_up(label: &str) -> bool {
    let label = label.strip_prefix("across ").unwrap_or(label);
    label.starts_with("warm-up ") || label.starts_with("steady state ")
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
    format!("{} ({} against {})", found.field, value(&found.a), value(&found.b))
}

/// Everything that is known of the work of an imported run comes from the labels of its file.
fn by_labels_only(row: &Row) -> bool {
    !row.imported.is_empty() && all_declared(row)
}

fn all_declared(row: &Row) -> bool {
    let workload = row.contract.0.iter().filter(|f| f.tier == Tier::Workload).count();
    workload > 0 && workload == row.declared_only.len()
}

/// Settings of the work that a log does not confirm.
fn only_declared(pair: &Pair<'_>) -> Option<String> {
    let Pair { first, second, first_name, second_name, .. } = pair;
    if all_declared(first) && all_declared(second) {
        return Some("Neither log confirms it".to_owned());
    }
    let (one, two) = (&first.declared_only, &second.declared_only);
    match (one.is_empty(), two.is_empty()) {
        (true, true) => None,
        (false, false) if one == two => Some(format!("Neither log confirms {}", few(one))),
        (false, true) => Some(format!("The log of {first_name} does not confirm {}", few(one))),
        (true, false) => Some(format!("The log of {second_name} does not confirm {}", few(two))),
        (false, false) => {
            Some(format!("The log of {first_name} does not confirm {}, that of {second_name} {}", few(one), few(two)))
        }
    }
}

/// `In total 79,123 tokens/s on 8 GPUs against 10,685 on 1`: a rate of one device alone hides that there are more.
fn totals(pair: &Pair<'_>) -> Option<String> {
    let of = |row: &Row| row.tokens_per_second.filter(|t| t.is_finite()).zip(row.contract.count("num_gpus"));
    let ((first, gpus), (second, others)) = (of(pair.first)?, of(pair.second)?);
    let times = format!("{}× as much", ratio(first / second, None));
    (gpus != others).then(|| {
        format!("In total {} tokens/s on {gpus} GPUs against {} on {others}, {times}", number(first), number(second))
    })
}

/// Prices are worth a word only if somebody stated them, they differ, and the speeds do.
fn cost(pair: &Pair<'_>, speedup: &Speedup) -> Option<String> {
    let [a, b] = &**speedup.prices.as_ref()?;
    let is_example = |price: &Price| price.source.as_ref().is_some_and(|s| s.to_lowercase().contains("illustrative"));
    let is_one_price = a.currency == b.currency && (a.per_gpu_hour / b.per_gpu_hour - 1.0).abs() < 1e-9;
    let ratio_of_cost = speedup.cost_ratio.value().filter(|v| v.is_finite() && *v > 0.0)?;
    if is_example(a) || is_example(b) || is_one_price || speedup.significant != Some(true) {
        return None;
    }
    let turned = |value: f64| if pair.is_turned { 1.0 / value } else { value };
    let (first, second) = if pair.is_turned { (b, a) } else { (a, b) };
    let value = turned(ratio_of_cost);
    // Prices are exact: cost is as uncertain as speed.
    let ends = pair.ends.map(|[low, high]| [value * pair.ratio / high, value * pair.ratio / low]);
    let width = ends.map(|[low, high]| high - low);
    let interval =
        ends.map(|[low, high]| format!(" (95 % CI {}–{})", ratio_beside_1(low, width), ratio_beside_1(high, width)));
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
    let (name, why) = (&found.name, found.dangerous.as_deref().unwrap_or_default());
    match (&found.a, &found.b) {
        (Some(of_a), Some(of_b)) => format!("{a} runs with {name}={of_a}, {b} with {name}={of_b}: {why}"),
        (Some(of_a), None) => format!("{a} runs with {name}={of_a}, {b} without it: {why}"),
        (None, of_b) => {
            format!("{b} runs with {name}={}, {a} without it: {why}", of_b.as_deref().unwrap_or_default())
        }
    }
}

/// What is to be known of a cell that launches what the cell `name` does; `twin` is its row, if it has figures.
pub(super) fn same_as(row: &Row, name: &str, twin: Option<&Row>) -> String {
    if twin.is_some_and(|twin| row.is_measured_as(twin)) {
        format!("has the same measurements as {name}")
    } else {
        format!("launches the very same bytes as {name}, so any difference between them is noise")
    }
}

/// `A runs with NCCL_DEBUG=INFO: collectives write logs while they run`
fn warned(row: &Row, name: &str, wanted: impl Fn(&String) -> bool) -> Option<String> {
    let warnings: Vec<&str> = row.warnings.iter().filter(|w| wanted(w)).map(String::as_str).collect();
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

/// What may not be compared, and how many more pairs are left to the notes.
pub(super) fn refused(sentences: &[Headline]) -> (Vec<&Headline>, usize) {
    const MOST: usize = 10;
    let all: Vec<&Headline> = sentences.iter().filter(|h| h.verdict == Verdict::Refused).collect();
    let more = all.len().saturating_sub(MOST);
    (all.into_iter().take(MOST).collect(), more)
}

/// `1.31×`
pub(super) fn times(speedup: &Speedup) -> String {
    let width = speedup.interval.map(|i| i.high - i.low);
    // What is called faster or slower is not told to be as fast.
    let print = if speedup.significant == Some(true) { ratio_beside_1 } else { ratio };
    format!("{}×", print(speedup.ratio, width))
}

/// `95 % CI 1.29–1.33`. Where a table has several comparisons it is wider than that, and a note says so once.
pub(super) fn interval(speedup: &Speedup) -> Option<String> {
    let RatioInterval { low, high, .. } = speedup.interval?;
    let width = Some(high - low).filter(|width| width.is_finite())?;
    Some(format!("95 % CI {}–{}", ratio_beside_1(low, Some(width)), ratio_beside_1(high, Some(width))))
}

/// `others`: there are cells that it may not be compared with.
fn alone_sentence(row: &Row, others: bool) -> String {
    let name = named(row);
    if let Some(reason) = row.impossible() {
        return format!("The rate of {name} on {} is impossible: {reason}.", row.model);
    }
    let estimate = &row.tokens_per_second_per_gpu;
    let over = over_hosts(&[row]);
    let interval = match estimate.ci95 {
        Some([lo, hi]) => format!(" (95 % CI {}–{}{over})", number(lo), number(hi)),
        None => String::new(),
    };
    let why =
        if others { "No other cell has a comparable workload" } else { "There is no other cell to compare it with" };
    let rate = format!("{name} trains {} at {} {}{interval}", row.model, number(estimate.value), unit(&[row]));
    let mut parts = vec![rate, why.to_owned()];
    parts.extend(unnamed_hosts(&[row]));
    parts.extend(warned(row, &name, |_| true));
    format!("{}.", parts.join(". "))
}

/// One sentence a pair, with every field that forbids it.
fn refusals(comparison: &Comparison) -> Vec<Headline> {
    let refused: Vec<_> = comparison.differences.iter().filter(|d| d.refused).collect();
    let pairs = refused.chunk_by(|x, y| (&x.cell_a, &x.cell_b) == (&y.cell_a, &y.cell_b));
    let sentence = |of_pair: &[&Difference]| {
        let fields: Vec<String> = of_pair.iter().map(|d| d.field.sentence()).collect();
        let names: Vec<&str> = of_pair.iter().map(|d| &*d.field.field).collect();
        let (a, b) = (&of_pair[0].cell_a, &of_pair[0].cell_b);
        let text = format!(
            "{a} and {b} may not be compared, because they differ in {}. `--across {}` compares them all the same.",
            fields.join("; "),
            names.join(",")
        );
        Headline { group: None, a: a.clone(), b: Some(b.clone()), verdict: Verdict::Refused, text }
    };
    pairs.map(sentence).collect()
}

fn named(row: &Row) -> String {
    format!("{}{}", row.cell, mark(&row.imported))
}

/// What an interval speaks of, where that is hosts in general.
fn over_hosts(rows: &[&Row]) -> &'static str {
    let is_over_hosts = rows.iter().all(|r| r.tokens_per_second_per_gpu.unit == Unit::Host);
    if is_over_hosts { ", over hosts" } else { "" }
}

/// An imported log may not say where it was written.
fn unnamed_hosts(rows: &[&Row]) -> Option<String> {
    let counted = rows.iter().flat_map(|r| &r.repeats).filter(|r| r.status == RepeatStatus::Ok);
    let hosts: BTreeSet<&str> = counted.map(|r| r.host.as_str()).collect();
    let is_unnamed = |host: &&str| ["", "not stated"].contains(host);
    let unnamed = hosts.iter().filter(|host| is_unnamed(host)).count();
    match (unnamed, hosts.len()) {
        (0, _) => None,
        (_, n) if n == unnamed && rows.len() == 1 => Some("The log does not name its host".to_owned()),
        (_, n) if n == unnamed => Some("Neither log names its host".to_owned()),
        _ => Some("Some logs do not name their host".to_owned()),
    }
}

/// `30 days`, `8 hours`
pub(super) fn duration(seconds: f64) -> String {
    let (n, unit) = hours_or_days(seconds);
    format!("{n:.0} {unit}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::analyze::{Catalogue, CompareSettings, EnvironmentDifference, Figure, compare, tests::*};

    fn two(times: &[f64], other: impl FnOnce(&mut crate::plan::Job), across: &[&str]) -> Comparison {
        let mut job = test_job();
        other(&mut job);
        let cells = [
            measured("nvd/nemo/llama/single", &test_job(), &[1.0, 1.01, 0.99, 1.0], None),
            measured("amd/prim/llama/single", &job, times, None),
        ];
        let across = across.iter().map(|s| (*s).to_owned()).collect();
        compare(&cells, &CompareSettings { across, ..Default::default() }, &Catalogue::default())
    }

    fn only(comparison: &Comparison) -> Headline {
        let mut all = headlines(comparison);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// The pair's first figures: `… trains llama 2.00× as fast as …`.
    #[test]
    fn the_faster_one_is_the_subject_and_the_number_comes_first() {
        let found = only(&two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]));
        assert_eq!(found.verdict, Verdict::Faster);
        let words =
            "amd/prim trains llama 2.00× as fast as nvd/nemo: 2,048 against 1,024 tokens/s per GPU (95 % CI 1.9";
        assert!(found.text.starts_with(words), "{found:?}");
        assert!(
            found.text.ends_with("Neither log confirms architecture, num_layers, hidden_size and 10 more."),
            "{found:?}"
        );
        let turned = only(&two(&[2.0, 2.02, 1.98, 2.0], |_| {}, &[]));
        assert_eq!(turned.verdict, Verdict::Slower, "the verdict is on the cell, the sentence on the faster one");
        assert!(
            turned.text.starts_with("nvd/nemo trains llama 2.00× as fast as amd/prim: 1,024 against 512"),
            "{turned:?}"
        );
        let little = only(&two(&[0.88, 0.8801, 0.8799, 0.88], |_| {}, &[]));
        assert!(little.text.starts_with("amd/prim trains llama 14 % faster than nvd/nemo: "), "{little:?}");
        assert!(little.text.contains(" (95 % CI 12–15 %). Same workload. "), "{little:?}");
    }

    #[test]
    fn what_is_done_differently_is_named_once_and_what_follows_from_it_is_not() {
        let other = |job: &mut crate::plan::Job| {
            job.data.micro_batch_size *= 2;
            job.data.gradient_accumulation_steps = 1;
            job.compile = true;
        };
        let found = only(&two(&[0.5, 0.505, 0.495, 0.5], other, &[]));
        let words = ". Same workload except: compile (true against false), micro_batch_size (";
        assert!(found.text.contains(words) && !found.text.contains("gradient_accumulation"), "{found:?}");
    }

    #[test]
    fn the_names_say_who_compiles() {
        let mut compiled = test_job();
        compiled.compile = true;
        let cells = [
            measured("nvd/native/llama/single@compile=false", &test_job(), &[1.0, 1.01, 0.99, 1.0], None),
            measured("nvd/titan/llama/single@compile=true", &compiled, &[0.88, 0.881, 0.879, 0.88], None),
        ];
        let text = only(&compare(&cells, &CompareSettings::default(), &Catalogue::default())).text;
        assert!(text.starts_with("titan (compiled) trains llama 14 % faster than native: 1,164 against "), "{text}");
        assert!(text.contains(". Same workload except: compile. "), "{text}");
    }

    /// Known of one side only, or of neither: named before everything else, and no verdict.
    #[test]
    fn what_is_not_stated_is_named_and_withholds_the_verdict() {
        let all = json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1, "precision": "bf16", "optimizer": "adamw",
            "data": "random", "micro_batch_size": 2});
        let log = |name: &str, without: &[&str], times: &[f64]| {
            let mut stated = all.clone();
            without.iter().for_each(|field| drop(stated.as_object_mut().unwrap().remove(*field)));
            let mut cell = imported(name, stated, times);
            cell.imported = vec![format!("{name}.log")];
            cell
        };
        let (slow, fast) = ([1.0, 1.01, 0.99, 1.0], [0.5, 0.505, 0.495, 0.5]);
        let pair = |a: &[&str], b: &[&str]| {
            let cells = [log("nvd/nemo/llama/single", a, &slow), log("amd/prim/llama/single", b, &fast)];
            only(&compare(&cells, &CompareSettings::default(), &Catalogue::default()))
        };
        let known = pair(&[], &[]);
        assert_eq!(known.verdict, Verdict::Faster);
        assert!(known.text.ends_with("×). Same workload."), "{known:?}");
        let one = pair(&["precision"], &["micro_batch_size"]);
        assert_eq!(one.verdict, Verdict::NotAssessed);
        assert!(one.text.starts_with("amd/prim (imported) trains llama at 2,048 tokens/s per GPU, nvd/nemo (imported) at 1,024: 2.00× (95 % CI 1.97–2.03)"), "{one:?}");
        let words = ". Same workload as far as it is stated. Only amd/prim (imported) states precision (bf16). ";
        assert!(one.text.contains(words), "{one:?}");
        assert!(one.text.contains(". No verdict: the workloads may differ in precision."), "{one:?}");
        let neither = pair(&["optimizer", "data"], &["optimizer", "data"]);
        assert!(
            neither
                .text
                .contains(". Neither states optimizer, data. No verdict: the workloads may differ in optimizer, data"),
            "{neither:?}"
        );
        assert_eq!(neither.verdict, Verdict::NotAssessed);
    }

    #[test]
    fn cells_of_two_sessions_say_so() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        assert!(!only(&comparison).text.contains(" apart"));
        comparison.speedups[0].apart_seconds = Some(30.0 * 86_400.0);
        let words =
            "They were measured 30 days apart, and the interval does not cover what changed in between: `tprimat build";
        assert!(only(&comparison).text.contains(words), "{:?}", only(&comparison));
    }

    #[test]
    fn a_host_that_no_log_names_is_said_to_be_unknown() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        comparison.rows[0].repeats[0].host = "not stated".into();
        assert!(only(&comparison).text.ends_with(". Some logs do not name their host."), "{:?}", only(&comparison));
    }

    #[test]
    fn a_cell_alone_is_not_said_to_be_refused() {
        let times = [1.0, 1.01, 0.99, 1.0];
        let one = [measured("nvd/nemo/llama/single", &test_job(), &times, None)];
        let mut comparison = compare(&one, &CompareSettings::default(), &Catalogue::default());
        assert!(
            only(&comparison).text.ends_with("). There is no other cell to compare it with."),
            "{:?}",
            only(&comparison)
        );
        comparison.rows[0].mfu = crate::analyze::Mfu::Error { reason: "1.31 of the peak".into() };
        assert_eq!(
            only(&comparison).text,
            "The rate of nvd/nemo/llama/single on llama is impossible: 1.31 of the peak."
        );
        let refused = headlines(&two(&times, |job| job.data.seq_length = 256, &[]));
        let alone = refused.iter().find(|h| h.verdict == Verdict::Alone).unwrap();
        assert!(alone.text.ends_with("). No other cell has a comparable workload."), "{alone:?}");
    }

    /// Only prices that somebody stated, that differ, and beside a difference that is one.
    #[test]
    fn what_it_costs_is_said_where_it_says_something() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        assert!(!only(&comparison).text.contains("cost"));
        let price = |per_gpu_hour: f64, source: &str| Price {
            per_gpu_hour,
            currency: "USD".into(),
            source: Some(source.into()),
        };
        let priced = |a: Price, b: Price| {
            let mut comparison = comparison.clone();
            let speedup = &mut comparison.speedups[0];
            speedup.cost_ratio =
                Figure::Ok { value: a.per_gpu_hour / b.per_gpu_hour / speedup.ratio, basis: "prices".into() };
            speedup.prices = Some(Box::new([a, b]));
            comparison
        };
        let stated = priced(price(3.0, "our contract"), price(2.5, "our contract"));
        let text = only(&stated).text;
        assert!(text.contains(". At 3.00 against 2.50 USD per GPU-hour, a token costs 0.600× (95 % CI 0.5"), "{text}");
        let mut unclear = stated.clone();
        unclear.speedups[0].significant = Some(false);
        let example = priced(price(3.0, "illustrative, not a quote"), price(2.5, "our contract"));
        for other in [unclear, example, priced(price(3.0, "a"), price(3.0, "b"))] {
            assert!(!only(&other).text.contains("cost"), "{:?}", only(&other));
        }
        comparison.rows[1].repeats_added_later = true;
        let text = only(&comparison).text;
        assert!(text.contains(". Repeats of amd/prim were added after the first results were seen."), "{text}");
    }

    #[test]
    fn more_devices_are_not_hidden_behind_a_rate_of_one() {
        let other = |job: &mut crate::plan::Job| job.parallelism.num_gpus = 2;
        let text = only(&two(&[0.55, 0.5505, 0.5495, 0.55], other, &["num_gpus"])).text;
        assert!(text.contains("Not the same workload: num_gpus (1 against 2)"), "{text}");
        assert!(text.contains("In total 1,024 tokens/s on 1 GPUs against 1,862 on 2, 0.55× as much"), "{text}");
    }

    #[test]
    fn the_largest_difference_is_told_first_whichever_way_it_goes() {
        let times = |t: f64| [t, t * 1.01, t * 0.99, t];
        let cell = |name: &str, times: &[f64]| measured(&format!("nvd/{name}/llama/single"), &test_job(), times, None);
        let mut long = test_job();
        long.data.seq_length = 256;
        let cells = [
            cell("nemo", &times(1.0)),
            cell("one", &[0.2]),
            cell("same", &[1.0, 1.02, 0.985, 1.0]),
            cell("little", &times(0.8)),
            cell("slower", &times(3.0)),
            cell("faster", &times(0.5)),
            measured("nvd/long/llama/single", &long, &times(1.0), None),
        ];
        let all = headlines(&compare(&cells, &CompareSettings::default(), &Catalogue::default()));
        let names: Vec<&str> = all.iter().map(|h| h.a.split('/').nth(1).unwrap()).collect();
        assert_eq!(names, ["long", "slower", "faster", "little", "same", "one", "long"]);
        assert_eq!((all[0].verdict, all[6].verdict), (Verdict::Refused, Verdict::Alone));
        let of_group: Vec<&Headline> = all.iter().filter(|h| h.group == Some(0)).collect();
        assert_eq!(leading(&of_group).iter().map(|h| &h.a).collect::<Vec<_>>(), [&all[1].a, &all[2].a, &all[3].a]);
    }

    #[test]
    fn no_verdict_without_evidence() {
        let same = only(&two(&[1.0, 1.02, 0.985, 1.0], |_| {}, &[]));
        assert!(same.verdict == Verdict::NoDifference && same.text.contains("no significant difference"), "{same:?}");
        let one = only(&two(&[0.5], |_| {}, &[]));
        assert!(one.verdict == Verdict::NotAssessed && one.text.contains("No verdict: one repeat"), "{one:?}");
        assert!(!one.text.contains("CI"), "{one:?}");
    }

    #[test]
    fn a_verdict_is_not_contradicted_by_rounding() {
        let mut comparison = two(&[2.0, 2.02, 1.98, 2.0], |_| {}, &[]);
        comparison.speedups[0].ratio = 0.999_7;
        comparison.speedups[0].interval = Some(RatioInterval { low: 0.9, high: 0.999_96, confidence: 0.95 });
        let found = only(&comparison);
        assert!(
            found.text.contains(" 0.03 % faster than amd/prim: ") && found.text.contains("(95 % CI 0.004–11 %)"),
            "{found:?}"
        );
        comparison.speedups[0].significant = Some(false);
        comparison.speedups[0].interval = Some(RatioInterval { low: 0.9, high: 1.001, confidence: 0.95 });
        assert!(only(&comparison).text.contains(" (95 % CI −0.1 to +11 %). "), "{:?}", only(&comparison));
    }

    #[test]
    fn what_differs_is_in_the_sentence_or_forbids_it() {
        let long = |job: &mut crate::plan::Job| job.data.seq_length = 256;
        let all = headlines(&two(&[0.5, 0.505, 0.495], long, &[]));
        assert!(all.iter().all(|h| !h.text.contains('×')), "{all:?}");
        let refused = all.iter().find(|h| h.verdict == Verdict::Refused).unwrap();
        let words = "amd/prim/llama/single and nvd/nemo/llama/single may not be compared, because they differ in seq_length: 256, not 128";
        assert!(refused.text.starts_with(words), "{refused:?}");
        let forced = only(&two(&[0.5, 0.505, 0.495], long, &["seq_length"]));
        assert!(forced.text.contains(". Not the same workload: seq_length (256 against 128)"), "{forced:?}");
        assert!(!forced.text.contains("Same workload"), "{forced:?}");
        assert!(refused.text.ends_with(" `--across seq_length` compares them all the same."), "{refused:?}");
    }

    #[test]
    fn a_dangerous_setting_is_in_the_sentence() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        comparison.environment.push(EnvironmentDifference {
            cell_a: "amd/prim/llama/single".into(),
            cell_b: "nvd/nemo/llama/single".into(),
            kind: "variable".into(),
            name: "CUDA_LAUNCH_BLOCKING".into(),
            a: None,
            b: Some("1".into()),
            follows: None,
            dangerous: Some("every kernel is waited for".into()),
        });
        let found = only(&comparison);
        let words = ". nvd/nemo runs with CUDA_LAUNCH_BLOCKING=1, amd/prim without it: every kernel is waited for.";
        assert!(found.text.contains(words), "{found:?}");
        // Once, though the row warns of it too; what both run with is no difference, and told all the same.
        let warning = |name: &str| format!("{name}=1: it is slow");
        comparison.rows[0].warnings = vec![warning("CUDA_LAUNCH_BLOCKING"), warning("NCCL_DEBUG")];
        comparison.rows[1].warnings = vec![warning("NCCL_DEBUG")];
        let text = only(&comparison).text;
        assert_eq!(text.matches("CUDA_LAUNCH_BLOCKING").count(), 1, "{text}");
        for cell in ["amd/prim", "nvd/nemo"] {
            assert!(text.contains(&format!(". {cell} runs with NCCL_DEBUG=1: it is slow")), "{text}");
        }
    }

    #[test]
    fn two_that_launch_the_same_are_said_to_differ_by_noise() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        let words = "amd/prim launches the very same bytes as nvd/nemo, so any difference";
        assert!(!only(&comparison).text.contains("bytes"));
        comparison.rows[1].same_launch_as = Some("nvd/nemo/llama/single".into());
        assert!(only(&comparison).text.contains(words), "{:?}", only(&comparison));
        // Both launch as a third cell does, which is in another table.
        comparison.rows.iter_mut().for_each(|row| row.same_launch_as = Some("x/y/z/w".into()));
        assert!(only(&comparison).text.contains(words), "{:?}", only(&comparison));
        comparison.rows[1].imported = vec!["theirs.log".into()];
        assert!(!only(&comparison).text.contains("bytes"));
    }

    #[test]
    fn one_measurement_under_two_names_is_no_difference_at_all() {
        let mut comparison = two(&[1.0, 1.01, 0.99, 1.0], |_| {}, &[]);
        comparison.rows[1].same_launch_as = Some("nvd/nemo/llama/single".into());
        comparison.rows[1].repeats = comparison.rows[0].repeats.clone();
        comparison.speedups[0].reason = Some("both are the same measurements".into());
        let text = only(&comparison).text;
        assert!(text.ends_with("No verdict: both are the same measurements.") && !text.contains("noise"), "{text}");
    }

    #[test]
    fn nobody_knows_whether_nameless_hosts_are_one() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        comparison.rows[1].repeats.iter_mut().for_each(|r| r.host = "not stated".into());
        assert!(only(&comparison).text.contains(". Some logs do not name their host"), "{:?}", only(&comparison));
    }
}
