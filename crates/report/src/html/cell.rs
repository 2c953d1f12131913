//! What is told of one cell: settings, surroundings, figures, and every repeat.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::Value;
use tprimat_figures::{
    AbsentCell, CellEnvironment, Comparison, Curve, Difference, EnvironmentDifference,
    EnvironmentKind, Figure, Memory, Note, RepeatStatus, RepeatSummary, Row, Unit, texts,
};
use tprimat_results::{Attestation, AttestationStatus, Contract, Source, Tier};

use super::{
    super::{
        advice::{advice, in_general},
        notes::steady_state,
    },
    MOST,
    page::{id, in_unit},
};

/// Characters of log tails in the whole page: a matrix that fails as a whole must still open.
const TAILS: usize = 1 << 20;
/// The most bytes of one log's tail.
const TAIL: usize = 8 << 10;

#[derive(Serialize)]
pub struct Detail<'a> {
    id: String,
    cell: &'a str,
    /// Absent of a cell with figures.
    state: Option<&'a str>,
    /// The state for people.
    word: Option<String>,
    reason: Option<String>,
    baseline: Option<&'a str>,
    device: Option<&'a str>,
    imported: &'a [String],
    labels: Vec<&'a str>,
    warnings: Vec<&'a str>,
    /// `3 hosts`, where repeats are not the units.
    unit: Option<String>,
    repeats_added_later: bool,
    /// How the measured part of its runs was found.
    steady_state: Vec<String>,
    settings: Vec<Setting<'a>>,
    figures: Vec<Named<'a>>,
    memory: &'a [Memory],
    surroundings: Vec<Surrounding<'a>>,
    repeats: Vec<Repeat>,
    notes: Vec<String>,
}

/// A field of the contract and what was attested of it; either may be absent.
#[derive(Serialize)]
struct Setting<'a> {
    field: &'a str,
    tier: Option<Tier>,
    value: Option<String>,
    source: Option<Source>,
    /// The baseline's, where it is another.
    baseline: Option<String>,
    declared: Option<String>,
    stated: Option<String>,
    status: Option<AttestationStatus>,
    arithmetic: Option<&'a String>,
}

#[derive(Serialize)]
struct Named<'a> {
    title: &'a str,
    unit: &'a str,
    text: Option<String>,
    why: String,
    impossible: bool,
}

#[derive(Serialize)]
struct Surrounding<'a> {
    kind: EnvironmentKind,
    name: &'a str,
    value: Option<&'a str>,
    differs: bool,
    /// The baseline's value, where it has one that is another.
    baseline: Option<&'a str>,
    dangerous: Option<String>,
    /// What else differs, so that this must.
    follows: Option<&'a str>,
}

#[derive(Serialize)]
struct Repeat {
    #[serde(flatten)]
    summary: RepeatSummary,
    /// After a failure.
    what_to_do: Option<String>,
    /// Earlier lines of the log's tail for which there was no room.
    tail_left_out: usize,
}

/// What is said of each cell, looked up by its name.
struct Found<'a> {
    environment: BTreeMap<&'a str, &'a [EnvironmentDifference]>,
    differences: HashMap<&'a str, Vec<&'a Difference>>,
    notes: HashMap<&'a str, Vec<&'a Note>>,
}

impl<'a> Found<'a> {
    fn of(comparison: &'a Comparison) -> Self {
        let environment = comparison.environment_by_cell();
        let mut found = Self {
            environment,
            differences: HashMap::new(),
            notes: HashMap::new(),
        };
        for difference in comparison.differences.iter().filter(|d| !d.refused) {
            found
                .differences
                .entry(&difference.cell_a)
                .or_default()
                .push(difference);
        }
        for note in &comparison.notes {
            if let Some(cell) = &note.cell {
                found.notes.entry(cell).or_default().push(note);
            }
        }
        found
    }
}

/// The cells that the page shows, rows first.
pub fn all(comparison: &Comparison) -> Vec<Detail<'_>> {
    let rows = || comparison.rows.iter().take(MOST);
    let absent = || comparison.absent.iter().take(MOST);
    let repeats = rows()
        .flat_map(|r| &r.repeats)
        .chain(absent().flat_map(|c| &c.repeats));
    let room = (TAILS / repeats.filter(|r| !r.log_tail.is_empty()).count().max(1)).min(TAIL);
    let found = Found::of(comparison);
    let first_absent = comparison.rows.len();
    let of_rows = rows()
        .enumerate()
        .map(|(at, row)| of_row(comparison, &found, at, row, room));
    let of_absent = absent()
        .enumerate()
        .map(|(at, cell)| of_absent(&found, first_absent + at, cell, room));
    of_rows.chain(of_absent).collect()
}

