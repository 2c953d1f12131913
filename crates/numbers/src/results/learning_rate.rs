//! The learning rates that a log has against the schedule that was asked for.

use serde_json::json;
use tprimat_base::words::plain::counted;
use tprimat_job::{Decay, OptimizerJob};
use tprimat_logs::Trace;

use super::{AttestationStatus, Claim, FieldAttestation};

/// How far a learning rate may be off, as a part of the peak: trainers print the rate of this step or
/// the next, and begin warm-up at 0 or at the first step's.
const TOLERANCE: f64 = 0.02;
/// A restart or a line of another meaning may be off; a schedule is judged by nearly all of them.
const MOST: f64 = 0.95;

/// `counts_from`: the log's number of the first step.
pub fn check(trace: &Trace, claim: &Claim, counts_from: u64) -> Option<FieldAttestation> {
    let logged: Vec<(u64, f64)> = trace
        .steps
        .iter()
        .filter_map(|s| {
            Some((
                s.step.saturating_add(1 - counts_from.min(1)),
                s.learning_rate.filter(|lr| lr.is_finite())?,
            ))
        })
        .collect();
    let (&(first, start), &(last, end)) = (logged.first()?, logged.last()?);
    let (at, peak) = logged
        .iter()
        .copied()
        .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    let rates = format!(
        "logged: {start:.3e} at step {first}, at most {peak:.3e} at step {at}, {end:.3e} at step {last}"
    );
    let effective = Some(json!({ "first": start, "peak": peak, "peak_step": at, "last": end }));
    let mut field = FieldAttestation {
        field: "learning_rate_schedule".to_owned(),
        declared: None,
        effective,
        status: AttestationStatus::NotStated,
        arithmetic: Some(rates.clone()),
    };
    let asked = claim.job.optimizer.learning_rate;
    let is_claimed = claim.covers("learning_rate") && !claim.unwritten.contains("learning_rate");
    // Also where nobody knows of which step a line is: no schedule goes above its peak.
    if is_claimed && asked > 0.0 && peak > asked * (1.0 + TOLERANCE) {
        field.declared = Some(json!({ "peak": asked }));
        field.status = AttestationStatus::Contradicted;
        field.arithmetic = Some(format!("{rates}; {asked:.3e} at most was asked for"));
        return Some(field);
    }
    if trace.steps_assumed {
        return Some(field);
    }
    let needed = [
        "learning_rate",
        "min_learning_rate",
        "warmup_steps",
        "train_iters",
        "lr_decay_style",
    ];
    let (optimizer, iters) = (&claim.job.optimizer, claim.job.train_iters);
    if !needed.iter().all(|name| claim.covers(name))
        || optimizer.learning_rate <= 0.0
        || logged.len() < 3
    {
        return Some(field);
    }
    field.declared = Some(json!({
        "warmup_steps": optimizer.warmup_steps, "peak": optimizer.learning_rate,
        "last": optimizer.min_learning_rate, "steps": iters,
    }));
    let allowed = TOLERANCE * optimizer.learning_rate;
    // Some ramps end at the last warm-up step, some at the one after it.
    let ramp = |s: u64, steps: u64| match s <= steps && steps > optimizer.warmup_steps {
        true => optimizer.learning_rate * s as f64 / steps as f64,
        false => optimizer.rate(iters, s),
    };
    let fits = |(shift, more): (i64, u64)| {
        let expected = |s: u64| {
            ramp(
                s.saturating_add_signed(shift),
                optimizer.warmup_steps + more,
            )
        };
        logged
            .iter()
            .filter(|(s, lr)| (lr - expected(*s)).abs() <= allowed)
            .count()
    };
    let ways = [0, 1, -1]
        .into_iter()
        .flat_map(|shift| [(shift, 0), (shift, 1)]);
    let best = ways.map(fits).max().unwrap_or(0);
    let least = optimizer.min_learning_rate;
    let then = match optimizer.lr_decay_style {
        Decay::Cosine => format!("a cosine to {least:.3e}"),
        Decay::Linear => format!("a line to {least:.3e}"),
        Decay::Constant => "constant".to_owned(),
        Decay::Wsd => {
            let last = counted(optimizer.wsd_decay_steps as usize, "last step");
            format!("stable, and over the {last} a line to {least:.3e}")
        }
    };
    let asked = format!(
        "{:.3e} at its peak ({} of warm-up, then {then})",
        optimizer.learning_rate,
        counted(optimizer.warmup_steps as usize, "step"),
    );
    let is_constant = logged
        .iter()
        .all(|(_, rate)| (rate - start).abs() <= 1e-6 * start.abs());
    field.arithmetic = Some(if is_constant {
        format!(
            "the learning rate in the log is {start:.3e} at every step; the schedule that was asked for has {asked}"
        )
    } else {
        let all = logged.len();
        format!(
            "{best} of {all} logged rates fit the schedule that was asked for, {asked}; {rates}"
        )
    });
    let is_most = |fitting: usize| fitting as f64 >= MOST * logged.len() as f64;
    let is_asked = !claim.unwritten.contains("lr_decay_style");
    let is_at_peak = is_constant && (start - optimizer.learning_rate).abs() <= allowed;
    field.status = if is_most(best) {
        AttestationStatus::Attested
    } else if !is_asked && (is_at_peak || is_most(falling(&logged, optimizer, iters))) {
        // Its peak is what was asked for, and the way from there is left to the trainer.
        field.arithmetic = Some(rates);
        AttestationStatus::NotStated
    } else if trace.format == TRAINER && is_most(falling(&logged, optimizer, iters)) {
        // The speed does not depend on it, and the Trainer does so unless it is told otherwise.
        field.arithmetic = Some(format!(
            "the rates fall linearly, as Hugging Face's Trainer lets them by default, and a cosine was asked for: {rates}"
        ));
        AttestationStatus::NotStated
    } else {
        AttestationStatus::Contradicted
    };
    Some(field)
}

