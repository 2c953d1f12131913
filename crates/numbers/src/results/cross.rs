//! What a trainer's own figures show of settings that it does not state: rate × time = tokens, and
//! so on.
//!
//! Every check leaves its arithmetic, so that a reader can do it again.

use serde_json::{Value, json};
use tprimat_base::words::plain::counted;
use tprimat_logs::{Anomaly, LOSS_STEPS_AVERAGED, Step, TOTAL_RATE, Trace};

use super::{
    AttestationStatus, Claim, Contract, FieldAttestation, Source,
    anomalies::{RATE_DISAGREES, anomaly, vocabulary},
    conventions::fitting_convention,
    learning_rate::TRAINER,
    quantile,
    words::thousands,
    work,
};

/// Trainers round their rates, and clock them around other instants than their steps.
const TOKENS_TOLERANCE: f64 = 0.02;
/// A trainer that counts in a way of its own may be so far from every convention: such a figure shows
/// nothing of the model.
const FLOPS_OF_ITS_OWN: f64 = 0.05;
/// What a rate that is printed with one decimal of a TFLOP/s may lack, in FLOP/s. It decides only
/// for tiny models on CPUs.
const FLOPS_ROUNDING: f64 = 0.05e12;
/// Steps within which the loss still is that of random weights.
const FIRST_STEPS: u64 = 3;
/// Nats around ln(vocabulary) that random weights give: a large initial spread gives more, nothing
/// gives much less.
const FIRST_LOSS: (f64, f64) = (-0.75, 1.75);
/// A first loss at most this far above ln(vocabulary), in nats, confirms the vocabulary. Real runs begin
/// up to 0.83 above it; ln(128256) is 1.39 above ln(32000), so a log of one is not taken for the other.
const FIRST_LOSS_CONFIRMS: f64 = 1.0;

/// Names of totals that an imported file publishes beside its series.
pub const PUBLISHED_RATE: &str = "published_tokens_per_second";
pub const PUBLISHED_STEP_TIME: &str = "published_avg_step_time_seconds";

#[derive(Default)]
pub(crate) struct CrossChecks {
    pub fields: Vec<FieldAttestation>,
    pub anomalies: Vec<Anomaly>,
    /// Settings of the contract that nobody states and only one value fits.
    pub derived: Vec<(&'static str, Value)>,
    /// Tokens of an optimiser step, where batch and length are not known but their product is.
    pub tokens_per_step: Option<u64>,
}

/// 0 or 1: the log's number of the first optimiser step.
#[must_use]
pub fn counts_from(steps: &[Step], batch: Option<u64>) -> u64 {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return 1;
    };
    if first.step == 0 {
        return 0;
    }
    if let (Some(samples), Some(batch)) = (last.consumed_samples, batch.filter(|b| *b > 0)) {
        return u64::from(samples != batch.saturating_mul(last.step.saturating_add(1)));
    }
    let usual = steps
        .windows(2)
        .map(|w| w[1].step.saturating_sub(w[0].step))
        .min()
        .unwrap_or(1);
    u64::from(
        usual < 2
            || steps
                .iter()
                .any(|s| !s.step.saturating_add(1).is_multiple_of(usual)),
    )
}

/// Every how many steps there is a line, usually.
pub fn interval(steps: &[Step]) -> u64 {
    let mut between: Vec<u64> = steps
        .windows(2)
        .map(|w| w[1].step.saturating_sub(w[0].step))
        .collect();
    between.sort_unstable();
    between.get(between.len() / 2).copied().unwrap_or(1).max(1)
}

pub(crate) fn cross_check(
    trace: &Trace,
    claim: &Claim,
    contract: &Contract,
    counts_from: u64,
) -> CrossChecks {
    let mut crossed = CrossChecks::default();
    crossed.samples(trace, contract);
    crossed.summary(trace, contract);
    crossed.devices(trace, contract);
    crossed.devices_of_batch(trace, contract);
    if !work::vary(trace) {
        crossed.tokens(trace, contract);
    }
    crossed.published(trace, contract);
    crossed.flops(trace, claim, contract);
    crossed.first_loss(trace, claim, counts_from);
    crossed
        .fields
        .extend(super::learning_rate::check(trace, claim, counts_from));
    crossed
}

