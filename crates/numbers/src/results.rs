//! What one log says, held against its job: trace × claim → [`RunResult`]. Pure: no file, no clock,
//! no environment.
//!
//! The parse task calls this and what it is built on, and nothing else.
//!
//! | file | from | to |
//! |---|---|---|
//! | `settings` | – | the one table of settings that are attested and contracted |
//! | `unlisted` | – | what settings that are not in that table mean |
//! | `claim` | – | what a run is said to be: a whole job, or the labels of an import |
//! | `attest` | trace × claim | did the run do what it was asked to? |
//! | `cross` | trace × claim | what the trainer's figures say of settings that it does not state |
//! | `anomalies` | trace | what a reader must know of the steps |
//! | `planned` | – | how many runs of a cell were to be made |
//! | `reason` | – | [`Reason`]: why something is as it is |
//! | `words` | – | what sentences are made of |
//! | `work` | trace | what the lines state of the work of each step |
//! | `contract` | trace × claim | the workload, as far as comparisons depend on it |
//! | `result` | trace × claim × how the run ended | [`RunResult`], one repeat |
//! | `flops`, `conventions` | a model's shape | its parameters, and FLOPs per token as trainers count them |
//! | `parameters` | trace, a model's shape | how many parameters a model has |
//! | `learning_rate` | a log's learning rates | do they follow the schedule that was asked for? |
//! | `stats` | positive rates | intervals and tests |
//! | `moderated` | spreads of several cells | what they say of the spread of each |
//! | `sequential` | ratios of paired runs | a test that may be looked at after every pair |
//! | `parse_task` | what an attempt left | [`RunResult`]: the parse task |
//! | `changes` | a series of step times | where its level changes |
//! | `telemetry_samples` | `telemetry.jsonl` | what a result keeps of the samples beside its run |

pub mod anomalies;
pub mod attest;
pub mod changes;
mod claim;
pub mod contract;
mod conventions;
pub mod cross;
pub mod flops;
mod learning_rate;
mod moderated;
pub(crate) mod parameters;
mod parse_task;
mod planned;
mod reason;
mod result;
mod sequential;
pub mod settings;
pub mod stats;
pub mod telemetry_samples;
pub mod unlisted;
pub mod words;
pub(crate) mod work;

pub use anomalies::{
    ENDS_EARLY, RATE_DISAGREES, SLOW_FIRST_STEPS, anomaly, level_shift, of_losses, slow_first_steps,
};
pub use attest::{
    Attestation, AttestationStatus, FieldAttestation, attest, ends_early, labels_against,
};
pub use changes::{CUSUM, Changes, changes};
pub use claim::{Claim, is_of_model};
pub use contract::{Contract, ContractField, FieldDifference, Source, differences, has_difference};
pub use conventions::fitting_convention;
pub use cross::{PUBLISHED_RATE, PUBLISHED_STEP_TIME};
pub use flops::{FlopsPerToken, flops_per_token};
pub use moderated::moderated;
pub use parse_task::AttemptOutputs;
pub use planned::RepeatsPlanned;
pub use reason::{Reason, Severity};
pub(crate) use result::sample_rate;
pub use result::{IMPORT, NOT_HANDED_OVER, RunFacts, RunResult, TWO_RUNS, Workload, devices};
pub use sequential::{Decision, Sequential};
pub use settings::{DATASET_DIGEST, TOKENIZER_DIGEST, Tier, fields, known_field};
pub use stats::{
    CONFIDENCE, CorrectedTest, MIN_REPEATS, MOST_REPEATS, NO_VARIANCE, OUTLIER_DEVIATIONS,
    OUTLIER_LEAST, RatioTest, Welch, decimals_beside, deviation, geometric_mean, holm, is_positive,
    logs, mean, outlier_limit, quantile, repeats_to_tell, sd, t_interval, variance_of_mean,
    verdicts, welch, welch_of_spread,
};
pub use telemetry_samples::{
    OtherProcess, Point, Reading, Samples, TELEMETRY_SCHEMA, TelemetryHeader, TelemetryLine,
    is_none, read_lines,
};
pub use tprimat_job::count_parameters;
pub use tprimat_logs::GIB;

#[cfg(test)]
use crate::run_stand_ins as stand_ins;
