//! A plan as a person reads it: a line a cell, then how many there are and what they
//! cost.

use std::fmt::Write as _;

use indexmap::IndexMap;

use super::{NOT_COUNTED, Row, duration};
use crate::{
    cache::TaskKind,
    cli::{blocked, output::page},
    execute::{ASSUMED_MFU, Basis, Prices, few_digits},
    graph::State,
    plan::Plan,
    report::Ink,
    words::plain::counted,
};

/// The whole plan: its lines, then the counts of what they list and the estimate.
pub(super) fn text(plan: &Plan, rows: &[Row], [here, elsewhere]: [&Prices; 2]) -> String {
    let (mut text, counts) = by_cell(plan, rows);
    let tasks = counted(rows.len(), "task");
    let _ = writeln!(
        text,
        "`--json` lists the {tasks} behind these lines, and the estimate of each cell"
    );
    let mut estimate = sentence(here, "nothing to train here");
    if elsewhere.runs() > 0 {
        let _ = write!(
            estimate,
            "; for other hosts, if one host ran them one after another: {}",
            sentence(elsewhere, "nothing")
        );
    }
    let _ = writeln!(text, "{}: {counts}; {estimate}", plan.matrix.name);
    text
}

/// `4 cells (3 fresh, 1 stale)`; `4 cells, all fresh`
fn counts(states: &[&str], noun: &str) -> String {
    let count = |state: &str| states.iter().filter(|of| **of == state).count();
    let of = |state: &str| match count(state) {
        0 => None,
        n => Some(format!("{n} {state}")),
    };
    let all = State::ALL.iter().map(|state| state.name());
    let parts: Vec<String> = all.chain([NOT_COUNTED]).filter_map(of).collect();
    let all = counted(states.len(), noun);
    match (states, &parts[..]) {
        ([state], _) => format!("{all}, {state}"),
        ([state, ..], [_]) => format!("{all}, all {state}"),
        ([], _) => all,
        _ => format!("{all} ({})", parts.join(", ")),
    }
}

/// A plan with at most this many cells has a line for each; a longer one has a line for each
/// reason.
const CELLS: usize = 24;

/// Of a cell whose trainings are all there, as after `cache pull`.
const MEASURED: &str = "measured; its figures are still to be made from the logs";

/// Names that are longer push their reasons to the right, and nobody else's.
const WIDEST: usize = 90;

/// The state of each cell, which is that of its first training that is not fresh, else of one that
/// does not count, else of its first other task.
fn by_cell(plan: &Plan, rows: &[Row]) -> (String, String) {
    let mut cells: Vec<Vec<&Row>> = Vec::new();
    let mut others: Vec<Shown> = Vec::new();
    for row in rows {
        match (row.cell, cells.last_mut()) {
            // The tasks over all cells; that they are as the cells are goes without saying.
            (None, _) if row.follows || row.state == State::Fresh => {}
            (None, _) => others.push(Shown {
                state: row.state.name(),
                name: row.label.clone(),
                runs: 0,
                of: 0,
                reason: &row.reason,
            }),
            (Some(_), Some(of_cell)) if of_cell[0].cell == row.cell => of_cell.push(row),
            (Some(_), _) => cells.push(vec![row]),
        }
    }
    let (mut found, mut states) = (Vec::new(), Vec::new());
    for rows in &cells {
        let Some(cell) = rows[0].cell else { continue };
        let is_due = |row: &&&Row| row.state != State::Fresh;
        let trains = || rows.iter().filter(|row| row.kind == TaskKind::Train);
        // Where one repeat does not count, that is why others are not started.
        let is_held_back = trains().any(|row| row.is_held_back);
        let uncounted = || trains().find(|row| is_held_back && !row.is_counted);
        let Some(shown) = trains()
            .find(|row| is_due(row) && !row.is_held_back)
            .or_else(uncounted)
            .or_else(|| rows.iter().find(is_due))
            .or_else(|| trains().find(|row| !row.is_counted))
            .or_else(|| rows.first())
        else {
            continue;
        };
        // Runs that a failed one holds back were not made, so they did not fail.
        let stands = |row: &Row| (row.state, row.is_counted, row.is_not_started);
        let is_same = |row: &&&Row| stands(row) == stands(shown);
        let same = trains().filter(is_same).count();
        states.push(shown.word());
        found.push(Shown {
            state: shown.word(),
            name: plan.cells[cell].id.clone(),
            runs: if shown.kind == TaskKind::Train {
                same
            } else {
                0
            },
            of: trains().count(),
            reason: if shown.kind != TaskKind::Train && shown.is_never_run {
                MEASURED
            } else {
                &shown.reason
            },
        });
    }
    let counts = counts(&states, "cell");
    let excluded = plan.matrix.excluded.iter().map(|(cell, reason)| Shown {
        state: "excluded",
        name: cell.to_string(),
        runs: 0,
        of: 0,
        reason,
    });
    let text = lines(found) + &lines(others) + &grouped(excluded.collect());
    (text, counts)
}

