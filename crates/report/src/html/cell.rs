//! What is told of one cell: settings, surroundings, figures, and every repeat.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use tprimat_numbers::figures::{
    AbsentCell, CellEnvironment, Comparison, Curve, Difference, EnvironmentDifference,
    EnvironmentKind, Note, RepeatStatus, RepeatSummary, Unit, texts,
};
use tprimat_numbers::results::{Attestation, AttestationStatus, Contract, Source, Tier};

use super::{
    super::{
        advice::{advice, in_general},
        cell::{Named, figures},
        columns::Of,
        notes::steady_state,
    },
    MOST,
    page::id,
};

/// The most bytes of one log's tail: the page of a matrix that fails as a whole must still open.
const TAIL: usize = 2 << 10;

#[derive(Default, Serialize)]
pub struct Detail<'a> {
    id: String,
    cell: &'a str,
    /// Absent of a cell with figures.
    state: Option<&'a str>,
    /// The state for people.
    word: Option<String>,
    reason: Option<String>,
    baseline: Option<&'a str>,
    imported: &'a [String],
    labels: Vec<&'a str>,
    warnings: Vec<&'a str>,
    /// `3 hosts`, where repeats are not the units.
    unit: Option<String>,
    repeats_added_later: bool,
    /// How the measured part of its runs was found.
    steady_state: Vec<String>,
    settings: Vec<Setting<'a>>,
    figures: Vec<Named>,
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
#[derive(Default)]
struct Found<'a> {
    differences: HashMap<&'a str, Vec<&'a Difference>>,
    notes: HashMap<&'a str, Vec<&'a Note>>,
}

impl<'a> Found<'a> {
    fn of(comparison: &'a Comparison) -> Self {
        let mut found = Self::default();
        for difference in comparison.differences.iter().filter(|d| !d.refused) {
            let of_cell = found.differences.entry(&difference.cell_a);
            of_cell.or_default().push(difference);
        }
        for note in &comparison.notes {
            if let Some(cell) = &note.cell {
                found.notes.entry(cell).or_default().push(note);
            }
        }
        found
    }

    fn notes(&self, cell: &str) -> Vec<String> {
        let mut of_cell = self.notes.get(cell).cloned().unwrap_or_default();
        of_cell.sort_by_key(|note| note.kind);
        of_cell
            .into_iter()
            .map(|note| note.reason.text.clone())
            .collect()
    }
}

/// The cells that the page shows, rows first.
pub fn all(comparison: &Comparison) -> Vec<Detail<'_>> {
    let mut rows = Of::all(comparison);
    rows.truncate(MOST);
    let absent = || comparison.absent.iter().take(MOST);
    let found = Found::of(comparison);
    let of_rows = rows.iter().map(|of| of_row(&found, of));
    let of_absent = absent().zip(comparison.rows.len()..);
    let of_absent = of_absent.map(|(cell, at)| of_absent_cell(&found, at, cell));
    of_rows.chain(of_absent).collect()
}

fn of_row<'a>(found: &Found<'a>, of: &Of<'a>) -> Detail<'a> {
    let row = of.row;
    let baseline = Some(of.group.baseline.as_str()).filter(|_| !of.is_baseline());
    let estimate = &row.tokens_per_second_per_gpu;
    Detail {
        id: id(of.at),
        cell: &row.cell,
        baseline,
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
            (&row.contract, row.attested.as_ref()),
        ),
        figures: figures(of),
        surroundings: surroundings(of),
        repeats: repeats(&row.cell, &row.repeats),
        notes: found.notes(&row.cell),
        ..Detail::default()
    }
}

fn of_absent_cell<'a>(found: &Found<'a>, at: usize, cell: &'a AbsentCell) -> Detail<'a> {
    Detail {
        id: id(at),
        cell: &cell.cell,
        state: Some(cell.state.name()),
        word: Some(cell.state.to_string()),
        reason: Some(cell.reason.text.clone()),
        imported: &cell.imported,
        settings: settings(
            found,
            &cell.cell,
            None,
            (&cell.contract, cell.attested.as_ref()),
        ),
        repeats: repeats(&cell.cell, &cell.repeats),
        notes: found.notes(&cell.cell),
        ..Detail::default()
    }
}

