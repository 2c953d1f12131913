//! Did the run do what its job asked for? Every setting that the trainer states, against the job.

mod itself;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use tprimat_base::words::plain::counted;
use tprimat_job::ModelShape;
use tprimat_logs::{Anomaly, Trace};

use super::{
    Claim,
    anomalies::anomaly,
    cross::interval,
    parameters::rounds_to,
    settings::{NUM_PARAMETERS, SETTINGS, TOKENS_PER_STEP, agree, setting, show},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttestationStatus {
    Attested,
    Contradicted,
    NotStated,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attestation {
    /// `contradicted` if any field is; `attested` if what the throughput rests on is stated by the
    /// trainer and agrees, or is shown by its own figures: tokens of an optimiser step, and
    /// devices; else `not_stated`.
    pub status: AttestationStatus,
    pub fields: Vec<FieldAttestation>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct FieldAttestation {
    /// A setting by the job's name; `steps_run` (steps up to the log's last line),
    /// `tokens_per_step` (as printed) and `batch_product` (micro-batch × data-parallel ×
    /// accumulation against the batch), `degree_product` (degrees of parallelism against the
    /// devices) and `num_experts` besides; and cross-checks of the trainer's own figures:
    /// `tokens_per_step_from_rate`, `flops_per_token_from_rate`, `global_batch_size_from_samples`,
    /// `global_batch_size_from_summary`, `first_loss`, `learning_rate_schedule`, and of a published file
    /// `tokens_per_step_from_published` and `avg_step_time_from_steps`.
    pub field: String,
    /// Absent if nobody claims anything.
    pub declared: Option<Value>,
    pub effective: Option<Value>,
    pub status: AttestationStatus,
    /// How `effective` follows from what the log says, where it is computed.
    pub arithmetic: Option<String>,
}

impl Attestation {
    pub fn contradicted(&self) -> impl Iterator<Item = &FieldAttestation> {
        self.fields
            .iter()
            .filter(|f| f.status == AttestationStatus::Contradicted)
    }
    pub(crate) fn is_attested(&self, field: &str) -> bool {
        self.fields
            .iter()
            .any(|f| f.field == field && f.status == AttestationStatus::Attested)
    }
    /// Are the tokens of an optimiser step the trainer's own statement?
    #[must_use]
    pub fn attests_tokens(&self) -> bool {
        let batch = [
            "global_batch_size",
            "global_batch_size_from_samples",
            "global_batch_size_from_summary",
        ];
        let batch = batch.iter().any(|field| self.is_attested(field));
        (batch && self.is_attested("seq_length"))
            || self.is_attested("tokens_per_step")
            || self.is_attested("tokens_per_step_from_rate")
    }
    /// Are devices and tokens of a step both the trainer's own statement, or shown by its own
    /// figures?
    fn attests_throughput(&self) -> bool {
        self.attests_tokens()
            && (self.is_attested("num_gpus") || self.is_attested("tokens_per_step_from_rate"))
    }
    /// Puts contradictions in the place of what was found of the same settings.
    pub fn contradict(&mut self, fields: Vec<FieldAttestation>) {
        self.fields
            .retain(|known| fields.iter().all(|field| field.field != known.field));
        self.extend(fields);
    }
    /// Takes out what the trainer has otherwise than a default that nobody wrote; returns what is to be told.
    pub(crate) fn without_defaults(&mut self, claim: &Claim) -> Option<Anomaly> {
        let is_default = |field: &FieldAttestation| {
            field.status == AttestationStatus::Contradicted
                && claim.unwritten.contains(&field.field)
        };
        let words = |field: &FieldAttestation| {
            let [own, default] = [&field.effective, &field.declared].map(|v| show(v.as_ref()));
            format!("{} {own} (by default {default})", field.field)
        };
        let told: Vec<String> = self
            .fields
            .iter()
            .filter(|f| is_default(f))
            .map(words)
            .collect();
        self.fields.retain(|field| !is_default(field));
        self.extend(Vec::new());
        let detail = || {
            format!(
                "the trainer says {}; neither the configuration nor the command says otherwise",
                told.join(", ")
            )
        };
        (!told.is_empty()).then(|| anomaly("other_than_default", detail()))
    }
    /// Adds what was found later, and judges again.
    pub fn extend(&mut self, fields: Vec<FieldAttestation>) {
        self.fields.extend(fields);
        self.status = if self.contradicted().next().is_some() {
            AttestationStatus::Contradicted
        } else if self.attests_throughput() {
            AttestationStatus::Attested
        } else {
            AttestationStatus::NotStated
        };
    }
}

/// `complete`: the run claims to have reached its end, so all its steps must be there.
#[must_use]
pub fn attest(trace: &Trace, claim: &Claim, complete: bool) -> Attestation {
    let job = &claim.job;
    let stated = &trace.effective.0;
    let mut declared = claim.declared();
    let mut fields: Vec<FieldAttestation> = SETTINGS
        .iter()
        .filter_map(|setting| {
            let name = setting.name.as_str();
            let effective = setting.effective(stated);
            let declared = declared.remove(name);
            if effective.is_none() && claim.unwritten.contains(name) {
                return None;
            }
            if let Some(declared) = declared {
                return Some(field(name, declared, effective));
            }
            // Nobody claims it, but the throughput rests on it and the trainer states it.
            let value = effective.filter(|_| RATE.contains(&name))?;
            Some(FieldAttestation {
                declared: None,
                ..field(name, value.clone(), Some(value))
            })
        })
        .collect();
    if let Some(declared) = super::count_parameters(&job.model) {
        let exact = declared + padding_parameters(trace, &job.model);
        let stated = trace.num_parameters;
        let stated = stated.map(|n| if rounds_to(exact, n) { exact } else { n });
        fields.push(field(NUM_PARAMETERS, exact.into(), stated.map(Value::from)));
    }
    if complete && job.train_iters > 0 && claim.covers("train_iters") {
        fields.push(steps_run(trace, job.train_iters));
    }
    let stated_count = |name| stated_count(trace, claim, name);
    let batch_is_claimed = claim.covers("global_batch_size") && claim.covers("seq_length");
    let of_job = (job.data.global_batch_size, job.data.seq_length);
    if batch_is_claimed {
        fields.extend(tokens_per_step(trace, of_job, true));
    } else if let Some(said) = stated_count("global_batch_size").zip(stated_count("seq_length")) {
        fields.extend(tokens_per_step(trace, said, false));
    }
    if let (Some(batch), Some(micro), Some(accumulation)) = (
        stated_count("global_batch_size"),
        stated_count("micro_batch_size"),
        stated_count("gradient_accumulation_steps"),
    ) {
        let of_one = micro.saturating_mul(accumulation);
        let devices = || claim.declares("num_gpus")?.as_u64();
        let devices = stated_count("num_gpus").or_else(devices);
        // A degree of data parallelism that is not stated divides the number of devices.
        let ranks = stated_count("data_parallel_size").or_else(|| {
            let ranks = batch.checked_div(of_one)?;
            // The Trainer's total is that of all devices.
            let is_of_all = trace.format == super::learning_rate::TRAINER && devices? != ranks;
            let is_whole = devices?.is_multiple_of(ranks.max(1)) && ranks * of_one == batch;
            let fits = is_whole && !is_of_all;
            (!fits).then_some(devices?)
        });
        if let Some(ranks) = ranks {
            let product = of_one.saturating_mul(ranks);
            let arithmetic = Some(format!("{micro} × {ranks} × {accumulation} = {product}"));
            fields.push(FieldAttestation {
                arithmetic,
                ..field("batch_product", batch.into(), Some(product.into()))
            });
        }
    }
    fields.extend(other_devices(trace));
    for found in itself::contradictions(trace, claim) {
        match fields.iter_mut().find(|known| known.field == found.field) {
            Some(known) if found.declared.is_none() => {
                (known.status, known.arithmetic) = (found.status, found.arithmetic);
            }
            Some(known) => *known = found,
            None => fields.push(found),
        }
    }
    let mut attestation = Attestation {
        status: AttestationStatus::NotStated,
        fields: Vec::new(),
    };
    attestation.extend(fields);
    attestation
}

/// A count that the log states, or, since these must agree with each other too, the labels of an
/// imported file.
fn stated_count(trace: &Trace, claim: &Claim, name: &str) -> Option<u64> {
    let label = || claim.declares(name).filter(|_| claim.fields.is_some());
    let stated = setting(name)?.effective(&trace.effective.0);
    stated.or_else(label)?.as_u64()
}

/// The tokens that steps print, against batch × length: what is claimed, or what the log itself
/// states of both.
fn tokens_per_step(
    trace: &Trace,
    (batch, length): (u64, u64),
    is_claimed: bool,
) -> Option<FieldAttestation> {
    let tokens = batch.checked_mul(length).filter(|t| *t > 0)?;
    if super::work::vary(trace) {
        // Fewer are a smaller last batch, or sequences that are not filled.
        let more = trace.steps.iter().find(|s| s.tokens > Some(tokens))?;
        let (step, printed) = (more.step, more.tokens?);
        let found = field("tokens_per_step", tokens.into(), Some(printed.into()));
        return Some(FieldAttestation {
            arithmetic: Some(format!(
                "{batch} × {length} = {tokens}, and step {step} has {printed} tokens"
            )),
            ..found
        });
    }
    let mut printed = trace.steps.iter().filter_map(|s| Some((s.step, s.tokens?)));
    let first = printed.next();
    // One step that differs is enough to contradict.
    let shown = std::iter::once(first)
        .flatten()
        .chain(printed)
        .find(|(_, t)| *t != tokens)
        .or(first);
    let found = field(
        "tokens_per_step",
        tokens.into(),
        shown.map(|(_, t)| t.into()),
    );
    let other = shown.filter(|_| found.status == AttestationStatus::Contradicted);
    let arithmetic = other.map(|(step, printed)| {
        format!("{batch} × {length} = {tokens}, and step {step} has {printed} tokens")
    });
    if is_claimed {
        return Some(FieldAttestation {
            arithmetic,
            ..found
        });
    }
    shown.map(|_| FieldAttestation {
        declared: None,
        arithmetic,
        ..found
    })
}

/// A start event has the devices of the whole run in two places: `num_gpus`, and `count` of
/// `device`.
fn other_devices(trace: &Trace) -> Option<FieldAttestation> {
    let count = super::result::devices(trace)?;
    let stated = |name| setting(name)?.effective(&trace.effective.0)?.as_u64();
    let nodes = stated("num_nodes");
    // PyTorch counts the devices of one node.
    let is_all = |stated: u64| {
        stated == count || nodes.is_some_and(|n| n.checked_mul(count) == Some(stated))
    };
    let stated = stated("num_gpus").filter(|stated| !is_all(*stated))?;
    let arithmetic = Some(format!(
        "num_gpus is {stated}, but the log lists the device {count} times"
    ));
    let found = field("num_gpus_of_device", stated.into(), Some(count.into()));
    Some(FieldAttestation {
        declared: None,
        arithmetic,
        ..found
    })
}

/// What a rate is made of.
const RATE: [&str; 4] = [
    "global_batch_size",
    "seq_length",
    "num_gpus",
    TOKENS_PER_STEP,
];

/// The steps up to the log's last line; of a log with a line every k steps, up to k − 1 more were
/// run.
fn steps_run(trace: &Trace, declared: u64) -> FieldAttestation {
    let batch = trace
        .effective
        .0
        .get("global_batch_size")
        .and_then(Value::as_u64);
    let from = super::cross::counts_from(&trace.steps, batch);
    // A line of step 0 before steps 1 to N is of the state before the first step, or the trainer counts from 0 and
    // makes one step more than it was asked for, as nanoGPT does.
    let is_of_start = trace.steps.first().is_some_and(|s| s.step == 0)
        && trace.steps.last().is_some_and(|s| s.step == declared);
    let last = match trace.steps.last() {
        Some(last) if is_of_start => last.step,
        Some(last) => last.step.saturating_add(1 - from.min(1)),
        None => 0,
    };
    let every = interval(&trace.steps);
    if trace.steps_assumed {
        return field("steps_run", declared.into(), None);
    }
    let found = field("steps_run", declared.into(), Some(last.into()));
    if last < declared && declared - last < every {
        let arithmetic = Some(format!(
            "the last line is of step {last}, and there is one every {every} steps"
        ));
        return FieldAttestation {
            status: AttestationStatus::Attested,
            arithmetic,
            ..found
        };
    }
    let lost = trace.unreadable.filter(|_| last < declared);
    let arithmetic = lost.map(|lost| {
        let others = match last {
            0 => "no training step was found in the others".to_owned(),
            read => format!("the others have {}", counted(read as usize, "step")),
        };
        let lines = counted(lost.count as usize, "line");
        let first = lost.first;
        format!(
            "{lines} of the log cannot be read (the first is line {first}), and {others}; {declared} were asked for"
        )
    });
    FieldAttestation {
        arithmetic,
        ..found
    }
}

/// Settings that a file's labels have otherwise than the job of the cell that it is imported into.
#[must_use]
pub fn labels_against(job: &Claim, labels: &Claim) -> Vec<FieldAttestation> {
    let (mut asked, mut labelled) = (job.declared(), labels.declared());
    let mut compared = |name| {
        let (asked, labelled) = (asked.remove(name)?, labelled.remove(name)?);
        Some(field(name, asked, Some(labelled)))
    };
    SETTINGS
        .iter()
        .filter_map(|setting| compared(setting.name.as_str()))
        .filter(|field| field.status == AttestationStatus::Contradicted)
        .collect()
}

/// How many steps a log says its run has, and its last one, where it ends before that.
#[must_use]
pub fn ends_early(trace: &Trace) -> Option<(u64, u64)> {
    let asked = setting("train_iters")?
        .effective(&trace.effective.0)?
        .as_u64()?;
    let run = steps_run(trace, asked);
    let last = run.effective.and_then(|last| last.as_u64())?;
    (run.status == AttestationStatus::Contradicted && last < asked).then_some((asked, last))
}

fn field(name: &str, declared: Value, effective: Option<Value>) -> FieldAttestation {
    let status = match &effective {
        None => AttestationStatus::NotStated,
        Some(effective) if agree(&declared, effective) => AttestationStatus::Attested,
        // No dataset was asked for and none was read; that it is other data than random tokens is
        // for the contract.
        Some(effective) if name == "data" && declared == "random" && effective == "mock" => {
            AttestationStatus::Attested
        }
        Some(effective) if is_word_for_adamw(name, &declared, effective) => {
            AttestationStatus::Attested
        }
        Some(_) => AttestationStatus::Contradicted,
    };
    FieldAttestation {
        field: name.to_owned(),
        declared: Some(declared),
        effective,
        status,
        arithmetic: None,
    }
}

/// Megatron and Apex say `adam` and decouple the weight decay, as AdamW does, so `adam` does not
/// contradict `adamw`. The contract keeps the trainer's word.
fn is_word_for_adamw(field: &str, declared: &Value, effective: &Value) -> bool {
    field == "optimizer" && declared == "adamw" && effective == "adam"
}

/// A trainer's word that may mean what the job asked for, and may not.
pub(crate) fn ambiguous_optimizer(attestation: &Attestation) -> Option<Anomaly> {
    let is_it = |f: &&FieldAttestation| {
        f.declared
            .as_ref()
            .zip(f.effective.as_ref())
            .is_some_and(|(d, e)| is_word_for_adamw(&f.field, d, e))
    };
    attestation.fields.iter().find(is_it)?;
    let detail = "the trainer says adam and adamw was asked for: in Megatron and Apex, adam is AdamW; elsewhere the weight \
         decay differs";
    Some(anomaly("optimizer_name", detail.to_owned()))
}

/// Parameters that a trainer has more because it pads the vocabulary, and says so.
fn padding_parameters(trace: &Trace, model: &ModelShape) -> u64 {
    let padded = trace
        .effective
        .0
        .get("padded_vocab_size")
        .and_then(Value::as_u64);
    let rows = padded
        .and_then(|p| p.checked_sub(model.vocab_size))
        .filter(|rows| *rows < 1 << 20)
        .unwrap_or(0);
    rows * model.hidden_size * if model.tie_embeddings { 1 } else { 2 }
}

#[cfg(test)]
pub(super) mod tests;
