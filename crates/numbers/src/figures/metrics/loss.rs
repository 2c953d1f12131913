//! What the training came to, and how long it took to get there.

use crate::results::{mean, words::short};
use tprimat_base::words::plain::counted;

use super::{Computed, Subject, absent, no_repeat_counts};
use crate::figures::{Curve, RepeatStatus};

/// Logged losses that are averaged before one is compared with the target: single steps are noise.
const SMOOTHED: usize = 5;

pub(super) fn at_end(of: &Subject) -> Computed {
    let loss = of
        .summary
        .loss_at_end
        .ok_or_else(|| absent("no_loss", "the last step has no loss"))?;
    let step = of.summary.last_step;
    let step = step.map_or_else(String::new, |step| format!(" at step {step}"));
    let repeats = counted(of.summary.n, "repeat");
    Ok((loss, format!("the trainer's loss{step}, mean of {repeats}")))
}

/// Mean over the repeats; one that does not get there leaves no figure.
pub(super) fn time_to(of: &Subject) -> Computed {
    let unset = || {
        let text = format!(
            "no target is set for {} (comparison.target_loss)",
            of.cell.model
        );
        absent("no_target", text)
    };
    let target = *of
        .catalogue
        .target_loss
        .get(&of.cell.model)
        .ok_or_else(unset)?;
    let counts_from = of.summary.workload.as_ref().map_or(1, |w| w.counts_from);
    let curves: Vec<&Curve> = of
        .summary
        .repeats
        .iter()
        .filter(|r| r.status == RepeatStatus::Ok)
        .map(|r| &r.curve)
        .collect();
    let repeats = counted(curves.len(), "repeat");
    let reached = curves
        .iter()
        .filter(|curve| reached_at(curve, target).is_some())
        .count();
    if reached < curves.len() {
        let text = format!("{reached} of {repeats} reached a loss of {target}");
        return Err(absent("target_not_reached", text));
    }
    let times: Option<Vec<f64>> = curves
        .iter()
        .map(|curve| seconds_to(curve, target, counts_from))
        .collect();
    let untimed = || {
        let text = "some steps before the target have no step time, or are not logged";
        absent("steps_before_target_not_timed", text)
    };
    let seconds = mean(&times.ok_or_else(untimed)?);
    let basis = format!(
        "step times until the mean of {SMOOTHED} logged losses is at most {}, mean of {repeats}",
        short(target)
    );
    Ok((seconds.ok_or_else(no_repeat_counts)?, basis))
}

/// Index of the first line at which the mean of the last losses is not above the target.
fn reached_at(curve: &Curve, target: f64) -> Option<usize> {
    let lines: Vec<(usize, f64)> = curve
        .loss
        .iter()
        .enumerate()
        .filter_map(|(i, l)| Some((i, (*l)?)))
        .collect();
    let first = lines
        .windows(SMOOTHED)
        .find(|w| w.iter().map(|(_, loss)| loss).sum::<f64>() <= target * w.len() as f64)?;
    first.last().map(|(i, _)| *i)
}

/// A line stands for the steps since the line before it, as a mean over them.
fn seconds_to(curve: &Curve, target: f64, counts_from: u64) -> Option<f64> {
    let end = reached_at(curve, target)?;
    // An excerpt: nobody knows what the steps between its lines took.
    let mut gaps = curve
        .step
        .get(..=end)?
        .windows(2)
        .map(|w| w[1].checked_sub(w[0]));
    let interval = gaps.next()?;
    if gaps.any(|gap| gap != interval) {
        return None;
    }
    let mut before = counts_from.checked_sub(1);
    let mut seconds = 0.0;
    for (step, time) in curve
        .step
        .iter()
        .zip(&curve.step_time_seconds)
        .take(end + 1)
    {
        // Steps counted from 0: the first line of a log that has every step is one step.
        let steps = before.map_or_else(
            || step.saturating_add(1),
            |before| step.saturating_sub(before),
        );
        seconds += steps as f64 * (*time).filter(|t| t.is_finite() && *t > 0.0)?;
        before = Some(*step);
    }
    Some(seconds)
}