impl CrossChecks {
    fn add(
        &mut self,
        name: &str,
        declared: Option<Value>,
        effective: Value,
        status: AttestationStatus,
        arithmetic: String,
    ) {
        self.fields.push(FieldAttestation {
            field: name.to_owned(),
            declared,
            effective: Some(effective),
            status,
            arithmetic: Some(arithmetic),
        });
    }

    /// The value of the contract, or what an earlier check has derived.
    fn count(&self, contract: &Contract, field: &str) -> Option<u64> {
        let derived = || {
            self.derived
                .iter()
                .find(|(name, _)| *name == field)?
                .1
                .as_u64()
        };
        contract.count(field).or_else(derived).filter(|n| *n > 0)
    }

    /// Samples between two lines ÷ steps between them = the global batch.
    fn samples(&mut self, trace: &Trace, contract: &Contract) {
        let counted: Vec<(u64, u64)> = trace
            .steps
            .iter()
            .filter_map(|s| Some((s.step, s.consumed_samples?)))
            .collect();
        let between: Vec<(u64, u64)> = counted
            .windows(2)
            .filter_map(|w| {
                Some((
                    w[1].0.checked_sub(w[0].0).filter(|n| *n > 0)?,
                    w[1].1.checked_sub(w[0].1)?,
                ))
            })
            .collect();
        let per_step: Vec<f64> = between
            .iter()
            .map(|(steps, samples)| *samples as f64 / *steps as f64)
            .collect();
        let Some(median) = quantile(&per_step, 0.5).filter(|m| *m >= 1.0) else {
            return;
        };
        let batch = median.round();
        let ((first, samples), (last, last_samples)) = (counted[0], counted[counted.len() - 1]);
        let arithmetic = format!(
            "{} samples after step {first}, {} after step {last}: {} a step",
            thousands(samples as f64),
            thousands(last_samples as f64),
            thousands(median)
        );
        let declared = contract.count("global_batch_size");
        // After a resume the first increment may differ, and the last may be smaller because the
        // data ends. Any other deviation means that the batch size varied; then nothing is
        // attested, and the lines' own batch sizes show what it was.
        let full = |(steps, _): &(u64, u64)| batch * *steps as f64;
        let explained = |at: usize, d: &(u64, u64)| match at {
            0 => counted[0].0 > 1,
            _ => at == between.len() - 1 && (d.1 as f64) < full(d),
        };
        let fits = |(at, d): (usize, &(u64, u64))| {
            d.1 as f64 == full(d) || between.len() > 4 && explained(at, d)
        };
        let same = counted.len() == between.len() + 1 && between.iter().enumerate().all(fits);
        let agrees = declared.is_none_or(|d| (d as f64 - median).abs() < 0.5);
        let seen = |d: u64| {
            between
                .iter()
                .any(|(steps, samples)| d.checked_mul(*steps) == Some(*samples))
        };
        if !same && (agrees || declared.is_some_and(seen)) {
            return;
        }
        if declared.is_none() {
            self.derived
                .push(("global_batch_size", json!(batch as u64)));
        }
        let field = "global_batch_size_from_samples";
        self.add(
            field,
            declared.map(Value::from),
            json!(batch as u64),
            judged(agrees),
            arithmetic,
        );
    }

    /// Sequences a second ÷ steps a second of the whole run, as the summary of Hugging Face's Trainer has them = the global
    /// batch.
    fn summary(&mut self, trace: &Trace, contract: &Contract) {
        let total = |name: &str| trace.totals.get(name).copied().filter(|v| *v > 0.0);
        let (Some(samples), Some(steps)) = (
            total("train_samples_per_second"),
            total("train_steps_per_second"),
        ) else {
            return;
        };
        let batch = samples / steps;
        // Both have three decimals, or four digits.
        let rounding: f64 = [samples, steps]
            .map(|rate| (5e-4 / rate).max(5e-4))
            .iter()
            .sum();
        // The last batch of an epoch may be smaller, and all others are whole.
        let epochs = total("epoch").zip(total("train_runtime_seconds"));
        let smaller = epochs.map_or(1.0, |(epochs, seconds)| match epochs < 0.999 {
            true => 0.0,
            false => epochs / (steps * seconds),
        });
        let arithmetic = format!(
            "{samples} sequences/s ÷ {steps} steps/s of the whole run = {} sequences a step",
            thousands((batch * 100.0).round() / 100.0)
        );
        let Some(declared) = contract.count("global_batch_size").filter(|n| *n > 0) else {
            let whole = batch.round();
            if whole >= 1.0 && batch * (rounding + smaller) < 0.5 && (batch - whole).abs() < 0.2 {
                self.derived
                    .push(("global_batch_size", json!(whole as u64)));
            }
            return;
        };
        let wrong = rounding.max(TOKENS_TOLERANCE);
        let ratio = batch / declared as f64;
        let agrees = (1.0 - smaller - wrong..=1.0 + wrong).contains(&ratio);
        let arithmetic = match agrees {
            true => arithmetic,
            false => format!("{arithmetic}, not {declared}"),
        };
        self.add(
            "global_batch_size_from_summary",
            Some(declared.into()),
            json!(batch.round()),
            judged(agrees),
            arithmetic,
        );
    }

