//! What a gate holds cells against: the figures of an earlier time, in a file.

use std::collections::{BTreeMap, BTreeSet};

use crate::results::{Contract, Reason, geometric_mean};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::GateInput;
use crate::figures::{
    AbsentState, CellEnvironment, ComparedEnvironment, Dropped, Estimate, LevelShift, RepeatStatus,
    RepeatSummary,
    codes::{ABSENT, FAILED},
    compare::candidate,
    otherwise::largest_shift,
    summary::attempts,
};

pub const BASELINE_SCHEMA: &str = "tprimat.baseline/1";

/// What cells measured at one time, for gates to come. Holds no price and nothing made of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Baseline {
    pub schema_version: String,
    pub matrix: String,
    /// In matrix order; only cells with figures.
    pub cells: Vec<BaselineCell>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BaselineCell {
    pub cell: String,
    pub platform: String,
    pub framework: String,
    pub parallelism: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<String>,
    /// tokens/s/GPU, one value a repeat that counts.
    pub tokens_per_second_per_gpu: Estimate,
    pub warmup_steps: u64,
    pub steady_state: String,
    pub contract: Contract,
    /// What the trainer states and tprimat does not know the meaning of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unlisted: BTreeMap<String, Value>,
    pub environment: CellEnvironment,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    pub hosts: BTreeSet<String>,
    /// When the first of the repeats began and the last one ended, seconds since 1970.
    pub measured: Option<[f64; 2]>,
    /// The trainer's name for it.
    pub device: Option<String>,
    /// More repeats were made after the results of the first ones were seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeats_added_later: bool,
    /// How many times too high the rate may be, by the clock; absent where the clock has nothing
    /// against it.
    pub timer_factor: Option<f64>,
    /// The largest change of a repeat's step times for good.
    pub level_shift: Option<LevelShift>,
    /// Measurements of the cell that do not count: measured anew, set aside, or disturbed and
    /// replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
    /// Key of the first repeat's training; absent for an import.
    pub key: Option<String>,
    /// Attempts of the repeats that count.
    pub attempts: BTreeSet<String>,
}

impl Baseline {
    /// What the selected cells with figures measured; the others are left out.
    #[must_use]
    pub fn of(matrix: &str, cells: &[GateInput]) -> Self {
        let cells = cells
            .iter()
            .filter(|c| c.selected)
            .filter_map(|c| BaselineCell::of(c).ok())
            .collect();
        Self {
            schema_version: BASELINE_SCHEMA.to_owned(),
            matrix: matrix.to_owned(),
            cells,
        }
    }

    /// The first thing that is wrong with figures that came from a file.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let mut seen = BTreeSet::new();
        self.cells.iter().find_map(|cell| {
            let Estimate { value, values, .. } = &cell.tokens_per_second_per_gpu;
            let all_are_rates = geometric_mean(values).is_some();
            match geometric_mean(&cell.tokens_per_second_per_gpu.units).filter(|_| all_are_rates) {
                _ if !seen.insert(&cell.cell) => Some(format!("`{}` is in it twice", cell.cell)),
                None => Some(format!(
                    "the rates of `{}` are not all positive numbers",
                    cell.cell
                )),
                Some(mean) if (mean / value - 1.0).abs() < 1e-6 => None,
                Some(_) => Some(format!(
                    "the rate of `{}` is not the mean of its {}s",
                    cell.cell,
                    cell.tokens_per_second_per_gpu.unit.name()
                )),
            }
        })
    }
}

impl BaselineCell {
    /// Or why the cell has no figures: its state and the reason.
    pub(super) fn of(cell: &GateInput) -> Result<Self, (AbsentState, Reason)> {
        if let Some(why) = &cell.impossible {
            return Err((AbsentState::Failed, why.clone()));
        }
        let candidate = candidate(&cell.input).map_err(|absent| {
            let code = match absent.reason.is(FAILED) {
                true => FAILED,
                false => ABSENT,
            };
            let why = Reason::excludes(code, absent.told());
            (absent.state, why.with("state", absent.state.name()))
        })?;
        Ok(Self {
            cell: cell.input.cell.clone(),
            platform: cell.input.platform.clone(),
            framework: cell.input.framework.clone(),
            parallelism: cell.input.parallelism.clone(),
            imported: cell.input.imported.clone(),
            tokens_per_second_per_gpu: candidate.estimate.clone(),
            warmup_steps: candidate.summary.warmup_steps,
            steady_state: candidate.summary.steady_state.clone(),
            contract: candidate.contract.clone(),
            unlisted: candidate.summary.unlisted.clone(),
            level_shift: largest_shift(&candidate.summary.repeats).cloned(),
            environment: cell.input.environment.clone().public(),
            versions: candidate.summary.versions.clone(),
            hosts: candidate.summary.hosts.clone(),
            measured: span(&candidate.summary.repeats),
            device: candidate
                .summary
                .device
                .as_ref()
                .and_then(|d| d.name.clone()),
            repeats_added_later: candidate.summary.repeats_added_later(),
            timer_factor: candidate.summary.timer_factor(),
            dropped: candidate.summary.dropped.clone(),
            key: cell.key.clone(),
            attempts: attempts(&candidate.summary.repeats)
                .into_iter()
                .map(str::to_owned)
                .collect(),
        })
    }

    pub(super) fn environment_of(&self) -> ComparedEnvironment<'_> {
        ComparedEnvironment {
            cell: &self.cell,
            platform: &self.platform,
            framework: &self.framework,
            is_earlier: false,
            is_imported: !self.imported.is_empty(),
            environment: &self.environment,
            versions: &self.versions,
        }
    }
}

/// From the begin of the first repeat that counts to the end of the last one.
fn span(repeats: &[RepeatSummary]) -> Option<[f64; 2]> {
    let counted = || repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    let dates =
        |of: fn(&RepeatSummary) -> Option<f64>| counted().map(of).collect::<Option<Vec<f64>>>();
    let (starts, ends) = (dates(|r| r.started_at)?, dates(|r| r.ended_at)?);
    Some([
        starts.into_iter().reduce(f64::min)?,
        ends.into_iter().reduce(f64::max)?,
    ])
}
