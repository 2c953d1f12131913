//! The learning rate of each step, as every trainer here applies it and every log is held against it.
//!
//! Step s counts from 1. With W = warmup_steps, N = train_iters and D = wsd_decay_steps: up to W the
//! rate is max · s / W; later it is min + (max − min) · c. With p = (s − W) / (N − W), c is
//! (1 + cos(pi · p)) / 2 of a cosine, 1 − p of a linear decay, 1 of a constant rate, and of WSD
//! (N − s) / D over the last D steps and 1 before. So the last step runs at the minimum, unless the
//! rate is constant.

use crate::{Decay, OptimizerJob};

impl OptimizerJob {
    /// The rate of `step`, from 1, of a run of `train_iters` steps.
    #[must_use]
    pub fn rate(&self, train_iters: u64, step: u64) -> f64 {
        let (max, min, warmup) = (
            self.learning_rate,
            self.min_learning_rate,
            self.warmup_steps,
        );
        if step <= warmup {
            return max * step as f64 / warmup.max(1) as f64;
        }
        let part = |done: u64, all: u64| (done as f64 / all.max(1) as f64).min(1.0);
        let progress = part(step - warmup, train_iters.saturating_sub(warmup));
        let left = match self.lr_decay_style {
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            Decay::Linear => 1.0 - progress,
            Decay::Constant => 1.0,
            Decay::Wsd => part(train_iters.saturating_sub(step), self.wsd_decay_steps),
        };
        min + (max - min) * left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_then_decay() {
        let mut optimizer = OptimizerJob {
            learning_rate: 1.0,
            min_learning_rate: 0.1,
            warmup_steps: 4,
            wsd_decay_steps: 5,
            ..OptimizerJob::default()
        };
        for (style, middle, late, last) in [
            (
                Decay::Cosine,
                0.55,
                0.1 + 0.9 * 0.5 * (1.0 + (0.9 * std::f64::consts::PI).cos()),
                0.1,
            ),
            (Decay::Linear, 0.55, 0.1 + 0.9 * 0.1, 0.1),
            (Decay::Constant, 1.0, 1.0, 1.0),
            (Decay::Wsd, 1.0, 0.1 + 0.9 * 0.4, 0.1),
        ] {
            optimizer.lr_decay_style = style;
            let at = |step| optimizer.rate(24, step);
            assert_eq!((at(1), at(2), at(4)), (0.25, 0.5, 1.0));
            assert!((at(14) - middle).abs() < 1e-12, "{style:?}");
            assert!((at(22) - late).abs() < 1e-12, "{style:?}");
            assert!((at(24) - last).abs() < 1e-12, "{style:?}");
            assert!((4..24).all(|s| at(s) >= at(s + 1)));
        }
    }

    #[test]
    fn no_warm_up_and_warm_up_beyond_the_end() {
        let mut optimizer = OptimizerJob {
            learning_rate: 2.0,
            ..OptimizerJob::default()
        };
        assert!(optimizer.rate(1, 1).abs() < 1e-12);
        optimizer.warmup_steps = 10;
        assert!((optimizer.rate(5, 5) - 1.0).abs() < 1e-12);
    }
}