fn of_row<'a>(
    comparison: &'a Comparison,
    found: &Found<'a>,
    at: usize,
    row: &'a Row,
    room: usize,
) -> Detail<'a> {
    let baseline = comparison
        .groups
        .get(row.group)
        .map(|g| &*g.baseline)
        .filter(|b| *b != row.cell);
    let estimate = &row.tokens_per_second_per_gpu;
    Detail {
        id: id(at),
        cell: &row.cell,
        state: None,
        word: None,
        reason: None,
        baseline,
        device: row.device.as_deref(),
        imported: &row.imported,
        labels: texts(&row.labels),
        warnings: texts(&row.warnings),
        unit: (estimate.unit != Unit::Repeat).then(|| estimate.unit.counted(estimate.units.len())),
        repeats_added_later: row.repeats_added_later,
        steady_state: steady_state(&[row]),
        settings: settings(
            found,
            &row.cell,
            baseline,
            &row.contract,
            row.attested.as_ref(),
        ),
        figures: figures(row),
        memory: &row.memory,
        surroundings: surroundings(found, row, baseline),
        repeats: row
            .repeats
            .iter()
            .map(|r| repeat(&row.cell, r, room))
            .collect(),
        notes: notes(found, &row.cell),
    }
}

fn of_absent<'a>(found: &Found<'a>, at: usize, cell: &'a AbsentCell, room: usize) -> Detail<'a> {
    Detail {
        id: id(at),
        cell: &cell.cell,
        state: Some(cell.state.name()),
        word: Some(cell.state.to_string()),
        reason: Some(cell.reason.text.clone()),
        baseline: None,
        device: None,
        imported: &cell.imported,
        labels: Vec::new(),
        warnings: Vec::new(),
        unit: None,
        repeats_added_later: false,
        steady_state: Vec::new(),
        settings: settings(
            found,
            &cell.cell,
            None,
            &cell.contract,
            cell.attested.as_ref(),
        ),
        figures: Vec::new(),
        memory: &[],
        surroundings: Vec::new(),
        repeats: cell
            .repeats
            .iter()
            .map(|r| repeat(&cell.cell, r, room))
            .collect(),
        notes: notes(found, &cell.cell),
    }
}

/// In the order of the contract, then what is only attested.
fn settings<'a>(
    found: &Found<'a>,
    cell: &str,
    baseline: Option<&str>,
    contract: &'a Contract,
    attested: Option<&'a Attestation>,
) -> Vec<Setting<'a>> {
    let attested = attested.map_or(&[][..], |a| &a.fields);
    let differences = found.differences.get(cell).map_or(&[][..], Vec::as_slice);
    let of_pair = |field: &str| {
        let pair = |d: &&&Difference| Some(&*d.cell_b) == baseline && d.field.field == field;
        differences
            .iter()
            .find(pair)
            .and_then(|d| d.field.b.as_ref())
            .map(text)
    };
    let contracted = contract.0.iter().map(|f| {
        (
            &*f.field,
            Some(f),
            attested.iter().find(|a| a.field == f.field),
        )
    });
    let others = attested
        .iter()
        .filter(|a| contract.get(&a.field).is_none())
        .map(|a| (&*a.field, None, Some(a)));
    contracted
        .chain(others)
        .map(|(field, contract, attested)| Setting {
            field,
            tier: contract.map(|f| f.tier),
            value: contract.map(|f| text(&f.value)),
            source: contract.map(|f| f.source),
            baseline: of_pair(field),
            declared: attested.and_then(|a| a.declared.as_ref()).map(text),
            // A setting that nobody asked for is stated, though nothing attests it.
            stated: attested
                .and_then(|a| a.effective.as_ref())
                .or_else(|| {
                    contract
                        .filter(|f| attested.is_none() && f.source == Source::Effective)
                        .map(|f| &f.value)
                })
                .map(text),
            status: attested.map(|a| a.status),
            arithmetic: attested.and_then(|a| a.arithmetic.as_ref()),
        })
        .collect()
}

