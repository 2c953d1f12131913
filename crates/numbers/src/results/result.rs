//! One repeat's result: what the parse task leaves.
//!
//! Holds no name of a cell, a platform or a strategy, and nothing made from prices or peaks: its
//! key covers none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use tprimat_job::{Job, RunOutcome};
use tprimat_logs::{Anomaly, MEAN_BATCH, PARTIAL_BATCHES, Process, SECOND_RUN, Trace, WHOLE_RUN};

use super::{
    Attestation, AttestationStatus, Claim, Contract, FlopsPerToken, Reason, RepeatsPlanned,
    Samples, Source, anomalies, attest,
    cross::{self, CrossChecks},
    flops_per_token,
    settings::{LORA_RANK, SLIDING_WINDOW},
    unlisted::is_usual,
    work,
};

pub const RESULT_SCHEMA: &str = "tprimat.result/1";
/// Settings that the recipe does not hand over and that the log does not state.
pub const NOT_HANDED_OVER: &str = "not_handed_over";
/// The log holds two runs.
pub const TWO_RUNS: &str = "two_runs";

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    pub schema_version: String,
    pub outcome: RunOutcome,
    pub attempt: String,
    pub host: String,
    /// Seconds since 1970; absent where an imported log does not say.
    pub started_at: Option<f64>,
    /// Seconds since 1970.
    pub ended_at: Option<f64>,
    pub attestation: Attestation,
    pub contract: Contract,
    pub workload: Workload,
    /// What a reader must know of the series: `slow_first_steps`, `level_shift`,
    /// `last_step_outlier`, `loss_collapsed`, `first_loss`, `rate_disagrees`, …; the log's own are
    /// in `trace`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anomalies: Vec<Anomaly>,
    /// Last lines of the log of a run that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log_tail: Vec<String>,
    /// How many runs of its cell were to be made when this one was.
    pub repeats_planned: Option<RepeatsPlanned>,
    /// Why the run is kept and not counted: what disturbed it, as judged when it had ended.
    pub suspect: Option<String>,
    /// Why the run has no rate although it was timed: what it was asked for never reached its
    /// trainer.
    pub no_rate: Option<Reason>,
    /// What was sampled beside the run; absent where nothing was to be.
    pub telemetry: Option<Samples>,
    pub trace: Trace,
}

/// What rates are made of.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// Tokens of one optimiser step over all devices: global_batch_size × seq_length.
    pub tokens_per_step: Option<u64>,
    /// They vary: each step has its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tokens_vary: bool,
    /// `effective` where the trainer itself attests these tokens, `derived` where its own figures
    /// show them.
    pub tokens_source: Source,
    /// How step times were made, where they are not the trainer's own.
    pub step_time_source: Option<String>,
    /// The log's number of the first optimiser step, 0 or 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub counts_from: u64,
    pub num_gpus: Option<u64>,
    pub precision: String,
    /// Counted from the shape.
    pub num_parameters: Option<u64>,
    pub flops_per_token: Option<FlopsPerToken>,
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_one(n: &u64) -> bool {
    *n == 1
}

/// What is known of a run besides its log.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFacts {
    /// Id of the attempt.
    pub attempt: String,
    pub host: String,
    pub started_at: Option<f64>,
    pub ended_at: Option<f64>,
    pub outcome: RunOutcome,
}

/// What the ids of imported runs begin with.
pub const IMPORT: &str = "import-";

impl RunResult {
    /// Was it read from somebody's file? Then nobody asked for it here.
    #[must_use]
    pub fn is_imported(&self) -> bool {
        self.attempt.starts_with(IMPORT)
    }

    #[must_use]
    pub fn from(trace: Trace, job: &Job, facts: RunFacts) -> Self {
        Self::of_claim(trace, &Claim::of(job), facts, true)
    }

