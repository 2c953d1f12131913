//! What compare and report see of each cell: where its figures are from, or why it has none.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Engine, Reason, State, Statuses};
use crate::{
    cache::TaskKind,
    digest::Digest,
    import::{self, Imports, KeptRun},
    logs::Failure,
    matrix::{CellId, PerCell},
    plan::{CellPlan, Prepared, Support},
    words::plain::counted,
};

/// What the comparison shows of a cell; its JSON is in the keys of compare and report.
#[derive(Serialize)]
pub struct ComparedCell {
    #[serde(flatten)]
    pub from: FiguresFrom,
    /// An earlier cell that launches the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_launch_as: Option<String>,
}

/// Where a cell's figures are from, or why it has none.
#[derive(Serialize)]
#[serde(untagged)]
pub enum FiguresFrom {
    Summary {
        summary: Digest,
        repeats: u32,
        /// Repeats that are not in the summary because no build has made them yet.
        #[serde(skip_serializing_if = "is_zero")]
        to_come: u32,
        environment: Digest,
    },
    Imports {
        imported: Vec<Digest>,
        claims: Digest,
    },
    /// It ran, and how it failed is known.
    Failure {
        failure: Failure,
        failed_repeats: usize,
    },
    /// It failed, in words.
    Failed {
        failed: String,
    },
    Missing {
        missing: String,
    },
    Unsupported {
        unsupported: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Engine<'_> {
    /// What compare and report see of each cell: its summary, or why there is none.
    pub(crate) fn compared_cells(&self, statuses: &Statuses) -> PerCell<ComparedCell> {
        let imports = Imports::of(self.cache);
        let twins = self.same_launch(statuses);
        let cells = self.plan.cells.with_ids();
        let compared = cells.map(|(id, cell)| {
            let from = self.figures_of(id, cell, statuses);
            // What others measured stands in for what was not measured here, but never for a
            // failure.
            let imported = match &from {
                FiguresFrom::Unsupported { .. } | FiguresFrom::Missing { .. } => {
                    self.imported(&imports, &cell.id)
                }
                _ => None,
            };
            let from = match from {
                FiguresFrom::Missing { missing } => FiguresFrom::Missing {
                    missing: match imports.set_aside_of(&cell.id).count() {
                        0 => missing,
                        n => format!("{missing}; {} set aside", counted(n, "import")),
                    },
                },
                from => from,
            };
            let same_launch_as = twins[id].map(|first| self.plan.cells[first].id.clone());
            ComparedCell {
                same_launch_as: same_launch_as.filter(|_| imported.is_none()),
                from: imported.unwrap_or(from),
            }
        });
        compared.collect()
    }

    /// For each cell, an earlier cell that launches the same bytes in the same way, if there is
    /// one: they share one measurement, so what differs between them never reached the trainer.
    #[must_use]
    pub fn same_launch(&self, statuses: &Statuses) -> PerCell<Option<CellId>> {
        let mut seen: BTreeMap<Digest, CellId> = BTreeMap::new();
        let mut twins = self.plan.cells.map(|_| None);
        for (cell, planned) in self.plan.cells.with_ids() {
            if matches!(planned.support, Support::Unsupported(_)) || planned.repeats == 0 {
                continue;
            }
            // Cells of one platform and framework have the same facts, even where those are not
            // known.
            let rendered = statuses.get(self.dag.node(TaskKind::Render, cell, 0));
            let key = statuses.get(self.dag.node(TaskKind::Train, cell, 1)).key;
            let Some(launch) = key.or_else(|| self.launch_digest(cell, rendered.outputs())) else {
                continue;
            };
            match seen.get(&launch) {
                Some(first) => twins[cell] = Some(*first),
                None => drop(seen.insert(launch, cell)),
            }
        }
        twins
    }

    /// What the imports of a cell depend on, if it has any.
    fn imported(&self, imports: &Imports, cell: &str) -> Option<FiguresFrom> {
        if !imports.has(cell) {
            return None;
        }
        let claims = serde_json::to_vec(&import::claim_for(self.plan, cell)).unwrap_or_default();
        Some(FiguresFrom::Imports {
            imported: imports.kept(cell).iter().map(KeptRun::digest).collect(),
            claims: Digest::of(claims),
        })
    }

    fn figures_of(&self, id: CellId, cell: &CellPlan, statuses: &Statuses) -> FiguresFrom {
        if let Support::Unsupported(reason) = &cell.support {
            let unsupported = reason.clone();
            return FiguresFrom::Unsupported { unsupported };
        }
        let status = statuses.get(self.dag.node(TaskKind::Aggregate, id, 0));
        if matches!(status.state, State::Stale | State::Waiting | State::Blocked)
            && let Some((failure, failed_repeats)) = self.only_failure(id, cell, statuses)
        {
            return FiguresFrom::Failure {
                failure,
                failed_repeats,
            };
        }
        let said = || match &status.reason {
            Some(Reason::Because(text) | Reason::NotStarted(text)) => text.clone(),
            _ => String::new(),
        };
        match (status.state, status.outputs().first()) {
            (State::Fresh, Some(summary)) => {
                let environment = self
                    .plan
                    .prepared(id)
                    .map(Prepared::environment)
                    .unwrap_or_default();
                FiguresFrom::Summary {
                    summary: summary.digest,
                    repeats: cell.repeats,
                    to_come: self.to_come(id, cell, statuses),
                    environment: Digest::of(serde_json::to_vec(&environment).unwrap_or_default()),
                }
            }
            (State::Failed, _) => FiguresFrom::Failed { failed: said() },
            (State::Waiting | State::Blocked, _) => FiguresFrom::Missing { missing: said() },
            _ => FiguresFrom::Missing {
                missing: self.why_missing(id, cell, statuses),
            },
        }
    }

    /// Why a cell that this host can run has no summary: how many of its repeats are measured, and
    /// how one of them failed.
    fn why_missing(&self, id: CellId, cell: &CellPlan, statuses: &Statuses) -> String {
        let train = |repeat| statuses.get(self.dag.node(TaskKind::Train, id, repeat));
        let trained = (1..=cell.repeats).filter(|repeat| train(*repeat).state == State::Fresh);
        let lost = |repeat: u32| match &train(repeat).reason {
            Some(Reason::OutputLost(name)) => Some(format!(
                "repeat {repeat} was measured, but its `{name}` is gone from the cache"
            )),
            _ => None,
        };
        let lost = (1..=cell.repeats).find_map(lost);
        let no_more = match self.options.round {
            Some(_) => "this build makes no further round",
            None => "--cached-only trains nothing",
        };
        let why = match (trained.count(), cell.selected) {
            (0, _) if cell.left_out => format!("not measured yet, and {no_more}"),
            (some, _) if cell.left_out => {
                format!(
                    "{some} of {} repeats are measured, and {no_more}",
                    cell.repeats
                )
            }
            // What was measured is not called unmeasured.
            (0, true) if lost.is_some() => "no repeat has a result".to_owned(),
            (0, true) => "not measured yet".to_owned(),
            (0, false) => "not measured: this build selected other cells".to_owned(),
            (some, true) => format!("{some} of {} repeats are measured", cell.repeats),
            (some, false) => format!(
                "{some} of {} repeats are measured, and this build selected other cells",
                cell.repeats
            ),
        };
        let ended = |repeat: u32| match &train(repeat).reason {
            Some(
                Reason::RetryTransient(how) | Reason::RetryFailed(how) | Reason::FailureLost(how),
            ) => Some(format!("repeat {repeat} failed ({how})")),
            Some(Reason::Interrupted) => Some(format!("repeat {repeat} was interrupted")),
            _ => None,
        };
        match lost.or_else(|| (1..=cell.repeats).find_map(ended)) {
            Some(how) => format!("{why}; {how}"),
            None => why,
        }
    }

    /// Repeats that a later build makes of a cell that is summed up without them, since this one
    /// selected other cells.
    pub(crate) fn to_come(&self, id: CellId, cell: &CellPlan, statuses: &Statuses) -> u32 {
        let train = |repeat| statuses.get(self.dag.node(TaskKind::Train, id, repeat));
        let state = |repeat| train(repeat).state;
        let is_missing = |state| matches!(state, State::Stale | State::Waiting | State::Blocked);
        if !(1..=cell.repeats).any(|repeat| state(repeat) == State::Stale) {
            return 0;
        }
        let missing = (1..=cell.repeats).filter(|repeat| is_missing(state(*repeat)));
        u32::try_from(missing.count()).unwrap_or(u32::MAX)
    }
}
