//! What a person takes away, in a sentence a pair: who is how much faster, or why that may not be said. Whatever must
//! be known beside the figure is part of its sentence.

use std::collections::BTreeSet;

use super::{
    format::{number, ratio, ratio_beside_1},
    mark,
};
use crate::analyze::{
    Comparison, Difference, Figure, Group, RatioInterval, RepeatStatus, Row, Speedup, Tier, Unit, differences,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    /// Index into the comparison's groups; none where two cells may not be compared.
    pub group: Option<usize>,
    /// The cell that it is about, and what that stands against.
    pub a: String,
    pub b: Option<String>,
    pub verdict: Verdict,
    pub text: String,
}

/// Of the first cell against the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Faster,
    Slower,
    NoDifference,
    /// Too few repeats, or other steps were measured: the ratio is told without a verdict.
    NotAssessed,
    /// The contracts forbid the comparison.
    Refused,
    /// Nothing else may stand beside this cell.
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
    for (index, group) in comparison.groups.iter().enumerate() {
        let rows: Vec<&Row> = comparison.rows.iter().filter(|r| r.group == index).collect();
        let Some(b) = rows.iter().find(|r| r.cell == group.baseline) else { continue };
        if let [alone] = rows[..] {
            let is_refused = |d: &&Difference| d.refused && [&d.cell_a, &d.cell_b].contains(&&alone.cell);
            let others = comparison.differences.iter().any(|d| is_refused(&d));
            let (a, text) = (alone.cell.clone(), alone_sentence(alone, others));
            all.push(Headline { group: Some(index), a, b: None, verdict: Verdict::Alone, text });
        }
        let others = rows.iter().filter(|r| r.cell != group.baseline);
        let mut pairs: Vec<(&Row, &Speedup)> = others
            .filter_map(|a| Some((*a, comparison.speedups.iter().find(|s| s.a == a.cell && s.b == b.cell)?)))
            .collect();
        pairs.sort_by(|(_, x), (_, y)| weight(y).total_cmp(&weight(x)));
        all.extend(pairs.into_iter().map(|(a, speedup)| Headline {
            group: Some(index),
            a: a.cell.clone(),
            b: Some(b.cell.clone()),
            verdict: Verdict::of(speedup),
            text: pair_sentence(comparison, group, speedup, a, b),
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

/// `On these hosts, A is 1.31× (95 % CI 1.29–1.33) B on llama, same contract.`
fn pair_sentence(comparison: &Comparison, group: &Group, speedup: &Speedup, a: &Row, b: &Row) -> String {
    let (name_a, name_b) = (named(a), named(b));
    let hosts = on_hosts(&[a, b]);
    let interval = interval(speedup).map(|ends| format!(" ({ends})")).unwrap_or_default();
    let model = &group.model;
    let figure = match Verdict::of(speedup) {
        Verdict::NoDifference => format!(
            "{hosts}, {name_a} and {name_b} show no significant difference on {model}: {}{interval}",
            times(speedup)
        ),
        _ => format!("{hosts}, {name_a} is {}{interval} {name_b} on {model}", times(speedup)),
    };
    let cost = match &speedup.cost_ratio {
        Figure::Ok { value, .. } if value.is_finite() => format!(", at {}× the cost per token", ratio(*value, None)),
        _ => String::new(),
    };
    let mut parts = vec![format!("{figure}, {}{cost}", contract(speedup, a, b))];
    for row in [a, b].iter().filter(|row| row.repeats_added_later) {
        parts.push(format!("repeats of {} were added after the first were seen", row.cell));
    }
    for row in [a, b].iter().filter(|row| row.dropped.iter().any(|d| d.remeasured > 0 || !d.set_aside.is_empty())) {
        parts.push(format!("measurements of {} were replaced after they were seen", row.cell));
    }
    if let Some(reason) = &speedup.reason {
        parts.push(format!("not assessed: {reason}"));
    }
    if let Some(other) = &speedup.same_as {
        parts.push(format!("{} has the same measurements as {other}", a.cell));
    }
    // That both are one measurement is the reason above.
    if a.launches_as(b) && !a.is_measured_as(b) {
        parts.push(format!("{} {}", a.cell, same_as(a, &b.cell, Some(b))));
    }
    let of_pair = comparison.environment.iter().filter(|e| e.cell_a == a.cell && e.cell_b == b.cell);
    let dangerous: Vec<_> = of_pair.filter(|e| e.dangerous.is_some()).collect();
    parts.extend(dangerous.iter().map(|e| e.sentence()));
    for row in [a, b] {
        // What only one of the two runs with is among the differences.
        let is_told = |warning: &&String| dangerous.iter().any(|e| warning.split('=').next() == Some(&e.name));
        parts.extend(warned(row, |warning| !is_told(&warning)));
    }
    format!("{}.", parts.join("; "))
}

/// What is to be known of a cell that launches what the cell `name` does; `twin` is its row, if it has figures.
pub(super) fn same_as(row: &Row, name: &str, twin: Option<&Row>) -> String {
    if twin.is_some_and(|twin| row.is_measured_as(twin)) {
        format!("has the same measurements as {name}")
    } else {
        format!("launches the very same bytes as {name}: a difference between them is noise")
    }
}

/// `A runs with NCCL_DEBUG=INFO: collectives write logs while they run`
fn warned(row: &Row, wanted: impl Fn(&String) -> bool) -> Option<String> {
    let warnings: Vec<&str> = row.warnings.iter().filter(|w| wanted(w)).map(String::as_str).collect();
    (!warnings.is_empty()).then(|| format!("{} runs with {}", row.cell, warnings.join(", ")))
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

/// `95 % CI 1.29–1.33`; where several comparisons share a table, its confidence is more.
pub(super) fn interval(speedup: &Speedup) -> Option<String> {
    let RatioInterval { low, high, confidence } = speedup.interval?;
    // Never more than it is: 99.996 % is no 100 %.
    let percent = (confidence * 1e4 + 1e-6).floor() / 1e2;
    let width = Some(high - low).filter(|width| width.is_finite())?;
    Some(format!("{percent} % CI {}–{}", ratio_beside_1(low, Some(width)), ratio_beside_1(high, Some(width))))
}

/// Without these nobody knows what was run.
const CORE: [&str; 6] = ["global_batch_size", "seq_length", "num_gpus", "precision", "optimizer", "data"];

/// Are the workloads the same, as far as anybody knows? Every label is told.
fn contract(speedup: &Speedup, a: &Row, b: &Row) -> String {
    if !speedup.labels.is_empty() {
        return format!("but {}", speedup.labels.join("; "));
    }
    let gaps = differences(&a.contract, &b.contract);
    if gaps.iter().any(|d| d.tier == Tier::Workload) {
        return "same contract as far as both state it".to_owned();
    }
    let unknown: Vec<&str> = CORE.into_iter().filter(|field| a.contract.get(field).is_none()).collect();
    if !unknown.is_empty() {
        return format!("same contract as far as it is known ({} not stated by either)", unknown.join(", "));
    }
    let all_declared = |row: &Row| {
        let workload = row.contract.0.iter().filter(|f| f.tier == Tier::Workload).count();
        workload == row.declared_only.len()
    };
    match (a, b) {
        (a, b) if a.declared_only.is_empty() && b.declared_only.is_empty() => "same contract",
        (a, b) if all_declared(a) && all_declared(b) => "same contract, only declared",
        _ => "same contract, in part only declared",
    }
    .to_owned()
}

/// `others`: there are cells that it may not be compared with.
fn alone_sentence(row: &Row, others: bool) -> String {
    if let Some(reason) = row.impossible() {
        return format!("The rate of {} on {} is impossible: {reason}.", named(row), row.model);
    }
    let estimate = &row.tokens_per_second_per_gpu;
    let interval = match estimate.ci95 {
        Some([lo, hi]) => format!(" (95 % CI {}–{})", number(lo), number(hi)),
        None => String::new(),
    };
    let (hosts, rate) = (on_hosts(&[row]), number(estimate.value));
    let name = named(row);
    let warned = warned(row, |_| true).map(|words| format!("; {words}")).unwrap_or_default();
    let why = if others { "no cell may stand beside it" } else { "there is nothing to compare it with" };
    format!("{hosts}, {name} runs {rate} tokens/s/GPU{interval} on {}; {why}{warned}.", row.model)
}

/// One sentence a pair, with every field that forbids it.
fn refusals(comparison: &Comparison) -> Vec<Headline> {
    let refused: Vec<_> = comparison.differences.iter().filter(|d| d.refused).collect();
    let pairs = refused.chunk_by(|x, y| (&x.cell_a, &x.cell_b) == (&y.cell_a, &y.cell_b));
    let sentence = |of_pair: &[&Difference]| {
        let fields: Vec<String> = of_pair.iter().map(|d| d.field.sentence()).collect();
        let (a, b) = (&of_pair[0].cell_a, &of_pair[0].cell_b);
        let text = format!("{a} and {b} may not be compared, because they differ in {}.", fields.join("; "));
        Headline { group: None, a: a.clone(), b: Some(b.clone()), verdict: Verdict::Refused, text }
    };
    pairs.map(sentence).collect()
}

fn named(row: &Row) -> String {
    format!("{}{}", row.cell, mark(&row.imported))
}

/// Of whom the figures speak: of hosts in general only where hosts are the units.
fn on_hosts(rows: &[&Row]) -> &'static str {
    if rows.iter().all(|r| r.tokens_per_second_per_gpu.unit == Unit::Host) {
        return "Across hosts";
    }
    let counted = rows.iter().flat_map(|r| &r.repeats).filter(|r| r.status == RepeatStatus::Ok);
    let hosts: BTreeSet<&String> = counted.map(|r| &r.host).collect();
    // An imported log may not say where it was written.
    if hosts.iter().any(|host| ["", "not stated"].contains(&host.as_str())) {
        return "On hosts that not every log names";
    }
    if hosts.len() == 1 { "On this host" } else { "On these hosts" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::{Catalogue, CompareSettings, EnvironmentDifference, compare, tests::*};

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

    #[test]
    fn who_is_faster_by_how_much() {
        let found = only(&two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]));
        assert_eq!(found.verdict, Verdict::Faster);
        assert!(found.text.starts_with("On this host, amd/prim/llama/single is 2.00× (95 % CI 1.9"), "{found:?}");
        assert!(found.text.contains(") nvd/nemo/llama/single on llama, same contract"), "{found:?}");
        assert_eq!(only(&two(&[2.0, 2.02, 1.98, 2.0], |_| {}, &[])).verdict, Verdict::Slower);
    }

    #[test]
    fn a_host_that_nobody_names_is_not_this_one() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        comparison.rows[0].repeats[0].host = "not stated".into();
        assert!(only(&comparison).text.starts_with("On hosts that not every log names, amd/"));
    }

    #[test]
    fn a_cell_alone_is_not_said_to_be_refused() {
        let times = [1.0, 1.01, 0.99, 1.0];
        let one = [measured("nvd/nemo/llama/single", &test_job(), &times, None)];
        let mut comparison = compare(&one, &CompareSettings::default(), &Catalogue::default());
        assert!(only(&comparison).text.ends_with(" on llama; there is nothing to compare it with."));
        comparison.rows[0].mfu = crate::analyze::Mfu::Error { reason: "1.31 of the peak".into() };
        assert_eq!(
            only(&comparison).text,
            "The rate of nvd/nemo/llama/single on llama is impossible: 1.31 of the peak."
        );
        let refused = headlines(&two(&times, |job| job.data.seq_length = 256, &[]));
        let alone = refused.iter().find(|h| h.verdict == Verdict::Alone).unwrap();
        assert!(alone.text.ends_with("; no cell may stand beside it."), "{alone:?}");
    }

    #[test]
    fn what_it_costs_and_repeats_that_came_later_are_in_the_sentence() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        assert!(!only(&comparison).text.contains("cost"));
        comparison.speedups[0].cost_ratio = Figure::Ok { value: 0.71, basis: "prices".into() };
        comparison.rows[1].repeats_added_later = true;
        let text = only(&comparison).text;
        assert!(text.contains(", at 0.71× the cost per token; repeats of amd/prim/llama/single were added"), "{text}");
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
        assert!(one.verdict == Verdict::NotAssessed && one.text.contains("not assessed: one repeat"), "{one:?}");
        assert!(!one.text.contains("CI"), "{one:?}");
    }

    #[test]
    fn a_verdict_is_not_contradicted_by_rounding() {
        let mut comparison = two(&[2.0, 2.02, 1.98, 2.0], |_| {}, &[]);
        comparison.speedups[0].ratio = 0.999_7;
        comparison.speedups[0].interval = Some(RatioInterval { low: 0.9, high: 0.999_96, confidence: 0.95 });
        let found = only(&comparison);
        assert!(found.text.contains(" is 0.9997× (95 % CI 0.90–0.99996) "), "{found:?}");
        comparison.speedups[0].significant = Some(false);
        comparison.speedups[0].interval = Some(RatioInterval { low: 0.9, high: 1.001, confidence: 0.95 });
        assert!(only(&comparison).text.contains(": 1.00× (95 % CI 0.90–1.001), "), "{:?}", only(&comparison));
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
        assert!(forced.text.contains(", but across seq_length: 256, not 128"), "{forced:?}");
        assert!(!forced.text.contains("same contract"), "{forced:?}");
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
        assert!(found.text.contains("CUDA_LAUNCH_BLOCKING: not set, but there 1 (every kernel"), "{found:?}");
        // Once, though the row warns of it too; what both run with is no difference, and told all the same.
        let warning = |name: &str| format!("{name}=1: it is slow");
        comparison.rows[0].warnings = vec![warning("CUDA_LAUNCH_BLOCKING"), warning("NCCL_DEBUG")];
        comparison.rows[1].warnings = vec![warning("NCCL_DEBUG")];
        let text = only(&comparison).text;
        assert_eq!(text.matches("CUDA_LAUNCH_BLOCKING").count(), 1, "{text}");
        for cell in ["amd/prim/llama/single", "nvd/nemo/llama/single"] {
            assert!(text.contains(&format!("; {cell} runs with NCCL_DEBUG=1: it is slow")), "{text}");
        }
    }

    #[test]
    fn two_that_launch_the_same_are_said_to_differ_by_noise() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        let words = "amd/prim/llama/single launches the very same bytes as nvd/nemo/llama/single: a difference";
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
        assert!(text.ends_with("not assessed: both are the same measurements.") && !text.contains("noise"), "{text}");
    }

    #[test]
    fn nobody_knows_whether_nameless_hosts_are_one() {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        comparison.rows[1].repeats.iter_mut().for_each(|r| r.host = "not stated".into());
        assert!(only(&comparison).text.starts_with("On hosts that not every log names, "), "{:?}", only(&comparison));
    }
}
