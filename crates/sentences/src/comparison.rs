//! Sentences of a comparison.

use super::figures::{
    AbsentState, ChangedSetting, ComparisonFact, DECLARED, Danger, EnvironmentChange,
    EnvironmentKind, EnvironmentSummary, Fact, Gaps, GroupWorkload, ImpossibleRate, IntervalKind,
    Label, NoVerdict, NotIdentical, RunFact, SameLaunch, Standing, Stated, Unit,
    UnlistedDifference, WarmUpDifference, Warning, WhyAbsent,
};
use super::{
    metric::no_figure,
    results, said,
    words::{evidence, few, one, units},
};
use tprimat_results::{
    CUSUM, FieldDifference,
    settings::{WARMUP, show},
};

pub(super) fn fact(fact: &ComparisonFact) -> String {
    match fact {
        ComparisonFact::NotCompared { with, fields: all } => {
            format!("not compared with {with}: {}", fields(all))
        }
        ComparisonFact::Unlike { baseline, labels } => {
            let labels: Vec<String> = labels.iter().map(label).collect();
            format!("unlike {baseline}: {}", labels.join("; "))
        }
        ComparisonFact::DeclaredOnly {
            fields,
            is_imported: false,
        } => {
            format!(
                "the log does not confirm {}; the job asked for it",
                few(fields)
            )
        }
        ComparisonFact::DeclaredOnly {
            fields,
            is_imported: true,
        } => {
            let fields = few(fields);
            format!(
                "the log does not state {fields}; taken from the file's labels and from the model in config.yaml"
            )
        }
        ComparisonFact::WorkloadGaps {
            baseline,
            gaps: found,
        } => {
            format!(
                "{}: it is unknown whether the workloads match",
                gaps(found, "this cell", baseline)
            )
        }
        ComparisonFact::ExecutionGaps {
            baseline,
            gaps: found,
        } => {
            format!(
                "{}: part of a difference in speed may come from there",
                gaps(found, "this cell", baseline)
            )
        }
        ComparisonFact::UnlistedDiffer { baseline, settings } => {
            let mut sides: [Vec<String>; 3] = Default::default();
            for UnlistedDifference { name, own, other } in settings {
                match (own, other) {
                    (Some(own), None) => sides[0].push(format!("{name} ({})", show(Some(own)))),
                    (None, Some(other)) => sides[1].push(format!("{name} ({})", show(Some(other)))),
                    _ => sides[2].push(format!(
                        "{name} ({} against {})",
                        show(own.as_ref()),
                        show(other.as_ref())
                    )),
                }
            }
            let [own, other, both] = sides.each_ref().map(|side| few(side));
            let parts = [
                (own, "only this cell's log states".to_owned()),
                (other, format!("only the log of {baseline} states")),
                (both, format!("not as in the log of {baseline}:")),
            ];
            let parts = parts
                .into_iter()
                .filter(|(settings, _)| !settings.is_empty());
            parts
                .map(|(settings, words)| format!("{words} {settings}"))
                .collect::<Vec<_>>()
                .join("; ")
        }
        ComparisonFact::SameLaunch { as_cell, measured } => match measured {
            SameLaunch::Once => format!("identical to {as_cell}, so both were measured once"),
            SameLaunch::Apart => {
                format!(
                    "launches the very same bytes as {as_cell}, so any difference between them is noise"
                )
            }
            SameLaunch::NotYet => {
                format!("launches the very same bytes as {as_cell}: one measurement serves both")
            }
        },
        ComparisonFact::Earlier(earlier) => {
            format!("{earlier}; the next build measures it as it is configured now")
        }
        ComparisonFact::Incomplete { measured, wanted } => {
            format!(
                "{measured} of {wanted} repeats measured so far; the next build runs the others"
            )
        }
        ComparisonFact::Imported => {
            "imported, not measured by tprimat; `tprimat show CELL` names the files".to_owned()
        }
        ComparisonFact::FewCount { n, wanted } => format!("only {n} of {wanted} repeats count"),
        ComparisonFact::WorkloadNotConfirmed => {
            "the log does not confirm the workload, so declared values are used".to_owned()
        }
        ComparisonFact::OtherWarmUp => format!(
            "cells that drop different warm-up steps get no verdict; `--across {WARMUP}` gives one anyway"
        ),
        ComparisonFact::MfuImpossible(reason) => {
            format!("MFU is impossible: {}", no_figure(reason))
        }
        ComparisonFact::MemoryOfSeveralKinds(kinds) => {
            let kinds: Vec<String> = kinds
                .iter()
                .map(|(kind, source)| format!("{} by {source}", kind.replace('_', " ")))
                .collect();
            format!(
                "memory figures of different kinds cannot be compared with each other: {}",
                kinds.join(", ")
            )
        }
        ComparisonFact::NoSuchBaseline { wanted } => {
            format!(
                "the baseline {wanted} has no figures, so the first cell of each group is the baseline"
            )
        }
        ComparisonFact::Intervals {
            made,
            hosts,
            all_are_hosts,
        } => {
            let made: Vec<String> = made.iter().map(interval).collect();
            let made = format!("intervals of speeds are 95 %, made by {}", made.join(", "));
            let these = if *all_are_hosts {
                "hosts like these"
            } else {
                "these hosts"
            };
            match &hosts[..] {
                [] => made,
                [host] => format!("{made}; they hold for the host {host}"),
                hosts => format!("{made}; they hold for {these}: {}", hosts.join(", ")),
            }
        }
        ComparisonFact::Tested { comparisons: 1 } => {
            "the speed-up is tested by Welch's t on logarithms".to_owned()
        }
        ComparisonFact::Tested { comparisons } => format!(
            "speed-ups are tested by Welch's t on logarithms. Holm's correction makes their 95 % intervals wider, so that \
             the {comparisons} pairs of cells that are compared together raise a false alarm in at most 5 % of tables"
        ),
        ComparisonFact::OtherLosses {
            baseline,
            fields: all,
        } => {
            let why = if all.is_empty() {
                String::new()
            } else {
                format!(": {}", fields(all))
            };
            format!("losses cannot be compared with those of {baseline}{why}")
        }
        ComparisonFact::OtherDevices { baseline } => format!(
            "ran on other devices of the same kind than {baseline}, so part of a difference may be the devices'"
        ),
        ComparisonFact::RunWith(warnings) => {
            format!(
                "run with {}",
                warnings.iter().map(warning).collect::<Vec<_>>().join("; ")
            )
        }
        ComparisonFact::Environment(summary) => environment(summary, &summary.baseline),
        ComparisonFact::SameRuns { as_cell } => format!(
            "has the same runs as {as_cell}, imported twice: every step has the same time and loss, so there is nothing to compare; \
             import one of the two"
        ),
        ComparisonFact::RateImpossible { baseline, why } => {
            format!("not compared with {baseline}: {}", impossible_rate(why))
        }
    }
}

