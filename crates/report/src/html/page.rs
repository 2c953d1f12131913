//! What stands above the details: sentences, a table a group, and what has no figures.

use std::collections::BTreeMap;

use serde::Serialize;
use tprimat_figures::{
    Comparison, Figure, Group, Judged, Metric, Mfu, RepeatStatus, Row, Speedup, Unit,
    dropped_words, rate_unit, sweeps, texts,
};
use tprimat_plot::{format::mark, loss_apart, short_names};
use tprimat_results::AttestationStatus;
use tprimat_words::{part, plain::counted};

use super::super::{
    format::{bytes, number, percent, seconds},
    hardware::in_title,
    headline::{
        Headline, SpeedVerdict, by_group, headlines, interval, leading, ranking, ratio_intervals,
        times,
    },
    notes::{notes, steady_state},
    sweep::{line_of_cell, sweep_tables},
    table::{not_counted, spread_of_repeats},
};
use super::MOST;

/// Figures that have columns of their own.
const OWN: [&str; 3] = ["mfu", "loss_at_end", "tokens_per_second"];

#[derive(Serialize)]
pub struct Page<'a> {
    comparable: bool,
    /// Cells with figures, cells without, repeats that failed, that contradict their job, that
    /// measured nothing.
    counts: Vec<String>,
    sweeps: Vec<SweepSection>,
    groups: Vec<GroupTable<'a>>,
    /// Which cells may not be compared, and why.
    refused: Vec<String>,
    absent: Vec<Absent<'a>>,
    notes: Vec<String>,
    /// What a page of this many cells does not show, and where it is.
    left_out: Vec<String>,
}

/// A sweep as one table.
#[derive(Serialize)]
struct SweepSection {
    /// In the navigation: `llama over seq_length`.
    name: String,
    title: String,
    /// What the marks at the rates mean.
    legend: Vec<&'static str>,
    sentences: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct GroupTable<'a> {
    group: Heading<'a>,
    /// The first to be told, and the others.
    leading: Vec<String>,
    more: Vec<String>,
    /// How the measured parts were found.
    steady_state: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Heading<'a> {
    model: &'a str,
    workload: String,
    /// The model, and what of the workload sets it apart from the model's others.
    short: String,
    /// Behind the workload; empty where no cell states its device.
    hardware: String,
    identical_config: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    id: String,
    cell: &'a str,
    /// What sets it apart from the others of its table.
    name: String,
    is_baseline: bool,
    marks: Vec<String>,
    labels: Vec<&'a str>,
    warnings: Vec<&'a str>,
    figures: Vec<Shown>,
}

/// A figure as a table shows it.
#[derive(Serialize, Default)]
struct Shown {
    text: String,
    /// Below it and smaller: its interval, spread or kind.
    detail: Option<String>,
    /// Below that: what forbids putting it beside the baseline's.
    warning: Option<String>,
    /// What the column is sorted by.
    value: Option<f64>,
    /// Why there is no figure.
    reason: Option<String>,
    /// A figure that is there, but cannot be.
    impossible: bool,
}

#[derive(Serialize)]
struct Absent<'a> {
    id: String,
    cell: &'a str,
    state: &'a str,
    /// The state for people.
    word: String,
    reason: String,
    imported: bool,
}