    /// `complete`: a log that ends well has all its steps; an imported excerpt may not.
    #[must_use]
    pub fn of_claim(mut trace: Trace, claim: &Claim, facts: RunFacts, complete: bool) -> Self {
        let job = &claim.job;
        // A trainer that says it failed has failed, whatever its exit code.
        let outcome = match (&facts.outcome, &trace.failure) {
            (RunOutcome::Ok, Some(failure)) => {
                RunOutcome::contradicted_by_log(failure.class, failure.evidence.clone())
            }
            // Its speed is not that of a training: what follows a NaN is no longer the work that
            // was asked for.
            (RunOutcome::Ok, None) if trace.nan_losses().next().is_some() => {
                let losses = trace.nan_losses().take(3);
                RunOutcome::with_nan_losses(losses.map(|a| a.detail.clone()).collect())
            }
            _ => facts.outcome,
        };
        work::of_a_part(&mut trace, claim);
        let mut found = work::of_steps(&mut trace, claim);
        let mut attestation = attest(&trace, claim, complete && outcome == RunOutcome::Ok);
        found.extend(super::attest::ambiguous_optimizer(&attestation));
        found.extend(attestation.without_defaults(claim));
        let mut contract = Contract::of(&trace, claim);
        share_rate(&mut trace, &contract);
        let counts_from = cross::counts_from(&trace.steps, contract.count("global_batch_size"));
        let CrossChecks {
            fields,
            anomalies,
            derived,
            tokens_per_step,
        } = cross::cross_check(&trace, claim, &contract, counts_from);
        attestation.extend(fields);
        for (field, value) in derived {
            contract.derive(field, value);
        }
        if let Some(count) = devices(&trace).filter(|_| contract.get("num_gpus").is_none()) {
            contract.derive("num_gpus", count.into());
        }
        found.extend(anomalies);
        let of_rate = |a: &&Anomaly| [WHOLE_RUN, PARTIAL_BATCHES].contains(&&*a.kind);
        found.extend(trace.anomalies.iter().filter(of_rate).cloned());
        let step_time_source = time_from_rate(&mut trace, &contract);
        starts_slowly(&mut trace, counts_from);
        // The time of a step that has more tokens than others says nothing by itself.
        if !work::vary(&trace) {
            found.extend(anomalies::of_times(&trace.steps));
        }
        found.extend(anomalies::of_losses(&trace));
        let seq_length = contract.count("seq_length");
        let product = contract
            .count("global_batch_size")
            .zip(seq_length)
            .and_then(|(b, s)| b.checked_mul(s));
        // The FLOPs of a token are not known where the log states experts, windows or adapters that the
        // job does not describe.
        let further = job.model.further().into_iter();
        let is_known = further
            .chain([(LORA_RANK, job.lora_rank)])
            .all(|(field, described)| {
                contract.get(field).is_none_or(|stated| {
                    let reaches = |length| stated.as_u64().is_some_and(|n| n >= length);
                    stated.as_u64() == Some(described)
                        || is_usual(field, stated)
                        || field == SLIDING_WINDOW && seq_length.is_some_and(reaches)
                })
            });
        let varies = work::vary(&trace);
        let each = trace.steps.iter().find_map(|s| s.tokens);
        let stated = attestation.is_attested("tokens_per_step")
            || ["global_batch_size", "seq_length"]
                .iter()
                .all(|f| contract.source(f) == Some(Source::Effective));
        let workload = Workload {
            tokens_per_step: product
                .map(|tokens| in_the_mean(tokens, &contract, &trace))
                .or(tokens_per_step)
                .or(each)
                .filter(|_| !varies),
            tokens_vary: varies,
            tokens_source: match attestation.attests_tokens() {
                true if stated => Source::Effective,
                true => Source::Derived,
                false => Source::Declared,
            },
            step_time_source,
            counts_from,
            num_gpus: contract.count("num_gpus"),
            precision: super::settings::show(contract.get("precision")),
            num_parameters: super::count_parameters(&job.model)
                .or(Some(job.model.num_parameters).filter(|n| *n > 0)),
            flops_per_token: seq_length
                .filter(|_| is_known)
                .and_then(|s| flops_per_token(&job.model, job.task, s)),
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
            anomalies: found,
            log_tail: Vec::new(),
            repeats_planned: None,
            suspect: None,
            no_rate: two_runs(&trace),
            telemetry: None,
            trace,
        }
    }

