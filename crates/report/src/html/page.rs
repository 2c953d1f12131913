//! What stands above the details: sentences, a table a group, and what has no figures.

use std::collections::HashMap;

use serde::Serialize;
<<<<<<< HEAD
use tprimat_figures::{AbsentCell, Comparison, Judged, sweeps};
use tprimat_sentences::{each, said};
=======
use tprimat_figures::{
    Comparison, Figure, Group, Judged, Metric, Mfu, RepeatStatus, Row, Speedup, Unit,
    dropped_words, rate_unit, sweeps, texts,
};
use tprimat_plot::{format::mark, loss_apart, short_names};
use tprimat_results::AttestationStatus;
>>>>>>> a66f7723 (Why something is as it is is a code, a severity, values and a sentence)
use tprimat_words::{part, plain::counted};

use super::{
    super::{
        columns::{Of, Place, Shown, marks, rows_of},
        document::{LEADING, Section, sections},
        format::mark,
        headline::{Headline, SpeedVerdict, headlines},
        names::short_names,
        notes::notes,
        sweep::{SweepTable, line_of_cell, sweep_tables},
    },
    MOST,
};

#[derive(Serialize)]
pub struct Page<'a> {
    /// Cells with figures, cells without, repeats that failed, that contradict their job, that
    /// measured nothing.
    counts: Vec<String>,
    sweeps: Vec<SweepTable>,
    groups: Vec<GroupTable>,
    /// Which cells may not be compared, and why.
    refused: Vec<String>,
    absent: Vec<Absent<'a>>,
    notes: Vec<String>,
    /// What a page of this many cells does not show, and where it is.
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct GroupTable {
    model: String,
    workload: String,
    /// The model, and what of the workload sets it apart from the model's others.
    short: String,
    /// The first to be told, and the others.
    leading: Vec<String>,
    more: Vec<String>,
    /// How the measured parts were found.
    steady_state: Vec<String>,
    columns: Vec<String>,
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    id: String,
    cell: String,
    /// What sets it apart from the others of its table.
    name: String,
    is_baseline: bool,
    marks: Vec<String>,
    labels: Vec<&'a str>,
    warnings: Vec<&'a str>,
    figures: Vec<Shown>,
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
        let judged = Judged::of_comparison(comparison);
        let sections = sections(comparison, &judged, &told, (Place::Page, MOST));
        let shorts = names_apart(&sections);
        let groups = sections
            .into_iter()
            .zip(shorts)
            .map(|(section, short)| table(section, short));
        // A sweep says itself that its points are different workloads.
        let lines = line_of_cell(comparison);
        let is_told = |h: &Headline| {
            let other = h.b.as_deref().and_then(|cell| lines.get(cell));
            other.is_some() && lines.get(h.a.as_str()) == other
        };
        let refused = told
            .iter()
            .filter(|h| h.verdict == SpeedVerdict::Refused && !is_told(h));
        let mut refused: Vec<String> = refused.map(|h| h.text.clone()).collect();
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
        let left_out = all.into_iter().filter(|(n, _)| *n > MOST).map(|(n, what)| {
            format!("This page shows the first {MOST} of {n} {what}; compare.json has all of them.")
        });
        refused.truncate(MOST);
        notes.truncate(MOST);
<<<<<<< HEAD
        let absent = comparison
            .absent
            .iter()
            .take(MOST)
            .zip(comparison.rows.len()..);
=======
        let of_absent = |(at, cell): (usize, &'a tprimat_figures::AbsentCell)| Absent {
            id: id(comparison.rows.len() + at),
            cell: &cell.cell,
            state: cell.state.name(),
            word: cell.state.to_string(),
            reason: cell.reason.text.clone(),
            imported: !cell.imported.is_empty(),
        };
>>>>>>> a66f7723 (Why something is as it is is a code, a severity, values and a sentence)
        Self {
            counts: counts(comparison),
            sweeps: sweep_tables(comparison, &sweeps(comparison, &judged)),
            groups: groups.collect(),
            refused,
            absent: absent.map(|(cell, at)| of_absent(cell, at)).collect(),
            notes,
            left_out: left_out.collect(),
        }
    }
}