impl<'a> Page<'a> {
    pub fn of(comparison: &'a Comparison) -> Self {
        let told = headlines(comparison);
        let speedups = comparison.speedups_by_cell();
        let judged = Judged::of_comparison(comparison);
        let told_of = by_group(comparison, &told);
        let groups = comparison
            .groups
            .iter()
            .zip(comparison.rows_by_group())
            .zip(&told_of);
        let groups = groups.filter_map(|((group, mut rows), told)| {
            rows.retain(|(at, _)| *at < MOST);
            (!rows.is_empty()).then(|| {
                let shown: Vec<&Row> = rows.iter().map(|(_, row)| *row).collect();
                let ranking = ranking(comparison, &judged, group, &shown);
                table(&rows, &speedups, (ranking, told), group)
            })
        });
        let mut groups: Vec<GroupTable<'a>> = groups.collect();
        name_apart(&mut groups);
        // A sweep says itself that its points are different workloads.
        let lines = line_of_cell(comparison);
        let is_told = |h: &Headline| {
            let other = h.b.as_deref().and_then(|cell| lines.get(cell));
            other.is_some() && lines.get(h.a.as_str()) == other
        };
        let mut refused: Vec<String> = told
            .iter()
            .filter(|h| h.verdict == SpeedVerdict::Refused)
            .filter(|h| !is_told(h))
            .map(|h| h.text.clone())
            .collect();
        let mut notes: Vec<String> = notes(comparison)
            .into_iter()
            .map(|note| note.text)
            .collect();
        let all = [
            (comparison.rows.len(), "cells with figures"),
            (comparison.absent.len(), "cells without figures"),
            (refused.len(), "pairs that may not be compared"),
            (notes.len(), "notes"),
        ];
        let left_out = |(n, what): (usize, &str)| {
            (n > MOST).then(|| {
                format!(
                    "This page shows the first {MOST} of {n} {what}; compare.json has all of them."
                )
            })
        };
        refused.truncate(MOST);
        notes.truncate(MOST);
        let of_absent = |(at, cell): (usize, &'a tprimat_figures::AbsentCell)| Absent {
            id: id(comparison.rows.len() + at),
            cell: &cell.cell,
            state: cell.state.name(),
            word: cell.state.to_string(),
            reason: cell.reason.text.clone(),
            imported: !cell.imported.is_empty(),
        };
        Self {
            comparable: comparison.comparable,
            counts: counts(comparison),
            sweeps: sweep_tables(comparison, &sweeps(comparison, &judged))
                .into_iter()
                .map(|table| SweepSection {
                    legend: table.legend,
                    name: table.name,
                    title: table.title,
                    sentences: table.sentences,
                    columns: table.columns,
                    rows: table.rows,
                })
                .collect(),
            groups,
            refused,
            absent: comparison
                .absent
                .iter()
                .take(MOST)
                .enumerate()
                .map(of_absent)
                .collect(),
            notes,
            left_out: all.into_iter().filter_map(left_out).collect(),
        }
    }
}

/// Where a cell's details are: rows first, then cells without figures.
pub fn id(at: usize) -> String {
    format!("cell-{}", at + 1)
}

fn counts(comparison: &Comparison) -> Vec<String> {
    let mut counts = vec![format!(
        "{} with figures",
        counted(comparison.rows.len(), "cell")
    )];
    let uncounted = &comparison.uncounted;
    let more = [
        (comparison.groups.len(), "workload", ""),
        (comparison.absent.len(), "cell", " without figures"),
        (uncounted.failed, "failed run", ""),
        (uncounted.contradicted, "contradicted run", ""),
        (uncounted.suspect, "suspect run", ""),
        (uncounted.unmeasured, "run", " with nothing to measure"),
    ];
    let more = more.into_iter().filter(|(n, ..)| *n > 0);
    counts.extend(more.map(|(n, noun, which)| counted(n, noun) + which));
    counts
}