    /// When the run began and ended, seconds since 1970. An imported log has the dates of its own
    /// steps at most.
    #[must_use]
    pub fn span(&self) -> (Option<f64>, Option<f64>) {
        /// Earlier dates are seconds since something else.
        const YEAR_2001: f64 = 1e9;
        if self.started_at.is_some() || self.trace.dated_by_lines {
            return (self.started_at, self.ended_at);
        }
        let mut dates = self
            .trace
            .steps
            .iter()
            .filter_map(|s| s.ended_at)
            .filter(|date| *date > YEAR_2001);
        let first = dates.next();
        (first, dates.next_back().or(first))
    }

    /// Withholds the rate where the recipe hands some of these settings neither to the trainer nor
    /// says why not, and the trainer does not state them itself: then nobody knows what work was
    /// timed.
    pub fn withhold(&mut self, unreached: &[&str]) {
        let unknown: Vec<String> = unreached
            .iter()
            .filter(|name| !self.attestation.is_attested(name))
            .map(|name| (*name).to_owned())
            .collect();
        if !unknown.is_empty() {
            let text = format!(
                "the recipe does not hand over {}, and the log does not state {}",
                unknown.join(", "),
                if unknown.len() == 1 { "it" } else { "them" }
            );
            self.no_rate = Some(Reason::excludes(NOT_HANDED_OVER, text).with("settings", unknown));
        }
    }

    #[must_use]
    pub fn is_contradicted(&self) -> bool {
        self.outcome == RunOutcome::Ok && self.attestation.status == AttestationStatus::Contradicted
    }
}

/// The tokens of a step on average, where the last steps of epochs have fewer sequences than the batch.
fn in_the_mean(tokens: u64, contract: &Contract, trace: &Trace) -> u64 {
    let batch = contract.count("global_batch_size").unwrap_or_default() as f64;
    match trace.totals.get(MEAN_BATCH) {
        Some(mean) if *mean < batch => (tokens as f64 / batch * mean).round() as u64,
        _ => tokens,
    }
}

/// Two runs in one log have no rate in common.
fn two_runs(trace: &Trace) -> Option<Reason> {
    let second = trace.anomalies.iter().find(|a| a.kind == SECOND_RUN)?;
    let text = format!(
        "the log holds two runs, and each needs a file of its own: {}",
        second.detail
    );
    Some(Reason::excludes(TWO_RUNS, text))
}

/// A log that shows neither the run's first steps nor where its process began may be the middle of a run; its first step
/// is that of a process all the same if it is as slow as one.
fn starts_slowly(trace: &mut Trace, counts_from: u64) {
    let Some(first) = trace.steps.first() else {
        return;
    };
    let is_known = trace
        .processes
        .first()
        .is_some_and(|process| process.first_step.is_some());
    if is_known
        || trace.ordinal(first, counts_from) <= first.count()
        || anomalies::slow_first_steps(&trace.steps) == 0
    {
        return;
    }
    let began = (first.step + 1).saturating_sub(first.count());
    if trace.processes.is_empty() {
        trace.processes.push(Process::default());
    }
    trace.processes[0].first_step = Some(began);
}