fn of_absent(cell: &AbsentCell, at: usize) -> Absent<'_> {
    Absent {
        id: id(at),
        cell: &cell.cell,
        state: cell.state.name(),
        word: cell.state.to_string(),
        reason: said(&cell.reason),
        imported: !cell.imported.is_empty(),
    }
}

/// Where a cell's details are: rows first, then cells without figures.
pub fn id(at: usize) -> String {
    format!("cell-{}", at + 1)
}

fn counts(comparison: &Comparison) -> Vec<String> {
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
    let cells = counted(comparison.rows.len(), "cell");
    let counts = std::iter::once(format!("{cells} with figures"));
    counts
        .chain(more.map(|(n, noun, which)| counted(n, noun) + which))
        .collect()
}

fn table(section: Section<'_>, short: String) -> GroupTable {
    let names = short_names(&rows_of(&section.rows));
    let figures = section.figures.rows.into_iter().zip(section.metrics.rows);
    let line = |((of, name), (own, metrics)): ((&Of<'_>, String), (Vec<Shown>, Vec<Shown>))| {
        let imported = (!of.row.imported.is_empty()).then(|| "imported".to_owned());
        Line {
<<<<<<< HEAD
            id: id(of.at),
            cell: of.row.cell.clone(),
            name: part(&name, ..name.len() - mark(&of.row.imported).len()).to_owned(),
            is_baseline: of.is_baseline(),
            marks: imported.into_iter().chain(marks(of.row)).collect(),
            labels: each(&of.row.labels),
            warnings: each(&of.row.warnings),
            figures: [own, metrics].concat(),
=======
            id: id(*index),
            cell: &row.cell,
            name: part(&name, ..name.len() - mark(&row.imported).len()).to_owned(),
            is_baseline,
            marks: marks(row),
            labels: texts(&row.labels),
            warnings: texts(&row.warnings),
            figures,
>>>>>>> a66f7723 (Why something is as it is is a code, a severity, values and a sentence)
        }
    };
    let heads = section
        .figures
        .heads
        .into_iter()
<<<<<<< HEAD
        .chain(section.metrics.heads);
    let (first, more) = section.told.split_at(LEADING.min(section.told.len()));
    let leading = first.iter().map(|headline| headline.text.clone());
=======
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
>>>>>>> a66f7723 (Why something is as it is is a code, a severity, values and a sentence)
    GroupTable {
        model: section.model.to_owned(),
        workload: section.workload,
        short,
        leading: section.ranking.into_iter().chain(leading).collect(),
        more: more
            .iter()
            .take(MOST)
            .map(|headline| headline.text.clone())
            .collect(),
        steady_state: section.steady_state,
        columns: heads.map(|(title, _)| title).collect(),
        rows: section
            .rows
            .iter()
            .zip(names)
            .zip(figures)
            .map(line)
            .collect(),
    }
}

/// Names of tables for the navigation: the model, and the parts of its workload that not all tables of
/// this model have.
fn names_apart(sections: &[Section<'_>]) -> Vec<String> {
    let parts = |section: &Section<'_>| -> Vec<String> {
        let workload = said(&section.rows[0].group.workload);
        workload.split(", ").map(str::to_owned).collect()
    };
    let all: Vec<(&str, Vec<String>)> = sections.iter().map(|s| (s.model, parts(s))).collect();
    let mut shared: HashMap<&str, Vec<String>> = HashMap::new();
    for (model, own) in &all {
        let of_model = shared.entry(model).or_insert_with(|| own.clone());
        of_model.retain(|part| own.contains(part));
    }
<<<<<<< HEAD
    let name = |(model, own): &(&str, Vec<String>)| {
        let apart = own.iter().filter(|part| !shared[model].contains(part));
        let name = std::iter::once(*model).chain(apart.map(String::as_str));
        name.collect::<Vec<_>>().join(", ")
    };
    all.iter().map(name).collect()
=======
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
>>>>>>> a66f7723 (Why something is as it is is a code, a severity, values and a sentence)
}