fn table<'a>(
    rows: &[(usize, &'a Row)],
    speedups: &BTreeMap<&str, &Speedup>,
    (ranking, told): (Option<String>, &[&Headline]),
    group: &'a Group,
) -> GroupTable<'a> {
    let speedup = |row: &Row| {
        speedups
            .get(row.cell.as_str())
            .copied()
            .filter(|s| s.b == group.baseline)
    };
    let baseline = rows
        .iter()
        .map(|(_, row)| *row)
        .find(|row| row.cell == group.baseline);
    let metrics = metric_columns(rows);
    let unit = rate_unit(rows.iter().map(|(_, row)| *row));
    let shown = || rows.iter().filter_map(|(_, row)| speedup(row));
    let intervals = ratio_intervals(shown());
    let against_baseline = if shown().any(|s| s.interval.is_some()) {
        format!("against the baseline ({intervals})")
    } else {
        "against the baseline".to_owned()
    };
    let columns = [
        unit,
        &against_baseline,
        "repeats",
        "step time",
        "MFU",
        "peak memory",
        "loss at end",
    ];
    let columns = columns
        .into_iter()
        .map(str::to_owned)
        .chain(metrics.iter().map(|m| heading(m)))
        .collect();
    let of: Vec<&Row> = rows.iter().map(|(_, row)| *row).collect();
    let names = short_names(&of);
    let line = |((index, row), name): (&(usize, &'a Row), String)| {
        let is_baseline = row.cell == group.baseline;
        let mut figures = vec![
            rate(row),
            match &row.same_runs_as {
                Some(other) => missing(&format!("the same runs as {other}, imported twice")),
                None => against(speedup(row), is_baseline, intervals),
            },
            repeats(row),
            step_time(row),
            mfu(&row.mfu),
            memory(row),
            loss(row, baseline),
        ];
        figures.extend(metrics.iter().map(|column| metric(row, column)));
        Line {
            id: id(*index),
            cell: &row.cell,
            name: part(&name, ..name.len() - mark(&row.imported).len()).to_owned(),
            is_baseline,
            marks: marks(row),
            labels: texts(&row.labels),
            warnings: texts(&row.warnings),
            figures,
        }
    };
    let mut lines: Vec<Line<'a>> = rows.iter().zip(names).map(line).collect();
    // The fastest first; an impossible rate is the last.
    let rate = |line: &Line| line.figures[0].value.unwrap_or(f64::NEG_INFINITY);
    lines.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let first = leading(told);
    let more = told
        .iter()
        .take(MOST)
        .filter(|h| !first.contains(h))
        .map(|h| h.text.clone())
        .collect();
    let leading = ranking
        .into_iter()
        .chain(first.iter().map(|h| h.text.clone()))
        .collect();
    let rows: Vec<&Row> = rows.iter().map(|(_, row)| *row).collect();
    let (workload, identical_config) = (group.workload.clone(), group.identical_config);
    let group = Heading {
        model: &group.model,
        short: String::new(),
        workload,
        hardware: in_title(&rows),
        identical_config,
    };
    GroupTable {
        group,
        leading,
        more,
        steady_state: steady_state(&rows),
        columns,
        rows: lines,
    }
}

/// Gives each table a name in the navigation.
fn name_apart(tables: &mut [GroupTable]) {
    let parts = |heading: &Heading| -> Vec<String> {
        heading.workload.split(", ").map(str::to_owned).collect()
    };
    let all: Vec<(&str, Vec<String>)> = tables
        .iter()
        .map(|table| (table.group.model, parts(&table.group)))
        .collect();
    let names: Vec<String> = all
        .iter()
        .map(|(model, own)| {
            let others = || all.iter().filter(|(other, _)| other == model);
            let is_shared = |part: &&String| others().all(|(_, parts)| parts.contains(part));
            let apart = own.iter().filter(|part| !is_shared(part));
            std::iter::once((*model).to_owned())
                .chain(apart.cloned())
                .collect::<Vec<_>>()
                .join(", ")
        })
        .collect();
    for (table, name) in tables.iter_mut().zip(names) {
        table.group.short = name;
    }
}

/// What a reader must know of a cell before its figures.
fn marks(row: &Row) -> Vec<String> {
    let mut marks = Vec::new();
    if !row.imported.is_empty() {
        marks.push("imported".to_owned());
    }
    match row.attestation {
        AttestationStatus::Attested => {}
        AttestationStatus::Contradicted => marks.push("contradicted".to_owned()),
        AttestationStatus::NotStated => marks.push("not attested".to_owned()),
    }
    marks.extend(not_counted(row));
    marks.extend(row.standing.words());
    if row.repeats_added_later {
        marks.push("repeats added later".to_owned());
    }
    marks.extend(dropped_words(&row.dropped));
    marks
}

fn rate(row: &Row) -> Shown {
    if let Some(reason) = row.impossible() {
        return Shown {
            impossible: true,
            ..missing(&reason.text)
        };
    }
    let estimate = &row.tokens_per_second_per_gpu;
    let interval = match estimate.ci95 {
        Some([lo, hi]) => format!("95 % CI {}–{}", number(lo), number(hi)),
        None if estimate.values.len() < 2 => "one repeat: no interval".to_owned(),
        None => "no interval".to_owned(),
    };
    let detail = std::iter::once(interval)
        .chain(declared_rate(row))
        .collect::<Vec<_>>()
        .join("; ");
    Shown {
        detail: Some(detail),
        ..shown(number(estimate.value), estimate.value)
    }
}

/// What the declared warm-up alone would give, where more was dropped in any repeat that counts.
fn declared_rate(row: &Row) -> Option<String> {
    let counted = row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    let cuts: Vec<_> = counted
        .filter_map(|r| r.steady.as_ref()?.cut.as_ref())
        .collect();
    cuts.iter().find(|cut| cut.dropped_steps > 0)?;
    let rates = || {
        cuts.iter()
            .map(|cut| cut.declared_tokens_per_second_per_gpu)
            .filter(|rate| rate.is_finite())
    };
    let (low, high) = (
        number(rates().reduce(f64::min)?),
        number(rates().reduce(f64::max)?),
    );
    let range = if low == high {
        low
    } else {
        format!("{low}–{high}")
    };
    Some(format!("after the declared warm-up alone {range}"))
}

fn against(speedup: Option<&Speedup>, is_baseline: bool, head: &str) -> Shown {
    let Some(speedup) = speedup else {
        if is_baseline {
            return shown("baseline".to_owned(), 1.0);
        }
        return missing("no comparison with the baseline");
    };
    let interval = interval(speedup, head).unwrap_or_default();
    let verdict = match SpeedVerdict::of(speedup) {
        SpeedVerdict::Faster => "faster",
        SpeedVerdict::Slower => "slower",
        SpeedVerdict::NoDifference => "no significant difference",
        SpeedVerdict::NotAssessed | SpeedVerdict::Refused | SpeedVerdict::Alone => "",
    };
    let reason = speedup
        .reason
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let details = [&interval, verdict, &reason];
    let detail = details
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    Shown {
        detail: (!detail.is_empty()).then_some(detail),
        ..shown(times(speedup), speedup.ratio)
    }
}

fn repeats(row: &Row) -> Shown {
    let estimate = &row.tokens_per_second_per_gpu;
    let is_other = estimate.unit != Unit::Repeat;
    let detail = is_other.then(|| {
        format!(
            "{} count as one each",
            estimate.unit.counted(estimate.units.len())
        )
    });
    Shown {
        detail,
        ..shown(format!("{} of {}", row.n, row.repeats_wanted), row.n as f64)
    }
}

fn step_time(row: &Row) -> Shown {
    let time = &row.step_time;
    let spreads = [
        (time.cv, "of steps"),
        (spread_of_repeats(row), "of repeats"),
    ];
    let spreads = spreads
        .into_iter()
        .filter_map(|(cv, whose)| Some(format!("cv {} {whose}", percent(cv?))));
    let detail = Some(spreads.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty());
    Shown {
        detail,
        ..shown(seconds(time.mean_seconds), time.mean_seconds)
    }
}

fn mfu(mfu: &Mfu) -> Shown {
    figure(&mfu.clone().into(), "fraction")
}

fn memory(row: &Row) -> Shown {
    let Some(memory) = row.memory.first() else {
        return missing("the log states no memory");
    };
    let detail = Some(memory.kind.replace('_', " "));
    Shown {
        detail,
        ..shown(bytes(memory.bytes), memory.bytes as f64)
    }
}

fn loss(row: &Row, baseline: Option<&Row>) -> Shown {
    let Some(loss) = row.loss_at_end else {
        return missing("a counted repeat logs no loss at its last step");
    };
    let detail = row.last_step.map(|step| format!("step {step}"));
    let warning = baseline.and_then(|baseline| loss_apart(row, baseline));
    Shown {
        detail,
        warning,
        ..shown(format!("{loss:.4}"), loss)
    }
}

/// Metrics that any row has a figure of, or an error: a title and a unit are one column.
fn metric_columns<'a>(rows: &[(usize, &'a Row)]) -> Vec<&'a Metric> {
    let mut columns: Vec<&Metric> = Vec::new();
    for metric in rows.iter().flat_map(|(_, row)| &row.metrics.0) {
        let is_known = columns.iter().any(|c| same_column(c, metric));
        if !OWN.contains(&&*metric.name)
            && !is_known
            && !matches!(metric.figure, Figure::Absent { .. })
        {
            columns.push(metric);
        }
    }
    // As a row has them, whichever row came with a figure first.
    let rank = |m: &Metric| {
        rows.iter()
            .find_map(|(_, row)| row.metrics.0.iter().position(|n| n.name == m.name))
    };
    columns.sort_by_key(|m| rank(m));
    columns
}