/// The format of Hugging Face's Trainer.
pub(super) const TRAINER: &str = "hf-trainer";

/// How many rates are those of a linear decay to 0 behind the warm-up that was asked for, or behind none.
fn falling(logged: &[(u64, f64)], optimizer: &OptimizerJob, iters: u64) -> usize {
    let fits = |(warmup, shift): (u64, i64)| {
        let expected = |s: u64| {
            let s = s.saturating_add_signed(shift).min(iters);
            let (done, all) = match s <= warmup {
                true => (s, warmup),
                false => (iters - s, iters.saturating_sub(warmup)),
            };
            optimizer.learning_rate * done as f64 / all.max(1) as f64
        };
        let allowed = TOLERANCE * optimizer.learning_rate;
        let is_it = |(s, lr): &&(u64, f64)| (lr - expected(*s)).abs() <= allowed;
        logged.iter().filter(is_it).count()
    };
    let ways = [0, optimizer.warmup_steps]
        .into_iter()
        .flat_map(|warmup| [(warmup, 0), (warmup, -1)]);
    ways.map(fits).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use tprimat_logs::Step;

    use super::*;
    use crate::results::attest::tests::job;

    #[test]
    fn the_trainers_own_schedule_contradicts_no_cosine_in_its_logs() {
        let (mut trace, claim) = run(|s| 3e-4 * (40 - (s - 1)) as f64 / 40.0);
        let status = |trace: &Trace| check(trace, &claim, 1).unwrap().status;
        assert_eq!(status(&trace), AttestationStatus::Contradicted);
        trace.format = TRAINER.to_owned();
        assert_eq!(status(&trace), AttestationStatus::NotStated);
        let (mut other, _) = run(|s| 3e-4 / (s as f64).sqrt());
        other.format = TRAINER.to_owned();
        assert_eq!(status(&other), AttestationStatus::Contradicted);
    }

    fn run(rates: impl Fn(u64) -> f64) -> (Trace, Claim) {
        let mut job = job();
        job.train_iters = 40;
        job.optimizer.warmup_steps = 10;
        job.optimizer.min_learning_rate = 3e-5;
        let step = |s| Step {
            step: s,
            learning_rate: Some(rates(s)),
            ..Step::default()
        };
        (
            Trace {
                steps: (1..=40).map(step).collect(),
                ..Trace::default()
            },
            Claim::of(&job),
        )
    }

    fn status(rates: impl Fn(u64) -> f64) -> AttestationStatus {
        let (trace, claim) = run(rates);
        check(&trace, &claim, 1).unwrap().status
    }

    #[test]
    fn this_steps_rate_and_the_next_steps_are_the_same_schedule() {
        let optimizer = run(|_| 0.0).1.job.optimizer;
        for shift in 0..=1 {
            let rates = |s| optimizer.rate(40, s + shift);
            assert_eq!(status(rates), AttestationStatus::Attested, "{shift}");
        }
    }

    #[test]
    fn a_ramp_that_ends_one_step_later_is_the_same_schedule() {
        let optimizer = run(|_| 0.0).1.job.optimizer;
        let rates = |s: u64| {
            if s <= 10 {
                3e-4 * s as f64 / 11.0
            } else {
                optimizer.rate(40, s)
            }
        };
        assert_eq!(status(rates), AttestationStatus::Attested);
    }

    #[test]
    fn each_way_to_fall_is_told_from_the_others() {
        let ways = [Decay::Cosine, Decay::Linear, Decay::Constant, Decay::Wsd];
        for asked in ways {
            let claim = run(|_| 0.0).1;
            let falls = |way| OptimizerJob {
                lr_decay_style: way,
                wsd_decay_steps: 8,
                ..claim.job.optimizer.clone()
            };
            for ran in ways {
                let (trace, mut claim) = run(|s| falls(ran).rate(40, s));
                claim.job.optimizer = falls(asked);
                let status = check(&trace, &claim, 1).unwrap().status;
                let expected = match asked == ran {
                    true => AttestationStatus::Attested,
                    false => AttestationStatus::Contradicted,
                };
                assert_eq!(status, expected, "{asked:?} {ran:?}");
            }
        }
    }

    #[test]
    fn another_peak_minimum_or_warmup_is_another_schedule() {
        let optimizer = run(|_| 0.0).1.job.optimizer;
        let others = [
            OptimizerJob {
                learning_rate: 1e-5,
                ..optimizer.clone()
            },
            OptimizerJob {
                min_learning_rate: 0.0,
                ..optimizer.clone()
            },
            OptimizerJob {
                warmup_steps: 2,
                ..optimizer
            },
        ];
        for other in others {
            assert_eq!(
                status(|s| other.rate(40, s)),
                AttestationStatus::Contradicted,
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_rate_above_the_peak_contradicts_also_where_steps_are_not_known() {
        let (mut trace, claim) = run(|s| 1e-3 * (41 - s) as f64 / 40.0);
        trace.steps_assumed = true;
        assert_eq!(
            check(&trace, &claim, 1).unwrap().status,
            AttestationStatus::Contradicted
        );
        let (mut trace, claim) = run(|s| 3e-4 * (41 - s) as f64 / 40.0);
        trace.steps_assumed = true;
        assert_eq!(
            check(&trace, &claim, 1).unwrap().status,
            AttestationStatus::NotStated
        );
    }

    #[test]
    fn where_no_schedule_is_claimed_the_rates_are_only_told() {
        let (trace, mut claim) = run(|s| s as f64);
        claim.fields = Some(["train_iters".to_owned()].into());
        let field = check(&trace, &claim, 1).unwrap();
        assert_eq!(
            (field.status, &field.declared),
            (AttestationStatus::NotStated, &None)
        );
        let told = field.arithmetic.unwrap();
        assert!(told.contains("at most 4.000e1 at step 40"), "{told}");
    }
}