    /// Tokens/s of all devices ÷ tokens/s of one = devices.
    fn devices(&mut self, trace: &Trace, contract: &Contract) {
        let of_step = |s: &Step| {
            let all = ["tokens_per_second_global", "tps", TOTAL_RATE]
                .iter()
                .find_map(|name| s.other.get(*name));
            Some(all? / s.tokens_per_second_per_gpu?)
        };
        let total = |name: &str| trace.totals.get(name).copied();
        let of_run =
            || Some(total("system_tokens_per_second")? / total("tokens_per_second_per_gpu")?);
        let ratios: Vec<f64> = trace.steps.iter().filter_map(of_step).collect();
        let Some(ratio) = quantile(&ratios, 0.5)
            .or_else(of_run)
            .filter(|ratio| *ratio >= 0.99)
        else {
            return;
        };
        let devices = ratio.round();
        if (ratio / devices - 1.0).abs() > 0.01 {
            return;
        }
        // Rates over other spans of time are no exact multiple.
        const APART: f64 = 1.25;
        match contract.count("num_gpus") {
            None => self.derived.push(("num_gpus", json!(devices as u64))),
            Some(known) => {
                let apart = devices / known as f64;
                if apart > APART || apart < APART.recip() {
                    let arithmetic = format!(
                        "the rate of all is {devices} times that of one device, and {} are stated or supplied",
                        counted(known as usize, "device")
                    );
                    let status = AttestationStatus::Contradicted;
                    self.add(
                        "num_gpus",
                        Some(json!(known)),
                        json!(devices as u64),
                        status,
                        arithmetic,
                    );
                }
            }
        }
    }

    /// The Trainer's banner has the batch of all and that of one device.
    fn devices_of_batch(&mut self, trace: &Trace, contract: &Contract) {
        let fields = [
            "global_batch_size",
            "micro_batch_size",
            "gradient_accumulation_steps",
        ];
        let [batch, micro, accumulation] = fields.map(|field| contract.count(field));
        let of_one = micro
            .zip(accumulation)
            .map(|(micro, steps)| micro.saturating_mul(steps));
        let devices = batch.zip(of_one).and_then(|(batch, one)| {
            batch
                .checked_div(one)
                .filter(|n| n * one == batch && *n > 0)
        });
        let is_open = self.count(contract, "num_gpus").is_none();
        let is_stated = |field: &str| contract.source(field) == Some(Source::Effective);
        if let Some(devices) = devices
            && is_open
            && trace.format == TRAINER
            && fields.into_iter().all(is_stated)
        {
            self.derived.push(("num_gpus", json!(devices)));
        }
    }