/// `Student's t on logarithms over repeats`
fn interval((kind, unit): &(IntervalKind, Unit)) -> String {
    let how = match kind {
        IntervalKind::StudentT => "Student's t",
        IntervalKind::BootstrapT => "bootstrapped Student's t",
    };
    format!("{how} on logarithms over {}s", one(*unit))
}

fn fields(all: &[FieldDifference]) -> String {
    all.iter()
        .map(results::difference)
        .collect::<Vec<_>>()
        .join("; ")
}

pub(super) fn impossible_rate(why: &ImpossibleRate) -> String {
    format!(
        "the rate of {} is impossible: {}",
        why.cell,
        no_figure(&why.reason)
    )
}

/// `only A states precision (fp8), dropout (0); neither states optimizer`
#[must_use]
pub fn gaps(gaps: &Gaps, a: &str, b: &str) -> String {
    let mut parts = Vec::new();
    for (name, side) in [(a, &gaps.only_a), (b, &gaps.only_b)] {
        if !side.is_empty() {
            parts.push(format!("only {name} states {}", stated(side)));
        }
    }
    if !gaps.neither.is_empty() {
        parts.push(format!("neither states {}", gaps.neither.join(", ")));
    }
    parts.join("; ")
}

/// Every core setting, and the first few of the others.
fn stated(side: &[Stated]) -> String {
    const MOST: usize = 3;
    let core = side.iter().filter(|stated| stated.is_core()).count();
    let (named, more) = side.split_at(side.len().min(core + MOST));
    let mut words: Vec<String> = named
        .iter()
        .map(|s| format!("{} ({})", s.field, s.value))
        .collect();
    if !more.is_empty() {
        words.push(format!("{} more", more.len()));
    }
    words.join(", ")
}

/// How the environment that a cell ran in differs from that of its baseline.
pub(super) fn environment(summary: &EnvironmentSummary, baseline: &str) -> String {
    let mut parts: Vec<String> = summary.shown.iter().map(change).collect();
    if summary.more > 0 {
        parts.push(format!("{} more", summary.more));
    }
    if !summary.following.is_empty() {
        let (from, names) = (summary.follows.join(", "), few(&summary.following));
        parts.push(format!("and, as another {from} has it, {names}"));
    }
    format!(
        "environment differs from that of {baseline}: {}",
        parts.join("; ")
    )
}

