//! A row's repeats → lines of as few points as show what there is to see.

use std::collections::BTreeMap;

use tprimat_figures::{Curve, RepeatStatus, RepeatSummary, Row};
use tprimat_results::quantile;

use super::canvas::Point;

/// Pixels that a drawn line may be off.
const TOLERANCE: f64 = 0.7;

pub type Series = Vec<(f64, f64)>;
type Values = fn(&Curve) -> &Vec<Option<f64>>;

/// What one repeat has by step, in the log's order.
pub fn of_repeat(repeat: &RepeatSummary, values: Values) -> Vec<(u64, f64)> {
    let curve = &repeat.curve;
    let pairs = curve
        .step
        .iter()
        .zip(values(curve))
        .filter_map(|(step, value)| Some((*step, (*value)?)));
    pairs.filter(|(_, value)| value.is_finite()).collect()
}

/// The median over the repeats that count, by step.
pub fn median(row: &Row, values: Values) -> Series {
    let mut counted: Vec<Vec<(u64, f64)>> = row
        .repeats
        .iter()
        .filter(|r| r.status == RepeatStatus::Ok)
        .map(|r| of_repeat(r, values))
        .filter(|points| !points.is_empty())
        .collect();
    let is_rising = |points: &Vec<(u64, f64)>| points.windows(2).all(|w| w[0].0 < w[1].0);
    if counted.len() == 1 && counted.iter().all(is_rising) {
        return counted
            .remove(0)
            .into_iter()
            .map(|(step, value)| (step as f64, value))
            .collect();
    }
    let mut by_step: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (step, value) in counted.into_iter().flatten() {
        by_step.entry(step).or_default().push(value);
    }
    by_step
        .into_iter()
        .filter_map(|(step, values)| Some((step as f64, quantile(&values, 0.5)?)))
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
        let by_value = |pick: fn(f64, f64) -> bool| {
            (1..stretch.len()).fold(0, |best, i| {
                if pick(stretch[i].1, stretch[best].1) {
                    i
                } else {
                    best
                }
            })
        };
        let (low, high) = (by_value(|a, b| a < b), by_value(|a, b| a > b));
        kept.push(stretch[low.min(high)]);
        if low != high {
            kept.push(stretch[low.max(high)]);
        }
    }
    kept.extend(points.last());
    kept.dedup();
    kept
}

/// The same line in fewer points, off by less than a pixel (Douglas and Peucker).
pub fn simplified(points: &[Point]) -> Vec<Point> {
    let mut keep = vec![false; points.len()];
    let mut open = Vec::new();
    if let Some(last) = points.len().checked_sub(1) {
        (keep[0], keep[last]) = (true, true);
        open.push((0, last));
    }
    while let Some((from, to)) = open.pop() {
        let (a, b) = (points[from], points[to]);
        let (dx, dy) = (f64::from(b.0 - a.0), f64::from(b.1 - a.1));
        let length = dx.hypot(dy);
        let distance = |p: &Point| {
            let (x, y) = (f64::from(p.0 - a.0), f64::from(p.1 - a.1));
            if length == 0.0 {
                x.hypot(y)
            } else {
                (x * dy - y * dx).abs() / length
            }
        };
        let farthest = (from + 1..to)
            .map(|i| (i, distance(&points[i])))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((i, _)) = farthest.filter(|(_, distance)| *distance > TOLERANCE) {
            keep[i] = true;
            open.extend([(from, i), (i, to)]);
        }
    }
    points
        .iter()
        .zip(keep)
        .filter(|(_, keep)| *keep)
        .map(|(point, _)| *point)
        .collect()
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

    #[test]
    fn a_straight_line_is_two_points_and_a_corner_stays() {
        let straight: Vec<Point> = (0..500).map(|i| (i, i / 3)).collect();
        assert_eq!(simplified(&straight), [(0, 0), (499, 166)]);
        assert_eq!(
            simplified(&[(0, 0), (5, 0), (10, 0), (10, 40)]),
            [(0, 0), (10, 0), (10, 40)]
        );
        assert!(simplified(&[]).is_empty() && simplified(&[(1, 1)]) == [(1, 1)]);
    }
}
