//! Did the run do what its job asked for? Every setting that the trainer states, against the job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{SETTINGS, agree};
use crate::{
    parse::Trace,
    plan::{Job, ModelShape},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttestationStatus {
    Attested,
    Contradicted,
    NotStated,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attestation {
    /// `contradicted` if any field is; `attested` if what the throughput rests on is stated and agrees: tokens
    /// of an optimiser step, and devices; else `not_stated`.
    pub status: AttestationStatus,
    pub fields: Vec<FieldAttestation>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldAttestation {
    /// A setting by the job's name; `steps_run` (last step of the log), `tokens_per_step` (as printed) and
    /// `batch_product` (micro-batch × data-parallel × accumulation, all as stated, against the stated batch) besides.
    pub field: String,
    pub declared: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<Value>,
    pub status: AttestationStatus,
}

impl Attestation {
    pub fn contradicted(&self) -> impl Iterator<Item = &FieldAttestation> {
        self.fields.iter().filter(|f| f.status == AttestationStatus::Contradicted)
    }
    fn is_attested(&self, field: &str) -> bool {
        self.fields.iter().any(|f| f.field == field && f.status == AttestationStatus::Attested)
    }
    /// Are the tokens of an optimiser step the trainer's own statement?
    #[must_use]
    pub fn attests_tokens(&self) -> bool {
        (self.is_attested("global_batch_size") && self.is_attested("seq_length")) || self.is_attested("tokens_per_step")
    }
}

/// `complete`: the run claims to have reached its end, so all its steps must be there.
#[must_use]
pub fn attest(trace: &Trace, job: &Job, complete: bool) -> Attestation {
    let stated = &trace.effective.0;
    let mut fields: Vec<FieldAttestation> = SETTINGS
        .iter()
        .filter_map(|setting| Some(field(setting.name, (setting.declared)(job)?, setting.effective(stated))))
        .collect();
    if let Some(declared) = super::count_parameters(&job.model) {
        let padding = padding_parameters(trace, &job.model);
        fields.push(field("num_parameters", (declared + padding).into(), trace.num_parameters.map(Value::from)));
    }
    if complete && job.train_iters > 0 {
        let last = trace.steps.last().map_or(0, |s| s.step);
        fields.push(field("steps_run", job.train_iters.into(), Some(last.into())));
    }
    if let Some(tokens) = job.data.global_batch_size.checked_mul(job.data.seq_length).filter(|t| *t > 0) {
        let mut printed = trace.steps.iter().filter_map(|s| s.tokens);
        let first = printed.next();
        // One step that differs is enough to contradict.
        let shown = std::iter::once(first).flatten().chain(printed).find(|t| *t != tokens).or(first);
        fields.push(field("tokens_per_step", tokens.into(), shown.map(Value::from)));
    }
    let stated_count = |name| SETTINGS.iter().find(|s| s.name == name)?.effective(stated)?.as_u64();
    if let (Some(batch), Some(micro), Some(ranks), Some(accumulation)) = (
        stated_count("global_batch_size"),
        stated_count("micro_batch_size"),
        stated_count("data_parallel_size"),
        stated_count("gradient_accumulation_steps"),
    ) {
        let product = micro.saturating_mul(ranks).saturating_mul(accumulation);
        fields.push(field("batch_product", batch.into(), Some(product.into())));
    }
    let mut attestation = Attestation { status: AttestationStatus::NotStated, fields };
    if attestation.contradicted().next().is_some() {
        attestation.status = AttestationStatus::Contradicted;
    } else if attestation.attests_tokens() && attestation.is_attested("num_gpus") {
        attestation.status = AttestationStatus::Attested;
    }
    attestation
}

fn field(name: &str, declared: Value, effective: Option<Value>) -> FieldAttestation {
    let status = match &effective {
        None => AttestationStatus::NotStated,
        Some(effective) if agree(&declared, effective) => AttestationStatus::Attested,
        Some(_) => AttestationStatus::Contradicted,
    };
    FieldAttestation { field: name.to_owned(), declared, effective, status }
}

/// Parameters that a trainer has more because it pads the vocabulary, and says so.
fn padding_parameters(trace: &Trace, model: &ModelShape) -> u64 {
    let padded = trace.effective.0.get("padded_vocab_size").and_then(Value::as_u64);
    let rows = padded.and_then(|p| p.checked_sub(model.vocab_size)).filter(|rows| *rows < 1 << 20).unwrap_or(0);
    rows * model.hidden_size * if model.tie_embeddings { 1 } else { 2 }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        parse::{Effective, Step},
        plan::shape::tests::shape,
        plan::{DataJob, OptimizerJob},
    };

    pub fn job() -> Job {
        Job {
            model: shape("llama", [2, 64, 128, 4, 2, 16, 256], true),
            data: DataJob {
                micro_batch_size: 2,
                global_batch_size: 8,
                gradient_accumulation_steps: 4,
                seq_length: 128,
            },
            train_iters: 3,
            optimizer: OptimizerJob {
                r#type: "adamw".into(),
                learning_rate: 3e-4,
                state_precision: "fp32".into(),
                ..OptimizerJob::default()
            },
            precision: "bf16".into(),
            seed: 1234,
            ..Job::default()
        }
    }

    pub fn trace(effective: Value, tokens: Option<u64>) -> Trace {
        let step = |step| Step { step, tokens, step_time_seconds: Some(0.5), loss: Some(5.0), ..Step::default() };
        Trace {
            format: "tprimat".into(),
            steps: (1..=3).map(step).collect(),
            effective: Effective(serde_json::from_value(effective).unwrap()),
            finished: true,
            ..Trace::default()
        }
    }

    fn contradicted(attestation: &Attestation) -> Vec<&str> {
        attestation.contradicted().map(|f| f.field.as_str()).collect()
    }

    #[test]
    fn a_run_that_states_what_was_asked_is_attested() {
        let stated = json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1, "precision": "bfloat16",
            "learning_rate": f64::from(3e-4f32), "micro_batch_size": 2, "gradient_accumulation_steps": 4, "data_parallel_size": 1});
        let attestation = attest(&trace(stated, Some(1024)), &job(), true);
        assert_eq!((attestation.status, contradicted(&attestation)), (AttestationStatus::Attested, vec![]));
        let seed = attestation.fields.iter().find(|f| f.field == "seed").unwrap();
        assert_eq!((seed.status, &seed.effective), (AttestationStatus::NotStated, &None));
    }

    #[test]
    fn the_file_said_2048_and_the_run_used_8192() {
        let stated = json!({"global_batch_size": 8, "seq_length": 512, "learning_rate": 1e-5});
        let attestation = attest(&trace(stated, Some(8 * 512)), &job(), true);
        assert_eq!(attestation.status, AttestationStatus::Contradicted);
        assert_eq!(contradicted(&attestation), ["seq_length", "learning_rate", "tokens_per_step"]);
    }

    #[test]
    fn silence_is_not_agreement() {
        assert_eq!(attest(&trace(json!({}), None), &job(), true).status, AttestationStatus::NotStated);
        let no_devices = json!({"global_batch_size": 8, "seq_length": 128});
        assert_eq!(attest(&trace(no_devices, None), &job(), true).status, AttestationStatus::NotStated);
        let printed = attest(&trace(json!({"num_gpus": 1}), Some(1024)), &job(), true);
        assert_eq!(printed.status, AttestationStatus::Attested);
    }

    #[test]
    fn missing_steps_parameters_and_batch_arithmetic_are_contradictions() {
        let mut short = trace(
            json!({"global_batch_size": 8, "micro_batch_size": 2, "data_parallel_size": 2,
            "gradient_accumulation_steps": 4}),
            None,
        );
        short.steps.pop();
        short.num_parameters = Some(7);
        assert_eq!(
            contradicted(&attest(&short, &job(), true)),
            ["data_parallel_size", "num_parameters", "steps_run", "batch_product"]
        );
        assert!(!contradicted(&attest(&short, &job(), false)).contains(&"steps_run"), "a failed run may be short");
    }

    #[test]
    fn a_padded_vocabulary_explains_its_parameters() {
        let count = crate::analyze::count_parameters(&job().model).unwrap();
        let mut padded = trace(json!({"padded_vocab_size": 320}), None);
        padded.num_parameters = Some(count + 64 * 64);
        assert_eq!(contradicted(&attest(&padded, &job(), true)), Vec::<&str>::new());
    }
}