fn same_column(a: &Metric, b: &Metric) -> bool {
    (&a.name, &a.title, &a.unit) == (&b.name, &b.title, &b.unit)
}

fn heading(metric: &Metric) -> String {
    let is_said =
        ["", "fraction", "s"].contains(&&*metric.unit) || metric.title.contains(&*metric.unit);
    if is_said {
        metric.title.clone()
    } else {
        format!("{}, {}", metric.title, metric.unit)
    }
}

fn metric(row: &Row, column: &Metric) -> Shown {
    match row.metrics.0.iter().find(|m| m.name == column.name) {
        Some(metric) if same_column(metric, column) => figure(&metric.figure, &metric.unit),
        Some(metric) => missing(&format!("of this cell it is {}", heading(metric))),
        None => missing("not computed"),
    }
}

fn figure(figure: &Figure, unit: &str) -> Shown {
    match figure {
        Figure::Ok { value, .. } => shown(in_unit(*value, unit), *value),
        Figure::Absent { reason } => missing(&reason.text),
        Figure::Error { reason } => Shown {
            impossible: true,
            ..missing(&reason.text)
        },
    }
}

/// Its unit stands in the heading.
pub fn in_unit(value: f64, unit: &str) -> String {
    super::super::format::metric(value, unit, unit)
}

fn shown(text: String, value: f64) -> Shown {
    Shown {
        text,
        value: Some(value).filter(|v| v.is_finite()),
        ..Shown::default()
    }
}

fn missing(reason: &str) -> Shown {
    Shown {
        reason: Some(reason.to_owned()),
        ..Shown::default()
    }
}
