//! The cells of a comparison: from the states of their tasks to what compare reads of them.

use rayon::prelude::*;

use super::stored::read;
use crate::{
    cache::Cache,
    digest::Digest,
    error::Result,
    figures::{self, CellEnvironment, CellInput, CellState, Comparison, Standing, Summary},
    graph::{ComparedCell, Engine, FiguresFrom, Statuses},
    import::{self, Claims, OnDamage},
    matrix::{Cell, CellId, PerCell},
    plan::{CompareConfig, Plan, Prepared},
};

/// A cell as compare needs it, before its summary is read.
pub struct CellSeed {
    pub(in crate::execute) input: CellInput,
    pub(in crate::execute) summary: Option<Digest>,
    /// What is claimed of the imports that stand in for a measurement.
    pub(in crate::execute) imported: Option<Box<Claims>>,
}

impl CellSeed {
    /// A cell of imports only; no matrix needs to have it.
    #[must_use]
    pub fn imported(plan: &Plan, cell: &str) -> Self {
        let state = CellState::Missing {
            reason: "nothing was imported".to_owned(),
        };
        Self {
            input: named(cell.to_owned(), &Cell::of_id(cell), state),
            summary: None,
            imported: Some(Box::new(import::claim_for(plan, cell))),
        }
    }

    /// The cell's name.
    #[must_use]
    pub fn cell(&self) -> &str {
        &self.input.cell
    }

    /// Is there anything to show of its own runs, a figure or a failure?
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.summary.is_some() || matches!(self.input.state, CellState::Failed { .. })
    }
}

/// A cell's names, as the later stages show them.
fn input(plan: &Plan, cell: CellId, state: CellState, same_launch_as: Option<String>) -> CellInput {
    let prepared = plan.prepared(cell);
    CellInput {
        repeats_wanted: plan.cells[cell].repeats,
        same_launch_as,
        environment: prepared.map(Prepared::environment).unwrap_or_default(),
        ..named(plan.cells[cell].id.clone(), &plan.matrix.cells[cell], state)
    }
}

fn named(cell: String, of: &Cell, state: CellState) -> CellInput {
    CellInput {
        cell,
        platform: of.platform.to_string(),
        framework: of.framework.to_string(),
        model: of.model.to_string(),
        parallelism: of.parallelism.to_string(),
        axes: of
            .axes
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        repeats_wanted: 0,
        state,
        same_launch_as: None,
        imported: Vec::new(),
        environment: CellEnvironment::default(),
        standing: Standing::default(),
    }
}

/// A cell of the plan, of which nothing is known yet.
pub(in crate::execute) fn own_input(engine: &Engine, cell: CellId) -> CellInput {
    input(
        engine.plan,
        cell,
        CellState::Missing {
            reason: String::new(),
        },
        None,
    )
}

#[must_use]
pub fn cell_seeds(engine: &Engine, statuses: &Statuses) -> PerCell<CellSeed> {
    let plan = engine.plan;
    let seed = |(cell, compared): (CellId, ComparedCell)| {
        let mut own_summary = None;
        let mut standing = Standing::default();
        let state = match compared.from {
            FiguresFrom::Imports { .. } => {
                return CellSeed::imported(plan, &plan.cells[cell].id);
            }
            FiguresFrom::Summary {
                summary, to_come, ..
            } => {
                own_summary = Some(summary);
                standing.to_come = to_come;
                CellState::Missing {
                    reason: "its summary is gone from the cache".into(),
                }
            }
            FiguresFrom::Failure {
                failure,
                failed_repeats,
            } => CellState::Failed {
                class: failure.class,
                evidence: failure.evidence,
                repeats: failed_repeats,
            },
            FiguresFrom::Failed { failed: reason } | FiguresFrom::Missing { missing: reason } => {
                CellState::Missing { reason }
            }
            FiguresFrom::Unsupported {
                unsupported: reason,
            } => CellState::Unsupported { reason },
        };
        CellSeed {
            input: CellInput {
                standing,
                ..input(plan, cell, state, compared.same_launch_as)
            },
            summary: own_summary,
            imported: None,
        }
    };
    let compared = engine.compared_cells(statuses).into_with_ids();
    compared.map(seed).collect()
}

/// Compares cells whose summaries are in the cache.
pub fn compare_cells(
    cells: impl IntoIterator<Item = CellSeed>,
    settings: &CompareConfig,
    cache: &Cache,
    on_damage: OnDamage,
) -> Result<Comparison> {
    Ok(figures::compare(
        &cell_inputs(cells, cache, on_damage)?,
        &settings.settings,
        &settings.catalogue,
    ))
}

/// Reads the cells' summaries. An import with a damaged file is left to `on_damage`.
pub fn cell_inputs(
    cells: impl IntoIterator<Item = CellSeed>,
    cache: &Cache,
    on_damage: OnDamage,
) -> Result<Vec<CellInput>> {
    let cells: Vec<CellSeed> = cells.into_iter().collect();
    let summary = |cell: &CellSeed| {
        let digest = cell.summary.filter(|_| cell.imported.is_none());
        digest.map(|digest| read(cache, &digest, "summary.json"))
    };
    // Of thousands of cells this is most of a comparison's time.
    let summaries: Vec<Option<Result<Summary>>> = cells.par_iter().map(summary).collect();
    let mut inputs = Vec::new();
    let imports = import::Imports::of(cache);
    for (cell, summary) in cells.into_iter().zip(summaries) {
        let CellSeed {
            mut input,
            imported,
            ..
        } = cell;
        if let Some(claims) = imported.as_deref() {
            let runs = import::runs(cache, &imports, &input.cell, claims, on_damage)?;
            if !runs.is_empty() {
                let dropped = import::set_aside(&imports, &input.cell);
                let summary = import::summary(&runs, &claims.statistics).disclosing(dropped);
                input.imported = runs.iter().map(|run| run.recorded.told()).collect();
                input.repeats_wanted = u32::try_from(runs.len()).unwrap_or(u32::MAX);
                input.state = CellState::Ok {
                    summary: Box::new(summary),
                };
            } else if let Some(reason) = import::told_set_aside(&imports, &input.cell) {
                input.state = CellState::Missing { reason };
            } else if imports.has(&input.cell) {
                let reason = "its imports are gone from the cache or damaged".to_owned();
                input.state = CellState::Missing { reason };
            }
        } else if let Some(summary) = summary {
            input.state = CellState::Ok {
                summary: Box::new(summary?),
            };
        }
        inputs.push(input);
    }
    Ok(inputs)
}
