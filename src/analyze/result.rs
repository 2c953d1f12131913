//! One repeat's result: what the parse task leaves.
//!
//! Holds no name of a cell, a platform or a strategy, and nothing made from prices or peaks: its key covers none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Attestation, AttestationStatus, Contract, FlopsPerToken, Source, attest, flops_per_token};
use crate::{
    cache::AttemptOutcome,
    parse::{FailureClass, Trace},
    plan::Job,
};

pub const RESULT_SCHEMA: &str = "tprimat.result/1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    pub schema_version: String,
    pub outcome: RunOutcome,
    pub attempt: String,
    pub host: String,
    /// Seconds since 1970.
    pub started_at: f64,
    /// Seconds since 1970.
    pub ended_at: f64,
    pub attestation: Attestation,
    pub contract: Contract,
    pub workload: Workload,
    pub trace: Trace,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum RunOutcome {
    Ok,
    Failed {
        class: FailureClass,
        evidence: Vec<String>,
        /// Exit status in words.
        status: String,
    },
}

impl From<&AttemptOutcome> for RunOutcome {
    fn from(outcome: &AttemptOutcome) -> Self {
        match outcome {
            AttemptOutcome::Ok => Self::Ok,
            AttemptOutcome::Failed { class, evidence, status } => {
                Self::Failed { class: *class, evidence: evidence.clone(), status: status.clone() }
            }
        }
    }
}

/// What rates are made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// Tokens of one optimiser step over all devices: global_batch_size × seq_length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_step: Option<u64>,
    /// `effective` where the trainer itself attests these tokens.
    pub tokens_source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_gpus: Option<u64>,
    pub precision: String,
    /// Counted from the shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_parameters: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_per_token: Option<FlopsPerToken>,
}

/// What is known of a run besides its log.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFacts {
    /// Id of the attempt.
    pub attempt: String,
    pub host: String,
    pub started_at: f64,
    pub ended_at: f64,
    pub outcome: RunOutcome,
}

impl RunResult {
    #[must_use]
    pub fn from(trace: Trace, job: &Job, facts: RunFacts) -> Self {
        // A trainer that says it failed has failed, whatever its exit code.
        let outcome = match (&facts.outcome, &trace.failure) {
            (RunOutcome::Ok, Some(failure)) => RunOutcome::Failed {
                class: failure.class,
                evidence: failure.evidence.clone(),
                status: "exit 0, but the trainer reports an error".to_owned(),
            },
            // Its speed is not that of a training: what follows a NaN is no longer the work that was asked for.
            (RunOutcome::Ok, None) if !nan_losses(&trace).is_empty() => RunOutcome::Failed {
                class: FailureClass::Nan,
                evidence: nan_losses(&trace),
                status: "exit 0, but the log has NaN losses".to_owned(),
            },
            _ => facts.outcome,
        };
        let attestation = attest(&trace, job, outcome == RunOutcome::Ok);
        let contract = Contract::of(&trace, job);
        let seq_length = contract.count("seq_length");
        let workload = Workload {
            tokens_per_step: contract.count("global_batch_size").zip(seq_length).and_then(|(b, s)| b.checked_mul(s)),
            tokens_source: if attestation.attests_tokens() { Source::Effective } else { Source::Declared },
            num_gpus: contract.count("num_gpus"),
            precision: super::settings::show(contract.get("precision")),
            num_parameters: super::count_parameters(&job.model),
            flops_per_token: seq_length.and_then(|s| flops_per_token(&job.model, s)),
        };
        Self {
            schema_version: RESULT_SCHEMA.to_owned(),
            outcome,
            attempt: facts.attempt,
            host: facts.host,
            started_at: facts.started_at,
            ended_at: facts.ended_at,
            attestation,
            contract,
            workload,
            trace,
        }
    }

    #[must_use]
    pub fn is_contradicted(&self) -> bool {
        self.outcome == RunOutcome::Ok && self.attestation.status == AttestationStatus::Contradicted
    }
}

/// What the log says of NaN losses, as far as it is worth quoting.
fn nan_losses(trace: &Trace) -> Vec<String> {
    trace.anomalies.iter().filter(|a| a.kind == "nan_loss").map(|a| a.detail.clone()).take(3).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        analyze::attest::tests::{job, trace},
        parse::{Anomaly, Failure},
    };

    pub fn facts(outcome: RunOutcome) -> RunFacts {
        RunFacts {
            attempt: "20260101T000000.000000Z-00".into(),
            host: "node1".into(),
            started_at: 1.0,
            ended_at: 9.0,
            outcome,
        }
    }

    #[test]
    fn survives_json_bit_for_bit() {
        let mut trace = trace(json!({"num_gpus": 1}), Some(1024));
        trace.steps[0].loss = Some(-908.494_377_018_108_1);
        let result = RunResult::from(trace, &job(), facts(RunOutcome::Ok));
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&text).unwrap(), result);
        assert_eq!((result.workload.tokens_per_step, result.workload.tokens_source), (Some(1024), Source::Effective));
        assert!(!result.is_contradicted());
    }

    #[test]
    fn a_trainer_that_reports_an_error_did_not_succeed() {
        let mut trace = trace(json!({}), None);
        trace.failure = Some(Failure { class: FailureClass::Nan, evidence: vec!["loss is nan".into()] });
        let result = RunResult::from(trace, &job(), facts(RunOutcome::Ok));
        assert!(matches!(result.outcome, RunOutcome::Failed { class: FailureClass::Nan, .. }));
    }

    #[test]
    fn a_run_that_exits_well_with_nan_losses_did_not_succeed() {
        let mut trace = trace(json!({}), None);
        trace.anomalies.push(Anomaly { kind: "missing_steps".into(), detail: "steps 3 to 4".into() });
        assert_eq!(RunResult::from(trace.clone(), &job(), facts(RunOutcome::Ok)).outcome, RunOutcome::Ok);
        trace.anomalies.push(Anomaly { kind: "nan_loss".into(), detail: "at step 2".into() });
        let result = RunResult::from(trace.clone(), &job(), facts(RunOutcome::Ok));
        let RunOutcome::Failed { class, evidence, .. } = result.outcome else { panic!("{:?}", result.outcome) };
        assert_eq!((class, evidence), (FailureClass::Nan, vec!["at step 2".to_owned()]));
        // A run that already failed keeps its own class.
        let oom = RunOutcome::Failed { class: FailureClass::Oom, evidence: vec![], status: "exit 1".into() };
        assert_eq!(RunResult::from(trace, &job(), facts(oom.clone())).outcome, oom);
    }
}
