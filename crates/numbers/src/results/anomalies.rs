//! What a reader must know of a run's steps: slow first steps, a level shift, an odd last step, a
//! loss that is no loss.
//!
//! These look at the whole series, before any warm-up is declared; the statistics use none of them.

use tprimat_job::ModelShape;
use tprimat_logs::{Anomaly, Step, Trace};

use super::{changes, is_positive, outlier_limit, quantile, words::step_time};

/// Kinds that are told as more than a remark.
pub const SLOW_FIRST_STEPS: &str = "slow_first_steps";
pub const ENDS_EARLY: &str = "ends_early";
pub const CONSTANT_LOSS: &str = "constant_loss";
pub const RATE_DISAGREES: &str = "rate_disagrees";
/// A step this many times slower than the median of the rest is slow.
const SLOW: f64 = 1.5;
/// A last step this many times off the median is odd.
const ODD: f64 = 1.2;
/// Relative change of the median that is a shift.
const SHIFT: f64 = 0.03;
/// Timed lines below which no shift is looked for.
const SHIFT_LEAST: usize = 40;
/// Nats below which no language model's loss lies on text that it has not memorised.
const COLLAPSED: f64 = 0.1;
/// Logged steps from which on one and the same loss is told.
const LEAST_CONSTANT: usize = 10;

/// Lines with which a slow one is compared.
const MOST_LATER: usize = 4096;

/// How many of the first lines are slow beside the median of the lines after them; at most half of
/// them.
#[must_use]
pub fn slow_first_steps(steps: &[Step]) -> usize {
    let times: Vec<f64> = steps
        .iter()
        .filter_map(|s| s.step_time_seconds)
        .filter(|t| is_positive(*t))
        .collect();
    let half = if times.len() >= 4 { times.len() / 2 } else { 0 };
    // One median a line is quadratic; that of a few thousand lines is as good as that of all.
    let is_usual = |at: &usize| {
        let later = &times[at + 1..];
        let later = quantile(&later[..later.len().min(MOST_LATER)], 0.5);
        later.is_none_or(|median| times[*at] <= SLOW * median)
    };
    (0..half).find(is_usual).unwrap_or(half)
}

/// The largest change of the median step time by 3 % or more: lines before it, and the medians on
/// both sides.
#[must_use]
pub fn level_shift(times: &[f64]) -> Option<(usize, f64, f64)> {
    if times.len() < SHIFT_LEAST {
        return None;
    }
    let medians = |at: &usize| {
        Some((
            *at,
            quantile(&times[..*at], 0.5)?,
            quantile(&times[*at..], 0.5)?,
        ))
    };
    let size = |(_, a, b): &(usize, f64, f64)| (b / a).ln().abs();
    let found = changes(times, 0).shifts;
    let largest = found
        .iter()
        .filter_map(medians)
        .max_by(|a, b| size(a).total_cmp(&size(b)))?;
    (size(&largest) >= SHIFT.ln_1p()).then_some(largest)
}

/// Something odd about a run as a whole.
#[must_use]
pub fn anomaly(kind: &str, detail: String) -> Anomaly {
    Anomaly {
        kind: kind.to_owned(),
        detail,
        step: None,
    }
}

pub fn of_times(steps: &[Step]) -> Vec<Anomaly> {
    let timed: Vec<(&Step, f64)> = steps
        .iter()
        .filter_map(|s| Some((s, s.step_time_seconds.filter(|t| is_positive(*t))?)))
        .collect();
    let slow = slow_first_steps(steps);
    let (first, rest) = timed.split_at(slow);
    let times: Vec<f64> = rest.iter().map(|(_, t)| *t).collect();
    let Some(median) = quantile(&times, 0.5) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if let (Some((a, _)), Some((b, _))) = (first.first(), first.last()) {
        let low = first.iter().map(|(_, t)| *t).fold(f64::INFINITY, f64::min);
        let high = first.iter().map(|(_, t)| *t).fold(0.0, f64::max);
        let (high, low) = (step_time(high), step_time(low));
        let took = if a.step == b.step {
            format!("step {} takes {high}", a.step)
        } else {
            format!("steps {} to {} take {low} to {high}", a.step, b.step)
        };
        let detail = format!("{took}; the median of the rest is {}", step_time(median));
        found.push(anomaly(SLOW_FIRST_STEPS, detail));
    }
    if let Some((at, before, after)) = level_shift(&times) {
        let detail = format!(
            "near step {} the median step time changes from {} to {} ({:+.1} %)",
            rest[at].0.step,
            step_time(before),
            step_time(after),
            (after / before - 1.0) * 100.0
        );
        found.push(anomaly("level_shift", detail));
    }
    if let (Some((step, last)), true) = (rest.last(), times.len() >= 5) {
        let ratio = (last / median).max(median / last);
        let before = &times[..times.len() - 1];
        let far = outlier_limit(before, median).is_some_and(|limit| (last - median).abs() > limit);
        if ratio >= ODD && far {
            let detail = format!(
                "the last step, {}, takes {}; the median is {}",
                step.step,
                step_time(*last),
                step_time(median)
            );
            found.push(anomaly("last_step_outlier", detail));
        }
    }
    found
}