/// In the order of the contract, then what is only attested.
fn settings<'a>(
    found: &Found<'a>,
    cell: &str,
    baseline: Option<&str>,
    (contract, attested): (&'a Contract, Option<&'a Attestation>),
) -> Vec<Setting<'a>> {
    let attested = attested.map_or(&[][..], |a| &a.fields);
    let differences = found.differences.get(cell).map_or(&[][..], Vec::as_slice);
    let of_pair = |field: &str| {
        let is_it = |d: &&&Difference| Some(&*d.cell_b) == baseline && d.field.field == field;
        differences.iter().find(is_it)?.field.b.as_ref().map(text)
    };
    let contracted = contract.0.iter().map(|f| {
        let attested = attested.iter().find(|a| a.field == f.field);
        (&*f.field, Some(f), attested)
    });
    let others = attested.iter().filter(|a| contract.get(&a.field).is_none());
    let others = others.map(|a| (&*a.field, None, Some(a)));
    let all = contracted.chain(others);
    all.map(|(field, contract, attested)| {
        // A setting that nobody asked for is stated, though nothing attests it.
        let unasked = contract.filter(|f| attested.is_none() && f.source == Source::Effective);
        let stated = attested.and_then(|a| a.effective.as_ref());
        Setting {
            field,
            tier: contract.map(|f| f.tier),
            value: contract.map(|f| text(&f.value)),
            source: contract.map(|f| f.source),
            baseline: of_pair(field),
            declared: attested.and_then(|a| a.declared.as_ref()).map(text),
            stated: stated.or(unasked.map(|f| &f.value)).map(text),
            status: attested.map(|a| a.status),
            arithmetic: attested.and_then(|a| a.arithmetic.as_ref()),
        }
    })
    .collect()
}

/// A string without its quotes; anything else as JSON.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Variables, facts and versions of a cell, and those that only the baseline has.
fn surroundings<'a>(of: &Of<'a>) -> Vec<Surrounding<'a>> {
    let CellEnvironment { variables, facts } = &of.row.environment;
    let baseline = &of.group.baseline;
    let differing = of.environment.iter().filter(|d| d.cell_b == *baseline);
    let differing: Vec<&'a EnvironmentDifference> = differing.collect();
    let maps = [
        (EnvironmentKind::Variable, variables),
        (EnvironmentKind::Version, &of.row.versions),
        (EnvironmentKind::Fact, facts),
    ];
    let own = maps.into_iter().flat_map(|(kind, map)| {
        let known = map.iter();
        known.map(move |(name, value)| (kind, name.as_str(), Some(value.as_str())))
    });
    let mut all: Vec<_> = own.collect();
    for d in &differing {
        if !all
            .iter()
            .any(|(kind, name, _)| (*kind, *name) == (d.kind, &*d.name))
        {
            all.push((d.kind, &d.name, d.a.as_deref()));
        }
    }
    let surrounding = |(kind, name, value)| {
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
    all.into_iter().map(surrounding).collect()
}

/// Without the series, which pictures show, and with as much of each tail as there is room for.
fn repeats(cell: &str, repeats: &[RepeatSummary]) -> Vec<Repeat> {
    let shown = |repeat: &RepeatSummary| {
        let mut size = 0;
        let fits = |line: &&String| {
            size += line.len() + 1;
            size <= TAIL
        };
        let kept = repeat.log_tail.iter().rev().take_while(fits).count();
        let left_out = repeat.log_tail.len() - kept;
        let mut summary = RepeatSummary {
            curve: Curve::default(),
            ..repeat.clone()
        };
        summary.log_tail.drain(..left_out);
        let what_to_do = match &repeat.status {
            RepeatStatus::Failed { class, .. } => Some(advice(*class, cell, in_general)),
            _ => None,
        };
        Repeat {
            summary,
            what_to_do,
            tail_left_out: left_out,
        }
    };
    repeats.iter().map(shown).collect()
}
