//! Bootstrap of Student's t: an interval that does not assume that logarithms of rates are normally
//! distributed.

use crate::results::{
    CONFIDENCE, mean, quantile, sd,
    stats::{NO_VARIANCE, logs},
};

/// Units below which resampling says less than Student's t.
pub const BOOTSTRAP_FROM: usize = 10;
/// With 1999 resamples the 2.5 % and 97.5 % points are order statistics (1999 + 1 is a multiple of
/// 40).
const RESAMPLES: usize = 1999;
/// The same data give the same interval, always.
const SEED: u64 = 0x7470_7269_6d61_7421;

/// 95 % interval of the geometric mean: bootstrap-t on logarithms (Efron and Tibshirani 1993,
/// section 12.5).
///
/// None below `BOOTSTRAP_FROM` values or where nothing varies.
#[must_use]
pub fn bootstrap_interval(values: &[f64]) -> Option<[f64; 2]> {
    let mut logs = logs(values).filter(|l| l.len() >= BOOTSTRAP_FROM)?;
    // In order, so that the order of the repeats does not matter.
    logs.sort_by(f64::total_cmp);
    let n = logs.len();
    let root = (n as f64).sqrt();
    let (center, sd_all) = (
        mean(&logs)?,
        sd(&logs).filter(|sd| sd.powi(2) >= NO_VARIANCE)?,
    );
    let mut state = SEED;
    let mut draw = || ((u128::from(splitmix(&mut state)) * n as u128) >> 64) as usize;
    let mut studentised = Vec::with_capacity(RESAMPLES);
    let mut resample = vec![0.0; n];
    for _ in 0..RESAMPLES {
        resample.fill_with(|| logs[draw()]);
        let (m, s) = (mean(&resample)?, sd(&resample)?);
        // One value drawn n times has no t.
        if s.powi(2) >= NO_VARIANCE {
            studentised.push((m - center) / (s / root));
        }
    }
    let tail = f64::midpoint(1.0, -CONFIDENCE);
    let (low, high) = (
        quantile(&studentised, tail)?,
        quantile(&studentised, 1.0 - tail)?,
    );
    let error = sd_all / root;
    Some([(center - high * error).exp(), (center - low * error).exp()])
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