/// What a line says of a cell, or of another task.
struct Shown<'a> {
    state: &'static str,
    name: String,
    /// Trainings of that state, and all that the cell has; 0 where it is not a training.
    runs: usize,
    of: usize,
    reason: &'a str,
}

/// The first column: what needs attention stands out, and what this host does not run steps back.
fn column(state: &str) -> String {
    let ink = match state {
        "fresh" => Ink::Good,
        "failed" | NOT_COUNTED => Ink::Bad,
        "stale" => Ink::Strong,
        _ => Ink::Dim,
    };
    page().paint.ink(ink, &format!("{state:<11}"))
}

/// A line for each cell: state, cell, reason. Where that were too many, those that share a state
/// and a reason have one line.
fn lines(found: Vec<Shown>) -> String {
    if found.len() > CELLS {
        return grouped(found);
    }
    let runs = |shown: &Shown| match (shown.runs, shown.of) {
        (0, _) | (1, 1) => String::new(),
        (runs, of) if runs == of => format!("{runs} runs"),
        (runs, of) => format!("{runs} of {of} runs"),
    };
    let runs: Vec<String> = found.iter().map(runs).collect();
    let widest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).min(WIDEST);
    let width = widest(&mut found.iter().map(|shown| shown.name.len()));
    let width_of_runs = widest(&mut runs.iter().map(String::len));
    let mut text = String::new();
    for (shown, runs) in found.iter().zip(runs) {
        let Shown { name, reason, .. } = shown;
        let mut line = format!("{}  {name:<width$}  ", column(shown.state));
        if width_of_runs > 0 {
            let _ = write!(line, "{runs:<width_of_runs$}  ");
        }
        let _ = writeln!(text, "{}", (line + reason).trim_end());
    }
    text
}

/// One line for those that share a state and a reason.
fn grouped(found: Vec<Shown>) -> String {
    let mut text = String::new();
    // Each cell may have a reason of its own.
    let mut groups: IndexMap<(&str, &str), (Vec<String>, usize)> = IndexMap::new();
    for Shown {
        state,
        name,
        runs,
        reason,
        ..
    } in found
    {
        let (names, all) = groups.entry((state, reason)).or_default();
        names.push(name);
        *all += runs;
    }
    for ((state, reason), (names, runs)) in groups {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let few = blocked::few(&names);
        // The names that are left out are counted.
        let cells = (few != names.join(", ")).then(|| counted(names.len(), "cell"));
        let runs = (runs > 0).then(|| counted(runs, "run"));
        let counts: Vec<String> = cells.into_iter().chain(runs).collect();
        let counts = if counts.is_empty() {
            String::new()
        } else {
            format!(" ({})", counts.join(", "))
        };
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        let _ = writeln!(text, "{}  {few}{counts}{reason}", column(state));
    }
    text
}

/// The estimate in a sentence; `nothing` where there are no runs.
fn sentence(prices: &Prices, nothing: &str) -> String {
    let runs = |n: usize| counted(n, "run");
    let unknown = prices.unknown_runs();
    let Some(seconds) = prices.seconds() else {
        return if unknown == 0 {
            nothing.to_owned()
        } else {
            format!("{}, of unknown length", runs(unknown))
        };
    };
    let mut text = format!("{}, about {}", runs(prices.runs()), duration(seconds));
    if let Some(hours) = prices.gpu_hours() {
        let _ = write!(text, ", {} GPU-hours", few_digits(hours));
    }
    for (currency, cost) in prices.costs() {
        let _ = write!(text, ", {} {currency}", few_digits(cost));
    }
    let by = prices.by_basis().into_iter().map(|(basis, n)| match basis {
        Basis::Measured => (n, "from runs of the same cells".to_owned()),
        Basis::Earlier => (
            n,
            "from runs of the same cells before they were changed".to_owned(),
        ),
        Basis::Model => (n, format!("assuming {:.0} % MFU", 100.0 * ASSUMED_MFU)),
    });
    let by: Vec<(usize, String)> = by.collect();
    let is_one_kind = by.len() == 1 && unknown == 0;
    let told = |(n, how): (usize, String)| {
        if is_one_kind {
            how
        } else {
            format!("{} {how}", runs(n))
        }
    };
    let mut by: Vec<String> = by.into_iter().map(told).collect();
    if unknown > 0 {
        by.push(format!("{} of unknown length", runs(unknown)));
    }
    match prices.unpriced_runs() {
        0 => {}
        n if n == prices.runs() => by.push("no price set".to_owned()),
        n => by.push(format!("{} without a price", runs(n))),
    }
    let _ = write!(text, " ({})", by.join("; "));
    text
}
