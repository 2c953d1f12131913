//! What the lines of a log state of the work of each step: it is stronger than what an argument asked for.
//!
//! What all lines state alike is the trainer's setting, whatever its arguments say. What varies from step to step, as under
//! a curriculum, while the batch grows or where sequences are packed, has no one value: the setting is then the range, and
//! each step has tokens of its own.

use serde_json::Value;
use tprimat_logs::{Anomaly, Step, Trace};

use super::{
    Claim,
    anomalies::anomaly,
    settings::{TOKENS_PER_STEP, agree, setting, show},
    words::thousands,
};

/// Takes what the lines state into the settings and the steps; returns what is to be told.
pub fn of_steps(trace: &mut Trace, claim: &Claim) -> Vec<Anomaly> {
    let mut told = Vec::new();
    let batches: Vec<Option<u64>> = trace.steps.iter().map(|s| s.global_batch_size).collect();
    let lengths: Vec<Option<u64>> = (0..trace.steps.len())
        .map(|at| length(&trace.steps, at))
        .collect();
    let varies = [("global_batch_size", &batches), ("seq_length", &lengths)]
        .map(|(name, values)| line_beats_argument(trace, name, values, &mut told));
    // What the log leaves out may have come with it.
    let settled = |name: &str| {
        let known = stated(trace, name).or_else(|| claim.declares(name));
        known.and_then(|value| value.as_u64())
    };
    let (batch, of_length) = (settled("global_batch_size"), settled("seq_length"));
    let is_wanted = varies.contains(&true);
    let tokens_of = |at: usize| {
        let grown = |counter| {
            difference(&trace.steps, at, counter).map(|(all, steps)| (all + steps / 2) / steps)
        };
        let batch = || grown(|s| s.consumed_samples).or(batches[at]).or(batch);
        let product = || batch()?.checked_mul(lengths[at].or(of_length)?);
        let counted = || grown(|s| count(s, "consumed_tokens"));
        trace.steps[at]
            .tokens
            .or_else(counted)
            .or_else(|| product().filter(|_| is_wanted))
    };
    let tokens: Vec<Option<u64>> = (0..trace.steps.len()).map(tokens_of).collect();
    let Some([least, most]) = range(&tokens).filter(|[least, most]| least < most) else {
        return told;
    };
    for (step, tokens) in trace.steps.iter_mut().zip(tokens) {
        step.tokens = tokens;
    }
    let range = format!("{least} to {most}");
    told.push(anomaly(
        "tokens_vary",
        format!(
            "a step has from {} to {} tokens",
            thousands(least as f64),
            thousands(most as f64)
        ),
    ));
    trace
        .effective
        .0
        .insert(TOKENS_PER_STEP.to_owned(), range.into());
    told
}

/// The share of all parameters from which on all count as trained: logs round, and some leave out a few small ones.
pub const ALL_PARAMETERS: f64 = 0.99;
/// A share of more devices than this is as good as any number.
const MOST_SHARES: f64 = 64.0;

/// Takes into the settings how many parameters are trained, where these are not all.
pub fn of_a_part(trace: &mut Trace, claim: &Claim) {
    const NAME: &str = "trainable_parameters";
    let Some(trained) = trace.totals.get(NAME).copied().filter(|n| *n >= 1.0) else {
        return;
    };
    let of_model = super::count_parameters(&claim.job.model);
    // Adapters are counted with the model that they are added to.
    let without = trace
        .num_parameters
        .and_then(|all| all.checked_sub(trained.round() as u64));
    if of_model.is_some() && without == of_model {
        trace.num_parameters = of_model;
    }
    let Some(all) = trace.num_parameters.or(of_model) else {
        return;
    };
    // Where weights are sharded, a rank prints the number of those that it holds itself.
    let of_ranks = all as f64 / trained;
    let is_share = |ranks: f64| (of_ranks / ranks - 1.0).abs() <= 1.0 - ALL_PARAMETERS;
    let gpus = stated(trace, "num_gpus").or_else(|| claim.declares("num_gpus"));
    let is_whole = match gpus.and_then(|n| n.as_u64()) {
        // Hybrid sharding shares them out among some of the GPUs.
        Some(gpus) => {
            let ranks = of_ranks.round().max(1.0);
            is_share(ranks) && gpus % ranks as u64 == 0
        }
        None => of_ranks < MOST_SHARES && is_share(of_ranks.round().max(1.0)),
    };
    if of_ranks * ALL_PARAMETERS > 1.0 && !is_whole {
        let trained = Value::from(trained.round() as u64);
        trace.effective.0.entry(NAME.to_owned()).or_insert(trained);
    }
}

/// Do the tokens of its steps vary? Then their range is a setting, as a text; a trainer that states a
/// number of its own says nothing of this.
pub fn vary(trace: &Trace) -> bool {
    let range = trace.effective.0.get(TOKENS_PER_STEP);
    range.is_some_and(Value::is_string)
}

/// Puts what lines state of a setting in the place of what an argument says; true if it varies.
fn line_beats_argument(
    trace: &mut Trace,
    name: &'static str,
    values: &[Option<u64>],
    told: &mut Vec<Anomaly>,
) -> bool {
    let Some([least, most]) = range(values) else {
        return false;
    };
    let (value, varies) = match least == most {
        true => (Value::from(least), false),
        false => (format!("{least} to {most}").into(), true),
    };
    let argument = stated(trace, name);
    if argument
        .as_ref()
        .is_some_and(|argument| agree(argument, &value))
    {
        return false;
    }
    if let Some(argument) = argument.filter(|_| !varies) {
        let detail = format!(
            "the lines of the steps say {name} {least}, and it is stated as {} elsewhere",
            show(Some(&argument))
        );
        told.push(anomaly("line_beats_argument", detail));
    }
    if varies {
        told.push(anomaly(
            if name == "seq_length" {
                "length_changes"
            } else {
                "batch_size_changes"
            },
            format!("{name} goes from {least} to {most}"),
        ));
    }
    if let Some(setting) = setting(name) {
        setting.forget(&mut trace.effective.0);
    }
    trace.effective.0.insert(name.to_owned(), value);
    varies
}

fn stated(trace: &Trace, name: &str) -> Option<Value> {
    setting(name)?.effective(&trace.effective.0)
}

fn range(values: &[Option<u64>]) -> Option<[u64; 2]> {
    let known = || values.iter().flatten().copied();
    Some([known().min()?, known().max()?])
}

fn count(step: &Step, name: &str) -> Option<u64> {
    let value = step.other.get(name).copied()?;
    (value >= 1.0 && value.fract() == 0.0 && value < 9e15).then_some(value as u64)
}

/// The length of a step's sequences: as its line says, else tokens ÷ samples of what is counted.
fn length(steps: &[Step], at: usize) -> Option<u64> {
    count(&steps[at], "actual_seq_length").or_else(|| {
        let (tokens, _) = difference(steps, at, |s| count(s, "consumed_tokens"))?;
        let (samples, _) = difference(steps, at, |s| s.consumed_samples)?;
        tokens.is_multiple_of(samples).then(|| tokens / samples)
    })
}

/// What a counter grew by since the line before, and in how many steps.
fn difference(steps: &[Step], at: usize, counter: fn(&Step) -> Option<u64>) -> Option<(u64, u64)> {
    let (before, now) = (steps.get(at.checked_sub(1)?)?, &steps[at]);
    let grown = counter(now)?
        .checked_sub(counter(before)?)
        .filter(|n| *n > 0)?;
    let since = now.step.checked_sub(before.step)?;
    (since > 0 && before.process == now.process).then_some((grown, since))
}

#[cfg(test)]
mod tests;
