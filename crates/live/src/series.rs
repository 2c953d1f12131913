//! A curve of bounded length: it keeps every point until it is full, and from then on every second
//! one.

use schemars::JsonSchema;
use serde::Serialize;

/// Points that a curve has at most. A screen shows no more than that.
const MOST: usize = 512;

/// Points of one quantity over time or steps, evenly thinned. The last point is always the newest.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Series {
    x: Vec<f64>,
    y: Vec<f64>,
    /// One point of so many is kept for good.
    #[serde(skip)]
    stride: usize,
    /// Points that were pushed.
    #[serde(skip)]
    pushed: usize,
    /// The newest point goes when the next one comes.
    #[serde(skip)]
    is_newest_for_now: bool,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            x: Vec::new(),
            y: Vec::new(),
            stride: 1,
            pushed: 0,
            is_newest_for_now: false,
        }
    }
}

impl Series {
    /// Values that JSON cannot write are left out, as a gap.
    pub fn push(&mut self, x: f64, y: f64) {
        if !x.is_finite() || !y.is_finite() {
            return;
        }
        if self.is_newest_for_now {
            self.x.pop();
            self.y.pop();
        }
        if self.x.len() == MOST {
            thin(&mut self.x);
            thin(&mut self.y);
            self.stride *= 2;
        }
        self.x.push(x);
        self.y.push(y);
        self.is_newest_for_now = !self.pushed.is_multiple_of(self.stride);
        self.pushed += 1;
    }

    #[must_use]
    pub fn points(&self) -> impl ExactSizeIterator<Item = (f64, f64)> {
        self.x.iter().copied().zip(self.y.iter().copied())
    }

    #[must_use]
    pub fn last(&self) -> Option<f64> {
        self.y.last().copied()
    }
}

fn thin(values: &mut Vec<f64>) {
    let mut position = 0;
    values.retain(|_| {
        position += 1;
        position % 2 == 1
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the number of points: bounded, in order, with the first and the newest one, and
        /// nothing that was not pushed.
        #[test]
        fn a_curve_is_bounded_and_ends_with_the_newest_point(count in 1_usize..20_000) {
            let mut series = Series::default();
            for i in 0..count {
                series.push(i as f64, (i * 3) as f64);
            }
            let points: Vec<_> = series.points().collect();
            prop_assert!(points.len() <= MOST && points.len() >= count.min(MOST / 2));
            prop_assert_eq!(points[0], (0.0, 0.0));
            prop_assert_eq!(points[points.len() - 1].0, (count - 1) as f64);
            prop_assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert!(points.iter().all(|(x, y)| *y == x * 3.0));
            let gaps: Vec<_> = points.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
            let widest = gaps.iter().copied().fold(0.0, f64::max);
            // All but the last gap are equally wide.
            prop_assert!(gaps.iter().rev().skip(1).all(|gap| *gap == widest));
        }
    }

    #[test]
    fn what_is_no_number_is_a_gap() {
        let mut series = Series::default();
        series.push(1.0, f64::NAN);
        series.push(f64::INFINITY, 1.0);
        series.push(2.0, 1.0);
        assert_eq!(series.points().collect::<Vec<_>>(), [(2.0, 1.0)]);
    }
}