    /// tokens/s/GPU × GPUs × step time = tokens of a step.
    fn tokens(&mut self, trace: &Trace, contract: &Contract) {
        let rates: Vec<(f64, f64)> = trace
            .steps
            .iter()
            .filter_map(|s| Some((s.tokens_per_second_per_gpu?, s.step_time_seconds?)))
            .collect();
        // The first line has compilation and allocation in it.
        let rates = if rates.len() > 2 {
            &rates[1..]
        } else {
            &rates[..]
        };
        let median =
            |of: fn(&(f64, f64)) -> f64| quantile(&rates.iter().map(of).collect::<Vec<_>>(), 0.5);
        let (Some(rate), Some(time), Some(product)) =
            (median(|r| r.0), median(|r| r.1), median(|r| r.0 * r.1))
        else {
            return;
        };
        let (batch, length) = (
            self.count(contract, "global_batch_size"),
            self.count(contract, "seq_length"),
        );
        let Some(gpus) = self.count(contract, "num_gpus") else {
            // Batch and length are known, so the devices follow.
            let Some(tokens) = batch.zip(length).and_then(|(b, s)| b.checked_mul(s)) else {
                return;
            };
            let gpus = tokens as f64 / product;
            if (gpus / gpus.round() - 1.0).abs() <= TOKENS_TOLERANCE {
                self.derived.push(("num_gpus", json!(gpus.round() as u64)));
            }
            return;
        };
        // The log's own batch says how many devices there are, and the rate that it calls one device's is that of all.
        let stated = |f: &str| {
            contract
                .count(f)
                .filter(|_| contract.source(f) == Some(Source::Effective))
        };
        let of_one = || Some(stated("micro_batch_size")? * stated("gradient_accumulation_steps")?);
        if gpus > 1
            && let (Some(batch), Some(length)) = (stated("global_batch_size"), length)
            && of_one().and_then(|of_one| of_one.checked_mul(gpus)) == Some(batch)
            && (product / (batch as f64 * length as f64) - 1.0).abs() <= 2.0 * TOKENS_TOLERANCE
        {
            let detail = format!(
                "{} tokens/s, which the log calls the rate of one device, are {gpus} times what its steps give: the rate of all",
                thousands(rate)
            );
            self.anomalies.push(anomaly(RATE_DISAGREES, detail));
            return;
        }
        let tokens = product * gpus as f64;
        let arithmetic = format!(
            "{} tokens/s per device × {gpus} × {time:.3} s = {} tokens per step",
            thousands(rate),
            thousands(tokens)
        );
        // The lines say themselves how many tokens a step has, in no other words.
        let each = trace.steps.iter().find_map(|s| s.tokens);
        if let Some(each) = each.filter(|_| batch.is_none() || length.is_none()) {
            if (tokens / each as f64 - 1.0).abs() > TOKENS_TOLERANCE {
                let known = thousands(each as f64);
                let detail = format!("{arithmetic}, and the log says that a step has {known}");
                self.anomalies.push(anomaly(RATE_DISAGREES, detail));
            }
            return;
        }
        let known = ["global_batch_size", "seq_length", "num_gpus"];
        let stated = known
            .iter()
            .all(|f| contract.source(f) == Some(Source::Effective));
        let before = self.fields.len();
        self.tokens_are(
            "tokens_per_step_from_rate",
            tokens,
            arithmetic,
            [batch, length],
            stated,
        );
        // With a device count that is only claimed, it shows the tokens of one device, not of a
        // step.
        let claimed = contract.source("num_gpus") == Some(Source::Declared);
        for field in self.fields[before..]
            .iter_mut()
            .filter(|f| claimed && f.status == AttestationStatus::Attested)
        {
            field.status = AttestationStatus::NotStated;
        }
    }

    /// Checks a file that publishes only means: tokens/s × mean step time against its labels.
    fn published(&mut self, trace: &Trace, contract: &Contract) {
        let total = |name: &str| trace.totals.get(name).copied().filter(|v| *v > 0.0);
        let (rate, time) = (total(PUBLISHED_RATE), total(PUBLISHED_STEP_TIME));
        let (batch, length) = (
            contract.count("global_batch_size"),
            contract.count("seq_length"),
        );
        if let (Some(rate), Some(time)) = (rate, time) {
            let tokens = rate * time;
            let of_labels = batch.zip(length).map(|(b, s)| (b as f64 * s as f64) / time);
            let differs = |label: &f64| (label / rate - 1.0).abs() > TOKENS_TOLERANCE;
            let labels = of_labels.filter(differs).map_or_else(String::new, |label| {
                format!(" (the labels would give {} tokens/s)", thousands(label))
            });
            let arithmetic = format!(
                "{} tokens/s × {time:.3} s = {} tokens per step{labels}",
                thousands(rate),
                thousands(tokens)
            );
            self.tokens_are(
                "tokens_per_step_from_published",
                tokens,
                arithmetic,
                [batch, length],
                false,
            );
        }
        let times: Vec<f64> = trace
            .steps
            .iter()
            .filter_map(|s| s.step_time_seconds)
            .collect();
        let Some(published) = time.filter(|_| times.len() > 1) else {
            return;
        };
        let mean = |skip: usize| times[skip..].iter().sum::<f64>() / (times.len() - skip) as f64;
        let skipped =
            (0..times.len().min(100)).find(|skip| (mean(*skip) / published - 1.0).abs() <= 5e-4);
        let name = "avg_step_time_from_steps";
        let (own, arithmetic) = match skipped {
            Some(skipped) => {
                let (first, last) = (skipped + 1, times.len());
                let arithmetic = format!(
                    "{published:.3} s is the mean of steps {first} to {last}: {skipped} skipped"
                );
                (mean(skipped), arithmetic)
            }
            None => {
                let arithmetic = format!(
                    "the published mean of {published:.3} s matches no average of its steps, however many first steps are left out"
                );
                (mean(0), arithmetic)
            }
        };
        let status = judged(skipped.is_some());
        self.add(name, Some(published.into()), own.into(), status, arithmetic);
    }

