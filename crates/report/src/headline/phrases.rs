//! Parts of sentences on one cell or on two.

use tprimat_numbers::figures::{RatioInterval, Row, Speedup, rate_unit, unit_in_prose};
use tprimat_numbers::results::CONFIDENCE;

use crate::{
    format::{ratio, ratio_beside_1},
    mark,
};

/// The sentence on step times that the clock shows to be too short.
pub(super) fn short_step_times(row: &Row, rate: &str) -> Option<String> {
    let factor = row.timer_factor?;
    Some(format!(
        "{rate} may be {factor:.1}× too high: by the clock, its step times leave out time that passes between steps"
    ))
}

pub(super) fn unit(rows: &[&Row]) -> String {
    unit_in_prose(rate_unit(rows.iter().copied()))
}

pub(super) fn named(row: &Row) -> String {
    format!("{}{}", row.cell, mark(&row.imported))
}

/// `1.31×`
pub(in super::super) fn times(speedup: &Speedup) -> String {
    let width = speedup.interval.map(|i| i.high - i.low);
    // A ratio that is called faster or slower is never printed as 1.
    let print = if speedup.significant == Some(true) {
        ratio_beside_1
    } else {
        ratio
    };
    format!("{}×", print(speedup.ratio, width))
}

/// The per cent within which the interval has two speeds, rounded up.
pub(in super::super) fn at_most(speedup: &Speedup) -> Option<String> {
    let RatioInterval { low, high, .. } = speedup.interval?;
    let share = (high - 1.0).max(1.0 / low - 1.0);
    let tenths = (share * 1000.0 - 1e-9).ceil();
    tenths.is_finite().then(|| format!("{:.1}", tenths / 10.0))
}

/// What stands above the intervals of these ratios. Where several pairs of cells were judged, Holm's
/// correction makes each interval wider than one of 95 % would be alone.
pub(in super::super) fn ratio_intervals<'a>(
    shown: impl IntoIterator<Item = &'a Speedup>,
) -> &'static str {
    let confidences = shown
        .into_iter()
        .filter_map(|s| Some(s.interval?.confidence));
    // The last one that Holm's procedure looks at is of 95 %, up to rounding.
    let is_corrected = confidences.fold(0.0, f64::max) > CONFIDENCE + 1e-9;
    if is_corrected { CORRECTED } else { "95 % CI" }
}

const CORRECTED: &str = "95 % CI, Holm";

/// `1.29–1.33`, below a `head` that says which interval that is. Ratios without a verdict are not
/// corrected, so below a head that names a correction they say so: `95 % CI 1.29–1.33`.
pub(in super::super) fn interval(speedup: &Speedup, head: &str) -> Option<String> {
    let RatioInterval { low, high, .. } = speedup.interval?;
    let width = Some(high - low).filter(|width| width.is_finite())?;
    let kind = if head == CORRECTED && speedup.significant.is_none() {
        "95 % CI "
    } else {
        ""
    };
    Some(format!(
        "{kind}{}–{}",
        ratio_beside_1(low, Some(width)),
        ratio_beside_1(high, Some(width))
    ))
}