/// Losses from which nobody can see that a model learns.
#[must_use]
pub fn of_losses(trace: &Trace) -> Option<Anomaly> {
    let losses: Vec<(u64, f64)> = trace
        .steps
        .iter()
        .filter_map(|s| Some((s.step, s.loss?)))
        .collect();
    let tail = &losses[losses.len().saturating_sub(5)..];
    let end = quantile(&tail.iter().map(|(_, l)| *l).collect::<Vec<_>>(), 0.5)?;
    let (step, last) = tail.last()?;
    // A stage of a pipeline that computes no loss prints −1.
    if losses.len() < 5 || end < 0.0 {
        return None;
    }
    // At random weights a loss with few digits may be the same for some steps.
    let is_long = losses.len() >= LEAST_CONSTANT || *last == 0.0;
    if is_long && losses.iter().all(|(_, loss)| loss == last) {
        let detail = format!(
            "the loss is {last} at every one of {} logged steps: nothing was trained, or it is not the loss",
            losses.len()
        );
        return Some(anomaly(CONSTANT_LOSS, detail));
    }
    (end < COLLAPSED).then(|| {
        let detail = format!(
            "the loss falls to {last:.3e} at step {step}: mock or repeated data, or no longer a loss"
        );
        anomaly("loss_collapsed", detail)
    })
}

/// A model's own vocabulary, where it is known.
pub(crate) fn vocabulary(model: &ModelShape) -> Option<f64> {
    (model.vocab_size > 1).then(|| (model.vocab_size as f64).ln())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steps(times: &[f64]) -> Vec<Step> {
        let step = |(i, t): (usize, &f64)| Step {
            step: i as u64,
            step_time_seconds: Some(*t),
            ..Step::default()
        };
        times.iter().enumerate().map(step).collect()
    }

    fn kinds(times: &[f64]) -> Vec<String> {
        of_times(&steps(times))
            .into_iter()
            .map(|a| a.kind)
            .collect()
    }

    /// Not quite regular, and the same every time.
    fn noisy(level: f64, count: usize) -> Vec<f64> {
        (0..count)
            .map(|i| level * (1.0 + 0.004 * ((i * 7) % 5) as f64))
            .collect()
    }

    #[test]
    fn a_quiet_run_is_quiet() {
        assert_eq!(kinds(&noisy(2.0, 200)), Vec::<String>::new());
        assert_eq!(kinds(&[]), Vec::<String>::new());
        assert_eq!(kinds(&[3.0]), Vec::<String>::new());
    }

    #[test]
    fn slow_first_steps_are_counted() {
        let run = [vec![30.0, 17.0, 16.0, 12.0], noisy(3.0, 20)].concat();
        assert_eq!(slow_first_steps(&steps(&run)), 4);
        let told = of_times(&steps(&run));
        assert_eq!(told.len(), 1);
        assert!(
            told[0]
                .detail
                .starts_with("steps 0 to 3 take 12.0 s to 30.0 s"),
            "{told:?}"
        );
        assert_eq!(
            slow_first_steps(&steps(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0])),
            0,
            "only beside the rest"
        );
        assert_eq!(
            slow_first_steps(&steps(&[90.0, 80.0, 70.0, 5.0, 5.0])),
            2,
            "at most half"
        );
    }

    #[test]
    fn a_level_shift_is_placed_and_one_outlier_is_none() {
        let run = [noisy(2.52, 60), noisy(2.36, 90)].concat();
        let (at, before, after) = level_shift(&run).unwrap();
        assert!(
            (58..=62).contains(&at) && before > 2.5 && after < 2.4,
            "{at} {before} {after}"
        );
        let mut outlier = noisy(2.0, 100);
        outlier[70] = 60.0;
        assert_eq!(level_shift(&outlier), None);
    }

    #[test]
    fn an_odd_last_step_is_told() {
        let mut run = noisy(1.5, 9);
        run.push(2.1);
        assert_eq!(kinds(&run), ["last_step_outlier"]);
    }

    #[test]
    fn a_loss_near_zero_is_no_loss_of_a_language_model() {
        let run = |losses: &[f64]| Trace {
            steps: losses
                .iter()
                .map(|l| Step {
                    loss: Some(*l),
                    ..Step::default()
                })
                .collect(),
            ..Trace::default()
        };
        assert!(of_losses(&run(&[11.0, 4.0, 0.5, 0.01, 0.004, 0.003])).is_some());
        for constant in [0.0, 2.5] {
            let told = of_losses(&run(&[constant; 10])).unwrap().detail;
            assert!(told.starts_with(&format!("the loss is {constant} at every one of 10")));
        }
        assert!(of_losses(&run(&[2.5; 9])).is_none());
        assert!(of_losses(&run(&[[2.5; 10], [2.4; 10]].concat())).is_none());
        assert!(
            of_losses(&run(&[11.0, 4.0, 2.5, 0.0, 2.2, 2.1])).is_none(),
            "one zero is not a collapse"
        );
        assert!(
            of_losses(&run(&[-1.0; 9])).is_none(),
            "a pipeline stage without a loss prints -1"
        );
    }

    proptest! {
        #[test]
        fn slow_first_steps_are_those_above_the_median_of_the_rest(
            times in proptest::collection::vec(prop_oneof![0.5f64..4.0, Just(1.0), Just(1.5), 4.0f64..1e9], 0..40),
        ) {
            let is_slow = |i: &usize| times[*i] > SLOW * quantile(&times[i + 1..], 0.5).unwrap_or(f64::INFINITY);
            let most = if times.len() < 4 { 0 } else { times.len() / 2 };
            prop_assert_eq!(slow_first_steps(&steps(&times)), (0..most).take_while(is_slow).count());
        }
    }
}