    /// Judges tokens of a step that were computed against batch × length. `arithmetic`: how they were.
    fn tokens_are(
        &mut self,
        field: &str,
        tokens: f64,
        arithmetic: String,
        [batch, length]: [Option<u64>; 2],
        stated: bool,
    ) {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() <= TOKENS_TOLERANCE;
        let product = |batch: u64, length: u64| batch as f64 * length as f64;
        let equation = |batch: u64, length: u64| {
            let tokens = thousands(product(batch, length));
            format!("{tokens} = {batch} × {length}")
        };
        let (batch, length) = match (batch, length) {
            (Some(batch), Some(length)) => (batch, length),
            (Some(batch), None) => {
                let Some(length) = round_length(tokens / batch as f64) else {
                    self.tokens_per_step = Some(tokens.round() as u64);
                    return;
                };
                self.derived.push(("seq_length", json!(length)));
                (batch, length)
            }
            (None, Some(length)) => {
                let batch = (tokens / length as f64).round();
                if batch < 1.0 || !near(tokens, batch * length as f64) {
                    return;
                }
                self.derived
                    .push(("global_batch_size", json!(batch as u64)));
                (batch as u64, length)
            }
            (None, None) => {
                self.tokens_per_step = Some(tokens.round() as u64);
                return self.add(field, None, json!(tokens.round()), judged(true), arithmetic);
            }
        };
        let declared = Some(json!(batch.saturating_mul(length)));
        if near(tokens, product(batch, length)) {
            let arithmetic = format!("{arithmetic} ≈ {}", equation(batch, length));
            return self.add(
                field,
                declared,
                json!(tokens.round()),
                judged(true),
                arithmetic,
            );
        }
        let mut others = Vec::new();
        if let Some(length) = round_length(tokens / batch as f64) {
            others.push(equation(batch, length));
        }
        let other = (tokens / length as f64).round();
        if other >= 1.0 && near(tokens, other * length as f64) {
            others.push(equation(other as u64, length));
        }
        let others = if others.is_empty() {
            String::new()
        } else {
            format!(" ≈ {}", others.join(" or "))
        };
        let known = thousands(product(batch, length));
        let arithmetic = format!("{arithmetic}{others}, not {batch} × {length} = {known}");
        if stated {
            // The trainer states all of it: then its rate or its clock is of something else than a
            // step.
            self.anomalies.push(anomaly(RATE_DISAGREES, arithmetic));
        } else {
            self.add(
                field,
                declared,
                json!(tokens.round()),
                judged(false),
                arithmetic,
            );
        }
    }

