//! What became of a build's cells and repeats, counted.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cache::TaskKind,
    execute::CellCounts,
    figures::{AbsentCell, AbsentState, Comparison, UncountedRepeats},
    graph::{Engine, Reason, State, Statuses},
    job::RunOutcome,
    plan::Support,
};

/// What became of the selected cells.
pub(super) fn cells(
    engine: &Engine,
    statuses: &Statuses,
    comparison: Option<&Comparison>,
) -> CellCounts {
    let absent = comparison.iter().flat_map(|comparison| &comparison.absent);
    let absent: BTreeMap<&str, AbsentState> = absent
        .map(|absent| (absent.cell.as_str(), absent.state))
        .collect();
    let mut counts = CellCounts::default();
    for id in engine.plan.cells.ids() {
        let cell = &engine.plan.cells[id];
        let state = |kind, repeat| statuses.get(engine.dag.node(kind, id, repeat)).state;
        // A run whose log alone says that it failed ended well.
        let has_ended_well = || {
            let trains = (1..=cell.repeats).map(|r| engine.dag.node(TaskKind::Train, id, r));
            let mut runs = trains
                .filter_map(|train| statuses.get(train).attempt())
                .peekable();
            runs.peek().is_some() && runs.all(|run| run.outcome == RunOutcome::Ok)
        };
        // Of a cell that failed itself, the first repeat has run.
        let is_held_back = || {
            let first = engine.dag.find(TaskKind::Train, id, 1);
            let reason = first.and_then(|first| statuses.get(first).reason.as_ref());
            matches!(reason, Some(Reason::NotStarted(_)))
        };
        let count = if cell.left_out {
            &mut counts.not_measured
        } else if !cell.selected {
            continue;
        } else if matches!(cell.support, Support::Unsupported(_)) {
            &mut counts.unsupported
        } else if let Some(
            AbsentState::Contradicted | AbsentState::Suspect | AbsentState::Unmeasured,
        ) = absent.get(cell.id.as_str())
        {
            &mut counts.not_counted
        } else if absent.get(cell.id.as_str()) == Some(&AbsentState::Failed) && has_ended_well() {
            &mut counts.not_counted
        } else if is_held_back() {
            &mut counts.not_measured
        } else if (1..=cell.repeats).any(|r| state(TaskKind::Train, r) == State::Failed) {
            &mut counts.failed
        } else {
            match state(TaskKind::Aggregate, 0) {
                State::Fresh if absent.get(cell.id.as_str()) == Some(&AbsentState::Failed) => {
                    &mut counts.failed
                }
                State::Fresh => &mut counts.done,
                State::Failed => &mut counts.failed,
                State::Waiting | State::Blocked => &mut counts.waiting,
                State::Stale | State::Unsupported => &mut counts.not_measured,
            }
        };
        *count += 1;
    }
    counts
}

/// What the results of the selected cells say, which no task's own state shows: a run can end well
/// and prove nothing.
#[derive(Default)]
pub(super) struct RepeatCounts {
    /// Suspect ones are missing, and no failure.
    pub uncounted: UncountedRepeats,
    /// Cells of the matrix, selected or not, without all the repeats that were asked for.
    pub incomplete: usize,
}

impl RepeatCounts {
    pub fn of(engine: &Engine, comparison: Option<&Comparison>) -> Self {
        let Some(comparison) = comparison else {
            return Self::default();
        };
        let selected: BTreeSet<&str> = engine
            .plan
            .cells
            .iter()
            .filter(|c| c.selected)
            .map(|c| c.id.as_str())
            .collect();
        let rows = comparison
            .rows
            .iter()
            .filter(|r| selected.contains(r.cell.as_str()));
        let mut verdict = Self {
            incomplete: comparison
                .rows
                .iter()
                .filter(|r| (r.n as u64) < u64::from(r.repeats_wanted))
                .count()
                + comparison
                    .absent
                    .iter()
                    .filter(|a| a.state != AbsentState::Unsupported)
                    .count(),
            ..Self::default()
        };
        for row in rows {
            verdict.uncounted += row.uncounted;
        }
        // A cell of which no repeat counts has no row.
        for absent in comparison
            .absent
            .iter()
            .filter(|a| selected.contains(a.cell.as_str()))
        {
            if absent.failed == 0 || !waits_to_be_tried(engine, absent) {
                verdict.uncounted += absent.uncounted().unwrap_or_default();
            }
        }
        verdict
    }

    pub fn is_bad(&self) -> bool {
        let of = &self.uncounted;
        of.failed + of.contradicted + of.unmeasured > 0
    }
}

/// Is a cell with failed attempts alone to be tried again, but not on this host? It is no failure of
/// this build.
fn waits_to_be_tried(engine: &Engine, absent: &AbsentCell) -> bool {
    let cell = engine
        .plan
        .find(&absent.cell)
        .ok()
        .and_then(|cell| engine.plan.prepared(cell));
    cell.is_some_and(|prepared| prepared.here().is_err())
}