/// A string without its quotes; anything else as JSON.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Every figure that a cell could have, with what it is made of or why it is missing.
fn figures(row: &Row) -> Vec<Named<'_>> {
    let named = |title: &'static str, missing: bool, why: &str| {
        missing.then(|| Named {
            title,
            unit: "",
            text: None,
            why: why.to_owned(),
            impossible: false,
        })
    };
    let own = [
        named(
            "95 % interval",
            row.tokens_per_second_per_gpu.ci95.is_none(),
            if row.tokens_per_second_per_gpu.values.len() < 2 {
                "one repeat"
            } else {
                "the repeats do not vary"
            },
        ),
        named(
            "peak memory",
            row.memory.is_empty(),
            "the log states no memory",
        ),
        named(
            "loss at end",
            row.loss_at_end.is_none(),
            "a counted repeat logs no loss at its last step",
        ),
    ];
    let mut all: Vec<Named<'_>> = own.into_iter().flatten().collect();
    all.extend(
        row.metrics
            .0
            .iter()
            .map(|m| of_figure(&m.title, &m.unit, m.figure.clone())),
    );
    all
}

fn of_figure<'a>(title: &'a str, unit: &'a str, figure: Figure) -> Named<'a> {
    let shown_unit = if ["fraction", "s"].contains(&unit) {
        ""
    } else {
        unit
    };
    let impossible = matches!(figure, Figure::Error { .. });
    match figure {
        Figure::Ok { value, basis } => Named {
            title,
            unit: shown_unit,
            text: Some(in_unit(value, unit)),
            why: basis.clone(),
            impossible,
        },
        Figure::Absent { reason } | Figure::Error { reason } => Named {
            title,
            unit: shown_unit,
            text: None,
            why: reason.text.clone(),
            impossible,
        },
    }
}

/// Variables, facts and versions of a cell, and those that only the baseline has.
fn surroundings<'a>(
    found: &Found<'a>,
    row: &'a Row,
    baseline: Option<&str>,
) -> Vec<Surrounding<'a>> {
    let CellEnvironment {
        variables, facts, ..
    } = &row.environment;
    let of_cell = found
        .environment
        .get(row.cell.as_str())
        .copied()
        .unwrap_or_default();
    let differing: Vec<&EnvironmentDifference> = of_cell
        .iter()
        .filter(|d| Some(&*d.cell_b) == baseline)
        .collect();
    let of = |kind: EnvironmentKind, name: &'a str, value: Option<&'a str>| {
        let difference = differing.iter().find(|d| d.kind == kind && d.name == name);
        Surrounding {
            kind,
            name,
            value,
            differs: difference.is_some(),
            baseline: difference.and_then(|d| d.b.as_deref()),
            dangerous: difference.and_then(|d| d.dangerous.clone()),
            follows: difference.and_then(|d| d.follows.as_deref()),
        }
    };
    let maps = [
        (EnvironmentKind::Variable, variables),
        (EnvironmentKind::Version, &row.versions),
        (EnvironmentKind::Fact, facts),
    ];
    let own = maps
        .into_iter()
        .flat_map(|(kind, map)| map.iter().map(move |(name, value)| (kind, name, value)));
    let mut all: Vec<Surrounding<'a>> = own
        .map(|(kind, name, value)| of(kind, name, Some(value)))
        .collect();
    for difference in &differing {
        if !all
            .iter()
            .any(|s| (s.kind, s.name) == (difference.kind, &*difference.name))
        {
            all.push(Surrounding {
                kind: difference.kind,
                name: &difference.name,
                value: difference.a.as_deref(),
                differs: true,
                baseline: difference.b.as_deref(),
                dangerous: difference.dangerous.clone(),
                follows: difference.follows.as_deref(),
            });
        }
    }
    all
}

/// Without the series, which pictures show, and with as much of the tail as there is room for.
fn repeat(cell: &str, repeat: &RepeatSummary, room: usize) -> Repeat {
    let mut size = 0;
    let fits = |line: &&String| {
        size += line.len() + 1;
        size <= room
    };
    let kept = repeat.log_tail.iter().rev().take_while(fits).count();
    let left_out = repeat.log_tail.len() - kept;
    let mut summary = RepeatSummary {
        curve: Curve::default(),
        ..repeat.clone()
    };
    summary.log_tail.drain(..left_out);
    if let Some(telemetry) = &mut summary.telemetry {
        telemetry.power_series = Vec::new();
    }
    let what_to_do = match &repeat.status {
        RepeatStatus::Failed { class, .. } => Some(advice(*class, cell, in_general)),
        _ => None,
    };
    Repeat {
        summary,
        what_to_do,
        tail_left_out: left_out,
    }
}

fn notes(found: &Found<'_>, cell: &str) -> Vec<String> {
    let mut of_cell = found.notes.get(cell).cloned().unwrap_or_default();
    of_cell.sort_by_key(|note| note.kind);
    of_cell
        .into_iter()
        .map(|note| note.reason.text.clone())
        .collect()
}