    /// TFLOP/s ÷ tokens/s = FLOPs per token, in some convention.
    fn flops(&mut self, trace: &Trace, claim: &Claim, contract: &Contract) {
        let (batch, length) = (
            self.count(contract, "global_batch_size"),
            self.count(contract, "seq_length"),
        );
        let tokens = batch
            .zip(length)
            .and_then(|(b, s)| b.checked_mul(s))
            .map(|t| t as f64);
        let gpus = self.count(contract, "num_gpus").map(|n| n as f64);
        let rate = |step: &Step| {
            let from_time = || Some(tokens? / step.step_time_seconds.filter(|t| *t > 0.0)? / gpus?);
            step.tokens_per_second_per_gpu
                .filter(|r| *r > 0.0)
                .or_else(from_time)
        };
        let pairs: Vec<(f64, f64)> = trace
            .steps
            .iter()
            .filter_map(|s| Some((s.tflops_per_gpu.filter(|t| *t > 0.0)? * 1e12, rate(s)?)))
            .collect();
        let pairs = if pairs.len() > 2 {
            &pairs[1..]
        } else {
            &pairs[..]
        };
        let median =
            |of: fn(&(f64, f64)) -> f64| quantile(&pairs.iter().map(of).collect::<Vec<_>>(), 0.5);
        let (Some(flops), Some(rate), Some(each)) =
            (median(|p| p.0), median(|p| p.1), median(|p| p.0 / p.1))
        else {
            return;
        };
        let Some((convention, of_convention, fits)) =
            length.and_then(|length| fitting_convention(trace, &claim.job.model, length, each))
        else {
            return;
        };
        if !fits && (of_convention - each).abs() * rate <= FLOPS_ROUNDING {
            return;
        }
        let is_of_its_own = !fits && (each / of_convention - 1.0).abs() <= FLOPS_OF_ITS_OWN;
        let arithmetic = format!(
            "{:.1} TFLOP/s ÷ {} tokens/s = {:.4} GFLOP per token; {} {convention}: {:.4} GFLOP",
            flops / 1e12,
            thousands(rate),
            each / 1e9,
            if fits {
                "that is"
            } else {
                "no convention fits, the nearest is"
            },
            of_convention / 1e9
        );
        let status = match (fits, is_of_its_own) {
            (true, _) => AttestationStatus::Attested,
            (false, true) => AttestationStatus::NotStated,
            (false, false) => AttestationStatus::Contradicted,
        };
        let name = "flops_per_token_from_rate";
        let declared = Some(json!(of_convention));
        self.add(name, declared, json!(each), status, arithmetic);
    }

    /// Random weights know nothing: their loss is that of a guess.
    fn first_loss(&mut self, trace: &Trace, claim: &Claim, counts_from: u64) {
        let Some(guess) = vocabulary(&claim.job.model) else {
            return;
        };
        let Some((step, loss)) = trace.steps.iter().find_map(|s| Some((s, s.loss?))) else {
            return;
        };
        let number = step.step.saturating_add(1 - counts_from.min(1));
        let is_mean = step.other.contains_key(LOSS_STEPS_AVERAGED);
        if number > FIRST_STEPS || step.count() > FIRST_STEPS || is_mean {
            return;
        }
        let vocabulary = claim.job.model.vocab_size;
        let step = step.step;
        let arithmetic = format!("loss {loss:.3} at step {step}; ln({vocabulary}) = {guess:.3}");
        let above = loss - guess;
        let status = if (FIRST_LOSS.0..=FIRST_LOSS_CONFIRMS).contains(&above) {
            AttestationStatus::Attested
        } else {
            AttestationStatus::NotStated
        };
        if !(FIRST_LOSS.0..=FIRST_LOSS.1).contains(&above) {
            let why = if loss < guess {
                "weights that were trained already, another vocabulary, or not a mean over tokens"
            } else {
                "a wide initialisation, another vocabulary, or a sum"
            };
            let detail = format!("{arithmetic}: {why}");
            self.anomalies.push(anomaly("first_loss", detail));
        }
        let declared = Some(json!(guess));
        self.add("first_loss", declared, json!(loss), status, arithmetic);
    }
}

/// What a check says of a setting.
fn judged(agrees: bool) -> AttestationStatus {
    match agrees {
        true => AttestationStatus::Attested,
        false => AttestationStatus::Contradicted,
    }
}

/// A sequence length that people choose, if `tokens` is one: at most 7 times a power of two. Every large number is near some
/// multiple of 64, so that would show nothing.
fn round_length(tokens: f64) -> Option<u64> {
    let unit = (tokens / 8.0).log2().ceil().exp2().max(64.0);
    let round = (tokens / unit).round() * unit;
    (round >= 64.0 && (tokens / round - 1.0).abs() <= TOKENS_TOLERANCE / 2.0)
        .then_some(round as u64)
}

#[cfg(test)]
mod tests;