/// `NCCL_DEBUG: INFO, not WARN`: the first cell's value, then that of the cell it is compared with.
#[must_use]
pub fn change(change: &EnvironmentChange) -> String {
    let name = &change.name;
    let is_variable = change.kind == EnvironmentKind::Variable;
    let mut text = match (&change.a, &change.b) {
        (Some(a), Some(b)) => format!("{name}: {a}, not {b}"),
        (Some(a), None) if is_variable => format!("{name}: {a} instead of unset"),
        (None, Some(b)) if is_variable => format!("{name}: unset instead of {b}"),
        (Some(a), None) => format!("{name}: {a}, not stated for the other"),
        (None, Some(b)) => format!("{name}: not stated, {b} for the other"),
        (None, None) => format!("{name}: not stated"),
    };
    if let Some(why) = &change.dangerous {
        text = format!("{text} ({})", danger(why));
    }
    text
}

pub(super) fn danger(danger: &Danger) -> String {
    let words = match danger {
        Danger::Said(text) => text,
        Danger::WaitsForKernels => "the host waits for every kernel",
        Danger::Serialised => "kernels or copies run one after the other",
        Danger::CollectivesLog => "collectives write logs while they run",
        Danger::CollectivesChecked => "collectives are checked and logged",
        Danger::WaitsForCollectives => "the host waits for every collective",
        Danger::NoDirectTransfers => "GPUs of one host do not talk to each other directly",
        Danger::DeterministicProducts => "deterministic matrix products",
        Danger::DeterministicAttention => "deterministic attention",
        Danger::DeterministicAlgorithms => "deterministic algorithms",
        Danger::MemoryNotCached => "memory is allocated anew each time",
        Danger::NotCompiled => "torch.compile does nothing",
        Danger::RuntimeLogs => "the runtime logs every call",
        Danger::Profiled => "a profiler is attached",
        Danger::OtherPowerLimit => "the same device at another power limit",
        Danger::OtherPartition => "the same device, cut up in another way",
        Danger::SharedHost => "with `share`, runs go beside other runs of the host",
    };
    words.to_owned()
}

/// `CUDA_LAUNCH_BLOCKING=1: the host waits …`
pub(super) fn warning(warning: &Warning) -> String {
    match warning {
        Warning::Said(text) => text.clone(),
        Warning::Variable {
            name,
            value,
            danger: why,
        } => format!("{name}={value}: {}", danger(why)),
        Warning::Deterministic => "deterministic algorithms are on".to_owned(),
    }
}

pub(super) fn label(label: &Label) -> String {
    let (is_crossed, words) = match label {
        Label::Said(text) => (false, text.clone()),
        Label::BothEarlier(why) => (false, format!("both were {why}")),
        Label::Earlier(cells) => {
            let each: Vec<String> = cells
                .iter()
                .map(|(cell, why)| format!("{cell} was {why}"))
                .collect();
            (false, each.join(", "))
        }
        Label::Imported { cell } => (false, format!("{cell} is imported")),
        Label::WarmUp {
            is_crossed,
            difference,
        } => (*is_crossed, warm_up(difference)),
        Label::Field {
            is_crossed,
            difference,
        } => (*is_crossed, results::difference(difference)),
    };
    if is_crossed {
        format!("across {words}")
    } else {
        words
    }
}

/// `warm-up 9, not 5 steps`
pub(super) fn warm_up(difference: &WarmUpDifference) -> String {
    let mut parts = Vec::new();
    if let Some([a, b]) = difference.steps {
        parts.push(format!("warm-up {a}, not {b} steps"));
    }
    if let Some(rules) = &difference.rules {
        let [a, b] = rules.each_ref().map(|name| match name.as_str() {
            CUSUM => "detected by CUSUM",
            DECLARED => "not assessed",
            _ => "assessed in part of the repeats",
        });
        parts.push(format!("steady state {a}, there {b}"));
    }
    parts.join(", ")
}

