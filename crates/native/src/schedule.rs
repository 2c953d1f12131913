//! The learning rate of each step: linear warm-up, then cosine to the minimum.
//!
//! Step s counts from 1. With W = warmup_steps and N = train_iters:
//! s <= W: lr = max * s / W; later: lr = min + (max - min) * (1 + cos(pi * (s - W) / (N - W))) / 2.
//! So the last step runs at the minimum.

use tprimat_job::OptimizerJob;

pub fn learning_rate(optimizer: &OptimizerJob, train_iters: u64, step: u64) -> f64 {
    let (max, min, warmup) = (
        optimizer.learning_rate,
        optimizer.min_learning_rate,
        optimizer.warmup_steps,
    );
    if step <= warmup {
        return max * step as f64 / warmup as f64;
    }
    let progress = (step - warmup) as f64 / train_iters.saturating_sub(warmup).max(1) as f64;
    min + (max - min) * 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_then_cosine() {
        let optimizer = OptimizerJob {
            learning_rate: 1.0,
            min_learning_rate: 0.1,
            warmup_steps: 4,
            ..OptimizerJob::default()
        };
        let at = |step| learning_rate(&optimizer, 24, step);
        assert_eq!((at(1), at(2), at(4)), (0.25, 0.5, 1.0));
        assert!(
            (at(14) - 0.55).abs() < 1e-12,
            "half-way down at half of the cosine"
        );
        assert!((at(24) - 0.1).abs() < 1e-12);
        assert!((4..24).all(|s| at(s) >= at(s + 1)));
    }

    #[test]
    fn no_warm_up_and_warm_up_beyond_the_end() {
        let mut optimizer = OptimizerJob {
            learning_rate: 2.0,
            ..OptimizerJob::default()
        };
        assert!(learning_rate(&optimizer, 1, 1).abs() < 1e-12);
        optimizer.warmup_steps = 10;
        assert!((learning_rate(&optimizer, 5, 5) - 1.0).abs() < 1e-12);
    }
}
