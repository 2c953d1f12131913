//! A row's repeats → lines of as few points as show what there is to see.

use tprimat_numbers::figures::{Curve, RepeatStatus, RepeatSummary, Row};
use tprimat_numbers::results::quantile;

pub type Series = Vec<(f64, f64)>;
pub type Values = fn(&Curve) -> &Vec<Option<f64>>;

/// Repeats that count.
pub fn counted(row: &Row) -> impl Iterator<Item = &RepeatSummary> {
    row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok)
}

/// What one repeat has by step, in the log's order.
pub fn of_repeat(repeat: &RepeatSummary, values: Values) -> Series {
    let curve = &repeat.curve;
    let steps = curve.step.iter().map(|step| *step as f64);
    let pairs = steps
        .zip(values(curve))
        .filter_map(|(step, value)| Some((step, (*value)?)));
    pairs.filter(|(_, value)| value.is_finite()).collect()
}

/// The median over the repeats that count, by step.
pub fn median(row: &Row, values: Values) -> Series {
    let mut all: Series = counted(row).flat_map(|r| of_repeat(r, values)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let of_step = |same: &[(f64, f64)]| {
        let values: Vec<f64> = same.iter().map(|(_, value)| *value).collect();
        Some((same[0].0, quantile(&values, 0.5)?))
    };
    all.chunk_by(|a, b| a.0 == b.0)
        .filter_map(of_step)
        .collect()
}

/// At most `most` points: of each stretch the smallest and the largest value, so that no spike is
/// lost.
pub fn thinned(points: Series, most: usize) -> Series {
    if points.len() <= most {
        return points;
    }
    // The ends stay, for a line's tag stands at its last point.
    let size = points.len().div_ceil((most / 2).saturating_sub(1).max(1));
    let mut kept = Vec::with_capacity(most);
    kept.extend(points.first());
    for stretch in points.chunks(size) {
        let by_value = |a: &usize, b: &usize| stretch[*a].1.total_cmp(&stretch[*b].1);
        let low = (0..stretch.len()).min_by(by_value).unwrap_or(0);
        let high = (0..stretch.len()).max_by(by_value).unwrap_or(0);
        kept.extend([stretch[low.min(high)], stretch[low.max(high)]]);
    }
    kept.extend(points.last());
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_survives_thinning() {
        let spiky: Series = (0..10_000)
            .map(|i| (f64::from(i), if i == 6789 { 50.0 } else { 1.0 }))
            .collect();
        let kept = thinned(spiky, 600);
        assert!(
            kept.len() <= 600 && kept.contains(&(6789.0, 50.0)),
            "{}",
            kept.len()
        );
        assert!(kept.windows(2).all(|w| w[0].0 < w[1].0));
    }
}