pub(super) fn no_verdict(why: &NoVerdict) -> String {
    match why {
        NoVerdict::Said(text) => text.clone(),
        NoVerdict::SameMeasurements => "both are the same measurements".to_owned(),
        NoVerdict::SomeSameMeasurements { n } => {
            format!(
                "{n} of their measurements {} the same",
                if *n == 1 { "is" } else { "are" }
            )
        }
        NoVerdict::WorkloadsMayDiffer { fields } => {
            format!("the workloads may differ in {}", fields.join(", "))
        }
        NoVerdict::OneRepeat => "one repeat gives no interval".to_owned(),
        NoVerdict::NoVariation => "the repeats do not vary, so there is no interval".to_owned(),
        NoVerdict::OtherWarmUp => "they drop different warm-up steps".to_owned(),
        NoVerdict::ShortStepTimes { factor } => {
            format!(
                "by the clock, step times of one of them are too short, up to {factor:.1} times"
            )
        }
        NoVerdict::FewUnits { n, unit, least } => {
            format!("{}, and a verdict needs {least}", units(*n, *unit))
        }
        NoVerdict::FewRepeats { least } => format!("a verdict needs {least} repeats of each"),
        NoVerdict::SmallBetweenSessions { share } => {
            format!(
                "two sessions may differ by {} % without a cause",
                share * 100.0
            )
        }
        NoVerdict::OtherWork { fields } => {
            format!("the work is not the same: {}", fields.join(", "))
        }
        NoVerdict::OtherConfiguration { earlier } => {
            format!("they have different configurations: one was {earlier}")
        }
    }
}

pub(super) fn why_absent(why: &WhyAbsent) -> String {
    match why {
        WhyAbsent::Said(text) | WhyAbsent::Stated(text) => text.clone(),
        WhyAbsent::NoRepeat => "no repeat".to_owned(),
        WhyAbsent::Fact(fact) => said(&**fact),
        WhyAbsent::FirstOf { fact, others } => {
            let others = match others {
                1 => "the other repeat is not counted either".to_owned(),
                n => format!("the other {n} repeats are not counted either"),
            };
            format!("{}; {others}", said(&**fact))
        }
        WhyAbsent::Failed {
            class,
            evidence: line,
        } => format!("{}{}", class.name(), evidence(line.as_ref())),
    }
}

/// Why a cell has no figures, behind its state where the reason does not say that itself: `failed:
/// oom: …`, `repeat 1 is not counted: …`
#[must_use]
pub fn absent(state: AbsentState, why: &WhyAbsent) -> String {
    let reason = why_absent(why);
    match why {
        WhyAbsent::Fact(fact) | WhyAbsent::FirstOf { fact, .. }
            if matches!(**fact, Fact::Run(RunFact::NotCounted { .. })) =>
        {
            reason
        }
        _ => format!("{state}: {reason}"),
    }
}

/// `bf16, sequence 2048, global batch 128, 8 devices`; across a field, all values: `global batch
/// 64/128, 8 devices, across global_batch_size`.
pub(super) fn workload(workload: &GroupWorkload) -> String {
    let (precision, seq_length, global_batch_size, num_gpus, data, across) = match workload {
        GroupWorkload::Said(text) => return text.clone(),
        GroupWorkload::Settings {
            precision,
            seq_length,
            global_batch_size,
            num_gpus,
            data,
            across,
        } => (
            precision,
            seq_length,
            global_batch_size,
            num_gpus,
            data,
            across,
        ),
    };
    let part = |values: &[String], words: fn(&str) -> String| {
        (!values.is_empty()).then(|| words(&values.join("/")))
    };
    let parts = [
        part(precision, str::to_owned),
        part(seq_length, |n| format!("sequence {n}")),
        part(global_batch_size, |n| format!("global batch {n}")),
        part(num_gpus, |n| {
            format!("{n} {}", if n == "1" { "device" } else { "devices" })
        }),
        part(data, |data| format!("{data} data")),
        (!across.is_empty()).then(|| format!("across {}", across.join(", "))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Why cells of a strategy will not be compared.
#[must_use]
pub fn not_identical(found: &NotIdentical) -> String {
    let NotIdentical {
        strategy,
        first,
        cells,
        fields: all,
    } = found;
    let cells: Vec<String> = cells.iter().map(|cell| format!("`{cell}`")).collect();
    let cells = match &cells[..] {
        [one] => format!("{one} will not be compared with `{first}`"),
        many => format!(
            "{} will not be compared with the first cell of their model (`{first}`)",
            few(many)
        ),
    };
    format!(
        "under `{strategy}` nothing may differ, so {cells}: {}",
        fields(all)
    )
}

/// `measured before training.seq_length changed`, `1 still to be measured`; empty where nothing is
/// to be said.
#[must_use]
pub fn standing(standing: &Standing) -> Vec<String> {
    let to_come =
        (standing.to_come > 0).then(|| format!("{} still to be measured", standing.to_come));
    standing
        .earlier
        .clone()
        .into_iter()
        .chain(to_come)
        .collect()
}

/// `TP 2 → 4`, `train.py edited`
#[must_use]
pub fn changed_setting(changed: &ChangedSetting) -> String {
    if let Some(how) = &changed.how {
        return format!("{} {how}", changed.what);
    }
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
    format!(
        "{} {} → {}",
        changed.what,
        value(&changed.old),
        value(&changed.new)
    )
}