/// Devices of the whole run, by the start event's `device`; a CPU counts otherwise.
pub fn devices(trace: &Trace) -> Option<u64> {
    let device = trace
        .device
        .as_ref()
        .filter(|device| device.r#type != "cpu")?;
    device.count.filter(|count| *count > 0)
}

/// Takes a rate of all devices as one of each, so that it is held against the step times as those are.
fn share_rate(trace: &mut Trace, contract: &Contract) {
    let Some(gpus) = contract.count("num_gpus").filter(|n| *n > 0) else {
        return;
    };
    for step in &mut trace.steps {
        let of_all = step.other.get(tprimat_logs::TOTAL_RATE).copied();
        step.tokens_per_second_per_gpu = step
            .tokens_per_second_per_gpu
            .or(of_all.map(|rate| rate / gpus as f64));
    }
}

/// Fills in step times of a trainer that prints only its rate: the tokens of a step over that rate.
/// The rate is then the trainer's own, whoever says what a step is.
fn time_from_rate(trace: &mut Trace, contract: &Contract) -> Option<String> {
    let fields = ["global_batch_size", "seq_length", "num_gpus"];
    let [batch, length, gpus] = fields.map(|field| contract.count(field));
    let all = batch
        .zip(length)
        .and_then(|(batch, length)| batch.checked_mul(length));
    let varies = work::vary(trace);
    let gpus = gpus.filter(|n| *n > 0 && (varies || all.is_some()))?;
    let by_samples = !(trace.steps.iter()).any(|step| step.tokens_per_second_per_gpu.is_some());
    let rate = |step: &tprimat_logs::Step| {
        let of_all = match by_samples {
            true => sample_rate(step)? * length? as f64,
            false => step.tokens_per_second_per_gpu? * gpus as f64,
        };
        Some(of_all).filter(|rate| *rate > 0.0)
    };
    if trace.steps.iter().any(|s| s.step_time_seconds.is_some())
        || !trace.steps.iter().any(|step| rate(step).is_some())
    {
        return None;
    }
    for step in &mut trace.steps {
        let tokens = if varies { step.tokens } else { all };
        let timed = tokens.zip(rate(step));
        step.step_time_seconds = timed.map(|(tokens, rate)| tokens as f64 / rate);
    }
    let is_stated = |field| contract.source(field) == Some(Source::Effective);
    let unit = if by_samples { "sequences" } else { "tokens" };
    let how = match fields.into_iter().all(is_stated) {
        true => String::new(),
        false => format!(" and the job's {unit} per step"),
    };
    Some(format!("derived from the trainer's {unit}/s{how}"))
}

/// Sequences a second of all devices: what DeepSpeed prints in place of times.
pub(crate) fn sample_rate(step: &tprimat_logs::Step) -> Option<f64> {
    step.other.get("curr_samples_per_sec").copied()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;
    use tprimat_job::FailureClass;
    use tprimat_logs::{Anomaly, Failure};

    use super::*;
    pub use crate::results::stand_ins::facts;
    use crate::results::stand_ins::{test_job as job, trace};

    #[test]
    fn survives_json_bit_for_bit() {
        let mut trace = trace(json!({"num_gpus": 1}), Some(1024));
        trace.steps[0].loss = Some(-908.494_377_018_108_1);
        let result = RunResult::from(trace, &job(), facts(RunOutcome::Ok));
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&text).unwrap(), result);
        assert_eq!(
            (
                result.workload.tokens_per_step,
                result.workload.tokens_source
            ),
            (Some(1024), Source::Effective)
        );
        assert!(!result.is_contradicted());
    }

    /// Megatron-DeepSpeed's line has a rate and a length, and says nothing of devices.
    #[test]
    fn a_line_of_megatron_deepspeed_is_enough_for_a_rate() {
        let line = |at: u64| {
            format!(
                " iteration {at:8}/  100 | consumed samples: {:12} | consumed tokens: {:14} | elapsed time per iteration (ms): 14288.0 | \
                 learning rate: 1.000E-05 | global batch size:   768 | lm loss: 9.5E+00 | actual seqlen:  4096 | \
                 tokens per gpu per second (tgs): 1146.7 | TFLOPs: 50.1 |\n",
                at * 768,
                at * 768 * 4096
            )
        };
        let log: String = (1..=12).map(line).collect();
        let trace = tprimat_logs::parse_any(log.as_bytes());
        assert_eq!(trace.steps[0].tokens_per_second_per_gpu, Some(1146.7));
        let claim = Claim::of_model(None);
        let result = RunResult::of_claim(trace, &claim, facts(RunOutcome::Ok), false);
        assert_eq!(result.contract.count("seq_length"), Some(4096));
        assert_eq!(result.workload.tokens_per_step, Some(3_145_728));
        assert_eq!(result.workload.num_gpus, Some(192));
    }

    /// The spelling with `=`, and two figures of the speed.
    #[test]
    fn a_line_of_megatron_deepspeed_with_two_counts_of_flops_is_enough_for_a_rate() {
        let line = |at: u64| {
            format!(
                "[2024-04-19 13:30:54][INFO][training:1251] -  iteration={at:8}/   100 | consumed_samples={:12} | \
                 consumed_tokens={:12} | elapsed_time_per_iteration_ms=62925.6 | learning_rate=0.000010 | \
                 global_batch_size= 1152 | lm loss=10.5 | loss_scale=1.0 | actual_seqlen= 4096 | \
                 number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 | samples_per_second=18.307 | \
                 tokens_per_gpu_per_second_tgs=3124.453 | [LM]-TFLOPs=49.66 | [DS]-TFLOPs=73.32 |\n",
                at * 1152,
                at * 1152 * 4096
            )
        };
        let log: String = (1..=12).map(line).collect();
        let trace = tprimat_logs::parse_any(log.as_bytes());
        let step = &trace.steps[11];
        assert_eq!(
            (step.tokens_per_second_per_gpu, step.tflops_per_gpu),
            (Some(3124.453), Some(49.66))
        );
        assert_eq!(step.other["deepspeed_tflops_per_gpu"], 73.32);
        let result =
            RunResult::of_claim(trace, &Claim::of_model(None), facts(RunOutcome::Ok), false);
        assert_eq!(result.contract.count("seq_length"), Some(4096));
        assert_eq!(
            (result.workload.tokens_per_step, result.workload.num_gpus),
            (Some(4_718_592), Some(24))
        );
    }

    #[test]
    fn what_never_reached_the_trainer_gives_no_rate_unless_the_log_states_it() {
        let of = |stated| {
            let mut result = RunResult::from(trace(stated, None), &job(), facts(RunOutcome::Ok));
            result.withhold(&["seq_length", "hidden_size"]);
            result.no_rate
        };
        let why = of(json!({ "hidden_size": 64 })).unwrap();
        assert_eq!(why.values["settings"], json!(["seq_length"]));
        assert_eq!(of(json!({ "hidden_size": 64, "seq_length": 128 })), None);
    }

    #[test]
    fn a_trainer_that_reports_an_error_did_not_succeed() {
        let mut trace = trace(json!({}), None);
        trace.failure = Some(Failure {
            class: FailureClass::Nan,
            evidence: vec!["loss is nan".into()],
        });
        let result = RunResult::from(trace, &job(), facts(RunOutcome::Ok));
        assert!(matches!(
            result.outcome,
            RunOutcome::Failed {
                class: FailureClass::Nan,
                ..
            }
        ));
    }

    #[test]
    fn a_run_that_exits_well_with_nan_losses_did_not_succeed() {
        let mut trace = trace(json!({}), None);
        trace.anomalies.push(Anomaly {
            kind: "missing_steps".into(),
            detail: "steps 3 to 4".into(),
            step: None,
        });
        assert_eq!(
            RunResult::from(trace.clone(), &job(), facts(RunOutcome::Ok)).outcome,
            RunOutcome::Ok
        );
        trace.anomalies.push(Anomaly {
            kind: "nan_loss".into(),
            detail: "at step 2".into(),
            step: None,
        });
        let result = RunResult::from(trace.clone(), &job(), facts(RunOutcome::Ok));
        let RunOutcome::Failed {
            class, evidence, ..
        } = result.outcome
        else {
            panic!("{:?}", result.outcome)
        };
        assert_eq!(
            (class, evidence),
            (FailureClass::Nan, vec!["at step 2".to_owned()])
        );
        // A run that already failed keeps its own class.
        let oom = RunOutcome::Failed {
            class: FailureClass::Oom,
            evidence: vec![],
            status: "exit 1".into(),
        };
        assert_eq!(
            RunResult::from(trace, &job(), facts(oom.clone())).outcome,
            oom
        );
    }
}
